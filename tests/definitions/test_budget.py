"""The budget of a run: which requests and calls are still admitted, and what is said where they aren't."""

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.config.budget import Budget, Reservation, UsageLimits
from agentloop.exceptions import UsageLimitExceeded, UserTypeError, UserValueError
from agentloop.usage import Usage

SPENT = Usage(requests=3, input_tokens=100, output_tokens=20, total_tokens=120)


def admitted(budget: Budget, cost: Any = 0) -> Reservation:
    """Reserve a call that must have room."""
    reservation = budget.reserve_call(cost)
    assert reservation is not None
    return reservation


def test_without_limits_everything_is_admitted() -> None:
    """A limit of None admits any number."""
    budget = Budget()
    budget.check_request(Usage(requests=10**9, total_tokens=10**12))
    budget.charge(10**9)
    assert budget.refusal(10**9) is None
    assert budget.reserve_call(10**9) is not None


@pytest.mark.parametrize(
    ("name", "spent", "left"),
    [("requests", 3, 4), ("input_tokens", 100, 101), ("output_tokens", 20, 21), ("total_tokens", 120, 121)],
)
def test_a_request_is_refused_once_a_limit_is_spent(name: str, spent: int, left: int) -> None:
    """A request with one to spare is admitted; at the limit it is refused, with the limit's name and numbers."""
    Budget(UsageLimits(**{name: left})).check_request(SPENT)
    with pytest.raises(UsageLimitExceeded) as caught:
        Budget(UsageLimits(**{name: spent})).check_request(SPENT)
    assert str(caught.value) == f"Usage limit exceeded: {name} {spent} of {spent}"


def test_every_spent_limit_is_named() -> None:
    """The message has a reason for each spent limit, in the order of the fields."""
    budget = Budget(UsageLimits(requests=1, total_tokens=5, cost=2))
    budget.charge(Decimal("2.50"))
    with pytest.raises(UsageLimitExceeded, match=r"requests 3 of 1, total_tokens 120 of 5, cost 2\.50 of 2"):
        budget.check_request(SPENT)


def test_cost_of_requests_and_calls_is_one_sum() -> None:
    """Requests and calls share one cost limit: each spends what is left for the other."""
    budget = Budget(UsageLimits(cost=10))
    budget.charge(4)
    budget.spend(admitted(budget, 5))
    assert budget.refusal(2) == "cost 9 of 10, and this call costs 2"
    budget.charge(0.5)
    budget.check_request(SPENT)
    budget.charge(0.5)
    with pytest.raises(UsageLimitExceeded, match=r"cost 10\.0 of 10"):
        budget.check_request(SPENT)


@pytest.mark.parametrize("order", [(60, 61, 62), (62, 61, 60), (61, 62, 60)])
def test_of_calls_that_fit_only_alone_exactly_one_is_admitted(order: tuple[int, ...]) -> None:
    """Of calls of 60, 61 and 62 and a limit of 100, the first to ask has it, before and after it has run."""
    budget = Budget(UsageLimits(cost=100))
    first, *others = [budget.reserve_call(cost) for cost in order]
    assert first is not None
    assert others == [None, None]
    budget.spend(first)
    assert budget.spent == order[0]
    assert budget.reserve_call(order[1]) is None
    assert budget.refusal(order[1]) == f"cost {order[0]} of 100, and this call costs {order[1]}"


def test_a_call_may_use_the_limit_to_the_last() -> None:
    """A call may reach the limit, but not exceed it."""
    budget = Budget(UsageLimits(cost=Decimal("0.3")))
    assert budget.reserve_call(0.1) is not None
    assert budget.reserve_call(0.2) is not None, "tenths are tenths"
    assert budget.reserve_call(Decimal("0.01")) is None
    assert budget.reserve_call() is not None, "a call without a cost needs no room"


def test_the_number_of_calls_is_limited() -> None:
    """Calls count from their admission on."""
    budget = Budget(UsageLimits(tool_calls=2))
    admitted(budget)
    second = admitted(budget)
    assert budget.refusal() == "tool_calls 2 of 2"
    assert budget.reserve_call() is None
    budget.release(second)
    assert budget.refusal() is None


def test_a_released_call_leaves_its_room_to_others_and_a_started_one_does_not() -> None:
    """Releasing is harmless after the start, and a second time."""
    budget = Budget(UsageLimits(cost=100, tool_calls=1))
    first = admitted(budget, 60)
    budget.release(first)
    budget.release(first)
    assert (budget.calls, budget.held, budget.spent) == (0, 0, 0)
    budget.spend(first)
    assert budget.spent == 0, "a released call can't be spent"
    second = admitted(budget, 70)
    budget.spend(second)
    budget.spend(second)
    budget.release(second)
    assert (budget.calls, budget.held, budget.spent) == (1, 0, 70)


def test_a_limit_of_nothing_admits_nothing() -> None:
    """Zero is a limit."""
    budget = Budget(UsageLimits(requests=0, tool_calls=0))
    assert budget.reserve_call() is None
    with pytest.raises(UsageLimitExceeded, match="requests 0 of 0"):
        budget.check_request(Usage())


def test_a_ledger_goes_on_from_what_was_spent() -> None:
    """A resumed run starts with the numbers of its log."""
    budget = Budget(UsageLimits(cost=100, tool_calls=3), calls=2, spent=Decimal(90))
    assert budget.reserve_call(20) is None
    assert budget.reserve_call(10) is not None
    assert budget.reserve_call() is None


def test_limits_can_be_written_by_position() -> None:
    """The limits are in the order of their fields; the cost becomes a Decimal."""
    limits = UsageLimits(1, 2, 3, 4, 5, 0.1)  # type: ignore[arg-type]  # converted
    assert limits == UsageLimits(
        requests=1, input_tokens=2, output_tokens=3, total_tokens=4, tool_calls=5, cost=Decimal("0.1")
    )


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("requests", -1, UserValueError),
        ("input_tokens", 1.5, UserTypeError),
        ("output_tokens", "1", UserTypeError),
        ("total_tokens", True, UserTypeError),
        ("tool_calls", -5, UserValueError),
        ("cost", -1, UserValueError),
        ("cost", float("nan"), UserValueError),
        ("cost", Decimal("Infinity"), UserValueError),
        ("cost", "5", UserTypeError),
        ("cost", True, UserTypeError),
    ],
)
def test_a_wrong_limit_is_refused_by_name(field: str, value: Any, error: type[Exception]) -> None:
    """The error comes where the limit is given, not where it is first used."""
    with pytest.raises(error, match=f"UsageLimits.{field}"):
        UsageLimits(**{field: value})


@pytest.mark.parametrize("cost", [-1, float("inf"), "5", None])
def test_a_wrong_cost_is_refused_and_changes_nothing(cost: Any) -> None:
    """A price or cost function may return anything."""
    budget = Budget(UsageLimits(cost=100))
    with pytest.raises((UserTypeError, UserValueError), match="price"):
        budget.charge(cost)
    with pytest.raises((UserTypeError, UserValueError), match="cost"):
        budget.reserve_call(cost)
    assert (budget.calls, budget.held, budget.spent) == (0, 0, 0)


@given(
    limit=st.integers(0, 50),
    calls=st.integers(0, 6),
    steps=st.lists(st.tuples(st.sampled_from(["reserve", "spend", "release"]), st.integers(0, 30)), max_size=30),
)
def test_no_order_of_calls_admits_more_than_the_limits(limit: int, calls: int, steps: list[tuple[str, int]]) -> None:
    """The ledger agrees with a plain list of what is held and spent, and never exceeds its limits."""
    budget = Budget(UsageLimits(cost=limit, tool_calls=calls))
    held: list[Reservation] = []
    spent: list[Reservation] = []
    for action, number in steps:
        if action == "reserve":
            fits = sum(r.cost for r in held + spent) + number <= limit and len(held + spent) < calls
            assert (budget.refusal(number) is None) is fits
            reservation = budget.reserve_call(number)
            assert (reservation is not None) is fits
            held += [reservation] if reservation else []
        elif held:
            chosen = held.pop(number % len(held))
            getattr(budget, action)(chosen)
            spent += [chosen] if action == "spend" else []
        assert budget.held == sum(r.cost for r in held)
        assert budget.spent == sum(r.cost for r in spent)
        assert budget.calls == len(held) + len(spent) <= calls
        assert budget.held + budget.spent <= limit
