"""What a run may use up, and the ledger of what it has. Pure: no clock, no waiting, each step whole.

Limits are checked at admission: a request or call that is under way is never cut because of them, and what it then
costs may overshoot. One ledger serves a run and all that is nested in it. A nested run with limits of its own has a
ledger of its own beside it, and what it takes it takes from both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import Final, Literal, Protocol, TypeAlias

import attrs

from agentloop._common.checks import FIELDS, optional
from agentloop._common.errors import UsageLimitExceeded, UserTypeError, UserValueError
from agentloop.records import CallStarted, Record

Amount: TypeAlias = Decimal | int | float
_NOTHING: Final = Decimal(0)


def to_amount(name: str, value: Amount) -> Decimal:
    """Return a cost as a Decimal; a float counts as the number it shows (0.1 is a tenth).

    Raises:
        UserTypeError, UserValueError: naming what is no finite number from 0 on.
    """
    if isinstance(value, bool) or not isinstance(value, Decimal | int | float):
        raise UserTypeError(f"{name}: a number is needed, not {value!r}")
    amount = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
    if not amount.is_finite() or amount < 0:
        raise UserValueError(f"{name}: a finite number from 0 on is needed, not {value!r}")
    return amount


def _to_limit(value: Amount | None) -> Decimal | None:
    return None if value is None else to_amount("UsageLimits.cost", value)


@attrs.frozen
class UsageLimits:
    """What a run, nested runs included, may use; None = no limit.

    Attributes:
        requests: Model requests, failed attempts included.
        input_tokens, output_tokens, total_tokens: A further request is refused once this many are used.
        tool_calls: Calls whose bodies may start.
        cost: Of requests (by `RunConfig.price`) and calls (by `tool(cost=…)`) together, in the unit of both.
    """

    requests: int | None = attrs.field(default=None, validator=optional(FIELDS.count(0)))
    input_tokens: int | None = attrs.field(default=None, validator=optional(FIELDS.count(0)))
    output_tokens: int | None = attrs.field(default=None, validator=optional(FIELDS.count(0)))
    total_tokens: int | None = attrs.field(default=None, validator=optional(FIELDS.count(0)))
    tool_calls: int | None = attrs.field(default=None, validator=optional(FIELDS.count(0)))
    cost: Decimal | None = attrs.field(default=None, converter=_to_limit)


class Spent(Protocol):
    """Sums of what a run has used; `Usage` is one."""

    @property
    def requests(self) -> int: ...
    @property
    def input_tokens(self) -> int: ...
    @property
    def output_tokens(self) -> int: ...
    @property
    def total_tokens(self) -> int: ...


@attrs.define(eq=False)
class Reservation:
    """Room for one call, taken from a `Budget`, which changes it."""

    cost: Decimal
    state: Literal["held", "spent", "released"] = "held"


@attrs.define(eq=False)
class Budget:
    """The ledger of one run. Its methods are synchronous, so on one event loop each is atomic. Not thread-safe.

    A call holds its cost from admission on (`reserve_call`). It is spent when the body starts (`spend`), whatever comes
    of it, or given back when the call turns out not to start (`release`).

    Attributes:
        limits: What it keeps.
        calls: Calls that hold room or have spent it.
        spent: Cost of requests and started calls.
        held: Cost of calls that are admitted and haven't started.
        outer: The ledger of the run around, which has to have room too.
    """

    # Invariant: spent + held and calls exceed their limits by requests alone, never by a reservation.
    limits: UsageLimits = attrs.field(factory=UsageLimits)
    calls: int = 0
    spent: Decimal = _NOTHING
    held: Decimal = _NOTHING
    outer: Budget | None = None

    @classmethod
    def of(cls, limits: UsageLimits, log: Iterable[Record], outer: Budget | None = None) -> Budget:
        """Return the ledger of a run whose log has got to *log*; of a nested run, *log* is its part of it."""
        budget = cls(limits, outer=outer)
        for record in log:
            if isinstance(record, CallStarted) and record.attempt == 1:
                budget.calls += 1
            cost = getattr(record, "cost", None)
            if cost is not None:
                budget.spent += Decimal(cost)
        return budget

    def charge(self, cost: Amount) -> None:
        """Count what a model request cost.

        Raises:
            UserTypeError, UserValueError: if *cost* is no finite number from 0 on.
        """
        amount = to_amount("price", cost)
        for ledger in self._all():
            ledger.spent += amount

    def _all(self) -> Iterator[Budget]:
        ledger: Budget | None = self
        while ledger is not None:
            yield ledger
            ledger = ledger.outer

    def check_request(self, usage: Spent) -> None:
        """Return if this ledger, whatever others have to say, allows one more model request after *usage*.

        Raises:
            UsageLimitExceeded: naming each limit that is spent, with its numbers.
        """
        if reasons := list(self._spent_by(usage)):
            raise UsageLimitExceeded(f"Usage limit exceeded: {', '.join(reasons)}")

    def _spent_by(self, usage: Spent) -> Iterator[str]:
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

    def refusal(self, cost: Amount = 0) -> str | None:
        """Return why a call of *cost* can't be admitted now, with names and numbers; None where it can.

        Raises:
            UserTypeError, UserValueError: if *cost* is no finite number from 0 on.
        """
        amount = to_amount("cost", cost)
        return next((reason for ledger in self._all() if (reason := ledger._refusal(amount)) is not None), None)

    def _refusal(self, amount: Decimal) -> str | None:
        limits = self.limits
        if limits.tool_calls is not None and self.calls >= limits.tool_calls:
            return f"tool_calls {self.calls} of {limits.tool_calls}"
        if limits.cost is not None and self.spent + self.held + amount > limits.cost:
            return f"cost {self.spent + self.held:f} of {limits.cost:f}, and this call costs {amount:f}"
        return None

    def reserve_call(self, cost: Amount = 0) -> Reservation | None:
        """Take room for one call of *cost*; None, and nothing taken, where `refusal` has a reason.

        Raises:
            UserTypeError, UserValueError: if *cost* is no finite number from 0 on.
        """
        if self.refusal(cost) is not None:
            return None
        reservation = Reservation(to_amount("cost", cost))
        for ledger in self._all():
            ledger.calls += 1
            ledger.held += reservation.cost
        return reservation

    def spend(self, reservation: Reservation) -> None:
        """Note that the call starts: its cost stays spent. Does nothing unless it is held."""
        if reservation.state == "held":
            reservation.state = "spent"
            for ledger in self._all():
                ledger.held -= reservation.cost
                ledger.spent += reservation.cost

    def release(self, reservation: Reservation) -> None:
        """Give the room of a call back that won't start. Does nothing unless it is held, so that any way out may."""
        if reservation.state == "held":
            reservation.state = "released"
            for ledger in self._all():
                ledger.calls -= 1
                ledger.held -= reservation.cost
