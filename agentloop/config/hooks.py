"""Hooks: methods of the application that a run calls and waits for.

Override the methods you need; each may be sync or async. For start events the run calls its own hooks, then the
agent's; for end events in the reverse order. A hook that raises fails the run.
"""

from __future__ import annotations

import logging
from typing import Any

from agentloop._common.masking import error_repr
from agentloop._common.values import Value
from agentloop.context import RunContext, ToolContext
from agentloop.outcomes import CallOutcome
from agentloop.records import RunStatus

logger: logging.Logger = logging.getLogger("agentloop")


def _warn_of_unknown(cls: type, base: type) -> None:
    """Log each `on_…` method of *cls* that *base* doesn't have: nothing would ever call it."""
    for name in vars(cls):
        if name.startswith("on_") and not hasattr(base, name):
            import difflib  # only for this line of the log

            near = difflib.get_close_matches(name, dir(base), n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            logger.warning(
                "%s.%s isn't a hook of %s and is never called%s", cls.__qualname__, name, base.__name__, hint
            )


class RunOutcome(Value, frozen=True, kw_only=True):
    """The outcome of one run segment. By `status`, exactly one of `final_output` and `error` is meaningful."""

    _unshown = frozenset({"final_output"})

    status: RunStatus
    final_output: Any = None
    error: BaseException | None = None

    def __repr__(self) -> str:
        return self._format({"error": error_repr(self.error)})


class RunHooks:
    """Hooks of a run, called for all of its agents.

    An `on_…` method of a subclass that isn't here is named in the log when the class is made.

    Example:
        from agentloop import Agent, RunHooks, Runner, tool
        from agentloop.testing import ScriptedModel, call, say

        class Watch(RunHooks):
            async def on_tool_end(self, ctx, agent, tool, outcome):
                print(tool.name, outcome.status)  # look succeeded

        @tool
        def look() -> str:
            "Look around."
            return "nothing"

        agent = Agent("a", model=ScriptedModel([call("look"), say("ok")]), tools=[look])
        Runner.run_sync(agent, "go", hooks=Watch())
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        _warn_of_unknown(cls, RunHooks)

    async def on_run_end(self, ctx: RunContext[Any], outcome: RunOutcome) -> None:
        """Called exactly once per run segment (start or resume), also if it failed or was cancelled."""

    async def on_agent_start(self, ctx: RunContext[Any], agent: Any) -> None:
        """Called once per activation of an agent: at the start and after each handoff."""

    async def on_agent_end(self, ctx: RunContext[Any], agent: Any, output: Any) -> None:
        """Called with the candidate output, before the output guardrails check it."""

    async def on_llm_start(self, ctx: RunContext[Any], agent: Any, system: str | None, input: Any) -> None:
        """Called before each logical model call with the system prompt and the items that the model will be shown."""

    async def on_llm_end(self, ctx: RunContext[Any], agent: Any, response: Any) -> None:
        """Called once per response, before any of its calls."""

    async def on_tool_start(self, ctx: ToolContext[Any], agent: Any, tool: Any) -> None:
        """Called right before a body; always followed by one `on_tool_end`."""

    async def on_tool_end(self, ctx: ToolContext[Any], agent: Any, tool: Any, outcome: CallOutcome) -> None:
        """Called with the outcome of every call that was started, failures and cancellations included.

        The tool's output guardrails have judged it before.
        """

    async def on_handoff(self, ctx: RunContext[Any], from_agent: Any, to_agent: Any) -> None:
        """Called when *from_agent* hands over to *to_agent*."""


class AgentHooks:
    """Hooks of one agent. An unknown `on_…` method is named in the log, as for `RunHooks`.

    Example:
        from agentloop import Agent, AgentHooks, Runner
        from agentloop.testing import ScriptedModel, say

        class Greeter(AgentHooks):
            async def on_start(self, ctx, agent):
                print(f"{agent.name} begins")  # helper begins

        Runner.run_sync(Agent("helper", model=ScriptedModel([say("hi")]), hooks=Greeter()), "go")
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        _warn_of_unknown(cls, AgentHooks)

    async def on_start(self, ctx: RunContext[Any], agent: Any) -> None:
        """Called when the agent takes over."""

    async def on_end(self, ctx: RunContext[Any], agent: Any, output: Any) -> None:
        """Called with the agent's candidate output."""

    async def on_handoff_out(self, ctx: RunContext[Any], agent: Any, to_agent: Any) -> None:
        """Called when the agent hands over to *to_agent*."""

    async def on_handoff_in(self, ctx: RunContext[Any], agent: Any, from_agent: Any) -> None:
        """Called when *from_agent* hands over to the agent."""

    async def on_llm_start(self, ctx: RunContext[Any], agent: Any, system: str | None, input: Any) -> None:
        """As `RunHooks.on_llm_start`."""

    async def on_llm_end(self, ctx: RunContext[Any], agent: Any, response: Any) -> None:
        """As `RunHooks.on_llm_end`."""

    async def on_tool_start(self, ctx: ToolContext[Any], agent: Any, tool: Any) -> None:
        """As `RunHooks.on_tool_start`."""

    async def on_tool_end(self, ctx: ToolContext[Any], agent: Any, tool: Any, outcome: CallOutcome) -> None:
        """As `RunHooks.on_tool_end`."""
