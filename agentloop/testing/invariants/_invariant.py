"""The table of invariants, and its judge. Does not know any invariant: their modules enter them with `@invariant`.

An invariant is a name, a promise in words, and a generator function over a read observation. It yields `HELD` for each
time its premise occurred and the promise held, and a `Broken` for each breach; it yields nothing where its premise did
not occur, so that coverage can be counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Literal, TypeAlias

import attrs
import msgspec

from agentloop import records as r
from agentloop._common.masking import mask_arguments
from agentloop._common.values import iter_shown_fields
from agentloop.testing.invariants._observation import ObservedLog, Path

Group: TypeAlias = Literal["execution", "cancellation", "guards", "accounting"]
HELD = None
"""Yielded by an invariant where its premise occurred and it held."""


@attrs.frozen
class Broken:
    """A breach, made by the function of an invariant: a sentence, and the numbers of the records that show it."""

    words: str
    records: tuple[int, ...] = ()


def broken(words: str, *records: int) -> Broken:
    """Return the breach that *words* describe and *records* show."""
    return Broken(words, records)


def format_path(path: Path) -> str:
    """Return *path* as a message names its run."""
    return "/".join(path) or "(the root)"


Findings: TypeAlias = Iterator[Broken | None]
Judge: TypeAlias = Callable[[ObservedLog], Findings]


@attrs.frozen
class Invariant:
    """One row of the table. `judge` yields `HELD` or a `Broken` for every time the premise occurred."""

    name: str
    group: Group
    promise: str
    judge: Judge = attrs.field(eq=False, repr=False)


INVARIANTS: dict[str, Invariant] = {}
"""Every built-in invariant by name, in the order of their definition. Only `invariant` adds to it, at import."""


def invariant(group: Group) -> Callable[[Judge], Judge]:
    """Return a decorator that enters a function into the table: its name is the invariant's, its docstring the promise.

    Raises:
        ValueError: at decoration, if the name is taken or the docstring is missing.
    """

    def enter(judge: Judge) -> Judge:
        name = judge.__name__
        promise = " ".join((judge.__doc__ or "").split())
        if name in INVARIANTS or not promise:
            raise ValueError(f"invariant {name}: expected a name of its own and a promise in words")
        INVARIANTS[name] = Invariant(name, group, promise, judge)
        return judge

    return enter


@attrs.frozen
class Breach:
    """One breach with the name (`invariant`) and group of its invariant. Made by `judge`."""

    invariant: str
    group: Group
    broken: Broken


class InvariantError(AssertionError):
    """A run broke invariants of the library. `findings` has every breach, in the table's order."""

    def __init__(self, findings: tuple[Breach, ...], where: str = "", log: str = "") -> None:
        self.findings = findings
        lines = [f"{len(findings)} broken{where}:"]
        for finding in findings:
            lines.append(f"  {finding.invariant} ({finding.group}): {finding.broken.words}")
            lines.append(f"    promised: {INVARIANTS[finding.invariant].promise}")
        super().__init__("\n".join([*lines, log] if log else lines))

    @property
    def invariants(self) -> tuple[str, ...]:
        """The names of the broken invariants, each once."""
        return tuple(dict.fromkeys(finding.invariant for finding in self.findings))


@attrs.define
class CoverageCounter:
    """Counts simulation cases, and for each invariant the cases that exercised it: its premise occurred in them.

    The test session owns it; `judge` changes it.
    """

    worlds: int = 0
    exercised: Counter[str] = attrs.field(factory=Counter)
    broken: Counter[str] = attrs.field(factory=Counter)

    def unexercised(self, *groups: Group) -> list[str]:
        """Return the names of the invariants (of *groups*, if given) that no case exercised."""
        return [
            one.name
            for one in INVARIANTS.values()
            if not self.exercised[one.name] and (not groups or one.group in groups)
        ]

    def add(self, other: CoverageCounter) -> None:
        """Add the counts of *other* to these."""
        self.worlds += other.worlds
        self.exercised.update(other.exercised)
        self.broken.update(other.broken)


def judge(
    log: ObservedLog,
    tally: CoverageCounter | None = None,
    invariants: Iterable[Invariant] | None = None,
    *,
    worlds: int = 1,
) -> list[Breach]:
    """Judge *reading* by *invariants* (default: all invariants), and return the breaches.

    Counts in *tally* the exercised and the broken invariants, and adds *worlds* to its number of cases: 0 if the case
    has been counted before.
    """
    findings: list[Breach] = []
    if tally is not None:
        tally.worlds += worlds
    for one in INVARIANTS.values() if invariants is None else invariants:
        found = list(one.judge(log))
        if not found:
            continue
        if tally is not None:
            tally.exercised[one.name] += 1
        if any(found):
            findings += [Breach(one.name, one.group, breach) for breach in found if breach is not None]
            if tally is not None:
                tally.broken[one.name] += 1
    return findings


def format_records(records: tuple[r.Record, ...], findings: list[Breach], around: int = 2) -> str:
    """Return the records that *findings* name, with *around* records before and after each, one record a line."""
    named = {n for finding in findings for n in finding.broken.records}
    near = sorted({n + by for n in named for by in range(-around, around + 1) if 0 <= n + by < len(records)})
    lines: list[str] = []
    last = -1
    for n in near:
        if n != last + 1:
            lines.append("    ...")
        lines.append(f"  {'>' if n in named else ' '} {n:>3} {short(records[n])}")
        last = n
    return "\n".join(lines)


def short(record: r.Record) -> str:
    """Format *record* as one line of at most 200 characters: its kind, its run and turn, and its fields.

    Masks secret arguments: the line goes into errors of test sessions.
    """
    secret = getattr(record, "secret", ())
    defaults = {field.name: field.default for field in msgspec.structs.fields(record)}
    said = [
        f"{name}={mask_arguments(value, secret) if name == 'arguments' and secret else value!r}"
        for name, value in iter_shown_fields(record)
        if name not in ("path", "turn", "at") and value not in (None, (), defaults.get(name))
    ]
    where = f"{'/'.join(record.path)} turn {record.turn}" if record.path else f"turn {record.turn}"
    return f"{type(record).__name__} [{where}] {' '.join(said)}"[:200]
