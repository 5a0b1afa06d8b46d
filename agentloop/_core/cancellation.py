"""The one table of who ends a call early, and what becomes of it: `(cause, stage) -> outcome and policy`.

Pure: the scheduler and the call's own task look a cell up, and make the outcome of it. Does not know how a cause is
noticed: a body's own cancellation is in `runtime/body_result.py` (`classify`), `cancel_call` and siblings in
`calls/live_call.py` (`LiveCall.cancel`), the deadline or another end of the run in `runtime/cancel_source.py`. Where
several causes meet once the body has ended, `calls/call.py` (`_decide_end`) chooses by the order of `CAUSES`.

A cell without a cut means that the cause doesn't end a call then. After the body its effect has happened: only what
cuts the settling short can still end the call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from agentloop._common.values import Value
from agentloop.outcomes import CancelledBy

Cause: TypeAlias = Literal["tool", "timeout", "caller", "sibling", "deadline", "parent"]
CAUSES: tuple[Cause, ...] = ("tool", "timeout", "caller", "sibling", "deadline", "parent")
"""Every cause, the graver ones later: the body's own cancellation, the tool's timeout, `cancel_call`, a failure of
another call, the run's deadline, any other end of the run. Of two that meet, the graver one ends the call."""
Stage: TypeAlias = Literal["before", "body", "after"]
"""The part of a call: up to the start hooks, the body, and from its end to the outcome."""
STAGES: Mapping[str, Stage] = {"waiting": "before", "starting": "before", "body": "body", "post": "after"}
"""The stage of a call by its phase (`step_order.PHASES`). A call that is paused or settled is in none."""


class Cut(Value, frozen=True):
    """The end of a call that is ended early: status and source of its outcome, and the policy of its failure."""

    status: Literal["cancelled", "timed_out"]
    by: CancelledBy | None = None
    policy: Literal["failure", "timeout"] | None = None
    """The policy of the tool that makes an output or the run's failure of it; None: the run raises nothing for it."""
    softly: bool = False
    """True if the cause cancels no scope of the call: it sets the cleanup deadline, which may cut the settling."""

    def output(self, tool: str) -> str | None:
        """Return the text for the model where no policy of *tool* makes one; None where the run ends anyway."""
        if self.by != "sibling":
            return None
        return f"Tool '{tool}' was cancelled because another call failed; it did not fail itself."


_OWN = Cut("cancelled", "tool", "failure")
_CALLER = Cut("cancelled", "caller", "failure")
_SIBLING = Cut("cancelled", "sibling")
_DEADLINE = Cut("cancelled", "deadline")
_PARENT = Cut("cancelled", "parent")
CUTS: Mapping[tuple[Cause, Stage], Cut | None] = {
    ("tool", "before"): _OWN,  # a hook or a guardrail cancelled itself
    ("tool", "body"): _OWN,
    ("tool", "after"): _OWN,  # the body left it behind, and the settling had to wait
    ("timeout", "before"): None,
    ("timeout", "body"): Cut("timed_out", None, "timeout"),
    ("timeout", "after"): None,
    ("caller", "before"): _CALLER,
    ("caller", "body"): _CALLER,
    ("caller", "after"): None,
    ("sibling", "before"): _SIBLING,
    ("sibling", "body"): _SIBLING,
    ("sibling", "after"): Cut("cancelled", "sibling", softly=True),
    ("deadline", "before"): _DEADLINE,
    ("deadline", "body"): _DEADLINE,
    ("deadline", "after"): _DEADLINE,
    ("parent", "before"): _PARENT,
    ("parent", "body"): _PARENT,
    ("parent", "after"): _PARENT,
}
"""The table. It names every pair of a cause and a stage."""


def is_graver(cause: Cause, other: Cause | None) -> bool:
    """Tell whether *cause* ends a call that *other*, if given, was ending already."""
    return other is None or CAUSES.index(cause) > CAUSES.index(other)
