"""Run calls of an agent's tools: as a world, with the program's state put back before and pictured afterwards."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import shutil
import signal
import tempfile
import threading
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from typing import Any

import anyio
import attrs

from agentloop import records as r
from agentloop.agents import Agent
from agentloop.handoffs import target_of
from agentloop.testing.explorer._state import Picture, Program, make_other, picture_of
from agentloop.testing.explorer._values import ArgumentValues, Words, arguments_of, functions_of
from agentloop.testing.scripted import call, say, wait
from agentloop.testing.simulation._simulated_parts import Body, agents_of
from agentloop.testing.simulation.event_loop import Backend
from agentloop.testing.simulation.runs import CancelAt, Order, Verdict, World, WorldRun, run_one
from agentloop.testing.simulation.schedules import Scheduler
from agentloop.tools import AgentCall, FunctionTool, PythonBody

MOST_STEPS = 4_000
"""Steps after which a run is cancelled: it would not end by itself."""
MOST_SECONDS = 8.0
"""Real seconds after which a run is interrupted."""
CONTEXT = "context"
TICKER = "agentloop.testing ticker"
"""Name of a task that lets steps pass while bodies wait."""


class Stuck(BaseException):
    """A run took more real time than any of its kind: it is interrupted where it is."""


@attrs.frozen
class CallPlace:
    """A tool and the way to it: handoffs from the first agent, then agent tools, each with its arguments."""

    tool: FunctionTool[Any] = attrs.field(eq=False)
    name: str
    handoffs: tuple[tuple[str, str], ...] = ()
    """Names of handoffs with their arguments as JSON."""
    within: tuple[tuple[str, str], ...] = ()
    """Names of agent tools with their arguments as JSON, outermost first."""
    answers: tuple[str, ...] = ("done",)
    """The final outputs of the agents on the way: of the last one first."""


@attrs.frozen
class Call:
    """A call of a tool with its arguments as JSON."""

    place: CallPlace
    arguments: str

    @property
    def tool(self) -> str:
        """The tool's name."""
        return self.place.name

    def as_json(self) -> list[Any]:
        """Return the call as it is kept in a file."""
        return [self.tool, list(self.place.handoffs), list(self.place.within), self.arguments]


@attrs.define(eq=False)
class Spied:
    """The observations of one body."""

    tool: str
    call_id: str
    error: Exception | None = None
    moments: list[Picture] = attrs.field(factory=list)
    """Pictures of the state whenever the body waited; only where they were asked for."""
    interrupted: list[float] = attrs.field(factory=list)
    """The virtual times at which a cancellation was raised where the body waited; its own timeouts, too."""
    ended: str = ""


@attrs.frozen(eq=False)
class Seen:
    """One run and what it left behind."""

    run: WorldRun
    before: Picture
    after: Picture
    outputs: Mapping[str, str]
    """The text that each call gave the model, by call id."""
    statuses: Mapping[str, str]
    bodies: Sequence[Spied]
    threads: tuple[str, ...]
    files: tuple[str, ...]
    logged: str
    stuck: bool = False


@attrs.define(eq=False)
class Subject:
    """An agent under exploration, with the program around it."""

    label: str
    agent: Any
    make_context: Callable[[], Any] | None
    program: Program
    faked: set[str] = attrs.field(factory=set)
    """Tools whose bodies can't run here."""
    words: Words = attrs.field(factory=Words)
    places: list[CallPlace] = attrs.field(factory=list)
    _logs: _Logs = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._logs = _Logs()

    def made(self) -> Agent[Any, Any]:
        """Return the agent, or one that its function makes."""
        return self.agent if isinstance(self.agent, Agent) else self.agent()

    # ---------------------------------------------------------------------------------- worlds

    def world(
        self,
        turns: Sequence[Sequence[Call]],
        *,
        order: Order = "steps",
        cancel: CancelAt | None = None,
        behaviors: Mapping[str, Any] | None = None,
        delay: float = 0.0,
    ) -> World:
        """Return a world in which the model makes the calls of each of *turns* together, one turn after another."""
        steps: list[Any] = []
        nested: dict[str, tuple[Any, ...]] = {}
        verdicts: list[Verdict] = []
        ways = [one.place.handoffs for turn in turns for one in turn][:1] or [()]
        steps += [[call(name, arguments, call_id=f"h{number}")] for number, (name, arguments) in enumerate(ways[0])]
        if delay and steps:
            steps[0].insert(0, wait(delay))
        count = 0
        for turn in turns:
            pieces: list[Any] = [wait(delay)] if delay and not count else []
            for one in turn:
                count += 1
                pieces.append(self._call(one, f"c{count}", nested, verdicts))
            steps.append(pieces)
        last = turns[-1][-1].place if turns and turns[-1] else None
        answer = last.answers[-1] if last is not None else "done"
        return World(
            agent=self.agent,
            script=(*steps, say(answer), say(answer)),
            nested=nested,
            verdicts=tuple(verdicts),
            behaviors=behaviors or {},
            context=self.make_context,
            order=order,
            cancel=cancel,
            serialize=False,
        )

    def _call(self, one: Call, call_id: str, nested: dict[str, tuple[Any, ...]], verdicts: list[Verdict]) -> Any:
        names = [*one.place.within, (one.tool, one.arguments)]
        path: tuple[str, ...] = ()
        first: Any = None
        for depth, (name, arguments) in enumerate(names):
            own = call_id if not depth else f"{call_id}.{depth}"
            made = call(
                name, arguments, call_id=own, namespace=one.place.tool.namespace if depth == len(names) - 1 else None
            )
            verdicts.append(Verdict(call_id=own, path=path))
            if depth:
                answer = one.place.answers[len(names) - 1 - depth]
                nested["/".join(path)] = ([made], say(answer), say(answer))
            else:
                first = made
            path = (*path, own)
        return first

    # ---------------------------------------------------------------------------------- running

    def run(
        self,
        world: World,
        *,
        backend: Backend = "asyncio",
        scheduler: Scheduler | None = None,
        streamed: bool = False,
        seed: int = 0,
        moments: bool = False,
        restore: bool = True,
        other_context: bool = False,
        runner: Callable[[World], WorldRun] | None = None,
    ) -> Seen:
        """Run *world* once on the program's first state, and return what was seen."""
        if restore:
            self.program.restore()
        random.seed(seed)
        spied: list[Spied] = []
        holder: list[Any] = []
        before: list[Picture] = []

        def context() -> Any:
            made = self.make_context() if self.make_context is not None else None
            if other_context:
                make_other(made)
            holder.append(made)
            before.append(self.picture(made))
            return made

        def spy(body: Body) -> Awaitable[Any]:
            return self._spy(body, spied, holder, moments, ticking)

        names = {place.name for place in self.places}
        behaviors: dict[str, Any] = dict.fromkeys(names, spy)
        for name, behavior in world.behaviors.items():
            behaviors[name] = behavior
        cancel = world.cancel or CancelAt(MOST_STEPS)
        ticking = world.cancel is not None
        full = attrs.evolve(
            world, context=context, behaviors=behaviors, cancel=cancel, switch_lines=world.order != "passes"
        )
        threads = set(threading.enumerate())
        files = set(_temporary_files())
        self._logs.clear()
        with self._logs:
            run, stuck = _bounded(
                lambda: (
                    runner(full)
                    if runner is not None
                    else run_one(full, backend=backend, streamed=streamed, scheduler=scheduler)
                ),
                lambda: run_one(attrs.evolve(full, cancel=CancelAt(0)), backend=backend, streamed=streamed),
            )
        after = self.picture(run.context if runner is not None else (holder[-1] if holder else None))
        calls = {one.call_id or "": one.outcome for one in run.records if isinstance(one, r.CallSettled)}
        return Seen(
            run=run,
            before=before[0] if before else {},
            after=after,
            outputs={name: str(outcome.output) for name, outcome in calls.items()},
            statuses={name: outcome.status for name, outcome in calls.items()},
            bodies=tuple(spied),
            threads=_threads_left(threads),
            files=tuple(sorted(set(_temporary_files()) - files)),
            logged=self._logs.text(),
            stuck=stuck,
        )

    def picture(self, context: Any) -> Picture:
        """Return the picture of *context* and of the program's own state."""
        return {**self.program.picture(), **picture_of(CONTEXT, context)}

    async def _spy(self, body: Body, spied: list[Spied], holder: list[Any], moments: bool, ticking: bool) -> Any:
        seen = Spied(body.tool, body.call_id)
        spied.append(seen)
        if ticking:
            _begin_to_tick(seen)
        if body.tool in self.faked:
            await body.point()
            seen.ended = "value"
            return "ok"

        def waits() -> None:
            if moments and len(seen.moments) < 60:
                seen.moments.append(self.picture(holder[-1] if holder else None))

        def resumed(error: object) -> None:
            if isinstance(error, anyio.get_cancelled_exc_class()):
                seen.interrupted.append(anyio.current_time())

        try:
            value = await _WatchedStep(body.real(), waits, resumed)
        except Exception as error:
            seen.error, seen.ended = error, "error"
            raise
        except BaseException:
            seen.ended = "cancelled"
            raise
        seen.ended = "value"
        return value


def _begin_to_tick(seen: Spied) -> None:
    """Let a task take steps until the body ends: a cancellation comes before a step, so none would come in a wait."""

    async def tick() -> None:
        seconds = 0.0031
        while not seen.ended and seconds < 60:
            await anyio.sleep(seconds)
            seconds *= 1.7

    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        import trio

        # Beside the whole run: the loop cancels that nursery at the end, and nothing waits for it before.
        top = trio.lowlevel.current_task()
        while (nursery := top.parent_nursery) is not None and nursery.parent_task.parent_nursery is not None:
            top = nursery.parent_task
        top.child_nurseries[0].start_soon(tick, name=TICKER)
    else:
        loop.create_task(tick(), name=TICKER)  # noqa: RUF006 - the loop is over soon


class _WatchedStep:
    """Awaits *work*, and calls functions whenever it waits and when it is resumed."""

    def __init__(self, work: Awaitable[Any], waits: Callable[[], None], resumed: Callable[[object], None]) -> None:
        self.work, self.waits, self.resumed = work, waits, resumed

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self.work.__await__()
        send: Callable[[Any], Any] = steps.send
        given: Any = None
        while True:
            try:
                waited_for = send(given)
            except StopIteration as end:
                return end.value
            self.waits()
            try:
                given = yield waited_for
                send = steps.send
            except GeneratorExit:
                steps.close()
                raise
            except BaseException as error:  # noqa: ASYNC103 - the work gets it
                given, send = error, steps.throw
            # trio sends an outcome, which the waiting code unwraps.
            self.resumed(getattr(given, "error", given))


class _Logs(logging.Handler):
    """Keeps what the application logs in a run."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if not record.name.startswith("agentloop") and len(self.lines) < 200:
            self.lines.append(self.format(record))

    def clear(self) -> None:
        self.lines.clear()

    def text(self) -> str:
        return "\n".join(self.lines)

    def __enter__(self) -> None:
        root = logging.getLogger()
        root.addHandler(self)
        self._others = [one for one in root.handlers if one is not self]
        self._level = root.level
        root.setLevel(logging.DEBUG)
        for one in self._others:
            root.removeHandler(one)

    def __exit__(self, *_: object) -> None:
        root = logging.getLogger()
        root.removeHandler(self)
        root.setLevel(self._level)
        for one in self._others:
            root.addHandler(one)


def _bounded(work: Callable[[], WorldRun], otherwise: Callable[[], WorldRun]) -> tuple[WorldRun, bool]:
    """Run *work* in its own context variables; interrupt it after `MOST_SECONDS` real seconds.

    If nothing comes out of it then, the run is that of *otherwise*, which ends at once.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        return copy_context().run(work), False
    fired = False

    def interrupt(*_: object) -> None:
        nonlocal fired
        fired = True
        raise Stuck

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, MOST_SECONDS, 0.037)
    try:
        return copy_context().run(work), fired
    except BaseException:  # noqa: ASYNC103 - the error of the timer, also where the body has changed it
        if not fired:
            raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    return copy_context().run(otherwise), True


def _threads_left(before: set[threading.Thread]) -> tuple[str, ...]:
    new = [one for one in threading.enumerate() if one not in before and one.is_alive()]
    for one in new:
        one.join(0.05)
    return tuple(sorted(one.name.rstrip("0123456789") for one in new if one.is_alive()))


_folder: str | None = None


def _temporary_files() -> list[str]:
    return sorted(os.listdir(_folder)) if _folder is not None else []


@contextmanager
def own_temporary_folder() -> Iterator[None]:
    """Give the program its own folder for temporary files, so that those that are left are seen."""
    global _folder
    before, _folder = tempfile.tempdir, tempfile.mkdtemp(prefix="agentloop-explore-")
    tempfile.tempdir = _folder
    try:
        yield
    finally:
        tempfile.tempdir = before
        shutil.rmtree(_folder, ignore_errors=True)
        _folder = None


# ---------------------------------------------------------------------------------------------- where the tools are


def places_of(agent: Agent[Any, Any], words: Words, chance: random.Random) -> list[CallPlace]:
    """Return each tool that *agent* reaches, with one way to it."""
    found: list[CallPlace] = []
    known: set[int] = set()
    start = CallPlace(None, "", answers=(_answer(agent, words, chance),))  # type: ignore[arg-type]
    ways: list[tuple[Agent[Any, Any], CallPlace]] = [(agent, start)]
    while ways:
        one, way = ways.pop(0)
        if id(one) in known:
            continue
        known.add(id(one))
        for tool in one.functions:
            if isinstance(tool.body, AgentCall):
                inner = tool.body.agent
                arguments = _one(tool, words, chance)
                step = attrs.evolve(
                    way,
                    within=(*way.within, (tool.name, arguments)),
                    answers=(_answer(inner, words, chance), *way.answers),
                )
                ways.append((inner, step))
            elif tool.is_enabled is not False:
                found.append(attrs.evolve(way, tool=tool, name=tool.name))
        for entry in one.handoffs if not way.within else ():
            handoff = target_of(entry)
            step = attrs.evolve(
                way,
                handoffs=(*way.handoffs, (handoff.name, _one(handoff, words, chance))),
                answers=(_answer(handoff.agent, words, chance),),
            )
            ways.append((handoff.agent, step))
    return found


def _one(tool: Any, words: Words, chance: random.Random) -> str:
    made = arguments_of(tool, words, chance, 1)
    return json.dumps(made[0] if made else {})


def _answer(agent: Agent[Any, Any], words: Words, chance: random.Random) -> str:
    typed = agent._typed_output()
    if typed is None:
        return "done"
    return json.dumps(ArgumentValues(typed.schema.schema, words, chance).value(typed.schema.schema))


def functions_of_agent(agent: Agent[Any, Any]) -> list[Callable[..., Any]]:
    """Return the application's functions that *agent* and those that it reaches may call."""
    found: list[Any] = []
    for one in agents_of(agent):
        for tool in one.functions:
            found += functions_of(tool)
        guards = (*one.input_guardrails, *one.output_guardrails)
        found += [
            one.instructions,
            *(getattr(guard, "guardrail_function", None) or getattr(guard, "fn", None) for guard in guards),
        ]
        found += [value for value in (one.hooks, one.output_validator) if value is not None]
    return [one for one in found if callable(one)]


def body_functions(agent: Agent[Any, Any]) -> dict[str, Callable[..., Any]]:
    """Return the functions of all tools by name."""
    return {
        tool.name: tool.body.fn
        for one in agents_of(agent)
        for tool in one.functions
        if isinstance(tool.body, PythonBody)
    }
