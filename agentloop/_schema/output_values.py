"""A tool's value as a model should see it, before it is written: a picture, a list, or the value itself.

Tools return what their libraries give them: a picture of PIL, a number of numpy, an iterator, a dict with a picture in
it. Written as they are, the model would read `<generator object …>`, or a megabyte of base64. We know these by what
they can do (`_repr_png_`, `tolist`), so we import no such library. Pure, except that an iterator is used up.
"""

from __future__ import annotations

import base64
import collections.abc
import inspect
import io
import itertools
import json
import types
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast, get_args

from agentloop._common.errors import UnwritableValue
from agentloop.items import Image, Part, Text

MOST_ITEMS = 10_000
"""Items of an iterator that a tool may return: an endless one must not hold the run."""
_PARTS = get_args(Part)
_SIGNATURES = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
}
_LAZY = (collections.abc.Iterator, collections.abc.MappingView, range)
_ELSEWHERE = (types.CoroutineType, collections.abc.AsyncIterator, io.IOBase)


def to_plain(value: Any) -> Any:
    """Return *value*, a picture as an `Image`, or the items of something that is only a way to items as a list.

    Raises:
        UnwritableValue: something that must be awaited, read or iterated elsewhere; the text says what to return.
    """
    _refuse(value)
    if isinstance(value, bytes) and (image := _picture(value)) is not None:
        return image
    if isinstance(value, _LAZY):
        return _collect(iter(cast(Iterable[Any], value)))
    given: Any = value  # from here on it may be anything
    if callable(getattr(type(given), "_repr_png_", None)):
        png = given._repr_png_()
        data = png[0] if isinstance(png, tuple) else png  # with metadata beside it
        if isinstance(data, bytes):
            return _image(data, "image/png")
    if isinstance(value, list | tuple) and any(map(_needs_change, value)):
        _refuse_each(value)
        return [to_plain(member) for member in value]
    if isinstance(value, dict) and any(map(_needs_change, value.values())):
        _refuse_each(value.values())
        return {key: to_plain(member) for key, member in value.items()}
    return given.tolist() if _is_of_numpy(given) else given


def parts_of(value: Any) -> tuple[Any, ...]:
    """Return the parts of which *value* consists, or which it holds; empty if none.

    A text in a list beside a part is a part as well. A dict with parts in it is its JSON, with the parts after it.
    """
    if isinstance(value, _PARTS):
        return (value,)
    if isinstance(value, list | tuple) and any(isinstance(member, _PARTS) for member in value):
        return tuple(member if isinstance(member, _PARTS) else Text(_text_of(member)) for member in value)
    if isinstance(value, dict) and any(isinstance(member, _PARTS) for member in value.values()):
        return _dict_parts(value)
    return ()


def _dict_parts(value: dict[Any, Any]) -> tuple[Any, ...]:
    parts = [member for member in value.values() if isinstance(member, _PARTS)]
    numbers = itertools.count(1)
    shown = {
        key: f"[{type(member).__name__.lower()} {next(numbers)}, below]" if isinstance(member, _PARTS) else member
        for key, member in value.items()
    }
    return (Text(_text_of(shown)), *parts)


def _text_of(value: Any) -> str:
    if isinstance(value, str):
        return str.__str__(value)
    from agentloop._schema.function_schema import to_json_value

    return json.dumps(to_json_value(value), ensure_ascii=False, allow_nan=False)


def _refuse(value: Any) -> None:
    if inspect.iscoroutine(value):
        value.close()  # else Python warns that it was never awaited
        raise UnwritableValue(f"the coroutine {value.__qualname__!r} was returned: an `await` is missing")
    if isinstance(value, collections.abc.AsyncIterator):
        raise UnwritableValue(
            f"an async iterator ({type(value).__name__}) was returned: collect its items and return a list"
        )
    if isinstance(value, io.IOBase):
        raise UnwritableValue(f"an open file ({type(value).__name__}) was returned: return what is in it")


def _refuse_each(members: Iterable[Any]) -> None:
    """Refuse the first of *members* that is to be refused, with every coroutine closed."""
    faults: list[UnwritableValue] = []
    for member in members:
        try:
            _refuse(member)
        except UnwritableValue as fault:
            faults.append(fault)
    if faults:
        raise faults[0]


def _collect(items: Iterator[Any]) -> Sequence[Any]:
    found = list(itertools.islice(items, MOST_ITEMS + 1))
    if len(found) > MOST_ITEMS:
        raise UnwritableValue(
            f"an iterator ({type(items).__name__}) of more than {MOST_ITEMS} items was returned: return a list"
        )
    return to_plain(found)  # type: ignore[no-any-return]


def _needs_change(value: Any) -> bool:
    kind = type(value)
    if kind in (str, int, float, bool, dict, list, tuple) or value is None:
        return False
    return isinstance(value, (bytes, *_LAZY, *_ELSEWHERE)) or hasattr(kind, "_repr_png_") or _is_of_numpy(value)


def _is_of_numpy(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] == "numpy" and callable(getattr(value, "tolist", None))


def _picture(data: bytes) -> Image | None:
    kind = next((kind for signature, kind in _SIGNATURES.items() if data.startswith(signature)), None)
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        kind = "image/webp"
    return None if kind is None else _image(data, kind)


def _image(data: bytes, kind: str) -> Image:
    return Image(data=base64.b64encode(data).decode("ascii"), media_type=kind)
