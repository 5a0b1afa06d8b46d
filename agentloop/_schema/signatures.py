"""Signatures of callables, read through wrappers, partials, bound methods and callable objects.

Does not know about JSON: `agentloop._schema.function_schema` turns a signature into a schema. No callable is ever
called here.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from agentloop._common.errors import UserTypeError
from agentloop._common.values import Value

_UNIONS = (typing.Union, types.UnionType)
LEFT_OUT: Any = object()
"""The default of a parameter that the function is called without if the model doesn't give it."""


class Signature(Value, frozen=True):
    """The signature of a callable.

    `parameters`: those that a caller may pass, without the context, annotations resolved. `taken`: names that a layer
    fills itself, so that no caller may pass them, not even into `**kwargs`.
    """

    name: str
    doc: str
    is_async: bool
    parameters: tuple[inspect.Parameter, ...]
    context: inspect.Parameter | None
    context_index: int | None
    """Index of the context among the positional arguments; None if it is passed by keyword."""
    taken: frozenset[str]
    returns: Any
    """The annotation of the result; None if there is none, or it can't be resolved."""


def read_signature(fn: Callable[..., Any], name: str | None, context_types: tuple[type, ...]) -> Signature:
    """Return the signature of *fn*: parameters of the innermost function, `is_async` of the outermost layer.

    Raises:
        UserTypeError: no signature, a missing or unresolvable annotation, two context parameters, no usable name.
    """
    if isinstance(fn, type) or not callable(fn):
        raise UserTypeError(f"A tool needs a function or a callable object, not {fn!r}")
    layers = list(_layers(fn))
    name = name or _find_name(layers)
    if inspect.isgeneratorfunction(layers[-1]) or inspect.isasyncgenfunction(layers[-1]):
        # Which items make the output, and what of a call that stops halfway? The log couldn't tell.
        raise UserTypeError(
            f"Tool {name}: {layers[-1].__qualname__} is a generator function (it has a `yield`), and a tool returns "
            "one value: collect the items and return a list"
        )
    try:
        signature = inspect.signature(fn)
    except (ValueError, TypeError) as error:
        raise UserTypeError(f"Tool {name}: its signature can't be read: {error}") from error
    found = signature.parameters
    bound = {key for layer in layers if isinstance(layer, functools.partial) for key in layer.keywords}
    open_parameters = [parameter for key, parameter in found.items() if key not in bound]
    scope = _Scope(layers[-1], {cls.__name__: cls for cls in context_types})
    resolved = [
        parameter.replace(annotation=scope.resolve(name, parameter, parameter.annotation))
        for parameter in open_parameters
    ]
    resolved = [part for parameter in resolved for part in _unpack(name, parameter, open_parameters)]
    context = _only_context(name, resolved, context_types)
    return Signature(
        name=name,
        doc=next(filter(None, map(_own_doc, layers)), ""),
        is_async=_is_async(fn),
        parameters=tuple(parameter for parameter in resolved if parameter is not context),
        context=context,
        context_index=None if context is None else _positional_index(resolved, context),
        taken=frozenset(bound | (_parameter_names(layers[-1]) - {parameter.name for parameter in resolved}))
        | ({context.name} if context else frozenset()),
        returns=scope.find(signature.return_annotation),
    )


def _unpack(tool: str, parameter: inspect.Parameter, others: Sequence[inspect.Parameter]) -> list[inspect.Parameter]:
    """Return *parameter*, or one parameter for each key of `**options: Unpack[Options]`, where that is what it is.

    A key that may be missing has the default LEFT_OUT: without it the call is made without it, too.
    """
    if parameter.kind is not parameter.VAR_KEYWORD or typing.get_origin(parameter.annotation) is not typing.Unpack:
        return [parameter]
    (given,) = typing.get_args(parameter.annotation)
    if not typing.is_typeddict(given):
        raise UserTypeError(f"Tool {tool}: parameter {parameter.name}: expected Unpack of a TypedDict, got {given!r}")
    hints = {name: _bare(hint) for name, hint in typing.get_type_hints(given, include_extras=True).items()}
    if taken := hints.keys() & {other.name for other in others}:
        raise UserTypeError(f"Tool {tool}: {given.__name__} has the name of another parameter: {', '.join(taken)}")
    defaults = {name: parameter.empty if name in given.__required_keys__ else LEFT_OUT for name in hints}
    return [
        inspect.Parameter(name, parameter.KEYWORD_ONLY, default=defaults[name], annotation=hint)
        for name, hint in hints.items()
    ]


def _bare(hint: Any) -> Any:
    """Return the type of a key without `Required`, `NotRequired` and `ReadOnly` around it."""
    around = (typing.Required, typing.NotRequired, getattr(typing, "ReadOnly", typing.Required))
    while typing.get_origin(hint) in around:
        (hint,) = typing.get_args(hint)
    return hint


def goes_by_position(parameter: inspect.Parameter, parameters: Sequence[inspect.Parameter]) -> bool:
    """Tell whether *parameter* has to be passed by position; every parameter before `*args` has to."""
    if parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
        return any(other.kind is other.VAR_POSITIONAL for other in parameters)
    return parameter.kind is parameter.POSITIONAL_ONLY


def _layers(fn: Any) -> Iterator[Any]:
    """Yield *fn* and each layer that it wraps, down to the function that does the work."""
    while True:
        yield fn
        if isinstance(fn, functools.partial):
            fn = fn.func
        elif inspect.ismethod(fn):  # before `__wrapped__`: a method shows the one of its function
            fn = fn.__func__
        elif hasattr(fn, "__wrapped__"):
            fn = fn.__wrapped__
        elif inspect.isroutine(fn):
            return
        else:
            fn = type(fn).__call__


def _find_name(layers: Sequence[Any]) -> str:
    # A callable object without its own name gets the name of the layer that it wraps, or else of its class.
    named = next(layer for layer in layers if hasattr(layer, "__name__") or not _wraps(layer))
    name = getattr(named, "__name__", type(named).__name__)
    if not name.isidentifier():
        raise UserTypeError(f"A tool made of {layers[0]!r} needs a name: give name=…")
    return str(name)


def _wraps(layer: Any) -> bool:
    return isinstance(layer, functools.partial) or hasattr(layer, "__wrapped__")


def _own_doc(layer: Any) -> str:
    if isinstance(layer, functools.partial):
        return ""  # its docstring is that of the class `partial`
    if inspect.isroutine(layer):
        return inspect.getdoc(layer) or ""
    own = getattr(layer, "__dict__", {}).get("__doc__")
    if own or _wraps(layer):
        return own if own and own != functools.partial.__doc__ else ""
    return type(layer).__call__.__doc__ or type(layer).__doc__ or ""


def _is_async(fn: Any) -> bool:
    while isinstance(fn, functools.partial):
        fn = fn.func
    return inspect.iscoroutinefunction(fn if inspect.isroutine(fn) else type(fn).__call__)


def _parameter_names(fn: Any) -> set[str]:
    code = getattr(fn, "__code__", None)
    if code is None:
        return set()
    names = code.co_varnames[code.co_posonlyargcount : code.co_argcount + code.co_kwonlyargcount]
    return set(names)


def _positional_index(parameters: Sequence[inspect.Parameter], context: inspect.Parameter) -> int | None:
    return parameters.index(context) if goes_by_position(context, parameters) else None


def _only_context(
    name: str, parameters: Sequence[inspect.Parameter], context_types: tuple[type, ...]
) -> inspect.Parameter | None:
    found = [parameter for parameter in parameters if _is_context(parameter.annotation, context_types)]
    if len(found) > 1:
        names = " and ".join(parameter.name for parameter in found)
        raise UserTypeError(f"Tool {name}: only one parameter can be the context, not {names}")
    for parameter in found:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise UserTypeError(f"Tool {name}: the context can't be the starred parameter {parameter}")
    return found[0] if found else None


def _is_context(hint: Any, context_types: tuple[type, ...]) -> bool:
    origin = typing.get_origin(hint)
    if origin is typing.Annotated:
        return _is_context(typing.get_args(hint)[0], context_types)
    if origin in _UNIONS:
        members = [member for member in typing.get_args(hint) if member is not type(None)]
        return all(_is_context(member, context_types) for member in members)
    cls = origin or hint
    return isinstance(cls, type) and issubclass(cls, context_types)


class _Scope:
    """The names that annotations of one function may use: of its module, its closure, and the functions around it."""

    def __init__(self, fn: Any, contexts: Mapping[str, type]) -> None:
        self._globals: dict[str, Any] = getattr(fn, "__globals__", {})
        self._code_names = getattr(fn, "__qualname__", "").split(".")
        self._closure = self._read_closure(fn)
        self._contexts = contexts

    def resolve(self, tool: str, parameter: inspect.Parameter, annotation: Any) -> Any:
        if annotation is parameter.empty:
            raise UserTypeError(f"Tool {tool}: parameter {parameter.name} has no annotation")
        try:
            return self._evaluate(annotation, self._closure)
        except NameError:
            pass
        except Exception as error:
            raise self._make_error(tool, parameter, error) from error
        try:
            return self._evaluate(annotation, {**self._enclosing_locals(), **self._closure})
        except Exception as error:
            # A context type is often imported for type checkers only, so its name alone has to do.
            head = str(annotation).partition("[")[0].rpartition(".")[2].strip()
            if head in self._contexts:
                return self._contexts[head]
            raise self._make_error(tool, parameter, error) from error

    def find(self, annotation: Any) -> Any:
        """Return the annotation of a result, resolved; None if there is none, or it can't be resolved."""
        if annotation is inspect.Signature.empty:
            return None
        try:
            return self._evaluate(annotation, {**self._enclosing_locals(), **self._closure})
        except Exception:  # it serves stored results only, so that a tool with another one works
            return None

    @staticmethod
    def _make_error(tool: str, parameter: inspect.Parameter, error: Exception) -> UserTypeError:
        return UserTypeError(
            f"Tool {tool}: the annotation {parameter.annotation!r} of parameter {parameter.name} "
            f"can't be resolved: {error}"
        )

    def _evaluate(self, annotation: Any, names: Mapping[str, Any]) -> Any:
        def holder() -> None:
            raise AssertionError  # pragma: no cover (only holds the annotation, is never called)

        holder.__annotations__ = {"it": annotation}
        hints = typing.get_type_hints(holder, self._globals, dict(names), include_extras=True)
        return hints["it"]

    @staticmethod
    def _read_closure(fn: Any) -> dict[str, Any]:
        cells = getattr(fn, "__closure__", None) or ()
        names = fn.__code__.co_freevars if cells else ()
        found = {}
        for name, cell in zip(names, cells, strict=True):
            try:
                found[name] = cell.cell_contents
            except ValueError:  # not assigned yet
                continue
        return found

    def _enclosing_locals(self) -> dict[str, Any]:
        """Return the locals of the functions around the definition that are still running; an inner one overrides."""
        found: dict[str, Any] = {}
        frame: types.FrameType | None = sys._getframe(1)
        while frame is not None:
            if frame.f_globals is self._globals and frame.f_code.co_name in self._code_names:
                found = {**frame.f_locals, **found}
            frame = frame.f_back
        return found
