"""A model that gives the pieces of another one slowly, as a real one would."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio

from agentloop.abc import Model
from agentloop.model_events import ModelEvent, ModelRequest


class SlowModel(Model):
    """*model*, with a pause of some seconds before each piece of its answer."""

    def __init__(self, model: Model, seconds: float) -> None:
        self._model = model
        self._seconds = seconds

    def stream(self, request: ModelRequest) -> Any:
        """Return a context manager over the slowed events."""
        return self._open(request)

    @asynccontextmanager
    async def _open(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[ModelEvent]]:
        async with self._model.stream(request) as events:
            yield self._slow(events)

    async def _slow(self, events: AsyncIterator[ModelEvent]) -> AsyncIterator[ModelEvent]:
        async for event in events:
            await anyio.sleep(self._seconds)
            yield event
