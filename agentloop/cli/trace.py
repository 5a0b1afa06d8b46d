"""`agentloop trace`: the timeline of a run, from its journal only, as text or as a page."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import attrs
import click

from agentloop._common.terminal_text import exact
from agentloop.cli import errors
from agentloop.cli.help_text import examples
from agentloop.cli.journal_folder import Folder
from agentloop.cli.private_files import open_private
from agentloop.cli.supervision import check_backend, run_supervised
from agentloop.cli.trace_server import HOST, serve_timeline, stamp_files
from agentloop.exceptions import AgentLoopError, StateError, UserError
from agentloop.journal._database import DatabaseJournals
from agentloop.journal._folder import is_address
from agentloop.journal._reading import GrowingJournal, find_runs, list_runs, read_lines_of, read_whole_records
from agentloop.records import Record
from agentloop.tracing import Timeline, TimelineFold, read_timeline, render_html, render_text

if TYPE_CHECKING:
    from agentloop.lab._moments import MomentLog

_WIDTH_OF_A_PIPE = 120
_MOST_NAMED = 10


@attrs.frozen
class TracedJournal:
    """The journal of one run: its file, the run's id if the file holds several, and the key that it is sealed with."""

    path: Path
    run_id: str | None = None
    key: bytes | None = attrs.field(default=None, repr=False)
    older_seals: bool = False

    @classmethod
    def find(
        cls, given: Path, line: int | None, run_id: str | None, key: bytes | None = None, *, older_seals: bool = False
    ) -> TracedJournal:
        """Return the journal at *given*: a file, or a folder of `agentloop run --journal`.

        Raises:
            UserError: if there is none, or several and neither *line* nor *run_id* chooses.
            JournalError: if a SQLite file can't be read.
        """
        if given.is_dir():
            if run_id is not None:
                raise UserError(f"{given} is a folder: --run is for a SQLite file")
            path, run_id = _find_in_folder(given, line)
            return cls(path, run_id, key, older_seals)
        if line is not None:
            raise UserError(f"{given} is no folder: --line is for a folder of `agentloop run --journal`")
        if not given.exists():
            raise UserError(f"there is no {given}")
        runs = list_runs(given)
        if runs is None and run_id is not None and key is None:
            raise UserError(f"{given} is no SQLite file: it holds one run")
        if runs is not None and run_id not in (runs if run_id is not None else (None, *runs)):
            raise UserError(f"{given} holds no run {run_id!r}: {_name_some(runs)}")
        if runs is not None and run_id is None and len(runs) > 1:
            raise UserError(f"{given} holds {len(runs)} runs, choose one by --run: {_name_some(runs)}")
        return cls(given, run_id, key, older_seals)

    @property
    def _place(self) -> dict[str, Any]:
        return {"run_id": self.run_id, "key": self.key, "older_seals": self.older_seals}

    def read(self) -> Sequence[Record]:
        """Return the records of what is whole in the journal; none if nothing is yet.

        Raises:
            JournalError, StateError: if the journal is damaged, or sealed with a key.
        """
        return read_whole_records(self.path, **self._place) or ()

    def follow(self, *, content: bool) -> Callable[[], tuple[Timeline, MomentLog | None]]:
        """Return a function as `_follow_lines` does; it raises as `read` does."""
        read = partial(read_lines_of, str(self.path), self.run_id, self.key, older_seals=self.older_seals)
        return _follow_lines(read, content=content)

    async def serve(self, *, content: bool) -> None:
        """Serve the timeline until cancelled.

        Raises:
            OSError: if no port can be opened.
        """
        await serve_timeline(partial(stamp_files, self.path), self.follow(content=content), started=click.echo)


@attrs.frozen
class TracedRows:
    """The journal of one run in a PostgreSQL database, and the key that it is sealed with."""

    address: str = attrs.field(repr=False)  # it may hold a password
    run_id: str
    key: bytes | None = attrs.field(default=None, repr=False)
    older_seals: bool = False

    def read(self) -> Sequence[Record]:
        """Return the records of the run, which is only read.

        Raises:
            UserError: if the extra `postgres` is missing, or the address or the run is wrong.
            JournalError, StateError: if the database can't be read, or as `TracedJournal.read`.
        """
        from agentloop._storage.state_codec import read_lines

        with DatabaseJournals(self.address) as stored:
            return read_lines(self._read_lines(stored), None).records

    async def serve(self, *, content: bool) -> None:
        """Serve the timeline until cancelled. Each look asks the database for the run's last line.

        Raises:
            OSError: if no port can be opened.
        """
        with DatabaseJournals(self.address) as stored:
            follow = _follow_lines(partial(self._read_lines, stored), content=content)
            await serve_timeline(partial(stored.stamp, self.run_id), follow, started=click.echo)

    def _read_lines(self, stored: DatabaseJournals) -> list[bytes]:
        return stored.read(self.run_id, key=self.key, older_seals=self.older_seals)


def _follow_lines(
    read_all: Callable[[], list[bytes]], *, content: bool
) -> Callable[[], tuple[Timeline, MomentLog | None]]:
    """Return a function that returns the timeline of the lines that *read_all* gives at each of its calls.

    With *content* the moments beside it: the same object while the journal grows. None without, and where a record
    doesn't fit those before it. The function raises as *read_all* does, and folds only what is new.
    """
    from agentloop.lab._moments import MomentLog  # a text needs none

    journal, fold = GrowingJournal(read_all), TimelineFold(content=content)
    moments = MomentLog() if content else None

    def read() -> tuple[Timeline, MomentLog | None]:
        nonlocal fold, moments
        is_another, records = journal.read_new()
        if is_another:
            fold, moments = TimelineFold(content=content), MomentLog() if content else None
        for record in records:
            fold.record(record)
            if moments is not None:
                try:
                    moments.add(record)
                except StateError:
                    moments = None
        return fold.timeline(), moments

    return read


def find_journal(
    given: Path | str, line: int | None, run_id: str | None, key: bytes | None, *, older_seals: bool = False
) -> TracedJournal | TracedRows:
    """Return the journal at *given*, a path or the address of a database.

    Raises:
        click.UsageError: a database without *run_id*, or with *line*.
        AgentLoopError: as for `TracedJournal.find`.
    """
    if isinstance(given, Path):
        return TracedJournal.find(given, line, run_id, key, older_seals=older_seals)
    if run_id is None or line is not None:
        raise click.UsageError("a database needs --run; --line is for a folder.")
    return TracedRows(given, run_id, key, older_seals)


class Place(click.Path):
    """A path, or the address of a database as text."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if is_address(value) else super().convert(value, param, ctx)


def _find_in_folder(given: Path, line: int | None) -> tuple[Path, str | None]:
    """Return the file of the run in a folder, and the run's id if it is in a SQLite file.

    Raises:
        UserError: there is none, or several and *line* chooses none of them.
    """
    folder = Folder.at(str(given))
    found = dict(folder.journals())
    if line is not None:
        if line not in found:
            raise folder.refusal(f"there is no journal of line {line}")
        return found[line], None
    if len(found) > 1:
        numbers = [str(number) for number in found if number is not None]
        raise folder.refusal(f"it holds {len(found)} runs, choose one by --line: {_name_some(numbers)}")
    if not found:
        others = find_runs(given)
        if len(others) == 1:
            return others[0][1:]
        if others:
            names = sorted({path.name for _, path, _ in others})
            raise folder.refusal(f"there is no job; name one of its journals: {_name_some(names)}")
        raise folder.refusal("there is no journal")
    return next(iter(found.values())), None


def _name_some(names: list[str]) -> str:
    more = f", … ({len(names)})" if len(names) > _MOST_NAMED else ""
    return ", ".join(map(exact, names[:_MOST_NAMED])) + more


@click.command(
    short_help="Show what a run did when, as text or as a page.",
    epilog=examples(
        "agentloop trace jobs/may",
        "agentloop trace run.journal --html run.html",
        "agentloop trace run.journal --follow",
    ),
)
@click.argument("journal", metavar="JOURNAL", type=Place(path_type=Path))
@click.option("--html", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path), help="Write a page to FILE.")
@click.option("--follow", is_flag=True, help="Serve the page on this machine, and keep it up to date, until Ctrl-C.")
@click.option("--line", type=click.IntRange(min=1), help="The request of that line, of a folder with many.")
@click.option("--run", "run_id", metavar="ID", help="The run of that id, of a SQLite file or a database.")
@click.option("--no-content", is_flag=True, help="Leave out arguments, outputs, messages and texts of errors.")
@click.option("--key-file", type=click.File("rb"), help="File with the key that the journal is sealed with.")
@click.option("--older-seals", is_flag=True, help="Also show a journal that an older version has sealed.")
@click.option("--backend", type=click.Choice(["asyncio", "trio"]), default="asyncio", help="The loop of --follow.")
@click.option("--width", type=click.IntRange(min=20), help="Columns of the text; those of the terminal unless given.")
def trace(
    journal: Path | str,
    html: Path | None,
    follow: bool,
    line: int | None,
    run_id: str | None,
    no_content: bool,
    key_file: BinaryIO | None,
    older_seals: bool,
    backend: str,
    width: int | None,
) -> None:
    """Show what a run did when, from its JOURNAL only: a journal's file, a folder of `run --journal`, or a PostgreSQL
    database by its address, postgresql://….

    Standard output gets a line for each turn, request and call, with bars where the terminal is wide enough. With
    --html a page is written instead, which needs no network. The agents aren't imported. The journal of a run under
    way, or of one whose process has died, is shown as far as it is whole.

    With --follow the page is served at 127.0.0.1, at the address that is printed, and grows with the journal.

    Exit codes: 0 all went well, 1 the journal is damaged or FILE can't be written, 2 wrong use; of --follow 130 SIGINT
    (Ctrl-C), 143 SIGTERM.
    """
    if follow and html is not None:
        raise click.UsageError("--follow serves a page, --html writes one: give one of them.")
    try:
        key = None if key_file is None else key_file.read()
        source = find_journal(journal, line, run_id, key, older_seals=older_seals)
        if follow:
            check_backend(backend)
            if isinstance(source, TracedRows):
                source.read()  # an error of the database, or a run that isn't there, ends the command
            sys.exit(_follow(source, backend, content=not no_content))
        records = source.read()
        timeline = read_timeline(records, content=not no_content)
        if html is None:
            _write_text(timeline, width)
        else:
            from agentloop.lab import list_moments  # a text needs none

            page = render_html(timeline, moments=None if no_content else list_moments(records))
            with open(html, "w", encoding="utf-8", opener=open_private) as file:
                file.write(page)
    except AgentLoopError as error:
        click.echo(errors.words_for(error), err=True, nl=False)
        sys.exit(errors.code_of(error))
    except OSError as error:
        click.echo(errors.words_for_file(html or HOST, error), err=True, nl=False)
        sys.exit(errors.FAILED)


def _follow(source: TracedJournal | TracedRows, backend: str, *, content: bool) -> int:
    """Serve the timeline of *source* until a signal comes, and return the exit code.

    Raises:
        OSError: if no port can be opened.
    """
    ended = run_supervised(partial(source.serve, content=content), backend)
    return errors.OK if ended.signal is None else 128 + ended.signal


def _write_text(timeline: Timeline, width: int | None) -> None:
    columns = width or shutil.get_terminal_size((_WIDTH_OF_A_PIPE, 24)).columns
    text = render_text(timeline, width=columns)
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    click.echo(text.encode(encoding, "backslashreplace").decode(encoding), nl=False)
