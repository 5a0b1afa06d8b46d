"""What a world puts in the place of the real: the door of side effects, models by path, a watch over it all."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeAlias

import anyio
import attrs
from anyio.lowlevel import checkpoint

from agentloop import effects as e
from agentloop import records as r
from agentloop._engine.run_stream import RunStream
from agentloop._engine.runtime.event_buffer import EventBuffer
from agentloop.abc import Effects, Instrument, LateResult, Model, StillRunning
from agentloop.agents import Agent
from agentloop.exceptions import UserError
from agentloop.handoffs import target_of
from agentloop.model_events import ModelRequest
from agentloop.spans import Span
from agentloop.testing.scripted import ScriptedModel, Step
from agentloop.testing.simulation._lines import LABEL
from agentloop.testing.simulation._observers import stamp
from agentloop.testing.simulation.gate import Gate
from agentloop.tools import AgentCall

EPOCH = 1_000_000_000.0
"""The wall clock's reading, in seconds, when a run with virtual time begins."""


@attrs.frozen(eq=False)
class Body:
    """What a behaviour is given: which call it stands in for, and what it may do."""

    path: tuple[str, ...]
    call_id: str
    tool: str
    arguments: str
    attempt: int
    real: Callable[[], Awaitable[Any]] = attrs.field(repr=False)
    """Runs the tool's own body, in this task, and returns its value."""
    _effects: SimulatedEffects = attrs.field(repr=False, alias="effects")

    async def point(self, label: str = "") -> None:
        """Wait until the schedule lets this body go on: at the gate if the world has one, else a checkpoint."""
        await self._effects.point(" ".join(filter(None, (_place(self.path, f"body {self.call_id}"), label))))

    async def sleep(self, seconds: float) -> None:
        """Wait in virtual time."""
        await anyio.sleep(seconds)

    def reporting(self) -> None:
        """Note that the body reports now."""
        self._effects.reporting(self.path, self.call_id)

    def entered(self) -> int:
        """Return a number for a resource that is being entered: a later one's is larger."""
        self._effects.entered += 1
        return self._effects.entered

    @contextmanager
    def cleaning(self, section: str, entered: int | None = None) -> Iterator[None]:
        """Note that the block is cleanup, and whether it came to its end; of a resource, when that was *entered*."""
        with self._effects.cleaning(self.path, self.call_id, section, entered):
            yield


Behavior: TypeAlias = Callable[[Body], Awaitable[Any]]


@attrs.define(eq=False, kw_only=True)
class BodyRun:
    """One execution of a body. `began` and `ended` count the records there were; times are on the virtual clock; stamps
    tell it apart from what else was watched.
    """

    path: tuple[str, ...]
    call_id: str
    tool: str
    arguments: str = ""
    attempt: int = 1
    began: int = 0
    ended: int | None = None
    ending: str | None = None
    """`"value"`, `"error"`, `"cancelled"`, or None where it never ended."""
    real: bool = False
    """Whether the tool's own body ran, and not only a behaviour in its place."""
    began_at: float = 0.0
    ended_at: float | None = None
    stamps: tuple[int, int] = (0, 0)
    """Of its beginning and of its end."""
    reports: tuple[float, ...] = ()
    """When it reported, on the virtual clock."""


@attrs.define(eq=False)
class CleanupRun:
    """A block of cleanup in a body, or in a resource it holds. `began` and `ended` count the records there were."""

    path: tuple[str, ...]
    call_id: str
    section: str
    """`"ctx.cleanup"` or `"resource exit"`, as in `CleanupCut`."""
    began: int
    ended: int | None = None
    entered: int | None = None
    """Of a resource: a number that is larger than those of all that had been entered before it."""


def _place(path: tuple[str, ...], what: str) -> str:
    return " ".join(("/".join(path), what)) if path else what


class Watch(Instrument):
    """Keeps what instruments are told."""

    def __init__(self) -> None:
        self.records: list[r.Record] = []
        self.stamps: list[int] = []
        """One for each record."""
        self.pending: list[tuple[tuple[str, ...], str, int]] = []
        """Calls in whose task native cancellations were counted when they settled, though nobody ended them."""
        self.bodies: list[BodyRun] = []
        self.cleanups: list[CleanupRun] = []
        self.late: list[LateResult] = []
        self.still_running: list[StillRunning] = []
        self.spans: list[tuple[str, Span]] = []
        self.unread: list[tuple[int, int]] = []
        """How many events were unread when each turn of a streamed run began: record number and count."""
        self.stream: RunStream[Any] | None = None
        self.started: dict[tuple[tuple[str, ...], str], r.CallStarted] = {}
        self.at_work: dict[tuple[str, ...], str] = {}
        """The agent at work in each run of the tree, by path."""

    def on_record(self, record: r.Record) -> None:
        """Keep *record*."""
        self.records.append(record)
        self.stamps.append(stamp())
        if isinstance(record, r.CallStarted):
            self.started[record.path, record.call_id] = record
        elif isinstance(record, r.CallSettled):
            if count := _cancelling():
                self.pending.append((record.path, record.call_id, count))
        elif isinstance(record, r.RunStarted):
            self.at_work[record.path] = record.agent
        elif isinstance(record, r.HandedOff):
            self.at_work[record.path] = record.target_agent
        elif isinstance(record, r.TurnStarted) and not record.path and (events := self._events()) is not None:
            self.unread.append((len(self.records) - 1, events.unread))

    def goes_on_from(self, records: Sequence[r.Record]) -> None:
        """Take *records*, the first of which are those kept, in their place."""
        self.records[:] = records
        self.stamps += [stamp() for _ in records[len(self.stamps) :]]

    def _events(self) -> EventBuffer | None:
        return None if self.stream is None else self.stream._events

    def on_late_result(self, report: LateResult) -> None:
        """Keep *report*."""
        self.late.append(report)

    def on_still_running(self, report: StillRunning) -> None:
        """Keep *report*."""
        self.still_running.append(report)

    def on_span_start(self, span: Span) -> None:
        """Keep *span*."""
        self.spans.append(("start", span))

    def on_span_end(self, span: Span) -> None:
        """Keep *span*."""
        self.spans.append(("end", span))


def _cancelling() -> int:
    """Return how many native cancellations of the current task are pending that no scope around it has asked for."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # another backend's
        return 0
    if task is None or not task.cancelling() or anyio.current_effective_deadline() == -math.inf:
        return 0
    return task.cancelling()


class SimulatedEffects:
    """The door of a world: effects wait at its gate, ids are counted, and behaviours stand in for bodies."""

    def __init__(
        self, watch: Watch, behaviors: Mapping[str, Behavior], gate: Gate | None, inner: Effects | None
    ) -> None:
        self._watch = watch
        self._behaviors = behaviors
        self._gate = gate
        self._inner = inner
        self.ids = 0
        """How many ids were drawn."""
        self.entered = 0
        """How many resources were entered."""

    def wall(self) -> float:
        """Return the virtual wall clock, in seconds, to the microsecond: sums of floats differ between backends."""
        return EPOCH + round(anyio.current_time(), 6)

    async def point(self, label: str) -> None:
        """Wait to be let through."""
        if self._gate is not None:
            await self._gate.point(label)
        else:
            await checkpoint()

    @contextmanager
    def cleaning(self, path: tuple[str, ...], call_id: str, section: str, entered: int | None = None) -> Iterator[None]:
        """Keep whether the block, which is cleanup, comes to its end."""
        records = self._watch.records
        seen = CleanupRun(path, call_id, section, len(records), entered=entered)
        self._watch.cleanups.append(seen)
        yield
        seen.ended = len(records)

    def reporting(self, path: tuple[str, ...], call_id: str) -> None:
        """Keep that the latest body of this call reports now."""
        body = next(one for one in reversed(self._watch.bodies) if (one.path, one.call_id) == (path, call_id))
        body.reports = (*body.reports, anyio.current_time())

    async def perform(self, effect: Any) -> Any:
        """Do *effect*, when the schedule lets it."""
        match effect:
            case e.Now():
                return self.wall()
            case e.NewId():
                self.ids += 1
                return f"id{self.ids}"
            case e.Random():
                return 0.5
            case e.CallTool():
                return await self._call_tool(effect)
            case e.CallModel(path, turn, attempt):
                await self._enter(_place(path, f"model {turn}.{attempt}"))
            case e.Guard(path, stage, name, call_id):
                await self._enter(_place(path, " ".join(filter(None, ("guard", stage, name, call_id)))))
            case e.LoadSession(path):
                await self._enter(_place(path, "load session"))
            case e.SaveSession(path):
                await self._enter(_place(path, "save session"))
            case _:
                pass
        return await self._do(effect)

    async def _enter(self, label: str) -> None:
        if self._gate is not None:
            await self._gate.point(label)

    async def _do(self, effect: Any) -> Any:
        if self._inner is not None:
            return await self._inner.perform(effect)
        if isinstance(effect, e.Sleep):
            await anyio.sleep(effect.seconds)
            return None
        return await effect.do()

    async def _call_tool(self, effect: e.CallTool) -> Any:
        watch = self._watch
        started = watch.started.get((effect.path, effect.call_id))
        tool, arguments = (started.tool, started.arguments) if started is not None else ("", "")
        seen = BodyRun(
            path=effect.path,
            call_id=effect.call_id,
            tool=tool,
            arguments=arguments,
            attempt=effect.attempt,
            began=len(watch.records),
            began_at=anyio.current_time(),
            stamps=(stamp(), 0),
        )
        watch.bodies.append(seen)
        ending = "cancelled"
        label = LABEL.set(_place(effect.path, f"body {effect.call_id}"))
        try:
            value = await self._body(effect, seen)
            ending = "value"
            return value
        except Exception:
            ending = "error"
            raise
        finally:
            LABEL.reset(label)
            seen.ended, seen.ending, seen.ended_at = len(watch.records), ending, anyio.current_time()
            seen.stamps = (seen.stamps[0], stamp())

    async def _body(self, effect: e.CallTool, seen: BodyRun) -> Any:
        async def real() -> Any:
            seen.real = True
            return await self._do(effect)

        behavior = self._behaviors.get("/".join((*effect.path, effect.call_id))) or self._behaviors.get(seen.tool)
        if behavior is None:
            await self._enter(_place(effect.path, f"body {effect.call_id}"))
            return await real()
        return await behavior(
            Body(effect.path, effect.call_id, seen.tool, seen.arguments, effect.attempt, real, effects=self)
        )


class SimulatedModels(Model):
    """The models of a world: one script for each path, else the model of the agent that is at work there."""

    def __init__(
        self, agent: Agent[Any, Any], watch: Watch, script: tuple[Step, ...], nested: Mapping[str, tuple[Step, ...]]
    ) -> None:
        self._watch = watch
        self._agents = {one.name: one for one in reversed(agents_of(agent))}
        self._scripts = {path: ScriptedModel(steps) for path, steps in (("", script), *nested.items())}
        self.requests: list[ModelRequest] = []
        self.asked_at: list[float] = []
        """When each was made, on the virtual clock."""
        self.open = 0
        """Answers under way."""

    @asynccontextmanager
    async def _open_response(self, model: Model, request: ModelRequest) -> AsyncIterator[Any]:
        self.requests.append(request)
        self.asked_at.append(anyio.current_time())
        self.open += 1
        try:
            async with model.stream(request) as events:
                yield events
        finally:
            self.open -= 1

    @property
    def ran_out(self) -> bool:
        """Whether a script was asked for more than it has."""
        return any(script.ran_out for script in self._scripts.values())

    def stream(self, request: ModelRequest) -> Any:
        """Ask the path's script, or the agent's own model."""
        return self._open_response(self._model(request), request)

    def _model(self, request: ModelRequest) -> Model:
        path = "/".join(request.path)
        if path in self._scripts:
            return self._scripts[path]
        name = self._watch.at_work.get(tuple(request.path), "")
        agent = self._agents.get(name)
        if agent is None or not isinstance(agent.model, Model):
            raise UserError(
                f"the world has no script for the nested run {path!r} (agent {name!r}): give it in `nested`"
            )
        return agent.model


def agents_of(agent: Agent[Any, Any]) -> list[Agent[Any, Any]]:
    """Return *agent* and every agent that can be reached from it, each once."""
    found: list[Agent[Any, Any]] = []
    unseen = [agent]
    while unseen:
        one = unseen.pop(0)
        if any(one is known for known in found):
            continue
        found.append(one)
        unseen += [tool.body.agent for tool in one.tools if isinstance(tool.body, AgentCall)]
        unseen += [target_of(entry).agent for entry in one.handoffs]
    return found
