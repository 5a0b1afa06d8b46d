"""Errors rebuilt from their summaries in a log, `TYPE(MESSAGE)`: the engine ranks and summarises both alike."""

from __future__ import annotations

from typing import Any

from agentloop import records as r
from agentloop._common.error_text import summary_parts
from agentloop._core.failure_choice import class_of_summary
from agentloop.exceptions import ModelTimeoutError, ModelTransportError

_FATAL = ("KeyboardInterrupt", "SystemExit")


def _keep_message(self: BaseException, message: str) -> None:
    BaseException.__init__(self, message)


_MODULE = "agentloop.testing.replayed"

# Attributes that the constructors of the library's errors would set: a rebuilt error skips these constructors, since
# the log doesn't have their arguments.
_BLANK: dict[str, Any] = {
    "__init__": _keep_message,
    "__module__": _MODULE,
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
    """Return an error with the summary *text*: of a new class, derived from the library's class of that name.

    If the library has no such class, it derives from `Exception`, or with *fatal* from `BaseException`, for which no
    policy can give an output. *fields* become attributes of the class.
    """
    name, message = summary_parts(text)
    fatal = fatal or name in _FATAL
    base = base or class_of_summary(text) or (BaseException if fatal else Exception)
    made: Any = type(name, (base,), {**_BLANK, **fields})
    error: BaseException = made(message)
    return error


def is_rebuilt(error: BaseException) -> bool:
    """Tell whether `rebuilt` made *error*."""
    return type(error).__module__ == _MODULE


def rebuilt_model_error(record: r.ModelFailed) -> BaseException:
    """Return the error of a failed model attempt, with the fields on which the decision about a retry depends."""
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
