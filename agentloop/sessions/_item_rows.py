"""Items as the texts that databases keep, one in a row."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence

from agentloop._common.strict_json import write_text
from agentloop._storage.item_codec import item_from_json, item_to_json
from agentloop.exceptions import StateError, UserTypeError, UserValueError
from agentloop.items import Item
from agentloop.sessions._checks import check_items

logger: logging.Logger = logging.getLogger("agentloop")


class ItemRows:
    """Reads the rows of one session, kept at *place*. The log names each row that can't be read, once."""

    def __init__(self, session_id: str, place: str = "") -> None:
        self._session_id = session_id
        self._place = place and f" of {place}"
        self._reported: set[int] = set()

    def read(self, n: int, text: str | bytes) -> Item | None:
        """Return the item that row *n* holds; None if it can't be read."""
        try:
            return _read_text(str(text, "utf-8") if isinstance(text, bytes) else text)
        except StateError as error:
            fault = str(error)
        except (TypeError, ValueError, RecursionError):
            fault = "not JSON"
        if n not in self._reported:
            self._reported.add(n)
            logger.warning("Session %r: row %d%s is left out: %s", self._session_id, n, self._place, fault)
        return None


def write_items(name: str, items: Sequence[Item]) -> list[str]:
    """Return *items*, given for the argument *name*, as JSON texts, of ASCII only.

    Raises:
        UserTypeError, UserValueError: naming the position of the first value that isn't an item or has no JSON form.
    """
    return [_to_text(f"{name}[{index}]", item) for index, item in enumerate(check_items(name, items))]


def as_stored(name: str, items: Sequence[Item]) -> list[Item]:
    """Return *items* in the form that a database returns, in which every array is a list. Raises as `write_items`."""
    return [_read_text(text) for text in write_items(name, items)]


def _read_text(text: str) -> Item:
    return item_from_json(json.loads(text))


def _to_text(place: str, item: Item) -> str:
    try:
        return write_text(item_to_json(item))
    except (TypeError, RecursionError) as error:
        raise UserTypeError(f"{place}: {error}") from None
    except ValueError as error:
        raise UserValueError(f"{place}: {error}") from None
