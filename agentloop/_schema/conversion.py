"""Types that only cattrs can convert, and errors that name every fault.

msgspec converts what annotations of its own types describe, in one call. With a converter of the application's, other
annotations go through a copy of that converter, in which the hooks that cattrs itself brings are as strict as msgspec:
cattrs takes `"5"` for an int, and a text for a list of texts. Hooks of the application's decide alone. The same hooks
on a bare converter say what is wrong with a value that msgspec has refused: msgspec names the first fault only.

cattrs is imported here only, at first use. Does not know about tools, schemas and runs.

Decisions:

Arguments, outputs, contexts, custom data and final outputs are of types that people wrote. Two libraries convert
them, each where it is good (`_schema/conversion.py`).

msgspec converts what its own types describe, in one call for all arguments of a tool. Three plain arguments take 2.6
µs, a nested attrs class with an id and a time 4.9. cattrs converts what has a hook of the application's.
`RunConfig(converter=…)` takes the application's converter, so that its units, ids and dates mean in a tool what they
mean in the rest of the program. The same class by cattrs takes 17.5 µs, a lone hooked argument 6.4: the price is paid
where there is a converter, and only by parameters that aren't made of JSON's own types. What cattrs brings itself is
made strict, in a copy of the converter. cattrs takes `"5"` for an int, `True` for an enum's 1, and a text for a list
of texts, and it has no hook for an id or a decimal. In the copy msgspec converts each of these. A property holds both
ways to equal values and equal refusals, for types drawn three levels deep and JSON that fits or is spoilt. A hook of
the application's decides only. Every fault is named. msgspec stops at the first; once it has refused a value, the
strict hooks of a bare converter list all faults with their paths. A refusal costs eight to seventeen times a success;
a turn of the model costs far more. cattrs is imported at first use (15 ms, and 1.5 ms for the strict hooks): by a run
with a converter, or to describe the first wrong argument of a process. Importing the package and running plain tools
don't need it. The schema of a type that only the converter knows is in its annotation, `Annotated[T,
JsonSchema({…})]`. A tool is made before the run's converter is known, so that a registry of schemas in the converter
would come too late. `JsonSchema` returns a `msgspec.Meta`, which msgspec carries through containers and fields of
classes.

The strict copy, its errors and the way to it are about 350 lines. They replaced few others: the parts of `_schema`
written by hand read signatures and docstrings, and stored values describe themselves. No converter does either.

Rejected: cattrs for everything. It is slower by a factor of four, and some twenty kinds of types needed strict hooks
before both ways agreed. Rejected: cattrs in place of the codec of stored values. A stored value is read without its
type, so that it has to describe itself, and it must be bounded: any value may hold itself, or one list a billion
times. cattrs does neither; the codec asks the converter for one object at a time. Rejected: the application's
converter unchanged. Its lax hooks would have brought back the coercions that the model's arguments must not have.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import datetime
import decimal
import enum
import functools
import itertools
import operator
import types
import typing
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, Union

import attrs
import msgspec

from agentloop._schema.pydantic_types import dec_hook, is_pydantic

if TYPE_CHECKING:
    from cattrs import BaseConverter

Hook: TypeAlias = Callable[[Any, Any], Any]

_SCALARS = (bool, int, float, str, bytes)
"""Types whose hooks cattrs finds by class, before it asks any predicate."""
_EXACT = frozenset(
    {
        *(None, type(None), bytearray, memoryview, uuid.UUID, decimal.Decimal),
        *(datetime.datetime, datetime.date, datetime.time, datetime.timedelta),
    }
)
"""Other types that msgspec converts; cattrs has no hooks for them, or lax ones."""
_JSON_TYPES = frozenset({bool, int, float, str, None, type(None), Any})
_ABC = collections.abc
_ARRAYS: dict[Any, Callable[[list[Any]], Any]] = {
    **dict.fromkeys((list, _ABC.Sequence, _ABC.MutableSequence, _ABC.Collection, _ABC.Iterable), list),
    **dict.fromkeys((set, _ABC.Set, _ABC.MutableSet), set),
    frozenset: frozenset,
    tuple: tuple,
}
_OBJECTS = frozenset({dict, _ABC.Mapping, _ABC.MutableMapping})
_UNIONS = frozenset({Union, types.UnionType})
_BOUNDS = ("gt", "ge", "lt", "le", "multiple_of", "pattern", "min_length", "max_length", "tz")


class Conversion:
    """An application's converter and its strict copy. A hook that is registered later doesn't count."""

    __slots__ = ("_strict", "_theirs")

    def __init__(self, theirs: BaseConverter) -> None:
        self._theirs = theirs
        self._strict = _make_strict(theirs)

    def structure(self, value: Any, hint: Any) -> Any:
        """Return the value of type *hint* for a JSON value. Any exception means that the value doesn't fit."""
        return self._strict.structure(value, hint)

    def unstructure(self, value: Any, hint: Any = None) -> Any:
        """Return *value* as the application's hooks write it; msgspec writes what is left."""
        return self._theirs.unstructure(value, unstructure_as=hint)

    def knows(self, hint: Any) -> bool:
        """Return True if there is a hook for *hint*."""
        return _find_hook(self._strict, hint) is not None

    def decides(self, hint: Any) -> bool:
        """Return True if *hint* needs the converter: it isn't made of JSON's own types, or one has a hook."""
        if not _is_default(_find_hook(self._theirs, hint)):
            return True
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if origin is Literal:
            return False
        if origin is Annotated:
            return self.decides(arguments[0])
        if origin in _UNIONS or origin in _ARRAYS or origin in _OBJECTS:
            return any(self.decides(argument) for argument in arguments if argument is not ...)
        return hint not in _JSON_TYPES and hint not in _ARRAYS and hint not in _OBJECTS


@functools.lru_cache(8)  # bounded: a converter made for every run would never be freed
def conversion_of(converter: BaseConverter) -> Conversion:
    """Return the conversion by *converter*."""
    return Conversion(converter)


@functools.cache
def _own_converter() -> BaseConverter:
    from cattrs import Converter

    return _make_strict(Converter())


def structure(value: Any, hint: Any, converter: BaseConverter | None) -> Any:
    """Return the value of type *hint* for a JSON value; by *converter*, the application's own, if there is one."""
    return (
        _own_converter().structure(value, hint)
        if converter is None
        else conversion_of(converter).structure(value, hint)
    )


def find_faults(value: Any, hint: Any) -> list[tuple[str, Exception]]:
    """Return every fault of *value*, a JSON value that doesn't fit *hint*, with its path; nothing if none is found."""
    try:
        _own_converter().structure(value, hint)
    except Exception as error:
        return list(each_fault(error))
    return []


def each_fault(error: Exception, path: str = "") -> Iterator[tuple[str, Exception]]:
    """Yield the faults that an error of cattrs holds, each with its path; another error is one fault."""
    if not hasattr(error, "group_exceptions"):
        yield path, error
        return
    group: Any = error
    located, others = group.group_exceptions()
    for inner, note in located:
        if not hasattr(note, "name"):
            yield from each_fault(inner, f"{path}[{note.index}]")
        elif isinstance(inner, KeyError) and inner.args == (note.name,):
            yield path, msgspec.ValidationError(f"Object missing required field `{note.name}`")
        else:
            yield from each_fault(inner, f"{path}.{note.name}")
    for inner in others:
        yield from each_fault(inner, path)


# -- strict hooks


def _make_strict(theirs: BaseConverter) -> BaseConverter:
    """Return a copy of *theirs* in which the hooks that cattrs itself brings are strict."""
    strict: Any = theirs.copy(detailed_validation=True)
    for scalar in _SCALARS:
        if _is_default(_find_hook(theirs, scalar)):
            strict.register_structure_hook(scalar, _structure_scalar)
    busy: set[Any] = set()
    """Classes for which a hook is being made: the one that lies below ours is needed."""

    def register(fits: Callable[[Any], bool], make_hook: Callable[[Any, BaseConverter], Hook]) -> None:
        def is_open(hint: Any) -> bool:
            if hint in busy or not fits(hint):
                return False
            return _is_default(_find_hook(theirs, hint))

        strict.register_structure_hook_factory(is_open, lambda hint, converter: make_hook(hint, converter))

    def make_record_hook(hint: Any, converter: BaseConverter) -> Hook:
        busy.add(hint)
        try:
            inner = converter.get_structure_hook(hint, cache_result=False)
        finally:
            busy.discard(hint)
        names = typing.get_type_hints(typing.get_origin(hint) or hint) if typing.is_typeddict(hint) else None
        if names is None:
            return lambda value, _: inner(msgspec.convert(value, dict), hint)

        def structure(value: Any, _: Any) -> Any:
            found = inner(msgspec.convert(value, dict), hint)
            return {name: member for name, member in found.items() if name in names}

        return structure

    register(is_pydantic, lambda _hint, _converter: lambda value, cls: dec_hook(cls, value))
    register(_is_record, make_record_hook)
    register(_is_named_tuple, _make_named_tuple_hook)
    register(lambda hint: (typing.get_origin(hint) or hint) in _ARRAYS, _make_array_hook)
    register(lambda hint: (typing.get_origin(hint) or hint) in _OBJECTS, _make_object_hook)
    register(lambda hint: typing.get_origin(hint) in _UNIONS, _make_union_hook)
    strict.register_structure_hook_factory(  # a copy lacks the hooks of unions
        lambda hint: typing.get_origin(hint) in _UNIONS and not _is_default(_find_hook(theirs, hint)),
        theirs.get_structure_hook,
    )
    register(lambda hint: typing.get_origin(hint) is Annotated, _make_annotated_hook)
    register(_is_exact, _make_exact_hook)  # the last one is asked first: a union of Structs is msgspec's
    return typing.cast("BaseConverter", strict)


def _find_hook(converter: BaseConverter, hint: Any) -> Hook | None:
    try:
        return converter.get_structure_hook(hint, cache_result=False)
    except Exception:  # there is none, or the class can't be read
        return None


def _is_default(hook: Hook | None) -> bool:
    """Return True if cattrs itself brings *hook* (generated ones have no module), or if there is none."""
    module: Any = getattr(getattr(hook, "__func__", hook), "__module__", None)
    return module is None or (
        module.partition(".")[0] == "cattrs" and not module.startswith(("cattrs.preconf", "cattrs.strategies"))
    )


def _is_exact(hint: Any) -> bool:
    cls = typing.get_origin(hint) or hint
    if cls in _UNIONS:
        return all(map(_is_struct, typing.get_args(hint)))
    return (
        cls is Literal or hint in _EXACT or _is_struct(hint) or (isinstance(cls, type) and issubclass(cls, enum.Enum))
    )


def _is_named_tuple(hint: Any) -> bool:
    cls = typing.get_origin(hint) or hint
    return isinstance(cls, type) and issubclass(cls, tuple) and hasattr(cls, "_fields")


def _is_record(hint: Any) -> bool:
    cls = typing.get_origin(hint) or hint
    return (typing.is_typeddict(cls) or dataclasses.is_dataclass(cls) or attrs.has(cls)) and not is_pydantic(cls)


def _structure_scalar(value: Any, cls: Any) -> Any:
    if cls in _SCALARS or issubclass(cls, enum.Enum):
        return msgspec.convert(value, cls)
    base: Any = next(scalar for scalar in _SCALARS if issubclass(cls, scalar))
    return cls(msgspec.convert(value, base))


def _make_exact_hook(hint: Any, converter: BaseConverter) -> Hook:
    def structure_inner(cls: Any, value: Any) -> Any:
        return converter.structure(value, cls)

    return lambda value, _: msgspec.convert(value, hint, str_keys=True, dec_hook=structure_inner)


def _make_array_hook(hint: Any, converter: BaseConverter) -> Hook:
    origin, arguments = typing.get_origin(hint) or hint, typing.get_args(hint)
    if origin is tuple and arguments and arguments[-1] is not ...:
        hooks = [(converter.get_structure_hook(argument), argument) for argument in arguments]
        shape: Any = tuple[(Any,) * len(arguments)]  # type: ignore[misc]  # made at run time
        return lambda value, _: tuple(_structure_each(enumerate(msgspec.convert(value, shape)), hooks, hint))
    build, kind = _ARRAYS[origin], arguments[0] if arguments else Any
    every = itertools.repeat((converter.get_structure_hook(kind), kind))
    return lambda value, _: build(_structure_each(enumerate(msgspec.convert(value, list)), every, hint))


def _make_named_tuple_hook(hint: Any, converter: BaseConverter) -> Hook:
    types_ = tuple(typing.get_type_hints(hint, include_extras=True).values())
    least = len(types_) - len(hint._field_defaults)
    shape: Any = Annotated[list, msgspec.Meta(min_length=least, max_length=len(types_))]

    def structure(value: Any, _: Any) -> Any:
        given = msgspec.convert(value, shape)
        members: Any = tuple[types_[: len(given)]]  # type: ignore[misc]  # made at run time
        return hint(*converter.structure(given, members))

    return structure


def _make_object_hook(hint: Any, converter: BaseConverter) -> Hook:
    key_type, value_type = typing.get_args(hint) or (Any, Any)
    read_key = itertools.repeat((_make_key_hook(key_type, converter), key_type))
    read_value = itertools.repeat((converter.get_structure_hook(value_type), value_type))

    def structure(value: Any, _: Any) -> dict[Any, Any]:
        given = msgspec.convert(value, dict)
        # Members without their keys, which may be long or secret, as in msgspec's paths.
        keys = _structure_each((("...", key) for key in given), read_key, hint)
        return dict(
            zip(keys, _structure_each((("...", each) for each in given.values()), read_value, hint), strict=True)
        )

    return structure


def _structure_each(
    members: Iterable[tuple[int | str, Any]], hooks: Iterable[tuple[Hook, Any]], hint: Any
) -> list[Any]:
    """Return the values of *members*, pairs of a place and a JSON value, by the hook and the type at the same position.

    Raises:
        IterableValidationError: holding each fault, with its place.
    """
    from cattrs import IterableValidationError, IterableValidationNote

    found, errors = [], []
    for (place, value), (hook, kind) in zip(members, hooks, strict=False):
        try:
            found.append(hook(value, kind))
        except Exception as error:
            error.add_note(IterableValidationNote("", place, kind))
            errors.append(error)
    if errors:
        group: Any = IterableValidationError
        raise group("", errors, hint)
    return found


def _make_key_hook(hint: Any, converter: BaseConverter) -> Hook:
    """Return the hook for keys, which JSON has as text only: msgspec reads numbers and the like from it."""
    hook = converter.get_structure_hook(hint)
    if hint is Any or getattr(hook, "__module__", "") != __name__:
        return hook
    keyed: Any = dict[hint, Any]
    return lambda key, _: next(iter(msgspec.convert({key: None}, keyed, str_keys=True)))


def _make_union_hook(hint: Any, converter: BaseConverter) -> Hook:
    """Return the hook that takes the first member which fits; a float comes last, as an int would fit it."""
    members = typing.get_args(hint)
    structs = [member for member in members if _is_struct(member)]
    kinds = [member for member in members if not _is_struct(member)]
    if structs:
        kinds.append(functools.reduce(operator.or_, structs))
    hooks = [(kind, converter.get_structure_hook(kind)) for kind in sorted(kinds, key=lambda kind: kind is float)]

    def structure(value: Any, _: Any) -> Any:
        errors = []
        for kind, hook in hooks:
            try:
                return hook(value, kind)
            except Exception as error:
                errors.append(error)
        inside = [error for error in errors if hasattr(error, "group_exceptions")]
        if len(inside) == 1:  # the value has the shape of that member only
            raise inside[0]
        names = " | ".join("null" if kind is type(None) else _format_type(kind) for kind, _ in hooks)
        raise msgspec.ValidationError(f"Expected `{names}`, got `{'null' if value is None else type(value).__name__}`")

    return structure


def _make_annotated_hook(hint: Any, converter: BaseConverter) -> Hook:
    """Return the hook of the annotated type, with the bounds of `msgspec.Meta` checked before."""
    base, *extras = typing.get_args(hint)
    inner = converter.get_structure_hook(base)
    bounds = [
        extra
        for extra in extras
        if isinstance(extra, msgspec.Meta) and any(getattr(extra, name) is not None for name in _BOUNDS)
    ]
    origin = typing.get_origin(base) or base
    if not bounds:
        return lambda value, _: inner(value, base)
    if origin in _ARRAYS or origin in _OBJECTS:
        shape: Any = dict if origin in _OBJECTS else list
        for bound in bounds:
            shape = Annotated[shape, bound]
        return lambda value, _: inner(msgspec.convert(value, shape), base)
    if getattr(inner, "__module__", "") != __name__:  # a hook of the application's decides alone
        return lambda value, _: inner(value, base)
    return lambda value, _: msgspec.convert(value, hint)


def _is_struct(hint: Any) -> bool:
    cls = typing.get_origin(hint) or hint
    return isinstance(cls, type) and issubclass(cls, msgspec.Struct)


def _format_type(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint)
