"""Reads the refusals of servers, over any transport: their headers and bodies, without secrets of the request. Pure."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import TypeAlias
from urllib.parse import urljoin, urlsplit

from agentloop.exceptions import ModelBehaviorError, ModelTransportError, UserTypeError, UserValueError

SILENT = "silence_timeout"
"""Code of the error for an answer of which no more data came in time."""
MAX_RETRY_AFTER = 3600.0
QUOTED = 300
"""Most characters of a server's words that a message quotes."""
_SECRET_NAMES = ("auth", "cookie", "key", "password", "secret", "token")


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Return the seconds to wait that the server asks for, at most `MAX_RETRY_AFTER`; None without a valid value.

    Units: *now* is wall-clock seconds since the epoch; an HTTP date is compared with it.
    """
    seconds = _number(headers.get("retry-after-ms"))
    if seconds is not None:
        seconds /= 1000
    else:
        seconds = _number(headers.get("retry-after"))
    if seconds is None and (date := headers.get("retry-after")):
        with suppress(ValueError, OverflowError):
            when = parsedate_to_datetime(date)
            seconds = (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() - now
    return None if seconds is None else min(max(seconds, 0.0), MAX_RETRY_AFTER)


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def should_retry(headers: Mapping[str, str]) -> bool | None:
    """Return the server's own advice on a retry, or None if it gives none."""
    return {"true": True, "false": False}.get(headers.get("x-should-retry", "").lower())


_LEAST_SECRET = 8
"""Characters of the shortest value that can be a secret. Shorter ones are the dummy keys of local servers (`none`, `x`,
`ollama`), and masking those would garble the server's words."""
_SURE_SECRET = 16
"""From so many characters on a value is masked inside of a word, too: no word is that long by chance."""


def make_redactor(fields: Mapping[str, str]) -> Callable[[str], str]:
    """Return a function that masks the values of secret *fields*, known by their names, in a text."""
    secrets: set[str] = set()
    for name, value in fields.items():
        if any(word in name.lower() for word in _SECRET_NAMES):
            secrets |= {value, value.split(" ")[-1]}
    masked = [_mask(secret) for secret in sorted(secrets, key=len, reverse=True) if len(secret) >= _LEAST_SECRET]
    if not masked:
        return str
    found = re.compile("|".join(masked))
    return lambda text: found.sub("***", text)


def _mask(secret: str) -> str:
    escaped = re.escape(secret)
    return escaped if len(secret) >= _SURE_SECRET else rf"(?<!\w){escaped}(?!\w)"


Failure: TypeAlias = ModelTransportError | ModelBehaviorError


def redact_error(error: Failure, redact: Callable[[str], str]) -> Failure:
    """Return *error* without the secrets of its request: a server may repeat them in each text of its own."""
    error.args = (redact(str(error)),)
    if isinstance(error, ModelTransportError):
        error.code = error.code and redact(error.code)
        error.request_id = error.request_id and redact(error.request_id)
    return error


def place_of(url: str, base: str = "") -> str:
    """Return host and path of *url*, without its query and its user, which may be secret. *base* completes it."""
    try:
        parts = urlsplit(urljoin(base, url))
        return f"{parts.hostname or ''}{parts.path}"
    except ValueError:
        return "a place that is no URL"


def read_error_body(body: bytes) -> tuple[str, str | None]:
    """Return the message in an error's body, bounded, and its code, or None."""
    text = body.decode("utf-8", "replace").strip()
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        data = None
    error = data.get("error", data) if isinstance(data, dict) else None
    if not isinstance(error, dict):
        return (error if isinstance(error, str) else text)[:QUOTED] or "no reason given", None
    named = next((error[key] for key in ("code", "type") if isinstance(error.get(key), str)), None)
    return str(error.get("message") or text)[:QUOTED], named and named[:QUOTED]


_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_FRAMING = ("content-length", "transfer-encoding")
"""Headers that say where a body ends. The client writes them, and another value would make one request of two."""


def check_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return *headers* if they can be sent. Checked here, as the client's error would quote a value, maybe a secret.

    Raises:
        UserTypeError, UserValueError: naming the header that can't be sent.
    """
    for name, value in headers.items():
        if not isinstance(value, str):
            raise UserTypeError(f"Header {name!r}: expected text, got {type(value).__name__}")
        if not _NAME.fullmatch(name):
            raise UserValueError(f"Header {name!r}: its name holds characters that a header's name can't, or none.")
        if name.lower() in _FRAMING:
            raise UserValueError(f"Header {name!r}: the HTTP client sets it from the body; leave it out.")
        if not value.isascii() or not value.isprintable():
            raise UserValueError(f"Header {name!r}: its value holds characters that a header can't.")
    return dict(headers)
