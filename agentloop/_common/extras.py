"""Texts that tell how to install the library: an extra that is missing, another project in its place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

DISTRIBUTION = "agentloop-anyio"
"""The name by which the library is installed. Several other projects install a package `agentloop`, too."""


def describe_install(extra: str) -> str:
    """Return how to install an extra, be the library from an index or from a clone."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"


def describe_missing(what: str, extra: str) -> str:
    """Return the message of an error: *what* can't be used without the extra."""
    return f"{what} needs the extra `{extra}`: {describe_install(extra)}"


def describe_foreign() -> str | None:
    """Return a sentence if other distributions have put a package `agentloop` into this environment, else None.

    Files of one then replace files of the other, and the one that is removed takes both away. It reads the metadata of
    everything that is installed, some tens of milliseconds: ask where something has failed already, or a person waits.
    """
    from importlib import metadata  # a tenth of the library's own import

    return _describe_foreign(metadata.packages_distributions())


def _describe_foreign(packages: Mapping[str, Sequence[str]]) -> str | None:
    foreign = sorted({name for name in packages.get("agentloop", ()) if name.replace("_", "-") != DISTRIBUTION})
    if not foreign:
        return None
    names = ", ".join(foreign)
    return (
        f"{names} installs a package `agentloop` too, and its files replace ours: run "
        f"`pip uninstall {' '.join(foreign)} {DISTRIBUTION}`, then `pip install {DISTRIBUTION}`"
    )
