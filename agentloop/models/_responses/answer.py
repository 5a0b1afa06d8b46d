"""The Responses codec, inbound: the events of one answer to model events. Pure.

Theory. The answer is a list of items, each identified by its position (`output_index`); events of its pieces also name
its id. `response.output_item.done` gives a whole item, and the terminal event gives all of them once more: that list is
the answer, unless the server leaves it empty. Pieces that a server doesn't send (some send only whole items) are made
from the whole item, so that the pieces a consumer is shown always make up the answer.

States: nothing has come, the answer has begun (`ResponseStarted` was given), it is over (`done`: a terminal event has
come). Every event of the server is also given as `Raw`; one of a kind unknown here is nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from agentloop.exceptions import ModelBehaviorError
from agentloop.items import AssistantMessage, Item, Reasoning, Text, ToolCall
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
    EventDecoder,
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
)
from agentloop.models._common import CallIds
from agentloop.models._responses.executors import CONTENTS, names_by_kind
from agentloop.models._responses.items import CALLS, note_reasoning, read_item

_USAGE = UsageNames("input_tokens", "input_tokens_details", "output_tokens", "output_tokens_details")
_TERMINAL = ("response.completed", "response.incomplete", "response.failed")
_STEPS = ("in_progress", "searching", "interpreting", "generating", "compacting", "calling", "completed", "failed")
_TOLD = ("conversation", "metadata", "moderation", "prompt_cache_diagnostics", "tool_usage")
"""Fields of the answer as a whole that its `provider_data` keeps."""
_ARGUMENTS = ("response.function_call_arguments.delta", "response.custom_tool_call_input.delta")


class ResponsesDecoder(EventDecoder):
    """Turns the events of one answer into model events. Use: `feed` each event's data, then `finish` once.

    Owned by the call that reads the answer. *request* serves only to generate call ids if the server gives none.
    """

    def __init__(self, request: ModelRequest) -> None:
        super().__init__()
        self._started = False
        self._response: Mapping[str, Any] = {}
        self._came: dict[int, Mapping[str, Any]] = {}
        """The whole items, as they came, by position."""
        self._items: dict[int, Item] = {}
        self._call_ids = CallIds(request)
        self._executor_names = names_by_kind(request.tools)
        self._places: dict[str, int] = {}
        """Positions by the items' own ids."""
        self._pieces: set[tuple[int, str]] = set()
        """Positions of items, and the kinds of their pieces that were given."""
        self._reasoning: str | None = None
        """The id of the newest reasoning so far."""
        self._finish_reason = ""

    @property
    def response_id(self) -> str | None:
        """The id of the answer, as far as it has come."""
        return optional_text(self._response.get("id"))

    @property
    def items(self) -> tuple[Item, ...]:
        """The items of the answer so far, in order."""
        return tuple(item for _, item in sorted(self._items.items()))

    def _read_event(self, event: Mapping[str, Any]) -> Iterator[ModelEvent | None]:
        return self._events(event)

    def _read_answer(self, answer: Mapping[str, Any]) -> Iterator[ModelEvent | None]:
        if answer.get("object") != "response" and (answer.get("error") or answer.get("type") == "error"):
            raise server_error(answer)
        status = answer.get("status")
        if f"response.{status}" not in _TERMINAL:
            raise ModelBehaviorError(f"The response isn't over, its status is {str(status)[:40]!r}.")
        return self._events({"type": f"response.{status}", "response": answer}, whole=answer)

    def read_end(self, request_id: str | None = None) -> Iterator[ModelEvent | None]:
        """Yield the answer's last event, `ResponseDone`. Raises as `finish`."""
        if not self.done:
            raise ModelBehaviorError("The response ended before it was complete.")
        response = self._response
        usage, model, tier = (
            response.get("usage"),
            optional_text(response.get("model")),
            optional_text(response.get("service_tier")),
        )
        told = {name: response[name] for name in _TOLD if response.get(name)}
        found = None if not isinstance(usage, Mapping) else read_usage(usage, model, _USAGE)
        own, why = self.response_id, self._finish_reason
        yield ResponseDone(self.items, found, own, request_id, why, model, tier, told or None)

    # -- one event

    def _events(self, event: Mapping[str, Any], *, whole: Mapping[str, Any] | None = None) -> Iterator[ModelEvent]:
        kind = read_text(event.get("type"), "type")
        if kind in ("error", "response.error") or (not kind and event.get("error")):
            raise server_error(event, shown=self.shown)
        response = event.get("response")
        if isinstance(response, Mapping):
            self._response = response
        if not self._started:
            self._started = True
            yield ResponseStarted(optional_text(self._response.get("id")))
        yield Raw(event if whole is None else whole)
        if kind in _TERMINAL:
            yield from self._end(kind)
        elif kind == "response.output_item.added":
            self._begin_item(event)
        elif kind == "response.output_item.done":
            yield from self._end_item(self._place(event), _object(event, "item"))
        elif kind.endswith(".delta"):
            yield from self._delta(kind, event)
        else:
            yield from self._step(kind, event)

    def _place(self, event: Mapping[str, Any]) -> int:
        """Return the position of an event's item; by the item's id if the server doesn't tell it."""
        if (place := optional_whole(event.get("output_index"))) is not None:
            return place
        return self._places.get(optional_text(event.get("item_id")) or "", len(self._items))

    def _begin_item(self, event: Mapping[str, Any]) -> None:
        place, item = self._place(event), _object(event, "item")
        if isinstance(item.get("id"), str):
            self._places[item["id"]] = place
        if self._is_call(item):
            self._call_ids.assign(optional_text(item.get("call_id")) or optional_text(item.get("id")), place + 1)

    def _delta(self, kind: str, event: Mapping[str, Any]) -> Iterator[ModelEvent]:
        place, text = self._place(event), event.get("delta")
        if not isinstance(text, str) or not text:
            return
        if kind == "response.output_text.delta":
            self._pieces.add((place, "text"))
            yield TextDelta(text, place)
        elif kind in _ARGUMENTS:
            self._pieces.add((place, "arguments"))
            yield ArgumentsDelta(self._call_ids.assign(None, place + 1)[0], text)
        elif kind == "response.reasoning_summary_text.delta":
            self._pieces.add((place, "summary"))
            yield ReasoningDelta(text, "summary")
        elif kind == "response.reasoning_text.delta":
            self._pieces.add((place, "reasoning"))
            yield ReasoningDelta(text)

    def _step(self, kind: str, event: Mapping[str, Any]) -> Iterator[ModelEvent]:
        """Give the step of a hosted tool: `response.TOOL.STEP`."""
        _, _, rest = kind.partition("response.")
        tool, dot, step = rest.partition(".")
        if dot and step in _STEPS:
            yield HostedProgress(tool, step, optional_text(event.get("item_id")))

    # -- items

    def _end_item(self, place: int, data: Mapping[str, Any]) -> Iterator[ModelEvent]:
        item = read_item(data, lambda given: self._call_ids.assign(given, place + 1), self._executor_names)
        item = self._note_reasoning(item)
        self._came[place], self._items[place] = data, item
        count_part(len(self._items))
        yield from self._missing_pieces(place, item)
        yield ItemDone(item)

    def _note_reasoning(self, item: Item) -> Item:
        """Return *item* with the id of the answer's reasoning before it, if there is any."""
        if isinstance(item, Reasoning):
            self._reasoning = item.id or self._reasoning
            return item
        return item if self._reasoning is None else note_reasoning(item, self._reasoning)

    def _missing_pieces(self, place: int, item: Item) -> Iterator[ModelEvent]:
        match item:
            case AssistantMessage() if (place, "text") not in self._pieces:
                yield from (
                    TextDelta(part.text, place) for part in item.content if isinstance(part, Text) and part.text
                )
            case ToolCall() if (place, "arguments") not in self._pieces:
                yield ArgumentsDelta(item.call_id, item.arguments)
            case Reasoning():
                if (place, "summary") not in self._pieces:
                    yield from (ReasoningDelta(text, "summary") for text in item.summary if text)
                if (place, "reasoning") not in self._pieces:
                    yield from (ReasoningDelta(text) for text in item.content if text)

    # -- the end

    def _end(self, kind: str) -> Iterator[ModelEvent]:
        self.done = True
        response = self._response
        if kind == "response.failed":
            error = {"error": response.get("error") or {"message": "The response failed."}}
            raise server_error(error, shown=self.shown)
        details = response.get("incomplete_details")
        why = details.get("reason") if isinstance(details, Mapping) else None
        cut = kind == "response.incomplete"
        for place, data in enumerate(read_objects(response.get("output"), "output")):
            if cut and place not in self._items and self._is_call(data) and data.get("status") != "completed":
                continue  # the item that the limit cut: half a call isn't a call
            if self._came.get(place) != data:
                known = place in self._items
                events = list(self._end_item(place, data))
                yield from () if known else events  # its events were given; the list has the last word on its content
        if cut:
            self._check_cut(str(why or "no reason given"))
        calls = any(isinstance(item, ToolCall) for item in self._items.values())
        if cut:
            self._finish_reason = read_finish_reason(str(why or "incomplete"))
        else:
            self._finish_reason = "tool_calls" if calls else "stop"

    def _is_call(self, data: Mapping[str, Any]) -> bool:
        kind = optional_text(data.get("type")) or ""
        return kind in CALLS or (kind in CONTENTS and CONTENTS[kind][0] in self._executor_names)

    def _check_cut(self, why: str) -> None:
        half = [item for item in self._items.values() if isinstance(item, ToolCall) and not is_json(item.arguments)]
        for item in half:
            if item.kind != "custom":
                raise ModelBehaviorError(f"The response was cut ({why}) within a call of {item.name!r}.")
        if not any(not isinstance(item, Reasoning) for item in self._items.values()):
            raise ModelBehaviorError(f"The response was cut ({why}) before anything usable came.")


def _object(event: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = event.get(name)
    if not isinstance(found, Mapping):
        raise ModelBehaviorError(f"An event of the response has no {name}.")
    return found
