"""The commands and their options, and the handling of signals.

The first SIGINT or SIGTERM cancels the work and waits for its end; the second one ends the process at once. The
commands check their arguments and report errors; `runs` does the work in the event loop.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO, Literal, NoReturn, TypeVar

import anyio
import click

import agentloop
from agentloop._common.extras import describe_foreign
from agentloop._common.terminal_text import exact, harmless
from agentloop.cli import errors
from agentloop.cli.chat import chat
from agentloop.cli.enter import enter
from agentloop.cli.fork import fork
from agentloop.cli.graph import graph
from agentloop.cli.help_text import examples
from agentloop.cli.init import init
from agentloop.cli.journal_folder import Folder, FolderError, KeptRequests, Order, Requests
from agentloop.cli.lab import lab
from agentloop.cli.models import models
from agentloop.cli.moments import diff, show
from agentloop.cli.progress_bar import Bar
from agentloop.cli.run_options import CONTEXT_HELP, PRICE_HELP, CliOptions, approver_for, can_ask
from agentloop.cli.runs import BatchRun, run_one, show_for
from agentloop.cli.sandboxes import sandbox as sandbox_commands
from agentloop.cli.skills import skills as skills_commands
from agentloop.cli.stored_runs import runs as stored_runs
from agentloop.cli.streams import Lines, Output, count_lines
from agentloop.cli.supervision import announce_cancellation, check_backend, perform, supervise, write_message
from agentloop.cli.target import absolute_target, load_agent, load_context, load_function
from agentloop.cli.trace import trace
from agentloop.cli.upgrade import upgrade_check
from agentloop.cli.verdicts import answer, approve, pending, reject
from agentloop.exceptions import UserError
from agentloop.models import _install


def _exit_on_signal(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)


@click.group()
def model() -> None:
    """Install and find the local model."""


@model.command(short_help="Install the local model (about 130 MB).", epilog=examples("agentloop model install"))
def install() -> None:
    """Install the local model (about 130 MB) into this Python environment, and check it."""
    # SystemExit unwinds the stack, so it also ends the installer process that this one waits for.
    signal.signal(signal.SIGTERM, _exit_on_signal)
    try:
        _install.install(echo=click.echo)
    except UserError as error:
        click.echo(errors.words_for(error), err=True, nl=False)
        sys.exit(errors.FAILED)


@model.command(epilog=examples("agentloop model path", "du -sh $(agentloop model path)"))
def path() -> None:
    """Print where the local model's weights are."""
    found = _install.find_weights()
    if found is None:
        click.echo(f"Error: The local model isn't installed. Run `{_install.INSTALL_COMMAND}`.", err=True)
        sys.exit(errors.USAGE)
    click.echo(str(found))


_FIRST_STEPS = ("init", "run", "chat", "serve")
_ORDER = (
    *_FIRST_STEPS,
    "resume",
    "pending",
    "approve",
    "reject",
    "answer",
    "runs",
    "trace",
    "show",
    "diff",
    "lab",
    "fork",
    "enter",
    "upgrade-check",
    "graph",
    "sandbox",
    "skills",
    "models",
    "model",
)
_Command = TypeVar("_Command", bound=Callable[..., Any])
Choice = Literal["ask", "never", "always"]


class _App(click.Group):
    """The commands, listed in the order in which a user needs them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(super().list_commands(ctx), key=_ORDER.index)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:  # raised outside the event loop, where no receiver runs; click would exit with 1
            sys.exit(128 + signal.SIGINT)


def _show_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    """Show the version, and what else is installed in the library's place."""
    if not wanted:
        return
    click.echo(f"agentloop, version {agentloop.__version__}")
    if foreign := describe_foreign():
        click.echo(f"agentloop: {foreign}", err=True)
    ctx.exit()


@click.group(
    cls=_App,
    epilog=examples(
        "agentloop init my-agent",
        "agentloop run my-agent/agent.py:agent 'How many words has this?'",
        "agentloop chat my-agent/agent.py:agent",
        "agentloop run --help",
    ),
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version, help="Show the version."
)
def app() -> None:
    """Run agents from the command line."""


for _command in (
    model,
    pending,
    approve,
    reject,
    answer,
    stored_runs,
    sandbox_commands,
    skills_commands,
    init,
    graph,
    trace,
    show,
    diff,
    lab,
    fork,
    enter,
    upgrade_check,
    chat,
    models,
):
    app.add_command(_command)


def _add_run_options(command: _Command) -> _Command:
    """Add the options that `run` and `resume` share to *command*."""
    options = [
        click.option("--backend", type=click.Choice(["asyncio", "trio"]), default="asyncio", show_default=True),
        click.option("--model", metavar="STRING", help="Model string used in place of the agent's model."),
        click.option("--json", "as_json", is_flag=True, help="Write one JSON object a line."),
        click.option("--concurrency", type=click.IntRange(min=1), default=4, show_default=True, help="Runs at once."),
        click.option(
            "--approve",
            type=click.Choice(["ask", "never", "always"]),
            help="Calls that need approval: ask at the terminal, leave them pending, or approve them all. "
            "Not given: ask where there is a terminal, else leave them.",
        ),
        click.option("--context", metavar="NAME", help=CONTEXT_HELP),
        click.option("--price", metavar="FUNCTION", help=PRICE_HELP),
        click.option("--traceback", is_flag=True, help="Show the traceback of an error, of a tool's too."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@app.command(
    short_help="Run an agent on a request, or on many.",
    epilog=examples(
        "agentloop run my-agent/agent.py:agent 'How many words has this?'",
        "agentloop run my-agent/agent.py:agent --input requests.txt --journal jobs/june",
        "printf 'One?\\nTwo?\\n' | agentloop run my-agent/agent.py:agent --json",
        "agentloop run my-agent/agent.py:agent 'Tidy up' --journal jobs/tidy --approve never",
    ),
    context_settings={"allow_extra_args": True},  # for an error that says what they are
)
@click.argument("target")
@click.argument("request", required=False)
@click.option("--input", "source", type=click.File("rb"), help="File of requests, one a line; - is standard input.")
@click.option("--journal", "folder", metavar="DIR", help="Folder in which every run is kept, to go on after a crash.")
@click.option("--max-turns", type=click.IntRange(min=1), default=10, show_default=True, help="Turns of one run.")
@click.option("--sandbox", metavar="DIR", help="Folder in which every run has a sandbox of its own, for its tools.")
@_add_run_options
def run(
    target: str,
    request: str | None,
    source: BinaryIO | None,
    folder: str | None,
    max_turns: int,
    sandbox: str | None,
    **options: Any,
) -> None:
    """Run the agent at TARGET (module:agent or file.py:agent) on REQUEST.

    TARGET may also name a function that makes the agent.

    Without REQUEST, or with -, requests are read from standard input, one a line. Progress goes to standard error, the
    answers go to standard output.

    With --journal, the same command or `agentloop resume DIR` continues where a crash, a signal, or a call that waits
    for approval ended it.

    Exit codes: 0 all went well, 1 a run failed, 2 wrong use or something missing, 3 calls wait for approval or an
    answer, 130 SIGINT, 143 SIGTERM, 141 the output is closed.
    """
    if request is not None and (more := click.get_current_context().args):
        raise click.UsageError(f"REQUEST is one argument: put it in quotes, {shlex.quote(' '.join([request, *more]))}")
    source = _choose_source(request, source)
    order = Order(
        target=target if folder is None else absolute_target(target),
        folder=str(Path.cwd()),
        request=(request or "") if source is None else None,
        model=options["model"],
        max_turns=max_turns,
        sandbox=None if sandbox is None else str(Path(sandbox).absolute()),
        context=options["context"]
        if folder is None or options["context"] is None
        else absolute_target(options["context"]),
    )
    _perform_order(order, None if folder is None else Folder.at(folder), source, is_new=True, **options)


@app.command(
    short_help="Continue a job of `run --journal`.",
    epilog=examples("agentloop resume jobs/may", "agentloop resume jobs/may --approve always --max-turns 20"),
)
@click.argument("folder", metavar="DIR")
@click.option("--max-turns", type=click.IntRange(min=1), help="Turns of one run, those before included.")
@click.option("--target", metavar="TARGET", help="The job's own TARGET: says that a job from elsewhere may run it.")
@_add_run_options
def resume(folder: str, max_turns: int | None, target: str | None, **options: Any) -> None:
    """Continue the job that `agentloop run --journal DIR` began.

    It uses the working folder of that command, and its model and turns unless options replace them. Requests whose runs
    have ended are answered from their journals. Output and exit codes are those of `run`.

    DIR names the code that runs. One that was copied or moved since, or comes from elsewhere, is resumed when you
    confirm that at the terminal, or name its TARGET; one that others can write to isn't resumed.
    """
    kept, err = Folder.at(folder), Output(sys.stderr)
    try:
        order = kept.read()
        if not os.path.isdir(order.folder):
            raise kept.refusal(f"the folder it worked in, {order.folder}, is gone")
        if not kept.begun_here():
            _confirm_foreign(kept, order, target, err)
    except FolderError as error:
        _refuse(err, error, options["traceback"])
    with contextlib.chdir(order.folder):
        _perform_order(order, kept, None, is_new=False, more_turns=max_turns, **options)


def _confirm_foreign(folder: Folder, order: Order, target: str | None, err: Output) -> None:
    """Let the user decide whether the code that a job from elsewhere names may run; return if it may.

    Raises:
        FolderError: it may not, or there is no terminal to ask at.
    """
    sandbox = "" if order.sandbox is None else f", with sandboxes in {order.sandbox}"
    context = "" if order.context is None else f" and {order.context}"
    what = f"it began elsewhere, and runs the code of {order.target}{context} in {order.folder}{sandbox}"
    if target is not None and order.target not in (target, absolute_target(target)):
        raise folder.refusal(f"its TARGET is {order.target}, not {target}")
    if target is None and not can_ask(err, input_is_taken=False):
        word = shlex.quote(order.target)
        raise folder.refusal(f"{what}. If you want that: agentloop resume {folder.name} --target {word}")
    if target is None and not click.confirm(exact(f"{folder.path}: {what}. Go on?"), err=True):
        raise folder.refusal("nothing of it was run")


def _perform_order(
    order: Order,
    folder: Folder | None,
    source: BinaryIO | None,
    *,
    is_new: bool,
    as_json: bool,
    approve: Choice | None,
    traceback: bool,
    model: str | None,
    context: str | None,
    price: str | None,
    more_turns: int | None = None,
    **options: Any,
) -> None:
    """Run the requests of *order*, and end the process with the exit code. Raises SystemExit."""
    out, err = Output(sys.stdout), Output(sys.stderr)
    asks = can_ask(err, input_is_taken=source is not None and _is_standard_input(source))
    if approve == "ask" and not asks:
        raise click.UsageError("--approve ask needs a terminal, to ask and to be answered at.")
    with contextlib.ExitStack() as held:
        if traceback:
            held.enter_context(_log_tool_tracebacks())
        try:
            check_backend(options["backend"])
            job = CliOptions(
                agent=load_agent(order.target, options["backend"]),
                out=out,
                err=err,
                json=as_json,
                traceback=traceback,
                model=model or order.model,
                make_context=load_context(context or order.context),
                price=None if price is None else load_function(price),
                max_turns=more_turns or order.max_turns,
                more_turns=more_turns,
                approver=approver_for(approve, err, can_ask=asks),
                folder=folder,
                sandbox=order.sandbox,
                **options,
            )
            if folder is not None:
                folder.make()
                held.enter_context(folder.held())
                if is_new:
                    folder.begin(order)
                elif not folder.begun_here():
                    folder.adopt(order)
        except UserError as error:
            _refuse(err, error, traceback)
        code = _run_one(job, order.request) if order.request is not None else _run_batch(job, source)
    sys.exit(code)


class _ErrorOutputHandler(logging.Handler):
    """Writes log messages to standard error as it is at that moment, without characters that control a terminal."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(harmless(f"{self.format(record)}\n"))
        except Exception:  # as the standard library's handlers: a message that can't be written ends nothing
            self.handleError(record)


@contextlib.contextmanager
def _log_tool_tracebacks() -> Iterator[None]:
    """Write the log messages about failed tools to standard error: otherwise only the model receives these errors."""
    tools, handler = logging.getLogger("agentloop.tools"), _ErrorOutputHandler()
    before = tools.level, tools.propagate
    tools.setLevel(logging.DEBUG)
    tools.addHandler(handler)
    tools.propagate = False
    try:
        yield
    finally:
        tools.removeHandler(handler)
        tools.setLevel(before[0])
        tools.propagate = before[1]


def _is_standard_input(source: BinaryIO) -> bool:
    return source is sys.stdin.buffer


def _refuse(err: Output, error: UserError, traceback: bool) -> NoReturn:
    write_message(err, errors.words_for(error, with_traceback=traceback))
    sys.exit(errors.code_of(error))


def _choose_source(request: str | None, source: BinaryIO | None) -> BinaryIO | None:
    """Return the file from which requests are read, or None if *request* is the only one.

    Raises:
        click.UsageError: if there is no source of requests, or more than one.
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


@app.command(
    short_help="Serve an agent to MCP clients, by stdio or HTTP.",
    epilog=examples(
        "agentloop serve my-agent/agent.py:agent",
        "agentloop serve my-agent/agent.py:agent --http 8000",
    ),
)
@click.argument("target")
@click.option("--backend", type=click.Choice(["asyncio", "trio"]), default="asyncio", show_default=True)
@click.option("--http", "port", type=click.IntRange(1, 65535), help="Serve by HTTP at this port of 127.0.0.1.")
@click.option("--context", metavar="NAME", help=CONTEXT_HELP)
def serve(target: str, backend: str, port: int | None, context: str | None) -> None:
    """Serve the agent at TARGET (module:agent or file.py:agent) to clients of the Model Context Protocol, by stdio.

    Calls that need approval are asked of the client's user. Ends when the client closes standard input, or at a signal.

    Exit codes: 0 the client has ended it, 1 the server failed, 2 wrong use or something missing, 130 SIGINT, 143
    SIGTERM.
    """
    from agentloop.mcp import serve as serve_agents

    try:
        check_backend(backend)
        if port is not None and backend != "asyncio":
            raise UserError("--http needs --backend asyncio: its server knows no other event loop")
        agent = load_agent(target, backend)
        make_context = load_context(context)
    except UserError as error:
        click.echo(errors.words_for(error), err=True, nl=False)
        sys.exit(errors.USAGE)

    async def work() -> None:
        options: dict[str, Any] = {} if port is None else {"transport": "streamable-http", "port": port}
        await serve_agents(agent, name=agent.name, make_context=make_context, **options)

    ended = anyio.run(supervise, work, lambda number: None, backend=backend)
    if ended.error is not None:
        click.echo(errors.words_for(ended.error), err=True, nl=False)
        sys.exit(errors.code_of(ended.error))
    sys.exit(0 if ended.signal is None else 128 + ended.signal)


def _run_one(job: CliOptions, request: str) -> int:
    show = show_for(job)

    def cancelled() -> None:
        show.cancelled()
        _tell_resume_command(job)

    def announce(number: int) -> None:
        show.cancelling()
        announce_cancellation(job.err)

    return perform(job, lambda: run_one(job, request, show), announce, cancelled)


def _run_batch(job: CliOptions, source: BinaryIO | None) -> int:
    """Answer the requests of *source*, or those of the job's folder, and return the exit code."""
    shown = job.err.is_terminal
    file = None if source is None else _find_file(source)
    given = None if source is None else Lines(source)
    kept = None if job.folder is None else KeptRequests(job.folder, given)
    total: int | None = None
    if shown and file is not None:
        total = count_lines(file)
    elif shown and given is None and kept is not None:
        total = kept.count_stored()
    bar = Bar(shown=shown, total=total)
    requests: Requests | None = kept or given
    assert requests is not None
    batch = BatchRun(job, requests, bar)

    async def work() -> int:
        if kept is not None and file is not None:
            await kept.keep_all()  # before the first run: a resume must not depend on the file
        return await batch.run()

    def announce(number: int) -> None:
        bar.close()  # now, since after a second signal nothing can restore the terminal's cursor
        announce_cancellation(job.err)

    def cancelled() -> None:
        write_message(job.err, f"Cancelled after {batch.answered} answers.\n")
        _tell_resume_command(job)

    return perform(job, work, announce, cancelled)


def _find_file(source: BinaryIO) -> str | None:
    """Return the path of the file that *source* reads, or None if it is a pipe or a terminal."""
    name: object = getattr(source, "name", None)
    return name if isinstance(name, str) and os.path.isfile(name) else None


def _tell_resume_command(job: CliOptions) -> None:
    if job.folder is not None:
        write_message(job.err, f"To go on: agentloop resume {job.folder.name}\n")
