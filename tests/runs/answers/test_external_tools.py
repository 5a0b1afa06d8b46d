"""Calls that the application answers: they start, wait, pause the run, and are answered live or by the state."""

from contextlib import nullcontext
from typing import Any

import anyio
import anyio.to_thread
import pytest
from kit.agents import Run, make_agent, script_agent
from kit.results import check_history, count_records, find_outcome, find_records, read_shown_outputs, read_waiting
from kit.resuming import HeldJournal

from agentloop import Agent, ExternalTool, Runner, RunState, StateError, ToolContext, UserError, ask_user, tool
from agentloop import events as ev
from agentloop import records as r
from agentloop.exceptions import JournalError, UserTypeError, UserValueError
from agentloop.guardrails import Allow, RejectContent, tool_output_guardrail
from agentloop.items import ApprovalRequest, CallToAnswer
from agentloop.journal import MemoryJournal
from agentloop.testing import call, replay, say

ROOM = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}}, "required": ["n"]}


def make_room(**options: Any) -> Any:
    """Return the external tool `room`, whose answers are `{"n": 3}`."""
    schema = {"type": "object", "properties": {"floor": {"type": "integer"}}, "required": ["floor"]}
    return ExternalTool("room", "Ask for the room.", schema, returns=ROOM, **options)


def make_asking(*more: Any, tools: Any = (), **options: Any) -> Agent[Any, Any]:
    """Return an agent that calls `room` as c1, and *more* beside it."""
    return make_agent([make_room(**options), *tools], [call("room", {"floor": 2}, "c1"), *more])


def add_free(ran: list[str]) -> Any:
    @tool
    async def free() -> str:
        """Run at once."""
        ran.append("free")
        return "free ran"

    return free


@pytest.mark.scenario("PE-04")
async def test_a_run_pauses_for_an_answer_and_continues_with_it(run_mode: Run) -> None:
    """The call has started; its sibling's output is released; the interruption tells what an answer must be."""
    ran: list[str] = []
    agent = make_asking(call("free", {}, "c2"), tools=[add_free(ran)])
    result = await run_mode(agent, "go")
    assert ran == ["free"]
    (waiting,) = result.interruptions
    assert isinstance(waiting, CallToAnswer)
    assert (waiting.call.name, waiting.agent, dict(waiting.returns), waiting.expires_at) == (
        "room",
        "guide",
        ROOM,
        None,
    )
    assert [item.call_id for item in result.new_items if type(item).__name__ == "ToolOutput"] == ["c2"]
    state = RunState.from_string(agent, result.to_state().to_string())
    assert state.interruptions == result.interruptions
    state.answer(waiting, {"n": 7}, by="ada")
    assert state.interruptions == ()
    ended = await run_mode(agent, state)
    assert ended.final_output == "done"
    assert read_shown_outputs(agent) == {"c1": '{"n": 7}', "c2": "free ran"}
    assert (count_records(ended, r.CallStarted, "c1"), ran) == (1, ["free"])
    assert find_outcome(ended, "c1").status == "succeeded"
    check_history(ended.to_input_list())


async def test_a_state_without_an_answer_pauses_again(run_mode: Run) -> None:
    """Nothing starts anew, and no second question is asked."""
    agent = make_asking()
    state = (await run_mode(agent, "go")).to_state()
    again = await run_mode(agent, state)
    assert again.interruptions == state.interruptions
    assert (count_records(again, r.CallStarted, "c1"), count_records(again, r.AnswerRequested, "c1")) == (1, 1)


@pytest.mark.scenario("PE-04")
async def test_an_answer_while_siblings_run_saves_the_pause() -> None:
    """The stream shows the question at once, and the run goes on with the answer when the sibling has ended."""
    answered = anyio.Event()

    @tool
    async def slow() -> str:
        """Wait for the answer."""
        await answered.wait()
        return "slow ran"

    agent = make_asking(call("slow", {}, "c2"), tools=[slow])
    async with Runner.run_streamed(agent, "go") as stream:
        async for event in stream:
            if isinstance(event, ev.AnswerRequested):
                assert event.request.call.call_id == "c1"
                with pytest.raises(UserValueError, match=r"the answer to call 'c1' of tool 'room' doesn't fit: \$\.n"):
                    await stream.answer("c1", {"n": 0})
                await stream.answer(event.request, {"n": 1})
                with pytest.raises(StateError, match="no call 'c1' waits for an answer: it was answered"):
                    await stream.answer("c1", {"n": 2})
                answered.set()
    assert stream.result.final_output == "done"
    assert read_shown_outputs(agent) == {"c1": '{"n": 1}', "c2": "slow ran"}
    with pytest.raises(UserError, match="not under way: answer by its state"):
        await stream.answer("c1", {"n": 2})


@pytest.mark.scenario("PE-02", "PE-04")
@pytest.mark.parametrize("fails", [False, True])
async def test_an_answer_is_acknowledged_when_it_is_durable(fails: bool) -> None:
    """Not before: a process that is killed then loses none that was acknowledged."""
    answered, journal = anyio.Event(), HeldJournal(fails)

    @tool
    async def slow() -> str:
        """Wait for the answer."""
        await answered.wait()
        return "slow ran"

    agent, got = make_asking(call("slow", {}, "c2"), tools=[slow]), list[str]()
    with pytest.raises(JournalError) if fails else nullcontext():
        async with Runner.run_streamed(agent, "go", journal=journal) as stream, anyio.create_task_group() as group:
            async for event in stream:
                if isinstance(event, ev.AnswerRequested):
                    break
            await anyio.wait_all_tasks_blocked()
            journal.held = True

            async def give() -> None:
                try:
                    await stream.answer("c1", {"n": 1})
                except JournalError:
                    got.append("may be lost")
                else:
                    got.append("durable")
                    stored = await RunState.from_journal(agent, journal)
                    assert any(isinstance(record, r.CallAnswered) for record in stored.records)

            group.start_soon(give)
            await anyio.wait_all_tasks_blocked()
            assert got == []
            with pytest.raises(StateError, match="it was answered"):
                await stream.answer("c1", {"n": 2})
            journal.go.set()
            await anyio.wait_all_tasks_blocked()
            answered.set()
            await stream.finished()
    assert got == (["may be lost"] if fails else ["durable"])


@pytest.mark.real_clock
@pytest.mark.scenario("PE-04", "PE-09")
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
async def test_a_thread_answers_by_an_event_loop_of_its_own(backend: str) -> None:
    """The answer is appended on the run's loop; what is refused there is refused here."""
    answered, journal = anyio.Event(), MemoryJournal()

    @tool
    async def slow() -> str:
        """Wait for the answer."""
        await answered.wait()
        return "slow ran"

    agent = make_asking(call("slow", {}, "c2"), tools=[slow])
    stream = Runner.run_streamed(agent, "go", journal=journal)
    with pytest.raises(UserError, match="not under way"):
        await stream.answer("c1", {"n": 1})
    async with stream:
        async for event in stream:
            if isinstance(event, ev.AnswerRequested):

                def elsewhere() -> None:
                    with pytest.raises(UserValueError, match="doesn't fit"):
                        anyio.run(stream.answer, "c1", {"n": 0}, backend=backend)
                    anyio.run(stream.answer, "c1", {"n": 1}, backend=backend)
                    with pytest.raises(StateError, match="it was answered"):
                        anyio.run(stream.answer, "c1", {"n": 2}, backend=backend)

                await anyio.to_thread.run_sync(elsewhere)
                stored = await RunState.from_journal(agent, journal)
                assert sum(isinstance(record, r.CallAnswered) for record in stored.records) == 1
                answered.set()
    assert read_shown_outputs(agent) == {"c1": '{"n": 1}', "c2": "slow ran"}


@pytest.mark.scenario("PE-04")
async def test_an_answer_counts_once_and_has_to_fit(run_mode: Run) -> None:
    """A second answer is refused by name, an unknown call and a misfit too; after a misfit the call is still open."""
    agent = make_asking()
    state = (await run_mode(agent, "go")).to_state()
    before = len(state.records)
    for value, message in (
        ({"n": "7"}, r"doesn't fit: \$\.n: expected integer"),
        ({}, r"doesn't fit: \$: 'n' is missing"),
        (None, r"doesn't fit: \$: expected object"),
        ({1, 2}, "it has no JSON form"),
        ({"n": float("nan")}, "it has no JSON form"),
    ):
        with pytest.raises(UserError, match=message):
            state.answer("c1", value)
    with pytest.raises(StateError, match="no call 'c9' waits for an answer"):
        state.answer("c9", {"n": 1})
    with pytest.raises(UserTypeError, match="call: expected an interruption or a call id, got 3"):
        state.answer(3, {"n": 1})  # type: ignore[arg-type]
    with pytest.raises(UserValueError, match="expected a value or an error, got both"):
        state.answer("c1", {"n": 1}, error="no")
    with pytest.raises(UserTypeError, match="by"):
        state.answer("c1", {"n": 1}, by=3)  # type: ignore[arg-type]
    assert len(state.records) == before
    state.answer("c1", {"n": 7}, by="ada")
    with pytest.raises(StateError, match="no call 'c1' waits for an answer: it was answered by 'ada'"):
        state.answer("c1", {"n": 8})
    assert (await run_mode(agent, state)).final_output == "done"
    assert read_shown_outputs(agent) == {"c1": '{"n": 7}'}


@pytest.mark.parametrize("behavior", ["tell_model", "raise"])
async def test_an_answer_may_be_an_error(run_mode: Run, behavior: Any) -> None:
    """The model is told the words, or the run fails, as the tool says of errors."""
    agent = make_asking(failure_error_function=behavior)
    state = (await run_mode(agent, "go")).to_state()
    state.answer("c1", error="Nobody is at the desk.")
    if behavior == "raise":
        with pytest.raises(Exception, match="Nobody is at the desk"):
            await run_mode(agent, state)
        return
    assert (await run_mode(agent, state)).final_output == "done"
    assert "Nobody is at the desk." in str(read_shown_outputs(agent)["c1"])


async def test_an_answer_passes_the_output_guardrails_and_bounds(run_mode: Run) -> None:
    """They see it when the run continues, as any output."""

    @tool_output_guardrail
    async def judge(data: Any) -> Any:
        return RejectContent("not that room") if "13" in str(data.output) else Allow()

    agent = make_asking(tool_output_guardrails=[judge])
    state = (await run_mode(agent, "go")).to_state()
    state.answer("c1", {"n": 13})
    await run_mode(agent, state)
    assert read_shown_outputs(agent) == {"c1": "not that room"}


async def test_a_call_to_answer_is_approved_first(run_mode: Run) -> None:
    """It waits for the verdict, then for the answer; each way refuses what is the other's."""
    agent = make_asking(needs_approval=True)
    state = (await run_mode(agent, "go")).to_state()
    (asked,) = state.interruptions
    assert isinstance(asked, ApprovalRequest)
    for given in (asked, "c1"):
        with pytest.raises(StateError, match="waits for a verdict"):
            state.answer(given, {"n": 1})
    state.approve(asked)
    state = (await run_mode(agent, state)).to_state()
    (waiting,) = state.interruptions
    assert isinstance(waiting, CallToAnswer)
    with pytest.raises(StateError, match="waits for its answer, not for a verdict"):
        state.approve(waiting)
    with pytest.raises(StateError, match="no call 'c1' waits for a verdict"):
        state.reject("c1")
    state.answer("c1", {"n": 1})
    assert (await run_mode(agent, state)).final_output == "done"


async def test_a_rejected_call_asks_nothing(run_mode: Run) -> None:
    """An external tool is judged as any other."""
    agent = make_asking(needs_approval=True)
    state = (await run_mode(agent, "go")).to_state()
    state.reject("c1", message="no")
    ended = await run_mode(agent, state)
    assert (ended.final_output, count_records(ended, r.AnswerRequested)) == ("done", 0)


async def test_arguments_that_do_not_fit_are_answered_at_once(run_mode: Run) -> None:
    """The schema of an external tool is checked before anybody is asked."""
    agent = make_agent([make_room()], call("room", {"floor": "two"}, "c1"))
    ended = await run_mode(agent, "go")
    assert (ended.final_output, count_records(ended, r.AnswerRequested)) == ("done", 0)
    assert "$.floor: expected integer" in str(read_shown_outputs(agent)["c1"])


@pytest.mark.parametrize("late", [False, True])
async def test_the_timeout_is_the_tools(run_mode: Run, late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A late answer is refused, and a run that continues after the time tells the model of the timeout."""
    agent = make_asking(timeout=3600.0)
    state = (await run_mode(agent, "go")).to_state()
    (waiting,) = state.interruptions
    assert isinstance(waiting, CallToAnswer)
    assert waiting.expires_at is not None
    if not late:
        assert (await run_mode(agent, state)).interruptions == (waiting,)
        return
    records = [move_back(record, 3600.0) for record in state.records]
    state = RunState(agent, records)
    with pytest.raises(StateError, match="no call 'c1' waits for an answer: its time, 3600 seconds, has passed"):
        state.answer("c1", {"n": 1})
    ended = await run_mode(agent, state)
    assert ended.final_output == "done"
    assert find_outcome(ended, "c1").status == "timed_out"
    assert [record.late for record in find_records(ended, r.CallAnswered)] == [True]
    with pytest.raises(StateError, match="nobody has answered in time"):
        RunState(agent, ended.records[:-6]).answer("c1", {"n": 1})


def move_back(record: r.Record, seconds: float) -> r.Record:
    """Return *record* as if it were older."""
    if isinstance(record, r.AnswerRequested):
        assert record.expires_at is not None
        record = record.replace(expires_at=record.expires_at - seconds)
    return record.replace(at=record.at - seconds)


@pytest.mark.scenario("PE-04")
async def test_a_nested_run_waits_for_its_answer(run_mode: Run) -> None:
    """The interruption has the path of the nested run, and the answer reaches it there."""
    inner = make_asking()
    agent = Agent("outer", model=script_agent("x", call("ask", {"input": "?"}, "o1"), say("all")).model)
    agent.tools.append(inner.as_tool("ask", "Ask."))
    state = (await run_mode(agent, "go")).to_state()
    (waiting,) = state.interruptions
    assert (waiting.path, waiting.call.call_id) == (("o1",), "c1")
    state = RunState.from_string(agent, state.to_string())
    state.answer("c1", {"n": 4})
    assert (await run_mode(agent, state)).final_output == "all"
    assert read_shown_outputs(inner) == {"c1": '{"n": 4}'}


async def test_a_call_that_waits_can_be_cancelled_while_siblings_run() -> None:
    """It settles as cancelled, and takes no answer any more."""
    gone = anyio.Event()

    @tool
    async def slow() -> str:
        """Wait."""
        await gone.wait()
        return "slow ran"

    agent = make_asking(call("slow", {}, "c2"), tools=[slow])
    async with Runner.run_streamed(agent, "go") as stream:
        async for event in stream:
            if isinstance(event, ev.AnswerRequested):
                assert stream.cancel_call("c1", "too late")
                with pytest.raises(StateError, match="it was cancelled"):
                    await stream.answer("c1", {"n": 1})
                gone.set()
    if stream.result.interruptions:  # the request is remembered until the run continues
        state = stream.result.to_state()
        with pytest.raises(StateError, match="it was cancelled"):
            state.answer("c1", {"n": 1})


async def test_a_paused_run_says_what_to_do_instead_of_a_cancel() -> None:
    """Nothing of it runs: the answer may be an error."""
    agent = make_asking()
    async with Runner.run_streamed(agent, "go") as stream:
        await stream.finished()
    with pytest.raises(StateError, match="waits for its answer, and the run has paused"):
        stream.cancel_call("c1")


@pytest.mark.scenario("PE-04")
async def test_a_journal_holds_the_question_and_the_answer(run_mode: Run) -> None:
    """The run continues from its journal, with the answer of another process in it."""
    agent = make_asking()
    journal = MemoryJournal()
    await run_mode(agent, "go", journal=journal)
    state = await RunState.from_journal(agent, journal)
    state.answer("c1", {"n": 9})
    ended = await run_mode(agent, state, journal=journal)
    assert ended.final_output == "done"
    assert read_shown_outputs(agent) == {"c1": '{"n": 9}'}


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_function_without_a_body_is_an_external_tool(run_mode: Run, is_async: bool) -> None:
    """Its annotations say what it takes and what the answer is."""
    if is_async:

        @tool(external=True)
        async def pick(question: str, most: int = 3) -> list[int]:
            """Ask the user to pick numbers."""
            ...

    else:

        @tool(external=True)
        def pick(question: str, most: int = 3) -> list[int]:  # type: ignore[empty-body]
            """Ask the user to pick numbers."""

    agent = make_agent([pick], call("pick", {"question": "Which?", "most": 2}, "c1"))
    state = (await run_mode(agent, "go")).to_state()
    (waiting,) = state.interruptions
    assert isinstance(waiting, CallToAnswer)
    assert dict(waiting.returns) == {"type": "array", "items": {"type": "integer"}}
    with pytest.raises(UserValueError, match=r"\$\[1\]: expected integer"):
        state.answer("c1", [1, "2"])
    state.answer("c1", [1, 2])
    await run_mode(agent, state)
    assert read_shown_outputs(agent) == {"c1": "[1, 2]"}


def test_an_external_function_must_do_nothing() -> None:
    """What never runs is refused where it is decorated."""

    def acts(a: int) -> int:
        """Act."""
        return a + 1

    def silent(a: int):  # type: ignore[no-untyped-def]
        """Say nothing of the answer."""

    with pytest.raises(UserTypeError, match="external=True is for a function without a body"):
        tool(acts, external=True)
    with pytest.raises(UserTypeError, match="annotate the answer"):
        tool(silent, external=True)
    with pytest.raises(UserTypeError, match="external: expected a bool"):
        tool(acts, external=1)  # type: ignore[call-overload]
    with pytest.raises(UserTypeError, match="has no body: the application answers its calls"):
        anyio.run(make_room().run_body, {"floor": 1})


@pytest.mark.parametrize(
    ("returns", "message"),
    [
        ({"not": {}}, "answers can't be checked against 'not' at \\$"),
        ({"type": "money"}, r"returns: \$\.type isn't one that answers can be checked against"),
        ({"$ref": "#/$defs/x"}, r"\$\.\$ref isn't one"),
        ({"properties": {"a": 3}}, r"as a mapping, got int at \$\.properties\.a"),
        ("text", "expected a JSON schema, as a mapping, got str"),
    ],
)
def test_a_schema_that_cannot_be_checked_is_refused(returns: Any, message: str) -> None:
    """Where the tool is made, and not when an answer comes."""
    with pytest.raises(UserError, match=message):
        ExternalTool("x", "X.", {}, returns=returns)


def test_options_that_have_no_meaning_are_refused() -> None:
    """No body runs that could be idle."""
    with pytest.raises(UserValueError, match="idle_timeout: the application answers the calls"):
        make_room(idle_timeout=3)
    with pytest.raises(UserError, match="capacty"):
        make_room(capacty=3)


async def test_a_secret_answer_is_withheld(run_mode: Run) -> None:
    """Neither the log's repr nor its stored form shows it; the model gets it."""
    agent = make_asking(secret_output=True, secret=["floor"])
    state = (await run_mode(agent, "go")).to_state()
    state.answer("c1", {"n": 84129053771})
    assert "84129053771" not in repr(state.records)
    assert "84129053771" not in state.to_string()
    ended = await run_mode(agent, state)
    assert read_shown_outputs(agent) == {"c1": '{"n": 84129053771}'}
    assert "84129053771" not in ended.to_state().to_string()


async def test_waiting_calls_are_read_as_others(run_mode: Run) -> None:
    """The kit's reader of interruptions knows both kinds."""
    assert read_waiting(await run_mode(make_asking(), "go")) == ["c1"]


@pytest.mark.scenario("PE-04")
async def test_ask_user_is_a_question_with_choices(run_mode: Run) -> None:
    """The answer is one of the options, or any text without them."""
    agent = make_agent([ask_user(options=["small", "large"])], call("ask_user", {"question": "Which?"}, "c1"))
    state = (await run_mode(agent, "go")).to_state()
    with pytest.raises(UserValueError, match="expected one of 'small', 'large'"):
        state.answer("c1", "middle")
    state.answer("c1", "large")
    await run_mode(agent, state)
    assert read_shown_outputs(agent) == {"c1": "large"}
    with pytest.raises(UserTypeError, match="options: expected texts"):
        ask_user(options=[])


class Desk:
    """A source of tools."""

    name = "desk"

    def __init__(self, *tools: Any) -> None:
        self._tools = tools

    async def tools(self, ctx: Any, agent: Any) -> Any:
        """Give the tools."""
        return self._tools


@pytest.mark.scenario("PE-05")
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("sourced", [False, True])
def test_a_strict_replay_takes_the_answers_from_the_log(backend: Any, late: bool, sourced: bool) -> None:
    """Of a paused run: the replayed log is equal, and nobody is asked. The tool may be one of a source."""

    def make() -> Agent[Any, Any]:
        agent = make_asking(call("free", {}, "c2"), tools=[add_free([])], timeout=3600.0)
        if sourced:
            agent.tools, agent.toolsets = agent.tools[1:], [Desk(agent.tools[0])]
        return agent

    agent = make()
    state = Runner.run_sync(agent, "go").to_state()
    if late:
        state = RunState(agent, [move_back(record, 3600.0) for record in state.records])
    else:
        state.answer("c1", {"n": 2}, by="ada")
    ended = Runner.run_sync(agent, state)
    for one in ("asyncio", "trio"):
        replayed = replay(ended.to_state(), make(), backend=one)
        assert find_records(replayed, r.CallAnswered) == find_records(ended, r.CallAnswered)
        assert replayed.result.final_output == "done"


@pytest.mark.scenario("PE-05")
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_strict_replay_takes_a_live_answer_from_the_log(backend: Any) -> None:
    """It stands between the records of the siblings."""
    asked = "asked"

    @tool
    async def slow(ctx: ToolContext[Any]) -> str:
        """Wait for the answer."""
        await ctx.context[asked].wait()
        return "slow ran"

    agent = make_asking(call("slow", {}, "c2"), tools=[slow])

    async def run() -> Any:
        answered = anyio.Event()
        async with Runner.run_streamed(agent, "go", context={asked: answered}) as stream:
            async for event in stream:
                if isinstance(event, ev.AnswerRequested):
                    await stream.answer(event.request, {"n": 1})
                    answered.set()
        return stream.result

    ended = anyio.run(run, backend=backend)
    replayed = replay(ended.to_state(), make_asking(call("slow", {}, "c2"), tools=[slow]))
    assert replayed.result.final_output == "done"
    assert count_records(replayed, r.CallAnswered) == 1


@pytest.mark.scenario("PE-04")
async def test_an_answer_by_the_journal_alone(run_mode: Run) -> None:
    """Another process reads the journal, answers, and appends; the run continues from the journal."""
    agent = make_asking()
    journal = MemoryJournal()
    await run_mode(agent, "go", journal=journal)
    state = await RunState.from_journal(agent, journal)
    state.answer("c1", {"n": 5})
    await state.append_to(journal)
    ended = await run_mode(agent, await RunState.from_journal(agent, journal), journal=journal)
    assert (ended.final_output, read_shown_outputs(agent)) == ("done", {"c1": '{"n": 5}'})


async def test_a_crash_between_the_start_and_the_question_asks_then(run_mode: Run) -> None:
    """Nothing is in doubt, as nothing runs here: the call isn't started again, and asks once."""
    agent = make_asking()
    result = await run_mode(agent, "go")
    until = next(n for n, record in enumerate(result.records) if isinstance(record, r.AnswerRequested))
    again = await run_mode(agent, RunState(agent, result.records[:until]))
    assert len(again.interruptions) == 1
    assert (count_records(again, r.CallStarted, "c1"), count_records(again, r.AnswerRequested, "c1")) == (1, 1)


async def test_a_call_that_waited_when_its_run_was_cancelled_waits_on() -> None:
    """The run ends early while a sibling works; resumed, the question stands, and its answer counts."""
    started, forever = anyio.Event(), anyio.Event()

    @tool(in_doubt="rerun")
    async def slow() -> str:
        """Wait, in the first run segment only."""
        if not started.is_set():
            started.set()
            await forever.wait()
        return "slow ran"

    agent = make_asking(call("slow", {}, "c2"), tools=[slow])
    async with Runner.run_streamed(agent, "go") as stream:
        async for _ in stream:
            if started.is_set():
                break
        await started.wait()
        stream.cancel()
        await stream.finished()
    state = (await Runner.run(agent, stream.state)).to_state()
    (waiting,) = state.interruptions
    state.answer(waiting, {"n": 1})
    ended = await Runner.run(agent, state)
    assert read_shown_outputs(agent) == {"c1": '{"n": 1}', "c2": "slow ran"}
    assert count_records(ended, r.AnswerRequested, "c1") == 1


async def test_withheld_arguments_are_no_obstacle_to_an_answer(run_mode: Run) -> None:
    """The stored state has digests of them only, and the answer needs none."""
    agent = make_asking(secret=["floor"])
    state = RunState.from_string(agent, (await run_mode(agent, "go")).to_state().to_string())
    state.answer("c1", {"n": 6})
    ended = await run_mode(agent, state)
    assert find_outcome(ended, "c1").status == "succeeded"


class Reversing:
    """A codec for tests, which hides nothing from those who know it."""

    def seal(self, data: bytes) -> bytes:
        return data[::-1]

    def open(self, sealed: bytes) -> bytes:
        return sealed[::-1]


def make_secret(depth: int) -> tuple[Agent[Any, Any], Agent[Any, Any]]:
    """Return an agent, and the one that asks for a secret answer: itself, or the agent of its tool."""
    asking = make_asking(secret_output=True)
    if not depth:
        return asking, asking
    return make_agent([asking.as_tool("ask", "Ask.")], call("ask", {"input": "?"}, "o1")), asking


@pytest.mark.scenario("PE-04")
@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("given", [{"value": {"n": 84129053771}}, {"error": "no 84129053771"}])
async def test_a_secret_answer_that_was_not_kept_is_no_answer(run_mode: Run, depth: int, given: dict[str, Any]) -> None:
    """A state without a codec has a digest, which the model isn't shown; with the codec, it is shown the answer."""
    agent, asking = make_secret(depth)
    state = (await run_mode(agent, "go")).to_state()
    state.answer("c1", **given)
    kept = RunState.from_string(agent, state.to_string())
    with pytest.raises(StateError, match="call 'c1' of tool 'room' needs its answer, which is secret"):
        await run_mode(agent, kept)
    state = RunState.from_string(agent, state.to_string(codec=Reversing()), codec=Reversing())
    assert (await run_mode(agent, state)).final_output == "done"
    assert "84129053771" in str(read_shown_outputs(asking)["c1"])


@pytest.mark.scenario("PE-04")
@pytest.mark.parametrize("depth", [0, 1])
async def test_a_journal_without_a_codec_takes_no_secret_answer(run_mode: Run, depth: int) -> None:
    """It would keep a digest. The state has the answer still, and a run that continues it needs no codec."""
    agent, asking = make_secret(depth)
    journal = MemoryJournal()
    await run_mode(agent, "go", journal=journal)
    before = list(await journal.read())
    state = await RunState.from_journal(agent, journal)
    state.answer("c1", {"n": 84129053771})
    with pytest.raises(StateError, match="answer to call 'c1' is secret, and this journal would keep only a digest"):
        await state.append_to(journal)
    assert list(await journal.read()) == before
    assert (await run_mode(agent, state, journal=journal)).final_output == "done"
    assert read_shown_outputs(asking) == {"c1": '{"n": 84129053771}'}
    sealing = MemoryJournal(codec=Reversing())
    agent, asking = make_secret(depth)
    await run_mode(agent, "go", journal=sealing)
    state = await RunState.from_journal(agent, sealing)
    state.answer("c1", {"n": 84129053771})
    await state.append_to(sealing)
    assert (await run_mode(agent, await RunState.from_journal(agent, sealing), journal=sealing)).final_output == "done"
    assert read_shown_outputs(asking) == {"c1": '{"n": 84129053771}'}


async def test_a_call_that_was_cancelled_needs_no_secret_answer() -> None:
    """The nested run goes on without it, although its digest is all that was kept."""
    agent, _ = make_secret(1)
    state = (await Runner.run(agent, "go")).to_state()
    state.answer("c1", {"n": 1})
    records = list(RunState.from_string(agent, state.to_string()).records)
    records.append(r.CancelRequested(("o1",), 1, records[-1].at, "c1", None, "enough"))
    ended = await Runner.run(agent, RunState(agent, records))
    assert ended.final_output == "done"
    assert {one.call_id: one.outcome.status for one in find_records(ended, r.CallSettled)} == {
        "c1": "cancelled",
        "o1": "succeeded",
    }


async def test_a_misfit_of_a_secret_answer_does_not_repeat_its_keys(run_mode: Run) -> None:
    """They may be as secret as its values."""
    agent = make_agent(
        [ExternalTool("room", "Ask.", {}, returns={**ROOM, "additionalProperties": False}, secret_output=True)],
        call("room", {}, "c1"),
    )
    state = (await run_mode(agent, "go")).to_state()
    with pytest.raises(UserValueError, match=r"doesn't fit: .*a member isn't expected") as caught:
        state.answer("c1", {"n": 1, "hush": 2})
    assert "hush" not in str(caught.value)
