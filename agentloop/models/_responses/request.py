"""The Responses codec, outbound: a request to its JSON body. Pure.

Does not know how items are written (`items`), nor about answers (`answer`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from agentloop.exceptions import UserTypeError
from agentloop.items import HandoffOutput, Item, SystemMessage, ToolOutput, UserMessage
from agentloop.model_events import ModelRequest, OutputSchema, ToolDefinition
from agentloop.models._codec import JsonDict, WrittenArray, add_extras, encode_json, without_none
from agentloop.models._common import find_allowed_tools, no_message, tool_choice, with_properties
from agentloop.models._pieces import PieceCache
from agentloop.models._responses import executors
from agentloop.models._responses.items import EXECUTOR_KINDS, INTERFACE, input_part, input_text, write_items
from agentloop.settings import CachePolicy, ModelSettings, Prompt

_BREAKPOINT = {"prompt_cache_breakpoint": {"mode": "explicit"}}
_MOST_BREAKPOINTS = 4
"""Most breakpoints of a request that the provider writes; it leaves out the earlier ones."""
_ENCRYPTED = "reasoning.encrypted_content"
_LOGPROBS = "message.output_text.logprobs"


def encode(request: ModelRequest, model_name: str, *, pieces: PieceCache | None = None) -> JsonDict:
    """Return the body that sends *request* to *model_name*, to be answered as a stream.

    `extra_body` overrides fields of the result. *pieces* has what earlier requests wrote. Without the provider's store
    (`ModelSettings.store=False`) the answer's reasoning is asked for in its encrypted form, since no later request
    could refer to it.

    Raises:
        UserError: for a part that the interface can't express; names its place in the request.
        UserTypeError: if `extra_args` holds a field that is already set.
    """
    settings = request.settings
    body: JsonDict = {"model": model_name}
    fields, marked = _input_fields(request, PieceCache() if pieces is None else pieces)
    body |= fields
    body |= _tool_fields(request, model_name)
    body |= _text_fields(request.output_schema, settings)
    if request.context_trigger is not None:
        body["context_management"] = [{"type": "compaction", "compact_threshold": request.context_trigger}]
    body |= _setting_fields(settings)
    body |= without_none(
        {
            "previous_response_id": request.previous_response_id,
            "conversation": request.conversation_id,
            "prompt": None if request.prompt is None else _prompt(request.prompt),
            "include": _include(request) or None,
        }
    )
    body |= _cache_fields(request.cache, marked)
    body["stream"] = True
    return add_extras(body, settings)


def _setting_fields(settings: ModelSettings) -> JsonDict:
    return without_none(
        {
            "reasoning": settings.reasoning,
            "temperature": settings.temperature,
            "top_p": settings.top_p,
            "max_output_tokens": settings.max_tokens,
            "truncation": settings.truncation,
            "context_management": settings.context_management,
            "store": settings.store,
            "metadata": settings.metadata,
            "top_logprobs": settings.top_logprobs,
            "service_tier": settings.service_tier,
        }
    )


def _text_fields(output: OutputSchema | None, settings: ModelSettings) -> JsonDict:
    text: JsonDict = {}
    if output is not None:
        schema = {"name": output.name, "schema": dict(output.schema), "strict": output.strict}
        text["format"] = {"type": "json_schema", **schema}
    if settings.verbosity is not None:
        text["verbosity"] = settings.verbosity
    return {"text": text} if text else {}


def _include(request: ModelRequest) -> list[str]:
    found = [*request.include]
    if request.settings.store is False:
        found.append(_ENCRYPTED)
    if request.settings.top_logprobs is not None:
        found.append(_LOGPROBS)
    return list(dict.fromkeys(found))


def _prompt(prompt: Prompt) -> JsonDict:
    variables = {
        name: value if isinstance(value, str) else input_part(value, f"prompt.variables[{name!r}]")
        for name, value in prompt.variables.items()
    }
    return without_none({"id": prompt.id, "version": prompt.version, "variables": variables or None})


def _cache_fields(policy: CachePolicy | None, marked: bool) -> JsonDict:
    """Return the fields for the cache. Without a breakpoint the mode isn't explicit, as nothing would be kept then."""
    if policy is None:
        return {}
    options = without_none({"ttl": policy.ttl, "mode": "explicit" if marked else None})
    return without_none(
        {
            "prompt_cache_key": policy.key,
            "prompt_cache_retention": policy.retention,
            "prompt_cache_options": options or None,
        }
    )


# ---------------------------------------------------------------------------------------------- tools


def _tool_fields(request: ModelRequest, model_name: str) -> JsonDict:
    tools = _tools(request, model_name)
    if not tools:
        return {}
    fields: JsonDict = {"tools": tools}
    choice = tool_choice(request)
    if choice is not None:
        fields["tool_choice"] = _choice(choice, request, model_name)
    if request.settings.parallel_tool_calls is not None:
        fields["parallel_tool_calls"] = request.settings.parallel_tool_calls
    return fields


def _tools(request: ModelRequest, model_name: str) -> list[JsonDict]:
    own = executors.names_by_kind(request.tools)
    said = {
        tool.namespace: tool.namespace_description for tool in reversed(request.tools) if tool.namespace_description
    }
    tools: list[JsonDict] = []
    spaces: dict[str, list[JsonDict]] = {}
    deferred = False
    for tool in request.tools:
        deferred = deferred or tool.defer_loading
        if tool.kind in own:
            tools.append(executors.write_tool(tool, model_name))
            continue
        if tool.namespace is None:
            tools.append(_tool(tool))
            continue
        if tool.namespace not in spaces:
            members = spaces[tool.namespace] = []
            about = said.get(tool.namespace, f"Tools of {tool.namespace}.")
            tools.append({"type": "namespace", "name": tool.namespace, "description": about, "tools": members})
        spaces[tool.namespace].append(_tool(tool))
    tools += map(_tool, request.handoffs)
    tools += ({"type": tool.kind, **tool.config} for tool in request.hosted)
    if deferred and not any(tool["type"] == "tool_search" for tool in tools):
        tools.append({"type": "tool_search"})  # without it no deferred tool is ever found
    return tools


def _tool(tool: ToolDefinition) -> JsonDict:
    kind = "custom" if tool.kind == "custom" else "function"
    described: JsonDict = {"type": kind, "name": tool.name, "description": tool.description}
    if tool.kind == "custom":
        described |= without_none({"format": tool.format})
    else:
        described |= {"parameters": with_properties(tool.params_json_schema), "strict": tool.strict_mode}
        described |= without_none({"output_schema": tool.output_schema})
    if tool.defer_loading:
        described["defer_loading"] = True
    if tool.allowed_callers:
        described["allowed_callers"] = list(tool.allowed_callers)
    return described


def _choice(choice: str | Mapping[str, Any], request: ModelRequest, model_name: str) -> str | JsonDict:
    if (allowed := find_allowed_tools(choice)) is not None:
        return {"type": "allowed_tools", "mode": allowed[0], "tools": [_write_allowed(tool) for tool in allowed[1]]}
    match choice:
        case "auto" | "required" | "none":
            return choice
        case str():
            if any(tool.kind == choice for tool in request.hosted) and not _is_named(choice, request):
                return {"type": choice}
            chosen = next((tool for tool in request.tools if tool.name == choice), None)
            if chosen is not None and chosen.kind in EXECUTOR_KINDS:
                return {"type": executors.write_tool(chosen, model_name)["type"]}
            custom = chosen is not None and chosen.kind == "custom"
            return {"type": "custom" if custom else "function", "name": choice}
        case {"type": "function", "function": {"name": str(name)}}:
            return {"type": "function", "name": name}
        case {"type": str()}:
            return dict(choice)
        case _:
            raise UserTypeError(f"tool_choice: expected a string or a mapping with a type, got {choice!r}")


def _write_allowed(tool: Mapping[str, Any]) -> JsonDict:
    """Return the reference to one of the allowed tools in this interface's form."""
    match tool:
        case {"type": "function", "function": {"name": str()} as inner} | {
            "type": "custom",
            "custom": {"name": str()} as inner,
        }:
            return {"type": tool["type"], "name": inner["name"]}
        case _:
            return dict(tool)


def _is_named(name: str, request: ModelRequest) -> bool:
    return any(tool.name == name for tool in (*request.tools, *request.handoffs))


# ---------------------------------------------------------------------------------------------- input


def _input_fields(request: ModelRequest, pieces: PieceCache) -> tuple[JsonDict, bool]:
    """Return the instructions and the items, and True if a breakpoint of the cache is among them.

    Instructions with breakpoints are a message: the field for instructions takes one text, without a breakpoint. Where
    the provider keeps the conversation, they stay in the field: a message would be kept there and come twice.
    """
    policy, fields = request.cache, {}
    kept_there = request.previous_response_id is not None or request.conversation_id is not None
    points: Sequence[str] = () if policy is None else policy.breakpoints
    with_ids = request.settings.reasoning_item_ids != "omit"
    written = list(write_items(request.items, pieces, reasoning_ids=with_ids))
    members = [piece for _, piece in written]
    if not members and not kept_there and request.prompt is None:
        raise no_message(INTERFACE)
    marked = "items" in points and _mark_newest(written, members)
    texts = request.instructions or ((request.system,) if request.system else ())
    if "instructions" in points and texts and not kept_there:
        members.insert(0, _write_instructions(texts, _MOST_BREAKPOINTS - marked))
        marked = True
    elif request.system:
        fields["instructions"] = request.system
    return {**fields, "input": WrittenArray(members)}, marked


def _write_instructions(texts: Sequence[str], most: int) -> bytes:
    """Return a message with a breakpoint after each text but the last, which may change; with *most*, the latest."""
    end = max(len(texts) - 1, 1)
    marked = range(max(end - most, 0), end)
    parts = [input_text(text) | (_BREAKPOINT if place in marked else {}) for place, text in enumerate(texts)]
    return encode_json({"role": "developer", "content": parts})


def _mark_newest(written: Sequence[tuple[Item, bytes]], members: list[bytes]) -> bool:
    """End a beginning that is worth keeping after the newest item that can hold a breakpoint.

    That is a message that isn't the model's, or the output of a function. Return False if there is none.
    """
    for place in reversed(range(len(written))):
        item, piece = written[place]
        if not isinstance(item, _NOT_OF_THE_MODEL):
            continue
        data = json.loads(piece)
        field = "content" if "role" in data else "output"
        if field == "output" and data.get("type") not in _FUNCTION_OUTPUTS:
            continue  # an executor's or a verdict, which has no parts
        if content := data[field]:
            *parts, last = [input_text(content)] if isinstance(content, str) else content
            members[place] = encode_json({**data, field: [*parts, last | _BREAKPOINT]})
            return True
    return False


_NOT_OF_THE_MODEL = (SystemMessage, UserMessage, ToolOutput, HandoffOutput)
_FUNCTION_OUTPUTS = ("function_call_output", "custom_tool_call_output")
