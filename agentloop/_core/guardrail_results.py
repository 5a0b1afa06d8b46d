"""Guardrail results of an earlier process, restored from the records of the log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentloop._common.values import Value
from agentloop._core.run_fold import RunFold
from agentloop.guardrails import (
    Allow,
    AskAgain,
    GuardrailFunctionOutput,
    InputGuardrailResult,
    OutputGuardrailResult,
    RaiseException,
    RejectContent,
    ReplaceOutput,
    Rewrite,
    ToolGuardrailResult,
)
from agentloop.items import ToolCall
from agentloop.records import GuardrailSettled


class RestoredGuardrail(Value, frozen=True):
    """Replaces a guardrail that a restored log names and the agent at work does not have."""

    name: str


def restore_result(record: GuardrailSettled, state: RunFold, agent: Any, known: Sequence[Any] = ()) -> Any:
    """Return the guardrail result of *record*, with as much of the answer's data as the log keeps.

    Args:
        record: The record.
        state: The fold of the run that *record* belongs to.
        agent: The agent at work.
        known: The guardrails of the record's stage, of that agent and the run; a result refers to its guardrail if it
            is one of these, else to a placeholder with its name.
    """
    if record.stage in ("tool_input", "tool_output"):
        call = state.calls.get(record.call_id or "")
        return ToolGuardrailResult(
            guardrail=RestoredGuardrail(record.guardrail),
            output=_restore_verdict(record),
            duration=record.duration,
            call=call.call if call is not None else ToolCall(record.call_id or "", ""),
        )
    named = [guardrail for guardrail in known if guardrail.name == record.guardrail]
    guardrail = named[record.nth] if record.nth < len(named) else RestoredGuardrail(record.guardrail)
    output: Any = GuardrailFunctionOutput(record.info, record.verdict == "tripped")
    if record.verdict == "ask_again":
        output = AskAgain(str(record.detail or ""), record.info)
    if record.stage == "input":
        return InputGuardrailResult(
            guardrail=guardrail,
            output=output,
            duration=record.duration,
            secret=record.secret,
            input_id=record.input_id,
        )
    return OutputGuardrailResult(guardrail=guardrail, output=output, duration=record.duration, agent=agent)


def _restore_verdict(record: GuardrailSettled) -> Any:
    match record.verdict:
        case "RejectContent":
            return RejectContent(str(record.detail or ""), record.info)
        case "RaiseException":
            return RaiseException(record.info)
        case "Rewrite":
            return Rewrite(record.detail if isinstance(record.detail, dict) else {}, record.info)
        case "ReplaceOutput":
            return ReplaceOutput(record.detail, record.info)
        case _:
            return Allow(record.info)
