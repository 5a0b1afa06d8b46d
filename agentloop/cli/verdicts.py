"""`agentloop pending`, `approve` and `reject`: the waiting calls of saved runs, and verdicts on them.

A verdict is appended to the run's own journal, so that every later resume of the run finds it. The agent is not
imported.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import attrs
import click

from agentloop._common.terminal_text import exact
from agentloop._storage.state_codec import state_from_journal
from agentloop.agents import Agent
from agentloop.cli import errors
from agentloop.cli.help_text import examples
from agentloop.cli.journal_folder import Folder
from agentloop.cli.run_options import call_name, describe_call, find_asking_policy, read_answer
from agentloop.cli.show import json_line, request_json
from agentloop.exceptions import AgentLoopError, StateError
from agentloop.items import CallToAnswer, Interruption
from agentloop.journal import FileJournal
from agentloop.state import REPLACE_HINT, RunState

_OF_LINE = re.compile(r"(\d+):(.+)", re.DOTALL)


@attrs.frozen
class WaitingCall:
    """A call of a saved run that waits for a verdict. `line` is None if the run is the only one."""

    line: int | None
    path: Path
    request: Interruption

    @property
    def name(self) -> str:
        """The name of the call on the command line."""
        name = call_name(self.request)
        return name if self.line is None else f"{self.line}:{name}"


async def _load_state(journal: FileJournal) -> RunState:
    """Return the run's state with a placeholder for its agent: a verdict needs only the log."""
    return RunState(Agent("undecided"), (await state_from_journal(journal)).records)


async def _list_waiting(folder: Folder) -> list[WaitingCall]:
    found: list[WaitingCall] = []
    for line, path in folder.journals():
        async with FileJournal(path) as journal:
            if await journal.read():
                state = await _load_state(journal)
                found += [WaitingCall(line, path, request) for request in state.interruptions]
    return found


def _perform(folder: str, work: Callable[[Folder], Awaitable[None]]) -> None:
    """Do *work* on the job in *folder*; on an error, report it and end the process with its exit code."""
    kept = Folder.at(folder)
    try:
        kept.read()
        anyio.run(work, kept)
    except AgentLoopError as error:
        click.echo(errors.words_for(error), err=True, nl=False)
        sys.exit(errors.code_of(error))


@click.command(
    short_help="List the calls of a job that wait for a person.",
    epilog=examples("agentloop pending jobs/clean", "agentloop pending jobs/clean --json"),
)
@click.argument("folder", metavar="DIR")
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object a line.")
def pending(folder: str, as_json: bool) -> None:
    """List the calls of the job in DIR that wait for approval, or for an answer."""

    async def work(kept: Folder) -> None:
        found = await _list_waiting(kept)
        for one in found:
            if as_json:
                data = {"line": one.line, **request_json(one.request), "call": one.name}
                click.echo(json_line(data), nl=False)
            else:
                why = find_asking_policy(one.request)
                line = f"{exact(one.name)}  {exact(one.request.agent)}  {describe_call(one.request)}"
                click.echo(f"{line}  ({why})" if why else line)
        if not found and not as_json:
            click.echo("No call waits for approval or an answer.", err=True)

    _perform(folder, work)


_replace = click.option(
    "--replace", is_flag=True, help="Take the place of a verdict that CALL has already, as long as it hasn't started."
)


@click.command(
    short_help="Approve a call of a job; `resume` runs it.",
    epilog=examples(
        "agentloop approve jobs/clean call_1",
        """agentloop approve jobs/clean call_1 --arguments '{"path": "b.txt"}'""",
        "agentloop approve jobs/clean call_1 --always",
    ),
)
@click.argument("folder", metavar="DIR")
@click.argument("call")
@click.option("--arguments", metavar="JSON", help="Run it with these arguments: guardrails and policies judge again.")
@click.option("--always", is_flag=True, help="Approve the agent's later calls to the tool too, in this run.")
@_replace
def approve(folder: str, call: str, arguments: str | None, always: bool, replace: bool) -> None:
    """Approve CALL of the job in DIR, by the name `agentloop pending` gives it; then `agentloop resume DIR` runs it."""
    options: dict[str, Any] = {"arguments": arguments, "always": always, "replace": replace}
    _decide(folder, call, "approved", lambda state, given: state.approve(given, **options))


@click.command(
    short_help="Reject a call of a job.", epilog=examples("agentloop reject jobs/clean call_1 --message 'Not today.'")
)
@click.argument("folder", metavar="DIR")
@click.argument("call")
@click.option("--message", metavar="TEXT", help="What the model is told.")
@click.option("--always", is_flag=True, help="Reject the agent's later calls to the tool too, in this run.")
@_replace
def reject(folder: str, call: str, message: str | None, always: bool, replace: bool) -> None:
    """Reject CALL of the job in DIR, by the name `agentloop pending` gives it."""
    options: dict[str, Any] = {"message": message, "always": always, "replace": replace}
    _decide(folder, call, "rejected", lambda state, given: state.reject(given, **options))


@click.command(
    short_help="Answer a call of a job that waits for it.",
    epilog=examples(
        "agentloop answer jobs/ask call_1 Rome",
        """agentloop answer jobs/ask call_1 '{"room": 7}'""",
        "agentloop answer jobs/ask call_1 --error 'Nobody is at the desk.'",
    ),
)
@click.argument("folder", metavar="DIR")
@click.argument("call")
@click.argument("value", required=False)
@click.option("--error", metavar="TEXT", help="In place of VALUE: the model is told that the call has failed.")
def answer(folder: str, call: str, value: str | None, error: str | None) -> None:
    """Answer CALL of the job in DIR, which asks for VALUE: JSON, or text where a text is asked for."""
    if (value is None) == (error is None):
        raise click.UsageError("Give VALUE, or --error TEXT.")

    def give(state: RunState, given: Interruption | str) -> None:
        returns = given.returns if isinstance(given, CallToAnswer) else {}
        state.answer(given, None if value is None else read_answer(value, returns), error=error)

    _decide(folder, call, "answered", give)


Verdict = Callable[[RunState, Interruption | str], None]


def _decide(folder: str, call: str, decided: str, give: Verdict) -> None:
    async def work(kept: Folder) -> None:
        waiting = await _list_waiting(kept)
        path, given, name = _find_call(kept, waiting, call)
        async with FileJournal(path) as journal:
            if not await journal.try_lock():  # before the state is read, so that nothing is written between the two
                raise kept.refusal(f"{exact(name)}: its run is under way in another process, which has its journal")
            state = await _load_state(journal)
            try:
                give(state, _find_decided(state, given))
            except StateError as error:  # a wrong name of a call is an error of the user, not of the run
                text = str(error).replace(REPLACE_HINT, REPLACE_HINT.replace("replace=True", "--replace"))
                raise kept.refusal(f"{text} (those that wait: {_format_names(waiting)})") from None
            await state.append_to(journal)
        left = sum(one.name != name for one in waiting)
        click.echo(f"{exact(name)} is {decided}.")
        then = f"{left} more wait" + ("s" if left == 1 else "") if left else "Nothing else waits"
        click.echo(f"{then}. To go on: agentloop resume {kept.name}", err=True)

    _perform(folder, work)


def _find_call(folder: Folder, waiting: list[WaitingCall], call: str) -> tuple[Path, Interruption | str, str]:
    """Return the journal of *call*, its request or its id, and its full name.

    A call that has a verdict already is found by its full name.

    Raises:
        FolderError: if no such call waits, or several do.
    """
    found = [one for one in waiting if one.name == call]
    found = found or [one for one in waiting if call in (call_name(one.request), one.request.call.call_id)]
    if len(found) > 1:
        names = ", ".join(exact(one.name) for one in found)
        raise folder.refusal(f"{len(found)} calls of that name wait: {names}")
    if found:
        return found[0].path, found[0].request, found[0].name
    of_line = _OF_LINE.fullmatch(call)
    path, name = (folder.journal(int(of_line[1])), of_line[2]) if of_line else (folder.journal(), call)
    if not path.exists():
        raise folder.refusal(f"no call {call!r} waits for approval (those that do: {_format_names(waiting)})")
    return path, name, call


def _find_decided(state: RunState, call: Interruption | str) -> Interruption | str:
    """Return the request of the *call* that has a verdict already, by its name; *call* itself if there is none."""
    return next((asked for asked in state._asked() if call_name(asked) == call), call)


def _format_names(waiting: list[WaitingCall]) -> str:
    return ", ".join(exact(one.name) for one in waiting) or "none"
