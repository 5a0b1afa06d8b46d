"""One call of a batch, from its plan to its outcome: its phase, the parts of its life, and who cancels it.

States of a call (`LiveCall.phase`):

    waiting   no task yet: in a later segment, in the dispatcher's queue, or behind an equal call
    starting  has a task: its limits are taken, or the task only writes the outcome of a call that was cancelled
    body      the body runs
    post      the body has ended and the permit is given back; output guardrails and end hooks run
    settled   the outcome is in the log
    paused    the run nested in the call needs a verdict: no outcome in this run segment

Usual order: waiting, starting, body, post, settled. A rewritten call that equals another one returns from starting to
waiting. A paused call returns to starting when the batch ends early, so that its end hooks run.

Holds what is known of the call; `scheduler` decides when it starts, and `call` does its steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Protocol

import anyio
import attrs
import msgspec

from agentloop._common.error_text import redact_message
from agentloop._common.values import Value
from agentloop._concurrency.nursery import Nursery
from agentloop._core.cancellation import CUTS, Cause, Stage, is_graver
from agentloop._core.failure_choice import Failure
from agentloop._core.plan import Arguments
from agentloop._engine.runtime.callbacks import ToolHooks
from agentloop._engine.runtime.dispatcher import CapQueue, Dispatcher
from agentloop._engine.runtime.live_run import LiveEffects, LiveRun
from agentloop.abc import LateResult
from agentloop.budget import Budget, Reservation
from agentloop.context import Callback, ToolContext
from agentloop.items import Item, ToolCall
from agentloop.limits import Limit
from agentloop.outcomes import CallOutcome, CancelledBy
from agentloop.records import BodyEnded
from agentloop.tools import FunctionTool, PythonBody, may_run_again

if TYPE_CHECKING:
    from agentloop._core.admission import Ticket
    from agentloop._engine.runtime.threads import ThreadSlot
    from agentloop._schema.function_schema import BoundArguments

Phase = Literal["waiting", "starting", "body", "post", "paused", "settled"]


STAGES: Mapping[Phase, Stage] = {"waiting": "before", "starting": "before", "body": "body", "post": "after"}
"""The stage of a call, for `CUTS`, by its phase."""


class Earlier(Value, frozen=True):
    """The progress of a call in earlier run segments."""

    attempt: int = 1
    announced: bool = False
    """True if the start is recorded and the start hooks were called."""
    body: BodyEnded | None = None
    """The end of the body, if it ended: it isn't run again."""


FIRST = Earlier()


class BodyClock(msgspec.Struct, eq=False, gc=False):
    """The clocks of `timeout` and `idle_timeout`, on the loop's clock. They cover the body alone."""

    began: float
    idle_since: float
    ends_at: float


class BodyState(msgspec.Struct, eq=False, gc=False):
    """The run of a call's body, under way or over; made with `CallStarted`. Mutated by the call's task.

    It holds times and flags alone, so the garbage collector need not know it: that is a third of a µs of each call.
    """

    started_at: float | None
    """Wall-clock time; None for a body that ended in an earlier run segment."""
    timer: BodyClock | None = None
    ended_at: float | None = None
    finished: bool = False
    """True if the body came to its own end: it returned, raised, or cancelled itself."""
    abandoned: bool = False
    """True if a thread was left running."""


class Charge(Value, frozen=True):
    """The budget's answer at the admission of a call: a reservation, or the reason why there is none."""

    reservation: Reservation | None = None
    error: BaseException | None = None
    """The error of the tool's `cost`; without it and a reservation, the budget is spent."""


class CallBatch(Protocol):
    """The batch of a call, `scheduler.Batch`, as far as the call and its task know it."""

    nursery: Nursery
    hooks: ToolHooks | None
    pump: CapQueue | Dispatcher | None
    closed: bool
    queued_at: float
    stopped_by_call: str | None
    stopped_at: float | None

    @cached_property
    def conversation(self) -> Sequence[Item]:
        """The run's conversation."""
        ...

    def spawn(self, live: LiveCall) -> None:
        """Start the task of *live*."""
        ...

    def cancel_waiting(self, live: LiveCall) -> None:
        """Take the cancelled, waiting call *live* out of the queue."""
        ...

    def rekey(self, live: LiveCall, arguments: Arguments) -> bool:
        """Give *live* rewritten *arguments*; return False if it no longer runs in its task."""
        ...

    def settle(self, live: LiveCall, outcome: CallOutcome, failure: Failure | None = None) -> None:
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


@attrs.define(eq=False)
class LiveCall:
    """One call of a batch, from its plan to its outcome. (It doesn't hold its plan entry: a batch outlives its plan.)

    Owned by its batch; mutated by the batch and, from `begun` on, by the call's task. Any code on the loop may call
    `cancel`. What one part of a call alone has is in an object of that part, which does not exist before: `ticket` of a
    call that waits, `charge` of one that a budget pays for, `body` of one whose body has started.

    No Struct, although that takes 0.3 µs less to make: a call assigns twelve fields, for 65 ns each instead of 17.
    """

    run: LiveRun
    batch: CallBatch
    index: int
    """Position of the call in model order."""
    call: ToolCall
    call_id: str
    tool: FunctionTool
    read: Arguments | None
    """The arguments as they were read; None for a plain call, which has use for the next three parts alone: an object
    less for the collector."""
    text: str
    bound: BoundArguments | None
    receipt: str | None
    limits: tuple[Limit, ...]
    plain: bool
    """True if no code of the application runs in the call but the body, and hooks that never wait; nothing is timed."""
    earlier: Earlier = FIRST
    phase: Phase = "waiting"
    cause: Literal["caller", "sibling"] | None = None
    reason: str | None = None
    cancelled_by_call: str | None = None
    cancelled_at: float | None = None
    """Wall-clock time at which a cancellation or the timeout reached the call."""
    ticket: Ticket | None = None
    scope: anyio.CancelScope = attrs.field(init=False)
    """Scope around steps 8 to 12, made together with the task; then the one around the rest, if it has one."""
    begun: bool = False
    """True once the call's task has taken its first step, or is to do nothing when it does. Until then the batch's
    owner may settle the call: a task that asyncio cancels before its first step never runs."""
    clock: float = 0.0
    """Time on the loop's clock at which the task was made, unless the call is plain, then that at which the body
    started."""
    holds_permit: bool = False
    charge: Charge | None = None
    place: ThreadSlot | None = None
    context: ToolContext[Any] | None = None
    hooked: Sequence[Callback] = ()
    """End hooks of the objects whose start event was delivered, or whose delivery had begun."""
    body: BodyState | None = None
    coro: Any = None
    """The body under way, for reports."""
    gave_secret: bool = False
    """True once the body has returned a secret value."""
    cleanup: Literal["done", "cut"] | None = None

    @property
    def arguments(self) -> Arguments:
        """The arguments as they were read."""
        return self.read or Arguments(text=self.text, bound=self.bound, receipt=self.receipt)

    @property
    def is_unstarted(self) -> bool:
        """Tell whether the call's task was started and has not taken its first step."""
        return self.phase == "starting" and not self.begun

    @property
    def is_cancellable(self) -> bool:
        """Tell whether the call has not ended and was not cancelled before."""
        return self.cause is None and self.phase not in ("post", "settled", "paused")

    @property
    def redacts_errors(self) -> bool:
        """Tell whether errors of the call, and texts that the application makes of it, may repeat a secret."""
        return self.gave_secret or self.run.redacts_errors_of(self.call)

    def redact_error(self, error: BaseException) -> None:
        """Hide the message of *error* in every text, if it may repeat a secret."""
        if self.redacts_errors:
            redact_message(error)

    def start(self) -> None:
        """Start the call's task. Called by the dispatcher when the call's limits are taken; never waits."""
        self.phase = "starting"
        budget = self.run.settings.budget
        self.holds_permit = bool(self.limits) or budget is not None
        if budget is not None and self.earlier is FIRST:
            self._reserve_budget(budget)
        self.batch.spawn(self)

    def _reserve_budget(self, budget: Budget) -> None:
        """Reserve the call's cost at its admission, so in model order and before any other call can."""
        parsed, price = self.arguments.parsed, self.tool.cost
        try:
            cost: Any = 0 if price is None or parsed is None else price(parsed)
            self.charge = Charge(budget.reserve_call(cost))
        except BaseException as error:  # noqa: ASYNC103 - the application's: the call's own task raises it
            self.charge = Charge(error=error)

    def report_late(self, value: Any = None, error: BaseException | None = None) -> None:
        """Report to instruments what the body gave after its outcome was decided."""
        if error is not None:
            self.redact_error(error)
        self.run.report_late(LateResult(path=self.run.path, call=self.call, value=value, error=error))

    def spend_starts(self) -> None:
        """Count the body, which begins now, in the limits of starts: from here on the call holds only the others."""
        spent = [limit for limit in self.limits if not limit.freed_by_calls]
        if spent and self.batch.pump is not None:
            self.limits = tuple(limit for limit in self.limits if limit.freed_by_calls)
            self.batch.pump.begin(spent)

    def release_permit(self) -> None:
        """Give back the limits and an unspent reservation; the next call may start in this same step."""
        if self.holds_permit:
            self.holds_permit = False
            budget, charge = self.run.settings.budget, self.charge
            if budget is not None and charge is not None and charge.reservation is not None:
                budget.release(charge.reservation)  # nothing to give back once the body has started
            if self.limits and self.batch.pump is not None:
                self.batch.pump.release(self.limits)

    def release_all(self) -> None:
        """Give back everything shared that the call holds: its turn in the queue for threads, limits, budget."""
        if not self.plain and self.tool.runs_in_thread:
            self.run.settings.threads.leave(self)
        self.release_permit()

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
        if is_graver(cause, self.cause):
            self.cause, self.reason, self.cancelled_by_call = cause, reason, by_call
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
        """Return *outcome* with the fields that the call knows: times, cleanup, secrecy and `body_finished`."""
        # Every field by hand: `replace`, which looks each field up by its name, costs three times as much.
        body, by = self.body, outcome.cancelled_by
        canceller = self.cancelled_by_call if by == "caller" else None
        if by == "sibling":
            canceller = self.batch.stopped_by_call
        return CallOutcome(
            status=outcome.status,
            output=outcome.output,
            value=outcome.value,
            error=outcome.error,
            cancelled_by=by,
            reason=outcome.reason,
            body_finished=body is not None and body.finished,
            abandoned=body is not None and body.abandoned,
            custom_data=outcome.custom_data,
            cleanup=self.cleanup,
            started_at=None if body is None else body.started_at,
            ended_at=self.run.tree.log.wall(),
            secret=outcome.secret or self.run.state.gives_secret(self.call),
            cancelled_by_call=canceller,
            cancelled_at=self.cancelled_at if by is None else self._find_cancel_time(by),
        )

    def note_cancelled(self, at: float) -> None:
        """Note that a cancellation or the timeout reached the call at *at*, unless one has before."""
        if self.cancelled_at is None:
            self.cancelled_at = at

    def _find_cancel_time(self, by: CancelledBy) -> float | None:
        """Return the time for `CallOutcome.cancelled_at`, where *by* is its `cancelled_by`."""
        if self.cancelled_at is not None or by == "tool":
            return self.cancelled_at
        # The call's own task noticed the end of its run before the owner did, or its settling is cut.
        return self.run.tree.log.wall() if self.batch.stopped_at is None else self.batch.stopped_at

    @property
    def timeout_at(self) -> float:
        """The time on the loop's clock at which the tool's own timeout ends the body; infinity without one."""
        timer = None if self.body is None else self.body.timer
        return math.inf if timer is None else timer.ends_at


def is_plain_run(run: LiveRun) -> bool:
    """Tell whether nothing in *run* has to know of the start and the end of a call but its log and its hooks."""
    return (
        run.settings.budget is None
        and run.settings.config.output_store is None
        and run.tree.log.spans is None
        and (run.tree.log.journal is None or run.tree.log.journal.immediate)
        and type(run.tree.effects) is LiveEffects
    )


def is_plain_tool(tool: FunctionTool) -> bool:
    """Tell whether a call of *tool* is its body alone: nothing is asked, timed, judged or extracted around it."""
    return (
        type(tool.body) is PythonBody  # a search is none: its outcome says what it has found
        and tool.body.schema.is_async
        and tool.timeout is None
        and tool.idle_timeout is None
        and tool.is_enabled is True
        and not tool.tool_input_guardrails
        and not tool.tool_output_guardrails
        and tool.custom_data_extractor is None
        and not may_run_again(tool)
    )
