"""The application's own converter: its hooks decide, and what cattrs brings itself is as strict as msgspec."""

import collections.abc
import dataclasses
import datetime as dt
import decimal
import enum
import json
import subprocess
import sys
import typing
import uuid
from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple, NewType, TypedDict

import attrs
import cattrs
import msgspec
import pydantic
import pytest
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn, override
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.money import Money, money_converter

from agentloop import JsonSchema, OutputType
from agentloop._schema.conversion import Conversion, each_fault, find_faults, structure
from agentloop._schema.function_schema import FunctionSchema, function_schema
from agentloop._schema.output_schema import output_schema, typed_output
from agentloop.exceptions import ModelBehaviorError, UserTypeError

MONEY = JsonSchema({"type": "string", "pattern": "^[0-9]+ EUR$"})
Price = Annotated[Money, MONEY]
CONVERTER = money_converter()


def schema_of(fn: Callable[..., Any], **options: Any) -> FunctionSchema:
    return function_schema(fn, context_types=(), **options)


def fault(fn: Callable[..., Any], arguments: dict[str, Any], converter: Any = CONVERTER, **options: Any) -> str:
    """Return what is said to be wrong with *arguments*."""
    with pytest.raises(ModelBehaviorError) as caught:
        schema_of(fn, **options).bind(arguments, converter)
    return str(caught.value).partition("don't fit: ")[2]


# ---------------------------------------------------------------------------------- types of the application


@dataclasses.dataclass
class Order:
    total: Price
    items: list[Price] = dataclasses.field(default_factory=list)
    note: str = ""


def pay(amount: Price, order: Order | None = None, tips: tuple[Price, ...] = (), *more: Price) -> list[Money]:
    """Pay."""
    return [amount]


def test_a_type_that_only_the_converter_knows_takes_its_schema_from_the_mark() -> None:
    """The schema stands wherever the type does: in a parameter, a container, a field of a class."""
    schema = schema_of(pay, strict=False).params_json_schema
    given = {"type": "string", "pattern": "^[0-9]+ EUR$"}
    assert schema["properties"]["amount"] == given
    assert schema["properties"]["tips"]["items"] == given
    assert schema["$defs"]["Order"]["properties"]["total"] == given
    assert schema["$defs"]["Order"]["properties"]["items"]["items"] == given
    assert schema_of(pay).params_json_schema["properties"]["amount"] == given


def test_the_converters_hooks_read_arguments_at_any_depth() -> None:
    """The body gets the application's own objects, with the defaults that are not sent."""
    bound = schema_of(pay).bind(
        {"amount": "5 EUR", "order": {"total": "1 EUR", "items": ["2 EUR"]}, "more": ["3 EUR"]}, CONVERTER
    )
    assert bound.values == {
        "amount": Money(500),
        "order": Order(Money(100), [Money(200)]),
        "tips": (),
        "more": (Money(300),),
    }
    assert bound.args == (Money(500), Order(Money(100), [Money(200)]), (), Money(300))


def test_equal_calls_have_one_key_by_the_converters_own_form() -> None:
    """The key of a call is made of what the hooks write, not of what the model sent."""

    def f(amount: Price, **rest: Price) -> None: ...

    schema = schema_of(f, strict=False)
    sent = {"amount": "05 EUR", "b": "1 EUR"}
    assert schema.bind(sent, CONVERTER).key() == '{"*b":"1 EUR","amount":"5 EUR"}'
    assert schema.bind({"amount": "5 EUR", "b": "01 EUR"}, CONVERTER).key() == schema.bind(sent, CONVERTER).key()


def test_every_fault_has_its_path() -> None:
    """Faults of the application's hooks and of the strict ones stand side by side."""
    sent = {"amount": 5, "order": {"total": "x", "items": ["1 EUR", None], "note": 1}, "tips": "1 EUR"}
    assert fault(pay, sent).split("; ") == [
        "amount: ValueError(an amount in EUR is needed)",
        "order.total: ValueError(an amount in EUR is needed)",
        "order.items[1]: ValueError(an amount in EUR is needed)",
        "order.note: Expected `str`, got `int`",
        "tips: Expected `array`, got `str`",
    ]


def test_every_fault_of_plain_types_is_named_without_a_converter_too() -> None:
    """Where msgspec names the first fault, the model is told all, up to ten."""

    @attrs.define
    class Point:
        x: int
        y: float

    def f(points: list[Point], by_name: dict[str, Point]) -> None: ...

    sent = {"points": [{"x": "a", "y": 1}, {"x": 1}], "by_name": {"a": {"x": 1, "y": 2}, "b": 5}}
    assert fault(f, sent, None, strict=False).split("; ") == [
        "points[0].x: Expected `int`, got `str`",
        "points[1]: Object missing required field `y`",
        "by_name[...]: Expected `object`, got `int`",
    ]
    many = {"points": [{"x": "a", "y": 1}] * 13, "by_name": {}}
    assert fault(f, many, None, strict=False).endswith("points[9].x: Expected `int`, got `str`; 3 more don't fit")


def test_without_the_mark_the_tool_is_refused_by_a_sentence_that_names_both_remedies() -> None:
    """The converter isn't known when a tool is made; the schema is needed then."""

    def f(amounts: list[Money]) -> None: ...

    with pytest.raises(UserTypeError) as caught:
        schema_of(f)
    assert str(caught.value) == (
        "Tool f: parameter amounts has a type without a JSON form, list[MODULE.Money]: make "
        "Money a dataclass or an attrs class; or write Annotated[Money, JsonSchema({…})], "
        "and give the run a converter that knows the type, RunConfig(converter=…)"
    ).replace("MODULE", Money.__module__)


@pytest.mark.parametrize(
    ("converter", "needed"),
    [(None, "a converter"), (cattrs.Converter(), "a structure hook for Money in the converter")],
)
def test_a_run_whose_converter_lacks_the_type_is_a_mistake_of_the_application(converter: Any, needed: str) -> None:
    """It is not the model's fault, so no argument error."""
    wanted = f"parameter amount is of type Money: expected {needed}"
    with pytest.raises(UserTypeError, match=wanted):
        schema_of(pay).check_converter(converter)
    with pytest.raises(UserTypeError, match=wanted):
        schema_of(pay).bind({"amount": "5 EUR"}, converter)
    with pytest.raises(UserTypeError, match=f"is of type Money: expected {needed}"):
        typed_output(list[Price]).using(converter)
    schema_of(pay).check_converter(CONVERTER)


def test_the_mark_replaces_the_schema_of_a_known_type_too() -> None:
    """Words of `msgspec.Meta` beside the mark stay, and the given mapping can change without harm."""
    words = {"type": "integer", "minimum": 0}
    unix = JsonSchema(words)
    words["type"] = "nothing"

    def f(
        when: Annotated[dt.datetime, unix, msgspec.Meta(description="seconds")],
        mail: Annotated[str, JsonSchema({"type": "string", "format": "email"})] | None = None,
    ) -> None: ...

    properties = schema_of(f, strict=False).params_json_schema["properties"]
    assert properties["when"] == {"type": "integer", "minimum": 0, "description": "seconds"}
    assert properties["mail"]["anyOf"][0] == {"type": "string", "format": "email"}
    converter = cattrs.Converter()
    converter.register_structure_hook(dt.datetime, lambda value, _: dt.datetime.fromtimestamp(value, dt.UTC))
    bound = schema_of(f).bind({"when": 0, "mail": "a@b"}, converter)
    assert bound.values == {"when": dt.datetime(1970, 1, 1, tzinfo=dt.UTC), "mail": "a@b"}


# ---------------------------------------------------------------------------------- outputs


def test_final_outputs_are_read_judged_and_written_by_the_converter() -> None:
    """A model's answer, a handler's value and the text for the history go the same way."""
    typed = typed_output(Order).using(CONVERTER)
    order = Order(Money(100), [Money(200)])
    text = '{"items": ["2 EUR"], "note": "", "total": "1 EUR"}'
    assert typed.parse(text) == order
    assert typed.dump(order) == text
    assert typed.validate(order) is order
    assert typed.validate({"total": "1 EUR", "items": ["2 EUR"]}) == order
    with pytest.raises(ModelBehaviorError, match=r"\$\.total: ValueError\(an amount.*; \$\.note: Expected `str`"):
        typed.parse('{"total": 5, "note": 5}')
    with pytest.raises(UserTypeError, match=r"\$: Object missing required field `total`"):
        typed.validate({})


def test_a_wrapped_output_may_be_of_the_applications_type() -> None:
    """A type that is no object in JSON stands under one key."""
    typed = typed_output(OutputType(list[Price])).using(CONVERTER)
    assert typed.parse('{"response": ["5 EUR"]}') == [Money(500)]
    assert typed.dump([Money(500)]) == '{"response": ["5 EUR"]}'
    assert output_schema(str) is None


def test_an_output_of_plain_types_needs_no_converter() -> None:
    """The output of an agent is adapted once per converter."""
    plain = typed_output(list[int])
    assert plain.using(None) is plain
    assert plain.using(CONVERTER) is plain.using(CONVERTER)
    assert plain.using(CONVERTER).parse('{"response": [1]}') == [1]


def test_a_stored_result_is_made_what_the_function_returns() -> None:
    """A result that doesn't fit, as its function has changed, stays what it was, like that of plain types."""

    def f() -> list[Money]:
        return []

    def g() -> "Unknown":  # type: ignore[name-defined]  # noqa: F821
        """Return anything."""

    def h() -> int:
        return 1

    def k(): ...  # type: ignore[no-untyped-def]

    assert schema_of(f).restore(["5 EUR"], CONVERTER) == [Money(500)]
    assert schema_of(f).restore([5], CONVERTER) == [5]
    for fn in (g, h, k):
        assert schema_of(fn).restore(["5 EUR"], CONVERTER) == ["5 EUR"]


# ---------------------------------------------------------------------------------- whose hooks decide


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Kind(enum.Enum):
    A = "a"
    B = "b"


class Row(NamedTuple):
    n: int
    label: str = "x"


class Options(TypedDict, total=False):
    depth: typing.Required[int]
    kinds: list[Kind]


@attrs.define
class Leaf:
    n: int
    weight: float = 0.0


@dataclasses.dataclass
class Tree:
    leaf: Leaf
    children: "list[Tree]" = dataclasses.field(default_factory=list)
    by_level: dict[Level, float] | None = None


class Cat(msgspec.Struct, tag=True):
    lives: int = 9


class Dog(msgspec.Struct, tag=True):
    tricks: list[str]


class Model(pydantic.BaseModel):
    n: int


UserId = NewType("UserId", int)
LAX = cattrs.Converter()


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (int, "5"),
        (int, True),
        (int, 1.0),
        (float, "1"),
        (float, False),
        (str, 5),
        (bool, 1),
        (bytes, "?"),
        (Level, True),
        (Level, "1"),
        (Kind, "c"),
        (Literal[1], True),
        (list[str], "abc"),
        (list[int], {"1": 1}),
        (set[int], [1, "2"]),
        (tuple[int, str], [1]),
        (tuple[int, ...], [1, None]),
        (dict[str, int], [["a", 1]]),
        (dict[int, int], {"a": 1}),
        (collections.abc.Mapping[str, int], {"a": True}),
        (collections.abc.Sequence[int], "12"),
        (Leaf, [1]),
        (Leaf, "n"),
        (Leaf, {"n": "1"}),
        (Leaf, {}),
        (Tree, {"leaf": {"n": 1}, "children": [{"leaf": {"n": 1}, "children": [[]]}]}),
        (Tree, {"leaf": {"n": 1}, "by_level": {"3": 1.0}}),
        (Options, {"depth": "1"}),
        (Options, {}),
        (Options, []),
        (Row, {"n": 1}),
        (Row, [1, "a", 2]),
        (Row, ["1"]),
        (Cat | Dog, {"type": "Bird"}),
        (Cat | Dog | None, 5),
        (Cat, {"type": "Cat", "lives": "9"}),
        (int | str, None),
        (int | None, "1"),
        (int | float, True),
        (None, 0),
        (uuid.UUID, "no"),
        (uuid.UUID, 5),
        (decimal.Decimal, "no"),
        (dt.datetime, 5),
        (dt.date, "yesterday"),
        (UserId, "7"),
        (Annotated[int, msgspec.Meta(ge=3)], 2),
        (Annotated[list[Leaf], msgspec.Meta(min_length=1)], []),
        (Annotated[dict[str, Leaf], msgspec.Meta(max_length=1)], {"a": {"n": 1}, "b": {"n": 1}}),
        (Annotated[str, msgspec.Meta(pattern="^a")], "b"),
        (list[Model], [{"n": "x"}]),
    ],
)
def test_nothing_is_coerced_with_a_converter_either(hint: Any, value: Any) -> None:
    """What msgspec refuses a converter of cattrs' own hooks refuses."""
    assert find_faults(value, hint)
    with pytest.raises(Exception):  # noqa: B017 - of any kind: each is a fault of the value
        Conversion(LAX).structure(value, hint)


@pytest.mark.parametrize(
    ("hint", "value", "wanted"),
    [
        (Row, [1], Row(1)),
        (Row, [1, "a"], Row(1, "a")),
        (list, [1, "a"], [1, "a"]),
        (tuple, [1, "a"], (1, "a")),
        (dict, {"a": 1}, {"a": 1}),
        (Any, [1], [1]),
        (float | int, 1, 1),
        (float | int, 1.0, 1.0),
        (Options, {"depth": 1, "more": 2}, {"depth": 1}),
        (Cat | Dog | None, None, None),
        (Cat | Dog | int, {"type": "Dog", "tricks": []}, Dog([])),
        (Annotated[list[Leaf], msgspec.Meta(min_length=1), "words"], [{"n": 1}], [Leaf(1)]),
        (Annotated[int, msgspec.Meta(description="n")], 1, 1),
        (Annotated[int, msgspec.Meta(ge=1)], 1, 1),
        (list[Model], [{"n": 1}], [Model(n=1)]),
        (Model | None, {"n": 1}, Model(n=1)),
        (bytes, "aGk=", b"hi"),
        (UserId, 7, 7),
    ],
)
def test_a_strict_hook_takes_what_msgspec_takes(hint: Any, value: Any, wanted: Any) -> None:
    """Also types that the property below doesn't draw."""
    found = structure(value, hint, LAX)
    assert found == wanted == structure(value, hint, None)
    assert type(found) is type(wanted)


def test_a_hook_of_the_application_decides_alone() -> None:
    """It may take what a strict one refuses, for a scalar, a NewType, a union, or a class with other keys."""
    converter = cattrs.Converter()
    converter.register_structure_hook(int, lambda value, _: int(value))
    converter.register_structure_hook(UserId, lambda value, _: UserId(int(value) + 1000))
    converter.register_structure_hook(int | list[int], lambda value, _: [value] if isinstance(value, int) else value)
    converter.register_structure_hook_factory(
        lambda cls: cls is Leaf, lambda cls: make_dict_structure_fn(cls, converter, n=override(rename="N"))
    )
    converter.register_unstructure_hook_factory(
        lambda cls: cls is Leaf, lambda cls: make_dict_unstructure_fn(cls, converter, n=override(rename="N"))
    )

    def f(n: int, many: list[int], user: UserId, either: int | list[int], leaf: Leaf, bounded: Bounded) -> None: ...

    sent = {"n": "5", "many": ["6"], "user": 7, "either": 8, "leaf": {"N": "9"}, "bounded": "1"}
    bound = schema_of(f).bind(sent, converter)
    assert list(bound.values.values()) == [5, [6], 1007, [8], Leaf(9), 1]
    assert '"leaf":{"N":9,"weight":0.0}' in bound.key()
    assert fault(f, {**sent, "leaf": []}, converter) == "leaf: Expected `object`, got `array`"
    assert Conversion(converter).decides(int | list[int])
    assert not Conversion(LAX).decides(int | list[int] | Literal["a"] | None)


Bounded = Annotated[int, msgspec.Meta(ge=3)]


def test_a_subclass_of_a_scalar_is_made_of_that_scalar_alone() -> None:
    """A class that cattrs would call with anything."""

    class Name(str):
        __slots__ = ()

    assert type(structure("a", Name, LAX)) is Name
    with pytest.raises(msgspec.ValidationError, match="Expected `str`, got `int`"):
        structure(5, Name, LAX)


def test_a_struct_may_hold_a_type_of_the_applications() -> None:
    """msgspec asks the converter for what it doesn't know."""

    class Bill(msgspec.Struct):
        total: Price

    def f(bill: Bill, bills: list[Bill]) -> None: ...

    bound = schema_of(f).bind({"bill": {"total": "1 EUR"}, "bills": [{"total": "2 EUR"}]}, CONVERTER)
    assert [bound.values["bill"].total, bound.values["bills"][0].total] == [Money(100), Money(200)]


def test_pydantic_models_stay_pydantics() -> None:
    """A parameter of pydantic's types is validated by pydantic, with any converter."""

    def f(model: Model) -> None: ...

    assert schema_of(f).bind({"model": {"n": "5"}}, CONVERTER).values == {"model": Model(n=5)}


def test_hooks_of_a_preconfigured_converter_are_the_applications() -> None:
    """An application that takes cattrs' JSON converter has chosen its forms of times and bytes."""
    from cattrs.preconf.json import make_converter

    preset = make_converter()
    assert Conversion(preset).structure(preset.unstructure(b"hi"), bytes) == b"hi"
    assert Conversion(preset).structure("2026-01-02", dt.date) == dt.date(2026, 1, 2)
    with pytest.raises(msgspec.ValidationError):
        Conversion(preset).structure("5", int)


def test_the_converter_given_is_not_changed() -> None:
    """Strictness is a copy's."""
    converter = cattrs.Converter()
    Conversion(converter).structure(5, int)
    assert converter.structure("5", int) == 5


def test_an_error_that_cattrs_did_not_make_is_one_fault() -> None:
    """The path is that of the value."""
    error = KeyError("n")
    assert list(each_fault(error, "$")) == [("$", error)]


# ---------------------------------------------------------------------------------- both ways say the same

SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(-(2**63), 2**63 - 1),
    float: st.floats(allow_nan=False, allow_infinity=False),
    str: st.text(max_size=5),
    bool: st.booleans(),
    Level: st.sampled_from([1, 2]),
    Kind: st.sampled_from(["a", "b"]),
    Literal["a", 1]: st.sampled_from(["a", 1]),
    uuid.UUID: st.uuids().map(str),
    dt.date: st.dates().map(str),
    dt.datetime: st.datetimes().map(dt.datetime.isoformat),
    decimal.Decimal: st.integers().map(str),
    bytes: st.sampled_from(["", "aGk="]),
    UserId: st.integers(0, 9),
    Bounded: st.integers(3, 9),
    None: st.none(),
    Leaf: st.fixed_dictionaries({"n": st.integers(0, 9)}, optional={"weight": st.floats(0, 1)}),
    Options: st.fixed_dictionaries({"depth": st.integers(0, 9)}, optional={"kinds": st.just(["a"])}),
    Row: st.tuples(st.integers(0, 9)).map(list),
    Tree: st.just({"leaf": {"n": 1}, "children": [{"leaf": {"n": 2}}], "by_level": {"1": 1.5}}),
    Cat: st.just({"type": "Cat", "lives": 3}),
    Cat | Dog: st.sampled_from([{"type": "Cat"}, {"type": "Dog", "tricks": ["sit"]}]),
    int | str: st.integers(0, 9) | st.text(max_size=2),
    float | int: st.integers(0, 9) | st.floats(0, 1),
}
KEYS = [str, int, Level, Kind, dt.date]
PLAIN_JSON = st.sampled_from(
    [None, True, False, 0, 1, -1, 1.0, 1.5, "", "1", "a", "x", [], [1], {}, {"n": 1}, {"a": 1}]
)


@st.composite
def typed_json(draw: st.DrawFn, depth: int = 2) -> tuple[Any, Any]:
    """Draw a type, and JSON of it."""
    if depth == 0 or draw(st.booleans()):
        hint = draw(st.sampled_from(list(SCALARS)))
        return hint, draw(SCALARS[hint])
    inner, value = draw(typed_json(depth - 1))
    match draw(st.sampled_from(["list", "set", "optional", "tuple", "row", "dict", "mapping", "annotated"])):
        case "list":
            return list[inner], [value] * draw(st.integers(0, 2))
        case "set":
            base = draw(st.sampled_from([int, Kind, dt.date]))
            return frozenset[base], draw(st.lists(SCALARS[base], max_size=3))
        case "optional":
            return typing.Optional[inner], draw(st.sampled_from([None, value]))  # noqa: UP045 - made at run time
        case "tuple":
            return tuple[int, inner], [draw(st.integers(0, 9)), value]
        case "row":
            return tuple[inner, ...], [value] * draw(st.integers(0, 2))
        case "dict":
            key = draw(st.sampled_from(KEYS))
            return dict[key, inner], {str(draw(SCALARS[key])): value}
        case "mapping":
            return collections.abc.Mapping[str, inner], {"k": value}
    return Annotated[list[inner], msgspec.Meta(min_length=1)], [value] * draw(st.integers(0, 2))


@st.composite
def spoilt(draw: st.DrawFn, value: Any) -> Any:
    """Draw *value* with one part replaced, at any depth."""
    if isinstance(value, list) and value and draw(st.booleans()):
        at = draw(st.integers(0, len(value) - 1))
        return [*value[:at], draw(spoilt(value[at])), *value[at + 1 :]]
    if isinstance(value, dict) and value and draw(st.booleans()):
        key = draw(st.sampled_from(sorted(value)))
        return {**value, key: draw(spoilt(value[key]))}
    return draw(PLAIN_JSON)


def converted(make: Callable[[], Any]) -> Any:
    """Return the value with its type, or that there is none."""
    try:
        value = make()
    except Exception:
        return "refused"
    return type(value), value


@pytest.mark.slow
@given(st.data())
@settings(max_examples=300, deadline=None)
def test_msgspec_and_the_strict_converter_agree(data: st.DataObject) -> None:
    """The fast way and the converter's have equal values and equal refusals, for JSON that fits or doesn't."""
    hint, value = data.draw(typed_json())
    if data.draw(st.booleans()):
        value = data.draw(spoilt(value))
    value = json.loads(json.dumps(value))
    quick = converted(lambda: msgspec.convert(value, hint, str_keys=True))
    assert converted(lambda: structure(value, hint, None)) == quick
    assert converted(lambda: Conversion(LAX).structure(value, hint)) == quick
    assert bool(find_faults(value, hint)) == (quick == "refused")


HOSTILE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["amount", "order", "total", "items", "note", "tips", "x"]), inner, max_size=4
        )
    ),
    max_leaves=12,
)


@pytest.mark.slow
@given(st.dictionaries(st.sampled_from(["amount", "order", "tips", "more", "x", "self"]), HOSTILE, max_size=4))
@settings(max_examples=200, deadline=None)
def test_hostile_arguments_are_bound_or_refused_by_typed_errors(sent: dict[str, Any]) -> None:
    """Any JSON object gives arguments, or one error of the model's that is bounded."""
    schema, texts = schema_of(pay), [""]
    try:
        bound = schema.bind(sent, CONVERTER)
        assert isinstance(bound.values["amount"], Money)
        assert bound.key()
    except ModelBehaviorError as error:
        texts.append(str(error))
    try:
        assert isinstance(typed_output(Order).using(CONVERTER).parse(json.dumps(sent)), Order)
    except ModelBehaviorError as error:
        texts.append(str(error))
    assert max(map(len, texts)) < 5000


# ---------------------------------------------------------------------------------- when it is imported


def test_cattrs_is_imported_at_first_use() -> None:
    """Neither the package nor a run of plain tools imports it."""
    program = """
import anyio, sys
from agentloop import Agent, Runner, tool
from agentloop.testing import ScriptedModel, call, say

@tool
def double(n: int, words: list[str] | None = None) -> str:
    '''Double.'''
    return str(2 * n)

agent = Agent("a", model=ScriptedModel([call("double", {"n": 1}), say("done")]), tools=[double])
result = anyio.run(Runner.run, agent, "go")
assert result.final_output == "done"
print("cattrs" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
