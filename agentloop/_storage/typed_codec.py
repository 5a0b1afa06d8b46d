"""Codecs of values of known types: pairs of a writer and a strict reader, made from type hints.

A reader collects its faults, each with its path; no value is ever quoted. Fields at their default aren't written, so
that stored data reads the same after a version of the library adds a field. A class is built only if the caller gave a
codec for it: a hint without a codec is an error when the codecs are made. Does not know about records or items.
"""

from __future__ import annotations

import math
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypeAlias, Union, get_args, get_origin

import attrs
import msgspec

from agentloop._common.error_text import shorten
from agentloop._common.errors import StateError
from agentloop._common.values import field_names
from agentloop._storage.withholding import Secrets, hide_arguments, reveal_arguments

MOST_FAULTS = 3
_HEX = re.compile(r"-?0x[0-9a-f]+")
_ALWAYS: Any = object()
"""In place of a default: the field is always written."""
_FLOATS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}

Context: TypeAlias = Secrets | None
"""The argument that all readers and writers pass on: the hiding of secrets, or None if they are in the clear."""
Reader: TypeAlias = Callable[[Any, Context], Any]
Writer: TypeAlias = Callable[[Any, Context], Any]


class CodecError(ValueError):
    """JSON that doesn't fit. `faults` are pairs of a path below the value and a text that says what is wrong there."""

    def __init__(self, text: str, place: str = "") -> None:
        super().__init__(text)
        self.faults = [(place, text)]


def gather_faults(faults: list[tuple[str, str]]) -> CodecError:
    """Return one error that holds several faults."""
    fault = CodecError("")
    fault.faults = faults
    return fault


def faults_in(error: Exception, place: str) -> list[tuple[str, str]]:
    """Return the faults of an error that a reader raised, with paths below *place*.

    Of an error that is neither a `CodecError` nor a `StateError` only the type is shown, as its text may quote values.
    """
    if isinstance(error, CodecError):
        return [(place + inner, text) for inner, text in error.faults]
    if isinstance(error, StateError):  # from opening a sealed value
        return [(place, str(error))]
    return [(place, type(error).__name__)]


def fault_text(error: Exception, path: str) -> str:
    """Return the text of an error that a reader raised: the first faults with their paths below *path*."""
    faults = faults_in(error, path)
    more = [f"{len(faults) - MOST_FAULTS} more"] if len(faults) > MOST_FAULTS else []
    return shorten("; ".join([*(f"{shorten(text, 200)} @ {place}" for place, text in faults[:MOST_FAULTS]), *more]))


def kind_of(value: object) -> str:
    """Return the name of *value*'s type, as messages use it."""
    return "null" if value is None else type(value).__name__


@attrs.frozen
class TypedCodec:
    """The codec of one type. `write` is None if the value is written unchanged; a value of type `plain` is read so."""

    read: Reader
    write: Writer | None = None
    plain: type | None = None

    def written(self, value: Any, context: Context = None) -> Any:
        """Return *value* as JSON."""
        return value if self.write is None else self.write(value, context)


# -- plain values


def _read_text(value: Any, _context: Context = None) -> str:
    if not isinstance(value, str):
        raise CodecError(f"text is needed, not {kind_of(value)}")
    return value


def _read_flag(value: Any, _context: Context = None) -> bool:
    if value is not True and value is not False:
        raise CodecError(f"true or false is needed, not {kind_of(value)}")
    return bool(value)


def write_whole(value: int, _context: Context = None) -> Any:
    """Return a whole number as JSON. Beyond 64 bits, where readers disagree, it is marked and in base 16."""
    return value if -(2**63) <= value < 2**64 else {"$int": hex(value)}


def _write_count(value: int, _context: Context = None) -> Any:
    """Return a count as JSON: as it is, as msgspec writes it, unless it is too long for Python's own text form.

    A value that is none stays as it is, too: reading it names its place.
    """
    return {"$int": hex(value)} if type(value) is int and value.bit_length() >= 14_000 else value


def read_whole(value: Any, _context: Context = None) -> int:
    """Return the whole number that was written as *value*, marked or not."""
    if type(value) is int:
        return value
    text = value.get("$int") if isinstance(value, Mapping) and len(value) == 1 else None
    if not isinstance(text, str) or not _HEX.fullmatch(text):
        raise CodecError(f"a whole number is needed, not {kind_of(value)}")
    return int(text, 16)


def write_number(value: float, _context: Context = None) -> Any:
    """Return a number as JSON; NaN and infinities are marked."""
    return value if math.isfinite(value) else {"$float": str(float(value))}


def read_number(value: Any, _context: Context = None) -> float:
    """Return the number that was written as *value*, marked or not."""
    if type(value) is float and math.isfinite(value):
        return value
    if type(value) is int:
        try:
            return float(value)
        except OverflowError:
            raise CodecError("a number is needed that fits into a float") from None
    text = value.get("$float") if isinstance(value, Mapping) and len(value) == 1 else None
    if not isinstance(text, str) or text not in _FLOATS:
        raise CodecError(f"a number is needed, not {'one beyond all' if type(value) is float else kind_of(value)}")
    return _FLOATS[text]


def read_object(value: Any, _context: Context = None) -> dict[str, Any]:
    """Return a JSON object as a new dict."""
    if not isinstance(value, Mapping):
        raise CodecError(f"an object is needed, not {kind_of(value)}")
    return dict(value)


TEXT = TypedCodec(_read_text, plain=str)
FLAG = TypedCodec(_read_flag, plain=bool)
WHOLE = TypedCodec(read_whole, _write_count, plain=int)
NUMBER = TypedCodec(read_number, write_number)
_PLAIN: Mapping[Any, TypedCodec] = {str: TEXT, bool: FLAG, int: WHOLE, float: NUMBER}


# -- codecs made of others


def maybe(form: TypedCodec) -> TypedCodec:
    """Return the codec of `T | None`."""
    read, write = form.read, form.write
    return TypedCodec(
        lambda value, context: None if value is None else read(value, context),
        None if write is None else lambda value, context: None if value is None else write(value, context),
        form.plain,
    )


def many(form: TypedCodec) -> TypedCodec:
    """Return the codec of `tuple[T, ...]`: an array."""
    read_one, write_one = form.read, form.write

    def read(value: Any, context: Context) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple):  # a text is iterable too
            raise CodecError(f"an array is needed, not {kind_of(value)}")
        try:
            return tuple([read_one(member, context) for member in value])
        except Exception:
            raise gather_faults(_member_faults(read_one, value, context)) from None

    if write_one is None:
        return TypedCodec(read, lambda values, _context: list(values))
    return TypedCodec(read, lambda values, context: [write_one(value, context) for value in values])


def _member_faults(read_one: Reader, values: Iterable[Any], context: Context) -> list[tuple[str, str]]:
    faults = []
    for index, value in enumerate(values):
        try:
            read_one(value, context)
        except Exception as error:
            faults += faults_in(error, f"[{index}]")
    return faults


def one_of(values: tuple[Any, ...]) -> TypedCodec:
    """Return the codec of `Literal[…]` over texts."""
    known = frozenset(values)
    wanted = f"one of {', '.join(values)} is needed"

    def read(value: Any, _context: Context) -> Any:
        if not isinstance(value, str) or value not in known:
            raise CodecError(wanted)
        return value

    return TypedCodec(read)


def union_of(kinds: Mapping[type, tuple[str, TypedCodec]], tag: str, wanted: str) -> TypedCodec:
    """Return the codec of a closed union of classes; the object's key *tag* names its class."""
    by_name = {name: form.read for name, form in kinds.values()}
    writers = {cls: (name, form.written) for cls, (name, form) in kinds.items()}

    def read(value: Any, context: Context) -> Any:
        fields = read_object(value)
        name = fields.pop(tag, None)
        reader = by_name.get(name) if isinstance(name, str) else None
        if reader is None:
            raise CodecError(wanted)
        return reader(fields, context)

    def write(value: Any, context: Context) -> dict[str, Any]:
        name, written = writers[type(value)]
        return {tag: name, **written(value, context)}

    return TypedCodec(read, write)


def object_of(cls: type, forms: Mapping[str, TypedCodec]) -> TypedCodec:
    """Return the codec of a `Value` or attrs class: an object with the fields of *forms*, defaults left out."""
    defaults = _defaults_of(cls)
    fields = [name for name in field_names(cls) or () if name in forms]
    left_out = {name: value for name, value in defaults.items() if name not in _find_stored_defaults(cls)}
    writers = tuple((name, left_out.get(name, _ALWAYS), forms[name].write) for name in fields)
    readers = {name: forms[name].read for name in fields}
    plain = {name: forms[name].plain for name in fields}
    required = tuple(name for name in fields if name not in defaults)

    def write(value: Any, context: Context) -> dict[str, Any]:
        written = {}
        for name, default, writer in writers:
            member = getattr(value, name)
            if member is default or (default is not None and type(member) is type(default) and member == default):
                continue
            written[name] = member if writer is None else writer(member, context)
        return written

    def read(data: Any, context: Context) -> Any:
        values = {}
        try:
            for name, value in data.items():
                values[name] = value if type(value) is plain[name] else readers[name](value, context)
            return cls(**values)
        except Exception:
            raise gather_faults(_field_faults(readers, required, data, context)) from None

    return TypedCodec(read, write)


def _defaults_of(cls: type) -> dict[str, Any]:
    """Return the defaults of the fields of a `Value` or attrs class, by name."""
    if issubclass(cls, msgspec.Struct):
        return {
            field.name: field.default_factory() if field.default is msgspec.NODEFAULT else field.default
            for field in msgspec.structs.fields(cls)
            if not field.required
        }
    return {
        field.name: field.default.factory() if isinstance(field.default, attrs.Factory) else field.default  # type: ignore[arg-type]
        for field in attrs.fields(cls)  # type: ignore[arg-type]
        if field.default is not attrs.NOTHING
    }


def _find_stored_defaults(cls: type) -> set[str]:
    """Return the fields of a `Value` class that are stored also at their default: msgspec leaves no made text out."""
    if not issubclass(cls, msgspec.Struct):
        return set()
    made = (dict, msgspec.NODEFAULT)
    return {field.name for field in msgspec.structs.fields(cls) if field.default_factory not in made}


def _field_faults(
    readers: Mapping[str, Reader], required: tuple[str, ...], data: Any, context: Context
) -> list[tuple[str, str]]:
    """Return every fault of an object that couldn't be read. A second pass, as only a failed read needs all of them."""
    if not isinstance(data, Mapping):
        return [("", f"an object is needed, not {kind_of(data)}")]
    faults = []
    for name in readers:
        if name in data:
            try:
                readers[name](data[name], context)
            except Exception as error:
                faults += faults_in(error, f".{name}")
        elif name in required:
            faults.append((f".{name}", "a required field is missing"))
    if unknown := sorted(_format_key(name) for name in data if name not in readers):
        faults.append(("", f"unknown: {', '.join(unknown)}"))
    return faults or [("", "it doesn't fit")]


def _format_key(name: object) -> str:
    return ascii(name) if isinstance(name, str) else f"a key that is no text ({kind_of(name)})"


def hide_fields(form: TypedCodec, fields: tuple[str, ...]) -> TypedCodec:
    """Return the codec of a class whose *fields* are hidden if its flag `secret` is set."""
    written = form.written

    def write(value: Any, context: Context) -> dict[str, Any]:
        data: dict[str, Any] = written(value, context)
        if value.secret and context is not None:
            data.update({name: context.hide_json(data[name]) for name in fields if name in data})
        return data

    def read(data: Any, context: Context) -> Any:
        if isinstance(data, Mapping) and data.get("secret") is True and context is not None:
            data = {**data, **{name: _reveal(data[name], name, context) for name in fields if name in data}}
        return form.read(data, context)

    return TypedCodec(read, write)


def _reveal(data: Any, name: str, context: Secrets) -> Any:
    try:
        return context.reveal_json(data)
    except StateError as error:
        raise CodecError(str(error), f".{name}") from None


def hide_call_arguments(form: TypedCodec) -> TypedCodec:
    """Return the codec of a class with a call's `arguments`; the values that its `secret` names are hidden."""
    written = form.written

    def write(value: Any, context: Context) -> dict[str, Any]:
        data: dict[str, Any] = written(value, context)
        if value.secret and context is not None and isinstance(text := data.get("arguments"), str):
            data["arguments"] = hide_arguments(text, value.secret, context)
        return data

    def read(data: Any, context: Context) -> Any:
        if isinstance(data, Mapping) and "secret" in data and context is not None:
            data = _reveal_arguments_of(data, context)
        return form.read(data, context)

    return TypedCodec(read, write)


def _reveal_arguments_of(data: Mapping[str, Any], context: Secrets) -> Mapping[str, Any]:
    text, names = data.get("arguments"), data["secret"]
    if not isinstance(text, str) or not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return data
    try:
        return {**data, "arguments": reveal_arguments(text, names, context)}
    except StateError as error:
        raise CodecError(str(error), ".arguments") from None


# -- codecs by hint


def form_of(hint: Any, known: Mapping[Any, TypedCodec]) -> TypedCodec:
    """Return the codec of a type *hint*; *known* holds those of classes and of special hints.

    Raises:
        TypeError: if there is none.
    """
    if hint in known:
        return known[hint]
    if hint in _PLAIN:
        return _PLAIN[hint]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType) and type(None) in arguments:
        inner: Any = Union[tuple(each for each in arguments if each is not type(None))]  # noqa: UP007 - made at run time
        return maybe(form_of(inner, known))
    if origin is tuple and arguments[1:] == (...,):
        return many(form_of(arguments[0], known))
    if origin is Literal:
        return one_of(arguments)
    raise TypeError(f"no form in JSON is known for {hint!r}")


def class_form(cls: type, known: Mapping[Any, TypedCodec], *, leave: frozenset[str] = frozenset()) -> TypedCodec:
    """Return the codec of a class, by its hints; fields in *leave* are neither written nor read."""
    hints = typing.get_type_hints(cls)
    names = [name for name in field_names(cls) or () if name not in leave]
    return object_of(cls, {name: form_of(hints[name], known) for name in names})
