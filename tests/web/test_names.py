"""A page on the internet can't reach an application on this machine: `Host` and `Origin` are looked at by default."""

from importlib.util import find_spec
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from web.agents import Watched, deleting, looking
from web.harness import ask

from agentloop._common.web_names import WebNames, host_of, is_loopback
from agentloop.asgi import AgentApp
from agentloop.exceptions import UserTypeError

pytestmark = [pytest.mark.real_clock]
HELLO = {"input": "hello"}
LOCAL = ("127.0.0.1", 8000)
PUBLIC = ("192.0.2.7", 443)
AG_UI = find_spec("ag_ui") is not None
REQUESTS: list[tuple[str, str, Any]] = [
    ("POST", "/runs", HELLO),
    ("GET", "/runs/0123456789abcdef/events", None),
    ("POST", "/runs/0123456789abcdef/cancel", {}),
    ("POST", "/verdicts", {"handle": "x", "verdicts": [{"call_id": "c", "approve": True}]}),
    *([("POST", "/ag-ui", {})] if AG_UI else []),
    ("OPTIONS", "/runs", None),
]


@pytest.mark.scenario("SM-15")
@pytest.mark.parametrize(("method", "path", "body"), REQUESTS)
@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        ("evil.example:8000", "http://evil.example:8000", 421),  # its name was made to lead here
        ("evil.example:8000", None, 421),
        ("127.0.0.1:8000", "https://evil.example", 403),
        ("127.0.0.1:8000", "http://127.0.0.1:9000", 403),  # another server of this machine
        ("127.0.0.1:8000", "null", 403),
        ("127.0.0.1:8000", "file://", 403),
        ("localhost:8000", "http://127.0.0.1:8000", 403),
    ],
)
async def test_requests_of_other_sites_are_refused(
    method: str, path: str, body: Any, host: str, origin: str | None, status: int
) -> None:
    """Before anything is read or run, whatever the path; the sentence names the option."""
    watched = Watched()
    headers = {"host": host} if origin is None else {"host": host, "origin": origin}
    async with AgentApp(watched.agent(deleting()), ag_ui=AG_UI) as app:
        answer = await ask(app, method, path, body, headers=headers, server=LOCAL)
    assert answer.status == status
    assert "AgentApp(" in answer.json["error"]
    assert not any(name.startswith("access-control") for name in answer.headers)


@pytest.mark.scenario("SM-15")
@pytest.mark.parametrize(
    ("options", "server", "host", "origin", "status"),
    [
        ({}, LOCAL, "127.0.0.1:8000", None, 200),
        ({}, LOCAL, "LocalHost:8000", "http://localhost:8000", 200),
        ({}, LOCAL, "app.localhost", "https://app.localhost", 200),
        ({}, ("::1", 8000), "[::1]:8000", "http://[::1]:8000", 200),
        ({}, ("::ffff:127.0.0.1", 8000), "127.0.0.1", None, 200),
        ({}, LOCAL, "localhost.evil.example", None, 421),
        ({}, LOCAL, "user@localhost", None, 421),
        ({}, LOCAL, "localhost:port", None, 421),
        ({}, LOCAL, "", None, 421),
        # A server that others reach has names that we can't know; its own pages may send requests, and no others.
        ({}, PUBLIC, "agents.example", "https://agents.example", 200),
        ({}, PUBLIC, "agents.example", "https://evil.example", 403),
        ({}, None, "agents.example", None, 200),
        ({}, ("/run/agents.sock", None), "agents.example", None, 200),
        # Behind a proxy of this machine.
        ({"hosts": ["agents.example"]}, LOCAL, "agents.example", "https://agents.example", 200),
        ({"hosts": ["Agents.example"]}, LOCAL, "AGENTS.example:8443", None, 200),
        ({"hosts": ["agents.example:8443"]}, LOCAL, "agents.example:8444", None, 421),
        ({"hosts": ["agents.example"]}, LOCAL, "127.0.0.1:8000", None, 421),
        ({"hosts": ["agents.example"]}, PUBLIC, "evil.example", None, 421),
        ({"hosts": ["*"]}, LOCAL, "evil.example", "https://evil.example", 200),
        # With a front end elsewhere.
        ({"origins": ["https://App.example/"]}, LOCAL, "localhost:8000", "https://app.example", 200),
        ({"origins": ["https://app.example"]}, LOCAL, "localhost:8000", "http://app.example", 403),
        ({"origins": ["*"]}, LOCAL, "localhost:8000", "https://evil.example", 200),
        ({"origins": ["*"]}, LOCAL, "evil.example", "https://evil.example", 421),
        ({"hosts": [], "origins": []}, PUBLIC, "agents.example", None, 421),
    ],
)
async def test_own_names_and_those_of_the_application_are_taken(
    options: dict[str, Any], server: Any, host: str, origin: str | None, status: int
) -> None:
    """As they are given to `AgentApp`, in any case of letters, with a port or without."""
    headers = {"host": host} if origin is None else {"host": host, "origin": origin}
    app = AgentApp(Watched().agent(looking()), **options)
    assert (await ask(app, "POST", "/runs", HELLO, headers=headers, server=server)).status == status


async def test_a_local_server_needs_a_host() -> None:
    """No browser leaves it out, so a request without one is of no page; HTTP/1.1 demands it, and so do we."""
    app = AgentApp(Watched().agent(looking()))
    assert (await ask(app, "POST", "/runs", HELLO, server=LOCAL)).status == 421


@given(st.text(), st.sampled_from(["", ":80", ":x", ":99999", "@", "/", "?", "#", "."]), st.text(max_size=3))
def test_no_other_text_is_a_local_name(name: str, middle: str, rest: str) -> None:
    """What a browser could take for another host is none of this machine's."""
    host = f"{name}{middle}{rest}"
    found = host_of(host)
    if WebNames().takes_host(host, "127.0.0.1"):
        assert found is not None
        assert is_loopback(found)
        assert host.lower().startswith((found, f"[{found}]"))


@pytest.mark.parametrize("name", ["hosts", "origins"])
@pytest.mark.parametrize("value", ["agents.example", [1], 5])
def test_names_are_a_sequence_of_texts(name: str, value: Any) -> None:
    """One text would be taken for its letters."""
    with pytest.raises(UserTypeError, match=name):
        AgentApp(Watched().agent(looking()), **{name: value})
