"""The simulated parts of a run: the door of side effects, the models by path, and an instrument that keeps everything.

Does not know how a schedule chooses (`gate`) or how a run is judged.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeAlias

import anyio
import attrs
from anyio.lowlevel import checkpoint

from agentloop import records as r
from agentloop._engine.runtime.event_buffer import EventBuffer
from agentloop.abc import Effects, Instrument, LateResult, Model, StillRunning
from agentloop.abc import effects as e
from agentloop.agents import Agent
from agentloop.exceptions import UserError
from agentloop.handoffs import target_of
from agentloop.model_events import ModelFeature, ModelRequest
from agentloop.run._stream import RunStream
from agentloop.spans import Span
from agentloop.testing.scripted import ALL_FEATURES, ScriptedModel, Step
from agentloop.testing.simulation._lines import LABEL
from agentloop.testing.simulation.gate import Gate
from agentloop.tools import AgentCall

EPOCH = 1_000_000_000.0
"""The wall clock's reading, in seconds, when a run with virtual time begins."""

_stamps = itertools.count(1)


def stamp() -> int:
    """Return a number that is larger than all earlier ones of this process: it orders the notes of all observers."""
    return next(_stamps)


@attrs.frozen(eq=False)
class Body:
    """The argument of a behavior: the call that it runs in place of, and the operations it may use."""

    path: tuple[str, ...]
    call_id: str
    tool: str
    arguments: str
    attempt: int
    real: Callable[[], Awaitable[Any]] = attrs.field(repr=False)
    """Runs the tool's own body, in this task, and returns its value."""
    _effects: SimulatedEffects = attrs.field(repr=False, alias="effects")

    async def point(self, label: str = "") -> None:
        """Wait until the schedule lets this body continue: at the gate if the world has one, else a checkpoint."""
        await self._effects.point(" ".join(filter(None, (_place(self.path, f"body {self.call_id}"), label))))

    async def sleep(self, seconds: float) -> None:
        """Wait in virtual time."""
        await anyio.sleep(seconds)

    def reporting(self) -> None:
        """Note that the body reports now."""
        self._effects.reporting(self.path, self.call_id)

    def entered(self) -> int:
        """Return a number for a resource that is being entered, larger than those of earlier ones."""
        self._effects.entered += 1
        return self._effects.entered

    @contextmanager
    def cleaning(self, section: str, entered: int | None = None) -> Iterator[None]:
        """Note that the block is cleanup, and whether it was completed; for a resource, with its *entered* number."""
        with self._effects.cleaning(self.path, self.call_id, section, entered):
            yield


Behavior: TypeAlias = Callable[[Body], Awaitable[Any]]


@attrs.define(eq=False, kw_only=True)
class BodyRun:
    """One execution of a body. `began` and `ended` are numbers of records at that moment; times are on the virtual
    clock; stamps order it among all other observations. `SimulatedEffects` fills it in.
    """

    path: tuple[str, ...]
    call_id: str
    tool: str
    arguments: str = ""
    attempt: int = 1
    began: int = 0
    ended: int | None = None
    ending: str | None = None
    """`"value"`, `"error"`, `"cancelled"`, or None if it never ended."""
    real: bool = False
    """True once the tool's own body ran, and not only a behavior in its place."""
    began_at: float = 0.0
    ended_at: float | None = None
    stamps: tuple[int, int] = (0, 0)
    """The stamps of its beginning and of its end."""
    reports: tuple[float, ...] = ()
    """The virtual times of its progress reports."""


@attrs.define(eq=False)
class CleanupRun:
    """A block of cleanup in a body, or in a resource it holds. `began` and `ended` are numbers of records."""

    path: tuple[str, ...]
    call_id: str
    section: str
    """`"ctx.cleanup"` or `"resource exit"`, as in `CleanupCut`."""
    began: int
    ended: int | None = None
    entered: int | None = None
    """For a resource, its number in the order of entering; None for a body's own cleanup."""


def _place(path: tuple[str, ...], what: str) -> str:
    return " ".join(("/".join(path), what)) if path else what


class Watch(Instrument):
    """An instrument that keeps everything it receives, for the judges. The run writes it through its callbacks."""

    def __init__(self) -> None:
        self.records: list[r.Record] = []
        self.stamps: list[int] = []
        """One for each record."""
        self.pending: list[tuple[tuple[str, ...], str, int]] = []
        """Calls whose task still counted native cancellations when they settled, though no scope was cancelled."""
        self.bodies: list[BodyRun] = []
        self.cleanups: list[CleanupRun] = []
        self.late: list[LateResult] = []
        self.still_running: list[StillRunning] = []
        self.spans: list[tuple[str, Span]] = []
        self.unread: list[tuple[int, int]] = []
        """The unread events when each turn of a streamed run began: record number and count."""
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
            if count := _count_cancels():
                self.pending.append((record.path, record.call_id, count))
        elif isinstance(record, r.RunStarted):
            self.at_work[record.path] = record.agent
        elif isinstance(record, r.HandedOff):
            self.at_work[record.path] = record.target_agent
        elif isinstance(record, r.TurnStarted) and not record.path and (events := self._events()) is not None:
            self.unread.append((len(self.records) - 1, events.unread))

    def goes_on_from(self, records: Sequence[r.Record]) -> None:
        """Replace the kept records by *records*, which begin with them, and stamp the new ones."""
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


def _count_cancels() -> int:
    """Return the number of pending native cancellations of the current task; 0 if a scope around it is cancelled."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # another backend's
        return 0
    if task is None or not task.cancelling() or anyio.current_effective_deadline() == -math.inf:
        return 0
    return task.cancelling()


class SimulatedEffects:
    """The door of a world: effects wait at its gate, ids are counted, and behaviors replace bodies."""

    def __init__(
        self, watch: Watch, behaviors: Mapping[str, Behavior], gate: Gate | None, inner: Effects | None
    ) -> None:
        self._watch = watch
        self._behaviors = behaviors
        self._gate = gate
        self._inner = inner
        self.ids: int = 0
        """The number of ids given out."""
        self.entered = 0
        """The number of resources entered."""

    def wall(self) -> float:
        """Return the virtual wall clock, in seconds, to the microsecond: sums of floats differ between backends."""
        return EPOCH + round(anyio.current_time(), 6)

    async def point(self, label: str) -> None:
        """Wait at the gate under *label*; a checkpoint without a gate."""
        if self._gate is not None:
            await self._gate.point(label)
        else:
            await checkpoint()

    @contextmanager
    def cleaning(self, path: tuple[str, ...], call_id: str, section: str, entered: int | None = None) -> Iterator[None]:
        """Note a block of cleanup; its `ended` stays None if the block is left by an error."""
        records = self._watch.records
        seen = CleanupRun(path, call_id, section, len(records), entered=entered)
        self._watch.cleanups.append(seen)
        yield
        seen.ended = len(records)

    def reporting(self, path: tuple[str, ...], call_id: str) -> None:
        """Note the time of a progress report of the call's latest body."""
        body = next(one for one in reversed(self._watch.bodies) if (one.path, one.call_id) == (path, call_id))
        body.reports = (*body.reports, anyio.current_time())

    async def perform(self, effect: Any) -> Any:
        """Do *effect* once the schedule lets it, and return its result.

        Model calls, guardrails, session I/O and tool bodies without a behavior wait at the gate. The wall clock, ids
        and random numbers are deterministic and don't wait.
        """
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
    """The models of a world: one script for each path, otherwise the model of the agent at work there."""

    def __init__(
        self, agent: Agent[Any, Any], watch: Watch, script: tuple[Step, ...], nested: Mapping[str, tuple[Step, ...]]
    ) -> None:
        self._watch = watch
        self._agents = {one.name: one for one in reversed(agents_of(agent))}
        self._scripts = {path: ScriptedModel(steps) for path, steps in (("", script), *nested.items())}
        self.requests: list[ModelRequest] = []
        self.asked_at: list[float] = []
        """The virtual times of the requests."""
        self.open: int = 0
        """The number of answers that were opened and not closed."""

    @property
    def features(self) -> frozenset[ModelFeature]:
        """Every feature, as those of a script."""
        return ALL_FEATURES

    @asynccontextmanager
    async def _open_response(self, model: Model, request: ModelRequest) -> AsyncIterator[Any]:
        now = anyio.current_time()  # first: it raises where the loop is left, and the two lists belong together
        self.requests.append(request)
        self.asked_at.append(now)
        self.open += 1
        try:
            async with model.stream(request) as events:
                yield events
        finally:
            self.open -= 1

    @property
    def ran_out(self) -> bool:
        """True once a script got more requests than it has steps."""
        return any(script.ran_out for script in self._scripts.values())

    def stream(self, request: ModelRequest) -> Any:
        """Open the answer of the path's script, or of the agent's own model."""
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
    """Return *agent* and every agent reachable from it by agent tools and handoffs, each once."""
    found: list[Agent[Any, Any]] = []
    unseen = [agent]
    while unseen:
        one = unseen.pop(0)
        if any(one is known for known in found):
            continue
        found.append(one)
        unseen += [tool.body.agent for tool in one.functions if isinstance(tool.body, AgentCall)]
        unseen += [target_of(entry).agent for entry in one.handoffs]
    return found
