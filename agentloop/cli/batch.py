"""Many requests, one a line: many runs at once under a cap, answers in the order of the requests."""

from __future__ import annotations

from typing import Any

import anyio
import attrs
from anyio.abc import ObjectReceiveStream

from agentloop.cli import failure
from agentloop.cli.bar import Bar
from agentloop.cli.job import Job
from agentloop.cli.show import answer_of, cancelled_json, error_json, json_line, result_json, unfinished
from agentloop.cli.streams import Line, Lines, OutputClosed
from agentloop.exceptions import UserError
from agentloop.results import RunResult
from agentloop.run import Runner
from agentloop.runtime import open_runtime

_AHEAD = 64
"""Requests that may be read and not yet answered in print, per run in flight: bounds memory behind a slow one."""


class BadLine(UserError):
    """A line of the input is no request."""


@attrs.define(eq=False)
class _Slot:
    """One request's place in the output."""

    line: Line
    done: anyio.Event = attrs.field(factory=anyio.Event)
    result: RunResult[Any] | None = None
    error: Exception | None = None


@attrs.define(eq=False)
class Batch:
    """Answers every line of *lines* in one runtime. `answered` and `failed` count what was printed."""

    job: Job
    lines: Lines
    bar: Bar
    answered: int = 0
    failed: int = 0
    _output_closed: bool = False

    async def run(self) -> int:
        """Answer all lines and return the exit code: 1 if any of them failed.

        Concurrency: at most `job.concurrency` runs at once. Reading waits for a free place, printing for its turn.
        Cancellation: runs in flight are cancelled and joined; what was printed stays.

        Raises:
            OutputClosed: if nobody reads the output any more.
            UserError: if the model can't be opened; no line has been read then.
        """
        async with open_runtime() as runtime:
            await self.job.open_model(runtime)
            with self.bar:
                await self._run_lines()
        if self._output_closed:
            raise OutputClosed
        if self.failed:
            await self.job.err.write(f"{self.failed} of {self.answered} requests failed.\n")
        return failure.FAILED if self.failed else failure.OK

    async def _run_lines(self) -> None:
        free = anyio.Semaphore(self.job.concurrency)
        send, receive = anyio.create_memory_object_stream[_Slot](self.job.concurrency * _AHEAD)
        async with anyio.create_task_group() as group, send:
            group.start_soon(self._print_in_order, receive, group.cancel_scope)
            while (line := await self.lines.next()) is not None:
                self.bar.read()
                slot = _Slot(line)
                await send.send(slot)
                await free.acquire()
                group.start_soon(self._answer, slot, free, name=f"request of line {line.number}")
            self.bar.all_read()

    async def _answer(self, slot: _Slot, free: anyio.Semaphore) -> None:
        line = slot.line
        self.bar.started()
        try:
            if line.error is not None:
                raise BadLine(line.error)
            slot.result = await Runner.run(self.job.agent, line.text, **self.job.how)
        except Exception as error:
            slot.error = error
        finally:
            free.release()
        self.bar.ended()
        slot.done.set()

    async def _print_in_order(self, slots: ObjectReceiveStream[_Slot], scope: anyio.CancelScope) -> None:
        async with slots:
            async for slot in slots:
                await slot.done.wait()
                try:
                    await self._print(slot)
                except OutputClosed:
                    self._output_closed = True
                    scope.cancel()

    async def _print(self, slot: _Slot) -> None:
        trouble = unfinished(slot.result) if slot.result is not None else None
        self.answered += 1
        if slot.error is not None or trouble is not None:
            self.failed += 1
            told = failure.words_for(slot.error, with_traceback=self.job.traceback) if slot.error else f"{trouble}\n"
            with self.bar.hidden():
                await self.job.err.write(f"line {slot.line.number}: {told}")
        with self.bar.hidden():
            text = self._json(slot) if self.job.json else self._text(slot, trouble)
            await self.job.out.write(text, encoding="utf-8" if self.job.json else None)

    def _text(self, slot: _Slot, trouble: str | None) -> str:
        if slot.error is not None:
            return f"Error: {failure.message_of(slot.error).splitlines()[0]}\n"
        assert slot.result is not None
        return f"Error: {trouble}\n" if trouble is not None else f"{answer_of(slot.result)}\n"

    def _json(self, slot: _Slot) -> str:
        if slot.error is not None:
            value = error_json(slot.error)
        else:
            value = result_json(slot.result) if slot.result is not None else cancelled_json()
        return json_line({"line": slot.line.number, "request": slot.line.text, **value})
