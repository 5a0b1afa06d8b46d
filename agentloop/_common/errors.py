"""Errors that values themselves may raise: the part of `agentloop.exceptions` whose classes hold no such value.

Imports nothing of the library, so that every other module can raise them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class RunProgress(Protocol):
    """The progress of a run, as errors see it: the fields of `agentloop.RunData`, which errors can't import."""

    @property
    def input(self) -> tuple[Any, ...]: ...
    @property
    def new_items(self) -> tuple[Any, ...]: ...
    @property
    def raw_responses(self) -> tuple[Any, ...]: ...
    @property
    def last_agent(self) -> Any: ...
    @property
    def usage(self) -> Any: ...
    @property
    def context(self) -> Any: ...
    @property
    def calls(self) -> tuple[Any, ...]: ...
    @property
    def records(self) -> Sequence[Any]: ...


class AgentLoopError(Exception):
    """Base of all errors of the library.

    `run_data` holds the run's progress when the error left it (`agentloop.RunData`), or None if no run was active.

    Errors can be pickled, so that they cross the border of a process (`ProcessPoolExecutor`, Celery, pytest-xdist).
    They arrive without `run_data`, which holds agents and open objects; if you need it there, send its `to_json()`.
    """

    run_data: RunProgress | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        carried = {name: value if _can_be_pickled(value) else None for name, value in vars(self).items()}
        carried["run_data"] = None
        return _restore_error, (type(self), self.args, carried)


def _can_be_pickled(value: object) -> bool:
    import pickle  # only where an error leaves its process

    try:
        pickle.dumps(value)
    except Exception:  # of any kind: an attribute must not replace the error that carries it
        return False
    return True


def _restore_error(cls: type[AgentLoopError], args: tuple[Any, ...], attributes: dict[str, Any]) -> AgentLoopError:
    error = cls.__new__(cls, *args)  # not by its constructor, which takes other arguments than `args`
    error.args = args
    vars(error).update(attributes)
    return error


class UserError(AgentLoopError):
    """The library was used wrongly: a definition, an argument or a callback's result is not acceptable."""


class UserTypeError(UserError, TypeError):
    """A value of the wrong type, or a callable of the wrong shape."""


class UserValueError(UserError, ValueError):
    """A value of the right type that is out of range."""


class UnwritableValue(UserValueError):
    """A tool, or a guardrail, gave a value that can't be written as text."""


class MaxTurnsExceeded(AgentLoopError):
    """The run needs another turn, but it has had `max_turns`."""

    def __init__(self, max_turns: int) -> None:
        super().__init__(f"Max turns ({max_turns}) exceeded")
        self.max_turns = max_turns


class RunTimeoutError(AgentLoopError):
    """The run's own `timeout` passed. The caller's cancellation is never reported as this."""

    def __init__(self, timeout: float) -> None:
        super().__init__(f"The run timed out after {timeout:g} seconds.")
        self.timeout = timeout


class UsageLimitExceeded(AgentLoopError):
    """A limit of `UsageLimits` is spent."""


class ToolLoopDetected(AgentLoopError):
    """The model repeats one call with one result, although the history holds a warning."""


class ModelBehaviorError(AgentLoopError):
    """The model's response can't be used: it breaks its own protocol or the definitions it was given."""


class ModelRefusalError(AgentLoopError):
    """The model refused to answer."""

    def __init__(self, refusal: str) -> None:
        super().__init__(refusal)
        self.refusal = refusal


class ModelTimeoutError(AgentLoopError):
    """One attempt of a model request took longer than `ModelSettings.timeout`."""

    def __init__(self, timeout: float) -> None:
        super().__init__(f"The model did not answer within {timeout:g} seconds.")
        self.timeout = timeout


class ModelTransportError(AgentLoopError):
    """The model couldn't be reached, or answered with an error.

    Attributes:
        status: HTTP status, or None if no response came.
        code: The provider's own error code, if it gave one; `silence_timeout` if no more data came in time,
            `answer_timeout` if the whole answer took too long.
        retry_after: Seconds to wait before the next request, as the provider asks, clamped to a sane range, or None.
        should_retry: The provider's explicit advice, or None if it gave none.
        request_id: The provider's id of the request, for its support.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        code: str | None = None,
        retry_after: float | None = None,
        should_retry: bool | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.retry_after = retry_after
        self.should_retry = should_retry
        self.request_id = request_id

    @property
    def context_too_long(self) -> bool:
        """True if the provider says that the request has more tokens than the model's window holds.

        A model of your own says so with the code `context_length_exceeded`.
        """
        if self.code in _TOO_LONG_CODES:
            return True
        words = str(self).lower()
        return self.status in (None, 400, 413, 422) and any(part in words for part in _TOO_LONG_WORDS)


_TOO_LONG_CODES = ("context_length_exceeded", "context_window_exceeded", "model_context_window_exceeded")
_TOO_LONG_WORDS = (
    *("prompt is too long", "input is too long", "maximum context length", "context window", "context length"),
    *("context size", "exceeds the maximum number of tokens", "input token count", "too many input tokens"),
)
"""Words of servers for a request that doesn't fit the window, where their codes don't say so."""


class ContextTooLong(AgentLoopError):
    """The history doesn't fit the model's window, and the steps of the `ContextPolicy` couldn't make it fit.

    The run isn't over: it can be resumed with another policy, or with a model that has a larger window.

    Attributes:
        tokens: The tokens of the request, as counted before the steps.
        window: The tokens that the window holds.
        steps: For each step its name, and the tokens that it left, or the words of its error.
    """

    def __init__(self, tokens: int, window: int, target: int, steps: Sequence[tuple[str, int | str]] = ()) -> None:
        said = "; ".join(
            f"{name} left {left:,}" if isinstance(left, int) else f"{name}: {left}" for name, left in steps
        )
        super().__init__(
            f"The history is too long: {tokens:,} tokens for a window of {window:,}, to be at most {target:,}. "
            f"{said or 'The policy has no steps'}."
        )
        self.tokens = tokens
        self.window = window
        self.target = target
        self.steps: tuple[tuple[str, int | str], ...] = tuple(steps)


class ToolTimeoutError(AgentLoopError):
    """A tool's body took longer than its `timeout` (or was silent for its `idle_timeout`)."""

    def __init__(self, tool_name: str, timeout: float) -> None:
        super().__init__(f"Tool '{tool_name}' timed out after {timeout:g} seconds.")
        self.tool_name = tool_name
        self.timeout = timeout


class OutcomeUnknown(AgentLoopError):
    """Raised by a tool's body that can't tell whether it took effect: the connection broke within the request.

    The call is in doubt, as after a crash, and the tool's `in_doubt` decides: the model receives the reason
    (`"tell_model"`; the call has the status `unknown`), the body is called once more, with the same idempotency key
    (`"rerun"`, and for tools that are idempotent or only read), or the run ends with this error (`"raise"`). The tool's
    `failure_error_function` isn't asked.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class ToolSourceError(AgentLoopError):
    """A source of tools failed, or gave something else than tools. The original exception is the cause.

    The run can be resumed: a server that was away may have come back.

    Attributes:
        source: The name of the source.
    """

    def __init__(self, message: str, *, source: str | None = None) -> None:
        super().__init__(message)
        self.source = source


class GuardrailTripwireTriggered(AgentLoopError):
    """Base of the four tripwires. `guardrail_result` is the result that tripped."""

    def __init__(self, message: str, *, guardrail_result: Any = None) -> None:
        super().__init__(message)
        self.guardrail_result = guardrail_result


class InputGuardrailTripwireTriggered(GuardrailTripwireTriggered):
    """An input guardrail of the run tripped."""


class OutputGuardrailTripwireTriggered(GuardrailTripwireTriggered):
    """An output guardrail of the run tripped."""


class ToolInputGuardrailTripwireTriggered(GuardrailTripwireTriggered):
    """A tool input guardrail returned `RaiseException`."""


class ToolOutputGuardrailTripwireTriggered(GuardrailTripwireTriggered):
    """A tool output guardrail returned `RaiseException`."""


class StateError(AgentLoopError):
    """Stored state can't be used: unknown schema, another run's, or it says the run is over."""


class InputRefusedError(StateError):
    """A run takes no further input, or the input that is to be taken back doesn't wait any more.

    Attributes:
        reason: The reason as a word. Of an input: `"over"` (the run is over, or ends), `"no_turn_left"`,
            `"other_input"` (the id is another input's), or what has become of the one that has the id: `"withdrawn"`,
            `"rejected"`. Of a withdrawal: `"over"`, `"judged"` (an input guardrail is at it), `"unknown"`, or what has
            become of the input: `"shown"`, `"withdrawn"`, `"rejected"`.
    """

    def __init__(self, message: str, *, reason: str) -> None:
        super().__init__(message)
        self.reason: str = reason


class JournalError(AgentLoopError):
    """The journal failed, or does not belong to this run."""


class AnswerError(Exception):
    """A tool has failed and says so to the model: the message is shown as an output is, not cut as other errors."""


class EarlierFailure(AgentLoopError):
    """A body failed in an earlier run segment. Only the summary of its error was kept: the message `TYPE(MESSAGE)`.

    Attributes:
        fatal: True if that error was no `Exception`; no policy of a tool answers it.
        details: `TYPE(MESSAGE)` with all lines of the message, for the model.
    """

    def __init__(self, message: str, *, fatal: bool = False, details: str | None = None) -> None:
        super().__init__(message)
        self.fatal = fatal
        self.details: str = message if details is None else details


class SessionConflict(AgentLoopError):
    """The session changed between reading and replacing its items."""


class MemoryConflict(AgentLoopError):
    """The files of a memory changed between reading and changing them."""


class ReplayDivergence(AgentLoopError):
    """A replay made another record than the recorded run.

    Attributes:
        n: The record's position in the log, from 0.
        wanted: The record there; None if the log ends before.
        got: The record that the replay made; None if it made none.
        why: The difference and its possible cause, in words.
    """

    def __init__(self, n: int, wanted: object, got: object, why: str | None = None) -> None:
        super().__init__(f"Replay diverged at record {n}: {why or f'wanted {wanted!r}, got {got!r}'}")
        self.n = n
        self.wanted = wanted
        self.got = got
        self.why = why
