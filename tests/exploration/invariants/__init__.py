"""The invariants that only the engine can break, and the table of all of them.

The package has the invariants that an application's code can break (`agentloop.testing.invariants`). Its decorator
enters these too when this module is imported, so `check` judges by all. Whoever judges a run in these tests
imports from here, and `tests/conftest.py` imports it for the others, so that the order of tests changes nothing.
"""

from agentloop.testing.invariants import (
    INVARIANTS,
    CoverageCounter,
    InvariantError,
    check,
    check_counterparts,
    counterpart_of,
    findings_of,
    observe_run,
)

from . import (
    accounting,
    bounds,
    cancellation,
    events,
    execution,
    guards,
    inputs,
    limits,
    models,
    outcomes,
    times,
    watchers,
)

__all__ = [
    "INVARIANTS",
    "CoverageCounter",
    "InvariantError",
    "check",
    "check_counterparts",
    "counterpart_of",
    "findings_of",
    "observe_run",
]

# The decorator enters each invariant at import. The tuple uses the imports, so that no linter removes them.
_TABLES = (
    *(execution, limits, times, outcomes, cancellation, guards, accounting),
    *(bounds, events, inputs, models, watchers),
)
