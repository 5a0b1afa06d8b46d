"""Servers that want a token: the SDK's OAuth with a real authorisation server, and the page about it."""

import contextlib
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.agents import script_agent
from kit.results import read_statuses
from mcp_servers.processes import MARKS, START_SECONDS, Servers, free_port

from agentloop import Runner
from agentloop.exceptions import UserTypeError
from agentloop.journal import FileJournal
from agentloop.mcp import MCPServer
from agentloop.testing import call, say

pytest.importorskip("mcp", reason="needs the extra mcp: nox -s mcp")
pytestmark = MARKS

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "mcp-oauth.md"


class Storage:
    """Keeps tokens in memory."""

    def __init__(self) -> None:
        self.tokens: Any = None
        self.client: Any = None

    async def get_tokens(self) -> Any:
        """Return the tokens."""
        return self.tokens

    async def set_tokens(self, tokens: Any) -> None:
        """Keep the tokens."""
        self.tokens = tokens

    async def get_client_info(self) -> Any:
        """Return the registration."""
        return self.client

    async def set_client_info(self, client_info: Any) -> None:
        """Keep the registration."""
        self.client = client_info


class Guarded:
    """A server that wants a token, and a user who agrees at once."""

    def __init__(self, http: Servers, **env: str) -> None:
        from mcp.client.auth import OAuthClientProvider
        from mcp.shared.auth import OAuthClientMetadata
        from pydantic import AnyUrl

        self.servers, port = http, free_port()
        http.start("oauth_server.py", port, {"MCP_LOG": str(http.log), **env})
        url = f"http://127.0.0.1:{port}/mcp"
        metadata = OAuthClientMetadata(redirect_uris=[AnyUrl("http://127.0.0.1:1/")])
        self.storage = Storage()
        self.auth = OAuthClientProvider(url, metadata, self.storage, self._send, self._wait)
        self.source = MCPServer(name="guarded", url=url, auth=self.auth, connect_timeout=START_SECONDS)

    async def _send(self, address: str) -> None:
        import httpx2

        async with httpx2.AsyncClient() as browser:
            answer = await browser.get(address)
        self._back = httpx2.URL(answer.headers["location"])

    async def _wait(self) -> Any:
        from mcp.shared.auth import AuthorizationCodeResult

        return AuthorizationCodeResult(**dict(self._back.params))

    def secrets(self) -> list[str]:
        """Return every token that was given."""
        return [line.removeprefix("token ") for line in self.servers.lines() if line.startswith("token ")]

    def steps(self) -> list[str]:
        """Return what the server was asked for, but for tokens."""
        return [line for line in self.servers.lines() if not line.startswith("token ")]


@contextlib.contextmanager
def nothing_leaks(guarded: Guarded, caplog: pytest.LogCaptureFixture, journals: Path) -> Iterator[None]:
    """Fail if a token is in a line of any logger, or in a journal."""
    journals.mkdir()
    caplog.set_level(logging.DEBUG)
    yield
    kept = b"".join(path.read_bytes() for path in journals.rglob("*") if path.is_file()).decode()
    said = "\n".join(logging.Formatter().format(record) for record in caplog.records)
    assert kept
    assert len(guarded.secrets()) == 4
    assert not [one for one in guarded.secrets() if one in kept or one in said or one in repr(guarded.source)]


@pytest.mark.scenario("TS-11")
async def test_refused_token_is_renewed_and_the_call_repeated_once(
    http: Servers, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A 401 in the middle costs a refresh; the user agrees once, each call takes effect once, no token is written."""
    guarded = Guarded(http)
    calls = [call("add", {"a": 1, "b": 2}), call("revoke"), call("add", {"a": 3, "b": 4}), say("done")]
    agent = script_agent("a", *calls, toolsets=[guarded.source])
    with nothing_leaks(guarded, caplog, tmp_path / "journals"):
        result = await Runner.run(agent, "go", journal=FileJournal(tmp_path / "journals" / "one"))
    assert read_statuses(result) == ["succeeded"] * 3
    assert guarded.steps() == ["authorize", "add 1 2", "refresh", "add 3 4"]


@pytest.mark.scenario("TS-11")
async def test_token_whose_time_is_over_is_renewed(
    http: Servers, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Before the next request, without asking the user; a second run begins with the stored tokens."""
    guarded = Guarded(http)
    with nothing_leaks(guarded, caplog, tmp_path / "journals"):
        for name in ("first", "second"):
            agent = script_agent("a", call("add", {"a": 1, "b": 2}), say("done"), toolsets=[guarded.source])
            result = await Runner.run(agent, "go", journal=FileJournal(tmp_path / "journals" / name))
            assert read_statuses(result) == ["succeeded"]
            guarded.auth.context.token_expiry_time = 1.0
    assert guarded.steps() == ["authorize", "add 1 2", "refresh", "add 1 2"]


@pytest.mark.scenario("TS-11")
async def test_user_is_asked_again_where_no_token_can_be_renewed(http: Servers) -> None:
    """The refresh token was withdrawn as well."""
    guarded = Guarded(http)
    calls = [call("revoke", {"refresh": True}), call("add", {"a": 3, "b": 4}), say("done")]
    result = await Runner.run(script_agent("a", *calls, toolsets=[guarded.source]), "go")
    assert read_statuses(result) == ["succeeded"] * 2
    assert guarded.steps() == ["authorize", "authorize", "add 3 4"]


def test_auth_needs_a_place() -> None:
    """It belongs to the requests that the library makes by HTTP."""
    for wrong in ({"command": ["x"]}, {"url": "http://127.0.0.1:1/mcp", "http_client": object()}):
        with pytest.raises(UserTypeError, match="auth needs a url, and belongs in the http_client if you give one"):
            MCPServer(name="x", auth=object(), **wrong)  # type: ignore[arg-type]


@pytest.mark.scenario("TS-11")
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_application_of_the_page_logs_in_once(http: Servers, tmp_path: Path, backend: str) -> None:
    """The user agrees in a browser at the first start; the second one finds the token."""
    port, callback = free_port(), free_port()
    http.start("oauth_server.py", port, {"MCP_LOG": str(http.log)})
    program = PAGE.read_text().split("```python\n")[1].split("```")[0]
    program = program.replace("https://example.com/mcp", f"http://127.0.0.1:{port}/mcp").replace("8976", str(callback))
    (tmp_path / "app.py").write_text(program.replace("anyio.run(main)", f"anyio.run(main, backend={backend!r})"))
    (tmp_path / "browse.py").write_text("import sys, urllib.request\nurllib.request.urlopen(sys.argv[1]).read()\n")
    env = {**os.environ, "BROWSER": f"{sys.executable} {tmp_path / 'browse.py'} %s &"}
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "app.py"],
            cwd=tmp_path, env=env, capture_output=True, text=True, timeout=100, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stdout) == (0, "3 It is 3.\n"), done.stderr
    assert http.lines().count("authorize") == 1
    assert (tmp_path / "tokens.json").stat().st_mode & 0o77 == 0
