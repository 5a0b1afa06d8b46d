"""Resources of a run: entered once, on first need, each in its own task, and left before the run ends.

Its own task, because the scopes and nurseries of a context manager must be left by the task that entered them, and
the call that needs a resource first ends before the last. (Rejected: an exit stack in the run's task, which would enter
in one task and leave in another.) Does not know what a resource is.

Decisions:

Resources have their own tasks (`_engine/runtime/resources.py`). `ctx.resource`, a model that the application has not
entered, a provider of the run: each is entered and left in a task made for it, because the scopes and nurseries in a
context manager must be left by the task that entered them, and the first call to need a resource ends before the
last. The task is shielded, since bodies still use the resource while they end. The run ends it after them, in reverse
order, under the cleanup deadline.

Rejected: an exit stack in the run's own task. A resource would be entered in the task of the call that needs it, and
left in another; or every call that needs one would wait until the run's task has time for it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import anyio
import msgspec

from agentloop._common.empty_containers import NO_DICT
from agentloop._common.values import Machinery
from agentloop._concurrency.backend import Work, capture, wait_out_cancellations
from agentloop._concurrency.interrupts import uninterrupted
from agentloop.exceptions import UserError

if TYPE_CHECKING:
    from agentloop._concurrency.cleanup import Cleanup

Factory = Callable[[], AbstractAsyncContextManager[Any]]


class Host(Protocol):
    """Starts tasks that shield themselves."""

    def host(self, work: Work, on: Any, name: str) -> None:
        """Start a task named *name* that does `work(on)`."""
        ...


class HeldResource(msgspec.Struct, eq=False):
    """One resource and the task that entered it. Owned by `Resources`; entering and leaving happen in that task."""

    factory: Factory
    settled: anyio.Event = msgspec.field(default_factory=lambda: anyio.Event())
    stop: anyio.Event = msgspec.field(default_factory=lambda: anyio.Event())
    left: anyio.Event = msgspec.field(default_factory=lambda: anyio.Event())
    scope: anyio.CancelScope = msgspec.field(default_factory=lambda: anyio.CancelScope(shield=True))
    begun: bool = False
    """True once the task has taken its first step; a task cancelled natively before that never does."""
    ready: bool = False
    value: Any = None
    error: BaseException | None = None


@uninterrupted
async def _host(held: HeldResource) -> None:
    """Hold the resource in the current task; errors are stored in *held*."""
    if held.begun:
        return
    held.begun = True
    try:
        held.error = (await capture(partial(_hold, held), outlast=True)).error
    finally:
        held.settled.set()
        held.left.set()


async def _hold(held: HeldResource) -> None:
    """Enter the resource, wait until `stop` is set, and leave it."""
    # Shielded: bodies still use the resource in their cleanup; `Resources.close` ends it after them.
    with held.scope:
        if held.stop.is_set():
            return  # the run ended before this task entered the resource
        async with held.factory() as held.value:
            held.ready = True
            held.settled.set()
            await wait_out_cancellations(held.stop.wait)


class Resources(Machinery, msgspec.Struct, eq=False):
    """The resources of one run; owned by it."""

    host: Host | None = None
    """The object that starts tasks which outlive the run's bodies: the outermost run's nursery, once it is open."""
    held: dict[Any, HeldResource] = NO_DICT
    """By key: those that were entered, or are being entered, and not left."""
    closed: bool = False
    """True once the run is ending: every further resource is refused."""

    async def get(self, factory: Factory, key: object = None) -> Any:
        """Return the value of *factory*'s context manager, entered at first use and shared by concurrent uses.

        *key* identifies the resource; without one the factory does. A checkpoint; if the caller is cancelled here, the
        resource is still entered, and left at the end of the run.

        Raises:
            UserError: the run is ending.
            RuntimeError: the run ended while the resource was being entered.
            Exception: the error of entering, in every task that waits for it; the next use tries again.
        """
        if self.closed:
            raise UserError("the run is ending: no resource can be entered any more")
        key = factory if key is None else key
        held = self.held.get(key)
        if held is None:
            self.held = self.held or {}
            held = self.held[key] = HeldResource(factory)
            assert self.host is not None  # only a run that is open uses resources
            self.host.host(_host, held, "agentloop resource")
        await held.settled.wait()
        if held.ready and not held.stop.is_set():
            return held.value
        if self.held.get(key) is held:
            del self.held[key]
        raise held.error if held.error is not None else RuntimeError("the run ended while a resource was being entered")

    async def close(self, cleanup: Cleanup, cut: Callable[[str], None]) -> list[BaseException]:
        """Leave all resources in reverse order, each within the cleanup deadline; return the errors of their exits.

        *cut* is called for each one that is cut. No cancellation ends this early: every task has ended afterwards.
        """
        errors: list[BaseException] = []
        self.closed = True
        while self.held:
            _, held = self.held.popitem()
            held.stop.set()
            if not held.begun:  # its task does nothing when it begins, and those that wait for it are woken at once
                held.begun = True
                held.settled.set()
                held.left.set()
            entering = not held.ready
            if entering:
                held.scope.cancel()
            with cleanup.section() as section:
                await wait_out_cancellations(held.left.wait)
            if section.cancelled_caught or (entering and held.ready):  # entered although cancelled: its exit was cut
                cut("resource exit")
            held.scope.cancel()
            with anyio.CancelScope(shield=True):
                await wait_out_cancellations(held.left.wait)
            if held.error is not None and held.ready:
                errors.append(held.error)
        return errors
