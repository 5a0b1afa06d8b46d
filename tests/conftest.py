"""Fixtures every test may use: the backend matrix, the leak check, and the two ways to run an agent."""

import asyncio
import functools
import gc
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import exploration.invariants  # noqa: F401  enters what only the engine can break into the table that `check` judges by
import msgspec
import pytest
import trio
import trio.testing
from hypothesis import HealthCheck, settings

import agentloop
from agentloop._concurrency import nursery as nursery_module
from agentloop._core.call_state import CallState
from agentloop._core.gate import admit
from agentloop._core.run_facts import UsageMeter
from agentloop._core.run_fold import RunFold
from agentloop._engine.runtime.log import Log
from agentloop.exceptions import StateError
from agentloop.records import Record
from agentloop.testing.fixtures import VirtualClock

pytest_plugins = ["pytester", "plugins.scenarios"]

BACKENDS = ("asyncio", "asyncio-eager", "trio", "trio-virtual")
UVLOOP = "asyncio-uvloop"
"""asyncio on uvloop, which is no dependency of the tests: only where `--backends` names it (`nox -s long`)."""
ASKED_FOR = "asyncio-virtual"
"""asyncio on a clock that jumps, wherever `asyncio` is chosen: only for tests that name it."""
TRIO_ONCE = "trio-once"
"""In `--backends`: each test runs once on trio, under the virtual clock where the test allows it."""

# Each example gets its backend's runner and the function's own fixtures; the examples share nothing through them.
# How long an example or its drawing takes is the machine's affair.
NOT_ASKED = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
settings.register_profile("default", deadline=None, suppress_health_check=NOT_ASKED, print_blob=True)
settings.register_profile("ci", settings.get_profile("default"), derandomize=True)
settings.load_profile("ci" if "CI" in os.environ else "default")


def pytest_collection_finish() -> None:
    """Set aside what the collected tests and modules are made of, so that no collection of garbage looks at it again.

    Many tests collect garbage to see that nothing leaks, and each collection would take half a second otherwise.
    """
    gc.collect()
    gc.freeze()


# ---------------------------------------------------------------------------------------------- the log

ILLEGAL: list[str] = []
"""Records that a run of the current test appended against the transition table, or that nobody can read."""


@pytest.fixture(autouse=True, scope="session")
def _check_every_append() -> Iterator[None]:
    """Check every record that a live run appends against the transition table, and that it can be read again."""
    append = Log.append

    @functools.wraps(append)
    def checked(log: Log, record: Record) -> None:
        if log.expect is None:  # a replay compares the record with one of a checked log
            try:
                admit(log.state, record)
            except StateError as error:
                ILLEGAL.append(f"record {len(log.state.records)}: {record!r}: {error}")
        append(log, record)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Log, "append", checked)
        yield


def _differ(one: Any, other: Any, place: str) -> list[str]:
    """Return the places at which two values of a fold differ; caches aren't compared."""
    if one is other:
        return []
    if isinstance(one, msgspec.Struct) and type(one) is type(other) and isinstance(one, RunFold | CallState):
        names = [name for name in one.__struct_fields__ if name not in CACHES]
        return [each for name in names for each in _differ(getattr(one, name), getattr(other, name), f"{place}.{name}")]
    if isinstance(one, UsageMeter):
        return [] if one.total() == other.total() else [place]
    if isinstance(one, dict) and one.keys() == other.keys():
        return [each for key in one for each in _differ(one[key], other[key], f"{place}[{key!r}]")]
    if isinstance(one, list | tuple | deque) and other is not None and len(one) == len(other):
        pairs = zip(one, other, strict=True)
        return [each for index, (a, b) in enumerate(pairs) for each in _differ(a, b, f"{place}[{index}]")]
    return [] if one == other else [place]


CACHES = ("_digest", "_digested", "_repeats", "_counted", "just_released")


@pytest.fixture(autouse=True, scope="session")
def _check_every_detached_fold() -> Iterator[None]:
    """Check that the fold a resumed run begins with is what folding the log again gives."""
    detach = RunFold.detached

    def checked(fold: RunFold) -> RunFold:
        taken = detach(fold)
        if not fold.path:
            again = RunFold(limits=fold.limits)
            for record in fold.records:
                again.apply(record)
            ILLEGAL.extend(f"detached {place}" for place in _differ(taken, again, "fold"))
        return taken

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunFold, "detached", checked)
        yield


@pytest.fixture(autouse=True)
def _log_is_legal(_check_every_append: None) -> Iterator[None]:
    """Fail a test in which a run appended an illegal record."""
    ILLEGAL.clear()
    yield
    assert not ILLEGAL


@pytest.fixture(autouse=True)
def _logging_stays_on() -> Iterator[None]:
    """Fail a test that leaves logging, or a logger of the library, off: later tests would find nothing logged."""

    def state() -> list[object]:
        loggers = map(logging.getLogger, ("agentloop", "agentloop.tools", "agentloop.mcp"))
        return [logging.root.manager.disable, *((one.level, one.propagate, one.disabled) for one in loggers)]

    before = state()
    yield
    assert state() == before


# ---------------------------------------------------------------------------------------------- backends


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option `--backends`, which can leave out backends that are variations of others."""
    names = ", ".join((*BACKENDS, TRIO_ONCE))
    parser.addoption("--backends", default=",".join(BACKENDS), help=f"backends to test on, of {names}")
    parser.addoption("--anyio-nursery", action="store_true", help="run calls in anyio's own task group on asyncio")


def _chosen_backends(definition: pytest.Function) -> list[str]:
    """Return the ids a test runs on, after its markers have narrowed the matrix."""
    wanted = definition.config.getoption("--backends").split(",")
    if TRIO_ONCE in wanted:
        wanted += ["trio", "trio-virtual"]
    chosen = [name for name in (*BACKENDS, UVLOOP) if name in wanted]
    if "asyncio" in wanted:
        chosen.append(ASKED_FOR)
    if sys.version_info < (3, 12):
        chosen = [name for name in chosen if name != "asyncio-eager"]
    if definition.get_closest_marker("real_clock") is not None:
        chosen = [name for name in chosen if name != "trio-virtual"]
    if (only := definition.get_closest_marker("backends")) is not None:
        unknown = set(only.args) - {*BACKENDS, UVLOOP, ASKED_FOR}
        if unknown:
            raise pytest.UsageError(f"{definition.nodeid}: unknown backends {sorted(unknown)}")
        chosen = [name for name in chosen if name in only.args]
    else:
        chosen = [name for name in chosen if name != ASKED_FOR]
    if TRIO_ONCE in wanted and "trio-virtual" in chosen:
        chosen = [name for name in chosen if name != "trio"]
    return chosen


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Spread a test over the backend matrix at collection, so that what doesn't fit is absent, not skipped."""
    if "anyio_backend" not in metafunc.fixturenames:
        return
    for mark in metafunc.definition.iter_markers("parametrize"):
        names = mark.args[0]
        if "anyio_backend" in (names.replace(" ", "").split(",") if isinstance(names, str) else names):
            return
    metafunc.parametrize("anyio_backend", _chosen_backends(metafunc.definition), indirect=True)


def _eager_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    # 3.12 has it; the id isn't generated before.
    loop.set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined,unused-ignore]
    return loop


@pytest.fixture
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Backend name and options for anyio's runner; of function scope because a virtual clock serves one test."""
    match request.param:
        case "asyncio":
            return "asyncio", {}
        case "asyncio-eager":
            return "asyncio", {"loop_factory": _eager_loop}
        case "asyncio-uvloop":
            from kit.uv_loop import UvLoop

            return "asyncio", {"loop_factory": UvLoop}
        case "asyncio-virtual":
            return VirtualClock().backend("asyncio")
        case "trio":
            return "trio", {}
        case "trio-virtual":
            return "trio", {"clock": trio.testing.MockClock(autojump_threshold=0)}
        case other:
            raise pytest.UsageError(f"unknown backend {other!r}")


# ---------------------------------------------------------------------------------------------- leaks

_OURS = (next(iter(agentloop.__path__)), str(Path(__file__).parent))


def _tasks_under(task: trio.lowlevel.Task | None) -> Iterator[trio.lowlevel.Task]:
    if task is None:
        return
    yield task
    for nursery in task.child_nurseries:
        for child in nursery.child_tasks:
            yield from _tasks_under(child)


def _live_tasks(backend: str) -> dict[int, object]:
    """Return every unfinished task of the running loop by identity, save those anyio's test runner makes per step."""
    if backend == "asyncio":
        tasks = asyncio.all_tasks()
        return {id(task): task for task in tasks if "TestRunner._call_in_runner_task" not in repr(task.get_coro())}
    return {id(task): task for task in _tasks_under(trio.lowlevel.current_root_task())}


def _runs_our_code(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith(_OURS):
            return True
        frame = frame.f_back
    return False


def _busy_threads() -> list[str]:
    """Return the threads that are inside our code: idle workers of a backend's pool stay, and are no leak."""
    frames = sys._current_frames()
    here = {threading.get_ident(), threading.main_thread().ident}
    return [
        thread.name
        for thread in threading.enumerate()
        if thread.ident not in here and _runs_our_code(frames.get(thread.ident or 0))
    ]


@pytest.fixture
async def no_leaks(anyio_backend: tuple[str, dict[str, Any]]) -> AsyncIterator[None]:
    """Fail a test that leaves a task of its loop, or a thread inside our code, behind."""
    backend = anyio_backend[0]
    before = _live_tasks(backend)
    yield
    left = [task for key, task in _live_tasks(backend).items() if key not in before]
    assert not left, f"tasks left behind: {left}"
    until = time.monotonic() + 2.0
    while (busy := _busy_threads()) and time.monotonic() < until:
        time.sleep(0.001)  # noqa: ASYNC251 - one that has told of its end still has to return from our code
    assert not busy, f"threads left behind: {busy}"


@pytest.fixture(autouse=True)
def _leaks_are_checked(request: pytest.FixtureRequest) -> None:
    # Not autouse itself: an async fixture in a test without a backend would never be awaited.
    if "anyio_backend" in request.fixturenames and request.node.get_closest_marker("leaves_threads") is None:
        request.getfixturevalue("no_leaks")


@pytest.fixture(autouse=True)
def _ways_are_chosen(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Force what is else taken in special cases, where that is asked: the fallback of the nursery, as if anyio's
    scopes could not show a deadline, and every step of a call.
    """
    if request.config.getoption("--anyio-nursery"):
        monkeypatch.setattr(nursery_module, "find_scope_class", lambda: None)


@pytest.fixture(autouse=True)
def _tracer_is_given_back() -> Iterator[None]:
    """Fail a test that takes the interpreter's trace function away: nothing after it would be measured."""
    before = sys.gettrace()
    yield
    after = sys.gettrace()
    if after is not before:
        sys.settrace(before)
    assert after is before, f"the trace function was {before!r}, and is {after!r}"


# ---------------------------------------------------------------------------------------------- running agents

Run = Callable[..., Awaitable["agentloop.RunResult[Any]"]]


async def _run_plain(agent: Any, input: Any, **options: Any) -> "agentloop.RunResult[Any]":
    return await agentloop.Runner.run(agent, input, **options)


async def _run_streamed(agent: Any, input: Any, **options: Any) -> "agentloop.RunResult[Any]":
    async with agentloop.Runner.run_streamed(agent, input, **options) as stream:
        async for _ in stream:
            pass
    return stream.result


@pytest.fixture(params=["plain", "streamed"])
def run_mode(request: pytest.FixtureRequest) -> Run:
    """`await run_mode(agent, input, **options)` gives the result, once by `Runner.run` and once by `run_streamed`."""
    return _run_plain if request.param == "plain" else _run_streamed
