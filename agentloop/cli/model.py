"""`agentloop model`: the local model's installation."""

from __future__ import annotations

import signal
import sys
from types import FrameType

import click

from agentloop.cli import failure
from agentloop.exceptions import UserError
from agentloop.models import _install


def _end(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)


@click.group()
def model() -> None:
    """Install and find the local model."""


@model.command()
def install() -> None:
    """Install the local model (about 130 MB) into this Python environment, and check it."""
    # As an exception it also ends the installer that is waited for.
    signal.signal(signal.SIGTERM, _end)
    try:
        _install.install(echo=click.echo)
    except UserError as error:
        click.echo(failure.words_for(error), err=True, nl=False)
        sys.exit(failure.FAILED)


@model.command()
def path() -> None:
    """Print where the local model's weights are."""
    found = _install.find_weights()
    if found is None:
        click.echo(f"Error: The local model isn't installed. Run `{_install.INSTALL_COMMAND}`.", err=True)
        sys.exit(failure.USAGE)
    click.echo(str(found))
