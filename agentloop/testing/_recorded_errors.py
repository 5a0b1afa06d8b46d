"""Errors made again of what a log keeps of them, `TYPE(MESSAGE)`: they are judged and summed up as they were."""

from __future__ import annotations

import re
from typing import Any

from agentloop import exceptions
from agentloop import records as r
from agentloop.exceptions import AgentLoopError, ModelTimeoutError, ModelTransportError

_SUMMARY = re.compile(r"(?P<name>\w+)\((?P<message>.*?)\)?\Z", re.DOTALL)
_FATAL = ("KeyboardInterrupt", "SystemExit")


def library_class(text: str) -> type[AgentLoopError] | None:
    """Return the library's class that the error *text* tells of is one of, or None."""
    found = getattr(exceptions, _name(text), None)
    return found if isinstance(found, type) and issubclass(found, AgentLoopError) else None


def _name(text: str) -> str:
    match = _SUMMARY.match(text)
    return match["name"] if match is not None else "Exception"


def _message(text: str) -> str:
    match = _SUMMARY.match(text)
    if match is None:
        return text
    return text[len(match["name"]) + 1 : -1] if text.endswith(")") else match["message"]


def _keep_message(self: BaseException, message: str) -> None:
    BaseException.__init__(self, message)


# What the constructors that aren't called would have set.
_BLANK: dict[str, Any] = {
    "__init__": _keep_message,
    "__module__": "agentloop.testing.replayed",
    "call": None,
    "code": None,
    "guardrail_result": None,
    "outcome": None,
    "request_id": None,
    "retry_after": None,
    "should_retry": None,
    "status": None,
    "tool": None,
}


def rebuilt(text: str, *, fatal: bool = False, base: type[BaseException] | None = None, **fields: Any) -> BaseException:
    """Return an error whose summary is *text*: of the library's class of that name, else of a new one.

    *fatal*: one that no policy may answer. *fields* become its attributes.
    """
    name = _name(text)
    fatal = fatal or name in _FATAL
    base = base or library_class(text) or (BaseException if fatal else Exception)
    made: Any = type(name, (base,), {**_BLANK, **fields})
    error: BaseException = made(_message(text))
    return error


def rebuilt_model_error(record: r.ModelFailed) -> BaseException:
    """Return the error of a failed attempt, so that whether there is another one is decided as it was."""
    base: type[BaseException] | None = {"transport": ModelTransportError, "timeout": ModelTimeoutError}.get(
        record.error_kind or ""
    )
    return rebuilt(
        record.error,
        base=base,
        status=record.status,
        code=record.code,
        retry_after=record.retry_after,
        should_retry=record.should_retry,
        timeout=0.0,
    )
