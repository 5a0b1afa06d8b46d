"""A value of a wrong category is refused where the option is given, by the option's name."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from agentloop import (
    Agent,
    Capacity,
    FunctionTool,
    Handoff,
    InputGuardrail,
    Instrument,
    ModelRetrySettings,
    ModelSettings,
    OutputGuardrail,
    Rate,
    RunConfig,
    Runner,
    SealKey,
    SessionSettings,
    StopAtTools,
    ToolExecution,
    UsageLimits,
    UserError,
    handoff,
)
from agentloop.config.conditions import MaxTurns, TextMention, TokenLimit, ToolCalled
from agentloop.exceptions import UserTypeError, UserValueError
from agentloop.guardrails import ToolInputGuardrail, ToolOutputGuardrail
from agentloop.items import UserMessage
from agentloop.settings import JsonLimits


async def answer(ctx: Any) -> str:
    """Answer."""
    return "42"


NEEDED: dict[Any, dict[str, Any]] = {
    Agent: {"name": "a"},
    RunConfig: {},
    ToolExecution: {},
    ModelSettings: {},
    ModelRetrySettings: {"max_retries": 1},
    JsonLimits: {},
    SessionSettings: {},
    UsageLimits: {},
    FunctionTool: {"name": "f", "on_invoke_tool": answer},
    Handoff: {"agent": Agent("b")},
    InputGuardrail: {"fn": answer},
    OutputGuardrail: {"fn": answer},
    ToolInputGuardrail: {"fn": answer},
    ToolOutputGuardrail: {"fn": answer},
    Capacity: {"tokens": 1},
    Rate: {"count": 1, "per": 1.0},
    MaxTurns: {"n": 1},
    TokenLimit: {"n": 1},
    ToolCalled: {"name": "f"},
    TextMention: {"text": "x"},
    StopAtTools: {"names": "f"},
    Agent("c").as_tool: {},
    handoff: {"agent": Agent("b")},
    Runner.run_streamed: {"agent": Agent("d"), "input": "hi"},
}
"""The functions that take options, with the options they can't do without."""


def options_of(made: Callable[..., Any]) -> list[str]:
    # `context` is the application's own object, of any type.
    return [name for name in inspect.signature(made).parameters if name not in ("self", "context")]


CASES = [pytest.param(made, name, id=f"{made.__name__}.{name}") for made in NEEDED for name in options_of(made)]


@pytest.mark.parametrize("wrong", [object(), [object()], {object(): 1}], ids=["object", "list", "mapping"])
@pytest.mark.parametrize(("made", "option"), CASES)
def test_value_of_a_wrong_category_is_refused_by_the_options_name(made: Any, option: str, wrong: Any) -> None:
    """Every option refuses an object of no category at all, and such an object in a container."""
    with pytest.raises(UserError, match=option):
        made(**{**NEEDED[made], option: wrong})


@pytest.mark.parametrize("wrong", [1, "text", Instrument])
def test_instrument_that_hears_of_nothing_is_refused(wrong: Any) -> None:
    """An instrument with some of the methods is taken: it gets only these events."""
    with pytest.raises(UserError, match=r"RunConfig\.instruments\[0\]"):
        RunConfig(instruments=[wrong])

    class Partial:
        def on_record(self, record: Any) -> None: ...

    assert RunConfig(instruments=[Partial()]).instruments


def test_number_beyond_every_float_is_refused_by_the_fields_name() -> None:
    """It is a number of the right type, so that a comparison with infinity lets it pass."""
    for made in (
        lambda: RunConfig(timeout=10**400),
        lambda: Rate(1, 10**400),
        lambda: SealKey(b"x" * 16, expires_in=10**400),
    ):
        with pytest.raises(UserValueError, match=r"(timeout|per|expires_in): expected a finite number"):
            made()


def test_secret_of_a_key_is_in_no_message() -> None:
    """Messages quote what was given, but not where that is a key."""
    with pytest.raises(UserValueError, match="at least 16 bytes") as caught:
        SealKey(b"a short one")
    assert "short one" not in str(caught.value)


@pytest.mark.parametrize("content", [3, b"x", None, bytearray(b"x")])
def test_content_that_is_neither_text_nor_parts_is_refused(content: Any) -> None:
    """Bytes would be read as a sequence of numbers."""
    said = f"^content: expected text or a sequence of parts, got {type(content).__name__}"
    with pytest.raises(UserTypeError, match=said):
        UserMessage(content)
