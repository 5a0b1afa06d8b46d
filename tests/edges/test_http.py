"""The HTTP driver and `OpenAIChatModel` over it: mock transports for what is said, real sockets for what happens."""

import gzip
import json
import zlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import anyio
import anyio.lowlevel
import httpx
import pytest
from edges.parrot import ParrotDecoder, make_parrot
from edges.wire_server import LAST_CHUNK, SSE_HEAD, Exchange, chunked, serving
from kit.work import counting_turns

from agentloop.exceptions import (
    ModelBehaviorError,
    ModelTransportError,
    UserError,
    UserTypeError,
    UserValueError,
)
from agentloop.items import AssistantMessage, HostedToolCall, UserMessage
from agentloop.model_events import ModelEvent, ModelRequest, ResponseDone, TextDelta
from agentloop.models import (
    AnthropicModel,
    GeminiModel,
    HttpCodec,
    HttpModel,
    ModelTimeouts,
    OpenAIChatModel,
    OpenAIResponsesModel,
    RealtimeModel,
    _http,
)
from agentloop.models._http import HttpDriver
from agentloop.models._patience import TOO_LONG, AnswerWait, Patience
from agentloop.models._refusals import MAX_RETRY_AFTER, SILENT, retry_after
from agentloop.settings import ModelSettings

KEY = "sk-very-secret-0123456789"
URL = "http://model.test/v1"
REQUEST = ModelRequest(system=None, items=(UserMessage("Hi"),))
GOOD = b"".join(
    b"data: " + json.dumps({"id": "r", "choices": [choice]}).encode() + b"\n\n"
    for choice in (
        {"index": 0, "delta": {"content": "Hel"}},
        {"index": 0, "delta": {"content": "lo"}, "finish_reason": "stop"},
    )
)
FIRST = GOOD.partition(b"\n\n")[0] + b"\n\n"
REST = GOOD[len(FIRST) :]
DONE = b"data: [DONE]\n\n"
SSE = {"content-type": "text/event-stream; charset=utf-8"}

Handler = Callable[[httpx.Request], httpx.Response]


def mock_model(handler: Handler | httpx.Response, **options: Any) -> OpenAIChatModel:
    """Return a model whose every request *handler* answers."""
    answer = (lambda _: handler) if isinstance(handler, httpx.Response) else handler
    client = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    return OpenAIChatModel("m", **{"base_url": URL, "http_client": client} | options)


async def ask(model: HttpModel, request: ModelRequest = REQUEST) -> list[ModelEvent]:
    async with model.stream(request) as events:
        return [event async for event in events]


async def text(model: OpenAIChatModel, request: ModelRequest = REQUEST) -> str:
    done = (await ask(model, request))[-1]
    assert isinstance(done, ResponseDone)
    [message] = done.items
    assert isinstance(message, AssistantMessage)
    return message.text


async def failure(model: OpenAIChatModel, request: ModelRequest = REQUEST) -> ModelTransportError:
    with pytest.raises(ModelTransportError) as caught:
        await ask(model, request)
    return caught.value


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


# ---------------------------------------------------------------------------------------------- retry advice


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "2"}, 2.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after-ms": "soon", "retry-after": "9"}, 9.0),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after": "1e300"}, MAX_RETRY_AFTER),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": "tomorrow"}, None),
        ({"retry-after": "Thu, 01 Jan 1970 00:01:40 GMT"}, 60.0),
        ({"retry-after": "Thu, 01 Jan 1970 00:01:40 -0000"}, 60.0),
        ({"retry-after": "Thu, 01 Jan 1970 00:00:10 GMT"}, 0.0),
        ({"retry-after": "Fri, 31 Dec 9999 23:59:59 GMT"}, MAX_RETRY_AFTER),
        ({"retry-after": "Thu, 99 Jan 1970 00:00:10 GMT"}, None),
    ],
)
def test_retry_after_is_seconds_milliseconds_or_a_date_clamped(
    headers: Mapping[str, str], seconds: float | None
) -> None:
    """Nonsense is no advice; the past is at once; the far future is an hour."""
    assert retry_after(headers, now=40.0) == seconds


async def test_a_refusal_carries_everything_the_server_says_of_it() -> None:
    """The error has status, code, advice and request id, and its message has the host."""
    headers = {"retry-after": "2", "x-should-retry": "true", "x-request-id": "req-9"}
    body = {"error": {"message": "Slow down.", "type": "rate", "code": "rate_limit_exceeded"}}
    error = await failure(mock_model(httpx.Response(429, json=body, headers=headers)))
    assert str(error) == "model.test answered 429: Slow down."
    assert (error.status, error.code, error.retry_after) == (429, "rate_limit_exceeded", 2.0)
    assert (error.should_retry, error.request_id) == (True, "req-9")


@pytest.mark.parametrize(
    ("body", "words", "code"),
    [
        (b"<html>" + b"x" * 100_000, "<html>xxx", None),
        (b"", "no reason given", None),
        (b'{"error": "words"}', "words", None),
        (b'{"error": {"code": 400, "message": "m", "type": "t"}}', ": m", "t"),
        (b'{"message": "flat", "code": "c"}', ": flat", "c"),
        (b'{"error": {}}', '{"error": {}}', None),
        (b"[1]", "[1]", None),
        (b"\xff", "�", None),
        (b"[" * 60_000, "[[[", None),
    ],
)
async def test_an_error_body_of_any_shape_gives_a_bounded_message(body: bytes, words: str, code: str | None) -> None:
    """The message is bounded, whether the body is JSON or not."""
    error = await failure(mock_model(httpx.Response(500, content=body)))
    assert words in str(error)
    assert len(str(error)) < 400
    assert (error.status, error.code, error.should_retry, error.retry_after) == (500, code, None, None)


async def test_a_redirect_is_not_followed() -> None:
    """A key must not travel to where a server points."""
    seen: list[str] = []

    def redirect(request: httpx.Request) -> httpx.Response:
        seen.append(str(request.url))
        return httpx.Response(307, headers={"location": "http://evil.test/"})

    assert (await failure(mock_model(redirect, api_key=KEY))).status == 307
    assert seen == [f"{URL}/chat/completions"]


@pytest.mark.parametrize("base_url", ["http://llm.test", "http://llm.test/v1"])
@pytest.mark.parametrize("location", ["http://key:secret@other.test/login?next=secret", "/login?next=secret"])
async def test_a_redirect_says_from_where_to_where(base_url: str, location: str) -> None:
    """The message has the content type and what the base URL may lack; never the location's query or user."""
    answer = httpx.Response(302, headers={"location": location, "content-type": "text/html"}, content=b"<html>")
    words = str(await failure(mock_model(answer, base_url=base_url)))
    asked = base_url.removeprefix("http://") + "/chat/completions"
    assert f"answered 302: text/html, sent on from {asked} to " in words
    assert ("other.test/login" if "other" in location else "llm.test/login") in words
    assert "secret" not in words
    assert ("may lack /v1" in words) == (not base_url.endswith("/v1"))


@pytest.mark.parametrize("location", ["http://[bad", "//[", "http://a:b:c/x", "\t", ""])
async def test_a_redirect_to_nowhere_is_an_error_of_the_server(location: str) -> None:
    """A place that is no URL is told as such, by an error that a retry and a fallback know."""
    answer = httpx.Response(307, headers={"location": location})
    words = str(await failure(mock_model(answer)))
    assert "sent on from model.test/v1/chat/completions to " in words or "Invalid URL in location header" in words


@pytest.mark.parametrize("base_url", ["http://llm.test", "http://llm.test/v1"])
async def test_a_web_page_in_place_of_an_answer_is_told_by_its_type_and_place(base_url: str) -> None:
    """The page may be a proxy's login, or that of a server whose API lies deeper."""
    page = httpx.Response(200, headers={"content-type": "text/html; charset=utf-8"}, content=b"<html>")
    with pytest.raises(ModelBehaviorError) as caught:
        await text(mock_model(page, base_url=base_url))
    asked = base_url.removeprefix("http://") + "/chat/completions"
    assert f"{asked} answered with text/html" in str(caught.value)
    assert ("may lack /v1" in str(caught.value)) == (not base_url.endswith("/v1"))


async def test_no_message_holds_a_secret() -> None:
    """The secret may be in the server's code or words, in a broken stream, or in the caller's headers."""
    echo = httpx.Response(401, json={"error": {"message": f"Wrong key {KEY}, token tok-5-of-nine.", "code": KEY}})
    settings = ModelSettings(
        extra_headers={"X-Token": "tok-5-of-nine", "X-Note": "Wrong"}, extra_query={"sig_key": "Wrong-key"}
    )
    error = await failure(
        mock_model(echo, api_key=KEY), ModelRequest(system=None, items=REQUEST.items, settings=settings)
    )
    assert str(error) == "model.test answered 401: Wrong key ***, token ***."
    assert error.code == "***"
    model = mock_model(httpx.Response(200, headers=SSE, content=f'data: {{"error": "{KEY}"}}\n\n'), api_key=KEY)
    assert KEY not in str(await failure(model))
    assert KEY not in repr(model)
    report = b'data: {"error": {"message": "%s", "code": "%s"}}\n\n' % (KEY.encode(), KEY.encode())
    error = await failure(mock_model(httpx.Response(200, headers=SSE, content=report), api_key=KEY))
    assert error.code == "***"
    with pytest.raises(ModelTransportError, match=r"broke the response off: \*\*\*") as caught:
        await ask(mock_model(httpx.Response(200, headers=SSE, content=FIRST + report), api_key=KEY))
    assert KEY not in str(caught.value)


@pytest.mark.scenario("SM-13")
async def test_no_request_id_holds_a_secret() -> None:
    """A server may repeat the key in any header: not in an error's request id, nor in an answer's."""
    named = {"x-request-id": f"req {KEY}"}
    assert (await failure(mock_model(httpx.Response(500, headers=named), api_key=KEY))).request_id == "req ***"
    done = (await ask(mock_model(httpx.Response(200, headers=SSE | named, content=GOOD + DONE), api_key=KEY)))[-1]
    assert isinstance(done, ResponseDone)
    assert done.request_id == "req ***"


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("x", "maximum context length exceeded"),
        ("none", "none of the requested models is loaded"),
        ("EMPTY", "messages[0].content is EMPTY"),
        ("ollama", "try pulling it with: ollama pull llama9"),
        ("content1", "the content1s of content12 are too long"),
    ],
)
async def test_a_dummy_key_garbles_no_words(key: str, words: str) -> None:
    """Local servers want any key. What is too short to be a secret stays, and what is short enough to be in a word."""
    answer = httpx.Response(400, json={"error": {"message": words, "code": f"{key}_code"}})
    error = await failure(mock_model(answer, api_key=key))
    assert (str(error), error.code) == (f"model.test answered 400: {words}", f"{key}_code")


@pytest.mark.parametrize("shown", ["bad key {}", "\\n{}\\n", "key_{}_x", "({})", "{}{}"])
@pytest.mark.parametrize("key", ["sk-live-0123456789abcdef", "a+b.c*(d)[e]$1234567"])
async def test_a_real_key_is_masked_wherever_it_is(key: str, shown: str) -> None:
    """Also within a word: so long a text isn't there by chance."""
    answer = httpx.Response(401, content=shown.format(key, key).encode())
    assert key not in str(await failure(mock_model(answer, api_key=key)))


@pytest.mark.parametrize("name", ["api-key", "x"])
async def test_no_line_of_the_clients_log_holds_a_query(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """httpx logs the URL of each request at INFO, and some servers take the key there. Other requests keep theirs."""
    caplog.set_level("INFO")
    answer = httpx.Response(200, headers=SSE, content=GOOD + DONE)
    model = mock_model(answer, base_url=f"{URL}?{name}={KEY}")
    settings = ModelSettings(extra_query={"token": KEY})
    await ask(model, ModelRequest(system=None, items=REQUEST.items, settings=settings))
    assert KEY not in caplog.text
    assert f'POST {URL}/chat/completions "HTTP/1.1 200 OK"' in caplog.text
    async with httpx.AsyncClient(transport=httpx.MockTransport(lambda _: httpx.Response(200))) as client:
        await client.get("http://other.test/?page=2")
    assert "http://other.test/?page=2" in caplog.text


# ---------------------------------------------------------------------------------------------- requests


async def test_a_request_says_what_it_must_and_the_answer_streams() -> None:
    """The request has body, path, headers and query; the request id comes with the end."""
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, headers=SSE | {"x-request-id": "req-1"}, content=GOOD + DONE)

    model = mock_model(answer, base_url=f"{URL}/?version=2", api_key=KEY, organization="org", project="pro")
    settings = ModelSettings(extra_headers={"Accept": "x/y", "X-Mine": "1"}, extra_query={"q": "a b"}, max_tokens=5)
    events = await ask(model, ModelRequest(system=None, items=REQUEST.items, settings=settings))
    assert [event.text for event in events if isinstance(event, TextDelta)] == ["Hel", "lo"]
    assert events[-1] == ResponseDone((AssistantMessage("Hello"),), None, "r", "req-1", "stop")
    [request] = seen
    assert str(request.url.copy_with(query=None)) == f"{URL}/chat/completions"
    assert request.url.params.multi_items() == [("version", "2"), ("q", "a b")]
    wanted = {
        "authorization": f"Bearer {KEY}",
        "openai-organization": "org",
        "openai-project": "pro",
        "accept": "x/y",
        "x-mine": "1",
        "content-type": "application/json",
    }
    assert {name: request.headers[name] for name in wanted} == wanted
    body = json.loads(request.content)
    assert (body["model"], body["stream"], body["max_tokens"]) == ("m", True, 5)


@pytest.mark.parametrize("client_timeout", [None, 7.0])
async def test_a_clients_own_timeouts_hold_unless_it_never_gave_a_thought_to_them(client_timeout: float | None) -> None:
    """Five seconds, the client's default, is less than a model needs: the model's own deadline takes its place."""
    seen: list[dict[str, float]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.extensions["timeout"])
        return httpx.Response(200, headers=SSE, content=GOOD)

    options = {} if client_timeout is None else {"timeout": client_timeout}
    client = httpx.AsyncClient(transport=httpx.MockTransport(answer), **options)  # type: ignore[arg-type,unused-ignore]
    await ask(OpenAIChatModel("m", base_url=URL, http_client=client))
    assert seen[0]["read"] == client_timeout
    assert seen[0]["connect"] == (client_timeout or 10.0)


class Pieces(httpx.AsyncByteStream):
    """A body that comes in pieces, with seconds of silence before each."""

    def __init__(self, *pieces: tuple[float, bytes]) -> None:
        self.pieces = pieces

    async def __aiter__(self) -> Any:
        for seconds, piece in self.pieces:
            await anyio.sleep(seconds)
            yield piece


@pytest.mark.scenario("RP-20")
@pytest.mark.backends("trio-virtual", "asyncio-virtual")
@pytest.mark.parametrize(
    ("pieces", "silent"),
    [
        ([(50, FIRST), (50, REST)], None),
        ([(290, GOOD)], None),
        ([(310, GOOD)], "silent for 300 s"),
        ([(0, FIRST), (61, REST)], "silent for 60 s"),
        ([(0, b": ping\n\n"), (290, b": ping\n\n"), (290, GOOD)], None),
    ],
)
async def test_answer_may_be_silent_longer_before_its_first_output(
    pieces: list[tuple[float, bytes]], silent: str | None
) -> None:
    """The model may be silent for five minutes before its first output and for one minute later; any bytes count."""
    answer = httpx.Response(200, headers=SSE, stream=Pieces(*pieces))
    model = mock_model(answer)
    if silent is None:
        await ask(model)
        return
    error = await failure(model)
    assert silent in str(error)
    assert error.code == "silence_timeout"
    assert error.status is None


PING = b": ping\n\n"


@pytest.mark.scenario("RP-20")
@pytest.mark.backends("trio-virtual", "asyncio-virtual")
@pytest.mark.parametrize("own", [False, True], ids=["the usual client", "a client with timeouts of its own"])
@pytest.mark.parametrize("begun", [False, True], ids=["before its output", "within its output"])
async def test_an_answer_that_drips_is_left_after_two_hours(own: bool, begun: bool) -> None:
    """Each piece comes in time, so only the time for the whole ends it; the request isn't made again."""
    drip = (FIRST if begun else PING, *[PING] * 143, REST if begun else GOOD)
    whole = httpx.Response(200, headers=SSE, stream=Pieces(*((49.0, piece) for piece in drip)))
    await ask(mock_model(whole))
    endless = httpx.Response(200, headers=SSE, stream=Pieces((0, drip[0]), *[(50.0, PING)] * 200))
    client = httpx.AsyncClient(transport=httpx.MockTransport(lambda _: endless), timeout=5_000)
    started = anyio.current_time()
    error = await failure(mock_model(endless, **({"http_client": client} if own else {})))
    assert str(error) == "No whole answer from model.test: it isn't complete after 7200 s"
    assert (error.code, error.should_retry, error.status) == ("answer_timeout", False, None)
    assert anyio.current_time() - started == pytest.approx(7_200)
    patient = httpx.Response(200, headers=SSE, stream=Pieces(*[(50.0, PING)] * 200, (0.0, GOOD)))
    await ask(mock_model(patient, timeouts=ModelTimeouts(total=None)))
    with pytest.raises(UserValueError, match=r"ModelTimeouts\.total"):
        OpenAIChatModel("m", base_url=URL, timeouts=ModelTimeouts(total=0))


@pytest.mark.backends("trio-virtual", "asyncio-virtual")
async def test_the_time_of_the_consumer_is_not_the_answers() -> None:
    """A reader that waits for a day between two pieces has waited for its server for a second."""
    stream = Pieces((0.5, FIRST), (0.5, REST))
    model = mock_model(httpx.Response(200, headers=SSE, stream=stream), timeouts=ModelTimeouts(total=2))
    async with model.stream(REQUEST) as events:
        seen = []
        async for event in events:
            seen.append(event)
            await anyio.sleep(86_400)
    assert isinstance(seen[-1], ResponseDone)


@pytest.mark.scenario("RP-20")
@pytest.mark.backends("trio-virtual", "asyncio-virtual")
async def test_reasoning_effort_gives_the_first_output_more_time() -> None:
    """High effort allows ten minutes of silence; a model may be given another time, or no limit."""
    hard = ModelRequest(system=None, items=REQUEST.items, settings=ModelSettings(reasoning={"effort": "high"}))

    def late(seconds: float) -> httpx.Response:
        return httpx.Response(200, headers=SSE, stream=Pieces((seconds, GOOD)))

    await ask(mock_model(late(590)), hard)
    error = await failure(mock_model(late(610)), hard)
    assert "silent for 600 s" in str(error)
    await ask(mock_model(late(3600), timeouts=ModelTimeouts(first_output=None)))
    assert "silent for 5 s" in str(await failure(mock_model(late(6), timeouts=ModelTimeouts(first_output=5))))
    with pytest.raises(UserValueError, match=r"ModelTimeouts\.read"):
        OpenAIChatModel("m", base_url=URL, timeouts=ModelTimeouts(read=0))


async def test_a_given_client_stays_open_and_the_model_needs_no_entering() -> None:
    """The code that made a client closes it."""
    client = httpx.AsyncClient(transport=httpx.MockTransport(lambda _: httpx.Response(200, headers=SSE, content=GOOD)))
    model = OpenAIChatModel("m", base_url=URL, http_client=client)
    assert not model.holds_resources
    assert await text(model) == "Hello"
    async with model:
        assert await text(model) == "Hello"
    assert not client.is_closed


async def test_what_cannot_be_sent_is_refused_before_it_is() -> None:
    """A value without a JSON form and a malformed header are refused; the values of headers aren't quoted."""
    model = mock_model(httpx.Response(500))

    async def refused(error: type[Exception], match: str, **settings: Any) -> str:
        with pytest.raises(error, match=match) as caught:
            await ask(model, ModelRequest(system=None, items=REQUEST.items, settings=ModelSettings(**settings)))
        return str(caught.value)

    await refused(UserTypeError, "JSON: set has no", extra_body={"x": set()})
    await refused(UserValueError, "JSON", extra_body={"x": float("nan")})
    await refused(UserTypeError, "'x-a'.*int", extra_headers={"X-A": 1})
    assert "s3cret" not in await refused(UserValueError, "'x-a'", extra_headers={"X-A": "s3cret\n"})
    loop: dict[str, Any] = {}
    loop["x"] = loop
    await refused(UserValueError, "JSON", extra_body=loop)


async def test_any_mapping_in_the_request_is_written_as_an_object() -> None:
    """Schemas and metadata needn't be dicts."""
    from types import MappingProxyType

    seen: list[Any] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(json.loads(request.content))
        return httpx.Response(200, headers=SSE, content=GOOD)

    settings = ModelSettings(metadata=MappingProxyType({"a": "\ud800"}))
    await ask(mock_model(answer), ModelRequest(system=None, items=REQUEST.items, settings=settings))
    assert seen[0]["metadata"] == {"a": "\ufffd"}  # half a character has no UTF-8


# ---------------------------------------------------------------------------------------------- keys and addresses


def test_the_vendors_key_comes_from_the_environment_and_goes_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """The key goes to the vendor and to the server that the environment names, not to any other address."""

    def authorization(**options: Any) -> str | None:
        return OpenAIChatModel("m", **options)._headers.get("authorization")

    monkeypatch.setenv("OPENAI_API_KEY", f" {KEY}\n")
    bearer = f"Bearer {KEY}"
    assert authorization() == bearer
    assert authorization(base_url="https://api.openai.com/v1/") == bearer
    assert authorization(base_url=URL) is None
    assert authorization(base_url=URL, api_key="other") == "Bearer other"
    monkeypatch.setenv("OPENAI_BASE_URL", URL)
    assert authorization() == bearer
    assert OpenAIChatModel("m").base_url == URL
    assert authorization(base_url=URL + "/other") == bearer
    assert authorization(base_url="http://elsewhere.test/v1") is None
    assert authorization(base_url="https://model.test/v1") is None  # the environment names another scheme


@pytest.mark.parametrize(
    ("make", "variable", "url"),
    [
        (OpenAIChatModel, "OPENAI", "api.openai.com/v1"),
        (OpenAIResponsesModel, "OPENAI", "api.openai.com/v1"),
        (RealtimeModel, "OPENAI", "api.openai.com/v1"),
        (AnthropicModel, "ANTHROPIC", "api.anthropic.com"),
        (GeminiModel, "GEMINI", "generativelanguage.googleapis.com/v1beta/openai"),
    ],
)
def test_the_vendors_key_needs_tls(make: Any, variable: str, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it everybody on the way could read the key, and nobody has said that it may be sent like this."""
    monkeypatch.setenv(f"{variable}_API_KEY", KEY)
    monkeypatch.delenv(f"{variable}_BASE_URL", raising=False)
    assert KEY in str(make("m", base_url=f"https://{url}")._headers)
    assert KEY not in str(make("m", base_url=f"http://{url}")._headers)
    if make is RealtimeModel:
        assert KEY in str(make("m", base_url=f"wss://{url}")._headers)
        assert KEY not in str(make("m", base_url=f"ws://{url}")._headers)
        monkeypatch.setenv("OPENAI_BASE_URL", "ws://proxy.test/v1")
        assert KEY in str(make("m")._headers)
        assert KEY not in str(make("m", base_url="wss://proxy.test/v1")._headers)


@pytest.mark.parametrize("name", ["x-é", "x a", "", "x:", "x-a\r\nx-evil", "Content-Length", "transfer-encoding"])
async def test_a_header_that_cannot_be_sent_is_named(name: str) -> None:
    """Its name has characters that no header's has, or it is one that frames the body."""
    settings = ModelSettings(extra_headers={name: "5"})
    with pytest.raises(UserValueError, match="Header '"):
        await ask(mock_model(httpx.Response(500)), ModelRequest(system=None, items=REQUEST.items, settings=settings))


async def test_a_missing_key_for_the_vendor_says_which_variable_to_set() -> None:
    """The error comes when the model is entered or asked; other servers need no key."""
    model = OpenAIChatModel("m")
    with pytest.raises(UserError, match="OPENAI_API_KEY"):
        async with model:
            pass
    with pytest.raises(UserError, match="OPENAI_API_KEY"):
        await ask(mock_model(httpx.Response(500), base_url=None))
    async with OpenAIChatModel("m", base_url=URL):
        pass


async def test_the_vendor_gets_the_newer_name_of_the_token_limit() -> None:
    """The vendor's newer models refuse the old name; other servers may not know the new one."""
    seen: list[Any] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(json.loads(request.content))
        return httpx.Response(200, headers=SSE, content=GOOD)

    limited = ModelRequest(system=None, items=REQUEST.items, settings=ModelSettings(max_tokens=5))
    await ask(mock_model(answer, base_url=None, api_key=KEY), limited)
    assert "max_tokens" not in seen[0]
    assert seen[0]["max_completion_tokens"] == 5


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"name": 3}, UserTypeError, "name"),
        ({"name": ""}, UserValueError, "name"),
        ({"base_url": "model.test/v1"}, UserValueError, "http or https.*model.test"),
        ({"base_url": "ftp://model.test"}, UserValueError, "http or https"),
        ({"base_url": "http://"}, UserValueError, "http or https"),
        ({"base_url": "http://[::1"}, UserValueError, "http or https"),
        ({"base_url": "http://h:99999/"}, UserValueError, "http or https"),
        ({"base_url": "http://me:s3cret@h/"}, UserValueError, "credentials"),
        ({"api_key": "s3cret key"}, UserValueError, "api_key"),
        ({"api_key": "s3cret\n"}, UserValueError, "api_key"),
        ({"api_key": "s3crét"}, UserValueError, "api_key"),
    ],
)
def test_a_definition_that_cannot_work_is_refused_without_quoting_secrets(
    options: dict[str, Any], error: type[Exception], match: str
) -> None:
    """The definition is refused where it is made, by the argument's name."""
    with pytest.raises(error, match=match) as caught:
        OpenAIChatModel(**{"name": "m"} | options)
    assert "s3cr" not in str(caught.value)


async def test_a_model_streams_only_once_entered_and_several_may_enter_it() -> None:
    """The last user to leave closes it; then it can be entered again."""
    model = OpenAIChatModel("m", base_url=URL)
    assert model.holds_resources
    with pytest.raises(UserError, match="isn't entered"):
        await ask(model)
    async with model:
        first = model._drivers.current()
        async with model:
            assert model._drivers.current() is first
        assert model.is_entered
    assert not model.is_entered
    with pytest.raises(UserError, match="isn't entered"):
        await ask(model)
    async with model:
        assert model._drivers.current() is not first


# ---------------------------------------------------------------------------------------------- answers


async def test_a_server_that_does_not_stream_is_understood() -> None:
    """A plain JSON answer is read, though a stream was asked for."""
    choice = {"index": 0, "message": {"content": "Hello"}, "finish_reason": "stop"}
    assert await text(mock_model(httpx.Response(200, json={"choices": [choice]}))) == "Hello"
    with pytest.raises(ModelBehaviorError, match="JSON object"):
        await text(mock_model(httpx.Response(200, headers={"content-type": "application/json"}, content=b"<html>")))


@pytest.mark.parametrize("content", [b"", GOOD[:90], b"<html>"])
async def test_an_answer_that_ends_early_is_an_error_never_a_short_answer(content: bytes) -> None:
    """The terminal event is missing."""
    with pytest.raises(ModelBehaviorError, match="ended before"):
        await text(mock_model(httpx.Response(200, headers=SSE, content=content)))


@pytest.mark.scenario("SP-04")
@pytest.mark.parametrize(
    ("last", "words"),
    [
        (b'data: {"error": {"message": "full", "code": 503}}\n\n', "broke the response off: full"),
        (b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}\n\n' + DONE, None),
        (DONE, "ended before"),
        (b"data: nonsense\n\n", "JSON object"),
    ],
)
async def test_what_came_before_an_error_is_given_before_it_is_raised(last: bytes, words: str | None) -> None:
    """The earlier events are given also where both came in one piece of the body."""
    seen: list[str] = []
    ended = False

    async def read() -> None:
        nonlocal ended
        async with mock_model(httpx.Response(200, headers=SSE, content=FIRST + last)).stream(REQUEST) as events:
            async for event in events:
                if isinstance(event, TextDelta):
                    seen.append(event.text)
        ended = True

    if words is None:  # cut at the token limit, with something usable
        await read()
    else:
        with pytest.raises((ModelBehaviorError, ModelTransportError), match=words):
            await read()
    assert seen == ["Hel"]
    assert ended == (words is None)


async def _body(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


def packed(*pieces: bytes, encoding: str = "gzip") -> httpx.Response:
    return httpx.Response(200, headers=SSE | {"content-encoding": encoding}, content=_body(*pieces))


@pytest.mark.slow
async def test_a_compressed_answer_is_unpacked_in_bounded_steps() -> None:
    """The answer may be cut anywhere; a huge one fails at the decoder's bound and is never whole in memory."""
    data = gzip.compress(GOOD + DONE)
    assert await text(mock_model(packed(data))) == "Hello"
    assert await text(mock_model(packed(*(bytes([byte]) for byte in data), encoding="X-GZIP"))) == "Hello"
    bomb = packed(gzip.compress(b"data: " + b"\0" * 70_000_000))
    with pytest.raises(ModelBehaviorError, match="longer than"):
        await text(mock_model(bomb))
    with pytest.raises(ModelBehaviorError, match="gzip it says"):
        await text(mock_model(packed(b"plain")))
    with pytest.raises(ModelBehaviorError, match="'br'"):
        await text(mock_model(packed(b"x", encoding="br")))


async def test_a_codec_that_asks_for_no_encoding_gets_gzip_and_none_that_cannot_be_unpacked() -> None:
    """The client's default asks for more than the driver unpacks; a codec or a request may ask for another one."""
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.headers["accept-encoding"])
        kind = "deflate" if "deflate" in asked[-1] else "gzip"
        data = (zlib.compress if kind == "deflate" else gzip.compress)(
            b'data: {"words": "Hi"}\n\ndata: {"seeds": 1}\n\n'
        )
        return httpx.Response(200, headers=SSE | {"content-encoding": kind}, content=_body(data))

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
        assert "deflate" in client.headers["accept-encoding"]
        parrot = make_parrot("polly", http_client=client, base_url=URL, api_key="k")
        done = (await ask(parrot))[-1]
        assert isinstance(done, ResponseDone)
        assert done.items == (AssistantMessage("Hi"),)
        own = ModelSettings(extra_headers={"Accept-Encoding": "identity"})
        await ask(parrot, ModelRequest(system=None, items=REQUEST.items, settings=own))
    assert asked == ["gzip", "identity"]


async def test_an_answer_may_hold_images_up_to_the_bound_of_the_whole() -> None:
    """An image is one event, and the last event repeats all of them in one line."""
    image = {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": "A" * 4_200_000}
    images = [image, image | {"id": "ig_2"}]
    events: list[Any] = [
        {"type": "response.output_item.done", "output_index": place, "item": item} for place, item in enumerate(images)
    ]
    events.append({"type": "response.completed", "response": {"id": "r", "status": "completed", "output": images}})
    content = b"".join(b"data: %s\n\n" % json.dumps(event).encode() for event in events)
    client = httpx.AsyncClient(
        transport=httpx.MockTransport(lambda _: httpx.Response(200, headers=SSE, content=_body(content)))
    )
    done = (await ask(OpenAIResponsesModel("m", base_url=URL, http_client=client)))[-1]
    assert isinstance(done, ResponseDone)
    assert [item.output for item in done.items if isinstance(item, HostedToolCall)] == ["A" * 4_200_000] * 2


async def test_a_compressed_error_body_is_bounded_too() -> None:
    """The error's status comes through, also when the body can't be unpacked."""
    for body in (gzip.compress(b"x" * 10_000_000), b"plain"):
        response = httpx.Response(503, headers={"content-encoding": "gzip"}, content=_body(body))
        assert (await failure(mock_model(response))).status == 503


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (httpx.ConnectError("refused"), "refused \\(ConnectError\\)"),
        (httpx.ReadTimeout(""), "took too long.* \\(ReadTimeout\\)"),
        (httpx.RemoteProtocolError(""), "connection broke \\(RemoteProtocolError\\)"),
    ],
)
async def test_a_failing_connection_is_a_transport_error(error: Exception, words: str) -> None:
    """The connection may fail before the answer or within it; the client's error is the cause, without a retry."""
    tries = 0

    def fail(_: httpx.Request) -> httpx.Response:
        nonlocal tries
        tries += 1
        raise error

    async def break_off() -> AsyncIterator[bytes]:
        yield GOOD[:50]
        raise error

    for model in (mock_model(fail), mock_model(httpx.Response(200, headers=SSE, content=break_off()))):
        with pytest.raises(ModelTransportError, match=f"No answer from model.test: .*{words}") as caught:
            await ask(model)
        assert caught.value.__cause__ is error
        assert caught.value.status is None
    assert tries == 1


async def test_an_error_that_is_not_the_clients_passes() -> None:
    """A bug isn't the network's."""

    def bug(_: httpx.Request) -> httpx.Response:
        raise ZeroDivisionError

    async def late_bug() -> AsyncIterator[bytes]:
        yield GOOD[:50]
        raise ZeroDivisionError

    for model in (mock_model(bug), mock_model(httpx.Response(200, headers=SSE, content=late_bug()))):
        with pytest.raises(ZeroDivisionError):
            await ask(model)


# ---------------------------------------------------------------------------------------------- real connections


@pytest.mark.real_clock
async def test_a_connection_serves_again_after_a_complete_answer() -> None:
    """The bytes after [DONE] are read, so that the pool can keep the connection."""
    connections: list[int] = []

    async def answer(exchange: Exchange) -> None:
        connections.append(exchange.connection_number)
        await exchange.send(SSE_HEAD + chunked(GOOD + DONE) + LAST_CHUNK)

    async with serving(answer) as url, OpenAIChatModel("m", base_url=url) as model:
        assert [await text(model) for _ in range(3)] == ["Hello"] * 3
    assert connections == [1, 1, 1]


@pytest.mark.real_clock
async def test_a_kept_connection_that_died_is_replaced_once() -> None:
    """The server closed it right behind a streamed answer; the request is sent again on a new one."""
    connections: list[int] = []

    async def answer(exchange: Exchange) -> None:
        connections.append(exchange.connection_number)
        if connections.count(exchange.connection_number) > 1:
            await exchange.connection.aclose()
        else:
            await exchange.send(SSE_HEAD + chunked(GOOD + DONE) + LAST_CHUNK)

    async with serving(answer) as url, OpenAIChatModel("m", base_url=url) as model:
        assert [await text(model) for _ in range(3)] == ["Hello"] * 3
    assert connections == [1, 1, 2, 2, 3]


@pytest.mark.real_clock
async def test_a_new_connection_that_dies_is_not_replaced() -> None:
    """The request may have had an effect; whether to ask again is the run's decision."""
    tries = 0

    async def answer(exchange: Exchange) -> None:
        nonlocal tries
        tries += 1
        await exchange.connection.aclose()

    async with serving(answer) as url, OpenAIChatModel("m", base_url=url) as model:
        assert (await failure(model)).status is None
    assert tries == 1


@pytest.mark.real_clock
async def test_leaving_early_or_being_cancelled_closes_the_connection() -> None:
    """The connection closes at once, though the server would send for ever; the collector finds nothing of it."""
    closed = 0
    asked = anyio.Event()

    async def answer(exchange: Exchange) -> None:
        nonlocal closed
        await exchange.send(SSE_HEAD + chunked(FIRST))
        asked.set()
        await exchange.gone()
        closed += 1
        raise anyio.EndOfStream

    async def read_on(model: OpenAIChatModel) -> None:
        async with model.stream(REQUEST) as events:
            async for _ in events:
                pass

    async with serving(answer) as url, OpenAIChatModel("m", base_url=url) as model:
        async with model.stream(REQUEST) as events:
            await anext(events)
        with pytest.raises(ZeroDivisionError):
            async with model.stream(REQUEST) as events:
                await anext(events)
                raise ZeroDivisionError
        asked = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read_on, model)
            await asked.wait()
            tasks.cancel_scope.cancel()
        with anyio.fail_after(60):
            while closed < 3:
                await anyio.lowlevel.checkpoint()


@pytest.mark.real_clock
@pytest.mark.slow
async def test_a_hundred_cancelled_answers_do_not_exhaust_a_pool() -> None:
    """Two connections are all there are, and the hundred and first answer still comes."""
    answered = 0

    async def answer(exchange: Exchange) -> None:
        nonlocal answered
        answered += 1
        if answered > 100:
            await exchange.send(SSE_HEAD + chunked(GOOD + DONE) + LAST_CHUNK)
        else:
            # Half of them are cancelled before the head of the answer has come, half within its body.
            if answered % 2:
                await exchange.send(SSE_HEAD + chunked(FIRST))
            began.set()
            await exchange.gone()
            raise anyio.EndOfStream

    async def read_on(model: OpenAIChatModel) -> None:
        await ask(model)

    limits = httpx.Limits(max_connections=2)
    async with serving(answer) as url, httpx.AsyncClient(limits=limits) as client:
        model = OpenAIChatModel("m", base_url=url, http_client=client)
        with anyio.fail_after(30):
            for _ in range(100):
                began = anyio.Event()
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(read_on, model)
                    await began.wait()
                    tasks.cancel_scope.cancel()
            assert await text(model) == "Hello"
    assert answered == 101


@pytest.mark.real_clock
async def test_a_proxy_of_the_environment_does_not_see_what_is_for_this_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A prompt for a server on this machine does not leave it."""

    async def answer(exchange: Exchange) -> None:
        await exchange.send(SSE_HEAD + chunked(GOOD) + LAST_CHUNK)

    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9/")
    async with serving(answer) as url, OpenAIChatModel("m", base_url=url) as model:
        assert await text(model) == "Hello"


async def test_a_driver_that_is_left_has_closed_its_own_client() -> None:
    """The driver closes its own client, and only that one."""
    driver = HttpDriver()
    async with driver:
        client = driver._client
        assert not client.is_closed
    assert client.is_closed


# ---------------------------------------------------------------------------------------------- any provider


async def test_a_function_may_sign_each_request_in_place_of_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """The signature goes along and shows in no message; the vendor's key stays at home."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)

    def sign(request: httpx.Request) -> httpx.Request:
        request.headers["authorization"] = f"Signature of-{len(request.content)}-bytes"
        return request

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(401, json={"error": request.headers["authorization"]})

    error = await failure(mock_model(answer, base_url=None, auth=sign))
    assert str(error) == "api.openai.com answered 401: ***"


@pytest.mark.parametrize("name", ["x-request-id", "request-id", "opc-request-id"])
async def test_a_request_id_is_found_under_the_names_that_providers_use(name: str) -> None:
    """It is what a provider's support asks for."""
    model = mock_model(httpx.Response(200, headers=SSE | {name: "req-1"}, content=GOOD))
    done = (await ask(model))[-1]
    assert isinstance(done, ResponseDone)
    assert done.request_id == "req-1"


def test_a_model_without_a_vendor_needs_a_url() -> None:
    """There is no server to assume."""
    codec = HttpCodec(path="/p", headers=lambda key: {}, encode=lambda request, name: {}, decoder=ParrotDecoder)
    with pytest.raises(UserValueError, match="base_url"):
        HttpModel("m", codec)
    assert HttpModel("m", codec, base_url=URL).base_url == URL


def test_a_vendors_variables_say_where_to_go_and_with_which_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each vendor has variables of its own."""
    monkeypatch.setenv("PARROT_KEY", KEY)
    monkeypatch.setenv("PARROT_URL", "http://cage.test/v1")
    assert make_parrot("polly").base_url == "http://cage.test/v1"
    assert make_parrot("polly")._headers["x-parrot-key"] == KEY
    assert "x-parrot-key" not in make_parrot("polly", base_url=URL)._headers


# ---------------------------------------------------------------------------------------------- endless answers


class Dripping(httpx.AsyncBaseTransport):
    """A server whose head takes *head* seconds, and whose body has a piece each half second, without end.

    httpx counts its read timeout from each byte anew, so to it none of this is late.
    """

    def __init__(self, head: float) -> None:
        self.head = head

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await anyio.sleep(self.head)
        return httpx.Response(200, headers=SSE, stream=Endless(b": ping\n\n", pause=0.5))


class Endless(httpx.AsyncByteStream):
    """A body of these pieces, the last of them again and again, each after a pause."""

    def __init__(self, *pieces: bytes, pause: float = 0.0) -> None:
        self.pieces, self.pause = list(pieces), pause

    def __aiter__(self) -> "Endless":
        return self

    async def __anext__(self) -> bytes:
        if self.pause:
            await anyio.sleep(self.pause)
        return self.pieces.pop(0) if len(self.pieces) > 1 else self.pieces[0]


@pytest.mark.scenario("SM-13")
@pytest.mark.backends("trio-virtual", "asyncio-virtual")
@pytest.mark.parametrize(
    ("head", "options", "ends_after", "code"),
    [
        (10_000.0, {"timeouts": ModelTimeouts(first_output=3.0)}, 3.0, SILENT),
        (10_000.0, {"timeouts": ModelTimeouts(first_output=9.0, total=4.0)}, 4.0, TOO_LONG),
        (10_000.0, {"timeouts": ModelTimeouts(first_output=None, total=4.0)}, 4.0, TOO_LONG),
        (3.0, {"timeouts": ModelTimeouts(first_output=3.5, total=4.2)}, 4.2, TOO_LONG),
        (0.0, {"timeouts": ModelTimeouts(total=4.2)}, 4.2, TOO_LONG),
    ],
    ids=["no head", "no head in all", "no head, without a first", "head and body", "body"],
)
async def test_one_deadline_is_over_head_and_body(
    head: float, options: dict[str, Any], ends_after: float, code: str
) -> None:
    """A head that never ends is as bounded as a body, and what it took is no longer there for the body."""
    client = httpx.AsyncClient(transport=Dripping(head))
    model = OpenAIChatModel("m", base_url=URL, http_client=client, **options)
    begun = anyio.current_time()
    error = await failure(model)
    assert anyio.current_time() - begun == pytest.approx(ends_after)
    assert error.code == code


@pytest.mark.backends("trio-virtual", "asyncio-virtual")
async def test_the_time_of_an_answer_is_what_the_server_takes() -> None:
    """Waits and the work of reading; not what its consumer does in between. A piece that is there is too late, too."""
    wait = AnswerWait(Patience(None, None, None, 10.0), "model.test")

    async def ready() -> str:
        return "piece"

    await anyio.sleep(100)  # the consumer
    with wait:
        await anyio.sleep(6)  # unpacking
        assert await wait.next(ready) == "piece"
    await anyio.sleep(100)
    assert await wait.next(ready) == "piece"
    with wait:
        await anyio.sleep(5)
        with pytest.raises(ModelTransportError, match="isn't complete after 10 s"):
            await wait.next(ready)


@pytest.mark.scenario("SM-13")
@pytest.mark.parametrize(
    ("head", "piece"),
    [(b"", gzip.compress(b"", mtime=0) * 1000), (gzip.compress(b"", mtime=0)[:10], b"\x00\x00\x00\xff\xff" * 10_000)],
    ids=["members", "blocks"],
)
async def test_an_answer_that_unpacks_to_nothing_ends(
    head: bytes, piece: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes is counted before it is unpacked as well, and other tasks run while it is."""
    monkeypatch.setattr(_http, "MOST_BYTES", 500_000)
    answer = httpx.Response(200, headers=SSE | {"content-encoding": "gzip"}, stream=Endless(head, piece))
    async with counting_turns() as turns:
        with pytest.raises(ModelBehaviorError, match="longer than 500000 bytes"):
            await ask(mock_model(answer))
    assert turns.count > 500_000 / 65_536
