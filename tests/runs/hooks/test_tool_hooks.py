"""Tool hooks: one end for each start, on every path a call can take."""

from typing import Any

import anyio
import pytest
from kit.agents import Run, call_each, configure_run, fine, make_agent, script_agent
from kit.ending import Backend, cancel_when, check_duration, endless
from kit.results import read_endings, read_outputs, read_shown_outputs
from kit.watching import ToolHookLog, Watch

from agentloop import AgentHooks, RunHooks, ToolCallError, ToolContext, tool
from agentloop import records as r
from agentloop.guardrails import RejectContent, tool_output_guardrail
from agentloop.testing import call, say


class Boom(Exception):
    """The error that the broken hooks of these tests raise."""


class ToolHookLines(AgentHooks):
    """Appends a line for every tool event of one agent to a list shared with others."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines

    async def on_tool_start(self, ctx: Any, agent: Any, tool: Any) -> None:
        self.lines.append("agent start")

    async def on_tool_end(self, ctx: Any, agent: Any, tool: Any, outcome: Any) -> None:
        self.lines.append("agent end")


async def test_after_a_handoff_the_tool_hooks_of_the_other_agent_are_called(run_mode: Run) -> None:
    """Those of the run are called for both; those of an agent for its own calls alone, in each of its activations."""
    lines: list[str] = []

    class Named(AgentHooks):
        def __init__(self, name: str) -> None:
            self.name = name

        async def on_tool_end(self, ctx: Any, agent: Any, tool: Any, outcome: Any) -> None:
            lines.append(f"{self.name} {ctx.tool_call_id}")

    class OfTheRun(RunHooks):
        async def on_tool_end(self, ctx: Any, agent: Any, tool: Any, outcome: Any) -> None:
            lines.append(f"run {ctx.tool_call_id}")

    script = [call("look", call_id="1"), call("transfer_to_b"), call("look", call_id="4"), say("done")]
    first = script_agent("A", *script, tools=[look], hooks=Named("A"))
    back = [call("look", call_id="2"), call("look", call_id="3"), call("transfer_to_a", call_id="back")]
    second = script_agent("B", *back, tools=[look], hooks=Named("B"))
    first.handoffs, second.handoffs = [second], [first]
    await run_mode(first, "go", hooks=OfTheRun())
    assert lines == ["A 1", "run 1", "B 2", "run 2", "B 3", "run 3", "A 4", "run 4"]


@tool
async def look() -> str:
    """Look."""
    return "seen"


def cause_of(error: BaseException) -> BaseException:
    """Return the error that a `ToolCallError` wraps, or the error itself."""
    return error.__cause__ if isinstance(error, ToolCallError) and error.__cause__ is not None else error


@tool
async def fails() -> str:
    """Fail, with a text for the model."""
    raise ValueError("broken")


@tool(failure_error_function=None)
async def fatal() -> str:
    """Fail the run."""
    raise ValueError("broken")


@tool(timeout=0.02)
async def slow() -> str:
    """Time out."""
    await anyio.sleep(60)
    return "never"


@tool
async def stops(ctx: ToolContext[Any]) -> str:
    """Cancel the own call."""
    ctx.cancel_call(ctx.tool_call_id)
    await anyio.sleep(60)
    return "never"


@pytest.mark.scenario("HS-06")
@pytest.mark.parametrize(
    ("name", "ending"),
    [
        ("fine", ("c1", "succeeded", None)),
        ("fails", ("c1", "failed", None)),
        ("slow", ("c1", "timed_out", None)),
        ("stops", ("c1", "cancelled", "caller")),
    ],
)
async def test_hooks_are_paired_however_a_call_ends(
    run_mode: Run, name: str, ending: tuple[str, str, str | None]
) -> None:
    """The end hook gets the very outcome that is in the log."""
    hooks, watch = ToolHookLog(), Watch()
    agent = make_agent([fine, fails, slow, stops], call_each(name))
    result = await run_mode(agent, "go", hooks=hooks, run_config=configure_run(watch))
    assert hooks.started == ["c1"]
    assert hooks.ended == [ending]
    assert read_endings(result.calls) == [ending]
    outcome = hooks.outcomes["c1"]
    assert outcome.output == read_shown_outputs(agent)["c1"]
    assert outcome.status == watch.outcome("c1").status


async def test_hooks_are_paired_for_the_failing_and_for_the_cancelled_siblings(run_mode: Run) -> None:
    """Each end hook runs once, with the failure or with `cancelled` by `sibling`; an unstarted call has none."""
    hooks, watch = ToolHookLog(), Watch()
    running = anyio.Event()

    @tool
    async def waits() -> str:
        running.set()
        await anyio.sleep(60)
        return "never"

    @tool(failure_error_function=None)
    async def fails_then() -> str:
        await running.wait()
        raise ValueError("broken")

    agent = make_agent([waits, fails_then], call_each("waits", "fails_then", "waits"))
    with pytest.raises(ToolCallError):
        await run_mode(agent, "go", hooks=hooks, run_config=configure_run(watch, max_function_tool_concurrency=2))
    assert sorted(hooks.started) == ["c1", "c2"]
    assert sorted(hooks.ended) == [("c1", "cancelled", "sibling"), ("c2", "failed", None)]
    assert watch.endings()["c3"] == ("cancelled", "sibling")


async def test_hooks_are_paired_when_the_caller_is_cancelled(run_mode: Run) -> None:
    """The end hooks run shielded, once each, with `cancelled` by `parent`."""
    started = anyio.Event()

    async def at_start(call_id: str) -> None:
        if call_id == "c2":
            started.set()

    async def at_end(call_id: str, outcome: Any) -> None:
        await anyio.sleep(0.01)

    hooks = ToolHookLog(at_start=at_start, at_end=at_end)
    agent = make_agent([endless], call_each("endless", "endless"))
    await cancel_when(started, lambda: run_mode(agent, "go", hooks=hooks))
    assert sorted(hooks.started) == ["c1", "c2"]
    assert sorted(hooks.ended) == [("c1", "cancelled", "parent"), ("c2", "cancelled", "parent")]


async def test_hooks_are_paired_when_the_caller_is_cancelled_during_the_start_hook(run_mode: Run) -> None:
    """The start hook had begun: the end hook follows, the body never ran."""
    begun = anyio.Event()
    ran: list[str] = []

    async def at_start(call_id: str) -> None:
        begun.set()
        await anyio.sleep(60)

    @tool
    async def work() -> str:
        ran.append("body")
        return "made"

    hooks = ToolHookLog(at_start=at_start)
    agent = make_agent([work], call_each("work"))
    await cancel_when(begun, lambda: run_mode(agent, "go", hooks=hooks))
    assert hooks.started == ["c1"]
    assert hooks.ended == [("c1", "cancelled", "parent")]
    assert ran == []


@pytest.mark.scenario("HS-07")
async def test_failing_start_hook_fails_the_run_before_the_body(run_mode: Run) -> None:
    """The agent's start hook isn't called any more; the hook that saw the start sees the end, once."""
    lines: list[str] = []
    ran: list[str] = []
    watch = Watch()

    async def at_start(call_id: str) -> None:
        raise Boom("at start")

    @tool
    async def work() -> str:
        ran.append("body")
        return "made"

    hooks = ToolHookLog(at_start=at_start)
    agent = make_agent([work], call_each("work"), hooks=ToolHookLines(lines))
    with pytest.raises((Boom, ToolCallError)) as caught:
        await run_mode(agent, "go", hooks=hooks, run_config=configure_run(watch))
    assert isinstance(cause_of(caught.value), Boom)
    assert ran == []
    assert lines == []
    assert [(call_id, status) for call_id, status, _ in hooks.ended] == [("c1", "failed")]
    assert watch.outcome("c1").status == "failed"
    assert watch.end == "failed"


@pytest.mark.scenario("HS-07")
async def test_failing_end_hook_fails_the_run_and_keeps_what_happened(run_mode: Run) -> None:
    """Later hooks of the event aren't called; the call's outcome and its sibling's output are kept."""
    order: list[str] = []
    watch = Watch()

    class RunLevel(RunHooks):
        async def on_tool_end(self, ctx: Any, agent: Any, tool: Any, outcome: Any) -> None:
            order.append("run end")

    class AgentLevel(AgentHooks):
        async def on_tool_end(self, ctx: Any, agent: Any, tool: Any, outcome: Any) -> None:
            order.append("agent end")
            raise Boom("at end")

    agent = make_agent([fine], call_each("fine"), hooks=AgentLevel())
    with pytest.raises((Boom, ToolCallError)) as caught:
        await run_mode(agent, "go", hooks=RunLevel(), run_config=configure_run(watch))
    assert isinstance(cause_of(caught.value), Boom)
    assert order == ["agent end"]
    assert watch.endings() == {"c1": ("succeeded", None)}
    assert watch.outcome("c1").value == "fine"
    assert not watch.of(r.BatchEnded)
    assert watch.end == "failed"
    data = getattr(caught.value, "run_data", None)
    assert data is None or read_outputs(data.new_items) == {"c1": "fine"}


@pytest.mark.scenario("SF-10")
@pytest.mark.parametrize("where", ["start", "end", "guardrail"])
async def test_hook_or_guardrail_failure_beats_a_siblings_cancellation(run_mode: Run, where: str) -> None:
    """A call that cancels itself under policy "raise" and one whose hook fails: the hook's error is raised."""
    cancelled = anyio.Event()

    @tool(failure_error_function=None)
    async def quits(ctx: ToolContext[Any]) -> str:
        await ready.wait()
        ctx.cancel_call(ctx.tool_call_id)
        await anyio.sleep(60)
        return "never"

    ready = anyio.Event()

    async def breaks(*_: Any) -> Any:
        ready.set()
        await cancelled.wait()
        raise Boom(where)

    @tool
    async def canary() -> str:
        """Tell of the batch's end: the siblings are being cancelled."""
        try:
            await anyio.sleep(60)
        finally:
            cancelled.set()
        return "never"

    async def at(call_id: str, *rest: Any) -> None:
        if call_id == "c2":
            await breaks()

    hooks = {
        "start": ToolHookLog(at_start=at),
        "end": ToolHookLog(at_end=at),
        "guardrail": ToolHookLog(),
    }[where]

    @tool(tool_output_guardrails=[tool_output_guardrail(breaks)] if where == "guardrail" else ())
    async def work() -> str:
        return "made"

    if where == "start":
        # A start hook is before the body: the sibling's end cancels it; so it must fail in that very pass.
        async def at_once(call_id: str) -> None:
            if call_id == "c2":
                ready.set()
                raise Boom(where)

        hooks = ToolHookLog(at_start=at_once)
    agent = make_agent([quits, work, canary], call_each("quits", "work", "canary"))
    with pytest.raises((Boom, ToolCallError)) as caught:
        await run_mode(agent, "go", hooks=hooks)
    assert isinstance(cause_of(caught.value), Boom)


@pytest.mark.scenario("HS-05")
async def test_tool_hooks_see_the_calls_context(run_mode: Run) -> None:
    """The hooks get a `ToolContext` with id, name and arguments; agent and tool are the caller's objects."""
    seen: list[Any] = []

    class Hooks(RunHooks):
        async def on_tool_start(self, ctx: ToolContext[Any], agent: Any, tool: Any) -> None:
            assert isinstance(ctx, ToolContext)
            seen.append((ctx.tool_call_id, ctx.tool_name, ctx.tool_arguments, agent, tool, ctx.context))

        async def on_tool_end(self, ctx: ToolContext[Any], agent: Any, tool: Any, outcome: Any) -> None:
            seen.append((ctx.tool_call_id, ctx.tool_name, ctx.tool_arguments, agent, tool, ctx.context))

    app = object()
    agent = make_agent([fine], call_each("fine"))
    await run_mode(agent, "go", hooks=Hooks(), context=app)
    assert seen == [("c1", "fine", "{}", agent, fine, app)] * 2


@pytest.mark.scenario("HS-06")
async def test_end_hook_gets_the_raw_value_and_the_models_output(run_mode: Run) -> None:
    """`value` is the Python object itself, `output` the text; after an output rejection there is no value."""
    made = {"a": [1, 2]}
    hooks = ToolHookLog()

    @tool
    async def makes() -> dict[str, Any]:
        return made

    @tool(tool_output_guardrails=[tool_output_guardrail(lambda data: RejectContent("withheld"))])
    async def hidden() -> dict[str, Any]:
        return made

    agent = make_agent([makes, hidden], call_each("makes", "hidden"))
    await run_mode(agent, "go", hooks=hooks)
    assert hooks.outcomes["c1"].value is made
    assert hooks.outcomes["c1"].output == read_shown_outputs(agent)["c1"]
    assert hooks.outcomes["c2"].value is None
    assert hooks.outcomes["c2"].output == "withheld"


async def test_start_hooks_run_run_level_first_and_end_hooks_agent_level_first(run_mode: Run) -> None:
    """The hooks run one after the other, each finished before the next begins."""
    lines: list[str] = []

    async def at_start(call_id: str) -> None:
        lines.append("run start begins")
        await anyio.sleep(0.01)
        lines.append("run start ends")

    async def at_end(call_id: str, outcome: Any) -> None:
        lines.append("run end")

    @tool
    async def work() -> str:
        lines.append("body")
        return "made"

    agent = make_agent([work], call_each("work"), hooks=ToolHookLines(lines))
    await run_mode(agent, "go", hooks=ToolHookLog(at_start=at_start, at_end=at_end))
    assert lines == ["run start begins", "run start ends", "agent start", "body", "agent end", "run end"]


async def test_sync_hook_methods_are_called(run_mode: Run) -> None:
    """A hook method needn't be async."""
    lines: list[str] = []

    class Hooks(RunHooks):
        def on_tool_start(self, ctx: Any, agent: Any, tool: Any) -> None:  # type: ignore[override]
            lines.append("start")

        def on_tool_end(self, ctx: Any, agent: Any, tool: Any, outcome: Any) -> None:  # type: ignore[override]
            lines.append("end")

    await run_mode(make_agent([fine], call_each("fine")), "go", hooks=Hooks())
    assert lines == ["start", "end"]


@pytest.mark.scenario("LX-63")
@pytest.mark.parametrize(("sequential", "seconds"), [(False, 0.1), (True, 0.5)])
@pytest.mark.backends("trio-virtual", "asyncio-virtual")
async def test_start_hooks_of_different_calls_overlap_unless_the_calls_are_sequential(
    run_mode: Run, anyio_backend: Backend, sequential: bool, seconds: float
) -> None:
    """Five calls have a start hook of 0.1 s each."""

    async def at_start(call_id: str) -> None:
        await anyio.sleep(0.1)

    agent = make_agent([fine], call_each(*["fine"] * 5), tool_execution="sequential" if sequential else "concurrent")
    async with check_duration(anyio_backend, seconds):
        await run_mode(agent, "go", hooks=ToolHookLog(at_start=at_start))


@pytest.mark.backends("trio-virtual", "asyncio-virtual")
async def test_end_hook_of_a_cancelled_run_is_cut_at_the_cleanup_deadline(run_mode: Run) -> None:
    """The hook gets the grace, no more; the cut is recorded and the call settles."""
    started, watch = anyio.Event(), Watch()

    async def at_start(call_id: str) -> None:
        started.set()

    async def at_end(call_id: str, outcome: Any) -> None:
        await anyio.sleep(60)

    agent = make_agent([endless], call_each("endless"))
    begin = anyio.current_time()
    await cancel_when(
        started,
        lambda: run_mode(
            agent,
            "go",
            hooks=ToolHookLog(at_start=at_start, at_end=at_end),
            run_config=configure_run(watch, cleanup_grace=0.2),
        ),
    )
    assert anyio.current_time() - begin == pytest.approx(0.2)
    # The deadline is one for all: the run's own end hook, which awaits too, gets nothing after it.
    assert [(record.section, record.call_id) for record in watch.of(r.CleanupCut)] == [
        ("end hooks", "c1"),
        ("on_run_end", None),
    ]
    assert watch.endings() == {"c1": ("cancelled", "parent")}
    assert watch.end == "cancelled"
