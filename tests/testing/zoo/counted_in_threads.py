"""The same in worker threads."""

import threading

from agentloop import Agent, ToolContext, tool


class Tally:
    def __init__(self) -> None:
        self.votes: dict[str, int] = {"ann": 0, "bob": 0}
        self.lock = threading.Lock()


@tool
def vote(ctx: ToolContext[Tally], name: str) -> str:
    """Vote for somebody."""
    votes = ctx.context.votes
    before = votes.get(name, 0)
    votes[name] = before + 1
    return "thanks"


@tool(name="vote")
def whole_vote(ctx: ToolContext[Tally], name: str) -> str:
    """Vote for somebody."""
    with ctx.context.lock:
        votes = ctx.context.votes
        before = votes.get(name, 0)
        votes[name] = before + 1
    return "thanks"


faulty = Agent("ballot", tools=[vote])
sound = Agent("ballot", tools=[whole_vote])
make_context = Tally
