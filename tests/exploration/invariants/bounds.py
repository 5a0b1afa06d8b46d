"""Invariants of the bounds of a run: its limits of use, its stop condition, the detection of a model that repeats
itself, the corrections of an answer that doesn't fit, and the length of the outputs that a model is shown.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from agentloop import records as r
from agentloop._schema.json_text import canonical_arguments
from agentloop.agents import Agent
from agentloop.config.budget import UsageLimits
from agentloop.config.conditions import ConditionView, as_condition
from agentloop.exceptions import ModelBehaviorError, ToolLoopDetected, UsageLimitExceeded
from agentloop.items import AssistantMessage, UserMessage
from agentloop.outcomes import FROM_ABOVE
from agentloop.testing.invariants._invariant import HELD, Findings, broken, invariant
from agentloop.testing.invariants._observation import ObservedCall, ObservedLog, ObservedRun, ObservedTurn, Path
from agentloop.tools import AgentCall

from .accounting import requests_of
from .limits import one_at_a_time

NOTICE = 100
"""Maximum length in characters of the notice that replaces the middle of an output; the notice itself is never cut."""


@invariant("accounting")
def limits_of_use_hold(log: ObservedLog) -> Findings:
    """Once a limit of use is reached, its own or that of a run around it, a run makes no further model request. It
    starts no more calls than these limits allow. A run that ends for a limit has reached one.
    """
    ledgers = {path: limits for path in log.runs if (limits := _own_limits(log, path)) is not None}
    for path, limits in ledgers.items():
        yield from _check_calls(log, path, limits)
    yield from _check_refusals(log, ledgers)
    for path, limits in ledgers.items():
        for run in log.under(path):
            if not _begins_turns_without_await(log, run):
                continue
            for turn in run.turns:
                for n, record in turn.requested:
                    # The library checks the limits before a turn begins, and right before each retry.
                    over = _describe_reached_limit(log, path, limits, turn.n if record.attempt == 1 else n)
                    if over is not None:
                        yield broken(f"the model was asked although {over}", n)
                    else:
                        yield HELD
    if isinstance(log.observation.error, UsageLimitExceeded):
        spent = (_describe_reached_limit(log, path, limits, len(log.records)) for path, limits in ledgers.items())
        if not any(spent):
            yield broken("the run ended for a limit of use, and none was reached")


def _own_limits(log: ObservedLog, path: Path) -> UsageLimits | None:
    """Return the run's own limits, which bind its part of the tree; None if the run at *path* has none of its own."""
    found: UsageLimits | None = log.observation.config.limits
    if not path:
        return found
    call = log.calls.get((path[:-1], path[-1]))
    tool = log.tool(call) if call is not None else None
    if tool is None or not isinstance(tool.body, AgentCall) or tool.body.run_config is None:
        return None
    found = tool.body.run_config.limits
    return found


def _begins_turns_without_await(log: ObservedLog, run: ObservedRun) -> bool:
    """Tell whether the run awaits nothing between the check of the limits and the beginning of a turn.

    An `is_enabled` function is awaited there; other runs of the tree may then use up a limit.
    """
    agents = [log.agent_named(turn.agent) for turn in run.turns]
    return all(agent is None or all(isinstance(one.is_enabled, bool) for one in agent.functions) for agent in agents)


def _check_calls(log: ObservedLog, path: Path, limits: UsageLimits) -> Findings:
    started = [
        (n, one)
        for n, one in enumerate(log.records)
        if isinstance(one, r.CallStarted) and one.attempt == 1 and one.path[: len(path)] == path
    ]
    if limits.tool_calls is not None and len(started) > limits.tool_calls:
        yield broken(f"{len(started)} calls started, and {limits.tool_calls} may", *(n for n, _ in started))
    cost = sum((Decimal(one.cost) for _, one in started if one.cost is not None), Decimal(0))
    if limits.cost is not None and cost > limits.cost:
        yield broken(f"calls that cost {cost} started, and {limits.cost} may be spent", *(n for n, _ in started))
    elif started and (limits.tool_calls is not None or limits.cost is not None):
        yield HELD
    for n, one in started:
        tool = log.tool(log.calls[one.path, one.call_id])
        price = tool.cost({}) if tool is not None and tool.cost is not None and log.observation.faultless else None
        if price is not None and price != Decimal(one.cost or 0):
            yield broken(f"call {one.call_id} costs {price}, and its start says {one.cost}", n)


def _check_refusals(log: ObservedLog, ledgers: Mapping[Path, UsageLimits]) -> Findings:
    """Check each call that was skipped because a budget was spent: a budget that binds it must have no room."""
    for call in log.calls.values() if ledgers else ():
        for n, record in call.settled:
            if not _is_refused(record):
                continue
            around = ((path, limits) for path, limits in ledgers.items() if call.path[: len(path)] == path)
            if any(_has_no_room(log, path, limits, call, n) for path, limits in around):
                yield HELD
            else:
                yield broken(f"call {call.call_id} was refused, and no limit of use was reached", n)


def _has_no_room(log: ObservedLog, path: Path, limits: UsageLimits, refused: ObservedCall, n: int) -> bool:
    """Tell whether calls that had started before record *n*, or held room to start, leave none for *refused*."""
    others = [
        one
        for one in log.calls.values()
        if one.path[: len(path)] == path and one is not refused and one.turn.n < n and _holds_room(log, one, refused, n)
    ]
    if limits.tool_calls is not None and len(others) >= limits.tool_calls:
        return True
    if limits.cost is None:
        return False
    asked = (getattr(one, "cost", None) for one in log.records[:n] if isinstance(one, r.ModelResponded))
    spent = sum((Decimal(one) for one in asked if one is not None), Decimal(0))
    return spent + sum((_cost(log, one) for one in (*others, refused)), Decimal(0)) > limits.cost


def _is_refused(record: r.CallSettled) -> bool:
    return record.outcome.status == "skipped" and "budget is spent" in str(record.outcome.output)


def _holds_room(log: ObservedLog, call: ObservedCall, refused: ObservedCall, n: int) -> bool:
    """Tell whether *call* has started, or may have held room to start when *refused* was checked."""
    if any(at < n for at, _ in call.started):
        return True
    if one_at_a_time(log, call.turn):
        return False  # a call of such a turn holds room only while it has the slot
    behind = call.turn is refused.turn and call.index > refused.index
    return not behind and not any(at < refused.turn.n or _is_refused(one) for at, one in call.settled)


def _cost(log: ObservedLog, call: ObservedCall) -> Decimal:
    tool = log.tool(call)
    price: Any = tool.cost({}) if tool is not None and tool.cost is not None else 0
    return Decimal(price)


def _describe_reached_limit(log: ObservedLog, path: Path, limits: UsageLimits, before: int) -> str | None:
    """Return a phrase that names a limit of the run at *path* reached before record *before*; None if none was."""
    here = [n for n, one in enumerate(log.records[:before]) if one.path[: len(path)] == path]
    within = set(here)
    used = [usage for n, usage in requests_of(log) if n in within]
    if limits.requests is not None and len(used) >= limits.requests:
        return f"{len(used)} requests of {limits.requests} had been made"
    for name in ("input_tokens", "output_tokens", "total_tokens"):
        most, spent = getattr(limits, name), sum(getattr(usage, name) for usage in used if usage is not None)
        if most is not None and spent >= most:
            return f"{spent} {name} of {most} were used"
    costs = (getattr(log.records[n], "cost", None) for n in here)
    cost = sum((Decimal(one) for one in costs if one is not None), Decimal(0))
    if limits.cost is not None and cost >= limits.cost:
        return f"{cost} of {limits.cost} was spent"
    return None


@invariant("execution")
def conditions_stop_in_time(log: ObservedLog) -> Findings:
    """A run stops at the end of the first turn after which its `stop_when` holds, and at no other; the condition of a
    run does not stop the runs nested in it.
    """
    for run in log.runs.values():
        for n, end in run.ended if run.path else ():
            if end.status == "stopped" and not _has_own_condition(log, run.path):
                yield broken(f"run {'/'.join(run.path)} was stopped, and has no condition of its own", n)
    given = log.observation.config.stop_when
    condition = as_condition(given) if given is not None else None
    if condition is None or condition.predicates() or log.root is None:
        return
    stopped = [n for n, one in log.root.ended if one.status == "stopped"]
    for place, turn in enumerate(log.root.turns):
        following = log.root.turns[place + 1] if place + 1 < len(log.root.turns) else None
        if any(turn.n < n and (following is None or n < following.n) for n in stopped):
            until = next(n for n in stopped if n > turn.n)
            if condition.check(_build_view(log, turn, until)) is None:
                yield broken(f"stopped after turn {turn.number}, and {condition!r} doesn't hold", until)
            else:
                yield HELD
        elif following is not None and following.number > turn.number:
            if condition.check(_build_view(log, turn, following.n)) is not None:
                yield broken(f"{condition!r} holds after turn {turn.number}, and another one began", following.n)
            else:
                yield HELD


def _has_own_condition(log: ObservedLog, path: Path) -> bool:
    call = log.calls.get((path[:-1], path[-1]))
    tool = log.tool(call) if call is not None else None
    own = tool.body.run_config if tool is not None and isinstance(tool.body, AgentCall) else None
    return own is not None and own.stop_when is not None


def _build_view(log: ObservedLog, turn: ObservedTurn, until: int) -> ConditionView:
    """Return the root run at the end of *turn* as a condition sees it, from the records before *until*."""
    calls = [call for call in log.calls.values() if not call.path]
    called = {call.call.name for call in calls if any(n < until for n, _ in call.settled)}
    said = [item for n, one in turn.responded if n < until for item in one.response.items]
    texts = [item.text for item in said if isinstance(item, AssistantMessage)]
    ended = [call.settled[-1][1].outcome.output for call in turn.calls if call.settled]
    texts += [output for output in ended if isinstance(output, str)]
    used = [one.response.usage for one in log.records[:until] if isinstance(one, r.ModelResponded)]
    tokens = sum(usage.total_tokens for usage in used if usage is not None)
    return ConditionView(turn=turn.number, calls=called, text="\n".join(texts), total_tokens=tokens)


@invariant("execution")
def circles_are_warned_of_then_ended(log: ObservedLog) -> Findings:
    """After the turn in which the equal results in a row of a call reach `loop_detection`, the model is warned once;
    the next turn with one more equal result is the run's last.
    """
    for run in log.runs.values():
        limit = log.config(run.path).loop_detection
        if limit is not None:
            yield from _check_circles(log, run, limit)


def _check_circles(log: ObservedLog, run: ObservedRun, limit: int) -> Findings:
    repeats: dict[tuple[str, str], tuple[object, int]] = {}
    for turn, following in itertools.zip_longest(run.turns, run.turns[1:]):
        until = following.n if following is not None else len(log.records)
        warned = [
            n
            for n, one in enumerate(log.records[turn.n : until], turn.n)
            if isinstance(one, r.HistoryReplaced) and one.reason == "loop_warning" and one.path == run.path
        ]
        here: Counter[tuple[str, str]] = Counter()
        limits = log.config(run.path).json_limits
        for n, call, record in [(n, made, one) for made in turn.calls for n, one in made.settled]:
            if record.outcome.cancelled_by in FROM_ABOVE or n > until:
                continue
            key = (record.tool, canonical_arguments(call.call.arguments, limits))
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
        elif following is None and not run.path and isinstance(log.observation.error, ToolLoopDetected):
            if over:
                yield HELD
            else:
                yield broken("the run ended for a circle that nobody was warned of", turn.n)


@invariant("execution")
def invalid_outputs_are_corrected_as_often_as_agreed(log: ObservedLog) -> Findings:
    """After an answer that doesn't fit its agent's output type the model is asked to correct it, `output_retries` times
    in a row of one agent; never after another answer, unless a guardrail asks for it; and no run completes or continues
    without it.
    """
    for run in log.runs.values():
        yield from _check_corrections(log, run)


def _check_corrections(log: ObservedLog, run: ObservedRun) -> Findings:
    count = 0
    for turn, following in itertools.zip_longest(run.turns, run.turns[1:]):
        until = following.n if following is not None else len(log.records)
        corrections = [
            (n, one)
            for n, one in enumerate(log.records[turn.n : until], turn.n)
            if isinstance(one, r.HistoryReplaced) and one.reason == "invalid_final_output" and one.path == run.path
        ]
        asked = [n for n, _ in corrections]
        agent = log.agent_named(turn.agent)
        invalid = agent is not None and _is_invalid_output(log, agent, turn)
        refused = any(one.verdict == "ask_again" and turn.n < n < until for n, one in run.guards)
        due = agent is not None and (invalid or refused) and count < agent.output_retries
        count += len(asked)
        if len(asked) > due:
            yield broken(f"the answer of turn {turn.number} was not to be corrected, and it was asked for", *asked)
        elif any(not isinstance(item, UserMessage) for _, one in corrections for item in one.items or (None,)):
            yield broken(f"the faults of the answer of turn {turn.number} are listed in no message", *asked)
        elif asked:
            yield HELD
        elif due and following is not None and following.number > turn.number:
            yield broken(f"the answer of turn {turn.number} doesn't fit, and the model wasn't told", following.n)
        elif invalid and not due and following is not None:
            yield broken(f"the run went on after its last invalid output, in turn {turn.number}", following.n)
        elif due and (ends := [n for n, one in run.ended if n > turn.n and _is_decided(one)]):
            yield broken(
                f"the run ended with the invalid output of turn {turn.number}, which was to be corrected", *ends
            )
        if any(turn.n < n < until for n, _ in run.handed):
            count = 0


def _is_decided(end: r.RunEnded) -> bool:
    """Tell whether a run ended by its output: with it, or because it doesn't fit."""
    return end.status == "completed" or (end.error or "").startswith("ModelBehaviorError(")


def _is_invalid_output(log: ObservedLog, agent: Agent[Any, Any], turn: ObservedTurn) -> bool:
    """Tell whether the answer of *turn* is a candidate for the final output of *agent*, whole, and doesn't fit."""
    output = agent._typed_output()
    if output is None or not turn.answered or turn.calls or turn.conflicts or turn.unnamed:
        return False
    response = turn.responded[-1][1].response
    said = [item for item in response.items if isinstance(item, AssistantMessage)]
    if (
        not said
        or any(map(turn.is_new_call, response.items))
        or response.cut
        or any(one.refusal is not None for one in said)
        or not said[-1].text.strip()
    ):
        return False
    config = log.config(turn.path)
    try:
        output.using(config.converter).parse(said[-1].text, config.json_limits)
    except ModelBehaviorError:
        return True
    return False


@invariant("execution")
def outputs_keep_to_their_length(log: ObservedLog) -> Findings:
    """The model receives at most `max_output_chars` characters of an output: of a longer output its head, its tail and,
    if there is room, its length; a shorter output is complete.
    """
    if log.observation.config.output_store is not None:
        return
    for call in log.calls.values():
        limit = log.config(call.path).tool_execution.max_output_chars
        for n, record in call.settled:
            output, value = record.outcome.output, record.outcome.value
            if limit is None or not isinstance(output, str):
                continue
            if len(output) > limit:
                yield broken(f"call {call.call_id} gave {len(output)} characters, past {limit}", n)
            elif record.outcome.status != "succeeded":
                continue
            elif isinstance(value, str) and len(value) > limit:
                told = limit <= NOTICE or f" of {len(value)} characters cut" in output
                kept = limit <= NOTICE or (output[0] == value[0] and output[-1] == value[-1])
                yield (
                    HELD if told and kept else broken(f"call {call.call_id} lost more of its output than its middle", n)
                )
            elif isinstance(value, str) and value.isprintable() and value != output:
                yield broken(f"call {call.call_id} gave {value!r}, and the model is shown {output!r}", n)
