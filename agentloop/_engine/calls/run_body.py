"""Steps 8 to 12 of one call: the last questions before its body, the record of its start, its start hooks, its body.

In the call's own scope, which its timeouts, `cancel_call` and a sibling's failure cancel. Does not classify what the
body raises: `call` does.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from types import CoroutineType
from typing import TYPE_CHECKING, Any

import anyio

from agentloop import effects as e
from agentloop._concurrency.backend import checkpoint_if_cancelled
from agentloop._concurrency.interrupts import interruptible, uninterrupted
from agentloop._core.call_identity import find_tool
from agentloop._core.plan import read_arguments
from agentloop._engine.calls.call_cancellation import classify_cancel
from agentloop._engine.calls.live_call import BodyClock, BodyState, LiveCall
from agentloop._engine.calls.tool_context import call_context
from agentloop._engine.runtime import body_result as end
from agentloop._engine.runtime.callbacks import ToolHooks, call_at_once, call_user, resolve
from agentloop.context import Callback, ToolContext
from agentloop.exceptions import OutcomeUnknown
from agentloop.outcomes import CallOutcome
from agentloop.records import CallStarted
from agentloop.spans import set_current_span
from agentloop.tools import AgentCall, PythonBody, RawBody, may_run_again

if TYPE_CHECKING:
    from agentloop._schema.function_schema import BoundArguments


async def prepare_body(live: LiveCall) -> end.Ending | None:
    """Do steps 8 and 9 and take a thread slot; return the body result if the call ends without its body, else None.

    Raises:
        BaseException: the error of the tool's `cost`, a callback or a guardrail.
    """
    run, tool = live.run, live.tool
    if live.cause is not None:
        return classify_cancel(live)
    if live.earlier.announced:
        return None
    if live.charge is not None and live.charge.error is not None:
        raise live.charge.error
    if live.charge is not None and live.charge.reservation is None:
        text = f"Tool '{tool.name}' was not started: the run's budget is spent."
        return end.Refused(CallOutcome(status="skipped", output=text, ended_at=run.tree.log.wall()))
    if tool.is_enabled is not True and not (_is_exposed(live) and await _check_enabled(live)):
        text = f"Tool '{tool.name}' is no longer available."
        return end.Refused(CallOutcome(status="skipped", output=text, ended_at=run.tree.log.wall()))
    if tool.tool_input_guardrails:
        judged = await _run_input_guardrails(live)
        if judged is not None:
            return judged
    if tool.tool_input_guardrails or tool.is_enabled is not True:
        await checkpoint_if_cancelled()  # a callback that shields itself may have hidden the end of the run
    if live.arguments.fault is not None:
        return end.Faulty(live.arguments.fault)
    if tool.runs_in_thread:
        place = await run.settings.threads.place(live, tool.name)
        if isinstance(place, str):
            return end.Refused(CallOutcome(status="skipped", output=place, ended_at=run.tree.log.wall()))
        live.place = place
    return None


def _is_exposed(live: LiveCall) -> bool:
    """Tell whether the turn still has the tool (step 8): it may have been removed while the call waited."""
    view, call = live.run.turn.view, live.call
    return view is None or find_tool(view.by_key, call.name, call.namespace) is live.tool


async def _check_enabled(live: LiveCall) -> bool:
    """Call the tool's `is_enabled` again (step 8): it may have been disabled while the call waited."""
    run, fn = live.run, live.tool.is_enabled
    if not callable(fn):
        return False
    return bool(await run.call_callback("is_enabled", live.call_id, lambda: call_user(fn, run.context, run.agent)))


async def _run_input_guardrails(live: LiveCall) -> end.Ending | None:
    """Run the input guardrails in order (step 9); return the body result if the call ends or waits, else None.

    Rewritten arguments are parsed again and pass the policies again; an equal call may have answered them already.
    """
    from agentloop._engine.calls.approval import denial
    from agentloop._engine.calls.tool_guardrails import judge_input

    judged = await judge_input(live, call_context(live))
    if isinstance(judged, CallOutcome):
        return end.Refused(judged)
    if isinstance(judged, Exception):
        return end.Raised(judged, "around")
    if judged is not None:
        config = live.run.settings.config
        rewritten = read_arguments(live.tool, judged, config.json_limits, config.converter)
        if (denied := await denial(live.run, live.call, live.tool, rewritten)) is not None:
            return end.Refused(denied.replace(ended_at=live.run.tree.log.wall()))
        await checkpoint_if_cancelled()  # a call that is being cancelled must not return to waiting
        if not live.batch.rekey(live, rewritten):
            return end.Deferred()
        live.context = None  # it had the text of the earlier arguments
    return None


def start_plain(live: LiveCall, task: object) -> Awaitable[Any]:
    """Do steps 10 to 12 of a plain call: record the start and return the body under way, in *task* (None on trio).

    The same as `run_body`, without the steps that a plain call doesn't have.
    """
    body, bound = live.tool.body, live.bound
    assert isinstance(body, PythonBody)
    assert bound is not None
    _append_start(live)
    if (journal := live.run.tree.log.journal) is not None:
        journal.check()  # its appends never wait, so the start is durable unless it has failed
    if live.holds_permit:
        live.spend_starts()
    if live.batch.hooks is not None:
        _call_start_hooks_at_once(live, live.batch.hooks)
    live.phase = "body"
    context = call_context(live) if body.schema.context_parameter is not None else None
    if task is None:
        live.coro = value = _call_plain(bound, body.fn, context)
        return value
    # No interrupt tears code on asyncio, so the body needs no frame of ours around it: 0.7 µs of a call in a batch.
    value = bound.call(body.fn, context)
    live.coro = value = value if isinstance(value, CoroutineType) or inspect.isawaitable(value) else resolve(value)
    return value


@interruptible
async def _call_plain(bound: BoundArguments, fn: Callable[..., Any], context: ToolContext[Any] | None) -> Any:
    value = bound.call(fn, context)
    return await value if isinstance(value, CoroutineType) or inspect.isawaitable(value) else value


async def run_body(live: LiveCall) -> end.Ending:
    """Do steps 10 to 12: record the start, call the start hooks, run the body."""
    run, context = live.run, call_context(live)
    try:
        if live.earlier.announced:
            body = live.body = BodyState(run.tree.log.wall())
            live.clock = live.batch.nursery.now()
        else:
            body = _append_start(live)
            await _announce_start(live, context)
        live.phase = "body"
        body.timer = _start_timer(live)
        do = _make_body_function(live, context)
        if (journal := run.tree.log.journal) is not None:
            journal.check()  # a lease may have passed since the start became durable
        if live.holds_permit:
            live.spend_starts()
        live.coro = run.tree.effects.perform(
            e.CallTool(
                run.path,
                live.call_id,
                live.earlier.attempt,
                do,
                context.tool_name,
                context.tool_arguments,
                context.idempotency_key,
                context,
                isinstance(live.tool.body, AgentCall),
            )
        )
        value = await live.coro
    finally:
        live.coro = None
        if live.place is not None and live.place.ident is None:
            run.settings.threads.give_back(live.place)  # no thread has come to it
    return value if isinstance(value, end.Paused) else end.Returned(value)


def _append_start(live: LiveCall) -> BodyState:
    """Do step 10: append `CallStarted`, and spend the budget reserved for the call."""
    run, reserved = live.run, None if live.charge is None else live.charge.reservation
    state, at = run.state, run.tree.log.wall()
    body = live.body = BodyState(at)
    live.clock = live.batch.nursery.now()
    run.tree.log.append(
        CallStarted(
            state.path,
            state.turn,
            at,
            live.call_id,
            live.tool.name,
            live.text,
            attempt=live.earlier.attempt,
            queued_at=live.batch.queued_at,
            waited_for=live.ticket.waited_for if live.ticket is not None else (),
            cost=f"{reserved.cost:f}" if reserved is not None and reserved.cost else None,
        )
    )
    if reserved is not None and run.settings.budget is not None:
        run.settings.budget.spend(reserved)
    return body


async def _announce_start(live: LiveCall, context: ToolContext[Any]) -> None:
    """Do step 11. When this returns, the start is durable and the start hooks have run."""
    run = live.run
    log = run.tree.log
    if log.spans is not None:
        set_current_span(log.spans.call_span(run.path, live.call_id))
    if log.journal is not None:
        await log.journal.durable()
    if live.batch.hooks is not None:
        for start, finish in live.batch.hooks.pairs:
            _expect_end_hook(live, finish)
            if start is not None:
                await resolve(start(context, run.agent, live.tool))


def _call_start_hooks_at_once(live: LiveCall, hooks: ToolHooks) -> None:
    """Do the part of step 11 that a plain call has: its hooks never wait."""
    if not hooks.has_starts:
        live.hooked = hooks.ends
        return
    for start, finish in hooks.pairs:
        _expect_end_hook(live, finish)
        if start is not None:
            call_at_once(start, call_context(live), live.run.agent, live.tool)


def _expect_end_hook(live: LiveCall, finish: Callback | None) -> None:
    if finish is not None:
        live.hooked = [*live.hooked, finish]


def _start_timer(live: LiveCall) -> BodyClock | None:
    """Start the clocks of `timeout` and `idle_timeout`, if the tool has one; not before the start hooks have run."""
    limits = [seconds for seconds in (live.tool.timeout, live.tool.idle_timeout) if seconds is not None]
    if not limits:
        return None
    now = anyio.current_time()
    # Not read back from the scope, which shows the run's deadline if that is earlier.
    ends_at = live.scope.deadline = now + min(limits)
    return BodyClock(now, now, ends_at)


def _make_body_function(live: LiveCall, context: ToolContext[Any]) -> Callable[[], Any]:
    """Return a function that calls the body and returns an awaitable.

    A `partial` and not a closure, of which every call in flight would have its own.
    """
    match live.tool.body:
        case PythonBody() as body:
            do = partial(_call_on_loop if body.schema.is_async else _call_in_thread, live, body, context)
            return partial(_call_until_known, do) if may_run_again(live.tool) else do
        case RawBody(fn):
            raw = partial(call_user, fn, context, live.text)
            return partial(_call_until_known, raw) if may_run_again(live.tool) else raw
        case AgentCall() as body:
            return partial(live.run.tree.nest, live.run, live.call, live.arguments, body)
        case None:  # pragma: no cover - a FunctionTool always has a body once it is made
            raise AssertionError


async def _call_until_known(do: Callable[[], Awaitable[Any]]) -> Any:
    """Call a body that may be run again, once more where it can't tell whether it took effect: one effect for both.

    Within the call's scope and its timeout. Only once: a body that never knows must not keep the run.
    """
    try:
        return await do()
    except OutcomeUnknown:
        pass
    return await do()


def _call_on_loop(live: LiveCall, body: PythonBody, context: ToolContext[Any]) -> Awaitable[Any]:
    bound = live.bound
    assert bound is not None
    value = bound.call(body.fn, context)
    return value if inspect.isawaitable(value) else resolve(value)


@uninterrupted
async def _call_in_thread(live: LiveCall, body: PythonBody, context: ToolContext[Any]) -> Any:
    bound, place = live.bound, live.place
    assert bound is not None
    assert place is not None

    try:
        value = await live.run.settings.threads.run(
            place, lambda: bound.call(body.fn, context), abandon=live.tool.abandon_on_cancel, late=live.report_late
        )
    finally:
        if live.body is not None:
            live.body.abandoned = place.abandoned
    return await resolve(value)
