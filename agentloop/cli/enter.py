"""`agentloop enter`: the body of one recorded call in Python's debugger."""

from __future__ import annotations

import inspect
import pdb
import sys
from bdb import BdbQuit
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, BinaryIO

import click

from agentloop._common.error_text import error_details
from agentloop._common.masking import MASK
from agentloop._common.terminal_text import exact, harmless
from agentloop.cli import errors
from agentloop.cli.fork import choose_run
from agentloop.cli.help_text import examples
from agentloop.cli.run_options import CONTEXT_HELP
from agentloop.cli.supervision import check_backend, run_supervised
from agentloop.cli.target import load_agent, load_config, load_context
from agentloop.exceptions import AgentLoopError, UserError

_NOT_SHOWN = ("agentloop.*", "anyio.*", "asyncio.*", "trio.*", "contextlib", "functools", "threading")


@click.command(
    short_help="Run the body of a recorded call in the debugger.",
    epilog=examples(
        "agentloop enter run.journal call_1 --agent my-agent/agent.py:agent",
        "agentloop enter run.journal outer/call_1 --agent my-agent/agent.py:agent --context my-agent/agent.py:make",
    ),
)
@click.argument("journal")
@click.argument("call")
@click.option("--run", "run_id", metavar="ID", help="The run of that id, of a SQLite file or a database.")
@click.option("--agent", "target", metavar="TARGET", required=True, help="module:agent or file.py:agent of the run.")
@click.option("--context", metavar="NAME", help=CONTEXT_HELP)
@click.option("--config", metavar="NAME", help="module:name or file.py:name of the RunConfig.")
@click.option("--live", is_flag=True, help="Let the body connect, write and start processes.")
@click.option("--key-file", type=click.File("rb"), help="File with the key that the journal is sealed with.")
@click.option("--backend", type=click.Choice(["asyncio", "trio"]), default="asyncio", show_default=True)
def enter(
    journal: str,
    call: str,
    run_id: str | None,
    target: str,
    context: str | None,
    config: str | None,
    live: bool,
    key_file: BinaryIO | None,
    backend: str,
) -> None:
    """Run the body of CALL in the run of JOURNAL again, as it was called, and stop at its first line in Python's
    debugger. CALL is the call's id, OUTER/ID in a nested run.

    Everything around the body is answered from the journal. What the body itself would do, connect to something, change
    a file, open a database or start a process, is refused without --live. Connections and files that are open already,
    threads that outlive the body, and libraries in C with their own ways out (uvloop, libpq) can't be refused.

    Exit codes: 0 the body returned, 1 it raised, or the debugger was left; 2 wrong use; 130 SIGINT, 143 SIGTERM.
    """
    from agentloop import lab

    try:
        check_backend(backend)
        work = partial(
            lab.enter,
            choose_run(journal, run_id),
            load_agent(target, backend),
            call,
            debugger=stop_at_first_line,
            live=live,
            context=load_context(context),
            run_config=load_config(config),
            key=None if key_file is None else key_file.read(),
        )
        ended = run_supervised(work, backend)
    except AgentLoopError as error:
        click.echo(errors.words_for(error), err=True, nl=False)
        sys.exit(errors.USAGE)
    if ended.value is None:
        sys.exit(128 + (ended.signal or 0))
    sys.exit(_tell(ended.value))


def _tell(entered: Any) -> int:
    """Show what the body did, beside what it had done, and return the exit code."""
    if isinstance(entered.error, BdbQuit):
        click.echo("The debugger was left.")
        return errors.FAILED
    value = MASK if entered.outcome is not None and entered.outcome.secret else repr(entered.value)
    now = f"returned {value}" if entered.error is None else f"raised {error_details(entered.error)}"
    was = entered.call
    then = "had no outcome" if was.status is None else f"{was.status}: {was.output or ''}"
    for line in (f"{was.tool} {was.arguments} {now}", f"recorded: {then}", *entered.notes):
        click.echo("\n".join(exact(each) for each in harmless(line).splitlines()))
    return errors.OK if entered.error is None else errors.FAILED


@contextmanager
def stop_at_first_line(fn: Callable[..., Any]) -> Iterator[None]:
    """Give the terminal to Python's debugger at the first line of *fn*, which is called in the block."""
    code = getattr(inspect.unwrap(fn), "__code__", None)
    if code is None:
        raise UserError(f"{fn!r} has no code in Python that could be entered")
    debugger = pdb.Pdb(skip=_NOT_SHOWN, nosigint=True)
    debugger.reset()
    wrong = debugger.set_break(code.co_filename, code.co_firstlineno, temporary=True, funcname=code.co_name)
    if wrong:
        raise UserError(f"the body can't be entered: {wrong}")
    debugger.botframe = sys._getframe()
    debugger.set_continue()
    before = sys.gettrace()
    sys.settrace(debugger.trace_dispatch)
    try:
        yield
    finally:
        sys.settrace(before)
