"""The decision whether and when a failed model request is made again, apart from the waiting.

Does not know about clocks or randomness: the random number and the time left are arguments. A policy can't override
four rules: a cancellation is never retried, nor a response of which the caller saw a part, nor a request that is too
long for the model's window, which stays so; and `max_retries` holds. Without settings a request is retried twice, if
its error allows it.

Decisions:

Retrying is a pure function (`_core/retry.py`). `next_delay` gets the settings, the failed attempt, a random number
and the time left; the engine waits. No policy can repeat a request of whose response the consumer has seen a part: it
would see two beginnings.

A paused answer is one answer in several requests. The provider interrupts its own tools and waits to be asked again;
a turn is one logical request, so the rest is asked for in the same turn: same view, no second `TurnStarted`, a record
of request and response for each part, and usage for each. The fold leaves the turn open, so a run that stops between
two parts is resumed by the rule for a turn without an answer. The limit of turns can't end such a turn, hence
another bound. Rejected: reading on within the model's client. The parts would be one request in the log, and a crash
would lose work that was paid for.
"""

from __future__ import annotations

import math

from agentloop.exceptions import ModelTimeoutError, ModelTransportError
from agentloop.settings import ModelRetrySettings, RetryAdvice, RetryContext

MAX_RETRY_AFTER = 3600.0
"""Seconds; a longer wait that a provider asks for is cut to this."""
SILENCE = "silence_timeout"
"""Code of the transport error for an answer that stopped in the middle or never began."""
_RETRYABLE = frozenset({408, 409, 429})
_LOCKED = "conversation_locked"
_SPENT = "insufficient_quota"
_USUAL = ModelRetrySettings(max_retries=2)
_ONCE = ModelRetrySettings(max_retries=1)
_NEVER = ModelRetrySettings(max_retries=0)


def effective_settings(settings: ModelRetrySettings | None, error: BaseException) -> ModelRetrySettings:
    """Return *settings*, or the defaults for *error* if there are none.

    The default is two retries. It is one retry after a silent answer, as that has taken minutes already, and none after
    an attempt that took longer than the application allows for one.
    """
    if settings is not None:
        return settings
    if isinstance(error, ModelTimeoutError):
        return _NEVER
    return _ONCE if getattr(error, "code", None) == SILENCE else _USUAL


def retry_advice(error: BaseException, *, stateful: bool = False) -> RetryAdvice:
    """Return the advice on a retry that follows from the error itself.

    *stateful*: the request continues state that the provider keeps. Sent twice it may act twice, so a retry is advised
    only if the answer proves that nothing was done.
    """
    after = clamp(error.retry_after) if isinstance(error, ModelTransportError) else None
    retryable, reason = _advise(error)
    if retryable and stateful and getattr(error, "code", None) != _LOCKED:
        retryable, reason = False, f"{reason}, but the request is stateful: a second one may act twice"
    return RetryAdvice(retryable=retryable, retry_after=after, reason=reason)


def _advise(error: BaseException) -> tuple[bool, str]:
    match error:
        case ModelTimeoutError():
            return True, "the attempt timed out"
        case ModelTransportError(code=code) if code == _SPENT:
            return False, "the quota is spent"
        case ModelTransportError(should_retry=bool() as advised):
            return advised, "the provider says so" if advised else "the provider says not to"
        case ModelTransportError(status=None):
            return True, "no answer came"
        case ModelTransportError(status=int() as status):
            return status in _RETRYABLE or status >= 500, f"status {status}"
    return False, "not a matter of transport"


def clamp(seconds: float | None) -> float | None:
    """Return a server's wish for a wait in the range that a retry respects; None if it isn't a number."""
    if seconds is None or math.isnan(seconds):
        return None
    return min(max(seconds, 0.0), MAX_RETRY_AFTER)


def may_retry(settings: ModelRetrySettings, context: RetryContext, *, streamed: bool) -> bool:
    """Tell whether a retry is possible at all, so that the policy has to be called. False is final.

    *streamed*: the caller saw a part of the failed attempt's response.
    """
    return (
        not streamed
        and isinstance(context.error, Exception)  # cancellations and fatal errors aren't
        and not (isinstance(context.error, ModelTransportError) and context.error.context_too_long)
        and context.attempt <= settings.max_retries
    )


def next_delay(
    settings: ModelRetrySettings,
    context: RetryContext,
    *,
    approved: bool | None,
    random: float,
    left: float | None,
) -> float | None:
    """Return the seconds to wait before the next attempt, which `may_retry` allows; None if the error is final.

    A provider's Retry-After is the minimum of the wait, also beyond `max_delay`. A wait that leaves no time for the
    attempt makes the error final at once.

    Args:
        settings: The result of `effective_settings`.
        context: The failed attempt. Attempts count from 1.
        approved: The answer of `settings.policy`; None without a policy: then the advice decides.
        random: From 0 up to 1.
        left: Seconds until the nearest deadline; None = no deadline.
    """
    if not (context.advice.retryable if approved is None else approved):
        return None
    delay = _backoff(settings, context.attempt, random)
    if context.advice.retry_after is not None:
        delay = max(delay, context.advice.retry_after)
    return None if left is not None and delay >= left else delay


def _backoff(settings: ModelRetrySettings, attempt: int, random: float) -> float:
    try:
        grown = settings.initial_delay * settings.multiplier ** (attempt - 1)
    except OverflowError:
        grown = settings.max_delay
    delay = min(grown, settings.max_delay)
    # Half to all of the delay: clients that failed together don't retry together, and none retries at once.
    return delay * (0.5 + random / 2) if settings.jitter else delay
