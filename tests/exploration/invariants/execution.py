"""Invariants of execution: which calls run, how often, in which turns, and which output answers which call."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator

from agentloop import records as r
from agentloop._core.plan import read_arguments
from agentloop._core.run_fold import MAX_PAUSES
from agentloop.exceptions import MaxTurnsExceeded
from agentloop.items import ToolOutput
from agentloop.outcomes import FROM_ABOVE
from agentloop.testing.invariants._invariant import HELD, Findings, broken, invariant
from agentloop.testing.invariants._observation import ObservedCall, ObservedLog, ObservedTurn, Path, plain_json
from agentloop.tools import FunctionTool


@invariant("execution")
def one_ending_per_attempt(log: ObservedLog) -> Findings:
    """Each attempt of a call that started has exactly one terminal record, and no attempt has two.

    A call that the end of a run segment cut is settled again in the next segment: its first terminal record is not
    counted. One that waited within an agent's call has none if that call was cancelled meanwhile, and neither has one
    that waits for the application's answer in a run that has paused or was ended.
    """
    over = log.root is not None and bool(log.root.ended) and log.root.ended[-1][0] > log.root.began[-1]
    for call in log.calls.values():
        if len(call.settled) > 1:
            yield from _check_settled_once(log, call)
        for n, record in call.started:
            ended = any(one.attempt == record.attempt for _, one in call.settled)
            left = ended or paused(log, call) or _waits_for_answer(log, call) or _was_left_waiting(log, call)
            if over and not left and not log.crashed_between(n, len(log.records)):
                yield broken(f"call {call.call_id} attempt {record.attempt} started and never settled", n)
            else:
                yield HELD


def _check_settled_once(log: ObservedLog, call: ObservedCall) -> Findings:
    for_good = [
        (n, record)
        for n, record in call.settled
        if record.outcome.cancelled_by not in FROM_ABOVE or log.next_segment(call.path, n) == len(log.records)
    ]
    for attempt, count in Counter(record.attempt for _, record in for_good).items():
        if count > 1:
            where = [n for n, record in for_good if record.attempt == attempt]
            yield broken(f"call {call.call_id} attempt {attempt} settled {count} times", *where)


def _waits_for_answer(log: ObservedLog, call: ObservedCall) -> bool:
    run = log.runs.get(call.path)
    return bool(call.questions) and run is not None and bool(run.ended) and run.ended[-1][1].status != "completed"


def _was_left_waiting(log: ObservedLog, call: ObservedCall) -> bool:
    """Tell whether *call* waits in a run that has paused, and a call around that run was cancelled."""
    around = [log.calls.get((call.path[:depth], one)) for depth, one in enumerate(call.path)]
    run = log.runs.get(call.path)
    cancelled = any(one is not None and one.cancels and one.outcome for one in around)
    return cancelled and run is not None and bool(run.ended) and run.ended[-1][1].status == "interrupted"


def paused(log: ObservedLog, call: ObservedCall) -> bool:
    """Tell whether the run nested in *call* was interrupted: the call resumes together with it."""
    nested = log.runs.get((*call.path, call.call_id))
    return nested is not None and bool(nested.ended) and nested.ended[-1][1].status == "interrupted"


@invariant("execution")
def every_record_has_its_place(log: ObservedLog) -> Findings:
    """Each record belongs to a run that began, to a turn of it, and to a call that the model made."""
    for n, record in log.strays:
        yield broken(f"{type(record).__name__} about something unknown", n)
    if log.records:
        yield HELD
        first = log.records[0]
        if not isinstance(first, r.RunStarted) or first.path:
            yield broken(f"the first record is {type(first).__name__}", 0)


_NEVER_RAN = ("rejected", "failed", "replayed", "skipped", "cancelled", "unknown")
"""Statuses that a call may have without a start."""


@invariant("execution")
def unstarted_calls_end_as_such(log: ObservedLog) -> Findings:
    """A call without a start ends rejected, failed, replayed, skipped, cancelled or unknown; a started call is never
    skipped or replayed. A call that the provider runs never starts, and has succeeded once it is approved.
    """
    for call in log.calls.values():
        starts, provided = call.started, call.call.kind == "approval"
        for n, record in call.settled:
            status = record.outcome.status
            if starts and starts[0][0] < n:
                wrong = provided or status in ("skipped", "replayed")
            else:
                told = provided and status == "succeeded"
                wrong = not (told or status in _NEVER_RAN) or record.outcome.started_at is not None
            if wrong:
                yield broken(f"call {call.call_id} {'started' if starts else 'never started'} and is {status}", n)
            else:
                yield HELD


@invariant("execution")
def intent_before_effect(log: ObservedLog) -> Findings:
    """A body begins only after the record of its start."""
    for body in log.observation.bodies or ():
        call = log.calls.get((body.path, body.call_id))
        if call is None or not any(n < body.began for n, _ in call.started):
            yield broken(f"the body of {body.tool} ran for call {body.call_id}, which had not started", body.began)
        else:
            yield HELD


@invariant("execution")
def calls_run_with_their_arguments(log: ObservedLog) -> Findings:
    """A call starts with the arguments that its model wrote, that a verdict gave, or that a guardrail rewrote."""
    for call in log.started:
        tool = log.tool(call)
        if tool is not None and tool.secret:
            continue  # the log may hold only a digest of secret arguments
        for n, record in call.started:
            wanted = _find_expected_arguments(call, n)
            if wanted is not None and plain_json(record.arguments) != plain_json(wanted):
                yield broken(f"call {call.call_id} started with {record.arguments}, and {wanted} was meant", n)
            else:
                yield HELD


def _find_expected_arguments(call: ObservedCall, before: int) -> str | None:
    """Return the arguments with which *call* must run at record *before*.

    None if a guardrail rewrote them and the log does not hold the result.
    """
    text = call.call.arguments
    texts = [(n, one.arguments) for n, one in call.requested if one.arguments is not None]
    texts += [(n, one.arguments) for n, one in call.verdicts if one.approved and one.arguments is not None]
    judged = [(n, one) for n, one in call.guards if one.stage == "tool_input" and one.verdict == "Rewrite"]
    rewritten = [(n, json.dumps(one.detail) if isinstance(one.detail, dict) else None) for n, one in judged]
    given = sorted(((n, one) for n, one in (*texts, *rewritten) if n < before), key=lambda pair: pair[0])
    return given[-1][1] if given else text


@invariant("execution")
def identities_stay(log: ObservedLog) -> Findings:
    """A repeated call (same id, tool, arguments) has no effect; one id for two calls is refused before any runs."""
    for turn in log.turns:
        if turn.conflicts or turn.unnamed:
            starts = [n for call in turn.calls for n, _ in call.started]
            run = log.runs[turn.path]
            accepted = [other.n for other in run.turns if other.n > turn.n]
            accepted += [n for n, record in run.ended if record.status == "completed"]
            if starts:
                yield broken("a response that uses an id for two calls (or none) had an effect", *starts)
            elif accepted:
                yield broken("a response that uses an id for two calls (or none) was accepted", turn.n, *accepted)
            else:
                yield HELD
        elif turn.repeats:
            yield HELD
    result = log.observation.result
    if result is not None:
        outputs = Counter(item.call_id for item in result.new_items if isinstance(item, ToolOutput))
        for call_id, count in outputs.items():
            if count > 1:
                yield broken(f"{count} outputs of call {call_id} stand in the result")


@invariant("execution")
def turns_count_one_by_one(log: ObservedLog) -> Findings:
    """A turn is one logical model call: turns count 1, 2, 3; retries count their attempts inside one, and what a
    provider asks for after a pause is the same turn's.
    """
    for run in log.runs.values():
        place = 0
        before: ObservedTurn | None = None
        for turn in run.turns:
            # A turn that a crash or a cancellation cut off before its answer begins again under the same number.
            again = before is not None and not before.answered and log.next_segment(run.path, before.n) < turn.n
            place += not again
            before = turn
            if turn.number != place:
                yield broken(f"turn {turn.number} is the run's {place}.", turn.n)
            yield from _check_attempts(log, turn)
            yield HELD


def _check_attempts(log: ObservedLog, turn: ObservedTurn) -> Findings:
    whole = [n for n, _ in turn.responded if n not in turn.pauses]
    if len(whole) > 1:
        yield broken(f"turn {turn.number} has {len(whole)} responses", *whole)
    expected, before = 1, 0
    for n, record in turn.requested:
        if expected > 1 and (log.next_segment(turn.path, before) <= n or log.crashed_between(before, n)):
            expected = 1  # each run segment counts its attempts from 1
        if any(before < at < n for at in turn.pauses):
            expected = 1  # so does the request for the rest of a paused answer
        if record.attempt != expected:
            yield broken(f"attempt {record.attempt} of turn {turn.number} is its {expected}.", n)
        if record.turn != turn.number:
            yield broken(f"an attempt of turn {turn.number} stands in turn {record.turn}", n)
        expected, before = record.attempt + 1, n


@invariant("execution")
def turns_fit_their_limit(log: ObservedLog) -> Findings:
    """A run has at most `max_turns` turns, and one for its final output where it says so; a resumed run continues the
    count.
    """
    for run in log.runs.values():
        for began, limit in run.limits:
            if limit is None:
                continue
            until = log.next_segment(run.path, began)
            left = [
                one.turn + 1
                for one in log.records
                if isinstance(one, r.HistoryReplaced) and one.reason == "max_turns" and one.path == run.path
            ]
            most = max([limit, *left])
            over = [turn.n for turn in run.turns if began < turn.n < until and turn.number > most]
            if over:
                yield broken(f"a turn past max_turns={limit}", *over)
            else:
                yield HELD
    error = log.observation.error
    if isinstance(error, MaxTurnsExceeded) and log.root is not None:
        last = log.root.limits[-1][1]
        if not any(run.turns and run.turns[-1].number == limit for run in log.runs.values() for _, limit in run.limits):
            yield broken(f"max_turns={last} exceeded after {len(log.root.turns)} turns")


@invariant("execution")
def paused_answers_are_continued(log: ObservedLog) -> Findings:
    """After a pause of the provider the next request is of the same turn, and the run doesn't complete before it; at
    most `MAX_PAUSES` pauses of a turn are continued.
    """
    for run in log.runs.values():
        count, number = 0, 0
        asked = [(n, turn.number) for turn in run.turns for n, _ in turn.requested]
        completed = [n for n, end in run.ended if end.status == "completed"]
        for turn in run.turns:
            count, number = (count if turn.number == number else 0), turn.number
            for n in turn.pauses:
                count += 1
                following = next((one for one in asked if one[0] > n), None)
                ended = next((at for at in completed if at > n), None)
                if following is None:
                    if ended is not None:
                        yield broken("the run completed with a paused answer", n, ended)
                elif following[1] != turn.number:
                    yield broken(f"turn {following[1]} began after a pause in turn {turn.number}", n, following[0])
                elif count > MAX_PAUSES:
                    yield broken(f"pause {count} of turn {turn.number} was continued", n, following[0])
                else:
                    yield HELD


# ---------------------------------------------------------------------------------------------- receipts


@invariant("execution")
def receipts_are_of_successes(log: ObservedLog) -> Findings:
    """A receipt answers a call only if an equal call of the same idempotent tool has succeeded, and with its output."""
    for call in log.calls.values():
        for n, record in call.settled:
            if record.outcome.status != "replayed":
                continue
            tool = log.tool(call)
            if tool is not None and not tool.idempotent:
                yield broken(
                    f"call {call.call_id} of {tool.name}, which isn't idempotent, was answered by a receipt", n
                )
                continue
            given = record.arguments if record.arguments is not None else call.call.arguments
            if not any(
                at < n
                and other.outcome.status == "succeeded"
                and other.outcome.output == record.outcome.output
                and _ran_with_equal_arguments(log, log.calls[call.path, other.call_id], given, tool)
                for at, other in _list_settled(log, call.path, record.tool)
            ):
                yield broken(f"call {call.call_id} was answered by a receipt that no success gave", n)
            else:
                yield HELD


def _list_settled(log: ObservedLog, path: Path, tool: str) -> Iterator[tuple[int, r.CallSettled]]:
    for call in log.calls.values():
        if call.path == path:
            yield from ((n, record) for n, record in call.settled if record.tool == tool)


def _ran_with_equal_arguments(log: ObservedLog, other: ObservedCall, arguments: str, tool: FunctionTool | None) -> bool:
    if tool is None or not other.started:
        return True
    config = log.config(other.path)
    texts = (other.started[-1][1].arguments, arguments)
    ran, asked = (read_arguments(tool, text, config.json_limits, config.converter).receipt for text in texts)
    return ran == asked and not _contradict(*texts)


def _contradict(one: str, other: str) -> bool:
    """Tell whether the arguments of two calls give one name different values; `1` and `1.0` are the same value.

    Independent of the library's own parser of arguments: a fault of that parser could make all calls equal.
    """
    try:
        first, second = json.loads(one), json.loads(other)
    except ValueError:
        return False
    if not isinstance(first, dict) or not isinstance(second, dict):
        return False
    return any(_format_value(first[name]) != _format_value(second[name]) for name in first.keys() & second.keys())


def _format_value(value: object) -> str:
    return str(int(value)) if isinstance(value, int | float) and value == value // 1 else str(value)


@invariant("execution")
def equal_idempotent_calls_share_a_run(log: ObservedLog) -> Findings:
    """Of equal calls of an idempotent tool, none starts after one has succeeded, and no two run side by side."""
    tools: dict[tuple[Path, str], list[ObservedCall]] = {}
    for call in log.calls.values():
        if call.started and (tool := log.tool(call)) is not None and tool.idempotent:
            tools.setdefault((call.path, tool.lookup_key), []).append(call)
    for (_, key), of_one in tools.items():
        yield HELD
        for first, second in _equal_pairs(of_one):
            start = second.started[0][0]
            ended = [one for at, one in first.settled if at < start]
            if not ended:
                yield broken(f"equal calls of {key} ran side by side", first.started[0][0], start)
            elif ended[-1].outcome.status == "succeeded":
                yield broken(f"call {second.call_id} of {key} started although an equal one had succeeded", start)


def _equal_pairs(calls: list[ObservedCall]) -> Iterator[tuple[ObservedCall, ObservedCall]]:
    """Yield the pairs of calls of one tool with equal arguments: each call with the next equal one that started."""
    if len(calls) < 2:
        return
    groups: dict[str, list[ObservedCall]] = {}
    for call in sorted(calls, key=lambda call: call.started[0][0]):
        groups.setdefault(plain_json(call.started[-1][1].arguments), []).append(call)
    for equal in groups.values():
        yield from itertools.pairwise(equal)
