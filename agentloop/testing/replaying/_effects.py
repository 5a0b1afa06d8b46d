"""The door of a replay: each effect returns, or raises, its recorded result, once the record of it is due.

The part that waits and compares is `ReplayLog` (`_comparison`). This module knows for each kind of effect which record
holds its result; it does not know why time passes (`_driver`).
"""

from __future__ import annotations

import asyncio
import json
import math
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from functools import wraps
from typing import Any, NoReturn

import anyio
from anyio.lowlevel import checkpoint_if_cancelled

from agentloop import guardrails as g
from agentloop import records as r
from agentloop._common.error_text import error_summary, summary_parts
from agentloop._core.failure_choice import class_of_summary
from agentloop._core.history import valid_history
from agentloop._engine.calls.output_text import render
from agentloop._engine.runtime.body_result import Paused
from agentloop._engine.runtime.event_buffer import EventBuffer
from agentloop._schema.json_text import parse_object
from agentloop._storage.withholding import Withheld, WithheldText
from agentloop.abc import effects as e
from agentloop.agents._tool_search import FoundText
from agentloop.config.hooks import RunOutcome
from agentloop.exceptions import AgentLoopError, OutcomeUnknown, UserError
from agentloop.lab._recorded_errors import is_rebuilt, rebuilt, rebuilt_model_error
from agentloop.limits import Limit
from agentloop.outcomes import FROM_ABOVE
from agentloop.settings import JsonLimits
from agentloop.testing.replaying._callbacks import answered, is_told_elsewhere, told_elsewhere
from agentloop.testing.replaying._comparison import (
    BEFORE_TIMERS,
    CLEARLY,
    Moments,
    NoVerdict,
    ReplayLog,
    is_input_guardrail,
    is_of_input,
    pass_time,
    task_key,
    timeout_at,
)
from agentloop.testing.replaying._raised_hooks import same_error
from agentloop.testing.replaying._recorded import (
    FROM_OUTSIDE,
    INPUTS,
    Call,
    Path,
    RecordedRun,
    Standin,
    ends_from_outside,
    list_errors,
    same_output,
)
from agentloop.tools import ExternalBody

SAVING = "saving to the session"
"""The name of an effect that writes to the session, while it waits."""
_current_path: ContextVar[Path] = ContextVar("agentloop_replay_path", default=())
"""The run whose model call the current task makes: the effects `Random` and `Sleep` don't name their run."""


def _guarded(do: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Return *do*, an async method of the effects that raises recorded errors, which keeps any other as a fault."""

    @wraps(do)
    async def called(self: ReplayEffects, *given: Any) -> Any:
        try:
            return await do(self, *given)
        except Exception as error:
            # The library's errors and groups are those of nested runs.
            if not is_rebuilt(error) and not isinstance(error, AgentLoopError | ExceptionGroup):
                self.keep_fault(error)
            raise

    return called


class ReplayEffects(ReplayLog):
    """The effects of one attempt to replay a recorded run, in place of the application's `Effects`.

    `Replaying` makes one for each attempt; the tasks of the replayed run and the driver change it.
    """

    def __init__(
        self, recorded: RecordedRun, *, hooks_raise_user_errors: bool = False, moments: Moments | None = None
    ) -> None:
        super().__init__(recorded, moments or {})
        self.hooks_raise_user_errors = hooks_raise_user_errors
        """True if hooks raise the library's `UserError`, too; else the run is to raise it by itself.

        Its other errors are the run's: a model's that doesn't fit, a limit. A replay that takes one for a hook's would
        follow a log that the definitions no longer lead to.
        """
        self.hook_may_have_raised = False
        """True once a run has come to its end by a `UserError` right after a hook, which hasn't raised it."""
        self._errors_of_ends: defaultdict[Path, list[BaseException]] = defaultdict(list)
        self.writes: dict[Path, anyio.CancelScope] = {}
        """By run, the scope of the section in which it writes to its session, if that was cut."""

    # -- the door

    @_guarded
    async def perform(self, effect: Any) -> Any:
        """Return the recorded result of *effect* once its record is due.

        Cancellation: an effect that has a record completes in spite of it; one without a record is cancelled.

        Raises:
            BaseException: the recorded error of the effect.
        """
        match effect:
            case e.NewId():
                started: Any = self.records[self.entry.start]
                return started.run_id
            case e.Now():
                return self.wall()
            case e.Random():
                return await self._draw_random()
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
            case e.AwaitInput(path):
                return await self._await_input(path)
            case e.CallCallback(path, "compaction"):
                return await self._compact(path)
            case e.CallCallback(path, what, key):
                if is_told_elsewhere(what):
                    return await told_elsewhere(self, path, what, key)
                return await answered(self, path, what, key)

    async def _await_input(self, path: Path) -> bool:
        """Wait until the next input is due, which is the result of a background call, and let the run have it.

        Return False if the run ended without one: no body ran.
        """
        index, end, what = self.find(r.InputAdded, path), self.find(r.RunEnded, path), "the result of a background call"
        if index is None:
            if end is not None and not self._cuts_effects(end):
                return False
            await self.cut_off(path, None, what)
        await self.known(index, what)
        self.insert_given()
        return True

    async def _draw_random(self) -> float:
        path = _current_path.get()
        index = self.find(r.CallbackReturned, path, lambda record: record.what.startswith("random:"), claim=True)
        if index is None:
            return 0.5  # nothing is recorded that depends on it, or the replay diverges
        return float((await self.known(index, "a draw of chance")).answer)

    async def _sleep(self) -> None:
        path = _current_path.get()
        index = self.find(r.ModelRequested | r.RunEnded, path)
        found: Any = None if index is None else self.records[index]
        in_time = isinstance(found, r.ModelRequested) or "UsageLimitExceeded" in (getattr(found, "error", None) or "")
        if index is None or not in_time:
            await self.cut_off(path, None, "the wait before another attempt")
        await self.known(index, "the wait before another attempt")

    def _cuts_effects(self, index: int) -> bool:
        """Tell whether record *index* is the end of a run that cut its effects: from outside, or by a guardrail that
        tripped beside the model call.
        """
        record = self.records[index]
        tripped = "InputGuardrailTripwireTriggered("
        return self._ends_from_outside(index) or (
            isinstance(record, r.RunEnded) and record.status == "failed" and (record.error or "").startswith(tripped)
        )

    async def _call_model(self, effect: e.CallModel) -> Any:
        path = effect.path
        _current_path.set(path)
        what = "the model's answer"
        index = self.find(r.ModelResponded | r.ModelFailed, path)
        found: Any = None if index is None else self.records[index]
        cancelled = isinstance(found, r.ModelFailed) and found.error == "cancelled"
        if index is None or cancelled:
            return await self.cut_off(path, None, what, cancelled=cancelled)
        await self.known(index, what)
        if isinstance(found, r.ModelResponded):
            return found.response
        if found.streamed:
            effect.note_shown()
        error = rebuilt_model_error(found)
        if self._is_final(index):
            error.should_retry = False  # type: ignore[attr-defined]
        raise error

    def _is_final(self, index: int) -> bool:
        """Tell whether a failed attempt was the last one, though its error allows a retry: the run had no time left."""
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
        self._stop_timeouts(path, call_id)
        nested, what = (*path, call_id), f"the body of call {call_id}"
        begins = self.next_of_run(nested)
        if begins is not None:
            await self.known(begins, f"the run of call {call_id}")
        if begins is not None or self._is_over(nested):
            return await self._play_nested_run(effect)
        if isinstance(effect.definition.body, ExternalBody) and (value := await self._take_answer(effect)) is not None:
            return value[0]
        index = self.next_of_call(path, call_id, r.BodyEnded | r.CallSettled)
        found: Any = None if index is None else self.records[index]
        if isinstance(found, r.BodyEnded):
            assert index is not None
            return await self._play_body(index, found, what)
        if isinstance(found, r.CallSettled) and found.outcome.status == "succeeded":
            assert index is not None
            await self.known(index, what)
            self.drop_end_hooks(path, call_id)
            return self.value_of_outcome(found)
        return await self._play_cut_body(path, call_id, found, what)

    async def _take_answer(self, effect: e.CallTool) -> tuple[Any] | None:
        """Let the call ask the application, or end in time, as the log shows; None if it has an answer, or was cut."""
        assert self.log is not None
        run = self.log.state.at(effect.path)
        assert run is not None
        answer = run.calls[effect.call_id].answer
        if answer is not None and not answer.late:
            return None
        kinds = r.AnswerRequested if answer is None else r.BodyEnded | r.CallSettled
        index = self.next_of_call(effect.path, effect.call_id, kinds)
        if index is None:
            return None
        if index != self.cursor:  # else in the very step of the start: what follows in the log comes after it
            await self.known(index, f"the answer to call {effect.call_id}")
        return (await effect.do(),)

    def _is_over(self, nested: Path) -> bool:
        """Tell whether the run at *nested* ended in an earlier segment: then its call returns without a record of it.

        A run that isn't over, and has no record in this segment, was cut off before it began.
        """
        assert self.log is not None
        run = self.log.state.at(nested)
        return run is not None and run.ended is not None and not run.ended.resumable

    def _stop_timeouts(self, path: Path, call_id: str) -> None:
        """Stop the timeouts of a call whose body ended in time, and of one that the log shows as cut (`end_calls`).

        The log doesn't tell when the body began.
        """
        settled, live = self.settled(path, call_id), self.live_call((path, call_id))
        if live is not None and any((path, call_id) in calls for calls in self.ended_calls.values()):
            live.scope.deadline = math.inf
        if live is None or settled is None or not settled.outcome.body_finished:
            return
        ended = self.next_of_call(path, call_id, r.BodyEnded)
        too_late = self._took_too_long(settled) if ended is None else self._is_late(ended, settled)
        if not too_late and timeout_at(live) < math.inf:
            live.body.ends_at, live.scope.deadline = math.inf, math.inf

    async def _play_nested_run(self, effect: e.CallTool) -> Any:
        """Replay the run of an agent tool like its parent, and end when the body of the call had ended."""
        path, call_id = effect.path, effect.call_id
        try:
            value = await effect.do()
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException:
            # Shielded, and released when the replay is over.
            await self._end_stream(path, call_id)  # noqa: ASYNC102, ASYNC120 - as said
            raise
        await self._end_stream(path, call_id, paused=isinstance(value, Paused))
        self.drop_end_hooks(path, call_id)
        return value

    async def _end_stream(self, path: Path, call_id: str, *, paused: bool = False) -> None:
        """Wait until the end of an agent tool's body is due: its `on_stream` may have waited over the last events.

        Cancellation: the wait is shielded. Not a checkpoint where the body ended together with its run.
        """
        if paused and self.find(r.RunResumed, (*path, call_id)) is not None:
            return  # a verdict or an answer came while the run around it was under way: the body continues there
        index = self.next_of_call(path, call_id, r.BodyEnded | r.CallSettled)
        found: Any = None if index is None else self.records[index]
        if index is None and not self.entry.ended and not paused:
            await self.body_over(path, call_id, "on_stream")
        returned = isinstance(found, r.CallSettled) and found.outcome.status == "succeeded"
        if index is None or not (returned or isinstance(found, r.BodyEnded)):
            settled: Any = found if isinstance(found, r.CallSettled) and not found.outcome.body_finished else None
            timed_out = settled is not None and settled.outcome.status == "timed_out"
            if timed_out or (settled is not None and not paused and settled.error is None):
                await self.cut_off(path, call_id, "on_stream", cancelled=True)
            return
        if index != self.cursor or self.records[index].at - self.records[index - 1].at > CLEARLY:
            await self.until(index, "on_stream")
        over = self.settled(path, call_id)
        if isinstance(found, r.BodyEnded) and not found.failed and over is not None and _is_late(over.outcome):
            self._pass_time_limit((path, call_id))  # it passed while the run ended, which nothing interrupts

    async def _play_cut_body(self, path: Path, call_id: str, settled: r.CallSettled | None, what: str) -> Any:
        """Act as a body that was cut off, or that cancelled itself: wait, then raise the cancellation."""
        if settled is not None and settled.outcome.body_finished:
            await self.body_over(path, call_id, what)
            if not self.over:
                if self._took_too_long(settled):
                    self._pass_time_limit((path, call_id))
                raise asyncio.CancelledError(settled.outcome.reason)  # a body's own, on either backend
        self.end_calls()  # the end of this call may have been due before its body began
        try:
            return await self.cut_off(path, call_id, what, cancelled=True)
        except anyio.get_cancelled_exc_class():
            await self.body_over(path, call_id, what)  # noqa: ASYNC102 - shielded, and released when the replay is over
            raise

    async def _play_body(self, index: int, ended: r.BodyEnded, what: str) -> Any:
        settled = self.settled(ended.path, ended.call_id)
        late = settled is not None and not ended.failed and self._is_late(index, settled)
        if settled is not None and ended.failed and self._breaks_at_end(index, settled):
            await self._break_cleanup(index, ended, what)
        if settled is not None and (late or not settled.outcome.body_finished):
            try:
                return await self.cut_off(ended.path, ended.call_id, what, cancelled=True)
            except anyio.get_cancelled_exc_class():  # noqa: ASYNC103
                await self.until(index, what)  # noqa: ASYNC102 - shielded, and released when the replay is over
                if self.over:
                    raise
                if ended.failed:  # in its cleanup
                    raise rebuilt(_said_in(ended)) from None  # noqa: ASYNC104
                if late:
                    self._pass_time_limit((ended.path, ended.call_id))
                return self.value_of(ended, settled)  # noqa: ASYNC104
        await self.known(index, what)
        if ended.failed:
            raise rebuilt(_said_in(ended), fatal=ended.fatal)
        return self.value_of(ended, settled)

    def _breaks_at_end(self, index: int, settled: r.CallSettled) -> bool:
        """Tell whether the run was ended from outside in the step in which a body raised, at record *index*, in a
        cleanup that something else had caused: a timeout, or the body's own scopes.
        """
        cut = settled.outcome.cancelled_by in FROM_ABOVE and not settled.outcome.body_finished
        return cut and index + 1 < self.entry.stop and ends_from_outside(self.records[index + 1])

    async def _break_cleanup(self, index: int, ended: r.BodyEnded, what: str) -> NoReturn:
        """Raise the error of a body as an error in its cleanup, when record *index* is due.

        Cancellation: the wait is shielded.
        """
        with anyio.CancelScope() as scope:
            scope.cancel()
            try:
                await anyio.sleep_forever()
            finally:
                await self.until(index, what)  # noqa: ASYNC102 - shielded, and released when the replay is over
                if not self.over:
                    raise rebuilt(_said_in(ended)) from None
        await anyio.sleep_forever()  # the run is being ended
        raise AssertionError

    def _is_late(self, index: int, settled: r.CallSettled) -> bool:
        """Tell whether a body that returned, at record *index*, did so after its timeout: its value didn't count."""
        outcome = settled.outcome
        if outcome.cancelled_by != "sibling" or not outcome.body_finished:
            return _is_late(outcome)
        later = self.recorded.first(
            self.recorded.calls[settled.path, settled.call_id],
            index + 1,
            self.entry.stop,
            lambda one: isinstance(one, r.CleanupCut | r.CallSettled),
        )
        return later is not None and self.records[later] is settled  # else a failure has cut what followed the body

    def _took_too_long(self, settled: r.CallSettled) -> bool:
        """Tell whether a body that cancelled itself did so after its timeout."""
        live, outcome, over = self.live_call((settled.path, settled.call_id)), settled.outcome, settled.body_ended_at
        body = None if live is None else live.body
        if outcome.status != "rejected" or body is None or outcome.started_at is None or over is None:
            return outcome.status == "timed_out"
        return bool(over - outcome.started_at >= body.ends_at - body.began)

    def _pass_time_limit(self, call: Call) -> None:
        """Let time pass up to the timeout of a call whose body ended after it."""
        live = self.live_call(call)
        seconds = timeout_at(live) - anyio.current_time() if live is not None else math.inf
        if 0 < seconds < math.inf:
            pass_time(seconds + BEFORE_TIMERS)

    def value_of(self, ended: r.BodyEnded, settled: r.CallSettled | None) -> Any:
        """Return the value of the body, or a placeholder for a value that the log doesn't hold: the output as text."""
        output = settled.outcome.output if settled is not None else None
        if ended.kept:
            plain = type(ended.value) is str
            if plain or settled is None or output is None or same_output(output, render(ended.value)):
                return ended.value
        self.standins.add(ended.path)
        return Standin(output if isinstance(output, str) else "")

    def value_of_outcome(self, settled: r.CallSettled) -> Any:
        """Return the value of a body whose call settled at once: of a stored log, the output itself."""
        value, output = settled.outcome.value, settled.outcome.output
        if settled.outcome.found is not None and value is None:
            self.standins.add(settled.path)
            return FoundText(output, settled.outcome.found) if isinstance(output, str) else output
        if value is not None and (type(value) is str or same_output(output, render(value))):
            return value
        self.standins.add(settled.path)
        return output

    # -- guardrails

    async def _guard(self, effect: e.Guard) -> Any:
        path, call_id = effect.path, effect.call_id
        what = f"guardrail {effect.name}"

        def fits(record: r.GuardrailSettled) -> bool:
            return (record.stage, record.guardrail, record.call_id) == (effect.stage, effect.name, call_id)

        index = self.find(r.GuardrailSettled, path, fits, claim=True)
        try:
            settled: r.GuardrailSettled = await self.told(index, path, call_id, what)
        except NoVerdict:
            return g.GuardrailFunctionOutput(None, False)
        if settled.verdict == "ask_again":
            return g.AskAgain(_as_text(settled.detail), settled.info)
        if call_id is None:
            return g.GuardrailFunctionOutput(settled.info, settled.verdict == "tripped")
        return self._build_verdict(settled)

    def _build_verdict(self, settled: r.GuardrailSettled) -> Any:
        match settled.verdict:
            case "RejectContent":
                return g.RejectContent(self._find_refusal(settled), settled.info)
            case "RaiseException":
                return g.RaiseException(settled.info)
            case "Rewrite":
                return g.Rewrite(self._find_rewritten_arguments(settled), settled.info)
            case "ReplaceOutput":
                return g.ReplaceOutput(self._find_replaced_output(settled), settled.info)
            case _:
                return g.Allow(settled.info)

    def _find_refusal(self, settled: r.GuardrailSettled) -> str:
        """Return the text of a refusal; if the record has only its digest, the text in the call's outcome."""
        if isinstance(settled.detail, str):
            return settled.detail
        call = None if settled.call_id is None else self.settled(settled.path, settled.call_id)
        output = None if call is None else call.outcome.output
        return output if isinstance(output, str) else ""

    def _find_rewritten_arguments(self, settled: r.GuardrailSettled) -> Any:
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

    def _find_replaced_output(self, settled: r.GuardrailSettled) -> Any:
        assert settled.call_id is not None
        call = self.settled(settled.path, settled.call_id)
        output = call.outcome.output if call is not None else None
        if output is None or type(settled.detail) is str or same_output(output, render(settled.detail)):
            return settled.detail
        self.standins.add(settled.path)
        return Standin(output if isinstance(output, str) else "")

    # -- sessions

    async def _load_session(self, path: Path) -> Any:
        index = self.find(r.RunStarted, path)
        if index is None:
            return []  # a check after a resume if the last write took place; it is repeated, without effect
        started: Any = self.records[index]
        if started.shown is None:
            return await self.cut_off(path, None, "loading the session")
        await self.known(index, "loading the session")
        before = len(started.shown) - len(started.input)
        # If a callback of the application merged session and input, the engine calls it, and the log has its answer.
        return list(started.shown[:before]) if started.shown[before:] == started.input else []

    async def _save_session(self, path: Path) -> None:
        index = self.next_of_run(path)
        if index is not None and isinstance(self.records[index], r.SessionSaved):
            await self.known(index, SAVING)
            return
        text = None if index is None else self._find_error_of_save(path, index)
        if index is None or text is None:
            await self._cut_write(path)
        await self.known(index, SAVING)
        error = self._rebuild(path, text)
        self._errors_of_ends[path].append(error)
        raise error

    async def _cut_write(self, path: Path) -> NoReturn:
        """Act as a write to the session that was cut: wait for it. Its section was the last to be entered."""
        self.writes[path] = next(reversed(self.live_run(path).cleanup._sections))
        try:
            await self.cut_off(path, None, SAVING)
        finally:
            del self.writes[path]

    def _find_error_of_save(self, path: Path, index: int) -> str | None:
        """Return what writing to the session raised, in a run whose next record is *index*; None if it was cut."""
        places, end = self.recorded.paths[path], self.find(r.RunEnded, path)

        def shows_more(one: Any) -> bool:
            return not isinstance(one, r.CleanupCut) or one.section == "session save"

        if end is None or self.recorded.first(places, index, end, shows_more) is not None:
            return None
        last: Any = self.records[end]
        errors = list_errors(last)
        if last.status == "failed" and self.live_run(path).cleanup._begun:
            del errors[:1]  # the run is ending by that one
        if errors:
            return errors[0]
        return "" if last.status == "cancelled" else None

    # -- the window

    async def _compact(self, path: Path) -> r.HistoryReplaced | None:
        """Return the next record of the run if it replaces the history by a shorter one, else None.

        Whether that was due, and by which steps it was done, is nothing to a replay: no step is tried.

        Raises:
            BaseException: the recorded error, if the run ended by it.
        """
        index = self.find(
            object, path, lambda record: not isinstance(record, _BESIDE) and not is_input_guardrail(record)
        )
        end = None if index is None else self.skip_last_steps(index)
        if index is None or end is None or self._cuts_effects(end):
            await self.cut_off(path, None, "the compaction")
        record = await self.known(index, "the compaction")
        last = self.records[end]
        if isinstance(last, r.RunEnded) and last.status == "failed":
            raise rebuilt(last.error or "")
        return record if isinstance(record, r.HistoryReplaced) and record.reason == "compaction" else None

    # -- hooks: points at which a run may have waited

    @_guarded
    async def run_hook(self, path: Path) -> None:
        """Wait until the next record of the run is due, as if its hooks had taken the time.

        Raises:
            BaseException: the recorded error of a hook, if it ended the run.
        """
        index = self.find(object, path, lambda record: not is_input_guardrail(record))
        if index is None:
            await self.cut_off(path, None, "a hook")
        end = self.skip_last_steps(index)
        if self._cuts_effects(end) and self.before_end(end, index) == end and not self.is_stopped_by_caller():
            await self.cut_off(path, None, "a hook")
        if _is_unstarted(self.records[index]) and not self._has_started(index):
            return  # its call had waited in the queue until then, so the hook had returned long before
        place, at = self.queued.get((path, self.records[index].turn), (index, 0.0))
        if place < index and isinstance(self.records[index], r.CallStarted | r.GuardrailSettled | r.CallSettled):
            await self.until(place, "a hook", in_time=False)  # the calls were queued then: the hook had returned
            self.come_up(at)
            return
        before_end = self.before_end(index)
        if before_end < index:  # it had returned before the run was ended, since the run did more
            await self.until(before_end, "a hook", in_time=False)
            return
        text = self._find_error_of_hook(path, index, end)
        if text is not None:
            self.runs_failing["/".join(path)] = index
        await self.known(index, "a hook", in_time=False)  # a later step may have taken the time
        if text is not None:
            del self.runs_failing["/".join(path)]
            raise self._rebuild(path, text)

    def _find_error_of_hook(self, path: Path, index: int, end: int) -> str | None:
        """Return what a hook of a run raised, whose next record is *index*, and *end* without its last steps.

        None if it returned. If the run itself would have ended so, that gives the same log.
        """
        record = self.records[end]
        if isinstance(record, r.SessionSaved | r.CleanupCut):  # perhaps of its end, which a crash has cut off
            return "" if not self.entry.ended and record is self.records[self.recorded.paths[path][-1]] else None
        if not isinstance(record, r.RunEnded) or record.status != "failed" or record.error is None:
            return None
        if end == index and not record.details and self._has_to_save(path):
            return None  # it would have saved then; so it came further, and saving failed
        own = class_of_summary(record.error)
        if own is None or (self.hooks_raise_user_errors and issubclass(own, UserError)):
            return record.error
        self.hook_may_have_raised |= issubclass(own, UserError) and not record.resumable
        return None

    def _has_to_save(self, path: Path) -> bool:
        """Tell whether the run would write to its session if it ended now by an error."""
        run = self.live_run(path)
        session = run.settings.session
        if session is None or session.failed:
            return False
        due = valid_history((*session.held, *run.state.new_items[session.saved :]))
        return bool(due or not session.input_saved or session.before is not None)

    @_guarded
    async def run_end_hook(self, path: Path, outcome: RunOutcome) -> None:
        """Wait until the last record of a run is due, unless others come before.

        Raises:
            BaseException: what the log shows beside the errors that the run has ended by up to here.
        """
        index = self.find(r.RunEnded, path)
        if index is None:
            return
        between = self.records[self.cursor : index]
        if all(isinstance(record, (r.CleanupCut, *FROM_OUTSIDE)) for record in between):
            await self.until(index, "on_run_end", in_time=False)
        left = list_errors(self.records[index])
        raised = {*self._errors_of_ends[path], *([] if outcome.error is None else [outcome.error])}
        for text in map(error_summary, raised):
            place = next((place for place, one in enumerate(left) if same_error(one, text)), None)
            if place is not None:
                del left[place]
        if left and not self.over:
            ends = outcome.status in ("failed", "cancelled") and left[0] == getattr(self.records[index], "error", None)
            raise self._rebuild(path, left[0], fatal=ends)  # only such an error outranks the earlier end

    def _rebuild(self, path: Path, text: str, *, fatal: bool = False) -> BaseException:
        """Return an error with the summary *text* that ended the run at *path*.

        It is as fatal as the body around a nested run says; *fatal* counts where nothing says it.
        """
        index = self.next_of_call(path[:-1], path[-1], r.BodyEnded) if path else None
        around: Any = None if index is None else self.records[index]
        return rebuilt(text, fatal=fatal if around is None else around.fatal)

    def _rebuild_bare(self, path: Path, text: str) -> BaseException:
        """Return an error of a call's hook with the summary *text*, which its run raises as it is.

        It is fatal, or of a class that derives from one of the library's: only of a nested run the log tells which.
        """
        if class_of_summary(text) is not None:
            return rebuilt(text)
        error = self._rebuild(path, text, fatal=True)
        return rebuilt(text, base=AgentLoopError) if isinstance(error, Exception) else error

    def _has_started(self, index: int) -> bool:
        settled: Any = self.records[index]
        places = self.recorded.calls[settled.path, settled.call_id]
        return any(isinstance(self.records[place], r.CallStarted) for place in places if place < index)

    def current_run(self) -> tuple[Path, int]:
        """Return the path and the turn of the run that the current task drives."""
        assert self.log is not None
        key = task_key(f"{anyio.get_current_task().name}#0") or ""
        path = next((path for path in self.recorded.paths if "/".join(path) == key), ())
        state = self.log.state.at(path)
        return path, 0 if state is None else state.turn

    def follow(self, record: r.Record) -> None:
        """Do what is due after *record*, which is folded now."""
        if isinstance(record, r.TurnStarted):
            self.beginning.discard(record.path)
        self.cancel_unseen()
        self.insert_given()
        self.insert_cuts()
        self.cause_end_at_once()
        self.admit_held()

    @_guarded
    async def begin_turn(self) -> None:
        """Wait until the next turn of the current run is due, or the input that it is shown before that turn.

        Its consumer may have been slow to read events, and input may have come meanwhile.
        """
        path, _ = self.current_run()
        self.beginning.add(path)
        index = self.find(object, path, lambda record: not is_input_guardrail(record))
        if index is None and self.entry.ended:
            return
        if index is None or self._cuts_effects(self.skip_last_steps(index)):
            await self.cut_off(path, None, "the consumer")
        following = self.records[index]
        if isinstance(following, r.TurnStarted | r.InputShown) or is_of_input(following):
            await self.known(index, "the consumer", in_time=False)

    @_guarded
    async def start_hook(self, path: Path, call_id: str) -> None:
        """Raise the recorded error of a start hook of a call: the call failed, and its body has no record."""
        index = self.next_of_call(path, call_id)
        record: Any = None if index is None else self.records[index]
        if index is not None and isinstance(record, r.CallSettled) and record.outcome.status == "failed":
            await self.known(index, "on_tool_start")
            text = record.error or ""
            end = self.find(r.RunEnded, path)
            bare = end is not None and self.records[end].error == text  # type: ignore[union-attr]  # as its kind says
            raise self._rebuild_bare(path, text) if bare else rebuilt(text)

    @_guarded
    async def end_hook(self, path: Path, call_id: str) -> None:
        """Wait until the next record of the call is due: its settlement.

        Raises:
            BaseException: the error of the hook, if it raised one.
        """
        index = self.next_of_call(path, call_id)
        if index is None or isinstance(self.records[index], r.CleanupCut):
            await self.cut_off(path, call_id, "on_tool_end")
        await self.until(index, "on_tool_end", in_time=False)
        if not self.over and (text := self.hooks_raising.get((path, call_id))) is not None:
            raise self._rebuild_bare(path, text) if text else rebuilt(text)


class _RecordedAdmission(Limit):
    """Admits calls of one turn as long as the log shows that one more was admitted. Owned by the turn's batch."""

    freed_by_calls = False

    def __init__(self, effects: ReplayEffects, path: Path, turn: int) -> None:
        self._effects, self._path, self._turn = effects, path, turn

    def free(self, now: float) -> float:
        """Return infinity if calls may start, else 0."""
        admits = self._effects.guarded(self._effects.admits_more, True)
        return math.inf if admits(self._path, self._turn) else 0

    def take(self, now: float) -> None:
        """Do nothing: the log tells."""

    def give(self) -> None:
        """Do nothing: the log tells."""


class Consumer(EventBuffer, kw_only=True):
    """Replaces the reader of the run's events: a turn begins when its record is due, as with a slow reader."""

    effects: ReplayEffects

    def has_room_for(self, calls: int) -> bool:
        """Return False: each batch has a gate."""
        return False

    def new_gate(self) -> Limit:
        """Return a gate that admits the calls of a turn only as the log does: a slow consumer may have held them."""
        return _RecordedAdmission(self.effects, *self.effects.guarded(self.effects.current_run, ((), 0))())

    def record(self, record: r.Record) -> None:
        """Append the inputs, cause the cancellation or append the cut that is due after *record*, which is folded now.

        Nothing reads events in a replay.
        """
        self.effects.guarded(self.effects.follow)(record)

    async def room(self) -> None:
        """Wait until the next turn of the run is due. Not a checkpoint, but raises a pending cancellation."""
        await self.effects.begin_turn()
        await checkpoint_if_cancelled()


_BESIDE = (*INPUTS, r.CancelRequested, r.DeadlinePassed)
"""Records of what came from outside, at any moment."""


def _as_text(detail: Any) -> str:
    """Return what a guardrail said, or the mark that the log has in its place."""
    return WithheldText(json.dumps({detail.mark: detail.text})) if isinstance(detail, Withheld) else str(detail or "")


def _is_late(outcome: Any) -> bool:
    """Tell whether a body had returned too late: only then does a returned value give such an outcome."""
    by_caller = outcome.cancelled_by == "caller" and outcome.body_finished
    return bool(outcome.status == "timed_out" or by_caller)


def _is_unstarted(record: r.Record) -> bool:
    return isinstance(record, r.CallSettled) and record.outcome.status in ("skipped", "cancelled")


def _said_in(ended: r.BodyEnded) -> str:
    """Return what the error of a body said: all of it where no error function words it for the model, a doubt."""
    error = ended.error or ""
    return ended.details or error if summary_parts(error)[0] == OutcomeUnknown.__name__ else error
