"""The requests of clients, as values: what a request asks for, what the application allows, and the bodies' forms."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import attrs
import msgspec

from agentloop.asgi._http import BodyT, HTTPRefusal, Receive, Scope, Send, WebLimits, find_header, parse_body, read_body
from agentloop.asgi._shared_state import SharedState
from agentloop.asgi._verdicts import ClientAnswer, ClientVerdict
from agentloop.config import RunConfig
from agentloop.exceptions import UserError
from agentloop.journal._states import NAME_PATTERN
from agentloop.run import RunOptions
from agentloop.state import RunState


class StartBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request for a new run, whose id a client may choose, so that it can send the request again."""

    input: str
    run: Annotated[str, msgspec.Meta(pattern=NAME_PATTERN)] | None = None
    conversation: str | None = None


class CancelBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request to cancel a run, or one call of it, which *path* finds in a nested run."""

    call_id: str | None = None
    path: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.path and self.call_id is None:
            raise ValueError("a path goes with a call_id")


class VerdictsBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request with verdicts on the calls of a run."""

    handle: str
    verdicts: list[ClientVerdict]
    conversation: str | None = None


class AnswerBody(ClientAnswer, forbid_unknown_fields=True):
    """The body of a request with the answer to a call; *handle* finds a paused run that has no journal."""

    handle: str | None = None
    conversation: str | None = None


_InputId: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class InputBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request that adds input to a run; *handle* finds a paused run that has no journal."""

    input: str
    when: Literal["turn", "idle"] = "turn"
    id: _InputId | None = None
    handle: str | None = None
    conversation: str | None = None


class WithdrawBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request that takes an input back; *handle* as in `InputBody`."""

    id: _InputId
    handle: str | None = None
    conversation: str | None = None


START: msgspec.json.Decoder[StartBody] = msgspec.json.Decoder(StartBody)
CANCEL: msgspec.json.Decoder[CancelBody] = msgspec.json.Decoder(CancelBody)
VERDICTS: msgspec.json.Decoder[VerdictsBody] = msgspec.json.Decoder(VerdictsBody)
ANSWER: msgspec.json.Decoder[AnswerBody] = msgspec.json.Decoder(AnswerBody)
INPUT: msgspec.json.Decoder[InputBody] = msgspec.json.Decoder(InputBody)
WITHDRAW: msgspec.json.Decoder[WithdrawBody] = msgspec.json.Decoder(WithdrawBody)


class Exchange(NamedTuple):
    """One request's side of ASGI."""

    scope: Scope
    receive: Receive
    send: Send

    async def read(self, limits: WebLimits, decoder: msgspec.json.Decoder[BodyT]) -> BodyT:
        """Return the body as *decoder* reads it.

        Raises:
            HTTPRefusal, ClientGone: as for `read_body` and `parse_body`.
        """
        return parse_body(self.scope, await read_body(self.scope, self.receive, limits), decoder)


@attrs.frozen(kw_only=True)
class WebRequest:
    """One request, as `admit` sees it.

    Attributes:
        action: What is asked for; `"input"` adds input to a run, or takes it back.
        scope: The ASGI scope, with the headers, the client's address, and what middleware has put there.
        run: The id of the run; None if the request starts one whose id the client hasn't chosen, or resumes a paused
            one that has no journal.
        conversation: What the client calls its conversation, or None.
        shared_state: The state of the client, for the context of the run. A new one if the client has none, or speaks
            another protocol than AG-UI; None if the application shares no state.
    """

    action: Literal["start", "read", "cancel", "decide", "answer", "input"]
    scope: Scope
    run: str | None = None
    conversation: str | None = None
    shared_state: SharedState[Any] | None = None

    def header(self, name: str) -> str | None:
        """Return the first value of a header, or None."""
        value = find_header(self.scope, name.lower().encode("latin-1"))
        return None if value is None else value.decode("latin-1")


@attrs.frozen(kw_only=True)
class Grant:
    """An answer of `admit`: what a request may do.

    Attributes:
        options: The options of the run.
        by: The giver of verdicts, answers and input, as the log keeps it.
        owner: Whose request it is. A run that it begins belongs to that owner, which its log says; then requests of
            any other owner, or of none, find no such run. None: the run belongs to no one, and only `admit` decides.
    """

    options: RunOptions[Any] = attrs.field(factory=lambda: RunOptions())
    by: str | None = None
    owner: str | None = None

    def options_for(self, given: object) -> RunOptions[Any]:
        """Return the options of a run that is *given* its input, or a state; the log of a new one says whose it is."""
        if self.owner is None or isinstance(given, RunState):
            return self.options
        config = self.options.get("run_config") or RunConfig()
        return RunOptions(**{**self.options, "run_config": attrs.evolve(config, owner=self.owner)})

    def check_owner(self, owner: str | None) -> None:
        """Check that a request may concern a run of *owner*; None: a run that belongs to no one.

        Raises:
            HTTPRefusal: it may not (404), in the words for a run that isn't there.
        """
        if owner is not None and owner != self.owner:
            raise HTTPRefusal(404, "There is no such run.")


Admit: TypeAlias = Callable[[WebRequest], "Grant | Awaitable[Grant | None] | None"]


async def ask_for_grant(admit: Admit | None, request: WebRequest) -> Grant:
    """Return what *admit* allows; everything without one.

    Raises:
        HTTPRefusal: nothing.
        UserError: *admit* has returned something else than a grant.
    """
    found = None if admit is None else admit(request)
    granted = await found if isawaitable(found) else found
    if not isinstance(granted, Grant | None):
        raise UserError(f"admit: expected a Grant or None, got {granted!r}")
    if granted is not None and "journal" in granted.options:
        raise UserError("admit: the journal of a run is given by `journals`, not by its options")
    return granted or Grant()
