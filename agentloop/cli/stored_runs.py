"""`agentloop runs`: the runs of a database or of a folder, and what an operator does with those of a database."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import anyio
import attrs
import click
import msgspec
from click.core import ParameterSource

from agentloop._common.terminal_text import exact
from agentloop.cli import errors
from agentloop.cli.help_text import examples
from agentloop.cli.show import json_line
from agentloop.cli.trace import Place
from agentloop.exceptions import AgentLoopError, StateError, UserError
from agentloop.journal._folder import is_address
from agentloop.journal._reading import find_runs, read_lines_of

if TYPE_CHECKING:  # the store is imported by this command only
    from agentloop.postgres import PostgresStore, StoredRun, StoredStatus

ACTIONS = ("list", "health", "cancel", "retry", "delete", "migrate")
STATUSES: tuple[StoredStatus, ...] = (
    *("queued", "running", "interrupted", "completed", "failed", "cancelled", "stopped", "dead"),
)
_TAKES: dict[str, set[str]] = {
    "list": {"run_ids", "statuses", "agent", "older_than", "limit", "after", "as_json", "key_file"},
    "health": {"as_json"},
    "cancel": {"run_ids", "by"},
    "retry": {"run_ids", "key_file"},
    "delete": {"run_ids", "statuses", "older_than"},
    "migrate": set(),
}
"""The parameters of each action. Others are refused: who gives one expects that it counts."""
_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_AGE = re.compile(r"(\d+(?:\.\d+)?)([smhd])")


def _read_age(_ctx: click.Context, _param: click.Parameter, text: str | None) -> float | None:
    """Return the seconds of a time such as 90s, 15m, 12h or 30d.

    Raises:
        click.BadParameter: it is none.
    """
    if text is None:
        return None
    found = _AGE.fullmatch(text)
    if found is None:
        raise click.BadParameter(f"expected a number with s, m, h or d, such as 30d, got {text!r}")
    return float(found[1]) * _UNITS[found[2]]


@attrs.frozen(kw_only=True)
class _Command:
    """The command's arguments."""

    runs: tuple[str, ...]
    statuses: tuple[StoredStatus, ...]
    agent: str | None
    older_than: float | None
    limit: int | None
    after: str | None
    as_json: bool
    by: str | None
    key: bytes | None = attrs.field(repr=False)

    async def act(self, store: PostgresStore, action: str) -> int:
        """Do *action* with the database, and return the exit code."""
        match action:
            case "list" if self.runs:
                asked = [await store.find(run_id) for run_id in dict.fromkeys(self.runs)]
                self.show_chosen([run for run in asked if run is not None])
            case "list":
                await self._show_page(store)
            case "health":
                return await self._show_health(store)
            case "migrate":
                written = await store.migrate()
                click.echo(f"The tables are up to date. Rows of runs that were written: {written}.")
            case "delete" if not self.runs:
                assert self.older_than is not None
                deleted = await store.delete_older(self.older_than, status=self.statuses or None)
                click.echo(f"Runs deleted: {deleted}.")
            case _:
                for run_id in self.runs:
                    click.echo(f"{exact(run_id)} {await self._change(store, action, run_id)}")
        return errors.OK

    async def _show_page(self, store: PostgresStore) -> None:
        found = await store.runs(
            status=self.statuses or None,
            agent=self.agent,
            older_than=self.older_than,
            limit=self.limit,
            after=self.after,
        )
        self.show(found)
        if found and len(found) == self.limit:
            click.echo(f"For the next ones: --after {exact(found[-1].cursor)}", err=True)

    async def _change(self, store: PostgresStore, action: str, run_id: str) -> str:
        """Do *action* with one run, and return what has become of it."""
        match action:
            case "cancel":
                if await store.cancel(run_id, by=self.by):
                    return "is cancelled."
                return "will be cancelled by its worker, at the next renewal of its lease."
            case "retry":
                await store.retry(run_id, key=self.key)
                run = await store.find(run_id)
                if run is not None and run.due_at is not None:
                    return "is due: a worker that serves its agent takes it."
                return "may be continued: give your queue a job for it."
            case _:
                await store.delete(run_id)
                return "is deleted."

    async def _show_health(self, store: PostgresStore) -> int:
        health = await store.health()
        if health.error is not None:
            raise AgentLoopError(health.error)
        if self.as_json:
            parts = ("seconds", "runs", "oldest", "waiting")
            click.echo(json_line({part: getattr(health, part) for part in parts}), nl=False)
            return errors.OK
        click.echo(f"The database has answered in {health.seconds * 1000:.0f} ms.")
        for status, count in sorted(health.runs.items()):
            click.echo(f"{status}: {count}, the oldest for {format_age(health.oldest[status])}")
        click.echo(f"waiting for a person: {health.waiting}")
        return errors.OK

    def show(self, found: Sequence[StoredRun]) -> None:
        """Write a line for each run."""
        for run in found:
            if self.as_json:
                click.echo(json_line(msgspec.to_builtins(run)), nl=False)
            else:
                click.echo(_format_run(run))
        if not found and not self.as_json:
            click.echo("There is no such run.", err=True)

    def show_folder(self, folder: Path) -> None:
        """List the runs in the journals of a folder, as those of a database are."""
        self.show_chosen(
            [run for name, path, run_id in find_runs(folder) if (run := _read_run(name, path, run_id, self.key))]
        )

    def show_chosen(self, found: Sequence[StoredRun]) -> None:
        """List those of *found* that the arguments choose.

        Raises:
            StateError: a run that they name isn't among them.
        """
        if missing := set(self.runs) - {run.run_id for run in found}:
            raise StateError(f"there is no run {', '.join(map(repr, sorted(missing)))}")
        now = time.time()
        self.show(
            [
                run
                for run in sorted(found, key=lambda run: (run.since, run.run_id))
                if (not self.runs or run.run_id in self.runs)
                and (not self.statuses or run.status in self.statuses)
                and self.agent in (None, run.agent)
                and (self.older_than is None or run.since < now - self.older_than)
            ][: self.limit]
        )


def _read_run(name: str, path: Path, run_id: str | None, key: bytes | None) -> StoredRun | None:
    """Return the run in a journal, as its row in a database would have it; None if nothing whole is there yet."""
    from agentloop.postgres import StoredRun
    from agentloop.postgres._run_rows import RowSummary, read_times

    lines = read_lines_of(str(path), run_id, key)
    summary = RowSummary().follow(lines)
    if summary.status is None:
        return None
    began_at, since = read_times(lines)
    return StoredRun(name, summary.status, summary.agent, since, began_at, summary.waiting, summary.error)


def format_age(seconds: float) -> str:
    """Return a time in its largest whole unit: `3 d`."""
    for unit in ("d", "h", "m"):
        if seconds >= _UNITS[unit]:
            return f"{int(seconds // _UNITS[unit])} {unit}"
    return f"{max(int(seconds), 0)} s"


def _format_run(run: StoredRun) -> str:
    parts = [exact(run.run_id), run.status, format_age(time.time() - run.since), exact(run.agent)]
    parts += [f"{exact(call.tool)} ({exact(call.call_id)}) waits for its {call.asks}" for call in run.waiting]
    parts += [] if run.error is None else [exact(run.error)]
    parts += [f"of {exact(run.owner)}"] if run.owner else []
    parts += [f"attempts: {run.attempts}"] if run.attempts else []
    parts += [] if run.trouble is None else [exact(run.trouble)]
    parts += [] if run.held_until is None else [f"held by {exact(run.worker or '?')}"]
    if run.cancel_requested:
        parts.append("cancelled" + ("" if run.cancelled_by is None else f" by {exact(run.cancelled_by)}"))
    return "  ".join(parts)


@click.command(
    short_help="List runs; cancel, retry or delete those of a database.",
    epilog=examples("agentloop runs jobs/may", "agentloop runs jobs/clean --status interrupted --json"),
)
@click.argument("place", metavar="PLACE", type=Place(path_type=Path))
@click.argument("action", type=click.Choice(ACTIONS), default="list", metavar="[ACTION]")
@click.argument("run_ids", metavar="[RUN]...", nargs=-1)
@click.option("--status", "statuses", multiple=True, type=click.Choice(STATUSES), help="Only these; may be repeated.")
@click.option("--agent", metavar="NAME", help="Only runs that are in this agent.")
@click.option(
    "--older-than", metavar="AGE", callback=_read_age, help="Only runs that have their status for longer: 12h, 30d."
)
@click.option("--limit", type=click.IntRange(min=1), help="The most runs to list.")
@click.option("--after", metavar="CURSOR", help="The next runs of a database after --limit, which names the cursor.")
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object a line.")
@click.option("--by", metavar="NAME", help="Who cancels.")
@click.option("--key-file", type=click.File("rb"), help="File with the key that the journals are sealed with.")
def runs(
    place: Path | str,
    action: str,
    run_ids: tuple[str, ...],
    statuses: tuple[StoredStatus, ...],
    older_than: float | None,
    key_file: BinaryIO | None,
    **options: Any,
) -> None:
    """List the runs of PLACE: a PostgreSQL database by its address, postgresql://…, or a folder of journals.

    Each line has the run, its status and since when, its agent, and the calls that wait. Those that have their status
    for the longest time come first.

    ACTION is `list`, or for a database: `cancel RUN...` (a worker that has the run stops), `retry RUN...` (a run that
    failed, was cancelled or is dead may be continued), `delete RUN...` or `delete --older-than 30d` (runs that are
    over), `migrate` (bring the tables up to date, by a role that may), `health`.

    Exit codes: 0 all went well, 1 there is no such RUN, the database refuses or a journal is damaged, 2 wrong use.
    """
    try:
        key = None if key_file is None else key_file.read()
        command = _Command(runs=run_ids, statuses=statuses, older_than=older_than, key=key, **options)
        _check_use(place, action, command)
        if isinstance(place, Path):
            command.show_folder(place)
        else:
            sys.exit(anyio.run(_perform, place, lambda store: command.act(store, action)))
    except AgentLoopError as error:
        click.echo(errors.words_for(error), err=True, nl=False)
        sys.exit(errors.code_of(error))
    except OSError as error:
        click.echo(errors.words_for_file(place, error), err=True, nl=False)
        sys.exit(errors.FAILED)


def _check_use(place: Path | str, action: str, command: _Command) -> None:
    """Return if *action* can be done at *place* with what is given.

    Raises:
        click.UsageError, UserError: if not.
    """
    if isinstance(place, Path):
        if action != "list":
            raise click.UsageError(f"{action} is for a database.")
        if not place.is_dir():
            what = "expected a folder of journals, got a file" if place.exists() else "there is no such folder"
            raise UserError(f"{place}: {what}")
    assert isinstance(place, Path) or is_address(place)
    _check_taken(action, command)
    if command.after is not None and (command.runs or isinstance(place, Path)):
        raise click.UsageError("--after is for a database, without RUN.")
    if action in ("cancel", "retry") and not command.runs:
        raise click.UsageError(f"{action} needs the RUNs.")
    if action == "delete" and not command.runs and command.older_than is None:
        raise click.UsageError("delete needs the RUNs, or --older-than AGE.")


def _check_taken(action: str, command: _Command) -> None:
    """Return if *action* takes all that is given.

    Raises:
        click.UsageError: if not.
    """
    context = click.get_current_context()
    taken = {"run_ids"} if action == "delete" and command.runs else _TAKES[action]
    for given in context.command.params:
        source = context.get_parameter_source(given.name or "")
        if isinstance(given, click.Option) and given.name not in taken and source is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{action}{' RUN' if command.runs else ''} takes no {given.opts[0]}.")
    if command.runs and "run_ids" not in taken:
        raise click.UsageError(f"{action} takes no RUN.")


async def _perform(address: str, work: Callable[[PostgresStore], Awaitable[int]]) -> int:
    from agentloop.postgres import PostgresStore

    async with PostgresStore(address, connections=1) as store:
        return await work(store)
