"""Resources of a run: entered once, on first need, each in a task of its own, and left before the run ends."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

import anyio
import attrs

from agentloop._shell.cleanup import Cleanup
from agentloop.exceptions import UserError

Factory = Callable[[], AbstractAsyncContextManager[Any]]


@attrs.define(eq=False)
class _Held:
    """One resource and the task that entered it. Entering and leaving happen in that task."""

    factory: Factory
    settled: anyio.Event = attrs.field(factory=lambda: anyio.Event())
    stop: anyio.Event = attrs.field(factory=lambda: anyio.Event())
    left: anyio.Event = attrs.field(factory=lambda: anyio.Event())
    scope: anyio.CancelScope = attrs.field(factory=lambda: anyio.CancelScope(shield=True))
    ready: bool = False
    value: Any = None
    error: BaseException | None = None

    async def host(self) -> None:
        try:
            # Shielded: bodies use the resource while they wind up; `Resources.close` ends it after them.
            with self.scope:
                if self.stop.is_set():
                    return  # the run ended before this task came to anything
                async with self.factory() as self.value:
                    self.ready = True
                    self.settled.set()
                    await self.stop.wait()
        except GeneratorExit:
            raise
        except BaseException as error:  # noqa: ASYNC103 - carried to whoever waits; the scope is shielded and our own
            self.error = error
        finally:
            self.settled.set()
            self.left.set()


class Resources:
    """The resources of one run. *spawn* starts a task that outlives the run's bodies."""

    def __init__(self, spawn: Callable[..., object]) -> None:
        self.spawn = spawn
        self._held: dict[Any, _Held] = {}
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
            held = self._held[key] = _Held(factory)
            self.spawn(held.host)
        await held.settled.wait()
        if held.ready and not held.stop.is_set():
            return held.value
        if self._held.get(key) is held:
            del self._held[key]
        raise held.error if held.error is not None else RuntimeError("the run ended while a resource was being entered")

    def stand_in(self, left: Any) -> None:
        """Hold something that *left* (its `wait`) says the leaving of: a replay has no resources, but their time."""
        held = _Held(nullcontext, left=left, ready=True)
        held.settled.set()
        self._held[left] = held

    async def close(self, cleanup: Cleanup, cut: Callable[[str], None]) -> list[BaseException]:
        """Leave all in reverse order, each within the cleanup deadline; return what their exits raised."""
        errors: list[BaseException] = []
        self._closed = True
        while self._held:
            _, held = self._held.popitem()
            held.stop.set()
            entering = not held.ready
            if entering:
                held.scope.cancel()
            with cleanup.section() as section:
                await held.left.wait()
            if section.cancelled_caught or (entering and held.ready):  # entered all the same, and left under that
                cut("resource exit")
            held.scope.cancel()
            with anyio.CancelScope(shield=True):
                await held.left.wait()
            if held.error is not None and held.ready:
                errors.append(held.error)
        return errors
