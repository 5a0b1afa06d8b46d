"""The calls of one response: planned, run in a turn nursery, accepted.

Joins the plan, the approvals and the batch; does not know about single bodies or outcomes.
"""

from __future__ import annotations

from agentloop._concurrency.backend import cancelled_types, is_closing, unexpected_cancellation
from agentloop._core.call_identity import find_called_tool
from agentloop._core.plan import Answer, AwaitVerdict, Plan, PlanRules
from agentloop._core.planner import check_secrets, plan_response
from agentloop._core.turn_view import TurnView
from agentloop._engine.calls.batch import Batch
from agentloop._engine.calls.steps import format_tool_error
from agentloop._engine.prepare_turn import filter_enabled
from agentloop._engine.runtime.live_run import LiveRun
from agentloop.exceptions import StateError
from agentloop.items import CallToAnswer, ToolCall
from agentloop.outcomes import CallOutcome
from agentloop.records import BatchEnded, CallAnswered


async def plan_turn(run: LiveRun, view: TurnView) -> Plan:
    """Plan all due calls, with the application's answers about them. No call has started when this returns.

    Raises:
        ModelBehaviorError: see `plan_response`.
        StateError: likewise; the run can be resumed.
    """
    config = run.settings.config
    try:
        if run.tree.log.find_state_error is not None:
            run.follow_state_error()
        plan = plan_response(view, run.state, await _make_rules(run, view))
        for call in run.state.handoffs_due[:1]:
            # The handoff is taken after the calls, but its errors must show before any of them starts.
            view.handoff(call.name).read(call.arguments, config.json_limits, config.converter)
        # In a resumed turn, and in the history of an engine, any call may have been asked about before.
        asks = run.policies or run.state.turn_has_effects or run.tree.approvals is not None
        if asks or [entry for entry in plan if entry.tool is not None and entry.tool.needs_approval is not False]:
            from agentloop._engine.calls.approval import decide

            plan = await decide(run, plan)
        if run.tree.log.state.holds_secrets or run.tree.log.find_state_error is not None:
            _check_secrets(run, plan)
    except StateError as error:
        run.stopped_by = error  # the definitions here don't fit: the run isn't over, and continues where they do
        raise
    return plan


def _check_secrets(run: LiveRun, plan: Plan) -> None:
    """Check that the calls of *plan* have their secrets. A replay calls nothing: it ends where the recorded run did.

    Raises:
        StateError: one of them has not.
    """
    if run.tree.log.find_state_error is not None:
        run.follow_state_error()
    elif run.tree.log.expect is None:
        check_secrets(plan, run.state)


async def _make_rules(run: LiveRun, view: TurnView) -> PlanRules:
    """Return what the configuration says about a plan, and which of the called tools are disabled by now."""
    config = run.settings.config
    rules = PlanRules(
        not_found=config.tool_execution.not_found_behavior,
        max_calls=config.tool_execution.max_calls_per_turn,
        read=run.read_arguments,
    )
    if run.state.conflict is not None or run.state.turn_has_effects:
        return rules
    if [tool for tool in view.by_key.values() if not isinstance(tool.is_enabled, bool)]:
        rules = rules.replace(disabled=await _find_disabled(run, view))
    return rules


async def _find_disabled(run: LiveRun, view: TurnView) -> frozenset[str]:
    """Call `is_enabled` of the called tools where it is a callable; return the keys of the disabled tools."""
    found = [find_called_tool(view.by_key, state.call) for state in run.state.due_calls()]
    called = dict.fromkeys(tool for tool in found if tool is not None and callable(tool.is_enabled))
    enabled = set(await filter_enabled(run, list(called)))
    return frozenset(tool.lookup_key for tool in called if tool not in enabled)


async def run_calls(run: LiveRun, view: TurnView, plan: Plan) -> None:
    """Run the plan's calls and accept their outputs, unless one has to wait for a verdict.

    Where all of them wait there is nothing to run.

    Cancellation: running bodies are cancelled and awaited, waiting calls never start, no output is accepted; settled
    outcomes stay in the log.

    Raises:
        AgentLoopError, BaseException: the batch's failure, chosen by class, phase and model order.
    """
    if plan and all(isinstance(entry.disposition, AwaitVerdict) for entry in plan):
        return await run.checkpoint()
    run.tree.join_loop()  # from here on code of another thread may ask for a call of this run
    batch = _make_batch(run, plan)
    del plan  # two objects for each call, which the collector would count while the bodies run
    events = run.tree.log.events
    if events is not None:
        events.on_room[batch.room] = None
    task = batch.nursery.task
    try:
        for call, answer in batch.answers:
            batch.answer(call, answer, await _format_answer(run, call, answer))
        async with batch.nursery:
            try:
                batch.open()
                while (waiting := batch.wait()) is not None:
                    await waiting
                    batch.step()
            except cancelled_types():
                await batch.end_cancelled()  # noqa: ASYNC120 - shielded inside
                raise
        await run.checkpoint()
    except BaseException as error:
        if is_closing(task):
            batch.close()
        elif isinstance(error, cancelled_types()):
            batch.raise_failure(fatal=True)
        raise
    finally:
        if events is not None:
            events.on_room.pop(batch.room, None)
        batch.forget()
    _accept(run, batch)


def _make_batch(run: LiveRun, plan: Plan) -> Batch:
    if [entry for entry in plan if entry.tool is not None and entry.tool.background]:
        from agentloop._engine.calls.background import open_background  # few runs have one

        open_background(run)
    return Batch(run, plan)


def note_late_calls(run: LiveRun) -> bool:
    """Append `CallAnswered` for each call, also of paused nested runs, that wasn't answered in time; tell if one is."""
    asked = [call for call in run.state.interruptions(questions=True) if isinstance(call, CallToAnswer)]
    now = run.tree.log.wall() if asked else 0.0
    late = [one for one in asked if one.expires_at is not None and now >= one.expires_at]
    for one in late:
        fold = run.tree.log.state.at(one.path)
        assert fold is not None  # it waits there
        run.tree.log.append(CallAnswered(one.path, fold.turn, now, one.call.call_id, late=True))
    return bool(late)


def _accept(run: LiveRun, batch: Batch) -> None:
    """Append `BatchEnded`, which accepts the outputs, unless a call of *batch* waits for a verdict.

    Raises:
        BaseException: the batch's failure.
    """
    if batch.stopped in ("parent", "deadline"):
        # The nursery ended by itself: anyio cancels a nursery if one of its tasks is cancelled natively.
        raise unexpected_cancellation()
    batch.raise_failure()
    if isinstance(run.stopped_by, StateError):  # a run nested in one of the calls can't continue here
        raise run.stopped_by
    if not [call for call in run.state.batch if call.outcome is None]:
        run.tree.log.append(BatchEnded(run.state.path, run.state.turn, run.tree.log.wall()))


async def _format_answer(run: LiveRun, call: ToolCall, answer: Answer) -> CallOutcome:
    """Return the outcome of a call that is answered without running, with the text of `tool_error_formatter` if any."""
    outcome = answer.outcome.replace(ended_at=run.tree.log.wall())
    if answer.kind is None:
        return outcome
    assert isinstance(outcome.output, str)
    redact = run.redacts_errors_of(call)
    text = await format_tool_error(run, answer.kind, call, outcome.error, outcome.output, redact=redact)
    return outcome if text is None else outcome.replace(output=text)
