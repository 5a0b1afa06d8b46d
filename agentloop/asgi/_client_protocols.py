"""The parts that protocols of other clients share: pieces of text, images, and the names of calls that wait."""

from __future__ import annotations

import base64
import json
from typing import Any

from agentloop.asgi._http import HTTPRefusal
from agentloop.items import Image

OURS = "agentloop"
"""The key of what the library has put into the metadata of a call."""
_IMAGES = frozenset({"image/gif", "image/jpeg", "image/png", "image/webp"})
_MOST_DIGITS = 5


class DeltaJoiner:
    """Puts the halves of characters together that deltas have cut; each message of an answer has its own rest.

    The client puts a message together from its deltas, and JSON has no half of a character.
    """

    def __init__(self) -> None:
        self._halves: dict[int | None, str] = {}
        """Halves of characters at the end of deltas, by the position of their message; None for reasoning."""

    def join(self, item: int | None, text: str) -> str:
        """Return a delta behind the half of a character that the one before has left; its own last half is kept."""
        text = self._halves.pop(item, "") + text
        if "\ud800" <= text[-1:] <= "\udbff":
            self._halves[item] = text[-1]
            text = text[:-1]
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")

    def clear(self) -> None:
        """Forget what is left of an answer."""
        self._halves.clear()


def name_call(handle: str | None, position: int) -> str:
    """Return the name of a call that waits: the handle of its run, and its position among those that wait."""
    return f"{handle or ''}.{position}"


def read_name(name: str) -> tuple[str, int] | None:
    """Return the handle and the position in a name of `name_call`; None if it isn't one."""
    handle, _, position = name.rpartition(".")
    is_number = position.isascii() and position.isdigit() and len(position) <= _MOST_DIGITS
    return (handle, int(position)) if is_number else None


def as_text(value: Any) -> str:
    """Return a value of JSON as a text; what is secret in it is hidden already."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def read_image(media_type: str, data: str) -> Image:
    """Return an image that a client sends by its data; *media_type* is empty of a part that is something else.

    Raises:
        HTTPRefusal: it isn't one (400): a file of the provider might be another user's, and an address would be fetched
            by the provider.
    """
    if media_type not in _IMAGES:
        raise HTTPRefusal(400, f"Only text can be sent, and images by their data: {', '.join(sorted(_IMAGES))}.")
    try:
        base64.b64decode(data, validate=True)
    except ValueError:
        raise HTTPRefusal(400, "The data of an image is no base64.") from None
    return Image(data=data, media_type=media_type)
