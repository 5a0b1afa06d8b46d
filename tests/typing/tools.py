"""Type checkers know the types of tools, their contexts, guardrails, limits and conditions. Checked, never run."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Protocol, assert_type

from agentloop import (
    Agent,
    Allow,
    Capacity,
    FunctionTool,
    GuardrailFunctionOutput,
    InputGuardrail,
    OutputGuardrail,
    Rate,
    RunContext,
    Runner,
    ToolContext,
    UsageLimits,
    input_guardrail,
    output_guardrail,
    tool,
)
from agentloop.config.conditions import Condition, MaxTurns, TextMention
from agentloop.guardrails import (
    RejectContent,
    ToolInputData,
    ToolInputGuardrail,
    ToolOutputData,
    ToolOutputGuardrail,
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
    assert_type(bare, FunctionTool[Any])
    assert_type(with_options, FunctionTool[int])
    assert_type(tool(len, name="length"), FunctionTool[Any])
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
        timeout_behavior="raise",
        failure_error_function=None,
        in_doubt="rerun",
        capacity=Capacity(2),
        examples=[("Read a.txt", {"path": "a.txt"})],
        secret=["path"],
    )
    assert_type(made(len), FunctionTool[Any])


class Account:
    """A context."""

    name = "Ada"


class Premium(Account):
    """A context that is more."""


class Elsewhere:
    """The context of another application."""


class Named(Protocol):
    """What a tool may ask of a context."""

    @property
    def name(self) -> str: ...


@tool
def of_account(ctx: ToolContext[Account], amount: int) -> str:
    """Pay."""
    return ctx.context.name


@tool(timeout=3.0)
async def of_named(ctx: RunContext[Named]) -> str:
    """Greet."""
    return ctx.context.name


@tool
def of_elsewhere(ctx: ToolContext[Elsewhere]) -> str:
    """Look elsewhere."""
    return ""


@tool
def of_any(ctx: ToolContext, amount: int) -> str:
    """Look anywhere."""
    return ""


@tool
def in_second_place(amount: int, ctx: ToolContext[Elsewhere]) -> str:
    """A context that a checker doesn't see."""
    return ""


def by_hand(ctx: ToolContext[Elsewhere], arguments: str) -> str:
    """The body of a tool that is made by hand."""
    return arguments


async def tools_have_a_context() -> None:
    """That of the function; agents and runs take it from their tools."""
    assert_type(of_account, FunctionTool[Account])
    assert_type(of_named, FunctionTool[Named])
    assert_type(of_any, FunctionTool[Any])
    assert_type(in_second_place, FunctionTool[Any])
    assert_type(FunctionTool(name="x", on_invoke_tool=by_hand), FunctionTool[Elsewhere])
    assert_type(Agent("a", tools=[bare]), Agent[Any, str])
    assert_type(Agent("a", tools=[of_account], output_type=int), Agent[Account, int])
    untyped: list[FunctionTool] = [bare, of_account]
    assert_type(Agent("a", tools=untyped), Agent[Any, str])
    await Runner.run(Agent("a", tools=[of_account]), "hi", context=Premium())
    await Runner.run(Agent("a", tools=[of_account]), "hi", context=Elsewhere())  # type: ignore[misc]  # pyright: ignore[reportArgumentType]


def tools_of_less_serve_agents_of_more() -> None:
    """Tools of a base class or a protocol, and those that ask for no context, go with any agent that has it."""
    declared: Agent[Premium, str] = Agent("a", tools=[bare, of_account, of_named, of_any])
    from_others: Agent[Premium, int] = Agent("b", tools=(of_account, declared.as_tool()), output_type=int)
    assert_type(Agent[Premium, str]("a", tools=[of_named, bare]), Agent[Premium, str])
    Agent("d", tools=[bare, of_account])  # mypy makes an agent of Any: the page on tools says so, and to declare it
    Runner.run_sync(declared, "hi", context=Elsewhere())  # type: ignore[misc]  # pyright: ignore[reportArgumentType]
    shared = [bare, of_account]
    assert_type(from_others, Agent[Premium, int])
    Agent("c", tools=shared)


def tools_of_another_context_are_found() -> None:
    """Where they are given, among whatever other tools."""
    a: Agent[Account, str] = Agent("a", tools=[of_elsewhere])  # type: ignore[list-item]  # pyright: ignore[reportAssignmentType]
    _b: Agent[Account, str] = Agent("b", tools=[bare, of_elsewhere])  # type: ignore[list-item]  # pyright: ignore[reportAssignmentType]
    _c: Agent[Account, int] = Agent("c", tools=[of_elsewhere], output_type=int)  # type: ignore[list-item]  # pyright: ignore[reportAssignmentType]
    Agent[Account, str]("d", tools=[bare, of_elsewhere])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    e: Agent[Account, str] = Agent("e", tools=(a.as_tool(), of_elsewhere))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    _f: Agent[Elsewhere, str] = Agent("f", tools=[e.as_tool()])  # type: ignore[list-item]  # pyright: ignore[reportAssignmentType]


def wrong_options_are_found() -> None:
    """A checker sees options that don't exist or don't fit."""
    tool(timeout="soon")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    tool(retries=3)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    tool(len, in_doubt="never")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    tool(capacity=[Capacity(1), 2])(len)  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    tool(len, params_json_schema={})  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    UsageLimits(requests="many")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def late(ctx: RunContext[Any]) -> bool:
    """A predicate."""
    return ctx.deadline is None


def conditions_compose() -> None:
    """A predicate may be on either side."""
    assert_type(MaxTurns(3) | TextMention("done"), Condition)
    assert_type(late & MaxTurns(3), Condition)
    assert_type(~MaxTurns(3), Condition)
