"""How long a server may keep the reader of its answer waiting: for a connection, for each piece, and in all.

Used over every transport. A piece that comes in time resets the wait for a piece, so a server that sends a byte now and
then would never end an answer: the time for the whole ends that. It counts the waits alone: a consumer that takes long
between two pieces isn't the server's fault. Does not know what the pieces are.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from types import EllipsisType
from typing import Generic, TypeVar

import anyio
import attrs

from agentloop.exceptions import ModelTransportError
from agentloop.models._refusals import SILENT
from agentloop.settings import ModelSettings

T = TypeVar("T")
TOO_LONG = "answer_timeout"
"""Code of the error for an answer that kept its reader waiting for too long in all."""
ANSWER_TIMEOUT = 7200.0
"""The usual time for a whole answer: longer than vendors keep a connection, so that no answer is cut that would end."""


@attrs.frozen
class Patience:
    """The timeouts of one request, in seconds; None = no limit. `ModelSettings.timeout` bounds the whole attempt.

    Attributes:
        connect: Until there is a connection, and again until it has a session where there are sessions.
        first: For each piece until the answer's first output. Reasoning models are silent for minutes.
        silence: For each piece of an answer that has begun.
        answer: For all pieces together.
    """

    connect: float | None
    first: float | None
    silence: float | None
    answer: float | None = ANSWER_TIMEOUT


def find_first_timeout(given: float | EllipsisType | None, settings: ModelSettings) -> float | None:
    """Return the time for the first output: the *given* one, else what a model needs for the effort in *settings*."""
    if given is not ...:
        return given
    return 600.0 if (settings.reasoning or {}).get("effort") else 300.0


def make_silence_error(place: str, seconds: float | None, cause: str = "") -> ModelTransportError:
    """Return the error for a server at *place* of which nothing came for so many *seconds*; *cause* ends its words."""
    return ModelTransportError(
        f"No answer from {place}: it took too long, silent for {seconds:g} s{cause}", code=SILENT
    )


class AnswerWait(Generic[T]):
    """The waits for the pieces of one answer, which *receive* returns. Owned by the reader of that answer."""

    def __init__(self, receive: Callable[[], Awaitable[T]], patience: Patience, place: str) -> None:
        self.begun = False
        """True once the answer has shown output, set by the reader; from then on `Patience.silence` applies."""
        self._receive = receive
        self._patience = patience
        self._place = place
        self._waited = 0.0

    async def next(self) -> T:
        """Return the next piece.

        Cancellation: as that of `receive`.

        Raises:
            ModelTransportError: if the piece, or the whole answer, takes too long.
        """
        patience = self._patience
        piece, whole = patience.silence if self.begun else patience.first, patience.answer
        left = math.inf if whole is None else whole - self._waited
        limit = math.inf if piece is None else piece
        started = anyio.current_time()
        try:
            with anyio.move_on_after(min(limit, left)):
                return await self._receive()
        finally:
            self._waited += anyio.current_time() - started
        if limit <= left:
            raise make_silence_error(self._place, limit)
        raise ModelTransportError(
            f"No whole answer from {self._place}: it isn't complete after {whole:g} s",
            code=TOO_LONG,
            should_retry=False,
        )
