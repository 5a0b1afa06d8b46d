"""The answers of Chat Completions: the chunks of a response to model events. Pure.

Does not know about HTTP: `ChatDecoder` takes the text of one event at a time.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import attrs

from agentloop.exceptions import ModelBehaviorError
from agentloop.items import (
    Annotation,
    AssistantMessage,
    Item,
    Part,
    Reasoning,
    Refusal,
    Text,
    ToolCall,
    UrlCitation,
)
from agentloop.model_events import (
    ArgumentsDelta,
    ItemDone,
    ModelEvent,
    ModelRequest,
    Raw,
    ReasoningDelta,
    ResponseDone,
    ResponseStarted,
    TextDelta,
)
from agentloop.models._chat import constrained as _constrained
from agentloop.models._chat.items import DETAILS, EXTRA, LOGPROBS, WIRE_ID
from agentloop.models._codec import (
    QUOTED,
    EventDecoder,
    JsonDict,
    UsageNames,
    count_part,
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
    make_call_id,
)
from agentloop.models._partial_json import PartialJson

_USAGE = UsageNames("prompt_tokens", "prompt_tokens_details", "completion_tokens", "completion_tokens_details")


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
            raise server_error(event, shown=self.shown)
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
