"""`MCPServer`: a server as a source of tools. Joins connections and tools; does not know the protocol's messages."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from contextvars import Context, copy_context
from functools import partial
from typing import Any, TypeAlias

import anyio
import anyio.to_thread
import attrs

from agentloop._common.checks import FIELDS, NAMES, check, fits, is_texts, optional
from agentloop._common.errors import UserError, UserTypeError
from agentloop._common.extras import describe_missing
from agentloop._common.naming import MOST_NAME, usable_names
from agentloop._schema.json_text import parse_object
from agentloop.context import RunContext, ToolContext
from agentloop.items import AssistantMessage, Part, UserMessage
from agentloop.mcp._connection import Connection, MCPConnectionError, MCPToolError
from agentloop.mcp._contents import default_options, error_text, read_contents
from agentloop.mcp._library import Library, MCPPrompt, MCPResource
from agentloop.mcp._questions import Elicit, UserQuestions
from agentloop.mcp._remarks import Remarks
from agentloop.mcp._schemas import Check, Meter, make_check
from agentloop.run import current_runtime
from agentloop.settings import JsonLimits
from agentloop.tools import FunctionTool, RawBody, ToolSelection

logger = logging.getLogger("agentloop.mcp")

_LEAST_NAME = 16
"""Characters that a tool's name has however long the prefix is."""
IDEMPOTENCY_KEY = "agentloop/idempotency_key"
"""Name, in a request's `_meta`, of the key that is the same for every attempt of a call."""


def _is_command(value: Any) -> bool:
    return is_texts(value) and bool(value)


def _is_text_mapping(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(one, str) for pair in value.items() for one in pair)


_ARGUMENTS = optional(NAMES.needs("expected a mapping of names to texts", fits(_is_text_mapping), quoted=False))


def _show_command(command: Sequence[str] | None) -> str:
    """Return the program; its arguments may hold keys."""
    return repr(command if command is None else [*command[:1], *(["…"] if len(command) > 1 else [])])


def _show_url(url: str | None) -> str:
    """Return the URL without its user and its query, which may hold keys."""
    return repr(url if url is None else re.sub(r"^([^/?#]*//)?[^/?#]*@|[?#].*", r"\1", url, flags=re.DOTALL))


def _is_pausing(run: RunContext[Any]) -> bool:
    """Tell whether the outermost run of *run*, which is ending, waits for verdicts only."""
    fold: Any = getattr(run._run, "fold", None)
    if fold is None:
        return False
    due = fold.due_calls()
    return bool(due) and all(map(fold.waits, due))


def _import_sdk() -> None:
    """Import what a connection uses. In a thread, because it takes seconds on a cold disk.

    Raises:
        ImportError: the extra isn't installed.
    """
    import jsonschema  # noqa: F401
    import mcp.client
    import mcp.client.subscriptions  # noqa: F401

    from agentloop.mcp import _http, _stdio  # noqa: F401


@attrs.define(eq=False, kw_only=True)
class MCPServer:
    """The tools of one MCP server: a `ToolSource`. Needs the extra `mcp`.

    Give either `command` or `url`. Used as it is, each run opens its own connection when it first asks for tools,
    and closes it at its end; inside `open_runtime` the runs share one that lives as long as the runtime. `async with
    server:` opens it for a block of the application's, and all runs inside use it.

    The connection lives in its own task, so any task may close what another has opened. If it is lost, the calls
    in flight have unknown outcomes (`OutcomeUnknown`), the model keeps the tools it was shown, and the next call opens
    it again, after a pause that grows with each failure. Tools that the server changes show in the next turn.

    Attributes:
        name: The name of the server, for errors and logging (logger `agentloop.mcp`, which also has its stderr).
        command: The program and its arguments, for a server by stdio. It runs in its own process group, which is
            ended with the connection; a child that leaves the group is not found. Only the program is shown in a repr.
        env: Variables of its environment, beside the few that every server gets (`PATH`, `HOME` and their like).
        cwd: Its working directory; None is that of this process.
        url: The endpoint, for a server by streamable HTTP. Its user and its query are shown in no repr.
        headers: Headers of every request, for keys and tokens. Not shown in any text.
        auth: An `httpx2.Auth` for each request, such as the SDK's `OAuthClientProvider`. A token of that which the
            server refuses is renewed, and the request is sent once more. Not shown in any text.
        http_client: An `httpx2.AsyncClient` of the application's own, in place of `headers`, `auth` and the bounds
            here. With it a session that the server no longer knows is opened anew only after a 404 without a body.
        filter, prefix, namespace, options: As for `ToolSelection`. `options` is the application's policy about each
            tool. By the server's hints a tool that only reads has `reads_only=True`, an idempotent one
            `idempotent=True`, a destructive one `needs_approval=True`; each option that `options` gives replaces that,
            and the others stay.
        timeout, idle_timeout: Those of every tool, in seconds, as for `@tool`; `options` may give others. A report of
            progress restarts `idle_timeout`.
        connect_timeout: Seconds for opening the connection, the first list of tools included.
        grace: Seconds that a server by stdio has to exit by itself once its stdin is closed.
        max_message_bytes: The longest message of the server; a longer one closes the connection.
        mode: The era of the protocol: `"auto"`, `"legacy"` (with a handshake), or a version without one.
        required: False for a server that runs can do without. While it can't be reached, its tools are left out and a
            warning says so; each turn tries again, for at most `connect_timeout`. The first turn that reaches it has
            its tools back.
        resources: True for two more tools, `list_resources` and `read_resource`. They are selected and named as the
            server's own; a tool of the server with such a name takes the place.
        prompts: True for two more tools, `list_prompts` and `get_prompt`.
        elicit: Answers what the server asks its user within a call (`Elicitation`), sync or async. It returns a mapping
            with the fields of the schema, or `"accept"` for an address that the user visits, or `"decline"` or
            `"cancel"`. The call waits for it, within its `timeout`, and not its `idle_timeout`; it is cancelled with
            the call. Without it we say to the server that we can't ask.
    """

    name: str = attrs.field(validator=FIELDS.words())
    command: Sequence[str] | None = attrs.field(
        default=None,
        repr=_show_command,
        validator=optional(FIELDS.needs("expected a program and its arguments, as texts", fits(_is_command))),
    )
    env: Mapping[str, str] | None = attrs.field(default=None, repr=False, validator=optional(FIELDS.mapping()))
    cwd: str | None = attrs.field(default=None, validator=optional(FIELDS.text()))
    url: str | None = attrs.field(default=None, repr=_show_url, validator=optional(FIELDS.words()))
    headers: Mapping[str, str] | None = attrs.field(default=None, repr=False, validator=optional(FIELDS.mapping()))
    auth: Any = attrs.field(default=None, repr=False)
    http_client: Any = attrs.field(default=None, repr=False)
    filter: Collection[str] | Callable[[FunctionTool[Any]], bool] | None = None
    prefix: str = ""
    namespace: str | None = None
    options: Callable[[FunctionTool[Any]], Mapping[str, Any] | None] | None = None
    timeout: float | None = attrs.field(default=None, validator=optional(NAMES.seconds()))
    idle_timeout: float | None = attrs.field(default=60.0, validator=optional(NAMES.seconds()))
    connect_timeout: float = attrs.field(default=10.0, validator=NAMES.seconds())
    grace: float = attrs.field(default=1.0, validator=NAMES.seconds())
    max_message_bytes: int = attrs.field(default=8_000_000, validator=NAMES.count())
    mode: str = attrs.field(default="auto", validator=FIELDS.words())
    required: bool = attrs.field(default=True, validator=FIELDS.flag())
    resources: bool = attrs.field(default=False, validator=FIELDS.flag())
    prompts: bool = attrs.field(default=False, validator=FIELDS.flag())
    elicit: Elicit | None = attrs.field(default=None, validator=optional(FIELDS.function()))
    _opened: _ServerTools | None = attrs.field(default=None, init=False, repr=False)
    _wanted_by: tuple[RunContext[Any], Context] | None = attrs.field(default=None, init=False, repr=False)
    """The run that wants the connection, and its context variables: the task of a shared resource has others."""
    _has_warned: bool = attrs.field(default=False, init=False, repr=False)
    _is_down: bool = attrs.field(default=False, init=False, repr=False)
    """True if the log says that the server, which isn't required, can't be reached."""
    _block: _HeldServer | None = attrs.field(default=None, init=False, repr=False)
    """The block of the application that is entered."""

    def __attrs_post_init__(self) -> None:
        if (self.command is None) == (self.url is None):
            raise UserTypeError(f"MCPServer {self.name!r}: expected command or url")
        if self.auth is not None and (self.url is None or self.http_client is not None):
            raise UserTypeError(
                f"MCPServer {self.name!r}: auth needs a url, and belongs in the http_client if you give one"
            )
        ToolSelection(source=(), filter=self.filter, prefix=self.prefix, namespace=self.namespace, options=self.options)

    async def __aenter__(self) -> MCPServer:
        """Open the connection, for all runs inside the block.

        Raises:
            MCPConnectionError: the server can't be reached, and is required.
            UserError: the server is open already, or the extra `mcp` isn't installed.
        """
        if self._block is not None:
            raise UserError(f"MCPServer {self.name!r} is open already")
        self._block = block = _HeldServer(self._open)
        try:
            await block.enter()
        except MCPConnectionError as error:
            if self.required:
                self._block = None
                raise
            self._say_down(error)
        except BaseException:
            self._block = None
            raise
        return self

    async def __aexit__(self, *error: Any) -> None:
        block, self._block = self._block, None
        if block is not None:
            await block.leave()  # noqa: ASYNC102 - bounded by the transport's own exit

    async def tools(self, ctx: RunContext[Any], agent: Any) -> Sequence[FunctionTool[Any]]:
        """Return the server's tools, asked again if the server said that they have changed.

        None of them while a server that isn't required can't be reached.

        Raises:
            MCPConnectionError: the server can't be reached for the first time, and is required.
        """
        try:
            tools = await (await self._find_opened(ctx)).tools(ctx, agent)
        except MCPConnectionError as error:
            if self.required:
                raise
            self._say_down(error)
            return ()
        if self._is_down:
            self._is_down = False
            logger.info("MCP server %r can be reached again: its tools are back", self.name)
        return tools

    async def list_resources(self) -> tuple[MCPResource, ...]:
        """Return what the server lets its clients read: the resources, then the templates. Inside `async with server:`.

        Raises:
            UserError: the server isn't entered.
            MCPConnectionError: the server can't be reached.
            OutcomeUnknown: the connection was lost before the answer came.
            MCPToolError: the server refused the request.
            TimeoutError: the server doesn't answer.
        """
        return await (await self._find_library("list_resources")).list_resources()

    async def read_resource(self, uri: str) -> tuple[Part, ...]:
        """Return the contents of a resource: parts of a message, such as `Text` and `File`. As `list_resources`.

        Example (not run: it needs a server):
            async with MCPServer(name="notes", command=["notes-server"]) as notes:
                policy = await notes.read_resource("notes://policy")
                result = await Runner.run(agent, [UserMessage(policy), UserMessage("Is this note allowed?")])
        """
        check("uri", NAMES.text(), uri)
        return await (await self._find_library("read_resource")).read_resource(uri)

    async def list_prompts(self) -> tuple[MCPPrompt, ...]:
        """Return the prompts of the server. As `list_resources`."""
        return await (await self._find_library("list_prompts")).list_prompts()

    async def get_prompt(
        self, name: str, arguments: Mapping[str, str] | None = None
    ) -> tuple[UserMessage | AssistantMessage, ...]:
        """Return the messages of a prompt, with which a run may begin. As `list_resources`.

        Example (not run: it needs a server):
            async with MCPServer(name="notes", command=["notes-server"]) as notes:
                result = await Runner.run(agent, await notes.get_prompt("tidy", {"folder": "home"}))
        """
        check("name", NAMES.text(), name)
        check("arguments", _ARGUMENTS, arguments)
        return await (await self._find_library("get_prompt")).get_prompt(name, arguments or {})

    async def _find_library(self, what: str) -> Library:
        if self._block is None:
            raise UserError(f"MCPServer {self.name!r}: {what} works only inside `async with server:`")
        return (await self._block.enter()).library

    async def _find_opened(self, ctx: RunContext[Any]) -> _ServerTools:
        if self._block is not None:
            return await self._block.enter()
        self._wanted_by = ctx, copy_context()
        return await ctx.shared_resource(self._open)

    def _say_down(self, error: MCPConnectionError) -> None:
        if not self._is_down:
            self._is_down = True
            logger.warning("the tools of an MCP server are left out until it can be reached: %s", error)

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[_ServerTools]:
        """Open a connection; the caller, or the task of a shared resource, holds it."""
        try:
            await anyio.to_thread.run_sync(_import_sdk)
        except ImportError as error:
            raise UserError(describe_missing("an MCP server", "mcp")) from error
        remarks = Remarks()
        questions = None if self.elicit is None else UserQuestions(self.name, self.elicit, self.idle_timeout)
        connection = Connection(
            self.name,
            partial(self._open_transport, remarks),
            connect_timeout=self.connect_timeout,
            mode=self.mode,
            remarks=remarks,
            context=copy_context() if self._wanted_by is None else self._wanted_by[1],
            answer=None if questions is None else questions.answer,
        )
        run = None if self._wanted_by is None or current_runtime() is not None else self._wanted_by[0]
        self._wanted_by = None
        async with connection:
            yield _ServerTools(self, connection, questions)
            if run is not None and self.command is not None and not self._has_warned and _is_pausing(run):
                self._has_warned = True
                logger.warning(
                    "MCP server %r: its process ends, because the run that opened it pauses; the resumed run starts "
                    "another, which knows nothing of this one. To keep it, enter the server around both (async with)",
                    self.name,
                )

    def _open_transport(self, remarks: Remarks) -> AbstractAsyncContextManager[Any]:
        if self.command is not None:
            from agentloop.mcp._stdio import open_process

            return open_process(
                self.name,
                self.command,
                self.env,
                self.cwd,
                max_bytes=self.max_message_bytes,
                grace=self.grace,
                remarks=remarks,
            )
        from agentloop.mcp._http import open_http

        assert self.url is not None
        return open_http(
            self.url, self.headers, self.auth, self.http_client, max_bytes=self.max_message_bytes, remarks=remarks
        )


class _HeldServer:
    """A connection for a block of the application's. Entered by the block, or later by the first run that can."""

    def __init__(self, open_tools: Callable[[], AbstractAsyncContextManager[_ServerTools]]) -> None:
        self._open = open_tools
        self._opening = anyio.Lock()
        self._opened: _ServerTools | None = None
        self._closer: AbstractAsyncContextManager[_ServerTools] | None = None
        self._failed: MCPConnectionError | None = None
        self._is_left = False

    async def enter(self) -> _ServerTools:
        """Return the tools; open the connection if it isn't open yet.

        Several that come while it is being opened wait for one attempt, and share its failure.

        Raises:
            MCPConnectionError: the server can't be reached.
        """
        failed = self._failed
        async with self._opening:
            if self._opened is not None:
                return self._opened
            if self._failed is not None and self._failed is not failed:
                raise MCPConnectionError(*self._failed.args)  # of the attempt that we have waited for
            closer = self._open()
            try:
                self._opened = await closer.__aenter__()
            except MCPConnectionError as error:
                self._failed = MCPConnectionError(*error.args)  # without the frames of this attempt
                raise
            self._closer = closer
            if self._is_left:
                await self.leave()
            return self._opened

    async def leave(self) -> None:
        """Close the connection; one that is being opened closes as soon as it is."""
        self._is_left = True
        closer, self._closer = self._closer, None
        if closer is not None:
            await closer.__aexit__(None, None, None)


_Made: TypeAlias = dict[str, tuple[Any, "FunctionTool[Any] | None"]]


class _ServerTools:
    """The tools of one open connection. Used by any task of its event loop; made by the holder of the connection."""

    def __init__(self, server: MCPServer, connection: Connection, questions: UserQuestions | None) -> None:
        self._server = server
        self._connection = connection
        self._questions = questions
        self._made: _Made = {}
        """By the name for models: how it was listed, and the tool made of it; None if it can't be used."""
        self._current: list[FunctionTool[Any]] = []
        self._listed: list[Any] | None = None
        self.library = Library(connection)
        self._more = self._make_more()
        """The tools that aren't the server's own."""
        self._making = anyio.Lock()
        self._thread = anyio.CapacityLimiter(1)
        self._selection = ToolSelection(
            source=self._current,
            filter=server.filter,
            prefix=server.prefix,
            namespace=server.namespace,
            options=server.options,
        )

    async def tools(self, ctx: RunContext[Any], agent: Any) -> Sequence[FunctionTool[Any]]:
        """Return the selected tools; one that the server lists as before is the same object as before.

        Raises:
            MCPConnectionError: the connection was lost and can't be opened again, and the server isn't required.
        """
        if not self._server.required:
            await self._connection.recover()
        async with self._making:
            listed = await self._connection.list_tools()
            if listed is not self._listed:
                self._made = await self._make_beside(listed)
                self._current[:] = [tool for _, tool in self._made.values() if tool is not None]
                self._current += [tool for tool in self._more if tool.name not in self._made]
                self._listed = listed
        return await self._selection.tools(ctx, agent)

    def _make_more(self) -> list[FunctionTool[Any]]:
        server = self._server
        options = {"timeout": server.timeout, "idle_timeout": server.idle_timeout}
        return [
            *(self.library.make_resource_tools(**options) if server.resources else ()),
            *(self.library.make_prompt_tools(**options) if server.prompts else ()),
        ]

    async def _make_beside(self, listed: list[Any]) -> _Made:
        """Make the tools in a thread: a thousand schemas take seconds, which nothing else on the loop may wait for.

        Cancellation: the thread is left, and ends at the next tool.
        """
        given_up = threading.Event()
        make = partial(self._make_all, listed, given_up)
        try:
            return await anyio.to_thread.run_sync(make, limiter=self._thread, abandon_on_cancel=True)
        finally:
            given_up.set()

    def _make_all(self, listed: list[Any], given_up: threading.Event) -> _Made:
        made: _Made = {}
        meter = Meter()
        names = usable_names([one.name for one in listed], max(MOST_NAME - len(self._server.prefix), _LEAST_NAME))
        for one, name in zip(listed, names, strict=True):
            if given_up.is_set():
                break
            if name is None:
                logger.warning(
                    "MCP server %r: a tool is left out: no model could call %.200r", self._server.name, one.name
                )
            else:
                made[name] = self._keep(name, one, meter)
        return made

    def _keep(self, name: str, listed: Any, meter: Meter) -> tuple[Any, FunctionTool[Any] | None]:
        known = self._made.get(name)
        return known if known is not None and known[0] == listed else (listed, self._make(name, listed, meter))

    def _make(self, name: str, listed: Any, meter: Meter) -> FunctionTool[Any] | None:
        server = self._server
        if listed.execution is not None and listed.execution.task_support == "required":
            logger.warning(
                "MCP server %r: tool %r is left out: it wants a task for each call", server.name, listed.name
            )
            return None
        try:
            check = make_check(listed.input_schema, meter)
        except ValueError as error:
            logger.warning("MCP server %r: tool %r is left out: its schema: %s", server.name, listed.name, error)
            return None
        check_output = self._make_output_check(listed, meter)
        connection, questions = self._connection, self._questions

        async def call(ctx: ToolContext[Any], text: str) -> Any:
            arguments = parse_object(text, JsonLimits(), tool=name)
            meta = {IDEMPOTENCY_KEY: ctx.idempotency_key}
            with nullcontext(ctx.report) if questions is None else questions.during(ctx) as report:
                result = await connection.call_tool(listed.name, arguments, report, meta)
            if result.is_error:
                raise MCPToolError(error_text(result.content))
            if check_output is not None and (wrong := check_output(result.structured_content)) is not None:
                raise MCPToolError(f"the answer isn't what the server has promised: {wrong}")
            return read_contents(result)

        return FunctionTool(
            name=name,
            description=listed.description or listed.title or "",
            params_json_schema=listed.input_schema,
            body=RawBody(call, check),
            on_invoke_tool=call,
            strict_mode=False,
            output_schema=None if check_output is None else listed.output_schema,
            timeout=server.timeout,
            idle_timeout=server.idle_timeout,
            **default_options(listed.annotations),
        )

    def _make_output_check(self, listed: Any, meter: Meter) -> Check | None:
        if listed.output_schema is None:
            return None
        try:
            return make_check(listed.output_schema, meter)
        except ValueError as error:
            logger.warning(
                "MCP server %r: answers of tool %r aren't checked: their schema: %s",
                *(self._server.name, listed.name, error),
            )
            return None
