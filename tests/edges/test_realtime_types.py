"""The vendor's own types of realtime events as an independent judge: of what is sent, and of what has to be read.

Needs the extra `vendors`; without it these tests are skipped.
"""

import types
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pydantic
import pytest
from edges.realtime_requests import adopt, requests
from hypothesis import given
from hypothesis import strategies as st

from agentloop.exceptions import ModelTransportError
from agentloop.items import UserMessage
from agentloop.model_events import ModelRequest, Raw
from agentloop.models._realtime.answer import RealtimeDecoder
from agentloop.models._realtime.conversation import RealtimeConversation
from agentloop.models._realtime.request import encode_session

realtime = pytest.importorskip("openai.types.realtime")

REQUEST = ModelRequest(system=None, items=(UserMessage("Hi"),))


def members(union: Any) -> dict[str, type[pydantic.BaseModel]]:
    """Return the classes of a union of events by their type."""
    found = get_args(get_args(union)[0])
    return {get_args(each.model_fields["type"].annotation)[0]: each for each in found}


SERVER_EVENTS = members(realtime.RealtimeServerEvent)
CLIENT_EVENTS = members(realtime.RealtimeClientEvent)
DECODED = {
    "error",
    "response.created",
    "response.done",
    "response.function_call_arguments.delta",
    "response.output_text.delta",
}
"""The types that have an event of their own, or end the answer; all others are shown as they are."""


def make_value(kind: Any) -> Any:
    """Return the plainest value of a type, with every field of an object."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return make_value(args[0])
    if origin is Literal:
        return args[0]
    if origin in (Union, types.UnionType):
        return make_value(args[0])
    if origin is list:
        return [make_value(args[0])]
    if origin is dict:
        return {"key": make_value(args[1])}
    if isinstance(kind, type) and issubclass(kind, pydantic.BaseModel):
        return {name: make_value(field.annotation) for name, field in kind.model_fields.items()}
    return {str: "x", int: 1, float: 1.0, bool: True, object: {}}.get(kind, "x")


def unknown_keys(value: object, place: str = "") -> Iterator[str]:
    """Yield the places of fields that the vendor's classes don't have."""
    if isinstance(value, pydantic.BaseModel):
        for name in value.model_extra or {}:
            yield f"{place}.{name}"
        for name in value.model_fields_set & type(value).model_fields.keys():
            yield from unknown_keys(getattr(value, name), f"{place}.{name}")
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from unknown_keys(each, f"{place}[{index}]")


def check_sent(event: Mapping[str, Any]) -> None:
    """Require that the vendor's class for *event* accepts it and knows each of its fields."""
    parsed = CLIENT_EVENTS[event["type"]].model_validate(event, strict=True)
    assert list(unknown_keys(parsed)) == []


@pytest.mark.scenario("WR-03")
@pytest.mark.parametrize("kind", SERVER_EVENTS)
def test_every_event_of_the_server_is_taken(kind: str) -> None:
    """Every member of the vendor's union is decoded, or shown as it is; none is an error but the errors."""
    event = make_value(SERVER_EVENTS[kind])
    SERVER_EVENTS[kind].model_validate(event)
    if kind == "error":
        with pytest.raises(ModelTransportError):
            list(RealtimeDecoder(REQUEST, model="m").feed(event))
        return
    decoder = RealtimeDecoder(REQUEST, model="m")
    found = list(decoder.feed(event))
    assert Raw(event) in found
    assert (len(found) > 1 or decoder.done) == (kind in DECODED)


@given(st.lists(requests, min_size=1, max_size=3), st.booleans())
def test_what_is_sent_is_valid_by_the_vendors_types(asked: list[ModelRequest], left: bool) -> None:
    """The events for any requests, one after the other, are accepted by the vendor's classes without unknown fields."""
    conversation = RealtimeConversation()
    conversation.begin_session("s")
    for number, request in enumerate(asked):
        adopt(conversation, request)
        for event in conversation.take_events(request, encode_session(request)):
            check_sent({**event, "event_id": "e"})
        if left:
            half = {"id": f"half_{number}", "type": "function_call", "call_id": f"half_{number}"}
            conversation.leave("s", [half])
            conversation.last_response_id = "r"
            memory = request.replace(previous_response_id="r")
            adopt(conversation, memory)
            for event in conversation.take_events(memory, encode_session(memory)):
                check_sent(event)


def test_cancellations_are_valid_by_the_vendors_types() -> None:
    """The response is named."""
    check_sent({"type": "response.cancel", "event_id": "e", "response_id": "r"})


def test_an_unknown_field_would_be_found() -> None:
    """The oracle isn't blind: a field of ours alone is named."""
    session = {"type": "session.update", "session": {**encode_session(REQUEST), "no_such": 1}}
    with pytest.raises(AssertionError, match="no_such"):
        check_sent(session)
