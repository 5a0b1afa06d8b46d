"""Records that msgspec stores alone: the same bytes and equal records as by `record_codec`, or left to it."""

import copy
import json
import math
from typing import Any, get_args

import pytest
from core.record_strategies import RECORDS
from hypothesis import given
from hypothesis import strategies as st

from agentloop import items as i
from agentloop import records as r
from agentloop._common.errors import StateError
from agentloop._storage.plain_records import plain_line, plain_lines, read_plain_line, read_plain_lines
from agentloop._storage.record_codec import (
    decode,
    encode,
    record_from_json,
    record_from_line,
    record_to_json,
    record_to_line,
    records_from_array,
    records_to_array,
)
from agentloop._storage.state_codec import Stored, state_from_json, state_to_string, text_to_data
from agentloop._storage.withholding import DIGESTS
from agentloop.model_events import ModelResponse
from agentloop.outcomes import CallOutcome
from agentloop.usage import RequestUsage

HELLO = i.UserMessage("hello")
STARTED = r.RunStarted((), 0, 1.5, "run", "a", (HELLO,), 10, shown=(HELLO,))
SETTLED = r.CallSettled(("outer",), 1, 2.5, "c1", "pay", CallOutcome(status="succeeded", output="ok", ended_at=2.25))
CALL = i.ToolCall("c1", "pay", provider_data={"id": 1, "parts": [True, None, 1.5, "x"]})
PLAIN: list[r.Record] = [
    STARTED,
    STARTED.replace(max_turns=None),
    SETTLED,
    SETTLED.replace(outcome=SETTLED.outcome.replace(value=object(), error=ValueError("no"))),
    r.ModelResponded((), 1, 2.0, ModelResponse([CALL, i.Compaction({"a": 1})], RequestUsage(raw={"n": 1}))),
    r.ModelFailed((), 1, 2.0, "broken", usage=RequestUsage(input_tokens=1), retry_after=0.5),
    r.ModelFailed((), 1, 2.0, "broken"),
    r.HistoryReplaced((), 1, 2.0, "filter", 0, (CALL,)),
    r.InputAdded((), 1, 2.0, (i.HostedToolCall("search", {"q": "x"}), i.OpaqueItem({"type": "new"}))),
    r.GuardrailSettled((), 1, 2.0, "input", "g", "pass", 0.1, info={"a": [1]}, result=object()),
    r.CallStarted((), 1, 2.0, "c1", "pay", "{}", queued_at=1.0),
    r.BodyEnded((), 1, 2.0, "c1", value="null", kept=True),
    r.CallbackReturned((), 1, 2.0, "now", "1", 2**63 - 1),
    r.RunEnded((), 1, 2.0, "completed", {"total": 3.5}),
    r.BatchEnded((), 1, 2.0),
]
UNUSUAL: list[r.Record] = [
    r.InputAdded((), 1, 2.0, (i.ApprovalRequest(CALL, "a"),)),
    STARTED.replace(at=math.nan),
    STARTED.replace(agent="\ud800"),
    STARTED.replace(input=(i.UserMessage("s", secret=True),)),
    SETTLED.replace(secret=("a",)),
    SETTLED.replace(outcome=SETTLED.outcome.replace(ended_at=math.inf)),
    SETTLED.replace(outcome=SETTLED.outcome.replace(custom_data={1: 2})),
    r.CallbackReturned((), 1, 2.0, "now", "1", 2**64),
    r.CallbackReturned((), 1, 2.0, "now", "1", [math.nan]),
    r.CallbackReturned((), 1, 2.0, "now", "1", {"$digest": "x"}),
]


def line_of(record: r.Record) -> bytes:
    """Return what the codec alone writes."""
    return encode(record_to_json(record), None)


@given(st.lists(RECORDS, max_size=3))
def test_what_is_stored_plainly_is_what_the_codec_stores(records: list[r.Record]) -> None:
    """Bytes are the same, whichever way they were made; records read from them are equal."""
    for record in records:
        line = line_of(record)
        assert plain_line(record) in (None, line)
        assert record_to_line(record) == line
        assert read_plain_line(line) in (None, record_from_json(decode(line)))
        assert line_of(record_from_line(line)) == line
    array = b"[%b]" % b",".join([record_to_line(record) for record in records])
    assert plain_lines(records) in (None, array)
    assert records_to_array(records, DIGESTS) == array
    read = records_from_array(array, path="$.records", secrets=DIGESTS)
    assert records_to_array(read, DIGESTS) == array


@pytest.mark.parametrize("record", PLAIN, ids=lambda record: type(record).__name__)
def test_usual_records_are_plain(record: r.Record) -> None:
    """A record without secrets and values of the application never needs the codec, there and back."""
    line = line_of(record)
    assert plain_line(record) == line
    assert read_plain_line(line) == record
    assert read_plain_lines(b"[%b,%b]" % (line, line)) == [record, record]


@pytest.mark.parametrize("record", UNUSUAL, ids=repr)
def test_unusual_records_are_left_to_the_codec(record: r.Record) -> None:
    """Among others that are plain, too."""
    line = line_of(record)
    assert (plain_line(record), read_plain_line(line)) == (None, None)
    array = records_to_array([STARTED, record], DIGESTS)
    assert array == b"[%b,%b]" % (record_to_line(STARTED), line)
    assert read_plain_lines(array) is None
    assert len(records_from_array(array, path="$", secrets=DIGESTS)) == 2


ASKED = r.ApprovalRequested((), 1, 2.0, "c1", "a", "pay", "digest", arguments="{}")
GIVEN = r.VerdictGiven((), 1, 2.0, "c1", "a", "pay", "digest", approved=True, arguments="{}")
MARKED_ITEMS: list[i.Item] = [
    i.SystemMessage("s", secret=True),
    i.UserMessage("s", secret=True),
    i.AssistantMessage("s", secret=True),
    i.ToolCall("c1", "pay", '{"pin": 1}', secret=("pin",)),
    i.ToolCall("c1", "pay", "{}", secret_output=True),
    i.ToolOutput("c1", "s", secret=True),
]
MARKED: list[r.Record] = [
    *(r.InputAdded((), 1, 2.0, (HELLO, item)) for item in MARKED_ITEMS),
    *(r.ModelResponded((), 1, 2.0, ModelResponse([item])) for item in MARKED_ITEMS),
    STARTED.replace(shown=(HELLO, MARKED_ITEMS[1])),
    SETTLED.replace(outcome=SETTLED.outcome.replace(secret=True)),
    *(one.replace(secret=("pin",)) for one in (*PLAIN, ASKED, GIVEN) if getattr(one, "secret", None) == ()),
    *(one.replace(secret=True) for one in PLAIN if getattr(one, "secret", None) is False),
]


@pytest.mark.parametrize("record", MARKED, ids=lambda record: type(record).__name__)
def test_a_record_with_a_mark_of_a_secret_is_left_to_the_codec(record: r.Record) -> None:
    """Wherever the mark is: only the codec hides what is secret."""
    assert (plain_line(record), plain_lines([STARTED, record]), read_plain_line(line_of(record))) == (None, None, None)


def test_every_kind_that_may_be_secret_is_tried() -> None:
    """A new kind of record or item with such a mark has to be in the lists above, and where they are looked for."""
    kinds = {kind for kind in get_args(r.Record) if "secret" in kind.__struct_fields__}
    assert kinds <= {type(record) for record in MARKED}
    marked = {kind for kind in get_args(i.Item) if "secret" in kind.__struct_fields__}
    assert marked == {type(item) for item in MARKED_ITEMS}


def _altered(change: Any, record: r.Record = SETTLED) -> bytes:
    data = copy.deepcopy(record_to_json(record))
    change(data)
    return encode(data, None)


@pytest.mark.parametrize(
    "line",
    [
        _altered(lambda data: data["outcome"].update(value="x")),
        _altered(lambda data: data["outcome"].update(error="x")),
        _altered(lambda data: data.update(result="x"), r.GuardrailSettled((), 1, 2.0, "input", "g", "pass", 0.1)),
        _altered(lambda data: data.update(turn=1.5)),
        _altered(lambda data: data.update(kind="nothing")),
        _altered(lambda data: data.update(more=1)),
        record_to_line(SETTLED).replace(b'"turn":1', b'"turn":1,"turn":1'),
        record_to_line(SETTLED)[:-1],
        b"[" * 100_000,
    ],
    ids=range(9),
)
def test_what_no_record_writes_is_refused_by_the_codec(line: bytes) -> None:
    """Text that is almost a record's isn't taken: the codec names the fault."""
    assert read_plain_line(line) is None
    with pytest.raises(StateError, match="Malformed"):
        record_from_line(line)
    with pytest.raises(StateError, match="Malformed"):
        records_from_array(b"[%b]" % line, path="$.records", secrets=DIGESTS)


def _state_of(records: list[r.Record], context: Any = None) -> str:
    stored = Stored(tuple(records), context, {"agents": {"a": {}}})
    return state_to_string(stored, context_serializer=None, strict_context=True, codec=None, converter=None, key=None)


def _read_state(data: Any) -> Stored:
    return state_from_json(
        data, context=None, context_deserializer=None, context_type=None, key=None, codec=None, converter=None
    )


@pytest.mark.parametrize("records", [PLAIN, [STARTED, UNUSUAL[0]], []], ids=["plain", "one unusual", "none"])
@pytest.mark.parametrize("context", [None, {"b": 1, "a": [2]}], ids=["without context", "with context"])
def test_a_state_is_read_alike_from_its_text_and_from_its_values(records: list[r.Record], context: Any) -> None:
    """In one pass, with its records as text, from values parsed before, and with keys in another order."""
    text = _state_of(records, context)
    read = _read_state(text_to_data(text))
    assert (read.context, read.graph) == (context, {"agents": {"a": {}}})
    assert _state_of(list(read.records), read.context) == text
    assert _read_state(json.loads(text)) == read
    assert _read_state(text_to_data(json.dumps(json.loads(text), sort_keys=True))) == read


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"schema":"2"', '"schema":"2","schema":"2"', "a key stands twice"),
        ('"agents":{"a":{}}', '"agents":{"a":{},"a":{}}', "a key stands twice"),
        ('"value":{"x":1}', '"value":{"x":1,"x":1}', "a key stands twice"),
        ('"turn":1', '"turn":1,"turn":1', "a key stands twice"),
        ('"schema":"2"', '"schema":"3"', "Unknown schema version 3"),
        ('"schema":"2"', '"schema":"2","seal":"x"', "sealed"),
        ('"schema":"2"', '"schema":"2","more":1', "1 unknown fields"),
    ],
)
def test_a_damaged_text_of_a_state_is_refused(old: str, new: str, message: str) -> None:
    """Whether its records are plain or not."""
    text = _state_of([SETTLED], {"x": 1})
    assert old in text
    with pytest.raises(StateError, match=message):
        _read_state(text_to_data(text.replace(old, new, 1)))
