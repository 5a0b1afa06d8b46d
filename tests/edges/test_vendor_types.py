"""The vendors' own Python clients as an independent judge: their types of requests, of events and of items.

Needs the extra `vendors`; without a client its tests are skipped.
"""

import functools
import json
import random
import typing
from collections.abc import Iterator, Mapping
from typing import Any

import attrs
import pytest
from edges.definition import Definition
from edges.messages_fixture import WHOLE, begin, end, more, stop, wire
from edges.test_responses_codec import ITEMS
from exploration import surrounded
from exploration.generators import Seeded

from agentloop.exceptions import UserError
from agentloop.items import (
    AssistantMessage,
    File,
    HandoffCall,
    HandoffOutput,
    Image,
    Item,
    OpaqueItem,
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
    HostedProgress,
    ItemDone,
    ModelEvent,
    ModelRequest,
    OutputSchema,
    Raw,
    ReasoningDelta,
    ResponseDone,
    ResponseStarted,
    TextDelta,
)
from agentloop.models._chat import request as chat_request
from agentloop.models._codec import encode_json
from agentloop.models._messages import answer as messages_answer
from agentloop.models._messages import items as messages_items
from agentloop.models._messages import request as messages_request
from agentloop.models._pieces import PieceCache
from agentloop.models._responses import answer as responses_answer
from agentloop.models._responses import request as responses_request
from agentloop.models._sse import SSEDecoder
from agentloop.settings import CachePolicy, ModelSettings, Prompt
from agentloop.testing.simulation.runs import run_one
from agentloop.tools import HostedTool

pydantic = pytest.importorskip("pydantic")

CASES = 1_000
REQUEST = ModelRequest(system=None, items=(UserMessage("Hi"),))

# ---------------------------------------------------------------------------------------------- requests


def _content(random: random.Random) -> list[Any]:
    parts = [Text("look"), Text("für dich"), Image("data:image/png;base64,AAAA"), Image("https://h/x.png", "low")]
    return [parts[0], *random.sample(parts, random.randrange(3))]


def _turns(random: random.Random) -> Iterator[Item]:
    """Yield a conversation as runs make them: each call has its output, before anything else is said."""
    for turn in range(random.randrange(1, 5)):
        yield UserMessage(_content(random))
        if random.random() < 0.3:
            yield Reasoning(content=("hm",), encrypted="c2ln", provider_data={messages_items.BLOCK: "thinking"})
        if random.random() < 0.5:
            yield AssistantMessage([Text("I see."), *([Refusal("no")] if random.random() < 0.2 else [])])
        calls = [f"c{turn}_{number}" for number in range(random.randrange(4))]
        for call in calls:
            handoff = random.random() < 0.2
            yield HandoffCall(call, "move") if handoff else ToolCall(call, "look", '{"x": [1, null]}')
        for call in calls:
            if random.random() < 0.2:
                yield HandoffOutput(call, "moved", "a", "b")
            else:
                yield ToolOutput(call, random.choice(["", "found", (Text("a"), Text("b"))]))
        if random.random() < 0.1:
            yield SystemMessage("Mind it.")
        yield AssistantMessage("Done.")


def make_request(seed: int) -> ModelRequest:
    """Return a request as a run might make it, the same for the same *seed*."""
    rnd = random.Random(seed)

    def maybe(*values: Any) -> Any:
        return rnd.choice([None, None, *values])

    settings = ModelSettings(
        temperature=maybe(0.0, 0.7),
        top_p=maybe(0.9),
        max_tokens=maybe(100),
        parallel_tool_calls=maybe(True, False),
        reasoning=maybe({"effort": "low"}),
        verbosity=maybe("low"),
        store=maybe(True, False),
        frequency_penalty=maybe(0.5),
        presence_penalty=maybe(-0.5),
        top_logprobs=maybe(2),
        service_tier=maybe("flex"),
        metadata=maybe({"user_id": "u"}),
    )
    tools = [Definition("look"), Definition("now")][: rnd.randrange(3)]
    return ModelRequest(
        system=maybe("Be brief."),
        items=[*_turns(rnd), UserMessage("And?")],
        tools=tools,
        handoffs=[Definition("move")][: rnd.randrange(2)],
        tool_choice=maybe("auto", "required", "none", "look") if tools else None,
        output_schema=maybe(OutputSchema(name="final_output", schema={"type": "object", "properties": {}})),
        settings=settings,
    )


def as_sent(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return *body* as it is read from its JSON."""
    found: dict[str, Any] = json.loads(encode_json(body))
    return found


def unknown_keys(value: object, hint: Any, place: str = "body") -> list[str]:
    """Return the places of keys of *value* that no typed dict in *hint* has: pydantic lets those pass."""
    hint = _bare(hint)
    if isinstance(value, list):
        return [bad for i, each in enumerate(value) for bad in unknown_keys(each, _element(hint), f"{place}[{i}]")]
    members = [
        member for member in _members(hint) if hasattr(member, "__required_keys__")
    ]  # also those of typing_extensions
    if not isinstance(value, Mapping) or not members or any(_is_open(member) for member in members):
        return []
    tried = []
    for member in members:
        hints = _hints(member)
        found = [f"{place}.{key}" for key in value.keys() - hints.keys()]
        literal = [
            f"{place}.{key}: {value[key]!r}"
            for key, each in hints.items()
            if key in value
            and typing.get_origin(_bare(each)) is typing.Literal
            and value[key] not in typing.get_args(_bare(each))
        ]
        if not found and not literal:
            found = [
                bad
                for key, each in hints.items()
                if key in value
                for bad in unknown_keys(value[key], each, f"{place}.{key}")
            ]
        tried.append(found + literal)
    return min(tried, key=len)


def _is_open(typed_dict: Any) -> bool:
    """Tell whether a value may have other keys, as a JSON schema may."""
    config: Mapping[str, Any] = getattr(typed_dict, "__pydantic_config__", {})
    return config.get("extra") == "allow"


@functools.cache
def _hints(typed_dict: Any) -> dict[str, Any]:
    return typing.get_type_hints(typed_dict)


def _bare(hint: Any) -> Any:
    while typing.get_origin(hint) in (typing.Annotated, typing.Required, typing.NotRequired):
        hint = typing.get_args(hint)[0]
    return hint


def _members(hint: Any) -> list[Any]:
    hint = _bare(hint)
    if typing.get_origin(hint) is typing.Union or type(hint).__name__ == "UnionType":
        return [member for each in typing.get_args(hint) for member in _members(each)]
    return [hint]


def _element(hint: Any) -> Any:
    elements = [typing.get_args(member)[0] for member in _members(hint) if typing.get_args(member)]
    elements = [each for each in elements if not isinstance(each, str)]
    return typing.Union[tuple(elements)] if elements else Any  # noqa: UP007 - of a tuple that is known at run time


def check_requests(hint: Any, encode: Any, make: Any = make_request) -> None:
    """Require that the bodies of generated requests are valid for the vendor's type, without an unknown key."""
    adapter = pydantic.TypeAdapter(hint)
    for seed in range(CASES):
        body = as_sent(encode(make(seed)))
        adapter.validate_python(body)
        assert unknown_keys(body, hint) == [], f"seed {seed}"


@pytest.mark.slow
def test_requests_of_chat_completions_are_what_the_vendor_declares() -> None:
    """Whatever a run asks for, the body is valid by the vendor's types and has no field that they lack."""
    params = pytest.importorskip("openai.types.chat.completion_create_params")

    def encode(request: ModelRequest) -> Any:
        shout = Definition("shout", kind="custom", format={"type": "grammar", "definition": "a", "syntax": "lark"})
        request = request.replace(tools=[*request.tools, shout])
        return chat_request.encode(request, "gpt", max_tokens_field="max_completion_tokens", custom_tools=True)

    check_requests(params.CompletionCreateParamsStreaming, encode)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["format", "tool"])
def test_requests_of_messages_are_what_the_vendor_declares(mode: Any) -> None:
    """Whatever a run asks for, the body is valid by the vendor's types and has no field that they lack.

    The types are those of the interface's newest version, which has no sampling settings.
    """
    params = pytest.importorskip("anthropic.types.message_create_params")

    def encode(request: ModelRequest) -> Any:
        settings = attrs.evolve(request.settings, temperature=None, top_p=None)
        return messages_request.encode(request.replace(settings=settings), "claude", max_tokens=100, output_mode=mode)

    check_requests(params.MessageCreateParamsStreaming, encode)


def make_responses_request(seed: int) -> ModelRequest:
    """Return a request with what this interface has beyond the others."""
    rnd = random.Random(seed)

    def maybe(*values: Any) -> Any:
        return rnd.choice([None, None, *values])

    request = make_request(seed)
    # The vendor's types know no reasoning by another provider, and it is never sent.
    own = [item for item in request.items if not isinstance(item, Reasoning)]
    came = rnd.sample(ITEMS, rnd.randrange(len(ITEMS)))
    items = [*own, *came, UserMessage((Text("a"), File("QQ==", filename="a.pdf")))]
    tools = [
        *request.tools,
        Definition("late", namespace="n", defer_loading=True, output_schema={"type": "string"}),
        Definition("shout", kind="custom", format={"type": "text"}, allowed_callers=("direct",)),
    ]
    hosted = [HostedTool("web_search"), HostedTool("code_interpreter", {"container": {"type": "auto"}})]
    metadata = request.settings.metadata
    return request.replace(
        items=items,
        tools=rnd.sample(tools, rnd.randrange(len(tools) + 1)),
        hosted=rnd.sample(hosted, rnd.randrange(3)),
        tool_choice=maybe("auto", "required", "none", "shout"),
        instructions=("Be brief.", "It is Monday.") if rnd.random() < 0.5 else (),
        prompt=maybe(Prompt("p", version="1", variables={"x": "y", "face": Image(file_id="f")})),
        previous_response_id=maybe("resp_0"),
        settings=attrs.evolve(
            request.settings,
            metadata=metadata,
            include=maybe(["web_search_call.results"]),
            truncation=maybe("auto"),
            context_management=maybe([{"type": "compaction", "compact_threshold": 1_000}]),
            cache=maybe(CachePolicy(key="k", ttl="30m", retention="24h", breakpoints=("instructions", "items"))),
        ),
    )


@pytest.mark.slow
def test_requests_of_responses_are_what_the_vendor_declares() -> None:
    """Whatever a run asks for, the body is valid by the vendor's types and has no field that they lack."""
    params = pytest.importorskip("openai.types.responses.response_create_params")

    def encode(request: ModelRequest) -> Any:
        return responses_request.encode(request, "gpt")

    check_requests(params.ResponseCreateParamsStreaming, encode, make_responses_request)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("interface", ["responses", "chat", "messages"])
def test_requests_of_runs_are_what_the_vendor_declares(interface: str) -> None:
    """Generated worlds are run, and what their models are asked is encoded: with tools of the provider and of free
    text, requests for its approval, handoffs, namespaces, outputs of calls that failed. What has no form is refused.
    """
    hints = {
        "responses": ("openai.types.responses.response_create_params", "ResponseCreateParamsStreaming"),
        "chat": ("openai.types.chat.completion_create_params", "CompletionCreateParamsStreaming"),
        "messages": ("anthropic.types.message_create_params", "MessageCreateParamsStreaming"),
    }
    chat: dict[str, Any] = {"custom_tools": True, "max_tokens_field": "max_completion_tokens"}
    encoders: Mapping[str, Any] = {
        "responses": lambda request: responses_request.encode(request, "m", pieces=pieces),
        "chat": lambda request: chat_request.encode(request, "m", pieces=pieces, **chat),
        "messages": lambda request: messages_request.encode(request, "m", max_tokens=100, pieces=pieces),
    }
    module, name = hints[interface]
    hint = getattr(pytest.importorskip(module), name)
    adapter, pieces, sent = pydantic.TypeAdapter(hint), PieceCache(), 0
    for seed in range(CASES // 2):  # two worlds each
        world = surrounded.draw_surrounded(Seeded(f"vendor {seed}"), seed).world
        provided = surrounded.KINDS["provided"](Seeded(f"vendor {seed}"))
        for run in map(run_one, (world, provided)):
            for request in run.requests:
                try:
                    body = as_sent(encoders[interface](request))
                except UserError:
                    continue
                adapter.validate_python(body)
                assert unknown_keys(body, hint) == [], f"seed {seed}"
                sent += 1
    assert sent > CASES


def test_an_unknown_key_is_found_wherever_it_is() -> None:
    """The check would be none without this."""
    params = pytest.importorskip("anthropic.types.message_create_params")
    body = as_sent(messages_request.encode(REQUEST, "claude", max_tokens=100))
    body["messages"][0]["content"][0]["odd"] = 1
    strange = body | {"strange": 1}
    assert unknown_keys(strange, params.MessageCreateParamsStreaming) == ["body.strange"]
    assert unknown_keys(body, params.MessageCreateParamsStreaming) == ["body.messages[0].content[0].odd"]


# ---------------------------------------------------------------------------------------------- responses


def _read(decoder: Any, data: bytes) -> list[ModelEvent]:
    events = [event for one in SSEDecoder().feed(data) for event in decoder.feed(one.data)]
    return [*events, *decoder.finish()]


_TERMINAL = ("response.completed", "response.failed", "response.incomplete", "error")


@pytest.mark.scenario("WR-03")
def test_every_member_of_the_vendors_unions_of_responses_is_read_or_passes() -> None:
    """Events and items are listed from the vendor's types, so a new one is met here first."""
    types = pytest.importorskip("openai.types.responses")
    kinds = sorted(_literal(member, "type") for member in _members(types.ResponseStreamEvent))
    assert len(kinds) > 50
    for kind in set(kinds) - set(_TERMINAL):
        decoder = responses_answer.ResponsesDecoder(REQUEST)
        event = {"type": kind, "output_index": 0, "item_id": "x", "delta": "d", "item": {"type": "hologram"}}
        events = decoder.feed(json.dumps(event))
        assert Raw(event) in events
        shown = [type(one) for one in events if not isinstance(one, Raw | ResponseStarted)]
        step = [HostedProgress] if kind.endswith(_STEPS) and kind.count(".") == 2 else []
        assert shown == _SHOWN.get(kind, step), kind
    items = sorted(_literal(member, "type") for member in _members(types.ResponseOutputItem))
    assert len(items) > 20
    for kind in items:
        data = {"type": kind, "id": "x", "call_id": "c", "name": "n", "status": "completed"}
        decoder = responses_answer.ResponsesDecoder(REQUEST)
        response = {"status": "completed", "output": [data]}
        done = [*decoder.feed(json.dumps({"type": "response.completed", "response": response})), *decoder.finish()][-1]
        assert isinstance(done, ResponseDone)
        [item] = done.items
        assert not isinstance(item, OpaqueItem) or kind in ("function_call_output", "custom_tool_call_output"), kind
        # It goes back to the provider as what it was.
        request = REQUEST.replace(items=[item, AssistantMessage("x")])
        sent = as_sent(responses_request.encode(request, "m"))["input"]
        assert sent[0]["type"] == kind


_STEPS = (".in_progress", ".searching", ".interpreting", ".generating", ".compacting", ".completed", ".failed")
_SHOWN: Mapping[str, list[Any]] = {
    "response.output_text.delta": [TextDelta],
    "response.function_call_arguments.delta": [ArgumentsDelta],
    "response.custom_tool_call_input.delta": [ArgumentsDelta],
    "response.reasoning_summary_text.delta": [ReasoningDelta],
    "response.reasoning_text.delta": [ReasoningDelta],
    "response.output_item.done": [ItemDone],
}


@pytest.mark.scenario("WR-03")
def test_every_member_of_the_vendors_unions_of_messages_is_read_or_passes() -> None:
    """Events, deltas and blocks are listed from the vendor's types, so a new one is met here first."""
    types = pytest.importorskip("anthropic.types")
    kinds = {_literal(member, "type") for member in _members(types.RawMessageStreamEvent)}
    assert kinds <= {
        "message_start",
        "message_delta",
        "message_stop",
        *(f"content_block_{x}" for x in ("start", "delta", "stop")),
    }
    blocks = sorted(_literal(member, "type") for member in _members(types.ContentBlock))
    deltas = sorted(_literal(member, "type") for member in _members(types.RawContentBlockDelta))
    assert len(blocks) > 5
    for kind in blocks:
        events = [WHOLE[0], begin(0, type=kind, id="x", name="n", data="d", content=[]), stop(0)]
        events += [begin(1, type="text", text="Hi"), *end("end_turn")]
        decoded = _read(messages_answer.MessagesDecoder(REQUEST), wire(events))
        done = decoded[-1]
        assert isinstance(done, ResponseDone)
        assert len(done.items) == (1 if kind == "text" else 2), kind
        assert sum(isinstance(event, Raw) for event in decoded) == len(events)
        # What the provider made itself goes back to it unchanged.
        body = as_sent(messages_request.encode(REQUEST.replace(items=done.items), "m", max_tokens=9))
        assert body["messages"][0]["content"][0]["type"] == ("text" if kind == "text" else kind)
    for kind in deltas:
        events = [WHOLE[0], begin(0, type="text", text="Hi"), more(0, type=kind), *end("end_turn")]
        assert isinstance(_read(messages_answer.MessagesDecoder(REQUEST), wire(events))[-1], ResponseDone)


def _literal(model: Any, name: str) -> str:
    [value] = typing.get_args(_bare(model).model_fields[name].annotation)
    return str(value)
