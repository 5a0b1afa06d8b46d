"""What user code is handed: the run's context, and for a tool body the call's.

Both are views made by the runtime. The application object in `context` is the caller's own, never copied, never shown
to a model.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Generic, Protocol, TypeVar

import attrs

from agentloop._common.errors import UserError
from agentloop._common.masking import MASK, masked_arguments, masked_repr
from agentloop._common.type_parameters import ContextT_co
from agentloop.items import Item
from agentloop.usage import Usage

ResourceT = TypeVar("ResourceT")


class RunServices(Protocol):
    """What a context asks of the run it belongs to."""

    @property
    def usage(self) -> Usage: ...

    def deadline(self) -> float | None: ...


class CallServices(Protocol):
    """What a tool context asks of its call."""

    async def report(self, progress: float, total: float | None, message: str | None) -> None: ...

    def report_nowait(self, progress: float, total: float | None, message: str | None) -> None: ...

    def cleanup(self, seconds: float | None) -> AbstractContextManager[Any]: ...

    async def resource(self, factory: Callable[[], AbstractAsyncContextManager[Any]]) -> Any: ...

    def cancel_call(self, call_id: str, reason: str | None) -> bool: ...

    def check_cancelled(self) -> None: ...


class _Detached:
    """Stands in where a context was made outside a run."""

    usage = Usage()

    def deadline(self) -> float | None:
        return None


@attrs.define(kw_only=True, eq=False, repr=False)
class RunContext(Generic[ContextT_co]):
    """One run, as user code sees it.

    Attributes:
        context: The application object given to `Runner.run`.
        turn_input: What the model was last shown.
        tool_input: The structured input of a nested agent, or None.
        run_id: The run's id.
    """

    context: ContextT_co
    run_id: str = ""
    turn_input: Sequence[Item] = ()
    tool_input: Any = None
    _run: RunServices = attrs.field(factory=_Detached, alias="run", repr=False)
    _secret_input: bool = attrs.field(default=False, alias="secret_input", repr=False)

    def __repr__(self) -> str:
        return masked_repr(self, self._masks())

    def _masks(self) -> dict[str, str]:
        """Return what the repr shows in the place of fields."""
        return {"tool_input": repr(MASK)} if self._secret_input and self.tool_input is not None else {}

    @property
    def usage(self) -> Usage:
        """What the run (nested runs included) has used so far."""
        return self._run.usage

    @property
    def deadline(self) -> float | None:
        """Seconds left until the nearest enclosing deadline, or None where there is none."""
        return self._run.deadline()


@attrs.define(kw_only=True, eq=False, repr=False)
class ToolContext(RunContext[ContextT_co]):
    """One call of one run, as its body, guardrails and hooks see it.

    Attributes:
        tool_name, tool_call_id, tool_namespace: Identity of the call.
        tool_arguments: The JSON text the body is called with.
        agent: The caller's agent object.
        run_config: The run's configuration.
        conversation_history: What the model had been shown when it made the call, and its response.
        idempotency_key: The same for every attempt of this call, after a crash too; pass it to what you call.
    """

    tool_name: str
    tool_call_id: str
    tool_arguments: str = "{}"
    tool_namespace: str | None = None
    agent: Any = None
    run_config: Any = None
    conversation_history: Sequence[Item] = ()
    idempotency_key: str = ""
    _call: CallServices | None = attrs.field(default=None, alias="call", repr=False)
    _secret: tuple[str, ...] = attrs.field(default=(), alias="secret", repr=False)

    def __repr__(self) -> str:
        return masked_repr(self, self._masks())

    def _masks(self) -> dict[str, str]:
        return {**super()._masks(), "tool_arguments": repr(masked_arguments(self.tool_arguments, self._secret))}

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
        idempotency_key: str = "",
        call: CallServices | None = None,
        secret: tuple[str, ...] = (),
    ) -> ToolContext[ContextT_co]:
        """Return a context for one call that shares *context*'s application object and usage."""
        return cls(
            context=context.context,
            run_id=context.run_id,
            turn_input=context.turn_input,
            tool_input=context.tool_input,
            run=context._run,
            secret_input=context._secret_input,
            tool_name=tool_name,
            tool_call_id=tool_call_id,
            tool_arguments=tool_arguments,
            tool_namespace=tool_namespace,
            agent=agent,
            run_config=run_config,
            conversation_history=conversation_history,
            idempotency_key=idempotency_key,
            call=call,
            secret=secret,
        )

    def _live(self, what: str) -> CallServices:
        if self._call is None:
            raise UserError(f"ToolContext.{what} works only while the runtime runs the call")
        return self._call

    async def report(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Report progress; restarts the tool's `idle_timeout`. A checkpoint."""
        await self._live("report").report(progress, total, message)

    def report_nowait(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Report progress from a sync body (a worker thread) or without a checkpoint."""
        self._live("report_nowait").report_nowait(progress, total, message)

    def cleanup(self, seconds: float | None = None) -> AbstractContextManager[Any]:
        """Return a context manager whose block is shielded from cancellation, for a bounded time.

        The block ends at the run's one cleanup deadline; where none is set, `cleanup_grace` after entry. *seconds* can
        only shorten it. A block that is cut is left as by a timeout: the code after it runs, and the cut is recorded.
        """
        return self._live("cleanup").cleanup(seconds)

    async def resource(self, factory: Callable[[], AbstractAsyncContextManager[ResourceT]]) -> ResourceT:
        """Return what *factory*'s context manager gives, entered once per run and left before the run ends.

        Concurrent first uses share one entry. Left in reverse order, also on cancellation and error. A failing entry is
        seen by all who wait for it and tried again by the next.
        """
        resource: ResourceT = await self._live("resource").resource(factory)
        return resource

    def cancel_call(self, call_id: str, reason: str | None = None) -> bool:
        """Cancel one call of this run (itself too); False if it has already ended or is unknown. Any thread."""
        return self._live("cancel_call").cancel_call(call_id, reason)

    def check_cancelled(self) -> None:
        """Raise the backend's cancellation in a sync body's thread if its call is being cancelled."""
        self._live("check_cancelled").check_cancelled()


Callback = Callable[..., Any | Awaitable[Any]]
"""User code that may be sync or async; what it takes and gives is said where it is accepted."""
