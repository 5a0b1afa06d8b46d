"""The work of `python -m benchmarks.temporal` with pydantic-ai, as the pages of its integration do it."""

from __future__ import annotations

from typing import Any, ClassVar

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from pydantic_ai import Agent, RunContext, UsageLimits
    from pydantic_ai.durable_exec.temporal import PydanticAIPlugin, PydanticAIWorkflow, TemporalDurability
    from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, UserPromptPart
    from pydantic_ai.models.function import AgentInfo, FunctionModel

    from benchmarks import temporal_work


def _read_prompt(messages: list[ModelMessage]) -> str:
    (prompt,) = [part for part in messages[0].parts if isinstance(part, UserPromptPart)]
    return str(prompt.content)


async def _answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    turn = sum(isinstance(message, ModelResponse) for message in messages)
    calls = temporal_work.next_calls(_read_prompt(messages), turn)
    parts = [ToolCallPart("look", given, tool_call_id=call_id) for call_id, given in calls]
    return ModelResponse(parts=parts or [TextPart("done")])


def _continue(ctx: RunContext[None]) -> None:
    workflow.continue_as_new(args=[_read_prompt(ctx.messages), ctx.messages])


agent = Agent(
    FunctionModel(_answer),
    name="looker",
    instructions=temporal_work.INSTRUCTIONS,
    capabilities=[TemporalDurability(continue_as_new=_continue)],
)


@agent.tool_plain
async def look(at: int, size: int) -> str:
    """Look at something."""
    return temporal_work.look(at, size)


@workflow.defn
class PydanticAIRun(PydanticAIWorkflow):
    """A workflow with one run."""

    __pydantic_ai_agents__: ClassVar[Any] = [agent]

    @workflow.run
    async def run(self, text: str, history: list[ModelMessage] | None = None) -> str:
        """Run the agent, or go on with *history*."""
        given = text if history is None else None
        limits = UsageLimits(request_limit=None)
        return (await agent.run(given, message_history=history, usage_limits=limits)).output


def make_plugin() -> Any:
    """Return the plugin for the client."""
    return PydanticAIPlugin()


WORKER = {"workflows": [PydanticAIRun]}


async def start(client: Any, text: str, **options: Any) -> Any:
    """Start a run, and return the handle of its workflow."""
    return await client.start_workflow(PydanticAIRun.run, args=[text], **options)
