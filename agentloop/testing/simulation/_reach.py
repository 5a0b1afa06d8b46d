"""The reach of a property: the tools whose bodies its worlds have run, and the outcomes of the other tools' calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import attrs

from agentloop import records as r
from agentloop._common.error_text import first_line
from agentloop.testing.simulation._simulated_parts import BodyRun

MOST_QUOTED = 300


@attrs.define(eq=False)
class Reach:
    """The results of the runs of a property's worlds, by tool. `reaching` owns it; `simulate` adds each run."""

    ran: set[str] = attrs.field(factory=set)
    """Tools whose own bodies ran."""
    outcomes: dict[str, Counter[str]] = attrs.field(factory=dict)
    refused: dict[str, str] = attrs.field(factory=dict)
    """The first refusal of generated arguments, for each tool that refused any."""
    report: Callable[[str], None] = lambda _: None
    """Called with a sentence for each refusal of arguments that a schema allows."""

    def forget_calls(self) -> None:
        """Forget the outcomes of calls so far, but not the tools whose bodies ran."""
        self.outcomes.clear()
        self.refused.clear()

    def note(self, records: Iterable[r.Record], bodies: Iterable[BodyRun]) -> None:
        """Add the results of one run."""
        self.ran.update(body.tool for body in bodies if body.real)
        for one in records:
            if isinstance(one, r.ApprovalRequested):
                self._count(one.tool, "waited for approval")
            elif isinstance(one, r.CallSettled):
                self._count(one.tool, one.outcome.status)
                output = one.outcome.output
                if isinstance(output, str) and " don't fit: " in output:
                    self.refused.setdefault(one.tool, output)
                    self.report(f"tool {one.tool!r} refused arguments that its schema allows: {_quote(output)}")

    def _count(self, tool: str, what: str) -> None:
        self.outcomes.setdefault(tool, Counter())[what] += 1

    def why(self, tool: str) -> str:
        """Return a sentence on *tool*, whose body never ran."""
        outcomes = self.outcomes.get(tool, Counter())
        if not outcomes:
            return f"no world ran the body of tool {tool!r}: none of them called it"
        counts = ", ".join(f"{count} {what.replace('_', ' ')}" for what, count in outcomes.most_common())
        sentence = f"no world ran the body of tool {tool!r}, though worlds called it: {counts}"
        if tool in self.refused:
            sentence += f". It refused arguments that its schema allows: {_quote(self.refused[tool])}"
        if "waited for approval" in outcomes:
            sentence += ". Give `verdicts=approvals()`, so that calls are approved"
        return sentence


def _quote(text: str) -> str:
    return first_line(text)[:MOST_QUOTED]


REACH: ContextVar[Reach | None] = ContextVar("REACH", default=None)
"""The reach of the property whose worlds are being run; None outside of one."""


@contextmanager
def reaching() -> Iterator[Reach]:
    """Yield the reach of all worlds that run within the block."""
    reach = Reach()
    token = REACH.set(reach)
    try:
        yield reach
    finally:
        REACH.reset(token)
