"""Runs over the Responses interface: what each request repeats, and what the provider keeps for itself."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import httpx
import pytest
from kit.resuming import Pauses, approve, in_every_way

from agentloop import Agent, HostedTool, ModelRetrySettings, ModelSettings, Runner, UserError, handoff, tool
from agentloop.items import HostedToolCall, Reasoning, ToolOutput
from agentloop.models import OpenAIChatModel, OpenAIResponsesModel
from agentloop.sessions import MemorySession

SSE = {"content-type": "text/event-stream"}
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "ZW5j"}
SEARCH = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "x"}}
LOOK = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "look", "arguments": '{"n": 1}'}
SHOUT = {"type": "custom_tool_call", "id": "ctc_1", "call_id": "call_2", "name": "shout", "input": "hey"}
FIRST = [THOUGHT, SEARCH, LOOK, SHOUT]
ANSWER = [{"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": "done"}]}]
OUTPUTS = [
    {"type": "function_call_output", "call_id": "call_1", "output": "seen 1"},
    {"type": "custom_tool_call_output", "call_id": "call_2", "output": "HEY"},
]


@tool
async def look(n: int) -> str:
    """Look."""
    return f"seen {n}"


@tool(kind="custom")
async def shout(words: str) -> str:
    """Say it loud."""
    return words.upper()


@tool(needs_approval=True)
async def pay() -> str:
    """Pay."""
    return "paid"


class Server:
    """Gives *answers* one after the other, each a list of items or a status."""

    def __init__(self, answers: Sequence[list[dict[str, Any]] | int] = (FIRST, ANSWER)) -> None:
        self.answers = list(answers)
        self.bodies: list[Any] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        assert request.url.path == "/v1/responses"
        self.bodies.append(json.loads(request.content))
        answer = self.answers[len(self.bodies) - 1]
        if isinstance(answer, int):
            return httpx.Response(answer, json={"error": {"message": "full", "code": "server_error"}})
        response = {"id": f"resp_{len(self.bodies)}", "status": "completed", "output": answer}
        event = {"type": "response.completed", "response": response}
        return httpx.Response(200, headers=SSE, content=f"data: {json.dumps(event)}\n\n".encode())

    def agent(self, **options: Any) -> Agent[Any, str]:
        """Return an agent whose model is a client of this server."""
        client = httpx.AsyncClient(transport=httpx.MockTransport(self))
        model = OpenAIResponsesModel("m", base_url="http://model.test/v1", http_client=client)
        return Agent("a", model=model, tools=[look, shout, HostedTool("web_search")], **options)

    @property
    def inputs(self) -> list[Any]:
        """The items of each request."""
        return [body["input"] for body in self.bodies]


GO = {"role": "user", "content": "go"}


async def test_without_the_provider_s_store_every_request_has_the_whole_conversation(run_mode: Any) -> None:
    """Reasoning goes back in its encrypted form, before what came of it."""
    server = Server()
    agent = server.agent(model_settings=ModelSettings(store=False))
    result = await run_mode(agent, "go")
    assert result.final_output == "done"
    assert [type(item) for item in result.new_items[:2]] == [Reasoning, HostedToolCall]
    assert server.inputs == [[GO], [GO, *FIRST, *OUTPUTS]]
    assert [body["include"] for body in server.bodies] == [["reasoning.encrypted_content"]] * 2
    assert [one["type"] for one in server.bodies[0]["tools"]] == ["function", "custom", "web_search"]


@pytest.mark.scenario("WR-05")
@pytest.mark.parametrize(
    ("kept", "named"),
    [
        ({"previous_response_id": "resp_0"}, [("resp_0", None), ("resp_1", None)]),
        ({"auto_previous_response_id": True}, [(None, None), ("resp_1", None)]),
        ({"conversation_id": "conv_1"}, [(None, "conv_1"), (None, "conv_1")]),
    ],
)
async def test_what_the_provider_keeps_is_never_sent_again(run_mode: Any, kept: Mapping[str, Any], named: Any) -> None:
    """Each request has the new items alone; the output of a custom call is one although its call isn't there."""
    server = Server()
    result = await run_mode(server.agent(), "go", **kept)
    assert result.final_output == "done"
    assert server.inputs == [[GO], OUTPUTS]
    assert [(body.get("previous_response_id"), body.get("conversation")) for body in server.bodies] == named


@pytest.mark.scenario("WR-05")
@in_every_way
@pytest.mark.parametrize(
    ("kept", "named"),
    [
        ({"previous_response_id": "resp_0"}, ("resp_2", None)),
        ({"auto_previous_response_id": True}, ("resp_2", None)),
        ({"conversation_id": "conv_1"}, (None, "conv_1")),
    ],
)
async def test_what_the_provider_keeps_is_not_sent_again_by_a_run_that_is_resumed(
    run_mode: Any, way: str, kept: Mapping[str, Any], named: Any
) -> None:
    """The state and the journal tell the next run segment what the provider has."""
    ask = {"type": "function_call", "id": "fc_2", "call_id": "call_3", "name": "pay", "arguments": "{}"}
    server = Server([FIRST, [ask], ANSWER])
    agent, pauses = server.agent(), Pauses(run_mode, way)
    agent = agent.clone(tools=[*agent.tools, pay])
    paused = await pauses.run(agent, **kept)
    assert [request.call.call_id for request in paused.interruptions] == ["call_3"]
    result = await pauses.resume(agent, paused, approve())
    assert result.final_output == "done"
    paid = [{"type": "function_call_output", "call_id": "call_3", "output": "paid"}]
    assert server.inputs == [[GO], OUTPUTS, paid]
    assert (server.bodies[2].get("previous_response_id"), server.bodies[2].get("conversation")) == named


@pytest.mark.scenario("WR-05")
async def test_items_that_were_not_acknowledged_are_sent_again() -> None:
    """A request that failed has told the provider nothing."""
    server = Server([FIRST, 503, ANSWER])
    retry = ModelSettings(retry=ModelRetrySettings(max_retries=1, initial_delay=0, policy=lambda context: True))
    result = await Runner.run(server.agent(model_settings=retry), "go", previous_response_id="resp_0")
    assert result.final_output == "done"
    assert server.inputs == [[GO], OUTPUTS, OUTPUTS]
    assert [body["previous_response_id"] for body in server.bodies] == ["resp_0", "resp_1", "resp_1"]


@pytest.mark.scenario("WR-05")
async def test_a_kept_conversation_has_no_session_and_needs_a_provider_that_keeps_it() -> None:
    """Both are said before anything is sent."""
    server = Server()
    with pytest.raises(UserError, match="session"):
        await Runner.run(server.agent(), "go", session=MemorySession(), conversation_id="conv_1")
    client = httpx.AsyncClient(transport=httpx.MockTransport(server))
    chat = OpenAIChatModel("m", base_url="http://model.test/v1", http_client=client)
    with pytest.raises(UserError, match=r"'a'.*OpenAIChatModel.*doesn't know conversations that the provider keeps"):
        await Runner.run(Agent("a", model=chat), "go", conversation_id="conv_1")
    with pytest.raises(UserError, match=r"'a'.*OpenAIChatModel.*doesn't know hosted tools \(web_search\)"):
        await Runner.run(Agent("a", model=chat, tools=[HostedTool("web_search")]), "go")
    assert server.bodies == []


async def test_a_handoff_is_a_function_to_the_model(run_mode: Any) -> None:
    """Its call goes back with the id that the server gave it, and its output is one of a function."""
    move = {"type": "function_call", "id": "fc_9", "call_id": "call_9", "name": "transfer_to_b", "arguments": "{}"}
    server = Server([[move], ANSWER])
    target = handoff(Agent("b", model=server.agent().model), nest_handoff_history=False)
    result = await run_mode(server.agent(handoffs=[target]), "go")
    assert (result.final_output, result.last_agent.name) == ("done", "b")
    *_, shown, hosted = server.bodies[0]["tools"]
    assert (shown["type"], shown["name"], shown["strict"]) == ("function", "transfer_to_b", True)
    assert hosted == {"type": "web_search"}
    assert (target.kind, target.format) == ("function", None)
    _, sent, output = server.inputs[1]
    assert sent == move
    assert (output["type"], output["call_id"]) == ("function_call_output", "call_9")


async def test_the_pieces_that_a_stream_shows_make_up_the_answer() -> None:
    """Also where the server sends whole items alone."""
    server = Server()
    async with Runner.run_streamed(server.agent(), "go") as stream:
        text = "".join([event.text async for event in stream if hasattr(event, "text")])
    assert text == "done"
    outputs = [item for item in stream.result.new_items if isinstance(item, ToolOutput)]
    assert [(item.kind, item.output) for item in outputs] == [("function", "seen 1"), ("custom", "HEY")]
