"""Resources of a run: entered once, on first need, each in a task of its own, and left before the run ends."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

import anyio
import attrs

from agentloop._engine.runtime.backend import Work, is_closing, own_task, wait_out_cancellations
from agentloop._engine.runtime.cleanup import Cleanup
from agentloop._engine.runtime.interrupts import uninterrupted
from agentloop.exceptions import UserError

Factory = Callable[[], AbstractAsyncContextManager[Any]]


@attrs.define(eq=False)
class _HeldResource:
    """One resource and the task that entered it. Entering and leaving happen in that task."""

    factory: Factory
    settled: anyio.Event = attrs.field(factory=lambda: anyio.Event())
    stop: anyio.Event = attrs.field(factory=lambda: anyio.Event())
    left: anyio.Event = attrs.field(factory=lambda: anyio.Event())
    scope: anyio.CancelScope = attrs.field(factory=lambda: anyio.CancelScope(shield=True))
    begun: bool = False
    """Whether the task has had its first step. One that is cancelled natively before it never has it."""
    ready: bool = False
    value: Any = None
    error: BaseException | None = None

    def give_up(self) -> None:
        """Have the task do nothing when it begins; whoever waits is told at once."""
        self.begun = True
        self.settled.set()
        self.left.set()


@uninterrupted
async def _host(held: _HeldResource) -> None:
    """Enter the resource, wait until it is to be left, and leave it."""
    if held.begun:
        return
    held.begun = True
    task = own_task()
    try:
        # Shielded: bodies use the resource while they wind up; `Resources.close` ends it after them.
        with held.scope:
            if held.stop.is_set():
                return  # the run ended before this task came to anything
            async with held.factory() as held.value:
                held.ready = True
                held.settled.set()
                await wait_out_cancellations(held.stop.wait)
    except BaseException as error:  # noqa: ASYNC103 - carried to whoever waits; the scope is shielded and our own
        if is_closing(task):
            raise
        held.error = error
    finally:
        held.settled.set()
        held.left.set()


class Resources:
    """The resources of one run. Those of a nested run are held by tasks that *outer* starts."""

    def __init__(self, outer: Resources | None = None) -> None:
        self.spawn: Callable[[Work, Any, str], None] | None = outer.spawn if outer is not None else None
        """Starts a task that outlives the run's bodies: `work(on)`, by name. Set when the run's nursery is open."""
        self._held: dict[Any, _HeldResource] = {}
        self._closed = False

    async def get(self, factory: Factory, key: object = None) -> Any:
        """Return what *factory*'s context manager gives; entered on first use, shared by concurrent ones.

        *key* tells resources apart; without one the factory does.

        Raises:
            Exception: what entering raises, to everybody who waits for that entry; the next use tries again.
        """
        if self._closed:
            raise UserError("the run is ending: no resource can be entered any more")
        key = factory if key is None else key
        held = self._held.get(key)
        if held is None:
            held = self._held[key] = _HeldResource(factory)
            assert self.spawn is not None  # somebody of the run asks
            self.spawn(_host, held, "agentloop resource")
        await held.settled.wait()
        if held.ready and not held.stop.is_set():
            return held.value
        if self._held.get(key) is held:
            del self._held[key]
        raise held.error if held.error is not None else RuntimeError("the run ended while a resource was being entered")

    def stand_in(self, left: Any) -> None:
        """Hold something that *left* (its `wait`) says the leaving of: a replay has no resources, but their time."""
        held = _HeldResource(nullcontext, left=left, begun=True, ready=True)
        held.settled.set()
        self._held[left] = held

    async def close(self, cleanup: Cleanup, cut: Callable[[str], None]) -> list[BaseException]:
        """Leave all in reverse order, each within the cleanup deadline; return what their exits raised."""
        errors: list[BaseException] = []
        self._closed = True
        while self._held:
            _, held = self._held.popitem()
            held.stop.set()
            if not held.begun:
                held.give_up()
            entering = not held.ready
            if entering:
                held.scope.cancel()
            with cleanup.section() as section:
                await wait_out_cancellations(held.left.wait)
            if section.cancelled_caught or (entering and held.ready):  # entered all the same, and left under that
                cut("resource exit")
            held.scope.cancel()
            with anyio.CancelScope(shield=True):
                await wait_out_cancellations(held.left.wait)
            if held.error is not None and held.ready:
                errors.append(held.error)
        return errors
