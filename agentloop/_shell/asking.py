"""Calling user code that may be sync or async, one at a time or all at once."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import anyio
from anyio.lowlevel import checkpoint_if_cancelled

from agentloop._shell.endings import raised_while_cancelled
from agentloop._shell.native import cancelled_types, cancelling, outrank, self_cancelled, taken_back

ResultT = TypeVar("ResultT")


async def resolved(value: Any) -> Any:
    """Return *value*, awaited if it must be."""
    return await value if inspect.isawaitable(value) else value


async def ask(fn: Callable[..., Any], *args: Any) -> Any:
    """Call *fn*, sync or async, on the event loop."""
    return await resolved(fn(*args))


async def all_of(questions: Sequence[Callable[[], Awaitable[ResultT]]]) -> list[ResultT]:
    """Ask all at once and return the answers in order. The first error cancels the others and is raised bare.

    Of errors that fall into one scheduler pass, the first in order is raised.
    """
    if not questions:
        return []
    if len(questions) == 1:
        return [await questions[0]()]
    answers: dict[int, ResultT] = {}
    errors: dict[int, BaseException] = {}
    failed = anyio.Event()

    async def one(index: int) -> None:
        count = cancelling()
        try:
            answers[index] = await questions[index]()
        except cancelled_types() as error:
            if not taken_back(count):
                await outrank(error)  # noqa: ASYNC120 - waits for nothing: a cancellation is there
                raise
            errors[index] = self_cancelled(error)
            failed.set()
        except GeneratorExit:
            raise
        except BaseException as error:  # noqa: ASYNC103 - raised below, bare; cancellations have gone on above
            # What comes of the cleanup of a question that was cancelled for another's error is not that error.
            if not (errors and isinstance(error, Exception) and raised_while_cancelled(error)):
                errors[index] = error
            failed.set()
        if len(answers) == len(questions):
            failed.set()

    async with anyio.create_task_group() as group:
        for index in range(len(questions)):
            group.start_soon(one, index)
        await failed.wait()
        group.cancel_scope.cancel()
    await checkpoint_if_cancelled()
    if errors:
        raise errors[min(errors)]
    return [answers[index] for index in range(len(questions))]
