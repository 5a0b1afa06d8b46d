"""The progress of a run's session: which of the run's own items are written, so that each is written once."""

from __future__ import annotations

import msgspec

from agentloop._common.digests import digestible
from agentloop._common.values import Machinery
from agentloop._core.history import valid_history
from agentloop._core.run_fold import RunFold
from agentloop._storage.record_codec import part_to_json
from agentloop._storage.withholding import DIGESTS
from agentloop.abc import Session
from agentloop.items import Item
from agentloop.records import HistoryReplaced, SessionSaved


class SessionProgress(Machinery, msgspec.Struct, eq=False):
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
    preceding: list[list[Item]] = []
    """The items that the session may hold right before the doubtful ones: the run's own that are written, else those
    that it began with; or the history that a compaction has left, if the session was replaced, too."""
    before: list[Item] | None = None
    """The history before a compaction that the session doesn't have yet; None if it is to stay as it is."""
    since: int = 0
    """The count of the run's new items that are in `before`, or that the model isn't shown any more."""

    def note_compaction(self, state: RunFold) -> None:
        """Note that the history of *state* is about to be made shorter: the session is, too, with the next write."""
        if self.before is None:
            self.before, self.since = list(state.history), len(state.new_items)

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
        shown = state.started.shown or ()
        earlier = list(shown[: len(shown) - len(state.input)])
        if progress.input_saved:
            progress.preceding = [[*state.input, *complete]]
        else:
            progress.doubtful[:0] = state.input
            progress.preceding = [earlier]
        if state.compacted is not None:
            in_doubt = set(map(id, progress.doubtful))
            progress.preceding.append([item for item in state.history if id(item) not in in_doubt])
            if _was_compacted_last(state):
                progress.before, progress.since = [*earlier, *state.input, *complete], saved
        return progress


def _was_compacted_last(state: RunFold) -> bool:
    """Tell whether the session wasn't saved since the last compaction of *state*."""
    own = (one for one in reversed(state.records) if one.path == state.path)
    return next((one for one in own if isinstance(one, HistoryReplaced | SessionSaved)), None) is state.compacted


def digest_item(item: Item) -> bytes:
    """Return the digest of *item* by which two items are compared."""
    # Not of the repr, in which all secrets look alike. The log of a resumed run may have only digests of them.
    form = part_to_json(item, DIGESTS) if getattr(item, "secret", False) else item
    return digestible([type(item).__name__, form])
