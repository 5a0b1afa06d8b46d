"""Generated runs with background calls: over all their segments, each gets one result, from a body that runs once.

The worlds are those of `exploration.background`. The run is cancelled at any step, its log is cut at any record, and it
is resumed, on either event loop. All of that is a function of a seed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from exploration.background import ENDED, RERUNNABLE, draw_background
from exploration.counts import Counts
from exploration.generators import Seeded
from exploration.segments import Segments, judge
from kit.results import check_history

from agentloop import records as r
from agentloop.exceptions import AgentLoopError
from agentloop.model_events import ModelRequest
from agentloop.testing.simulation.event_loop import BACKENDS, Deadlock
from agentloop.testing.simulation.runs import CancelAt, WorldRun
from agentloop.tracing import read_timeline

MOMENTS = 60
"""A cancellation comes before one of this many steps of a segment."""


# ---------------------------------------------------------------------------------------------- invariants


def judge_process(run: WorldRun, kept: int) -> None:
    """Judge one process, which found *kept* records."""
    assert not isinstance(run.error, Deadlock), run.error
    assert run.error is None or isinstance(run.error, AgentLoopError | ValueError | LookupError), repr(run.error)
    assert not run.left, run.left
    for body in run.bodies:
        assert body.ended is not None, f"{body.call_id} never ended"
        ends = [place for place, one in enumerate(run.records) if isinstance(one, r.RunEnded) and one.path == body.path]
        assert any(place >= body.ended for place in ends if place >= body.began), f"{body.call_id} outlived its segment"
    for request in run.requests:
        check_history(request.items, in_order=False)


def judge_log(records: Sequence[r.Record], requests: Sequence[ModelRequest], most: int) -> None:
    """Judge the whole log: one result for each call, from one body."""
    background = [(one.path, one.call_id) for one in records if isinstance(one, r.CallSettled) and one.background]
    added = [one for one in records if isinstance(one, r.InputAdded) and one.call_id is not None]
    results = Counter((one.path, one.call_id) for one in added)
    assert max(results.values(), default=0) <= 1, f"several results: {results}"
    assert set(results) <= set(background)
    completed = {one.path for one in records if isinstance(one, r.RunEnded) and one.status == "completed"}
    shown = Counter((one.path, one.id) for one in records if isinstance(one, r.InputShown))
    withdrawn = Counter((one.path, one.id) for one in records if isinstance(one, r.InputWithdrawn))
    names = {(one.path, one.call_id): one.tool for one in records if isinstance(one, r.CallStarted)}
    last = {(one.path, one.id): one.turn for one in records if isinstance(one, r.InputWithdrawn)}
    for path, call_id in background:
        assert path not in completed or results[path, call_id] == 1, f"no result of {call_id}, and the run completed"
    for one in added:
        ends = shown[one.path, one.id] + withdrawn[one.path, one.id]
        assert ends <= 1, f"{one.id} has several ends"
        assert "gave no output" not in str(one.items), f"{one.id} is the result of a call that was cut"
        assert one.path not in completed or ends == 1, f"{one.id} waits, and the run completed"
        waited_for = names.get((one.path, one.call_id or "")) not in ENDED
        early = waited_for and last.get((one.path, one.id), most) < most
        assert not early, f"{one.id} is withdrawn, and the run has a turn for it"
        for request in requests:
            if request.path == one.path:
                told = [item for item in request.items if item == one.items[0]]
                assert len(told) <= shown[one.path, one.id], f"{one.id} is shown too often"


def judge_bodies(run: WorldRun, kept: int) -> None:
    """Judge the bodies of one process: none runs of a call that the log it found says has started."""
    began = Counter((one.path, one.call_id) for one in run.bodies if one.tool not in RERUNNABLE)
    earlier = {(one.path, one.call_id) for one in run.records[:kept] if isinstance(one, r.CallStarted)}
    again = [one for one, count in began.items() if count > 1 or one in earlier]
    assert not again, f"bodies that ran again: {again}"


def run_segments(seed: int) -> Segments:
    """Run the world of *seed* in some segments, and judge the log after each."""
    chance = Seeded(f"background {seed}")
    run = Segments(draw_background(chance), streamed=chance.one_in(3))
    for _ in range(chance.whole(1, 5)):
        before = len(run.held)
        cancel = None
        if chance.one_in(2):
            cancel = CancelAt(chance.whole(0, MOMENTS), chance.pick(["scope", "native"]))
        count = run.run_segment(chance.pick(BACKENDS), cancel, Counts())
        judge_process(run.runs[-1], before)
        judge_log(run.held, run.runs[-1].requests, run.world.options["max_turns"])
        judge_bodies(run.runs[-1], before)
        if chance.one_in(3) and count > max(before, 1):
            run.cut(chance.whole(max(before, 1), count - 1))
        if not run.held:
            return run
        judge(run)
        read_timeline(run.held)
        if run.over:
            break
    return run


@pytest.mark.timeout(300)
@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in range(1, 5))])
def test_segments(part: int) -> None:
    """Whatever ends a segment, the next one goes on with the log: the worlds of twenty seeds."""
    runs = [run_segments(20 * part + number) for number in range(20)]
    results = [one for run in runs for one in run.held if isinstance(one, r.InputAdded) and one.call_id is not None]
    assert len(results) > 10
    assert max(len(run.runs) for run in runs) > 2
