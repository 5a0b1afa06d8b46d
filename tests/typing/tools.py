"""What type checkers know of tools, their contexts, guardrails, limits and conditions. Checked, never run."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, assert_type

from agentloop import (
    Agent,
    Allow,
    Capacity,
    Condition,
    FunctionTool,
    GuardrailFunctionOutput,
    InputGuardrail,
    MaxTurns,
    OutputGuardrail,
    Rate,
    RejectContent,
    RunContext,
    TextMention,
    ToolContext,
    ToolInputData,
    ToolInputGuardrail,
    ToolOutputData,
    ToolOutputGuardrail,
    UsageLimits,
    input_guardrail,
    output_guardrail,
    tool,
    tool_input_guardrail,
    tool_output_guardrail,
)
from agentloop.usage import Usage


class Connection:
    """Something a body uses."""


@asynccontextmanager
async def connection() -> AsyncIterator[Connection]:
    yield Connection()


@tool
async def bare(path: str) -> str:
    """Read."""
    return path


@tool(name="other", capacity=[Capacity(2), Rate(10, per=1.0)], timeout=3.0, idempotent=True)
async def with_options(ctx: ToolContext[int], path: str) -> str:
    """Read."""
    assert_type(ctx.context, int)
    assert_type(ctx.usage, Usage)
    assert_type(ctx.deadline, float | None)
    assert_type(await ctx.resource(connection), Connection)
    assert_type(ctx.cancel_call("call_1"), bool)
    return path


@tool_input_guardrail
def judge_arguments(data: ToolInputData) -> Allow | RejectContent:
    """Judge."""
    assert_type(data.arguments, dict[str, Any] | None)
    return Allow() if data.arguments else RejectContent("no")


@tool_output_guardrail(name="judge")
async def judge_output(data: ToolOutputData) -> Allow:
    """Judge."""
    return Allow(data.value)


@input_guardrail(run_in_parallel=False)
async def judge_input(ctx: RunContext[int], agent: Agent[int, str], given: object) -> GuardrailFunctionOutput:
    """Judge."""
    return GuardrailFunctionOutput(tripwire_triggered=ctx.context > 3)


@output_guardrail
def judge_answer(ctx: RunContext[int], agent: Agent[int, str], output: str) -> GuardrailFunctionOutput:
    """Judge."""
    return GuardrailFunctionOutput(len(output))


def decorators_give_what_they_name() -> None:
    """Bare or with options, one type each. What calling a tool gives isn't known to a checker."""
    assert_type(bare, FunctionTool)
    assert_type(with_options, FunctionTool)
    assert_type(tool(len, name="length"), FunctionTool)
    assert_type(bare("x"), Any)
    assert_type(judge_arguments, ToolInputGuardrail)
    assert_type(judge_output, ToolOutputGuardrail)
    assert_type(judge_input, InputGuardrail)
    assert_type(judge_answer, OutputGuardrail)


def options_are_known() -> None:
    """Each of a few kinds: text or nothing, a flag or a callable, a choice, a limit alone or several."""
    made = tool(
        name=None,
        is_enabled=lambda ctx, agent: True,
        timeout_behavior="raise_exception",
        failure_error_function=None,
        in_doubt="rerun",
        capacity=Capacity(2),
        examples=[("Read a.txt", {"path": "a.txt"})],
        secret=["path"],
    )
    assert_type(made(len), FunctionTool)


def wrong_options_are_found() -> None:
    """A checker sees options that don't exist or don't fit."""
    tool(timeout="soon")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    tool(retries=3)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    tool(len, in_doubt="never")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    tool(len, capacity=[Capacity(1), 2])  # type: ignore[list-item]  # pyright: ignore[reportCallIssue, reportArgumentType]
    tool(len, params_json_schema={})  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    UsageLimits(requests="many")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def late(ctx: RunContext[Any]) -> bool:
    """A predicate."""
    return ctx.deadline is None


def conditions_compose() -> None:
    """A predicate may stand on either side."""
    assert_type(MaxTurns(3) | TextMention("done"), Condition)
    assert_type(late & MaxTurns(3), Condition)
    assert_type(~MaxTurns(3), Condition)
