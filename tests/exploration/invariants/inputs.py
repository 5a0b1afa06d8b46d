"""Invariants of input that is added to a run under way, and of answers to calls that wait for the application."""

from __future__ import annotations

from agentloop import records as r
from agentloop.testing.invariants._invariant import HELD, Findings, broken, invariant
from agentloop.testing.invariants._observation import ObservedLog

from .execution import paused


@invariant("accounting")
def acknowledged_inputs_are_in_the_log(log: ObservedLog) -> Findings:
    """Each input that the run said it took is in its log, once, and they are there in the order of what was said."""
    said = log.observation.acknowledged
    if not said:
        return
    held = [one.id for one in log.records if isinstance(one, r.InputAdded) and not one.path]
    if held != list(dict.fromkeys(said)):
        yield broken(f"the run took {list(said)}, its log has {held}")
    else:
        yield HELD


@invariant("accounting")
def added_inputs_are_shown_once(log: ObservedLog) -> Findings:
    """An added input is shown once, or taken back, or rejected, or waits: it waits only in a run that did not complete.

    Nothing happens to it before it was added, or after one of these.
    """
    fates: dict[tuple[tuple[str, ...], str], list[int]] = {}
    for n, record in enumerate(log.records):
        if isinstance(record, r.InputAdded):
            fates[record.path, record.id] = []
        elif isinstance(record, r.InputShown | r.InputWithdrawn):
            fates.setdefault((record.path, record.id), [-1]).append(n)
        elif isinstance(record, r.GuardrailSettled) and record.input_id and record.verdict == "ask_again":
            fates.setdefault((record.path, record.input_id), [-1]).append(n)
    for (path, name), seen in fates.items():
        run = log.runs.get(path)
        completed = run is not None and bool(run.ended) and run.ended[-1][1].status == "completed"
        if len(seen) > 1:
            yield broken(f"input {name} was shown, taken back or rejected {len(seen)} times, or never added", *seen[1:])
        elif not seen and completed:
            yield broken(f"the run completed, and input {name} was never shown")
        else:
            yield HELD


@invariant("accounting")
def inputs_come_where_all_calls_have_outputs(log: ObservedLog) -> Findings:
    """Where an input is shown, no call of its run lacks its output: a model never sees one between the two."""
    for n, record in enumerate(log.records):
        if isinstance(record, r.InputShown):
            turns = [turn for turn in log.turns if turn.path == record.path and turn.n < n and turn.calls]
            # A later answer to the same turn, or a request, would be between it and the input.
            if turns and not any(at < n for at in turns[-1].accepted) and turns[-1].responded[-1][0] < n:
                yield broken(f"input {record.id} is shown while turn {turns[-1].number} is open", n)
            else:
                yield HELD


@invariant("execution")
def answers_are_the_outputs_of_their_calls(log: ObservedLog) -> Findings:
    """A call that the application answers is asked for first, answered at most once, and ends after its answer."""
    for call in log.calls.values():
        if call.answers:
            first = call.answers[0][0]
            asked = [n for n, _ in call.questions]
            ended = [n for n, one in call.settled if one.outcome.status in ("success", "failed")]
            if len(call.answers) > 1 or not asked or asked[0] > first:
                yield broken(f"call {call.call_id} has {len(call.answers)} answers, or nobody asked", first)
            elif ended and ended[-1] < first and not paused(log, call):
                yield broken(f"call {call.call_id} ended before its answer", ended[-1], first)
            else:
                yield HELD
