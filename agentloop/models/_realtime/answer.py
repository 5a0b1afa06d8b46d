"""The answers of a realtime session, text only: the server's events to model events. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from agentloop.exceptions import ModelBehaviorError, ModelTransportError
from agentloop.items import (
    AssistantMessage,
    Item,
    ToolCall,
)
from agentloop.model_events import (
    ArgumentsDelta,
    ItemDone,
    ModelEvent,
    ModelRequest,
    Raw,
    ResponseDone,
    ResponseStarted,
    TextDelta,
)
from agentloop.models._codec import (
    UsageNames,
    count_part,
    is_json,
    optional_text,
    read_count,
    read_finish_reason,
    read_objects,
    read_text,
    read_usage,
    server_error,
)
from agentloop.models._common import (
    CallIds,
)
from agentloop.models._realtime.items import WIRE_ID

_USAGE = UsageNames("input_tokens", "input_token_details", "output_tokens", "output_token_details")
EXPIRED = "session_expired"
"""Code of the error after which a new connection is needed and sufficient."""


def session_error(event: Mapping[str, Any], *, shown: bool = False) -> ModelTransportError:
    """Return the error for an `error` event, or for a response that failed, with the status it would have over HTTP."""
    error = server_error(event, shown=shown)
    if error.code == EXPIRED:
        error.status = None  # nothing is wrong with the request
    return error


class RealtimeDecoder:
    """Turns the events of one response into model events. Use: `feed` each event, then `finish` once.

    Owned by the call that reads the response. Events of another response (*earlier*: the ids of those that the
    connection has had) are shown as `Raw` only. *request* serves to generate call ids.
    """

    def __init__(self, request: ModelRequest, *, model: str, earlier: Collection[str | None] = ()) -> None:
        self.done = False
        """True once the response's last event has come."""
        self.shown = False
        """True once a part of the answer was returned to the caller."""
        self.response_id: str | None = None
        self.output: list[Mapping[str, Any]] = []
        """The server's items of the answer, once it is done."""
        self.items: list[tuple[Item, str | None]] = []
        """The items of the answer with their ids on the server, once it is finished."""
        self._ids = CallIds(request)
        self._model = model
        self._earlier = earlier
        self._calls: dict[str | None, int] = {}
        """The numbers of the calls so far, by the id of the item."""
        self._items: dict[int, Mapping[str, Any]] = {}
        self._response: Mapping[str, Any] = {}

    def feed(self, event: Mapping[str, Any]) -> Iterator[ModelEvent]:
        """Yield the model events of one event.

        Raises:
            ModelTransportError: if the event reports an error of the server, also in the middle of an answer.
        """
        kind = event.get("type")
        if kind == "error":
            raise session_error(event, shown=self.shown)
        if self._is_ours(event):
            match kind:
                case "response.created":
                    yield ResponseStarted(self.response_id)
                case "response.output_text.delta":
                    self.shown = True
                    yield TextDelta(read_text(event.get("delta"), "text"), read_count(event, "output_index"))
                case "response.function_call_arguments.delta":
                    self.shown = True
                    known_as, _ = self._assign_id(event, event.get("item_id"))
                    yield ArgumentsDelta(known_as, read_text(event.get("delta"), "arguments"))
                case "response.output_item.done" if isinstance(item := event.get("item"), Mapping):
                    self._items[read_count(event, "output_index")] = item
                    count_part(len(self._items))
                case "response.done":
                    self._end(event)
        yield Raw(event)

    def _is_ours(self, event: Mapping[str, Any]) -> bool:
        response = event.get("response")
        found = response.get("id") if isinstance(response, Mapping) else event.get("response_id")
        if not isinstance(found, str) or found in self._earlier:
            return False
        if self.response_id is None:
            self.response_id = found
        return found == self.response_id

    def _end(self, event: Mapping[str, Any]) -> None:
        self.done = True
        self._response = event["response"]
        # Some servers leave the last event's output empty after having sent each item on its own.
        collected = [item for _, item in sorted(self._items.items())]
        self.output = [*read_objects(self._response.get("output"), "output")] or collected
        count_part(len(self.output))

    def finish(self) -> Iterator[ModelEvent]:
        """Yield the last events, with `ResponseDone` at the end. Call it once, after the response's last event.

        Raises:
            ModelBehaviorError: if the response was cut within a call.
            ModelTransportError: if it was broken off.
        """
        details = self._response.get("status_details")
        details = details if isinstance(details, Mapping) else {}
        status = self._response.get("status")
        if status in ("failed", "cancelled"):
            reason = {"message": f"it was {status} ({details.get('reason') or 'no reason given'})"}
            event = {"error": details.get("error") or reason}
            raise session_error(event, shown=self.shown)
        cut: str | None = None
        if status == "incomplete":
            cut = read_finish_reason(str(details.get("reason") or "incomplete"))
        for each in self.output:
            if (item := self._make_item(each, cut)) is not None:
                self.items.append((item, optional_text(each.get("id"))))
        items = [item for item, _ in self.items]
        called = any(isinstance(item, ToolCall) for item in items)
        usage = self._response.get("usage")
        yield from map(ItemDone, items)
        yield ResponseDone(
            items,
            read_usage(usage, self._model, _USAGE) if isinstance(usage, Mapping) else None,
            self.response_id,
            finish_reason=cut or ("tool_calls" if called else "stop"),
            model=self._model,
        )

    def _make_item(self, item: Mapping[str, Any], cut: str | None) -> Item | None:
        match item.get("type"):
            case "message":
                parts = read_objects(item.get("content"), "content")
                text = "".join(read_text(part.get("text") or part.get("transcript"), "text") for part in parts)
                return AssistantMessage(text) if text else None
            case "function_call":
                return self._make_call(item, cut)
            case _:
                return None

    def _make_call(self, item: Mapping[str, Any], cut: str | None) -> ToolCall:
        name, arguments = read_text(item.get("name"), "name"), read_text(item.get("arguments"), "arguments")
        if not name:
            raise ModelBehaviorError("The response calls a function without naming it.")
        if cut is not None and not is_json(arguments):
            raise ModelBehaviorError(f"The response was cut ({cut}) within a call of {name!r}.")
        known_as, wire_id = self._assign_id(item, item.get("id"))
        wire = None if wire_id == known_as else {WIRE_ID: wire_id}
        return ToolCall(known_as, name, arguments or "{}", provider_data=wire)

    def _assign_id(self, call: Mapping[str, Any], item_id: object) -> tuple[str, str]:
        """Return the run's id and the server's id for the call that is the item of that id."""
        given = read_text(call.get("call_id"), "call_id") or None
        return self._ids.assign(given, self._calls.setdefault(optional_text(item_id) or given, len(self._calls) + 1))
