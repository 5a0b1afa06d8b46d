"""Every cell of the table of who ends a call early, in a run: the cause meets the call at the stage."""

from typing import Any

import anyio
import attrs
import pytest
from kit.agents import configure_run, make_agent
from kit.ending import advance_clock, leak_cancellation
from kit.watching import Watch

from agentloop import Agent, AgentHooks, Allow, RunConfig, Runner, RunTimeoutError, ToolCallError, ToolContext, tool
from agentloop._core.cancellation import CUTS, Cause, Cut, Stage
from agentloop.guardrails import tool_output_guardrail
from agentloop.testing import call

SHORT = 0.02
"""Seconds of the limits of time that a call reaches by itself."""
FAR = 3600.0
"""Seconds of the run's limit, which is put forward to once the call has reached its stage."""


@attrs.define(eq=False)
class Held:
    """A call that is held at one stage, where *cause* meets it."""

    cause: Cause
    stage: Stage
    cut: Cut | None
    reached: anyio.Event = attrs.field(factory=anyio.Event, init=False)

    async def pass_stage(self, stage: Stage) -> None:
        """Hold the call if it is at its stage: until it is cut, or, if it isn't to be cut, past every limit of time."""
        if stage == self.stage and not self.reached.is_set():  # a policy's text is judged too
            self.reached.set()
            if self.cause == "tool":
                await leak_cancellation()
            if self.cause == "deadline":
                advance_clock(FAR)
            await anyio.sleep(60 if self.cut is not None else 3 * SHORT)

    def make_agent(self) -> Agent[Any, Any]:
        """Return an agent that calls the held tool, and beside it one that makes the cause."""

        class Hooks(AgentHooks):
            async def on_tool_start(hooks, ctx: Any, agent: Any, started: Any) -> None:
                if started.name == "victim":
                    await self.pass_stage("before")

        @tool_output_guardrail
        async def judge(data: Any) -> Any:
            await self.pass_stage("after")
            return Allow()

        @tool(
            timeout=SHORT if self.cause == "timeout" else None,
            failure_error_function=lambda ctx, error: "told by the failure policy",
            timeout_error_function=lambda ctx, error: "told by the timeout policy",
            tool_output_guardrails=[judge] if self.stage == "after" else [],
        )
        async def victim() -> str:
            await self.pass_stage("body")
            return "done"

        @tool(failure_error_function=None)
        async def trigger(ctx: ToolContext[Any]) -> bool:
            await self.reached.wait()
            if self.cause == "sibling":
                raise ValueError("a sibling's failure")
            return self.cause == "caller" and ctx.cancel_call("v", "not needed")

        return make_agent([victim, trigger], [call("victim", {}, "v"), call("trigger", {}, "t")], hooks=Hooks())


@pytest.mark.parametrize(("cause", "stage"), CUTS)
async def test_a_cause_ends_a_call_as_the_table_says(cause: Cause, stage: Stage) -> None:
    """Status, source and the policy that was asked are those of the cell; without a cut the call succeeds."""
    cut = CUTS[cause, stage]
    held, watch = Held(cause, stage, cut), Watch()
    limited = RunConfig(timeout=FAR if cause == "deadline" else None)
    config = configure_run(watch, config=limited, cleanup_grace=SHORT)
    raised: BaseException | None = None

    async def run() -> None:
        nonlocal raised
        try:
            await Runner.run(held.make_agent(), "go", run_config=config)
        except (ToolCallError, RunTimeoutError) as error:
            raised = error

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        if cause == "parent":
            await held.reached.wait()
            group.cancel_scope.cancel()
    outcome = watch.outcome("v")
    if cut is None:
        assert (outcome.status, outcome.output) == ("succeeded", "done")
        return
    policies = {"failure": "told by the failure policy", "timeout": "told by the timeout policy"}
    told = policies[cut.policy] if cut.policy is not None else cut.output("victim")
    assert (outcome.status, outcome.cancelled_by, outcome.output) == (cut.status, cut.by, told)
    assert outcome.body_finished is (stage == "after" or (cause, stage) == ("tool", "body"))
    assert type(raised) is {"sibling": ToolCallError, "deadline": RunTimeoutError}.get(cause, type(None))
