"""The result of a run for its caller, or the data beside an error: made from the fold of its records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from agentloop import events as ev
from agentloop._common.values import Value
from agentloop._core.history import valid_history
from agentloop._core.run_fold import RunFold
from agentloop._engine.runtime.live_run import LiveRun
from agentloop.agents import Agent
from agentloop.records import RunEnded
from agentloop.results import RunData, RunResult

if TYPE_CHECKING:
    from cattrs import BaseConverter

    from agentloop.state import RunState


_CANCELLED = RunEnded((), 0, 0.0, "cancelled")


_NO_GUARDRAIL_RESULTS: dict[str, Any] = {
    f"{stage}_guardrail_results": () for stage in ("input", "output", "tool_input", "tool_output")
}


def _collect_guardrail_results(run: LiveRun) -> dict[str, Any]:
    """Return the results of guardrails by field: the run's in declaration order, those of calls in model order."""
    state = run.state
    by_stage: dict[str, list[Any]] = {"input": [], "output": [], "tool_input": [], "tool_output": []}
    positions = {call_id: position for position, call_id in enumerate(state.calls)}
    from agentloop._core.guardrail_results import restore_result
    from agentloop._engine.run_guardrails import input_guardrails, output_guardrails

    for record in sorted(state.guardrails, key=lambda settled: positions.get(settled.call_id or "", settled.index)):
        result = record.result
        if result is None:
            known = input_guardrails(run) if record.stage == "input" else output_guardrails(run)
            result = restore_result(record, state, run.agent, known)
        by_stage[record.stage].append(result)
    return {f"{stage}_guardrail_results": tuple(results) for stage, results in by_stage.items()}


def _collect_fields(state: RunFold, tree: RunFold) -> dict[str, Any]:
    """Return the other fields that `RunData` and `RunResult` share, of the run *state* in *tree*."""
    calls = (
        ev.CallSettled(call.call, call.outcome, path=state.path, turn=call.turn)
        for call in state.calls.values()
        if call.outcome is not None
    )
    return {
        "input": state.input,
        "new_items": valid_history(state.new_items),
        "raw_responses": tuple(state.responses),
        "usage": tree.usage,
        "calls": tuple(calls),
        "records": tuple(tree.records) if state is tree else (),
    }


def run_data_of(run: LiveRun) -> RunData:
    """Return the data of *run* so far."""
    return RunData(
        last_agent=run.agent,
        context=run.context.context,
        **_collect_fields(run.state, run.tree.log.state),
        **(_collect_guardrail_results(run) if run.state.guardrails else _NO_GUARDRAIL_RESULTS),
    )


class _ResultMaker(Value, frozen=True, eq=False):
    """Makes fields of a result at their first use, of the run's data: a stored result would keep the run itself."""

    root: Agent[Any, Any]
    state: RunFold
    tree: RunFold
    context: Any
    converter: BaseConverter | None
    judged: Mapping[str, Any]

    def collect(self) -> dict[str, Any]:
        """Return the fields that most callers don't read, by name."""
        return {
            **_collect_fields(self.state, self.tree),
            **self.judged,
            "last_response_id": self.state.last_response_id,
            "interruptions": tuple(self.state.interruptions()),
            "_history": valid_history(self.state.history),
        }

    def to_state(self) -> RunState:
        """Return the run, with all that is nested in it or around it, as a state."""
        from agentloop.state import RunState

        return RunState._of(self.root, self.tree, self.context, self.converter)


def result_of(run: LiveRun, end: RunEnded | None = None) -> RunResult[Any]:
    """Return the result of *run*, which has ended without an error: by *end*, if it isn't the log's own record.

    One that was cancelled before its first record, or that of its resumption, has no record of that end.
    """
    end = end or (run.state.ended if run.has_begun else None) or _CANCELLED
    state, tree, context = run.state, run.tree, run.context.context
    judged = _collect_guardrail_results(run) if state.guardrails else _NO_GUARDRAIL_RESULTS
    result = RunResult._of(
        final_output=end.final_output,
        status=end.status,
        stop_reason=end.stop_reason,
        last_agent=run.agent,
        context=context,
        _source=_ResultMaker(tree.graph.root, state, tree.log.state, context, run.settings.config.converter, judged),
    )
    if run.parent is not None:
        result._complete()  # the tree's usage is to be that of this moment
    return result
