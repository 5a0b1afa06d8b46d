"""Tasks of a run that end, or never begin, without having done their part: the run settles what they left."""

import asyncio
import inspect
import threading
from contextlib import suppress
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from kit.ending import Fatal
from kit.watching import ToolHookLog, Watch

from agentloop import Agent, RunConfig, Runner, ToolCallError, ToolExecution, UserError, tool
from agentloop import records as r
from agentloop.testing import ScriptedModel, call, say


def agent_of(*tools: Any, calls: list[Any]) -> Agent[Any, Any]:
    """Return an agent whose model makes *calls* and is done."""
    return Agent("a", model=ScriptedModel([calls, say("done")]), tools=list(tools))


def settled(watch: Watch) -> dict[str, Any]:
    """Return each call's outcome; each started call has just one."""
    started = [record.call_id for record in watch.of(r.CallStarted)]
    outcomes = {record.call_id: record.outcome for record in watch.of(r.CallSettled)}
    assert len(outcomes) == len(watch.of(r.CallSettled))
    assert set(started) <= set(outcomes)
    return outcomes


@pytest.mark.scenario("RP-03")
@pytest.mark.parametrize("error", [GeneratorExit, SystemExit, KeyboardInterrupt, Fatal])
async def test_base_exception_of_a_body_settles_its_call_and_leaves_bare(run_mode: Any, error: type) -> None:
    """A `GeneratorExit` that a body raises is an error like any other BaseException; siblings are cancelled."""
    watch = Watch()
    slow_began = anyio.Event()

    @tool
    async def slow() -> str:
        slow_began.set()
        await anyio.sleep_forever()
        return "never"

    @tool
    async def bad() -> str:
        await slow_began.wait()
        raise error("from the body")

    agent = agent_of(slow, bad, calls=[call("slow", call_id="c1"), call("bad", call_id="c2")])
    with pytest.raises(error, match="from the body"):
        await run_mode(agent, "go", run_config=RunConfig(instruments=(watch,)))
    outcomes = settled(watch)
    assert outcomes["c2"].status == "failed"
    assert (outcomes["c1"].status, outcomes["c1"].cancelled_by) == ("cancelled", "sibling")
    assert watch.end == "failed"


@pytest.mark.scenario("RP-03")
@pytest.mark.parametrize("order", ["first to last", "last to first"])
def test_closed_loop_settles_its_calls_without_waiting(order: str) -> None:
    """When a loop is closed around a run, the interpreter closes the coroutines of its tasks in any order."""
    watch = Watch()

    @tool
    async def slow(n: int) -> str:
        await asyncio.sleep(3600)
        return "never"

    agent = agent_of(slow, calls=[call("slow", {"n": n}, call_id=f"c{n}") for n in range(3)])
    loop = asyncio.new_event_loop()
    task = loop.create_task(Runner.run(agent, "go", run_config=RunConfig(instruments=(watch,))))
    while len(watch.of(r.CallStarted)) < 3:
        loop.run_until_complete(asyncio.sleep(0))
    tasks = sorted(asyncio.all_tasks(loop), key=lambda one: one.get_name(), reverse=order == "last to first")
    loop.close()
    for one in tasks:
        with suppress(RuntimeError):  # anyio's scopes can't be left in another task
            one.get_coro().close()
    assert not task.done()
    outcomes = settled(watch)
    assert {call_id: (one.status, one.cancelled_by) for call_id, one in outcomes.items()} == {
        f"c{n}": ("cancelled", "parent") for n in range(3)
    }


def cancel_tasks(named: str, *, begun: bool = True) -> int:
    """Cancel the tasks of the running asyncio loop that are named so, as a stranger would; return how many.

    Without *begun* only those that haven't taken their first step.
    """
    found = [task for task in asyncio.all_tasks() if task.get_name().startswith(named)]
    if not begun:
        found = [task for task in found if inspect.getcoroutinestate(task.get_coro()) == inspect.CORO_CREATED]
    for task in found:
        task.cancel()
    return len(found)


@pytest.mark.scenario("RP-05")
@pytest.mark.backends("asyncio")
async def test_call_whose_task_is_cancelled_before_it_begins_is_settled_by_its_owner(run_mode: Any) -> None:
    """The run is not cancelled itself, so it fails: other code cancelled the task before any part of the call began."""

    class Stranger(Watch):
        def on_record(self, record: Any) -> None:
            super().on_record(record)
            if isinstance(record, r.BodyEnded) and record.call_id == "c0":
                # The next call's task is made in this very step, and begins after this callback.
                asyncio.get_running_loop().call_soon(self.strike)

        def strike(self) -> None:
            self.struck = getattr(self, "struck", 0) + cancel_tasks("agentloop call")

    watch = Stranger()

    @tool(custom_data_extractor=lambda ctx, value: None)  # a step between body and outcome
    async def work(n: int) -> str:
        await anyio.lowlevel.checkpoint()
        return "x"

    agent = agent_of(work, calls=[call("work", {"n": n}, call_id=f"c{n}") for n in range(3)])
    config = RunConfig(instruments=(watch,), tool_execution=ToolExecution(max_function_tool_concurrency=1))
    with pytest.raises(UserError, match="cancelled by other code"):
        await run_mode(agent, "go", run_config=config)
    assert watch.struck == 1
    assert [one.status for one in settled(watch).values()] == ["succeeded", "cancelled", "cancelled"]
    assert [record.call_id for record in watch.of(r.CallStarted)] == ["c0"]
    assert watch.end == "failed"


@pytest.mark.scenario("RP-05")
@pytest.mark.backends("asyncio")
async def test_call_whose_task_is_cancelled_before_its_end_hooks_is_told_to_them(run_mode: Any) -> None:
    """Its owner starts another task, so the hook hears of the end once, and the outcome is that of the body."""

    class Stranger(Watch):
        def on_record(self, record: Any) -> None:
            super().on_record(record)
            if isinstance(record, r.BodyEnded):
                self.strike()

        def strike(self) -> None:
            # The task of the end hooks is made in this very step, or in anyio's own group a pass later.
            if not cancel_tasks("agentloop call", begun=False):
                asyncio.get_running_loop().call_soon(self.strike)

    watch, hooks = Stranger(), ToolHookLog()

    @tool
    async def work() -> str:
        return "x"

    agent = agent_of(work, calls=[call("work", call_id="c0")])
    with pytest.raises(UserError, match="cancelled by other code"):
        await run_mode(agent, "go", hooks=hooks, run_config=RunConfig(instruments=(watch,)))
    assert hooks.ended == [("c0", "succeeded", None)]
    assert settled(watch)["c0"].output == "x"
    assert watch.end == "failed"


class BrokenClock:
    """Replaces `time.time`; from its *at*-th reading on, the next *times* readings raise *error*."""

    def __init__(self, at: int, times: int, error: BaseException) -> None:
        self.at, self.times, self.error, self.readings = at, times, error, 0

    def __call__(self) -> float:
        self.readings += 1
        if self.at <= self.readings < self.at + self.times:
            raise self.error
        return 0.0


@pytest.mark.scenario("RP-05")
@pytest.mark.parametrize("error", [MemoryError, Fatal])
@pytest.mark.parametrize("times", [1, 2, 3, 1000])
async def test_run_ends_whenever_the_engine_itself_breaks(
    run_mode: Any, monkeypatch: pytest.MonkeyPatch, error: type, times: int
) -> None:
    """The clock that stamps records raises at each of its readings in turn, and again while that is being settled."""

    @tool
    async def quick() -> str:
        return "x"

    @tool
    async def slow() -> str:
        await anyio.sleep(0.001)
        return "y"

    async def run(at: int) -> tuple[BrokenClock, Watch, BaseException | None]:
        agent = agent_of(quick, slow, calls=[call("quick", call_id="c1"), call("slow", call_id="c2")])
        watch, clock = Watch(), BrokenClock(at, times, error("broken"))
        with monkeypatch.context() as patch:
            patch.setattr("time.time", clock)
            try:
                with anyio.fail_after(20):
                    await run_mode(agent, "go", run_config=RunConfig(instruments=(watch,)))
            except BaseException as left:
                return clock, watch, left
            return clock, watch, None

    clock, _, left = await run(10**9)
    assert left is None
    for at in range(1, clock.readings + 1):
        _, watch, left = await run(at)
        if isinstance(left, ToolCallError):
            left = left.__cause__
        assert type(left) is error, (at, left)
        if times < 3:  # else there may be no time for an outcome
            settled(watch)


@pytest.mark.backends("asyncio")
async def test_loop_that_cannot_say_whether_it_is_closed(run_mode: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop of a durable engine's workflow lacks `is_closed`; a run on it works as on any other."""

    def unknown() -> bool:
        raise NotImplementedError

    @tool
    async def add(a: int, b: int) -> int:
        await anyio.lowlevel.checkpoint()
        return a + b

    with monkeypatch.context() as patch:
        patch.setattr(asyncio.get_running_loop(), "is_closed", unknown)
        result = await run_mode(agent_of(add, calls=[call("add", {"a": 1, "b": 2}, call_id="c1")]), "go")
    assert result.final_output == "done"


@pytest.mark.scenario("RP-01")
def test_thread_of_a_run_is_awaited_when_the_loop_is_left() -> None:
    """A native cancellation passes anyio's shield around a thread; the run still ends after its bodies."""
    watch = Watch()
    began, release_refs, ended = threading.Event(), threading.Event(), threading.Event()

    @tool
    def blocks() -> str:
        began.set()
        release_refs.wait(30)
        ended.set()
        return "late"

    agent = agent_of(blocks, calls=[call("blocks", call_id="c1")])
    seen: list[bool] = []

    async def run() -> None:
        try:
            await Runner.run(agent, "go", run_config=RunConfig(instruments=(watch,)))
        finally:
            seen.append(ended.is_set())

    async def main() -> None:
        task = asyncio.ensure_future(run())
        await asyncio.get_running_loop().run_in_executor(None, began.wait)
        assert not task.done()
        # The loop is left now, and the thread continues until all of its tasks have been cancelled.
        asyncio.get_running_loop().call_soon(lambda: threading.Timer(0.05, release_refs.set).start())

    asyncio.run(main())
    assert seen == [True]
    (outcome,) = settled(watch).values()
    assert (outcome.status, outcome.cancelled_by, outcome.abandoned) == ("cancelled", "parent", False)


@pytest.mark.scenario("RP-04")
@pytest.mark.parametrize(
    "kind", ["CallStarted", "BodyEnded", "CallSettled", "BatchEnded", "ModelResponded", "RunEnded"]
)
@pytest.mark.parametrize("error", [Fatal, KeyboardInterrupt, SystemExit, GeneratorExit])
async def test_base_exception_of_an_instrument_ends_the_run_bare(run_mode: Any, kind: str, error: type) -> None:
    """The step in which the record is appended is done all the same, so every call is settled."""

    class Broken(Watch):
        def on_record(self, record: Any) -> None:
            super().on_record(record)
            if type(record).__name__ == kind:
                raise error("an instrument")

    watch = Broken()

    @tool(custom_data_extractor=lambda ctx, value: None)  # a step between body and outcome
    async def work(n: int) -> str:
        await anyio.lowlevel.checkpoint()
        return "x"

    agent = agent_of(work, calls=[call("work", {"n": n}, call_id=f"c{n}") for n in range(3)])
    with pytest.raises(error, match="an instrument"):
        await run_mode(agent, "go", run_config=RunConfig(instruments=(watch,)))
    settled(watch)
    assert len(watch.of(r.RunEnded)) == 1
    assert watch.end == ("completed" if kind == "RunEnded" else "failed")


@pytest.mark.scenario("LX-62")
@pytest.mark.parametrize("kind", ["CallStarted", "CallSettled", "RunEnded"])
async def test_cancellation_made_up_by_an_instrument_is_logged(
    run_mode: Any, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The instrument's cancellation doesn't cancel the run, and is treated like an instrument's Exception."""

    class Odd(Watch):
        def on_record(self, record: Any) -> None:
            super().on_record(record)
            if type(record).__name__ == kind:
                raise asyncio.CancelledError("an instrument")

    watch = Odd()

    @tool
    async def work() -> str:
        return "x"

    result = await run_mode(agent_of(work, calls=[call("work")]), "go", run_config=RunConfig(instruments=(watch,)))
    assert result.final_output == "done"
    assert len([record for record in caplog.records if "failed in on_record" in record.message]) == 1


@pytest.mark.scenario("RP-05")
@pytest.mark.backends("asyncio")
async def test_run_whose_task_is_cancelled_before_it_begins_fails(run_mode: Any) -> None:
    """A stranger cancels the run's own task before its first step: the caller gets an error, and does not wait."""
    asyncio.get_running_loop().call_soon(cancel_tasks, "agentloop run")
    agent = Agent("a", model=ScriptedModel([say("done")]))
    with pytest.raises(UserError, match="cancelled by other code"):
        await run_mode(agent, "go")


class Opened(ScriptedModel):
    """A model that has to be entered, which takes a step."""

    entered = False
    is_open = False  # type: ignore[assignment]

    async def __aenter__(self) -> Any:
        self.entered = True
        return self


@pytest.mark.scenario("RP-05")
@pytest.mark.backends("asyncio")
async def test_run_whose_resource_loses_its_task_fails(run_mode: Any) -> None:
    """A stranger cancels the task that would have entered the model: the run that waits for the model ends."""

    class Stranger(Watch):
        def on_record(self, record: Any) -> None:
            super().on_record(record)
            if isinstance(record, r.RunStarted):  # the task is made in this step, and begins after the callback
                asyncio.get_running_loop().call_soon(cancel_tasks, "agentloop resource")

    watch, model = Stranger(), Opened([say("done")])
    with pytest.raises(UserError, match="cancelled by other code"):
        await run_mode(Agent("a", model=model), "go", run_config=RunConfig(instruments=(watch,)))
    assert not model.entered
    assert watch.end == "cancelled"
