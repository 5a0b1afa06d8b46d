"""Checks of the arguments that all journals take."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from agentloop._common.json_bytes import ObjectLine, decode
from agentloop.abc import Codec
from agentloop.exceptions import StateError, UserTypeError, UserValueError

_OBJECT_LINES = frozenset({ObjectLine})


def check_records(records: Sequence[bytes]) -> list[bytes]:
    """Return *records* as a list, if each is the JSON text of one object on one line.

    Raises:
        UserTypeError, UserValueError: naming the position of the first wrong one; its content isn't quoted.
    """
    if type(records) is list and _OBJECT_LINES.issuperset(map(type, records)):
        return records[:]
    if isinstance(records, (bytes, bytearray, memoryview, str)) or not isinstance(records, Sequence):
        raise UserTypeError(f"records: expected a sequence of bytes, got {type(records).__name__}")
    for index, record in enumerate(records):
        if not isinstance(record, bytes):
            raise UserTypeError(f"records[{index}]: expected bytes, got {type(record).__name__}")
        if not (record.startswith(b"{") and record.endswith(b"}") and b"\n" not in record and _is_json(record)):
            raise UserValueError(f"records[{index}]: expected JSON text of one object, on one line")
    return list(records)


def _is_json(record: bytes) -> bool:
    try:
        decode(record)
    except StateError:
        return False
    return True


def check_path(path: str | os.PathLike[str]) -> str:
    """Return *path* as text.

    Raises:
        UserTypeError, UserValueError: if it isn't a path.
    """
    try:
        text = os.fsdecode(path)
    except TypeError:
        raise UserTypeError(f"path: expected a path, got {path!r}") from None
    if not text or "\0" in text:
        raise UserValueError(f"path: expected a path, got {path!r}")
    return text


def check_codec(codec: Codec | None) -> Codec | None:
    """Return *codec* if it can seal and open, or is None.

    Raises:
        UserTypeError: naming the argument.
    """
    wrong: Any = codec  # at run time it may be any object
    if codec is not None and not (callable(getattr(wrong, "seal", None)) and callable(getattr(wrong, "open", None))):
        raise UserTypeError(f"codec: expected an object with `seal` and `open`, got {type(wrong).__name__}")
    return codec
