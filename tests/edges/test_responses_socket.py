"""`OpenAIResponsesModel(websocket=True)`: what is sent, what is kept, and what happens when something breaks."""

import json
from typing import Any

import anyio
import httpx
import pytest
from edges.responses_fixture import make_response, make_stream, wire
from edges.responses_socket import DROP, STALL, Json, SocketServer, message, says, socket_server

from agentloop import Agent, Runner, tool
from agentloop.exceptions import ModelTransportError, UserError, UserValueError
from agentloop.items import AssistantMessage, Item, UserMessage
from agentloop.model_events import ModelRequest, ResponseDone, TextDelta
from agentloop.models import ModelTimeouts, OpenAIResponsesModel
from agentloop.models._responses import links
from agentloop.settings import CachePolicy, ModelRetrySettings, ModelSettings

pytestmark = pytest.mark.real_clock

KEY = "sk-very-secret-0123456789"
HI = UserMessage("Hi")
HELLO = says(message("Hello"))


def make_model(server: SocketServer, **options: Any) -> OpenAIResponsesModel:
    return OpenAIResponsesModel("m", **{"base_url": server.url, "api_key": KEY, "websocket": True} | options)


async def answer(model: OpenAIResponsesModel, *items: Item, **fields: Any) -> ResponseDone:
    async with model.stream(ModelRequest(**{"system": None, "items": items} | fields)) as events:
        done = [event async for event in events][-1]
    assert isinstance(done, ResponseDone)
    return done


@tool
async def weather(city: str) -> str:
    """Return the weather."""
    return f"{city}: sunny"


def call(number: int, **fields: Any) -> Json:
    arguments = json.dumps({"city": f"c{number}"})
    return {
        "type": "function_call",
        "id": "fc",
        "call_id": f"c{number}",
        "name": "weather",
        "arguments": arguments,
    } | fields


TURNS: list[list[Json]] = [*([message("Let me see."), call(number)] for number in range(9)), [message("Everywhere.")]]


# ---------------------------------------------------------------------------------------------- what is sent


@pytest.mark.scenario("WR-01")
async def test_ten_turns_send_what_is_new_and_give_the_items_of_http(anyio_backend: Any) -> None:
    """One connection, one answer after the other; each frame names the answer before and has the outputs alone."""

    def over_http(request: httpx.Request) -> httpx.Response:
        number = sum(item.get("type") == "function_call_output" for item in json.loads(request.content)["input"])
        events = make_stream(TURNS[number], id=f"resp_{number + 1}")
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=wire(events))

    found = []
    with socket_server(
        lambda server: [*make_stream(TURNS[len(server.frames) - 1], id=f"resp_{len(server.frames)}")]
    ) as server:
        async with httpx.AsyncClient(transport=httpx.MockTransport(over_http)) as client, make_model(server) as model:
            for one in (model, OpenAIResponsesModel("m", base_url="http://x.test/v1", http_client=client)):
                agent = Agent("a", instructions="Be brief.", model=one, tools=[weather])
                found.append((await Runner.run(agent, "Where is it sunny?", max_turns=10)).to_input_list())
    assert found[0] == found[1]
    assert server.inputs() == [1] * 10
    assert server.connection_numbers() == [1] * 10
    frames = [frame for _, frame in server.frames]
    assert [frame.get("previous_response_id") for frame in frames] == [None, *(f"resp_{n}" for n in range(1, 10))]
    for frame in frames:
        assert (frame["type"], frame["model"], frame["instructions"]) == ("response.create", "m", "Be brief.")
        assert len(frame["tools"]) == 1
        assert "stream" not in frame
    assert frames[1]["input"] == [{"type": "function_call_output", "call_id": "c0", "output": "c0: sunny"}]
    assert server.headers[0]["authorization"] == f"Bearer {KEY}"
    assert server.headers[0].keys().isdisjoint({"content-type", "accept"})


async def test_frames_are_valid_by_the_vendor_s_types(anyio_backend: Any) -> None:
    """With and without the answer before."""
    events = pytest.importorskip("openai.types.responses.responses_client_event")
    with socket_server(HELLO) as server:
        async with make_model(server) as model:
            done = await answer(model, HI, system="Be brief.")
            await answer(model, HI, *done.items, HI, settings=ModelSettings(store=False))
    assert server.connection_numbers() == [1, 1]
    for _, frame in server.frames:
        parsed = events.ResponseCreate.model_validate(frame, strict=True)
        assert not parsed.model_extra


async def test_a_history_of_another_conversation_gets_a_connection_of_its_own(anyio_backend: Any) -> None:
    """As does one that was changed, and one whose instructions are in it; each goes on where its answer is known."""
    with socket_server(HELLO) as server:
        async with make_model(server) as model:
            first = await answer(model, HI)
            other = await answer(model, UserMessage("Ho"))
            await answer(model, HI, *first.items, HI)
            await answer(model, UserMessage("Ho"), *other.items, HI)
            await answer(model, UserMessage("Hi!"), *first.items, HI)
            points = ModelSettings(cache=CachePolicy(breakpoints=("instructions",)))
            await answer(model, HI, instructions=("a", "b"), system="a\n\nb", settings=points)
    assert server.connection_numbers() == [1, 2, 1, 2, 3, 4]
    assert server.inputs() == [1, 1, 1, 1, 3, 2]


async def test_a_run_may_name_the_answer_itself(anyio_backend: Any) -> None:
    """It is on the connection that gave it; what a conversation of the provider's knows isn't guessed."""
    with socket_server(HELLO) as server:
        async with make_model(server) as model:
            first = await answer(model, HI)
            await answer(model, UserMessage("Ho"))
            second = await answer(model, UserMessage("more"), previous_response_id=first.response_id)
            await answer(model, UserMessage("more"), *second.items, HI)
            kept = await answer(model, HI, conversation_id="conv")
            await answer(model, HI, *kept.items, HI, conversation_id="conv")
    assert server.connection_numbers() == [1, 2, 1, 3, 4, 5]
    assert server.inputs() == [1, 1, 1, 3, 1, 3]


async def test_an_input_of_the_application_s_own_is_sent_as_it_is(anyio_backend: Any) -> None:
    """`extra_body` has the last word."""
    settings = ModelSettings(extra_body={"input": "words"}, extra_headers={"X-A": "b"}, extra_query={"q": "r"})
    with socket_server(HELLO) as server:
        async with make_model(server) as model:
            done = await answer(model, HI, settings=settings)
            await answer(model, HI, *done.items, HI, settings=settings)
    assert [frame["input"] for _, frame in server.frames] == ["words", "words"]
    assert server.headers[0]["x-a"] == "b"


async def test_two_answers_at_once_need_two_connections(anyio_backend: Any) -> None:
    """And of those, eight are kept."""
    with socket_server(HELLO) as server:
        async with make_model(server) as model:
            async with anyio.create_task_group() as group:
                for number in range(10):
                    group.start_soon(answer, model, UserMessage(str(number)))
            await answer(model, UserMessage("11"))
            pool: Any = model._drivers.current()
            assert len(pool._free) == 8
    assert sorted(server.connection_numbers()[:10]) == list(range(1, 11))
    assert server.connection_numbers()[10] <= 10  # the one that was unused for longest


# ---------------------------------------------------------------------------------------------- what breaks


async def test_what_the_server_has_forgotten_is_sent_again(anyio_backend: Any) -> None:
    """Over another connection, once; nobody hears of it."""
    with socket_server(HELLO) as server:
        async with make_model(server) as model:
            done = await answer(model, HI)
            server.forgets = True
            again = await answer(model, HI, *done.items, HI)
    assert again.items == (AssistantMessage("Hello", id="msg_1", provider_data=again.items[0].provider_data),)  # type: ignore[union-attr]
    assert server.connection_numbers() == [1, 1, 2]
    assert server.inputs() == [1, 1, 3]


async def test_an_answer_that_nobody_knows_is_an_error(anyio_backend: Any) -> None:
    """A new connection isn't replaced."""
    with socket_server(HELLO) as server:
        async with make_model(server) as model:
            with pytest.raises(ModelTransportError) as caught:
                await answer(model, HI, previous_response_id="resp_x")
    assert (caught.value.status, caught.value.code) == (400, "previous_response_not_found")
    assert len(server.frames) == 1


async def test_a_connection_that_has_ended_is_replaced(anyio_backend: Any) -> None:
    """The server closes those that are old; a request then sends everything."""
    with socket_server(HELLO) as server:
        async with make_model(server) as model:
            done = await answer(model, HI)
            server.connections[0].close()
            await answer(model, HI, *done.items, HI)
    assert server.connection_numbers() == [1, 2]
    assert server.inputs() == [1, 3]


@pytest.mark.parametrize("alive", [True, False])
async def test_a_connection_that_was_long_unused_is_checked(
    alive: bool, anyio_backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pong in time, or another connection."""
    monkeypatch.setattr(links, "STALE", -1.0)
    monkeypatch.setattr(links, "PROMPT", 5.0 if alive else 0.0)
    with socket_server(HELLO) as server:
        async with make_model(server) as model:
            done = await answer(model, HI)
            await answer(model, HI, *done.items, HI)
    assert server.connection_numbers() == [1, 1 if alive else 2]


async def test_an_old_connection_is_closed(anyio_backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's limit comes later, and would end an answer."""
    monkeypatch.setattr(links, "_MOST_AGE", -1.0)
    with socket_server(HELLO) as server:
        async with make_model(server) as model:
            done = await answer(model, HI)
            await answer(model, HI, *done.items, HI)
            assert server.closed.wait(5)
    assert server.connection_numbers() == [1, 2]


async def test_leaving_an_answer_closes_its_connection(anyio_backend: Any) -> None:
    """There is no word to stop it. The model stays usable, a hundred times."""
    text = make_stream([message("Once upon a time")])
    with socket_server(lambda server: [*text[:5], STALL] if len(server.frames) <= 30 else HELLO(server)) as server:
        async with make_model(server) as model:
            for _ in range(30):
                with anyio.CancelScope() as scope:
                    async with model.stream(ModelRequest(system=None, items=(HI,))) as events:
                        async for event in events:
                            if isinstance(event, TextDelta):
                                scope.cancel()
                assert scope.cancelled_caught
            assert (await answer(model, HI)).finish_reason == "stop"
            pool: Any = model._drivers.current()
            assert len(pool._free) == 1
    assert server.connection_numbers() == list(range(1, 32))


async def test_an_error_has_its_status_and_is_retried_by_it(anyio_backend: Any) -> None:
    """The event has the status that the answer would have had over HTTP."""
    error = {"type": "error", "status": 429, "error": {"type": "rate_limit_error", "message": f"slow down {KEY}"}}
    with socket_server(lambda server: [error] if len(server.frames) == 1 else HELLO(server)) as server:
        async with make_model(server) as model:
            with pytest.raises(ModelTransportError) as caught:
                await answer(model, HI)
            assert (caught.value.status, caught.value.code) == (429, "rate_limit_error")
            assert KEY not in str(caught.value)
            server.frames.clear()
            retry = ModelSettings(retry=ModelRetrySettings(1, initial_delay=0.0))
            result = await Runner.run(Agent("a", model=model, model_settings=retry), "Hi")
    assert result.final_output == "Hello"
    assert len(server.frames) == 2


FAILED = {"type": "response.failed", "response": make_response([], "failed", error={"message": "no"})}


@pytest.mark.parametrize(
    ("events", "error", "words"),
    [
        ([*make_stream([message("Hi")])[:4], DROP], ModelTransportError, "broke the connection"),
        ([DROP], ModelTransportError, "broke the connection"),
        ([*make_stream([message("Hi")])[:5], STALL], ModelTransportError, "silent for 0.5 s"),
        ([STALL], ModelTransportError, "silent for 0.3 s"),
        ([*make_stream([message("Hi")])[:5], FAILED], ModelTransportError, "broke the response off: no"),
    ],
    ids=["dropped", "dropped at once", "silent", "silent at once", "failed"],
)
async def test_a_fault_of_the_server_is_a_typed_error(events: Any, error: Any, words: str, anyio_backend: Any) -> None:
    """Within its time, and with nothing left behind."""
    # Only what stalls has a short time: a slow machine may take longer than that for anything else.
    silent, silent_at_once = STALL in events[1:], STALL in events[:1]
    timeouts = ModelTimeouts(read=0.5 if silent else 60, first_output=0.3 if silent_at_once else 60)
    with socket_server(lambda server: events) as server:
        async with make_model(server, timeouts=timeouts) as model:
            with anyio.fail_after(60):
                with pytest.raises(error, match=words):
                    await answer(model, HI)
            pool: Any = model._drivers.current()
            assert pool._free == []
    assert len(server.frames) == 1


@pytest.mark.parametrize("events", [[STALL], [*make_stream([message("Hi")])[:5], STALL]], ids=["at once", "begun"])
async def test_a_whole_answer_has_its_time(events: Any, anyio_backend: Any) -> None:
    """Where that ends before the time for a piece, it is what the error names."""
    with socket_server(lambda server: events) as server:
        async with make_model(server, timeouts=ModelTimeouts(total=0.3)) as model:
            with anyio.fail_after(60), pytest.raises(ModelTransportError, match="isn't complete after") as caught:
                await answer(model, HI)
    assert caught.value.code == "answer_timeout"


async def test_an_answer_may_outlive_its_model(anyio_backend: Any) -> None:
    """Its connection is then closed with it."""
    with socket_server(HELLO) as server:
        model = make_model(server)
        async with model:
            streaming = model.stream(ModelRequest(system=None, items=(HI,)))
            events = await streaming.__aenter__()
        assert isinstance([event async for event in events][-1], ResponseDone)
        await streaming.__aexit__(None, None, None)
        assert server.closed.wait(5)


async def test_what_it_needs_is_said(anyio_backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is made, and where it is entered."""
    with pytest.raises(UserValueError, match="websocket: its connections"):
        OpenAIResponsesModel("m", websocket=True, auth=lambda request: request)
    with pytest.raises(UserError, match="isn't entered"):
        await answer(OpenAIResponsesModel("m", api_key="k", websocket=True), HI)
    monkeypatch.setattr("agentloop.models.openai_responses.find_spec", lambda name: None)
    with pytest.raises(UserError, match="needs the extra `realtime`"):
        await OpenAIResponsesModel("m", api_key="k", websocket=True).__aenter__()
