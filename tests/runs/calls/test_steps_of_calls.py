"""Steps that change nothing leave a call as it is: with them or without, a turn has one log and one set of outcomes."""

import asyncio
from typing import Any

import anyio
import anyio.lowlevel
import attrs
import pytest

from agentloop import Agent, Capacity, FunctionTool, RunConfig, RunHooks, Runner, ToolContext, ToolExecution, tool
from agentloop import records as r
from agentloop._engine.calls.live_call import LiveCall
from agentloop.abc import Instrument
from agentloop.guardrails import Allow, tool_input_guardrail, tool_output_guardrail
from agentloop.items import ToolCall
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
    await ctx.report(0.5)
    return f"{ctx.tool_call_id} {ctx.tool_arguments} {len(ctx.conversation_history)} {len(ctx.idempotency_key)}"


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


async def passes(*_: Any) -> Allow:
    """Judge anything, after a pass of the loop, and let it pass."""
    await anyio.lowlevel.checkpoint()
    return Allow()


class Waiting(RunHooks):
    """Hooks that wait for a pass of the loop."""

    async def on_tool_start(self, *_: Any) -> None:
        await anyio.lowlevel.checkpoint()

    async def on_tool_end(self, *_: Any) -> None:
        await anyio.lowlevel.checkpoint()


STEPS: dict[str, dict[str, Any]] = {
    "timeouts": {"timeout": 60.0, "idle_timeout": 50.0},
    "an enabling function": {"is_enabled": lambda ctx, agent: True},
    "input guardrails": {"tool_input_guardrails": (tool_input_guardrail(passes),)},
    "output guardrails": {"tool_output_guardrails": (tool_output_guardrail(passes),)},
    "custom data": {"custom_data_extractor": lambda ctx, value: None},
    "hooks": {},
}
OF_STEPS = ("BodyEnded", "GuardrailSettled", "CallbackReturned")
"""The records that only steps make; a call without a step after its body has no `BodyEnded` either."""


async def log_of(
    turn: list[tuple[str, int]], cap: int | None, tools: list[FunctionTool[Any]], hooks: RunHooks | None
) -> tuple[list[dict[str, Any]], list[Any]]:
    """Return the normal form of the log of a run whose model makes the calls of *turn*, and the outcomes."""
    calls = [
        call(name, {"n": n}, f"c{i}") if name != "unknown" else call("text", {"m": n}, f"c{i}")
        for i, (name, n) in enumerate(turn)
    ]
    kept = Kept()
    config = RunConfig(
        instruments=(kept,), tool_execution=ToolExecution(max_function_tool_concurrency=cap), tracing_disabled=True
    )
    agent = Agent("a", model=ScriptedModel([calls, say("done")]), tools=tools)
    with anyio.move_on_after(0.05):
        try:
            await Runner.run(agent, "go", hooks=hooks, run_config=config)
        except Exception as error:
            kept.raised = str(error)
    return [one for one in normal(kept.records) if one["kind"] not in OF_STEPS], [kept.raised, *kept.outcomes()]


class Kept(Instrument):
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
@pytest.mark.parametrize("steps", STEPS)
async def test_log_is_the_same_with_steps_that_change_nothing(turn: str, cap: int | None, steps: str) -> None:
    """Each turn runs with bare tools, and with tools that have the step."""
    bare = await log_of(TURNS[turn], cap, TOOLS, None)
    changed = [attrs.evolve(one, **STEPS[steps]) for one in TOOLS]
    assert await log_of(TURNS[turn], cap, changed, Waiting() if steps == "hooks" else None) == bare


def test_a_phase_that_the_table_refuses_is_a_fault_of_the_engine() -> None:
    """All code that changes a phase asks the table: a call that has settled never runs again."""
    live = LiveCall.__new__(LiveCall)
    live.call, live.phase = ToolCall("c1", "text", "{}"), "settled"
    with pytest.raises(AssertionError, match="call c1 can't go from settled to starting"):
        live.to("starting")
