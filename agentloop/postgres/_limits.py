"""Limits across workers: what a worker may use of a quota is leased from the database, and used without it.

How the parts work together

A `SharedRate`, `SharedTokenRate` or `SharedCapacity` is a `Rate`, `TokenRate` or `Capacity` whose room is what this
worker holds. The admission asks it as it asks any limit, and never waits. Where it finds no room the limit wakes the
`Leaser`, the one task of a `PostgresStore.share` block. This one looks which calls wait for nothing but shared limits,
and asks the database for what they need (`_quota.settle`, within a transaction that locks the limits' rows). What it
gets becomes room, and the admission starts the calls in the same step. What is spent, and what isn't needed after all,
is reported a moment later, together with what happened meanwhile.

Each wait, and who ends it. A call waits for the leaser, which asks again when the database has said that there is
room, at the latest after `_POLL`. So no other worker has to wake it: neither one that gives something back and dies,
nor one whose lease ends. A database that is away is asked again after a pause that grows to two seconds. Meanwhile
what the worker holds may be used until its lease ends, and nothing else is admitted; a warning says so, once. The calls
wait in their runs, and a cancellation or `queue_timeout` takes them out as from any other queue.

Times. The lease ends by the database's clock. The worker counts it from before its question was sent, so its own end is
the earlier one. A start gets its time by what the database's clock showed in the latest answer, counted from before
the question: so it counts in the window for a moment too long, and never too short.

An answer that was lost may have been noted all the same. The worker's next report says what it holds, so what it was
given in vain is free again; starts that it reports once more count twice until they leave the window: less is
admitted then, never more.

A replay needs no database: what waited is in the log, and the replay's tools have plain limits of the same sizes.

Decisions:

A worker holds what its calls need now, not a part of the quota. Rejected: parts by demand, with a refresh of some
seconds, as Doorman has them. A part is another rate: sixty requests a minute among twenty workers are three for
each, and what one doesn't need reaches another after the next refresh. With what the calls need there is nothing to
divide. It costs a question for each request (or for all that wait), which takes milliseconds, and a request seconds.

The database keeps a window, not a bucket of tokens that fills (as most limiters in Redis do, and Gubernator's leaky
buckets). A bucket that is full lets twice the quota pass within a window, which is what the provider counts. Rejected,
too: a row for each start, as pyrate-limiter's store for PostgreSQL has: 100,000 of them for a window of that size.

One row for a limit, with its state as JSON, and the rule in Python. Rejected: a row for each worker, and the rule in
SQL. It couldn't be tried in virtual time, and limits that one call takes together must be settled together.

Workers that wait ask again. Rejected: `NOTIFY` for each thing that is given back. It needs a connection for each
worker, and time, which gives most of it back, sends no notification.

The leaser is a task of a block, not of the limit or of the store: it needs an owner, and a limit is made where no event
loop runs. So a call under a limit that isn't shared is refused, and not admitted as if there were no other worker.
"""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, TypeAlias, cast

import anyio
import attrs
import msgspec
from anyio.lowlevel import current_token

from agentloop._common.checks import NAMES, check, check_id
from agentloop._common.error_text import error_summary
from agentloop.exceptions import AgentLoopError, JournalError, UserError, UserTypeError
from agentloop.limits import (
    Capacity,
    Limit,
    LoopBinding,
    Rate,
    RateStatistics,
    TokenRate,
    TokenRateStatistics,
    TokenStart,
)
from agentloop.postgres._blocks import with_task
from agentloop.postgres._connections import Connection
from agentloop.postgres._quota import LimitReport, Quota, Share, Size, settle

logger: logging.Logger = logging.getLogger("agentloop")

_SOON = 0.05
"""Seconds within which reports are collected."""
_POLL = {"SharedRate": 1.0, "SharedTokenRate": 1.0, "SharedCapacity": 0.2}
"""Seconds after which a worker that waits asks again, if the database knows no earlier time."""
_LOOK = 0.2
"""Seconds after which we look again at calls that wait for other limits, too."""
_LEAST = 0.01
"""Seconds between two questions at least, if the first one wasn't granted."""
_PAUSES = (0.1, 2.0)
"""Seconds before a database that is away is asked again: the first, and the longest."""
_MOST_WISHES = 200

_Wish: TypeAlias = Mapping[str, int]
Ask: TypeAlias = Callable[
    [str, float, Mapping[str, LimitReport], Sequence[_Wish]], Awaitable[tuple[float, dict[str, Share]]]
]
"""Does what `_quota.settle` does with worker, seconds, reports and wishes; returns the time and the shares.

Raises JournalError if the database can't be reached.
"""


@attrs.define(eq=False)
class LimitPart:
    """The part of one limit that this worker has. Mutated by the limit, and by the leaser of its block."""

    name: str
    size: Size
    busy: Callable[[], int]
    """Returns how much calls have taken: of a rate admitted ones that haven't begun, of a capacity those in flight."""
    held: int = 0
    until: float = -math.inf
    booked: int = 0
    """The part that the database has noted for us."""
    spent: list[tuple[float, int]] = attrs.field(factory=list)
    told: tuple[int, float] | None = None
    waits: bool = False
    contested: bool = False
    used: int = 0
    leaser: Leaser | None = None

    def room(self) -> int:
        """Return what calls may take now; have more fetched if it is nothing."""
        busy = self.busy()
        if self.leaser is None:
            return 0
        if self.held > busy and self.leaser.clock() >= self.until:
            self.held = busy
        if self.held <= busy and not self.waits:
            self.leaser.hasten(0.0)
        return self.held - busy

    def spend(self, amount: int, at: float | None = None) -> float:
        """Report *amount*, of what is held if *at* isn't given, or as a correction of what was spent at that time.

        Returns the time under which it is reported.
        """
        if at is None:
            self.held -= amount
            at = -math.inf if self.leaser is None else self.leaser.stamp()
        if self.leaser is not None and amount and at > -math.inf:
            self.spent.append((at, amount))
            self.leaser.hasten(_SOON)
        return at

    def tell(self, left: int, seconds: float) -> None:
        """Report that the server has *left* of it, for so many seconds."""
        if self.leaser is not None:
            self.held = min(self.held, self.busy() + max(left, 0))
            self.told = max(left, 0), self.leaser.stamp() + seconds
            self.leaser.hasten(_SOON)

    def give_back(self) -> None:
        """Note that a call has given something back: another worker's, if one waits."""
        if self.leaser is not None:
            if self.contested and self.held > self.busy():
                self.held -= 1
            self.leaser.hasten(0.0 if self.contested else _SOON)


class _Binding(LoopBinding, eq=False):
    """The event loop of a shared limit: the one of the block that shares it."""

    part: LimitPart | None = None

    def bind(self, what: object, loop: Any, alive: Callable[[], bool], changed: Callable[[], None]) -> None:
        """Bind *what* as any limit is bound.

        Raises:
            UserError: no block shares it, or one of another event loop does.
        """
        leaser = None if self.part is None else self.part.leaser
        if leaser is None:
            raise UserError(f"{what!r} isn't shared yet: run the agent within `async with store.share(...)`, its store")
        if leaser.loop is not current_token().native_token:
            raise UserError(f"{what!r} is shared by a block of another event loop: make another object for this one")
        super().bind(what, loop, alive, changed)


class _LeasedLimit(Limit):
    """The common part of the shared limits: their room is what this worker holds."""

    part: LimitPart
    binding: LoopBinding

    def _lease(self, name: str, size: Size, busy: Callable[[], int]) -> None:
        self.part = LimitPart(name, size, busy)
        self.binding = _Binding(part=self.part)

    def __repr__(self) -> str:
        return f"Shared{super().__repr__()}"

    def free(self, now: float) -> float:
        """Return what this worker has for further calls."""
        return self.part.room()

    def next_room(self, now: float) -> float:
        """Return infinity: the leaser wakes the calls."""
        return math.inf


class SharedRate(_LeasedLimit, Rate):
    """A `Rate` that all workers on one database have together: *count* starts within any window of *per* seconds.

    Limits of one *name* and size are one limit, in every process that shares it by `PostgresStore.share`. Usable
    wherever a `Rate` is; a call outside of such a block is refused by a `UserError`. Its `statistics` are those of all
    workers, as of the last answer of the database. Can be pickled: the copy is the same limit, not shared yet.

    Args:
        count: The starts.
        per: The window's seconds.
        name: The limit's name, the same in all workers.

    Example:
        from agentloop import tool
        from agentloop.postgres import PostgresStore, SharedRate

        searches = SharedRate(60, per=60, name="searches")

        @tool(capacity=searches)
        async def search(text: str) -> str:
            "Search the web."
            return "nothing"

        async def main():  # needs a server
            async with PostgresStore("postgresql://localhost/shop") as store, store.share(searches):
                ...  # run agents, or serve them
    """

    def __init__(self, count: int, per: float, name: str) -> None:
        check_id("name", name)
        super().__init__(count, per, name)
        self._lease(name, Size("SharedRate", self.count, self.per), lambda: self._admitted)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.count, self.per, self.name)

    def statistics(self) -> RateStatistics:
        """Return the numbers of all workers, as of the last answer of the database."""
        return RateStatistics(started_in_window=self.part.used, count=self.count, per=self.per)

    def begin(self, now: float) -> None:
        """Count a start, and report it."""
        self._admitted -= 1
        self.part.spend(1)

    def give(self) -> None:
        """Give back the start of a call whose body never began."""
        super().give()
        self.part.give_back()

    def shrink(self, free: int, until: float, now: float) -> None:
        """Report that the server leaves *free* starts at most up to *until*."""
        self.part.tell(free, until - now)


class _SharedStart(TokenStart, eq=False):
    """The count of a request, and when it was reported to have begun."""

    stamp: float = 0.0


class SharedTokenRate(_LeasedLimit, TokenRate):
    """A `TokenRate` that all workers on one database have together; otherwise as `SharedRate`.

    What requests take beyond their input is learned by each worker from its own answers.

    Args:
        tokens: The tokens, input and output together.
        per: The window's seconds.
        name: The limit's name, the same in all workers.

    Example:
        from agentloop import RunConfig
        from agentloop.postgres import SharedRate, SharedTokenRate

        account = [SharedRate(60, 60, "requests"), SharedTokenRate(100_000, 60, "tokens")]
        config = RunConfig(model_limits=account)  # within `async with store.share(*account)`
    """

    def __init__(self, tokens: int, per: float, name: str) -> None:
        check_id("name", name)
        super().__init__(tokens, per, name)
        self._lease(name, Size("SharedTokenRate", self.tokens, self.per), lambda: self._admitted)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.tokens, self.per, self.name)

    def statistics(self) -> TokenRateStatistics:
        """Return the numbers of all workers, as of the last answer of the database."""
        return TokenRateStatistics(tokens_in_window=self.part.used, tokens=self.tokens, per=self.per)

    def begin_amount(self, now: float, amount: int) -> TokenStart:
        """Count the tokens of an admitted request, which begins now, and report them; return the count."""
        self._admitted -= amount
        return _SharedStart(now, amount, stamp=self.part.spend(amount))

    def give_amount(self, amount: int) -> None:
        """Give back the tokens of a request that never began."""
        super().give_amount(amount)
        self.part.give_back()

    def settle(self, start: TokenStart, tokens: int, input_tokens: int) -> None:
        """Count *tokens*, which the answer told, for the request of *start*."""
        self._learn(tokens - input_tokens)
        more, start.tokens = tokens - start.tokens, tokens
        self.part.spend(more, cast(_SharedStart, start).stamp)

    def shrink(self, free: int, until: float, now: float) -> None:
        """Report that the server leaves *free* tokens at most up to *until*."""
        self.part.tell(free, until - now)


class SharedCapacity(_LeasedLimit, Capacity):
    """A `Capacity` that all workers on one database have together; otherwise as `SharedRate`.

    A worker whose lease has passed (the database was away, or the process was stopped) starts no further call. Calls
    that are in flight then aren't interrupted, while other workers may use their places.

    Its `statistics` are those of this worker.

    Args:
        tokens: The calls in flight at most, in all workers.
        name: The limit's name, the same in all workers.

    Example:
        from agentloop import tool
        from agentloop.postgres import SharedCapacity

        browsers = SharedCapacity(8, "browsers")

        @tool(capacity=browsers)  # within `async with store.share(browsers)`
        async def open_page(address: str) -> str:
            "Open a page."
            return "its text"
    """

    def __init__(self, tokens: int, name: str) -> None:
        check("tokens", NAMES.count(), tokens)
        check_id("name", name)
        super().__init__(tokens, name)
        self._lease(name, Size("SharedCapacity", tokens), lambda: self._in_use)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.part.size.amount, self.name)

    @property
    def total_tokens(self) -> int | None:
        """The number of calls that may be in flight, in all workers. Can't be set."""
        return self._total

    @total_tokens.setter
    def total_tokens(self, value: int | None) -> None:
        raise UserError(f"{self!r}: its total_tokens are those of all workers: make a limit of another name")

    def give(self) -> None:
        """Give a place back: to this worker's calls, or to another worker that waits."""
        super().give()
        self.part.give_back()


SharedLimit: TypeAlias = SharedRate | SharedTokenRate | SharedCapacity


class Leaser:
    """The task of a block that shares limits: it holds what the calls of this worker need. For one event loop."""

    def __init__(self, limits: Sequence[SharedLimit], ask: Ask, seconds: float, clock: Callable[[], float]) -> None:
        self.loop: Any = current_token().native_token
        self.clock: Callable[[], float] = clock
        self.failure: AgentLoopError | None = None
        """The error that ends the block."""
        self._limits = limits
        self._ask = ask
        self._seconds = seconds
        self._worker = secrets.token_hex(6)
        self._ahead = 0.0
        """By how much the database's clock is ahead of ours."""
        self._renew_at = -math.inf
        self._due = -math.inf
        self._not_before = -math.inf
        self._pause = _PAUSES[0]
        self._woken = anyio.Event()
        self._left_before: list[Any] = []
        """The queues of calls that waited before the block began, in an event loop that is gone, say."""

    def stamp(self) -> float:
        """Return the time of now, by the database's clock."""
        return self.clock() + self._ahead

    def hasten(self, seconds: float) -> None:
        """Let the next question come within so many seconds."""
        due = self.clock() + seconds
        if due < self._due:
            self._due = due
            self._woken.set()

    async def begin(self) -> None:
        """Ask for the first time, and let the limits be used.

        Raises:
            UserError: one of them is shared by a block already, or has another size for other workers.
            JournalError: the database refuses or can't be reached.
        """
        for limit in self._limits:
            if limit.part.leaser is not None:
                raise UserError(f"{limit!r} is shared by a block already: make another object of its name")
        await self._contact([])
        for limit in self._limits:
            limit.part.leaser = self
        self._left_before = [limit.line for limit in self._limits]

    async def keep(self, scope: anyio.CancelScope) -> None:
        """Ask for what the calls need, for ever. Cancel *scope* at an error that asking again doesn't cure."""
        try:
            while True:
                seconds = max(self._due, self._not_before) - self.clock()
                if seconds > 0:
                    self._woken = anyio.Event()
                    with anyio.move_on_after(seconds):
                        await self._woken.wait()
                else:
                    await self._look()
        except AgentLoopError as error:
            self.failure = error
            scope.cancel()

    async def end(self) -> list[SharedLimit]:
        """Give everything back and let the limits be used no more; return those that calls wait for.

        An error is of no consequence: the lease ends by itself.
        """
        with suppress(AgentLoopError):
            await self._contact([], leaves=True)
        for limit in self._limits:
            limit.part.leaser = None
            limit.part.held = limit.part.booked = 0
        awaited = [
            limit
            for limit, before in zip(self._limits, self._left_before, strict=True)
            if limit.line is not None and limit.line is not before
        ]
        for limit in awaited:
            logger.error("%r isn't shared any more, and calls wait for it", limit)
        return awaited

    async def _look(self) -> None:
        """Ask the database if there is something to ask or to report, or the lease has to be renewed."""
        self._due = self._renew_at
        wishes = self._find_wishes()
        parts = [limit.part for limit in self._limits]
        if (
            wishes
            or self.clock() >= self._renew_at
            or any(part.spent or part.told or part.waits or part.booked != part.busy() for part in parts)
        ):
            try:
                await self._contact(wishes)
            except JournalError as error:
                self._note_absence(error)

    def _note_absence(self, error: JournalError) -> None:
        names = ", ".join(repr(limit.name) for limit in self._limits)
        if self._pause == _PAUSES[0]:
            logger.warning("the limits %s admit only what this worker holds already: %s", names, error_summary(error))
        self._not_before = self.clock() + self._pause
        self._due = -math.inf
        self._pause = min(self._pause * 2, _PAUSES[1])

    async def _contact(self, wishes: Sequence[_Wish], *, leaves: bool = False) -> None:
        """Report, and get what the database grants of *wishes*.

        Raises:
            JournalError: the database refuses or can't be reached. The next report says the same again.
            UserError: a limit has another size for other workers.
        """
        self._due = math.inf
        sent, reports = self.clock(), {}
        for part in [limit.part for limit in self._limits]:
            part.held = part.busy()
            reports[part.name] = LimitReport(part.size, part.held, part.spent, part.told)
            part.spent, part.told = [], None
        try:
            seconds = 0.0 if leaves and not any(report.held for report in reports.values()) else self._seconds
            now, shares = await self._ask(self._worker, seconds, reports, wishes)
        except BaseException:
            for part in [limit.part for limit in self._limits]:
                report = reports[part.name]
                part.spent, part.told = report.spent + part.spent, part.told or report.told
            raise
        if self._pause != _PAUSES[0]:
            logger.warning("the limits are leased from the database again")
            self._pause = _PAUSES[0]
        self._ahead, self._renew_at = now - sent, sent + self._seconds / 3
        self._take(sent, reports, shares)

    def _take(self, sent: float, reports: Mapping[str, LimitReport], shares: Mapping[str, Share]) -> None:
        """Note what the database has granted, and start the calls for which there is room now."""
        due = self._renew_at
        for limit in self._limits:
            part, share = limit.part, shares[limit.part.name]
            part.held += share.granted
            part.until, part.booked = sent + self._seconds, reports[part.name].held + share.granted
            part.waits, part.contested, part.used = share.waits, share.contested, share.used
            if share.waits:
                due = min(due, self.clock() + max(_LEAST, min(share.room_in, _POLL[part.size.kind])))
        for limit in self._limits:
            if shares[limit.part.name].granted:
                limit.report_room()
        for limit in self._limits:
            if shares[limit.part.name].granted:
                limit.binding.tell()
        self._due = min(self._due, due)
        if any(limit.part.held > limit.part.busy() for limit in self._limits):
            self.hasten(_SOON)

    # ------------------------------------------------------------------------------------------ what calls need

    def _find_wishes(self) -> list[dict[str, int]]:
        """Return what each call needs that waits for nothing but shared limits, in arrival order.

        A call that waits for another limit, too, may be in our line, so that limit's room wakes no call: look again.
        """
        now, left, wishes = anyio.current_time(), dict[Limit, float](), list[dict[str, int]]()
        ours = set[Any](self._limits)
        for ticket in self._waiting():
            needs = {limit: limit.amount(ticket.weight) if limit.weighed else 1 for limit in ticket.limits}
            for limit in needs:
                if limit not in left and not isinstance(limit, _LeasedLimit):
                    left[limit] = limit.free(now)
            if full := [limit for limit, amount in needs.items() if left.get(limit, math.inf) < amount]:
                self.hasten(min(_LOOK, *(max(limit.next_room(now) - now, _LEAST) for limit in full)))
            else:
                for limit in left.keys() & needs.keys():
                    left[limit] -= needs[limit]
                wishes.append({limit.name: amount for limit, amount in needs.items() if limit in ours and limit.name})
                if len(wishes) == _MOST_WISHES:
                    break
        return wishes

    def _waiting(self) -> Iterator[Any]:
        """Yield the tickets that wait for our limits, in arrival order."""
        found: dict[int, Any] = {}
        for limit in self._limits:
            if limit.line is not None:
                found.update(limit.line.patient)
                found.update(limit.line.kept)
        for _, ticket in sorted(found.items()):
            yield ticket


@asynccontextmanager
async def sharing(
    limits: Sequence[SharedLimit], ask: Ask, seconds: float, clock: Callable[[], float]
) -> AsyncIterator[None]:
    """Share *limits* for a block: `PostgresStore.share` without the database."""
    names = [getattr(limit, "name", None) for limit in limits]
    if not limits or not all(isinstance(limit, _LeasedLimit) for limit in limits):
        raise UserTypeError(f"share: expected limits such as SharedRate(60, 60, 'name'), got {list(limits)!r}")
    if len(set(names)) < len(names):
        raise UserError(f"share: expected limits of different names, got {names!r}")
    leaser = Leaser(limits, ask, seconds, clock)
    awaited: list[SharedLimit] = []
    await leaser.begin()
    try:
        async with with_task(leaser.keep):
            yield
    finally:
        with anyio.CancelScope(shield=True):  # bounded by the store's timeout
            awaited = await leaser.end()
    if leaser.failure is not None:
        raise leaser.failure
    if awaited:
        raise UserError(
            f"the block that shares {awaited[0]!r} ends while calls wait for it: let it end after the runs, as in "
            "`async with store.share(...), anyio.create_task_group() as group`"
        )


# ------------------------------------------------------------------------------------------ the rows

_MAKE = """
INSERT INTO agentloop_limits (name, state) SELECT name, '' FROM unnest(%(names)s::text[]) AS asked(name)
ON CONFLICT (name) DO NOTHING
"""
_LOCK = "SELECT name, state FROM agentloop_limits WHERE name = ANY(%(names)s::text[]) ORDER BY name FOR UPDATE"
_NOW = "SELECT extract(epoch FROM clock_timestamp())::float8"
_WRITE = """
UPDATE agentloop_limits AS held SET state = given.state
FROM unnest(%(names)s::text[], %(states)s::text[]) AS given(name, state) WHERE held.name = given.name
"""


def settle_rows(
    connection: Connection,
    *,
    worker: str,
    seconds: float,
    reports: Mapping[str, LimitReport],
    wishes: Sequence[_Wish],
) -> tuple[float, dict[str, Share]]:
    """Do what `settle` does, with the rows of the limits, in one transaction. Returns the database's time, too.

    Raises:
        UserError: a limit has another size for another worker; nothing is changed.
        JournalError: a row can't be read.
    """
    names = {"names": sorted(reports)}
    with connection.transaction():
        rows = connection.execute(_LOCK, names).fetchall()
        if len(rows) < len(reports):
            connection.execute(_MAKE, names)
            rows = connection.execute(_LOCK, names).fetchall()
        (now,) = connection.execute(_NOW).fetchone()  # once the rows are locked
        quotas = {name: _read(name, state, reports[name].size) for name, state in rows}
        shares = settle(quotas, worker, now, seconds, reports, wishes)
        states = {"names": list(quotas), "states": [msgspec.json.encode(one).decode() for one in quotas.values()]}
        connection.execute(_WRITE, states)
    return now, shares


def _read(name: str, state: str, size: Size) -> Quota:
    if not state:
        return Quota(size)
    try:
        return msgspec.json.decode(state, type=Quota)
    except msgspec.MsgspecError as error:
        raise JournalError(f"the row of the limit {name!r} in agentloop_limits can't be read: {error}") from error


def asking(run: Callable[[Any], Awaitable[Any]]) -> Ask:
    """Return the question to the database whose work *run* does."""

    def ask(worker: str, seconds: float, reports: Mapping[str, LimitReport], wishes: Sequence[_Wish]) -> Any:
        return run(partial(settle_rows, worker=worker, seconds=seconds, reports=reports, wishes=wishes))

    return ask
