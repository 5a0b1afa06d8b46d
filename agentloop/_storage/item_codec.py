"""The codec of items: to JSON and back, for sessions and the durable engine, which store what a provider sent as it is;
and from the form in which records hold them.

An object of a kind that isn't in `agentloop.items` becomes an `OpaqueItem` and is kept whole; a known kind that doesn't
fit is a fault. Does not know about records or stores: `_storage/record_codec` has the items in those.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentloop import items as i
from agentloop._common.errors import UserTypeError
from agentloop._storage.faults import read_whole
from agentloop._storage.stored_forms import ITEMS, read_part, to_object
from agentloop._storage.value_codec import read_value
from agentloop._storage.withholding import Secrets


def item_to_json(item: i.Item) -> dict[str, Any]:
    """Return *item* as a new JSON object; it holds `provider_data` and `data` unchanged.

    Raises:
        UserTypeError: if *item* isn't an item.
    """
    if type(item) not in i.ITEM_TYPES:
        raise UserTypeError(f"expected an item, got {type(item).__name__}")
    return to_object(item, None)


def item_from_json(data: Mapping[str, Any], *, path: str = "$") -> i.Item:
    """Return the item that was written as *data*. `item_from_json(item_to_json(item)) == item`.

    A `type` unknown here gives an `OpaqueItem` that holds *data* whole.

    Raises:
        StateError: naming the first place below *path* that doesn't fit: a value of the wrong kind, a field that is
            missing or unknown, no `type`. Values aren't quoted.
    """
    item: i.Item = read_whole("item", path, read_part, ITEMS, data, None, lambda value, _secrets: value)
    return item


def item_from_stored(data: Mapping[str, Any], secrets: Secrets) -> i.Item:
    """Return the item that was written as *data*, its secrets revealed by *secrets*.

    Raises:
        StateError: naming the first place that doesn't fit. Values aren't quoted.
    """
    item: i.Item = read_whole("item", "$", read_part, ITEMS, data, secrets, read_value)
    return item
