"""Whether a failed model request is made again, and when: a policy apart from the waiting.

Knows no clock and no chance: the random number and the time left are handed in. Three things are final, whatever a
policy says: a cancellation is never retried, neither is a response of which something was shown, and `max_retries`
holds. Without settings a request is retried twice, where its error speaks for that.
"""

from __future__ import annotations

import math

from agentloop.config import ModelRetrySettings, RetryAdvice, RetryContext
from agentloop.exceptions import ModelTimeoutError, ModelTransportError

MAX_RETRY_AFTER = 3600.0
"""Seconds; what a provider asks for beyond it is not believed."""
SILENCE = "silence_timeout"
"""The code of a transport error that says that an answer fell silent."""
_RETRYABLE = frozenset({408, 409, 429})
_LOCKED = "conversation_locked"
_SPENT = "insufficient_quota"
_USUAL = ModelRetrySettings(max_retries=2)
_ONCE = ModelRetrySettings(max_retries=1)
_NEVER = ModelRetrySettings(max_retries=0)


def effective_settings(settings: ModelRetrySettings | None, error: BaseException) -> ModelRetrySettings:
    """Return *settings*, or what holds without any: two retries; one of an answer that fell silent, which has taken
    minutes already; none of an attempt that took longer than the application allows one.
    """
    if settings is not None:
        return settings
    if isinstance(error, ModelTimeoutError):
        return _NEVER
    return _ONCE if getattr(error, "code", None) == SILENCE else _USUAL


def retry_advice(error: BaseException, *, stateful: bool = False) -> RetryAdvice:
    """Return what the error itself says about asking again.

    *stateful*: the request goes on from state the provider keeps. Asked twice it may act twice, so only an answer that
    proves nothing was done speaks for a retry.
    """
    after = _clamped(error.retry_after) if isinstance(error, ModelTransportError) else None
    retryable, reason = _judged(error)
    if retryable and stateful and getattr(error, "code", None) != _LOCKED:
        retryable, reason = False, f"{reason}, but the request is stateful: a second one may act twice"
    return RetryAdvice(retryable=retryable, retry_after=after, reason=reason)


def _judged(error: BaseException) -> tuple[bool, str]:
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


def _clamped(seconds: float | None) -> float | None:
    if seconds is None or math.isnan(seconds):
        return None
    return min(max(seconds, 0.0), MAX_RETRY_AFTER)


def may_retry(settings: ModelRetrySettings, context: RetryContext, *, streamed: bool) -> bool:
    """Tell whether the policy is still to be asked. Where it is False nothing can bring a retry about.

    *streamed*: something of the failed attempt's response was shown to the caller.
    """
    return (
        not streamed
        and isinstance(context.error, Exception)  # cancellations and fatal errors aren't
        and context.attempt <= settings.max_retries
    )


def next_delay(
    settings: ModelRetrySettings,
    context: RetryContext,
    *,
    approved: bool | None,
    random: float,
    streamed: bool,
    left: float | None,
) -> float | None:
    """Return the seconds to wait before the next attempt, or None where the error is final.

    A provider's Retry-After is the least that is waited, also beyond `max_delay`. A wait that leaves no time for the
    attempt makes the error final at once.

    Args:
        settings: What `effective_settings` gives.
        context: The failed attempt. Attempts count from 1.
        approved: What `settings.policy` answered; None where there is no policy, and the advice decides.
        random: From 0 up to 1.
        streamed: Whether something of the response was shown to the caller.
        left: Seconds until the nearest deadline; None = no deadline.
    """
    if not may_retry(settings, context, streamed=streamed):
        return None
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
    # Between half and all of it: clients that failed together don't come back together, and none comes back at once.
    return delay * (0.5 + random / 2) if settings.jitter else delay
