"""What type checkers know of the options of runs. Checked, never run."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, assert_type

from agentloop import (
    Agent,
    BatchedRun,
    ErrorHandlerData,
    ErrorHandlerResult,
    ResumeOptions,
    RunBatch,
    RunConfig,
    RunHooks,
    Runner,
    RunOptions,
    RunResult,
    RunStream,
    ToolContext,
    tool,
)
from agentloop.items import UserMessage
from agentloop.journal import MemoryJournal, SQLiteJournal
from agentloop.sessions import MemorySession


class Shop:
    """A context."""


@tool
def prices(ctx: ToolContext[Shop]) -> str:
    """Tell the prices."""
    return ""


clerk = Agent("clerk", tools=[prices], output_type=int)


async def give_up(data: ErrorHandlerData) -> ErrorHandlerResult | None:
    return ErrorHandlerResult(0) if data.run_data.usage.requests > 3 else None


async def options_are_those_of_every_way_to_run() -> None:
    """Given one by one, or kept in a dictionary; the result is the agent's."""
    options: RunOptions[Shop] = {"context": Shop(), "max_turns": 3, "hooks": RunHooks(), "session": MemorySession()}
    assert_type(await Runner.run(clerk, "hi", **options), RunResult[int])
    assert_type(Runner.run_streamed(clerk, "hi", **options), RunStream[int])
    assert_type(Runner.run_sync(clerk, "hi", backend="trio", **options), RunResult[int])
    assert_type(await Runner.run(clerk, "hi", context=Shop(), journal=MemoryJournal()), RunResult[int])
    assert_type(await Runner.run(clerk, "hi", max_turns=None, error_handlers={"max_turns": give_up}), RunResult[int])
    assert_type(await Runner.resume(clerk, MemoryJournal(), context=Shop()), RunResult[int])
    assert_type(await Runner.resume(clerk, journal=MemoryJournal(), run_config=RunConfig()), RunResult[int])


async def inputs() -> AsyncIterator[str]:
    yield "hi"


async def journal_of(index: int, given: Any) -> SQLiteJournal:
    return SQLiteJournal("runs.sqlite", f"run {index}")


async def many_runs_give_the_agents_results() -> None:
    """Awaited, iterated, with inputs and journals of every kind."""
    options: ResumeOptions[Shop] = {"context": Shop(), "max_turns": 3}
    assert_type(await Runner.run_or_resume(clerk, "hi", journal=MemoryJournal(), **options), RunResult[int])
    assert_type(await Runner.run_many(clerk, ["hi"], limit=2, **options), list[BatchedRun[RunResult[int]]])
    async with Runner.run_many(clerk, inputs(), limit=None, journals=Path("jobs"), ordered=True) as batch:
        assert_type(batch, RunBatch[RunResult[int]])
        async for run in batch:
            assert_type(run, BatchedRun[RunResult[int]])
            assert_type(run.result.final_output, int)
            assert_type(run.error, Exception | None)
        assert_type(batch.total, int | None)
    Runner.run_many(clerk, [[UserMessage("hi")], "hi"], journals=lambda index, given: MemoryJournal(), fail_fast=True)
    Runner.run_many(clerk, ["hi"], journals=journal_of, context=Shop())


async def wrong_options_of_many_runs_are_found() -> None:
    """A journal of one run for many, inputs and journals of another kind, a context of another kind."""
    Runner.run_many(clerk, ["hi"], journal=MemoryJournal())  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Runner.run_many(clerk, [3])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    Runner.run_many(clerk, ["hi"], journals=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Runner.run_many(clerk, ["hi"], context="shop")  # type: ignore[misc]  # pyright: ignore[reportArgumentType]
    await Runner.run_or_resume(clerk, "hi")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


async def wrong_options_are_found() -> None:
    """Those that don't exist or don't fit, those of another function, and a context of another kind, in every way."""
    await Runner.run(clerk, "hi", timeout=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await Runner.run(clerk, "hi", max_turns="3")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await Runner.run(clerk, "hi", context="shop")  # type: ignore[misc]  # pyright: ignore[reportArgumentType]
    Runner.run_streamed(clerk, "hi", hooks=RunConfig())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Runner.run_streamed(clerk, "hi", context="shop")  # type: ignore[misc]  # pyright: ignore[reportArgumentType]
    Runner.run_sync(clerk, "hi", contxt=Shop())  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Runner.run_sync(clerk, "hi", context="shop")  # type: ignore[misc]  # pyright: ignore[reportArgumentType]
    await Runner.resume(clerk, "journal")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await Runner.resume(clerk, MemoryJournal(), session=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await Runner.resume(clerk, MemoryJournal(), backend="trio")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    _kept: RunOptions[Any] = {"timeout": 3}  # type: ignore[typeddict-unknown-key]  # pyright: ignore[reportAssignmentType]
