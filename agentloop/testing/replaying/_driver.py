"""Runs a replay: enters the run as often as it was entered, and does what came from outside of it.

When every task waits, the record that is due says what has to happen: an effect is let go on at its recorded time, a
timer is due, or the caller cancels the run or one of its calls, gives a verdict, or is gone, as in a crash.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import anyio
import attrs

from agentloop import records as r
from agentloop._engine.run_stream import RunStream
from agentloop._engine.runtime.live_run import ServerConversation
from agentloop.agents import Agent
from agentloop.config import RunConfig
from agentloop.exceptions import ReplayDivergence
from agentloop.limits import Rate
from agentloop.results import RunResult
from agentloop.run import HANDLERS, _stream
from agentloop.state import RunState
from agentloop.testing.replaying._comparison import CLEARLY, CUT_OFF, Pending, pass_time
from agentloop.testing.replaying._effects import Consumer, ReplayEffects
from agentloop.testing.replaying._recorded import Call, Path, RecordedRun, RecordedSegment, call_of
from agentloop.testing.replaying._recorded_agents import ClosedSession, HooksOfRuns, RecordedAgents
from agentloop.testing.replaying._recorded_errors import rebuilt
from agentloop.testing.replaying._timing import SLACK, Tried, Ways, search
from agentloop.testing.replaying._words import stuck
from agentloop.testing.simulation.event_loop import Backend, Deadlock, run_deterministic, waiting

_MOST_JUMPS = 200
"""How often time may pass without a record: something is then waiting for what doesn't come."""
_SWALLOWED = ("policy", "tool_error_formatter")
"""Questions whose errors end nothing."""


@attrs.define(eq=False)
class Replaying:
    """One replay: what is replayed, and what came of it."""

    recorded: RecordedRun
    agent: Agent[Any, Any]
    config: RunConfig
    max_turns: Any = ...
    handlers: Sequence[str] = ()
    result: RunResult[Any] | None = None
    error: BaseException | None = None

    def run(self, backend: Backend) -> ReplayEffects:
        """Replay every entry, and return the effects, which have what was appended.

        What happened between two records isn't in the log. Where it matters, another way may lead further.

        Raises:
            ReplayDivergence: the furthest that any way led to.
        """
        attempts: list[ReplayEffects] = []

        def attempt(ways: Ways) -> Tried | None:
            effects = ReplayEffects(self.recorded, ways)
            attempts[:] = [effects]
            try:
                self._run(effects, backend)
            except ReplayDivergence as divergence:
                return Tried(ways, divergence, effects.firm)
            return None

        divergence = search(attempt, len(self.recorded.records), ended=self._was_ended())
        if divergence is not None:
            raise divergence
        return attempts[0]

    def _was_ended(self) -> bool:
        return any(map(self.recorded.ended_from_outside, self.recorded.entries))

    def _run(self, effects: ReplayEffects, backend: Backend) -> None:
        cast = RecordedAgents(effects)
        agent, config = cast.agent(self.agent), cast.config(self.config)
        for entry in self.recorded.entries:
            # Decided between two entries, or left by one that was cut off.
            effects.appended += self.recorded.records[len(effects.appended) : entry.start]
            self.result = self.error = None
            one = _OneEntry(effects, entry)
            begin = partial(self._stream, agent, config, entry, effects)
            try:
                run_deterministic(
                    one.play,
                    begin,
                    backend=backend,
                    scheduler=effects.choose,
                    order="steps",
                    before_step=effects.before_step,
                )
            except Deadlock:
                if effects.divergence is None:
                    effects.diverge(None, stuck(effects.records[effects.cursor], one.held()))
            if effects.divergence is not None:
                raise effects.divergence
            if entry.ended:
                self.result, self.error = one.result, one.error

    def _stream(
        self, agent: Agent[Any, Any], config: RunConfig, entry: RecordedSegment, effects: ReplayEffects
    ) -> RunStream[Any]:
        begun: Any = self.recorded.records[0]
        first: Any = self.recorded.records[entry.start]
        given: Any = begun.input
        if isinstance(first, r.RunResumed):
            given = RunState(agent, self.recorded.records[: entry.start])
        answered = {
            one.key
            for one in self.recorded.records
            if isinstance(one, r.CallbackReturned) and one.what == "error_handler"
        }
        kept = None
        if begun.kept and first is begun:
            kept = ServerConversation(
                conversation_id=begun.conversation_id, previous_response_id=begun.previous_response_id
            )
        return _stream(
            agent,
            given,
            None,
            first.max_turns if self.max_turns is ... else self.max_turns,
            HooksOfRuns(effects),
            config,
            {name: _never_asked for name in HANDLERS if name in answered or name in self.handlers},
            ClosedSession() if self._has_session(begun) else None,
            None,
            kept,
            subscribe=False,
        )

    def _has_session(self, begun: r.RunStarted) -> bool:
        return begun.shown is not None or self.recorded.has_session


def _never_asked(_: Any) -> None:
    raise AssertionError("a replay asks nobody")


@attrs.define(eq=False)
class _OneEntry:
    effects: ReplayEffects
    entry: RecordedSegment
    stream: Any = None
    result: RunResult[Any] | None = None
    error: BaseException | None = None
    _jumps: int = 0
    _jumped_at: int = -1

    async def play(self, begin: Callable[[], RunStream[Any]]) -> None:
        """Run what *begin* makes to the end of the entry."""
        stream, effects = begin(), self.effects
        self.stream = stream
        # Each entry has a loop of its own, and the tools' rates count over all of them.
        await anyio.sleep(max(0.0, effects.records[self.entry.start].at - effects.records[0].at))
        effects.enter(self.entry)
        try:
            async with anyio.create_task_group() as group:
                try:
                    async with stream:
                        live = stream._live
                        assert live is not None
                        effects.log = live.log
                        live.log.events = Consumer(effects, live)
                        effects.stop, effects.turn_is_over = stream._stop, lambda: stream.cancel("after_turn")
                        effects.end_from_outside = self._end_from_outside
                        effects.live_call = live.calls.get
                        effects.end_call = self._end_call
                        first: Any = effects.records[self.entry.start]
                        live.trace_id, live.workflow = first.trace_id, first.workflow
                        group.start_soon(self._drive, name="agentloop replay")
                        await stream.finished()
                finally:
                    group.cancel_scope.cancel()  # only now: the stream is left with its own error
        except BaseExceptionGroup as errors:  # the run's own error leaves the block through the group
            if len(errors.exceptions) != 1:
                raise
            self._note(errors.exceptions[0])
        begun = stream._live
        if self.error is None and stream.error is None and begun is not None and begun.state.ended is not None:
            self.result = stream.result

    def _note(self, error: BaseException) -> None:
        if error is not self.stream.error:
            raise error
        self.error = error

    def held(self) -> list[str]:
        """Return what the replay waits for, in words."""
        effects = self.effects
        resolved = [what for events in effects.waiting.values() for _, what in events]
        return [*resolved, *map(str, effects.pending)]

    # -- when everything waits

    async def _drive(self) -> None:
        loop = waiting()
        while not self.effects.over:
            await loop.all_blocked()
            if not self.effects.over:
                await self._go_on()

    async def _go_on(self) -> None:
        effects = self.effects
        wanted = effects.due
        if wanted is None:
            return await anyio.sleep_forever()  # the run has ended
        if effects.stirred:
            return None
        effects.quiet_at = effects.cursor
        if effects.end_calls() or effects.release_bodies() or self._pass_at_once():
            pass
        elif effects.cursor in effects.waiting:
            await self._let_time_pass()
            effects.release()
        elif effects.cursor in effects.outside:
            await self._let_time_pass()
            self._end_from_outside(effects.outside.pop(effects.cursor))
        elif isinstance(wanted, r.VerdictGiven | r.InputAdded | r.GraphChanged):
            effects.insert()
        elif isinstance(wanted, r.GuardrailSettled) and effects.release_next(lambda later: _held_with(wanted, later)):
            pass
        elif isinstance(wanted, r.CleanupCut):
            if wanted.section == "ctx.cleanup" or not self._jump():
                effects.insert()
        elif not self._cause(wanted):
            effects.diverge(None, stuck(wanted, self.held()))
        return None

    def _pass_at_once(self) -> bool:
        """Let time pass up to the record that is due, if this way does; tell whether any passed."""
        effects = self.effects
        if effects.way.hurry:
            return effects.hurry_on()
        seconds = effects.ahead(effects.cursor)
        if not effects.way.late or seconds <= 0:
            return False
        pass_time(seconds)
        return True

    async def _let_time_pass(self) -> None:
        """Let the clock come up to the record that is due, and what is due before it come first."""
        while not self.effects.over and not self.effects.come_up():
            waiting().jump()
            await waiting().all_blocked()

    def _jump(self) -> bool:
        """Let time pass up to the next timer; False if there is none, or if that leads nowhere."""
        if self._jumped_at != self.effects.cursor:
            self._jumped_at, self._jumps = self.effects.cursor, 0
        self._jumps += 1
        loop = waiting()
        timer = loop.next_timer()
        if self._waits_for_room() and self.effects.let_bodies_go():
            return True
        in_time = timer is not None and timer <= self.effects.ahead(self.effects.cursor) + SLACK
        if not in_time and (self.effects.let_bodies_go() or self._cancel_next_call()):
            return True
        if loop.next_timer() is None or self._jumps > _MOST_JUMPS:
            return False
        loop.jump()
        return True

    def _waits_for_room(self) -> bool:
        """Tell whether what is due is the admission of a call that waited for what others held."""
        call = call_of(self.effects.due) if self.effects.due is not None else None
        index = None if call is None else self.effects.next_of_call(*call, r.CallStarted)
        started: Any = None if index is None else self.effects.records[index]
        if call is None or started is None or not started.waited_for:
            return False
        live, now = self.stream._live.calls.get(call), anyio.current_time()
        # A rate has room again in time, not by what others give back.
        return live is None or all(limit.room(now) for limit in live.limits if isinstance(limit, Rate))

    def _cancel_next_call(self) -> bool:
        """End the call that settles next of those that were cut: what it holds may be what others wait for."""
        effects = self.effects
        bodies = [(one.path, one.call_id) for one in effects.pending if one.cancelled and one.call_id is not None]
        found = [(effects.next_of_call(*call, r.CallSettled), call) for call in bodies]
        ending = sorted((index, call) for index, call in found if index is not None)
        return any(self._end_call(call) for _, call in ending)

    def _end_call(self, call: Call) -> bool:
        """Cancel a call as its caller did, or end its time if it has a limit; False if neither was so."""
        settled, live = self.effects.settled(*call), self.stream._live.calls.get(call)
        if settled is None or live is None or live.phase != "body" or live.scope.cancel_called:
            return False
        if settled.outcome.cancelled_by == "caller":
            return bool(self.stream._live.cancel_call(*call, settled.outcome.reason))
        if settled.outcome.status == "timed_out" and live.timeout_at < math.inf:
            live.scope.cancel()
            self._end_others(call)
            return True
        if settled.outcome.status == "timed_out" or settled.outcome.cancelled_by is not None:
            return False
        if not self._took_too_long(settled, live):
            # What a guardrail made of it doesn't say.
            return bool(self.stream._live.cancel_call(*call, None))
        if live.timeout_at < math.inf:
            live.scope.cancel()
            return True
        return False

    def _took_too_long(self, settled: r.CallSettled, live: Any) -> bool:
        started, ended = settled.outcome.started_at, settled.body_ended_at
        if live.timeout_at == math.inf or started is None or ended is None:
            return bool(live.timeout_at < math.inf)
        return bool(ended - started >= live.timeout_at - live.body_clock)

    def _end_others(self, first: Call) -> None:
        """End the calls whose time was over in the same pass of the loop: the first one's failure came after that."""
        effects = self.effects
        index = effects.next_of_call(*first, r.CallSettled)
        assert index is not None
        for one in effects.pending:
            if not one.cancelled or one.call_id is None or (call := (one.path, one.call_id)) == first:
                continue
            other, live = effects.next_of_call(*call, r.CallSettled), self.stream._live.calls.get(call)
            if other is None or live is None or effects.records[other].outcome.status != "timed_out":  # type: ignore[union-attr]
                continue
            if live.timeout_at < math.inf and effects.records[other].at - effects.records[index].at < CLEARLY:
                effects.unheld.add(call)
                live.scope.cancel()

    # -- what came from outside

    def _cause(self, wanted: r.Record) -> bool:
        """Do what led to *wanted*; False if nothing can have."""
        call = call_of(wanted)
        done = self._cause_of_call(call) if call is not None else None
        path = wanted.path
        while done is None:
            done = self._cause_of_run(path)
            if done is None:
                if not path:
                    break
                done = self._cause_of_call((path[:-1], path[-1]))
                path = path[:-1]
        if done is None:
            done = self._fail([one for one in self.effects.pending if one.what in _SWALLOWED], "Exception()")
        return done or self._jump()

    def _cause_of_call(self, call: Call) -> bool | None:
        """Do what ended a call from outside; None where its run has to say."""
        settled = self.effects.settled(*call)
        if settled is None or self.effects.next_of_call(*call, r.CallStarted) is not None:
            return None  # it hasn't started: what is due is its admission
        by: str | None = settled.outcome.cancelled_by
        due = self.effects.due
        judged = isinstance(due, r.GuardrailSettled) and due.stage == "tool_output" and call_of(due) == call
        if judged and by in CUT_OFF:
            by = None  # whatever ended the call afterwards, this judges how its body had ended
        if by in CUT_OFF:
            return None
        live = self.stream._live.calls.get(call)
        if settled.outcome.status == "timed_out" and self._end_call(call):
            return True
        if by == "caller" or (by is None and live is not None and not self._runs_out(live, settled)):
            return self.stream._live.cancel_call(*call, settled.outcome.reason) or None
        pending = self._pending(*call)
        if settled.outcome.status == "failed" and settled.error is not None and self._fail(pending, settled.error):
            return True
        return self._jump() or None

    def _runs_out(self, live: Any, settled: r.CallSettled) -> bool:
        """Tell whether a body was cut by its own time limit, where the outcome doesn't say why it was cut."""
        if settled.outcome.status == "timed_out" or not any(
            one.cancelled and (one.path, one.call_id) == (settled.path, settled.call_id) for one in self.effects.pending
        ):
            return True
        left: float = live.timeout_at - anyio.current_time()
        return left <= self.effects.ahead(self.effects.cursor) + SLACK

    def _cause_of_run(self, path: Path) -> bool | None:
        """Do what ended a run from outside; None where the call around it has to say."""
        effects = self.effects
        index = effects.find(r.RunEnded, path)
        end: Any = None if index is None else effects.records[index]
        if end is not None and end.status == "failed" and end.error is not None:
            if end.error.startswith("RunTimeout("):
                return self._jump()
            if self._fail(self._pending(path, None), end.error):
                return True
        return None

    def _end_from_outside(self, by: str) -> None:
        """Cancel the run, or let its time be over."""
        live = self.stream._live
        if by == "parent":
            self.stream._stop()
        elif live.config.timeout is not None:
            live.scope.cancel()

    def _pending(self, path: Path, call_id: str | None) -> list[Pending]:
        """Return what may have raised in a call, or in a run."""
        found = (one for one in self.effects.pending if one.path == path and one.call_id == call_id)
        return [one for one in found if not one.cancelled][:1]

    def _fail(self, pending: list[Pending], error: str) -> bool | None:
        for one in pending:
            one.fail(rebuilt(error))
        return True if pending else None


def _held_with(wanted: r.GuardrailSettled, later: r.Record) -> bool:
    """Tell whether two guardrails judge one output: what they say may be held until all have."""
    if not isinstance(later, r.GuardrailSettled):
        return False
    return (wanted.path, wanted.stage) == (later.path, "output") == (later.path, later.stage)
