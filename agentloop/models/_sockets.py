"""The parts that interfaces over WebSocket share: where a connection goes, and how long one may be unused."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

PROMPT = 2.0
"""Seconds for what a living server does at once: a pong, the end of an answer that was cancelled."""
STALE = 20.0
"""A connection that was unused for so many seconds is asked for a pong before it is used."""


@attrs.frozen
class Target:
    """The headers and the query that a connection is opened with. A request with others needs another connection."""

    headers: Mapping[str, str] = attrs.field(repr=False)
    query: Mapping[str, str] = attrs.field(repr=False)
