"""Small worlds of a round in which something is sure to come that the drawn ones seldom meet: calls that wait behind a
failure or beside one, several failures, slots and rates that are fought for, verdicts on all calls of a tool.

Their draws are their own, as those of `alone` and `further` are: nothing here moves a world of a seed.
"""

from __future__ import annotations

from typing import Any

from agentloop.config import RunConfig, ToolExecution
from agentloop.testing.cast import Actor, Cast, Role
from agentloop.testing.clockwork import BACKENDS
from agentloop.testing.drawing import Chance, draw_tape
from agentloop.testing.parts import Hangs, Raises, Returns
from agentloop.testing.runs import Behavior, Verdict, World
from agentloop.testing.scripted import Step, call, say

from .further import Further

KINDS = ("behind a failure", "beside a failure", "failures", "slots", "rates", "verdicts")
EVERY = 2
"""Every so manyth round has one."""
PLAIN = Actor(name="plain")
RAISING = Actor(name="raising", raises=True)
RATED = Actor(name="rated", rated=True)
ASKED = (Actor(name="asked", approval=True), Actor(name="other", approval=True))
SECONDS = (0.0, 0.25, 0.5, 0.75)


def draw_rare(chance: Chance, number: int) -> Further:
    """Return a world of the kind whose turn it is."""
    kind = KINDS[number // EVERY % len(KINDS)]
    world = _verdicts(chance) if kind == "verdicts" else _batch(chance, kind)
    return Further(world, chance.pick(BACKENDS), chance.one_in(3))


def _batch(chance: Chance, kind: str) -> World:
    """One turn of some calls, and what its kind wants of them."""
    count = chance.whole(3, 5)
    place = chance.whole(0, count - 2)
    failing = {"behind a failure": {place}, "beside a failure": {place}, "failures": set(range(place, count))}
    raising = failing.get(kind, set())
    names = ["rated" if kind == "rates" else "raising" if one in raising else "plain" for one in range(count)]
    sequential = kind == "behind a failure" and chance.one_in(2)
    cap = {"behind a failure": None if sequential else 1, "slots": chance.whole(1, 3)}.get(kind)
    one_moment = kind == "failures" and chance.one_in(2)
    behaviors: dict[str, Behavior] = {}
    for one in range(count):
        seconds = 0.25 if one_moment else chance.pick(SECONDS)
        if one in raising:
            part: Behavior = Raises(0, seconds)
        elif kind == "beside a failure":
            part = Hangs() if chance.one_in(2) else Returns(0, 30.0)
        else:
            part = Returns(chance.whole(0, 1) if kind != "slots" else 0, seconds)
        behaviors[f"c{one}"] = part
    calls = [call(name, {"n": 2 * one}, call_id=f"c{one}") for one, name in enumerate(names)]
    role = Role(name="a", actors=(PLAIN, RAISING, RATED), sequential=sequential)
    return _world(chance, [calls, say("done")], role, behaviors=behaviors, cap=cap)


def _verdicts(chance: Chance) -> World:
    """Calls of two tools that ask, over several entries; verdicts on all calls of a tool among those given."""
    names = [chance.pick(ASKED).name for _ in range(chance.whole(3, 5))]
    steps: list[Step] = [[call(name, {"n": 2 * one + 1}, call_id=f"c{one}")] for one, name in enumerate(names)]
    verdicts = tuple(
        Verdict(call_id=f"c{one}", approved=not chance.one_in(3), always=chance.one_in(2)) for one in range(len(names))
    )
    role = Role(name="a", actors=ASKED)
    return _world(chance, [*steps, say("done")], role, verdicts=verdicts, serialize=chance.one_in(2))


def _world(chance: Chance, script: list[Step], role: Role, *, cap: int | None = None, **parts: Any) -> World:
    cast = Cast(roles=(role,), rate=chance.whole(1, 2), per=chance.pick([0.6, 1.3]))
    config = RunConfig(tool_execution=ToolExecution(max_function_tool_concurrency=cap))
    order: Any = chance.pick(["gate", "passes", "steps"])
    options = {"run_config": config}
    return World(agent=cast, script=script, options=options, order=order, tape=draw_tape(chance), **parts)
