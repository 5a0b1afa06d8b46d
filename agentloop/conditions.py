"""Conditions that stop a run, checked at the end of each turn. They compose with `|`, `&` and `~`.

A condition is data: it is asked of a frozen view of the run and keeps nothing from one turn to the next, so a resumed
run is judged like one that was never interrupted. Predicates of the application may need to be awaited; whoever checks
asks them first (`predicates`) and hands in the answers.

Two conditions are equal if they say the same. The repr of a condition is an expression that gives an equal one, where
its predicates can be named.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, TypeAlias, final

import attrs

from agentloop._common.checks import FIELDS
from agentloop._common.errors import UserTypeError
from agentloop._common.naming import takes
from agentloop.context import RunContext

PredicateFunction: TypeAlias = Callable[[RunContext[Any]], bool | Awaitable[bool]]
Answers: TypeAlias = Mapping[PredicateFunction, bool]


@attrs.frozen(kw_only=True)
class ConditionView:
    """What conditions see of a run.

    Attributes:
        turn: Number of the turn that has ended.
        calls: Names of the tools called so far in the run, this turn included.
        text: Text of this turn's messages and tool outputs.
        total_tokens: Used by the run so far.
        context: What predicates are asked with.
    """

    turn: int
    calls: Collection[str] = ()
    text: str = ""
    total_tokens: int = 0
    context: RunContext[Any] | None = None


@final
@attrs.frozen
class Fired:
    """A condition that holds. `condition` is the part that made it so: of `&` all members, of `|` the first true one.

    Its text names that part.
    """

    condition: Condition

    def __str__(self) -> str:
        return repr(self.condition)


class Condition:
    """Base of all conditions. Compose with `|`, `&`, `~`; a predicate function may stand on either side."""

    __slots__ = ()

    def check(self, view: ConditionView, answers: Answers | None = None) -> Fired | None:
        """Return what fired, or None where the condition doesn't hold.

        Args:
            view: The run at the end of a turn.
            answers: What each of `predicates()` answered.

        Raises:
            UserTypeError: if the answer of a predicate is no bool.
        """
        raise NotImplementedError

    def predicates(self) -> tuple[PredicateFunction, ...]:
        """Return the application's functions that must be asked before `check`, each once, from left to right."""
        return ()

    def __or__(self, other: Condition | PredicateFunction) -> Condition:
        return _composed(AnyOf, self, other)

    def __ror__(self, other: PredicateFunction) -> Condition:
        return _composed(AnyOf, other, self)

    def __and__(self, other: Condition | PredicateFunction) -> Condition:
        return _composed(AllOf, self, other)

    def __rand__(self, other: PredicateFunction) -> Condition:
        return _composed(AllOf, other, self)

    def __invert__(self) -> Condition:
        return Not(self)


def as_condition(value: Condition | PredicateFunction) -> Condition:
    """Return *value* as a condition: itself, or a `Predicate` of it.

    Raises:
        UserTypeError: if it is neither a condition nor a callable of one argument.
    """
    return value if isinstance(value, Condition) else Predicate(value)


# ---------------------------------------------------------------------------------------------- what can be asked


@final
@attrs.frozen(repr=False)
class MaxTurns(Condition):
    """Holds from the end of turn *n* on. Stops the run with a result, unlike the `max_turns` of a run."""

    n: int = attrs.field(validator=FIELDS.count())

    def check(self, view: ConditionView, answers: Answers | None = None) -> Fired | None:
        """Return this if the turn is the *n*-th or later."""
        return Fired(self) if view.turn >= self.n else None

    def __repr__(self) -> str:
        return f"MaxTurns({self.n})"


@final
@attrs.frozen(repr=False)
class ToolCalled(Condition):
    """Holds once the tool called *name* has been called in the run."""

    name: str = attrs.field(validator=FIELDS.words())

    def check(self, view: ConditionView, answers: Answers | None = None) -> Fired | None:
        """Return this if the tool is among the calls."""
        return Fired(self) if self.name in view.calls else None

    def __repr__(self) -> str:
        return f"ToolCalled({self.name!r})"


@final
@attrs.frozen(repr=False)
class TextMention(Condition):
    """Holds for a turn whose messages or tool outputs mention *text*, letter by letter."""

    text: str = attrs.field(validator=FIELDS.words())

    def check(self, view: ConditionView, answers: Answers | None = None) -> Fired | None:
        """Return this if the turn's text has *text* in it."""
        return Fired(self) if self.text in view.text else None

    def __repr__(self) -> str:
        return f"TextMention({self.text!r})"


@final
@attrs.frozen(repr=False)
class TokenLimit(Condition):
    """Holds once the run has used *n* tokens in all. A stop with a result, unlike `UsageLimits`."""

    n: int = attrs.field(validator=FIELDS.count())

    def check(self, view: ConditionView, answers: Answers | None = None) -> Fired | None:
        """Return this if *n* tokens or more are used."""
        return Fired(self) if view.total_tokens >= self.n else None

    def __repr__(self) -> str:
        return f"TokenLimit({self.n})"


def _predicate(_instance: Condition, _attribute: attrs.Attribute[Any], fn: object) -> None:
    if isinstance(fn, type) or not callable(fn):
        raise UserTypeError(f"a condition or a callable of the run's context is needed, not {fn!r}")
    if not takes(fn, 1):
        raise UserTypeError(f"a condition's callable must take one argument, the run's context: {fn!r}")
    try:
        hash(fn)
    except TypeError:
        raise UserTypeError(f"a condition's callable must be hashable: {fn!r}") from None


@final
@attrs.frozen(repr=False)
class Predicate(Condition):
    """Holds where *fn*, given the `RunContext`, says True. Sync or async."""

    fn: PredicateFunction = attrs.field(validator=_predicate)

    def check(self, view: ConditionView, answers: Answers | None = None) -> Fired | None:
        """Return this if the answer is True.

        Raises:
            UserTypeError: if it is no bool.
        """
        if answers is None or self.fn not in answers:
            raise LookupError(f"{self!r} was not asked")
        answer: object = answers[self.fn]
        if not isinstance(answer, bool):
            # A truthy object where a bool is due is most often a mistake, and would end a run.
            raise UserTypeError(f"{self!r}: the answer must be True or False, not {type(answer).__name__}")
        return Fired(self) if answer else None

    def predicates(self) -> tuple[PredicateFunction, ...]:
        """Return the one function."""
        return (self.fn,)

    def __repr__(self) -> str:
        return f"Predicate({getattr(self.fn, '__name__', None) or repr(self.fn)})"


# ---------------------------------------------------------------------------------------------- composition


@final
@attrs.frozen(repr=False)
class AllOf(Condition):
    """Holds where all of *conditions* do: `a & b`."""

    conditions: tuple[Condition, ...]

    def check(self, view: ConditionView, answers: Answers | None = None) -> Fired | None:
        """Return what fired in each member, joined by `&`."""
        fired: list[Condition] = []
        for condition in self.conditions:
            found = condition.check(view, answers)
            if found is None:
                return None
            fired.append(found.condition)
        return Fired(_composed(AllOf, *fired))

    def predicates(self) -> tuple[PredicateFunction, ...]:
        """Return those of the members."""
        return _predicates(self.conditions)

    def __repr__(self) -> str:
        return " & ".join(_bracketed(condition, AnyOf) for condition in self.conditions)


@final
@attrs.frozen(repr=False)
class AnyOf(Condition):
    """Holds where one of *conditions* does: `a | b`."""

    conditions: tuple[Condition, ...]

    def check(self, view: ConditionView, answers: Answers | None = None) -> Fired | None:
        """Return what fired in the first member that holds."""
        return next((found for condition in self.conditions if (found := condition.check(view, answers))), None)

    def predicates(self) -> tuple[PredicateFunction, ...]:
        """Return those of the members."""
        return _predicates(self.conditions)

    def __repr__(self) -> str:
        return " | ".join(map(repr, self.conditions))


@final
@attrs.frozen(repr=False)
class Not(Condition):
    """Holds where *condition* doesn't: `~a`."""

    condition: Condition

    def check(self, view: ConditionView, answers: Answers | None = None) -> Fired | None:
        """Return this if the condition doesn't hold."""
        return None if self.condition.check(view, answers) else Fired(self)

    def predicates(self) -> tuple[PredicateFunction, ...]:
        """Return those of the condition."""
        return self.condition.predicates()

    def __repr__(self) -> str:
        return f"~{_bracketed(self.condition, AllOf, AnyOf)}"


def _composed(kind: type[AllOf | AnyOf], *members: Condition | PredicateFunction) -> Condition:
    flat: list[Condition] = []
    for member in map(as_condition, members):
        # `a & (b & c)` says the same as `a & b & c`, and is equal to it.
        flat += member.conditions if isinstance(member, kind) else (member,)
    return kind(tuple(flat))


def _predicates(conditions: tuple[Condition, ...]) -> tuple[PredicateFunction, ...]:
    return tuple(dict.fromkeys(fn for condition in conditions for fn in condition.predicates()))


def _bracketed(condition: Condition, *weaker: type[Condition]) -> str:
    return f"({condition!r})" if isinstance(condition, weaker) else repr(condition)
