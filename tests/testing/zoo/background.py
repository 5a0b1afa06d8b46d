"""A task that nobody waits for."""

import asyncio

from agentloop import Agent, ToolContext, tool


class Mailer:
    def __init__(self) -> None:
        self.sent: list[str] = []

    async def send(self, text: str) -> None:
        await asyncio.sleep(5)
        self.sent.append(text)


@tool
async def mail(ctx: ToolContext[Mailer], text: str) -> str:
    """Send a mail."""
    asyncio.create_task(ctx.context.send(text))  # noqa: RUF006 - the fault
    return "on its way"


@tool(name="mail")
async def joined_mail(ctx: ToolContext[Mailer], text: str) -> str:
    """Send a mail."""
    async with asyncio.TaskGroup() as group:
        group.create_task(ctx.context.send(text))
    return "sent"


faulty = Agent("mailer", tools=[mail])
sound = Agent("mailer", tools=[joined_mail])
make_context = Mailer
