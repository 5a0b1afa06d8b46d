"""Records as JSON: every kind survives, what doesn't fit is named with its place, hostile data raises nothing else."""

import contextlib
import json
import math
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, get_args

import pytest
from core.record_strategies import BY_KIND, RECORDS, VALUES, WIDE
from hypothesis import given, settings
from hypothesis import strategies as st

from agentloop import items as i
from agentloop import records as r
from agentloop._storage import record_codec as codec
from agentloop._storage.record_codec import decode, encode, record_from_json, record_to_json, upgrade, upgrade_record
from agentloop._storage.stored_forms import KINDS
from agentloop._storage.withholding import Secrets
from agentloop.exceptions import StateError, UserTypeError
from agentloop.model_events import ModelResponse
from agentloop.outcomes import CallOutcome
from agentloop.usage import RequestUsage


class Reversing:
    """A codec that anybody could open; it tells seal from open."""

    def seal(self, data: bytes) -> bytes:
        """Return the bytes backwards, after a mark."""
        return b"sealed:" + data[::-1]

    def open(self, sealed: bytes) -> bytes:
        """Return what was sealed."""
        if not sealed.startswith(b"sealed:"):
            raise ValueError("hush")
        return sealed.removeprefix(b"sealed:")[::-1]


SEALED = Secrets(Reversing())
HERE: tuple[tuple[str, ...], int, float] = (("c0",), 2, 1764.5)
SETTLED = r.CallSettled(*HERE, "c1", "weather", CallOutcome(status="succeeded", output="sunny"))


def refusal(data: Any, **options: Any) -> str:
    """Return the message that refuses *data*."""
    with pytest.raises(StateError) as caught:
        record_from_json(data, **options)
    return str(caught.value)


def places(data: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Give the place of every node below *data*."""
    if at:
        yield at
    members = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, member in members:
        yield from places(member, (*at, key))


def changed(data: Any, place: tuple[Any, ...], change: Any) -> Any:
    """Return a copy of *data* with the node at *place* changed by *change*, a function of its parent and key."""
    copy = json.loads(json.dumps(data))
    parent = copy
    for key in place[:-1]:
        parent = parent[key]
    change(parent, place[-1])
    return copy


# -- the way there and back


@pytest.mark.parametrize("kind", list(BY_KIND), ids=lambda cls: cls.__name__)
def test_a_record_of_every_kind_survives_json_text(kind: type) -> None:
    """Writing and reading gives an equal record, in bytes as well, and writing that again gives the same bytes."""

    @given(BY_KIND[kind])
    @settings(max_examples=40)
    def check(record: r.Record) -> None:
        written = record_to_json(record, SEALED)
        assert record_from_json(written, secrets=SEALED) == record
        text = encode(written)
        back = record_from_json(decode(text), secrets=SEALED)
        assert type(back) is type(record)
        assert encode(record_to_json(back, SEALED)) == text
        digests = encode(record_to_json(record))
        assert encode(record_to_json(record_from_json(decode(digests)))) == digests
        assert encode(record_to_json(back)) == digests

    check()


def test_the_strategies_and_the_table_know_every_kind() -> None:
    """A new kind of record can't escape the codec or its tests."""
    assert set(BY_KIND) == set(KINDS) == set(get_args(r.Record))
    assert len(set(KINDS.values())) == len(KINDS)


def test_no_field_of_a_record_is_called_like_its_kind() -> None:
    """The key `kind` names the kind of record, so no field can have it."""
    assert not [cls.__name__ for cls in BY_KIND if "kind" in cls.__struct_fields__]


def test_the_form_is_an_object_with_its_kind_and_what_differs_from_defaults() -> None:
    """The written form is fixed: states and journals outlive a version."""
    assert record_to_json(SETTLED) == {
        "kind": "call_settled",
        "path": ["c0"],
        "turn": 2,
        "at": 1764.5,
        "call_id": "c1",
        "tool": "weather",
        "outcome": {"status": "succeeded", "output": "sunny"},
    }
    usage = RequestUsage(input_tokens=3, raw={"prompt_tokens": 3})
    response = ModelResponse((i.ToolCall("c1", "f", '{"a":1}'),), usage, "r1")
    assert record_to_json(r.ModelResponded((), 1, 0.0, response))["response"] == {
        "items": [{"type": "tool_call", "call_id": "c1", "name": "f", "arguments": '{"a":1}'}],
        "usage": {"input_tokens": 3, "raw": {"prompt_tokens": 3}},
        "response_id": "r1",
    }


def test_what_lives_in_this_process_only_is_left_out() -> None:
    """Live objects of a call and of a guardrail never enter JSON, nor can JSON bring them in."""
    outcome = CallOutcome(status="failed", output="x", value=object(), error=ValueError("boom"), custom_data={1: (2,)})
    written = record_to_json(SETTLED.replace(outcome=outcome))
    assert written["outcome"] == {"status": "failed", "output": "x", "custom_data": {"$map": [[1, [2]]]}}
    back = record_from_json(written)
    assert isinstance(back, r.CallSettled)
    assert (back.outcome.value, back.outcome.error, back.outcome.custom_data) == (None, None, {1: [2]})
    judged = r.GuardrailSettled(*HERE, "input", "g", "allow", 0.5, info={"why": b"x"}, result=object())
    assert record_to_json(judged)["info"] == {"why": {"$bytes": "eA=="}}
    assert "result" not in record_to_json(judged)
    for field in ("value", "error"):
        assert "unknown" in refusal(changed(written, ("outcome", field), lambda parent, key: parent.update({key: 1})))


def test_usage_keeps_what_the_provider_said() -> None:
    """The raw usage takes no part in equality; it must survive all the same."""
    raw = {"prompt_tokens": 3, "details": {"cached": [1, None], "$x": 1.5}}
    record = r.ModelFailed(*HERE, "cut", usage=RequestUsage(raw=raw, complete=False))
    back = record_from_json(decode(encode(record_to_json(record))))
    assert isinstance(back, r.ModelFailed)
    assert back.usage is not None
    assert back.usage.raw == raw


def test_numbers_beyond_json_survive() -> None:
    """Infinite durations and counts beyond 64 bits are written so that every reader of JSON keeps them."""
    record = r.GuardrailSettled((), 10**5_000, math.inf, "input", "g", "allow", -math.inf, index=-(2**70))
    assert record_from_json(decode(encode(record_to_json(record)))) == record


def test_a_value_that_is_no_record_is_refused() -> None:
    """A wrong value is a fault of the caller's, named by its type."""

    class Custom(r.BatchEnded):
        pass

    for value in ("text", None, Custom((), 1, 0.0)):
        with pytest.raises(
            UserTypeError, match=f"expected a record of a kind that is stored, got {type(value).__name__}"
        ):
            record_to_json(value)  # type: ignore[arg-type]


# -- what doesn't fit


def test_what_does_not_fit_is_named_with_its_place() -> None:
    """The message tells where, below the path the caller gives, and never quotes a value."""
    good = record_to_json(SETTLED)
    for place, value, message in [
        (("kind",), "call_unsettled", "knows no record of that kind @ $.records[3].kind"),
        (("kind",), ["call_settled"], "expected str, got list @ $.records[3].kind"),
        (("path",), "c0", "expected array, got str @ $.records[3].path"),
        (("path", 0), 5, "expected str, got int @ $.records[3].path[0]"),
        (("turn",), True, "expected int, got bool @ $.records[3].turn"),
        (("turn",), 2.0, "expected int, got float @ $.records[3].turn"),
        (("at",), "soon", "expected float, got str @ $.records[3].at"),
        (("at",), math.nan, "@ $.records[3].at"),
        (("outcome",), [], "expected object, got list @ $.records[3].outcome"),
        (("outcome", "status"), "done", "this one isn't known here @ $.records[3].outcome.status"),
        (("outcome", "body_finished"), 1, "expected bool, got int @ $.records[3].outcome.body_finished"),
        (("outcome", "cancelled_by"), "me", "@ $.records[3].outcome.cancelled_by"),
        (("outcome", "custom_data"), {"$pickle": "x"}, "@ $.records[3].outcome.custom_data"),
        (("attempts",), 1, "unknown field attempts @ $.records[3]"),
    ]:

        def put(parent: Any, key: Any, value: Any = value) -> None:
            parent[key] = value

        assert refusal(changed(good, place, put), path="$.records[3]").endswith(message)
    assert "@ $.records[3]" in refusal({**good, "at": 10**400}, path="$.records[3]")  # older msgspecs don't say which
    assert refusal({k: v for k, v in good.items() if k != "call_id"}) == (
        "Malformed record: missing required field call_id @ $"
    )
    assert refusal({}).endswith("missing @ $.kind")
    assert refusal(5).endswith("expected object, got int @ $")
    responded = record_to_json(r.ModelResponded((), 1, 0.0, ModelResponse((i.ToolCall("c", "f"),))))
    bad = changed(responded, ("response", "items", 0, "name"), lambda parent, key: parent.update({key: 5}))
    assert refusal(bad).endswith("expected str, got int @ $.response.items[0].name")


def test_the_first_of_several_faults_is_named() -> None:
    """A hostile record makes no long message, and its texts stay out of it."""
    bad = {"kind": "call_settled", "path": 1, "turn": "hush", "at": "hush", "call_id": 4, "tool": None, "outcome": {}}
    assert refusal(bad) == "Malformed record: expected array, got int @ $.path"
    assert refusal(bad | {"path": []}) == "Malformed record: expected int, got str @ $.turn"
    assert len(refusal({"kind": "batch_ended", "path": [], "turn": 1, "at": 1.0, "x" * 9_000: 1})) <= 600


@pytest.mark.slow
@given(RECORDS, st.data())
@settings(max_examples=300)
def test_a_changed_record_is_refused_or_means_what_it_says(record: r.Record, data: st.DataObject) -> None:
    """A record with a node replaced, removed or added raises a `StateError`, or survives the way there and back."""
    written = json.loads(json.dumps(record_to_json(record)))
    place = data.draw(st.sampled_from(list(places(written))))
    value = data.draw(
        st.sampled_from([None, True, -1, 0.5, math.nan, 10**400, "x", "$", [], {}, [[]], {"$map": 1}, {"": 0}])
    )

    def replace(parent: Any, key: Any) -> None:
        parent[key] = value

    def remove(parent: Any, key: Any) -> None:
        del parent[key]

    def add(parent: Any, key: Any) -> None:
        parent.update({"$extra": value}) if isinstance(parent, dict) else parent.append(value)

    mutant = changed(written, place, data.draw(st.sampled_from([replace, remove, add])))
    try:
        read = record_from_json(mutant)
    except StateError:
        assert " @ $" in refusal(mutant)
        assert len(refusal(mutant)) < 1_200
        return
    again = record_to_json(read)
    assert encode(record_to_json(record_from_json(again))) == encode(again)


@pytest.mark.slow
@given(RECORDS, VALUES | WIDE, st.data())
def test_python_values_in_place_of_json_are_refused_too(record: r.Record, value: Any, data: st.DataObject) -> None:
    """Data that never was JSON text is refused: objects, keys that are no texts, bytes."""
    written = json.loads(json.dumps(record_to_json(record)))
    place = data.draw(st.sampled_from(list(places(written))))
    copy = changed(written, place, lambda parent, key: parent.__setitem__(key, value))
    try:
        record_to_json(record_from_json(copy))
    except StateError:
        assert " @ $" in refusal(copy)


def test_deep_nesting_is_refused_wherever_it_stands() -> None:
    """Hostile depth is a fault of the data, not the end of the stack."""
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    written = record_to_json(r.BodyEnded(*HERE, "c1", value=1, kept=True))
    assert refusal(written | {"value": deep}).count("nested too deeply @ $.value[0]") == 1
    for field in ("path", "turn", "call_id", "kind"):
        assert "Malformed record" in refusal(written | {field: deep})
    with pytest.raises(StateError, match="nested too deeply"):
        decode(b"[" * 100_000)
    with pytest.raises(StateError, match="Not a value of JSON: RecursionError"):
        encode(deep)


# -- bytes


def test_the_bytes_are_canonical() -> None:
    """Keys are sorted, blanks left out, text is UTF-8: equal values have one text."""
    assert encode({"b": [1, 1.5, None, True], "a": "é"}) == '{"a":"é","b":[1,1.5,null,true]}'.encode()
    assert encode({"x": "\ud800"}) == b'{"x":"\\ud800"}'
    assert decode(encode({"x": "a\udc00"})) == {"x": "a\udc00"}


@pytest.mark.parametrize("value", [math.nan, math.inf, [None, math.nan], {"a": -math.inf}, object()])
def test_what_json_has_not_is_not_encoded(value: Any) -> None:
    """NaN never becomes null behind the caller's back."""
    with pytest.raises(StateError, match="Not a value of JSON"):
        encode(value)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "Malformed JSON"),
        (b"{", "Malformed JSON"),
        (b'{"hush":1,"hush":2}', "a key stands twice"),
        (b"NaN", "NaN isn't JSON"),
        (b"[-Infinity]", "-Infinity isn't JSON"),
        (b"1e999", "beyond the range of a float"),
        (b"1" * 5_000, "Malformed JSON"),
        (b'"\xff"', "Malformed JSON"),
        (b"\xef\xbb\xbf{}", "Malformed JSON"),
        (b"{} {}", "Malformed JSON"),
    ],
)
def test_bytes_that_are_no_json_are_refused(data: bytes, message: str) -> None:
    """The bytes raise a typed error that quotes nothing."""
    with pytest.raises(StateError, match=message) as caught:
        decode(data)
    assert "hush" not in str(caught.value)


def test_json_written_by_hand_is_read() -> None:
    """Blanks, order and escapes are free; only what is written here is canonical."""
    assert decode(b' { "b" : [1.0, 1e3], "a":"\\u00e9\\ud83d\\ude00" }\n') == {"b": [1.0, 1e3], "a": "é😀"}
    assert decode(b"123456789012345678901234567890") == 123456789012345678901234567890


@given(RECORDS, st.integers(0, 10_000), st.integers(0, 255))
def test_flipped_bytes_raise_nothing_but_state_errors(record: r.Record, at: int, value: int) -> None:
    """A record with one changed byte is refused, or is another well-formed record."""
    text = bytearray(encode(record_to_json(record)))
    text[at % len(text)] = value
    with contextlib.suppress(StateError):
        record_from_json(decode(bytes(text)))


# -- versions


def test_data_of_this_version_passes_unchanged() -> None:
    """The chain of upgrades is empty for what is written today, and the data given stays as it is."""
    data = {"schema": codec.SCHEMA_VERSION, "records": [1]}
    assert upgrade(data) == data
    assert upgrade(data) is not data
    assert codec.SCHEMA_VERSION in codec.SUPPORTED


@pytest.mark.scenario("RS-02")
@pytest.mark.parametrize("version", [None, "0", "99", 1, True, [], {"a": 1}, "1 ", "hush" * 50, "\ud800"])
def test_an_unknown_version_is_refused_with_what_is_supported(version: Any) -> None:
    """The data is neither guessed at nor read as if it were of today's version."""
    data = {} if version is None else {"schema": version}
    with pytest.raises(StateError, match="supported: 1") as caught:
        upgrade(data)
    assert "hush" not in str(caught.value)


def test_older_data_goes_through_every_upgrade_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step brings its records one version on; the data given isn't touched."""
    steps = {
        "a": lambda record: {**record, "trail": "a"},
        "b": lambda record: None if record.get("gone") else {**record, "trail": record["trail"] + "b"},
    }
    monkeypatch.setattr(codec, "UPGRADES", steps)
    monkeypatch.setattr(codec, "SUPPORTED", (*steps, codec.SCHEMA_VERSION))
    old = {"schema": "a", "records": [{"n": 1}, {"gone": True}]}
    assert upgrade(old) == {"schema": codec.SCHEMA_VERSION, "records": [{"n": 1, "trail": "ab"}]}
    assert old == {"schema": "a", "records": [{"n": 1}, {"gone": True}]}
    assert upgrade_record({"trail": ""}, "b") == {"trail": "b"}


def test_a_record_of_schema_1_is_read_as_one_of_today() -> None:
    """The start says in which schema the log began, and records that follow from others are left out."""
    begun = record_to_json(r.RunStarted((), 0, 0.0, "run", "guide", (), None))
    assert upgrade_record(begun, "1") == {**begun, "schema": "1"}
    released = {"kind": "item_released", "path": [], "turn": 1, "at": 0.0, "call_id": "c1"}
    assert upgrade_record(released, "1") is None
    ended = record_to_json(r.BatchEnded(*HERE))
    assert upgrade_record(ended, "1") == ended == upgrade_record(ended, codec.SCHEMA_VERSION)
    assert upgrade({"schema": "1", "records": [begun, released, 3]})["records"] == [{**begun, "schema": "1"}, 3]
    assert upgrade({"schema": "1", "records": 3})["records"] == 3


def test_the_codec_is_not_imported_before_it_is_needed() -> None:
    """A run that stores nothing doesn't pay for it."""
    program = "import agentloop, sys; print([m for m in sys.modules if m.endswith(('record_codec', 'value_codec'))])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
