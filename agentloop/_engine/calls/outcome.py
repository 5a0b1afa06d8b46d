"""The policies of a tool: they make a draft of the call's outcome, or the run's failure, of the end of its body.

Nothing here waits. A policy that the application has to answer (a text for an error, an output guardrail) is a step of
the draft, which `call` takes afterwards. So where the run will raise an error for certain, we know it in the step in
which the body ended, and no call that waits for the permit starts any more.
"""

from __future__ import annotations

from typing import Any, Literal

from agentloop._common.error_text import (
    REDACTED,
    error_details,
    is_fatal,
    message_of,
    summary_and_details,
    summary_parts,
    tool_failure,
)
from agentloop._common.errors import UnwritableValue
from agentloop._common.failed_tool_text import tell_error
from agentloop._common.values import Value
from agentloop._core.cancellation import CUTS
from agentloop._core.failure_choice import Failure, class_of_summary
from agentloop._engine.calls.live_call import LiveCall, Step
from agentloop._engine.calls.output_text import render
from agentloop._engine.runtime import body_result as end
from agentloop.exceptions import (
    AgentLoopError,
    EarlierFailure,
    OutcomeUnknown,
    ToolCallError,
    ToolCancelledError,
    ToolTimeoutError,
)
from agentloop.outcomes import CallOutcome
from agentloop.records import BodyEnded
from agentloop.tools import AgentCall


class Draft(Value, frozen=True):
    """The outcome of a call before its steps 13 to 15, or between them."""

    outcome: CallOutcome
    failure: Failure | None = None
    """The failure that the run raises. A draft with one has no further steps."""
    steps: tuple[Step, ...] = ()
    summary: str | None = None
    """The summary of the outcome's error, where `BodyEnded` has it already: a search for secrets in it takes 3 µs."""


def draft_outcome(live: LiveCall, ended: end.Ending) -> Draft:
    """Return the draft for the body result *ended*: an output for the model, a failure, or the steps that decide."""
    steps = live.steps
    match ended:
        case end.Returned(value):
            try:
                output = render(value, live.run.settings.config.converter)
            except UnwritableValue as error:
                live.redact_error(error)
                return draft_failure(live, "failed", error)
            outcome = CallOutcome(status="succeeded", output=output, value=value)
            return Draft(outcome, steps=(*steps.value, *steps.judges, *steps.stores))
        case end.Refused(outcome):
            return Draft(outcome, steps=steps.stores)
        case end.Raised():
            return _draft_raised(live, ended)
        case end.TimedOut(seconds):
            return _draft_timeout(live, seconds)
        case end.Cancelled():
            return _draft_cancelled(live, ended)
        case end.Unconverted(error):
            phase: Literal["body", "post"] = "post" if live.phase == "post" else "body"
            return Draft(CallOutcome(status="failed", error=error), make_failure(live, error, phase))
        case _:
            raise AssertionError(f"{ended!r} has no outcome")


def _draft_raised(live: LiveCall, ended: end.Raised) -> Draft:
    error, recorded = ended.error, live.run.state.calls[live.call_id].body
    if ended.where == "around" or not isinstance(error, Exception):
        return _raise(live, CallOutcome(status="failed", error=error))
    # A nested run is never in doubt.
    if isinstance(error, OutcomeUnknown) and not isinstance(live.tool.body, AgentCall):
        return _draft_doubt(live, error)
    return draft_failure(live, "failed", error, None if recorded is None else recorded.error)


def _draft_doubt(live: LiveCall, error: BaseException) -> Draft:
    if live.tool.in_doubt == "raise":
        return _raise(live, CallOutcome(status="unknown", error=error))
    _, reason = summary_parts(error_details(error))
    text = f"Tool '{live.tool.name}' was interrupted; whether it took effect is unknown: {reason}"
    draft = Draft(CallOutcome(status="unknown", error=error), steps=_steps_of_answer(live))
    return tell(live, draft, text)


def _draft_timeout(live: LiveCall, seconds: float) -> Draft:
    error = ToolTimeoutError(live.tool.name, seconds)
    if live.tool.timeout_behavior == "raise":
        return _raise(live, CallOutcome(status="timed_out", error=error))
    outcome = CallOutcome(status="timed_out", output=str(error), error=error)
    return Draft(outcome, steps=(*live.steps.timeout, *_steps_of_answer(live)))


def _draft_cancelled(live: LiveCall, ended: end.Cancelled) -> Draft:
    cut = CUTS[ended.by, "body"]
    if cut is None or cut.policy is None:
        return Draft(live.cut(ended.by, ended.error))
    reason = REDACTED if live.redacts_errors else ended.reason
    error = ToolCancelledError(reason, tool=live.tool.name, call=live.call)
    return draft_failure(live, cut.status, error, cancelled_by=cut.by, reason=reason)


def draft_failure(live: LiveCall, status: Any, error: Exception, summary: str | None = None, **fields: Any) -> Draft:
    """Return the draft for *error* by the tool's `failure_error_function`. Our own function answers at once."""
    fn, outcome = live.tool.failure_error_function, CallOutcome(status=status, error=error, **fields)
    if fn is None:
        return _raise(live, outcome)
    draft = Draft(outcome, None, (*live.steps.failure, *_steps_of_answer(live)), summary)
    return draft if live.steps.failure else tell(live, draft, tell_error(live.tool.name, error))


def _steps_of_answer(live: LiveCall) -> tuple[Step, ...]:
    """Return the steps for the text of an error: output guardrails judge it only if the body has begun."""
    return live.steps.stores if live.body is None else (*live.steps.judges, *live.steps.stores)


def tell(live: LiveCall, draft: Draft, text: str | None, *, secret: bool = False) -> Draft:
    """Return *draft* with *text* as its output; None means that the run raises the error instead.

    An error of a body that only the model hears of is logged, for the maintainers of the tool.
    """
    outcome = draft.outcome
    if text is None:
        return _raise(live, outcome)
    if outcome.status in ("failed", "unknown") and live.body is not None and outcome.error is not None:
        from agentloop._engine.calls.failure_log import log_failure

        log_failure(live, outcome.error, draft.summary)
    return draft.replace(outcome=outcome.replace(output=text, secret=secret))


def _raise(live: LiveCall, outcome: CallOutcome) -> Draft:
    assert outcome.error is not None
    failure = Failure(index=live.index, call_id=live.call_id, error=raisable(live, outcome.error), phase="body")
    if isinstance(failure.error, ToolCallError) and failure.error.outcome is None:
        failure.error.outcome = outcome
    return Draft(outcome, failure)


def make_failure(live: LiveCall, error: BaseException, phase: Literal["body", "post"]) -> Failure:
    """Return the failure of the run by *error* of a hook, a guardrail, or another function around the body."""
    live.redact_error(error)
    return Failure(index=live.index, call_id=live.call_id, error=raisable(live, error), phase=phase)


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
    from agentloop._engine.calls.failure_log import hint_at  # only a failing run needs it

    if hint := hint_at(live, error):
        failure.add_note(hint)
    return failure


def record_body_end(live: LiveCall, result: end.Returned | end.Raised) -> None:
    """Append `BodyEnded`, so that a resumed run continues after the body. Called before anything that may wait."""
    if live.batch.in_background:
        return
    where, attempt = live.run.here(), live.earlier.attempt
    if isinstance(result, end.Raised):
        error, details = summary_and_details(result.error)
        fatal = is_fatal(result.error)
        record = BodyEnded(*where, live.call_id, failed=True, error=error, attempt=attempt, fatal=fatal)
        if details != error:
            record = record.replace(details=details)
    else:
        # A value that no output guardrail has judged yet must not be stored.
        kept = not live.steps.judges
        record = BodyEnded(*where, live.call_id, value=result.value if kept else None, attempt=attempt, kept=kept)
    live.run.tree.log.append(record)
