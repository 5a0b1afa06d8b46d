"""Reads the refusals of servers, over any transport: their headers and bodies, without secrets of the request. Pure."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TypeAlias
from urllib.parse import urljoin, urlsplit

from agentloop.exceptions import ModelBehaviorError, ModelTransportError, UserTypeError, UserValueError
from agentloop.model_events import RateState

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


def read_rates(headers: Mapping[str, str], now: float) -> RateState:
    """Return what the server has left of its limits, as the *headers* of an answer tell.

    Units: *now* is wall-clock seconds since the epoch; a time of a header is compared with it.
    """

    def find(what: str) -> tuple[int | None, float | None]:
        left = reset = None
        for remaining, until in (
            (f"x-ratelimit-remaining-{what}", f"x-ratelimit-reset-{what}"),
            (f"anthropic-ratelimit-{what}-remaining", f"anthropic-ratelimit-{what}-reset"),
        ):
            number = _number(headers.get(remaining))
            left = left if number is None else int(number)
            reset = _read_reset(headers.get(until, ""), now) if reset is None else reset
        return left, None if reset is None else min(max(reset, 0.0), MAX_RETRY_AFTER)

    requests, requests_reset = find("requests")
    tokens, tokens_reset = find("tokens")
    return RateState(requests=requests, requests_reset=requests_reset, tokens=tokens, tokens_reset=tokens_reset)


_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def _read_reset(text: str, now: float) -> float | None:
    """Return the seconds until a reset: of a number, of a duration such as `6m0.5s`, or of a time in ISO 8601."""
    if (number := _number(text)) is not None:
        return number
    parts = re.findall(r"([0-9.]+)(ms|s|m|h|d)", text)
    if parts and "".join(map("".join, parts)) == text:
        numbers = [_number(size) for size, _ in parts]
        return sum((size or 0.0) * _UNITS[unit] for size, (_, unit) in zip(numbers, parts, strict=True))
    with suppress(ValueError, OverflowError):
        when = datetime.fromisoformat(text)
        return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() - now
    return None


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
