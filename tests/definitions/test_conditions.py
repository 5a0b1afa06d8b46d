"""Conditions: when each holds, how they compose, what is said to have fired, and that their repr evaluates back."""

import functools
from collections.abc import Callable
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.config import conditions
from agentloop.config.conditions import (
    AllOf,
    AnyOf,
    Condition,
    ConditionView,
    Fired,
    MaxTurns,
    Not,
    Predicate,
    TextMention,
    TokenLimit,
    ToolCalled,
    as_condition,
)
from agentloop.context import RunContext
from agentloop.exceptions import UserTypeError, UserValueError


def enough(ctx: RunContext[Any]) -> bool:
    """A predicate as an application writes it."""
    raise AssertionError  # pragma: no cover (conditions are data: who checks them asks)


async def later(ctx: RunContext[Any]) -> bool:
    """An async one."""
    raise AssertionError  # pragma: no cover (as above)


NAMES = {**vars(conditions), "enough": enough, "later": later}


def view(turn: int = 1, calls: tuple[str, ...] = (), text: str = "", tokens: int = 0) -> ConditionView:
    """Return a view of a run."""
    return ConditionView(turn=turn, calls=calls, text=text, total_tokens=tokens, context=RunContext(context=None))


# ---------------------------------------------------------------------------------------------- one condition


@pytest.mark.parametrize(
    ("condition", "holds", "not_yet"),
    [
        (MaxTurns(2), [view(2), view(3)], [view(1)]),
        (ToolCalled("x"), [view(calls=("y", "x"))], [view(), view(calls=("xx",))]),
        (TextMention("DONE"), [view(text="it is DONE.")], [view(), view(text="done")]),
        (TokenLimit(100), [view(tokens=100), view(tokens=101)], [view(tokens=99)]),
    ],
)
def test_a_condition_holds_from_its_mark_on(
    condition: Condition, holds: list[ConditionView], not_yet: list[ConditionView]
) -> None:
    """Each kind fires with itself as the reason, and only where it should."""
    assert [condition.check(each) for each in holds] == [Fired(condition)] * len(holds)
    assert [condition.check(each) for each in not_yet] == [None] * len(not_yet)
    assert condition.predicates() == ()


def test_a_predicate_is_what_was_answered_for_it() -> None:
    """The condition itself calls nothing: it reads the answers."""
    condition = Predicate(enough)
    assert condition.predicates() == (enough,)
    assert condition.check(view(), {enough: True}) == Fired(condition)
    assert condition.check(view(), {enough: False}) is None


@pytest.mark.parametrize("answer", [1, "yes", None])
def test_an_answer_that_is_no_bool_is_refused(answer: Any) -> None:
    """A truthy object must not end a run."""
    with pytest.raises(UserTypeError, match=r"Predicate\(enough\): the answer must be True or False, not"):
        Predicate(enough).check(view(), {enough: answer})


@pytest.mark.parametrize("answers", [None, {}])
def test_a_predicate_nobody_asked_is_not_passed_over(answers: Any) -> None:
    """A predicate without an answer is an error, not a no."""
    with pytest.raises(LookupError, match="was not asked"):
        Predicate(enough).check(view(), answers)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: MaxTurns(0), UserValueError, "MaxTurns.n: expected at least 1"),
        (lambda: MaxTurns(True), UserTypeError, "MaxTurns.n: expected a whole number"),
        (lambda: MaxTurns(None), UserTypeError, "MaxTurns.n: expected a whole number, got None"),
        (lambda: TokenLimit(1.5), UserTypeError, "TokenLimit.n: expected a whole number"),
        (lambda: ToolCalled(""), UserValueError, "ToolCalled.name: may not be empty"),
        (lambda: ToolCalled(enough), UserTypeError, "ToolCalled.name: expected text"),
        (lambda: TextMention(""), UserValueError, "TextMention.text: may not be empty"),
        (lambda: TextMention(b"x"), UserTypeError, "TextMention.text: expected text"),
        (lambda: as_condition(5), UserTypeError, "expected a condition or a callable of the run's context, got 5"),
        (lambda: as_condition(int), UserTypeError, "expected a condition or a callable of the run's context"),
        (lambda: as_condition(lambda: True), UserTypeError, "must take one argument"),
        (lambda: as_condition(lambda a, b: True), UserTypeError, "must take one argument"),
        (lambda: MaxTurns(2) | 5, UserTypeError, "expected a condition or a callable"),
        (lambda: MaxTurns(2) & "x", UserTypeError, "expected a condition or a callable"),
    ],
)
def test_a_wrong_value_is_refused_when_it_is_given(
    make: Callable[[], object], error: type[Exception], message: str
) -> None:
    """The message names the field."""
    with pytest.raises(error, match=message):
        make()


def test_an_unhashable_callable_is_refused() -> None:
    """Answers are kept by their function."""

    @attrs.define
    class Judge:
        limit: int

        def __call__(self, ctx: RunContext[Any]) -> bool:
            raise AssertionError  # pragma: no cover (never asked)

    with pytest.raises(UserTypeError, match="must be hashable"):
        as_condition(Judge(3))


def test_the_base_says_nothing_by_itself() -> None:
    """A condition of one's own must say when it holds."""
    with pytest.raises(NotImplementedError):
        Condition().check(view())


# ---------------------------------------------------------------------------------------------- composition


@pytest.mark.scenario("LX-72")
def test_and_holds_only_when_both_do_and_names_both() -> None:
    """The combination fires when both conditions are true, and its text names both."""
    condition = ToolCalled("x") & MaxTurns(2)
    assert condition.check(view(1, ("x",))) is None
    assert condition.check(view(2)) is None
    fired = condition.check(view(2, ("x",)))
    assert str(fired) == "ToolCalled('x') & MaxTurns(2)"


@pytest.mark.scenario("LX-73")
def test_or_stops_at_the_first_true_branch_which_names_itself() -> None:
    """The text names the first branch that is true, and no other."""
    condition = MaxTurns(2) | TextMention("DONE")
    assert condition.check(view(1)) is None
    assert str(condition.check(view(1, text="DONE"))) == "TextMention('DONE')"
    assert str(condition.check(view(2))) == "MaxTurns(2)"
    assert str(condition.check(view(2, text="DONE"))) == "MaxTurns(2)"


def test_not_holds_where_its_condition_does_not() -> None:
    """`~` turns the answer round and names itself."""
    condition = ~ToolCalled("x")
    assert str(condition.check(view())) == "~ToolCalled('x')"
    assert condition.check(view(calls=("x",))) is None
    assert (~~ToolCalled("x")).check(view()) is None


def test_what_fired_is_the_part_that_made_it_so() -> None:
    """Only the true branches of a nested condition are named, still as an expression."""
    condition = (MaxTurns(5) | TextMention("a") | TokenLimit(1)) & ToolCalled("x") & ~MaxTurns(9)
    fired = condition.check(view(1, ("x",), "a", tokens=2))
    assert str(fired) == "TextMention('a') & ToolCalled('x') & ~MaxTurns(9)"


@pytest.mark.scenario("LX-74")
def test_a_predicate_composes_from_either_side_and_its_repr_evaluates_back() -> None:
    """A plain function is accepted where a condition is, sync or async."""
    for condition in (enough | MaxTurns(3), MaxTurns(3) & later, (enough & MaxTurns(2)) | ~as_condition(later)):
        assert eval(repr(condition), dict(NAMES)) == condition
    assert repr(enough | MaxTurns(3)) == "Predicate(enough) | MaxTurns(3)"
    assert (MaxTurns(3) | enough).predicates() == (enough,)
    assert str((MaxTurns(3) | enough).check(view(), {enough: True})) == "Predicate(enough)"


def test_each_predicate_is_asked_once_in_order_of_appearance() -> None:
    """A predicate is listed once, however often and at any depth the condition holds it."""
    condition = (MaxTurns(1) & later) | ~(enough & MaxTurns(2)) | later
    assert condition.predicates() == (later, enough)


def test_a_callable_without_a_name_is_shown_by_its_repr() -> None:
    """Partials, callable objects and builtins are accepted too."""
    partial = functools.partial(lambda limit, ctx: True, 3)
    assert repr(as_condition(partial)) == f"Predicate({partial!r})"
    assert repr(as_condition(print)) == "Predicate(print)"
    assert as_condition(MaxTurns(1)) == MaxTurns(1)


def test_brackets_of_one_operator_make_no_difference() -> None:
    """`a & (b & c)` equals `a & b & c`, and so for `|`."""
    a, b, c = MaxTurns(1), ToolCalled("b"), TokenLimit(3)
    assert a & (b & c) == (a & b) & c
    assert a | (b | c) == (a | b) | c
    assert len({a & b & c, a & (b & c), a | b}) == 2
    assert a & b != b & a


LEAVES = st.one_of(
    st.builds(MaxTurns, st.integers(1, 3)),
    st.builds(ToolCalled, st.sampled_from(["x", "y'z"])),
    st.builds(TextMention, st.sampled_from(["a", 'b"'])),
    st.builds(TokenLimit, st.integers(1, 3)),
    st.sampled_from([Predicate(enough), Predicate(later)]),
)
CONDITIONS: st.SearchStrategy[Condition] = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(lambda a, b: a | b, inner, inner), st.builds(lambda a, b: a & b, inner, inner), st.builds(Not, inner)
    ),
    max_leaves=8,
)
VIEWS = st.builds(
    view,
    st.integers(1, 3),
    st.lists(st.sampled_from(["x", "y'z"])).map(tuple),
    st.sampled_from(["", "a", 'b"']),
    st.integers(0, 3),
)
ANSWERS = st.fixed_dictionaries({enough: st.booleans(), later: st.booleans()})


def truth(condition: Condition, seen: ConditionView, answers: Any) -> bool:
    """Say by Python's own logic whether *condition* holds."""
    match condition:
        case AllOf(conditions=members):
            return all(truth(member, seen, answers) for member in members)
        case AnyOf(conditions=members):
            return any(truth(member, seen, answers) for member in members)
        case Not(condition=inner):
            return not truth(inner, seen, answers)
    return condition.check(seen, answers) is not None


@pytest.mark.scenario("LX-74")
@given(CONDITIONS)
def test_the_repr_of_any_condition_evaluates_back(condition: Condition) -> None:
    """The repr has the brackets it needs."""
    assert eval(repr(condition), dict(NAMES)) == condition


@given(CONDITIONS, VIEWS, ANSWERS)
def test_any_condition_holds_as_logic_says_and_what_fired_holds_too(
    condition: Condition, seen: ConditionView, answers: Any
) -> None:
    """The part that fired is itself a condition that is true of the same run, and fires as itself."""
    fired = condition.check(seen, answers)
    assert (fired is not None) is truth(condition, seen, answers)
    if fired is not None:
        assert fired.condition.check(seen, answers) == fired
        assert not isinstance(fired.condition, AnyOf)
