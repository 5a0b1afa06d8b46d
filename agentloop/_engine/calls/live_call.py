"""The facts of one call of a batch: its phase, the parts of its life, and who cancels it.

The phases of a call and their order are `PHASES` in `_core/step_order.py`; `LiveCall.to` is the only code that changes
a phase. `batch` decides when a call starts, and `call` takes it through its steps.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextvars import Context
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import anyio
import msgspec

from agentloop._common.error_text import redact_message
from agentloop._common.values import Machinery, Value
from agentloop._concurrency.nursery import Nursery
from agentloop._core.cancellation import CUTS, STAGES, Cause, is_graver
from agentloop._core.failure_choice import Failure
from agentloop._core.plan import Arguments
from agentloop._core.step_order import PHASES, CallPhase, CallSteps
from agentloop._engine.calls.output_text import cut_output
from agentloop._engine.runtime.callbacks import HookPair
from agentloop._engine.runtime.dispatcher import Queue
from agentloop._engine.runtime.live_run import LiveRun
from agentloop.abc import LateResult
from agentloop.config.budget import Reservation
from agentloop.context import Callback, ToolContext
from agentloop.items import ToolCall
from agentloop.limits import Limit
from agentloop.outcomes import CallOutcome
from agentloop.records import BodyEnded
from agentloop.tools import FunctionTool

if TYPE_CHECKING:
    from agentloop._core.admission import Ticket
    from agentloop._engine.runtime.threads import ThreadSlot

Step: TypeAlias = Callable[..., Coroutine[Any, Any, Any]]
"""A step of `calls/steps.py`."""


class Earlier(Value, frozen=True):
    """The progress of a call in earlier run segments."""

    attempt: int = 1
    announced: bool = False
    """True if the start is recorded and the start hooks were called."""
    body: BodyEnded | None = None
    """The end of the body, if it ended: we don't run it again."""


FIRST = Earlier()


class BodyState(msgspec.Struct, eq=False, gc=False):
    """The run of a call's body, under way or over; made with `CallStarted`. Mutated by the call's task.

    It holds only times and flags, so the garbage collector need not know it: that saves a third of a µs of each call.
    """

    started_at: float | None
    """Wall-clock time; None for a body that ended in an earlier run segment."""
    began: float = 0.0
    """The time on the loop's clock from which the tool's `timeout` runs: it covers only the body."""
    idle_since: float = 0.0
    """Likewise of `idle_timeout`."""
    ends_at: float = math.inf
    """The time on the loop's clock at which the first of the two ends the body; infinity without them."""
    ended_at: float | None = None
    """Wall-clock time."""
    finished: bool = False
    """True if the body came to its own end: it returned, raised, or cancelled itself."""
    abandoned: bool = False
    """True if a thread was left running."""
    gave_secret: bool = False
    """True once the body has returned a secret value."""


class CancelRequest(Value, frozen=True):
    """The request that cancels a call: `cancel_call`, or the failure of another call."""

    cause: Literal["caller", "sibling"]
    reason: str | None = None
    by_call: str | None = None


class Charge(Value, frozen=True):
    """The budget's answer at the admission of a call: a reservation, or the reason why there is none."""

    reservation: Reservation | None = None
    error: BaseException | None = None
    """The error of the tool's `cost`. Without an error and a reservation, the budget is spent."""


class CallBatch(Protocol):
    """The batch of a call, `batch.Batch`, as far as the call and its task know it."""

    in_background: bool
    nursery: Nursery
    hooks: tuple[HookPair, ...]
    waiting: Queue
    closed: bool
    queued_at: float
    stopped_by_call: str | None
    stopped_at: float | None

    def spawn(self, live: LiveCall) -> None:
        """Start the task of *live*."""
        ...

    def cancel_waiting(self, live: LiveCall) -> None:
        """Take the cancelled, waiting call *live* out of the queue."""
        ...

    def rekey(self, live: LiveCall, arguments: Arguments) -> bool:
        """Give *live* rewritten *arguments*; return False if it no longer runs in its task."""
        ...

    def settle(
        self, live: LiveCall, outcome: CallOutcome, failure: Failure | None = None, summary: str | None = None
    ) -> None:
        """Append the call's one outcome."""
        ...

    def settle_abandoned(self, live: LiveCall, failure: Failure | None = None) -> None:
        """Settle a call whose task has ended without settling it."""
        ...

    def pause(self, live: LiveCall) -> None:
        """Pause *live*, whose nested run needs a verdict."""
        ...

    def fail(self, failure: Failure) -> None:
        """End the batch by *failure*."""
        ...

    def halt(self) -> None:
        """Admit nothing more."""
        ...

    def close(self) -> None:
        """Settle every call in one step: the event loop is gone."""
        ...


class LiveCall(Machinery, msgspec.Struct, eq=False):
    """One call of a batch, from its plan to its outcome. (It doesn't hold its plan entry: a batch outlives its plan.)

    Owned by its batch; mutated by the batch and, from `begun` on, by the call's task. Any code on the loop may call
    `cancel`. What only one part of a call's life has is in an object of that part, which doesn't exist before: `ticket`
    once the call waits, `charge` where a budget pays for it, `body` once its body has started.
    """

    run: LiveRun
    batch: CallBatch
    index: int
    """Position of the call in model order."""
    call: ToolCall
    tool: FunctionTool
    steps: CallSteps[Step]
    arguments: Arguments
    limits: tuple[Limit, ...]
    earlier: Earlier = FIRST
    phase: CallPhase = "waiting"
    cancelled: CancelRequest | None = None
    cancelled_at: float | None = None
    """Wall-clock time at which a cancellation or the timeout reached the call."""
    ticket: Ticket | None = None
    scope: anyio.CancelScope = None  # type: ignore[assignment]  # before the task is made
    """Scope around steps 8 to 12, made together with the task; then the one around the rest, if it has one."""
    rest: Callable[[], Awaitable[None]] | None = None
    """The part of the call that its next task does, if an earlier one has done the others."""
    task_context: Context | None = None
    """The context of the call's next task, if it isn't the nursery's."""
    begun: bool = False
    """True once the call's task has taken its first step, or is to do nothing when it does. Until then the batch's
    owner may settle the call: a task that asyncio cancels before its first step never runs."""
    clock: float = 0.0
    """Time on the loop's clock at which the task was made, then the time at which the body started."""
    holds_permit: bool = False
    charge: Charge | None = None
    place: ThreadSlot | None = None
    context: ToolContext[Any] | None = None
    hooked: Sequence[Callback] = ()
    """End hooks of the objects whose start event was delivered, or whose delivery had begun."""
    body: BodyState | None = None
    coro: Any = None
    """The body under way, for reports."""
    cleanup: Literal["done", "cut"] | None = None
    successor: LiveCall | None = None
    """The call that runs the body in the background, with the tool's own limits and the thread, once this one has
    settled in its place."""

    @property
    def call_id(self) -> str:
        """The id of the call."""
        return self.call.call_id

    @property
    def is_unstarted(self) -> bool:
        """Tell whether a task of the call was started and has not taken its first step."""
        return self.rest is not None or (self.phase == "starting" and not self.begun)

    @property
    def is_cancellable(self) -> bool:
        """Tell whether the call has not ended and was not cancelled before."""
        return self.cancelled is None and self.phase not in ("post", "settled", "paused")

    @property
    def redacts_errors(self) -> bool:
        """Tell whether errors of the call, and texts that the application makes of it, may repeat a secret."""
        gave_secret = self.body is not None and self.body.gave_secret
        return gave_secret or self.run.redacts_errors_of(self.call)

    @property
    def may_start(self) -> bool:
        """Tell whether the call waits for its start and wasn't cancelled."""
        return self.phase == "waiting" and self.cancelled is None

    def redact_error(self, error: BaseException) -> None:
        """Hide the message of *error* in every text, if it may repeat a secret."""
        if self.redacts_errors:
            redact_message(error)

    def to(self, phase: CallPhase) -> None:
        """Change the phase of the call to *phase*. All code that changes a phase calls this.

        Raises:
            AssertionError: `PHASES` doesn't allow it: the engine has a fault.
        """
        if phase not in PHASES[self.phase]:
            raise AssertionError(f"call {self.call_id} can't go from {self.phase} to {phase}")
        self.phase = phase

    # -- the permit

    def start(self) -> None:
        """Start the call's task. Called by the queue when the call's limits are taken; never waits."""
        budget = self.run.settings.budget
        self.holds_permit = bool(self.limits) or budget is not None
        if self.phase != "waiting":  # another call of the same admission has begun at once, and cancelled this one
            self.release_permit()
            return
        if budget is not None and self.earlier is FIRST:
            # At its admission, so in model order and before any other call can.
            parsed, price = self.arguments.parsed, self.tool.cost
            try:
                cost: Any = 0 if price is None or parsed is None else price(parsed)
                self.charge = Charge(budget.reserve_call(cost))
            except BaseException as error:  # noqa: ASYNC103 - the application's: the call's own task raises it
                self.charge = Charge(error=error)
        self.to("starting")
        self.batch.spawn(self)

    def spend_starts(self) -> None:
        """Count the body, which begins now, in the limits of starts: from here on the call holds only the others."""
        spent = [limit for limit in self.limits if not limit.freed_by_calls]
        if spent:
            self.limits = tuple(limit for limit in self.limits if limit.freed_by_calls)
            self.batch.waiting.begin(spent)

    def release_permit(self) -> None:
        """Give back the limits and an unspent reservation; the next call may start in this same step."""
        if self.holds_permit:
            self.holds_permit = False
            budget, charge = self.run.settings.budget, self.charge
            if budget is not None and charge is not None and charge.reservation is not None:
                budget.release(charge.reservation)  # nothing to give back once the body has started
            if self.limits:
                self.batch.waiting.release(self.limits)

    def release_all(self) -> None:
        """Give back everything shared that the call holds: its thread or its turn for one, limits, budget."""
        if self.steps.before and self.tool.runs_in_thread:
            self.run.settings.threads.leave(self)
            if self.place is not None and self.place.ident is None:
                self.run.settings.threads.give_back(self.place)  # no thread has come to it
        self.release_permit()

    # -- the end

    def cancel(
        self, cause: Literal["caller", "sibling"], reason: str | None = None, by_call: str | None = None
    ) -> bool:
        """Cancel the call unless its body has ended; return False if it has. *by_call* is the call that cancels it.

        Of two causes the graver one stays, and of equal ones the first. The time is that of the first.
        """
        stage = STAGES.get(self.phase)
        cut = None if stage is None else CUTS[cause, stage]
        if cut is None or cut.softly:
            return False
        if is_graver(cause, None if self.cancelled is None else self.cancelled.cause):
            self.cancelled = CancelRequest(cause, reason, by_call)
        self.note_cancelled(self.run.tree.log.wall())
        if self.phase == "waiting":
            self.batch.cancel_waiting(self)
        else:
            self.scope.cancel()
        return True

    def cut(self, cause: Cause, error: BaseException | None = None) -> CallOutcome:
        """Return the outcome of this call if *cause* ends it now; *error* is that of its body's cleanup."""
        cut = CUTS[cause, STAGES[self.phase]]
        assert cut is not None
        output = cut.output(self.tool.name)
        return self.complete(CallOutcome(status=cut.status, cancelled_by=cut.by, output=output, error=error))

    def complete(self, outcome: CallOutcome) -> CallOutcome:
        """Return *outcome* with what the call knows: times, cleanup, secrecy, and whether the body has finished.

        An output that is too long is cut.
        """
        run, body, by, canceller, cancelled_at = self.run, self.body, outcome.cancelled_by, None, self.cancelled_at
        if by == "caller" and self.cancelled is not None:
            canceller = self.cancelled.by_call
        elif by == "sibling":
            canceller = self.batch.stopped_by_call
        if by is not None and by != "tool" and cancelled_at is None:
            # The call's own task noticed the end of its run before the owner did, or its settling is cut.
            cancelled_at = run.tree.log.wall() if self.batch.stopped_at is None else self.batch.stopped_at
        # Not `outcome.replace`, whose `**` takes 1 µs of the 20 of a call.
        return msgspec.structs.replace(
            outcome,
            output=cut_output(outcome.output, run.settings.config.tool_execution.max_output_chars),
            body_finished=body is not None and body.finished,
            abandoned=body is not None and body.abandoned,
            cleanup=self.cleanup,
            started_at=None if body is None else body.started_at,
            ended_at=run.tree.log.wall(),
            secret=outcome.secret or run.state.gives_secret(self.call),
            cancelled_by_call=canceller,
            cancelled_at=cancelled_at,
        )

    def note_cancelled(self, at: float) -> None:
        """Note that a cancellation or the timeout reached the call at *at*, unless one has before."""
        if self.cancelled_at is None:
            self.cancelled_at = at

    def report_late(self, value: Any = None, error: BaseException | None = None) -> None:
        """Report to instruments what the body gave after its outcome was decided."""
        if error is not None:
            self.redact_error(error)
        self.run.report_late(LateResult(path=self.run.path, call=self.call, value=value, error=error))
