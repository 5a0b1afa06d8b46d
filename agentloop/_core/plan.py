"""The plan of a response: one disposition for each of its due calls, decided before the first side effect.

The engine calls `plan_response` when `next_action` returns `Settle`; it then calls policies and reads verdicts, which
may replace a disposition, calls `check_secrets`, and only then starts bodies. Planning has no side effects and is
complete for the whole batch before the first body starts, so a call id used twice with other arguments is found before
anything has run. The plan is a value; its `str` is a table a person can read.

How a call gets its disposition; the first rule that fits decides:

1. The response can't be used (a call without an id, an id with other arguments, no progress): the run fails.
2. The call is beyond `max_calls`: `Answer`, skipped.
3. No tool has its name: the run fails or `Answer`, by configuration. A tool disabled since the model saw it is still
   found once something of the turn has happened; the call is then refused alone.
4. The call started in an earlier run segment and has no outcome: it is in doubt. An agent tool continues its nested run
   (`Execute` with `resumed`, or `AwaitVerdict` while that run is paused). A body with a stored end is not run again:
   `Deliver`, or `Answer` if its value was not kept. Otherwise an idempotent tool, or one with `in_doubt="rerun"`, gives
   `Execute`, and any other one `Answer` with status unknown, or the run fails (`in_doubt="raise"`).
5. An idempotent tool has succeeded with equal arguments: `Replay`, unless a verdict rejected or changed this call.
6. Otherwise `Execute`, also with a fault in the arguments, which the tool's policy converts later.

Invariants: entries are in model order; an identity (call id, tool, canonical arguments) starts at most once, except
where its tool says that it may be run again. Does not know about clocks, tasks or callbacks: answers that need an
`await` come in as data (`PlanRules`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from agentloop._common.error_text import REDACTED, redact_message
from agentloop._common.strict_json import read_strict
from agentloop._common.values import Value
from agentloop._core.call_identity import NearNames, find_called_tool, find_tool
from agentloop._core.run_fold import CallState, RunFold
from agentloop._core.turn_view import TurnView
from agentloop._schema.json_text import canonical, parse_object, quote
from agentloop._storage.withholding import Withheld, WithheldText, find_missing_secrets
from agentloop.exceptions import ModelBehaviorError, StateError, ToolCallError
from agentloop.items import ToolCall
from agentloop.outcomes import CallOutcome
from agentloop.records import ApprovalRequested, BodyEnded
from agentloop.settings import JsonLimits
from agentloop.tools import AgentCall, FunctionTool, PythonBody, RawBody, may_run_again

if TYPE_CHECKING:
    from cattrs import BaseConverter

    from agentloop._schema.function_schema import BoundArguments


class Arguments(Value, frozen=True, kw_only=True):
    """The arguments of one call: the JSON text and the result of reading it.

    Exactly one of `parsed` and `fault` is there, or both if the text parses but doesn't fit the tool.
    """

    text: str
    given: dict[str, Any] | None = None
    """The parsed text; None as well where it was read as `bound` in one step."""
    bound: BoundArguments | None = None
    value: Any = None
    """The structured input of an agent tool that has one."""
    fault: ModelBehaviorError | None = None
    receipt: str | None = None
    """Key that equal calls of this idempotent tool share; None for a tool that isn't idempotent."""

    _unshown = frozenset({"text", "given", "value", "receipt"})

    @property
    def parsed(self) -> dict[str, Any] | None:
        """The parsed text; None if it doesn't parse."""
        return self.given if self.bound is None or self.given is not None else read_strict(self.text)


class Execute(Value, frozen=True):
    """Run the body with these arguments (or convert their fault).

    `attempt` counts starts. `resumed`: an agent tool that started in an earlier run segment continues its nested run.
    `decided`: policies and approvals have decided in an earlier run segment, and are not consulted again.
    """

    arguments: Arguments
    attempt: int = 1
    resumed: bool = False
    decided: bool = False


class Deliver(Value, frozen=True):
    """Take the stored end of the body, from an earlier run segment, through the rest of the call's steps."""

    arguments: Arguments
    body: BodyEnded
    attempt: int


class AwaitVerdict(Value, frozen=True):
    """Wait for a verdict. `request` is the approval request to append; None if the log has it already."""

    arguments: Arguments
    request: ApprovalRequested | None = None


class Replay(Value, frozen=True):
    """Answer with the output of an equal call that succeeded earlier: *source* is its call id."""

    source: str
    arguments: Arguments


class Answer(Value, frozen=True):
    """Settle with *outcome* without running a body. *kind* lets the application choose the text of the output."""

    outcome: CallOutcome
    kind: Literal["tool_not_found", "approval_rejected"] | None = None
    attempt: int = 1


_WITH_SCHEMA = (PythonBody, AgentCall)
Disposition: TypeAlias = Execute | Deliver | Replay | Answer | AwaitVerdict


class PlanEntry(Value, frozen=True):
    """One call and its disposition. `tool` is None if none was found, or if the call is beyond `max_calls`."""

    index: int
    call: ToolCall
    tool: FunctionTool | None
    disposition: Disposition


class Plan(Value, frozen=True):
    """One entry for each due call of a response, in model order."""

    turn: int
    entries: tuple[PlanEntry, ...]

    def __str__(self) -> str:
        rows = [f"turn {self.turn}: {len(self.entries)} calls"]
        for entry in self.entries:
            what = type(entry.disposition).__name__.lower()
            rows.append(f"  {entry.index:>3} {entry.call.call_id} {entry.call.name}: {what}")
        return "\n".join(rows)


def read_arguments(
    tool: FunctionTool, text: str, limits: JsonLimits, converter: BaseConverter | None = None
) -> Arguments:
    """Parse and bind a call's JSON text. A fault is returned, not raised: the tool's policy converts it later.

    *converter* is the run's own converter of the application's types, if it has one.

    For a tool with secret arguments the fault's message is redacted and the receipt is a digest.
    """
    read = _parse_and_bind(tool, text, limits, converter)
    if not tool.secret:
        return read
    fault, receipt = read.fault, read.receipt
    if fault is not None:
        if read.parsed is not None:  # the message of a validation error quotes values and, as paths to them, keys
            fault = ModelBehaviorError(f"Arguments of tool {tool.name} don't fit: {REDACTED}")
        redact_message(fault)
    if receipt is not None:
        receipt = hashlib.sha256(receipt.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return read.replace(fault=fault, receipt=receipt)


def _parse_and_bind(tool: FunctionTool, text: str, limits: JsonLimits, converter: BaseConverter | None) -> Arguments:
    body = tool.body
    if converter is None and isinstance(body, PythonBody) and tool.kind != "custom":
        bound = body.schema.read(text, limits)
        if bound is not None:
            return Arguments(text=text, bound=bound, receipt=_make_receipt(tool, bound) if tool.idempotent else None)
    if tool.kind == "custom":
        parsed = {tool.text_parameter: text}
    else:
        try:
            parsed = parse_object(text, limits, tool=tool.name, quoted=not tool.secret)
        except ModelBehaviorError as fault:
            return Arguments(text=text, fault=fault)
    if not isinstance(body, _WITH_SCHEMA):
        if isinstance(body, RawBody) and body.check is not None and (wrong := body.check(parsed)) is not None:
            refusal = ModelBehaviorError(f"Arguments of tool {tool.name} don't fit: {wrong}")
            return Arguments(text=text, given=parsed, fault=refusal)
        receipt = f"{tool.lookup_key} {canonical(parsed)}" if tool.idempotent else None
        return Arguments(text=text, given=parsed, receipt=receipt)
    if isinstance(body, AgentCall) and body.typed is not None:
        try:
            return Arguments(text=text, given=parsed, value=body.typed.using(converter).parse(text, limits))
        except ModelBehaviorError as fault:
            return Arguments(text=text, given=parsed, fault=fault)
    try:
        bound = body.schema.bind(parsed, converter)
    except ModelBehaviorError as fault:
        return Arguments(text=text, given=parsed, fault=fault)
    receipt = _make_receipt(tool, bound) if tool.idempotent else None
    return Arguments(text=text, given=parsed, bound=bound, receipt=receipt)


def _make_receipt(tool: FunctionTool, bound: BoundArguments) -> str:
    return f"{tool.lookup_key} {bound.key()}"


class PlanRules(Value, frozen=True, kw_only=True):
    """The run's configuration of planning. `disabled`: lookup keys of tools that are no longer enabled."""

    not_found: Literal["raise_error", "return_error_to_model"] = "raise_error"
    max_calls: int | None = None
    limits: JsonLimits = msgspec.field(default_factory=JsonLimits)
    disabled: frozenset[str] = frozenset()
    agent_key: Callable[[Any], str] | None = None
    """Returns the key of an agent in the run's graph."""
    read: Callable[[FunctionTool, str, JsonLimits], Arguments] = read_arguments
    """Reads a call's arguments. It must be pure, so that a caching function can replace it."""


def plan_response(view: TurnView, state: RunFold, rules: PlanRules) -> Plan:
    """Return the disposition of every call of the current batch that has no outcome yet, in model order.

    Raises:
        ModelBehaviorError: for a call without an id, an id reused for another call, an unknown tool (by configuration)
            or one that was disabled meanwhile, and for a response from which the run can't continue. No call of the
            batch has been started then.
        StateError: a nested run can't continue because its tool now runs another agent, or none.
        ToolCallError: a call is in doubt and its tool says `in_doubt="raise"`.
    """
    _check_identities(state)
    near = NearNames(tool.qualified_name for tool in view.tools)
    entries = [_plan_call(view, state, rules, near, call) for call in state.due_calls()]
    return Plan(state.turn, tuple(entries))


def check_secrets(plan: Plan, state: RunFold) -> None:
    """Refuse to continue if a call would run with secret arguments that can't be read back.

    For a plan after approvals: a call that is refused or waits needs no arguments.

    Raises:
        StateError: naming the first such call and its arguments.
    """
    for entry in plan.entries:
        if not isinstance(entry.disposition, Execute):
            continue
        if isinstance(entry.disposition.arguments.text, WithheldText):
            _check_secrets_of(entry.call, entry.disposition.arguments.text)
        nested = state.nested.get(entry.call.call_id)
        if nested is not None:
            _check_nested(nested)


def _check_nested(state: RunFold) -> None:
    """Raise `StateError` likewise for the calls of a nested run that will continue.

    Raised inside the nested run instead, the error would become a tool output for the outer model.
    """
    for call in state.due_calls() if state.batch_open else ():
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


def _check_identities(state: RunFold) -> None:
    if state.call_without_id is not None:
        raise ModelBehaviorError(f"The model called tool {state.call_without_id.name!r} without a call id")
    if state.conflict is not None:
        conflict = state.conflict
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
        answer = Answer(CallOutcome(status="skipped", output=text))
        return PlanEntry(index, call, None, answer)
    tool = find_called_tool(view.by_key, call)
    if tool is None and state.turn_has_effects:
        tool = _find_disabled_tool(view, state, call)
    if tool is None:
        return PlanEntry(index, call, None, _answer_unknown_tool(view, rules, near, call))
    if rules.disabled and tool.lookup_key in rules.disabled:
        raise ModelBehaviorError(
            f"Tool {tool.qualified_name!r} of agent {view.agent.name!r} was disabled after the model was asked"
        )
    if call_state.attempt or (call_state.cut is not None and call_state.cut.body_finished):
        return PlanEntry(index, call, tool, _plan_in_doubt(view, state, rules, call_state, tool))
    arguments = rules.read(tool, call.arguments, rules.limits)
    source = None if arguments.receipt is None else _find_equal_call(state, call_state, arguments.receipt)
    disposition = Execute(arguments) if source is None else Replay(source, arguments)
    return PlanEntry(index, call, tool, disposition)


def _find_equal_call(state: RunFold, call: CallState, receipt: str) -> str | None:
    """Return the id of an equal call that has succeeded, or None.

    An earlier output can't answer a call that an approver has rejected, or has given other arguments.
    """
    verdict = state.verdict(call)
    decided = verdict is not None and (not verdict.approved or verdict.arguments is not None)
    return None if decided else state.receipts.get(receipt)


def _find_disabled_tool(view: TurnView, state: RunFold, call: ToolCall) -> FunctionTool | None:
    """Return the tool of *call* if the model saw it in this turn and it has been disabled since, else None.

    The call is planned as usual and refused alone when it would start, so that its siblings are not affected.
    """
    tool = find_tool(view.disabled, call.name, call.namespace)
    return tool if tool is not None and tool.qualified_name in state.shown_tools else None


def _plan_in_doubt(
    view: TurnView, state: RunFold, rules: PlanRules, call: CallState, tool: FunctionTool
) -> Disposition:
    """Return the disposition of a call that had started when an earlier run segment ended."""
    call_id = call.call.call_id
    arguments = rules.read(tool, call.arguments if call.arguments is not None else call.call.arguments, rules.limits)
    nested = state.nested.get(call_id)
    if (nested is not None and nested.started is not None) or isinstance(tool.body, AgentCall):
        _check_same_agent(call, tool, nested, rules)
        if nested is not None and nested.paused:
            return AwaitVerdict(arguments)
        return Execute(arguments, attempt=call.attempt if call.cut is None else call.attempt + 1, resumed=True)
    attempt = call.attempt + 1
    if call.body is not None:
        return _plan_finished_body(call, call.body, tool, arguments, attempt)
    # A disabled tool, which `by_key` lacks, isn't run again.
    if may_run_again(tool) and view.by_key.get(tool.lookup_key) is tool:
        return Execute(arguments, attempt=attempt, decided=True)
    text = f"Tool '{tool.name}' was interrupted when the run stopped; whether it took effect is unknown."
    outcome = CallOutcome(status="unknown", output=text)
    if tool.in_doubt == "raise":
        raise ToolCallError(
            f"Call {call_id!r} of tool {tool.name!r} was interrupted when the run stopped; whether it took effect is "
            "unknown, and the tool says in_doubt='raise'",
            tool=tool.name,
            call=call.call,
            outcome=outcome,
        )
    return Answer(outcome, attempt=attempt)


def _plan_finished_body(
    call: CallState, body: BodyEnded, tool: FunctionTool, arguments: Arguments, attempt: int
) -> Disposition:
    """Return `Deliver` if the body failed or its value was stored readably, else an answer without the output."""
    if body.failed or (body.kept and not isinstance(body.value, Withheld)):
        return Deliver(arguments, body, attempt)
    text = f"Tool '{tool.name}' finished; its output was not kept."
    return Answer(CallOutcome(status="unknown", output=text, body_finished=True), attempt=attempt)


def _check_same_agent(call: CallState, tool: FunctionTool, nested: RunFold | None, rules: PlanRules) -> None:
    """Raise `StateError` if a nested run would continue under another agent. Nothing of the batch has started yet."""
    if nested is None or nested.started is None:
        return
    found = rules.agent_key(tool.body.agent) if isinstance(tool.body, AgentCall) and rules.agent_key else None
    if found != nested.first_agent:
        raise StateError(
            f"call {call.call.call_id!r} of tool {tool.name!r} has begun a run of agent {nested.first_agent!r}; the "
            f"tool is now {'one of agent ' + repr(found) if found else 'no agent tool'}"
        )


def qualify_name(call: ToolCall) -> str:
    """Return the name a call used, with its namespace."""
    return f"{call.namespace}.{call.name}" if call.namespace else call.name


def _answer_unknown_tool(view: TurnView, rules: PlanRules, near: NearNames, call: ToolCall) -> Answer:
    name = qualify_name(call)
    if rules.not_found == "raise_error":
        raise ModelBehaviorError(f"Tool {quote(name)} not found: agent {view.agent.name!r} has no such tool")
    text = f"Tool {quote(name)} not found."
    if found := near.of(name):
        text += f" Did you mean {' or '.join(map(repr, found))}?"
    error = ModelBehaviorError(text)
    return Answer(CallOutcome(status="failed", output=text, error=error), kind="tool_not_found")
