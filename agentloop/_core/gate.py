"""The gate that a record passes which doesn't come from the run's own steps: a verdict, an input, a cancellation.

A run's own steps append in the order that the transition table allows, with values that were checked where they came
in; the tests check each of them. Others may come at any moment, from any process, with any value. What is appended can
never be taken back, so a record that the table refuses, or that its own reader doesn't understand, would make the log
unreadable for good: it is refused here, and nothing is appended.
"""

from __future__ import annotations

from typing import TypeVar

from agentloop import records as r
from agentloop._core.run_fold import RunFold
from agentloop._core.transitions import check_next
from agentloop.exceptions import StateError

RecordT = TypeVar("RecordT", bound=r.Record)


def admit(root: RunFold, record: RecordT) -> RecordT:
    """Return *record*, which may be appended to the log of *root* now, and can be read again.

    Raises:
        StateError: it may not, or couldn't be; says why. Values aren't quoted.
    """
    from agentloop._storage.record_codec import find_fault  # few runs get a record from outside

    kind = type(record).__name__
    try:
        check_next(root, record)
    except ValueError as error:
        raise StateError(f"the log takes no {kind} now: {error}") from None
    fault = find_fault(root.mark(record))
    if fault is not None:
        raise StateError(f"the log takes no {kind} that can't be read again: {fault}")
    return record
