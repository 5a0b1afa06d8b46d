"""`RealtimeModel` against a scripted server on real sockets: what is sent, what comes of it, and what goes wrong."""

import asyncio
import json
import logging
import random
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from anyio.abc import ByteStream
from anyio.lowlevel import checkpoint
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from edges.realtime_requests import adopt
from edges.realtime_server import (
    GOODBYE,
    Call,
    Drop,
    Emit,
    End,
    Frame,
    RealtimeServer,
    Say,
    Script,
    Stall,
    Step,
    Talk,
    Text,
    realtime_server,
    reset_connection,
    text_frame,
)
from websockets.client import ClientProtocol
from websockets.datastructures import Headers
from websockets.http11 import Response
from websockets.protocol import State
from websockets.uri import parse_uri

from agentloop import Agent, ModelSettings, Runner, tool
from agentloop.exceptions import ModelBehaviorError, ModelTransportError, UserError, UserTypeError, UserValueError
from agentloop.items import AssistantMessage, Item, Reasoning, ToolCall, ToolOutput, UserMessage
from agentloop.model_events import ArgumentsDelta, ModelEvent, ModelRequest, Raw, ResponseDone, TextDelta
from agentloop.models import ModelTimeouts, OpenAIChatModel, RealtimeModel, _websocket
from agentloop.models._patience import Patience
from agentloop.models._realtime import line
from agentloop.models._realtime.conversation import NOT_RUN
from agentloop.models._realtime.line import Line, Target
from agentloop.models._realtime.request import encode_session
from agentloop.models._refusals import SILENT
from agentloop.models._websocket import WebSocket
from agentloop.settings import ModelRetrySettings
from agentloop.testing import ScriptedModel, call, say

pytestmark = pytest.mark.real_clock

FAR = 120.0
"""Seconds that no test takes, however busy the machine is: a hang ends there."""
KEY = "sk-very-secret-0123456789"
REQUEST = ModelRequest(system="Be brief.", items=(UserMessage("Hi"),))
HELLO = (Say(("Hel", "lo")),)


def always(*steps: Step) -> Script:
    """Return a script that gives the same answer each time."""
    return lambda talk: steps


def in_turn(*answers: tuple[Step, ...]) -> Script:
    """Return a script of one answer after the other, on whatever connection; the last is repeated."""
    return lambda talk: answers[min(talk.server.responses, len(answers)) - 1]


def echo(talk: Talk) -> tuple[Step, ...]:
    """Answer with what was said last."""
    return (Say(("I heard ", talk.texts()[-1])),)


def make_model(server: RealtimeServer, **options: Any) -> RealtimeModel:
    return RealtimeModel("m", **{"base_url": server.url, "api_key": KEY} | options)


async def ask(model: RealtimeModel, request: ModelRequest = REQUEST) -> list[ModelEvent]:
    async with model.stream(request) as events:
        return [event async for event in events]


async def answer(model: RealtimeModel, *items: Item, **fields: Any) -> ResponseDone:
    done = (await ask(model, ModelRequest(**{"system": None, "items": items} | fields)))[-1]
    assert isinstance(done, ResponseDone)
    return done


async def barge_in(model: RealtimeModel, *items: Item, pieces: int = 1, **fields: Any) -> None:
    """Ask, and leave after so many pieces of text or arguments."""
    async with model.stream(ModelRequest(**{"system": None, "items": items} | fields)) as events:
        async for event in events:
            pieces -= isinstance(event, TextDelta | ArgumentsDelta)
            if not pieces:
                break


def created(talk: Talk) -> list[str]:
    """Return what the items that were sent say, in order."""
    items = [event["item"] for event in talk.events if event["type"] == "conversation.item.create"]
    return [
        str(item.get("output") or item.get("name") or "".join(part["text"] for part in item.get("content", ())))
        for item in items
    ]


# ---------------------------------------------------------------------------------------------- what is sent


@pytest.mark.scenario("WR-13")
async def test_the_view_is_told_when_it_changes_and_each_item_is_sent_once(anyio_backend: Any) -> None:
    """Three turns with another view before the third need two updates of the session, and each item once."""
    with realtime_server(echo) as server:
        async with make_model(server) as model:
            history: list[Item] = []
            for words, system in (("one", "a"), ("two", "a"), ("three", "b")):
                history.append(UserMessage(words))
                history += (await answer(model, *history, system=system)).items
    (talk,) = server.talks
    assert talk.kinds() == [
        *("session.update", "conversation.item.create", "response.create"),
        *("conversation.item.create", "response.create"),
        *("session.update", "conversation.item.create", "response.create"),
    ]
    assert created(talk) == ["one", "two", "three"]
    assert talk.session["instructions"] == "b"
    assert history[-1] == AssistantMessage("I heard three")
    assert server.handshakes[0].headers["Authorization"] == f"Bearer {KEY}"
    assert server.handshakes[0].path == "/v1/realtime?model=m"


@tool
async def weather(city: str) -> str:
    """Weather of a city."""
    await checkpoint()
    return f"{city}: sunny"


TEN: list[list[tuple[str, ...]]] = [
    [("call", "weather", '{"city": "Oslo"}', "c1"), ("call", "weather", '{"city": "Rome"}', "c2")],
    [("say", "First "), ("call", "weather", '{"city": "Bonn"}', "c3")],
    *([("call", "weather", f'{{"city": "{number}"}}', f"d{number}")] for number in range(7)),
    [("say", "All of them are sunny.")],
]
"""Ten answers of a model."""


def _chat_chunks(turn: list[tuple[str, ...]]) -> bytes:
    chunks: list[dict[str, Any]] = []
    for index, (kind, *rest) in enumerate(turn):
        if kind == "say":
            chunks.append({"content": rest[0]})
        else:
            function = {"name": rest[0], "arguments": rest[1]}
            chunks.append({"tool_calls": [{"index": index, "id": rest[2], "function": function}]})
    choices = [{"index": 0, "delta": chunk} for chunk in chunks]
    choices.append({"index": 0, "delta": {}, "finish_reason": "stop"})
    return b"".join(b"data: " + json.dumps({"id": "r", "choices": [choice]}).encode() + b"\n\n" for choice in choices)


async def test_ten_turns_give_the_items_of_the_other_models(run_mode: Any, anyio_backend: Any) -> None:
    """A session of ten turns gives the same items as the same script over HTTP, and as a scripted model."""

    def steps(talk: Talk) -> list[Step]:
        turn = TEN[talk.server.responses - 1]
        return [Say((rest[0],)) if kind == "say" else Call(*rest) for kind, *rest in turn]

    turns = iter(TEN)
    sse = {"content-type": "text/event-stream"}
    transport = httpx.MockTransport(lambda _: httpx.Response(200, headers=sse, content=_chat_chunks(next(turns))))
    scripted = ScriptedModel([[say(rest[0]) if kind == "say" else call(*rest) for kind, *rest in turn] for turn in TEN])
    found = []
    with realtime_server(steps) as server:
        async with httpx.AsyncClient(transport=transport) as client, make_model(server) as realtime:
            chat = OpenAIChatModel("m", base_url="http://chat.test/v1", http_client=client)
            for model in (realtime, chat, scripted):
                agent = Agent("a", model=model, tools=[weather])
                found.append((await run_mode(agent, "Where is it sunny?", max_turns=10)).to_input_list())
    assert found[0] == found[1] == found[2]
    (talk,) = server.talks
    assert talk.kinds().count("session.update") == 1
    assert talk.kinds().count("response.create") == 10
    assert len(talk.items) == len(found[0])
    assert talk.kinds().count("conversation.item.create") == 11  # the user's message, and ten outputs


async def test_a_response_is_named_in_place_of_the_history(anyio_backend: Any) -> None:
    """A run that continues from a response sends what is new only; the conversation is found by the response."""
    with realtime_server(echo) as server:
        async with make_model(server) as model:
            agent = Agent("a", model=model)
            first = await Runner.run(agent, "one", auto_previous_response_id=True)
            second = await Runner.run(agent, "two", previous_response_id=first.last_response_id)
            assert second.final_output == "I heard two"
            with pytest.raises(UserError, match="no free realtime conversation of RealtimeModel"):
                await Runner.run(agent, "three", previous_response_id=first.last_response_id)
    assert server.talks[0].texts() == ["one", "I heard one", "two", "I heard two"]


async def test_settings_are_part_of_the_session(anyio_backend: Any) -> None:
    """Settings and tools are in the session's configuration, and metadata is in the request for the response."""
    settings = ModelSettings(
        max_tokens=7,
        tool_choice="weather",
        metadata={"a": "b"},
        extra_headers={"X-More": "yes"},
        extra_query={"v": "2"},
    )
    with realtime_server(always(*HELLO)) as server:
        async with make_model(server, organization="org", project="proj") as model:
            await answer(model, UserMessage("Hi"), settings=settings, tools=[weather])
            plain = await answer(model, UserMessage("Hi"))
    assert plain.finish_reason == "stop"
    first, second = server.talks  # the headers differ
    assert first.session["max_output_tokens"] == 7
    assert first.session["tool_choice"] == {"type": "function", "name": "weather"}
    assert [each["name"] for each in first.session["tools"]] == ["weather"]
    assert first.events[-1]["response"] == {"metadata": {"a": "b"}}
    assert server.handshakes[0].headers["X-More"] == "yes"
    assert server.handshakes[0].headers["OpenAI-Organization"] == "org"
    assert server.handshakes[0].path == "/v1/realtime?model=m&v=2"
    assert "X-More" not in server.handshakes[1].headers
    assert second.session["tool_choice"] == "auto"


async def test_a_field_that_a_view_loses_needs_a_new_session(anyio_backend: Any) -> None:
    """An update can't remove a field, so the conversation moves to a connection that was never told it."""
    with realtime_server(echo) as server:
        async with make_model(server) as model:
            one = UserMessage("one")
            first = await answer(model, one, settings=ModelSettings(truncation="disabled"))
            await answer(model, one, *first.items, UserMessage("two"))
    assert [talk.session.get("truncation") for talk in server.talks] == ["disabled", None]
    assert created(server.talks[1]) == ["one", "I heard one", "two"]


async def test_reasoning_of_other_models_is_not_sent(anyio_backend: Any) -> None:
    """A history that another model began is sent without its reasoning."""
    with realtime_server(echo) as server:
        async with make_model(server) as model:
            await answer(
                model, UserMessage("one"), Reasoning(content=("hm",)), AssistantMessage("1"), UserMessage("two")
            )
    assert created(server.talks[0]) == ["one", "1", "two"]


async def test_call_ids_that_a_server_uses_again_are_told_apart(anyio_backend: Any) -> None:
    """A server that numbers calls anew in each response gets its own ids back, while the run has an id for each."""
    script = in_turn((Call("weather", '{"city": "a"}', "c"),), (Say(("done",)),))
    with realtime_server(script) as server:
        async with make_model(server) as model:
            old = [UserMessage("0"), ToolCall("c", "weather"), ToolOutput("c", "x"), UserMessage("go")]
            events = await ask(model, ModelRequest(system=None, items=old))
            made = events[-1].items[0]  # type: ignore[union-attr]
            assert made.call_id == "c_1"
            assert {event.call_id for event in events if isinstance(event, ArgumentsDelta)} == {"c_1"}
            del server.talks[0].items["item_2"], server.talks[0].items["item_3"]  # so that the server isn't confused
            await answer(model, *old, made, ToolOutput("c_1", "y"))
    assert server.talks[0].events[-2]["item"]["call_id"] == "c"


# ---------------------------------------------------------------------------------------------- leaving


@pytest.mark.scenario("WR-13")
async def test_leaving_an_answer_cancels_it_and_the_next_turn_works(anyio_backend: Any) -> None:
    """One `response.cancel` is sent; what the history lacks is deleted, and the next answer is whole."""
    script = in_turn(HELLO, (Say(("Once ", "upon ", "a ")), Stall()), HELLO)
    with realtime_server(script) as server:
        async with make_model(server) as model:
            one = UserMessage("one")
            history = [one, *(await answer(model, one)).items]
            await barge_in(model, *history, UserMessage("a story"), pieces=2)
            assert (await answer(model, *history, UserMessage("stop"))).items == (AssistantMessage("Hello"),)
    (talk,) = server.talks
    assert talk.kinds().count("response.cancel") == 1
    assert talk.kinds()[-4:] == [*["conversation.item.delete"] * 2, "conversation.item.create", "response.create"]
    assert talk.texts() == ["one", "Hello", "stop", "Hello"]


async def test_what_an_answer_that_was_left_had_said_stays_paired(anyio_backend: Any) -> None:
    """Where the server has the memory, a half answer stays in it, and each of its calls gets an output."""
    script = in_turn(HELLO, (Say(("Well, ",)), Call("weather", '{"city": "Oslo"}', "c1"), Stall()), HELLO, HELLO)
    with realtime_server(script) as server:
        async with make_model(server) as model:
            first = await answer(model, UserMessage("one"))
            await barge_in(model, UserMessage("two"), pieces=3, previous_response_id=first.response_id)
            third = await answer(model, UserMessage("three"), previous_response_id=first.response_id)
            (talk,) = server.talks
            assert talk.texts() == ["one", "Hello", "two", "Well, ", "weather", NOT_RUN, "three", "Hello"]
            assert talk.unpaired() == []
            # A whole history takes the memory back: what it lacks goes.
            history = [UserMessage("one"), *first.items, UserMessage("two"), UserMessage("three"), *third.items]
            await answer(model, *history, UserMessage("four"))
            assert talk.texts() == ["one", "Hello", "two", "three", "Hello", "four", "Hello"]


async def test_a_run_that_is_asked_again_sends_nothing_twice(anyio_backend: Any) -> None:
    """The same request after an answer that was left: the half answer goes, nothing is sent again."""
    script = in_turn(HELLO, (Say(("Once ",)), Stall()), HELLO, (Say(("Twice ",)), Stall()), HELLO)
    with realtime_server(script) as server:
        async with make_model(server) as model:
            one, two = UserMessage("one"), UserMessage("two")
            first = await answer(model, one)
            await barge_in(model, one, *first.items, two)
            second = await answer(model, one, *first.items, two)
            (talk,) = server.talks
            assert talk.texts() == ["one", "Hello", "two", "Hello"]
            await barge_in(model, UserMessage("three"), previous_response_id=second.response_id)
            await answer(model, UserMessage("three"), previous_response_id=second.response_id)
    assert created(talk) == ["one", "two", "three"]
    assert talk.texts() == ["one", "Hello", "two", "Hello", "three", "Twice ", "Hello"]


@pytest.mark.parametrize("count", range(9))
async def test_an_answer_may_be_left_after_any_event(count: int, anyio_backend: Any) -> None:
    """Wherever an answer is left, the next is whole, and the server's conversation is the history and no more."""
    script = in_turn((Say(("Hel", "lo")), Call("weather", "{}", "c1")), HELLO)
    with realtime_server(script) as server:
        async with make_model(server) as model:
            async with model.stream(REQUEST) as events:
                for _ in range(count):
                    await anext(events)
            assert (await answer(model, *REQUEST.items, UserMessage("more"))).items == (AssistantMessage("Hello"),)
    (talk,) = server.talks
    assert talk.texts() == ["Hi", "more", "Hello"]


async def test_an_answer_that_ends_before_it_is_cancelled(anyio_backend: Any) -> None:
    """The error of a cancellation that comes too late isn't an error of the next answer."""
    with realtime_server(always(*HELLO)) as server:
        async with make_model(server) as model:
            async with model.stream(REQUEST) as events:
                async for event in events:
                    if isinstance(event, TextDelta):
                        await anyio.to_thread.run_sync(server.wait_idle)  # its end is on its way
                        break
            events_of_next = await ask(model, REQUEST.replace(items=(UserMessage("Hi"), UserMessage("more"))))
    assert isinstance(events_of_next[-1], ResponseDone)
    assert "response_cancel_not_active" in str([event.data for event in events_of_next if isinstance(event, Raw)])
    assert server.talks[0].texts() == ["Hi", "more", "Hello"]


async def test_a_server_that_doesnt_end_a_cancelled_answer_loses_its_connection(
    anyio_backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leaving doesn't wait for such a server; the next request takes a new connection, soon."""
    monkeypatch.setattr(line, "PROMPT", 0.05)  # the server never ends it, so a longer wait shows nothing more
    script = in_turn((Say(("Hel",)), Stall(deaf=True)), HELLO)
    with realtime_server(script) as server:
        async with make_model(server) as model:
            with anyio.fail_after(FAR):
                await barge_in(model, UserMessage("one"))
            with anyio.fail_after(FAR):
                await answer(model, UserMessage("one"), UserMessage("two"))
    assert created(server.talks[1]) == ["one", "two"]


async def test_a_hundred_cancellations_leave_nothing(anyio_backend: Any) -> None:
    """Requests that are cancelled at any moment leave the model usable, and no connection once it is left."""
    with realtime_server(always(Say(("Hel", "lo")), Stall())) as server:
        async with make_model(server) as model:
            for number in range(100):
                with anyio.move_on_after(number / 20_000):
                    await ask(model)
            server.script = always(*HELLO)
            await answer(model, *REQUEST.items)
            await anyio.to_thread.run_sync(server.wait_idle)
        await anyio.to_thread.run_sync(server.wait_closed)


# ---------------------------------------------------------------------------------------------- connections


async def test_a_connection_gives_one_answer_at_a_time(anyio_backend: Any) -> None:
    """A second request for a conversation that is in use gets a connection of its own; so does another history."""
    with realtime_server(echo) as server:
        async with make_model(server) as model:
            one = UserMessage("one")
            history = [one, *(await answer(model, one)).items]
            async with model.stream(ModelRequest(system=None, items=[*history, UserMessage("two")])) as events:
                await anext(events)
                assert (await answer(model, *history, UserMessage("2"))).items == (AssistantMessage("I heard 2"),)
                whole = [event async for event in events]
            assert whole[-1].items == (AssistantMessage("I heard two"),)  # type: ignore[union-attr]
            await answer(model, UserMessage("other"))
            assert [len(talk.items) for talk in server.talks] == [4, 4, 2]
            # The conversation that an answer continues furthest is taken.
            await answer(model, *history, UserMessage("2"), AssistantMessage("I heard 2"), UserMessage("3"))
    assert [len(talk.items) for talk in server.talks] == [4, 6, 2]


async def test_a_history_that_isnt_the_conversations_gets_another(anyio_backend: Any) -> None:
    """What one run has said is never in the conversation of a run with another history."""
    with realtime_server(echo) as server:
        async with make_model(server) as model:
            hi = UserMessage("Hi")
            first = await answer(model, hi)
            await answer(model, hi, *first.items, UserMessage("my secret"))
            await answer(model, hi, *first.items, UserMessage("who am I?"))
    assert server.talks[1].texts() == ["Hi", "I heard Hi", "who am I?", "I heard who am I?"]


async def test_connections_that_are_too_many_are_closed(anyio_backend: Any) -> None:
    """So many as asked for are kept, the latest used; a conversation without a connection gets a new one."""
    with realtime_server(echo) as server:
        async with make_model(server, idle_connections=1) as model:
            for words in ("a", "b", "c"):
                await answer(model, UserMessage(words))
            await answer(model, UserMessage("a"), AssistantMessage("I heard a"), UserMessage("again"))
            assert len(server.talks) == 4
        async with make_model(server, idle_connections=0) as model:
            await answer(model, UserMessage("a"))
            await anyio.to_thread.run_sync(server.wait_closed)
    assert created(server.talks[3]) == ["a", "I heard a", "again"]


@pytest.mark.scenario("WR-14")
async def test_a_reconnect_sends_everything_once_in_a_new_session(anyio_backend: Any) -> None:
    """A connection that ended between two requests is replaced, without an error, and the conversation sent again."""

    def restart(talk: Talk) -> None:
        if talk.number == 1:
            talk.connection.close(1011, "restart")

    with realtime_server(echo, after=restart) as server:
        async with make_model(server) as model:
            agent = Agent("a", model=model, instructions="a")
            first = await Runner.run(agent, "one")
            await anyio.to_thread.run_sync(server.wait_closed)
            second = await Runner.run(agent, [*first.to_input_list(), UserMessage("two")])
    assert second.final_output == "I heard two"
    assert second.usage.requests == 1
    assert second.raw_responses[0].model == "scripted"
    assert created(server.talks[1]) == ["one", "I heard one", "two"]
    assert server.talks[1].kinds().count("session.update") == 1


@pytest.mark.scenario("WR-14")
async def test_a_reconnect_to_the_same_session_sends_what_wasnt_acknowledged(anyio_backend: Any) -> None:
    """A server that continues a session says so by its id; then only what it may not have is sent, once."""
    with realtime_server(echo, session_id="sess_kept") as server:

        def script(talk: Talk) -> Iterator[Step]:
            if talk.number == 2:
                talk.items = server.talks[0].items | talk.items
            yield from echo(talk)

        server.script = script
        async with make_model(server) as model:
            one = UserMessage("one")
            history = [one, *(await answer(model, one)).items]
            server.talks[0].acknowledge = False
            server.script = always(Drop())
            with pytest.raises(ModelTransportError):
                await answer(model, *history, UserMessage("two"))
            server.script = script
            await answer(model, *history, UserMessage("two"))
    assert [created(talk) for talk in server.talks] == [["one", "two"], ["two"]]


class BrokenStream(ByteStream):
    """A stream whose other end is gone."""

    async def send(self, item: bytes) -> None:
        await checkpoint()
        raise anyio.BrokenResourceError

    async def receive(self, max_bytes: int = 65_536) -> bytes:
        raise NotImplementedError

    async def send_eof(self) -> None:
        raise NotImplementedError

    async def aclose(self) -> None:
        await checkpoint()


async def test_a_write_that_fails_is_a_typed_error(anyio_backend: Any) -> None:
    """Writes mostly fail one too late, when the end has been read; this one fails itself. Closing is quiet."""
    protocol = ClientProtocol(parse_uri("ws://h"), state=State.OPEN)
    socket = WebSocket(BrokenStream(), protocol, "h", str)
    assert await socket.check(1) is False
    socket.intact = True
    with pytest.raises(ModelTransportError, match="h broke the connection"):
        await socket.send("{}")
    socket.intact = True
    await socket.aclose()
    assert not socket.intact


async def test_an_expired_session_is_replaced(anyio_backend: Any) -> None:
    """The vendor ends a session after an hour; the next request has a new one, without an error."""

    def expire(talk: Talk) -> None:
        if talk.number == 1:
            talk.fail("session_expired", {})

    with realtime_server(echo, after=expire) as server:
        async with make_model(server) as model:
            one = UserMessage("one")
            history = [one, *(await answer(model, one)).items]
            await answer(model, *history, UserMessage("two"))
    assert created(server.talks[1]) == ["one", "I heard one", "two"]


@pytest.mark.parametrize("alive", [True, False])
async def test_a_connection_that_was_long_unused_is_checked(alive: bool, anyio_backend: Any) -> None:
    """A ping finds out whether such a connection still works; else nothing is sent over it."""
    target, patience = Target({}, {}), Patience(5, 5, 5)
    with realtime_server(echo) as server:
        model = make_model(server)
        line = Line(model._open_connection, "m", stale_after=-1)
        items: list[Item] = [UserMessage("one")]
        for _ in range(2):
            request = ModelRequest(system=None, items=items)
            adopt(line.conversation, request)
            answer = await line.ask(request, encode_session(request), target, patience)
            items += [event async for event in answer][-1].items  # type: ignore[union-attr]
            await line.leave(answer)
            items.append(UserMessage("two"))
            if not alive:
                server.talks[0].connection.close()
        await line.aclose()
        assert len(server.talks) == (1 if alive else 2)
        assert server.talks[0].kinds().count("response.create") == (2 if alive else 1)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a key and a certificate of this machine, which nobody else trusts."""
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    pem = serialization.Encoding.PEM
    path.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain) + built.public_bytes(pem))
    return path


async def test_connections_are_encrypted(certificate: Path, anyio_backend: Any) -> None:
    """A server with a certificate that the given context trusts is used, another is refused."""
    at_server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    at_server.load_cert_chain(certificate)
    with realtime_server(echo, tls=at_server) as server:
        trusting = ssl.create_default_context(cafile=certificate)
        async with make_model(server, ssl_context=trusting) as model:
            assert (await answer(model, UserMessage("one"))).items == (AssistantMessage("I heard one"),)
            await barge_in(model, UserMessage("two"))
        async with make_model(server) as model:
            with pytest.raises(ModelTransportError, match="No connection to 127"):
                await answer(model, UserMessage("one"))


async def test_a_server_that_dies_ends_nothing_but_the_request_that_meets_it(anyio_backend: Any) -> None:
    """While nobody asks, a dead server isn't noticed; a request gets a typed error, and the block continues."""
    with realtime_server(echo) as server:
        model = make_model(server)
        await model.__aenter__()
        await answer(model, UserMessage("one"))
    try:
        await checkpoint()
        with pytest.raises(ModelTransportError, match=r"No connection to 127\.0\.0\.1"):
            await answer(model, UserMessage("one"), AssistantMessage("I heard one"), UserMessage("two"))
        await checkpoint()
    finally:
        await model.__aexit__(None, None, None)


async def test_an_answer_may_outlive_its_model(anyio_backend: Any) -> None:
    """An answer that is read while the model is left can be read to its end; its connection is closed then."""
    with realtime_server(always(*HELLO)) as server:
        async with make_model(server) as model:
            stream = model.stream(REQUEST)
            events = await stream.__aenter__()
        assert [event async for event in events][-1].items == (AssistantMessage("Hello"),)  # type: ignore[union-attr]
        await stream.__aexit__(None, None, None)
        await anyio.to_thread.run_sync(server.wait_closed)


# ---------------------------------------------------------------------------------------------- failures

ERROR = {"type": "error", "error": {"type": "server_error", "code": None, "message": f"broken {KEY}"}}
LIMIT = {"type": "rate_limit_error", "code": "rate_limit_exceeded", "message": "slow down"}
FAILED = {"type": "failed", "error": LIMIT}


def frame(first: int, length: int, data: bytes = b"") -> Frame:
    """Return a frame that says that it has that length."""
    return Frame(bytes([first, 127]) + length.to_bytes(8, "big") + data)


def behaved(match: str) -> tuple[type[Exception], str]:
    return ModelBehaviorError, match


def transported(match: str) -> tuple[type[Exception], str]:
    return ModelTransportError, match


FAULTS: dict[str, tuple[tuple[Step, ...], tuple[type[Exception], str]]] = {
    "error": ((Emit(ERROR),), transported(r"answered with an error: broken \*\*\*")),
    "error later": ((*HELLO, Emit(ERROR)), transported(r"broke the response off: broken \*\*\*")),
    "failed": ((End("failed", FAILED),), transported("slow down")),
    "failed later": ((*HELLO, End("failed", FAILED)), transported("slow down")),
    "cancelled": (
        (End("cancelled", {"reason": "turn_detected"}),),
        transported(r"it was cancelled \(turn_detected\)"),
    ),
    "cut in a call": (
        (Call("weather", '{"ci'), End("incomplete", {"reason": "max_output_tokens"})),
        behaved("cut \\(length\\) within a call of 'weather'"),
    ),
    "no name": ((Call(""),), behaved("without naming it")),
    "dropped": ((Say(("Hel",)), Drop()), transported("broke the connection")),
    "closed": ((Say(("Hel",)), Drop(1011, f"internal {KEY}")), transported(r"code 1011: internal \*\*\*")),
    "reset": ((Say(("Hel",)), Drop(reset=True)), transported("broke the connection")),
    "silent": ((Say(("Hel",)), Stall()), transported("silent for 1 s")),
    "silent from the start": ((Stall(),), transported("silent for 1 s")),
    "binary": ((Text(b"\x00\x01"),), behaved("expected a text message, got a binary one")),
    "no JSON": ((Text("<html>"),), behaved("isn't a JSON object: '<html>'")),
    "no object": ((Text("[]"),), behaved("isn't a JSON object")),
    "deep": ((Text("[" * 100_000),), behaved("isn't a JSON object")),
    "no UTF-8": ((Frame(b"\x81\x02\xff\xff"),), behaved("isn't UTF-8")),
    "a frame that is none": ((Frame(b"\xff\xff\xff\xff"),), behaved("broke the WebSocket protocol")),
    "a masked frame": ((Frame(b"\x81\x81abcd0"),), behaved("broke the WebSocket protocol")),
    "a huge frame": ((frame(0x81, 1 << 40, b"x"),), behaved("a message that is too long")),
    "huge in fragments": (
        (frame(0x01, 15_000_000, b" " * 15_000_000), frame(0x80, 15_000_000)),
        behaved("a message that is too long"),
    ),
    "output that is no list": (
        (Emit({"type": "response.done", "response": {"id": "resp_1_1", "output": 1}}),),
        behaved("output aren't a list"),
    ),
}


PATIENCE = {
    "silent": {"timeouts": ModelTimeouts(read=1.0)},
    "silent from the start": {"timeouts": ModelTimeouts(first_output=1.0)},
}
"""Only a server that says nothing more is given up by the clock: a busy machine may take longer for all else."""


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_fault_of_the_server_is_a_typed_error(fault: str, anyio_backend: Any) -> None:
    """Each fault is told in time by its documented error, without the key; the next request works."""
    steps, (kind, words) = FAULTS[fault]
    with realtime_server(in_turn(steps, HELLO)) as server:
        async with make_model(server, **PATIENCE.get(fault, {})) as model:
            with anyio.fail_after(FAR), pytest.raises(kind, match=words) as caught:
                await ask(model)
            assert KEY not in f"{caught.value!r} {caught.value}"
            if "silent" in fault:
                assert caught.value.code == SILENT  # type: ignore[attr-defined]
            assert (await answer(model, *REQUEST.items)).items == (AssistantMessage("Hello"),)


@pytest.mark.scenario("SM-13")
@pytest.mark.parametrize("piece", [frame(0x00, 0), frame(0x00, 1, b" ")], ids=["empty", "of one byte"])
async def test_a_message_has_a_bounded_number_of_fragments(
    piece: Frame, monkeypatch: pytest.MonkeyPatch, anyio_backend: Any
) -> None:
    """Each is work, and it may hold nothing: a message without an end is an error, and the next request works."""
    monkeypatch.setattr(_websocket, "MOST_FRAGMENTS", 500)
    steps = (frame(0x01, 0), Frame(piece.data * 500))
    with realtime_server(in_turn(steps, HELLO)) as server:
        async with make_model(server) as model:
            with pytest.raises(ModelBehaviorError, match="a message of more than 500 fragments"):
                await ask(model)
            assert (await answer(model, *REQUEST.items)).items == (AssistantMessage("Hello"),)


async def test_a_message_may_come_in_fragments(anyio_backend: Any) -> None:
    """Empty ones among them, and a ping between two."""
    text = json.dumps({"type": "rate_limits.updated", "of": "é" * 300}).encode()
    pieces = [frame(0x00, 1, text[n : n + 1]).data + frame(0x00, 0).data for n in range(len(text))]
    whole = [frame(0x01, 0).data, *pieces[:99], b"\x89\x00", *pieces[99:], frame(0x80, 0).data]
    with realtime_server(always(Frame(b"".join(whole)), *HELLO)) as server:
        async with make_model(server) as model:
            events = await ask(model)
    assert Raw(json.loads(text)) in events
    assert isinstance(events[-1], ResponseDone)


@pytest.mark.slow
@pytest.mark.parametrize("steps", [(Stall(),), (Say(("Hel",)), Stall())], ids=["at once", "begun"])
async def test_a_whole_answer_has_its_time(steps: tuple[Step, ...], anyio_backend: Any) -> None:
    """Where that ends before the time for an event, it is what the error names; the next request works."""
    with realtime_server(in_turn(steps, HELLO)) as server:
        async with make_model(server, timeouts=ModelTimeouts(total=1.0)) as model:
            with anyio.fail_after(FAR), pytest.raises(ModelTransportError, match="isn't complete after") as caught:
                await ask(model)
            assert caught.value.code == "answer_timeout"
            assert (await answer(model, *REQUEST.items)).items == (AssistantMessage("Hello"),)


@pytest.mark.parametrize(
    ("step", "requests"),
    [
        (Emit(ERROR), 2),
        (End("failed", FAILED), 2),
        (Drop(), 2),
        (Drop(1008, "no"), 1),
        (Emit({"type": "error", "error": {"type": "invalid_request_error", "code": "bad", "message": "no"}}), 1),
    ],
    ids=["error", "limit", "dropped", "refused", "invalid"],
)
async def test_retries_are_decided_as_with_other_models(step: Step, requests: int, anyio_backend: Any) -> None:
    """What a second try may help with is asked again; what the server refuses for good isn't."""
    retry = ModelRetrySettings(max_retries=1, initial_delay=0)
    with realtime_server(in_turn((step,), HELLO)) as server:
        async with make_model(server) as model:
            agent = Agent("a", model=model, model_settings=ModelSettings(retry=retry))
            if requests == 2:
                assert (await Runner.run(agent, "Hi")).final_output == "Hello"
            else:
                with pytest.raises(ModelTransportError):
                    await Runner.run(agent, "Hi")
    assert len(server.every("response.create")) == requests


async def test_a_cut_answer_says_so(anyio_backend: Any) -> None:
    """A limit or a filter that ended the answer is its finish reason."""
    details = {"type": "incomplete", "reason": "max_output_tokens"}
    with realtime_server(always(*HELLO, End("incomplete", details, output=False))) as server:
        async with make_model(server) as model:
            done = await answer(model, UserMessage("Hi"))
    assert done.finish_reason == "length"
    assert done.items == (AssistantMessage("Hello"),)  # from the items that came one by one


REFUSALS = {
    401: transported("answered 401: bad key"),
    429: transported("answered 429: bad key"),
    302: transported("answered 302: sent on to another place"),
    200: transported("answered 200"),
}


@pytest.mark.parametrize("status", REFUSALS)
async def test_a_refused_handshake_is_a_typed_error(status: int, anyio_backend: Any) -> None:
    """The error has the status, the code and the time to wait; the key that the server repeats isn't in it."""
    body = json.dumps({"error": {"message": f"bad key {KEY}", "code": "bad_key"}}).encode()
    headers = Headers({"Retry-After": "7", "Content-Length": str(len(body)), "X-Request-Id": "q", "Location": "/x"})
    kind, words = REFUSALS[status]
    with realtime_server(always(*HELLO)) as server:
        server.refusals.append(Response(status, "No", headers, body))
        async with make_model(server) as model:
            with pytest.raises(kind, match=words) as caught:
                await ask(model)
            await answer(model, *REQUEST.items)
    error = caught.value
    assert isinstance(error, ModelTransportError)
    assert (error.status, error.retry_after, error.request_id) == (status, 7, "q")
    assert KEY not in f"{error!r} {error}"


RESET = b"reset"


@contextmanager
def raw_server(reply: bytes | None) -> Iterator[str]:
    """Serve one connection: *reply* to whatever comes and the end (a reset: `RESET`), or nothing (None)."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        stop = threading.Event()

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65_536)
                if reply is RESET:
                    reset_connection(connection)
                elif reply is not None:
                    connection.sendall(reply)
                else:
                    stop.wait()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"ws://127.0.0.1:{server.getsockname()[1]}"
        finally:
            stop.set()
            thread.join()


@pytest.mark.parametrize(
    ("reply", "kind", "words"),
    [
        (b"", ModelTransportError, "broke the connection"),
        (RESET, ModelTransportError, "broke the connection"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", ModelBehaviorError, "isn't a WebSocket server"),
        (b"HTTP/1.1 101 Yes\r\nUpgrade: tea\r\nConnection: Upgrade\r\n\r\n", ModelBehaviorError, "isn't a WebSocket"),
        (b"x" * 100_000, ModelBehaviorError, "isn't a WebSocket server"),
        (None, ModelTransportError, "took too long, 0.2 s to connect"),
    ],
    ids=["nothing", "a reset", "no HTTP", "another protocol", "garbage", "silence"],
)
async def test_a_server_of_another_kind_is_a_typed_error(
    reply: bytes | None, kind: type[Exception], words: str, anyio_backend: Any
) -> None:
    """Whatever answers in place of a WebSocket server, the error says so, in time."""
    with raw_server(reply) as url:
        # Only silence takes the time to connect; on a busy machine every other answer may need longer than that.
        seconds = 0.2 if reply is None else FAR
        async with RealtimeModel("m", base_url=url, timeouts=ModelTimeouts(connect=seconds)) as model:
            with anyio.fail_after(FAR), pytest.raises(kind, match=words):
                await ask(model)


@pytest.mark.parametrize("first", [ERROR, {"type": "session.updated"}, {"type": "session.created", "session": None}])
async def test_a_session_that_doesnt_begin_is_a_typed_error(first: Any, anyio_backend: Any) -> None:
    """A server that refuses the model, or doesn't say that there is a session."""
    with realtime_server(always(*HELLO)) as server:

        def serve(talk: Talk) -> None:
            talk.connection.send(json.dumps(first))
            talk.connection.recv()

        server.serve = serve
        async with make_model(server) as model:
            with pytest.raises((ModelTransportError, ModelBehaviorError)) as caught:
                await ask(model)
    assert KEY not in str(caught.value)


def greet(talk: Talk) -> None:
    talk.send("session.created", session={"id": None})


def greet_and_listen(talk: Talk) -> None:
    greet(talk)
    while True:
        talk.connection.recv()


def greet_and_drop(talk: Talk) -> None:
    greet(talk)
    talk.connection.recv()
    raise ConnectionError


def greet_and_close(talk: Talk) -> None:
    event = {"type": "session.created", "session": {"id": "s"}}
    talk.connection.socket.sendall(text_frame(event) + GOODBYE)
    talk.connection.recv()


@pytest.mark.parametrize(
    ("serve", "words"),
    [
        (greet_and_listen, "silent for 0.2 s"),
        (greet_and_drop, "closed the connection, code 1000"),
        (greet_and_close, "closed the connection, code 1001"),
    ],
)
async def test_a_new_connection_is_not_replaced(serve: Any, words: str, anyio_backend: Any) -> None:
    """A server that ends each connection, or never answers, is met once in an attempt."""
    with realtime_server(always(*HELLO), serve=serve) as server:
        patience = {"timeouts": ModelTimeouts(first_output=0.2)} if serve is greet_and_listen else {}
        async with make_model(server, **patience) as model:
            with pytest.raises(ModelTransportError, match=words):
                await ask(model)
        assert len(server.talks) == 1


async def test_a_connection_that_ends_with_an_answer_is_replaced(anyio_backend: Any) -> None:
    """The goodbye came with the last event; the next request takes another connection at once."""

    def say_goodbye(talk: Talk) -> None:
        if talk.number == 1:
            talk.connection.socket.sendall(text_frame({"type": "last"}) + GOODBYE)

    with realtime_server(always(*HELLO), after=say_goodbye) as server:
        async with make_model(server) as model:
            await answer(model, *REQUEST.items)
            await answer(model, *REQUEST.items, AssistantMessage("Hello"), UserMessage("more"))
            assert len(server.talks) == 2


async def test_leaving_an_answer_of_a_connection_that_has_ended(anyio_backend: Any) -> None:
    """There is nothing to cancel; the next answer has a new connection."""
    piece = {"type": "response.output_text.delta", "response_id": "resp_1_1", "delta": "Hel"}
    script = in_turn((Frame(text_frame(piece) + GOODBYE), Stall()), HELLO)
    with realtime_server(script) as server:
        async with make_model(server) as model:
            await barge_in(model, UserMessage("one"))
            await answer(model, UserMessage("one"), UserMessage("two"))
    assert server.every("response.cancel") == []
    assert created(server.talks[1]) == ["one", "two"]


async def test_a_connection_that_breaks_after_a_cancellation_is_replaced(anyio_backend: Any) -> None:
    """The rest of the answer that was left can't be read any more, which is no error of the next."""
    with realtime_server(in_turn((Say(("Hel",)), Stall(deaf=True)), HELLO)) as server:
        async with make_model(server) as model:
            await barge_in(model, UserMessage("one"))
            server.talks[0].connection.socket.shutdown(socket.SHUT_RDWR)
            await answer(model, UserMessage("one"), UserMessage("two"))
    assert len(server.talks) == 2


@pytest.mark.slow
async def test_an_answer_without_end_is_bounded(anyio_backend: Any) -> None:
    """Not only a message is bounded, but all messages of an answer."""
    flood = [Emit({"type": "flood", "padding": "x" * 8_000_000})] * 10
    with realtime_server(always(*flood)) as server:
        async with make_model(server) as model:
            with pytest.raises(ModelBehaviorError, match="more than 64,000,000 characters"):
                await ask(model)


async def test_events_of_another_response_are_not_of_this_answer(anyio_backend: Any) -> None:
    """Events that come late, or out of order, are shown and don't count."""
    late = {"type": "response.output_text.delta", "response_id": "resp_1_1", "delta": "late"}
    unknown = {"type": "response.output_text.delta", "response_id": "resp_9_9", "delta": "unknown"}
    script = in_turn(HELLO, (Emit(late), Say(("Hel",)), Emit(unknown), Emit(late), Say(("lo",))))
    with realtime_server(script) as server:
        async with make_model(server) as model:
            first = await answer(model, *REQUEST.items)
            events = await ask(model, REQUEST.replace(items=(*REQUEST.items, *first.items, UserMessage("more"))))
    assert [event.text for event in events if isinstance(event, TextDelta)] == ["Hel", "lo"]
    assert sum("late" in str(event.data) for event in events if isinstance(event, Raw)) == 2
    assert events[-1].items == (AssistantMessage("Hel"), AssistantMessage("lo"))  # type: ignore[union-attr]


async def test_no_key_is_in_a_log(caplog: pytest.LogCaptureFixture, anyio_backend: Any) -> None:
    """Also at level DEBUG, where the WebSocket library would log the headers of its handshake."""
    with caplog.at_level(logging.DEBUG), realtime_server(always(*HELLO)) as server:
        async with make_model(server) as model:
            await answer(model, *REQUEST.items)
            assert KEY not in repr(model)
    ours = [record for record in caplog.records if record.name != "websockets.server"]  # the test's own server
    assert KEY not in "\n".join(record.getMessage() for record in ours)


# ---------------------------------------------------------------------------------------------- misuse


@pytest.mark.parametrize(
    ("make", "kind", "words"),
    [
        (lambda: RealtimeModel(1), UserTypeError, "name: expected text"),  # type: ignore[arg-type]
        (lambda: RealtimeModel(""), UserValueError, "name: expected the model's name"),
        (lambda: RealtimeModel("m", base_url="ftp://x"), UserValueError, "base_url"),
        (lambda: RealtimeModel("m", api_key="a b"), UserValueError, "api_key"),
        (lambda: RealtimeModel("m", idle_connections=-1), UserValueError, "idle_connections"),
        (lambda: RealtimeModel("m", timeouts=ModelTimeouts(first_output=0)), UserValueError, "first_output"),
    ],
)
def test_wrong_arguments_are_named(make: Callable[[], object], kind: type[Exception], words: str) -> None:
    """A wrong argument raises when the model is made."""
    with pytest.raises(kind, match=words):
        make()


async def test_a_model_must_be_entered_and_have_its_key(monkeypatch: pytest.MonkeyPatch, anyio_backend: Any) -> None:
    """The errors name what is missing."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    model = RealtimeModel("m")
    assert (model.base_url, model.is_open) == ("https://api.openai.com/v1", False)
    with pytest.raises(UserError, match="isn't entered"):
        await ask(model)
    with pytest.raises(UserError, match="Set the environment variable OPENAI_API_KEY"):
        async with model:
            pass


async def test_the_extra_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch, anyio_backend: Any) -> None:
    """Without the library the model can be made, and entering it says what to install."""
    monkeypatch.setitem(sys.modules, "websockets", None)
    with pytest.raises(UserError, match=r"pip install 'agentloop-anyio\[realtime\]'"):
        async with RealtimeModel("m", api_key=KEY):
            pass


async def test_a_request_that_has_no_form_leaves_the_conversation_as_it_was(anyio_backend: Any) -> None:
    """A misuse is told before anything is sent, and costs no connection."""
    with realtime_server(echo) as server:
        async with make_model(server) as model:
            one = UserMessage("one")
            history = [one, *(await answer(model, one)).items]
            with pytest.raises(UserError, match="ToolCall has no form in a realtime session"):
                await answer(model, *history, ToolCall("c", "patch", "free text", kind="custom"))
            with pytest.raises(UserTypeError, match="can't be written as JSON"):
                await answer(model, *history, settings=ModelSettings(extra_args={"x": object()}))
            await answer(model, *history, UserMessage("two"))
    assert server.talks[-1].texts() == ["one", "I heard one", "two", "I heard two"]


# ---------------------------------------------------------------------------------------------- all at once


@pytest.mark.backends("asyncio")
async def test_a_native_cancellation_leaves_nothing(anyio_backend: Any) -> None:
    """A task that the event loop's own means cancel, at any moment of an answer, leaves a usable model."""
    with realtime_server(always(Say(("Hel", "lo")), Stall())) as server:
        async with make_model(server) as model:
            for number in range(20):
                task = asyncio.create_task(ask(model))
                await anyio.sleep(number / 4_000)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            server.script = always(*HELLO)
            await answer(model, *REQUEST.items)
        await anyio.to_thread.run_sync(server.wait_closed)


ACCIDENTS: list[Step] = [
    *(Stall(), Stall(deaf=True), Drop(), Drop(1011, "restart"), Emit(ERROR), End("failed"), Text("<"), Text(b"x")),
    *(Frame(b"\xff\xff\xff"), End("incomplete", {"reason": "max_output_tokens"})),
]


def wire_text(item: Item) -> str:
    match item:
        case ToolCall(name=name):
            return name
        case ToolOutput(output=output):
            return str(output)
        case _:
            return item.text  # type: ignore[union-attr]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
async def test_an_answer_is_always_one_to_the_history_and_no_more(seed: int, anyio_backend: Any) -> None:
    """Three runs at once, with accidents of the server, answers that are left and requests that are cancelled: whenever
    an answer is complete, a conversation of the server is the history of its request and that answer. Errors are typed.
    """
    chance, fate = random.Random(seed), random.Random(~seed)  # the client's and the server's

    def script(talk: Talk) -> list[Step]:
        steps: list[Step] = [Say(("a", "b", "c")), *([Call("look", '{"a": 1}')] if fate.random() < 0.4 else [])]
        if fate.random() < 0.4:
            steps.insert(fate.randrange(len(steps) + 1), fate.choice(ACCIDENTS))
        return steps

    def after(talk: Talk) -> None:
        if fate.random() < 0.15:
            talk.connection.socket.shutdown(socket.SHUT_RDWR)

    async def ask_once(model: RealtimeModel, history: list[Item]) -> list[Item]:
        """Return the history after a request for it, whatever becomes of that."""
        request = ModelRequest(system=chance.choice("ab"), items=list(history))
        kind, most, done = chance.random(), chance.randrange(1, 12), None
        with (
            suppress(ModelTransportError, ModelBehaviorError),
            anyio.move_on_after(chance.random() / 50 if kind < 0.3 else None),
        ):
            async with model.stream(request) as events:
                async for event in events:
                    most -= 1
                    if isinstance(event, ResponseDone):
                        done = event
                    if kind > 0.7 and not most:
                        break
        if done is None:
            return history
        wanted = [wire_text(item) for item in (*history, *done.items)]
        assert wanted in [talk.texts() for talk in server.talks]
        outputs = [ToolOutput(item.call_id, "out") for item in done.items if isinstance(item, ToolCall)]
        return [*history, *done.items, *outputs]

    async def ask_often(model: RealtimeModel) -> None:
        history: list[Item] = []
        for number in range(25):
            history = await ask_once(model, [*(history if chance.random() < 0.9 else []), UserMessage(f"{number}")])

    with realtime_server(script, after=after) as server:
        patience = {"timeouts": ModelTimeouts(first_output=0.1, read=0.1)}
        async with make_model(server, idle_connections=seed, **patience) as model, anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(ask_often, model)
        await anyio.to_thread.run_sync(server.wait_closed)
