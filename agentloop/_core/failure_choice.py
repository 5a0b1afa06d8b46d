"""The choice of the failure to raise of a turn's calls: by class, then phase, then model order; the others become its
notes. If the end of a run fails as well, `_engine/close_segment.py` chooses; of guardrails `_engine/run_guardrails.py`.

The order in which failures arrive plays no part, so the choice is the same on every backend. A failure of which a log
has stored only a summary gets the rank of the original.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeAlias

from agentloop import exceptions
from agentloop._common.error_text import error_summary, is_fatal, summary_parts
from agentloop._common.values import Value
from agentloop.exceptions import AgentLoopError, ToolCancelledError, ToolOutputGuardrailTripwireTriggered

Rank: TypeAlias = tuple[int, int, int]


class Failure(Value, frozen=True, kw_only=True):
    """One call's failure that the tool's policy says to raise."""

    index: int
    """Position of the call in model order."""
    error: BaseException
    phase: Literal["body", "post"]
    """`post`: after the body (a hook, an output guardrail, a conversion)."""
    call_id: str | None = None


def _rank(failure: Failure) -> Rank:
    error = failure.error
    return _make_rank(is_fatal(error), isinstance(error, ToolCancelledError), failure.phase == "post", failure.index)


def rank_of_summary(summary: str, index: int, *, fatal: bool) -> Rank:
    """Return the rank of a failure of which only a summary was stored: the same as that of the failure itself."""
    kind = class_of_summary(summary)
    return _make_rank(fatal, kind is ToolCancelledError, kind is ToolOutputGuardrailTripwireTriggered, index)


def _make_rank(fatal: bool, cancelled: bool, post: bool, index: int) -> Rank:
    severity = 0 if fatal else 2 if cancelled else 1
    return (severity, 0 if post else 1, index)


def choose_failure(failures: Iterable[Failure]) -> Failure:
    """Return the failure whose error is raised. The result doesn't depend on the order of *failures*."""
    return min(failures, key=_rank)


def choose(failures: Iterable[Failure]) -> BaseException:
    """Return the error to raise, with the others as notes. The result doesn't depend on the order of *failures*."""
    first, *rest = sorted(failures, key=_rank)
    for other in rest:
        if other.error is not first.error:
            first.error.add_note(f"also failed: {error_summary(other.error)}")
    return first.error


def class_of_summary(summary: str) -> type[AgentLoopError] | None:
    """Return the library's error class that a *summary* names, or None for any other class."""
    found = getattr(exceptions, summary_parts(summary)[0], None)
    return found if isinstance(found, type) and issubclass(found, AgentLoopError) else None
