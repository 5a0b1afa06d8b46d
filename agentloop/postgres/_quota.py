"""The quota of a shared limit, pure: what each worker has of it, what was spent, and which worker comes next.

A `Quota` is what the database keeps of one limit. `settle` changes the quotas of the limits that a worker shares: it
takes the worker's reports and wishes, and the time, and returns what the worker gets. Everything else (the row and its
lock, the worker's task) is in `_limits.py`. No clock and no database here, so a test lives through a day in a second.

The rule

1. What a worker has of a limit is *held*: starts, tokens or places that it may use until its lease ends. What it
   doesn't use it gives back by its next report, so an idle worker holds nothing.
2. What was used of a rate is *spent* and counts for a whole window. The window is cut into `SLICES`, and what was spent
   within one leaves at its end: never too early, and at most a 128th of a window too late. So a quota is as long for a
   million starts as for a hundred.
3. A worker that doesn't report until its lease ends has died. Its places are free then. The starts that it held may
   have been used, up to that time: they count as spent at it.
4. A wish is what one call needs of all limits that it waits for. It is granted as a whole, or nothing of it: two
   workers that each hold what the other one waits for would wait for ever.
5. Workers that wait have one order for all limits: since when the first wish waits. For each that comes earlier, what
   it needs is kept, so a large request isn't starved by small ones. A worker's second wish in one settlement gets only
   what no other worker waits for. So workers take turns while there is little, and get many at once while there is
   much.
6. A worker that waits asks again within a second or so. What is kept for one that doesn't is free after `PATIENCE`.

Invariants: what is held and what is spent within a window is at most the quota, but for a worker whose calls still run
after its lease, and for tokens that an answer has told. The worker that waits for the longest time is the first at each
of the limits that it needs, so there is no circle.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

import msgspec

from agentloop.exceptions import UserError

SLICES = 128
PATIENCE = 5.0
"""Seconds after its last question for which a worker that waits keeps what it needs from others."""

Kind: TypeAlias = Literal["SharedRate", "SharedTokenRate", "SharedCapacity"]


class Size(msgspec.Struct, frozen=True):
    """The kind and the numbers of a limit. A capacity has no window (`per` is 0)."""

    kind: Kind
    amount: int
    per: float = 0.0

    def __str__(self) -> str:
        return f"{self.kind}({self.amount}{f', per={self.per:g}' if self.per else ''})"


class Holding(msgspec.Struct, omit_defaults=True):
    """The part that one worker holds, until when, and since when it waits for more (None: it doesn't)."""

    held: int
    ends_at: float
    since: float | None = None
    needs: int = 0
    asked_at: float = 0.0


class Quota(msgspec.Struct):
    """The state of one limit. Times are seconds of the database's clock."""

    size: Size
    spent: dict[int, int] = {}
    """The amounts spent, by the number of the slice at whose end it is counted."""
    workers: dict[str, Holding] = {}

    def advance(self, now: float) -> None:
        """Forget what has left the window, and the workers whose leases have ended."""
        for worker in [name for name, one in self.workers.items() if one.ends_at <= now]:
            gone = self.workers.pop(worker)
            self.spend(gone.ends_at, gone.held)
        for number in [number for number in self.spent if self._leaves_at(number) <= now]:
            del self.spent[number]

    def spend(self, at: float, amount: int) -> None:
        """Count *amount*, spent *at* this time. Nothing stays of a place that was used."""
        if self.size.per and amount:
            number = math.ceil(at * SLICES / self.size.per)
            self.spent[number] = self.spent.get(number, 0) + amount

    def resize(self, size: Size, worker: str, name: str, now: float) -> None:
        """Give the limit another size, which *worker* has for it, once no other worker uses it.

        Raises:
            UserError: another one does.
        """
        if size == self.size:
            return
        if others := [other for other in self.workers if other != worker]:
            raise UserError(
                f"the shared limit {name!r} is {self.size} for {len(others)} other workers, and {size} for this one: "
                "give one of them another name, or end those workers first"
            )
        total = sum(self.spent.values())
        self.size, self.spent = size, {}
        self.spend(now, total)

    @property
    def free(self) -> int:
        """The part that no worker holds and the window has room for; negative if answers took more."""
        return self.size.amount - sum(self.spent.values()) - sum(one.held for one in self.workers.values())

    def kept_before(self, worker: str, since: float, now: float) -> int:
        """Return what is kept for the workers that come before *worker*, which waits *since* this time."""
        return sum(
            one.needs
            for name, one in self.workers.items()
            if name != worker and one.since is not None and (one.since, name) < (since, worker)
            if one.asked_at + PATIENCE > now
        )

    def is_contested(self, worker: str) -> bool:
        """Tell whether a worker other than *worker* waits."""
        return any(name != worker and one.since is not None for name, one in self.workers.items())

    def room_in(self, lacking: int, now: float) -> float:
        """Return the seconds until only time gives *lacking* back; infinity if it doesn't."""
        for number in sorted(self.spent):
            lacking -= self.spent[number]
            if lacking <= 0:
                return max(self._leaves_at(number) - now, 0.0)
        return math.inf

    def _leaves_at(self, number: int) -> float:
        return (number / SLICES + 1) * self.size.per


class LimitReport(msgspec.Struct):
    """A worker's report about one limit: how much of it calls still use, and how much was spent at which times."""

    size: Size
    held: int
    spent: list[tuple[float, int]] = []
    told: tuple[int, float] | None = None
    """How much the server of a model says is left, and until when it will be no more."""


class Share(msgspec.Struct):
    """The answer to a worker about one limit.

    `granted` is what it may use beyond what it reported. `waits` tells whether a wish wasn't granted, `contested`
    whether other workers wait. `used` is what all workers have spent and hold.
    """

    granted: int = 0
    waits: bool = False
    contested: bool = False
    used: int = 0
    room_in: float = math.inf
    """The seconds until only time grants the wish."""


def settle(
    quotas: Mapping[str, Quota],
    worker: str,
    now: float,
    seconds: float,
    reports: Mapping[str, LimitReport],
    wishes: Sequence[Mapping[str, int]],
) -> dict[str, Share]:
    """Note in *quotas* what *worker* reports, grant of its *wishes* what there is room for, and renew its lease.

    All by the names of the limits. Each wish has what one call needs.

    Raises:
        UserError: a limit has another size for another worker. *quotas* have changed then: they mustn't be stored.
    """
    waited: dict[str, float] = {}
    for name, report in reports.items():
        quota = quotas[name]
        quota.advance(now)
        quota.resize(report.size, worker, name, now)
        before = quota.workers.get(worker)
        if before is not None:
            # Of a worker whose lease has ended, all that it held counts as spent already.
            for at, amount in report.spent:
                quota.spend(at, amount)
            quota.advance(now)  # a correction of what has left the window by now
            if before.since is not None:
                waited[name] = before.since
        quota.workers[worker] = Holding(report.held, now + seconds, asked_at=now)
        if report.told is not None:
            left, until = report.told
            quota.spend(until - quota.size.per, max(quota.free - left, 0))
    shares = {name: Share() for name in reports}
    for wish in wishes:
        if any(shares[name].waits for name in wish):
            continue
        since = max(waited.pop(name, now) for name in wish)
        lacking = {
            name: amount - quotas[name].free + quotas[name].kept_before(worker, since, now)
            for name, amount in wish.items()
        }
        for name, amount in wish.items():
            own, share = quotas[name].workers[worker], shares[name]
            if max(lacking.values()) <= 0:
                own.held += amount
                share.granted += amount
            else:
                own.since, own.needs, share.waits = since, amount, True
                share.room_in = max(quotas[other].room_in(more, now) for other, more in lacking.items() if more > 0)
    for name, share in shares.items():
        share.contested = quotas[name].is_contested(worker)
        share.used = quotas[name].size.amount - quotas[name].free
    return shares
