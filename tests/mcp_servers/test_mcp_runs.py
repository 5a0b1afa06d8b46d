"""Runs with the tools of real servers, on both transports and in both eras of the protocol."""

import contextlib
import json
import logging
import sys
import threading
import time
from contextvars import ContextVar
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from kit.agents import script_agent
from kit.results import find_outcome, read_outputs, read_requests, read_statuses
from mcp_servers.processes import MARKS, Servers, children, is_running

import agentloop
from agentloop import Agent, Instrument, MaxTurnsExceeded, RunConfig, Runner, RunState, events, open_runtime
from agentloop.exceptions import OutcomeUnknown, ToolSourceError
from agentloop.items import Audio, File, Image, Text
from agentloop.journal import MemoryJournal
from agentloop.mcp import MCPServer, _connection
from agentloop.spans import Span
from agentloop.testing import call, say
from agentloop.testing.replaying import replay

pytest.importorskip("mcp", reason="needs the extra mcp: nox -s mcp")
pytestmark = MARKS


def outputs(result: Any) -> list[Any]:
    """Return the outputs in model order."""
    return list(read_outputs(result.new_items).values())


def shown(agent: Agent[Any, Any]) -> list[set[str]]:
    """Return the names of the tools in each request."""
    return [{tool.name for tool in request.tools} for request in read_requests(agent)]


@pytest.mark.scenario("TS-03")
@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_tools_of_a_server_are_called(servers: Servers, mode: str) -> None:
    """Values, errors by the tool's policy, progress, faults of arguments before anything is sent, the key, parts."""
    server = servers.make("honest_server.py", prefix="h_", mode=mode)
    agent = script_agent(
        "a",
        [
            call("h_add", {"a": 1, "b": 2}),
            call("h_fail"),
            call("h_slow", {"seconds": 0.2}, call_id="slow"),
            call("h_add", {"a": "x"}),
            call("h_key", call_id="key"),
            call("h_parts"),
        ],
        say("done"),
        toolsets=[server],
    )
    seen: list[tuple[float, float | None, str | None]] = []
    keys: list[str] = []
    async with Runner.run_streamed(agent, "go") as stream:
        async for event in stream:
            if isinstance(event, events.CallProgress):
                seen.append((event.progress, event.total, event.message))
    result = stream.result
    first, failed, done, misfit, key, parts = outputs(result)
    assert read_statuses(result) == ["succeeded", "failed", "succeeded", "failed", "succeeded", "succeeded"]
    assert first == "3"
    assert failed == "Tool h_fail failed with: MCPToolError(Error executing tool fail)"
    assert done == "done"
    assert "Arguments of tool h_add don't fit: a: 'x' is not of type 'integer'; 'b' is a required" in misfit
    assert len(key) == 32
    keys.append(key)
    assert parts == (
        Text("words"),
        Image(data="aW1n", media_type="image/png"),
        Audio(data="YXVk", media_type="audio/wav"),
        Text("inside"),
        File(data="Ymlu", media_type="application/x-bin", filename="a.bin"),
        parts[-1],
    )
    assert '"uri": "file:///b.txt"' in parts[-1].text
    assert (0.0, 5.0, "step 0") in seen
    assert servers.lines().count("add 1 2") == 1


@pytest.mark.scenario("SM-18")
@pytest.mark.parametrize("size", [0, 10_000, 100_000])
async def test_model_reads_all_that_a_server_says_of_a_failure(
    servers: Servers, size: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Every line and part, bounded like an output, without credentials; the log skips the heading."""
    said = "### Error\n\nThe file is locked, token=hunter2\n" + "line\n" * (size // 5)
    agent = script_agent("a", call("fail", {"says": said}), say("done"), toolsets=[servers.make()])
    result = await Runner.run(agent, "go")
    (output,) = outputs(result)
    assert read_statuses(result) == ["failed"]
    assert output.startswith("Tool fail failed with: MCPToolError(### Error\n\nThe file is locked, token=[redacted]\n")
    if size < 32_000:
        assert output.endswith("[image/png]\nHint: unlock it.)")
    assert len(output) <= 32_000
    (line,) = [record.getMessage() for record in caplog.records if "failed in call" in record.getMessage()]
    assert line.endswith("MCPToolError(The file is locked, token=[redacted])")


@pytest.mark.scenario("TS-03")
@pytest.mark.parametrize("by", ["timeout", "cancel_call", "run"])
async def test_end_of_a_call_reaches_the_server(servers: Servers, by: str) -> None:
    """Its timeout, its cancellation and that of the run."""
    options = {"timeout": 0.5} if by == "timeout" else {}
    server = servers.make("honest_server.py", **options)
    agent = script_agent("a", call("slow", {"seconds": 60}, call_id="s"), say("done"), toolsets=[server])
    async with server, Runner.run_streamed(agent, "go") as stream:
        async for event in stream:
            if isinstance(event, events.CallProgress):
                if by == "cancel_call":
                    stream.cancel_call("s")
                elif by == "run":
                    stream.cancel()
        with anyio.fail_after(10):
            while "slow cut by CancelledError" not in servers.lines():  # noqa: ASYNC110 - another process writes it
                await anyio.sleep(0.02)
    status = {"timeout": "timed_out", "cancel_call": "rejected", "run": "cancelled"}[by]
    assert find_outcome(stream.result, "s").status in (status, "cancelled")


@pytest.mark.scenario("TS-02")
async def test_changed_tools_show_in_a_later_turn(servers: Servers) -> None:
    """The server tells of them; by HTTP the notice comes by another stream than the answer."""
    server = servers.make("honest_server.py", filter=["grow", "add", "extra"])

    async with server:
        agent = script_agent("a", call("grow"), say("1"), toolsets=[server])
        await Runner.run(agent, "go")
        names = shown(agent)[0]
        assert names == {"add", "grow"}
        with anyio.fail_after(10):
            while "extra" not in names:
                await anyio.sleep(0.02)
                agent = script_agent("a", say("2"), toolsets=[server])
                await Runner.run(agent, "go")
                names = shown(agent)[0]
        agent = script_agent("a", call("extra"), say("3"), toolsets=[server])
        assert outputs(await Runner.run(agent, "go")) == ["extra!"]


@pytest.mark.scenario("TS-02")
async def test_tool_whose_definition_changes_is_made_anew(stdio: Servers) -> None:
    """With a notice its name stays, and its words and schema are others; what hasn't changed is the same object."""
    server = stdio.make(filter=["changing", "change"])
    agent = script_agent(
        "a",
        *[call("changing", {"a": 1}), call("change"), call("changing", {"a": 1}, call_id="3")],
        *[call("changing", {"b": 1}), call("change", call_id="5"), call("changing", {"a": 1}, call_id="6")],
        say("done"),
        toolsets=[server],
    )
    async with server:
        before = {tool.name: tool for tool in await server.tools(None, None)}  # type: ignore[arg-type]
        result = await Runner.run(agent, "go", max_turns=10)
        after = {tool.name: tool for tool in await server.tools(None, None)}  # type: ignore[arg-type]
    assert read_statuses(result) == ["succeeded", "succeeded", "failed", "succeeded", "succeeded", "succeeded"]
    words = [{tool.name: tool.description for tool in request.tools}["changing"] for request in read_requests(agent)]
    assert words == ["Takes a."] * 2 + ["Takes b."] * 3 + ["Takes a."] * 2
    assert before["change"] is after["change"]
    assert before["changing"] is not after["changing"]


@pytest.mark.scenario("TS-04")
@pytest.mark.parametrize("how", ["aclose", "end"])
async def test_old_transport_that_ends_late_costs_no_connection(
    stdio: Servers, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """What is left of a lost connection may tell of its end once the next one is open, which goes on."""
    streams: list[Any] = []

    class Recorded(_connection._MessageStream):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            streams.append(self)

    monkeypatch.setattr(_connection, "_MessageStream", Recorded)
    server = stdio.make()
    agent = script_agent("a", call("die"), call("echo"), say("1"), call("echo", call_id="2"), say("2"))
    agent.toolsets = [server]
    with anyio.fail_after(60):
        async with server:
            assert read_statuses(await Runner.run(agent, "go")) == ["unknown", "succeeded"]
            if how == "aclose":
                await streams[0].aclose()
            else:
                with pytest.raises((anyio.ClosedResourceError, StopAsyncIteration)):
                    await anext(streams[0])
            assert read_statuses(await Runner.run(agent, "go")) == ["succeeded"]
    assert len(streams) == 2


@pytest.mark.scenario("TS-03")
async def test_hints_give_options_that_the_application_overrides(servers: Servers) -> None:
    """A destructive tool waits for a verdict; the policy of the application says otherwise, or more."""
    server = servers.make(options=lambda tool: {"needs_approval": tool.name == "echo", "timeout": 3.0})
    async with server:
        found = {tool.name: tool for tool in await server.tools(None, None)}  # type: ignore[arg-type]
        assert (found["purge"].needs_approval, found["echo"].needs_approval) == (False, True)
        assert found["purge"].timeout == 3.0
        assert (found["again"].reads_only, found["again"].idempotent) == (True, False)
        assert (found["same"].idempotent, found["same"].reads_only) == (True, False)
        assert found["with_dots_and_slashes"].name == "with_dots_and_slashes"
        assert "no_schema" not in found
        plain = servers.make() if servers.kind == "stdio" else MCPServer(name="p", url=server.url)
        agent = script_agent("a", call("purge", call_id="p"), say("done"), toolsets=[plain])
        paused = await Runner.run(agent, "go")
        assert [one.call.call_id for one in paused.interruptions] == ["p"]
        state = RunState.from_json(agent, paused.to_state().to_json())
        state.approve(state.interruptions[0])
        assert outputs(await Runner.run(agent, state)) == ["ok"]


# -- servers that die


@pytest.mark.scenario("TS-04")
async def test_death_within_a_call_leaves_its_outcome_unknown(servers: Servers) -> None:
    """So do others in flight there; calls elsewhere go on, and so does what the caller does."""
    server = servers.make()
    elsewhere = Servers("stdio", servers.folder).make()
    ticks: list[int] = []

    async def tick() -> None:
        while True:
            await anyio.sleep(0.01)
            ticks.append(1)

    agent = script_agent(
        "a",
        [call("die", call_id="1"), call("wait", {"seconds": 20}, call_id="2"), call("o_echo", {"seconds": 0.3})],
        say("done"),
        toolsets=[server, MCPServer(name="o", command=elsewhere.command, prefix="o_", connect_timeout=30)],
    )
    async with anyio.create_task_group() as group:
        group.start_soon(tick)
        result = await Runner.run(agent, "go")
        before = len(ticks)
        await anyio.sleep(0.05)
        assert len(ticks) > before
        group.cancel_scope.cancel()
    assert read_statuses(result) == ["unknown", "unknown", "succeeded"]
    text = (
        "Tool 'die' was interrupted; whether it took effect is unknown: the connection to MCP server 'probe' was lost"
    )
    assert outputs(result)[0].startswith(text)


@pytest.mark.scenario("TS-04")
async def test_next_use_starts_the_server_anew(stdio: Servers, tmp_path: Path) -> None:
    """A tool that only reads runs again by itself, with the same key; any other is called by the model again."""
    flag = str(tmp_path / "flag")
    server = stdio.make()
    agent = script_agent(
        "a",
        call("again", {"dies_without": flag}, call_id="1"),
        call("die", call_id="2"),
        call("echo", {"a": 1}, call_id="3"),
        say("done"),
        toolsets=[server],
    )
    result = await Runner.run(agent, "go")
    assert read_statuses(result) == ["succeeded", "unknown", "succeeded"]


@pytest.mark.scenario("TS-04")
async def test_server_by_http_that_was_started_anew(http: Servers) -> None:
    """Its new process knows nothing of the session: the request is sent again in a new one, once."""
    server = http.make()
    async with server:
        agent = script_agent("a", call("echo", call_id="1"), say("done"), toolsets=[server])
        assert read_statuses(await Runner.run(agent, "go")) == ["succeeded"]
        port = int((server.url or "").rpartition(":")[2].partition("/")[0])
        http.close()
        agent = script_agent("a", call("echo", call_id="1"), say("done"), toolsets=[server])
        result = await Runner.run(agent, "go")
        assert read_statuses(result)[0] in ("unknown", "failed")
        agent = script_agent("a", call("echo", call_id="1"), say("done"), toolsets=[server])
        result = await Runner.run(agent, "go")
        assert "can't be used" in outputs(result)[0]
        http.processes.clear()
        await anyio.to_thread.run_sync(http.start, "raw_server.py", port, {})
        agent = script_agent("a", call("echo", call_id="1"), say("done"), toolsets=[server])
        assert read_statuses(await Runner.run(agent, "go")) == ["succeeded"]
        http.close()
        http.processes.clear()
        await anyio.to_thread.run_sync(http.start, "raw_server.py", port, {})
        agent = script_agent("a", call("echo", call_id="1"), say("done"), toolsets=[server])
        assert read_statuses(await Runner.run(agent, "go")) == ["succeeded"]


def refuse(status: int, code: int, words: str, **message_id: Any) -> str:
    """Return how a server answers a message of a session that it doesn't know."""
    return f"{status} " + json.dumps({"jsonrpc": "2.0", "error": {"code": code, "message": words}, **message_id})


@pytest.mark.scenario("TS-10")
@pytest.mark.parametrize(
    ("refusal", "wanted"),
    [
        (refuse(404, -32600, "Session not found", id=None), None),
        (refuse(404, -32001, "Session not found", id=None), None),
        (refuse(400, -32000, "Bad Request: No valid session ID provided"), None),
        ("400 Missing or unknown Session", None),
        (refuse(400, -32602, "no such field", id=None), "no such field"),
        (refuse(400, -32602, "session_name: expected text", id=None), "session_name: expected text"),
        (refuse(404, -32601, "no such method", id=None), "no such method"),
    ],
)
async def test_a_session_that_a_server_no_longer_knows_is_opened_anew(
    http: Servers, refusal: str, wanted: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """In the words of both official SDKs, and of the many servers that say 400; another refusal is the call's. That the
    old session can't be ended is no warning.
    """
    server = http.make()
    port = int((server.url or "").rpartition(":")[2].partition("/")[0])
    async with server:
        http.close()
        http.processes.clear()
        await anyio.to_thread.run_sync(http.start, "raw_server.py", port, {"RAW_REFUSAL": refusal})
        agent = script_agent("a", call("echo", {"text": "one"}), say("done"), toolsets=[server])
        result = await Runner.run(agent, "go")
    assert read_statuses(result) == ["succeeded" if wanted is None else "failed"]
    assert (wanted or "one") in outputs(result)[0]
    assert ("Session termination failed" in caplog.text) == (wanted is not None)


async def test_server_that_cannot_be_reached_ends_the_run_and_is_named(servers: Servers) -> None:
    """The first time; and the run can be resumed."""
    if servers.kind == "stdio":
        server = MCPServer(name="gone", command=["/no/such/program"])
    else:
        server = MCPServer(name="gone", url="http://127.0.0.1:9/mcp")
    agent = script_agent("a", say("done"), toolsets=[server])
    journal = MemoryJournal()
    with pytest.raises(ToolSourceError, match="tool source 'gone' failed: MCPConnectionError: MCP server 'gone' can't"):
        await Runner.run(agent, "go", journal=journal)
    agent.toolsets = []
    assert (await Runner.resume(agent, journal)).final_output == "done"


@pytest.mark.parametrize(
    ("program", "wanted"),
    [
        (
            "raise SystemExit('the variable HOST is not set')",
            ["ended with exit code 1", "    the variable HOST is not"],
        ),
        ("raise ValueError('a' * 5_000)", ["exit code 1", "Traceback (most", "    ValueError: aaaa", "…"]),
        ("import sys; sys.stderr.write('no end of line'); sys.exit(3)", ["exit code 3", "    no end of line"]),
        ("import os, sys; sys.stderr.write('token=hunter2\\x1b[2J'); os._exit(4)", ["token=[redacted]", "exit code 4"]),
        ("print('Server v1 started'); import time; time.sleep(60)", ["no answer within 2", "    Server v1 started"]),
        ("import sys; [sys.stderr.write(f'line {n}\\n') for n in range(500)]", ["exit code 0", "    line 499"]),
    ],
)
async def test_error_about_a_server_has_its_last_words(program: str, wanted: list[str]) -> None:
    """Of a program that ends or prints at its start: how it ended and what it wrote, bounded and without secrets."""
    server = MCPServer(name="s", command=[sys.executable, "-u", "-c", program], connect_timeout=2.0, grace=0.2)
    agent = script_agent("a", say("done"), toolsets=[server])
    with pytest.raises(ToolSourceError) as caught:
        await Runner.run(agent, "go")
    text = str(caught.value)
    assert [part for part in wanted if part not in text] == []
    assert "hunter2" not in text
    assert "\x1b" not in text
    assert len(text) < 4_000
    assert len(text.splitlines()) <= 11


@pytest.mark.parametrize(
    ("status", "wanted"),
    [
        (401, "it answered 401 Unauthorized (is a key missing in `headers`, or does it want a login: `auth`?)"),
        (403, "it answered 403 Forbidden"),
        (404, "it answered 404 Not Found (is it the endpoint of streamable HTTP? The older transport, SSE, isn't"),
        (405, "it answered 405 Method Not Allowed (is it the endpoint"),
        (500, "it answered 500 Internal Server Error"),
        (302, "it answered 302 Found"),
    ],
)
@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_error_about_a_server_by_http_has_the_status(status: int, wanted: str, mode: str) -> None:
    """A missing key, a wrong path, an older kind of server, one that fails."""

    class Refuse(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            """Say nothing."""

    web = ThreadingHTTPServer(("127.0.0.1", 0), Refuse)
    thread = threading.Thread(target=web.serve_forever)
    thread.start()
    try:
        url = f"http://127.0.0.1:{web.server_port}/mcp?key=hunter2"
        agent = script_agent("a", say("done"), toolsets=[MCPServer(name="s", url=url, mode=mode)])
        with pytest.raises(ToolSourceError) as caught:
            await Runner.run(agent, "go")
    finally:
        await anyio.to_thread.run_sync(web.shutdown)
        web.server_close()
        thread.join()
    assert wanted in str(caught.value)
    assert "hunter2" not in str(caught.value)


async def test_server_that_says_nothing_is_given_up(stdio: Servers) -> None:
    """Within the time for the connection, and its process ends."""
    server = MCPServer(name="mute", command=["sleep", "600"], connect_timeout=0.5, grace=0.2)
    began = time.monotonic()
    with pytest.raises(ToolSourceError, match=r"TimeoutError: no answer within 0\.5 seconds"):
        await Runner.run(script_agent("a", say("done"), toolsets=[server]), "go")
    assert time.monotonic() - began < 8


# -- ownership


@pytest.mark.scenario("TS-06")
@pytest.mark.parametrize("how", ["completed", "failed", "cancelled", "interrupted"])
async def test_run_closes_the_connection_it_opened(stdio: Servers, how: str) -> None:
    """However it ends; children of the server end with it."""
    server = stdio.make(
        env={"RAW_STAYS": "1"}, grace=0.2, options=lambda tool: {"needs_approval": tool.name == "purge"}
    )
    steps = {
        "completed": [say("done")],
        "failed": [call("echo", call_id=f"{n}") for n in range(2)],
        "cancelled": [call("wait", {"seconds": 60}, call_id="2")],
        "interrupted": [call("purge", call_id="2")],
    }[how]
    agent = script_agent("a", call("child", call_id="1"), *steps, toolsets=[server])
    result: Any = None
    if how == "failed":
        with pytest.raises(MaxTurnsExceeded) as caught:
            await Runner.run(agent, "go", max_turns=1)
        result = caught.value.run_data
    elif how == "cancelled":
        async with Runner.run_streamed(agent, "go") as stream:
            async for event in stream:
                if isinstance(event, events.CallProgress):
                    stream.cancel()
        result = stream.result
    else:
        result = await Runner.run(agent, "go")
    child = int(find_outcome(result, "1").output)
    with anyio.fail_after(5):
        while is_running(child):  # noqa: ASYNC110 - the system ends it
            await anyio.sleep(0.01)


@pytest.mark.scenario("TS-06")
async def test_connection_of_a_runtime_lives_on(stdio: Servers) -> None:
    """Runs inside share it, concurrent ones too; it ends with the runtime's block, also if that raises."""
    server = stdio.make()
    before = children()
    with pytest.raises(ZeroDivisionError):
        async with open_runtime():
            async with anyio.create_task_group() as group:
                for number in range(3):
                    agent = script_agent(f"a{number}", call("echo"), say("done"), toolsets=[server])
                    group.start_soon(Runner.run, agent, "go")
            (pid,) = children() - before
            agent = script_agent("b", call("echo"), say("done"), toolsets=[server])
            await Runner.run(agent, "go")
            assert children() - before == {pid}
            raise ZeroDivisionError
    assert children() == before


@pytest.mark.scenario("TS-06")
@pytest.mark.scenario("TS-12")
async def test_any_task_may_close_what_another_has_opened(servers: Servers) -> None:
    """Two servers, opened in tasks that have ended, closed by others in the order of opening; runs use both."""
    first, second = servers.make(prefix="a_"), servers.make(prefix="b_")
    before = children()

    async def in_a_task(work: Any, *given: Any) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(work, *given)

    for server in (first, second):
        await in_a_task(server.__aenter__)
    agent = script_agent("a", call("a_echo"), call("b_echo"), say("done"), toolsets=[first, second])
    assert read_statuses(await Runner.run(agent, "go")) == ["succeeded"] * 2
    for server in (first, second):
        await in_a_task(server.__aexit__, None, None, None)
    assert children() == before
    agent = script_agent("a", call("a_echo"), say("done"), toolsets=[first])
    assert read_statuses(await Runner.run(agent, "go")) == ["succeeded"]  # over a connection of its own


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_query_of_the_endpoint_is_in_no_log(http: Servers, caplog: pytest.LogCaptureFixture, mode: str) -> None:
    """It may hold a key; the client below logs the URL of each request."""
    server = http.make(mode=mode)
    server.url = f"{server.url}?key=hunter2"
    agent = script_agent("a", call("echo"), say("done"), toolsets=[server])
    with caplog.at_level(logging.INFO):
        assert read_statuses(await Runner.run(agent, "go")) == ["succeeded"]
    assert "POST http://127.0.0.1" in caplog.text
    assert "hunter2" not in caplog.text


async def test_client_says_that_it_is_this_library(servers: Servers) -> None:
    """With its version, for the logs of a server."""
    agent = script_agent("a", call("client"), say("done"), toolsets=[servers.make()])
    (said,) = outputs(await Runner.run(agent, "go"))
    assert json.loads(said) == {"name": "agentloop", "version": agentloop.__version__}


SPAN: ContextVar[str] = ContextVar("span", default="none")


class Marks(Instrument):
    """Makes the kind of each span current, as a tracing system does with its own."""

    def on_span_start(self, span: Span) -> None:
        """Set the variable for what follows in this task."""
        SPAN.set(span.kind)


@pytest.mark.parametrize("held", [False, True], ids=["run", "block"])
async def test_connection_belongs_to_the_trace_of_its_opener(
    stdio: Servers, monkeypatch: pytest.MonkeyPatch, held: bool
) -> None:
    """The requests that open it are made in the context of the run that wants it, or of the block."""
    from agentloop.mcp import _stdio

    seen: list[str] = []
    opened = _stdio.open_process

    def note(*given: Any, **options: Any) -> Any:
        seen.append(SPAN.get())
        return opened(*given, **options)

    monkeypatch.setattr(_stdio, "open_process", note)
    server = stdio.make()
    agent = script_agent("a", say("done"), toolsets=[server])
    config = RunConfig(instruments=[Marks()])
    if held:
        SPAN.set("block")
        async with server:
            await Runner.run(agent, "go", run_config=config)
    else:
        await Runner.run(agent, "go", run_config=config)
    assert seen == ["block" if held else "agent"]


@pytest.mark.parametrize("held", ["run", "block", "runtime"])
async def test_pause_that_ends_a_server_is_warned_of(
    stdio: Servers, caplog: pytest.LogCaptureFixture, held: str
) -> None:
    """Once, where the run itself has opened it: the resumed run has a server that remembers nothing."""
    server = stdio.make()
    agent = script_agent("a", call("purge", call_id="1"), call("purge", call_id="2"), say("done"), toolsets=[server])
    around: Any = {"run": contextlib.nullcontext(), "block": server, "runtime": open_runtime()}[held]
    async with around:
        result = await Runner.run(agent, "go")
        while result.interruptions:
            state = result.to_state()
            state.approve(state.interruptions[0])
            result = await Runner.run(agent, state)
    assert read_statuses(result) == ["succeeded"] * 2
    assert caplog.text.count("its process ends, because the run that opened it pauses") == (held == "run")


@pytest.mark.scenario("TS-06")
@pytest.mark.parametrize("when", ["opening", "open", "opening again"])
async def test_cancelled_owner_leaves_nothing(stdio: Servers, when: str) -> None:
    """Its task is cancelled while it opens the server, holds it, or has lost it: the process ends with the block."""
    silent = [sys.executable, "-c", "import time; time.sleep(600)"]
    server = MCPServer(name="s", command=silent, connect_timeout=600) if when == "opening" else stdio.make()
    before = children()
    opened = anyio.Event()

    async def own() -> None:
        async with server:
            if when == "opening again":
                agent = script_agent("a", call("die"), say("done"), toolsets=[server])
                assert read_statuses(await Runner.run(agent, "go")) == ["unknown"]
            opened.set()
            await anyio.sleep_forever()

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(own)
            if when == "opening":
                while children() == before:  # noqa: ASYNC110 - another process begins
                    await anyio.sleep(0.01)
            else:
                await opened.wait()
            group.cancel_scope.cancel()
    assert children() == before
    agent = script_agent("a", call("echo"), say("done"), toolsets=[stdio.make()])
    assert read_statuses(await Runner.run(agent, "go")) == ["succeeded"]


@pytest.mark.scenario("TS-06")
async def test_block_of_the_application_raises_its_own_error(servers: Servers) -> None:
    """Bare; and a dead server cancels nothing in it."""
    server = servers.make()
    with pytest.raises(ZeroDivisionError):
        async with server:
            agent = script_agent("a", call("die"), say("done"), toolsets=[server])
            result = await Runner.run(agent, "go")
            assert isinstance(result.calls[0].outcome.error, OutcomeUnknown)
            await anyio.sleep(0.2)
            raise ZeroDivisionError


async def test_nested_run_uses_the_connection_of_the_outer_one(stdio: Servers) -> None:
    """An agent tool asks the same server: one process for both."""
    server = stdio.make()
    before = children()
    seen: list[int] = []

    class Counting:
        async def tools(self, ctx: Any, agent: Any) -> Any:
            found = await server.tools(ctx, agent)
            seen.append(len(children() - before))
            return found

    inner = script_agent("inner", call("echo"), say("inner done"), toolsets=[Counting()])
    agent = script_agent("a", call("inner", {"input": "x"}), say("done"), toolsets=[server])
    agent.tools = [inner.as_tool()]
    result = await Runner.run(agent, "go")
    assert outputs(result) == ["inner done"]
    assert set(seen) == {1}


# -- many calls


async def test_hundred_calls_at_once_on_one_connection(servers: Servers) -> None:
    """Each gets its own answer."""
    server = servers.make()
    calls = [call("echo", {"n": n, "seconds": 0.01}, call_id=f"c{n}") for n in range(100)]
    agent = script_agent("a", calls, say("done"), toolsets=[server])
    result = await Runner.run(agent, "go")
    assert outputs(result) == [f'{{"n": {n}, "seconds": 0.01}}' for n in range(100)]


# -- replay


@pytest.mark.scenario("TS-01")
async def test_journal_replays_without_the_server(servers: Servers) -> None:
    """A server that died in a call, a fault of arguments, an approval: nothing of it is connected to again."""
    server = servers.make(options=lambda tool: {"timeout": 0.2} if tool.name == "never" else None)
    agent = script_agent(
        "a",
        [
            call("echo", {"a": 1}, call_id="1"),
            call("strict", {"n": "x"}, call_id="2"),
            call("never", call_id="3"),
            call("purge", call_id="4"),
        ],
        call("die", call_id="5"),
        say("done"),
        toolsets=[server],
    )
    journal = MemoryJournal()
    paused = await Runner.run(agent, "go", journal=journal)
    state = await RunState.from_journal(agent, journal)
    assert paused.interruptions
    state.reject(state.interruptions[0])
    result = await Runner.run(agent, state, journal=journal)
    assert read_statuses(result) == ["succeeded", "failed", "timed_out", "rejected", "unknown"]
    servers.close()
    gone = Agent("a", model=agent.model, toolsets=[MCPServer(name="probe", command=["/no/such/program"])])
    for backend in ("asyncio", "trio"):
        replayed = await anyio.to_thread.run_sync(lambda backend=backend: replay(journal, gone, backend=backend))
        assert replayed.result is not None
        assert read_statuses(replayed.result) == read_statuses(result)


async def test_stderr_goes_to_logging(stdio: Servers, caplog: pytest.LogCaptureFixture) -> None:
    """Each line within bounds, and with nothing that could control a terminal."""
    with caplog.at_level(logging.INFO, "agentloop.mcp"):
        server = stdio.make()
        agent = script_agent("a", call("noise"), say("done"), toolsets=[server])
        await Runner.run(agent, "go")
    lines = [record.message for record in caplog.records if record.name == "agentloop.mcp"]
    assert "MCP server probe: last \\x1b[31mwords" in lines
    assert max(map(len, lines)) < 2_100
