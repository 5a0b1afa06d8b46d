"""Errors in words a model may see: one line, bounded, without secrets."""

from __future__ import annotations

import re
from collections.abc import Iterator

MAX_CHARS = 1_000

_SECRETS = (
    # name=value and name: value, where the name says that the value is secret
    re.compile(
        r"(?i)([\w-]{0,40}(?:api[_-]?key|secret|token|passw(?:or)?d|credential|authorization)[\w-]{0,40}[\"']?\s*[=:]\s*)"
        r"(?:bearer\s+|basic\s+)?(\"[^\"]*\"|'[^']*'|[^\s,;&)}\]]+)"
    ),
    re.compile(r"(?i)\b(bearer\s+|basic\s+)([A-Za-z0-9._~+/=-]{8,})"),
    re.compile(r"()\b((?:sk|pk|rk|ghp|gho|xox[abp])[-_][A-Za-z0-9_-]{8,})"),
    # user:password@host
    re.compile(r"(?i)([a-z][a-z0-9+.-]{0,20}://[^\s:/@]{1,200}:)([^\s@/]{1,200})(?=@)"),
)


def redact(text: str) -> str:
    """Return *text* with what looks like a secret replaced by `[redacted]`."""
    for pattern in _SECRETS:
        text = pattern.sub(r"\1[redacted]", text)
    return text


def bounded(text: str, limit: int = MAX_CHARS) -> str:
    """Return *text*, cut to *limit* characters with an ellipsis in the last place."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def first_line(text: str) -> str:
    """Return the first line that says something."""
    return text.strip().partition("\n")[0].rstrip()


def leaves(error: BaseException) -> Iterator[BaseException]:
    """Give the errors of a group, nested groups opened; an error that is no group gives itself."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves(inner)
    else:
        yield error


def _one(error: BaseException, message: str | None = None) -> str:
    try:
        text = str(error) if message is None else message
    except Exception:  # a broken __str__ must not hide the failure it belongs to
        text = "(its message can't be shown)"
    # Cut before redacting: what is never shown needs no search, and a hostile message may be megabytes long.
    return f"{type(error).__name__}({redact(bounded(first_line(text)))})"


def error_summary(error: BaseException) -> str:
    """Return `TYPE(MESSAGE)`: the first line, redacted and bounded; of a group, every leaf."""
    if not isinstance(error, BaseExceptionGroup):
        return bounded(_one(error))
    inner = ", ".join(_one(leaf) for leaf in leaves(error))
    return bounded(f"{type(error).__name__}({redact(first_line(error.message))}: {inner})")
