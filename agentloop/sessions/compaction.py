"""Compaction: replaces the older part of a session by a shorter one, in one step, and splits no call from its output.

Works on any session with `replace`; does not know about stores.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence

from agentloop._common.checks import check_count
from agentloop.abc import ReplaceableSession
from agentloop.exceptions import UserTypeError
from agentloop.items import HandoffCall, HandoffOutput, Item, Reasoning, ToolCall, ToolOutput, to_items

Summarize = Callable[[list[Item]], Iterable[Item] | str | Awaitable[Iterable[Item] | str]]


async def compact(session: ReplaceableSession, summarize: Summarize, *, keep: int) -> bool:
    """Replace all but about the latest *keep* items of *session* by the result of *summarize* for them.

    A call is never split from its output, nor reasoning from the item after it: if the cut would do that, more than
    *keep* items remain. If this is cancelled, the session is unchanged unless its `replace` had begun.

    Args:
        session: A session with `replace`.
        summarize: Called with the older items, sync or async; returns items, or text for one user message.
        keep: Least number of the latest items that remain.

    Returns:
        True if the session was changed.

    Raises:
        SessionConflict: if the session changed in between; this then changes nothing.
        UserTypeError: if the session can't replace its items.

    Example:
        import anyio
        from agentloop.items import UserMessage
        from agentloop.sessions import MemorySession, compact

        async def main():
            session = MemorySession()
            await session.add_items([UserMessage("one"), UserMessage("two"), UserMessage("three")])
            await compact(session, lambda items: f"{len(items)} messages before", keep=1)
            print((await session.get_items())[0].text)  # 2 messages before

        anyio.run(main)
    """
    check_count("keep", keep, least=0)
    if not isinstance(session, ReplaceableSession):
        raise UserTypeError(f"compact: expected a session with `replace`, got {session!r}")
    items = await session.get_items()
    cut = safe_cut(items, len(items) - keep)
    if cut <= 0:
        return False
    made = summarize(items[:cut])
    summary = await made if inspect.isawaitable(made) else made
    await session.replace([*to_items(summary), *items[cut:]], expect=items)
    return True


def safe_cut(items: Sequence[Item], wanted: int) -> int:
    """Return the last index, at most *wanted*, at which *items* can be cut.

    A cut there splits no call from its output, and no reasoning from the item after it.
    """
    cut = max(min(wanted, len(items)), 0)
    called_at = {item.call_id: at for at, item in enumerate(items) if isinstance(item, ToolCall | HandoffCall)}
    answered_at = {item.call_id: at for at, item in enumerate(items) if isinstance(item, ToolOutput | HandoffOutput)}
    spans = [(at, answered_at.get(call_id, at)) for call_id, at in called_at.items()]
    for begin, end in sorted(spans, reverse=True):  # the cut only moves down: spans that begin later are done with
        cut = _skip_reasoning(items, cut)
        if begin < cut <= end:
            cut = begin
    return _skip_reasoning(items, cut)


def _skip_reasoning(items: Sequence[Item], cut: int) -> int:
    while cut > 0 and isinstance(items[cut - 1], Reasoning):
        cut -= 1
    return cut
