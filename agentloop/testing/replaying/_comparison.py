"""How far a replay has got: the record that is due, who waits for it, the time, and which task goes on.

An effect whose record is known waits, shielded, until the log has got to that record: what completed when it was
recorded completes now. One without a record of its own was cut off, or raised: it waits until it is cancelled, or until
the driver (`_driver`) says that it raised. One that is cancelled goes on when it is the turn of
the next record of its call or run, so that what ends in one pass of the loop settles in the recorded order.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import anyio
import attrs

from agentloop import records as r
from agentloop._engine.runtime.live_run import loop_state
from agentloop.exceptions import ReplayDivergence
from agentloop.outcomes import FROM_ABOVE
from agentloop.testing.replaying._recorded import Call, Leniency, Path, RecordedRun, RecordedSegment, call_of, compared
from agentloop.testing.replaying._timing import SLACK, Way, Ways
from agentloop.testing.replaying._words import explained
from agentloop.testing.simulation._asyncio_loop import ClockworkLoop
from agentloop.testing.simulation.event_loop import waiting

if TYPE_CHECKING:
    from agentloop._engine.runtime.log import Log

CLEARLY = 0.01
"""Seconds by which a timer must have been due before a record to have come before it."""
BEFORE_TIMERS = 1e-6
"""Seconds by which time stops before a timer that isn't due yet."""
_HOOKS = ("end hooks", "on_run_end")
_OF_DEFINITIONS = (r.RunStarted, r.RunResumed, r.TurnStarted, r.ModelRequested)
CUT_OFF = (*FROM_ABOVE, "sibling")


@attrs.define(eq=False)
class Pending:
    """An effect without a record of its own: it was cut off, or raised."""

    path: Path
    call_id: str | None
    what: str
    cancelled: bool = False
    error: BaseException | None = None
    raised: anyio.Event = attrs.field(factory=anyio.Event)

    def fail(self, error: BaseException) -> None:
        """Let it raise *error*."""
        self.error = error
        self.raised.set()

    def __str__(self) -> str:
        where = "/".join([*self.path, *([self.call_id] if self.call_id else [])])
        return f"{self.what} of {where}" if where else self.what


@attrs.define(eq=False)
class _RecordedBody:
    """A body that is over, and waits for the record of its call at `index`."""

    index: int
    event: anyio.Event = attrs.field(factory=anyio.Event)
    release_refs: bool = False


@attrs.define(eq=False)
class _Leaving:
    """In the place of resources that a run leaves until its end at `index`, or (`cut`) until its time is over."""

    log: ReplayLog
    index: int
    cut: bool

    async def wait(self) -> None:
        if self.cut:
            self.cut = False
            await anyio.sleep_forever()
        await self.log.until(self.index, "leaving the resources")


class ReplayLog:
    """Where a replay has got to in a recorded run: what is due, who waits for it, which task goes on."""

    def __init__(self, recorded: RecordedRun, ways: Ways) -> None:
        self.recorded = recorded
        self.ways = ways
        self.records = recorded.records
        self.entry: RecordedSegment = recorded.entries[0]
        self.cursor = 0
        """Which record is due next."""
        self.appended: list[r.Record] = []
        self.divergence: ReplayDivergence | None = None
        self.firm = False
        """Whether it comes of what the agents are, whatever happened when."""
        self.over = False
        """Nothing is compared any more: the replay has diverged, or the log ends here."""
        self.log: Log | None = None
        self.stop: Callable[[], None] = lambda: None
        """Ends the run that is being replayed."""
        self.turn_is_over: Callable[[], None] = lambda: None
        """Lets the run end after its turn."""
        self.pending: list[Pending] = []
        self.waiting: dict[int, list[tuple[anyio.Event, str]]] = {}
        self.bodies: list[_RecordedBody] = []
        self.ends_held: set[Path] = set()
        """Nested runs whose end takes its time (`hold_end`), or needn't."""
        self.unheld: set[Call] = set()
        """Calls whose bodies give back what they hold when they are over, whoever's turn it is."""
        self.live_call: Callable[[Call], Any] = lambda call: None
        self._claimed: set[int] = set()
        self._released: set[int] = set()
        self.unfiltered: set[tuple[Path, int]] = set()
        self.standins: set[Path] = set()
        self._passing = False
        self._began = 0.0
        self.outside: dict[int, str] = {}
        """The first records that show that the run was ended from outside, and by what."""
        self.end_from_outside: Callable[[str], None] = lambda by: None
        self.ended_calls: dict[int, list[Call]] = {}
        """The first records that show that calls were ended from outside."""
        self.bodies_over: dict[Call, int] = {}
        """The first records after the ends of bodies that have no record of their own."""
        self.queued: dict[tuple[Path, int], tuple[int, float]] = {}
        """The first records after the calls of turns were queued, and when."""
        self.quiet_at = -1
        """The record that was due when everything waited."""
        self.end_call: Callable[[Call], Any] = lambda call: None
        self._steps = 0
        self.stirred = False
        """Whether something happened right before the step that is under way: no longer does everything wait in it."""
        self.references: dict[Call, list[str]] = {}

    @property
    def way(self) -> Way:
        """What is taken to happen up to the record that is due."""
        return self.ways.at(self.cursor)

    # -- entries and time

    def enter(self, entry: RecordedSegment) -> None:
        """Begin to replay *entry*, on the loop that it runs on."""
        self.entry = entry
        self.over = False
        self.pending, self.waiting, self.bodies = [], {}, []
        self.unheld = set()
        self.ends_held = set()
        self.cursor = entry.start
        self.outside = self.recorded.ended_from_outside(entry)
        self.ended_calls = self.recorded.calls_ended_from_outside(entry)
        self.bodies_over = self.recorded.bodies_over(entry)
        self.queued = self.recorded.batches_queued(entry)
        self.quiet_at = -1
        self._steps = 0
        self._began = self.records[entry.start].at - anyio.current_time()

    def wall(self) -> float:
        """Return the recorded time of the record that is due."""
        return self.records[min(self.cursor, len(self.records) - 1)].at

    def ahead(self, index: int) -> float:
        """Return how far the recorded time of record *index* is ahead of the clock, in seconds."""
        return self.records[index].at - self._began - anyio.current_time()

    def hurry_on(self, until: float = math.inf) -> bool:
        """Let time pass up to the record that is due, or to *until*, whatever is due before; False if none passes."""
        seconds = min(self.ahead(self.cursor), until - self._began - anyio.current_time())
        if seconds <= 0:
            return False
        pass_time(seconds)
        loop_state().pump.pump()  # another run of the same loop may have done so
        return True

    def come_up(self, at: float | None = None) -> bool:
        """Let the clock come up to the record that is due, or to the time *at*, but to no timer.

        What is due now is taken to have come before timers, since a log is written a little after what it tells of.
        Return False if one has to come before it.
        """
        seconds = self.ahead(self.cursor) if at is None else at - self._began - anyio.current_time()
        timer = waiting().next_timer()
        if timer is not None:
            if self.way.through_timers and timer < seconds - CLEARLY:
                return False
            seconds = min(seconds, timer - BEFORE_TIMERS)
        if seconds > 0:
            pass_time(seconds)
        return True

    @property
    def due(self) -> r.Record | None:
        """The record that is due next in this entry, or None at its end."""
        return self.records[self.cursor] if self.cursor < self.entry.stop else None

    # -- the log

    def expect(self, record: r.Record) -> r.Record | None:
        """Return what is appended in the place of *record*: it, with the recorded times, or nothing."""
        if self.over:
            return record
        if self._passing:
            self._passing = False
            return self._accept(record)
        while (wanted := self.due) is not None:
            assert self.log is not None
            marked = self.log.state._marked(record)
            merged, difference = compared(wanted, record, marked, self._leniency(wanted))
            if difference is None:
                return self._accept(merged)
            if isinstance(record, r.CleanupCut) and record.section in _HOOKS:
                return None  # there were none, or they came to their end
            if not isinstance(wanted, r.VerdictGiven | r.InputAdded | r.GraphChanged | r.CleanupCut):
                self.firm = type(wanted) is type(record) and isinstance(wanted, _OF_DEFINITIONS)
                self.diverge(record, explained(wanted, record, difference))
                return record
            self.insert()
        self.diverge(record, "The log ends here, and the replay goes on.")
        return record

    def insert(self) -> None:
        """Append the record that is due as it was recorded: it came from outside of the run, or from a body."""
        assert self.log is not None
        wanted = self.due
        assert wanted is not None
        self._passing = True
        self.log.append(wanted)

    def _accept(self, record: r.Record) -> r.Record:
        self.appended.append(record)
        self.cursor += 1
        if self.due is None:
            if not self.entry.ended:
                self.end()
            return record
        if self._is_stopped_here():
            self.turn_is_over()
        self._steps = 0
        if self.way.hurry:
            self.hurry_on(min((at for place, at in self.queued.values() if place == self.cursor), default=math.inf))
        if self.cursor in self.outside and self.ahead(self.cursor) <= self.way.at_once and not self.way.delay:
            self.end_from_outside(self.outside.pop(self.cursor))
        if self.ahead(self.cursor) <= SLACK or self._may_go_on():
            self.end_calls()
        if self._may_go_on():
            self.release_bodies()
            self.release()
        return record

    def end_calls(self) -> bool:
        """End the calls that were ended before the record that is due; tell whether there were any."""
        ended = False
        for place in [place for place in self.ended_calls if place <= self.cursor]:
            due = self.ended_calls.pop(place)
            left = [call for call in due if not self.end_call(call)]
            if left:
                self.ended_calls[place] = left
            ended = ended or len(left) < len(due)
        return ended

    def _may_go_on(self) -> bool:
        """Tell whether what completes now may do so before everything waits."""
        if self.quiet_at == self.cursor or self.cursor == self.entry.start:
            return True
        return self.records[self.cursor].at - self.records[self.cursor - 1].at <= self.way.calm

    def _is_stopped_here(self) -> bool:
        """Tell whether nothing but the run's last steps follows, of a run that its caller has stopped."""
        for index in range(self.cursor, self.entry.stop):
            record = self.records[index]
            if not isinstance(record, r.SessionSaved | r.CleanupCut) or record.path:
                return isinstance(record, r.RunEnded) and not record.path and record.status == "cancelled"
        return False

    def _leniency(self, wanted: r.Record) -> Leniency:
        unknown = (wanted.path, wanted.turn) in self.unfiltered or self.cursor > self.recorded.hidden_from
        return Leniency(digest=unknown, final_output=wanted.path in self.standins)

    def diverge(self, got: r.Record | None, why: str) -> None:
        """End the replay: the record that is due isn't what came."""
        self.divergence = ReplayDivergence(self.cursor, self.due, got, why)
        self.end()

    def end(self) -> None:
        """Compare nothing any more, and end the run."""
        self.over = True
        waiting, self.waiting = self.waiting, {}
        for events in waiting.values():
            for event, _ in events:
                event.set()
        self.stop()

    # -- waiting

    def release(self) -> bool:
        """Let go on what waits for the record that is due, or for one before it; tell whether anything did."""
        due = sorted(index for index in self.waiting if index <= self.cursor)
        released = [one for index in due for one in self.waiting.pop(index)]
        for event, _ in released:
            event.set()
        return bool(released)

    def release_next(self, test: Callable[[r.Record], bool]) -> bool:
        """Let go on what waits for the first later record, if that passes *test*."""
        later = min(self.waiting, default=None)
        if later is None or self.cursor not in self._released or not test(self.records[later]):
            return False
        self._released.add(later)
        for event, _ in self.waiting.pop(later):
            event.set()
        return True

    async def until(self, index: int, what: str = "a hook", *, in_time: bool = True) -> None:
        """Wait, shielded, until record *index* is due; unless *in_time* is false, at its recorded time."""
        # The clock comes up when the task goes on: whoever has just appended a record may still have timers to set.
        while not self.over and index not in self._released and not self._is_due(index, in_time):
            event = anyio.Event()
            self.waiting.setdefault(index, []).append((event, what))
            with anyio.CancelScope(shield=True):
                await event.wait()
        self._released.add(index)

    def _is_due(self, index: int, in_time: bool = True) -> bool:
        """Tell whether record *index* is due, now that the clock has come up to it (*in_time*), or was."""
        if index != self.cursor:
            return index < self.cursor
        return self._may_go_on() and (not in_time or self.come_up())

    async def body_over(self, path: Path, call_id: str, what: str) -> None:
        """Be a body that is over: wait, shielded, for the turn of its call's next record.

        It may be let go before that (`let_bodies_go`), since others start when it gives back what it holds. Then its
        end hooks wait in its place; where they have nothing to wait for, they aren't called.
        """
        index = self.bodies_over.get((path, call_id), self.next_of_call(path, call_id))
        if index is None:
            return
        body = _RecordedBody(index, release_refs=(path, call_id) in self.unheld)
        self.bodies.append(body)
        while not self.over and not body.release_refs and not self._is_over(index):
            self.waiting.setdefault(index, []).append((body.event, what))
            with anyio.CancelScope(shield=True):
                await body.event.wait()
            body.event = anyio.Event()
        self.bodies.remove(body)
        self.skip_end_hooks(path, call_id)

    def _is_over(self, index: int) -> bool:
        return index < self.cursor or (index == self.cursor and self._may_go_on())

    def release_bodies(self) -> bool:
        """Let bodies that were over by now be it; tell whether there were any."""
        due = [body for body in self.bodies if body.index <= self.cursor and not body.event.is_set()]
        for body in due:
            body.event.set()
        return bool(due)

    def let_bodies_go(self) -> bool:
        """Let the body that settles next give back what it holds before its turn; False if there is none."""
        held = [body for body in self.bodies if not body.release_refs]
        if not held:
            return False
        first = min(held, key=lambda body: body.index)
        first.release_refs = True
        first.event.set()
        return True

    def hold_end(self, path: Path, call_id: str) -> None:
        """Let the end of the nested run of a call wait for its turn, if it took time: the run left resources then.

        The outermost run's end has a hook, which waits.
        """
        live = self.live_call((path, call_id))
        if not path or live is None or path in self.ends_held:
            return
        self.ends_held.add(path)
        end = self.find(r.RunEnded, path)
        if end is None:
            return
        before = [index for index in self.recorded.paths[path] if index < end]
        cut = isinstance(self.records[before[-1]], r.CleanupCut)
        if cut or self.records[end].at - self.records[before[-1]].at > CLEARLY:
            live.run.resources.stand_in(_Leaving(self, end, cut))

    def skip_end_hooks(self, path: Path, call_id: str) -> None:
        """Call no end hooks if a call settles before anything else happens."""
        live = self.live_call((path, call_id))
        for index in range(self.cursor, self.entry.stop):
            record = self.records[index]
            if call_of(record) != (path, call_id):
                return
            if isinstance(record, r.CallSettled):
                if live is not None:
                    live.hooked = ()
                return

    async def known(self, index: int, what: str, *, in_time: bool = True) -> Any:
        """Wait until record *index* is due, and return it."""
        await self.until(index, what, in_time=in_time)
        if self.over:
            await anyio.sleep_forever()  # the run is being ended
        return self.records[index]

    async def told(self, index: int | None, path: Path, call_id: str | None, what: str) -> Any:
        """Wait until record *index* is due, and return it; without one the effect was cut off, and is."""
        if index is None:
            await self.cut_off(path, call_id, what)
        return await self.known(index, what)

    async def cut_off(self, path: Path, call_id: str | None, what: str, *, cancelled: bool = False) -> NoReturn:
        """Wait until the effect is cancelled, or raises; then for the turn of its call's, or run's, next record."""
        pending = Pending(path, call_id, what, cancelled)
        self.pending.append(pending)
        try:
            await pending.raised.wait()
        except anyio.get_cancelled_exc_class():
            index = self.next_of_run(path) if call_id is None else self._next_of_ended(path, call_id)
            if index is not None:
                await self.until(index, what)  # noqa: ASYNC102 - shielded, and let go when the replay is over
            raise
        finally:
            self.pending.remove(pending)
        assert pending.error is not None
        raise pending.error

    def _next_of_ended(self, path: Path, call_id: str) -> int | None:
        """Return where the next record of a call that was cancelled stands, if nothing else waits for its turn.

        One that has started has end hooks, and others may start when it gives back its limits, before it settles.
        """
        places = self.recorded.calls.get((path, call_id), ())
        if any(isinstance(self.records[index], r.CallStarted) for index in places if index < self.cursor):
            return None
        return self.next_of_call(path, call_id)

    # -- finding records

    def find(
        self, kind: Any, path: Path, test: Callable[[Any], bool] = lambda _: True, *, claim: bool = False
    ) -> int | None:
        """Return where the next record of *kind* of the run at *path* stands in this entry."""
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

    def next_of_run(self, path: Path) -> int | None:
        """Return where the next record of the run at *path* stands."""
        return self.recorded.first(self.recorded.paths.get(path), self.cursor, self.entry.stop)

    def next_of_call(self, path: Path, call_id: str, kind: Any = object) -> int | None:
        """Return where the next record of a call stands."""
        return self.recorded.first(
            self.recorded.calls.get((path, call_id)),
            self.cursor,
            self.entry.stop,
            lambda record: isinstance(record, kind),
        )

    def settled(self, path: Path, call_id: str) -> r.CallSettled | None:
        """Return how a call that hasn't settled will."""
        index = self.next_of_call(path, call_id, r.CallSettled)
        found: r.CallSettled | None = None if index is None else self.records[index]  # type: ignore[assignment]
        return found

    # -- which task goes on

    def before_step(self, task: object) -> None:
        """Count a step of a task; append what only a body does; end the run after so many steps as this way says."""
        self._steps += 1
        self.stirred = False
        if not self.over and isinstance(self.due, r.CleanupCut) and self.due.section == "ctx.cleanup":
            self.stirred = True
            self.insert()  # a body's, which doesn't run: nothing else says when
            if self._may_go_on():
                self.release()
        if self.way.delay and self._steps > self.way.delay and self.cursor in self.outside and not self.over:
            self.stirred = True
            self.end_from_outside(self.outside.pop(self.cursor))

    def choose(self, labels: Sequence[str]) -> int:
        """Return which of the ready tasks goes on: the one whose record is due, if it is there."""
        tasks = [task_key(label) for label in labels]
        wanted = None if self.over else self.due
        for index, task in enumerate(tasks):
            if task is None:
                return index  # neither a run's nor a call's: it waits at this door where its turn matters
        for (path, call_id), place in self.bodies_over.items():
            live = self.live_call((path, call_id)) if place <= self.cursor and not self.over else None
            if live is not None and live.phase == "body" and (key := "/".join((*path, call_id))) in tasks:
                return tasks.index(key)  # its body was over by now
        if wanted is not None:
            call = call_of(wanted)
            keys = ["/".join(wanted.path)]
            if call is not None:
                # Whom a sibling's failure has cut off is told so by the owner of the batch.
                told = isinstance(wanted, r.CallSettled) and wanted.outcome.cancelled_by == "sibling"
                keys.insert(1 if told else 0, "/".join((*call[0], call[1])))
            for key in keys:
                if key in tasks:
                    return tasks.index(key)
        return self.way.turn % len(labels)


def pass_time(seconds: float) -> None:
    """Let time pass on the running clockwork loop, though there are tasks that could go on."""
    loop: Any = waiting()
    if isinstance(loop, ClockworkLoop):
        loop._now += seconds
    else:
        loop.clock.now += seconds


_TASK = re.compile(r"agentloop (?:run of .*|call (?P<name>\S+) (?P<key>.*))#\d+\Z", re.DOTALL)


def task_key(label: str) -> str | None:
    """Return whose task *label* is: a call's, by its path and id; a run's, which is empty; or None."""
    match = _TASK.match(label)
    return None if match is None else match["key"] or ""
