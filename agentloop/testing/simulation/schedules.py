"""Schedulers: tapes, priorities, and the search through all schedules of a program.

A *scheduler* is called at each choice: whenever at least two tasks, or two waiters at the gate, could run next. It
gets their labels in the natural order (the order without a scheduler) and returns the index of the one that runs. The
call comes from inside the event loop, so a scheduler may neither await nor raise, and every random number it needs has
its seed before the run. This module does not know about loops, tasks or gates: a label is only text.

One run, in order: the loop or the gate calls `Recorder` with labels; it calls the scheduler behind it and appends
`(count, index)` to `choices`. After the run `tape_of(choices)` gives the shortest tape of the run's schedule, and
`Tape` of these numbers repeats it, as index 0 is the natural order and a tape gives 0 past its end.

`Exhaustive` walks a tree that it learns from the runs. A node is a tape: the choices up to a point, then one number
other than 0. `_waiting` is the fact: the branches not yet run, by their number of departures from the natural order;
`_tape` is the tape that was given last. `ran(choices)` adds a branch for each alternative *behind* the end of that
tape. Choices before its end were branched by the runs that led to it.

Invariants:

* Each schedule is given exactly once. A tape ends with its last departure, and only the run of the tape without that
  departure adds it.
* A tape with fewer departures comes first, so the first failure found departs least from the natural order.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

import attrs

from agentloop.exceptions import UserTypeError, UserValueError

Scheduler: TypeAlias = Callable[[Sequence[str]], int]
Choices: TypeAlias = tuple[tuple[int, int], ...]
"""The choices of one run: at each, the number of candidates and the index of the chosen one."""


def first(labels: Sequence[str]) -> int:
    """Choose the natural order: always the first candidate."""
    return 0


class Tape:
    """A scheduler that plays numbers: the n-th choice among k takes number n modulo k.

    Smaller numbers and a shorter tape are closer to the natural order, so a tape shrinks well. Past the tape's end the
    first candidate is chosen; with *seed*, a random one that depends on the seed only. One tape serves one run: it
    counts its own calls.
    """

    def __init__(self, numbers: Iterable[int] = (), *, seed: int | None = None) -> None:
        self.numbers: tuple[int, ...] = tuple(numbers)
        for index, number in enumerate(self.numbers):
            if isinstance(number, bool) or not isinstance(number, int):
                raise UserTypeError(f"Tape: numbers[{index}]: expected a whole number, got {number!r}")
            if number < 0:
                raise UserValueError(f"Tape: numbers[{index}]: may not be negative, and is {number}")
        self.seed = seed
        self._random = random.Random(seed) if seed is not None else None
        self._at = 0

    def __repr__(self) -> str:
        seed = f", seed={self.seed}" if self.seed is not None else ""
        return f"Tape({list(self.numbers)}{seed})"

    def __call__(self, labels: Sequence[str]) -> int:
        at = self._at
        self._at += 1
        if at < len(self.numbers):
            return self.numbers[at] % len(labels)
        return self._random.randrange(len(labels)) if self._random is not None else 0


class Priorities:
    """A scheduler after PCT (Burckhardt and others, 2010), which finds a bug of *depth* d with a known least chance.

    Each owner gets a random priority at its first label, and the highest priority is chosen. At `depth - 1` random
    choices among the first *length*, the owner that would be chosen falls below all others. *owner* maps a label to its
    owner: labels of one owner share a priority.
    """

    def __init__(self, seed: int, *, depth: int, length: int, owner: Callable[[str], str] = str) -> None:
        if depth < 1:
            raise UserValueError(f"Priorities: depth: expected at least 1, got {depth!r}")
        self._random = random.Random(seed)
        self._owner = owner
        self._priority: dict[str, float] = {}
        # `sample` needs at least as many positions as drops, also for a run without any choice.
        self._drops = frozenset(self._random.sample(range(max(length, depth - 1)), depth - 1))
        self._at = 0

    def __call__(self, labels: Sequence[str]) -> int:
        owners = [self._owner(label) for label in labels]
        for owner in owners:
            if owner not in self._priority:
                self._priority[owner] = 1 + self._random.random()
        best = self._highest(owners)
        if self._at in self._drops:
            # Lower than every first priority (these begin at 1) and than every earlier drop.
            self._priority[owners[best]] = -self._at
            best = self._highest(owners)
        self._at += 1
        return best

    def _highest(self, owners: Sequence[str]) -> int:
        return max(range(len(owners)), key=lambda index: self._priority[owners[index]])


@attrs.define
class Recorder:
    """A scheduler that records the choices of another one. `run_one` owns it; the loop and the gate call it."""

    scheduler: Scheduler = first
    choices: list[tuple[int, int]] = attrs.field(factory=list)
    chosen: list[str] = attrs.field(factory=list)
    """The labels of the chosen candidates."""
    mark: Callable[[], int] | None = None
    """Returns the number of records so far."""
    marks: list[int] = attrs.field(factory=list)
    """The results of `mark()` at each choice; empty without `mark`."""
    is_off: Callable[[], bool] | None = None
    """Ends the choices once it returns True: the first candidate runs each time, and nothing is recorded."""

    def __call__(self, labels: Sequence[str]) -> int:
        if self.is_off is not None and self.is_off():
            return 0
        chosen = self.scheduler(labels)
        self.choices.append((len(labels), chosen))
        self.chosen.append(labels[chosen])
        if self.mark is not None:
            self.marks.append(self.mark())
        return chosen


def tape_of(choices: Iterable[tuple[int, int]]) -> tuple[int, ...]:
    """Return the numbers of the shortest tape that repeats *choices*."""
    numbers = [chosen for _, chosen in choices]
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


class Exhaustive:
    """Gives every schedule of a world, which it learns from the runs (theory: see the module).

    `for tape in search:` gives tapes, the first empty. After each, the caller must pass the run's choices to
    `search.ran(choices)`. Schedules with fewer departures from the natural order come first, so the first failure found
    is among those with the fewest. `complete` is True once no schedule is left.
    """

    def __init__(self) -> None:
        self._waiting: dict[int, list[tuple[tuple[int, ...], int, int]]] = {0: [((), 0, 0)]}
        self._tape: tuple[int, ...] = ()

    @property
    def complete(self) -> bool:
        """True once every schedule was given."""
        return not self._waiting

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        while self._waiting:
            least = min(self._waiting)
            branches = self._waiting[least]
            chosen, at, number = branches.pop()
            if not branches:
                del self._waiting[least]
            self._tape = (*chosen[:at], number) if number else ()
            yield self._tape

    def ran(self, choices: Sequence[tuple[int, int]]) -> None:
        """Add the alternatives of *choices*, the run of the tape given last: all those behind the tape's end."""
        tape = self._tape
        departures = sum(1 for number in tape if number)
        own = tuple(chosen for _, chosen in choices)
        waiting = self._waiting
        for at in range(len(choices) - 1, len(tape) - 1, -1):
            could = choices[at][0]
            if could > 1:
                # The tape is built when its turn comes: all of them at once would take memory quadratic in the runs.
                after = waiting.setdefault(departures + 1, [])
                after.extend((own, at, number) for number in range(could - 1, 0, -1))
