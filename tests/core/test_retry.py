"""Whether and when a failed model request is made again: a pure function of error, settings, chance and time left."""

import asyncio
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop._core.retry import MAX_RETRY_AFTER, effective_settings, may_retry, next_delay, retry_advice
from agentloop.exceptions import (
    ModelBehaviorError,
    ModelTimeoutError,
    ModelTransportError,
    UserTypeError,
    UserValueError,
)
from agentloop.settings import ModelRetrySettings, ModelSettings, RetryAdvice, RetryContext

STEADY = ModelRetrySettings(3, jitter=False)
RATE_LIMITED = ModelTransportError("slow down", status=429)


def delay_after(
    error: BaseException,
    settings: ModelRetrySettings = STEADY,
    *,
    attempt: int = 1,
    approved: bool | None = None,
    random: float = 0.5,
    streamed: bool = False,
    left: float | None = None,
    stateful: bool = False,
) -> float | None:
    """Return the delay after *error* by its own advice."""
    context = RetryContext(error=error, attempt=attempt, advice=retry_advice(error, stateful=stateful))
    if not may_retry(settings, context, streamed=streamed):
        return None
    return next_delay(settings, context, approved=approved, random=random, left=left)


# ---------------------------------------------------------------------------------------------- advice


@pytest.mark.parametrize(
    ("error", "retryable", "reason"),
    [
        (ModelTransportError("x"), True, "no answer came"),
        (ModelTimeoutError(5), True, "the attempt timed out"),
        (ModelTransportError("x", status=408), True, "status 408"),
        (ModelTransportError("x", status=409), True, "status 409"),
        (ModelTransportError("x", status=429), True, "status 429"),
        (ModelTransportError("x", status=500), True, "status 500"),
        (ModelTransportError("x", status=529), True, "status 529"),
        (ModelTransportError("x", status=400), False, "status 400"),
        (ModelTransportError("x", status=401), False, "status 401"),
        (ModelTransportError("x", status=404), False, "status 404"),
        (ModelTransportError("x", status=302), False, "status 302"),
        (ModelTransportError("x", status=400, should_retry=True), True, "the provider says so"),
        (ModelTransportError("x", status=503, should_retry=False), False, "the provider says not to"),
        (ModelBehaviorError("x"), False, "not a matter of transport"),
        (KeyboardInterrupt(), False, "not a matter of transport"),
    ],
)
def test_advice_follows_from_the_error(error: BaseException, retryable: bool, reason: str) -> None:
    """The provider's own advice overrides what its status would say."""
    assert retry_advice(error) == RetryAdvice(retryable=retryable, retry_after=None, reason=reason)


@pytest.mark.parametrize(
    ("asked", "taken"),
    [(2.0, 2.0), (0.0, 0.0), (-5.0, 0.0), (1e9, MAX_RETRY_AFTER), (math.inf, MAX_RETRY_AFTER), (math.nan, None)],
)
def test_an_absurd_retry_after_is_clamped(asked: float, taken: float | None) -> None:
    """The wait of a run is never negative, nor many days long."""
    assert retry_advice(ModelTransportError("x", status=429, retry_after=asked)).retry_after == taken


@pytest.mark.parametrize("error", [ModelTransportError("x"), ModelTimeoutError(5), RATE_LIMITED])
def test_a_stateful_request_is_not_advised_to_be_made_again(error: Exception) -> None:
    """Nothing proves that the provider did nothing; only a policy's own approval makes the retry."""
    advice = retry_advice(error, stateful=True)
    assert not advice.retryable
    assert "stateful" in advice.reason
    assert delay_after(error, stateful=True) is None
    assert delay_after(error, stateful=True, approved=True) == 0.25


def test_a_locked_conversation_may_be_asked_again() -> None:
    """The answer itself proves that nothing was done."""
    assert retry_advice(ModelTransportError("x", status=409, code="conversation_locked"), stateful=True).retryable


def test_what_is_not_retryable_anyway_is_not_put_down_to_state() -> None:
    """The reason given stays the true one."""
    assert retry_advice(ModelTransportError("x", status=401), stateful=True).reason == "status 401"


# ---------------------------------------------------------------------------------------------- whether


@pytest.mark.scenario("RP-20", "RT-01")
@pytest.mark.parametrize(
    ("error", "retries"),
    [
        (RATE_LIMITED, 2),
        (ModelTransportError("x", status=503), 2),
        (ModelTransportError("refused"), 2),
        (ModelTransportError("silent", code="silence_timeout"), 1),
        (ModelTransportError("x", status=429, code="insufficient_quota"), 0),
        (ModelTransportError("x", status=429, code="insufficient_quota", should_retry=True), 0),
        (ModelTransportError("x", status=401), 0),
        (ModelTimeoutError(1.0), 0),
        (ModelBehaviorError("x"), 0),
    ],
)
def test_without_settings_two_retries_are_made_where_the_error_speaks_for_them(error: Exception, retries: int) -> None:
    """An answer that fell silent has taken minutes already, and the application's own limit on an attempt is final."""
    settings = effective_settings(None, error)
    delays = [delay_after(error, settings, attempt=attempt) for attempt in (1, 2, 3)]
    assert [delay is not None for delay in delays] == [attempt <= retries for attempt in (1, 2, 3)]


@pytest.mark.scenario("RP-20")
def test_settings_that_are_given_hold_as_they_are() -> None:
    """`max_retries=0` asks for no retry."""
    none = ModelRetrySettings(max_retries=0)
    assert effective_settings(none, RATE_LIMITED) is none
    assert delay_after(RATE_LIMITED, none) is None


def test_an_unauthorised_request_is_final() -> None:
    """A 401 gets no retry unless a policy insists."""
    assert delay_after(ModelTransportError("x", status=401)) is None
    assert delay_after(ModelTransportError("x", status=401), approved=True) == 0.25


def test_a_policy_decides_in_the_place_of_advice() -> None:
    """A policy's no is final as well."""
    assert delay_after(RATE_LIMITED, approved=False) is None
    assert delay_after(ModelBehaviorError("x"), approved=True) == 0.25


@pytest.mark.parametrize("error", [asyncio.CancelledError(), KeyboardInterrupt(), SystemExit()])
def test_a_cancellation_is_never_retried(error: BaseException) -> None:
    """A cancellation gets no retry, nor does any other error that isn't an Exception."""
    assert delay_after(error, approved=True) is None


def test_nothing_is_retried_once_something_was_shown() -> None:
    """A second answer would contradict the first, so no policy can make a retry."""
    assert delay_after(RATE_LIMITED, streamed=True) is None
    assert delay_after(RATE_LIMITED, streamed=True, approved=True) is None


def test_retries_end_with_their_number() -> None:
    """Attempt 4 is the last of three retries."""
    assert [delay_after(RATE_LIMITED, attempt=n) is not None for n in (1, 2, 3, 4, 5)] == [True] * 3 + [False] * 2
    assert delay_after(RATE_LIMITED, attempt=4, approved=True) is None
    assert delay_after(RATE_LIMITED, ModelRetrySettings(0)) is None


@pytest.mark.parametrize(
    ("settings", "error", "attempt", "streamed", "asked"),
    [
        (STEADY, RATE_LIMITED, 1, False, True),
        (STEADY, ModelBehaviorError("x"), 3, False, True),
        (ModelRetrySettings(max_retries=0), RATE_LIMITED, 1, False, False),
        (STEADY, RATE_LIMITED, 4, False, False),
        (STEADY, RATE_LIMITED, 1, True, False),
        (STEADY, KeyboardInterrupt(), 1, False, False),
        (STEADY, ModelTransportError("x", code="context_length_exceeded"), 1, False, False),
        (STEADY, ModelTransportError("prompt is too long", status=400, should_retry=True), 1, False, False),
    ],
)
def test_a_policy_is_asked_only_where_it_can_decide(
    settings: ModelRetrySettings, error: BaseException, attempt: int, streamed: bool, asked: bool
) -> None:
    """A policy isn't called where its answer couldn't matter, so that its side effects are spared."""
    context = RetryContext(error=error, attempt=attempt, advice=retry_advice(error))
    assert may_retry(settings, context, streamed=streamed) is asked


# ---------------------------------------------------------------------------------------------- when


def test_delays_grow_up_to_their_maximum() -> None:
    """Without jitter the delays are 0.25, 0.5, 1, 2 and 2 seconds."""
    settings = ModelRetrySettings(5, jitter=False)
    assert [delay_after(RATE_LIMITED, settings, attempt=n) for n in range(1, 6)] == [0.25, 0.5, 1.0, 2.0, 2.0]


def test_jitter_spreads_over_the_upper_half() -> None:
    """The delay lies between its half and the whole of it."""
    settings = ModelRetrySettings(1, initial_delay=2.0, max_delay=2.0)
    assert [delay_after(RATE_LIMITED, settings, random=chance) for chance in (0.0, 0.5, 1.0)] == [1.0, 1.5, 2.0]


def test_retry_after_is_the_least_that_is_waited() -> None:
    """The wait lasts at least that long, also beyond `max_delay`; a shorter one doesn't shorten the backoff."""
    assert delay_after(ModelTransportError("x", status=429, retry_after=20.0)) == 20.0
    assert delay_after(ModelTransportError("x", status=429, retry_after=0.1)) == 0.25


@pytest.mark.parametrize(("left", "delay"), [(None, 2.0), (2.5, 2.0), (2.0, None), (1.0, None), (0.0, None)])
def test_a_wait_that_exceeds_the_time_left_is_an_immediate_failure(left: float | None, delay: float | None) -> None:
    """The time left must be enough for the attempt as well."""
    assert delay_after(ModelTransportError("x", status=429, retry_after=2.0), left=left) == delay


def test_a_huge_attempt_number_does_not_overflow() -> None:
    """Growth ends at the maximum, however far it would go."""
    settings = ModelRetrySettings(10_000, multiplier=10.0, jitter=False)
    assert delay_after(RATE_LIMITED, settings, attempt=9_999) == 2.0


@given(
    settings=st.builds(
        ModelRetrySettings,
        st.integers(0, 5),
        st.floats(0, 10),
        st.floats(0, 10),
        st.floats(1, 5),
        st.booleans(),
    ),
    attempt=st.integers(1, 7),
    random=st.floats(0, 1),
    retry_after=st.none() | st.floats(0, 100),
    left=st.none() | st.floats(0, 100),
)
def test_a_delay_keeps_all_its_bounds(
    settings: ModelRetrySettings, attempt: int, random: float, retry_after: float | None, left: float | None
) -> None:
    """Retry-After, `max_delay` and the time left bound the delay; after `max_retries` there is none."""
    error = ModelTransportError("x", status=503, retry_after=retry_after)
    delay = delay_after(error, settings, attempt=attempt, random=random, left=left)
    if delay is None:
        assert attempt > settings.max_retries or left is not None
        return
    assert attempt <= settings.max_retries
    assert (retry_after or 0.0) <= delay <= max(settings.max_delay, retry_after or 0.0)
    assert left is None or delay < left


# ---------------------------------------------------------------------------------------------- settings


def test_settings_have_their_defaults() -> None:
    """Only the number of retries must be said; model settings have none by themselves."""
    assert ModelRetrySettings(2) == ModelRetrySettings(2, 0.25, 2.0, 2.0, True, None)
    assert ModelSettings().retry is None
    override = ModelSettings(retry=ModelRetrySettings(2))
    assert ModelSettings(retry=ModelRetrySettings(1)).resolve(override).retry == ModelRetrySettings(2)
    assert override.resolve(ModelSettings()).retry == ModelRetrySettings(2)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"max_retries": -1}, UserValueError),
        ({"max_retries": None}, UserTypeError),
        ({"max_retries": 1.5}, UserTypeError),
        ({"initial_delay": -1.0}, UserValueError),
        ({"initial_delay": None}, UserTypeError),
        ({"max_delay": math.inf}, UserValueError),
        ({"max_delay": "1"}, UserTypeError),
        ({"multiplier": 0.5}, UserValueError),
        ({"multiplier": math.nan}, UserValueError),
        ({"multiplier": True}, UserTypeError),
        ({"multiplier": None}, UserTypeError),
        ({"jitter": 1}, UserTypeError),
        ({"policy": "always"}, UserTypeError),
    ],
)
def test_a_wrong_setting_is_refused_by_name(changes: dict[str, Any], error: type[Exception]) -> None:
    """The error names the setting where it is written."""
    with pytest.raises(error, match=next(iter(changes))):
        ModelRetrySettings(**{"max_retries": 1, **changes})


def test_a_policy_may_be_any_callable() -> None:
    """The policy is called with one `RetryContext`."""
    settings = ModelRetrySettings(1, policy=lambda context: context.advice.retryable)
    assert settings.policy is not None
    assert settings.policy(RetryContext(error=RATE_LIMITED, attempt=1, advice=retry_advice(RATE_LIMITED))) is True


def test_model_settings_take_retry_settings_alone() -> None:
    """A bare number isn't taken for them."""
    with pytest.raises(UserTypeError, match=r"ModelSettings\.retry"):
        ModelSettings(retry=3)  # type: ignore[arg-type]
