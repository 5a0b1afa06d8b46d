"""`agentloop fork`: a recorded run continued from one of its records in several ways at once."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from agentloop.cli import errors
from agentloop.cli.help_text import examples
from agentloop.cli.private_files import open_private
from agentloop.cli.run_options import CONTEXT_HELP
from agentloop.cli.supervision import check_backend, run_supervised
from agentloop.cli.target import load_agent, load_config, load_context, load_function
from agentloop.exceptions import AgentLoopError, UserError
from agentloop.journal._folder import is_address


@click.command(
    short_help="Continue a recorded run from a record, in several ways.",
    epilog=examples(
        "agentloop fork run.journal --agent my-agent/agent.py:agent --turn 1 --branch seed=1 --branch seed=2",
        "agentloop fork run.journal --agent my-agent/agent.py:agent --at 2 --set 'input=And in May?' --out forks",
        "agentloop fork jobs/may --agent my-agent/agent.py:agent --at 2 --branch 'seed=1 name=again' --html tree.html",
    ),
)
@click.argument("journal")
@click.option("--run", "run_id", metavar="ID", help="The run of that id, of a SQLite file or a database.")
@click.option("--agent", "target", metavar="TARGET", required=True, help="module:agent or file.py:agent of the run.")
@click.option("--at", type=int, metavar="N", help="Number of the last record that the branches begin with, from 1.")
@click.option("--turn", type=click.IntRange(min=1), help="In place of --at: the turn before which they begin.")
@click.option(
    "--set", "sets", metavar="EDIT", multiple=True, help="call:ID.output=JSON or input=TEXT, as if it were so."
)
@click.option("--drop", "drops", metavar="call:ID", multiple=True, help="A call, as if the model hadn't made it.")
@click.option(
    "--branch",
    "branches",
    metavar="CHANGE",
    multiple=True,
    help="A branch: model=STRING, instructions=FILE, seed=N, name=NAME, several with spaces between.",
)
@click.option("--out", type=click.Path(path_type=Path), help="Write a journal for each branch into DIR.")
@click.option("--html", type=click.Path(path_type=Path), help="Write a page of the tree to FILE.")
@click.option("--config", metavar="NAME", help="module:name or file.py:name of the RunConfig.")
@click.option("--context", metavar="NAME", help=CONTEXT_HELP)
@click.option(
    "--cache", type=click.Path(path_type=Path), default=Path(".agentloop/lab"), show_default=True, help="Folder."
)
@click.option("--budget", type=click.IntRange(min=0), help="Most requests that models may get.")
@click.option(
    "--unmatched",
    type=click.Choice(["refuse", "stub", "simulate"]),
    default="refuse",
    show_default=True,
    help="Calls that were not recorded, of tools that don't only read.",
)
@click.option("--simulate", metavar="NAME", help="module:function or file.py:function for --unmatched simulate.")
@click.option("--verdict", type=click.Choice(["ask", "approve", "reject"]), default="ask", show_default=True)
@click.option("--recorded-guards", is_flag=True, help="Take the verdicts of guardrails from the journal.")
@click.option("--toolsets", is_flag=True, help="Let the agent's sources of tools be asked.")
@click.option("--key-file", type=click.File("rb"), help="File with the key that the journal is sealed with.")
@click.option("--backend", type=click.Choice(["asyncio", "trio"]), default="asyncio", show_default=True)
def fork(journal: str, run_id: str | None, target: str, html: Path | None, backend: str, **options: Any) -> None:
    """Continue the run in JOURNAL from one of its records, as it was or edited, in all branches at once. JOURNAL is a
    file, a folder with one, or a PostgreSQL database by its address, postgresql://….

    Nothing before that record is repeated. What follows happens as in `agentloop lab`: equal requests and calls are
    answered from the journal, other requests go to the branch's model, and of the tools only those run that only read.

    Exit codes: 0 every branch has ended without an error, 1 one has not, 2 wrong use, or no run continues from there;
    130 SIGINT, 143 SIGTERM.
    """
    try:
        check_backend(backend)
        work = _prepare(choose_run(journal, run_id), load_agent(target, backend), **options)
        ended = run_supervised(work, backend)
        if ended.value is None:
            sys.exit(128 + (ended.signal or 0))
        if html is not None:
            with open(html, "w", encoding="utf-8", opener=open_private) as file:
                file.write(ended.value.to_html())
    except AgentLoopError as error:
        click.echo(errors.words_for(error), err=True, nl=False)
        sys.exit(errors.USAGE)
    except OSError as error:
        click.echo(errors.words_for_file(error.filename or journal, error), err=True, nl=False)
        sys.exit(errors.USAGE)
    click.echo(str(ended.value))
    sys.exit(int(any(one.error or one.run.error for one in ended.value.branches)))


def choose_run(journal: str, run_id: str | None) -> Any:
    """Return the run *run_id* of *journal*, a path or the address of a database; *journal* if there is no *run_id*.

    Raises:
        UserError: there is no such run.
    """
    from agentloop.lab._compare import DatabaseRun, list_sources

    if run_id is None:
        return journal
    if is_address(journal):
        return DatabaseRun(journal, run_id)
    found = dict(list_sources(journal))
    if run_id not in found:
        raise UserError(f"--run: {journal!r} holds no run {run_id!r}")
    return found[run_id]


def _prepare(journal: Any, agent: Any, **options: Any) -> Any:
    """Return the fork to be awaited.

    Raises:
        UserError: an option is wrong; names it.
    """
    from agentloop import lab

    given, name, key_file = options["context"], options["simulate"], options["key_file"]
    return partial(
        lab.fork,
        journal,
        agent,
        at=options["at"],
        turn=options["turn"],
        edits=_read_edits(options["sets"], options["drops"]),
        branches=[_read_branch(text) for text in options["branches"]],
        folder=options["out"],
        run_config=load_config(options["config"]),
        context=load_context(given),
        unmatched=options["unmatched"],
        simulate=None if name is None else load_function(name),
        verdict=options["verdict"],
        recorded_guards=options["recorded_guards"],
        toolsets=options["toolsets"],
        cache=options["cache"],
        budget=options["budget"],
        key=None if key_file is None else key_file.read(),
    )


def _read_edits(sets: Sequence[str], drops: Sequence[str]) -> list[Any]:
    from agentloop import lab

    found: list[Any] = []
    for text in sets:
        place, sign, value = text.partition("=")
        call, dot, part = place.removeprefix("call:").rpartition(".")
        if sign and place == "input":
            found.append(lab.SetInput(value))
        elif sign and place.startswith("call:") and dot and part == "output":
            try:
                found.append(lab.SetOutput(call, json.loads(value)))
            except ValueError as error:
                raise UserError(f"--set {text!r}: the output isn't JSON ({error}); a text needs quotes") from None
        else:
            raise UserError(f"--set: expected call:ID.output=JSON or input=TEXT, got {text!r}")
    for text in drops:
        if not text.startswith("call:"):
            raise UserError(f"--drop: expected call:ID, got {text!r}")
        found.append(lab.DropCall(text.removeprefix("call:")))
    return found


def _read_branch(text: str) -> Any:
    from agentloop import lab

    made: dict[str, Any] = {}
    try:
        parts = shlex.split(text)
    except ValueError as error:
        raise UserError(f"--branch {text!r}: {error}") from None
    for part in parts:
        name, sign, value = part.partition("=")
        if not sign or name not in ("model", "instructions", "seed", "name"):
            raise UserError(f"--branch: expected model=, instructions=, seed= or name=, got {part!r}")
        made[name] = value
    if "seed" in made:
        try:
            made["seed"] = int(made["seed"])
        except ValueError:
            raise UserError(f"--branch: seed: expected a number, got {made['seed']!r}") from None
    if "instructions" in made:
        made.setdefault("name", text)
        made["instructions"] = _read_file(made["instructions"])
    return lab.Branch(**made)


def _read_file(name: str) -> str:
    try:
        return Path(name).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise UserError(f"--branch: instructions: {name!r} can't be read: {why}") from None
