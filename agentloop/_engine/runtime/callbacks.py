"""Calls of user code that may be sync or async, one at a time or all at once. Records nothing: its callers do."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import anyio

from agentloop._common.error_text import is_fatal
from agentloop._engine.runtime.backend import (
    cancelled_types,
    capture,
    checkpoint_if_cancelled,
    starter,
    unexpected_cancellation,
)
from agentloop._engine.runtime.body_result import raised_while_cancelled
from agentloop._engine.runtime.interrupts import interruptible, uninterrupted

ResultT = TypeVar("ResultT")


async def resolved(value: Any) -> Any:
    """Return *value*, awaited if it is awaitable."""
    return await value if inspect.isawaitable(value) else value


@interruptible
async def call_user(fn: Callable[..., Any], *args: Any) -> Any:
    """Call *fn*, sync or async, on the event loop."""
    return await resolved(fn(*args))


async def gather(questions: Sequence[Callable[[], Awaitable[ResultT]]]) -> list[ResultT]:
    """Call all *questions* at once and return their answers in order.

    Cancellation: a checkpoint where there are several; all of them are cancelled and awaited.

    Raises:
        Exception: the first error, bare; it cancels the others. Of errors in one scheduler pass, the first in order.
        BaseException: it outranks other errors and a cancellation under way, since it may come from the cleanup of a
            question that was cancelled.
    """
    if not questions:
        return []
    if len(questions) == 1:
        try:
            return [await questions[0]()]
        except Exception:
            await checkpoint_if_cancelled()  # noqa: ASYNC120 - the run's end has precedence, as in a group
            raise
    gathering = _Gathering(questions)
    try:
        async with anyio.create_task_group() as group:
            start = starter(group)
            for index in range(len(questions)):
                start(gathering.one, index, f"agentloop question {index}")
            await gathering.settled.wait()
            group.cancel_scope.cancel()
    except cancelled_types():
        raise_fatal(gathering.errors)
        raise
    raise_fatal(gathering.errors)
    await checkpoint_if_cancelled()
    if gathering.errors:
        raise gathering.errors[min(gathering.errors)]
    if len(gathering.answers) < len(questions):
        raise unexpected_cancellation()
    return [gathering.answers[index] for index in range(len(questions))]


def raise_fatal(errors: Mapping[int, BaseException]) -> None:
    """Raise the first of *errors*, by index, that is no Exception and so outranks a cancellation, if there is one."""
    fatal = [index for index, error in errors.items() if is_fatal(error)]
    if fatal:
        raise errors[min(fatal)]


class _Gathering:
    """Functions that `gather` calls at once, with their answers and errors. Owned by `gather`, mutated by its tasks."""

    def __init__(self, questions: Sequence[Callable[[], Awaitable[Any]]]) -> None:
        self.questions = questions
        self.answers: dict[int, Any] = {}
        self.errors: dict[int, BaseException] = {}
        self.settled = anyio.Event()
        """Set once all have answered, or one has failed."""

    @uninterrupted
    async def one(self, index: int) -> None:
        """Call one function; keep its answer, or its error, which ends the others."""
        captured = await capture(self.questions[index])
        error = captured.error
        if error is None:
            self.answers[index] = captured.value
            if len(self.answers) < len(self.questions):
                return
        # An error from the cleanup of a question that another error cancelled is not the first error.
        elif not (self.errors and isinstance(error, Exception) and raised_while_cancelled(error)):
            self.errors[index] = error
        self.settled.set()
