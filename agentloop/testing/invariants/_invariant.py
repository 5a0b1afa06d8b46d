"""What an invariant is: a name, a promise in words, and a function that looks for its premise and for its breach."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Literal, TypeAlias

import attrs

from agentloop import records as r
from agentloop._common.masking import masked_arguments
from agentloop.testing.invariants._observation import Reading

Group: TypeAlias = Literal["execution", "cancellation", "guards", "accounting"]
HELD = None
"""What a law yields where its premise occurred and it held."""


@attrs.frozen
class Broken:
    """A breach: in words, and the numbers of the records that show it."""

    words: str
    records: tuple[int, ...] = ()


def broken(words: str, *records: int) -> Broken:
    """Return the breach that *words* tell and *records* show."""
    return Broken(words, records)


Judge: TypeAlias = Callable[[Reading], Iterator[Broken | None]]


@attrs.frozen
class Invariant:
    """One invariant. `judge` yields `HELD` or a `Broken` for every time its premise occurred."""

    name: str
    group: Group
    promise: str
    judge: Judge = attrs.field(eq=False, repr=False)


INVARIANTS: dict[str, Invariant] = {}
"""Every built-in invariant by name, in the order of their definition."""


def law(group: Group) -> Callable[[Judge], Judge]:
    """Enter a function into the table of invariants; its name is the invariant's, its docstring the promise."""

    def enter(judge: Judge) -> Judge:
        name = judge.__name__
        promise = " ".join((judge.__doc__ or "").split())
        if name in INVARIANTS or not promise:
            raise ValueError(f"invariant {name}: a name of its own and a promise in words are needed")
        INVARIANTS[name] = Invariant(name, group, promise, judge)
        return judge

    return enter


@attrs.frozen
class Breach:
    """One invariant that didn't hold, and where."""

    law: str
    group: Group
    broken: Broken


class InvariantError(AssertionError):
    """A run broke invariants of the library. `findings` has them all, in the table's order."""

    def __init__(self, findings: tuple[Breach, ...], where: str = "", log: str = "") -> None:
        self.findings = findings
        lines = [f"{len(findings)} broken{where}:"]
        for finding in findings:
            lines.append(f"  {finding.law} ({finding.group}): {finding.broken.words}")
            lines.append(f"    promised: {INVARIANTS[finding.law].promise}")
        super().__init__("\n".join([*lines, log] if log else lines))

    @property
    def laws(self) -> tuple[str, ...]:
        """The names of the broken invariants, each once."""
        return tuple(dict.fromkeys(finding.law for finding in self.findings))


@attrs.define
class CoverageCounter:
    """How many worlds were judged, and how many of them exercised each invariant: its premise occurred in them."""

    worlds: int = 0
    exercised: Counter[str] = attrs.field(factory=Counter)
    broken: Counter[str] = attrs.field(factory=Counter)

    def unexercised(self, *groups: Group) -> list[str]:
        """Return the invariants (of *groups*, if given) that no world exercised."""
        return [
            one.name
            for one in INVARIANTS.values()
            if not self.exercised[one.name] and (not groups or one.group in groups)
        ]

    def add(self, other: CoverageCounter) -> None:
        """Count *other*'s worlds too."""
        self.worlds += other.worlds
        self.exercised.update(other.exercised)
        self.broken.update(other.broken)


def judge(
    reading: Reading, tally: CoverageCounter | None = None, laws: Iterable[Invariant] | None = None, *, worlds: int = 1
) -> list[Breach]:
    """Return what *reading* breaks of *laws* (all, if not given), and count in *tally* what it exercises.

    It counts as so many *worlds*: 0 where it has been counted before.
    """
    findings: list[Breach] = []
    if tally is not None:
        tally.worlds += worlds
    for one in INVARIANTS.values() if laws is None else laws:
        found = list(one.judge(reading))
        if not found:
            continue
        if tally is not None:
            tally.exercised[one.name] += 1
        if any(found):
            findings += [Breach(one.name, one.group, breach) for breach in found if breach is not None]
            if tally is not None:
                tally.broken[one.name] += 1
    return findings


def told(records: tuple[r.Record, ...], findings: list[Breach], around: int = 2) -> str:
    """Return the records that *findings* name, with some before and after, one a line."""
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
    """Return *record* in one short line: its kind, where it stands, and what it says."""
    secret = getattr(record, "secret", ())
    said = [
        f"{field.name}={masked_arguments(value, secret) if field.name == 'arguments' and secret else value!r}"
        for field in attrs.fields(type(record))
        if field.repr
        and field.name not in ("path", "turn", "at")
        and (value := getattr(record, field.name)) not in (None, (), field.default)
    ]
    where = f"{'/'.join(record.path)} turn {record.turn}" if record.path else f"turn {record.turn}"
    return f"{type(record).__name__} [{where}] {' '.join(said)}"[:200]
