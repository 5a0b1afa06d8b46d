"""Generators of worlds: one description of a random world, for hypothesis and for plain seeds alike.

A generator makes each choice with a `Chance`. `Seeded` chooses from a seed, as fast as possible; a hypothesis one (of
`agentloop.testing.worlds`) makes failing worlds shrink: the first value, the smallest number and False are simplest.
The order of choices is part of a seed's meaning: one choice more changes every later one. Does not run worlds.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import attrs

from agentloop.config import RunConfig
from agentloop.exceptions import ModelTransportError
from agentloop.limits import ToolExecution
from agentloop.model_events import ReasoningDelta, ResponseStarted
from agentloop.settings import ModelRetrySettings, ModelSettings
from agentloop.testing.scripted import call, fail, reason, respond, say, stream_of, wait
from agentloop.testing.simulation._faults import CancelsItself, FailsInCleanup, Nests, Raises, Returns, Swallows
from agentloop.testing.simulation.generated import FAULTY_ARGUMENTS, Chance
from agentloop.testing.simulation.runs import Verdict
from agentloop.usage import RequestUsage

from .faults import CancelsCall, Cleans, Hangs, Holds, OnStage, Reports
from .fixture_agents import KEY, Actor, FixtureAgents, HandoffFilter, OpaqueContext, Role
from .observers import HookLog, SessionLog

ValueT = TypeVar("ValueT")


class Seeded:
    """Choices from a seed."""

    def __init__(self, seed: int | str) -> None:
        self._random = random.Random(seed)

    def whole(self, low: int, high: int) -> int:
        """Return a number from *low* to *high*, both included."""
        return low + int(self._random.random() * (high - low + 1))

    def pick(self, values: Sequence[ValueT]) -> ValueT:
        """Return one of *values*."""
        return values[int(self._random.random() * len(values))]

    def one_in(self, count: int) -> bool:
        """Return True once in *count* times."""
        return self._random.random() * count < 1


@attrs.frozen(kw_only=True)
class GeneratorConfig:
    """The generator config: limits and features of generated worlds. A feature that is off never occurs."""

    turns: int = 3
    calls: int = 4
    tools: int = 3
    """The largest number of an agent's own tools: with fewer tools, more calls share one."""
    faults: bool = True
    """Bodies that fail, hang, cancel and refuse; models that fail; calls that are malformed, repeated or unknown."""
    guards: bool = True
    handoffs: bool = True
    nesting: int = 1
    """The largest depth of agent tools."""
    limits: bool = True
    times: bool = True
    """True if virtual time passes in bodies."""
    approvals: bool = False
    sessions: bool = True
    secrets: bool = True
    """True if tools may keep secrets."""
    slow_readers: bool = True
    """True if the reader of the events may be slow."""
    surroundings: bool = True
    """Agents' hooks, listeners of agent tools and their own configurations, namespaces, threads, filters of handoffs,
    tool choices, time limits of models.
    """


PLAIN = GeneratorConfig(
    faults=False,
    guards=False,
    handoffs=False,
    nesting=0,
    limits=False,
    sessions=False,
    secrets=False,
    surroundings=False,
)
_BEGUN = (ResponseStarted(), ReasoningDelta("hm"))
LONG_NUMBER = 10**17
"""Added to a number, it makes arguments that differ only in their last digits."""


# ---------------------------------------------------------------------------------------------- agents


def draw_cast(chance: Chance, generator_config: GeneratorConfig) -> FixtureAgents:
    """Return fixture agents as *generator_config* says: one agent, or two that hand over to each other."""
    count = 2 if generator_config.handoffs and chance.one_in(4) else 1
    names = ["a", "b"][:count]
    roles = []
    for name in names:
        others = tuple(other for other in names if other != name)
        roles.append(draw_role(chance, generator_config, name, others, generator_config.nesting))
    return FixtureAgents(
        roles=tuple(roles),
        tokens=chance.whole(1, 2),
        rate=chance.whole(1, 3),
        per=chance.pick([1.3, 4.1]),
    )


def draw_role(
    chance: Chance, generator_config: GeneratorConfig, name: str, handoffs: tuple[str, ...], nesting: int
) -> Role:
    """Return one agent with up to `generator_config.tools` tools, and sometimes an agent tool (depth *nesting*)."""
    more = generator_config.surroundings
    actors = [
        draw_actor(chance, generator_config, f"{name}_{place}")
        for place in range(chance.whole(1, generator_config.tools))
    ]
    if more and chance.one_in(12):
        actors.append(attrs.evolve(actors[0], namespace="z"))  # two tools of one name
    if nesting and chance.one_in(4):
        inner = draw_role(chance, attrs.evolve(generator_config, handoffs=False), f"{name}n", (), nesting - 1)
        actor = Actor(name=f"{name}_agent", agent=inner, raises=generator_config.faults and chance.one_in(6))
        if generator_config.times and chance.one_in(5):
            actor = attrs.evolve(actor, timeout=chance.pick([0.55, 1.05]))
        if more and chance.one_in(3):
            actor = attrs.evolve(actor, own=draw_config(chance, generator_config))
        if more and chance.one_in(3):
            actor = attrs.evolve(actor, listens=(chance.pick([0.0, 0.0, 0.03]), chance.pick([0, 0, 2])))
        actors.append(actor)
    guards = generator_config.guards
    late = more and generator_config.times
    judges = [
        (chance.pick(["pass", "pass", "pass", "trip"]) + " late" * (late and chance.one_in(4)), not chance.one_in(3))
        for _ in range(chance.whole(1, 2) if guards and chance.one_in(3) else 0)
    ]
    last = [
        chance.pick(["pass", "pass", "trip"]) for _ in range(chance.whole(1, 2) if guards and chance.one_in(4) else 0)
    ]
    return Role(
        name=name,
        actors=tuple(actors),
        handoffs=handoffs,
        judges=tuple(judges),  # type: ignore[arg-type]  # of literals
        last_judges=tuple(last),  # type: ignore[arg-type]
        behavior=chance.pick(["stop_on_first_tool", "stop_at_last"]) if chance.one_in(7) else "run_llm_again",
        sequential=generator_config.limits and chance.one_in(5),
        hooks="" if more and chance.one_in(6) else None,
        chooses=more and chance.one_in(8),
        resets=not chance.one_in(3),
        filter=chance.pick(FILTERS) if more and handoffs and chance.one_in(3) else None,
    )


FILTERS: tuple[HandoffFilter, ...] = ("everything", "messages", "newest", "before", "nothing", "nested")


def draw_actor(chance: Chance, generator_config: GeneratorConfig, name: str) -> Actor:
    """Return one tool."""
    limits, guards, times = generator_config.limits, generator_config.guards, generator_config.times
    before: Any = ("allow", "reject odd", "raise odd", "rewrite odd", "reject odd", "rewrite odd")
    after: Any = ("allow", "reject odd", "raise odd", "replace odd", "reject odd", "replace odd")
    idempotent = chance.one_in(4)
    judged = guards and chance.one_in(3 if idempotent else 5)
    actor = Actor(
        name=name,
        raises=generator_config.faults and chance.one_in(4),
        timeout=chance.pick([0.55, 1.05, 2.1]) if times and chance.one_in(4) else None,
        timeout_raises=chance.one_in(4),
        serial=chance.pick(["s", "t"]) if limits and chance.one_in(5) else None,
        exclusive=limits and chance.one_in(8),
        idempotent=idempotent,
        shares=limits and chance.one_in(5),
        rated=limits and times and chance.one_in(10),
        before=tuple(chance.pick(before) for _ in range(chance.whole(1, 2))) if judged else (),
        after=tuple(chance.pick(after) for _ in range(chance.whole(1, 2))) if guards and chance.one_in(5) else (),
        approval=generator_config.approvals and chance.one_in(2),
        secret=generator_config.secrets and chance.one_in(12),
    )
    if generator_config.surroundings and not actor.secret:
        actor = attrs.evolve(
            actor,
            namespace=chance.pick(["x", "y"]) if chance.one_in(10) else None,
            in_thread=chance.one_in(10),
        )
    if actor.approval and guards and actor.timeout_raises and not actor.before:
        return attrs.evolve(actor, before=("allow",))  # so that some guardrails run again after a pause
    return actor


# ---------------------------------------------------------------------------------------------- scripts


@attrs.define
class _ScriptWriter:
    """Writes one script: call ids, the scripts of nested runs, and the behaviors of bodies. `draw_world` owns it."""

    chance: Chance
    generator_config: GeneratorConfig
    cast: FixtureAgents
    nested: dict[str, tuple[Any, ...]] = attrs.field(factory=dict)
    behaviors: dict[str, Any] = attrs.field(factory=dict)
    asked: list[tuple[tuple[str, ...], str, Actor, str]] = attrs.field(factory=list)
    """Path, id, tool and arguments of every call so far."""
    count: int = 0
    sessions: int = 0

    def turns(self, role: Role, path: tuple[str, ...], depth: int) -> tuple[Any, ...]:
        chance, generator_config = self.chance, self.generator_config
        steps: list[Any] = []
        for _ in range(chance.whole(1, generator_config.turns if not depth else 2)):
            if generator_config.faults and chance.one_in(12):
                busy = fail(ModelTransportError("busy", status=503))
                begun = generator_config.surroundings and chance.one_in(4)
                steps.extend([[stream_of(_BEGUN), busy] if begun else busy] * chance.whole(1, 2))
            pieces, target = self.response(role, path, depth)
            steps.append(pieces)
            if target is not None:
                role = next(one for one in self.cast.roles if one.name == target)
        steps.extend([say(f"end of {'/'.join(path) or 'all'}", self.tokens())] * 3)
        return tuple(steps)

    def tokens(self) -> RequestUsage | None:
        if self.chance.one_in(4):
            return None
        given, made = self.chance.whole(1, 9), self.chance.whole(1, 9)
        return RequestUsage(
            input_tokens=given,
            output_tokens=made,
            total_tokens=given + made,
            cached_tokens=given // 2,
            reasoning_tokens=made // 3,
        )

    def response(self, role: Role, path: tuple[str, ...], depth: int) -> tuple[list[Any], str | None]:
        chance, generator_config = self.chance, self.generator_config
        pieces: list[Any] = [respond(usage=self.tokens())]
        if generator_config.surroundings and generator_config.times and chance.one_in(12):
            pieces.append(wait(chance.pick([0.31, 0.31, 0.87])))
        if chance.one_in(4):
            pieces.append(say("Let me see."))
        if chance.one_in(4):
            pieces.append(reason("hm"))
        count = chance.whole(1, generator_config.calls if not depth else 2)
        ids = [self.fresh() for _ in range(count)]
        for place, call_id in enumerate(ids):
            pieces.append(self.call(role, path, depth, call_id, ids[:place]))
        if role.handoffs and chance.one_in(2):
            target = chance.pick(role.handoffs)
            for _ in range(2 if chance.one_in(3) else 1):
                pieces.append(call(f"transfer_to_{target}", call_id=self.fresh()))
            return pieces, target
        return pieces, None

    def fresh(self) -> str:
        self.count += 1
        return f"c{self.count}"

    def call(self, role: Role, path: tuple[str, ...], depth: int, call_id: str, before: list[str]) -> Any:
        chance, generator_config = self.chance, self.generator_config
        here = [one for one in self.asked if one[0] == path]
        if generator_config.faults and here and chance.one_in(14):
            _, old, again, arguments = chance.pick(here)
            if chance.one_in(4):
                digit = arguments[-2:-1]
                arguments = f"{arguments[:-2]}{(int(digit) + 1) % 10}}}" if digit.isdigit() else '{"n": 9999}'
            elif chance.one_in(2) and arguments.startswith("{") and arguments.endswith("}"):
                arguments = arguments.replace(": ", " :  ")
            return call(again.name, arguments, call_id=old, namespace=again.namespace)
        if generator_config.faults and chance.one_in(20):
            first = role.actors[0]
            unknown = [("nothing", None), (f"{first.name}x", first.namespace), (first.name, "w")]
            unknown += [(first.name, None)] if first.namespace else []
            name, namespace = chance.pick(unknown)
            return call(name, {"n": 1}, call_id=call_id, namespace=namespace)
        actor = chance.pick(role.actors)
        if actor.agent is not None:
            arguments = json.dumps({"input": f"go {call_id}"})
            key = "/".join([*path, call_id])
            self.nested[key] = self.turns(actor.agent, (*path, call_id), depth + 1)
        else:
            number = chance.whole(0, 1) if actor.idempotent else chance.whole(0, 99)
            if generator_config.surroundings and chance.one_in(4):
                number += LONG_NUMBER
            arguments = json.dumps({"n": number, "key": f"{KEY} {call_id}"} if actor.secret else {"n": number})
            if generator_config.faults and chance.one_in(14):
                arguments = chance.pick(FAULTY_ARGUMENTS)
            # A body can only repeat a secret that its arguments contain.
            tells = f"{KEY} {call_id}" if KEY in arguments else ""
            part = draw_part(chance, generator_config, actor, call_id, before, tells)
            if part is not None:
                self.behaviors["/".join([*path, call_id])] = part
        self.asked.append((path, call_id, actor, arguments))
        return call(actor.name, arguments, call_id=call_id, namespace=actor.namespace)


# Times of bodies never equal a timeout, a deadline or a window: two timers of one moment have no order to assert.


def draw_part(
    chance: Chance,
    generator_config: GeneratorConfig,
    actor: Actor | None,
    call_id: str,
    others: Sequence[str],
    tells: str = "",
) -> Any:
    """Return the fault injector of one body, or None for a body that just runs.

    *others*: ids of calls that it may cancel; *tells*: text that its error repeats.
    """
    points = chance.pick([0, 1, 1, 2])
    seconds = chance.pick([0.0, 0.25, 0.5, 0.75, 1.5]) if generator_config.times else 0.0
    if seconds and call_id[1:].isdigit():
        seconds += int(call_id[1:]) / 1024
    if not generator_config.faults or chance.one_in(2):
        return Returns(points, seconds) if points or seconds else None
    if generator_config.times and actor is not None and actor.timeout is not None and chance.one_in(3):
        return Hangs(points, seconds)
    kind = chance.whole(0, 15)
    if kind <= 3 or (actor is not None and actor.raises and chance.one_in(3)):
        return Raises(points, seconds, late=chance.one_in(2), fatal=chance.one_in(12), tells=tells)
    if kind <= 5:
        return CancelsItself(points, seconds, task=chance.one_in(2))
    if kind <= 7:
        return OnStage(CancelsCall(points, seconds, target=chance.pick([*others, call_id])))
    if kind <= 9:
        return Swallows(points, seconds)
    if kind == 10:
        return FailsInCleanup(points, seconds)
    if kind <= 12:
        return OnStage(Cleans(points, seconds, cleaning=chance.pick([20.0, 0.5, 20.0])))
    if kind == 13:
        return Nests(points, seconds, tasks=chance.whole(1, 2), fails=chance.one_in(2))
    if kind == 14:
        return OnStage(Holds(points, seconds, leaving=chance.pick([20.0, 0.5])))
    return OnStage(Reports(points, seconds))


# ---------------------------------------------------------------------------------------------- a whole world


def draw_config(chance: Chance, generator_config: GeneratorConfig) -> RunConfig:
    """Return a run's configuration."""
    execution = ToolExecution(
        max_function_tool_concurrency=chance.pick([32, None, 1, 1, 2, 3]) if generator_config.limits else 32,
        max_calls_per_turn=chance.pick([1000, 1000, 1000, 2]) if generator_config.limits else 1000,
        queue_timeout=chance.pick([0.6, 1.1])
        if generator_config.limits and generator_config.times and chance.one_in(8)
        else None,
        cleanup_grace=chance.pick([5.0, 0.27]),
        max_threads=1 if generator_config.surroundings and chance.one_in(4) else 32,
    )
    retry = ModelRetrySettings(1, initial_delay=0.12 if generator_config.times else 0.0, max_delay=0.12)
    return RunConfig(
        tool_execution=execution,
        model_settings=ModelSettings(
            retry=retry,
            timeout=0.62 if generator_config.surroundings and generator_config.times and chance.one_in(6) else None,
        ),
        timeout=chance.pick([0.65, 1.15, 3.1])
        if generator_config.times and generator_config.faults and chance.one_in(10)
        else None,
        tool_not_found_behavior=chance.pick(["tell_model", "tell_model", "raise"]),
        stream_buffer=chance.pick([256, 1, 3]),
    )


def draw_world(chance: Chance, generator_config: GeneratorConfig) -> Mapping[str, Any]:
    """Return the arguments of a `World` but for `cancel`, `tape` and `order`, which its caller adds."""
    cast = draw_cast(chance, generator_config)
    play = _ScriptWriter(chance, generator_config, cast)
    script = play.turns(cast.roles[0], (), 0)
    options: dict[str, Any] = {
        "run_config": draw_config(chance, generator_config),
        "max_turns": chance.pick([10, 10, 10, 2, 1, None]),
    }
    if chance.one_in(3):
        options["hooks"] = HookLog
    if generator_config.sessions and chance.one_in(4):
        options["session"] = SessionLog
    verdicts = []
    if generator_config.approvals:
        for path, call_id, actor, _ in play.asked:
            if not chance.one_in(4):
                yes, always = not chance.one_in(3), chance.one_in(6)
                edits = yes and generator_config.surroundings and not actor.secret and chance.one_in(5)
                edited = f'{{"n": {chance.whole(100, 199)}}}' if edits else None
                verdicts.append(Verdict(call_id=call_id, path=path, approved=yes, always=always, arguments=edited))
    return {
        "agent": cast,
        "script": script,
        "nested": play.nested,
        "behaviors": play.behaviors,
        "options": options,
        "verdicts": tuple(verdicts),
        "serialize": chance.one_in(2),
        "slow_reader": generator_config.slow_readers and chance.one_in(3),
        "context": OpaqueContext if cast.secretive else None,
    }
