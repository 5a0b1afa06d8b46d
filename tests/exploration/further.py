"""Further worlds of a round, with features that the others lack: conditions and limits of a run, sessions with earlier
items, verdicts that change arguments, hooks that fail, answers to an input that is refused, several resources, bodies
that outlive their run, a slow journal, policies, tools that are all under one limit, calls that cancel waiting calls,
resources that are left when the caller cancels.

Their random choices have a seed of their own, like those of `alone`: an addition here changes no other world of a seed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import anyio
import attrs

from agentloop import records as r
from agentloop.config import RunConfig
from agentloop.config.budget import UsageLimits
from agentloop.config.conditions import MaxTurns, TokenLimit, ToolCalled
from agentloop.config.policies import Decision, Deny, PendingCall
from agentloop.guardrails import Allow
from agentloop.items import AssistantMessage, Item, Reasoning, ToolCall, ToolOutput, UserMessage
from agentloop.journal import MemoryJournal
from agentloop.limits import ToolExecution
from agentloop.sessions import MemorySession
from agentloop.testing.invariants._observation import Observation, ObservedLog
from agentloop.testing.scripted import say
from agentloop.testing.simulation._faults import Returns
from agentloop.testing.simulation.event_loop import BACKENDS, Backend
from agentloop.testing.simulation.generated import Chance, draw_tape
from agentloop.testing.simulation.runs import Body, CancelAt, Verdict, World, WorldRun

from .faults import CancelsCall, Holds, OnStage
from .fixture_agents import FixtureAgents, Role, odd
from .generators import GeneratorConfig, draw_world
from .invariants import observe_run
from .observers import HookLog, WatcherFailed

EARLIER: tuple[Item, ...] = (
    UserMessage("before"),
    Reasoning(summary=("hm",)),
    ToolCall("earlier", "a_0", '{"n": 2}'),
    ToolOutput("earlier", "a_0 2"),
    AssistantMessage("then"),
)
KINDS = (
    *("condition", "limits", "session", "verdicts", "hooks", "refused", "resources", "stubborn", "written"),
    *("policies", "grouped", "queued", "left"),
)
TRIES = 8
"""Attempts to generate a world with secrets, for the kind that needs them most."""
SIZE = GeneratorConfig(turns=3, calls=3, tools=2, faults=False)


class Earlier(MemorySession):
    """A session with the items of an earlier run."""

    def __init__(self) -> None:
        super().__init__()
        self._items += EARLIER


class Slow(MemoryJournal):
    """A slow journal."""

    async def append(self, records: Sequence[bytes]) -> None:
        """Append *records*, after a while."""
        await anyio.sleep(0.05)
        await super().append(records)

    @property
    def settled(self) -> set[str]:
        """The calls whose outcome is in the journal."""
        kept = (json.loads(line) for line in self._records)
        return {one["call_id"] for one in kept if one.get("kind") == "call_settled"}


class Witness(MemorySession):
    """A session that compares each of its writes with the run's journal."""

    def __init__(self, journal: Slow) -> None:
        super().__init__()
        self._journal = journal
        self.early: set[str] = set()
        """Calls whose outputs were written here before their outcome was in the journal."""

    async def add_items(self, items: Sequence[Item]) -> None:
        """Add *items*, and note the outputs among them that came too early."""
        self.early |= {item.call_id for item in items if isinstance(item, ToolOutput)} - self._journal.settled
        await super().add_items(items)


class NothingOdd:
    """A policy that denies calls with an odd number."""

    def decide(self, pending: PendingCall) -> Decision:
        """Deny a call with an odd number, allow any other."""
        return Deny("nothing odd") if odd(pending.arguments) else Allow()


class Failing(HookLog):
    """Hooks that fail at the first end of a tool, with an error that repeats its secret argument."""

    async def on_tool_end(self, ctx: Any, agent: Any, tool: Any, outcome: Any) -> None:
        """Note the event, and fail at the first one."""
        first = not any(event == "tool_end" for event, _, _ in self.noted)
        await super().on_tool_end(ctx, agent, tool, outcome)
        if first:
            self.failed.append(self.noted[-1])
            raise WatcherFailed(f"a hook that fails: {json.loads(ctx.tool_arguments).get('key')}")


@attrs.frozen
class Further:
    """A world, the backend to run it on, and True for a streamed run."""

    world: World
    backend: Backend
    streamed: bool


def draw_further(chance: Chance, number: int) -> Further:
    """Return a world with one feature that the others lack; the kinds take turns by *number*."""
    kind = KINDS[number % len(KINDS)]
    size = SIZE if kind != "limits" else attrs.evolve(SIZE, faults=chance.one_in(2))
    generator_config = attrs.evolve(size, approvals=kind == "verdicts", secrets=kind != "verdicts")
    parts = dict(draw_world(chance, generator_config))
    for _ in range(TRIES if kind == "hooks" else 0):
        parts = parts if parts["agent"].secretive else dict(draw_world(chance, generator_config))
    options: dict[str, Any] = dict(parts["options"])
    config: RunConfig = options["run_config"]
    cast: FixtureAgents = parts["agent"]
    match kind:
        case "condition":
            name = chance.pick(cast.roles[0].actors).name
            stop: Any = chance.pick([MaxTurns(1), MaxTurns(2), ToolCalled(name), TokenLimit(chance.whole(5, 40))])
            options["run_config"] = attrs.evolve(config, stop_when=stop)
        case "limits":
            options["run_config"] = attrs.evolve(config, limits=_draw_limits(chance))
        case "session":
            options["session"] = Earlier
        case "verdicts":
            parts["verdicts"] = _edit_verdicts(chance, parts)
            parts["agent"] = attrs.evolve(cast, roles=tuple(map(_require_approval, cast.roles)))
        case "hooks":
            options["hooks"] = Failing
        case "resources":
            held = OnStage(Holds(chance.whole(0, 2), chance.pick([0.0, 0.25]), leaving=chance.pick([0.0, 0.25])))
            parts["behaviors"] = {actor.name: held for role in cast.roles for actor in role.actors if not actor.agent}
        case "grouped":
            options["run_config"] = attrs.evolve(config, tool_execution=ToolExecution())
            limit = chance.pick([{"serial": "s"}, {"rated": True}, {"shares": True}])
            parts["agent"] = attrs.evolve(cast, roles=tuple(_limit_tools(role, limit) for role in cast.roles))
            parts["behaviors"] = {
                actor.name: Returns(chance.whole(0, 1), chance.pick([0.0, 0.25, 0.75]))
                for role in cast.roles
                for actor in role.actors
                if not actor.agent
            }
        case "queued":
            cap = chance.whole(1, 2)
            execution = attrs.evolve(config.tool_execution, max_function_tool_concurrency=cap, queue_timeout=None)
            options["run_config"] = attrs.evolve(config, tool_execution=execution)
            others = chance.pick(["c2", "c3"]), chance.pick(["c3", "c4"])
            cancels = (OnStage(CancelsCall(chance.whole(0, 2), chance.pick([0.0, 0.25]), one)) for one in others)
            parts["behaviors"] = {**parts["behaviors"], **dict(zip(("c1", "c2"), cancels, strict=True))}
        case "left":
            options["run_config"] = attrs.evolve(config, timeout=None, stream_buffer=256)
            held = OnStage(Holds(0, 0.0, leaving=20.0))
            parts["behaviors"] = {actor.name: held for role in cast.roles for actor in role.actors if not actor.agent}
            parts["cancel"] = CancelAt(chance.whole(2, 8), waiting=True)
        case "policies":
            options["run_config"] = attrs.evolve(config, policies=(NothingOdd(),))
        case "written":
            journal = Slow()
            options |= {"journal": journal, "session": partial(Witness, journal)}
        case "stubborn":
            seconds = chance.pick([0.65, 1.15])
            config = attrs.evolve(config, timeout=seconds, tool_execution=_with_grace(config.tool_execution))
            options["run_config"] = config
            parts["behaviors"] = {
                actor.name: _refuse_to_end for role in cast.roles for actor in role.actors if not actor.agent
            }
        case _:
            options["session"] = MemorySession
            parts["script"] = (say("That I may say."), *parts["script"])
            role = attrs.evolve(cast.roles[0], judges=(("pass", True), ("trip", True)))
            parts["agent"] = attrs.evolve(cast, roles=(role, *cast.roles[1:]))
    order: Any = "gate" if kind == "left" else chance.pick(["gate", "gate", "passes", "steps"])
    world = World(**{**parts, "options": options}, order=order, tape=draw_tape(chance))
    return Further(world, chance.pick(BACKENDS), chance.one_in(3))


def _with_grace(execution: ToolExecution) -> ToolExecution:
    return attrs.evolve(execution, cleanup_grace=0.27, max_function_tool_concurrency=2)


async def _refuse_to_end(body: Body) -> Any:
    """Run for longer than the cleanup grace, shielded from every cancellation."""
    with anyio.CancelScope(shield=True):
        await body.sleep(2.6)
    return await body.real()


def _draw_limits(chance: Chance) -> UsageLimits:
    kind = chance.whole(0, 2)
    if kind == 0:
        return UsageLimits(requests=chance.whole(1, 4))
    return UsageLimits(tool_calls=chance.whole(1, 4)) if kind == 1 else UsageLimits(total_tokens=chance.whole(5, 30))


def _limit_tools(role: Role, limit: Mapping[str, Any]) -> Role:
    """Return *role* with tools that are all under one limit, so that nothing else keeps their calls from starting."""
    free: dict[str, Any] = {"exclusive": False, "idempotent": False, "before": (), "timeout": None, "serial": None}
    actors = (actor if actor.agent else attrs.evolve(actor, **{**free, **limit}) for actor in role.actors)
    return attrs.evolve(role, actors=tuple(actors), sequential=False)


def _require_approval(role: Role) -> Role:
    """Return *role* with tools that all need approval."""
    actors = (actor if actor.agent else attrs.evolve(actor, approval=True) for actor in role.actors)
    return attrs.evolve(role, actors=tuple(actors))


def _edit_verdicts(chance: Chance, parts: Mapping[str, Any]) -> tuple[Verdict, ...]:
    """Return the world's verdicts: some change the arguments of their calls, some hold for all calls of a tool."""
    found = []
    for one in parts["verdicts"]:
        if one.approved and chance.one_in(2):
            one = attrs.evolve(one, arguments=f'{{"n": {chance.whole(100, 199)}}}')
        found.append(attrs.evolve(one, always=one.always or chance.one_in(2)))
    return tuple(found)


def observe_further(run: WorldRun) -> Observation:
    """Return the observation of *run*, with the earlier items of its session."""
    observation = observe_run(run)
    if isinstance(run.session, Earlier):
        return attrs.evolve(observation, saved_before=EARLIER)
    stubborn = _refuse_to_end in run.world.behaviors.values()
    return attrs.evolve(observation, faultless=False) if stubborn or isinstance(run.hooks, Failing) else observation


def not_judged(run: WorldRun) -> frozenset[str]:
    """Return the invariants that don't apply to *run*: while a slow journal is written, a slot is held but not used."""
    return frozenset({"slots_are_used"}) if isinstance(run.session, Witness) else frozenset()


def forgotten(run: WorldRun) -> str | None:
    """Return a message if *run* ignored its further feature; otherwise None."""
    if isinstance(run.hooks, Failing):
        heard = any(event == "tool_end" for event, _, _ in run.hooks.noted)
        if heard and run.error is None and not run.cancelled:
            return "hooks failed at the end of a tool, and the run didn't"
    if run.world.options["run_config"].policies:
        config = ObservedLog(observe_run(run)).config
        for record in run.records:
            if not isinstance(record, r.CallStarted) or not config(record.path).policies:
                continue
            if odd(json.loads(record.arguments)):
                return f"a policy denies odd numbers, and a call started with {record.arguments}"
    if isinstance(run.session, Witness) and run.session.early:
        return f"the session has outputs of which the journal doesn't know yet: {sorted(run.session.early)}"
    if isinstance(run.session, Earlier) and run.requests:
        shown = run.requests[0].items
        if tuple(shown[: len(EARLIER)]) != EARLIER or len(shown) == len(EARLIER):
            return f"the session's items aren't what the model was shown first: {shown!r}"
    return None
