"""Agent loops as structured concurrency: an agent runtime on anyio, the same on trio and asyncio."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from agentloop._shell.run_stream import RunStream
from agentloop.agents import Agent, StopAtTools
from agentloop.config import JsonLimits, ModelSettings, RunConfig, ToolErrorArgs, ToolExecution
from agentloop.context import RunContext, ToolContext
from agentloop.exceptions import (
    AgentLoopError,
    MaxTurnsExceeded,
    ModelBehaviorError,
    ModelTimeoutError,
    ModelTransportError,
    RunTimeout,
    ToolCallError,
    ToolCancelledError,
    ToolInputGuardrailTripwireTriggered,
    ToolOutputGuardrailTripwireTriggered,
    ToolTimeoutError,
    UserError,
    UserTypeError,
    UserValueError,
)
from agentloop.guardrail_results import (
    Allow,
    RaiseException,
    RejectContent,
    ReplaceOutput,
    Rewrite,
    ToolGuardrailResult,
)
from agentloop.guardrails import (
    ToolInputData,
    ToolInputGuardrail,
    ToolOutputData,
    ToolOutputGuardrail,
    tool_input_guardrail,
    tool_output_guardrail,
)
from agentloop.hooks import AgentHooks, RunHooks, RunOutcome
from agentloop.limits import Capacity, Rate
from agentloop.outcomes import CallOutcome
from agentloop.results import RunData, RunResult
from agentloop.run import Runner
from agentloop.runtime import Runtime, open_runtime
from agentloop.tools import FunctionTool, default_tool_error_function, tool
from agentloop.usage import RequestUsage, Usage

__version__ = "0.1.0.dev0"

_SUBMODULES = ("abc", "events", "exceptions", "items", "models", "outcomes", "records", "testing")


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return import_module(f"agentloop.{name}")
    raise AttributeError(f"module 'agentloop' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_SUBMODULES})


__all__ = [
    "AgentHooks",
    "Agent",
    "AgentLoopError",
    "Allow",
    "CallOutcome",
    "Capacity",
    "FunctionTool",
    "JsonLimits",
    "MaxTurnsExceeded",
    "ModelBehaviorError",
    "ModelSettings",
    "ModelTimeoutError",
    "ModelTransportError",
    "RaiseException",
    "Rate",
    "RejectContent",
    "ReplaceOutput",
    "RequestUsage",
    "Rewrite",
    "RunConfig",
    "RunContext",
    "RunData",
    "RunHooks",
    "RunOutcome",
    "RunResult",
    "RunStream",
    "RunTimeout",
    "Runner",
    "Runtime",
    "StopAtTools",
    "ToolCallError",
    "ToolCancelledError",
    "ToolContext",
    "ToolErrorArgs",
    "ToolExecution",
    "ToolGuardrailResult",
    "ToolInputData",
    "ToolInputGuardrail",
    "ToolInputGuardrailTripwireTriggered",
    "ToolOutputData",
    "ToolOutputGuardrail",
    "ToolOutputGuardrailTripwireTriggered",
    "ToolTimeoutError",
    "Usage",
    "UserError",
    "UserTypeError",
    "UserValueError",
    "default_tool_error_function",
    "open_runtime",
    "tool",
    "tool_input_guardrail",
    "tool_output_guardrail",
]
