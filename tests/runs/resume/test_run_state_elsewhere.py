"""States read by other processes, on other backends, and by later versions."""

import json
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from kit import child_runs, frozen_state
from kit.agents import Run
from kit.results import find_outcome, read_outputs
from kit.resuming import copy_state

from agentloop import Runner, RunState
from agentloop import records as r
from agentloop._common.json_bytes import decode, encode
from agentloop.exceptions import JournalError, StateError
from agentloop.journal import FileJournal, MemoryJournal, read_journal
from agentloop.journal._reading import GrowingJournal, read_lines_of
from agentloop.testing import replay


def child(*args: str, given: str = "") -> str:
    """Run a step of `child_runs` in a process of its own and return what it wrote."""
    options: dict[str, Any] = {"env": child_runs.ENVIRONMENT, "input": given, "timeout": 50}
    command = child_runs.make_command(*args)
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.real_clock
@pytest.mark.slow
@pytest.mark.scenario("RS-18", "LX-65")
@pytest.mark.parametrize(("first", "second"), [("asyncio", "trio"), ("trio", "asyncio")])
def test_begun_in_one_process_approved_in_another_and_finished_in_a_third(
    first: Any, second: Any, tmp_path: Path
) -> None:
    """The processes share only the JSON and the definitions, over two backends; an approved call runs once."""
    ledger = tmp_path / "ledger"
    state = child("begin", first, str(ledger))
    assert ledger.read_text().splitlines() == ["look"]
    report = json.loads(child("finish", second, str(ledger), given=child("approve", given=state)))
    assert sorted(ledger.read_text().splitlines()) == ["look", "pay 1", "pay 5"]
    assert report == {
        "status": "completed",
        "output": "done",
        "calls": {"l": "succeeded", "s": "succeeded", "p": "succeeded", "l2": "replayed"},
        "outputs": {"l": "seen", "s": "in", "p": "paid 1", "l2": "seen"},
        "requests": 5,
        "turns": 3,
    }


@pytest.mark.real_clock
@pytest.mark.slow
@pytest.mark.scenario("LX-65")
def test_what_was_rejected_elsewhere_never_runs_and_the_model_gets_the_reason(tmp_path: Path) -> None:
    """The verdict's message is the reason in the run and in its nested run, and neither waiting call runs."""
    ledger = tmp_path / "ledger"
    state = child("reject", "Not with my money.", given=child("begin", "asyncio", str(ledger)))
    assert state.count("Not with my money.") == 2
    report = json.loads(child("finish", "trio", str(ledger), given=state))
    assert ledger.read_text().splitlines() == ["look"]
    assert report["status"] == "completed"
    assert report["calls"]["p"] == "rejected"
    assert report["outputs"]["p"] == "Not with my money."
    assert report["calls"]["s"] == "succeeded"


# ---------------------------------------------------------------------------------------------- frozen states

every_schema = pytest.mark.parametrize("file", frozen_state.STATES, ids=[path.stem for path in frozen_state.STATES])
OLDEST = frozen_state.STATES[0]


def frozen(file: Path) -> RunState:
    """Return the frozen state in *file*, read by the definitions it was made with."""
    return RunState.from_string(frozen_state.build_agent(), file.read_text())


@every_schema
@pytest.mark.scenario("RS-03")
def test_the_frozen_state_is_read_and_means_what_it_meant(file: Path) -> None:
    """The frozen state keeps its context, waiting calls, usage, outputs and verdicts."""
    state = frozen(file)
    assert state.context == frozen_state.CONTEXT
    [waiting] = state.interruptions
    assert (waiting.call.call_id, waiting.call.arguments, waiting.path) == ("inner_pay", '{"amount": 2}', ("nested",))
    assert state._fold.turn == 2
    assert state._fold.max_turns == 7
    assert state._fold.usage.requests == 4
    assert state._fold.usage.total_tokens == 13
    assert read_outputs(state._fold.new_items) == {
        "located": '{"x": 1, "y": 2.5}',
        "again": '{"x": 1, "y": 2.5}',
        "peeked": "Hidden.",
        "failed": "Tool broken failed with: ValueError(no luck)",
        "own_pay": "paid 10",
        "other_pay": "Too much.",
    }
    assert state._fold.calls["located"].outcome is not None
    assert state._fold.calls["located"].outcome.custom_data == [1, b"\x01"]


@every_schema
@pytest.mark.scenario("RS-03")
def test_the_frozen_state_is_written_as_it_was_read(file: Path) -> None:
    """The state is written as the file has it, or in the present schema where the file's is older."""
    data = json.loads(file.read_text())
    written = json.loads(frozen(file).to_string())
    assert written["schema"] == RunState.schema_version
    if data["schema"] == RunState.schema_version:
        del written["library"], data["library"]
        assert written == data
    assert copy_state(frozen(file)) == frozen(file)


@every_schema
@pytest.mark.scenario("RS-03")
async def test_the_frozen_state_runs_on(run_mode: Run, file: Path) -> None:
    """The frozen state runs to the run's end, with its old verdicts and new ones."""
    state = frozen(file)
    [waiting] = state.interruptions
    state.approve(waiting)
    done = await run_mode(state.agent, state)
    assert done.final_output == "all is done"
    assert done.context == frozen_state.CONTEXT
    assert find_outcome(done, "nested").output == "inside is done"
    assert done.usage.requests == 6
    assert done.usage.total_tokens == 39


async def _make_frozen_journal(**header: Any) -> MemoryJournal:
    """Return a journal of the frozen run, as a library with its schema wrote it; *header* changes its header."""
    data = json.loads(OLDEST.read_text())
    head = {"kind": "header", "schema": data["schema"], "library": "0", "run_id": data["records"][0]["run_id"]}
    journal = MemoryJournal()
    head |= {"graph": data["graph"], "redaction": "digests", **header}
    await journal.append([encode(head), *map(encode, data["records"])])
    return journal


@pytest.mark.scenario("RS-03")
async def test_a_journal_of_an_older_schema_continues_in_the_present_one(run_mode: Run) -> None:
    """What is appended begins with a header of its own, and the whole journal is read again."""
    journal = await _make_frozen_journal()
    held = len(await journal.read())
    state = await RunState.from_journal(frozen_state.build_agent(), journal)
    assert [type(one) for one in state.records] == [type(one) for one in frozen(OLDEST).records]
    [waiting] = state.interruptions
    state.approve(waiting)
    done = await run_mode(state.agent, state, journal=journal)
    assert done.final_output == "all is done"
    lines = await journal.read()
    headers = [place for place, line in enumerate(lines) if decode(line).get("kind") == "header"]
    assert headers == [0, held]
    assert decode(lines[held])["schema"] == RunState.schema_version
    again = await RunState.from_journal(state.agent, journal)
    assert again == done.to_state()


@pytest.mark.scenario("RS-03")
async def test_a_journal_with_a_header_that_does_not_belong_there_is_refused() -> None:
    """Neither the header of another run in the middle nor a version that nobody knows is guessed at."""
    agent = frozen_state.build_agent()
    journal = await _make_frozen_journal()
    other = {**decode((await journal.read())[0]), "run_id": "other"}
    await journal.append([encode(other)])
    with pytest.raises(JournalError, match="is of another run"):
        await RunState.from_journal(agent, journal)
    with pytest.raises(StateError, match="Unknown schema version 99"):
        await RunState.from_journal(agent, await _make_frozen_journal(schema="99"))


@pytest.mark.real_clock
@pytest.mark.scenario("RS-03")
async def test_a_journal_that_continues_in_the_present_schema_is_followed(tmp_path: Path) -> None:
    """Whoever reads it while it grows sees, line by line, what a reader of the whole file does."""
    journal = await _make_frozen_journal()
    held = len(await journal.read())
    state = await RunState.from_journal(frozen_state.build_agent(), journal)
    state.approve(*state.interruptions)
    await Runner.run(state.agent, state, journal=journal)
    lines = await journal.read()
    path, seen = tmp_path / "run.journal", list[r.Record]()
    reader = GrowingJournal(partial(read_lines_of, str(path), None, None))
    async with FileJournal(path) as file:
        for batch in (lines[:held], *([line] for line in lines[held:])):
            await file.append(batch)
            is_another, records = reader.read_new()
            seen = [*([] if is_another else seen), *records]
            assert seen == list(read_journal(path))
    assert isinstance(seen[-1], r.RunEnded)


@pytest.mark.scenario("RS-03", "PE-02")
async def test_what_is_appended_to_a_journal_of_an_older_schema_follows_a_header_of_the_present_one() -> None:
    """So a verdict and an input given on a state are read as they were written, and the run goes on."""
    journal = await _make_frozen_journal()
    state = await RunState.from_journal(frozen_state.build_agent(), journal)
    state.add_input("more", by="ann")
    state.approve(*state.interruptions, by="ann")
    await state.append_to(journal)
    assert [decode(line)["schema"] for line in await journal.read() if b'"kind":"header"' in line] == ["1", "2"]
    again = await RunState.from_journal(state.agent, journal)
    assert (again.records, again.inputs) == (state.records, state.inputs)
    again.add_input("and more")
    await again.append_to(journal)
    assert [decode(line)["schema"] for line in await journal.read() if b'"kind":"header"' in line] == ["1", "2"]
    assert (await Runner.run(again.agent, again, journal=journal)).status == "completed"


@pytest.mark.scenario("RS-03")
def test_a_log_of_an_older_schema_is_not_replayed() -> None:
    """It lacks what a replay needs, also once it was stored anew."""
    for state in (frozen(OLDEST), copy_state(frozen(OLDEST))):
        with pytest.raises(StateError, match="began in schema 1"):
            replay(state, state.agent)


@pytest.mark.scenario("RS-03")
async def test_a_state_made_now_has_the_form_of_the_frozen_one() -> None:
    """The stored form has not changed by accident: the kinds of records and their fields equal those of the file."""
    now = frozen_state.fix_chance((await frozen_state.make_state()).to_json())
    then = json.loads(frozen_state.STATES[-1].read_text())
    assert then["schema"] == now["schema"]
    assert [record["kind"] for record in now["records"]] == [record["kind"] for record in then["records"]]
    assert [sorted(record) for record in now["records"]] == [sorted(record) for record in then["records"]]
    assert sorted(now) == sorted(then)
    assert now["graph"] == then["graph"]


@pytest.mark.real_clock
@pytest.mark.scenario("RS-03")
@pytest.mark.parametrize("file", frozen_state.JOURNALS, ids=[path.stem for path in frozen_state.JOURNALS])
async def test_the_frozen_journal_is_read_and_continued(run_mode: Run, file: Path, tmp_path: Path) -> None:
    """Its lines and their chain are those of the library that wrote it; the run in it comes to its end."""
    path, whole = tmp_path / "run.journal", await anyio.Path(file).read_bytes()
    path.write_bytes(whole)
    assert list(read_journal(path)) == frozen(file.with_suffix(".json")).records
    async with FileJournal(path) as journal:
        state = await RunState.from_journal(frozen_state.build_agent(), journal)
        state.approve("inner_pay")
        done = await run_mode(state.agent, state, journal=journal)
    assert done.final_output == "all is done"
    assert path.read_bytes().startswith(whole)
    assert tuple(read_journal(path)) == done.records


def test_the_present_schema_has_frozen_files() -> None:
    """Without them nothing would notice that what is stored has changed."""
    for files in (frozen_state.STATES, frozen_state.JOURNALS):
        assert files[-1].stem.endswith(f"-schema-{RunState.schema_version}")
