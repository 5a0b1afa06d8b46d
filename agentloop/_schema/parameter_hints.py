"""Words beside a parameter's type, in its annotation and its default: a description, pydantic's `Field`, another name.

People write the same parameter in four ways, and all of them mean the same here:

    seats: Annotated[int, "How many seats"]
    seats: Annotated[int, msgspec.Meta(description="How many seats")]
    seats: Annotated[int, Field(description="How many seats")]
    seats: int = Field(default=2, description="How many seats")

Does not know about JSON schema: `agentloop._schema.function_schema` writes it from what is read here.
"""

from __future__ import annotations

import copy
import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterator
from typing import Annotated, Any

from agentloop._common.values import Value

EMPTY = inspect.Parameter.empty
_MUTABLE = (list, dict, set, bytearray)
_UNIONS = (typing.Union, types.UnionType)
_WRAPPERS = (*_UNIONS, typing.Required, typing.NotRequired)
_OPTIONAL: Any = typing.Optional  # a hint made at run time may be no operand of `|`


class ParameterHints(Value, frozen=True, kw_only=True):
    """The type of a parameter, its default, and what its annotation says in words.

    `make_default` makes the default anew for each call, where a `Field(default_factory=…)` gives one. `alias` is the
    name by which the model knows the parameter; None where it is the parameter's own.
    """

    hint: Any
    default: Any = EMPTY
    make_default: Callable[[], Any] | None = None
    description: str = ""
    alias: str | None = None


def read_hints(annotation: Any, default: Any) -> ParameterHints:
    """Return what *annotation* and *default* of a parameter say. A parameter with the default None is nullable."""
    field = default if _is_field(default) else None
    if field is not None:
        default = EMPTY
        annotation = Annotated[annotation, field]
    alias, make_default = None, None
    for found in filter(_is_field, _metadata(annotation)):
        alias = found.validation_alias if isinstance(found.validation_alias, str) else alias
        if default is EMPTY:
            default, make_default = _default_of(found)
    if isinstance(default, _MUTABLE):
        # Else what one call appends, the next one would find, in another run too.
        make_default = functools.partial(copy.deepcopy, default)
    return ParameterHints(
        hint=_nullable(annotation) if default is None else annotation,
        default=default,
        make_default=make_default,
        description=words_of(annotation),
        alias=alias,
    )


def _is_field(value: Any) -> bool:
    """Tell whether *value* is what pydantic's `Field(…)` returns. We never import pydantic: who made it has."""
    fields: Any = sys.modules.get("pydantic.fields")
    return fields is not None and isinstance(value, fields.FieldInfo)


def _default_of(field: Any) -> tuple[Any, Callable[[], Any] | None]:
    if field.default_factory is not None:
        return field.default_factory(), field.default_factory
    return (EMPTY if field.is_required() else field.default), None


def _metadata(annotation: Any) -> tuple[Any, ...]:
    return annotation.__metadata__ if typing.get_origin(annotation) is Annotated else ()


def words_of(annotation: Any) -> str:
    """Return what the metadata of *annotation* says in words: its first plain text or `Doc`; empty if it has none."""
    return next(_texts(annotation), "")


def _texts(annotation: Any) -> Iterator[str]:
    """Yield the texts in the metadata of *annotation*, and of the members of a union."""
    for piece in _metadata(annotation):
        # `Doc("…")` of `typing_extensions` (PEP 727), which the application has imported, if it has one.
        text = piece.documentation if type(piece).__name__ == "Doc" else piece
        if isinstance(text, str):
            yield text
    origin = typing.get_origin(annotation)
    if origin is Annotated:
        yield from _texts(annotation.__origin__)
    elif origin in _WRAPPERS:
        for member in typing.get_args(annotation):
            yield from _texts(member)


def _nullable(annotation: Any) -> Any:
    """Return *annotation* with None as a value. An `Annotated` stays around it, so that its words stay at the top."""
    if typing.get_origin(annotation) is Annotated:
        inner: Any = _nullable(annotation.__origin__)
        return Annotated[(inner, *annotation.__metadata__)]
    return _OPTIONAL[annotation]
