"""Bytes to hash for digests: the same for equal values, in every process. Knows no class but attrs' and msgspec's."""

from __future__ import annotations

import hashlib
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


def idempotency_key(run_id: str, path: tuple[str, ...], call_id: str) -> str:
    """Return a key that is equal for all attempts of one call of one run, and differs for every other call."""
    parts = (run_id, *path, call_id)
    text = "\x00".join(parts)
    if text.count("\x00") >= len(parts):  # an id holds a separator: without this two calls could share a text
        text = "\x00" + json.dumps(parts)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
