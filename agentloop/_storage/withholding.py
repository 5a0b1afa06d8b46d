"""The stored form of values marked secret, in journals and states: sealed by the application's codec, or digests.

In JSON a secret is `{"$sealed": BASE64}` or `{"$digest": HEX}`. In a call's arguments, which are JSON text themselves,
such an object replaces the value; arguments that don't parse are hidden whole, behind `$sealed:` or `$digest:`, which
begins no JSON. A value read without the codec stays hidden, and is written again unchanged. Does not know which
values are secret: `_core/secret_marks` marks them.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeGuard

from agentloop._common.errors import StateError
from agentloop._common.json_bytes import encode
from agentloop._common.masking import replace_arguments, replace_spans, select_spans, spans_of
from agentloop._common.values import Value
from agentloop.items import ToolCall

if TYPE_CHECKING:
    from cattrs import BaseConverter

    from agentloop.abc import Codec

Mark: TypeAlias = Literal["$digest", "$sealed"]
MARKS = ("$digest", "$sealed")


class Withheld(Value, frozen=True):
    """The stored remainder of a secret value that can't be read."""

    _unshown = frozenset({"text"})

    mark: Mark
    text: str


class WithheldText(str):
    """A text with stored secrets that can't be read whole: arguments with gaps, or the mark of an output."""

    __slots__ = ()

    def mark(self) -> Mapping[str, str] | None:
        """Return the text as a mark; None for arguments."""
        try:
            data = json.loads(self)
        except ValueError:
            return None
        return data if is_mark(data) else None


def is_mark(data: object) -> TypeGuard[Mapping[str, str]]:
    """Tell whether JSON data is the mark of a hidden secret."""
    if not isinstance(data, Mapping) or len(data) != 1:
        return False
    ((mark, text),) = data.items()
    return mark in MARKS and isinstance(text, str)


class Secrets(Value, frozen=True):
    """The hiding of secrets in stored data: sealed by *codec*; without one only their digests are kept.

    *converter* writes the application's own types in stored values, secret or not.
    """

    codec: Codec | None = None
    converter: BaseConverter | None = None

    def hide(self, data: bytes) -> dict[str, str]:
        """Return the mark that replaces *data*.

        Raises:
            StateError: if the codec fails.
        """
        if self.codec is None:
            return {"$digest": hashlib.sha256(data).hexdigest()[:32]}
        try:
            return {"$sealed": base64.b64encode(self.codec.seal(data)).decode("ascii")}
        except Exception as error:  # its message may quote the secret
            raise StateError(f"the codec failed to seal a secret: {type(error).__name__}") from None

    def reveal(self, mark: Mapping[str, str]) -> bytes | None:
        """Return the data behind *mark*, or None if it can't be read: no codec, or only a digest was kept.

        Raises:
            StateError: if the codec fails: another codec sealed the data, or it was changed.
        """
        sealed = mark.get("$sealed")
        if sealed is None or self.codec is None:
            return None
        try:
            return self.codec.open(base64.b64decode(sealed, validate=True))
        except Exception as error:
            raise StateError(f"the codec can't open a sealed secret: {type(error).__name__}") from None

    def hide_json(self, data: Any) -> Any:
        """Return the mark of JSON *data*; a mark itself is returned unchanged."""
        return data if is_mark(data) else self.hide(encode(data))


DIGESTS = Secrets()


# -- arguments


def hide_arguments(text: str, names: Collection[str], secrets: Secrets) -> str:
    """Return a call's JSON text with the values of the arguments *names* hidden."""
    if isinstance(text, WithheldText):
        return str.__str__(text)

    def hide_whole(whole: str) -> str:
        ((mark, hidden),) = secrets.hide(_bytes(whole)).items()
        return f"{mark}:{hidden}"

    return replace_arguments(text, names, lambda value: json.dumps(secrets.hide(_bytes(value))), hide_whole)


def reveal_arguments(text: str, names: Collection[str], secrets: Secrets) -> str:
    """Return the arguments that `hide_arguments` hid; a `WithheldText` if a part of them can't be read."""
    mark, colon, hidden = text.partition(":")
    if colon and mark in MARKS:
        opened = secrets.reveal({mark: hidden})
        return WithheldText(text) if opened is None else _text(opened)
    gaps = False

    def reveal(value: str) -> str:
        nonlocal gaps
        data = json.loads(value)
        opened = secrets.reveal(data) if is_mark(data) else None
        gaps = gaps or (opened is None and is_mark(data))
        return value if opened is None else _text(opened)

    whole = replace_spans(text, select_spans(spans_of(text) or [], names), reveal)
    return WithheldText(whole) if gaps else whole


def find_missing_secrets(call: ToolCall, arguments: str | None = None) -> list[str]:
    """Return the names of *call*'s secret arguments that can't be read, in the order of the text.

    *arguments* is the JSON text to run it with, if not the model's own.
    """
    text = call.arguments if arguments is None else arguments
    if not isinstance(text, WithheldText):
        return []
    spans = spans_of(text)
    if spans is None:
        return list(call.secret)
    return [span.key for span in select_spans(spans, call.secret) if is_mark(json.loads(text[span.start : span.end]))]


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")
