"""Types of final outputs: what the model is shown, how its answer becomes a value, what is said of one that can't."""

import contextlib
import dataclasses
import datetime
import enum
import json
import subprocess
import sys
from typing import Annotated, Any, Literal, NewType, NotRequired, TypedDict

import attrs
import jsonschema
import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop._schema.output_schema import OutputType, TypedOutput, output_schema, typed_output
from agentloop.exceptions import ModelBehaviorError, UserTypeError
from agentloop.model_events import OutputSchema
from agentloop.settings import JsonLimits


@attrs.frozen
class Place:
    city: str
    country: str | None = None


@attrs.frozen
class Tree:
    tag: str
    branches: "list[Tree]"


@dataclasses.dataclass
class Trip:
    stops: list[Place]
    days: int = 1


class Movie(TypedDict):
    title: str
    year: NotRequired[int]


class Struct(msgspec.Struct):
    n: int


class Report(pydantic.BaseModel):
    score: int = pydantic.Field(alias="Score", gt=3)
    parts: "list[Report]" = []


class Numbers(pydantic.RootModel[list[int]]):
    pass


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


@attrs.frozen
class Even:
    n: int

    def __attrs_post_init__(self) -> None:
        if self.n % 2:
            raise ValueError("odd")


UserId = NewType("UserId", int)


def typed(type_: Any) -> TypedOutput:
    """Return the schema of a type that isn't plain text."""
    found = output_schema(type_)
    assert found is not None
    return found


def refusal(output: TypedOutput, text: str, limits: JsonLimits | None = None) -> str:
    """Return the message that refuses *text*."""
    with pytest.raises(ModelBehaviorError) as caught:
        output.parse(text, limits or JsonLimits())
    return str(caught.value)


# ---------------------------------------------------------------------------------------------- the schema


@pytest.mark.parametrize("type_", [None, str, type(None), OutputType(str), OutputType(None, strict=True)])
def test_text_needs_no_schema(type_: Any) -> None:
    """`None` and `str` mean plain text."""
    assert output_schema(type_) is None


def test_an_object_is_the_answer_itself() -> None:
    """The schema is closed for strict mode: every member required, what may be left out nullable."""
    assert typed(Place).schema == OutputSchema(
        name="final_output",
        schema={
            "type": "object",
            "properties": {"city": {"type": "string"}, "country": {"anyOf": [{"type": "string"}, {"type": "null"}]}},
            "required": ["city", "country"],
            "additionalProperties": False,
        },
        strict=True,
    )


def test_another_type_stands_under_the_key_response() -> None:
    """Providers take only objects at the root."""
    assert typed(int).schema.schema == {
        "type": "object",
        "properties": {"response": {"type": "integer"}},
        "required": ["response"],
        "additionalProperties": False,
    }


DIRECT: list[tuple[Any, str, Any]] = [
    (Place, '{"city": "Rome", "country": null}', Place("Rome")),
    (Tree, '{"tag": "a", "branches": [{"tag": "b", "branches": []}]}', Tree("a", [Tree("b", [])])),
    (Trip, '{"stops": [{"city": "Rome", "country": "IT"}], "days": 3}', Trip([Place("Rome", "IT")], 3)),
    (Trip, '{"stops": [], "days": null}', Trip([])),
    (Movie, '{"title": "M", "year": null}', {"title": "M"}),
    (Movie, '{"title": "M", "year": 1931}', {"title": "M", "year": 1931}),
    (Struct, '{"n": 1}', Struct(1)),
    (Even, '{"n": 2}', Even(2)),
    (Report, '{"Score": 4, "parts": [{"Score": 5, "parts": []}]}', Report(Score=4, parts=[Report(Score=5)])),
    (dict[str, int], '{"a": 1}', {"a": 1}),
    (dict, '{"a": [null]}', {"a": [None]}),
]
WRAPPED: list[tuple[Any, str, Any]] = [
    (int, "3", 3),
    (list[str], '["a"]', ["a"]),
    (Literal["a", "b"], '"b"', "b"),
    (Place | None, "null", None),
    (Place | None, '{"city": "Rome", "country": null}', Place("Rome")),
    (int | str, '"x"', "x"),
    (list[Place], '[{"city": "Rome", "country": null}]', [Place("Rome")]),
    (tuple[int, str], '[1, "a"]', (1, "a")),
    (Color, '"blue"', Color.BLUE),
    (datetime.date, '"2024-02-29"', datetime.date(2024, 2, 29)),
    (UserId, "7", 7),
    (Annotated[str, msgspec.Meta(max_length=3)], '"abc"', "abc"),
    (Numbers, "[1, 2]", Numbers([1, 2])),
    (list[Report], '[{"Score": 9, "parts": []}]', [Report(Score=9)]),
    (Report | None, "null", None),
    (Any, '{"x": null}', {"x": None}),
]
CASES = [(*case, False) for case in DIRECT] + [
    (t, f'{{"response": {text}}}', value, True) for t, text, value in WRAPPED
]


@pytest.mark.parametrize(("type_", "text", "value"), WRAPPED)
def test_a_value_without_its_wrapper_is_read_as_well(type_: Any, text: str, value: Any) -> None:
    """A model that no schema binds often answers `[1, 2]` for a list, and knows nothing of the key."""
    assert typed(type_).parse(text) == value


@pytest.mark.parametrize(("type_", "text", "value", "wrapped"), CASES)
def test_an_answer_that_fits_the_schema_becomes_the_value(type_: Any, text: str, value: Any, wrapped: bool) -> None:
    """Every kind of type gives a value, direct or wrapped, strict or not, which is written and read back equal."""
    for strict in (None, False):
        output = typed(OutputType(type_, strict))
        assert output.wrapped is wrapped
        schema: Any = output.schema.schema
        jsonschema.Draft202012Validator.check_schema(schema)
        assert schema["type"] == "object"
        # Nulls in the place of what is left out are strict mode's own.
        if output.schema.strict:
            jsonschema.validate(json.loads(text), schema, jsonschema.Draft202012Validator)
            assert output.parse(text) == value
        elif "null" not in text or wrapped or type_ is dict:
            assert output.parse(text) == value
        assert output.parse(output.dump(value)) == value


@pytest.mark.parametrize("type_", [case[0] for case in CASES])
def test_a_schema_holds_the_definitions_it_refers_to_and_no_others(type_: Any) -> None:
    """Providers refuse dangling references; unused definitions are paid for in tokens."""
    schema = typed(type_).schema.schema
    text = json.dumps(schema)
    for name in schema.get("$defs", {}):
        assert f"#/$defs/{name}" in text
    assert schema.get("$defs") != {}
    assert text.count('"$ref"') == sum(text.count(f'"#/$defs/{name}"') for name in schema.get("$defs", {}))


def test_a_type_without_a_strict_schema_is_asked_for_without() -> None:
    """Free keys have no strict form; asking for one raises an error with the reason."""
    assert typed(dict[str, int]).schema.strict is False
    assert typed(Any).schema.strict is False
    for type_, reason in ((dict[str, int], "an object with free keys"), (Any, "a value of any type")):
        with pytest.raises(UserTypeError, match=rf"{reason} has no strict schema; give OutputType\(…, strict=False\)"):
            output_schema(OutputType(type_, strict=True))


def test_strictness_can_be_given_up() -> None:
    """The flag and the open schema are what the wire gets."""
    output = typed(OutputType(Place, strict=False))
    assert output.schema.strict is False
    assert output.schema.schema["required"] == ["city"]
    assert output.parse('{"city": "Rome"}') == Place("Rome")
    assert typed(OutputType(Place, strict=True)).schema == typed(Place).schema


def test_the_flag_is_a_bool() -> None:
    """Any other value is most likely a second type, so it is refused."""
    with pytest.raises(UserTypeError, match=r"OutputType\.strict: expected a bool or None"):
        OutputType(int, str)  # type: ignore[arg-type]


@pytest.mark.parametrize("type_", [5, "Place", object, lambda: None, list[object], Place | Trip])
def test_what_has_no_json_form_is_refused_by_name(type_: Any) -> None:
    """The message names the type and says why, in terms of outputs."""
    with pytest.raises(
        UserTypeError, match=r"The final output can't be of type .*, which has no JSON form: ."
    ) as caught:
        output_schema(type_)
    assert "Tool" not in str(caught.value)
    assert caught.value.__cause__ is not None


def test_annotated_constraints_that_would_be_dropped_are_refused() -> None:
    """The output type is checked like a tool's signature."""
    with pytest.raises(UserTypeError, match="annotated_types"):
        output_schema(Annotated[int, pytest.importorskip("annotated_types").Gt(3)])


def test_another_value_than_the_final_output_is_called_by_its_name() -> None:
    """The same serves where else a model writes a value; text is wrapped there."""
    output = typed_output(str, what="Input of transfer_to_b")
    assert output.wrapped
    assert output.parse('{"response": "x"}') == "x"
    assert refusal(output, '{"response": 1}').startswith("Input of transfer_to_b doesn't fit: $.response: ")
    assert refusal(output, "").startswith("Input of transfer_to_b is empty")
    with pytest.raises(UserTypeError, match="Input of f can't be of type object"):
        output_schema(object, what="Input of f")


# ---------------------------------------------------------------------------------------------- answers that don't fit


@pytest.mark.parametrize(
    ("type_", "text", "message"),
    [
        (Place, "", "The final output is empty; expected JSON"),
        (int, " \n", "The final output is empty; expected JSON"),
        (Place, "Rome", "The final output isn't valid JSON: at character 1, expecting value: 'Rome'"),
        (Place, '{"city": "Rome"', "The final output isn't valid JSON: at character 16, …"),
        (Place, "[]", "The final output doesn't fit: $: Expected `object`, got `array`"),
        (Place, "{}", "The final output doesn't fit: $: Object missing required field `city`"),
        (Place, '{"city": 5, "country": null}', "The final output doesn't fit: $.city: Expected `str`, got `int`"),
        (
            Trip,
            '{"stops": [{"city": "a"}, {"city": []}]}',
            "The final output doesn't fit: $.stops[1].city: Expected `str`, got `array`",
        ),
        (int, '{"response": "x"}', "The final output doesn't fit: $.response: Expected `int`, got `str`"),
        (int, '"five"', "The final output must be an object with the one key response, not '\"five\"'"),
        (int, "{}", "The final output must be an object with the one key response, not '{}'"),
        (
            int,
            '{"response": 1, "x": 2}',
            'The final output must be an object with the one key response, not \'{"response": 1, "x": 2}\'',
        ),
        (
            Report,
            '{"Score": 1, "parts": 2}',
            "The final output doesn't fit: $.Score: Input should be greater than 3; "
            "$.parts: Input should be a valid list",
        ),
        (Even, '{"n": 3}', "The final output doesn't fit: $: odd"),
        (Place, '{"city": NaN}', "The final output can't be read, its contents hold NaN, which isn't JSON"),
        (Place, '{"city": 1, "city": 2}', "The final output can't be read, its contents repeat the key 'city'"),
    ],
)
def test_an_answer_that_does_not_fit_is_the_models_fault(type_: Any, text: str, message: str) -> None:
    """Each fault is named with its place."""
    said = refusal(typed(type_), text)
    assert said == message or (message.endswith("…") and said.startswith(message[:-1]))


def test_limits_hold_for_answers() -> None:
    """Depth, size and digits are bounded as for arguments."""
    deep = '{"a": ' + "[" * 100 + "]" * 100 + "}"
    assert "nested too deeply (the limit is 64 levels)" in refusal(typed(dict), deep)
    assert "too large (11 bytes, the limit is 5)" in refusal(typed(dict), '{"a": "bc"}', JsonLimits(max_bytes=5))


FUZZED = {type_: typed(type_) for type_ in (Place, int, Report)}


@pytest.mark.parametrize("type_", FUZZED)
@given(text=st.text(max_size=50) | st.text('{}[]":,0123456789response city', max_size=60))
def test_whatever_the_model_says_nothing_but_a_bounded_model_error_is_raised(type_: Any, text: str) -> None:
    """Messages quote at most 200 characters of it."""
    output = FUZZED[type_]
    with contextlib.suppress(ModelBehaviorError):
        output.parse(text)
    assert len(refusal(output, text * 20 + "!")) <= 400


# ---------------------------------------------------------------------------------------------- values of the user's


@pytest.mark.parametrize(
    ("type_", "given_", "value"),
    [
        (Place, {"city": "Rome"}, Place("Rome")),
        (Trip, {"stops": [Place("Rome")]}, Trip([Place("Rome")])),
        (Movie, {"title": "M"}, {"title": "M"}),
        (list[Place], [{"city": "Rome"}], [Place("Rome")]),
        (int, 3, 3),
        (Report, {"Score": 4}, Report(Score=4)),
        (Color, "red", Color.RED),
    ],
)
def test_a_value_of_the_application_is_fitted_to_the_type(type_: Any, given_: Any, value: Any) -> None:
    """Plain data becomes an instance."""
    assert typed(type_).validate(given_) == value


@pytest.mark.parametrize(
    ("type_", "value"), [(Place, Place("Rome")), (Trip, Trip([])), (Report, Report(Score=4)), (dict, {"a": 1})]
)
def test_an_instance_stays_the_object_it_is(type_: Any, value: Any) -> None:
    """The instance is checked, not copied."""
    assert typed(type_).validate(value) is value


@pytest.mark.parametrize(
    ("type_", "value", "message"),
    [
        (Place, {"town": "Rome"}, r"The final output \(Place\) doesn't fit: \$: Object missing required field `city`"),
        (Place, Place(5), r"\$\.city: Expected `str`, got `int`"),  # type: ignore[arg-type]
        (Place, object(), r"\$: TypeError"),
        (int, "x", r"The final output \(int\) doesn't fit: \$: Expected `int`, got `str`"),
        (int, True, r"Expected `int`, got `bool`"),
        (Report, {"Score": 1}, r"\$\.Score: Input should be greater than 3"),
    ],
)
def test_a_value_that_does_not_fit_is_the_users_fault(type_: Any, value: Any, message: str) -> None:
    """A fallback that isn't of the type is found where it is given."""
    with pytest.raises(UserTypeError, match=message):
        typed(type_).validate(value)


@pytest.mark.parametrize("value", [object(), float("nan")])
def test_a_value_without_a_json_form_can_not_be_dumped(value: Any) -> None:
    """The message names the output and its type."""
    for type_ in (dict, Any):
        with pytest.raises(UserTypeError, match=r"The final output \((dict|Any)\) can't be written as JSON: "):
            typed(type_).dump({"x": value})


TREES: st.SearchStrategy[Tree] = st.recursive(
    st.builds(Tree, st.text(max_size=5), st.just([])),
    lambda inner: st.builds(Tree, st.text(max_size=5), st.lists(inner, max_size=3)),
    max_leaves=5,
)


@given(TREES)
def test_any_value_is_read_back_from_what_it_is_dumped_to(value: Tree) -> None:
    """A value of the application is dumped to the text that the model would have sent for it."""
    assert typed(Tree).parse(typed(Tree).dump(value)) == value


def test_pydantic_is_not_imported_for_types_that_are_not_its_own() -> None:
    """Everything else works without pydantic."""
    program = (
        "import sys; from agentloop._schema.output_schema import output_schema; "
        "output_schema(dict[str, int]); output_schema(int).parse('{\"response\": 1}'); print('pydantic' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_an_equal_value_of_another_type_becomes_one_of_the_type() -> None:
    """A whole number that the application gives for a float is a float from then on, as the model's would be."""
    output = output_schema(float)
    assert output is not None
    assert repr(output.validate(1)) == "1.0"
    kept = 2.5
    assert output.validate(kept) is kept
