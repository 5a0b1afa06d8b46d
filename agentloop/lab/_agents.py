"""The candidate as the lab runs it: copies of its agents that reach nothing but through the firewall.

Bodies, guardrails and callbacks stay in the copies, because the engine calls them through the effects. What it calls
directly is replaced: models are opened at their first request only, so that a comparison without a request needs no
key; hooks, sessions, instruments and sandboxes are left out; limits of tools are copied, so that no other run is held
up. Requests have no limits, because most are answered from the log, and a wait would let real time pass.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol, get_args

import attrs

from agentloop._common.values import Value
from agentloop.abc import Effects, Model, ModelProvider
from agentloop.agents import Agent
from agentloop.config import RunConfig, check_run_config
from agentloop.config._bundling import without_opening
from agentloop.context import RunContext
from agentloop.exceptions import UserError
from agentloop.lab._copies import AgentCopies, ClosedSession
from agentloop.limits import Capacity, Rate
from agentloop.model_events import ModelEvent, ModelFeature, ModelInfo, ModelRequest
from agentloop.models.registry import Providers, resolve_model
from agentloop.settings import ModelSettings
from agentloop.tools import AgentCall, FunctionTool, ToolSource, source_name


class LazyModel(Model):
    """A model of the candidate, opened for each request that it really gets. *given* is the model, or its string."""

    def __init__(self, given: str | Model, providers: Providers, source: ModelProvider | None) -> None:
        self._given, self._providers, self._source = given, providers, source
        self._found: Model | None = given if isinstance(given, Model) else None

    def __repr__(self) -> str:
        return f"<LazyModel of {self._given!r}>"

    @property
    def _model(self) -> Model:
        if self._found is None:
            assert isinstance(self._given, str)
            get = resolve_model if self._source is None else self._source.get_model
            self._found = get(self._given)
        return self._found

    @property
    def name(self) -> str:
        """The name by which the model's requests are priced."""
        return str(getattr(self._model, "name", None) or self.info.name) if self._is_known else str(self._given)

    @property
    def info(self) -> ModelInfo:
        """That of the model."""
        return self._model.info if self._is_known else ModelInfo("unknown", str(self._given))

    @property
    def default_settings(self) -> ModelSettings:
        """Those of the model."""
        return ModelSettings() if isinstance(self._given, str) else self._given.default_settings

    @property
    def features(self) -> frozenset[ModelFeature]:
        """Those of the model."""
        return self._model.features if self._is_known else frozenset(get_args(ModelFeature))

    @property
    def _is_known(self) -> bool:
        """False for a string that names no model; `stream` says so. Python 3.11 reads all these to know a model."""
        try:
            return self._model is not None
        except UserError:
            return False

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[ModelEvent]]:
        """Open the model, unless it is open, and pass the request on."""
        if isinstance(self._given, str) and self._source is None:
            model = await self._providers.open(self._given)
            async with model.stream(request) as events:
                yield events
        elif self._model.is_open:
            async with self._model.stream(request) as events:
                yield events
        else:
            async with self._model as model, model.stream(request) as events:
                yield events


class MissingModel(Model):
    """The model of an agent that has none: its run in the lab may need none."""

    def stream(self, request: ModelRequest) -> Any:
        """Raise UserError."""
        raise UserError("the candidate has no model, and is asked something that the recorded run wasn't: give it one")


class ClosedSource(Value, frozen=True, eq=False):
    """A source of tools that isn't asked, because it may be a server."""

    name: str

    async def tools(self, ctx: RunContext[Any], agent: Any) -> Any:
        """Raise UserError."""
        raise UserError(
            "the agent has a source of tools (a server, perhaps), and the lab asks none unless you allow it: "
            "toolsets=True, or --toolsets"
        )


class UnlimitedModels(ModelProvider):
    """The models of *given*, whose limits hold for no request of the lab."""

    def __init__(self, given: ModelProvider) -> None:
        self._given: ModelProvider = given

    def get_model(self, name: str) -> Model:
        """Return the model of the provider."""
        return self._given.get_model(name)


class Door(Effects, Protocol):
    """The effects of the lab's runs, as far as the copies need them."""

    @property
    def may_ask_sources(self) -> bool:
        """True if sources of tools may be asked that aren't made of bundles."""
        ...

    @property
    def runs_bodies(self) -> bool:
        """True if calls that the log doesn't have do to the world what they do."""
        ...

    @property
    def turn_sources(self) -> Sequence[ToolSource]:
        """Sources that the run asks beside the application's, with each turn."""
        ...


class Candidate(AgentCopies):
    """Copies of an agent, and of all agents that it reaches, for runs through *effects*. Made for each run.

    Attributes:
        agent: The copy of the agent.
        config: The copy of the configuration.
    """

    def __init__(self, agent: Agent[Any, Any], config: RunConfig, effects: Door, providers: Providers) -> None:
        super().__init__()
        self._effects, self._providers, self._source = effects, providers, config.model_provider
        self._limits: dict[int, Any] = {}
        self.config: RunConfig = self._copy_config(config)
        self.agent: Agent[Any, Any] = self.copy_agent(agent)

    def _copy_config(self, given: RunConfig) -> RunConfig:
        merged = check_run_config(given)  # sources that its bundles make are among its own
        return attrs.evolve(
            merged,
            toolsets=[*map(self.copy_source, merged.toolsets), *self._effects.turn_sources],
            model=None if given.model is None else self._open_late(given.model),
            effects=self._effects,
            instruments=(),
            tracing=attrs.evolve(given.tracing, disabled=True),
            sandbox=None,
            timeout=None,  # the log's time isn't the clock's
            model_limits=(),
            model_provider=None if given.model_provider is None else UnlimitedModels(given.model_provider),
        )

    def _open_late(self, given: str | Model | None) -> Model:
        return MissingModel() if given is None else LazyModel(given, self._providers, self._source)

    def copy_model(self, given: Agent[Any, Any]) -> Model | None:
        """Return the model, opened at its first request; None where the configuration has one for all."""
        return None if given.model is None and self.config.model is not None else self._open_late(given.model)

    def copy_source(self, source: ToolSource) -> ToolSource:
        """Return a source that gives what a bundle gives and opens nothing; one that refuses unless it may be asked."""
        given = without_opening(source)
        if given is not None:
            return given.replace(given=tuple(map(self.copy_tool, given.given)))
        return source if self._effects.may_ask_sources else ClosedSource(source_name(source))

    def copy_tool(self, tool: FunctionTool[Any]) -> FunctionTool[Any]:
        """Return the tool with limits that no other run shares.

        Bodies in the background wait for the turn of their results. A call before that turn would wait for ever for a
        limit or a thread that they hold: so they hold none, unless a body does something.
        """
        if tool.background and not self._effects.runs_bodies:
            body: Any = tool.body
            if tool.runs_in_thread:
                body = body.replace(schema=attrs.evolve(body.schema, is_async=True))  # nothing calls the function
            return attrs.evolve(tool, body=body, capacity=())
        limits = tuple(map(self._copy_limit, tool.capacity))
        if not isinstance(tool.body, AgentCall):
            return attrs.evolve(tool, capacity=limits) if limits else tool
        body = attrs.evolve(
            tool.body,
            agent=self.copy_agent(tool.body.agent),
            run_config=None if tool.body.run_config is None else self._copy_config(tool.body.run_config),
            session=None if tool.body.session is None else ClosedSession(),
            conversation=None,
            hooks=None,
            on_stream=None,
        )
        return attrs.evolve(tool, body=body, on_invoke_tool=None)

    def _copy_limit(self, limit: Capacity | Rate) -> Capacity | Rate:
        found = self._limits.get(id(limit))
        if found is None:
            # A rate would let real time pass, and a run of the lab has none.
            found = (
                Capacity(10_000, limit.name) if isinstance(limit, Rate) else Capacity(limit.total_tokens, limit.name)
            )
            self._limits[id(limit)] = found
        return found
