"""The live display of a run at a terminal: finished lines above, and below them a region that is redrawn in place.

Theory. The task that reads the run's events never waits for the terminal: it changes the board, puts finished text
into a queue, and wakes the drawer, the one task that writes. The drawer takes all that has come since its last write,
at most twenty times a second, so a slow or stopped terminal (Ctrl-S) holds up the display and not the run. While there
are lanes it draws five times a second, for the clock.

The region is rich's `Live`, whose text goes into a buffer first: rich would write it itself, and block the event loop.
A new `Live` begins each time the region is drawn below other text. Text of the answer that ends in the middle of a line
hides the region until the line is complete: both can't have the cursor.

States: closed (no region); shown (`_region`: the cursor is hidden and below text that is not final); left for good
(`_is_over`: after a signal). Invariant: the region is erased before anything else is written, and whenever a
segment is left, in any way, the region is erased and the cursor shown.

Decisions:

Nothing that a model has written reaches a terminal as an order. Names, arguments, answers and errors are shown with
control characters written out, and with those that change the direction of text; JSON lines have them as escapes.

The live display writes by itself. rich's `Live` draws the lanes, but into a buffer: its own writes, from a thread or
not, would block the event loop, or race with the answer's text. One task writes, from a queue that the reader of
events never waits for, to a description of the terminal of its own that is non-blocking: a terminal with room for one
byte counts as writable, and a write of two would stop every run of the process. Rejected: a full-screen program
(textual): finished lines belong to the scroll-back, and to a pipe.
"""

from __future__ import annotations

import contextlib
import io
import itertools
from collections.abc import AsyncIterable
from typing import Any

import anyio
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text as Styled

from agentloop import events as ev
from agentloop._common.terminal_text import duration, exact
from agentloop.cli.calls_table import render_summary
from agentloop.cli.lane_board import LaneBoard, WorkLane
from agentloop.cli.saved_run import RunSummary
from agentloop.cli.show import Narrator
from agentloop.cli.streams import Output, OutputClosed

_TICK = 0.2
_PAUSE = 0.05
_MOST_LANES = 12
_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


class _Queued:
    """An output that takes text without a wait, for the drawer to write to *output*."""

    def __init__(self, output: Output, queue: list[tuple[Output, str]]) -> None:
        self.output = output
        self.is_terminal: bool = output.is_terminal
        self._queue = queue

    def goes_where(self, other: Any) -> bool:
        """Tell whether both outputs lead to the same file."""
        return self.output.goes_where(other.output)

    async def write(self, text: str) -> None:  # noqa: ASYNC910 - the point of it
        """Put *text* into the queue."""
        self._queue.append((self.output, text))


class Lanes:
    """The live display of one run. *model* replaces the agents' models; with *table* the end has a table of calls.

    *asks* is that of `Narrator`.
    """

    def __init__(
        self,
        out: Output,
        err: Output,
        *,
        model: str | None = None,
        with_traceback: bool = False,
        table: bool = True,
        asks: bool = True,
    ) -> None:
        self._err = err
        self._queue: list[tuple[Output, str]] = []
        self._narrator = Narrator(
            _Queued(out, self._queue),
            _Queued(err, self._queue),
            with_traceback=with_traceback,
            starts=False,
            asks=asks,
        )
        self._board = LaneBoard(model)
        self._table = table
        self._buffer = io.StringIO()
        self._console = Console(file=self._buffer, force_terminal=True, highlight=False)
        self._region: Live | None = None
        self._typed = ""
        self._wake = anyio.Event()
        self._is_over = False
        self._segment_ended = False

    async def follow(self, events: AsyncIterable[ev.Event]) -> None:
        """Show the events of one run segment.

        Cancellation: the terminal is as it was before the region was drawn.

        Raises:
            OutputClosed: if the terminal is gone.
            Exception: the error of *events*, when all before it is shown.
        """
        self._segment_ended = False
        failed: list[Exception] = []
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._draw_all, group.cancel_scope, failed, name="lanes")
                try:
                    async for event in events:
                        self._board.note(event, anyio.current_time())
                        await self._narrator.event(event)
                        self._wake.set()
                except Exception as error:
                    failed.append(error)  # carried as a value: the group would wrap it
                self._segment_ended = True
                self._wake.set()
        finally:
            self._board.clear()
            self._typed = ""
            self._leave_region()
        if failed:
            raise failed[0]

    def typing(self, text: str) -> None:
        """Show *text* below the lanes, as the line that the user types."""
        self._typed = text
        self._wake.set()

    async def note(self, line: str) -> None:
        """Show the line above the lanes."""
        await self._narrator.note(line)
        self._wake.set()

    async def ended(self, ending: RunSummary) -> None:
        """Show the answer, or the reason why there is none, and the table."""
        await self._narrator.ended(ending)
        await self._flush()
        if not ending.waiting:
            await self._err.write(render_summary(ending.records, self._console.width, calls=self._table))

    async def failed(self, error: Exception) -> None:
        """Show the error."""
        await self._narrator.failed(error)
        await self._flush()

    def cancelling(self) -> None:
        """Erase the region for good: later events have lines only."""
        self._is_over = True
        self._leave_region()
        if self._narrator.in_line:
            self._write_last("\n")

    def cancelled(self) -> None:
        """Do nothing: the region was erased when the signal came."""

    # -- the drawer

    async def _draw_all(self, scope: anyio.CancelScope, failed: list[Exception]) -> None:
        """Write what comes, until the segment has ended and all of it is written."""
        try:
            while not self._segment_ended:
                await self._draw()
                with anyio.move_on_after(_TICK if self._region is not None else None):
                    await self._wake.wait()
                if not self._segment_ended:
                    await anyio.sleep(_PAUSE)
                self._wake = anyio.Event()
            await self._flush()
        except OutputClosed as error:
            failed.insert(0, error)
            scope.cancel()

    async def _draw(self) -> None:
        """Write the queued text, and the region below it as it is now."""
        lanes = [] if self._is_over else self._board.lanes
        has_lines = bool(lanes or self._typed)
        if self._region is not None and (self._queue or not has_lines):
            self._stop_region()
        await self._write_queued()
        if has_lines and not self._is_over and not self._narrator.in_line:
            if self._region is None:
                self._region = Live(console=self._console, auto_refresh=False, transient=True, redirect_stdout=False)
                self._region.start()
            self._region.update(self._render(lanes), refresh=True)
            await self._write_queued()

    async def _flush(self) -> None:
        """Erase the region, and write all that is queued."""
        self._stop_region()
        await self._write_queued()

    async def _write_queued(self) -> None:
        self._take_buffer()
        while self._queue:
            output = self._queue[0][0]
            texts = [text for _, text in next(itertools.groupby(self._queue, lambda each: each[0]))[1]]
            del self._queue[: len(texts)]
            await output.write("".join(texts))

    def _stop_region(self) -> None:
        """Put the erasure of the region in front of the queue."""
        if self._region is not None:
            region, self._region = self._region, None
            region.update("")
            region.stop()
            self._take_buffer()

    def _take_buffer(self) -> None:
        """Put what rich has written in front of the queue: it belongs before all later text."""
        if text := self._buffer.getvalue():
            self._buffer.seek(0)
            self._buffer.truncate()
            self._queue.insert(0, (self._err, text))

    def _leave_region(self) -> None:
        """Erase the region at once, without the event loop."""
        if self._region is not None:
            self._stop_region()
            self._write_last(self._queue.pop(0)[1])

    def _write_last(self, text: str) -> None:
        with contextlib.suppress(OutputClosed):  # the next write of anything else raises it
            self._err.write_last(text)

    # -- the region

    def _render(self, lanes: list[WorkLane]) -> Group:
        width, room = self._console.width - 1, max(1, min(_MOST_LANES, self._console.height - 4))
        now = anyio.current_time()
        lines = [_render_lane(lane, now, width) for lane in lanes[:room]]
        if len(lanes) > room:
            lines.append(Styled(f"… and {len(lanes) - room} more", "dim"))
        if self._typed:
            shown = exact(self._typed)[2 - width :]  # its end, where the user types
            lines.append(Styled(f"> {shown}", no_wrap=True, overflow="crop"))
        return Group(*lines)


def _render_lane(lane: WorkLane, now: float, width: int) -> Styled:
    """Return the line of *lane*: of its end, with time and state, more is kept than of its words."""
    tail = " · ".join(filter(None, (duration(now - lane.since), lane.state)))
    mark = "·" if lane.queued else _SPINNER[int(now * 8) % len(_SPINNER)]
    line = Styled.assemble("  " * lane.depth, (f"{mark} ", "cyan"), (lane.name, "bold"), f" {lane.words}", end="")
    end = Styled(f" {tail}", "dim")
    end.truncate(max(width // 2, width - line.cell_len), overflow="ellipsis")
    line.truncate(width - end.cell_len, overflow="ellipsis")
    line.append_text(end)
    return Styled.assemble(line, no_wrap=True, overflow="crop")
