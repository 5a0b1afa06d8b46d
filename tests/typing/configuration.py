"""What type checkers know of the configuration of a run. Checked, never run."""

from collections.abc import Sequence
from decimal import Decimal
from typing import Annotated, Any, assert_type

import cattrs
from cattrs.preconf.json import make_converter

from agentloop import (
    Agent,
    Allow,
    HandoffInputData,
    Instrument,
    JsonSchema,
    ModelInputData,
    PendingCall,
    RequestUsage,
    RunConfig,
    RunContext,
    SessionSettings,
    ToolErrorArgs,
    ToolExecution,
    UsageLimits,
    tool,
)
from agentloop.abc import Model
from agentloop.config.conditions import Condition, MaxTurns, PredicateFunction
from agentloop.guardrails import BlockedOutputArgs
from agentloop.items import HostedToolCall, Item, ToolCall


class Shelf:
    """Keeps long outputs."""

    async def put(self, call: ToolCall, data: str) -> str:
        return call.call_id


class Nothing:
    """Keeps nothing."""


class Careful:
    """A policy."""

    def decide(self, call: PendingCall) -> Allow:
        return Allow()


def price(model: str, usage: RequestUsage) -> Decimal:
    return Decimal(usage.total_tokens)


def fee(model: str, call: HostedToolCall) -> float:
    return 0.01 if call.kind == "web_search_call" else 0


async def shorten(data: ModelInputData) -> ModelInputData:
    assert_type(data.input, tuple[Item, ...])
    return data


def forget(data: HandoffInputData) -> HandoffInputData:
    return data


def merge(history: list[Item], new: list[Item]) -> list[Item]:
    return [*history[-3:], *new]


def word(args: ToolErrorArgs) -> str | None:
    return None if args.kind == "tool_not_found" else args.default


def block(args: BlockedOutputArgs) -> str | None:
    return f"{args.guardrail}: {args.default}"


def late(ctx: RunContext[Any]) -> bool:
    return ctx.deadline is None


CONFIG = RunConfig(
    model="local:",
    tool_execution=ToolExecution(mode="sequential"),
    limits=UsageLimits(requests=3),
    price=price,
    hosted_price=fee,
    stop_when=MaxTurns(3) | late,
    policies=[Careful()],
    output_store=Shelf(),
    call_model_input_filter=shorten,
    handoff_input_filter=forget,
    session_input_callback=merge,
    session_settings=SessionSettings(limit=3),
    tool_error_formatter=word,
    output_guardrail_blocked_message=block,
    instruments=[Instrument()],
)


def fields_have_types() -> None:
    """What was given is known when it is read."""
    assert_type(CONFIG.model, str | Model | None)
    assert_type(CONFIG.limits, UsageLimits | None)
    assert_type(CONFIG.stop_when, Condition | PredicateFunction | None)
    assert_type(CONFIG.instruments, Sequence[Instrument])
    assert_type(RunConfig(stop_when=late).max_depth, int)


def wrong_values_are_found() -> None:
    """One of each kind of field: a model, a value, a protocol, a callback, a sequence, a choice."""
    RunConfig(model=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    RunConfig(limits=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    RunConfig(output_store=Nothing())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    RunConfig(effects=Nothing())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    RunConfig(price=late)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    RunConfig(hosted_price=price)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    RunConfig(call_model_input_filter=forget)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    RunConfig(output_guardrail_blocked_message=word)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    RunConfig(stop_when=forget)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    RunConfig(policies=[Nothing()])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    RunConfig(instruments=Instrument())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    RunConfig(tool_name_collision_policy="ignore")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Agent[Any, str]("a").as_tool(run_config=UsageLimits())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@tool
def pay(amount: Annotated[Shelf, JsonSchema({"type": "string"})]) -> str:
    """Pay."""
    assert_type(amount, Shelf)
    return ""


def converters_are_of_cattrs() -> None:
    """Any of its converters; nothing else."""
    RunConfig(converter=cattrs.Converter())
    RunConfig(converter=make_converter())
    RunConfig(converter=Nothing())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
