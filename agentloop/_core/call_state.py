"""The facts of one call that the model requested, as the fold of a run's records knows it, and of its approval."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import msgspec

from agentloop import records as r
from agentloop.items import ApprovalRequest, CallToAnswer, ToolCall, ToolOutput
from agentloop.outcomes import CallOutcome


class CallState(msgspec.Struct, eq=False):
    """One call that the model requested, with the facts of its start, approval and outcome. Mutated by its fold."""

    call: ToolCall
    turn: int
    index: int
    """Position among the calls of its response, from 0."""
    tool: str | None = None
    attempt: int = 0
    """Number of starts."""
    arguments: str | None = None
    """JSON text of the arguments at its last start."""
    body: r.BodyEnded | None = None
    outcome: CallOutcome | None = None
    cut: CallOutcome | None = None
    """The outcome from an earlier run segment that was cancelled from outside; the call is due again."""
    released: bool = False
    item: ToolOutput | None = None
    """The output as an item of the run, once it is released."""
    approval: r.ApprovalRequested | None = None
    verdict: r.VerdictGiven | None = None
    question: r.AnswerRequested | None = None
    """The application's answer was requested: the call is one of an external tool."""
    answer: r.CallAnswered | None = None
    agent: str | None = None
    """The key of the agent at its last start."""
    is_background: bool = False
    """True if its outcome says no more than that its body runs in the background."""

    @property
    def value(self) -> Any:
        """The Python value of its outcome, which it has; in a log that was stored and read, that of its body."""
        assert self.outcome is not None
        if self.outcome.value is None and self.outcome.status == "succeeded" and self.body is not None:
            return self.body.value
        return self.outcome.value


_get_subject = attrgetter("path", "call_id", "agent", "tool", "definition", "digest")
"""Returns what a verdict, or the request for one, is about."""


def fits(verdict: r.VerdictGiven, request: r.ApprovalRequested) -> bool:
    """Tell whether *verdict* was given for exactly this *request*: same path, call, agent, tool and arguments."""
    return bool(_get_subject(verdict) == _get_subject(request))


def with_arguments(call: ToolCall, text: str | None) -> ToolCall:
    """Return *call* with the arguments in *text*, which an approval or a guardrail may have changed; None: its own."""
    return call if text is None or text == call.arguments else call.replace(arguments=text)


def make_question(call: CallState, asked: r.AnswerRequested) -> CallToAnswer:
    """Return the interruption for the answer that *asked* requests: *call* with the arguments it started with."""
    made = with_arguments(call.call, call.arguments)
    return CallToAnswer(
        call=made, agent=asked.agent, path=asked.path, returns=asked.returns, expires_at=asked.expires_at
    )


def make_interruption(call: ToolCall, asked: r.ApprovalRequested) -> ApprovalRequest:
    """Return the interruption for the approval request *asked*: *call* with the arguments it would run with."""
    made = with_arguments(call, asked.arguments)
    return ApprovalRequest(made, asked.agent, asked.path, policy=asked.policy, reason=asked.reason)
