"""`ModelTimeouts`: one value for the timeouts of every model, and the arguments that it replaced."""

from collections.abc import Callable
from typing import Any

import pytest

from agentloop import ModelSettings
from agentloop.exceptions import UserTypeError, UserValueError
from agentloop.models import (
    AnthropicModel,
    GeminiModel,
    ModelTimeouts,
    OCIModel,
    OpenAIChatModel,
    OpenAIResponsesModel,
    RealtimeModel,
)
from agentloop.models._patience import Patience
from agentloop.models.timeouts import patience_of

URL = "http://model.test/v1"
MODELS: dict[str, Callable[..., Any]] = {
    "chat": lambda **given: OpenAIChatModel("m", base_url=URL, **given),
    "gemini": lambda **given: GeminiModel("m", base_url=URL, **given),
    "responses": lambda **given: OpenAIResponsesModel("m", base_url=URL, **given),
    "messages": lambda **given: AnthropicModel("m", base_url=URL, **given),
    "realtime": lambda **given: RealtimeModel("m", base_url=URL, **given),
    "oci": lambda **given: OCIModel("m", region="eu-frankfurt-1", api_key="k", **given),
}
FORMER = {
    "connect_timeout": "connect",
    "first_output_timeout": "first_output",
    "silence_timeout": "read",
    "answer_timeout": "total",
}


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_every_model_takes_one_value(make: Callable[..., Any]) -> None:
    """The value is the model's, and the usual one if none is given."""
    timeouts = ModelTimeouts(connect=1, read=2.5, total=None)
    assert make(timeouts=timeouts).timeouts == timeouts
    assert make().timeouts == ModelTimeouts(connect=10.0, read=60.0, total=7200.0)


@pytest.mark.parametrize("name", FORMER)
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_a_former_argument_is_taken_and_its_warning_says_what_to_write(make: Callable[..., Any], name: str) -> None:
    """The warning points at the line that makes the model."""
    with pytest.warns(DeprecationWarning, match=rf"{name}: write timeouts=ModelTimeouts\({FORMER[name]}=3\)") as caught:
        model = make(**{name: 3})
    assert model.timeouts == ModelTimeouts(**{FORMER[name]: 3})
    assert [one.filename for one in caught] == [__file__]


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"connect_timeout": 1, "timeouts": ModelTimeouts()}, "connect_timeout: give timeouts="),
        ({"timeout": 1}, "timeout: a model has no such argument"),
        ({"timeouts": 3}, "timeouts: "),
    ],
)
def test_what_no_model_takes_is_named(make: Callable[..., Any], given: dict[str, Any], words: str) -> None:
    """Two values for one time, an argument that isn't there, a number in place of the timeouts."""
    with pytest.raises(UserTypeError, match=words):
        make(**given)


@pytest.mark.parametrize("field", FORMER.values())
@pytest.mark.parametrize("value", [0, -1, float("inf"), float("nan"), "3", True])
def test_each_field_is_a_number_of_seconds(field: str, value: object) -> None:
    """Its message names class and field."""
    with pytest.raises((UserTypeError, UserValueError), match=rf"ModelTimeouts\.{field}: "):
        ModelTimeouts(**{field: value})  # type: ignore[arg-type]


def test_a_model_that_thinks_may_be_silent_longer() -> None:
    """Only where no time for the first output is given."""
    thinks = ModelSettings(reasoning={"effort": "high"})
    assert patience_of(ModelTimeouts(), ModelSettings()).first == 300
    assert patience_of(ModelTimeouts(), thinks).first == 600
    given = ModelTimeouts(connect=1, first_output=None, read=2, total=3)
    assert patience_of(given, thinks) == Patience(1, None, 2, 3)
