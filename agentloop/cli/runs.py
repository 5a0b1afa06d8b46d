"""Runs the requests of a command: a single one with its events shown, or many at once, printed in order of requests.

Knows the runner, the outputs and the progress bar; signals and exit of the process belong to `app`.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Self

import anyio
import attrs

from agentloop import BatchedRun, RunBatch, RunStream
from agentloop._common.terminal_text import harmless
from agentloop.cli import errors
from agentloop.cli.journal_folder import KeptRequests, Requests
from agentloop.cli.progress_bar import Bar
from agentloop.cli.run_options import CliOptions, Questions
from agentloop.cli.saved_run import RunSummary, SavedRun
from agentloop.cli.show import (
    JsonLines,
    Narrator,
    Show,
    TerminalShow,
    answer_of,
    error_json,
    explain_unfinished,
    json_line,
    result_json,
)
from agentloop.cli.streams import InputLine, Output, OutputClosed
from agentloop.exceptions import UserError
from agentloop.results import RunResult
from agentloop.run import Runner, Runtime, open_runtime
from agentloop.state import RunState

_LEAST_COLUMNS = 30


class BadLine(UserError):
    """A line of the input can't be read as a request."""


class NoModel(Exception):
    """The model can't be opened, so that no line can be answered. `why` is the original error."""

    def __init__(self, why: Exception) -> None:
        super().__init__(str(why))
        self.why = why


class _LineSource:
    """The lines of a batch as its inputs; tells the bar how many were read."""

    def __init__(self, lines: Requests, bar: Bar) -> None:
        self._lines = lines
        self._bar = bar

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> InputLine:
        line = await self._lines.next()
        if line is None:
            self._bar.all_read()
            raise StopAsyncIteration
        self._bar.read()
        return line


@attrs.define(eq=False)
class BatchRun:
    """Answers every line of *lines* in one runtime. `answered`, `failed` and `waiting` count printed answers.

    If the job has a folder, every line has a journal there; the answer of a run that has ended for good is printed from
    it. `run` is called once; only its tasks change the object.
    """

    job: CliOptions
    lines: Requests
    bar: Bar
    answered: int = 0
    failed: int = 0
    waiting: int = 0
    _runtime: Runtime | None = None
    _model: anyio.Lock = attrs.field(factory=anyio.Lock)
    _model_is_open: bool = False
    _screen: anyio.Lock = attrs.field(factory=anyio.Lock)

    async def run(self) -> int:
        """Answer all lines, and return the exit code: 1 if any failed, else 3 if any waits for approval, else 0.

        Concurrency: at most `job.concurrency` runs at once. Reading waits for a free run, printing for earlier lines.
        Cancellation: runs in flight are cancelled and joined; printed answers stay.

        Raises:
            OutputClosed: if the output is closed.
            UserError: if the model can't be opened (no line is answered then), or the folder has another input.
        """
        if isinstance(self.job.approver, Questions):
            self.job.approver.hidden = self.bar.hidden
            self._screen = self.job.approver.screen
        async with open_runtime() as runtime:
            self._runtime = runtime
            if self.job.folder is None:
                await self._open_model()
            with self.bar:
                await self._answer_lines()
        return await self._report_and_get_code()

    async def _report_and_get_code(self) -> int:
        if self.failed:
            await self.job.err.write(f"{self.failed} of {self.answered} requests failed.\n")
        if self.waiting:
            await self.job.err.write(f"{self.waiting} of {self.answered} requests wait for a person.\n")
            await self.job.err.write(f"{self.job.advice(self.waiting)}\n")
        cut = isinstance(self.lines, KeptRequests) and not self.lines.is_whole
        if cut:
            await self.job.err.write(
                f"The input had not been read to its end: {self.answered} requests are known. "
                "Give it again, from its beginning, to `agentloop run`, with the same folder.\n"
            )
        if self.failed or cut:
            return errors.FAILED
        return errors.PENDING if self.waiting else errors.OK

    async def _answer_lines(self) -> None:
        lines = _LineSource(self.lines, self.bar)
        batch = RunBatch(self._answer, lines, limit=self.job.concurrency, around=nullcontext, ordered=True)
        async with batch:
            async for run in batch:
                if isinstance(run.error, NoModel):
                    raise run.error.why
                await self._print(run)

    async def _answer(self, _index: int, line: InputLine) -> RunSummary:
        self.bar.started()
        try:
            if line.error is not None:
                raise BadLine(line.error)
            summary = await SavedRun(self.job, line.text, line.number).run(self._run_agent, self._open_model)
            return attrs.evolve(summary, records=())  # many summaries may wait for an earlier line
        finally:
            self.bar.ended()

    async def _run_agent(self, given: str | RunState, options: dict[str, Any]) -> RunResult[Any]:
        return await Runner.run(self.job.agent, given, **options)

    async def _open_model(self) -> None:
        """Open the model for the first run that needs it: if all runs have ended, a missing model isn't an error."""
        assert self._runtime is not None
        async with self._model:
            if self._model_is_open:
                return
            try:
                await self.job.open_model(self._runtime)
            except Exception as error:
                if self.job.folder is None:
                    raise
                raise NoModel(error) from error
            self._model_is_open = True

    async def _print(self, run: BatchedRun[RunSummary]) -> None:
        line: InputLine = run.input
        trouble = explain_unfinished(run.result) if run.error is None else None
        self.answered += 1
        waits = run.error is None and bool(run.result.waiting)
        self.waiting += waits
        self.failed += not waits and (run.error is not None or trouble is not None)
        async with self._screen:
            with self.bar.hidden():
                if run.error is not None or trouble is not None:
                    words = f"{trouble}\n"
                    if run.error is not None:
                        words = errors.words_for(run.error, with_traceback=self.job.traceback)
                    await self.job.err.write(f"line {line.number}: {words}")
                text = self._json(run) if self.job.json else self._text(run, trouble)
                text = harmless(text) if self.job.out.is_terminal else text
                await self.job.out.write(text, encoding="utf-8" if self.job.json else None)

    def _text(self, run: BatchedRun[RunSummary], trouble: str | None) -> str:
        if run.error is not None:
            return f"Error: {errors.message_of(run.error).splitlines()[0]}\n"
        if trouble is not None:
            return f"{'Pending' if run.result.waiting else 'Error'}: {trouble}\n"
        return f"{answer_of(run.result)}\n"

    def _json(self, run: BatchedRun[RunSummary]) -> str:
        value = error_json(run.error) if run.error is not None else result_json(run.result)
        return json_line({"line": run.input.number, "request": run.input.text, **value})


def show_for(job: CliOptions) -> Show:
    """Return the display of a single run: JSON lines if the job has the option, else that for people."""
    return JsonLines(job.out, job.err, with_traceback=job.traceback) if job.json else terminal_show_for(job)


def terminal_show_for(job: CliOptions, *, table: bool = True) -> TerminalShow:
    """Return the display of a single run for people: lanes at a terminal, else plain lines.

    *table* tells whether lanes are followed by a table of all calls.
    """
    asks = not isinstance(job.approver, Questions)
    if not can_show_lanes(job.err):
        return Narrator(job.out, job.err, with_traceback=job.traceback, asks=asks)
    from agentloop.cli.lanes import Lanes  # with rich, which only terminals need

    return Lanes(job.out, job.err, model=job.model, with_traceback=job.traceback, table=table, asks=asks)


def can_show_lanes(err: Output) -> bool:
    """Tell whether lines of *err* can be redrawn: at a terminal that knows how, has room, and can show the marks."""
    if not err.is_terminal or not err.is_unicode or (os.environ.get("TERM") or "dumb").lower() in ("dumb", "unknown"):
        return False
    return shutil.get_terminal_size().columns >= _LEAST_COLUMNS


async def run_one(job: CliOptions, request: str, show: Show) -> int:
    """Run or resume *request* in its own runtime, show its events, and return the exit code, also of an error.

    Cancellation: the run is cancelled and joined; the shown events stay.

    Raises:
        OutputClosed: if the output is closed.
    """
    try:
        async with open_runtime() as runtime:
            return await run_shown(job, request, show, runtime)
    except OutputClosed:
        raise
    except Exception as error:
        await show.failed(error)
        return errors.code_of(error)


@contextmanager
def _told_once(job: CliOptions) -> Iterator[None]:
    """Keep failed tools, which the display tells about, out of a log that nothing else would show."""
    log = logging.getLogger("agentloop.tools")
    if job.json or job.traceback or log.hasHandlers():
        yield
        return
    handler = logging.NullHandler()
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


async def run_shown(
    job: CliOptions,
    request: str,
    show: Show,
    runtime: Runtime,
    follow: Callable[[RunStream[Any]], Awaitable[None]] | None = None,
) -> int:
    """Run or resume *request*, show its events and its result, and return the exit code.

    *follow* shows one run segment in place of `show.follow`.

    Cancellation: as for `run_one`.

    Raises:
        OutputClosed: if the output is closed.
        Exception: the error of the run.
    """

    async def entry(given: str | RunState, options: dict[str, Any]) -> RunResult[Any]:
        with _told_once(job):
            async with Runner.run_streamed(job.agent, given, **options) as stream:
                await (follow or show.follow)(stream)
        return stream.result

    ending = await SavedRun(job, request).run(entry, lambda: job.open_model(runtime))
    await show.ended(ending)
    if ending.waiting:
        await job.err.write(f"{job.advice(None)}\n")
        return errors.PENDING
    return errors.OK if ending.status == "completed" else errors.FAILED
