"""Values as JSON: plain data comes back, nothing is imported by name, nothing breaks or never ends."""

import collections
import dataclasses
import datetime
import decimal
import enum
import json
import math
import pathlib
import uuid
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypedDict

import attrs
import msgspec
import pydantic
import pytest
from core.record_strategies import OWN_VALUES, PLAIN_VALUES, VALUES
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import force_setattr

from agentloop import Agent, RunContext, tool
from agentloop import guardrails as g
from agentloop import items as i
from agentloop._storage.record_codec import decode, encode
from agentloop._storage.value_codec import MAX_DEPTH, value_from_json, value_to_json
from agentloop._storage.withholding import Withheld
from agentloop.config import ModelInputData
from agentloop.exceptions import StateError
from agentloop.handoffs import HandoffInputData


def back(value: Any) -> Any:
    """Return what becomes of *value* on the way to JSON text and back; that way is a fixed point."""
    written = value_to_json(value)
    text = encode(written)
    read = value_from_json(decode(text))
    assert encode(value_to_json(read)) == text
    return read


def untupled(value: Any) -> Any:
    """Return *value* with its tuples as lists, as JSON has them; keys stay."""
    if isinstance(value, list | tuple):
        return [untupled(member) for member in value]
    if isinstance(value, dict):
        return {key: untupled(member) for key, member in value.items()}
    return value


def refusal(data: Any) -> str:
    """Return the message that refuses *data*."""
    with pytest.raises(StateError) as caught:
        value_from_json(data)
    return str(caught.value)


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


class Name(str):
    __slots__ = ()

    def __str__(self) -> str:
        return "not my text"


class Pair(NamedTuple):
    left: int
    right: Any


class Typed(TypedDict):
    n: int


@attrs.define
class Attrs:
    name: str
    inner: Any = None


@dataclasses.dataclass
class Data:
    name: str
    inner: Any = None


class Struct(msgspec.Struct):
    name: str
    inner: Any = None


class Model(pydantic.BaseModel):
    name: str
    raw: bytes = b"\xff"
    inner: "Model | None" = None


@pydantic.dataclasses.dataclass
class ModelData:
    name: str


# -- what comes back


@pytest.mark.slow
@given(PLAIN_VALUES)
@settings(max_examples=300)
def test_plain_values_come_back_as_they_were(value: Any) -> None:
    """Every plain value comes back equal, except for tuples, which are lists in JSON."""
    assert back(value) == untupled(value)


@pytest.mark.slow
@given(OWN_VALUES)
def test_the_librarys_own_values_come_back_as_what_they_were(value: Any) -> None:
    """Verdicts and filters' answers keep their type; the way is a fixed point."""
    assert type(back(value)) is type(value)


@pytest.mark.slow
@given(VALUES)
def test_any_value_has_a_fixed_point(value: Any) -> None:
    """A value that can't be kept is replaced once, and then stays the same."""
    once = back(value)
    assert back(once) == once or encode(value_to_json(back(once))) == encode(value_to_json(once))


@pytest.mark.scenario("RS-07")
def test_application_types_become_plain_data() -> None:
    """Pydantic models, data classes and the like are structured, tuples become lists, bytes are kept."""
    assert back(Model(name="a", inner=Model(name="b", raw=b"\x00"))) == {
        "name": "a",
        "raw": b"\xff",
        "inner": {"name": "b", "raw": b"\x00", "inner": None},
    }
    assert back(ModelData(name="a")) == {"name": "a"}
    assert back(Attrs("a", Data("b", Struct("c", (1, b"\xff"))))) == {
        "name": "a",
        "inner": {"name": "b", "inner": {"name": "c", "inner": [1, b"\xff"]}},
    }
    assert back(Typed(n=1)) == {"n": 1}
    assert back(Pair(1, Pair(2, None))) == [1, [2, None]]
    assert back((1, (2, bytearray(b"x"), memoryview(b"y")))) == [1, [2, b"x", b"y"]]


def test_values_of_the_standard_library_become_texts_and_lists() -> None:
    """Times, decimals, ids, paths, sets and enums have the form that JSON has for them."""
    moment = datetime.datetime(2026, 1, 2, 3, tzinfo=datetime.UTC)
    assert back([moment, moment.date(), datetime.timedelta(minutes=1)]) == [
        "2026-01-02T03:00:00+00:00",
        "2026-01-02",
        60,
    ]
    assert back([decimal.Decimal("1.50"), uuid.UUID(int=1), pathlib.PurePosixPath("a/b")]) == [
        "1.50",
        "00000000-0000-0000-0000-000000000001",
        "a/b",
    ]
    assert back({3, 1, 2}) == [1, 2, 3]
    assert back(frozenset({"b", "a"})) == ["a", "b"]
    assert back([Colour.RED, Level.LOW]) == ["red", 1]
    assert back(Name("mine")) == "mine"
    assert type(back(Name("mine"))) is str
    assert back(collections.deque([1, 2])) == [1, 2]
    assert back(MappingProxyType({"a": 1})) == {"a": 1}


def test_keys_that_json_has_not_are_kept() -> None:
    """Keys that aren't text, or look like a mark, are kept as pairs; a value that JSON writes as text is a text key."""
    assert back({1: "a", None: "b", (1, (2,)): "d", b"x": "e", 1.5: "f"}) == {
        1: "a",
        None: "b",
        (1, (2,)): "d",
        b"x": "e",
        1.5: "f",
    }
    assert back({"$repr": 1, "$item": {"$map": 2}, "$": 3}) == {"$repr": 1, "$item": {"$map": 2}, "$": 3}
    assert value_to_json({Colour.RED: 1, datetime.date(2026, 1, 1): 2}) == {"red": 1, "2026-01-01": 2}
    assert back({Colour.RED: 1, "red": 2}) == {"red": 2}
    assert back({Struct: 1}) == {f"<class '{__name__}.Struct'>": 1}


def test_numbers_that_json_has_not_are_kept() -> None:
    """The codec keeps not-a-number, infinities, and whole numbers of any size."""
    assert value_to_json(math.nan) == {"$float": "nan"}
    assert math.isnan(back([math.nan])[0])
    assert back([math.inf, -math.inf]) == [math.inf, -math.inf]
    assert back([2**63, -(2**64), 10**10_000]) == [2**63, -(2**64), 10**10_000]
    assert type(back(1.0)) is float


def test_items_come_back_as_items_even_inside_other_values() -> None:
    """Provider data that only Python can hold is replaced by its repr, and the item is kept."""
    call = i.ToolCall("c", "f", provider_data={"$x": object(), "t": (1,)})
    assert back({"call": [call]}) == {"call": [i.ToolCall("c", "f", provider_data={"$x": "<object object>", "t": [1]})]}
    assert back([i.Text("a"), i.Image("u"), i.File(data="x"), i.Refusal("no")]) == [
        i.Text("a"),
        i.Image("u"),
        i.File(data="x"),
        i.Refusal("no"),
    ]
    unknown = i.OpaqueItem({"type": "hologram", "$x": 1})
    assert back(unknown) == unknown


def test_withheld_secrets_stay_what_they_are() -> None:
    """A placeholder that was read is written as it was."""
    assert value_to_json(Withheld("$digest", "ab")) == {"$digest": "ab"}
    assert back([Withheld("$sealed", "cd")]) == [Withheld("$sealed", "cd")]
    assert "cd" not in repr(Withheld("$sealed", "cd"))


def test_filters_answers_lose_the_live_objects_in_them() -> None:
    """The application's context and the agent never enter stored data."""
    given_data = ModelInputData(input=(i.UserMessage("x"),), instructions=None, agent=Agent("a"), context=["hush"])
    assert "hush" not in encode(value_to_json(given_data)).decode()
    assert back(given_data) == ModelInputData(input=(i.UserMessage("x"),), instructions=None)
    handed = HandoffInputData(input_history=(), pre_handoff_items=(), new_items=(), context=RunContext(context="hush"))
    assert "hush" not in encode(value_to_json(handed)).decode()


# -- what can't be kept


def test_the_rest_is_a_bounded_repr() -> None:
    """The repr leaves out the address, which says nothing in another process; the text read is that repr."""
    assert value_to_json(object()) == {"$repr": "<object object>"}
    assert back([object()]) == ["<object object>"]
    assert len(value_to_json(bytes)["$repr"]) < 100
    assert value_to_json(range(10**12)) == {"$repr": "range(0, 1000000000000)"}
    assert len(value_to_json(ValueError("x" * 10_000))["$repr"]) <= 500


def test_definitions_and_contexts_are_only_named() -> None:
    """Definitions lead to models with keys, and contexts to the application's own object."""

    @tool
    def hush() -> None:
        """Do nothing."""

    for value in (Agent("hush"), RunContext(context={"key": "hush"}), hush):
        assert value_to_json({"x": value}) == {"x": {"$repr": f"<{type(value).__name__}>"}}


@pytest.mark.slow
def test_cycles_and_depth_end_in_a_repr() -> None:
    """A value inside itself and a hundred thousand levels don't use up the stack."""
    cycle: dict[str, Any] = {}
    cycle["me"] = [cycle]
    assert value_to_json(cycle)["me"][0]["$repr"].startswith("{'me'")
    loop = Attrs("a")
    loop.inner = {"again": loop}
    assert "$repr" in value_to_json(loop)["inner"]["again"]
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    read = back(deep)
    for _ in range(MAX_DEPTH):
        read = read[0]
    assert isinstance(read, str)
    back(i.ToolCall("c", "f", provider_data={"deep": deep}))
    for level in range(MAX_DEPTH + 2):
        nested: Any = [i.UserMessage([i.Text("x")], provider_data={"a": {"b": 1}}), {1: 2}, g.Allow({"x": [1]})]
        for _ in range(level):
            nested = {1: nested}
        back(nested)


def test_a_value_that_holds_one_list_a_billion_times_is_bounded() -> None:
    """Shared members count each time they are written."""
    shared: Any = [0] * 100
    for _ in range(40):
        shared = [shared, shared]
    assert len(encode(value_to_json(shared))) < 50_000_000


class Broken(Mapping[str, Any]):
    """A mapping that fails when it is read."""

    def __getitem__(self, key: str) -> Any:
        raise RuntimeError("hush")

    def __iter__(self) -> Iterator[str]:
        raise RuntimeError("hush")

    def __len__(self) -> int:
        return 1

    def __repr__(self) -> str:
        raise RuntimeError("hush")


class Lazy:
    """An object that raises for every attribute."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("hush")


def test_what_fails_while_it_is_read_is_named_by_its_type() -> None:
    """A broken object of the application's never breaks the run."""
    with pytest.raises(RuntimeError):
        Broken()["x"]
    assert len(Broken()) == 1
    for value in (Broken(), Lazy()):
        text = value_to_json([value])[0]["$repr"]
        assert type(value).__name__ in text
        assert "hush" not in text


def test_an_item_with_content_that_is_none_is_a_repr() -> None:
    """An item that could not be read again isn't written as an item."""
    broken = i.ToolCall("c", "f")
    force_setattr(broken, "name", None)
    assert value_to_json(broken) == {"$repr": "<ToolCall>"}
    assert value_to_json(ModelInputData(input=("x",), instructions=None)) == {"$repr": "<ModelInputData>"}


# -- what doesn't fit


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"$pickle": "x"}, "unknown key that begins with $ @ $"),
        ({"$repr": "x", "a": 1}, "must be the only one @ $"),
        ({"a": [{"$bytes": "hush!"}]}, "expected base64 @ $.a[0].$bytes"),
        ({"$bytes": 5}, "expected str, got int @ $.$bytes"),
        ({"$float": "hush"}, "expected a number, got str @ $.$float"),
        ({"$int": "0xhush"}, "expected a number, got str @ $.$int"),
        ({"$int": "7"}, "expected a number, got str @ $.$int"),
        ({"$map": {"a": 1}}, "expected pairs of a key and a value @ $.$map"),
        ({"$map": [[1]]}, "expected pairs of a key and a value @ $.$map"),
        ({"$map": [[{"a": 1}, 1]]}, "a key can't be an object @ $.$map"),
        ({"$map": [[1, 1], [1, 2]]}, "a key stands twice @ $.$map"),
        ({"$item": {"type": "tool_call", "call_id": 5, "name": "f"}}, "expected str, got int @ $.$item.call_id"),
        ({"$part": {"type": "tool_call"}}, "this one isn't known here @ $.$part.type"),
        ({"$value": {"type": "object"}}, "expected an object of a known type @ $.$value"),
        (
            {"$value": {"type": "model_input", "input": ["hush"], "instructions": None}},
            "expected object, got str @ $.$value.input[0]",
        ),
        ({"$item": []}, "expected object, got list @ $.$item"),
        ({"$digest": None}, "expected str, got null @ $.$digest"),
        ({"a b": {"x": {1: 2}}}, "expected text as a key, got int @ $['a b'].x"),
        ([math.nan], "@ $[0]"),
        ([{1}], "expected a value of JSON, got set @ $[0]"),
    ],
)
def test_what_does_not_fit_is_named_with_its_place(data: Any, message: str) -> None:
    """The message tells where, and never quotes the value."""
    assert refusal(data).endswith(message)
    assert "hush" not in refusal(data)


def test_hostile_depth_is_refused() -> None:
    """A value may be read as deep as it may be written, and no depth uses up the stack."""
    deep: Any = 1
    for _ in range(MAX_DEPTH):
        deep = {"$map": [[1, deep]]}
    assert value_from_json(deep)
    for _ in range(100_000):
        deep = {"a": deep}
    assert "nested too deeply" in refusal(deep)


@pytest.mark.slow
@given(VALUES, st.data())
@settings(max_examples=300)
def test_changed_json_is_refused_or_means_what_it_says(value: Any, data: st.DataObject) -> None:
    """A value with a node replaced or removed raises a `StateError`, or has a fixed point."""
    written = json.loads(json.dumps([value_to_json(value)]))
    parent: Any = written
    key: Any = 0
    while parent[key] and isinstance(parent[key], list | dict) and data.draw(st.booleans()):
        parent = parent[key]
        key = data.draw(st.sampled_from(list(parent) if isinstance(parent, dict) else range(len(parent))))
    new = data.draw(
        st.sampled_from([None, True, -1, 0.5, math.nan, 10**400, "x", "$", [], {}, [[]], {"$map": []}, {"": 0}])
    )
    if isinstance(parent, dict) and data.draw(st.booleans()):
        parent[data.draw(st.sampled_from(["$map", "$item", "$int", "x"]))] = parent.pop(key)
    else:
        parent[key] = new
    try:
        read = value_from_json(written)
    except StateError:
        assert " @ $" in refusal(written)
        return
    back(read)
