"""Faults of the replay's own code, planted in each of its functions: `replay` raises them as they are, and at once."""

import inspect
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import attrs
import pytest
from exploration.replays import draw_ends, draw_run
from exploration.rounds import patience
from testing.test_replay_ends import (
    BACKENDS,
    PROGRAMS,
    Ending,
    Stuck,
    cancelled_at,
    cleans,
    late_writes,
    nest,
    of_nested,
)

from agentloop import RunConfig, ToolExecution
from agentloop.sessions import MemorySession
from agentloop.testing import run_one
from agentloop.testing.replaying import _effects, replay
from agentloop.testing.replaying._comparison import ReplayLog
from agentloop.testing.replaying._driver import Replaying, _SegmentReplay
from agentloop.testing.replaying._effects import ReplayEffects
from agentloop.testing.replaying._queue import RecordedQueue

PATIENCE = 60.0
"""Real seconds for a replay: it takes a tenth of one, and an endless one would take all of them."""
SEEDS = (10, 39, 125, 270, 305, 550, 559, 560, 627, 827, 1134, 1537, 1656)
"""Drawn runs whose replays come to functions that the other logs don't need."""
GUARDS = {"guarded", "keep_fault", "end", "expect", "wall", "admit", "find_state_error", "_find_lacking"}
"""Functions that guard the others."""


class Planted(AttributeError):
    """A fault of the replay."""


def list_functions() -> Iterator[Any]:
    """Yield the functions of the outermost driver, and of what is in it, which are so many that they take minutes."""
    for kind in (Replaying, _SegmentReplay, ReplayLog, ReplayEffects, RecordedQueue):
        marks = [] if kind is Replaying else [pytest.mark.slow]
        for name, value in vars(kind).items():
            if inspect.isfunction(value) and not name.startswith("__") and name not in GUARDS:
                yield pytest.param(kind, name, id=f"{kind.__name__}.{name}", marks=marks)


@cache
def make_logs() -> tuple[tuple[Any, Callable[[], Any], RunConfig], ...]:
    """Return logs of runs that end in several ways, each with a maker of its agent, and its configuration."""
    logs: list[tuple[Any, Callable[[], Any], RunConfig]] = []

    def add(make: Any, options: Any, number: int, kind: str = "scope") -> None:
        records = cancelled_at(number, make(), "asyncio", kind, streamed=False, options=options)
        logs.append((records, make, options.get("run_config", RunConfig())))

    add(of_nested, {"hooks": Ending, "session": MemorySession}, -1)
    add(of_nested, {}, 14)
    add(of_nested, {}, 14, "native")
    for name in ("timeout", "failure", "asking, nested"):
        make, options = PROGRAMS[name]
        add(make, options, 6)
    for name in ("turn", "call"):
        make, options, _ = late_writes(Stuck)[name]
        execution = ToolExecution(cleanup_grace=0.5)
        config = attrs.evolve(options.get("run_config", RunConfig()), tool_execution=execution)
        add(make, {**options, "run_config": config}, -1)
    world = nest(["own", "late"], [cleans, cleans])
    logs.append((run_one(world).records, lambda: world.agent, RunConfig()))
    for seed in SEEDS:
        run, whole, chance, _ = draw_run(seed)
        run.run_ended(draw_ends(chance, whole, run.streamed), chance.pick(BACKENDS))
        definitions: Any = run.world.agent
        logs.append((run.held, definitions, run.world.options["run_config"]))
    return tuple(logs)


def plant(monkeypatch: pytest.MonkeyPatch, kind: type, name: str, after: int) -> list[int]:
    """Let a function raise at its call with this number; return a list that has one element for each call."""
    own, calls = vars(kind)[name], list[int]()

    def fault() -> None:
        calls.append(1)
        if len(calls) > after:
            raise Planted(name)

    def planted(*given: Any, **named: Any) -> Any:
        fault()
        return own(*given, **named)

    async def planted_async(self: Any, *given: Any, **named: Any) -> Any:
        fault()
        return await inner(self, *given, **named)

    inner = getattr(own, "__wrapped__", own)
    changed: Any = planted_async if inspect.iscoroutinefunction(inner) else planted
    monkeypatch.setattr(kind, name, _effects._guarded(changed) if inner is not own else changed)
    return calls


def catch(work: Callable[[], Any]) -> str | None:
    """Do *work*, and return which planted fault it raised, or None."""
    try:
        work()
    except Planted as fault:
        return str(fault)
    return None


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("kind", "name"), list(list_functions()))
def test_fault_of_the_replay_is_raised(kind: type, name: str, backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for the replay is woken, as a function fails at its first call, or at a later one."""
    for after in (0, 3):
        left = 4 if kind is _SegmentReplay else 2
        for records, make, config in make_logs():
            if not left:
                break
            with monkeypatch.context() as patched, patience(PATIENCE) as hung:
                calls = plant(patched, kind, name, after)
                work = partial(replay, records, make(), run_config=config, backend=backend)
                raised = catch(work)
                assert not hung
            assert (len(calls) > after) == (raised == name), "the fault was lost"
            left -= raised is not None
