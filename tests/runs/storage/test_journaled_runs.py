"""Runs with a journal: what it holds, who waits for it, and what becomes of a run whose journal fails."""

import datetime
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import attrs
import msgspec
import pytest
from kit.agents import Run, configure_run, look, make_agent, script_turns
from kit.ending import Backend, advance_clock, cancel_natively_when, cancel_when, check_duration
from kit.results import find_outcome, find_records, read_requests, read_statuses, read_turns
from kit.resuming import BatchJournal, make_journal, restore_approved
from kit.watching import Watch

from agentloop import Agent, AgentLoopError, RunConfig, Runner, RunState, StateError, ToolContext, tool
from agentloop import records as r
from agentloop._common.json_bytes import encode
from agentloop._storage.record_codec import record_to_json
from agentloop.agents._graph import AgentGraph
from agentloop.exceptions import JournalError, UserTypeError
from agentloop.journal import FileJournal, MemoryJournal, read_journal
from agentloop.testing import ScriptedModel, call, say


@tool(needs_approval=True)
async def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


def two_turns(**fields: Any) -> Agent[Any, Any]:
    """Return an agent that looks, pays, and is done."""
    steps = [call("look", call_id="l"), call("pay", {"amount": 1}, call_id="p"), say("done")]
    return Agent("guide", model=script_turns(*steps), tools=[look, pay], **fields)


def lines_of(records: Sequence[Any]) -> list[bytes]:
    """Return records in the form they have in a journal."""
    return [encode(record_to_json(record), None) for record in records]


def kinds(lines: Sequence[bytes]) -> list[str]:
    """Return the kinds of the records of a journal."""
    return [json.loads(line)["kind"] for line in lines]


# ---------------------------------------------------------------------------------------------- what it holds


async def test_a_journal_holds_the_records_of_the_run_and_of_those_that_go_on(run_mode: Run) -> None:
    """The records follow one header, in their order, each once; verdicts come with the entry that carries them."""
    journal = MemoryJournal()
    agent = two_turns()
    first = await run_mode(agent, "go", journal=journal)
    head, *lines = await journal.read()
    assert lines == lines_of(first.records)
    done = await run_mode(agent, restore_approved(first), journal=journal)
    again, *lines = await journal.read()
    assert lines == lines_of(done.records)
    assert again == head
    assert kinds(lines).count("verdict_given") == 1
    told = json.loads(head)
    [started] = find_records(done, r.RunStarted)
    assert told["kind"] == "header"
    assert told["schema"] == RunState.schema_version
    assert told["run_id"] == started.run_id
    assert told["graph"]["root"] == "guide"
    assert set(told["graph"]["agents"]["guide"]["tools"]) == {"look", "pay"}


async def test_the_header_describes_the_agent_as_it_is_when_the_run_begins(run_mode: Run) -> None:
    """What an earlier run's journal said of the agent holds no longer than the agent's parts."""

    async def describe(agent: Agent[Any, Any]) -> Any:
        agent.model = ScriptedModel([say("done")])
        journal = MemoryJournal()
        await run_mode(agent, "go", journal=journal)
        head, *_ = await journal.read()
        assert json.loads(head)["graph"] == AgentGraph(agent).describe()
        return json.loads(head)["graph"]["agents"]

    agent: Agent[Any, Any] = Agent("guide", tools=[look])
    assert await describe(agent) == await describe(agent)
    agent.tools = [look, pay]
    assert set((await describe(agent))["guide"]["tools"]) == {"look", "pay"}
    agent.name = "other"
    assert set(await describe(agent)) == {"other"}
    agent.handoffs = [Agent("next")]
    assert set(await describe(agent)) == {"other", "next"}
    agent.handoffs = []
    assert set(await describe(agent)) == {"other"}
    inner: Agent[Any, Any] = Agent("inner")
    agent.tools = [inner.as_tool()]
    assert set(await describe(agent)) == {"other", "inner"}
    inner.tools = [look]
    assert set((await describe(agent))["inner"]["tools"]) == {"look"}


@pytest.mark.real_clock
async def test_a_journal_in_a_file_gives_the_run_back(run_mode: Run, tmp_path: Path) -> None:
    """Another journal object on the same file reads the run, as another process would."""
    agent = two_turns()
    async with FileJournal(tmp_path / "run.jsonl") as journal:
        first = await run_mode(agent, "go", journal=journal)
    async with FileJournal(tmp_path / "run.jsonl") as journal:
        state = await RunState.from_journal(agent, journal)
        assert state == first.to_state()
        state.approve("p")
        done = await run_mode(agent, state, journal=journal)
        assert await RunState.from_journal(agent, journal) == done.to_state()
    assert done.final_output == "done"


async def test_resume_goes_on_with_what_the_journal_holds(run_mode: Run) -> None:
    """The run was stopped in between; the other arguments of `resume` are given to the run."""
    from agentloop import MaxTurnsExceeded

    journal = MemoryJournal()
    agent = make_agent([look], call("look", call_id="a"), call("look", call_id="b"))
    with pytest.raises(MaxTurnsExceeded):
        await run_mode(agent, "go", journal=journal, max_turns=1)
    watch = Watch()
    done = await Runner.resume(agent, journal, max_turns=5, run_config=configure_run(watch))
    assert done.final_output == "done"
    assert watch.records[0] == find_records(done, r.RunResumed)[0]
    assert read_turns(done.records) == [1, 2, 3]
    assert (await Runner.resume(agent, journal)).records == done.records
    with pytest.raises(StateError, match="completed"):
        await Runner.run(agent, await RunState.from_journal(agent, journal))


async def test_a_nested_runs_records_are_in_the_same_journal(run_mode: Run) -> None:
    """The nested run's records are in their order among the outer one's."""
    inner = Agent("inner", model=script_turns(call("look", call_id="l"), say("in")), tools=[look])
    outer = Agent("outer", model=script_turns(call("sub", {"input": "x"}, call_id="s"), say("out")))
    outer.tools = [inner.as_tool("sub", "Sub.")]
    journal = MemoryJournal()
    result = await run_mode(outer, "go", journal=journal)
    _, *lines = await journal.read()
    assert lines == lines_of(result.records)
    assert sum(json.loads(line)["path"] == ["s"] for line in lines) > 5


async def test_text_that_is_no_unicode_is_kept_in_journal_and_state(run_mode: Run) -> None:
    """Halves of surrogate pairs, from a file name that a tool read or from the input, are kept."""

    @tool
    async def name() -> str:
        """Name."""
        return "file \udc80"

    journal = MemoryJournal()
    agent = make_agent([name], call("name", call_id="n"))
    result = await run_mode(agent, "go \ud800", journal=journal)
    assert find_outcome(result, "n").output == "file \udc80"
    assert await RunState.from_journal(agent, journal) == result.to_state()


@pytest.mark.parametrize("given", [object(), "path", []])
async def test_what_is_no_journal_is_refused(run_mode: Run, given: Any) -> None:
    """The value is refused before any model is asked."""
    agent = two_turns()
    with pytest.raises(UserTypeError, match="journal"):
        await run_mode(agent, "go", journal=given)
    assert read_requests(agent) == []


# ---------------------------------------------------------------------------------------------- the gate


class Held:
    """Holds a journal's write of the first batch with a record of *kind* until `go` is set."""

    def __init__(self, kind: str, count: int = 1) -> None:
        self.kind, self.count = kind, count
        self.reached, self.go = anyio.Event(), anyio.Event()

    async def __call__(self, records: Sequence[bytes]) -> None:
        """Hold the *count*-th such batch."""
        if self.kind not in kinds(records) or self.reached.is_set():
            return
        self.count -= 1
        if self.count == 0:
            self.reached.set()
            await self.go.wait()


async def test_a_body_starts_only_when_its_start_is_durable(run_mode: Run) -> None:
    """Hooks and body wait for the journal, however long it takes, and then run."""
    started: list[str] = []

    @tool
    async def work(n: int) -> str:
        """Work."""
        started.append(f"{n}")
        return "worked"

    agent = make_agent([work], [call("work", {"n": 1}, call_id="a"), call("work", {"n": 2}, call_id="b")])
    held = Held("call_started")
    journal = BatchJournal(held)
    async with anyio.create_task_group() as group:

        async def watch() -> None:
            await held.reached.wait()
            await anyio.wait_all_tasks_blocked()
            assert started == []
            assert "call_started" not in kinds(await journal.read())
            held.go.set()

        group.start_soon(watch)
        result = await run_mode(agent, "go", journal=journal)
    assert sorted(started) == ["1", "2"]
    assert read_statuses(result) == ["succeeded"] * 2


async def test_every_start_is_durable_before_its_body_in_every_run_of_the_tree(run_mode: Run) -> None:
    """The bodies themselves look into the journal and find their starts."""
    seen: list[bool] = []

    @tool
    async def work(n: int) -> str:
        """Work."""
        starts = [json.loads(line) for batch in journal.batches for line in batch]
        seen.append(any(one["kind"] == "call_started" and one["call_id"] == f"w{n}" for one in starts))
        return "worked"

    inner = Agent("inner", model=script_turns([call("work", {"n": n}, call_id=f"w{n}") for n in (1, 2)], say("in")))
    outer = Agent("outer", tools=[work, inner.as_tool("sub", "Sub.")])
    inner.tools = [work]
    outer.model = script_turns(
        [call("sub", {"input": "x"}, call_id="s"), call("work", {"n": 3}, call_id="w3")],
        call("work", {"n": 4}, call_id="w4"),
        say("done"),
    )
    journal = BatchJournal()
    await run_mode(outer, "go", journal=journal, run_config=configure_run(max_function_tool_concurrency=2))
    assert seen == [True] * 4


@pytest.mark.parametrize("kind", ["call_settled", "batch_ended"])
async def test_the_next_model_call_waits_for_all_earlier_records(run_mode: Run, kind: str) -> None:
    """Everything the model sees is durable before the model sees it."""
    agent = make_agent([look], call("look", call_id="l"))
    held = Held(kind)
    async with anyio.create_task_group() as group:

        async def watch() -> None:
            await held.reached.wait()
            await anyio.wait_all_tasks_blocked()
            assert len(read_requests(agent)) == 1
            held.go.set()

        group.start_soon(watch)
        await run_mode(agent, "go", journal=BatchJournal(held))
    assert len(read_requests(agent)) == 2


async def test_the_first_model_call_waits_for_the_runs_beginning(run_mode: Run) -> None:
    """A run asks no model before its first record is written, because without it the run could not be found again."""
    agent = make_agent([])
    held = Held("run_started")
    async with anyio.create_task_group() as group:

        async def watch() -> None:
            await held.reached.wait()
            await anyio.wait_all_tasks_blocked()
            assert read_requests(agent) == []
            held.go.set()

        group.start_soon(watch)
        await run_mode(agent, "go", journal=BatchJournal(held))
    assert len(read_requests(agent)) == 1


async def test_the_runs_return_waits_for_its_last_record(run_mode: Run) -> None:
    """A result that is returned is in the journal."""
    agent = make_agent([look], call("look", call_id="l"))
    held = Held("run_ended")
    journal = BatchJournal(held)
    returned: list[Any] = []
    async with anyio.create_task_group() as group:

        async def run() -> None:
            returned.append(await run_mode(agent, "go", journal=journal))

        group.start_soon(run)
        await held.reached.wait()
        await anyio.wait_all_tasks_blocked()
        assert returned == []
        held.go.set()
    assert kinds(await journal.read())[-1] == "run_ended"


async def test_nothing_else_waits_for_the_journal(run_mode: Run) -> None:
    """While a write is held the call settles and is reported; the records that gather meanwhile are one batch."""
    agent = make_agent([look], call("look", call_id="l"))
    held, watch = Held("call_settled"), Watch()
    journal = BatchJournal(held)
    async with anyio.create_task_group() as group:

        async def look_on() -> None:
            await held.reached.wait()
            await anyio.wait_all_tasks_blocked()
            assert watch.endings() == {"l": ("succeeded", None)}
            assert watch.of(r.BatchEnded, r.TurnStarted)[-1].turn == 2
            held.go.set()

        group.start_soon(look_on)
        await run_mode(agent, "go", journal=journal, run_config=configure_run(watch))
    place = next(place for place, batch in enumerate(journal.batches) if "call_settled" in kinds(batch))
    gathered = [kind for batch in journal.batches[place : place + 2] for kind in kinds(batch)]
    assert gathered[:3] == ["call_settled", "batch_ended", "turn_started"]


# ---------------------------------------------------------------------------------------------- failing journals


class Failing(BatchJournal):
    """A journal that has room for *room* records: the batch with one more fails."""

    def __init__(self, room: int, error: Exception) -> None:
        super().__init__()
        self.room = room
        self.error = error

    async def append(self, records: Sequence[bytes]) -> None:
        """Fail, or keep them."""
        self.room -= len(records)
        if self.room < 0:
            await anyio.lowlevel.checkpoint()
            raise self.error
        await super().append(records)


def make_two_turns(started: list[str]) -> Agent[Any, Any]:
    """Return an agent of two turns with two calls each, whose bodies are noted in *started*."""

    @tool
    async def work(n: int) -> str:
        """Work."""
        started.append(f"w{n}")
        return "worked"

    calls = [[call("work", {"n": n}, call_id=f"w{n}") for n in (2 * turn, 2 * turn + 1)] for turn in range(2)]
    return Agent("guide", model=script_turns(*calls, say("done")), tools=[work])


@pytest.mark.slow
@pytest.mark.parametrize("kind", [OSError, JournalError])
async def test_whatever_write_fails_nothing_starts_after_it(run_mode: Run, kind: type[Exception]) -> None:
    """At each record of a run the error has `run_data`, no body ran without its start, no model without its turn."""

    whole = await run_mode(make_two_turns([]), "go")
    for room in range(1 + len(whole.records)):  # the header is one more
        started: list[str] = []
        error = kind("no space left on the disk")
        journal, agent, watch = Failing(room, error), make_two_turns(started), Watch()
        with pytest.raises(JournalError, match="no space left") as caught:
            await run_mode(agent, "go", journal=journal, run_config=configure_run(watch))
        data = caught.value.run_data
        assert data is not None
        assert list(data.records) == watch.records
        assert error is caught.value or caught.value.__cause__ is error
        written = [json.loads(line) for batch in journal.batches for line in batch]
        durable = {one["call_id"] for one in written if one["kind"] == "call_started"}
        assert set(started) <= durable
        asked = len(read_requests(agent))
        assert asked <= sum(one["kind"] == "turn_started" for one in written)
        # The durable part is a run that can be resumed.
        if written:
            left = await make_journal([line for batch in journal.batches for line in batch])
            if kinds(await left.read())[-1] != "run_ended":
                done = await Runner.resume(make_two_turns([]), left)
                assert done.final_output == "done"


async def test_running_bodies_are_cancelled_when_the_journal_fails(run_mode: Run) -> None:
    """The bodies are cancelled and awaited, and the caller learns that they ended with the run, not by themselves."""
    endings: list[str] = []
    ready = anyio.Event()

    @tool
    async def hold() -> str:
        """Hold."""
        ready.set()
        try:
            await anyio.sleep_forever()
        finally:
            endings.append("cancelled")
        return "never"

    @tool
    async def then() -> str:
        """End when the other one has started."""
        await ready.wait()
        return "ended"

    agent = make_agent([hold, then], [call("hold", call_id="h"), call("then", call_id="t")])

    async def fail_at_the_end_of_a_body(records: Sequence[bytes]) -> None:
        if "call_settled" in kinds(records):
            raise OSError("gone")

    watch = Watch()
    with pytest.raises(JournalError, match="gone") as caught:
        await run_mode(agent, "go", journal=BatchJournal(fail_at_the_end_of_a_body), run_config=configure_run(watch))
    assert endings == ["cancelled"]
    assert watch.endings()["h"] == ("cancelled", "parent")
    assert watch.end == "failed"
    assert caught.value.run_data is not None
    assert len(read_requests(agent)) == 1


async def test_a_journal_that_fails_at_the_very_end_fails_the_run(run_mode: Run) -> None:
    """A result that isn't durable isn't given out as one."""
    agent = make_agent([])

    async def fail_at_the_end(records: Sequence[bytes]) -> None:
        if "run_ended" in kinds(records):
            raise OSError("gone")

    with pytest.raises(JournalError, match="gone") as caught:
        await run_mode(agent, "go", journal=BatchJournal(fail_at_the_end))
    assert caught.value.run_data is not None


async def test_the_runs_own_failure_stays_the_one_when_the_journal_fails_too(run_mode: Run) -> None:
    """The run's own error leaves, and the journal's error is a note on it."""

    async def fail_at_the_end(records: Sequence[bytes]) -> None:
        if "run_ended" in kinds(records):
            raise OSError("gone")

    from agentloop import ModelBehaviorError

    agent = make_agent([], call("nothing", call_id="x"))
    with pytest.raises(ModelBehaviorError) as caught:
        await run_mode(
            agent,
            "go",
            journal=BatchJournal(fail_at_the_end),
            run_config=RunConfig(tool_not_found_behavior="raise"),
        )
    assert any("gone" in note for note in caught.value.__notes__)


# ----------------------------------------------------------------------------------------------- batches


async def test_a_run_writes_once_for_each_gate(run_mode: Run) -> None:
    """Something waits before each model call, before the bodies of a turn, and at the end; little else is a write."""
    journal = BatchJournal()
    done = await run_mode(make_two_turns([]), "go", journal=journal)
    assert sum(map(len, journal.batches)) == 1 + len(done.records)
    # How many passes lie between two records is the backend's to say, and trio shuffles the calls: each start and
    # outcome may be written by itself, but never each record.
    calls = sum(isinstance(record, r.CallSettled) for record in done.records)
    assert 2 * 2 + 2 <= len(journal.batches) <= 2 * 2 + 2 + 2 * calls < len(done.records)


async def test_a_record_that_nothing_waits_for_is_written_meanwhile(run_mode: Run) -> None:
    """A call that has settled is in the journal while another call of its turn still runs: a crash can't lose it."""
    journal = BatchJournal()

    @tool
    async def quick() -> str:
        """Return at once."""
        return "quick"

    @tool
    async def slow() -> str:
        """Wait until the journal holds the other call's outcome."""
        while b"call_settled" not in b"".join(await journal.read()):
            await anyio.lowlevel.checkpoint()
        return "slow"

    agent = make_agent([quick, slow], [call("quick", call_id="q"), call("slow", call_id="s")])
    assert (await run_mode(agent, "go", journal=journal)).final_output == "done"


async def test_a_subclass_that_overrides_read_is_asked_for_its_records(run_mode: Run) -> None:
    """A run begins only if the journal is empty, as the class nearest to the object's own says."""

    class Elsewhere(MemoryJournal):
        async def read(self) -> list[bytes]:
            return [b'{"kind":"header"}']

    with pytest.raises(JournalError, match="holds a run already"):
        await run_mode(make_agent([]), "go", journal=Elsewhere())


# ---------------------------------------------------------------------------------------------- another's journal


async def test_a_journal_of_another_run_is_refused(run_mode: Run) -> None:
    """The journal refuses a fresh run, a state of another run, and a state that is older than the journal."""
    agent = two_turns()
    one, two = MemoryJournal(), MemoryJournal()
    first = await run_mode(agent, "go", journal=one)
    second = await run_mode(agent, "go", journal=two)
    before = await one.read()
    asked = len(read_requests(agent))
    with pytest.raises(JournalError, match="holds a run already"):
        await run_mode(agent, "go", journal=one)
    with pytest.raises(JournalError, match="another run"):
        await run_mode(agent, restore_approved(second), journal=one)
    await run_mode(agent, restore_approved(first), journal=one)
    with pytest.raises(JournalError, match="older"):
        await run_mode(agent, restore_approved(first), journal=one)
    assert len(read_requests(agent)) == asked + 1
    assert (await one.read())[: len(before)] == before
    mixed = await make_journal([before[0], *(await two.read())[1:]])
    with pytest.raises(JournalError, match="another run"):
        await Runner.resume(agent, mixed)


async def test_what_the_state_has_and_the_journal_lacks_is_written_first(run_mode: Run) -> None:
    """A journal that begins with the second entry, or misses some records, holds all of them in the end."""
    agent = two_turns()
    held = MemoryJournal()
    first = await run_mode(agent, "go", journal=held)
    lines = await held.read()
    for count in (0, 1, 2, len(lines) - 3, len(lines)):
        journal = await make_journal(lines[:count])
        done = await run_mode(agent, restore_approved(first), journal=journal)
        head, *rest = await journal.read()
        assert json.loads(head)["kind"] == "header"
        assert rest == lines_of(done.records)
        assert done.final_output == "done"


@pytest.mark.real_clock
async def test_a_second_writer_is_refused(run_mode: Run, tmp_path: Path) -> None:
    """A writer is refused while another object holds the file, or after it wrote to it; no model is asked."""
    agent = two_turns()
    path = tmp_path / "run.jsonl"
    async with FileJournal(path) as mine:
        first = await run_mode(agent, "go", journal=mine)
        asked = len(read_requests(agent))
        async with FileJournal(path) as other:
            with pytest.raises(JournalError, match="another journal object or process"):
                await run_mode(agent, restore_approved(first), journal=other)
    late = FileJournal(path)
    state = await RunState.from_journal(agent, late)
    state.approve("p")
    async with FileJournal(path) as quick:
        await run_mode(agent, restore_approved(first), journal=quick)
    asked_now = len(read_requests(agent))
    with pytest.raises(JournalError):
        await run_mode(agent, state, journal=late)
    await late.aclose()
    assert asked_now == asked + 1
    assert len(read_requests(agent)) == asked_now


async def test_a_run_whose_journal_cannot_be_opened_leaves_its_state_as_it_was() -> None:
    """The segment has no first record, so it has no last one either: the state of the stream can be resumed."""
    agent = two_turns()
    journal = MemoryJournal()
    paused = await Runner.run(agent, "go", journal=journal)
    other = MemoryJournal()
    await Runner.run(two_turns(), "something else", journal=other)
    stream = Runner.run_streamed(agent, restore_approved(paused), journal=other)
    with pytest.raises(JournalError, match="another run"):
        async with stream:
            await stream.finished()
    given = restore_approved(paused)
    assert [type(record) for record in stream.state.records] == [type(record) for record in given.records]
    assert (await Runner.run(agent, stream.state, journal=journal)).status == "completed"


# ---------------------------------------------------------------------------------------------- broken journals


@pytest.mark.parametrize("schema", ["3", "0", None, 1])
async def test_a_journal_of_another_schema_is_refused_with_what_is_supported(schema: Any) -> None:
    """The error says which schema is supported, and nothing runs."""
    agent = two_turns()
    journal = MemoryJournal()
    await Runner.run(agent, "go", journal=journal)
    head, *lines = await journal.read()
    changed = {**json.loads(head), "schema": schema}
    with pytest.raises(StateError, match="supported: 1, 2"):
        await Runner.resume(agent, await make_journal([encode(changed), *lines]))


async def test_a_journal_that_is_empty_or_has_no_header_is_refused() -> None:
    """The error says that the journal is empty, lacks its header, or holds no run."""
    agent = two_turns()
    with pytest.raises(JournalError, match="empty"):
        await Runner.resume(agent, MemoryJournal())
    journal = MemoryJournal()
    await Runner.run(agent, "go", journal=journal)
    lines = await journal.read()
    with pytest.raises(JournalError, match="header"):
        await Runner.resume(agent, await make_journal(lines[1:]))
    with pytest.raises(StateError, match="no run"):
        await Runner.resume(agent, await make_journal(lines[:1]))


@pytest.mark.real_clock
async def test_a_journal_that_was_changed_is_refused(run_mode: Run, tmp_path: Path) -> None:
    """The error names the line, and nothing runs."""
    agent = two_turns()
    path = tmp_path / "run.jsonl"
    async with FileJournal(path) as journal:
        await run_mode(agent, "go", journal=journal)
    asked = len(read_requests(agent))
    good = path.read_bytes()
    path.write_bytes(good.replace(b'"text":"go"', b'"text":"no"'))
    assert path.read_bytes() != good
    async with FileJournal(path) as journal:
        with pytest.raises(JournalError, match="line"):
            await Runner.resume(agent, journal)
    assert len(read_requests(agent)) == asked


async def test_a_journal_that_cannot_be_read_is_a_journal_error() -> None:
    """An error in a journal's `read` becomes a `JournalError`."""

    class Unreadable(MemoryJournal):
        async def read(self) -> list[bytes]:
            raise OSError("no such disk")

    agent = two_turns()
    for use in (lambda: Runner.resume(agent, Unreadable()), lambda: Runner.run(agent, "go", journal=Unreadable())):
        with pytest.raises(JournalError, match="no such disk"):
            await use()
    assert read_requests(agent) == []


# ---------------------------------------------------------------------------------------------- changed definitions


async def test_a_changed_schema_of_a_tool_with_a_pending_call_is_refused(run_mode: Run) -> None:
    """The resume is refused before anything runs or is written."""
    journal = MemoryJournal()
    agent = two_turns()
    await run_mode(agent, "go", journal=journal)
    before = await journal.read()
    changed = two_turns()
    changed.tools[1] = attrs.evolve(pay, params_json_schema={"type": "object", "properties": {}})
    with pytest.raises(StateError, match=r"'p'.*'pay'"):
        await Runner.resume(changed, journal)
    assert await journal.read() == before
    assert read_requests(changed) == []


async def test_other_changes_are_recorded_and_warned_about_once(
    run_mode: Run, caplog: pytest.LogCaptureFixture
) -> None:
    """The changes are recorded in words; an entry with the same changes doesn't repeat them."""
    journal = MemoryJournal()
    await run_mode(two_turns(), "go", journal=journal)

    def build() -> Agent[Any, Any]:
        agent = two_turns()
        extra = attrs.evolve(look, name="listen")
        agent.tools = [attrs.evolve(look, params_json_schema={"type": "object"}), pay, extra]
        return agent

    for entry in (1, 2):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "agentloop"):
            state = await RunState.from_journal(build(), journal)
            if entry == 2:
                state.approve("p")
            result = await run_mode(state.agent, state, journal=journal)
        warned = [record.getMessage() for record in caplog.records]
        changed = find_records(result, r.GraphChanged)
        assert len(changed) == 1
        assert len(warned) == (1 if entry == 1 else 0)
        if entry == 1:
            assert "'look'" in warned[0]
            assert "'listen'" in warned[0]
        assert any("'listen' is new" in change for change in changed[0].changes)
        assert any("'look'" in change and "schema" in change for change in changed[0].changes)
    assert result.final_output == "done"
    assert kinds(await journal.read()).count("graph_changed") == 1


async def test_changes_that_an_earlier_version_has_logged_are_not_repeated(run_mode: Run) -> None:
    """Its record has no definitions, and tells the differences from what the run began with."""
    journal, older = MemoryJournal(), MemoryJournal()
    await run_mode(two_turns(), "go", journal=journal)

    def build() -> Agent[Any, Any]:
        agent = two_turns()
        agent.tools = [*agent.tools, attrs.evolve(look, name="listen")]
        return agent

    state = await RunState.from_journal(build(), journal)
    await run_mode(state.agent, state, journal=journal)
    lines = [msgspec.json.decode(line) for line in await journal.read()]
    assert [line.pop("graph") for line in lines if line.get("kind") == "graph_changed"]
    await older.append([msgspec.json.encode(line) for line in lines])
    state = await RunState.from_journal(build(), older)
    state.approve("p")
    result = await run_mode(state.agent, state, journal=older)
    assert result.final_output == "done"
    assert kinds(await older.read()).count("graph_changed") == 1


async def test_unchanged_definitions_make_neither_record_nor_warning(
    run_mode: Run, caplog: pytest.LogCaptureFixture
) -> None:
    """Definitions with other objects and the same content count as unchanged."""
    journal = MemoryJournal()
    first = await run_mode(two_turns(), "go", journal=journal)
    with caplog.at_level(logging.WARNING, "agentloop"):
        done = await run_mode(two_turns(), RunState.from_string(two_turns(), restore_approved(first).to_string()))
    assert caplog.records == []
    assert find_records(done, r.GraphChanged) == []


# ---------------------------------------------------------------------------------------------- cancellation


@pytest.mark.parametrize("cancelled", ["scope", "native"])
async def test_a_cancelled_runs_last_records_are_durable(cancelled: str, run_mode: Run) -> None:
    """The run's end is durable too, although the journal is slow: the next entry knows every record."""
    ready = anyio.Event()

    @tool
    async def hold() -> str:
        """Hold."""
        ready.set()
        await anyio.sleep_forever()
        return "never"

    async def slowly(records: Sequence[bytes]) -> None:
        for _ in range(5):
            await anyio.lowlevel.checkpoint()

    journal, watch = BatchJournal(slowly), Watch()
    agent = make_agent([hold, look], [call("look", call_id="l"), call("hold", call_id="h")])
    cancel = cancel_when if cancelled == "scope" else cancel_natively_when
    await cancel(ready, lambda: run_mode(agent, "go", journal=journal, run_config=configure_run(watch)))
    assert watch.end == "cancelled"
    _, *lines = await journal.read()
    assert lines == lines_of(watch.records)
    state = await RunState.from_journal(agent, journal)
    outcome = state._fold.calls["h"].outcome
    assert outcome is not None
    assert (outcome.status, outcome.cancelled_by) == ("cancelled", "parent")


async def test_a_journal_that_hangs_is_cut_at_the_cleanup_deadline(anyio_backend: Backend, run_mode: Run) -> None:
    """A cancelled run returns within the grace, also when its journal hangs."""
    ready = anyio.Event()

    @tool
    async def hold() -> str:
        """Hold."""
        ready.set()
        await anyio.sleep_forever()
        return "never"

    async def hang(records: Sequence[bytes]) -> None:
        if "call_settled" in kinds(records) or "run_ended" in kinds(records):
            await anyio.sleep_forever()

    agent = make_agent([hold], call("hold", call_id="h"))
    async with check_duration(anyio_backend, 0.2):
        await cancel_when(
            ready,
            lambda: run_mode(agent, "go", journal=BatchJournal(hang), run_config=configure_run(cleanup_grace=0.2)),
        )


def hogging(ready: anyio.Event, grace: float) -> Agent[Any, Any]:
    """Return an agent with a call whose clean-up takes all the time there is, which is *grace*."""

    @tool
    async def hog(ctx: ToolContext[Any]) -> str:
        """Hog."""
        try:
            ready.set()
            await anyio.sleep_forever()
        finally:
            with ctx.cleanup():
                advance_clock(grace)
                await anyio.sleep_forever()
        return "never"

    return make_agent([hog], call("hog", call_id="h"))


async def test_a_journal_gets_the_end_of_a_run_whose_cleanup_took_all_the_grace(run_mode: Run) -> None:
    """The journal's last writes begin only after the deadline, which isn't the journal's fault, so they are made."""
    ready = anyio.Event()

    async def waits(records: Sequence[bytes]) -> None:
        await anyio.lowlevel.checkpoint()

    journal, watch = BatchJournal(waits), Watch()
    config = configure_run(watch, cleanup_grace=60)
    await cancel_when(ready, lambda: run_mode(hogging(ready, 60), "go", journal=journal, run_config=config))
    _, *lines = await journal.read()
    assert kinds(lines)[-1] == "run_ended"
    assert lines == lines_of(watch.records)


async def test_a_journal_that_hangs_after_the_deadline_has_the_grace_once(
    anyio_backend: Backend, run_mode: Run
) -> None:
    """A run is over after two graces at most, because a hanging journal gets only one."""
    ready = anyio.Event()

    async def hang(records: Sequence[bytes]) -> None:
        if "run_ended" in kinds(records):
            await anyio.sleep_forever()

    journal = BatchJournal(hang)
    async with check_duration(anyio_backend, 0.4):
        await cancel_when(
            ready,
            lambda: run_mode(hogging(ready, 0.2), "go", journal=journal, run_config=configure_run(cleanup_grace=0.2)),
        )
    assert "run_ended" not in kinds((await journal.read())[1:])


async def test_leaving_a_streams_block_early_makes_its_end_durable() -> None:
    """Leaving the block makes the run's end durable, as a cancellation does."""
    ready = anyio.Event()

    @tool
    async def hold() -> str:
        """Hold."""
        ready.set()
        await anyio.sleep_forever()
        return "never"

    journal = BatchJournal()
    agent = make_agent([hold], call("hold", call_id="h"))
    async with Runner.run_streamed(agent, "go", journal=journal) as stream:
        await ready.wait()
    assert stream.result.status == "cancelled"
    _, *lines = await journal.read()
    assert lines == lines_of(stream.result.records)


async def test_a_run_that_times_out_goes_on_from_its_journal(run_mode: Run) -> None:
    """The call that was cut is reported as unknown, and each entry has a deadline of its own."""
    from agentloop import RunConfig, RunTimeoutError

    @tool
    async def hold() -> str:
        """Hold."""
        advance_clock(60)
        await anyio.sleep_forever()
        return "never"

    journal = MemoryJournal()
    agent = Agent("guide", model=script_turns(call("hold", call_id="h"), say("done")), tools=[hold])
    with pytest.raises(RunTimeoutError):
        await run_mode(agent, "go", journal=journal, run_config=RunConfig(timeout=60))
    done = await Runner.resume(agent, journal, run_config=RunConfig(timeout=60))
    assert done.final_output == "done"
    assert find_outcome(done, "h").status == "unknown"
    first, second = find_records(done, r.CallSettled)
    assert (first.outcome.status, first.outcome.cancelled_by, first.attempt) == ("cancelled", "deadline", 1)
    assert (second.outcome.status, second.attempt) == ("unknown", 2)


async def test_no_journal_is_closed_by_a_run(run_mode: Run) -> None:
    """The journal is the caller's, because several entries use it."""
    journal = MemoryJournal()
    agent = make_agent([])
    await run_mode(agent, "go", journal=journal)
    assert await journal.read()
    with pytest.raises(AgentLoopError):
        await run_mode(agent, "go", journal=journal)
    assert await journal.read()


# ---------------------------------------------------------------------------------------------- reading without agents


async def test_a_journal_is_read_as_records_without_agents(run_mode: Run, tmp_path: Path) -> None:
    """The records are the run's, also while its writer still has the file open."""
    agent = make_agent([look], call("look", call_id="l"))
    async with FileJournal(tmp_path / "run.jsonl", key=b"key") as journal:
        result = await run_mode(agent, "go", journal=journal)
        read = list(read_journal(tmp_path / "run.jsonl", key=b"key"))
    assert [record_to_json(record) for record in read] == [record_to_json(record) for record in result.records]
    with pytest.raises(JournalError, match="sealed with a key"):
        read_journal(tmp_path / "run.jsonl")


def test_what_is_no_journal_has_no_records(tmp_path: Path) -> None:
    """A missing file, an empty one and another kind of file are refused with their name."""
    (tmp_path / "empty").touch()
    (tmp_path / "other").write_text("text\n")
    for name in ("missing", "empty", "other"):
        with pytest.raises(JournalError, match=name):
            read_journal(tmp_path / name)


async def test_a_state_says_how_its_run_ended() -> None:
    """Status, output and error are those of the last run segment; a run whose process died has none of them."""
    state = (await Runner.run(make_agent([look], call("look", call_id="l")), "go")).to_state()
    assert (state.status, state.final_output, state.error) == ("completed", "done", None)
    assert (RunState(state.agent, state.records[:-1]).status, RunState(state.agent, state.records[:-1]).error) == (
        None,
        None,
    )
    assert RunState(state.agent, state.records[:-1]).final_output is None


@pytest.mark.scenario("RS-08")
async def test_resuming_a_run_that_has_completed_returns_its_result(tmp_path: Path) -> None:
    """Nothing runs again, and nothing is written: the result is made from the journal."""
    agent = make_agent([look], call("look", call_id="l"))
    async with FileJournal(tmp_path / "run.jsonl") as journal:
        first = await Runner.run(agent, "go", journal=journal)
        held, asked = await journal.read(), len(read_requests(agent))
        again = await Runner.resume(agent, journal, context="mine")
        assert await journal.read() == held
    assert len(read_requests(agent)) == asked
    assert (again.status, again.final_output, again.context) == ("completed", first.final_output, "mine")
    assert again.to_state() == first.to_state()
    assert again.new_items == first.new_items
    assert again.usage == first.usage


@attrs.frozen
class Dated:
    """A final output whose stored form isn't itself."""

    name: str
    day: datetime.date


@pytest.mark.scenario("RS-08")
async def test_the_final_output_of_a_completed_run_has_its_type_again(tmp_path: Path) -> None:
    """The journal has its plain form; the result of a resume is the same value as that of the run."""
    agent = Agent("dates", model=ScriptedModel([say('{"name": "easter", "day": "2026-04-05"}')]), output_type=Dated)
    async with FileJournal(tmp_path / "run.jsonl") as journal:
        first = await Runner.run(agent, "go", journal=journal)
        again = await Runner.resume(agent, journal)
    assert again.final_output == first.final_output == Dated("easter", datetime.date(2026, 4, 5))


async def test_a_tools_output_that_was_the_final_output_stays_as_it_was_stored(tmp_path: Path) -> None:
    """It was never of the agent's output type."""
    agent = Agent(
        "dates",
        model=ScriptedModel([call("look")]),
        tools=[look],
        output_type=Dated,
        tool_use_behavior="stop_on_first_tool",
    )
    async with FileJournal(tmp_path / "run.jsonl") as journal:
        first = await Runner.run(agent, "go", journal=journal)
        again = await Runner.resume(agent, journal)
    assert again.final_output == first.final_output
    assert isinstance(again.final_output, str)


@pytest.mark.real_clock
@pytest.mark.parametrize("kind", ["memory", "file"])
@pytest.mark.parametrize("steps", [1, 150])
async def test_of_two_runs_that_resume_from_one_journal_at_once_one_is_refused(
    kind: str, steps: int, tmp_path: Path
) -> None:
    """Both read it before either writes, the longer one in several turns: what is due is done by one of them."""
    paid: list[int] = []

    @tool(name="pay")
    async def pay_once(amount: int) -> str:
        """Pay."""
        paid.append(amount)
        return "paid"

    def agent(*turns: Any) -> Agent[Any, Any]:
        return Agent("guide", model=ScriptedModel(list(turns)), tools=[look, pay_once])

    looks = [call("look", call_id=f"l{index}") for index in range(steps)]
    end = [call("pay", {"amount": 1}, call_id="p"), say("done")]
    whole = MemoryJournal()
    await Runner.run(agent(looks, *end), "go", journal=whole)
    lines = await whole.read()
    paid.clear()
    journal: Any = MemoryJournal() if kind == "memory" else FileJournal(tmp_path / "journal")
    async with journal:
        await journal.append(lines[: kinds(lines).index("batch_ended") + 1])
        ends: list[Any] = []

        async def resume() -> None:
            try:
                ends.append((await Runner.resume(agent(*end), journal)).final_output)
            except JournalError as error:
                ends.append(str(error))

        async with anyio.create_task_group() as group:
            group.start_soon(resume)
            group.start_soon(resume)

        assert paid == [1]
        refusals = [one for one in ends if one != "done"]
        assert len(refusals) == 1
        assert "writing to the journal" in refusals[0] or "an older one" in refusals[0]
        assert (await Runner.resume(agent(), journal)).final_output == "done"  # and nothing keeps it claimed


async def test_a_run_that_is_refused_its_journal_leaves_it_to_others() -> None:
    """The refused one holds no claim on it: the run whose journal it is can be resumed."""
    journal, steps = MemoryJournal(), [call("look", call_id="l"), call("pay", {"amount": 1}, call_id="p")]
    paused = await Runner.run(make_agent([look, pay], *steps), "go", journal=journal)
    with pytest.raises(JournalError, match="holds a run already"):
        await Runner.run(make_agent([look, pay], say("no")), "go", journal=journal)
    state = paused.to_state()
    state.approve("p")
    assert (await Runner.run(make_agent([look, pay], say("done")), state, journal=journal)).final_output == "done"
