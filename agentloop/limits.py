"""Limits that tools, agents and runs can share: calls in flight, and calls started per window.

A limit holds numbers only; who waits for it stands in the scheduler's queue. It is bound to the event loop of its first
use and is not thread-safe: using it from a second loop while the first lives is a `UserError`.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import attrs

from agentloop._common.checks import NAMES, check, check_count, check_seconds, optional
from agentloop._common.errors import UserError, UserTypeError


class Limit:
    """What an admission asks of a limit. `ordered` ones are taken strictly in arrival order."""

    ordered = False
    freed_by_calls = True
    """Whether room comes from calls that end; else it comes from time, or from whoever reads the stream."""
    name: str | None = None
    line: Any = None
    """What the admission keeps here while calls wait that want the limit."""

    @property
    def name_shown(self) -> str:
        """The limit's name, or its kind."""
        return self.name or type(self).__name__

    def free(self, now: float) -> float:
        """Return how many more calls may start at *now* (seconds on the loop's clock)."""
        raise NotImplementedError

    def room(self, now: float) -> bool:
        """Tell whether one more call may start at *now*."""
        return self.free(now) > 0

    def take(self, now: float) -> None:
        """Count a call that starts at *now*."""
        raise NotImplementedError

    def give(self) -> None:
        """Count a call that has ended."""
        raise NotImplementedError

    def report_room(self) -> None:
        """Report to the admission that there may be more room than before."""
        if self.line is not None:
            self.line.mark()

    def next_room(self, now: float) -> float:
        """Return when more room will come by itself; infinity where only `give` makes any."""
        return math.inf


@attrs.define(eq=False)
class LoopBinding:
    """Which loop a shareable limit belongs to, and whom to tell when its numbers change by hand."""

    loop: Any = None
    """Stands for the loop, and doesn't hold it."""
    alive: Callable[[], bool] | None = None
    changed: Callable[[], None] | None = None
    _lock: Any = attrs.field(factory=threading.Lock, init=False, repr=False)
    """Of two loops in two threads that bind at once, when the earlier loop has ended, one gets the limit."""

    def tell(self) -> None:
        """Tell whoever waits on the loop that the numbers have changed, if the loop lives."""
        if self.changed is not None and self.alive is not None and self.alive():
            self.changed()

    def bind(self, what: object, loop: Any, alive: Callable[[], bool], changed: Callable[[], None]) -> None:
        """Bind to what *loop* stands for.

        Raises:
            UserError: if bound to another loop that is still alive.
        """
        if self.loop is loop:
            return
        with self._lock:
            if self.loop is not None and self.alive is not None and self.alive():
                raise UserError(f"{what!r} belongs to another event loop, which is still running")
            self.loop, self.alive, self.changed = loop, alive, changed


@attrs.frozen(kw_only=True)
class CapacityStatistics:
    """`tokens_in_use` of `total_tokens` (None: no limit), and the `peak` of use so far."""

    tokens_in_use: int
    total_tokens: int | None
    peak: int


class Capacity(Limit):
    """At most *tokens* calls in flight, over everything that shares this object."""

    def __init__(self, tokens: int | None, name: str | None = None) -> None:
        self._total = check_count("tokens", tokens)
        check("name", optional(NAMES.text()), name)
        self.name = name
        self._in_use = 0
        self._peak = 0
        self.binding: LoopBinding = LoopBinding()

    def __repr__(self) -> str:
        name = f", name={self.name!r}" if self.name else ""
        return f"Capacity({self._total}{name})"

    @property
    def total_tokens(self) -> int | None:
        """How many calls may be in flight; may be changed while in use. Lowering it never interrupts a call."""
        return self._total

    @total_tokens.setter
    def total_tokens(self, value: int | None) -> None:
        self._total = check_count("total_tokens", value)
        self.report_room()
        self.binding.tell()

    def statistics(self) -> CapacityStatistics:
        """Return the numbers of this moment."""
        return CapacityStatistics(tokens_in_use=self._in_use, total_tokens=self._total, peak=self._peak)

    def free(self, now: float) -> float:
        """Return how many tokens are free."""
        return math.inf if self._total is None else self._total - self._in_use

    def take(self, now: float) -> None:
        """Take a token."""
        self._in_use += 1
        if self._in_use > self._peak:
            self._peak = self._in_use

    def give(self) -> None:
        """Give a token back."""
        self._in_use -= 1
        if self.line is not None:
            self.line.mark()


class OrderedCapacity(Capacity):
    """A capacity whose calls start strictly in the order they asked: a serial group of one turn."""

    ordered = True


@attrs.frozen(kw_only=True)
class RateStatistics:
    """`started_in_window` calls of the `count` allowed per `per` seconds, as of the last start."""

    started_in_window: int
    count: int
    per: float


class Rate(Limit):
    """At most *count* calls started within any window of *per* seconds. Spent at the start, never given back."""

    freed_by_calls = False

    def __init__(self, count: int, per: float, name: str | None = None) -> None:
        checked_count, checked_per = check_count("count", count), check_seconds("per", per)
        if checked_count is None or checked_per is None:
            raise UserTypeError("Rate: count and per are both needed")
        self.count: int = checked_count
        self.per: float = checked_per
        check("name", optional(NAMES.text()), name)
        self.name = name
        self._starts: deque[float] = deque()
        self.binding: LoopBinding = LoopBinding()

    def __repr__(self) -> str:
        name = f", name={self.name!r}" if self.name else ""
        return f"Rate({self.count}, {self.per:g}{name})"

    def statistics(self) -> RateStatistics:
        """Return the numbers of this moment."""
        return RateStatistics(started_in_window=len(self._starts), count=self.count, per=self.per)

    def free(self, now: float) -> float:
        """Return how many starts the window that ends at *now* has room for."""
        starts = self._starts
        # A clock that ran backwards belongs to another loop: its starts say nothing about this one.
        while starts and (starts[0] + self.per <= now or starts[0] > now):
            starts.popleft()
        return self.count - len(starts)

    def take(self, now: float) -> None:
        """Count a start."""
        self._starts.append(now)

    def give(self) -> None:
        """Do nothing: a start stays spent until its window has passed."""

    def next_room(self, now: float) -> float:
        """Return when the oldest start leaves the window."""
        self.free(now)
        return self._starts[0] + self.per if self._starts else math.inf
