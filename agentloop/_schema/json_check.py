"""Whether a value of JSON fits a JSON schema: for answers of the application, which any process may check.

The schema of an answer is in the log, and the process that gives the answer need not have the agents, so no type
of Python can check it. Knows the keywords that forms and annotations need. A schema with another keyword that would
refuse values is refused itself, where the tool is made, so no answer passes that shouldn't. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, TypeAlias

from agentloop._common.errors import UserTypeError, UserValueError

Schema: TypeAlias = Mapping[str, Any]

_TYPES: Mapping[str, Callable[[Any], bool]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: _is_number(value) and value == int(value),
    "number": lambda value: _is_number(value),
    "string": lambda value: isinstance(value, str),
    "array": lambda value: isinstance(value, list | tuple),
    "object": lambda value: isinstance(value, Mapping),
}
_WORDS = frozenset(
    {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "format"}
    | {"$schema", "$comment", "$id", "enumNames", "discriminator"}
)
"""Keywords that refuse no value."""
_MOST_DEPTH = 60


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value - value == 0  # no infinity


def _key(value: Any) -> Any:
    """Return what two equal values of JSON have in common: 1 and 1.0 are equal, 1 and true aren't."""
    if isinstance(value, Mapping):
        return "object", frozenset((name, _key(member)) for name, member in value.items())
    if isinstance(value, list | tuple):
        return "array", tuple(map(_key, value))
    return isinstance(value, bool), value


class _SchemaCheck:
    """The check of one value; *root* is the whole schema, which has the definitions.

    What a reference says of one value is found once: so the work is bounded by the sizes of schema and value.
    """

    def __init__(self, root: Schema, *, names_keys: bool) -> None:
        self.root = root
        self.names_keys = names_keys
        self.known: dict[tuple[str, int, str], str | None] = {}
        """The faults found, by reference, identity of the value, and place."""

    def place_of(self, place: str, key: str) -> str:
        """Return the place of the member *key*, which the schema doesn't name, of the value at *place*."""
        return f"{place}.{key}" if self.names_keys else f"{place}.*"

    def fault(self, value: Any, schema: Any, place: str, depth: int = 0) -> str | None:
        """Return what is wrong with *value*, at *place*; None if it fits."""
        if depth > _MOST_DEPTH:
            return f"{place}: it is nested more than {_MOST_DEPTH} deep"
        if isinstance(schema, bool):
            return None if schema else f"{place}: no value may be here"
        for keyword, wanted in schema.items():
            rule = _RULES.get(keyword)
            if rule is not None and (found := rule(self, value, wanted, schema, place, depth)) is not None:
                return found
        return None


def _type(check: _SchemaCheck, value: Any, wanted: Any, schema: Schema, place: str, depth: int) -> str | None:
    kinds = [wanted] if isinstance(wanted, str) else wanted
    return None if any(_TYPES[kind](value) for kind in kinds) else f"{place}: expected {' or '.join(kinds)}"


def _enum(check: _SchemaCheck, value: Any, wanted: Any, schema: Schema, place: str, depth: int) -> str | None:
    choices = ", ".join(map(repr, wanted[:10]))
    return None if _key(value) in map(_key, wanted) else f"{place}: expected one of {choices}"


def _properties(check: _SchemaCheck, value: Any, wanted: Any, schema: Schema, place: str, depth: int) -> str | None:
    if not isinstance(value, Mapping):
        return None
    found = (check.fault(value[key], one, f"{place}.{key}", depth + 1) for key, one in wanted.items() if key in value)
    return next(filter(None, found), None)


def _required(check: _SchemaCheck, value: Any, wanted: Any, schema: Schema, place: str, depth: int) -> str | None:
    missing = [key for key in wanted if key not in value] if isinstance(value, Mapping) else []
    return f"{place}: {missing[0]!r} is missing" if missing else None


def _additional(check: _SchemaCheck, value: Any, wanted: Any, schema: Schema, place: str, depth: int) -> str | None:
    if not isinstance(value, Mapping):
        return None
    more = [key for key in value if key not in schema.get("properties", {})]
    if wanted is False:
        name = repr(more[0]) if more and check.names_keys else "a member"
        return f"{place}: {name} isn't expected" if more else None
    found = (check.fault(value[key], wanted, check.place_of(place, key), depth + 1) for key in more)
    return next(filter(None, found), None)


def _items(check: _SchemaCheck, value: Any, wanted: Any, schema: Schema, place: str, depth: int) -> str | None:
    if not isinstance(value, list | tuple):
        return None
    begin = len(schema.get("prefixItems", ()))
    found = (check.fault(one, wanted, f"{place}[{at}]", depth + 1) for at, one in enumerate(value) if at >= begin)
    return next(filter(None, found), None)


def _prefix(check: _SchemaCheck, value: Any, wanted: Any, schema: Schema, place: str, depth: int) -> str | None:
    if not isinstance(value, list | tuple):
        return None
    pairs = enumerate(zip(value, wanted, strict=False))
    found = (check.fault(one, part, f"{place}[{at}]", depth + 1) for at, (one, part) in pairs)
    return next(filter(None, found), None)


def _any_of(check: _SchemaCheck, value: Any, wanted: Any, schema: Schema, place: str, depth: int) -> str | None:
    faults = [check.fault(value, one, place, depth + 1) for one in wanted]
    return None if None in faults else "; or ".join(filter(None, faults))


def _one_of(check: _SchemaCheck, value: Any, wanted: Any, schema: Schema, place: str, depth: int) -> str | None:
    faults = [check.fault(value, one, place, depth + 1) for one in wanted]
    if faults.count(None) > 1:
        return f"{place}: it fits more than one of the choices"
    return None if None in faults else "; or ".join(filter(None, faults))


def _all_of(check: _SchemaCheck, value: Any, wanted: Any, schema: Schema, place: str, depth: int) -> str | None:
    return next(filter(None, (check.fault(value, one, place, depth + 1) for one in wanted)), None)


def _ref(check: _SchemaCheck, value: Any, wanted: Any, schema: Schema, place: str, depth: int) -> str | None:
    key = wanted, id(value), place
    if key not in check.known:
        check.known[key] = f"{place}: the schema refers to itself without an end"  # until it is found
        check.known[key] = check.fault(value, _find(check.root, wanted), place, depth + 1)
    return check.known[key]


def _find(root: Schema, reference: str) -> Any:
    found: Any = root
    for step in reference.removeprefix("#").split("/")[1:]:
        found = found[step.replace("~1", "/").replace("~0", "~")]
    return found


def _is_multiple(value: float, step: float) -> bool:
    """Tell whether *value* is a multiple of *step*, as the numbers are written: 0.3 is one of 0.1."""
    whole, part = (Fraction(one) if isinstance(one, int) else Fraction(repr(one)) for one in (value, step))
    return whole % part == 0


Rule: TypeAlias = Callable[[_SchemaCheck, Any, Any, Schema, str, int], str | None]


def _bound(is_kind: Callable[[Any], bool], fits: Callable[[Any, Any], bool], words: str) -> Rule:
    def rule(check: _SchemaCheck, value: Any, wanted: Any, schema: Schema, place: str, depth: int) -> str | None:
        return None if not is_kind(value) or fits(value, wanted) else f"{place}: {words.format(wanted)}"

    return rule


_is_text, _is_list, _is_object = _TYPES["string"], _TYPES["array"], _TYPES["object"]
_RULES: Mapping[str, Rule] = {
    "type": _type,
    "enum": _enum,
    "const": lambda check, value, wanted, *rest: _enum(check, value, [wanted], *rest),
    "properties": _properties,
    "required": _required,
    "additionalProperties": _additional,
    "items": _items,
    "prefixItems": _prefix,
    "anyOf": _any_of,
    "oneOf": _one_of,
    "allOf": _all_of,
    "$ref": _ref,
    "minimum": _bound(_is_number, lambda value, least: value >= least, "expected at least {}"),
    "maximum": _bound(_is_number, lambda value, most: value <= most, "expected at most {}"),
    "exclusiveMinimum": _bound(_is_number, lambda value, least: value > least, "expected more than {}"),
    "exclusiveMaximum": _bound(_is_number, lambda value, most: value < most, "expected less than {}"),
    "multipleOf": _bound(_is_number, _is_multiple, "expected a multiple of {}"),
    "minLength": _bound(_is_text, lambda value, least: len(value) >= least, "expected at least {} characters"),
    "maxLength": _bound(_is_text, lambda value, most: len(value) <= most, "expected at most {} characters"),
    "pattern": _bound(_is_text, lambda value, wanted: bool(re.search(wanted, value)), "expected text that fits {!r}"),
    "minItems": _bound(_is_list, lambda value, least: len(value) >= least, "expected at least {} members"),
    "maxItems": _bound(_is_list, lambda value, most: len(value) <= most, "expected at most {} members"),
    "uniqueItems": _bound(
        _is_list, lambda value, wanted: not wanted or len(set(map(_key, value))) == len(value), "a member is repeated"
    ),
    "minProperties": _bound(_is_object, lambda value, least: len(value) >= least, "expected at least {} members"),
    "maxProperties": _bound(_is_object, lambda value, most: len(value) <= most, "expected at most {} members"),
}
_PARTS_BY_NAME = ("properties", "$defs", "definitions")
_PARTS = ("items", "additionalProperties")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")


def find_violation(value: Any, schema: Schema, *, names_keys: bool = True) -> str | None:
    """Return what is wrong with *value*, a value of JSON, with its place; None if it fits *schema*.

    *schema* is one that `check_schema` takes. Values aren't quoted, and without *names_keys* no keys that the schema
    doesn't name.
    """
    try:
        return _SchemaCheck(schema, names_keys=names_keys).fault(value, schema, "$")
    except RecursionError:
        return "$: it is nested too deep"


def check_schema(what: str, schema: Any) -> dict[str, Any]:
    """Return a copy of *schema*, if `find_violation` can check values against it; *what* names it.

    Raises:
        UserTypeError, UserValueError: it can't; names the place and the keyword.
    """
    try:
        # One pass through JSON: any process may read the schema, so it must be there what it is here.
        copied: dict[str, Any] = json.loads(json.dumps(schema, default=_as_dict, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise UserTypeError(f"{what}: the schema has no JSON form: {error}") from None
    parts: dict[int, Schema] = {}
    _check_part(what, copied, "$", copied, 0, parts)
    for part in parts.values():
        reference = part.get("$ref")
        if (
            reference is not None
            and not isinstance(target := _find(copied, reference), bool)
            and id(target) not in parts
        ):
            raise UserValueError(f"{what}: $ref: no schema is at {reference!r} that answers can be checked against")
    return copied


def leave_out(keyword: str, schema: Any) -> Any:
    """Return *schema* without *keyword*, in every part that `find_violation` would look at; wrong ones stay wrong."""
    if not isinstance(schema, Mapping):
        return schema
    left = {name: given for name, given in schema.items() if name != keyword}
    for name, given in left.items():
        if name in _PARTS_BY_NAME and isinstance(given, Mapping):
            left[name] = {key: leave_out(keyword, part) for key, part in given.items()}
        elif name in _PARTS:
            left[name] = leave_out(keyword, given)
        elif name in _LISTS and isinstance(given, list):
            left[name] = [leave_out(keyword, part) for part in given]
    return left


def _as_dict(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


def _check_part(what: str, schema: Any, place: str, root: Schema, depth: int, parts: dict[int, Schema]) -> None:
    """Check the keywords of *schema*, which is at *place* of *root*, and of its parts; note each in *parts*."""
    if isinstance(schema, bool) and depth:
        return
    if not isinstance(schema, Mapping):
        raise UserTypeError(f"{what}: expected a JSON schema, as a mapping, got {type(schema).__name__} at {place}")
    if depth > _MOST_DEPTH:
        raise UserValueError(f"{what}: it is nested more than {_MOST_DEPTH} deep")
    parts[id(schema)] = schema
    for keyword, given in schema.items():
        at, below = f"{place}.{keyword}", {}
        if keyword in _PARTS_BY_NAME and isinstance(given, Mapping):
            below = {f"{at}.{key}": one for key, one in given.items()}
        elif keyword in _PARTS:
            below = {at: given}
        elif keyword in _LISTS and isinstance(given, list):
            below = {f"{at}[{index}]": one for index, one in enumerate(given)}
        elif keyword in _RULES or keyword in _WORDS:
            _check_content(what, keyword, given, at, root)
        else:
            raise UserValueError(f"{what}: answers can't be checked against {keyword!r} at {place}: leave it out")
        for part_at, part in below.items():
            _check_part(what, part, part_at, root, depth + 1, parts)


def _check_content(what: str, keyword: str, given: Any, at: str, root: Schema) -> None:
    """Check that *given* is a content that the rule of *keyword* can work with."""
    wrong = None
    if keyword == "type":
        kinds = [given] if isinstance(given, str) else given
        wrong = not (isinstance(kinds, list) and kinds and all(isinstance(one, str) and one in _TYPES for one in kinds))
    elif keyword == "required":
        wrong = not (isinstance(given, list) and all(isinstance(one, str) for one in given))
    elif keyword in ("enum", *_LISTS):
        wrong = not isinstance(given, list)
    elif keyword == "properties":
        wrong = not isinstance(given, Mapping)
    elif keyword.startswith(("min", "max", "exclusive", "multiple")):
        wrong = not _is_number(given) or (keyword == "multipleOf" and given <= 0)
    elif keyword in ("$ref", "pattern"):
        try:
            wrong = not isinstance(given, str)
            _ = re.compile(given) if keyword == "pattern" else _find(root, given)
        except (re.error, LookupError, TypeError, AttributeError):
            wrong = True
    if wrong:
        raise UserValueError(f"{what}: {at} isn't one that answers can be checked against: {given!r:.80}")
