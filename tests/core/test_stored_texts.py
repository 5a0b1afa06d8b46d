"""The texts of records: canonical, the same alone and in an array, read in one pass or opened, never written twice."""

import copy
import json
import math
from typing import Any, get_args, get_type_hints

import pytest
from core.record_strategies import RECORDS
from core.test_record_codec import changed, places
from hypothesis import given, settings
from hypothesis import strategies as st

from agentloop import items as i
from agentloop import records as r
from agentloop._common.errors import StateError, UserTypeError
from agentloop._storage.record_codec import (
    decode,
    encode,
    read_plain_line,
    record_from_json,
    record_from_line,
    record_to_json,
    record_to_line,
    records_to_array,
    records_to_lines,
)
from agentloop._storage.state_codec import Stored, state_from_json, state_to_string, text_to_data
from agentloop._storage.stored_forms import SECRETS, ways_of
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
    r.InputAdded((), 1, 2.0, (HELLO,), "i", "idle", "ann"),
    r.InputShown((), 1, 2.0, "i"),
    r.InputWithdrawn((), 1, 2.0, "i", "ann"),
    r.GuardrailSettled((), 1, 2.0, "input", "g", "pass", 0.1, info={"a": [1]}, result=object()),
    r.CallStarted((), 1, 2.0, "c1", "pay", "{}", queued_at=1.0),
    r.BodyEnded((), 1, 2.0, "c1", value="null", kept=True),
    r.CallAnswered((), 1, 2.0, "c1", value="null", by="ada"),
    r.CallbackReturned((), 1, 2.0, "now", "1", 2**63 - 1),
    r.RunEnded((), 1, 2.0, "completed", {"total": 3.5}),
    r.BatchEnded((), 1, 2.0),
    SETTLED.replace(secret=("a",)),
]
UNUSUAL: list[r.Record] = [
    r.InputAdded((), 1, 2.0, (i.ApprovalRequest(CALL, "a"),)),  # its call has no tag
    STARTED.replace(at=math.nan),
    STARTED.replace(agent="\ud800"),
    STARTED.replace(input=(i.UserMessage("s", secret=True),)),
    SETTLED.replace(outcome=SETTLED.outcome.replace(ended_at=math.inf)),
    SETTLED.replace(outcome=SETTLED.outcome.replace(custom_data={1: 2})),
    r.CallbackReturned((), 1, 2.0, "now", "1", 2**64),
    r.CallbackReturned((), 1, 2.0, "now", "1", [math.nan]),
    r.CallbackReturned((), 1, 2.0, "now", "1", {"$digest": "x"}),
]


def line_of(record: r.Record) -> bytes:
    """Return what the codec alone writes."""
    return encode(record_to_json(record), None)


@pytest.mark.slow
@given(st.lists(RECORDS, max_size=3))
def test_a_line_is_the_canonical_text_of_the_object(records: list[r.Record]) -> None:
    """One record has the same bytes alone, among others and by way of its JSON object; it reads as what it was."""
    for record in records:
        line = line_of(record)
        assert record_to_line(record) == line
        assert read_plain_line(line) in (None, record_from_json(decode(line)))
        assert line_of(record_from_line(line)) == line
    lines = [record_to_line(record) for record in records]
    assert records_to_lines(records) == lines
    assert records_to_array(records, DIGESTS) == b"[%b]" % b",".join(lines)


def test_records_that_are_written_at_once_have_the_lines_that_each_has_alone() -> None:
    """Also where one of them has to be written by itself, or has a line break in a text."""
    for records in ([], PLAIN, UNUSUAL, [*PLAIN, *UNUSUAL], [STARTED.replace(agent="a\nb\r\u2028"), *PLAIN]):
        lines = [record_to_line(record) for record in records]
        assert lines == [line_of(record) for record in records]
        assert records_to_lines(records) == lines
        assert records_to_array(records, DIGESTS) == b"[%b]" % b",".join(lines)


@pytest.mark.parametrize("record", PLAIN, ids=lambda record: type(record).__name__)
def test_usual_records_are_read_in_one_pass(record: r.Record) -> None:
    """A record without marks is what msgspec reads of its text."""
    line = line_of(record)
    assert record_to_line(record) == line
    assert read_plain_line(line) == record == record_from_json(decode(line))


@pytest.mark.parametrize("record", UNUSUAL, ids=repr)
def test_unusual_records_are_opened(record: r.Record) -> None:
    """Half a surrogate pair and what JSON lacks don't fit into one pass, and come back all the same."""
    line = line_of(record)
    assert record_to_line(record) == line
    assert read_plain_line(line) is None
    assert line_of(record_from_line(line)) == line


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


HUSH = "hush"


def hushed(value: Any) -> Any:
    """Return *value* with `hush` as each text that a mark hides."""
    if isinstance(value, i.ToolCall):
        return value.replace(arguments=f'{{"pin": "{HUSH}"}}')
    if isinstance(value, i.ToolOutput):
        return value.replace(output=HUSH)
    return value.replace(content=(i.Text(HUSH),))


MARKED_FIELDS: dict[type, tuple[str, Any]] = {
    r.GuardrailSettled: ("info", HUSH),
    r.ApprovalRequested: ("arguments", f'{{"pin": "{HUSH}"}}'),
    r.VerdictGiven: ("arguments", f'{{"pin": "{HUSH}"}}'),
    r.CallStarted: ("arguments", f'{{"pin": "{HUSH}"}}'),
    r.BodyEnded: ("value", {"a": HUSH}),
    r.CallAnswered: ("value", {"a": HUSH}),
    r.CallSettled: ("arguments", f'{{"pin": "{HUSH}"}}'),
    r.CallbackReturned: ("answer", [HUSH]),
    r.RunEnded: ("final_output", HUSH),
}


@pytest.mark.parametrize("record", MARKED, ids=lambda record: type(record).__name__)
def test_no_text_shows_what_is_marked_secret(record: r.Record) -> None:
    """Whichever record or item has the mark, alone and among others."""
    if type(record) in MARKED_FIELDS and getattr(record, "secret", None):
        name, secret = MARKED_FIELDS[type(record)]
        record = record.replace(**{name: secret})
    elif isinstance(record, r.CallSettled):
        record = record.replace(outcome=record.outcome.replace(output=HUSH, custom_data={"a": HUSH}))
    elif isinstance(record, r.InputAdded):
        record = record.replace(items=(HELLO, hushed(record.items[1])))
    elif isinstance(record, r.ModelResponded) and not isinstance(record.response.items[0], i.ToolCall):
        record = record.replace(response=record.response.replace(items=(hushed(record.response.items[0]),)))
    for text in (record_to_line(record), records_to_array([STARTED, record], DIGESTS), encode(record_to_json(record))):
        assert HUSH.encode() not in text or b'"secret_output":true' in text
    back = record_from_line(record_to_line(record))
    assert record_to_line(back) == record_to_line(record)


def test_every_kind_that_may_be_secret_is_tried() -> None:
    """A new kind of record or item with such a mark has to be in the lists above."""
    kinds = {kind for kind in get_args(r.Record) if "secret" in kind.__struct_fields__}
    assert kinds <= {type(record) for record in MARKED}
    assert kinds == set(MARKED_FIELDS)
    marked = {kind for kind in get_args(i.Item) if "secret" in kind.__struct_fields__}
    assert marked == {type(item) for item in MARKED_ITEMS}


# -- the table


def test_every_class_of_the_log_says_what_is_secret() -> None:
    """Each record, each item, and each class that a field of these has."""
    for cls in (*get_args(r.Record), *get_args(i.Item), CallOutcome, ModelResponse, RequestUsage):
        assert cls in SECRETS
        flagged = "secret" in cls.__struct_fields__
        assert flagged == bool(SECRETS[cls].fields or SECRETS[cls].arguments), cls
        names = {*SECRETS[cls].fields, *SECRETS[cls].live, *(["arguments"] if SECRETS[cls].arguments else [])}
        assert names <= set(cls.__struct_fields__)


def test_a_kind_that_nobody_has_entered_is_refused() -> None:
    """It isn't written as it is: nobody has said what of it may be secret. So is a class that a record holds."""

    class PinGiven(r.BatchEnded, frozen=True, tag="pin_given", kw_only=True):
        pin: str

    class Wider(CallOutcome, frozen=True, kw_only=True):
        pin: str

    unknown: Any = PinGiven((), 1, 2.0, pin=HUSH)
    for write in (record_to_line, record_to_json, lambda record: records_to_array([STARTED, record], DIGESTS)):
        with pytest.raises(UserTypeError, match="expected a record of a kind that is stored, got PinGiven"):
            write(unknown)
    with pytest.raises(UserTypeError, match="got Wider, which isn't in SECRETS"):
        record_to_line(SETTLED.replace(outcome=Wider(status="succeeded", pin=HUSH)))
    written = {"kind": "pin_given", "path": [], "turn": 1, "at": 2.0, "pin": "x"}
    with pytest.raises(StateError, match=r"this version knows no record of that kind @ \$\.kind"):
        record_from_json(written)


@pytest.mark.parametrize("cls", [*get_args(r.Record), CallOutcome, ModelResponse, RequestUsage, *get_args(i.Item)])
def test_whatever_the_application_gives_is_written_by_the_codec_of_values(cls: Any) -> None:
    """Each field that may hold any value, or an object of JSON, is found by its type: a new one can't be forgotten."""
    hints = get_type_hints(cls)
    anything = {name for name in cls.__struct_fields__ if "Any" in str(hints[name])}
    known = {name for name, way in ways_of(cls).items() if way.store is not None and "Any" in str(hints[name])}
    assert anything - {"error"} == known - {"error"}


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
def test_what_no_record_writes_is_refused(line: bytes) -> None:
    """Text that is almost a record's isn't taken in one pass, and then the fault is named."""
    assert read_plain_line(line) is None
    with pytest.raises(StateError, match="Malformed"):
        record_from_line(line)


@pytest.mark.slow
@given(RECORDS, st.data())
@settings(max_examples=300)
def test_a_changed_text_is_read_alike_in_one_pass_and_opened(record: r.Record, data: st.DataObject) -> None:
    """Whatever the change, the one pass takes only what the opened text means, and else the same fault is named."""
    written = json.loads(json.dumps(record_to_json(record)))
    place = data.draw(st.sampled_from(list(places(written))))
    value = data.draw(st.sampled_from([None, True, -1, 0.5, 2.0, "x", "$", [], {}, {"$map": 1}, {"$digest": "x"}]))
    changes = [
        lambda parent, key: parent.__setitem__(key, value),
        lambda parent, key: parent.__delitem__(key),
        lambda parent, key: parent.update({"extra": value}) if isinstance(parent, dict) else parent.append(value),
    ]
    text = encode(changed(written, place, data.draw(st.sampled_from(changes))), None)
    results: list[Any] = []
    for read in (record_from_line, lambda text: record_from_json(decode(text))):
        try:
            results.append(record_to_line(read(text)))
        except StateError as refused:
            results.append(str(refused))
    assert results[0] == results[1]
    assert isinstance(results[0], bytes) or " @ $" in results[0]


def _state_of(records: list[r.Record], context: Any = None) -> str:
    stored = Stored(tuple(records), context, {"agents": {"a": {}}})
    return state_to_string(stored, DIGESTS, None, True)


def _read_state(data: Any) -> Stored:
    return state_from_json(
        data, context=None, context_deserializer=None, context_type=None, key=None, codec=None, converter=None
    )


@pytest.mark.parametrize("records", [PLAIN, [STARTED, UNUSUAL[0]], []], ids=["plain", "one unusual", "none"])
@pytest.mark.parametrize("context", [None, {"b": 1, "a": [2]}], ids=["without context", "with context"])
def test_a_state_is_read_alike_from_its_text_and_from_its_values(records: list[r.Record], context: Any) -> None:
    """In one pass, from values parsed before, and with keys in another order."""
    text = _state_of(records, context)
    read = _read_state(text_to_data(text))
    assert (read.context, read.graph) == (context, {"agents": {"a": {}}})
    assert _state_of(list(read.records), read.context) == text
    assert _read_state(json.loads(text)) == read
    assert _read_state(text_to_data(json.dumps(json.loads(text), sort_keys=True))) == read


@pytest.mark.parametrize("records", [(SETTLED,), ({"kind": "nothing"},), None, {}])
def test_values_of_a_caller_are_never_taken_for_records_that_were_read(records: Any) -> None:
    """Only what this module has read itself needs no check."""
    data = {**json.loads(_state_of([SETTLED])), "records": records}
    with pytest.raises(StateError, match=r"expected an array of records @ \$\.records"):
        _read_state(data)


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
