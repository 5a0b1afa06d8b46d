"""Errors in words a model may see: one line, bounded, without secrets."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from agentloop import exceptions
from agentloop.exceptions import AgentLoopError, EarlierFailure
from agentloop.secret_text import scrubbed

MAX_CHARS = 1_000

_SECRETS = (
    # name=value and name: value, where the name says that the value is secret
    re.compile(
        r"(?i)([\w-]{0,40}(?:api[_-]?key|secret|token|passw(?:or)?d|credential|authorization)[\w-]{0,40}[\"']?\s*[=:]\s*)"
        r"(?:bearer\s+|basic\s+)?(\"[^\"]*\"|'[^']*'|(?!\[redacted\])[^\s,;&)}\]]+)"
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


_NURSERY_WORDS = ("unhandled errors in a TaskGroup", "Exceptions from Trio nursery")
"""What a backend says of any group that leaves a nursery: nothing that the model, or a log's reader, could use."""


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


def hide_in(error: BaseException, texts: tuple[str, ...]) -> None:
    """Remember that the words of *error* (of a group, those of every leaf) must not show *texts*, longest first.

    The exception itself stays as it is: it is its raiser's.
    """
    for each in {id(each): each for each in (error, *leaves(error))}.values():
        with contextlib.suppress(Exception):  # one that takes no attributes can't be told anything
            each._agentloop_hidden = _Hidden((*texts, *_hidden_in(each)))  # type: ignore[attr-defined]


class _Hidden:
    """Texts that show in no repr."""

    def __init__(self, texts: tuple[str, ...]) -> None:
        self.texts = texts


def _hidden_in(error: BaseException) -> tuple[str, ...]:
    hidden = getattr(error, "_agentloop_hidden", None)
    return hidden.texts if isinstance(hidden, _Hidden) else ()


def message_of(error: BaseException) -> str:
    """Return the message of *error* without the secrets of the call it came from."""
    try:
        text = str(error)
    except Exception:  # a broken __str__ must not hide the failure it belongs to
        return "(its message can't be shown)"
    return scrubbed(text, _hidden_in(error))


def _one(error: BaseException) -> str:
    # Cut before redacting: what is never shown needs no search, and a hostile message may be megabytes long.
    return f"{type(error).__name__}({redact(bounded(first_line(message_of(error))))})"


def is_fatal(error: BaseException) -> bool:
    """Tell whether no policy may answer *error*: it is no `Exception`, or what was kept of one that wasn't."""
    return not isinstance(error, Exception) or (isinstance(error, EarlierFailure) and error.fatal)


_SUMMARY = re.compile(r"(?P<name>\w+)\((?P<message>.*?)\)?\Z", re.DOTALL)


def summary_parts(summary: str) -> tuple[str, str]:
    """Return the name of the type and the message that a summary is made of."""
    match = _SUMMARY.match(summary)
    if match is None:
        return "Exception", summary
    return match["name"], summary[len(match["name"]) + 1 : -1] if summary.endswith(")") else match["message"]


def library_class(summary: str) -> type[AgentLoopError] | None:
    """Return the library's class that the error a summary tells of is one of, or None."""
    found = getattr(exceptions, summary_parts(summary)[0], None)
    return found if isinstance(found, type) and issubclass(found, AgentLoopError) else None


def tool_failure(tool: str, name: str, message: str) -> str:
    """Return what a `ToolCallError` says of an error of type *name*."""
    return f"Error running tool {tool}: {name}: {message}"


def error_summary(error: BaseException) -> str:
    """Return `TYPE(MESSAGE)`: the first line, redacted and bounded; of a group, every leaf."""
    if isinstance(error, EarlierFailure):
        return message_of(error)  # a summary already
    if not isinstance(error, BaseExceptionGroup):
        return bounded(_one(error))
    inner = ", ".join(_one(leaf) for leaf in leaves(error))
    said = (
        "" if error.message in _NURSERY_WORDS else f"{redact(first_line(scrubbed(error.message, _hidden_in(error))))}: "
    )
    return bounded(f"{type(error).__name__}({said}{inner})")
