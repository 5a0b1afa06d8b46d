"""The progress bar of a batch, on a terminal alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


class Bar:
    """Shows how many requests have ended and how many run. Without a terminal it only counts.

    Redrawn when something happens, not by a thread of its own.
    """

    def __init__(self, *, shown: bool, total: int | None = None) -> None:
        self._read = 0
        self._started = 0
        self._ended = 0
        self._hidden = 0
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(
            *columns, console=Console(stderr=True), disable=not shown, auto_refresh=False, transient=True
        )
        self._task = self._progress.add_task("requests", total=total)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Take the bar off the terminal for good."""
        self._progress.stop()
        self._progress.disable = True

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Take the bar off the terminal while something else is written; blocks of several tasks may overlap."""
        self._hidden += 1
        self._progress.stop()
        try:
            yield
        finally:
            self._hidden -= 1
            if not self._hidden and not self._progress.disable:
                self._progress.start()

    def started(self) -> None:
        """Count a run that starts."""
        self._started += 1
        self._draw()

    def ended(self) -> None:
        """Count a run that ended, however it did."""
        self._ended += 1
        self._draw()

    def read(self) -> None:
        """Count a request that was read."""
        self._read += 1

    def all_read(self) -> None:
        """Learn that no further request will come."""
        self._progress.update(self._task, total=self._read, refresh=True)

    def _draw(self) -> None:
        running = self._started - self._ended
        self._progress.update(self._task, completed=self._ended, description=f"{running} running", refresh=True)
