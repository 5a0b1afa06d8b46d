"""Checks of the arguments that all sessions take, and the error of a late replacement."""

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
        UserTypeError: naming the argument, and the position of the first value that isn't an item.
    """
    # A text is iterable, and a single item is an easy mistake: neither is meant as a sequence of items.
    if isinstance(items, (str, *ITEM_TYPES)) or not isinstance(items, Iterable):
        raise UserTypeError(f"{name}: expected a sequence of items, got {type(items).__name__}")
    found: tuple[Any, ...] = tuple(items)
    for index, item in enumerate(found):
        if not isinstance(item, ITEM_TYPES):
            raise UserTypeError(f"{name}[{index}]: expected an item, got {type(item).__name__}")
    return found


def conflict(session_id: str, expected: int, found: int) -> SessionConflict:
    """Return the error of a replacement after another change of the session."""
    return SessionConflict(
        f"Session {session_id!r} has changed since its items were read: {expected} were expected, it holds {found}"
        if expected != found
        else f"Session {session_id!r} has changed since its items were read: its {found} are not those expected"
    )
