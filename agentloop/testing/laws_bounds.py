"""Invariants of what bounds a run: its limits of use, and the condition that stops it."""

from __future__ import annotations

from collections.abc import Iterator

from agentloop import records as r
from agentloop.budget import UsageLimits
from agentloop.conditions import ConditionView, as_condition
from agentloop.items import AssistantMessage
from agentloop.testing.evidence import Reading, TurnSeen
from agentloop.testing.laws import HELD, Broken, broken, law
from agentloop.testing.laws_accounting import requests_of

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
