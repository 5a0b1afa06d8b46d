"""The Anthropic Messages codec, responses: the events of a response to model events. Pure.

A response's blocks become items in their order, at its end: successive texts share a message, and the result of a tool
that the provider runs joins its call.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import attrs

from agentloop.exceptions import ModelBehaviorError
from agentloop.items import (
    Annotation,
    AssistantMessage,
    Caller,
    FileCitation,
    HostedToolCall,
    Item,
    OpaqueItem,
    Reasoning,
    Refusal,
    Text,
    ToolCall,
    UrlCitation,
)
from agentloop.model_events import (
    ArgumentsDelta,
    HostedProgress,
    ItemDone,
    ModelEvent,
    ModelRequest,
    Raw,
    ReasoningDelta,
    ResponseDone,
    ResponseStarted,
    TextDelta,
)
from agentloop.models._codec import (
    NOT_JSON,
    QUOTED,
    EventDecoder,
    JsonDict,
    count_part,
    is_json,
    optional_text,
    optional_whole,
    parse_json,
    read_count,
    read_finish_reason,
    read_objects,
    read_text,
    server_error,
    without_none,
)
from agentloop.models._common import CallIds
from agentloop.models._messages.executors import own_tools
from agentloop.models._messages.items import BLOCK, CITATIONS, HOSTED_CALLS, RESULT, WIRE_ID
from agentloop.models._messages.request import OutputMode
from agentloop.usage import RequestUsage

_FINISH_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "pause_turn": "pause",
    "refusal": "refusal",
}
"""The provider's reasons for the end of an answer, in the words that runs know."""


@attrs.define(eq=False)
class _BlockRead:
    """One block of the response while it comes."""

    start: Mapping[str, Any]
    kind: str
    number: int = 0
    """The number of the call among those of the response, from 1."""
    place: int = 0
    """The index of the first block of its message, which is the position that its pieces name."""
    text: list[str] = attrs.field(factory=list)
    signature: list[str] = attrs.field(factory=list)
    citations: list[Any] = attrs.field(factory=list)

    @property
    def joined(self) -> str:
        """Its text so far."""
        return "".join(self.text)


class MessagesDecoder(EventDecoder):
    """Turns the events of one response into model events. Use: `feed` each event's data, then `finish` once.

    Owned by the call that reads the response. `done` is True once `message_stop` has come: nothing of use follows.
    """

    def __init__(
        self, request: ModelRequest, *, output_mode: OutputMode = "format", computer: str | None = None
    ) -> None:
        super().__init__()
        output = request.output_schema
        self._output_tool = output.name if output is not None and output_mode == "tool" else None
        self._ids = CallIds(request)
        self._own = own_tools(request.tools, computer)
        self._blocks: dict[int | None, _BlockRead] = {}
        self._hosted: dict[str, _BlockRead] = {}
        """The calls of hosted tools, by their ids."""
        self._begun = 0
        self._newest: _BlockRead | None = None
        self._calls = 0
        self._id: str | None = None
        self._model: str | None = None
        self._usage: JsonDict = {}
        self._stop_reason: str | None = None
        self._explanation: str | None = None
        self._told: JsonDict = {}

    def _read_event(self, event: Mapping[str, Any]) -> Iterator[ModelEvent | None]:
        if event.get("type") == "error":
            raise server_error(event, shown=self.shown)
        yield from self._take(event)

    def _read_answer(self, answer: Mapping[str, Any]) -> Iterator[ModelEvent | None]:
        if answer.get("type") == "error":
            raise server_error(answer)
        yield from self._start(answer)
        yield Raw(answer)
        for index, block in enumerate(read_objects(answer.get("content"), "content")):
            yield from self._start_block(index, block)
            yield None
        self._end(answer, answer.get("usage"))
        self.done = True

    def read_end(self, request_id: str | None = None) -> Iterator[ModelEvent | None]:
        """Yield the last events. Raises as `finish`."""
        if not self.done or self._stop_reason is None:
            raise ModelBehaviorError("The response ended before it was complete.")
        reason = _FINISH_REASONS.get(self._stop_reason) or read_finish_reason(self._stop_reason)
        items: list[Item] = []
        for item in self._refused() if reason == "refusal" else self._add_items(items, reason == "length"):
            if item is not None:
                items.append(item)
            yield None
        if reason == "length" and not items:
            raise ModelBehaviorError(f"The response was cut ({self._stop_reason}) before anything usable came.")
        usage = _read_usage(self._usage, self._model) if self._usage else None
        yield from map(ItemDone, items)
        yield self._done(tuple(items), usage, request_id, reason)

    def _done(
        self, items: tuple[Item, ...], usage: RequestUsage | None, request_id: str | None, reason: str
    ) -> ResponseDone:
        tier = optional_text(self._usage.get("service_tier"))
        return ResponseDone(items, usage, self._id, request_id, reason, self._model, tier, self._told or None)

    # Events.

    def _take(self, event: Mapping[str, Any]) -> Iterator[ModelEvent]:
        kind = event.get("type")
        if kind == "message_start":
            message = _read_object(event.get("message"), "message")
            yield from self._start(message)
        yield Raw(event)
        match kind:
            case "content_block_start":
                yield from self._start_block(event.get("index"), _read_object(event.get("content_block"), "block"))
            case "content_block_delta":
                yield from self._continue_block(event)
            case "message_delta":
                self._end(_read_object(event.get("delta"), "delta"), event.get("usage"))
            case "message_stop":
                self.done = True
            case _:  # pings, ends of blocks, and events of a later version
                pass

    def _start(self, message: Mapping[str, Any]) -> list[ModelEvent]:
        self._id, self._model = optional_text(message.get("id")), optional_text(message.get("model"))
        self._count(message.get("usage"))
        return [ResponseStarted(self._id)]

    def _end(self, delta: Mapping[str, Any], usage: object) -> None:
        if isinstance(reason := delta.get("stop_reason"), str):
            self._stop_reason = reason
        self._told |= without_none({name: delta.get(name) for name in _TOLD})
        details = delta.get("stop_details")
        if isinstance(details, Mapping) and isinstance(words := details.get("explanation"), str):
            self._explanation = words
        self._count(usage)

    def _count(self, usage: object) -> None:
        """Note *usage*: its counts are cumulative, and later ones replace those that they know."""
        if isinstance(usage, Mapping):
            self._usage |= without_none(usage)

    def _start_block(self, index: object, start: Mapping[str, Any]) -> Iterator[ModelEvent]:
        place = _read_index(index)
        self._begun = count_part(self._begun + 1)
        block = self._blocks[place] = _BlockRead(start, str(start.get("type")), place=place or 0)
        before, self._newest = self._newest, block
        if before is not None and block.kind == before.kind == "text":
            block.place = before.place  # successive texts share a message
        match block.kind:
            case "text":
                yield from self._add(block, read_text(start.get("text"), "text"))
                block.citations.extend(read_objects(start.get("citations"), "citations"))
            case "thinking":
                yield from self._add(block, read_text(start.get("thinking"), "thinking"))
                block.signature.append(read_text(start.get("signature"), "signature"))
            case "tool_use":
                self._calls += 1
                block.number = self._calls
                if given := start.get("input"):  # whole: the response isn't streamed
                    yield from self._add(block, json.dumps(given))
            case "server_tool_use" | "mcp_tool_use":
                if (own_id := optional_text(start.get("id"))) is not None:
                    self._hosted.setdefault(own_id, block)
                yield HostedProgress(str(start.get("name")), "in_progress", own_id)
            case str(kind) if kind.endswith("_tool_result"):
                yield from self._end_hosted(start)

    def _end_hosted(self, result: Mapping[str, Any]) -> Iterator[ModelEvent]:
        """Give the last step of the hosted tool's call that *result* answers; none if it isn't of this response."""
        used = optional_text(result.get("tool_use_id"))
        block = None if used is None else self._hosted.get(used)
        if block is not None:
            yield HostedProgress(str(block.start.get("name")), _status(result), used)

    def _continue_block(self, event: Mapping[str, Any]) -> Iterator[ModelEvent]:
        block = self._blocks.get(_read_index(event.get("index")))
        if block is None:
            raise ModelBehaviorError("The response continues a block that it never began.")
        delta = _read_object(event.get("delta"), "delta")
        match delta.get("type"):
            case "text_delta":
                yield from self._add(block, read_text(delta.get("text"), "text"))
            case "thinking_delta":
                yield from self._add(block, read_text(delta.get("thinking"), "thinking"))
            case "input_json_delta":
                yield from self._add(block, read_text(delta.get("partial_json"), "input"))
            case "signature_delta":
                block.signature.append(read_text(delta.get("signature"), "signature"))
            case "citations_delta":
                block.citations.extend(read_objects([delta["citation"]] if "citation" in delta else None, "citations"))

    def _add(self, block: _BlockRead, text: str) -> Iterator[ModelEvent]:
        if not text:
            return
        block.text.append(text)
        match block.kind:
            case "text":
                yield TextDelta(text, block.place)
            case "thinking":
                yield ReasoningDelta(text)
            case "tool_use":
                if self._is_output(block):
                    yield TextDelta(text, block.place)
                else:
                    yield ArgumentsDelta(self._call_ids(block)[0], text)

    def _is_output(self, block: _BlockRead) -> bool:
        """Tell whether *block* is the call whose input is the final output."""
        return self._output_tool is not None and block.start.get("name") == self._output_tool

    def _call_ids(self, block: _BlockRead) -> tuple[str, str]:
        """Return the run's id and the provider's id for a call."""
        given = block.start.get("id")
        return self._ids.assign(given if isinstance(given, str) and given else None, block.number)

    # Items.

    def _add_items(self, items: list[Item], cut: bool) -> Iterator[None]:
        """Add the answer's items to *items*; a step for each block."""
        said: list[_BlockRead] = []
        hosted: dict[str, int] = {}  # the places of hosted tools' calls among the items, by their ids
        for block in self._blocks.values():
            yield
            if block.kind == "text" or self._is_output(block):
                if not block.joined.strip() and (cut or not block.text):
                    continue
                if block.kind == "text":
                    said.append(block)
                else:  # its own message: words before the output aren't part of it
                    items += [*_message(said), *_message([block])]
                    said = []
                continue
            items += _message(said)
            said = []
            if _add_result(items, hosted, block):
                continue
            item = self._item(block, cut)
            if isinstance(item, HostedToolCall) and item.id is not None:
                hosted.setdefault(item.id, len(items))
            items.append(item)
        items += _message(said)
        while items and isinstance(items[-1], Reasoning):
            items.pop()  # reasoning belongs to the item after it, and isn't kept alone

    def _item(self, block: _BlockRead, cut: bool) -> Item:
        match block.kind:
            case "tool_use":
                return self._call(block, cut)
            case "thinking":
                content = (block.joined,) if block.text else ()
                signature = "".join(block.signature) or None
                return Reasoning(content=content, encrypted=signature, provider_data={BLOCK: block.kind})
            case "redacted_thinking":
                data = read_text(block.start.get("data"), "data")
                return Reasoning(encrypted=data, provider_data={BLOCK: block.kind})
            case kind if kind in HOSTED_CALLS:
                return _hosted_call(block)
            case _:
                return OpaqueItem({**block.start, BLOCK: block.kind})

    def _call(self, block: _BlockRead, cut: bool) -> ToolCall:
        name = block.start.get("name")
        if not isinstance(name, str) or not name:
            raise ModelBehaviorError("The response calls a function without naming it.")
        if cut and not is_json(block.joined):
            raise ModelBehaviorError(f"The response was cut ({self._stop_reason}) within a call of {name!r}.")
        call_id, given = self._call_ids(block)
        wire = None if call_id == given else {WIRE_ID: given}
        caller = _read_caller(block.start.get("caller"))
        text = block.joined or "{}"
        if (own := self._own.get(name)) is not None:
            assert own.kind != "memory"  # its calls are a function's
            return ToolCall(call_id, own.name, text, kind=own.kind, caller=caller, provider_data=wire)
        return ToolCall(call_id, name, text, caller=caller, provider_data=wire)

    def _refused(self) -> Iterator[Item]:
        """Yield the message of a refused answer. Its calls aren't run, since the provider took the answer back."""
        text = "".join(block.joined for block in self._blocks.values() if block.kind == "text")
        refusal = Refusal(self._explanation or "The provider ended the answer by a refusal.")
        yield AssistantMessage([Text(text), refusal] if text else [refusal])


_TOLD = ("stop_sequence", "stop_details", "container")
"""Fields of the response as a whole that have no place but its `provider_data`."""


def _message(blocks: list[_BlockRead]) -> list[Item]:
    if not blocks:
        return []
    texts = [(block, block.joined) for block in blocks]
    parts = [Text(text, tuple(_annotations(block.citations, len(text)))) for block, text in texts]
    cited = [block.citations for block in blocks]
    return [AssistantMessage(parts, provider_data={CITATIONS: cited} if any(cited) else None)]


def _annotations(citations: Iterable[Any], end: int) -> Iterator[Annotation]:
    """Yield the *citations* of a text that have a form for every provider: of pages, up to its *end*, and of files."""
    for citation in citations:
        match citation:
            case {"type": "web_search_result_location", "url": str(url), **fields}:
                title = fields.get("title")
                yield UrlCitation(url=url, title=optional_text(title), end=end, start=0)
            case {"file_id": str(file_id), **fields}:
                yield FileCitation(file_id=file_id, filename=optional_text(fields.get("document_title")))


def _add_result(items: list[Item], hosted: Mapping[str, int], block: _BlockRead) -> bool:
    """Add the result in *block* to the call of a hosted tool that it answers. Return False if it is no such result.

    *hosted* has the places of such calls among the *items*.
    """
    used = block.start.get("tool_use_id")
    place = hosted.get(used) if block.kind.endswith("_tool_result") and isinstance(used, str) else None
    if place is None:
        return False
    call = items[place]
    assert isinstance(call, HostedToolCall)
    data = {**call.data, RESULT: dict(block.start)}
    items[place] = call.replace(data=data, output=block.start.get("content"), status=_status(block.start))
    return True


def _status(result: Mapping[str, Any]) -> str:
    """Return how the call of a hosted tool ended: an error has its own type, or the mark of MCP."""
    content = result.get("content")
    failed = isinstance(content, Mapping) and str(content.get("type")).endswith("_error")
    return "failed" if failed or result.get("is_error") is True else "completed"


def _read_caller(caller: object) -> Caller | None:
    """Return the hosted tool that made a call; None if the model itself did."""
    match caller:
        case {"type": str(kind), "tool_id": str(id)}:
            return Caller(kind, id)
        case _:
            return None


def _hosted_call(block: _BlockRead) -> HostedToolCall:
    data = dict(block.start)
    given = parse_json(block.joined) if block.text else NOT_JSON
    if given is not NOT_JSON:
        data["input"] = given
    call_id = optional_text(data.get("id"))
    return HostedToolCall(str(data.get("name")), data, call_id, call_id=call_id)


def _read_index(value: object) -> int | None:
    """Return the place of a block in the response; a server with a single block may leave it out."""
    if value is not None and optional_whole(value) is None:
        raise ModelBehaviorError(f"The index of a block isn't a number: {str(value)[:QUOTED]!r}")
    return optional_whole(value)


def _read_object(value: object, what: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ModelBehaviorError(f"The response's {what} isn't an object: {str(value)[:QUOTED]!r}")
    return value


def _read_usage(data: Mapping[str, Any], model: str | None) -> RequestUsage:
    # The input is counted in three parts; cached tokens are a part of the input elsewhere.
    cached = read_count(data, "cache_read_input_tokens")
    written = read_count(data, "cache_creation_input_tokens")
    spent = read_count(data, "input_tokens") + cached + written
    made = read_count(data, "output_tokens")
    return RequestUsage(
        raw=data,
        input_tokens=spent,
        output_tokens=made,
        total_tokens=spent + made,
        cached_tokens=cached,
        cache_write_tokens=written,
        reasoning_tokens=read_count(data.get("output_tokens_details"), "thinking_tokens"),
        model=model,
    )
