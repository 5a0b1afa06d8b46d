"""Records by hand: a state as a run would have made it, without a run."""

from collections.abc import Sequence
from typing import Any

import attrs

from agentloop import records as r
from agentloop._core.run_fold import RunFold
from agentloop._core.turn_view import TurnView
from agentloop.agents import Agent
from agentloop.items import Item, ToolCall, UserMessage
from agentloop.model_events import ModelResponse
from agentloop.outcomes import CallOutcome
from agentloop.settings import ModelSettings
from agentloop.tools import FunctionTool


@attrs.define
class Writer:
    """Applies records to a state, each with the state's own path and turn."""

    state: RunFold = attrs.field(factory=RunFold)

    def append(self, kind: type[Any], *fields: Any, **named: Any) -> None:
        """Apply one record."""
        self.state.apply(kind(self.state.path, self.state.turn, 0.0, *fields, **named))

    def begin(self, max_turns: int | None = None, shown: tuple[Item, ...] | None = None) -> "Writer":
        """Start the run."""
        self.append(r.RunStarted, "run", "guide", (UserMessage("go"),), max_turns, shown=shown)
        return self

    def turn(self, *items: Item, **fields: Any) -> "Writer":
        """Begin a turn, in which the model answers with *items*; *fields* are those of `ModelResponse`."""
        self.state.apply(r.TurnStarted(self.state.path, self.state.turn + 1, 0.0, "guide"))
        return self.answer(*items, **fields)

    def answer(self, *items: Item, **fields: Any) -> "Writer":
        """Let the model answer with *items* in the open turn; *fields* are those of `ModelResponse`."""
        self.append(r.ModelRequested, "digest")
        self.append(r.ModelResponded, ModelResponse(items, **fields))
        return self

    def settle(self, call_id: str, output: Any = "ok", status: Any = "succeeded", **fields: Any) -> "Writer":
        """Settle one call, which releases what is due."""
        outcome = CallOutcome(status=status, output=output, value=fields.pop("value", output))
        self.append(r.CallSettled, call_id, "f", outcome, **fields)
        return self

    def accept(self) -> "Writer":
        """End the batch."""
        self.append(r.BatchEnded)
        return self


def called(call_id: str, name: str = "f", arguments: str = "{}", namespace: str | None = None) -> ToolCall:
    """Return a call of the model."""
    return ToolCall(call_id, name, arguments, namespace)


def view_of(*tools: FunctionTool, output: Any = None, **fields: Any) -> TurnView:
    """Return a turn's view of an agent with these tools."""
    agent: Agent[Any, Any] = Agent("guide", tools=list(tools), **fields)
    return TurnView(
        agent=agent.name,
        tools=tuple(tools),
        by_key={tool.lookup_key: tool for tool in tools},
        settings=ModelSettings(),
        output=output,
        tool_use_behavior=agent.tool_use_behavior,
    )


def ids(items: Sequence[Any]) -> list[str]:
    """Return each item's kind and call id, as far as it has one."""
    return [f"{type(item).__name__}:{getattr(item, 'call_id', '')}".rstrip(":") for item in items]
