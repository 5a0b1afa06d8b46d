"""Agents as an MCP server: progress, cancellation, approvals, in both eras and over a real process."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from kit.agents import script_agent
from mcp_servers.processes import MARKS, START_SECONDS, children

import agentloop
from agentloop import Agent, Runner, ToolContext, UserError, tool
from agentloop.exceptions import ModelTransportError, ToolLoopDetected, UserTypeError
from agentloop.mcp import MCPServer, build_server
from agentloop.testing import FunctionModel, call, say

pytest.importorskip("mcp", reason="needs the extra mcp: nox -s mcp")
pytestmark = [*MARKS, pytest.mark.scenario("TS-08")]

RAN: list[str] = []
SECRET = "postgresql://app:canary@db/x refused at /srv/app/secret.py"
ERRORS = {
    "break": ToolLoopDetected("again and again"),
    "transport": ModelTransportError(SECRET),
    "own": RuntimeError(SECRET),
}
"""What the model raises, by the text that it is asked."""


@tool(needs_approval=True, secret=("pin",))
async def pay(n: int, pin: str = "") -> str:
    """Pay."""
    RAN.append("paid")
    return "paid"


@tool
async def hang() -> str:
    """Hang."""
    try:
        await anyio.sleep(100)
    finally:
        RAN.append("cut")
    return ""


def answer(request: Any) -> Any:
    """Do what the first message says."""
    wanted = request.items[0].text
    if wanted in ERRORS:
        raise ERRORS[wanted]
    if request.turn == 1 and wanted in ("pay", "hang"):
        return call(wanted, {"n": 1, "pin": "4711"} if wanted == "pay" else {}, call_id="1")
    return say(f"done: {request.items[-1].output if wanted == 'pay' else wanted}")


payer = Agent("pay master", model=FunctionModel(answer), tools=[pay, hang], handoff_description="Pays.")


@pytest.mark.parametrize("mode", ["auto", "legacy"])
@pytest.mark.parametrize("approved", [True, False])
async def test_approval_reaches_the_user_of_the_client(mode: str, approved: bool) -> None:
    """By elicitation, over the session or with the sealed state; the run goes on either way."""
    from mcp import Client
    from mcp.types import ElicitResult

    RAN.clear()
    asked: list[str] = []
    seen: list[str] = []

    async def elicit(ctx: Any, params: Any) -> ElicitResult:
        asked.append(params.message)
        return ElicitResult(action="accept", content={"approve": approved})

    async def progress(done: float, total: float | None, message: str | None) -> None:
        seen.append(message or "")

    async with Client(build_server(payer), elicitation_callback=elicit, mode=mode) as client:
        (listed,) = (await client.list_tools()).tools
        assert client.server_info.version == agentloop.__version__
        assert (listed.name, listed.description) == ("pay_master", "Pays.")
        result = await client.call_tool("pay_master", {"input": "pay"}, progress_callback=progress)
    assert len(asked) == 1
    assert asked[0].startswith('pay master wants to call pay with {"n": 1, "pin": ')
    assert "4711" not in asked[0]
    assert (["paid"] if approved else []) == RAN
    assert not result.is_error
    assert result.content[0].text.startswith("done: paid" if approved else "done: ")
    assert "turn 1" in seen


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_cancelled_call_cancels_the_run(mode: str) -> None:
    """And the client hears of an error of the run."""
    from mcp import Client

    RAN.clear()
    async with Client(build_server(payer), mode=mode) as client:
        with anyio.move_on_after(0.5):
            await client.call_tool("pay_master", {"input": "hang"})
        with anyio.fail_after(5):
            while not RAN:  # noqa: ASYNC110 - the server's task does it
                await anyio.sleep(0.01)
        assert RAN == ["cut"]
        failed = await client.call_tool("pay_master", {"input": "break"})
        assert failed.is_error
        assert failed.content[0].text.endswith("ToolLoopDetected: again and again")


@pytest.mark.parametrize("mode", ["auto", "legacy"])
@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("transport", "ModelTransportError: The model could not be reached, or has answered with an error."),
        ("own", "InternalError: The run has failed."),
    ],
)
async def test_words_of_an_error_stay_here(mode: str, error: str, words: str, caplog: pytest.LogCaptureFixture) -> None:
    """The client reads a fixed sentence, as a web client does; the log has the words, in one line."""
    from mcp import Client

    async with Client(build_server(payer), mode=mode) as client:
        failed = await client.call_tool("pay_master", {"input": error})
    assert failed.is_error
    assert failed.content[0].text.endswith(words)
    assert "canary" not in str(failed)
    (line,) = [record.getMessage() for record in caplog.records if "a run for an MCP client" in record.getMessage()]
    assert "secret.py" in line


@pytest.mark.scenario("SM-14")
async def test_state_of_a_client_is_resumed_once() -> None:
    """A client that sends it again, at the same time or later, starts nothing, and is told why."""
    from mcp import Client
    from mcp.types import ElicitResult

    RAN.clear()
    said: list[str] = []

    async def unasked(ctx: Any, params: Any) -> Any:
        raise AssertionError

    async with Client(build_server(payer), mode="auto", elicitation_callback=unasked) as client:
        first = await client.session.call_tool("pay_master", {"input": "pay"}, allow_input_required=True)
        answers = {key: ElicitResult(action="accept", content={"approve": True}) for key in first.input_requests}

        async def resume() -> None:
            given: Any = {"input_responses": answers, "request_state": first.request_state}
            said.append((await client.session.call_tool("pay_master", {"input": "pay"}, **given)).content[0].text)

        async with anyio.create_task_group() as group:
            group.start_soon(resume)
            group.start_soon(resume)
        await resume()
    assert RAN == ["paid"]
    assert [text.startswith("done: paid") for text in said].count(True) == 1
    assert ["This answer was given before" in text for text in said].count(True) == 2


@pytest.mark.parametrize("mode", ["auto", "legacy"])
@pytest.mark.parametrize("client", ["silent", "refusing", "own"])
async def test_client_that_cannot_ask_has_the_call_rejected(mode: str, client: str, tmp_path: Path) -> None:
    """It has said so, or answers with an error, or is ours: the run goes on, and its model learns why."""
    from mcp import Client
    from mcp.types import ErrorData

    RAN.clear()

    async def refuse(ctx: Any, params: Any) -> ErrorData:
        return ErrorData(code=-32603, message="nobody is here")

    if client == "own":
        command, env = serving(tmp_path)
        server = MCPServer(name="s", command=command, env=env, cwd=str(tmp_path), connect_timeout=START_SECONDS)
        server.mode = mode
        agent = script_agent("a", call("echo", {"input": "ask"}), say("done"), toolsets=[server])
        text = (await Runner.run(agent, "go")).calls[0].outcome.output
    elif client == "silent" or mode == "auto":
        async with Client(build_server(payer), mode=mode) as session:
            text = (await session.call_tool("pay_master", {"input": "pay"})).content[0].text
    else:
        async with Client(build_server(payer), mode=mode, elicitation_callback=refuse) as session:
            text = (await session.call_tool("pay_master", {"input": "pay"})).content[0].text
    assert RAN == []
    assert "The client can't ask its user for approval." in text


SERVED = """
import anyio
from agentloop import Agent, tool
from agentloop.testing import FunctionModel, call, say

@tool
async def hang() -> str:
    "Hang."
    try:
        open("hangs", "w").close()
        await anyio.sleep(100)
    finally:
        open("cut", "w").close()
    return ""

@tool(needs_approval=True)
async def ask() -> str:
    "Ask."
    return "asked"

def answer(request):
    if request.turn > 1:
        return say("done: " + request.items[-1].output)
    text = request.items[-1].text
    if text in ("hang", "ask"):
        return call(text)
    return say("heard " + text)

echo = Agent("echo", model=FunctionModel(answer), tools=[hang, ask])
"""


def serving(folder: Path, *options: str) -> tuple[list[str], dict[str, str]]:
    """Return the command that serves the agent by stdio, and its environment."""
    (folder / "served.py").write_text(SERVED)
    return [sys.executable, "-m", "agentloop.cli", "serve", "served.py:echo", *options], {"PYTHONPATH": ROOT}


ROOT = str(Path(__file__).parents[2])


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
async def test_agent_served_by_a_process_is_a_tool_of_another(tmp_path: Path, backend: str) -> None:
    """`agentloop serve` on one side, `MCPServer` on the other."""
    command, env = serving(tmp_path, "--backend", backend)
    server = MCPServer(name="echo", command=command, env=env, cwd=str(tmp_path), connect_timeout=START_SECONDS)
    agent = script_agent("a", call("echo", {"input": "this"}), say("done"), toolsets=[server])
    result = await Runner.run(agent, "go")
    assert result.calls[0].outcome.output == "heard this"


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
async def test_signal_ends_a_served_agent_and_its_runs(tmp_path: Path, backend: str) -> None:
    """The tools of a run under way clean up; the exit code names the signal."""
    command, env = serving(tmp_path, "--backend", backend)
    server = MCPServer(name="echo", command=command, env=env, cwd=str(tmp_path), connect_timeout=START_SECONDS)
    before = children()
    async with server:
        (pid,) = children() - before
        agent = script_agent("a", call("echo", {"input": "hang"}), say("done"), toolsets=[server])

        async def stop() -> None:
            while not (tmp_path / "hangs").exists():  # noqa: ASYNC110, ASYNC240 - another process makes it
                await anyio.sleep(0.01)
            os.kill(pid, signal.SIGTERM)

        async with anyio.create_task_group() as group:
            group.start_soon(stop)
            result = await Runner.run(agent, "go")
    assert result.calls[0].outcome.status in ("unknown", "failed")
    assert (tmp_path / "cut").exists()  # noqa: ASYNC240 - as above


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["nothing.py:agent"], "there is no file 'nothing.py'"),
        (["served.py:echo", "--http", "8000", "--backend", "trio"], "--http needs --backend asyncio"),
    ],
)
def test_wrong_use_of_the_command_is_named(tmp_path: Path, options: list[str], words: str) -> None:
    """By exit code 2 and a sentence."""
    _, env = serving(tmp_path)
    command = [sys.executable, "-m", "agentloop.cli", "serve", *options]
    done = subprocess.run(command, cwd=tmp_path, env={**os.environ, **env}, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert words in done.stderr


async def test_each_run_of_a_served_agent_has_a_context_of_its_own() -> None:
    """`make_context` is called for each call of the tool."""
    from mcp import Client

    @tool
    async def tell(ctx: ToolContext[list[str]]) -> str:
        """Tell about the context."""
        ctx.context.append("told")
        return ", ".join(ctx.context)

    model = FunctionModel(lambda request: call("tell") if request.turn == 1 else say(str(request.items[-1].output)))
    agent = Agent("teller", model=model, tools=[tell])
    contexts: list[list[str]] = []

    def make() -> list[str]:
        contexts.append([f"run {len(contexts)}"])
        return contexts[-1]

    async with Client(build_server(agent, make_context=make)) as client:
        answers = [(await client.call_tool("teller", {"input": "x"})).content[0].text for _ in range(2)]
    assert answers == ["run 0, told", "run 1, told"]


def test_server_needs_agents() -> None:
    """Anything else is refused."""
    with pytest.raises(UserError, match="expected an agent"):
        build_server()
    with pytest.raises(UserTypeError, match="agents: expected an Agent"):
        build_server("agent")  # type: ignore[arg-type]
