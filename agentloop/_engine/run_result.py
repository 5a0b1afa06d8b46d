"""The result of a run for its caller, or the data beside an error: made from the fold of its records."""

from __future__ import annotations

from typing import Any, cast

from agentloop import events as ev
from agentloop._core.history import valid_history
from agentloop._core.run_fold import RunFold
from agentloop._engine.runtime.live_run import LiveRun
from agentloop._engine.stored_guardrail_results import restored_result
from agentloop.exceptions import AgentLoopError
from agentloop.results import RunData, RunResult
from agentloop.state import RunState


def _collect_calls(state: RunFold) -> tuple[ev.CallSettled, ...]:
    return tuple(
        ev.CallSettled(call.call, call.outcome, path=state.path, turn=call.turn)
        for call in state.calls.values()
        if call.outcome is not None
    )


def _collect_fields(run: LiveRun) -> dict[str, Any]:
    """Return the fields that `RunData` and `RunResult` share."""
    state = run.state
    by_stage: dict[str, list[Any]] = {"input": [], "output": [], "tool_input": [], "tool_output": []}
    # They settle in any order. The run's are listed in declaration order, those of calls in model order.
    positions = {call_id: position for position, call_id in enumerate(state.calls)} if state.guardrails else {}
    for record in sorted(state.guardrails, key=lambda settled: positions.get(settled.call_id or "", settled.index)):
        by_stage[record.stage].append(record.result if record.result is not None else restored_result(run, record))
    return {
        "input": state.input,
        "new_items": valid_history(state.new_items),
        "raw_responses": tuple(state.responses),
        "last_agent": run.agent,
        "usage": run.tree.log.state.usage,
        "context": run.context.context,
        "calls": _collect_calls(state),
        "records": tuple(run.tree.log.state.records) if run.parent is None else (),
        **{f"{stage}_guardrail_results": tuple(results) for stage, results in by_stage.items()},
    }


def run_data_of(run: LiveRun) -> RunData:
    """Return the data of *run* so far."""
    return RunData(**_collect_fields(run))


def result_of(run: LiveRun) -> RunResult[Any]:
    """Return the result of *run*, which has ended without an error."""
    end = run.state.ended
    assert end is not None
    # Taken out first, so that a stored result holds the run's data and not the run.
    agent, fold, context = run.tree.graph.root, run.tree.log.state, run.context.context
    return RunResult(
        **_collect_fields(run),
        final_output=end.final_output,
        status=cast("Any", end.status),
        stop_reason=end.stop_reason,
        last_response_id=run.state.last_response_id,
        interruptions=tuple(run.state.interruptions()),
        state=lambda: RunState.of(agent, fold, context),
        history=valid_history(run.state.history),
    )


def attach_run_data(run: LiveRun, error: BaseException) -> BaseException:
    """Return *error*, with the run's data as `run_data` if it is the library's own."""
    if isinstance(error, AgentLoopError):
        error.run_data = run_data_of(run)
    return error
