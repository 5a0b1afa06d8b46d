"""Calls that the provider runs once they are approved: interruptions like any other."""

import json
from typing import Any

import anyio
import httpx
import pytest
from kit.agents import Run
from kit.results import count_records, read_statuses, read_waiting
from kit.resuming import Pauses, approve, in_every_way, reject

from agentloop import Agent, HostedTool, RunConfig, Runner, ToolsToFinalOutput, UserError, tool
from agentloop import events as ev
from agentloop import records as r
from agentloop.config.policies import Deny
from agentloop.items import ApprovalRequest, Item, ToolCall, ToolOutput, UserMessage
from agentloop.model_events import ModelRequest
from agentloop.models import AnthropicModel, OpenAIChatModel, OpenAIResponsesModel
from agentloop.models._chat.request import encode as encode_chat
from agentloop.models._realtime.items import encode_item
from agentloop.testing import ScriptedModel, check, respond, say
from agentloop.testing.invariants import Observation, findings_of

SSE = {"content-type": "text/event-stream"}
ASKED = {
    "type": "mcp_approval_request",
    "id": "mcpr_1",
    "name": "roll.dice",
    "server_label": "casino",
    "arguments": '{"n": 1}',
}
ANSWER = {"type": "message", "id": "m", "role": "assistant", "content": [{"type": "output_text", "text": "done"}]}
CALL = ToolCall("mcpr_1", "roll.dice", '{"n": 1}', "casino", kind="approval", provider_data={"responses": {}})
VERDICT = {"type": "mcp_approval_response", "approval_request_id": "mcpr_1"}
GO = {"role": "user", "content": "go"}


def asking(id: str, name: str = "roll", server: str | None = "casino") -> ToolCall:
    """Return the call that a provider asks about."""
    return ToolCall(id, name, "{}", server, kind="approval")


class Server:
    """Asks for an approval, and for what else it is given, then answers."""

    def __init__(self, *more: Any) -> None:
        self.inputs: list[Any] = []
        self.more = more

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.inputs.append(json.loads(request.content)["input"])
        output = [ASKED, *self.more] if len(self.inputs) == 1 else [ANSWER]
        event = {"type": "response.completed", "response": {"id": "r", "status": "completed", "output": output}}
        return httpx.Response(200, headers=SSE, content=f"data: {json.dumps(event)}\n\n".encode())

    def agent(self, *tools: Any) -> Agent[Any, str]:
        """Return an agent whose model is a client of this server."""
        client = httpx.AsyncClient(transport=httpx.MockTransport(self))
        model = OpenAIResponsesModel("m", base_url="http://model.test/v1", http_client=client)
        return Agent("a", model=model, tools=[HostedTool("mcp", {"server_label": "casino"}), *tools])


@pytest.mark.scenario("WR-07")
@in_every_way
@pytest.mark.parametrize(
    ("decide", "sent"),
    [
        (approve(), {"approve": True}),
        (reject(message="too risky"), {"approve": False, "reason": "too risky"}),
        (reject(), {"approve": False, "reason": "Tool 'roll.dice' was not approved."}),
    ],
    ids=["approved", "rejected", "rejected without words"],
)
@pytest.mark.parametrize("kept", [{}, {"auto_previous_response_id": True}], ids=["whole", "kept"])
async def test_the_verdict_on_a_call_of_the_provider_reaches_it(
    run_mode: Run, way: str, decide: Any, sent: dict[str, Any], kept: dict[str, Any]
) -> None:
    """The request goes back as it came, unless the provider has it; nothing is run here."""
    server = Server()
    agent, pauses = server.agent(), Pauses(run_mode, way)
    paused = await pauses.run(agent, **kept)
    assert paused.interruptions == (ApprovalRequest(CALL, "a", ()),)
    result = await pauses.resume(agent, paused, decide)
    assert result.final_output == "done"
    assert server.inputs == [[GO], [*([] if kept else [GO, ASKED]), VERDICT | sent]]
    assert read_statuses(result) == ["succeeded" if sent["approve"] else "rejected"]
    assert count_records(result, r.CallStarted) == 0
    check(Observation(records=result.records))
    unasked = [record for record in result.records if not isinstance(record, r.VerdictGiven)]
    found = [one.invariant for one in findings_of(Observation(records=unasked))]
    assert ("calls_that_need_approval_have_it" in found) is sent["approve"]


@pytest.mark.scenario("WR-07")
async def test_a_stream_shows_the_request_and_its_verdict() -> None:
    """As it does for a function of the agent."""
    server = Server()
    agent = server.agent()
    async with Runner.run_streamed(agent, "go") as stream:
        seen = [event async for event in stream]
    assert [event.request.call for event in seen if isinstance(event, ev.ApprovalRequested)] == [CALL]
    state = stream.state
    state.approve("mcpr_1")
    async with Runner.run_streamed(agent, state) as stream:
        seen = [event async for event in stream]
    outputs = [event.item for event in seen if isinstance(event, ev.ItemCreated) and isinstance(event.item, ToolOutput)]
    assert outputs == [ToolOutput("mcpr_1", "Approved.", kind="approval")]


async def test_its_arguments_can_not_be_replaced(run_mode: Run) -> None:
    """The provider would run it with its own."""
    paused = await run_mode(Server().agent(), "go")
    with pytest.raises(UserError, match="'mcpr_1' can't be given other arguments"):
        paused.to_state().approve("mcpr_1", arguments={"n": 2})


async def test_a_verdict_for_all_calls_is_for_one_tool_of_one_server(run_mode: Run) -> None:
    """Not for a tool of the agent with the same name in a namespace of the server's name."""
    turns = [asking("c1"), asking("c2"), asking("c3", server="bar"), asking("c4", "peek")]
    own = ToolCall("c5", "roll", "{}", "casino")

    @tool(needs_approval=True, namespace="casino")
    async def roll() -> str:
        """Roll."""
        return "6"

    model = ScriptedModel([respond(turns[0]), respond(*turns[1:], own), say("done")])
    agent = Agent("a", model=model, tools=[roll])
    state = (await run_mode(agent, "go")).to_state()
    state.approve("c1", always=True)
    paused = await run_mode(agent, state)
    assert read_waiting(paused) == ["c3", "c4", "c5"]


async def test_a_policy_may_refuse_it(run_mode: Run) -> None:
    """The provider gets the policy's reason."""

    class NoServers:
        def decide(self, pending: Any) -> Deny:
            assert (pending.call, pending.tool.namespace, pending.arguments) == (CALL, "casino.roll.dice", {"n": 1})
            return Deny("no servers")

    server = Server()
    result = await run_mode(server.agent(), "go", run_config=RunConfig(policies=[NoServers()]))
    assert result.final_output == "done"
    assert server.inputs[1][-1] == {**VERDICT, "approve": False, "reason": "no servers"}


@pytest.mark.parametrize("behavior", ["stop_on_first_tool", "callable"])
async def test_an_approval_is_no_tool_of_the_agent(run_mode: Run, behavior: str) -> None:
    """It is no final output, no result that a callable is given, and no call of a handoff with its name."""
    given: list[Any] = []

    def end(ctx: Any, results: Any) -> ToolsToFinalOutput:
        given.extend(one.call.call_id for one in results)
        return ToolsToFinalOutput(is_final=True, output=results[0].output)

    @tool
    async def look() -> str:
        """Look."""
        return "seen"

    first, second = asking("c1", "transfer_to_b", None), asking("c2", "look", None)
    model = ScriptedModel([respond(first), respond(second, ToolCall("c3", "look"))])
    agent = Agent(
        "a",
        model=model,
        tools=[look],
        handoffs=[Agent("b", model=ScriptedModel([]))],
        tool_use_behavior=end if behavior == "callable" else "stop_on_first_tool",
    )
    state = (await run_mode(agent, "go")).to_state()
    state.approve("c1", always=True)
    paused = await run_mode(agent, state)
    assert read_waiting(paused) == ["c2"]
    state = paused.to_state()
    state.approve("c2")
    assert (await run_mode(agent, state)).final_output == "seen"
    assert given == (["c3"] if behavior == "callable" else [])


@pytest.mark.scenario("WR-07")
@pytest.mark.parametrize("item", [CALL, ToolOutput("mcpr_1", "Approved.", kind="approval")], ids=["call", "verdict"])
async def test_a_model_without_such_calls_refuses_them_before_it_is_asked(item: Item) -> None:
    """A history may come from another provider."""
    server = Server()
    client = httpx.AsyncClient(transport=httpx.MockTransport(server))
    for kind in (OpenAIChatModel, AnthropicModel):
        model = kind("m", base_url="http://model.test/v1", http_client=client, api_key="k")
        with pytest.raises(UserError, match=r"items\[0\]: the approval of a provider's call has no form in"):
            await Runner.run(Agent("a", model=model), [item])
    with pytest.raises(UserError, match="the approval of a provider's call has no form in Chat Completions"):
        encode_chat(ModelRequest(system=None, items=(item, UserMessage("go"))), "m", constrained=True)
    with pytest.raises(UserError, match="has no form in a realtime session"):
        encode_item(item, {})
    assert server.inputs == []


@pytest.mark.scenario("SM-03")
@pytest.mark.parametrize("decide", [approve(), reject(message="no")], ids=["approved", "rejected"])
async def test_a_call_of_the_provider_that_was_cancelled_is_never_approved(decide: Any) -> None:
    """The provider, which would run it, is told no, whatever the verdict that comes later."""
    go = anyio.Event()

    @tool
    async def holds() -> str:
        """Hold."""
        await go.wait()
        return "held"

    server = Server({"type": "function_call", "id": "f", "call_id": "c2", "name": "holds", "arguments": "{}"})
    agent = server.agent(holds)
    async with Runner.run_streamed(agent, "go") as stream:
        async for event in stream:
            if isinstance(event, ev.ApprovalRequested):
                assert stream.cancel_call("mcpr_1", "enough")
                go.set()
    state = stream.result.to_state()
    decide(state)
    result = await Runner.run(agent, state)
    assert result.final_output == "done"
    [told] = [one for one in server.inputs[1] if one.get("type") == "mcp_approval_response"]
    assert told["approve"] is False
    assert read_statuses(result) == ["cancelled", "succeeded"]
