"""The calls of one turn: queues them, starts their tasks, and appends their outcomes.

Does not run bodies, guardrails or end hooks: `run_call` does, in the call's own task, and reports back to the batch.

Order of calls: the *owner* is the task that runs the batch. It makes the `Batch`, settles the answered calls by
`answer`, enters the turn nursery, calls `open`, and then `wait` and `step` in turns until all have settled; when the
nursery has closed it calls `forget` and `raise_failure`. The queue calls `LiveCall.start`, which calls
`Batch.spawn`; the task then ends in one of `settle`, `pause` or `settle_abandoned`. A queued call is a plan entry and
not a task, so a thousand calls under a cap of eight are eight tasks.

Facts: `LiveCall.phase` and `cancelled`; `Batch.failures`, `halted`, `stopped`, `closed`. Indexes: `calls` (only those
that haven't settled), `unsettled` (their number without those that are paused), `_current` (the calls of the queued
segment that are still to settle), `_equal` (equal calls by receipt: the first one runs, the others wait for its end).

Invariants: each call gets one outcome, in one synchronous step of the loop. A failure that will be raised marks the
batch in that step (nothing more is admitted) and wakes the owner, which cancels the other calls when it next runs. So
every body that ends in the same scheduler pass still settles, and the raised error depends on classes, phases and model
order, not on timing. (Rejected: the failing task cancels its siblings. The error was then random on trio.)

A sibling's failure cancels each call's own scope, not the nursery's. Between the end of a body and its settling, a
sibling can no longer cancel the call, because its effect has happened; a cancelled parent still can.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Iterable, Sequence
from contextvars import copy_context

import anyio

from agentloop._common.empty_containers import NO_DICT, append_to
from agentloop._common.error_text import error_summary, is_fatal
from agentloop._concurrency.backend import is_cancelled_around, unexpected_cancellation
from agentloop._concurrency.nursery import new_nursery
from agentloop._core.cancellation import Cause
from agentloop._core.failure_choice import Failure, choose_failure
from agentloop._core.failure_choice import choose as choose_error
from agentloop._core.plan import Answer, Arguments, AwaitVerdict, Deliver, Execute, Plan, PlanEntry, Replay
from agentloop._core.step_order import CallNeeds, CallSteps, choose
from agentloop._engine.calls.call import run_call
from agentloop._engine.calls.live_call import FIRST, CancelRequest, Earlier, LiveCall, Step
from agentloop._engine.calls.output_text import cut_output
from agentloop._engine.calls.steps import STEPS
from agentloop._engine.runtime.callbacks import find_tool_hooks
from agentloop._engine.runtime.cancel_source import cancel_source, find_cancel_source
from agentloop._engine.runtime.dispatcher import NO_QUEUE, CapQueue, Dispatcher, Queue
from agentloop._engine.runtime.live_run import LiveRun
from agentloop.abc import StillRunning
from agentloop.items import ToolCall
from agentloop.limits import Capacity, Limit, OrderedCapacity
from agentloop.outcomes import CallOutcome
from agentloop.records import CallSettled
from agentloop.tools import FunctionTool

CLOCK_SLACK = 1e-9
"""Seconds added to each wake-up time: by the rounding error of a sum, a clock may read less than the requested time."""


class Batch:
    """The calls of one turn. Owned by the task that runs it; the calls' tasks mutate it as they settle.

    All methods but `end_cancelled` are synchronous: no other task sees a half-done step.
    """

    in_background = False
    """True if its calls have settled: what they give are results, and no outcomes."""

    def __init__(self, run: LiveRun, plan: Plan) -> None:
        self.run = run
        self.execution = run.settings.config.tool_execution
        self.calls: dict[str, LiveCall] = {}
        """The calls without an outcome, by id, in model order."""
        self.answers: list[tuple[ToolCall, Answer]] = []
        self.failures: Sequence[Failure] = ()
        self._opened = False
        self.halted = False
        self.stopped: Cause | None = None
        self.stopped_by_call: str | None = None
        """The id of the call whose failure stopped the batch."""
        self.stopped_at: float | None = None
        """Wall-clock time at which the batch was stopped."""
        self.closed = False
        """True once the event loop is gone, so that nothing can be awaited, woken or started any more."""
        self.nursery = new_nursery(self._lose_task, copy_context())
        self._segments: list[list[LiveCall]] | None = None  # last first; an empty deque takes 0.7 KiB of each turn
        self._current: set[LiveCall] | None = None
        self.unsettled = 0
        """The number of calls without an outcome that are not paused."""
        self._equal: dict[str, list[LiveCall]] = NO_DICT
        self._opened_at = 0.0 if self.execution.queue_timeout is None else self.nursery.now()
        self.queued_at = run.tree.log.wall()
        self.hooks = find_tool_hooks(run.settings.hooks, run.agent.hooks)
        self._gate: Limit | None = None
        self.waiting: Queue = NO_QUEUE
        """The calls that wait for room."""
        self._dispatcher: Dispatcher | None = None
        """The same, if calls wait for more than the batch's own cap: then time alone may give them room."""
        self._needs = CallNeeds(
            budget=run.settings.budget is not None,
            spans=run.tree.log.spans is not None,
            journal=run.tree.log.journal is not None,
            hooks=bool(self.hooks),
            output_store=run.settings.config.output_store is not None,
            replayed=run.tree.log.expect is not None,
            formats_errors=run.settings.config.tool_execution.error_formatter is not None,
        )
        self._sleeps_until = math.inf
        self._report_next = -math.inf
        """The time, on the loop's clock, at which bodies that still run are reported again."""
        if plan:
            self._build(plan)

    def room(self) -> None:
        """Admit the calls that waited for the stream's consumer, which has caught up."""
        if self._gate is not None:
            self._gate.report_room()
        self.waiting.pump()

    # -- building

    def _build(self, plan: Plan) -> None:
        """Cut the plan into segments: an exclusive call, and each call of a sequential turn, is one by itself.

        Segments, and not a lock: a permit is given back when the body ends, and "after the earlier calls" means
        settled, output guardrails included.
        """
        sequential = (self.execution.mode or self.run.agent.tool_execution) == "sequential"
        self._gate = self._choose_gate(plan, sequential=sequential)
        base = self._limits_of_all(len(plan))
        groups: dict[str, Limit] = {}
        tools: dict[FunctionTool, tuple[CallSteps[Step], tuple[Limit, ...]]] = {}
        segments: list[list[LiveCall]] = []
        ends_segment = True
        for entry in plan:
            call, tool, disposition = entry.call, entry.tool, entry.disposition
            if isinstance(disposition, AwaitVerdict):
                continue
            if isinstance(disposition, Answer):
                self.answers.append((call, disposition))
                continue
            assert tool is not None  # else there is an answer
            if (known := tools.get(tool)) is None:
                known = tools[tool] = self._find_steps(tool, self._needs), _limits_of(tool, base, groups)
            (steps, limits), given = known, disposition.arguments
            if given.fault is not None:
                steps = self._find_steps(tool, self._needs.replace(fits=False))
            live = LiveCall(self.run, self, entry.index, call, tool, steps, given, limits)
            if not isinstance(disposition, Replay):
                self._restore_earlier(live, disposition)
            self.calls[call.call_id] = live
            alone = sequential or tool.exclusive
            if alone or ends_segment:
                segments.append([])
            segments[-1].append(live)
            ends_segment = alone
        segments.reverse()
        self._segments = segments
        self.run.tree.calls[self.run.state.path] = self.calls
        self.unsettled = len(self.calls)
        self._choose_queue(base, [limits for _, limits in tools.values()])

    def _limits_of_all(self, calls: int) -> tuple[Limit, ...]:
        """Return the limits of every call of the batch: its cap, which is none where it can't be reached, its gate."""
        cap, gate = self.execution.max_function_tool_concurrency, self._gate
        limits = [] if cap is None or cap >= calls else [Capacity(cap, "max_function_tool_concurrency")]
        return tuple(limits) if gate is None else (*limits, gate)

    def _choose_gate(self, plan: Plan, *, sequential: bool) -> Limit | None:
        """Return the limit that keeps calls from starting while the stream's consumer is behind; None without need.

        There is none if all calls start in one step, at once, and the buffer has room for what they say about it.
        """
        events, cap = self.run.tree.log.events, self.execution.max_function_tool_concurrency
        if events is None:
            return None
        waits = sequential or (cap is not None and cap < len(plan)) or [entry for entry in plan if _may_wait(entry)]
        return events.new_gate() if waits or not events.has_room_for(len(plan)) else None

    def _find_steps(self, tool: FunctionTool, needs: CallNeeds) -> CallSteps[Step]:
        """Return the steps of a call of *tool* with these *needs*, chosen at the first such call of the agent."""
        assert self.run.view is not None  # the plan is made by it
        known = self.run.view.call_steps
        if (steps := known.get((tool, needs))) is None:
            steps = known[tool, needs] = choose(tool, needs, STEPS)
        return steps

    def _restore_earlier(self, live: LiveCall, disposition: Execute | Deliver) -> None:
        """Restore into *live* the state that earlier run segments left of the call, if it was in one."""
        state, attempt = self.run.state.calls[live.call.call_id], disposition.attempt
        if isinstance(disposition, Deliver):
            live.earlier = Earlier(attempt, state.cut is None, disposition.body)
        elif attempt > 1 or disposition.resumed:
            live.earlier = Earlier(attempt, disposition.resumed and state.attempt == attempt)
        if live.earlier.announced:
            live.hooked = [end for _, end in self.hooks if end is not None]

    def _choose_queue(self, base: tuple[Limit, ...], limits_of_tools: Iterable[tuple[Limit, ...]]) -> None:
        """Choose the queue of the calls by their limits, of which *base* are those of all calls.

        It is the loop's shared dispatcher if a tool has a shareable limit, or else one for this batch alone, if a cap
        isn't all there is.
        """
        cap = self.execution.max_function_tool_concurrency
        if self._gate is None and all(limits is base for limits in limits_of_tools):
            if base and cap is not None:
                self.waiting = CapQueue(cap, base[0].name_shown)
            return
        bound = self.bind_limits()
        self.waiting = self._dispatcher = self.run.tree.shared.pump if bound else Dispatcher(self.nursery.now)

    def bind_limits(self) -> bool:
        """Bind the limits of the calls' tools to the event loop; tell whether there are any."""
        shared, limits = self.run.tree.shared, [one for live in self.calls.values() for one in live.tool.capacity]
        for limit in limits:
            limit.binding.bind(limit, shared, shared.loop_lives, shared.pump.pump)
        return bool(limits)

    # -- running

    def open(self) -> None:
        """Queue the first segment, without the calls whose cancellation was requested before. The nursery has been
        entered.
        """
        for call_id, request in self.run.state.cancel_requests.items():
            live = self.calls.get(call_id)
            if live is not None and live.earlier.body is None:  # else its effect has happened
                live.cancel("caller", request.reason, request.by_call)
        self._opened = True
        # Before the first calls are queued: a look that leaves calls waiting for a `Rate` must find an owner to wake.
        if self._dispatcher is not None:
            self._dispatcher.sleepers[self._wake_for] = None
        self._next_segment()

    def spawn(self, live: LiveCall) -> None:
        """Start a task of *live*, in a copy of the turn's context, or of the call's own."""
        live.begun = False
        if live.rest is None:
            live.scope = self.nursery.new_scope()
            live.clock = self.nursery.now()
            if live.steps.before and live.tool.runs_in_thread and live.place is None:
                self.run.settings.threads.join(live)
        path, call_id = self.run.state.path, live.call.call_id
        place = "/".join((*path, call_id)) if path else call_id
        name = f"agentloop call {live.tool.name} {place}"
        self.nursery.start(run_call, live, name, live.task_context)

    def _next_segment(self) -> None:
        while self._segments and not self._current and not self.halted:
            segment = [live for live in self._segments.pop() if live.phase != "settled"]
            self._current = set(segment) if self._segments else None  # of the last one nothing more needs to be known
            for live in segment:
                if live.phase == "waiting" and live.cancelled is not None:
                    self.cancel_waiting(live)
            self.waiting.enter([live for live in segment if live.may_start and not self._join_equal_call(live)])

    def _join_equal_call(self, live: LiveCall) -> bool:
        """Let *live* wait for an equal call, or settle it with that call's output; False if *live* leads its key."""
        key = live.arguments.receipt
        if key is None:
            return False
        source = self.run.state.receipts.get(key)
        if source is not None:
            self._settle_replayed(live, source)
            return True
        self._equal = self._equal or {}
        equal = self._equal.setdefault(key, [])
        equal.append(live)
        return equal[0] is not live

    def rekey(self, live: LiveCall, arguments: Arguments) -> bool:
        """Give *live* rewritten *arguments*; return False if it no longer runs in its task, True if it continues.

        It does not continue where an equal call answers it, or where it now waits for one.
        """
        old, live.arguments = live.arguments.receipt, arguments
        if old is not None and old != arguments.receipt:
            self._promote_follower(old, live)
        if arguments.receipt is None or arguments.receipt == old:
            return True
        if not self._join_equal_call(live):
            return True
        if live.phase != "settled":
            live.to("waiting")
        return False

    def _promote_follower(self, key: str, leader: LiveCall) -> None:
        """Let the first follower of *key* lead, since *leader* has no output to share."""
        equal = self._equal.get(key)
        if equal is None or equal[0] is not leader:
            return
        del self._equal[key]
        waiting = [live for live in equal if live.may_start]
        if waiting and not self.halted:
            self._equal[key] = waiting
            self.waiting.enter(waiting[:1])
            if self.execution.queue_timeout is not None and self._can_expire(waiting[0]):
                # The owner may have had no call to skip when it fell asleep, so that it would sleep past this time.
                self._wake_for(self._opened_at + self.execution.queue_timeout)

    def _settle_replayed(self, live: LiveCall, source: str) -> None:
        outcome = self.run.state.calls[source].outcome
        assert outcome is not None
        self.settle(
            live,
            CallOutcome(
                status="replayed",
                output=outcome.output,
                value=outcome.value,
                custom_data=outcome.custom_data,
                found=outcome.found,
                ended_at=self.run.tree.log.wall(),
            ),
        )

    # -- settling: synchronous, in the call's own task

    def settle(
        self, live: LiveCall, outcome: CallOutcome, failure: Failure | None = None, summary: str | None = None
    ) -> None:
        """Append the call's one outcome, which releases what is next in model order, and start the calls this allows.

        Synchronous, so that a finished effect is never lost to a cancellation. *summary* is the one of the outcome's
        error, if the caller knows it.
        """
        # Made before anything changes: if it fails, the call is still unsettled and its task settles it as failed.
        record = self._make_record(live, outcome, summary)
        live.to("settled")
        if record is not None:
            self.run.tree.log.append(record)
        if live.successor is not None and self.run.background is not None:
            self.run.background.begin(live.successor, begins=outcome.status == "succeeded")
        self.unsettled -= 1
        if failure is not None:
            self.fail(failure)
        if live.holds_permit:
            live.release_permit()
        live.context = live.ticket = None  # both hold the call
        del self.calls[live.call.call_id]
        if live.arguments.receipt is not None:
            self._share_outcome(live.arguments.receipt, live, outcome)
        self._leave_segment(live)

    def _leave_segment(self, live: LiveCall) -> None:
        """Start the next segment if *live*, which is over for this run segment, was the last of its own."""
        if self._current:
            self._current.discard(live)
        if self._segments and not self._current:
            self._next_segment()
        if not self.unsettled:
            self.nursery.ring_when_empty()

    def fail(self, failure: Failure) -> None:
        """End the batch by *failure*: nothing more is admitted, and the owner cancels the others when it next runs."""
        self.failures = append_to(self.failures, failure)
        self.halt()
        self.nursery.ring()

    def answer(self, call: ToolCall, answer: Answer, outcome: CallOutcome) -> None:
        """Settle a call that the plan answers without running it."""
        outcome = outcome.replace(output=cut_output(outcome.output, self.execution.max_output_chars))
        where, attempt = self.run.here(), answer.attempt
        error = None if outcome.error is None else error_summary(outcome.error)
        self.run.tree.log.append(CallSettled(*where, call.call_id, call.name, outcome, attempt=attempt, error=error))

    def _make_record(self, live: LiveCall, outcome: CallOutcome, summary: str | None = None) -> CallSettled:
        body, given, is_background = live.body, live.arguments, live.successor is not None
        unstarted = body is None or body.started_at is None
        return CallSettled(
            *self.run.here(),
            live.call.call_id,
            live.tool.name,
            outcome,
            None if body is None else body.ended_at,
            None if is_background else given.receipt,
            given.text if unstarted and given.text != live.call.arguments else None,
            live.earlier.attempt,
            None if outcome.error is None else summary or error_summary(outcome.error),
            is_background and outcome.status == "succeeded",
        )

    def pause(self, live: LiveCall) -> None:
        """Pause *live*, whose nested run needs a verdict: the call is over for this run segment, without an outcome."""
        live.to("paused")
        live.release_permit()
        self.unsettled -= 1
        if self.stopped is not None or self.failures:
            self._end_paused(live)
        self._leave_segment(live)

    def _end_paused(self, live: LiveCall) -> None:
        """Start a task that settles a paused call, which this run will not resume, and calls its end hooks."""
        self.unsettled += 1
        live.to("starting")
        live.cancelled = live.cancelled or CancelRequest("sibling")
        self.spawn(live)

    def _share_outcome(self, key: str, live: LiveCall, outcome: CallOutcome) -> None:
        if outcome.status != "succeeded":
            self._promote_follower(key, live)
            return
        for follower in self._equal.get(key, ())[1:]:
            if follower.may_start and not self.halted:
                self._settle_replayed(follower, live.call_id)

    # -- early ends

    def halt(self) -> None:
        """Admit nothing more, from this step on."""
        if not self.halted:
            self.halted = True
            self._withdraw(live for live in self.calls.values() if live.phase == "waiting")

    def _withdraw(self, calls: Iterable[LiveCall]) -> None:
        self.waiting.withdraw([live.ticket for live in calls if live.ticket is not None])

    def cancel_waiting(self, live: LiveCall) -> None:
        """Take the cancelled, waiting call *live* out of the queue; another task makes the outcome."""
        self._withdraw([live])
        if self._opened and not self.halted:
            live.to("starting")
            self.spawn(live)

    def stop(self, by: Cause) -> None:
        """End the batch: waiting calls settle unstarted, running ones are cancelled (by a sibling) or already are.

        *by* is "sibling", "parent" or "deadline". The first call counts.
        """
        if self.stopped is not None:
            return
        self.stopped, self.stopped_at = by, self.run.tree.log.wall()
        if by == "sibling":
            self.stopped_by_call = choose_failure(self.failures).call_id
        self._leave_dispatcher()
        self.halt()
        self.run.cleanup.begin()
        for live in list(self.calls.values()):
            if live.phase == "waiting":
                self.settle(live, live.cut(by))
            elif live.phase == "paused":
                self._end_paused(live)
            elif by == "sibling":
                live.cancel("sibling")
            elif live.phase in ("starting", "body"):
                live.note_cancelled(self.stopped_at)

    def _leave_dispatcher(self) -> None:
        """Let another batch's owner wake from now on for calls that wait for time alone."""
        if self._dispatcher is not None:
            self._dispatcher.leave(self._wake_for)

    def _expire_waiting(self) -> None:
        """Settle as skipped every call that has waited longer than `queue_timeout`."""
        limit = self.execution.queue_timeout
        if limit is None or self.halted or anyio.current_time() < self._opened_at + limit:
            return
        late = dict.fromkeys(live for live in self.calls.values() if self._can_expire(live))
        self._withdraw(late)
        for segment in self._segments or ():  # settling one of them must not start another
            segment[:] = [live for live in segment if live not in late]
        for live in late:
            text = f"Tool '{live.tool.name}' was not started: no capacity within {limit:g} seconds."
            self.settle(live, live.complete(CallOutcome(status="skipped", output=text)))

    def _can_expire(self, live: LiveCall) -> bool:
        """Tell whether *live* may be skipped as unstarted: it waits for room, and not for an equal call.

        A call that started in an earlier run segment may not: its outcome must not say that it never started.
        """
        if live.phase != "waiting" or live.earlier is not FIRST:
            return False
        return live not in self._equal.get(live.arguments.receipt or "", ())[1:]

    def settle_abandoned(self, live: LiveCall, failure: Failure | None = None) -> None:
        """Settle a call whose task has ended without settling it, or will never begin; *failure* ended the task.

        Unless the run is ending anyway, this fails it: whether the call had an effect is not known.
        """
        run = self.run
        live.begun = True
        ending = self.stopped in ("parent", "deadline") or is_cancelled_around()
        if ending:
            run.cleanup.begin()
        elif failure is None:
            failure = Failure(index=live.index, call_id=live.call_id, error=unexpected_cancellation(), phase="body")
        try:
            outcome = live.cut(cancel_source(run) if ending else "parent")
            if not ending and outcome.started_at is not None:
                outcome = outcome.replace(status="unknown", cancelled_by=None)
            self.settle(live, outcome, failure)
        except BaseException as error:  # noqa: ASYNC103 - the outcome can't be recorded: the owner must not wait for it
            if live.phase != "settled":
                live.to("settled")
                self.unsettled -= 1
                del self.calls[live.call_id]
            if live.successor is not None:
                live.successor.release_all()
            self.fail(failure or Failure(index=live.index, call_id=live.call_id, error=error, phase="post"))
        live.release_all()

    def _settle_unstarted(self) -> None:
        """Settle every call whose task was started and has not begun, as the run ends.

        A call whose start hooks ran, before or in an earlier run segment, is started again instead, so that its end
        hooks run; the first of its tasks to begin does that.
        """
        for live in list(self.calls.values()):
            if live.is_unstarted:
                if live.hooked or live.rest is not None:
                    self.spawn(live)
                else:
                    self.settle_abandoned(live)

    def _lose_task(self) -> None:
        """End the batch: other code has cancelled the task of a call before its first step. `settle` then raises."""
        self.stop(cancel_source(self.run))
        self._settle_unstarted()

    def close(self) -> None:
        """Settle every call in one step, without awaiting or waking a task: the event loop is gone."""
        if self.closed:
            return
        self.closed = self.halted = True
        log = self.run.tree.log
        log.leave_loop()
        for live in self.calls.values():
            if live.phase not in ("settled", "paused"):
                outcome = live.cut("parent")
                live.to("settled")
                log.append(self._make_record(live, outcome))

    # -- the owner

    def wait(self) -> Awaitable[None] | None:
        """Return what the owner has to await at once before its next `step`; None if every call has settled.

        No coroutine: that would be an object more for the collector in each waiting run.
        """
        if self.failures and self.stopped is None:
            self.step()
        if not self.unsettled:
            return None
        return self.nursery.wait(self._next_wake_time())

    def step(self) -> None:
        """Cancel the others when one call's failure will be raised, report what runs too long, admit what waited."""
        if self.stopped is not None and self._sleeps_until < math.inf:
            self._report_running()
        if self.failures:
            self.stop("sibling")
        self._expire_waiting()
        if self._dispatcher is not None:
            self._dispatcher.pump()

    async def end_cancelled(self) -> None:
        """End the batch as the owner's cancellation has reached it, which continues afterwards.

        Waiting calls settle unstarted, running ones are awaited, with reports past the cleanup deadline. Shielded.
        """
        self.run.cleanup.begin()
        self.halt()
        self.stop(await find_cancel_source(self.run))  # shielded inside
        self._settle_unstarted()
        with anyio.CancelScope(shield=True):  # noqa: ASYNC912 - waits as long as a body does
            while self.unsettled:
                await self.nursery.wait(self._next_wake_time())
                self._report_running()

    def _wake_for(self, room: float) -> None:
        """Wake the owner if it would sleep past *room*, the time at which a limit has room without a give-back."""
        if room + CLOCK_SLACK < self._sleeps_until:
            self.nursery.ring()

    def _next_wake_time(self) -> float:
        """Return the time on the loop's clock at which the owner has something to do although no call has settled."""
        if self.stopped is not None:
            deadline, now = self.run.cleanup.deadline, anyio.current_time()
            until = now + 1.0 if deadline is None else max(deadline, self._report_next)
        else:
            limit, until = self.execution.queue_timeout, math.inf
            if limit is not None and not self.halted and any(map(self._can_expire, self.calls.values())):
                until = self._opened_at + limit
            if self._dispatcher is not None:
                until = min(until, self._dispatcher.alarm_of(self._wake_for))
        self._sleeps_until = until + CLOCK_SLACK
        return self._sleeps_until

    def _report_running(self) -> None:
        """Report each call that runs past the cleanup deadline, at most once a second; settle those not begun."""
        deadline = self.run.cleanup.deadline
        now = anyio.current_time()
        if deadline is None or now < max(deadline, self._report_next):
            return  # woken early, or before the next report is due
        from agentloop._engine.calls.stacks import stack_of

        self._report_next = now + 1.0
        for live in list(self.calls.values()):
            if live.is_unstarted:
                self.settle_abandoned(live)
            elif live.phase in ("starting", "body"):
                self.run.report_still_running(
                    StillRunning(
                        path=self.run.path,
                        call=live.call,
                        age=now - live.clock,
                        stack=stack_of(live.coro, live.place),
                    )
                )

    def forget(self) -> None:
        """Settle every call that has no outcome yet, also where the batch ended before it was joined.

        Called when the nursery has closed: a task that has not begun by now never will.
        """
        if self.closed:
            return
        self._leave_dispatcher()
        self.halt()
        for call, answer in self.answers:
            if self.run.state.calls[call.call_id].outcome is None:
                self.answer(call, answer, answer.outcome)
        for live in list(self.calls.values()):
            if live.phase == "waiting":
                self.settle(live, live.cut(cancel_source(self.run)))
            elif live.is_unstarted:
                self.settle_abandoned(live)
        for live in self.calls.values():  # those that are paused
            live.context = live.ticket = None
        self.run.tree.calls.pop(self.run.state.path, None)
        self.calls.clear()  # they hold calls, which hold the batch
        self._segments = self._current = None
        self._equal = NO_DICT

    def raise_failure(self, *, fatal: bool = False) -> None:
        """Raise the chosen failure of the batch, if it has one; with *fatal* only one that isn't an Exception, as such
        a failure outranks even the cancellation under way."""
        found = [failure for failure in self.failures if not fatal or is_fatal(failure.error)]
        if found:
            raise choose_error(found)


def _may_wait(entry: PlanEntry) -> bool:
    """Tell whether the call of *entry* may wait for another call, or for a limit of its tool."""
    tool, disposition = entry.tool, entry.disposition
    if tool is None or not isinstance(disposition, Execute | Deliver | Replay):
        return False
    return bool(tool.exclusive or tool.serial or tool.capacity or disposition.arguments.receipt)


def _limits_of(tool: FunctionTool, base: tuple[Limit, ...], groups: dict[str, Limit]) -> tuple[Limit, ...]:
    """Return the limits of the calls of *tool*: *base* itself if the tool has none of its own.

    *groups* holds the limits of serial groups by name; a new group's is added.
    """
    limits = (*base, *tool.capacity) if tool.capacity else base
    if tool.serial is not None:
        group = groups.setdefault(tool.serial, OrderedCapacity(1, f"serial:{tool.serial}"))
        limits = (*limits, group)
    return limits if limits is base else tuple(dict.fromkeys(limits))
