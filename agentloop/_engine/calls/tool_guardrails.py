"""The guardrails of one call: run in list order; the first that refuses ends the list.

Does not change the call or its arguments: returns a judgement that the caller applies.
"""

from __future__ import annotations

from typing import Any, Literal

import anyio
import attrs

from agentloop import effects as e
from agentloop._common.values import Value
from agentloop._core.plan import Arguments
from agentloop._engine.calls.output_text import render
from agentloop._engine.calls.scheduler import LiveCall
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
from agentloop.items import Content, ToolCall
from agentloop.outcomes import CallOutcome
from agentloop.records import GuardrailSettled
from agentloop.tools import FunctionTool

_VERDICTS: dict[str, tuple[type[Any], ...]] = {
    "tool_input": (Allow, RejectContent, RaiseException, Rewrite),
    "tool_output": (Allow, RejectContent, RaiseException, ReplaceOutput),
}


class InputJudged(Value, frozen=True, kw_only=True):
    """The judgement of the input guardrails: a refusal, a tripwire, rewritten arguments (JSON text), or none."""

    refusal: CallOutcome | None = None
    tripwire: Exception | None = None
    arguments: str | None = None


class OutputJudged(Value, frozen=True, kw_only=True):
    """The judgement of the output guardrails. With `message` the output is refused; else `value` is to be used."""

    value: Any = None
    replaced: bool = False
    message: str | None = None
    tripwire: Exception | None = None


@attrs.define(eq=False)
class _UnapprovedCall:
    """A call that the guardrails judge before its approval: it has no `LiveCall` yet."""

    run: LiveRun
    call: ToolCall
    tool: FunctionTool
    arguments: Arguments

    @property
    def call_id(self) -> str:
        return self.call.call_id


async def judge_before_approval(
    run: LiveRun, call: ToolCall, tool: FunctionTool, arguments: Arguments
) -> CallOutcome | str | None:
    """Run the input guardrails on a call that waits for approval; return a refusal, rewritten arguments, or None.

    They run again right before the body.

    Raises:
        ToolInputGuardrailTripwireTriggered: if one trips.
    """
    context = tool_context(run, call, tool, arguments, run.conversation)
    judged = await judge_input(_UnapprovedCall(run, call, tool, arguments), context)
    if judged.tripwire is not None:
        raise judged.tripwire
    return judged.refusal if judged.refusal is not None else judged.arguments


async def _run_guardrail(
    live: LiveCall | _UnapprovedCall,
    stage: Literal["tool_input", "tool_output"],
    guardrail: ToolInputGuardrail | ToolOutputGuardrail,
    data: ToolInputData | ToolOutputData,
) -> ToolGuardrailResult:
    """Run one guardrail as an effect, append its verdict to the log, and return the result.

    Raises:
        UserTypeError: it returned no verdict of its stage.
        Exception: its error.
    """
    run = live.run
    began = anyio.current_time()
    effect = e.Guard(run.path, stage, guardrail.name, live.call_id, lambda: call_user(guardrail.fn, data))
    verdict: Any = await run.tree.effects.perform(effect)
    if not isinstance(verdict, _VERDICTS[stage]):
        needed = ", ".join(kind.__name__ for kind in _VERDICTS[stage])
        raise UserTypeError(f"guardrail {guardrail.name!r} must return one of {needed}, not {verdict!r}")
    duration = anyio.current_time() - began
    result = ToolGuardrailResult(guardrail=guardrail, output=verdict, duration=duration, call=live.call)
    run.append(
        GuardrailSettled(
            *run.here(),
            stage,
            guardrail.name,
            type(verdict).__name__,
            duration,
            call_id=live.call_id,
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


async def judge_input(live: LiveCall | _UnapprovedCall, context: ToolContext[Any]) -> InputJudged:
    """Run the tool's input guardrails, in order. After a `Rewrite` the later ones judge the new arguments."""
    parsed = live.arguments.parsed
    rewritten: str | None = None
    for guardrail in live.tool.tool_input_guardrails:
        data = ToolInputData(context=context, agent=live.run.agent, tool=live.tool, arguments=parsed)
        result = await _run_guardrail(live, "tool_input", guardrail, data)
        match result.output:
            case RejectContent(message):
                reason = f"input guardrail {guardrail.name}"
                secret = live.run.redacts_errors_of(live.call)
                return InputJudged(refusal=CallOutcome(status="rejected", output=message, reason=reason, secret=secret))
            case RaiseException():
                return InputJudged(
                    tripwire=ToolInputGuardrailTripwireTriggered(
                        f"Tool input guardrail {guardrail.name} tripped on a call of tool {live.tool.name}",
                        guardrail_result=result,
                    )
                )
            case Rewrite(arguments):
                parsed = dict(arguments)
                rewritten = live.tool.write_arguments(parsed)
    return InputJudged(arguments=rewritten)


async def judge_output(live: LiveCall, value: Any, output: Content) -> OutputJudged:
    """Run the tool's output guardrails, in order. After a `ReplaceOutput` the later ones judge the new value."""
    replaced = False
    for guardrail in live.tool.tool_output_guardrails:
        data = ToolOutputData(
            context=call_context(live),
            agent=live.run.agent,
            tool=live.tool,
            arguments=live.arguments.parsed,
            value=value,
            output=output,
        )
        result = await _run_guardrail(live, "tool_output", guardrail, data)
        match result.output:
            case RejectContent(message):
                return OutputJudged(message=message)
            case RaiseException():
                return OutputJudged(
                    tripwire=ToolOutputGuardrailTripwireTriggered(
                        f"Tool output guardrail {guardrail.name} tripped on a call of tool {live.tool.name}",
                        guardrail_result=result,
                    )
                )
            case ReplaceOutput(new):
                value, output, replaced = new, render(new, live.run.settings.config.converter), True
    return OutputJudged(value=value, replaced=replaced)
