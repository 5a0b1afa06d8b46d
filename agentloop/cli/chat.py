"""`agentloop chat`: a conversation with an agent, message by message, whose items a session holds.

Reads messages and runs the agent on each, one after the other. What a user types while an answer is under way is added
to that run (`cli/steering.py`). A signal ends the answer under way, not the conversation. How a run is shown, and how
calls are asked about, is that of `agentloop run`.

Decisions:

A signal ends an answer, not the conversation. Each reading of a message and each run of `agentloop chat` is
supervised for signals by itself, so the first Ctrl-C is a cancellation like any other, joined before the prompt comes
back, and the handlers that end the process at the second one are those of `agentloop run`. Rejected: `input()` in a
thread, which no cancellation ends, and a line editor as a dependency: a terminal's own line editing and a shell's
history tools (`rlwrap`) are enough.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Literal

import anyio
import attrs
import click

from agentloop import RunStream
from agentloop._common.terminal_text import exact, format_line
from agentloop.abc import Session
from agentloop.cli import errors
from agentloop.cli.help_text import examples
from agentloop.cli.run_options import CONTEXT_HELP, PRICE_HELP, CliOptions, Questions, approver_for, can_ask
from agentloop.cli.runs import run_shown, terminal_show_for
from agentloop.cli.show import Show
from agentloop.cli.steering import TypedInputs
from agentloop.cli.streams import Output, OutputClosed, TypedLines
from agentloop.cli.supervision import (
    announce_cancellation,
    check_backend,
    give_up_output,
    supervise,
    write_message,
)
from agentloop.cli.target import load_agent, load_context, load_function, name_model
from agentloop.run import Runtime, open_runtime
from agentloop.sessions import MemorySession, SQLiteSession


@attrs.define(eq=False)
class Chat:
    """One conversation. `run` is called once. `code` is the exit code so far, that of the worst answer.

    *asks* tells whether a user is at a terminal: only then there is a prompt, and Ctrl-C at it changes nothing.
    """

    job: CliOptions
    lines: TypedLines
    asks: bool
    code: int = errors.OK

    async def run(self, file: str | None) -> int:
        """Converse until the input ends (Ctrl-D) or SIGTERM comes, and return the exit code.

        Raises:
            OutputClosed: if the output is closed.
            UserError: if the session or the model can't be opened; nothing was asked of the user then.
        """
        async with _open_session(file) as session, open_runtime() as runtime:
            self.job = attrs.evolve(self.job, session=session)
            await self.job.open_model(runtime)
            await self._greet(session)
            while True:
                read = await supervise(self._read, lambda number: None)
                if read.signal is not None and (read.signal != signal.SIGINT or not self.asks):
                    return 128 + read.signal
                if read.error is not None:
                    raise read.error
                if read.signal is None and read.value is None:
                    return errors.OK if self.asks else self.code
                if read.value is not None and read.value.strip():
                    ended = await self._answer(read.value.strip(), runtime)
                    if ended is not None:
                        return ended

    async def _greet(self, session: Session) -> None:
        if not self.asks:
            return
        name, model = self.job.agent.name, self.job.model or self.job.agent.model
        of = "" if model is None else f" ({exact(name_model(model))})"
        known = len(await session.get_items())
        more = f" The conversation has {known} items." if known else ""
        await self.job.err.write(
            f"A conversation with {exact(name)}{of}: Ctrl-C ends an answer, Ctrl-D the conversation.{more}\n"
        )

    async def _read(self) -> str | None:
        """Ask for a message, and return it; None at the end of the input."""
        if self.asks:
            await self.job.err.write(f"> {exact(self.lines.continue_draft())}")
        try:
            typed = await self.lines.next(cut=True)
        except anyio.get_cancelled_exc_class():
            self._end_line()
            self.lines.drop_draft()  # it isn't shown at the next prompt
            raise
        if typed is None:
            self._end_line()
        return typed

    def _end_line(self) -> None:
        if self.asks:
            write_message(self.job.err, "\n")

    async def _answer(self, message: str, runtime: Runtime) -> int | None:
        """Run the agent on *message*, and return an exit code if a signal has ended the conversation, else None."""
        show = terminal_show_for(self.job, table=False)
        steering = TypedInputs(self.lines, show)

        def announce(number: int) -> None:
            show.cancelling()
            announce_cancellation(self.job.err)

        follow = steering.follow if self.asks else None
        ended = await supervise(partial(self._run, message, show, runtime, follow), announce, self.lines.restore)
        if ended.error is not None:
            raise ended.error
        unseen = steering.unseen if ended.signal is None else []
        self.lines.put_back(unseen, ended=steering.has_ended)
        if ended.signal is not None:
            write_message(self.job.err, "".join(("Cancelled.\n", *map(_tell_dropped, steering.unseen))))
            if ended.signal != signal.SIGINT or not self.asks:
                return 128 + ended.signal
        self.code = self.code or ended.value or errors.OK
        return None

    async def _run(
        self,
        message: str,
        show: Show,
        runtime: Runtime,
        follow: Callable[[RunStream[Any]], Awaitable[None]] | None,
    ) -> int:
        try:
            return await run_shown(self.job, message, show, runtime, follow)
        except OutputClosed:
            raise
        except Exception as error:
            await show.failed(error)
            return errors.FAILED


def _tell_dropped(line: str) -> str:
    return f"The model hasn't seen: {format_line(line)}\n"


@asynccontextmanager
async def _open_session(file: str | None) -> AsyncIterator[Session]:
    if file is None:
        yield MemorySession()
        return
    async with SQLiteSession(file) as session:
        yield session


@click.command(
    short_help="Talk with an agent, message by message.",
    epilog=examples(
        "agentloop chat my-agent/agent.py:agent",
        "agentloop chat my-agent/agent.py:agent --session talk.sqlite",
    ),
)
@click.argument("target")
@click.option("--session", "file", metavar="FILE", help="SQLite file that keeps the conversation, to go on later.")
@click.option("--backend", type=click.Choice(["asyncio", "trio"]), default="asyncio", show_default=True)
@click.option("--model", metavar="STRING", help="Model string used in place of the agent's model.")
@click.option("--max-turns", type=click.IntRange(min=1), default=10, show_default=True, help="Turns of one answer.")
@click.option(
    "--approve",
    type=click.Choice(["ask", "never", "always"]),
    help="Calls that need approval: ask at the terminal, leave them undecided, or approve them all.",
)
@click.option("--context", metavar="NAME", help=CONTEXT_HELP)
@click.option("--price", metavar="FUNCTION", help=PRICE_HELP)
@click.option("--traceback", is_flag=True, help="Show the traceback of an error.")
def chat(
    target: str,
    file: str | None,
    backend: Literal["asyncio", "trio"],
    approve: Literal["ask", "never", "always"] | None,
    context: str | None,
    price: str | None,
    **options: Any,
) -> None:
    """Talk with the agent at TARGET (module:agent or file.py:agent), message by message.

    Each line is a message; the agent knows the earlier ones. A line that you type while an answer is under way is added
    to it: the model sees it with its next request. Ctrl-C ends the answer under way, Ctrl-D the conversation.
    An answer that fails is reported, and the conversation continues. Messages may be piped in, too.

    Exit codes: 0 the conversation is over; of piped messages 1 if an answer failed; 2 wrong use or something missing,
    143 SIGTERM.
    """
    out, err = Output(sys.stdout), Output(sys.stderr)
    asks = can_ask(err, input_is_taken=False)
    if approve == "ask" and not asks:
        raise click.UsageError("--approve ask needs a terminal, to ask and to be answered at.")
    approver = approver_for(approve, err, can_ask=asks)
    lines = approver.lines if isinstance(approver, Questions) else TypedLines(sys.stdin.buffer)
    try:
        check_backend(backend)
        job = CliOptions(
            agent=load_agent(target, backend),
            out=out,
            err=err,
            backend=backend,
            approver=approver,
            make_context=load_context(context),
            price=None if price is None else load_function(price),
            **options,
        )
        code = anyio.run(Chat(job, lines, asks).run, file, backend=backend)
    except OutputClosed:
        give_up_output()
        sys.exit(errors.OUTPUT_CLOSED)
    except Exception as error:
        write_message(err, errors.words_for(error, with_traceback=options["traceback"]))
        sys.exit(errors.code_of(error))
    sys.exit(code)
