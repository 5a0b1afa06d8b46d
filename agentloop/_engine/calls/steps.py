"""The steps of a call around its body, each a function: those that may wait, up to the body and after it.

Which calls have which step is the table in `_core/step_order.py`; `call` walks them. A step *before* the body returns
how the call ends if it ends there, else None. A step *after* the body takes a draft of the outcome and returns the
next draft (`outcome`).

All steps are cancellable wherever they wait. They don't know about scopes: `call` bounds them.

Decisions:

A body that computes, or waits without `await`, blocks the event loop: no other call, no timeout, no cancellation. That
shows in no record, so we take the time of each step of an async body, from one wait to the next, in real time, also
where the loop's own clock is a virtual one, and log a line. Only a generator around the body sees both ends of each
step. It takes 0.4 µs of a call, which we saved at `LiveEffects.perform`: it adds no coroutine to a body any more.
Rejected: asyncio's debug mode, which makes every task slower, names no tool, and doesn't exist on trio; and a thread
that watches the loop, which can't tell which body blocks.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from functools import partial
from types import CoroutineType, coroutine
from typing import Any, Literal, TypeAlias

from agentloop._common.errors import AnswerError, UnwritableValue
from agentloop._common.failed_tool_text import tell_error
from agentloop._concurrency.backend import checkpoint_if_cancelled
from agentloop._concurrency.interrupts import interruptible, uninterrupted
from agentloop._core.call_identity import find_tool
from agentloop._core.failure_choice import Failure
from agentloop._engine.calls.live_call import BodyState, LiveCall, Step
from agentloop._engine.calls.outcome import Draft, draft_failure, tell
from agentloop._engine.calls.output_text import cut_output, texts_of
from agentloop._engine.calls.tool_context import call_context
from agentloop._engine.runtime import body_result as end
from agentloop._engine.runtime.callbacks import call_user, log_error, resolve
from agentloop._engine.runtime.live_run import LiveRun
from agentloop.abc import effects as e
from agentloop.context import ToolContext
from agentloop.exceptions import OutcomeUnknown, ToolOutputGuardrailTripwireTriggered, UserTypeError
from agentloop.items import ToolCall
from agentloop.outcomes import CallOutcome
from agentloop.records import AnswerRequested, CallStarted
from agentloop.settings import ToolErrorArgs
from agentloop.spans import set_current_span
from agentloop.tools import AgentCall, ExternalBody, PythonBody, RawBody, default_tool_error_function, may_run_again

logger = logging.getLogger("agentloop")

_ErrorKind: TypeAlias = Literal["tool_not_found", "approval_rejected", "tool_exception"]

LONGEST_STEP = 0.2
"""Seconds that a step may take before it is worth a line."""

clock: Callable[[], float] = time.perf_counter
"""The clock of the steps. A test takes another one, because no test may depend on how fast the machine is."""

# -- 8 and 9: before the start


def _refuse(text: str) -> end.Refused:
    return end.Refused(CallOutcome(status="skipped", output=text))


async def check_budget(live: LiveCall) -> end.Ending | None:
    """End the call if the budget is spent. The budget was asked at the call's admission."""
    charge = live.charge
    if charge is not None and charge.error is not None:
        raise charge.error
    if charge is not None and charge.reservation is None:
        return _refuse(f"Tool '{live.tool.name}' was not started: the run's budget is spent.")
    return None


async def check_enabled(live: LiveCall) -> end.Ending | None:
    """End the call if its tool was removed or disabled while the call waited."""
    run, call, fn = live.run, live.call, live.tool.is_enabled
    is_exposed = run.view is None or find_tool(run.view.by_key, call.name, call.namespace) is live.tool
    enabled = is_exposed and callable(fn) and await run.ask("is_enabled", live.call_id, fn, run.context, run.agent)
    if not enabled:
        return _refuse(f"Tool '{live.tool.name}' is no longer available.")
    await checkpoint_if_cancelled()  # a callback that shields itself may have hidden the end of the run
    return None


async def judge_input(live: LiveCall) -> end.Ending | None:
    """Run the input guardrails in order. One may refuse the call, trip, or write other arguments."""
    from agentloop._engine.calls.tool_guardrails import judge_input as judge

    judged = await judge(live.run, live.call, live.tool, live.arguments, call_context(live))
    if isinstance(judged, CallOutcome):
        return end.Refused(judged)
    ended = None if judged is None else await _rewrite(live, judged)
    if ended is None:
        await checkpoint_if_cancelled()  # as in `check_enabled`
    return ended


async def _rewrite(live: LiveCall, text: str) -> end.Ending | None:
    """Give the call the arguments in *text*: they pass the policies again, and an equal call may have answered them."""
    from agentloop._engine.calls.approval import denial

    rewritten = live.run.read_arguments(live.tool, text)
    if (denied := await denial(live.run, live.call, live.tool, rewritten)) is not None:
        return end.Refused(denied)
    await checkpoint_if_cancelled()  # a call that is being cancelled must not return to waiting
    if not live.batch.rekey(live, rewritten):
        return end.Deferred()
    live.context = None  # it had the text of the earlier arguments
    return None


async def check_arguments(live: LiveCall) -> end.Ending | None:
    """End the call if its arguments don't fit the tool."""
    fault = live.arguments.fault
    return None if fault is None else end.Raised(fault)


async def take_thread(live: LiveCall) -> end.Ending | None:
    """Take a worker thread for a sync body; end the call if it would wait for one for ever."""
    place = await live.run.settings.threads.place(live, live.tool.name)
    if isinstance(place, str):
        return _refuse(place)
    live.place = place
    return None


# -- 10 and 11: the start


def record_start(live: LiveCall) -> None:
    """Append `CallStarted`, and spend the budget that is reserved for the call."""
    run, reserved = live.run, None if live.charge is None else live.charge.reservation
    state, at = run.state, run.tree.log.wall()
    live.body = BodyState(at)
    live.clock = live.batch.nursery.now()
    run.tree.log.append(
        CallStarted(
            state.path,
            state.turn,
            at,
            live.call.call_id,
            live.tool.name,
            live.arguments.text,
            attempt=live.earlier.attempt,
            queued_at=live.batch.queued_at,
            waited_for=live.ticket.waited_for if live.ticket is not None else (),
            cost=f"{reserved.cost:f}" if reserved is not None and reserved.cost else None,
        )
    )
    if reserved is not None and run.settings.budget is not None:
        run.settings.budget.spend(reserved)


async def enter_span(live: LiveCall) -> None:
    """Make the call's span the current one."""
    spans = live.run.tree.log.spans
    assert spans is not None
    set_current_span(spans.call_span(live.run.path, live.call_id))


async def wait_for_journal(live: LiveCall) -> None:
    """Wait until the start is durable: no effect may happen that a crash would forget."""
    journal = live.run.tree.log.journal
    assert journal is not None
    await journal.durable()


async def call_start_hooks(live: LiveCall) -> None:
    """Call the start hooks. An object whose start hook fails hears of the call's end, too."""
    context = call_context(live)
    for start, finish in live.batch.hooks:
        if finish is not None:
            live.hooked = [*live.hooked, finish]
        if start is not None:
            await resolve(start(context, live.run.agent, live.tool))


# -- 12: the body


def call_body(live: LiveCall) -> Awaitable[Any]:
    """Return the body under way, done by the run's effects."""
    run, tool = live.run, live.tool
    if (journal := run.tree.log.journal) is not None:
        journal.check()  # a lease may have passed since the start became durable
    if live.holds_permit:
        live.spend_starts()
    live.coro = value = run.tree.effects.perform(
        e.CallTool(
            run.state.path,
            live.call.call_id,
            live.earlier.attempt,
            _body_function(live),
            tool.name,
            live.arguments.text,
            type(tool.body) is AgentCall,
            tool,
            partial(call_context, live),
        )
    )
    return value


def _body_function(live: LiveCall) -> Callable[[], Any]:
    """Return a function that calls the body and returns an awaitable.

    A `partial` and not a closure, of which every call in flight would have its own.
    """
    body = live.tool.body
    do: Callable[[], Awaitable[Any]]
    if isinstance(body, PythonBody):
        do = partial(_call_on_loop if body.schema.is_async else _call_in_thread, live, body)
    elif isinstance(body, AgentCall):
        return partial(live.run.tree.nest, live.run, live.call, live.arguments, body)
    elif isinstance(body, ExternalBody):
        return partial(_take_answer, live, body)
    else:
        assert isinstance(body, RawBody)  # a FunctionTool always has a body once it is made
        do = partial(_call_raw, live, body)
    return partial(_call_until_known, do) if may_run_again(live.tool) else do


async def _take_answer(live: LiveCall, body: ExternalBody) -> Any:
    """Return the answer of the application from the log; `Paused` until there is one.

    Raises:
        AnswerError: the application answered with an error.
    """
    run, state, timeout = live.run, live.run.state.calls[live.call_id], live.tool.timeout
    if state.question is None:
        path, turn, at = run.here()
        ends = None if timeout is None else at + timeout
        run.tree.log.append(
            AnswerRequested(path, turn, at, live.call_id, run.agent_key, live.tool.lookup_key, body.returns, ends)
        )
        return end.Paused()
    if (answer := state.answer) is None:
        return end.Paused()
    if answer.late:
        return end.TimedOut(timeout or 0.0)
    if answer.failed:
        raise AnswerError(answer.value)
    return answer.value


async def _call_until_known(do: Callable[[], Awaitable[Any]]) -> Any:
    """Call a body that may be run again, once more where it can't tell whether it took effect: one effect for both.

    Within the call's scope and its timeout. Only once: a body that never knows must not keep the run.
    """
    try:
        return await do()
    except OutcomeUnknown:
        pass
    return await do()


def _context_for(live: LiveCall, body: PythonBody) -> ToolContext[Any] | None:
    """Return the context of the call if the function takes one, as few do."""
    return None if body.schema.context_parameter is None else call_context(live)


def _call_on_loop(live: LiveCall, body: PythonBody) -> Awaitable[Any]:
    bound = live.arguments.bound
    assert bound is not None
    value = bound.call(body.fn, _context_for(live, body))
    return _watch(live, _run_on(value)) if isinstance(value, CoroutineType) else resolve(value)


@interruptible
async def _run_on(body: Coroutine[Any, Any, Any]) -> Any:
    return await body


def _call_raw(live: LiveCall, body: RawBody) -> Awaitable[Any]:
    return _watch(live, call_user(body.fn, call_context(live), live.arguments.text))


@uninterrupted
async def _call_in_thread(live: LiveCall, body: PythonBody) -> Any:
    if live.place is None and (refused := await take_thread(live)) is not None:  # in the background, in a resumed run
        return refused
    bound, place, context = live.arguments.bound, live.place, _context_for(live, body)
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


@uninterrupted
@coroutine
def _watch(live: LiveCall, body: Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
    """Await *body* of the call *live*, and log a warning of a step that has blocked the event loop.

    *body* can't tell the difference: what is sent and thrown into us goes to it, with the traceback that it came with.
    It is marked as interruptible, and we aren't: an interrupt between two of its steps would leave it, with the scopes
    that it has open, before its end.
    """
    live.coro = body
    answer, error, value = None, None, None
    while True:
        began = clock()
        try:
            wanted = body.send(answer) if error is None else body.throw(error)
        except StopIteration as stop:
            value = stop.value
            break
        finally:
            if clock() - began > LONGEST_STEP:
                _warn_of_blocking(live, clock() - began)
            answer = error = None  # an error holds this frame, also within what trio sends
        try:
            answer = yield wanted
        except GeneratorExit:
            body.close()
            raise
        except BaseException as thrown:  # noqa: ASYNC103 - thrown into the body, outside of this block
            error = thrown.with_traceback(None if thrown.__traceback__ is None else thrown.__traceback__.tb_next)
    return value


def _warn_of_blocking(live: LiveCall, seconds: float) -> None:
    """Log that the body of *live* has blocked the loop, unless one of the same tool has before in this run."""
    live.run.tree.warn_once(
        f"blocking {live.tool.lookup_key}",
        f"call {live.call_id} of tool {live.tool.name!r} blocked the event loop for {seconds:.1f} s: nothing else ran, "
        f"not even a timeout. Make the tool a plain def, it then runs in a thread; or, in an async def, await "
        f"anyio.to_thread.run_sync(...) for what blocks",
    )


# -- 13 to 15: after the body


async def extract_custom_data(live: LiveCall, draft: Draft) -> Draft:
    """Ask the application for its own data about the body's value."""
    fn = live.tool.custom_data_extractor
    assert fn is not None
    context, value = call_context(live), draft.outcome.value
    custom = await live.run.call_callback("custom_data_extractor", live.call_id, fn, context, value)
    return draft.replace(outcome=draft.outcome.replace(custom_data=custom))


async def write_failure(live: LiveCall, draft: Draft) -> Draft:
    """Ask the application for the text that the model receives of an error; without one the run raises the error."""
    fn, error = live.tool.failure_error_function, draft.outcome.error
    formats = live.run.settings.config.tool_execution.error_formatter is not None
    is_usual = fn is default_tool_error_function and draft.outcome.status == "failed"
    if formats and is_usual and isinstance(error, Exception):
        usual, redact = tell_error(live.tool.name, error), live.redacts_errors
        told = await format_tool_error(live.run, "tool_exception", live.call, error, usual, redact=redact)
        return tell(live, draft, usual if told is None else told, secret=told is not None and redact)
    text = await _ask(live, "failure_error_function", fn, draft)
    # A text of the application's own function may repeat a secret: only the model receives it.
    return tell(live, draft, text, secret=fn is not default_tool_error_function and live.redacts_errors)


async def format_tool_error(
    run: LiveRun, kind: _ErrorKind, call: ToolCall, error: BaseException | None, usual: str, *, redact: bool
) -> str | None:
    """Return the text that the `tool_error_formatter` gives in place of the *usual* one; None if it gives none."""
    formatter = run.settings.config.tool_execution.error_formatter
    if formatter is None:
        return None
    args = ToolErrorArgs(kind=kind, tool=call.name, call_id=call.call_id, error=error, default=usual)
    try:
        text = await run.call_callback("tool_error_formatter", call.call_id, formatter, args)
    except Exception as failure:
        log_error(failure, "tool_error_formatter raised; the default text is used", redact=redact)
        return None
    if text is None or isinstance(text, str):
        return text
    given = type(text).__name__
    logger.warning("tool_error_formatter returned a value of type %s, not text; the default text is used", given)
    return None


async def write_timeout(live: LiveCall, draft: Draft) -> Draft:
    """Ask the application for the text that the model receives of a timeout; without one our own text stays."""
    text = await _ask(live, "timeout_error_function", live.tool.timeout_error_function, draft)
    return tell(live, draft, text, secret=live.redacts_errors) if text else draft


async def _ask(live: LiveCall, what: str, fn: Any, draft: Draft) -> str | None:
    context, error = call_context(live), draft.outcome.error
    text = await live.run.call_callback(what, live.call_id, fn, context, error)
    if text is not None and not isinstance(text, str):
        raise UserTypeError(f"tool {live.tool.name!r}: {what} must return text or None, not {text!r}")
    return text


async def judge_output(live: LiveCall, draft: Draft) -> Draft:
    """Run the output guardrails in order. One may reject the output, replace it, or trip."""
    from agentloop._engine.calls.tool_guardrails import judge_output as judge

    try:
        judged = await judge(live, draft.outcome)
    except UnwritableValue as error:  # the value that a guardrail gave as a replacement
        live.redact_error(error)
        draft = draft_failure(live, "failed", error)
        return await write_failure(live, draft) if live.steps.failure else draft
    except ToolOutputGuardrailTripwireTriggered as tripped:  # our own text, which tells no secret
        failure = Failure(index=live.index, call_id=live.call_id, error=tripped, phase="post")
        return Draft(CallOutcome(status="failed", error=tripped), failure)
    return draft.replace(outcome=judged)


async def store_output(live: LiveCall, draft: Draft) -> Draft:
    """Give an output that is too long to the application's store; the model receives a part of it and a reference."""
    config, output = live.run.settings.config, draft.outcome.output
    store, limit = config.output_store, config.tool_execution.max_output_chars
    assert store is not None
    if output is None or limit is None:
        return draft

    kept_at = {
        text: str(await live.run.call_callback("output_store", live.call_id, store.put, live.call, text))
        for text in dict.fromkeys(texts_of(output))
        if len(text) > limit
    }
    return draft.replace(outcome=draft.outcome.replace(output=cut_output(output, limit, kept_at)))


STEPS: Mapping[str, Step] = {
    step.__name__: step
    for step in (
        *(check_budget, check_enabled, judge_input, check_arguments, take_thread),
        *(enter_span, wait_for_journal, call_start_hooks),
        *(extract_custom_data, write_failure, write_timeout, judge_output, store_output),
    )
}
"""The steps by the names in `_core/step_order.py`."""
