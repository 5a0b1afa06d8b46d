"""Input that is added to a run under way: when the model is shown it, and why some is refused."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import pytest
from kit.agents import PASSED, TRIPPED, Run, look, make_input_guard, make_output_guard, script_agent
from kit.results import check_history, describe, find_records, read_requests, read_user_texts
from kit.resuming import HeldJournal
from kit.watching import AtRecord

from agentloop import (
    Agent,
    AskAgain,
    InputGuardrailTripwireTriggered,
    Instrument,
    MaxTurnsExceeded,
    RunConfig,
    Runner,
    RunState,
    UserError,
    output_guardrail,
    tool,
)
from agentloop import events as ev
from agentloop import records as r
from agentloop.config.conditions import MaxTurns
from agentloop.exceptions import InputRefusedError, JournalError, ModelRefusalError
from agentloop.items import AssistantMessage, Refusal, UserMessage
from agentloop.journal import MemoryJournal
from agentloop.sessions import MemorySession
from agentloop.testing import ScriptedModel, call, replay, respond, say


def talk() -> Agent[Any, Any]:
    """Return an agent that looks twice, then says something, as often as it is asked."""
    steps = [call("look", call_id="a"), [call("look", call_id="b"), call("look", call_id="c")]]
    return script_agent("guide", *steps, *[say(f"answer {number}") for number in range(9)], tools=[look])


async def steer(agent: Agent[Any, Any], ready: anyio.Event, do: Callable[[Any], Awaitable[Any]], **options: Any) -> Any:
    """Run *agent* streamed, and call *do* with the stream once *ready* is set; return the stream when it is over."""
    async with Runner.run_streamed(agent, "go", **options) as stream, anyio.create_task_group() as group:

        async def wait_and_do() -> None:
            await ready.wait()
            await do(stream)

        group.start_soon(wait_and_do)
        async for _ in stream:
            pass
    return stream


def check_shown(agent: Agent[Any, Any], records: Sequence[r.Record], texts: Iterable[str] = ("more",)) -> None:
    """Check that each of *texts* is shown once, in the first request after its record, after all outputs."""
    for text in texts:
        [added] = [one for one in records if isinstance(one, r.InputAdded) and one.items == (UserMessage(text),)]
        [shown] = [one for one in records if isinstance(one, r.InputShown) and one.id == added.id]
        first = sum(isinstance(one, r.ModelRequested) for one in records[: records.index(shown)])
        for place, request in enumerate(read_requests(agent)):
            assert read_user_texts(agent, place).count(text) == (place >= first)
            check_history(request.items)


async def replay_elsewhere(records: Sequence[r.Record], agent: Agent[Any, Any]) -> list[r.Record]:
    """Replay the log strictly, in a thread: a replay has an event loop of its own."""
    return list((await anyio.to_thread.run_sync(lambda: replay(records, agent))).records)


# ---------------------------------------------------------------------------------------------- shown


@pytest.mark.real_clock
@pytest.mark.scenario("PE-01", "PE-05")
@pytest.mark.parametrize("when", ["turn", "idle"])
@pytest.mark.parametrize("journaled", [False, True])
async def test_input_added_at_any_record_is_shown_once_or_refused(when: Any, journaled: bool) -> None:
    """The replay of each log is equal, record by record."""
    count, refused = len((await Runner.run(talk(), "go")).records), 0
    for place in range(count):
        agent, at = talk(), AtRecord(place + 1)
        agent.input_guardrails = [make_input_guard("g")] if place % 2 else []
        config = RunConfig(instruments=[at])
        got: list[str] = []

        async def add(stream: Any, got: list[str] = got) -> None:
            try:
                got.append(await stream.add_input("more", when=when))
            except InputRefusedError as error:
                got.append(error.reason)

        options = {"journal": MemoryJournal()} if journaled else {}
        stream = await steer(agent, at.come, add, run_config=config, **options)
        records = stream.state.records
        if got == ["over"]:
            refused += 1
            assert find_records(stream.result, r.InputAdded) == []
            continue
        assert got == ["input_1"]
        assert [one.status for one in stream.state.inputs] == ["shown"]
        check_shown(agent, records)
        assert stream.result.final_output == f"answer {1 if when == 'idle' else agent.model.requests[-1].turn - 3}"
        assert await replay_elsewhere(records, agent) == records
    assert refused  # at the last record at least


@pytest.mark.scenario("PE-01")
async def test_idle_input_is_shown_when_the_run_would_end() -> None:
    """Several come together, in their order, behind the answer that would have been the last."""
    agent, at = talk(), AtRecord(3)

    async def add(stream: Any) -> None:
        await stream.add_input("later", when="idle")
        await stream.add_input([UserMessage("last"), UserMessage("of all")], when="idle", by="ann")
        await stream.add_input("now")

    stream = await steer(agent, at.come, add, run_config=RunConfig(instruments=[at]))
    assert read_user_texts(agent) == ["go", "now", "later", "last", "of all"]
    assert stream.result.final_output == "answer 1"
    assert describe(read_requests(agent)[-1].items)[-4:] == ["says:answer 0", "user:later", "user:last", "user:of all"]
    assert [one.by for one in stream.state.inputs] == [None, "ann", None]


@pytest.mark.scenario("PE-01")
async def test_the_stream_shows_the_input_as_an_item() -> None:
    """At the moment at which the model gets it."""
    agent, shown = talk(), []
    async with Runner.run_streamed(agent, "go") as stream:
        await stream.add_input("more")
        async for event in stream:
            if isinstance(event, ev.ItemCreated) and isinstance(event.item, UserMessage):
                shown.append(event.item.text)
    assert shown == ["more"]
    assert [event for _, event in stream.state.events() if isinstance(event, ev.ItemCreated)].count(
        ev.ItemCreated(UserMessage("more"), path=(), turn=find_records(stream.result, r.InputShown)[0].turn)
    ) == 1


@pytest.mark.scenario("PE-01")
async def test_input_is_taken_as_soon_as_the_block_is_entered() -> None:
    """It waits for the first record, so that a journal has it."""
    agent, journal = talk(), MemoryJournal()
    stream = Runner.run_streamed(agent, "go", journal=journal)
    with pytest.raises(UserError, match="enter the block first"):
        await stream.add_input("more")
    async with stream:
        await stream.add_input("more")
        stored = await RunState.from_journal(agent, journal)
        assert [one.items for one in stored.inputs] == [(UserMessage("more"),)]
        await stream.finished()
    check_shown(agent, stream.state.records)


@pytest.mark.scenario("PE-01")
@pytest.mark.parametrize("ends", ["a tool", "a handler", "a wrong type", "a refusal"])
async def test_each_end_continues_with_the_input(ends: str) -> None:
    """Also an end by an output that a tool gives, one that isn't accepted, and a refusal of the model."""
    options: dict[str, Any] = {"tools": [look]}
    steps: list[Any] = [say("no number"), say("7")]
    if ends == "a tool":
        steps[0], options["tool_use_behavior"] = call("look", call_id="a"), "stop_on_first_tool"
    elif ends == "a refusal":
        steps[0] = respond(AssistantMessage((Refusal("I won't."),)))
    else:
        options |= {"output_type": int, "output_retries": 0}
    added, handled = anyio.Event(), list[Any]()
    handlers: dict[str, Any] = {"invalid_final_output": handled.append} if ends == "a handler" else {}

    async def instruct(ctx: Any, agent: Any) -> str:
        await added.wait()
        return "Go."

    agent = script_agent("guide", *steps, instructions=instruct, **options)
    async with Runner.run_streamed(agent, "go", error_handlers=handlers) as stream:
        await stream.add_input("more", when="idle")
        added.set()
        await stream.finished()
    assert str(stream.result.final_output) == "7"
    assert handled == []
    check_shown(agent, stream.state.records)


@pytest.mark.scenario("PE-01")
async def test_an_answer_that_would_end_the_run_is_judged_before_it_continues() -> None:
    """A person has read it."""
    judged: list[str] = []
    agent = talk()
    agent.output_guardrails = [make_output_guard("g", log=judged)]
    async with Runner.run_streamed(agent, "go") as stream:
        await stream.add_input("more", when="idle")
        await stream.finished()
    assert judged == ["g", "g"]


@pytest.mark.scenario("PE-01", "SE-05")
async def test_the_session_has_the_input_once() -> None:
    """At the place where the model was shown it."""
    agent, session = talk(), MemorySession()
    async with Runner.run_streamed(agent, "go", session=session) as stream:
        await stream.add_input("more", when="idle")
        await stream.finished()
    said = describe(await session.get_items())
    assert said == describe([*stream.result.input, *stream.result.new_items])
    assert said.index("user:more") == said.index("says:answer 0") + 1


@pytest.mark.scenario("PE-03", "SE-05")
@pytest.mark.parametrize("ends", ["answer", "tool"])
async def test_the_session_keeps_the_answer_after_which_an_idle_input_trips(ends: str) -> None:
    """The answer was accepted; the input isn't in the session."""
    agent, session = talk(), MemorySession()
    agent.input_guardrails = [make_guard(judging({"bad": TRIPPED}))]
    if ends == "tool":
        agent.tool_use_behavior = "stop_on_first_tool"
    async with Runner.run_streamed(agent, "go", session=session) as stream:
        await stream.add_input("bad", when="idle")
        with pytest.raises(InputGuardrailTripwireTriggered):
            async for _ in stream:
                pass
    said = describe(await session.get_items())
    assert said == describe([*stream.state.input, *read_new_items(stream)])
    assert said[-1].startswith("says:answer 0" if ends == "answer" else "output:")
    assert "user:bad" not in said


def read_new_items(stream: Any) -> tuple[Any, ...]:
    """Return the items that a run has added, which may have failed."""
    items: tuple[Any, ...] = stream.state._fold.new_items
    return items


# ---------------------------------------------------------------------------------------------- limits


@pytest.mark.scenario("PE-01")
async def test_idle_input_is_shown_with_the_last_turn_and_none_is_taken_after_that() -> None:
    """No later request could show it."""
    agent, refused = talk(), anyio.Event()

    @output_guardrail
    async def hold(ctx: Any, agent: Any, output: Any) -> Any:
        await refused.wait()
        return PASSED

    agent.output_guardrails = [hold]
    async with Runner.run_streamed(agent, "go", max_turns=3) as stream:
        await stream.add_input("more", when="idle")
        async for event in stream:
            if isinstance(event, ev.TurnStarted) and event.turn == 3:
                with pytest.raises(InputRefusedError, match=r"no turn is left \(max_turns=3\)") as caught:
                    await stream.add_input("too late", when="idle")
                assert caught.value.reason == "no_turn_left"
                refused.set()
    assert refused.is_set()
    assert read_user_texts(agent) == ["go", "more"]
    assert stream.result.final_output == "answer 0"


@pytest.mark.scenario("PE-01")
async def test_the_turn_that_a_limit_leaves_shows_all_input() -> None:
    """The run answers at its limit; the handler of a run without a turn left takes none."""
    agent = script_agent("guide", call("look", call_id="a"), say("done"), tools=[look])
    state: Any = (await Runner.run(agent, "go", run_config=RunConfig(stop_when=MaxTurns(1)))).to_state()
    state.add_input("more", when="idle")
    done = await Runner.run(agent, state, max_turns=1, run_config=RunConfig(at_limit="answer"))
    assert done.final_output == "done"
    assert read_user_texts(agent)[::2] == ["go", "more"]
    agent.model = ScriptedModel([call("look", call_id="a")])
    with pytest.raises(MaxTurnsExceeded):
        await Runner.run(agent, "go", max_turns=1)


# ---------------------------------------------------------------------------------------------- refused


@pytest.mark.scenario("PE-01")
async def test_a_run_that_is_over_takes_no_input() -> None:
    """Nor does it give any back. The reason is a word."""
    async with Runner.run_streamed(talk(), "go") as stream:
        await stream.finished()
        for refusal in (stream.add_input("more"), stream.withdraw("input_1"), stream.add_input("more", id="x")):
            with pytest.raises(InputRefusedError, match="is over, or ends") as refused:
                await refusal
            assert refused.value.reason == "over"
    state = stream.state
    for refuse in (lambda: state.add_input("more"), lambda: state.withdraw("input_1")):
        with pytest.raises(InputRefusedError, match="it has completed") as refused:
            refuse()
        assert refused.value.reason == "over"


@pytest.mark.scenario("PE-01")
async def test_a_run_that_fails_before_its_first_record_takes_no_input() -> None:
    """The sender that waits for the beginning is told."""

    class Broken(MemoryJournal):
        async def read(self) -> list[bytes]:
            await anyio.lowlevel.checkpoint()
            raise OSError("no disk")

    async with Runner.run_streamed(talk(), "go", journal=Broken()) as stream:
        with pytest.raises(InputRefusedError):
            await stream.add_input("more")
        with pytest.raises(JournalError):
            async for _ in stream:
                pass


@pytest.mark.scenario("PE-01")
async def test_an_id_makes_a_call_that_is_repeated_harmless() -> None:
    """The same input is added once; another one under that id is refused."""
    agent = talk()
    async with Runner.run_streamed(agent, "go") as stream:
        assert [await stream.add_input("more", id="m") for _ in range(2)] == ["m", "m"]
        with pytest.raises(InputRefusedError) as refused:
            await stream.add_input("other", id="m")
        await stream.finished()
        assert refused.value.reason == "other_input"
    check_shown(agent, stream.state.records)


@pytest.mark.scenario("PE-01")
async def test_input_that_is_given_again_is_acknowledged_at_every_moment_of_the_run() -> None:
    """Its sender may not have heard of it. It is looked up before anything else: also in the last turn, and after."""
    agent = talk()
    async with Runner.run_streamed(agent, "go", max_turns=4) as stream:
        await stream.add_input("more", id="m")
        await stream.add_input("gone", id="gone")
        await stream.withdraw("gone")
        again = 0
        async for _ in stream:
            assert await stream.add_input("more", id="m") == "m"
            again += 1
            with pytest.raises(InputRefusedError) as refused:
                await stream.add_input("gone", id="gone")
            assert refused.value.reason == "withdrawn"
    state = stream.state
    assert again > 10
    assert await stream.add_input("more", id="m") == state.add_input("more", id="m") == "m"
    for add in (stream.add_input, state.add_input):
        for text, name, reason in (("other", "m", "other_input"), ("gone", "gone", "withdrawn"), ("new", "n", "over")):
            with pytest.raises(InputRefusedError) as refused:
                if (added := add(text, id=name)) is not name:
                    await added  # type: ignore[misc]
            assert refused.value.reason == reason
    assert stream.state.records == state.records
    check_shown(agent, state.records)


@pytest.mark.scenario("PE-01", "PE-05")
@pytest.mark.real_clock
async def test_withdrawn_input_is_never_shown() -> None:
    """What was shown can't be taken back."""
    agent = talk()
    async with Runner.run_streamed(agent, "go") as stream:
        gone = await stream.add_input("gone")
        await stream.add_input("more", id="m")
        await stream.withdraw(gone, by="ann")
        await stream.finished()
        state = stream.state
    assert [one.status for one in state.inputs] == ["withdrawn", "shown"]
    assert [one.by for one in find_records(stream.result, r.InputWithdrawn)] == ["ann"]
    assert read_user_texts(agent) == ["go", "more"]
    assert await replay_elsewhere(state.records, agent) == state.records


@pytest.mark.scenario("PE-01")
async def test_a_state_gives_up_all_inputs_that_wait() -> None:
    """Not what the model has seen, and nothing of a run that is over."""
    agent = script_agent("a", call("look"), say("done"), tools=[look], input_guardrails=[])
    paused = await Runner.run(agent, "go", run_config=RunConfig(stop_when=MaxTurns(1)))
    state = paused.to_state()
    assert state.clear_pending_input() == ()
    first = state.add_input("one")
    state.withdraw(first)
    assert [state.add_input("two"), state.add_input("three", when="idle", id="t")] == ["input_2", "t"]
    assert state.clear_pending_input(by="ann") == ("input_2", "t")
    assert [(one.id, one.status) for one in state.inputs] == [
        *((name, "withdrawn") for name in ("input_1", "input_2", "t"))
    ]
    result = await Runner.run(agent, state)
    assert read_user_texts(agent) == ["go"]
    assert [one.by for one in find_records(result, r.InputWithdrawn)] == [None, "ann", "ann"]
    assert result.to_state().clear_pending_input() == ()


# ---------------------------------------------------------------------------------------------- guardrails


def judging(answers: dict[str, Any], seen: list[str] | None = None) -> Any:
    """Return an input guardrail that answers by the text of the input."""

    async def judge(ctx: Any, agent: Any, given: Any) -> Any:
        text = given if isinstance(given, str) else given[0].text
        if seen is not None:
            seen.append(text)
        await anyio.lowlevel.checkpoint()
        return answers.get(text, PASSED)

    return judge


@pytest.mark.scenario("PE-03", "PE-05")
@pytest.mark.real_clock
@pytest.mark.parametrize("when", ["turn", "idle"])
async def test_an_input_that_trips_ends_the_run_and_is_not_shown(when: Any) -> None:
    """As the run's own input does."""
    agent = talk()
    agent.input_guardrails = [make_guard(judging({"bad": TRIPPED}))]
    async with Runner.run_streamed(agent, "go") as stream:
        await stream.add_input("good", when=when)
        await stream.add_input("bad", when=when)
        with pytest.raises(InputGuardrailTripwireTriggered):
            async for _ in stream:
                pass
        state = stream.state
    assert state.status == "failed"
    assert [one.status for one in state.inputs] == ["shown", "waiting"]
    assert all("bad" not in str(request.items) for request in read_requests(agent))
    assert await replay_elsewhere(state.records, agent) == state.records


@pytest.mark.scenario("PE-03", "PE-05")
@pytest.mark.real_clock
@pytest.mark.parametrize("when", ["turn", "idle"])
async def test_an_input_that_a_guardrail_rejects_is_not_shown_and_its_sender_is_told(when: Any) -> None:
    """The others are judged by themselves; the run continues, or ends as it would have."""
    agent, seen = talk(), list[str]()
    agent.input_guardrails = [make_guard(judging({"odd": AskAgain("Say it otherwise.")}, seen))]
    results: list[Any] = []
    async with Runner.run_streamed(agent, "go") as stream:
        for text in ("odd", "good") if when == "turn" else ("good", "odd"):
            await stream.add_input(text, when=when)
        async for event in stream:
            if isinstance(event, ev.GuardrailSettled):
                results.append(event.result)
        state = stream.state
    told = {one.items[0].text: (one.status, one.reason) for one in state.inputs}  # type: ignore[union-attr]
    assert told == {"odd": ("rejected", "Say it otherwise."), "good": ("shown", None)}
    assert sorted(seen) == ["go", "good", "odd"]
    assert read_user_texts(agent) == ["go", "good"]
    assert len([one for one in results if one.input_id is not None and isinstance(one.output, AskAgain)]) == 1
    stored = RunState.from_string(agent, state.to_string())
    assert stored.inputs == state.inputs
    kinds = [[type(event).__name__ for _, event in one.events()] for one in (stored, state)]
    assert kinds[0] == kinds[1]
    assert await replay_elsewhere(state.records, agent) == state.records


@pytest.mark.scenario("PE-03")
async def test_the_only_idle_input_may_be_rejected() -> None:
    """Then the run ends with the answer that it had."""
    agent = talk()
    agent.input_guardrails = [make_guard(judging({"odd": AskAgain("No.")}))]
    async with Runner.run_streamed(agent, "go") as stream:
        await stream.add_input("odd", when="idle")
        await stream.finished()
        assert stream.result.final_output == "answer 0"
    assert stream.state.inputs[0].status == "rejected"


async def test_to_ask_for_another_input_of_the_run_itself_trips(run_mode: Run) -> None:
    """Nobody could give it one."""
    agent = talk()
    agent.input_guardrails = [make_guard(judging({"go": AskAgain("Say it otherwise.")}))]
    with pytest.raises(InputGuardrailTripwireTriggered) as caught:
        await run_mode(agent, "go")
    assert caught.value.guardrail_result.output.output_info == "Say it otherwise."


@pytest.mark.scenario("PE-01")
async def test_an_input_that_is_being_judged_cannot_be_withdrawn() -> None:
    """It is, once the judgement is over, or too late."""
    asked, go = anyio.Event(), anyio.Event()

    async def judge(ctx: Any, agent: Any, given: Any) -> Any:
        if given[0].text == "more":
            asked.set()
            await go.wait()
        return PASSED

    agent = talk()
    agent.input_guardrails = [make_guard(judge)]
    async with Runner.run_streamed(agent, "go") as stream:
        name = await stream.add_input("more")
        other = await stream.add_input("other", when="idle")
        await asked.wait()
        with pytest.raises(InputRefusedError, match="judges input 'input_1' now") as refused:
            await stream.withdraw(name)
        assert refused.value.reason == "judged"
        await stream.withdraw(other)
        go.set()
        await stream.finished()
    assert [one.status for one in stream.state.inputs] == ["shown", "withdrawn"]


def make_guard(fn: Any) -> Any:
    """Return a guardrail of the function *fn*."""
    from agentloop import InputGuardrail

    return InputGuardrail(fn, name="g")


# ---------------------------------------------------------------------------------------------- who adds


def waiting_agent(go: anyio.Event) -> Agent[Any, Any]:
    """Return an agent whose first call waits until *go* is set."""

    @tool
    async def wait() -> str:
        """Wait."""
        await go.wait()
        return "waited"

    return script_agent("guide", call("wait", call_id="w"), *[say(f"answer {n}") for n in range(9)], tools=[wait])


@pytest.mark.real_clock
@pytest.mark.scenario("PE-01")
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
async def test_a_thread_and_another_event_loop_add_input(backend: str) -> None:
    """The loop of the thread is of any kind. A thread of anyio's may use the loop of the run."""
    go = anyio.Event()
    agent, got = waiting_agent(go), list[Any]()
    async with Runner.run_streamed(agent, "go", journal=MemoryJournal()) as stream:

        def elsewhere() -> None:
            got.append(anyio.run(stream.add_input, "from a thread", backend=backend))
            with pytest.raises(InputRefusedError):
                anyio.run(stream.withdraw, "unknown", backend=backend)

        thread = threading.Thread(target=elsewhere)
        thread.start()
        await anyio.to_thread.run_sync(thread.join)
        await anyio.to_thread.run_sync(lambda: got.append(anyio.from_thread.run(stream.add_input, "from a worker")))
        go.set()
        await stream.finished()
    assert got == ["input_1", "input_2"]
    check_shown(agent, stream.state.records, ("from a thread", "from a worker"))


@pytest.mark.real_clock
@pytest.mark.scenario("PE-02")
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
async def test_a_sender_on_another_event_loop_is_cancelled_at_once(backend: str) -> None:
    """It doesn't wait for the journal; its input stays in the log, and it may ask again."""
    go, journal, came, left = anyio.Event(), HeldJournal(), threading.Event(), threading.Event()

    class Watch(Instrument):
        def on_record(self, record: r.Record) -> None:
            """Tell the sender that its input is in the log."""
            if isinstance(record, r.InputAdded):
                came.set()

    agent, got = waiting_agent(go), list[str]()
    async with Runner.run_streamed(agent, "go", journal=journal, run_config=RunConfig(instruments=[Watch()])) as stream:
        async for event in stream:
            if isinstance(event, ev.CallStarted):
                break
        journal.held = True

        async def send() -> None:
            async with anyio.create_task_group() as group:
                group.start_soon(partial(stream.add_input, "more", id="m"))
                await anyio.to_thread.run_sync(came.wait)
                group.cancel_scope.cancel()
            left.set()
            got.append(await stream.add_input("more", id="m"))

        sender = threading.Thread(target=partial(anyio.run, send, backend=backend))
        sender.start()
        assert await anyio.to_thread.run_sync(left.wait, 60)
        journal.go.set()
        await anyio.to_thread.run_sync(sender.join)
        go.set()
        await stream.finished()
    assert got == ["m"]
    check_shown(agent, stream.state.records)


@pytest.mark.real_clock
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_when_the_event_loop_of_a_run_has_ended_input_is_refused_or_known(backend: str) -> None:
    """With the errors of a run that is over."""
    agent, held = talk(), list[Any]()

    async def run() -> None:
        async with Runner.run_streamed(agent, "go") as stream:
            held.append(stream)
            await stream.add_input("more", id="m")
            await stream.finished()

    async def ask(stream: Any) -> None:
        assert await stream.add_input("more", id="m") == "m"
        for refusing in (stream.add_input("late"), stream.withdraw("m")):
            with pytest.raises(InputRefusedError) as refused:
                await refusing
            assert refused.value.reason == "over"
        with pytest.raises(UserError, match="the run is not under way: answer by its state"):
            await stream.answer("c", 1)

    anyio.run(run, backend=backend)
    for other in ("asyncio", "trio"):
        anyio.run(ask, held[0], backend=other)


@pytest.mark.real_clock
def test_a_sender_whose_run_loses_its_event_loop_is_told_that_its_input_may_be_lost() -> None:
    """The loop is ended around a run that is a background task: it cancels the sender's part there, too."""
    held, asked = list[Any](), threading.Event()
    told: list[str] = []

    async def hold(begun: asyncio.Event, added: asyncio.Event, journal: HeldJournal) -> None:
        class Watch(Instrument):
            def on_record(self, record: r.Record) -> None:
                """Tell the loop's owner that the input is in the log."""
                if isinstance(record, r.InputAdded):
                    added.set()

        agent = waiting_agent(anyio.Event())
        async with Runner.run_streamed(
            agent, "go", journal=journal, run_config=RunConfig(instruments=[Watch()])
        ) as stream:
            async for event in stream:
                if isinstance(event, ev.CallStarted):
                    break
            held.append(stream)
            journal.held = True
            begun.set()
            await stream.finished()

    async def own() -> None:
        begun, added, journal = asyncio.Event(), asyncio.Event(), HeldJournal()
        holding = asyncio.create_task(hold(begun, added, journal))
        await begun.wait()
        asked.set()
        await added.wait()
        asyncio.get_running_loop().call_later(0, journal.go.set)
        assert not holding.done()

    def send() -> None:
        asked.wait(60)
        try:
            anyio.run(held[0].add_input, "more")
        except JournalError as error:
            told.append(str(error))

    sender = threading.Thread(target=send)
    sender.start()
    asyncio.run(own())
    sender.join()
    assert told == ["the run's event loop has ended, and what was given may be lost"]


@pytest.mark.real_clock
@pytest.mark.scenario("PE-09")
async def test_many_inputs_of_many_tasks_and_threads_are_in_the_log_in_the_order_of_their_acknowledgements() -> None:
    """Each of them is shown once."""
    go = anyio.Event()
    agent, got = waiting_agent(go), list[str]()
    journal = MemoryJournal()
    async with Runner.run_streamed(agent, "go", journal=journal) as stream:

        async def add_ten(sender: int) -> None:
            for number in range(10):
                got.append(await stream.add_input(f"{sender}.{number}"))

        async def add_ten_elsewhere(sender: int) -> list[str]:
            return [await stream.add_input(f"{sender}.{number}") for number in range(10)]

        others: list[list[str]] = []
        async with anyio.create_task_group() as group:
            for sender in range(40):
                group.start_soon(add_ten, sender)
            for sender in range(40, 50):
                group.start_soon(
                    anyio.to_thread.run_sync, lambda sender=sender: others.append(anyio.run(add_ten_elsewhere, sender))
                )
        go.set()
        async for _ in stream:
            pass
        records = stream.state.records
    names = [one.id for one in records if isinstance(one, r.InputAdded)]
    assert names == [f"input_{number}" for number in range(1, 501)]
    assert got == [name for name in names if name in set(got)]
    for mine in others:
        assert mine == [name for name in names if name in set(mine)]
    assert sorted([*got, *(name for mine in others for name in mine)]) == sorted(names)
    texts = read_user_texts(agent)
    assert sorted(texts) == sorted(["go", *(f"{sender}.{number}" for sender in range(50) for number in range(10))])


# ---------------------------------------------------------------------------------------------- durability


@pytest.mark.scenario("PE-02")
@pytest.mark.parametrize("fails", [False, True])
async def test_input_is_acknowledged_when_it_is_durable(fails: bool) -> None:
    """Not before; if the journal fails, the sender knows that it may be lost."""
    go, journal = anyio.Event(), HeldJournal(fails)
    agent, got = waiting_agent(go), list[str]()
    with pytest.raises(JournalError) if fails else nullcontext():
        async with Runner.run_streamed(agent, "go", journal=journal) as stream, anyio.create_task_group() as group:
            async for event in stream:
                if isinstance(event, ev.CallStarted):
                    break
            journal.held = True

            async def add() -> None:
                try:
                    got.append(await stream.add_input("more"))
                except JournalError as error:
                    got.append(type(error).__name__)

            group.start_soon(add)
            await anyio.wait_all_tasks_blocked()
            assert got == []
            assert stream.state.inputs[0].status == "waiting"
            journal.go.set()
            go.set()
            await stream.finished()
    assert got == (["JournalError"] if fails else ["input_1"])


@pytest.mark.scenario("PE-02")
async def test_a_sender_that_is_cancelled_holds_nobody_up() -> None:
    """Its input stays in the log, and the next sender gets its answer."""
    go, journal = anyio.Event(), HeldJournal()
    agent = waiting_agent(go)
    async with Runner.run_streamed(agent, "go", journal=journal) as stream:
        async for event in stream:
            if isinstance(event, ev.CallStarted):
                break
        journal.held = True
        async with anyio.create_task_group() as group:
            group.start_soon(stream.add_input, "first")
            await anyio.wait_all_tasks_blocked()
            group.cancel_scope.cancel()
        got: list[str] = []

        async def add() -> None:
            got.append(await stream.add_input("second"))

        async with anyio.create_task_group() as group:
            group.start_soon(add)
            await anyio.wait_all_tasks_blocked()
            journal.go.set()
        assert got == ["input_2"]
        go.set()
        await stream.finished()
    check_shown(agent, stream.state.records, ("first", "second"))


@pytest.mark.scenario("PE-01", "PE-02")
@pytest.mark.parametrize("when", ["turn", "idle"])
async def test_input_survives_a_crash_at_any_record(when: Any) -> None:
    """A log that breaks off anywhere behind the input shows it once when it is resumed, and never twice."""
    agent = talk()
    async with Runner.run_streamed(agent, "go") as stream:
        await stream.add_input("more", when=when)
        await stream.finished()
    records = stream.state.records
    first = next(place for place, one in enumerate(records) if isinstance(one, r.InputAdded)) + 1
    for cut in range(first, len(records)):
        again = talk()
        again.model = ScriptedModel([script_again] * 20)
        state = RunState.from_string(again, RunState(again, records[:cut]).to_string())
        done = await Runner.run(again, state)
        assert [one.status for one in done.to_state().inputs] == ["shown"]
        check_history(done.to_input_list())
        assert describe(done.to_input_list()).count("user:more") == 1
        assert all(read_user_texts(again, n).count("more") <= 1 for n in range(len(read_requests(again))))


def script_again(request: Any) -> Any:
    """Answer by the number of the turn, as `talk` does."""
    steps = [call("look", call_id="a"), [call("look", call_id="b"), call("look", call_id="c")]]
    return steps[request.turn - 1] if request.turn < 3 else say(f"answer {request.turn - 3}")


def test_refusals_of_the_model_are_errors_without_input() -> None:
    """The other half of `test_each_end_continues_with_the_input`."""
    agent = script_agent("guide", respond(AssistantMessage((Refusal("I won't."),))))
    with pytest.raises(ModelRefusalError):
        Runner.run_sync(agent, "go")
