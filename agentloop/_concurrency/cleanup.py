"""The one cleanup deadline of a run, and the shielded sections that end at it.

One deadline for all sections, because deadlines per section would add up. Does not know which work a section does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import anyio

from agentloop._concurrency.backend import cancelled_types, enclosing_cancelled, loop_is_left


class Cleanup:
    """Gives a run's shielded sections one deadline: *grace* seconds after its cancellation was first seen.

    Owned by the run; every part of it that sees the cancellation calls `begin`. Until then a section of the library has
    no deadline. A nested run's deadline is never later than the outer run's.
    """

    __slots__ = ("_begun", "_outer", "_own", "_sections", "grace")

    def __init__(self, grace: float, outer: Cleanup | None = None) -> None:
        self.grace: float = grace
        self._outer = outer
        self._own: float | None = None
        self._begun = False
        # In opening order, which is the order in which one deadline cuts several of them.
        self._sections: dict[anyio.CancelScope, None] = {}

    @property
    def deadline(self) -> float | None:
        """The deadline on the loop's clock, or None while the run is not being cancelled."""
        outer = self._outer.deadline if self._outer is not None else None
        if self._own is None or outer is None:
            return outer if self._own is None else self._own
        return min(self._own, outer)

    def begin(self) -> None:
        """Note that the run's cancellation is under way; the first call sets the deadline, for open sections too."""
        if not self._begun:  # every cancelled call calls this
            self._begun = True
            self.end_by(anyio.current_time() + self.grace)

    def end_by(self, deadline: float) -> None:
        """Set the deadline, on the loop's clock, unless an earlier one is set; open sections get it too."""
        if self._own is not None and self._own <= deadline:
            return
        self._own = deadline
        for scope in self._sections:
            scope.deadline = min(scope.deadline, deadline)

    @contextmanager
    def section(
        self,
        *,
        shield: bool = True,
        seconds: float = math.inf,
        late: bool = False,
        on_cut: Callable[[], None] | None = None,
    ) -> Iterator[anyio.CancelScope]:
        """Run the block until the cleanup deadline (at most *seconds*); call *on_cut* if it is cut.

        With *shield* false the scopes around the block still cancel it: only a sibling's failure waits for it. A block
        that begins after the deadline is cut at once; with *late* it gets the grace once more. On asyncio no shield
        holds against the end of the loop, which cuts the block, too. If the run was ending already, that is a second
        interrupt: the deadline is then set to now.
        """
        now = anyio.current_time()
        deadline = now + seconds
        if (end := self.deadline) is not None:
            deadline = min(deadline, end + self.grace if late and end <= now else end)
        scope = anyio.CancelScope(shield=shield, deadline=deadline)
        lines: list[Cleanup] = []
        line: Cleanup | None = self
        while line is not None:  # a nested run's sections end at the outer runs' deadlines too
            line._sections[scope] = None
            lines.append(line)
            line = line._outer
        torn = False
        try:
            with scope:
                try:
                    yield scope
                except cancelled_types():
                    torn = not enclosing_cancelled() and loop_is_left()
                    raise
        finally:
            for line in lines:
                line._sections.pop(scope, None)
            if torn and self.deadline is not None:
                self.end_by(anyio.current_time())
            if (scope.cancelled_caught or torn) and on_cut is not None:
                on_cut()
