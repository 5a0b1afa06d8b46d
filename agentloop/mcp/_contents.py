"""Values of the protocol as values of the library: options of tools, contents of answers. Pure."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

from agentloop.items import Audio, File, Image, Part, Text


def default_options(annotations: Any) -> dict[str, Any]:
    """Return the options that the hints of a server give its tool.

    A tool that only reads may run again after a lost connection; one that the server calls idempotent has receipts,
    too. One that it calls destructive needs approval. Hints are a server's word, not a boundary.
    """
    if annotations is None:
        return {}
    if annotations.read_only_hint:
        return {"reads_only": True}
    options: dict[str, Any] = {}
    if annotations.idempotent_hint:
        options["idempotent"] = True
    if annotations.destructive_hint:
        options["needs_approval"] = True
    return options


def read_contents(result: Any) -> str | tuple[Part, ...]:
    """Return the contents of an answer: text if it is text only, else parts."""
    parts = tuple(map(read_content, result.content))
    if not parts:
        return "" if result.structured_content is None else json.dumps(result.structured_content, ensure_ascii=False)
    texts = [part.text for part in parts if isinstance(part, Text)]
    return "\n".join(texts) if len(texts) == len(parts) else parts


def read_content(block: Any) -> Part:
    """Return one block of an answer, or of a prompt."""
    match block.type:
        case "text":
            return Text(block.text)
        case "image":
            return Image(data=block.data, media_type=block.mime_type)
        case "audio":
            return Audio(data=block.data, media_type=block.mime_type)
        case "resource":
            return read_resource(block.resource)
        case _:  # a link to a resource, which the model may ask another tool for
            return Text(json.dumps(block.model_dump(mode="json", by_alias=True, exclude_none=True), ensure_ascii=False))


def read_resource(resource: Any) -> Part:
    """Return the content of a resource: text where it is text, else a file."""
    if hasattr(resource, "text"):
        return Text(resource.text)
    if (resource.mime_type or "").startswith("text/"):
        return Text(_decode(resource.blob))
    name = str(resource.uri).rpartition("/")[2] or None
    return File(data=resource.blob, media_type=resource.mime_type, filename=name)


def _decode(blob: str) -> str:
    """Return the text in a blob; what isn't base64 stays as it is."""
    try:
        return base64.b64decode(blob, validate=True).decode("utf-8", "replace")
    except ValueError:
        return blob


def error_text(content: Sequence[Any]) -> str:
    """Return the words of a server about a call that failed, with a note in the place of what isn't text."""
    return "\n".join(map(note_part, map(read_content, content))) or "the server gave no reason"


def note_part(part: Part) -> str:
    """Return the text of *part*, or a note in the place of what isn't text."""
    return part.text if isinstance(part, Text) else f"[{getattr(part, 'media_type', None) or 'file'}]"
