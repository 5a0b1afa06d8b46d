"""One cleanup deadline for a piece of work, and the shielded sections that end at it.

All sections have one deadline, because deadlines per section would add up.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import anyio

from agentloop._concurrency.backend import cancelled_types, enclosing_cancelled, loop_is_left, new_scope


class Cleanup:
    """Gives shielded sections one deadline: *grace* seconds after the cancellation of the work was first seen.

    Every part of the work that sees the cancellation calls `begin`. Until then a section has no deadline. The deadline
    of inner work is never later than the deadline of the work around it, *outer*.
    """

    __slots__ = ("_begun", "_lines", "_own", "_sections", "grace")

    def __init__(self, grace: float, outer: Cleanup | None = None) -> None:
        self.grace: float = grace
        self._lines: tuple[Cleanup, ...] = () if outer is None else (outer, *outer._lines)
        """The cleanups around this one. Without itself: a reference to itself would need the garbage collector."""
        self._own: float | None = None
        self._begun = False
        # In opening order, which is the order in which one deadline cuts several of them.
        self._sections: dict[anyio.CancelScope, None] = {}

    @property
    def deadline(self) -> float | None:
        """The deadline on the loop's clock, or None while the work is not being cancelled."""
        return min([line._own for line in (self, *self._lines) if line._own is not None], default=None)

    def begin(self) -> None:
        """Note that the work is being cancelled; the first call sets the deadline, for open sections too."""
        if not self._begun:  # every cancelled part calls this
            self._begun = True
            self.end_by(anyio.current_time() + self.grace)

    def end_by(self, deadline: float) -> None:
        """Set the deadline, on the loop's clock, unless an earlier one is set; open sections get it too."""
        if self._own is not None and self._own <= deadline:
            return
        self._own = deadline
        for scope in self._sections:
            scope.deadline = min(scope.deadline, deadline)

    def section(
        self,
        *,
        shield: bool = True,
        seconds: float = math.inf,
        late: bool = False,
        on_cut: Callable[[], None] | None = None,
    ) -> Section:
        """Run the block until the cleanup deadline (at most *seconds*); call *on_cut* if it is cut.

        With *shield* false the scopes around the block still cancel it: only a sibling's failure waits for it. A block
        that begins after the deadline is cut at once; with *late* it gets the grace once more. On asyncio no shield
        holds against the end of the loop, which cuts the block, too. If the work was ending already, that is a second
        interrupt: the deadline is then set to now.
        """
        deadline = math.inf if seconds == math.inf else anyio.current_time() + seconds
        return Section(self, new_scope(shield=shield, deadline=deadline), late, on_cut)


class Section:
    """The block of `Cleanup.section`, to be entered once. Not a generator, which would take three times as long."""

    __slots__ = ("_cleanup", "_late", "_on_cut", "_scope")

    def __init__(
        self, cleanup: Cleanup, scope: anyio.CancelScope, late: bool, on_cut: Callable[[], None] | None
    ) -> None:
        self._cleanup, self._scope, self._late, self._on_cut = cleanup, scope, late, on_cut

    def __enter__(self) -> anyio.CancelScope:
        self.resume()
        return self._scope.__enter__()

    def pause(self) -> None:
        """Have no deadline, until `resume` begins the section anew.

        So a block that waits for work and does it in turns is one section: a scope for each would take longer than
        most of what is done in it.
        """
        for line in (self._cleanup, *self._cleanup._lines):
            line._sections.pop(self._scope, None)
        if self._scope.deadline < math.inf:
            self._scope.deadline = math.inf

    def resume(self) -> None:
        """Begin, or begin anew after `pause`."""
        for line in (self._cleanup, *self._cleanup._lines):  # an inner section ends at the outer deadlines too
            line._sections[self._scope] = None
        if (end := self._cleanup.deadline) is not None:
            end = end + self._cleanup.grace if self._late and end <= anyio.current_time() else end
            self._scope.deadline = min(self._scope.deadline, end)

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        cut = error is not None and isinstance(error, cancelled_types())
        torn = cut and not enclosing_cancelled() and loop_is_left()
        try:
            return bool(self._scope.__exit__(kind, error, trace))
        finally:
            self.pause()
            if torn and self._cleanup.deadline is not None:
                self._cleanup.end_by(anyio.current_time())
            if (self._scope.cancelled_caught or torn) and self._on_cut is not None:
                self._on_cut()
