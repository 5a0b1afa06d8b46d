"""The contexts that user code receives: `RunContext` of a run, `ToolContext` of a call; and the run's sandbox in them.

Both are views made by the engine. The application object in `context` belongs to the caller: it is never copied and
never shown to a model. Does not know about the engine; it calls it through two protocols.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, ClassVar, Generic, Protocol, TypeVar, runtime_checkable

import msgspec

from agentloop._common.checks import NAMES, check
from agentloop._common.errors import UserError
from agentloop._common.masking import MASK, mask_arguments
from agentloop._common.type_parameters import ContextT_co
from agentloop._common.values import format_struct
from agentloop.items import Item
from agentloop.usage import Usage

ResourceT = TypeVar("ResourceT")

_CALL_ID = NAMES.text()


@runtime_checkable
class Sandbox(Protocol):
    """The place in which one run acts, with storage that outlives the process. Held by one run at a time.

    Bodies get it as `RunContext.sandbox`. `agentloop.executors.LocalSandboxes` makes such ones on this machine.
    """

    @property
    def name(self) -> str:
        """The name by which the provider finds the sandbox again: text without secrets, which the run's log holds."""
        ...

    @property
    def isolation(self) -> str:
        """The means that keep the sandbox's processes apart from the machine; `"none"` if nothing does."""
        ...

    @property
    def shell(self) -> Any:
        """The `agentloop.executors.Shell` that runs commands in the sandbox."""
        ...

    @property
    def editor(self) -> Any:
        """The `agentloop.executors.Editor` of the sandbox's files."""
        ...

    async def release(self) -> None:
        """Give the sandbox back, with all its storage: a run segment is over, and another one may follow."""
        ...

    async def remove(self) -> None:
        """Give the sandbox back and remove its storage: the run is over, and its log says so durably.

        Cancellation: the removal stops; what is left must be found by the provider's own clean-up.
        """
        ...


@runtime_checkable
class SandboxProvider(Protocol):
    """A source of sandboxes: makes one for a run, and finds it again for the run's later segments."""

    async def create(self, run_id: str) -> Sandbox:
        """Return a new sandbox for the run *run_id*.

        Cancellation: no sandbox is made, or its storage is removed.
        """
        ...

    async def find(self, name: str, run_id: str) -> Sandbox:
        """Return the sandbox *name*, which `create` made for the run *run_id*.

        Raises:
            StateError: if it is gone, is another run's, or is in use.
        """
        ...


class RunServices(Protocol):
    """The services of a run that its contexts use."""

    @property
    def usage(self) -> Usage: ...

    @property
    def sandbox(self) -> Sandbox | None: ...

    @property
    def context_tokens(self) -> int: ...

    def deadline(self) -> float | None: ...

    def find_output(self, call_id: str) -> str: ...

    def idempotency_key(self, call_id: str) -> str: ...

    async def resource(self, factory: Callable[[], AbstractAsyncContextManager[Any]]) -> Any: ...

    async def shared_resource(self, factory: Callable[[], AbstractAsyncContextManager[Any]]) -> Any: ...


class CallServices(Protocol):
    """The services of a call that its tool context uses."""

    async def report(self, progress: float, total: float | None, message: str | None) -> None: ...

    def report_nowait(self, progress: float, total: float | None, message: str | None) -> None: ...

    def emit(self, value: Any) -> None: ...

    def cleanup(self, seconds: float | None) -> AbstractContextManager[Any]: ...

    async def resource(self, factory: Callable[[], AbstractAsyncContextManager[Any]]) -> Any: ...

    def cancel_call(self, call_id: str, reason: str | None) -> bool: ...

    def search_tools(self, query: str, limit: int | None) -> list[dict[str, str]]: ...

    def check_cancelled(self) -> None: ...


class _Detached:
    """The services of a context made outside a run: no usage, no deadline."""

    usage = Usage()
    sandbox = None
    context_tokens = 0

    def deadline(self) -> float | None:
        return None

    def find_output(self, call_id: str) -> str:
        raise LookupError("There is no run whose outputs could be read again.")

    def idempotency_key(self, call_id: str) -> str:
        return ""

    async def resource(self, factory: Callable[[], AbstractAsyncContextManager[Any]]) -> Any:
        raise UserError("RunContext.resource works only inside a run")

    async def shared_resource(self, factory: Callable[[], AbstractAsyncContextManager[Any]]) -> Any:
        raise UserError("RunContext.shared_resource works only inside a run")


class RunContext(msgspec.Struct, Generic[ContextT_co], kw_only=True, eq=False, weakref=True):
    """A view of one run for user code. The engine makes it and mutates `turn_input`.

    Attributes:
        context: The application object given to `Runner.run`.
        turn_input: The items that the model was last shown.
        tool_input: The structured input of a nested agent, or None.
        run_id: The run's id.

    Example:
        from agentloop import Agent, Runner, RunContext, tool
        from agentloop.testing import ScriptedModel, call, say

        @tool
        def who(ctx: RunContext[str]) -> str:
            "Tell who is asking."
            return f"{ctx.context} is"

        agent = Agent("a", model=ScriptedModel([call("who"), say("ok")]), tools=[who])
        print(Runner.run_sync(agent, "Who?", context="Ada").new_items[1].output)  # Ada is
    """

    _unshown: ClassVar[frozenset[str]] = frozenset({"_run", "_secret_input", "_call", "_secret", "_key"})

    context: ContextT_co
    run_id: str = ""
    turn_input: Sequence[Item] = ()
    tool_input: Any = None
    _run: RunServices = msgspec.field(default_factory=_Detached)
    _secret_input: bool = False

    def __repr__(self) -> str:
        return format_struct(self, self._masks())

    def _masks(self) -> dict[str, str]:
        """Return the replacement texts, by field name, of the fields that the repr masks."""
        return {"tool_input": repr(MASK)} if self._secret_input and self.tool_input is not None else {}

    @property
    def usage(self) -> Usage:
        """The usage of the run so far, nested runs included."""
        return self._run.usage

    @property
    def context_tokens(self) -> int:
        """The tokens of the history: as the provider counted them last, and an estimate of what came since.

        Of this run alone: a nested run has its own history. Instructions and tools are in it once the provider has
        counted. It is worked out when it is read.
        """
        return self._run.context_tokens

    @property
    def deadline(self) -> float | None:
        """Seconds left until the nearest enclosing deadline; None if there is none."""
        return self._run.deadline()

    @property
    def sandbox(self) -> Sandbox:
        """The sandbox of the outermost run, which `RunConfig.sandbox` made for it.

        Raises:
            UserError: if the run has none.
        """
        held = self._run.sandbox
        if held is None:
            raise UserError("the run has no sandbox: give RunConfig.sandbox, for one LocalSandboxes(folder)")
        return held

    async def resource(self, factory: Callable[[], AbstractAsyncContextManager[ResourceT]]) -> ResourceT:
        """Return the value of *factory*'s context manager, entered once per run and left before the run ends.

        For bodies of tools, sources of tools and callbacks. Concurrent first uses enter it once and share the value.
        The run leaves its resources in reverse order, also on cancellation and error. A nested run has its own. Equal
        factories are one, as for `shared_resource`.

        Cancellation: a checkpoint. The resource is still entered if the caller is cancelled here.

        Raises:
            UserError: outside of a run, or while it is ending.
            Exception: the error of entering, for all that wait for it; the next use tries again.
        """
        resource: ResourceT = await self._run.resource(factory)
        return resource

    async def shared_resource(self, factory: Callable[[], AbstractAsyncContextManager[ResourceT]]) -> ResourceT:
        """Return the value of *factory*'s context manager, entered once for all runs that can share it.

        Inside `open_runtime` the runtime holds it until its block ends; else the outermost run does, until it ends. It
        is entered and left in its own task. Equal factories are one: give the same function, or the same method
        of the same object. `resource` is for what only one run needs.

        Cancellation: a checkpoint. The resource is still entered if the caller is cancelled here.

        Raises:
            UserError: outside of a run, or while it is ending.
            Exception: the error of entering, for all that wait for it; the next use tries again.
        """
        resource: ResourceT = await self._run.shared_resource(factory)
        return resource


class ToolContext(RunContext[ContextT_co], kw_only=True, eq=False):
    """A view of one call of one run for its body, guardrails and hooks.

    Attributes:
        tool_name, tool_call_id, tool_namespace: Identity of the call.
        tool_arguments: The JSON text with which the body is called.
        agent: The caller's agent object.
        run_config: The run's configuration.
        conversation_history: The items that the model had been shown when it made the call, then its response.

    Example:
        from agentloop import Agent, Runner, tool, ToolContext
        from agentloop.testing import ScriptedModel, call, say

        @tool
        def pay(ctx: ToolContext, amount: int) -> str:
            "Pay once, also after a crash: the key is the same when the call runs again."
            return "with a key" if ctx.idempotency_key else "without"

        agent = Agent("a", model=ScriptedModel([call("pay", {"amount": 5}), say("ok")]), tools=[pay])
        print(Runner.run_sync(agent, "Pay.").new_items[1].output)  # with a key
    """

    tool_name: str
    tool_call_id: str
    tool_arguments: str = "{}"
    tool_namespace: str | None = None
    agent: Any = None
    run_config: Any = None
    conversation_history: Sequence[Item] = ()
    _call: CallServices | None = None
    _secret: tuple[str, ...] = ()
    _key: str | None = None
    """The given idempotency key; None for the one that the run makes of the call's id when it is read, as few are."""

    @property
    def idempotency_key(self) -> str:
        """A key that is the same for every attempt of this call, after a crash, too. Empty outside of a run.

        Pass it to the services that the body calls. It can be set.
        """
        return self._run.idempotency_key(self.tool_call_id) if self._key is None else self._key

    @idempotency_key.setter
    def idempotency_key(self, key: str) -> None:
        self._key = key

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, idempotency_key={self.idempotency_key!r})"

    def _masks(self) -> dict[str, str]:
        return {**super()._masks(), "tool_arguments": repr(mask_arguments(self.tool_arguments, self._secret))}

    @classmethod
    def from_agent_context(
        cls,
        context: RunContext[ContextT_co],
        tool_call_id: str,
        *,
        tool_name: str,
        tool_arguments: str = "{}",
        tool_namespace: str | None = None,
        agent: Any = None,
        run_config: Any = None,
        conversation_history: Sequence[Item] = (),
        idempotency_key: str | None = None,
        call: CallServices | None = None,
        secret: tuple[str, ...] = (),
    ) -> ToolContext[ContextT_co]:
        """Return a context for one call that shares *context*'s application object and usage."""
        # More than fifteen arguments by name would be passed in a dictionary: 0.4 µs of each call in place of 0.1.
        made = cls(
            context=context.context,
            run_id=context.run_id,
            turn_input=context.turn_input,
            tool_input=context.tool_input,
            _run=context._run,
            _secret_input=context._secret_input,
            tool_name=tool_name,
            tool_call_id=tool_call_id,
            tool_arguments=tool_arguments,
            tool_namespace=tool_namespace,
            agent=agent,
            run_config=run_config,
            conversation_history=conversation_history,
            _call=call,
        )
        if secret:
            made._secret = secret
        if idempotency_key is not None:
            made._key = idempotency_key
        return made

    def _require_services(self, method: str) -> CallServices:
        if self._call is None:
            raise UserError(f"ToolContext.{method} works only while the runtime runs the call")
        return self._call

    async def report(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Report progress and restart the tool's `idle_timeout`.

        Cancellation: a checkpoint, after the report was made.
        """
        await self._require_services("report").report(progress, total, message)

    def report_nowait(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Report progress from a sync body (a worker thread), or without a checkpoint."""
        self._require_services("report_nowait").report_nowait(progress, total, message)

    def emit(self, value: Any) -> None:
        """Emit an event of your own: a `CustomEvent` with this call and *value* in the run's stream.

        Web clients and instruments (`Instrument.on_custom_event`) get it, too. It is a signal: no log stores it, and a
        replay has none. Callable from any thread; never waits for a consumer. While the consumer is behind, a newer
        event replaces the unread last one of the same call. After the call's outcome nothing is emitted.

        Args:
            value: Any object. Consumers in the process get the object itself, so don't change it afterwards. The web
                form writes it as JSON: a mapping of JSON's own types is best.

        Raises:
            UserError: the runtime isn't running the call.

        Example:
            import anyio
            from agentloop import Agent, Runner, ToolContext, tool
            from agentloop.events import CustomEvent
            from agentloop.testing import ScriptedModel, call, say

            @tool
            async def search(ctx: ToolContext[None]) -> str:
                "Search the library."
                ctx.emit({"source": "catalogue", "hits": 3})
                return "three books"

            async def main():
                agent = Agent("a", model=ScriptedModel([call("search"), say("ok")]), tools=[search])
                async with Runner.run_streamed(agent, "go") as stream:
                    async for event in stream:
                        if isinstance(event, CustomEvent):
                            print(event.call.name, event.value["hits"])  # search 3

            anyio.run(main)
        """
        self._require_services("emit").emit(value)

    def cleanup(self, seconds: float | None = None) -> AbstractContextManager[Any]:
        """Return a context manager whose block is shielded from cancellation, for a bounded time.

        The block ends at the run's one cleanup deadline or, if none is set, `cleanup_grace` seconds after it was
        entered. *seconds* can only shorten that time.

        Cancellation: at the deadline the block is cut like by a timeout: the code after it runs, and the cut is
            recorded.
        """
        return self._require_services("cleanup").cleanup(seconds)

    async def resource(self, factory: Callable[[], AbstractAsyncContextManager[ResourceT]]) -> ResourceT:
        """Return the value of *factory*'s context manager, as `RunContext.resource`."""
        resource: ResourceT = await self._require_services("resource").resource(factory)
        return resource

    def cancel_call(self, call_id: str, reason: str | None = None) -> bool:
        """Cancel one call of this run, which may be this call. Callable from any thread.

        Returns False if the call has already ended or its id is unknown.

        Raises:
            UserTypeError: *call_id* or *reason* isn't text.
        """
        check("call_id", _CALL_ID, call_id)
        return self._require_services("cancel_call").cancel_call(call_id, reason)

    def check_cancelled(self) -> None:
        """Raise the backend's cancellation if this call is being cancelled. For the worker thread of a sync body."""
        self._require_services("check_cancelled").check_cancelled()


Callback = Callable[..., Any | Awaitable[Any]]
"""A sync or async callable of the application. The parameter that accepts it documents its arguments and result."""
