"""What every session asks of its arguments, and what it says when they aren't right."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from agentloop._common.checks import check_count
from agentloop.exceptions import SessionConflict, UserTypeError
from agentloop.items import ITEM_TYPES, Item


def check_limit(limit: int | None) -> int | None:
    """Return *limit* if it is None (all) or a whole number from 0 on.

    Raises:
        UserTypeError, UserValueError: naming the argument.
    """
    return check_count("limit", limit, least=0)


def check_items(name: str, items: object) -> tuple[Item, ...]:
    """Return *items* as a tuple.

    Raises:
        UserTypeError: naming the argument, and the position of what is no item.
    """
    # A lone item or a text would be iterable or nearly so, and is never meant.
    if isinstance(items, (str, *ITEM_TYPES)) or not isinstance(items, Iterable):
        raise UserTypeError(f"{name}: a sequence of items is needed, not {type(items).__name__}")
    found: tuple[Any, ...] = tuple(items)
    for index, item in enumerate(found):
        if not isinstance(item, ITEM_TYPES):
            raise UserTypeError(f"{name}[{index}]: an item is needed, not {type(item).__name__}")
    return found


def conflict(session_id: str, expected: int, found: int) -> SessionConflict:
    """Return the error of a replacement that came too late."""
    return SessionConflict(
        f"Session {session_id!r} has changed since its items were read: {expected} were expected, it holds {found}"
        if expected != found
        else f"Session {session_id!r} has changed since its items were read: its {found} are not those expected"
    )
