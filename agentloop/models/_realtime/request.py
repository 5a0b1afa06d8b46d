"""A request to a realtime session, text only: the session's configuration, and the event that asks. Pure."""

from __future__ import annotations

from agentloop.exceptions import UserError
from agentloop.model_events import (
    ModelRequest,
    ToolDefinition,
)
from agentloop.models._codec import (
    JsonDict,
    add_extras,
    without_none,
)
from agentloop.models._common import (
    find_forced_name,
    refuse_tools,
    tool_choice,
    with_properties,
)
from agentloop.models._realtime.items import INTERFACE
from agentloop.settings import Prompt


def encode_session(request: ModelRequest) -> JsonDict:
    """Return the configuration of the session for *request*: the resolved view, and the settings.

    A server keeps every field that an update leaves out, so fields of a view are always there. `temperature`, `top_p`,
    `verbosity`, `store`, `include`, `cache` and `service_tier` have no field in this interface and are left out.

    Raises:
        UserError: for a part that the interface can't express.
        UserTypeError: if `extra_args` holds a field that is already set.
    """
    for name in ("conversation_id", "output_schema"):
        if getattr(request, name) is not None:
            raise UserError(f"{name}: has no form in {INTERFACE}.")
    refuse_tools(request, INTERFACE)
    settings = request.settings
    effort = (settings.reasoning or {}).get("effort")
    optional = {
        "prompt": None if request.prompt is None else _prompt(request.prompt),
        "parallel_tool_calls": settings.parallel_tool_calls,
        "reasoning": {"effort": effort} if effort else None,
        "truncation": settings.truncation,
    }
    session: JsonDict = {
        "type": "realtime",
        "output_modalities": ["text"],
        "instructions": request.system or "",
        "tools": [_tool(tool) for tool in (*request.tools, *request.handoffs)],
        "tool_choice": _choice(request),
        "max_output_tokens": settings.max_tokens or "inf",
    }
    return add_extras(session | without_none(optional), settings)


def _prompt(prompt: Prompt) -> JsonDict:
    for name, value in prompt.variables.items():
        if not isinstance(value, str):
            raise UserError(f"prompt: the variable {name!r} has no form in {INTERFACE}, which is text only.")
    return without_none({"id": prompt.id, "version": prompt.version, "variables": dict(prompt.variables) or None})


def _tool(tool: ToolDefinition) -> JsonDict:
    parameters = with_properties(tool.params_json_schema)
    return {"type": "function", "name": tool.name, "description": tool.description, "parameters": parameters}


def _choice(request: ModelRequest) -> str | JsonDict:
    choice = tool_choice(request)
    if choice is None or not (request.tools or request.handoffs):
        return "auto"
    name = find_forced_name(choice, INTERFACE)
    return str(choice) if name is None else {"type": "function", "name": name}


def encode_create(request: ModelRequest) -> JsonDict:
    """Return the event that asks for the response."""
    metadata = request.settings.metadata
    asked = {"type": "response.create"}
    return asked if metadata is None else asked | {"response": {"metadata": dict(metadata)}}
