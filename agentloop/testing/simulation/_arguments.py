"""Arguments that a tool's JSON schema allows, as hypothesis strategies: bounds, large and odd values are frequent.

Each strategy gives simple values first, so a failing example shrinks: small numbers, short text, nothing optional.
Keywords that limit values are honoured as far as draft 2020-12, msgspec and pydantic use them for types. Others (`not`,
`if`, `contains`) are left to the tool, which refuses values that it doesn't take. Does not know about tools or runs.
"""

from __future__ import annotations

import base64
import functools
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, timedelta, timezone
from typing import Any, TypeAlias

from hypothesis import strategies as st

from agentloop.settings import JsonLimits

Schema: TypeAlias = Any
Values: TypeAlias = st.SearchStrategy[Any]
Takes: TypeAlias = Callable[[str, Any], bool]
"""Returns True if a tool takes the value for the parameter of that name."""

DEEPEST = 6
"""Depth from which optional parts are left out, so that recursive schemas end."""
LONGEST = 10_000
"""Characters of the longest text, where the schema sets no bound, or a larger one."""
MOST_ITEMS = 100
MOST_BYTES = JsonLimits().max_bytes or 0
"""Bytes of the longest arguments, or answer, as JSON."""
MIXTURES = 4
"""Number of attempts with a mixture of texts, for a parameter that takes none of the single kinds."""
_LENGTHS = (16, 17, 64, 65, 255, 256, 257, 1000, 1025, 4097, LONGEST)
_WORDS = ("", "a", "b", "0", "-1", "A long word", " ", "\n", "ä €", '"quoted"', "null", "😀", "../a", "\x00", "e\u0301")
_NUMBERS = (
    0,
    1,
    -1,
    2,
    10,
    100,
    127,
    128,
    255,
    256,
    1000,
    32767,
    32768,
    2**31 - 1,
    2**31,
    2**32,
    2**53,
    2**53 + 1,
    2**63 - 1,
)
_LARGE = (*_NUMBERS, 2**63, 2**64 - 1, 2**64, 10**30)
_INTEGERS = tuple(sorted({*_LARGE, *(-one for one in _LARGE)}, key=lambda one: (abs(one), one < 0)))
_FLOATS = (0.5, -0.5, 0.1, 1e-9, 1e16, -1e16, 5e-324, 1.7976931348623157e308, -1.7976931348623157e308)


def arguments_for(schema: Mapping[str, Any], takes: Takes | None = None) -> st.SearchStrategy[dict[str, Any]]:
    """Return a strategy for objects that *schema*, a tool's, allows.

    A tool may want a date for text without a format in the schema (a `datetime` without a time zone has none). With
    *takes*, such a parameter is drawn again, as dates and the like, if the tool does not take it. Their JSON is not
    longer than a run takes from a model by default (`JsonLimits`).
    """
    return _arguments_for(json.dumps(schema, sort_keys=True), takes).filter(_is_short_enough)


def _is_short_enough(made: object) -> bool:
    return len(json.dumps(made, ensure_ascii=False).encode("utf-8", "surrogatepass")) <= MOST_BYTES


@functools.lru_cache(maxsize=256)
def _parts(schema: str) -> tuple[dict[str, list[Values]], frozenset[str], Values]:
    """Return the strategies for each property, preferred ones first; the required names; and additional properties."""
    root = json.loads(schema)
    plain, *others = _texts()
    found = {}
    for name, member in root.get("properties", {}).items():
        found[name] = [_Values(root, plain).of(member)]
        if _has_plain_text(member, root, set()):
            found[name] += [_Values(root, texts).of(member) for texts in others]
    extra = root.get("additionalProperties")
    more: Values = st.just({})
    if isinstance(extra, dict):
        more = st.dictionaries(_keys().filter(lambda key: key not in found), _Values(root, plain).of(extra), max_size=3)
    return found, frozenset(root.get("required", ())), more


@st.composite
def _arguments_for(draw: st.DrawFn, schema: str, takes: Takes | None) -> dict[str, Any]:
    properties, required, more = _parts(schema)
    arguments: dict[str, Any] = {}
    for name, kinds in properties.items():
        if name in required or draw(st.booleans()):
            for values in kinds:
                arguments[name] = draw(values)
                if takes is None or takes(name, arguments[name]):
                    break
    return {**arguments, **draw(more)}


def _keys() -> Values:
    return st.one_of(st.sampled_from(["a", "b", "c"]), st.text(min_size=1, max_size=10))


# ---------------------------------------------------------------------------------------------- schemas


class _Values:
    """Makes strategies for the parts of one root schema, each once. *texts* gives text that the schema leaves open."""

    def __init__(self, root: Mapping[str, Any], texts: Values) -> None:
        self._root = root
        self._texts = texts
        self._made: dict[tuple[int, int], Values] = {}

    def of(self, schema: Schema, depth: int = 0) -> Values:
        """Return the strategy for *schema*."""
        key = (id(schema), depth)
        if key not in self._made:
            self._made[key] = self._make(schema, depth)
        return self._made[key]

    def _make(self, schema: Schema, depth: int) -> Values:
        if schema is False or depth > 3 * DEEPEST:
            return st.nothing()
        if not isinstance(schema, Mapping):
            return self._anything()
        if "$ref" in schema:
            return self.of(resolve_reference(schema["$ref"], self._root), depth + 1)
        if "const" in schema:
            return st.just(schema["const"])
        if "enum" in schema:
            return st.sampled_from(list(schema["enum"]))
        if schema.get("allOf"):
            return self._make(_merge_all_of(schema, self._root), depth)
        for union in ("anyOf", "oneOf"):
            if schema.get(union):
                return self._one_of(schema[union], depth)
        kinds = schema.get("type", _implied_type(schema))
        if kinds is None:
            return self._anything()
        return st.one_of(
            [self._of_type(kind, schema, depth) for kind in ([kinds] if isinstance(kinds, str) else kinds)]
        )

    def _one_of(self, members: list[Schema], depth: int) -> Values:
        if depth >= DEEPEST:
            members = [one for one in members if "$ref" not in one] or members
        # Null goes first: hypothesis shrinks towards the first member.
        ordered = sorted(members, key=lambda one: isinstance(one, Mapping) and one.get("type") != "null")
        return st.one_of([self.of(one, depth + 1) for one in ordered])

    def _of_type(self, kind: str, schema: Mapping[str, Any], depth: int) -> Values:
        match kind:
            case "integer":
                return _integers(schema)
            case "number":
                return _numbers(schema)
            case "boolean":
                return st.booleans()
            case "null":
                return st.none()
            case "array":
                return self._arrays(schema, depth)
            case "string":
                return _strings(schema, self._texts)
            case "object":
                return self._objects(schema, depth)
            case _:
                return st.nothing()

    def _anything(self) -> Values:
        scalars = st.one_of(st.none(), st.booleans(), st.sampled_from(_INTEGERS), self._texts)
        return st.one_of(scalars, st.lists(scalars, max_size=2), st.dictionaries(_keys(), scalars, max_size=2))

    def _arrays(self, schema: Mapping[str, Any], depth: int) -> Values:
        least, most = schema.get("minItems", 0), schema.get("maxItems", math.inf)
        before = schema.get("prefixItems", ())
        first = st.tuples(*(self.of(one, depth + 1) for one in before[: int(min(most, len(before)))]))
        least, most = max(0, least - len(before)), max(0, most - len(before))
        rest = schema.get("items", True)
        if rest is False or most == 0 or (before and "items" not in schema):
            return first.map(list)
        unique = bool(schema.get("uniqueItems"))
        lists = self._lists(self.of(rest, depth + 1), least, least if depth >= DEEPEST else most, unique)
        return st.tuples(first, lists).map(lambda parts: [*parts[0], *parts[1]])

    def _lists(self, items: Values, least: int, most: float, unique: bool) -> Values:
        by = _json_identity if unique else None
        if least > MOST_ITEMS and not unique:
            return items.map(lambda item: [item] * least)
        few = st.lists(items, min_size=least, max_size=int(min(most, least + 3)), unique_by=by)
        kinds = [few]
        if least + 3 < most <= MOST_ITEMS:
            kinds.append(st.lists(items, min_size=int(most), max_size=int(most), unique_by=by))
        elif most > MOST_ITEMS > least and not unique:
            kinds.append(st.tuples(items, st.sampled_from([10, MOST_ITEMS])).map(lambda pair: [pair[0]] * pair[1]))
        return st.one_of(kinds)

    def _objects(self, schema: Mapping[str, Any], depth: int) -> Values:
        required = set(schema.get("required", ()))
        known = {name: self.of(one, depth + 1) for name, one in schema.get("properties", {}).items()}
        needed = {name: values for name, values in known.items() if name in required}
        rest = {} if depth >= DEEPEST else {name: one for name, one in known.items() if name not in required}
        objects = st.fixed_dictionaries(needed, optional=rest)
        extra = schema.get("additionalProperties", False)
        least, most = schema.get("minProperties", 0), schema.get("maxProperties", math.inf)
        if extra is False:
            return objects.filter(lambda found: least <= len(found) <= most)
        keys = self.of(schema["propertyNames"], depth + 1) if "propertyNames" in schema else _keys()
        wanted = max(0, least - len(needed))
        size = wanted if depth >= DEEPEST else int(min(most, wanted + 3))
        more = st.dictionaries(keys, self.of(extra, depth + 1), min_size=wanted, max_size=max(size, wanted))
        both = st.tuples(objects, more).map(lambda parts: {**parts[1], **parts[0]})
        return both.filter(lambda found: least <= len(found) <= most)


def resolve_reference(reference: str, root: Mapping[str, Any]) -> Any:
    """Return the part of *root* that *reference* names; an empty schema if there is none."""
    found: Any = root
    for step in reference.removeprefix("#").strip("/").split("/"):
        if step:
            found = found.get(step.replace("~1", "/").replace("~0", "~"), {}) if isinstance(found, Mapping) else {}
    return found


def _merge_all_of(schema: Mapping[str, Any], root: Mapping[str, Any]) -> dict[str, Any]:
    """Return one schema for all of those in `allOf`."""
    found = {key: value for key, value in schema.items() if key != "allOf"}
    for member in schema["allOf"]:
        one = resolve_reference(member["$ref"], root) if "$ref" in member else member
        one = _merge_all_of(one, root) if "allOf" in one else one
        properties = {**found.get("properties", {}), **one.get("properties", {})}
        required = [*found.get("required", ()), *one.get("required", ())]
        found = {**found, **one}
        found |= {"properties": properties} if properties else {}
        found |= {"required": required} if required else {}
    return found


_SAID_BY = {
    "object": ("properties", "additionalProperties", "required"),
    "array": ("items", "prefixItems", "minItems", "maxItems"),
    "string": ("pattern", "format", "minLength", "maxLength"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}


def _implied_type(schema: Mapping[str, Any]) -> str | None:
    return next((kind for kind, keywords in _SAID_BY.items() if any(one in schema for one in keywords)), None)


def _has_plain_text(schema: Schema, root: Mapping[str, Any], seen: set[str]) -> bool:
    """Return True if *schema* has a text without any limit on its form."""
    if not isinstance(schema, Mapping):
        return schema is True
    if "$ref" in schema:
        if schema["$ref"] in seen:
            return False
        seen.add(schema["$ref"])
        return _has_plain_text(resolve_reference(schema["$ref"], root), root, seen)
    kinds = schema.get("type", ())
    if "string" in ([kinds] if isinstance(kinds, str) else kinds) and not _limits_text(schema):
        return True
    below = [one for key in ("anyOf", "oneOf", "allOf", "prefixItems") for one in schema.get(key, ())]
    below += [schema[key] for key in ("items", "additionalProperties") if isinstance(schema.get(key), Mapping)]
    below += schema.get("properties", {}).values()
    return any(_has_plain_text(one, root, seen) for one in below)


def _limits_text(schema: Mapping[str, Any]) -> bool:
    return any(one in schema for one in ("enum", "const", "format", "pattern", "contentEncoding"))


def _json_identity(value: Any) -> str:
    """Return a text that is the same for values that are equal in JSON schema (1 and 1.0)."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, sort_keys=True)


# ---------------------------------------------------------------------------------------------- numbers


def _integers(schema: Mapping[str, Any]) -> Values:
    step = schema.get("multipleOf", 1)
    if step != int(step):
        return _numbers(schema).filter(lambda value: value == int(value)).map(int)
    step = int(step)
    lows = [math.ceil(schema["minimum"])] if "minimum" in schema else []
    lows += [math.floor(schema["exclusiveMinimum"]) + 1] if "exclusiveMinimum" in schema else []
    highs = [math.floor(schema["maximum"])] if "maximum" in schema else []
    highs += [math.ceil(schema["exclusiveMaximum"]) - 1] if "exclusiveMaximum" in schema else []
    low = -(-max(lows) // step) if lows else None
    high = min(highs) // step if highs else None
    if low is not None and high is not None and low > high:
        return st.nothing()
    bounds = [one for one in (low, high) if one is not None]
    beside = {*([low + 1] if low is not None else []), *([high - 1] if high is not None else [])}
    kinds = [st.integers(low, high)]
    # The bounds are drawn as often as all other special values together.
    for special in ({*bounds}, {*_INTEGERS, *beside}):
        inside = [one for one in special if (low is None or one >= low) and (high is None or one <= high)]
        if inside:
            kinds.append(st.sampled_from(sorted(inside, key=lambda one: (abs(one), one < 0))))
    return st.one_of(kinds).map(lambda count: count * step)


def _numbers(schema: Mapping[str, Any]) -> Values:
    low, high = schema.get("minimum"), schema.get("maximum")
    over, under = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    step = schema.get("multipleOf")

    def fits(value: float) -> bool:
        return (
            (low is None or value >= low)
            and (high is None or value <= high)
            and (over is None or value > over)
            and (under is None or value < under)
            and (step is None or value % step == 0)
        )

    least, most = _tightest(max, low, over), _tightest(min, high, under)
    if step is not None:
        counts = st.integers(
            None if least is None else math.ceil(least / step), None if most is None else math.floor(most / step)
        )
        return counts.map(lambda count: count * step).filter(fits)
    floats = st.floats(_as_float(least), _as_float(most), allow_nan=False, allow_infinity=False).filter(fits)
    near = [one for one in (low, high) if one is not None]
    near += [math.nextafter(over, math.inf)] if over is not None else []
    near += [math.nextafter(under, -math.inf)] if under is not None else []
    kinds = [floats]
    for special in (near, (*_INTEGERS, *_FLOATS)):
        if inside := [one for one in special if fits(one)]:
            kinds.append(st.sampled_from(inside))
    return st.one_of(kinds)


def _tightest(pick: Callable[[Iterable[float]], float], *bounds: float | None) -> float | None:
    given = [one for one in bounds if one is not None]
    return pick(given) if given else None


def _as_float(bound: float | None) -> float | None:
    return None if bound is None else float(bound)


# ---------------------------------------------------------------------------------------------- text


def _strings(schema: Mapping[str, Any], texts: Values) -> Values:
    least, most = schema.get("minLength", 0), schema.get("maxLength", math.inf)

    def fits(text: str) -> bool:
        return bool(least <= len(text) <= most)

    if "pattern" in schema:
        return _text_matching(schema["pattern"], least, most).filter(fits)
    if schema.get("contentEncoding") == "base64":
        return st.binary(max_size=100).map(lambda raw: base64.b64encode(raw).decode()).filter(fits)
    if schema.get("format") in _formats():
        return _formats()[schema["format"]].filter(fits)
    if not least and most == math.inf:
        return texts
    return _text(least, most)


def _text(least: int, most: float) -> Values:
    """Return text of *least* to *most* characters: words, odd characters, and lengths around every bound."""
    lengths = {least, least + 1, *_LENGTHS, *((int(most) - 1, int(most)) if most <= 10 * LONGEST else ())}
    inside = sorted(one for one in lengths if least <= one <= most)
    long = st.tuples(st.sampled_from(["x", "é", "😀"]), st.sampled_from(inside)).map(lambda pair: pair[0] * pair[1])
    words = [one for one in _WORDS if least <= len(one) <= most]
    kinds = [st.sampled_from(words)] if words else []
    if least <= MOST_ITEMS:  # more are never drawn one by one
        kinds.append(st.text(min_size=least, max_size=int(min(most, least + 20))))
    return st.one_of([*kinds, long])


def _text_matching(pattern: str, least: int, most: float) -> Values:
    """Return text that contains a match of *pattern*; any text if Python can't read the pattern."""
    try:
        compiled = re.compile(pattern)
    except re.error:
        return _text(least, most)
    # Python's `$` also matches before a final newline; in other implementations it doesn't.
    strict = "$" in pattern
    whole = st.from_regex(compiled, fullmatch=True)
    return st.one_of(whole, st.from_regex(compiled)).filter(lambda text: not (strict and text.endswith("\n")))


@functools.cache
def _texts() -> tuple[Values, ...]:
    """Return the strategies for text without a format: any text; then, if that isn't taken, dates and other formats."""
    formats = _formats()
    naive, naive_times = formats["date-time-local"], formats["time-local"]
    specific = [naive, formats["date-time"], naive_times, formats["time"], formats["date"], formats["uuid"]]
    specific += [formats["decimal"], formats["uri"]]
    mixed = st.one_of(specific[:5])
    return (_text(0, math.inf), st.one_of(specific[:2]), *specific, *[mixed] * MIXTURES)


_ZONES = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))


@functools.cache
def _formats() -> dict[str, Values]:
    """Return a strategy for each known format of text."""
    zones = st.one_of(st.just(UTC), _ZONES)
    moments = st.one_of(
        st.sampled_from(
            [
                *("2000-01-01T00:00:00Z", "1970-01-01T00:00:00Z", "2000-02-29T23:59:59+02:00"),
                *("0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z"),
            ]
        ),
        st.datetimes(timezones=zones).map(lambda moment: moment.isoformat()),
    )
    times = st.one_of(
        st.sampled_from(["00:00:00Z", "23:59:59.999999Z"]),
        st.times(timezones=zones).map(lambda moment: moment.isoformat()),
    )
    dates = st.one_of(
        st.sampled_from(["2000-01-01", "2000-02-29", "0001-01-01", "9999-12-31"]),
        st.dates().map(lambda day: day.isoformat()),
    )
    naive = st.one_of(
        st.sampled_from(["2000-01-01T00:00:00", "0001-01-01T00:00:00", "9999-12-31T23:59:59.999999"]),
        st.datetimes().map(lambda moment: moment.isoformat()),
    )
    naive_times = st.times().map(lambda moment: moment.isoformat())
    durations = st.one_of(
        st.sampled_from(["PT0S", "P1D", "PT1H30M", "P1DT2H3M4.5S", "P36500D"]),
        st.integers(0, 10**7).map(lambda seconds: f"PT{seconds}S"),
    )
    uuids = st.one_of(
        st.sampled_from(["00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"]),
        st.uuids().map(str),
    )
    emails = st.one_of(st.sampled_from(["a@example.com", "a.b+c@mail.example.org"]), st.emails())
    hosts = ["example.com", "localhost", "a.b.c.example.org", f"{'a' * 63}.example.com"]
    v4 = st.ip_addresses(v=4).map(str)
    v6 = st.ip_addresses(v=6).map(str)
    paths = ["", "/", "/a/b", "/?q=1&r=%20", "/#part", "/%C3%A4", f"/{'a' * 1000}"]
    uris = st.tuples(
        st.sampled_from(["https", "http"]),
        st.sampled_from(hosts[:3]),
        st.sampled_from(["", ":8080"]),
        st.sampled_from(paths),
    ).map(lambda parts: f"{parts[0]}://{parts[1]}{parts[2]}{parts[3]}")
    references = st.one_of(uris, st.sampled_from([one for one in paths if one]))
    decimals = st.one_of(
        st.sampled_from(["0", "1", "-1", "0.1", "1e10", "99999999999999999999.99"]),
        st.decimals(allow_nan=False, allow_infinity=False, places=2, min_value=-(10**12), max_value=10**12).map(str),
    )
    found: dict[str, Values] = {
        "date-time": moments,
        "date-time-local": naive,
        "time-local": naive_times,
        "time": times,
        "date": dates,
        "duration": durations,
        "uuid": uuids,
        "email": emails,
        "idn-email": emails,
        "hostname": st.sampled_from(hosts),
        "idn-hostname": st.sampled_from(hosts),
        "ipv4": v4,
        "ipv6": v6,
        "ipvanyaddress": st.one_of(v4, v6),
        "ipv4network": v4.map(lambda address: f"{address}/32"),
        "ipv6network": v6.map(lambda address: f"{address}/128"),
        "uri": uris,
        "iri": uris,
        "uri-reference": references,
        "iri-reference": references,
        "decimal": decimals,
        "regex": st.sampled_from(["a", "^a+$", "[a-z]*", "(a|b)\\d"]),
        "json-pointer": st.sampled_from(["", "/a", "/a/0", "/~0/~1"]),
        "json-string": st.sampled_from(["null", "{}", "[1]", '{"a": "b"}']),
    }
    return found
