"""The part of `--help` that shows commands as they are typed. A test runs each of them."""

from __future__ import annotations


def examples(*commands: str) -> str:
    """Return the epilog of a command's help: *commands* under a heading, one a line, never wrapped."""
    return "\n".join(["\b", "Examples:", *(f"  $ {command}" for command in commands)])
