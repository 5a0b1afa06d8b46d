"""A block of a store with a task beside it, which renews what the block holds."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import anyio


@asynccontextmanager
async def with_task(work: Callable[[anyio.CancelScope], Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    """Do *work* beside the block, and cancel it at the block's end. It is given the scope that cancels both.

    Cancellation: the block ends once the work has.

    Raises:
        BaseException: the error of the block, which no group wraps, and which comes before a cancellation that has
            reached the end of the block.
    """
    raised: BaseException | None = None
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(work, group.cancel_scope)
            try:
                yield
            except (anyio.get_cancelled_exc_class(), GeneratorExit):
                raise
            except BaseException as error:  # noqa: ASYNC103 - raised below
                raised = error
            group.cancel_scope.cancel()
    finally:
        if raised is not None:
            raise raised
