"""`Web`: which addresses are refused, where a connection goes to, and what becomes of an answer."""

import gzip
import html as html_module
import ipaddress
import re
import socket
import ssl
import threading
import zlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.agents import Run, script_agent
from kit.results import read_outputs
from kit.work import Meter, counting_turns

from agentloop import Runner, UserError
from agentloop.bundles import Web
from agentloop.bundles import _web as web_module
from agentloop.bundles._web import WebRefusal, is_public, to_text
from agentloop.testing import call, say

pytestmark = pytest.mark.scenario("WB-01")
PUBLIC = "93.184.215.14"
Answer = Callable[[httpx.Request], httpx.Response]


class Net:
    """A resolver and a server. `names` has the addresses of each name, one list for each question."""

    def __init__(self, answer: Answer, names: dict[str, list[list[str]]]) -> None:
        self.answer, self.names, self.requests = answer, names, list[httpx.Request]()
        self.opened = 0

    async def getaddrinfo(self, host: str, port: int, **options: Any) -> list[Any]:
        """Return the next addresses of *host*, or those that it is."""
        if host not in self.names:
            return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        found = self.names[host]
        return [(0, 0, 0, "", (one, port)) for one in (found.pop(0) if len(found) > 1 else found[0])]

    async def open(self) -> httpx.MockTransport:
        """Open a connection to the server."""
        self.opened += 1
        return httpx.MockTransport(self)

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
        monkeypatch.setattr(web_module, "make_transport", made.open)
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
        ("http://away/", "'http://[::1' is no address"),
        ("http://other.org/", "The host 'other.org' isn't one of those allowed: *.example.org, none, outer*"),
    ],
)
async def test_other_addresses_are_refused(url: str, words: str, net: Callable[..., Net]) -> None:
    """With the reason."""
    astray = httpx.Response(302, headers={"location": "http://[::1"})
    net(lambda request: astray, away=[[PUBLIC]], outer=[[PUBLIC]], none=[[]])
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


async def test_each_request_has_its_own_connection_and_no_cookies(run_mode: Run, net: Callable[..., Net]) -> None:
    """A connection of the same address may have been checked for another name, and a redirect may set a cookie."""

    def answer(request: httpx.Request) -> httpx.Response:
        away = {"location": "https://second/", "set-cookie": "a=b"}
        return httpx.Response(200, text="x") if request.url.path == "/" else httpx.Response(302, headers=away)

    made = net(answer, first=[[PUBLIC]], second=[[PUBLIC]])
    assert await fetch("https://first/x", run_mode) == "x"
    assert [request.extensions["sni_hostname"] for request in made.requests] == ["first", "second"]
    assert made.opened == 2
    assert not any("cookie" in request.headers for request in made.requests)


# ---------------------------------------------------------------------------------------------- packed answers


class Body(httpx.AsyncByteStream):
    """The bytes of an answer, in chunks, through two generators as httpx has them.

    `taken` counts the chunks that were read; `closed` and `ended` tell whether it was closed, and the inner generator
    has ended, and wasn't left to the garbage collector.
    """

    def __init__(self, data: bytes, size: int = 1_000) -> None:
        self.data, self.size, self.taken, self.closed, self.ended = data, size, 0, False, False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self.read():
            yield chunk

    async def read(self) -> AsyncIterator[bytes]:
        """Yield the chunks until it's closed."""
        try:
            for at in range(0, len(self.data), self.size):
                if self.closed:
                    raise httpx.StreamClosed
                self.taken += 1
                yield self.data[at : at + self.size]
        finally:
            self.ended = True

    async def aclose(self) -> None:
        """Note it."""
        self.closed = True


def packed(body: Body, encoding: str) -> Answer:
    """Return a server of one page that is packed."""
    headers = {"content-type": "text/plain", "content-encoding": encoding}
    return lambda request: httpx.Response(200, headers=headers, stream=body)


@pytest.mark.parametrize("encoding", ["gzip", "x-gzip", " GZIP "])
async def test_a_packed_page_is_unpacked(encoding: str, run_mode: Run, net: Callable[..., Net]) -> None:
    """Once; what follows it isn't read."""
    body = Body(gzip.compress(b"hello " * 500) + b"0" * 9_000, 7)
    net(packed(body, encoding), outer=[[PUBLIC]])
    assert await fetch("http://outer/", run_mode) == "hello " * 500
    assert body.taken < 20
    assert body.closed
    assert body.ended


@pytest.mark.parametrize(
    ("data", "encoding", "words"),
    [
        (
            gzip.compress(gzip.compress(b"x", mtime=0), mtime=0),
            "gzip, gzip",
            "packed as 'gzip, gzip', which wasn't asked for",
        ),
        (zlib.compress(b"x"), "deflate", "packed as 'deflate', which wasn't asked for"),
        (b"x", "br", "packed as 'br', which wasn't asked for"),
        (b"hello", "gzip", "The page can't be unpacked: "),
        (gzip.compress(b"x" * 99, mtime=0)[:10] + b"\0\0\0\xff\xff" * 900, "gzip", "much larger packed than unpacked"),
    ],
)
async def test_other_packings_are_refused(data: bytes, encoding: str, words: str, net: Callable[..., Net]) -> None:
    """With the reason; and the answer is left."""
    body = Body(data)
    net(packed(body, encoding), outer=[[PUBLIC]])
    assert words in await fetch("http://outer/", max_bytes=1_000)
    assert body.closed
    assert body.ended or not body.taken


@pytest.mark.parametrize("size", [1_000_000, 10_000_000])
async def test_no_more_is_unpacked_than_is_shown(
    size: int, net: Callable[..., Net], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However large the page becomes."""
    unpacked = 0

    class Unpacker:
        def __init__(self, **options: Any) -> None:
            self.inner = zlib.decompressobj(**options)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

        def decompress(self, data: bytes, most: int) -> bytes:
            nonlocal unpacked
            assert most > 0  # 0 is no bound
            found = self.inner.decompress(data, most)
            unpacked += len(found)
            return found

    body = Body(gzip.compress(b"0" * size), 100)
    zlib_here = type("Zlib", (), {"decompressobj": Unpacker, "error": zlib.error})
    monkeypatch.setattr(web_module, "zlib", zlib_here)
    net(packed(body, "gzip"), outer=[[PUBLIC]])
    assert await fetch("http://outer/", max_bytes=9) == "0" * 9 + "\n[only the first 9 bytes were read]"
    assert unpacked == 10
    assert body.taken == 1


async def test_many_small_chunks_let_other_tasks_run(net: Callable[..., Net]) -> None:
    """Also if they are all there at once."""
    body = Body(b"x" * 50, 1)
    net(lambda request: httpx.Response(200, stream=body), outer=[[PUBLIC]])
    async with counting_turns() as turns:
        assert await fetch("http://outer/") == "x" * 50
    assert turns.count >= 25


# ---------------------------------------------------------------------------------------------- words


@pytest.mark.parametrize("charset", ["foo", "hex", "punycode", "utf-7", "unicode_escape", "zip", '"a b"', "\0", "idna"])
async def test_an_encoding_that_is_none_of_pages_is_read_as_utf_8(charset: str, net: Callable[..., Net]) -> None:
    """A server names it: Python has some whose time grows with the square of the size, and some that aren't of text."""
    net(page("é\\x41-6869", f"text/plain; charset={charset}"), outer=[[PUBLIC]])
    assert await fetch("http://outer/") == "é\\x41-6869"
    net(page("x", f"text/plain; charset*={charset}''x"), outer=[[PUBLIC]])
    assert await fetch("http://outer/") == "x"


@pytest.mark.parametrize("charset", sorted(web_module._CHARSETS))
async def test_encodings_of_pages_are_read(charset: str, net: Callable[..., Net]) -> None:
    """By the name that a server gives, in any capitals and quotes; what isn't of it is replaced."""
    data = "hello".encode(charset)
    for name in (charset, f'"{charset.upper()}"; x=y'):
        headers = {"content-type": f"text/plain;Charset = {name}"}
        net(lambda request, headers=headers: httpx.Response(200, content=data, headers=headers), outer=[[PUBLIC]])
        assert await fetch("http://outer/") == "hello"
    b"\xff\xfe\xfd\x81".decode(charset, errors="replace")


@pytest.mark.parametrize(
    ("html", "text"),
    [
        (
            "<head><title>t</title><body><h1>A  b</h1><p>one<br>two &amp; <i>three</i>.</p><style>x</style>"
            "<ul><li>4\n<li>5",
            "A b\none\ntwo & three.\n4\n5",
        ),
        ("<!doctype html><html><head><title>T</title><p>Hello world<p>more", "Hello world\nmore"),
        ("<head><meta charset=utf-8><div>Hi all</div>", "Hi all"),
        ("<title>a</title>b<TITLE>c</Title >d", "bd"),
        ("a<script>if (a<b) '<p>x</p></scripty>' &amp;</SCRIPT\n>b", "ab"),
        ("a<script src='x'/>b<title/>c", "abc"),
        ("a<script>b", "a"),
        ("<noscript>No scripts here</noscript>", "No scripts here"),
        ("a<template>b<template>c</template><p>d</template></template>e", "ae"),
        ("a<!-- <p>x --><!-->b<!--->c<!--x--!>d<!x>e<?php ?>f</>g</ x>h", "abcdefgh"),
        ("a<!-- b", "a"),
        ("a<!b", "a"),
        ("a<p b='c", "a"),
        ("a<p b", "a"),
        ("a<p b=\"'>\" c='\">' d = '>' e=f'g>b", "a\nb"),
        ("<a href=x=y>b</a><a href=>c", "bc"),
        ("1 < 2 &lt; 3 <4> & &x; &#65;&#x42;&#0; &#99999999999999;", "1 < 2 < 3 <4> & &x; AB\ufffd \ufffd9999;"),
        ("a&#10;b&NewLine;c", "a b c"),
        (f"{'x' * 3_999} &amp; {'y' * 5_000}", f"{'x' * 3_999} & {'y' * 5_000}"),
        ("", ""),
        ("<", "<"),
        ("&", "&"),
        (f"<p {'a=b ' * 300} c='>'>d", "'>d"),
    ],
)
async def test_html_becomes_lines_of_words(html: str, text: str) -> None:
    """Blocks are lines; what isn't shown is left out, also where the page is broken, as browsers do."""
    assert await to_text(html) == text


class CountedText(str):
    """A page that notes how many characters are looked at to find something."""

    __slots__ = ("meter",)
    meter: Meter

    def find(self, sub: str, start: Any = 0, end: Any = None) -> int:
        """Find *sub*, and count the way to it."""
        found = super().find(sub, start, end)
        self.meter.add((found if found >= 0 else len(self)) - start)
        return found


class CountedPattern:
    """A pattern that notes the same."""

    def __init__(self, pattern: re.Pattern[str], meter: Meter) -> None:
        self.pattern, self.meter = pattern, meter

    def search(self, text: str, at: int = 0, end: int = 1_000_000_000) -> re.Match[str] | None:
        """Search, and count the way to what is found."""
        found = self.pattern.search(text, at, end)
        self.meter.add((found.end() if found else min(end, len(text))) - at)
        return found

    def match(self, text: str, at: int = 0) -> re.Match[str] | None:
        """Match, and count what matches."""
        found = self.pattern.match(text, at)
        self.meter.add(found.end() - at if found else 1)
        return found


def measure_reading(html: str, monkeypatch: pytest.MonkeyPatch) -> Meter:
    """Return what it costs to read a page: steps of the interpreter, and characters that are looked at."""
    meter = Meter()
    page = CountedText(html)
    page.meter = meter

    async def checkpoint() -> None:
        meter.checkpoint()

    with monkeypatch.context() as patch:
        patch.setattr(web_module.anyio.lowlevel, "checkpoint", checkpoint)
        for name in ("_SPECIAL_CHARACTER", "_REFERENCE", "_TAG", "_COMMENT_END", "_TAG_STEP", "_VALUE"):
            patch.setattr(web_module, name, CountedPattern(getattr(web_module, name), meter))
        ends = {name: CountedPattern(end, meter) for name, end in web_module._RAW_ENDS.items()}
        patch.setattr(web_module, "_RAW_ENDS", ends)
        reading = to_text(page)
        with meter.running(), pytest.raises(StopIteration):
            reading.send(None)
    return meter


BROKEN = [
    *(
        "<a ",
        "<a",
        "</a ",
        "</a",
        "<a b='",
        '<a b="',
        "<a =",
        "<a b=c ",
        "<!",
        "<!--",
        "<!-- --",
        "<?",
        "</",
        "<![CDATA[",
    ),
    *(
        "<script>",
        "<script></",
        "<script></script ",
        "<title></titl",
        "<template>",
        "</template>",
        "<p>",
        "<br/>",
        "\n",
    ),
    *(
        "&",
        "&#",
        "&#9",
        "&#x",
        "&amp;",
        "&a",
        "&aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
        "<",
        "=",
        "'",
        "x",
        " ",
        "-",
    ),
]


@pytest.mark.parametrize("before", ["", "<a ", "<a b='", "<!--", "<script>", "</script", "<p>x</p>"])
@pytest.mark.parametrize("pattern", BROKEN)
def test_ten_times_the_page_is_ten_times_the_work(before: str, pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is unfinished in it."""
    counts = [measure_reading(before + pattern * size, monkeypatch).total for size in (30, 30, 300)]
    assert counts[2] <= 11 * counts[1] + 1_000


@pytest.mark.parametrize("pattern", ["<p>x</p>", "&amp;", "<", f"<p {'a=b ' * 300}>", "x" * 5_000])
def test_a_page_is_read_in_short_steps(pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tasks run meanwhile, as often as the page is long."""
    few, many = (measure_reading(pattern * size, monkeypatch) for size in (200, 400))
    assert few.checkpoints >= 2
    assert many.checkpoints >= 2 * few.checkpoints - 2
    assert many.longest < 2_000_000


BLOCK = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r"), max_size=20)


@pytest.mark.hypothesis
@given(blocks=st.lists(st.tuples(BLOCK, BLOCK, BLOCK)))
def test_what_was_written_as_html_is_read_back(blocks: list[tuple[str, str, str]]) -> None:
    """Words of any characters, in blocks whose attributes and comments have any, too."""
    escape = html_module.escape
    html = "".join(
        f'<!-- {note.replace("-", "")}--><p a="{escape(value)}" b>{escape(text)}</p>' for text, value, note in blocks
    )
    texts = [" ".join(text.split()) for text, _, _ in blocks]
    assert anyio.run(to_text, html) == "\n".join(text for text in texts if text)


# ---------------------------------------------------------------------------------------------- addresses


@pytest.mark.hypothesis
@given(st.ip_addresses(v=4))
def test_an_address_within_another_is_as_private_as_itself(address: ipaddress.IPv4Address) -> None:
    """Mapped into IPv6 it is judged as it is; translated or tunnelled it is refused."""
    assert is_public(f"::ffff:{address}") == is_public(str(address))
    assert not (address.is_private and is_public(str(address)))
    assert not is_public(f"64:ff9b::{address}")
    assert not is_public(f"::{address}")
    assert not is_public("fe80::1%eth0")


@pytest.mark.hypothesis
@given(st.ip_addresses(v=6))
def test_no_address_outside_of_the_public_ones_is_public(address: ipaddress.IPv6Address) -> None:
    """Of all that IPv6 has, one block is given out; the rest means an IPv4 address, a place near by, or nothing."""
    if address.ipv4_mapped is None and address not in ipaddress.IPv6Network("2000::/3"):
        assert not is_public(str(address))


@pytest.mark.parametrize(
    "address",
    [
        *("::ffff:0:7f00:1", "::ffff:0:808:808", "64:ff9b:1::1", "2001::1", "2002:808:808::", "2001:db8::1", "3fff::1"),
        *("5f00::1", "100::1", "ff0e::1", "fec0::1", "fe80::1%eth0", "198.18.0.1", "240.0.0.1", "not one"),
    ],
)
def test_special_addresses_are_not_public(address: str) -> None:
    """Translated, tunnelled, for documents and tests, of groups."""
    assert not is_public(address)


@pytest.mark.real_clock
async def test_what_tls_trusts_is_loaded_once_and_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a thread, as it reads a file of some hundred certificates."""
    threads, load = list[int](), httpx.create_ssl_context

    def note() -> ssl.SSLContext:
        threads.append(threading.get_ident())
        return load()

    monkeypatch.setattr(httpx, "create_ssl_context", note)
    web_module._load_certificates.cache_clear()
    for _ in range(2):
        async with await web_module.make_transport() as transport:
            assert isinstance(transport, httpx.AsyncHTTPTransport)
    (thread,) = threads
    assert thread != threading.get_ident()


async def test_a_refusal_says_why() -> None:
    """It is an error of the model's making."""
    with pytest.raises(WebRefusal, match=r"10\.0\.0\.1 is not a public address"):
        await web_module.find_address("10.0.0.1", 80)
