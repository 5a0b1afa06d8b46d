"""Worlds that test the parts around a run: hooks of agents and hooks that fail, listeners of agent tools and their own
configurations, sessions that fail, slow journals, budgets over nested runs, handoffs with filters, tools of one name,
tool choices, threads, arguments that are edited, models that are slow, or fail after they have begun, tools of the
provider and tools of free text.

Their random choices have a seed of their own, like those of `alone`, `further` and `rare`: an addition here changes no
other world of a seed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import attrs

from agentloop.config import RunConfig
from agentloop.config.budget import UsageLimits
from agentloop.config.conditions import MaxTurns
from agentloop.exceptions import ModelTransportError
from agentloop.items import AssistantMessage, HostedToolCall, Item, Reasoning, ToolCall, ToolOutput, UserMessage
from agentloop.limits import ToolExecution
from agentloop.model_events import ArgumentsDelta, ReasoningDelta, ResponseStarted, TextDelta
from agentloop.settings import ModelRetrySettings, ModelSettings
from agentloop.testing.scripted import Step, call, fail, reason, respond, say, stream_of, wait
from agentloop.testing.simulation._faults import Raises, Returns
from agentloop.testing.simulation.event_loop import BACKENDS
from agentloop.testing.simulation.generated import Chance, draw_tape
from agentloop.testing.simulation.runs import Behavior, CancelAt, Verdict, World
from agentloop.usage import RequestUsage

from .faults import Cleans, Hangs, Holds, OnStage, Reports
from .fixture_agents import LATE, Actor, FixtureAgents, Role, Shelf
from .further import Further
from .generators import FILTERS, LONG_NUMBER, GeneratorConfig, draw_config, draw_world
from .observers import HookLog, JournalLog, SessionLog

EVERY_ROUND = 2
"""The number of these worlds in a round."""
EARLIER: tuple[Item, ...] = (
    UserMessage("before"),
    Reasoning(summary=("hm",)),
    ToolCall("earlier", "a_0", '{"n": 2}'),
    ToolOutput("earlier", "a_0 2"),
    AssistantMessage("then"),
)
SIZE = GeneratorConfig(turns=3, calls=3, tools=2, faults=False, secrets=False)
EVENTS = ("agent_start", "llm_start", "llm_end", "tool_start", "tool_end", "agent_end", "handoff", "run_end")
AGENTS_EVENTS = (*EVENTS[:-2], "handoff_out", "handoff_in")
PLAIN = Actor(name="plain")
ASKED = Actor(name="asked", approval=True)
BUSY = fail(ModelTransportError("busy", status=503))


def draw_surrounded(chance: Chance, number: int) -> Further:
    """Return a world; the kinds take turns by *number*."""
    kind = list(KINDS)[number % len(KINDS)]
    world = KINDS[kind](chance)
    # Only a streamed run has a reader, so only there do these kinds show their cases.
    streamed = not chance.one_in(4) if kind in ("begun", "slow", "left", "stopped") else chance.one_in(3)
    return Further(world, chance.pick(BACKENDS), streamed)


def is_replayed(number: int) -> bool:
    """Tell whether the world of this *number* is replayed, too: its kind leaves logs that no other world leaves."""
    return list(KINDS)[number % len(KINDS)] == "failing hooks"


# ---------------------------------------------------------------------------------------------- generated, then changed

Change = Callable[[Role], Role]


def _change_all_roles(cast: FixtureAgents, change: Change) -> FixtureAgents:
    """Return the fixture agents *cast* with *change* applied to every agent, nested ones too."""

    def changed(role: Role) -> Role:
        actors = (
            attrs.evolve(actor, agent=changed(actor.agent)) if actor.agent is not None else actor
            for actor in role.actors
        )
        return change(attrs.evolve(role, actors=tuple(actors)))

    return attrs.evolve(cast, roles=tuple(map(changed, cast.roles)))


def draw_changed(
    chance: Chance,
    generator_config: GeneratorConfig = SIZE,
    *,
    change: Change | None = None,
    wanted: Callable[[FixtureAgents], bool] | None = None,
    options: dict[str, Any] | None = None,
    config: dict[str, Any] | None = None,
    slow: Behavior | None = None,
    **fields: Any,
) -> World:
    """Return a generated world with other options, and with every role changed; tried again if it isn't *wanted*.

    *slow*: the behavior of bodies in nested runs that have no other one.
    """
    parts = dict(draw_world(chance, generator_config))
    for _ in range(8):
        if wanted is None or wanted(parts["agent"]):
            break
        parts = dict(draw_world(chance, generator_config))
    if change is not None:
        parts["agent"] = _change_all_roles(parts["agent"], change)
    if slow is not None:
        names = [
            one.name
            for role in parts["agent"].roles
            for actor in role.actors
            if actor.agent
            for one in actor.agent.actors
        ]
        parts["behaviors"] = {**dict.fromkeys(names, slow), **parts["behaviors"]}
    given: dict[str, Any] = {**parts["options"], **(options or {})}
    given["run_config"] = attrs.evolve(given["run_config"], **(config or {}))
    order: Any = chance.pick(["gate", "gate", "passes", "steps"])
    return World(**{**parts, "options": given, **fields}, order=order, tape=draw_tape(chance))


def _nests(cast: FixtureAgents) -> bool:
    return any(actor.agent is not None for role in cast.roles for actor in role.actors)


def _hands_over(cast: FixtureAgents) -> bool:
    return len(cast.roles) > 1


def _change_agent_tools(change: Callable[[Actor], Actor]) -> Change:
    """Return a change that applies *change* to every agent tool of a role."""

    def changed(role: Role) -> Role:
        actors = (change(actor) if actor.agent is not None else actor for actor in role.actors)
        return attrs.evolve(role, actors=tuple(actors))

    return changed


def _agents_hooks(chance: Chance) -> World:
    wanted = chance.pick([_nests, _hands_over])
    return draw_changed(
        chance, change=lambda role: attrs.evolve(role, hooks=""), wanted=wanted, options={"hooks": HookLog}
    )


def _failing_hooks(chance: Chance) -> World:
    """Return a world with hooks of the run, or of an agent, that fail at one event; half of them with a session."""
    options: dict[str, Any] = {"session": SessionLog} if chance.one_in(2) else {}
    if chance.one_in(2):
        return draw_changed(chance, options={**options, "hooks": partial(HookLog, chance.pick(EVENTS))})
    event, wanted = chance.pick(AGENTS_EVENTS), chance.pick([_nests, bool])
    return draw_changed(chance, change=lambda role: attrs.evolve(role, hooks=event), wanted=wanted, options=options)


def _failing_session(chance: Chance) -> World:
    session = partial(SessionLog, chance.pick([(), EARLIER]), fails_at=chance.whole(1, 3), kept=chance.one_in(2))
    return draw_changed(
        chance, attrs.evolve(SIZE, faults=chance.one_in(3)), options={"session": session, "max_turns": 10}
    )


def _written(chance: Chance) -> World:
    """Return a world with a slow journal, and with a session and hooks that must not be ahead of it."""
    options = {"journal": JournalLog, "session": SessionLog, "hooks": HookLog}
    hooked: Change | None = (lambda role: attrs.evolve(role, hooks="")) if chance.one_in(2) else None
    cancel = CancelAt(chance.whole(2, 30)) if chance.one_in(3) else None
    return draw_changed(chance, change=hooked, options=options, cancel=cancel)


def _left(chance: Chance) -> World:
    """Return a world whose reader leaves at some event; half have a slow journal, which may fail meanwhile."""
    journal: dict[str, Any] = {}
    event = chance.pick(["CallStarted", "CallSettled", "TurnStarted", "TextDelta", "ItemCreated", "RunEnded"])
    if chance.one_in(2):
        event = chance.pick([event, "RunEnded"])
        fails = chance.pick(["run_ended", "run_ended", "call_settled", "turn_started", None])
        journal = {"journal": partial(JournalLog, 0.05, fails)}
    options = {"session": SessionLog, "hooks": HookLog, "max_turns": 10, **journal}
    return draw_changed(chance, attrs.evolve(SIZE, turns=1, guards=False), options=options, reader_leaves=event)


def _listeners(chance: Chance) -> World:
    def listening(actor: Actor) -> Actor:
        return attrs.evolve(actor, listens=(chance.pick([0.0, 0.03]), chance.pick([0, 0, 2])), timeout=None, own=None)

    if chance.one_in(2):
        return _deeper(chance)
    generator_config = attrs.evolve(SIZE, nesting=2, approvals=chance.one_in(3))
    return draw_changed(
        chance, generator_config, change=_change_agent_tools(listening), wanted=_nests, config={"timeout": None}
    )


def _deeper(chance: Chance) -> World:
    """Return a world with agents in agents, some of them with listeners."""

    def listens() -> tuple[float, int] | None:
        return None if chance.one_in(4) else (chance.pick([0.0, 0.03]), chance.pick([0, 0, 2]))

    low = Actor(name="low", agent=Role(name="c", actors=(PLAIN,)), listens=listens())
    high = Actor(name="high", agent=Role(name="b", actors=(PLAIN, low)), listens=listens())
    asks = [call(high.name, {"input": "go"}, call_id=f"c{place}") for place in range(chance.whole(1, 2))]
    nested: dict[str, list[Step]] = {}
    for one in asks:
        calls = [call("low", {"input": "go"}, call_id="d0"), call("plain", {"n": 2}, call_id="d1")]
        nested[str(one.call_id)] = [calls, say("inside")]
        nested[f"{one.call_id}/d0"] = [call("plain", {"n": 4}, call_id="e0"), say("deep inside")]
    script: list[Step] = [asks, say("done")]
    return _make_world(chance, script, Role(name="a", actors=(PLAIN, high)), nested=nested)


def _own_configurations(chance: Chance) -> World:
    generator_config = attrs.evolve(SIZE, faults=chance.one_in(2))

    def configured(actor: Actor) -> Actor:
        own = draw_config(chance, generator_config)
        own = attrs.evolve(own, timeout=chance.pick([None, None, 0.41]), loop_detection=chance.pick([None, 2]))
        return attrs.evolve(actor, own=own if stops is None or chance.one_in(2) else None)

    stops = MaxTurns(chance.whole(1, 2)) if chance.one_in(3) else None
    # Sometimes a nested body takes longer than its run's timeout.
    part: Behavior = Returns(0, chance.pick([0.0, 0.0, 9.0]))
    return draw_changed(
        chance,
        generator_config,
        change=_change_agent_tools(configured),
        wanted=_nests,
        slow=part,
        config={"stop_when": stops},
    )


def _budgets(chance: Chance) -> World:
    """Return a world with limits of the whole tree, and of nested runs."""
    if chance.one_in(2):
        return _spending(chance)
    kind = chance.whole(0, 3)

    def limits() -> UsageLimits:
        if kind == 0:
            return UsageLimits(requests=chance.whole(1, 5))
        if kind == 1:
            return UsageLimits(tool_calls=chance.whole(1, 5))
        return UsageLimits(total_tokens=chance.whole(5, 40)) if kind == 2 else UsageLimits(cost=chance.whole(1, 9))

    def bounded(actor: Actor) -> Actor:
        return attrs.evolve(actor, own=attrs.evolve(RunConfig(), limits=limits()) if chance.one_in(2) else None)

    def priced(role: Role) -> Role:
        # A guardrail refuses some of them after the budget has reserved room for them.
        actors = (
            actor
            if actor.agent is not None
            else attrs.evolve(actor, cost=chance.whole(0, 3), before=chance.pick([(), ("reject odd",)]))
            for actor in role.actors
        )
        return _change_agent_tools(bounded)(attrs.evolve(role, actors=tuple(actors)))

    config = {"limits": limits() if chance.one_in(2) else None, "price": _price if chance.one_in(2) else None}
    return draw_changed(chance, change=priced, wanted=_nests, config=config, options={"max_turns": 10})


def _spending(chance: Chance) -> World:
    """Return a world whose runs want to spend more than their limits allow, together and each by itself."""
    kind = chance.pick(["requests", "tool_calls", "tool_calls", "total_tokens", "cost", "cost"])
    most = {"requests": (2, 6), "tool_calls": (2, 7), "total_tokens": (6, 30), "cost": (3, 12)}[kind]

    def limits() -> UsageLimits | None:
        return UsageLimits(**{kind: chance.whole(*most)}) if not chance.one_in(4) else None

    used = RequestUsage(input_tokens=2, output_tokens=1, total_tokens=3)
    before: Any = chance.pick([(), ("reject odd",), ("reject odd",)])
    priced = Actor(name="priced", cost=chance.whole(1, 3), before=before)
    own = RunConfig(limits=limits()) if not chance.one_in(4) else None
    agent = Actor(name="agent", agent=Role(name="an", actors=(priced,)), own=own)
    steps: list[Step] = []
    nested: dict[str, list[Step]] = {}
    for turn in range(2):
        names = ["agent", *(chance.pick(["agent", "priced", "priced"]) for _ in range(chance.whole(0, 2)))]
        pieces: list[Any] = [respond(usage=used)]
        for place, name in enumerate(names):
            call_id = f"c{turn}{place}"
            given: dict[str, Any] = {"input": "go"} if name == "agent" else {"n": chance.whole(0, 9)}
            pieces.append(call(name, given, call_id=call_id))
            if name == "agent":
                calls = [call("priced", {"n": chance.whole(0, 9)}, call_id=f"d{one}") for one in range(2)]
                nested[call_id] = [[respond(usage=used), *calls], say("inside", used)]
        steps.append(pieces)
    execution = ToolExecution(max_function_tool_concurrency=chance.pick([None, 1]))
    config = RunConfig(
        limits=limits(), price=_price if kind == "cost" and chance.one_in(2) else None, tool_execution=execution
    )
    return _make_world(
        chance, [*steps, say("done", used)], Role(name="a", actors=(priced, agent)), config=config, nested=nested
    )


def _price(model: str, usage: Any) -> int:
    return 1 if usage.total_tokens else 0


def _fee(model: str, call: HostedToolCall) -> int:
    return 2 if call.status == "completed" else 1


def _filters(chance: Chance) -> World:
    """Return a world with handoffs in both directions, whose filters change the history."""
    if chance.one_in(2):
        return _to_and_fro(chance)
    session: dict[str, Any] = {"session": partial(SessionLog, EARLIER)} if chance.one_in(3) else {}
    return draw_changed(
        chance,
        attrs.evolve(SIZE, faults=chance.one_in(3)),
        change=lambda role: attrs.evolve(role, filter=chance.pick(FILTERS)),
        wanted=_hands_over,
        options={"max_turns": 10, **session},
    )


def _to_and_fro(chance: Chance) -> World:
    """Return a world of two agents that hand over to each other; some calls wait for a verdict in between."""
    steps: list[Step] = []
    verdicts: list[Verdict] = []
    here, there = "ab"
    for turn in range(chance.whole(3, 5)):
        calls = [
            call(chance.pick(["plain", "asked"]), {"n": 1}, call_id=f"c{turn}{place}")
            for place in range(chance.whole(1, 2))
        ]
        verdicts += [Verdict(call_id=str(one.call_id)) for one in calls]
        pieces: list[Any] = [say(f"turn {turn}"), *calls]
        if not chance.one_in(3):
            pieces.append(call(f"transfer_to_{there}", call_id=f"h{turn}"))
            here, there = there, here
        steps.append(pieces)
    roles = [
        Role(
            name=name,
            actors=(PLAIN, ASKED),
            handoffs=(other,),
            filter=chance.pick([*FILTERS, None]),
            judges=(("pass", chance.one_in(2)),),
        )
        for name, other in ("ab", "ba")
    ]
    return _make_world(chance, [*steps, say("done")], *roles, verdicts=tuple(verdicts), serialize=chance.one_in(2))


def _names(chance: Chance) -> World:
    """Return a world with tools of one name, in a namespace and without one."""

    def named(role: Role) -> Role:
        first = attrs.evolve(role.actors[0], name="same", namespace=None, agent=None)
        counterparts = [attrs.evolve(first, namespace=name, approval=chance.one_in(2)) for name in ("x", "y")]
        return attrs.evolve(role, actors=(first, *counterparts))

    role = named(Role(name="a", actors=(Actor(name="same", approval=True, idempotent=chance.one_in(3)),)))
    if chance.one_in(2):
        role = attrs.evolve(role, actors=role.actors[1:])  # no tool of the bare name
    steps: list[Step] = []
    ids = [f"c{place}" for place in range(6)]
    for turn in range(2):
        asked = [(call_id, chance.pick([None, "x", "y", "y"])) for call_id in ids[3 * turn : 3 * turn + 3]]
        steps.append(
            [call("same", {"n": chance.whole(0, 5)}, call_id=call_id, namespace=space) for call_id, space in asked]
        )
    if chance.one_in(3):  # two calls of one id
        steps.append([call("same", {"n": 2}, call_id="c9", namespace=name) for name in chance.pick(["xy", "xx"])])
    verdicts = tuple(
        Verdict(call_id=call_id, approved=not chance.one_in(3), always=chance.one_in(2)) for call_id in ids
    )
    config = RunConfig(tool_not_found_behavior="tell_model")
    return _make_world(
        chance, [*steps, say("done")], role, config=config, verdicts=verdicts, serialize=chance.one_in(2)
    )


# ---------------------------------------------------------------------------------------------- made for one case


def _make_world(
    chance: Chance,
    script: list[Step],
    *roles: Role,
    config: RunConfig | None = None,
    options: dict[str, Any] | None = None,
    order: Any = None,
    **parts: Any,
) -> World:
    order = order or chance.pick(["gate", "passes", "steps"])
    given = {"run_config": config or RunConfig(), **(options or {})}
    return World(
        agent=FixtureAgents(roles=roles), script=script, options=given, order=order, tape=draw_tape(chance), **parts
    )


def _choices(chance: Chance) -> World:
    """Return a world whose models must use a tool; some calls wait for a verdict, in turns of another agent too."""
    steps: list[Step] = []
    verdicts: list[Verdict] = []
    handing = chance.one_in(2)
    for turn in range(4 if handing else chance.whole(2, 4)):
        # The first agent works again after a pause of the second.
        names = ["asked"] if handing and turn == 2 else [chance.pick(["plain", "asked"])] * chance.whole(1, 2)
        ids = [f"c{turn}{place}" for place in range(len(names))]
        pieces = [call(name, {"n": 1}, call_id=call_id) for name, call_id in zip(names, ids, strict=True)]
        verdicts += [Verdict(call_id=call_id, approved=not chance.one_in(4)) for call_id in ids]
        if handing and turn == 1:
            pieces.append(call("transfer_to_b", call_id="h1"))
        if handing and turn == 2:
            pieces.append(call("transfer_to_a", call_id="h2"))
        steps.append(pieces)
    roles = [
        Role(name=name, actors=(PLAIN, ASKED), chooses=True, resets=not chance.one_in(4), handoffs=handoffs)
        for name, handoffs in (("a", ("b",)), ("b", ("a",)))
    ]
    return _make_world(chance, [*steps, say("done")], *roles, verdicts=tuple(verdicts), serialize=chance.one_in(2))


def _edited(chance: Chance) -> World:
    """Return a world with long arguments that differ only in their last digits; verdicts or guardrails change some."""
    before: Any = chance.pick([(), ("reject odd",), ("rewrite odd",), ("rewrite odd", "reject odd")])
    actors = tuple(
        Actor(name=name, approval=True, before=before, idempotent=chance.one_in(3)) for name in ("asked", "other")
    )
    count = chance.whole(2, 4)
    steps: list[Step] = [
        [
            call(chance.pick(actors).name, {"n": LONG_NUMBER + chance.whole(0, 3)}, call_id=f"c{turn}{place}")
            for place in range(count)
        ]
        for turn in range(2)
    ]
    verdicts = [
        Verdict(
            call_id=f"c{turn}{place}",
            approved=not chance.one_in(4),
            always=chance.one_in(2),
            arguments=f'{{"n": {LONG_NUMBER + chance.whole(0, 9)}}}' if chance.one_in(2) else None,
        )
        for turn in range(2)
        for place in range(count)
    ]
    verdicts = [one if one.approved else attrs.evolve(one, arguments=None) for one in verdicts]
    execution = ToolExecution(pre_approval_tool_input_guardrails=chance.one_in(2))
    return _make_world(
        chance,
        [*steps, say("done")],
        Role(name="a", actors=actors),
        config=RunConfig(tool_execution=execution),
        verdicts=tuple(verdicts),
        serialize=chance.one_in(2),
    )


def _threads(chance: Chance) -> World:
    """Return a world of sync tools with one thread; a nested run fails before its body gets the thread, or is cut."""
    deep = Actor(name="deep", in_thread=True, timeout=chance.pick([None, 0.41]))
    failing = chance.pick([None, "tool_start", "tool_start"])
    inner = Role(name="an", actors=(deep,), hooks=failing)
    actors = (
        Actor(name="sync", in_thread=True, timeout=chance.pick([None, None, 0.41]), raises=chance.one_in(4)),
        PLAIN,
        Actor(name="agent", agent=inner),
    )
    names = ["agent", *(chance.pick(["sync", "sync", "plain", "agent"]) for _ in range(chance.whole(1, 3)))]
    steps: list[Step] = []
    nested: dict[str, list[Step]] = {}
    behaviors: dict[str, Behavior] = {}
    for turn in range(2):
        pieces = []
        for place, name in enumerate(names):
            call_id = f"c{turn}{place}"
            given: dict[str, Any] = {"input": "go"} if name == "agent" else {"n": 2 * place}
            pieces.append(call(name, given, call_id=call_id))
            part: Behavior = chance.pick([Returns(1, 0.0), Returns(0, 0.25), Returns(0, 0.75), Raises(0, 0.25)])
            if name == "agent":
                nested[call_id] = [[call("deep", {"n": 2}, call_id="d1")], say("inside")]
                behaviors[f"{call_id}/d1"] = part
            elif chance.one_in(2):
                behaviors[call_id] = part
        steps.append(pieces)
    config = RunConfig(tool_execution=ToolExecution(max_threads=1))
    script: list[Step] = [*steps, say("done")]
    role = Role(name="a", actors=actors)
    return _make_world(chance, script, role, config=config, nested=nested, behaviors=behaviors)


def _one_pass(chance: Chance) -> World:
    """Return a world whose guardrail trips at the moment at which the model beside it fails or answers."""
    judges: Any = [(chance.pick(["trip late", "pass late"]), True) for _ in range(chance.whole(1, 2))]
    ends: Step = chance.pick([BUSY, BUSY, say("answered")])
    first: Any = [wait(LATE), ends]
    role = Role(name="a", actors=(PLAIN,), judges=tuple(judges))
    order = chance.pick(["passes", "passes", "steps"])
    return _make_world(chance, [first, say("done")], role, order=order, options={"session": SessionLog})


def _begun(chance: Chance) -> World:
    """Return a world whose model fails after a part of its answer, or before any."""
    busy = fail(ModelTransportError("busy", status=429, retry_after=chance.pick([None, 0.5])))
    piece = chance.pick(
        [ReasoningDelta("hm"), ReasoningDelta("hm"), TextDelta("Let"), ArgumentsDelta("c9", '{"n"'), None, None]
    )
    shown = [stream_of([ResponseStarted(), *([piece] if piece is not None else [])])]
    retry = ModelRetrySettings(chance.whole(1, 2), initial_delay=0.12, max_delay=0.12)
    settings = ModelSettings(retry=retry)
    answer: Step = [reason("so"), say("Well."), call("plain", {"n": 2}, call_id="c1")]
    config = RunConfig(model_settings=settings, hold_text_until_guarded=chance.one_in(2))
    judges: Any = (("pass late", True),) if chance.one_in(2) else ()
    return _make_world(
        chance, [[*shown, busy], answer, say("done")], Role(name="a", actors=(PLAIN,), judges=judges), config=config
    )


def _slow(chance: Chance) -> World:
    """Return a world with a slow model under a timeout, whose reader delayed it before."""
    settings = ModelSettings(timeout=0.4, retry=ModelRetrySettings(1, initial_delay=0.12, max_delay=0.12))
    seconds = chance.pick([0.25, 0.9, 30.0])
    pieces = [say("word " * chance.whole(1, 20)), wait(seconds), call("plain", {"n": 2}, call_id="c1")]
    if chance.one_in(3):
        pieces.insert(0, wait(0.1))
    config = RunConfig(model_settings=settings, stream_buffer=chance.pick([1, 1, 3]))
    script: list[Step] = [pieces, say("done"), say("done")]
    # At the gate, time may also pass while the reader waits.
    order = chance.pick(["passes", "passes", "steps", "gate"])
    role = Role(name="a", actors=(PLAIN,))
    return _make_world(chance, script, role, config=config, slow_reader=not chance.one_in(4), order=order)


def _silent(chance: Chance) -> World:
    """Return a world of bodies with an idle timeout, which report now and then."""
    actors = (Actor(name="idle", idle=0.4), Actor(name="bounded", idle=0.4, timeout=0.9), PLAIN)
    count = chance.whole(1, 3)
    behaviors: dict[str, Behavior] = {
        f"c{place}": chance.pick(
            [OnStage(Reports(chance.whole(1, 4), chance.pick([0.15, 0.3, 0.5]), pauses=True)), Returns(0, 0.6), Hangs()]
        )
        for place in range(count)
    }
    names = [chance.pick(["idle", "idle", "bounded"]) for _ in range(count)]
    calls = [call(name, {"n": 2 * place}, call_id=f"c{place}") for place, name in enumerate(names)]
    return _make_world(chance, [calls, say("done")], Role(name="a", actors=actors), behaviors=behaviors)


def _stopped(chance: Chance) -> World:
    """Return a world whose reader cancels the run after its turn."""
    event = chance.pick(["CallStarted", "CallSettled", "TurnStarted", "TextDelta", "ItemCreated", "TurnEnded"])
    generator_config = attrs.evolve(SIZE, guards=False, approvals=chance.one_in(3))
    return draw_changed(chance, generator_config, options={"session": SessionLog, "max_turns": 10}, reader_stops=event)


def _grace(chance: Chance) -> World:
    """Return a world of nested runs with a cleanup grace of their own, cut together with the run around them."""
    deep = Actor(name="deep")
    own = RunConfig(tool_execution=ToolExecution(cleanup_grace=chance.pick([0.1, 5.0, 5.0])))
    inner = Role(name="an", actors=(deep,))
    actors = (PLAIN, Actor(name="raising", raises=True), Actor(name="agent", agent=inner, own=own))
    fails = chance.one_in(3)
    calls = [
        call("agent", {"input": "go"}, call_id="c0"),
        call("raising" if fails else "plain", {"n": 2}, call_id="c1"),
    ]
    part: Any = chance.pick([Cleans(0, 0.0, cleaning=20.0), Holds(0, 0.0, leaving=20.0), Cleans(0, 0.0, cleaning=0.5)])
    behaviors: dict[str, Behavior] = {
        "c0/d0": OnStage(part),
        "c0/d1": chance.pick([Returns(0, 30.0), OnStage(part)]),
        "c1": Raises(0, 0.25) if fails else Returns(0, 30.0),
    }
    nested = {"c0": [[call("deep", {"n": 2 * place}, call_id=f"d{place}") for place in range(2)], say("inside")]}
    by_time = not fails and chance.one_in(3)
    grace = chance.pick([0.27, 0.27, 5.0])
    config = RunConfig(timeout=0.65 if by_time else None, tool_execution=ToolExecution(cleanup_grace=grace))
    cancel = None if fails or by_time else CancelAt(chance.whole(2, 4), waiting=True)
    script: list[Step] = [calls, say("done")]
    role = Role(name="a", actors=actors)
    return _make_world(
        chance, script, role, config=config, nested=nested, behaviors=behaviors, cancel=cancel, order="gate"
    )


def _provided(chance: Chance) -> World:
    """Return a world of a provider's own tools and their requests for approval, beside functions and custom tools."""
    limits: Any = chance.pick([{}, {}, {"serial": "s"}, {"exclusive": True}, {"timeout": 0.55}, {"raises": True}])
    free = Actor(name="free", custom=True, approval=chance.one_in(3), **limits)
    steps: list[Step] = []
    verdicts: list[Verdict] = []
    behaviors: dict[str, Behavior] = {}
    roll, search = {"name": "roll", "server_label": "casino"}, {"type": "search", "query": "x"}
    for turn in range(chance.whole(1, 3)):
        items: list[Item] = []
        for place in range(chance.whole(1, 4)):
            call_id = f"c{turn}{place}"
            text = chance.pick(["", "loud", "{", '{"n": 1}', "a" * 40])
            made: list[Item] = [
                HostedToolCall("web_search_call", {"action": search}, f"ws_{call_id}", "completed"),
                HostedToolCall("mcp_call", {**roll, "arguments": "{}"}, f"mcp_{call_id}", "failed", "none"),
                ToolCall(call_id, "roll", '{"n": 1}', "casino", kind="approval"),
                ToolCall(call_id, "plain", '{"n": 2}', kind="custom" if chance.one_in(8) else "function"),
                ToolCall(call_id, "free", text, kind="function" if chance.one_in(8) else "custom"),
                ToolCall(call_id, "free", text, kind="custom"),
            ]
            items.append(chance.pick(made))
            verdicts.append(Verdict(call_id=call_id, approved=not chance.one_in(3), always=chance.one_in(6)))
            if chance.one_in(2):
                behaviors[call_id] = chance.pick([Returns(1, 0.0), Returns(0, 0.75), Raises(0, 0.25)])
        said = [reason("hm"), respond(*items)] if chance.one_in(2) else [respond(*items)]
        calls = any(isinstance(item, ToolCall) for item in items)
        steps.append(said if calls else [*said, call("plain", {"n": 4}, call_id=f"d{turn}")])
    return _make_world(
        chance,
        [*steps, say("done")],
        Role(name="a", actors=(PLAIN, free), hosted=("web_search", "image_generation")),
        config=RunConfig(tool_not_found_behavior="tell_model", hosted_price=_fee, limits=UsageLimits(cost=1_000)),
        behaviors=behaviors,
        verdicts=tuple(verdicts),
        serialize=chance.one_in(2),
    )


def _sourced(chance: Chance) -> World:
    """Return a world of sources whose tools change from turn to turn, fail, hang and collide, some found by search."""
    other = Actor(name="other", approval=chance.one_in(3), says=(True, False) if chance.one_in(4) else ())
    late = Actor(name="late", deferred=True)
    kinds: list[tuple[Actor, ...]] = [(other,), (other, late), (late,), (), (PLAIN, other)]
    shelves = []
    for _ in range(chance.whole(1, 2)):
        answers: list[tuple[Actor, ...] | None] = [chance.pick(kinds) for _ in range(chance.whole(1, 3))]
        if chance.one_in(6):
            answers.append(None)
        shelves.append(Shelf(answers=tuple(answers), seconds=chance.pick([0.0, 0.0, 0.25, 30.0])))
    steps: list[Step] = []
    verdicts: list[Verdict] = []
    behaviors: dict[str, Behavior] = {}
    for turn in range(chance.whole(2, 4)):
        calls = []
        for place in range(chance.whole(1, 3)):
            call_id, name = f"c{turn}{place}", chance.pick(["plain", "other", "late", "tool_search"])
            calls.append(call(name, {"query": "late"} if name == "tool_search" else {"n": 1}, call_id=call_id))
            verdicts.append(Verdict(call_id=call_id, approved=not chance.one_in(4)))
            if chance.one_in(3) and name != "tool_search":
                behaviors[call_id] = chance.pick([Returns(1, 0.0), Returns(0, 0.75), Raises(0, 0.25)])
        steps.append(calls)
    role = Role(name="a", actors=(PLAIN,), shelves=tuple(shelves), searches=not chance.one_in(3))
    config = RunConfig(
        tool_not_found_behavior="tell_model",
        timeout=chance.pick([None, None, 10.0]),
        tool_name_collision_policy=chance.pick(["tell_model", "tell_model", "raise"]),
    )
    cancel = CancelAt(chance.whole(1, 12)) if chance.one_in(4) else None
    return _make_world(
        chance,
        [*steps, say("done")],
        role,
        config=config,
        verdicts=tuple(verdicts),
        behaviors=behaviors,
        cancel=cancel,
        serialize=chance.one_in(2),
    )


KINDS: dict[str, Callable[[Chance], World]] = {
    "choices": _choices,
    "edited": _edited,
    "threads": _threads,
    "one pass": _one_pass,
    "begun": _begun,
    "slow": _slow,
    "silent": _silent,
    "grace": _grace,
    "agents' hooks": _agents_hooks,
    "failing hooks": _failing_hooks,
    "failing session": _failing_session,
    "written": _written,
    "left": _left,
    "stopped": _stopped,
    "listeners": _listeners,
    "own configurations": _own_configurations,
    "budgets": _budgets,
    "filters": _filters,
    "names": _names,
    "provided": _provided,
    "sourced": _sourced,
}
