"""`Runner.run_many`: many runs under a cap, in any order or that of their inputs, with journals, and their failures."""

import gc
import os
import stat
import weakref
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from kit.agents import script_agent
from kit.ending import Fatal, HeldWork, Rendezvous, cancel_natively_when, cancel_when

from agentloop import (
    Agent,
    BatchedRun,
    RunConfig,
    Runner,
    RunResult,
    RunState,
    ToolExecution,
    UserError,
    open_runtime,
    tool,
)
from agentloop.exceptions import JournalError
from agentloop.items import ToolOutput, UserMessage
from agentloop.journal import MemoryJournal
from agentloop.model_events import ModelRequest
from agentloop.models import Model
from agentloop.run import current_runtime
from agentloop.run._batch import _AHEAD, _BUFFERED
from agentloop.testing import ScriptedModel, call, say, wait

MANY = 10_000


def asked(request: ModelRequest) -> str:
    """Return the request's first text."""
    return next(item.text for item in request.items if isinstance(item, UserMessage))


def make_agent(rule: Any, **fields: Any) -> Agent[Any, Any]:
    """Return an agent whose model answers each request by *rule*."""
    return Agent("many", model=ScriptedModel([rule] * MANY), **fields)


def echo(request: ModelRequest) -> Any:
    """Answer with the input; fail at one that begins with "bad"."""
    if asked(request).startswith("bad"):
        raise ValueError(f"can't answer {asked(request)!r}")
    return say(f"[{asked(request)}]")


def make_held_agent(work: HeldWork) -> Agent[Any, Any]:
    """Return an agent that does *work* where the input is "hold", and answers others at once."""

    @tool
    async def hold() -> str:
        """Hold."""
        await work()
        return "held"

    def rule(request: ModelRequest) -> Any:
        held = any(isinstance(item, ToolOutput) for item in request.items)
        return call("hold") if asked(request) == "hold" and not held else echo(request)

    return make_agent(rule, tools=[hold])


Run = BatchedRun[RunResult[Any]]


async def test_awaited_batch_gives_all_runs_in_the_order_of_the_inputs() -> None:
    """The first run ends last, and is still the first of the list."""
    last = anyio.Event()

    def rule(request: ModelRequest) -> Any:
        if asked(request) == "first":
            return [wait(last), say("first")]
        if asked(request) == "last":
            last.set()
        return say(asked(request))

    inputs = ["first", [UserMessage("second")], "last"]
    runs = await Runner.run_many(make_agent(rule), inputs)
    assert [run.result.final_output for run in runs] == ["first", "second", "last"]
    assert [(run.index, run.input, run.error) for run in runs] == [(n, given, None) for n, given in enumerate(inputs)]
    assert repr(runs[0]) == "<BatchedRun 0: completed>"


async def test_iterator_of_inputs_needs_only_what_async_for_needs() -> None:
    """`__anext__` is enough."""

    class Iterator:
        def __init__(self) -> None:
            self.left = ["one", "two"]

        async def __anext__(self) -> str:
            if not self.left:
                raise StopAsyncIteration
            return self.left.pop(0)

    class Inputs:
        def __aiter__(self) -> Any:
            return Iterator()

    runs = await Runner.run_many(make_agent(lambda request: say(asked(request))), Inputs())
    assert [run.result.final_output for run in runs] == ["one", "two"]


@pytest.mark.parametrize(("ordered", "expected"), [(False, ["second", "first"]), (True, ["first", "second"])])
async def test_runs_are_given_as_they_end_or_in_the_order_of_the_inputs(ordered: bool, expected: list[str]) -> None:
    """The second run ends while the first waits; without an order it comes first."""
    go = anyio.Event()

    def rule(request: ModelRequest) -> Any:
        return [wait(go), say("first")] if asked(request) == "first" else say("second")

    seen: list[str] = []
    async with Runner.run_many(make_agent(rule), ["first", "second"], ordered=ordered) as batch:
        while batch.finished == 0:
            await anyio.lowlevel.checkpoint()
        if ordered:
            go.set()
        async for run in batch:
            seen.append(run.result.final_output)
            go.set()
    assert seen == expected
    assert (batch.total, batch.started, batch.finished, batch.failed) == (2, 2, 2, 0)


@pytest.mark.parametrize("limit", [1, 3])
async def test_as_many_runs_are_under_way_as_the_limit_says(limit: int) -> None:
    """The peak is the limit, whichever kind of iterable gives the inputs."""
    running, peak, full = 0, 0, anyio.Event()

    @tool
    async def work() -> str:
        """Work, once as many are at work as may be."""
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        if running == limit:
            full.set()
        await full.wait()
        for _ in range(20):
            await anyio.lowlevel.checkpoint()
        running -= 1
        return "done"

    def rule(request: ModelRequest) -> Any:
        return say("done") if any(isinstance(item, ToolOutput) for item in request.items) else call("work")

    runs = await Runner.run_many(make_agent(rule, tools=[work]), (str(n) for n in range(10)), limit=limit)
    assert (len(runs), peak) == (10, limit)


async def test_no_limit_starts_all_runs_at_once() -> None:
    """Each run waits until all have asked."""
    all_asked, count = anyio.Event(), 0

    def rule(request: ModelRequest) -> Any:
        nonlocal count
        count += 1
        if count == 50:
            all_asked.set()
        return [wait(all_asked), say(asked(request))]

    assert len(await Runner.run_many(make_agent(rule), list(map(str, range(50))))) == 50


async def test_failed_run_is_given_with_its_error_and_the_others_continue() -> None:
    """`result` raises the error, `error` gives it."""
    runs = await Runner.run_many(make_agent(echo), ["one", "bad two", "three"], limit=1)
    assert [run.error is None for run in runs] == [True, False, True]
    with pytest.raises(ValueError, match="can't answer 'bad two'"):
        _ = runs[1].result
    assert repr(runs[1]) == """<BatchedRun 1: ValueError("can't answer 'bad two'")>"""


async def test_wrong_input_is_the_error_of_its_run() -> None:
    """A value that is no input fails alone, as in `Runner.run`."""
    given: list[Any] = ["one", 3]
    runs = await Runner.run_many(make_agent(echo), given)
    assert str(runs[1].error) == "input: expected text or a sequence of items, got int"


async def test_fail_fast_cancels_the_other_runs_and_raises_the_error_bare() -> None:
    """The run under way cleans up; inputs behind the failure are never read."""
    work = HeldWork()
    read: list[str] = []

    def inputs() -> Iterator[str]:
        for given in ("fine", "hold", "bad", "unread", "unread"):
            read.append(given)
            yield given

    taken: list[int] = []
    with pytest.raises(ValueError, match="can't answer 'bad'"):
        async with Runner.run_many(make_held_agent(work), inputs(), limit=2, fail_fast=True) as batch:
            async for run in batch:
                taken.append(run.index)
    assert (work.ending, taken, batch.failed) == ("cleaned up", [0], 1)
    assert read[:3] == ["fine", "hold", "bad"]
    assert len(read) < 5


async def test_of_several_failures_that_of_the_first_input_is_raised() -> None:
    """A run that fails while it is being cancelled is named in a note; the order of the failures plays no part."""
    held = anyio.Event()

    @tool(failure_error_function=None)
    async def hold() -> str:
        """Fail when cancelled."""
        held.set()
        try:
            await anyio.sleep_forever()
        finally:
            raise Fatal("worse")

    def rule(request: ModelRequest) -> Any:
        return call("hold") if asked(request) == "hold" else [wait(held), say("x"), _fails()]

    with pytest.raises(Fatal, match="worse") as raised:
        await Runner.run_many(make_agent(rule, tools=[hold]), ["bad", "hold"], fail_fast=True)
    assert raised.value.__notes__ == ["also failed: RuntimeError(no answer)"]


@pytest.mark.scenario("SM-09")
@pytest.mark.parametrize("limit", [None, 4])
@pytest.mark.parametrize("waits", [{0, 1, 2}, {1, 3}], ids=str)
async def test_of_runs_that_fail_in_one_pass_that_of_the_first_input_is_raised(
    waits: set[int], limit: int | None
) -> None:
    """The others are its notes, in the order of the inputs. No other input is read once a run has failed."""
    meeting = Rendezvous(len(waits))
    read: list[str] = []

    class Meets(Model):
        @asynccontextmanager
        async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[Any]]:
            async def fail_together() -> AsyncIterator[Any]:
                if int(asked(request)) not in waits:
                    await anyio.sleep_forever()
                await meeting.wait()
                raise ValueError(asked(request))
                yield

            yield fail_together()

    def inputs() -> Iterator[str]:
        for number in range(9 if limit else 4):
            read.append(str(number))
            yield str(number)

    for _ in range(5):  # trio draws lots for the order of the tasks of a pass
        meeting = Rendezvous(len(waits))
        read.clear()
        with pytest.raises(ValueError, match=r"^\d") as raised:
            await Runner.run_many(Agent("meets", model=Meets()), inputs(), limit=limit, fail_fast=True)
        first, *others = sorted(waits)
        assert raised.value.args == (str(first),)
        assert raised.value.__notes__ == [f"also failed: ValueError({other})" for other in others]
        assert read == ["0", "1", "2", "3"]


def _fails() -> Any:
    from agentloop.testing import fail

    return fail(RuntimeError("no answer"))


async def test_fatal_error_of_a_body_cancels_all_runs_without_fail_fast() -> None:
    """It is no failure of one run: it propagates, as from `Runner.run`."""

    @tool
    async def dies() -> str:
        """Die."""
        raise Fatal("over")

    def rule(request: ModelRequest) -> Any:
        return call("dies") if asked(request) == "die" else [wait(60), say("late")]

    with pytest.raises(Fatal, match="over"):
        await Runner.run_many(make_agent(rule, tools=[dies]), ["wait", "die"])


async def test_error_of_the_inputs_cancels_the_runs_and_is_raised_once() -> None:
    """Runs that had ended before are given first."""
    work = HeldWork()

    async def inputs() -> AsyncIterator[str]:
        yield "one"
        yield "hold"
        await work.started.wait()
        raise LookupError("the source is gone")

    seen: list[str] = []
    async with Runner.run_many(make_held_agent(work), inputs()) as batch:
        with pytest.raises(LookupError, match="the source is gone"):
            async for run in batch:
                seen.append(run.result.final_output)
        with pytest.raises(StopAsyncIteration):
            await anext(batch)
    assert (seen, work.ending, batch.total) == (["[one]"], "cleaned up", None)


async def test_error_that_was_not_iterated_is_raised_at_the_end_of_the_block() -> None:
    """An error of the block itself wins, and has it as its context."""
    read = anyio.Event()

    def inputs() -> Iterator[str]:
        read.set()
        raise LookupError("gone")
        yield "never"

    async def wait_for_the_end() -> None:
        await read.wait()
        for _ in range(50):
            await anyio.lowlevel.checkpoint()

    with pytest.raises(LookupError, match="gone"):
        async with Runner.run_many(make_agent(echo), inputs()):
            await wait_for_the_end()
    with pytest.raises(KeyError) as raised:
        async with Runner.run_many(make_agent(echo), inputs()):
            await wait_for_the_end()
            raise KeyError("mine")
    assert isinstance(raised.value.__context__, LookupError)


async def test_leaving_the_block_early_cancels_and_joins() -> None:
    """No error is raised, and the body has cleaned up."""
    work = HeldWork()
    async with Runner.run_many(make_held_agent(work), ["one", "hold"]) as batch:
        async for run in batch:
            await work.started.wait()
            assert run.index == 0
            break
    assert (work.ending, batch.finished) == ("cleaned up", 1)


async def test_error_of_the_block_is_raised_bare_after_the_join() -> None:
    """It isn't wrapped in a group."""
    work = HeldWork()
    with pytest.raises(KeyError):
        async with Runner.run_many(make_held_agent(work), ["hold"]):
            await work.started.wait()
            raise KeyError("mine")
    assert work.ending == "cleaned up"


async def test_cancellation_of_the_caller_joins_all_runs() -> None:
    """A cancelled scope around the awaited batch cancels every run."""
    work = HeldWork()

    async def run() -> None:
        await Runner.run_many(make_held_agent(work), ["one", "hold"])

    await cancel_when(work.started, run)
    assert work.ending == "cleaned up"


@pytest.mark.backends("asyncio", "asyncio-eager")
async def test_native_cancellation_leaves_as_it_came() -> None:
    """`Task.cancel()` of the caller's task joins all runs; the count of cancellations stays one."""
    work = HeldWork()

    async def run() -> None:
        await Runner.run_many(make_held_agent(work), ["one", "hold"])

    await cancel_natively_when(work.started, run)
    assert work.ending == "cleaned up"


async def test_fatal_error_outranks_the_cancellation_of_the_caller() -> None:
    """A body that dies while it is cancelled is heard of."""
    work = HeldWork(clean_up=_die)

    async def cancel(scope: anyio.CancelScope) -> None:
        await work.started.wait()
        scope.cancel()

    with pytest.raises(Fatal, match="over"):
        await _run_with(cancel, make_held_agent(work))


def _die() -> None:
    raise Fatal("over")


async def _run_with(cancel: Any, agent: Agent[Any, Any]) -> None:
    """Run a batch in a scope that *cancel* cancels; raise the batch's error bare."""
    errors: list[BaseException] = []
    async with anyio.create_task_group() as group:
        with anyio.CancelScope() as scope:
            group.start_soon(cancel, scope)
            try:
                await Runner.run_many(agent, ["one", "hold"])
            except Fatal as error:
                errors.append(error)
    for error in errors:
        raise error


def test_interrupt_while_the_runs_are_joined_is_raised_bare() -> None:
    """On trio it meets the main task in the nursery, which would wrap it."""
    import signal

    import trio

    raised = trio.lowlevel.enable_ki_protection(lambda: signal.raise_signal(signal.SIGINT))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    async def main() -> None:
        work = HeldWork(clean_up=raised)
        async with Runner.run_many(make_held_agent(work), ["hold"]):
            await work.started.wait()

    try:
        with pytest.raises(KeyboardInterrupt):
            trio.run(main)
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.backends("asyncio")
@pytest.mark.filterwarnings("ignore:coroutine 'RunBatch:RuntimeWarning")  # of a task that never begins
@pytest.mark.parametrize("begun", [False, True], ids=["before its first step", "later"])
@pytest.mark.parametrize("name", ["agentloop batch of runs", "agentloop run 1 of a batch"])
async def test_task_that_other_code_cancels_ends_the_batch_or_its_run_with_an_error(begun: bool, name: str) -> None:
    """Nothing hangs, and no run is missing without a word."""
    import asyncio

    work = HeldWork()

    def cancel() -> bool:
        found = [task for task in asyncio.all_tasks() if task.get_name() == name]
        return bool(found) and found[0].cancel()

    errors: list[BaseException | None] = []
    try:
        async with Runner.run_many(make_held_agent(work), ["one", "hold"]) as batch:
            if begun:
                await work.started.wait()
            while not cancel():
                await anyio.lowlevel.checkpoint()
            errors += [run.error async for run in batch]
    except UserError as error:
        errors.append(error)
    assert "a task of this run was cancelled by other code" in str(errors[-1])
    assert work.ending in ("", "cleaned up")
    gc.collect()


async def test_slow_consumer_stops_new_runs() -> None:
    """Inputs are read as far as the limit allows and the consumer has room; none is read too early."""
    read: list[int] = []

    def inputs() -> Iterator[str]:
        for n in range(MANY):
            read.append(n)
            yield str(n)

    for ordered, ahead in ((False, 2 * _BUFFERED), (True, 2 * _AHEAD)):
        read.clear()
        async with Runner.run_many(make_agent(echo), inputs(), limit=2, ordered=ordered) as batch:
            while batch.finished < ahead:
                await anyio.lowlevel.checkpoint()
            for _ in range(50):
                await anyio.lowlevel.checkpoint()
            assert len(read) == batch.started == ahead
            await anext(batch)
            while batch.finished == ahead:
                await anyio.lowlevel.checkpoint()
            assert len(read) == ahead + 1


@pytest.mark.slow
async def test_no_result_is_kept_after_it_was_taken() -> None:
    """Memory doesn't grow with the number of inputs: only the results that nothing has taken are held."""
    alive: list[weakref.ref[Any]] = []

    def inputs() -> Iterator[str]:
        for n in range(300):
            yield str(n)

    agent = Agent("many", model=_Forgetting([echo] * 300))
    async with Runner.run_many(agent, inputs(), limit=2) as batch:
        async for run in batch:
            alive = [ref for ref in alive if ref() is not None]
            alive.append(weakref.ref(run.result))
            if run.index % 50 == 0:
                gc.collect()
                assert sum(ref() is not None for ref in alive) <= 4
            del run


class _Forgetting(ScriptedModel):
    """A scripted model that doesn't keep its requests."""

    def __init__(self, steps: Any) -> None:
        super().__init__(steps)
        self.requests = _Nothing()


class _Nothing(list[ModelRequest]):
    def append(self, request: ModelRequest) -> None:
        """Keep nothing."""


async def test_states_are_inputs_too() -> None:
    """Paused runs are resumed many at a time."""
    gone: list[str] = []

    @tool(needs_approval=True)
    async def delete(name: str) -> str:
        """Delete."""
        gone.append(name)
        return f"{name} is gone"

    def rule(request: ModelRequest) -> Any:
        said = [item.output for item in request.items if isinstance(item, ToolOutput)]
        return say(str(said[0])) if said else call("delete", {"name": asked(request)})

    agent = make_agent(rule, tools=[delete])
    runs = await Runner.run_many(agent, ["a", "b"])
    states: list[RunState] = []
    for run in runs:
        assert run.result.status == "interrupted"
        states.append(run.result.to_state())
        states[-1].approve(run.result.interruptions[0])
    assert [run.result.final_output for run in await Runner.run_many(agent, states)] == ["a is gone", "b is gone"]
    assert sorted(gone) == ["a", "b"]


async def test_runs_share_one_runtime() -> None:
    """The batch opens one, or uses the one around it; it is closed when the batch has been left."""
    seen: set[Any] = set()

    @tool
    async def look() -> str:
        """Look."""
        seen.add(current_runtime())
        return "seen"

    def rule(request: ModelRequest) -> Any:
        return say("done") if any(isinstance(item, ToolOutput) for item in request.items) else call("look")

    agent = make_agent(rule, tools=[look])
    await Runner.run_many(agent, ["a", "b", "c"])
    assert len(seen) == 1
    assert None not in seen
    assert current_runtime() is None
    async with open_runtime() as runtime:
        seen.clear()
        await Runner.run_many(agent, ["a", "b", "c"])
        assert seen == {runtime}


# ------------------------------------------------------------------------------------------------ journals


@pytest.mark.real_clock
async def test_same_call_after_a_crash_repeats_nothing(tmp_path: Path) -> None:
    """The folder is made, only its owner can read it, and the second batch asks no model."""
    folder = tmp_path / "jobs" / "may"
    inputs = [f"{n}" for n in range(5)]
    runs = await Runner.run_many(make_agent(echo), inputs, limit=2, journals=folder)
    assert [run.result.final_output for run in runs] == [f"[{n}]" for n in range(5)]
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
    assert sorted(os.listdir(folder)) == [f"run-{n:06}.journal" for n in range(5)]
    again = await Runner.run_many(script_agent("many"), inputs, limit=2, journals=os.fspath(folder))
    assert [run.result.final_output for run in again] == [f"[{n}]" for n in range(5)]
    other = await Runner.run_many(script_agent("many"), ["0", "changed"], journals=folder)
    assert other[0].error is None
    assert "began with another one: '1'" in str(other[1].error)


class _Noted(MemoryJournal):
    closed = False

    async def aclose(self) -> None:
        """Keep the records, and note that it was closed."""
        await anyio.lowlevel.checkpoint()
        self.closed = True


@pytest.mark.parametrize("waits", [False, True], ids=["sync", "async"])
async def test_callable_gives_the_journal_of_each_run_and_the_batch_closes_it(waits: bool) -> None:
    """The callable gets index and input; the journals of cancelled runs are closed too."""
    work = HeldWork()
    made: dict[tuple[int, Any], _Noted] = {}

    def open_journal(index: int, given: Any) -> _Noted:
        return made.setdefault((index, given), _Noted())

    async def open_later(index: int, given: Any) -> _Noted:
        await anyio.lowlevel.checkpoint()
        return open_journal(index, given)

    factory: Any = open_later if waits else open_journal
    async with Runner.run_many(make_held_agent(work), ["one", "hold"], journals=factory) as batch:
        async for _ in batch:
            await work.started.wait()
            break
    assert list(made) == [(0, "one"), (1, "hold")]
    assert all(journal.closed for journal in made.values())
    work.go.set()
    runs = await Runner.run_many(make_held_agent(work), ["one", "hold"], journals=factory)
    assert [run.result.final_output for run in runs] == ["[one]", "[hold]"]
    assert runs[1].result.calls[0].outcome.status == "unknown"


async def test_faults_of_journals_are_the_errors_of_their_runs(tmp_path: Path) -> None:
    """A callable that raises or returns something else, a folder that can't be made, a state with a journal."""

    def raises(index: int, given: Any) -> Any:
        raise LookupError(f"no journal {index}")

    (tmp_path / "file").touch()
    state = (await Runner.run(make_agent(echo), "go")).to_state()
    cases: list[tuple[Any, Any, str]] = [
        (raises, "a", "no journal 0"),
        (lambda index, given: "journal", "a", "journals: expected a Journal, got 'journal'"),
        (tmp_path / "file" / "below", "a", "can't be made a folder: Not a directory"),
        (lambda index, given: MemoryJournal(), state, "inputs: with journals a RunState is no input"),
    ]
    for journals, given, words in cases:
        (run,) = await Runner.run_many(make_agent(echo), [given], journals=journals)
        assert words in str(run.error)


class _StuckJournal(MemoryJournal):
    async def aclose(self) -> None:
        """Never end by itself."""
        await anyio.sleep_forever()


async def test_a_journal_that_does_not_close_is_the_error_of_its_run() -> None:
    """Its run has completed, but the journal may still be locked; the other runs have their results."""
    journals = [_StuckJournal(), MemoryJournal()]
    config = RunConfig(tool_execution=ToolExecution(cleanup_grace=0.05))
    runs = await Runner.run_many(
        make_agent(echo), ["one", "two"], journals=lambda index, given: journals[index], run_config=config
    )
    assert isinstance(runs[0].error, JournalError)
    assert "the journal of run 0 of a batch did not close within 0.05 s" in str(runs[0].error)
    assert runs[1].result.final_output == "[two]"


# ------------------------------------------------------------------------------------------------ wrong use


class _BytesPath:
    def __fspath__(self) -> bytes:
        """Return a path that is no text."""
        return b"folder"


def test_wrong_arguments_are_refused_at_once() -> None:
    """Each error names the argument."""
    agent = make_agent(echo)
    run_many: Any = Runner.run_many
    cases: list[tuple[dict[str, Any], str]] = [
        ({"inputs": "one text"}, "inputs: expected a sequence, or another iterable, of inputs, got 'one text'"),
        ({"inputs": bytearray(b"ab")}, "inputs: expected a sequence, or another iterable, of inputs, got bytearray"),
        ({"inputs": {"one": 1}}, "inputs: expected a sequence, or another iterable, of inputs, got {'one': 1}"),
        ({"inputs": [], "journals": _BytesPath()}, "journals: expected a folder or a callable, got b'folder'"),
        ({"inputs": 3}, "inputs: expected a sequence"),
        ({"limit": 0}, "limit: expected at least 1"),
        ({"journals": 3}, "journals: expected a folder or a callable"),
        ({"ordered": "yes"}, "ordered: expected True or False"),
        ({"fail_fast": 1}, "fail_fast: expected True or False"),
        ({"run_config": 3}, "run_config"),
        ({"journal": MemoryJournal()}, "run_many has no option 'journal'"),
        ({"agent": "agent"}, "agent: expected an Agent, got 'agent'"),
    ]
    for wrong, words in cases:
        with pytest.raises(UserError, match=words):
            run_many(**{"agent": agent, "inputs": ["one"], **wrong})


async def test_batch_is_used_once_and_inside_its_block() -> None:
    """Entering it twice, and iterating it outside, are errors."""
    batch = Runner.run_many(make_agent(echo), ["one"])
    with pytest.raises(UserError, match="iterate a batch of runs inside its `async with` block"):
        await anext(batch)
    await batch
    with pytest.raises(UserError, match="can be entered or awaited once"):
        async with batch:
            pass


async def test_no_inputs_give_no_runs() -> None:
    """An empty batch is a checkpoint and ends."""
    assert await Runner.run_many(make_agent(echo), []) == []
