"""`Web`: a tool that reads a page of the public web, and nothing of the network that the process itself is in.

A model writes the address, and a page may have told it to: so an address is a stranger's. Each request and each
redirect goes like this: the name is resolved, *all* of its addresses have to be public, and the connection is made to
the one that was checked, with the name in TLS and in the `Host` header. So a name that resolves otherwise a moment
later changes nothing. No proxy of the environment is used: it would resolve the name once more. A connection serves one
request: the next one of the same address may be of another name, which TLS has to check again.

The answer is a stranger's, too: what it costs to read grows as its size does, and is done in short steps.

Decisions:

`ipaddress` reads addresses, after the resolver has: decimal, octal and short forms of an address are the resolver's to
understand, and what it makes of them is checked. A request goes to httpx's transport, not to its client, which keeps
cookies, reads where a redirect leads to, and unpacks what a server has packed, however large it becomes.

HTML becomes text here, as a browser splits it into tags and text (an unfinished tag or comment is all of the rest), in
one pass that never goes back. Rejected: `html.parser` of the standard library, whose time grows with the square of the
size for a page of unfinished tags, and a library, one dependency more for the words of a page. What a page has for
readers without scripts (`noscript`) is read: this is one.
"""

from __future__ import annotations

import fnmatch
import ipaddress
import re
import socket
import ssl
import zlib
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from functools import cache
from html import unescape
from itertools import chain
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import httpx

from agentloop._common.checks import NAMES, check, check_count, check_seconds, optional
from agentloop._common.errors import ModelBehaviorError
from agentloop._common.version import USER_AGENT
from agentloop.config._bundling import Bundle
from agentloop.tools import FunctionTool, tool

_MOST_REDIRECTS = 5
_UNICAST = ipaddress.IPv6Network("2000::/3")
"""The IPv6 addresses that the public internet uses. Most of the other ones mean an IPv4 address, or a place near by."""
_SPECIAL = tuple(map(ipaddress.IPv6Network, ("2002::/16", "2001::/32", "3fff::/20")))
"""Networks among them whose addresses mean an IPv4 address, which another machine would connect to, or nothing."""
_CHARSETS = frozenset(
    {
        *("utf-8", "utf8", "us-ascii", "ascii", "utf-16", "utf-16le", "utf-16be", "latin1", "koi8-r", "koi8-u"),
        *("shift_jis", "euc-jp", "gb2312", "gbk", "gb18030", "big5", "euc-kr"),
        *(f"iso-8859-{part}" for part in range(1, 17) if part != 12),
        *(f"windows-{page}" for page in range(1250, 1259)),
    }
)
"""Names that a server may give to the encoding of its page. Python has others, which a page can make cost any time."""
_CHARSET = re.compile(r"""charset\s*=\s*["']?([^\s"';]+)""", re.IGNORECASE)

# -- of HTML
_BREAKS = frozenset({"p", "div", "br", "li", "tr", "table", "section", "article", "pre", "ul", "ol", "blockquote"})
_BREAKS |= {f"h{level}" for level in range(1, 7)}
_RAW_ENDS = {
    name: re.compile(rf"</{name}(?=[\t\n\r\f />])", re.IGNORECASE)
    for name in ("script", "style", "title", "iframe", "noembed", "noframes")
}
"""Elements that aren't shown and have no tags within, with the end of each."""
_SPECIAL_CHARACTER = re.compile("[<&]")
_REFERENCE = re.compile("&(?:#[xX]?[0-9a-fA-F]{1,10}|[a-zA-Z][a-zA-Z0-9]{0,31});?")
_TAG = re.compile(r"<(/?)([a-zA-Z][^\t\n\r\f />]*)")
_COMMENT_END = re.compile("--!?>")
_TAG_STEP = re.compile("[>=]")
_VALUE = re.compile(r"""[\t\n\r\f ]*(?:(["'])|[^\t\n\r\f >]*)""")
_MOST_CHARS = 4_000
"""The most characters of one part of a text."""
_MOST_ATTRIBUTES = 100
"""The most attributes of a tag that are read; then it ends at the next `>`."""
_MOST_READ_AHEAD = 100
"""The most chunks of an answer that may come after it was closed."""
_PARTS_A_TURN = 100
"""Parts between two checkpoints."""


class WebRefusal(ModelBehaviorError):
    """An address that isn't fetched, or an answer that can't be shown. The text says why."""


class Web(Bundle):
    """A tool `fetch_page(url)` that reads a page of the public web as text.

    Addresses of private, link-local, loopback and other special networks are refused: by name, after a redirect, in any
    form. An answer is bounded in time and in size, unpacked, and HTML of any form becomes text in short steps. It sends
    no cookies and no credentials, and doesn't read robots.txt, because it reads one page that was asked for and follows
    no link.

    Args:
        allow: Patterns of host names that may be fetched, as `"*.python.org"`; all public hosts if not given.
        max_bytes: The most bytes of an answer that are read, unpacked; the rest is left out, which the output says.
        timeout: Seconds for one call, redirects included.

    Example:
        from agentloop import Agent, Runner
        from agentloop.bundles import Web
        from agentloop.testing import ScriptedModel, call, say

        model = ScriptedModel([call("fetch_page", {"url": "http://2130706433/"}), say("I may not.")])
        result = Runner.run_sync(Agent("a", model=model, bundles=[Web()]), "What runs here?")
        print("127.0.0.1 is not a public address" in result.new_items[1].output)  # True
    """

    def __init__(self, *, allow: Sequence[str] | None = None, max_bytes: int = 500_000, timeout: float = 30.0) -> None:
        check("allow", optional(NAMES.texts()), allow)
        check_count("max_bytes", max_bytes)
        check_seconds("timeout", timeout)
        super().__init__("web", tools=[_make_tool(None if allow is None else tuple(allow), max_bytes, timeout)])


def _make_tool(allow: tuple[str, ...] | None, max_bytes: int, timeout: float) -> FunctionTool[Any]:
    @tool(reads_only=True, timeout=timeout)
    async def fetch_page(url: str) -> str:
        """Read a page of the public web as text.

        Args:
            url: Its address, with http:// or https://.
        """
        for _ in range(_MOST_REDIRECTS + 1):
            answer = await _fetch(url, allow, max_bytes)
            if isinstance(answer, str):
                return answer
            url = str(answer)
        raise WebRefusal(f"More than {_MOST_REDIRECTS} redirects.")

    return fetch_page


async def make_transport() -> httpx.AsyncBaseTransport:
    """Return the transport of one request. Tests put another in its place."""
    return await anyio.to_thread.run_sync(_make_transport)  # some tenths of a second, the first time


def _make_transport() -> httpx.AsyncHTTPTransport:
    return httpx.AsyncHTTPTransport(verify=_load_certificates())


@cache
def _load_certificates() -> ssl.SSLContext:
    """Return what TLS trusts."""
    return httpx.create_ssl_context()


async def _fetch(url: str, allow: tuple[str, ...] | None, max_bytes: int) -> str | httpx.URL:
    """Return the text of a page, or where it leads to."""
    parsed = _parse_url(url)
    if parsed.scheme not in ("http", "https") or not parsed.host or parsed.userinfo:
        raise WebRefusal(f"Expected http:// or https://, a host, and no user, got {url[:200]!r}")
    host = parsed.host.rstrip(".").lower()
    if allow is not None and not any(fnmatch.fnmatchcase(host, pattern.lower()) for pattern in allow):
        raise WebRefusal(f"The host {host!r} isn't one of those allowed: {', '.join(allow)}")
    address = await find_address(host, parsed.port or (443 if parsed.scheme == "https" else 80))
    request = httpx.Request(
        "GET",
        parsed.copy_with(host=address, fragment=None),
        headers={
            "Host": parsed.netloc.decode("ascii"),
            "Accept": "text/html, text/*;q=0.9, application/json;q=0.8",
            "Accept-Encoding": "gzip",
            "User-Agent": USER_AGENT,
            "Connection": "close",
        },
        extensions={"sni_hostname": parsed.raw_host.decode("ascii")},
    )
    async with await make_transport() as transport:
        response = await transport.handle_async_request(request)
        chunks: Any = aiter(response.stream)  # type: ignore[arg-type]
        try:
            if response.has_redirect_location:
                return _parse_url(response.headers["location"], parsed)
            return await _read_answer(response, chunks, max_bytes)
        finally:
            with anyio.CancelScope(shield=True, deadline=anyio.current_time() + 1), suppress(Exception):
                await response.aclose()
                # A chain of generators: its end is reached by reading, which fails now, and not by closing the first.
                for _ in range(_MOST_READ_AHEAD):
                    await anext(chunks)


def _parse_url(url: str, base: httpx.URL | None = None) -> httpx.URL:
    try:
        return httpx.URL(url) if base is None else base.join(url)
    except (httpx.InvalidURL, ValueError) as error:
        raise WebRefusal(f"{url[:200]!r} is no address: {error}") from None


async def _read_answer(response: httpx.Response, chunks: AsyncIterator[bytes], max_bytes: int) -> str:
    """Return the text of a page, with its status if it's none of a success."""
    kind = response.headers.get("content-type", "text/plain")
    found = _CHARSET.search(kind)
    kind = kind.partition(";")[0].strip().lower()
    if not (kind.startswith("text/") or kind.endswith(("json", "xml"))):
        raise WebRefusal(f"The page is {kind}, which is no text.")
    data = await _read_bytes(response.headers.get("content-encoding", "identity"), chunks, max_bytes)
    charset = found[1].lower() if found else ""
    text = data[:max_bytes].decode(charset if charset in _CHARSETS else "utf-8", errors="replace")
    shown = await to_text(text) if kind in ("text/html", "application/xhtml+xml") else text
    cut = f"\n[only the first {max_bytes:,} bytes were read]" if len(data) > max_bytes else ""
    status = "" if response.is_success else f"[status {response.status_code}]\n"
    return f"{status}{shown}{cut}"


async def _read_bytes(encoding: str, chunks: AsyncIterator[bytes], most: int) -> bytes:
    """Return the body of an answer, unpacked: at most a byte more than *most*, which says that there is more."""
    packed = encoding.strip().lower()
    if packed not in ("identity", "gzip", "x-gzip"):
        raise WebRefusal(f"The page is packed as {packed[:100]!r}, which wasn't asked for and isn't unpacked here.")
    unpacker = None if packed == "identity" else zlib.decompressobj(wbits=31)
    data, received = bytearray(), 0
    async for chunk in chunks:
        await anyio.lowlevel.checkpoint()  # many small ones may have come at once
        received += len(chunk)
        room = most + 1 - len(data)
        try:
            data += chunk[:room] if unpacker is None else unpacker.decompress(chunk, room)
        except zlib.error as error:
            raise WebRefusal(f"The page can't be unpacked: {error}") from None
        if len(data) > most or (unpacker is not None and unpacker.eof):
            break
        if received > 2 * most + 1_000:
            raise WebRefusal("The page is much larger packed than unpacked.")
    return bytes(data)


async def find_address(host: str, port: int) -> str:
    """Return an address of *host*, all of whose addresses are public.

    Raises:
        WebRefusal: one isn't, or the name has none.
    """
    try:
        found = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise WebRefusal(f"The host {host!r} can't be found: {error}") from None
    addresses = [str(info[4][0]) for info in found]
    for address in addresses:
        if not is_public(address):
            raise WebRefusal(f"{address} is not a public address")
    if not addresses:
        raise WebRefusal(f"The host {host!r} has no address.")
    return addresses[0]


def is_public(address: str) -> bool:
    """Tell whether *address* is one of the public internet, and means no other address."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:  # with a zone, which is never public
        return False
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return is_public(str(parsed.ipv4_mapped))
        if parsed not in _UNICAST or any(parsed in network for network in _SPECIAL):
            return False
    return parsed.is_global and not parsed.is_multicast


async def to_text(html: str) -> str:
    """Return the words of an HTML page, a line for each block.

    Cancellation: a checkpoint after some parts of the page.
    """
    lines: list[str] = []
    line: list[str] = []
    for number, part in enumerate(chain(_read_parts(html), "\n"), 1):
        if part == "\n":
            lines.append(" ".join("".join(line).split()))
            line.clear()
        elif part:
            line.append(part)
        if number % _PARTS_A_TURN == 0:
            await anyio.lowlevel.checkpoint()
    return "\n".join(line for line in lines if line)


def _read_parts(html: str) -> Iterator[str]:
    """Yield the parts of a page's text: a line break as such, and an empty part for what isn't shown.

    A step between two parts is bounded: by a text, a reference, or a tag with its attributes.
    """
    at, templates = 0, 0
    while at < len(html):
        begin, part = at, ""
        found = _SPECIAL_CHARACTER.search(html, at, at + _MOST_CHARS)
        if found is None or found.start() > at:
            at = found.start() if found else at + _MOST_CHARS
            part = html[begin:at].replace("\n", " ")
        elif found[0] == "&":
            reference = _REFERENCE.match(html, at)
            at = reference.end() if reference else at + 1
            part = unescape(html[begin:at]).replace("\n", " ")
        elif tag := _TAG.match(html, at):
            at = _end_tag(html, tag.end())
            name, closes = tag[2].lower(), bool(tag[1])
            opens = not closes and html[at - 2] != "/"
            if name == "template":
                templates = max(0, templates + opens - closes)
            elif opens and name in _RAW_ENDS:
                end = _RAW_ENDS[name].search(html, at)
                at = end.start() if end else len(html)
            part = "\n" if name in _BREAKS else ""
        else:
            at = _end_markup(html, at)
            part = "<" if at == begin + 1 else ""
        yield "" if templates else part


def _end_markup(html: str, at: int) -> int:
    """Return the end of a comment, an instruction, or a `<` that begins no tag, at *at*."""
    if html.startswith("<!--", at):
        end = _COMMENT_END.search(html, at + 2)
        return end.end() if end else len(html)
    if html.startswith(("<!", "<?", "</"), at):
        return html.find(">", at) + 1 or len(html)
    return at + 1


def _end_tag(html: str, at: int) -> int:
    """Return the end of a tag whose attributes begin at *at*. Within quotes after a `=` there may be a `>`."""
    for _ in range(_MOST_ATTRIBUTES):
        found = _TAG_STEP.search(html, at)
        if found is None:
            return len(html)
        at = found.end()
        if found[0] == ">":
            return at
        value = _VALUE.match(html, at)
        assert value is not None
        at = value.end()
        if value[1]:
            at = html.find(value[1], at) + 1 or len(html)
    return html.find(">", at) + 1 or len(html)
