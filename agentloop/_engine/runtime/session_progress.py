"""The progress of a run's session: which of the run's own items are written, so that each is written once."""

from __future__ import annotations

import msgspec

from agentloop._core.history import valid_history
from agentloop._core.run_fold import RunFold
from agentloop.abc import Session
from agentloop.items import Item


class SessionProgress(msgspec.Struct, eq=False):
    """Tracks which of a run's own items *session* has received. Owned by the run; `save_items` advances it."""

    session: Session
    input_saved: bool = False
    saved: int = 0
    """The count of the run's new items that are either written or in `held`."""
    held: list[Item] = []
    """Calls without their output yet (a handoff not taken), and the items that led to them; written with the output, if
    any."""
    failed: bool = False
    """True once a write has failed: no more is written then."""

    doubtful: list[Item] = []
    """Items that an earlier run segment was to write, and of which the log doesn't say that they are written: it was
    killed before, or the write was cut or failed, perhaps after the session had taken it. The next write reads the
    session first, and empties the list."""
    preceding: list[Item] = []
    """The items that the session holds right before the doubtful ones: the run's own that are written, else those that
    it began with."""

    @classmethod
    def of(cls, session: Session, state: RunFold) -> SessionProgress:
        """Return the progress of a run whose log has led to *state*: written items are not written again."""
        if state.started is None:
            return cls(session)
        saved = state.saved or 0
        saved_items = state.new_items[:saved]
        complete = valid_history(saved_items)
        written = {id(item) for item in complete}
        progress = cls(
            session,
            input_saved=state.saved is not None,
            saved=saved,
            held=[item for item in saved_items if id(item) not in written],
        )
        progress.doubtful = list(valid_history([*progress.held, *state.new_items[saved:]]))
        if progress.input_saved:
            progress.preceding = [*state.input, *complete]
        else:
            progress.doubtful[:0] = state.input
            shown = state.started.shown or ()
            progress.preceding = list(shown[: len(shown) - len(state.input)])
        return progress
