"""Type checkers report a name that isn't there, also where names are imported at first use. Checked, never run."""

from typing import Any, assert_type

import agentloop
import agentloop.testing
from agentloop.journal import FileJournal, MemoryJournal


def check_names() -> None:
    """Misspelled, or in another place by now: with the checker, not at the first run."""
    assert_type(agentloop.journal.FileJournal("run.journal"), FileJournal)
    assert_type(agentloop.journal.MemoryJournal(), MemoryJournal)
    made: list[Any] = [agentloop.RunState, agentloop.exceptions.UserTypeError, agentloop.testing.explore]
    made += [agentloop.Agnet]  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    made += [agentloop.UserTypeError]  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    made += [agentloop.journal.FileJurnal]  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    made += [agentloop.testing.explroe]  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
