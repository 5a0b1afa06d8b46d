"""Invariants of cancellation and of the end of a run: nothing outlives a run, and outcomes name the right cause."""

from __future__ import annotations

import itertools
import math
from collections import Counter

from agentloop import records as r
from agentloop.config import RunConfig
from agentloop.exceptions import RunTimeoutError
from agentloop.items import ToolOutput
from agentloop.testing.invariants._invariant import HELD, Findings, broken, format_path, invariant
from agentloop.testing.invariants._observation import ObservedLog
from agentloop.testing.simulation._findings import ended_before, outranks
from agentloop.testing.simulation._simulated_parts import EPOCH
from agentloop.tools import AgentCall

from .outcomes import raises

SLACK = 1e-3
"""Seconds beyond the cleanup grace that an end may take on the simulated clock, which stops while tasks run."""


_GIVEN = (r.VerdictGiven, r.CallAnswered, r.InputAdded, r.InputWithdrawn)
"""What anybody gives to a run that has paused."""


@invariant("cancellation")
def every_entry_ends_once(log: ObservedLog) -> Findings:
    """Each run segment ends once, its end is its last record, and a nested run ends before its call."""
    for run in log.runs.values():
        bounds = [*run.began, len(log.records)]
        for began, until in itertools.pairwise(bounds):
            ends = [n for n, _ in run.ended if began < n < until]
            if len(ends) > 1:
                yield broken(f"an entry of run {format_path(run.path)} ended {len(ends)} times", *ends)
            elif not ends and log.crashed_between(began, until):
                yield HELD
            elif not ends and (until < len(log.records) or _is_over(log)):
                yield broken(f"an entry of run {format_path(run.path)} never ended", began)
            elif ends:
                late = [n for n in range(ends[0] + 1, until) if log.records[n].path[: len(run.path)] == run.path]
                late = [n for n in late if not isinstance(log.records[n], _GIVEN)]
                late = [n for n in late if not _cancels_a_call(log.records[n])]  # of one that waits
                if late:
                    yield broken(f"records of run {format_path(run.path)} stand after its end", ends[0], *late)
                else:
                    yield HELD


def _is_over(log: ObservedLog) -> bool:
    seen = log.observation
    return seen.result is not None or seen.error is not None or seen.cancellation is not None


@invariant("cancellation")
def an_end_from_above_is_not_told(log: ObservedLog) -> Findings:
    """A call that the end of a run cancelled has no output, and no model is shown one in that run segment."""
    for call, n, record in log.from_above:
        until = log.next_segment(call.path, n)
        if record.outcome.output is not None:
            yield broken(f"call {call.call_id} was ended from above and has an output for the model", n)
        elif any(n < at < until for at in call.turn.accepted):
            yield broken(f"call {call.call_id} was ended from above, and its turn was accepted", n)
        else:
            yield HELD
        if len(call.settled) == 1:
            for path, items in log.observation.shown or ():
                if path == call.path and any(
                    isinstance(item, ToolOutput) and item.call_id == call.call_id for item in items
                ):
                    yield broken(f"the model was shown an output of call {call.call_id}, which has none", n)


@invariant("cancellation")
def nothing_begins_while_ending(log: ObservedLog) -> Findings:
    """After the end of a run has cancelled one of its calls, no turn, model request or queued call of it begins."""
    for call, n, _ in log.from_above:
        until = log.next_segment(call.path, n)
        begun = [
            at
            for at in range(n + 1, until)
            if isinstance(record := log.records[at], r.TurnStarted | r.ModelRequested | r.CallStarted)
            and record.path == call.path
        ]
        if begun:
            yield broken(f"begun although call {call.call_id} had been ended from above", n, *begun)
        else:
            yield HELD


@invariant("cancellation")
def nothing_is_accepted_after_a_cancellation(log: ObservedLog) -> Findings:
    """After the caller's cancellation no turn is accepted or begun, and no model request is made."""
    given = log.observation.cancellation
    if given is None or not given.came_out:
        return
    yield HELD
    kinds = (r.BatchEnded, r.TurnStarted, r.ModelRequested)
    late = [n for n in range(given.mark, len(log.records)) if isinstance(log.records[n], kinds)]
    if late:
        yield broken(f"{type(log.records[late[0]]).__name__} after the cancellation", *late)


@invariant("cancellation")
def a_cancelled_run_says_so(log: ObservedLog) -> Findings:
    """A run ends as cancelled if its caller cancelled it before its end was decided, and only if its caller did."""
    if log.root is None or not log.root.ended or not _is_over(log):
        return  # without the result or the error, it is unknown what the caller did
    n, end = log.root.ended[-1]
    given = log.observation.cancellation
    result = log.observation.result
    if end.status == "cancelled":
        asked = given is not None or getattr(result, "status", None) == "cancelled"
        if asked:
            yield HELD
        else:
            yield broken("the run ended as cancelled, and nobody had asked for it", n)
    elif given is not None and not outranks(log.observation.error):
        if ended_before(log.records, given.mark):
            yield HELD
        else:
            yield broken(f"the caller cancelled the run, which ended as {end.status}", n)


@invariant("cancellation")
def a_run_may_end_with_its_turn(log: ObservedLog) -> Findings:
    """A run whose reader leaves, or asks it to end after its turn, begins no other turn in that run segment; it
    completes the current turn if the reader stays.
    """
    mark = log.observation.to_end_after
    if mark is None or log.root is None:
        return
    until = log.next_segment((), mark)
    late = [turn.n for turn in log.root.turns if mark <= turn.n < until]
    begun = [turn for turn in log.root.turns if turn.n < mark]
    if late and begun:
        yield broken("a turn began after the run was to end with the one before", *late)
    ends = [one for n, one in log.root.ended if mark <= n < until]
    stays = log.observation.cancellation is None and not log.observation.reader_left
    if ends and ends[-1].status == "cancelled" and begun and stays:
        open_calls = [call for call in begun[-1].calls if not call.settled]
        cut = [n for call, n, _ in log.from_above if not call.path and call.turn is begun[-1]]
        if not begun[-1].answered or open_calls or cut:
            yield broken("the turn with which the run was to end was cut", begun[-1].n, *cut)
        else:
            yield HELD


@invariant("cancellation")
def an_end_from_above_has_a_cause(log: ObservedLog) -> Findings:
    """A call is cancelled by parent or deadline only if a run around it ended early."""
    for call, n, _ in log.from_above:
        until = log.next_segment(call.path, n)
        run = log.runs.get(call.path)
        ends = [one.status for at, one in run.ended if n < at <= until] if run is not None else []
        if ends and ends[0] == "completed":
            yield broken(f"call {call.call_id} was ended from above, and its run completed", n)
        elif ends:
            yield HELD


def _cancels_a_call(record: r.Record) -> bool:
    return isinstance(record, r.CancelRequested) and record.call_id is not None


@invariant("cancellation")
def a_cancelled_call_never_starts(log: ObservedLog) -> Findings:
    """A call whose cancellation was requested doesn't start after that, in any run segment, with any verdict."""
    for n, record in enumerate(log.records):
        if not isinstance(record, r.CancelRequested) or record.call_id is None:
            continue
        call = log.calls.get((record.path, record.call_id))
        late = [at for at, _ in call.started if at > n] if call is not None else []
        if late:
            yield broken(f"call {record.call_id} was cancelled, and started", n, *late)
        else:
            yield HELD


@invariant("cancellation")
def ends_from_outside_are_recorded(log: ObservedLog) -> Findings:
    """A call that its caller ended settles after the record of that; so does one of the outermost run that the run's
    caller or deadline ended.
    """
    causes = [(n, one) for n, one in enumerate(log.records) if isinstance(one, r.CancelRequested | r.DeadlinePassed)]
    for call in log.calls.values():
        for n, record in call.settled:
            by, where = record.outcome.cancelled_by, (call.path, call.call_id)
            if by == "caller":
                found = [at for at, one in causes if (one.path, getattr(one, "call_id", None)) == where]
            elif call.path:
                continue  # its run may have ended with the call around it: at a timeout, or because of a sibling
            elif by == "deadline":
                found = [at for at, one in causes if isinstance(one, r.DeadlinePassed)]
            elif by == "parent" and log.observation.cancellation is not None and log.observation.faultless:
                found = [at for at, one in causes if getattr(one, "call_id", None) is None]
            else:
                continue
            if not any(at < n for at in found):
                yield broken(f"call {call.call_id} was ended by the {by}, and no record before says so", n)
            else:
                yield HELD


@invariant("cancellation")
def who_ended_it_is_told(log: ObservedLog) -> Findings:
    """A call that the timeout of the run ended is recorded as ended by the deadline; one that the caller ended, by the
    parent.
    """
    given, error = log.observation.cancellation, log.observation.error
    if given is None and isinstance(error, RunTimeoutError):
        wanted = "deadline"
    elif given is not None and log.observation.config.timeout is None and log.observation.faultless:
        wanted = "parent"
    else:
        return
    for call, n, record in log.from_above:
        if call.path and (wanted == "deadline" or log.config(call.path).timeout is not None):
            continue  # the timeout of a tool, or of the nested run itself, may have ended the nested run
        by = record.outcome.cancelled_by
        if by != wanted:
            yield broken(f"call {call.call_id} is said to be ended by the {by}, and it was by the {wanted}", n)
        else:
            yield HELD


@invariant("cancellation")
def the_end_comes_within_grace(log: ObservedLog) -> Findings:
    """A cancelled run returns within its cleanup grace, if no body shields itself or refuses to end. Writes that its
    journal begins only then have the grace once more.
    """
    given, ended = log.observation.cancellation, log.observation.ended_at
    if given is None or not given.came_out or given.at is None or ended is None or not log.observation.faultless:
        return
    grace = log.observation.config.tool_execution.cleanup_grace
    if ended - given.at > grace * (1 if log.observation.durable is None else 2) + SLACK:
        yield broken(f"the run took {ended - given.at:g} s to end; its grace is {grace:g} s", given.mark)
    else:
        yield HELD


@invariant("cancellation")
def runs_keep_to_their_time(log: ObservedLog) -> Findings:
    """Each segment of a run with a timeout, also of a nested run with its own, ends within timeout plus cleanup grace,
    if no body refuses to end; the timeout does not end it earlier.
    """
    if not log.observation.faultless or log.crashes:
        return
    for run in log.runs.values():
        config = _own_config(log, run.path)
        if config is None or config.timeout is None:
            continue
        grace = config.tool_execution.cleanup_grace * (1 if log.observation.durable is None else 2)
        for began in run.began:
            end = next(((n, one) for n, one in run.ended if n > began), None)
            if end is None:
                continue
            n, record = end
            took = record.at - log.records[began].at
            if took > config.timeout + grace + SLACK:
                yield broken(f"run {format_path(run.path)} took {took:g} s, and has {config.timeout:g} s", began, n)
            elif "RunTimeoutError(" in (record.error or "")[:11] and took < config.timeout - SLACK:
                yield broken(f"run {format_path(run.path)} ended after {took:g} of {config.timeout:g} s", began, n)
            else:
                yield HELD


def _own_config(log: ObservedLog, path: tuple[str, ...]) -> RunConfig | None:
    """Return the configuration of the run at *path*; None if it has none of its own."""
    if not path:
        return log.observation.config
    call = log.calls.get((path[:-1], path[-1]))
    tool = log.tool(call) if call is not None else None
    own = tool is not None and isinstance(tool.body, AgentCall) and tool.body.run_config is not None
    return log.config(path) if own else None


@invariant("cancellation")
def cleanup_is_awaited(log: ObservedLog) -> Findings:
    """Cleanup that has begun ends before its run, or is cut at the cleanup deadline and the log records the cut.

    Cleanup that begins after the deadline is cut at its first wait: the log may record the cut just before the cleanup
    begins.
    """
    cuts = Counter((one.path, one.section) for one in log.observation.records if isinstance(one, r.CleanupCut))
    for one in log.observation.cleanups or ():
        run = log.runs.get(one.path)
        end = next((n for n, _ in run.ended if n >= one.began), None) if run is not None else None
        if one.ended is None:
            cuts[one.path, one.section] -= 1
            if cuts[one.path, one.section] < 0:
                yield broken(f"{one.section} of call {one.call_id} was left in the middle", one.began)
        elif end is not None and one.ended > end:
            yield broken(f"{one.section} of call {one.call_id} came to its end after its run", end)
        else:
            yield HELD


@invariant("cancellation")
def what_outlives_its_run_is_reported(log: ObservedLog) -> Findings:
    """A body that still runs past the cleanup deadline of its ended run is reported once a second; no other body is."""
    if log.observation.still_running is None:
        return
    reports, ended = Counter(log.observation.still_running), _find_end_time(log)
    for key, bodies in log.bodies.items():
        count, last = reports.pop(key, 0), bodies[-1]
        if ended is None or key[0] or last.ended_at is None or last.began_at > ended:
            continue
        over = last.ended_at - ended - log.observation.config.tool_execution.cleanup_grace
        # One report at the deadline, one each second after it. A report due in the same moment as the body's end may
        # come or not.
        least, most = (math.ceil(max(over - one, 0.0)) for one in (SLACK, -SLACK))
        if not least <= count <= most:
            yield broken(f"{count} reports on call {last.call_id}, {over:g} s past the deadline", last.began)
        elif count:
            yield HELD
    for path, call_id in reports:
        yield broken(f"call {call_id} of {format_path(path)} was reported as running, and its body never was")


def _find_end_time(log: ObservedLog) -> float | None:
    """Return when the caller or the timeout ended the run, on the clock of bodies; None if that can't be known."""
    given, timeout = log.observation.cancellation, log.observation.config.timeout
    settled = (one for call in log.calls.values() for _, one in call.settled)
    if any(raises(one) or one.outcome.cancelled_by == "sibling" for one in settled):
        return None  # a failure may have begun the cleanup earlier
    if given is not None:
        return given.at if given.came_out and timeout is None else None
    if timeout is None or not isinstance(log.observation.error, RunTimeoutError) or log.root is None:
        return None
    return log.records[log.root.began[-1]].at - EPOCH + timeout


@invariant("cancellation")
def resources_are_left_in_reverse(log: ObservedLog) -> Findings:
    """The resources of a run segment are closed one after the other, in the reverse order of their entering."""
    left: dict[tuple[tuple[str, ...], int], list[int]] = {}
    for one in log.observation.cleanups or ():
        if one.entered is not None:
            left.setdefault((one.path, log.next_segment(one.path, one.began)), []).append(one.entered)
    for (path, _), order in left.items():
        if order != sorted(order, reverse=True):
            yield broken(f"run {format_path(path)} left its resources in the order {order} of their entering")
        else:
            yield HELD


@invariant("cancellation")
def late_reports_come_once(log: ObservedLog) -> Findings:
    """A result of a body that comes after its outcome was decided is reported once: a value after the timeout, or an
    error raised while the body was being cancelled.
    """
    if log.observation.late is None:
        return
    reports = Counter(log.observation.late)
    for (_, call_id), count in reports.items():
        if count > 1:
            yield broken(f"{count} late reports of call {call_id}")
        else:
            yield HELD
    for key, bodies in log.bodies.items():
        call = log.calls.get(key)
        if call is None or len(bodies) > 1 or not call.settled:
            continue
        n, record = call.settled[-1]
        ending, outcome = bodies[0].ending, record.outcome
        behind = ending == "value" and outcome.status == "timed_out"
        while_cancelled = ending == "error" and outcome.status in ("timed_out", "cancelled")
        if not reports[key] and (behind or (while_cancelled and not outcome.body_finished)):
            yield broken(f"nobody was told what came of the body of call {call.call_id} after its end", n)


@invariant("cancellation")
def bodies_that_ended_say_so(log: ObservedLog) -> Findings:
    """An outcome says that the body finished only if the body ended by itself."""
    for (path, call_id), bodies in log.bodies.items():
        call = log.calls.get((path, call_id))
        if call is None or not call.settled or len(bodies) > 1:
            continue
        n, record = call.settled[-1]
        finished, status = record.outcome.body_finished, record.outcome.status
        if bodies[0].ending == "value" and not finished and status == "succeeded":
            yield broken(f"call {call_id} succeeded, and its body is said not to have finished", n)
        elif bodies[0].ending == "cancelled" and finished and status == "timed_out":
            yield broken(f"the body of call {call_id} was cut by its timeout, and is said to have finished", n)
        else:
            yield HELD
    for call in log.calls.values():
        for n, record in call.settled if not call.started else ():
            if record.outcome.body_finished:
                yield broken(f"call {call.call_id} never started, and its body is said to have finished", n)
