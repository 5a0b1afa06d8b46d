"""The driver of a replay: runs every recorded run segment, and causes the events that came from outside of the run.

Theory of operation. A replay is a run of the real engine with three parts exchanged: effects are answered from the log
(`_effects.ReplayEffects`), agents have no code of the application (`_recorded_agents`), and the event loop is the
deterministic one of `testing.simulation`, on which time passes only when the replay lets it. The driver knows these
parts; it does not compare records (`_comparison` does).

The segments are replayed one after the other, each on a new loop. In a segment:

1. `_SegmentReplay.play` sets the clock, calls `ReplayLog.enter`, enters the run's stream, connects the log and the
   callbacks, and starts `_drive`.
2. The run's tasks take their steps. An effect waits until its record is due; an appended record passes
   `ReplayLog.expect`, which compares it with the due one and advances the cursor.
3. Whenever every task waits, `_drive` calls `_advance`. It looks at the due record and takes one step, the first
   that is possible: end calls that timed out; finish bodies; skip the calls that waited too long; release
   the effects that wait for the record; cause the cancellation or the deadline that the record tells; insert a record
   of the caller; release a guardrail out of order; let time pass up to the record of a cut cleanup, or insert it; cause
   the record (fail or cancel an effect, or jump to the next timer). If no step is possible the replay has diverged.
4. The segment ends when the log has no more records in it, on the first divergence, or on an error of the replay's own
   code (`effects.fault`, which `Replaying` raises): `effects.over` is true then.

An end from outside (a cancellation, a deadline) has its place among the records, but the log doesn't tell in or before
which step of which task it came, nor that a task was late to notice it. The first attempt guesses that from what the
run still did. If it comes to other records than the log has, `Replaying` tries the other moments with that place among
the records, each in an attempt of its own: one that leads to the recorded log is as good as the real one.

State: the position in the log, and the effects that wait, are facts of `ReplayLog`. Here `result` and `error` are the
outcome of the last segment, and `_jumps` counts the jumps of time since the record `_jumped_at` became due.

Invariants: no code of the application runs. `_advance` takes one step at a time, since each step may make tasks ready,
and their records must come before the next step. A replay ends: every step releases an effect, appends a record, ends a
call or lets time pass, and `_MOST_JUMPS` bounds the jumps at one record.

Decisions:

Answers are records. The values that an application's callbacks returned are in the log (`CallbackReturned`) where no
other record has them, so that a log can be replayed without the application. The items that a session got are in it
too (`SessionSaved`); after a crash between the two, the end of the session is compared with the items that are due.
Ends from outside are in it as well: `CancelRequested` where a cancellation of a call is accepted, or a part of the
run first notices that of the whole run, and `DeadlinePassed`. How a replay reads such a log is at the heads of
`testing/replaying/_driver.py` and `testing/replaying/_comparison.py`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import anyio
import attrs

from agentloop import records as r
from agentloop._engine.runtime.cancel_source import record_end
from agentloop._engine.runtime.live_run import LiveRun
from agentloop.agents import Agent
from agentloop.config import RunConfig
from agentloop.exceptions import ReplayDivergence
from agentloop.lab._copies import ClosedSandboxes, ClosedSession
from agentloop.lab._recorded_errors import rebuilt
from agentloop.limits import Rate
from agentloop.results import RunResult
from agentloop.run import HANDLERS, RunOptions, _stream
from agentloop.run._stream import RunStream
from agentloop.settings import Conversation
from agentloop.spans import Trace
from agentloop.state import RunState
from agentloop.testing.replaying._comparison import (
    CLEARLY,
    CUT_OFF,
    SLACK,
    Moments,
    NoVerdict,
    Pending,
    pass_time,
    timeout_at,
)
from agentloop.testing.replaying._effects import Consumer, ReplayEffects
from agentloop.testing.replaying._recorded import (
    GIVEN,
    Call,
    Path,
    RecordedRun,
    RecordedSegment,
    call_of,
    ends_from_outside,
)
from agentloop.testing.replaying._recorded_agents import HooksOfRuns, RecordedAgents
from agentloop.testing.replaying._words import stuck
from agentloop.testing.simulation.event_loop import Backend, Deadlock, run_deterministic, waiting

_MOST_JUMPS = 200
"""Maximum number of jumps of time at one record: after them the replay waits for an event that never comes."""
_MOST_ATTEMPTS = 60
"""Maximum number of attempts with the ends from outside at other moments."""
_NEAR = 8
"""The distance of a divergence from an end from outside, in records, that may come from its moment."""
_SWALLOWED = ("policy", "tool_error_formatter")
"""Callbacks whose errors the engine swallows: they end neither a call nor a run, so no record shows them."""


@attrs.define(eq=False)
class Replaying:
    """One replay: the recorded run with its definitions, and `result` and `error` of its last segment.

    Owned by `replay`; only `run` changes it.
    """

    recorded: RecordedRun
    agent: Agent[Any, Any]
    config: RunConfig
    max_turns: Any = ...
    handlers: Sequence[str] = ()
    result: RunResult[Any] | None = None
    error: BaseException | None = None

    def run(self, backend: Backend, is_changed: Callable[[], bool]) -> ReplayEffects:
        """Replay every run segment, and return the effects: they hold the appended records.

        What the log doesn't have is tried, unless the definitions have changed (*is_changed*), in further attempts.
        Where a run ended by a `UserError` right after a hook, the run raises it by itself first. If it doesn't, the
        hook must have raised it. And an end from outside comes where the log lets us guess at first; if the run came
        to other records then, at other moments before: at most `_MOST_ATTEMPTS` of them, each a replay from the start.

        Raises:
            ReplayDivergence: at the first record that differs, in the first attempt.
        """
        first = effects = self._attempt(backend)
        if effects.divergence is not None and not is_changed():
            if self.max_turns is ... and effects.hook_may_have_raised:
                effects = self._attempt(backend, hooks_raise_user_errors=True)
            if effects.divergence is not None:
                effects = self._try_moments(first, backend)
        if effects.divergence is not None:
            raise first.divergence or effects.divergence
        return effects

    def _try_moments(self, effects: ReplayEffects, backend: Backend) -> ReplayEffects:
        """Return the attempt with the ends from outside at other moments that came out, or one that didn't.

        An end of which an attempt comes further keeps its moment, and a later end is tried from there.
        """
        moments: Moments = {}
        left = _MOST_ATTEMPTS
        while True:
            best = effects
            for place, moment in self._list_moments(effects):
                left -= 1
                tried = self._attempt(backend, moments={**moments, place: moment})
                if tried.divergence is None or left <= 0:
                    return tried
                if best.divergence is not None and tried.divergence.n > best.divergence.n:
                    best = tried
            if best is effects:
                return effects
            effects, moments = best, best.moments

    def _list_moments(self, effects: ReplayEffects) -> Iterator[tuple[int, tuple[int, int]]]:
        """Yield the moments to try of each end from outside near the divergence of *effects*, the latest end first."""
        assert effects.divergence is not None
        at, start = effects.divergence.n, effects.entry.start
        for place in range(min(at + _NEAR, effects.entry.stop - 1), max(start, at - _NEAR), -1):
            record = effects.records[place]
            if not isinstance(record, r.CancelRequested | r.DeadlinePassed):
                continue
            if place <= at:
                yield from ((place, (place, steps)) for steps in range(effects.steps.get(place, 0) + 1))
            if ends_from_outside(record) and isinstance(record, r.CancelRequested):  # noticed later than it came
                yield from ((place, (due, 0)) for due in range(place - 1, max(start, place - _NEAR), -1))

    def _attempt(self, backend: Backend, **options: Any) -> ReplayEffects:
        effects = ReplayEffects(self.recorded, **options)
        with suppress(ReplayDivergence):
            self._run(effects, backend)
        return effects

    def _run(self, effects: ReplayEffects, backend: Backend) -> None:
        copies = RecordedAgents(effects)
        agent, config = copies.copy_agent(self.agent), copies.config(self.config)
        for entry in self.recorded.entries:
            # Verdicts given between two segments, and records that a cut segment had left behind.
            effects.appended += self.recorded.records[len(effects.appended) : entry.start]
            self.result = self.error = None
            copies.forget_rates(entry)
            one = _SegmentReplay(effects, entry)
            begin = partial(self._open_stream, agent, config, entry, effects)
            try:
                run_deterministic(
                    one.play,
                    begin,
                    backend=backend,
                    scheduler=effects.guarded(effects.choose, 0),
                    order="steps",
                    before_step=effects.guarded(effects.before_step),
                )
            except Deadlock:
                if effects.divergence is None and effects.fault is None:
                    effects.diverge(None, stuck(effects.records[effects.cursor], one.held()))
            except Exception:
                if effects.fault is None:
                    raise
            if effects.fault is not None:
                raise effects.fault
            if effects.divergence is not None:
                raise effects.divergence
            if entry.ended:
                self.result, self.error = one.result, one.error

    def _open_stream(
        self, agent: Agent[Any, Any], config: RunConfig, entry: RecordedSegment, effects: ReplayEffects
    ) -> RunStream[Any]:
        begun: Any = self.recorded.records[0]
        first: Any = self.recorded.records[entry.start]
        if self._has_sandbox(entry):
            config = attrs.evolve(config, sandbox=ClosedSandboxes())
        given: Any = begun.input
        if isinstance(first, r.RunResumed):
            given = RunState(agent, self.recorded.records[: entry.start])
        answered = {
            one.key
            for one in self.recorded.records
            if isinstance(one, r.CallbackReturned) and one.what == "error_handler"
        }
        options: RunOptions[Any] = {
            "max_turns": first.max_turns if self.max_turns is ... else self.max_turns,
            "hooks": HooksOfRuns(effects),
            "run_config": config,
            "error_handlers": {name: _refuse_handler for name in HANDLERS if name in answered or name in self.handlers},
            "session": ClosedSession() if self._has_session(begun) else None,
        }
        if begun.kept and first is begun:
            ident, after = begun.conversation_id, begun.previous_response_id
            options["conversation"] = Conversation(ident, after, auto=ident is None)
        return _stream(agent, given, options, subscribe=False)

    def _has_sandbox(self, entry: RecordedSegment) -> bool:
        """Tell whether the run has a sandbox in segment *entry*, or failed there to get one."""
        upto, own = self.recorded.records[: entry.stop], self.recorded.records[entry.start : entry.stop]
        if any(isinstance(record, r.SandboxOpened) for record in upto):
            return True
        return self.config.sandbox is not None and not any(isinstance(record, r.TurnStarted) for record in own)

    def _has_session(self, begun: r.RunStarted) -> bool:
        return begun.shown is not None or self.recorded.has_session


def _refuse_handler(_: Any) -> None:
    raise AssertionError("a replay asks nobody")


@attrs.define(eq=False)
class _SegmentReplay:
    """The replay of one run segment on its own loop. `play` runs and changes it; `Replaying` reads its outcome."""

    effects: ReplayEffects
    entry: RecordedSegment
    stream: Any = None
    result: RunResult[Any] | None = None
    error: BaseException | None = None
    _jumps: int = 0
    _jumped_at: int = -1

    async def play(self, begin: Callable[[], RunStream[Any]]) -> None:
        """Run the stream that *begin* returns to the end of the segment.

        Keeps the run's own error in `error`; any other error is raised.
        """
        stream, effects = begin(), self.effects
        self.stream = stream
        assert stream._entry is not None  # it has not begun
        stream._entry = stream._entry.replace(open_trace=self._find_trace())
        # Each segment has its own loop, but the rates of tools count starts over all segments: the clock of this
        # loop must begin at the recorded distance.
        records = effects.whole.records
        await anyio.sleep(max(0.0, records[self.entry.start].at - records[0].at))
        effects.enter(self.entry)
        # Timers of one time come one by one, since the first may give a waiting call its room.
        waiting().timers_apart = True
        try:
            async with anyio.create_task_group() as group:
                try:
                    async with stream:
                        live = stream._live
                        effects.log = live.tree.log
                        live.tree.log.follow(events=Consumer(live.state, None, live.agent_at, effects=effects))
                        effects.stop = stream._stop
                        effects.guarded(self._connect)(stream, live)
                        group.start_soon(self._drive, name="agentloop replay")
                        await stream.finished()
                finally:
                    group.cancel_scope.cancel()  # only now: the stream is left with its own error
        except BaseExceptionGroup as errors:  # the run's own error leaves the block through the group
            if len(errors.exceptions) != 1:
                raise
            self._keep_error(errors.exceptions[0])
        if self.error is None and stream.error is None and stream._live.state.ended is not None:
            self.result = stream.result

    def _connect(self, stream: Any, live: LiveRun) -> None:
        """Give the effects the callbacks of the driver."""
        effects, guarded = self.effects, self.effects.guarded
        effects.turn_is_over = lambda: stream.cancel("after_turn")
        effects.cause_end, effects.cancel_run = guarded(self._cause_end), guarded(self._cancel_run)
        effects.stop_run, effects.expire_waiting = guarded(self._stop_run), guarded(self._expire_waiting)
        effects.end_call = guarded(self._end_call, False)
        effects.live_call = live.tree.find_call
        effects.live_run = lambda path: live.tree.children.get(path) if path else live

    def _find_trace(self) -> Callable[[LiveRun], Awaitable[Trace]] | None:
        """Return a function that returns the recorded trace of the segment; None if it had none."""
        first: Any = self.effects.whole.records[self.entry.start]
        if first.trace_id is None:
            return None

        async def recorded_trace(run: LiveRun) -> Trace:
            return Trace(workflow_name=first.workflow, trace_id=first.trace_id)

        return recorded_trace

    def _keep_error(self, error: BaseException) -> None:
        # A stream that has raised its error may have dropped it; an error of the replay itself would come beside it.
        if error is not self.stream.error and not self.stream._error_raised:
            raise error
        self.error = error

    def held(self) -> list[str]:
        """Return a phrase for each effect that waits: for its record, or for its end."""
        effects = self.effects
        resolved = [what for events in effects.waiting.values() for _, what in events]
        return [*resolved, *map(str, effects.pending)]

    # -- when every task waits

    async def _drive(self) -> None:
        loop = waiting()
        try:
            while not self.effects.over:
                await loop.all_blocked()
                if not self.effects.over:
                    await self._advance()
        except Exception as error:
            self.effects.keep_fault(error)

    async def _advance(self) -> None:
        effects = self.effects
        wanted = effects.due
        if (scope := self.stream._live.limit_scope) is not None:
            scope.deadline = math.inf  # the log tells when it passed
        self._hold_deadlines()
        if wanted is None:
            return await anyio.sleep_forever()  # the run has ended
        if effects.stirred:
            return None
        if effects.end_calls() or effects.release_bodies() or self._let_calls_expire():
            pass
        elif effects.cursor in effects.waiting:
            effects.come_up()
            effects.release()
        elif self._ends_while_loading(wanted):
            self._end_while_loading(effects.records[effects.cursor + 1])
        elif effects.is_end_due():
            effects.come_up()
            self._cause_end()
            if effects.due is wanted:
                effects.diverge(None, stuck(wanted, self.held()))
        elif isinstance(wanted, (*GIVEN, r.GraphChanged)) or effects.is_of_summary(wanted):
            effects.insert()
        elif effects.is_end_too_late():
            self._insert_late_end()
        elif isinstance(wanted, r.GuardrailSettled) and (
            effects.release_next(lambda later: _judges_same_output(wanted, later))
            or self._let_guardrails_return(wanted)
        ):
            pass
        elif isinstance(wanted, r.CleanupCut):
            if not self._cut_write(wanted) and (wanted.section == "ctx.cleanup" or not self._jump_to_next_timer()):
                effects.insert()
        elif not self._cause_record(wanted):
            effects.diverge(None, stuck(wanted, self.held()))
        return None

    def _hold_deadlines(self) -> None:
        """Take the deadlines of nested runs that something else has ended, which may have come in the same moment."""
        for path, live in self.stream._live.tree.children.items():
            scope = live.limit_scope
            if scope is not None and scope.deadline < math.inf and not self.effects.may_time_out(path):
                scope.deadline = math.inf

    def _jump_to_next_timer(self) -> bool:
        """Let time pass up to the next timer, or release an effect that others wait for.

        Return False if there is no timer, or if too many jumps led to no record.
        """
        if self._jumped_at != self.effects.cursor:
            self._jumped_at, self._jumps = self.effects.cursor, 0
        self._jumps += 1
        loop = waiting()
        timer = loop.next_timer()
        if self._waits_for_room() and self.effects.let_bodies_go():
            return True
        in_time = timer is not None and timer <= self.effects.ahead(self.effects.cursor) + SLACK
        if not in_time and (self.effects.let_bodies_go() or self._cancel_next_call() or self._let_body_cancel_itself()):
            return True
        if loop.next_timer() is None or self._jumps > _MOST_JUMPS:
            return False
        loop.jump()
        return True

    def _waits_for_room(self) -> bool:
        """Tell whether the due record follows the admission of a call that waited for a limit others held."""
        call = call_of(self.effects.due) if self.effects.due is not None else None
        index = None if call is None else self.effects.next_of_call(*call, r.CallStarted)
        started: Any = None if index is None else self.effects.records[index]
        if call is None or started is None or not started.waited_for:
            return False
        live, now = self.stream._live.tree.find_call(call), anyio.current_time()
        # A rate has room again as time passes, not when other calls release it.
        return live is None or all(limit.room(now) for limit in live.limits if isinstance(limit, Rate))

    def _cancel_next_call(self) -> bool:
        """End the cut call that settles next: it may hold the limit that other calls wait for."""
        effects = self.effects
        bodies = [(one.path, one.call_id) for one in effects.pending if one.cancelled and one.call_id is not None]
        found = [(effects.next_of_call(*call, r.CallSettled), call) for call in bodies]
        ending = sorted((index, call) for index, call in found if index is not None)
        return any(self._end_call(call) for _, call in ending)

    def _let_body_cancel_itself(self) -> bool:
        """Let a body cancel itself of whose call a crash has left no further outcome: no other end leaves no record.

        If a guardrail has judged what came of it, that one. Return False if there is none.
        """
        effects, due = self.effects, self.effects.due
        if effects.entry.ended or due is None:
            return False
        calls = {(one.path, one.call_id): one for one in effects.pending if one.cancelled and one.call_id is not None}
        left = [call for call in calls if effects.settled(*call) is None]
        if not left:
            return False
        calls[min(left, key=lambda call: call != call_of(due))].fail(asyncio.CancelledError())
        return True

    def _end_call(self, call: Call) -> bool:
        """End a call that its timeout cut, as the log shows. Return False if something else ended it."""
        settled, live = self.effects.settled(*call), self.stream._live.tree.find_call(call)
        if settled is None or live is None or live.phase != "body" or live.scope.cancel_called:
            return False
        # Without a cause, a guardrail has judged the output since: the outcome no longer shows the timeout.
        if settled.outcome.cancelled_by is not None or timeout_at(live) == math.inf:
            return False
        self._note_reports(live, settled)
        live.scope.cancel()
        if settled.outcome.status == "timed_out":
            self._end_others(call)
        return True

    def _note_reports(self, live: Any, settled: r.CallSettled) -> None:
        """Act as if a body had reported its progress, if it ran as long as its whole timeout: no body runs here."""
        limits, body, outcome = live.steps.limits, live.body, settled.outcome
        if limits is None or limits.idle is None or limits.whole is None or outcome.started_at is None:
            return
        if (settled.body_ended_at or outcome.ended_at or 0.0) - outcome.started_at >= limits.whole - SLACK:
            body.idle_since = body.ends_at = body.began + limits.whole

    def _end_others(self, first: Call) -> None:
        """End the calls that timed out in the same pass of the loop as *first*.

        On a real loop all of them were cut before the failure of the first could cancel the others.
        """
        effects = self.effects
        index = effects.next_of_call(*first, r.CallSettled)
        assert index is not None
        for one in effects.pending:
            if not one.cancelled or one.call_id is None or (call := (one.path, one.call_id)) == first:
                continue
            other, live = effects.next_of_call(*call, r.CallSettled), self.stream._live.tree.find_call(call)
            if other is None or live is None or effects.records[other].outcome.status != "timed_out":  # type: ignore[union-attr]
                continue
            if timeout_at(live) < math.inf and effects.records[other].at - effects.records[index].at < CLEARLY:
                effects.unheld.add(call)
                live.scope.cancel()

    # -- causes from outside

    def _cause_record(self, wanted: r.Record) -> bool:
        """Do the thing that led to *wanted*: end its call or its run, or those around it. Return False if none can."""
        call = call_of(wanted)
        done = self._cause_end_of_call(call) if call is not None else None
        path = wanted.path
        while done is None:
            done = self._cause_end_of_run(path)
            if done is None:
                if not path:
                    break
                done = self._cause_end_of_call((path[:-1], path[-1]))
                path = path[:-1]
        if done is None:
            done = self._fail([one for one in self.effects.pending if one.what in _SWALLOWED], "Exception()")
        return done or self._jump_to_next_timer()

    def _cause_end_of_call(self, call: Call) -> bool | None:
        """End *call* as it was ended from outside. Return None if the cause must be sought in its run."""
        settled = self.effects.settled(*call)
        if settled is None or self.effects.next_of_call(*call, r.CallStarted) is not None:
            return None  # the call hasn't started: the due record is that of its admission
        by: str | None = settled.outcome.cancelled_by
        due = self.effects.due
        judged = isinstance(due, r.GuardrailSettled) and due.stage == "tool_output" and call_of(due) == call
        if judged and by in CUT_OFF:
            by = None  # the call was cut later; the due guardrail judges the earlier end of its body
        if by in CUT_OFF:
            return None
        if settled.outcome.status == "timed_out" and self._has_timed_out(call) and self._end_call(call):
            return True
        pending = self._find_raising(*call)
        if settled.outcome.status == "failed" and settled.error is not None and self._fail(pending, settled.error):
            return True
        return self._jump_to_next_timer() or None

    def _has_timed_out(self, call: Call) -> bool:
        """Tell whether the timeout of *call* had passed when the due record was appended."""
        live = self.stream._live.tree.find_call(call)
        left = math.inf if live is None else timeout_at(live) - anyio.current_time()
        return bool(left <= self.effects.ahead(self.effects.cursor) + SLACK)

    def _cause_end_of_run(self, path: Path) -> bool | None:
        """End the run at *path* as it was ended. Return None if the cause must be sought in the call around it."""
        effects = self.effects
        index = effects.find(r.RunEnded, path)
        end: Any = None if index is None else effects.records[index]
        if end is not None and end.status == "failed" and end.error is not None:
            if end.error.startswith("RunTimeoutError("):
                return self._jump_to_next_timer()
            if self._fail(self._find_raising(path, None), end.error):
                return True
        if path and self._is_deadline_ahead(path):
            return self._jump_to_next_timer()
        return None

    def _is_deadline_ahead(self, path: Path) -> bool:
        """Tell whether the deadline of the nested run at *path* has yet to pass, as a call of it shows.

        Its end needn't show it: while the run was in its cleanup, the timeout of its call may have passed as well.
        """
        live = self.stream._live.tree.children.get(path)
        scope = None if live is None else live.limit_scope
        if scope is None or scope.cancel_called or scope.deadline == math.inf:
            return False
        return self.effects.is_call_cut_by_deadline(path)

    def _cause_end(self) -> None:
        """Cancel the run or the call that the due record names, or let the run's deadline pass."""
        wanted: Any = self.effects.due
        if isinstance(wanted, r.DeadlinePassed) or wanted.call_id is None:
            self._end_run(wanted)
            return
        settled = self.effects.settled(wanted.path, wanted.call_id)
        reason = settled.outcome.reason if wanted.reason is None and settled is not None else wanted.reason
        self.stream._live.cancel_call(wanted.path, wanted.call_id, reason, by_call=wanted.by_call)

    def _end_run(self, record: r.Record) -> None:
        """Cancel the run, or let its deadline pass, as *record* tells."""
        live = self.stream._live
        if isinstance(record, r.CancelRequested):
            self.effects.admit_late()
            if (stopped := self.effects.find_stop_before_cancel()) is not None:
                live.end_recorded, self.effects.cancels_at = "parent", stopped
                return self.effects.insert()
            self._stop_run()
            if self.effects.is_expiry_next():
                record_end(live)
                self._expire_waiting()
        elif live.settings.config.timeout is not None:
            live.limit_scope.cancel()
            record_end(live)

    def _end_while_loading(self, record: r.Record) -> None:
        """End the run before its first record, as *record*, the second one, tells."""
        if isinstance(record, r.CancelRequested) and self.effects.ends_by_timeout():
            self.stream._live.end_recorded = "parent"  # a busy loop noticed both at once: see `_insert_late_end`
            self.stream._live.limit_scope.cancel()
        else:
            self._end_run(record)

    def _cancel_run(self) -> None:
        """Cancel the run. Its record was appended before, or is inserted when it is due."""
        self.stream._live.end_recorded = "parent"
        self._stop_run()

    def _stop_run(self) -> None:
        """Cancel the run, and its calls in the same step.

        An owner of calls whose step is due already, as a call of it has settled, hears of its cancellation a pass late,
        and on asyncio its calls hear of it from the owner. The task order of the log isn't the loop's: calls may have
        to settle before that.
        """
        self.stream._stop()
        for calls in tuple(self.stream._live.tree.calls.values()):
            nursery = next((one.batch.nursery for one in calls.values()), None)
            if nursery is not None and not nursery.on_trio:  # there they have heard of it, in an order of its own
                nursery.cancel()

    def _cut_write(self, cut: r.CleanupCut) -> bool:
        """Cut the write to the session that *cut*, the due record, tells of. Return False if a timer of its own does.

        The write is shielded, so the run notices its end behind it, or never, if it was its last step. It is bounded by
        the deadlines around it: of the run, of a call, of the caller. A replay has none of them, since the log tells
        when they passed. A native cancellation sets the deadline that cuts the write.
        """
        effects, outermost = self.effects, self.stream._live
        write = effects.writes.get(cut.path)
        if cut.section != "session save" or write is None or write.deadline < math.inf:
            return False
        following = None if outermost.end_recorded is not None else effects.find_end_from_outside()
        goes_on = effects.find(r.TurnStarted | r.ModelRequested | r.HandedOff, cut.path) is not None
        if goes_on or isinstance(following, r.CancelRequested):
            effects.cancels_at = effects.cursor
            self._cancel_run()
            return True
        if following is not None and outermost.limit_scope is not None:  # the run itself appends the record of it
            outermost.limit_scope.cancel()
        effects.come_up()
        write.cancel()
        return True

    def _insert_late_end(self) -> None:
        """Append the due cancellation as it was recorded, and cause the deadline that had passed before it.

        A busy loop may notice both at once. Then the log has the cancellation only, and the run ends by its deadline.
        """
        live, timed_out = self.stream._live, self.effects.ends_by_timeout()
        noted, live.end_recorded = live.end_recorded, "parent"
        self.effects.insert()
        if timed_out and noted is None:
            live.limit_scope.cancel()

    def _let_calls_expire(self) -> bool:
        """Let time pass up to the due record, if it settles a call that waited too long, and settle it. False if not.

        At once: other owners whose calls have waited as long wake by the same clock, in the backend's order.
        """
        if not self.effects.is_expiry_due():
            return False
        cursor, passed = self.effects.cursor, self.effects.hurry_on()
        self._expire_waiting()
        return passed or self.effects.cursor > cursor

    def _expire_waiting(self) -> None:
        """Settle the calls that the due records show to have waited too long, before their owners do anything else."""
        effects = self.effects
        while effects.is_expiry_due() and (call := call_of(effects.due)) is not None:  # type: ignore[arg-type]
            live, cursor = self.stream._live.tree.find_call(call), effects.cursor
            if live is None or not (batch := live.batch)._can_expire(live):
                return  # settled already, or it waits for an equal call that has yet to make way
            if (limit := batch.execution.queue_timeout) is None:
                return  # the definitions have changed
            pass_time(max(0.0, batch._opened_at + limit - anyio.current_time()))
            batch._expire_waiting()
            if effects.cursor == cursor:
                return

    def _ends_while_loading(self, wanted: r.Record) -> bool:
        """Tell whether the run was ended while it loaded its session, before its first record."""
        effects = self.effects
        if effects.cursor != self.entry.start or not isinstance(wanted, r.RunStarted) or wanted.shown is not None:
            return False
        following = effects.records[effects.cursor + 1] if effects.cursor + 1 < effects.entry.stop else None
        ended = isinstance(following, r.CancelRequested | r.DeadlinePassed)
        return ended and effects.whole.has_session and not self.stream._live.scope.cancel_called

    def _let_guardrails_return(self, wanted: r.GuardrailSettled) -> bool:
        """Let the output guardrails return whose verdicts a crash cut off: verdicts on held text are appended together.

        Return False if there are none.
        """
        if self.effects.entry.ended or wanted.stage != "output":
            return False
        found = [one for one in self.effects.pending if one.path == wanted.path and one.what.startswith("guardrail ")]
        for one in found:
            one.fail(NoVerdict())
        return bool(found)

    def _find_raising(self, path: Path, call_id: str | None) -> list[Pending]:
        """Return the first effect of a call, or of a run, that may have raised: a list of one, or an empty one."""
        found = (one for one in self.effects.pending if one.path == path and one.call_id == call_id)
        return [one for one in found if not one.cancelled][:1]

    def _fail(self, pending: list[Pending], error: str) -> bool | None:
        for one in pending:
            one.fail(rebuilt(error))
        return True if pending else None


def _judges_same_output(wanted: r.GuardrailSettled, later: r.Record) -> bool:
    """Tell whether two guardrails judge one output: their verdicts may come in any order until all have come."""
    if not isinstance(later, r.GuardrailSettled):
        return False
    return (wanted.path, wanted.stage) == (later.path, "output") == (later.path, later.stage)
