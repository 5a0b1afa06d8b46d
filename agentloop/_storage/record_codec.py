"""The codec of records: to JSON and back, for a run's state and its journal.

A record is an object with its kind under `kind`, then its fields in the order of their declaration, mappings of the
application sorted by their keys; fields at their default are left out. So equal records have equal lines.
`_storage/stored_forms` says what of each class is stored, and msgspec writes and reads it. Does not know about runs,
files or keys.

A text without a mark (`"$…`) is read by msgspec in one pass, and taken if it is, byte by byte, what msgspec writes of
the records that it gave: so it repeats no key and has no number in another notation. Everything else is read as JSON
first, then opened by `stored_forms`. The one pass takes a fifth of the time, and a journal or a state without secrets
has nothing else.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import msgspec

from agentloop import records as r
from agentloop._common.errors import StateError
from agentloop._common.json_bytes import decode as decode
from agentloop._common.json_bytes import encode as encode
from agentloop._common.values import Value
from agentloop._storage.faults import fault_text, read_whole
from agentloop._storage.stored_forms import RECORD_STORERS, RECORDS, SECRETS, plain_text, read_part, store, to_tree
from agentloop._storage.value_codec import read_value, value_to_json
from agentloop._storage.withholding import DIGESTS, Secrets
from agentloop.model_events import ModelResponse

SCHEMA_VERSION = "2"
"""The version of the stored form that this library writes."""

RecordUpgrade: TypeAlias = Callable[[dict[str, Any]], dict[str, Any] | None]
T = TypeVar("T")
_ENCODER = msgspec.json.Encoder(enc_hook=plain_text)
_ENCODE, _ENCODE_LINES = _ENCODER.encode, _ENCODER.encode_lines
_DECODE = msgspec.json.Decoder(r.Record).decode


# -- writing


def record_to_json(record: r.Record, secrets: Secrets | None = None) -> dict[str, Any]:
    """Return *record* as a new JSON object. Values marked secret are hidden by *secrets*, by default as digests.

    Raises:
        UserTypeError: if *record* isn't a record, or is of a kind that `stored_forms` doesn't have.
    """
    tree: dict[str, Any] = to_tree(_store_records((record,), secrets)[0])
    return tree


def part_to_json(part: Value, secrets: Secrets | None) -> dict[str, Any]:
    """Return an item or another part of records as a new JSON object, as it is stored.

    *secrets* hides its secret values; with None they are in the clear.
    """
    tree: dict[str, Any] = to_tree(store(part, secrets, value_to_json))
    return tree


def record_to_line(record: r.Record, secrets: Secrets | None = None) -> bytes:
    """Return `record_to_json` of *record* as canonical JSON text, its kind first.

    Raises:
        UserTypeError: as `record_to_json`.
        StateError: a field holds something that JSON has no form for.
    """
    return _to_lines(_store_records((record,), secrets))[:-1]


def records_to_lines(records: Sequence[r.Record], secrets: Secrets | None = None) -> list[bytes]:
    """Return each of *records* as canonical JSON text, all written at once. Raises as `record_to_line`."""
    return _to_lines(_store_records(records, secrets)).split(b"\n")[:-1]


def records_to_array(records: Sequence[r.Record], secrets: Secrets) -> bytes:
    """Return *records* as canonical JSON text. Raises as `record_to_line`."""
    return b"[%b]" % _to_lines(_store_records(records, secrets))[:-1].replace(b"\n", b",")


def _store_records(records: Sequence[r.Record], secrets: Secrets | None) -> list[Any]:
    storers, hidden, write = RECORD_STORERS, secrets or DIGESTS, value_to_json
    return [one if (put := storers[type(one)]) is None else put(one, hidden, write) for one in records]


def _to_lines(stored: list[Any]) -> bytes:
    """Return *stored* as lines of JSON text, in which there is no line break: each within a text is escaped."""
    try:
        lines = _ENCODE_LINES(stored)
        if not _lacks_number(lines):
            return lines
    except (TypeError, ValueError, RecursionError):  # half a surrogate pair, a number of 4,300 digits
        pass
    if len(stored) > 1:
        return b"".join([_to_lines([one]) for one in stored])
    return encode(to_tree(stored[0]), None) + b"\n"


@functools.cache
def _numbers() -> frozenset[bytes]:
    """Return the names of all fields of numbers that aren't whole."""
    bases = {base for cls in SECRETS for base in cls.__mro__}
    hints = [field for base in bases for field in inspect.get_annotations(base).items()]
    return frozenset(name.encode() for name, hint in hints if "float" in str(hint))


def _lacks_number(text: bytes) -> bool:
    """Tell whether a field of numbers is null in *text*: msgspec writes NaN and infinities so, and None is left out."""
    end = len(text)
    while (end := text.rfind(b'":null', 0, end)) >= 0:  # from the end: `find` takes three times as long
        if text[text.rfind(b'"', 0, end) + 1 : end] in _numbers():
            return True
    return False


def find_fault(part: r.Record | ModelResponse) -> str | None:
    """Return what of *part* couldn't be read again once it is stored, with its place; None if all of it could.

    Values aren't quoted.
    """
    record = r.ModelResponded((), 0, 0.0, part) if isinstance(part, ModelResponse) else part
    try:
        record_from_line(record_to_line(record))
    except Exception as error:
        return fault_text(error, "$").removeprefix("Malformed record: ").removesuffix(" @ $")
    return None


# -- reading


def record_from_json(data: Mapping[str, Any], *, path: str = "$", secrets: Secrets | None = None) -> r.Record:
    """Return the record that was written as *data*, equal to the original.

    A hidden value that *secrets* can't read comes back as `Withheld`, or as a `WithheldText` where the type is text.

    Raises:
        StateError: naming the first place below *path* that doesn't fit: an unknown kind, a value of the wrong type, a
            field that is missing or unknown. Values aren't quoted.
    """
    record: r.Record = read_whole("record", path, read_part, RECORDS, data, secrets or DIGESTS, read_value)
    return record


def record_from_line(line: bytes, *, path: str = "$", secrets: Secrets | None = None) -> r.Record:
    """Return the record that was written as *line*.

    Raises:
        StateError: as `decode` and `record_from_json`.
    """
    return read_plain_line(line) or record_from_json(decode(line), path=path, secrets=secrets)


def read_plain_line(line: bytes) -> r.Record | None:
    """Return the record of *line*, or None if it has to be opened."""
    return read_plain(line, _DECODE, lambda record: (record,))


def read_plain(text: bytes, read: Callable[[bytes], T], records_of: Callable[[T], Iterable[r.Record]]) -> T | None:
    """Return what msgspec reads of *text*, or None if something in it has to be opened, or is wrong."""
    try:
        if b"$" in text and b'"$' in text:  # one character is found 30 times faster than two
            return None
        found = read(text)
        return found if _are_stored(records_of(found)) and _ENCODE(found) == text else None
    except (ValueError, RecursionError):
        return None


def _are_stored(records: Iterable[r.Record]) -> bool:
    """Tell whether *records*, just read, have no field that lives in a process only (`live` in `SECRETS`)."""
    for record in records:
        kind = type(record)
        if kind is r.CallSettled:
            if record.outcome.value is not None:  # type: ignore[union-attr]  # as its kind says; no JSON is an error
                return False
        elif kind is r.GuardrailSettled and record.result is not None:  # type: ignore[union-attr]  # as its kind says
            return False
    return True


def records_from_list(data: object, *, path: str, secrets: Secrets) -> list[r.Record]:
    """Return the records that were written as the members of *data*.

    Raises:
        StateError: as `record_from_json`, or if *data* isn't a list.
    """
    if not isinstance(data, list):
        raise StateError(f"Malformed state: expected an array of records @ {path}")
    return [record_from_json(each, path=f"{path}[{n}]", secrets=secrets) for n, each in enumerate(data)]


# -- versions


def _upgrade_record_from_1(data: dict[str, Any]) -> dict[str, Any] | None:
    """Return a record of schema 1 as one of schema 2, or None if schema 2 has no such record.

    Schema 2 adds fields that may be missing. That an output is released follows from the other records, and a call's
    idempotency key from its place.
    """
    match data.get("kind"):
        case "item_released":
            return None
        case "run_started":
            return {**data, "schema": "1"}
        case "call_started":
            return {name: value for name, value in data.items() if name != "idempotency_key"}
        case _:
            return data


UPGRADES: Mapping[str, RecordUpgrade] = {"1": _upgrade_record_from_1}
"""By version: a pure function that turns one record of it into a record of the next one, or into None."""
SUPPORTED: tuple[str, ...] = (*UPGRADES, SCHEMA_VERSION)
"""The versions of the stored form that this library reads."""


def upgrade(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return stored *data*, a state or the header of a journal, in the form of `SCHEMA_VERSION`. *data* isn't changed.

    Raises:
        StateError: if it names no version under `schema`, or one that isn't supported; names those that are.
    """
    version, records = data.get("schema"), data.get("records")
    if not isinstance(version, str) or version not in SUPPORTED:
        raise StateError(_format_unsupported(version))
    upgraded = {**data, "schema": SCHEMA_VERSION}
    if version != SCHEMA_VERSION and isinstance(records, list):
        found = (upgrade_record(one, version) if isinstance(one, dict) else one for one in records)
        upgraded["records"] = [one for one in found if one is not None]
    return upgraded


def upgrade_record(data: dict[str, Any], version: str) -> dict[str, Any] | None:
    """Return a record of the supported *version* in the form of `SCHEMA_VERSION`; None if that has no such record."""
    found: dict[str, Any] | None = data
    for step in SUPPORTED[SUPPORTED.index(version) : -1]:
        found = None if found is None else UPGRADES[step](found)
    return found


def _format_unsupported(version: object) -> str:
    known = ", ".join(SUPPORTED)
    if version is None:
        return f"Stored data names no schema version; supported: {known}"
    shown = isinstance(version, str) and version.isascii() and version.isprintable() and len(version) <= 20
    return f"Unknown schema version{f' {version}' if shown else ''}; supported: {known}"
