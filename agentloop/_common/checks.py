"""Validators of attrs fields: what a value must be, said by class and field where it is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import attrs

from agentloop._common.errors import UserTypeError, UserValueError

Validator: TypeAlias = Callable[[Any, "attrs.Attribute[Any]", Any], None]
Fits: TypeAlias = Callable[[Any], bool]


def check(where: str, needed: str, fits: Fits, value: object, *, optional: bool = False) -> None:
    """Return if *value* fits, or is None and *optional*.

    Raises:
        UserTypeError: naming *where*, and what is *needed* there.
    """
    if not (optional and value is None) and not fits(value):
        raise UserTypeError(f"{where}: {needed} is needed, not {value!r}")


def needs(needed: str, fits: Fits, *, optional: bool = False) -> Validator:
    """Return the validator of a field that takes what *fits*; None too where *optional*."""

    def validate(instance: Any, attribute: attrs.Attribute[Any], value: object) -> None:
        check(f"{type(instance).__name__}.{attribute.name}", needed, fits, value, optional=optional)

    return validate


def needs_one_of(*choices: object) -> Validator:
    """Return the validator of a field that takes one of *choices*."""
    named = ", ".join(map(repr, choices))

    def validate(instance: Any, attribute: attrs.Attribute[Any], value: object) -> None:
        if not any(value is choice or (isinstance(value, str) and value == choice) for choice in choices):
            where = f"{type(instance).__name__}.{attribute.name}"
            raise UserValueError(f"{where}: one of {named} is needed, not {value!r}")

    return validate


def has(*methods: str) -> Fits:
    """Return what tells whether a value has all of *methods*."""
    return lambda value: all(callable(getattr(value, method, None)) for method in methods)


def is_text(value: object) -> bool:
    """Tell whether *value* is text."""
    return isinstance(value, str)


def is_flag(value: object) -> bool:
    """Tell whether *value* is True or False."""
    return isinstance(value, bool)


def is_number(value: object) -> bool:
    """Tell whether *value* is a number; True and False are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_named(value: object) -> bool:
    """Tell whether *value* is a mapping whose keys are text."""
    return isinstance(value, Mapping) and all(isinstance(key, str) for key in value)


def is_texts(value: object) -> bool:
    """Tell whether *value* is a sequence of texts, and not one text."""
    return isinstance(value, Sequence) and not isinstance(value, str) and all(isinstance(each, str) for each in value)


text = needs("text", is_text)
text_or_none = needs("text", is_text, optional=True)
flag = needs("True or False", is_flag)
flag_or_none = needs("True or False", is_flag, optional=True)
number_or_none = needs("a number", is_number, optional=True)
mapping_or_none = needs("a mapping with keys of text", is_named, optional=True)
