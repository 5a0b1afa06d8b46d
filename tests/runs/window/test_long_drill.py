"""Four hundred turns against a provider that counts by itself, and refuses what is too long for its window."""

from typing import Any

import pytest
from kit.windows import compactions

from agentloop import Agent, ClearToolOutputs, ContextPolicy, DropOldest, Runner, Summarize, tool
from agentloop import records as r
from agentloop.exceptions import ModelTransportError
from agentloop.items import Item, ToolCall
from agentloop.testing import FunctionModel, fail, replay, respond, say
from agentloop.usage import RequestUsage

TURNS, WINDOW, LONG = 400, 32_000, 20_000


def count(text: str) -> int:
    """Return the provider's count: a token for each word of up to four letters, and one for each mark."""
    return sum(1 + len(word) // 4 for word in text.split())


def count_item(item: Item) -> int:
    """Return the provider's count of one item."""
    words = getattr(item, "text", None) or getattr(item, "arguments", None) or getattr(item, "output", None) or ""
    return 8 + count(str(words))


class Provider:
    """Counts each request by itself, refuses what is too long, and knows how much of it was cached."""

    def __init__(self) -> None:
        self.before: list[Item] = []
        self.kept = 0
        self.turns = 0
        self.refused = 0

    def answer(self, request: Any) -> Any:
        """Answer one request."""
        items = list(request.items)
        tokens = 40 + sum(map(count_item, items))
        if tokens > WINDOW:
            self.refused += 1
            return fail(ModelTransportError("maximum context length exceeded", status=400))
        used = RequestUsage(input_tokens=tokens, output_tokens=20)
        if request.path:
            return say("The pages up to here say that all is well. " * 20, usage=used)
        self.turns += 1
        self.kept += items[: len(self.before)] == self.before
        self.before = items
        if request.turn == TURNS:
            return say("done", usage=used)
        return respond(ToolCall(f"call_{request.turn}", "read", f'{{"page": {request.turn}}}'), usage=used)


def make_reader(every: int) -> Any:
    """Return a tool each *every*-th output of which is long."""

    @tool
    async def read(page: int) -> str:
        """Read a page."""
        words = f"page {page} says that all is well and that nothing else has happened since then "
        return (words * 400)[: LONG if page % every == 0 else 400]

    return read


POLICIES = {
    "cleared, dropped": lambda keep: [ClearToolOutputs(keep_last=keep), DropOldest()],
    "cleared, summarized, dropped": lambda keep: [ClearToolOutputs(keep_last=keep), Summarize(), DropOldest()],
}


@pytest.mark.slow
@pytest.mark.scenario("CX-01", "CX-04", "CX-05")
@pytest.mark.parametrize("steps", POLICIES.values(), ids=POLICIES)
@pytest.mark.parametrize(("every", "keep", "kept"), [(8, 3, 0.9), (1, 1, 0.5)], ids=["some long", "all long"])
def test_four_hundred_turns_stay_in_the_window(steps: Any, every: int, keep: int, kept: float) -> None:
    """With at most three requests in a hundred more than turns, and the cached beginning kept in nine turns of ten.

    Where each output has its five thousand tokens, five of them fill the window: no policy can keep the beginning for
    more than four turns.
    """
    provider = Provider()
    policy = ContextPolicy(window=WINDOW, steps=steps(keep))
    agent = Agent(
        "reader", instructions="Read.", model=FunctionModel(provider.answer), tools=[make_reader(every)], context=policy
    )
    result = Runner.run_sync(agent, "Read all pages.", max_turns=TURNS)
    assert result.final_output == "done"
    assert provider.turns == TURNS
    assert provider.refused == 0
    assert result.usage.requests <= 1.03 * TURNS
    assert provider.kept >= kept * TURNS
    assert all(one.tokens <= WINDOW // 2 for one in compactions(result.records) if one.tokens is not None)
    assert len([one for one in result.records if isinstance(one, r.TurnStarted) and not one.path]) == TURNS
    again = replay(result, agent)
    assert again.records == result.records
