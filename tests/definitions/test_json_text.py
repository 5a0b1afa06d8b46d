"""JSON text that a model wrote: what is taken, what is refused and how it is said, and the canonical form."""

import json
import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentloop._common.strict_json import read_strict
from agentloop._schema.json_text import canonical, canonical_arguments, parse_object, quote
from agentloop.exceptions import ModelBehaviorError
from agentloop.settings import JsonLimits

LIMITS = JsonLimits()
UNLIMITED = JsonLimits(max_bytes=None, max_depth=None, max_digits=None)

SURROGATE_FREE = st.text(st.characters(exclude_categories=["Cs"]))
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | SURROGATE_FREE,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(SURROGATE_FREE, inner, max_size=4),
    max_leaves=12,
)
JSON_OBJECTS = st.dictionaries(SURROGATE_FREE, JSON_VALUES, max_size=5)


def refusal(text: str, limits: JsonLimits = LIMITS) -> str:
    """Return the message that refuses *text*."""
    with pytest.raises(ModelBehaviorError) as caught:
        parse_object(text, limits, tool="t")
    return str(caught.value)


def shuffled(value: Any) -> Any:
    """Return *value* with the keys of every object in reverse order."""
    match value:
        case dict():
            return {key: shuffled(value[key]) for key in reversed(value)}
        case list():
            return [shuffled(member) for member in value]
    return value


FLAT_VALUES = (
    st.none() | st.booleans() | st.integers() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text()
)
NUMBERS = st.from_regex(r"-?(0|[1-9][0-9]{0,25})(\.[0-9]{1,25})?([eE][+-]?[0-9]{1,3})?", fullmatch=True)
ESCAPES = st.lists(st.sampled_from([r"\ud83d", r"\ude00", r"\u0000", r"\n", r"\/", r"\x", ",", "{", "a", "\x01"])).map(
    lambda parts: f'"{"".join(parts)}"'
)
MEMBERS = st.tuples(
    st.sampled_from(["a", "b", "a,b", r"\u0061"]), NUMBERS | ESCAPES | FLAT_VALUES.map(json.dumps) | st.just("NaN")
)


@given(st.lists(MEMBERS, max_size=4), st.sampled_from(["", " ", "\n"]))
@example([("a", "1"), ("a", "2")], "")
@example([("a", "1"), (r"\u0061", "2")], "")
def test_flat_objects_are_read_as_any_others(members: list[tuple[str, str]], blank: str) -> None:
    """Short flat objects have a faster reader: in an array each is read as alone, or is refused as alone."""
    text = "{" + f",{blank}".join(f'"{key}":{blank}{value}' for key, value in members) + "}"

    def read(text: str) -> tuple[str, str]:
        try:
            return "value", repr(read_strict(text))
        except ValueError as refused:
            return type(refused).__name__, getattr(refused, "reason", "")

    kind, value = read(f"[{text}]")
    assert read(text) == (kind, value[1:-1] if kind == "value" else value)


@pytest.mark.parametrize("text", ["", " ", "\n\t "])
def test_blank_text_means_no_arguments(text: str) -> None:
    """Models send an empty string for a tool without parameters."""
    assert parse_object(text, LIMITS, tool="t") == {}


@pytest.mark.slow
@given(JSON_OBJECTS)
def test_an_object_comes_back_as_it_was_written(value: dict[str, Any]) -> None:
    """Text that json writes, indented or not, is parsed to the same value of the same types."""
    for text in (json.dumps(value), json.dumps(value, indent=2, ensure_ascii=False)):
        assert repr(parse_object(text, LIMITS, tool="t")) == repr(value)


@given(st.text() | st.text('{}[]":,0123456789.eE+-\\u dD8aNInfity\n', max_size=60))
def test_whatever_the_text_nothing_but_a_model_error_is_raised(text: str) -> None:
    """Any text gives an object that can be encoded, or a ModelBehaviorError that can be."""
    for limits in (LIMITS, UNLIMITED, JsonLimits(max_bytes=20, max_depth=2, max_digits=3)):
        message = ""
        try:
            json.dumps(parse_object(text, limits, tool="t"), ensure_ascii=False).encode()
        except ModelBehaviorError as error:
            message = str(error)
        assert len(message) <= 300
        message.encode()


@pytest.mark.parametrize(
    ("text", "place"),
    [("{", 2), ("no", 1), ('{"a":1} x', 9), ("{'a': 1}", 2), ('{"a":01}', 7), ("nan", 1), ('{"a": "\0"}', 8)],
)
def test_text_that_is_not_json_is_quoted_with_the_place(text: str, place: int) -> None:
    """The message says where, why, and quotes a short text whole."""
    said = refusal(text)
    assert said.startswith(f"Arguments of tool t aren't valid JSON: at character {place}, ")
    assert said.endswith(f": {quote(text)}")


@pytest.mark.slow
@given(JSON_OBJECTS)
def test_arguments_that_were_written_as_json_in_json_are_read(value: dict[str, Any]) -> None:
    """Once, and not where the setting is off."""
    twice = json.dumps(json.dumps(value))
    assert parse_object(twice, LIMITS, tool="t") == parse_object(json.dumps(value), LIMITS, tool="t")
    assert "not a string" in refusal(json.dumps(twice))
    assert "not a string" in refusal(twice, JsonLimits(read_strings=False))


def test_a_text_in_json_that_is_no_object_is_refused() -> None:
    """With the place in the inner text if it looks like an object."""
    assert "not a string" in refusal('"find"')
    assert "at character" in refusal(json.dumps('{"a": 1'))


def test_of_a_long_text_the_words_around_the_place_are_quoted() -> None:
    """The first characters of a long text are mostly fine, so they'd say nothing."""
    text = '{"a": [' + "1, " * 2_000 + "x" + ", 2" * 2_000 + "]}"
    said = refusal(text)
    assert f"at character {text.index('x') + 1}, " in said
    assert "1, 1, x, 2, 2" in said
    assert len(said) < 400


@pytest.mark.parametrize("text", ['{"a": "b\nc"}', '{"a": "b\r\n\tc"}', '\ufeff{"a": 1}', '\ufeff{"a": "\n"}'])
def test_line_breaks_in_strings_and_a_byte_order_mark_are_read(text: str) -> None:
    """They have one meaning only, and models write them often."""
    assert parse_object(text, LIMITS, tool="t") == json.loads(text.removeprefix("\ufeff"), strict=False)


@pytest.mark.scenario("LX-15")
def test_the_quote_of_bad_json_is_the_raw_text() -> None:
    """Plain text is quoted unchanged in single quotes."""
    assert refusal('{"x": 1,').endswith(": '{\"x\": 1,'")


@pytest.mark.parametrize(
    ("text", "kind"),
    [("[1]", "an array"), ('"s"', "a string"), ("true", "a boolean"), ("1", "a number"), ("1.5", "a number"),
     ("null", "null")],
)  # fmt: skip
def test_json_that_is_no_object_is_refused_by_its_kind(text: str, kind: str) -> None:
    """The message names the tool, what is needed and what came."""
    assert refusal(text) == f"Arguments of tool t must be a JSON object, not {kind}: '{text}'"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "'plain'"),
        ("it's", "'it's'"),
        ("both ' and \"", "'both \\' and \"'"),
        ("two\nlines", "'two\\nlines'"),
        ("\ud800", "'\\ud800'"),
        ("a" * 200, f"'{'a' * 200}'"),
        ("a" * 201, f"'{'a' * 199}…'"),
        ("\n" * 150, "'" + "\\n" * 99 + "\\…'"),
    ],
)
def test_a_quote_is_one_bounded_line(text: str, expected: str) -> None:
    """The quote has single quotes, escapes for what would break a line, and at most 200 characters inside."""
    assert quote(text) == expected


def test_size_is_measured_in_bytes() -> None:
    """An umlaut counts two bytes, as it travels."""
    limits = JsonLimits(max_bytes=12)
    assert parse_object('{"a":"xxxx"}', limits, tool="t") == {"a": "xxxx"}
    message = refusal('{"a":"xxxü"}', limits)
    assert message == "Arguments of tool t are too large (13 bytes, the limit is 12)"


def test_depth_counts_arrays_and_objects_alike() -> None:
    """The limit itself is allowed; brackets in strings don't nest."""
    limits = JsonLimits(max_depth=3)
    assert parse_object('{"a":[{"b":"[[[{{{\\"[["}],"c":[[]]}', limits, tool="t") == {
        "a": [{"b": '[[[{{{"[['}],
        "c": [[]],
    }
    assert refusal('{"a":[{"b":[]}]}', limits) == "Arguments of tool t are nested too deeply (the limit is 3 levels)"


def depth_of(value: Any) -> int:
    """Return how many levels of arrays and objects *value* has."""
    members = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if members is None else 1 + max(map(depth_of, members), default=0)


def most_digits(value: Any) -> int:
    """Return the number of digits of the longest number in *value*."""
    if isinstance(value, dict | list):
        return max(map(most_digits, value.values() if isinstance(value, dict) else value), default=0)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return sum(map(str.isdigit, json.dumps(value))) if is_number else 0


@pytest.mark.slow
@given(JSON_OBJECTS, st.integers(1, 6), st.integers(1, 12))
def test_limits_refuse_what_is_beyond_them_and_nothing_else(value: dict[str, Any], depth: int, digits: int) -> None:
    """The limits hold for any content of strings and any layout of the text."""
    for text in (json.dumps(value), json.dumps(value, indent=2, ensure_ascii=False)):
        for limits, refused in (
            (JsonLimits(max_depth=depth), depth_of(value) > depth),
            (JsonLimits(max_digits=digits), most_digits(value) > digits),
        ):
            if refused:
                refusal(text, limits)
            else:
                assert parse_object(text, limits, tool="t") == value


@pytest.mark.parametrize("limits", [LIMITS, UNLIMITED])
@pytest.mark.parametrize("opener", ["[", '{"a":'])
def test_nesting_beyond_the_interpreter_is_refused_not_crashed(opener: str, limits: JsonLimits) -> None:
    """A hundred thousand levels are a message, with and without a limit of ours."""
    assert "nested too deeply" in refusal(opener * 100_000, limits)


@pytest.mark.parametrize("number", ["1" * 11, "-" + "1" * 11, "0." + "1" * 10, "1" * 10 + "e1"])
def test_digits_of_one_number_are_counted(number: str) -> None:
    """Digits of the fraction and of the exponent count too, those of other numbers and of strings don't."""
    limits = JsonLimits(max_digits=10)
    fine = '{"a":[1111111111,-222222222.2],"b":"123456789012345"}'
    assert parse_object(fine, limits, tool="t")["a"] == [1111111111, -222222222.2]
    wanted = "Arguments of tool t hold a number with too many digits (the limit is 10)"
    assert refusal(f'{{"a":{number}}}', limits) == wanted


def test_a_number_longer_than_the_interpreter_takes_is_refused() -> None:
    """Python's own guard against quadratic conversion becomes a message where no limit of ours is set."""
    message = refusal(f'{{"a":{"1" * 100_000}}}', JsonLimits(max_digits=None))
    assert message == "Arguments of tool t hold a number with too many digits"


@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity"])
def test_literals_that_json_does_not_have_are_refused(literal: str) -> None:
    """Python's json would take them."""
    assert refusal(f'{{"a":[{literal}]}}') == f"Arguments of tool t hold {literal}, which isn't JSON"


def test_a_float_that_would_become_infinite_is_refused() -> None:
    """1e999 is JSON, and no float."""
    assert refusal('{"a":-1e999}') == "Arguments of tool t hold a number beyond the range of a float"


@pytest.mark.parametrize("text", ['{"k":1,"k":1}', '{"a":[{"b":{"x":1,"k":1,"k":2}}]}', '{"k":1,"\\u006b":2}'])
def test_a_repeated_key_is_refused_at_any_depth(text: str) -> None:
    """The reader can't know which of the two values was meant."""
    assert refusal(text) == "Arguments of tool t repeat the key 'k'"


def test_a_lone_surrogate_is_replaced_and_a_pair_is_kept() -> None:
    """Half an emoji can't be sent anywhere; a whole one, escaped or not, is text."""
    text = '{"a\\ud800":["\\ude00","\\ud83d\\ude00",1,{"b":"\ud83d\ude00\udfff"}]}'
    assert parse_object(text, LIMITS, tool="t") == {"a\ufffd": ["\ufffd", "😀", 1, {"b": "😀\ufffd"}]}


def test_keys_that_mending_makes_equal_are_repeated_keys() -> None:
    """Two broken keys must not silently become one."""
    assert refusal('{"\\ud800":1,"\\ud801":2}') == "Arguments of tool t repeat the key '\ufffd'"


@pytest.mark.parametrize("limits", [JsonLimits(max_depth=1), JsonLimits(max_digits=1)])
@pytest.mark.parametrize("text", ['"' + '\\"' * 200_000, '{"a":"' + "\\" * 200_001, "[" + '"' * 400_001])
def test_an_unterminated_string_is_scanned_in_linear_time(text: str, limits: JsonLimits) -> None:
    """Restarting at every quote inside it would take hours; the suite's timeout is the assertion."""
    assert "aren't valid JSON" in refusal(text, limits)


@given(JSON_VALUES)
def test_canonical_text_does_not_depend_on_key_order(value: Any) -> None:
    """Any order of keys gives one text, which parses to the value."""
    text = canonical(value)
    assert text == canonical(shuffled(value))
    assert text.isascii()
    assert repr(json.loads(text)) == repr(json.loads(json.dumps(value, sort_keys=True)))


def test_canonical_keeps_json_values_apart_that_python_calls_equal() -> None:
    """1, 1.0 and true are three values, a null is not an absent key."""
    texts = {canonical(value) for value in (1, 1.0, True, {"a": 1}, {"a": 1.0}, {"a": 1, "b": None})}
    assert texts == {"1", "1.0", "true", '{"a":1}', '{"a":1.0}', '{"a":1,"b":null}'}


@pytest.mark.parametrize("value", [math.nan, math.inf, object(), {1, 2}])
def test_canonical_refuses_what_json_does_not_have(value: object) -> None:
    """A value that has no JSON text is the caller's mistake."""
    with pytest.raises((ValueError, TypeError)):
        canonical(value)


@pytest.mark.scenario("PL-07")
def test_arguments_that_differ_in_order_and_blanks_only_are_the_same() -> None:
    """Identity looks through formatting; an explicit null stays significant."""
    assert canonical_arguments(' { "b":1,\n"a":[1, 2]}', LIMITS) == canonical_arguments('{"a":[1,2],"b":1}', LIMITS)
    assert canonical_arguments('{"a":null}', LIMITS) != canonical_arguments("{}", LIMITS)
    assert canonical_arguments("", LIMITS) == canonical_arguments("{}", LIMITS) == "{}"


@pytest.mark.parametrize("text", ["{", "raw:{", '{"a":1,"a":1}', '{"a":NaN}', "[" * 100_000])
def test_refused_arguments_are_their_own_identity(text: str) -> None:
    """Malformed text has an identity too, never that of another text."""
    assert canonical_arguments(text, LIMITS) == f"raw:{text}"


def test_the_identity_of_malformed_text_can_be_encoded() -> None:
    """A lone surrogate in it is escaped, under a prefix of its own."""
    assert canonical_arguments("{\ud800", LIMITS) == 'rawx:"{\\ud800"'


@given(st.text(), st.text())
def test_different_malformed_texts_have_different_identities(one: str, other: str) -> None:
    """Equal identity means equal text or equal value."""
    texts = ["{" + one, "{" + other]
    identities = [canonical_arguments(text, LIMITS) for text in texts]
    assert (identities[0] == identities[1]) == (one == other) or identities[0].startswith("{")
    for identity in identities:
        identity.encode()
