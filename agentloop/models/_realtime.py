"""The Realtime codec, text only: a request to a session's configuration and items, the server's events to model events.

Pure. The interface is a conversation over one connection: the client configures the session, adds items, and asks for a
response; the server answers with events, each of which names its response. `_conversation` decides which items to send.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from agentloop.exceptions import ModelBehaviorError, ModelTransportError, UserError
from agentloop.items import (
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
    UserMessage,
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
    ToolDefinition,
)
from agentloop.models._codec import (
    JsonDict,
    UsageNames,
    add_extras,
    broken_answer_error,
    count_part,
    is_json,
    optional_text,
    read_count,
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
    find_forced_name,
    output_text,
    refuse_tools,
    tool_choice,
    with_properties,
)
from agentloop.settings import Prompt

_USAGE = UsageNames("input_tokens", "input_token_details", "output_tokens", "output_token_details")
INTERFACE = "a realtime session"
WIRE_ID = "realtime_call_id"
"""Key in a call's `provider_data` of the server's own id, if the run uses another id for the call."""
EXPIRED = "session_expired"
"""Code of the error after which a new connection is needed and sufficient."""
_STATUSES = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "permission_error": 403,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "server_error": 500,
}
"""The status that an error would have as an answer over HTTP, by its code or type: a retry is decided by it."""

# ---------------------------------------------------------------------------------------------- request


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


def encode_item(item: Item, wire_ids: dict[str, str]) -> JsonDict:
    """Return *item* as an item of the conversation, without an id.

    *wire_ids* maps the run's id of a call to the server's, where the two differ; calls are added to it.

    Raises:
        UserError: if a realtime session has no such item.
    """
    match item:
        case SystemMessage():
            return _message("system", "input_text", item.content)
        case UserMessage():
            return _message("user", "input_text", item.content)
        case AssistantMessage():
            return _message("assistant", "output_text", item.content)
        case HandoffCall() | ToolCall(kind="function" | "shell" | "apply_patch" | "computer"):
            if isinstance(item.provider_data, Mapping) and isinstance(wire_id := item.provider_data.get(WIRE_ID), str):
                wire_ids[item.call_id] = wire_id
            call_id, arguments = wire_ids.get(item.call_id, item.call_id), argument_text(item.arguments)
            return {"type": "function_call", "call_id": call_id, "name": item.name, "arguments": arguments}
        case HandoffOutput() | ToolOutput(kind="function" | "shell" | "apply_patch" | "computer"):
            return encode_output(wire_ids.get(item.call_id, item.call_id), output_text(item.output))
        case _:
            raise UserError(f"items: {type(item).__name__} has no form in {INTERFACE}.")


def encode_output(call_id: str, text: str) -> JsonDict:
    """Return the output of the call that the server knows as *call_id*."""
    return {"type": "function_call_output", "call_id": call_id, "output": text}


def _message(role: str, kind: str, parts: Iterable[Part]) -> JsonDict:
    return {"type": "message", "role": role, "content": [{"type": kind, "text": _text(part)} for part in parts]}


def _text(part: Part) -> str:
    match part:
        case Text(text):
            return text
        case Refusal(refusal):
            return refusal
        case _:
            raise UserError(f"items: {type(part).__name__} has no form in {INTERFACE}, which is text only.")


def has_form(item: Item) -> bool:
    """Tell whether *item* is sent at all: reasoning of other interfaces isn't."""
    return not isinstance(item, Reasoning)


# ---------------------------------------------------------------------------------------------- response


def session_error(event: Mapping[str, Any]) -> ModelTransportError:
    """Return the error for an `error` event, or for a response that failed, with the status it would have over HTTP."""
    error = server_error(event)
    details = event.get("error")
    if isinstance(details, Mapping) and error.code != EXPIRED:
        error.status = _STATUSES.get(str(details.get("code")), _STATUSES.get(str(details.get("type"))))
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
            ModelBehaviorError: if the event reports an error of the server in the middle of an answer.
            ModelTransportError: if it reports one instead of an answer.
        """
        kind = event.get("type")
        if kind == "error":
            raise broken_answer_error(event) if self.shown else session_error(event)
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
            ModelBehaviorError: if the response was cut within a call, or broken off after a part of it was shown.
            ModelTransportError: if it was broken off before.
        """
        details = self._response.get("status_details")
        details = details if isinstance(details, Mapping) else {}
        status = self._response.get("status")
        if status in ("failed", "cancelled"):
            reason = {"message": f"it was {status} ({details.get('reason') or 'no reason given'})"}
            event = {"error": details.get("error") or reason}
            raise broken_answer_error(event) if self.shown else session_error(event)
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
