"""The command `agentloop lab` and its options. What it does is in `lab_run`, imported by this command only: it needs
the library's testing parts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from agentloop.cli.help_text import examples
from agentloop.cli.run_options import CONTEXT_HELP


@click.command(
    short_help="Compare recorded runs with an agent of today.",
    epilog=examples(
        "agentloop lab jobs/may --agent my-agent/agent.py:agent",
        "agentloop lab jobs/may --agent my-agent/agent.py:agent --report lab.json --html lab.html",
        "agentloop lab jobs/may --agent my-agent/agent.py:agent --where status=completed --junit lab.xml",
    ),
)
@click.argument("journals")
@click.option("--agent", "target", metavar="TARGET", required=True, help="module:agent or file.py:agent to compare.")
@click.option("--against", type=click.Path(path_type=Path), help="Report of an earlier comparison: only worse fails.")
@click.option("--checks", metavar="NAME", help="module:name or file.py:name of a list of checks.")
@click.option("--judge", "judges", metavar="NAME|TEXT", multiple=True, help="A function of a run, or a question.")
@click.option("--judge-model", metavar="STRING", help="Model string that judges by questions.")
@click.option("--repeat", type=click.IntRange(min=1), default=1, show_default=True, help="Runs for each journal.")
@click.option("--report", type=click.Path(path_type=Path), help="Write the report to FILE, to compare against later.")
@click.option("--html", type=click.Path(path_type=Path), help="Write a page to FILE.")
@click.option("--junit", type=click.Path(path_type=Path), help="Write JUnit XML to FILE.")
@click.option("--where", metavar="QUERY", help="Only some runs: status=failed, tool=refund, name=run-7.")
@click.option("--model", metavar="STRING", help="Model string used in place of the agent's model.")
@click.option("--config", metavar="NAME", help="module:name or file.py:name of the RunConfig.")
@click.option("--context", metavar="NAME", help=CONTEXT_HELP)
@click.option(
    "--cache", type=click.Path(path_type=Path), default=Path(".agentloop/lab"), show_default=True, help="Folder."
)
@click.option("--budget", type=click.IntRange(min=0), help="Most requests that models may get.")
@click.option(
    "--unmatched",
    type=click.Choice(["refuse", "stub", "simulate", "live"]),
    default="refuse",
    show_default=True,
    help="Calls that were not recorded, of tools that don't only read.",
)
@click.option("--simulate", metavar="NAME", help="module:function or file.py:function for --unmatched simulate.")
@click.option("--verdict", type=click.Choice(["ask", "approve", "reject"]), default="ask", show_default=True)
@click.option("--recorded-guards", is_flag=True, help="Take the verdicts of guardrails from the journals.")
@click.option("--toolsets", is_flag=True, help="Let the agent's sources of tools be asked.")
@click.option("--cases", type=click.Path(path_type=Path), default=Path(".agentloop/cases"), help="Folder of cases.")
@click.option("--key-file", type=click.File("rb"), help="File with the key that the journals are sealed with.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of values for --unmatched stub.")
@click.option("--concurrency", type=click.IntRange(min=1), default=4, show_default=True, help="Runs at once.")
@click.option("--backend", type=click.Choice(["asyncio", "trio"]), default="asyncio", show_default=True)
def lab(**options: Any) -> None:
    """Run the recorded runs of JOURNALS again with the agent of TARGET, and tell what became of each.

    JOURNALS is a folder of journals, a file, a PostgreSQL database by its address, postgresql://…, or file.py:cases, a
    list of cases. Nothing of the outside world happens: equal requests and calls are answered from the journals, other
    requests go to the agent's model, and of the tools only those run that only read.

    A comparison that is interrupted keeps what it has beside the file that it writes; the same command continues it.

    Exit codes: 0 all went well, 1 something is worse than --against, or without it a check failed; 2 nothing could be
    compared, or wrong use; 130 SIGINT, 143 SIGTERM.
    """
    from agentloop.cli.lab_run import LabCommand, perform_lab

    sys.exit(perform_lab(LabCommand(**options)))
