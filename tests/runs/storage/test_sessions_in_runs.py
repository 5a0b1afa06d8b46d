"""Sessions in runs: what is read at the start, and what is written, turn by turn."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.agents import Run, configure_run, fine, make_agent
from kit.results import find_records, read_requests
from kit.watching import Watch

from agentloop import (
    Agent,
    GuardrailFunctionOutput,
    MaxTurnsExceeded,
    ModelRetrySettings,
    ModelSettings,
    RunConfig,
    Runner,
    RunTimeoutError,
    SessionSettings,
    ToolCallError,
    ToolContext,
    UserError,
    handoff,
    input_guardrail,
    output_guardrail,
    tool,
)
from agentloop import records as r
from agentloop._engine.session_writer import _not_there
from agentloop.exceptions import GuardrailTripwireTriggered, ModelTransportError
from agentloop.items import (
    ITEM_TYPES,
    AssistantMessage,
    HandoffCall,
    HandoffOutput,
    Item,
    Reasoning,
    ToolCall,
    ToolOutput,
    UserMessage,
)
from agentloop.journal import MemoryJournal
from agentloop.sessions import MemorySession, SQLiteSession
from agentloop.testing import ScriptedModel, WorldRun, call, fail, kill_sweep, reason, say


def text_of(items: Sequence[Any]) -> list[str]:
    """Return each item in a word: texts as they are, the id of calls, `=id` for outputs."""
    words = []
    for item in items:
        match item:
            case ToolOutput() | HandoffOutput():
                words.append(f"={item.call_id}")
            case ToolCall() | HandoffCall():
                words.append(item.call_id)
            case Reasoning():
                words.append("(hm)")
            case _:
                words.append(item.text)
    return words


async def session_with(*items: Item) -> MemorySession:
    """Return a session that holds *items*."""
    session = MemorySession()
    await session.add_items(items)
    return session


class Counting(MemorySession):
    """A session that keeps what it was given, batch by batch."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[list[str]] = []
        self.limits: list[int | None] = []

    async def add_items(self, items: Sequence[Item]) -> None:
        """Note the batch."""
        await super().add_items(items)
        self.batches.append(text_of(items))

    async def get_items(self, limit: int | None = None) -> list[Item]:
        """Note the limit."""
        self.limits.append(limit)
        return await super().get_items(limit)


# ---------------------------------------------------------------------------------------------- reading


@pytest.mark.scenario("SE-01")
async def test_model_is_shown_history_and_input_and_each_item_is_saved_once(run_mode: Run) -> None:
    """The second of two runs on one session sees the first, and no item is stored twice."""
    session = MemorySession()
    agent = make_agent([fine], call("fine", call_id="c1"), say("one"), say("two"), done=None)
    first = await run_mode(agent, "first", session=session)
    second = await run_mode(agent, "second", session=session)
    assert text_of(read_requests(agent)[2].items) == ["first", "c1", "=c1", "one", "second"]
    assert text_of(await session.get_items()) == ["first", "c1", "=c1", "one", "second", "two"]
    assert text_of(second.input) == ["second"]
    assert text_of(second.new_items) == ["two"]
    assert await session.get_items() == [*first.input, *first.new_items, *second.input, *second.new_items]


@pytest.mark.scenario("SE-02")
async def test_limit_shows_the_latest_items_in_their_order(run_mode: Run) -> None:
    """The run's limit holds, without one all items are shown, and the stored items don't change."""
    history = [UserMessage(str(n)) for n in range(6)]
    for limit, wanted in ((2, ["4", "5", "go"]), (None, [*map(str, range(6)), "go"]), (0, ["go"])):
        session = await session_with(*history)
        agent = make_agent([])
        config = RunConfig(session_settings=SessionSettings(limit=limit))
        await run_mode(agent, "go", session=session, run_config=config)
        assert text_of(read_requests(agent)[0].items) == wanted
        assert len(await session.get_items()) == 8


@pytest.mark.scenario("SE-02")
async def test_session_knows_its_own_limit_where_the_run_has_none(run_mode: Run) -> None:
    """A run without a limit doesn't pass one on."""
    session = Counting()
    await run_mode(make_agent([]), "go", session=session)
    config = RunConfig(session_settings=SessionSettings(limit=3))
    await run_mode(make_agent([]), "go", session=session, run_config=config)
    assert session.limits == [None, 3]


@pytest.mark.scenario("SE-06", "LX-86")
@pytest.mark.parametrize("limit", range(9))
async def test_limit_never_splits_a_call_from_its_output(run_mode: Run, limit: int) -> None:
    """An output whose call is beyond the limit isn't shown, for tools and for handoffs."""
    session = await session_with(
        UserMessage("a"),
        HandoffCall("h", "transfer_to_b", "{}"),
        HandoffOutput("h", "Handed over.", "a", "b"),
        ToolCall("c", "fine", "{}"),
        ToolCall("d", "fine", "{}"),
        ToolOutput("c", "1"),
        ToolOutput("d", "2"),
        AssistantMessage("b"),
    )
    agent = make_agent([])
    config = RunConfig(session_settings=SessionSettings(limit=limit))
    await run_mode(agent, "go", session=session, run_config=config)
    shown = read_requests(agent)[0].items
    calls = {item.call_id for item in shown if isinstance(item, ToolCall | HandoffCall)}
    outputs = {item.call_id for item in shown if isinstance(item, ToolOutput | HandoffOutput)}
    assert calls == outputs
    wanted = {0: [], 1: ["b"], 2: ["b"], 3: ["b"], 4: ["d", "=d", "b"], 5: ["c", "d", "=c", "=d", "b"]}
    wanted |= {6: wanted[5], 7: ["h", "=h", *wanted[5]], 8: ["a", "h", "=h", *wanted[5]]}
    assert text_of(shown) == [*wanted[limit], "go"]


@pytest.mark.scenario("SE-06")
async def test_items_of_the_caller_are_never_pruned(run_mode: Run) -> None:
    """The run passes the caller's items to the model unchanged, also an output without its call."""
    given = [ToolCall("x", "fine", "{}"), UserMessage("go"), ToolOutput("y", "1")]
    session = await session_with(UserMessage("a"), AssistantMessage("b"))
    agent = make_agent([])
    config = RunConfig(session_settings=SessionSettings(limit=1))
    await run_mode(agent, given, session=session, run_config=config)
    assert text_of(read_requests(agent)[0].items) == ["b", "x", "go", "=y"]


@pytest.mark.scenario("SE-11")
async def test_of_two_stored_outputs_of_a_call_the_latest_is_shown(run_mode: Run) -> None:
    """The model receives only the later of two stored outputs of one call, in the place of the first."""
    session = await session_with(
        UserMessage("a"),
        ToolCall("c", "fine", "{}"),
        ToolOutput("c", "old"),
        AssistantMessage("b"),
        ToolOutput("c", "new"),
    )
    agent = make_agent([])
    await run_mode(agent, "go", session=session)
    shown = read_requests(agent)[0].items
    assert text_of(shown) == ["a", "c", "=c", "b", "go"]
    assert shown[2] == ToolOutput("c", "new")


@pytest.mark.scenario("SE-11")
async def test_call_precedes_its_output_in_storage(run_mode: Run) -> None:
    """The stored order has each call before its output, in any order of settling, with a handoff beside the calls."""
    last = anyio.Event()

    @tool
    async def slow() -> str:
        await last.wait()
        return "slow"

    @tool
    async def quick() -> str:
        last.set()
        return "quick"

    session = MemorySession()
    target = Agent("target", model=ScriptedModel([say("the end")]))
    pieces = [
        reason("why"),
        call("slow", call_id="c1"),
        call("transfer_to_target", call_id="h1"),
        call("quick", call_id="c2"),
    ]
    agent = make_agent([slow, quick], pieces, done=None, handoffs=[handoff(target)])
    result = await run_mode(agent, "go", session=session)
    stored = await session.get_items()
    words = text_of(stored)
    assert len(words) == len(set(words)) == 9
    for call_id in ("c1", "c2", "h1"):
        assert words.index(call_id) < words.index(f"={call_id}")
    assert words.index("=c1") < words.index("=c2")
    assert sorted(map(repr, stored)) == sorted(map(repr, [*result.input, *result.new_items]))


# ---------------------------------------------------------------------------------------------- the callback


@pytest.mark.scenario("SE-03")
async def test_callback_decides_what_is_shown_and_only_new_items_are_stored(run_mode: Run) -> None:
    """The callback may reorder, filter, repeat and copy history; the store gets the run's own items once."""
    old, older = UserMessage("old"), UserMessage("older")
    session = await session_with(older, old)

    async def merge(history: list[Item], new: list[Item]) -> list[Item]:
        assert (text_of(history), text_of(new)) == (["older", "old"], ["go"])
        return [old, UserMessage("older"), *new, old]

    agent = make_agent([])
    await run_mode(agent, "go", session=session, run_config=RunConfig(session_input_callback=merge))
    assert text_of(read_requests(agent)[0].items) == ["old", "older", "go", "old"]
    assert text_of(await session.get_items()) == ["older", "old", "go", "done"]


@pytest.mark.scenario("SE-03")
async def test_new_items_that_the_callback_drops_are_neither_sent_nor_stored(run_mode: Run) -> None:
    """The callback keeps one of two new items, and only that one is sent and stored."""
    session = await session_with(UserMessage("old"))

    def merge(history: list[Item], new: list[Item]) -> list[Item]:
        return [*history, new[1]]

    agent = make_agent([])
    given = [UserMessage("secret"), UserMessage("go")]
    result = await run_mode(agent, given, session=session, run_config=RunConfig(session_input_callback=merge))
    assert text_of(read_requests(agent)[0].items) == ["old", "go"]
    assert text_of(await session.get_items()) == ["old", "go", "done"]
    assert text_of(result.input) == ["go"]


@pytest.mark.scenario("SE-03")
async def test_new_item_equal_to_a_stored_one_is_stored_again(run_mode: Run) -> None:
    """A user may say the same twice: both items are stored, in any order that the callback gives them."""
    session = await session_with(UserMessage("go"))

    def merge(history: list[Item], new: list[Item]) -> list[Item]:
        return [*new, *history]

    agent = make_agent([])
    await run_mode(agent, "go", session=session, run_config=RunConfig(session_input_callback=merge))
    assert text_of(await session.get_items()) == ["go", "go", "done"]


@pytest.mark.scenario("SE-03")
@pytest.mark.parametrize("copied", [True, False], ids=["a copy", "the item itself"])
async def test_callback_that_drops_the_input_may_keep_an_equal_item_of_the_history(run_mode: Run, copied: bool) -> None:
    """What is shown is the session's own item, which is stored already."""
    session = await session_with(UserMessage("go"), AssistantMessage("yes?"))

    def merge(history: list[Item], new: list[Item]) -> list[Item]:
        return [UserMessage("go"), *history[1:]] if copied else history

    result = await run_mode(make_agent([]), "go", session=session, run_config=RunConfig(session_input_callback=merge))
    assert text_of(await session.get_items()) == ["go", "yes?", "done"]
    assert result.input == ()


async def test_callback_that_gives_no_list_is_a_users_error(run_mode: Run) -> None:
    """The model isn't asked, and nothing but the input is stored."""
    agent = make_agent([])
    config = RunConfig(session_input_callback=lambda history, new: None)
    with pytest.raises(UserError, match="session_input_callback"):
        await run_mode(agent, "go", session=MemorySession(), run_config=config)
    assert read_requests(agent) == []


# ---------------------------------------------------------------------------------------------- writing


@pytest.mark.scenario("SE-04")
async def test_each_turn_is_saved_when_it_is_over(run_mode: Run) -> None:
    """The turn before is stored when the model is asked again."""
    session = Counting()
    stored: list[list[str]] = []

    def looking(step: Any) -> Any:
        def answer(request: Any) -> Any:
            stored.append(text_of(session._items))
            return step

        return answer

    agent = make_agent(
        [fine],
        looking(call("fine", call_id="c1")),
        looking(call("fine", call_id="c2")),
        looking(say("done")),
        done=None,
    )
    await run_mode(agent, "go", session=session)
    assert stored == [[], ["go", "c1", "=c1"], ["go", "c1", "=c1", "c2", "=c2"]]
    assert session.batches == [["go", "c1", "=c1"], ["c2", "=c2"], ["done"]]


@pytest.mark.scenario("SE-04", "SF-11")
async def test_failing_turn_leaves_earlier_turns_and_its_own_complete_pairs(run_mode: Run) -> None:
    """A cancelled sibling has an output that says so. The failed call has none: it is left out with its reasoning."""
    broke = anyio.Event()

    @tool(failure_error_function=None)
    async def broken() -> str:
        await broke.wait()
        raise ValueError("no luck")

    @tool
    async def before(ctx: ToolContext[Any]) -> str:
        return "before"

    @tool
    async def never() -> str:
        await anyio.sleep(60)
        return "never"

    class Watching(Watch):
        def on_record(self, record: r.Record) -> None:
            super().on_record(record)
            if isinstance(record, r.CallSettled) and record.call_id == "d1":
                broke.set()

    session = MemorySession()
    pieces = [
        reason("a"),
        call("before", call_id="d1"),
        reason("b"),
        call("never", call_id="d2"),
        reason("c"),
        call("broken", call_id="d3"),
    ]
    agent = make_agent([fine, broken, before, never], call("fine", call_id="c1"), pieces, done=None)
    with pytest.raises(ToolCallError, match="no luck") as raised:
        await run_mode(agent, "go", session=session, run_config=configure_run(Watching()))
    saved = await session.get_items()
    assert text_of(saved) == ["go", "c1", "=c1", "(hm)", "d1", "(hm)", "d2", "=d1", "=d2"]
    assert saved[-1] == ToolOutput(
        "d2", "Tool 'never' was cancelled because another call failed; it did not fail itself.", is_error=True
    )
    assert raised.value.run_data is not None
    assert list(raised.value.run_data.new_items) == saved[1:]


@pytest.mark.slow
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("stage", ["input", "output", "tool"])
def test_nothing_refused_goes_into_the_session_of_a_run_that_is_cancelled(stage: str, streamed: bool) -> None:
    """The session stays clean at every step of the cancellation, also in the step after a guardrail has tripped."""

    async def trips(ctx: Any, agent: Any, given: Any) -> GuardrailFunctionOutput:
        await anyio.sleep(0.01)
        return GuardrailFunctionOutput(None, True)

    async def slow(ctx: Any, agent: Any, given: Any) -> GuardrailFunctionOutput:
        try:
            await anyio.sleep(1)
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.01)
        return GuardrailFunctionOutput(None, False)

    judges = [output_guardrail(trips), output_guardrail(slow)]
    guards: dict[str, Any] = {
        "input": {"input_guardrails": [input_guardrail(trips)]},
        "output": {"output_guardrails": judges},
        "tool": {"output_guardrails": judges, "tool_use_behavior": "stop_on_first_tool"},
    }
    ended: set[Any] = set()

    def kept(run: WorldRun) -> None:
        if any(isinstance(one, r.GuardrailSettled) for one in run.records):
            ended.add(run.records[-1].status)  # type: ignore[union-attr]
            assert text_of(run.session._items) == (["go"] if stage != "tool" else ["go", "c1", "=c1"])
            assert not any(isinstance(one, ToolOutput) and one.output == "fine" for one in run.session._items)

    script = [say("refused")] if stage == "output" else [[say("Let me see."), call("fine", call_id="c1")], say("done")]
    agent: Agent[Any, Any] = Agent("guide", tools=[fine], **guards[stage])
    kill_sweep(
        agent, script, kept, options={"session": MemorySession}, allow=(GuardrailTripwireTriggered,), streamed=streamed
    )
    assert ended == {"failed", "cancelled"}


@pytest.mark.scenario("SE-04")
async def test_failing_model_leaves_input_and_earlier_turns(run_mode: Run) -> None:
    """The session keeps the input and the earlier turns of the run that failed."""
    session = MemorySession()
    agent = make_agent([fine], call("fine", call_id="c1"), fail(ModelTransportError("gone")), done=None)
    with pytest.raises(ModelTransportError):
        await run_mode(agent, "go", session=session)
    assert text_of(await session.get_items()) == ["go", "c1", "=c1"]


@pytest.mark.scenario("SE-07")
async def test_retry_of_the_model_stores_nothing_twice(run_mode: Run) -> None:
    """Failed attempts leave no trace in the session."""
    session = Counting()
    settings = ModelSettings(retry=ModelRetrySettings(3, initial_delay=0.0))
    gone = ModelTransportError("busy", status=503)
    agent = make_agent([fine], fail(gone), call("fine", call_id="c1"), fail(gone), fail(gone), model_settings=settings)
    await run_mode(agent, "go", session=session)
    assert len(read_requests(agent)) == 5
    assert session.batches == [["go", "c1", "=c1"], ["done"]]
    assert text_of(read_requests(agent)[4].items) == ["go", "c1", "=c1"]


@pytest.mark.scenario("SE-08")
async def test_filter_of_the_models_input_does_not_change_what_is_stored(run_mode: Run) -> None:
    """The model sees the filtered list, the session keeps the true one."""

    def shorten(data: Any) -> Any:
        return data.replace(input=(UserMessage("filtered"), *data.input[-1:]))

    session = await session_with(UserMessage("old"))
    agent = make_agent([fine], call("fine", call_id="c1"))
    await run_mode(agent, "go", session=session, run_config=RunConfig(call_model_input_filter=shorten))
    assert text_of(read_requests(agent)[1].items) == ["filtered", "=c1"]
    assert text_of(await session.get_items()) == ["old", "go", "c1", "=c1", "done"]


@pytest.mark.scenario("SE-10")
async def test_only_plain_items_are_stored(run_mode: Run) -> None:
    """The session gets no item of a nested run, no ids of runs, and no names of agents beyond handoffs."""
    session = MemorySession()
    inner = Agent("inner", model=ScriptedModel([call("fine", call_id="n1"), say("dug")]), tools=[fine])
    agent = make_agent([inner.as_tool()], call("inner", {"input": "x"}, call_id="c1"))
    result = await run_mode(agent, "go", session=session)
    stored = await session.get_items()
    assert all(isinstance(item, ITEM_TYPES) for item in stored)
    assert stored == [
        UserMessage("go"),
        ToolCall("c1", "inner", '{"input": "x"}'),
        ToolOutput("c1", "dug"),
        AssistantMessage("done"),
    ]
    [started, _] = find_records(result, r.RunStarted)
    assert started.run_id not in repr(stored)


@pytest.mark.scenario("SE-12")
@pytest.mark.real_clock
async def test_first_writes_of_many_runs_at_once_lose_nothing(tmp_path: Path) -> None:
    """Eight runs open the same new file; each run's items are all there, its batches side by side."""

    async def one(number: int) -> None:
        async with SQLiteSession(tmp_path / "s.db", "shared") as session:
            agent = make_agent([fine], call("fine", call_id=f"c{number}"), done=f"done {number}")
            await Runner.run(agent, f"go {number}", session=session)

    async with anyio.create_task_group() as group:
        for number in range(8):
            group.start_soon(one, number)
    async with SQLiteSession(tmp_path / "s.db", "shared") as session:
        words = text_of(await session.get_items())
    assert len(words) == 8 * 4
    for number in range(8):
        place = words.index(f"go {number}")
        assert words[place : place + 3] == [f"go {number}", f"c{number}", f"=c{number}"]
        assert words.index(f"done {number}") > place


@pytest.mark.scenario("LX-80")
async def test_earlier_turns_of_a_session_do_not_count(run_mode: Run) -> None:
    """Ten turns are in the session; a new run has its full `max_turns`."""
    session = MemorySession()
    steps = [call("fine", call_id=f"a{n}") for n in range(9)]
    await run_mode(make_agent([fine], *steps), "go", session=session, max_turns=10)
    agent = make_agent([fine], *[call("fine", call_id=f"b{n}") for n in range(4)], done=None)
    with pytest.raises(MaxTurnsExceeded):
        await run_mode(agent, "go", session=session, max_turns=3)
    assert len(read_requests(agent)) == 3
    assert len(read_requests(agent)[0].items) == 21


async def test_call_ids_of_a_session_may_come_again(run_mode: Run) -> None:
    """Identity is a matter of one run: a new one may use an id of an earlier run for another call."""
    session = MemorySession()

    @tool
    async def echo(n: int) -> str:
        return str(n)

    await run_mode(make_agent([echo], call("echo", {"n": 1}, call_id="c1")), "go", session=session)
    agent = make_agent([echo], call("echo", {"n": 2}, call_id="c1"))
    result = await run_mode(agent, "go", session=session)
    assert [item.output for item in result.new_items if isinstance(item, ToolOutput)] == ["2"]
    agent = make_agent([])
    await run_mode(agent, "go", session=session)
    shown = read_requests(agent)[0].items
    assert [item.output for item in shown if isinstance(item, ToolOutput)] == ["1", "2"]


@pytest.mark.scenario("DE-12")
async def test_failing_save_fails_the_run_and_keeps_its_records(run_mode: Run) -> None:
    """The error is the session's own; nothing more is written."""

    class Broken(Counting):
        async def add_items(self, items: Sequence[Item]) -> None:
            self.batches.append(text_of(items))
            raise OSError("disk full")

    session, watch = Broken(), Watch()
    agent = make_agent([fine], call("fine", call_id="c1"))
    with pytest.raises(OSError, match="disk full"):
        await run_mode(agent, "go", session=session, run_config=configure_run(watch))
    assert session.batches == [["go", "c1", "=c1"]]
    assert watch.end == "failed"
    assert watch.endings() == {"c1": ("succeeded", None)}


async def test_failing_read_fails_the_run_before_the_model_is_asked(run_mode: Run) -> None:
    """The error is the session's own."""

    class Broken(MemorySession):
        async def get_items(self, limit: int | None = None) -> list[Item]:
            raise OSError("unreadable")

    agent = make_agent([])
    with pytest.raises(OSError, match="unreadable"):
        await run_mode(agent, "go", session=Broken())
    assert read_requests(agent) == []


@pytest.mark.scenario("DE-12")
async def test_save_under_way_is_finished_when_the_run_is_cancelled(run_mode: Run) -> None:
    """A write that has begun comes to its end; one that hangs is cut at the cleanup deadline, and the log says so."""
    for hangs in (False, True):
        writing = anyio.Event()

        class Slow(MemorySession):
            async def add_items(self, items: Sequence[Item]) -> None:
                writing.set()  # noqa: B023
                await anyio.sleep(60 if hangs else 0.01)  # noqa: B023
                await super().add_items(items)

        session, watch = Slow(), Watch()
        agent = make_agent([fine], call("fine", call_id="c1"))
        config = configure_run(watch, cleanup_grace=0.05 if hangs else 30)
        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                with anyio.CancelScope() as scope:

                    async def cancel(writing: anyio.Event, scope: anyio.CancelScope) -> None:
                        await writing.wait()
                        scope.cancel()

                    group.start_soon(cancel, writing, scope)
                    await run_mode(agent, "go", session=session, run_config=config)
        assert scope.cancelled_caught
        assert watch.end == "cancelled"
        assert text_of(await session.get_items()) == ([] if hangs else ["go", "c1", "=c1"])
        assert [record.section for record in watch.of(r.CleanupCut)] == (["session save"] if hangs else [])


async def test_save_that_hangs_cannot_outlast_the_runs_timeout_for_long(run_mode: Run) -> None:
    """The run's deadline and the cleanup grace bound the save."""

    class Hanging(MemorySession):
        async def add_items(self, items: Sequence[Item]) -> None:
            await anyio.sleep(60)

    agent = make_agent([fine], call("fine", call_id="c1"))
    config = attrs.evolve(configure_run(cleanup_grace=0.05), timeout=0.05)
    with anyio.fail_after(60), pytest.raises(RunTimeoutError):
        await run_mode(agent, "go", session=Hanging(), run_config=config)
    await anyio.lowlevel.checkpoint()


@pytest.mark.anyio
async def test_cancelled_run_saves_its_session_once_its_journal_has_caught_up() -> None:
    """The session is saved, and no failure reported, when the caller cancels during the journal's last write."""

    class Slow(MemoryJournal):
        async def append(self, records: Sequence[bytes]) -> None:
            await anyio.sleep(0.01)
            await super().append(records)

    session, watch, started = MemorySession(), Watch(), anyio.Event()

    @tool
    async def waits() -> str:
        started.set()
        await anyio.sleep_forever()
        return "never"

    agent = Agent("a", tools=[waits], model=ScriptedModel([call("waits")]))
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as group:
            config = RunConfig(instruments=(watch,))
            group.start_soon(lambda: Runner.run(agent, "go", session=session, journal=Slow(), run_config=config))
            await started.wait()
            scope.cancel()
    assert text_of(await session.get_items())[0] == "go"
    ended = watch.records[-1]
    assert isinstance(ended, r.RunEnded)
    assert ended.status == "cancelled"
    assert ended.details is None


def naively_left(items: list[Item], tail: list[Item]) -> list[Item]:
    """Return what is left of *items* without the longest end of *tail* that is made of them, tried one by one."""
    for written in range(len(tail), 0, -1):
        left = list(items)
        try:
            for item in tail[-written:]:
                left.remove(item)
        except ValueError:
            continue
        return left
    return items


@pytest.mark.scenario("RP-13")
@given(st.lists(st.integers(0, 3), max_size=8), st.lists(st.integers(0, 4), max_size=8))
def test_what_a_session_may_have_got_is_found_in_one_pass(items: list[int], tail: list[int]) -> None:
    """The one pass finds what a search for each length would find, also where equal items come several times."""
    given_items: list[Item] = [UserMessage(str(number)) for number in items]
    written: list[Item] = [UserMessage(str(number)) for number in tail]
    assert _not_there(given_items, written) == naively_left(given_items, written)
