"""The work of `python -m benchmarks.temporal` with openai-agents, as the pages of its integration do it."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from temporalio import activity, workflow

with workflow.unsafe.imports_passed_through():
    from agents import Agent, Model, ModelProvider, ModelResponse, RunConfig, Runner, Usage
    from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText
    from temporalio.contrib.openai_agents import ModelActivityParameters, OpenAIAgentsPlugin
    from temporalio.contrib.openai_agents.workflow import activity_as_tool

    from benchmarks import temporal_work

LONGEST = timedelta(minutes=1)


class Scripted(Model):
    """Answers by the number of calls that the conversation has."""

    async def get_response(self, system_instructions: Any, input: Any, *_: Any, **__: Any) -> ModelResponse:
        """Return the calls of the turn, or the closing answer."""
        items = [{"content": input}] if isinstance(input, str) else input
        turn = sum(item.get("type") == "function_call" for item in items) // temporal_work.CALLS
        output: list[Any] = [
            ResponseFunctionToolCall(arguments=json.dumps(given), call_id=call_id, name="look", type="function_call")
            for call_id, given in temporal_work.next_calls(items[0]["content"], turn)
        ]
        if not output:
            text = ResponseOutputText(text="done", type="output_text", annotations=[])
            output = [
                ResponseOutputMessage(id="m", role="assistant", status="completed", type="message", content=[text])
            ]
        return ModelResponse(output=output, usage=Usage(), response_id=None)

    def stream_response(self, *_: Any, **__: Any) -> Any:
        """Nothing is streamed."""
        raise NotImplementedError


class Provider(ModelProvider):
    """Provides the model."""

    def get_model(self, model_name: str | None) -> Model:
        """Return it."""
        return Scripted()


@activity.defn
async def look(at: int, size: int) -> str:
    """Look at something."""
    return temporal_work.look(at, size)


@workflow.defn
class OpenAIAgentsRun:
    """A workflow with one run."""

    @workflow.run
    async def run(self, text: str) -> str:
        """Run the agent."""
        tools = [activity_as_tool(look, start_to_close_timeout=LONGEST)]
        agent = Agent(name="looker", instructions=temporal_work.INSTRUCTIONS, model="scripted", tools=tools)
        turns, _ = temporal_work.read_task(text)
        result = await Runner.run(agent, text, max_turns=turns + 2, run_config=RunConfig(tracing_disabled=True))
        return str(result.final_output)


def make_plugin() -> Any:
    """Return the plugin for the client."""
    return OpenAIAgentsPlugin(
        model_params=ModelActivityParameters(start_to_close_timeout=LONGEST), model_provider=Provider()
    )


WORKER = {"workflows": [OpenAIAgentsRun], "activities": [look]}


async def start(client: Any, text: str, **options: Any) -> Any:
    """Start a run, and return the handle of its workflow."""
    return await client.start_workflow(OpenAIAgentsRun.run, text, **options)
