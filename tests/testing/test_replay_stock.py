"""Runs of generated worlds, journaled on stock event loops in real time, come out the same on both backends."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import pytest
from testing.recording import Recording, lines, record_worlds

from agentloop.exceptions import ReplayDivergence
from agentloop.journal import FileJournal
from agentloop.testing.replaying import replay

BACKENDS: Any = ("asyncio", "trio")
AT_ONCE = 10
"""Worlds that share a loop: enough that they get in each other's way."""
RUNS = 100
"""On each backend."""
UNTOLD = 1
"""How many may diverge: `docs/how-to/replay.md` has the coincidences that are known; 1 of 3,122 met one."""


def kept(path: Path) -> list[bytes]:
    """Return the records of a journal, without its header."""

    async def read() -> list[bytes]:
        async with FileJournal(path) as journal:
            return (await journal.read())[1:]

    return anyio.run(read)


def problems(recording: Recording, wanted: list[bytes]) -> list[str]:
    """Return in words where the replays of *recording* aren't what its journal holds."""
    found = []
    for backend in BACKENDS:
        try:
            assert recording.journal is not None
            replayed = replay(recording.journal, recording.agent, run_config=recording.config, backend=backend)
        except ReplayDivergence as divergence:
            found.append(f"{recording.journal} on {backend}: {divergence}")
        else:
            if lines(replayed.records) != wanted:
                found.append(f"{recording.journal} on {backend}: other records")
    return found


@pytest.mark.timeout(120)
@pytest.mark.parametrize("recorded_on", BACKENDS)
@pytest.mark.slow
def test_runs_recorded_on_a_stock_loop_replay_on_both_backends_with_equal_records(
    recorded_on: Any, tmp_path: Path
) -> None:
    """The runs have faults, timeouts, nested runs, guardrails, handoffs, sessions, approvals and cancellations."""
    seen: Counter[str] = Counter()
    found: list[str] = []
    first = RUNS * BACKENDS.index(recorded_on)
    for seed in range(first, first + RUNS, AT_ONCE):
        for recording in record_worlds(range(seed, seed + AT_ONCE), recorded_on, tmp_path):
            assert recording.journal is not None
            wanted = kept(recording.journal)
            seen.update({what for line in wanted for what in seen_in(json.loads(line))})
            seen["run"] += bool(wanted)
            if wanted:
                found += problems(recording, wanted)
    diverged = {line.partition(" on ")[0] for line in found}
    assert len(diverged) <= UNTOLD, "\n".join(found)
    assert not [line for line in found if line.endswith("other records")]
    assert seen["run"] >= RUNS - 5
    missing = [what for what in WANTED if not seen[what]]
    assert not missing, seen


WANTED = (
    *("cancelled by caller", "cancelled by parent", "cancelled by sibling", "cancelled by tool"),
    *("failed", "rejected", "replayed", "skipped", "succeeded", "timed_out"),
    *("nested", "handed_off", "session_saved", "guardrail_settled", "verdict_given", "run_resumed", "model_failed"),
    *("ended cancelled", "ended completed", "ended failed", "ended interrupted"),
)


def seen_in(record: Any) -> list[str]:
    """Return what a record is an example of."""
    found = [record["kind"], *(["nested"] if record["path"] else [])]
    if record["kind"] == "call_settled":
        outcome = record["outcome"]
        by = outcome.get("cancelled_by")
        found.append(f"cancelled by {by}" if by else outcome["status"])
    if record["kind"] == "run_ended":
        found.append(f"ended {record['status']}")
    return found
