"""The names under which a web server may be asked: which `Host` and which `Origin` of a request are its own.

A page of another site reaches a server on this machine in two ways. It sends a request there, which the browser marks
with the page's `Origin`. Or its own name is made to lead to 127.0.0.1 (DNS rebinding): then the request is of the same
origin to the browser, and only the `Host`, a name that isn't the server's, shows it.

Decisions:

Host and Origin are looked at by default (`_common/web_names.py`, for the trace server too). A quick start listens at
127.0.0.1, and every page in the user's browser can send requests there, by itself or by a name that leads there. So
an application that was reached at a loopback address takes only the names of this machine. One that was reached
elsewhere has names that nothing here can know; there a foreign origin is refused, and the rest is for `hosts=`.
Rejected: a token in the page, which each client of another kind would have to get; a warning, which no one reads.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from urllib.parse import urlsplit

import attrs

ANY = "*"
"""In place of names: every one is taken."""


def is_loopback(host: str) -> bool:
    """Tell whether *host*, a name or an address, leads to this machine and nowhere else."""
    if host == "localhost" or host.endswith(".localhost"):  # reserved by RFC 6761: no other name leads there
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def host_of(netloc: str) -> str | None:
    """Return the host of *netloc*, `NAME`, `NAME:PORT` or `[IPV6]:PORT`, in lower case; None if it is no such text."""
    try:
        parts = urlsplit(f"//{netloc}")
        parts.port  # noqa: B018 - raises for what isn't a port
    except ValueError:
        return None
    is_whole = parts.netloc == netloc and parts.username is None
    return parts.hostname if is_whole else None


@attrs.frozen
class WebNames:
    """The names of a server. Immutable.

    Attributes:
        hosts: The values of `Host` that are taken, each with a port or for every port; None = of a server that was
            reached at this machine's own address the names of that, and else every one.
        origins: The origins whose pages may send requests, beside the server's own.
    """

    hosts: frozenset[str] | None = None
    origins: frozenset[str] = frozenset()

    @classmethod
    def of(cls, hosts: Iterable[str] | None, origins: Iterable[str]) -> WebNames:
        """Return the names, in lower case, as browsers send them."""
        lower = None if hosts is None else frozenset(map(str.lower, hosts))
        return cls(lower, frozenset(origin.lower().rstrip("/") for origin in origins))

    def takes_host(self, host: str | None, reached_at: str | None) -> bool:
        """Tell whether a request with the header `Host` (None: without one) is for this server.

        *reached_at* is the address at which the server has taken the connection, None if that isn't known.
        """
        if self.hosts is not None and ANY in self.hosts:
            return True
        name = None if host is None else host_of(host)
        if self.hosts is not None:
            return host is not None and (host.lower() in self.hosts or name in self.hosts)
        if reached_at is None or not is_loopback(reached_at):
            return True
        return name is not None and is_loopback(name)

    def takes_origin(self, origin: str | None, host: str | None) -> bool:
        """Tell whether a page of *origin* may send the request; None: it isn't a page of a browser, or its own.

        The scheme isn't compared: a proxy in front may have taken it off.
        """
        if origin is None or ANY in self.origins or origin.lower() in self.origins:
            return True
        scheme, _, netloc = origin.lower().partition("://")
        return scheme in ("http", "https") and host is not None and netloc == host.lower()
