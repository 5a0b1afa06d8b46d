"""Verdicts and answers that clients give to the calls of a run: on a paused state, or on a stream under way."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Protocol, TypeAlias

import msgspec

from agentloop.asgi._http import HTTPRefusal
from agentloop.exceptions import InputRefusedError, StateError, UserError
from agentloop.items import Interruption
from agentloop.state import REPLACE_HINT, RunState

_RUN = re.compile(r"\brun [0-9a-f]{32}\b")


class ClientVerdict(msgspec.Struct, forbid_unknown_fields=True):
    """A verdict as a client sends it."""

    call_id: str
    approve: bool
    path: tuple[str, ...] = ()
    arguments: dict[str, Any] | None = None
    message: str | None = None
    always: bool = False


class ClientAnswer(msgspec.Struct, forbid_unknown_fields=True):
    """An answer as a client sends it: a value, or the words of an error."""

    call_id: str
    path: tuple[str, ...] = ()
    value: Any = msgspec.UNSET
    error: str | None = None

    def __post_init__(self) -> None:
        if (self.value is msgspec.UNSET) == (self.error is None):
            raise ValueError("expected a value or an error")


Decision: TypeAlias = ClientVerdict | ClientAnswer


class _Decided(Protocol):
    """A `RunState` or a `RunStream`."""

    def approve(self, call: Any, *, arguments: Any = None, always: bool = False, by: str | None = None) -> None: ...
    def reject(self, call: Any, *, message: str | None = None, always: bool = False, by: str | None = None) -> None: ...


class _Stream(_Decided, Protocol):
    @property
    def state(self) -> RunState: ...
    async def _give(self, put: Callable[[], None]) -> None: ...
    def _put_answer(self, call: Any, value: Any, *, error: str | None, by: str | None) -> None: ...


def apply_decisions(state: RunState, decisions: Iterable[Decision], by: str | None) -> None:
    """Give *decisions* to the calls of *state* that wait.

    Raises:
        HTTPRefusal: a call doesn't wait for one (409), or the decision doesn't fit it (400).
    """
    for decision in decisions:
        _give(state, state.answer, _find(state, decision), decision, by)
        state._close_verdicts()  # a second one on the same call is refused, as from another client


async def give_decisions(stream: _Stream, decisions: Sequence[Decision], by: str | None) -> None:
    """Give *decisions* to calls of a run that is under way: all of them in one step, or none. They are then durable.

    Raises:
        HTTPRefusal: as for `apply_decisions`; or the run has not begun, or is over (409).
        JournalError: the run's journal has failed.
    """
    _check_all(stream, decisions, by)  # at once: one that has not begun would be waited for
    try:
        await stream._give(partial(_put_all, stream, decisions, by))
    except UserError as error:  # it has ended meanwhile
        raise HTTPRefusal(409, as_sentence(error)) from None


def _put_all(stream: _Stream, decisions: Sequence[Decision], by: str | None) -> None:
    for asked, decision in zip(_check_all(stream, decisions, by), decisions, strict=True):
        _give(stream, stream._put_answer, asked, decision, by)


def _check_all(stream: _Stream, decisions: Sequence[Decision], by: str | None) -> list[Interruption]:
    """Return the interruptions that *decisions* are for, once all of them were given to a copy of the run."""
    state = state_of(stream)
    found = [_find(state, decision) for decision in decisions]
    apply_decisions(state, decisions, by)
    return found


def _find(state: RunState, decision: Decision) -> Interruption:
    waiting: Iterable[Interruption] = state._asked() if isinstance(decision, ClientVerdict) else state._questions()
    for asked in waiting:
        if (asked.path, asked.call.call_id) == (decision.path, decision.call_id):
            return asked
    raise HTTPRefusal(409, f"Call {decision.call_id[:100]!r} waits for no {_name(decision)}.")


def _give(
    decided: _Decided, answer: Callable[..., None], call: Interruption, decision: Decision, by: str | None
) -> None:
    try:
        if isinstance(decision, ClientAnswer):
            value = None if decision.value is msgspec.UNSET else decision.value
            answer(call, value, error=decision.error, by=by)
        elif decision.approve:
            if decision.message is not None:
                raise UserError("a message goes with a rejection")
            decided.approve(call, arguments=decision.arguments, always=decision.always, by=by)
        elif decision.arguments is not None:
            raise UserError("arguments go with an approval")
        else:
            decided.reject(call, message=decision.message, always=decision.always, by=by)
    except UserError as error:
        said = as_sentence(error) if isinstance(decision, ClientAnswer) else f"The verdict doesn't fit: {error}."
        raise HTTPRefusal(400, said) from None
    except StateError as error:
        raise HTTPRefusal(409, as_sentence(error)) from None


def _name(decision: Decision) -> str:
    return "verdict" if isinstance(decision, ClientVerdict) else "answer"


def state_of(stream: _Stream) -> RunState:
    """Return the state of a run under way.

    Raises:
        HTTPRefusal: it has not begun (409).
    """
    try:
        return stream.state
    except UserError:
        raise HTTPRefusal(409, "The run has not begun.") from None


def as_sentence(error: Exception) -> str:
    """Return the message of a refusal as a sentence, without the name of the method that raised it.

    It is also without the id that the log has of the run: a client knows another one.
    """
    text = _RUN.sub("the run", str(error).removesuffix(REPLACE_HINT))
    if isinstance(error, InputRefusedError):
        text = text.partition(": ")[2]
    return f"{text[:1].upper()}{text[1:]}."
