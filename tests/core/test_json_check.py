"""Whether a value fits a JSON schema: each keyword, and the same verdict as the well-known checker's."""

from datetime import date
from decimal import Decimal
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from agentloop import UserError
from agentloop._schema.json_check import check_schema, find_violation

TREE = {
    "$ref": "#/$defs/Tree",
    "$defs": {"Tree": {"type": "object", "properties": {"more": {"type": "array", "items": {"$ref": "#/$defs/Tree"}}}}},
}


@pytest.mark.parametrize(
    ("schema", "fits", "misfits"),
    [
        ({"type": "integer"}, [1, 1.0, -3], [True, "1", 1.5, None, [], float("inf")]),
        ({"type": ["null", "boolean"]}, [None, True], [0, "", {}]),
        ({"enum": [1, "a", [True]]}, [1, 1.0, "a", [True]], [True, [1], "b"]),
        ({"const": {"a": 1}}, [{"a": 1.0}], [{"a": True}, {}]),
        ({"properties": {"a": {"type": "string"}}}, [{"a": "x"}, {}, 3], [{"a": 1}]),
        ({"required": ["a"]}, [{"a": 1}, []], [{}]),
        ({"properties": {"a": {}}, "additionalProperties": False}, [{"a": 1}, 3], [{"b": 1}]),
        ({"additionalProperties": {"type": "string"}}, [{"b": "x"}], [{"b": 1}]),
        ({"items": {"type": "integer"}, "prefixItems": [{"type": "string"}]}, [["a", 1], "x"], [[1], ["a", "b"]]),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, ["", None], [1]),
        ({"oneOf": [{"type": "number"}, {"type": "integer"}]}, [1.5], [1, "x"]),
        ({"allOf": [{"minimum": 1}, {"maximum": 2}]}, [1, 2, "x"], [0, 3]),
        ({"exclusiveMinimum": 1, "exclusiveMaximum": 3, "multipleOf": 2}, [2], [1, 3]),
        ({"minLength": 1, "maxLength": 2, "pattern": "^a"}, ["a", "ab", 3], ["", "abc", "b"]),
        ({"minItems": 1, "maxItems": 2, "uniqueItems": True}, [[1], [1, True]], [[], [1, 2, 3], [1, 1.0]]),
        ({"minProperties": 1, "maxProperties": 1}, [{"a": 1}], [{}, {"a": 1, "b": 2}]),
        ({"multipleOf": 0.1}, [0.3, 0.7, 1, -0.2, 1e300], [0.25, 1e-300]),
        ({"properties": {"never": False, "ever": True}}, [{}, {"ever": 1}], [{"never": 1}]),
        (TREE, [{"more": [{"more": []}]}], [{"more": [{"more": 3}]}]),
    ],
)
def test_each_keyword_means_what_it_says(schema: dict[str, Any], fits: list[Any], misfits: list[Any]) -> None:
    """Every value of the first list fits, none of the second; a fault names its place."""
    checked = check_schema("x", schema)
    assert checked == schema
    for value in fits:
        assert find_violation(value, checked) is None, value
    for value in misfits:
        assert (find_violation(value, checked) or "").startswith("$"), value


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from(["", "a", "b", 0.5, -1.5, 1.0]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=4,
)
TYPES = st.sampled_from(["null", "boolean", "integer", "number", "string", "array", "object"])


def _schemas(inner: Any) -> Any:
    lists = st.lists(inner, min_size=1, max_size=2)
    return st.one_of(
        st.fixed_dictionaries(
            {}, optional={"properties": st.dictionaries(st.sampled_from("ab"), inner), "additionalProperties": inner}
        ),
        st.fixed_dictionaries({}, optional={"prefixItems": lists, "items": inner, "uniqueItems": st.booleans()}),
        st.fixed_dictionaries({}, optional={"anyOf": lists, "oneOf": lists, "allOf": lists, "type": TYPES}),
    )


SCHEMAS = st.recursive(
    st.fixed_dictionaries(
        {},
        optional={
            "type": TYPES | st.lists(TYPES, min_size=1, max_size=2, unique=True),
            "enum": st.lists(VALUES, min_size=1, max_size=3),
            "required": st.lists(st.sampled_from("ab"), unique=True),
            "const": VALUES,
            "minimum": st.integers(-2, 2) | st.sampled_from([0.5, -1.5]),
            "exclusiveMaximum": st.integers(-2, 2),
            "multipleOf": st.sampled_from([1, 2, 0.5, 0.25]),
            "maxLength": st.integers(0, 2),
            "minItems": st.integers(0, 2),
            "minProperties": st.integers(0, 2),
            "maxProperties": st.integers(0, 2),
            "pattern": st.sampled_from(["a", "^b", ""]),
            "$ref": st.sampled_from(["#/$defs/one", "#/$defs/two"]),
            "minLength": st.integers(0, 2),
            "maxItems": st.integers(0, 2),
        },
    ),
    _schemas,
    max_leaves=4,
)


@given(SCHEMAS, TYPES, VALUES)
def test_the_verdict_is_that_of_the_well_known_checker(drawn: dict[str, Any], kind: str, value: Any) -> None:
    """For drawn schemas and values, and the copy of the schema changes nothing."""
    schema = {**drawn, "$defs": {"one": {"items": {"$ref": "#/$defs/two"}}, "two": {"type": ["null", kind]}}}
    checked = check_schema("x", schema)
    assert (find_violation(value, checked) is None) == Draft202012Validator(schema).is_valid(value)


@pytest.mark.parametrize(
    "schema",
    [
        {"if": {}},
        {"type": []},
        {"enum": "ab"},
        {"required": 3},
        {"properties": []},
        {"minimum": "1"},
        {"multipleOf": 0},
        {"pattern": "("},
        {"$ref": 3},
        {"anyOf": 3},
        {"items": 3},
        {"required": [["a"]]},
        {"required": {"a": 1}},
        {"type": [["string"]]},
        {"type": {"string": 1}},
        {"$ref": "#/enum/0", "enum": [{"type": [["x"]]}]},
        {"$ref": "#/const", "const": {"type": "nothing"}},
        {"$ref": "#/title", "title": "a"},
    ],
)
def test_what_cannot_be_checked_is_refused(schema: dict[str, Any]) -> None:
    """With the keyword or its place."""
    with pytest.raises(UserError, match=f"x: .*{next(iter(schema)).replace('$', '.')}"):
        check_schema("x", schema)


def test_depth_is_bounded() -> None:
    """Of the schema, and of a value in a schema that refers to itself."""
    deep: dict[str, Any] = {}
    for _ in range(70):
        deep = {"items": deep}
    with pytest.raises(UserError, match="nested more than 60 deep"):
        check_schema("x", deep)
    value: Any = {}
    for _ in range(70):
        value = {"more": [value]}
    assert "nested more than 60 deep" in (find_violation(value, TREE) or "")


@pytest.mark.parametrize(
    "schema",
    [
        {"enum": [date(2020, 1, 1)]},
        {"const": Decimal(1)},
        {"default": object()},
        {"maximum": float("nan")},
        {"description": b"x"},
        {"properties": {("a", "b"): {}}},
    ],
)
def test_a_schema_without_a_json_form_is_refused(schema: dict[str, Any]) -> None:
    """It would be another one in the log."""
    with pytest.raises(UserError, match="x: the schema has no JSON form: "):
        check_schema("x", schema)


def test_the_schema_is_what_another_process_reads() -> None:
    """Tuples are lists, mappings of any kind objects, and keys texts."""
    given = MappingProxyType({"enum": ("a", "b"), "required": ("a",), "const": {1: 2}})
    assert check_schema("x", given) == {"enum": ["a", "b"], "required": ["a"], "const": {"1": 2}}


@pytest.mark.parametrize("combined", ["anyOf", "oneOf", "allOf"])
@pytest.mark.slow
def test_the_work_is_bounded(combined: str) -> None:
    """References that branch, in a circle or not, are followed once for each value; so the test ends."""
    circle = check_schema("x", {combined: [{"$ref": "#"}, {"$ref": "#"}]})
    assert "refers to itself without an end" in (find_violation(1, circle) or "")
    steps: dict[str, Any] = {
        f"s{n}": {combined: [{"$ref": f"#/$defs/s{n + 1}"}, {"$ref": f"#/$defs/s{n + 1}"}]} for n in range(25)
    }
    chain = check_schema("x", {"$ref": "#/$defs/s0", "$defs": {**steps, "s25": {"type": "string"}}})
    assert (find_violation("a", chain) is None) == (combined != "oneOf")
    assert find_violation(1, chain) is not None


def test_a_value_too_deep_to_read_does_not_fit() -> None:
    """An enumeration compares whole values."""
    value: Any = []
    for _ in range(5_000):
        value = [value]
    assert find_violation(value, check_schema("x", {"enum": [1]})) == "$: it is nested too deep"


@pytest.mark.parametrize(
    ("schema", "fault"),
    [
        ({"additionalProperties": False}, "$: a member isn't expected"),
        ({"additionalProperties": {"type": "integer"}}, "$.*: expected integer"),
    ],
)
def test_a_key_that_the_schema_does_not_name_may_be_secret(schema: dict[str, Any], fault: str) -> None:
    """Without `names_keys` no fault repeats it."""
    checked = check_schema("x", schema)
    assert find_violation({"hush": "x"}, checked, names_keys=False) == fault
    assert "hush" in (find_violation({"hush": "x"}, checked) or "")
