"""Tools of LangChain and of pydantic-ai, as tools. Imports neither: who has a tool of theirs has the library.

Such a tool keeps its function, its schema and its check of arguments; all else (approval, limits, cancellation) is that
of any tool here. What it returns becomes text or parts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from functools import partial
from importlib import import_module
from typing import Any, Unpack

import anyio.to_thread

from agentloop._common.errors import AnswerError, UserError, UserTypeError, UserValueError
from agentloop._common.naming import usable_names
from agentloop._concurrency.backend import own_task
from agentloop._schema.json_text import parse_object
from agentloop.context import ToolContext
from agentloop.interop._openapi import read_media
from agentloop.interop._reading import to_plain
from agentloop.items import Audio, File, Image, Part, Text
from agentloop.settings import JsonLimits
from agentloop.tools import FunctionTool, RawBody, ToolOptions


def from_langchain(tool: Any, **options: Unpack[ToolOptions]) -> FunctionTool[Any]:
    """Return a tool of LangChain (a `BaseTool`) as a tool.

    It checks its arguments by itself, except that none is taken which its schema hides from models, as an
    `InjectedToolArg`. An error that it raises, or says by its status, goes to the model. A tool of a sync function, or
    of a class without an async body, runs in a thread. A thread can't be stopped, so such a tool takes no timeout.

    Cancellation: that of LangChain; a thread is waited for. LangChain needs asyncio for its async tools: on trio their
    calls fail.

    Args:
        tool: The tool: made by its decorator, a `StructuredTool`, or an object of a class.
        options: Those of `tool` for any tool, as `needs_approval`.

    Raises:
        UserTypeError: it isn't a tool of LangChain.
        UserValueError: a timeout for a tool that runs in a thread.

    Example:
        from agentloop import Agent
        from agentloop.interop import from_langchain

        class Weather:  # in place of one that LangChain's decorator has made
            name, description, coroutine = "weather", "The weather of a city.", None
            tool_call_schema = {"type": "object", "properties": {"city": {"type": "string"}}}

            def invoke(self, call):
                return f"{call['args']['city']}: sunny"

            async def ainvoke(self, call):
                return self.invoke(call)

        weather = from_langchain(Weather(), reads_only=True)
        print(Agent("a", tools=[weather]).tools[0].description)  # The weather of a city.
    """
    _check_has(tool, "a tool of LangChain", "name", "tool_call_schema", "ainvoke", "invoke")
    name = _usable_name(tool.name)
    is_async = _has_coroutine(tool)
    if not is_async:
        _refuse_timeouts(name, options)

    async def call(ctx: ToolContext[Any], text: str) -> Any:
        arguments = parse_object(text, JsonLimits(), tool=name)
        given = {"type": "tool_call", "id": ctx.tool_call_id, "name": tool.name, "args": arguments}
        if not is_async:
            return _read_langchain(await anyio.to_thread.run_sync(tool.invoke, given))
        if own_task() is None:
            raise UserError(f"tool {name!r}: async tools of LangChain run on asyncio only")
        return _read_langchain(await tool.ainvoke(given))

    shown = tool.tool_call_schema
    schema = _schema_of(shown)
    # A class shows all but what isn't for models to choose, as an `InjectedToolArg`. A schema as a dict hides nothing.
    check = None if isinstance(shown, Mapping) else partial(_find_hidden, schema.get("properties", {}))
    return _make(name, tool.description, schema, call, check, {}, options)


def from_pydantic_ai(tool: Any, **options: Unpack[ToolOptions]) -> FunctionTool[Any]:
    """Return a `Tool` of pydantic-ai as a tool. Of a `FunctionToolset`, take each of `toolset.tools.values()`.

    Where the function takes a `RunContext`, its `deps` is the context of the run; it has the call's id and the tool's
    name, no model and no usage. `ModelRetry` and other errors go to the model. `requires_approval`, `sequential` and
    `timeout` mean what they mean there; *options* replace them.

    Cancellation: the function's; one that is sync runs in a thread, which is waited for.

    Args:
        tool: The tool: `Tool(function)`.
        options: Those of `tool` for any tool, as `needs_approval`.

    Raises:
        UserTypeError: it isn't a tool of pydantic-ai.
        UserValueError: it has a `prepare` function, which decides in each step of a run there; or a timeout for a sync
            function.

    Example:
        from agentloop.interop import from_pydantic_ai

        try:
            from_pydantic_ai(print)
        except TypeError as error:
            print(error)  # expected a tool of pydantic-ai, got builtin_function_or_method
    """
    _check_has(tool, "a tool of pydantic-ai", "name", "tool_def", "function_schema", "takes_ctx")
    name = _usable_name(tool.name)
    if getattr(tool, "prepare", None) is not None:
        raise UserValueError(f"tool {name!r}: prepare has no form here; say when the tool is offered by is_enabled=")
    schema, own = tool.function_schema, _options_of(tool)
    if not schema.is_async:
        own.pop("timeout", None)
        _refuse_timeouts(name, options)

    async def call(ctx: ToolContext[Any], text: str) -> Any:
        arguments = _validate(schema.validator, parse_object(text, JsonLimits(), tool=name))
        try:
            return _read_pydantic_ai(await schema.call(arguments, _make_context(tool, ctx) if tool.takes_ctx else None))
        except Exception as error:
            if type(error).__name__ != "ModelRetry":
                raise
            raise AnswerError(str(error)) from error

    definition = tool.tool_def
    parameters, check = definition.parameters_json_schema, partial(_find_faults, schema.validator)
    return _make(name, definition.description, parameters, call, check, own, options)


# ------------------------------------------------------------------------------------------------- making


def _check_has(tool: Any, what: str, *names: str) -> None:
    if not all(hasattr(tool, name) for name in names):
        raise UserTypeError(f"expected {what}, got {type(tool).__name__}")


def _usable_name(name: str) -> str:
    found = usable_names([name])[0]
    if found is None:
        raise UserValueError(f"the tool has no name that a model could call: {name!r}")
    return found


def _refuse_timeouts(name: str, options: Mapping[str, Any]) -> None:
    for field in ("timeout", "idle_timeout"):
        if options.get(field) is not None:
            raise UserValueError(f"tool {name!r}: {field}: its function is sync, and a thread can't be stopped")


def _make(
    name: str,
    description: str | None,
    schema: Mapping[str, Any],
    call: Callable[[ToolContext[Any], str], Any],
    check: Callable[[Mapping[str, Any]], str | None] | None,
    own: Mapping[str, Any],
    options: ToolOptions,
) -> FunctionTool[Any]:
    if unknown := options.keys() - ToolOptions.__optional_keys__:
        raise UserTypeError(f"tool {name!r}: {min(unknown)!r} is no option of any tool")
    fields: dict[str, Any] = {**own, **options}
    return FunctionTool(
        name=name,
        description=description or "",
        params_json_schema={"type": "object", "properties": {}} | dict(schema),
        body=RawBody(call, check),
        on_invoke_tool=call,
        strict_mode=False,
        **fields,
    )


# ------------------------------------------------------------------------------------------------ LangChain


def _has_coroutine(tool: Any) -> bool:
    """Tell whether the tool has an async body: else LangChain runs the sync one in a thread of asyncio's."""
    if hasattr(tool, "coroutine"):
        return tool.coroutine is not None
    return not type(tool)._arun.__module__.startswith("langchain_core.")


def _schema_of(given: Any) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        given = given.model_json_schema() if hasattr(given, "model_json_schema") else given.schema()
    return {word: value for word, value in given.items() if word not in ("title", "description")}


def _find_hidden(shown: Collection[str], arguments: Mapping[str, Any]) -> str | None:
    return next((f"$: {name!r} isn't expected" for name in arguments if name not in shown), None)


def _read_langchain(answer: Any) -> Any:
    """Return what a tool has returned, or the content of its message."""
    content = getattr(answer, "content", answer)
    if isinstance(content, list) and content is not answer:
        content = tuple(map(_read_block, content))
    if getattr(answer, "status", None) == "error":
        parts = content if isinstance(content, tuple) else (content,)
        raise AnswerError("\n".join(part.text if isinstance(part, Text) else str(part) for part in parts))
    return content


def _read_block(block: Any) -> Part:
    match block:
        case str():
            return Text(block)
        case {"type": "text", "text": str(text)}:
            return Text(text)
        case {"type": "image_url", "image_url": {"url": str(url)}} | {"type": "image", "url": str(url)}:
            return Image(url)
        case {"type": "image", "base64": str(data), "mime_type": str(kind)}:
            return Image(data=data, media_type=kind)
        case _:
            return Text(json.dumps(to_plain(block), ensure_ascii=False, default=str))


# ---------------------------------------------------------------------------------------------- pydantic-ai


def _options_of(tool: Any) -> dict[str, Any]:
    given = {"needs_approval": "requires_approval", "exclusive": "sequential", "timeout": "timeout"}
    found = {option: getattr(tool, name, None) for option, name in given.items()}
    return {option: value for option, value in found.items() if value}


def _validate(validator: Any, arguments: Mapping[str, Any]) -> Any:
    """Return the values of *arguments*, read as from JSON: only there a strict model takes a date as text."""
    return validator.validate_json(json.dumps(dict(arguments)))


def _find_faults(validator: Any, arguments: Mapping[str, Any]) -> str | None:
    try:
        _validate(validator, arguments)
    except ValueError as error:  # pydantic's own is one of these
        found: Any = error
        faults: list[Any] = found.errors() if hasattr(found, "errors") else []
        told = (f"$.{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in faults)
        return "; ".join(told) or str(error)
    return None


def _make_context(tool: Any, ctx: ToolContext[Any]) -> Any:
    library: Any = import_module("pydantic_ai")
    return library.RunContext(
        deps=ctx.context, model=None, usage=library.RunUsage(), tool_name=tool.name, tool_call_id=ctx.tool_call_id
    )


def _read_pydantic_ai(value: Any) -> Any:
    """Return what a function has returned; with parts for media, and for content that goes beside the output."""
    if getattr(value, "kind", None) == "tool-return":
        if not value.content:
            return _read_pydantic_ai(value.return_value)
        beside = [value.content] if isinstance(value.content, str) else list(value.content)
        return tuple(map(_to_part, [value.return_value, *beside]))
    given = value if isinstance(value, list) else [value]
    return tuple(map(_to_part, given)) if any(_read_content(one) is not None for one in given) else value


def _to_part(value: Any) -> Part:
    found = _read_content(value)
    if found is not None:
        return found
    return Text(value if isinstance(value, str) else json.dumps(to_plain(value), ensure_ascii=False, default=str))


def _read_content(value: Any) -> Part | None:
    match getattr(value, "kind", None):
        case "binary":
            return read_media(value.media_type, value.data) or Text(value.data.decode(errors="replace"))
        case "image-url":
            return Image(value.url)
        case "audio-url":
            return Audio(url=value.url)
        case "document-url":
            return File(url=value.url)
        case _:
            return None
