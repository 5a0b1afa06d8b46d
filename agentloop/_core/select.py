"""Which of several failures leaves the run: by class, then phase, then model order; the rest become its notes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import attrs

from agentloop.error_text import error_summary
from agentloop.exceptions import ToolCancelledError


@attrs.frozen(kw_only=True)
class Failure:
    """One call's failure that its policy says is to be raised."""

    index: int
    """Place of the call in model order."""
    error: BaseException
    phase: Literal["body", "post"]
    """`post`: after the body (a hook, an output guardrail, a conversion)."""


def _rank(failure: Failure) -> tuple[int, int, int]:
    if not isinstance(failure.error, Exception):
        severity = 0
    elif isinstance(failure.error, ToolCancelledError):
        severity = 2
    else:
        severity = 1
    return (severity, 0 if failure.phase == "post" else 1, failure.index)


def choose(failures: Iterable[Failure]) -> BaseException:
    """Return the error to raise, with the others as notes. Independent of the order of *failures*."""
    first, *rest = sorted(failures, key=_rank)
    for other in rest:
        if other.error is not first.error:
            first.error.add_note(f"also failed: {error_summary(other.error)}")
    return first.error
