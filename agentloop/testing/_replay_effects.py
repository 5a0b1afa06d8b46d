"""The door of a replay: every effect is answered by what the log says came of it, and when its record's turn has come.

An effect whose record is known waits, shielded, until the log has got to that record: what completed when it was
recorded completes now. One without a record of its own was cut off, or raised: it waits until it is cancelled, or until
the driver (`agentloop.testing._replay_drive`) says that it raised. One that is cancelled goes on when it is the turn of
the next record of its call or run, so that what ends in one pass of the loop settles in the recorded order.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import anyio
import attrs

from agentloop import effects as e
from agentloop import guardrail_results as g
from agentloop import records as r
from agentloop._shell.render import render
from agentloop.agents import ToolsToFinalOutput
from agentloop.config import ErrorHandlerResult, JsonLimits, ModelInputData
from agentloop.exceptions import ReplayDivergence
from agentloop.handoffs import HandoffInputData
from agentloop.json_text import parse_object
from agentloop.policies import Ask, Deny
from agentloop.testing._recorded import (
    Call,
    Entry,
    Leniency,
    Path,
    Recorded,
    Standin,
    _same_output,
    call_of,
    compared,
)
from agentloop.testing._recorded_errors import library_class, rebuilt, rebuilt_model_error
from agentloop.testing._replay_words import explained

if TYPE_CHECKING:
    from agentloop._shell.live import Log

SLACK = 0.005
"""Seconds by which the clock of a replay may lag behind the recorded one."""
_HOOKS = ("end hooks", "on_run_end")
CUT_OFF = ("parent", "deadline", "sibling")
_REFERENCE = re.compile(r"characters cut, all of it at (.*?) …\]\n", re.DOTALL)

_at_work: ContextVar[Path] = ContextVar("agentloop_replay_path", default=())
"""The run whose model call the current task makes: draws and waits don't say whose they are."""


@attrs.frozen
class Way:
    """What a log doesn't say of the moments between its records.

    Attributes:
        end_at_once: Whether a cancellation of the run came right after the record before the first that shows it; else
            when everything waited.
        through_timers: Whether what was due before the recorded time of what completed had come before it.
        oldest: Which of the ready tasks that have nothing to record goes first.
    """

    end_at_once: bool = True
    through_timers: bool = False
    oldest: bool = True


WAYS = tuple(
    Way(end_at_once, through_timers, oldest)
    for oldest in (True, False)
    for through_timers in (False, True)
    for end_at_once in (True, False)
)


@attrs.define(eq=False)
class Pending:
    """An effect without a record of its own: it was cut off, or raised."""

    path: Path
    call_id: str | None
    what: str
    is_body: bool = False
    error: BaseException | None = None
    raised: anyio.Event = attrs.field(factory=anyio.Event)

    def fail(self, error: BaseException) -> None:
        """Let it raise *error*."""
        self.error = error
        self.raised.set()

    def __str__(self) -> str:
        where = "/".join([*self.path, *([self.call_id] if self.call_id else [])])
        return f"{self.what} of {where}" if where else self.what


class ReplayEffects:
    """The effects of one recorded run. `expect` compares each record as it is appended."""

    def __init__(self, recorded: Recorded, way: Way) -> None:
        self.recorded = recorded
        self.way = way
        self.records = recorded.records
        self.entry: Entry = recorded.entries[0]
        self.cursor = 0
        """Which record is due next."""
        self.appended: list[r.Record] = []
        self.divergence: ReplayDivergence | None = None
        self.over = False
        """Nothing is compared any more: the replay has diverged, or the log ends here."""
        self.log: Log | None = None
        self.stop: Callable[[], None] = lambda: None
        """Ends the run that is being replayed."""
        self.turn_is_over: Callable[[], None] = lambda: None
        """Lets the run end after its turn."""
        self.pending: list[Pending] = []
        self.waiting: dict[int, list[tuple[anyio.Event, str]]] = {}
        self.bodies: list[tuple[int, anyio.Event]] = []
        self.live_call: Callable[[Call], Any] = lambda call: None
        self._claimed: set[int] = set()
        self._released: set[int] = set()
        self._unfiltered: set[tuple[Path, int]] = set()
        self._standins: set[Path] = set()
        self._passing = False
        self._began = 0.0
        self.outside: dict[int, str] = {}
        """The first records that show that the run was ended from outside, and by what."""
        self.end_from_outside: Callable[[str], None] = lambda by: None
        self._references: dict[Call, list[str]] = {}

    # -- entries and time

    def enter(self, entry: Entry) -> None:
        """Begin to replay *entry*, on the loop that it runs on."""
        self.entry = entry
        self.over = False
        self.pending, self.waiting, self.bodies = [], {}, []
        self.cursor = entry.start
        self.outside = self.recorded.ended_from_outside(entry)
        self._began = self.records[entry.start].at - anyio.current_time()

    def wall(self) -> float:
        """Return the recorded time of the record that is due."""
        return self.records[min(self.cursor, len(self.records) - 1)].at

    def ahead(self, index: int) -> float:
        """Return how far the recorded time of record *index* is ahead of the clock, in seconds."""
        return self.records[index].at - self._began - anyio.current_time()

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
                self.diverge(record, explained(self.recorded, self.cursor, wanted, record, difference))
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
        if self.way.end_at_once and self.cursor in self.outside and self.ahead(self.cursor) <= SLACK:
            self.end_from_outside(self.outside.pop(self.cursor))
        if self.ahead(self.cursor) <= SLACK:
            self.release()
        return record

    def _is_stopped_here(self) -> bool:
        """Tell whether nothing but the run's last steps follows, of a run that its caller has stopped."""
        for index in range(self.cursor, self.entry.stop):
            record = self.records[index]
            if not isinstance(record, r.SessionSaved | r.CleanupCut) or record.path:
                return isinstance(record, r.RunEnded) and not record.path and record.status == "cancelled"
        return False

    def _leniency(self, wanted: r.Record) -> Leniency:
        return Leniency(
            digest=(wanted.path, wanted.turn) in self._unfiltered, final_output=wanted.path in self._standins
        )

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
        """Let go on what waits for the record that is due; tell whether anything did."""
        released = self.waiting.pop(self.cursor, [])
        for event, _ in released:
            event.set()
        if released:
            self._released.add(self.cursor)
        return bool(released)

    def release_next(self, test: Callable[[r.Record], bool]) -> bool:
        """Let go on what waits for the first later record, if that passes *test*."""
        later = min(self.waiting, default=None)
        if later is None or self.cursor not in self._released or not test(self.records[later]):
            return False
        for event, _ in self.waiting.pop(later):
            event.set()
        return True

    async def until(self, index: int, what: str = "a hook") -> None:
        """Wait, shielded, until record *index* is due."""
        if self.over or index < self.cursor:
            return
        if index == self.cursor and self.ahead(index) <= SLACK:
            self._released.add(index)
            return
        event = anyio.Event()
        self.waiting.setdefault(index, []).append((event, what))
        with anyio.CancelScope(shield=True):
            await event.wait()

    async def _body_over(self, path: Path, call_id: str, what: str) -> None:
        """Be a body that is over: wait, shielded, for the turn of its call's next record.

        It may be let go before that (`let_bodies_go`), since others start when it gives back what it holds. Then its
        end hooks wait in its place; where they have nothing to wait for, they aren't called.
        """
        index = self.next_of_call(path, call_id)
        if index is None:
            return
        early = index > self.cursor or (index == self.cursor and self.ahead(index) > SLACK)
        if early and not self.over:
            event = anyio.Event()
            self.bodies.append((index, event))
            self.waiting.setdefault(index, []).append((event, what))
            with anyio.CancelScope(shield=True):
                await event.wait()
            self.bodies.remove((index, event))
        self._skip_end_hooks(path, call_id)

    def let_bodies_go(self) -> bool:
        """Let the body that settles next give back what it holds before its turn; False if there is none."""
        held = [(index, event) for index, event in self.bodies if not event.is_set()]
        if not held:
            return False
        min(held, key=lambda one: one[0])[1].set()
        return True

    def _skip_end_hooks(self, path: Path, call_id: str) -> None:
        """Call no end hooks if a call settles before anything else happens."""
        live = self.live_call((path, call_id))
        for index in range(self.cursor, self.entry.stop):
            record = self.records[index]
            if call_of(record) != (path, call_id):
                return
            if isinstance(record, r.CallSettled):
                if live is not None:
                    live.hooked.clear()
                return

    async def _known(self, index: int, what: str) -> Any:
        """Wait until record *index* is due, and return it."""
        await self.until(index, what)
        if self.over:
            await anyio.sleep_forever()  # the run is being ended
        return self.records[index]

    async def cut_off(self, path: Path, call_id: str | None, what: str, *, is_body: bool = False) -> Any:
        """Wait until the effect is cancelled, or raises; then for the turn of its call's, or run's, next record."""
        pending = Pending(path, call_id, what, is_body)
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
        index = self.recorded.first(
            self.recorded.paths.get(path),
            self.cursor,
            self.entry.stop,
            lambda record: isinstance(record, kind) and test(record),
        )
        while claim and index in self._claimed:
            index = self.recorded.first(
                self.recorded.paths.get(path),
                index + 1,
                self.entry.stop,
                lambda record: isinstance(record, kind) and test(record),
            )
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

    # -- the door

    async def perform(self, effect: Any) -> Any:
        """Answer *effect* as it was answered."""
        match effect:
            case e.NewId():
                started: Any = self.records[self.entry.start]
                return started.run_id
            case e.Now():
                return self.wall()
            case e.Random():
                return await self._random()
            case e.Sleep():
                return await self._sleep()
            case e.CallModel():
                return await self._call_model(effect)
            case e.CallTool():
                return await self._call_tool(effect)
            case e.Guard():
                return await self._guard(effect)
            case e.LoadSession(path):
                return await self._load_session(path)
            case e.SaveSession(path):
                return await self._save_session(path)
            case e.Ask(path, what, key):
                told_elsewhere = _TOLD_ELSEWHERE.get(what)
                if told_elsewhere is not None:
                    return await told_elsewhere(self, path, key)
                return await self._ask(path, what, key)

    async def _random(self) -> float:
        path = _at_work.get()
        index = self.find(r.Answered, path, lambda record: record.what.startswith("random:"), claim=True)
        if index is None:
            return 0.5  # nothing is recorded that depends on it, or the replay diverges
        return float((await self._known(index, "a draw of chance")).answer)

    async def _sleep(self) -> None:
        path = _at_work.get()
        index = self.find(r.ModelRequested | r.RunEnded, path)
        found: Any = None if index is None else self.records[index]
        in_time = isinstance(found, r.ModelRequested) or "UsageLimitExceeded" in (getattr(found, "error", None) or "")
        if index is None or not in_time:
            await self.cut_off(path, None, "the wait before another attempt")
            return
        await self._known(index, "the wait before another attempt")

    def _ends_from_outside(self, index: int) -> bool:
        """Tell whether record *index* is the end of a run that was cancelled or timed out."""
        record = self.records[index]
        if not isinstance(record, r.RunEnded):
            return False
        # A guardrail beside the model call ends what its run does, too.
        return record.status == "cancelled" or (record.error or "").startswith(
            ("RunTimeout(", "InputGuardrailTripwireTriggered(")
        )

    async def _call_model(self, effect: e.CallModel) -> Any:
        path = effect.path
        _at_work.set(path)
        what = "the model's answer"
        index = self.find(r.ModelResponded | r.ModelFailed, path)
        found: Any = None if index is None else self.records[index]
        if index is None or (isinstance(found, r.ModelFailed) and found.error == "cancelled"):
            return await self.cut_off(path, None, what)
        await self._known(index, what)
        if isinstance(found, r.ModelResponded):
            return found.response
        # The attempt under way, which tells whether anything was shown: the last of what the effect's `do` is made of.
        for part in getattr(effect.do, "args", ())[-1:]:
            part.streamed = found.streamed
        error = rebuilt_model_error(found)
        if self._is_final(index):
            error.should_retry = False  # type: ignore[attr-defined]
        raise error

    def _is_final(self, index: int) -> bool:
        """Tell whether a failed attempt was the last, for all that might have spoken for another: there was no time."""
        failed: Any = self.records[index]
        places = self.recorded.paths[failed.path]
        following = self.recorded.first(
            places, index + 1, self.entry.stop, lambda record: isinstance(record, r.ModelRequested | r.RunEnded)
        )
        found: Any = None if following is None else self.records[following]
        return isinstance(found, r.RunEnded) and found.status == "failed" and found.error == failed.error

    # -- bodies

    async def _call_tool(self, effect: e.CallTool) -> Any:
        path, call_id = effect.path, effect.call_id
        nested = (*path, call_id)
        if nested in self.recorded.paths:
            begins = self.next_of_run(nested)
            if begins is not None:
                await self._known(begins, f"the run of call {call_id}")
            return await effect.do()  # an agent tool: its nested run is replayed in its turn
        what = f"the body of call {call_id}"
        index = self.next_of_call(path, call_id, r.BodyEnded | r.CallSettled)
        found: Any = None if index is None else self.records[index]
        if isinstance(found, r.BodyEnded):
            assert index is not None
            try:
                return await self._body(index, found, what)
            finally:
                self._skip_end_hooks(path, call_id)
        return await self._cut_body(path, call_id, found, what)

    async def _cut_body(self, path: Path, call_id: str, settled: r.CallSettled | None, what: str) -> Any:
        """Be a body that came to no end of its own, unless that was its own cancellation."""
        if settled is not None and settled.outcome.body_finished:
            await self._body_over(path, call_id, what)
            if not self.over:
                raise asyncio.CancelledError(settled.outcome.reason)  # a body's own, on either backend
        try:
            return await self.cut_off(path, call_id, what, is_body=True)
        except anyio.get_cancelled_exc_class():
            await self._body_over(path, call_id, what)  # noqa: ASYNC102 - shielded, and let go when the replay is over
            raise

    async def _body(self, index: int, ended: r.BodyEnded, what: str) -> Any:
        settled = self.settled(ended.path, ended.call_id)
        if settled is not None and (settled.outcome.status == "timed_out" or not settled.outcome.body_finished):
            try:
                return await self.cut_off(ended.path, ended.call_id, what, is_body=True)
            except anyio.get_cancelled_exc_class():  # noqa: ASYNC103
                await self.until(index, what)  # noqa: ASYNC102 - shielded, and let go when the replay is over
                if self.over:
                    raise
                if ended.failed:  # in its cleanup
                    raise rebuilt(ended.error or "") from None  # noqa: ASYNC104
                return self._value(ended, settled)  # noqa: ASYNC104
        await self._known(index, what)
        if ended.failed:
            raise rebuilt(ended.error or "", fatal=self._is_fatal(ended))
        return self._value(ended, settled)

    def _is_fatal(self, ended: r.BodyEnded) -> bool:
        """Tell whether a body's error was one that no policy may answer: the run ended with just that."""
        assert ended.error is not None
        end = self.find(r.RunEnded, ended.path)
        found: Any = None if end is None else self.records[end]
        return found is not None and found.error == ended.error and library_class(ended.error) is None

    def _value(self, ended: r.BodyEnded, settled: r.CallSettled | None) -> Any:
        """Return what the body returned, or what stands for it: a text that is its output."""
        output = settled.outcome.output if settled is not None else None
        if ended.kept:
            plain = type(ended.value) is str
            if plain or settled is None or output is None or _same_output(output, render(ended.value)):
                return ended.value
        self._standins.add(ended.path)
        return Standin(output if isinstance(output, str) else "")

    # -- guardrails

    async def _guard(self, effect: e.Guard) -> Any:
        path, call_id = effect.path, effect.call_id
        what = f"guardrail {effect.name}"

        def fits(record: r.GuardrailSettled) -> bool:
            return (record.stage, record.guardrail, record.call_id) == (effect.stage, effect.name, call_id)

        index = self.find(r.GuardrailSettled, path, fits, claim=True)
        if index is None:
            return await self.cut_off(path, call_id, what)
        settled: r.GuardrailSettled = await self._known(index, what)
        if call_id is None:
            return g.GuardrailFunctionOutput(settled.info, settled.verdict == "tripped")
        return self._verdict(settled)

    def _verdict(self, settled: r.GuardrailSettled) -> Any:
        match settled.verdict:
            case "RejectContent":
                return g.RejectContent(settled.detail if isinstance(settled.detail, str) else "", settled.info)
            case "RaiseException":
                return g.RaiseException(settled.info)
            case "Rewrite":
                return g.Rewrite(self._rewritten(settled), settled.info)
            case "ReplaceOutput":
                return g.ReplaceOutput(self._replaced(settled), settled.info)
            case _:
                return g.Allow(settled.info)

    def _rewritten(self, settled: r.GuardrailSettled) -> Any:
        if isinstance(settled.detail, dict):
            return settled.detail
        assert settled.call_id is not None
        index = self.next_of_call(settled.path, settled.call_id, r.CallStarted | r.CallSettled)
        found: Any = None if index is None else self.records[index]
        text = found.arguments if found is not None else None
        try:
            return parse_object(text or "{}", JsonLimits(), tool="")
        except Exception:
            return {}

    def _replaced(self, settled: r.GuardrailSettled) -> Any:
        assert settled.call_id is not None
        call = self.settled(settled.path, settled.call_id)
        output = call.outcome.output if call is not None else None
        if output is None or type(settled.detail) is str or _same_output(output, render(settled.detail)):
            return settled.detail
        self._standins.add(settled.path)
        return Standin(output if isinstance(output, str) else "")

    # -- sessions

    async def _load_session(self, path: Path) -> Any:
        index = self.find(r.RunStarted, path)
        if index is None:
            return []  # asked whether the last write took place; it is written again, to nowhere
        started: Any = self.records[index]
        if started.shown is None:
            return await self.cut_off(path, None, "loading the session")
        await self._known(index, "loading the session")
        before = len(started.shown) - len(started.input)
        # Where the application merged the two, it is asked for the result.
        return list(started.shown[:before]) if started.shown[before:] == started.input else []

    async def _save_session(self, path: Path) -> None:
        index = self.next_of_run(path)
        if index is None or not isinstance(self.records[index], r.SessionSaved):
            await self.cut_off(path, None, "saving to the session")
            return
        await self._known(index, "saving to the session")

    # -- questions

    async def _ask(self, path: Path, what: str, key: str) -> Any:
        index = self.find(r.Answered, path, lambda record: (record.what, record.key) == (what, key), claim=True)
        if index is None:
            of_call = what == "is_enabled" and ":" not in key
            return await self.cut_off(path, key if of_call else None, what)
        answer = (await self._known(index, what)).answer
        return _form_of(what, answer)

    async def _of_failure(self, path: Path, key: str, what: str) -> Any:
        settled = self.settled(path, key)
        index = self.next_of_call(path, key)
        if settled is None or index is None or self._is_cut(settled, index):
            return await self.cut_off(path, key, what)
        await self._known(index, what)
        output = settled.outcome.output
        if output is not None or isinstance(self.records[index], r.GuardrailSettled):
            return output if isinstance(output, str) else ""
        if settled.error is not None and self._has_raised(path, key, settled, what):
            raise rebuilt(settled.error)
        return None

    def _is_cut(self, settled: r.CallSettled, index: int) -> bool:
        if isinstance(self.records[index], r.GuardrailSettled):
            return False  # what it gave was judged
        cut = settled.outcome.status == "cancelled" and settled.outcome.cancelled_by in CUT_OFF
        return cut or isinstance(self.records[index], r.CleanupCut)

    def _has_raised(self, path: Path, key: str, settled: r.CallSettled, what: str) -> bool:
        """Tell whether the function that words a failure raised: the call then failed with another error."""
        if settled.outcome.status != "failed":
            return False
        if what == "timeout_error_function":
            return True
        places = self.recorded.calls[path, key]
        bodies = [self.records[index] for index in places if index < self.cursor]
        ended = next((one for one in reversed(bodies) if isinstance(one, r.BodyEnded)), None)
        if ended is not None and ended.failed:
            return ended.error != settled.error
        return not (settled.error or "").startswith("ModelBehaviorError(")

    async def _custom_data(self, path: Path, key: str) -> Any:
        settled, index = self.settled(path, key), self.next_of_call(path, key)
        if settled is None or index is None or self._is_cut(settled, index):
            return await self.cut_off(path, key, "custom_data_extractor")
        await self._known(index, "custom_data_extractor")
        if settled.outcome.status == "failed" and not isinstance(self.records[index], r.GuardrailSettled):
            raise rebuilt(settled.error or "")
        return settled.outcome.custom_data

    async def _store(self, path: Path, key: str) -> Any:
        settled, index = self.settled(path, key), self.next_of_call(path, key)
        if settled is None or index is None or self._is_cut(settled, index):
            return await self.cut_off(path, key, "output_store")
        await self._known(index, "output_store")
        if settled.outcome.output is None:
            raise rebuilt(settled.error or "")
        if (path, key) not in self._references:
            output = settled.outcome.output
            texts = [output] if isinstance(output, str) else [getattr(part, "text", "") for part in output]
            self._references[path, key] = [found for text in texts for found in _REFERENCE.findall(text)]
        references = self._references[path, key]
        return references.pop(0) if references else ""

    async def _tool_error(self, path: Path, key: str) -> Any:
        index = self.next_of_call(path, key, r.CallSettled)
        if index is None:
            return await self.cut_off(path, None, "tool_error_formatter")
        settled = await self._known(index, "tool_error_formatter")
        return settled.outcome.output

    async def _input_filter(self, path: Path, key: str) -> Any:
        index = self.find(r.HandedOff, path)
        if index is None:
            return await self.cut_off(path, None, "input_filter")
        await self._known(index, "input_filter")
        replaced = self.find(r.HistoryReplaced, path, lambda record: record.reason == "handoff_filter")
        found: Any = None if replaced is None else self.records[replaced]
        items = found.items if found is not None else ()
        return HandoffInputData(input_history=(), pre_handoff_items=(), new_items=(), input_items=items)

    async def _on_handoff(self, path: Path, key: str) -> Any:
        index = self.find(r.HandedOff, path, lambda record: record.call_id == key)
        if index is None:
            return await self.cut_off(path, None, "on_handoff")
        await self._known(index, "on_handoff")

    async def _merged_input(self, path: Path, key: str) -> Any:
        index = self.find(r.RunStarted, path)
        if index is None or self.records[index].shown is None:  # type: ignore[union-attr]
            return await self.cut_off(path, None, "session_input_callback")
        return list((await self._known(index, "session_input_callback")).shown)

    async def _built_input(self, path: Path, key: str) -> Any:
        index = self.find(r.RunStarted, path)
        if index is None:
            return await self.cut_off(path[:-1], key, "input_builder")
        return list((await self._known(index, "input_builder")).input)

    async def _extracted_output(self, path: Path, key: str) -> Any:
        outer = path[:-1]
        index = self.next_of_call(outer, key, r.BodyEnded | r.CallSettled)
        found: Any = None if index is None else self.records[index]
        if index is None or not isinstance(found, r.BodyEnded):
            return await self.cut_off(outer, key, "custom_output_extractor")
        await self._known(index, "custom_output_extractor")
        if found.failed:
            raise rebuilt(found.error or "", fatal=self._is_fatal(found))
        return self._value(found, self.settled(outer, key))

    async def _filtered_request(self, path: Path, key: str) -> Any:
        index = self.find(r.ModelRequested, path)
        if index is None:
            return await self.cut_off(path, None, "call_model_input_filter")
        requested = await self._known(index, "call_model_input_filter")
        # What it made of the request isn't in the log, but for the digest.
        self._unfiltered.add((path, requested.turn))
        return ModelInputData(input=(), instructions=None)

    # -- hooks: places where a run may have waited

    async def run_hook(self, path: Path) -> None:
        """Go on when it is the turn of the run's next record; raise what a hook raised."""
        index = self.find(object, path, lambda record: not _is_beside(record))
        if index is None or self._ends_from_outside(index):
            await self.cut_off(path, None, "a hook")
            return
        record = await self._known(index, "a hook")
        if isinstance(record, r.RunEnded) and record.status == "failed" and library_class(record.error or "") is None:
            raise rebuilt(record.error or "")

    async def start_hook(self, path: Path, call_id: str) -> None:
        """Raise what a start hook of a call raised: it failed, and its body neither ended nor began."""
        index = self.next_of_call(path, call_id)
        record: Any = None if index is None else self.records[index]
        if index is not None and isinstance(record, r.CallSettled) and record.outcome.status == "failed":
            await self._known(index, "on_tool_start")
            raise rebuilt(record.error or "")

    async def end_hook(self, path: Path, call_id: str) -> None:
        """Go on when it is the call's turn to settle."""
        index = self.next_of_call(path, call_id)
        if index is None or isinstance(self.records[index], r.CleanupCut):
            await self.cut_off(path, call_id, "on_tool_end")
            return
        await self.until(index, "on_tool_end")

    # -- which task goes on

    def choose(self, labels: Sequence[str]) -> int:
        """Return which of the ready tasks goes on: the one whose record is due, if it is there."""
        tasks = [_task(label) for label in labels]
        wanted = None if self.over else self.due
        for index, task in enumerate(tasks):
            if task is None:
                return index  # neither a run's nor a call's: it waits at this door where its turn matters
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
        return 0 if self.way.oldest else len(labels) - 1


_TASK = re.compile(r"agentloop (?:run of .*|call (?P<name>\S+) (?P<key>.*))#\d+\Z", re.DOTALL)


def _task(label: str) -> str | None:
    """Return whose task *label* is: a call's, by its path and id; a run's, which is empty; or None."""
    match = _TASK.match(label)
    return None if match is None else match["key"] or ""


def _is_beside(record: r.Record) -> bool:
    """Tell whether *record* is of a guardrail that judges the input beside whatever else its run does."""
    return isinstance(record, r.GuardrailSettled) and record.stage == "input"


def _form_of(what: str, answer: Any) -> Any:
    """Return an answer as the application gave it: what stands in the log is plain data."""
    pair = answer if isinstance(answer, list) and len(answer) == 2 else None
    if what == "tool_use_behavior":
        return None if pair is None else ToolsToFinalOutput(is_final=pair[0], output=pair[1])
    if what == "error_handler":
        return None if pair is None else ErrorHandlerResult(pair[0], pair[1])
    if what == "policy":
        kinds: dict[Any, Any] = {"Allow": lambda _: g.Allow(), "Ask": Ask, "Deny": Deny}
        return None if pair is None or pair[0] not in kinds else kinds[pair[0]](pair[1])
    return answer


_TOLD_ELSEWHERE: dict[str, Callable[[ReplayEffects, Path, str], Any]] = {
    "failure_error_function": lambda fx, path, key: fx._of_failure(path, key, "failure_error_function"),
    "timeout_error_function": lambda fx, path, key: fx._of_failure(path, key, "timeout_error_function"),
    "tool_error_formatter": ReplayEffects._tool_error,
    "output_store": ReplayEffects._store,
    "custom_data_extractor": ReplayEffects._custom_data,
    "input_filter": ReplayEffects._input_filter,
    "session_input_callback": ReplayEffects._merged_input,
    "input_builder": ReplayEffects._built_input,
    "custom_output_extractor": ReplayEffects._extracted_output,
    "on_handoff": ReplayEffects._on_handoff,
    "call_model_input_filter": ReplayEffects._filtered_request,
}
