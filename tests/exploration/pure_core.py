"""Pure-core simulation: fold, machine, plan and admission driven by a tape without an event loop, thousands of worlds a
second.

A `CoreWorld` has the model's responses and the result of each body. `play` is the smallest possible shell: it calls
`next_action`, performs the action by appending records, and lets the tape choose the running body that ends next. So a
broken invariant here is the core's fault, and every order of body results of a small world can be tried.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Literal, TypeAlias

import attrs

from agentloop import records as r
from agentloop._core.admission import Admission, Ticket
from agentloop._core.failure_choice import Failure, choose
from agentloop._core.next_action import CheckOutput, Finish, GiveUp, Pause, RequestModel, Settle, Transfer, next_action
from agentloop._core.plan import (
    Answer,
    Arguments,
    Execute,
    Plan,
    PlanEntry,
    PlanRules,
    Replay,
    read_arguments,
)
from agentloop._core.planner import plan_response
from agentloop._core.run_fold import RunFold
from agentloop._core.turn_view import TurnView
from agentloop.agents import Agent
from agentloop.config import RunConfig
from agentloop.events import CallSettled
from agentloop.exceptions import AgentLoopError, ToolCallError, ToolCancelledError
from agentloop.handoffs import handoff, target_of
from agentloop.items import AssistantMessage, HandoffCall, Item, Reasoning, ToolCall, UserMessage
from agentloop.limits import Capacity, Limit, OrderedCapacity, ToolExecution
from agentloop.model_events import ModelResponse
from agentloop.outcomes import CallOutcome
from agentloop.results import RunResult
from agentloop.settings import JsonLimits, ModelSettings
from agentloop.testing.invariants._invariant import Invariant, format_records, judge
from agentloop.testing.invariants._observation import (
    Cancellation,
    Observation,
    ObservedBody,
    ObservedLog,
    definitions_of,
)
from agentloop.testing.simulation.generated import Chance
from agentloop.testing.simulation.schedules import Exhaustive, Recorder, Scheduler, Tape, first
from agentloop.tools import FunctionTool, tool
from agentloop.usage import RequestUsage

from .invariants import INVARIANTS, CoverageCounter, InvariantError

End: TypeAlias = Literal["return", "fail", "cancel"]
NAMES = ("plain", "once", "line", "shared", "alone", "raising")
"""The tools of the core's worlds: free, idempotent, serial, sharing a capacity, in a line of their own, raising."""
STATUS: dict[End, str] = {"return": "succeeded", "fail": "failed", "cancel": "cancelled"}


@attrs.frozen
class CoreCall:
    """One call of a model: id, tool, JSON arguments, and the result of its body if it runs."""

    call_id: str
    tool: str = "plain"
    arguments: str = '{"n": 0}'
    end: End = "return"


@attrs.frozen(kw_only=True)
class CoreTurn:
    """One response: reasoning, calls, maybe a handoff's id; `flaky` attempts fail before it comes."""

    calls: tuple[CoreCall, ...] = ()
    reasons: bool = False
    handoff: str | None = None
    twice: bool = False
    """True if the model requests a second handoff beside it."""
    flaky: int = 0
    usage: RequestUsage | None = None


@attrs.frozen(kw_only=True)
class CoreWorld:
    """One run of the core alone. `cut` is the number of the point before which the run is ended from above."""

    turns: tuple[CoreTurn, ...]
    cap: int | None = 3
    tokens: int = 1
    max_turns: int | None = 10
    answers_unknown: bool = True
    max_calls: int | None = None
    cut: int | None = None


@attrs.frozen(eq=False)
class CoreRun:
    """The result of a core world: the observation for the invariants, and the tape's choices."""

    observation: Observation
    choices: tuple[tuple[int, int], ...]


# ---------------------------------------------------------------------------------------------- definitions, made once


def _number(n: int) -> str:
    return str(n)


@cache
def _agents() -> tuple[Agent[Any, Any], Agent[Any, Any]]:
    async def body(n: int) -> str:
        """Take a number."""
        return _number(n)

    shared = Capacity(None, "shared")
    options: dict[str, dict[str, Any]] = {
        "plain": {},
        "once": {"idempotent": True},
        "line": {"serial": "line"},
        "shared": {"capacity": shared},
        "alone": {"serial": "alone", "idempotent": True},
        "raising": {"failure_error_function": None},
    }
    tools = [tool(name=name, **options[name])(body) for name in NAMES]
    other: Agent[Any, Any] = Agent("other", tools=tools, handoffs=[])
    guide: Agent[Any, Any] = Agent("guide", tools=tools, handoffs=[handoff(other)])
    targets: Any = other.handoffs
    targets.append(handoff(guide))
    return guide, other


@cache
def _view(agent: str) -> TurnView:
    found = next(one for one in _agents() if one.name == agent)
    tools: Sequence[FunctionTool] = found.tools
    return TurnView(
        agent=found.name,
        tools=tuple(tools),
        by_key={one.lookup_key: one for one in tools},
        settings=ModelSettings(),
        handoffs=tuple(target_of(entry) for entry in found.handoffs),
    )


@cache
def _config(cap: int | None, most: int | None) -> RunConfig:
    execution = ToolExecution(max_function_tool_concurrency=cap, max_calls_per_turn=most, mode="concurrent")
    return RunConfig(tool_execution=execution)


@cache
def _definitions() -> Mapping[tuple[str, str], FunctionTool]:
    return definitions_of(_agents()[0])


@cache
def _rules(answers_unknown: bool, max_calls: int | None) -> PlanRules:
    behavior: Any = "tell_model" if answers_unknown else "raise"
    return PlanRules(not_found=behavior, max_calls=max_calls, read=_read)


_known: dict[tuple[int, str], Arguments] = {}


def _read(tool: FunctionTool, text: str) -> Arguments:
    """Read arguments, each text once for a tool: worlds have few tools and texts, and there are millions of worlds."""
    found = _known.get((id(tool), text))
    if found is None:
        found = _known[id(tool), text] = read_arguments(tool, text, JsonLimits())
    return found


_INPUT = (UserMessage("go"),)
_DONE = AssistantMessage("done")
_THOUGHT = Reasoning(summary=("hm",))


@attrs.define(eq=False)
class _Script:
    """The responses and body results of one world, made once for all its schedules."""

    world: CoreWorld | None
    ends: dict[str, End] = attrs.field(factory=dict)
    responses: dict[tuple[int, str], ModelResponse] = attrs.field(factory=dict)

    @classmethod
    def of(cls, world: CoreWorld) -> _Script:
        calls = (call for turn in reversed(world.turns) for call in turn.calls)
        return cls(world, {call.call_id: call.end for call in calls})

    def response(self, turn: int, agent: str) -> ModelResponse:
        found = self.responses.get((turn, agent))
        if found is None:
            assert self.world is not None
            turns = self.world.turns
            said = turns[turn] if turn < len(turns) else None
            found = ModelResponse(tuple(_items(said, agent)), said.usage if said else None, None, None)
            self.responses[turn, agent] = found
        return found


def _items(said: CoreTurn | None, agent: str) -> Iterator[Item]:
    if said is None or not (said.calls or said.handoff):
        yield _DONE
        return
    if said.reasons:
        yield _THOUGHT
    for call in said.calls:
        yield ToolCall(call.call_id, call.tool, call.arguments)
    if said.handoff is not None:
        name = "transfer_to_other" if agent == "guide" else "transfer_to_guide"
        yield HandoffCall(said.handoff, name)
        if said.twice:
            yield HandoffCall(f"{said.handoff} again", name)


_last = _Script(None)


def _script_of(world: CoreWorld) -> _Script:
    global _last
    if _last.world is not world:
        _last = _Script.of(world)
    return _last


# ---------------------------------------------------------------------------------------------- playing a world


class CoreStuck(AssertionError):
    """The core has calls that wait, none that runs, and admits none: it would never continue."""


class _Ended(Exception):
    """Ends the run: by an error, or from above (None)."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class _Player:
    """Plays one world once. The fold `state` is the fact; `bodies` and `shown` are observations for the invariants."""

    def __init__(self, world: CoreWorld, scheduler: Scheduler) -> None:
        self.world = world
        self.chosen = Recorder(scheduler)
        self.state = RunFold()
        self.bodies: list[_Body] = []
        self.shown: list[tuple[tuple[str, ...], Sequence[Item]]] = []
        self.agent = "guide"
        self.clock = 0.0
        self.ticks = 0
        self.cut_mark: int | None = None
        self.said = _script_of(world)
        self.shared = Capacity(world.tokens, "shared")

    def append(self, kind: Any, *fields: Any, **named: Any) -> None:
        state = self.state
        state.apply(kind((), state.turn, self.clock, *fields, **named))

    def play(self) -> CoreRun:
        error: BaseException | None = None
        self.append(r.RunStarted, "run", "guide", _INPUT, self.world.max_turns)
        try:
            status, output = self._drive()
        except _Ended as ended:
            error = ended.error
            status, output = ("cancelled" if error is None else "failed"), None
        self.append(r.RunEnded, status, output, error=str(error) if error is not None else None)
        return CoreRun(self._observe(status, output, error), tuple(self.chosen.choices))

    def _drive(self) -> tuple[Any, Any]:
        while True:
            view = _view(self.agent) if self.state.turn else None
            action = next_action(self.state, view)
            self._tick()
            match action:
                case RequestModel():
                    self._call_model()
                case Settle():
                    self._settle()
                case Transfer(call, ignored):
                    source, self.agent = self.agent, call.name.removeprefix("transfer_to_")
                    self.append(
                        r.HandedOff, call.call_id, source, self.agent, tuple(other.call_id for other in ignored)
                    )
                case CheckOutput(output):
                    return "completed", output
                case GiveUp():
                    raise _Ended(action.make_error())
                case Finish(end):
                    return end.status, end.final_output
                case Pause():
                    return "interrupted", None
                case _:
                    raise AssertionError(f"a world of the core has no {action!r}")

    def _tick(self) -> None:
        """Pass one point at which the run may be ended from above, and advance the clock.

        Raises:
            _Ended: at the point number `cut`.
        """
        if self.cut_mark is None and self.ticks == self.world.cut:
            self.cut_mark = len(self.state.records)
            raise _Ended(None)
        self.ticks += 1
        self.clock += 1.0

    def _call_model(self) -> None:
        state, turns = self.state, self.world.turns
        said = turns[state.turn] if state.turn < len(turns) else None
        response = self.said.response(state.turn, self.agent)
        state.apply(r.TurnStarted((), state.turn + 1, self.clock, self.agent, NAMES, ()))
        for attempt in range(1, (said.flaky if said is not None else 0) + 2):
            self.append(r.ModelRequested, "", attempt)
            self.shown.append(((), tuple(state.history)))
            if said is not None and attempt <= said.flaky:
                self.append(r.ModelFailed, "busy", attempt)
        self.append(r.ModelResponded, response)

    # -- a batch

    def _settle(self) -> None:
        rules = _rules(self.world.answers_unknown, self.world.max_calls)
        try:
            plan = plan_response(_view(self.agent), self.state, rules)
        except AgentLoopError as error:
            raise _Ended(error) from None
        _Batch(self, plan).play()
        self.append(r.BatchEnded)

    def _observe(self, status: Any, output: Any, error: BaseException | None) -> Observation:
        state = self.state
        ended = status in ("completed", "interrupted")
        calls = tuple(CallSettled(call.call, call.outcome) for call in state.calls.values() if call.outcome is not None)
        result: RunResult[Any] | None = None
        if ended:
            result = RunResult(
                final_output=output,
                status=status,
                input=state.input,
                new_items=tuple(state.new_items),
                raw_responses=tuple(state.responses),
                last_agent=None,
                usage=state.usage,
                context=None,
                calls=calls,
                history=tuple(state.history),
            )
        return Observation(
            records=state.records,
            agent=_agents()[0],
            config=_config(self.world.cap, self.world.max_calls),
            result=result,
            error=error,
            cancellation=None if self.cut_mark is None else Cancellation(mark=self.cut_mark),
            bodies=[body.seen() for body in self.bodies],
            shown=self.shown,
            left=(),
            faultless=True,
            definitions=_definitions(),
        )


@attrs.define(eq=False)
class _Body:
    """One execution of a body, for the observation. `began` and `ended` are numbers of records."""

    call_id: str
    tool: str
    began: int
    began_at: float
    ended: int | None = None
    ending: str | None = None
    ended_at: float | None = None

    def seen(self) -> ObservedBody:
        return ObservedBody(
            path=(),
            call_id=self.call_id,
            tool=self.tool,
            began=self.began,
            began_at=self.began_at,
            ended=self.ended,
            ending=self.ending,
            ended_at=self.ended_at,
        )


@attrs.define(eq=False)
class _Running:
    """A running call: its plan entry, arguments, limits and body. `_Batch` owns it."""

    entry: PlanEntry
    arguments: Arguments
    ticket: Ticket
    body: _Body


def _failure(entry: PlanEntry, end: End) -> ToolCallError:
    kind = ToolCancelledError if end == "cancel" else ToolCallError
    return kind(f"{entry.call.call_id} failed", call=entry.call)


class _Batch:
    """One batch under way: waiting calls (`admission`), running ones, and followers of equal calls (`leaders`)."""

    def __init__(self, player: _Player, plan: Plan) -> None:
        self.player = player
        self.plan = plan
        self.admission = Admission()
        self.running: list[_Running] = []
        self.leaders: dict[str, list[tuple[PlanEntry, Arguments]]] = {}
        self.failures: list[Failure] = []
        cap = player.world.cap
        self.base: tuple[Limit, ...] = () if cap is None else (Capacity(cap, "cap"),)
        self.groups: dict[str, Limit] = {}

    def play(self) -> None:
        for entry in self.plan:
            match entry.disposition:
                case Answer(outcome):
                    self._settle_call(entry, outcome)
                case Replay(source, _):
                    self._replay_call(entry, source)
                case Execute(arguments):
                    self._arrive(entry, arguments)
                case _:
                    raise AssertionError(f"a world of the core has no {entry.disposition!r}")
        self._start()
        while self.running:
            try:
                self.player._tick()
            except _Ended:
                self._end_from_above("parent")
                raise
            self._end(self._choose_next())
            if self.failures:
                # Other bodies may end in the same pass as the failure: the tape chooses how many.
                while self.running and self.player.chosen(["stop", "one more"]):
                    self._end(self._choose_next())
                self._end_from_above("sibling")
                raise _Ended(choose(self.failures))
            self._start()

    def _choose_next(self) -> _Running:
        return self.running[self.player.chosen([one.entry.call.call_id for one in self.running])]

    def _arrive(self, entry: PlanEntry, arguments: Arguments) -> None:
        key = arguments.receipt
        if key is not None:
            source = self.player.state.receipts.get(key)
            if source is not None:
                self._replay_call(entry, source)
                return
            if key in self.leaders:
                self.leaders[key].append((entry, arguments))
                return
            self.leaders[key] = []
        assert entry.tool is not None
        limits = self.base
        if entry.tool.serial is not None:
            limits = (*limits, self.groups.setdefault(entry.tool.serial, OrderedCapacity(1, entry.tool.serial)))
        if entry.tool.capacity:
            limits = (*limits, self.player.shared)
        self.admission.add(Ticket(limits, (entry, arguments)))

    def _start(self) -> None:
        while admitted := self.admission.admit(self.player.clock):
            for ticket in admitted:
                self._begin(ticket)
        if not self.running and len(self.admission):
            raise CoreStuck("calls wait, none runs, and none is admitted: a slot was lost")

    def _begin(self, ticket: Ticket) -> None:
        player = self.player
        entry, arguments = ticket.owner
        if arguments.fault is not None:
            for limit in ticket.limits:
                limit.give()
            self._settle_call(entry, CallOutcome(status="failed", output="bad arguments"))
        else:
            player.append(r.CallStarted, entry.call.call_id, entry.tool.name, arguments.text)
            body = _Body(entry.call.call_id, entry.tool.name, len(player.state.records), player.clock)
            player.bodies.append(body)
            self.running.append(_Running(entry, arguments, ticket, body))

    def _finish_body(self, one: _Running, ending: str) -> None:
        player = self.player
        self.running.remove(one)
        body = one.body
        body.ended, body.ending, body.ended_at = len(player.state.records), ending, player.clock
        for limit in one.ticket.limits:
            limit.give()

    def _end(self, one: _Running) -> None:
        call_id = one.entry.call.call_id
        end = self.player.said.ends.get(call_id, "return")
        tool = one.entry.tool
        assert tool is not None
        raising = tool.failure_error_function is None and end != "return"
        self._finish_body(one, {"return": "value", "fail": "error", "cancel": "cancelled"}[end])
        status: Any = STATUS[end]
        outcome = CallOutcome(
            status=status,
            output=None if raising else f"{tool.name} {status}",
            cancelled_by="tool" if end == "cancel" else None,
            body_finished=True,
            started_at=0.0,
        )
        if raising:
            self.failures.append(Failure(index=one.entry.index, error=_failure(one.entry, end), phase="body"))
        self._settle_call(one.entry, outcome, one.arguments.receipt)
        key = one.arguments.receipt
        if key is None or self.failures:
            return
        followers = self.leaders.pop(key, [])
        for entry, arguments in followers:
            self._arrive(entry, arguments)

    def _end_from_above(self, by: Any) -> None:
        for one in list(self.running):
            self._finish_body(one, "cancelled")
        for entry in self.plan:
            if self.player.state.calls[entry.call.call_id].outcome is None:
                output = "a sibling failed" if by == "sibling" else None
                self._settle_call(entry, CallOutcome(status="cancelled", cancelled_by=by, output=output))

    def _replay_call(self, entry: PlanEntry, source: str) -> None:
        found = self.player.state.calls[source].outcome
        assert found is not None
        self._settle_call(entry, CallOutcome(status="replayed", output=found.output))

    def _settle_call(self, entry: PlanEntry, outcome: CallOutcome, receipt: str | None = None) -> None:
        player = self.player
        name = entry.tool.name if entry.tool is not None else entry.call.name
        player.append(r.CallSettled, entry.call.call_id, name, outcome, receipt=receipt)


def play(world: CoreWorld, scheduler: Scheduler = first) -> CoreRun:
    """Play *world* to its end; *scheduler* chooses the running body that ends next."""
    return _Player(world, scheduler).play()


def every_schedule(world: CoreWorld, most: int | None = None) -> Iterator[CoreRun]:
    """Play *world* once for every order in which its bodies can end (at most *most* of them)."""
    search = Exhaustive()
    for count, tape in enumerate(search):
        if most is not None and count >= most:
            return
        found = play(world, Tape(tape))
        search.ran(found.choices)
        yield found


def every_world(world: CoreWorld, most: int | None = None) -> Iterator[CoreRun]:
    """Play *world* in every order: to its end, and ended from above at each point where it may be."""
    yield from every_schedule(world, most)
    cut = 0
    while True:
        reached = False
        for found in every_schedule(attrs.evolve(world, cut=cut), most):
            reached = reached or found.observation.cancellation is not None
            yield found
        if not reached:
            return
        cut += 1


# ---------------------------------------------------------------------------------------------- generating worlds

_ARGUMENTS = ('{"n": 1}', '{"n": 2}', '{"n":1}', '{"n": 1.0}', '{"n": ', "[]", '{"m": 1}', '{"n": 1, "n": 2}')
_ENDS: tuple[End, ...] = ("return", "return", "return", "return", "fail", "cancel")


def draw_core_world(chance: Chance, *, turns: int = 3, calls: int = 5) -> CoreWorld:
    """Return a generated core world of at most *turns* turns with at most *calls* calls."""
    count = 0
    asked: list[CoreCall] = []

    def one() -> CoreCall:
        nonlocal count
        if asked and chance.one_in(12):
            old = chance.pick(asked)
            if chance.one_in(3):
                return attrs.evolve(old, arguments='{"n": 77}')
            return attrs.evolve(old, arguments=old.arguments.replace(": ", " :  "))
        count += 1
        name = "nothing" if chance.one_in(25) else chance.pick((*NAMES, "raising"))
        arguments = chance.pick(_ARGUMENTS) if chance.one_in(3) else f'{{"n": {chance.whole(0, 2)}}}'
        made = CoreCall(
            "" if chance.one_in(200) else f"c{count}",
            name,
            arguments,
            chance.pick(_ENDS[2:] if name == "raising" else _ENDS),
        )
        asked.append(made)
        return made

    said = tuple(
        CoreTurn(
            calls=tuple(one() for _ in range(chance.whole(0 if turn else 1, calls))),
            reasons=chance.one_in(4),
            handoff=f"h{turn}" if chance.one_in(8) else None,
            twice=chance.one_in(2),
            flaky=chance.whole(1, 2) if chance.one_in(8) else 0,
            usage=None if chance.one_in(3) else RequestUsage(input_tokens=turn + 1, total_tokens=turn + 1),
        )
        for turn in range(chance.whole(1, turns))
    )
    return CoreWorld(
        turns=said,
        cap=chance.pick([None, 1, 2, 3]),
        tokens=chance.whole(1, 2),
        max_turns=chance.pick([10, 10, 10, None, 1, 2]),
        answers_unknown=not chance.one_in(4),
        max_calls=2 if chance.one_in(10) else None,
        cut=chance.whole(0, 20) if chance.one_in(4) else None,
    )


OF_THE_CORE = (
    "one_ending_per_attempt",
    "every_record_has_its_place",
    "unstarted_calls_end_as_such",
    "intent_before_effect",
    "an_invocation_runs_once",
    "identities_stay",
    "turns_count_one_by_one",
    "turns_fit_their_limit",
    "receipts_are_of_successes",
    "equal_idempotent_calls_share_a_run",
    "bodies_in_flight_fit_the_limits",
    "slots_are_used",
    "starts_follow_model_order",
    "outputs_in_model_order",
    "accepted_after_all",
    "models_see_outputs_in_order",
    "finished_bodies_keep_their_end",
    "siblings_fall_to_failures_only",
    "failures_that_leave_end_the_run",
    "only_shown_tools_run",
    "the_first_failure_is_raised",
    "calls_past_the_cap_are_skipped",
    "every_entry_ends_once",
    "an_end_from_above_is_not_told",
    "nothing_begins_while_ending",
    "nothing_is_accepted_after_a_cancellation",
    "a_cancelled_run_says_so",
    "each_request_ends_once",
    "usage_counts_each_request_once",
    "history_is_valid",
    "results_follow_model_order",
    "exactly_one_end",
    "handoffs_go_where_they_say",
)
"""The invariants that the core alone decides; the others are about the parts around it."""


def check_core(run: CoreRun, tally: CoverageCounter | None = None) -> None:
    """Judge a run of the core by the invariants that it decides.

    Raises:
        InvariantError: as `agentloop.testing.check` does.
    """
    observed = ObservedLog(run.observation)
    findings = judge(observed, tally, _core_invariants())
    if findings:
        raise InvariantError(tuple(findings), "", format_records(tuple(run.observation.records), findings))
    observed.forget()


@cache
def _core_invariants() -> tuple[Invariant, ...]:
    return tuple(INVARIANTS[name] for name in OF_THE_CORE)
