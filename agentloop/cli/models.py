"""`agentloop models`: the prefixes of model strings, and what is missing for each."""

from __future__ import annotations

import click

from agentloop.cli.help_text import examples
from agentloop.models.registry import list_providers


@click.command(
    short_help="List the providers by name, and the keys that are missing.",
    epilog=examples("agentloop models", "agentloop models --ready"),
)
@click.option("--ready", is_flag=True, help="Only those for which nothing is missing.")
def models(ready: bool) -> None:
    """List the prefixes of model strings (`mistral:NAME`), and for each where it asks, and what is missing.

    The environment is looked at, no server is asked, and no key is shown. `ready` says that nothing is missing as far
    as this can be seen: whether a key is right, its vendor knows.
    """
    found = [provider for provider in list_providers() if not ready or not provider.missing]
    prefixes = [f"{provider.prefix}:NAME" for provider in found]
    words = [f"needs {', '.join(provider.missing)}" if provider.missing else "ready" for provider in found]
    first, second = max(map(len, prefixes), default=0), max(map(len, words), default=0)
    for prefix, state, provider in zip(prefixes, words, found, strict=True):
        click.echo(f"{prefix:{first}}  {state:{second}}  {provider.where}".rstrip())
