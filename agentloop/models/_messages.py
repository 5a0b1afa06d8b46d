"""The Anthropic Messages codec, requests: a request to its JSON body. Pure; `_messages_answer` reads the response.

An interface of messages that are made of blocks. A request's items become blocks, and successive blocks of one role
share a message: all results of a turn's calls are in one message of the user, before its other blocks.

An item keeps the parts of a block that have no form for other providers: a thought's signature, a text's citations, the
call and the result of a tool that the provider runs. They go back unchanged, and only to this interface.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from agentloop.exceptions import UserError
from agentloop.items import (
    AssistantMessage,
    Content,
    File,
    HandoffCall,
    HandoffOutput,
    HostedToolCall,
    Image,
    Item,
    OpaqueItem,
    Part,
    Reasoning,
    Refusal,
    SystemMessage,
    Text,
    ToolCall,
    ToolOutput,
    UserMessage,
)
from agentloop.model_events import (
    HostedToolDefinition,
    ModelRequest,
    OutputSchema,
    ToolDefinition,
)
from agentloop.models import _messages_executors as executors
from agentloop.models._codec import (
    JsonDict,
    WrittenArray,
    add_extras,
    encode_json,
    without_none,
)
from agentloop.models._common import (
    argument_object,
    data_url,
    earlier_name,
    find_forced_name,
    no_form,
    no_message,
    refuse_custom,
    tool_choice,
)
from agentloop.models._pieces import CALL_TYPES, OUTPUT_TYPES, PieceCache

INTERFACE = "Anthropic Messages"
OutputMode: TypeAlias = Literal["format", "tool"]
BLOCK = "messages_block"
"""Key in a reasoning item's `provider_data`, and in an opaque item's data, of the type of its block."""
WIRE_ID = "messages_call_id"
"""Key in a call's `provider_data` of the provider's own id, if the run uses another id for the call."""
CITATIONS = "messages_citations"
"""Key in a message's `provider_data` of its texts' citations as they came: a list for each text."""
RESULT = "result"
"""Key in the data of a hosted tool's call of the block with its result."""
_OUTPUT_TOOL = "Give the final answer."

# ---------------------------------------------------------------------------------------------- request


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
    messages = _MessageList(PieceCache() if pieces is None else pieces)
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
            "metadata": without_none({"user_id": (settings.metadata or {}).get("user_id")}) or None,
        }
    )
    return add_extras(body | tools | {"stream": True}, settings)


_MOST_MARKS = 4
"""Most marks of a request: the provider refuses one with more."""


def _mark_ends(request: ModelRequest, tools: Sequence[JsonDict], messages: _MessageList) -> int:
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


class _MessageList:
    """Collects messages; successive blocks of one role share one."""

    def __init__(self, pieces: PieceCache) -> None:
        self._pieces = pieces
        self._done: list[tuple[str, list[bytes]]] = []  # the role of each message, and its blocks as JSON
        self._results = 0  # how many results the last message begins with
        self._by_id: dict[str, ToolCall | HandoffCall] = {}

    def add_all(self, request: ModelRequest) -> list[str]:
        """Add the request's items. Return the texts for the system field: the interface has one, at the beginning."""
        system = [request.system] if request.system else []
        for index, item in enumerate(request.items):
            call: ToolCall | HandoffCall | None = None
            if isinstance(item, CALL_TYPES):
                self._by_id[item.call_id] = item
            elif isinstance(item, OUTPUT_TYPES):
                call = self._by_id.get(item.call_id)
            elif isinstance(item, SystemMessage) and not self._done:
                system.append(item.text)
                continue
            piece = self._pieces.find(item, call)
            if piece is None:
                blocks = _item_blocks(item, call, f"items[{index}]")
                piece = self._pieces.keep(item, b",".join(map(encode_json, blocks)), call)
            if piece:
                self._add(item, piece)
        return system

    def _add(self, item: Item, piece: bytes) -> None:
        role = "user" if isinstance(item, _OF_THE_USER) else "assistant"
        if not self._done or self._done[-1][0] != role:
            self._done.append((role, []))
            self._results = 0
        blocks = self._done[-1][1]
        if isinstance(item, OUTPUT_TYPES):
            blocks.insert(self._results, piece)  # results come before the other blocks of their message
            self._results += 1
        else:
            blocks.append(piece)

    @property
    def is_empty(self) -> bool:
        """True if there is no message."""
        return not self._done

    def mark_newest(self, mark: JsonDict) -> bool:
        """Add the field in *mark* to the last block that can have one. Return False if there is none."""
        for _, pieces in reversed(self._done):
            for place in reversed(range(len(pieces))):
                blocks: list[JsonDict] = json.loads(b"[%s]" % pieces[place])
                markable = [block for block in blocks if block.get("type") not in _UNMARKABLE]
                if markable:
                    markable[-1] |= mark
                    pieces[place] = b",".join(map(encode_json, blocks))
                    return True
        return False

    def write(self) -> WrittenArray:
        """Return the messages."""
        return WrittenArray(
            [b'{"role":"%s","content":[%s]}' % (role.encode(), b",".join(blocks)) for role, blocks in self._done]
        )


_UNMARKABLE = ("thinking", "redacted_thinking")
_OF_THE_USER = (SystemMessage, UserMessage, ToolOutput, HandoffOutput)


def _item_blocks(item: Item, call: ToolCall | HandoffCall | None, place: str) -> list[JsonDict]:
    """Return the blocks of *item*; an output answers *call*."""
    match item:
        case SystemMessage() | UserMessage():
            return _blocks(item.content, f"{place}.content")
        case AssistantMessage():
            return _said_blocks(item, f"{place}.content")
        case ToolCall(kind="approval") | ToolOutput(kind="approval"):
            raise no_form(place, item, INTERFACE)
        case ToolCall() | HandoffCall():
            return [_use_block(item)]
        case ToolOutput() | HandoffOutput():
            return [_result_block(item, call, place)]
        case Reasoning():
            return _thinking_blocks(item)
        case HostedToolCall() if _is_own_block(item.data):
            block = {name: value for name, value in item.data.items() if name != RESULT}
            return [block, *([item.data[RESULT]] if RESULT in item.data else ())]
        case OpaqueItem() if _is_own_block(item.data):
            return [{name: value for name, value in item.data.items() if name != BLOCK}]
        case _:
            raise no_form(place, item, INTERFACE)


def _use_block(item: ToolCall | HandoffCall) -> JsonDict:
    given = argument_object(item.arguments)
    # An executor's call of another interface has another content, and goes as a function's.
    name = (executors.own_name(item) if isinstance(item, ToolCall) else None) or earlier_name(item.name)
    block = {"type": "tool_use", "id": _wire_id(item), "name": name, "input": given}
    if isinstance(item, ToolCall) and item.caller is not None:
        block["caller"] = {"type": item.caller.kind, "tool_id": item.caller.id}
    return block


def _result_block(item: ToolOutput | HandoffOutput, call: ToolCall | HandoffCall | None, place: str) -> JsonDict:
    call_id = _clean_id(item.call_id) if call is None else _wire_id(call)
    block: JsonDict = {"type": "tool_result", "tool_use_id": call_id}
    output = item.output
    if isinstance(call, ToolCall) and call.kind == "shell" and executors.own_name(call) is not None:
        output = executors.shell_text(output)
    if content := _result_content(output, place):
        block["content"] = content
    if isinstance(item, ToolOutput) and item.is_error:
        block["is_error"] = True
    return block


def _wire_id(item: ToolCall | HandoffCall) -> str:
    data = item.provider_data
    given = data.get(WIRE_ID) if isinstance(data, Mapping) else None
    return given if isinstance(given, str) else _clean_id(item.call_id)


def _clean_id(call_id: str) -> str:
    """Return *call_id* in the characters that the interface allows: another provider's may have more."""
    return re.sub(r"[^a-zA-Z0-9_-]", "_", call_id)


def _said_blocks(item: AssistantMessage, place: str) -> list[JsonDict]:
    """Return the blocks of a message of the model, each text with the citations that it came with."""
    if foreign := [part for part in item.content if not isinstance(part, Text | Refusal)]:
        raise no_form(place, foreign[0], INTERFACE)
    cited: Sequence[Any] = (item.provider_data or {}).get(CITATIONS) or ()
    if len(cited) != len(item.content):
        return _blocks(item.content, place)
    told = [(part, each) for part, each in zip(item.content, cited, strict=True) if not _is_empty(part)]
    return [_block(part, place) | ({"citations": each} if each else {}) for part, each in told]


def _thinking_blocks(item: Reasoning) -> list[JsonDict]:
    match (item.provider_data or {}).get(BLOCK):
        case "thinking":
            return [{"type": "thinking", "thinking": "".join(item.content), "signature": item.encrypted or ""}]
        case "redacted_thinking":
            return [{"type": "redacted_thinking", "data": item.encrypted or ""}]
        case _:
            return []  # another provider's, whose signature means nothing here


def _is_own_block(data: Mapping[str, Any]) -> bool:
    return BLOCK in data or data.get("type") in HOSTED_CALLS


HOSTED_CALLS = ("server_tool_use", "mcp_tool_use")
"""Types of the calls of tools that this provider runs. Other blocks without a form are marked with their type."""


def _result_content(output: Content, place: str) -> str | list[JsonDict]:
    if isinstance(output, str):
        return output if output.strip() else ""
    return _blocks(output, f"{place}.output")


def _blocks(parts: Iterable[Part], place: str) -> list[JsonDict]:
    """Return the blocks of *parts*. The interface refuses a text of blanks, so there is no block for one."""
    return [_block(part, f"{place}[{index}]") for index, part in enumerate(parts) if not _is_empty(part)]


def _is_empty(part: Part) -> bool:
    return (isinstance(part, Text) and not part.text.strip()) or (
        isinstance(part, Refusal) and not part.refusal.strip()
    )


def _block(part: Part, place: str) -> JsonDict:
    match part:
        case Text():
            return {"type": "text", "text": part.text}
        case Refusal():
            return {"type": "text", "text": part.refusal}
        case Image():
            return {"type": "image", "source": _source(part, place)}
        case File():
            return {"type": "document", "source": _source(part, place)} | without_none({"title": part.filename})
        case _:
            raise no_form(place, part, INTERFACE)


def _source(part: Image | File, place: str) -> JsonDict:
    if part.file_id is not None:
        return {"type": "file", "file_id": part.file_id}
    url = part.url if part.data is None else data_url(part)
    if url is None or not url.startswith("data:"):
        return {"type": "url", "url": url}
    head, _, data = url.removeprefix("data:").partition(",")
    if not head.endswith(";base64"):
        raise UserError(f"{place}: {INTERFACE} takes data URLs in base64 only.")
    kind = head.removesuffix(";base64").partition(";")[0]
    if isinstance(part, File) and kind.startswith("text/"):
        # Documents in base64 are PDFs; a text is sent as text.
        return {"type": "text", "media_type": "text/plain", "data": _decode_text(data, place)}
    return {"type": "base64", "media_type": kind, "data": data}


def _decode_text(data: str, place: str) -> str:
    try:
        return b64decode(data, validate=True).decode()
    except ValueError:
        raise UserError(f"{place}: the file isn't a text in base64 and UTF-8.") from None
