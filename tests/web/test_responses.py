"""`RunResponse` and `AgentApp` whose runs end with their clients, in one process."""

from typing import Any

import anyio
import pytest
from web.agents import Watched, deleting, holding, looking
from web.harness import ask, parse_frames, send_request

from agentloop import Agent, Runner, SealKey, UserError, to_json
from agentloop.asgi import AgentApp, Grant, HTTPRefusal, RunResponse, WebLimits, WebRequest
from agentloop.asgi._writer import format_frame
from agentloop.exceptions import MaxTurnsExceeded
from agentloop.testing import ScriptedModel, call, say

HELLO = {"input": "hello"}


async def test_response_streams_the_public_form_of_every_event() -> None:
    """The frames are the events of a streamed run, each with its kind, its id and its JSON form."""
    expected = []
    steps = [call("look", {"path": "a"}), say("It is old.")]
    async with Runner.run_streamed(Watched().agent(steps), "hello") as stream:
        async for event in stream:
            expected.append((stream.last_event_id, to_json(event)))
    for app in (AgentApp(Watched().agent(steps)), RunResponse(Watched().agent(steps), "hello")):
        response = await ask(app, "POST", "/runs", HELLO)
        assert response.status == 200
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert response.is_whole
        got = [(frame.number, frame.data) for frame in response.frames]
        assert [(number, data["type"]) for number, data in got] == [(number, one["type"]) for number, one in expected]
        assert got[-1] == expected[-1]


@pytest.mark.scenario("VI-06")
async def test_run_has_ended_when_the_response_of_a_client_that_left_returns() -> None:
    """The body is cancelled, and its cleanup is over, before the ASGI callable returns."""
    watched = Watched()
    async with send_request(AgentApp(watched.agent(holding())), "POST", "/runs", HELLO) as response:
        await watched.started.wait()
        response.leave()
        await response.end()
        assert watched.ended == ["hold"]
    assert "run_ended" not in response.kinds


@pytest.mark.scenario("VI-06")
async def test_client_may_leave_at_any_frame() -> None:
    """Wherever the client leaves, nothing of the run is left; the suite's leak check looks for tasks."""
    whole = await ask(AgentApp(Watched().agent(looking())), "POST", "/runs", HELLO)
    for count in range(1, len(whole.frames) + 1):
        async with send_request(AgentApp(Watched().agent(looking())), "POST", "/runs", HELLO) as response:
            await response.until(lambda: len(response.frames) >= count)  # noqa: B023 - used within the iteration
            response.leave()
            await response.end()


@pytest.mark.scenario("VI-06")
async def test_client_that_reads_nothing_counts_as_gone_after_the_limit() -> None:
    """The run waits for it at bounded memory, and ends when `send_timeout` has passed."""
    watched = Watched()
    app = AgentApp(watched.agent(holding()), limits=WebLimits(send_timeout=0.05))
    async with send_request(app, "POST", "/runs", HELLO) as response:
        await watched.started.wait()
        response.stuck = True
        watched.free.set()
        await response.end()
    assert watched.ended == ["hold"]
    assert not response.is_whole


async def test_leaving_the_application_ends_requests_whose_client_reads_nothing() -> None:
    """Shutdown hangs neither on a run nor on a client."""
    watched = Watched()
    async with anyio.create_task_group() as group:
        app = AgentApp(watched.agent(holding()), limits=WebLimits(send_timeout=None))

        async def client() -> None:
            async with send_request(app, "POST", "/runs", HELLO) as response:
                await watched.started.wait()
                response.stuck = True
                await response.end()
            refused = await ask(app, "POST", "/runs", HELLO)
            assert (refused.status, refused.json) == (503, {"error": "The application is ending."})

        async with app:
            group.start_soon(client)
            await watched.started.wait()
    assert watched.ended == ["hold"]


async def test_silence_is_filled_with_comments() -> None:
    """A stream in which nothing happens gets a comment, again and again."""
    watched = Watched()
    app = AgentApp(watched.agent(holding()), limits=WebLimits(keep_alive=0.01))
    async with send_request(app, "POST", "/runs", HELLO) as response:
        await response.until(lambda: response.body.count(b": still here\n\n") >= 3)
        watched.free.set()
        await response.end()
    assert response.kinds[-1] == "run_ended"


async def test_run_that_is_cancelled_by_request_shows_its_last_events() -> None:
    """`cancel` ends the run; its stream still ends with the events of the end."""
    watched = Watched()
    app = AgentApp(watched.agent(holding()))
    async with send_request(app, "POST", "/runs", HELLO) as response:
        await watched.started.wait()
        run = response.headers["agentloop-run"]
        assert (await ask(app, "POST", f"/runs/{run}/cancel", {})).status == 202
        await response.end()
    assert response.is_whole
    assert response.frames[-1].data["status"] == "cancelled"
    assert "call_settled" in response.kinds
    assert (await ask(app, "POST", f"/runs/{run}/cancel", {})).status == 404


async def test_one_call_is_cancelled_by_request() -> None:
    """The other calls and the run go on."""
    watched = Watched()
    app = AgentApp(watched.agent(holding()))
    async with send_request(app, "POST", "/runs", HELLO) as response:
        await watched.started.wait()
        run = response.headers["agentloop-run"]
        refused = await ask(app, "POST", f"/runs/{run}/cancel", {"call_id": "other"})
        assert (refused.status, refused.json) == (409, {"error": "No such call is under way."})
        assert (await ask(app, "POST", f"/runs/{run}/cancel", {"call_id": "call_1"})).status == 202
        await response.end()
    assert response.frames[-1].data["status"] == "completed"


async def test_call_of_an_agent_tool_is_cancelled_by_request() -> None:
    """Its path tells it from a call of the outer run that has the same id; both runs go on."""
    watched = Watched()
    scout = watched.agent([call("hold"), say("Held no more.")])
    front = Agent(
        "front",
        model=ScriptedModel([call("scout", {"input": "Rome?"}), say("Done.")]),
        tools=[scout.as_tool("scout", "Ask the scout.")],
    )
    app = AgentApp(front)
    async with send_request(app, "POST", "/runs", HELLO) as response:
        await watched.started.wait()
        path = f"/runs/{response.headers['agentloop-run']}/cancel"
        for body, status, sentence in (
            ({"call_id": "call_1", "path": ["call_9"]}, 409, "No such call is under way."),
            ({"call_id": "call_9", "path": ["call_1"]}, 409, "No such call is under way."),
            ({"path": ["call_1"]}, 400, "The body doesn't fit: a path goes with a call_id."),
            ({"call_id": "call_1", "path": "call_1"}, 400, "Expected `array`, got `str` - at `$.path`"),
        ):
            refused = await ask(app, "POST", path, body)
            assert refused.status == status
            assert sentence in refused.json["error"]
        cancelled = await ask(app, "POST", path, {"call_id": "call_1", "path": ["call_1"]})
        assert cancelled.status == 202
        await response.end()
    settled = [frame.data for frame in response.frames if frame.kind == "call_settled"]
    assert [(one["path"], one["call"]["call_id"], one["outcome"]["status"]) for one in settled] == [
        (["call_1"], "call_1", "cancelled"),
        ([], "call_1", "succeeded"),
    ]
    assert response.frames[-1].data["status"] == "completed"


async def test_error_of_a_run_is_typed_and_holds_nothing_of_the_application(caplog: pytest.LogCaptureFixture) -> None:
    """A client gets the type and a sentence: the text of an exception may hold anything."""
    cases: list[tuple[list[Any], dict[str, Any], str, str]] = [
        ([RuntimeError("postgres://user:pw@db/x")], {}, "InternalError", "The run has failed."),
        ([call("look", {"path": "a"})] * 3, {"max_turns": 2}, "MaxTurnsExceeded", str(MaxTurnsExceeded(2))),
    ]
    for steps, options, kind, message in cases:

        def admit(request: WebRequest, options: Any = options) -> Grant:
            return Grant(options=options)

        from agentloop.testing import fail

        scripted = [fail(step) if isinstance(step, Exception) else step for step in steps]
        response = await ask(AgentApp(Watched().agent(scripted), admit=admit), "POST", "/runs", HELLO)
        assert response.is_whole
        assert response.frames[-1].data == {"type": "error", "error": {"type": kind, "message": message}}
        assert response.frames[-2].data["status"] == "failed"
        assert b"Traceback" not in response.body
        assert b"postgres" not in response.body
    assert "a run for a web client has failed" in caplog.text


BAD: list[tuple[int, str, Any, dict[str, str]]] = [
    (400, "Object missing required field `input`", {}, {}),
    (400, "Expected `str`, got `int` - at `$.input`", {"input": 1}, {}),
    (400, "Object contains unknown field `more`", {"input": "a", "more": 1}, {}),
    (400, "The body is no JSON text.", b"{", {}),
    (400, "Expected `object`, got `array`", b"[]", {}),
    (400, "The body is no JSON text.", b'{"input": "\xff"}', {}),
    (415, "Expected the content type application/json.", {"input": "a"}, {"content-type": "text/plain"}),
    (413, "The body is longer than 200000 bytes.", b"x" * 200_001, {}),
    (413, "The body is longer than 200000 bytes.", b"x" * 200_001, {"content-length": "5"}),
    (413, "The body is longer than 200000 bytes.", b"x", {"content-length": "9" * 5_000}),
]


@pytest.mark.parametrize(("status", "sentence", "body", "headers"), BAD)
async def test_bad_request_is_answered_with_a_sentence(
    status: int, sentence: str, body: Any, headers: dict[str, str]
) -> None:
    """JSON with one sentence, and no run."""
    app = AgentApp(Watched().agent([]), limits=WebLimits(max_body=200_000))
    response = await ask(app, "POST", "/runs", body, headers=headers)
    assert response.status == status
    assert sentence in response.json["error"]
    assert response.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        *[("GET", "/", 404), ("GET", "/runs", 405), ("POST", "/runs/x/events", 405), ("POST", "/runs/x/y", 404)],
        *[("GET", "/runs/x/events", 404), ("GET", "/runs//events", 404), ("POST", "/a/b/c/d", 404)],
        *[("GET", "/runs/../../etc/passwd/events", 404), ("POST", "/runs/x/cancel", 404)],
    ],
)
async def test_other_paths_are_not_there(method: str, path: str, status: int) -> None:
    """An application without journals has no stored runs."""
    response = await ask(AgentApp(Watched().agent([])), method, path, {})
    assert response.status == status
    assert response.json["error"]


async def test_body_that_does_not_come_is_given_up() -> None:
    """A request whose body stops coming is answered after the limit."""

    async def receive() -> Any:
        await anyio.sleep_forever()

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    app = AgentApp(Watched().agent([]), limits=WebLimits(body_timeout=0.01))
    await app({"type": "http", "method": "POST", "path": "/runs", "headers": []}, receive, send)
    assert sent[0]["status"] == 408


async def test_client_that_leaves_within_its_body_starts_nothing() -> None:
    """The application returns without an answer."""

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        raise AssertionError(message)

    await AgentApp(Watched().agent([]))(
        {"type": "http", "method": "POST", "path": "/runs", "headers": []}, receive, send
    )


async def test_admit_gives_options_or_refuses() -> None:
    """It sees what is asked for, and by whom; what it raises besides a `HTTPRefusal` is a 500 without a word of it."""
    seen: list[WebRequest] = []

    async def admit(request: WebRequest) -> Grant | None:
        seen.append(request)
        match request.header("Authorization"):
            case None:
                raise HTTPRefusal(401, "Sign in.")
            case "broken":
                raise RuntimeError("secret")
            case "wrong":
                return "yes"  # type: ignore[return-value]
            case "journal":
                return Grant(options={"journal": None})
        return None

    app = AgentApp(Watched().agent([say("Hi.")]), admit=admit)
    body = {"input": "a", "conversation": "c1"}
    refused = await ask(app, "POST", "/runs", body)
    assert (refused.status, refused.json) == (401, {"error": "Sign in."})
    for value in ("broken", "wrong", "journal"):
        broken = await ask(app, "POST", "/runs", body, headers={"authorization": value})
        assert (broken.status, broken.json) == (500, {"error": "The request has failed."})
    assert (await ask(app, "POST", "/runs", body, headers={"authorization": "me"})).kinds[-1] == "run_ended"
    assert {(request.action, request.run, request.conversation) for request in seen} == {("start", None, "c1")}


async def test_only_so_many_runs_are_under_way() -> None:
    """A run beyond `max_runs` is refused, and starts nothing."""
    watched = Watched()
    app = AgentApp(watched.agent(holding()), limits=WebLimits(max_runs=1))
    async with send_request(app, "POST", "/runs", HELLO):
        await watched.started.wait()
        refused = await ask(app, "POST", "/runs", HELLO)
        assert refused.status == 503


async def test_response_is_for_one_request() -> None:
    """A second call is an error of the application."""
    response = RunResponse(Watched().agent([say("Hi.")]), "hello")
    await ask(response, "GET", "/")
    with pytest.raises(ExceptionGroup) as caught:
        await ask(response, "GET", "/")
    assert caught.group_contains(UserError, match="make another one for each request")


async def test_interrupted_response_without_a_store_has_no_handle() -> None:
    """The application of `RunResponse` keeps the state itself, by `keep_state`, which may fail."""

    async def broken(state: Any) -> str:
        raise OSError("disk")

    plain = await ask(RunResponse(Watched().agent(deleting()), "hello"), "GET", "/")
    assert plain.frames[-1].kind == "interrupted"
    assert plain.frames[-1].data["handle"] is None
    failed = await ask(RunResponse(Watched().agent(deleting()), "hello", keep_state=broken), "GET", "/")
    assert failed.frames[-1].data["error"]["type"] == "InternalError"
    assert failed.is_whole


async def test_other_protocols_and_the_lifespan() -> None:
    """A socket is closed; the lifespan enters and leaves the application."""
    sent: list[str] = []
    messages = iter(["lifespan.startup", "lifespan.shutdown"])

    async def receive() -> Any:
        return {"type": next(messages)}

    async def send(message: Any) -> None:
        sent.append(message["type"])

    app = AgentApp(Watched().agent([]))
    await app({"type": "websocket"}, receive, send)
    await app({"type": "lifespan"}, receive, send)
    assert sent == ["websocket.close", "lifespan.startup.complete", "lifespan.shutdown.complete"]


async def test_arguments_that_do_not_go_together_are_refused() -> None:
    """Each by a sentence, when the application is made."""
    from agentloop.asgi import ClientStates, JournalFolder, MemoryStates

    agent = Watched().agent([])
    wrong: list[dict[str, Any]] = [
        {"on_disconnect": "stay"},
        {"on_disconnect": "continue"},
        {"states": ClientStates()},
        {"states": MemoryStates(), "journals": JournalFolder("runs")},
        {"client_tools": ["pick"]},
        {"client_tools": "pick", "ag_ui": True},
        {"client_tools": [1], "ag_ui": True},
        {"states": 1},
        {"journals": 1},
        {"admit": 1},
        {"limits": 1},
        {"key": 1},
        {"key": b"short"},
        {"key": {}},
        {"key": {"new": SealKey(b"0123456789abcdef", "old")}},
        {"codec": 1},
    ]
    for options in wrong:
        with pytest.raises(UserError):
            AgentApp(agent, **options)
    AgentApp(agent, states=ClientStates(), key=SealKey(b"0123456789abcdef"))
    with pytest.raises(UserError):
        AgentApp("agent")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="status"):
        HTTPRefusal(200, "fine")


async def test_half_a_character_and_raw_events_do_not_break_a_stream() -> None:
    """A delta may end within a character; a provider's own event is left out."""
    from agentloop.items import AssistantMessage
    from agentloop.model_events import ItemDone, Raw, ResponseDone, TextDelta
    from agentloop.testing import stream_of

    item = AssistantMessage("whole")
    events = [Raw({"secret": 1}), TextDelta("half \ud83d"), ItemDone(item), ResponseDone((item,))]
    response = await ask(AgentApp(Watched().agent([stream_of(events)])), "POST", "/runs", HELLO)
    assert [frame.data["text"] for frame in response.frames if frame.kind == "text_delta"] == ["half ?"]
    assert b"secret" not in response.body
    assert parse_frames(format_frame({"type": "x", "list": ["\ud83d", 1]}))[0].data["list"] == ["?", 1]
