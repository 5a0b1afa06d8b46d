"""A charge that may run again after a crash, because its tool says so."""

import anyio
import attrs

from agentloop import Agent, ToolContext, tool


@attrs.define
class Bank:
    charges: list[int] = attrs.field(factory=list)
    keys: set[str] = attrs.field(factory=set)

    async def charge(self, amount: int, key: str | None = None) -> None:
        await anyio.sleep(0.1)
        if key is not None and key in self.keys:
            return
        if key is not None:
            self.keys.add(key)
        self.charges.append(amount)


@tool(idempotent=True)
async def charge(ctx: ToolContext[Bank], amount: int) -> str:
    """Charge the customer."""
    await ctx.context.charge(amount)
    return "charged"


@tool(name="charge", idempotent=True)
async def keyed_charge(ctx: ToolContext[Bank], amount: int) -> str:
    """Charge the customer."""
    await ctx.context.charge(amount, ctx.idempotency_key)
    return "charged"


faulty = Agent("till", tools=[charge])
sound = Agent("till", tools=[keyed_charge])
make_context = Bank
