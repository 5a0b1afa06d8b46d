"""The base of the values that a log is made of: records, items, outcomes, usage, and the events of models and runs.

The values of a plan, the results of bodies, actions, effects and verdicts, which are made for each turn or call, have
the same base; so have other small values that aren't checked, since a class of attrs costs 0.5 ms at the import.

They are `msgspec.Struct`s: built three to five times faster than frozen attrs classes, imported ten times faster, and
stored by msgspec itself. Fields at their default are left out of the stored form, and unknown ones are refused. What
people write (agents, tools, settings, results) stays with attrs. Does not know about any of these values.

Decisions:

There are two kinds of values, each with the library made for it.

What the log is made of (records, items, outcomes, usage, the events of models and runs) are `msgspec.Struct`s with
the base `Value`: frozen, tagged with their stored kind, defaults left out when stored, unknown fields refused. They
are made by the hundred in a turn, and stored. On CPython 3.13 a `CallSettled` is built in 0.11 µs and a `CallOutcome`
in 0.25 µs; frozen attrs classes with the same fields take 1.04 µs and 1.17 µs. Notes on a value (is it secret, what
lives in this process only) take no part in equality and are not stored. Only classes that can hold an object of the
application are tracked by the garbage collector: an error that an outcome holds has frames, which may hold the
result.

Names that two modules share (`events.TextDelta` and `model_events.TextDelta`, `events.CallStarted` and
`records.CallStarted`) can't be confused silently: a metaclass of these classes (`SharesName`) makes `isinstance` and
`case` of the wrong one an error. Python asks a metaclass only if the classes differ, so what matches costs what it
cost; a class that doesn't fit takes 0.1 µs more, and the buffer of events therefore compares types. Rejected: other
names, as each is the right word in its module; a warning by the stream, which can't see what its reader asks.

What people write (agents, tools, guardrails, handoffs, settings, configuration, results) are attrs classes, with
attrs' validators and converters. Small values that nothing checks (verdicts, effects, actions, the data of callbacks)
are Structs too: a class of attrs takes half a millisecond of each import. The engine's mutable state is of attrs or
plain classes, since assigning a field of a Struct takes nine times as long.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Protocol, Self

import attrs
import msgspec

from agentloop._common.errors import UserTypeError
from agentloop._common.masking import make_masked_repr

_NO_MASKS: Mapping[str, str] = {}


class Value(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A frozen value: two of one class are equal if their fields are."""

    _unshown: ClassVar[frozenset[str]] = frozenset()
    """The fields that no repr shows."""

    def replace(self, **changes: Any) -> Self:
        """Return a copy with other values for the fields that *changes* names."""
        return msgspec.structs.replace(self, **changes)

    def __repr__(self) -> str:
        return self._format()

    def _format(self, masks: Mapping[str, str] = _NO_MASKS) -> str:
        """Return the repr, with the texts in *masks* for the fields named there."""
        return format_struct(self, masks)


_is_of: Any = type(msgspec.Struct).__instancecheck__


class SharesName(type(msgspec.Struct)):  # type: ignore[misc]  # msgspec names its metaclass nowhere else
    """The metaclass of a value whose name another value has too: the events of a run, its records, a model's events.

    `isinstance` and `case` of one for an instance of the other would be False without a word, and the code behind it
    would never run: the class was imported from the wrong module. Python asks only if the classes differ.
    """

    def __instancecheck__(cls, instance: object) -> bool:
        if _is_of(cls, instance):
            return True
        given = type(instance)
        if given.__name__ == cls.__name__ and type(given) is SharesName:
            name = cls.__name__
            raise UserTypeError(
                f"this is the {name} of {given.__module__}, and the code asks for the {name} of {cls.__module__}, "
                f"which is another class: import {name} from {given.__module__}"
            )
        return False


class Machinery:
    """The base of a part of a run at work, whose repr shows no field.

    A struct's own would show the whole log, secrets included, in each traceback that has local variables.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return object.__repr__(self)


class ReprByFields:
    """The base of an attrs class, made with `repr=False`, whose repr shows its fields as that of attrs does.

    attrs would compile the method for each class, which takes 0.1 to 0.3 ms of the import.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return make_masked_repr(self, _NO_MASKS)


class ByFields(ReprByFields):
    """The same of a class made with `eq=False, repr=False`; its equality and hash go by its fields too.

    attrs would compile these methods as well: 0.2 to 0.8 ms of the import for each class, for what is seldom used.
    """

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._contents() == other._contents()

    def __hash__(self) -> int:
        return hash((type(self), self._contents()))

    def _contents(self) -> tuple[Any, ...]:
        return tuple([getattr(self, name) for name in field_names(type(self)) or ()])


class NotedValue(Value, frozen=True):
    """A value that also holds notes: fields that take no part in equality, such as whether it is secret."""

    _notes: ClassVar[frozenset[str]] = frozenset({"secret"})
    """The fields that take no part in equality."""
    _unshown: ClassVar[frozenset[str]] = frozenset({"secret"})

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._contents() == other._contents()

    def __hash__(self) -> int:
        return hash((type(self), self._contents()))

    def _contents(self) -> tuple[Any, ...]:
        return tuple([getattr(self, name) for name in self.__struct_fields__ if name not in self._notes])


class HidesFields(Protocol):
    """A Struct that has fields which no repr shows."""

    __struct_fields__: ClassVar[tuple[str, ...]]
    _unshown: ClassVar[frozenset[str]]


def format_struct(value: HidesFields, masks: Mapping[str, str] = _NO_MASKS) -> str:
    """Return the repr of *value*, with the texts in *masks* for the fields named there."""
    fields = (f"{name}={masks.get(name) or repr(field)}" for name, field in iter_shown_fields(value))
    return f"{type(value).__name__}({', '.join(fields)})"


def iter_shown_fields(value: HidesFields) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of the fields that the repr of *value* shows."""
    for name in value.__struct_fields__:
        if name not in value._unshown:
            yield name, getattr(value, name)


def field_names(cls: type) -> tuple[str, ...] | None:
    """Return the names of the fields of a `Value` or attrs class; None of any other class."""
    if issubclass(cls, Value):
        return cls.__struct_fields__
    return tuple(field.name for field in attrs.fields(cls)) if attrs.has(cls) else None
