"""Logs with one thing wrong: real runs of small worlds, and edits that break one invariant each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import anyio
import attrs
from exploration.faults import Cleans, Hangs, Holds, OnStage, Reports
from exploration.fixture_agents import LONG, Actor, FixtureAgents, Role, Shelf
from exploration.invariants import observe_run
from exploration.observers import HookLog, JournalLog, SessionLog

from agentloop import Agent, Runner, ToolContext
from agentloop import events as ev
from agentloop import records as r
from agentloop.config import RunConfig
from agentloop.config.budget import UsageLimits
from agentloop.config.conditions import MaxTurns
from agentloop.exceptions import ModelTransportError, ToolCallError
from agentloop.items import AssistantMessage, HostedToolCall, ToolCall, ToolOutput
from agentloop.limits import ToolExecution
from agentloop.sessions import MemorySession
from agentloop.settings import ModelRetrySettings, ModelSettings
from agentloop.testing import ScriptedModel
from agentloop.testing.invariants._observation import Counterpart, Observation, Relation
from agentloop.testing.scripted import call, fail, reason, respond, say
from agentloop.testing.simulation._faults import Raises, Returns
from agentloop.testing.simulation.runs import Body, CancelAt, ExternalAnswer, Steering, Verdict, World, run_one
from agentloop.tools import tool
from agentloop.usage import RequestUsage, Usage

USED = RequestUsage(input_tokens=3, output_tokens=2, total_tokens=5)


def _calls(*names: str, first: int = 1, **numbers: int) -> list[Any]:
    return [call(name, {"n": numbers.get(name, 2)}, call_id=f"c{place}") for place, name in enumerate(names, first)]


def _world(*turns: Any, actors: tuple[Actor, ...], role: dict[str, Any] | None = None, **fields: Any) -> World:
    roles = (Role(name="a", actors=actors, **(role or {})), Role(name="b", actors=actors))
    options = {"run_config": fields.pop("config", RunConfig()), **fields.pop("options", {})}
    return World(agent=FixtureAgents(roles=roles), script=(*turns, say("done", USED)), options=options, **fields)


PLAIN = Actor(name="plain")
RAISING = Actor(name="raising", raises=True)
INNER = Role(name="an", actors=(Actor(name="deep"),))


@tool
async def nap() -> str:
    """Nap."""
    await anyio.sleep(1)
    return "rested"


@tool(failure_error_function=None)
async def breaks() -> str:
    """Break."""
    raise ValueError("no luck")


@cache
def reached() -> Observation:
    """A run that gets input while it works, and whose call of an external tool is answered."""
    world = _world(
        _calls("question"),
        actors=(Actor(name="question", external=True),),
        answers=[ExternalAnswer(call_id="c1", value=7)],
        steering=[Steering(id="hint", text="Be brief.")],
    )
    return observe_run(run_one(world, streamed=True))


@cache
def rich() -> Observation:
    """A run that completes: limits, receipts, guardrails, a timeout, a nested run, a retry, a repeat, a handoff."""
    actors = (
        PLAIN,
        Actor(name="once", idempotent=True),
        Actor(name="line", serial="s"),
        Actor(name="alone", exclusive=True),
        Actor(name="slow", timeout=0.5),
        Actor(name="guarded", before=("allow",), after=("allow",)),
        Actor(name="shared", shares=True),
        Actor(name="rated", rated=True),
        Actor(name="agent", agent=INNER),
    )
    first = _calls("plain", "once", "once", "line", "line", "alone", "slow", "guarded", "shared", "rated")
    world = _world(
        fail(ModelTransportError("busy", status=503)),
        [reason("hm"), *first, call("agent", {"input": "go"}, call_id="c11"), call("nothing", {}, call_id="c12")],
        [call("plain", {"n": 2}, call_id="c1"), call("plain", {"n": 4}, call_id="c13")],
        [call("transfer_to_b", call_id="h1")],
        actors=actors,
        role={"handoffs": ("b",), "judges": (("pass", False), ("pass", True))},
        nested={"c11": ([call("deep", {"n": 1}, call_id="d1")], say("inside"))},
        behaviors={"c7": Hangs(), "c1": Returns(1, 0.25)},
        config=RunConfig(
            tool_execution=ToolExecution(max_function_tool_concurrency=3),
            model_settings=ModelSettings(retry=ModelRetrySettings(1)),
            tool_not_found_behavior="tell_model",
        ),
        options={"hooks": HookLog, "session": MemorySession},
    )
    world = attrs.evolve(world, agent=FixtureAgents(roles=(*_judged(world),), rate=3))
    return observe_run(run_one(world))


def _judged(world: World) -> tuple[Role, ...]:
    assert isinstance(world.agent, FixtureAgents)
    first, second = world.agent.roles
    return first, attrs.evolve(second, last_judges=("pass", "pass"))


@cache
def queued() -> Observation:
    """Five calls under a cap of two, each of which takes its time."""
    world = _world(
        _calls(*["plain"] * 5),
        actors=(PLAIN,),
        behaviors={f"c{place}": Returns(0, 0.25 * place) for place in range(1, 6)},
        config=RunConfig(tool_execution=ToolExecution(max_function_tool_concurrency=2)),
    )
    return observe_run(run_one(world))


@cache
def rated() -> Observation:
    """Two calls under a rate of one per 1.3 s."""
    world = _world(_calls("rated", "rated"), actors=(Actor(name="rated", rated=True),))
    assert isinstance(world.agent, FixtureAgents)
    return observe_run(run_one(attrs.evolve(world, agent=attrs.evolve(world.agent, rate=1, per=1.3))))


@cache
def cleaning() -> Observation:
    """Two bodies of a cancelled run that clean up, one of them what it holds."""
    world = _world(
        _calls("plain", "plain"),
        actors=(PLAIN,),
        behaviors={"c1": OnStage(Cleans(1, 0.5)), "c2": OnStage(Holds(1, 0.25))},
    )
    steps = run_one(world).steps
    return observe_run(run_one(attrs.evolve(world, cancel=CancelAt(steps // 2))))


@cache
def holding() -> Observation:
    """Two bodies that each hold a resource of the run."""
    parts = {"c1": OnStage(Holds(0, 0.0)), "c2": OnStage(Holds(0, 0.25))}
    return observe_run(run_one(_world(_calls("plain", "plain"), actors=(PLAIN,), behaviors=parts)))


@cache
def cancelled() -> Observation:
    """A run that its caller cancels while two bodies run."""
    world = _world(
        _calls("plain", "plain"),
        actors=(PLAIN,),
        behaviors={"c1": Hangs(), "c2": Returns(0, 30.0)},
        options={"hooks": HookLog},
    )
    whole = next(
        run
        for step in range(8, 60)
        if (run := run_one(attrs.evolve(world, cancel=CancelAt(step)))).cancelled and len(run.bodies) == 2
    )
    return observe_run(whole)


@cache
def outliving() -> Observation:
    """A run whose time is over, and a body of it that doesn't end."""

    async def refuses(body: Body) -> str:
        with anyio.CancelScope(shield=True):
            await body.sleep(9.0)
        return "done"

    world = _world(_calls("plain"), actors=(PLAIN,), behaviors={"c1": refuses}, config=RunConfig(timeout=0.5))
    return attrs.evolve(observe_run(run_one(world)), faultless=False)


@cache
def failing() -> Observation:
    """A run that a call's failure ends, while another one runs."""
    world = _world(_calls("raising", "plain"), actors=(PLAIN, RAISING), behaviors={"c1": Raises(1), "c2": Hangs()})
    return observe_run(run_one(world))


@cache
def both_failing() -> Observation:
    """A run that two failures of one pass end."""
    parts = {"c1": Raises(), "c2": Raises()}
    found = run_one(_world(_calls("raising", "raising"), actors=(RAISING,), behaviors=parts, order="passes"))
    return observe_run(found)


def _raised_second(observation: Observation) -> Observation:
    second = ToolCallError("second", call=call_of(observation, "c2"))
    return attrs.evolve(observation, error=second)


def call_of(observation: Observation, call_id: str) -> ToolCall:
    """Return the call of that id."""
    items = [item for one in observation.records if isinstance(one, r.ModelResponded) for item in one.response.items]
    return next(item for item in items if isinstance(item, ToolCall) and item.call_id == call_id)


@cache
def many() -> Observation:
    """Three calls where two are allowed."""
    config = RunConfig(tool_execution=ToolExecution(max_calls_per_turn=2))
    return observe_run(run_one(_world(_calls(*["plain"] * 3), actors=(PLAIN,), config=config)))


@cache
def decided() -> Observation:
    """Two calls wait for verdicts: one is approved, one rejected."""
    world = _world(
        _calls("asks", "asks", asks=1),
        actors=(Actor(name="asks", approval=True),),
        verdicts=(Verdict(call_id="c1"), Verdict(call_id="c2", approved=False)),
    )
    return observe_run(run_one(world))


@cache
def called_off() -> Observation:
    """A call that waits behind another one, which cancels it."""

    @tool
    async def cancels(ctx: ToolContext[Any]) -> str:
        """Cancel the other call."""
        return str(ctx.cancel_call("c2"))

    model = ScriptedModel([[call("cancels", {}, "c1"), call("nap", {}, "c2")], say("done")])
    agent: Agent[Any, Any] = Agent("a", model=model, tools=[cancels, nap])
    config = RunConfig(tool_execution=ToolExecution(max_function_tool_concurrency=1))
    result = Runner.run_sync(agent, "go", run_config=config)
    return Observation(records=tuple(result.to_state().records))


@cache
def tripped(stage: str) -> Observation:
    """A run that an `input` or `output` guardrail ends."""
    role: dict[str, Any] = {"judges": (("trip", True),)} if stage == "input" else {"last_judges": ("trip",)}
    turns = [_calls("plain")] if stage == "input" else []
    return observe_run(run_one(_world(*turns, actors=(PLAIN,), role=role, options={"session": MemorySession})))


@cache
def refused() -> Observation:
    """A call whose arguments a guardrail refuses, and one whose output one refuses."""
    actors = (Actor(name="before", before=("reject odd",)), Actor(name="after", after=("reject odd",)))
    return observe_run(run_one(_world(_calls("before", "after", before=1, after=1), actors=actors)))


@cache
def contradicting() -> Observation:
    """A response that uses one id for two calls."""
    return observe_run(run_one(_world([call("plain", {"n": n}, call_id="c1") for n in (1, 2)], actors=(PLAIN,))))


@cache
def receipted() -> Observation:
    """A call that an earlier turn's receipt answers."""
    return observe_run(
        run_one(_world(_calls("once"), _calls("once", first=2), actors=(Actor(name="once", idempotent=True),)))
    )


@cache
def judged_again() -> Observation:
    """A call that waits for a verdict, of a tool with an input guardrail."""
    actors = (Actor(name="asks", approval=True, before=("allow",)),)
    return observe_run(run_one(_world(_calls("asks", asks=1), actors=actors, verdicts=(Verdict(call_id="c1"),))))


@cache
def slowly_read() -> Observation:
    """A streamed run whose reader is behind."""
    world = _world(_calls("plain", "plain"), actors=(PLAIN,), config=RunConfig(stream_buffer=1), slow_reader=True)
    return observe_run(run_one(world, streamed=True))


@cache
def hurried() -> Observation:
    """Three calls for one slot, the last of which waits too long."""
    execution = ToolExecution(max_function_tool_concurrency=1, queue_timeout=0.6)
    world = _world(
        _calls(*["plain"] * 3),
        actors=(PLAIN,),
        behaviors={"c1": Returns(0, 0.5), "c2": Returns(0, 0.5)},
        config=RunConfig(tool_execution=execution),
    )
    return observe_run(run_one(world))


@cache
def bounded() -> Observation:
    """A run that may ask its model twice, and wants to ask once more."""
    config = RunConfig(limits=UsageLimits(requests=2))
    return observe_run(run_one(_world(_calls("plain"), _calls("plain", first=2), actors=(PLAIN,), config=config)))


@cache
def fickle() -> Observation:
    """A run with a call of a tool that decides for itself whether it is on."""
    return observe_run(run_one(_world(_calls("fickle"), actors=(Actor(name="fickle", says=(True,)),))))


@cache
def shelved() -> Observation:
    """A run with a tool of a source."""
    role = {"shelves": (Shelf(answers=((Actor(name="lent"),),)),)}
    return observe_run(run_one(_world(_calls("lent"), actors=(PLAIN,), role=role)))


@cache
def circling() -> Observation:
    """A run whose model makes an equal call three times and is warned, and then stops with a long output."""
    config = RunConfig(loop_detection=3, tool_execution=ToolExecution(max_output_chars=LONG - 1))
    turns = [_calls("plain", first=place) for place in range(1, 4)]
    world = _world(*turns, _calls("wordy", first=4), actors=(PLAIN, Actor(name="wordy", wordy=True)), config=config)
    return observe_run(run_one(world))


@cache
def stopped() -> Observation:
    """A run that is stopped after its second turn."""
    config = RunConfig(stop_when=MaxTurns(2))
    return observe_run(run_one(_world(_calls("plain"), _calls("plain", first=2), actors=(PLAIN,), config=config)))


@cache
def watched() -> Observation:
    """A streamed run with a handoff, whose reader keeps up; a body of it reports."""
    world = _world(
        [reason("hm"), say("Let me see."), *_calls("plain", "plain"), call("transfer_to_b", call_id="h1")],
        actors=(PLAIN,),
        role={"handoffs": ("b",)},
        behaviors={"c1": OnStage(Reports(2))},
    )
    return observe_run(run_one(world, streamed=True))


@cache
def surrounded() -> Observation:
    """A run with a journal, a session and hooks of its own and of its agents; a nested run with a listener."""
    deep = Role(name="an", actors=(Actor(name="deep"),), hooks="")
    actors = (PLAIN, Actor(name="agent", agent=deep, listens=(0.0, 0)))
    roles = (
        Role(name="a", actors=actors, hooks="", chooses=True, handoffs=("b",), filter="newest"),
        Role(name="b", actors=(PLAIN,), hooks=""),
    )
    turns = (
        _calls("plain"),
        [*_calls("plain", first=2), call("agent", {"input": "go"}, call_id="c3"), call("transfer_to_b", call_id="h1")],
    )
    world = World(
        agent=FixtureAgents(roles=roles),
        script=(*turns, say("done")),
        nested={"c3": ([call("deep", {"n": 1}, call_id="d1")], say("inside"))},
        options={
            "run_config": RunConfig(model_settings=ModelSettings(timeout=1.0)),
            "hooks": HookLog,
            "session": SessionLog,
            "journal": JournalLog,
        },
    )
    return observe_run(run_one(world))


@cache
def corrected() -> Observation:
    """A run with an answer that doesn't fit and is corrected, and with a pause of the provider in each turn."""
    paused = respond(HostedToolCall("web_search_call", {}, "ws1", "completed"), finish_reason="pause")
    world = World(
        agent=FixtureAgents(roles=(Role(name="a", actors=(PLAIN,), corrections=1),)),
        script=(paused, say("no JSON"), paused, say('{"response": 5}')),
        options={"run_config": RunConfig()},
    )
    return observe_run(run_one(world))


@cache
def unsaved() -> Observation:
    """A run whose session fails."""
    session = partial(SessionLog, fails_at=1)
    return observe_run(run_one(_world(_calls("plain"), actors=(PLAIN,), options={"session": session})))


@cache
def silent() -> Observation:
    """A call that reports in time, and one that is silent for too long."""
    behaviors = {"c1": OnStage(Reports(2, 0.3, pauses=True)), "c2": Hangs()}
    return observe_run(
        run_one(_world(_calls("idle", "idle"), actors=(Actor(name="idle", idle=0.4),), behaviors=behaviors))
    )


@cache
def held() -> Observation:
    """A streamed run whose text is held until a guardrail beside the model has judged its input."""
    config = RunConfig(hold_text_until_guarded=True)
    world = _world(actors=(PLAIN,), role={"judges": (("pass late", True),)}, config=config)
    return observe_run(run_one(world, streamed=True))


@cache
def stopping() -> Observation:
    """A run that its reader wants to end after its first turn."""
    world = _world(_calls("plain"), _calls("plain", first=2), actors=(PLAIN,), reader_stops="CallStarted")
    return observe_run(run_one(world, streamed=True))


@cache
def ended_by_a_call() -> Observation:
    """A run of which the first output is the last word."""
    world = _world(_calls("plain", "plain"), actors=(PLAIN,), role={"behavior": "stop_on_first_tool"})
    return observe_run(run_one(world))


def _later(told: Sequence[tuple[int, Any]], event: str) -> list[tuple[int, Any]]:
    """Return *told* with the stamps of *event* behind all others."""
    return [(place + 10**9 if one[0] == event else place, one) for place, one in told]


def twinned(relation: Relation) -> Observation:
    """Two runs of one world."""
    observation = queued()
    return attrs.evolve(
        observation, counterparts=[Counterpart(relation=relation, name="the other", records=list(observation.records))]
    )


def _other_twin(observation: Observation) -> Observation:
    counterpart = attrs.evolve(observation.counterparts[0], records=observation.records[:-1])
    return attrs.evolve(observation, counterparts=[counterpart])


# ---------------------------------------------------------------------------------------------- edits


def find(observation: Observation, kind: type, nth: int = 0, **fields: Any) -> int:
    """Return the number of the nth record of *kind* with these fields."""
    found = [
        n
        for n, record in enumerate(observation.records)
        if isinstance(record, kind) and all(getattr(record, name) == value for name, value in fields.items())
    ]
    return found[nth]


def drop(observation: Observation, *numbers: int) -> Observation:
    """Return *observation* without these records."""
    return attrs.evolve(observation, records=[one for n, one in enumerate(observation.records) if n not in numbers])


def put(observation: Observation, n: int, *records: Any) -> Observation:
    """Return *observation* with *records* before record *n*."""
    return attrs.evolve(observation, records=[*observation.records[:n], *records, *observation.records[n:]])


def move(observation: Observation, n: int, to: int) -> Observation:
    """Return *observation* with record *n* standing before record *to*."""
    record = observation.records[n]
    return drop(put(observation, to, record), n if n < to else n + 1)


def change(observation: Observation, n: int, **fields: Any) -> Observation:
    """Return *observation* with other values in record *n*."""
    records = list(observation.records)
    records[n] = records[n].replace(**fields)
    return attrs.evolve(observation, records=records)


def ended(observation: Observation, call_id: str, **fields: Any) -> Observation:
    """Return *observation* with another outcome of a call."""
    n = find(observation, r.CallSettled, call_id=call_id)
    return change(observation, n, outcome=observation.records[n].outcome.replace(**fields))  # type: ignore[union-attr]


def body(observation: Observation, call_id: str, **fields: Any) -> Observation:
    """Return *observation* with another execution of a call's body."""
    bodies = [attrs.evolve(one, **fields) if one.call_id == call_id else one for one in observation.bodies or ()]
    return attrs.evolve(observation, bodies=bodies)


def result(observation: Observation, **fields: Any) -> Observation:
    """Return *observation* with other values in its result."""
    assert observation.result is not None
    return attrs.evolve(observation, result=attrs.evolve(observation.result, **fields))


def _at(observation: Observation, call_id: str, kind: type = r.CallStarted, nth: int = 0) -> int:
    return find(observation, kind, nth, call_id=call_id)


def _again(observation: Observation, n: int) -> Observation:
    return put(observation, n + 1, observation.records[n])


def _shown_reversed(observation: Observation) -> Observation:
    return attrs.evolve(observation, shown=[(path, items[::-1]) for path, items in observation.shown or ()])


def _released_reversed(observation: Observation) -> Observation:
    return attrs.evolve(observation, events=observation.events[::-1])


def _shown_without_outputs(observation: Observation) -> Observation:
    shown = [
        (path, [item for item in items if not isinstance(item, ToolOutput)]) for path, items in observation.shown or ()
    ]
    return attrs.evolve(observation, shown=shown)


def _second_body(observation: Observation) -> Observation:
    assert observation.bodies is not None
    return attrs.evolve(observation, bodies=[*observation.bodies, observation.bodies[0]])


def _beside(observation: Observation, call_id: str) -> Observation:
    """Let the body of *call_id* run through the whole log."""
    return body(observation, call_id, began=_at(observation, "c1") + 1, ended=len(observation.records) - 1)


def _without_tools(observation: Observation) -> Observation:
    return change(observation, find(observation, r.TurnStarted), tools=())


def _ended_from_above(observation: Observation) -> int:
    return next(
        n
        for n, one in enumerate(observation.records)
        if isinstance(one, r.CallSettled) and one.outcome.cancelled_by == "parent"
    )


def _record_of(observation: Observation, kind: type, nth: int = 0, **fields: Any) -> Any:
    return observation.records[find(observation, kind, nth, **fields)]


def _earlier(observation: Observation, n: int) -> Observation:
    """Let record *n* have the time of the one before it."""
    return change(observation, n, at=observation.records[n - 1].at)


def _events(observation: Observation, kind: type, *, last: bool = False) -> Observation:
    """Return *observation* without the events of *kind*, or with them as the last ones."""
    kept = [one for one in observation.events if not isinstance(one, kind)]
    moved = [one for one in observation.events if isinstance(one, kind) and last]
    return attrs.evolve(observation, events=[*kept, *moved])


def _saved_twice(observation: Observation) -> Observation:
    return attrs.evolve(observation, saved=[*(observation.saved or ()), *(observation.saved or ())])


def _told(observation: Observation, *events: tuple[str, tuple[str, ...], str]) -> Observation:
    return attrs.evolve(observation, hooks=[*(observation.hooks or ()), *events])


def _guards(observation: Observation, stage: str) -> list[int]:
    records = enumerate(observation.records)
    return [n for n, one in records if isinstance(one, r.GuardrailSettled) and one.stage == stage]


def _completed(observation: Observation) -> Observation:
    return change(observation, len(observation.records) - 1, status="completed", final_output="done", error=None)


Plant = tuple[Callable[[], Observation], Callable[[Observation], Observation]]
PLANTED: dict[str, Plant] = {
    "one_ending_per_attempt": (queued, lambda e: _again(e, _at(e, "c1", r.CallSettled))),
    "every_record_has_its_place": (queued, lambda e: put(e, 3, r.BodyEnded((), 1, 0.0, "c99"))),
    "unstarted_calls_end_as_such": (queued, lambda e: drop(e, _at(e, "c1"))),
    "intent_before_effect": (queued, lambda e: body(e, "c1", began=2)),
    "an_invocation_runs_once": (queued, lambda e: _again(e, _at(e, "c1"))),
    "identities_stay": (
        contradicting,
        lambda e: put(e, len(e.records) - 1, r.CallStarted((), 1, 0.0, "c1", "plain", '{"n": 1}')),
    ),
    "turns_count_one_by_one": (rich, lambda e: change(e, find(e, r.TurnStarted, 2), turn=7)),
    "turns_fit_their_limit": (rich, lambda e: change(e, 0, max_turns=1)),
    "receipts_are_of_successes": (receipted, lambda e: ended(e, "c1", status="failed")),
    "equal_idempotent_calls_share_a_run": (
        receipted,
        lambda e: put(e, _at(e, "c2", r.CallSettled), _record_of(e, r.CallStarted).replace(turn=2, call_id="c2")),
    ),
    "bodies_in_flight_fit_the_limits": (queued, lambda e: _beside(_beside(e, "c4"), "c5")),
    "exclusive_calls_run_alone": (rich, lambda e: _beside(e, "c6")),
    "rates_hold": (rated, lambda e: change(e, _at(e, "c2"), at=_record_of(e, r.CallStarted).at)),
    "slots_are_used": (queued, lambda e: body(e, "c2", ended_at=0.1)),
    "starts_follow_model_order": (queued, lambda e: move(e, _at(e, "c5"), _at(e, "c1"))),
    "outputs_in_model_order": (slowly_read, _released_reversed),
    "accepted_after_all": (queued, lambda e: drop(e, _at(e, "c5", r.CallSettled))),
    "models_see_outputs_in_order": (queued, _shown_reversed),
    "finished_bodies_keep_their_end": (queued, lambda e: ended(e, "c1", status="cancelled", cancelled_by="sibling")),
    "siblings_fall_to_failures_only": (failing, lambda e: ended(e, "c1", output="told")),
    "failures_that_leave_end_the_run": (
        failing,
        lambda e: put(e, len(e.records) - 1, r.BatchEnded((), 1, 0.0)),
    ),
    "siblings_end_with_the_failure": (failing, lambda e: body(e, "c2", ended_at=100.0)),
    "the_first_failure_is_raised": (both_failing, _raised_second),
    "calls_past_the_cap_are_skipped": (
        many,
        lambda e: put(e, _at(e, "c3", r.CallSettled), _record_of(e, r.CallStarted).replace(call_id="c3")),
    ),
    "timeouts_follow_the_policy": (rich, lambda e: ended(e, "c7", output=None)),
    "only_shown_tools_run": (queued, _without_tools),
    "nothing_outlives_the_run": (queued, lambda e: body(e, "c1", ended=None)),
    "every_entry_ends_once": (queued, lambda e: _again(e, len(e.records) - 1)),
    "an_end_from_above_is_not_told": (cancelled, lambda e: ended(e, "c1", output="cancelled")),
    "nothing_begins_while_ending": (
        cancelled,
        lambda e: put(e, _ended_from_above(e) + 1, _record_of(e, r.ModelRequested)),
    ),
    "nothing_is_accepted_after_a_cancellation": (
        cancelled,
        lambda e: put(e, len(e.records) - 1, r.BatchEnded((), 1, 0.0)),
    ),
    "a_cancelled_run_says_so": (cancelled, lambda e: change(e, len(e.records) - 1, status="failed")),
    "a_cancelled_call_never_starts": (
        called_off,
        lambda e: put(e, _at(e, "c2", r.CallSettled), _record_of(e, r.CallStarted).replace(call_id="c2")),
    ),
    "ends_from_outside_are_recorded": (cancelled, lambda e: drop(e, find(e, r.CancelRequested))),
    "an_end_from_above_has_a_cause": (cancelled, _completed),
    "the_end_comes_within_grace": (cancelled, lambda e: attrs.evolve(e, ended_at=1000.0)),
    "cleanup_is_awaited": (
        cleaning,
        lambda e: attrs.evolve(e, cleanups=[attrs.evolve(one, ended=None) for one in e.cleanups or ()]),
    ),
    "what_outlives_its_run_is_reported": (outliving, lambda e: attrs.evolve(e, still_running=[])),
    "resources_are_left_in_reverse": (
        holding,
        lambda e: attrs.evolve(e, cleanups=(e.cleanups or ())[::-1]),
    ),
    "cancellations_pending_are_left_as_found": (queued, lambda e: attrs.evolve(e, cancelling=1)),
    "late_reports_come_once": (queued, lambda e: attrs.evolve(e, late=[((), "c1"), ((), "c1")])),
    "bodies_that_ended_say_so": (queued, lambda e: ended(e, "c1", body_finished=False)),
    "input_is_judged_before_effects": (rich, lambda e: drop(e, *_guards(e, "input"))),
    "a_tripped_input_stops_everything": (
        lambda: tripped("input"),
        lambda e: put(e, len(e.records) - 1, r.TurnStarted((), 2, 0.0, "a")),
    ),
    "output_is_judged_before_it_counts": (rich, lambda e: drop(e, _guards(e, "output")[-1])),
    "a_tripped_output_is_kept_nowhere": (lambda: tripped("output"), _completed),
    "arguments_are_judged_before_the_body": (rich, lambda e: drop(e, _guards(e, "tool_input")[0])),
    "a_refused_call_never_runs": (
        refused,
        lambda e: put(e, _at(e, "c1", r.CallSettled), r.CallStarted((), 1, 0.0, "c1", "before", '{"n": 1}')),
    ),
    "output_is_judged_before_it_settles": (refused, lambda e: ended(e, "c2", status="succeeded")),
    "a_verdict_is_asked_for_once": (decided, lambda e: _again(e, find(e, r.ApprovalRequested))),
    "what_waits_for_a_verdict_waits": (decided, lambda e: drop(e, _at(e, "c1", r.VerdictGiven))),
    "calls_that_need_approval_have_it": (
        decided,
        lambda e: drop(e, _at(e, "c1", r.VerdictGiven), _at(e, "c1", r.ApprovalRequested)),
    ),
    "a_rejected_call_never_runs": (decided, lambda e: ended(e, "c2", status="succeeded")),
    "a_verdict_fits_one_call": (decided, lambda e: change(e, _at(e, "c1", r.VerdictGiven), digest="other")),
    "a_pause_has_something_to_ask": (
        decided,
        lambda e: drop(e, *(n for n, one in enumerate(e.records) if isinstance(one, r.ApprovalRequested))),
    ),
    "each_request_ends_once": (queued, lambda e: drop(e, find(e, r.ModelResponded))),
    "usage_counts_each_request_once": (queued, lambda e: result(e, usage=Usage(requests=7))),
    "models_are_asked_as_recorded": (queued, lambda e: attrs.evolve(e, shown=[*(e.shown or ()), *(e.shown or ())])),
    "history_is_valid": (queued, _shown_without_outputs),
    "results_are_the_fold_of_the_log": (
        queued,
        lambda e: result(e, new_items=(*e.result.new_items, AssistantMessage("x")) if e.result else ()),
    ),
    "results_follow_model_order": (queued, lambda e: result(e, calls=e.result.calls[::-1] if e.result else ())),
    "exactly_one_end": (queued, lambda e: change(e, len(e.records) - 1, status="failed")),
    "nested_runs_stand_in_their_calls": (
        rich,
        lambda e: move(e, find(e, r.RunEnded, path=("c11",)), _at(e, "c11", r.CallSettled) + 1),
    ),
    "handoffs_go_where_they_say": (rich, lambda e: change(e, find(e, r.HandedOff), target_agent="nobody")),
    "tool_hooks_pair": (rich, lambda e: _told(e, ("tool_end", (), "c1"))),
    "run_end_is_told_once": (rich, lambda e: _told(e, ("run_end", (), "completed"))),
    "model_hooks_nest": (rich, lambda e: _told(e, ("llm_end", (), "a"), ("llm_end", (), "a"))),
    "spans_pair_and_nest": (queued, lambda e: attrs.evolve(e, spans=(e.spans or ())[:-1])),
    "sessions_get_each_item_once": (rich, _saved_twice),
    "backends_agree": (lambda: twinned("backend"), _other_twin),
    "streaming_changes_nothing": (lambda: twinned("mode"), _other_twin),
    "worlds_repeat_themselves": (lambda: twinned("again"), _other_twin),
    "native_and_scope_cancellations_agree": (lambda: twinned("cancellation"), _other_twin),
    "replays_give_the_log": (lambda: twinned("replay"), _other_twin),
    "storing_changes_nothing": (
        queued,
        lambda e: change(e, find(e, r.RunEnded), details={"where": (1, 2)}),
    ),
    "arguments_are_judged_again_after_a_pause": (
        judged_again,
        lambda e: drop(e, _guards(e, "tool_input")[-1]),
    ),
    "calls_run_with_their_arguments": (queued, lambda e: change(e, _at(e, "c1"), arguments='{"n": 3}')),
    "limits_of_use_hold": (
        bounded,
        lambda e: put(e, find(e, r.RunEnded), r.TurnStarted((), 3, 0.0, "a"), _record_of(e, r.ModelRequested)),
    ),
    "conditions_stop_in_time": (
        stopped,
        lambda e: attrs.evolve(e, config=attrs.evolve(e.config, stop_when=MaxTurns(1))),
    ),
    "circles_are_warned_of_then_ended": (circling, lambda e: drop(e, find(e, r.HistoryReplaced))),
    "invalid_outputs_are_corrected_as_often_as_agreed": (corrected, lambda e: drop(e, find(e, r.HistoryReplaced))),
    "paused_answers_are_continued": (
        corrected,
        lambda e: put(e, find(e, r.ModelRequested, 1), r.TurnStarted((), 2, 0.0, "a")),
    ),
    "outputs_keep_to_their_length": (circling, lambda e: ended(e, "c4", output="wordy")),
    "what_sources_give_is_shown": (shelved, lambda e: change(e, find(e, r.TurnStarted, 1), tools=("plain",))),
    "what_is_off_is_neither_shown_nor_run": (
        fickle,
        lambda e: change(e, find(e, r.CallbackReturned, key="c1"), answer=False),
    ),
    "blocking_guardrails_come_before_the_model": (
        rich,
        lambda e: move(e, _guards(e, "input")[0], find(e, r.ModelRequested) + 1),
    ),
    "input_is_judged_once": (rich, lambda e: _again(e, _guards(e, "input")[0])),
    "who_ended_it_is_told": (cancelled, lambda e: ended(e, "c1", cancelled_by="deadline")),
    "models_are_shown_all_that_was": (
        queued,
        lambda e: attrs.evolve(e, shown=[(path, items[1:]) for path, items in e.shown or ()]),
    ),
    "results_hold_every_item": (watched, lambda e: result(e, new_items=e.result.new_items[:-2] if e.result else ())),
    "hooks_hear_of_each_step": (rich, lambda e: attrs.evolve(e, hooks=[*(e.hooks or ())][2:])),
    "events_are_the_log": (watched, lambda e: _events(e, ev.CallStarted)),
    "signals_have_their_place": (watched, lambda e: _events(e, ev.CallProgress, last=True)),
    "retries_keep_to_their_settings": (rich, lambda e: _earlier(e, find(e, r.ModelRequested, 1))),
    "nobody_waits_past_the_queue_timeout": (hurried, lambda e: change(e, _at(e, "c2"), at=1e10)),
    "outcomes_say_when": (queued, lambda e: ended(e, "c1", started_at=None)),
    "waits_are_told": (hurried, lambda e: change(e, _at(e, "c2"), waited_for=())),
    "a_full_buffer_holds_the_run_up": (slowly_read, lambda e: attrs.evolve(e, unread=[(1, 5)])),
    "outputs_are_of_their_own_call": (queued, lambda e: ended(e, "c1", value="plain 77")),
    "a_tool_choice_is_dropped_once_obeyed": (
        surrounded,
        lambda e: attrs.evolve(e, asked=[(at, one.replace(tool_choice="required")) for at, one in e.asked or ()]),
    ),
    "models_keep_to_their_time": (
        surrounded,
        lambda e: attrs.evolve(e, asked=[(at - 5.0, one) for at, one in e.asked or ()]),
    ),
    "an_answer_is_what_its_pieces_are": (watched, lambda e: _events(e, ev.ReasoningDelta)),
    "histories_grow_by_what_was_said": (
        surrounded,
        lambda e: attrs.evolve(e, asked=[(at, one.replace(items=one.items[::-1])) for at, one in e.asked or ()]),
    ),
    "agents_hooks_hear_of_their_agent": (
        surrounded,
        lambda e: attrs.evolve(e, agent_hooks={name: told[1:] for name, told in e.agent_hooks.items()}),
    ),
    "hooks_are_told_in_order": (
        surrounded,
        lambda e: attrs.evolve(e, agent_hooks={name: _later(told, "tool_end") for name, told in e.agent_hooks.items()}),
    ),
    "listeners_hear_all_of_their_run": (
        surrounded,
        lambda e: attrs.evolve(e, heard={tool: heard[:-1] for tool, heard in e.heard.items()}),
    ),
    "effects_wait_for_the_journal": (surrounded, lambda e: attrs.evolve(e, durable=(e.durable or ())[-1:])),
    "what_fails_around_a_run_is_told": (
        unsaved,
        lambda e: attrs.evolve(change(e, find(e, r.RunEnded), status="completed", error=None), error=None),
    ),
    "a_session_that_failed_is_left_alone": (unsaved, lambda e: attrs.evolve(e, writes=[*e.writes, *e.writes])),
    "runs_keep_to_their_time": (
        queued,
        lambda e: attrs.evolve(
            e, config=attrs.evolve(e.config, timeout=0.1, tool_execution=ToolExecution(cleanup_grace=0.1))
        ),
    ),
    "each_guardrail_judges_what_is_there": (
        refused,
        lambda e: change(e, _guards(e, "tool_input")[0], verdict="Allow"),
    ),
    "text_waits_for_its_judges": (
        held,
        lambda e: attrs.evolve(e, events=[one for one in e.events if not isinstance(one, ev.GuardrailSettled)]),
    ),
    "silence_ends_a_call_in_time": (silent, lambda e: body(e, "c2", ended_at=0.2)),
    "a_run_may_end_with_its_turn": (stopping, lambda e: put(e, len(e.records) - 1, r.TurnStarted((), 2, 0.0, "a"))),
    "calls_end_a_run_as_its_agent_says": (
        ended_by_a_call,
        lambda e: result(change(e, find(e, r.RunEnded), final_output="plain 3"), final_output="plain 3"),
    ),
    "acknowledged_inputs_are_in_the_log": (reached, lambda e: attrs.evolve(e, acknowledged=["hint", "another"])),
    "added_inputs_are_shown_once": (reached, lambda e: put(e, find(e, r.InputShown), r.InputShown((), 1, 0.0, "hint"))),
    "inputs_come_where_all_calls_have_outputs": (
        reached,
        lambda e: put(e, find(e, r.CallSettled), r.InputShown((), 1, 0.0, "hint")),
    ),
    "answers_are_the_outputs_of_their_calls": (
        reached,
        lambda e: put(e, find(e, r.CallAnswered), r.CallAnswered((), 1, 0.0, "c1", 8)),
    ),
    "secrets_stand_nowhere": (queued, lambda e: attrs.evolve(e, canaries=["done"])),
}
"""By invariant: a run that keeps it, and an edit that breaks it."""
