"""What the tests of runs share: agents on a script, and what to read off a run."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeAlias

import anyio
import attrs

from agentloop import Agent, RunConfig, RunHooks, RunResult, ToolExecution
from agentloop.items import Content, ToolCall, ToolOutput
from agentloop.model_events import ModelRequest
from agentloop.testing import ScriptedModel, say

Run: TypeAlias = Callable[..., Awaitable[RunResult[Any]]]
"""What the `run_mode` fixture gives."""


def agent_with(tools: Iterable[Any], *steps: Any, done: str | None = "done", **fields: Any) -> Agent[Any, Any]:
    """Return an agent that follows *steps*, then says *done* (unless None)."""
    script = [*steps, say(done)] if done is not None else list(steps)
    return Agent("guide", model=ScriptedModel(script), tools=list(tools), **fields)


def requests_of(agent: Agent[Any, Any]) -> list[ModelRequest]:
    """Return what the agent's model was asked."""
    assert isinstance(agent.model, ScriptedModel)
    return agent.model.requests


def outputs_in(items: Iterable[Any]) -> dict[str, Content]:
    """Return the outputs among *items* by call id, in their order."""
    found: dict[str, Content] = {}
    for item in items:
        if isinstance(item, ToolOutput):
            assert item.call_id not in found, f"two outputs for {item.call_id}"
            found[item.call_id] = item.output
    return found


def calls_in(items: Iterable[Any]) -> list[str]:
    """Return the ids of the calls among *items*."""
    return [item.call_id for item in items if isinstance(item, ToolCall)]


def shown(agent: Agent[Any, Any], request: int = -1) -> dict[str, Content]:
    """Return the outputs the model was shown in a request (the last one)."""
    return outputs_in(requests_of(agent)[request].items)


def statuses(result: Any) -> list[str]:
    """Return the statuses of the calls of a result or of an error's `run_data`, in model order."""
    return [settled.outcome.status for settled in result.calls]


def outcome_of(result: Any, call_id: str) -> Any:
    """Return the outcome of one call."""
    return next(settled.outcome for settled in result.calls if settled.call.call_id == call_id)


def records_of(result: Any, kind: type) -> list[Any]:
    """Return the records of one kind."""
    return [record for record in result.records if isinstance(record, kind)]


def executing(**fields: Any) -> RunConfig:
    """Return a configuration with these fields of `ToolExecution`."""
    return RunConfig(tool_execution=ToolExecution(**fields))


@attrs.define
class Flight:
    """Counts what is in flight at once, and keeps the order of starts."""

    now: int = 0
    peak: int = 0
    started: list[Any] = attrs.field(factory=list)
    ended: list[Any] = attrs.field(factory=list)

    def __call__(self, name: Any) -> "_Seat":
        return _Seat(self, name)


@attrs.define
class _Seat:
    flight: Flight
    name: Any

    def __enter__(self) -> None:
        self.flight.now += 1
        self.flight.peak = max(self.flight.peak, self.flight.now)
        self.flight.started.append(self.name)

    def __exit__(self, *_: object) -> None:
        self.flight.now -= 1
        self.flight.ended.append(self.name)


class Rendezvous:
    """Lets everyone go once *count* have come."""

    def __init__(self, count: int) -> None:
        self._left = count
        self._all = anyio.Event()

    async def wait(self) -> None:
        """Come, and wait for the others."""
        self._left -= 1
        if self._left == 0:
            self._all.set()
        await self._all.wait()


class ToolHooks(RunHooks):
    """Keeps the tool events of a run: `start:ID`, `end:ID:STATUS`."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.outcomes: dict[str, Any] = {}

    async def on_tool_start(self, ctx: Any, agent: Any, tool: Any) -> None:
        self.seen.append(f"start:{ctx.tool_call_id}")

    async def on_tool_end(self, ctx: Any, agent: Any, tool: Any, outcome: Any) -> None:
        assert ctx.tool_call_id not in self.outcomes
        self.seen.append(f"end:{ctx.tool_call_id}:{outcome.status}")
        self.outcomes[ctx.tool_call_id] = outcome
