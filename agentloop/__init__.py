"""Agent loops as structured concurrency: an agent runtime on anyio, the same on trio and asyncio."""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from agentloop.abc import Instrument
from agentloop.agents import Agent
from agentloop.config import (
    ErrorHandlerData,
    ErrorHandlerResult,
    HistorySettings,
    ModelInputData,
    RunConfig,
    TracingSettings,
)
from agentloop.config.budget import UsageLimits
from agentloop.config.hooks import AgentHooks, RunHooks, RunOutcome
from agentloop.config.policies import Ask, Deny, PendingCall, Policy
from agentloop.context import RunContext, ToolContext
from agentloop.exceptions import (
    AgentLoopError,
    InputGuardrailTripwireTriggered,
    MaxTurnsExceeded,
    ModelBehaviorError,
    OutputGuardrailTripwireTriggered,
    RunTimeoutError,
    StateError,
    ToolCallError,
    UsageLimitExceeded,
    UserError,
)
from agentloop.guardrails import (
    Allow,
    AskAgain,
    GuardrailFunctionOutput,
    InputGuardrail,
    OutputGuardrail,
    input_guardrail,
    output_guardrail,
)
from agentloop.handoffs import Handoff, HandoffInputData, handoff
from agentloop.limits import Capacity, Rate, TokenRate, ToolExecution
from agentloop.results import RunData, RunResult
from agentloop.run import ResumeOptions, Runner, RunOptions, Runtime, open_runtime
from agentloop.run._stream import RunStream
from agentloop.settings import (
    CachePolicy,
    Conversation,
    ModelRetrySettings,
    ModelSettings,
    Prompt,
    SessionSettings,
    ToolErrorArgs,
)
from agentloop.spans import RunOpening, Span, Trace, current_span, trace
from agentloop.tools import (
    ExternalTool,
    FunctionTool,
    HostedTool,
    StopAtTools,
    ToolOrigin,
    ToolResult,
    ToolSelection,
    ToolSource,
    ToolsToFinalOutput,
    ask_user,
    default_tool_error_function,
    tool,
    tool_search,
)
from agentloop.usage import RequestUsage, Usage

if TYPE_CHECKING:
    from agentloop import abc as abc
    from agentloop import events as events
    from agentloop import exceptions as exceptions
    from agentloop import executors as executors
    from agentloop import guardrails as guardrails
    from agentloop import items as items
    from agentloop import journal as journal
    from agentloop import models as models
    from agentloop import outcomes as outcomes
    from agentloop import records as records
    from agentloop import sessions as sessions
    from agentloop import settings as settings
    from agentloop._common.version import __version__ as __version__
    from agentloop._schema.json_schema import JsonSchema
    from agentloop._schema.output_schema import OutputType
    from agentloop._storage.public_json import item_from_json, record_from_json, to_json
    from agentloop._storage.signing import SealKey
    from agentloop.config._bundling import Bundle
    from agentloop.run._batch import BatchedRun, RunBatch
    from agentloop.state import RunState
    from agentloop.window import ClearToolOutputs, ContextPolicy, ContextView, DropOldest, Summarize


_SUBMODULES = (
    "abc",
    "events",
    "exceptions",
    "executors",
    "guardrails",
    "items",
    "journal",
    "models",
    "outcomes",
    "records",
    "sessions",
    "settings",
    "testing",
)
_LAZY = {
    "__version__": "_common.version",
    **dict.fromkeys(("BatchedRun", "RunBatch"), "run._batch"),
    "Bundle": "config._bundling",
    "JsonSchema": "_schema.json_schema",
    "OutputType": "_schema.output_schema",
    **dict.fromkeys(("item_from_json", "record_from_json", "to_json"), "_storage.public_json"),
    "RunState": "state",
    "SealKey": "_storage.signing",
    **dict.fromkeys(("ClearToolOutputs", "ContextPolicy", "ContextView", "DropOldest", "Summarize"), "window"),
}
"""By name: the module of a class or function that only some runs need, imported at its first use."""
_MOVED = {
    "CallOutcome": "outcomes",
    **dict.fromkeys(("Computer", "Editor", "Shell"), "executors"),
    **dict.fromkeys(("Condition", "MaxTurns", "TextMention", "TokenLimit", "ToolCalled"), "config.conditions"),
    **dict.fromkeys(("InputGuardrailResult", "OutputGuardrailResult"), "guardrails"),
    **dict.fromkeys(("JsonLimits", "RetryAdvice", "RetryContext"), "settings"),
    **dict.fromkeys(("ContextTooLong", "InputRefusedError", "JournalError", "ModelRefusalError"), "exceptions"),
    **dict.fromkeys(("ModelTimeoutError", "ModelTransportError", "OutcomeUnknown", "ReplayDivergence"), "exceptions"),
    **dict.fromkeys(("SessionConflict", "ToolCancelledError", "ToolLoopDetected", "ToolSourceError"), "exceptions"),
    **dict.fromkeys(("ToolTimeoutError", "UserTypeError", "UserValueError"), "exceptions"),
    **dict.fromkeys(("budget", "conditions", "hooks", "policies"), "config"),
    "effects": "abc",
}
"""By name: where a name or a module is that this one had in 0.1. It still gives it for a release, with a warning."""
_USUAL_ELSEWHERE = {
    "AgentsException": "AgentLoopError",
    "ToolExecutionConfig": "ToolExecution",
    "ToolsToFinalOutputResult": "ToolsToFinalOutput",
    **dict.fromkeys(("CodeInterpreterTool", "FileSearchTool", "WebSearchTool"), "HostedTool"),
    **dict.fromkeys(("RunContextWrapper", "ToolRuntime"), "RunContext"),
    **dict.fromkeys(("Tool", "function_tool"), "tool"),
    **dict.fromkeys(("create_agent", "create_react_agent"), "Agent"),
}
"""Names of other libraries: the ones here in place of them."""


def _find(name: str) -> Any:
    """Return a name that isn't imported yet."""
    if name in _SUBMODULES:
        return import_module(f"agentloop.{name}")
    if name in _LAZY:
        value = globals()[name] = getattr(import_module(f"agentloop.{_LAZY[name]}"), name)
        return value
    if (place := _MOVED.get(name)) is not None:
        message = f"write `from agentloop.{place} import {name}`; `agentloop` itself has the name until 0.3"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        home = import_module(f"agentloop.{place}")
        return getattr(home, name, None) or import_module(f"agentloop.{place}.{name}")
    if name == "RunTimeout":  # the old name of RunTimeoutError, with a warning
        return getattr(import_module("agentloop.exceptions"), name)
    _refuse(name, in_import=_is_import(sys._getframe(1)))


if not TYPE_CHECKING:  # a checker reads the imports above, and reports a name that isn't among them
    __getattr__ = _find


def _refuse(name: str, *, in_import: bool) -> NoReturn:
    """Refuse a name that isn't here. Python asks modules for names with underscores by itself.

    `from agentloop import Name` shows no word of an AttributeError, and `hasattr` and tools that look into modules bear
    nothing else: so only the import statement gets an ImportError.
    """
    from agentloop._common.extras import describe_foreign

    places = ("guardrails", "exceptions", "settings", "outcomes", *(_SUBMODULES if in_import else ()))
    place = next((each for each in places if name in _names_of(each)), None)
    if place is None and not name.startswith("_") and (foreign := describe_foreign()):
        raise ImportError(f"agentloop has no {name!r}; {foreign}")
    if place is None and in_import and name in _USUAL_ELSEWHERE:
        raise ImportError(f"agentloop has no {name!r}; write `from agentloop import {_USUAL_ELSEWHERE[name]}`")
    if place is not None and in_import:
        raise ImportError(f"agentloop has no {name!r}; write `from agentloop.{place} import {name}`")
    hint = "" if place is None else f"; write `from agentloop.{place} import {name}`"
    raise AttributeError(f"module 'agentloop' has no attribute {name!r}{hint}")


def _is_import(asker: FrameType) -> bool:
    """Tell whether a name is asked for by `from agentloop import …`: importlib does it, before the statement does."""
    return asker.f_code.co_name == "_handle_fromlist"


def _names_of(module: str) -> tuple[str, ...]:
    return tuple(import_module(f"agentloop.{module}").__all__)


def __dir__() -> list[str]:
    return sorted({*globals(), *_SUBMODULES, *_LAZY})


__all__ = [
    "Agent",
    "AgentHooks",
    "AgentLoopError",
    "Allow",
    "Ask",
    "AskAgain",
    "BatchedRun",
    "Bundle",
    "CachePolicy",
    "Capacity",
    "ClearToolOutputs",
    "ContextPolicy",
    "ContextView",
    "Conversation",
    "Deny",
    "DropOldest",
    "ErrorHandlerData",
    "ErrorHandlerResult",
    "ExternalTool",
    "FunctionTool",
    "GuardrailFunctionOutput",
    "Handoff",
    "HandoffInputData",
    "HistorySettings",
    "HostedTool",
    "InputGuardrail",
    "InputGuardrailTripwireTriggered",
    "Instrument",
    "JsonSchema",
    "MaxTurnsExceeded",
    "ModelBehaviorError",
    "ModelInputData",
    "ModelRetrySettings",
    "ModelSettings",
    "OutputGuardrail",
    "OutputGuardrailTripwireTriggered",
    "OutputType",
    "PendingCall",
    "Policy",
    "Prompt",
    "Rate",
    "RequestUsage",
    "ResumeOptions",
    "RunBatch",
    "RunConfig",
    "RunContext",
    "RunData",
    "RunHooks",
    "RunOpening",
    "RunOptions",
    "RunOutcome",
    "RunResult",
    "RunState",
    "RunStream",
    "RunTimeoutError",
    "Runner",
    "Runtime",
    "SealKey",
    "SessionSettings",
    "Span",
    "StateError",
    "StopAtTools",
    "Summarize",
    "TokenRate",
    "ToolCallError",
    "ToolContext",
    "ToolErrorArgs",
    "ToolExecution",
    "ToolResult",
    "ToolOrigin",
    "ToolSelection",
    "ToolSource",
    "ToolsToFinalOutput",
    "Trace",
    "TracingSettings",
    "Usage",
    "UsageLimitExceeded",
    "UsageLimits",
    "UserError",
    "ask_user",
    "current_span",
    "default_tool_error_function",
    "handoff",
    "input_guardrail",
    "item_from_json",
    "open_runtime",
    "output_guardrail",
    "record_from_json",
    "to_json",
    "tool",
    "tool_search",
    "trace",
]
