"""The progress bar of many requests. Knows counts and the terminal at standard error, nothing of runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.progress import Progress


class Bar:
    """The progress bar: shows how many requests have ended and how many run. Without a terminal it only counts.

    It is redrawn at each event, without its own thread.
    """

    def __init__(self, *, shown: bool, total: int | None = None) -> None:
        self._read = 0
        self._started = 0
        self._ended = 0
        self._hidden = 0
        self._progress = _make_progress(total) if shown else None
        """None once the bar is closed."""

    def __enter__(self) -> Self:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Remove the bar from the terminal for good."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Remove the bar from the terminal while the block writes; blocks of several tasks may overlap."""
        self._hidden += 1
        if self._progress is not None:
            self._progress.stop()
        try:
            yield
        finally:
            self._hidden -= 1
            if not self._hidden and self._progress is not None:
                self._progress.start()

    def started(self) -> None:
        """Count a started run."""
        self._started += 1
        self._draw()

    def ended(self) -> None:
        """Count an ended run, with any status."""
        self._ended += 1
        self._draw()

    def read(self) -> None:
        """Count a read request."""
        self._read += 1

    def all_read(self) -> None:
        """Set the total to the number of read requests: no further one will come."""
        self._draw(total=self._read)

    def _draw(self, total: int | None = None) -> None:
        if self._progress is None:
            return
        running = self._started - self._ended
        (task,) = self._progress.task_ids
        self._progress.update(task, completed=self._ended, total=total, description=f"{running} running", refresh=True)


def _make_progress(total: int | None) -> Progress:
    from rich.console import Console  # only terminals need it
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    progress = Progress(*columns, console=Console(stderr=True), auto_refresh=False, transient=True)
    progress.add_task("requests", total=total)
    return progress
