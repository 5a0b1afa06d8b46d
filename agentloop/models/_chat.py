"""The Chat Completions codec: a request to its JSON body, the chunks of a response to model events. Pure.

Does not know about HTTP: `encode` returns the body to post, `ChatDecoder` takes the text of one event at a time.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import attrs

from agentloop.exceptions import ModelBehaviorError, UserError
from agentloop.items import (
    Annotation,
    AssistantMessage,
    HandoffCall,
    HandoffOutput,
    Item,
    Part,
    Reasoning,
    Refusal,
    SystemMessage,
    Text,
    ToolCall,
    ToolOutput,
    UrlCitation,
    UserMessage,
)
from agentloop.model_events import (
    ArgumentsDelta,
    ItemDone,
    ModelEvent,
    ModelRequest,
    OutputSchema,
    Raw,
    ReasoningDelta,
    ResponseDone,
    ResponseStarted,
    TextDelta,
    ToolDefinition,
)
from agentloop.models import _constrained
from agentloop.models._codec import (
    QUOTED,
    EventDecoder,
    JsonDict,
    UsageNames,
    WrittenArray,
    add_extras,
    broken_answer_error,
    count_part,
    encode_json,
    is_json,
    optional_text,
    optional_whole,
    read_finish_reason,
    read_objects,
    read_text,
    read_usage,
    server_error,
    without_none,
)
from agentloop.models._common import (
    CallIds,
    argument_text,
    chat_content,
    earlier_name,
    find_allowed_tools,
    find_forced_name,
    make_call_id,
    no_form,
    no_message,
    output_text,
    plain_text,
    refuse_tools,
    tool_choice,
    with_properties,
)
from agentloop.models._partial_json import PartialJson
from agentloop.models._pieces import CALL_TYPES, OUTPUT_TYPES, PieceCache
from agentloop.settings import ModelSettings

_USAGE = UsageNames("prompt_tokens", "prompt_tokens_details", "completion_tokens", "completion_tokens_details")
STREAM_OPTIONS = "stream_options"
"""The field that asks for the use of tokens at the end of a stream."""
EXTRA = "chat_extra_content"
"""Key in a call's `provider_data` of the field `extra_content` that it came with."""
LOGPROBS = "chat_logprobs"
"""Key in a message's `provider_data` of the probabilities of its tokens, as they came."""
DETAILS = "chat_reasoning_details"
"""Key in a reasoning item's `provider_data` of the field `reasoning_details` that it came with: a router's signatures
of the thoughts, which some providers want back unchanged."""
WIRE_ID = "chat_call_id"
"""Key in a call's `provider_data` of the server's own id, if the run uses another id for the call."""

# ---------------------------------------------------------------------------------------------- request


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
    pieces: PieceCache | None = None,
) -> JsonDict:
    """Return the body that sends *request* to *model_name*.

    `truncation`, `include`, and `reasoning` except its effort have no field here and are left out, as they don't change
    the question. `extra_body` overrides fields of the result. With *extra_content*, a call that came with such a field
    goes back with it: a vendor's signature of the thought behind it. With *replay_reasoning*, reasoning goes back as
    `reasoning_content`. With *custom_tools*, the server knows tools of free text. Without *stream_usage*, no stream is
    asked for its use of tokens. *pieces* has what earlier requests wrote with these options.

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
        messages = _Messages(PieceCache() if pieces is None else pieces, extra_content, replay_reasoning)
        written = messages.add_all(request)
        if not written:
            raise no_message()
        body["messages"] = WrittenArray(written)
        body |= _tool_fields(request) | _format_fields(request.output_schema)
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


def _tool_fields(request: ModelRequest) -> JsonDict:
    tools = [_tool(tool) for tool in (*request.tools, *request.handoffs)]
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


def _tool(tool: ToolDefinition) -> JsonDict:
    if tool.kind == "custom":
        return {"type": "custom", "custom": _custom(tool)}
    described = {
        "name": tool.name,
        "description": tool.description,
        "parameters": with_properties(tool.params_json_schema),
    }
    # Left out, it means False, and servers that don't know it refuse tools that have it.
    return {"type": "function", "function": described | ({"strict": True} if tool.strict_mode else {})}


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


class _Messages:
    """Collects messages. Successive calls, and the text before them, share one assistant message."""

    def __init__(self, pieces: PieceCache, extra_content: bool, replay_reasoning: bool) -> None:
        self._pieces = pieces
        self._extra_content = extra_content
        self._replay_reasoning = replay_reasoning
        self._done: list[bytes] = []
        self._thoughts: bytes | None = None  # a field of the next assistant message
        self._by_id: dict[str, ToolCall | HandoffCall] = {}
        self._open: bytes | None = None  # the assistant message to which following calls are added, without those
        self._calls: list[bytes] = []

    def add_all(self, request: ModelRequest) -> list[bytes]:
        """Return the messages of *request*."""
        if request.system:
            self._done.append(encode_json({"role": "system", "content": request.system}))
        for index, item in enumerate(request.items):
            if isinstance(item, CALL_TYPES):
                self._by_id[item.call_id] = item
                self._add_call(item, f"items[{index}]")
            elif isinstance(item, Reasoning):
                if self._replay_reasoning and (fields := _reasoning_fields(item)):
                    self._thoughts = encode_json(fields)[1:-1]
            else:
                self._add(item, f"items[{index}]")
        if self._open is not None:
            self._close()
        return self._done

    def _add(self, item: Item, place: str) -> None:
        if self._open is not None:
            self._close()
        call = self._by_id.get(item.call_id) if isinstance(item, OUTPUT_TYPES) else None
        piece = self._pieces.find(item, call)
        if piece is None:
            piece = self._pieces.keep(item, encode_json(_message(item, call, place)), call)
        if isinstance(item, AssistantMessage):
            self._begin(piece)
        else:
            self._done.append(piece)

    def _add_call(self, item: ToolCall | HandoffCall, place: str) -> None:
        piece = self._pieces.find(item)
        if piece is None:
            piece = self._pieces.keep(item, encode_json(_call(item, self._extra_content, place)))
        if self._open is None:
            self._begin(_ONLY_CALLS)
        self._calls.append(piece)

    def _begin(self, message: bytes) -> None:
        self._open, self._thoughts = _add_fields(message, self._thoughts), None

    def _close(self) -> None:
        assert self._open is not None
        calls = b'"tool_calls":[%s]' % b",".join(self._calls) if self._calls else None
        self._done.append(_add_fields(self._open, calls))
        self._open, self._calls = None, []


def _reasoning_fields(item: Reasoning) -> JsonDict:
    details = (item.provider_data or {}).get(DETAILS)
    return without_none({"reasoning_content": "".join(item.content) or None, "reasoning_details": details or None})


_ONLY_CALLS = encode_json({"role": "assistant", "content": None})


def _add_fields(message: bytes, fields: bytes | None) -> bytes:
    return message if fields is None else b"%s,%s}" % (message[:-1], fields)


def _message(item: Item, call: ToolCall | HandoffCall | None, place: str) -> JsonDict:
    """Return the message of an item that is no call; an output answers *call*."""
    match item:
        case SystemMessage():
            return {"role": "system", "content": plain_text(item.content, place)}
        case UserMessage():
            return {"role": "user", "content": chat_content(item.content, place)}
        case AssistantMessage():
            return _assistant(item, place)
        case ToolOutput(kind="approval"):
            raise no_form(place, item)
        case HandoffOutput() | ToolOutput():
            call_id = item.call_id if call is None else _wire_id(call)
            return {"role": "tool", "tool_call_id": call_id, "content": output_text(item.output)}
        case _:
            raise no_form(place, item)


def _call(item: ToolCall | HandoffCall, extra_content: bool, place: str) -> JsonDict:
    if isinstance(item, ToolCall) and item.kind == "approval":
        raise no_form(place, item)
    call: JsonDict = {"id": _wire_id(item), "type": "function"}
    name = earlier_name(item.name)
    if isinstance(item, ToolCall) and item.kind == "custom":
        call |= {"type": "custom", "custom": {"name": name, "input": item.arguments}}
    else:
        call["function"] = {"name": name, "arguments": argument_text(item.arguments)}
    if extra_content and (extra := (item.provider_data or {}).get(EXTRA)):
        call["extra_content"] = extra
    return call


def _wire_id(call: ToolCall | HandoffCall) -> str:
    """Return the server's id of *call*: the run's, if the two don't differ."""
    given = call.provider_data.get(WIRE_ID) if isinstance(call.provider_data, Mapping) else None
    return given if isinstance(given, str) else call.call_id


def _assistant(item: AssistantMessage, place: str) -> JsonDict:
    words: list[Part] = [part for part in item.content if not isinstance(part, Refusal)]
    refusal = {} if item.refusal is None else {"refusal": item.refusal}
    return {"role": "assistant", "content": plain_text(words, place) or None} | refusal


# ---------------------------------------------------------------------------------------------- response


@attrs.define
class _PartialCall:
    number: int
    """Its number among the calls of the response, from 1."""
    index: object
    id: str | None
    name: str
    arguments: PartialJson = attrs.field(factory=PartialJson)
    custom: bool = False
    """True if its arguments are free text."""
    extra: object = None
    """The vendor's own part of it."""


class _PartialCalls:
    """The calls of the response so far, in their order, and which of them a part continues.

    The index identifies a call, and its first part holds id and name: so the specification. Real servers leave out the
    index, repeat id and name in every part, give all parallel calls index 0, or send arguments as an object.
    """

    def __init__(self) -> None:
        self.all: list[_PartialCall] = []
        self._newest: dict[object, _PartialCall] = {}  # by index
        self._by_id: dict[tuple[object, str], _PartialCall] = {}  # by index and id, the first of several
        self._by_own_id: dict[str, _PartialCall] = {}

    def add(self, index: object, given_id: str | None, name: str) -> _PartialCall:
        """Begin a call."""
        call = _PartialCall(count_part(len(self.all) + 1), index, given_id, name)
        self.all.append(call)
        self._newest[index] = call
        self.note_id(call)
        return call

    def note_id(self, call: _PartialCall) -> None:
        """Note the id of *call*, which may come late."""
        if call.id is not None:
            self._by_id.setdefault((call.index, call.id), call)
            self._by_own_id.setdefault(call.id, call)

    def find(self, index: object, given_id: str | None, name: str) -> _PartialCall | None:
        """Return the call that a part continues, or None if it begins one."""
        if index is not None:
            newest = self._newest.get(index)
            if newest is None or given_id is None:
                return newest
            # Another id under a known index begins a call if a name comes with it; else it is the missing id, sent
            # late.
            return self._by_id.get((index, given_id), None if name and newest.id else newest)
        if given_id is not None:
            return self._by_own_id.get(given_id)
        if not self.all:
            return None
        last = self.all[-1]
        begins = bool(name) and bool(last.name) and (name != last.name or last.arguments.whole)
        return None if begins else last


class _ReasoningDetails:
    """The parts of `reasoning_details` as they come: pieces of one part have its index and type."""

    def __init__(self) -> None:
        self._parts: dict[tuple[object, object], tuple[JsonDict, dict[str, list[str]]]] = {}

    def add(self, pieces: Iterable[Mapping[str, Any]]) -> None:
        """Add *pieces*: texts are continued, other fields replace those from before."""
        for piece in pieces:
            index, kind = piece.get("index"), piece.get("type")
            known = isinstance(index, int | str) and isinstance(kind, str)
            key = (index, kind) if known else (None, count_part(len(self._parts) + 1))
            fields, texts = self._parts.setdefault(key, ({}, {}))
            for name, value in piece.items():
                if name in _GROWING and isinstance(value, str):
                    texts.setdefault(name, []).append(value)
                if value is not None or name not in fields:
                    fields[name] = value

    def join(self) -> list[JsonDict]:
        """Return the parts."""
        return [
            fields | {name: "".join(text) for name, text in texts.items()} for fields, texts in self._parts.values()
        ]


_GROWING = ("text", "summary", "data")


class ChatDecoder(EventDecoder):
    """Turns the events of one response into model events. Use: `feed` each event's data, then `finish` once.

    Owned by the call that reads the response. *request* serves only to generate call ids if the server gives none, and
    to know the tools of constrained mode. `done` is True once `[DONE]` has come: nothing of use follows.
    """

    what = "A chunk of the response"
    ends_with_line = True

    def __init__(self, request: ModelRequest, *, constrained: bool = False) -> None:
        super().__init__()
        self._ids = CallIds(request)
        self._constrained = _constrained.CallText() if constrained and _constrained.list_offers(request) else None
        self._constrained_id = make_call_id(request, "local") if self._constrained else ""
        self._started = False
        self._id: str | None = None
        self._model: str | None = None
        self._text: list[str] = []
        self._refusal: list[str] = []
        self._reasoning: list[str] = []
        self._details = _ReasoningDetails()
        self._calls = _PartialCalls()
        self._usage: Mapping[str, Any] | None = None
        self._finish_reason: str | None = None
        self._service_tier: str | None = None
        self._annotations: list[Annotation] = []
        self._logprobs: list[Mapping[str, Any]] = []

    def _read_event(self, event: Mapping[str, Any]) -> Iterator[ModelEvent | None]:
        if event.get("error") or event.get("object") == "error":
            # The caller has seen the beginning of an answer, so a retry is possible only if there was none.
            raise broken_answer_error(event) if self.shown else server_error(event)
        if isinstance(event.get("id"), str) and self._id is None:
            self._id = event["id"]
        if isinstance(event.get("model"), str):
            self._model = event["model"]
        if isinstance(event.get("service_tier"), str):
            self._service_tier = event["service_tier"]
        if not self._started:
            self._started = True
            yield ResponseStarted(self._id)
        yield Raw(event)
        if isinstance(event.get("usage"), Mapping):
            self._usage = event["usage"]
        for choice in read_objects(event.get("choices"), "choices"):
            if choice.get("index") in (0, None):
                yield from self._choice(choice)

    def _read_answer(self, answer: Mapping[str, Any]) -> Iterator[ModelEvent | None]:
        return self._read_event(answer)

    def read_end(self, request_id: str | None = None) -> Iterator[ModelEvent | None]:
        """Yield the last events. Raises as `finish`."""
        if self._finish_reason is None:
            raise ModelBehaviorError("The response ended before it was complete.")
        self._finish_reason = read_finish_reason(self._finish_reason)
        cut = self._finish_reason in ("length", "content_filter")
        items: list[Item] = []
        for item in self._items(cut):
            items.append(item)
            yield None
        if cut and not items:
            raise ModelBehaviorError(f"The response was cut ({self._finish_reason}) before anything usable came.")
        usage = None if self._usage is None else read_usage(self._usage, self._model, _USAGE)
        yield from map(ItemDone, items)
        yield ResponseDone(items, usage, self._id, request_id, self._finish_reason, self._model, self._service_tier)

    def _choice(self, choice: Mapping[str, Any]) -> Iterator[ModelEvent | None]:
        delta = choice.get("delta") or choice.get("message") or {}
        if not isinstance(delta, Mapping):
            raise ModelBehaviorError(f"A delta of the response isn't an object: {str(delta)[:QUOTED]!r}")
        if choice.get("finish_reason"):
            self._finish_reason = str(choice["finish_reason"])
        if thought := read_text(delta.get("reasoning_content") or delta.get("reasoning"), "reasoning"):
            self._reasoning.append(thought)
            yield ReasoningDelta(thought)
        self._details.add(read_objects(delta.get("reasoning_details"), "reasoning_details"))
        if refusal := read_text(delta.get("refusal"), "refusal"):
            self._refusal.append(refusal)
        if text := read_text(delta.get("content"), "content"):
            yield from self._content(text)
        for annotation in read_objects(delta.get("annotations"), "annotations"):
            self._annotations.extend(_citations(annotation))
        if isinstance(told := choice.get("logprobs"), Mapping):
            self._logprobs.extend(read_objects(told.get("content"), "logprobs"))
        for part in read_objects(delta.get("tool_calls"), "tool_calls"):
            yield from self._call_part(part)

    def _content(self, text: str) -> Iterator[ModelEvent]:
        if self._constrained is None:
            self._text.append(text)
            yield TextDelta(text)
        elif piece := self._constrained.feed(text):
            yield ArgumentsDelta(self._constrained_id, piece)

    def _call_part(self, part: Mapping[str, Any]) -> Iterator[ModelEvent | None]:
        function = part.get("function") or part.get("custom") or {}
        if not isinstance(function, Mapping):
            raise ModelBehaviorError(f"A call's function isn't an object: {str(function)[:QUOTED]!r}")
        name = read_text(function.get("name"), "name")
        given_id = read_text(part.get("id"), "id") or None
        index = part.get("index")
        if not isinstance(index, int | float | str):
            index = None
        call = self._calls.find(index, given_id, name)
        if call is None:
            call = self._calls.add(index, given_id, name)
        elif name and not call.name:
            call.name = name
        if call.id is None and given_id is not None:
            call.id = given_id
            self._calls.note_id(call)
        call.custom = call.custom or part.get("type") == "custom"
        call.extra = part.get("extra_content") or call.extra
        if piece := _argument_text(function.get("arguments") or function.get("input")):
            call.arguments.feed(piece)
            yield ArgumentsDelta(self._call_id(call), piece)
        else:
            yield None

    def _call_id(self, call: _PartialCall) -> str:
        """Return the run's id for *call*. A call without one gets it at its first piece, and keeps it."""
        known_as, given = self._ids.assign(call.id, call.number)
        if call.id is None:
            call.id = given
            self._calls.note_id(call)
        return known_as

    # Items.

    def _items(self, cut: bool) -> Iterator[Item]:
        said = self._make_parts(cut)
        calls: Iterable[Item] = map(partial(self._tool_call, cut=cut), self._calls.all)
        called = bool(self._calls.all)
        if self._constrained is not None and not self._refusal and not called:
            calls = made = self._constrained_call(self._constrained, cut)
            called = bool(made)
        # Reasoning belongs to the item after it, and isn't kept alone.
        details = self._details.join()
        if (self._reasoning or details) and (said or called):
            thoughts = ("".join(self._reasoning),) if self._reasoning else ()
            yield Reasoning(content=thoughts, provider_data={DETAILS: details} if details else None)
        if said:
            yield AssistantMessage(said, provider_data={LOGPROBS: self._logprobs} if self._logprobs else None)
        yield from calls

    def _make_parts(self, cut: bool) -> tuple[Part, ...]:
        text, refusal = "".join(self._text), "".join(self._refusal)
        parts: list[Part] = []
        if text.strip() or (text and not cut):
            parts.append(Text(text, tuple(self._annotations)))
        if refusal:
            parts.append(Refusal(refusal))
        return tuple(parts)

    def _tool_call(self, call: _PartialCall, *, cut: bool) -> ToolCall:
        if not call.name:
            raise ModelBehaviorError("The response calls a function without naming it.")
        text = call.arguments.text
        if cut and not (call is not self._calls.all[-1] if call.custom else is_json(text)):
            raise ModelBehaviorError(f"The response was cut ({self._finish_reason}) within a call of {call.name!r}.")
        call_id = self._call_id(call)
        kept = without_none({WIRE_ID: None if call.id == call_id else call.id, EXTRA: call.extra})
        if call.custom:
            return ToolCall(call_id, call.name, text, kind="custom", provider_data=kept or None)
        return ToolCall(call_id, call.name, text or "{}", provider_data=kept or None)

    def _constrained_call(self, answer: _constrained.CallText, cut: bool) -> list[ToolCall]:
        if cut and answer.empty:
            return []
        try:
            name, arguments = answer.call()
        except ModelBehaviorError:
            if not cut:
                raise
            raise ModelBehaviorError(
                f"The response was cut ({self._finish_reason}) within a call; more max_tokens may help."
            ) from None
        return [ToolCall(self._constrained_id, name, arguments)]


def _argument_text(value: object) -> str:
    return json.dumps(value) if isinstance(value, dict | list) else read_text(value, "arguments")


def _citations(data: Mapping[str, Any]) -> Iterator[Annotation]:
    """Yield the citation in *data*, if it is of a known kind."""
    match data:
        case {"type": "url_citation", "url_citation": {"url": str(url), **fields}}:
            yield UrlCitation(
                url=url,
                title=optional_text(fields.get("title")),
                start=optional_whole(fields.get("start_index")),
                end=optional_whole(fields.get("end_index")),
            )
