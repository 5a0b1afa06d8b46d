"""A session in memory: it exists as long as its object."""

from __future__ import annotations

from collections.abc import Sequence

from anyio.lowlevel import checkpoint

from agentloop._common.checks import check_id
from agentloop.items import Item
from agentloop.sessions._checks import check_items, check_limit, conflict


class MemorySession:
    """A conversation in memory. For one event loop at a time; not thread-safe.

    Every method is a checkpoint before its first change, so a cancelled call has done nothing.

    Example:
        import anyio
        from agentloop import Agent, Runner
        from agentloop.sessions import MemorySession
        from agentloop.testing import ScriptedModel, say

        async def main():
            session = MemorySession()
            await Runner.run(Agent("a", model=ScriptedModel([say("hi")])), "hello", session=session)
            print(len(await session.get_items()))  # 2

        anyio.run(main)
    """

    def __init__(self, session_id: str = "default") -> None:
        self.session_id: str = check_id("session_id", session_id)
        self._items: list[Item] = []

    def __repr__(self) -> str:
        return f"MemorySession({self.session_id!r})"

    async def get_items(self, limit: int | None = None) -> list[Item]:
        """Return the latest *limit* items in chronological order; None = all of them.

        Raises:
            UserTypeError, UserValueError: if *limit* isn't None or a whole number from 0 on.
        """
        check_limit(limit)
        await checkpoint()
        return self._items[:] if limit is None else self._items[max(len(self._items) - limit, 0) :]

    async def add_items(self, items: Sequence[Item]) -> None:
        """Append *items*.

        Raises:
            UserTypeError: naming the position of the first value that isn't an item; nothing is added.
        """
        added = check_items("items", items)
        await checkpoint()
        self._items += added

    async def pop_item(self) -> Item | None:
        """Remove the latest item and return it; None if there is none."""
        await checkpoint()
        return self._items.pop() if self._items else None

    async def clear(self) -> None:
        """Remove all items."""
        await checkpoint()
        self._items.clear()

    async def replace(self, items: Sequence[Item], *, expect: Sequence[Item]) -> None:
        """Replace all items by *items*, if they still are *expect* (the result of `get_items()`).

        Raises:
            SessionConflict: if the session has changed since; this then changes nothing.
            UserTypeError: naming the position of the first value that isn't an item.
        """
        new, expected = check_items("items", items), check_items("expect", expect)
        await checkpoint()
        if tuple(self._items) != expected:
            raise conflict(self.session_id, len(expected), len(self._items))
        self._items[:] = new
