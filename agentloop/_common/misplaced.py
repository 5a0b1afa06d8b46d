"""Options in the wrong place: an error that says where they go, read off the definitions themselves."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any, NoReturn, TypeVar

from agentloop._common.errors import UserTypeError

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])
ClassT = TypeVar("ClassT", bound=type)

_places: dict[str, tuple[Callable[[], inspect.Signature], str]] = {}
"""Each callable that takes options, by name: what reads its signature, and the text that says how to give it an option.

A signature is read when an option is misplaced: at the import, all of them would take half a millisecond.
"""

_USUAL_ELSEWHERE = {
    "approval": ("needs_approval",),
    "requires_approval": ("needs_approval",),
    "system": ("instructions",),
    "system_prompt": ("instructions",),
    "deps": ("context",),
    "name_override": ("name",),
    "description_override": ("description",),
    "tool_name_override": ("tool_name", "name"),
    "tool_description_override": ("tool_description", "description"),
    "enabled": ("is_enabled",),
    "retries": ("output_retries",),
    "max_retries": ("output_retries",),
    "result_type": ("output_type",),
    "response_include": ("include",),
    "request_limit": ("requests",),
    "tool_calls_limit": ("tool_calls",),
    "cost_limit": ("cost",),
    "input_tokens_limit": ("input_tokens",),
    "output_tokens_limit": ("output_tokens",),
    "total_tokens_limit": ("total_tokens",),
    "concurrency": ("limit",),
    "max_concurrency": ("limit",),
    "max_tool_calls": ("tool_calls",),
    "max_iterations": ("max_turns",),
    "recursion_limit": ("max_turns",),
    "max_steps": ("max_turns",),
    "response_format": ("output_type",),
    "llm": ("model",),
    "memory": ("session",),
    "thread_id": ("session",),
    "checkpointer": ("journal",),
    "callbacks": ("hooks",),
}
"""Names that other libraries give to options, and the names here: too far from them to be found by likeness."""
_WRITTEN_ELSEWHERE = {
    "message_history": "Give the earlier items as the input, [*result.to_input_list(), …], or a session",
    "usage_limits": "Write run_config=RunConfig(limits=UsageLimits(…))",
    "usage": "A nested run shares the budget of the run around it",
    "deps": "Write Runner.run(…, context=…)",
    "deps_type": "Annotate the context where you take it, ctx: ToolContext[Shop]; for type checkers: Agent[Shop]",
    "mcp_servers": "Write toolsets=[MCPServer(…)], with MCPServer of agentloop.mcp",
    "retries": "The model decides whether it calls a tool again; ModelSettings(retry=…) is for requests",
    "requires_approval": "Write tool(needs_approval=True)",
    "sequential": 'Write tool(exclusive=True), tool(serial="group") or Agent(tool_execution="sequential")',
    "cancellation_token": "Cancel the scope around the run, or stream.cancel()",
    "stop": 'Write ModelSettings(extra_body={"stop": [...]})',
    "cost_limit": "Write run_config=RunConfig(limits=UsageLimits(cost=…), price=…)",
    "request_limit": "Write run_config=RunConfig(limits=UsageLimits(requests=…))",
    "stop_sequences": 'Write ModelSettings(extra_body={"stop_sequences": [...]})',
    "memory": "Write Runner.run(…, session=…)",
    "checkpointer": "Write Runner.run(…, journal=…)",
    "max_iterations": "Write Runner.run(…, max_turns=…)",
    "middleware": "Write hooks=…, or RunConfig(policies=[…]) for what decides on calls",
    "messages": "Give them as the input, Runner.run(agent, [UserMessage(…), …])",
    "stop_at_tool_names": "Write Agent(tool_use_behavior=StopAtTools([…]))",
    "return_direct": "Write Agent(tool_use_behavior=StopAtTools([…]))",
    "args_schema": "Annotate the parameters of the function: the schema is made from them",
    "always_approve": "Write state.approve(item, always=True)",
    "always_reject": "Write state.reject(item, always=True)",
    "rejection_message": "Write state.reject(item, message=…)",
    "reasoning_item_id_policy": 'Write ModelSettings(reasoning_item_ids="omit")',
}
"""Options of other libraries that are something else here, with what to write. The migration pages have the same."""


def refuse_attribute(owner: object, name: str, elsewhere: Mapping[str, str]) -> NoReturn:
    """Raise the error for the attribute *name*, which *owner* doesn't have; *elsewhere* has what to use for some names.

    Raises:
        AttributeError: always.
    """
    hint = f"; use {elsewhere[name]}" if name in elsewhere else ""
    raise AttributeError(
        f"{type(owner).__name__!r} object has no attribute {name!r}{hint}", name=name, obj=owner
    ) from None


def takes_options(
    written: str, *, read: Callable[[Mapping[str, Any]], dict[str, Any]] | None = None, also: Collection[str] = ()
) -> Callable[[ClassT], ClassT]:
    """Have the constructor of a class tell where an option goes that isn't its own.

    *written* is how an option is given to the class in full, with `OPTION` in its place. *read* returns the options
    that the constructor takes for those that were given, of which some may have the names in *also*.
    """

    def decorate(cls: ClassT) -> ClassT:
        # attrs calls it so where the class has an `__init__` for type checkers
        made: Any = vars(cls).get("__attrs_init__") or vars(cls)["__init__"]
        made.__qualname__ = f"{cls.__qualname__}.__init__"
        cls.__init__ = _explain_misplaced(made, cls.__name__, written, read=read, also=also)  # type: ignore[misc]
        return cls

    return decorate


def function_takes_options(
    name: str, written: str | None = None, *, options: type | None = None
) -> Callable[[FunctionT], FunctionT]:
    """Have a function that the application knows as *name* do the same; without *written* no error points to it.

    *options* is the `TypedDict` of its `**options`, if it has them: to the application each is its own parameter.
    """
    return lambda function: _explain_misplaced(function, name, written, options)


def _explain_misplaced(
    function: FunctionT,
    name: str,
    written: str | None,
    unpacked: type | None = None,
    read: Callable[[Mapping[str, Any]], dict[str, Any]] | None = None,
    also: Collection[str] = (),
) -> FunctionT:
    unpacked_signature = None if unpacked is None else _unpack(inspect.signature(function), unpacked)
    known = None if unpacked_signature is None else frozenset(unpacked_signature.parameters)

    def signature() -> inspect.Signature:
        return unpacked_signature or _add(inspect.signature(function), also)

    if written is not None:
        _places[name] = (signature, written)

    @functools.wraps(function)
    def tell(*args: Any, **options: Any) -> Any:
        __tracebackhide__ = True
        options = options if read is None else read(options)
        if known is not None and not known.issuperset(options):
            _check(signature(), name, args, options)  # the function itself would take it
        try:
            return function(*args, **options)
        except TypeError as error:
            # Only what doesn't fit the signature is misplaced; other errors come from inside.
            if not isinstance(error, UserTypeError):
                _check(signature(), name, args, options)
            raise

    if unpacked_signature is not None:
        tell.__signature__ = unpacked_signature  # type: ignore[attr-defined]  # read by `inspect`, and so by `help`
    mark = getattr(inspect, "markcoroutinefunction", None)  # from Python 3.12 on
    if mark is not None and inspect.iscoroutinefunction(function):
        mark(tell)
    return tell  # type: ignore[return-value]


def _add(signature: inspect.Signature, options: Collection[str]) -> inspect.Signature:
    """Return *signature* with *options*, which are taken beside the parameters."""
    more = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=...) for name in options]
    return signature.replace(parameters=[*signature.parameters.values(), *more]) if more else signature


def _unpack(signature: inspect.Signature, options: type) -> inspect.Signature:
    """Return *signature* with each of *options* in place of `**options`; a default that is left out shows as `...`."""
    kind = inspect.Parameter.KEYWORD_ONLY
    unpacked = [
        inspect.Parameter(name, kind, default=..., annotation=getattr(annotation, "__forward_arg__", annotation))
        for name, annotation in inspect.get_annotations(options).items()
    ]
    named = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
    return signature.replace(parameters=[*named, *unpacked])


def _check(signature: inspect.Signature, name: str, args: tuple[Any, ...], options: dict[str, Any]) -> None:
    parameters = signature.parameters.values()
    by_place = [each for each in parameters if each.kind is not inspect.Parameter.KEYWORD_ONLY]
    by_keyword = [each.name for each in parameters if each.kind is inspect.Parameter.KEYWORD_ONLY]
    if len(args) > len(by_place) and by_keyword:
        taken = [each.name for each in by_place if each.name != "self"]
        given = f"only {', '.join(taken)}" if taken else "nothing"
        example = f"{name}({'…, ' if taken else ''}{by_keyword[0]}=…)"
        raise UserTypeError(f"{name} takes {given} by position, the rest by keyword: {example}") from None
    for option in options:
        if option not in signature.parameters:
            raise_misplaced(signature.parameters, name, option)


def raise_misplaced(known: Collection[str], name: str, option: str) -> NoReturn:
    """Raise the error for *option* of what the application knows as *name*, which takes the options *known*.

    Raises:
        UserTypeError: always; it says where the option goes, or names the one that was probably meant.
    """
    there = [written for taken, written in _places.values() if option in taken().parameters]
    if there:
        places = " or ".join(written.replace("OPTION", option) for written in there)
        raise UserTypeError(f"{name} has no option {option!r}; it goes here: {places}") from None
    said = _find_usual(option, known) is None and _WRITTEN_ELSEWHERE.get(option)
    if said:
        raise UserTypeError(f"{name} has no option {option!r}. {said}") from None
    near = _find_near(option, known)
    meant = None if near is None else repr(near)
    if near is None:
        elsewhere = {each: written for taken, written in _places.values() for each in taken().parameters}
        if (near := _find_near(option, elsewhere)) is not None:
            meant = elsewhere[near].replace("OPTION", near)
    advice = "" if meant is None else f" Did you mean {meant}?"
    raise UserTypeError(f"{name} has no option {option!r}.{advice}") from None


def _find_usual(option: str, known: Collection[str]) -> str | None:
    return next((usual for usual in _USUAL_ELSEWHERE.get(option, ()) if usual in known), None)


def _find_near(option: str, known: Collection[str]) -> str | None:
    """Return the name among *known* that *option* probably means, or None."""
    if (usual := _find_usual(option, known)) is not None:
        return usual
    import difflib  # for the text of an error only

    near = difflib.get_close_matches(option, [each for each in known if each != "self"], n=1)
    return near[0] if near else None
