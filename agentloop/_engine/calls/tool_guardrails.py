"""The guardrails of one call: run in list order; the first that refuses ends the list.

Does not change the call or its arguments: returns a judgement that the caller applies.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import anyio

from agentloop import effects as e
from agentloop._core.plan import Arguments
from agentloop._engine.calls.live_call import LiveCall
from agentloop._engine.calls.output_text import render
from agentloop._engine.calls.tool_context import call_context, tool_context
from agentloop._engine.runtime.callbacks import call_user
from agentloop._engine.runtime.live_run import LiveRun
from agentloop.context import ToolContext
from agentloop.exceptions import (
    ToolInputGuardrailTripwireTriggered,
    ToolOutputGuardrailTripwireTriggered,
    UserTypeError,
)
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


Tripped: TypeAlias = ToolInputGuardrailTripwireTriggered | ToolOutputGuardrailTripwireTriggered
"""The judgement of a guardrail that ends the run: the error to raise."""


async def judge_before_approval(
    run: LiveRun, call: ToolCall, tool: FunctionTool, arguments: Arguments
) -> CallOutcome | str | None:
    """Run the input guardrails on a call that waits for approval; return a refusal, rewritten arguments, or None.

    They run again right before the body.

    Raises:
        ToolInputGuardrailTripwireTriggered: if one trips.
    """
    context = tool_context(run, call, tool, arguments.text, run.conversation)
    judged = await judge_input(run, call, tool, arguments, context)
    if isinstance(judged, Exception):
        raise judged
    return judged


async def _run_guardrail(
    run: LiveRun,
    call: ToolCall,
    stage: Literal["tool_input", "tool_output"],
    guardrail: ToolInputGuardrail | ToolOutputGuardrail,
    data: ToolInputData | ToolOutputData,
) -> ToolGuardrailResult:
    """Run one guardrail as an effect, append its verdict to the log, and return the result.

    Raises:
        UserTypeError: it returned no verdict of its stage.
        Exception: its error.
    """
    began = anyio.current_time()
    effect = e.Guard(run.path, stage, guardrail.name, call.call_id, lambda: call_user(guardrail.fn, data))
    verdict: Any = await run.tree.effects.perform(effect)
    if not isinstance(verdict, _VERDICTS[stage]):
        needed = ", ".join(kind.__name__ for kind in _VERDICTS[stage])
        raise UserTypeError(f"guardrail {guardrail.name!r} must return one of {needed}, not {verdict!r}")
    duration = anyio.current_time() - began
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
) -> CallOutcome | Tripped | str | None:
    """Run the tool's input guardrails, in order. After a `Rewrite` the later ones judge the new arguments.

    Returns the outcome of a call that one refuses, a tripwire, the arguments if one has rewritten them, or None.
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
            case RaiseException():
                return ToolInputGuardrailTripwireTriggered(
                    f"Tool input guardrail {guardrail.name} tripped on a call of tool {tool.name}",
                    guardrail_result=result,
                )
            case Rewrite(changed):
                parsed = dict(changed)
                rewritten = tool.write_arguments(parsed)
    return rewritten


async def judge_output(live: LiveCall, outcome: CallOutcome) -> CallOutcome | Tripped:
    """Run the tool's output guardrails, in order. After a `ReplaceOutput` the later ones judge the new value.

    Returns *outcome*, another one that replaces it, or a tripwire. No part of the tool's value survives a rejection.

    Raises:
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
            case RaiseException():
                return ToolOutputGuardrailTripwireTriggered(
                    f"Tool output guardrail {guardrail.name} tripped on a call of tool {live.tool.name}",
                    guardrail_result=result,
                )
            case ReplaceOutput(value):
                output = render(value, live.run.settings.config.converter)
                outcome = outcome.replace(value=value, output=output, custom_data=None)
    return outcome
