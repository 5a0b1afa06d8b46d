"""Bytes to hash for digests: the same for equal values, in every process. Knows no class but attrs' and msgspec's."""

from __future__ import annotations

import json
from typing import Any

import attrs
import msgspec

_ENCODER = msgspec.json.Encoder(enc_hook=repr, order="deterministic")


def digestible(value: Any) -> bytes:
    """Return *value* as bytes for a digest: JSON, attrs objects and Structs as JSON, anything else as its `repr`."""
    try:
        return _ENCODER.encode(value)
    except UnicodeEncodeError:  # half a surrogate pair, which models and tools may produce
        return json.dumps(value, default=_plain, sort_keys=True).encode()


def _plain(value: Any) -> Any:
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.asdict(value)
    return attrs.asdict(value, recurse=False) if attrs.has(type(value)) else repr(value)
