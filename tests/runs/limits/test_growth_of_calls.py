"""The cost of hostile responses, counted and not timed, so that the clock leaves no doubt."""

import difflib
import logging
import math
import sys
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from agentloop import Agent, FunctionTool, RunConfig, Runner, ToolExecution, tool
from agentloop._common import error_text
from agentloop._core.call_identity import NearNames
from agentloop._schema.function_schema import function_schema
from agentloop.exceptions import ModelBehaviorError
from agentloop.testing import ScriptedModel, call, say
from agentloop.tools import CONTEXT_TYPES

BACKENDS = pytest.mark.parametrize("backend", ["asyncio", "trio"])
MOST = 1.2
"""The exponent by which counted work may grow with a size."""


def counted(work: Callable[[], Any]) -> int:
    """Return how many calls of functions, Python's and C's, *work* makes."""
    count = 0

    def profile(frame: Any, event: str, arg: Any) -> None:
        nonlocal count
        if event in ("call", "c_call"):
            count += 1

    logging.disable(logging.CRITICAL)
    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(before)
        logging.disable(logging.NOTSET)
    return count


def exponent(work: Callable[[int], Callable[[], Any]], size: int) -> float:
    """Return the exponent by which the work that *work* makes of a size grows from *size* to twice as much."""
    work(1)()  # imports, caches
    return math.log2(counted(work(2 * size)) / counted(work(size)))


def running(agent: Agent[Any, Any], backend: str, **execution: Any) -> Callable[[], Any]:
    """Return a function that runs *agent*, which may call unknown tools."""
    config = RunConfig(
        tool_not_found_behavior="tell_model",
        tool_execution=ToolExecution(**execution),
        tracing_disabled=True,
    )

    async def main() -> None:
        result = await Runner.run(agent, "go", run_config=config)
        assert result.final_output == "done"

    return lambda: anyio.run(main, backend=backend)


async def _nothing(n: int = 0) -> str:
    """Do nothing."""
    return "x"


def _tools(count: int) -> list[FunctionTool]:
    return [tool(_nothing, name=f"search_customer_records_{n}") for n in range(count)]


def _calling(names: list[str], tools: list[FunctionTool]) -> Agent[Any, Any]:
    calls = [call(name, {}, f"c{n}") for n, name in enumerate(names)]
    return Agent("a", model=ScriptedModel([calls, say("done")]), tools=tools)


@pytest.mark.slow
@pytest.mark.scenario("RP-13")
@BACKENDS
@pytest.mark.parametrize("alike", [True, False])
def test_unknown_tools_cost_in_proportion(backend: str, alike: bool) -> None:
    """The turn has as many calls of unknown names, equal or not, as there are tools."""

    def work(size: int) -> Callable[[], Any]:
        names = ["search_customer_recrds" if alike else f"search_customer_recrds_{n}" for n in range(size)]
        return running(_calling(names, _tools(size)), backend)

    assert exponent(work, 150) <= MOST


@pytest.mark.slow
@pytest.mark.scenario("RP-12")
@BACKENDS
def test_calls_past_the_cap_cost_in_proportion(backend: str) -> None:
    """The calls past the cap have unknown names, none of which is compared with a tool's name."""

    def work(size: int) -> Callable[[], Any]:
        names = [f"search_customer_recrds_{n}" for n in range(size)]
        return running(_calling(names, _tools(size)), backend, max_calls_per_turn=1)

    assert exponent(work, 150) <= MOST


@pytest.mark.slow
@pytest.mark.scenario("RP-12")
def test_names_are_compared_so_often_whatever_the_model_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand unknown names need at most eighty comparisons letter by letter, and each tool is read once."""
    compared: list[int] = []
    read: list[str] = []

    def match(name: str, known: list[str], **options: Any) -> list[str]:
        compared.append(len(known))
        return []

    monkeypatch.setattr(difflib, "get_close_matches", match)
    near = NearNames(read.append(each.name) or each.name for each in _tools(2_000))  # type: ignore[func-returns-value]
    for n in range(1_000):
        near.of(f"search_customer_recrds_{n}")
    assert sum(compared) <= 80
    assert len(read) == 1_000


@pytest.mark.scenario("RP-13")
@BACKENDS
@pytest.mark.parametrize("secret", [(), ("n",)])
def test_unknown_arguments_cost_in_proportion(backend: str, secret: tuple[str, ...]) -> None:
    """The cost of one call grows in proportion to its unknown arguments."""

    def work(size: int) -> Callable[[], Any]:
        made = tool(_nothing, name="f", secret=secret)
        arguments = {f"k{n}": n for n in range(size)}
        return running(Agent("a", model=ScriptedModel([call("f", arguments, "c"), say("done")]), tools=[made]), backend)

    assert exponent(work, 2_000) <= MOST


class Name(str):
    """A name that counts how often it is compared."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other: object) -> bool:
        Name.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


@pytest.mark.scenario("RP-13")
@pytest.mark.parametrize("catch_all", [False, True])
def test_unknown_arguments_are_compared_in_proportion(catch_all: bool) -> None:
    """Comparisons of argument names grow in proportion; counting function calls would not show plain texts' cost."""

    async def plain(n: int = 0) -> str:
        """Do nothing."""
        return "x"

    async def catching(n: int = 0, **more: str) -> str:
        """Do nothing."""
        return "x"

    schema = function_schema(catching if catch_all else plain, strict=False, context_types=CONTEXT_TYPES)

    def compared(size: int) -> int:
        Name.compared = 0
        with pytest.raises(ModelBehaviorError) as caught:
            schema.bind({Name(f"k{n}"): n for n in range(size)})
        assert len(str(caught.value)) < 2_000
        return Name.compared

    assert compared(2_000) <= 2 * compared(1_000) + 20 <= 20_000


@pytest.mark.parametrize(
    "error",
    [
        ValueError("a-" * 1_000_000),
        ExceptionGroup("a-" * 1_000_000, [ValueError("x")]),
        ExceptionGroup("g", [ValueError("a-" * 1_000_000), KeyError("b" * 1_000_000)]),
        ExceptionGroup("g", [ValueError("x" * 100) for _ in range(10_000)]),
    ],
    ids=["one", "a group", "leaves", "many leaves"],
)
def test_errors_are_cut_before_they_are_searched(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """The part of an error that is not shown is not searched: neither a group's words nor the number of its leaves."""
    searched = 0
    redact = error_text.redact

    def counting(text: str) -> str:
        nonlocal searched
        searched += len(text)
        return redact(text)

    monkeypatch.setattr(error_text, "redact", counting)
    assert len(error_text.error_summary(error)) <= error_text.MAX_CHARS
    assert searched <= 4 * error_text.MAX_CHARS


def test_leaves_of_deep_groups_cost_in_proportion() -> None:
    """Leaves cost in proportion at any depth of the group."""

    def work(depth: int) -> Callable[[], Any]:
        group: Exception = ValueError("x")
        for _ in range(depth):
            group = ExceptionGroup("g", [group])
        return lambda: list(error_text.leaves(group))

    assert exponent(work, 5_000) <= MOST
