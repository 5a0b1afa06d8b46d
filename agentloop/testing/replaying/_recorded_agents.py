"""The agents of a replay: those given, without anything of the application's in them that a run would call by itself.

What a run asks for through its door (bodies, guardrails, callbacks, sessions) stays where it is, since the door never
opens. Models, hooks and the functions that price a call or a request are called directly, so others stand there.
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
from agentloop.config import ModelSettings, RunConfig
from agentloop.exceptions import UserError
from agentloop.handoffs import Handoff
from agentloop.hooks import AgentHooks, RunHooks
from agentloop.limits import Capacity, Rate
from agentloop.model_events import ModelEvent, ModelRequest
from agentloop.testing.replaying._effects import ReplayEffects
from agentloop.tools import AgentCall, FunctionTool, PythonBody, RawBody


class ClosedModel(Model):
    """Stands for a model that isn't asked."""

    def __init__(self, settings: ModelSettings) -> None:
        self._settings = settings

    @property
    def default_settings(self) -> ModelSettings:
        """Those of the model it stands for."""
        return self._settings

    def stream(self, request: ModelRequest) -> AbstractAsyncContextManager[AsyncIterator[ModelEvent]]:
        """Refuse."""
        raise UserError("a replay asks no model")


class ClosedModels(ModelProvider):
    """Gives models that aren't asked."""

    def get_model(self, name: str) -> Model:
        """Return one."""
        return ClosedModel(ModelSettings())


class ClosedSession:
    """Stands for a session that is neither read nor written."""

    async def get_items(self, limit: int | None = None) -> list[Any]:
        """Refuse."""
        raise UserError("a replay reads no session")

    async def add_items(self, items: Any) -> None:
        """Refuse."""
        raise UserError("a replay writes to no session")

    async def pop_item(self) -> Any:
        """Refuse."""
        raise UserError("a replay writes to no session")

    async def clear(self) -> None:
        """Refuse."""
        raise UserError("a replay writes to no session")


class HooksOfAgents(AgentHooks):
    """Wait where hooks may have waited."""

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
        """Raise what a hook raised here."""
        await self._effects.start_hook(ctx._run.path, ctx.tool_call_id)

    async def on_tool_end(self, ctx: Any, agent: Any, tool: Any, outcome: Any) -> None:
        """Wait for the call's next record."""
        await self._effects.end_hook(ctx._run.path, ctx.tool_call_id)


class HooksOfRuns(RunHooks):
    """Wait where the last hook of a run may have waited."""

    def __init__(self, effects: ReplayEffects) -> None:
        self._effects = effects

    async def on_run_end(self, ctx: Any, outcome: Any) -> None:
        """Wait for the run's last record."""
        effects = self._effects
        index = effects.find(r.RunEnded, ())
        if index is None:
            return
        between = effects.records[effects.cursor : index]
        if all(isinstance(record, r.CleanupCut | r.VerdictGiven | r.InputAdded) for record in between):
            await effects.until(index, "on_run_end", in_time=False)


def _no_body(*_: Any, **__: Any) -> Any:
    raise UserError("a replay runs no body")


class RecordedAgents:
    """Copies of agents, each made once, for a replay through *effects*."""

    def __init__(self, effects: ReplayEffects) -> None:
        self._effects = effects
        self._agents: dict[int, Agent[Any, Any]] = {}
        self._limits: dict[int, Any] = {}
        self._hooks = HooksOfAgents(effects)

    def agent(self, given: Agent[Any, Any]) -> Agent[Any, Any]:
        """Return the copy of *given*, and with it those of all it leads to."""
        found = self._agents.get(id(given))
        if found is None:
            # A model's name is part of what tells agents of one name apart; it is opened by the configuration.
            # One without a model may have been run with another one, by its configuration.
            model = given.model if isinstance(given.model, str) else self._model(given.model)
            found = self._agents[id(given)] = given.clone(
                model=model, model_settings=given.model_settings, hooks=self._hooks, tools=[], handoffs=[]
            )
            found.tools = [self._tool(tool) for tool in given.tools]
            found.handoffs = [self._handoff(entry) for entry in given.handoffs]
        return found

    def config(self, given: RunConfig) -> RunConfig:
        """Return *given* for a replay."""
        model = given.model if isinstance(given.model, str) or given.model is None else self._model(given.model)
        return attrs.evolve(
            given,
            model=model,
            model_provider=ClosedModels(),
            effects=self._effects,
            instruments=(),
            tracing_disabled=True,
            price=None if given.price is None else self._price,
        )

    @staticmethod
    def _model(given: Any) -> Model:
        return ClosedModel(implicit_settings(given))

    def _handoff(self, entry: Agent[Any, Any] | Handoff) -> Agent[Any, Any] | Handoff:
        if isinstance(entry, Agent):
            return self.agent(entry)
        return attrs.evolve(entry, agent=self.agent(entry.agent))

    def _tool(self, tool: FunctionTool) -> FunctionTool:
        body: Any = tool.body
        if tool.name in self._effects.recorded.hidden:
            body = RawBody(_no_body)  # what stands for its secrets needn't fit the schema
        elif isinstance(body, PythonBody):
            body = attrs.evolve(body, fn=_no_body)
        elif isinstance(body, AgentCall):
            body = attrs.evolve(
                body,
                agent=self.agent(body.agent),
                run_config=None if body.run_config is None else self.config(body.run_config),
                session=None if body.session is None else ClosedSession(),
                on_stream=None,
            )
        else:
            body = RawBody(_no_body)
        return attrs.evolve(
            tool,
            body=body,
            on_invoke_tool=_no_body,
            capacity=tuple(self._limit(limit) for limit in tool.capacity),
            cost=None if tool.cost is None else self._cost(tool),
        )

    def _limit(self, given: Capacity | Rate) -> Capacity | Rate:
        """Return a limit of the same size, which no other run takes anything of."""
        found: Any = self._limits.get(id(given))
        if found is None:
            if isinstance(given, Rate):
                found = Rate(given.count, given.per, given.name)
            else:
                found = Capacity(given.total_tokens, given.name)
            self._limits[id(given)] = found
        return found  # type: ignore[no-any-return]

    # -- what was charged stands in the log

    def _price(self, name: str, usage: Any) -> Decimal:
        effects = self._effects
        wanted = effects.due
        cost = wanted.cost if isinstance(wanted, r.ModelResponded) else None
        return Decimal(cost or 0)

    def _cost(self, tool: FunctionTool) -> Any:
        """Return what says what a call costs, as it did: found by its arguments, since it is told nothing else."""

        def cost(arguments: Mapping[str, Any]) -> Decimal:
            effects = self._effects
            for index in range(effects.cursor, effects.entry.stop):
                record = effects.records[index]
                if isinstance(record, r.CallStarted) and record.tool == tool.name and record.attempt == 1:
                    if _parsed(record.arguments) == arguments:
                        return Decimal(record.cost or 0)
                elif isinstance(record, r.BatchEnded | r.TurnStarted):
                    break
            return Decimal("1e1000")  # it didn't start: what it cost was too much, if that mattered

        return cost


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None
