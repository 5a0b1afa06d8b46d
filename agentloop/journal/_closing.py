"""The end of a journal whose owner is the library: `Runner.run_many` and web applications close what they open."""

from __future__ import annotations

import anyio

from agentloop.abc import Journal


async def close_in_time(journal: Journal, seconds: float) -> bool:
    """Close *journal*, also after a cancellation; return False if that takes longer than *seconds*.

    It may still be locked then.

    Raises:
        JournalError: as for `Journal.aclose`.
    """
    with anyio.move_on_after(seconds, shield=True) as closing:
        await journal.aclose()
    return not closing.cancelled_caught
