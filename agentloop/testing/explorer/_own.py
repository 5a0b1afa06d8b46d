"""The application's own invariants: functions that every explored run must pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import attrs

CheckT = TypeVar("CheckT", bound=Callable[..., Any])


@attrs.frozen
class OwnInvariant:
    """A function of a `WorldRun` that raises if something is wrong with it."""

    name: str
    module: str
    check: Callable[[Any], Any]


OWN: list[OwnInvariant] = []
"""Every function that was decorated, in the order of their definition."""


def invariant(check: CheckT) -> CheckT:
    """Make *check* an invariant that `pytest --agentloop-explore` holds every run of your agents against.

    The function gets the `WorldRun` of each run that was explored, also of those that were cancelled, failed or resumed
    after a crash, and raises an error (`assert`) if something is wrong with it. One in the module of an agent
    is for that module's agents; one elsewhere, in `conftest.py` for example, is for all agents.

    Example:
        from agentloop.testing import WorldRun, invariant

        @invariant
        def refunded_at_most_once(run: WorldRun) -> None:
            assert run.executions("refund") <= 1
    """
    name = getattr(check, "__name__", repr(check))
    module = getattr(check, "__module__", "")
    OWN[:] = [one for one in OWN if (one.name, one.module) != (name, module)]
    OWN.append(OwnInvariant(name, module, check))
    return check
