"""Guardrails of a run's input: before the model, beside it, and what nothing may overtake."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from kit.agents import PASSED, TRIPPED, Run, configure_run, make_input_guard, script_agent
from kit.ending import Fatal, HeldWork, Rendezvous
from kit.results import describe, find_records, read_outputs, read_requests
from kit.watching import Watch

from agentloop import (
    Agent,
    AgentHooks,
    GuardrailFunctionOutput,
    InputGuardrail,
    InputGuardrailTripwireTriggered,
    RunConfig,
    Runner,
    handoff,
    input_guardrail,
    tool,
)
from agentloop import events as ev
from agentloop import model_events as m
from agentloop import records as r
from agentloop.abc import Model
from agentloop.exceptions import ModelTransportError, UserTypeError
from agentloop.items import AssistantMessage, ToolCall
from agentloop.model_events import ItemDone, ResponseDone
from agentloop.sessions import MemorySession
from agentloop.testing import call, fail, say, wait


class HeldModel(Model):
    """A model that waits in its response and keeps how its stream was left."""

    def __init__(self, held: HeldWork) -> None:
        self.held = held
        self.closed = False

    @asynccontextmanager
    async def stream(self, request: Any) -> AsyncIterator[Any]:
        try:
            yield self._events()
        finally:
            self.closed = True

    async def _events(self) -> AsyncIterator[Any]:
        await self.held()
        message = AssistantMessage("done")
        yield ItemDone(message)
        yield ResponseDone((message,), None, None)


def guard_that(held: HeldWork, answer: Any = PASSED) -> InputGuardrail:
    """Return a parallel guardrail that waits for its `go`, then answers."""

    async def guard(ctx: Any, agent: Any, given: Any) -> Any:
        await held()
        if isinstance(answer, Exception):
            raise answer
        return answer

    return input_guardrail(guard, name="held")


def sums_tool(ran: list[str]) -> Any:
    """Return a tool that keeps that it ran."""

    @tool
    async def add() -> str:
        ran.append("add")
        return "3"

    return add


# -- blocking


@pytest.mark.scenario("GI-01")
@pytest.mark.parametrize("of", ["agent", "config"])
async def test_blocking_guardrail_that_trips_ends_the_run_before_the_model(run_mode: Run, of: str) -> None:
    """The model was not asked, no tool ran, and the error carries the guardrail's result."""
    ran: list[str] = []
    guard = make_input_guard("strict", TRIPPED, parallel=False)
    agent = script_agent("a", call("add"), say("done"), tools=[sums_tool(ran)])
    config = RunConfig(input_guardrails=[guard] if of == "config" else [])
    agent.input_guardrails = [guard] if of == "agent" else []
    with pytest.raises(InputGuardrailTripwireTriggered, match="strict") as caught:
        await run_mode(agent, "go", run_config=config)
    assert read_requests(agent) == []
    assert ran == []
    assert caught.value.guardrail_result.guardrail is guard
    assert caught.value.guardrail_result.output is TRIPPED


@pytest.mark.scenario("GI-02")
async def test_blocking_guardrails_run_together_and_end_before_the_model(run_mode: Run) -> None:
    """Two guardrails that wait for each other both end, and only then is the model asked."""
    both = Rendezvous(2)
    log: list[str] = []

    def meeting(name: str) -> InputGuardrail:
        async def guard(ctx: Any, agent: Any, given: Any) -> Any:
            await both.wait()
            log.append(name)
            return PASSED

        return input_guardrail(guard, name=name, run_in_parallel=False)

    def respond(request: Any) -> Any:
        log.append("model")
        return say("done")

    agent = script_agent("a", respond, input_guardrails=[meeting("one"), meeting("two")])
    result = await run_mode(agent, "go")
    assert sorted(log[:2]) == ["one", "two"]
    assert log[2:] == ["model"]
    assert result.final_output == "done"


@pytest.mark.scenario("GI-02")
@pytest.mark.parametrize("first", [0, 1])
async def test_first_trip_of_blocking_guardrails_cancels_and_awaits_the_others(run_mode: Run, first: int) -> None:
    """The sibling has cleaned up when the error leaves, at either place in the list."""
    held = HeldWork()

    async def trips(ctx: Any, agent: Any, given: Any) -> Any:
        await held.started.wait()
        return TRIPPED

    async def waits(ctx: Any, agent: Any, given: Any) -> Any:
        await held()

    guards = [input_guardrail(fn, run_in_parallel=False) for fn in (trips, waits)]
    agent = script_agent("a", say("done"), input_guardrails=guards[::-1] if first else guards)
    with pytest.raises(InputGuardrailTripwireTriggered, match="trips"):
        await run_mode(agent, "go")
    assert held.ending == "cleaned up"
    assert read_requests(agent) == []


# -- beside the model

ANSWER = AssistantMessage("The answer is 7")
SHOWN = {
    "raw": m.Raw({"delta": "7"}),
    "text": m.TextDelta("7"),
    "reasoning": m.ReasoningDelta("7"),
    "arguments": m.ArgumentsDelta("c", "7"),
    "progress": m.HostedProgress("h", "web_search", "searching"),
    "item": m.ItemDone(ANSWER),
}
"""Events of a model that show a part of its answer, one of each kind but the last."""


@pytest.mark.parametrize("kind", [*SHOWN, "nothing"])
async def test_nothing_of_an_answer_is_shown_before_the_input_is_judged_where_it_is_held(kind: str) -> None:
    """The first event that shows a part of it waits, whatever its kind, also where the end is the only one."""
    answered, judged = anyio.Event(), False

    @input_guardrail
    async def judge(ctx: Any, agent: Any, given: Any) -> GuardrailFunctionOutput:
        nonlocal judged
        await answered.wait()
        for _ in range(20):  # enough for an event that isn't held to be read
            await anyio.lowlevel.checkpoint()
        judged = True
        return PASSED

    class Answers(Model):
        @asynccontextmanager
        async def stream(self, request: Any) -> AsyncIterator[AsyncIterator[Any]]:
            async def events() -> AsyncIterator[Any]:
                yield m.ResponseStarted()
                answered.set()
                if kind in SHOWN:
                    yield SHOWN[kind]
                yield ResponseDone((ANSWER,), None, None)

            yield events()

    early: list[ev.Event] = []
    agent = Agent("a", model=Answers(), input_guardrails=[judge])
    async with Runner.run_streamed(agent, "go", run_config=RunConfig(hold_text_until_guarded=True)) as stream:
        async for event in stream:
            if not judged:
                early.append(event)
    assert [type(event) for event in early] == [ev.AgentUpdated, ev.TurnStarted]
    assert stream.result.final_output == ANSWER.text


@pytest.mark.scenario("GI-03")
async def test_parallel_guardrail_and_model_call_overlap(run_mode: Run) -> None:
    """Each waits for the other: neither could end if the other were not under way."""
    model, guarding = anyio.Event(), anyio.Event()

    async def guard(ctx: Any, agent: Any, given: Any) -> Any:
        guarding.set()
        await model.wait()
        return PASSED

    def respond(request: Any) -> Any:
        model.set()
        return [wait(guarding), say("done")]

    result = await run_mode(script_agent("a", respond, input_guardrails=[input_guardrail(guard)]), "go")
    assert result.final_output == "done"


ENDS = [
    pytest.param("guardrail", lambda: TRIPPED, id="guardrail trips", marks=pytest.mark.scenario("GI-04")),
    pytest.param(
        "guardrail", lambda: LookupError("no list"), id="guardrail fails", marks=pytest.mark.scenario("GI-05")
    ),
    pytest.param("guardrail", Fatal, id="guardrail raises no Exception"),
    pytest.param("model", lambda: ModelTransportError("gone"), id="model fails", marks=pytest.mark.scenario("GI-06")),
    pytest.param("model", Fatal, id="model raises no Exception"),
]


@pytest.mark.parametrize("cleanup", ["clean", "broken"])
@pytest.mark.parametrize(("first", "make_end"), ENDS)
async def test_first_end_beside_the_model_leaves_once_the_other_has_been_awaited(
    run_mode: Run, first: str, make_end: Callable[[], Any], cleanup: str
) -> None:
    """The trip or the error leaves bare, in no group; an error of the other's cleanup is a note of it."""
    end = make_end()

    def clean_up() -> None:
        if cleanup == "broken":
            raise ValueError("no cleanup")

    held = HeldWork(clean_up=clean_up)
    model = HeldModel(held)

    async def guard(ctx: Any, agent: Any, given: Any) -> Any:
        await held.started.wait()
        if isinstance(end, BaseException):
            raise end
        return end

    if first == "guardrail":
        agent = Agent[Any, Any]("a", model=model, input_guardrails=[input_guardrail(guard)])
    else:
        agent = script_agent("a", [wait(held.started), fail(end)], input_guardrails=[guard_that(held)])
    with pytest.raises(InputGuardrailTripwireTriggered if end is TRIPPED else type(end)) as caught:
        await run_mode(agent, "go")
    assert held.ending == "cleaned up"
    assert model.closed is (first == "guardrail")
    assert end is TRIPPED or caught.value is end
    notes = ["also failed: ValueError(no cleanup)"] if cleanup == "broken" else []
    assert getattr(caught.value, "__notes__", []) == notes


@pytest.mark.parametrize("first", ["guardrail", "hook"])
async def test_a_hook_that_fails_as_a_guardrail_trips_is_told(run_mode: Run, first: str) -> None:
    """Both end in one scheduler pass, in either order: the trip leaves, and the hook's error is a note of it."""
    tripping, failing = HeldWork(), HeldWork()

    async def release(ctx: Any, agent: Any, given: Any) -> Any:
        for held in (tripping, failing):
            await held.started.wait()
        for held in (tripping, failing) if first == "guardrail" else (failing, tripping):
            held.go.set()
        return PASSED

    class Hooks(AgentHooks):
        async def on_llm_start(self, ctx: Any, agent: Any, system: Any, given: Any) -> None:
            await failing()
            raise ValueError("no hook")

    guards = [guard_that(tripping, TRIPPED), input_guardrail(release, name="release")]
    agent = script_agent("a", say("done"), input_guardrails=guards, hooks=Hooks())
    with pytest.raises(InputGuardrailTripwireTriggered) as caught:
        await run_mode(agent, "go")
    assert (tripping.ending, failing.ending) == ("returned", "returned")
    assert caught.value.__notes__ == ["also failed: ValueError(no hook)"]


# -- results


@pytest.mark.scenario("GI-07")
async def test_results_stand_in_declaration_order_with_their_durations(run_mode: Run) -> None:
    """The configuration's results come first, then the agent's, whichever guardrail ended first."""
    last = anyio.Event()

    def waiting(name: str, ready: anyio.Event | None) -> InputGuardrail:
        async def guard(ctx: Any, agent: Any, given: Any) -> Any:
            if ready is None:
                last.set()
            else:
                await ready.wait()
            return GuardrailFunctionOutput(name)

        return input_guardrail(guard, name=name)

    agent = script_agent("a", say("done"), input_guardrails=[waiting("three", last), waiting("four", None)])
    config = RunConfig(input_guardrails=[waiting("one", last), waiting("two", last)])
    result = await run_mode(agent, "go", run_config=config)
    names = ["one", "two", "three", "four"]
    assert [found.guardrail.name for found in result.input_guardrail_results] == names
    assert [found.output.output_info for found in result.input_guardrail_results] == names
    assert all(isinstance(found.duration, float) and found.duration >= 0 for found in result.input_guardrail_results)
    assert result.final_output == "done"


@pytest.mark.scenario("GI-07")
async def test_duration_is_the_guardrail_s_own(run_mode: Run, anyio_backend: Any) -> None:
    """On a virtual clock the duration is exactly what the guardrail took."""

    async def guard(ctx: Any, agent: Any, given: Any) -> Any:
        await anyio.sleep(0.02)
        return PASSED

    agent = script_agent("a", say("done"), input_guardrails=[input_guardrail(guard, run_in_parallel=False)])
    [result] = (await run_mode(agent, "go")).input_guardrail_results
    assert result.duration == pytest.approx(0.02) if "clock" in anyio_backend[1] else result.duration >= 0.015


@pytest.mark.scenario("GI-08")
async def test_blocking_guardrails_end_before_parallel_ones_start(run_mode: Run) -> None:
    """The order of declaration makes no difference."""
    log: list[str] = []

    async def slow(ctx: Any, agent: Any, given: Any) -> Any:
        log.append("blocking begins")
        await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()
        log.append("blocking ends")
        return PASSED

    guards = [make_input_guard("parallel", log=log), input_guardrail(slow, run_in_parallel=False)]
    result = await run_mode(script_agent("a", say("done"), input_guardrails=guards), "go")
    assert log == ["blocking begins", "blocking ends", "parallel"]
    assert [found.guardrail.name for found in result.input_guardrail_results] == ["parallel", "slow"]


@pytest.mark.scenario("GI-08")
async def test_parallel_guardrails_do_not_start_after_a_blocking_trip(run_mode: Run) -> None:
    """Neither the parallel guardrail nor the model is asked."""
    log: list[str] = []
    guards = [make_input_guard("parallel", log=log), make_input_guard("blocking", TRIPPED, parallel=False, log=log)]
    agent = script_agent("a", say("done"), input_guardrails=guards)
    with pytest.raises(InputGuardrailTripwireTriggered):
        await run_mode(agent, "go")
    assert log == ["blocking"]
    assert read_requests(agent) == []


@pytest.mark.scenario("GI-09")
async def test_guardrails_run_once_and_never_a_handoff_target_s(run_mode: Run) -> None:
    """The starting agent's guardrail and the configuration's run once each."""
    log: list[str] = []
    second = script_agent(
        "b", say("done"), input_guardrails=[make_input_guard("target's", TRIPPED, parallel=False, log=log)]
    )
    first = script_agent(
        "a", call("transfer_to_b"), handoffs=[handoff(second)], input_guardrails=[make_input_guard("first's", log=log)]
    )
    result = await run_mode(first, "go", run_config=RunConfig(input_guardrails=[make_input_guard("config's", log=log)]))
    assert result.final_output == "done"
    assert result.last_agent is second
    assert sorted(log) == ["config's", "first's"]


# -- what a trip leaves


@pytest.mark.scenario("GI-11")
@pytest.mark.parametrize("parallel", [False, True], ids=["blocking", "parallel"])
async def test_trip_stores_the_input_and_nothing_else(run_mode: Run, parallel: bool) -> None:
    """The session gets nothing of the response, even if the model had already answered with a call."""
    session = MemorySession()
    ran: list[str] = []
    answered = anyio.Event()

    class Answered(Model):
        @asynccontextmanager
        async def stream(self, request: Any) -> AsyncIterator[Any]:
            yield self._events()

        async def _events(self) -> AsyncIterator[Any]:
            items = (AssistantMessage("I add."), ToolCall("c", "add"))
            for item in items:
                yield ItemDone(item)
            yield ResponseDone(items, None, None)
            answered.set()

    async def guard(ctx: Any, agent: Any, given: Any) -> Any:
        if parallel:
            await answered.wait()
        return TRIPPED

    agent = Agent[Any, Any](
        "a",
        model=Answered(),
        tools=[sums_tool(ran)],
        input_guardrails=[input_guardrail(guard, run_in_parallel=parallel)],
    )
    with pytest.raises(InputGuardrailTripwireTriggered):
        await run_mode(agent, "go", session=session)
    assert describe(await session.get_items()) == ["user:go"]
    assert ran == []


@pytest.mark.scenario("GI-12")
async def test_error_holds_every_settled_result(run_mode: Run) -> None:
    """The error has the results that passed and the one that tripped, in declaration order, and no cancelled one."""
    held = HeldWork()
    passed = anyio.Event()

    async def passes(ctx: Any, agent: Any, given: Any) -> Any:
        passed.set()
        return PASSED

    async def trips(ctx: Any, agent: Any, given: Any) -> Any:
        await passed.wait()
        await held.started.wait()
        return TRIPPED

    blocking = make_input_guard("blocking", parallel=False)
    guards = [input_guardrail(trips), guard_that(held), input_guardrail(passes), blocking]
    with pytest.raises(InputGuardrailTripwireTriggered) as caught:
        await run_mode(script_agent("a", say("done"), input_guardrails=guards), "go")
    data = caught.value.run_data
    assert data is not None
    assert [found.guardrail.name for found in data.input_guardrail_results] == ["trips", "passes", "blocking"]
    assert data.input_guardrail_results[0] is caught.value.guardrail_result
    assert [found.output.tripwire_triggered for found in data.input_guardrail_results] == [True, False, False]


@pytest.mark.scenario("GI-12")
async def test_error_of_a_stream_is_the_one_that_was_raised() -> None:
    """`stream.error` is the exception that iteration raised, with its data."""
    agent = script_agent("a", say("done"), input_guardrails=[make_input_guard("g", TRIPPED)])
    async with Runner.run_streamed(agent, "go") as stream:
        with pytest.raises(InputGuardrailTripwireTriggered) as caught:
            async for _ in stream:
                pass
        assert stream.error is caught.value
        assert isinstance(stream.error, InputGuardrailTripwireTriggered)
        assert stream.error.run_data is not None
        [result] = stream.error.run_data.input_guardrail_results
        assert result.output is TRIPPED


@pytest.mark.scenario("GI-13")
async def test_slow_guardrail_trips_after_the_model_has_finished() -> None:
    """The text was shown; the run is not complete before the verdict, and then raises."""
    held = HeldWork()
    agent = script_agent("a", say("done"), input_guardrails=[guard_that(held, TRIPPED)])
    seen: list[Any] = []
    async with Runner.run_streamed(agent, "go") as stream:
        with pytest.raises(InputGuardrailTripwireTriggered):
            async for event in stream:
                seen.append(event)
                if isinstance(event, ev.ItemCreated):
                    assert not stream.is_complete
                    held.go.set()
        assert stream.is_complete
    assert describe(event.item for event in seen if isinstance(event, ev.ItemCreated)) == ["says:done"]
    assert [event.status for event in seen if isinstance(event, ev.RunEnded)] == ["failed"]


@pytest.mark.scenario("GI-13")
async def test_slow_guardrail_trips_after_the_model_has_finished_in_a_plain_run() -> None:
    """The run raises as a stream does, with the response in its log."""
    held = HeldWork()

    def respond(request: Any) -> Any:
        return [wait(held.started), say("done")]

    async def guard(ctx: Any, agent: Any, given: Any) -> Any:
        held.started.set()
        while not read_requests(agent):
            await anyio.lowlevel.checkpoint()
        for _ in range(10):
            await anyio.lowlevel.checkpoint()
        return TRIPPED

    agent = script_agent("a", respond, input_guardrails=[input_guardrail(guard)])
    with pytest.raises(InputGuardrailTripwireTriggered) as caught:
        await Runner.run(agent, "go")
    assert caught.value.run_data is not None
    assert len(find_records(caught.value.run_data, r.ModelResponded)) == 1


@pytest.mark.scenario("GI-14")
@pytest.mark.parametrize("answer", [PASSED, TRIPPED], ids=["passes", "trips"])
async def test_no_side_effect_starts_before_the_verdict(run_mode: Run, answer: GuardrailFunctionOutput) -> None:
    """No tool, handoff or callback starts, although the model answered with both long before."""
    log: list[str] = []

    @tool
    async def add() -> str:
        log.append("tool")
        return "3"

    second = script_agent("b", say("done"))

    async def guard(ctx: Any, agent: Any, given: Any) -> Any:
        while "llm_end" not in log:
            await anyio.lowlevel.checkpoint()
        for _ in range(20):
            await anyio.lowlevel.checkpoint()
        log.append("verdict")
        return answer

    class Hooks(AgentHooks):
        async def on_llm_end(self, ctx: Any, agent: Any, response: Any) -> None:
            log.append("llm_end")

    agent = script_agent(
        "a",
        [call("add", call_id="c1"), call("transfer_to_b", call_id="c2")],
        tools=[add],
        handoffs=[handoff(second, on_handoff=lambda ctx: log.append("handoff"))],
        input_guardrails=[input_guardrail(guard)],
        hooks=Hooks(),
    )
    if answer is TRIPPED:
        with pytest.raises(InputGuardrailTripwireTriggered) as caught:
            await run_mode(agent, "go")
        assert log == ["llm_end", "verdict"]
        assert caught.value.run_data is not None
        assert find_records(caught.value.run_data, r.CallStarted) == []
        assert caught.value.run_data.last_agent is agent
    else:
        result = await run_mode(agent, "go")
        assert log == ["llm_end", "verdict", "tool", "handoff"]
        assert read_outputs(result.new_items) == {"c1": "3"}


@pytest.mark.scenario("GI-15")
@pytest.mark.parametrize("parallel", [False, True], ids=["blocking", "parallel"])
@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("trips", [False, True])
async def test_sync_and_async_functions_behave_the_same(run_mode: Run, parallel: bool, kind: str, trips: bool) -> None:
    """Both get the context, the agent and the input's items."""
    given: list[Any] = []
    answer = TRIPPED if trips else PASSED

    def sync_guard(ctx: Any, agent: Any, input: Any) -> Any:
        given.append((ctx.context, agent, describe(input)))
        return answer

    async def async_guard(ctx: Any, agent: Any, input: Any) -> Any:
        return sync_guard(ctx, agent, input)

    guard = input_guardrail(sync_guard if kind == "sync" else async_guard, run_in_parallel=parallel)
    agent = script_agent("a", say("done"), input_guardrails=[guard])
    if trips:
        with pytest.raises(InputGuardrailTripwireTriggered):
            await run_mode(agent, "go", context="app")
    else:
        assert (await run_mode(agent, "go", context="app")).final_output == "done"
    assert given == [("app", agent, ["user:go"])]


@pytest.mark.scenario("GI-15")
@pytest.mark.parametrize("made_by", [InputGuardrail, input_guardrail])
def test_what_is_not_callable_is_refused_at_construction(made_by: Any) -> None:
    """The error names the field."""
    with pytest.raises(UserTypeError, match=r"InputGuardrail\.fn: expected a callable, got 'x'"):
        made_by("x")
    with pytest.raises(UserTypeError, match=r"Agent\.input_guardrails\[0\]"):
        Agent("a", input_guardrails=[lambda ctx, agent, given: PASSED])  # type: ignore[list-item]


async def test_guardrail_that_answers_nothing_is_an_error_of_the_application(run_mode: Run) -> None:
    """The error names the guardrail."""
    with pytest.raises(UserTypeError, match="'odd'"):
        await run_mode(script_agent("a", say("done"), input_guardrails=[make_input_guard("odd", None)]), "go")


class Falsy(Exception):
    """An error that is false."""

    def __bool__(self) -> bool:
        return False


@pytest.mark.scenario("GI-16")
@pytest.mark.parametrize("parallel", [False, True], ids=["blocking", "parallel"])
@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside-another"])
async def test_error_that_is_false_is_raised_all_the_same(run_mode: Run, parallel: bool, beside: bool) -> None:
    """An error whose truth value is false ends the run as any other does."""
    guards = [
        make_input_guard("bad", Falsy(), parallel=parallel),
        *[make_input_guard("good", parallel=parallel)] * beside,
    ]
    with pytest.raises(Falsy):
        await run_mode(script_agent("a", say("done"), input_guardrails=guards), "go")


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("answer", [TRIPPED, ValueError("no")])
async def test_the_callers_cancellation_comes_before_what_a_guardrail_says_in_the_same_step(
    run_mode: Run, count: int, answer: Any
) -> None:
    """The run ends as cancelled, in its log too, however many guardrails are asked at once."""
    scope, watch = anyio.CancelScope(), Watch()

    async def cancels(ctx: Any, agent: Any, given: Any) -> Any:
        scope.cancel()
        if isinstance(answer, Exception):
            raise answer
        return answer

    guards = [InputGuardrail(cancels, name=f"{place}", run_in_parallel=False) for place in range(count)]
    agent = script_agent("a", say("never"), input_guardrails=guards)
    with scope:
        await run_mode(agent, "go", run_config=configure_run(watch))
    assert scope.cancelled_caught
    assert watch.end == "cancelled"
    assert read_requests(agent) == []
