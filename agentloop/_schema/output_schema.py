"""The type of an agent's final output: the schema a model is shown, and its answer turned into a value.

A type that is an object in JSON (attrs classes, dataclasses, TypedDicts, dicts, pydantic's models) is the answer
itself. Any other type is wrapped in an object under the key `response`, since providers take only objects at the
root. Types mean the same as in a tool's signature: `function_schema` decides.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import json
import re
import typing
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, overload

import attrs

from agentloop._common.checks import FIELDS, optional
from agentloop._common.errors import ModelBehaviorError, UserTypeError
from agentloop._common.strict_json import STRING
from agentloop._common.type_parameters import OutputT
from agentloop._schema.conversion import conversion_of
from agentloop._schema.function_schema import (
    _Parameter,
    _schemas,
    check_known,
    describe_faults,
    structure_as_meant,
    to_json_value,
)
from agentloop._schema.json_schema import Schema, drop_nulls, each_child, obstacle, ref_name, strict_form
from agentloop._schema.json_text import _Fault, _parse, place_of, quote
from agentloop._schema.pydantic_types import pydantic_adapter
from agentloop.model_events import OutputSchema
from agentloop.settings import JsonLimits

if TYPE_CHECKING:
    from cattrs import BaseConverter

WRAPPER = "response"
FINAL_OUTPUT = "The final output"
_LIMITS = JsonLimits()


@attrs.frozen(init=False)
class OutputType(Generic[OutputT]):
    """An output type and how strictly a provider holds the model to it.

    Attributes:
        strict: True insists on the strict schema, and a type without one is an error; False never asks for it; None (as
            with the bare type) asks wherever the type has one.

    Example:
        from agentloop import Agent, OutputType, Runner
        from agentloop.testing import ScriptedModel, say

        numbers = OutputType(list[int], strict=False)
        agent = Agent("a", model=ScriptedModel([say('{"response": [1, 2]}')]), output_type=numbers)
        print(Runner.run_sync(agent, "Count.").final_output)  # [1, 2]
    """

    type: Any
    strict: bool | None = attrs.field(default=None, validator=optional(FIELDS.flag("expected a bool or None")))

    @overload
    def __init__(self, type: builtins.type[OutputT], strict: bool | None = None) -> None: ...
    @overload
    def __init__(self, type: object, strict: bool | None = None) -> None: ...
    def __init__(self, type: object, strict: bool | None = None) -> None:
        self.__attrs_init__(type, strict)  # pyright: ignore[reportAttributeAccessIssue]  # which it doesn't know of


@attrs.frozen(kw_only=True, eq=False)
class TypedOutput:
    """A final output that isn't plain text. Costly to make and never changes: make it once per agent.

    Attributes:
        schema: What the model is shown.
        wrapped: True if the value is wrapped under the key `response`.
        what: Of what it is the type, at the beginning of a message.
        type_name: The type, for messages.
    """

    schema: OutputSchema
    wrapped: bool
    what: str
    type_name: str
    _slot: _Parameter = attrs.field(alias="slot", repr=False)
    _open: Schema = attrs.field(alias="open", repr=False)
    """The value's own schema, before strict mode closed it."""
    _defs: Schema = attrs.field(alias="defs", repr=False)
    _unknown: frozenset[type] = attrs.field(alias="unknown", repr=False)
    """The classes in the type that only a converter of the application's can convert."""

    def parse(self, text: str, limits: JsonLimits = _LIMITS) -> Any:
        """Return the value of the model's *text*.

        Raises:
            ModelBehaviorError: no JSON, JSON beyond *limits*, or a value that doesn't fit; names each fault with its
                place and quotes at most 200 characters of what is there.
        """
        value = _json(self.what, text, limits)
        if not self.wrapped:
            return self._read(value, "$", limits)
        if isinstance(value, dict) and set(value) == {WRAPPER}:
            return self._read(value[WRAPPER], f"$.{WRAPPER}", limits)
        try:  # a model that no schema binds often writes the value without its wrapper
            return self._read(value, "$", limits)
        except ModelBehaviorError:
            shown = quote(json.dumps(value))
            raise ModelBehaviorError(f"{self.what} must be an object with the one key {WRAPPER}, not {shown}") from None

    def _read(self, value: Any, place: str, limits: JsonLimits) -> Any:
        """Return the value of the type that the plain *value* means; *place* is its place in the answer."""
        if self.schema.strict:
            value = drop_nulls(value, self._open, self._defs)

        def structure(value: Any) -> Any:
            return structure_as_meant(self._slot.structure, value, self._open, self._defs, limits.read_strings)

        return self._fit(structure, value, place, ModelBehaviorError, self.what)

    def using(self, converter: BaseConverter | None) -> TypedOutput:
        """Return this output with values converted by *converter*, the application's own, if it decides on the type.

        Raises:
            UserTypeError: if a part of the type is known to such a converter only, and this one doesn't know it.
        """
        if converter is None and not self._unknown:
            return self
        check_known(f"{self.what} ({self.type_name})", self._unknown, converter)
        return _adapt_output(self, converter)

    def validate(self, value: Any) -> Any:
        """Return *value*, which the application gave in the model's place, fitted to the type.

        An instance of the type stays the object it is; plain data becomes one.

        Raises:
            UserTypeError: naming each fault with its place.
        """
        slot = self._slot

        def structure(value: Any) -> Any:
            if slot.adapter is not None:
                return slot.adapter.validate_python(value)
            return slot.structure(to_json_value(slot.conversion.unstructure(value) if slot.conversion else value))

        fitted = self._fit(structure, value, "$", UserTypeError, f"{self.what} ({self.type_name})")
        return value if type(fitted) is type(value) and fitted == value else fitted

    def dump(self, value: Any) -> str:
        """Return the JSON text with which the model would have said *value*, an output of this type.

        Raises:
            UserTypeError: if *value* has no JSON form.
        """
        adapter = self._slot.adapter
        try:
            plain = (
                self._slot.unstructure(value)
                if adapter is None
                else adapter.dump_python(value, mode="json", by_alias=True)
            )
            return json.dumps({WRAPPER: plain} if self.wrapped else plain, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise UserTypeError(f"{self.what} ({self.type_name}) can't be written as JSON: {error}") from error

    def _fit(
        self,
        structure: Callable[[Any], Any],
        value: Any,
        place: str,
        fault: type[ModelBehaviorError | UserTypeError],
        what: str,
    ) -> Any:
        try:
            return structure(value)
        except Exception as error:
            # Not only the engines' own: a user's validator may raise anything, and it is the value that is wrong.
            faults = describe_faults(place, error, self._slot, value)
            raise fault(f"{what} doesn't fit: {'; '.join(faults)}") from error


def output_schema(type_: Any, *, what: str = FINAL_OUTPUT) -> TypedOutput | None:
    """Return how outputs of *type_* (a type, or an `OutputType`) are asked for and read; None for plain text.

    `None` and `str` mean plain text. The rest is as in `typed_output`.
    """
    asked = type_.type if isinstance(type_, OutputType) else type_
    return None if asked in (None, str, type(None)) else typed_output(type_, what=what)


def typed_output(type_: Any, *, what: str = FINAL_OUTPUT) -> TypedOutput:
    """Return how JSON outputs of *type_* (a type, or an `OutputType`) are asked for and read; text too is wrapped.

    The schema's name is `final_output`. *what* begins the messages about a value: whose type it is.

    Raises:
        UserTypeError: naming the type, if it has no JSON form, or no strict schema where that is insisted on.
    """
    asked = type_ if isinstance(type_, OutputType) else OutputType(type_)
    shown = _format_type(asked.type)
    slot, schema, defs, unknown = _describe_type(asked.type, f"{what} can't be of type {shown}")
    # A root must say for itself that it is an object, a reference won't do.
    plain = schema
    while name := ref_name(plain):
        plain = defs[name]
    wrapped = plain.get("type") != "object"
    root = _wrap_schema(schema) if wrapped else plain
    reason = obstacle(root, defs)
    if asked.strict and reason:
        raise UserTypeError(
            f"{what} can't be of type {shown}: {reason} has no strict schema; give OutputType(…, strict=False)"
        )
    strict = reason is None if asked.strict is None else asked.strict
    root = _with_defs(root, defs)
    return TypedOutput(
        schema=OutputSchema(name="final_output", schema=strict_form(root, defs) if strict else root, strict=strict),
        wrapped=wrapped,
        what=what,
        type_name=shown,
        slot=slot,
        open=schema,
        defs=defs,
        unknown=unknown,
    )


@functools.lru_cache(256)  # an output made once per agent; the bound is for agents made for every run
def _adapt_output(output: TypedOutput, converter: BaseConverter) -> TypedOutput:
    return attrs.evolve(output, slot=output._slot.using(conversion_of(converter)))


def _describe_type(hint: Any, refusal: str) -> tuple[_Parameter, Schema, Schema, frozenset[type]]:
    """Return what structures values of *hint*, its schema, the definitions this refers to, and classes unknown here."""
    try:
        slot = _Parameter(
            name=WRAPPER,
            hint=hint,
            adapter=pydantic_adapter(hint),
            default=inspect.Parameter.empty,
            by_position=False,
            starred=False,
        )
        schemas, defs, unknown = _schemas("", [slot])
    except Exception as error:
        # `_schemas` words its errors for tools; what it caught says why.
        cause = error.__cause__ or error
        reason = str(cause).rpartition("\n")[2]
        raise UserTypeError(f"{refusal}, which has no JSON form: {reason}") from cause
    return slot, schemas[WRAPPER], defs, unknown.get(WRAPPER, frozenset())


def _wrap_schema(schema: Schema) -> Schema:
    return {"type": "object", "properties": {WRAPPER: schema}, "required": [WRAPPER], "additionalProperties": False}


def _with_defs(root: Schema, defs: Mapping[str, Schema]) -> Schema:
    """Return *root* with those of *defs* that it refers to, directly or not."""
    used: dict[str, Schema] = {}

    def visit(schema: Any) -> None:
        if not isinstance(schema, dict):
            return
        name = ref_name(schema)
        if name and name not in used:
            used[name] = defs[name]
            visit(defs[name])
        each_child(schema, visit)

    visit(root)
    return {**root, "$defs": {name: defs[name] for name in defs if name in used}} if used else root


# Info words up to the end of the line, or one word in a fence of one line. JSON has no fence outside of its strings.
_FENCE = re.compile(
    rf"(`{{3,9}}+|~{{3,9}}+)(?:[^`~\n]*\n|[ \t]*\w*[ \t]+)\s*((?:{STRING}|[^\"`~\s])(?:{STRING}|[^\"`~])*+)(?:\1|\Z)",
    re.DOTALL,
)
_THOUGHT = "think|thinking|thought|reasoning"
# Servers that begin the thoughts themselves leave only their end in the answer.
_THOUGHTS = re.compile(rf".*?</(?:{_THOUGHT})>(?:\s*<({_THOUGHT})>.*?</\1>)*", re.DOTALL)


def _json(what: str, text: str, limits: JsonLimits) -> Any:
    if not text.strip():
        raise ModelBehaviorError(f"{what} is empty; expected JSON")
    try:
        return _parse_unwrapped(text, limits)
    except _Fault as fault:  # worded for many arguments
        raise ModelBehaviorError(f"{what} can't be read, its contents {fault}") from None
    except json.JSONDecodeError as error:
        raise ModelBehaviorError(f"{what} isn't valid JSON: {place_of(error)}") from None


def _parse_unwrapped(text: str, limits: JsonLimits) -> Any:
    """Return the JSON in *text*, or in the only code fence in it, which a model often writes without a schema."""
    try:
        return _parse(text, limits)
    except json.JSONDecodeError:
        thoughts = _THOUGHTS.match(text)
        answer = text[thoughts.end() :] if thoughts else text
        fenced = [match[2] for match in _FENCE.finditer(answer)]
        if len(fenced) == 1 or (thoughts and answer.strip()):
            return _parse(fenced[0] if len(fenced) == 1 else answer, limits)
        raise


def _format_type(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint)
