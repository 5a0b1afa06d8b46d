"""Guardrail results of an earlier process, restored from the records of the log."""

from __future__ import annotations

from typing import Any

from agentloop._common.values import Value
from agentloop._engine.run_guardrails import input_guardrails, output_guardrails
from agentloop._engine.runtime.live_run import LiveRun
from agentloop.guardrails import (
    Allow,
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


def restore_result(run: LiveRun, record: GuardrailSettled) -> Any:
    """Return the guardrail result of *record*, with as much of the answer's data as the log keeps."""
    if record.stage in ("tool_input", "tool_output"):
        state = run.state.calls.get(record.call_id or "")
        call = state.call if state is not None else ToolCall(record.call_id or "", "")
        guardrail: Any = RestoredGuardrail(record.guardrail)
        return ToolGuardrailResult(
            guardrail=guardrail, output=_restore_verdict(record), duration=record.duration, call=call
        )
    output = GuardrailFunctionOutput(record.info, record.verdict == "tripped")
    if record.stage == "input":
        return InputGuardrailResult(
            guardrail=_find_guardrail(run, record), output=output, duration=record.duration, secret=record.secret
        )
    return OutputGuardrailResult(
        guardrail=_find_guardrail(run, record), output=output, duration=record.duration, agent=run.agent
    )


def _find_guardrail(run: LiveRun, record: GuardrailSettled) -> Any:
    known: list[Any] = list(input_guardrails(run) if record.stage == "input" else output_guardrails(run))
    named = [guardrail for guardrail in known if guardrail.name == record.guardrail]
    return named[record.nth] if record.nth < len(named) else RestoredGuardrail(record.guardrail)


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
