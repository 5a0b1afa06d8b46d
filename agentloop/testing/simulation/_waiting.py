"""What both clockwork loops share."""

from __future__ import annotations

REAL_PATIENCE = 0.05
"""Seconds of real time that somebody from outside (a thread of the program's own) has to wake a loop that is stuck."""


class Deadlock(RuntimeError):
    """Every task waits, and no timer is set: nothing would ever happen any more."""

    def __init__(self) -> None:
        super().__init__("deadlock: every task waits, and no timer is set")


def require(where: str, names: dict[str, bool]) -> None:
    """Raise ImportError for those private *names* that are not there as they used to be."""
    missing = sorted(name for name, there in names.items() if not there)
    if missing:
        raise ImportError(
            f"agentloop.testing can't choose schedules with this release of {where}: private names that it relies "
            f"on have changed: {', '.join(missing)}"
        )
