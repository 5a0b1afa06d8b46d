"""The planner: decides one disposition for each due call of a response, before the first side effect.

The engine calls `plan_response` when `next_action` returns `Settle`; it then calls policies and reads verdicts, which
may replace a disposition, calls `check_secrets`, and only then starts bodies. Planning has no side effects and is
complete for the whole batch before the first body starts, so a call id used twice with other arguments is found before
anything has run.

How a call gets its disposition; the first rule that fits decides:

1. The response can't be used (a call without an id, an id with other arguments, no progress): the run fails.
2. The call is beyond `max_calls`: `Answer`, skipped.
3. No tool has its name: the run fails or `Answer`, by configuration. A tool disabled since the model saw it is still
   found once something of the turn has happened; then only the call is refused. A call that waits since an earlier run
   segment, of a tool that the model was shown, isn't the model's fault: `StateError`, and a worker that has the tool
   can continue.
4. The call started in an earlier run segment and has no outcome: `call_in_doubt` decides.
5. An idempotent tool has succeeded with equal arguments: `Replay`, unless a verdict rejected or changed this call.
6. Otherwise `Execute`, also with a fault in the arguments, which the tool's policy converts later.

Does not know about clocks, tasks or callbacks: answers that need an `await` come in as data (`PlanRules`).
"""

from __future__ import annotations

from agentloop._common import naming
from agentloop._core.call_identity import NearNames, find_called_tool, find_tool
from agentloop._core.call_state import CallState
from agentloop._core.plan import Answer, Disposition, Execute, Plan, PlanEntry, PlanRules, Replay
from agentloop._core.run_fold import RunFold
from agentloop._core.turn_view import TurnView
from agentloop._schema.json_text import quote
from agentloop._storage.withholding import Withheld, WithheldText, find_missing_secrets
from agentloop.exceptions import ModelBehaviorError, StateError
from agentloop.items import ToolCall
from agentloop.outcomes import CallOutcome
from agentloop.tools import ExternalBody, FunctionTool


def plan_response(view: TurnView, state: RunFold, rules: PlanRules) -> Plan:
    """Return the disposition of every call of the current batch that has no outcome yet, in model order.

    Raises:
        ModelBehaviorError: for a call without an id, an id reused for another call, an unknown tool (by configuration)
            or one that was disabled meanwhile, and for a response from which the run can't continue. No call of the
            batch has been started then.
        StateError: the tool of a pending call, which the model was shown, is gone.
        ToolCallError: a call is in doubt and its tool says `in_doubt="raise"`.
    """
    _check_identities(state)
    near = NearNames(tool.qualified_name for tool in view.tools)
    return tuple([_plan_call(view, state, rules, near, call) for call in state.batch if call.outcome is None])


def check_secrets(plan: Plan, state: RunFold) -> None:
    """Refuse to continue if a call would run with secret arguments that can't be read back.

    For a plan after approvals: a call that is refused or waits needs no arguments.

    Raises:
        StateError: naming the first such call and its arguments.
    """
    for entry in plan:
        if not isinstance(entry.disposition, Execute) or entry.call.call_id in state.cancel_requests:
            continue
        _check_answer_of(state.calls[entry.call.call_id])
        answers = entry.disposition.resumed and entry.tool is not None and isinstance(entry.tool.body, ExternalBody)
        if isinstance(entry.disposition.arguments.text, WithheldText) and not answers:
            _check_secrets_of(entry.call, entry.disposition.arguments.text)
        nested = state.nested.get(entry.call.call_id)
        if nested is not None:
            _check_nested(nested)


def _check_nested(state: RunFold) -> None:
    """Raise `StateError` likewise for the calls of a nested run that will continue.

    Raised inside the nested run instead, the error would become a tool output for the outer model.
    """
    for call in state.due_calls() if state.batch_open else ():
        if call.call.call_id in state.cancel_requests:
            continue
        _check_answer_of(call)
        nested = state.nested.get(call.call.call_id)
        verdict = state.verdict(call)
        if nested is not None and nested.started is not None:
            if not nested.paused:
                _check_secrets_of(call.call, call.arguments)
                _check_nested(nested)
        elif verdict is not None and verdict.approved:
            _check_secrets_of(call.call, verdict.arguments)


def _check_secrets_of(call: ToolCall, arguments: str | None) -> None:
    if missing := find_missing_secrets(call, arguments):
        names = ", ".join(map(repr, missing))
        raise StateError(
            f"call {call.call_id!r} of tool {call.name!r} needs the secret arguments {names}, which "
            "were stored as digests, or sealed by a codec that isn't given"
        )


def _check_answer_of(call: CallState) -> None:
    if call.answer is not None and isinstance(call.answer.value, Withheld):
        raise StateError(
            f"call {call.call.call_id!r} of tool {call.call.name!r} needs its answer, which is secret and was stored "
            "as a digest, or sealed by a codec that isn't given"
        )


def _check_identities(state: RunFold) -> None:
    if state.call_without_id is not None:
        raise ModelBehaviorError(f"The model called tool {state.call_without_id.name!r} without a call id")
    if (conflict := state.conflict) is not None:
        raise ModelBehaviorError(
            f"The model used call id {conflict.call_id!r} again for another call (tool {conflict.name!r}): an id names "
            "one tool with one set of arguments for the whole run"
        )
    if state.unusable_reason is not None:
        raise ModelBehaviorError(state.unusable_reason)


def _plan_call(view: TurnView, state: RunFold, rules: PlanRules, near: NearNames, call_state: CallState) -> PlanEntry:
    call, index = call_state.call, call_state.index
    if rules.max_calls is not None and index >= rules.max_calls:
        text = f"Tool {quote(call.name)} was not started: more than {rules.max_calls} calls in one turn."
        return PlanEntry(index, call, None, Answer(CallOutcome(status="skipped", output=text)))
    tool = find_called_tool(view.by_key, call)
    if tool is None and state.turn_has_effects:
        tool = _find_disabled_tool(view, state, call)
    if tool is None:
        return PlanEntry(index, call, None, _answer_without_tool(view, state, rules, near, call))
    if rules.disabled and tool.lookup_key in rules.disabled:
        raise ModelBehaviorError(
            f"Tool {tool.qualified_name!r} of agent {view.agent!r} was disabled after the model was asked"
        )
    return PlanEntry(index, call, tool, _plan_execution(view, state, rules, call_state, tool))


def _answer_without_tool(view: TurnView, state: RunFold, rules: PlanRules, near: NearNames, call: ToolCall) -> Answer:
    if (hidden := _answer_hidden_tool(view, call)) is not None:
        return hidden
    if state.turn_has_effects and not any(one.qualified_name == qualify_name(call) for one in view.tools):
        check_shown(state, call)
    return _answer_unknown_tool(view, rules, near, call)


def _plan_execution(
    view: TurnView, state: RunFold, rules: PlanRules, call_state: CallState, tool: FunctionTool
) -> Disposition:
    if call_state.attempt or (call_state.cut is not None and call_state.cut.body_finished):
        from agentloop._core.call_in_doubt import plan_in_doubt  # for a resumed run only

        return plan_in_doubt(view.by_key, state, rules, call_state, tool)
    arguments = rules.read(tool, call_state.call.arguments)
    source = None if arguments.receipt is None else _find_equal_call(state, call_state, arguments.receipt)
    return Execute(arguments) if source is None else Replay(source, arguments)


def check_shown(state: RunFold, call: ToolCall) -> None:
    """Refuse to blame the model for *call*, which is pending and has no tool here, if it was shown the tool.

    Raises:
        StateError: it was: the agent has changed since.
    """
    # Providers name a deferred top-level tool's own name as its namespace.
    names = {qualify_name(call), call.name} if call.namespace == call.name else {qualify_name(call)}
    if not names.isdisjoint(state.shown_tools):
        raise StateError(
            f"call {call.call_id!r} waits for tool {qualify_name(call)!r} of agent {state.agent!r}, which the model "
            "was shown and the agent here doesn't have: continue with an agent that has it"
        )


def _find_equal_call(state: RunFold, call: CallState, receipt: str) -> str | None:
    """Return the id of an equal call that has succeeded, or None.

    An earlier output can't answer a call that an approver has rejected, or has given other arguments.
    """
    verdict = state.verdict(call)
    decided = verdict is not None and (not verdict.approved or verdict.arguments is not None)
    return None if decided else state.receipts.get(receipt)


def _find_disabled_tool(view: TurnView, state: RunFold, call: ToolCall) -> FunctionTool | None:
    """Return the tool of *call* if the model saw it in this turn and it has been disabled since, else None.

    The call is planned as usual and refused only when it would start, so that its siblings are not affected.
    """
    tool = find_tool(view.disabled, call.name, call.namespace)
    return tool if tool is not None and tool.qualified_name in state.shown_tools else None


def qualify_name(call: ToolCall) -> str:
    """Return the name a call used, with its namespace."""
    return naming.qualify_name(call.name, call.namespace)


def _answer_hidden_tool(view: TurnView, call: ToolCall) -> Answer | None:
    """Return the answer to a call of a deferred tool that no search has found in this run; None if it calls none.

    The model knows the tool from an earlier run of the conversation, or guesses: no reason to end the run.
    """
    name = qualify_name(call)
    if not any(tool.qualified_name == name for tool in view.searchable):
        return None
    searches = " or ".join(repr(tool.name) for tool in view.searches)
    text = f"Tool {quote(name)} isn't loaded: find it by {searches}, then call it in your next step."
    return Answer(CallOutcome(status="skipped", output=text))


def _answer_unknown_tool(view: TurnView, rules: PlanRules, near: NearNames, call: ToolCall) -> Answer:
    name, found = qualify_name(call), near.of(qualify_name(call))
    hint = f" Did you mean {' or '.join(map(repr, found))}?" if found else ""
    if rules.not_found == "raise":
        raise ModelBehaviorError(
            f"Tool {quote(name)} not found: agent {view.agent!r} has no such tool.{hint} To tell the model "
            'and go on, give ToolExecution(not_found_behavior="tell_model")'
        )
    text = f"Tool {quote(name)} not found.{hint}"
    return Answer(CallOutcome(status="failed", output=text, error=ModelBehaviorError(text)), kind="tool_not_found")
