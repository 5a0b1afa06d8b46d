"""Who goes next: tapes, priorities, and the search through all schedules.

A *scheduler* is asked wherever several could go on. It is given their labels, in the order in which they would go if
nobody chose, and returns the index of the one that does. It must decide by itself: nothing may be awaited, and nothing
raised, since it is asked from inside the event loop. So what decides is drawn before the run.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

import attrs

from agentloop.exceptions import UserTypeError, UserValueError

Scheduler: TypeAlias = Callable[[Sequence[str]], int]
Choices: TypeAlias = tuple[tuple[int, int], ...]
"""What was chosen in one run: how many could go on, and the index of the one that did."""


def first(labels: Sequence[str]) -> int:
    """Let go on who came first."""
    return 0


class Tape:
    """A scheduler that plays numbers: the n-th choice among k takes number n modulo k.

    Smaller numbers and a shorter tape are closer to the order in which things come by themselves, so a tape shrinks
    well. Past the tape's end the first one goes on; with *seed*, a random one that depends on the seed alone.
    """

    def __init__(self, numbers: Iterable[int] = (), *, seed: int | None = None) -> None:
        self.numbers = tuple(numbers)
        for index, number in enumerate(self.numbers):
            if isinstance(number, bool) or not isinstance(number, int):
                raise UserTypeError(f"Tape: numbers[{index}]: a whole number is needed, not {number!r}")
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

    Everyone gets a random priority when first seen, and the highest one goes on. At `depth - 1` random choices among
    the first *length* the one that would go on falls below everybody else. *owner* tells whose label it is: labels of
    one owner share a priority.
    """

    def __init__(self, seed: int, *, depth: int, length: int, owner: Callable[[str], str] = str) -> None:
        if depth < 1:
            raise UserValueError(f"Priorities: depth: at least 1 is needed, not {depth!r}")
        self._random = random.Random(seed)
        self._owner = owner
        self._priority: dict[str, float] = {}
        self._drops = frozenset(self._random.sample(range(max(length, depth - 1)), depth - 1))
        self._at = 0

    def __call__(self, labels: Sequence[str]) -> int:
        owners = [self._owner(label) for label in labels]
        for owner in owners:
            if owner not in self._priority:
                self._priority[owner] = 1 + self._random.random()
        best = self._highest(owners)
        if self._at in self._drops:
            self._priority[owners[best]] = -self._at
            best = self._highest(owners)
        self._at += 1
        return best

    def _highest(self, owners: Sequence[str]) -> int:
        return max(range(len(owners)), key=lambda index: self._priority[owners[index]])


@attrs.define
class Recorder:
    """A scheduler that writes down what another one chose, and among whom."""

    scheduler: Scheduler = first
    choices: list[tuple[int, int]] = attrs.field(factory=list)
    chosen: list[str] = attrs.field(factory=list)
    """The labels of those that went on."""
    mark: Callable[[], int] | None = None
    marks: list[int] = attrs.field(factory=list)
    """What `mark()` said at each choice, if there is one."""
    is_off: Callable[[], bool] | None = None
    """Once it says True nothing is chosen any more: the first one goes on, and isn't written down."""

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
    """Goes through every schedule of a world, without knowing it before.

    `for tape in search:` gives tapes, the first empty. After each, `search.ran(choices)` must be told what the run
    chose. Schedules that leave the natural order in fewer places come first, so the first failure found is among those
    that leave it least. `complete` tells whether there is none left.
    """

    def __init__(self) -> None:
        self._waiting: dict[int, list[tuple[tuple[int, ...], int, int]]] = {0: [((), 0, 0)]}
        self._tape: tuple[int, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether every schedule has run."""
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
        """Take note of what the tape given last led to: every choice after its end has alternatives."""
        tape = self._tape
        departures = sum(1 for number in tape if number)
        own = tuple(chosen for _, chosen in choices)
        waiting = self._waiting
        for at in range(len(choices) - 1, len(tape) - 1, -1):
            could = choices[at][0]
            if could > 1:
                # The tape is made when its turn comes: together they would be as large as all runs squared.
                after = waiting.setdefault(departures + 1, [])
                after.extend((own, at, number) for number in range(could - 1, 0, -1))
