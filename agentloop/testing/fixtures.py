"""The objects that the fixtures of the pytest plugin return. They work without pytest too."""

from __future__ import annotations

import asyncio
import contextvars
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import attrs

from agentloop.limits import Capacity
from agentloop.run._stream import RunStream
from agentloop.spans import Span
from agentloop.testing.scripted import ScriptedModel, Step
from agentloop.testing.simulation._simulated_parts import agents_of
from agentloop.testing.simulation.event_loop import Backend, Order, run_deterministic
from agentloop.testing.simulation.schedules import Tape
from agentloop.tracing import SpanFold

ResultT = TypeVar("ResultT")


class VirtualClock:
    """Runs async code on loops with virtual time, which passes at once when everything waits.

    A sync test calls `run`. For async tests of anyio's pytest plugin let the fixture `anyio_backend` return
    `virtual_clock.backend(name)`.
    """

    def run(
        self,
        fn: Callable[..., Awaitable[ResultT]],
        *args: Any,
        backend: Backend = "asyncio",
        tape: Iterable[int] = (),
        order: Order = "passes",
    ) -> ResultT:
        """Run *fn* to its end, its tasks ordered by *tape*, and return its result."""
        return run_deterministic(fn, *args, backend=backend, scheduler=Tape(tape), order=order)

    def backend(self, name: Backend) -> tuple[str, dict[str, Any]]:
        """Return the value of anyio's `anyio_backend` fixture with which an async test runs in virtual time."""
        if name == "asyncio":
            from agentloop.testing.simulation._asyncio_loop import DeterministicLoop

            return name, {"loop_factory": DeterministicLoop}
        import trio.testing

        return name, {"clock": trio.testing.MockClock(autojump_threshold=0)}


class ScriptedModels:
    """Makes scripted models, and checks that their scripts were played to the end."""

    def __init__(self) -> None:
        self._made: list[ScriptedModel] = []

    def __call__(self, *steps: Step, chunk: int = 16) -> ScriptedModel:
        """Return a model that follows *steps*."""
        model = ScriptedModel(steps, chunk=chunk)
        self._made.append(model)
        return model

    def check_played(self) -> None:
        """Check that runs have used every step of every script.

        Raises:
            AssertionError: naming the models whose scripts have steps left.
        """
        unplayed = [repr(model) for model in self._made if model.steps_left]
        assert not unplayed, f"scripts that were not played to their end: {', '.join(unplayed)}"


# ---------------------------------------------------------------------------------------------- orphans

_inside: ContextVar[object] = ContextVar("agentloop_testing_inside", default=None)


@attrs.define(eq=False)
class _Watched:
    """A stream that was entered, and the tasks it began."""

    stream: RunStream[Any]
    agent: str = ""
    left: bool = False
    tasks: list[asyncio.Task[Any]] = attrs.field(factory=list)
    """Filled on asyncio before Python 3.12 only; later, tasks are found by their contexts."""


class _Orphans:
    """The streams, spans and capacities within one `orphans_watched` block, and the orphans found so far."""

    def __init__(self) -> None:
        self.watched: list[_Watched] = []
        self.found: list[str] = []
        self.capacities: dict[int, Capacity] = {}
        self.spans: list[tuple[object, Span]] = []
        """Each with the `_Watched` of the run in which it began."""

    def began(self, watched: _Watched) -> None:
        live = watched.stream._live
        watched.agent = live.agent.name
        for agent in agents_of(live.agent):
            for tool in agent.functions:
                self.capacities.update((id(limit), limit) for limit in tool.capacity if isinstance(limit, Capacity))

    def ended(self, watched: _Watched) -> None:
        watched.left = True
        where = f"the run of {watched.agent}"
        for name in _unfinished(watched):
            self.found.append(f"task {name} outlives {where}")
        for place in watched.stream._live.settings.threads._live:
            self.found.append(f"the thread of {place.name} outlives {where}")
        for inside, span in self.spans:
            if inside is watched and span.ended_at is None:
                self.found.append(f"span {span.kind} {span.name} outlives {where}")

    def at_the_end(self) -> list[str]:
        for watched in self.watched:
            if watched.agent and not watched.left:
                self.found.append(f"the stream of the run of {watched.agent} was entered and never left")
        for limit in self.capacities.values():
            if (held := limit.statistics().tokens_in_use) > 0:
                self.found.append(f"{held} tokens of {limit!r} were never given back")
        return self.found


@contextmanager
def orphans_watched() -> Iterator[None]:
    """Check at the end of the block that nothing outlived a run that was entered in it.

    Replaces methods of `RunStream` and `SpanFold` within the block, as a run has no hook for its very end.

    Raises:
        AssertionError: with one line for each orphan.
    """
    orphans = _Orphans()
    enter, leave, begin = RunStream.__aenter__, RunStream.__aexit__, SpanFold._open

    async def entered(self: RunStream[Any]) -> RunStream[Any]:
        watched = _Watched(self)
        orphans.watched.append(watched)
        _note_tasks()
        token = _inside.set(watched)
        try:
            await enter(self)
        finally:
            _inside.reset(token)
        orphans.began(watched)
        return self

    async def exited(self: RunStream[Any], *error: Any) -> bool:
        try:
            return await leave(self, *error)
        finally:
            for watched in orphans.watched:
                if watched.stream is self and watched.agent:
                    orphans.ended(watched)

    def begun(self: SpanFold, *what: Any) -> Span:
        span = begin(self, *what)
        orphans.spans.append((_inside.get(), span))
        return span

    RunStream.__aenter__, RunStream.__aexit__, SpanFold._open = entered, exited, begun  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        RunStream.__aenter__, RunStream.__aexit__, SpanFold._open = enter, leave, begin  # type: ignore[method-assign]
    found = orphans.at_the_end()
    assert not found, "\n".join(found)


def _note_tasks() -> None:
    """Make the running asyncio loop note the run of each new task, on Pythons where a task does not give its context.

    From 3.12 on it does. The loop's task factory is left unchanged there: anyio tests if it is the eager one.
    """
    if sys.version_info >= (3, 12):
        return
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return
    factory = loop.get_task_factory()
    if getattr(factory, "notes_runs", False):
        return

    def noted(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> Any:
        make: Any = asyncio.Task if factory is None else factory
        task = make(coro, loop=loop, **options) if factory is None else make(loop, coro, **options)
        watched = (options.get("context") or contextvars.copy_context()).get(_inside)
        if isinstance(watched, _Watched):
            watched.tasks.append(task)
        return task

    noted.notes_runs = True  # type: ignore[attr-defined]
    loop.set_task_factory(noted)


def _unfinished(watched: _Watched) -> Iterator[str]:
    """Yield the names of the tasks that began in the run of *watched* and aren't done."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        from agentloop.testing.simulation._stepping import trio_tasks

        yield from (task.name for task in trio_tasks() if task.context.get(_inside) is watched)
        return
    if sys.version_info >= (3, 12):
        yield from sorted(task.get_name() for task in asyncio.all_tasks() if task.get_context().get(_inside) is watched)
    else:
        yield from (task.get_name() for task in watched.tasks if not task.done())
