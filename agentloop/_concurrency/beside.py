"""Several pieces of work at once: the first error by position leaves, bare, and a fatal one outranks everything.

A backend's nursery raises the errors of its tasks in a group, in the order in which the tasks happened to end. You want
one error, and the same one on both backends and every time. So:

* An error cancels the other pieces, one scheduler pass later, because a backend chooses the order of tasks within a
  pass. So we know all pieces that have failed in that pass, and raise the error of the first one by position. Only the
  piece in the current task is cancelled at once, because it is the work that the others judge: once a judge has
  refused, the work must come to nothing.
* A piece that fails while it is being cancelled has failed because of the first error, which is the one to raise.
* The caller hears of each error that doesn't leave, together with the one that does, and may note it.
* A fatal error (not an `Exception`, such as `SystemExit`) may come from such a cleanup, too. It outranks the other
  errors, and also a cancellation that is on its way.
* A piece may never begin, because other code of the event loop can cancel its task before the first step. anyio then
  ends the group as if it had cancelled itself. We count the answers, so this is an error and not a silence.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, final

import anyio
import anyio.lowlevel

from agentloop._common.error_text import is_fatal
from agentloop._concurrency.backend import (
    cancelled_types,
    capture,
    checkpoint_if_cancelled,
    raised_while_cancelled,
    starter,
    unexpected_cancellation,
)
from agentloop._concurrency.interrupts import uninterrupted

Piece = Callable[[], Awaitable[Any]]
OnError = Callable[[BaseException, BaseException], None]


async def beside(
    pieces: Sequence[Piece], name: str, *, here: Piece | None = None, on_error: OnError = lambda error, first: None
) -> list[Any]:
    """Do all *pieces* at once, each in a task of its own, and return their answers in order.

    For example, judge an answer while it is being made:

        *verdicts, answer = await beside([is_polite, is_short], "judge", here=make_answer)

    Args:
        pieces: Async functions without arguments.
        name: The name of the tasks; a task has the position of its piece behind it.
        here: A piece that is done in the current task, so that its context variables stay set. It is the last one.
        on_error: Called with each error that doesn't leave, and with the one that does, right before that.

    Cancellation: all pieces are cancelled and awaited, then it continues. A checkpoint where there are several pieces.

    Raises:
        BaseException: the error of one piece, bare, chosen as the module says.
        UserError: a piece has cancelled itself, or was cancelled by other code before it began.
    """
    alone = here if not pieces else pieces[0] if len(pieces) == 1 and here is None else None
    if alone is not None:  # a group with one task would take 25 µs, and most callers have one piece
        try:
            return [await alone()]
        except Exception:
            await checkpoint_if_cancelled()  # noqa: ASYNC120 - a cancellation outranks it, as among several
            raise
    if not pieces:
        return []
    several = _Several(on_error)
    try:
        async with anyio.create_task_group() as several.group:
            start = starter(several.group)
            for position, piece in enumerate(pieces):
                start(several.do, (position, piece), f"{name} {position}")
            if here is not None:
                with several.here:
                    await several.do((len(pieces), here))
    except cancelled_types():
        several.raise_first(fatal=True)
        raise
    several.raise_first(fatal=True)
    await checkpoint_if_cancelled()
    several.raise_first()
    if len(several.answers) < len(pieces) + (here is not None):
        raise unexpected_cancellation()
    return [several.answers[position] for position in sorted(several.answers)]


@final
class _Several:
    """The pieces that one `beside` does, with what they have come to. Changed by its tasks."""

    def __init__(self, on_error: OnError) -> None:
        self.group: anyio.abc.TaskGroup
        self.here = anyio.CancelScope()
        self.answers: dict[int, Any] = {}
        self.errors: dict[tuple[bool, bool, int], BaseException] = {}
        """By rank, of which the least leaves: whether it isn't fatal, whether it comes from cleanup, its position."""
        self._on_error = on_error

    @uninterrupted
    async def do(self, placed: tuple[int, Piece]) -> None:
        """Do one piece; keep its answer, or its error, which cancels the others."""
        position, piece = placed
        captured = await capture(piece)
        error = captured.error
        if error is None:
            self.answers[position] = captured.value
            return
        is_late = bool(self.errors) and isinstance(error, Exception) and raised_while_cancelled(error)
        self.errors[not is_fatal(error), is_late, position] = error
        if is_late:
            return
        self.here.cancel()
        try:
            await anyio.lowlevel.cancel_shielded_checkpoint()  # others that fail in this pass must be known, too
        finally:
            self.group.cancel_scope.cancel()

    def raise_first(self, *, fatal: bool = False) -> None:
        """Raise the first error by rank, if there is one, and tell of the others; with *fatal* only if it is fatal."""
        ranks = sorted(self.errors)
        if ranks and (is_fatal(self.errors[ranks[0]]) or not fatal):
            first = self.errors[ranks[0]]
            for rank in ranks[1:]:
                self._on_error(self.errors[rank], first)
            raise first
