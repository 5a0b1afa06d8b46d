"""Parameters as people write them, and arguments as models write them: the habits of other libraries and providers."""

from __future__ import annotations

import abc
import collections
import dataclasses
import datetime as dt
import enum
import functools
import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict

import attrs
import msgspec
import pydantic
import pytest
import typing_extensions
from hypothesis import given
from hypothesis import strategies as st

from agentloop import FunctionTool, tool
from agentloop._schema.function_schema import FunctionSchema
from agentloop._schema.leniency import reread
from agentloop._schema.output_schema import typed_output
from agentloop.exceptions import ModelBehaviorError, UserTypeError
from agentloop.tools import PythonBody


def schema_of(made: FunctionTool) -> FunctionSchema:
    assert isinstance(made.body, PythonBody)
    return made.body.schema


def take(hint: Any, *, strict: bool = False, **options: Any) -> FunctionTool:
    """Return a tool with one parameter `x` of type *hint*."""

    def f(x: Any) -> None:
        """Take."""

    f.__annotations__ = {"x": hint}
    return tool(f, strict_mode=strict, **options)


def bound(hint: Any, value: Any, **options: Any) -> Any:
    """Return what a tool with a parameter of type *hint* receives for the JSON *value*."""
    return schema_of(take(hint)).bind({"x": value}, **options).values["x"]


def shown(made: FunctionTool, name: str = "x") -> dict[str, Any]:
    """Return what the model is shown of a parameter."""
    found: dict[str, Any] = made.params_json_schema["properties"][name]
    return found


# ------------------------------------------------------------------------------------- words beside a type


SEATS = "How many seats"


@pytest.mark.parametrize(
    "hint",
    [
        Annotated[int, SEATS],
        Annotated[int | None, SEATS],
        Annotated[int, SEATS] | None,
        Annotated[list[int], SEATS],
        Annotated[int, SEATS, msgspec.Meta(ge=1)],
        Annotated[int, msgspec.Meta(description=SEATS)],
        Annotated[int, pydantic.Field(description=SEATS)],
        Annotated[int, SEATS, pydantic.Field(ge=1)],
        Annotated[int, typing_extensions.Doc(SEATS)],
    ],
    ids=str,
)
@pytest.mark.parametrize("strict", [False, True])
def test_words_in_annotated_are_the_description(hint: Any, strict: bool) -> None:
    """They stand at the parameter itself, wherever in the annotation they were written."""
    assert shown(take(hint, strict=strict))["description"] == SEATS


def test_words_of_a_field_count_more_than_those_beside_it_and_these_more_than_the_docstring() -> None:
    """The nearer to the type, the more they count."""

    @tool
    def f(
        a: Annotated[int, "beside"],
        b: Annotated[int, "beside", pydantic.Field(description="field")],
        *c: Annotated[int, "rest"],
    ) -> None:
        """Do.

        Args:
            a: docstring
            b: docstring
        """

    assert [shown(f, name)["description"] for name in "abc"] == ["beside", "field", "rest"]


class InTypedDict(TypedDict):
    seats: Annotated[int | None, SEATS]
    spot: NotRequired[Annotated[Point, SEATS]]


@dataclasses.dataclass
class InDataclass:
    seats: Annotated[int, SEATS]
    spot: Annotated[Point, SEATS] | None = None


@attrs.define
class InAttrs:
    seats: Annotated[int, SEATS]
    spot: Annotated[Point | None, typing_extensions.Doc(SEATS)] = None


class InStruct(msgspec.Struct, rename="camel"):
    seats: Annotated[int, msgspec.Meta(description=SEATS), "less near"]
    spot: Annotated[Point, SEATS]


class InTuple(NamedTuple):
    seats: Annotated[int, SEATS]
    spot: Annotated[Point, SEATS]


@pytest.mark.parametrize("cls", [InTypedDict, InDataclass, InAttrs, InStruct, InTuple])
@pytest.mark.parametrize("strict", [False, True])
def test_words_beside_the_type_of_a_field_are_its_description(cls: Any, strict: bool) -> None:
    """In every kind of class, and of one field only: the class of another is described by itself."""
    schema = take(list[cls], strict=strict).params_json_schema
    made = schema["$defs"]
    members = list(made[cls.__name__].get("properties", {}).values()) or made[cls.__name__].get("prefixItems", [])
    assert [member.get("description") for member in members] == (
        [] if (cls, strict) == (InTuple, True) else [SEATS] * 2
    )
    assert "description" not in made["Point"]
    assert not strict or list(refused_keywords(schema)) == []


def test_a_nullable_union_is_not_wrapped_in_another() -> None:
    """The default None makes a parameter nullable; one that is already stays as it is."""

    @tool(strict_mode=False)
    def f(x: Annotated[str | None, "words"] = None) -> None:
        """Do."""

    assert shown(f)["anyOf"] == [{"type": "string"}, {"type": "null"}]


# ------------------------------------------------------------------------------------- pydantic's Field


def test_a_field_as_the_default_is_the_default_the_bound_and_the_words() -> None:
    """`x: int = Field(default=3, ge=0, description=…)`, as FastAPI reads it."""

    @tool(strict_mode=False)
    def f(x: int = pydantic.Field(default=3, ge=0, description="How deep")) -> None:
        """Do."""

    assert shown(f) == {"type": "integer", "minimum": 0, "description": "How deep", "default": 3}
    assert schema_of(f).bind({}).values == {"x": 3}
    with pytest.raises(ModelBehaviorError, match="greater than or equal to 0"):
        schema_of(f).bind({"x": -1})


def test_a_field_without_a_default_is_required() -> None:
    """Also where it is written in the place of a default."""

    @tool
    def f(x: int = pydantic.Field(..., description="words"), y: int = pydantic.Field(description="more")) -> None:
        """Do."""

    assert f.params_json_schema["required"] == ["x", "y"]
    with pytest.raises(ModelBehaviorError, match="missing: x, y"):
        schema_of(f).bind({})


def test_a_default_factory_makes_a_value_for_each_call() -> None:
    """What one call appends, the next one must not find."""

    @tool(strict_mode=False)
    def f(x: list[str] = pydantic.Field(default_factory=list)) -> None:  # noqa: B008
        """Do."""

    first, second = (schema_of(f).bind({}).values["x"] for _ in range(2))
    assert first == second == []
    assert first is not second


def test_the_alias_of_a_field_is_the_name_for_the_model() -> None:
    """A parameter can't be called `from`; its argument can, in the schema, in arguments and in faults."""

    @tool
    def f(to: str, from_: Annotated[str, pydantic.Field(alias="from")]) -> str:
        """Do."""
        return f"{from_} to {to}"

    assert list(f.params_json_schema["properties"]) == ["to", "from"]
    assert schema_of(f).bind({"to": "Oslo", "from": "Rome"}).call(lambda **given: given) == {
        "to": "Oslo",
        "from_": "Rome",
    }
    with pytest.raises(ModelBehaviorError, match="missing: from"):
        schema_of(f).bind({"to": "Oslo"})


# ------------------------------------------------------------------------------------- paths


@pytest.mark.parametrize(
    ("hint", "words"),
    [
        (collections.deque[int], r"write list\[…\] in place of deque"),
        (Iterable[int], r"write list\[…\] in place of Iterable"),
        (collections.OrderedDict[str, int], r"write dict\[…\] in place of OrderedDict"),
    ],
)
def test_a_container_without_a_json_form_is_refused_with_what_to_write(hint: Any, words: str) -> None:
    """A class of the standard library can't be made a dataclass."""
    with pytest.raises(UserTypeError, match=words):
        take(hint)


class Place(msgspec.Struct):
    folder: Path
    files: list[PurePosixPath]


@pytest.mark.parametrize(
    ("hint", "value", "wanted"),
    [
        (Path, "/a/b", Path("/a/b")),
        (PurePosixPath, "a", PurePosixPath("a")),
        (Path | None, None, None),
        (list[Path], ["a"], [Path("a")]),
        (Place, {"folder": "a", "files": ["b"]}, Place(Path("a"), [PurePosixPath("b")])),
    ],
)
def test_a_path_is_its_text(hint: Any, value: Any, wanted: Any) -> None:
    """At the top and inside other types."""
    assert bound(hint, value) == wanted


def test_a_path_takes_no_other_value() -> None:
    """A number is no path; the fault says which parameter is wrong."""
    with pytest.raises(ModelBehaviorError, match=r"x: Expected `str`, got `int`"):
        bound(Path, 5)


# ------------------------------------------------------------------------------------- times and choices


class Level(enum.Enum):
    LOW = "low"
    HIGH = "high"
    A = "a"


@dataclasses.dataclass
class Slot:
    begins: dt.datetime
    at: dt.time | None = None
    level: Literal["z", "b"] = "b"


@pytest.mark.parametrize(
    ("hint", "form"), [(dt.datetime, "date-time"), (dt.time, "time"), (dt.date, "date"), (dt.timedelta, "duration")]
)
def test_a_time_has_its_format_in_the_schema(hint: Any, form: str) -> None:
    """Else the model can't know how to write it; also in lists, tuples, maps, unions and classes."""
    assert shown(take(hint)) == {"type": "string", "format": form}
    assert shown(take(list[hint]))["items"]["format"] == form
    assert shown(take(dict[str, hint]))["additionalProperties"]["format"] == form
    assert shown(take(hint | int | None))["anyOf"][0]["format"] == form
    assert shown(take(tuple[int, hint]))["prefixItems"][1]["format"] == form


def test_times_and_choices_within_a_class_are_as_declared() -> None:
    """msgspec sorts choices and leaves out the format of a time without a rule for its zone."""
    made = take(list[Slot] | None)
    members = made.params_json_schema["$defs"]["Slot"]["properties"]
    assert members["begins"]["format"] == "date-time"
    assert members["at"]["anyOf"][0] == {"type": "string", "format": "time"}
    assert members["level"]["enum"] == ["z", "b"]
    assert take(Level).params_json_schema["$defs"]["Level"]["enum"] == ["low", "high", "a"]
    assert shown(take(Literal["low", "medium", "high"]))["enum"] == ["low", "medium", "high"]


TIMES = [
    (dt.time, "19:30", dt.time(19, 30)),
    (dt.datetime, "2024-05-01T10:00", dt.datetime(2024, 5, 1, 10)),
    (dt.datetime, "2024-05-01 10:00:00", dt.datetime(2024, 5, 1, 10)),
    (dt.datetime, "2024-05-01", dt.datetime(2024, 5, 1)),
    (dt.datetime, "2024-05-01T10:00+02:00", dt.datetime(2024, 5, 1, 10, tzinfo=dt.timezone(dt.timedelta(hours=2)))),
    (dt.date, "2024-05-01T00:00:00", dt.date(2024, 5, 1)),
    (dt.timedelta, "PT1H30M", dt.timedelta(minutes=90)),
    (list[dt.time], ["19:30"], [dt.time(19, 30)]),
    (dt.time | None, "19:30", dt.time(19, 30)),
    (Slot, {"begins": "2024-05-01", "at": "9:30", "level": "z"}, None),
    (Slot, {"begins": "2024-05-01", "at": "09:30"}, Slot(dt.datetime(2024, 5, 1), dt.time(9, 30))),
    (dt.date, "2024-05-01T10:00:00", None),
    (dt.time, "half past", None),
    (Annotated[dt.datetime, msgspec.Meta(tz=False)], "2024-05-01 10:00", dt.datetime(2024, 5, 1, 10)),
    (Annotated[dt.time, msgspec.Meta(tz=False)], "19:30", dt.time(19, 30)),
    (Annotated[dt.datetime, msgspec.Meta(tz=True)], "2024-05-01 10:00", None),
    (list[dt.date | int], ["2024-05-01T00:00", "20240502", 1.0], [dt.date(2024, 5, 1), dt.date(2024, 5, 2), 1]),
]


@pytest.mark.parametrize(("hint", "text", "wanted"), TIMES, ids=str)
def test_a_time_is_what_fromisoformat_reads(hint: Any, text: Any, wanted: Any) -> None:
    """Strict providers write RFC 3339; people and other models don't. None: it has no meaning, or more than one."""
    if wanted is None:
        with pytest.raises(ModelBehaviorError, match="don't fit"):
            bound(hint, text)
    else:
        assert bound(hint, text) == wanted


# ------------------------------------------------------------------------------------- integral floats, JSON in strings


class Point(msgspec.Struct):
    x: int
    y: float = 0.0


class Pair(pydantic.BaseModel):
    x: int


class Kept(msgspec.Struct):
    at: dt.datetime | None
    n: int | Literal["all"]


@pytest.mark.parametrize(
    ("hint", "value", "wanted"),
    [
        (int, 5.0, 5),
        (int, 1e3, 1000),
        (list[int], [1.0, 2], [1, 2]),
        (int | None, 5.0, 5),
        (int | str, 5.0, 5),
        (dict[str, int], {"a": 2.0}, {"a": 2}),
        (Point, {"x": 1.0}, Point(1)),
        (int, "5", 5),
        (bool, "true", True),
        (float, "1.5", 1.5),
        (list[int], "[1, 2]", [1, 2]),
        (list[int], ["1", "2"], [1, 2]),
        (dict[str, int], '{"a": 1}', {"a": 1}),
        (Point, '{"x": "1", "y": 2}', Point(1, 2.0)),
        (Pair, '{"x": 1}', Pair(x=1)),
        (list[Pair], '[{"x": "1"}]', [Pair(x=1)]),
        (int | None, "null", None),
        (int | None, "None", None),
        (bool, "True", True),
        (bool, " FALSE ", False),
        (int | Literal["auto"], "5", 5),
        (Literal["a", None], "null", None),
        (Level | None, "None", None),
        (dt.date | None, "null", None),
        (list[uuid.UUID | None], ["null"], [None]),
        (Kept | None, '{"at": "None", "n": "7"}', Kept(None, 7)),
    ],
    ids=str,
)
def test_a_value_is_what_it_means(hint: Any, value: Any, wanted: Any) -> None:
    """An integral float is an integer; JSON in a string is read where no string fits. The type is exact."""
    found = bound(hint, value)
    assert found == wanted
    assert type(found) is type(wanted)


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        *[(int, 5.5), (int, "five"), (int, "5.5"), (bool, "yes"), (list[int], "1, 2"), (int, '"5"'), (int, True)],
        *[(str, 5), (str, None), (int, "1,000"), (int, "None"), (int | None, ""), (bool, 1), (list[int], "None")],
    ],
    ids=str,
)
def test_what_means_nothing_else_is_a_fault_of_what_was_written(hint: Any, value: Any) -> None:
    """The fault is about the value that the model wrote, which is what it can mend."""
    with pytest.raises(ModelBehaviorError, match="x: Expected"):
        bound(hint, value)


@pytest.mark.parametrize("hint", [str, str | int, Any, Literal["5", "6"], int | Literal["5"], Decimal | None], ids=str)
def test_a_string_that_fits_is_never_read(hint: Any) -> None:
    """Only where no string is admitted can a string mean something else."""
    assert str(bound(hint, "5")) == "5"
    assert isinstance(bound(hint, "5"), str | Decimal)


class Exact(pydantic.BaseModel):
    """A strict model: in Python it takes no text for a date."""

    model_config = pydantic.ConfigDict(strict=True)
    at: dt.datetime
    level: Level = Level.LOW
    pair: tuple[int, uuid.UUID] | None = None


class Visit(msgspec.Struct):
    exact: Exact


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_strict_model_takes_what_json_has(wrapped: bool) -> None:
    """JSON has no date, no enum and no tuple; the fault is only about what is wrong in JSON."""
    hint = Visit if wrapped else Exact
    value = {"at": "2024-05-01T10:00:00", "level": "a", "pair": [1, str(uuid.UUID(int=7))]}
    wanted = Exact(at=dt.datetime(2024, 5, 1, 10), level=Level.A, pair=(1, uuid.UUID(int=7)))
    assert bound(hint, {"exact": value} if wrapped else value) == (Visit(wanted) if wrapped else wanted)
    if not wrapped:
        assert typed_output(Exact).parse(json.dumps(value)) == wanted
        with pytest.raises(ModelBehaviorError, match=r"don't fit: x\.level: Input should be 'low', 'high' or 'a'$"):
            bound(hint, {**value, "level": "mid"})


def test_a_type_with_checks_of_python_objects_still_takes_them() -> None:
    """A validator before it makes the object; pydantic's own reading of JSON would refuse that."""
    shelf = Annotated[pydantic.InstanceOf[Shelf], pydantic.BeforeValidator(Shelf), pydantic.WithJsonSchema({})]
    assert bound(shelf, "A").name == "A"


def test_a_setting_keeps_strings_as_they_are() -> None:
    """`JsonLimits(read_strings=False)`; times and integral floats stay readable."""
    with pytest.raises(ModelBehaviorError, match="x: Expected `int`, got `str`"):
        bound(int, "5", read_strings=False)
    assert bound(int, 5.0, read_strings=False) == 5


def test_a_typed_answer_is_read_in_the_same_way() -> None:
    """An answer is JSON of a model as well."""
    assert typed_output(Point).parse('{"x": "1", "y": 2.0}') == Point(1, 2.0)
    assert typed_output(int).parse('{"response": 5.0}') == 5
    assert typed_output(dt.time).parse('{"response": "19:30"}') == dt.time(19, 30)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
HINTS: list[Any] = [
    *(int, float, bool, str, list[int], dict[str, float], int | None, Point, Slot, tuple[int, str], Any),
    *(dt.datetime, list[Point] | str, Pair),
]


@given(JSON, st.sampled_from(HINTS))
def test_a_value_that_fits_is_never_changed(value: Any, hint: Any) -> None:
    """Reading a value again gives that value, wherever it fitted at first."""
    schema = schema_of(take(hint))
    try:
        before = schema.bind({"x": value}, read_strings=False).values["x"]
    except ModelBehaviorError:
        return
    assert schema.bind({"x": value}).values["x"] == before


@given(JSON, st.sampled_from([True, {}, {"type": "integer"}, {"type": "string", "format": "date-time"}, {"enum": [1]}]))
def test_no_value_and_no_schema_breaks_the_reader(value: Any, schema: Any) -> None:
    """It returns a value for each one, and the same where it is applied to what it returned."""
    once = reread(value, schema, {})
    if not isinstance(value, str | list | dict):
        assert reread(once, schema, {}) == once


# ------------------------------------------------------------------------------------- strict mode


class Spot(NamedTuple):
    lat: float
    name: str


class Order(pydantic.BaseModel):
    link: pydantic.HttpUrl
    tags: set[str]
    folder: Path
    code: Annotated[str, pydantic.Field(min_length=2, max_length=9, examples=["ab"])]


TAKEN = {
    *("type", "enum", "const", "anyOf", "$ref", "$defs", "title", "description", "properties", "required"),
    *("additionalProperties", "items", "minItems", "maxItems", "pattern", "format", "multipleOf"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
}
FORMATS = {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}


def refused_keywords(schema: Any) -> Iterator[str]:
    """Yield each keyword of *schema* that providers refuse in strict mode."""
    if isinstance(schema, list):
        for member in schema:
            yield from refused_keywords(member)
    if not isinstance(schema, dict):
        return
    for keyword, value in schema.items():
        if keyword in ("properties", "$defs"):
            for member in value.values():
                yield from refused_keywords(member)
        elif keyword not in TAKEN or (keyword == "format" and value not in FORMATS):
            yield f"{keyword}: {value}"
        elif keyword not in ("enum", "const"):
            yield from refused_keywords(value)


STRICT = [
    *(pydantic.HttpUrl, set[str], frozenset[int], tuple[float, float], tuple[int, str], Spot, Decimal, bytes, Order),
    *(Path, dt.datetime, Annotated[str, msgspec.Meta(min_length=2, pattern="a+")], list[Spot] | None, Slot, Level),
    Annotated[list[int], msgspec.Meta(min_length=1, max_length=3)],
]


@pytest.mark.parametrize("hint", STRICT, ids=str)
def test_a_strict_schema_has_only_what_providers_take(hint: Any) -> None:
    """One other keyword makes them refuse every request of the agent, also those without a call of the tool."""
    made = take(hint, strict=True)
    assert made.strict_mode
    assert list(refused_keywords(made.params_json_schema)) == []
    output = typed_output(hint)
    assert not output.schema.strict or list(refused_keywords(output.schema.schema)) == []


@pytest.mark.parametrize(
    ("hint", "words"),
    [
        (pydantic.HttpUrl, "format: uri"),
        (set[str], "no member twice"),
        (bytes, "encoded as base64"),
        (tuple[int, str], "one after the other: integer, string"),
        (Annotated[str, msgspec.Meta(min_length=2, description="A code.")], "A code. at least 2 characters"),
    ],
    ids=str,
)
def test_what_a_strict_schema_cannot_say_is_said_in_words(hint: Any, words: str) -> None:
    """The model is still told; and the conversion still checks."""
    assert words in shown(take(hint, strict=True))["description"]


def test_a_tuple_in_strict_mode_is_checked_when_it_is_read() -> None:
    """Its schema admits its members in any order."""
    schema = schema_of(take(tuple[int, str], strict=True))
    assert schema.bind({"x": [1, "a"]}).values == {"x": (1, "a")}
    with pytest.raises(ModelBehaviorError, match=r"x\[0\]: Expected `int`"):
        schema.bind({"x": ["a", "a"]})


@pytest.mark.parametrize("keyword", ["not", "if", "dependentRequired", "contains"])
def test_what_cannot_be_said_in_words_has_no_strict_schema(keyword: str) -> None:
    """The tool is refused when it is made, and the text says what to do."""
    from agentloop import JsonSchema

    with pytest.raises(UserTypeError, match=rf"a schema with '{keyword}'.*strict_mode=False"):
        take(Annotated[str, JsonSchema({"type": "string", keyword: {}})], strict=True)


# ------------------------------------------------------------------------------------- methods and generators


class Shelf:
    """Has tools of all kinds."""

    def __init__(self, name: str) -> None:
        self.name = name

    @tool
    def find(self, title: str) -> str:
        """Find a book."""
        return f"{title} is in {self.name}"

    @tool(name="count_books")
    async def count(self) -> str:
        """Count."""
        return self.name

    @tool
    @classmethod
    def make(cls, name: str) -> str:
        """Make a shelf."""
        return cls(name).name

    @tool
    @staticmethod
    def close() -> str:
        """Close."""
        return "closed"


async def test_a_method_is_a_tool_of_its_instance() -> None:
    """Bare and with options, sync and async; of a class method its class is the instance."""
    shelf = Shelf("A")
    assert await shelf.find.run_body({"title": "Emma"}) == "Emma is in A"
    assert (shelf.count.name, await shelf.count.run_body()) == ("count_books", "A")
    assert await Shelf.make.run_body({"name": "B"}) == "B"
    assert await Shelf.close.run_body() == await shelf.close.run_body() == "closed"
    assert list(shelf.find.params_json_schema["properties"]) == ["title"]


def test_a_method_without_its_instance_says_so() -> None:
    """An agent takes tools; the text names the way to one."""
    from agentloop import Agent

    with pytest.raises(UserTypeError, match=r"tool only of an instance: Shelf\(…\)\.find"):
        Agent("a", tools=[Shelf.find])


class Deeper(Shelf):
    """Overrides a tool, and takes the other ones as they are."""

    @tool
    def find(self: Deeper, title: str, deep: bool = False) -> str:
        """Find a book, or not."""
        return f"{title} (deep: {deep}); {super().find(title)}"

    def _send(self, channel: str, text: str) -> str:
        """Send a text."""
        return f"{self.name} by {channel}: {text}"

    mail = tool(functools.partialmethod(_send, "mail"))
    post = tool(functools.partialmethod(_send, "post"), name="by_post")


async def test_a_tool_can_be_inherited_overridden_and_made_of_a_partial_method() -> None:
    """As methods can; a partial method has the name that it has in its class."""
    shelf = Deeper("C")
    assert await shelf.find.run_body({"title": "Emma"}) == "Emma (deep: False); Emma is in C"
    assert list(shelf.find.params_json_schema["properties"]) == ["title", "deep"]
    assert Shelf.find(shelf, "Emma") == "Emma is in C"
    assert shelf.count.name == "count_books"
    assert (shelf.mail.name, shelf.mail.description) == ("mail", "Send a text.")
    assert await shelf.mail.run_body({"text": "hi"}) == "C by mail: hi"
    assert await shelf.post.run_body({"text": "hi"}) == "C by post: hi"
    assert shelf.post.name == "by_post"


def _as_dataclass(root: type) -> type:
    return dataclasses.dataclass(root)


def _as_attrs(root: type) -> type:
    return attrs.define(root)


def _as_pydantic(root: type) -> type:
    return type(
        root.__name__,
        (pydantic.BaseModel,),
        {name: member for name, member in vars(root).items() if name not in ("__dict__", "__weakref__")},
    )


@pytest.mark.parametrize("make", [_as_dataclass, _as_attrs, _as_pydantic])
async def test_a_method_of_a_class_with_fields_is_a_tool_and_no_field(make: Callable[[type], Any]) -> None:
    """Toolkits are often dataclasses or pydantic's models."""

    class Kit:
        root: str

        @tool
        def read(self, name: str) -> str:
            """Read."""
            return f"{self.root}/{name}"

    kit = make(Kit)(root="r")
    assert await kit.read.run_body({"name": "a"}) == "r/a"


def test_an_abstract_tool_stays_abstract() -> None:
    """In both orders of the decorators."""

    class Above(abc.ABC):
        @tool
        @abc.abstractmethod
        def find(self, title: str) -> str:
            """Find."""

    class Below(abc.ABC):
        @abc.abstractmethod
        @tool
        def find(self, title: str) -> str:
            """Find."""

    for cls in (Above, Below):
        with pytest.raises(TypeError, match=r"abstract method '?find"):
            cls()


def test_another_first_word_than_self_is_refused_with_what_to_write() -> None:
    """`@classmethod` above `@tool`, or an instance with another name: a method or not?"""
    with pytest.raises(UserTypeError, match=r"cls has no annotation\. In a method the instance is called self"):

        class Wrong:
            @classmethod
            @tool
            def make(cls, name: str) -> str:
                """Make."""
                return name

    with pytest.raises(UserTypeError, match="'find' is a tool already"):
        tool(Shelf.__dict__["find"])


def _sync_steps(n: int) -> Iterator[int]:
    yield n


async def _async_steps(n: int) -> Any:
    yield n


@pytest.mark.parametrize("fn", [_sync_steps, _async_steps])
def test_a_generator_function_is_refused_when_the_tool_is_made(fn: Callable[..., Any]) -> None:
    """Else its output would be `<generator object …>`, and the call a success."""
    with pytest.raises(UserTypeError, match=r"generator function.*return a list"):
        tool(fn)


# ------------------------------------------------------------------------------------- fences around an answer


ANSWER = '{"x": 1, "y": 2}'


@pytest.mark.parametrize(
    "text",
    [
        f"```json\n{ANSWER}\n```",
        f"```\n{ANSWER}\n```",
        f"Here it is:\n```json\n{ANSWER}\n```\nAnything else?",
        f"<think>x is 1 … ```\n1\n```</think>\n{ANSWER}",
        f"<think>so</think>```JSON\n{ANSWER}```",
        f"~~~json\n{ANSWER}\n~~~",
        f"````json\r\n{ANSWER}\r\n````",
        f"```application/json\n{ANSWER}\n```",
        f'```{{.json title="a"}}\n\n{ANSWER}\n\n```',
        f"```json {ANSWER} ```",
        f"Here:\n```json\n{ANSWER}",
        f"so x is 1\n</think>\n\n{ANSWER}",
        f"<thinking>a {{1}}</thinking> <reasoning>b</reasoning>\n```json\n{ANSWER}\n```",
        f"\ufeff{ANSWER}",
        f"\n\n {ANSWER} \n",
    ],
)
def test_a_fence_around_a_typed_answer_is_taken_off(text: str) -> None:
    """Small models, and models without strict outputs, write one."""
    assert typed_output(Point).parse(text) == Point(1, 2.0)


@pytest.mark.parametrize("quotes", ["```", "~~~"])
def test_a_fence_within_a_text_of_the_answer_ends_nothing(quotes: str) -> None:
    """An answer that holds code, in a fence of its own."""
    answer = {"code": f"{quotes}py\nprint('{quotes}')\n{quotes}"}
    assert typed_output(dict[str, str]).parse(f"Done:\n```json\n{json.dumps(answer)}\n```") == answer


@pytest.mark.parametrize("text", ["`" * 900_000, "```\n" * 200_000, "</think>" * 100_000, "<think>" * 100_000 + '"'])
def test_a_hostile_answer_is_refused_in_linear_work(text: str) -> None:
    """A quadratic search would take hours."""
    with pytest.raises(ModelBehaviorError):
        typed_output(Point).parse(text)


TWO_MEANINGS = [
    *(f"```\n{ANSWER}\n```\n```\n{ANSWER}\n```", "```json\nno\n```", f"so {ANSWER}", f"{ANSWER}\n{ANSWER}"),
    *("<think>no answer</think>", f"{ANSWER} Hope that helps!", f"{ANSWER}\n```"),
]


@pytest.mark.parametrize("text", TWO_MEANINGS)
def test_an_answer_with_more_than_one_meaning_is_refused(text: str) -> None:
    """Two fences, or words around without one: which part is the answer?"""
    with pytest.raises(ModelBehaviorError, match="isn't valid JSON: at character"):
        typed_output(Point).parse(text)


def test_a_mapping_of_options_is_left_alone() -> None:
    """An open map takes any member: nothing in it is read as something else."""
    given: Mapping[str, Any] = {"a": "5", "b": [1.0]}
    assert bound(dict[str, Any], given) == given
