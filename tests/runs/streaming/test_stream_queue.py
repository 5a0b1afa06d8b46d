"""A streamed turn makes no queue while its consumer keeps up; it makes one wherever a call may come to wait."""

from typing import Any

import pytest

from agentloop import Agent, FunctionTool, RunConfig, Runner, ToolExecution, tool
from agentloop._engine.calls import batch as batch_module
from agentloop.testing import ScriptedModel, call, say


def _work(**options: Any) -> FunctionTool:
    async def work(number: int) -> str:
        return f"did {number}"

    made: FunctionTool = tool(work, **options)
    return made


@pytest.mark.parametrize(
    ("options", "config", "queues"),
    [
        ({}, RunConfig(), 0),
        ({}, RunConfig(stream_buffer=4), 1),  # less than what three calls say
        ({}, RunConfig(tool_execution=ToolExecution(max_function_tool_concurrency=2)), 1),
        ({}, RunConfig(tool_execution=ToolExecution(mode="sequential")), 1),
        ({"serial": "one"}, RunConfig(), 1),
        ({"exclusive": True}, RunConfig(), 1),
        ({"idempotent": True}, RunConfig(), 1),
    ],
)
async def test_a_streamed_turn_makes_a_queue_only_where_calls_may_wait(
    options: dict[str, Any], config: RunConfig, queues: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The calls of a turn that has room all start at once, as in a plain run."""
    made: list[object] = []
    dispatcher = batch_module.Dispatcher

    def note(*given: Any) -> Any:
        made.append(given)
        return dispatcher(*given)

    monkeypatch.setattr(batch_module, "Dispatcher", note)
    calls = [call("work", {"number": number}) for number in range(3)]
    agent = Agent("a", model=ScriptedModel([calls, say("done")]), tools=[_work(**options)])
    async with Runner.run_streamed(agent, "go", run_config=config) as stream:
        events = [event async for event in stream]
    assert stream.result.final_output == "done"
    assert len(made) == queues
    assert len([event for event in events if type(event).__name__ == "CallSettled"]) == 3
