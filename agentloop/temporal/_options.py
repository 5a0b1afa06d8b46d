"""Options of tools on an engine, and the registry of the agents that a process can run there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import attrs
from attrs import validators as v

from agentloop.agents._graph import AgentGraph
from agentloop.config import RunConfig, check_run_config
from agentloop.exceptions import StateError, UserError, UserValueError
from agentloop.tools import AgentCall, FunctionTool, PythonBody

if TYPE_CHECKING:
    from agentloop._storage.signing import Keys
    from agentloop.abc import Codec
    from agentloop.models.registry import Providers

HEARTBEAT_SECONDS = 1.0
"""Seconds between two heartbeats of an activity. A cancellation comes with one, so this is below `cleanup_grace`."""


def _positive(_instance: object, attribute: attrs.Attribute[Any], value: timedelta) -> None:
    if value <= timedelta(0):
        raise UserValueError(f"ToolActivity.{attribute.name}: expected a time above zero, got {value!r}")


@attrs.frozen(kw_only=True)
class ToolActivity:
    """How the calls of a tool, or those of models, are run as activities.

    Attributes:
        in_workflow: True to call the body in the workflow's own code. It must be async and deterministic: no I/O, no
            clock, no random numbers but the workflow's.
        task_queue: The queue of the workers that run the activity; the workflow's own if None.
        start_to_close: The longest time of one attempt. The tool's own `timeout` ends a call before that.
        heartbeat_timeout: The time without a heartbeat after which the worker counts as lost. Activities send one each
            second. An event loop that is blocked for longer, by code that computes, looks like a lost worker.
    """

    in_workflow: bool = attrs.field(default=False, validator=v.instance_of(bool))
    task_queue: str | None = attrs.field(default=None, validator=v.optional(v.instance_of(str)))
    start_to_close: timedelta = attrs.field(
        default=timedelta(hours=24), validator=[v.instance_of(timedelta), _positive]
    )
    heartbeat_timeout: timedelta = attrs.field(
        default=timedelta(seconds=30), validator=[v.instance_of(timedelta), _positive]
    )


@attrs.define(eq=False)
class AgentSetup:
    """One agent that a process can run as workflows, with all that its runs need. Owned by the plugin."""

    graph: AgentGraph
    config: RunConfig
    tools: Mapping[str, ToolActivity]
    model: ToolActivity
    read_context: Callable[[Any], Any] | None
    key: Keys | None
    codec: Codec | None
    max_history: int
    max_payload: int
    older_seals: bool = False
    is_packing: bool = True
    """False if a store compresses what is large, outside of the workflow's own code, which may not compute for long."""
    providers: Providers | None = None
    """The models of model strings; set while a worker runs."""

    @property
    def holds_text(self) -> bool:
        """True if text of a model waits for the input guardrails: in the run, or in one of an agent called as a tool.

        An activity doesn't know which of the two it works for, so all text waits then.
        """
        tools = (tool for agent in self.graph.agents() for tool in agent.functions)
        nested = (tool.body.run_config for tool in tools if isinstance(tool.body, AgentCall))
        return any(config is not None and config.hold_text_until_guarded for config in (self.config, *nested))

    def activity_of(self, tool: str) -> ToolActivity:
        """Return the options of the tool *tool*."""
        return self.tools.get(tool, _USUAL)

    def restore_context(self, stored: Any) -> Any:
        """Return the application's object for the JSON value *stored*."""
        return stored if self.read_context is None or stored is None else self.read_context(stored)


_USUAL = ToolActivity()
_known: dict[str, AgentSetup] = {}


def register(name: str, setup: AgentSetup) -> None:
    """Make the agent known to the workflows and activities of this process. A later plugin replaces it."""
    _known[name] = setup


def find_setup(name: str) -> AgentSetup:
    """Return what is known of the agent *name*.

    Raises:
        StateError: no plugin of this process has an agent of that name. That of another worker may.
    """
    try:
        return _known[name]
    except KeyError:
        known = ", ".join(sorted(_known)) or "none"
        raise StateError(f"this worker has no agent {name!r} (its AgentPlugin has: {known})") from None


def check_setups(setups: Iterable[AgentSetup], tools: Mapping[str, ToolActivity]) -> None:
    """Check that the agents of *setups* can run in a workflow, and that each name in *tools* is that of a tool of one.

    Raises:
        UserError: names the agent and the tool, or the option that names no tool.
    """
    names: set[str] = set()
    for setup in setups:
        names.update(_check_tools(setup))
        _check_windows(setup)
        if check_run_config(setup.config).toolsets:
            raise UserError(
                "RunConfig.toolsets, bundles: sources of tools can't be asked in a workflow; give the agent the tools"
            )
    for name in tools:
        if name not in names:
            raise UserError(f"tools: no agent has a tool {name!r}")


def _check_windows(setup: AgentSetup) -> None:
    """Check that each summary is made by the agent's own model, which is the one that an activity can find.

    Raises:
        UserError: names the step.
    """
    policies = [setup.config.context, *(agent.context for agent in setup.graph.agents())]
    steps = [step for policy in policies if policy is not None for step in policy.steps]
    if any(getattr(step, "model", None) is not None for step in steps):
        raise UserError(
            "ContextPolicy.steps: in a workflow a summary is made by the agent's own model; write Summarize() without "
            "a model"
        )


def _check_tools(setup: AgentSetup) -> Iterator[str]:
    """Yield the names of the tools of all agents of *setup*, each once it is found to fit."""
    for agent in setup.graph.agents():
        if agent.toolsets:
            raise UserError(f"agent {agent.name!r}: sources of tools can't be asked in a workflow; give it the tools")
        for tool in agent.functions:
            name = tool.qualified_name
            if setup.activity_of(name).in_workflow and not _is_async(tool):
                raise UserError(f"tool {name!r}: a body in the workflow must be an async function")
            if (tool.secret or tool.secret_output) and setup.codec is None:
                raise UserError(
                    f"tool {name!r} has secret arguments or outputs, which the engine's history would hold in plain "
                    "text: give AgentPlugin(codec=…), an object with `seal` and `open`"
                )
            if tool.capacity:
                raise UserError(
                    f"tool {name!r}: a capacity is shared by the runs of one event loop; each workflow has its own. "
                    "Bound its activities by the workers of a task queue of its own"
                )
            yield name


def _is_async(tool: FunctionTool[Any]) -> bool:
    if isinstance(tool.body, PythonBody):
        return tool.body.schema.is_async
    return not isinstance(tool.body, AgentCall)
