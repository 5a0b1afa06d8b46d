"""Items are written once: a body is joined from pieces that were written for earlier requests."""

import json
import random
from collections.abc import Callable, Mapping
from typing import Any

import httpx
import pytest
from edges.test_three_interfaces import INTERFACES, now, weather
from hypothesis import given
from hypothesis import strategies as st

from agentloop import Agent, Runner
from agentloop._common import strict_json
from agentloop.items import (
    AssistantMessage,
    HandoffCall,
    HandoffOutput,
    HostedToolCall,
    Image,
    Item,
    OpaqueItem,
    Reasoning,
    SystemMessage,
    Text,
    ToolCall,
    ToolOutput,
    UserMessage,
)
from agentloop.model_events import ModelRequest
from agentloop.models._chat import request as chat_request
from agentloop.models._codec import encode_json
from agentloop.models._messages import items as messages_items
from agentloop.models._messages import request as messages_request
from agentloop.models._pieces import PieceCache
from agentloop.models._responses import request as responses_request
from agentloop.settings import CachePolicy, ModelSettings

Encode = Callable[[ModelRequest, PieceCache | None], Mapping[str, Any]]
ENCODERS: dict[str, Encode] = {
    "responses": lambda request, pieces: responses_request.encode(request, "m", pieces=pieces),
    "chat": lambda request, pieces: chat_request.encode(
        request, "m", pieces=pieces, extra_content=True, replay_reasoning=True
    ),
    "messages": lambda request, pieces: messages_request.encode(request, "m", max_tokens=9, pieces=pieces),
}
BREAKPOINTS = ModelSettings(cache=CachePolicy(breakpoints=("items",)))


def thought(words: str) -> Reasoning:
    return Reasoning("rs", [words], [words], "c2ln", provider_data={"responses": {}, messages_items.BLOCK: "thinking"})


def draw_history(seed: int) -> list[list[Item]]:
    """Return the items that each turn of a conversation adds."""
    rnd = random.Random(seed)
    turns: list[list[Item]] = [[*[SystemMessage("Mind it.")] * rnd.randrange(2), UserMessage("Hi, für dich")]]
    found: list[Any] = ["", "found", (Text("a"), Text("b"))]
    for turn in range(rnd.randrange(1, 6)):
        items: list[Item] = [thought(f"hm {turn}")] * rnd.randrange(3)
        if rnd.random() < 0.5:
            items.append(AssistantMessage([Text("I see."), Text("")]))
        calls = [f"c{turn}_{number}" for number in range(rnd.randrange(4))]
        for call in calls:
            renamed = {"chat_call_id": "c0", "messages_call_id": "c0", "responses": {"call_id": "c0"}}
            data = rnd.choice([None, renamed, {"chat_extra_content": {"n": turn}}])
            items.append(
                HandoffCall(call, "move", provider_data=data)
                if rnd.random() < 0.2
                else ToolCall(call, "look", '{"x": [1, null]}', provider_data=data)
            )
        turns.append(items)
        outputs: list[Item] = [
            HandoffOutput(call, "moved", "a", "b")
            if rnd.random() < 0.2
            else ToolOutput(call, rnd.choice(found), is_error=rnd.random() < 0.3)
            for call in calls
        ]
        said = [UserMessage([Text("look"), Image(f"https://h/{turn}.png")])] * rnd.randrange(3)
        turns.append([*outputs, *said] if rnd.random() < 0.8 else [*said, *outputs])
    return turns


@pytest.mark.slow
@pytest.mark.parametrize("interface", ENCODERS)
@given(seed=st.integers(0, 1 << 30), most=st.sampled_from([0, 300, 3_000, 16_000_000]))
def test_a_body_of_kept_pieces_is_the_body_written_anew(interface: str, seed: int, most: int) -> None:
    """Whatever grows, is cut, filtered or said twice, and however little room there is for pieces."""
    encode, kept, rnd = ENCODERS[interface], PieceCache(most), random.Random(seed)
    items: list[Item] = []
    first = UserMessage("Hi")  # a request without a message is refused
    for turn in draw_history(seed):
        items = [*items, *turn]
        for some in (items, items[rnd.randrange(2) :], [one for one in items if rnd.random() < 0.9], items + items):
            shown = [first, *some]
            for settings in (ModelSettings(), BREAKPOINTS):
                request = ModelRequest(system=rnd.choice([None, "Be brief."]), items=shown, settings=settings)
                assert json.loads(encode_json(encode(request, kept))) == json.loads(encode_json(encode(request, None)))


def test_equal_items_are_not_the_same_item() -> None:
    """Python's equality isn't JSON's: `1`, `1.0` and `True` are equal."""
    values = [1, True, 1.0]
    opaque: list[Item] = [OpaqueItem({"type": "t", "messages_block": "t", "x": value}) for value in values]
    hosted: list[Item] = [
        HostedToolCall("web_search_call", {"type": "server_tool_use", "x": value}) for value in values
    ]
    assert opaque[0] == opaque[1]
    for interface in ("responses", "messages"):
        pieces, written = PieceCache(), set()
        for _ in range(2):
            for item in opaque + hosted:
                request = ModelRequest(system=None, items=[UserMessage("Hi"), item, AssistantMessage("x")])
                written.add(encode_json(ENCODERS[interface](request, pieces)))
        assert len(written) == 6


def test_an_item_that_is_gone_leaves_its_name_to_none() -> None:
    """Objects made one after the other often get one address, by which alone nothing is found."""
    pieces, places = PieceCache(), set()
    for number in range(1_000):
        item = UserMessage(str(number))
        places.add(id(item))
        body = encode_json(ENCODERS["chat"](ModelRequest(system=None, items=[item]), pieces))
        assert json.loads(body)["messages"] == [{"role": "user", "content": str(number)}]
        del item


def test_an_output_is_written_for_its_call() -> None:
    """A filter may give a call another id: its output then names that."""
    output = ToolOutput("c", "found")
    for interface in ENCODERS:
        pieces = PieceCache()
        for own in (None, "d", "e", None):
            data = own and {"chat_call_id": own, "messages_call_id": own, "responses": {"call_id": own}}
            items: list[Item] = [UserMessage("Hi"), ToolCall("c", "look", provider_data=data or None), output]
            body = encode_json(ENCODERS[interface](ModelRequest(system=None, items=items), pieces))
            assert body.count(b'"%s"' % (own or "c").encode()) == 2, (interface, own)


def test_pieces_are_bounded_by_their_bytes() -> None:
    """What is used stays, what isn't used goes, and what is larger than half of the room isn't kept."""
    pieces = PieceCache(1_000)
    used, large = UserMessage("used"), UserMessage("large")
    pieces.keep(used, b"u" * 100)
    held = []
    for number in range(100):
        item = UserMessage(str(number))
        held.append(item)
        pieces.keep(item, b"x" * 100)
        assert pieces.find(used) == b"u" * 100
        assert sum(pieces.find(one) is not None for one in held[-3:]) == min(number + 1, 3)
    assert sum(pieces.find(one) is not None for one in held) < 10
    assert pieces.keep(large, b"x" * 501) == b"x" * 501
    assert pieces.find(large) is None
    assert pieces.find(used) is not None


@pytest.mark.parametrize("kind", INTERFACES)
async def test_a_turn_writes_what_is_new_and_no_more(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Turn 40 of a run turns as many values to JSON as turn 4, and as many bytes, however long the history is."""
    turns, written = 40, [0, 0]
    counts: list[list[int]] = []

    class Counting(json.JSONEncoder):
        def encode(self, value: object) -> str:
            text = super().encode(value)
            written[0] += 1
            written[1] += len(text)
            return text

    def answer(request: httpx.Request) -> httpx.Response:
        counts.append([*written, len(request.content)])
        written[:] = [0, 0]
        number = len(counts) + 10  # of two digits
        items: list[Item] = [AssistantMessage("I look für dich.")]
        if len(counts) < turns:
            items += [ToolCall(f"a{number}", "weather", '{"city": "Oslo"}'), ToolCall(f"b{number}", "now")]
        headers = {"content-type": "text/event-stream"}
        return httpx.Response(200, headers=headers, content=INTERFACES[kind](items, True))

    usual = strict_json._WRITER
    monkeypatch.setattr(strict_json, "_WRITER", Counting(allow_nan=False, separators=(",", ":"), default=usual.default))
    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
        model = kind("m", base_url="http://model.test/v1", http_client=client)
        await Runner.run(Agent("guide", model=model, tools=[weather, now]), "Which city?", max_turns=turns)
    assert len(counts) == turns
    assert {tuple(count[:2]) for count in counts[2:]} == {tuple(counts[2][:2])}
    assert counts[-1][0] < 12
    assert counts[-1][2] - counts[-2][2] == counts[2][2] - counts[1][2]  # and every turn sends all that came before


def test_one_object_that_occurs_twice_is_sent_twice() -> None:
    """A piece is that of an item, not of its place."""
    said = UserMessage("again")
    for interface in ENCODERS:
        body = encode_json(ENCODERS[interface](ModelRequest(system=None, items=[said, said]), PieceCache()))
        assert body.count(b"again") == 2
