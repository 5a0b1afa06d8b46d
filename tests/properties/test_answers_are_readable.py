"""Whatever a server answers, and whatever a model of the application's own gives: the log of the run can be read.

A decoder gives an answer that can be stored and read again, or raises a typed error. An answer of another model, with
values of wrong types, ends the run with an error that names the place.
"""

import copy
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from core.record_strategies import BY_KIND
from hypothesis import event, given, settings
from hypothesis import strategies as st
from kit.agents import Run
from msgspec.structs import force_setattr

from agentloop import Agent, RunState
from agentloop import records as r
from agentloop._storage.incoming import find_fault_of_answer
from agentloop._storage.record_codec import find_fault, record_from_line, record_to_line
from agentloop.abc import Model
from agentloop.exceptions import AgentLoopError, ModelBehaviorError, ModelTransportError, UserTypeError
from agentloop.items import AssistantMessage, FileCitation, Item, Text, ToolCall, UrlCitation, UserMessage
from agentloop.journal import MemoryJournal
from agentloop.model_events import ItemDone, ModelRequest, ModelResponse, ResponseDone
from agentloop.models._chat.answer import ChatDecoder
from agentloop.models._messages.answer import MessagesDecoder
from agentloop.models._responses.answer import ResponsesDecoder
from agentloop.sessions import MemorySession
from agentloop.usage import RequestUsage

REQUEST = ModelRequest(system=None, items=())
CITED = {"url": "http://a.test", "title": "A", "start_index": 0, "end_index": 2}
CHAT = {
    "id": "c",
    "model": "m",
    "service_tier": "default",
    "usage": {"prompt_tokens": 3, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}},
    "choices": [
        {
            "index": 0,
            "finish_reason": "stop",
            "logprobs": {"content": [{"token": "h", "logprob": -0.5}]},
            "message": {
                "role": "assistant",
                "content": "hello",
                "reasoning_content": "hm",
                "annotations": [{"type": "url_citation", "url_citation": CITED}],
                "tool_calls": [
                    {"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"n": 1}'}}
                ],
            },
        }
    ],
}
CITATIONS = [
    {"type": "url_citation", **CITED},
    {"type": "file_citation", "file_id": "f", "filename": "a", "index": 1},
    {"type": "container_file_citation", "container_id": "b", "file_id": "f", "start_index": 0, "end_index": 1},
]
RESPONSES = {
    "object": "response",
    "id": "r",
    "status": "completed",
    "model": "m",
    "service_tier": "default",
    "usage": {"input_tokens": 3, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 1}},
    "output": [
        {"type": "reasoning", "id": "s", "summary": [{"type": "summary_text", "text": "hm"}], "encrypted_content": "x"},
        {
            "type": "message",
            "id": "m",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "hello", "annotations": CITATIONS}],
        },
        {"type": "function_call", "id": "f", "call_id": "c1", "name": "g", "arguments": "{}"},
        {"type": "custom_tool_call", "id": "k", "call_id": "c2", "name": "h", "input": "text"},
        {"type": "web_search_call", "id": "w", "status": "completed", "action": {"type": "search", "query": "q"}},
        {"type": "mcp_approval_request", "id": "q", "name": "roll", "server_label": "s", "arguments": "{}"},
        {"type": "compaction", "id": "z", "encrypted_content": "x"},
    ],
}
MESSAGES = {
    "type": "message",
    "id": "m",
    "role": "assistant",
    "model": "m",
    "stop_reason": "tool_use",
    "usage": {"input_tokens": 3, "output_tokens": 2, "cache_read_input_tokens": 1, "service_tier": "standard"},
    "content": [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {
            "type": "text",
            "text": "hello",
            "citations": [
                {"type": "web_search_result_location", "url": "http://a.test", "title": "A", "cited_text": "x"},
                {"type": "char_location", "file_id": "f", "document_title": "D", "start_char_index": 0},
            ],
        },
        {"type": "server_tool_use", "id": "t", "name": "web_search", "input": {"query": "q"}},
        {"type": "tool_use", "id": "c1", "name": "f", "input": {"n": 1}},
    ],
}
DECODERS: dict[str, tuple[Callable[[], Any], Mapping[str, Any]]] = {
    "chat": (lambda: ChatDecoder(REQUEST), CHAT),
    "responses": (lambda: ResponsesDecoder(REQUEST), RESPONSES),
    "messages": (lambda: MessagesDecoder(REQUEST), MESSAGES),
}
ODD: list[Any] = [True, False, None, 0, -1, 1.5, 10**30, 1e300, "", "text", "\ud800", [], [1], {}, {"$int": "0x1"}]


def list_places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Give the paths of all values in a JSON *value*."""
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, member in members:
        yield (*place, name)
        yield from list_places(member, (*place, name))


def put(value: Any, place: tuple[Any, ...], odd: Any) -> Any:
    """Return a copy of *value* with *odd* at *place*; *value* itself if an earlier change has removed that."""
    changed = copy.deepcopy(value)
    inner = changed
    try:
        for step in place[:-1]:
            inner = inner[step]
        inner[place[-1]] = odd
    except (TypeError, KeyError, IndexError):
        return value
    return changed


def to_response(events: list[Any]) -> ModelResponse:
    """Return the response that a run would make of *events*."""
    items = [one.item for one in events if isinstance(one, ItemDone)]
    [done] = [one for one in events if isinstance(one, ResponseDone)]
    fields = (done.response_id, done.request_id, done.finish_reason, done.model, done.service_tier, done.provider_data)
    return ModelResponse(done.items or items, done.usage, *fields)


@pytest.mark.scenario("SM-01")
@pytest.mark.parametrize("name", DECODERS)
@given(data=st.data())
@settings(max_examples=150)
def test_what_a_decoder_gives_can_be_read_again(name: str, data: st.DataObject) -> None:
    """An answer with values of any type in any of its places is refused, or comes back equal from the log."""
    make, answer = DECODERS[name]
    for place in data.draw(st.lists(st.sampled_from(list(list_places(answer))), max_size=3)):
        answer = put(answer, place, data.draw(st.sampled_from(ODD)))
    decoder = make()
    try:
        events = decoder.feed_answer(json.loads(json.dumps(answer)))
        if name == "chat":
            events += decoder.feed("[DONE]")
        events += decoder.finish("req")
    except (ModelBehaviorError, ModelTransportError):
        event("refused")
        return
    event("taken")
    response = to_response(events)
    assert find_fault_of_answer(response) is None
    record = r.ModelResponded((), 1, 0.0, response)
    assert record_from_line(record_to_line(record)) == record


# ---------------------------------------------------------------------------------------------- models of one's own


class Given(Model):
    """A model that answers with *items* and *usage*, whatever they are."""

    def __init__(self, items: tuple[Item, ...], usage: RequestUsage | None = None) -> None:
        self.items = items
        self.usage = usage

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> Any:  # type: ignore[override]
        """Give the answer."""

        async def events() -> AsyncIterator[Any]:
            yield ResponseDone(self.items, self.usage)

        yield events()


def spoil(value: Any, **fields: Any) -> Any:
    """Return a copy of *value* with fields of wrong types, which no constructor takes: as an unpickled one may be."""
    spoilt = copy.copy(value)
    for name, field in fields.items():
        force_setattr(spoilt, name, field)
    return spoilt


FIVE: Any = spoil(Text("hi"), text=5)
FLAG: Any = spoil(UrlCitation("u"), start=True)


def cited(citation: Any) -> tuple[Item, ...]:
    """Return a message with a citation."""
    return (AssistantMessage((Text("hi", (citation,)),)),)


WRONG: list[tuple[tuple[Any, ...], RequestUsage | None, str]] = [
    (
        cited(spoil(UrlCitation("u"), start=True)),
        None,
        r"\$\.response\.items\[0\]\.content\[0\]\.annotations\[0\]\.start",
    ),
    (cited(spoil(FileCitation("f"), index=1.0)), None, r"annotations\[0\]\.index"),
    ((AssistantMessage((FIVE,)),), None, r"content\[0\]\.text"),
    ((spoil(ToolCall("c", "f"), arguments={}),), None, r"items\[0\]\.arguments"),
    ((spoil(AssistantMessage("hi"), id=7),), None, r"items\[0\]\.id"),
    ((AssistantMessage("hi"),), RequestUsage(input_tokens=True), r"usage\.input_tokens"),
    ((AssistantMessage("hi"),), RequestUsage(output_tokens=1.0), r"usage\.output_tokens"),  # type: ignore[arg-type]
]


@pytest.mark.scenario("SM-01")
@pytest.mark.parametrize(("items", "usage", "place"), WRONG)
async def test_an_answer_that_could_not_be_read_ends_the_run(
    run_mode: Run, items: tuple[Any, ...], usage: RequestUsage | None, place: str
) -> None:
    """The error names the place and not the value; what the journal has before is read."""
    journal = MemoryJournal()
    agent: Agent[Any, Any] = Agent("guide", model=Given(items, usage))
    with pytest.raises(ModelBehaviorError, match=rf"The response can't be stored: .* @ .*{place}"):
        await run_mode(agent, "go", journal=journal)
    assert (await RunState.from_journal(agent, journal)).status == "failed"


@pytest.mark.scenario("SM-01")
@pytest.mark.parametrize(
    ("item", "place"),
    [
        (UserMessage((FIVE,)), r"input\[0\]\.content\[0\]\.text"),
        (spoil(UserMessage("go"), provider_data=[1]), r"input\[0\]\.provider_data"),
        (spoil(UserMessage("go"), secret="yes"), r"input\[0\]\.secret"),
    ],
)
async def test_input_that_could_not_be_read_is_refused(run_mode: Run, item: Item, place: str) -> None:
    """Before anything is written: of a new run, and of a session, whose items are shown first."""
    journal = MemoryJournal()
    agent: Agent[Any, Any] = Agent("guide", model=Given((AssistantMessage("hi"),)))
    with pytest.raises(UserTypeError, match=rf"input can't be stored: .* @ {place}"):
        await run_mode(agent, [item], journal=journal)
    assert await journal.read() == []

    class Shelf(MemorySession):
        async def get_items(self, limit: int | None = None) -> list[Item]:
            """Give the item."""
            return [item]

    with pytest.raises(UserTypeError, match="session can't be stored"):
        await run_mode(agent, "go", journal=journal, session=Shelf())
    assert (await RunState.from_journal(agent, journal)).status == "failed"


@pytest.mark.slow
@given(data=st.data())
@settings(max_examples=200)
def test_a_record_with_a_value_of_a_wrong_type_is_found(data: st.DataObject) -> None:
    """Whatever `find_fault` lets pass is read again, whichever field of whichever record has a wrong value."""
    kind = data.draw(st.sampled_from(list(BY_KIND)))
    record = data.draw(BY_KIND[kind])
    names = [name for name in type(record).__struct_fields__ if name not in ("path", "result")]
    try:
        record = record.replace(**{data.draw(st.sampled_from(names)): data.draw(st.sampled_from([*ODD, b"x", ("x",)]))})
    except (AgentLoopError, UserTypeError, TypeError):
        return
    if find_fault(record) is not None:
        event("refused")
        return
    event("passed")
    record_from_line(record_to_line(record))
