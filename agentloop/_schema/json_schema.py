"""JSON schema (draft 2020-12) as plain data: functions that tidy it, join definitions, and make it strict.

Strict mode is the subset that providers enforce while the model writes: every object lists all its properties as
required and allows no others; an optional property is nullable instead. A schema with an open map has no strict form.
Keywords that providers refuse in strict mode (`uniqueItems`, `format: uri` …) become words in the description: the
model is still told, and the conversion here still checks. Pure; reads the schemas that msgspec and pydantic make, and
calls neither.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

Schema = dict[str, Any]

REF_TEMPLATE = "#/$defs/{name}"
_REF_PREFIX = REF_TEMPLATE.removesuffix("{name}")
_MAPS = ("properties", "$defs", "patternProperties")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLE = ("items", "additionalProperties")
_ANYTHING = "a value of any type"
_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}

_STRICT_FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"})
_STRICT_KEYWORDS = frozenset(
    {
        *("type", "enum", "const", "anyOf", "$ref", "$defs", "title", "description"),
        *("properties", "required", "additionalProperties", "items", "minItems", "maxItems"),
        *("pattern", "format", "multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    }
)
"""The keywords that providers take in a strict schema. One other makes them refuse each request of the agent."""
_UNSAID = frozenset({"default", "discriminator", "deprecated", "readOnly", "writeOnly", "$comment", "$schema", "$id"})
"""Keywords that a strict schema goes without, and which say nothing to the model."""
_TOLD = {
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "format": "format: {}",
    "contentEncoding": "encoded as {}",
    "contentMediaType": "of type {}",
    "examples": "for example {}",
    "minProperties": "at least {} members",
    "maxProperties": "at most {} members",
}
"""Keywords that a strict schema has as words. What the words say is checked when the value is converted."""
_LOGIC = frozenset(
    {"not", "if", "then", "else", "dependentRequired", "dependentSchemas", "contains", "patternProperties"}
)

_GIVEN, _UNKNOWN = "$given", "$unknown"
"""Keywords for a schema that `JsonSchema` gives, and for a class that msgspec doesn't know; see `settle_given`."""


def JsonSchema(schema: Mapping[str, Any]) -> msgspec.Meta:
    """Return the mark of a type with this JSON *schema*: `Annotated[Money, JsonSchema({"type": "string"})]`.

    The schema takes the place of the one that the type would have. A type that has none, as only the application's
    converter knows it (`RunConfig.converter`), needs the mark wherever it is used. In strict mode providers accept what
    a strict schema may say. A function, because msgspec reads no other class than its own in annotations.

    Example:
        from typing import Annotated
        from agentloop import JsonSchema, tool

        @tool
        def paint(color: Annotated[str, JsonSchema({"type": "string", "enum": ["red", "blue"]})]) -> str:
            "Paint the wall."
            return color

        print(paint.params_json_schema["properties"]["color"]["enum"])  # ['red', 'blue']
    """
    return msgspec.Meta(extra_json_schema={_GIVEN: copy.deepcopy(dict(schema))})


def mark_unknown(cls: type) -> Schema:
    """Return the schema, for the time being, of a class that msgspec doesn't know."""
    return {_UNKNOWN: cls}


def settle_given(schema: Any, unknown: set[type]) -> Any:
    """Return *schema* with the schemas that `JsonSchema` gave in place; add the classes that need them to *unknown*.

    Raises:
        TypeError: if a class that msgspec doesn't know has no schema; names the class.
    """
    if not isinstance(schema, dict):
        return schema
    cls = schema.get(_UNKNOWN)
    if _GIVEN in schema:
        if cls is not None:
            unknown.add(cls)
        words = {keyword: schema[keyword] for keyword in ("title", "description", "examples") if keyword in schema}
        return {**schema[_GIVEN], **words}
    if cls is not None:
        if cls.__module__ in ("collections", "collections.abc") and issubclass(cls, Iterable):
            raise TypeError(f"write {'dict' if issubclass(cls, Mapping) else 'list'}[…] in place of {cls.__name__}")
        raise TypeError(
            f"make {cls.__qualname__} a dataclass or an attrs class; or write Annotated[{cls.__qualname__}, "
            "JsonSchema({…})], and give the run a converter that knows the type, RunConfig(converter=…)"
        )
    return each_child(schema, lambda child: settle_given(child, unknown))


def each_child(schema: Schema, change: Callable[[Any], Any]) -> Schema:
    """Return a copy of *schema* with *change* applied to every direct subschema; other keywords are unchanged."""
    out: Schema = {}
    for keyword, value in schema.items():
        if keyword in _MAPS:
            out[keyword] = {name: change(member) for name, member in value.items()}
        elif keyword in _LISTS:
            out[keyword] = [change(member) for member in value]
        else:
            out[keyword] = change(value) if keyword in _SINGLE else value
    return out


def tidy(schema: Any, name: str = "") -> Any:
    """Return *schema* without the titles that only repeat the name of their property or definition."""
    if not isinstance(schema, dict):
        return schema
    out = each_child(schema, tidy)
    for keyword in ("properties", "$defs"):
        if keyword in out:
            out[keyword] = {key: tidy(member, key) for key, member in schema[keyword].items()}
    if name and _plain(str(out.get("title", ""))) == _plain(name):
        del out["title"]
    return out


def _plain(name: str) -> str:
    return name.replace(" ", "").replace("_", "").lower()


def hoist(schema: Any, defs: Schema) -> Any:
    """Return *schema* with every nested `$defs` moved into *defs*, which is mutated; a taken name gets a number."""
    if not isinstance(schema, dict):
        return schema
    own = schema.get("$defs", {})
    renamed = {name: _free_name(name, own, defs) for name in own}
    schema = _rename_refs({key: value for key, value in schema.items() if key != "$defs"}, renamed)
    for name, member in own.items():
        defs[renamed[name]] = _rename_refs(member, renamed)
    return each_child(schema, lambda child: hoist(child, defs))


def _free_name(name: str, own: Mapping[str, Any], defs: Mapping[str, Any]) -> str:
    free, number = name, 2
    while (free in defs and defs[free] != own[name]) or (free != name and free in own):
        free, number = f"{name}_{number}", number + 1
    return free


def _rename_refs(schema: Any, names: Mapping[str, str]) -> Any:
    if not isinstance(schema, dict):
        return schema
    out = each_child(schema, lambda child: _rename_refs(child, names))
    if (target := ref_name(out)) in names:
        out["$ref"] = REF_TEMPLATE.format(name=names[target])
    if "discriminator" in out:
        mapping = out["discriminator"].get("mapping", {})
        moved = {tag: _rename_refs({"$ref": ref}, names)["$ref"] for tag, ref in mapping.items()}
        out["discriminator"] = {**out["discriminator"], "mapping": moved}
    return out


def ref_name(schema: Mapping[str, Any]) -> str:
    """Return the name of the definition that *schema* refers to, or an empty string."""
    return str(schema.get("$ref", "")).removeprefix(_REF_PREFIX)


def choices(schema: Any, defs: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the plain schemas (no `$ref`, no union at their top); a value must fit one of them."""
    if not isinstance(schema, dict):
        yield schema
    elif "$ref" in schema:
        yield from choices(defs[ref_name(schema)], defs)
    elif "anyOf" in schema or "oneOf" in schema:
        for member in schema.get("anyOf", ()) or schema["oneOf"]:
            yield from choices(member, defs)
    else:
        yield schema


def admits_null(schema: Any, defs: Mapping[str, Any]) -> bool:
    """Tell whether null fits *schema*."""
    return any(_plain_admits_null(choice) for choice in choices(schema, defs))


def _plain_admits_null(schema: Any) -> bool:
    if not isinstance(schema, dict):
        return bool(schema)
    if "enum" in schema:
        return None in schema["enum"]
    if "const" in schema:
        return schema["const"] is None
    kind = schema.get("type")
    return kind is None or kind == "null" or (isinstance(kind, list) and "null" in kind)


def obstacle(schema: Any, defs: Mapping[str, Any], seen: set[str] | None = None) -> str | None:
    """Return the reason, as a noun phrase, that *schema* has no strict form, or None if it has one."""
    seen = set() if seen is None else seen
    if not isinstance(schema, dict):
        return _ANYTHING if schema else None
    if "$ref" in schema:
        name = ref_name(schema)
        if name in seen:
            return None
        seen.add(name)
        return obstacle(defs[name], defs, seen)
    if found := _own_obstacle(schema):
        return found
    children: list[Any] = []
    each_child(schema, children.append)
    return next((found for child in children if (found := obstacle(child, defs, seen))), None)


def _own_obstacle(schema: Schema) -> str | None:
    kind = schema.get("type")
    if kind == "object" and ("properties" not in schema or schema.get("additionalProperties", False) is not False):
        return "an object with free keys"
    if kind == "array" and not {"items", "prefixItems"} & schema.keys():
        return "an array of anything"
    if not {"type", "enum", "const", "anyOf", "oneOf", "allOf"} & schema.keys():
        return _ANYTHING
    if len(schema.get("allOf", ())) > 1:
        return "a value of several schemas at once (allOf)"
    return next((f"a schema with {keyword!r}" for keyword in sorted(_LOGIC & schema.keys())), None)


def strict_form(schema: Any, defs: Mapping[str, Any]) -> Any:
    """Return the strict form of *schema*, which must have one (see `obstacle`). Idempotent."""
    if not isinstance(schema, dict):
        return schema
    out: Schema = each_child(schema, lambda child: strict_form(child, defs))
    if "oneOf" in out:
        out["anyOf"] = out.pop("oneOf")
    if "allOf" in out:
        (only,) = out.pop("allOf")
        out = {**only, **out}
    if "prefixItems" in out:
        out = _as_list(out)
    if "properties" in out:
        needed = set(schema.get("required", ()))
        for name, member in schema["properties"].items():
            if name not in needed and not admits_null(member, defs):
                out["properties"][name] = nullable(out["properties"][name])
        out["required"] = list(out["properties"])
        out["additionalProperties"] = False
    kinds = {_TYPES[type(value)] for value in out.get("enum", ())}
    if "type" not in out and len(kinds) == 1:
        out["type"] = kinds.pop()
    return lone_ref(_told_in_words(out))


def _as_list(array: Schema) -> Schema:
    """Return a tuple's schema as an array of the types of its members: strict mode knows no places."""
    members: list[Any] = []
    for member in [*array["prefixItems"], *([array["items"]] if isinstance(array.get("items"), dict) else [])]:
        if member not in members:
            members.append(member)
    items = members[0] if len(members) == 1 else {"anyOf": members}
    out = {keyword: value for keyword, value in array.items() if keyword != "prefixItems"} | {"items": items}
    return out if len(members) == 1 else _add_words(out, [f"one after the other: {_names(array['prefixItems'])}"])


def _names(members: Sequence[Any]) -> str:
    kinds = (ref_name(member) or member.get("type", "any of several types") for member in members)
    return ", ".join(map(str, kinds))


def _told_in_words(schema: Schema) -> Schema:
    """Return *schema* with the keywords that strict mode refuses as words in its description."""
    words: list[str] = []
    out: Schema = {}
    for keyword, value in schema.items():
        if (keyword == "format" and value in _STRICT_FORMATS) or keyword in _STRICT_KEYWORDS - {"format"}:
            out[keyword] = value
        elif keyword == "uniqueItems":
            words += ["no member twice"] if value else []
        elif keyword in _TOLD:
            shown = ", ".join(map(str, value)) if isinstance(value, list) else value
            words.append(_TOLD[keyword].format(shown))
        elif keyword not in _UNSAID:
            words.append(f"{keyword}: {json.dumps(value, default=str)}")
    return _add_words(out, words)


def _add_words(schema: Schema, words: list[str]) -> Schema:
    if not words:
        return schema
    said = str(schema.get("description", "")).rstrip(". ")
    return {**schema, "description": ". ".join(filter(None, [said, "; ".join(words)]))}


def lone_ref(schema: Schema) -> Schema:
    """Return *schema* with its `$ref` moved into an `anyOf` if it has sibling keywords, which strict mode forbids."""
    if "$ref" not in schema or len(schema) == 1:
        return schema
    rest = {keyword: value for keyword, value in schema.items() if keyword != "$ref"}
    return {"anyOf": [{"$ref": schema["$ref"]}], **rest}


def nullable(schema: Schema) -> Schema:
    """Return *schema* widened by null; its title and description remain at the top."""
    outer = {keyword: value for keyword, value in schema.items() if keyword in ("title", "description")}
    inner = {keyword: value for keyword, value in schema.items() if keyword not in outer}
    members = inner["anyOf"] if set(inner) == {"anyOf"} else [inner]
    return {"anyOf": [*members, {"type": "null"}], **outer}


def drop_nulls(value: Any, schema: Any, defs: Mapping[str, Any]) -> Any:
    """Return *value* without the nulls of omitted members, which strict mode forces the model to send."""
    if isinstance(value, list):
        return [drop_nulls(member, item_schema(schema, index, defs), defs) for index, member in enumerate(value)]
    if not isinstance(value, dict):
        return value
    plain = object_schema(schema, value, defs)
    properties, needed = plain.get("properties", {}), plain.get("required", ())
    return {
        key: drop_nulls(member, properties.get(key, True), defs)
        for key, member in value.items()
        if member is not None or key in needed or key not in properties or admits_null(properties[key], defs)
    }


def item_schema(schema: Any, index: int, defs: Mapping[str, Any]) -> Any:
    """Return the schema of the member at *index* of an array that fits *schema*."""
    array: Schema = next((choice for choice in choices(schema, defs) if _is_kind(choice, "array")), {})
    first = array.get("prefixItems", [])
    return first[index] if index < len(first) else array.get("items", True)


def object_schema(schema: Any, value: Mapping[str, Any], defs: Mapping[str, Any]) -> Schema:
    """Return the one of the choices of *schema* that object *value* has the keys of; an empty schema if none."""
    return next((choice for choice in choices(schema, defs) if _may_hold(choice, value)), {})


def _may_hold(schema: Any, value: Mapping[str, Any]) -> bool:
    """Tell whether object *value* has the keys, and the tag if any, of *schema*."""
    if not _is_kind(schema, "object"):
        return False
    properties = schema.get("properties", {})
    if schema.get("additionalProperties", False) is False and not value.keys() <= properties.keys():
        return False
    tags = {name: member for name, member in properties.items() if isinstance(member, dict)}
    return all(
        value[name] in tag.get("enum", (tag.get("const", value[name]),))
        for name, tag in tags.items()
        if value.get(name) is not None
    )


def _is_kind(schema: Any, kind: str) -> bool:
    return isinstance(schema, dict) and schema.get("type") == kind
