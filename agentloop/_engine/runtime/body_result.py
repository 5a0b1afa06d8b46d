"""Body results: the possible ends of a call's body, derived from exceptions and scopes and never guessed.

A cancellation that reaches the call boundary is the tool's own unless a scope is cancelled: the call's own scope (by
its deadline, `cancel_call` or a sibling's failure), or one around it (the run's end), which continues as it is. Does
not know about policies: which outcome a result becomes is decided elsewhere.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from agentloop._common.error_text import leaves
from agentloop._common.values import Value
from agentloop._concurrency.backend import cancelled_types, is_cancelled_around
from agentloop.outcomes import CallOutcome


class Returned(Value, frozen=True):
    """The body returned *value*."""

    value: Any


class Raised(Value, frozen=True):
    """A part of the call raised *error*. `where` tells the body from the code around it; a fatal error is "around".

    Arguments that don't fit are an error of the body, which was not started: the tool's policy answers both.
    """

    error: BaseException
    where: Literal["body", "around"] = "body"


class TimedOut(Value, frozen=True):
    """The body was stopped (or came late) after *seconds*."""

    seconds: float


class Cancelled(Value, frozen=True):
    """Only the call was cancelled, or a sibling failed."""

    by: Literal["tool", "caller", "sibling"]
    reason: str
    error: BaseException | None = None
    """The error of the body's cleanup."""


class Paused(Value, frozen=True):
    """The run nested in the call waits for a verdict: no outcome yet."""


class Refused(Value, frozen=True):
    """The call is answered without its body."""

    outcome: CallOutcome


class Deferred(Value, frozen=True):
    """The call returned to waiting, or an equal one answered it: its task has nothing more to do."""


class RunEnding(Value, frozen=True):
    """The run around the call is being cancelled, and with it the call; *error* is that of the body's cleanup."""

    error: BaseException | None = None


class Unconverted(Value, frozen=True):
    """Code of the engine, or of the application outside of the body, raised *error* where no policy converts it."""

    error: BaseException


Ending: TypeAlias = Returned | Raised | TimedOut | Cancelled | Refused | Paused | Deferred | RunEnding | Unconverted


def classify(error: BaseException) -> Ending | None:
    """Return the body result that *error* means, or None if a scope or the end of the run decides.

    Must be called inside the call's own scope, whose cancellation it then sees.
    """
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
    if own and is_cancelled_around():
        return None if failure is None else Raised(_drop_cancellations(error))
    if failure is not None:
        # In a group that mixes its own cancellation with errors, the errors say more.
        return Raised(error if isinstance(error, Exception) else failure)
    return Cancelled("tool", own_reason(error))


def _drop_cancellations(error: BaseException) -> Exception:
    """Return the errors of a group that holds cancellations too, as one error that was raised while these passed."""
    cancelled = cancelled_types()
    passing = [leaf for leaf in leaves(error) if isinstance(leaf, cancelled)]
    errors = ExceptionGroup(
        "unhandled errors in a task group", [leaf for leaf in leaves(error) if isinstance(leaf, Exception)]
    )
    errors.__context__ = passing[0]
    return errors


def own_reason(error: BaseException) -> str:
    """Return the message with which a body cancelled itself, or a default one."""
    words = [str(leaf) for leaf in leaves(error) if str(leaf)]
    return words[0] if words and "cancel scope" not in words[0].lower() else "the tool cancelled itself"
