"""Histories in the forms of providers, in and out."""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import count
from typing import Any

import attrs
import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.agents import Run, script_agent
from kit.results import read_requests

from agentloop import Agent
from agentloop.exceptions import UserError, UserTypeError, UserValueError
from agentloop.interop import (
    from_anthropic,
    from_chat,
    from_responses,
    to_anthropic,
    to_chat,
    to_responses,
)
from agentloop.items import (
    ApprovalRequest,
    AssistantMessage,
    Audio,
    File,
    HostedToolCall,
    Image,
    Item,
    Reasoning,
    Refusal,
    SystemMessage,
    Text,
    ToolCall,
    ToolOutput,
    UserMessage,
)
from agentloop.models import AnthropicModel, OpenAIChatModel, OpenAIResponsesModel
from agentloop.testing import say


@attrs.frozen
class Form:
    """One provider's form of a history, in which both functions take and give the same."""

    read: Callable[[Any], list[Item]]
    write: Callable[[Iterable[Item]], Any]


FORMS = {
    "chat": Form(from_chat, to_chat),
    "responses": Form(from_responses, to_responses),
    "anthropic": Form(lambda fields: from_anthropic(**fields), to_anthropic),
}
PNG = "iVBORw0KGgo="

CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "What is it?"},
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}", "detail": "low"}},
            {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "mp3"}},
            {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
            {"type": "file", "file": {"file_data": "data:application/pdf;base64,AAAA", "filename": "a.pdf"}},
            {"type": "file", "file": {"file_id": "f1"}},
        ],
    },
    {
        "role": "assistant",
        "content": "I look.",
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": "it"}'}},
            {"id": "c2", "type": "custom", "custom": {"name": "note", "input": "free text"}},
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "a cat"},
    {"role": "tool", "tool_call_id": "c2", "content": "noted"},
    {"role": "assistant", "content": "A cat.", "refusal": "No more than that."},
]

RESPONSES: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {
        "role": "user",
        "content": [
            {"type": "input_text", "text": "What is it?"},
            {"type": "input_image", "detail": "auto", "image_url": f"data:image/png;base64,{PNG}"},
            {"type": "input_image", "detail": "low", "file_id": "f1"},
            {"type": "input_file", "file_data": "data:application/pdf;base64,AAAA", "filename": "a.pdf"},
            {"type": "input_file", "file_url": "https://x.test/a.pdf"},
        ],
    },
    {
        "type": "reasoning",
        "id": "rs1",
        "summary": [{"type": "summary_text", "text": "Look."}],
        "encrypted_content": "e",
    },
    {"type": "function_call", "id": "fc1", "status": "completed", "call_id": "c1", "name": "look", "arguments": "{}"},
    {"type": "custom_tool_call", "call_id": "c2", "name": "note", "input": "free text"},
    {"type": "mcp_approval_request", "id": "a1", "name": "wipe", "server_label": "disk", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "a cat"}]},
    {"type": "custom_tool_call_output", "call_id": "c2", "output": "noted"},
    {"type": "mcp_approval_response", "approval_request_id": "a1", "approve": False, "reason": "No."},
    {"type": "web_search_call", "id": "ws1", "status": "completed", "action": {"type": "search", "query": "cats"}},
    {"type": "of_tomorrow", "id": "x1", "more": [1]},
    {
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "id": "m1",
        "content": [
            {
                "type": "output_text",
                "text": "A cat.",
                "annotations": [
                    {"type": "url_citation", "url": "https://x.test", "title": "X", "start_index": 0, "end_index": 1}
                ],
            },
            {"type": "refusal", "refusal": "No more than that."},
        ],
    },
    {"role": "assistant", "content": "Really."},
]

ANTHROPIC: dict[str, Any] = {
    "system": "Be brief.",
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "What is it?"},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}},
                {"type": "image", "source": {"type": "url", "url": "https://x.test/a.png"}},
                {"type": "image", "source": {"type": "file", "file_id": "f1"}},
                {
                    "type": "document",
                    "source": {"type": "base64", "media_type": "application/pdf", "data": "AAAA"},
                    "title": "a.pdf",
                },
                {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "words"}},
                {"type": "document", "source": {"type": "url", "url": "https://x.test/a.pdf"}},
                {"type": "document", "source": {"type": "file", "file_id": "f2"}},
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Look.", "signature": "s"},
                {"type": "redacted_thinking", "data": "r"},
                {"type": "text", "text": "I look."},
                {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "cats"}},
                {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []},
                {"type": "tool_use", "id": "t1", "name": "look", "input": {"at": "it"}},
                {"type": "tool_use", "id": "t2", "name": "look", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "t1",
                    "content": [
                        {"type": "text", "text": "see"},
                        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}},
                    ],
                },
                {"type": "tool_result", "tool_use_id": "t2", "content": "blind", "is_error": True},
                {"type": "text", "text": "So?"},
            ],
        },
        {"role": "assistant", "content": [{"type": "text", "text": "A cat."}]},
    ],
}

STORED: dict[str, Any] = {"chat": CHAT, "responses": RESPONSES, "anthropic": ANTHROPIC}


@pytest.mark.parametrize("name", STORED)
def test_a_stored_history_comes_back_as_it_was(name: str) -> None:
    """Messages, media, calls, outputs, thoughts and what only the provider knows: nothing is lost or changed."""
    form = FORMS[name]
    items = form.read(STORED[name])
    assert form.write(items) == STORED[name]
    assert form.read(form.write(items)) == items


def test_chat_messages_become_items() -> None:
    """Each message and call is an item; the outputs name the calls that they answer."""
    assert from_chat(CHAT) == [
        SystemMessage("Be brief."),
        UserMessage(
            [
                Text("What is it?"),
                Image(f"data:image/png;base64,{PNG}", "low"),
                Audio("AAAA", media_type="audio/mpeg"),
                Audio("AAAA", media_type="audio/wav"),
                File("data:application/pdf;base64,AAAA", filename="a.pdf"),
                File(file_id="f1"),
            ]
        ),
        AssistantMessage("I look."),
        ToolCall("c1", "look", '{"at": "it"}'),
        ToolCall("c2", "note", "free text", kind="custom"),
        ToolOutput("c1", "a cat"),
        ToolOutput("c2", "noted", kind="custom"),
        AssistantMessage([Text("A cat."), Refusal("No more than that.")]),
    ]


def test_outputs_of_anthropic_come_before_the_rest_of_their_message() -> None:
    """The results of a message are outputs, with their errors marked, and its other blocks are one message."""
    items = from_anthropic(ANTHROPIC["messages"])
    kinds = [type(item).__name__ for item in items]
    assert kinds[-4:] == ["ToolOutput", "ToolOutput", "UserMessage", "AssistantMessage"]
    failed = items[-3]
    assert isinstance(failed, ToolOutput)
    assert (failed.output, failed.is_error) == ("blind", True)


def test_reasoning_of_responses_belongs_to_what_came_of_it() -> None:
    """An item of an answer goes without its id once its reasoning is left out, as after a run of our own."""
    items = [item for item in from_responses(RESPONSES) if not isinstance(item, Reasoning)]
    calls = [item for item in to_responses(items) if item.get("type") == "function_call"]
    assert [("id" in call, call["call_id"]) for call in calls] == [(False, "c1")]


@pytest.mark.parametrize("name", STORED)
async def test_a_stored_history_is_the_input_of_a_run(run_mode: Run, name: str) -> None:
    """The model sees the items in their order, and the run goes on from there."""
    items = FORMS[name].read(STORED[name])
    agent = script_agent("a", say("Miaow."))
    result = await run_mode(agent, [*items, UserMessage("What does it say?")])
    assert result.final_output == "Miaow."
    assert list(read_requests(agent)[0].items) == [*items, UserMessage("What does it say?")]


_MODELS: dict[str, tuple[type[Any], str]] = {
    "chat": (OpenAIChatModel, "messages"),
    "responses": (OpenAIResponsesModel, "input"),
    "anthropic": (AnthropicModel, "messages"),
}


@pytest.mark.parametrize("name", STORED)
async def test_the_provider_gets_the_stored_messages(run_mode: Run, name: str) -> None:
    """A request of a run holds what was stored, field by field."""
    bodies: list[Any] = []

    def answer(request: httpx.Request) -> httpx.Response:
        bodies.append(json.loads(request.content))
        return httpx.Response(400, json={"error": {"message": "seen"}})

    model, field = _MODELS[name]
    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
        agent = Agent("a", model=model("m", api_key="k", http_client=client))
        items = FORMS[name].read(STORED[name])
        with pytest.raises(Exception, match="seen"):
            await run_mode(agent, items)
    stored = STORED[name] if name != "anthropic" else STORED[name][field]
    assert bodies[0][field] == stored


# ------------------------------------------------------------------------------------------------ other forms


def test_objects_of_clients_are_read_as_their_dicts() -> None:
    """Programs append what a client returned to their dicts: a message, or a list of blocks. Defaults aren't read."""

    @attrs.frozen
    class Model:
        data: dict[str, Any]

        def model_dump(self, *, mode: str, exclude_unset: bool) -> dict[str, Any]:
            assert (mode, exclude_unset) == ("json", True)
            return self.data

    assert from_chat([Model({"role": "assistant", "content": "hi", "refusal": None, "tool_calls": None})]) == [
        AssistantMessage("hi")
    ]
    blocks = (Model({"type": "text", "text": "hi", "citations": None}),)
    assert from_anthropic([{"role": "assistant", "content": blocks}]) == [AssistantMessage("hi")]


def test_lists_of_texts_are_texts() -> None:
    """Contents come as a text or as parts, wherever the interfaces take both."""
    part = {"type": "text", "text": "a"}
    said = {"role": "assistant", "content": [part, {"type": "refusal", "refusal": "no"}]}
    assert from_chat([{"role": "developer", "content": [part, part]}, said]) == [
        SystemMessage([Text("a"), Text("a")]),
        AssistantMessage([Text("a"), Refusal("no")]),
    ]
    assert from_anthropic([{"role": "user", "content": "a"}], [part, part]) == [
        SystemMessage("a"),
        SystemMessage("a"),
        UserMessage("a"),
    ]
    assert from_anthropic([{"role": "assistant", "content": "a"}]) == [AssistantMessage("a")]
    assert from_responses([{"type": "message", "role": "developer", "content": "a"}]) == [SystemMessage("a")]


def test_a_result_without_content_is_an_empty_output() -> None:
    """Anthropic's results may be empty."""
    use = {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "do", "input": {}}]}
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t"}]}
    fields = {"messages": [use, result]}
    assert from_anthropic(**fields)[1] == ToolOutput("t", "")
    assert to_anthropic(from_anthropic(**fields)) == fields


def test_fields_of_vendors_are_written_where_they_are_asked_for() -> None:
    """Thoughts of Chat Completions' servers, and a vendor's part of a call, are refused by other servers."""
    call = {
        "id": "c",
        "type": "function",
        "function": {"name": "do", "arguments": "{}"},
        "extra_content": {"google": {"thought_signature": "s"}},
    }
    said = {"role": "assistant", "content": None, "reasoning_content": "Do it.", "tool_calls": [call]}
    stored = [said, {"role": "tool", "tool_call_id": "c", "content": "done"}]
    items = from_chat(stored)
    assert items[0] == Reasoning(content=("Do it.",))
    assert to_chat(items, vendor_fields=True) == stored
    plain = to_chat(items)[0]
    assert "reasoning_content" not in plain
    assert "extra_content" not in plain["tool_calls"][0]


@pytest.mark.parametrize("name", STORED)
def test_ids_that_a_server_used_again_are_told_apart(name: str) -> None:
    """A run has one id for each call; on the way back, each call has the id that it had."""
    call: Any
    if name == "chat":
        call = {"id": "c", "type": "function", "function": {"name": "do", "arguments": "{}"}}
        turn: list[Any] = [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "done"},
        ]
        stored: Any = turn * 3
    elif name == "responses":
        call = {"type": "function_call", "call_id": "c", "name": "do", "arguments": "{}"}
        stored = [call, {"type": "function_call_output", "call_id": "c", "output": "done"}] * 3
    else:
        use = {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "do", "input": {}}]}
        result = {"type": "tool_result", "tool_use_id": "c", "content": "done"}
        stored = {"messages": [use, {"role": "user", "content": [result]}] * 3}
    items = FORMS[name].read(stored)
    ids = [item.call_id for item in items if isinstance(item, ToolCall)]
    assert len(set(ids)) == 3
    assert ids == [item.call_id for item in items if isinstance(item, ToolOutput)]
    assert FORMS[name].write(items) == stored


# ---------------------------------------------------------------------------------------------- what doesn't fit

_CALL = {"id": "c", "function": {"name": "do", "arguments": "{}"}}
_USE = {"type": "tool_use", "id": "c", "name": "do", "input": {}}
_MISFITS: list[tuple[Callable[[Any], Any], Any, type[UserError], str]] = [
    (from_chat, "hi", UserTypeError, "messages: expected a sequence of messages, got str"),
    (from_chat, {"role": "user"}, UserTypeError, "messages: expected a sequence of messages, got dict"),
    (from_chat, [3], UserTypeError, "messages[0]: expected a message as a dict, got int"),
    (from_chat, [{"content": "a"}], UserTypeError, "missing required field role @ messages[0]"),
    (from_chat, [{"role": "critic", "content": "a"}], UserTypeError, "@ messages[0].role"),
    (from_chat, [{"role": "user", "content": 3}], UserTypeError, "got int @ messages[0].content"),
    (from_chat, [{"role": "user", "content": [{"type": "smell"}]}], UserTypeError, "@ messages[0].content[0].type"),
    (from_chat, [{"role": "user", "content": [{"type": "file", "file": {}}]}], UserTypeError, "messages[0].content[0]"),
    (from_chat, [{"role": "assistant", "audio": {"id": "a"}}], UserTypeError, "@ messages[0].audio"),
    (from_chat, [{"role": "assistant", "function_call": {}}], UserTypeError, "@ messages[0].function_call"),
    (
        from_chat,
        [{"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": 3}}]}],
        UserTypeError,
        "@ messages[0].tool_calls[0].function.name",
    ),
    (
        from_chat,
        [{"role": "assistant", "tool_calls": [_CALL, _CALL]}],
        UserValueError,
        "messages[0].tool_calls[1].id: another call of the message has the id 'c', too",
    ),
    (
        from_chat,
        [{"role": "assistant", "content": "a", "annotations": 3}],
        UserValueError,
        "messages[0]: The response's annotations",
    ),
    (
        from_chat,
        [{"role": "tool", "tool_call_id": "c", "content": "a"}],
        UserValueError,
        "messages[0].tool_call_id: no call before it has the id 'c'",
    ),
    (from_responses, [{"type": 3}], UserTypeError, "expected str, got int @ items[0].type"),
    (from_responses, [{"role": "critic", "content": "a"}], UserTypeError, "@ items[0].role"),
    (from_responses, [{"role": "assistant", "content": 3}], UserTypeError, "@ items[0].content"),
    (from_responses, [{"role": "user", "content": [{"type": "input_image"}]}], UserTypeError, "items[0].content[0]"),
    (from_responses, [{"type": "function_call", "call_id": "c"}], UserTypeError, "required field name @ items[0]"),
    (from_responses, [{"type": "reasoning", "summary": 3}], UserTypeError, "@ items[0].summary"),
    (
        from_responses,
        [{"type": "function_call_output", "call_id": "c", "output": "a"}],
        UserValueError,
        "items[0].call_id",
    ),
    (
        from_responses,
        [
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "a", "annotations": [3]}],
            }
        ],
        UserTypeError,
        "@ items[0].content[0].annotations[0]",
    ),
    (
        from_responses,
        [{"type": "function_call", "call_id": "c", "name": "do", "arguments": "{}", "namespace": 3}],
        UserValueError,
        "items[0]: The response's namespace",
    ),
    (from_anthropic, [{"role": "system", "content": "a"}], UserTypeError, "@ messages[0].role"),
    (from_anthropic, [{"role": "assistant", "content": [{}]}], UserTypeError, "field type @ messages[0].content[0]"),
    (
        from_anthropic,
        [{"role": "assistant", "content": [{"type": ["text"]}]}],
        UserTypeError,
        "@ messages[0].content[0].type",
    ),
    (
        from_anthropic,
        [{"role": "user", "content": [{"type": "\ud800"}]}],
        UserTypeError,
        "without lone surrogates @ messages[0]",
    ),
    (
        from_responses,
        [{"role": "user", "content": [{"type": "\ud800"}]}],
        UserTypeError,
        "without lone surrogates @ items[0]",
    ),
    (from_chat, [{"role": "\ud800"}], UserTypeError, "without lone surrogates @ messages[0]"),
    (from_anthropic, [{"role": "assistant", "content": [_USE | {"input": 3}]}], UserTypeError, "content[0].input"),
    (from_anthropic, [{"role": "assistant", "content": [_USE, _USE]}], UserValueError, "messages[0].content[1].id"),
    (
        from_anthropic,
        [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c"}]}],
        UserValueError,
        "messages[0].content[0].tool_use_id: no call before it has the id 'c'",
    ),
    (lambda system: from_anthropic([], system), 3, UserTypeError, "@ system"),
    (to_chat, [HostedToolCall("web_search_call")], UserError, "items[0]: HostedToolCall has no form"),
    (to_responses, [UserMessage([Audio("AAAA")])], UserError, "items[0].content[0]: Audio has no form"),
    (to_anthropic, [ApprovalRequest(ToolCall("c", "do"), "a")], UserError, "items[0]: ApprovalRequest has no form"),
]


@pytest.mark.parametrize(("convert", "history", "kind", "words"), _MISFITS, ids=[misfit[3] for misfit in _MISFITS])
def test_what_does_not_fit_is_named(
    convert: Callable[[Any], Any], history: Any, kind: type[UserError], words: str
) -> None:
    """Each error names the message and the field, and says what was expected there."""
    with pytest.raises(kind) as caught:
        convert(history)
    assert words in str(caught.value)


# ---------------------------------------------------------------------------------------------------- properties

NAMES = st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_-]{0,12}", fullmatch=True)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
ARGUMENTS = st.dictionaries(TEXTS, st.none() | st.booleans() | st.integers(-9, 9) | TEXTS, max_size=3)
IMAGES = st.builds(Image, st.just("https://x.test/a.png"), st.sampled_from([None, "low"])) | st.builds(
    Image, data=st.just(PNG), media_type=st.sampled_from(["image/png", "image/gif"])
)
FILES = st.builds(
    File, st.just("AAAA"), filename=st.just("a.pdf"), media_type=st.sampled_from([None, "application/pdf"])
) | st.builds(File, file_id=NAMES)
PARTS = st.lists(st.builds(Text, TEXTS) | IMAGES | FILES, max_size=3)


@st.composite
def _histories(draw: st.DrawFn) -> list[Item]:
    """Return a history in which every call is answered, and calls have different ids."""
    numbers = count()
    items: list[Item] = draw(st.lists(st.builds(SystemMessage, TEXTS), max_size=1))
    for _ in range(draw(st.integers(0, 3))):
        items += draw(st.lists(st.builds(UserMessage, TEXTS | PARTS), max_size=1))
        items += draw(
            st.lists(st.builds(AssistantMessage, TEXTS.filter(bool) | st.just([Text("a"), Refusal("no")])), max_size=1)
        )
        names = draw(st.lists(st.tuples(NAMES, ARGUMENTS), max_size=3))
        calls = [ToolCall(f"c{next(numbers)}", name, json.dumps(given)) for name, given in names]
        items += calls
        items += [ToolOutput(call.call_id, draw(TEXTS | PARTS), is_error=draw(st.booleans())) for call in calls]
    return items


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMS)
@settings(max_examples=40)
@given(items=_histories())
def test_what_was_written_is_read_and_written_the_same(name: str, items: list[Item]) -> None:
    """What a form can't hold is lost at the first writing, and nothing later. Calls with their arguments never are."""
    form = FORMS[name]
    written = form.write(items)
    read = form.read(written)
    assert form.write(read) == written
    assert form.read(form.write(read)) == read
    assert json.loads(json.dumps(written)) == written

    def calls_of(each: Iterable[Item]) -> list[Any]:
        return [(c.call_id, c.name, json.loads(c.arguments)) for c in each if isinstance(c, ToolCall)]

    assert calls_of(read) == calls_of(items)
    answered = [item.call_id for item in items if isinstance(item, ToolOutput)]
    assert [item.call_id for item in read if isinstance(item, ToolOutput)] == answered


def _replace_each(given: Any, odd: Any) -> Iterator[Any]:
    """Yield *given* with one of its parts, or the whole, replaced."""
    yield odd
    members = given.items() if isinstance(given, dict) else enumerate(given) if isinstance(given, list) else ()
    for place, member in members:
        for made in _replace_each(member, odd):
            changed = given.copy()
            changed[place] = made
            yield changed


@pytest.mark.parametrize("odd", [None, 3, [], {}, "x", "\ud800"], ids=repr)
@pytest.mark.parametrize(
    ("read", "history"),
    [(from_chat, CHAT), (from_responses, RESPONSES), (from_anthropic, ANTHROPIC["messages"])],
    ids=STORED,
)
def test_a_stored_history_with_one_odd_part_is_read_or_refused(
    read: Callable[[Any], list[Item]], history: Any, odd: Any
) -> None:
    """Wherever it stands: no other error comes out."""
    for changed in _replace_each(history, odd):
        with suppress(UserError):
            read(changed)


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-9, 9)
    | st.sampled_from(["", "text", "user", "assistant", "tool_use", "\ud800"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "role",
                    "content",
                    "type",
                    "text",
                    "tool_calls",
                    "id",
                    "call_id",
                    "name",
                    "function",
                    "source",
                    "input",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@pytest.mark.parametrize("read", [from_chat, from_responses, from_anthropic])
@given(data=_JSON)
def test_no_history_raises_any_other_error(read: Callable[[Any], Any], data: Any) -> None:
    """Whatever a file holds, it is read, or refused by an error of the library."""
    messages: Any = [{"role": "assistant", "content": data}, {"role": "user", "content": data}, data]
    for history in (data, messages[:1], messages[1:2], messages[2:]):
        with suppress(UserError):
            read(history)
