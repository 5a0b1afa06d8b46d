"""The application's own invariants: functions that every explored run must pass."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import attrs

CheckT = TypeVar("CheckT", bound=Callable[..., Any])


@attrs.frozen(eq=False)
class OwnInvariant:
    """A function of a `WorldRun` that raises if something is wrong with it."""

    name: str
    module: Mapping[str, Any] = attrs.field(repr=False)
    """The names of the module that defines it: names of modules repeat, as each folder may have a `conftest.py`."""
    check: Callable[[Any], Any]


OWN: list[OwnInvariant] = []
"""Every function of an imported module that was decorated, in the order of their definition."""


def invariant(check: CheckT) -> CheckT:
    """Make *check* an invariant that `pytest --agentloop-explore` holds every run of your agents against.

    The function gets the `WorldRun` of each run that was explored, also of those that were cancelled, failed or resumed
    after a crash, and raises an error (`assert`) if something is wrong with it. One in the module of an agent
    is for that module's agents; one elsewhere, in `conftest.py` for example, is for all agents. One in code that is
    executed without an import, as the examples of a document are in tests of it, is for none.

    Example:
        from agentloop.testing import WorldRun, invariant

        @invariant
        def refunded_at_most_once(run: WorldRun) -> None:
            assert run.executions("refund") <= 1
    """
    name, module = getattr(check, "__name__", repr(check)), _module_of(check)
    if (spec := module.get("__spec__")) is not None:
        OWN[:] = [one for one in OWN if (one.name, one.module["__spec__"]) != (name, spec)]
        OWN.append(OwnInvariant(name, module, check))
    return check


def _module_of(check: Callable[..., Any]) -> Mapping[str, Any]:
    """Return the names of the module that defines *check*; of an object, those of its class's module."""
    inner = inspect.unwrap(check)
    home = getattr(sys.modules.get(inner.__module__), "__dict__", {})
    found: Mapping[str, Any] = getattr(inner, "__globals__", home)
    return found
