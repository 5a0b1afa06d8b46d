"""How a class of the log is stored: msgspec writes and reads its fields, and the table here says the rest.

*Where to add.* A new field of a record: in `agentloop/records.py` only, and in `SECRETS` below if it may be secret. A
new kind of record: its class in `records.py`, a line in `SECRETS`, and what the fold does with it
(`_core/run_fold.py`). A kind that isn't in `SECRETS` is refused, because we don't know what of it may be secret. A
change that older logs don't fit: `SCHEMA_VERSION` and `UPGRADES` in `record_codec`.

A stored object is what msgspec makes of the class: its tag first, then its fields in the order of their declaration,
those at their default left out. Before msgspec writes it, `store` replaces what JSON can't hold or must not show; after
JSON is read, `open_part` undoes that, and msgspec checks everything else. Three steps, the same in both directions:

* Values of the application (fields of type `Any` and objects of JSON) go through `_storage/value_codec`.
* Hidden content is `{"$digest": …}` or `{"$sealed": …}` in place of the field (`_storage/withholding`).
* A number that JSON lacks is `{"$float": "nan"}` or `{"$int": "0x…"}` in place of the field.

Which fields are the application's follows from their types, so that no list of them can be forgotten. Why hidden
content is a form of the stored JSON, and not a type of the fields: everybody who reads a message's content would have
to ask for it, though only a reader without the key ever meets it.
"""

from __future__ import annotations

import functools
import re
import types
from collections import abc
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from math import inf, isfinite, nan
from operator import is_
from typing import Any, NamedTuple, TypeAlias, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec.structs import force_setattr

from agentloop import items as i
from agentloop import records as r
from agentloop._common.errors import StateError, UserTypeError
from agentloop._common.json_bytes import decode, encode
from agentloop._common.values import Value, field_names
from agentloop._storage.faults import CodecError, kind_of, read_at
from agentloop._storage.withholding import Secrets, WithheldText, hide_arguments, is_mark, reveal_arguments
from agentloop.model_events import ModelInfo, ModelResponse
from agentloop.outcomes import CallOutcome
from agentloop.usage import RequestUsage

Context: TypeAlias = Secrets | None
"""The hiding of secrets, or None if they are in the clear."""
Convert: TypeAlias = Callable[[Any, Context], Any]
"""A writer or a reader of the application's values."""


class Secret(Value, frozen=True):
    """The secret parts of a class: *fields* if its flag `secret` is set, or the *arguments* that its `secret` names.

    *live* are fields that exist in this process only and are never stored.
    """

    fields: tuple[str, ...] = ()
    arguments: bool = False
    live: tuple[str, ...] = ()


_NOTHING = Secret()
_ARGUMENTS = Secret(arguments=True)
SECRETS: Mapping[type, Secret] = {
    **dict.fromkeys((r.RunStarted, r.RunResumed, r.TurnStarted, r.BatchEnded, r.GraphChanged), _NOTHING),
    **dict.fromkeys((r.ModelRequested, r.ModelResponded, r.ModelFailed, r.HandedOff), _NOTHING),
    **dict.fromkeys((r.HistoryReplaced, r.SandboxOpened, r.SessionSaved, r.CleanupCut, r.AnswerRequested), _NOTHING),
    **dict.fromkeys((r.InputAdded, r.InputShown, r.InputWithdrawn, r.CancelRequested, r.DeadlinePassed), _NOTHING),
    **dict.fromkeys((r.ApprovalRequested, r.VerdictGiven, r.CallStarted, r.CallSettled), _ARGUMENTS),
    r.GuardrailSettled: Secret(("info", "detail"), live=("result",)),
    **dict.fromkeys((r.BodyEnded, r.CallAnswered), Secret(("value",))),
    r.CallbackReturned: Secret(("answer",)),
    r.RunEnded: Secret(("final_output",)),
    # what records hold
    CallOutcome: Secret(("output", "custom_data"), live=("value", "error")),
    **dict.fromkeys((ModelInfo, ModelResponse, RequestUsage), _NOTHING),
    **dict.fromkeys((i.SystemMessage, i.UserMessage, i.AssistantMessage), Secret(("content",))),
    **dict.fromkeys((i.Reasoning, i.HandoffCall, i.HandoffOutput, i.HostedToolCall), _NOTHING),
    **dict.fromkeys((i.ApprovalRequest, i.CallToAnswer, i.Compaction, i.OpaqueItem), _NOTHING),
    i.ToolCall: _ARGUMENTS,
    i.ToolOutput: Secret(("output",)),
}
"""Every class that is stored. What isn't here is neither written nor read."""

KINDS: Mapping[type, str] = {cls: cls.__struct_config__.tag for cls in SECRETS if cls in get_args(r.Record)}  # type: ignore[attr-defined]
"""The kind of each class of records: the value of the key `kind`."""
RECORDS = {kind: cls for cls, kind in KINDS.items()}
ITEMS: Mapping[str, type] = {cls.__struct_config__.tag: cls for cls in i.ITEM_TYPES}  # type: ignore[attr-defined]
_PLAIN = frozenset({str, bool, int})
"""Types of JSON that need no reader."""
_HEX = re.compile(r"-?0x[0-9a-f]+")
_FLOATS = {"nan": nan, "inf": inf, "-inf": -inf}


# -- writing


def store(part: Any, secrets: Context, write: Convert) -> Any:
    """Return *part* with what JSON lacks replaced and what is secret hidden: of its class, or a JSON object.

    *write* writes the application's values.

    Raises:
        UserTypeError: the class of *part* isn't stored, because `SECRETS` doesn't have it.
    """
    storer = STORERS[type(part)]
    return part if storer is None else storer(part, secrets, write)


def to_tree(stored: Any) -> Any:
    """Return the result of `store` as JSON's own types.

    Raises:
        StateError: a field holds something that JSON has no form for.
    """
    try:
        return _listed(msgspec.to_builtins(stored, enc_hook=plain_text))
    except (TypeError, ValueError, RecursionError) as error:
        raise StateError(f"Not a value of JSON: {type(error).__name__}") from None


def to_object(item: i.Item, secrets: Context) -> dict[str, Any]:
    """Return *item* as a new JSON object, in which the provider's data is what it was, even where JSON has no such."""
    kept: dict[str, Any] = {}
    for name, way in ways_of(type(item)).items():
        member = getattr(item, name)
        if way is _VALUE and member is not None and not (type(member) is dict and not member):
            kept[name] = dict(member) if isinstance(member, Mapping) else member
        elif isinstance(member, i.ToolCall):
            kept[name] = to_object(member, secrets)
            del kept[name]["type"]
    bare = copy(item)  # isn't checked, so that it may lack what is kept
    for name in kept:
        force_setattr(bare, name, None)
    tree: dict[str, Any] = to_tree(store(bare, secrets, lambda value, _secrets: value))
    return tree | kept


def plain_text(value: Any) -> str:
    """Return a text of a subclass as text; msgspec takes no subclass. Of anything else: TypeError."""
    if isinstance(value, str):
        return str.__str__(value)
    raise TypeError


def _listed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _listed(member) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [_listed(member) for member in value]
    if type(value) is float and not isfinite(value):
        return {"$float": str(value)}
    # Beyond 4,300 digits the interpreter refuses to write a number in base 10.
    return {"$int": hex(value)} if type(value) is int and value.bit_length() >= 14_000 else value


Storer: TypeAlias = Callable[[Any, Context, Convert], Any]


class _Storers(dict[type, Storer | None]):
    """The function that stores an object of one of *classes*; None if msgspec writes it as it is. Made at first use."""

    def __init__(self, classes: Collection[type], what: str) -> None:
        super().__init__()
        self._classes = classes
        self._what = what

    def __missing__(self, cls: type) -> Storer | None:
        if cls not in self._classes:
            raise UserTypeError(f"expected {self._what} that is stored, got {cls.__name__}, which isn't in SECRETS")
        self[cls] = made = _make_storer(cls)
        return made


STORERS = _Storers(SECRETS, "an object of a class")
RECORD_STORERS = _Storers(KINDS, "a record of a kind")


def _drop(_live: Any, _secrets: Context, _write: Convert) -> None:
    """Store nothing of a member that exists in this process only."""


def _make_storer(cls: type) -> Storer | None:
    secret, may_be_secret = SECRETS[cls], "secret" in cls.__struct_fields__  # type: ignore[attr-defined]
    writers = [(name, way.store) for name, way in ways_of(cls).items() if way.store is not None]
    hide = _hide_arguments if secret.arguments else _hide_fields

    def store_part(part: Any, secrets: Context, write: Convert) -> Any:
        given = part
        for name, writer in writers:
            member = getattr(given, name)
            storer = STORERS[type(member)] if writer is store and member is not None else writer
            if member is None or storer is None:
                continue
            stored = None if storer is _drop else storer(member, secrets, write)
            if stored is not member:
                part = part.__copy__() if part is given else part  # a copy isn't checked: it holds what is stored
                force_setattr(part, name, stored)
        return hide(part, secret, secrets) if may_be_secret and part.secret else part

    return store_part if writers or may_be_secret else None


def _hide_arguments(part: Any, _secret: Secret, secrets: Context) -> Any:
    if secrets is None or not isinstance(part.arguments, str):
        return part
    return part.replace(arguments=hide_arguments(part.arguments, part.secret, secrets))


def _hide_fields(part: Any, secret: Secret, secrets: Context) -> dict[str, Any]:
    data: dict[str, Any] = msgspec.to_builtins(part, enc_hook=plain_text)
    for name in secret.fields:
        if name in data:
            mark = _mark_of(getattr(part, name))
            if mark is not None:
                data[name] = mark
            elif secrets is not None:
                data[name] = secrets.hide_json(data[name])
    return data


def _mark_of(content: Any) -> Mapping[str, str] | None:
    """Return the mark that *content* was read from; None if it was read whole."""
    if isinstance(content, tuple) and len(content) == 1 and isinstance(content[0], i.Text):
        content = content[0].text
    return content.mark() if isinstance(content, WithheldText) else None


# -- reading


def read_part(kinds: Mapping[str, type], data: Any, secrets: Context, read: Convert) -> Any:
    """Return the object that was stored as *data*: of a class of *kinds*, which are `RECORDS` or `ITEMS`.

    *read* reads the application's values. Hidden content that *secrets* can't reveal becomes a placeholder, which is
    stored as it was. An item of an unknown kind becomes an `OpaqueItem`.

    Raises:
        CodecError, msgspec.ValidationError: a part doesn't fit.
    """
    cls, opened = _open_tagged(kinds, data, secrets, read)
    return msgspec.convert(opened, cls)  # of one class: for a union msgspec would make its tables anew each time


def _open_tagged(kinds: Mapping[str, type], data: Any, secrets: Context, read: Convert) -> tuple[type, Any]:
    _check_object(data)
    field = "kind" if kinds is RECORDS else "type"
    kind = data.get(field)
    if not isinstance(kind, str):
        raise CodecError(f"expected str, got {kind_of(kind)}" if field in data else "missing", f".{field}")
    if kind in kinds:
        return kinds[kind], _open(kinds[kind], data, secrets, read)
    if kinds is RECORDS:
        raise CodecError("this version knows no record of that kind", ".kind")
    return i.OpaqueItem, i.OpaqueItem(dict(data))


def _open(cls: type, data: Mapping[Any, Any], secrets: Context, read: Convert) -> dict[str, Any]:
    """Return *data* with its secrets revealed and its values read, for msgspec to check."""
    _check_object(data)
    opened, secret = dict(data), SECRETS[cls]
    for name in secret.live:
        if name in opened:
            raise CodecError(f"unknown field {name}: it is never stored")
    if secret.fields and opened.get("secret"):
        for name in secret.fields:
            if is_mark(opened.get(name)):
                opened[name] = read_at(f".{name}", _reveal, opened[name], name, secrets)
    if secret.arguments and isinstance(opened.get("arguments"), str):
        names = opened.get("secret")
        if secrets is not None and isinstance(names, list | tuple) and all(isinstance(name, str) for name in names):
            opened["arguments"] = read_at(".arguments", reveal_arguments, opened["arguments"], names, secrets)
    for name, way in ways_of(cls).items():
        member = opened.get(name)
        if member is not None and way.read is not None and type(member) not in _PLAIN:
            opened[name] = read_at(f".{name}", way.read, member, secrets, read)
    return opened


def _check_object(data: Any) -> None:
    if type(data) is not dict and not isinstance(data, Mapping):
        raise CodecError(f"expected object, got {kind_of(data)}")


def _reveal(mark: Mapping[str, str], name: str, secrets: Context) -> Any:
    """Return the JSON data behind *mark*, or a placeholder if it can't be read."""
    opened = None if secrets is None else secrets.reveal(mark)
    if opened is not None:
        return decode(opened)
    text = WithheldText(encode(mark).decode())
    return {"content": [{"type": "text", "text": text}], "output": text}.get(name, mark)


# -- fields


class _Way(NamedTuple):
    """How the members of a field are stored and read, beyond what msgspec does."""

    store: Callable[[Any, Context, Convert], Any] | None
    read: Callable[[Any, Context, Convert], Any] | None


@functools.cache  # asking for the types takes 0.3 ms
def ways_of(cls: type) -> Mapping[str, _Way]:
    """Return the ways of those fields of *cls* that have one; which one follows from the field's type."""
    hints = get_type_hints(cls)
    ways = {name: _way_of(hints[name]) for name in field_names(cls) or ()}
    return {name: way for name, way in ways.items() if way is not None} | dict.fromkeys(SECRETS[cls].live, _LIVE)


def _way_of(hint: Any) -> _Way | None:
    members = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    for member in members:
        if member is Any or get_origin(member) is abc.Mapping:
            return _VALUE
        if get_origin(member) is tuple and get_args(member)[0] == i.Item:
            return _MANY_ITEMS
        if member in SECRETS:
            return _Way(_store_untagged if member.__struct_config__.tag else store, functools.partial(_open, member))
        if member in (int, float):
            return _NUMBER
    return None


def _store_items(items: Sequence[i.Item], secrets: Context, write: Convert) -> Sequence[Any]:
    stored = []
    for item in items:
        storer = STORERS[type(item)]
        stored.append(item if storer is None else storer(item, secrets, write))
    return items if all(map(is_, stored, items)) else stored


def _read_items(data: Any, secrets: Context, read: Convert) -> Any:
    if not isinstance(data, list | tuple):
        return data  # msgspec says what is wrong
    return [read_at(f"[{n}]", _open_tagged, ITEMS, one, secrets, read)[1] for n, one in enumerate(data)]


def _store_untagged(part: Any, secrets: Context, write: Convert) -> dict[str, Any]:
    """Return a part whose class is known from its place, so that its tag isn't stored."""
    data = dict(msgspec.to_builtins(store(part, secrets, write), enc_hook=plain_text))
    del data[part.__struct_config__.tag_field]
    return data


def read_number(data: Any) -> Any:
    """Return the number that was stored as *data*, if that is the mark of one; else *data*."""
    if type(data) is float and not isfinite(data):
        raise CodecError("expected a number of JSON, got one beyond all")
    if type(data) is dict and len(data) == 1:
        ((mark, text),) = data.items()
        if mark == "$float" and isinstance(text, str) and text in _FLOATS:
            return _FLOATS[text]
        if mark == "$int" and isinstance(text, str) and _HEX.fullmatch(text):
            return int(text, 16)
    return data


_LIVE = _Way(_drop, None)
_VALUE = _Way(lambda value, secrets, write: write(value, secrets), lambda data, secrets, read: read(data, secrets))
_MANY_ITEMS = _Way(_store_items, _read_items)
_NUMBER = _Way(None, lambda data, _secrets, _read: read_number(data))
