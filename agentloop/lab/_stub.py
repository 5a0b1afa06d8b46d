"""Values that fit what a tool returns, for `unmatched="stub"`: the same for the same seed, tool and arguments."""

from __future__ import annotations

import hashlib
import random
import typing
from collections.abc import Mapping
from typing import Any

import msgspec

from agentloop.tools import FunctionTool, PythonBody

_DEEPEST = 4


def draw_value(tool: FunctionTool[Any], seed: str) -> Any:
    """Return a value of the tool's output schema, or of what its function says it returns; else a text."""
    return draw_from(tool.output_schema or _schema_of_return(tool), seed)


def draw_from(schema: Mapping[str, Any], seed: str) -> Any:
    """Return a value of the JSON *schema*, as far as it is one of the usual ones."""
    chance = random.Random(hashlib.sha256(seed.encode("utf-8", "surrogatepass")).digest())
    return _draw(schema, schema, chance, 0)


def _schema_of_return(tool: FunctionTool[Any]) -> Mapping[str, Any]:
    if not isinstance(tool.body, PythonBody):
        return {"type": "string"}
    try:
        made = typing.get_type_hints(tool.body.fn).get("return", str)
        return msgspec.json.schema(made)
    except Exception:  # a type that only the application knows
        return {"type": "string"}


def _draw(schema: Any, root: Mapping[str, Any], chance: random.Random, depth: int) -> Any:
    if not isinstance(schema, Mapping):
        return "stub"
    if isinstance(reference := schema.get("$ref"), str):
        found: Any = root
        for step in reference.removeprefix("#/").split("/"):
            found = found[step]
        return _draw(found, root, chance, depth + 1)
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return chance.choice(schema["enum"])
    if members := schema.get("anyOf") or schema.get("oneOf"):
        return _draw(members[0] if depth > _DEEPEST else chance.choice(members), root, chance, depth + 1)
    kind = schema.get("type")
    match kind[0] if isinstance(kind, list) else kind:
        case "object":
            wanted = schema.get("required", ()) if depth > _DEEPEST else schema.get("properties", {})
            parts = schema.get("properties", {})
            return {name: _draw(parts.get(name), root, chance, depth + 1) for name in wanted}
        case "array":
            least = schema.get("minItems", 0 if depth > _DEEPEST else 1)
            return [_draw(schema.get("items"), root, chance, depth + 1) for _ in range(least)]
        case "integer" | "number":
            low = schema.get("minimum", schema.get("exclusiveMinimum", -1) + 1)
            return chance.randint(int(low), int(max(low, schema.get("maximum", low + 100))))
        case "boolean":
            return chance.random() < 0.5
        case "null":
            return None
        case _:
            return "stub"[: schema.get("maxLength", 4)].ljust(schema.get("minLength", 0), "x")
