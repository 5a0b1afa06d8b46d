"""SIGINT at lines of a run, wherever they are: KeyboardInterrupt leaves bare, and the run's log is whole.

The signal is raised in the traced line itself, so trio's handler sees the frame that a real one would meet: it raises
at once where the code isn't protected. asyncio's handler cancels the program's main task at that very point.

One line is left out, where no real signal is handled: the step from the end of a `with` block to its `__exit__`. The
interpreter looks for signals when it enters the exit's own frame, so that blocks are left in any case. A tracer could
raise one instruction before, and no exit would run, that of trio's nursery as little as ours.
"""

import ast
import functools
import gc
import os
import random
import signal
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import attrs
import pytest
from sweeps.test_cancel_sweep import SCENARIOS, Scenario, World, check_log
from sweeps.test_shutdown_sweep import enabled, guarded, kept
from trio.testing import MockClock

import agentloop
from agentloop import records as r
from agentloop.testing.simulation._stepping import Stepped

PACKAGE = os.path.dirname(agentloop.__file__) + os.sep
ALL: list[Scenario] = [*SCENARIOS, guarded, kept, enabled]
SAMPLE = 40
"""Lines of each scenario at which a run of the suite interrupts it; `AGENTLOOP_SWEEP=whole` takes every seventh."""


@attrs.define
class Interrupter:
    """Raises SIGINT at the *at*-th line of the package, or of this folder's programs, that a run comes to."""

    at: int | None
    over: Callable[[], bool] = lambda: False
    lines: int = 0
    where: str = ""
    late: bool = False
    """Whether the run was over by then: asyncio then knows of nothing that it could interrupt."""
    _before: Any = None

    def __enter__(self) -> "Interrupter":
        self._before = sys.gettrace()
        sys.settrace(self._enter)
        return self

    def __exit__(self, *raised: object) -> None:
        sys.settrace(self._before)  # what measures coverage, if anything does

    def _enter(self, frame: types.FrameType, event: str, arg: object) -> Any:
        name = frame.f_code.co_filename
        # Not this file's own lines: a signal in `__exit__` would keep it from giving the tracer back.
        if not name.startswith(PACKAGE) and ("sweeps" not in name or name == __file__):
            return None
        before = 0

        def trace(frame: types.FrameType, event: str, arg: object) -> Any:
            nonlocal before
            line = frame.f_lineno
            if event == "line" and not line < before <= _blocks(name).get(line, 0):
                self._come_to(frame)
            before = line
            return trace

        return trace

    def _come_to(self, frame: types.FrameType) -> None:
        self.lines += 1
        if self.lines == self.at:
            self.where = f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
            self.late = self.over()
            signal.raise_signal(signal.SIGINT)


@functools.cache
def _blocks(file: str) -> dict[int, int]:
    """Return the last line of each `with` block of *file*, by the line of its head."""
    found = ast.walk(ast.parse(Path(file).read_text("utf-8")))
    return {one.lineno: one.end_lineno or 0 for one in found if isinstance(one, ast.With | ast.AsyncWith)}


def run_interrupted(
    backend: str, scenario: Scenario, at: int | None
) -> tuple[Interrupter, World, BaseException | None]:
    """Run *scenario* with an interrupt at its *at*-th line; return what came of it."""
    world = World()
    options = {"clock": MockClock(autojump_threshold=0)} if backend == "trio" else {}
    interrupter = Interrupter(at, lambda: _is_over(world))
    raised: BaseException | None = None

    async def main() -> None:
        with interrupter:
            await scenario(world)

    try:
        anyio.run(main, backend=backend, backend_options=options)
    except BaseException as error:
        raised = error
    return interrupter, world, raised


def _is_over(world: World) -> bool:
    last = world.watch.records[-1:]
    return bool(last) and isinstance(last[0], r.RunEnded) and last[0].path == ()


@pytest.fixture(autouse=True)
def _handler() -> Any:
    """Have the interpreter's own handler, which the backends look for, before and after."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
    gc.collect()  # what was torn at its creation warns here, where the test's filter holds, and not in a later test


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.scenario("RP-02")
# A model's generator that is torn between its creation and its block is left to the garbage collector, and so is a
# callback's coroutine that is torn before its first step.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("scenario", ALL, ids=lambda scenario: scenario.__name__)
def test_interrupt_at_any_line_leaves_bare_and_a_whole_log(backend: str, scenario: Scenario) -> None:
    """The lines are drawn over the whole run, from its first to its last."""
    whole, _, _ = run_interrupted(backend, scenario, None)
    draw = random.Random(scenario.__name__)
    if os.environ.get("AGENTLOOP_SWEEP") == "whole":
        chosen = range(1, whole.lines, 7)
    else:
        chosen = sorted(draw.sample(range(1, whole.lines), SAMPLE))
    for at in chosen:
        interrupter, world, raised = run_interrupted(backend, scenario, at)
        where = f"interrupted at line {at}, {interrupter.where}"
        if not interrupter.where:
            continue  # this run had fewer lines than the first
        assert type(raised) is KeyboardInterrupt or (interrupter.late and world.fails), f"{where}: {raised!r}"
        assert world.capacity.statistics().tokens_in_use == 0, where
        seen = Stepped(cancelled=True, mark=len(world.watch.records))
        last = world.watch.records[-1:]
        if last and isinstance(last[0], r.RunEnded) and last[0].status == "failed":
            seen = Stepped(error=raised)  # the interrupt was a body's
        elif last and isinstance(last[0], r.RunEnded) and last[0].status == "completed":
            seen = Stepped()
        check_log(seen, world.watch.records, where)
