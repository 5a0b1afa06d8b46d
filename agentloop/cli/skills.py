"""`agentloop skills check`: whether the skills of a folder can be read, and what is wrong where they can't."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from agentloop._common.terminal_text import exact
from agentloop.bundles._skills import Skill, SkillFault, find_skills
from agentloop.cli import errors
from agentloop.cli.help_text import examples


@click.group()
def skills() -> None:
    """Look after folders of skills."""


@skills.command(
    short_help="Read the heads of skills, and tell what is wrong.",
    epilog=examples("agentloop skills check skills", "agentloop skills check skills/greeting"),
)
@click.argument("folder", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path))
def check(folder: Path) -> None:
    """Read the heads of the skills in DIR, which is a skill or has skills in it, and tell what is wrong.

    Exit codes: 0 all are as the format wants them, 1 one isn't or there is none, 2 wrong use.
    """
    failed, found = False, 0
    for place in find_skills(folder):
        found += 1
        try:
            skill = Skill.read(place)
        except (SkillFault, OSError) as fault:
            failed = True
            click.echo(f"Error: {exact(str(fault))}", err=True)
        else:
            click.echo(f"{skill.name}: {exact(skill.description)}")
            for wrong in skill.faults:
                failed = True
                click.echo(f"Error: {exact(wrong)}", err=True)
            for warning in skill.warnings:
                click.echo(f"Warning: {exact(warning)}", err=True)
    if not found:
        click.echo(f"Error: {exact(str(folder))} has no skill: a folder with SKILL.md", err=True)
    if failed or not found:
        sys.exit(errors.FAILED)
