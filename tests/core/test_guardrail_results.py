"""Guardrail results made from the records of a log that was stored."""

from typing import Any

import pytest

from agentloop import Agent
from agentloop._core.guardrail_results import restore_result
from agentloop._core.run_fold import RunFold
from agentloop.guardrails import (
    Allow,
    AskAgain,
    RaiseException,
    RejectContent,
    ReplaceOutput,
    Rewrite,
    ToolGuardrailResult,
    input_guardrail,
)
from agentloop.items import ToolCall
from agentloop.records import GuardrailSettled


@pytest.mark.parametrize(
    ("verdict", "detail", "restored"),
    [
        ("Allow", None, Allow("info")),
        ("RejectContent", "no", RejectContent("no", "info")),
        ("RejectContent", None, RejectContent("", "info")),
        ("RaiseException", None, RaiseException("info")),
        ("Rewrite", {"a": 1}, Rewrite({"a": 1}, "info")),
        ("Rewrite", None, Rewrite({}, "info")),
        ("ReplaceOutput", 7, ReplaceOutput(7, "info")),
    ],
)
def test_verdict_of_a_tool_guardrail_is_restored(verdict: str, detail: Any, restored: Any) -> None:
    """With the content that the record has; of a call that the log lacks, by its id."""
    record = GuardrailSettled((), 1, 0.0, "tool_input", "checks", verdict, 0.5, call_id="c", info="info", detail=detail)
    result = restore_result(record, RunFold(), Agent("a"))
    assert isinstance(result, ToolGuardrailResult)
    assert (result.output, result.guardrail.name, result.duration) == (restored, "checks", 0.5)
    assert result.call == ToolCall("c", "")


@pytest.mark.parametrize(("detail", "message"), [("why", "why"), (None, "")])
def test_demand_for_another_answer_is_restored(detail: str | None, message: str) -> None:
    """With what the model was told, if the record has it."""
    record = GuardrailSettled((), 1, 0.0, "output", "checks", "ask_again", 0.5, info="info", detail=detail)
    result = restore_result(record, RunFold(), Agent("a"))
    assert result.output == AskAgain(message, "info")
    assert not result.output.tripwire_triggered


@pytest.mark.parametrize("stage", ["input", "output"])
def test_guardrail_of_a_run_is_found_among_the_known_ones(stage: Any) -> None:
    """By its name and its position among those of its name; else its name replaces it."""

    @input_guardrail(name="checks")
    async def first(ctx: Any, agent: Any, given: Any) -> Any:
        """Check."""

    @input_guardrail(name="checks")
    async def second(ctx: Any, agent: Any, given: Any) -> Any:
        """Check."""

    for nth, expected in ((0, first), (1, second), (2, None)):
        record = GuardrailSettled((), 1, 0.0, stage, "checks", "tripped", 0.5, nth=nth)
        result = restore_result(record, RunFold(), Agent("a"), [first, second])
        assert result.output.tripwire_triggered
        assert result.guardrail.name == "checks"
        assert (result.guardrail is expected) is (expected is not None)
