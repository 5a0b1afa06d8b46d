"""How far a run's session has been written: each of the run's own items is written once."""

from __future__ import annotations

import attrs

from agentloop._core.history import valid_history
from agentloop._core.run_fold import RunFold
from agentloop.abc import Session
from agentloop.items import Item


@attrs.define(eq=False)
class SessionProgress:
    """What of a run's own items has been given to *session*. Owned by the run; `save_items` advances it."""

    session: Session
    input_saved: bool = False
    saved: int = 0
    """How many of the run's new items have been looked at."""
    held: list[Item] = attrs.field(factory=list)
    """Calls without their output yet (a handoff not taken), and what led to them: written with the output, if any."""
    failed: bool = False
    """Whether a write has failed: nothing more is written then."""

    doubtful: bool = False
    """Whether an earlier entry of the run, which didn't come to its end, may have written what is due next."""

    @classmethod
    def of(cls, session: Session, state: RunFold) -> SessionProgress:
        """Return how far a run whose log has got to *state* had written: that is not written again."""
        if state.started is None:
            return cls(session)
        saved = state.saved or 0
        told = state.new_items[:saved]
        complete = {id(item) for item in valid_history(told)}
        return cls(
            session,
            input_saved=state.saved is not None,
            saved=saved,
            held=[item for item in told if id(item) not in complete],
            doubtful=state.ended is None,
        )
