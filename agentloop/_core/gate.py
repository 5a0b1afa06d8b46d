"""The gate that a record passes which doesn't come from the run's own steps: a verdict, an input, a cancellation.

A run's own steps append in the order that the transition table allows, with values that were checked where they came
in; the tests check each of them. Others may come at any moment, from any process, with any value. What is appended can
never be taken back, so a record that the table refuses, or that its own reader doesn't understand, would make the log
unreadable for good: it is refused here, and nothing is appended.

Decisions:

A verdict holds. Two people see one call, and both decide: if the last one counted, a rejection that was accepted
would be gone, and no one would know. So a verdict of another party is only replaced on purpose. On one `RunState` the
last of its own verdicts holds: it is one person who changes their mind. A run reads each verdict once; from then on
it can't be replaced, because the call may start at any moment.

One gate for what comes from outside (`_core/gate.py`). A run's own steps append in the order of the transition table;
a verdict, an input or a cancellation may come at any moment, with any value. Each passes the table and the record's
own reader before it is appended, since what is appended stays. Values of models pass the reader where they enter
(`_storage/incoming.py`), so the run's own appends cost nothing more. Rejected: a check of every append: it would cost
each record as much as its journal does, and could only find what these two places find.
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
