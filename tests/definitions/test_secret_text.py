"""Secret arguments are found in a call's JSON text, in any form of JSON, and masked in reprs."""

import json
from typing import Any

import pytest
from definitions.item_strategies import JSON_VALUES
from hypothesis import given
from hypothesis import strategies as st

from agentloop import Agent, ModelSettings, RunConfig
from agentloop._common.masking import ALL_ARGUMENTS, MASK, mask_arguments, spans_of
from agentloop.items import ToolCall, ToolOutput


@given(st.dictionaries(st.text(max_size=5), JSON_VALUES, max_size=4), st.sampled_from([None, 1, "\t"]))
def test_every_value_of_an_object_is_found_in_its_text(given_object: dict[str, Any], indent: Any) -> None:
    """A value is found by its decoded key, with blanks or without."""
    for ascii_only in (True, False):
        text = json.dumps(given_object, indent=indent, ensure_ascii=ascii_only)
        spans = spans_of(text)
        assert spans is not None
        assert {span.key: json.loads(text[span.start : span.end]) for span in spans} == given_object


@given(st.text(alphabet='{}[]":,\\ au0', max_size=30))
def test_a_text_that_is_no_object_is_told(text: str) -> None:
    """A text is an object exactly if the standard library parses it as one."""
    try:
        parsed = json.loads(text)
    except ValueError:
        parsed = None
    assert (spans_of(text) is not None) == isinstance(parsed, dict)


def test_deep_nesting_is_no_object_rather_than_an_error() -> None:
    """Hostile depth counts as text that doesn't parse."""
    assert spans_of('{"a":' * 100_000) is None
    assert mask_arguments('{"a":' + "[" * 100_000, ("b",)) == MASK


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
    assert mask_arguments(text, ("p",)) == masked
    assert mask_arguments(text, ()) == text


def test_all_arguments_are_masked_with_their_names() -> None:
    """The whole text is masked, since the names are keys of a secret mapping."""
    assert mask_arguments('{"ann": 1}', (ALL_ARGUMENTS,)) == MASK
    assert mask_arguments("", (ALL_ARGUMENTS,)) == ""


def test_items_show_no_secret_and_are_equal_to_those_that_do() -> None:
    """The flags decide what is shown; they are no part of what the item says."""
    call = ToolCall("c", "f", '{"a": 1, "p": "hush"}', secret=("p",))
    assert repr(call) == (
        """ToolCall(call_id='c', name='f', arguments='{"a": 1, "p": "[secret]"}', namespace=None, kind='function', """
        "caller=None, provider_data=None)"
    )
    assert call == ToolCall("c", "f", '{"a": 1, "p": "hush"}')
    assert hash(ToolCall("c", "f", secret=("p",))) == hash(ToolCall("c", "f"))
    masked = "ToolOutput(call_id='c', output='[secret]', provider_data=None, kind='function', is_error=False)"
    assert repr(ToolOutput("c", "hush", secret=True)) == masked
    assert (
        repr(ToolOutput("c", "said"))
        == "ToolOutput(call_id='c', output='said', provider_data=None, kind='function', is_error=False)"
    )


@pytest.mark.scenario("SM-13")
@pytest.mark.parametrize("field", ["extra_headers", "extra_query", "extra_body", "extra_args"])
def test_no_repr_shows_what_settings_add_to_a_request(field: str) -> None:
    """Servers take keys in each of these places. Other settings are shown, here and in those of a run."""
    settings = ModelSettings(temperature=0.5, **{field: {"api-key": "sk-canary-0123456789"}})  # type: ignore[arg-type]
    for shown in (repr(settings), repr(RunConfig(model_settings=settings)), repr(Agent("a", model_settings=settings))):
        assert "canary" not in shown
    assert "temperature=0.5" in repr(settings)
