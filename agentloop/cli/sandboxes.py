"""`agentloop sandbox prune`: removes what killed processes have left of sandboxes, and tells what it keeps and why."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import anyio
import click

from agentloop._core.run_fold import RunFold
from agentloop.agents import Agent
from agentloop.cli import errors
from agentloop.cli.help_text import examples
from agentloop.exceptions import AgentLoopError, StateError
from agentloop.executors import LocalSandboxes, PrunedSandbox
from agentloop.journal import read_journal
from agentloop.journal._folder import journal_files
from agentloop.records import Record, RunStarted
from agentloop.state import RunState, check_goes_on

_SPAN = re.compile(r"(\d+)([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_WHY = {
    "in use": "a run has it",
    "unfinished": "its process died while it made or removed it",
    "over": "its run is over, or has another one",
    "old": "no run has used it for longer than --older-than",
    "kept": "its run may be resumed",
}


def _to_seconds(_ctx: click.Context, _param: click.Parameter, given: str | None) -> float | None:
    """Return the seconds of a text like `90m`."""
    if given is None:
        return None
    found = _SPAN.fullmatch(given)
    if found is None:
        raise click.BadParameter(f"{given!r} is no span of time: expected a number and one of s, m, h, d, as in 7d")
    return float(found[1]) * _SECONDS[found[2]]


@click.group()
def sandbox() -> None:
    """Look after the sandboxes of runs on this machine."""


@sandbox.command(
    epilog=examples(
        "agentloop sandbox prune sandboxes --dry-run",
        "agentloop sandbox prune sandboxes --journal jobs/may",
        "agentloop sandbox prune sandboxes --older-than 7d",
    )
)
@click.argument("folder", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--journal",
    "journals",
    metavar="PATH",
    multiple=True,
    type=click.Path(exists=True, path_type=Path),
    help="Journal of a run, or a folder of them: it tells whether the run is over. May be given several times.",
)
@click.option(
    "--older-than",
    metavar="SPAN",
    callback=_to_seconds,
    help="Also remove what no run has used for so long: 90m, 12h, 7d.",
)
@click.option("--dry-run", is_flag=True, help="Remove nothing, and tell what would be removed.")
def prune(folder: Path, journals: tuple[Path, ...], older_than: float | None, dry_run: bool) -> None:
    """Remove the sandboxes in DIR that no run needs any more.

    These are the ones whose process died while it made or removed them, those whose runs are over by their journals,
    and with --older-than those that were not used for a time. A sandbox that a run has is never removed. A run whose
    sandbox was removed can't be resumed, so give journals of runs that are resumed from them only.

    Exit codes: 0 all went well, 1 something could not be removed, 2 wrong use.
    """
    known = _find_runs(journals)

    def is_over(run_id: str, name: str) -> bool | None:
        path = known.get(run_id)
        return None if path is None else _is_over(path, name)

    async def work() -> tuple[PrunedSandbox, ...]:
        return await LocalSandboxes(folder).prune(is_over, older_than=older_than, dry_run=dry_run)

    try:
        found = anyio.run(work)
    except OSError as error:
        click.echo(errors.words_for(error), err=True, nl=False)
        sys.exit(errors.FAILED)
    for one in found:
        did = "kept" if not one.removed else "would be removed" if dry_run else "removed"
        run = "" if one.run_id is None else f", run {one.run_id}"
        click.echo(f"{one.name}  {did}: {_WHY[one.reason]}{run}")
    counts = Counter(one.removed for one in found)
    click.echo(f"{counts[True]} {'would be ' if dry_run else ''}removed, {counts[False]} kept.", err=True)


def _find_runs(paths: tuple[Path, ...]) -> dict[str, Path]:
    """Return the journal of each run, by its id. Files that can't be read are named on standard error, and left out."""
    found: dict[str, Path] = {}
    for path in _list_files(paths):
        try:
            first = next(read_journal(path), None)
        except AgentLoopError as error:
            click.echo(f"Left out: {errors.message_of(error)}", err=True)
            continue
        if isinstance(first, RunStarted):
            found[first.run_id] = path
    return found


def _list_files(paths: tuple[Path, ...]) -> Iterator[Path]:
    for path in paths:
        yield from journal_files(path) if path.is_dir() else [path]


def _is_over(path: Path, name: str) -> bool | None:
    """Tell whether the run of the journal is over, or has another sandbox; None if the journal can't be read now."""
    try:
        return is_over(list(read_journal(path)), name)
    except AgentLoopError:
        return None


def is_over(records: list[Record], name: str) -> bool:
    """Tell whether the run of *records* is over, or has another sandbox than *name*."""
    fold: RunFold = RunState(Agent("pruned"), records)._fold
    try:
        check_goes_on(fold)
    except StateError:
        return True
    return fold.sandbox != name
