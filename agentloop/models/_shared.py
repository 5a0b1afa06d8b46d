"""A resource that several runs may enter at once: the first opens it, the last to leave closes it.

Does not know what the resource is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import anyio
import attrs
from anyio.lowlevel import current_token

T = TypeVar("T")


@attrs.define(eq=False)
class _SharedSlot(Generic[T]):
    lock: anyio.Lock = attrs.field(factory=anyio.Lock)
    users: int = 0
    value: T | None = None


class Shared(Generic[T]):
    """Counts the users of the result of *open*, with one count and one result per event loop: none can serve two loops.

    Neither *open* nor *close* may depend on the task that runs it. *close* runs once per *open* that succeeded.
    """

    def __init__(self, open: Callable[[], Awaitable[T]], close: Callable[[T], Awaitable[None]]) -> None:
        self._open = open
        self._close = close
        self._slots: dict[object, _SharedSlot[T]] = {}

    def current(self) -> T | None:
        """Return the value of the running event loop; None if it isn't open, or outside of any event loop."""
        try:
            token = current_token().native_token
        except anyio.NoEventLoopError:
            return None
        slot = self._slots.get(token)
        return None if slot is None else slot.value

    async def enter(self) -> T:
        """Return the value; open it first if it isn't open. Other tasks that enter in between wait.

        Cancellation: a cancelled or failed `enter` counts as left.
        """
        token = current_token().native_token
        slot = self._slots.setdefault(token, _SharedSlot())
        slot.users += 1
        try:
            async with slot.lock:
                if slot.value is None:
                    slot.value = await self._open()
                return slot.value
        except BaseException:
            await self._release(token, slot)  # noqa: ASYNC102 - shielded inside
            raise

    async def leave(self) -> None:
        """Undo one `enter`; the last one closes the value."""
        token = current_token().native_token
        await self._release(token, self._slots[token])

    async def _release(self, token: object, slot: _SharedSlot[T]) -> None:
        slot.users -= 1
        if slot.users:
            return
        # A task that enters from here on opens a new value, without waiting for the close of this one.
        del self._slots[token]
        if slot.value is not None:
            await self._close(slot.value)
