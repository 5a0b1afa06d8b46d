"""Hypothesis strategies for records of every kind, made from the hints of their fields."""

import types
import typing
from collections import abc
from collections.abc import Mapping
from typing import Any, Literal, Union, get_args, get_origin

from definitions.item_strategies import BY_TYPE as ITEM_STRATEGIES
from definitions.item_strategies import ITEMS, JSON_VALUES, PARTS, TEXT
from hypothesis import strategies as st

from agentloop import guardrails as g
from agentloop import items as i
from agentloop import records as r
from agentloop._common.values import NotedValue, Value
from agentloop.config import ErrorHandlerResult, ModelInputData
from agentloop.handoffs import HandoffInputData
from agentloop.model_events import ModelResponse
from agentloop.outcomes import CallOutcome
from agentloop.tools import ToolsToFinalOutput
from agentloop.usage import RequestUsage

# Keys the codec itself uses, and texts that no encoding takes.
TRICKY_TEXT = TEXT | st.sampled_from(
    ["$repr", "$map", "$item", "$", "kind", "type", "\ud800", "\udc00a", "é", "\u2028"]
)
WIDE = st.integers() | st.sampled_from([2**63, 2**64 - 1, 2**64, -(2**63) - 1, 10**1_000, -(10**1_000)])
NUMBERS = st.floats(allow_nan=False)
KEYS = TRICKY_TEXT | st.integers() | st.none() | st.booleans() | st.binary(max_size=3) | st.tuples(st.integers(), TEXT)


def _containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return (
        st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3) | st.lists(inner, max_size=2).map(tuple)
    )


LEAVES = st.none() | st.booleans() | WIDE | NUMBERS | TRICKY_TEXT | st.binary(max_size=8) | ITEMS | PARTS
PLAIN_VALUES = st.recursive(LEAVES, _containers, max_leaves=8)
"""Values that come back as they were, but for tuples."""
OWN_VALUES = st.one_of(
    st.builds(g.Allow, PLAIN_VALUES),
    st.builds(g.RejectContent, TEXT, PLAIN_VALUES),
    st.builds(g.RaiseException, PLAIN_VALUES),
    st.builds(g.Rewrite, st.dictionaries(TRICKY_TEXT, PLAIN_VALUES, max_size=2)),
    st.builds(g.ReplaceOutput, PLAIN_VALUES),
    st.builds(g.GuardrailFunctionOutput, PLAIN_VALUES, st.booleans()),
    st.builds(ToolsToFinalOutput, is_final=st.booleans(), output=PLAIN_VALUES),
    st.builds(ErrorHandlerResult, PLAIN_VALUES, include_in_history=st.booleans()),
    st.builds(ModelInputData, input=st.lists(ITEMS, max_size=2).map(tuple), instructions=st.none() | TEXT),
    st.builds(
        HandoffInputData,
        input_history=st.lists(ITEMS, max_size=2).map(tuple),
        pre_handoff_items=st.just(()),
        new_items=st.lists(ITEMS, max_size=2).map(tuple),
        input_items=st.none() | st.lists(ITEMS, max_size=1).map(tuple),
    ),
)
VALUES = PLAIN_VALUES | OWN_VALUES | _containers(OWN_VALUES) | st.builds(object)

# A field of a type that JSON hasn't, and that equality compares, is given what JSON has.
_COMPARED = JSON_VALUES
_FIXED: Mapping[Any, st.SearchStrategy[Any]] = {
    str: TRICKY_TEXT,
    int: WIDE,
    float: NUMBERS,
    bool: st.booleans(),
    i.Item: ITEMS,
    i.Content: TEXT | st.lists(PARTS, max_size=2).map(tuple),
    **ITEM_STRATEGIES,
}


def of_hint(hint: Any, *, compared: bool = True) -> st.SearchStrategy[Any]:
    """Return values of type *hint*."""
    if hint in _FIXED:
        return _FIXED[hint]
    if hint is Any:
        return _COMPARED if compared else VALUES
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is abc.Mapping:
        return st.dictionaries(TRICKY_TEXT if arguments[0] is str else KEYS, JSON_VALUES, max_size=3)
    if origin in (Union, types.UnionType):
        inner: Any = Union[tuple(each for each in arguments if each is not type(None))]  # noqa: UP007 - at run time
        return st.none() | of_hint(inner)
    if origin is tuple:
        return st.lists(of_hint(arguments[0]), max_size=3).map(tuple)
    if origin is Literal:
        return st.sampled_from(arguments)
    return of_class(hint)


def of_class(cls: type[Value]) -> st.SearchStrategy[Any]:
    """Return objects of a `Value` class, each field by its hint."""
    hints = typing.get_type_hints(cls)
    notes = cls._notes if issubclass(cls, NotedValue) else frozenset()
    fields = {
        name: of_hint(hints[name], compared=name not in notes)
        for name in cls.__struct_fields__
        if name not in _NEVER[cls]
    }
    return st.builds(cls, **fields)


class _Never(dict[type, frozenset[str]]):
    def __missing__(self, cls: type) -> frozenset[str]:
        return frozenset()


_NEVER = _Never({CallOutcome: frozenset({"error"}), r.GuardrailSettled: frozenset({"result"})})
_FIXED = {**_FIXED, CallOutcome: of_class(CallOutcome), RequestUsage: of_class(RequestUsage)}
_FIXED = {**_FIXED, ModelResponse: of_class(ModelResponse)}

BY_KIND: dict[type, st.SearchStrategy[Any]] = {cls: of_class(cls) for cls in get_args(r.Record)}
RECORDS: st.SearchStrategy[r.Record] = st.one_of(*BY_KIND.values())
