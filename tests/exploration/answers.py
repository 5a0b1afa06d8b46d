"""Worlds of answers that aren't final yet: answers that don't fit their agent's output type, and answers that the
provider pauses; between calls, failures of the model, handoffs and in nested runs.

Their random choices have a seed of their own, like those of `further`: an addition here changes no other world of a
seed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import attrs

from agentloop.config import RunConfig
from agentloop.items import AssistantMessage, HostedToolCall, Item, Reasoning, Refusal, Text
from agentloop.testing.scripted import Step, call, respond, say
from agentloop.testing.simulation.generated import Chance, draw_tape
from agentloop.testing.simulation.runs import CancelAt, World
from agentloop.usage import RequestUsage

from .fixture_agents import Actor, FixtureAgents, Role
from .generators import GeneratorConfig
from .observers import HookLog, SessionLog
from .surrounded import draw_changed

SIZE = GeneratorConfig(turns=2, calls=2, tools=2, secrets=False)
CRASHED = 8
"""Every CRASHED-th round crashes its world."""
FITS = '{"response": 5}'
MISFITS = ('{"response": "five"}', "no JSON", '{"other": 5}', "[5]")
USED = RequestUsage(input_tokens=2, output_tokens=1, total_tokens=3)
ENDS = 4
"""The number of answers behind a script's own: more than any agent of these worlds may be asked to correct."""


def draw_answers(chance: Chance, *, crashes: bool = False) -> World:
    """Return a world of agents that may have an output type, with misfits and pauses in its scripts.

    One for *crashes* ends as its script says, and by no time or fault.
    """
    if chance.one_in(6):
        return _draw_handoffs(chance)
    size = attrs.evolve(SIZE, faults=chance.one_in(3), approvals=chance.one_in(4), guards=chance.one_in(2))
    if crashes:
        size = attrs.evolve(size, faults=False, times=False, surroundings=False)
    options: dict[str, Any] = {"max_turns": chance.pick([10, 10, 4, 2])}
    if chance.one_in(2):
        options |= {"hooks": HookLog, "session": SessionLog}

    def typed(role: Role) -> Role:
        return attrs.evolve(role, corrections=chance.pick([None, 0, 1, 1, 2]))

    world = draw_changed(chance, size, change=typed, options=options)
    script = tuple(_change_steps(chance, world.script or ()))
    nested = {path: tuple(_change_steps(chance, steps)) for path, steps in world.nested.items()}
    return attrs.evolve(world, script=script, nested=nested)


def draw_cancel(chance: Chance) -> CancelAt:
    """Return an early moment for the caller's cancellation."""
    return CancelAt(chance.whole(0, 40), chance.pick(["scope", "native"]))


def _draw_handoffs(chance: Chance) -> World:
    """Return a world of two agents that hand over to each other, each after answers that have to be corrected."""
    corrections = {name: chance.whole(1, 2) for name in "ab"}
    roles = [
        Role(name=name, actors=(Actor(name="plain"),), handoffs=(other,), corrections=corrections[name])
        for name, other in ("ab", "ba")
    ]
    here, there = "ab"
    steps: list[Step] = []
    for turn in range(chance.whole(1, 3)):
        steps += [say(MISFITS[0], USED)] * chance.whole(0, corrections[here])
        steps.append(call(f"transfer_to_{there}", call_id=f"h{turn}"))
        here, there = there, here
    steps += [say(MISFITS[1], USED)] * chance.whole(0, corrections[here] + 1)
    return World(
        agent=FixtureAgents(roles=tuple(roles)),
        script=(*steps, say(FITS, USED)),
        options={"run_config": RunConfig(), "max_turns": None},
        order=chance.pick(["gate", "passes"]),
        tape=draw_tape(chance),
    )


def _change_steps(chance: Chance, steps: Sequence[Step]) -> Iterator[Step]:
    """Yield *steps* with other answers before them, and answers that fit a number behind them."""
    for step in steps[:-3]:  # a generated script ends with three messages
        if chance.one_in(4):
            yield from _draw_pauses(chance)
        if chance.one_in(5):
            yield _draw_misfit(chance)
        yield step
    for _ in range(ENDS):
        if chance.one_in(4):
            yield from _draw_pauses(chance)
        yield _draw_misfit(chance) if chance.one_in(2) else say(FITS, USED)
    yield from [say(FITS)] * ENDS


def _draw_pauses(chance: Chance) -> Iterator[Step]:
    """Yield one pause, or as many as a provider makes that never comes to an end."""
    for place in range(chance.whole(1, 3) if not chance.one_in(12) else 12):
        items: list[Item] = [HostedToolCall("web_search_call", {}, f"ws{place}", "completed")]
        if chance.one_in(3):
            items.append(AssistantMessage(f"so far {place}"))
        if chance.one_in(3):
            items = [Reasoning(summary=("hm",)), *items]
        yield respond(*items, usage=USED, finish_reason="pause")


def _draw_misfit(chance: Chance) -> Step:
    text = chance.pick(MISFITS)
    if chance.one_in(8):
        return respond(AssistantMessage(text), finish_reason="length")
    if chance.one_in(8):
        return respond(AssistantMessage((Text(text), Refusal("rather not"))))
    return say(text, USED)
