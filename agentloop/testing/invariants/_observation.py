"""What is known of one run after it: its log, read once into calls, turns and runs, and what was seen from outside.

Invariants are judged on this alone. It doesn't use the library's own fold: what the log says is read here a second
time, so that a fault of the fold can't hide itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, Literal, TypeAlias

import attrs

from agentloop import records as r
from agentloop.agents import Agent
from agentloop.config import RunConfig
from agentloop.handoffs import target_of
from agentloop.items import HandoffCall, Item, ToolCall
from agentloop.model_events import ModelRequest
from agentloop.outcomes import FROM_ABOVE
from agentloop.results import RunData
from agentloop.testing.simulation._simulated_parts import CleanupRun
from agentloop.tools import AgentCall, FunctionTool

Path = tuple[str, ...]


@attrs.frozen(kw_only=True)
class BodySeen:
    """One execution of a body as seen from inside it: where, and between which records and times.

    `began` and `ended` are how many records the log had then; `ended` is None for a body that never ended.
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
    """Of its beginning and its end, where they were taken."""
    reports: Sequence[float] = ()
    """When it reported."""


Relation: TypeAlias = Literal["backend", "mode", "cancellation", "again", "replay"]


@attrs.frozen(kw_only=True, eq=False)
class Counterpart:
    """Another run of the same world, that must have the same log: on the other `backend`, in the other `mode`, by the
    other kind of `cancellation`, `again`, or its `replay`.

    `error` is the type of what it raised; None where that is left open.
    """

    relation: Relation
    name: str
    records: Sequence[r.Record] = attrs.field(repr=False)
    error: type | None = None


@attrs.frozen(kw_only=True)
class Cancellation:
    """The caller's cancellation: how long the log was when it was given, when, and whether it came out of the run."""

    mark: int
    at: float | None = None
    came_out: bool = True


@attrs.frozen(kw_only=True, eq=False)
class Observation:
    """All that is known of a run that is over. What wasn't watched is None, and nothing is judged by it.

    Attributes:
        records: The log of the whole tree.
        agent: The agent it began with; its tools, handoffs and guardrails are looked up in it.
        config: What it ran with.
        result, error: What came of it, if a result or an error did.
        cancellation: The caller's cancellation, if there was one.
        bodies: Every execution of a body, in the order of their beginnings.
        cleanups: Blocks of cleanup of bodies, and of resources that they hold.
        shown: What the models were shown, request by request: path and items.
        asked: What the models were asked, request by request, and when on the loop's clock.
        reader_takes_time: Whether time passes while a model waits for whoever reads the events.
        hooks: Events that hooks were told, in order: `(event, path, name)`.
        stamps: A number for each record, and `hook_stamps` one for each event of the hooks: a later one's is larger.
        agent_hooks: What each agent's own hooks were told, with the stamp of each event.
        watchers_failed: Event, path and name of what each hook that failed was told.
        journal_failed: Whether the journal failed.
        heard: By agent and tool, what the `on_stream` of an agent tool heard, with the stamp of each event.
        writes: Writes to the session: stamp, items, whether it failed.
        durable: How many records the journal had got, by stamp.
        pending: Path, call id and count of native cancellations that were left in the task of a call.
        spans: Beginnings and ends of spans, in order.
        saved: What the session held afterwards; `saved_before` is what it held before.
        late: Path and call id of every late report.
        still_running: Path and call id of every report on a body that outlived the cleanup deadline.
        left: What outlived the run, in words.
        ended_at: The loop's clock when the run was over.
        cancelling: Native cancellations pending in the caller's task, over those it was given.
        streamed: Whether somebody read its events; `reader_left`: and whether he left before its end.
        to_end_after: How many records there were when whoever reads them left, or wanted the run to end after its turn.
        faultless: Whether nothing of the application's raised but tool bodies and guardrails that said so.
        canaries: Texts that must stand nowhere.
        events: What a consumer read.
        unread: How many events were unread when each of the run's own turns began: record number and count.
        twins: Other runs of the same world, that must have the same log.
        crashes: How long the log was when the process died and the run was gone on with, for each time.
        definitions: What `definitions_of(agent)` gives, where it is known already.
    """

    records: Sequence[r.Record]
    agent: Agent[Any, Any] | None = None
    config: RunConfig = attrs.field(factory=RunConfig)
    result: RunData | None = None
    error: BaseException | None = None
    cancellation: Cancellation | None = None
    bodies: Sequence[BodySeen] | None = None
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
    events: Sequence[Any] = ()
    unread: Sequence[tuple[int, int]] | None = None
    twins: Sequence[Counterpart] = ()
    crashes: Sequence[int] = ()
    definitions: Mapping[tuple[str, str], FunctionTool] | None = None


# ---------------------------------------------------------------------------------------------- the log, read


@attrs.define(eq=False)
class CallSeen:
    """One call of a model's response, and every record about it with its number."""

    path: Path
    turn: TurnSeen
    index: int
    call: ToolCall
    started: list[tuple[int, r.CallStarted]] = attrs.field(factory=list)
    bodies_ended: list[tuple[int, r.BodyEnded]] = attrs.field(factory=list)
    settled: list[tuple[int, r.CallSettled]] = attrs.field(factory=list)
    released: list[int] = attrs.field(factory=list)
    guards: list[tuple[int, r.GuardrailSettled]] = attrs.field(factory=list)
    requested: list[tuple[int, r.ApprovalRequested]] = attrs.field(factory=list)
    verdicts: list[tuple[int, r.VerdictGiven]] = attrs.field(factory=list)

    @property
    def call_id(self) -> str:
        return self.call.call_id

    @property
    def status(self) -> str | None:
        """The latest status, or None while there is none."""
        return self.settled[-1][1].outcome.status if self.settled else None


@attrs.define(eq=False)
class TurnSeen:
    """One turn of one run: what the model was asked and said, and the calls that came of it."""

    path: Path
    number: int
    n: int
    agent: str
    tools: frozenset[str]
    handoffs: frozenset[str] = frozenset()
    requested: list[tuple[int, r.ModelRequested]] = attrs.field(factory=list)
    failed: list[tuple[int, r.ModelFailed]] = attrs.field(factory=list)
    responded: list[tuple[int, r.ModelResponded]] = attrs.field(factory=list)
    calls: list[CallSeen] = attrs.field(factory=list)
    repeats: list[ToolCall | HandoffCall] = attrs.field(factory=list)
    """Calls asked for again under their old id, with the same tool and arguments."""
    conflicts: list[ToolCall | HandoffCall] = attrs.field(factory=list)
    unnamed: bool = False
    accepted: list[int] = attrs.field(factory=list)


@attrs.define(eq=False)
class RunSeen:
    """One run of the tree: its entries, turns and ends."""

    path: Path
    began: list[int] = attrs.field(factory=list)
    """Where its entries begin: `RunStarted` and each `RunResumed`."""
    limits: list[tuple[int, int | None]] = attrs.field(factory=list)
    turns: list[TurnSeen] = attrs.field(factory=list)
    ended: list[tuple[int, r.RunEnded]] = attrs.field(factory=list)
    guards: list[tuple[int, r.GuardrailSettled]] = attrs.field(factory=list)
    handed: list[tuple[int, r.HandedOff]] = attrs.field(factory=list)
    known: dict[str, ToolCall | HandoffCall] = attrs.field(factory=dict)
    agent: str = ""


_CALLS = (ToolCall, HandoffCall)


class Reading:
    """*evidence* with its log read: runs by path, calls by path and id, turns in order."""

    def __init__(self, evidence: Observation) -> None:
        self.evidence = evidence
        self.records = evidence.records
        self.runs: dict[Path, RunSeen] = {}
        self.calls: dict[tuple[Path, str], CallSeen] = {}
        self.turns: list[TurnSeen] = []
        self.strays: list[tuple[int, r.Record]] = []
        """Records about calls that no response asked for, or of runs that never began."""
        for n, record in enumerate(evidence.records):
            read = _READERS.get(type(record))
            if read is not None:
                read(self, n, record)

    def forget(self) -> None:
        """Let go what was read: calls and turns hold each other, and only the collector would find them."""
        for turn in self.turns:
            turn.calls.clear()

    @property
    def root(self) -> RunSeen | None:
        """The run that was asked for."""
        return self.runs.get(())

    @property
    def started(self) -> Iterator[CallSeen]:
        """The calls that started."""
        return (call for call in self.calls.values() if call.started)

    @property
    def batches(self) -> Iterator[TurnSeen]:
        """The turns that have calls."""
        return (turn for turn in self.turns if turn.calls)

    def under(self, path: Path) -> Iterator[RunSeen]:
        """Return the run at *path* and those nested in it."""
        return (run for run in self.runs.values() if run.path[: len(path)] == path)

    def crashed_between(self, n: int, until: int) -> bool:
        """Tell whether the process died after record *n*, and before *until*."""
        return any(n < length <= until for length in self.evidence.crashes)

    def next_entry(self, path: Path, n: int) -> int:
        """Return where the entry of the run at *path* that record *n* is in is over, by its next beginning."""
        run = self.runs.get(path)
        if run is None or len(run.began) == 1:
            return len(self.records)
        return min((began for began in run.began if began > n), default=len(self.records))

    @cached_property
    def definitions(self) -> Mapping[tuple[str, str], FunctionTool]:
        """The tools of every agent that can be reached: by agent's name and tool's name."""
        known = self.evidence.definitions
        return known if known is not None else definitions_of(self.evidence.agent)

    def tool(self, call: CallSeen) -> FunctionTool | None:
        """Return the definition of *call*'s tool, if the agents are known."""
        asked = call.call
        name = f"{asked.namespace}.{asked.name}" if asked.namespace else asked.name
        return self.definitions.get((call.turn.agent, name))

    def config(self, path: Path) -> RunConfig:
        """Return what the run at *path* runs with: the configuration of the nearest agent tool that has its own."""
        for depth in range(len(path), 0, -1):
            call = self.calls.get((path[: depth - 1], path[depth - 1]))
            tool = self.tool(call) if call is not None else None
            if tool is not None and isinstance(tool.body, AgentCall) and tool.body.run_config is not None:
                found: RunConfig = tool.body.run_config
                return found
        return self.evidence.config

    def agent_named(self, name: str) -> Agent[Any, Any] | None:
        """Return the reachable agent of that name."""
        return self._agents.get(name)

    @cached_property
    def _agents(self) -> Mapping[str, Agent[Any, Any]]:
        return {agent.name: agent for agent in agents_of(self.evidence.agent)}

    @cached_property
    def bodies(self) -> Mapping[tuple[Path, str], list[BodySeen]]:
        """Executions by path and call id; empty where they weren't watched."""
        found: dict[tuple[Path, str], list[BodySeen]] = {}
        for body in self.evidence.bodies or ():
            found.setdefault((body.path, body.call_id), []).append(body)
        return found

    @cached_property
    def from_above(self) -> list[tuple[CallSeen, int, r.CallSettled]]:
        """The calls that ended because something around them was ended, with the places of the records that say so."""
        return [
            (call, n, record)
            for call in self.calls.values()
            for n, record in call.settled
            if record.outcome.cancelled_by in FROM_ABOVE and record.outcome.status == "cancelled"
        ]

    # -- reading, record by record

    def _entry(self, n: int, record: r.RunStarted | r.RunResumed) -> None:
        run = self.runs.get(record.path)
        if run is None:
            run = self.runs[record.path] = RunSeen(record.path)
        run.began.append(n)
        run.limits.append((n, record.max_turns))
        if isinstance(record, r.RunStarted):
            run.agent = record.agent

    def _turn(self, n: int, record: r.TurnStarted) -> None:
        run = self.runs.get(record.path)
        turn = TurnSeen(record.path, record.turn, n, record.agent, frozenset(record.tools), frozenset(record.handoffs))
        self.turns.append(turn)
        if run is None:
            self.strays.append((n, record))
        else:
            run.turns.append(turn)

    def _at(self, n: int, record: r.Record) -> TurnSeen | None:
        run = self.runs.get(record.path)
        if run is None or not run.turns:
            self.strays.append((n, record))
            return None
        return run.turns[-1]

    def _requested(self, n: int, record: r.ModelRequested) -> None:
        if (turn := self._at(n, record)) is not None:
            turn.requested.append((n, record))

    def _failed(self, n: int, record: r.ModelFailed) -> None:
        if (turn := self._at(n, record)) is not None:
            turn.failed.append((n, record))

    def _responded(self, n: int, record: r.ModelResponded) -> None:
        turn = self._at(n, record)
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
                (turn.repeats if _same(earlier, item) else turn.conflicts).append(item)
                continue
            known[item.call_id] = item
            if isinstance(item, ToolCall):
                call = CallSeen(record.path, turn, len(turn.calls), item)
                turn.calls.append(call)
                self.calls[record.path, item.call_id] = call

    def _of_call(self, n: int, record: Any) -> None:
        call = self.calls.get((record.path, record.call_id))
        if call is None:
            self.strays.append((n, record))
        elif isinstance(record, r.ItemReleased):
            call.released.append(n)
        else:
            getattr(call, _PLACES[type(record)]).append((n, record))

    def _guard(self, n: int, record: r.GuardrailSettled) -> None:
        if record.call_id is not None:
            call = self.calls.get((record.path, record.call_id))
            if call is None:
                self.strays.append((n, record))
            else:
                call.guards.append((n, record))
        elif (run := self.runs.get(record.path)) is not None:
            run.guards.append((n, record))

    def _accepted(self, n: int, record: r.BatchEnded) -> None:
        if (turn := self._at(n, record)) is not None:
            turn.accepted.append(n)

    def _handed(self, n: int, record: r.HandedOff) -> None:
        if (run := self.runs.get(record.path)) is not None:
            run.handed.append((n, record))

    def _ended(self, n: int, record: r.RunEnded) -> None:
        run = self.runs.get(record.path)
        if run is None:
            self.strays.append((n, record))
        else:
            run.ended.append((n, record))


_PLACES: dict[type, str] = {
    r.CallStarted: "started",
    r.BodyEnded: "bodies_ended",
    r.CallSettled: "settled",
    r.ApprovalRequested: "requested",
    r.VerdictGiven: "verdicts",
}
_READERS: dict[type, Callable[[Reading, int, Any], None]] = {
    r.RunStarted: Reading._entry,
    r.RunResumed: Reading._entry,
    r.TurnStarted: Reading._turn,
    r.ModelRequested: Reading._requested,
    r.ModelFailed: Reading._failed,
    r.ModelResponded: Reading._responded,
    r.GuardrailSettled: Reading._guard,
    r.BatchEnded: Reading._accepted,
    r.HandedOff: Reading._handed,
    r.RunEnded: Reading._ended,
    r.ItemReleased: Reading._of_call,
    **dict.fromkeys(_PLACES, Reading._of_call),
}


def _same(a: ToolCall | HandoffCall, b: ToolCall | HandoffCall) -> bool:
    if type(a) is not type(b) or a.name != b.name:
        return False
    if isinstance(a, ToolCall) and isinstance(b, ToolCall) and a.namespace != b.namespace:
        return False
    return a.arguments == b.arguments or plain_json(a.arguments) == plain_json(b.arguments)


@lru_cache(4096)
def plain_json(text: str) -> str:
    """Return JSON *text* with sorted keys and no spaces, so that equal values are equal texts; itself if it isn't any.

    An object that names a key twice isn't any: which of the values was meant can't be told.
    """
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_refuse)
        return "json " + json.dumps(value, sort_keys=True, separators=(",", ":"))
    except (ValueError, RecursionError):
        return "text " + text


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice")
    return found


def _refuse(constant: str) -> Any:
    raise ValueError(constant)


def agents_of(agent: Agent[Any, Any] | None) -> list[Agent[Any, Any]]:
    """Return *agent* and every agent that can be reached from it, by handoffs and agent tools; each once."""
    found: list[Agent[Any, Any]] = []
    todo = [agent] if agent is not None else []
    while todo:
        one = todo.pop()
        if any(one is known for known in found):
            continue
        found.append(one)
        todo.extend(target_of(entry).agent for entry in one.handoffs)
        todo.extend(tool.body.agent for tool in one.tools if isinstance(tool.body, AgentCall))
    return found


def definitions_of(agent: Agent[Any, Any] | None) -> dict[tuple[str, str], FunctionTool]:
    """Return the tools of all reachable agents by agent's and tool's (qualified) name; of two the later one."""
    agents: Iterable[Agent[Any, Any]] = agents_of(agent)
    return {(one.name, tool.qualified_name): tool for one in agents for tool in one.tools}
