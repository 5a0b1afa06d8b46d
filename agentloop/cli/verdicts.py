"""`agentloop pending`, `approve`, `reject` and `answer`: the waiting calls of saved runs, and verdicts on them.

The runs are those of a job's folder, those of journals that a program keeps, or one run in a database. A verdict is
appended to the run's own journal, so that every later resume of the run finds it. The agent is not imported.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import anyio
import anyio.to_thread
import attrs
import click

from agentloop._common.terminal_text import exact
from agentloop._storage.state_codec import read_lines, state_from_journal
from agentloop.agents import Agent
from agentloop.cli import errors
from agentloop.cli.help_text import examples
from agentloop.cli.journal_folder import Folder
from agentloop.cli.run_options import call_name, describe_call, find_asking_policy, read_answer
from agentloop.cli.show import json_line, request_json
from agentloop.exceptions import AgentLoopError, StateError, UserError
from agentloop.items import CallToAnswer, Interruption
from agentloop.journal import FileJournal, SQLiteJournal
from agentloop.journal._database import DatabaseJournals
from agentloop.journal._folder import is_address
from agentloop.journal._reading import find_runs, list_runs
from agentloop.records import Record
from agentloop.state import REPLACE_HINT, RunState

_OF_LINE = re.compile(r"(\d+):(.+)", re.DOTALL)


Verdict = Callable[[RunState, Interruption | str], None]


@attrs.frozen
class WaitingCall:
    """A call of a saved run that waits for a verdict.

    `line` is None if the run is the only one; `path` is the run's journal, None if it is in a database. `run` is the
    name of a run that isn't a job's, one of several.
    """

    line: int | None
    path: Path | None
    request: Interruption
    run: str | None = None

    @property
    def name(self) -> str:
        """The name of the call on the command line."""
        name = call_name(self.request)
        place = self.run if self.line is None else self.line
        return name if place is None else f"{place}:{name}"


class _SavedRuns(Protocol):
    """Where the runs are."""

    async def list_waiting(self) -> list[WaitingCall]:
        """Return the calls that wait."""
        ...

    async def decide(self, call: str, give: Verdict) -> tuple[str, int]:
        """Append what *give* gives to the run of *call*; return the call's full name, and how many others wait."""
        ...

    async def say_what_follows(self) -> str:
        """Return how the run continues."""
        ...


def _state_of(records: Sequence[Record]) -> RunState:
    """Return a run's state with a placeholder for its agent: a verdict needs only the log."""
    return RunState(Agent("undecided"), records)


@attrs.frozen
class _RunsOfJob:
    """The runs of a job, each in its own file of the folder."""

    folder: Folder

    async def list_waiting(self) -> list[WaitingCall]:
        self.folder.read()
        found: list[WaitingCall] = []
        for line, path in self.folder.journals():
            async with FileJournal(path) as journal:
                if await journal.read():
                    state = _state_of((await state_from_journal(journal)).records)
                    found += [WaitingCall(line, path, request) for request in state.interruptions]
        return found

    async def decide(self, call: str, give: Verdict) -> tuple[str, int]:
        waiting = await self.list_waiting()
        path, given, name = self._find_call(waiting, call)
        async with FileJournal(path) as journal:
            await _give_in(journal, self.folder.refusal, name, given, give, waiting)
        return name, sum(one.name != name for one in waiting)

    async def say_what_follows(self) -> str:
        return f"agentloop resume {self.folder.name}"

    def _find_call(self, waiting: list[WaitingCall], call: str) -> tuple[Path, Interruption | str, str]:
        """Return the journal of *call*, its request or its id, and its full name.

        A call that has a verdict already is found by its full name.

        Raises:
            FolderError: if no such call waits, or several do.
        """
        found = _find_waiting(self.folder.refusal, waiting, call)
        if found is not None and found.path is not None:
            return found.path, found.request, found.name
        of_line = _OF_LINE.fullmatch(call)
        path, name = (self.folder.journal(int(of_line[1])), of_line[2]) if of_line else (self.folder.journal(), call)
        if not path.exists():
            raise self.folder.refusal(f"no call {call!r} waits for approval (those that do: {_format_names(waiting)})")
        return path, name, call


@attrs.frozen
class _RunsInFiles:
    """The runs of journals that a program keeps: those of a file, or of a folder without a job.

    `run_id` chooses one; `key` is what they are sealed with.
    """

    place: Path
    run_id: str | None
    key: bytes | None = attrs.field(default=None, repr=False)

    async def list_waiting(self) -> list[WaitingCall]:
        runs = self._find_runs()
        found: list[WaitingCall] = []
        for name, path, run_id in runs:
            async with self._open(path, run_id) as journal:
                if not await journal.read():
                    if len(runs) == 1:
                        raise self._refusal("nothing whole is in it")
                    continue
                state = _state_of((await state_from_journal(journal)).records)
                run = None if len(runs) == 1 else name
                found += [WaitingCall(None, path, request, run) for request in state.interruptions]
        return found

    async def decide(self, call: str, give: Verdict) -> tuple[str, int]:
        waiting = await self.list_waiting()
        found = _find_waiting(self._refusal, waiting, call)
        given, name = (call, call) if found is None else (found.request, found.name)
        async with self._open(*self._find_journal(call, None if found is None else found.run)) as journal:
            await _give_in(journal, self._refusal, name, given, give, waiting)
        return name, sum(one.name != name for one in waiting)

    async def say_what_follows(self) -> str:
        return "resume the run in your program, by Runner.resume or run_or_resume with its journal"

    def _find_journal(self, call: str, run: str | None) -> tuple[Path, str | None]:
        """Return the journal of the only run, or of *run*.

        Raises:
            UserError: there are several, and *run* is None: *call* waits in none of them.
        """
        runs = self._find_runs()
        chosen = [one for one in runs if run in (None, one[0])]
        if len(chosen) > 1:
            raise self._refusal(f"no call {call!r} waits in its {len(runs)} runs; --run NAME chooses one")
        return chosen[0][1:]

    def _find_runs(self) -> list[tuple[str, Path, str | None]]:
        """Return the name, the file and, in a SQLite file, the id of each run.

        Raises:
            UserError: there is none, or none of that name.
        """
        if self.place.is_dir():
            found = find_runs(self.place)
        else:
            ids = list_runs(self.place)
            found = [(one or self.place.stem, self.place, one) for one in ([None] if ids is None else ids)]
        if self.run_id is not None:
            found = [one for one in found if one[0] == self.run_id]
        if not found:
            raise self._refusal("no run is there" + ("" if self.run_id is None else f" by the name {self.run_id!r}"))
        return found

    def _open(self, path: Path, run_id: str | None) -> FileJournal | SQLiteJournal:
        if run_id is None:
            return FileJournal(path, key=self.key)
        return SQLiteJournal(path, run_id, key=self.key)

    def _refusal(self, words: str) -> UserError:
        return UserError(f"{self.place}: {words}")


@attrs.frozen
class _RunInDatabase:
    """One run in a PostgreSQL database, and the key that its journal is sealed with."""

    address: str = attrs.field(repr=False)  # it may hold a password
    run_id: str
    key: bytes | None = attrs.field(default=None, repr=False)

    async def list_waiting(self) -> list[WaitingCall]:
        with DatabaseJournals(self.address) as stored:
            lines = await anyio.to_thread.run_sync(partial(stored.read, self.run_id, key=self.key))
        return [
            WaitingCall(None, None, request) for request in _state_of(read_lines(lines, None).records).interruptions
        ]

    async def decide(self, call: str, give: Verdict) -> tuple[str, int]:
        from agentloop.postgres import PostgresJournal, PostgresStore

        waiting = await self.list_waiting()
        found = _find_waiting(self._refusal, waiting, call)
        given, name = (call, call) if found is None else (found.request, found.name)
        async with (
            PostgresStore(self.address, connections=1) as store,
            PostgresJournal(store, self.run_id, key=self.key) as journal,
        ):
            await journal._decide(lambda state: _give(self._refusal, state, given, give, waiting))
        return name, sum(one.name != name for one in waiting)

    async def say_what_follows(self) -> str:
        from agentloop.postgres import PostgresStore

        async with PostgresStore(self.address, connections=1) as store:
            run = await store.find(self.run_id)
        if run is not None and run.due_at is not None:
            return "a worker that serves its agent takes the run once nothing waits"
        return "give your queue a job for the run"

    def _refusal(self, words: str) -> UserError:
        return UserError(f"run {self.run_id!r}: {words}")


def _find_runs(place: str, run_id: str | None, key_file: BinaryIO | None) -> _SavedRuns:
    """Return the runs at *place*: the folder of a job, a journal or a folder of journals, or the address of a database.

    Raises:
        click.UsageError: a database without *run_id*, or the folder of a job with what is for the others.
    """
    if is_address(place):
        if run_id is None:
            raise click.UsageError("a database needs --run.")
        return _RunInDatabase(place, run_id, None if key_file is None else key_file.read())
    folder = Folder.at(place)
    if folder.path.is_file() or (folder.path.is_dir() and not folder.holds_job() and find_runs(folder.path)):
        return _RunsInFiles(folder.path, run_id, None if key_file is None else key_file.read())
    if run_id is not None or key_file is not None:
        raise click.UsageError("--run and --key-file are for a database, and for journals that are no job's.")
    return _RunsOfJob(folder)


def _perform(work: Callable[[], Awaitable[None]]) -> None:
    """Do *work*; on an error, report it and end the process with its exit code."""
    try:
        anyio.run(work)
    except AgentLoopError as error:
        click.echo(errors.words_for(error), err=True, nl=False)
        sys.exit(errors.code_of(error))


_place = click.argument("place", metavar="PLACE")
_run = click.option("--run", "run_id", metavar="ID", help="The run in a database, or in a folder or file of several.")
_key_file = click.option(
    "--key-file", type=click.File("rb"), help="File with the key that the run's journal is sealed with: no job's is."
)
_by = click.option("--by", metavar="NAME", help="Who decides: the journal keeps it.")


@click.command(
    short_help="List the calls of a job that wait for a person.",
    epilog=examples("agentloop pending jobs/clean", "agentloop pending jobs/clean --json"),
)
@_place
@_run
@_key_file
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object a line.")
def pending(place: str, run_id: str | None, key_file: BinaryIO | None, as_json: bool) -> None:
    """List the calls that wait for approval, or for an answer.

    PLACE is the folder of a job, a journal or a folder of journals, or a PostgreSQL database by its address,
    postgresql://…, with --run ID.
    """
    runs = _find_runs(place, run_id, key_file)

    async def work() -> None:
        found = await runs.list_waiting()
        for one in found:
            if as_json:
                of_run = {} if one.run is None else {"run": one.run}
                data = {"line": one.line, **of_run, **request_json(one.request), "call": one.name}
                click.echo(json_line(data), nl=False)
            else:
                why = find_asking_policy(one.request)
                line = f"{exact(one.name)}  {exact(one.request.agent)}  {describe_call(one.request)}"
                click.echo(f"{line}  ({why})" if why else line)
        if not found and not as_json:
            click.echo("No call waits for approval or an answer.", err=True)

    _perform(work)


_replace = click.option(
    "--replace", is_flag=True, help="Take the place of a verdict that CALL has already, as long as it hasn't started."
)


@click.command(
    short_help="Approve a call of a job; `resume` runs it.",
    epilog=examples(
        "agentloop approve jobs/clean call_1",
        """agentloop approve jobs/clean call_1 --arguments '{"path": "b.txt"}'""",
        "agentloop approve jobs/clean call_1 --always",
    ),
)
@_place
@click.argument("call")
@click.option("--arguments", metavar="JSON", help="Run it with these arguments: guardrails and policies judge again.")
@click.option("--always", is_flag=True, help="Approve the agent's later calls to the tool too, in this run.")
@_replace
@_by
@_run
@_key_file
def approve(place: str, call: str, run_id: str | None, key_file: BinaryIO | None, **options: Any) -> None:
    """Approve CALL, by the name `agentloop pending` gives it.

    PLACE is the folder of a job, whose `agentloop resume PLACE` then runs the call, a journal or a folder of journals,
    or a PostgreSQL database by its address, postgresql://…, with --run ID.
    """
    runs = _find_runs(place, run_id, key_file)
    _decide(runs, call, "approved", lambda state, given: state.approve(given, **options))


@click.command(
    short_help="Reject a call of a job.", epilog=examples("agentloop reject jobs/clean call_1 --message 'Not today.'")
)
@_place
@click.argument("call")
@click.option("--message", metavar="TEXT", help="What the model is told.")
@click.option("--always", is_flag=True, help="Reject the agent's later calls to the tool too, in this run.")
@_replace
@_by
@_run
@_key_file
def reject(place: str, call: str, run_id: str | None, key_file: BinaryIO | None, **options: Any) -> None:
    """Reject CALL, by the name `agentloop pending` gives it.

    PLACE is the folder of a job, a journal or a folder of journals, or a PostgreSQL database by its address,
    postgresql://…, with --run ID.
    """
    runs = _find_runs(place, run_id, key_file)
    _decide(runs, call, "rejected", lambda state, given: state.reject(given, **options))


@click.command(
    short_help="Answer a call of a job that waits for it.",
    epilog=examples(
        "agentloop answer jobs/ask call_1 Rome",
        """agentloop answer jobs/ask call_1 '{"room": 7}'""",
        "agentloop answer jobs/ask call_1 --error 'Nobody is at the desk.'",
    ),
)
@_place
@click.argument("call")
@click.argument("value", required=False)
@click.option("--error", metavar="TEXT", help="In place of VALUE: the model is told that the call has failed.")
@_by
@_run
@_key_file
def answer(
    place: str,
    call: str,
    value: str | None,
    error: str | None,
    by: str | None,
    run_id: str | None,
    key_file: BinaryIO | None,
) -> None:
    """Answer CALL, which asks for VALUE: JSON, or text where a text is asked for.

    PLACE is the folder of a job, a journal or a folder of journals, or a PostgreSQL database by its address,
    postgresql://…, with --run ID.
    """
    if (value is None) == (error is None):
        raise click.UsageError("Give VALUE, or --error TEXT.")

    def give(state: RunState, given: Interruption | str) -> None:
        returns = given.returns if isinstance(given, CallToAnswer) else {}
        state.answer(given, None if value is None else read_answer(value, returns), error=error, by=by)

    _decide(_find_runs(place, run_id, key_file), call, "answered", give)


def _decide(runs: _SavedRuns, call: str, decided: str, give: Verdict) -> None:
    async def work() -> None:
        name, left = await runs.decide(call, give)
        click.echo(f"{exact(name)} is {decided}.")
        then = f"{left} more wait" + ("s" if left == 1 else "") if left else "Nothing else waits"
        click.echo(f"{then}. To go on: {await runs.say_what_follows()}", err=True)

    _perform(work)


def _give(
    refusal: Callable[[str], UserError],
    state: RunState,
    given: Interruption | str,
    give: Verdict,
    waiting: list[WaitingCall],
) -> None:
    """Give what *give* gives on the call *given* to *state*.

    Raises:
        UserError: the call takes none; says why. A wrong name of a call is an error of the user, not of the run.
    """
    # A call that has a verdict already is found by its name.
    asked = next((asked for asked in state._asked() if call_name(asked) == given), given)
    try:
        give(state, asked)
    except StateError as error:
        text = str(error).replace(REPLACE_HINT, REPLACE_HINT.replace("replace=True", "--replace"))
        raise refusal(f"{text} (those that wait: {_format_names(waiting)})") from None


async def _give_in(
    journal: FileJournal | SQLiteJournal,
    refusal: Callable[[str], UserError],
    name: str,
    given: Interruption | str,
    give: Verdict,
    waiting: list[WaitingCall],
) -> None:
    """Give what *give* gives on the call *given*, whose full name is *name*, in the *journal* of its run.

    Raises:
        UserError: another process has the journal; or as `_give`.
    """
    # Locked before the state is read, so that nothing is written between the two.
    if isinstance(journal, FileJournal) and not await journal.try_lock():
        raise refusal(f"{exact(name)}: its run is under way in another process, which has its journal")
    state = _state_of((await state_from_journal(journal)).records)
    _give(refusal, state, given, give, waiting)
    await state.append_to(journal)


def _find_waiting(refusal: Callable[[str], UserError], waiting: list[WaitingCall], call: str) -> WaitingCall | None:
    """Return the call that waits by its full name, or by a part of it that means only one; None if there is none.

    Raises:
        UserError: several calls have that name.
    """
    found = [one for one in waiting if one.name == call]
    found = found or [one for one in waiting if call in (call_name(one.request), one.request.call.call_id)]
    if len(found) > 1:
        raise refusal(f"{len(found)} calls of that name wait: {_format_names(found)}")
    return found[0] if found else None


def _format_names(waiting: list[WaitingCall]) -> str:
    return ", ".join(exact(one.name) for one in waiting) or "none"
