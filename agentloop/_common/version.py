"""The version of the library, and the name by which it presents itself to servers."""

from __future__ import annotations

import functools


@functools.cache
def library_version() -> str:
    """Return the library's version."""
    from importlib import metadata  # a tenth of the library's own import

    try:
        return metadata.version("agentloop")
    except metadata.PackageNotFoundError:  # run from a source folder
        return "unknown"


def user_agent() -> str:
    """Return what a request says of its sender: `agentloop/VERSION`."""
    return f"agentloop/{library_version()}"
