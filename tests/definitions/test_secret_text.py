"""Secrets in texts: found in a call's arguments whatever the JSON, and kept out of messages however they got in."""

import json
import time
from typing import Any

import pytest
from definitions.item_strategies import JSON_VALUES
from hypothesis import given
from hypothesis import strategies as st

from agentloop.items import ToolCall, ToolOutput
from agentloop.secret_text import MASK, masked_arguments, scrubbed, secret_texts, spans_of

PASSWORD = "hunter2 é\"quote'\\slash\nline😀"


@given(st.dictionaries(st.text(max_size=5), JSON_VALUES, max_size=4), st.sampled_from([None, 1, "\t"]))
def test_every_value_of_an_object_is_found_in_its_text(given_object: dict[str, Any], indent: Any) -> None:
    """By its decoded key, with blanks or without."""
    for ascii_only in (True, False):
        text = json.dumps(given_object, indent=indent, ensure_ascii=ascii_only)
        spans = spans_of(text)
        assert spans is not None
        assert {span.key: json.loads(text[span.start : span.end]) for span in spans} == given_object


@given(st.text(alphabet='{}[]":,\\ au0', max_size=30))
def test_a_text_that_is_no_object_is_told(text: str) -> None:
    """Just as the parser of the standard library tells."""
    try:
        parsed = json.loads(text)
    except ValueError:
        parsed = None
    assert (spans_of(text) is not None) == isinstance(parsed, dict)


def test_deep_nesting_is_no_object_rather_than_an_error() -> None:
    """Hostile depth counts as text that doesn't parse."""
    assert spans_of('{"a":' * 100_000) is None
    assert masked_arguments('{"a":' + "[" * 100_000, ("b",)) == MASK


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ('{"a": 1, "p": "x", "b": [2]}', '{"a": 1, "p": "[secret]", "b": [2]}'),
        ('{"p":{"deep":[1]},"p":2}', '{"p":"[secret]","p":"[secret]"}'),
        ('{"\\u0070" : 5}', '{"\\u0070" : "[secret]"}'),
        ('{"a": 1}', '{"a": 1}'),
        ('{"p": "x"', MASK),
        ('["x"]', MASK),
        ("", ""),
        ("  ", "  "),
        ("{}", "{}"),
    ],
)
def test_arguments_are_masked_where_they_stand(text: str, masked: str) -> None:
    """The rest of the text stays as the model wrote it; what doesn't parse is masked whole."""
    assert masked_arguments(text, ("p",)) == masked
    assert masked_arguments(text, ()) == text


def escaped(text: str, times: int, how: Any) -> str:
    """Return *text* as it looks inside a literal inside a literal …"""
    for _ in range(times):
        text = how(text)
    return text


@pytest.mark.parametrize("times", [0, 1, 2, 3])
@pytest.mark.parametrize("how", [repr, ascii, json.dumps, lambda text: json.dumps(text, ensure_ascii=False)])
def test_a_secret_is_scrubbed_however_it_was_escaped(times: int, how: Any) -> None:
    """Messages quote values as Python or JSON, and messages are quoted again."""
    message = f"bad value {escaped(PASSWORD, times, how)} for ann"
    found = scrubbed(message, secret_texts(json.dumps({"p": PASSWORD}), ("p",)))
    assert MASK in found
    for sign in ("hunter", "quote", "slash", "line"):
        assert sign not in found
    assert found.startswith("bad value")
    assert found.endswith("for ann")


@given(
    st.text(min_size=1, max_size=30),
    st.text(max_size=20),
    st.text(max_size=20),
    st.sampled_from([str, repr, json.dumps]),
)
def test_no_secret_text_survives(secret: str, before: str, after: str, how: Any) -> None:
    """Whatever it is and whatever stands around it."""
    texts = secret_texts(json.dumps({"p": secret}), ("p",))
    found = scrubbed(f"{before}{how(secret)}{after}", texts)
    if secret not in MASK and secret.strip():
        assert secret not in found.replace(MASK, "\0")


@pytest.mark.parametrize(
    "message",
    [
        "input_value='abcdefgh...stuvwxyz'",
        "value 'abcdefghijkl…",
        "cut: 'abcde…'",
        "end: …uvwxyz0123456789",
    ],
)
def test_a_piece_of_a_secret_is_scrubbed_too(message: str) -> None:
    """Validators shorten what they quote."""
    found = scrubbed(message, ("abcdefghijklmnopqrstuvwxyz0123456789", "lmnopqrstuvwxyz"))
    assert MASK in found
    assert not any(piece in found for piece in ("abc", "xyz", "789"))


def test_numbers_lists_and_short_values_are_secrets_too() -> None:
    """A value that is too short to be told from other text takes the message with it; true and null say nothing."""
    text = json.dumps({"p": {"pin": 123456, "more": ["top-secret", True, None, 7.25]}})
    texts = secret_texts(text, ("p",))
    assert scrubbed("123456 and 7.25 and top-secret and True", texts) == f"{MASK} and {MASK} and {MASK} and True"
    assert scrubbed("the code is x7", secret_texts('{"p": "x7"}', ("p",))) == MASK
    assert scrubbed("nothing here", secret_texts('{"p": "x7"}', ("p",))) == "nothing here"
    assert secret_texts('{"p": ""}', ("p",)) == ()


def test_arguments_that_do_not_parse_are_all_secret() -> None:
    """Nobody knows where in them the value is."""
    text = '{"user": "ann", "p": "hunter2'
    assert scrubbed(f"can't read {text!r} at all", secret_texts(text, ("p",))) == f"can't read '{MASK}' at all"


def test_hostile_secrets_cost_little() -> None:
    """Neither many values nor runs of backslashes make an error slow."""
    began = time.process_time()
    many = secret_texts(json.dumps({"p": [f"value {n}" for n in range(100_000)]}), ("p",))
    assert scrubbed("some words", many) == MASK
    slashes = "\\" * 100_000
    scrubbed(slashes + "x", secret_texts(json.dumps({"p": slashes}), ("p",)))
    scrubbed("\\" * 100_000, secret_texts(json.dumps({"p": "'\n\"" * 1_000}), ("p",)))
    assert time.process_time() - began < 10


def test_items_show_no_secret_and_are_equal_to_those_that_do() -> None:
    """The flags decide what is shown; they are no part of what the item says."""
    call = ToolCall("c", "f", '{"a": 1, "p": "hush"}', secret=("p",))
    assert repr(call) == (
        """ToolCall(call_id='c', name='f', arguments='{"a": 1, "p": "[secret]"}', namespace=None, provider_data=None)"""
    )
    assert call == ToolCall("c", "f", '{"a": 1, "p": "hush"}')
    assert hash(ToolCall("c", "f", secret=("p",))) == hash(ToolCall("c", "f"))
    assert (
        repr(ToolOutput("c", "hush", secret=True)) == "ToolOutput(call_id='c', output='[secret]', provider_data=None)"
    )
    assert repr(ToolOutput("c", "said")) == "ToolOutput(call_id='c', output='said', provider_data=None)"
