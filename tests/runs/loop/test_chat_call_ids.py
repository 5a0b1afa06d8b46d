"""Servers that number the calls of each response anew: each call runs, and the server sees the ids that it gave."""

import json
from typing import Any

import httpx
import pytest

from agentloop import Agent, HandoffInputData, ModelInputData, RunConfig, handoff, tool
from agentloop.items import ToolCall, ToolOutput, UserMessage
from agentloop.models import OpenAIChatModel
from agentloop.testing import ScriptedModel, call

SSE = {"content-type": "text/event-stream"}


class Server:
    """Answers *turns* times with calls that are numbered from 0 in each response, then with text."""

    def __init__(self, turns: int, calls: int = 2) -> None:
        self.turns = turns
        self.calls = calls
        self.bodies: list[Any] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.bodies.append(json.loads(request.content))
        if len(self.bodies) > self.turns:
            return self._chunks({"content": "done"}, "stop")
        turn = len(self.bodies)
        calls = [
            {"index": n, "id": f"call_{n}", "function": {"name": "work", "arguments": json.dumps({"n": 10 * turn + n})}}
            for n in range(self.calls)
        ]
        return self._chunks({"tool_calls": calls}, "tool_calls")

    def _chunks(self, delta: Any, reason: str) -> httpx.Response:
        chunk = {"id": "r", "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}
        return httpx.Response(200, headers=SSE, content=f"data: {json.dumps(chunk)}\n\n".encode())

    def model(self) -> OpenAIChatModel:
        """Return a client of this server."""
        client = httpx.AsyncClient(transport=httpx.MockTransport(self))
        return OpenAIChatModel("m", base_url="http://model.test/v1", http_client=client)


def pairs(body: Any) -> list[tuple[list[str], list[str]]]:
    """Return the ids of each assistant message's calls, and of the outputs that follow it."""
    found: list[tuple[list[str], list[str]]] = []
    for message in body["messages"]:
        if message["role"] == "assistant":
            found.append(([one["id"] for one in message.get("tool_calls", ())], []))
        elif message["role"] == "tool":
            found[-1][1].append(message["tool_call_id"])
    return found


async def run(run_mode: Any, server: Server, config: RunConfig | None = None) -> tuple[Any, list[int]]:
    """Run an agent against *server*; return the result, and the arguments its tool was run with."""
    ran: list[int] = []

    @tool
    async def work(n: int) -> str:
        """Work."""
        ran.append(n)
        return f"did {n}"

    return await run_mode(Agent("a", model=server.model(), tools=[work]), "go", run_config=config), ran


@pytest.mark.scenario("RP-17")
async def test_calls_of_a_server_that_restarts_its_ids_all_run(run_mode: Any) -> None:
    """Ids are unique in the run; a new id stays the server's, and the server gets its own ids back."""
    server = Server(turns=3)
    result, ran = await run(run_mode, server)
    assert result.final_output == "done"
    assert sorted(ran) == [10, 11, 20, 21, 30, 31]
    ids = [item.call_id for item in result.new_items if isinstance(item, ToolCall)]
    assert ids == ["call_0", "call_1", "call_0_2", "call_1_2", "call_0_3", "call_1_3"]
    outputs = {item.call_id: item.output for item in result.new_items if isinstance(item, ToolOutput)}
    assert outputs == {call_id: f"did {n}" for call_id, n in zip(ids, [10, 11, 20, 21, 30, 31], strict=True)}
    assert pairs(server.bodies[-1]) == [(["call_0", "call_1"], ["call_0", "call_1"])] * 3


@pytest.mark.scenario("RP-17")
async def test_ids_are_unique_although_a_filter_cuts_the_earlier_calls(run_mode: Any) -> None:
    """The items that the model receives don't say which ids the run has used, so the ids come from the run itself."""

    def last_only(data: ModelInputData) -> ModelInputData:
        return data.replace(input=[UserMessage("go on")])

    server = Server(turns=3, calls=1)
    result, ran = await run(run_mode, server, RunConfig(call_model_input_filter=last_only))
    assert ran == [10, 20, 30]
    assert [item.call_id for item in result.new_items if isinstance(item, ToolCall)] == [
        "call_0",
        "call_0_2",
        "call_0_3",
    ]
    assert pairs(server.bodies[-1]) == []


@pytest.mark.scenario("RP-17")
async def test_id_of_a_handoff_is_known_although_its_filter_cuts_it(run_mode: Any) -> None:
    """The second agent's server numbers from 0 again, and the run renames the id that the handoff has used."""
    ran: list[int] = []

    @tool
    async def work(n: int) -> str:
        """Work."""
        ran.append(n)
        return "did"

    def only_input(data: HandoffInputData) -> HandoffInputData:
        return data.replace(pre_handoff_items=(), new_items=())

    second = Agent("second", model=Server(turns=1, calls=1).model(), tools=[work])
    to_second = call("transfer_to_second", {}, call_id="call_0")
    first = Agent("first", model=ScriptedModel([to_second]), handoffs=[handoff(second, input_filter=only_input)])
    result = await run_mode(first, "go")
    assert result.final_output == "done"
    assert ran == [10]
    assert [item.call_id for item in result.new_items if isinstance(item, ToolCall)] == ["call_0_2"]


@pytest.mark.scenario("RP-17")
async def test_deltas_and_state_use_the_runs_id() -> None:
    """A stream's deltas belong to the call that it shows, and a stored run keeps the same ids."""
    from agentloop import Runner, RunState
    from agentloop import events as ev

    server = Server(turns=2, calls=1)

    @tool
    async def work(n: int) -> str:
        """Work."""
        return "did"

    agent = Agent("a", model=server.model(), tools=[work])
    async with Runner.run_streamed(agent, "go") as stream:
        events = [event async for event in stream]
    assert [event.call_id for event in events if isinstance(event, ev.ArgumentsDelta)] == ["call_0", "call_0_2"]
    stored = RunState.from_json(agent, stream.result.to_state().to_json())
    assert stored == stream.result.to_state()
    calls = [item for item in stream.result.new_items if isinstance(item, ToolCall)]
    assert [call.provider_data for call in calls] == [None, {"chat_call_id": "call_0"}]
