"""Generated worlds for an application's own agents: scripts of models, behaviors of bodies, moments of cancellation.

`@worlds(agent, …)` gives a test one `World` after another and shrinks the one that fails. It needs hypothesis
(the extra `test`), which is imported when the decorator is applied. A generator makes each choice with a
`Chance`; the order of choices is part of a seed's meaning.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import attrs

from agentloop._common.checks import check_count
from agentloop._common.extras import describe_missing
from agentloop._schema.function_schema import FunctionSchema
from agentloop.agents import Agent
from agentloop.exceptions import ModelBehaviorError, UserError, UserTypeError
from agentloop.handoffs import target_of
from agentloop.testing.scripted import call, reason, say
from agentloop.testing.simulation._faults import CancelsItself, FailsInCleanup, Nests, Raises, Returns, Swallows
from agentloop.testing.simulation._reach import Reach, reaching
from agentloop.testing.simulation._simulated_parts import Behavior, agents_of
from agentloop.testing.simulation.runs import CancelAt, Order, Verdict, World
from agentloop.tools import AgentCall, PythonBody

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn, SearchStrategy

    from agentloop._schema.output_schema import TypedOutput

FAULTY_ARGUMENTS = ('{"n": ', "[1]", '{"n": NaN}', '{"m": 1}', '{"n": "x", "n": 2}', "", '{"n": 1, "extra": true}')
AIMED = 40
"""Number of worlds that call one tool only, if no world has run its body before."""

ValueT = TypeVar("ValueT")
Made = Agent[Any, Any] | Callable[[], Agent[Any, Any]]


class Chance(Protocol):
    """The source of a generator's choices."""

    def whole(self, low: int, high: int) -> int:
        """Return a number from *low* to *high*, both included."""
        ...

    def pick(self, values: Sequence[ValueT]) -> ValueT:
        """Return one of *values*."""
        ...

    def one_in(self, count: int) -> bool:
        """Return True once in *count* times."""
        ...


class Drawn:
    """Choices made by hypothesis: False, the smallest number and the first value are the simplest."""

    def __init__(self, draw: DrawFn) -> None:
        from hypothesis import strategies as st

        self._draw, self._st = draw, st

    def whole(self, low: int, high: int) -> int:
        """Return a number from *low* to *high*, both included."""
        return self._draw(self._st.integers(low, high))

    def pick(self, values: Sequence[ValueT]) -> ValueT:
        """Return one of *values*."""
        return self._draw(self._st.sampled_from(list(values)))

    def one_in(self, count: int) -> bool:
        """Return True about once in *count* times: hypothesis does not draw evenly."""
        return self._draw(self._st.integers(0, count - 1)) == count - 1

    def arguments(self, tool: Any) -> dict[str, Any]:
        """Return arguments that the schema of *tool*, or of a handoff, allows."""
        from agentloop.testing.simulation._arguments import arguments_for

        body = getattr(tool, "body", None)
        takes = partial(_fits_parameter, body.schema) if isinstance(body, PythonBody) else None
        return self._draw(arguments_for(tool.params_json_schema, takes))

    def output(self, typed: TypedOutput) -> str:
        """Return an answer of a model that the schema of the final output *typed* allows."""
        from agentloop.testing.simulation._arguments import arguments_for

        return json.dumps(self._draw(arguments_for(typed.schema.schema, None)), ensure_ascii=False)


def _fits_parameter(schema: FunctionSchema, name: str, value: Any) -> bool:
    """Return True if *value* fits the parameter *name* of a tool."""
    try:
        schema.bind({name: value})
    except ModelBehaviorError as error:
        # The message names misfits before missing parameters. The others are missing here, so only a message that
        # begins with those says that this one fits.
        return str(error).partition(" don't fit: ")[2].startswith("missing: ")
    return True


# ---------------------------------------------------------------------------------------------- what is generated


@attrs.frozen
class Proposal:
    """One call of a script: its path, id and tool."""

    path: tuple[str, ...]
    call_id: str
    tool: str


@attrs.frozen(kw_only=True)
class Script:
    """The scripts of one world: the run's own steps, those of nested runs, and all calls in them."""

    steps: tuple[Any, ...]
    nested: Mapping[str, tuple[Any, ...]]
    asked: tuple[Proposal, ...]


@attrs.frozen(kw_only=True)
class Scripts:
    """Scripts for an agent: up to *max_turns* turns of up to *max_calls* calls of its tools, then an answer.

    With *malformed* some calls have arguments that don't fit, repeat an id, or name no tool, and some answers don't fit
    the output type of their agent.
    """

    max_turns: int = 3
    max_calls: int = 3
    malformed: bool = False
    wanted: str | None = None
    """The only tool to call, for agents that have it; other agents call agent tools, which may lead to it."""

    def draw(self, chance: Drawn, agent: Agent[Any, Any]) -> Script:
        """Return one script for *agent*."""
        writer = _Writer(chance, self)
        steps = writer.turns(agent, (), 0)
        return Script(steps=steps, nested=writer.nested, asked=tuple(writer.asked))


@attrs.frozen(kw_only=True)
class Behaviours:
    """Behaviors of bodies: they take time, and with *faults* fail, cancel themselves, refuse to end."""

    faults: bool = True

    def draw(self, chance: Chance, asked: Sequence[Proposal]) -> dict[str, Any]:
        """Return behaviors for some of the calls *asked*; the others run unchanged."""
        drawn = {"/".join([*one.path, one.call_id]): _draw_behavior(chance, one.call_id, self.faults) for one in asked}
        return {place: behavior for place, behavior in drawn.items() if behavior is not None}


def _draw_behavior(chance: Chance, call_id: str, faults: bool) -> Behavior | None:
    """Return the behavior of one body, or None for a body that just runs. Only with *faults* it misbehaves."""
    points, seconds = chance.pick([0, 1, 1, 2]), chance.pick([0.0, 0.25, 0.5, 0.75, 1.5])
    if seconds and call_id[1:].isdigit():
        seconds += int(call_id[1:]) / 1024  # no two timers of one moment: they would have no order to assert
    if not faults or chance.one_in(2):
        return Returns(points, seconds) if points or seconds else None
    kind = chance.whole(0, 9)
    if kind <= 3:
        return Raises(points, seconds, late=chance.one_in(2), fatal=chance.one_in(12))
    if kind <= 5:
        return CancelsItself(points, seconds, task=chance.one_in(2))
    if kind <= 7:
        return Swallows(points, seconds)
    if kind == 8:
        return FailsInCleanup(points, seconds)
    return Nests(points, seconds, tasks=chance.whole(1, 2), fails=chance.one_in(2))


@attrs.frozen(kw_only=True)
class CancelPoints:
    """Moments of the caller's cancellation: one of the steps 0 to *most*, or none."""

    most: int = 100

    def draw(self, chance: Chance) -> CancelAt | None:
        """Return a point, or None."""
        if not chance.one_in(2):
            return None
        return CancelAt(chance.whole(0, self.most), chance.pick(["scope", "native"]))


@attrs.frozen(kw_only=True)
class Verdicts:
    """Verdicts on calls that wait: approved or rejected, once or for all calls of the tool."""

    def draw(self, chance: Chance, asked: Sequence[Proposal]) -> tuple[Verdict, ...]:
        """Return a verdict on each of the calls *asked*; those that don't wait need none."""
        return tuple(
            Verdict(call_id=one.call_id, path=one.path, approved=not chance.one_in(3), always=chance.one_in(5))
            for one in asked
        )


def scripts(max_turns: int = 3, *, max_calls: int = 3, malformed: bool = False) -> Scripts:
    """Return scripts for `worlds(models=…)`: up to *max_turns* turns of up to *max_calls* calls of its tools."""
    check_count("max_turns", max_turns)
    check_count("max_calls", max_calls)
    return Scripts(max_turns=max_turns, max_calls=max_calls, malformed=malformed)


def tool_behaviours(faults: bool = True) -> Behaviours:
    """Return behaviors for `worlds(tools=…)`: bodies that take time and, with *faults*, misbehave in every way."""
    return Behaviours(faults=faults)


def cancel_points(most: int = 100) -> CancelPoints:
    """Return moments for `worlds(cancels=…)`: one of the steps 0 to *most* of the run, or none."""
    return CancelPoints(most=most)


def approvals() -> Verdicts:
    """Return verdicts for `worlds(verdicts=…)`."""
    return Verdicts()


@attrs.define
class _Writer:
    """Writes one script: steps, nested scripts, and the calls in them. `Scripts.draw` owns it."""

    chance: Drawn
    kind: Scripts
    nested: dict[str, tuple[Any, ...]] = attrs.field(factory=dict)
    asked: list[Proposal] = attrs.field(factory=list)
    texts: list[tuple[Proposal, str]] = attrs.field(factory=list)

    def turns(self, agent: Agent[Any, Any], path: tuple[str, ...], depth: int) -> tuple[Any, ...]:
        steps: list[Any] = []
        for _ in range(self.chance.whole(1, self.kind.max_turns if not depth else 1)):
            pieces, target = self.response(agent, path, depth)
            steps.append(pieces)
            agent = target or agent
        return (*steps, *self.answers(agent))

    def answers(self, agent: Agent[Any, Any]) -> list[Any]:
        """Return the last steps of a script that ends with *agent*: an output of its type, or first another one."""
        output = agent._typed_output()
        if output is None:
            return [say("done")] * 2
        wrong = [say("done")] if self.kind.malformed and self.chance.one_in(3) else []
        return [*wrong, *[say(self.chance.output(output))] * 2]

    def response(
        self, agent: Agent[Any, Any], path: tuple[str, ...], depth: int
    ) -> tuple[list[Any], Agent[Any, Any] | None]:
        chance = self.chance
        pieces: list[Any] = [reason("hm")] if chance.one_in(5) else []
        tools = [one for one in agent.functions if depth < 2 or not isinstance(one.body, AgentCall)]
        aside = 4  # one of this many responses hands over
        if self.kind.wanted is not None:
            own = [one for one in tools if one.name == self.kind.wanted]
            tools = own or [one for one in tools if isinstance(one.body, AgentCall)] or tools
            aside = 4 if own else 2
        for _ in range(chance.whole(1, self.kind.max_calls) if tools else 0):
            pieces.append(self.call(chance.pick(tools), path, depth))
        handoffs = [target_of(entry) for entry in agent.handoffs]
        if handoffs and chance.one_in(aside):
            taken = chance.pick(handoffs)
            pieces.append(call(taken.name, chance.arguments(taken), call_id=f"h{len(self.asked) + 1}"))
            found: Agent[Any, Any] = taken.agent
            return pieces, found
        if not tools and agent._typed_output() is not None:  # which isn't done with reasoning only
            pieces += self.answers(agent)[:1]
        return pieces or [say("done")], None

    def call(self, tool: Any, path: tuple[str, ...], depth: int) -> Any:
        chance = self.chance
        if self.kind.malformed and self.texts and chance.one_in(12):
            one, text = chance.pick(self.texts)
            return call(one.tool, text, call_id=one.call_id)
        call_id = f"c{len(self.asked) + 1}"
        text = json.dumps(chance.arguments(tool), ensure_ascii=False)
        name = tool.name
        if self.kind.malformed and chance.one_in(12):
            text = chance.pick(FAULTY_ARGUMENTS)
        elif self.kind.malformed and chance.one_in(20):
            name = f"{name}x"
        one = Proposal(path, call_id, name)
        self.asked.append(one)
        self.texts.append((one, text))
        if isinstance(tool.body, AgentCall):
            self.nested["/".join([*path, call_id])] = self.turns(tool.body.agent, (*path, call_id), depth + 1)
        return call(name, text, call_id=call_id, namespace=tool.namespace)


def draw_tape(chance: Chance, length: int = 40) -> tuple[int, ...]:
    """Return numbers for a tape."""
    return tuple(chance.whole(0, 5) for _ in range(chance.whole(0, length)))


# ---------------------------------------------------------------------------------------------- the decorator


def draw_application_world(
    chance: Drawn,
    agent: Made,
    *,
    models: Scripts | None = None,
    tools: Behaviours | None = None,
    cancels: CancelPoints | None = None,
    verdicts: Verdicts | None = None,
    orders: Sequence[Order] = ("gate", "passes"),
    **options: Any,
) -> World:
    """Return one world of *agent*; arguments are those of `worlds`."""
    made = agent if isinstance(agent, Agent) else agent()
    said = models.draw(chance, made) if models is not None else None
    asked = said.asked if said is not None else ()
    return World(
        agent=agent,
        script=said.steps if said is not None else None,
        nested=said.nested if said is not None else {},
        behaviors=tools.draw(chance, asked) if tools is not None else {},
        verdicts=verdicts.draw(chance, asked) if verdicts is not None else (),
        cancel=cancels.draw(chance) if cancels is not None else None,
        order=chance.pick(orders),
        tape=draw_tape(chance, 20),
        **options,
    )


def strategy(agent: Made, **kinds: Any) -> SearchStrategy[World]:
    """Return a hypothesis strategy for worlds of *agent*; arguments are those of `worlds`."""
    try:
        from hypothesis import strategies as st
    except ImportError:
        raise UserError(describe_missing("agentloop.testing.worlds", "test")) from None

    @st.composite
    def drawn(draw: DrawFn) -> World:
        return draw_application_world(Drawn(draw), agent, **kinds)

    return drawn()


def worlds(
    agent: Made,
    *,
    models: Scripts | None = None,
    tools: Behaviours | None = None,
    cancels: CancelPoints | None = None,
    verdicts: Verdicts | None = None,
    orders: Sequence[Order] = ("gate", "passes"),
    max_examples: int | None = None,
    context: Callable[[], Any] | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test with generated worlds of *agent*; the test takes one as `world`.

    A world that fails the test shrinks to a small one: few calls, a short tape, no cancellation. The tools' schemas
    allow all arguments; bounds, large values and long text are among them. If *models* are generated and no world of a
    passing test has run the body of some tool, further worlds call that tool only. If none of them runs its body, the
    test fails with the outcomes of the calls.

    Args:
        agent: The agent, or a function that makes one anew for each run.
        models: Scripts of the models (`scripts()`); None: the agents' own models answer.
        tools: Behaviors of bodies (`tool_behaviours()`); None: the tools' own bodies run.
        cancels: Moments of the caller's cancellation (`cancel_points()`); None: never.
        verdicts: Verdicts on calls that wait (`approvals()`); None: the run stays interrupted.
        orders: The kinds of schedules: see `World.order`.
        max_examples: The number of worlds; None: hypothesis's own setting.
        context, options: As of `World`.

    Raises:
        UserError: if hypothesis isn't installed.
        UserTypeError: for anything but an agent or a function.
    """
    if not isinstance(agent, Agent) and not callable(agent):
        raise UserTypeError(f"worlds: expected an Agent, or a function that makes one, got {agent!r}")
    kinds: dict[str, Any] = {
        "models": models,
        "tools": tools,
        "cancels": cancels,
        "verdicts": verdicts,
        "orders": orders,
        "context": context,
        "options": options or {},
    }
    found = strategy(agent, **kinds)

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        decorated = _make_property(test, found, max_examples)
        if models is None:
            return decorated
        malformed = models.malformed

        @functools.wraps(decorated)
        def reaching_all(*args: Any, **options: Any) -> None:
            with reaching() as reach:
                if not malformed:
                    reach.report = _count_event
                decorated(*args, **options)
                reach.forget_calls()  # the counts below must not contain calls that were malformed on purpose
                _reach_the_rest(test, reach, agent, {**kinds, "tools": None, "cancels": None}, args, options)

        return reaching_all

    return decorate


def _count_event(what: str) -> None:
    """Count *what* in hypothesis's statistics: `--hypothesis-show-statistics` shows it."""
    import hypothesis

    if hypothesis.currently_in_test_context():
        hypothesis.event(what)


def _make_property(
    test: Callable[..., None], found: SearchStrategy[World], max_examples: int | None, **further: Any
) -> Callable[..., None]:
    """Return *test* as a property of the worlds *found*."""
    from hypothesis import HealthCheck, given, settings

    wanted: dict[str, Any] = {
        "deadline": None,
        "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
        **further,
    }
    if max_examples is not None:
        wanted["max_examples"] = max_examples
    decorated: Callable[..., None] = settings(**wanted)(given(world=found)(test))
    return decorated


def _skip_once_ran(test: Callable[..., None], reach: Reach, tool: str) -> Callable[..., None]:
    def aimed(*args: Any, world: World, **options: Any) -> None:
        if tool not in reach.ran:
            test(*args, world=world, **options)

    aimed.__name__, aimed.__qualname__ = test.__name__, test.__qualname__
    return aimed


def _reach_the_rest(
    test: Callable[..., None],
    reach: Reach,
    agent: Made,
    kinds: dict[str, Any],
    args: tuple[Any, ...],
    options: dict[str, Any],
) -> None:
    """Run *test* with worlds that call the tools whose bodies no world has run yet.

    Raises:
        AssertionError: if a tool's body still did not run; its text names all such tools.
    """
    made = agent if isinstance(agent, Agent) else agent()
    names = {tool.name for one in agents_of(made) for tool in one.functions if tool.is_enabled is not False}
    models = attrs.evolve(kinds["models"], malformed=False)
    for name in sorted(names - reach.ran):
        found = strategy(agent, **{**kinds, "models": attrs.evolve(models, wanted=name)})
        _make_property(_skip_once_ran(test, reach, name), found, AIMED, database=None)(*args, **options)
    if sentences := [reach.why(name) for name in sorted(names - reach.ran)]:
        raise AssertionError("; ".join(sentences))


__all__ = [
    "Behaviours",
    "CancelPoints",
    "Scripts",
    "Verdicts",
    "approvals",
    "cancel_points",
    "draw_application_world",
    "scripts",
    "strategy",
    "tool_behaviours",
    "worlds",
]
