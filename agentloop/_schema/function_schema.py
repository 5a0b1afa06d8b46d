"""A function's JSON schema, and the binding of a model's arguments to its parameters.

msgspec decides how a type is written in JSON; a parameter with a pydantic type is left to pydantic, which is never
imported here: the module that made such a type has imported it. `agentloop._schema.json_text` parses the text before.
Does not know about tools or calls.
"""

from __future__ import annotations

import contextlib
import functools
import json
import operator
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import msgspec

from agentloop._common.errors import ModelBehaviorError, UserTypeError
from agentloop._common.values import NotedValue, Value
from agentloop._schema.conversion import Conversion, conversion_of, each_fault, find_faults
from agentloop._schema.declared import add_declared
from agentloop._schema.docstrings import read_docstring
from agentloop._schema.json_schema import (
    REF_TEMPLATE,
    Schema,
    admits_null,
    drop_nulls,
    hoist,
    obstacle,
    settle_given,
    strict_form,
    tidy,
)
from agentloop._schema.json_text import canonical, quote
from agentloop._schema.leniency import reread
from agentloop._schema.parameter_hints import EMPTY, read_hints
from agentloop._schema.pydantic_types import (
    adapter_schema,
    dec_hook,
    enc_hook,
    pydantic_adapter,
    pydantic_errors,
    read_json_value,
    schema_hook,
)
from agentloop._schema.signatures import LEFT_OUT, Signature, goes_by_position, read_signature

if TYPE_CHECKING:
    from cattrs import BaseConverter

_MOST_QUOTED = 200
_MOST_FAULTS = 10


class _Parameter(Value, frozen=True, kw_only=True):
    """One parameter that the model fills. `hint` is for msgspec; a pydantic `adapter` decides instead if there is one.

    A `*args` parameter is a list with the default `()`.
    """

    name: str
    hint: Any
    adapter: Any
    default: Any
    by_position: bool
    starred: bool
    conversion: Conversion | None = None
    make_default: Callable[[], Any] | None = None
    """Makes the default anew for each call; None where `default` serves them all."""
    alias: str | None = None
    """The name by which the model knows the parameter; None where it is `name`."""
    description: str = ""

    @property
    def key(self) -> str:
        """The parameter's name in JSON."""
        return self.alias or self.name

    @property
    def required(self) -> bool:
        return self.default is EMPTY

    @property
    def has_default(self) -> bool:
        """True if a call without it has a value for it. A key of a TypedDict may be missing and have none."""
        return not self.required and self.default is not LEFT_OUT

    @property
    def native(self) -> bool:
        """True if msgspec alone converts the values."""
        return self.adapter is None and self.conversion is None

    def using(self, conversion: Conversion) -> _Parameter:
        """Return this parameter with values converted by *conversion*, if it decides on the type."""
        if self.adapter is not None or not conversion.decides(self.hint):
            return self
        return self.replace(conversion=conversion)

    def structure(self, value: Any) -> Any:
        """Return the value of this parameter for a JSON value. Any exception means that the value doesn't fit."""
        if self.adapter is not None:
            return read_json_value(self.adapter, value)
        if self.conversion is not None:
            return self.conversion.structure(value, self.hint)
        return msgspec.convert(value, self.hint, str_keys=True, dec_hook=dec_hook)

    def unstructure(self, value: Any) -> Any:
        """Return *value*, of this parameter, as a JSON value."""
        if self.adapter is not None:
            return self.adapter.dump_python(value, mode="json", by_alias=True)
        return to_json_value(value if self.conversion is None else self.conversion.unstructure(value, self.hint))


class _Binder(Value, frozen=True, kw_only=True, eq=False):
    """The prepared binding of one function's arguments. Immutable, made once per function."""

    tool: str
    parameters: tuple[_Parameter, ...]
    extra: _Parameter | None
    """The parameter `**kwargs`, with the type of each value."""
    taken: frozenset[str]
    context: str | None
    context_index: int | None
    struct: type[msgspec.Struct]
    """The parameters as fields in order, UNSET for a missing one. Tried first, since it converts all in one call."""
    null_means_default: frozenset[str]
    strict: bool
    schemas: Mapping[str, Any]
    """Each parameter's schema, by name, before the change to strict mode."""
    names: tuple[str, ...]
    aliases: Mapping[str, str]
    """The names of parameters by the names that the model knows them by, where these differ."""
    unknown: Mapping[str, frozenset[type]]
    """See `FunctionSchema.unknown`."""
    all_native: bool
    by_keyword: bool
    """True if `values` can be used as the keyword arguments unchanged."""
    defs: Schema
    default_keys: Mapping[str, Any]
    """JSON values of the defaults, the same as if the model had sent them."""

    def row(self, arguments: Mapping[str, Any]) -> tuple[Any, ...] | None:
        """Return the parameters' values in order, or None if something doesn't fit."""
        try:
            row = msgspec.structs.astuple(msgspec.convert(arguments, self.struct, str_keys=True, dec_hook=dec_hook))
            if self.all_native:
                return row
            return tuple(
                value if parameter.native or value is msgspec.UNSET else parameter.structure(value)
                for parameter, value in zip(self.parameters, row, strict=True)
            )
        except Exception:
            return None  # `slow_row` then collects all faults, each with its parameter

    def slow_row(self, arguments: Mapping[str, Any], faults: list[str], strings: bool) -> tuple[Any, ...]:
        """Return the values as `row` does, one parameter at a time, also those that mean something else than they say.

        Appends each fault to *faults*. *strings*: True to read JSON in strings.
        """
        row: list[Any] = []
        for parameter in self.parameters:
            value = msgspec.UNSET
            if parameter.name in arguments:
                value = self._structure_or_fault(parameter, arguments[parameter.name], faults, strings)
            row.append(value)
        missing = [p.key for p in self.parameters if p.required and p.name not in arguments]
        if missing:
            faults.append(f"missing: {', '.join(missing)}")
        return tuple(row)

    def extras(self, arguments: Mapping[str, Any], faults: list[str], strings: bool) -> dict[str, Any]:
        """Return the values for `**kwargs` among *arguments*; append each fault to *faults*."""
        if self.extra is None:
            return {}
        found: dict[str, Any] = {}
        wrong = 0
        for name, value in arguments.items():
            if name in self.taken:
                continue
            try:
                # The schema of such a tool is never strict.
                found[name] = self._structure_as_meant(self.extra, value, strings)
            except Exception as error:
                wrong += 1
                if wrong <= _MOST_FAULTS:
                    faults.append(_describe(quote(name, 50), error))
        if wrong > _MOST_FAULTS:
            faults.append(f"{wrong - _MOST_FAULTS} more don't fit")
        return found

    def _structure_or_fault(self, parameter: _Parameter, value: Any, faults: list[str], strings: bool) -> Any:
        if self.strict:
            value = drop_nulls(value, self.schemas[parameter.name], self.defs)
        try:
            return self._structure_as_meant(parameter, value, strings)
        except Exception as error:
            # Any exception means a wrong value: a user's validator may raise other ones than msgspec and pydantic do.
            faults += describe_faults(parameter.key, error, parameter, value)
            return msgspec.UNSET

    def _structure_as_meant(self, parameter: _Parameter, value: Any, strings: bool) -> Any:
        return structure_as_meant(parameter.structure, value, self.schemas[parameter.name], self.defs, strings)


class BoundArguments(NotedValue, frozen=True):
    """Arguments that fit a function. `args` and `kwargs` are those of the call, without the context.

    `values` maps names to values, in signature order with defaults filled in; it holds `*args` as one tuple and
    `**kwargs` as one dict.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    values: dict[str, Any]
    _sent: Mapping[str, Any]
    _binder: _Binder

    _notes = frozenset({"_sent", "_binder"})
    _unshown = _notes

    def call(self, fn: Callable[..., Any], context: Any = None) -> Any:
        """Call *fn* with these arguments, and with *context* if it has a parameter for it. Return its result."""
        args, kwargs = self.args, self.kwargs
        if self._binder.context_index is not None:
            index = self._binder.context_index
            args = (*args[:index], context, *args[index:])
        elif self._binder.context is not None:
            kwargs = {**kwargs, self._binder.context: context}
        return fn(*args, **kwargs)

    def key(self) -> str:
        """Return canonical JSON of the values, equal for equal calls even if the model wrote them differently."""
        form = {parameter.name: self._json_value(parameter) for parameter in self._binder.parameters}
        if (extra := self._binder.extra) is not None:
            for name, value in self.values[extra.name].items():
                # No parameter's name begins with a star, so an extra argument can't collide with one.
                form[f"*{name}"] = _json_value_or(extra, value, self._sent[name])
        return canonical(form)

    def _json_value(self, parameter: _Parameter) -> Any:
        if parameter.name not in self._sent:
            return self._binder.default_keys.get(parameter.name)
        return _json_value_or(parameter, self.values[parameter.name], self._sent[parameter.name])


@attrs.frozen(kw_only=True)
class FunctionSchema:
    """A function's description for a model, and the binding of arguments to it. Immutable; owned by its tool.

    Attributes:
        params_json_schema: JSON schema (draft 2020-12) of the arguments, an object at its root, types in `$defs`.
        context_parameter: Name of the parameter that takes the run's context and is hidden from the model, or None.
        is_async: True if a call returns an awaitable.
        returns: The annotation of the result; None if there is none, or it can't be resolved.
        unknown: By parameter: the classes in its type that only a converter of the application's can convert.
    """

    name: str
    description: str
    params_json_schema: Schema
    strict: bool
    context_parameter: str | None
    is_async: bool
    returns: Any = attrs.field(repr=False)
    unknown: Mapping[str, frozenset[type]] = attrs.field(repr=False)
    _binder: _Binder = attrs.field(alias="binder", repr=False, eq=False)

    @property
    def extra_parameter(self) -> str | None:
        """Name of the parameter for arguments that no other parameter takes (`**kwargs`), or None."""
        return None if self._binder.extra is None else self._binder.extra.name

    def check_converter(self, converter: BaseConverter | None) -> None:
        """Check that *converter*, the application's, knows the types that only such a converter can convert.

        Raises:
            UserTypeError: naming the tool, the parameter and the type.
        """
        _check_known(self._binder, converter)

    def restore(self, value: Any, converter: BaseConverter) -> Any:
        """Return a result, stored by an earlier process, as *converter* makes it; *value* itself if it doesn't fit."""
        conversion = conversion_of(converter)
        if self.returns is None or not conversion.decides(self.returns):
            return value
        try:
            return conversion.structure(value, self.returns)
        except Exception:  # of another version of the function, or an object of this very process
            return value

    def bind(
        self, arguments: dict[str, Any], converter: BaseConverter | None = None, *, read_strings: bool = True
    ) -> BoundArguments:
        """Return *arguments* (a parsed JSON object) fitted to the parameters; *converter* is the application's own.

        A value that doesn't fit is looked at once more: see `agentloop._schema.leniency`.

        Args:
            read_strings: See `JsonLimits`.

        Raises:
            UserTypeError: as for `check_converter`.
            ModelBehaviorError: naming the tool and every fault: each value that doesn't fit with its path, the missing
                parameters, and the unknown names.
        """
        binder = self._binder
        if converter is not None or binder.unknown:
            _check_known(binder, converter)
            binder = _adapt(binder, converter)
        if binder.aliases:
            arguments = {binder.aliases.get(name, name): value for name, value in arguments.items()}
        sent = arguments
        if binder.null_means_default and None in arguments.values():
            unset = binder.null_means_default
            sent = {name: value for name, value in arguments.items() if value is not None or name not in unset}
        if binder.extra is None and (fitting := binder.row(sent)) is not None:
            # Most arguments are texts and numbers, each of which is its own value: the call then needs no second dict.
            kept = binder.by_keyword and len(sent) == len(fitting) and all(map(operator.is_, sent.values(), fitting))
            return _assemble(binder, sent if kept else dict(zip(binder.names, fitting, strict=True)), {}, sent)
        faults: list[str] = []
        known = {parameter.name for parameter in binder.parameters}
        rest = {name: value for name, value in sent.items() if name not in known}
        unknown = [name for name in rest if binder.extra is None or name in binder.taken]
        row = binder.slow_row(sent, faults, read_strings)
        extras = binder.extras(rest, faults, read_strings)
        if unknown:
            faults.append(f"unknown: {_cut(', '.join(unknown))}")
        if faults:
            raise ModelBehaviorError(f"Arguments of tool {self.name} don't fit: {'; '.join(faults)}")
        return _assemble(binder, dict(zip(binder.names, row, strict=True)), extras, sent)


def _assemble(
    binder: _Binder, values: dict[str, Any], extras: dict[str, Any], sent: Mapping[str, Any]
) -> BoundArguments:
    """Return the arguments with *values*, into which the defaults and *extras* are filled."""
    if msgspec.UNSET in values.values():
        values |= {
            p.name: p.default if p.make_default is None else p.make_default()
            for p in binder.parameters
            if values[p.name] is msgspec.UNSET and p.default is not LEFT_OUT
        }
        values = {name: value for name, value in values.items() if value is not msgspec.UNSET}
    if binder.by_keyword:
        return BoundArguments((), values, values, sent, binder)
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for parameter in binder.parameters:
        if parameter.name not in values:  # a key of a TypedDict that the model has left out
            continue
        value = values[parameter.name]
        if parameter.starred:
            values[parameter.name] = tuple(value)
            args.extend(value)
        elif parameter.by_position:
            args.append(value)
        else:
            kwargs[parameter.name] = value
    if binder.extra is not None:
        values[binder.extra.name] = extras
        kwargs |= extras
    return BoundArguments(tuple(args), kwargs, values, sent, binder)


def function_schema(
    fn: Callable[..., Any],
    *,
    name: str | None = None,
    description: str | None = None,
    strict: bool = True,
    context_types: tuple[type, ...],
) -> FunctionSchema:
    """Return the schema of *fn*, made from its signature and its docstring (Google, NumPy or Sphinx style).

    The signature is read through `functools.wraps`, partials, bound methods and callable objects. The one parameter
    annotated with one of *context_types* (or a subclass, generic or optional form of it) is not part of the schema.

    Raises:
        UserTypeError: naming the tool and the parameter: no annotation or one without a JSON form, a default that JSON
            can't hold, two context parameters, or a type that *strict* mode can't describe.
    """
    signature = read_signature(fn, name, context_types)
    documented = read_docstring(signature.doc)
    tool = signature.name
    parameters, extra = _make_parameters(signature)
    every = [*parameters, *([extra] if extra else [])]
    schemas, defs, unknown = _schemas(tool, every)
    if strict:
        _check_strict(tool, parameters, extra, schemas, defs)
    struct = _struct(tool, parameters)
    binder = _Binder(
        tool=tool,
        parameters=tuple(parameters),
        extra=extra,
        taken=signature.taken,
        context=signature.context.name if signature.context else None,
        context_index=signature.context_index,
        struct=struct,
        null_means_default=frozenset(
            p.name for p in parameters if strict and not p.required and not admits_null(schemas[p.name], defs)
        ),
        strict=strict,
        schemas=schemas,
        names=tuple(p.name for p in parameters),
        aliases={p.alias: p.name for p in parameters if p.alias},
        unknown=unknown,
        all_native=all(p.native for p in parameters),
        by_keyword=extra is None and not any(p.by_position or p.starred for p in parameters),
        defs=defs,
        default_keys={p.name: _default_value(tool, p) for p in every if p.has_default},
    )
    return FunctionSchema(
        name=tool,
        description=documented.description if description is None else description,
        params_json_schema=_root(binder, schemas, documented.parameters, strict),
        strict=strict,
        context_parameter=binder.context,
        is_async=signature.is_async,
        returns=signature.returns,
        unknown=unknown,
        binder=binder,
    )


def _make_parameters(signature: Signature) -> tuple[list[_Parameter], _Parameter | None]:
    found: list[_Parameter] = []
    extra: _Parameter | None = None
    for parameter in signature.parameters:
        given = read_hints(parameter.annotation, parameter.default)
        hint, default, starred = given.hint, given.default, parameter.kind is parameter.VAR_POSITIONAL
        if starred:
            hint, default = types.GenericAlias(list, (hint,)), ()
        made = _Parameter(
            name=parameter.name,
            hint=hint,
            adapter=_make_adapter(signature.name, parameter.name, hint),
            default=default,
            by_position=goes_by_position(parameter, signature.parameters),
            starred=starred,
            make_default=given.make_default,
            alias=given.alias,
            description=given.description,
        )
        if parameter.kind is parameter.VAR_KEYWORD:
            extra = made
        else:
            found.append(made)
    return found, extra


def _make_adapter(tool: str, name: str, hint: Any) -> Any:
    try:
        return pydantic_adapter(hint)
    except Exception as error:
        raise _make_type_error(tool, name, hint, error) from error


def _struct(tool: str, parameters: Sequence[_Parameter]) -> type[msgspec.Struct]:
    # Fields have generated names: a parameter may have a name that a Struct can't have (`__x`).
    fields: list[Any] = []
    for index, parameter in enumerate(parameters):
        hint = parameter.hint if parameter.native else Any
        fields.append((f"f{index}", hint) if parameter.required else (f"f{index}", hint, msgspec.UNSET))
    names = {f"f{index}": parameter.key for index, parameter in enumerate(parameters)}
    struct = msgspec.defstruct(f"Arguments_{tool}", fields, rename=names, kw_only=True, forbid_unknown_fields=True)
    with contextlib.suppress(msgspec.ValidationError):
        msgspec.convert({}, struct)  # the first conversion is slow: it prepares the type
    return struct


def _schemas(
    tool: str, parameters: Sequence[_Parameter]
) -> tuple[dict[str, Any], Schema, Mapping[str, frozenset[type]]]:
    """Return each parameter's schema by name, the definitions that they share, and `_Binder.unknown`."""
    native = [parameter for parameter in parameters if parameter.adapter is None]
    unknown = {}
    for parameter in native:
        try:
            msgspec.json.Decoder(parameter.hint, dec_hook=dec_hook)
            if found := _components([parameter.hint])[2]:
                unknown[parameter.name] = found
        except Exception as error:
            raise _make_type_error(tool, parameter.name, parameter.hint, error) from error
    schemas, defs, _ = _components([parameter.hint for parameter in native])
    by_name = {parameter.name: schema for parameter, schema in zip(native, schemas, strict=True)}
    for parameter in parameters:
        if parameter.adapter is not None:
            try:
                by_name[parameter.name] = adapter_schema(parameter.adapter)
            except Exception as error:
                raise _make_type_error(tool, parameter.name, parameter.hint, error) from error
    hoisted: Schema = {}
    for key, schema in defs.items():
        hoisted[key] = hoist(schema, hoisted)
    by_name = {
        parameter.name: tidy(hoist(by_name[parameter.name], hoisted), parameter.name) for parameter in parameters
    }
    return by_name, tidy({"$defs": hoisted})["$defs"], unknown


def _components(hints: Sequence[Any]) -> tuple[list[Schema], Schema, frozenset[type]]:
    schemas, defs = msgspec.json.schema_components(hints, schema_hook=schema_hook, ref_template=REF_TEMPLATE)
    add_declared(hints, schemas, defs)
    unknown: set[type] = set()
    settled = [settle_given(schema, unknown) for schema in schemas]
    return settled, {name: settle_given(schema, unknown) for name, schema in defs.items()}, frozenset(unknown)


def schema_of(what: str, hint: Any) -> dict[str, Any]:
    """Return the JSON schema of the type *hint*, as one object with its definitions; *what* names it.

    Raises:
        UserTypeError: the type has none.
    """
    try:
        (schema,), defs, _ = _components([hint])
    except (TypeError, NameError) as error:
        raise UserTypeError(f"{what}: no JSON schema can be made of {hint!r}: {error}") from error
    return {**schema, "$defs": dict(defs)} if defs else dict(schema)


@functools.lru_cache(1024)  # a binder made once per tool; the bound is for tools made for every run
def _adapt(binder: _Binder, converter: BaseConverter) -> _Binder:
    """Return *binder* with the parameters converted by *converter* that it decides on."""
    conversion = conversion_of(converter)
    parameters = tuple(parameter.using(conversion) for parameter in binder.parameters)
    return binder.replace(
        parameters=parameters,
        extra=None if binder.extra is None else binder.extra.using(conversion),
        struct=_struct(binder.tool, parameters),
        all_native=all(parameter.native for parameter in parameters),
    )


def _check_known(binder: _Binder, converter: BaseConverter | None) -> None:
    for name, classes in binder.unknown.items():
        check_known(f"Tool {binder.tool}: parameter {name}", classes, converter)


def check_known(what: str, classes: Iterable[type], converter: BaseConverter | None) -> None:
    """Check that *converter* has hooks for *classes*, which are part of the type of *what*.

    Raises:
        UserTypeError: naming *what* and the class.
    """
    for cls in classes:
        if converter is None or not conversion_of(converter).knows(cls):
            needed = "a converter" if converter is None else f"a structure hook for {cls.__qualname__} in the converter"
            raise UserTypeError(f"{what} is of type {cls.__qualname__}: expected {needed} (RunConfig.converter)")


def _make_type_error(tool: str, name: str, hint: Any, error: Exception) -> UserTypeError:
    shown = hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint)
    reason = str(error).rpartition("\n")[2]
    return UserTypeError(f"Tool {tool}: parameter {name} has a type without a JSON form, {shown}: {reason}")


def _check_strict(
    tool: str, parameters: Sequence[_Parameter], extra: _Parameter | None, schemas: Mapping[str, Any], defs: Schema
) -> None:
    reasons = [(p.name, reason) for p in parameters if (reason := obstacle(schemas[p.name], defs))]
    if extra is not None:
        reasons.append((f"**{extra.name}", "an object with free keys"))
    if reasons:
        name, reason = reasons[0]
        raise UserTypeError(
            f"Tool {tool}: parameter {name} is {reason}, which has no strict schema; give strict_mode=False"
        )


def _default_value(tool: str, parameter: _Parameter) -> Any:
    """Return the JSON value of a default, the same as if the model had sent it (1 is 1.0 for a float)."""
    try:
        plain = json.loads(canonical(parameter.unstructure(parameter.default)))
    except (TypeError, ValueError, RecursionError) as error:
        raise UserTypeError(
            f"Tool {tool}: the default of parameter {parameter.name} can't be written as JSON: {error}"
        ) from error
    try:
        return json.loads(canonical(parameter.unstructure(parameter.structure(plain))))
    except Exception:
        return plain  # a default may be outside the declared type


def _root(binder: _Binder, schemas: Mapping[str, Any], documented: Mapping[str, str], strict: bool) -> Schema:
    properties: Schema = {}
    for parameter in binder.parameters:
        member = _add_description(schemas, parameter, documented)
        if parameter.has_default and not parameter.starred:
            member["default"] = binder.default_keys[parameter.name]
        properties[parameter.key] = member
    root: Schema = {
        "type": "object",
        "properties": properties,
        "required": [parameter.key for parameter in binder.parameters if parameter.required],
        "additionalProperties": _add_description(schemas, binder.extra, documented) if binder.extra else False,
    }
    if binder.defs:
        root["$defs"] = binder.defs
    return typing.cast(Schema, strict_form(root, binder.defs)) if strict else root


def _add_description(schemas: Mapping[str, Any], parameter: _Parameter, documented: Mapping[str, str]) -> Schema:
    # The words beside the type are nearer to it than the docstring's; those of `Field` and `Meta` are in the schema.
    words = parameter.description or documented.get(parameter.name)
    return {**({"description": words} if words else {}), **schemas[parameter.name]}


def structure_as_meant(structure: Callable[[Any], Any], value: Any, schema: Any, defs: Schema, strings: bool) -> Any:
    """Return `structure(value)`; where it fails, that of the value which *value* means by *schema*.

    Raises:
        Exception: of `structure(value)`, if neither fits.
    """
    try:
        return structure(value)
    except Exception:
        meant = reread(value, schema, defs, strings=strings)
        with contextlib.suppress(Exception):  # a fault of another value than the model wrote would confuse it
            return structure(meant)
        raise


def to_json_value(value: Any) -> Any:
    """Return *value* as a JSON value (dicts, lists or tuples, and scalars), if msgspec or pydantic can write it.

    Raises:
        TypeError, ValueError: if *value* has no JSON form.
    """
    return msgspec.to_builtins(value, str_keys=True, order="deterministic", enc_hook=enc_hook)


def _json_value_or(parameter: _Parameter, value: Any, sent: Any) -> Any:
    try:
        return parameter.unstructure(value)
    except (TypeError, ValueError, RecursionError):
        return sent  # an object of a user's class may hold values that JSON can't


def describe_faults(path: str, error: Exception, parameter: _Parameter, value: Any) -> list[str]:
    """Return what is wrong with *value*, for which *parameter* raised *error*; each fault with its place below *path*.

    msgspec names one fault, so that the hooks of cattrs are asked for all of them.
    """
    found = list(each_fault(error))
    if isinstance(error, msgspec.ValidationError) and parameter.native:
        every = find_faults(value, parameter.hint)
        found = every if len(every) > 1 else found
    shown = [_describe(f"{path}{place}", fault) for place, fault in found[:_MOST_FAULTS]]
    return [*shown, f"{len(found) - _MOST_FAULTS} more don't fit"] if len(found) > _MOST_FAULTS else shown


def _describe(path: str, error: Exception) -> str:
    if isinstance(error, msgspec.ValidationError):
        text, _, where = str(error).partition(" - at `$")
        return f"{_cut(path)}{_cut(where[:-1])}: {_cut(text)}" if where else f"{_cut(path)}: {_cut(text)}"
    if (faults := pydantic_errors(error)) is not None:
        return _cut("; ".join(f"{path}{where}: {text}" for where, text in faults))
    return f"{path}: {_cut(f'{type(error).__name__}({error})')}"


def _cut(text: str) -> str:
    return quote(text, _MOST_QUOTED)[1:-1]
