"""A basket that is the default of a parameter."""

from agentloop import Agent, tool


def _fill(item: str, basket: list[str] = []) -> list[str]:  # noqa: B006 - the fault
    basket.append(item)
    return basket


def _fill_new(item: str, basket: list[str] | None = None) -> list[str]:
    basket = [] if basket is None else basket
    basket.append(item)
    return basket


@tool
async def add(item: str) -> str:
    """Put something into a new basket."""
    return f"in the basket: {', '.join(_fill(item))}"


@tool(name="add")
async def add_to_new(item: str) -> str:
    """Put something into a new basket."""
    return f"in the basket: {', '.join(_fill_new(item))}"


faulty = Agent("basket", tools=[add])
sound = Agent("basket", tools=[add_to_new])
make_context = None
