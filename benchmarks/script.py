"""What both sides of a comparison go through: the model's answers, and the body of the tool it calls."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Self

import attrs

from agentloop.items import AssistantMessage, Item, ToolCall
from agentloop.model_events import ModelEvent, ResponseDone, TextDelta

Sleep = Callable[[float], Coroutine[Any, Any, None]]
Body = Callable[[int], Coroutine[Any, Any, str]]

_ANSWER = (AssistantMessage("done"),)


@attrs.frozen
class Script:
    """A conversation: *answers* by turn, the last one without calls; *sleep* is the backend's own, *body* the tool's.

    A model call sleeps once for zero seconds, and once more before each of its *deltas*.
    """

    answers: tuple[tuple[Item, ...], ...]
    sleep: Sleep
    body: Body
    deltas: int = 0

    async def answer(self, turn: int) -> tuple[Item, ...]:
        """Return the model's answer in *turn*, counted from 0."""
        await self.sleep(0)
        return self.answers[turn]

    def stream(self, turn: int) -> Stream:
        """Return the events of the model's answer in *turn*."""
        return Stream(self, turn)


class Stream:
    """The events of one answer: as an async context manager and as an iterator, with nothing around it that costs."""

    def __init__(self, script: Script, turn: int) -> None:
        self._script = script
        self._turn = turn
        self._deltas = script.deltas
        self._done = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ModelEvent:
        if self._deltas:
            self._deltas -= 1
            await self._script.sleep(0)
            return TextDelta("word ")
        if self._done:
            raise StopAsyncIteration
        self._done = True
        return ResponseDone(await self._script.answer(self._turn))


def working(sleep: Sleep) -> Body:
    """Return the usual body: one sleep of zero seconds."""

    async def work(x: int) -> str:
        await sleep(0)
        return "ok"

    return work


def conversation(sleep: Sleep, *, turns: int, calls: int, body: Body | None = None, deltas: int = 0) -> Script:
    """Return a script of *turns* turns with *calls* calls each, and one turn more for the closing answer."""
    answers = [tuple(ToolCall(f"c{turn}_{n}", "work", '{"x": 1}') for n in range(calls)) for turn in range(turns)]
    return Script((*answers, _ANSWER), sleep, body or working(sleep), deltas)
