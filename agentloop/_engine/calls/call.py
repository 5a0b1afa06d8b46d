"""One call, from its permit to its outcome: steps 8 to 17 of a call, in the call's own task.

Does not decide which call starts, in which order outputs are released, or which failure the run raises: the batch does.

Steps, in this order:

    prepare_body    8 tool enabled and looked up again, 9 input guardrails, a thread slot
    run_body        10 CallStarted (durable before 12), 11 start hooks, 12 the body
    _settle         the permit is given back, then 13 conversion of a failure or timeout, 14 and 15 output guardrails
                    and the bound on the output's length
    _finish         16 end hooks, 17 CallSettled

Steps 8 to 12 run in the call's own scope, which the tool's timeouts, `cancel_call` and a sibling's failure cancel.
They end in a body result (`body_result`): `run_call` classifies each exception at this one boundary, and
`call_cancellation.decide_end` then lets the call's own scope overrule the body. Steps 13 to 17 are out of that scope,
because the body's effect has happened: a sibling's failure only sets a deadline for 13 to 15, and 16 is cut by the
cleanup deadline alone.

Invariants: the call settles exactly once, in a synchronous step. The task itself ends normally, except for a
cancellation of a scope around the call, which continues after the call has settled as `cancelled`; on asyncio a task
group takes a child that ends cancelled for a reason to cancel all its siblings. Until the task's first step the call
belongs to the batch's owner, which settles it if the task never begins; after that step the call settles no matter how
the task ends. (A task that asyncio cancels before its first step never runs, not even its `finally`.)

Facts are in `LiveCall`: `phase` is the step, `begun` says who settles the call, `live.scope` is its own cancellation.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import anyio

from agentloop._common.error_text import is_fatal, summary_parts
from agentloop._concurrency.backend import (
    cancelled_types,
    capture,
    in_own_task,
    is_closing,
    own_task,
    raise_native_cancel,
    run_is_cancelled,
    self_cancelled,
    uncancel_to,
)
from agentloop._concurrency.interrupts import uninterrupted
from agentloop._core.failure_choice import Failure
from agentloop._engine.calls.call_cancellation import decide_end
from agentloop._engine.calls.live_call import BodyState, LiveCall
from agentloop._engine.calls.outcome import Converted, convert, is_in_doubt, raisable, record_body_end
from agentloop._engine.calls.run_body import prepare_body, run_body, start_plain
from agentloop._engine.calls.tool_context import call_context
from agentloop._engine.runtime import body_result as end
from agentloop._engine.runtime.callbacks import call_at_once, resolve
from agentloop._engine.runtime.cancel_source import find_cancel_source, record_end
from agentloop.exceptions import EarlierFailure, OutcomeUnknown
from agentloop.outcomes import CallOutcome
from agentloop.records import BodyEnded
from agentloop.tools import PythonBody, ToolSearch

if TYPE_CHECKING:
    pass

_UNSETTLED = ("starting", "body", "post")
# The types of body results are compared, since `isinstance` takes 0.17 µs for each class of a Struct that doesn't fit,
# and 0.02 for one that does.
_WITHOUT_RESULT = frozenset({end.Deferred, end.Paused, end.RunEnding})
_UNCANCELLED = (end.Returned, end.Raised)


# One coroutine with four handlers in each other, where another one around the body would be half a KiB, and an object
# for the collector, more for each call in flight. From inside: the body's errors, within the call's scope; what passes
# that scope; errors of steps 13 to 17 and around; faults of the settling itself.
@uninterrupted
async def run_call(live: LiveCall) -> None:
    """Run one admitted call to its outcome. Does nothing if another task of the call has begun before.

    Cancellation: the call settles as `cancelled` first, then the cancellation continues.
    """
    if live.begun:  # the owner has settled the call, or another of its tasks has begun
        return
    live.begun = True
    nursery = live.batch.nursery
    task = None if nursery.on_trio else own_task()
    result: end.Ending | None = None
    failure: Failure | None = None
    try:
        try:
            if live.earlier.body is not None:
                result = _restore_result(live, live.earlier.body)
            else:
                try:
                    # No `with`, which keeps a bound method: an object more for the collector in each call in flight.
                    live.scope.__enter__()
                    try:
                        try:
                            if (check := nursery.check_in_time()) is not None:
                                await check
                                del check  # the collector would count it as long as the body runs
                            if live.plain and live.cause is None:
                                result = end.Returned(await start_plain(live, task))
                            else:
                                result = await prepare_body(live) or await run_body(live)
                        except BaseException as error:  # noqa: ASYNC103 - the call boundary: it classifies every error
                            result = _classify(live, error)
                            if result is None or is_closing(task):
                                raise
                    except BaseException as error:  # noqa: ASYNC103 - as `with` does
                        if not live.scope.__exit__(type(error), error, error.__traceback__):
                            raise
                    else:
                        live.scope.__exit__(None, None, None)
                except cancelled_types():  # noqa: ASYNC103 - of the run, which settles the call below
                    result = _end_past_scope(live, result)
                except Exception as error:  # beside a cancellation that the scope took, or of a body's broken scopes
                    result = end.Raised(error)
                result = _end_body(live, result)
            done = _settle_at_once(live, result)
        except BaseException as error:  # noqa: ASYNC103 - no cancellation: those are results
            if is_closing(task):
                raise
            result, done = end.Unconverted(error), False
        if not done and isinstance(result, end.RunEnding):
            nursery.uncancel()
            await _settle_cancelled(live, result.error)  # shielded inside: a scope would be cancelled anyway
        elif not done:
            with nursery.settling(live):
                await _settle_by(live, result, task)
    except cancelled_types():
        raise
    except BaseException as error:  # noqa: ASYNC103 - carried as a failure: the settling code itself broke
        if is_closing(task):
            live.batch.close()
            raise
        failure = _make_failure(live, error, "post")
    finally:
        if not live.batch.closed:
            if live.begun and live.phase in _UNSETTLED:  # else another task of the call continues it
                live.batch.settle_abandoned(live, failure)
            elif failure is not None:
                live.batch.fail(failure)
            if live.holds_permit or not live.plain:
                live.release_all()
    # Also where its body left a native cancellation behind, by which the task ends as cancelled: the call has settled.
    nursery.leave(task)


async def _settle_by(live: LiveCall, result: end.Ending, task: object) -> None:
    """Settle the call by its body result or by an error around the body, or by the run's cancellation meanwhile."""
    try:
        if isinstance(result, end.Unconverted):
            await _settle_failed(live, result.error)
        else:
            await _settle(live, result)
    except cancelled_types() as cancelled:
        if run_is_cancelled():
            await _settle_cancelled(live)  # noqa: ASYNC120 - shielded inside, and the cancellation continues
            await raise_native_cancel(cancelled)  # noqa: ASYNC120 - does not wait: a cancellation is pending
            raise
        # A cancellation of this task alone, after the body: the body left it behind (a timer, another task).
        uncancel_to(0)
        own = end.Cancelled("tool", end.own_reason(cancelled))
        await in_own_task(partial(_settle, live, own))  # noqa: ASYNC120 - and it may have left more of them
    except BaseException as error:  # noqa: ASYNC103 - carried as a failure; cancellations were dealt with above
        if is_closing(task):
            raise
        await _settle_failed(live, error)  # noqa: ASYNC102 - nothing is being cancelled here


def _restore_result(live: LiveCall, body: BodyEnded) -> end.Ending:
    """Return the body result that an earlier run segment recorded; it ended before the call had settled."""
    live.body = BodyState(None, finished=True)
    if body.failed:
        # A fatal error is no output of the body: the tool's failure policy must not answer it.
        summary = body.error or "the body failed"
        kind, message = summary_parts(body.details or summary)
        if kind == OutcomeUnknown.__name__ and not body.fatal:
            return end.Raised(OutcomeUnknown(message))
        error = EarlierFailure(summary, fatal=body.fatal, details=body.details)
        return end.Raised(error, "around" if body.fatal else "body")
    tool, converter = live.tool.body, live.run.settings.config.converter
    if converter is not None and isinstance(tool, PythonBody):
        return end.Returned(tool.schema.restore(body.value, converter))
    return end.Returned(body.value)


# -- steps 8 to 12


def _classify(live: LiveCall, error: BaseException) -> end.Ending | None:
    """Return the body result that *error* means; None if a scope or the end of the run decides. Within the scope."""
    if isinstance(error, cancelled_types()) and live.batch.nursery.is_ending():
        return None  # as `classify` would find with more effort
    result = end.classify(error)
    if isinstance(result, end.Cancelled):
        uncancel_to(0)
    if isinstance(result, end.Raised) and (live.phase != "body" or is_fatal(result.error)):
        return end.Raised(result.error, "around")
    return result


def _end_past_scope(live: LiveCall, result: end.Ending | None) -> end.Ending | None:
    """Return the body result where a cancellation has left the call's scope: it is the run's, unless it is spurious."""
    if live.batch.nursery.is_ending() or run_is_cancelled():
        return end.RunEnding()
    uncancel_to(0)  # a body's own task.cancel() in the same pass as our scope's: no code above requested it
    return result


_ASKS_AGAIN = "run_llm_again"
"""The `tool_use_behavior` with which no call ends a run."""


def _end_body(live: LiveCall, result: end.Ending | None) -> end.Ending:
    """Return the final body result, once the call's scope has been left.

    An end by itself, with a value or an error, is recorded as `BodyEnded` in the same step, unless the call settles in
    this very step: then `CallSettled` tells both, except for a value that is no text and may end the run.
    """
    if type(result) is end.Returned:  # the most frequent, first
        if live.tool.secret_output:
            live.gave_secret = True
    elif result is None:
        if live.batch.nursery.is_ending():
            return end.RunEnding()  # on asyncio our scope caught it
    elif type(result) in _WITHOUT_RESULT:
        return result
    elif type(result) is end.Raised:
        live.redact_error(result.error)
        if live.batch.nursery.is_ending():
            record_end(live.run)
    body, late = live.body, False
    if body is not None and live.phase == "body":
        late = body.timer is not None and anyio.current_time() >= body.timer.ends_at
        body.ended_at = live.run.tree.log.wall()
        if type(result) is end.Returned and not late and (live.plain or _settles_with_body(live)):
            # `CallSettled` has the value as text. One that may end the run as it is must be in the log, too.
            if not isinstance(result.value, str) and live.run.agent.tool_use_behavior != _ASKS_AGAIN:
                record_body_end(live, result)
        elif isinstance(result, _UNCANCELLED):
            record_body_end(live, result)
        if type(result) is end.Returned and body.timer is None and not live.scope.cancel_called:
            body.finished = True  # as `decide_end` would find: nothing overrules the value
            return result
    return decide_end(live, result, late=late)


# -- steps 13 to 17


def _settle_at_once(live: LiveCall, result: end.Ending) -> bool:
    """Settle the call if nothing may wait for that; return True if the task has nothing more to do.

    A text that no code judges, cuts or stores is the output as it is: most calls settle here, in the step in which
    their body returned, without a scope.
    """
    if isinstance(result, end.Returned):
        output, limit = result.value, live.run.settings.config.tool_execution.max_output_chars
        if type(output) is not str or (limit is not None and len(output) > limit):
            return False
        if not live.plain and not _settles_with_body(live):
            return False
        body = live.body
        assert body is not None
        live.phase = "post"
        hooked = live.hooked
        outcome = CallOutcome(
            status="succeeded",
            output=output,
            value=output,
            body_finished=True,
            abandoned=body.abandoned,
            cleanup=live.cleanup,
            started_at=body.started_at,
            ended_at=live.run.tree.log.wall(),
            cancelled_at=live.cancelled_at,
            secret=bool(hooked) and live.run.state.gives_secret(live.call),  # else the fold marks it
        )
        error = _call_end_hooks_at_once(live, outcome) if hooked else None
        live.batch.settle(live, outcome, None if error is None else _make_failure(live, error, "post"))
        return True
    if isinstance(result, end.Paused):
        live.batch.pause(live)
    return isinstance(result, (end.Paused, end.Deferred))


async def _settle(live: LiveCall, result: end.Ending) -> None:
    """Do steps 13 to 17: give the permit back, convert *result* to an outcome, call the end hooks, settle."""
    live.phase = "post"
    if not isinstance(result, end.Returned) and _surely_raises(live, result):
        live.batch.halt()  # before the permit is given back: the calls that wait for it must not start any more
    live.release_permit()
    if isinstance(result, end.Returned) and _converts_without_waiting(live):
        await _finish(live, await convert(live, result))
        return
    # A sibling's failure gives this a deadline; a cancelled parent ends it at once.
    converted = cut = Converted(live.cut("sibling"))
    with live.run.cleanup.section(shield=False, on_cut=lambda: live.run.cut("post-invoke", live.call_id)):
        converted = await convert(live, result)
    if converted is cut:
        live.cleanup = "cut"
    await _finish(live, converted)


def _surely_raises(live: LiveCall, result: end.Ending) -> bool:
    """Tell whether *result* will certainly be raised: no function of the tool's policy could answer it."""
    match result:
        case end.Raised(error, where):
            fatal = where == "around" or not isinstance(error, Exception)
            if is_in_doubt(live, result):
                return live.tool.in_doubt == "raise"
            return fatal or live.tool.failure_error_function is None
        case end.Faulty() | end.Cancelled("tool" | "caller"):
            return live.tool.failure_error_function is None
        case end.TimedOut():
            return live.tool.timeout_behavior == "raise"
        case _:
            return False


def _settles_with_body(live: LiveCall) -> bool:
    """Tell whether a call whose body has returned settles in the same step: nothing that may wait is called before."""
    return not (live.hooked and _hooks_wait(live)) and _converts_without_waiting(live)


def _hooks_wait(live: LiveCall) -> bool:
    return live.batch.hooks is None or live.batch.hooks.wait


def _converts_without_waiting(live: LiveCall) -> bool:
    """Tell whether conversion of a value runs no application code, so that it never waits and needs no scope."""
    return (
        not live.tool.tool_output_guardrails
        and live.tool.custom_data_extractor is None
        and live.run.settings.config.output_store is None
    )


async def _finish(live: LiveCall, converted: Converted) -> None:
    """Do steps 16 and 17: call the end hooks, settle. Only the cleanup deadline cuts the hooks."""
    outcome, failure = live.complete(converted.outcome), converted.failure
    if isinstance(live.tool.body, ToolSearch):
        from agentloop._core.tool_search import list_found  # few agents search

        outcome = outcome.replace(found=list_found(outcome.value))
    hook_error = await _call_end_hooks(live, outcome) if live.hooked else None
    if hook_error is not None:
        failed = _make_failure(live, hook_error, "post")
        failure = failed if failure is None or isinstance(failure.error, Exception) else failure
    live.batch.settle(live, outcome, failure)


async def _call_end_hooks(live: LiveCall, outcome: CallOutcome) -> BaseException | None:
    """Call the end hook of each object whose start hook was called, in reverse order; return the first error.

    In a task of its own if one may wait, since a body may have left a native cancellation of this one behind.
    """
    if not _hooks_wait(live):
        return _call_end_hooks_at_once(live, outcome)
    hooked, live.hooked = live.hooked, ()
    context = call_context(live)

    async def deliver() -> None:
        for hook in reversed(hooked):  # once one has failed, the later hooks are not called
            await resolve(hook(context, live.run.agent, live.tool, outcome))

    error: BaseException | None = None
    with live.run.cleanup.section(on_cut=lambda: live.run.cut("end hooks", live.call_id)):
        error = (await capture(partial(in_own_task, deliver))).error
    return error


def _call_end_hooks_at_once(live: LiveCall, outcome: CallOutcome) -> BaseException | None:
    """Do the same where no hook waits: in this step, so that a cancellation that is pending reaches none of them."""
    hooked, live.hooked = live.hooked, ()
    context = call_context(live)
    error: BaseException | None = None
    try:
        for hook in reversed(hooked):
            call_at_once(hook, context, live.run.agent, live.tool, outcome)
    except BaseException as raised:  # noqa: ASYNC103 - the call settles with it; a cancellation can't strike here
        error = self_cancelled(raised) if isinstance(raised, cancelled_types()) else raised
    if error is not None and outcome.status == "succeeded" and live.run.state.calls[live.call_id].body is None:
        record_body_end(live, end.Returned(outcome.value))  # that of the call tells of the hook
    return error


async def _settle_cancelled(live: LiveCall, error: BaseException | None = None) -> None:
    """Settle the call as cancelled by its parent or the deadline, if it hasn't settled: the run around it is ending.

    *error* is that of the body's cleanup, if it had one.
    """
    run = live.run
    run.cleanup.begin()
    if live.phase == "settled":
        return
    outcome = live.cut(await find_cancel_source(run), error)
    failed: BaseException | None = None
    try:
        failed = await _call_end_hooks(live, outcome) if live.hooked else None
    finally:  # also when the hooks are cut: the owner waits until the call has settled
        if not live.batch.closed:
            live.batch.settle(live, outcome, None if failed is None else _make_failure(live, failed, "post"))


async def _settle_failed(live: LiveCall, error: BaseException) -> None:
    """Settle the call as failed by *error* of a hook, a guardrail or an error function."""
    live.redact_error(error)
    if live.phase == "settled":
        live.batch.fail(_make_failure(live, error, "post"))
        return
    phase = "post" if live.phase == "post" else "body"
    outcome = CallOutcome(status="failed", error=error)
    await _finish(live, Converted(outcome, _make_failure(live, error, phase)))


def _make_failure(live: LiveCall, error: BaseException, phase: Any) -> Failure:
    live.redact_error(error)
    return Failure(index=live.index, call_id=live.call_id, error=raisable(live, error), phase=phase)
