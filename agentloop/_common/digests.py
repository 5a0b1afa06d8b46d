"""Bytes to make digests of: the same for equal values, in every process."""

from __future__ import annotations

import json
from typing import Any

import attrs
import msgspec


def digestible(value: Any) -> bytes:
    """Return *value* (JSON values, attrs objects, else by `repr`) as bytes that stand for it."""
    try:
        return msgspec.json.encode(value, enc_hook=repr, order="deterministic")
    except UnicodeEncodeError:  # half a surrogate pair, which models and tools may come up with
        return json.dumps(value, default=_plain, sort_keys=True).encode()


def _plain(value: Any) -> Any:
    return attrs.asdict(value, recurse=False) if attrs.has(type(value)) else repr(value)
