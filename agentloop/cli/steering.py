"""The lines that a user types while an answer of `agentloop chat` is under way: each becomes an input of the run.

A line is *taken* once the run's log has it, and *seen* when the run shows it to the model; the terminal says both. One
that the run refuses, since it ends, or that it hasn't shown when it fails, is read as the next message:
nothing that was typed is lost, and nothing is shown twice, since the log knows what has become of each.

Decisions:

The lines are read within a run segment only. Between two segments the user may be asked about calls, and what is
typed there is an answer. A line that was typed before is none, since it could approve a call that was not shown yet.

Keys are taken one by one where lanes are drawn (`TypedLines.edited`), because the display redraws its region five times
a second, which would erase what a terminal echoes into it.
"""

from __future__ import annotations

import contextlib
from typing import Any

import anyio
import attrs

from agentloop import RunStream
from agentloop import events as ev
from agentloop._common.terminal_text import format_line
from agentloop.cli.show import TerminalShow
from agentloop.cli.streams import TypedLines
from agentloop.exceptions import InputRefusedError
from agentloop.items import UserMessage


@attrs.define
class _Typed:
    """One line. `taken` is True once the terminal says so."""

    text: str
    taken: bool = False


@attrs.define(eq=False)
class TypedInputs:
    """The lines that are typed while the answer to one message is under way; *show* displays that answer.

    `has_ended` is True once the user has typed Ctrl-D: then no more lines are read.
    """

    lines: TypedLines
    show: TerminalShow
    has_ended: bool = False
    _unseen: dict[str, _Typed] = attrs.field(factory=dict)
    """The lines that the model hasn't seen, by the ids of their inputs."""
    _count: int = 0

    @property
    def unseen(self) -> list[str]:
        """The lines that the model hasn't seen, in their order."""
        return [line.text for line in self._unseen.values()]

    async def follow(self, stream: RunStream[Any]) -> None:
        """Show one run segment, and give it the lines that are typed meanwhile.

        Cancellation: a line that was read is in the run's log, or in `unseen`.

        Raises:
            OutputClosed: if the terminal is gone.
            Exception: the error of the run.
        """
        failed: list[Exception] = []
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._take_lines, stream, failed, group.cancel_scope, name="typed lines")
                try:
                    await self.show.follow(_SteeredEvents(stream, self))
                except Exception as error:
                    failed.append(error)  # carried as a value: the group would wrap it
                group.cancel_scope.cancel()
        finally:
            for name in self._settled(stream):
                del self._unseen[name]
            for text in filter(None, map(str.strip, self.lines.take_complete())):
                self._note(text)
        if failed:
            raise failed[0]

    async def _take_lines(self, stream: RunStream[Any], failed: list[Exception], scope: anyio.CancelScope) -> None:
        keys = contextlib.nullcontext() if self.show.typing is None else self.lines.edited(self.show.typing)
        try:
            with keys:
                while not self.has_ended:
                    typed = await self.lines.next()
                    self.has_ended = typed is None
                    if typed is not None and typed.strip():
                        await self._add(stream, typed.strip())
        except Exception as error:
            failed.append(error)
            scope.cancel()

    async def _add(self, stream: RunStream[Any], text: str) -> None:
        name, line = self._note(text)
        try:
            await stream.add_input(text, id=name)
        except InputRefusedError:
            await self.show.note(f"! Kept for your next message: {format_line(text)}")
        else:
            await self._tell_taken(line)

    def _note(self, text: str) -> tuple[str, _Typed]:
        self._count += 1
        name = f"typed_{self._count}"
        self._unseen[name] = line = _Typed(text)
        return name, line

    async def _tell_taken(self, line: _Typed) -> None:
        if not line.taken:
            line.taken = True
            await self.show.note(f"+ Taken: {format_line(line.text)}")

    async def tell_seen(self, stream: RunStream[Any]) -> None:
        """Tell which lines the model has seen since the last call, and which a guardrail has rejected."""
        for name, words in self._settled(stream).items():
            line = self._unseen.pop(name)
            await self._tell_taken(line)
            await self.show.note(f"+ {words}: {format_line(line.text)}")

    def _settled(self, stream: RunStream[Any]) -> dict[str, str]:
        """Return the ids of lines that are no longer unseen, with what has become of them."""
        if not self._unseen:
            return {}
        known = {one.id: one for one in stream.state.inputs if one.id in self._unseen}
        words = {"shown": "The model sees", "rejected": "Rejected by a guardrail"}
        return {name: words[one.status] for name, one in known.items() if one.status in words}


class _SteeredEvents:
    """The events of *stream*. *steering* tells what has become of an input before the event that says so is shown."""

    def __init__(self, stream: RunStream[Any], steering: TypedInputs) -> None:
        self._stream = stream
        self._events = aiter(stream)
        self._steering = steering

    def __aiter__(self) -> _SteeredEvents:
        return self

    async def __anext__(self) -> ev.Event:
        event = await anext(self._events)
        match event:
            case ev.ItemCreated(UserMessage(), path=()) | ev.GuardrailSettled(path=()):
                await self._steering.tell_seen(self._stream)
            case _:
                pass
        return event
