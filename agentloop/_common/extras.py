"""Texts of errors that tell which extra is missing, and how to install it."""

from __future__ import annotations


def describe_install(extra: str) -> str:
    """Return how to install an extra: from a clone, since a package index has another project of this name."""
    return f"in a clone of agentloop, pip install '.[{extra}]'"


def describe_missing(what: str, extra: str) -> str:
    """Return the message of an error: *what* can't be used without the extra."""
    return f"{what} needs the extra `{extra}`: {describe_install(extra)}"
