"""How much of a failed run's journal stays, so that the run can be continued: what came before its failure.

What is taken away are the run's end and what led to it: the answer of the model that couldn't be used, or the ends of
the calls that failed. Without its end a call is in doubt, as after a crash in its body, and its tool says what is to be
done. So the run isn't in a state that no crash could have left.

Never taken away is what a person gave, what has succeeded, and what a call began with: effects that the log knows
aren't forgotten.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from agentloop._storage.state_codec import read_lines
from agentloop.agents import Agent
from agentloop.exceptions import StateError
from agentloop.outcomes import SUCCESSES
from agentloop.postgres._run_rows import OutcomePart
from agentloop.state import RunState

_BESIDE = frozenset(
    {
        *("run_ended", "guardrail_settled", "answered", "batch_ended", "cancel_requested", "cleanup_cut"),
        *("deadline_passed", "model_failed"),
    }
)
"""Records that follow a failure, or judge: the run makes them again."""


class _FailurePart(msgspec.Struct):
    kind: str = ""
    path: tuple[str, ...] = ()
    failed: bool = False
    outcome: OutcomePart = msgspec.field(default_factory=OutcomePart)


_read = msgspec.json.Decoder(_FailurePart).decode


def count_before_failure(records: Sequence[bytes], name: str) -> int:
    """Return how many of *records*, those of a run that has failed for good, can be continued.

    Raises:
        StateError: none of them can, without what has succeeded; or they aren't a run's.
    """
    kept = len(records) - 1
    while kept > 0:
        record = _read(records[kept - 1])
        if record.kind == "model_responded" and not record.path:
            kept -= 1
            break
        ended = record.kind == "call_settled" and record.outcome.status not in SUCCESSES
        if not (ended or record.kind in _BESIDE or (record.kind == "body_ended" and record.failed)):
            break
        kept -= 1
    state = RunState(Agent("undecided"), read_lines(records[:kept], None).records)
    if state._has_failed:
        raise StateError(
            f"{name} can't be tried again: what followed its failure has succeeded, and would be forgotten. "
            "Fork it in front of the failure, as another run"
        )
    return kept
