"""A run raises one bare exception: never a group, only once, and the consumer's own exception comes first."""

import asyncio
from typing import Any

import anyio
import attrs
import pytest
from kit.agents import Run, call_each, configure_run, fine, make_agent
from kit.ending import Fatal, endless
from kit.results import read_outputs
from kit.watching import Watch

from agentloop import MaxTurnsExceeded, ModelBehaviorError, RunHooks, Runner, ToolCallError, UserError, tool
from agentloop import events as ev
from agentloop import records as r
from agentloop.testing import call, fail


class Boom(Exception):
    """The consumer's own error."""


def raising(error: BaseException, name: str = "fails", **options: Any) -> Any:
    """Return a tool that raises *error* after a checkpoint."""

    async def fails() -> str:
        await anyio.lowlevel.checkpoint()
        raise error

    return tool(name=name, **options)(fails)


@pytest.mark.parametrize("siblings", [0, 3])
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, Fatal])
async def test_fatal_exception_of_a_body_leaves_bare(run_mode: Run, kind: type[BaseException], siblings: int) -> None:
    """The very object leaves, in no wrapper or group, despite the tool's failure function; everything is joined."""
    error = kind("stop")
    asked: list[Any] = []
    watch = Watch()

    def words(ctx: Any, error: Exception) -> str:
        asked.append(error)
        return "handled"

    agent = make_agent(
        [raising(error, failure_error_function=words), endless], call_each("fails", *["endless"] * siblings)
    )
    with pytest.raises(kind) as caught:
        await run_mode(agent, "go", run_config=configure_run(watch))
    assert caught.value is error
    assert asked == []
    assert set(watch.endings().values()) <= {("failed", None), ("cancelled", "sibling")}
    assert len(watch.endings()) == 1 + siblings
    assert watch.end == "failed"


@pytest.mark.parametrize("nested", [False, True])
async def test_a_cancellation_at_any_record_does_not_hide_a_fatal_exception_before_it(
    run_mode: Run, nested: bool
) -> None:
    """A body has raised it, and the run is cancelled at each of the records that follow: it leaves all the same."""

    async def end_at(place: int) -> tuple[bool, Watch]:
        error = Fatal("stop")
        agent = make_agent([raising(error)], call("fails"))
        if nested:
            agent = make_agent([agent.as_tool("inner")], call("inner", {"input": "go"}))
        ended: list[str] = []
        with anyio.CancelScope() as scope:

            class Cancels(Watch):
                def on_record(self, record: r.Record) -> None:
                    super().on_record(record)
                    if isinstance(record, r.BodyEnded) or ended:
                        ended.append(type(record).__name__)
                        if len(ended) == place:
                            scope.cancel()

            watch = Cancels()
            with pytest.raises(Fatal) as caught:
                await run_mode(agent, "go", run_config=configure_run(watch))
            assert caught.value is error, ended
        return len(ended) < place, watch

    place, over = 1, False
    while not over:
        over, watch = await end_at(place)
        assert {end.status for end in watch.of(r.RunEnded)} == {"failed"}
        place += 1
    assert place > 3


@pytest.mark.parametrize("holder", ["leaves", "is cancelled", "raises"])
async def test_a_fatal_exception_of_a_stream_leaves_its_block_before_a_cancellation(holder: str) -> None:
    """Nobody has read it, and the holder's scope has been cancelled since; the holder's own error keeps its place."""
    error = Fatal("stop")

    async def hold() -> None:
        async with Runner.run_streamed(make_agent([raising(error)], call("fails")), "go") as stream:
            await stream.finished()
            scope.cancel()
            if holder == "is cancelled":
                await anyio.lowlevel.checkpoint()
            if holder == "raises":
                raise Boom

    if holder == "raises":
        with anyio.CancelScope() as scope:
            await hold()
        assert scope.cancelled_caught
        return
    with pytest.raises(Fatal) as caught, anyio.CancelScope() as scope:
        await hold()
    assert caught.value is error


@pytest.mark.real_clock
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
async def test_fatal_exception_of_a_sync_body_leaves_bare(run_mode: Run, kind: type[BaseException]) -> None:
    """A fatal exception leaves bare from a worker thread too."""
    error = kind("stop")

    @tool
    def fails() -> str:
        raise error

    with pytest.raises(kind) as caught:
        await run_mode(make_agent([fails], call_each("fails")), "go")
    assert caught.value is error


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_fatal_exception_leaves_run_sync_bare(kind: type[BaseException], backend: Any) -> None:
    """A fatal exception leaves the event loop bare as well, on both backends."""
    error = kind("stop")
    agent = make_agent([raising(error), endless], call_each("fails", "endless"))
    with pytest.raises(kind) as caught:
        Runner.run_sync(agent, "go", backend=backend)
    assert caught.value is error


@pytest.mark.scenario("SF-07")
@pytest.mark.parametrize("order", [("fatal", "broken"), ("broken", "fatal")])
async def test_fatal_exception_beats_an_ordinary_one(run_mode: Run, order: tuple[str, str]) -> None:
    """The fatal exception leaves the run in either model order, with the ordinary one as a note."""
    met = anyio.Event()
    met_count = [0]

    async def meet() -> None:
        met_count[0] += 1
        if met_count[0] == 2:
            met.set()
        await met.wait()

    @tool
    async def fatal() -> str:
        await meet()
        raise Fatal("fatal")

    @tool(failure_error_function=None)
    async def broken() -> str:
        await meet()
        raise ValueError("broken")

    with pytest.raises(Fatal) as caught:
        await run_mode(make_agent([fatal, broken], call_each(*order)), "go")
    assert any("broken" in note for note in caught.value.__notes__)


async def test_error_group_of_a_body_is_the_tools_failure_and_leaves_as_its_cause(run_mode: Run) -> None:
    """A body's own group isn't unwrapped, nor does the run raise one: `ToolCallError` caused by it."""
    group = ExceptionGroup("several", [ValueError("one"), KeyError("two")])
    with pytest.raises(ToolCallError) as caught:
        await run_mode(make_agent([raising(group, failure_error_function=None)], call_each("fails")), "go")
    assert caught.value.__cause__ is group


async def test_error_group_from_a_bodys_own_task_group_is_told_to_the_model(run_mode: Run) -> None:
    """Task groups are a body's own affair."""

    async def child() -> None:
        raise ValueError("child")

    @tool
    async def grouped() -> str:
        async with anyio.create_task_group() as group:
            group.start_soon(child)
            group.start_soon(anyio.sleep, 60)
        return "never"

    result = await run_mode(make_agent([grouped, fine], call_each("grouped", "fine")), "go")
    assert "ValueError(child)" in read_outputs(result.new_items)["c1"]
    assert read_outputs(result.new_items)["c2"] == "fine"


async def test_keyboard_interrupt_in_a_bodys_task_group_leaves_bare(run_mode: Run) -> None:
    """A fatal leaf inside a body's group is not hidden by it."""

    async def child() -> None:
        raise Fatal("child")

    @tool
    async def grouped() -> str:
        async with anyio.create_task_group() as group:
            group.start_soon(child)
            await anyio.sleep(60)
        return "never"

    with pytest.raises(Fatal):
        await run_mode(make_agent([grouped, fine], call_each("grouped", "fine")), "go")


async def test_models_error_leaves_bare(run_mode: Run) -> None:
    """An exception of the model isn't wrapped."""
    error = ConnectionError("no model")
    with pytest.raises(ConnectionError) as caught:
        await run_mode(make_agent([], fail(error), done=None), "go")
    assert caught.value is error


async def test_run_sync_inside_a_loop_names_the_way(run_mode: Run) -> None:
    """A `UserError` is raised instead of a deadlock."""
    with pytest.raises(UserError, match=r"await Runner\.run"):
        Runner.run_sync(make_agent([]), "go")


async def test_library_error_carries_the_runs_data(run_mode: Run) -> None:
    """A library error carries the results that the run had before it."""
    agent = make_agent([fine], call("fine", call_id="c1"), call("fine", call_id="c2"), done=None)
    with pytest.raises(MaxTurnsExceeded) as caught:
        await run_mode(agent, "go", max_turns=2)
    assert caught.value.run_data is not None
    assert read_outputs(caught.value.run_data.new_items) == {"c1": "fine", "c2": "fine"}


# ---------------------------------------------------------------------------------------------- streamed


class UntilEnd(RunHooks):
    """Tells when a run is over but for its last record."""

    def __init__(self) -> None:
        self.ended = anyio.Event()

    async def on_run_end(self, ctx: Any, outcome: Any) -> None:
        self.ended.set()


def broken_agent() -> Any:
    """Return an agent whose run fails in its first turn."""
    return make_agent([raising(ValueError("broken"), failure_error_function=None)], call_each("fails"))


async def test_streams_error_is_raised_once_from_iteration_after_all_events() -> None:
    """An error that is caught inside the block isn't raised again at its end; `error` and `result` give it."""
    events: list[Any] = []
    async with Runner.run_streamed(broken_agent(), "go") as stream:
        with pytest.raises(ToolCallError) as caught:
            async for event in stream:
                events.append(event)
        assert [event async for event in stream] == []
    assert isinstance(events[-1], ev.RunEnded)
    assert events[-1].status == "failed"
    assert any(isinstance(event, ev.CallSettled) for event in events)
    assert stream.error is caught.value
    assert stream.is_complete
    with pytest.raises(ToolCallError) as again:
        stream.result
    assert again.value is caught.value


async def test_streams_error_is_raised_when_the_block_is_left_by_a_consumer_that_does_not_iterate() -> None:
    """The error isn't lost, because the run had failed before the block was left."""
    watch, hooks = Watch(), UntilEnd()
    with pytest.raises(ToolCallError) as caught:
        async with Runner.run_streamed(broken_agent(), "go", hooks=hooks, run_config=configure_run(watch)) as stream:
            await hooks.ended.wait()
    assert stream.error is caught.value
    assert watch.end == "failed"


async def test_uncaught_iteration_error_leaves_the_block_bare_and_once() -> None:
    """An error that iteration raises and the block doesn't catch leaves the block without a wrapper."""
    with pytest.raises(ToolCallError) as caught:
        async with Runner.run_streamed(broken_agent(), "go") as stream:
            async for _ in stream:
                pass
    assert caught.value is stream.error


async def test_consumers_own_exception_wins_and_has_the_runs_error_as_context() -> None:
    """The run had failed unnoticed; the consumer's error leaves."""
    hooks = UntilEnd()
    with pytest.raises(Boom) as caught:
        async with Runner.run_streamed(broken_agent(), "go", hooks=hooks) as stream:
            await hooks.ended.wait()
            raise Boom("mine")
    assert isinstance(stream.error, ToolCallError)
    assert caught.value.__context__ is stream.error


async def test_consumers_own_exception_ends_the_run_and_leaves_bare() -> None:
    """The bodies are cancelled and joined; no group comes out."""
    finished: list[str] = []
    watch = Watch()

    @tool
    async def slow() -> str:
        try:
            await anyio.sleep(60)
        finally:
            finished.append("slow")
        return "never"

    with pytest.raises(Boom):
        async with Runner.run_streamed(
            make_agent([slow], call_each("slow")), "go", run_config=configure_run(watch)
        ) as stream:
            async for event in stream:
                if isinstance(event, ev.CallStarted):
                    raise Boom("mine")
    assert finished in ([], ["slow"])  # its body may not have begun
    assert watch.end == "cancelled"
    assert stream.error is None


async def test_fatal_exception_of_the_consumer_leaves_bare() -> None:
    """A `KeyboardInterrupt` that is raised in the block leaves it bare."""
    with pytest.raises(KeyboardInterrupt):
        async with Runner.run_streamed(make_agent([endless], call_each("endless")), "go") as stream:
            async for event in stream:
                if isinstance(event, ev.CallStarted):
                    raise KeyboardInterrupt


async def test_fatal_exception_is_raised_from_a_streams_iteration_bare() -> None:
    """A body's `KeyboardInterrupt` reaches the consumer's loop itself."""
    with pytest.raises(KeyboardInterrupt):
        async with Runner.run_streamed(make_agent([raising(KeyboardInterrupt())], call_each("fails")), "go") as stream:
            async for _ in stream:
                pass
    assert isinstance(stream.error, KeyboardInterrupt)


async def test_result_before_the_end_is_a_users_error() -> None:
    """The result can be read only after the end."""
    async with Runner.run_streamed(make_agent([]), "go") as stream:
        with pytest.raises(UserError):
            stream.result
        async for _ in stream:
            pass
    assert stream.result.final_output == "done"


async def test_bad_response_of_the_model_leaves_bare(run_mode: Run) -> None:
    """A `ModelBehaviorError` leaves the run, and no call has started."""
    agent = make_agent([fine], [call("fine", call_id="c1"), call("nothing", call_id="c2")], done=None)
    watch = Watch()
    with pytest.raises(ModelBehaviorError, match="nothing"):
        config = attrs.evolve(configure_run(watch), tool_not_found_behavior="raise")
        await run_mode(agent, "go", run_config=config)
    assert watch.end == "failed"


@pytest.mark.backends("asyncio", "asyncio-eager")
async def test_two_runs_in_a_native_task_group_leave_bare_errors() -> None:
    """`asyncio.TaskGroup` around runs sees the run's own error, nothing nested in it."""
    with pytest.raises(ExceptionGroup) as caught:
        async with asyncio.TaskGroup() as group:
            group.create_task(Runner.run(broken_agent(), "go"))
            group.create_task(Runner.run(make_agent([endless], call_each("endless")), "go"))
    assert [type(error) for error in caught.value.exceptions] == [ToolCallError]


@pytest.mark.backends("asyncio", "asyncio-eager")
async def test_native_timeout_around_a_run_ends_as_a_timeout() -> None:
    """`asyncio.timeout` works around a run: its cancellation comes out as it went in."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await Runner.run(make_agent([endless], call_each("endless", "endless")), "go")
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
