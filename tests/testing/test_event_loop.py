"""Loops with virtual time and a chosen order of tasks: what they promise, on both backends."""

import asyncio
import contextvars
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread
import pytest

from agentloop import Agent, Runner, UserError, tool
from agentloop.exceptions import UserTypeError, UserValueError
from agentloop.testing import (
    Deadlock,
    FunctionModel,
    Gate,
    Priorities,
    ScriptedModel,
    Tape,
    call,
    run_deterministic,
    say,
    tape_of,
)
from agentloop.testing.simulation import event_loop as simulated_loop
from agentloop.testing.simulation._waiting import require
from agentloop.testing.simulation.event_loop import waiting
from agentloop.testing.simulation.gate import TIME
from agentloop.testing.simulation.schedules import Recorder

both = pytest.mark.parametrize("backend", ["asyncio", "trio"])
orders = pytest.mark.parametrize("order", ["passes", "steps"])


async def mingling(tasks: int = 4, steps: int = 5) -> list[tuple[int, int]]:
    """Let tasks take steps, sleep, and be cancelled, and return in which order things happened."""
    seen: list[tuple[int, int]] = []

    async def one(number: int) -> None:
        for step in range(steps):
            seen.append((number, step))
            await anyio.sleep(0 if step % 2 else 0.5)

    async def victim(number: int) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            seen.append((number, -1))

    async with anyio.create_task_group() as group:
        for number in range(tasks):
            group.start_soon(one, number)
        with anyio.move_on_after(0.7):
            async with anyio.create_task_group() as doomed:
                for number in range(10, 16):
                    doomed.start_soon(victim, number)
    return seen


# ---------------------------------------------------------------------------------------------- the same again


@pytest.mark.slow
@both
@orders
def test_one_tape_is_one_order(backend: Any, order: Any) -> None:
    """Each of thirty seeds gives the same order twice, and hardly two seeds give one order."""
    once = [run_deterministic(mingling, backend=backend, scheduler=Tape(seed=seed), order=order) for seed in range(30)]
    again = [run_deterministic(mingling, backend=backend, scheduler=Tape(seed=seed), order=order) for seed in range(30)]
    assert once == again
    assert len({tuple(seen) for seen in once}) > 25


@both
@orders
def test_choices_replay_as_a_tape(backend: Any, order: Any) -> None:
    """The choices of a random run, given as numbers, give the same run."""
    recorder = Recorder(Tape(seed=5))
    seen = run_deterministic(mingling, backend=backend, scheduler=recorder, order=order)
    assert run_deterministic(mingling, backend=backend, scheduler=Tape(tape_of(recorder.choices)), order=order) == seen


@pytest.mark.slow
@both
def test_order_is_the_same_in_a_fresh_process(backend: Any) -> None:
    """The order depends on no hash and no address."""
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); from testing.test_event_loop import mingling; "
        "from agentloop.testing import Tape, run_deterministic; "
        f"print([run_deterministic(mingling, backend={backend!r}, scheduler=Tape(seed=seed)) for seed in range(5)])"
    )
    tests = str(Path(__file__).parents[1])
    done = subprocess.run([sys.executable, "-c", program, tests], capture_output=True, text=True, check=True)
    here = [run_deterministic(mingling, backend=backend, scheduler=Tape(seed=seed)) for seed in range(5)]
    assert done.stdout.strip() == str(here)


def test_natural_order_is_the_same_on_both_backends() -> None:
    """Tasks that became ready together resume in the order of their creation, on either backend."""
    assert run_deterministic(mingling, backend="asyncio") == run_deterministic(mingling, backend="trio")


@both
def test_passes_let_every_task_run_once_and_steps_let_one_run_on(backend: Any) -> None:
    """The task that is always chosen last runs first in its pass, or runs to its end."""

    async def program() -> str:
        seen: list[str] = []

        async def one(name: str) -> None:
            for _ in range(3):
                seen.append(name)
                await anyio.lowlevel.checkpoint()

        async with anyio.create_task_group() as group:
            for name in "ab":
                group.start_soon(one, name)
        return "".join(seen)

    def last(labels: Any) -> int:
        return len(labels) - 1

    assert run_deterministic(program, backend=backend, scheduler=last, order="passes") == "bababa"
    assert run_deterministic(program, backend=backend, scheduler=last, order="steps") == "bbbaaa"


@both
def test_nobody_starves_in_the_natural_order_of_steps(backend: Any) -> None:
    """The task that waited longest runs first, so one that never waits doesn't keep the others out."""

    async def program() -> int:
        turns = 0
        over = anyio.Event()

        async def busy() -> None:
            nonlocal turns
            while not over.is_set():
                turns += 1
                await anyio.lowlevel.checkpoint()

        async def slow() -> None:
            for _ in range(5):
                await anyio.lowlevel.checkpoint()
            over.set()

        async with anyio.create_task_group() as group:
            group.start_soon(busy)
            group.start_soon(slow)
        return turns

    assert run_deterministic(program, backend=backend, order="steps") < 20


# ---------------------------------------------------------------------------------------------- time


@both
def test_hours_pass_in_no_time(backend: Any) -> None:
    """Sleeps, deadlines and anyio's clock agree; the wall clock hardly moves."""

    async def program() -> tuple[float, float]:
        began = anyio.current_time()
        with anyio.move_on_after(3600):
            await anyio.sleep(7200)
        middle = anyio.current_time() - began
        await anyio.sleep(1800)
        return middle, anyio.current_time() - began

    began = time.monotonic()
    assert run_deterministic(program, backend=backend) == (3600, 5400)
    assert time.monotonic() - began < 5


def test_asyncio_s_own_time_is_virtual_too() -> None:
    """Timers of asyncio itself follow the same clock as anyio's."""

    async def program() -> float:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(100):
            await asyncio.sleep(50)
        cancelled = loop.call_later(10, lambda: None)
        cancelled.cancel()
        return loop.time()

    assert run_deterministic(program, backend="asyncio") == 50


@both
def test_wait_for_ever_is_a_deadlock(backend: Any) -> None:
    """The deadlock is raised without a group, at once, also where the wait is shielded."""

    async def program(shield: bool) -> None:
        with anyio.CancelScope(shield=shield):
            await anyio.Event().wait()

    for shield in (False, True):
        with pytest.raises(Deadlock, match="every task waits, and no timer is set"):
            run_deterministic(program, shield, backend=backend)


@both
def test_sleep_for_ever_is_a_deadlock_too(backend: Any) -> None:
    """A timer at infinity is none: time doesn't pass up to it."""

    async def program() -> None:
        await anyio.sleep(1)
        await anyio.sleep_forever()

    with pytest.raises(Deadlock):
        run_deterministic(program, backend=backend)


@both
def test_time_passes_up_to_a_timer_to_its_last_digit(backend: Any) -> None:
    """0.3 + (0.9 - 0.3) isn't 0.9: then what is due together on one backend wouldn't be on the other."""

    async def program() -> list[float]:
        seen: list[float] = []

        async def one(delay: float) -> None:
            await anyio.sleep(delay)
            seen.append(anyio.current_time())

        async with anyio.create_task_group() as group:
            for delay in (0.3, 0.9):
                group.start_soon(one, delay)
        return seen

    assert run_deterministic(program, backend=backend) == [0.3, 0.9]


@both
def test_deadlock_inside_a_group_is_raised_bare(backend: Any) -> None:
    """Two tasks wait for each other; the error is raised without a group, and their cleanup runs."""
    cleaned: list[str] = []

    async def program() -> None:
        first, second = anyio.Lock(), anyio.Lock()

        async def one(a: anyio.Lock, b: anyio.Lock) -> None:
            try:
                async with a:
                    await anyio.sleep(1)
                    async with b:
                        pass
            finally:
                cleaned.append("out")

        async with anyio.create_task_group() as group:
            group.start_soon(one, first, second)
            group.start_soon(one, second, first)

    with pytest.raises(Deadlock):
        run_deterministic(program, backend=backend)
    assert cleaned == ["out", "out"]


@both
def test_error_of_the_program_is_raised_bare(backend: Any) -> None:
    """The error is raised as anyio.run raises it."""

    async def program() -> None:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        run_deterministic(program, backend=backend)


@both
def test_thread_of_the_program_s_own_may_wake_it(backend: Any) -> None:
    """A moment of real time is given before a loop that is stuck counts as dead."""

    async def program() -> str:
        token = anyio.lowlevel.current_token()
        event = anyio.Event()
        thread = threading.Thread(target=lambda: anyio.from_thread.run_sync(event.set, token=token))
        thread.start()
        await event.wait()
        thread.join()
        return "woken"

    assert run_deterministic(program, backend=backend) == "woken"


# ---------------------------------------------------------------------------------------------- threads


@both
def test_worker_threads_run_in_place_one_after_the_other(backend: Any) -> None:
    """No thread starts, the limiter is honoured, context is a copy, errors come out."""
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="outside")
    limiter = None

    def work() -> tuple[str | None, str]:
        variable.set("inside")
        return threading.current_thread().name, variable.get()

    async def program() -> None:
        limiter = anyio.CapacityLimiter(1)
        assert await anyio.to_thread.run_sync(work, limiter=limiter) == (threading.main_thread().name, "inside")
        assert variable.get() == "outside"
        assert limiter.borrowed_tokens == 0
        with pytest.raises(ZeroDivisionError):
            await anyio.to_thread.run_sync(lambda: 1 / 0, limiter=limiter)

    assert limiter is None
    before = threading.active_count()
    run_deterministic(program, backend=backend)
    assert threading.active_count() <= before


@both
def test_a_sync_tool_that_begins_a_run_is_told_what_to_write(backend: Any) -> None:
    """It has no thread here, on which another loop could run; behind it, and on other loops, nothing has changed."""
    asked = Agent("asked", model=FunctionModel(lambda request: say("answered")))

    @tool
    def ask() -> str:
        """Ask an agent."""
        return str(Runner.run_sync(asked, "go").final_output)

    async def program() -> str:
        agent = Agent("a", model=ScriptedModel([call("ask"), say("done")]), tools=[ask])
        output = (await Runner.run(agent, "go")).calls[0].outcome.output
        with pytest.raises(UserError, match=r"called inside a running event loop: use `await Runner\.run"):
            Runner.run_sync(asked, "go")
        return str(output)

    told = run_deterministic(program, backend=backend)
    assert "without a thread" in told
    assert "write the function as an `async def` with `await Runner.run(…)`" in told
    assert anyio.run(program, backend=backend) == "answered"


def test_executor_of_asyncio_runs_in_place_too() -> None:
    """Functions given to `asyncio.to_thread` and to the loop's executor run in place."""

    async def program() -> list[str]:
        loop = asyncio.get_running_loop()
        one = await asyncio.to_thread(lambda: threading.current_thread().name)
        two = await loop.run_in_executor(None, lambda: threading.current_thread().name)
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(lambda: 1 / 0)
        return [one, two]

    assert run_deterministic(program, backend="asyncio") == [threading.main_thread().name] * 2


@both
def test_result_of_a_thread_is_not_lost_to_a_cancellation(backend: Any) -> None:
    """The function has run, so its caller gets the result, as with a real thread."""

    async def program() -> str:
        got = "nothing"
        with anyio.CancelScope() as scope:

            def work() -> str:
                scope.cancel()
                return "worked"

            got = await anyio.to_thread.run_sync(work)
        return got

    assert run_deterministic(program, backend=backend) == "worked"


@both
def test_other_loops_keep_their_threads(backend: Any) -> None:
    """While a clockwork loop runs, a loop in another thread starts threads as ever."""
    names: list[str] = []

    def other() -> None:
        async def main() -> str:
            return await anyio.to_thread.run_sync(lambda: threading.current_thread().name)

        names.append(anyio.run(main, backend=backend))

    async def program() -> None:
        thread = threading.Thread(target=other, name="other")
        thread.start()
        thread.join()

    run_deterministic(program, backend=backend)
    assert names != ["other"]
    assert names != [threading.main_thread().name]


# ---------------------------------------------------------------------------------------------- the gate


@both
def test_gate_lets_one_through_at_a_time_as_the_tape_says(backend: Any) -> None:
    """The gate tells equal labels apart; time is one of the choices where a timer is set."""

    async def program(recorder: Recorder) -> list[str]:
        seen: list[str] = []

        async def one(name: str) -> None:
            await gate.point(name)
            seen.append(name)
            await gate.point(name)
            seen.append(f"{name} again")

        async def sleeper() -> None:
            await anyio.sleep(10)
            seen.append("awake")

        gate = Gate(recorder)
        async with gate, anyio.create_task_group() as group:
            group.start_soon(sleeper)
            for name in "ab":
                group.start_soon(one, name)
        return seen

    recorder = Recorder(Tape([1, 2, 0, 1]))
    assert run_deterministic(program, recorder, backend=backend) == ["b", "awake", "a", "b again", "a again"]
    assert recorder.chosen == ["b", TIME, "a", "b (2)"]


@both
def test_gate_that_nobody_waits_at_lets_time_pass(backend: Any) -> None:
    """The gate lets time pass and ends with its block, also when the block raises."""

    async def program() -> float:
        async with Gate():
            await anyio.sleep(5)
        with pytest.raises(LookupError):
            async with Gate():
                raise LookupError
        return anyio.current_time()

    assert run_deterministic(program, backend=backend) == 5


@both
def test_timers_of_one_moment_come_one_by_one_at_the_gate(backend: Any) -> None:
    """Timers fire in the order in which they were set, one by one, and all of them before the gate chooses."""

    async def program() -> list[str]:
        seen: list[str] = []

        async def sleeper(name: str, delay: int) -> None:
            for _ in range(delay):
                await anyio.lowlevel.checkpoint()
            await anyio.sleep(0.75)
            for step in range(3):
                seen.append(f"{name}{step}")
                await anyio.lowlevel.checkpoint()

        async def waiter() -> None:
            await gate.point("z")
            seen.append("z")

        gate = Gate(Tape([1]))
        async with gate, anyio.create_task_group() as group:
            group.start_soon(waiter)
            for delay, name in enumerate("cba"):
                group.start_soon(sleeper, name, 2 - delay)
        return seen

    assert run_deterministic(program, backend=backend) == [f"{name}{step}" for name in "abc" for step in range(3)] + [
        "z"
    ]


@both
@pytest.mark.parametrize("first", ["timeout", "sleep"])
def test_timeout_and_what_it_would_end_are_due_together(backend: Any, first: Any) -> None:
    """The timer that was set first fires first, and the other finds what it has left."""

    async def program() -> tuple[bool, list[str]]:
        seen: list[str] = []
        woken = anyio.Event()

        async def sleeper() -> None:
            await anyio.sleep(0.8)
            for _ in range(5):
                await anyio.lowlevel.checkpoint()
            seen.append("woken")
            woken.set()

        async def hurried() -> None:
            if first == "sleep":
                await anyio.lowlevel.checkpoint()
            with anyio.move_on_after(0.8) as scope:
                await woken.wait()
                seen.append("in time")
            late.append(scope.cancelled_caught)

        late: list[bool] = []
        async with Gate(), anyio.create_task_group() as group:
            group.start_soon(hurried)
            group.start_soon(sleeper)
        return late[0], seen

    wanted = (True, ["woken"]) if first == "timeout" else (False, ["woken", "in time"])
    assert run_deterministic(program, backend=backend) == wanted


@both
def test_timeout_that_is_over_already_does_not_wait_for_the_others(backend: Any) -> None:
    """Time doesn't bring it: it ends its block while others are ready, and before the next timer of its moment."""

    async def program() -> list[str]:
        seen: list[str] = []
        begun = anyio.Event()

        async def busy() -> None:
            await anyio.sleep(1)
            begun.set()
            for _ in range(20):
                await anyio.lowlevel.checkpoint()
            seen.append("busy over")

        async def over() -> None:
            await begun.wait()
            with anyio.move_on_after(0):
                await anyio.sleep_forever()
            seen.append("out at once")

        async def hurried() -> None:
            with anyio.move_on_after(1):
                await anyio.sleep_forever()
            seen.append("timed out")

        async with Gate(), anyio.create_task_group() as group:
            for task in (busy, over, hurried):
                group.start_soon(task)
        return seen

    assert run_deterministic(program, backend=backend) == ["out at once", "busy over", "timed out"]


@both
def test_gate_leaves_timers_as_it_found_them(backend: Any) -> None:
    """Without a gate, all due timers fire in one pass."""

    async def program() -> tuple[list[bool], str]:
        seen: list[str] = []

        async def sleeper(name: str) -> None:
            await anyio.sleep(1)
            for _ in range(2):
                seen.append(name)
                await anyio.lowlevel.checkpoint()

        before = waiting().timers_apart
        async with Gate():
            inside = waiting().timers_apart
        async with anyio.create_task_group() as group:
            for name in "ab":
                group.start_soon(sleeper, name)
        return [before, inside, waiting().timers_apart], "".join(seen)

    assert run_deterministic(program, backend=backend) == ([False, True, False], "abab")


async def test_gate_needs_a_clockwork_loop() -> None:
    """On another loop the gate can't see when everything waits."""
    with pytest.raises(UserError, match="the event loop is somebody else's"):
        waiting()


# ---------------------------------------------------------------------------------------------- misuse


async def test_run_inside_a_running_loop_is_refused() -> None:
    """An async test is already on a loop."""
    with pytest.raises(UserError, match="inside a running event loop: begin it from sync code"):
        run_deterministic(mingling)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"backend": "curio"}, "backend: expected 'asyncio' or 'trio'"),
        ({"order": "none"}, "order: expected 'passes' or 'steps'"),
    ],
)
def test_unknown_backend_and_order_are_refused(arguments: dict[str, Any], message: str) -> None:
    """The error names the value and lists those there are."""
    with pytest.raises(UserValueError, match=message):
        run_deterministic(mingling, **arguments)


def test_tape_takes_whole_numbers_from_zero() -> None:
    """The error names any other value."""
    with pytest.raises(UserTypeError, match=r"numbers\[1\]: expected a whole number, got 'x'"):
        Tape([0, "x"])  # type: ignore[list-item]
    with pytest.raises(UserValueError, match=r"numbers\[0\]: may not be negative"):
        Tape([-1])
    with pytest.raises(UserValueError, match="depth: expected at least 1"):
        Priorities(0, depth=0, length=5)
    assert repr(Tape([1, 0], seed=3)) == "Tape([1, 0], seed=3)"


def test_changed_private_names_are_an_import_error() -> None:
    """The error names the library and the names."""
    with pytest.raises(ImportError, match=r"with this release of trio: private names .* changed: a, c"):
        require("trio", {"c": False, "b": True, "a": False})


def test_loop_that_does_not_order_as_told_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A release could change what the names mean: two tasks are tried out before the first run."""
    simulated_loop._try_out.cache_clear()
    monkeypatch.setattr(simulated_loop.DeterministicLoop, "_permute", lambda self, steps: steps)
    with pytest.raises(RuntimeError, match=r"can't choose the order of tasks with these releases \(anyio .*asyncio\)"):
        run_deterministic(mingling)
    monkeypatch.undo()
    simulated_loop._try_out.cache_clear()
    run_deterministic(mingling)
