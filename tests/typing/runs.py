"""What type checkers know of the options of runs. Checked, never run."""

from typing import Any, assert_type

from agentloop import (
    Agent,
    ErrorHandlerData,
    ErrorHandlerResult,
    RunConfig,
    RunHooks,
    Runner,
    RunOptions,
    RunResult,
    RunStream,
    ToolContext,
    tool,
)
from agentloop.journal import MemoryJournal
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
