"""The two words for what becomes of a failure: every option that asks for it takes them, and the words of before."""

from typing import Any

import attrs
import pytest

from agentloop import Agent, FunctionTool, RunConfig, ToolExecution, tool
from agentloop._common.checks import COLLISION_WORDS, NOT_FOUND_WORDS, TIMEOUT_WORDS
from agentloop.agents._graph import describe_tool
from agentloop.agents._sourced_tools import describe
from agentloop.exceptions import UserTypeError, UserValueError
from agentloop.tools import default_tool_error_function

WORDS = ("tell_model", "raise")
OLDER = {
    "timeout_behavior": TIMEOUT_WORDS,
    "not_found_behavior": NOT_FOUND_WORDS,
    "name_collision_policy": COLLISION_WORDS,
}

OF_RUNS = ("not_found_behavior", "name_collision_policy")


async def _look() -> str:
    """Look."""
    return "seen"


def _made(option: str, word: Any) -> Any:
    if option in OF_RUNS:
        made = ToolExecution(**{option: word})
        assert getattr(RunConfig(**{f"tool_{option}": word}), f"tool_{option}") == getattr(made, option)
        return getattr(made, option)
    return getattr(tool(_look, **{option: word}), option)  # type: ignore[call-overload]


@pytest.mark.parametrize("option", [*OLDER, "in_doubt"])
def test_every_option_takes_both_words(option: str) -> None:
    """What you gave is what you read, and the first word is the default."""
    assert [_made(option, word) for word in WORDS] == list(WORDS)
    owner = ToolExecution if option in OF_RUNS else FunctionTool
    assert attrs.fields_dict(owner)[option].default == "tell_model"


@pytest.mark.parametrize(
    ("option", "older", "word"), [(o, *pair) for o, words in OLDER.items() for pair in words.items()]
)
def test_words_of_before_mean_the_same(option: str, older: str, word: str) -> None:
    """They are translated where they are given: whoever reads the option finds one spelling."""
    assert _made(option, older) == word


@pytest.mark.parametrize("option", [*OLDER, "in_doubt"])
@pytest.mark.parametrize("given", ["shrug", "", 3, None, ["raise"]])
def test_other_words_are_refused(option: str, given: Any) -> None:
    """The error names the option and both words, also for what isn't a word at all."""
    with pytest.raises((UserTypeError, UserValueError), match=rf"{option}: .*'tell_model'.*'raise'"):
        _made(option, given)


def test_failures_take_the_words_beside_a_function() -> None:
    """`"tell_model"` is the usual function; `"raise"` and None are one thing; a copy takes the words, too."""
    made = tool(_look, failure_error_function="raise")
    assert made.failure_error_function is None
    assert tool(_look, failure_error_function=None).failure_error_function is None
    assert attrs.evolve(made, failure_error_function="tell_model").failure_error_function is default_tool_error_function
    assert Agent("a").as_tool(failure_error_function="raise").failure_error_function is None
    with pytest.raises(UserTypeError, match="expected 'tell_model', 'raise' or a callable"):
        tool(_look, failure_error_function="shrug")  # type: ignore[call-overload]


@pytest.mark.parametrize("older", [*TIMEOUT_WORDS, None])
def test_logs_know_a_tool_as_before(older: Any) -> None:
    """A run that an earlier version stored finds its tools unchanged: the digest is made of the older words."""
    options = {} if older is None else {"timeout_behavior": older}
    made = tool(_look, **options)
    raises = older == "raise_exception"
    assert describe_tool(made)["policy"] == ("a5c33dbac2c90827" if raises else "5a894f45cd60798f")
    assert describe(made, "source").get("timeout_behavior") == ("raise_exception" if raises else None)
