"""The codec of records: to JSON and back, for a run's state and its journal.

A record is an object with its kind under `kind`, then its fields in the order of their declaration, mappings of the
application sorted by their keys; fields at their default are left out. So equal records have equal lines. Only the
classes of the table here are ever built. Values of the application (outputs, answers, infos) go through
`agentloop._storage.value_codec`. Does not know about runs, files or keys.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, get_args

import msgspec

from agentloop import items as i
from agentloop import records as r
from agentloop._common.errors import StateError, UserTypeError
from agentloop._storage.item_codec import item_forms
from agentloop._storage.json_bytes import decode as decode
from agentloop._storage.json_bytes import encode as encode
from agentloop._storage.plain_records import plain_line, plain_lines, read_plain_line, read_plain_lines
from agentloop._storage.typed_codec import (
    CodecError,
    Context,
    TypedCodec,
    class_form,
    fault_text,
    hide_call_arguments,
    hide_fields,
    kind_of,
    read_object,
    union_of,
)
from agentloop._storage.value_codec import read_value, value_to_json
from agentloop._storage.withholding import DIGESTS, Secrets
from agentloop.model_events import ModelInfo, ModelResponse
from agentloop.outcomes import CallOutcome
from agentloop.usage import RequestUsage

SCHEMA_VERSION = "2"
"""The version of the stored form that this library writes."""

Upgrade: TypeAlias = Callable[[dict[str, Any]], dict[str, Any]]


RecordUpgrade: TypeAlias = Callable[[dict[str, Any]], dict[str, Any] | None]


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


def _upgrade_from_1(data: dict[str, Any]) -> dict[str, Any]:
    records = data.get("records")
    if not isinstance(records, list):
        return {**data, "schema": "2"}
    found = (_upgrade_record_from_1(one) if isinstance(one, dict) else one for one in records)
    return {**data, "schema": "2", "records": [one for one in found if one is not None]}


UPGRADES: Mapping[str, Upgrade] = {"1": _upgrade_from_1}
"""By version: a pure function that turns stored data of it into data of the next one, its schema key included."""
RECORD_UPGRADES: Mapping[str, RecordUpgrade] = {"1": _upgrade_record_from_1}
"""By version: a pure function that turns one record of it into a record of the next one, or into none."""
SUPPORTED: tuple[str, ...] = (*UPGRADES, SCHEMA_VERSION)
"""The versions of the stored form that this library reads."""

KINDS: Mapping[type, str] = {cls: str(cls.__struct_config__.tag) for cls in get_args(r.Record)}
# These fields exist in the process alone and are not stored.
_LEFT_OUT: Mapping[type, frozenset[str]] = {
    CallOutcome: frozenset({"value", "error"}),
    r.GuardrailSettled: frozenset({"result"}),
}
# If a record's flag `secret` is set, these fields are hidden. In other records `secret` names arguments to hide.
_SECRET_FIELDS: Mapping[type, tuple[str, ...]] = {
    CallOutcome: ("output", "custom_data"),
    r.GuardrailSettled: ("info", "detail"),
    r.BodyEnded: ("value",),
    r.CallbackReturned: ("answer",),
    r.RunEnded: ("final_output",),
}
_SECRET_ARGUMENTS = frozenset({r.ApprovalRequested, r.VerdictGiven, r.CallStarted, r.CallSettled})
_NOTHING: frozenset[str] = frozenset()
_ITEM: Any = i.Item
_RECORD: Any = r.Record
_JSON_OBJECT: Any = i.JsonObject


def record_to_json(record: r.Record, secrets: Secrets | None = None) -> dict[str, Any]:
    """Return *record* as a new JSON object. Values marked secret are hidden by *secrets*, by default as digests.

    Raises:
        UserTypeError: if *record* is no record.
    """
    if type(record) not in KINDS:
        raise UserTypeError(f"a record is needed, not {type(record).__name__}")
    return _write_part(_RECORD, record, secrets or DIGESTS)


def item_to_json_hidden(item: i.Item, secrets: Secrets | None) -> dict[str, Any]:
    """Return *item* as a new JSON object. *secrets* hides its secret values; with None they are in the clear."""
    return _write_part(_ITEM, item, secrets)


def reveal_item(data: Mapping[str, Any], secrets: Secrets) -> i.Item:
    """Return the item that was written as *data*, its secrets revealed by *secrets*.

    Raises:
        StateError: naming the first places that don't fit. Values aren't quoted.
    """
    try:
        item: i.Item = _codecs()[_ITEM].read(data, secrets)
        return item
    except Exception as error:
        raise StateError(f"Malformed item: {fault_text(error, '$')}") from None


def value_part_to_json(part: CallOutcome | ModelResponse | RequestUsage, secrets: Secrets) -> dict[str, Any]:
    """Return a part of records as a new JSON object, as it is inside them."""
    return _write_part(type(part), part, secrets)


def _write_part(hint: Any, value: Any, secrets: Secrets | None) -> dict[str, Any]:
    written: dict[str, Any] = _codecs()[hint].written(value, secrets)
    return written


def record_from_json(data: Mapping[str, Any], *, path: str = "$", secrets: Secrets | None = None) -> r.Record:
    """Return the record that was written as *data*, equal to the original.

    A hidden value that *secrets* can't read comes back as `Withheld`, or as a `WithheldText` where the type is text.

    Raises:
        StateError: naming the first places below *path* that don't fit: an unknown kind, a value of the wrong type, a
            field that is missing or unknown. Values aren't quoted.
    """
    try:
        record: r.Record = _codecs()[_RECORD].read(data, secrets or DIGESTS)
        return record
    except Exception as error:
        raise StateError(f"Malformed record: {fault_text(error, path)}") from None


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


def record_to_line(record: r.Record, secrets: Secrets | None = None) -> bytes:
    """Return `record_to_json` of *record* as canonical JSON text, its kind first.

    Raises:
        UserTypeError: if *record* is no record.
    """
    return plain_line(record) or unusual_line(record, secrets)


def unusual_line(record: r.Record, secrets: Secrets | None) -> bytes:
    """Return the line of a record for which `plain_line` has none. Raises as `record_to_line`."""
    return encode(record_to_json(record, secrets), None)


def record_from_line(line: bytes, *, path: str = "$", secrets: Secrets | None = None) -> r.Record:
    """Return the record that was written as *line*.

    Raises:
        StateError: as `decode` and `record_from_json`.
    """
    return read_plain_line(line) or record_from_json(decode(line), path=path, secrets=secrets)


def records_to_array(records: Sequence[r.Record], secrets: Secrets) -> bytes:
    """Return *records* as canonical JSON text."""
    return plain_lines(records) or b"[%b]" % b",".join([record_to_line(record, secrets) for record in records])


def records_from_array(array: bytes, *, path: str, secrets: Secrets) -> list[r.Record]:
    """Return the records that were written as *array*.

    Raises:
        StateError: as `record_from_line`, or if it is no array.
    """
    found = read_plain_lines(array)
    if found is not None:
        return found
    try:
        lines = msgspec.json.decode(array, type=list[msgspec.Raw])
    except (ValueError, RecursionError):  # half a surrogate pair is one reason, no array another
        return records_from_list(decode(array), path=path, secrets=secrets)
    return [record_from_line(bytes(line), path=f"{path}[{n}]", secrets=secrets) for n, line in enumerate(lines)]


def records_from_list(data: object, *, path: str, secrets: Secrets) -> list[r.Record]:
    """Return the records that were written as the members of *data*.

    Raises:
        StateError: as `record_from_json`, or if *data* is no list.
    """
    if not isinstance(data, list):
        raise StateError(f"Malformed state: an array of records is needed @ {path}")
    return [record_from_json(each, path=f"{path}[{n}]", secrets=secrets) for n, each in enumerate(data)]


# -- versions


def upgrade(data: Mapping[str, Any], *, key: str = "schema") -> dict[str, Any]:
    """Return stored *data*, with its version under *key*, in the form of `SCHEMA_VERSION`. *data* isn't changed.

    Raises:
        StateError: if there is no version, or one that isn't supported; names those that are.
    """
    upgraded = dict(data)
    while (version := upgraded.get(key)) != SCHEMA_VERSION:
        step = UPGRADES.get(version) if isinstance(version, str) else None
        if step is None:
            raise StateError(_format_unsupported(version))
        upgraded = step(upgraded)
    return upgraded


def upgrade_record(data: dict[str, Any], version: str) -> dict[str, Any] | None:
    """Return a record of the supported *version* in the form of `SCHEMA_VERSION`; None if that has no such record."""
    found: dict[str, Any] | None = data
    for step in list(RECORD_UPGRADES)[SUPPORTED.index(version) :]:
        found = None if found is None else RECORD_UPGRADES[step](found)
    return found


def _format_unsupported(version: object) -> str:
    known = ", ".join(SUPPORTED)
    if version is None:
        return f"Stored data names no schema version; supported: {known}"
    if isinstance(version, str) and version.isascii() and version.isprintable() and len(version) <= 20:
        return f"Unknown schema version {version}; supported: {known}"
    return f"Unknown schema version; supported: {known}"


# -- codecs


def _read_json_object(value: Any, context: Context) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise CodecError(f"an object is needed, not {kind_of(value)}")
    return read_object(read_value(value, context))


@functools.cache  # made at first use, so that importing the package doesn't pay for it
def _codecs() -> Mapping[Any, TypedCodec]:
    """Return the codecs of records, items and the parts of both, by their type hints."""
    known = item_forms(TypedCodec(_read_json_object, value_to_json), TypedCodec(read_value, value_to_json))
    for cls in (RequestUsage, ModelInfo, ModelResponse, CallOutcome):
        known[cls] = _class_codec(cls, known)
    kinds = {cls: (kind, _class_codec(cls, known)) for cls, kind in KINDS.items()}
    known[_RECORD] = union_of(kinds, "kind", "an object of a known kind of record is needed")
    return known


def _class_codec(cls: type, known: Mapping[Any, TypedCodec]) -> TypedCodec:
    form = class_form(cls, known, leave=_LEFT_OUT.get(cls, _NOTHING))
    if cls in _SECRET_FIELDS:
        return hide_fields(form, _SECRET_FIELDS[cls])
    return hide_call_arguments(form) if cls in _SECRET_ARGUMENTS else form
