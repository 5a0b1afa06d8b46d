"""Notes for the model about the limits of its run: how many turns are left, and that it has to answer now."""

from __future__ import annotations

from typing import Literal

from agentloop._engine.runtime.live_run import LiveRun
from agentloop.items import UserMessage
from agentloop.records import HistoryReplaced

ANSWER_NOW = "A limit of this run is reached, and you have no tools any more. Answer now with what you have."


def may_answer_at_limit(run: LiveRun) -> bool:
    """Tell whether the run has one more turn for its final output, once a limit leaves it no other."""
    return run.settings.config.at_limit == "answer" and not run.state.closing


def answer_at_limit(run: LiveRun, limit: Literal["max_turns", "usage_limits"]) -> None:
    """Leave the run one turn, without tools, for its final output; tell the model so."""
    run.stopped_by = None
    _tell(run, limit, ANSWER_NOW)


def nudge(run: LiveRun, share: float) -> None:
    """Tell the model once how many turns are left, if that *share* of all turns is over."""
    state = run.state
    if state.max_turns is None or state.nudged or state.closing:
        return
    left = state.max_turns - state.turn
    if left == 1 or state.turn >= share * state.max_turns:
        _tell(run, "turns_left", f"{left} turn{'s' * (left > 1)} left. Give your final answer by then.")


def _tell(run: LiveRun, reason: str, text: str) -> None:
    note = HistoryReplaced(*run.here(), reason, len(run.state.history), (UserMessage(text),), added=True)
    run.tree.log.append(note)
