"""Steps 13 to 15: convert a body result to an outcome by the tool's policies: an output for the model, or a failure.

Does not settle the call, and does not know about scopes: the caller bounds it.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from agentloop._common.error_text import (
    REDACTED,
    error_details,
    error_summary,
    is_fatal,
    message_of,
    summary_parts,
    tool_failure,
)
from agentloop._common.errors import UnwritableValue
from agentloop._common.values import Value
from agentloop._core.cancellation import CUTS
from agentloop._core.failure_choice import Failure, class_of_summary
from agentloop._engine.calls.live_call import LiveCall
from agentloop._engine.calls.output_text import bound_output, render
from agentloop._engine.calls.tool_context import call_context
from agentloop._engine.runtime import body_result as end
from agentloop._engine.runtime.callbacks import call_user
from agentloop.exceptions import (
    AgentLoopError,
    EarlierFailure,
    OutcomeUnknown,
    ToolCallError,
    ToolCancelledError,
    ToolTimeoutError,
    UserTypeError,
)
from agentloop.items import Content
from agentloop.outcomes import CallOutcome
from agentloop.records import BodyEnded
from agentloop.tools import AgentCall, default_tool_error_function


class Converted(Value, frozen=True):
    """An outcome, and the failure to raise if the tool's policy is to raise."""

    outcome: CallOutcome
    failure: Failure | None = None


def raisable(live: LiveCall, error: BaseException) -> BaseException:
    """Return *error* as the run raises it: bare if fatal or the library's own, else as the cause of a `ToolCallError`.

    The stored summary of an error of an earlier run segment is raised as that error would have been.
    """
    if isinstance(error, EarlierFailure) and not error.fatal and class_of_summary(str(error)) is None:
        kind, message = summary_parts(error.details)
    elif not isinstance(error, Exception) or isinstance(error, AgentLoopError):
        return error
    else:
        kind, message = type(error).__name__, message_of(error)
    name = live.tool.name
    failure = ToolCallError(tool_failure(name, kind, message), tool=name, call=live.call)
    failure.__cause__ = error
    return failure


def record_body_end(live: LiveCall, result: end.Returned | end.Raised) -> None:
    """Append `BodyEnded`, so that a resumed run continues after the body. Called before anything that may wait."""
    where, attempt = live.run.here(), live.earlier.attempt
    if isinstance(result, end.Raised):
        error, details, fatal = error_summary(result.error), error_details(result.error), is_fatal(result.error)
        record = BodyEnded(*where, live.call_id, failed=True, error=error, attempt=attempt, fatal=fatal)
        if details != error:
            record = record.replace(details=details)
    else:
        # A value that no output guardrail has judged yet must not be stored.
        kept = not live.tool.tool_output_guardrails
        record = BodyEnded(*where, live.call_id, value=result.value if kept else None, attempt=attempt, kept=kept)
    live.run.tree.log.append(record)


async def convert(live: LiveCall, ending: end.Ending) -> Converted:
    """Return the outcome of the body result *ending*, with a failure where the tool's policy is to raise.

    Calls the application's error functions, output guardrails and output store: cancellable wherever they await.
    """
    match ending:
        case end.Returned(value):
            return await _convert_value(live, value)
        case end.Refused(outcome):
            return Converted(outcome.replace(output=await _bound_output(live, outcome.output)))
        case end.Raised(error) if is_in_doubt(live, ending):
            return await _convert_doubt(live, error)
        case end.Raised(error, where):
            if where == "around" or not isinstance(error, Exception):
                return _convert_raised(live, CallOutcome(status="failed", error=error), error)
            return await _convert_and_log_failure(live, error)
        case end.Faulty(error):
            return await _convert_failure(live, "failed", error, run_guardrails=False)
        case end.TimedOut(seconds):
            return await _convert_timeout(live, seconds)
        case end.Cancelled(by, reason, of_cleanup):
            cut = CUTS[by, "body"]
            if cut is None or cut.policy is None:
                return Converted(live.cut(by, of_cleanup))
            if live.redacts_errors:
                reason = REDACTED
            error = ToolCancelledError(reason, tool=live.tool.name, call=live.call)
            started = live.body is not None
            return await _convert_failure(
                live, cut.status, error, run_guardrails=started, cancelled_by=cut.by, reason=reason
            )
        case _:
            raise AssertionError(f"{ending!r} has no outcome")


def is_in_doubt(live: LiveCall, ending: end.Raised) -> bool:
    """Tell whether the body said that it can't tell whether it took effect. A nested run is never in doubt."""
    said = isinstance(ending.error, OutcomeUnknown) and ending.where == "body"
    return said and not isinstance(live.tool.body, AgentCall)


async def _convert_doubt(live: LiveCall, error: BaseException) -> Converted:
    """Convert what a body said that can't tell whether it took effect: the tool's `in_doubt` decides."""
    if live.tool.in_doubt == "raise":
        return _convert_raised(live, CallOutcome(status="unknown", error=error), error)
    from agentloop._engine.calls.failure_log import log_failure

    log_failure(live, error)
    _, reason = summary_parts(error_details(error))
    text = f"Tool '{live.tool.name}' was interrupted; whether it took effect is unknown: {reason}"
    return await _run_output_guardrails(live, CallOutcome(status="unknown", output=text, error=error))


def _convert_raised(live: LiveCall, outcome: CallOutcome, error: BaseException) -> Converted:
    failure = Failure(index=live.index, call_id=live.call_id, error=raisable(live, error), phase="body")
    if isinstance(failure.error, ToolCallError) and failure.error.outcome is None:
        failure.error.outcome = outcome
    return Converted(outcome, failure)


async def _convert_value(live: LiveCall, value: Any) -> Converted:
    """Convert the body's *value*: extract custom data, render it, then judge and bound the output."""
    tool = live.tool
    custom = None
    if tool.custom_data_extractor is not None:
        extract = partial(call_user, tool.custom_data_extractor, call_context(live), value)
        custom = await live.run.call_callback("custom_data_extractor", live.call_id, extract, record_answer=False)
    try:
        output = render(value, live.run.settings.config.converter)
    except UnwritableValue as error:
        live.redact_error(error)
        if live.run.state.calls[live.call_id].body is None:  # the call was about to settle at once, and now waits
            record_body_end(live, end.Returned(value))
        return await _convert_and_log_failure(live, error)
    return await _run_output_guardrails(
        live, CallOutcome(status="succeeded", output=output, value=value, custom_data=custom)
    )


async def _run_output_guardrails(live: LiveCall, outcome: CallOutcome) -> Converted:
    """Do steps 14 and 15 for an outcome that has an output: run the output guardrails, then bound the output."""
    if live.tool.tool_output_guardrails:
        from agentloop._engine.calls.tool_guardrails import judge_output

        try:
            judged = await judge_output(live, outcome)
        except UnwritableValue as error:  # the value that a guardrail gave as a replacement
            live.redact_error(error)
            return await _convert_and_log_failure(live, error, run_guardrails=False)
        if isinstance(judged, Exception):
            failed = CallOutcome(status="failed", error=judged)
            return Converted(failed, Failure(index=live.index, call_id=live.call_id, error=judged, phase="post"))
        outcome = judged
    bounded = await _bound_output(live, outcome.output)
    return Converted(outcome if bounded is outcome.output else outcome.replace(output=bounded))


async def _bound_output(live: LiveCall, output: Content | None) -> Content | None:
    limit = live.run.settings.config.tool_execution.max_output_chars
    if output is None or limit is None or (isinstance(output, str) and len(output) <= limit):
        return output
    store = live.run.settings.config.output_store
    if store is None:
        return await bound_output(output, limit, None)

    async def put(text: str) -> Any:
        do = partial(call_user, store.put, live.call, text)
        return await live.run.call_callback("output_store", live.call_id, do, record_answer=False)

    return await bound_output(output, limit, put)


async def _call_error_function(live: LiveCall, what: str, fn: Any, error: Exception) -> str | None:
    do = partial(call_user, fn, call_context(live), error)
    text = await live.run.call_callback(what, live.call_id, do, record_answer=False)
    if text is not None and not isinstance(text, str):
        raise UserTypeError(f"tool {live.tool.name!r}: {what} must return text or None, not {text!r}")
    return text


async def _convert_failure(
    live: LiveCall, status: Any, error: Exception, *, run_guardrails: bool = True, **fields: Any
) -> Converted:
    fn = live.tool.failure_error_function
    text = None if fn is None else await _call_error_function(live, "failure_error_function", fn, error)
    # A text of the application's own function may repeat a secret: only the model receives it.
    secret = text is not None and fn is not default_tool_error_function and live.redacts_errors
    outcome = CallOutcome(status=status, output=text, error=error, secret=secret, **fields)
    if text is None:
        return _convert_raised(live, outcome, error)
    if run_guardrails:
        return await _run_output_guardrails(live, outcome)
    return Converted(outcome.replace(output=await _bound_output(live, text)))


async def _convert_and_log_failure(live: LiveCall, error: Exception, *, run_guardrails: bool = True) -> Converted:
    """Do as `_convert_failure`; log *error* if it becomes an output, since only the model would see it then."""
    failed = await _convert_failure(live, "failed", error, run_guardrails=run_guardrails)
    if failed.failure is None:
        from agentloop._engine.calls.failure_log import log_failure

        log_failure(live, error)
    return failed


async def _convert_timeout(live: LiveCall, seconds: float) -> Converted:
    tool = live.tool
    error = ToolTimeoutError(tool.name, seconds)
    outcome = CallOutcome(status="timed_out", error=error)
    if tool.timeout_behavior == "raise":
        return _convert_raised(live, outcome, error)
    text = None
    if tool.timeout_error_function is not None:
        text = await _call_error_function(live, "timeout_error_function", tool.timeout_error_function, error)
    secret = bool(text) and live.redacts_errors
    return await _run_output_guardrails(live, outcome.replace(output=text or str(error), secret=secret))
