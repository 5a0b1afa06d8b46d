"""`agentloop upgrade-check`: what the runs that wait would do with the agent that is about to be deployed."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any, BinaryIO

import click

from agentloop.cli import errors
from agentloop.cli.fork import choose_run
from agentloop.cli.help_text import examples
from agentloop.cli.supervision import check_backend, run_supervised
from agentloop.cli.target import load_agent, load_config
from agentloop.exceptions import AgentLoopError


@click.command(
    name="upgrade-check",
    short_help="Tell what unfinished runs would do with a new agent.",
    epilog=examples(
        "agentloop upgrade-check jobs/may --agent my-agent/agent.py:agent",
        "agentloop upgrade-check jobs/may --agent my-agent/agent.py:agent --verdict reject --json",
    ),
)
@click.argument("store")
@click.option("--agent", "target", metavar="TARGET", required=True, help="module:agent or file.py:agent to deploy.")
@click.option("--run", "run_id", metavar="ID", help="Only the run of that name or id.")
@click.option("--config", metavar="NAME", help="module:name or file.py:name of the RunConfig.")
@click.option(
    "--verdict",
    type=click.Choice(["approve", "reject", "ask"]),
    default="approve",
    show_default=True,
    help="What the calls that wait get first; ask: nothing.",
)
@click.option("--toolsets", is_flag=True, help="Let the agent's sources of tools be asked.")
@click.option("--key-file", type=click.File("rb"), help="File with the key that the journals are sealed with.")
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object.")
@click.option("--backend", type=click.Choice(["asyncio", "trio"]), default="asyncio", show_default=True)
def upgrade_check(
    store: str,
    target: str,
    run_id: str | None,
    config: str | None,
    key_file: BinaryIO | None,
    backend: str,
    *,
    as_json: bool,
    **options: Any,
) -> None:
    """Tell what each unfinished run of STORE would do if it were resumed with the agent of TARGET. STORE is a folder of
    journals, a file, or a PostgreSQL database by its address, postgresql://….

    Each run is resumed in memory until it comes to its next request to a model. Nothing is run or written: no model is
    asked, and no body and no function of yours is called. A run is

    \b
    same      it continues as it is
    changed   it continues with other definitions: tools, instructions, a model …
    unknown   it needs a source of tools, which is asked with --toolsets only
    refused   it can't be resumed with this agent, and waits for one that fits
    fails     resuming it would end it for good

    Exit codes: 0 every run continues, 1 one doesn't, or that isn't known, 2 wrong use; 130 SIGINT, 143 SIGTERM.
    """
    from agentloop import lab

    try:
        check_backend(backend)
        agent, key = load_agent(target, backend), None if key_file is None else key_file.read()
        given = partial(lab.upgrade_check, run_config=load_config(config), key=key, **options)
        ended = run_supervised(partial(given, choose_run(store, run_id), agent), backend)
    except AgentLoopError as error:
        click.echo(errors.words_for(error), err=True, nl=False)
        sys.exit(errors.USAGE)
    except OSError as error:
        click.echo(errors.words_for_file(error.filename or store, error), err=True, nl=False)
        sys.exit(errors.USAGE)
    if ended.value is None:
        sys.exit(128 + (ended.signal or 0))
    click.echo(ended.value.to_json() if as_json else str(ended.value))
    sys.exit(ended.value.exit_code)
