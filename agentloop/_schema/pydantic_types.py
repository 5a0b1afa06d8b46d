"""Types that msgspec doesn't know, for its hooks: paths, and pydantic's types if the application uses them.

A path is its text. Pydantic is never imported here: a pydantic type in a signature proves that the application has
imported it, so it is found in `sys.modules`. Only pydantic decides which values its types accept (`model_validate`, lax
unless the model is strict).
"""

from __future__ import annotations

import json
import sys
import typing
import warnings
from collections import UserString
from collections.abc import ItemsView, Iterator, KeysView, Mapping, Sequence, ValuesView
from pathlib import PurePath
from typing import Any

from agentloop._schema.json_schema import REF_TEMPLATE, Schema, mark_unknown

_REF = REF_TEMPLATE.format(name="{model}")


def pydantic_adapter(hint: Any) -> Any:
    """Return a `pydantic.TypeAdapter` of *hint* if a part of it is pydantic's, else None.

    Raises:
        TypeError: constraints of `annotated_types` on a type that isn't pydantic's: msgspec would drop them silently.
        Exception: from pydantic, for a type that it can't handle.
    """
    modules = {_root_module(part) for part in _parts(hint)}
    if "pydantic" in modules:
        with warnings.catch_warnings():
            # Of an alias, which has no effect within a type: a parameter has its alias from `parameter_hints`.
            warnings.filterwarnings("ignore", message="The 'alias' attribute")
            return sys.modules["pydantic"].TypeAdapter(hint)
    if "annotated_types" in modules:
        raise TypeError("constraints of annotated_types need pydantic's types; use msgspec.Meta")
    return None


def read_json_value(adapter: Any, value: Any) -> Any:
    """Return *value*, a JSON value, as a value of *adapter*'s type.

    A strict model takes a date, an enum's member or a tuple, which JSON doesn't have, only where pydantic knows that it
    reads JSON. A type with checks of Python objects is read only where it doesn't. So we try the one after the other.

    Raises:
        Exception: if neither takes *value*; of two faults of pydantic's the one with fewer complaints.
    """
    try:
        return adapter.validate_python(value)
    except ValueError as fault:
        faults = pydantic_errors(fault)
        if faults is None:
            raise
        try:
            return adapter.validate_json(json.dumps(value))
        except ValueError as again:
            raise (fault if len(faults) <= len(pydantic_errors(again) or ()) else again) from None


def adapter_schema(adapter: Any) -> Schema:
    """Return the JSON schema of the values that *adapter* accepts, its definitions nested in `$defs`."""
    return typing.cast(Schema, adapter.json_schema(ref_template=_REF))


def pydantic_errors(error: Exception) -> list[tuple[str, str]] | None:
    """Return (path below the value, message) of every fault in a `pydantic.ValidationError`, else None."""
    pydantic: Any = sys.modules.get("pydantic")
    failed: Any = error
    if pydantic is None or not isinstance(error, pydantic.ValidationError):
        return None
    return [
        (_path(fault["loc"]), fault["msg"])
        for fault in failed.errors(include_url=False, include_context=False, include_input=False)
    ]


def schema_hook(cls: Any) -> Schema:
    """Return the schema of a class that msgspec doesn't know: a path's, pydantic's, or a mark that it has none."""
    if _is_path(cls):
        return {"type": "string"}
    return adapter_schema(pydantic_adapter(cls)) if is_pydantic(cls) else mark_unknown(cls)


def dec_hook(cls: Any, value: Any) -> Any:
    """Return *value* as a path, or as an instance of a pydantic class inside another class, for msgspec."""
    if _is_path(cls):
        if not isinstance(value, str):
            raise ValueError(f"Expected `str`, got `{type(value).__name__}`")
        return cls(value)
    try:
        return read_json_value(pydantic_adapter(cls), value)
    except ValueError as error:
        faults = pydantic_errors(error)
        raise ValueError("; ".join(f"{path} {text}".strip() for path, text in faults or [("", str(error))])) from error


def enc_hook(value: Any) -> Any:
    """Return a path, pydantic's value or a container as a JSON value, for msgspec; other ones are a TypeError."""
    if isinstance(value, PurePath | UserString):
        return str(value)
    if not is_pydantic(type(value)):
        if isinstance(value, Mapping):
            return dict(value)
        if isinstance(value, (Sequence, KeysView, ValuesView, ItemsView)):
            return list(value)
    if not is_pydantic(type(value)):
        raise TypeError(f"Encoding objects of type {type(value).__qualname__} is unsupported")
    return pydantic_adapter(type(value)).dump_python(value, mode="json")


def _is_path(cls: Any) -> bool:
    return isinstance(cls, type) and issubclass(cls, PurePath)


def _parts(hint: Any) -> Iterator[Any]:
    """Yield every type, and the type of every piece of metadata, that *hint* consists of."""
    if typing.get_origin(hint) is typing.Annotated:
        yield from (type(piece) for piece in hint.__metadata__)
    if (inner := getattr(hint, "__supertype__", None) or _alias_value(hint)) is not None:
        yield from _parts(inner)
    yield hint
    for argument in typing.get_args(hint):
        yield from _parts(argument)


def _alias_value(hint: Any) -> Any:
    """Return the type behind an alias of Python 3.12 (`type X = …`), else None."""
    return hint.__value__ if type(hint).__name__ == "TypeAliasType" else None


def _root_module(part: Any) -> str:
    return "pydantic" if is_pydantic(part) else str(getattr(part, "__module__", "")).partition(".")[0]


def is_pydantic(part: Any) -> bool:
    """Tell whether *part* is a model or dataclass of pydantic's."""
    return isinstance(part, type) and hasattr(part, "__pydantic_validator__")


def _path(location: tuple[str | int, ...]) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in location)
