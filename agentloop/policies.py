"""Policies: what an application allows its agents to do, asked about every call before it may start."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any, Protocol, TypeAlias, runtime_checkable

import attrs

from agentloop._common.masking import MASK, masked_repr
from agentloop.context import RunContext
from agentloop.guardrails import Allow
from agentloop.items import ToolCall
from agentloop.tools import FunctionTool


@attrs.frozen
class Ask:
    """Somebody has to approve the call. `reason` is for whoever is asked."""

    reason: str | None = None


@attrs.frozen
class Deny:
    """The call must not run, whoever approves of it; the model is told *message*."""

    message: str | None = None


Decision: TypeAlias = Allow | Ask | Deny


@attrs.frozen(kw_only=True, repr=False)
class PendingCall:
    """A call that is to be decided on.

    Attributes:
        call: What the model asked for.
        tool: The tool it goes to.
        agent: The agent at work.
        arguments: What it would be called with, parsed; None where the text isn't a JSON object.
        context: The run's context.
        path: Ids of the agent-tool calls around the run.
    """

    call: ToolCall
    tool: FunctionTool
    agent: Any
    arguments: Mapping[str, Any] | None
    context: RunContext[Any]
    path: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return masked_repr(self, {"arguments": repr(MASK)} if self.call.secret else {})


@runtime_checkable
class Policy(Protocol):
    """Decides on calls, sync or async. All policies of a run are asked: the strictest answer holds.

    One that raises has denied. A denial is final: no approval releases the call.
    """

    def decide(self, call: PendingCall) -> Decision | Awaitable[Decision]:
        """Return `Allow()`, `Ask()` or `Deny(message)`."""
        ...
