"""The check of a model's answer as it comes in: whether the log that holds it can be read again.

A decoder, or a model of the application's own, may give any field a value of another type than its own. Such an answer
can be written, but not read. Nearly all answers pass the two steps of msgspec in a microsecond; `record_codec` decides
about the rest.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import msgspec

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
