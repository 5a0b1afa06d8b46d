"""Invariants of outcomes: outputs count in model order, and the fate of one call doesn't affect another."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from agentloop import events as ev
from agentloop import records as r
from agentloop._core.run_fold import RunFold
from agentloop.exceptions import ToolCallError
from agentloop.items import ToolOutput
from agentloop.outcomes import FROM_ABOVE
from agentloop.testing.invariants._invariant import HELD, Findings, broken, invariant
from agentloop.testing.invariants._observation import (
    ObservedBody,
    ObservedCall,
    ObservedLog,
    ObservedRun,
    ObservedTurn,
    Path,
)
from agentloop.tools import AgentCall, FunctionTool, StopAtTools

from .execution import paused
from .limits import one_at_a_time

EPSILON = 1e-6
"""Maximum difference in seconds of two measurements of one moment."""


# ---------------------------------------------------------------------------------------------- order of outputs


@invariant("execution")
def outputs_in_model_order(log: ObservedLog) -> Findings:
    """Each output is released once, after its call has settled, in the order of the calls: as an item of its run, and
    as an event. A call that waits for a verdict does not block later outputs, and neither does one that the end of a
    run segment cut: its output comes in a later segment.
    """
    for path, released in (*_list_released_items(log), *_list_released_events(log)):
        last: dict[tuple[int, int], int] = {}
        for call_id, times in Counter(released).items():
            call = log.calls.get((path, call_id))
            if call is None:
                continue  # an item of the input
            turn = call.turn
            place = turn.n, log.next_segment(path, call.released[-1] if call.released else turn.n)
            if times > 1 or not call.settled:
                yield broken(f"call {call_id} was released twice, or before it had settled", turn.n)
            elif call.index < last.get(place, -1) and not waited(log, turn):
                yield broken(f"a call after {call_id} was released before it", call.settled[-1][0])
            else:
                yield HELD
            last[place] = max(last.get(place, -1), call.index)


def _list_released_items(log: ObservedLog) -> Iterator[tuple[Path, list[str]]]:
    """Yield each run's path with the call ids of its outputs, as the library's own fold of the log releases them."""
    fold = RunFold()
    try:
        for record in log.records:
            fold.apply(record)
    except (LookupError, AssertionError, AttributeError):
        return  # no library makes such a log; other invariants name the record
    for path in log.runs:
        if (run := fold.at(path)) is not None:
            yield path, [item.call_id for item in run.new_items if isinstance(item, ToolOutput)]


def _list_released_events(log: ObservedLog) -> Iterator[tuple[Path, list[str]]]:
    found: dict[Path, list[str]] = {}
    for event in log.observation.events:
        if isinstance(event, ev.ItemCreated) and isinstance(event.item, ToolOutput):
            found.setdefault(event.path, []).append(event.item.call_id)
    yield from found.items()


def waited(log: ObservedLog, turn: ObservedTurn) -> bool:
    """Tell whether a call of *turn*, or one nested in it, waited for a verdict or an answer."""
    return any(
        call.requested
        or call.questions
        or any(one.status == "interrupted" for run in _nested(log, call) for _, one in run.ended)
        for call in turn.calls
    )


def _nested(log: ObservedLog, call: ObservedCall) -> Iterator[ObservedRun]:
    return log.under((*call.path, call.call_id))


@invariant("execution")
def accepted_after_all(log: ObservedLog) -> Findings:
    """A batch is accepted once, after each of its calls has settled and was released."""
    for turn in log.batches:
        for n in turn.accepted:
            missing = [call for call in turn.calls if not call.released or call.released[0] > n]
            if len(turn.accepted) > 1:
                yield broken(f"turn {turn.number} was accepted {len(turn.accepted)} times", *turn.accepted)
            elif missing:
                yield broken(f"turn {turn.number} was accepted without {missing[0].call_id}", n)
            else:
                yield HELD


# ---------------------------------------------------------------------------------------------- failures stay local


@invariant("execution")
def finished_bodies_keep_their_end(log: ObservedLog) -> Findings:
    """A call whose body returned is never settled as cancelled by a sibling, the tool or a caller."""
    for (path, call_id), bodies in log.bodies.items():
        call = log.calls.get((path, call_id))
        if call is None or bodies[-1].ending != "value" or not call.settled or paused(log, call):
            continue
        n, record = call.settled[-1]
        if _outlasts_timeout(log.tool(call), bodies[-1]):
            continue  # its value came after the timeout and doesn't count
        by = record.outcome.cancelled_by
        if record.outcome.status == "cancelled" and by not in FROM_ABOVE:
            if by == "sibling" and record.outcome.cleanup == "cut":
                continue  # the run's cleanup deadline cut the steps after the body
            yield broken(f"call {call_id} returned, and counts as cancelled by {by}", n)
        elif record.outcome.status in ("replayed", "skipped"):
            yield broken(f"call {call_id} returned, and counts as {record.outcome.status}", n)
        else:
            yield HELD


def _outlasts_timeout(tool: FunctionTool | None, body: ObservedBody) -> bool:
    if tool is None or tool.timeout is None or body.ended_at is None:
        return False
    return body.ended_at - body.began_at > tool.timeout


def raises(record: r.CallSettled) -> bool:
    """Tell whether *record* is a failure that the run raises: there is no output for the model."""
    outcome = record.outcome
    return outcome.output is None and (
        outcome.status in ("failed", "timed_out") or outcome.cancelled_by in ("tool", "caller")
    )


@invariant("execution")
def siblings_fall_to_failures_only(log: ObservedLog) -> Findings:
    """A call is cancelled for a sibling only if a call of its batch failed with an error that the run raises."""
    for turn in log.batches:
        fallen = [n for call in turn.calls for n, one in call.settled if one.outcome.cancelled_by == "sibling"]
        if not fallen:
            continue
        culprits = [call for call in turn.calls if any(raises(one) for _, one in call.settled)]
        accepted = [n for n in turn.accepted if n > fallen[0] and n < log.next_segment(turn.path, fallen[0])]
        if accepted:
            yield broken("a batch with calls cancelled for a sibling was accepted", fallen[0], *accepted)
        elif not culprits and log.observation.faultless:
            yield broken("cancelled for a sibling, and none has failed", *fallen)
        else:
            yield HELD


def _surely_raises(tool: FunctionTool | None) -> bool:
    """Tell whether every failure of *tool*'s body is raised: no callback can give an output instead.

    Then the failure is known before the call's slot is released.
    """
    return tool is not None and tool.failure_error_function is None and not tool.tool_output_guardrails


@invariant("execution")
def failures_that_leave_end_the_run(log: ObservedLog) -> Findings:
    """A failure without an output for the model ends the run: no waiting call of its batch starts any more."""
    for turn in log.batches:
        for call in turn.calls:
            for n, record in call.settled:
                if not raises(record):
                    continue
                until = log.next_segment(turn.path, n)
                late = [at for other in turn.calls for at, _ in other.started if n < at < until]
                if any(n < at < until for at in turn.accepted):
                    yield broken(f"call {call.call_id} failed without an answer, and its turn was accepted", n)
                elif late and one_at_a_time(log, turn) and _surely_raises(log.tool(call)):
                    yield broken(f"a call started although call {call.call_id} had ended the run", n, *late)
                else:
                    yield HELD


@invariant("execution")
def siblings_end_with_the_failure(log: ObservedLog) -> Findings:
    """When a failure ends the run, the bodies beside it end within the cleanup grace, if none refuses to."""
    if not log.observation.faultless:
        return
    for turn in log.batches:
        grace = log.config(turn.path).tool_execution.cleanup_grace
        for call in turn.calls:
            tool = log.tool(call)
            own = log.bodies.get((call.path, call.call_id), [])
            if not own or own[-1].ended_at is None or tool is None or tool.tool_output_guardrails:
                continue
            if not call.settled or not raises(call.settled[-1][1]):
                continue
            n = call.settled[-1][0]
            for other in turn.calls:
                for body in log.bodies.get((other.path, other.call_id), ()):
                    if other is call or body.began > n or body.ended is None or body.ended < n or body.ended_at is None:
                        continue
                    if body.ended_at - own[-1].ended_at > grace + 0.1:
                        yield broken(f"call {other.call_id} ran on after {call.call_id} had ended the run", n)
                    else:
                        yield HELD


@invariant("execution")
def the_first_failure_is_raised(log: ObservedLog) -> Findings:
    """Of several failures of one batch the run raises the first in model order, a cancellation only if there is no
    other failure; the others are notes on the raised error.
    """
    error = log.observation.error
    if log.root is None or not isinstance(error, ToolCallError) or error.call is None or not log.root.turns:
        return
    turn = log.root.turns[-1]
    failed = [call for call in turn.calls if call.settled and raises(call.settled[-1][1])]
    raised = next((call for call in failed if call.call_id == error.call.call_id), None)
    if raised is None or any(one.verdict == "RaiseException" for call in failed for _, one in call.guards):
        return  # the error was raised in a nested run, or by a step after a body
    cancellations = [call for call in failed if call.status == "cancelled"]
    wanted = next((call for call in failed if call not in cancellations), failed[0])
    # The error of a nested run keeps its own class, which may rank it otherwise.
    if wanted is not raised and not any((*call.path, call.call_id) in log.runs for call in failed):
        yield broken(f"call {raised.call_id} was raised, though {wanted.call_id} failed too", wanted.settled[-1][0])
    elif _count_notes(error) < len(failed) - 1 and not log.crashes:
        yield broken(
            f"{len(failed)} calls failed, and {_count_notes(error)} are notes", *(one.settled[-1][0] for one in failed)
        )
    elif len(failed) > 1:
        yield HELD


def _count_notes(error: BaseException) -> int:
    """Return how many other failures *error* has as its notes."""
    return sum(note.startswith("also failed: ") for note in getattr(error, "__notes__", ()))


@invariant("execution")
def calls_past_the_cap_are_skipped(log: ObservedLog) -> Findings:
    """At most `max_calls_per_turn` calls of one response run; the others are skipped with an output for the model."""
    for turn in log.batches:
        most = log.config(turn.path).tool_execution.max_calls_per_turn
        for call in turn.calls[most:] if most is not None else ():
            if call.started:
                yield broken(f"call {call.call_id} is past the {most} calls of its turn, and ran", call.started[0][0])
            elif call.status in ("skipped", "failed"):
                yield HELD


@invariant("execution")
def timeouts_follow_the_policy(log: ObservedLog) -> Findings:
    """A call times out if, and only if, its body outlasts its tool's timeout; the tool says whether the model receives
    the timeout or the run raises it.
    """
    for call in log.calls.values():
        tool = log.tool(call)
        if tool is None or not call.settled:
            continue
        n, record = call.settled[-1]
        outcome = record.outcome
        if outcome.status == "timed_out":
            noted = outcome.output is not None
            if tool.timeout is None and tool.idle_timeout is None:
                yield broken(f"call {call.call_id} timed out without a timeout", n)
            elif noted == (tool.timeout_behavior == "raise"):
                yield broken(f"call {call.call_id} timed out against the policy {tool.timeout_behavior}", n)
            elif tool.idle_timeout is None and _ends_early(log, call, tool):
                yield broken(f"call {call.call_id} timed out before its timeout", n)
            else:
                yield HELD
        elif tool.timeout is not None:
            for body in log.bodies.get((call.path, call.call_id), ())[-1:]:
                outlasted = body.ended_at is not None and body.ended_at - body.began_at > tool.timeout + EPSILON
                if outlasted and outcome.status == "succeeded":
                    yield broken(f"call {call.call_id} took longer than its timeout and is {outcome.status}", n)


def _ends_early(log: ObservedLog, call: ObservedCall, tool: FunctionTool) -> bool:
    """Tell whether the last body of *call* ended before its tool's timeout."""
    bodies = log.bodies.get((call.path, call.call_id), ())
    if not bodies or bodies[-1].ended_at is None or tool.timeout is None or call.questions:
        return False  # one that waits for an answer has no body
    return bodies[-1].ended_at - bodies[-1].began_at < tool.timeout - EPSILON


@invariant("execution")
def only_shown_tools_run(log: ObservedLog) -> Findings:
    """A tool that the turn didn't show never reaches a callable."""
    for call in log.calls.values():
        name = f"{call.call.namespace}.{call.call.name}" if call.call.namespace else call.call.name
        # Providers name a deferred tool's own name as its namespace.
        known = name in call.turn.tools or (call.call.namespace == call.call.name and call.call.name in call.turn.tools)
        if known and call.started:
            yield HELD
        elif not known:
            ran = [n for n, _ in call.started]
            if ran or (call.path, call.call_id) in log.bodies:
                yield broken(f"call {call.call_id} of {name}, which turn {call.turn.number} didn't show, ran", *ran)
            else:
                yield HELD


@invariant("execution")
def silence_ends_a_call_in_time(log: ObservedLog) -> Findings:
    """A body is cut when it was silent for its tool's `idle_timeout`, not before; each report restarts the time."""
    for call in log.calls.values():
        tool = log.tool(call)
        if tool is None or tool.idle_timeout is None or tool.timeout is not None or not call.settled:
            continue
        n, record = call.settled[-1]
        for body in log.bodies.get((call.path, call.call_id), ())[-1:]:
            if body.ended_at is None:
                continue
            heard = [body.began_at, *body.reports]
            longest = max(after - one for one, after in itertools.pairwise([*heard, body.ended_at]))
            silent = body.ended_at - heard[-1]
            if record.outcome.status == "timed_out" and silent < tool.idle_timeout - EPSILON:
                yield broken(f"call {call.call_id} was cut after {silent:g} s of silence", n)
            elif record.outcome.status == "succeeded" and longest > tool.idle_timeout + EPSILON:
                yield broken(f"call {call.call_id} was silent for {longest:g} s, and succeeded", n)
            else:
                yield HELD


@invariant("execution")
def calls_end_a_run_as_its_agent_says(log: ObservedLog) -> Findings:
    """If the agent's `tool_use_behavior` lets calls end a run, the first of these calls in model order that has an
    output ends it, with that output; otherwise no call does.
    """
    for run in log.runs.values():
        for place, turn in enumerate(run.turns):
            agent = log.agent_named(turn.agent)
            behavior = agent.tool_use_behavior if agent is not None else None
            if not turn.calls or not turn.accepted or behavior is None or callable(behavior):
                continue
            if agent is None or any(n > turn.n for n, _ in run.handed) or turn.conflicts:
                continue
            ended = [(n, one) for n, one in run.ended if n > turn.accepted[-1] and one.status == "completed"]
            last = place + 1 == len(run.turns)
            made = next((call for call in turn.calls if _ends_run(call, behavior)), None)
            if made is None:
                if last and ended:
                    yield broken(f"the run completed with turn {turn.number}, and no call of it ends one", ended[0][0])
                continue
            outcome = made.settled[-1][1].outcome
            stored = made.bodies_ended[-1][1].value if made.bodies_ended and outcome.status == "succeeded" else None
            value = stored if outcome.value is None else outcome.value
            wanted = (
                outcome.output
                if isinstance(outcome.output, str) and (agent.output_type is None or value is None)
                else value
            )
            if not last and _goes_on_with_input(log, turn, run.turns[place + 1]):
                continue
            if not last:
                yield broken(f"call {made.call_id} was to end the run, and another turn began", run.turns[place + 1].n)
            elif ended and not ended[0][1].secret and ended[0][1].final_output != wanted:
                yield broken(f"call {made.call_id} gave {wanted!r}, the run {ended[0][1].final_output!r}", ended[0][0])
            elif ended:
                yield HELD


def _goes_on_with_input(log: ObservedLog, turn: ObservedTurn, following: ObservedTurn) -> bool:
    """Tell whether an added input was shown where the run would have ended with *turn*."""
    between = log.records[turn.accepted[-1] : following.n]
    return any(isinstance(one, r.InputShown) and one.path == turn.path for one in between)


def _ends_run(call: ObservedCall, behavior: object) -> bool:
    if behavior == "run_llm_again" or not call.settled:
        return False
    settled = call.settled[-1][1]
    if settled.outcome.output is None or settled.background:
        return False
    return not isinstance(behavior, StopAtTools) or call.call.name in behavior.names


_GIVEN = re.compile(r"(\S+) (-?[0-9]+)")


@invariant("execution")
def outputs_are_of_their_own_call(log: ObservedLog) -> Findings:
    """The value of a call comes from its own tool and the arguments with which it started.

    Checked on fixture agents: the value of their tools holds the tool's name and the number in its arguments.
    """
    names = {tool.qualified_name for tool in log.definitions.values()}
    for call in log.started:
        tool, (_, start) = log.tool(call), call.started[-1]
        found = _GIVEN.fullmatch(str(call.settled[-1][1].outcome.value)) if call.settled else None
        if tool is None or found is None or found[1] not in names or tool.secret or isinstance(tool.body, AgentCall):
            continue
        if _read_number(start.arguments) != int(found[2]) or found[1] != tool.qualified_name:
            given = f"{tool.qualified_name} with {start.arguments}"
            yield broken(f"call {call.call_id} of {given} gave {found[0]}", call.settled[-1][0])
        else:
            yield HELD


def _read_number(arguments: str) -> object:
    try:
        read = json.loads(arguments)
    except ValueError:
        return None
    return read.get("n") if isinstance(read, dict) else None


_ANSWERS_BEFORE_ARE_OLD = (r.RunStarted, r.RunResumed, r.TurnStarted, r.ModelResponded, r.BatchEnded, r.HandedOff)
"""Kinds of records after which earlier answers of `is_enabled` in the same run no longer count."""


@invariant("execution")
def what_sources_give_is_shown(log: ObservedLog) -> Findings:
    """A turn shows what its agent's sources of tools have given for it, and no other tool that isn't its agent's own.

    An answer without content is the source's last one again. Tools that can be off, that are to be searched for, or
    have a handoff's name needn't be shown.
    """
    given: dict[tuple[Path, str], list[dict[str, Any]]] = {}
    fresh: dict[Path, list[str]] = {}
    for n, record in enumerate(log.records):
        if isinstance(record, r.CallbackReturned) and record.what == "toolset":
            place = record.key.partition(":")[2]
            if record.answer is not None:
                given[record.path, place] = record.answer
            fresh.setdefault(record.path, []).append(place)
        elif isinstance(record, r.TurnStarted) and record.path in fresh:
            described = [one for place in fresh.pop(record.path) for one in given[record.path, place]]
            names = {f"{one['namespace']}.{one['name']}" if "namespace" in one else one["name"] for one in described}
            agent = log.agent_named(record.agent)
            own = {tool.qualified_name for tool in agent.functions} if agent is not None else set(record.tools)
            free = {one["name"] for one in described if not {"is_enabled", "defer_loading", "namespace"} & one.keys()}
            missing, foreign = free - {*record.tools, *record.handoffs}, {*record.tools} - names - own
            if missing or foreign:
                yield broken(f"turn {record.turn} shows {record.tools}: it lacks {missing}, nobody gave {foreign}", n)
            else:
                yield HELD


@invariant("execution")
def what_is_off_is_neither_shown_nor_run(log: ObservedLog) -> Findings:
    """A tool whose `is_enabled` returned False isn't shown in the turn; a call of it starts only after `is_enabled` has
    returned True twice more: once after the model's answer, and once for this call.
    """
    asked = any(isinstance(one, r.CallbackReturned) and one.what == "is_enabled" for one in log.records)
    if not asked and all(isinstance(tool.is_enabled, bool) for tool in log.definitions.values()):
        return  # no dynamic `is_enabled`: nearly every run, so the loop over the records is saved
    said: dict[Path, dict[str, list[bool]]] = {}
    for n, record in enumerate(log.records):
        if isinstance(record, r.CallbackReturned) and record.what == "is_enabled":
            said.setdefault(record.path, {}).setdefault(record.key, []).append(bool(record.answer))
            continue
        answers = said.get(record.path, {})
        if isinstance(record, r.TurnStarted):
            for key, on in answers.items():
                name = key.partition(":")[2]  # the key is turn:name
                if name.startswith("deferred:"):
                    continue  # a deferred tool is shown only after it was loaded
                if any(on) != (name in record.tools or name in record.handoffs):
                    yield broken(f"{name} said {on}, and turn {record.turn} shows {record.tools}", n)
                else:
                    yield HELD
        elif isinstance(record, r.CallStarted):
            call = log.calls.get((record.path, record.call_id))
            tool = log.tool(call) if call is not None else None
            if tool is None or isinstance(tool.is_enabled, bool):
                continue
            keys = (f"{record.turn}:{tool.lookup_key}", record.call_id)
            if all(answers.get(key, [False])[-1] for key in keys):
                yield HELD
            else:
                yield broken(f"call {record.call_id} of {record.tool} started, and it hadn't said that it is on", n)
        if isinstance(record, _ANSWERS_BEFORE_ARE_OLD):
            said.pop(record.path, None)
