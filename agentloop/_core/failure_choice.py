"""Which of several failures leaves the run: by class, then phase, then model order; the rest become its notes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeAlias

import attrs

from agentloop import exceptions
from agentloop._common.error_text import error_summary, is_fatal, summary_parts
from agentloop.exceptions import AgentLoopError, ToolCancelledError, ToolOutputGuardrailTripwireTriggered

Rank: TypeAlias = tuple[int, int, int]


@attrs.frozen(kw_only=True)
class Failure:
    """One call's failure that its policy says is to be raised."""

    index: int
    """Place of the call in model order."""
    error: BaseException
    phase: Literal["body", "post"]
    """`post`: after the body (a hook, an output guardrail, a conversion)."""


def _rank(failure: Failure) -> Rank:
    error = failure.error
    return _ranked(is_fatal(error), isinstance(error, ToolCancelledError), failure.phase == "post", failure.index)


def rank_of_summary(summary: str, index: int, *, fatal: bool) -> Rank:
    """Return the rank of a failure of which a log has kept a summary alone: the one it had."""
    kind = class_of_summary(summary)
    return _ranked(fatal, kind is ToolCancelledError, kind is ToolOutputGuardrailTripwireTriggered, index)


def _ranked(fatal: bool, cancelled: bool, post: bool, index: int) -> Rank:
    severity = 0 if fatal else 2 if cancelled else 1
    return (severity, 0 if post else 1, index)


def choose(failures: Iterable[Failure]) -> BaseException:
    """Return the error to raise, with the others as notes. Independent of the order of *failures*."""
    first, *rest = sorted(failures, key=_rank)
    for other in rest:
        if other.error is not first.error:
            first.error.add_note(f"also failed: {error_summary(other.error)}")
    return first.error


def class_of_summary(summary: str) -> type[AgentLoopError] | None:
    """Return the library's class that the error a summary tells of is one of, or None."""
    found = getattr(exceptions, summary_parts(summary)[0], None)
    return found if isinstance(found, type) and issubclass(found, AgentLoopError) else None
