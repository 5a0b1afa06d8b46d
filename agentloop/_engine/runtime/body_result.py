"""How a call's body came to an end, told from exceptions and scopes and never guessed.

A cancellation that reaches the call boundary is the tool's own unless a scope is cancelled: the call's own scope (by
its deadline, `cancel_call` or a sibling's failure), or one around it (the run's end), which goes on as what it is.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import attrs

from agentloop._common.error_text import leaves
from agentloop._engine.runtime.backend import cancelled_types, run_is_cancelled
from agentloop.outcomes import CallOutcome


@attrs.frozen
class Returned:
    """The body returned *value*."""

    value: Any


@attrs.frozen
class Raised:
    """Something of the call raised *error*. `where` tells the body from what surrounds it."""

    error: BaseException
    where: Literal["body", "around"] = "body"


@attrs.frozen
class Faulty:
    """The arguments don't fit; the body was not started."""

    error: Exception


@attrs.frozen
class TimedOut:
    """The body was stopped (or came late) after *seconds*."""

    seconds: float


@attrs.frozen
class Cancelled:
    """The call alone was cancelled, or a sibling failed."""

    by: Literal["tool", "caller", "sibling"]
    reason: str


@attrs.frozen
class Paused:
    """The run nested in the call waits for somebody's verdict: no outcome yet."""


@attrs.frozen
class Refused:
    """The call is answered without its body."""

    outcome: CallOutcome


@attrs.frozen
class Deferred:
    """The call went back to waiting, or was answered by an equal one: its task has nothing more to do."""


Ending: TypeAlias = Returned | Raised | Faulty | TimedOut | Cancelled | Refused | Paused | Deferred


def classify(error: BaseException) -> Ending | None:
    """Return what *error* means for the call, or None if a scope or the end of the run decides. Asked in its scope."""
    if not isinstance(error, BaseExceptionGroup) and isinstance(error, Exception):
        return Raised(error)
    cancelled = cancelled_types()
    own = False
    failure: Exception | None = None
    for leaf in leaves(error):
        if isinstance(leaf, cancelled):
            own = True
        elif isinstance(leaf, Exception):
            failure = failure or leaf
        else:
            return Raised(leaf)
    if own and run_is_cancelled():
        return None
    if failure is not None:
        # Of a group that mixes its own cancellation with errors the errors are the news.
        return Raised(error if isinstance(error, Exception) else failure)
    return Cancelled("tool", own_reason(error))


def own_reason(error: BaseException) -> str:
    """Return a body's own words for cancelling itself."""
    words = [str(leaf) for leaf in leaves(error) if str(leaf)]
    return words[0] if words and "cancel scope" not in words[0].lower() else "the tool cancelled itself"


def raised_while_cancelled(error: BaseException) -> bool:
    """Tell whether *error* came up while a cancellation was passing through the body (an error in cleanup)."""
    cancelled = cancelled_types()
    seen: set[int] = set()
    context: BaseException | None = error
    while context is not None and id(context) not in seen:
        seen.add(id(context))
        if context is not error and isinstance(context, cancelled):
            return True
        context = context.__context__
    return False
