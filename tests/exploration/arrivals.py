"""Worlds in which the application reaches into a run under way: it adds input and takes it back, once or twice under
one id, before, within and after the run; and it answers calls of external tools, in time, too late, or never.

Their random choices have a seed of their own, like those of `further` and `rare`: an addition here changes no other
world of a seed.
"""

from __future__ import annotations

from typing import Any

from agentloop.config import RunConfig
from agentloop.limits import ToolExecution
from agentloop.testing.scripted import Step, call, say
from agentloop.testing.simulation._faults import Returns
from agentloop.testing.simulation.event_loop import BACKENDS
from agentloop.testing.simulation.generated import Chance, draw_tape
from agentloop.testing.simulation.runs import Behavior, CancelAt, ExternalAnswer, Steering, Verdict, World

from .fixture_agents import Actor, FixtureAgents, Role
from .further import Further

EVERY = 2
"""Every EVERY-th round has one."""
EVENTS = 14
"""An input is added once at most this many events were read: longer runs have some more."""
ACTORS = (
    Actor(name="plain"),
    Actor(name="asked", approval=True),
    Actor(name="question", external=True),
    Actor(name="urgent", external=True, timeout=0.55),
    Actor(name="final"),
)


def draw_arrivals(chance: Chance) -> Further:
    """Return a world, its backend, and whether it is streamed: mostly, because only a stream can be reached."""
    cast = FixtureAgents(roles=(_draw_role(chance),))
    steps: list[Step] = []
    behaviors: dict[str, Behavior] = {}
    verdicts: list[Verdict] = []
    answers: list[ExternalAnswer] = []
    for turn in range(chance.whole(1, 4)):
        calls = []
        for one in range(chance.whole(1, 3)):
            actor, call_id = chance.pick(ACTORS), f"c{turn}{one}"
            calls.append(call(actor.name, {"n": chance.whole(0, 9)}, call_id=call_id))
            if actor.external:
                answers += _draw_answers(chance, call_id)
            elif chance.one_in(2):
                behaviors[call_id] = Returns(chance.whole(0, 2), chance.pick([0.0, 0.25, 0.75]))
            if actor.approval and not chance.one_in(5):
                verdicts.append(Verdict(call_id=call_id, approved=not chance.one_in(3)))
        steps.append(calls)
    # A run that is shown input when it would end has one more turn for it.
    steps += [say(f"end {number}") for number in range(6)]
    config = RunConfig(
        tool_execution=ToolExecution(max_function_tool_concurrency=chance.pick([32, 1])),
        timeout=chance.pick([None, None, None, 1.15]),
        stream_buffer=chance.pick([256, 256, 1]),
    )
    order: Any = chance.pick(["gate", "passes", "steps"])
    world = World(
        agent=cast,
        script=steps,
        behaviors=behaviors,
        verdicts=tuple(verdicts),
        answers=tuple(answers),
        steering=_draw_steering(chance),
        options={"run_config": config, "max_turns": chance.pick([10, 10, 10, 3, 1])},
        serialize=chance.one_in(2),
        slow_reader=chance.one_in(3),
        cancel=CancelAt(chance.whole(0, 120), chance.pick(["scope", "native"])) if chance.one_in(4) else None,
        order=order,
        tape=draw_tape(chance),
    )
    return Further(world, chance.pick(BACKENDS), not chance.one_in(4))


def _draw_role(chance: Chance) -> Role:
    judges: Any = tuple((chance.pick(["pass", "pass late", "trip"]), not chance.one_in(3)) for _ in range(1))
    return Role(
        name="a",
        actors=ACTORS,
        judges=judges if chance.one_in(4) else (),
        behavior="stop_at_last" if chance.one_in(4) else "run_llm_again",
        sequential=chance.one_in(6),
    )


def _draw_answers(chance: Chance, call_id: str) -> list[ExternalAnswer]:
    """Return up to two answers: one that fits, one that doesn't, an error, and each may come while the run works."""
    return [
        ExternalAnswer(
            call_id=call_id,
            value=None if (fails := chance.one_in(5)) else chance.pick([7, 7, 7, "seven"]) if live else 7,
            error="nobody knows" if fails else None,
            live=live,
        )
        for live in chance.pick([(False,), (True,), (True, True), (True, False), ()])
    ]


def _draw_steering(chance: Chance) -> tuple[Steering, ...]:
    """Return acts in the order of their moments; some ids occur twice, and some inputs are taken back."""
    acts: list[Steering] = []
    after = 0
    for number in range(chance.whole(1, 5)):
        after += chance.pick([0, 0, 1, 3, EVENTS])
        name = f"i{number}" if not acts or not chance.one_in(5) else chance.pick(acts).id
        text = None if acts and chance.one_in(5) else f"and {name}"
        acts.append(Steering(id=name, text=text, after=after, when=chance.pick(["turn", "turn", "idle"])))
    return tuple(acts)
