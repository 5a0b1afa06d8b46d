"""Compaction: the older part of a session exchanged for something shorter, in one step, parting nothing."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence

from agentloop._common.checks import check_count
from agentloop.abc import ReplaceableSession
from agentloop.exceptions import UserTypeError
from agentloop.items import HandoffCall, HandoffOutput, Item, Reasoning, ToolCall, ToolOutput, to_items

Summarize = Callable[[list[Item]], Iterable[Item] | str | Awaitable[Iterable[Item] | str]]


async def compact(session: ReplaceableSession, summarize: Summarize, *, keep: int) -> bool:
    """Exchange all but about the latest *keep* items of *session* for what *summarize* makes of them.

    A call is never parted from its output, nor reasoning from what follows it: where the cut would do that, more than
    *keep* items stay.

    Args:
        session: A session with `replace`.
        summarize: Given the older items, sync or async; returns items, or text for one user message.
        keep: How many of the latest items stay at least.

    Returns:
        Whether anything was exchanged.

    Raises:
        SessionConflict: if the session changed meanwhile; it is left as it is.
        UserTypeError: if the session can't replace its items.
    """
    check_count("keep", keep, least=0)
    if not isinstance(session, ReplaceableSession):
        raise UserTypeError(f"compact: a session with `replace` is needed, not {session!r}")
    items = await session.get_items()
    cut = safe_cut(items, len(items) - keep)
    if cut <= 0:
        return False
    made = summarize(items[:cut])
    summary = await made if inspect.isawaitable(made) else made
    await session.replace([*to_items(summary), *items[cut:]], expect=items)
    return True


def safe_cut(items: Sequence[Item], wanted: int) -> int:
    """Return the last place at or before *wanted* where *items* can be cut without parting what belongs together."""
    cut = max(min(wanted, len(items)), 0)
    called_at = {item.call_id: at for at, item in enumerate(items) if isinstance(item, ToolCall | HandoffCall)}
    answered_at = {item.call_id: at for at, item in enumerate(items) if isinstance(item, ToolOutput | HandoffOutput)}
    spans = [(at, answered_at.get(call_id, at)) for call_id, at in called_at.items()]
    moved = True
    while moved and cut > 0:
        moved = False
        for begin, end in spans:
            if begin < cut <= end:
                cut, moved = begin, True
        while cut > 0 and isinstance(items[cut - 1], Reasoning):
            cut, moved = cut - 1, True
    return cut
