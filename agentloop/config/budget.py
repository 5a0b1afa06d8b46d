"""The limits of a run's use, and the ledger that counts the use. Pure: no clock, no waiting, every method is atomic.

Limits are checked at admission. A request or call that has started is never cut because of them, so its cost may exceed
the limit. One ledger serves a run and all runs nested in it. A nested run with its own limits has its own ledger,
linked to the outer one (`Budget.outer`), and takes from both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from typing import Final, Literal, Protocol, TypeAlias

import attrs
import msgspec

from agentloop._common.checks import FIELDS, optional
from agentloop._common.errors import StateError, UsageLimitExceeded, UserTypeError, UserValueError
from agentloop._common.misplaced import takes_options
from agentloop._common.values import ByFields
from agentloop.abc import Instrument
from agentloop.records import CallStarted, ModelFailed, ModelResponded, Record
from agentloop.usage import RequestUsage, Usage

Amount: TypeAlias = Decimal | int | float
_NOTHING: Final = Decimal(0)


def to_amount(name: str, value: Amount) -> Decimal:
    """Return a cost as a Decimal; a float counts as the number that its repr shows (0.1 is a tenth).

    Raises:
        UserTypeError, UserValueError: if *value* isn't a finite number from 0 on; the text names *name*.
    """
    if isinstance(value, bool) or not isinstance(value, Decimal | int | float):
        raise UserTypeError(f"{name}: expected a number, got {value!r}")
    amount = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
    if not amount.is_finite() or amount < 0:
        raise UserValueError(f"{name}: expected a finite number from 0 on, got {value!r}")
    return amount


def _to_limit(value: Amount | None) -> Decimal | None:
    return None if value is None else to_amount("UsageLimits.cost", value)


@takes_options("RunConfig(limits=UsageLimits(OPTION=…))")
@attrs.frozen(eq=False, repr=False)
class UsageLimits(ByFields):
    """Limits on the use of a run, nested runs included; None = no limit.

    Attributes:
        requests: The number of model requests, failed attempts included.
        input_tokens, output_tokens, total_tokens: The number of tokens after which further requests are refused.
        tool_calls: The number of calls whose bodies may start.
        worst_case: True if a request is also refused when it could pass a limit on tokens or cost: with the tokens of
            its input, as counted or estimated, and an answer of `ModelSettings.max_tokens`, which it then needs.
        cost: The cost of requests (by `RunConfig.price`), calls (by `tool(cost=…)`) and hosted calls (by
            `RunConfig.hosted_price`) together, in the unit of all three.

    Example:
        from agentloop import Agent, Runner, RunConfig, UsageLimitExceeded, UsageLimits
        from agentloop.testing import ScriptedModel, say

        agent = Agent("a", model=ScriptedModel([say("hi")]))
        try:
            Runner.run_sync(agent, "go", run_config=RunConfig(limits=UsageLimits(requests=0)))
        except UsageLimitExceeded:
            print("stopped before the first request")  # stopped before the first request
    """

    requests: int | None = attrs.field(default=None, validator=optional(FIELDS.count(0)))
    input_tokens: int | None = attrs.field(default=None, validator=optional(FIELDS.count(0)))
    output_tokens: int | None = attrs.field(default=None, validator=optional(FIELDS.count(0)))
    total_tokens: int | None = attrs.field(default=None, validator=optional(FIELDS.count(0)))
    tool_calls: int | None = attrs.field(default=None, validator=optional(FIELDS.count(0)))
    cost: Decimal | None = attrs.field(default=None, converter=_to_limit)
    worst_case: bool = attrs.field(default=False, validator=FIELDS.flag())


class Spent(Protocol):
    """Sums of a run's use so far; `Usage` satisfies it."""

    @property
    def requests(self) -> int: ...
    @property
    def input_tokens(self) -> int: ...
    @property
    def output_tokens(self) -> int: ...
    @property
    def total_tokens(self) -> int: ...


class WorstCase(msgspec.Struct, frozen=True, eq=False):
    """The most that one request can take: the tokens of its input and of its answer, and what they cost."""

    input_tokens: int
    output_tokens: int
    cost: Decimal

    @property
    def total_tokens(self) -> int:
        """All of its tokens."""
        return self.input_tokens + self.output_tokens


class Reservation(msgspec.Struct, eq=False):
    """Room for one call, taken from a `Budget`. The caller owns it; only the budget mutates it."""

    cost: Decimal
    state: Literal["held", "spent", "released"] = "held"


class Budget(msgspec.Struct, eq=False):
    """The ledger of one run. Methods are synchronous, so on one event loop each is atomic. Not thread-safe.

    A call holds its cost from admission on (`reserve_call`). When the body starts the cost is spent
    (`spend`), even if the body fails later; if the call does not start, it is given back (`release`).

    Attributes:
        limits: The limits that it enforces.
        calls: The number of calls that hold room or have spent it.
        spent: The cost of requests and started calls.
        held: The cost of calls that are admitted and haven't started.
        pending: The worst cases of the requests under way, where they count.
        outer: The ledger of the enclosing run, which must have room, too.
    """

    # Invariant: spent + held and calls exceed their limits by requests only, never by a reservation.
    limits: UsageLimits = msgspec.field(default_factory=UsageLimits)
    calls: int = 0
    spent: Decimal = _NOTHING
    held: Decimal = _NOTHING
    pending: list[WorstCase] = []
    outer: Budget | None = None
    used: Spent | None = None
    """The use that it limits, of a ledger over many runs; None where it is that of the run."""

    @classmethod
    def of(cls, limits: UsageLimits, log: Iterable[Record], outer: Budget | None = None) -> Budget:
        """Return the ledger of a run with the records *log*; for a nested run, *log* holds its own part only.

        Raises:
            StateError: a record has a cost that isn't a number.
        """
        budget = cls(limits, outer=outer)
        for record in log:
            if isinstance(record, CallStarted) and record.attempt == 1:
                budget.calls += 1
            cost = getattr(record, "cost", None)
            if cost is not None:
                try:
                    budget.spent += to_amount("cost", Decimal(cost))
                except (ArithmeticError, UserValueError):
                    raise StateError(f"the stored run has a cost that is no amount: {cost[:60]!r}") from None
        return budget

    @classmethod
    def for_run(
        cls, limits: UsageLimits | None, log: Iterable[Record], outer: Budget | None = None, *, priced: bool
    ) -> Budget | None:
        """Return the ledger of a run with these limits; that of the run around it where it has none of its own.

        A run that is *priced* has one too, because a price is given to learn the cost. None if nothing is counted.
        """
        if limits is None and (outer is not None or not priced):
            return outer
        return cls.of(limits or UsageLimits(), log, outer)

    def charge(self, cost: Amount) -> None:
        """Add *cost*, the cost of a model request and of its hosted calls, to this ledger and the outer ones.

        Raises:
            UserTypeError, UserValueError: if *cost* isn't a finite number from 0 on.
        """
        amount = to_amount("price", cost)
        for ledger in self._ledgers():
            ledger.spent += amount

    def _ledgers(self) -> Iterator[Budget]:
        """Yield this ledger, then the outer ones, innermost first."""
        ledger: Budget | None = self
        while ledger is not None:
            yield ledger
            ledger = ledger.outer

    def check_request(self, usage: Spent) -> None:
        """Return if this ledger allows one more model request after *usage*. Does not check the outer ledgers.

        Raises:
            UsageLimitExceeded: if a limit is reached; names each of them with its numbers.
        """
        if reasons := list(self._describe_reached(self.used or usage)):
            raise UsageLimitExceeded(f"Usage limit exceeded: {', '.join(reasons)}")
        if self.outer is not None and self.outer.used is not None:
            self.outer.check_request(self.outer.used)

    @property
    def counts_worst_case(self) -> bool:
        """True if this ledger, or an outer one, refuses requests by their worst case."""
        return any(ledger.limits.worst_case for ledger in self._ledgers())

    def check_worst_case(self, usage: Spent, worst: WorstCase) -> None:
        """Return if this ledger allows a request of *worst* after *usage*, beside those under way; for this one only.

        Raises:
            UsageLimitExceeded: if a limit could be passed; names each of them with its numbers.
        """
        limits, under_way, usage = self.limits, (*self.pending, worst), self.used or usage
        if self.outer is not None and self.outer.used is not None:
            self.outer.check_worst_case(self.outer.used, worst)
        if not limits.worst_case:
            return
        rows: tuple[tuple[str, int | Decimal, int | Decimal | None], ...] = (
            ("input_tokens", usage.input_tokens, limits.input_tokens),
            ("output_tokens", usage.output_tokens, limits.output_tokens),
            ("total_tokens", usage.total_tokens, limits.total_tokens),
            ("cost", self.spent + self.held, limits.cost),
        )
        reasons = [
            f"{name} {used} and at most {more} more, of {limit}"
            for name, used, limit in rows
            if limit is not None and used + (more := sum(getattr(one, name) for one in under_way)) > limit
        ]
        if reasons:
            raise UsageLimitExceeded(f"Usage limit could be exceeded: {', '.join(reasons)}")

    def hold_request(self, worst: WorstCase) -> None:
        """Count *worst*, of a request that begins, here and in the outer ledgers, until `release_request`."""
        for ledger in self._ledgers():
            ledger.pending.append(worst)

    def release_request(self, worst: WorstCase) -> None:
        """Count *worst* no longer: the request is over, and what it took is counted."""
        for ledger in self._ledgers():
            ledger.pending.remove(worst)

    def _describe_reached(self, usage: Spent) -> Iterator[str]:
        limits = self.limits
        rows: tuple[tuple[str, int | Decimal, int | Decimal | None], ...] = (
            ("requests", usage.requests, limits.requests),
            ("input_tokens", usage.input_tokens, limits.input_tokens),
            ("output_tokens", usage.output_tokens, limits.output_tokens),
            ("total_tokens", usage.total_tokens, limits.total_tokens),
            ("cost", self.spent, limits.cost),
        )
        for name, used, limit in rows:
            if limit is not None and used >= limit:
                yield f"{name} {used:f} of {limit:f}" if isinstance(used, Decimal) else f"{name} {used} of {limit}"

    @property
    def counts_tokens(self) -> bool:
        """True if tokens have a limit, so that the budget has to know the usage of each request."""
        limits = self.limits
        return not limits.input_tokens is limits.output_tokens is limits.total_tokens is None

    def refusal(self, cost: Amount = 0) -> str | None:
        """Return the reason, with names and numbers, why a call of *cost* can't be admitted now; None if it can.

        Raises:
            UserTypeError, UserValueError: if *cost* isn't a finite number from 0 on.
        """
        amount = to_amount("cost", cost)
        return next((reason for ledger in self._ledgers() if (reason := ledger._refusal(amount)) is not None), None)

    def _refusal(self, amount: Decimal) -> str | None:
        limits = self.limits
        if limits.tool_calls is not None and self.calls >= limits.tool_calls:
            return f"tool_calls {self.calls} of {limits.tool_calls}"
        if limits.cost is not None and self.spent + self.held + amount > limits.cost:
            return f"cost {self.spent + self.held:f} of {limits.cost:f}, and this call costs {amount:f}"
        return None

    def reserve_call(self, cost: Amount = 0) -> Reservation | None:
        """Reserve room for one call of *cost*. If `refusal` gives a reason, reserve nothing and return None.

        Raises:
            UserTypeError, UserValueError: if *cost* isn't a finite number from 0 on.
        """
        if self.refusal(cost) is not None:
            return None
        reservation = Reservation(to_amount("cost", cost))
        for ledger in self._ledgers():
            ledger.calls += 1
            ledger.held += reservation.cost
        return reservation

    def spend(self, reservation: Reservation) -> None:
        """Turn the held cost into spent cost, because the call starts. Does nothing unless the cost is held."""
        if reservation.state == "held":
            reservation.state = "spent"
            for ledger in self._ledgers():
                ledger.held -= reservation.cost
                ledger.spent += reservation.cost

    def release(self, reservation: Reservation) -> None:
        """Give back the room of a call that does not start. Does nothing unless it is held: every exit may call it."""
        if reservation.state == "held":
            reservation.state = "released"
            for ledger in self._ledgers():
                ledger.calls -= 1
                ledger.held -= reservation.cost


class BatchBudget(Instrument):
    """One budget over the runs of a batch, and their use so far, as an instrument of each run counts it.

    Owned by the batch. `ledger` is the outer one of each run's.
    """

    def __init__(self, limits: UsageLimits) -> None:
        self.usage: Usage = Usage()
        self.ledger: Budget = Budget(limits, used=self)

    @property
    def requests(self) -> int:
        """The number of requests of all runs."""
        return self.usage.requests

    @property
    def input_tokens(self) -> int:
        """Their tokens of input."""
        return self.usage.input_tokens

    @property
    def output_tokens(self) -> int:
        """Their tokens of output."""
        return self.usage.output_tokens

    @property
    def total_tokens(self) -> int:
        """All of their tokens."""
        return self.usage.total_tokens

    def join(self, log: Sequence[Record]) -> None:
        """Count a run that begins with the records *log*: what it used in earlier run segments."""
        earlier = Budget.of(UsageLimits(), log)
        self.ledger.spent += earlier.spent
        self.ledger.calls += earlier.calls
        for record in log:
            self.on_record(record)

    def on_record(self, record: Record) -> None:
        """Count the request of *record*, if it ended one."""
        if isinstance(record, ModelResponded):
            self._add(record.response.usage)
        elif isinstance(record, ModelFailed) and record.counted:
            self._add(record.usage)

    def _add(self, usage: RequestUsage | None) -> None:
        sums = {} if usage is None else {name: getattr(usage, name) for name in _SUMS}
        self.usage += Usage(requests=1 if usage is None else usage.attempts, **sums)


_SUMS = tuple(name for name in Usage.__struct_fields__ if name not in ("requests", "entries", "cost"))


def total_cost(log: Iterable[Record]) -> Decimal | None:
    """Return the cost of all requests and calls in *log*; None if nothing in it has a price."""
    costs = [Decimal(cost) for record in log if (cost := getattr(record, "cost", None)) is not None]
    return sum(costs, _NOTHING) if costs else None
