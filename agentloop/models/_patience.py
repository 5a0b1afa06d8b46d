"""The timeouts of one answer: to connect, between pieces, in total.

Used over every transport. A piece that comes in time resets the wait for a piece, so a server that sends a byte now and
then would never end an answer: the time for the whole ends that. It counts what the server causes, from the request on:
the wait for the head, the waits for pieces, and the work of unpacking and reading them. A consumer that takes long
between two events isn't the server's fault. Does not know what the pieces are.

`Pace` is for the other direction: reading never keeps the event loop for long, however much comes at once.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self, TypeVar

import anyio
import attrs
from anyio.lowlevel import checkpoint

from agentloop.exceptions import ModelTransportError
from agentloop.models._refusals import SILENT

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
        first: For the head of an answer, and for each piece until its first output. Reasoning models are silent for
            minutes.
        silence: For each piece of an answer that has begun.
        answer: For the head and all pieces together, and for the work of reading them.
    """

    connect: float | None
    first: float | None
    silence: float | None
    answer: float | None = ANSWER_TIMEOUT


def make_silence_error(place: str, seconds: float | None, cause: str = "") -> ModelTransportError:
    """Return the error for a server at *place* of which nothing came for so many *seconds*; *cause* ends its words."""
    return ModelTransportError(
        f"No answer from {place}: it took too long, silent for {seconds:g} s{cause}", code=SILENT
    )


class AnswerWait:
    """The time that one answer takes. Owned by the reader of that answer.

    `next` waits for a piece. Inside of `with wait:` all time counts, the reader's own work too; the reader leaves it
    while its consumer has the turn.
    """

    def __init__(self, patience: Patience, place: str) -> None:
        self.begun = False
        """True once the answer has shown output, set by the reader; from then on `Patience.silence` applies."""
        self._patience = patience
        self._place = place
        self._spent = 0.0
        self._since: float | None = None

    def __enter__(self) -> Self:
        self._since = anyio.current_time()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        assert self._since is not None
        self._spent += anyio.current_time() - self._since
        self._since = None

    async def next(self, receive: Callable[[], Awaitable[T]]) -> T:
        """Return what *receive* returns: the next piece.

        Cancellation: as that of *receive*.

        Raises:
            ModelTransportError: if the piece, or the whole answer, takes too long.
        """
        if self._since is None:
            with self:
                return await self._next(receive)
        return await self._next(receive)

    async def _next(self, receive: Callable[[], Awaitable[T]]) -> T:
        patience = self._patience
        piece, whole = patience.silence if self.begun else patience.first, patience.answer
        assert self._since is not None
        left = math.inf if whole is None else whole - self._spent - (anyio.current_time() - self._since)
        limit = math.inf if piece is None else piece
        if left > 0:  # else a piece that is here already would still be taken
            with anyio.move_on_after(min(limit, left)):
                return await receive()
        if limit <= left:
            raise make_silence_error(self._place, limit)
        raise ModelTransportError(
            f"No whole answer from {self._place}: it isn't complete after {whole:g} s",
            code=TOO_LONG,
            should_retry=False,
        )


class Pace:
    """Lets other tasks run, and a cancellation in, once per so many steps of one reader: most of them wait for nothing.

    A step is some ten microseconds of work: one event of a server, or some of the values of a long JSON text.
    """

    most = 100
    """Steps from one checkpoint to the next: a millisecond or a few."""

    def __init__(self) -> None:
        self._steps = 0

    async def step(self) -> None:
        """Count one step. A checkpoint if it is the last of so many."""
        self._steps += 1
        if self._steps >= self.most:
            self._steps = 0
            await checkpoint()
