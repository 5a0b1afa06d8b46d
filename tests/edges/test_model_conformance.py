"""Each model of the library keeps what the protocol promises; and the suite finds those that don't."""

import json
import select
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from anyio.lowlevel import checkpoint, current_token
from edges import parrot, responses_socket
from edges import realtime_server as realtime
from edges.parrot import make_parrot
from edges.responses_fixture import make_stream
from edges.responses_fixture import wire as write_events

from agentloop.abc import Model
from agentloop.exceptions import ModelTransportError
from agentloop.items import AssistantMessage, ToolCall, UserMessage
from agentloop.model_events import (
    ArgumentsDelta,
    ItemDone,
    ModelRequest,
    ResponseDone,
    ResponseStarted,
    TextDelta,
)
from agentloop.models import AnthropicModel, OpenAIChatModel, OpenAIResponsesModel, RealtimeModel
from agentloop.testing import FunctionModel, RecordingModel, ReplayModel, ScriptedModel, call, fail, say, wait
from agentloop.testing.conformance import ModelConformance
from agentloop.usage import RequestUsage

ANSWER = [say("Hello, here I am."), call("look", {"where": "here"})]
REFUSED = ModelTransportError("refused")

# ---------------------------------------------------------------------------------------------- ours


class TestScriptedModel(ModelConformance):
    """Text and a call, as often as it is asked."""

    def make_model(self) -> Model:
        """Return a model with a long script."""
        return ScriptedModel([ANSWER] * 100)

    def make_failing_model(self) -> Model:
        """Return a model that fails within its answer."""
        return ScriptedModel([[say("Hel"), fail(REFUSED)], fail(REFUSED)])

    def make_stalled_model(self) -> Model:
        """Return a model that waits within its answer."""
        return ScriptedModel([[say("Hel"), wait(anyio.Event())]] * 100)


async def refuse(request: ModelRequest) -> None:
    await checkpoint()
    raise REFUSED


async def stall(request: ModelRequest) -> None:
    await anyio.Event().wait()


class TestFunctionModel(ModelConformance):
    """A function that is asked, sync or async."""

    def make_model(self) -> Model:
        """Return a model that gives text and a call."""
        return FunctionModel(lambda request: ANSWER)

    def make_failing_model(self) -> Model:
        """Return a model whose function raises."""
        return FunctionModel(refuse)

    def make_stalled_model(self) -> Model:
        """Return a model whose function never returns."""
        return FunctionModel(stall)


class TestRecordingModel(TestFunctionModel):
    """Around another model, writing all the while."""

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.path = tmp_path / "cassette.json"

    def make_model(self) -> Model:
        """Return a model that is recorded."""
        return RecordingModel(super().make_model(), self.path)

    def make_failing_model(self) -> Model:
        """Return a failing model that is recorded."""
        return RecordingModel(super().make_failing_model(), self.path)

    def make_stalled_model(self) -> Model:
        """Return a stalled model that is recorded."""
        return RecordingModel(super().make_stalled_model(), self.path)


class TestReplayModel(ModelConformance):
    """From a cassette that holds its answer many times."""

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.path = tmp_path

    def _recorded(self, name: str, model: Model) -> Model:
        path = self.path / name

        async def record() -> None:
            async with RecordingModel(model, path).stream(self.request) as events:
                async for _ in events:
                    pass

        thread = threading.Thread(target=_ignoring, args=(record,))  # the test's own loop is running here
        thread.start()
        thread.join()
        cassette = json.loads(path.read_text())
        cassette["takes"] *= 100
        path.write_text(json.dumps(cassette))
        return ReplayModel(path)

    def make_model(self) -> Model:
        """Return a model that replays text and a call."""
        return self._recorded("answer.json", ScriptedModel([ANSWER]))

    def make_failing_model(self) -> Model:
        """Return a model that replays a failure."""
        return self._recorded("failure.json", ScriptedModel([[say("Hel"), fail(REFUSED)]]))


def _ignoring(record: Any) -> None:
    with suppress(ModelTransportError):
        anyio.run(record)


# ---------------------------------------------------------------------------------------------- over the wire


def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return b"data: " + json.dumps({"id": "r", "choices": [choice]}).encode() + b"\n\n"


CALL = {"index": 0, "id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"a"'}}
MORE = {"index": 0, "function": {"arguments": ": 1}"}}
BEGUN = chunk({"content": "Hel"})
WHOLE = [
    BEGUN,
    chunk({"content": "lo"}),
    chunk({"tool_calls": [CALL]}),
    chunk({"tool_calls": [MORE]}, "tool_calls"),
    b'data: {"id": "r", "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}}\n\n',
    b"data: [DONE]\n\n",
]


SPEECH = [
    b'data: {"words": "Hel"}\n\n',
    b'data: {"words": "lo"}\n\n',
    b'data: {"call": ["c1", "look", "{\\"a\\": 1}"]}\n\n',
    b'data: {"seeds": 3}\n\n',
]
MESSAGE = [
    b'data: {"type": "message_start", "message": {"id": "r"}}\n\n'
    b'data: {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "Hel"}}\n\n',
    b'data: {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "lo"}}\n\n',
    b'data: {"type": "content_block_start", "index": 1,'
    b' "content_block": {"type": "tool_use", "id": "c1", "name": "look", "input": {"a": 1}}}\n\n',
    b'data: {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 2}}\n\n',
    b'data: {"type": "message_stop"}\n\n',
]
EVENTS = make_stream(
    [
        {"type": "message", "id": "m", "content": [{"type": "output_text", "text": "Hello, here"}]},
        {"type": "function_call", "id": "f", "call_id": "c1", "name": "look", "arguments": '{"a": 1}'},
    ]
)
SHOWN = next(at for at, event in enumerate(EVENTS) if event["type"].endswith(".delta")) + 1
RESPONSE = [write_events(EVENTS[:SHOWN]), write_events(EVENTS[SHOWN:])]
ANSWERS_BY_PATH = {"chat": WHOLE, "responses": RESPONSE, "messages": MESSAGE, "parrot": SPEECH}
"""Each format's pieces of one whole answer; the first one shows output."""


class Server(ThreadingHTTPServer):
    """A server of several formats in threads, so that it serves any event loop; knows how many answers are open."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.open = 0
        self.changed = threading.Condition()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def count(self, difference: int) -> None:
        with self.changed:
            self.open += difference
            self.changed.notify_all()

    def wait_closed(self) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: not self.open, timeout=5), f"{self.open} answers are open"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: clients may go at any moment."""


class Handler(BaseHTTPRequestHandler):
    """Answers by the path, which is `/FORMAT/KIND/…`: whole, with a refusal, cut off, or without end."""

    protocol_version = "HTTP/1.1"
    server: Server

    def do_POST(self) -> None:
        self.server.count(1)
        try:
            self.rfile.read(int(self.headers["content-length"]))
            _, form, kind, *_ = self.path.split("/")
            pieces = ANSWERS_BY_PATH[form]
            if kind == "refused":
                self._send(503, b'{"error": {"message": "full"}}')
            elif kind == "cut":
                self._send(200, pieces[0])
            elif kind == "endless":
                self._endless(pieces[0])
            else:
                self._send(200, b"".join(pieces))
        finally:
            self.server.count(-1)

    def _send(self, status: int, body: bytes) -> None:
        self._head(status, ("content-length", str(len(body))))
        self.wfile.write(body)

    def _endless(self, begun: bytes) -> None:
        self._head(200, ("transfer-encoding", "chunked"))
        self.wfile.write(f"{len(begun):x}\r\n".encode() + begun + b"\r\n")
        select.select([self.connection], [], [], 10)  # readable: the client has closed
        self.close_connection = True

    def _head(self, status: int, header: tuple[str, str]) -> None:
        self.send_response(status)
        self.send_header("content-type", "text/event-stream" if status == 200 else "application/json")
        self.send_header(*header)
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A running server."""
    with Server() as server:
        thread = threading.Thread(target=partial(server.serve_forever, poll_interval=0.01))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


class HttpConformance(ModelConformance):
    """The suite over real sockets; the server tells whether answers were closed."""

    form = ""

    def make_http_model(self, base_url: str) -> Model:
        """Return a model for the server at *base_url*."""
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def _server(self, server: Server) -> None:
        self.server = server

    def make_model(self) -> Model:
        """Return a model that the server answers."""
        return self.make_http_model(f"{self.server.url}/{self.form}/whole")

    def make_failing_model(self) -> Model:
        """Return a model that the server refuses."""
        return self.make_http_model(f"{self.server.url}/{self.form}/refused")

    def make_stalled_model(self) -> Model:
        """Return a model that the server lets wait."""
        return self.make_http_model(f"{self.server.url}/{self.form}/endless")

    async def all_closed(self) -> None:
        """Ask the server."""
        await anyio.to_thread.run_sync(self.server.wait_closed)


@pytest.mark.real_clock
class TestOpenAIChatModel(HttpConformance):
    """Chat Completions."""

    form = "chat"

    def make_http_model(self, base_url: str) -> Model:
        """Return a chat model."""
        return OpenAIChatModel("m", base_url=base_url)


@pytest.mark.real_clock
class TestOpenAIResponsesModel(HttpConformance):
    """Responses."""

    form = "responses"

    def make_http_model(self, base_url: str) -> Model:
        """Return a model of responses."""
        return OpenAIResponsesModel("m", base_url=base_url)


@pytest.mark.real_clock
class TestAnthropicModel(HttpConformance):
    """Anthropic Messages."""

    form = "messages"

    def make_http_model(self, base_url: str) -> Model:
        """Return a model of messages."""
        return AnthropicModel("m", base_url=base_url)


CALL_OF_TALK = realtime.Call("look", '{"a": 1}', "c1")
SCRIPTS: dict[str, realtime.Script] = {
    "whole": lambda talk: (realtime.Say(("Hel", "lo")), CALL_OF_TALK),
    "failing": lambda talk: (realtime.Say(("Hel",)), realtime.Drop()),
    "endless": lambda talk: (realtime.Say(("Hel",)), realtime.Stall()),
}


@pytest.fixture(scope="module")
def realtime_servers() -> Iterator[dict[str, realtime.RealtimeServer]]:
    """A running server of each script."""
    with ExitStack() as stack:
        yield {kind: stack.enter_context(realtime.realtime_server(script)) for kind, script in SCRIPTS.items()}


@pytest.mark.real_clock
class TestRealtimeModel(ModelConformance):
    """A realtime interface: an answer is closed once the server has ended it."""

    @pytest.fixture(autouse=True)
    def _servers(self, realtime_servers: dict[str, realtime.RealtimeServer]) -> None:
        self.servers = realtime_servers

    def make_model(self) -> Model:
        """Return a model that the server answers."""
        return RealtimeModel("m", base_url=self.servers["whole"].url)

    def make_failing_model(self) -> Model:
        """Return a model whose connection breaks."""
        return RealtimeModel("m", base_url=self.servers["failing"].url)

    def make_stalled_model(self) -> Model:
        """Return a model that the server lets wait."""
        return RealtimeModel("m", base_url=self.servers["endless"].url)

    async def all_closed(self) -> None:
        """Ask the servers."""
        for server in self.servers.values():
            await anyio.to_thread.run_sync(server.wait_idle)


CALL_OF_SOCKET = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "look", "arguments": '{"a": 1}'}
SOCKET_SCRIPTS: dict[str, responses_socket.Script] = {
    "whole": responses_socket.says(responses_socket.message("Hello"), CALL_OF_SOCKET),
    "failing": lambda server: [*make_stream([responses_socket.message("Hello")])[:5], responses_socket.DROP],
    "endless": lambda server: [*make_stream([responses_socket.message("Hello")])[:5], responses_socket.STALL],
}


@pytest.fixture(scope="module")
def socket_servers() -> Iterator[dict[str, responses_socket.SocketServer]]:
    """A running server of each script."""
    with ExitStack() as stack:
        yield {kind: stack.enter_context(responses_socket.socket_server(one)) for kind, one in SOCKET_SCRIPTS.items()}


@pytest.mark.real_clock
class TestResponsesOverWebSocket(ModelConformance):
    """The events of Responses, over connections that are kept."""

    @pytest.fixture(autouse=True)
    def _servers(self, socket_servers: dict[str, responses_socket.SocketServer]) -> None:
        self.servers = socket_servers

    def _make(self, kind: str) -> Model:
        return OpenAIResponsesModel("m", base_url=self.servers[kind].url, websocket=True)

    def make_model(self) -> Model:
        """Return a model that the server answers."""
        return self._make("whole")

    def make_failing_model(self) -> Model:
        """Return a model whose connection breaks."""
        return self._make("failing")

    def make_stalled_model(self) -> Model:
        """Return a model that the server lets wait."""
        return self._make("endless")

    async def all_closed(self) -> None:
        """Ask the servers."""
        for server in self.servers.values():
            await anyio.to_thread.run_sync(server.wait_idle)


@pytest.mark.real_clock
class TestParrot(HttpConformance):
    """A provider from outside of the package, in under eighty lines."""

    form = "parrot"

    def make_http_model(self, base_url: str) -> Model:
        """Return a bird."""
        return make_parrot("polly", base_url=base_url)


def test_a_provider_outside_of_the_package_is_short() -> None:
    """A codec is all that a new provider needs."""
    assert len(Path(parrot.__file__).read_text().splitlines()) < 80


@pytest.mark.parametrize("kind", ["cut off", "not there"])
@pytest.mark.real_clock
async def test_other_failures_of_servers_are_typed_too(kind: str, server: Server, anyio_backend: Any) -> None:
    """An answer that breaks off and an address without a server both give typed errors."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        nobody = f"http://127.0.0.1:{free.getsockname()[1]}"

    class Suite(ModelConformance):
        def make_failing_model(self) -> Model:
            return OpenAIChatModel("m", base_url=f"{server.url}/chat/cut" if kind == "cut off" else nobody)

    await Suite().test_failures_are_typed_and_never_a_short_answer()


# ---------------------------------------------------------------------------------------------- the suite itself


DONE = ResponseDone((AssistantMessage("Hello"), ToolCall("c1", "look")), RequestUsage(input_tokens=1))
GOOD = [
    ResponseStarted(),
    TextDelta("Hel"),
    TextDelta("lo"),
    ItemDone(DONE.items[0]),
    ArgumentsDelta("c1", "{}"),
    ItemDone(DONE.items[1]),
    DONE,
]
EVENTS: dict[str, list[Any]] = {
    "never done": GOOD[:-1],
    "done twice": [*GOOD, DONE],
    "done too early": [DONE, *GOOD[:-1]],
    "dicts for events": [{"type": "text"}, *GOOD],
    "no item": [ResponseDone(("Hello",))],  # type: ignore[arg-type]
    "negative usage": [ResponseDone((), RequestUsage(input_tokens=-1))],
    "usage of its own": [ResponseDone((), {"tokens": 1})],  # type: ignore[arg-type]
    "items that aren't in the answer": [ItemDone(AssistantMessage("other")), DONE],
    "items in another order": [ItemDone(DONE.items[1]), ItemDone(DONE.items[0]), DONE],
    "pieces that are missing": [TextDelta("Hel"), DONE],
    "arguments of no call": [ArgumentsDelta("c9", "{}"), DONE],
    "one id twice": [ResponseDone((ToolCall("c1", "a"), ToolCall("c1", "b")))],
    "no id": [ResponseDone((ToolCall("", "a"),))],
}


class Play:
    """The events of one answer. An error among them is raised, None never ends."""

    pauses = True

    def __init__(self, events: list[Any]) -> None:
        self.events = list(events)

    def __aiter__(self) -> Any:
        return self

    async def __anext__(self) -> Any:
        if self.pauses:
            await checkpoint()
        if not self.events:
            raise StopAsyncIteration
        event = self.events.pop(0)
        if isinstance(event, Exception):
            raise event
        if event is None:
            await anyio.Event().wait()
        return event


class Good(Model):
    """A sound model; what is derived from it has one fault each."""

    events = GOOD

    def __init__(self) -> None:
        self.entered = self.open = 0

    async def __aenter__(self) -> Any:
        self.entered += 1
        return self

    async def __aexit__(self, *error: Any) -> None:
        self.entered -= 1

    def stream(self, request: ModelRequest) -> Any:
        return self._open(request)

    @asynccontextmanager
    async def _open(self, request: ModelRequest) -> AsyncIterator[Any]:
        if not self.entered:
            raise ModelTransportError("closed")
        self.open += 1
        try:
            yield self._played()
        finally:
            self.open -= 1

    def _played(self) -> Any:
        return Play(self.events)


class NeverOpen(Good):
    is_open = False


class Settings(Good):
    default_settings = {}  # noqa: RUF012


class EntersAnother(Good):
    async def __aenter__(self) -> Any:
        self.entered += 1
        return Good()


class FirstLeaverCloses(Good):
    async def __aexit__(self, *error: Any) -> None:
        self.entered = 0


class Once(Good):
    def stream(self, request: ModelRequest) -> Any:
        stream, self.stream = super().stream(request), None  # type: ignore[assignment,method-assign]
        return stream


class ChangesTheRequest(Good):
    def stream(self, request: ModelRequest) -> Any:
        request.items.append(UserMessage("more"))  # type: ignore[attr-defined]
        return super().stream(request)


class Shares(Good):
    """Answers that are open together come from one stream of events."""

    shared: Any = None

    def _played(self) -> Any:
        if self.open == 1 or self.shared is None:
            self.shared = super()._played()
        return self.shared


class GoesOn(Good):
    def _played(self) -> Any:
        class Endless(Play):
            async def __anext__(self) -> Any:
                try:
                    return await super().__anext__()
                except StopAsyncIteration:
                    self.events = [TextDelta("more")]
                    raise

        return Endless(self.events)


class NoCheckpoint(Good):
    def _played(self) -> Any:
        play = Play(self.events)
        play.pauses = False
        return play


class OneLoop(Good):
    loop: Any = None

    async def __aenter__(self) -> Any:
        self.loop = self.loop or current_token()
        assert self.loop == current_token(), "made for another loop"
        return await super().__aenter__()


class StaysOpen(Good):
    """An answer counts as closed only once all of it was given."""

    @asynccontextmanager
    async def _open(self, request: ModelRequest) -> AsyncIterator[Any]:
        self.open += 1
        play = self._played()
        with suppress(Exception):
            yield play
        if not play.events:
            self.open -= 1


class Swallows(Good):
    @asynccontextmanager
    async def _open(self, request: ModelRequest) -> AsyncIterator[Any]:
        with suppress(Exception):
            yield self._played()


class Renames(Good):
    @asynccontextmanager
    async def _open(self, request: ModelRequest) -> AsyncIterator[Any]:
        try:
            yield self._played()
        except Exception as error:
            raise ModelTransportError("something went wrong") from error


class RenamesCancellation(Good):
    @asynccontextmanager
    async def _open(self, request: ModelRequest) -> AsyncIterator[Any]:
        try:
            yield self._played()
        except anyio.get_cancelled_exc_class() as error:
            raise ModelTransportError("connection lost") from error  # noqa: ASYNC104 - the fault


class BreaksWhenCancelled(Good):
    lost = False

    @asynccontextmanager
    async def _open(self, request: ModelRequest) -> AsyncIterator[Any]:
        if self.lost:
            raise ModelTransportError("lost")
        self.lost = True
        yield self._played()
        self.lost = False


class Stalls(Good):
    events = [ResponseStarted(), None]  # noqa: RUF012


class StallsAndLingers(Good):
    """Takes a second to notice that it was cancelled."""

    def _played(self) -> Any:
        class Lingering(Play):
            async def __anext__(self) -> Any:
                try:
                    await anyio.Event().wait()
                finally:
                    with anyio.CancelScope(shield=True):
                        await anyio.sleep(1)

        return Lingering([])


class FailsUntyped(Good):
    events = [ConnectionResetError("reset")]  # noqa: RUF012


class FailsDone(Good):
    events = [DONE, REFUSED]  # noqa: RUF012


ONE = "test_an_answer_ends_with_its_one_done"
ITEMS = "test_items_that_are_done_are_the_answers"
PIECES = "test_pieces_are_those_of_the_answer"
IDS = "test_calls_of_an_answer_have_ids_of_their_own"
LEFT = "test_an_answer_that_is_left_is_closed"
CANCELLED = "test_a_cancelled_request_is_over_and_the_next_is_whole"
OWN = "test_an_error_of_who_reads_comes_out_as_it_is"
ENDLESS = "test_an_answer_that_never_ends_can_be_cancelled"
FAILURES = "test_failures_are_typed_and_never_a_short_answer"
FAULTS: list[tuple[type[Any], str]] = [
    (object, "test_it_is_a_model"),
    (Settings, "test_it_is_a_model"),
    (NeverOpen, "test_an_entered_model_is_open"),
    (EntersAnother, "test_an_entered_model_is_open"),
    (Once, "test_it_can_be_asked_again"),
    (ChangesTheRequest, "test_it_can_be_asked_again"),
    (Shares, "test_answers_of_one_time_dont_mix"),
    (FirstLeaverCloses, "test_several_may_enter_it"),
    (GoesOn, "test_after_its_end_an_answer_stays_ended"),
    (NoCheckpoint, "test_a_cancelled_scope_lets_no_answer_come"),
    (StaysOpen, LEFT),
    (StaysOpen, CANCELLED),
    (RenamesCancellation, CANCELLED),
    (BreaksWhenCancelled, CANCELLED),
    (Swallows, OWN),
    (Renames, OWN),
    (Good, ENDLESS),
    (StallsAndLingers, ENDLESS),
    (Good, FAILURES),
    (FailsUntyped, FAILURES),
    (FailsDone, FAILURES),
]
ANSWERS: list[tuple[list[Any], str]] = [
    (GOOD[:-1], ONE),
    ([*GOOD, DONE], ONE),
    ([DONE, *GOOD[:-1]], ONE),
    ([{"type": "text"}, *GOOD], ONE),
    ([ResponseDone(("Hello",))], ONE),  # type: ignore[arg-type]
    ([ResponseDone((), RequestUsage(input_tokens=-1))], ONE),
    ([ResponseDone((), {"tokens": 1})], ONE),  # type: ignore[arg-type]
    ([ItemDone(AssistantMessage("other")), DONE], ITEMS),
    ([ItemDone(DONE.items[1]), ItemDone(DONE.items[0]), DONE], ITEMS),
    ([TextDelta("Hel"), DONE], PIECES),
    ([ArgumentsDelta("c9", "{}"), DONE], PIECES),
    ([ResponseDone((ToolCall("c1", "a"), ToolCall("c1", "b")))], IDS),
    ([ResponseDone((ToolCall("", "a"),))], IDS),
]
FAULTS += [(type("Answers", (Good,), {"events": events}), test) for events, test in ANSWERS]


def suite_of(kind: type[Any]) -> ModelConformance:
    """Return the suite of a model that knows how many answers are open."""
    made: list[Any] = []

    class Suite(ModelConformance):
        request = ModelConformance.request.replace(items=[*ModelConformance.request.items])
        patience = 0.1

        def make_model(self) -> Model:
            made.append(kind())
            return made[-1]

        make_failing_model = make_stalled_model = make_model

        async def all_closed(self) -> None:
            while any(getattr(model, "open", 0) for model in made):
                await checkpoint()
                await anyio.sleep(0.001)  # time must pass for the suite's patience to end

    return Suite()


@pytest.mark.parametrize(("kind", "test"), FAULTS, ids=lambda value: getattr(value, "__name__", value))
@pytest.mark.backends("asyncio", "trio-virtual")
async def test_the_suite_finds_a_faulty_model(kind: type[Any], test: str, anyio_backend: Any) -> None:
    """Each planted fault fails the test that is there for it, by an assertion or with the model's own error."""
    with pytest.raises((AssertionError, ModelTransportError, TypeError, ExceptionGroup)):  # noqa: ASYNC401 - one of several
        await getattr(suite_of(kind), test)()


def test_the_suite_finds_a_model_made_for_one_loop() -> None:
    """Such a model serves the first loop and not the second."""
    with pytest.raises(AssertionError, match="another loop"):
        suite_of(OneLoop).test_it_serves_one_event_loop_after_the_other()


class TestGood(ModelConformance):
    """The model that the faulty ones are derived from has no fault; the others are faulty in one way."""

    def make_model(self) -> Model:
        """Return it."""
        return Good()

    def make_stalled_model(self) -> Model:
        """Return one that stalls."""
        return Stalls()


def test_each_rule_has_a_double_that_breaks_it() -> None:
    """A rule that no model breaks may be no rule at all."""
    rules = {name for name in vars(ModelConformance) if name.startswith("test_")}
    assert {test for _, test in FAULTS} == rules - {"test_it_serves_one_event_loop_after_the_other"}
    with pytest.raises(NotImplementedError):
        ModelConformance().make_model()
