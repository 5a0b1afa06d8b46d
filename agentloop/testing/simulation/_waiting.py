"""The parts that both deterministic event loops share: patience, deadlock, and the check of private names."""

from __future__ import annotations

REAL_PATIENCE = 0.05
"""Real seconds in which the outside (a thread of the program's own) may wake a loop whose tasks all wait."""


class Deadlock(RuntimeError):
    """Every task waits, and no timer is set, so no task would ever run again."""

    def __init__(self) -> None:
        super().__init__("deadlock: every task waits, and no timer is set")


def require(where: str, names: dict[str, bool]) -> None:
    """Check private *names* of the package *where*.

    Raises:
        ImportError: naming those that are missing or have changed.
    """
    missing = sorted(name for name, there in names.items() if not there)
    if missing:
        raise ImportError(
            f"agentloop.testing can't choose schedules with this release of {where}: private names that it relies "
            f"on have changed: {', '.join(missing)}"
        )
