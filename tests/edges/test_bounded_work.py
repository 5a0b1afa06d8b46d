"""What a hostile server can make the reader of its answer do: work that grows as the answer does, in short steps.

Counted, not timed: ten times the answer is at most eleven times the work, and between two checkpoints a reader does
less than fits into some tens of milliseconds.
"""

import json
import random
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, suppress
from functools import partial
from itertools import pairwise
from typing import Any

import anyio
import pytest
from edges.hostile_answers import INTERFACES, Event, responses_end
from hypothesis import given
from hypothesis import strategies as st
from kit.work import Meter, count_work

from agentloop.exceptions import ModelBehaviorError, ModelTransportError
from agentloop.items import UserMessage
from agentloop.model_events import ModelRequest
from agentloop.models import (
    AnthropicModel,
    OpenAIChatModel,
    OpenAIResponsesModel,
    _codec,
    _long_json,
    _partial_json,
    _patience,
)
from agentloop.models._codec import MOST_PARTS
from agentloop.models._http_model import HttpModel, ReplyEvents
from agentloop.models._long_json import MOST_DEPTH, is_long, open_event
from agentloop.models._messages import answer as messages_answer
from agentloop.models._partial_json import PartialJson
from agentloop.models._realtime.answer import RealtimeDecoder

REQUEST = ModelRequest(system=None, items=(UserMessage("Hi"),))
MODELS: dict[str, HttpModel] = {
    "chat": OpenAIChatModel("m", base_url="http://model.test/v1", api_key="k"),
    "responses": OpenAIResponsesModel("m", base_url="http://model.test/v1", api_key="k"),
    "messages": AnthropicModel("m", base_url="http://model.test", api_key="k"),
}
MOST_STEPS = 4_000_000
"""Steps of the interpreter between two checkpoints: some tens of milliseconds."""
FAULTS = (ModelBehaviorError, ModelTransportError)


def make_decoder(interface: str) -> Any:
    """Return a decoder of *interface*, and events before those of the attack."""
    if interface == "realtime":
        decoder: Any = RealtimeDecoder(REQUEST, model="m")
        list(decoder.feed({"type": "response.created", "response": {"id": "r"}}))
        return decoder
    return MODELS[interface]._codec.decoder(REQUEST)


def decode(interface: str, events: Iterable[Event]) -> None:
    """Decode *events* to the end, or to the error."""
    decoder = make_decoder(interface)
    feed = getattr(decoder, "read_event", decoder.feed)
    try:
        for event in events:
            for _ in feed(event):
                pass
        for _ in decoder.finish():
            pass
    except FAULTS:
        pass


def make_answer(interface: str, pattern: int, size: int) -> list[Event]:
    """Return the answer of *size* events of the pattern with that number."""
    draw, end = INTERFACES[interface]
    make = draw(random.Random(pattern))
    return [*map(make, range(size)), *end(size)]


@pytest.fixture
def meter(monkeypatch: pytest.MonkeyPatch) -> Meter:
    """A meter that also counts what decoders read and join in C, by the character."""
    meter = Meter()

    class Counted:
        def __init__(self, function: Any, measure: Callable[[Any, Any], int]) -> None:
            self.function, self.measure = function, measure

        def __call__(self, *args: Any) -> Any:
            found = self.function(*args)
            meter.add(self.measure(args, found))
            return found

    read = Counted(_codec._decode, lambda args, found: len(args[0]))
    monkeypatch.setattr(_codec, "_decode", read)
    for kind, name in ((PartialJson, "text"), (messages_answer._BlockRead, "joined")):
        joined = Counted(getattr(kind, name).fget, lambda args, found: len(found))
        monkeypatch.setattr(kind, name, property(partial(lambda count, self: count(self), joined)))
    return meter


@pytest.mark.scenario("SM-13")
@pytest.mark.parametrize("pattern", range(40))
@pytest.mark.parametrize("interface", INTERFACES)
def test_ten_times_the_answer_is_at_most_eleven_times_the_work(interface: str, pattern: int, meter: Meter) -> None:
    """Whatever its events are: new ids or the same one, calls, results of hosted tools, citations, half arguments."""
    counts = []
    for size in (20, 20, 200):  # the first makes what is made once in a process, and isn't counted
        answer = make_answer(interface, pattern, size)
        before = meter.total
        with meter.running():
            decode(interface, answer)
        counts.append(meter.total - before)
    assert counts[2] <= 11 * counts[1] + 5_000


@pytest.mark.slow
@pytest.mark.scenario("SM-13")
def test_an_answer_has_a_bounded_number_of_parts() -> None:
    """So its end, where they become items, is one short step: more of them are an error."""
    starts = [
        {"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "id": f"c{n}", "name": "f"}}
        for n in range(MOST_PARTS + 1)
    ]
    decoder = make_decoder("messages")
    for start in starts[:-1]:
        list(decoder.read_event(start))
    with pytest.raises(ModelBehaviorError, match="more than 20,000 parts"):
        list(decoder.read_event(starts[-1]))
    calls = [{"index": n, "function": {"name": "f"}} for n in range(MOST_PARTS + 1)]
    with pytest.raises(ModelBehaviorError, match="more than 20,000 parts"):
        list(make_decoder("chat").read_event({"choices": [{"delta": {"tool_calls": calls}}]}))
    output = [{"type": "other", "id": f"o{n}"} for n in range(MOST_PARTS + 1)]
    whole = {"status": "completed", "output": output}
    with pytest.raises(ModelBehaviorError, match="more than 20,000 parts"):
        list(make_decoder("responses").read_event({"type": "response.completed", "response": whole}))
    with pytest.raises(ModelBehaviorError, match="more than 20,000 parts"):
        list(make_decoder("realtime").feed({"type": "response.done", "response": whole | {"id": "r"}}))


# ---------------------------------------------------------------------------------------------- steps


class Untimed(AbstractContextManager[None]):
    """An `AnswerWait` without a clock: nothing here runs in an event loop."""

    begun = False

    def __exit__(self, *args: object) -> None:
        pass


class Served:
    """A reply whose whole body is there: reading it waits for nothing."""

    content_type = "text/event-stream"
    request_id = None
    complete = False

    def __init__(self, body: bytes) -> None:
        self.wait = Untimed()
        self._pieces = [body[start : start + 65_536] for start in range(0, len(body), 65_536)]

    async def receive(self) -> bytes:
        return self._pieces.pop(0) if self._pieces else b""

    def redact(self, text: str) -> str:
        return text


def wire(events: Iterable[Event]) -> bytes:
    return b"".join(b"data: %s\n\n" % json.dumps(event).encode() for event in events)


SHORT_CHUNK = "as many calls as a short chunk has"
LONG_ANSWERS: dict[str, tuple[str, list[Event]]] = {
    "many chunks": ("chat", make_answer("chat", 0, 1_000)),
    "many calls in one chunk": (
        "chat",
        [{"choices": [{"delta": {"tool_calls": [{"id": f"c{n}", "function": {"name": "f"}} for n in range(15_000)]}}]}],
    ),
    SHORT_CHUNK: (
        "chat",
        [{"choices": [{"delta": {"tool_calls": [{"index": n} for n in range(9_900)]}, "finish_reason": "stop"}]}],
    ),
    "many items in one event": ("responses", [*responses_end(5_000)]),
    "many pings": ("messages", [{"type": "ping"}] * 1_000),
    "blank events": ("responses", [{"type": "x", "delta": ""}] * 1_000),
    "an event of empty lists": ("chat", [{"choices": [], "x": [[]] * 25_000}]),
    "an event of objects": ("responses", [{"type": "x", "x": [{"a": n} for n in range(12_000)]}]),
}


@pytest.mark.slow
@pytest.mark.scenario("SM-13")
@pytest.mark.parametrize("name", LONG_ANSWERS)
def test_no_step_of_a_reader_is_long(name: str, meter: Meter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though all of the answer is there at once, other tasks run in between."""
    interface, events = LONG_ANSWERS[name]

    async def checkpoint() -> None:
        meter.checkpoint()

    async def read() -> None:
        with suppress(*FAULTS):
            async for _ in ReplyEvents(reply, make_decoder(interface)):
                meter.add(300)  # what a run does with it

    for module in (_patience, _long_json):
        monkeypatch.setattr(module, "checkpoint", checkpoint)
    reply: Any = Served(wire(events))
    with meter.running(), pytest.raises(StopIteration):
        read().send(None)  # nothing in it waits
    assert meter.longest < MOST_STEPS
    assert meter.checkpoints > 3 or name == SHORT_CHUNK  # which is one step


@pytest.mark.scenario("SM-13")
async def test_a_cancellation_is_seen_while_a_long_event_is_read() -> None:
    """It comes while nothing is waited for."""
    text = json.dumps({"choices": [], "x": [[]] * 200_000})
    with anyio.CancelScope() as scope:
        scope.cancel()
        await open_event(text, "An event")
    assert scope.cancelled_caught


# ---------------------------------------------------------------------------------------------- long JSON

values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=30,
)
blanks = st.sampled_from([None, 1, "\t"])


@pytest.mark.slow
@given(values, blanks, st.data())
def test_a_long_text_is_read_as_a_short_one(value: Any, indent: Any, data: st.DataObject) -> None:
    """Value by value: the same value, and the same texts are refused."""
    text = json.dumps(value, indent=indent)
    assert list(_long_json.read_in_steps(text)) == [json.loads(text)]
    at = data.draw(st.integers(0, len(text)))
    broken = (
        text[:at] + data.draw(st.sampled_from(["", ",", "]", "}", '"', ":", "x", "[", "{", " ", "1"])) + text[at + 1 :]
    )
    try:
        expected = [_long_json.decoder.decode(broken)]
    except ValueError:
        with pytest.raises(ValueError, match=r"no JSON|Expecting|Invalid|Unterminated|Extra data|delimiter"):
            list(_long_json.read_in_steps(broken))
    else:
        assert list(_long_json.read_in_steps(broken)) == expected


@pytest.mark.slow
async def test_a_text_is_long_by_its_values_not_by_its_size() -> None:
    """A picture is short, however large. What is too much to be read at all is named."""
    picture = json.dumps({"image": "A" * 1_000_000})
    assert not is_long(picture)
    assert await open_event(picture, "An event") is None
    wide = json.dumps({"x": [[]] * 60_000})
    assert await open_event(wide, "An event") == json.loads(wide)
    with pytest.raises(ModelBehaviorError, match=f"more than {MOST_DEPTH} levels"):
        await open_event('{"x": ' + "[" * 60_000, "An event")
    with pytest.raises(ModelBehaviorError, match="no JSON at character 6"):
        await open_event('{"x": ' + "," * 60_000, "An event")
    with pytest.raises(ModelBehaviorError, match="isn't a JSON object"):
        await open_event(json.dumps([[]] * 60_000), "An event")


@pytest.mark.scenario("SM-11")
async def test_more_values_than_memory_has_room_for_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes fifty times its size: 60 MB of empty lists would be three gigabytes."""
    monkeypatch.setattr(_long_json, "MOST_VALUES", 60_000)
    with pytest.raises(ModelBehaviorError, match="more than 60,000 values"):
        await open_event(json.dumps({"x": [[]] * 60_001}), "An event")


@pytest.mark.parametrize("interface", MODELS)
@pytest.mark.parametrize("opened", ["[", '{"a":'])
def test_what_is_nested_too_deeply_is_no_answer(interface: str, opened: str) -> None:
    """Everything that is done with values later goes down into them by recursion."""
    closed = {"[": "]", '{"a":': "1}"}[opened]
    for depth in (MOST_DEPTH + 1, 3_000):
        inner = opened * depth + closed[:-1] + closed[-1] * depth
        with pytest.raises(ModelBehaviorError, match="isn't a JSON object"):
            make_decoder(interface).feed('{"type": "ping", "x": ' + inner + "}")


# ---------------------------------------------------------------------------------------------- partial JSON


@given(
    st.one_of(values.map(json.dumps), st.text(alphabet='{}[]",:\\ a1', max_size=12)),
    st.lists(st.integers(0, 40), max_size=6),
    st.booleans(),
)
def test_a_text_in_pieces_is_whole_when_it_is_json(text: str, cuts: list[int], asked: bool) -> None:
    """At each piece, or asked at the end only; a number counts as long as it is short."""
    places = sorted({0, *(min(cut, len(text)) for cut in cuts), len(text)})
    partial = PartialJson()
    for start, end in pairwise(places):
        partial.feed(text[start:end])
        if asked:
            assert partial.whole == expect_whole(text[:end])
    assert partial.whole == expect_whole(text)
    assert partial.text == text


def expect_whole(text: str) -> bool:
    number = text.strip()[:1] not in ("", "[", "{", '"')
    return _codec.is_json(text) and not (number and len(text) > _partial_json._WORD)


def test_counted_work_is_counted() -> None:
    """The meter of these tests: a loop in a loop is more than eleven times a tenth of it."""
    counts = [
        count_work(lambda meter, size=size: [a for a in range(size) for b in range(size)]).total for size in (9, 90)
    ]
    assert counts[1] > 50 * counts[0]
