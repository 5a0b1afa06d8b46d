"""`agentloop show` and `agentloop diff`: a recorded run at one moment, and two recorded runs side by side."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NoReturn

import click

from agentloop._common.terminal_text import exact, harmless
from agentloop.cli import errors
from agentloop.cli.help_text import examples
from agentloop.cli.trace import Place, find_journal
from agentloop.exceptions import AgentLoopError, UserError
from agentloop.journal._folder import is_address
from agentloop.journal._reading import list_runs
from agentloop.records import Record

_PLACE = Place(path_type=Path)
_KEY = click.option("--key-file", type=click.File("rb"), help="File with the key that the journal is sealed with.")


def _read(place: Path | str, run_id: str | None, key: bytes | None, line: int | None = None) -> Sequence[Record]:
    """Return the records of the journal at *place*.

    Raises:
        AgentLoopError: there is none, or it can't be read.
    """
    records = find_journal(place, line, run_id, key).read()
    if not records:
        raise UserError(f"{errors.name_place(place)}: nothing whole is in it")
    return records


@click.command(
    short_help="Show a run as it was after one of its records.",
    epilog=examples(
        "agentloop show run.journal --at 4",
        "agentloop show jobs/may --at 3 --waiting",
    ),
)
@click.argument("journal", type=_PLACE)
@click.option("--at", type=int, metavar="N", help="The number of the record, from 1; the last one if not given.")
@click.option("--request", is_flag=True, help="What the model would be shown, and may call.")
@click.option("--history", is_flag=True, help="What the model would be shown.")
@click.option("--waiting", is_flag=True, help="What has not ended, and what it waits for.")
@click.option("--limits", is_flag=True, help="How much of the run's limits is spent.")
@click.option("--line", type=click.IntRange(min=1), help="The request of that line, of a folder with many.")
@click.option("--run", "run_id", metavar="ID", help="The run of that id, of a SQLite file or a database.")
@_KEY
def show(
    journal: Path | str,
    at: int | None,
    line: int | None,
    run_id: str | None,
    key_file: BinaryIO | None,
    **parts: bool,
) -> None:
    """Show what a run of JOURNAL was about after its record N: all of it, or the parts that are named. JOURNAL is a
    file, a folder of `run --journal`, or a PostgreSQL database by its address, postgresql://….

    The agents aren't imported, and nothing is run. Nested runs that haven't ended follow the outermost one.

    Exit codes: 0 all went well, 1 the journal is damaged, 2 wrong use.
    """
    from agentloop.lab import moment_at

    try:
        records = _read(journal, run_id, None if key_file is None else key_file.read(), line)
        moment = moment_at(records, len(records) if at is None else at)
    except AgentLoopError as error:
        _refuse(error)
    chosen = [name for name, wanted in parts.items() if wanted] or ["request", "waiting", "limits"]
    click.echo("\n".join(harmless(text) for text in moment.describe(chosen)))


@click.command(
    short_help="Tell where two runs differ first, and what follows.",
    epilog=examples("agentloop diff run.journal jobs/may"),
)
@click.argument("before", metavar="A", type=_PLACE)
@click.argument("after", metavar="B", type=_PLACE)
@click.option("--run", "run_ids", metavar="ID", multiple=True, help="The run of A, then that of B, as in `show`.")
@_KEY
def diff(before: Path | str, after: Path | str, run_ids: tuple[str, ...], key_file: BinaryIO | None) -> None:
    """Tell the first difference of the runs in the journals A and B, and what follows from it.

    With one --run it is that of each journal that holds several runs. Ids and times don't count. The agents aren't
    imported.

    Exit codes: 0 the runs are the same, 1 they differ, 2 wrong use, or a journal can't be read.
    """
    from agentloop.lab import diff_runs

    try:
        key = None if key_file is None else key_file.read()
        found = diff_runs(*(_read(*one, key) for one in _choose_runs((before, after), run_ids)))
    except AgentLoopError as error:
        click.echo(errors.words_for(error), err=True, nl=False)
        sys.exit(errors.USAGE)
    click.echo("\n".join(map(exact, str(found).splitlines())))
    sys.exit(0 if found.first is None else 1)


def _choose_runs(places: Sequence[Path | str], run_ids: Sequence[str]) -> Iterator[tuple[Path | str, str | None]]:
    """Yield each of two places with the run that is chosen of it.

    Raises:
        click.UsageError: there are too many runs.
    """
    if len(run_ids) > len(places):
        raise click.UsageError("--run: expected one, or one for A and one for B.")
    for place, run_id in zip(places, [*run_ids, *run_ids, None, None], strict=False):
        holds_many = is_address(place) or (isinstance(place, Path) and place.is_file() and list_runs(place) is not None)
        yield place, run_id if holds_many or len(run_ids) > 1 else None


def _refuse(error: AgentLoopError) -> NoReturn:
    click.echo(errors.words_for(error), err=True, nl=False)
    sys.exit(errors.code_of(error))
