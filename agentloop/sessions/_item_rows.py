"""Items as the texts that databases keep, one in a row."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from agentloop._storage.item_codec import item_from_json, item_to_json
from agentloop.exceptions import StateError, UserTypeError, UserValueError
from agentloop.items import Item
from agentloop.sessions._checks import check_items


def read_item(text: str | bytes) -> tuple[Item | None, str]:
    """Return the item that *text* holds; None and what is wrong with it if it can't be read."""
    try:
        return item_from_json(json.loads(str(text, "utf-8") if isinstance(text, bytes) else text)), ""
    except StateError as error:
        return None, str(error)
    except (TypeError, ValueError, RecursionError):
        return None, "not JSON"


def write_items(name: str, items: Sequence[Item]) -> list[str]:
    """Return *items*, given for the argument *name*, as JSON texts, of ASCII alone.

    Raises:
        UserTypeError, UserValueError: naming the position of the first value that is no item or has no JSON form.
    """
    return [_to_text(f"{name}[{index}]", item) for index, item in enumerate(check_items(name, items))]


def _to_text(place: str, item: Item) -> str:
    try:
        return json.dumps(item_to_json(item), separators=(",", ":"), allow_nan=False, default=_plain)
    except (TypeError, RecursionError) as error:
        raise UserTypeError(f"{place}: {error}") from None
    except ValueError as error:
        raise UserValueError(f"{place}: {error}") from None


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")
