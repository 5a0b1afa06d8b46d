"""Invariants of times: the queue timeout, the delays of retries, and the times that outcomes and starts record."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from agentloop import records as r
from agentloop._core.retry import MAX_RETRY_AFTER
from agentloop.settings import ModelRetrySettings
from agentloop.testing.invariants._invariant import HELD, Broken, Findings, broken, invariant
from agentloop.testing.invariants._observation import ObservedCall, ObservedLog, ObservedTurn
from agentloop.tools import FunctionTool

from .limits import sequential

EPSILON = 1e-5
"""Maximum difference in seconds of two measurements of one moment: the times of the log are rounded."""


# ---------------------------------------------------------------------------------------------- models


@invariant("accounting")
def retries_keep_to_their_settings(log: ObservedLog) -> Findings:
    """A failed request is retried as often as the settings allow, each time after its delay, and never after a part of
    the answer was shown.
    """
    for turn in log.turns:
        if not turn.failed:
            continue
        given = _find_retry_settings(log, turn)
        requested = sorted(turn.requested)
        for n, failed in turn.failed:
            settings = _settings_for(given, failed)
            again = next(((at, one) for at, one in requested if at > n), None)
            if again is None:
                if _must_be_retried(log, turn, failed, settings):
                    yield broken(
                        f"attempt {failed.attempt} failed, and of {settings.max_retries} retries none followed", n
                    )
            elif again[0] < log.next_segment(turn.path, n) and not log.crashed_between(n, again[0]):
                yield _check_retry(settings, failed, n, *again)


def _find_retry_settings(log: ObservedLog, turn: ObservedTurn) -> ModelRetrySettings | None:
    agent = log.agent_named(turn.agent)
    own = agent.model_settings.retry if agent is not None else None
    config = log.config(turn.path).model_settings
    return config.retry if config is not None and config.retry is not None else own


def _settings_for(given: ModelRetrySettings | None, failed: r.ModelFailed) -> ModelRetrySettings:
    """Return *given*, or the default settings for the kind and the code of the failure."""
    if given is not None:
        return given
    most = 1 if failed.code == "silence_timeout" else 2
    return ModelRetrySettings(max_retries=0 if failed.error_kind == "timeout" else most)


def _check_retry(
    settings: ModelRetrySettings, failed: r.ModelFailed, n: int, at: int, again: r.ModelRequested
) -> Broken | None:
    if failed.attempt > settings.max_retries:
        return broken(f"attempt {failed.attempt} was made again, and the settings are {settings!r}", n, at)
    if failed.streamed:
        return broken(f"attempt {failed.attempt} was made again, and some of it had been shown", n, at)
    least = min(settings.initial_delay * settings.multiplier ** (failed.attempt - 1), settings.max_delay)
    least = max(least / 2 if settings.jitter else least, min(failed.retry_after or 0.0, MAX_RETRY_AFTER))
    if again.at - failed.at < least - EPSILON:
        return broken(f"made again after {again.at - failed.at:g} s, and the delay is {least:g} s at least", n, at)
    return HELD


def _must_be_retried(log: ObservedLog, turn: ObservedTurn, failed: r.ModelFailed, settings: ModelRetrySettings) -> bool:
    """Tell whether a retry was due and nothing prevented it: no end, no deadline, no tripwire, no policy."""
    run = log.root
    if turn.path or run is None or turn is not run.turns[-1] or not run.ended or log.crashes:
        return False
    busy = failed.error_kind == "transport" and failed.should_retry is None and failed.status in (None, 429, 503)
    hindered = (
        failed.streamed
        or settings.policy is not None
        or log.observation.cancellation is not None
        or any(end.status == "cancelled" for _, end in run.ended)
        or log.observation.reader_left
        or log.config(turn.path).timeout is not None
        or log.config(turn.path).limits is not None
        or any(one.verdict == "tripped" for _, one in run.guards)
    )
    return busy and not hindered and failed.attempt <= settings.max_retries and log.observation.faultless


# ---------------------------------------------------------------------------------------------- calls


def _starts_at_once(tool: FunctionTool | None) -> bool:
    """Tell whether a call of *tool* starts in the step of its admission, and no equal call can answer it."""
    if tool is None or tool.idempotent or tool.tool_input_guardrails or tool.runs_in_thread:
        return False
    return isinstance(tool.is_enabled, bool)


def _first_starts(
    log: ObservedLog, turn: ObservedTurn
) -> Iterator[tuple[int, list[tuple[ObservedCall, int, r.CallStarted]]]]:
    """Yield the first starts of the calls of *turn*, in their order, grouped by run segment (its end record)."""
    found = [(n, call, one) for call in turn.calls for n, one in call.started[:1] if one.attempt == 1]
    found.sort(key=lambda start: start[0])
    for entry, starts in itertools.groupby(found, lambda start: log.next_segment(turn.path, start[0])):
        yield entry, [(call, n, one) for n, call, one in starts]


@invariant("execution")
def nobody_waits_past_the_queue_timeout(log: ObservedLog) -> Findings:
    """A call that has no slot `queue_timeout` seconds after the beginning of its batch is skipped then, not before, and
    never starts.
    """
    for turn in log.batches:
        limit = log.config(turn.path).tool_execution.queue_timeout
        if limit is None:
            continue
        for entry, starts in _first_starts(log, turn):
            for call, n, record in starts:
                waited = record.at - (record.queued_at if record.queued_at is not None else record.at)
                if not _starts_at_once(log.tool(call)):
                    continue
                if waited > limit + EPSILON:
                    yield broken(f"call {call.call_id} started after {waited:g} s of {limit:g} s in the queue", n)
                else:
                    yield HELD
            opened = starts[0][2].queued_at
            for call, n, settled in _list_skipped(turn, starts[0][1], entry):
                if opened is not None and settled.at < opened + limit - EPSILON:
                    yield broken(f"call {call.call_id} was skipped after {settled.at - opened:g} s of {limit:g} s", n)
                elif opened is not None and settled.at > _find_last_waiting(turn, n, opened + limit) + EPSILON:
                    yield broken(f"call {call.call_id} was skipped only after {settled.at - opened:g} s", n)
                else:
                    yield HELD


def _find_last_waiting(turn: ObservedTurn, n: int, expiry: float) -> float:
    """Return the latest time until which a call that record *n* skips may have waited: *expiry*, or for an equal call.

    It waits for room only once the equal call has ended, or has other arguments by a guardrail.
    """
    ended = [one.at for call in turn.calls for at, one in call.settled if at < n]
    judged = [one.at for call in turn.calls for at, one in call.guards if at < n]
    return max([expiry, *ended, *judged])


def _list_skipped(turn: ObservedTurn, since: int, until: int) -> Iterator[tuple[ObservedCall, int, r.CallSettled]]:
    for call in turn.calls:
        for n, one in call.settled:
            output = one.outcome.output
            if since < n < until and one.outcome.status == "skipped" and "no capacity" in str(output):
                yield call, n, one


@invariant("execution")
def outcomes_say_when(log: ObservedLog) -> Findings:
    """The outcome of a started call has the time of its start, not later than the record of it, and that of its end."""
    for call in log.started:
        for n, record in call.settled:
            starts = [one for at, one in call.started if at < n <= log.next_segment(call.path, at)]
            nested = log.runs.get((*call.path, call.call_id))
            paused = [at for at, one in nested.ended if at < n and one.status == "interrupted"] if nested else ()
            if not starts or paused or call.questions or (nested and len([at for at in nested.began if at < n]) > 1):
                continue  # it was continued: in a later run segment, or after it or its nested run had waited
            began, ended = record.outcome.started_at, record.outcome.ended_at
            if began is None or ended is None or not began <= starts[-1].at <= ended + EPSILON:
                yield broken(f"call {call.call_id} started at {starts[-1].at:g}, and says from {began} to {ended}", n)
            else:
                yield HELD


@invariant("execution")
def waits_are_told(log: ObservedLog) -> Findings:
    """The start of a call that waited in the queue while the only slot of its turn was taken records the wait."""
    for turn in log.batches:
        one_slot = log.config(turn.path).tool_execution.max_function_tool_concurrency == 1
        if not one_slot or sequential(log, turn.path, turn.agent):
            continue
        tools = [log.tool(call) for call in turn.calls]
        if any(tool is not None and (tool.exclusive or tool.idempotent) for tool in tools):
            continue
        for _, starts in _first_starts(log, turn):
            for call, n, record in starts[1:]:
                if record.waited_for:
                    yield HELD
                else:
                    yield broken(f"call {call.call_id} waited for the only slot, and its start doesn't say so", n)
