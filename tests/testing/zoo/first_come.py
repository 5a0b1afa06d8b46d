"""Results in the order in which they came."""

import anyio

from agentloop import Agent, tool

SHOPS = ("north", "south", "west")


async def _price(shop: str, thing: str) -> str:
    await anyio.sleep(0.1)
    return f"{shop}: {len(thing) + len(shop)}"


async def _prices(thing: str) -> list[str]:
    found: list[str] = []

    async def ask(shop: str) -> None:
        found.append(await _price(shop, thing))

    async with anyio.create_task_group() as group:
        for shop in SHOPS:
            group.start_soon(ask, shop)
    return found


@tool
async def prices(thing: str) -> str:
    """Compare prices."""
    return ", ".join(await _prices(thing))


@tool(name="prices")
async def sorted_prices(thing: str) -> str:
    """Compare prices."""
    return ", ".join(sorted(await _prices(thing)))


faulty = Agent("prices", tools=[prices])
sound = Agent("prices", tools=[sorted_prices])
make_context = None
