"""Verdicts that clients give on the calls of a run: on a paused state, or on a stream under way."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import msgspec

from agentloop.asgi._http import HTTPRefusal
from agentloop.exceptions import StateError, UserError
from agentloop.items import ApprovalRequest
from agentloop.state import REPLACE_HINT, RunState


class ClientVerdict(msgspec.Struct, forbid_unknown_fields=True):
    """A verdict as a client sends it."""

    call_id: str
    approve: bool
    path: tuple[str, ...] = ()
    arguments: dict[str, Any] | None = None
    message: str | None = None
    always: bool = False


class _Decided(Protocol):
    """A `RunState` or a `RunStream`."""

    def approve(self, call: Any, *, arguments: Any = None, always: bool = False, by: str | None = None) -> None: ...
    def reject(self, call: Any, *, message: str | None = None, always: bool = False, by: str | None = None) -> None: ...


class _Stream(_Decided, Protocol):
    @property
    def state(self) -> RunState: ...


def apply_verdicts(state: RunState, verdicts: Iterable[ClientVerdict], by: str | None) -> None:
    """Give *verdicts* on the calls of *state* that wait.

    Raises:
        HTTPRefusal: a call doesn't wait (409), or the verdict doesn't fit it (400).
    """
    for verdict in verdicts:
        _give(state, _find(state, verdict), verdict, by)
        state._close_verdicts()  # a second one on the same call is refused, as from another client


def give_verdicts(stream: _Stream, verdicts: Sequence[ClientVerdict], by: str | None) -> None:
    """Give *verdicts* on calls of a run that is under way: all of them, or none.

    Raises:
        HTTPRefusal: as for `apply_verdicts`; or the run has not begun (409).
    """
    try:
        state = stream.state
    except UserError:
        raise HTTPRefusal(409, "The run has not begun.") from None
    found = [_find(state, verdict) for verdict in verdicts]
    apply_verdicts(state, verdicts, by)  # to a copy first
    for asked, verdict in zip(found, verdicts, strict=True):
        _give(stream, asked, verdict, by)


def _find(state: RunState, verdict: ClientVerdict) -> ApprovalRequest:
    for asked in state._asked():
        if (asked.path, asked.call.call_id) == (verdict.path, verdict.call_id):
            return asked
    raise HTTPRefusal(409, f"Call {verdict.call_id[:100]!r} waits for no verdict.")


def _give(decided: _Decided, call: ApprovalRequest, verdict: ClientVerdict, by: str | None) -> None:
    try:
        if verdict.approve:
            if verdict.message is not None:
                raise UserError("a message goes with a rejection")
            decided.approve(call, arguments=verdict.arguments, always=verdict.always, by=by)
        elif verdict.arguments is not None:
            raise UserError("arguments go with an approval")
        else:
            decided.reject(call, message=verdict.message, always=verdict.always, by=by)
    except UserError as error:
        raise HTTPRefusal(400, f"The verdict doesn't fit: {error}.") from None
    except StateError as error:
        raise HTTPRefusal(409, _as_sentence(error)) from None


def _as_sentence(error: StateError) -> str:
    text = str(error).removesuffix(REPLACE_HINT)
    return f"{text[:1].upper()}{text[1:]}."
