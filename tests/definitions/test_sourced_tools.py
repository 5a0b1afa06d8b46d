"""What the log knows of a source's tools: names, digests, and the options that aren't the usual ones."""

from typing import Any

import pytest

from agentloop import Agent, Capacity, Rate, tool
from agentloop.agents._sourced_tools import ASKED, SourcedTools, describe
from agentloop.exceptions import ToolSourceError
from agentloop.guardrails import Allow, tool_input_guardrail, tool_output_guardrail


@tool
async def usual(n: int) -> str:
    """Do the usual."""
    return "done"


def allowed(data: Any) -> Allow:
    """Allow everything."""
    return Allow()


UNUSUAL: dict[str, tuple[dict[str, Any], Any]] = {
    "timeout": ({"timeout": 2.5}, 2.5),
    "serial": ({"serial": "s"}, "s"),
    "reads_only": ({"reads_only": True}, True),
    "secret": ({"secret": ["n"]}, ["n"]),
    "timeout_behavior": ({"timeout": 1, "timeout_behavior": "raise"}, "raise_exception"),
    "needs_approval": ({"needs_approval": True}, True),
    "is_enabled": ({"is_enabled": lambda ctx, agent: True}, ASKED),
    "cost": ({"cost": lambda arguments: 1}, ASKED),
    "failure_error_function": ({"failure_error_function": lambda ctx, error: "failed"}, ASKED),
    "tool_input_guardrails": ({"tool_input_guardrails": [tool_input_guardrail(allowed, name="before")]}, ["before"]),
    "tool_output_guardrails": ({"tool_output_guardrails": [tool_output_guardrail(allowed, name="after")]}, ["after"]),
    "capacity": (
        {"capacity": (Capacity(2, "shared"), Rate(3, 60, "rated"))},
        [["capacity", "shared", 2], ["rate", "rated", 3, 60]],
    ),
}


def test_the_usual_tool_is_known_by_name_and_digest() -> None:
    """An option that nobody changed isn't said, so that an option of a later version needs no new log."""
    assert set(describe(usual, "files")) == {"name", "digest"}
    assert describe(usual, "files")["name"] == "usual"


def test_the_same_tool_of_another_source_is_another_definition() -> None:
    """A verdict on a call holds for one definition, and so for one source."""
    assert describe(usual, "files")["digest"] != describe(usual, "mail")["digest"]
    assert describe(usual, "files")["digest"] == describe(tool(usual.body.fn, name="usual"), "files")["digest"]


@pytest.mark.parametrize("option", UNUSUAL)
def test_an_unusual_option_is_said(option: str) -> None:
    """Plain data as it is, of a callable only that there is one."""
    given, said = UNUSUAL[option]
    made: Any = tool(usual.body.fn, name="usual", **given)
    assert describe(made, "files")[option] == said


def test_without_an_error_function_nothing_words_a_failure() -> None:
    """None is an answer of its own: the failure ends the run."""
    made: Any = tool(usual.body.fn, name="usual", failure_error_function=None)
    assert describe(made, "files")["failure_error_function"] is None


def test_the_same_tools_once_more_are_the_earlier_answer() -> None:
    """The log isn't told again what it knows."""
    first = SourcedTools.of([usual], "files", None)
    assert SourcedTools.of([usual], "files", first) is first
    other: Any = tool(usual.body.fn, name="other")
    for given in ([usual, usual], [other], []):
        assert SourcedTools.of(given, "files", first) is not first
    assert first.digests() == {usual: describe(usual, "files")["digest"]}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("usual", "expected a sequence of tools, got 'usual'"),
        (None, "expected a sequence of tools, got None"),
        ([len], "expected a function tool, got <built-in function len>"),
        ([Agent("inner").as_tool()], "'inner' is an agent, which a run has to know before it begins"),
    ],
    ids=["a string", "nothing", "a function", "an agent"],
)
def test_what_is_no_sequence_of_function_tools_is_refused(given: Any, words: str) -> None:
    """The error names the source, what came, and what belongs there."""
    with pytest.raises(ToolSourceError, match=words) as caught:
        SourcedTools.of(given, "files", None)
    assert caught.value.source == "files"
