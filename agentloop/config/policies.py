"""Policies: rules of the application that allow, deny or hold each call before it may start.

Definitions only: the engine calls the policies and applies the strictest decision.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any, Protocol, TypeAlias, runtime_checkable

from agentloop._common.masking import MASK
from agentloop._common.values import Value
from agentloop.context import RunContext
from agentloop.guardrails import Allow
from agentloop.items import ToolCall
from agentloop.tools import FunctionTool


class Ask(Value, frozen=True):
    """The call needs an approval. `reason` is shown to the person or program that decides.

    Example:
        from agentloop import Allow, Ask

        class AskAboutLargeSums:
            def decide(self, call):
                return Ask("more than 100") if call.arguments.get("amount", 0) > 100 else Allow()

        print(Ask("more than 100").reason)  # more than 100
    """

    reason: str | None = None


class Deny(Value, frozen=True):
    """The call must not run, and no approval changes that; the model receives *message*.

    Example:
        from agentloop import Allow, Deny

        class NoShell:
            def decide(self, call):
                return Deny("No commands here.") if call.tool.name == "shell" else Allow()

        print(Deny("No commands here.").message)  # No commands here.
    """

    message: str | None = None


Decision: TypeAlias = Allow | Ask | Deny


class PendingCall(Value, frozen=True, kw_only=True):
    """A call before its decision: the argument of `Policy.decide`.

    Attributes:
        call: The call as the model wrote it.
        tool: The tool that it calls.
        agent: The active agent.
        arguments: The arguments that the body would receive, parsed; None if the text isn't a JSON object.
        context: The run's context.
        path: The ids of the enclosing agent-tool calls.
    """

    call: ToolCall
    tool: FunctionTool
    agent: Any
    arguments: Mapping[str, Any] | None
    context: RunContext[Any]
    path: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return self._format({"arguments": repr(MASK)} if self.call.secret else {})


@runtime_checkable
class Policy(Protocol):
    """A rule that decides on calls; `decide` may be sync or async. The run calls all its policies: the strictest wins.

    A policy that raises has denied the call. A denial is final: no approval releases the call.

    Example:
        from agentloop import Agent, Allow, Deny, RunConfig, Runner, tool
        from agentloop.testing import ScriptedModel, call, say

        @tool
        def pay(amount: int) -> str:
            "Pay."
            return "paid"

        class OnlySmall:
            def decide(self, call):
                return Allow() if call.arguments["amount"] < 100 else Deny("Too much.")

        agent = Agent("a", model=ScriptedModel([call("pay", {"amount": 500}), say("ok")]), tools=[pay])
        result = Runner.run_sync(agent, "Pay.", run_config=RunConfig(policies=[OnlySmall()]))
        print(result.new_items[1].output)  # Too much.
    """

    def decide(self, call: PendingCall) -> Decision | Awaitable[Decision]:
        """Return `Allow()`, `Ask()` or `Deny(message)`."""
        ...
