"""A tool or handoff as codecs see it."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import attrs


@attrs.frozen
class Definition:
    """The part of a tool or handoff that a model is shown."""

    name: str
    description: str = "Does it."
    params_json_schema: Mapping[str, Any] = attrs.Factory(lambda: {"type": "object", "properties": {}})
    strict_mode: bool = True
    namespace: str | None = None
    namespace_description: str | None = None
    examples: Sequence[tuple[str, Mapping[str, Any]]] = ()
    kind: Literal["function", "custom"] = "function"
    format: Mapping[str, Any] | None = None
    defer_loading: bool = False
    output_schema: Mapping[str, Any] | None = None
    allowed_callers: Sequence[str] = ()
