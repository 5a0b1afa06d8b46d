"""A tool or handoff as codecs see it."""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs


@attrs.frozen
class Definition:
    """The part of a tool or handoff that a model is shown."""

    name: str
    description: str = "Does it."
    params_json_schema: Mapping[str, Any] = attrs.Factory(lambda: {"type": "object", "properties": {}})
    strict_mode: bool = True
    namespace: str | None = None
    examples: Sequence[tuple[str, Mapping[str, Any]]] = ()
