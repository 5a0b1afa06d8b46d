"""A lock that stays locked when the amount is wrong."""

import anyio

from agentloop import Agent, ToolContext, tool


class Account:
    def __init__(self) -> None:
        self.balance = 100
        self.lock = anyio.Lock()


def _check(balance: int, amount: int) -> None:
    if not 0 < amount <= balance:
        raise ValueError(f"can't pay {amount}")


@tool
async def pay(ctx: ToolContext[Account], amount: int) -> str:
    """Pay from the account."""
    account = ctx.context
    await account.lock.acquire()
    _check(account.balance, amount)
    await anyio.sleep(0.1)
    account.balance -= amount
    account.lock.release()
    return "paid"


@tool(name="pay")
async def tidy_pay(ctx: ToolContext[Account], amount: int) -> str:
    """Pay from the account."""
    account = ctx.context
    async with account.lock:
        _check(account.balance, amount)
        await anyio.sleep(0.1)
        account.balance -= amount
    return "paid"


faulty = Agent("payer", tools=[pay])
sound = Agent("payer", tools=[tidy_pay])
make_context = Account
