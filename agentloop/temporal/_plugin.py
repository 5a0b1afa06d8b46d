"""`AgentPlugin`: what a client and its workers need to run agents as workflows."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.plugin import SimplePlugin
from temporalio.worker import ReplayerConfig, UnsandboxedWorkflowRunner, WorkerConfig

from agentloop._common.checks import NAMES, check, check_count, has, is_a
from agentloop._storage.public_json import to_json
from agentloop._storage.signing import Keys
from agentloop.abc import Codec, Model
from agentloop.agents import Agent
from agentloop.agents._graph import AgentGraph
from agentloop.config import RunConfig, check_run_config
from agentloop.exceptions import AgentLoopError
from agentloop.models.registry import Providers
from agentloop.records import RunEnded
from agentloop.state import RunState
from agentloop.temporal._activities import call_model, call_tool
from agentloop.temporal._options import HEARTBEAT_SECONDS, AgentSetup, ToolActivity, check_setups, register
from agentloop.temporal._payloads import MOST_READ
from agentloop.temporal._runner import StepwiseRunner
from agentloop.temporal._store import PartStore, keeping_in
from agentloop.temporal._workflow import AgentWorkflow

_MODEL = ToolActivity(start_to_close=timedelta(minutes=10))


_MOST = 2_000_000
_STORE = NAMES.needs("expected a PartStore, with `put` and `get`", has("put", "get"))
_LOGGERS = ("agentloop", "agentloop.tools")


def _is_first_time(_record: logging.LogRecord) -> bool:
    """Return False for what a workflow logs again while the engine replays it."""
    return not (workflow.in_workflow() and workflow.unsafe.is_replaying())


class AgentPlugin(SimplePlugin):
    """Agents for a Temporal client and the workers made with it: `Client.connect(…, plugins=[AgentPlugin(…)])`.

    A worker then has the workflow `AgentWorkflow` and the activities of models and tools; errors of the library are
    failures of a workflow, not of a workflow task; heartbeats are frequent enough for a cancellation to arrive in time.
    While a worker runs, the models of its agents are open.

    The agents are known by name to the whole process: a later plugin replaces an agent of the same name.

    Args:
        agents: The agents that workflows may run, by the names that `start_run` gives. All workers of a queue need the
            same ones: a worker without the agent fails the activity, which is tried again elsewhere.
        run_config: The configuration of the runs. `effects`, sources of tools and an output store can't be used.
        tools: How the calls of single tools run, by their names.
        model: How model calls run.
        read_context: A callable that makes the application's object of the JSON value given to the run. Each activity
            gets its own object: what a body changes in it is lost.
        key: The key that signs stored runs which leave the workflow's memory (`SealKey`). The state with which a run
            continues as a new workflow is signed for the workflow's id, so it is refused in another one.
        codec: The codec that seals secret values: in stored runs, and in all that the engine's history holds. Needed
            for tools with secret arguments or outputs; the same on all workers.
        max_history: The number of events in a workflow's history from which the run continues as a new workflow.
        max_payload: The most bytes of a payload as JSON: 2,000,000 if None, or 16,000,000 with a *store*. The engine's
            own limit is 2 MiB, if its server isn't configured otherwise, and it ends a step of a workflow that computes
            for two seconds, which JSON of much more would take. What is larger is one error (`PayloadTooLarge`).
        older_seals: True to continue also runs that a worker of an older version has continued as a new workflow: their
            states are signed for no workflow. Without it their workflow tasks fail, and are tried again until a worker
            takes them. Set it while such runs are under way.
        store: The store of payloads above 100,000 bytes, such as `FolderParts`. The history has their digests then.
            All workers and clients need the same one: a client that only reads runs gets it by
            `AgentPlugin({}, store=…)`. None: all payloads are in the history.

    Raises:
        UserError: an agent can't run in a workflow; names the agent and the tool.
    """

    def __init__(
        self,
        agents: Mapping[str, Agent[Any, Any]],
        *,
        run_config: RunConfig | None = None,
        tools: Mapping[str, ToolActivity] | None = None,
        model: ToolActivity = _MODEL,
        read_context: Callable[[Any], Any] | None = None,
        key: Keys | None = None,
        codec: Codec | None = None,
        max_history: int = 10_000,
        max_payload: int | None = None,
        older_seals: bool = False,
        store: PartStore | None = None,
    ) -> None:
        check("agents", NAMES.needs("expected a mapping of agents by name", is_a(Mapping)), agents)
        check_count("max_history", max_history)
        if max_payload is None:
            max_payload = _MOST if store is None else MOST_READ
        check_count("max_payload", max_payload)
        if store is not None:
            check("store", _STORE, store)
        config = RunConfig() if run_config is None else check_run_config(run_config)
        self._setups: list[tuple[str, AgentSetup]] = []
        for name, agent in agents.items():
            check(f"agents[{name!r}]", NAMES.needs("expected an Agent", is_a(Agent)), agent)
            graph = AgentGraph(agent)
            setup = AgentSetup(
                graph,
                config,
                tools or {},
                model,
                read_context,
                key,
                codec,
                max_history,
                max_payload,
                older_seals,
                is_packing=store is None,
            )
            self._setups.append((name, setup))
        check_setups((setup for _, setup in self._setups), tools or {})
        for name, setup in self._setups:
            register(name, setup)
        super().__init__(
            "agentloop.AgentPlugin",
            data_converter=None if store is None else keeping_in(store),
            activities=[call_model, call_tool],
            workflows=[AgentWorkflow],
            workflow_failure_exception_types=[AgentLoopError],
            run_context=self._open_models,
        )

    def configure_worker(self, config: WorkerConfig) -> WorkerConfig:
        """Add the workflow and the activities, and let heartbeats through each second.

        The runner of workflows that aren't sandboxed is wrapped: a query can't move a workflow, and a step that these
        agents don't fit fails the workflow task.
        """
        interval = timedelta(seconds=HEARTBEAT_SECONDS)
        config["max_heartbeat_throttle_interval"] = interval
        config["default_heartbeat_throttle_interval"] = interval
        config["unsandboxed_workflow_runner"] = StepwiseRunner(
            config.get("unsandboxed_workflow_runner", UnsandboxedWorkflowRunner())
        )
        return super().configure_worker(config)

    def configure_replayer(self, config: ReplayerConfig) -> ReplayerConfig:
        """Add the workflow, and refuse the steps that a worker with these agents would refuse."""
        config["unsandboxed_workflow_runner"] = StepwiseRunner(
            config.get("unsandboxed_workflow_runner", UnsandboxedWorkflowRunner())
        )
        return super().configure_replayer(config)

    @asynccontextmanager
    async def _open_models(self) -> AsyncIterator[None]:
        """Hold the models of all agents open while a worker runs, and log nothing twice."""
        _make_codecs(self._setups[0][1] if self._setups else None)
        async with AsyncExitStack() as stack:
            for name in _LOGGERS:
                logging.getLogger(name).addFilter(_is_first_time)
                stack.callback(logging.getLogger(name).removeFilter, _is_first_time)
            providers = await stack.enter_async_context(Providers())
            entered: set[int] = set()
            for _, setup in self._setups:
                setup.providers = providers
                for model in [agent.model for agent in setup.graph.agents()] + [setup.config.model]:
                    if isinstance(model, Model) and not model.is_open and id(model) not in entered:
                        entered.add(id(model))
                        await stack.enter_async_context(model)
            yield


def _make_codecs(setup: AgentSetup | None) -> None:
    """Make the codecs of records and states, which is done at first use and takes a twentieth of a second.

    A workflow may not compute for more than two seconds, else the engine takes its task to hang. On a busy machine,
    where several workflows begin in as many threads and each makes them, it took longer.
    """
    if setup is not None:
        record = RunEnded((), 0, 0.0, "failed")
        to_json(record)
        RunState(setup.graph.root, [record]).to_string()
