"""The limits of model requests: a request waits for all of them at once, in the arrival order of the loop's calls.

The queue is the one of the tools (`_core/admission.py`), and the same rule holds: no request holds one limit while it
waits for another. What the server says slows every run that shares the limit: after `Retry-After` none of them begins
(`Hold`), and where the server has less room than we counted, the window has no more than that (`shrink`).

Decisions:

A request waits in the run's own task: no task of its own, so a cancellation ends the wait at once and takes the ticket
out. The wait is no effect. A replay takes it from the record of the request, behind which everything comes.

Where the text is held until the input guardrails have settled, a request that would hold a place meanwhile waits for
them before it queues. It would keep its place while it waits for a guardrail that may ask a model for the same limit.

Tokens are taken before they are known: the estimate of the input, and what answers took beyond it before. Rejected:
counting them when the answer comes. A hundred requests would begin while the first one is answered.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeAlias

import anyio

from agentloop._concurrency.backend import checkpoint_if_cancelled
from agentloop._core.admission import Ticket
from agentloop._core.context_size import estimate_input
from agentloop._engine.calls.batch import CLOCK_SLACK
from agentloop._engine.runtime.live_run import LiveRun
from agentloop.exceptions import ModelTransportError
from agentloop.limits import Hold, Limit, Rate, TokenRate
from agentloop.model_events import ModelRequest, ModelResponse, RateState
from agentloop.records import ModelRequested

_Ask: TypeAlias = Callable[[Any], Awaitable[ModelResponse]]
_Entered: TypeAlias = tuple[ModelRequested, ModelRequest, _Ask]


class ModelPlace:
    """One attempt of a request, from its place in the queue to its end. Owned by the task of the run."""

    def __init__(self, run: LiveRun, request: ModelRequest, limits: tuple[Any, ...]) -> None:
        shared = run.tree.shared
        self._dispatcher = shared.pump
        for limit in limits:
            bound = limit.binding.loop
            limit.binding.bind(limit, shared, shared.loop_lives, shared.pump.pump)
            if bound is not shared:
                limit.hold = None  # a time on the clock of a loop that has ended: `bind` refuses a living one's limit
            limit.hold = limit.hold or Hold(f"{limit.name_shown} (the server)")
        self._limits: tuple[Limit, ...] = (*limits, *(limit.hold for limit in limits))
        self.input_tokens = estimate_input(run.state, request) if any(limit.weighed for limit in limits) else 0
        self._ticket = Ticket(self._limits, self, weight=self.input_tokens)
        self._amounts: list[tuple[TokenRate, int]] = []
        self._woken = anyio.Event()
        self._sleeps_until = math.inf
        self._started = self._began = False
        self._wall = run.tree.log.wall
        self._queued_at = self._wall()
        holds = run.settings.config.hold_text_until_guarded and any(limit.freed_by_calls for limit in limits)
        self._judged = run.guards_settled if holds else None

    def start(self) -> None:
        """Note that its limits are taken, and what, and wake its run. Called by the dispatcher, in the same step."""
        self._amounts = [(one, one.amount(self.input_tokens)) for one in self._limits if isinstance(one, TokenRate)]
        self._started = True
        self._woken.set()

    async def enter(self, requested: ModelRequested, request: ModelRequest, ask: _Ask) -> _Entered:
        """Wait until all limits have room, and take them. Return the record, the request and what asks for its answer.

        Cancellation: it leaves the queue at once; limits that were taken in the same step are given back.
        """
        if self._judged is not None:
            await self._judged.wait()
        self._dispatcher.sleepers[self._wake] = None
        try:
            self._dispatcher.add([self._ticket])
            while not self._started:
                self._woken = anyio.Event()
                self._sleeps_until = self._dispatcher.alarm_of(self._wake) + CLOCK_SLACK
                with anyio.CancelScope(deadline=self._sleeps_until):
                    await self._woken.wait()
                await checkpoint_if_cancelled()  # the end of the run may have come in the same step
                self._dispatcher.pump()
        except BaseException:
            self.leave()
            raise
        finally:
            self._dispatcher.leave(self._wake)
        waited = requested.replace(at=self._wall(), queued_at=self._queued_at, waited_for=self._ticket.waited_for)
        return waited, request.replace(note_rates=self.note_rates), partial(self.perform, ask)

    def _wake(self, room: float) -> None:
        """Wake the run if it would sleep past *room*, at which a limit has room without a request's end."""
        if room + CLOCK_SLACK < self._sleeps_until:
            self._woken.set()

    def leave(self) -> None:
        """Give back what it has taken: of an attempt that was sent, its place among those in flight."""
        if not self._started:
            self._dispatcher.withdraw([self._ticket])
            return
        for limit in self._limits:
            if limit.freed_by_calls or not (limit.weighed or self._began):
                limit.give()
        for rate, amount in self._amounts if not self._began else ():
            rate.give_amount(amount)
        self._dispatcher.pump()

    async def perform(self, ask: _Ask, effect: Any) -> ModelResponse:
        """Return the answer to *effect*, which *ask* gives; note what it and the server tell. At its end give all back.

        Raises:
            Exception: as *ask*.
        """
        now = anyio.current_time()  # the request is sent now, and counts in the windows of the limits that time frees
        self._began = True
        for limit in self._limits:
            if not (limit.weighed or limit.freed_by_calls):
                limit.begin(now)
        starts = [(rate, rate.begin_amount(now, amount)) for rate, amount in self._amounts]
        try:
            response = await ask(effect)
            if response.usage is not None:
                for rate, start in starts:
                    rate.settle(start, response.usage.total_tokens, self.input_tokens)
            return response
        except ModelTransportError as error:
            if error.status in _BUSY and error.retry_after is not None:
                until = anyio.current_time() + error.retry_after
                for limit in self._limits:
                    if limit.hold is not None:
                        limit.hold.extend(until)
            raise
        finally:
            self.leave()

    def note_rates(self, state: RateState) -> None:
        """Let every run that shares the limits know what the server has left."""
        now = anyio.current_time()
        for limit in self._limits:
            left, seconds = state.tokens, state.tokens_reset
            if not isinstance(limit, TokenRate):
                left, seconds = state.requests, state.requests_reset
            if left is not None and seconds is not None:
                if isinstance(limit, Rate | TokenRate):
                    limit.shrink(left, now + seconds, now)
                elif limit.hold is not None and left <= 0:
                    limit.hold.extend(now + seconds)


_BUSY = (429, 503, 529)
"""Statuses with which a server says that it has no room now; 529 is Anthropic's."""
