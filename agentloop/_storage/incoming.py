"""The check of what comes in from models and the application: whether the log that holds it can be read again.

A decoder, a model or a session of the application's own, or its input may give any field a value of another type than
its own. Such an item can be written, but not read. Nearly all pass the two steps of msgspec in a microsecond;
`record_codec` decides about the rest.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import msgspec

from agentloop._common.errors import UserTypeError
from agentloop.items import Item
from agentloop.model_events import ModelResponse

_ENCODE = msgspec.json.Encoder(order="deterministic").encode


@functools.cache  # made at the first answer, in 2 ms, so that importing the package doesn't pay for it
def _decoder() -> Callable[[bytes], ModelResponse]:
    return msgspec.json.Decoder(ModelResponse).decode


def find_fault_of_answer(response: ModelResponse) -> str | None:
    """Return what of *response* couldn't be read again once it is stored; None if all of it could.

    Values aren't quoted.
    """
    try:
        text = _ENCODE(response)
        if _ENCODE(_decoder()(text)) == text:
            return None
    except (TypeError, ValueError, RecursionError):
        pass
    from agentloop._storage.record_codec import find_fault

    return find_fault(response)


def check_items(what: str, items: tuple[Item, ...]) -> tuple[Item, ...]:
    """Return *items*, which are the application's, if a log that holds them can be read again.

    Raises:
        UserTypeError: it couldn't; names *what* and the place in it. Values aren't quoted.
    """
    fault = find_fault_of_answer(ModelResponse(items))
    if fault is not None:
        raise UserTypeError(f"{what} can't be stored: {fault.replace('$.response.items', what)}")
    return items
