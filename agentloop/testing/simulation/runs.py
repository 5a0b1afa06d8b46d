"""Run worlds: a script, tool behaviors, a cancellation and a tape make a run that repeats itself.

A `World` is data. `run` runs it on both backends, streamed and plain; `run_one` runs it once. Time is virtual and
begins at `EPOCH`; ids are counted; worker threads don't start, or run line by line (see `event_loop`). Application
code that reads a clock or draws random numbers itself is not repeated: it should use `anyio.current_time()` instead.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import attrs

from agentloop.abc import LateResult, StillRunning
from agentloop.agents import Agent
from agentloop.events import CallSettled, Event
from agentloop.exceptions import UserValueError
from agentloop.model_events import ModelRequest
from agentloop.records import Record
from agentloop.results import RunResult
from agentloop.spans import Span
from agentloop.testing.simulation._driven_run import SimulatedRun, simulate
from agentloop.testing.simulation._simulated_parts import EPOCH, Behavior, Body, BodyRun, CleanupRun
from agentloop.testing.simulation._stepping import Stepped
from agentloop.testing.simulation.event_loop import BACKENDS, Backend, Deadlock
from agentloop.testing.simulation.schedules import Choices, Recorder, Scheduler, Tape, tape_of
from agentloop.testing.simulation.world import CancelAt, ExternalAnswer, Mode, Order, Steering, Verdict, World

__all__ = [
    "EPOCH",
    "ExternalAnswer",
    "Behavior",
    "Body",
    "BodyRun",
    "CancelAt",
    "CleanupRun",
    "Mode",
    "Order",
    "Steering",
    "Verdict",
    "World",
    "WorldRun",
    "WorldRuns",
    "run",
    "run_one",
]


@attrs.frozen(kw_only=True, eq=False)
class WorldRun:
    """One run of a world: on one backend, streamed or plain. Exactly one of result, error and cancelled is set.

    Attributes:
        records: The run's log, also of a run that failed.
        result: The result that the run returned.
        error: The error that it raised; a `Deadlock` if all its tasks waited for ever.
        run_data: The result, or the run data that the error had when it was raised: a script may raise one error in
            several runs, and the error keeps the data of the last.
        cancelled: True if the caller's cancellation came out of the run.
        calls: The outcome of each call of the run itself, in model order, if there is a result or an error with data.
        requests: The requests to the models, in order, those of nested runs too; `asked_at`: their virtual times.
        events: The events that a streamed run's consumer read.
        bodies: Every body that began, in order.
        cleanups: Every block of cleanup that began in a body or a resource, where the body reports it.
        agent, context, hooks, session, journal: The objects that the run got.
        stamps: One for each record, to compare with those of bodies.
        pending: Path, call id and count of native cancellations that were still counted in a call's task when it
            settled.
        spans: `("start" or "end", span)`, in order.
        late, still_running: The reports that instruments received.
        unread: The unread events when each of a streamed run's own turns began: record number and count.
        choices: The number of candidates and the chosen index at each choice; `tape` repeats them.
        trace: The labels of the chosen waiters at the gate, or tasks, in order.
        chosen_at: The number of records at each choice.
        steps: The number of task steps.
        cancelled_at: The step before which the cancellation came; None if the run was over before.
        mark: The number of records at that moment.
        cancelling: Native cancellations pending in the caller's task afterwards.
        to_end_after: The number of records when its reader left, or cancelled it after the turn; else None.
        acknowledged: The ids of the inputs of `World.steering` that the run took, in this order.
        entries: The number of calls of `Runner.run`: the first and one for each resume.
        left: A description of each thing that outlived the run.
        seconds: Its duration, in virtual time.
        cancelled_at_time, ended_at: Times on the virtual clock.
        open_responses: Answers of scripted models that were not closed.
        script_ran_out: True if a model was asked once more than its script has steps.
        one_step: Functions that would have run in worker threads, sync bodies above all, and were one step each.
        lines: The lines of functions that ran line by line, in order: the number of records, and the line.
        waited_at: Lines from which a thread didn't come back in time. Such a run followed no schedule.
        stuck_at: The last known lines of threads that didn't end at all.
    """

    world: World = attrs.field(repr=False)
    backend: Backend
    streamed: bool
    records: tuple[Record, ...] = attrs.field(repr=False)
    result: RunResult[Any] | None = attrs.field(default=None, repr=False)
    error: BaseException | None = None
    run_data: Any = attrs.field(default=None, repr=False)
    cancelled: bool = False
    calls: tuple[CallSettled, ...] = attrs.field(default=(), repr=False)
    requests: tuple[ModelRequest, ...] = attrs.field(default=(), repr=False)
    asked_at: tuple[float, ...] = attrs.field(default=(), repr=False)
    events: tuple[Event, ...] = attrs.field(default=(), repr=False)
    bodies: tuple[BodyRun, ...] = attrs.field(default=(), repr=False)
    cleanups: tuple[CleanupRun, ...] = attrs.field(default=(), repr=False)
    agent: Agent[Any, Any] = attrs.field(repr=False)
    context: Any = attrs.field(default=None, repr=False)
    hooks: Any = attrs.field(default=None, repr=False)
    session: Any = attrs.field(default=None, repr=False)
    journal: Any = attrs.field(default=None, repr=False)
    stamps: tuple[int, ...] = attrs.field(default=(), repr=False)
    pending: tuple[tuple[tuple[str, ...], str, int], ...] = attrs.field(default=(), repr=False)
    spans: tuple[tuple[str, Span], ...] = attrs.field(default=(), repr=False)
    late: tuple[LateResult, ...] = attrs.field(default=(), repr=False)
    still_running: tuple[StillRunning, ...] = attrs.field(default=(), repr=False)
    unread: tuple[tuple[int, int], ...] = attrs.field(default=(), repr=False)
    choices: Choices = attrs.field(default=(), repr=False)
    trace: tuple[str, ...] = attrs.field(default=(), repr=False)
    chosen_at: tuple[int, ...] = attrs.field(default=(), repr=False)
    steps: int = attrs.field(default=0, repr=False)
    cancelled_at: int | None = attrs.field(default=None, repr=False)
    mark: int = attrs.field(default=0, repr=False)
    cancelling: int = attrs.field(default=0, repr=False)
    to_end_after: int | None = attrs.field(default=None, repr=False)
    acknowledged: tuple[str, ...] = attrs.field(default=(), repr=False)
    entries: int = attrs.field(default=1, repr=False)
    left: tuple[str, ...] = attrs.field(default=(), repr=False)
    seconds: float = attrs.field(default=0.0, repr=False)
    cancelled_at_time: float | None = attrs.field(default=None, repr=False)
    ended_at: float = attrs.field(default=0.0, repr=False)
    open_responses: int = attrs.field(default=0, repr=False)
    script_ran_out: bool = attrs.field(default=False, repr=False)
    one_step: tuple[str, ...] = attrs.field(default=(), repr=False)
    lines: tuple[tuple[int, str], ...] = attrs.field(default=(), repr=False)
    waited_at: tuple[str, ...] = attrs.field(default=(), repr=False)
    stuck_at: tuple[str, ...] = attrs.field(default=(), repr=False)

    @property
    def tape(self) -> tuple[int, ...]:
        """The shortest tape that repeats this run's schedule."""
        return tape_of(self.choices)

    def executions(self, tool: str) -> int:
        """Return how many bodies of *tool* began."""
        return sum(body.tool == tool for body in self.bodies)


@attrs.frozen(eq=False)
class WorldRuns:
    """The runs of one world. Properties are those of the first run: asyncio, plain, unless chosen otherwise."""

    world: World
    runs: tuple[WorldRun, ...]

    def of(self, backend: Backend | None = None, streamed: bool | None = None) -> tuple[WorldRun, ...]:
        """Return the runs on *backend*, and those that were or weren't *streamed*; None takes either."""
        return tuple(
            one
            for one in self.runs
            if (backend is None or one.backend == backend) and (streamed is None or one.streamed == streamed)
        )

    @property
    def records(self) -> tuple[Record, ...]:
        """The log of the first run."""
        return self.runs[0].records

    @property
    def result(self) -> RunResult[Any] | None:
        """The result of the first run."""
        return self.runs[0].result

    @property
    def error(self) -> BaseException | None:
        """The error of the first run."""
        return self.runs[0].error

    @property
    def cancelled(self) -> bool:
        """True if the first run was cancelled."""
        return self.runs[0].cancelled

    @property
    def calls(self) -> tuple[CallSettled, ...]:
        """The outcomes of the first run's calls."""
        return self.runs[0].calls

    @property
    def context(self) -> Any:
        """The application's object of the first run."""
        return self.runs[0].context

    def executions(self, tool: str) -> int:
        """Return how many bodies of *tool* began, in the run with the most."""
        return max(one.executions(tool) for one in self.runs)


def run(
    world: World,
    *,
    backends: Sequence[Backend] = BACKENDS,
    modes: Sequence[Mode] = ("plain", "streamed"),
) -> WorldRuns:
    """Run *world* on each backend and in each mode.

    Raises:
        UserError: inside a running event loop: worlds run in sync code.
    """
    if not backends or not modes:
        raise UserValueError("run: expected at least one backend and one mode")
    return WorldRuns(
        world,
        tuple(run_one(world, backend=backend, streamed=mode == "streamed") for mode in modes for backend in backends),
    )


def run_one(
    world: World, *, backend: Backend = "asyncio", streamed: bool = False, scheduler: Scheduler | None = None
) -> WorldRun:
    """Run *world* once, and return its `WorldRun`. *scheduler* chooses in place of its tape.

    An error of the run is not raised here: it is the `error` of the returned value.

    Raises:
        UserError: inside a running event loop: worlds run in sync code.
    """
    recorder = Recorder(scheduler if scheduler is not None else Tape(world.tape))
    driven = simulate(world, backend=backend, streamed=streamed, scheduler=recorder)
    return world_run_of(world, backend, streamed, recorder, driven)


def world_run_of(world: World, backend: Backend, streamed: bool, recorder: Recorder, driven: SimulatedRun) -> WorldRun:
    """Return the `WorldRun` of *driven*, a run that is over."""
    stepped: Stepped = driven.stepped
    watch = driven.watch
    result: RunResult[Any] | None = stepped.value
    data = result if result is not None else getattr(stepped.error, "run_data", None)
    return WorldRun(
        world=world,
        backend=backend,
        streamed=streamed,
        records=tuple(watch.records),
        result=result,
        error=stepped.error,
        run_data=data,
        cancelled=stepped.cancelled,
        calls=data.calls if data is not None else (),
        requests=tuple(driven.models.requests) if driven.models is not None else (),
        asked_at=tuple(driven.models.asked_at) if driven.models is not None else (),
        events=tuple(driven.events),
        bodies=tuple(attrs.evolve(body) for body in watch.bodies),
        cleanups=tuple(attrs.evolve(one) for one in watch.cleanups),
        agent=driven.agent,
        context=driven.context,
        hooks=driven.options.get("hooks"),
        session=driven.options.get("session"),
        journal=driven.options.get("journal"),
        stamps=tuple(watch.stamps),
        pending=tuple(watch.pending),
        spans=tuple(watch.spans),
        late=tuple(watch.late),
        still_running=tuple(watch.still_running),
        unread=tuple(watch.unread),
        choices=tuple(recorder.choices),
        trace=tuple(recorder.chosen),
        chosen_at=tuple(recorder.marks),
        steps=stepped.steps,
        cancelled_at=stepped.cancelled_at,
        mark=stepped.mark,
        cancelling=stepped.cancelling,
        to_end_after=driven.to_end_after,
        acknowledged=tuple(driven.acknowledged),
        entries=driven.entries,
        left=_describe_leftovers(driven),
        seconds=stepped.seconds,
        cancelled_at_time=driven.cancelled_at_time,
        ended_at=driven.ended_at,
        open_responses=driven.models.open if driven.models is not None else 0,
        script_ran_out=driven.models is not None and driven.models.ran_out,
        one_step=tuple(driven.switching.one_step),
        lines=tuple(driven.switching.trace),
        waited_at=tuple(driven.switching.dropped),
        stuck_at=tuple(driven.switching.stuck),
    )


def _describe_leftovers(driven: SimulatedRun) -> tuple[str, ...]:
    """Describe each thing that outlived the run: tasks, tokens of capacities, thread slots, spans, model answers."""
    if isinstance(driven.stepped.error, Deadlock):
        return ()  # a deadlocked run was torn down, so leftovers say nothing about its cleanup
    left = list(driven.stepped.tasks_left)
    for limit in driven.capacities():
        if (held := limit.statistics().tokens_in_use) > 0:
            left.append(f"{held} tokens of {limit!r}")
    if driven.threads_held:
        left.append(f"{driven.threads_held} places of worker threads")
    spans = Counter(id(span) for what, span in driven.watch.spans if what == "start")
    spans.subtract(id(span) for what, span in driven.watch.spans if what == "end")
    left += [
        f"span {span.kind} {span.name}" for what, span in driven.watch.spans if what == "start" and spans[id(span)]
    ]
    if driven.models is not None and driven.models.open:
        left.append(f"{driven.models.open} open answers of models")
    return tuple(left)
