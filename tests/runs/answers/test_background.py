"""Background calls: when their results are shown, and what becomes of their bodies at each end of a run."""

import itertools
import threading
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

import anyio
import anyio.from_thread
import pytest
from kit.agents import Run, make_agent, script_agent
from kit.ending import cancel_natively_when, cancel_when
from kit.results import check_history, find_outcome, find_records, read_requests, read_user_texts
from kit.watching import AtRecord

from agentloop import (
    Agent,
    Capacity,
    MaxTurnsExceeded,
    RunConfig,
    RunHooks,
    Runner,
    RunState,
    RunTimeoutError,
    StopAtTools,
    ToolContext,
    UserError,
    tool,
)
from agentloop import records as r
from agentloop.config.conditions import MaxTurns
from agentloop.exceptions import StateError, UserTypeError
from agentloop.guardrails import Allow, tool_output_guardrail
from agentloop.items import Image, Text, ToolCall, UserMessage
from agentloop.journal import MemoryJournal
from agentloop.testing import call, check, replay, say
from agentloop.testing.invariants import Observation
from agentloop.testing.scripted import wait
from agentloop.testing.simulation.event_loop import Backend

STARTED = "Tool 'dig' runs in the background. The result of call {} comes as a message."
RESULT = "Result of the background call {} of tool dig:\n{}"
IN_DOUBT = "Tool 'dig' was interrupted when the run stopped; whether it took effect is unknown."
IN_DOUBT_RESULT = RESULT.format("d", IN_DOUBT)


class Digging:
    """The tool `dig`, whose body waits for `may_end`, and its bodies: those that began, ended, and were cancelled."""

    def __init__(self, **options: Any) -> None:
        self.may_end, self.began = anyio.Event(), anyio.Event()
        self.started: list[str] = []
        self.ended: list[str] = []
        self.cancelled: list[str] = []

        @tool(background=True, **options)
        async def dig(ctx: ToolContext[Any], depth: int = 1) -> str:
            """Dig."""
            self.started.append(ctx.tool_call_id)
            self.began.set()
            try:
                await self.may_end.wait()
            except anyio.get_cancelled_exc_class():
                self.cancelled.append(ctx.tool_call_id)
                raise
            self.ended.append(ctx.tool_call_id)
            return f"{depth} m"

        self.tool = dig

    def is_over(self) -> bool:
        """Tell whether every body that began has ended."""
        return sorted(self.started) == sorted([*self.ended, *self.cancelled])


@tool
async def look() -> str:
    """Look."""
    return "seen"


_PLACE: ContextVar[str] = ContextVar("place", default="")
LOOKER = make_agent([look])


async def replay_strictly(records: Sequence[r.Record], agent: Agent[Any, Any], **config: Any) -> None:
    """Judge the log, and replay it on both backends: equal, record by record."""
    check(Observation(records=tuple(records), agent=agent))
    backends: tuple[Backend, ...] = ("asyncio", "trio")
    for backend in backends:

        def again(backend: Backend = backend) -> tuple[r.Record, ...]:
            return replay(records, agent, backend=backend, run_config=RunConfig(**config)).records

        assert await anyio.to_thread.run_sync(again) == tuple(records)


def inputs(records: Sequence[r.Record]) -> dict[str, str]:
    """Return what has become of each input of the run."""
    return {one.id: one.status for one in RunState(LOOKER, records).inputs}


def find_input_records(records: Sequence[r.Record]) -> list[r.InputAdded]:
    """Return the inputs that were added."""
    return [one for one in records if isinstance(one, r.InputAdded)]


# ---------------------------------------------------------------------------------------------- results


@pytest.mark.real_clock
@pytest.mark.scenario("PE-07")
async def test_the_result_is_shown_once_it_is_there(run_mode: Run) -> None:
    """The model hears of the start at once, works on, and gets the result as a message with its next request."""
    digging = Digging()
    agent = make_agent([digging.tool, look], call("dig", {"depth": 2}, call_id="d"), call("look"), call("look"))
    at = AtRecord(2, r.CallSettled)
    async with anyio.create_task_group() as group:

        async def end() -> None:
            await at.come.wait()
            digging.may_end.set()

        group.start_soon(end)
        result = await run_mode(agent, "go", run_config=RunConfig(instruments=[at]))
    assert result.final_output == "done"
    assert find_outcome(result, "d").output == STARTED.format("d")
    requests = read_requests(agent)
    for request in requests:
        check_history(request.items)
    texts = [read_user_texts(agent, place).count(RESULT.format("d", "2 m")) for place in range(len(requests))]
    assert texts == sorted(texts)
    assert texts[0] == texts[1] == 0
    assert texts[-1] == 1
    assert digging.started == digging.ended == ["d"]
    await replay_strictly(result.records, agent)


@pytest.mark.real_clock
@pytest.mark.scenario("PE-07")
@pytest.mark.parametrize("guarded", [False, True])
async def test_a_run_that_would_end_waits_for_each_result(run_mode: Run, guarded: bool) -> None:
    """It shows them one after the other as they come. An input guardrail doesn't judge what is the agent's own."""
    diggings = [Digging(), Digging()]
    tools = [diggings[0].tool, tool(diggings[1].tool.fn, name="dig_more", background=True)]
    steps = [[call("dig", call_id="a"), call("dig_more", call_id="b")], say("first"), say("second")]
    agent = make_agent(tools, *steps)
    at = [AtRecord(2, r.ModelResponded), AtRecord(3, r.ModelResponded)]
    async with anyio.create_task_group() as group:

        async def end(nth: int) -> None:
            await at[nth].come.wait()
            diggings[1 - nth].may_end.set()

        group.start_soon(end, 0)
        group.start_soon(end, 1)
        result = await run_mode(agent, "go", run_config=RunConfig(instruments=at))
    assert result.final_output == "done"
    assert [one.call_id for one in find_records(result, r.InputAdded)] == ["b", "a"]
    assert len(find_records(result, r.InputShown)) == 2
    check_history(result.to_input_list())
    await replay_strictly(result.records, agent)


@pytest.mark.real_clock
@pytest.mark.scenario("PE-07", "PE-01")
async def test_an_added_input_comes_before_the_result() -> None:
    """The run waits for a result, not for it alone: what a person adds is shown at once."""
    digging = Digging()
    agent = make_agent([digging.tool], call("dig", call_id="d"), say("I wait"), say("I answer"))
    ready, answered = AtRecord(2, r.ModelResponded), AtRecord(3, r.ModelResponded)
    config = RunConfig(instruments=[ready, answered])
    async with Runner.run_streamed(agent, "go", run_config=config) as stream, anyio.create_task_group() as group:

        async def speak() -> None:
            await ready.come.wait()
            await stream.add_input("Are you there?")
            await answered.come.wait()
            digging.may_end.set()

        group.start_soon(speak)
        async for _ in stream:
            pass
    assert stream.result.final_output == "done"
    assert read_user_texts(agent)[1:] == ["Are you there?", RESULT.format("d", "1 m")]
    await replay_strictly(stream.result.records, agent)


async def _raise() -> str:
    raise ValueError("rock")


async def _wait() -> str:
    await anyio.sleep_forever()
    raise AssertionError


async def _photograph() -> list[Any]:
    return [Text("a hole"), Image(url="https://example.org/hole.png")]


ENDS: dict[str, tuple[Callable[..., Any], dict[str, Any], str]] = {
    "raises": (_raise, {}, "Tool dig failed with: ValueError(rock)"),
    "says what": (_raise, {"failure_error_function": lambda ctx, error: f"no: {error}"}, "no: rock"),
    "times out": (_wait, {"timeout": 0.01}, "Tool 'dig' timed out after 0.01 seconds."),
    "in a thread": (lambda: f"{threading.current_thread() is threading.main_thread()}", {}, "False"),
    "secret": (lambda: "gold", {"secret_output": True}, "gold"),
}


@pytest.mark.real_clock
@pytest.mark.parametrize("way", ENDS)
async def test_each_end_of_a_body_is_told(run_mode: Run, way: str) -> None:
    """An error, a timeout and a value, of a coroutine and of a thread, by the policies of the tool."""
    body, options, text = ENDS[way]
    dig = tool(body, name="dig", description="Dig.", background=True, **options)
    agent = make_agent([dig], call("dig", call_id="d"), say("wait"))
    result = await run_mode(agent, "go")
    assert result.final_output in ("wait", "done")
    assert read_user_texts(agent)[1:] == [RESULT.format("d", text)]
    [added] = find_records(result, r.InputAdded)
    assert ("gold" in repr(added)) is False
    await replay_strictly(result.records, agent)


async def test_parts_are_kept(run_mode: Run) -> None:
    """An image in an output is an image in the message."""
    dig = tool(_photograph, name="dig", description="Dig.", background=True)
    agent = make_agent([dig], call("dig", call_id="d"), say("wait"))
    await run_mode(agent, "go")
    message = read_requests(agent)[-1].items[-1]
    if not isinstance(message, UserMessage):
        message = next(item for item in read_requests(agent)[-1].items[1:] if isinstance(item, UserMessage))
    assert message.content[1:] == (Text("a hole"), Image(url="https://example.org/hole.png"))


@pytest.mark.real_clock
async def test_cancel_call_ends_the_body() -> None:
    """By the id of the call, which has settled: the model is told, and the run continues."""
    digging = Digging()
    agent = make_agent([digging.tool], call("dig", call_id="d"), say("wait"))
    async with Runner.run_streamed(agent, "go") as stream:
        async for _ in stream:
            if digging.began.is_set() and not digging.cancelled:
                stream.cancel_call("d", "enough")
    assert stream.result.final_output in ("wait", "done")
    assert digging.cancelled == ["d"]
    assert "enough" in read_user_texts(agent)[-1]
    await replay_strictly(stream.result.records, agent)


async def test_the_body_reports_and_emits_until_it_ends() -> None:
    """Its context works on, after the call has settled."""
    seen: list[str] = []

    @tool(background=True)
    async def dig(ctx: ToolContext[Any]) -> str:
        """Dig."""
        await anyio.lowlevel.checkpoint()
        await ctx.report(1, 2, "half")
        ctx.emit("gold")
        return "1 m"

    agent = make_agent([dig], call("dig", call_id="d"), say("wait"))
    async with Runner.run_streamed(agent, "go") as stream:
        seen.extend([type(event).__name__ async for event in stream])
    assert {"CallProgress", "CustomEvent"} <= set(seen)


async def test_a_capacity_is_held_until_the_body_ends(run_mode: Run) -> None:
    """A background call that waits for one keeps its turn waiting: that is what the limit is for."""
    free, running, most = Capacity(1), 0, 0

    @tool(background=True, capacity=free)
    async def dig() -> str:
        """Dig."""
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(5):
            await anyio.lowlevel.checkpoint()
        running -= 1
        return "1 m"

    agent = make_agent([dig], [call("dig") for _ in range(4)], say("1"), say("2"), say("3"), say("4"))
    result = await run_mode(agent, "go")
    assert (most, running) == (1, 0)
    assert len(find_records(result, r.InputAdded)) == 4
    assert free.statistics().tokens_in_use == 0


async def test_a_nested_run_has_its_own(run_mode: Run) -> None:
    """Its call ends when its run does: with the results."""
    digging = Digging()
    digging.may_end.set()
    inner = script_agent("inner", call("dig", call_id="d"), say("wait"), say("dug"), tools=[digging.tool])
    agent = make_agent([inner.as_tool("ask", "Ask.")], call("ask", {"input": "x"}, call_id="n"))
    result = await run_mode(agent, "go")
    assert find_outcome(result, "n").output in ("dug", "wait")
    assert [one.path for one in find_records(result, r.InputAdded)] == [("n",)]
    assert digging.is_over()


# ---------------------------------------------------------------------------------------------- ends


@pytest.mark.real_clock
@pytest.mark.scenario("PE-07")
async def test_on_end_cancel(run_mode: Run) -> None:
    """A run that would complete cancels the body: it keeps its answer, and the log says what became of the call."""
    digging = Digging(on_end="cancel")
    agent = make_agent([digging.tool], call("dig", call_id="d"))
    result = await run_mode(agent, "go")
    assert (result.final_output, result.status) == ("done", "completed")
    assert digging.cancelled == ["d"]
    assert inputs(result.records) == {"result_d": "withdrawn"}
    await replay_strictly(result.records, agent)


@pytest.mark.real_clock
@pytest.mark.scenario("PE-07")
async def test_on_end_cancel_beside_one_that_is_waited_for(run_mode: Run) -> None:
    """As long as the run waits for another one, the body runs on."""
    one, other = Digging(), Digging(on_end="cancel")
    tools = [one.tool, tool(other.tool.fn, name="scan", background=True, on_end="cancel")]
    agent = make_agent(tools, [call("dig", call_id="d"), call("scan", call_id="s")], say("wait"))
    at = AtRecord(2, r.ModelResponded)
    async with anyio.create_task_group() as group:

        async def end() -> None:
            await at.come.wait()
            one.may_end.set()

        group.start_soon(end)
        result = await run_mode(agent, "go", run_config=RunConfig(instruments=[at]))
    assert result.final_output == "done"
    assert inputs(result.records) == {"result_d": "shown", "result_s": "withdrawn"}
    await replay_strictly(result.records, agent)


@pytest.mark.real_clock
@pytest.mark.scenario("PE-07")
@pytest.mark.parametrize("way", ["pause", "stop", "max_turns"])
async def test_a_run_that_goes_on_later_waits_for_its_bodies(run_mode: Run, way: str) -> None:
    """What they give waits in the log, and the next run segment shows it."""
    digging = Digging()
    ask = tool(look.fn, name="ask", needs_approval=True)
    steps = [call("dig", call_id="d"), call("ask" if way == "pause" else "look", call_id="x")]
    agent = make_agent([digging.tool, look, ask], *steps)
    at = AtRecord(2, r.ModelResponded)
    config = RunConfig(instruments=[at], stop_when=MaxTurns(2) if way == "stop" else None)
    async with anyio.create_task_group() as group:

        async def end() -> None:
            await at.come.wait()
            for _ in range(20):
                await anyio.lowlevel.checkpoint()
            digging.may_end.set()

        group.start_soon(end)
        if way == "max_turns":
            with pytest.raises(MaxTurnsExceeded) as caught:
                await run_mode(agent, "go", max_turns=2, run_config=config)
            assert caught.value.run_data is not None
            state = RunState(agent, caught.value.run_data.records)
        else:
            result = await run_mode(agent, "go", run_config=config)
            assert result.status == {"pause": "interrupted", "stop": "stopped"}[way]
            state = result.to_state()
    assert digging.is_over()
    before = list(state.records)
    await replay_strictly(before, agent, stop_when=config.stop_when)
    if way == "pause":
        state.approve("x")
    done = await run_mode(agent, state, max_turns=9)
    assert done.final_output == "done"
    told = read_user_texts(agent)[-1]
    assert told == (IN_DOUBT_RESULT if digging.cancelled else RESULT.format("d", "1 m"))
    await replay_strictly(done.records, agent, stop_when=config.stop_when)


@pytest.mark.real_clock
@pytest.mark.scenario("PE-07")
@pytest.mark.parametrize("rerun", [False, True])
@pytest.mark.parametrize("cancelled", ["scope", "native", "deadline", "error"])
async def test_a_run_that_ends_early_cancels_its_bodies(run_mode: Run, cancelled: str, rerun: bool) -> None:
    """It waits for their ends. In the next run segment they are in doubt: begun again, or the model is told."""
    digging = Digging(in_doubt="rerun" if rerun else "tell_model")
    journal = MemoryJournal()

    @tool(failure_error_function="raise")
    async def wait() -> str:
        """Wait."""
        await digging.began.wait()
        if cancelled == "error":
            raise ValueError("rock")
        await anyio.sleep_forever()
        raise AssertionError

    steps = [[call("dig", call_id="d"), call("look", call_id="l")], call("wait", call_id="w")]
    agent = make_agent([digging.tool, look, wait], *steps)
    at = AtRecord(3, r.CallStarted)
    config = RunConfig(instruments=[at], timeout=0.3 if cancelled == "deadline" else None)

    async def run() -> None:
        await run_mode(agent, "go", journal=journal, run_config=config)

    if cancelled == "scope":
        await cancel_when(at.come, run)
    elif cancelled == "native":
        await cancel_natively_when(at.come, run)
    else:
        with pytest.raises((RunTimeoutError, Exception)):
            await run()
    assert digging.cancelled == ["d"]
    assert digging.is_over()
    state = await RunState.from_journal(agent, journal)
    records = list(state.records)
    assert not find_input_records(records)
    await replay_strictly(records, agent, timeout=config.timeout)
    if cancelled == "error":
        return
    digging.may_end.set()

    @tool
    async def wait_no_more() -> str:
        """Wait."""
        return "no"

    fresh = make_agent([digging.tool, look, tool(wait_no_more.fn, name="wait")], say("wait"))
    done = await Runner.resume(fresh, journal)
    assert done.final_output == ("done" if rerun else "wait")
    told = [text for text in read_user_texts(fresh) if text.startswith("Result")]
    assert told == [RESULT.format("d", "1 m") if rerun else IN_DOUBT_RESULT]
    assert digging.started == ["d", "d"] if rerun else ["d"]
    await replay_strictly((await RunState.from_journal(fresh, journal)).records, fresh, timeout=config.timeout)


@pytest.mark.real_clock
@pytest.mark.scenario("PE-07")
@pytest.mark.parametrize("idempotent", [False, True])
async def test_a_process_that_dies_after_any_record(idempotent: bool) -> None:
    """The call has one result in the end, from a body of either process, or the model is told of the doubt."""

    def agent_of() -> tuple[Agent[Any, Any], Digging]:
        digging = Digging(idempotent=idempotent)
        digging.may_end.set()
        steps = [[call("dig", call_id="d"), call("look", call_id="l")], call("look", call_id="k")]
        return make_agent([digging.tool, look], *steps, *[say(str(n)) for n in range(3)]), digging

    agent, _ = agent_of()
    whole = MemoryJournal()
    await Runner.run(agent, "go", journal=whole)
    lines = await whole.read()
    for cut in range(2, len(lines)):
        journal = MemoryJournal()
        await journal.append(lines[:cut])
        before = (await RunState.from_journal(agent, journal)).records
        fresh, digging = agent_of()
        turn = sum(isinstance(one, r.ModelResponded) for one in before)
        steps = [[call("dig", call_id="d"), call("look", call_id="l")], call("look", call_id="k")][turn:]
        fresh = make_agent([digging.tool, look], *steps, *[say(str(n)) for n in range(3)])
        await Runner.resume(fresh, journal)
        records = (await RunState.from_journal(fresh, journal)).records
        results = [one for one in find_input_records(records) if one.call_id == "d"]
        had = any(isinstance(one, r.CallStarted) and one.call_id == "d" for one in before)
        told = any(isinstance(one, r.InputAdded) for one in before)
        settled = any(isinstance(one, r.CallSettled) and one.call_id == "d" for one in before)
        if had and not settled and not idempotent:
            assert not results  # the start is in doubt, so the call itself says so
        else:
            assert len(results) == 1
        assert len(digging.started) == int(not told and (idempotent or not had))
        assert inputs(records) == {one.id: "shown" for one in results}
        await replay_strictly(records, fresh)


@pytest.mark.slow
@pytest.mark.real_clock
@pytest.mark.scenario("PE-07")
async def test_a_run_that_is_cancelled_at_any_record(run_mode: Run) -> None:
    """No body runs on, each call has at most one result, and the log is replayed, there and after each resume."""

    def agent_of(turns: int = 0) -> tuple[Agent[Any, Any], Digging]:
        digging = Digging()
        digging.may_end.set()
        scan = tool(digging.tool.fn, name="scan", background=True, on_end="cancel")
        steps = [
            [call("dig", call_id="a"), call("scan", call_id="b"), call("look", call_id="l")],
            [call("look", call_id="k"), call("dig", call_id="c")],
        ]
        return make_agent([digging.tool, scan, look], *steps[turns:], *[say(str(n)) for n in range(4)]), digging

    for place in itertools.count(1):
        agent, digging = agent_of()
        journal, scope = MemoryJournal(), anyio.CancelScope()
        at = AtRecord(place, do=scope.cancel)
        with scope:
            await run_mode(agent, "go", journal=journal, run_config=RunConfig(instruments=[at]))
        assert digging.is_over()
        records = (await RunState.from_journal(agent, journal)).records
        await replay_strictly(records, agent)
        end = records[-1]
        assert isinstance(end, r.RunEnded)
        if end.resumable:
            fresh, again = agent_of(sum(isinstance(one, r.ModelResponded) for one in records))
            await Runner.resume(fresh, journal)
            assert again.is_over()
            records = (await RunState.from_journal(fresh, journal)).records
            await replay_strictly(records, fresh)
        names = [one.call_id for one in find_input_records(records)]
        assert len(names) == len(set(names))
        if not scope.cancel_called:
            return


@pytest.mark.real_clock
@pytest.mark.parametrize("comes", [r.ModelRequested, r.ModelResponded])
async def test_max_turns_with_an_answer(run_mode: Run, comes: type) -> None:
    """The last turn's answer counts; a result that comes with or after it is in the log and changes nothing."""
    digging = Digging()
    agent = make_agent([digging.tool], call("dig", call_id="d"), [wait(0.05), say("the answer")])
    at = AtRecord(2, comes)
    async with anyio.create_task_group() as group:

        async def end() -> None:
            await at.come.wait()
            digging.may_end.set()

        group.start_soon(end)
        result = await run_mode(agent, "go", max_turns=2, run_config=RunConfig(instruments=[at]))
    assert result.final_output == "the answer"
    assert inputs(result.records) == {"result_d": "withdrawn"}
    await replay_strictly(result.records, agent)


class Fatal(BaseException):
    """An error that no policy answers."""


async def _break() -> str:
    raise Fatal("flood")


def _tell_badly(context: Any, error: Exception) -> str:
    raise LookupError("no words")


@pytest.mark.parametrize("ends", ["at once", "during the last turn"])
async def test_a_fatal_error_of_a_body_ends_the_run(run_mode: Run, ends: str) -> None:
    """The run raises it when it next looks, also if no other call is without its result."""

    async def body() -> str:
        for _ in range(0 if ends == "at once" else 20):
            await anyio.lowlevel.checkpoint()
        return await _break()

    dig = tool(body, name="dig", description="Dig.", background=True)
    with pytest.raises(Fatal, match="flood"):
        await run_mode(make_agent([dig], call("dig", call_id="d")), "go", max_turns=2)


async def test_code_around_a_body_cant_end_the_run(run_mode: Run) -> None:
    """Its call has settled: the result says what failed."""
    dig = tool(_raise, name="dig", description="Dig.", background=True, failure_error_function=_tell_badly)
    agent = make_agent([dig, look], [call("dig", call_id="d"), call("look")], call("look"), say("wait"))
    await run_mode(agent, "go")
    assert read_user_texts(agent)[1:] == [RESULT.format("d", "Tool dig failed with: LookupError(no words)")]


# ---------------------------------------------------------------------------------------------- beside other features


async def test_an_equal_call_runs_again(run_mode: Run) -> None:
    """The outcome of a background call is no output that an equal call could get."""
    ran, at = 0, AtRecord(2, r.ModelResponded)

    @tool(background=True, idempotent=True)
    async def dig() -> str:
        """Dig."""
        nonlocal ran
        ran += 1
        await at.come.wait()
        if ran == 1:
            raise ValueError("rock")
        return "1 m"

    steps = [call("dig", call_id="a"), say("wait"), call("dig", call_id="b")]
    agent = make_agent([dig], *steps, *[say(str(n)) for n in range(3)])
    await run_mode(agent, "go", run_config=RunConfig(instruments=[at]))
    assert ran == 2
    told = [text for text in read_user_texts(agent) if text.startswith("Result")]
    assert told == [RESULT.format("a", "Tool dig failed with: ValueError(rock)"), RESULT.format("b", "1 m")]


async def test_a_start_is_no_final_output(run_mode: Run) -> None:
    """Neither for `stop_on_first_tool` nor for `StopAtTools`."""
    digging = Digging(on_end="cancel")
    for behavior in ("stop_on_first_tool", StopAtTools(["dig"])):
        agent = make_agent([digging.tool], call("dig", call_id="d"), tool_use_behavior=behavior)
        assert (await run_mode(agent, "go")).final_output == "done"


async def test_the_body_has_the_context_of_its_call(run_mode: Run) -> None:
    """What a start hook has set is there, as for any body, also in a nested run."""
    seen: list[str] = []

    class Setting(RunHooks):
        async def on_tool_start(self, ctx: Any, agent: Any, tool: Any) -> None:
            _PLACE.set(ctx.tool_call_id)

    @tool(background=True)
    async def dig() -> str:
        """Dig."""
        seen.append(_PLACE.get())
        return "1 m"

    inner = script_agent("inner", call("dig", call_id="i"), *[say("dug")] * 3, tools=[dig])
    steps = [call("dig", call_id="d"), call("ask", {"input": "x"}, call_id="n")]
    agent = make_agent([dig, inner.as_tool("ask", "Ask.", hooks=Setting())], *steps, say("wait"), say("wait"))
    await run_mode(agent, "go", hooks=Setting())
    assert seen == ["d", "i"]


async def test_the_body_sees_the_conversation_of_its_own_turn(run_mode: Run) -> None:
    """A later background call is shown what the model was shown in between, as any call of that turn."""
    seen: dict[str, list[str]] = {}

    @tool(background=True)
    async def dig(ctx: ToolContext[Any]) -> str:
        """Dig."""
        seen[ctx.tool_call_id] = [one.call_id for one in ctx.conversation_history if isinstance(one, ToolCall)]
        return "dug"

    agent = make_agent([dig, look], call("dig", call_id="a"), call("look", call_id="l"), call("dig", call_id="b"))
    await run_mode(agent, "go")
    assert seen == {"a": ["a"], "b": ["a", "l", "b"]}


async def test_the_tool_of_its_own_agent_runs_again() -> None:
    """After a handoff the other agent may have a tool by the same name, or none."""
    for other in ([], ["dig"]):
        ran: list[str] = []

        def make(name: str, ran: list[str] = ran) -> Any:
            async def dig() -> str:
                """Dig."""
                ran.append(name)
                return "1 m"

            return tool(dig, background=True, idempotent=True)

        def agents(*steps: Any, other: list[str] = other, make: Any = make) -> Agent[Any, Any]:
            to = script_agent("b", *[say("done")] * 3, tools=[make("b") for _ in other])
            return script_agent("a", *steps, tools=[make("a")], handoffs=[to])

        agent, journal = agents([call("dig", call_id="d"), call("transfer_to_b", call_id="h")]), MemoryJournal()
        await Runner.run(agent, "go", journal=journal)
        lines = await journal.read()
        cut = next(at for at, line in enumerate(lines) if b"handed_off" in line) + 1
        if b"input_added" in b"".join(lines[:cut]):
            cut = next(at for at, line in enumerate(lines) if b"input_added" in line)
        ran.clear()
        second = MemoryJournal()
        await second.append(lines[:cut])
        await Runner.resume(agents(), second)
        assert ran == ["a"]


async def test_secrets_that_cant_be_read_stop_the_run() -> None:
    """As for any call: the run continues where the codec is given."""
    digging = Digging(in_doubt="rerun", secret=["depth"])
    asked = call("dig", {"depth": 2}, call_id="d")
    agent, journal = make_agent([digging.tool, look], asked, call("look")), MemoryJournal()
    digging.may_end.set()
    await Runner.run(agent, "go", journal=journal)
    lines = await journal.read()
    cut = next(at for at, line in enumerate(lines) if b"call_settled" in line) + 1
    second = MemoryJournal()
    await second.append(lines[:cut])
    with pytest.raises(StateError, match="secret"):
        await Runner.resume(make_agent([digging.tool, look], call("look")), second)
    state = await RunState.from_journal(agent, second)
    assert state.records[-1].resumable  # type: ignore[union-attr]
    assert not find_input_records(state.records)


async def test_a_result_of_no_background_call_makes_a_log_unreadable() -> None:
    """A log that was written by hand says so at the record."""
    digging = Digging()
    digging.may_end.set()
    agent = make_agent([digging.tool], call("dig", call_id="d"), say("wait"))
    result = await Runner.run(agent, "go")
    records = list(result.records)
    place = next(at for at, one in enumerate(records) if isinstance(one, r.InputAdded))
    records[place] = records[place].replace(call_id="x")  # type: ignore[union-attr]
    with pytest.raises(StateError, match="no body of call 'x' runs in the background"):
        _ = RunState(agent, records).status


# ---------------------------------------------------------------------------------------------- definitions


@tool_output_guardrail
def judge(data: Any) -> Allow:
    """Allow everything."""
    return Allow()


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"exclusive": True}, "exclusive"),
        ({"serial": "x"}, "serial"),
        ({"failure_error_function": "raise"}, "failure_error_function"),
        ({"timeout": 1, "timeout_behavior": "raise"}, "timeout_behavior"),
        ({"in_doubt": "raise"}, "in_doubt"),
        ({"tool_output_guardrails": [judge]}, "tool_output_guardrails"),
        ({"custom_data_extractor": lambda ctx, value: None}, "custom_data_extractor"),
    ],
)
def test_what_a_background_tool_cant_have(options: dict[str, Any], field: str) -> None:
    """Each names the option, and why."""
    with pytest.raises(UserError, match=f"tool '_wait': {field}: a background call has settled when its body ends"):
        tool(_wait, description="Dig.", background=True, **options)


def test_options_that_dont_fit() -> None:
    """`on_end` without a background, words that aren't one, and bodies that aren't the application's."""
    with pytest.raises(UserError, match="on_end: give background=True, too"):
        tool(_wait, description="Dig.", on_end="cancel")
    with pytest.raises(UserError, match="on_end: expected one of 'wait', 'cancel', got 'stop'"):
        tool(_wait, description="Dig.", background=True, on_end="stop")  # type: ignore[call-overload]
    with pytest.raises(UserTypeError, match="background: expected a bool"):
        tool(_wait, description="Dig.", background="yes")  # type: ignore[call-overload]
