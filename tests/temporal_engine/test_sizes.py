"""What is larger than a payload of the engine: one error that names the bound, one attempt, and nothing hangs."""

import json
import random
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

pytest.importorskip("temporalio", reason="needs the extra temporal: nox -s tests-temporal")

import anyio
from temporalio.client import Client, WorkflowFailureError
from temporalio.worker import Replayer, Worker

from agentloop import Agent, RunConfig, tool
from agentloop.items import ToolOutput
from agentloop.limits import ToolExecution
from agentloop.model_events import ModelRequest
from agentloop.temporal import AgentPlugin, AgentRunHandle, start_run
from agentloop.temporal._payloads import (
    check_size,
    join_result,
    measure,
    pack,
    split_result,
    unpack,
    value_from_json,
    value_to_json,
)
from agentloop.temporal._workflow import _ESSENTIALS
from agentloop.testing import FunctionModel, call, say

pytestmark = [
    *(pytest.mark.real_clock, pytest.mark.leaves_threads),
    *(pytest.mark.timeout(180), pytest.mark.backends("asyncio")),
]

MB = 1_000_000


class Counted:
    """A model and a tool that count how often they were asked."""

    def __init__(
        self, calls: int = 1, turns: int = 1, size: int = 10, answer: str = "done", text: str | None = None
    ) -> None:
        self.asked, self.bodies, self.longest, self._text = 0, 0, 0, text
        self._calls, self._turns, self._size, self._answer = calls, turns, size, answer

    def agent(self) -> Agent[Any, Any]:
        """Return the agent."""

        @tool(idempotent=True)
        async def big(n: int) -> str:
            """Give much."""
            self.bodies += 1
            return f"{n}" * (self._size // len(f"{n}")) if self._text is None else self._text

        return Agent("big", model=FunctionModel(self._say), tools=[big])

    def _say(self, request: ModelRequest) -> Any:
        self.asked += 1
        self.longest = max((len(item.output) for item in request.items if isinstance(item, ToolOutput)), default=0)
        if request.turn > self._turns:
            return say(self._answer)
        return [call("big", {"n": 100 * request.turn + n}, f"t{request.turn}c{n}") for n in range(self._calls)]


async def run_big(
    address: str, counted: Counted, config: RunConfig, context: Any = None, **options: Any
) -> tuple[AgentRunHandle, Any]:
    """Run the agent to its end; return the handle and the result, or the error that ended it."""
    client = await Client.connect(
        address, plugins=[AgentPlugin({"big": counted.agent()}, run_config=config, **options)]
    )
    queue = f"queue-{uuid4().hex}"
    async with Worker(client, task_queue=queue, graceful_shutdown_timeout=timedelta(seconds=5)):
        handle = await start_run(
            client, "big", "go", id=f"big-{uuid4().hex}", task_queue=queue, max_turns=None, context=context
        )
        with anyio.fail_after(90):
            try:
                result: Any = await handle.result()
            except WorkflowFailureError as error:
                result = error.cause
            kinds = [type(one).__name__ async for one in handle.records(interval=0.1)]
        assert kinds.count("RunStarted") == 1
    return handle, result


WHOLE = RunConfig(tool_execution=ToolExecution(max_output_chars=None))


@pytest.mark.scenario("SM-11")
@pytest.mark.parametrize(
    ("text", "most"),
    [(random.Random(5).randbytes(50_000).hex(), 20_000), ("x" * 17 * MB, 2 * MB)],
    ids=["dense", "long"],
)
async def test_a_value_above_the_bound_is_one_error_of_its_call(address: str, text: str, most: int) -> None:
    """Also compressed, or more than a workflow reads. The body is called once, although it may be called again."""
    counted = Counted(text=text)
    _, result = await run_big(address, counted, WHOLE, max_payload=most)
    assert result.final_output == "done"
    [settled] = result.data["calls"]
    assert settled["outcome"]["status"] == "failed"
    assert f"one payload of the engine takes {most:,}" in settled["outcome"]["output"]
    assert (counted.bodies, counted.asked) == (1, 2)


@pytest.mark.scenario("SM-11")
async def test_a_value_that_fits_when_it_is_compressed_is_the_value(address: str) -> None:
    """Five million characters, for the model and in the records; the result leaves the calls out."""
    counted = Counted(size=5 * MB)
    _, result = await run_big(address, counted, WHOLE)
    assert (result.final_output, counted.bodies, counted.longest) == ("done", 1, 5 * MB - 2)
    assert "calls" in result.data["left_out"]


@pytest.mark.scenario("SM-11")
async def test_a_history_has_each_output_twice(address: str) -> None:
    """As the result of its activity, and in the input of the next model call. The result has it compressed."""
    text = random.Random(6).randbytes(1_000).hex()
    handle, result = await run_big(address, Counted(calls=2, turns=3, text=text), RunConfig())
    events = [event.SerializeToString() for event in (await handle.workflow.fetch_history()).events]
    assert sum(event.count(text.encode()) for event in events) == 2 * 6
    written = await handle.workflow.result()
    assert written.keys() == {*_ESSENTIALS, "details"}
    assert (written["status"], written["final_output"]) == ("completed", "done")
    assert [one["outcome"]["output"] for one in result.data["calls"]] == [text] * 6
    assert result.data.keys() == {*_ESSENTIALS, *DETAILS}


DETAILS = {
    *("input", "new_items", "raw_responses", "cost", "calls", "tool_origins"),
    *("input_guardrail_results", "output_guardrail_results"),
    *("tool_input_guardrail_results", "tool_output_guardrail_results"),
}


@pytest.mark.parametrize("size", [10, 10_000])
@pytest.mark.parametrize("is_packing", [True, False])
def test_a_result_is_compressed_if_it_is_long(size: int, is_packing: bool) -> None:
    """Where a store of parts does it, it isn't; short ones can be read in the engine's page."""
    data = {"status": "completed", "final_output": "done", "calls": ["x" * size]}
    written = split_result(data, ["status", "final_output"], is_packing=is_packing)
    assert (written is data) == (size == 10 or not is_packing)
    assert written["final_output"] == "done"
    assert measure(written) < 2_000 + size * (not is_packing)
    assert join_result(written) == data


@pytest.mark.scenario("SM-11")
async def test_a_models_answer_above_the_bound_ends_the_run(address: str) -> None:
    """The model is asked once: each request is paid for."""
    counted = Counted(turns=0, answer="x" * 3 * MB)
    _, error = await run_big(address, counted, RunConfig())
    assert error.type == "PayloadTooLarge"
    assert "the model's answer: 3,000," in error.message
    assert counted.asked == 1


@pytest.mark.scenario("SM-11")
async def test_an_input_of_the_model_above_the_bound_is_told_in_steps(address: str) -> None:
    """Each output fits, and all of them don't: the model has them all the same."""
    counted = Counted(calls=3, size=MB)
    _, result = await run_big(address, counted, WHOLE)
    assert result.final_output == "done"
    assert (counted.bodies, counted.asked) == (3, 2)


@pytest.mark.scenario("SM-11")
async def test_a_long_run_returns_what_is_essential(address: str) -> None:
    """Forty calls with outputs of the usual bound: the result says what it lacks, and the records have it."""
    counted = Counted(calls=40, size=40_000)
    handle, result = await run_big(address, counted, RunConfig())
    assert (result.status, result.final_output) == ("completed", "done")
    assert {"calls", "new_items"} <= set(result.data["left_out"])
    assert counted.bodies == 40
    assert handle.id


@pytest.mark.scenario("SM-11")
async def test_many_large_activities_are_spread_over_workflow_tasks(address: str) -> None:
    """Each call carries the run's context, so that those of one turn are larger than a request to the engine may be."""
    counted = Counted(calls=20)
    handle, result = await run_big(address, counted, RunConfig(), context="x" * 400_000)
    assert result.final_output == "done"
    assert counted.bodies == 20
    replayer = Replayer(workflows=[], plugins=[AgentPlugin({"big": counted.agent()})])
    await replayer.replay_workflow(await handle.workflow.fetch_history())


@pytest.mark.scenario("SM-11")
async def test_a_run_that_grows_above_the_bound_ends_where_it_would_continue(address: str) -> None:
    """A small bound, and a history that is long after each turn: the stored run doesn't fit at some turn."""
    counted = Counted(turns=100, size=10)
    _, error = await run_big(address, counted, RunConfig(), max_payload=8_000, max_history=1)
    assert error.type == "PayloadTooLarge"
    assert "max_payload" in error.message
    assert 2 < counted.asked < 100


def test_values_are_cut_where_they_arise() -> None:
    """As the model would be shown them; what is short stays as it is."""
    for value in ("x" * 100, {"a": "y" * 100}, ["z" * 100]):
        cut = value_from_json(value_to_json(value, None, 50))
        assert isinstance(cut, str)
        assert len(cut) <= 50
        assert value_from_json(value_to_json(value, None, None)) == value
        assert value_from_json(value_to_json(value, None, 200)) == value
    assert value_to_json({"a": 1}, None, 50) == {"plain": {"a": 1}}


def test_a_long_state_is_packed() -> None:
    """Text of JSON shrinks many times; a short one is readable by older workers."""
    long = json.dumps([{"kind": "call_settled", "n": n} for n in range(20_000)])
    assert unpack(pack(long)) == long
    assert len(pack(long)) < len(long) / 4
    assert pack("{}") == "{}"
    assert measure("é") == len('"\\u00e9"')
    check_size("it", "x" * 8, 10)
