"""Servers that misbehave, over real sockets: each gives its documented outcome in time, for every interface."""

import gzip
import time
from email.utils import formatdate
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from edges.chat_fixture import chat_bytes
from edges.messages_fixture import WHOLE, wire
from edges.responses_fixture import CALL, MESSAGE, make_stream
from edges.responses_fixture import wire as responses_wire
from edges.wire_server import LAST_CHUNK, SSE_HEAD, Answer, Exchange, chunked, serving
from kit.work import counting_turns

from agentloop import Agent, Runner, tool
from agentloop.exceptions import ModelBehaviorError, ModelTimeoutError, ModelTransportError
from agentloop.items import ToolCall, UserMessage
from agentloop.model_events import ModelRequest, ResponseDone
from agentloop.models import AnthropicModel, ModelTimeouts, OpenAIChatModel, OpenAIResponsesModel
from agentloop.models._http_model import HttpModel
from agentloop.settings import ModelRetrySettings, ModelSettings

pytestmark = pytest.mark.real_clock

KEY = "sk-very-secret-0123456789"
REQUEST = ModelRequest(system=None, items=(UserMessage("Hi"),))
PLAIN_CALL = {name: value for name, value in CALL.items() if name not in ("namespace", "caller")}
RESPONSE = [
    MESSAGE,
    PLAIN_CALL | {"arguments": '{"where": "here"}'},
    PLAIN_CALL | {"id": "fc_2", "call_id": "call_2", "name": "now", "arguments": "{}"},
]
MODELS: dict[type[HttpModel], bytes] = {
    OpenAIResponsesModel: responses_wire(make_stream(RESPONSE)),
    OpenAIChatModel: chat_bytes(),
    AnthropicModel: wire(WHOLE),
}
"""Each interface, and one whole answer in it: a message, then calls of `look` and `now`."""
FIRST_CALL = {OpenAIResponsesModel: b"call_1", OpenAIChatModel: b"c1", AnthropicModel: b"toolu_1"}
"""The server's id of the first call."""
LIMIT = 120.0
"""Seconds in which every outcome has to come."""


@pytest.fixture(params=MODELS, ids=lambda kind: kind.__name__)
def kind(request: pytest.FixtureRequest) -> Any:
    """An interface."""
    return request.param


async def outcome(kind: Any, answer: Answer, **options: Any) -> ResponseDone | Exception:
    """Return the end of the answer of a server that answers so, or the error: a nursery would wrap that."""
    done: Any = None
    with anyio.fail_after(LIMIT):
        async with serving(answer) as url, kind("m", base_url=url, api_key=KEY, **options) as model:
            try:
                async with model.stream(REQUEST) as events:
                    async for event in events:
                        done = event
            except (ModelTransportError, ModelBehaviorError) as error:
                return error
    assert isinstance(done, ResponseDone)
    return done


async def ask(kind: Any, answer: Answer, **options: Any) -> ResponseDone:
    """Return the end of the answer of a server that answers so."""
    done = await outcome(kind, answer, **options)
    assert isinstance(done, ResponseDone), done
    return done


async def failure(kind: Any, answer: Answer, **options: Any) -> Exception:
    """Return the error of a server that answers so. It holds no key."""
    error = await outcome(kind, answer, **options)
    assert isinstance(error, Exception), error
    assert KEY not in f"{error} {error!r}"
    return error


def head(status: str, *headers: str) -> bytes:
    """Return the head of an answer, without a body unless a header says how long it is."""
    length = () if any("content-length" in line or "chunked" in line for line in headers) else ("content-length: 0",)
    return "\r\n".join([f"HTTP/1.1 {status}", *headers, *length, "", ""]).encode()


def once(*pieces: bytes) -> Answer:
    """Return the answer that sends *pieces*, then closes the connection."""

    async def answer(exchange: Exchange) -> None:
        for piece in pieces:
            await exchange.send(piece)
        await exchange.connection.aclose()

    return answer


SSE = "content-type: text/event-stream"
CHUNKED = "transfer-encoding: chunked"


# ---------------------------------------------------------------------------------------------- it drops


@pytest.mark.parametrize(
    "sent",
    [b"", b"HTTP/1.1 200", b"nonsense\r\n\r\n", head("200 OK", SSE, "x: " + "y" * 200_000), b"HTTP/1.1 200 OK\r\n\r"],
    ids=["at once", "in the status", "no HTTP", "headers without end", "in the head"],
)
async def test_a_connection_that_ends_before_the_answer_is_a_transport_error(kind: Any, sent: bytes) -> None:
    """There was no status, so a retry may help."""
    error = await failure(kind, once(sent))
    assert isinstance(error, ModelTransportError)
    assert error.status is None


@pytest.mark.scenario("WR-02")
@pytest.mark.parametrize("place", [0, 40, -40])
@pytest.mark.parametrize("framing", ["chunked", "length", "close"])
async def test_a_connection_that_ends_within_the_answer_is_an_error(kind: Any, place: int, framing: str) -> None:
    """However the body is framed: a short answer would look like a whole one."""
    whole = MODELS[kind].removesuffix(b"data: [DONE]\n\n")
    body = whole[: place or 1] if place >= 0 else whole[: len(whole) // 2]
    if framing == "chunked":
        sent = SSE_HEAD + chunked(body)
    elif framing == "length":
        sent = head("200 OK", SSE, f"content-length: {len(whole)}") + body
    else:
        sent = head("200 OK", SSE, "connection: close", f"content-length: {len(body)}") + body
    await failure(kind, once(sent))


async def test_a_broken_framing_is_a_transport_error(kind: Any) -> None:
    """The chunk says another length than it has."""
    error = await failure(kind, once(SSE_HEAD + b"zz\r\nnonsense\r\n"))
    assert isinstance(error, ModelTransportError)


# ---------------------------------------------------------------------------------------------- it stalls


@pytest.mark.parametrize("sent", [b"", SSE_HEAD, SSE_HEAD + chunked(b": ping\n\n")], ids=["head", "body", "output"])
async def test_a_server_that_stalls_before_its_first_output_is_left_in_time(kind: Any, sent: bytes) -> None:
    """The code tells it from a server that wasn't reached."""

    async def answer(exchange: Exchange) -> None:
        await exchange.send(sent)
        await exchange.gone()
        raise anyio.EndOfStream

    error = await failure(kind, answer, timeouts=ModelTimeouts(first_output=0.2))
    assert isinstance(error, ModelTransportError)
    assert error.code == "silence_timeout"


async def test_a_server_that_stalls_within_its_answer_is_left_in_time(kind: Any) -> None:
    """After output the shorter limit holds."""

    async def answer(exchange: Exchange) -> None:
        await exchange.send(SSE_HEAD + chunked(MODELS[kind][: len(MODELS[kind]) // 2]))
        await exchange.gone()
        raise anyio.EndOfStream

    error = await failure(kind, answer, timeouts=ModelTimeouts(first_output=60, read=0.2))
    assert isinstance(error, ModelTransportError)
    assert error.code == "silence_timeout"


async def test_an_answer_in_single_bytes_is_whole(kind: Any) -> None:
    """A slow drip is an answer like any other, whatever the pieces."""

    async def answer(exchange: Exchange) -> None:
        await exchange.send(SSE_HEAD)
        for byte in MODELS[kind]:
            await exchange.send(chunked(bytes([byte])))
        await exchange.send(LAST_CHUNK)

    whole = await ask(kind, once(SSE_HEAD + chunked(MODELS[kind]) + LAST_CHUNK))
    assert await ask(kind, answer) == whole
    assert sum(isinstance(item, ToolCall) for item in whole.items) == 2


@pytest.mark.parametrize("begun", [False, True], ids=["before its output", "within its output"])
async def test_an_answer_that_drips_without_end_is_left_by_itself(kind: Any, begun: bool) -> None:
    """Without a time for the attempt: each piece comes in time, and the time for the whole answer ends it."""

    async def answer(exchange: Exchange) -> None:
        events = MODELS[kind].split(b"\n\n")
        half = b"\n\n".join([*events[: len(events) // 2], b""])
        await exchange.send(SSE_HEAD + (chunked(half) if begun else b""))
        while True:
            await exchange.send(chunked(b": ping\n\n"))
            await anyio.lowlevel.checkpoint()

    error = await failure(kind, answer, timeouts=ModelTimeouts(total=0.3))
    assert isinstance(error, ModelTransportError)
    assert (error.code, error.should_retry) == ("answer_timeout", False)


@pytest.mark.parametrize("noise", [b": ping\n\n", b"data: {}\n\n"])
async def test_an_answer_without_end_is_left_after_the_time_for_an_attempt(kind: Any, noise: bytes) -> None:
    """Pings and empty events keep a connection, not a request."""

    async def answer(exchange: Exchange) -> None:
        await exchange.send(SSE_HEAD)
        while True:
            await exchange.send(chunked(noise))
            await anyio.lowlevel.checkpoint()

    settings = ModelSettings(timeout=0.3, retry=ModelRetrySettings(max_retries=0))
    with anyio.fail_after(LIMIT):
        async with serving(answer) as url, kind("m", base_url=url) as model:
            with pytest.raises(ModelTimeoutError):
                await Runner.run(Agent("a", model=model, model_settings=settings), "Hi")


@pytest.mark.slow
async def test_an_answer_of_any_size_is_left_at_the_bound(kind: Any) -> None:
    """A body may have 64 MB, unpacked; one of nothing but spaces is small when packed. Other tasks go on meanwhile."""
    body = gzip.compress(b": " + b" " * 1_000_000 + b"\n") * 70  # members of one file may follow each other
    sent = head("200 OK", SSE, "content-encoding: gzip", f"content-length: {len(body)}") + body
    async with counting_turns() as turns:
        error = await failure(kind, once(sent))
    assert isinstance(error, ModelBehaviorError)
    assert "longer than 64000000 bytes" in str(error)
    assert turns.count > 500


# ---------------------------------------------------------------------------------------------- it answers wrong


@pytest.mark.parametrize(("status", "code"), [("429 Too Many", "slow"), ("529 Overloaded", "busy"), ("503 No", None)])
@pytest.mark.parametrize("ahead", [1000, -100, None])
async def test_a_refusal_has_its_status_and_the_wait_that_it_asks_for(
    kind: Any, status: str, code: str | None, ahead: int | None
) -> None:
    """A date in the past means at once; a body that is no JSON is quoted."""
    body = b'{"error": {"message": "no", "code": "%s"}}' % code.encode() if code else b"<busy>"
    sent = time.time()
    wait = [] if ahead is None else [f"retry-after: {formatdate(sent + ahead, usegmt=True)}"]
    error = await failure(kind, once(head(status, *wait, f"content-length: {len(body)}") + body))
    assert isinstance(error, ModelTransportError)
    assert (error.status, error.code) == (int(status[:3]), code)
    if ahead is None:
        assert error.retry_after is None
    elif ahead < 0:
        assert error.retry_after == 0
    else:  # a date has whole seconds, and the answer took some time
        assert error.retry_after is not None
        assert sent + ahead - 1 - time.time() <= error.retry_after <= ahead


async def test_a_refusal_that_echoes_the_key_does_not_show_it(kind: Any) -> None:
    """Some servers quote the key that they refuse."""
    body = b'{"error": {"message": "Incorrect API key provided: %s"}}' % KEY.encode()
    error = await failure(kind, once(head("401 No", f"content-length: {len(body)}") + body))
    assert "***" in str(error)


@pytest.mark.parametrize("part", [0.05, 0.5])
async def test_a_packed_answer_that_is_cut_is_an_error(kind: Any, part: float) -> None:
    """Also where the connection ends as it should."""
    body = gzip.compress(MODELS[kind])
    body = body[: int(len(body) * part)]
    sent = head("200 OK", SSE, "content-encoding: gzip", f"content-length: {len(body)}") + body
    assert isinstance(await failure(kind, once(sent)), ModelBehaviorError)


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        (["content-type: text/html"], b"<html>login</html>"),
        (["content-type: application/json"], b"<html>"),
        (["content-type: application/json"], b"[]"),
        (["content-type: image/png"], b"\x89PNG"),
        ([SSE, "content-encoding: br"], b"x"),
        ([SSE, "content-encoding: gzip"], b"plain"),
        ([SSE], b"data: [1]\n\n"),
        ([SSE], b"data: {\n\n"),
        ([SSE], b"event: x\ndata: \xff\xfe\n\n"),
        ([], b""),
    ],
)
async def test_something_else_than_an_answer_is_the_models_fault(kind: Any, headers: list[str], body: bytes) -> None:
    """It is said in the library's words, and nothing is taken for an answer."""
    sent = head("200 OK", *headers, f"content-length: {len(body)}") + body
    assert isinstance(await failure(kind, once(sent)), ModelBehaviorError)


@pytest.mark.parametrize("status", ["301 Moved", "307 Elsewhere", "308 Elsewhere"])
async def test_a_redirect_does_not_get_the_key(kind: Any, status: str) -> None:
    """The other place would have it."""
    asked = 0

    async def elsewhere(exchange: Exchange) -> None:
        nonlocal asked
        asked += 1

    async with serving(elsewhere) as other:
        error = await failure(kind, once(head(status, f"location: {other}/x?key={KEY}")))
    assert isinstance(error, ModelTransportError)
    assert (error.status, asked) == (int(status[:3]), 0)


# ---------------------------------------------------------------------------------------------- over several turns


async def test_ids_that_start_again_in_each_answer_are_told_apart(kind: Any) -> None:
    """Both turns call with the same ids; the run has four calls, and the server sees its own ids."""
    ran: list[str] = []
    requests: list[bytes] = []

    @tool
    async def look(where: str) -> str:
        """Look."""
        ran.append(where)
        return where

    @tool
    async def now() -> str:
        """Tell the time."""
        ran.append("now")
        return "noon"

    async def answer(exchange: Exchange) -> None:
        requests.append(exchange.request)
        await exchange.send(SSE_HEAD + chunked(MODELS[kind]) + LAST_CHUNK)

    with anyio.fail_after(LIMIT):
        async with serving(answer) as url, kind("m", base_url=url) as model:
            agent = Agent("a", model=model, tools=[look, now], tool_use_behavior=lambda ctx, results: _third(requests))
            result = await Runner.run(agent, "Hi")
    assert sorted(ran) == ["here", "here", "here", "now", "now", "now"]
    assert len({settled.call.call_id for settled in result.calls}) == 6
    assert requests[2].count(b'"' + FIRST_CALL[kind] + b'"') == 4  # two calls and two outputs


def _third(requests: list[bytes]) -> Any:
    from agentloop import ToolsToFinalOutput

    return ToolsToFinalOutput(is_final=len(requests) == 3, output="done")


async def test_a_hundred_failures_leave_the_pool_usable(kind: Any) -> None:
    """Each connection is closed or free again, whatever became of its answer."""
    answered = 0
    whole = SSE_HEAD + chunked(MODELS[kind]) + LAST_CHUNK

    async def answer(exchange: Exchange) -> None:
        nonlocal answered
        answered += 1
        sent = [b"", SSE_HEAD, SSE_HEAD + chunked(MODELS[kind][:200]), head("500 No"), whole[:300]][answered % 5]
        await exchange.send(whole if answered > 100 else sent)
        if answered <= 100:
            await exchange.connection.aclose()

    failed = 0
    with anyio.fail_after(30):
        async with serving(answer) as url, kind("m", base_url=url) as model:
            while answered < 100:
                with pytest.raises((ModelTransportError, ModelBehaviorError)):
                    async with model.stream(REQUEST) as events:
                        async for _ in events:
                            pass
                failed += 1
            async with model.stream(REQUEST) as events:
                assert isinstance([event async for event in events][-1], ResponseDone)
    assert failed == 100
