"""One call, from its permit to its outcome: its steps 8 to 17, in the call's own task.

Which steps a call has is `LiveCall.steps` (`_core/step_order.py`); this is the one text that walks them, for every
call. It doesn't decide which call starts, in which order outputs are released, or which failure the run raises: the
batch does.

* Steps 8 to 12 (up to the end of the body) run in the call's own scope, which the tool's timeouts, `cancel_call` and a
  sibling's failure cancel. They end in a body result (`body_result`). `_reach_end` is the one boundary at which every
  exception becomes a result, and `_decide_end` then lets the call's own scope overrule the body.
* Steps 13 to 17 (conversion, output guardrails, output store, end hooks, outcome) run outside of that scope: the body's
  effect has happened. A sibling's failure only sets a deadline for 13 to 15, and only the cleanup deadline cuts 16. A
  call without such steps, and without end hooks, settles in the very step in which its body ended: its `CallSettled`
  tells that the body has ended, too. Any other call records `BodyEnded` before it waits.

Invariants: the call settles exactly once, in a synchronous step. The task itself ends normally, except for a
cancellation of a scope around the call, which continues after the call has settled as `cancelled`; on asyncio a task
group takes a child that ends cancelled for a reason to cancel all its siblings. Until the task's first step the call
belongs to the batch's owner, which settles it if the task never begins. After that step the call settles no matter how
the task ends. (A task that asyncio cancels before its first step never runs, not even its `finally`.)

A call is cancelled by `LiveCall.cancel` (`cancel_call`, a sibling's failure), by its timeout, which is its scope's
deadline, or by a scope around it (`runtime/cancel_source.py`). The graver cause ends the call: `_core/cancellation.py`
has the order, and what becomes of the call by each. But a body that returned a value in time keeps it, also if a
cancellation was requested in the same step.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from functools import partial

from anyio.lowlevel import cancel_shielded_checkpoint

from agentloop._common.error_text import is_fatal, summary_parts
from agentloop._concurrency.backend import (
    Captured,
    cancelled_types,
    capture_error,
    drop_native_cancel,
    is_cancelled_around,
    is_closing,
    own_task,
    own_task_and_count,
    raise_native_cancel,
    raised_while_cancelled,
    uncancel_to,
)
from agentloop._concurrency.interrupts import uninterrupted
from agentloop._core.failure_choice import Failure
from agentloop._engine.calls.live_call import BodyState, LiveCall
from agentloop._engine.calls.outcome import Draft, draft_outcome, make_failure, record_body_end
from agentloop._engine.calls.steps import call_body, record_start
from agentloop._engine.calls.tool_context import call_context
from agentloop._engine.runtime import body_result as end
from agentloop._engine.runtime.callbacks import resolve
from agentloop._engine.runtime.cancel_source import find_cancel_source, record_end
from agentloop.exceptions import EarlierFailure, OutcomeUnknown
from agentloop.outcomes import CallOutcome
from agentloop.records import BodyEnded
from agentloop.tools import PythonBody, ToolSearch

# We compare classes of body results: `isinstance` takes 0.17 µs for each class of a Struct that doesn't fit.
_OWN_ENDS = frozenset({end.Returned, end.Raised, end.Cancelled})
"""The body results of a body that came to its own end."""
_ENDS_OF_ANSWERS = frozenset({end.Paused, end.TimedOut, end.Refused})
"""The body results that a nested run, the answer to a call, or the lack of a thread gives in place of a value."""
_WITHOUT_BODY_END = frozenset({end.RunEnding, end.Paused, end.Deferred})
_ASKS_AGAIN = "run_llm_again"
"""The `tool_use_behavior` with which a tool's output never ends the run."""


@uninterrupted
async def run_call(live: LiveCall) -> None:
    """Take one admitted call to its outcome, or do its rest. Does nothing if another task of the call has begun before.

    Cancellation: the call settles as `cancelled` first, then the cancellation continues.
    """
    if live.begun:  # the owner has settled the call, or another of its tasks has begun
        return
    live.begun, rest, live.rest = True, live.rest, None
    live.task_context = None  # a variable in it may hold the call
    nursery = live.batch.nursery
    task = None if nursery.on_trio else own_task()
    failure: Failure | None = None
    try:
        try:
            await (_conclude(live, await _reach_end(live, task)) if rest is None else rest())
        except cancelled_types() as cancelled:
            if await _outlast(live, cancelled):  # noqa: ASYNC120 - shielded inside, and the cancellation continues
                raise
        except BaseException as error:  # noqa: ASYNC103 - carried as a failure; cancellations are above
            if is_closing(task):
                raise
            await _conclude(live, end.Unconverted(error))  # noqa: ASYNC102 - nothing is being cancelled here
    except cancelled_types():
        raise
    except BaseException as error:  # noqa: ASYNC103 - carried as a failure: the settling code itself broke
        if is_closing(task):
            live.batch.close()
            raise
        failure = make_failure(live, error, "post")
    finally:
        if not live.batch.closed:
            _leave(live, failure)
    # Also where its body left a native cancellation behind, by which the task ends as cancelled: the call has settled.
    nursery.leave(task)


def _leave(live: LiveCall, failure: Failure | None) -> None:
    """See to it that the call has settled or will, as its task ends; *failure* is the error of the settling itself."""
    if live.rest is not None:  # it has the limits, if the run is ending: else the end of the body gave them back
        return live.batch.spawn(live)
    if live.begun and live.phase in ("starting", "body", "post"):  # else another task of the call continues it
        live.batch.settle_abandoned(live, failure)
    elif failure is not None:
        live.batch.fail(failure)
    if live.holds_permit or live.steps.before:
        live.release_all()


# -- steps 8 to 12


async def _reach_end(live: LiveCall, task: object) -> end.Ending:
    """Take the call up to the end of its body, within its own scope. No error of the call leaves this."""
    if live.earlier.body is not None:
        return _restore_end(live, live.earlier.body)
    result: end.Ending | None = None
    try:
        with live.scope:
            try:
                if (check := live.batch.nursery.check_in_time()) is not None:
                    await check
                result = await _take_steps(live)
            except BaseException as error:  # noqa: ASYNC103 - the call boundary: it classifies every error
                result = _classify(live, error)
                if result is None or is_closing(task):
                    raise
    except cancelled_types():  # noqa: ASYNC103 - of the run, by which the call settles, unless it is spurious
        if live.batch.nursery.is_ending() or is_cancelled_around():
            result = end.RunEnding()
        else:
            uncancel_to(0)  # a body's own task.cancel() in the same pass as our scope's: no code above requested it
    except Exception as error:  # beside a cancellation that the scope took, or of a body's broken scopes
        result = end.Raised(error)
    ended = _end_body(live, result)
    if type(ended) is end.RunEnding:
        live.batch.nursery.uncancel()
    return ended


async def _take_steps(live: LiveCall) -> end.Ending:
    """Do steps 8 to 12: what is asked before the start, the start, the start hooks, the body."""
    if live.earlier.announced:
        live.body = BodyState(live.run.tree.log.wall())
        live.clock = live.batch.nursery.now()
    if live.cancelled is not None:
        return _end_cancelled(live)
    if not live.earlier.announced:
        for step in live.steps.before:
            if (ended := await step(live)) is not None:
                return ended  # type: ignore[no-any-return]  # a step before the body
        record_start(live)
        for step in live.steps.starts:
            await step(live)
    if live.tool.background and not live.batch.in_background:
        return await _settle_now(live)
    live.to("body")
    if (limits := live.steps.limits) is not None:  # not before the start hooks have run
        assert live.body is not None
        now = live.body.began = live.body.idle_since = live.batch.nursery.now()
        # Not read back from the scope, which shows the run's deadline if that is earlier.
        live.body.ends_at = live.scope.deadline = limits.end(now, now)
    value = await call_body(live)
    return value if type(value) in _ENDS_OF_ANSWERS else end.Returned(value)


async def _settle_now(live: LiveCall) -> end.Refused:
    """Return the end of a background call, whose body begins in the step in which the call settles. Never waits.

    But in a replay, which has no body, it waits until the log shows what became of the call.
    """
    background = live.run.background
    assert background is not None  # opened for the plan that has the call
    if live.run.tree.log.replays:
        await call_body(live)
    background.take_over(live)
    text = f"Tool '{live.tool.name}' runs in the background. The result of call {live.call_id} comes as a message."
    return end.Refused(CallOutcome(status="succeeded", output=text))


def _restore_end(live: LiveCall, body: BodyEnded) -> end.Ending:
    """Return the body result that an earlier run segment recorded; it ended before the call had settled."""
    live.body = BodyState(None, finished=True)
    if body.failed:
        # A fatal error is not an output of the body: the tool's failure policy must not answer it.
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


def _classify(live: LiveCall, error: BaseException) -> end.Ending | None:
    """Return the body result that *error* means; None if a scope or the end of the run decides. Within the scope."""
    result = end.classify(error)
    if isinstance(result, end.Cancelled):
        uncancel_to(0)
    if isinstance(result, end.Raised) and (live.phase != "body" or is_fatal(result.error)):
        return end.Raised(result.error, "around")
    return result


def _end_body(live: LiveCall, result: end.Ending | None) -> end.Ending:
    """Return the final body result, once the call's scope has been left."""
    if type(result) in _WITHOUT_BODY_END:
        assert result is not None
        return result
    if result is None and live.batch.nursery.is_ending():
        return end.RunEnding()  # on asyncio our scope caught it
    if type(result) is end.Raised and result.error is not live.arguments.fault:  # which the model may hear of
        live.redact_error(result.error)
        if live.batch.nursery.is_ending():
            record_end(live.run)
    late = live.phase == "body" and _note_end(live, result)
    return _decide_end(live, result, late=late)


def _note_end(live: LiveCall, result: end.Ending | None) -> bool:
    """Note that the body has ended; tell whether its timeout had passed.

    An error, and a value that `CallSettled` can't tell, are recorded in the same step.
    """
    body = live.body
    assert body is not None
    late = body.ends_at < math.inf and live.batch.nursery.now() >= body.ends_at
    body.ended_at = live.run.tree.log.wall()
    if type(result) is end.Raised:
        record_body_end(live, result)
    elif type(result) is end.Returned:
        body.gave_secret = live.tool.secret_output
        # The log needs a value as it is that isn't text and may be the run's final output.
        if late or (not isinstance(result.value, str) and live.run.agent.tool_use_behavior != _ASKS_AGAIN):
            record_body_end(live, result)
    return late


def _decide_end(live: LiveCall, result: end.Ending | None, *, late: bool) -> end.Ending:
    """Return the final body result: *result*, unless the call's own scope, its timeout or the run's end overrules it.

    *late* says whether the timeout had passed when the body ended. A late value or error is reported to instruments.
    """
    ours = live.scope.cancel_called or late  # read before the question below, which may cancel the scope
    ending = (ours or not isinstance(result, end.Returned)) and live.batch.nursery.is_ending()
    error = _find_cleanup_error(result) if ours or ending else None
    if error is not None:
        live.report_late(error=error)
        result = None
    if live.body is not None and live.phase == "body":
        live.body.finished = type(result) in _OWN_ENDS
    if result is None:
        return end.RunEnding(error) if ending else _end_cancelled(live, error)
    return _end_cancelled(live) if ours and _gives_way(live, result, late) else result


def _find_cleanup_error(result: end.Ending | None) -> BaseException | None:
    """Return the ordinary error that was raised while a cancellation was passing through the body; else None."""
    if not isinstance(result, end.Raised) or not isinstance(result.error, Exception):
        return None
    return result.error if raised_while_cancelled(result.error) else None


def _gives_way(live: LiveCall, result: end.Ending, late: bool) -> bool:
    """Tell whether *result* gives way to the cancellation of the call's own scope, or to its timeout (*late*)."""
    if late and isinstance(result, end.Returned):
        live.report_late(value=result.value)
        return True
    return isinstance(result, end.Cancelled)


def _end_cancelled(live: LiveCall, error: BaseException | None = None) -> end.Ending:
    """Return the body result of a call whose own scope was cancelled: by a request, or by a timeout without one.

    *error* is the error of the body's cleanup, if it had one.
    """
    request, body, limits = live.cancelled, live.body, live.steps.limits
    if request is not None:
        if request.cause == "sibling":
            return end.Cancelled("sibling", "another call failed", error)
        return end.Cancelled("caller", request.reason or "cancelled by the application")
    if body is None or limits is None or body.ends_at == math.inf:
        return end.TimedOut(live.tool.timeout or 0.0)
    if body.started_at is not None:
        live.note_cancelled(body.started_at + body.ends_at - live.clock)
    return end.TimedOut(limits.passed(body.idle_since, body.ends_at))


# -- steps 13 to 17


async def _conclude(live: LiveCall, ended: end.Ending) -> None:
    """Do steps 13 to 17: make the outcome of *ended* by the tool's policies, call the end hooks, settle."""
    if type(ended) is end.Deferred:
        return  # the call waits again, or an equal one has answered it
    if type(ended) is end.Paused:
        live.batch.pause(live)
        return
    if live.phase == "settled":  # an error of the very step that settled it
        if type(ended) is end.Unconverted:
            live.batch.fail(make_failure(live, ended.error, "post"))
        return
    if type(ended) is end.RunEnding:
        draft = await _draft_of_run(live, ended)
    else:
        draft = draft_outcome(live, ended)
        _give_way(live, ended, draft)
        if draft.steps:
            draft = await _take_last_steps(live, draft)
    outcome, failure = live.complete(draft.outcome), draft.failure
    if type(live.tool.body) is ToolSearch:
        from agentloop.agents._tool_search import list_found  # few agents search

        outcome = outcome.replace(found=list_found(outcome.value))
    if live.hooked:
        await _finish_apart(live, partial(_call_end_hooks, live, outcome, failure, draft.summary))
    else:
        live.batch.settle(live, outcome, failure, draft.summary)


async def _finish_apart(live: LiveCall, rest: Callable[[], Awaitable[None]]) -> None:
    """Let *rest* end the call where no native cancellation reaches it that the body left behind for the current task.

    So on asyncio another task of the call does it, which starts when this one is over.
    """
    nursery = live.batch.nursery
    if nursery.on_trio:
        await cancel_shielded_checkpoint()  # it begins in the next pass, as on asyncio: so both give one log
        await rest()
    else:
        if nursery.is_group:  # it would be cancelled with a task that ends as cancelled
            await drop_native_cancel()
        live.rest, live.task_context, live.begun = rest, copy_context(), False


def _give_way(live: LiveCall, ended: end.Ending, draft: Draft) -> None:
    """Give the permit back, as the body has ended. What this call may wait for now is durable first."""
    if live.phase != "post":  # else the settling begins once more
        live.to("post")
    if draft.failure is not None:
        live.batch.halt()  # before the permit is given back: the calls that wait for it must not start any more
    settles_now = not draft.steps and not live.hooked and draft.outcome.status == "succeeded"
    if type(ended) is end.Returned and not settles_now and live.run.state.calls[live.call.call_id].body is None:
        record_body_end(live, ended)
    if live.holds_permit or live.steps.before:
        live.release_all()


async def _take_last_steps(live: LiveCall, draft: Draft) -> Draft:
    """Do steps 13 to 15. A sibling's failure gives them a deadline; a cancelled parent ends them at once."""
    run = live.run
    done: list[Draft] = []
    with live.batch.nursery.settling(live):
        with run.cleanup.section(shield=False, on_cut=lambda: run.cut("post-invoke", live.call_id)):
            for step in draft.steps:
                draft = await step(live, draft)
                if draft.failure is not None:
                    break
            done.append(draft)
        if not done:
            live.cleanup = "cut"
            done.append(Draft(live.cut("sibling")))
    return done[0] if done else await _draft_of_run(live, end.RunEnding())


async def _draft_of_run(live: LiveCall, ended: end.RunEnding) -> Draft:
    """Return the draft of a call that its parent or the deadline has cancelled: the run around it is ending."""
    live.run.cleanup.begin()
    return Draft(live.cut(await find_cancel_source(live.run), ended.error))  # shielded inside


async def _call_end_hooks(live: LiveCall, outcome: CallOutcome, failure: Failure | None, summary: str | None) -> None:
    """Call the end hook of each object whose start hook was called, in reverse order; then settle the call.

    Only the cleanup deadline cuts the hooks. Once one has failed, the later ones are not called.
    """
    hooked, live.hooked = live.hooked, ()
    context = call_context(live)
    with live.run.cleanup.section(on_cut=partial(live.run.cut, "end hooks", live.call_id)):
        task, count = own_task_and_count()
        try:
            for hook in reversed(hooked):
                await resolve(hook(context, live.run.agent, live.tool, outcome))
        except BaseException as error:  # noqa: ASYNC103 - carried as a failure, or raised again
            failure = _choose_failure(live, failure, await capture_error(error, task, count))  # noqa: ASYNC102 - no wait
    live.batch.settle(live, outcome, failure, summary)
    del failure  # the traceback of its error holds this frame


def _choose_failure(live: LiveCall, failure: Failure | None, of_hooks: Captured) -> Failure | None:
    """Return the failure of a call whose end hooks have ended with an error: *failure*, its own, if that is fatal."""
    if of_hooks.error is None or (failure is not None and not isinstance(failure.error, Exception)):
        return failure
    return make_failure(live, of_hooks.error, "post")


async def _outlast(live: LiveCall, cancelled: BaseException) -> bool:
    """Settle the call although *cancelled* has interrupted its settling; return True if the cancellation is the run's.

    Else it is a cancellation of only this task, which the body left behind (by a timer, or in another task). There may
    be more of them.
    """
    if is_cancelled_around():
        await _conclude(live, end.RunEnding())  # shielded inside
        await raise_native_cancel(cancelled)  # does not wait: a cancellation is pending
        return True
    uncancel_to(0)
    own = end.Cancelled("tool", end.own_reason(cancelled))
    await _finish_apart(live, partial(_conclude, live, own))
    return False
