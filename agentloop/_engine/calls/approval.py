"""Steps 4 to 6 of a call: policies, guardrails before an approval, and the approval itself.

Knows plans, policies and verdicts, not tasks or scopes of calls: no call of the batch has started yet. A decision that
was made is never requested again.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from agentloop._common.error_text import REDACTED, error_summary, redact_message
from agentloop._common.values import Value
from agentloop._core.call_identity import arguments_digest
from agentloop._core.plan import Answer, Arguments, AwaitVerdict, Disposition, Execute, Plan, PlanEntry, read_arguments
from agentloop._core.run_fold import CallState
from agentloop._engine.runtime.callbacks import call_user, gather
from agentloop._engine.runtime.live_run import LiveRun
from agentloop._storage.withholding import WithheldText
from agentloop.exceptions import UserTypeError
from agentloop.guardrails import Allow
from agentloop.outcomes import CallOutcome
from agentloop.policies import Ask, Decision, Deny, PendingCall
from agentloop.records import ApprovalRequested, VerdictGiven
from agentloop.tools import FunctionTool

logger = logging.getLogger("agentloop")


class _ApprovalWanted(Value, frozen=True):
    """The names of the policies that want an approval, and their reasons."""

    policies: str
    reason: str | None


async def decide(run: LiveRun, plan: Plan) -> Plan:
    """Return *plan* with a decision for every call that is to run: run it, refuse it, or wait for a verdict.

    Decides all calls at once; requests for approval are appended in model order when all decisions are made.

    Raises:
        Exception: the error of a `needs_approval` callable or a guardrail.
    """
    undecided: list[tuple[int, Callable[[], Awaitable[Disposition]]]] = [
        (position, partial(_decide_entry, run, entry, entry.tool, entry.disposition))
        for position, entry in enumerate(plan.entries)
        if isinstance(entry.disposition, Execute)
        and entry.tool is not None
        and not entry.disposition.resumed
        and not entry.disposition.decided
        and _needs_decision(run, entry.tool)
    ]
    if not undecided:
        return plan
    answers = await gather([decide_call for _, decide_call in undecided])
    entries = list(plan.entries)
    for (position, _), disposition in zip(undecided, answers, strict=True):
        entries[position] = entries[position].replace(disposition=disposition)
        if isinstance(disposition, AwaitVerdict) and disposition.request is not None:
            run.append(disposition.request)
    return plan.replace(entries=tuple(entries))


def _needs_decision(run: LiveRun, tool: FunctionTool) -> bool:
    return tool.needs_approval is not False or bool(run.settings.config.policies)


async def _decide_entry(run: LiveRun, entry: PlanEntry, tool: FunctionTool, planned: Execute) -> Disposition:
    try:
        return await _choose_disposition(run, entry, tool, planned)
    except Exception as error:
        if run.redacts_errors_of(entry.call):
            redact_message(error)
        raise
    finally:
        run.tree.asking.pop((run.path, entry.call.call_id), None)


async def _choose_disposition(run: LiveRun, entry: PlanEntry, tool: FunctionTool, planned: Execute) -> Disposition:
    """Return the disposition of one call: run it, answer it with a refusal, or wait for a verdict.

    The order: policies, then the verdict that applies, then the guardrails before an approval, then `needs_approval`. A
    verdict may come while any of them runs, so it is looked up again after each.
    """
    state, config = run.state.calls[entry.call.call_id], run.settings.config
    arguments = planned.arguments
    request = state.approval
    if request is not None and request.arguments is not None:
        arguments = read_arguments(tool, request.arguments, config.json_limits, config.converter)
    verdict = _find_verdict(run, state, tool, arguments)
    if verdict is not None and verdict.approved and verdict.arguments is not None:
        arguments = read_arguments(tool, verdict.arguments, config.json_limits, config.converter)
    asking = run.tree.asking
    if verdict is None:
        asking[run.path, entry.call.call_id] = _make_request(run, entry, tool, arguments)
    decision = await _run_policies(run, entry, tool, arguments)
    if isinstance(decision, Deny):
        return _make_denial(run, entry, tool, decision)
    verdict = verdict or _find_verdict(run, state, tool, arguments)
    if verdict is None and _matches_request(run, state, tool, arguments):
        return AwaitVerdict(arguments)  # requested in an earlier run segment, and no verdict was given
    wanted = decision if isinstance(decision, _ApprovalWanted) else None
    if verdict is None and config.tool_execution.pre_approval_tool_input_guardrails:
        if wanted is None and tool.needs_approval is False:
            return Execute(arguments)
        from agentloop._engine.calls.tool_guardrails import judge_before_approval

        judged = await judge_before_approval(run, entry, tool, arguments)
        if isinstance(judged, CallOutcome):
            return Answer(judged)
        if judged is not None:
            # Other arguments are another invocation: decisions on the first ones do not apply to it.
            arguments = read_arguments(tool, judged, config.json_limits, config.converter)
            asking[run.path, entry.call.call_id] = _make_request(run, entry, tool, arguments)
            decision = await _run_policies(run, entry, tool, arguments)
            if isinstance(decision, Deny):
                return _make_denial(run, entry, tool, decision)
            wanted = decision if isinstance(decision, _ApprovalWanted) else None
    verdict = verdict or _find_verdict(run, state, tool, arguments)
    if verdict is None:
        needed = wanted is not None or await _check_needs_approval(run, entry, tool, arguments)
        verdict = _find_verdict(run, state, tool, arguments)  # given while a policy or `needs_approval` ran
        if verdict is None and needed:
            return AwaitVerdict(arguments, _make_request(run, entry, tool, arguments, wanted))
    if verdict is not None and not verdict.approved:
        return _make_refusal(verdict.message, tool, "approval")
    return Execute(arguments)


async def denial(run: LiveRun, entry: PlanEntry, tool: FunctionTool, arguments: Arguments) -> CallOutcome | None:
    """Return the outcome of a call if a policy denies the *arguments* that a guardrail has rewritten; else None.

    A policy that only wants an approval has no effect here: the call has passed its approval, and the guardrail that
    rewrote it is the tool's own.
    """
    if not run.settings.config.policies:
        return None
    decision = await _run_policies(run, entry, tool, arguments)
    return _make_denial(run, entry, tool, decision).outcome if isinstance(decision, Deny) else None


def _make_denial(run: LiveRun, entry: PlanEntry, tool: FunctionTool, denial: Deny) -> Answer:
    # A policy sees the arguments, so its message may repeat them: only the model receives it.
    secret = denial.message is not None and run.redacts_errors_of(entry.call)
    return _make_refusal(denial.message, tool, "policy", secret=secret)


def _make_refusal(message: str | None, tool: FunctionTool, by: str, *, secret: bool = False) -> Answer:
    text = message if message is not None else f"Tool '{tool.name}' was not approved."
    outcome = CallOutcome(status="rejected", output=text, reason=by, secret=secret)
    return Answer(outcome, kind="approval_rejected" if message is None and by == "approval" else None)


def _digest_arguments(run: LiveRun, request: ApprovalRequested | None, arguments: Arguments) -> str:
    """Return the digest of the call's arguments; for a text with withheld parts, the one that the log still has."""
    if request is not None and isinstance(arguments.text, WithheldText):
        return request.digest
    return arguments_digest(arguments.text, run.settings.config.json_limits)


def _make_request(
    run: LiveRun, entry: PlanEntry, tool: FunctionTool, arguments: Arguments, wanted: _ApprovalWanted | None = None
) -> ApprovalRequested:
    return ApprovalRequested(
        *run.here(),
        entry.call.call_id,
        run.agent_key,
        tool.lookup_key,
        arguments_digest(arguments.text, run.settings.config.json_limits),
        arguments=arguments.text if arguments.text != entry.call.arguments else None,
        policy=wanted.policies if wanted is not None else None,
        reason=wanted.reason if wanted is not None else None,
    )


def _matches_request(run: LiveRun, state: CallState, tool: FunctionTool, arguments: Arguments) -> bool:
    """Tell whether the recorded request for approval of *state* equals the one that would be made now."""
    request = state.approval
    return request is not None and (request.agent, request.tool, request.digest) == (
        run.agent_key,
        tool.lookup_key,
        _digest_arguments(run, request, arguments),
    )


def _find_verdict(run: LiveRun, state: CallState, tool: FunctionTool, arguments: Arguments) -> VerdictGiven | None:
    """Return the verdict that applies: given for just this call, or for all of the agent's calls to the tool."""
    given = state.verdict
    key = (run.agent_key, tool.lookup_key)
    if given is not None and (given.agent, given.tool) == key:
        digest = _digest_arguments(run, state.approval, arguments)
        limits = run.settings.config.json_limits
        edited = given.arguments is not None and arguments_digest(given.arguments, limits) == digest
        if given.digest == digest or edited:
            return given
    sticky = run.state.sticky.get(key)
    # Edited arguments apply only to the one call they were given for.
    return sticky if sticky is None or sticky.arguments is None else sticky.replace(arguments=None)


async def _check_needs_approval(run: LiveRun, entry: PlanEntry, tool: FunctionTool, arguments: Arguments) -> bool:
    needs = tool.needs_approval
    if isinstance(needs, bool):
        return needs
    if arguments.parsed is None:
        return True  # a callable can't judge arguments that don't parse
    parsed, call_id = arguments.parsed, entry.call.call_id
    return bool(
        await run.call_callback("needs_approval", call_id, lambda: call_user(needs, run.context, parsed, call_id))
    )


async def _run_policies(
    run: LiveRun, entry: PlanEntry, tool: FunctionTool, arguments: Arguments
) -> Allow | Deny | _ApprovalWanted:
    """Run all policies and return the strictest decision: the first denial, else all wishes for an approval joined.

    A policy that raises denies the call.
    """
    denied: Deny | None = None
    asking: dict[str, None] = {}
    reasons: list[str] = []
    for index, policy in enumerate(run.settings.config.policies):
        pending = PendingCall(
            call=entry.call,
            tool=tool,
            agent=run.agent,
            arguments=arguments.parsed,
            context=run.context,
            path=run.path,
        )
        decision = await _run_policy(run, f"{entry.call.call_id}:{index}", policy, pending)
        if isinstance(decision, Deny):
            denied = denied or decision
        elif isinstance(decision, Ask):
            asking[type(policy).__name__] = None
            reasons += [] if decision.reason is None else [decision.reason]
    if denied is not None:
        return denied
    return _ApprovalWanted(", ".join(asking), "; ".join(reasons) or None) if asking else Allow()


def _format_decision(decision: Any, *, redact: bool) -> Any:
    """Return the plain form of *decision* for the log: its kind and its text, or `[redacted]` in place of the text."""
    words = decision.reason if isinstance(decision, Ask) else getattr(decision, "message", None)
    return [type(decision).__name__, REDACTED if redact and words is not None else words]


async def _run_policy(run: LiveRun, key: str, policy: Any, pending: PendingCall) -> Decision:
    """Run one policy and return its decision; an error of the policy is logged and denies the call."""
    redact = run.redacts_errors_of(pending.call)
    try:
        form = partial(_format_decision, redact=redact)
        decision = await run.call_callback("policy", key, lambda: call_user(policy.decide, pending), to_plain=form)
        if not isinstance(decision, Allow | Ask | Deny):
            raise UserTypeError(f"policy {policy!r} must return Allow, Ask or Deny, not {decision!r}")
        if redact and isinstance(decision, Ask) and decision.reason is not None:
            return Ask(REDACTED)
        return decision
    except Exception as error:
        if redact:
            redact_message(error)
            logger.warning("policy %r failed; the call is denied: %s", policy, error_summary(error))
        else:
            logger.warning("policy %r failed; the call is denied", policy, exc_info=True)
        return Deny()
