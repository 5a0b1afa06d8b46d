"""The result of a fork: the tree of its runs as a table, and as an HTML page that needs no network."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from html import escape
from pathlib import Path

import attrs

from agentloop import records as r
from agentloop._common import notebook
from agentloop._common.error_text import shorten
from agentloop._common.terminal_text import exact
from agentloop.exceptions import UserValueError
from agentloop.lab._diff import RunDiff, diff_runs
from agentloop.lab._page import read_page_files
from agentloop.lab._report import spell_surrogates
from agentloop.lab._runs import CaseRun
from agentloop.tracing._html_page import fill_page

_MOST_CHARS = 2_000


@attrs.frozen(kw_only=True)
class Origin:
    """The beginning of a fork.

    Attributes:
        run_id: The id of the run that it continues.
        records: How many records of that run it begins with.
        edits: What was edited in them, in words.
        branch: The branch's name.
    """

    run_id: str
    records: int
    edits: tuple[str, ...] = ()
    branch: str = ""


@attrs.frozen(kw_only=True, eq=False)
class ForkedRun:
    """One branch of a fork. `fork` takes it, as it takes a run.

    Attributes:
        name: The branch's name.
        run: The run, with what it began with.
        origins: What it was forked of, the oldest first: the last one is the run that it continues.
        cost: The cost of its requests and calls since the fork; None if nothing had a price.
        requests: How many model requests it had made, or had answered by the cache.
        refused: How many calls the lab refused.
        error: Why it has no end: an error before its first step, or a log that says no more.
        notes: What code under test did beyond the process.
        path: Its journal; None if none was written.
    """

    name: str
    run: CaseRun = attrs.field(repr=False)
    origins: tuple[Origin, ...]
    cost: Decimal | None
    requests: int
    refused: int
    error: str | None = None
    notes: tuple[str, ...] = ()
    path: Path | None = None

    @property
    def records(self) -> tuple[r.Record, ...]:
        """Its log."""
        return self.run.records

    @property
    def answer(self) -> str:
        """Its answer, or what it has in place of one, in words."""
        return self.error or _end_of(self.run)


@attrs.frozen(kw_only=True, eq=False)
class Fork:
    """The result of a fork: the run that it was made of, and its branches in their order. Its text is a table.

    Attributes:
        run: The run of the log, whole.
        at: How many of its records the branches begin with.
        turn: The turn in which the fork lies.
        edits: What was edited in them, in words.
        branches: The branches.
        origins: What the run itself was forked of, the oldest first; empty if it wasn't.
    """

    run: CaseRun = attrs.field(repr=False)
    at: int
    turn: int
    edits: tuple[str, ...]
    branches: tuple[ForkedRun, ...]
    origins: tuple[Origin, ...] = ()

    def diff(self, name: str) -> RunDiff:
        """Return the difference of the run and its branch *name*: the first one, and what follows from it.

        Raises:
            UserError: there is no such branch.
        """
        return diff_runs(self.run.records, self[name].records)

    def __getitem__(self, name: str) -> ForkedRun:
        for one in self.branches:
            if one.name == name:
                return one
        raise UserValueError(f"branch: expected one of {[one.name for one in self.branches]}, got {name!r}")

    def __str__(self) -> str:
        return "\n".join(exact(line) for line in self._list_lines())

    def _list_lines(self) -> Iterable[str]:
        yield from map(_describe_origin, self.origins)
        run = self.run
        end = shorten(" ".join(_end_of(run).split()), 70)
        yield f"{run.name}: {len(run.records)} records, {_figures(run)}, ends with: {end}"
        yield _place(self.at, self.turn, self.edits)
        for one in self.branches:
            cost = "" if one.cost is None else f", cost {one.cost:f} since"
            refused = f", {one.refused} calls refused" if one.refused else ""
            yield f"  {one.name}: {_figures(one.run)}, {one.requests} requests since{cost}{refused}"
            yield f"    {shorten(' '.join(one.answer.split()), 100)}"

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the table."""
        return notebook.page("Fork", pieces=[notebook.block(str(self))])

    def to_html(self) -> str:
        """Return the page of the tree: the run, its branches, their answers and costs. It needs no network."""
        title = exact(f"{self.run.name}: a fork at record {self.at}")
        return fill_page(read_page_files("fork"), spell_surrogates(title), spell_surrogates("".join(_draw(self))))


def _describe_origin(origin: Origin) -> str:
    """Return a line about what a run was forked of."""
    return f"{origin.run_id}: {_place(origin.records, None, origin.edits)}; branch {origin.branch}"


def _figures(run: CaseRun) -> str:
    cost = "" if run.cost is None else f", cost {run.cost:f}"
    return f"{run.turns} turns, {run.tokens} tokens{cost}, {run.seconds:.2f} s"


def _end_of(run: CaseRun) -> str:
    if run.error is not None:
        return run.error
    return run.answer_text if run.answer is not None else run.status or "no end"


def _draw(fork: Fork) -> Iterable[str]:
    yield '<ul class="tree">'
    for origin in fork.origins:
        yield f"<li><h2>{_text(origin.run_id)}</h2>"
        yield f"<p>{_text(_place(origin.records, None, origin.edits))}: branch {_text(origin.branch)}</p><ul>"
    run = fork.run
    yield f"<li><h2>{_text(run.name)}</h2>{_draw_figures(run)}{_draw_answer(_end_of(run))}"
    yield f"<p>{_text(_place(fork.at, fork.turn, fork.edits))}</p><ul>"
    for branch in fork.branches:
        yield from _draw_branch(fork, branch)
    yield "</ul></li>" * (len(fork.origins) + 1) + "</ul>"


def _draw_branch(fork: Fork, branch: ForkedRun) -> Iterable[str]:
    yield f"<li><h2>{_text(branch.name)}</h2>"
    more = [("requests since", str(branch.requests))]
    if branch.cost is not None:
        more.append(("cost since", f"{branch.cost:f}"))
    if branch.refused:
        more.append(("refused calls", str(branch.refused)))
    yield _draw_figures(branch.run, more)
    yield _draw_answer(branch.answer)
    lines = str(fork.diff(branch.name)).splitlines()
    shown = "\n".join(shorten(line, _MOST_CHARS) for line in lines)
    yield f"<details><summary>{_text(lines[0].removesuffix('; then'))}</summary><pre>{_text(shown)}</pre></details>"
    yield from (f"<p>{_text(note)}</p>" for note in branch.notes)
    yield "</li>"


def _draw_figures(run: CaseRun, more: Iterable[tuple[str, str]] = ()) -> str:
    shown = [("turns", str(run.turns)), ("tokens", f"{run.tokens}"), ("seconds", f"{run.seconds:.2f}")]
    if run.cost is not None:
        shown.append(("cost", f"{run.cost:f}"))
    return f"<dl>{''.join(f'<div><dt>{name}</dt><dd>{value}</dd></div>' for name, value in [*shown, *more])}</dl>"


def _draw_answer(text: str) -> str:
    return f"<blockquote>{_text(shorten(text, _MOST_CHARS))}</blockquote>"


def _place(records: int, turn: int | None, edits: Iterable[str]) -> str:
    where = "" if turn is None else f" (turn {turn})"
    return f"forked at record {records}{where}" + "".join(f"; {edit}" for edit in edits)


def _text(text: str) -> str:
    return escape("\n".join(map(exact, text.split("\n"))))
