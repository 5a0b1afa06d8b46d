"""The position of a replay in the log: the due record, the effects that wait for it, the time, and the task order.

Theory of operation. `ReplayLog` is the part of the effects (`_effects.ReplayEffects` inherits from it) that compares
and waits. It does not know what an effect is or how it is answered, nor what the driver does at a quiet point.

The engine appends a record; the log of the run passes it to `expect`. If it equals the due record in all that a replay
can know, `_accept` keeps it with the recorded times, advances `cursor`, and releases the effects that completed before
the next record: what the log doesn't hold back happens at once. The driver releases the rest when every task waits. If
the record differs, the replay has diverged: `diverge` and `end` release everything and stop the run. A record that the
caller or a body appended (a verdict, an input, a cut cleanup) is inserted as recorded.

Cancellations and deadlines are records, and the replay follows them: it causes each when its record is due. In the
recorded run, tasks may have been late, so that they had not yet done what they were about to do. So everything a run
does without waiting is held back until the log shows it: admission by `admits_more`, the first step of a call by
`before_step`, the end of a batch by `_does_nothing_more`.

Effects wait in three forms, each shielded against cancellation while it waits for a record:

* `until` (`known`, `told`): the effect has a record. It returns when the record is due, so effects complete in the
  recorded order.
* `cut_off`: the effect has no record; it was cut off, or raised. It waits in `pending` until its scope is cancelled, or
  until the driver makes it raise (`Pending.fail`). A cancelled one then waits for the next record of its call or
  run, so that effects cut in one pass of the loop settle in the recorded order.
* `body_over`: a body that has ended without a record. It waits in `bodies` for the next record of its call; the driver
  may release it earlier, when other calls wait for the limits it holds.

The loop calls `before_step` before each step of a task, and `choose` to select the next task.

The engine and the loop call the replay in the middle of their steps. An error of the replay's code would be taken
there for one of the run, or be lost. So each such function is `guarded`: its error is kept as `fault` and ends the
replay, and `Replaying` raises it.

Facts: `cursor`, `appended`, `over`, `divergence`, `fault`, and the waiting effects (`waiting`, `pending`, `bodies`).
Indices, which `enter` makes from the recorded segment: `ended_calls`, used up in the replay, `bodies_over` and
`queued`.

Invariants: until `over`, `appended` has one record for each record before `cursor`. The cursor moves in `_accept` and
`enter` only. A released index stays released (`_released`), and an answer is given once (`_claimed`). Time moves
forward only.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import anyio
import attrs

from agentloop import records as r
from agentloop._core.failure_choice import Failure, class_of_summary
from agentloop._core.inbox import make_result
from agentloop._core.next_action import next_action
from agentloop._engine.calls.background import open_background, tell_nothing
from agentloop._engine.close_segment import UNJUDGED
from agentloop._engine.runtime.live_run import LiveRun, loop_state
from agentloop._engine.runtime.resources import HeldResource, Resources
from agentloop.exceptions import ReplayDivergence, StateError
from agentloop.items import UserMessage
from agentloop.lab._recorded_errors import rebuilt
from agentloop.limits import Limit, Rate
from agentloop.outcomes import FROM_ABOVE
from agentloop.testing.replaying._queue import RecordedQueue
from agentloop.testing.replaying._recorded import (
    GIVEN,
    Call,
    Leniency,
    Path,
    RecordedRun,
    RecordedSegment,
    call_of,
    compared,
    ends_from_outside,
    is_cut_from_outside,
)
from agentloop.testing.replaying._words import explained
from agentloop.testing.simulation._asyncio_loop import DeterministicLoop
from agentloop.testing.simulation.event_loop import waiting

if TYPE_CHECKING:
    from agentloop._engine.runtime.log import Log

SLACK = 0.005
"""Seconds by which a record may be later than its cause: the loop was busy."""
CLEARLY = 0.01
"""Seconds between two records in which something else must have taken the time."""
BEFORE_TIMERS = 1e-6
"""Distance in seconds at which the clock stops before a timer that isn't due yet."""
_HOOKS = ("end hooks", "on_run_end")
CUT_OFF = (*FROM_ABOVE, "sibling")


Moments: TypeAlias = Mapping[int, tuple[int, int]]
"""By number of the record of an end from outside, when it came: the number of the record that was due then, and the
steps that tasks had taken since; with none, in the step of the record before. `Replaying` tries them."""


@attrs.define(eq=False)
class Pending:
    """An effect without its own record: it was cut off, or raised. Owned by `ReplayLog.cut_off`.

    `cancelled` is True if the log shows that it was cut off: such an effect never raises.
    """

    path: Path
    call_id: str | None
    what: str
    cancelled: bool = False
    error: BaseException | None = None
    raised: anyio.Event = attrs.field(factory=anyio.Event)

    def fail(self, error: BaseException) -> None:
        """Make the effect raise *error*."""
        self.error = error
        self.raised.set()

    def __str__(self) -> str:
        where = "/".join([*self.path, *([self.call_id] if self.call_id else [])])
        return f"{self.what} of {where}" if where else self.what


class NoVerdict(Exception):
    """A guardrail has returned, and the crash that cut the segment off came before the record of its verdict."""


@attrs.define(eq=False)
class _RecordedBody:
    """A body that has ended and waits for the record of its call at `index`. Owned by `ReplayLog.body_over`.

    `release_refs` becomes True when the driver lets the body release its limits before that record.
    """

    index: int
    event: anyio.Event = attrs.field(factory=anyio.Event)
    release_refs: bool = False


@attrs.define(eq=False)
class _ResourceStandIn:
    """Placeholder of a resource that a nested run closes: waits for the run's end at record `index`."""

    log: ReplayLog
    index: int

    async def wait(self) -> None:
        await self.log.until(self.index, "leaving the resources")

    def enter(self, resources: Resources) -> None:
        """Become one of *resources* that was entered: a replay has none, only their times."""
        left: Any = self
        held = HeldResource(nullcontext, left=left, begun=True, ready=True)
        held.settled.set()
        resources.held = {**resources.held, self: held}


class ReplayLog:
    """The position of a replay in a recorded run, and the effects that wait. See the theory at the module's head.

    One for each attempt. The tasks of the replayed run and the driver change it, all on one loop.
    """

    def __init__(self, recorded: RecordedRun, moments: Moments) -> None:
        self.whole = recorded
        self.moments = moments
        self.steps: dict[int, int] = {}
        """By number of a record, the steps that tasks have taken while it was due."""
        self.recorded = recorded
        """The log up to the end of the segment, if that is imagined (`RecordedRun.imagine_end`); else the whole log."""
        self.records = recorded.records
        self.entry: RecordedSegment = recorded.entries[0]
        self.cursor = 0
        """Number of the due record."""
        self.appended: list[r.Record] = []
        self.divergence: ReplayDivergence | None = None
        self.fault: Exception | None = None
        """The first error of the replay's own code: `Replaying` raises it."""
        self.over = False
        """True once nothing is compared any more: the replay has diverged or failed, or the log ends here."""
        self.log: Log | None = None
        self.stop: Callable[[], None] = lambda: None
        """Callback of the driver: ends the replayed run."""
        self.turn_is_over: Callable[[], None] = lambda: None
        """Callback of the driver: makes the run end after its turn."""
        self.pending: list[Pending] = []
        self.waiting: dict[int, list[tuple[anyio.Event, str]]] = {}
        self.bodies: list[_RecordedBody] = []
        self.ends_held: set[Path] = set()
        """Paths of nested runs that `hold_end` has handled."""
        self.cut_exits: set[int] = set()
        """Numbers of the records of resources of nested runs whose closing was cut: `insert_cuts` appends them."""
        self.unheld: set[Call] = set()
        """Calls whose bodies release their limits as soon as they end, before their record is due."""
        self.live_call: Callable[[Call], Any] = lambda call: None
        self.live_run: Callable[[Path], Any] = lambda path: None
        self._claimed: set[int] = set()
        self._released: set[int] = set()
        self.beginning: set[Path] = set()
        """Paths of runs that are about to begin a turn: they look into the inbox for input that is due before it."""
        self.unfiltered: set[tuple[Path, int]] = set()
        self.standins: set[Path] = set()
        self._inserting = False
        self._clock_offset = 0.0
        self.cause_end: Callable[[], None] = lambda: None
        """Callback of the driver: causes the cancellation or the deadline of the due record."""
        self.ended_calls: dict[int, list[Call]] = {}
        """By number of the first record that shows it, the calls that timed out."""
        self.bodies_over: dict[Call, int] = {}
        """By call, number of the first record after the end of a body whose end has no record."""
        self.queued: dict[tuple[Path, int], tuple[int, float]] = {}
        """By turn, number of the first record after its calls were queued, and the time of queueing."""
        self.stops: dict[str, tuple[int, int]] = {}
        """By task key of its owner, the numbers of the first records after a call's failure and after the owner stopped
        the batch for it; used up when the owner's step is chosen."""
        self.hooks_raising: dict[Call, str] = {}
        """By call whose end hooks raised, the text of the error; empty if the log doesn't have it."""
        self.runs_failing: dict[str, int] = {}
        """By task key of a run whose hook raises, the number of its next record: the hook had raised before that."""
        self.end_call: Callable[[Call], Any] = lambda call: None
        self.expire_waiting: Callable[[], None] = lambda: None
        """Callback of the driver: settles the calls that the due records show to have waited too long."""
        self.cancel_run: Callable[[], None] = lambda: None
        """Callback of the driver: cancels the run without a record of it."""
        self.stop_run: Callable[[], None] = lambda: None
        """Callback of the driver: cancels the run, which appends the record of it where it notices."""
        self.cancels_at = math.inf
        """Number of the record at which the run is cancelled that has, or will have, the record of it elsewhere."""
        self.stirred = False
        """True if `before_step` changed something before the current step: then not every task waits any more."""
        self.references: dict[Call, list[str]] = {}
        self.limited: defaultdict[Limit, set[str]] = defaultdict(set)
        """By shared limit of the replayed agents, the names of the tools that it limits."""
        self.asked_before_admission = False
        """True if guardrails on the input of tools are asked before an approval, and so before an admission."""
        self.admissions: dict[Call, tuple[int, float | None]] = {}
        """By call, the number of the first record that shows its admission or its end, and when it was queued."""
        self.queue = RecordedQueue(self)
        self.restore_tools: Callable[[Path, str, Any], Any] = lambda path, place, answer: None
        """Function of the replayed agents: makes the tools that the recorded answer of a source describes."""
        self._calls_by_key = {"/".join((*path, call_id)): (path, call_id) for path, call_id in recorded.calls}

    # -- calls under shared limits

    def limits_of(self, path: Path, call_id: str) -> list[Limit]:
        """Return the shared limits of a call that may not have been made yet: tools of one name have the same."""
        tool = self.recorded.tools.get((path, call_id))
        return [limit for limit, tools in self.limited.items() if tool in tools]

    def admit_held(self) -> None:
        """Admit the calls that have waited for the record that is due now."""
        if not self.over and self.queue.holds_calls:
            loop_state().pump.pump()

    def admit_late(self) -> None:
        """Admit the calls that the log shows to have been admitted as the run was being ended, which is due now."""
        if late := self.recorded.calls_admitted_late(self.entry):
            tools = {self.recorded.tools[call] for call in late}
            rates = (limit for limit, names in self.limited.items() if isinstance(limit, Rate) and names & tools)
            self.queue.admit_late(late, rates)
            loop_state().pump.pump()

    def _let_rates_have_room(self) -> None:
        """Let time pass up to the moment at which a rate gets room, if the due record is later, and no timer is before.

        What the waiting call lacks from then on is in its record.
        """
        pump = loop_state().pump
        while 0 < (room := pump.admission.next_room() - anyio.current_time()) < self.ahead(self.cursor):
            if (timer := waiting().next_timer()) is not None and timer < room:
                return
            pass_time(room)
            pump.pump()

    # -- segments and time

    def enter(self, entry: RecordedSegment) -> None:
        """Reset the position to the beginning of *entry*. Must run on the loop that replays it: reads its clock."""
        self.recorded, self.entry = self.whole.imagine_end(entry)
        self.records, entry = self.recorded.records, self.entry
        self.over = False
        self.pending, self.waiting, self.bodies = [], {}, []
        self.unheld = set()
        self.cancels_at = math.inf
        self._tried = {due for place, (due, _) in self.moments.items() if entry.start <= due < place < entry.stop}
        self.ends_held, self.cut_exits, self.beginning = set(), set(), set()
        self.cursor = entry.start
        self.ended_calls = self.recorded.calls_timed_out(entry)
        self.bodies_over = self.recorded.bodies_over(entry)
        self.queued = self.recorded.batches_queued(entry)
        self.hooks_raising = self.recorded.hooks_raising(entry)
        stopped = self.recorded.batches_stopped(entry, self.hooks_raising)
        self.stops = {"/".join(path): places for path, places in stopped.items()}
        self.admissions = self.recorded.admissions(entry, asked_before=self.asked_before_admission)
        self.queue = loop_state().pump.admission = RecordedQueue(self)
        self._clock_offset = self.records[entry.start].at - anyio.current_time()

    def wall(self) -> float:
        """Return the recorded time of the due record, in seconds of wall-clock time."""
        at: float = self.guarded(self._find_time, 0.0)()
        return at

    def _find_time(self) -> float:
        return self.records[min(self.cursor, len(self.records) - 1)].at

    def ahead(self, index: int) -> float:
        """Return the seconds from now on the clock to the recorded time of record *index*; negative if it is past."""
        return self.records[index].at - self._clock_offset - anyio.current_time()

    def hurry_on(self) -> bool:
        """Let time pass up to the due record, past timers too. Return False if no time passed."""
        seconds = self.ahead(self.cursor)
        if seconds <= 0:
            return False
        pass_time(seconds)
        loop_state().pump.pump()  # on a real loop another run may have dispatched waiting calls at this moment
        return True

    def come_up(self, at: float | None = None) -> None:
        """Let time pass up to the due record, or to the time *at*, but not up to the next timer.

        A record counts as earlier than a timer of about the same time, since it was written a little after its event.
        """
        if at is None:
            self._let_rates_have_room()
        seconds = self.ahead(self.cursor) if at is None else at - self._clock_offset - anyio.current_time()
        timer = waiting().next_timer()
        if timer is not None:
            seconds = min(seconds, timer - BEFORE_TIMERS)
        if seconds > 0:
            pass_time(seconds)

    @property
    def due(self) -> r.Record | None:
        """The due record, or None at the end of the segment."""
        return self.records[self.cursor] if self.cursor < self._end else None

    @property
    def _end(self) -> int:
        """The number of records up to the end of the segment, without imagined ones."""
        return self.entry.stop - self.entry.imagined

    # -- the log

    def expect(self, record: r.Record) -> r.Record | None:
        """Compare *record* with the due one, and return the record to append instead: with the recorded times.

        None appends nothing. On a difference the replay has diverged; *record* is returned as it is.
        """
        expected: r.Record | None = self.guarded(self._expect, record)(record)
        return expected

    def _expect(self, record: r.Record) -> r.Record | None:
        if self.over:
            return record
        if self._inserting:
            self._inserting = False
            return self._accept(record)
        while (wanted := self.due) is not None:
            assert self.log is not None
            marked = self.log.state.mark(record)
            merged, difference = compared(wanted, record, marked, self._find_leniency(wanted))
            if difference is None:
                return self._accept(merged)
            if isinstance(record, r.CleanupCut) and record.section in _HOOKS:
                return None  # the recorded run had no such hooks, or they had returned
            inserted = isinstance(wanted, (*GIVEN, r.GraphChanged, r.CleanupCut))
            if not inserted and not self.is_of_summary(wanted) and not self.is_end_too_late():
                self.diverge(record, explained(wanted, record, difference))
                return record
            self.insert()
        if not self.entry.ended:  # the log was cut off after a record that was inserted
            return record
        self.diverge(record, "The log ends here, and the replay goes on.")
        return record

    def insert(self) -> None:
        """Append the due record as it was recorded: the caller or a body appended it, and neither is replayed."""
        assert self.log is not None
        wanted = self.due
        assert wanted is not None
        self._inserting = True
        self.log.append(wanted)
        if isinstance(wanted, r.InputAdded) and wanted.call_id is not None:
            self._fail_in_background(wanted)

    def _fail_in_background(self, result: r.InputAdded) -> None:
        """Let the run raise the fatal error of the background body whose *result* it has now, if it ended by that one.

        Such a body gives no output, and the run raises its error when it next looks: it shows no input before, and
        begins no turn. No later body can have ended it.
        """
        end, live = self.find(r.RunEnded, result.path), self.live_run(result.path)
        ended: Any = None if end is None else self.records[end]
        if live is None or ended is None or ended.status != "failed" or class_of_summary(ended.error or "") is not None:
            return
        rest = [one for one in self.records[self.cursor : end] if one.path == result.path]
        goes_on = [one for one in rest if isinstance(one, r.InputShown | r.TurnStarted) or _tells_nothing(live, one)]
        if _tells_nothing(live, result) and not goes_on:
            open_background(live).fail(Failure(index=0, error=rebuilt(ended.error, fatal=True), phase="body"))

    def is_of_summary(self, record: r.Record) -> bool:
        """Tell whether *record* is of the run that made a summary of a history: its path names no call.

        A replay takes the history from the record that replaced it. It makes no such run, and inserts its records.
        """
        assert self.log is not None
        outer = self.log.state.at(record.path[:-1]) if record.path else None
        return outer is not None and record.path[-1] not in outer.calls

    def _accept(self, record: r.Record) -> r.Record:
        self.appended.append(record)
        self.cursor += 1
        if self.due is None:
            if not self.entry.ended:
                self.end()
            return record
        self.hold_end(record.path)
        if isinstance(record, r.BodyEnded):
            self.skip_end_hooks(record.path, record.call_id)
        if self.is_stopped_by_caller():
            self.turn_is_over()
        self.end_calls()
        self.release_bodies()
        self.release()
        return record

    def is_end_due(self) -> bool:
        """Tell whether the due record is of a cancellation or a deadline, which the driver causes."""
        return isinstance(self.due, r.CancelRequested | r.DeadlinePassed) and not self.is_end_too_late()

    def is_end_too_late(self) -> bool:
        """Tell whether the due record is of a cancellation of the run that ended nothing.

        The run had timed out already, or had failed: then only the last steps of its end follow. Or it is cancelled.
        """
        due = self.due
        if not isinstance(due, r.CancelRequested) or due.call_id is not None:
            return False
        if self.cancels_at <= self.cursor:
            return True
        end = self.find(r.RunEnded, ())
        if end is None or self.records[end].status != "failed":  # type: ignore[union-attr]  # as its kind says
            return False
        return self.ends_by_timeout() or all(
            isinstance(one, r.SessionSaved | r.CleanupCut) for one in self.records[self.cursor + 1 : end]
        )

    def cancel_unseen(self) -> None:
        """Cancel the run now if that came some records before, or after, the one of it."""
        if self.over:
            return
        if self.cursor in self._tried:  # the run itself appends the record, where it notices
            self._tried.remove(self.cursor)
            return self.stop_run()
        last = self.records[self.cursor - 1]
        if isinstance(last, r.DeadlinePassed) and self.cancels_at == math.inf and self._overtakes_deadline():
            self.cancels_at = self.cursor
        if self.cancels_at == self.cursor:
            self.cancel_run()

    def _overtakes_deadline(self) -> bool:
        """Tell whether the run was cancelled in the step that noted its deadline: then its calls name the caller."""
        cut = self.find(r.CallSettled, (), lambda one: one.outcome.cancelled_by in FROM_ABOVE)
        by: Any = None if cut is None or cut >= self._end else self.records[cut]
        return by is not None and by.outcome.cancelled_by == "parent"

    def find_stop_before_cancel(self) -> int | None:
        """Return the number of the record behind the first call that a failure stopped, where the cancellation that is
        due was noticed before the owner of the batch, which was ready to stop it, took its step. None if it wasn't.
        """
        for owner, (failed, stopped) in self.stops.items():
            index = self.next_of_run(tuple(owner.split("/")) if owner else ())
            if (
                index is not None
                and failed <= self.cursor <= stopped
                and _is_unstarted_cut(self.records[index], ["sibling"])
            ):
                return index + 1
        return None

    def ends_by_timeout(self) -> bool:
        """Tell whether the segment's run timed out."""
        end = self.find(r.RunEnded, ())
        error = None if end is None else self.records[end].error  # type: ignore[union-attr]  # as its kind says
        return error is not None and error.startswith("RunTimeoutError(")

    def may_time_out(self, path: Path) -> bool:
        """Tell whether the nested run at *path* may time out: its end or a call of it says so, or it has no end."""
        end = self.find(r.RunEnded, path)
        if end is None or str(self.records[end].error).startswith("RunTimeoutError("):  # type: ignore[union-attr]
            return True
        return self.is_call_cut_by_deadline(path)

    def is_call_cut_by_deadline(self, path: Path) -> bool:
        """Tell whether a call of the run at *path*, which is to settle, says that a deadline ended it."""
        return self.find(r.CallSettled, path, lambda one: one.outcome.cancelled_by == "deadline") is not None

    def cause_end_at_once(self) -> None:
        """Cause the due cancellation right after the record before it, if it came soon after that."""
        # The step that appended the last record may still change the calls of its own batch: another equal call leads,
        # or the next segment is queued. The owner skips calls in its own step, so `before_step` does that here.
        if self.due is not None and self.due.path != self.records[self.cursor - 1].path:
            self._expire_at_once()
        while not self.over and self.is_end_due() and self._comes_now(self._comes_at_once):
            cursor = self.cursor
            self.come_up()
            self.cause_end()
            if self.cursor == cursor:
                break

    def _comes_now(self, guess: Callable[[], bool]) -> bool:
        """Tell whether the due end comes now: at the moment that is tried, or else if *guess* says so."""
        if self.cursor not in self.moments:
            return guess()
        return self.moments[self.cursor] == (self.cursor, self.steps.get(self.cursor, 0))

    def _comes_at_once(self) -> bool:
        """Tell whether the due cancellation came before any other step of a task than the current one."""
        if not self.entry.ended and self.cursor + 1 == self._end:
            return True  # a crash came right after it: no other step has left a record
        if self.cursor in self.waiting or self._has_calls_to_see() or self._has_rewritten() or self._has_paused():
            return False
        settling = isinstance(self.records[self.cursor - 1], r.CallSettled | r.CleanupCut) and self._gap() <= SLACK
        return settling or self._does_nothing_more() or self._is_last_call_over()

    def _has_paused(self) -> bool:
        """Tell whether the run of the last record was about to pause when its end was noticed.

        Its calls were over but for those that wait for answers, or whose nested runs do. Its end leaves these open.
        """
        before = (
            record for record in reversed(self.appended) if not isinstance(record, r.VerdictGiven | r.CallAnswered)
        )
        last = next(before)  # what is given to a run that is about to pause changes nothing about that
        path = last.path[:-1] if isinstance(last, r.RunEnded) else last.path
        following, state = self.next_of_run(path), self.log.state.at(path) if self.log is not None else None
        if following is None or state is None or not self._is_end_next(following):
            return False
        if isinstance(last, r.RunResumed):
            return False  # it has yet to come to its calls, and those that pause
        return any(call.outcome is None and self._is_paused(path, call.call.call_id) for call in state.batch)

    def _is_paused(self, path: Path, call_id: str) -> bool:
        """Tell whether a call waits for its answer, or its nested run has paused."""
        assert self.log is not None
        run, nested = self.log.state.at(path), self.log.state.at((*path, call_id))
        call = None if run is None else run.calls[call_id]
        asked = call is not None and call.question is not None and self._is_left_open(path, call_id, call.answer)
        return asked or (nested is not None and nested.ended is not None and nested.ended.status == "interrupted")

    def _is_left_open(self, path: Path, call_id: str, answer: object) -> bool:
        """Tell whether a call that has asked does nothing more: it has no *answer*, or the run has yet to see it."""
        return answer is None or (self.entry.ended and self.next_of_call(path, call_id) is None)

    def _is_paused_cut(self, record: r.Record | None) -> bool:
        """Tell whether *record* settles a call that had paused, as its run was ended from outside."""
        if not isinstance(record, r.CallSettled) or record.outcome.cancelled_by not in FROM_ABOVE:
            return False
        return self._is_paused(record.path, record.call_id)

    def _expire_at_once(self) -> None:
        """Settle the calls that the due records show to have waited too long, if they came soon after the last one."""
        if not self.over and self.is_expiry_due() and self._gap() <= SLACK:
            self.hurry_on()
            self.expire_waiting()

    def _has_calls_to_see(self) -> bool:
        """Tell whether a call has more to do before the due record: its body ends, or it begins, and asks a guardrail
        whose answer comes after.
        """
        if self._bodies_to_end():
            return True
        path = self.records[self.cursor - 1].path
        for (of, _), places in self.recorded.calls.items():
            first = self.recorded.first(places, self.entry.start, self.entry.stop) if of == path else None
            if first is not None and first > self.cursor and isinstance(self.records[first], r.GuardrailSettled):
                return True
        return False

    def _is_last_call_over(self) -> bool:
        """Tell whether the last record is of a call that would start in this step, and was cancelled before its start;
        or of one that would settle in this step.
        """
        last = self.records[self.cursor - 1]
        call = call_of(last)
        if call is None or isinstance(last, r.CallSettled):
            return False
        if isinstance(last, r.GuardrailSettled) and last.verdict == "RaiseException":
            return True  # its failure settles the call in this step
        index = self.next_of_call(*call)
        found: Any = None if index is None else self.records[index]
        if isinstance(last, r.BodyEnded) and last.failed and isinstance(found, r.CallSettled):
            # It raised in its cleanup, which something else had caused: that would be its outcome.
            return found.outcome.cancelled_by in FROM_ABOVE and not found.outcome.body_finished
        return found is not None and _is_unstarted_cut(found, FROM_ABOVE)

    def insert_given(self) -> None:
        """Append the due records of what came from outside, as recorded, at once: before the run looks for them.

        The run takes no input between its look into the inbox and its next record, so it had seen them all if the log
        has one there. So are verdicts and answers, unless it paused next: it may not have seen them. Not so an input
        behind one that was shown, if no other was shown next, or if the run would have ended: it had looked, and waited
        for its reader. Before the turn it looked again, for other input: see `ReplayEffects.begin_turn`.
        """
        while not self.over and isinstance(self.due, GIVEN) and self._is_taken_next(self.due):
            self.insert()

    def _is_taken_next(self, given: r.InputAdded | r.InputWithdrawn | r.CallAnswered | r.VerdictGiven) -> bool:
        """Tell whether *given*, the due record, was there when the run took its next step."""
        if isinstance(given, r.CallAnswered | r.VerdictGiven):
            return self._is_seen_next(given.path, answers=isinstance(given, r.CallAnswered))
        last = self.records[self.cursor - 1]
        if not isinstance(last, r.InputShown):
            return True
        due = self.records[self.cursor : self.entry.stop]
        following = next((one for one in due if not isinstance(one, GIVEN)), None)
        return last.path in self.beginning and (isinstance(following, r.InputShown) or is_of_input(following))

    def _is_seen_next(self, path: Path, *, answers: bool) -> bool:
        """Tell whether the run at *path*, or the one around it if it has paused, sees what it is given: it continues.

        A call that is answered in the step in which it asks doesn't pause. Only if the run acts on an answer next, or
        was cut off, does the order of the two say nothing.
        """
        index = self.find(object, path, lambda record: not isinstance(record, GIVEN))
        if index is None:
            return bool(path) and self._is_seen_next(path[:-1], answers=answers)
        following = self.records[self.skip_last_steps(index)]
        if not answers or isinstance(following, r.RunResumed) or is_cut_from_outside(following):
            return not (isinstance(following, r.RunEnded) and following.status == "interrupted")
        gifts = self.records[self.cursor : index]
        return call_of(following) in [(one.path, one.call_id) for one in gifts if isinstance(one, r.CallAnswered)]

    def insert_cuts(self) -> None:
        """Append the due records of resources whose closing was cut, as recorded: a replay has only their placeholders.

        At once: what a late loop did in the same pass must come after the end of the nested run, if the log shows so.
        """
        while not self.over and self.cursor in self.cut_exits:
            self.insert()

    def _gap(self) -> float:
        """Return the seconds between the last record and the due one."""
        return self.records[self.cursor].at - self.records[self.cursor - 1].at if self.cursor else 0.0

    def _does_nothing_more(self) -> bool:
        """Tell whether the run of the last record does nothing more: it would continue without waiting for the log.

        A nested run that the timeout of its call ended is over, and its call has yet to see that it timed out; so is
        one that was interrupted, whose call has yet to see that it waits: then the end of its run doesn't settle it.
        """
        last = self.records[self.cursor - 1]
        path = last.path
        around = self.settled(path[:-1], path[-1]) if path else None
        if path and isinstance(last, r.RunEnded) and last.status == "interrupted":
            return around is not None
        if around is not None and around.outcome.status == "timed_out" and self.next_of_run(path) is None:
            return False
        following = self.next_of_run(path)
        if following is None or following >= self._end or self._is_end_next(following):
            return True
        return self._gap() <= SLACK and self._is_cut_behind(last, self.records[following])

    def _is_end_next(self, index: int) -> bool:
        """Tell whether record *index* is the end of a run from outside, or one of the last steps before it."""
        return self._ends_from_outside(self.skip_last_steps(index))

    def _is_cut_behind(self, last: r.Record, following: r.Record) -> bool:
        """Tell whether the end of a run came in the step that appended *last*: a question was answered, and what
        follows in the run is that it was cut.
        """
        if isinstance(last, r.GuardrailSettled) and last.stage == "input" and last.verdict == "passed":
            return False  # the turn continued, and came to its calls
        if isinstance(last, r.CallbackReturned) and call_of(last) is None and isinstance(following, r.CallSettled):
            return False  # so it did here
        answered = isinstance(last, r.GuardrailSettled | r.CallbackReturned | r.ApprovalRequested | r.AnswerRequested)
        return answered and is_cut_from_outside(following)

    def _has_rewritten(self) -> bool:
        """Tell whether the call that the last record judged has yet to take the arguments with which it settled."""
        last = self.records[self.cursor - 1]
        if not isinstance(last, r.GuardrailSettled) or last.verdict != "Rewrite" or last.call_id is None:
            return False
        settled, live = self.settled(last.path, last.call_id), self.live_call((last.path, last.call_id))
        return settled is not None and live is not None and settled.receipt != live.arguments.receipt

    def skip_last_steps(self, index: int) -> int:
        """Return the number of the first record of its run from *index* on that isn't of the last steps of a run.

        Of a run that failed by itself all of them are: its end saves what a turn would have saved.
        """
        places = self.recorded.paths[self.records[index].path]
        end = self.recorded.first(
            places, index, self.entry.stop, lambda one: not isinstance(one, r.SessionSaved | r.CleanupCut)
        )
        if end is None:
            return index
        last: Any = self.records[end]
        if isinstance(last, r.RunEnded) and last.status == "failed" and not self._ends_from_outside(end):
            return end
        saved = self.recorded.first(places, index, end, self._has_saved_itself)
        return end if saved is None else saved

    def _has_saved_itself(self, record: r.Record) -> bool:
        """Tell whether *record* says that the run, and not its end, wrote to the session.

        It did so if it had come to its candidate for the final output, or to its last turn, or has yet to look for one:
        its end wouldn't.
        """
        live = self.live_run(record.path) if isinstance(record, r.SessionSaved) else None
        if live is None or live.state.tripped is not None:
            return False
        return isinstance(next_action(live.state, live.view), UNJUDGED)

    def before_end(self, index: int, start: int | None = None) -> int:
        """Return *index*, or the number of the first record from *start* on of an end of the run, if that is earlier.

        *start* is by default the due record.
        """
        for place in range(self.cursor if start is None else start, index):
            if ends_from_outside(self.records[place]):
                return place
        return index

    def find_end_from_outside(self) -> r.Record | None:
        """Return the next record of an end of the run from outside in this segment, or None."""
        following = self.records[self.cursor : self.entry.stop]
        return next((one for one in following if ends_from_outside(one)), None)

    def is_expiry_due(self) -> bool:
        """Tell whether the due record settles a call that waited too long: its timer may have been late."""
        return _has_expired(self.due)

    def is_expiry_next(self) -> bool:
        """Tell whether the record after the due one settles a call that waited too long."""
        return self.cursor + 1 < self.entry.stop and _has_expired(self.records[self.cursor + 1])

    def admits_more(self, path: Path, turn: int) -> bool:
        """Tell whether calls of this turn may be admitted after the last appended record, as far as limits have room.

        Not if the log shows that none was: the consumer of the stream held them until they were cancelled.
        """
        calls, places = self.recorded.calls, self.recorded.paths.get(path, [])

        def has_started(call_id: str, before: int) -> bool:
            return any(isinstance(self.records[at], r.CallStarted) for at in calls[path, call_id] if at < before)

        state = self.log.state.at(path) if self.log is not None else None
        order = {call.call.call_id: index for index, call in enumerate(state.batch)} if state is not None else {}
        if self.over or any(has_started(one, self.entry.start) for one in order if (path, one) in calls):
            return True  # calls of an earlier run segment continue without a second start
        if state is not None and any(call.answer is not None and call.outcome is None for call in state.batch):
            return True  # so do calls that were answered
        if any(self.find(r.RunResumed, (*path, one)) is not None for one in order):
            return True  # so do those whose nested runs have paused, and are resumed
        cut: list[tuple[int, int, float]] = []
        expired, paused = -1, False
        for place in places[bisect_left(places, self.cursor) : bisect_left(places, self.entry.stop)]:
            record: Any = self.records[place]
            call = call_of(record)
            if record.turn != turn or call is None:
                continue
            if has_started(call[1], self.cursor):
                # Nothing follows about the admission of others. But calls that wait settle before one that has paused.
                paused = paused or self._is_paused(*call)
                continue
            if paused and _is_unstarted_cut(record):
                return True
            if _has_expired(record):
                expired = max(expired, order.get(call[1], -1))
                continue
            if not isinstance(record, r.CallSettled) or record.outcome.status != "cancelled":
                return True
            cut.append((order.get(record.call_id, 0), place, record.outcome.cancelled_at or 0.0))
        if any(index < expired for index, *_ in cut) or self._is_left_before(expired, state, path):
            return True  # it had been queued as long, so it would have expired too
        return not self._is_cut_in_one_step(cut)

    def _is_cut_in_one_step(self, cut: Sequence[tuple[int, int, float]]) -> bool:
        """Tell whether calls of a turn may have been cancelled in one step: each with its index in the turn, the number
        of its record, and the time at which it was cancelled.

        Waiting calls are settled in one step and in model order when their batch is stopped. Otherwise calls had been
        admitted, and were cancelled before their first step; so if one noticed the end of the run before the others.
        """
        stopped_at = max((at for *_, at in cut), default=0.0)
        return all(at == stopped_at for *_, at in cut) and all(
            index < later and (following == place + 1 or place + 1 >= self._end)
            for (index, place, _), (later, following, _) in pairwise(cut)
        )

    def _is_left_before(self, expired: int, state: Any, path: Path) -> bool:
        """Tell whether a call before the one of this number in the batch is left without any outcome."""
        calls = [] if state is None else state.batch[: max(expired, 0)]
        left = (call.call.call_id for call in calls if call.outcome is None)
        return any(self.next_of_call(path, call_id) is None for call_id in left)

    def end_calls(self) -> bool:
        """End the calls that timed out before the due record. Return True if any call was ended."""
        ended = False
        for place in [place for place in self.ended_calls if place <= self.cursor]:
            due = self.ended_calls.pop(place)
            left = [call for call in due if not self._are_calls_queued(call, place) or not self.end_call(call)]
            if left:
                self.ended_calls[place] = left
            ended = ended or len(left) < len(due)
        return ended

    def _are_calls_queued(self, call: Call, place: int) -> bool:
        """Tell whether the run nested in *call* has come to its calls, if record *place* settles one of them."""
        record, nested = self.records[place], (*call[0], call[1])
        if not isinstance(record, r.CallSettled) or record.path[: len(nested)] != nested:
            return True
        return self.live_call((record.path, record.call_id)) is not None

    def is_stopped_by_caller(self) -> bool:
        """Tell whether the caller has stopped the run after its turn: only its last steps follow in the log.

        Such an end cuts nothing, unlike a cancellation, behind which the log has the same steps.
        """
        if self.live_run(()).end_recorded is not None:
            return False
        for index in range(self.cursor, self.entry.stop):
            record = self.records[index]
            if not isinstance(record, r.SessionSaved | r.CleanupCut) or record.path:
                return isinstance(record, r.RunEnded) and not record.path and record.status == "cancelled"
        return False

    def _find_leniency(self, wanted: r.Record) -> Leniency:
        unknown = (wanted.path, wanted.turn) in self.unfiltered or self.cursor > self.recorded.hidden_from
        return Leniency(digest=unknown, final_output=wanted.path in self.standins)

    def diverge(self, got: r.Record | None, why: str) -> None:
        """End the replay with a divergence: *got*, or no record at all, came in place of the due record."""
        self.divergence = ReplayDivergence(self.cursor, self.due, got, why)
        self.end()

    def end(self) -> None:
        """Stop comparing: release every waiting effect, and end the run."""
        self.over = True
        waiting, self.waiting = self.waiting, {}
        for events in waiting.values():
            for event, _ in events:
                event.set()
        self.stop()

    def keep_fault(self, error: Exception) -> None:
        """Keep *error*, of the replay's code, and end the replay: nothing else would wake what waits.

        Unless it has diverged: what comes then is no longer of a run that the log tells of.
        """
        if self.divergence is None:
            self.fault = self.fault or error
        self.end()

    def guarded(self, do: Callable[..., Any], otherwise: Any = None) -> Callable[..., Any]:
        """Return *do*, a function of the replay that the engine or the loop calls, which doesn't raise.

        Its error would be taken for one of the run, or would stop the loop: it is kept, and *otherwise* returned.
        """

        def called(*given: Any) -> Any:
            try:
                return do(*given)
            except Exception as error:
                self.keep_fault(error)
                return otherwise

        return called

    # -- waiting

    def release(self) -> bool:
        """Release the effects that wait for the due record or an earlier one. Return True if there were any."""
        due = sorted(index for index in self.waiting if index <= self.cursor)
        released = [one for index in due for one in self.waiting.pop(index)]
        for event, _ in released:
            event.set()
        return bool(released)

    def release_next(self, test: Callable[[r.Record], bool]) -> bool:
        """Release the effects that wait for the next later record, if this record passes *test*. Return True if so.

        Only if the effect of the due record has been released already.
        """
        later = min(self.waiting, default=None)
        if later is None or self.cursor not in self._released or not test(self.records[later]):
            return False
        self._released.add(later)
        for event, _ in self.waiting.pop(later):
            event.set()
        return True

    async def until(self, index: int, what: str = "a hook", *, in_time: bool = True) -> None:
        """Wait until record *index* is due; with *in_time*, at its recorded time.

        Cancellation: the wait is shielded. Not a checkpoint if the record is due already.
        """
        # The clock advances when the task resumes, not when it is released: the task that has just appended a record
        # may still have timers to set.
        while not self.over and index not in self._released and not self._is_due(index, in_time):
            event = anyio.Event()
            self.waiting.setdefault(index, []).append((event, what))
            with anyio.CancelScope(shield=True):
                await event.wait()
        self._released.add(index)

    def _is_due(self, index: int, in_time: bool = True) -> bool:
        """Tell whether record *index* was due or is due now; with *in_time*, let the clock reach it first."""
        if index != self.cursor:
            return index < self.cursor
        if in_time:
            self.come_up()
        return True

    async def body_over(self, path: Path, call_id: str, what: str) -> None:
        """Act as a body that has ended: wait until the next record of its call is due.

        The driver may release it earlier (`let_bodies_go`), since other calls start when it releases its limits. Then
        the end hooks of the call wait instead; if they have nothing to wait for, they are not called.

        Cancellation: the wait is shielded.
        """
        index = self.bodies_over.get((path, call_id), self.next_of_call(path, call_id))
        if index is None:
            if self.entry.ended:
                return
            index = self.entry.stop  # the crash came before
        body = _RecordedBody(index, release_refs=(path, call_id) in self.unheld)
        self.bodies.append(body)
        while not self.over and not body.release_refs and not self._is_body_due(index):
            self.waiting.setdefault(index, []).append((body.event, what))
            with anyio.CancelScope(shield=True):
                await body.event.wait()
            body.event = anyio.Event()
        self.bodies.remove(body)
        self.skip_end_hooks(path, call_id)

    def _is_body_due(self, index: int) -> bool:
        return index <= self.cursor

    def release_bodies(self) -> bool:
        """Release the bodies that had ended before the due record. Return True if there were any."""
        due = [body for body in self.bodies if body.index <= self.cursor and not body.event.is_set()]
        for body in due:
            body.event.set()
        return bool(due)

    def _bodies_to_end(self) -> list[Call]:
        """Return the calls whose bodies had ended before the due record, and haven't ended here."""
        if self.over:
            return []
        due = [(call, self.live_call(call)) for call, place in self.bodies_over.items() if place <= self.cursor]
        return [call for call, live in due if live is not None and live.phase == "body"]

    def let_bodies_go(self) -> bool:
        """Let the body whose call settles next release its limits before its record is due; False if there is none."""
        held = [body for body in self.bodies if not body.release_refs]
        if not held:
            return False
        first = min(held, key=lambda body: body.index)
        first.release_refs = True
        first.event.set()
        return True

    def hold_end(self, path: Path) -> None:
        """Make the end of the nested run at *path* wait for its record, if something else came before it.

        That is so if the end took time to close resources, or if other runs appended records: where a call had been
        admitted and not begun, the recorded run waited for its task, which a replay doesn't start. The end of the
        outermost run needs no placeholder: its hook `on_run_end` waits.
        """
        live = self.live_run(path)
        if not path or live is None or path in self.ends_held:
            return
        self.ends_held.add(path)
        end = self.find(r.RunEnded, path)
        if end is None:
            if not self.entry.ended:  # the crash came before the end, which may have taken time
                _ResourceStandIn(self, self.entry.stop).enter(live.resources)
            return
        before = [index for index in self.recorded.paths[path] if index < end]
        cut = {index for index in before if index >= self.cursor and _is_cut_exit(self.records[index])}
        self.cut_exits |= cut
        if cut or end - before[-1] > 1 or self.records[end].at - self.records[before[-1]].at > CLEARLY:
            _ResourceStandIn(self, end).enter(live.resources)

    def drop_end_hooks(self, path: Path, call_id: str) -> None:
        """Drop the end hooks of a call whose body has returned, if it settled in that step: then it had none."""
        index, live = self.next_of_call(path, call_id), self.live_call((path, call_id))
        found: Any = None if index is None else self.records[index]
        if isinstance(found, r.CallSettled) and found.outcome.status == "succeeded" and live is not None:
            live.hooked = ()

    def skip_end_hooks(self, path: Path, call_id: str) -> None:
        """Drop the end hooks of a call whose settlement is the next event: they would have nothing to wait for."""
        live = self.live_call((path, call_id))
        for index in range(self.cursor, self.entry.stop):
            record = self.records[index]
            if call_of(record) != (path, call_id):
                return
            if isinstance(record, r.CallSettled):
                if live is not None and (path, call_id) not in self.hooks_raising:
                    live.hooked = ()
                return

    async def known(self, index: int, what: str, *, in_time: bool = True) -> Any:
        """Wait until record *index* is due, and return it. Never returns once the replay is over."""
        await self.until(index, what, in_time=in_time)
        if self.over:
            await anyio.sleep_forever()  # the run is being ended
        return self.records[index]

    async def told(self, index: int | None, path: Path, call_id: str | None, what: str) -> Any:
        """Wait until record *index* is due, and return it. With no index the effect was cut off: see `cut_off`."""
        if index is None:
            await self.cut_off(path, call_id, what)
        return await self.known(index, what)

    async def cut_off(self, path: Path, call_id: str | None, what: str, *, cancelled: bool = False) -> NoReturn:
        """Wait until the effect is cancelled, or until the driver makes it raise. Never returns.

        Cancellation: a cancelled effect waits, shielded, until the next record of its call or run is due; then the
        cancellation is raised.

        Raises:
            BaseException: the error that the driver gave (`Pending.fail`).
        """
        pending = Pending(path, call_id, what, cancelled)
        self.pending.append(pending)
        try:
            await pending.raised.wait()
        except anyio.get_cancelled_exc_class():
            index = self._find_next_step(path) if call_id is None else self._find_next_of_cancelled(path, call_id)
            if index is not None:
                await self.until(self.before_end(index), what)  # noqa: ASYNC102 - shielded, and released in the end
                is_next = index == self.cursor + 1 < self.entry.stop
                if is_next and self.is_end_due() and isinstance(self.records[index], r.ModelFailed):
                    self.come_up()
                    self.cause_end()  # a guardrail cancelled the model's call, which noticed the end of the run
            raise
        finally:
            self.pending.remove(pending)
        assert pending.error is not None
        raise pending.error

    def _find_next_step(self, path: Path) -> int | None:
        """Return the number of the next record of a run without those of its input guardrails, which settle beside it.

        The end of the segment, if a crash came before the record.
        """
        index = self.find(object, path, lambda record: not is_input_guardrail(record))
        return self.entry.stop if index is None and not self.entry.ended else index

    def _find_next_of_cancelled(self, path: Path, call_id: str) -> int | None:
        """Return the number of the next record of a cancelled call; None if the call has started.

        A started call releases its limits, so that others may start, and its end hooks wait for the record instead.
        """
        places = self.recorded.calls.get((path, call_id), ())
        if any(isinstance(self.records[index], r.CallStarted) for index in places if index < self.cursor):
            return None
        return self.next_of_call(path, call_id)

    # -- finding records

    def find(
        self, kind: Any, path: Path, test: Callable[[Any], bool] = lambda _: True, *, claim: bool = False
    ) -> int | None:
        """Return the number of the next record of *kind* of the run at *path* in this segment, or None.

        With *claim*, records that an earlier call has claimed are skipped, and the found one is claimed.
        """
        places, start = self.recorded.paths.get(path), self.cursor

        def fits(record: r.Record) -> bool:
            return isinstance(record, kind) and test(record)

        while (index := self.recorded.first(places, start, self.entry.stop, fits)) is not None:
            if not claim or index not in self._claimed:
                break
            start = index + 1
        if claim and index is not None:
            self._claimed.add(index)
        return index

    def find_state_error(self, path: Path) -> Exception | None:
        """Return the StateError by which the run at *path* ends before it, or a run nested in it, does anything else.

        Such a run can continue elsewhere. None if it doesn't end so.
        """
        refusal: Exception | None = self.guarded(self._find_state_error)(path)
        return refusal

    def _find_state_error(self, path: Path) -> Exception | None:
        following = range(self.cursor, self.cursor if self.over else self._end)
        end = next((self.records[at] for at in following if self.records[at].path[: len(path)] == path), None)
        if not isinstance(end, r.RunEnded) or end.path != path or not end.resumable:
            return None
        if end.error is None or not end.error.startswith("StateError("):
            return None
        refusal = rebuilt(end.error)
        assert isinstance(refusal, StateError)
        return refusal

    def next_of_run(self, path: Path) -> int | None:
        """Return the number of the next record of the run at *path* in this segment, or None."""
        return self.recorded.first(self.recorded.paths.get(path), self.cursor, self.entry.stop)

    def next_of_call(self, path: Path, call_id: str, kind: Any = object) -> int | None:
        """Return the number of the next record of a call in this segment, or None."""
        return self.recorded.first(
            self.recorded.calls.get((path, call_id)),
            self.cursor,
            self.entry.stop,
            lambda record: isinstance(record, kind),
        )

    def settled(self, path: Path, call_id: str) -> r.CallSettled | None:
        """Return the coming settlement of a call, or None if the segment has none after the cursor."""
        index = self.next_of_call(path, call_id, r.CallSettled)
        found: r.CallSettled | None = None if index is None else self.records[index]  # type: ignore[assignment]
        return found

    # -- task order

    def before_step(self, task: object) -> None:
        """Cause the due event that belongs between two steps of the tasks: an end, an expiry, a cut of `ctx.cleanup`.

        The loop calls this before each step.
        """
        self.stirred = False
        if not self.over and self.is_expiry_due():
            cursor = self.cursor
            self._expire_at_once()
            self.stirred = self.cursor > cursor
        self.steps[self.cursor] = self.steps.get(self.cursor, 0) + 1
        if not self.over and self.is_end_due() and self._comes_now(lambda: self._comes_before(_task_of(task))):
            self.stirred = True
            self.cause_end()
        if not self.over and isinstance(self.due, r.CallSettled) and self.due.outcome.cancelled_by in CUT_OFF:
            self._hold_unstarted(_task_of(task))
        if not self.over and isinstance(self.due, r.CleanupCut) and self.due.section == "ctx.cleanup":
            self.stirred = True
            self.insert()  # a body appended it; bodies don't run here, and nothing else gives its moment
            self.release()

    def _comes_before(self, key: str | None) -> bool:
        """Tell whether the due end came before the next step of the task with this *key*, as far as the log shows."""
        return key is not None and (self._is_owner_over(key) or bool(key and not self._begins(key)))

    def _is_owner_over(self, key: str) -> bool:
        """Tell whether the run of the task with this *key* comes to its end in the step before which its end from
        outside is due.
        """
        call = self._calls_by_key.get(key)
        following = self.next_of_run((*call[0], call[1]) if call is not None else ()) if call or not key else None
        if following is None or self._gap() > SLACK or self._bodies_to_end() or key in self.stops:
            return False
        return self._is_end_next(following)

    def _ends_from_outside(self, index: int) -> bool:
        """Tell whether record *index* is the end of a run that was cancelled or timed out."""
        record = self.records[index]
        if not isinstance(record, r.RunEnded):
            return False
        return record.status == "cancelled" or (record.error or "").startswith("RunTimeoutError(")

    def _hold_unstarted(self, key: str | None) -> None:
        """Let the call of the task with this *key* wait for its own record, if it was cancelled before its start.

        Such calls settle after some steps of their tasks, in an order that the backend chose. An end hook makes them
        wait, as it does for calls that have started.
        """
        call = None if key is None else self._calls_by_key.get(key)
        live = None if call is None else self.live_call(call)
        if call is None or live is None or live.phase != "starting" or live.hooked:
            return
        index = self.next_of_call(*call)
        if index is not None and index != self.cursor and _is_unstarted_cut(self.records[index]):
            live.hooked = (live.run.agent.hooks.on_tool_end,)

    def _is_cut_before_first_step(self, key: str) -> bool:
        """Tell whether the task with this *key* is of a call that never started, and has not taken its first step."""
        call = self._calls_by_key.get(key)
        live = None if call is None else self.live_call(call)
        if call is None or live is None or live.phase != "starting" or live.begun:
            return False
        index = self.next_of_call(*call)
        return index is not None and _is_unstarted_cut(self.records[index], FROM_ABOVE)

    def _begins(self, key: str) -> bool:
        """Tell whether the call of the task with this key has begun, or does so after the due record."""
        for call, places in self.recorded.calls.items():
            if "/".join((*call[0], call[1])) == key:
                live = self.live_call(call)
                if live is None or live.phase != "starting":
                    return True
                following = self.recorded.first(places, self.cursor, self.entry.stop)
                found: Any = None if following is None else self.records[following]
                return not isinstance(found, r.CallSettled) or found.outcome.status != "cancelled"
        return True

    def choose(self, labels: Sequence[str]) -> int:
        """Return the index of the ready task that runs next: the one whose record is due, if it is ready."""
        tasks = [task_key(label) for label in labels]
        wanted = None if self.over else self.due
        for path, call_id in self._bodies_to_end():
            if (key := "/".join((*path, call_id))) in tasks:
                return tasks.index(key)  # the body of this call had ended before the due record
        for key, place in self.runs_failing.items():
            if place <= self.cursor and key in tasks:
                return tasks.index(key)
        if wanted is not None:
            # The owner of a batch, a task of its run, cancels the siblings of a failed call when the log shows it.
            for owner in [owner for owner, places in self.stops.items() if places[1] <= self.cursor]:
                if owner in tasks:
                    del self.stops[owner]
                    return tasks.index(owner)
            call = call_of(wanted)
            if _is_unstarted_cut(wanted, FROM_ABOVE) or self._is_paused_cut(wanted):
                # Each cancelled call takes its first step, and then waits for its own record: see `_hold_unstarted`.
                for index, task in enumerate(tasks):
                    if task is not None and self._is_cut_before_first_step(task):
                        return index
            # The end hooks of a call run in their own task.
            own = [] if call is None else ["/".join((*call[0], call[1])), None]
            for one in (*own, "/".join(wanted.path)):
                if one in tasks and not self._is_before_stop(one):
                    return tasks.index(one)
        ranks = [self._rank(task) for task in tasks]
        return ranks.index(min(ranks))

    def _is_before_stop(self, task: str | None) -> bool:
        """Tell whether *task* is the owner of a batch that a failure will stop, but not before a later record."""
        places = None if task is None else self.stops.get(task)
        return places is not None and places[0] <= self.cursor < places[1]

    def _rank(self, task: str | None) -> float:
        """Return the number of the next record of a task's run or call: the task with the earliest one runs first."""
        if self.over:
            return 0
        if task is None:  # neither a run's nor a call's: where its order matters, its effects wait
            return -1
        if self._is_before_stop(task):
            return math.inf
        call = self._calls_by_key.get(task)
        own = () if call is None else (*call[0], call[1])
        found = (self.next_of_run(own), None if call is None else self.next_of_call(*call))
        return min((index for index in found if index is not None), default=math.inf)


def _tells_nothing(live: LiveRun, record: r.Record) -> bool:
    """Tell whether *record* is the result of a background call of *live* that has no output."""
    if not isinstance(record, r.InputAdded):
        return False
    known = live.state.calls.get(record.call_id or "")
    if known is None:  # the call of a later result may not be known yet
        return False
    empty = make_result(live.state, known.call, tell_nothing(known.tool or known.call.name), 0.0, secret=False)
    (told,), (message,) = empty.items, record.items
    return isinstance(message, UserMessage) and isinstance(told, UserMessage) and message.content == told.content


def timeout_at(live: Any) -> float:
    """Return the time on the loop's clock at which the tool's own timeout ends the call *live*; infinity if none."""
    return math.inf if live.body is None else float(live.body.ends_at)


def pass_time(seconds: float) -> None:
    """Advance the clock of the running deterministic event loop by *seconds*, even if tasks are ready."""
    loop: Any = waiting()
    if isinstance(loop, DeterministicLoop):
        loop._now += seconds
    else:
        loop.clock.now += seconds


def is_input_guardrail(record: r.Record) -> bool:
    """Tell whether *record* is of a guardrail of the run's own input, which runs beside the other steps of its run."""
    return isinstance(record, r.GuardrailSettled) and record.stage == "input" and record.input_id is None


def is_of_input(record: r.Record | None) -> bool:
    """Tell whether *record* is of a guardrail of an input that was added to the run."""
    return isinstance(record, r.GuardrailSettled) and record.input_id is not None


def _is_cut_exit(record: r.Record) -> bool:
    """Tell whether *record* says that the closing of a resource was cut at the cleanup deadline."""
    return isinstance(record, r.CleanupCut) and record.section == "resource exit"


def _has_expired(record: r.Record | None) -> bool:
    """Tell whether *record* settles a call that had waited in the queue for too long."""
    if not isinstance(record, r.CallSettled) or record.outcome.status != "skipped":
        return False
    return "no capacity within" in str(record.outcome.output)


def _is_unstarted_cut(record: r.Record | None, by: Sequence[str] = CUT_OFF) -> bool:
    """Tell whether *record* settles a call that was cancelled before its start, by one of *by*."""
    if not isinstance(record, r.CallSettled) or record.outcome.started_at is not None:
        return False
    return record.outcome.cancelled_by in by


_TASK = re.compile(r"agentloop (?:run of .*|call (?P<name>\S+) (?P<key>.*))#\d+\Z", re.DOTALL)


def _task_of(task: Any) -> str | None:
    """Return the key of *task*, of either backend, if it is a call's."""
    name = task.get_name() if hasattr(task, "get_name") else getattr(task, "name", "")
    return task_key(f"{name}#0")


def task_key(label: str) -> str | None:
    """Return the key of the task with this *label*: path and id of a call, empty for a run; None for other tasks."""
    match = _TASK.match(label)
    return None if match is None else match["key"] or ""
