"""A callback that raises a cancellation without a request: an ordinary error, and never a way around a guard."""

import asyncio
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from kit.ending import Fatal

from agentloop import (
    Agent,
    GuardrailFunctionOutput,
    Instrument,
    RunConfig,
    RunHooks,
    ToolContext,
    UserError,
    input_guardrail,
    output_guardrail,
    tool,
)
from agentloop import records as r
from agentloop.testing import ScriptedModel, call, say


def own(*args: Any) -> Any:
    """Raise asyncio's cancellation by hand, as a cancelled future of a client does."""
    raise asyncio.CancelledError("own")


async def passes(*args: Any) -> GuardrailFunctionOutput:
    await anyio.lowlevel.checkpoint()
    return GuardrailFunctionOutput()


@pytest.mark.parametrize("beside", [True, False])
async def test_an_input_guardrail_that_cancels_itself_never_lets_the_run_go_on(run_mode: Any, beside: bool) -> None:
    """No tool starts: a guard that gave no verdict is no guard that passed."""
    started: list[str] = []

    @tool
    async def effect() -> str:
        started.append("effect")
        return "x"

    guards = [input_guardrail(own, name="own", run_in_parallel=beside), input_guardrail(passes, name="passes")]
    model = ScriptedModel([call("effect"), say("x"), say("y")])
    agent = Agent("a", model=model, tools=[effect], input_guardrails=guards)
    with pytest.raises(UserError, match="cancelled itself"):
        await run_mode(agent, "go")
    assert started == []


async def test_questions_asked_at_once_survive_one_that_cancels_itself(run_mode: Any) -> None:
    """Output guardrails and `is_enabled` callables that are asked together raise a `UserError` for the one."""
    guards = [output_guardrail(own, name="own"), output_guardrail(passes, name="passes")]
    with pytest.raises(UserError, match="cancelled itself"):
        await run_mode(Agent("a", model=ScriptedModel([say("x")]), output_guardrails=guards), "go")

    async def enabled(ctx: Any, agent: Any) -> bool:
        return True

    tools = [tool(name="one", is_enabled=own)(lambda: "x"), tool(name="two", is_enabled=enabled)(lambda: "x")]
    with pytest.raises(UserError, match="cancelled itself"):
        await run_mode(Agent("a", model=ScriptedModel([say("x")]), tools=tools), "go")


async def test_instructions_that_cancel_themselves_fail_the_run(run_mode: Any) -> None:
    """The run fails instead of ending as cancelled, because no cancellation was requested."""
    with pytest.raises(UserError, match="cancelled itself"):
        await run_mode(Agent("a", instructions=lambda ctx, agent: own(), model=ScriptedModel([])), "go")


async def test_on_stream_that_cancels_itself_disturbs_nobody(run_mode: Any) -> None:
    """The nested run continues although its `on_stream` cancels itself."""
    inner = Agent("inner", model=ScriptedModel([say("deep")]))
    model = ScriptedModel([call("inner", {"input": "x"}), say("done")])
    result = await run_mode(Agent("a", model=model, tools=[inner.as_tool(on_stream=own)]), "go")
    assert [event.outcome.output for event in result.calls] == ["deep"]


@pytest.mark.parametrize("error", [Fatal("x"), asyncio.CancelledError("own")])
async def test_an_end_hook_that_breaks_while_the_run_is_cancelled_holds_nobody(run_mode: Any, error: Any) -> None:
    """The call settles, and the run ends; a BaseException outranks the cancellation, and leaves bare (RP-04)."""
    started = anyio.Event()
    left: list[BaseException] = []

    class Breaks(RunHooks):
        async def on_tool_end(self, *args: Any) -> None:
            raise error

    @tool
    async def slow() -> None:
        started.set()
        await anyio.sleep_forever()

    records: list[r.Record] = []

    class Watch(Instrument):
        def on_record(self, record: r.Record) -> None:
            records.append(record)

    agent = Agent("a", model=ScriptedModel([call("slow")]), tools=[slow])
    with anyio.fail_after(30), anyio.CancelScope() as scope:
        async with anyio.create_task_group() as group:

            async def cancel() -> None:
                await started.wait()
                scope.cancel()

            group.start_soon(cancel)
            try:
                await run_mode(agent, "go", hooks=Breaks(), run_config=RunConfig(instruments=[Watch()]))
            except Fatal as fatal:
                left.append(fatal)
    assert left == ([error] if isinstance(error, Fatal) else [])
    assert [record.outcome.status for record in records if isinstance(record, r.CallSettled)] == ["cancelled"]
    assert isinstance(records[-1], r.RunEnded)


async def test_an_end_hook_s_fatal_error_leaves_bare(run_mode: Any) -> None:
    """The fatal error leaves the run itself, not in a group."""

    class Breaks(RunHooks):
        async def on_tool_end(self, *args: Any) -> None:
            raise Fatal("x")

    @tool
    async def quick() -> str:
        return "x"

    with pytest.raises(Fatal):
        await run_mode(Agent("a", model=ScriptedModel([call("quick")]), tools=[quick]), "go", hooks=Breaks())


async def test_winding_up_goes_on_when_on_run_end_breaks(run_mode: Any) -> None:
    """Resources are left and the last record is made; the hook's error leaves bare."""
    left: list[str] = []
    records: list[r.Record] = []

    class Watch(Instrument):
        def on_record(self, record: r.Record) -> None:
            records.append(record)

    class Held:
        async def __aenter__(self) -> str:
            return "held"

        async def __aexit__(self, *args: Any) -> None:
            left.append("held")

    class Breaks(RunHooks):
        async def on_run_end(self, *args: Any) -> None:
            raise Fatal("x")

    @tool
    async def uses(ctx: ToolContext[Any]) -> str:
        return await ctx.resource(Held)

    agent = Agent("a", model=ScriptedModel([call("uses"), say("x")]), tools=[uses])
    with pytest.raises(Fatal):
        await run_mode(agent, "go", hooks=Breaks(), run_config=RunConfig(instruments=[Watch()]))
    assert left == ["held"]
    assert isinstance(records[-1], r.RunEnded)
    assert records[-1].status == "failed"
