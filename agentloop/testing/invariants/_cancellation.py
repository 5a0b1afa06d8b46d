"""Invariants of cancellation and winding up: nothing outlives a run, and who ended what is told truly."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator

from agentloop import records as r
from agentloop.config import RunConfig
from agentloop.exceptions import RunTimeout
from agentloop.items import ToolOutput
from agentloop.testing.invariants._invariant import HELD, Broken, broken, law
from agentloop.testing.invariants._observation import Reading
from agentloop.testing.invariants._outcomes import raises
from agentloop.testing.simulation._simulated_parts import EPOCH
from agentloop.tools import AgentCall

Findings = Iterator[Broken | None]
SLACK = 1e-3
"""Seconds beyond the cleanup grace that an end may take on a clock that stands still while tasks run."""


@law("cancellation")
def nothing_outlives_the_run(seen: Reading) -> Findings:
    """When a run is over, every body, task, stream, token and nested run of it has ended."""
    for what in seen.evidence.left or ():
        yield broken(f"left behind: {what}")
    for body in seen.evidence.bodies or ():
        if body.ended is None:
            yield broken(f"the body of call {body.call_id} is still running", body.began)
        elif body.ended > len(seen.records):
            yield broken(f"the body of call {body.call_id} ended after the run", body.began)
        else:
            yield HELD


@law("cancellation")
def every_entry_ends_once(seen: Reading) -> Findings:
    """Each entry of a run has one end, it is the entry's last record, and a nested run ends before its call."""
    for run in seen.runs.values():
        bounds = [*run.began, len(seen.records)]
        for began, until in itertools.pairwise(bounds):
            ends = [n for n, _ in run.ended if began < n < until]
            if len(ends) > 1:
                yield broken(f"an entry of run {_name(run.path)} ended {len(ends)} times", *ends)
            elif not ends and seen.crashed_between(began, until):
                yield HELD
            elif not ends and (until < len(seen.records) or _known_over(seen)):
                yield broken(f"an entry of run {_name(run.path)} never ended", began)
            elif ends:
                late = [n for n in range(ends[0] + 1, until) if seen.records[n].path[: len(run.path)] == run.path]
                late = [n for n in late if not isinstance(seen.records[n], r.VerdictGiven | r.InputAdded)]
                if late:
                    yield broken(f"records of run {_name(run.path)} stand after its end", ends[0], *late)
                else:
                    yield HELD


def _name(path: tuple[str, ...]) -> str:
    return "/".join(path) or "(the root)"


def _known_over(seen: Reading) -> bool:
    return seen.evidence.result is not None or seen.evidence.error is not None or seen.evidence.cancellation is not None


@law("cancellation")
def an_end_from_above_is_not_told(seen: Reading) -> Findings:
    """A call that the run's end cancelled has no output, and no model is shown one in that entry."""
    for call, n, record in seen.from_above:
        until = seen.next_entry(call.path, n)
        if record.outcome.output is not None:
            yield broken(f"call {call.call_id} was ended from above and has an output for the model", n)
        elif any(n < at < until for at in call.turn.accepted):
            yield broken(f"call {call.call_id} was ended from above, and its turn was accepted", n)
        else:
            yield HELD
        if len(call.settled) == 1:
            for path, items in seen.evidence.shown or ():
                if path == call.path and any(
                    isinstance(item, ToolOutput) and item.call_id == call.call_id for item in items
                ):
                    yield broken(f"the model was shown an output of call {call.call_id}, which has none", n)


@law("cancellation")
def nothing_begins_while_ending(seen: Reading) -> Findings:
    """Once a run's end has reached one of its calls, none of its turns, model calls or queued calls begin."""
    for call, n, _ in seen.from_above:
        until = seen.next_entry(call.path, n)
        begun = [
            at
            for at in range(n + 1, until)
            if isinstance(record := seen.records[at], r.TurnStarted | r.ModelRequested | r.CallStarted)
            and record.path == call.path
        ]
        if begun:
            yield broken(f"begun although call {call.call_id} had been ended from above", n, *begun)
        else:
            yield HELD


@law("cancellation")
def nothing_is_accepted_after_a_cancellation(seen: Reading) -> Findings:
    """After the caller's cancellation no turn is accepted or begun, and no model is asked."""
    given = seen.evidence.cancellation
    if given is None or not given.came_out:
        return
    yield HELD
    kinds = (r.BatchEnded, r.TurnStarted, r.ModelRequested)
    late = [n for n in range(given.mark, len(seen.records)) if isinstance(seen.records[n], kinds)]
    if late:
        yield broken(f"{type(seen.records[late[0]]).__name__} after the cancellation", *late)


@law("cancellation")
def a_cancelled_run_says_so(seen: Reading) -> Findings:
    """A run ends as cancelled if, and only if, its caller ended it, or had decided its end when that came."""
    if seen.root is None or not seen.root.ended:
        return
    n, end = seen.root.ended[-1]
    given = seen.evidence.cancellation
    result = seen.evidence.result
    if end.status == "cancelled":
        asked = given is not None or getattr(result, "status", None) == "cancelled"
        if asked:
            yield HELD
        else:
            yield broken("the run ended as cancelled, and nobody had asked for it", n)
    elif given is not None and given.came_out:
        decided = {type(one) for one in seen.records[given.mark :]} <= {r.RunEnded, r.CleanupCut, r.SessionSaved}
        if decided:
            yield HELD
        else:
            yield broken(f"the caller cancelled the run, which ended as {end.status}", n)


@law("cancellation")
def a_run_may_end_with_its_turn(seen: Reading) -> Findings:
    """A run whose reader leaves, or wants it to end after its turn, begins no other one in that entry; and completes
    the one that is under way if he stays.
    """
    mark = seen.evidence.to_end_after
    if mark is None or seen.root is None:
        return
    until = seen.next_entry((), mark)
    late = [turn.n for turn in seen.root.turns if mark <= turn.n < until]
    begun = [turn for turn in seen.root.turns if turn.n < mark]
    if late and begun:
        yield broken("a turn began after the run was to end with the one before", *late)
    ends = [one for n, one in seen.root.ended if mark <= n < until]
    stays = seen.evidence.cancellation is None and not seen.evidence.reader_left
    if ends and ends[-1].status == "cancelled" and begun and stays:
        open_calls = [call for call in begun[-1].calls if not call.settled]
        cut = [n for call, n, _ in seen.from_above if not call.path and call.turn is begun[-1]]
        if not begun[-1].responded or open_calls or cut:
            yield broken("the turn with which the run was to end was cut", begun[-1].n, *cut)
        else:
            yield HELD


@law("cancellation")
def an_end_from_above_has_a_cause(seen: Reading) -> Findings:
    """A call is cancelled by parent or deadline only where a run around it has ended early."""
    for call, n, _ in seen.from_above:
        until = seen.next_entry(call.path, n)
        run = seen.runs.get(call.path)
        ends = [one.status for at, one in run.ended if n < at <= until] if run is not None else []
        if ends and ends[0] == "completed":
            yield broken(f"call {call.call_id} was ended from above, and its run completed", n)
        elif ends:
            yield HELD


@law("cancellation")
def who_ended_it_is_told(seen: Reading) -> Findings:
    """What a run's time has ended is said to be ended by the deadline; what its caller has, by the parent."""
    given, error = seen.evidence.cancellation, seen.evidence.error
    if given is None and isinstance(error, RunTimeout):
        wanted = "deadline"
    elif given is not None and seen.evidence.config.timeout is None and seen.evidence.faultless:
        wanted = "parent"
    else:
        return
    for call, n, record in seen.from_above:
        if call.path and (wanted == "deadline" or seen.config(call.path).timeout is not None):
            continue  # a tool's timeout, or the nested run's own, may have ended the run that it is in
        by = record.outcome.cancelled_by
        if by != wanted:
            yield broken(f"call {call.call_id} is said to be ended by the {by}, and it was by the {wanted}", n)
        else:
            yield HELD


@law("cancellation")
def the_end_comes_within_grace(seen: Reading) -> Findings:
    """A cancelled run returns within its cleanup grace, where no body shields itself or refuses to end; what its
    journal only begins to write then has the grace once more.
    """
    given, ended = seen.evidence.cancellation, seen.evidence.ended_at
    if given is None or not given.came_out or given.at is None or ended is None or not seen.evidence.faultless:
        return
    grace = seen.evidence.config.tool_execution.cleanup_grace
    if ended - given.at > grace * (1 if seen.evidence.durable is None else 2) + SLACK:
        yield broken(f"the run took {ended - given.at:g} s to end; its grace is {grace:g} s", given.mark)
    else:
        yield HELD


@law("cancellation")
def runs_keep_to_their_time(seen: Reading) -> Findings:
    """An entry of a run with a time limit, a nested one with its own too, ends within it and its cleanup grace, where
    no body refuses to end; and is ended by it not before.
    """
    if not seen.evidence.faultless or seen.evidence.crashes:
        return
    for run in seen.runs.values():
        config = _own_config(seen, run.path)
        if config is None or config.timeout is None:
            continue
        grace = config.tool_execution.cleanup_grace * (1 if seen.evidence.durable is None else 2)
        for began in run.began:
            end = next(((n, one) for n, one in run.ended if n > began), None)
            if end is None:
                continue
            n, record = end
            took = record.at - seen.records[began].at
            if took > config.timeout + grace + SLACK:
                yield broken(f"run {_name(run.path)} took {took:g} s, and has {config.timeout:g} s", began, n)
            elif "RunTimeout(" in (record.error or "")[:11] and took < config.timeout - SLACK:
                yield broken(f"run {_name(run.path)} ended after {took:g} of {config.timeout:g} s", began, n)
            else:
                yield HELD


def _own_config(seen: Reading, path: tuple[str, ...]) -> RunConfig | None:
    """Return the configuration of the run at *path* if it has one of its own."""
    if not path:
        return seen.evidence.config
    call = seen.calls.get((path[:-1], path[-1]))
    tool = seen.tool(call) if call is not None else None
    own = tool is not None and isinstance(tool.body, AgentCall) and tool.body.run_config is not None
    return seen.config(path) if own else None


@law("cancellation")
def cleanup_is_awaited(seen: Reading) -> Findings:
    """Cleanup that has begun comes to its end before its run's, or is cut at the deadline, which the log then says.

    What begins behind the deadline is cut at its first wait: the log may say so just before it has begun.
    """
    cuts = Counter((one.path, one.section) for one in seen.evidence.records if isinstance(one, r.CleanupCut))
    for one in seen.evidence.cleanups or ():
        run = seen.runs.get(one.path)
        end = next((n for n, _ in run.ended if n >= one.began), None) if run is not None else None
        if one.ended is None:
            cuts[one.path, one.section] -= 1
            if cuts[one.path, one.section] < 0:
                yield broken(f"{one.section} of call {one.call_id} was left in the middle", one.began)
        elif end is not None and one.ended > end:
            yield broken(f"{one.section} of call {one.call_id} came to its end after its run", end)
        else:
            yield HELD


@law("cancellation")
def what_outlives_its_run_is_reported(seen: Reading) -> Findings:
    """A body that goes on past the cleanup deadline of its ended run is reported, once a second; no other body is."""
    if seen.evidence.still_running is None:
        return
    reports, ended = Counter(seen.evidence.still_running), _ended_at(seen)
    for key, bodies in seen.bodies.items():
        count, last = reports.pop(key, 0), bodies[-1]
        if ended is None or key[0] or last.ended_at is None or last.began_at > ended:
            continue
        over = last.ended_at - ended - seen.evidence.config.tool_execution.cleanup_grace
        # One at the deadline, one each second after it; of what is due in the moment of the end, either may be.
        least, most = (math.ceil(max(over - one, 0.0)) for one in (SLACK, -SLACK))
        if not least <= count <= most:
            yield broken(f"{count} reports on call {last.call_id}, {over:g} s past the deadline", last.began)
        elif count:
            yield HELD
    for path, call_id in reports:
        yield broken(f"call {call_id} of {_name(path)} was reported as running, and its body never was")


def _ended_at(seen: Reading) -> float | None:
    """Return when the run was ended by its caller or its time, on the clock of bodies; None where neither was."""
    given, timeout = seen.evidence.cancellation, seen.evidence.config.timeout
    settled = (one for call in seen.calls.values() for _, one in call.settled)
    if any(raises(one) or one.outcome.cancelled_by == "sibling" for one in settled):
        return None  # a failure may have begun the cleanup before
    if given is not None:
        return given.at if given.came_out and timeout is None else None
    if timeout is None or not isinstance(seen.evidence.error, RunTimeout) or seen.root is None:
        return None
    return seen.records[seen.root.began[-1]].at - EPOCH + timeout


@law("cancellation")
def resources_are_left_in_reverse(seen: Reading) -> Findings:
    """The resources of an entry of a run are left one after the other, the one that was entered last first."""
    left: dict[tuple[tuple[str, ...], int], list[int]] = {}
    for one in seen.evidence.cleanups or ():
        if one.entered is not None:
            left.setdefault((one.path, seen.next_entry(one.path, one.began)), []).append(one.entered)
    for (path, _), order in left.items():
        if order != sorted(order, reverse=True):
            yield broken(f"run {_name(path)} left its resources in the order {order} of their entering")
        else:
            yield HELD


@law("cancellation")
def cancellations_pending_are_left_as_found(seen: Reading) -> Findings:
    """The caller's task has the native cancellations it was given, no more and no fewer; those that a body asks for of
    its own task are taken back before its call settles.
    """
    for path, call_id, pending in seen.evidence.pending:
        yield broken(f"{pending} native cancellations were counted when call {call_id} of {_name(path)} settled")
    count = seen.evidence.cancelling
    if count is None:
        return
    if count:
        yield broken(f"{count} native cancellations too many are pending in the caller's task")
    else:
        yield HELD


@law("cancellation")
def late_reports_come_once(seen: Reading) -> Findings:
    """What comes of a body after its outcome was decided is reported, once: a value behind its time, an error that came
    up while the body was being cancelled.
    """
    if seen.evidence.late is None:
        return
    reports = Counter(seen.evidence.late)
    for (_, call_id), count in reports.items():
        if count > 1:
            yield broken(f"{count} late reports of call {call_id}")
        else:
            yield HELD
    for key, bodies in seen.bodies.items():
        call = seen.calls.get(key)
        if call is None or len(bodies) > 1 or not call.settled:
            continue
        n, record = call.settled[-1]
        ending, outcome = bodies[0].ending, record.outcome
        behind = ending == "value" and outcome.status == "timed_out"
        while_cancelled = ending == "error" and outcome.status in ("timed_out", "cancelled")
        if not reports[key] and (behind or (while_cancelled and not outcome.body_finished)):
            yield broken(f"nobody was told what came of the body of call {call.call_id} after its end", n)


@law("cancellation")
def bodies_that_ended_say_so(seen: Reading) -> Findings:
    """A call is said to have a finished body only if its body came to an end of its own."""
    for (path, call_id), bodies in seen.bodies.items():
        call = seen.calls.get((path, call_id))
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
    for call in seen.calls.values():
        for n, record in call.settled if not call.started else ():
            if record.outcome.body_finished:
                yield broken(f"call {call.call_id} never started, and its body is said to have finished", n)
