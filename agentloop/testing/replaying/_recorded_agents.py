"""The agents of a replay: copies without the application's code that the engine calls directly.

The engine calls bodies, guardrails, callbacks and sessions through the effects, which a replay answers from the log:
they stay in the copies. It calls models, hooks and the functions that price a call or a request directly: these are
replaced. Limits are copied, so that other runs hold nothing of them.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from decimal import Decimal
from typing import Any

import attrs

from agentloop import records as r
from agentloop.abc import Model, ModelProvider
from agentloop.agents import Agent, implicit_settings
from agentloop.config import RunConfig
from agentloop.exceptions import UserError
from agentloop.handoffs import Handoff
from agentloop.hooks import AgentHooks, RunHooks
from agentloop.limits import Capacity, Rate
from agentloop.model_events import ModelEvent, ModelRequest
from agentloop.settings import ModelSettings
from agentloop.testing.replaying._effects import ReplayEffects
from agentloop.testing.replaying._recorded import FROM_OUTSIDE
from agentloop.tools import AgentCall, FunctionTool, PythonBody, RawBody


class ClosedModel(Model):
    """A placeholder for a model. A replay makes no request to it."""

    def __init__(self, settings: ModelSettings) -> None:
        self._settings = settings

    @property
    def default_settings(self) -> ModelSettings:
        """The settings of the replaced model."""
        return self._settings

    def stream(self, request: ModelRequest) -> AbstractAsyncContextManager[AsyncIterator[ModelEvent]]:
        """Raise UserError."""
        raise UserError("a replay asks no model")


class ClosedModels(ModelProvider):
    """A provider of placeholders."""

    def get_model(self, name: str) -> Model:
        """Return a placeholder, for any *name*."""
        return ClosedModel(ModelSettings())


class ClosedSession:
    """A placeholder for a session, which is neither read nor written."""

    async def get_items(self, limit: int | None = None) -> list[Any]:
        """Raise UserError."""
        raise UserError("a replay reads no session")

    async def add_items(self, items: Any) -> None:
        """Raise UserError."""
        raise UserError("a replay writes to no session")

    async def pop_item(self) -> Any:
        """Raise UserError."""
        raise UserError("a replay writes to no session")

    async def clear(self) -> None:
        """Raise UserError."""
        raise UserError("a replay writes to no session")


class HooksOfAgents(AgentHooks):
    """Hooks of every copied agent: they wait for records, since the recorded hooks may have taken time."""

    def __init__(self, effects: ReplayEffects) -> None:
        self._effects = effects

    async def _wait(self, ctx: Any) -> None:
        await self._effects.run_hook(ctx._run.path)

    async def on_start(self, ctx: Any, agent: Any) -> None:
        """Wait for the run's next record."""
        await self._wait(ctx)

    async def on_end(self, ctx: Any, agent: Any, output: Any) -> None:
        """Wait for the run's next record."""
        await self._wait(ctx)

    async def on_handoff_out(self, ctx: Any, agent: Any, to_agent: Any) -> None:
        """Wait for the run's next record."""
        await self._wait(ctx)

    async def on_handoff_in(self, ctx: Any, agent: Any, from_agent: Any) -> None:
        """Wait for the run's next record."""
        await self._wait(ctx)

    async def on_llm_start(self, ctx: Any, agent: Any, system: Any, input: Any) -> None:
        """Wait for the run's next record."""
        await self._wait(ctx)

    async def on_llm_end(self, ctx: Any, agent: Any, response: Any) -> None:
        """Wait for the run's next record."""
        await self._wait(ctx)

    async def on_tool_start(self, ctx: Any, agent: Any, tool: Any) -> None:
        """Raise the recorded error of a start hook, if there is one."""
        await self._effects.start_hook(ctx._run.path, ctx.tool_call_id)

    async def on_tool_end(self, ctx: Any, agent: Any, tool: Any, outcome: Any) -> None:
        """Wait for the call's next record."""
        await self._effects.end_hook(ctx._run.path, ctx.tool_call_id)


class HooksOfRuns(RunHooks):
    """Hooks of the outermost run: `on_run_end` waits for the last record: the recorded hook may have been slow."""

    def __init__(self, effects: ReplayEffects) -> None:
        self._effects = effects

    async def on_run_end(self, ctx: Any, outcome: Any) -> None:
        """Wait for the run's last record."""
        effects = self._effects
        index = effects.find(r.RunEnded, ())
        if index is None:
            return
        between = effects.records[effects.cursor : index]
        if all(isinstance(record, (r.CleanupCut, *FROM_OUTSIDE)) for record in between):
            await effects.until(index, "on_run_end", in_time=False)


def _refuse_body(*_: Any, **__: Any) -> Any:
    raise UserError("a replay runs no body")


class RecordedAgents:
    """Copies of agents, one for each given agent, for a replay through *effects*.

    Owned by one attempt of a replay. Copies of limits are shared between the copies as the originals are.
    """

    def __init__(self, effects: ReplayEffects) -> None:
        self._effects = effects
        self._agents: dict[int, Agent[Any, Any]] = {}
        self._limits: dict[int, Any] = {}
        self._hooks = HooksOfAgents(effects)

    def agent(self, given: Agent[Any, Any]) -> Agent[Any, Any]:
        """Return the copy of *given*, made at the first call together with those of all reachable agents."""
        found = self._agents.get(id(given))
        if found is None:
            # The name of a model stays: it tells agents of one name apart, and the configuration's provider opens it.
            # An agent without a model stays without one: the configuration of the run may have given it one.
            model = given.model if isinstance(given.model, str) else self._close_model(given.model)
            found = self._agents[id(given)] = given.clone(
                model=model, model_settings=given.model_settings, hooks=self._hooks, tools=[], handoffs=[]
            )
            found.tools = [self._copy_tool(tool) if isinstance(tool, FunctionTool) else tool for tool in given.tools]
            found.handoffs = [self._copy_handoff(entry) for entry in given.handoffs]
        return found

    def config(self, given: RunConfig) -> RunConfig:
        """Return a copy of *given* for a replay: with these effects and recorded prices, without instruments."""
        model = given.model if isinstance(given.model, str) or given.model is None else self._close_model(given.model)
        return attrs.evolve(
            given,
            model=model,
            model_provider=ClosedModels(),
            effects=self._effects,
            instruments=(),
            tracing_disabled=True,
            price=None if given.price is None else self._find_recorded_price,
        )

    @staticmethod
    def _close_model(given: Any) -> Model:
        return ClosedModel(implicit_settings(given))

    def _copy_handoff(self, entry: Agent[Any, Any] | Handoff) -> Agent[Any, Any] | Handoff:
        if isinstance(entry, Agent):
            return self.agent(entry)
        return attrs.evolve(entry, agent=self.agent(entry.agent))

    def _copy_tool(self, tool: FunctionTool) -> FunctionTool:
        body: Any = tool.body
        if tool.name in self._effects.recorded.hidden:
            body = RawBody(_refuse_body)  # the digests in place of its secrets needn't fit the schema
        elif isinstance(body, PythonBody):
            body = body.replace(fn=_refuse_body)
        elif isinstance(body, AgentCall):
            body = attrs.evolve(
                body,
                agent=self.agent(body.agent),
                run_config=None if body.run_config is None else self.config(body.run_config),
                session=None if body.session is None else ClosedSession(),
                on_stream=None,
            )
        else:
            body = RawBody(_refuse_body)
        return attrs.evolve(
            tool,
            body=body,
            on_invoke_tool=_refuse_body,
            capacity=tuple(self._copy_limit(limit) for limit in tool.capacity),
            cost=None if tool.cost is None else self._make_cost(tool),
        )

    def _copy_limit(self, given: Capacity | Rate) -> Capacity | Rate:
        """Return the copy of a limit: of the same size, and used by no other run."""
        found: Any = self._limits.get(id(given))
        if found is None:
            if isinstance(given, Rate):
                found = Rate(given.count, given.per, given.name)
            else:
                found = Capacity(given.total_tokens, given.name)
            self._limits[id(given)] = found
        return found  # type: ignore[no-any-return]

    # -- recorded costs

    def _find_recorded_price(self, name: str, usage: Any) -> Decimal:
        effects = self._effects
        wanted = effects.due
        cost = wanted.cost if isinstance(wanted, r.ModelResponded) else None
        return Decimal(cost or 0)

    def _make_cost(self, tool: FunctionTool) -> Any:
        """Return a cost function with the recorded costs of *tool*'s calls.

        A cost function gets only the arguments of a call, so they select the record.
        """

        def cost(arguments: Mapping[str, Any]) -> Decimal:
            effects = self._effects
            for index in range(effects.cursor, effects.entry.stop):
                record = effects.records[index]
                if isinstance(record, r.CallStarted) and record.tool == tool.name and record.attempt == 1:
                    if _parse_json(record.arguments) == arguments:
                        return Decimal(record.cost or 0)
                elif isinstance(record, r.BatchEnded | r.TurnStarted):
                    break
            return Decimal("1e1000")  # the call didn't start: if a budget was the reason, its cost was too high

        return cost


def _parse_json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None
