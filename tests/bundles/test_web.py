"""`Web`: which addresses are refused, where a connection goes to, and what becomes of an answer."""

import ipaddress
import socket
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.agents import Run, script_agent
from kit.results import read_outputs

from agentloop import Runner, UserError
from agentloop.bundles import Web
from agentloop.bundles import _web as web_module
from agentloop.bundles._web import is_public, to_text
from agentloop.testing import call, say

pytestmark = pytest.mark.scenario("WB-01")
PUBLIC = "93.184.215.14"
Answer = Callable[[httpx.Request], httpx.Response]


class Net:
    """A resolver and a server. `names` has the addresses of each name, one list for each question."""

    def __init__(self, answer: Answer, names: dict[str, list[list[str]]]) -> None:
        self.answer, self.names, self.requests = answer, names, list[httpx.Request]()

    async def getaddrinfo(self, host: str, port: int, **options: Any) -> list[Any]:
        """Return the next addresses of *host*, or those that it is."""
        if host not in self.names:
            return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        found = self.names[host]
        return [(0, 0, 0, "", (one, port)) for one in (found.pop(0) if len(found) > 1 else found[0])]

    def __call__(self, request: httpx.Request) -> httpx.Response:
        """Note the request, and answer it."""
        self.requests.append(request)
        return self.answer(request)


@pytest.fixture
def net(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Net]:
    """Return the maker of a network."""

    def make(answer: Answer, **names: list[list[str]]) -> Net:
        made = Net(answer, {name.replace("_", "."): found for name, found in names.items()})
        monkeypatch.setattr(web_module.anyio, "getaddrinfo", made.getaddrinfo)
        monkeypatch.setattr(web_module, "make_transport", lambda: httpx.MockTransport(made))
        return made

    return make


async def fetch(url: str, run: Any = Runner.run, **options: Any) -> str:
    """Return the output of one call."""
    agent = script_agent("a", call("fetch_page", {"url": url}), say("done"), bundles=[Web(**options)])
    (output,) = read_outputs((await run(agent, "go")).new_items).values()
    return str(output)


def page(text: str = "hello", kind: str = "text/plain", status: int = 200) -> Answer:
    """Return a server of one page."""
    return lambda request: httpx.Response(status, text=text, headers={"content-type": kind})


async def test_a_page_is_read_from_the_address_that_was_checked(run_mode: Run, net: Callable[..., Net]) -> None:
    """The name stays in the `Host` header and in TLS."""
    made = net(page("<p>Hello <b>you</b></p><script>x</script>", "text/html"), example_org=[[PUBLIC]])
    assert await fetch("https://example.org:8443/a?b=c#d", run_mode) == "Hello you"
    (request,) = made.requests
    assert str(request.url) == f"https://{PUBLIC}:8443/a?b=c"
    made.names["sixth"] = [["2606:2800:21f:cb07:6820:80da:af6b:8b2c"]]
    assert await fetch("http://sixth/", run_mode) == "Hello you"
    assert str(made.requests[-1].url) == "http://[2606:2800:21f:cb07:6820:80da:af6b:8b2c]/"
    assert request.headers["host"] == "example.org:8443"
    assert request.extensions["sni_hostname"] == "example.org"


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "2130706433", "0x7f000001", "017700000001", "127.1", "0.0.0.0", "10.0.0.1", "169.254.169.254"),
        *("192.168.1.1", "100.64.0.1", "224.0.0.1", "255.255.255.255", "[::1]", "[::]", "[fe80::1]", "[fc00::1]"),
        *("[::ffff:127.0.0.1]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]", "[ff02::1]", "[::127.0.0.1]", "[fec0::1]"),
    ],
)
async def test_no_form_of_a_private_address_is_fetched(host: str, net: Callable[..., Net]) -> None:
    """Decimal, octal, short, IPv6, and IPv4 within IPv6."""
    made = net(page())
    assert "is not a public address" in await fetch(f"http://{host}/")
    assert made.requests == []


async def test_names_redirects_and_rebinding_lead_to_no_private_address(net: Callable[..., Net]) -> None:
    """One private address among several is enough; a name is resolved once for each request."""
    away = lambda request: httpx.Response(302, headers={"location": "http://inner/x"})  # noqa: E731
    made = net(away, inner=[["10.0.0.1"]], mixed=[[PUBLIC, "10.0.0.1"]], outer=[[PUBLIC]])
    for name in ("inner", "mixed"):
        assert "10.0.0.1 is not a public address" in await fetch(f"http://{name}/")
    assert made.requests == []
    assert "10.0.0.1 is not a public address" in await fetch("http://outer/")
    assert [request.url.host for request in made.requests] == [PUBLIC]
    made = net(page(), turning=[[PUBLIC], ["127.0.0.1"]])
    assert await fetch("http://turning/") == "hello"
    assert [request.url.host for request in made.requests] == [PUBLIC]


async def test_redirects_are_followed_a_few_times(net: Callable[..., Net]) -> None:
    """Also those that are relative."""

    def answer(request: httpx.Request) -> httpx.Response:
        number = int(request.url.path[1:])
        return (
            httpx.Response(301, headers={"location": f"/{number + 1}"}) if number < 5 else httpx.Response(200, text="x")
        )

    made = net(answer, outer=[[PUBLIC]])
    assert await fetch("http://outer/0") == "x"
    assert {request.headers["host"] for request in made.requests} == {"outer"}
    assert "More than 5 redirects." in await fetch("http://outer/-1")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("file:///etc/passwd", "Expected http:// or https://"),
        ("http://", "Expected http:// or https://"),
        ("http://user:word@outer/", "and no user"),
        ("http://outer:port/", "is no address"),
        ("http://0177.0.0.1/", "is no address"),
        ("http://absent.invalid/", "can't be found"),
        ("http://none/", "has no address"),
        ("http://other.org/", "The host 'other.org' isn't one of those allowed: *.example.org, none, outer*"),
    ],
)
async def test_other_addresses_are_refused(url: str, words: str, net: Callable[..., Net]) -> None:
    """With the reason."""
    net(page(), outer=[[PUBLIC]], none=[[]])
    allow = None if "allowed" not in words and "other" not in url else ["*.example.org", "none", "outer*"]
    assert words in await fetch(url, allow=allow)


async def test_answers_are_bounded_and_texts_only(net: Callable[..., Net]) -> None:
    """A status is said, and so is a cut."""
    net(page("x" * 50), outer=[[PUBLIC]])
    assert (
        await fetch("http://outer/", max_bytes=9, allow=["outer"]) == f"{'x' * 9}\n[only the first 9 bytes were read]"
    )
    net(page("gone", status=404), outer=[[PUBLIC]])
    assert await fetch("http://outer/") == "[status 404]\ngone"
    net(page("x", "image/png"), outer=[[PUBLIC]])
    assert "The page is image/png, which is no text." in await fetch("http://outer/")


def test_options_are_checked() -> None:
    """By name."""
    for options in ({"allow": "x"}, {"max_bytes": 0}, {"timeout": -1}):
        with pytest.raises(UserError, match=next(iter(options))):
            Web(**options)  # type: ignore[arg-type]


def test_html_becomes_lines_of_words() -> None:
    """Blocks are lines; what isn't shown is left out, also where the page is broken."""
    html = (
        "<head><title>t</title><body><h1>A  b</h1><p>one<br>two &amp; <i>three</i>.</p><style>x</style><ul><li>4\n<li>5"
    )
    assert to_text(html) == "A b\none\ntwo & three.\n4\n5"


@pytest.mark.hypothesis
@given(st.ip_addresses(v=4))
def test_an_address_within_another_is_as_private_as_itself(address: ipaddress.IPv4Address) -> None:
    """Mapped into IPv6 it is judged as it is; translated or tunnelled it is refused."""
    assert is_public(f"::ffff:{address}") == is_public(str(address))
    assert not (address.is_private and is_public(str(address)))
    assert not is_public(f"64:ff9b::{address}")
    assert not is_public(f"::{address}")
    assert not is_public("fe80::1%eth0")
