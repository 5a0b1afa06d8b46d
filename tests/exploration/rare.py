"""Small worlds, each with a case that generated worlds seldom have: calls that wait behind a failure or beside one,
several failures, contended slots and rates, verdicts on all calls of a tool, models that repeat their calls, long
outputs, tools that are off now and then.

Their random choices have a seed of their own, like those of `alone` and `further`: an addition here changes no other
world of a seed.
"""

from __future__ import annotations

from typing import Any

from agentloop.config import RunConfig
from agentloop.limits import ToolExecution
from agentloop.testing.scripted import Step, call, say
from agentloop.testing.simulation._faults import Raises, Returns
from agentloop.testing.simulation.event_loop import BACKENDS
from agentloop.testing.simulation.generated import Chance, draw_tape
from agentloop.testing.simulation.runs import Behavior, Verdict, World

from .faults import Hangs
from .fixture_agents import LONG, Actor, FixtureAgents, Role
from .further import Further

KINDS = ("behind a failure", "beside a failure", "failures", "slots", "rates", "verdicts", "circles", "lengths", "off")
EVERY = 2
"""Every EVERY-th round has one."""
PLAIN = Actor(name="plain")
RAISING = Actor(name="raising", raises=True)
RATED = Actor(name="rated", rated=True)
WORDY = Actor(name="wordy", wordy=True)
ASKED = (Actor(name="asked", approval=True), Actor(name="other", approval=True))
SECONDS = (0.0, 0.25, 0.5, 0.75)


def draw_rare(chance: Chance, number: int) -> Further:
    """Return a world; the kinds take turns by *number*."""
    kind = KINDS[number // EVERY % len(KINDS)]
    drawn = {"verdicts": _verdicts, "circles": _circles, "lengths": _lengths, "off": _off}.get(kind)
    world = drawn(chance) if drawn is not None else _batch(chance, kind)
    return Further(world, chance.pick(BACKENDS), chance.one_in(3))


def _batch(chance: Chance, kind: str) -> World:
    """Return one turn of some calls, with the behaviors and limits of *kind*."""
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
    return _make_world(chance, [calls, say("done")], role, behaviors=behaviors, cap=cap)


def _verdicts(chance: Chance) -> World:
    """Return turns of two tools that need approval, over several run segments; some verdicts hold for all calls."""
    names = [chance.pick(ASKED).name for _ in range(chance.whole(3, 5))]
    steps: list[Step] = [[call(name, {"n": 2 * one + 1}, call_id=f"c{one}")] for one, name in enumerate(names)]
    verdicts = tuple(
        Verdict(call_id=f"c{one}", approved=not chance.one_in(3), always=chance.one_in(2)) for one in range(len(names))
    )
    role = Role(name="a", actors=ASKED)
    return _make_world(chance, [*steps, say("done")], role, verdicts=verdicts, serialize=chance.one_in(2))


def _circles(chance: Chance) -> World:
    """Return turns of few calls that are often equal, with seldom other results; some wait for a verdict in between."""
    names: list[list[str]] = [
        [chance.pick(["plain", "plain", "plain", "asked"]) for _ in range(chance.pick([1, 1, 2, 3]))]
        for _ in range(chance.whole(4, 6))
    ]
    steps: list[Step] = []
    behaviors: dict[str, Behavior] = {}
    verdicts: list[Verdict] = []
    for turn, named in enumerate(names):
        steps.append(
            [call(name, {"n": int(name == "asked")}, call_id=f"c{turn}{one}") for one, name in enumerate(named)]
        )
        for one, name in enumerate(named):
            if name == "asked":
                verdicts.append(Verdict(call_id=f"c{turn}{one}", approved=True))
            elif chance.one_in(6):
                behaviors[f"c{turn}{one}"] = Raises()
    role = Role(name="a", actors=(PLAIN, *ASKED), sequential=chance.one_in(3))
    return _make_world(
        chance,
        [*steps, say("done")],
        role,
        config=RunConfig(loop_detection=chance.whole(2, 3)),
        behaviors=behaviors,
        verdicts=tuple(verdicts),
        serialize=chance.one_in(2),
    )


def _lengths(chance: Chance) -> World:
    """Return calls with long outputs and one with a short one, under a bound on the output that the model gets."""
    names = [*(["wordy"] * chance.whole(1, 2)), "plain"]
    calls = [call(name, {"n": 2 * one}, call_id=f"c{one}") for one, name in enumerate(names)]
    config = RunConfig(tool_execution=ToolExecution(max_output_chars=chance.pick([20, 150, LONG - 1, LONG])))
    return _make_world(chance, [calls, say("done")], Role(name="a", actors=(PLAIN, WORDY)), config=config)


def _off(chance: Chance) -> World:
    """Return turns with calls of a tool that is on in some turns and off in others."""
    says = tuple(not chance.one_in(3) for _ in range(chance.whole(3, 7)))
    actors = (PLAIN, Actor(name="fickle", says=(True, True, *says)), Actor(name="moody", says=(True, *reversed(says))))
    steps: list[Step] = []
    for turn in range(chance.whole(1, 3)):
        names = ["fickle", *(chance.pick(actors).name for _ in range(chance.whole(0, 2)))]
        steps.append([call(name, {"n": 2 * one}, call_id=f"c{turn}{one}") for one, name in enumerate(names)])
    behavior: Any = chance.pick(["raise", "tell_model", "tell_model"])
    cap = chance.pick([None, 1, 2])
    execution = ToolExecution(max_function_tool_concurrency=cap)
    config = RunConfig(tool_not_found_behavior=behavior, tool_execution=execution)
    return _make_world(chance, [*steps, say("done")], Role(name="a", actors=actors), config=config)


def _make_world(
    chance: Chance,
    script: list[Step],
    role: Role,
    *,
    cap: int | None = None,
    config: RunConfig | None = None,
    **parts: Any,
) -> World:
    cast = FixtureAgents(roles=(role,), rate=chance.whole(1, 2), per=chance.pick([0.6, 1.3]))
    if config is None:
        config = RunConfig(tool_execution=ToolExecution(max_function_tool_concurrency=cap))
    order: Any = chance.pick(["gate", "passes", "steps"])
    options = {"run_config": config}
    return World(agent=cast, script=script, options=options, order=order, tape=draw_tape(chance), **parts)
