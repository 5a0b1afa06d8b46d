"""The same work as runs of agentloop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from agentloop import Agent, Capacity, RunConfig, RunHooks, Runner, RunResult, ToolExecution, tool
from agentloop.abc import Instrument, Journal, Model
from agentloop.events import TextDelta
from agentloop.items import ToolCall, ToolOutput
from agentloop.journal import MemoryJournal
from agentloop.model_events import ModelRequest
from benchmarks.script import Script

NO_CAPS = RunConfig(tool_execution=ToolExecution(max_function_tool_concurrency=None, max_calls_per_turn=None))


class ScriptModel(Model):
    """A model that answers from a script by turn, so that any number of runs may share it."""

    def __init__(self, script: Script, on_request: Callable[[], None] | None = None) -> None:
        self._script = script
        self._on_request = on_request

    def stream(self, request: ModelRequest) -> Any:
        """Give the events of this turn's answer."""
        if self._on_request is not None:
            self._on_request()
        return self._script.stream(request.turn - 1)


class CountingHooks(RunHooks):
    """One small hook on model calls and one on tool calls."""

    def __init__(self) -> None:
        self.count = 0

    async def on_llm_end(self, ctx: Any, agent: Any, response: Any) -> None:
        """Count."""
        self.count += 1

    async def on_tool_end(self, ctx: Any, agent: Any, tool: Any, outcome: Any) -> None:
        """Count."""
        self.count += 1


@attrs.frozen
class Ours:
    """An agent on a script, and how it is run."""

    agent: Agent[Any, Any]
    config: RunConfig = NO_CAPS
    hooks: RunHooks | None = None
    journaled: bool = False

    async def run(self, journal: Journal | None = None) -> RunResult[Any]:
        """Run once, plain, and return the result. A run that is *journaled* makes a journal of its own."""
        if self.journaled:
            journal = MemoryJournal()
        return await Runner.run(
            self.agent, "go", max_turns=None, hooks=self.hooks, run_config=self.config, journal=journal
        )

    async def check(self, script: Script) -> None:
        """Run once and raise unless every call of *script* was answered as its body answers: a failure is cheap too."""
        result = await self.run()
        calls = [item.call_id for items in script.answers for item in items if isinstance(item, ToolCall)]
        answered = [item.call_id for item in result.new_items if isinstance(item, ToolOutput) and item.output == "ok"]
        if calls != answered:
            raise RuntimeError(f"{len(calls)} calls were made, and {len(answered)} answered as they should be")

    async def read(self) -> int:
        """Run once, streamed, reading every event; return how many text deltas came."""
        deltas = 0
        stream = Runner.run_streamed(self.agent, "go", max_turns=None, hooks=self.hooks, run_config=self.config)
        async with stream:
            async for event in stream:
                deltas += isinstance(event, TextDelta)
        return deltas

    def as_usual(self) -> Ours:
        """Return the same with the default caps, hooks on model and tool calls, and a journal in memory."""
        return attrs.evolve(self, config=RunConfig(), hooks=CountingHooks(), journaled=True)

    def watched_by(self, instrument: Instrument) -> Ours:
        """Return the same with *instrument*."""
        return attrs.evolve(self, config=attrs.evolve(self.config, instruments=[instrument]))

    def capped(self, cap: int) -> Ours:
        """Return the same with at most *cap* bodies in flight."""
        execution = attrs.evolve(NO_CAPS.tool_execution, max_function_tool_concurrency=cap)
        return attrs.evolve(self, config=RunConfig(tool_execution=execution))


def ours(script: Script, on_request: Callable[[], None] | None = None, capacity: Capacity | tuple[()] = ()) -> Ours:
    """Return *script* as an agent with one tool under *capacity*; *on_request* is called at each model call."""
    work = tool(script.body, name="work", description="Does the work.", capacity=capacity)
    return Ours(Agent("benchmark", model=ScriptModel(script, on_request), tools=[work]))
