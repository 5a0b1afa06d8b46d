"""The guardrails of one call: run in list order; the first that refuses ends the list.

Does not change the call or its arguments: returns a judgement that the caller applies.
"""

from __future__ import annotations

from typing import Any, Literal

from agentloop._core.plan import Arguments
from agentloop._engine.calls.live_call import LiveCall
from agentloop._engine.calls.output_text import render
from agentloop._engine.calls.tool_context import call_context
from agentloop._engine.runtime.live_run import LiveRun
from agentloop.context import ToolContext
from agentloop.exceptions import ToolInputGuardrailTripwireTriggered, ToolOutputGuardrailTripwireTriggered
from agentloop.guardrails import (
    Allow,
    RaiseException,
    RejectContent,
    ReplaceOutput,
    Rewrite,
    ToolGuardrailResult,
    ToolInputData,
    ToolInputGuardrail,
    ToolOutputData,
    ToolOutputGuardrail,
)
from agentloop.items import ToolCall
from agentloop.outcomes import CallOutcome
from agentloop.records import GuardrailSettled
from agentloop.tools import FunctionTool

_VERDICTS: dict[str, tuple[type[Any], ...]] = {
    "tool_input": (Allow, RejectContent, RaiseException, Rewrite),
    "tool_output": (Allow, RejectContent, RaiseException, ReplaceOutput),
}

_TRIPWIRES = {
    "tool_input": ToolInputGuardrailTripwireTriggered,
    "tool_output": ToolOutputGuardrailTripwireTriggered,
}


async def _run_guardrail(
    run: LiveRun,
    call: ToolCall,
    stage: Literal["tool_input", "tool_output"],
    guardrail: ToolInputGuardrail | ToolOutputGuardrail,
    data: ToolInputData | ToolOutputData,
) -> ToolGuardrailResult:
    """Run one guardrail as an effect, append its verdict to the log, and return the result.

    Raises:
        ToolInputGuardrailTripwireTriggered, ToolOutputGuardrailTripwireTriggered: it trips.
        UserTypeError: it returned no verdict of its stage.
        Exception: its error.
    """
    verdict, duration = await run.guard(stage, guardrail, call.call_id, _VERDICTS[stage], data)
    result = ToolGuardrailResult(guardrail=guardrail, output=verdict, duration=duration, call=call)
    run.tree.log.append(
        GuardrailSettled(
            *run.here(),
            stage,
            guardrail.name,
            type(verdict).__name__,
            duration,
            call_id=call.call_id,
            info=verdict.output_info,
            detail=_format_detail(verdict),
            result=result,
        )
    )
    if isinstance(verdict, RaiseException):
        kind, tool = stage.removeprefix("tool_"), data.tool.name
        text = f"Tool {kind} guardrail {guardrail.name} tripped on a call of tool {tool}"
        raise _TRIPWIRES[stage](text, guardrail_result=result)
    return result


def _format_detail(verdict: Any) -> Any:
    """Return the data of a verdict that the log keeps beside its kind; the log hides the tool's secrets in it."""
    match verdict:
        case RejectContent(message):
            return message
        case Rewrite(arguments):
            return dict(arguments)
        case ReplaceOutput(value):
            return value
        case _:
            return None


async def judge_input(
    run: LiveRun, call: ToolCall, tool: FunctionTool, arguments: Arguments, context: ToolContext[Any]
) -> CallOutcome | str | None:
    """Run the tool's input guardrails, in order. After a `Rewrite` the later ones judge the new arguments.

    Returns the outcome of a call that one refuses, the arguments if one has rewritten them, or None.

    Raises:
        ToolInputGuardrailTripwireTriggered: one trips.
    """
    parsed = arguments.parsed
    rewritten: str | None = None
    for guardrail in tool.tool_input_guardrails:
        data = ToolInputData(context=context, agent=run.agent, tool=tool, arguments=parsed)
        result = await _run_guardrail(run, call, "tool_input", guardrail, data)
        match result.output:
            case RejectContent(message):
                reason = f"input guardrail {guardrail.name}"
                secret = run.redacts_errors_of(call)
                return CallOutcome(status="rejected", output=message, reason=reason, secret=secret)
            case Rewrite(changed):
                parsed = dict(changed)
                rewritten = tool.write_arguments(parsed)
    return rewritten


async def judge_output(live: LiveCall, outcome: CallOutcome) -> CallOutcome:
    """Run the tool's output guardrails, in order. After a `ReplaceOutput` the later ones judge the new value.

    Returns *outcome*, or another one that replaces it. No part of the tool's value survives a rejection.

    Raises:
        ToolOutputGuardrailTripwireTriggered: one trips.
        UnwritableValue: a replacement can't be shown to the model.
    """
    for guardrail in live.tool.tool_output_guardrails:
        assert outcome.output is not None
        data = ToolOutputData(
            context=call_context(live),
            agent=live.run.agent,
            tool=live.tool,
            arguments=live.arguments.parsed,
            value=outcome.value,
            output=outcome.output,
        )
        result = await _run_guardrail(live.run, live.call, "tool_output", guardrail, data)
        match result.output:
            case RejectContent(message):
                secret = live.redacts_errors
                return CallOutcome(status="rejected", output=message, reason="output guardrail", secret=secret)
            case ReplaceOutput(value):
                output = render(value, live.run.settings.config.converter)
                outcome = outcome.replace(value=value, output=output, custom_data=None)
    return outcome
