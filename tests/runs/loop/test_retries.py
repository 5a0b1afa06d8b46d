"""Model requests that fail and are made again: when, how often, and which of it the run reports."""

from typing import Any

import anyio
import anyio.lowlevel
import pytest
from kit.agents import Run, configure_run, fine, make_agent
from kit.ending import advance_clock
from kit.results import find_records, read_requests
from kit.watching import Watch

from agentloop import (
    MaxTurnsExceeded,
    ModelRetrySettings,
    ModelSettings,
    RunConfig,
    RunHooks,
    Runner,
    RunTimeoutError,
    UsageLimitExceeded,
    UsageLimits,
)
from agentloop import events as ev
from agentloop import records as r
from agentloop.abc import effects as e
from agentloop.exceptions import AgentLoopError, ModelBehaviorError, ModelTimeoutError, ModelTransportError
from agentloop.testing import call, fail, say, wait


class Door:
    """Effects without waiting: sleeps are noted, and chance has the value that the test gives."""

    def __init__(self, random: float = 0.0) -> None:
        self.slept: list[float] = []
        self.random = random

    async def perform(self, effect: e.Effect) -> Any:
        """Answer at once what takes time or chance; do the rest."""
        await anyio.lowlevel.checkpoint()
        match effect:
            case e.Sleep(seconds):
                self.slept.append(seconds)
                return None
            case e.Now():
                return 0.0
            case e.NewId():
                return "run"
            case e.Random():
                return self.random
            case _:
                return await effect.do()


def retrying(retries: int = 5, **more: Any) -> ModelSettings:
    """Return settings that retry."""
    return ModelSettings(retry=ModelRetrySettings(retries, **more))


def busy(status: int | None = 503, **more: Any) -> Any:
    """Return a step that fails in transport."""
    return fail(ModelTransportError("busy", status=status, **more))


def outcomes(result: Any) -> list[str]:
    """Return the attempts of a result in their order."""
    return [
        type(record).__name__
        for record in result.records
        if isinstance(record, r.ModelRequested | r.ModelFailed | r.ModelResponded)
    ]


@pytest.mark.scenario("RT-01", "RP-20")
@pytest.mark.parametrize("error", [busy(429), busy(503), fail(ModelTransportError("refused"))])
async def test_without_settings_two_retries_are_made(run_mode: Run, error: Any) -> None:
    """The run makes two retries where the provider's error allows them, before any output was shown."""
    door = Door()
    agent = make_agent([], error, error)
    result = await run_mode(agent, "go", run_config=RunConfig(effects=door))
    assert result.final_output == "done"
    assert len(read_requests(agent)) == 3
    assert len(door.slept) == 2


@pytest.mark.scenario("RP-20")
@pytest.mark.parametrize(
    ("error", "settings", "requests"),
    [
        (ModelTransportError("spent", status=429, code="insufficient_quota"), None, 1),
        (ModelTransportError("busy", status=429), ModelSettings(retry=ModelRetrySettings(max_retries=0)), 1),
        (ModelTransportError("busy", status=429), None, 3),
        (ModelTransportError("silent", code="silence_timeout"), None, 2),
    ],
)
async def test_requests_that_a_lasting_error_gets(
    run_mode: Run, error: Exception, settings: ModelSettings | None, requests: int
) -> None:
    """The error leaves when its retries are spent."""
    given = {} if settings is None else {"model_settings": settings}
    agent = make_agent([], *[fail(error)] * 4, **given)
    with pytest.raises(ModelTransportError) as caught:
        await run_mode(agent, "go", run_config=RunConfig(effects=Door()))
    assert caught.value is error
    assert len(read_requests(agent)) == requests


@pytest.mark.scenario("RP-20")
async def test_plain_run_retries_after_deltas_that_nobody_saw() -> None:
    """The plain run may retry, but a stream's consumer has received the deltas, so the error is final there."""
    for shown in (say("so far"), call("fine")):
        plain, streamed = (make_agent([fine], [shown, busy()]) for _ in range(2))
        result = await Runner.run(plain, "go", run_config=RunConfig(effects=Door()))
        assert result.final_output == "done"
        assert len(read_requests(plain)) == 2
        with pytest.raises(ModelTransportError, match="busy"):
            async with Runner.run_streamed(streamed, "go", run_config=RunConfig(effects=Door())) as stream:
                await stream.finished()
        assert len(read_requests(streamed)) == 1


@pytest.mark.scenario("RT-02")
async def test_waits_grow_up_to_their_limit(run_mode: Run) -> None:
    """Without jitter each wait is twice the one before, and none is above `max_delay`."""
    door = Door()
    settings = retrying(6, initial_delay=0.5, multiplier=2.0, max_delay=3.0, jitter=False)
    agent = make_agent([], *[busy()] * 5, model_settings=settings)
    result = await run_mode(agent, "go", run_config=RunConfig(effects=door))
    assert door.slept == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert result.final_output == "done"


@pytest.mark.scenario("RT-02")
@pytest.mark.parametrize(("random", "wanted"), [(0.0, [0.25, 0.5]), (0.5, [0.375, 0.75])])
async def test_jitter_takes_up_to_half_of_a_wait(run_mode: Run, random: float, wanted: list[float]) -> None:
    """The random number comes through the run's door."""
    door = Door(random)
    agent = make_agent([], busy(), busy(), model_settings=retrying(initial_delay=0.5))
    await run_mode(agent, "go", run_config=RunConfig(effects=door))
    assert door.slept == wanted


@pytest.mark.scenario("RT-02")
async def test_retries_end_at_their_number_and_the_last_error_is_raised(run_mode: Run) -> None:
    """The retries end even if the policy always allows another; attempts count from 1."""
    asked: list[tuple[int, str]] = []

    async def always(context: Any) -> bool:
        asked.append((context.attempt, str(context.error)))
        return True

    steps = [fail(ModelTransportError(f"busy {n}", status=503)) for n in range(1, 5)]
    agent = make_agent([], *steps, done=None, model_settings=retrying(2, policy=always))
    with pytest.raises(ModelTransportError, match="busy 3"):
        await run_mode(agent, "go", run_config=RunConfig(effects=Door()))
    assert len(read_requests(agent)) == 3
    assert asked == [(1, "busy 1"), (2, "busy 2")]


@pytest.mark.scenario("RT-02", "RT-04")
async def test_policy_has_the_last_word_over_the_errors_own_advice(run_mode: Run) -> None:
    """The policy may approve errors that are marked as unsafe, and refuse safe ones."""
    advice: list[bool] = []

    def contrary(context: Any) -> bool:
        advice.append(context.advice.retryable)
        return not context.advice.retryable

    agent = make_agent([], busy(400), busy(503, should_retry=False), model_settings=retrying(policy=contrary))
    await run_mode(agent, "go", run_config=RunConfig(effects=Door()))
    assert advice == [False, False]
    agent = make_agent([], busy(503), model_settings=retrying(policy=contrary))
    with pytest.raises(ModelTransportError):
        await run_mode(agent, "go", run_config=RunConfig(effects=Door()))
    assert len(read_requests(agent)) == 1


@pytest.mark.scenario("RT-04")
@pytest.mark.parametrize(
    "error",
    [
        ModelTransportError("unsafe", status=503, should_retry=False),
        ModelTransportError("denied", status=401),
        ModelBehaviorError("no sense"),
        ValueError("bug"),
    ],
)
async def test_unsafe_errors_are_not_retried_by_themselves(run_mode: Run, error: Exception) -> None:
    """An error is unsafe if the provider says so, or if asking again can't help."""
    agent = make_agent([], fail(error), model_settings=retrying())
    with pytest.raises(type(error), match=str(error)):
        await run_mode(agent, "go", run_config=RunConfig(effects=Door()))
    assert len(read_requests(agent)) == 1


@pytest.mark.scenario("RT-03", "LX-79")
@pytest.mark.parametrize("shown", [say("so far"), call("fine")])
async def test_nothing_is_retried_once_something_was_shown(shown: Any) -> None:
    """A consumer may have acted on it; the policy isn't even asked."""
    asked: list[Any] = []

    def always(context: Any) -> bool:
        asked.append(context)
        return True

    agent = make_agent([fine], [shown, busy()], model_settings=retrying(policy=always))
    with pytest.raises(ModelTransportError, match="busy"):
        async with Runner.run_streamed(agent, "go", run_config=RunConfig(effects=Door())) as stream:
            await stream.finished()
    assert len(read_requests(agent)) == 1
    assert asked == []


@pytest.mark.scenario("RT-03")
async def test_retry_before_anything_was_shown_is_invisible_to_the_consumer() -> None:
    """The stream shows one turn and one answer."""
    agent = make_agent([], busy(), busy(), model_settings=retrying())
    async with Runner.run_streamed(agent, "go", run_config=RunConfig(effects=Door())) as stream:
        events = [event async for event in stream]
    assert sum(isinstance(event, ev.TurnStarted) for event in events) == 1
    assert [event.text for event in events if isinstance(event, ev.TextDelta)] == ["done"]
    assert len(read_requests(agent)) == 3


@pytest.mark.scenario("RT-05", "MT-02", "US-01")
async def test_failed_attempts_count_as_requests_and_spend_no_turn(run_mode: Run) -> None:
    """One turn makes three requests, so `max_turns=1` is enough."""
    agent = make_agent([fine], busy(), busy(), model_settings=retrying())
    result = await run_mode(agent, "go", max_turns=1, run_config=RunConfig(effects=Door()))
    assert result.usage.requests == 3
    assert outcomes(result) == ["ModelRequested", "ModelFailed"] * 2 + ["ModelRequested", "ModelResponded"]
    assert [record.attempt for record in find_records(result, r.ModelRequested)] == [1, 2, 3]
    assert len(find_records(result, r.TurnStarted)) == 1
    agent = make_agent([fine], busy(), call("fine"), model_settings=retrying())
    with pytest.raises(MaxTurnsExceeded) as raised:
        await run_mode(agent, "go", max_turns=1, run_config=RunConfig(effects=Door()))
    assert raised.value.run_data is not None
    assert raised.value.run_data.usage.requests == 2


@pytest.mark.scenario("RT-05")
async def test_retries_are_refused_once_the_requests_are_used_up(run_mode: Run) -> None:
    """`UsageLimits.requests` counts attempts; the wait comes first, the check before the next request."""
    agent = make_agent([], *[busy()] * 4, model_settings=retrying())
    config = RunConfig(effects=Door(), limits=UsageLimits(requests=3))
    with pytest.raises(UsageLimitExceeded, match="requests 3 of 3"):
        await run_mode(agent, "go", run_config=config)
    assert len(read_requests(agent)) == 3


@pytest.mark.scenario("RT-06", "HS-04")
async def test_hooks_see_one_logical_call(run_mode: Run) -> None:
    """`on_llm_start` runs once before the first attempt, `on_llm_end` once with the response, if there is one."""
    lines: list[str] = []

    class Hooks(RunHooks):
        async def on_llm_start(self, ctx: Any, agent: Any, system: Any, given: Any) -> None:
            lines.append("start")

        async def on_llm_end(self, ctx: Any, agent: Any, response: Any) -> None:
            lines.append("end")

    agent = make_agent([], busy(), busy(), model_settings=retrying())
    await run_mode(agent, "go", hooks=Hooks(), run_config=RunConfig(effects=Door()))
    assert lines == ["start", "end"]
    lines.clear()
    agent = make_agent([], busy(), busy(), model_settings=retrying(1))
    with pytest.raises(ModelTransportError):
        await run_mode(agent, "go", hooks=Hooks(), run_config=RunConfig(effects=Door()))
    assert lines == ["start"]


@pytest.mark.scenario("RT-07")
async def test_cancellation_is_never_retried() -> None:
    """The policy isn't asked and the model not asked again, after a cancellation in an attempt or in the wait."""
    asked: list[Any] = []

    def always(context: Any) -> bool:
        asked.append(context)
        return True

    watch = Watch()
    settings = retrying(policy=always)
    agent = make_agent([], [wait(60)], model_settings=settings)
    async with Runner.run_streamed(agent, "go", run_config=configure_run(watch)) as stream:
        async for event in stream:
            if isinstance(event, ev.TurnStarted):
                for _ in range(10):
                    await anyio.lowlevel.checkpoint()
                stream.cancel()
    assert stream.result.status == "cancelled"
    assert asked == []
    assert len(read_requests(agent)) == 1
    assert [record.error for record in watch.of(r.ModelFailed)] == ["cancelled"]


@pytest.mark.scenario("RT-07")
async def test_cancel_during_the_wait_ends_it(run_mode: Run) -> None:
    """A run whose timeout passes while it waits makes no further request."""
    agent = make_agent([], busy(), model_settings=retrying(initial_delay=0.04, max_delay=60.0, jitter=False))
    started = anyio.Event()

    class Watching(Watch):
        def on_record(self, record: r.Record) -> None:
            super().on_record(record)
            if isinstance(record, r.ModelFailed):
                started.set()

    agent.model_settings = retrying(initial_delay=60.0, max_delay=60.0, jitter=False)
    with anyio.fail_after(600):
        async with anyio.create_task_group() as group:
            with anyio.CancelScope() as scope:

                async def cancel() -> None:
                    await started.wait()
                    scope.cancel()

                group.start_soon(cancel)
                await run_mode(agent, "go", run_config=configure_run(Watching()))
    assert scope.cancelled_caught
    assert len(read_requests(agent)) == 1


# ---------------------------------------------------------------------------------------------- Retry-After


@pytest.mark.scenario("LX-78", "RT-02")
async def test_retry_after_is_the_least_that_is_waited(run_mode: Run) -> None:
    """After a 429 with two seconds, one recorded retry follows in two seconds or more, also beyond `max_delay`."""
    door = Door()
    agent = make_agent([], busy(429, retry_after=2.0), model_settings=retrying(max_delay=1.0))
    result = await run_mode(agent, "go", run_config=RunConfig(effects=door))
    assert door.slept == [2.0]
    assert result.final_output == "done"
    [failed] = find_records(result, r.ModelFailed)
    assert (failed.attempt, failed.error) == (1, "ModelTransportError(busy)")
    assert len(read_requests(agent)) == 2


@pytest.mark.scenario("LX-78")
async def test_refused_key_is_not_retried(run_mode: Run) -> None:
    """A 401 is final."""
    door = Door()
    agent = make_agent([], busy(401), model_settings=retrying())
    with pytest.raises(ModelTransportError):
        await run_mode(agent, "go", run_config=RunConfig(effects=door))
    assert door.slept == []
    assert len(read_requests(agent)) == 1


@pytest.mark.scenario("LX-78")
async def test_wait_that_does_not_fit_into_the_runs_time_is_not_begun(run_mode: Run) -> None:
    """The error leaves at once, instead of a timeout after the wait."""
    door = Door()
    agent = make_agent([], busy(429, retry_after=100.0), model_settings=retrying())
    with pytest.raises(ModelTransportError, match="busy"):
        await run_mode(agent, "go", run_config=RunConfig(effects=door, timeout=50.0))
    assert door.slept == []
    assert len(read_requests(agent)) == 1


# ---------------------------------------------------------------------------------------------- time limits


@pytest.mark.scenario("TO-09")
async def test_each_attempt_has_the_time_limit_for_itself(run_mode: Run) -> None:
    """A slow attempt fails with `ModelTimeoutError`, is retried, and the next has the full time again."""

    def silent(request: Any) -> Any:
        advance_clock(60)
        return wait(anyio.Event())

    door = Door()
    settings = ModelSettings(timeout=60, retry=ModelRetrySettings(2, initial_delay=50.0, max_delay=50.0, jitter=False))
    agent = make_agent([], silent, silent, model_settings=settings)
    result = await run_mode(agent, "go", run_config=RunConfig(effects=door))
    assert result.final_output == "done"
    assert door.slept == [50.0, 50.0]
    errors = [record.error for record in find_records(result, r.ModelFailed)]
    assert errors == ["ModelTimeoutError(The model did not answer within 60 seconds.)"] * 2


@pytest.mark.scenario("TO-09")
async def test_last_attempt_that_takes_too_long_raises_its_timeout(run_mode: Run) -> None:
    """The model's timeout leaves, with its seconds, not the run's."""
    agent = make_agent([], wait(60), model_settings=ModelSettings(timeout=0.05))
    with pytest.raises(ModelTimeoutError) as raised:
        await run_mode(agent, "go")
    assert not isinstance(raised.value, RunTimeoutError)
    assert raised.value.timeout == 0.05
    assert isinstance(raised.value, AgentLoopError)
    assert raised.value.run_data is not None
    assert raised.value.run_data.usage.requests == 1


async def test_failing_policy_ends_the_run_with_its_error(run_mode: Run) -> None:
    """The application's bug isn't hidden behind the transport's failure."""

    def broken(context: Any) -> bool:
        raise ZeroDivisionError("policy is broken")

    agent = make_agent([], busy(), model_settings=retrying(policy=broken))
    with pytest.raises(ZeroDivisionError) as raised:
        await run_mode(agent, "go", run_config=RunConfig(effects=Door()))
    assert isinstance(raised.value.__context__, ModelTransportError)
