"""The observation of one finished run, and its log indexed by calls, turns and runs. Invariants read nothing else.

`Observation` is data: the log, the result, and the reports of the fixtures that watched the run. `ObservedLog` indexes
its log once. It does not use the library's own fold: an independent second implementation shows the faults of the fold.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, Literal, TypeAlias

import attrs

from agentloop import records as r
from agentloop._common.naming import qualify_name
from agentloop.agents import Agent
from agentloop.config import RunConfig
from agentloop.handoffs import target_of
from agentloop.items import HandoffCall, Item, ToolCall
from agentloop.model_events import ModelRequest
from agentloop.outcomes import FROM_ABOVE
from agentloop.results import RunData
from agentloop.testing.simulation._case_maker import UNKNOWN, CaseMaker
from agentloop.testing.simulation._simulated_parts import CleanupRun
from agentloop.tools import AgentCall, FunctionTool

Path = tuple[str, ...]


@attrs.frozen(kw_only=True)
class ObservedBody:
    """One execution of a body, as the body itself reports it. Times are seconds on the clock of the loop.

    `began` and `ended` are the length of the log at that moment; `ended` is None for a body that never ended.
    """

    path: Path
    call_id: str
    tool: str
    began: int
    ended: int | None = None
    ending: str | None = None
    """`"value"`, `"error"`, `"cancelled"`, or None."""
    began_at: float = 0.0
    ended_at: float | None = None
    stamps: tuple[int, int] = (0, 0)
    """The stamps of its beginning and its end; zeros if no stamps were taken."""
    reports: Sequence[float] = ()
    """The times of its progress reports."""


Relation: TypeAlias = Literal["backend", "mode", "cancellation", "again", "replay"]


@attrs.frozen(kw_only=True, eq=False)
class Counterpart:
    """Another run of the same simulation case that must have the same log: on the other `backend`, in the other `mode`,
    with the other kind of `cancellation`, `again`, or its `replay`.

    `error` is the type of the error it raised; None if the errors are not compared.
    """

    relation: Relation
    name: str
    records: Sequence[r.Record] = attrs.field(repr=False)
    error: type | None = None


@attrs.frozen(kw_only=True)
class Cancellation:
    """The caller's cancellation: log length (`mark`) and time (`at`) when it was given; and if the run raised it."""

    mark: int
    at: float | None = None
    came_out: bool = True


@attrs.frozen(kw_only=True, eq=False)
class Observation:
    """All facts about a finished run. A field is None if nothing watched it; then no invariant uses it.

    Attributes:
        records: The log of the whole tree.
        agent: The agent with which the run began; its tools, handoffs and guardrails are looked up in it.
        config: The configuration of the root run.
        result, error: The result or the error of the run, if there is one.
        cancellation: The caller's cancellation, if there was one.
        bodies: Every execution of a body, in the order of their beginnings.
        cleanups: Blocks of cleanup of bodies, and of resources that they hold.
        shown: The path and the items of each request to a model.
        asked: Each request to a model, and its time on the loop's clock.
        reader_takes_time: True if time passes while a model waits for the reader of the events.
        hooks: Events that the hooks received, in order: `(event, path, name)`.
        stamps: A number for each record, and `hook_stamps` one for each event of the hooks; stamps grow with time.
        agent_hooks: Events that each agent's own hooks received, with the stamp of each event.
        watchers_failed: Event, path and name of each hook call that failed.
        journal_failed: True if the journal failed.
        heard: By agent and tool, events that the `on_stream` of an agent tool received, with the stamp of each event.
        writes: Writes to the session: stamp, items, and True if it failed.
        acknowledged: The ids of inputs that the run said it took, in this order.
        durable: How many records the journal had received, by stamp.
        pending: Path, call id and count of native cancellations that were left in the task of a call.
        spans: Beginnings and ends of spans, in order.
        saved: Items of the session after the run; `saved_before` are those before it.
        late: Path and call id of every late report.
        still_running: Path and call id of every report on a body that outlived the cleanup deadline.
        left: Names of the objects that outlived the run.
        ended_at: The loop's clock at the end of the run.
        cancelling: Native cancellations pending in the caller's task, minus those it was given.
        streamed: True if a reader read the events; `reader_left`: True if it left before the end.
        to_end_after: The number of records when the reader left, or asked the run to end after its turn.
        faultless: True if of the application's code only tool bodies and guardrails raised, and only as declared.
        canaries: Secret texts that must appear nowhere.
        maker: The maker of the simulation case, which knows how its code decides.
        events: The events that a consumer read.
        unread: How many events were unread when each of the run's own turns began: record number and count.
        counterparts: Other runs of the same simulation case that must have the same log.
        crashes: For each crash, the length of the log when the process died. None: the log tells. A run segment without
            an end was cut off by a crash; the last one too, if there is neither a result nor an error.
        definitions: The result of `definitions_of(agent)`, if it is known already.
    """

    records: Sequence[r.Record]
    agent: Agent[Any, Any] | None = None
    config: RunConfig = attrs.field(factory=RunConfig)
    result: RunData | None = None
    error: BaseException | None = None
    cancellation: Cancellation | None = None
    bodies: Sequence[ObservedBody] | None = None
    cleanups: Sequence[CleanupRun] | None = None
    shown: Sequence[tuple[Path, Sequence[Item]]] | None = None
    asked: Sequence[tuple[float, ModelRequest]] | None = None
    reader_takes_time: bool = False
    hooks: Sequence[tuple[str, Path, str]] | None = None
    stamps: Sequence[int] = ()
    hook_stamps: Sequence[int] = ()
    agent_hooks: Mapping[str, Sequence[tuple[int, tuple[str, Path, str]]]] = attrs.field(factory=dict)
    watchers_failed: Sequence[tuple[str, Path, str]] = ()
    heard: Mapping[tuple[str, str], Sequence[tuple[int, Any]]] = attrs.field(factory=dict)
    journal_failed: bool = False
    writes: Sequence[tuple[int, Sequence[Item], bool]] = ()
    acknowledged: Sequence[str] = ()
    durable: Sequence[tuple[int, int]] | None = None
    pending: Sequence[tuple[Path, str, int]] = ()
    spans: Sequence[tuple[str, Any]] | None = None
    saved: Sequence[Item] | None = None
    saved_before: Sequence[Item] = ()
    late: Sequence[tuple[Path, str]] | None = None
    still_running: Sequence[tuple[Path, str]] | None = None
    left: Sequence[str] | None = None
    ended_at: float | None = None
    cancelling: int | None = None
    streamed: bool = False
    reader_left: bool = False
    to_end_after: int | None = None
    faultless: bool = False
    canaries: Sequence[str] = ()
    maker: CaseMaker = UNKNOWN
    events: Sequence[Any] = ()
    unread: Sequence[tuple[int, int]] | None = None
    counterparts: Sequence[Counterpart] = ()
    crashes: Sequence[int] | None = None
    definitions: Mapping[tuple[str, str], FunctionTool] | None = None


# ---------------------------------------------------------------------------------------------- the log, read


@attrs.define(eq=False)
class ObservedCall:
    """One call of a model's response, and every record about it with its number. `ObservedLog` makes and fills it."""

    path: Path
    turn: ObservedTurn
    index: int
    call: ToolCall
    started: list[tuple[int, r.CallStarted]] = attrs.field(factory=list)
    bodies_ended: list[tuple[int, r.BodyEnded]] = attrs.field(factory=list)
    settled: list[tuple[int, r.CallSettled]] = attrs.field(factory=list)
    outcome: r.CallSettled | None = None
    """The settlement that counts: one that the end of a run segment caused doesn't count in the next segment."""
    released: list[int] = attrs.field(factory=list)
    """Numbers of the records that released the output, by its own reading and not by the library's fold."""
    guards: list[tuple[int, r.GuardrailSettled]] = attrs.field(factory=list)
    requested: list[tuple[int, r.ApprovalRequested]] = attrs.field(factory=list)
    verdicts: list[tuple[int, r.VerdictGiven]] = attrs.field(factory=list)
    questions: list[tuple[int, r.AnswerRequested]] = attrs.field(factory=list)
    answers: list[tuple[int, r.CallAnswered]] = attrs.field(factory=list)
    cancels: list[tuple[int, r.CancelRequested]] = attrs.field(factory=list)
    passed: bool = False
    """True if later outputs were released while it waited: then an answer holds none of them back."""

    @property
    def call_id(self) -> str:
        return self.call.call_id

    @property
    def status(self) -> str | None:
        """The status of the last settlement, or None before the first."""
        return self.settled[-1][1].outcome.status if self.settled else None


@attrs.define(eq=False)
class ObservedTurn:
    """One turn of one run: the requests to its model, the responses, their calls. `ObservedLog` makes and fills it."""

    path: Path
    number: int
    n: int
    agent: str
    tools: frozenset[str]
    handoffs: frozenset[str] = frozenset()
    requested: list[tuple[int, r.ModelRequested]] = attrs.field(factory=list)
    failed: list[tuple[int, r.ModelFailed]] = attrs.field(factory=list)
    responded: list[tuple[int, r.ModelResponded]] = attrs.field(factory=list)
    calls: list[ObservedCall] = attrs.field(factory=list)
    unreleased: list[ObservedCall] = attrs.field(factory=list)
    repeats: list[ToolCall | HandoffCall] = attrs.field(factory=list)
    """Calls that the model repeated: the same id, tool and arguments as an earlier call."""
    conflicts: list[ToolCall | HandoffCall] = attrs.field(factory=list)
    unnamed: bool = False
    accepted: list[int] = attrs.field(factory=list)

    @property
    def pauses(self) -> list[int]:
        """The record numbers of the answers that the provider paused, and that have no call of their own."""
        paused = ((n, one.response.items) for n, one in self.responded if one.response.paused)
        return [n for n, items in paused if not any(map(self.is_new_call, items))]

    @property
    def answered(self) -> bool:
        """True if the model's whole answer has come, and not only parts of it that the provider paused."""
        return len(self.responded) > len(self.pauses)

    @property
    def heard_by_hooks(self) -> int:
        """The number of answers that hooks hear of: all but one that contradicts an earlier answer."""
        return len(self.responded) - bool(self.conflicts)

    def is_new_call(self, item: Item) -> bool:
        """Tell whether *item* of a response is a call or a handoff that the model had not requested before."""
        return isinstance(item, _CALLS) and not any(item is one for one in self.repeats)


@attrs.define(eq=False)
class ObservedRun:
    """One run of the tree: its segments, turns and ends. `ObservedLog` makes and fills it."""

    path: Path
    began: list[int] = attrs.field(factory=list)
    """Record numbers at which its run segments begin: `RunStarted` and each `RunResumed`."""
    limits: list[tuple[int, int | None]] = attrs.field(factory=list)
    turns: list[ObservedTurn] = attrs.field(factory=list)
    ended: list[tuple[int, r.RunEnded]] = attrs.field(factory=list)
    guards: list[tuple[int, r.GuardrailSettled]] = attrs.field(factory=list)
    handed: list[tuple[int, r.HandedOff]] = attrs.field(factory=list)
    known: dict[str, ToolCall | HandoffCall] = attrs.field(factory=dict)
    agent: str = ""


_CALLS = (ToolCall, HandoffCall)


class ObservedLog:
    """An observation (`observation`) and its log indexed: runs by path, calls by path and id, turns in order.

    The constructor reads the log once; nothing changes the indices later, except `forget`.
    """

    def __init__(self, observation: Observation) -> None:
        self.observation = observation
        self.records: Sequence[r.Record] = observation.records
        self.runs: dict[Path, ObservedRun] = {}
        self.calls: dict[tuple[Path, str], ObservedCall] = {}
        self.turns: list[ObservedTurn] = []
        self._verdicts_on_all: set[tuple[Path, str, str, str | None]] = set()
        self.strays: list[tuple[int, r.Record]] = []
        """Records about calls that are in no response, or of runs that never began."""
        for n, record in enumerate(observation.records):
            read = _READERS.get(type(record))
            if read is not None:
                read(self, n, record)

    def forget(self) -> None:
        """Break the reference cycles of calls and turns, which only the garbage collector would free."""
        for turn in self.turns:
            turn.calls.clear()
            turn.unreleased.clear()

    @property
    def root(self) -> ObservedRun | None:
        """The outermost run of the tree."""
        return self.runs.get(())

    @property
    def started(self) -> Iterator[ObservedCall]:
        """The calls that started."""
        return (call for call in self.calls.values() if call.started)

    @property
    def batches(self) -> Iterator[ObservedTurn]:
        """The turns that have calls."""
        return (turn for turn in self.turns if turn.calls)

    def under(self, path: Path) -> Iterator[ObservedRun]:
        """Return the run at *path* and those nested in it."""
        return (run for run in self.runs.values() if run.path[: len(path)] == path)

    def items_of_input(self, shown: r.InputShown) -> Sequence[Item]:
        """Return the items of the added input that was *shown*; none if it was never added."""
        added = (one for one in self.records if isinstance(one, r.InputAdded) and one.path == shown.path)
        return next((one.items for one in added if one.id == shown.id), ())

    def crashed_between(self, n: int, until: int) -> bool:
        """Tell whether the process died after record *n* and before record *until*."""
        return any(n < length <= until for length in self.crashes)

    @cached_property
    def crashes(self) -> Sequence[int]:
        """For each crash, the length of the log when the process died."""
        seen = self.observation
        if seen.crashes is not None or self.root is None:
            return seen.crashes or ()
        ends = [n for n, _ in self.root.ended]
        bounds = itertools.pairwise([*self.root.began, len(self.records)])
        found = [until for began, until in bounds if not any(began < n < until for n in ends)]
        # Who has its result or its error knows that the last process didn't die.
        watched = seen.result is not None or seen.error is not None or seen.cancellation is not None
        return [length for length in found if length < len(self.records) or not watched]

    def next_segment(self, path: Path, n: int) -> int:
        """Return the record number at which the run at *path* begins its next segment after record *n*.

        The length of the log if there is no later segment.
        """
        run = self.runs.get(path)
        if run is None or len(run.began) == 1:
            return len(self.records)
        return min((began for began in run.began if began > n), default=len(self.records))

    @cached_property
    def definitions(self) -> Mapping[tuple[str, str], FunctionTool]:
        """The tools of every reachable agent, by the names of agent and tool."""
        known = self.observation.definitions
        return known if known is not None else definitions_of(self.observation.agent)

    def tool(self, call: ObservedCall) -> FunctionTool | None:
        """Return the definition of *call*'s tool, if the agents are known."""
        asked = call.call
        name = qualify_name(asked.name, asked.namespace)
        return self.definitions.get((call.turn.agent, name))

    def config(self, path: Path) -> RunConfig:
        """Return the configuration of the run at *path*: that of the nearest agent tool with its own, or the root's."""
        for depth in range(len(path), 0, -1):
            call = self.calls.get((path[: depth - 1], path[depth - 1]))
            tool = self.tool(call) if call is not None else None
            if tool is not None and isinstance(tool.body, AgentCall) and tool.body.run_config is not None:
                found: RunConfig = tool.body.run_config
                return found
        return self.observation.config

    def agent_named(self, name: str) -> Agent[Any, Any] | None:
        """Return the reachable agent with this name, or None."""
        return self._agents.get(name)

    @cached_property
    def _agents(self) -> Mapping[str, Agent[Any, Any]]:
        return {agent.name: agent for agent in agents_of(self.observation.agent)}

    @cached_property
    def bodies(self) -> Mapping[tuple[Path, str], list[ObservedBody]]:
        """Executions of bodies by path and call id; empty if bodies weren't watched."""
        found: dict[tuple[Path, str], list[ObservedBody]] = {}
        for body in self.observation.bodies or ():
            found.setdefault((body.path, body.call_id), []).append(body)
        return found

    @cached_property
    def from_above(self) -> list[tuple[ObservedCall, int, r.CallSettled]]:
        """The calls that were cancelled because a run around them ended, each with its settlement and that number."""
        return [
            (call, n, record)
            for call in self.calls.values()
            for n, record in call.settled
            if record.outcome.cancelled_by in FROM_ABOVE and record.outcome.status == "cancelled"
        ]

    # -- indexing, record by record

    def _read_segment(self, n: int, record: r.RunStarted | r.RunResumed) -> None:
        run = self.runs.get(record.path)
        if run is None:
            run = self.runs[record.path] = ObservedRun(record.path)
        run.began.append(n)
        run.limits.append((n, record.max_turns))
        if isinstance(record, r.RunStarted):
            run.agent = record.agent
        elif run.turns and not run.turns[-1].accepted:
            turn = run.turns[-1]
            for call in turn.calls:
                call.passed = False
                if call.outcome is not None and call.outcome.outcome.cancelled_by in FROM_ABOVE:
                    call.outcome = None
                    turn.unreleased = [one for one in turn.calls if one is call or one in turn.unreleased]
            self._release(n, turn)

    def _read_turn(self, n: int, record: r.TurnStarted) -> None:
        run = self.runs.get(record.path)
        tools, handoffs = frozenset(record.tools), frozenset(record.handoffs)
        turn = ObservedTurn(record.path, record.turn, n, record.agent, tools, handoffs)
        self.turns.append(turn)
        if run is None:
            self.strays.append((n, record))
        else:
            run.turns.append(turn)

    def _find_turn(self, n: int, record: r.Record) -> ObservedTurn | None:
        run = self.runs.get(record.path)
        if run is None or not run.turns:
            self.strays.append((n, record))
            return None
        return run.turns[-1]

    def _read_request(self, n: int, record: r.ModelRequested) -> None:
        if (turn := self._find_turn(n, record)) is not None:
            turn.requested.append((n, record))

    def _read_failure(self, n: int, record: r.ModelFailed) -> None:
        if (turn := self._find_turn(n, record)) is not None:
            turn.failed.append((n, record))

    def _read_response(self, n: int, record: r.ModelResponded) -> None:
        turn = self._find_turn(n, record)
        if turn is None:
            return
        turn.responded.append((n, record))
        known = self.runs[record.path].known
        for item in record.response.items:
            if not isinstance(item, _CALLS):
                continue
            if not item.call_id:
                turn.unnamed = True
                continue
            earlier = known.get(item.call_id)
            if earlier is not None:
                (turn.repeats if _are_equal(earlier, item) else turn.conflicts).append(item)
                continue
            known[item.call_id] = item
            if isinstance(item, ToolCall):
                call = ObservedCall(record.path, turn, len(turn.calls), item)
                turn.calls.append(call)
                turn.unreleased.append(call)
                self.calls[record.path, item.call_id] = call

    def _read_call_record(self, n: int, record: Any) -> None:
        call = self.calls.get((record.path, record.call_id))
        if call is None:
            self.strays.append((n, record))
            return
        getattr(call, _FIELDS[type(record)]).append((n, record))
        if isinstance(record, r.CallSettled):
            call.outcome = record
            self._release(n, call.turn)
        elif isinstance(record, r.AnswerRequested):
            self._release(n, call.turn)
        elif isinstance(record, r.VerdictGiven) and record.always:
            self._verdicts_on_all.add((record.path, record.agent, record.tool, record.definition))

    def _release(self, n: int, turn: ObservedTurn) -> None:
        """Note record *n* for each call of *turn* that it releases: outputs in model order, past calls that wait."""
        for call in list(turn.unreleased):
            if call.outcome is not None:
                call.released.append(n)
                turn.unreleased.remove(call)
            elif not call.passed and not self._waits(call):
                return
            else:
                call.passed = True

    def _waits(self, call: ObservedCall) -> bool:
        """Tell whether *call* can't have an outcome before a verdict comes, on itself or in the run nested in it."""
        nested = self.runs.get((*call.path, call.call_id))
        if nested is not None:
            interrupted = bool(nested.ended) and nested.ended[-1][1].status == "interrupted"
            due = nested.turns[-1].calls if nested.turns else ()
            return (
                interrupted
                and not call.cancels
                and nested.ended[-1][0] > nested.began[-1]
                and all(self._waits(one) for one in due if one.outcome is None)
            )
        if call.questions:
            return not call.answers and not call.cancels
        if not call.requested:
            return False
        request = call.requested[-1][1]
        own = any((one.digest, one.definition) == (request.digest, request.definition) for _, one in call.verdicts)
        key = (call.path, request.agent, request.tool, request.definition)
        return not own and key not in self._verdicts_on_all

    def _read_cancel(self, n: int, record: r.CancelRequested) -> None:
        if record.call_id is not None and (call := self.calls.get((record.path, record.call_id))) is not None:
            call.cancels.append((n, record))

    def _read_guardrail(self, n: int, record: r.GuardrailSettled) -> None:
        if record.call_id is not None:
            call = self.calls.get((record.path, record.call_id))
            if call is None:
                self.strays.append((n, record))
            else:
                call.guards.append((n, record))
        elif (run := self.runs.get(record.path)) is not None:
            run.guards.append((n, record))

    def _read_batch_end(self, n: int, record: r.BatchEnded) -> None:
        if (turn := self._find_turn(n, record)) is not None:
            turn.accepted.append(n)

    def _read_handoff(self, n: int, record: r.HandedOff) -> None:
        if (run := self.runs.get(record.path)) is not None:
            run.handed.append((n, record))

    def _read_run_end(self, n: int, record: r.RunEnded) -> None:
        run = self.runs.get(record.path)
        if run is None:
            self.strays.append((n, record))
            return
        run.ended.append((n, record))
        around = self.calls.get((record.path[:-1], record.path[-1])) if record.path else None
        if around is not None:
            self._release(n, around.turn)


_FIELDS: dict[type, str] = {
    r.CallStarted: "started",
    r.BodyEnded: "bodies_ended",
    r.CallSettled: "settled",
    r.ApprovalRequested: "requested",
    r.VerdictGiven: "verdicts",
    r.AnswerRequested: "questions",
    r.CallAnswered: "answers",
}
_READERS: dict[type, Callable[[ObservedLog, int, Any], None]] = {
    r.RunStarted: ObservedLog._read_segment,
    r.RunResumed: ObservedLog._read_segment,
    r.TurnStarted: ObservedLog._read_turn,
    r.ModelRequested: ObservedLog._read_request,
    r.ModelFailed: ObservedLog._read_failure,
    r.ModelResponded: ObservedLog._read_response,
    r.GuardrailSettled: ObservedLog._read_guardrail,
    r.BatchEnded: ObservedLog._read_batch_end,
    r.HandedOff: ObservedLog._read_handoff,
    r.CancelRequested: ObservedLog._read_cancel,
    r.RunEnded: ObservedLog._read_run_end,
    **dict.fromkeys(_FIELDS, ObservedLog._read_call_record),
}


def _are_equal(a: ToolCall | HandoffCall, b: ToolCall | HandoffCall) -> bool:
    if type(a) is not type(b) or a.name != b.name:
        return False
    if isinstance(a, ToolCall) and isinstance(b, ToolCall) and a.namespace != b.namespace:
        return False
    return a.arguments == b.arguments or plain_json(a.arguments) == plain_json(b.arguments)


@lru_cache(4096)
def plain_json(text: str) -> str:
    """Return JSON *text* in canonical form (sorted keys, no spaces), so that equal values give equal texts.

    Invalid JSON is returned as it is; a prefix tells the two apart. An object that has a key twice is invalid: which of
    the values counts depends on the parser.
    """
    try:
        value = json.loads(text, object_pairs_hook=_build_object, parse_constant=_refuse_constant)
        return "json " + json.dumps(value, sort_keys=True, separators=(",", ":"))
    except (ValueError, RecursionError):
        return "text " + text


def _build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice")
    return found


def _refuse_constant(constant: str) -> Any:
    raise ValueError(constant)


def agents_of(agent: Agent[Any, Any] | None) -> list[Agent[Any, Any]]:
    """Return *agent* and every agent reachable from it by handoffs and agent tools, each once."""
    found: list[Agent[Any, Any]] = []
    todo = [agent] if agent is not None else []
    while todo:
        one = todo.pop()
        if any(one is known for known in found):
            continue
        found.append(one)
        todo.extend(target_of(entry).agent for entry in one.handoffs)
        todo.extend(tool.body.agent for tool in one.functions if isinstance(tool.body, AgentCall))
    return found


def definitions_of(agent: Agent[Any, Any] | None) -> dict[tuple[str, str], FunctionTool]:
    """Return the tools of all reachable agents by agent's and tool's (qualified) name; the later of two equal names."""
    agents: Iterable[Agent[Any, Any]] = agents_of(agent)
    return {(one.name, tool.qualified_name): tool for one in agents for tool in one.functions}
