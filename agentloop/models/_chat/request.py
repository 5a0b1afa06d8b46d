"""The body of a request to Chat Completions. Pure; `items` writes what was said so far.

Does not know about HTTP: `encode` returns the body to post.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentloop.exceptions import UserError
from agentloop.model_events import (
    ModelRequest,
    OutputSchema,
    ToolDefinition,
)
from agentloop.models._chat import constrained as _constrained
from agentloop.models._chat.items import MessageList
from agentloop.models._codec import (
    JsonDict,
    WrittenArray,
    add_extras,
    without_none,
)
from agentloop.models._common import (
    find_allowed_tools,
    find_forced_name,
    no_message,
    refuse_tools,
    tool_choice,
    with_properties,
)
from agentloop.models._pieces import PieceCache
from agentloop.settings import ModelSettings

STREAM_OPTIONS = "stream_options"
"""The field that asks for the use of tokens at the end of a stream."""


def encode(
    request: ModelRequest,
    model_name: str,
    *,
    constrained: bool = False,
    stream: bool = True,
    max_tokens_field: str = "max_tokens",
    extra_content: bool = False,
    replay_reasoning: bool = False,
    custom_tools: bool = False,
    stream_usage: bool = True,
    strict: bool = True,
    pieces: PieceCache | None = None,
) -> JsonDict:
    """Return the body that sends *request* to *model_name*.

    `truncation`, `include`, and `reasoning` except its effort have no field here and are left out, as they don't change
    the question. `extra_body` overrides fields of the result. With *extra_content*, a call that came with such a field
    goes back with it: a vendor's signature of the thought behind it. With *replay_reasoning*, reasoning goes back as
    `reasoning_content`. With *custom_tools*, the server knows tools of free text. Without *stream_usage*, no stream is
    asked for its use of tokens; without *strict*, no tool says that it is. *pieces* has what earlier requests wrote
    with these options.

    Raises:
        UserError: for a part that Chat Completions can't express; names its place in the request.
        UserTypeError: if `extra_args` holds a field that is already set.
    """
    refuse_tools(request, "Chat Completions", custom=custom_tools and not constrained)
    _refuse_server_state(request)
    body: JsonDict = {"model": model_name}
    if constrained:
        body |= _constrained_fields(request)
    else:
        messages = MessageList(PieceCache() if pieces is None else pieces, extra_content, replay_reasoning)
        written = messages.add_all(request)
        if not written:
            raise no_message()
        body["messages"] = WrittenArray(written)
        body |= _tool_fields(request, strict=strict) | _format_fields(request.output_schema)
    body |= _setting_fields(request.settings, max_tokens_field)
    if stream:
        body |= {"stream": True} | ({STREAM_OPTIONS: {"include_usage": True}} if stream_usage else {})
    return add_extras(body, request.settings)


def _refuse_server_state(request: ModelRequest) -> None:
    for name in ("previous_response_id", "conversation_id", "prompt"):
        if getattr(request, name) is not None:
            raise UserError(f"{name}: Chat Completions keeps nothing on the server to refer to.")


def _constrained_fields(request: ModelRequest) -> JsonDict:
    tools = _constrained.list_offers(request)
    fields: JsonDict = {"messages": _constrained.messages(request, tools)}
    if not tools:
        return fields | _format_fields(request.output_schema)
    schema = OutputSchema(name="call", schema=_constrained.call_schema(tools))
    return fields | _format_fields(schema) | {"temperature": 0}


def _format_fields(output: OutputSchema | None) -> JsonDict:
    if output is None:
        return {}
    described = {"name": output.name, "strict": output.strict, "schema": dict(output.schema)}
    return {"response_format": {"type": "json_schema", "json_schema": described}}


def _tool_fields(request: ModelRequest, *, strict: bool) -> JsonDict:
    tools = [_tool(tool, strict=strict) for tool in (*request.tools, *request.handoffs)]
    if not tools:
        return {}
    fields: JsonDict = {"tools": tools}
    choice = tool_choice(request)
    if (allowed := find_allowed_tools(choice)) is not None:
        mode, some = allowed
        chosen = {"mode": mode, "tools": [_write_allowed(tool) for tool in some]}
        fields["tool_choice"] = {"type": "allowed_tools", "allowed_tools": chosen}
    elif (name := find_forced_name(choice)) is not None:
        kind = next((tool.kind for tool in request.tools if tool.name == name and tool.kind == "custom"), "function")
        fields["tool_choice"] = {"type": kind, kind: {"name": name}}
    elif choice is not None:
        fields["tool_choice"] = choice
    if request.settings.parallel_tool_calls is not None:
        fields["parallel_tool_calls"] = request.settings.parallel_tool_calls
    return fields


def _write_allowed(tool: Mapping[str, Any]) -> JsonDict:
    """Return the reference to one of the allowed tools in this interface's form."""
    match tool:
        case {"type": ("function" | "custom") as kind, "name": str(name)}:
            return {"type": kind, kind: {"name": name}}
        case _:
            return dict(tool)


def _tool(tool: ToolDefinition, *, strict: bool) -> JsonDict:
    if tool.kind == "custom":
        return {"type": "custom", "custom": _custom(tool)}
    described = {
        "name": tool.name,
        "description": tool.description,
        "parameters": with_properties(tool.params_json_schema),
    }
    # Left out, it means False, and servers that don't know it refuse tools that have it.
    return {"type": "function", "function": described | ({"strict": True} if strict and tool.strict_mode else {})}


def _custom(tool: ToolDefinition) -> JsonDict:
    described: JsonDict = {"name": tool.name, "description": tool.description}
    match tool.format:
        case None:
            return described
        case {"type": "grammar", "definition": definition, "syntax": syntax}:  # as other interfaces write it
            form: Any = {"type": "grammar", "grammar": {"definition": definition, "syntax": syntax}}
        case form:
            pass
    return described | {"format": form}


def _setting_fields(settings: ModelSettings, max_tokens_field: str) -> JsonDict:
    given = {
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "frequency_penalty": settings.frequency_penalty,
        "presence_penalty": settings.presence_penalty,
        max_tokens_field: settings.max_tokens,
        "reasoning_effort": (settings.reasoning or {}).get("effort"),
        "verbosity": settings.verbosity,
        "store": settings.store,
        "metadata": settings.metadata,
        "logprobs": None if settings.top_logprobs is None else True,
        "top_logprobs": settings.top_logprobs,
        "service_tier": settings.service_tier,
    }
    if settings.cache is not None:
        options = {"ttl": settings.cache.ttl} if settings.cache.ttl else None
        given |= {"prompt_cache_key": settings.cache.key, "prompt_cache_retention": settings.cache.retention}
        given["prompt_cache_options"] = options
    return without_none(given)
