"""A plain call skips steps that it doesn't have: its log is the one that the general way makes."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from agentloop import Agent, Capacity, RunConfig, RunHooks, Runner, ToolContext, ToolExecution, tool
from agentloop import records as r
from agentloop._engine.calls import scheduler
from agentloop.journal import MemoryJournal
from agentloop.testing import ScriptedModel, call, say
from agentloop.testing.simulation.normal_form import normal


@tool
async def text(n: int) -> str:
    """Return a text at once."""
    return f"text {n}"


@tool
async def waits(n: int) -> str:
    """Return a text later."""
    await anyio.sleep(0.001 * n)
    return f"late {n}"


@tool
async def number(n: int) -> int:
    """Return no text."""
    return n


@tool
async def takes_context(ctx: ToolContext[Any], n: int) -> str:
    """Return what the context knows."""
    await ctx.report_progress(0.5)
    return f"{ctx.tool_call_id} {ctx.tool_arguments} {len(ctx.conversation_history)} {ctx.idempotency_key[:4]}"


@tool
async def fails(n: int) -> str:
    """Fail after a while."""
    await anyio.sleep(0.001 * n)
    raise ValueError(n)


@tool(failure_error_function=None)
async def breaks(n: int) -> str:
    """Fail so that the run fails."""
    await anyio.sleep(0.001 * n)
    raise ValueError(n)


@tool
async def cancels_itself(n: int) -> str:
    """Raise a cancellation that no scope asked for."""
    raise asyncio.CancelledError("tired")


@tool
async def waits_forever(n: int) -> str:
    """Wait for the end of the run, and take a moment to clean up."""
    try:
        await anyio.sleep_forever()
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(0.001)
    return "never"


@tool
async def cancels_the_first(ctx: ToolContext[Any], n: int) -> str:
    """Cancel the first call of the turn."""
    await anyio.sleep(0.001)
    return str(ctx.cancel_call("c0", "not needed"))


@tool(capacity=Capacity(1), idempotent=True)
async def equal(n: int) -> str:
    """Return the same for equal calls."""
    await anyio.lowlevel.checkpoint()
    return "equal"


TOOLS = [text, waits, number, takes_context, fails, breaks, cancels_itself, waits_forever, cancels_the_first, equal]
TURNS: dict[str, list[tuple[str, int]]] = {
    "texts": [("text", 0), ("waits", 3), ("waits", 1), ("text", 2)],
    "values and contexts": [("number", 0), ("takes_context", 1), ("waits", 1)],
    "failures": [("fails", 2), ("text", 1), ("fails", 1)],
    "a failing run": [("waits", 4), ("breaks", 2), ("waits_forever", 1), ("text", 0)],
    "own cancellations": [("cancels_itself", 0), ("waits", 1), ("cancels_itself", 2)],
    "a cancelled call": [("waits_forever", 0), ("cancels_the_first", 1)],
    "equal calls": [("equal", 0), ("equal", 0), ("text", 1), ("equal", 0)],
    "wrong arguments": [("text", 0), ("unknown", 1)],
    "the end of the run": [("waits_forever", 0), ("text", 1), ("waits", 2), ("waits_forever", 3)],
}


async def log_of(turn: list[tuple[str, int]], cap: int | None) -> tuple[list[dict[str, Any]], list[Any]]:
    """Return the normal form of the log of a run whose model makes the calls of *turn*, and the outcomes."""
    calls = [
        call(name, {"n": n}, f"c{i}") if name != "unknown" else call("text", {"m": n}, f"c{i}")
        for i, (name, n) in enumerate(turn)
    ]
    kept = Kept()
    config = RunConfig(
        instruments=(kept,), tool_execution=ToolExecution(max_function_tool_concurrency=cap), tracing_disabled=True
    )
    with anyio.move_on_after(0.05):
        try:
            await Runner.run(
                Agent("a", model=ScriptedModel([calls, say("done")]), tools=TOOLS), "go", run_config=config
            )
        except Exception as error:
            kept.raised = str(error)
    return normal(kept.records), [kept.raised, *kept.outcomes()]


class Kept:
    """An instrument that keeps the records."""

    def __init__(self) -> None:
        self.records: list[Any] = []
        self.raised = ""

    def on_record(self, record: Any) -> None:
        """Keep a record."""
        self.records.append(record)

    def outcomes(self) -> list[Any]:
        """Return what each call came to."""
        settled = [record for record in self.records if isinstance(record, r.CallSettled)]
        return [
            (record.call_id, one.status, one.output, one.cancelled_by, one.reason, one.body_finished)
            for record in sorted(settled, key=lambda record: record.call_id)  # trio starts tasks in any order
            for one in (record.outcome,)
        ]


@pytest.mark.backends("asyncio-virtual", "trio-virtual")
@pytest.mark.parametrize("cap", [None, 2])
@pytest.mark.parametrize("turn", TURNS)
async def test_log_is_the_same_with_all_steps(
    turn: str, cap: int | None, monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config
) -> None:
    """Each turn runs twice: with plain calls, and with every call taken through all steps."""
    if pytestconfig.getoption("--no-plain-calls"):
        pytest.skip("no call is plain, so there is nothing to compare")
    plain = 0
    is_plain_tool: Callable[[Any], bool] = scheduler.is_plain_tool

    def count(tool: Any) -> bool:
        nonlocal plain
        plain += is_plain_tool(tool)
        return is_plain_tool(tool)

    monkeypatch.setattr(scheduler, "is_plain_tool", count)
    with_plain = await log_of(TURNS[turn], cap)
    monkeypatch.setattr(scheduler, "is_plain_tool", lambda tool: False)
    without = await log_of(TURNS[turn], cap)

    assert plain
    assert with_plain == without


async def test_calls_of_a_run_that_is_watched_are_not_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hooks that may wait, and a journal that may, have to be waited for at the start of each call."""

    class WaitingHooks(RunHooks):
        async def on_tool_start(self, *_: Any) -> None:
            await anyio.lowlevel.checkpoint()

    class WaitingJournal(MemoryJournal):
        async def append(self, records: Sequence[bytes]) -> None:
            await super().append(records)

    asked: list[Any] = []
    monkeypatch.setattr(scheduler, "is_plain_tool", lambda tool: asked.append(tool) or True)
    model = [[call("text", {"n": 1}, "c0")], say("done")]
    waiting: list[dict[str, Any]] = [{"hooks": WaitingHooks()}, {"journal": WaitingJournal()}]
    plain: list[dict[str, Any]] = [{"hooks": RunHooks()}, {}]
    for options in (*waiting, *plain):
        asked.clear()
        await Runner.run(Agent("a", model=ScriptedModel(list(model)), tools=TOOLS), "go", **options)
        assert bool(asked) is (options in plain)
