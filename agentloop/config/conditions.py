"""Conditions that stop a run, checked at the end of each turn. They compose with `|`, `&` and `~`.

A condition is data: it checks a frozen view of the run and keeps nothing from one turn to the next, so a resumed run
and an uninterrupted one get the same result. Predicates of the application may need to be awaited, and this module does
not wait: the caller of `check` first calls them (`predicates`) and passes their answers.

Equality is structural: two conditions are equal if they have the same parts. The repr of a condition is an expression
that gives an equal condition, if its predicates have names.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, TypeAlias, final

import attrs

from agentloop._common.checks import FIELDS
from agentloop._common.errors import UserTypeError
from agentloop._common.naming import takes
from agentloop._common.values import Value
from agentloop.context import RunContext

__all__ = ["Condition", "MaxTurns", "TextMention", "TokenLimit", "ToolCalled"]

PredicateFunction: TypeAlias = Callable[[RunContext[Any]], bool | Awaitable[bool]]
Answers: TypeAlias = Mapping[PredicateFunction, bool]


class ConditionView(Value, frozen=True, kw_only=True):
    """A frozen view of a run for its conditions.

    Attributes:
        turn: The number of the turn that has ended.
        calls: The names of the tools called so far in the run, this turn included.
        text: The text of this turn's messages and tool outputs.
        total_tokens: The tokens that the run has used so far.
        context: The argument of predicates.
    """

    turn: int
    calls: Collection[str] = ()
    text: str = ""
    total_tokens: int = 0
    context: RunContext[Any] | None = None


@final
class Fired(Value, frozen=True):
    """The proof that a condition holds.

    `condition` is the part that decided it: for `&` all members, for `|` the first true one. The text of this object
    (`str`) is the repr of that part.
    """

    condition: Condition

    def __str__(self) -> str:
        return repr(self.condition)


class Condition:
    """Base of all conditions. Compose with `|`, `&`, `~`; a predicate function may be on either side.

    Example:
        from agentloop.config.conditions import MaxTurns, TextMention, TokenLimit

        enough = MaxTurns(10) | TextMention("DONE") & TokenLimit(1000)  # conditions are combined by | and &
        print(type(enough).__name__ != "MaxTurns")  # True
    """

    __slots__ = ()

    def check(self, view: ConditionView, answers: Answers | None = None) -> Fired | None:
        """Return the part that holds as `Fired`, or None if the condition doesn't hold.

        Args:
            view: The run at the end of a turn.
            answers: The answer of each function in `predicates()`.

        Raises:
            UserTypeError: if the answer of a predicate isn't a bool.
            LookupError: if *answers* lacks a predicate that decides.
        """
        raise NotImplementedError

    def predicates(self) -> tuple[PredicateFunction, ...]:
        """Return the application's functions to call before `check`, each once, from left to right."""
        return ()

    def __or__(self, other: Condition | PredicateFunction) -> Condition:
        return _compose(AnyOf, self, other)

    def __ror__(self, other: PredicateFunction) -> Condition:
        return _compose(AnyOf, other, self)

    def __and__(self, other: Condition | PredicateFunction) -> Condition:
        return _compose(AllOf, self, other)

    def __rand__(self, other: PredicateFunction) -> Condition:
        return _compose(AllOf, other, self)

    def __invert__(self) -> Condition:
        return Not(self)


def as_condition(value: Condition | PredicateFunction) -> Condition:
    """Return *value* as a condition: itself, or a `Predicate` of it.

    Raises:
        UserTypeError: if it is neither a condition nor a callable of one argument.
    """
    return value if isinstance(value, Condition) else Predicate(value)


# ---------------------------------------------------------------------------------------------- leaves


@final
@attrs.frozen(repr=False)
class MaxTurns(Condition):
    """Holds from the end of turn *n* on. Stops the run with a result; the `max_turns` of a run raises an error.

    Example:
        from agentloop import Agent, RunConfig, Runner, tool
        from agentloop.config.conditions import MaxTurns
        from agentloop.testing import ScriptedModel, call

        @tool
        def look() -> str:
            "Look around."
            return "nothing"

        agent = Agent("a", model=ScriptedModel([call("look"), call("look")]), tools=[look])
        print(Runner.run_sync(agent, "go", run_config=RunConfig(stop_when=MaxTurns(1))).status)  # stopped
    """

    n: int = attrs.field(validator=FIELDS.count())

    def check(self, view: ConditionView, answers: Answers | None = None) -> Fired | None:
        """Return this if the turn is the *n*-th or later."""
        return Fired(self) if view.turn >= self.n else None

    def __repr__(self) -> str:
        return f"MaxTurns({self.n})"


@final
@attrs.frozen(repr=False)
class ToolCalled(Condition):
    """Holds once the tool called *name* has been called in the run.

    Example:
        from agentloop import Agent, RunConfig, Runner, tool
        from agentloop.config.conditions import ToolCalled
        from agentloop.testing import ScriptedModel, call

        @tool
        def ship() -> str:
            "Ship the order."
            return "shipped"

        agent = Agent("a", model=ScriptedModel([call("ship")]), tools=[ship])
        config = RunConfig(stop_when=ToolCalled("ship"))
        print(Runner.run_sync(agent, "go", run_config=config).stop_reason)  # ToolCalled('ship')
    """

    name: str = attrs.field(validator=FIELDS.words())

    def check(self, view: ConditionView, answers: Answers | None = None) -> Fired | None:
        """Return this if the tool is among the calls."""
        return Fired(self) if self.name in view.calls else None

    def __repr__(self) -> str:
        return f"ToolCalled({self.name!r})"


@final
@attrs.frozen(repr=False)
class TextMention(Condition):
    """Holds for a turn whose messages or tool outputs contain *text* exactly.

    Example:
        from agentloop.config.conditions import MaxTurns, TextMention

        either = TextMention("DONE") | MaxTurns(20)  # give it as RunConfig.stop_when
        print(either)  # TextMention('DONE') | MaxTurns(20)
    """

    text: str = attrs.field(validator=FIELDS.words())

    def check(self, view: ConditionView, answers: Answers | None = None) -> Fired | None:
        """Return this if the turn's text contains *text*."""
        return Fired(self) if self.text in view.text else None

    def __repr__(self) -> str:
        return f"TextMention({self.text!r})"


@final
@attrs.frozen(repr=False)
class TokenLimit(Condition):
    """Holds once the run has used *n* tokens in all. Stops the run with a result; `UsageLimits` raise an error.

    Example:
        from agentloop.config.conditions import TokenLimit, ToolCalled

        both = TokenLimit(50_000) & ToolCalled("save")  # give it as RunConfig.stop_when
        print(both)  # TokenLimit(50000) & ToolCalled('save')
    """

    n: int = attrs.field(validator=FIELDS.count())

    def check(self, view: ConditionView, answers: Answers | None = None) -> Fired | None:
        """Return this if *n* tokens or more are used."""
        return Fired(self) if view.total_tokens >= self.n else None

    def __repr__(self) -> str:
        return f"TokenLimit({self.n})"


def _check_predicate(_instance: Condition, _attribute: attrs.Attribute[Any], fn: object) -> None:
    if isinstance(fn, type) or not callable(fn):
        raise UserTypeError(f"expected a condition or a callable of the run's context, got {fn!r}")
    if not takes(fn, 1):
        raise UserTypeError(f"a condition's callable must take one argument, the run's context: {fn!r}")
    try:
        hash(fn)
    except TypeError:
        raise UserTypeError(f"a condition's callable must be hashable: {fn!r}") from None


@final
@attrs.frozen(repr=False)
class Predicate(Condition):
    """Holds if *fn*, called with the `RunContext`, returns True. *fn* may be sync or async."""

    fn: PredicateFunction = attrs.field(validator=_check_predicate)

    def check(self, view: ConditionView, answers: Answers | None = None) -> Fired | None:
        """Return this if the answer is True.

        Raises:
            UserTypeError: if the answer isn't a bool.
            LookupError: if *answers* has no answer of *fn*.
        """
        if answers is None or self.fn not in answers:
            raise LookupError(f"{self!r} was not asked")
        answer: object = answers[self.fn]
        if not isinstance(answer, bool):
            # Truthiness is not accepted: an object in place of a bool is most often a mistake, and would end the run.
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
    """Holds if all of *conditions* hold: `a & b`."""

    conditions: tuple[Condition, ...]

    def check(self, view: ConditionView, answers: Answers | None = None) -> Fired | None:
        """Return the deciding parts of all members, joined by `&`; None if one member doesn't hold."""
        fired: list[Condition] = []
        for condition in self.conditions:
            found = condition.check(view, answers)
            if found is None:
                return None
            fired.append(found.condition)
        return Fired(_compose(AllOf, *fired))

    def predicates(self) -> tuple[PredicateFunction, ...]:
        """Return the predicates of the members, each once."""
        return _collect_predicates(self.conditions)

    def __repr__(self) -> str:
        return " & ".join(_bracket(condition, AnyOf) for condition in self.conditions)


@final
@attrs.frozen(repr=False)
class AnyOf(Condition):
    """Holds if at least one of *conditions* holds: `a | b`."""

    conditions: tuple[Condition, ...]

    def check(self, view: ConditionView, answers: Answers | None = None) -> Fired | None:
        """Return the deciding part of the first member that holds; None if none does."""
        return next((found for condition in self.conditions if (found := condition.check(view, answers))), None)

    def predicates(self) -> tuple[PredicateFunction, ...]:
        """Return the predicates of the members, each once."""
        return _collect_predicates(self.conditions)

    def __repr__(self) -> str:
        return " | ".join(map(repr, self.conditions))


@final
@attrs.frozen(repr=False)
class Not(Condition):
    """Holds if *condition* doesn't: `~a`."""

    condition: Condition

    def check(self, view: ConditionView, answers: Answers | None = None) -> Fired | None:
        """Return this if the condition doesn't hold."""
        return None if self.condition.check(view, answers) else Fired(self)

    def predicates(self) -> tuple[PredicateFunction, ...]:
        """Return the predicates of the condition."""
        return self.condition.predicates()

    def __repr__(self) -> str:
        return f"~{_bracket(self.condition, AllOf, AnyOf)}"


def _compose(kind: type[AllOf | AnyOf], *members: Condition | PredicateFunction) -> Condition:
    flat: list[Condition] = []
    for member in map(as_condition, members):
        # Flattened so that `a & (b & c)` equals `a & b & c`.
        flat += member.conditions if isinstance(member, kind) else (member,)
    return kind(tuple(flat))


def _collect_predicates(conditions: tuple[Condition, ...]) -> tuple[PredicateFunction, ...]:
    return tuple(dict.fromkeys(fn for condition in conditions for fn in condition.predicates()))


def _bracket(condition: Condition, *weaker: type[Condition]) -> str:
    return f"({condition!r})" if isinstance(condition, weaker) else repr(condition)
