"""Public servers of the protocol, from package registries: their tools are listed and called."""

import json
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anyio
import pytest

pytest.importorskip("mcp", reason="needs the extra mcp: nox -s mcp")
pytest.importorskip("mcp_server_time", reason="needs the public servers: nox -s mcp")

from mcp_servers.processes import MARKS, START_SECONDS

from agentloop import Agent, Runner
from agentloop.mcp import MCPServer
from agentloop.testing import ScriptedModel, call, say

pytestmark = MARKS


class _Page(BaseHTTPRequestHandler):
    """One page, and the permission for robots to read it."""

    def do_GET(self) -> None:
        robots = self.path == "/robots.txt"
        body = b"User-agent: *\nAllow: /\n" if robots else b"<html><body><h1>Notes</h1><p>Buy milk.</p></body></html>"
        self.send_response(200)
        self.send_header("content-type", "text/plain" if robots else "text/html")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Write nothing."""


@pytest.fixture
def page() -> Iterator[str]:
    """The address of a page on this machine."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Page)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/notes"
    server.shutdown()
    thread.join()
    server.server_close()


async def ask(server: MCPServer, tool: str, arguments: dict[str, Any]) -> tuple[list[str], str]:
    """Return the names of the tools that *server* lists, and the output of one call."""
    model = ScriptedModel([call(tool, arguments), say("Done.")])
    result = await Runner.run(Agent("asker", model=model, toolsets=[server]), "Go.")
    (settled,) = result.calls
    assert settled.outcome.status == "succeeded", settled.outcome
    output = settled.outcome.output
    text = output if isinstance(output, str) else "".join(part.text for part in output or () if hasattr(part, "text"))
    return [shown.name for shown in model.requests[0].tools], text


def server_of(module: str, *arguments: str, **options: Any) -> MCPServer:
    """Return the source of the tools of one package, by stdio."""
    command = [sys.executable, "-m", module, *arguments]
    return MCPServer(name=module, command=command, connect_timeout=START_SECONDS, **options)


@pytest.mark.scenario("TS-03")
async def test_clock_tells_the_time() -> None:
    """`mcp-server-time`: the time of a zone is now."""
    server = server_of("mcp_server_time", "--local-timezone", "UTC")
    tools, text = await ask(server, "get_current_time", {"timezone": "UTC"})
    assert tools == ["get_current_time", "convert_time"]
    told = datetime.fromisoformat(json.loads(text)["datetime"])
    assert abs((datetime.now(UTC) - told).total_seconds()) < 60


@pytest.mark.scenario("TS-03")
async def test_repository_shows_its_status(tmp_path: Path) -> None:
    """`mcp-server-git`: a new file is untracked."""
    await anyio.run_process(["git", "init", "-q", "-b", "trunk", str(tmp_path)])
    (tmp_path / "notes.txt").write_text("Buy milk.\n")
    server = server_of("mcp_server_git", "--repository", str(tmp_path), filter=["git_status"])
    tools, text = await ask(server, "git_status", {"repo_path": str(tmp_path)})
    assert tools == ["git_status"]
    assert "trunk" in text
    assert "notes.txt" in text


@pytest.mark.scenario("TS-03")
async def test_page_is_fetched(page: str) -> None:
    """`mcp-server-fetch`: a page of this machine comes as Markdown."""
    tools, text = await ask(server_of("mcp_server_fetch", "--allow-private-ips"), "fetch", {"url": page})
    assert tools == ["fetch"]
    assert "Buy milk." in text
