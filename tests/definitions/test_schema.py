"""A function's schema and the binding of arguments to its parameters."""

import dataclasses
import datetime as dt
import decimal
import enum
import functools
import inspect
import json
import subprocess
import sys
import textwrap
import typing
import uuid
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Generic, Literal, NewType, Optional, TypedDict, TypeVar

import attrs
import msgspec
import pydantic
import pytest
import tenacity
from annotated_types import Ge
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from agentloop._schema.function_schema import BoundArguments, FunctionSchema, function_schema
from agentloop._schema.json_schema import admits_null, hoist, obstacle
from agentloop.exceptions import ModelBehaviorError, UserTypeError

T = TypeVar("T")


class Ctx(Generic[T]):
    """A class in the place of the run's context."""


class SubCtx(Ctx[T]):
    """A special context."""


def schema_of(fn: Callable[..., Any], **options: Any) -> FunctionSchema:
    """Return the schema of *fn*, which is checked to be valid draft 2020-12 and, if strict, closed everywhere."""
    schema = function_schema(fn, context_types=(Ctx,), **options)
    Draft202012Validator.check_schema(schema.params_json_schema)
    assert schema.params_json_schema["type"] == "object"
    if schema.strict:
        for node in objects_in(schema.params_json_schema):
            assert node["additionalProperties"] is False
            assert node["required"] == list(node["properties"])
        assert '"default":' not in str(schema.params_json_schema)
    return schema


def objects_in(node: Any) -> Iterator[dict[str, Any]]:
    """Yield every object schema in *node*."""
    if isinstance(node, dict):
        if node.get("type") == "object":
            yield node
        for member in node.values():
            yield from objects_in(member)
    elif isinstance(node, list):
        for member in node:
            yield from objects_in(member)


def properties(fn: Callable[..., Any], **options: Any) -> dict[str, Any]:
    """Return the schemas of the parameters of *fn*."""
    found: dict[str, Any] = schema_of(fn, **options).params_json_schema["properties"]
    return found


def fault(fn: Callable[..., Any], arguments: dict[str, Any], **options: Any) -> str:
    """Return what is said to be wrong with *arguments*."""
    schema = schema_of(fn, **options)
    with pytest.raises(ModelBehaviorError) as caught:
        schema.bind(arguments)
    head = f"Arguments of tool {schema.name} don't fit: "
    assert str(caught.value).startswith(head)
    return str(caught.value).removeprefix(head)


def refused(fn: Any, **options: Any) -> str:
    """Return why *fn* can't be a tool."""
    with pytest.raises(UserTypeError) as caught:
        function_schema(fn, context_types=(Ctx,), **options)
    return str(caught.value)


# ---------------------------------------------------------------------------------------------- types


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


@attrs.define
class Geo:
    lat: float
    lon: float = 0.0


class Opts(TypedDict, total=False):
    verbose: typing.Required[bool]
    depth: int


@dataclasses.dataclass
class Page:
    n: int = 1


class Cat(msgspec.Struct, tag=True):
    lives: int = 9


class Dog(msgspec.Struct, tag=True):
    tricks: list[str]
    name: str = "Rex"


class Node(msgspec.Struct):
    value: int
    next: Optional["Node"] = None


UserId = NewType("UserId", int)


def every_kind(
    s: str,
    i: Annotated[int, msgspec.Meta(ge=1, le=9, description="one to nine")],
    f: float,
    lit: Literal["a", "b"],
    en: Color,
    geo: Geo,
    opts: Opts,
    page: Page,
    when: dt.datetime,
    uid: uuid.UUID,
    money: decimal.Decimal,
    tags: list[str],
    unique: set[int],
    pair: tuple[int, str],
    row: tuple[int, ...],
    user: UserId,
    node: Node,
    animal: Cat | Dog,
    u: int | str | None = None,
) -> None:
    """Take one of each."""


GOOD: dict[str, Any] = {
    "s": "x",
    "i": 3,
    "f": 1,
    "lit": "a",
    "en": "red",
    "geo": {"lat": 1.0, "lon": 2.0},
    "opts": {"verbose": True, "depth": 1},
    "page": {"n": 2},
    "when": "2026-01-02T03:04:05Z",
    "uid": "12345678-1234-5678-1234-567812345678",
    "money": "1.10",
    "tags": ["q"],
    "unique": [1, 1, 2],
    "pair": [1, "a"],
    "row": [1, 2, 3],
    "user": 7,
    "node": {"value": 1, "next": {"value": 2, "next": None}},
    "animal": {"type": "Dog", "tricks": ["sit"], "name": "Bo"},
    "u": "text",
}


@pytest.mark.parametrize("strict", [True, False])
def test_every_kind_of_type_is_described_and_structured(strict: bool) -> None:
    """The body gets values of its own types, and the schema accepts what it accepts."""
    schema = schema_of(every_kind, strict=strict)
    Draft202012Validator(schema.params_json_schema).validate({**GOOD, "unique": [1, 2]})
    assert schema.bind(GOOD).values == {
        "s": "x",
        "i": 3,
        "f": 1.0,
        "lit": "a",
        "en": Color.RED,
        "geo": Geo(1.0, 2.0),
        "opts": {"verbose": True, "depth": 1},
        "page": Page(2),
        "when": dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC),
        "uid": uuid.UUID("12345678-1234-5678-1234-567812345678"),
        "money": decimal.Decimal("1.10"),
        "tags": ["q"],
        "unique": {1, 2},
        "pair": (1, "a"),
        "row": (1, 2, 3),
        "user": 7,
        "node": Node(1, Node(2)),
        "animal": Dog(["sit"], "Bo"),
        "u": "text",
    }


def test_an_open_schema_tells_defaults_and_what_is_required() -> None:
    """Without strict mode the schema is what the signature says."""

    def f(a: int, geo: Geo = Geo(1.0), color: Color = Color.RED, n: float = 1) -> None: ...  # noqa: B008

    schema = schema_of(f, strict=False).params_json_schema
    assert schema == {
        "type": "object",
        "properties": {
            "a": {"type": "integer"},
            "geo": {"$ref": "#/$defs/Geo", "default": {"lat": 1.0, "lon": 0.0}},
            "color": {"$ref": "#/$defs/Color", "default": "red"},
            "n": {"type": "number", "default": 1.0},
        },
        "required": ["a"],
        "additionalProperties": False,
        "$defs": {
            "Color": {"enum": ["red", "blue"]},
            "Geo": {
                "type": "object",
                "properties": {"lat": {"type": "number"}, "lon": {"type": "number", "default": 0.0}},
                "required": ["lat"],
            },
        },
    }


def test_a_strict_schema_requires_all_and_lets_the_optional_be_null() -> None:
    """The schema is closed at every level and has no defaults, and a `$ref` never has company."""

    def f(a: int, geo: Annotated[Geo, msgspec.Meta(description="where")], color: Color = Color.RED) -> None: ...

    assert schema_of(f).params_json_schema == {
        "type": "object",
        "properties": {
            "a": {"type": "integer"},
            "geo": {"anyOf": [{"$ref": "#/$defs/Geo"}], "description": "where"},
            "color": {"anyOf": [{"$ref": "#/$defs/Color"}, {"type": "null"}]},
        },
        "required": ["a", "geo", "color"],
        "additionalProperties": False,
        "$defs": {
            "Color": {"enum": ["red", "blue"], "type": "string"},
            "Geo": {
                "type": "object",
                "properties": {"lat": {"type": "number"}, "lon": {"anyOf": [{"type": "number"}, {"type": "null"}]}},
                "required": ["lat", "lon"],
                "additionalProperties": False,
            },
        },
    }


@pytest.mark.scenario("LX-13")
def test_a_literal_is_an_enum_and_other_values_are_refused() -> None:
    """The schema lists the choices."""

    def f(mode: Literal["r", "w"]) -> None: ...

    assert properties(f)["mode"] == {"enum": ["r", "w"], "type": "string"}
    assert fault(f, {"mode": "zzz"}) == "mode: Invalid enum value 'zzz'"


@pytest.mark.scenario("LX-14")
@pytest.mark.parametrize("strict", [True, False])
def test_an_optional_parameter_takes_integer_and_null(strict: bool) -> None:
    """Null is a value of its own where the type has it."""

    def f(x: int | None = 5) -> int | None:
        return x

    schema = schema_of(f, strict=strict)
    assert schema.params_json_schema["properties"]["x"]["anyOf"] == [{"type": "integer"}, {"type": "null"}]
    assert [schema.bind(arguments).call(f) for arguments in ({"x": 1}, {"x": None}, {})] == [1, None, 5]


def test_a_default_of_none_makes_the_type_optional() -> None:
    """The library reads `x: int = None` as many people mean it."""

    def f(x: int = None) -> None: ...  # type: ignore[assignment]  # noqa: RUF013

    assert properties(f, strict=False)["x"] == {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None}


def test_titles_stay_only_where_they_say_something() -> None:
    """A title that repeats its key costs the model's attention; a title of the user's stays."""

    def f(a: Annotated[int, msgspec.Meta(title="Age in years")], geo: Geo) -> None: ...

    assert properties(f)["a"] == {"type": "integer", "title": "Age in years"}
    assert "title" not in schema_of(f).params_json_schema["$defs"]["Geo"]


def test_a_property_may_be_called_like_a_keyword() -> None:
    """Names of parameters are no keywords of the schema."""

    def f(default: int, title: str, items: list[int], type: str = "x", enum: int = 1) -> tuple[Any, ...]:
        return default, title, items, type, enum

    schema = schema_of(f)
    assert list(schema.params_json_schema["properties"]) == ["default", "title", "items", "type", "enum"]
    assert schema.bind({"default": 1, "title": "t", "items": [2]}).call(f) == (1, "t", [2], "x", 1)


@pytest.mark.parametrize(
    "hint", [dict[str, int], dict, Any, list, list[Any], list[dict[str, int]], dict[str, Geo] | None]
)
def test_strict_mode_refuses_what_it_cannot_close(hint: Any) -> None:
    """The error names the parameter and the way out, which works."""

    def f(a: int, m: Any) -> None: ...

    f.__annotations__["m"] = hint
    message = refused(f)
    assert message.startswith("Tool f: parameter m is ")
    assert message.endswith("give strict_mode=False")
    assert "m" in properties(f, strict=False)


def test_strict_mode_refuses_an_open_map_deep_inside() -> None:
    """Definitions are looked into, recursive ones too."""

    class Deep(msgspec.Struct):
        inner: Optional["Deep"]
        m: dict[str, int]

    globals()["Deep"] = Deep
    try:

        def f(deep: Deep) -> None: ...

        assert "parameter deep is an object with free keys" in refused(f)
    finally:
        del globals()["Deep"]


@pytest.mark.parametrize(
    ("schema", "nullable"),
    [
        (True, True),
        (False, False),
        ({"const": None}, True),
        ({"type": ["string", "null"]}, True),
        ({"type": ["string", "integer"]}, False),
    ],
)
def test_schemas_of_others_may_be_booleans_and_constants(schema: Any, nullable: bool) -> None:
    """pydantic's hooks let users write any schema; true is anything, null included."""
    assert admits_null(schema, {}) is nullable
    assert (obstacle(schema, {}) is not None) is (schema is True)


# ---------------------------------------------------------------------------------------------- binding


def test_every_fault_is_named() -> None:
    """One message names wrong values with path and type, missing names and unknown names."""

    def add(x: int, y: int, geo: Geo) -> None: ...

    message = fault(add, {"x": "a", "geo": {"lat": "north"}, "z": 1, "w": 2})
    assert message == "x: Expected `int`, got `str`; geo.lat: Expected `float`, got `str`; missing: y; unknown: z, w"


@pytest.mark.slow
@given(st.sets(st.sampled_from(list(GOOD))), st.sets(st.sampled_from(["u", *GOOD])), st.sets(st.text(min_size=1)))
def test_any_set_of_faults_is_named(wrong: set[str], missing: set[str], unknown: set[str]) -> None:
    """For any combination of faults the message names each fault, and no correct argument."""
    missing, wrong, unknown = missing - {"u"}, wrong - missing, unknown - set(GOOD)
    arguments = {name: object if name in wrong else value for name, value in GOOD.items() if name not in missing}
    arguments |= dict.fromkeys(unknown, 1)
    schema = function_schema(every_kind, context_types=())
    if not wrong | missing | unknown:
        assert schema.bind(arguments)
        return
    with pytest.raises(ModelBehaviorError) as caught:
        schema.bind(arguments)
    message = str(caught.value).removeprefix("Arguments of tool every_kind don't fit: ")
    parts = message.split("; missing: " if wrong else "missing: ")[0].split("; unknown: ")[0].split("; ")
    assert {part.split(":")[0] for part in parts if ": Expected" in part} == wrong
    assert ("missing: " + ", ".join(name for name in GOOD if name in missing) in message) == bool(missing)
    assert ("unknown: " in message) == bool(unknown)
    assert len(message) < 3000


@pytest.mark.scenario("LX-11", "LX-12")
def test_wrong_and_missing_arguments_name_tool_parameter_and_type() -> None:
    """The error is enough for the model to mend its call."""

    def f(x: int) -> None: ...

    assert fault(f, {"x": "abc"}) == "x: Expected `int`, got `str`"
    assert fault(f, {}) == "missing: x"


@pytest.mark.parametrize(("hint", "value"), [(int, True), (int, 1.5), (bool, 1), (str, 1), (float, "x"), (int, None)])
def test_nothing_is_coerced_across_types(hint: type, value: object) -> None:
    """A bool is no int, a text no number."""

    def f(x: Any) -> None: ...

    f.__annotations__["x"] = hint
    assert fault(f, {"x": value}).startswith(f"x: Expected `{hint.__name__}`, got `")


def test_constraints_of_msgspec_meta_hold() -> None:
    """The body's arguments keep the constraints, and the schema shows them."""

    def f(x: Annotated[int, msgspec.Meta(ge=1, le=9)]) -> None: ...

    assert properties(f)["x"] == {"type": "integer", "minimum": 1, "maximum": 9}
    assert fault(f, {"x": 10}) == "x: Expected `int` <= 9"


def test_what_the_model_wrote_is_quoted_within_bounds() -> None:
    """Neither a long value nor thousands of long names make a long message."""

    def f(mode: Literal["r"], **rest: int) -> None: ...

    def g(mode: Literal["r"]) -> None: ...

    assert len(fault(f, {"mode": "x" * 10_000}, strict=False)) < 250
    many = {f"{'n' * 100}{index}": "x" for index in range(1000)}
    assert fault(f, {"mode": "r", **many}, strict=False).endswith("990 more don't fit")
    assert len(fault(f, {"mode": "r", **many}, strict=False)) < 1500
    assert len(fault(g, {"mode": "r", **many})) < 250


def test_a_validator_of_the_user_may_raise_anything() -> None:
    """An error in the validator means that the value is wrong."""

    def positive(_instance: object, _attribute: object, value: int) -> None:
        if value < 1:
            raise KeyError("must be positive")

    @attrs.define
    class Positive:
        n: int = attrs.field(validator=positive)

    def f(p: Positive) -> None: ...

    assert fault(f, {"p": {"n": 0}}) == "p: KeyError('must be positive')"
    assert schema_of(f).bind({"p": {"n": 1}}).values == {"p": Positive(1)}


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ({"geo": None, "n": None, "animal": None}, {"geo": Geo(1.0), "n": 3, "animal": Cat()}),
        (
            {"geo": {"lat": 2.0, "lon": None}, "n": 4, "animal": {"type": "Dog", "tricks": [], "name": None}},
            {"geo": Geo(2.0), "n": 4, "animal": Dog([])},
        ),
    ],
)
def test_null_for_the_optional_means_its_default_in_strict_mode(arguments: Any, wanted: Any) -> None:
    """The strict schema makes the model send null for what it would leave out, at every level."""

    def f(geo: Geo = Geo(1.0), n: int = 3, animal: Cat | Dog = Cat()) -> None: ...  # noqa: B008

    schema = schema_of(f)
    Draft202012Validator(schema.params_json_schema).validate(arguments)
    assert schema.bind(arguments).values == wanted
    assert "geo: " in fault(f, {"geo": None}, strict=False)


def test_nested_nulls_in_arrays_tuples_and_unions_mean_defaults_too() -> None:
    """Null stays where the type has it."""

    def f(geos: list[Geo | None], pair: tuple[int, Geo], opts: Opts, rest: tuple[Page, ...], node: Node) -> None: ...

    bound = schema_of(f).bind(
        {
            "geos": [{"lat": 1.0, "lon": None}, None],
            "pair": [1, {"lat": 1.0, "lon": None}],
            "opts": {"verbose": False, "depth": None},
            "rest": [{"n": None}],
            "node": {"value": 1, "next": None},
        }
    )
    assert bound.values == {
        "geos": [Geo(1.0), None],
        "pair": (1, Geo(1.0)),
        "opts": {"verbose": False},
        "rest": (Page(),),
        "node": Node(1),
    }


def test_a_tuple_that_is_too_long_is_a_fault() -> None:
    """A member beyond the tuple's end has no schema to look nulls up in."""

    def f(pair: tuple[int, Geo]) -> None: ...

    sent = {"pair": [1, {"lat": 1.0, "lon": None}, {"lat": 1.0, "lon": None}]}
    assert fault(f, sent) == "pair: Expected `array` of length 2, got 3"


def test_null_for_a_required_member_is_still_wrong() -> None:
    """Only what may be left out may be null."""

    def f(geo: Geo) -> None: ...

    assert fault(f, {"geo": {"lat": None, "lon": None}}) == "geo.lat: Expected `float`, got `null`"


def test_the_parameters_kinds_decide_how_they_are_passed() -> None:
    """Positional-only parameters are passed by position, keyword-only ones by name, and stars are spread."""

    def f(a: int, /, b: int, *more: int, c: int = 3, **rest: float) -> tuple[Any, ...]:
        return a, b, more, c, rest

    schema = schema_of(f, strict=False)
    assert schema.params_json_schema == {
        "type": "object",
        "properties": {
            "a": {"type": "integer"},
            "b": {"type": "integer"},
            "more": {"type": "array", "items": {"type": "integer"}},
            "c": {"type": "integer", "default": 3},
        },
        "required": ["a", "b"],
        "additionalProperties": {"type": "number"},
    }
    bound = schema.bind({"a": 1, "b": 2, "more": [5, 6], "x": 7, "y": 0.5})
    assert bound.call(f) == (1, 2, (5, 6), 3, {"x": 7.0, "y": 0.5})
    assert bound.values == {"a": 1, "b": 2, "more": (5, 6), "c": 3, "rest": {"x": 7.0, "y": 0.5}}
    assert schema.bind({"a": 1, "b": 2}).call(f) == (1, 2, (), 3, {})
    assert fault(f, {"a": 1, "more": ["x"], "z": "no"}, strict=False) == (
        "more[0]: Expected `int`, got `str`; missing: b; 'z': Expected `float`, got `str`"
    )


def test_positional_only_parameters_may_have_defaults() -> None:
    """Defaults in between are filled in."""

    def f(a: int = 1, b: int = 2, /, c: int = 3) -> tuple[int, int, int]:
        return a, b, c

    schema = schema_of(f)
    bound = schema.bind({"b": 5})
    assert (bound.args, bound.kwargs) == ((1, 5), {"c": 3})
    assert bound.call(f) == (1, 5, 3)


def test_starred_arguments_work_in_strict_mode() -> None:
    """An array is closed; null is none of them."""

    def f(*numbers: int) -> tuple[int, ...]:
        return numbers

    schema = schema_of(f)
    assert schema.bind({"numbers": [1, 2]}).call(f) == (1, 2)
    assert schema.bind({"numbers": None}).call(f) == ()


def test_free_keywords_have_no_strict_schema() -> None:
    """The error names the parameter with its stars."""

    def f(**rest: int) -> None: ...

    assert "parameter **rest is an object with free keys" in refused(f)


def test_a_parameter_may_have_a_name_that_a_struct_cannot_have() -> None:
    """Names are the user's."""

    def f(self: int, __x: int, __struct_fields__: int = 1) -> tuple[int, int, int]:
        return self, __x, __struct_fields__

    assert schema_of(f).bind({"self": 1, "__x": 2}).call(f) == (1, 2, 1)


def test_a_default_is_passed_as_the_very_object() -> None:
    """Nothing is converted on the way; only what one call could change for the next is copied."""
    shared, frozen = [1], Geo(1.0)

    def f(x: list[int] = shared, y: float = 1, z: Geo = frozen) -> tuple[list[int], float, Geo]:
        return x, y, z

    x, y, z = schema_of(f).bind({}).call(f)
    assert x == shared
    assert x is not shared
    assert z is frozen
    assert isinstance(y, int)


def test_a_tool_may_have_no_parameters() -> None:
    """The schema of such a tool is an empty closed object."""

    def f() -> int:
        return 1

    schema = schema_of(f)
    assert schema.params_json_schema == {
        "type": "object",
        "properties": {},
        "required": [],
        "additionalProperties": False,
    }
    assert schema.bind({}).call(f) == 1
    assert fault(f, {"x": 1}) == "unknown: x"


# ---------------------------------------------------------------------------------------------- key


def test_the_key_is_of_the_meaning_not_of_the_text() -> None:
    """The key ignores order, filled-in defaults, 1 for 1.0, null for a default, and other forms of one date."""

    def f(a: float, when: dt.datetime, b: list[float] = [1], s: set[str] = frozenset()) -> None: ...  # type: ignore[assignment]  # noqa: B006

    schema = schema_of(f)
    texts: list[dict[str, Any]] = [
        {"a": 1, "when": "2026-01-01T00:00:00Z"},
        {"when": "2026-01-01T00:00:00+00:00", "a": 1.0, "b": None},
        {"when": "2026-01-01 00:00:00Z", "a": 1.0, "b": [1], "s": []},
        {"b": [1.0], "a": 1, "when": "2026-01-01T00:00:00Z"},
    ]
    assert {schema.bind(arguments).key() for arguments in texts} == {
        '{"a":1.0,"b":[1.0],"s":[],"when":"2026-01-01T00:00:00Z"}'
    }
    one, other = ({"a": 1, "when": "2026-01-01T00:00:00Z", "s": names} for names in (["x", "y", "z"], ["z", "y", "x"]))
    assert schema.bind(one).key() == schema.bind(other).key() != schema.bind(texts[0]).key()


def test_the_key_tells_free_keywords_from_parameters() -> None:
    """`**kwargs` are part of the meaning."""

    def f(a: int = 1, *more: int, **rest: float) -> None: ...

    schema = schema_of(f, strict=False)
    assert schema.bind({"x": 1, "more": [2]}).key() == '{"*x":1.0,"a":1,"more":[2]}'
    assert schema.bind({"x": 1}).key() != schema.bind({"y": 1}).key()


def test_a_value_that_json_cannot_hold_has_the_key_of_what_was_sent() -> None:
    """A user's class may make anything of its input."""

    @dataclasses.dataclass
    class Made:
        n: int

        def __post_init__(self) -> None:
            self.n = object()  # type: ignore[assignment]

    def f(made: Made) -> None: ...

    assert schema_of(f).bind({"made": {"n": 1}}).key() == '{"made":{"n":1}}'


def test_a_default_outside_its_type_is_its_own_key() -> None:
    """A default outside its type is the user's to give."""

    def f(x: int = "many") -> None: ...  # type: ignore[assignment]

    assert schema_of(f).bind({}).key() == '{"x":"many"}'


SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(),
    float: st.floats(allow_nan=False, allow_infinity=False),
    str: st.text(),
    bool: st.booleans(),
    Color: st.sampled_from(Color),
    uuid.UUID: st.uuids(),
    dt.date: st.dates(),
    decimal.Decimal: st.decimals(allow_nan=False, allow_infinity=False),
    Geo: st.builds(Geo, st.floats(allow_nan=False, allow_infinity=False), st.integers(0, 9).map(float)),
    Page: st.builds(Page, st.integers()),
}


@st.composite
def typed_values(draw: st.DrawFn) -> tuple[Any, Any]:
    """Draw a type and a value of it."""
    base = draw(st.sampled_from(list(SCALARS)))
    shape = draw(st.sampled_from(["plain", "list", "optional", "tuple", "dict"]))
    one = SCALARS[base]
    match shape:
        case "list":
            return list[base], draw(st.lists(one, max_size=3))
        case "optional":
            return base | None, draw(st.none() | one)
        case "tuple":
            return tuple[int, base], (draw(st.integers()), draw(one))
        case "dict":
            return dict[str, base], draw(st.dictionaries(st.text(), one, max_size=3))
    return base, draw(one)


@pytest.mark.slow
@given(st.lists(typed_values(), max_size=5), st.data())
def test_values_survive_the_way_through_json(typed: list[tuple[Any, Any]], data: st.DataObject) -> None:
    """The schema accepts the JSON that msgspec writes and binds it to equal values, with one key in any order."""

    def f(**parameters: Any) -> dict[str, Any]:
        return parameters

    named = {f"p{index}": pair for index, pair in enumerate(typed)}
    f.__signature__ = inspect_signature({name: hint for name, (hint, _) in named.items()})  # type: ignore[attr-defined]
    schema = function_schema(f, strict=False, context_types=())
    sent = {name: json.loads(json.dumps(msgspec.to_builtins(value))) for name, (_, value) in named.items()}
    Draft202012Validator(schema.params_json_schema).validate(sent)
    bound = schema.bind(sent)
    assert bound.call(f) == bound.values == {name: value for name, (_, value) in named.items()}
    order = data.draw(st.permutations(list(sent)))
    assert schema.bind({name: sent[name] for name in order}).key() == bound.key()


def inspect_signature(hints: dict[str, Any]) -> Any:
    """Return a signature of keyword parameters."""
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Signature([inspect.Parameter(name, kind, annotation=hint) for name, hint in hints.items()])


# ---------------------------------------------------------------------------------------------- context


def first(ctx: Ctx[int], x: int) -> Any:
    return ctx, x


def middle(x: int, where: SubCtx[str], y: int = 2) -> Any:
    return where, x, y


def before_stars(x: int, c: Ctx[int], *rest: int) -> Any:
    return c, x, rest


def positional(x: int, c: Ctx[int], y: int = 2, /) -> Any:
    return c, x, y


def keyword(x: int, *, c: Annotated[Ctx[int], "mine"]) -> Any:
    return c, x


def maybe(x: int, c: Ctx[int] | None = None) -> Any:
    return c, x


@pytest.mark.scenario("LX-19")
@pytest.mark.parametrize("fn", [first, middle, before_stars, positional, keyword, maybe])
def test_the_context_is_found_by_its_annotation_hidden_and_passed(fn: Callable[..., Any]) -> None:
    """The context may have any name, place, subclass, generic or optional form."""
    schema = schema_of(fn)
    assert schema.context_parameter in {"ctx", "where", "c"}
    assert schema.context_parameter not in schema.params_json_schema["properties"]
    context = SubCtx[Any]()
    assert schema.bind({"x": 1}).call(fn, context)[:2] == (context, 1)
    assert fault(fn, {"x": 1, str(schema.context_parameter): 1}) == f"unknown: {schema.context_parameter}"


def test_a_model_cannot_smuggle_in_what_others_fill() -> None:
    """Free keywords exclude the context, bound arguments and self."""

    class Box:
        def put(self, c: Ctx[int], token: str, x: int, **rest: int) -> None: ...

    fn = functools.partial(Box().put, token="t")
    names = {"c": 1, "token": 1, "self": 1, "fine": 1}
    assert fault(fn, {"x": 1, **names}, strict=False) == "unknown: c, token, self"


def test_two_contexts_are_one_too_many() -> None:
    """The library refuses both, since choosing one would be a guess."""

    def f(a: Ctx[int], b: SubCtx[int]) -> None: ...

    assert refused(f) == "Tool f: only one parameter can be the context, not a and b"


def test_a_starred_parameter_cannot_be_the_context() -> None:
    """A tool has one context, and a starred parameter takes several."""

    def f(*a: Ctx[int]) -> None: ...

    assert "starred" in refused(f)


def test_without_a_context_none_is_passed() -> None:
    """`call` takes a context and doesn't pass it to the function."""

    def f(x: int) -> int:
        return x

    schema = schema_of(f)
    assert schema.context_parameter is None
    assert schema.bind({"x": 1}).call(f, Ctx[int]()) == 1


# ---------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("strict", [True, False])
def test_a_missing_annotation_is_named(strict: bool) -> None:
    """The error names the function and the parameter."""

    def f(a: int, b) -> None: ...  # type: ignore[no-untyped-def]

    assert refused(f, strict=strict) == "Tool f: parameter b has no annotation"


@pytest.mark.parametrize("default", [object(), float("nan"), len, msgspec.UNSET])
def test_a_default_that_json_cannot_hold_is_named(default: Any) -> None:
    """A default must be JSON, since the schema shows it to the model."""

    def f(a: int = default) -> None: ...

    assert refused(f).startswith("Tool f: the default of parameter a can't be written as JSON: ")


@pytest.mark.parametrize(
    ("hint", "shown"),
    [
        (complex, "complex"),
        (Callable[[], int], "collections.abc.Callable[[], int]"),
        (list[complex], "list[complex]"),
        (str | dt.datetime, "str | datetime.datetime"),
        (Geo | Page, "Geo | "),
        (Annotated[int, Ge(1)], "Ge(ge=1)"),
    ],
)
def test_a_type_without_a_json_form_is_named(hint: Any, shown: str) -> None:
    """The error names the parameter and the type."""

    def f(a: int, b: Any) -> None: ...

    f.__annotations__["b"] = hint
    message = refused(f)
    assert message.startswith("Tool f: parameter b has a type without a JSON form, ")
    assert shown in message
    assert "\n" not in message


def test_what_cannot_be_called_is_no_tool() -> None:
    """Values and classes are refused."""
    assert refused(1) == "A tool needs a function or a callable object, not 1"
    assert "not <class" in refused(Geo)


def test_a_callable_without_a_signature_is_named() -> None:
    """Some builtins have no signature, so they are refused."""
    assert refused(getattr, name="t").startswith("Tool t: ")


def test_a_builtin_may_be_a_tool() -> None:
    """A builtin that has a signature can be a tool."""
    assert schema_of(sys.getrecursionlimit).bind({}).call(sys.getrecursionlimit) == sys.getrecursionlimit()


def test_a_nameless_function_needs_a_name() -> None:
    """A lambda can be a tool once it has one."""
    fn = lambda: 1  # noqa: E731
    assert refused(fn).endswith("needs a name: give name=…")
    assert schema_of(fn, name="one").name == "one"


# ---------------------------------------------------------------------------------------------- string annotations


def test_annotations_may_be_strings_and_name_locals() -> None:
    """The locals of the running function around count, which closures don't hold."""

    class Local(msgspec.Struct):
        n: int

    def f(a: "int", local: "Local", many: list["Local"], c: "Ctx[int]") -> "Nowhere":  # type: ignore[name-defined] # noqa: F821
        ...

    schema = schema_of(f)
    assert schema.context_parameter == "c"
    assert schema.bind({"a": 1, "local": {"n": 1}, "many": []}).values["local"] == Local(1)


def test_annotations_may_name_what_the_function_closes_over() -> None:
    """The names are known also after the function around has returned."""

    def make() -> Callable[..., Any]:
        class Local(msgspec.Struct):
            n: int

        def f(local: "Local") -> type:
            return Local

        return f

    fn = make()
    local = fn(None)
    assert schema_of(fn).bind({"local": {"n": 1}}).values["local"] == local(1)


def test_a_closure_cell_without_value_does_no_harm() -> None:
    """A name may be assigned after the tool is made."""

    def f(a: "int") -> Any:
        return later

    schema = schema_of(f)
    later = 1
    assert schema.bind({"a": 1}).call(f) == later


def test_a_context_imported_for_type_checkers_is_known_by_name() -> None:
    """The context's own name is enough, and the type it is generic over need not exist."""

    def f(c: "hidden.Ctx[Unknown]", x: int) -> None: ...  # type: ignore[name-defined] # noqa: F821

    assert schema_of(f).context_parameter == "c"


@pytest.mark.parametrize("annotation", ["Nowhere", "list[Nowhere]", "1 +", "int[", "Ctx().missing"])
def test_an_annotation_that_cannot_be_resolved_is_named(annotation: str) -> None:
    """The error names the function and the parameter."""

    def f(x: Any) -> None: ...

    f.__annotations__["x"] = annotation
    message = refused(f)
    assert message.startswith(f"Tool f: the annotation {annotation!r} of parameter x can't be resolved: ")


# ---------------------------------------------------------------------------------------------- wrappers


def plain(a: int, b: int = 2) -> int:
    """Add two numbers.

    Args:
        a: the first
    """
    return a + b


@functools.wraps(plain)
def wrapped(*args: Any, **kwargs: Any) -> int:
    return plain(*args, **kwargs)


@functools.wraps(plain)
async def wrapped_async(*args: Any, **kwargs: Any) -> int:
    return plain(*args, **kwargs)


retried = tenacity.retry(stop=tenacity.stop_after_attempt(2))(plain)


class Retry:
    """A retry object as libraries make them."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        functools.update_wrapper(self, fn)
        self.fn = fn

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.fn(*args, **kwargs)


class Adder:
    """Adds things."""

    def __call__(self, a: int, b: int = 2) -> int:
        """Add two numbers.

        Args:
            a: the first
        """
        return a + b

    def method(self, a: int, b: int = 2) -> int:
        """Add two numbers.

        Args:
            a: the first
        """
        return a + b

    wrapped_method = functools.wraps(method)(lambda self, *args, **kwargs: self.method(*args, **kwargs))
    retried_method = tenacity.retry(method)

    @classmethod
    def of_class(cls, a: int, b: int = 2) -> int:
        """Add two numbers.

        Args:
            a: the first
        """
        return a + b

    @staticmethod
    def of_none(a: int, b: int = 2) -> int:
        """Add two numbers.

        Args:
            a: the first
        """
        return a + b


WRAPPERS: list[tuple[Any, str]] = [
    (plain, "plain"),
    (wrapped, "plain"),
    (wrapped_async, "plain"),
    (retried, "plain"),
    (Retry(plain), "plain"),
    (Retry(wrapped), "plain"),
    (Adder(), "Adder"),
    (Adder().method, "method"),
    (Adder().wrapped_method, "method"),
    (Adder().retried_method, "method"),
    (Adder.of_class, "of_class"),
    (Adder.of_none, "of_none"),
    (Adder.__dict__["of_none"], "of_none"),
    (functools.partial(plain), "plain"),
    (functools.partial(Retry(functools.partial(wrapped))), "plain"),
]


@pytest.mark.scenario("DE-09")
@pytest.mark.parametrize(("fn", "name"), WRAPPERS)
def test_the_signature_is_the_inner_functions(fn: Callable[..., Any], name: str) -> None:
    """The schema is the inner function's under any wrapper, and the outer call says whether to await."""
    schema = schema_of(fn)
    assert (schema.name, schema.description) == (name, "Add two numbers.")
    assert schema.params_json_schema["properties"] == {
        "a": {"type": "integer", "description": "the first"},
        "b": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    }
    assert schema.is_async == (fn is wrapped_async)
    if not schema.is_async:
        assert schema.bind({"a": 1}).call(fn) == 3


@pytest.mark.scenario("DE-09")
def test_sync_or_async_is_told_by_the_outer_callable() -> None:
    """A sync wrapper around an async function is sync, an object is what its `__call__` is."""

    async def inner(a: int) -> int:
        return a

    @functools.wraps(inner)
    def outer(a: int) -> Any:
        return inner(a)

    class Thing:
        async def __call__(self, a: int) -> int:
            return a

    assert schema_of(inner).is_async
    assert not schema_of(outer).is_async
    assert schema_of(Thing()).is_async
    assert schema_of(functools.partial(functools.partial(Thing()))).is_async
    assert schema_of(tenacity.retry(inner)).is_async


@pytest.mark.scenario("DE-09")
def test_what_a_partial_binds_is_gone() -> None:
    """The bound arguments are no parameters, by position and by name, even below a wrapper."""

    def f(a: int, b: int, c: int, d: int = 4) -> tuple[int, ...]:
        return a, b, c, d

    fn = functools.partial(functools.partial(f, 1), c=3)
    schema = schema_of(fn)
    assert list(schema.params_json_schema["properties"]) == ["b", "d"]
    assert schema.bind({"b": 2}).call(fn) == (1, 2, 3, 4)
    assert list(properties(Retry(fn), name="f")) == ["b", "d"]
    assert fault(fn, {"b": 2, "c": 9}) == "unknown: c"


def test_a_partial_may_bind_the_context() -> None:
    """The tool then has no context to pass."""
    fn = functools.partial(first, Ctx[int]())
    assert schema_of(fn).context_parameter is None


def test_an_object_without_own_documentation_shows_its_classs() -> None:
    """The class says what its instances do."""

    class Silent:
        """Does it."""

        def __call__(self) -> None: ...

    class Mute:
        def __call__(self) -> None: ...

    assert schema_of(Silent()).description == "Does it."
    assert schema_of(Mute()).description == ""


def test_a_description_given_wins_and_parameters_stay_documented() -> None:
    """The docstring still describes the parameters."""
    schema = schema_of(plain, name="sum", description="Sums.")
    assert (schema.name, schema.description) == ("sum", "Sums.")
    assert schema.params_json_schema["properties"]["a"]["description"] == "the first"


def test_metas_description_wins_over_the_docstrings() -> None:
    """The Meta is nearer to the parameter, so its description is taken."""

    def f(a: Annotated[int, msgspec.Meta(description="near")]) -> None:
        """Do it.

        :param a: far
        """

    assert properties(f)["a"]["description"] == "near"


# ---------------------------------------------------------------------------------------------- docstrings

DOCSTRINGS = [
    # Google
    """
    Summary of it.

    The body
    goes on.

    Args:
        a: the first
            line and the next.
        b (int, optional): the second: with a colon
        *more: stars
        **rest (float): keywords

    Returns:
        Something: that isn't a parameter.

    Note:
        a: no.
    """,
    # NumPy
    """
    Summary of it.

    The body
    goes on.

    Parameters
    ----------
    a : int
        the first
        line and the next.
    b : int, optional
        the second: with a colon
    *more
        stars
    **rest : float
        keywords

    Returns
    -------
    Something
        that isn't a parameter.
    """,
    # Sphinx
    """
    Summary of it.

    The body
    goes on.

    :param a: the first
        line and the next.
    :param int b: the second: with a colon
    :param \\*more: stars
    :keyword float rest: keywords
    :type a: int
    :returns: something
    :raises ValueError: never
    """,
]


@pytest.mark.parametrize("doc", DOCSTRINGS, ids=["google", "numpy", "sphinx"])
def test_three_styles_of_docstring_say_the_same(doc: str) -> None:
    """Summary and body are the description, parameters get theirs."""

    def f(a: int, b: int, *more: int, **rest: float) -> None: ...

    f.__doc__ = doc
    schema = schema_of(f, strict=False)
    assert schema.description == "Summary of it.\n\nThe body\ngoes on."
    assert {name: member.get("description") for name, member in schema.params_json_schema["properties"].items()} == {
        "a": "the first line and the next.",
        "b": "the second: with a colon",
        "more": "stars",
    }
    assert schema.params_json_schema["additionalProperties"] == {"type": "number", "description": "keywords"}


def test_numpy_parameters_may_share_a_description() -> None:
    """`a, b : int` describes both."""

    def f(a: int, b: int) -> None:
        """Do.

        Parameters
        ----------
        a, b : int
            Both of them.
        (not a name)
        """

    assert [member["description"] for member in properties(f).values()] == ["Both of them.", "Both of them."]


@pytest.mark.parametrize(
    "doc", ["Just text.", "Just text.\n\nArgs:", "Just text.\n\nReturns\nnothing", "Just: text\n-", ":nothing"]
)
def test_text_that_is_no_section_is_description(doc: str) -> None:
    """Nothing is lost for looking like a heading."""

    def f(a: int) -> None: ...

    f.__doc__ = doc
    schema = schema_of(f)
    assert schema.description == doc
    assert schema.params_json_schema["properties"]["a"] == {"type": "integer"}


@given(st.text() | st.text("aA:\n -=*()[]Args", max_size=80))
def test_no_docstring_breaks_a_tool(doc: str) -> None:
    """Any text is a docstring."""

    def f(a: int) -> None: ...

    f.__doc__ = doc
    assert isinstance(function_schema(f, context_types=()).description, str)


# ---------------------------------------------------------------------------------------------- pydantic


class Inner(pydantic.BaseModel):
    n: int
    label: str = "none"


class Outer(pydantic.BaseModel):
    inner: Inner
    more: list[Inner] = []
    parent: Optional["Outer"] = None


class Open(pydantic.BaseModel, extra="allow"):
    n: int


def test_a_pydantic_model_is_described_and_validated() -> None:
    """The definitions are at the root, and null is accepted for a member that has a default."""

    def f(o: Outer) -> Outer:
        return o

    schema = schema_of(f)
    assert set(schema.params_json_schema["$defs"]) == {"Inner", "Outer"}
    assert schema.params_json_schema["properties"]["o"] == {"$ref": "#/$defs/Outer"}
    sent = {"o": {"inner": {"n": 1, "label": None}, "more": None, "parent": None}}
    Draft202012Validator(schema.params_json_schema).validate(sent)
    bound = schema.bind(sent)
    assert bound.values == {"o": Outer(inner=Inner(n=1))}
    assert bound.key() == '{"o":{"inner":{"label":"none","n":1},"more":[],"parent":null}}'


def test_every_fault_of_a_pydantic_model_is_named() -> None:
    """The message has the path of each fault, besides the faults of other parameters."""

    def f(o: Outer, x: int) -> None: ...

    message = fault(f, {"o": {"inner": {"n": "many"}, "more": [{"n": 1}, {}]}, "x": "y"})
    assert message == (
        "o.inner.n: Input should be a valid integer, unable to parse string as an integer; "
        "o.more[1].n: Field required; x: Expected `int`, got `str`"
    )


def test_pydantic_types_may_be_nested_and_constrained() -> None:
    """The types may be in lists, unions and defaults, and have constraints of pydantic's Field."""

    def f(
        many: list[Inner],
        either: int | Inner,
        count: Annotated[int, pydantic.Field(ge=1, description="at least one")],
        maybe: Inner | None = None,
        given: Inner = Inner(n=5),  # noqa: B008
    ) -> None: ...

    schema = schema_of(f, strict=False)
    assert schema.params_json_schema["properties"]["count"] == {
        "type": "integer",
        "minimum": 1,
        "description": "at least one",
    }
    assert schema.params_json_schema["properties"]["given"]["default"] == {"n": 5, "label": "none"}
    bound = schema.bind({"many": [{"n": 1}], "either": {"n": 2}, "count": 3})
    assert bound.values == {
        "many": [Inner(n=1)],
        "either": Inner(n=2),
        "count": 3,
        "maybe": None,
        "given": Inner(n=5),
    }
    assert '"given":{"label":"none","n":5}' in bound.key()
    assert "count: Input should be greater" in fault(f, {"many": [], "either": 1, "count": 0}, strict=False)


def test_pydantic_models_inside_other_classes_work() -> None:
    """msgspec hands such a model to pydantic, there and back."""

    @dataclasses.dataclass
    class Holder:
        inner: Inner

    def f(h: Holder) -> None: ...

    schema = schema_of(f)
    bound = schema.bind({"h": {"inner": {"n": 1, "label": None}}})
    assert bound.values == {"h": Holder(Inner(n=1))}
    assert bound.key() == '{"h":{"inner":{"label":"none","n":1}}}'
    assert fault(f, {"h": {"inner": {"label": 1}}}) == (
        "h.inner: .n Field required; .label Input should be a valid string"
    )


def test_two_classes_of_one_name_have_two_definitions() -> None:
    """The class of msgspec keeps the name, and references follow."""
    ours, theirs = Inner, msgspec.defstruct("Inner", [("z", int)])

    def f(a: Any, b: Any) -> None: ...

    f.__annotations__ = {"a": theirs, "b": list[Outer]}
    schema = schema_of(f)
    assert set(schema.params_json_schema["$defs"]) == {"Inner", "Inner_2", "Outer"}
    sent = {"a": {"z": 1}, "b": [{"inner": {"n": 1, "label": "x"}, "more": [], "parent": None}]}
    Draft202012Validator(schema.params_json_schema).validate(sent)
    assert schema.bind(sent).values == {"a": theirs(1), "b": [Outer(inner=ours(n=1, label="x"))]}


def test_a_discriminated_union_of_pydantic_models_is_strict_too() -> None:
    """`oneOf` becomes `anyOf`, nulls are dropped in the right branch."""

    class A(pydantic.BaseModel):
        kind: Literal["a"]
        n: int = 1

    class B(pydantic.BaseModel):
        kind: Literal["b"]
        n: int | None = 2

    def f(x: Annotated[A | B, pydantic.Field(discriminator="kind")]) -> None: ...

    schema = schema_of(f)
    assert "oneOf" not in str(schema.params_json_schema)
    assert schema.bind({"x": {"kind": "a", "n": None}}).values == {"x": A(kind="a")}
    assert schema.bind({"x": {"kind": "b", "n": None}}).values == {"x": B(kind="b", n=None)}
    assert "discriminator" in str(schema_of(f, strict=False).params_json_schema)


def test_an_open_pydantic_model_is_not_strict() -> None:
    """The extra members are free keys, which strict mode refuses."""

    def f(x: Open) -> None: ...

    assert "parameter x is an object with free keys" in refused(f)
    assert schema_of(f, strict=False).bind({"x": {"n": 1, "m": 2}}).values["x"].m == 2


def test_what_pydantic_cannot_describe_is_named() -> None:
    """The error names the parameter, for a class or a field that pydantic has no JSON form for."""

    class Odd: ...

    def f(x: Inner | Odd) -> None: ...

    def g(x: Annotated[Callable[[], int], pydantic.Field()]) -> None: ...

    assert refused(f).startswith("Tool f: parameter x has a type without a JSON form, ")
    assert refused(g).startswith("Tool g: parameter x has a type without a JSON form, ")


def test_pydantic_is_never_imported() -> None:
    """An application without it doesn't pay for it, and faults are found without it."""
    program = """
        import sys, attrs
        from agentloop._schema.function_schema import function_schema
        from agentloop.exceptions import ModelBehaviorError

        @attrs.define
        class P:
            n: int = attrs.field(validator=lambda *_: {}["k"])

        def f(a: int, p: P) -> int:
            return a

        schema = function_schema(f, context_types=())
        try:
            schema.bind({"a": "x", "p": {"n": 1}})
        except ModelBehaviorError as error:
            print(error)
        assert "pydantic" not in sys.modules
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Arguments of tool f don't fit: a: Expected `int`, got `str`; p: KeyError(")


def test_bound_arguments_are_a_value() -> None:
    """Equal arguments make equal values."""
    schema = schema_of(plain)
    assert schema.bind({"a": 1}) == schema.bind({"a": 1, "b": None})
    assert isinstance(schema.bind({"a": 1}), BoundArguments)


def test_arguments_that_are_their_own_values_need_no_second_dict() -> None:
    """Texts and numbers are, given in the order of the signature; a default, a conversion or `/` makes another dict."""

    def find(name: str, most: float) -> None:
        """Find."""

    def get(name: str, /) -> None:
        """Get."""

    schema = schema_of(find)
    own = {"name": "a", "most": 2.5}
    assert schema.bind(own).values is own
    for sent in ({"most": 2.5, "name": "a"}, {"name": "a", "most": 2}):
        bound = schema.bind(sent)
        assert list(bound.values.items()) == [("name", "a"), ("most", sent["most"])]
        assert bound.values is not sent
    assert schema_of(get).bind(own := {"name": "a"}).values is not own


def test_a_definition_that_is_renamed_takes_no_name_of_its_neighbours() -> None:
    """Two schemas have a definition of one name; the one that gives way has another that is called as it would be."""
    first = {"$ref": "#/$defs/A", "$defs": {"A": {"type": "string"}}}
    second = {
        "anyOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/A_2"}],
        "$defs": {"A": {"type": "integer"}, "A_2": {"type": "boolean"}},
    }
    defs: dict[str, Any] = {}
    hoist(first, defs)
    hoisted = hoist(second, defs)
    found = [defs[one["$ref"].removeprefix("#/$defs/")]["type"] for one in hoisted["anyOf"]]
    assert found == ["integer", "boolean"]
    assert defs["A"] == {"type": "string"}


def test_a_discriminator_follows_the_definitions_that_it_names() -> None:
    """Its mapping names members by their references; a renamed member has another one."""
    taken: dict[str, Any] = {"Cat": {"type": "string"}}
    union = {
        "oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}],
        "discriminator": {"propertyName": "kind", "mapping": {"cat": "#/$defs/Cat", "dog": "#/$defs/Dog"}},
        "$defs": {"Cat": {"type": "object"}, "Dog": {"type": "object"}},
    }
    hoisted = hoist(union, taken)
    assert list(hoisted["discriminator"]["mapping"].values()) == [one["$ref"] for one in hoisted["oneOf"]]
    assert hoisted["discriminator"]["mapping"]["cat"] != "#/$defs/Cat"
    assert hoisted["discriminator"]["propertyName"] == "kind"
