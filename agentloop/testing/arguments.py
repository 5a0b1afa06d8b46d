"""Arguments that fit a tool's JSON schema, drawn at random."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentloop.testing.drawing import Chance

WORDS = ("a", "b", "", "A long word", "ä €", '"quoted"', "0")
DEEPEST = 6


def draw_arguments(chance: Chance, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object that fits *schema*, a tool's."""
    found = _draw(chance, schema, schema, 0)
    return found if isinstance(found, dict) else {}


def _draw(chance: Chance, schema: Any, root: Mapping[str, Any], depth: int) -> Any:
    if not isinstance(schema, Mapping):
        return chance.pick([0, "a", None])
    if "$ref" in schema:
        return _draw(chance, _referred(schema["$ref"], root), root, depth + 1)
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return chance.pick(list(schema["enum"]))
    for union in ("anyOf", "oneOf"):
        if schema.get(union):
            kinds = list(schema[union])
            if depth >= DEEPEST:
                kinds = [one for one in kinds if "$ref" not in one] or kinds
            return _draw(chance, chance.pick(kinds), root, depth + 1)
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = chance.pick(kind)
    return _of_type(chance, kind, schema, root, depth)


def _of_type(chance: Chance, kind: Any, schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> Any:
    match kind:
        case "integer":
            low = int(schema.get("minimum", schema.get("exclusiveMinimum", -1) + 1))
            high = int(schema.get("maximum", schema.get("exclusiveMaximum", low + 10) - 1))
            return chance.whole(low, max(low, high))
        case "number":
            low, high = schema.get("minimum", 0), schema.get("maximum", schema.get("minimum", 0) + 10)
            return low + (high - low) * chance.whole(0, 4) / 4
        case "boolean":
            return chance.one_in(2)
        case "null":
            return None
        case "array":
            least, most = schema.get("minItems", 0), schema.get("maxItems", schema.get("minItems", 0) + 2)
            count = least if depth >= DEEPEST else chance.whole(least, most)
            before = [_draw(chance, one, root, depth + 1) for one in schema.get("prefixItems", ())]
            return before + [
                _draw(chance, schema.get("items", {}), root, depth + 1) for _ in range(count - len(before))
            ]
        case "string":
            return chance.pick([word for word in WORDS if len(word) >= schema.get("minLength", 0)] or ["a" * 8])
        case _:
            return _object(chance, schema, root, depth)


def _object(chance: Chance, schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> dict[str, Any]:
    required = set(schema.get("required", ()))
    return {
        name: _draw(chance, one, root, depth + 1)
        for name, one in schema.get("properties", {}).items()
        if name in required or (depth < DEEPEST and chance.one_in(2))
    }


def _referred(reference: str, root: Mapping[str, Any]) -> Any:
    found: Any = root
    for step in reference.removeprefix("#/").split("/"):
        found = found.get(step, {}) if isinstance(found, Mapping) else {}
    return found
