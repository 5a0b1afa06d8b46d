"""Values of the protocol as values of the library: options of tools, contents of answers, faults of arguments. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentloop.items import Audio, File, Image, Part, Text

_UNUSABLE = re.compile(r"[^A-Za-z0-9_-]")
_LONGEST_NAME = 128
_MOST_FAULTS = 3
_LONGEST_FAULT = 300


def replace_unusable(name: str) -> str:
    """Return *name* with `_` for each character that the interfaces of models don't allow in the name of a tool."""
    return _UNUSABLE.sub("_", name)


def usable_name(name: str) -> str | None:
    """Return the name of a server's tool as models may call it; None if there is none.

    MCP allows dots and slashes in names, which the interfaces of models don't.
    """
    found = replace_unusable(name)
    return found if 0 < len(found) <= _LONGEST_NAME else None


def default_options(annotations: Any) -> dict[str, Any]:
    """Return the options that the hints of a server give its tool.

    A tool that only reads may run again after a lost connection; one that the server calls idempotent has receipts,
    too. One that it calls destructive needs approval. Hints are a server's word, not a boundary.
    """
    if annotations is None:
        return {}
    if annotations.read_only_hint:
        return {"in_doubt": "rerun"}
    options: dict[str, Any] = {}
    if annotations.idempotent_hint:
        options["idempotent"] = True
    if annotations.destructive_hint:
        options["needs_approval"] = True
    return options


def make_check(schema: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], str | None]:
    """Return the check of arguments by *schema*: what is wrong with them, as text, or None.

    References to other documents aren't followed: nothing is fetched.

    Raises:
        ValueError: *schema* is no JSON schema of an object.
    """
    from jsonschema import Draft202012Validator, SchemaError
    from jsonschema.exceptions import ValidationError
    from jsonschema.validators import validator_for
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    if schema.get("type") != "object":
        raise ValueError("it describes no object")
    kind = validator_for(schema, default=Draft202012Validator)
    try:
        kind.check_schema(dict(schema))
    except (SchemaError, RecursionError) as error:
        raise ValueError(str(error).partition("\n")[0][:_LONGEST_FAULT]) from None
    validator = kind(dict(schema), registry=Registry())

    def check(arguments: Mapping[str, Any]) -> str | None:
        found: list[str] = []
        try:
            for error in validator.iter_errors(arguments):
                found.append(_describe_fault(error))
                if len(found) == _MOST_FAULTS:
                    break
        except (Unresolvable, ValidationError, RecursionError) as error:
            return f"the server's schema can't be used: {type(error).__name__}"
        return "; ".join(found) or None

    return check


def _describe_fault(error: Any) -> str:
    text = error.message if len(error.message) <= _LONGEST_FAULT else f"{error.message[:_LONGEST_FAULT]}…"
    where = ".".join(map(str, error.absolute_path))
    return f"{where}: {text}" if where else text


def read_contents(result: Any) -> str | tuple[Part, ...]:
    """Return the contents of an answer: text if it is text alone, else parts."""
    parts = tuple(map(_read_content, result.content))
    if not parts:
        return "" if result.structured_content is None else json.dumps(result.structured_content, ensure_ascii=False)
    texts = [part.text for part in parts if isinstance(part, Text)]
    return "\n".join(texts) if len(texts) == len(parts) else parts


def _read_content(block: Any) -> Part:
    match block.type:
        case "text":
            return Text(block.text)
        case "image":
            return Image(data=block.data, media_type=block.mime_type)
        case "audio":
            return Audio(data=block.data, media_type=block.mime_type)
        case "resource" if hasattr(block.resource, "text"):
            return Text(block.resource.text)
        case "resource":
            resource = block.resource
            name = str(resource.uri).rpartition("/")[2] or None
            return File(data=resource.blob, media_type=resource.mime_type, filename=name)
        case _:  # a link to a resource, which the model may ask another tool for
            return Text(json.dumps(block.model_dump(mode="json", by_alias=True, exclude_none=True), ensure_ascii=False))


def error_text(content: Sequence[Any]) -> str:
    """Return the words of a server about a call that failed."""
    return "\n".join(block.text for block in content if block.type == "text") or "the server gave no reason"
