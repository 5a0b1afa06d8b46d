"""Invariants of what bounds a run: its limits of use, the condition that stops it, a model that turns in circles, and
how much of an output a model is shown.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator

from agentloop import records as r
from agentloop.budget import UsageLimits
from agentloop.conditions import ConditionView, as_condition
from agentloop.exceptions import ToolLoopDetected
from agentloop.items import AssistantMessage
from agentloop.outcomes import FROM_ABOVE
from agentloop.testing.evidence import Reading, RunSeen, TurnSeen
from agentloop.testing.laws import HELD, Broken, broken, law
from agentloop.testing.laws_accounting import requests_of

NOTICE = 100
"""Characters, at most, of what stands in the place of the middle of an output; it is told whole."""
Findings = Iterator[Broken | None]


@law("accounting")
def limits_of_use_hold(seen: Reading) -> Findings:
    """A run asks its model no more once a limit of use is reached, and starts no more calls than it may."""
    limits = seen.evidence.config.limits
    if limits is None or seen.root is None:
        return
    if limits.tool_calls is not None:
        started = [n for n, one in enumerate(seen.records) if isinstance(one, r.CallStarted) and one.attempt == 1]
        if len(started) > limits.tool_calls:
            yield broken(f"{len(started)} calls started, and {limits.tool_calls} may", *started)
        elif started:
            yield HELD
    for turn in seen.root.turns:
        for n, record in turn.requested:
            # Whether a request may be made is asked before its turn begins; before a retry, right before it.
            over = _spent(seen, limits, turn.n if record.attempt == 1 else n)
            if over is not None:
                yield broken(f"the model was asked although {over}", n)
            else:
                yield HELD


def _spent(seen: Reading, limits: UsageLimits, before: int) -> str | None:
    """Return in words which limit was reached before record *before*; None where none was."""
    used = [usage for n, usage in requests_of(seen) if n < before]
    if limits.requests is not None and len(used) >= limits.requests:
        return f"{len(used)} requests of {limits.requests} had been made"
    for name in ("input_tokens", "output_tokens", "total_tokens"):
        most, spent = getattr(limits, name), sum(getattr(usage, name) for usage in used if usage is not None)
        if most is not None and spent >= most:
            return f"{spent} {name} of {most} were used"
    return None


@law("execution")
def conditions_stop_in_time(seen: Reading) -> Findings:
    """A run is stopped at the end of the first turn after which its `stop_when` holds, and of no other."""
    given = seen.evidence.config.stop_when
    condition = as_condition(given) if given is not None else None
    if condition is None or condition.predicates() or seen.root is None:
        return
    stopped = [n for n, one in seen.root.ended if one.status == "stopped"]
    for place, turn in enumerate(seen.root.turns):
        following = seen.root.turns[place + 1] if place + 1 < len(seen.root.turns) else None
        if any(turn.n < n and (following is None or n < following.n) for n in stopped):
            until = next(n for n in stopped if n > turn.n)
            if condition.check(_view(seen, turn, until)) is None:
                yield broken(f"stopped after turn {turn.number}, and {condition!r} doesn't hold", until)
            else:
                yield HELD
        elif following is not None and following.number > turn.number:
            if condition.check(_view(seen, turn, following.n)) is not None:
                yield broken(f"{condition!r} holds after turn {turn.number}, and another one began", following.n)
            else:
                yield HELD


def _view(seen: Reading, turn: TurnSeen, until: int) -> ConditionView:
    """Return what is seen of the run at the end of *turn*, of the records before *until*."""
    calls = [call for call in seen.calls.values() if not call.path]
    called = {call.call.name for call in calls if any(n < until for n, _ in call.settled)}
    said = [item for n, one in turn.responded if n < until for item in one.response.items]
    texts = [item.text for item in said if isinstance(item, AssistantMessage)]
    ended = [call.settled[-1][1].outcome.output for call in turn.calls if call.settled]
    texts += [output for output in ended if isinstance(output, str)]
    used = [one.response.usage for one in seen.records[:until] if isinstance(one, r.ModelResponded)]
    tokens = sum(usage.total_tokens for usage in used if usage is not None)
    return ConditionView(turn=turn.number, calls=called, text="\n".join(texts), total_tokens=tokens)


@law("execution")
def circles_are_warned_of_then_ended(seen: Reading) -> Findings:
    """After the turn that brings a call's equal results in a row to `loop_detection` the model is warned of it once;
    the next turn that has one more of them is the run's last.
    """
    for run in seen.runs.values():
        limit = seen.config(run.path).loop_detection
        if limit is not None:
            yield from _circles(seen, run, limit)


def _circles(seen: Reading, run: RunSeen, limit: int) -> Findings:
    repeats: dict[tuple[str, str], tuple[object, int]] = {}
    for turn, following in itertools.zip_longest(run.turns, run.turns[1:]):
        until = following.n if following is not None else len(seen.records)
        warned = [
            n
            for n, one in enumerate(seen.records[turn.n : until], turn.n)
            if isinstance(one, r.HistoryReplaced) and one.reason == "loop_warning" and one.path == run.path
        ]
        here: Counter[tuple[str, str]] = Counter()
        settled = [(n, made, one) for made in turn.calls for n, one in made.settled]
        for n, call, record in sorted(settled, key=lambda one: one[0]):
            if record.outcome.cancelled_by in FROM_ABOVE or n > until:
                continue
            key = (record.tool, call.call.arguments)
            last, count = repeats.get(key, (None, 0))
            repeats[key] = (record.outcome.output, count + 1 if last == record.outcome.output else 1)
            here[key] += 1
        due = [key for key in here if repeats[key][1] >= limit]
        over = [key for key in due if repeats[key][1] - here[key] >= limit]
        if len(warned) > len(due) - len(over):
            new = len(due) - len(over)
            yield broken(f"{len(warned)} warnings of circles after turn {turn.number}, not {new}", *warned)
        elif following is not None and following.number > turn.number:
            if over:
                yield broken(f"{over[0]} came again after a warning, and another turn began", following.n)
            elif len(warned) < len(due):
                yield broken(f"turn {turn.number} goes in a circle with {due}, and nobody warns", following.n)
            elif due:
                yield HELD
        elif following is None and not run.path and isinstance(seen.evidence.error, ToolLoopDetected):
            if over:
                yield HELD
            else:
                yield broken("the run ended for a circle that nobody was warned of", turn.n)


@law("execution")
def outputs_keep_to_their_length(seen: Reading) -> Findings:
    """An output has `max_output_chars` characters at most: head and tail of a longer one, which says how long it was;
    a shorter one is whole.
    """
    if seen.evidence.config.output_store is not None:
        return
    for call in seen.calls.values():
        limit = seen.config(call.path).tool_execution.max_output_chars
        for n, record in call.settled:
            output, value = record.outcome.output, record.outcome.value
            if limit is None or not isinstance(output, str) or record.outcome.status != "succeeded":
                continue
            if len(output) > max(limit, NOTICE):
                yield broken(f"call {call.call_id} gave {len(output)} characters, past {limit}", n)
            elif isinstance(value, str) and len(value) > limit:
                told = f" of {len(value)} characters cut" in output
                kept = limit <= NOTICE or (output[0] == value[0] and output[-1] == value[-1])
                yield (
                    HELD if told and kept else broken(f"call {call.call_id} lost more of its output than its middle", n)
                )
            elif isinstance(value, str) and value.isprintable() and value != output:
                yield broken(f"call {call.call_id} gave {value!r}, and the model is shown {output!r}", n)
