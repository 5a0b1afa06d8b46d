"""`**options: Unpack[Options]` in a tool's signature: each key of the `TypedDict` is a parameter of its own."""

from typing import Annotated, Any, NotRequired, Required, TypedDict, Unpack

import pytest

from agentloop import tool
from agentloop.exceptions import ModelBehaviorError, UserTypeError


class Search(TypedDict, total=False):
    """What to search for."""

    query: Required[str]
    limit: Annotated[int, "How many to find."]
    tags: NotRequired[list[str]]


async def find(place: str, **options: Unpack[Search]) -> Any:
    """Find something."""
    return place, options


@pytest.mark.parametrize("strict", [True, False])
def test_each_key_is_in_the_schema(strict: bool) -> None:
    """With its type and its words; a key that may be missing isn't required, and has no default."""
    schema = tool(find, strict_mode=strict).params_json_schema
    properties = schema["properties"]
    assert list(properties) == ["place", "query", "limit", "tags"]
    assert properties["query"] == {"type": "string"}
    assert properties["limit"]["description"] == "How many to find."
    assert schema["required"] == (["place", "query", "limit", "tags"] if strict else ["place", "query"])
    assert schema["additionalProperties"] is False
    assert "default" not in str(properties)


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ({"query": "q"}, {"query": "q"}),
        ({"query": "q", "limit": "3"}, {"query": "q", "limit": 3}),
        ({"query": "q", "tags": ["a"], "limit": 1}, {"query": "q", "tags": ["a"], "limit": 1}),
    ],
    ids=str,
)
async def test_a_body_gets_the_keys_that_the_model_gave(
    strict: bool, arguments: dict[str, Any], options: dict[str, Any]
) -> None:
    """Others are missing, as `TypedDict` says; values are read as those of any parameter."""
    assert await tool(find, strict_mode=strict).run_body({"place": "x", **arguments}) == ("x", options)


async def test_null_means_missing_where_the_strict_schema_asks_for_every_key() -> None:
    """The model has to write each key, and null is how it leaves one out."""
    arguments = {"place": "x", "query": "q", "limit": None, "tags": None}
    assert await tool(find).run_body(arguments) == ("x", {"query": "q"})


async def test_what_does_not_fit_is_named() -> None:
    """A missing key, a wrong value and an unknown name, as for any parameter."""
    with pytest.raises(ModelBehaviorError, match=r"limit: .*missing: query; unknown: lmit"):
        await tool(find).run_body({"place": "x", "limit": [], "lmit": 3})


def test_equal_calls_have_one_key() -> None:
    """Receipts of idempotent tools: a key that was left out is as one that is null."""
    schema = tool(find).body.schema  # type: ignore[union-attr]
    without = schema.bind({"place": "x", "query": "q"})
    assert without.key() == schema.bind({"place": "x", "query": "q", "limit": None}).key()
    assert without.key() != schema.bind({"place": "x", "query": "q", "limit": 1}).key()
    assert without.values == {"place": "x", "query": "q"}


def test_a_signature_that_says_nothing_clear_is_refused() -> None:
    """When the tool is made, with the tool and what is wrong."""

    async def doubled(query: str, **options: Unpack[Search]) -> None: ...

    async def untyped(**options: Unpack[int]) -> None: ...  # type: ignore[misc]

    with pytest.raises(UserTypeError, match="Tool doubled: Search has the name of another parameter: query"):
        tool(doubled, description="x")
    with pytest.raises(UserTypeError, match="Tool untyped: parameter options: expected Unpack of a TypedDict"):
        tool(untyped, description="x")
