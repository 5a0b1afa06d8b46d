"""Every log that a run can leave is accepted by `check` and by a replay: cut anywhere, cancelled, resumed."""

import itertools
from collections.abc import Sequence
from typing import Any

import anyio
import pytest
from exploration.generators import Seeded
from exploration.segments import many_segments

from agentloop import Agent, Runner, RunState, tool
from agentloop import records as r
from agentloop.journal import MemoryJournal
from agentloop.testing import FunctionModel, InvariantError, Observation, call, check, replay, say

BACKENDS: Any = ("asyncio", "trio")


@pytest.mark.slow
@pytest.mark.scenario("SM-17")
@pytest.mark.parametrize("share", range(8))
def test_generated_runs_of_many_segments(share: int) -> None:
    """Drawn runs are cancelled at drawn steps, cut at drawn records, and resumed; the log of each stage is accepted."""
    segments = sum(many_segments(Seeded(f"segments {number}")) for number in range(20 * share, 20 * share + 20))
    assert segments > 30


FOUND: dict[str, tuple[str, ...]] = {
    "a cleanup cut, a cancellation and a failure in one moment": ("segments 1713", "ci/573/segments", "third 227"),
    "a timeout and a cancellation in one moment": ("segments 1950", "segments 6238", "other 892", "other 4649"),
    "a body that cancelled itself, and a cancellation": ("other 72", "other 5911", "segments 5974"),
    "a body that cancelled itself, and a crash": ("segments 4744", "segments 6725", "other 2159", "other 3842"),
    "calls cancelled before their first step": ("segments 3797", "segments 3907", "segments 4940", "segments 7361"),
    "a cancellation in the first step after a resume": ("segments 7532", "other 1545"),
    "calls that waited too long behind one in its guardrails": ("segments 5681", "segments 6500", "other 2885"),
    "a crash before a call's start, of a rate": ("other 3828",),
    "a nested run that waits, and a cancellation": ("segments 2637", "other 2272", "other 5130"),
    "an answer of a guardrail or a callback, and a cancellation": (
        *("segments 3436", "segments 3481", "segments 4660", "other 2751", "new 3036", "new 3088"),
    ),
    "a failure that cancels a nested run's waiting call": ("other 567",),
    "a crash right after a cancellation, a nested run's turn or its last answer": (
        *("new 649", "new 2468", "new 2752", "new 3168", "other 4497", "fresh 71", "fresh 157"),
    ),
    "a cancellation and a deadline, and a cancellation behind a call's end": (*("new 958", "third 186", "third 1706"),),
    "a cancellation while a request is to be retried": ("other 502", "other 1670"),
    "input guardrails that settle beside a cancelled model call": ("alpha 1057", "alpha 1063", "alpha 3785"),
    "calls of several runs that are queued under shared limits": ("segments 6323", "ci/523/segments", "third 1473"),
    "room in a rate, and none under the cap": ("segments 6516",),
    "answers about approvals, and a cancellation": (
        *("alpha 2404", "alpha 2640", "alpha 3925", "alpha 5913", "beta 20", "beta 516"),
    ),
    "a run that saves its last turn, and a cancellation": ("alpha 877", "alpha 2575", "alpha 5115", "delta 31"),
    "a fatal error, and a cancellation": ("alpha 5353",),
    "a crash right after a cancellation of calls that have verdicts": ("beta 1642",),
    "calls of two runs, cancelled before their first steps": ("beta 2451",),
    "a call that gives its room back as the run ends": ("epsilon 102",),
    "arguments that were rewritten, and a cancellation": ("epsilon 166",),
}
"""What coincided, and the seeds of runs in which a search found a log that wasn't accepted."""


@pytest.mark.slow
@pytest.mark.scenario("SM-17")
@pytest.mark.parametrize("coincidence", FOUND)
def test_events_that_coincide(coincidence: str) -> None:
    """Several things happen in one moment of a run, and its log has them in the order in which they were noticed."""
    for seed in FOUND[coincidence]:
        many_segments(Seeded(seed))


@tool(idempotent=True)
async def look(n: int) -> str:
    """Look."""
    await anyio.sleep(0.01)
    return "seen"


@tool
async def charge(n: int) -> str:
    """Charge."""
    await anyio.sleep(0.02)
    return "charged"


async def answer(request: Any) -> Any:
    """Call three tools, one of which is an agent that calls two, then come to an end."""
    await anyio.sleep(0.01)
    if request.turn > 1:
        return say("over")
    calls = [call("charge", {"n": 1}, call_id="c"), call("look", {"n": 1}, call_id="l")]
    inner = str(request.items[0].text) == "sub"
    return calls if inner else [call("helper", {"input": "sub"}, call_id="h"), *calls]


HELPER: Agent[Any, Any] = Agent("helper", model=FunctionModel(answer), tools=[look, charge])
AGENT: Agent[Any, Any] = Agent("root", model=FunctionModel(answer), tools=[look, charge, HELPER.as_tool("helper")])


def accepted(records: Sequence[r.Record]) -> None:
    """Check that somebody who has only the log accepts it."""
    check(Observation(records=records, agent=AGENT))
    for backend in BACKENDS:
        assert replay(records, AGENT, backend=backend).records == tuple(records)


async def journal_of(lines: Sequence[bytes]) -> MemoryJournal:
    """Return a journal that holds *lines*."""
    journal = MemoryJournal()
    await journal.append(lines)
    return journal


class Stopping(MemoryJournal):
    """A journal that cancels the run as soon as it has so many records."""

    def __init__(self, count: int, scope: anyio.CancelScope) -> None:
        super().__init__()
        self._count, self._scope = count, scope

    async def append(self, records: Sequence[bytes]) -> None:
        """Keep *records*, and cancel."""
        await super().append(records)
        if len(self._records) >= self._count:
            self._scope.cancel()


@pytest.mark.slow
@pytest.mark.scenario("SM-17")
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_run_cut_at_every_record(backend: str) -> None:
    """A process dies after any record, and the next one after any of its own: each log is accepted."""

    async def leave() -> list[tuple[r.Record, ...]]:
        whole = MemoryJournal()
        await Runner.run(AGENT, "go", journal=whole)
        lines = await whole.read()
        logs = []
        for cut in range(2, len(lines)):
            journal = await journal_of(lines[:cut])
            logs.append(tuple((await RunState.from_journal(AGENT, journal)).records))
            await Runner.resume(AGENT, journal)
            resumed = await journal.read()
            for again in (cut + 1 + (cut * 7) % max(len(resumed) - cut - 1, 1), len(resumed)):
                second = await journal_of(resumed[:again])
                if again < len(resumed):
                    await Runner.resume(AGENT, second)
                logs.append(tuple((await RunState.from_journal(AGENT, second)).records))
        return logs

    for log in anyio.run(leave, backend=backend):
        accepted(log)


@pytest.mark.slow
@pytest.mark.scenario("SM-17")
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_run_cancelled_at_every_record_and_resumed(backend: str) -> None:
    """A deploy cancels a run after any record, and again when it has gone on for a while: each log is accepted."""

    async def leave(count: int) -> list[tuple[r.Record, ...]]:
        logs: list[tuple[r.Record, ...]] = []
        lines: list[bytes] = []
        for more in (count, 6, 1000):
            with anyio.CancelScope() as scope:
                journal = Stopping(len(lines) + more, scope)
                journal._records = list(lines)
                await (Runner.resume(AGENT, journal) if lines else Runner.run(AGENT, "go", journal=journal))
            lines = journal._records
            logs.append(tuple((await RunState.from_journal(AGENT, await journal_of(lines))).records))
            if logs[-1][-1].status == "completed":  # type: ignore[union-attr]  # a run always ends
                break
        return logs

    for count in itertools.count(3, 2):
        logs = anyio.run(leave, count, backend=backend)
        for log in logs:
            accepted(log)
        if len(logs) == 1:
            return


def test_a_segment_that_never_ended_is_a_fault_of_a_run_that_was_watched() -> None:
    """Who has the run's result or error knows that its process didn't die: then a missing end is one."""
    started = r.RunStarted((), 0, 0.0, run_id="r", agent="root", input=(), shown=(), max_turns=10)
    check(Observation(records=[started]))
    with pytest.raises(InvariantError, match="an entry of run"):
        check(Observation(records=[started], error=ValueError("x")))
