"""Run a world once: build its objects, run its agent over all pauses, and keep the observations.

Does not judge a run (`_findings`) and does not choose schedules (`schedules`).
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

import anyio
import attrs

from agentloop import spans
from agentloop._engine.runtime.live_run import loop_state
from agentloop.agents import Agent
from agentloop.config import RunConfig
from agentloop.events import AnswerRequested, Event
from agentloop.exceptions import InputRefusedError, StateError, UserError, UserTypeError
from agentloop.limits import Capacity
from agentloop.results import RunResult
from agentloop.run import Runner
from agentloop.run._stream import RunStream
from agentloop.testing.simulation._case_maker import maker_of
from agentloop.testing.simulation._lines import SWITCHING, Switching, count_as_own, monitor_lines
from agentloop.testing.simulation._reach import REACH
from agentloop.testing.simulation._simulated_parts import SimulatedEffects, SimulatedModels, Watch, agents_of
from agentloop.testing.simulation._stepping import Program, Stepped, run_stepped
from agentloop.testing.simulation.event_loop import Backend, Deadlock
from agentloop.testing.simulation.gate import Gate
from agentloop.testing.simulation.schedules import Recorder, first
from agentloop.testing.simulation.world import Steering, World
from agentloop.tools import PythonBody

MADE_PER_RUN = ("hooks", "session", "journal", "run_config")


@attrs.define(eq=False)
class SimulatedRun:
    """One run of a world under way, and the observations of it. `simulate` owns it; its program fills it in."""

    world: World
    agent: Agent[Any, Any]
    context: Any
    options: dict[str, Any]
    streamed: bool
    watch: Watch
    effects: SimulatedEffects
    models: SimulatedModels | None
    gate: Gate | None
    begin: Callable[[SimulatedRun], Awaitable[Any]] | None = None
    """Returns the input or state that the run begins with, in place of the world's input."""
    stepped: Stepped = attrs.field(factory=Stepped)
    events: list[Event] = attrs.field(factory=list)
    steered: int = 0
    """The number of acts of the world's steering that were tried."""
    acknowledged: list[str] = attrs.field(factory=list)
    """The ids of the inputs that the run took, in this order."""
    entries: int = 0
    switching: Switching = attrs.field(factory=lambda: Switching(False))
    to_end_after: int | None = None
    """The number of records when the reader left, or cancelled the run after its turn."""
    cancelled_at_time: float | None = None
    ended_at: float = 0.0
    threads_held: int = 0
    """Thread slots that were still taken when the run was over."""

    def mark(self) -> int:
        """Note the time of the cancellation, and return the number of records."""
        self.cancelled_at_time = anyio.current_time()
        return len(self.watch.records)

    async def program(self) -> RunResult[Any]:
        """Run the world's agent to its end; resume each pause that has a fitting verdict or answer."""
        token = spans._trace.set(spans.Trace(trace_id="trace"))
        switching = SWITCHING.set(self.switching)
        try:
            given: Any = self.world.input if self.begin is None else await self.begin(self)
            while True:
                result = await self._enter(given)
                if result.status != "interrupted" or (given := self._decide(result)) is None:
                    return result
        finally:
            SWITCHING.reset(switching)
            spans._trace.reset(token)
            self.ended_at = anyio.current_time()
            self.threads_held = len(loop_state().threads)

    async def _enter(self, given: Any) -> RunResult[Any]:
        self.entries += 1
        if not self.streamed:
            return await Runner.run(self.agent, given, context=self.context, **self.options)
        async with Runner.run_streamed(self.agent, given, context=self.context, **self.options) as stream:
            self.watch.stream = stream
            async for event in stream:
                self.events.append(event)
                name = type(event).__name__
                if name == self.world.reader_leaves:
                    self.to_end_after = len(self.watch.records)
                    break
                await self._act(stream, event)
                if name == self.world.reader_stops and self.to_end_after is None:
                    self.to_end_after = len(self.watch.records)
                    stream.cancel("after_turn")
                if self.world.slow_reader:
                    await self.effects.point("reader")
        return stream.result

    async def _act(self, stream: RunStream[Any], event: Event) -> None:
        """Give *stream* what the world has for it once its reader has read *event*, each when the schedule lets it."""
        for act in self._due_steering(len(self.events)):
            await self.effects.point(f"input {act.id}")
            with suppress(InputRefusedError):
                self._note(await _give(act, stream))
        if isinstance(event, AnswerRequested):
            asked = event.request
            for one in self.world.answers:
                if one.live and (one.path, one.call_id) == (asked.path, asked.call.call_id):
                    await self.effects.point(f"answer {one.call_id}")
                    with suppress(StateError, UserError):
                        await stream.answer(asked, one.value, error=one.error)

    def _note(self, taken: str | None) -> None:
        """Note the id of an input that was *taken*; a withdrawal has none."""
        if taken is not None:
            self.acknowledged.append(taken)

    def _due_steering(self, read: float) -> Iterator[Steering]:
        """Yield the acts that are due once *read* events were read, and count them as tried."""
        while self.steered < len(self.world.steering) and self.world.steering[self.steered].after <= read:
            self.steered += 1
            yield self.world.steering[self.steered - 1]

    def _decide(self, result: RunResult[Any]) -> Any:
        """Return the state to resume, with all fitting verdicts and answers given; None if none fits."""
        waiting = {(request.path, request.call.call_id): request for request in result.interruptions}
        fitting = [one for one in self.world.verdicts if (one.path, one.call_id) in waiting]
        answers = [one for one in self.world.answers if (one.path, one.call_id) in waiting]
        if not fitting and not answers:
            return None
        state, known = result.to_state(), len(self.watch.records)
        for answer in answers:
            with suppress(StateError, UserError):  # a second answer, or one that doesn't fit: the call still waits
                state.answer(waiting[answer.path, answer.call_id], answer.value, error=answer.error)
        if not fitting and len(state.records) == known:
            return None
        for act in self._due_steering(len(self.events) if self.streamed else math.inf):
            with suppress(InputRefusedError):
                self._note(_give(act, state))
        for verdict in fitting:
            request = waiting[verdict.path, verdict.call_id]
            if verdict.approved:
                state.approve(request, arguments=verdict.arguments, always=verdict.always)
            else:
                state.reject(request, message=verdict.message, always=verdict.always)
        # What is given outside of the run has the real time; here it must have the run's.
        at = self.effects.wall()
        decided = [*self.watch.records, *(one.replace(at=at) for one in state.records[known:])]
        state = type(state)(self.agent, decided, context=self.context)
        if self.world.serialize:
            codec = maker_of(self.world.agent).codec
            text = state.to_string(context_serializer=lambda _: None, codec=codec)  # the context is given again below
            state = type(state).from_string(self.agent, text, context=self.context, codec=codec)
        self.watch.goes_on_from(state.records)
        return state

    def capacities(self) -> Iterator[Capacity]:
        """Yield every capacity that a tool of the tree holds, once."""
        known: set[int] = set()
        for agent in agents_of(self.agent):
            for tool in agent.functions:
                for limit in tool.capacity:
                    if isinstance(limit, Capacity) and id(limit) not in known:
                        known.add(id(limit))
                        yield limit


def _give(act: Steering, run: Any) -> Any:
    """Do *act* with a stream or a state, which have the same methods, and return what the method returns."""
    return run.withdraw(act.id) if act.text is None else run.add_input(act.text, id=act.id, when=act.when)


def simulate(
    world: World,
    *,
    backend: Backend,
    streamed: bool,
    scheduler: Recorder,
    begin: Callable[[SimulatedRun], Awaitable[Any]] | None = None,
    around: Callable[[SimulatedRun], Awaitable[Any]] = SimulatedRun.program,
) -> SimulatedRun:
    """Run *world* once, from its input or the result of *begin*, and return the observations.

    *around* runs the program of the run that it is given, in place of that program.
    """
    gate = Gate(scheduler) if world.order == "gate" else None
    driven = _prepare_run(world, streamed, gate)
    driven.begin = begin
    scheduler.mark = driven.watch.records.__len__
    scheduler.is_off = lambda: bool(driven.switching.dropped)
    with ExitStack() as stack:
        if driven.switching.wanted:
            tools = [tool.body for agent in agents_of(driven.agent) for tool in agent.functions]
            count_as_own([body.fn for body in tools if isinstance(body, PythonBody)])
            stack.enter_context(monitor_lines())
            stack.callback(driven.switching.close)
        driven.stepped = _run_stepped(world, driven, partial(around, driven), backend, scheduler)
    if (reach := REACH.get()) is not None:
        reach.note(driven.watch.records, driven.watch.bodies)
    return driven


def _run_stepped(
    world: World, driven: SimulatedRun, program: Program, backend: Backend, scheduler: Recorder
) -> Stepped:
    gated = driven.gate is not None
    try:
        return run_stepped(
            program,
            backend=backend,
            at=world.cancel.step if world.cancel is not None else None,
            kind=world.cancel.kind if world.cancel is not None and backend == "asyncio" else "scope",
            scheduler=first if gated else scheduler,
            order="passes" if world.order == "gate" else world.order,
            mark=driven.mark,
            gate=driven.gate,
            waiting=world.cancel is not None and world.cancel.waiting,
        )
    except Deadlock as deadlock:
        return Stepped(error=deadlock)


def _prepare_run(world: World, streamed: bool, gate: Gate | None) -> SimulatedRun:
    agent = world.agent if isinstance(world.agent, Agent) else world.agent()
    if not isinstance(agent, Agent):
        raise UserTypeError(f"World.agent: the function gave {agent!r}, not an Agent")
    options = {
        name: value() if name in MADE_PER_RUN and callable(value) else value for name, value in world.options.items()
    }
    given: Any = options.get("run_config")
    config: RunConfig = given or RunConfig()
    watch = Watch()
    models = None if world.script is None else SimulatedModels(agent, watch, world.script, world.nested)
    if models is not None:
        maker_of(world.agent).adopt_models(agent, models)
    effects = SimulatedEffects(watch, world.behaviors, gate, config.effects)
    options["run_config"] = attrs.evolve(
        config,
        effects=effects,
        instruments=(*config.instruments, watch),
        model=config.model if models is None else models,
    )
    context = world.context() if world.context is not None else None
    driven = SimulatedRun(world, agent, context, options, streamed, watch, effects, models, gate)
    driven.switching = Switching(
        # In a pass every ready task runs once: threads would only ever advance in lockstep.
        wanted=world.switch_lines and world.order != "passes",
        give_way=gate.point if gate is not None else None,
        mark=watch.records.__len__,
    )
    return driven
