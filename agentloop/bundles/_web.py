"""`Web`: a tool that reads a page of the public web, and nothing of the network that the process itself is in.

A model writes the address, and a page may have told it to: so an address is a stranger's. Each request and each
redirect goes like this: the name is resolved, *all* of its addresses have to be public, and the connection is made to
the one that was checked, with the name in TLS and in the `Host` header. So a name that resolves otherwise a moment
later changes nothing. No proxy of the environment is used: it would resolve the name once more.

Decisions:

`ipaddress` reads addresses, after the resolver has: decimal, octal and short forms of an address are the resolver's to
understand, and what it makes of them is checked. HTML becomes text by `html.parser` of the standard library: a model
needs the words of a page, and no more dependencies come with them.
"""

from __future__ import annotations

import fnmatch
import ipaddress
import socket
from collections.abc import Sequence
from contextlib import aclosing
from html.parser import HTMLParser
from typing import Any

import anyio
import httpx

from agentloop._bundling import Bundle
from agentloop._common.checks import NAMES, check, check_count, check_seconds, optional
from agentloop._common.errors import ModelBehaviorError
from agentloop.tools import FunctionTool, tool

_MOST_REDIRECTS = 5
_EMBEDDING = tuple(map(ipaddress.IPv6Network, ("64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32", "::/96")))
"""Networks whose addresses mean an IPv4 address, which another machine would connect to."""
_HIDDEN = frozenset({"script", "style", "template", "noscript", "head"})
_BREAKS = frozenset({"p", "div", "br", "li", "tr", "table", "section", "article", "pre", "ul", "ol", "blockquote"})
_BREAKS |= {f"h{level}" for level in range(1, 7)}


class WebRefusal(ModelBehaviorError):
    """An address that isn't fetched, or an answer that can't be shown. The text says why."""


class Web(Bundle):
    """A tool `fetch_page(url)` that reads a page of the public web as text.

    Addresses of private, link-local, loopback and other special networks are refused: by name, after a redirect, in any
    form. An answer is bounded in size and time. It sends no cookies and no credentials, and doesn't read robots.txt,
    because it reads one page that was asked for and follows no link.

    Args:
        allow: Patterns of host names that may be fetched, as `"*.python.org"`; all public hosts if not given.
        max_bytes: The most bytes of an answer that are read; the rest is left out, which the output says.
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
        async with httpx.AsyncClient(transport=make_transport(), trust_env=False, timeout=timeout) as client:
            for _ in range(_MOST_REDIRECTS + 1):
                answer = await _fetch(client, url, allow, max_bytes)
                if isinstance(answer, str):
                    return answer
                url = str(answer)
        raise WebRefusal(f"More than {_MOST_REDIRECTS} redirects.")

    return fetch_page


def make_transport() -> httpx.AsyncBaseTransport:
    """Return the transport of one call. Tests put another in its place."""
    return httpx.AsyncHTTPTransport()


async def _fetch(client: httpx.AsyncClient, url: str, allow: tuple[str, ...] | None, max_bytes: int) -> str | httpx.URL:
    """Return the text of a page, or where it leads to."""
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, ValueError) as error:
        raise WebRefusal(f"{url[:200]!r} is no address: {error}") from None
    if parsed.scheme not in ("http", "https") or not parsed.host or parsed.userinfo:
        raise WebRefusal(f"Expected http:// or https://, a host, and no user, got {url[:200]!r}")
    host = parsed.host.rstrip(".").lower()
    if allow is not None and not any(fnmatch.fnmatchcase(host, pattern.lower()) for pattern in allow):
        raise WebRefusal(f"The host {host!r} isn't one of those allowed: {', '.join(allow)}")
    address = await find_address(host, parsed.port or (443 if parsed.scheme == "https" else 80))
    request = client.build_request(
        "GET",
        parsed.copy_with(host=address, fragment=None),
        headers={"Host": parsed.netloc.decode("ascii"), "Accept": "text/html, text/*;q=0.9, application/json;q=0.8"},
        extensions={"sni_hostname": parsed.raw_host.decode("ascii")},
    )
    response = await client.send(request, stream=True)
    try:
        if response.is_redirect and "location" in response.headers:
            return parsed.join(response.headers["location"])
        kind = response.headers.get("content-type", "text/plain").partition(";")[0].strip().lower()
        if not (kind.startswith("text/") or kind.endswith(("json", "xml"))):
            raise WebRefusal(f"The page is {kind}, which is no text.")
        data = bytearray()
        chunks: Any = response.aiter_bytes()  # a generator, which has to be closed where it is left early
        async with aclosing(chunks):
            async for chunk in chunks:
                data += chunk
                if len(data) > max_bytes:
                    break
        text = bytes(data[:max_bytes]).decode(response.charset_encoding or "utf-8", errors="replace")
        shown = to_text(text) if kind in ("text/html", "application/xhtml+xml") else text
        cut = f"\n[only the first {max_bytes:,} bytes were read]" if len(data) > max_bytes else ""
        status = "" if response.is_success else f"[status {response.status_code}]\n"
        return f"{status}{shown}{cut}"
    finally:
        with anyio.CancelScope(shield=True, deadline=anyio.current_time() + 1):
            await response.aclose()


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
        if any(parsed in network for network in _EMBEDDING) or parsed.is_site_local:
            return False
    return parsed.is_global and not parsed.is_multicast


class _PageWords(HTMLParser):
    """Collects the words of a page, with line breaks between blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self._hidden: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _HIDDEN:
            self._hidden.append(tag)
        elif tag in ("body",):
            self._hidden.clear()
        if tag in _BREAKS:
            self.parts.append("\n")

    def handle_endtag(self, tag: str) -> None:
        if self._hidden and tag == self._hidden[-1]:
            self._hidden.pop()
        if tag in _BREAKS:
            self.parts.append("\n")

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.parts.append(data.replace("\n", " "))


def to_text(html: str) -> str:
    """Return the words of an HTML page, a line for each block."""
    words = _PageWords()
    words.feed(html)
    words.close()
    lines = [" ".join(line.split()) for line in "".join(words.parts).split("\n")]
    return "\n".join(line for line in lines if line)
