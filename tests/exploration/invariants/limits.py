"""Invariants of limits: how many bodies run beside each other, no slot stays free, and calls start in order."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import attrs

from agentloop import records as r
from agentloop.limits import Capacity, Limit, Rate
from agentloop.testing.invariants._invariant import HELD, Findings, broken, invariant
from agentloop.testing.invariants._observation import ObservedBody, ObservedCall, ObservedLog, ObservedTurn, Path
from agentloop.tools import AgentCall, FunctionTool

EPSILON = 1e-6
"""Maximum difference in seconds of two measurements of one moment."""


# ---------------------------------------------------------------------------------------------- limits


@attrs.frozen
class _RunningBody:
    """A running body, its tool, and the turn it belongs to."""

    body: ObservedBody
    tool: FunctionTool | None
    turn: tuple[Path, int]


@attrs.define
class _TimeSweep:
    """Iterates over the beginnings and ends of bodies in their order. Made and used by one invariant at a time.

    `running` holds the bodies that run at the current moment; only `moments` changes it.
    """

    log: ObservedLog
    running: dict[int, _RunningBody] = attrs.field(factory=dict)

    def moments(self) -> Iterator[_RunningBody]:
        """Yield every body at its beginning, while `running` holds the bodies beside it."""
        bodies = self.log.observation.bodies or ()
        points: list[tuple[int, int, int]] = []
        for index, body in enumerate(bodies):
            points.append((body.began, 1, index))
            if body.ended is not None:
                points.append((body.ended, 0, index))
        # An end and a beginning between the same two records have no known order. The end counts as the earlier one:
        # in doubt the judgement is in the run's favour.
        points.sort()
        for _, begins, index in points:
            if not begins:
                self.running.pop(index, None)
                continue
            one = self._find_running_body(bodies[index])
            yield one
            if one.body.ended is None or one.body.ended > one.body.began:
                self.running[index] = one

    def _find_running_body(self, body: ObservedBody) -> _RunningBody:
        call = self.log.calls.get((body.path, body.call_id))
        if call is None:
            return _RunningBody(body, None, (body.path, 0))
        return _RunningBody(body, self.log.tool(call), (body.path, call.turn.number))


@invariant("execution")
def bodies_in_flight_fit_the_limits(log: ObservedLog) -> Findings:
    """Bodies in flight never exceed the turn's cap, a shared capacity, the run's threads, or one per serial group."""
    sweep = _TimeSweep(log)
    for one in sweep.moments():
        began, tool = one.body.began, one.tool
        beside = [other for other in sweep.running.values() if other.turn == one.turn]
        cap = log.config(one.body.path).tool_execution.max_function_tool_concurrency
        if cap is not None:
            yield HELD
            if len(beside) >= cap:
                yield broken(f"{len(beside) + 1} bodies in flight past the cap of {cap}", began)
        if tool is None:
            continue
        if tool.runs_in_thread:
            most = log.config(one.body.path).tool_execution.max_threads
            others = (other for other in sweep.running.values() if other.body.path == one.body.path)
            threads = 1 + sum(other.tool is not None and other.tool.runs_in_thread for other in others)
            if threads > most:
                yield broken(f"{threads} bodies in threads, and there are {most}", began)
        for limit in tool.capacity:
            if isinstance(limit, Capacity) and limit.total_tokens is not None:
                tools = [other.tool for other in sweep.running.values()]
                holders = sum(1 for other in tools if other is not None and limit in other.capacity)
                if holders >= limit.total_tokens:
                    yield broken(f"{holders + 1} bodies hold {limit!r}", began)
        if tool.serial is not None and any(
            other.tool is not None and other.tool.serial == tool.serial for other in beside
        ):
            yield broken(f"two bodies of serial group {tool.serial!r} in flight", began)


@invariant("execution")
def exclusive_calls_run_alone(log: ObservedLog) -> Findings:
    """An exclusive call, or any call of a sequential turn, has no other body of its turn beside it."""
    sweep = _TimeSweep(log)
    for one in sweep.moments():
        body, tool = one.body, one.tool
        alone = (tool is not None and tool.exclusive) or sequential(log, body.path, _agent_of(log, body))
        beside = [other for other in sweep.running.values() if other.turn == one.turn]
        others = [other for other in beside if alone or (other.tool is not None and other.tool.exclusive)]
        if others:
            beside_it = others[0].body.call_id
            yield broken(f"call {body.call_id} began beside {beside_it}, one of them exclusive", body.began)
        elif alone:
            yield HELD


def _agent_of(log: ObservedLog, body: ObservedBody) -> str:
    call = log.calls.get((body.path, body.call_id))
    return call.turn.agent if call is not None else ""


def sequential(log: ObservedLog, path: Path, agent: str) -> bool:
    """Tell whether the turns of *agent* in the run at *path* run one call after the other."""
    mode = log.config(path).tool_execution.mode
    if mode is None:
        found = log.agent_named(agent)
        mode = found.tool_execution if found is not None else "concurrent"
    return mode == "sequential"


def one_at_a_time(log: ObservedLog, turn: ObservedTurn) -> bool:
    """Tell whether the calls of *turn* run one after the other."""
    cap = log.config(turn.path).tool_execution.max_function_tool_concurrency
    return cap == 1 or sequential(log, turn.path, turn.agent)


@invariant("execution")
def rates_hold(log: ObservedLog) -> Findings:
    """No window of a rate holds more starts than it allows, if calls start at once after their admission."""
    resumed = log.observation.crashes is None and log.root is not None and len(log.root.began) > 1
    if log.crashes or resumed:
        return  # a rate is state of the process, not of the journal, and another process may have resumed the run
    starts: dict[int, tuple[Rate, list[float]]] = {}
    delayed: set[int] = set()
    for call in log.started:
        tool = log.tool(call)
        for limit in tool.capacity if tool is not None else ():
            if isinstance(limit, Rate):
                assert tool is not None
                if tool.tool_input_guardrails or tool.runs_in_thread or not isinstance(tool.is_enabled, bool):
                    delayed.add(id(limit))
                starts.setdefault(id(limit), (limit, []))[1].extend(record.at for _, record in call.started)
    for rate, moments in starts.values():
        if id(rate) in delayed:
            continue
        moments.sort()
        for first, last in zip(moments, moments[rate.count :], strict=False):
            if last - first < rate.per - 1e-3:
                yield broken(f"{rate.count + 1} starts within {last - first:g} s under {rate!r}")
            else:
                yield HELD


@invariant("execution")
def a_full_buffer_holds_the_run_up(log: ObservedLog) -> Findings:
    """No turn of a streamed run begins while the unread events fill its buffer; those of input that it is shown don't
    count, because nothing comes between the two.
    """
    cap = log.observation.config.stream_buffer
    for n, unread in log.observation.unread or ():
        shown = itertools.takewhile(_shows_input, reversed(log.records[:n]))
        if unread - sum(1 for _ in shown) >= cap:
            yield broken(f"a turn began with {unread} events unread, and the buffer holds {cap}", n)
        else:
            yield HELD


def _shows_input(record: r.Record) -> bool:
    judged = isinstance(record, r.GuardrailSettled) and record.input_id is not None
    return judged or isinstance(record, r.InputShown)


def _needs_only_the_cap(tool: FunctionTool | None) -> bool:
    """Tell whether nothing but the turn's cap keeps a call of *tool* from starting."""
    return (
        tool is not None
        and not tool.capacity
        and tool.serial is None
        and not tool.exclusive
        and not tool.idempotent
        and not tool.runs_in_thread
        and not tool.tool_input_guardrails
        and isinstance(tool.is_enabled, bool)
    )


@invariant("execution")
def slots_are_used(log: ObservedLog) -> Findings:
    """While a call waits that only the cap holds back, no slot stays free over time."""
    if log.observation.bodies is None or log.observation.streamed:
        return
    if log.observation.hooks is not None:
        return
    for turn in log.batches:
        if len(turn.calls) < 2:
            continue
        cap = log.config(turn.path).tool_execution.max_function_tool_concurrency
        if cap is None or sequential(log, turn.path, turn.agent):
            continue
        if any(call.requested or call.questions for call in turn.calls):
            continue  # a call that waits for a verdict or an answer waits for no slot
        if not all(_needs_only_the_cap(log.tool(call)) for call in turn.calls):
            continue
        bodies = [body for call in turn.calls for body in log.bodies.get((turn.path, call.call_id), ())]
        nested = any(isinstance(getattr(log.tool(call), "body", None), AgentCall) for call in turn.calls)
        if len(bodies) < 2 or nested:
            continue
        yield from _check_free_slots(bodies, cap)


def _check_free_slots(bodies: list[ObservedBody], cap: int) -> Findings:
    ends = [body.ended_at if body.ended_at is not None else math.inf for body in bodies]
    moments = sorted({body.began_at for body in bodies} | {end for end in ends if end < math.inf})
    last = max(body.began_at for body in bodies)
    for left, right in itertools.pairwise(moments):
        if right > last:
            break
        if right - left < EPSILON:
            continue
        flying = sum(body.began_at <= left and end >= right for body, end in zip(bodies, ends, strict=True))
        waiting = [body for body in bodies if body.began_at >= right]
        if waiting and flying < cap:
            ids = ", ".join(body.call_id for body in waiting)
            yield broken(f"{flying} of {cap} slots in use for {right - left:g} s while {ids} waited", waiting[0].began)
        elif waiting:
            yield HELD


@invariant("execution")
def starts_follow_model_order(log: ObservedLog) -> Findings:
    """Under a cap of n, when a call starts, at most n - 1 earlier calls that start later are still held back."""
    for turn in log.batches:
        if len(turn.calls) < 2:
            continue
        cap = log.config(turn.path).tool_execution.max_function_tool_concurrency
        if sequential(log, turn.path, turn.agent):
            cap = 1
        threads = log.config(turn.path).tool_execution.max_threads
        lanes: dict[tuple[frozenset[Limit], str | None, bool], list[ObservedCall]] = {}
        for call in turn.calls:
            tool = log.tool(call)
            if (
                tool is None
                or len(call.started) != 1
                or call.requested
                or tool.idempotent
                or tool.tool_input_guardrails
            ):
                continue
            lanes.setdefault((frozenset(tool.capacity), tool.serial, tool.runs_in_thread), []).append(call)
        for (limits, serial, in_thread), lane in lanes.items():
            width = 1 if serial is not None else cap
            tokens = [one.total_tokens for one in limits if isinstance(one, Capacity) and one.total_tokens]
            widths: list[int] = [*tokens, *([width] if width is not None else []), *([threads] if in_thread else [])]
            if widths and len(lane) > 1:
                yield from _check_start_order(lane, min(widths))


def _check_start_order(lane: list[ObservedCall], width: int) -> Findings:
    for place, call in enumerate(lane):
        n = call.started[0][0]
        held = [other for other in lane[:place] if other.started[0][0] > n]
        if len(held) > width - 1:
            yield broken(f"call {call.call_id} started before {held[0].call_id}, which the model asked for first", n)
        else:
            yield HELD
