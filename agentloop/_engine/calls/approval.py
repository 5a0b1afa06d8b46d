"""Steps 4 to 6 of a call: policies, guardrails before an approval, and the approval itself.

Knows plans, policies and verdicts, not tasks or scopes of calls: no call of the batch has started yet. A decision that
was made is never requested again.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

import msgspec

from agentloop._common.error_text import REDACTED, redact_message
from agentloop._common.values import Value
from agentloop._concurrency.beside import beside
from agentloop._core.call_identity import arguments_digest
from agentloop._core.call_state import CallState
from agentloop._core.plan import Answer, Arguments, AwaitVerdict, Disposition, Execute, Plan, PlanEntry
from agentloop._engine.calls.tool_context import tool_context
from agentloop._engine.runtime.callbacks import log_error
from agentloop._engine.runtime.live_run import LiveRun
from agentloop._schema.json_text import quote
from agentloop._storage.withholding import WithheldText
from agentloop.config.policies import Ask, Decision, Deny, PendingCall
from agentloop.exceptions import UserTypeError
from agentloop.guardrails import Allow
from agentloop.items import ToolCall
from agentloop.outcomes import CallOutcome
from agentloop.records import ApprovalRequested, VerdictGiven
from agentloop.tools import FunctionTool

logger = logging.getLogger("agentloop")

_LONGEST_NAME = 128
"""Characters of a tool's name at most; a provider's own name is cut to as many."""


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
    for entry in plan:  # now: another verdict may come while any of them is decided on
        if run.state.verdict(run.state.calls[entry.call.call_id]) is not None:
            _act_on_verdict(run, entry.call.call_id)
    undecided = [position for position, entry in enumerate(plan) if _is_undecided(run, entry)]
    answers = await beside(
        [partial(_decide_entry, run, plan[position]) for position in undecided], "agentloop approval"
    )
    entries = list(plan)
    for position, disposition in zip(undecided, answers, strict=True):
        entries[position] = entries[position].replace(disposition=disposition)
        if isinstance(disposition, AwaitVerdict) and disposition.request is not None:
            run.tree.log.append(disposition.request)
            if run.tree.approvals is not None:
                run.tree.approvals.note_asked(run.path, entries[position].call)
    return tuple(entries)


def _is_undecided(run: LiveRun, entry: PlanEntry) -> bool:
    """Tell whether policies and approvals have to decide on the call of *entry* before it may run."""
    planned, tool, call = entry.disposition, entry.tool, entry.call
    if not isinstance(planned, Execute) or tool is None or planned.resumed or planned.decided:
        return False
    asked = _was_asked(run, call)  # first: where the definitions don't fit the call, an engine leaves the step here
    if call.call_id in run.state.cancel_requests:  # it won't run, so there is nothing to ask
        return False
    return asked or bool(run.policies) or tool.needs_approval is not False


def _was_asked(run: LiveRun, call: ToolCall) -> bool:
    """Tell whether an approval was asked for *call* before: it holds then, also if the definitions have changed.

    In an earlier run segment, or by an earlier worker of an engine that makes the log anew.
    """
    approvals = run.tree.approvals
    told = approvals is not None and approvals.was_asked(run.path, call)
    return told or run.state.calls[call.call_id].approval is not None


def _act_on_verdict(run: LiveRun, call_id: str) -> None:
    run.tree.acted_on = run.tree.acted_on or {}
    run.tree.acted_on[run.path, call_id] = None


async def _decide_entry(run: LiveRun, entry: PlanEntry) -> Disposition:
    call, tool, planned = entry.call, entry.tool, entry.disposition
    assert tool is not None
    assert isinstance(planned, Execute)
    try:
        state, key = run.state.calls[call.call_id], tool.lookup_key
        held = (run.agent_key, key, None if run.view is None else run.view.sourced.get(key))
        decided = await _Decision(run, call, tool, state, held, planned.arguments).make()
        cancelled = call.call_id in run.state.cancel_requests
        if call.kind == "approval" and isinstance(decided, Execute) and not cancelled:
            # The verdict goes to the provider, which runs it.
            return Answer(CallOutcome(status="succeeded", output="Approved."))
        return decided
    except Exception as error:
        if run.redacts_errors_of(entry.call):
            redact_message(error)
        raise
    finally:
        run.tree.open_requests.pop((run.path, entry.call.call_id), None)


class _Decision(msgspec.Struct, eq=False):
    """The decision about one call under way: its arguments as they are now, and the verdict that applies to them.

    A verdict may come while a policy, a guardrail or `needs_approval` runs, so it is looked up again after each.
    """

    run: LiveRun
    call: ToolCall
    tool: FunctionTool
    state: CallState
    held: tuple[str, str, str | None]
    """The agent, its tool, and for a tool of a source the definition: these a verdict holds for."""
    arguments: Arguments
    verdict: VerdictGiven | None = None
    wanted: _ApprovalWanted | None = None

    async def make(self) -> Disposition:
        """Return the disposition of the call: run it, answer it with a refusal, or wait for a verdict.

        The order: policies, then the guardrails before an approval, then `needs_approval`; the last two have nothing to
        say where a verdict applies.
        """
        self._take_earlier_arguments()
        decided: Disposition | None = await self._run_policies()
        for step in (self._judge_before_request, self._ask):
            if decided is None and self._take_verdict() is None:
                decided = await step()
        if decided is not None:
            return decided
        if self.verdict is not None and not self.verdict.approved:
            return _make_refusal(self.verdict.message, self.call, "approval")
        return Execute(self.arguments)

    async def _judge_before_request(self) -> Disposition | None:
        request = self.state.approval
        if request is not None and (*_held_by(request), request.digest) == (*self.held, self._digest()):
            return AwaitVerdict(self.arguments)  # requested in an earlier run segment, and no verdict was given
        if not self.run.settings.config.tool_execution.pre_approval_tool_input_guardrails:
            return None
        asks = self.wanted is not None or self.tool.needs_approval is not False or _was_asked(self.run, self.call)
        return await self._run_guardrails() if asks else Execute(self.arguments)  # else right before the body

    async def _ask(self) -> AwaitVerdict | None:
        needed = self.wanted is not None or _was_asked(self.run, self.call) or await self._needs_approval()
        if self._take_verdict() is not None or not needed or self.call.call_id in self.run.state.cancel_requests:
            return None
        return AwaitVerdict(self.arguments, self._make_request())

    def _take_earlier_arguments(self) -> None:
        """Continue with the arguments that were shown to the approver, or that the approver gave."""
        request = self.state.approval
        if request is not None and request.arguments is not None:
            self.arguments = self.run.read_arguments(self.tool, request.arguments)
        verdict = self._take_verdict()
        if verdict is not None and verdict.approved and verdict.arguments is not None:
            self.arguments = self.run.read_arguments(self.tool, verdict.arguments)

    async def _run_policies(self) -> Answer | None:
        """Run the policies on the arguments; return the refusal if one denies them, else keep what they want."""
        if self.verdict is None:
            tree = self.run.tree
            tree.open_requests = tree.open_requests or {}
            tree.open_requests[self.run.path, self.call.call_id] = self._make_request
        decision = await _run_policies(self.run, self.call, self.tool, self.arguments)
        if isinstance(decision, Deny):
            return _make_denial(self.run, self.call, decision)
        self.wanted = decision if isinstance(decision, _ApprovalWanted) else None
        return None

    async def _run_guardrails(self) -> Answer | None:
        """Run the input guardrails, and the policies again on arguments that they rewrite; return a refusal, or None.

        The guardrails run again right before the body.
        Other arguments are another invocation: decisions on the first ones don't apply to it.
        """
        from agentloop._engine.calls.tool_guardrails import judge_input

        context = tool_context(self.run, self.call, self.tool, self.arguments.text)
        judged = await judge_input(self.run, self.call, self.tool, self.arguments, context)
        if isinstance(judged, CallOutcome):
            return Answer(judged)
        if judged is None:
            return None
        self.arguments = self.run.read_arguments(self.tool, judged)
        self.wanted = None
        return await self._run_policies()

    async def _needs_approval(self) -> bool:
        run, needs, parsed, call_id = self.run, self.tool.needs_approval, self.arguments.parsed, self.call.call_id
        if isinstance(needs, bool):
            return needs
        if parsed is None:
            return True  # a callable can't judge arguments that don't parse
        return bool(await run.ask("needs_approval", call_id, needs, run.context, parsed, call_id))

    def _make_request(self) -> ApprovalRequested:
        wanted, text = self.wanted, self.arguments.text
        agent, tool, definition = self.held
        return ApprovalRequested(
            *self.run.here(),
            self.call.call_id,
            agent,
            tool,
            self._digest(),
            arguments=text if text != self.call.arguments else None,
            policy=wanted.policies if wanted is not None else None,
            reason=wanted.reason if wanted is not None else None,
            definition=definition,
        )

    def _digest(self) -> str:
        """Return the digest of the arguments; for a text with withheld parts, the one that the log still has."""
        request, text = self.state.approval, self.arguments.text
        if request is not None and isinstance(text, WithheldText):
            return request.digest
        return arguments_digest(text, self.run.settings.config.json_limits)

    def _take_verdict(self) -> VerdictGiven | None:
        """Return the verdict that applies: one for just this call, or for all of the agent's calls to the tool.

        From now on no other one can take its place.
        """
        if self.verdict is None and (found := self._find_verdict()) is not None:
            self.verdict = found
            _act_on_verdict(self.run, self.call.call_id)
        return self.verdict

    def _find_verdict(self) -> VerdictGiven | None:
        given = self.state.verdict
        if given is not None and _held_by(given) == self.held:
            digest, limits = self._digest(), self.run.settings.config.json_limits
            if digest == given.digest:
                return given
            if given.arguments is not None and arguments_digest(given.arguments, limits) == digest:
                return given
        found = self.run.state.sticky.get(self.held)
        # Edited arguments apply only to the one call they were given for.
        return found if found is None or found.arguments is None else found.replace(arguments=None)


def _held_by(record: ApprovalRequested | VerdictGiven) -> tuple[str, str, str | None]:
    return record.agent, record.tool, record.definition


async def denial(run: LiveRun, call: ToolCall, tool: FunctionTool, arguments: Arguments) -> CallOutcome | None:
    """Return the outcome of a call if a policy denies the *arguments* that a guardrail has rewritten; else None.

    A policy that only wants an approval has no effect here: the call has passed its approval, and the guardrail that
    rewrote it is the tool's own.
    """
    decision = await _run_policies(run, call, tool, arguments)
    return _make_denial(run, call, decision).outcome if isinstance(decision, Deny) else None


def _make_denial(run: LiveRun, call: ToolCall, denial: Deny) -> Answer:
    # A policy sees the arguments, so its message may repeat them: only the model receives it.
    secret = denial.message is not None and run.redacts_errors_of(call)
    return _make_refusal(denial.message, call, "policy", secret=secret)


def _make_refusal(message: str | None, call: ToolCall, by: str, *, secret: bool = False) -> Answer:
    text = message if message is not None else f"Tool {quote(call.name, _LONGEST_NAME)} was not approved."
    outcome = CallOutcome(status="rejected", output=text, reason=by, secret=secret)
    return Answer(outcome, kind="approval_rejected" if message is None and by == "approval" else None)


async def _run_policies(
    run: LiveRun, call: ToolCall, tool: FunctionTool, arguments: Arguments
) -> Allow | Deny | _ApprovalWanted:
    """Run all policies and return the strictest decision: the first denial, else all wishes for an approval joined.

    A policy that raises denies the call.
    """
    denied: Deny | None = None
    asking: dict[str, None] = {}
    reasons: list[str] = []
    for index, policy in enumerate(run.policies):
        pending = PendingCall(
            call=call,
            tool=tool,
            agent=run.agent,
            arguments=arguments.parsed,
            context=run.context,
            path=run.path,
        )
        decision = await _run_policy(run, f"{call.call_id}:{index}", policy, pending)
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
        decision = await run.ask("policy", key, policy.decide, pending, to_plain=form)
        if not isinstance(decision, Allow | Ask | Deny):
            raise UserTypeError(f"policy {policy!r} must return Allow, Ask or Deny, not {decision!r}")
        if redact and isinstance(decision, Ask) and decision.reason is not None:
            return Ask(REDACTED)
        return decision
    except Exception as error:
        log_error(error, "policy %r failed; the call is denied", policy, redact=redact)
        return Deny()
