"""Resources and prompts of a server, as values of the library and as tools for models.

Knows connections, and neither runs nor agents: `_server` decides who may ask.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import attrs

from agentloop.items import AssistantMessage, Part, UserMessage
from agentloop.mcp._connection import Connection
from agentloop.mcp._contents import note_part, read_content, read_resource
from agentloop.tools import FunctionTool, tool


@attrs.frozen(kw_only=True)
class MCPResource:
    """Something that a server lets its clients read: a file, a table, a page.

    Attributes:
        uri: Its address, for `MCPServer.read_resource`. That of a template has parts in braces, which you fill in.
        name, description: What the server says about it.
        media_type: The type of its content, if the server says so.
        is_template: True if `uri` has parts in braces.
    """

    uri: str
    name: str
    description: str = ""
    media_type: str | None = None
    is_template: bool = False


@attrs.frozen(kw_only=True)
class MCPPrompt:
    """A text of a server's that begins a conversation, for `MCPServer.get_prompt`.

    Attributes:
        name, description: What the server says about it.
        required, optional: The names of its arguments.
    """

    name: str
    description: str = ""
    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()


class Library:
    """The resources and the prompts of one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def list_resources(self) -> tuple[MCPResource, ...]:
        """Return the resources, then the templates."""
        found = [_describe(one, one.uri) for one in await self._connection.list_all("resources")]
        for one in await self._connection.list_all("resource_templates"):
            found.append(attrs.evolve(_describe(one, one.uri_template), is_template=True))
        return tuple(found)

    async def read_resource(self, uri: str) -> tuple[Part, ...]:
        """Return the contents of a resource."""
        result = await self._connection.read_resource(uri)
        return tuple(map(read_resource, result.contents))

    async def list_prompts(self) -> tuple[MCPPrompt, ...]:
        """Return the prompts."""
        found = []
        for one in await self._connection.list_all("prompts"):
            required = tuple(given.name for given in one.arguments or () if given.required)
            optional = tuple(given.name for given in one.arguments or () if not given.required)
            found.append(
                MCPPrompt(name=one.name, description=one.description or "", required=required, optional=optional)
            )
        return tuple(found)

    async def get_prompt(self, name: str, arguments: Mapping[str, str]) -> tuple[UserMessage | AssistantMessage, ...]:
        """Return the messages of a prompt."""
        result = await self._connection.get_prompt(name, dict(arguments))
        kinds = {"user": UserMessage, "assistant": AssistantMessage}
        return tuple(kinds[one.role]((read_content(one.content),)) for one in result.messages)

    def make_resource_tools(self, **options: Any) -> list[FunctionTool[Any]]:
        """Return the tools that list and read resources."""

        async def list_resources() -> str:
            """List what read_resource can read. In a uri that is a template, fill in the parts in braces."""
            return _show_all(await self.list_resources())

        async def read_resource(uri: str) -> tuple[Part, ...] | str:
            """Read a resource.

            Args:
                uri: A uri of list_resources, or one that another tool has named.
            """
            parts = await self.read_resource(uri)
            return parts or "The resource is empty."

        return [_make(list_resources, options), _make(read_resource, options)]

    def make_prompt_tools(self, **options: Any) -> list[FunctionTool[Any]]:
        """Return the tools that list and get prompts."""

        async def list_prompts() -> str:
            """List the prompts that get_prompt can get, with the names of their arguments."""
            return _show_all(await self.list_prompts())

        async def get_prompt(name: str, arguments: dict[str, str] | None = None) -> str:
            """Get the text of a prompt.

            Args:
                name: A name of list_prompts.
                arguments: A text for each argument of the prompt.
            """
            result = await self._connection.get_prompt(name, arguments or {})
            return "\n\n".join(f"{one.role}: {note_part(read_content(one.content))}" for one in result.messages)

        return [_make(list_prompts, options), _make(get_prompt, options)]


def _describe(listed: Any, uri: str) -> MCPResource:
    words = listed.description or listed.title or ""
    return MCPResource(uri=str(uri), name=listed.name, description=words, media_type=listed.mime_type)


def _show_all(found: tuple[Any, ...]) -> str:
    """Return one line of JSON for each, without what is empty."""
    known = ({name: value for name, value in attrs.asdict(one).items() if value} for one in found)
    return "\n".join(json.dumps(one, ensure_ascii=False) for one in known) or "There are none."


def _make(body: Callable[..., Awaitable[Any]], options: Mapping[str, Any]) -> FunctionTool[Any]:
    return tool(body, reads_only=True, strict_mode=False, **options)
