"""The body of a request to Anthropic Messages. Pure; `items` writes what was said so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

from agentloop.exceptions import UserError
from agentloop.model_events import (
    HostedToolDefinition,
    ModelRequest,
    OutputSchema,
    ToolDefinition,
)
from agentloop.models._codec import (
    JsonDict,
    add_extras,
    without_none,
)
from agentloop.models._common import (
    find_forced_name,
    no_message,
    refuse_custom,
    tool_choice,
)
from agentloop.models._messages import executors
from agentloop.models._messages.items import INTERFACE, BlockList
from agentloop.models._pieces import PieceCache

OutputMode: TypeAlias = Literal["format", "tool"]
_OUTPUT_TOOL = "Give the final answer."


def encode(
    request: ModelRequest,
    model_name: str,
    *,
    max_tokens: int,
    output_mode: OutputMode = "format",
    computer: str | None = None,
    pieces: PieceCache | None = None,
) -> JsonDict:
    """Return the body that sends *request* to *model_name*.

    `max_tokens` is sent where the settings have none, since the interface requires it. With the output mode `"tool"`
    the final answer is the input of a tool that the model must call, for models without structured outputs; a model
    that thinks may call it, since the interface refuses to force a call then. Settings that have no field here are left
    out, as they don't change the question. *computer* is the type of the provider's computer tool, if the model has
    turned one on. *pieces* has what earlier requests wrote.

    Raises:
        UserError: for a part that the interface can't express; names its place in the request.
        UserTypeError: if `extra_args` holds a field that is already set.
    """
    for name in ("previous_response_id", "conversation_id", "prompt"):
        if getattr(request, name) is not None:
            raise UserError(f"{name}: {INTERFACE} keeps nothing on the server to refer to.")
    for tool in request.tools:
        refuse_custom(tool, INTERFACE)
    settings = request.settings
    messages = BlockList(PieceCache() if pieces is None else pieces)
    system = messages.add_all(request)
    if messages.is_empty:
        raise no_message(INTERFACE)
    output = request.output_schema
    described = output is not None and output_mode == "format"
    reasoning = dict(settings.reasoning or {})
    effort = reasoning.pop("effort", None)
    thinking = _thinking(reasoning, effort)
    tools = _tool_fields(request, None if described else output, thinking, computer)
    free = _mark_ends(request, tools.get("tools", ()), messages)
    body: JsonDict = without_none(
        {
            "model": model_name,
            "max_tokens": settings.max_tokens or max_tokens,
            "system": _system(request, system, free) or None,
            "messages": messages.write(),
            "temperature": settings.temperature,
            "top_p": settings.top_p,
            "thinking": thinking,
            "output_config": without_none(
                {
                    "effort": _EFFORTS.get(effort, effort),
                    "format": {"type": "json_schema", "schema": dict(output.schema)} if output and described else None,
                }
            )
            or None,
            "context_management": None if request.context_trigger is None else _edits(request.context_trigger),
            "metadata": without_none({"user_id": (settings.metadata or {}).get("user_id")}) or None,
        }
    )
    return add_extras(body | tools | {"stream": True}, settings)


EDITING_BETA = "context-management-2025-06-27"
"""The beta that the edits of a context need, and some models for a memory."""
MEMORY_TYPE = "memory_20250818"


def is_memory(tool: ToolDefinition) -> bool:
    """Tell whether *tool* is shown as the provider's own memory, whose name is fixed. Its calls are a function's."""
    return tool.kind == "memory" and tool.name == "memory"


def _edits(trigger: int) -> JsonDict:
    """Return the field by which the provider clears old results of tools above *trigger* tokens; the latest three stay,
    which is its default."""
    limit = {"type": "input_tokens", "value": trigger}
    return {"edits": [{"type": "clear_tool_uses_20250919", "trigger": limit}]}


_MOST_MARKS = 4
"""Most marks of a request: the provider refuses one with more."""


def _mark_ends(request: ModelRequest, tools: Sequence[JsonDict], messages: BlockList) -> int:
    """Mark the end of the tools and of the messages, as the policy wants. Return how many marks are left."""
    free = _MOST_MARKS - sum("cache_control" in tool for tool in tools)  # the application may have marked its own
    if free > 0 and (mark := _cache_mark(request, "tools")):
        free -= _mark_tools(tools, mark)
    if free > 0 and (mark := _cache_mark(request, "items")):
        free -= messages.mark_newest(mark)
    return max(free, 0)


def _mark_tools(tools: Sequence[JsonDict], mark: JsonDict) -> bool:
    """Mark the last tool that isn't deferred: such a tool isn't in the beginning that is kept. Return True if so."""
    last = next((tool for tool in reversed(tools) if not tool.get("defer_loading")), None)
    if last is None or "cache_control" in last:
        return False
    last |= mark
    return True


def _cache_mark(request: ModelRequest, place: str) -> JsonDict:
    """Return the field that marks the end of a beginning worth keeping, if the policy has one at *place*."""
    policy = request.cache
    if policy is None or place not in policy.breakpoints:
        return {}
    return {"cache_control": {"type": "ephemeral"} | ({"ttl": policy.ttl} if policy.ttl else {})}


def _system(request: ModelRequest, texts: Sequence[str], free: int) -> str | list[JsonDict]:
    """Return the instructions: one text, or a block for each part if a cache is to keep the parts before the last.

    At most *free* of these are marked, the latest.
    """
    texts = [text for text in texts if text.strip()]
    mark = _cache_mark(request, "instructions")
    if not mark:
        return "\n\n".join(texts)
    parts = [*request.instructions, *texts[1:]] if request.instructions else texts
    parts = [part for part in parts if part.strip()]
    end = max(len(parts) - 1, 1)
    marked = range(max(end - free, 0), end)
    return [{"type": "text", "text": part} | (mark if n in marked else {}) for n, part in enumerate(parts)]


_EFFORTS = {"minimal": "low", "none": None}
"""Words of other interfaces for the effort, in the words of this one."""


def _thinking(reasoning: Mapping[str, Any], effort: object) -> JsonDict | None:
    if effort == "none":
        return {"type": "disabled"}
    # The summary is a matter of other interfaces.
    fields = {name: value for name, value in reasoning.items() if name != "summary" and value is not None}
    return {"type": "enabled" if "budget_tokens" in fields else "adaptive"} | fields if fields else None


def _tool_fields(
    request: ModelRequest, forced: OutputSchema | None, thinking: JsonDict | None, computer: str | None
) -> JsonDict:
    """Return the tools and the choice among them; *forced* is the output that a tool's call has to give."""
    own = executors.own_tools(request.tools, computer)
    tools = [_tool(tool, computer) for tool in (*request.tools, *request.handoffs)]
    tools += map(_hosted_tool, request.hosted)
    choice = _tool_choice(request, own)
    if forced is not None:
        if thinking is not None and thinking.get("type") != "disabled":
            choice = choice or {"type": "auto"}  # the interface refuses a forced choice of a model that thinks
        elif choice is None or choice["type"] == "auto":
            choice = {"type": "any"} if tools else {"type": "tool", "name": forced.name}
        tools.append({"name": forced.name, "description": _OUTPUT_TOOL, "input_schema": dict(forced.schema)})
    if not tools:
        return {}
    if any("defer_loading" in tool for tool in tools) and not any(_is_search(tool) for tool in tools):
        tools.append(dict(_SEARCH))  # without it no deferred tool is ever found
    parallel = request.settings.parallel_tool_calls
    if parallel is not None and (choice is None or choice["type"] != "none"):
        choice = {"type": "auto"} | (choice or {}) | {"disable_parallel_tool_use": not parallel}
    return {"tools": tools} | ({} if choice is None else {"tool_choice": choice})


def _tool(tool: ToolDefinition, computer: str | None) -> JsonDict:
    if tool.namespace is not None:
        raise UserError(f"Tool {tool.name!r}: {INTERFACE} has no namespaces, and it is in {tool.namespace!r}.")
    if executors.is_own(tool, computer):
        described = executors.write_tool(tool, computer)
    elif is_memory(tool):
        described = {"type": MEMORY_TYPE, "name": tool.name}
    else:
        schema = dict(tool.params_json_schema)
        described = {"name": tool.name, "description": tool.description, "input_schema": schema}
    callers = list(tool.allowed_callers) or None
    return described | without_none({"defer_loading": tool.defer_loading or None, "allowed_callers": callers})


_SEARCH = {"type": "tool_search_tool_bm25_20251119", "name": "tool_search_tool_bm25"}


def _is_search(tool: JsonDict) -> bool:
    return str(tool.get("type")).startswith("tool_search_tool_")


_MCP = "mcp_toolset"
"""The provider's kind for the tools of an MCP server that it calls itself."""


def _hosted_tool(tool: HostedToolDefinition) -> JsonDict:
    """Return a tool that the provider runs. Its kinds are names with the date of their version, except for MCP's."""
    if tool.kind == _MCP:  # it has no name: the tools are the server's
        return {"type": tool.kind} | dict(tool.config)
    name, _, date = tool.kind.rpartition("_")
    if not name or len(date) != 8 or not date.isdigit():
        raise UserError(
            f"tools: {tool.kind!r} is no tool of {INTERFACE}; its tools are named with a date ('web_search_20250305'), "
            f"or are {_MCP!r}."
        )
    return {"type": tool.kind, "name": name} | dict(tool.config)


def _tool_choice(request: ModelRequest, own: Mapping[str, ToolDefinition]) -> JsonDict | None:
    choice = tool_choice(request)
    if isinstance(choice, Mapping) and choice.get("type") in ("auto", "any", "none", "tool"):
        return dict(choice)
    if (name := find_forced_name(choice, INTERFACE)) is not None:
        return {"type": "tool", "name": next((each for each, tool in own.items() if tool.name == name), name)}
    return None if choice is None else {"type": "any" if choice == "required" else choice}
