"""The commands and their options."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from typing import Any, BinaryIO

import anyio
import click

import agentloop
from agentloop.cli import failure
from agentloop.cli.bar import Bar
from agentloop.cli.batch import Batch
from agentloop.cli.job import Job
from agentloop.cli.model import model
from agentloop.cli.signals import supervised
from agentloop.cli.single import run_one, show_for
from agentloop.cli.streams import Lines, Output, OutputClosed, count_lines
from agentloop.cli.target import load_agent
from agentloop.exceptions import UserError


class _App(click.Group):
    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:  # outside the event loop, where no signal is awaited; click's own code for it is 1
            sys.exit(128 + signal.SIGINT)


@click.group(cls=_App)
@click.version_option(agentloop.__version__, prog_name="agentloop")
def app() -> None:
    """Run agents from the command line."""


app.add_command(model)


@app.command()
@click.argument("target")
@click.argument("request", required=False)
@click.option("--backend", type=click.Choice(["asyncio", "trio"]), default="asyncio", show_default=True)
@click.option("--model", metavar="STRING", help="Model string used in place of the agent's model.")
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object a line.")
@click.option("--max-turns", type=click.IntRange(min=1), default=10, show_default=True, help="Turns of one run.")
@click.option("--input", "source", type=click.File("rb"), help="File of requests, one a line; - is standard input.")
@click.option("--concurrency", type=click.IntRange(min=1), default=4, show_default=True, help="Runs at once.")
@click.option("--traceback", is_flag=True, help="Show the traceback of an error.")
def run(
    target: str, request: str | None, source: BinaryIO | None, as_json: bool, traceback: bool, **options: Any
) -> None:
    """Run the agent at TARGET (module:agent or file.py:agent) on REQUEST.

    Without REQUEST, or with -, requests are read from standard input, one a line. What happens goes to standard
    error, the answers go to standard output.

    Exit codes: 0 all went well, 1 a run failed, 2 wrong use or something missing, 130 SIGINT, 143 SIGTERM,
    141 nobody reads the output.
    """
    source = _source(request, source)
    out, err = Output(sys.stdout), Output(sys.stderr)
    try:
        _check_backend(options["backend"])
        job = Job(agent=load_agent(target), out=out, err=err, json=as_json, traceback=traceback, **options)
    except UserError as error:
        _tell(err, failure.words_for(error, with_traceback=traceback))
        sys.exit(failure.code_of(error))
    sys.exit(_run_one(job, request or "") if source is None else _run_batch(job, source))


def _source(request: str | None, source: BinaryIO | None) -> BinaryIO | None:
    """Return where requests are read from, or None for the one given.

    Raises:
        click.UsageError: if there is none, or one too many.
    """
    if request not in (None, "-"):
        if source is not None:
            raise click.UsageError("Give a REQUEST or --input, not both.")
        if not (request or "").strip():
            raise click.UsageError("REQUEST is empty.")
        return None
    if source is not None:
        return source
    if request is None and sys.stdin.isatty():
        raise click.UsageError("Give a REQUEST, --input FILE, or pipe requests in, one a line.")
    return sys.stdin.buffer


def _check_backend(backend: str) -> None:
    if find_spec(backend) is None:
        raise UserError(
            f'--backend {backend} needs {backend}, which isn\'t installed. Run: pip install "agentloop[trio]"'
        )


def _run_one(job: Job, request: str) -> int:
    show = show_for(job)
    return _perform(job, lambda: run_one(job, request, show), lambda number: _announce(job), show.cancelled)


def _run_batch(job: Job, source: BinaryIO) -> int:
    shown = job.err.is_terminal
    is_file = os.path.isfile(source.name) if isinstance(getattr(source, "name", None), str) else False
    bar = Bar(shown=shown, total=count_lines(source.name) if shown and is_file else None)
    batch = Batch(job, Lines(source), bar)

    def announce(number: int) -> None:
        bar.close()  # the second signal leaves no time to give the terminal its cursor back
        _announce(job)

    def cancelled() -> None:
        _tell(job.err, f"Cancelled after {batch.answered} answers.\n")

    return _perform(job, batch.run, announce, cancelled)


def _announce(job: Job) -> None:
    _tell(job.err, "Cancelling; once more ends at once.\n")


def _perform(
    job: Job, work: Callable[[], Awaitable[int]], announce: Callable[[int], None], cancelled: Callable[[], None]
) -> int:
    """Run *work* in an event loop, under signals, and return the exit code; tells of what it raised."""
    ended = anyio.run(supervised, work, announce, backend=job.backend)
    if isinstance(ended.error, OutputClosed):
        _give_up_output()
        return failure.OUTPUT_CLOSED
    if ended.error is not None:
        _tell(job.err, failure.words_for(ended.error, with_traceback=job.traceback))
    if ended.signal is not None:
        with contextlib.suppress(OutputClosed):
            cancelled()
        return 128 + ended.signal
    if ended.error is not None:
        return failure.code_of(ended.error)
    assert ended.value is not None
    return ended.value


def _tell(err: Output, text: str) -> None:
    with contextlib.suppress(OutputClosed):
        err.write_last(text)


def _give_up_output() -> None:
    """Point the standard output elsewhere, so that the interpreter's own flush at its end finds no closed pipe."""
    with contextlib.suppress(OSError, ValueError), open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), sys.stdout.fileno())
