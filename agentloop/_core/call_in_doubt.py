"""The decision about a call in doubt, in a resumed run: the call started in an earlier run segment and has no outcome.

The first rule that fits decides:

1. An agent tool continues its nested run (`Execute` with `resumed`, or `AwaitVerdict` while that run is paused).
2. A call of an external tool continues to wait (`AwaitVerdict`), or is answered now (`Execute` with `resumed`).
3. A body with a stored end is not run again: `Deliver`, or `Answer` if its value was not kept.
4. A tool that may be run again (idempotent, only reading, or with `in_doubt="rerun"`) gives `Execute`.
5. Any other gives `Answer` with status unknown, or the run fails (`in_doubt="raise"`).

Pure; `planner` asks for each such call. Which calls have no outcome is in the log: `RunFold.due_calls`.
"""

from __future__ import annotations

from collections.abc import Mapping

from agentloop._core.call_state import CallState
from agentloop._core.plan import Answer, Arguments, AwaitVerdict, Deliver, Disposition, Execute, PlanRules
from agentloop._core.run_fold import RunFold
from agentloop._storage.withholding import Withheld
from agentloop.exceptions import ToolCallError
from agentloop.outcomes import CallOutcome
from agentloop.records import BodyEnded
from agentloop.tools import AgentCall, ExternalBody, FunctionTool, may_run_again


def plan_in_doubt(
    tools: Mapping[str, FunctionTool], state: RunFold, rules: PlanRules, call: CallState, tool: FunctionTool
) -> Disposition:
    """Return the disposition of a call that had started when an earlier run segment ended.

    Raises:
        ToolCallError: the call is in doubt and its tool says `in_doubt="raise"`.
    """
    call_id = call.call.call_id
    arguments = rules.read(tool, call.call.arguments if call.arguments is None else call.arguments)
    nested = state.nested.get(call_id)
    # Of an external tool nothing runs, so nothing is in doubt: it was answered, cancelled, or not asked about yet.
    if (nested is not None and nested.started is not None) or isinstance(tool.body, AgentCall | ExternalBody):
        if state.waits(call):
            return AwaitVerdict(arguments)
        return Execute(arguments, attempt=call.attempt if call.cut is None else call.attempt + 1, resumed=True)
    attempt = call.attempt + 1
    if call.body is not None:
        return _plan_finished_body(call.body, tool, arguments, attempt)
    # A disabled tool, which *tools* lacks, isn't run again.
    if may_run_again(tool) and tools.get(tool.lookup_key) is tool:
        return Execute(arguments, attempt=attempt, decided=True)
    outcome = CallOutcome(status="unknown", output=tell_doubt(tool.name))
    if tool.in_doubt == "raise":
        raise ToolCallError(
            f"Call {call_id!r} of tool {tool.name!r} was interrupted when the run stopped; whether it took effect is "
            "unknown, and the tool says in_doubt='raise'",
            tool=tool.name,
            call=call.call,
            outcome=outcome,
        )
    return Answer(outcome, attempt=attempt)


def _plan_finished_body(body: BodyEnded, tool: FunctionTool, arguments: Arguments, attempt: int) -> Answer | Deliver:
    """Return `Deliver` if the body failed or its value was stored readably, else an answer without the output."""
    if body.failed or (body.kept and not isinstance(body.value, Withheld)):
        return Deliver(arguments, body, attempt)
    text = f"Tool '{tool.name}' finished; its output was not kept."
    return Answer(CallOutcome(status="unknown", output=text, body_finished=True), attempt=attempt)


def tell_doubt(tool: str) -> str:
    """Return what the model hears of a call in doubt of the *tool* with this name."""
    return f"Tool '{tool}' was interrupted when the run stopped; whether it took effect is unknown."
