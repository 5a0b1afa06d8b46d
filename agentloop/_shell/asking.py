"""Calling user code that may be sync or async, one at a time or all at once."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import anyio
from anyio.lowlevel import checkpoint_if_cancelled

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
    errors: dict[int, Exception] = {}
    failed = anyio.Event()

    async def one(index: int) -> None:
        try:
            answers[index] = await questions[index]()
        except Exception as error:
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
