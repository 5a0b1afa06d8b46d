"""The work of `agentloop lab`: a table, a report, a page, and JUnit XML; what is done is kept for the next command."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Literal

import anyio
import attrs
import click

from agentloop._common.terminal_text import exact
from agentloop.agents import Agent
from agentloop.agents._graph import AgentGraph
from agentloop.cli import errors
from agentloop.cli.private_files import open_private
from agentloop.cli.progress_bar import Bar
from agentloop.cli.supervision import check_backend, run_supervised
from agentloop.cli.target import load_agent, load_config, load_context, load_function, load_object
from agentloop.exceptions import AgentLoopError, UserError
from agentloop.journal._folder import is_address
from agentloop.lab import Case, CaseRun, LabReport, LabRow, RunCheck, compare, read_report
from agentloop.lab._compare import VerdictRule, find_stored_runs, list_sources
from agentloop.lab._effects import Unmatched
from agentloop.lab._page import make_entry, render_lab_page
from agentloop.lab._report import row_from_json


class _Progress:
    """The rows that are done, in memory, and with what the page shows of them in a file beside the report.

    Owned by one command. *place* is the file that the command writes; without one nothing is kept. A file of the same
    command that was interrupted is read, and the rows in it are done.
    """

    def __init__(self, place: Path | None, settings: str) -> None:
        self.rows: list[LabRow] = []
        self._entries: list[Any] = []
        self.path = None if place is None else place.with_name(f"{place.name}.partial")
        if self.path is not None:
            self._read(self.path, settings)

    def _read(self, path: Path, settings: str) -> None:
        # A text of a run may hold any character, and some of them end a line for `splitlines`.
        lines = path.read_text(encoding="utf-8").rstrip("\n").split("\n") if path.exists() else []
        if lines and lines[0] != settings:
            lines = []  # of other settings
        for line in lines[1:]:
            try:
                self.rows.append(row_from_json(json.loads(line)["row"]))
            except (ValueError, TypeError, KeyError):
                break  # cut off
        whole = [settings, *lines[1 : len(self.rows) + 1]]
        with open(path, "w", encoding="utf-8", opener=open_private) as file:
            file.writelines(f"{line}\n" for line in whole)

    def add(self, row: LabRow, before: CaseRun | None, after: CaseRun | None) -> None:
        """Keep a row."""
        self.rows.append(row)
        if self.path is not None:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(json.dumps(make_entry(row, before, after)) + "\n")

    def entries(self) -> Iterator[Any]:
        """Yield what the page shows of each row."""
        if self.path is not None:
            with open(self.path, encoding="utf-8") as file:
                next(file)
                yield from map(json.loads, file)

    def finish(self) -> None:
        """Remove the file: the report is whole."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def _read_where(text: str | None) -> Callable[[CaseRun], bool] | None:
    """Return the predicate of `--where`: `status=failed`, `tool=refund`, several joined by commas.

    Raises:
        UserError: it isn't one.
    """
    if text is None:
        return None
    parts = [part.strip().partition("=") for part in text.split(",")]
    for name, sign, _ in parts:
        if not sign or name not in ("status", "tool", "name"):
            raise UserError(f"--where: expected status=…, tool=… or name=…, joined by commas, got {text!r}")

    def fits(run: CaseRun) -> bool:
        known = {"status": run.status, "name": run.name}
        return all(bool(run.of(value)) if name == "tool" else known[name] == value for name, _, value in parts)

    return fits


def _load_sources(given: str) -> Any:
    """Return the path *given*, the runs of the database at that address, or the cases of `file.py:cases`."""
    if is_address(given):
        return anyio.run(find_stored_runs, given)
    if os.path.exists(given) or ":" not in given:
        return given
    found = load_object(given, "cases")
    cases = found() if callable(found) and not isinstance(found, Case) else found
    listed = [cases] if isinstance(cases, Case) else cases
    if not isinstance(listed, list | tuple) or not all(isinstance(one, Case) for one in listed):
        raise UserError(f"JOURNALS {given!r}: expected journals, or a list of lab.Case, got {cases!r}")
    return list(listed)


def _load_checks(given: str | None) -> list[RunCheck]:
    found = [] if given is None else load_object(given, "checks")
    if not isinstance(found, list | tuple) or not all(isinstance(one, RunCheck) for one in found):
        raise UserError(f"--checks {given!r}: expected a list of checks, such as lab.called('refund'), got {found!r}")
    return list(found)


def _load_judge(given: str) -> Any:
    """Return the function that *given* names, or the question that it is."""
    place, colon, name = given.rpartition(":")
    is_target = colon and name.isidentifier() and " " not in place
    return load_function(given) if is_target else given


@attrs.frozen(kw_only=True)
class LabCommand:
    """The options of one command, as click reads them."""

    journals: str
    target: str
    against: Path | None
    checks: str | None
    judges: tuple[str, ...]
    judge_model: str | None
    repeat: int
    report: Path | None
    html: Path | None
    junit: Path | None
    where: str | None
    model: str | None
    config: str | None
    context: str | None
    cache: Path
    budget: int | None
    unmatched: Unmatched
    simulate: str | None
    verdict: VerdictRule
    recorded_guards: bool
    toolsets: bool
    cases: Path
    key_file: BinaryIO | None
    seed: int
    concurrency: int
    backend: Literal["asyncio", "trio"]

    def digest(self, agent: Agent[Any, Any]) -> str:
        """Return a digest of what decides on the rows: an interrupted comparison continues with the same only.

        Of the agent that is its definition, without its code.
        """
        graph = AgentGraph(agent)
        told = [one.instructions if isinstance(one.instructions, str) else "" for one in graph.agents()]
        left_out = ("against", "report", "html", "junit", "cache", "key_file", "concurrency", "backend")
        given = {name: str(value) for name, value in attrs.asdict(self).items() if name not in left_out}
        return hashlib.sha256(json.dumps([graph.describe(), told, given], sort_keys=True).encode()).hexdigest()


def perform_lab(command: LabCommand) -> int:
    """Do what *command* says, report its error, and return the exit code."""
    try:
        check_backend(command.backend)
        if command.unmatched == "live":
            _confirm_live()
        base = None if command.against is None else read_report(command.against)
        return _compare(command, base)
    except AgentLoopError as error:
        click.echo(errors.words_for(error), err=True, nl=False)
    except OSError as error:
        click.echo(errors.words_for_file(error.filename or command.journals, error), err=True, nl=False)
    return errors.USAGE


def _compare(command: LabCommand, base: LabReport | None) -> int:
    agent, sources = load_agent(command.target, command.backend), _load_sources(command.journals)
    progress = _Progress(command.report or command.html or command.junit, command.digest(agent))
    total = len(list(list_sources(sources))) * command.repeat
    bar = Bar(shown=sys.stderr.isatty(), total=total)

    def observe(row: LabRow, before: CaseRun | None, after: CaseRun | None) -> None:
        progress.add(row, before, after)
        bar.ended()

    work = partial(
        compare,
        sources,
        agent,
        checks=_load_checks(command.checks),
        judges=[_load_judge(one) for one in command.judges],
        judge_model=command.judge_model,
        repeat=command.repeat,
        run_config=load_config(command.config, command.model),
        context=load_context(command.context),
        unmatched=command.unmatched,
        simulate=None if command.simulate is None else load_function(command.simulate),
        verdict=command.verdict,
        recorded_guards=command.recorded_guards,
        toolsets=command.toolsets,
        cache=command.cache,
        budget=command.budget,
        concurrency=command.concurrency,
        seed=command.seed,
        key=None if command.key_file is None else command.key_file.read(),
        cases=command.cases,
        where=_read_where(command.where),
        done=tuple(progress.rows),
        observe=observe,
    )
    with bar:
        for _ in progress.rows:
            bar.ended()
        ended = run_supervised(work, command.backend)
    if ended.value is None:
        return _tell_interruption(agent.name, progress, total, ended.signal or 0)
    made = ended.value
    click.echo(_encodable(str(made)))
    _write_files(command, made, progress)
    for (name, _), worse in ({} if base is None else made.find_worse(base)).items():
        click.echo(_encodable(exact(f"worse: {name}: {'; '.join(worse)}")))
    return made.exit_code(base)


def _tell_interruption(agent: str, progress: _Progress, total: int, number: int) -> int:
    """Show the rows so far, and return the exit code of a signal."""
    made = LabReport(agent, tuple(sorted(progress.rows, key=lambda row: (row.name, row.repeat))))
    click.echo(_encodable(str(made)))
    click.echo(f"{len(made.rows)} of {total} runs were compared.", err=True)
    if progress.path is not None:
        click.echo(f"They are kept in {exact(str(progress.path))}: the same command continues.", err=True)
    return 128 + number


def _confirm_live() -> None:
    """Ask twice before bodies run for real. Raises UserError if they may not."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UserError("--unmatched live runs tools for real, so it needs a terminal to ask at")
    first = click.confirm("Tools will run for real: calls that were never made before. Go on?", err=True)
    if not first or not click.confirm("With the data and the keys of this machine. Are you sure?", err=True):
        raise UserError("nothing was run")


def _write_files(command: LabCommand, made: LabReport, progress: _Progress) -> None:
    today = datetime.now(UTC).strftime("%Y-%m-%d")
    texts: list[tuple[Path | None, Callable[[], str]]] = [
        (command.report, lambda: made.to_json(made=today)),
        (command.html, lambda: render_lab_page(made, progress.entries())),
        (command.junit, made.to_junit),
    ]
    for path, write in texts:
        if path is not None:
            with open(path, "w", encoding="utf-8", opener=open_private) as file:
                file.write(write())
    progress.finish()


def _encodable(text: str) -> str:
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)
