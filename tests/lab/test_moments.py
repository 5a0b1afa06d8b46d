"""A run at one moment, two runs side by side, and a test for each journal."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import pytest
from lab.shop import STORIES, ask, make_agent, record, state_of

from agentloop import Agent, RunConfig, Runner, UserError, lab, tool
from agentloop.items import AssistantMessage
from agentloop.journal import FileJournal
from agentloop.lab._moments import moment_at, read_moment
from agentloop.lab._recording import Recording
from agentloop.records import HistoryReplaced
from agentloop.testing import FunctionModel, ScriptedModel, call, say

pytestmark = pytest.mark.real_clock


class Watcher:
    """An instrument that keeps the moment after each record, of the live state of the run."""

    def __init__(self) -> None:
        self.stream: Any = None
        self.moments: list[Any] = []
        self.records: list[Any] = []

    def on_record(self, one: Any) -> None:
        """Keep the moment."""
        self.records.append(one)
        state = self.stream._live.tree.log.state
        self.moments.append(read_moment(state, self.records, of=0))


@pytest.mark.scenario("LB-16")
@pytest.mark.parametrize("kind", ["answered", "parallel", "paused", "nested", "failed", "handed off", "unknown"])
async def test_a_moment_is_that_of_the_live_run(kind: str) -> None:
    """After each record, the fold of the log so far says what the run's own state said then."""
    watcher = Watcher()
    story = STORIES[kind]
    config = RunConfig(instruments=[watcher])
    async with Runner.run_streamed(make_agent(story.steps(3)), story.given, run_config=config) as stream:
        watcher.stream = stream
        async for _ in stream:
            pass
    assert len(watcher.moments) > 3
    for n, live in enumerate(watcher.moments, 1):
        assert moment_at(watcher.records, n).replace(of=0) == live


@pytest.mark.scenario("LB-16")
@pytest.mark.parametrize("kind", sorted(STORIES))
async def test_the_moments_of_a_page_are_those_of_the_run(kind: str) -> None:
    """What each record changes, one after the other, gives what `moment_at` tells of it."""
    records = await record(kind, 3)
    data = json.loads(json.dumps(lab.list_moments(records)))
    runs: dict[str, dict[str, Any]] = {}
    for n, (name, at, changed, gone) in enumerate(data["steps"], 1):
        for path in gone:
            del runs[path]
        for path, fields in changed.items():
            keep, added = fields.pop("history", (None, ()))
            run = runs.setdefault(path, {"lines": []})
            run["lines"][slice(keep, None) if keep is not None else slice(len(run["lines"]), None)] = added
            run.update(fields)
        moment = lab.moment_at(records, n)
        assert (name, at) == (moment.record, moment.at)
        assert set(runs) == {"/".join(one.path) for one in moment.runs}
        for one in moment.runs:
            run = runs["/".join(one.path)]
            assert [data["lines"][line] for line in run["lines"]] == list(one.history)
            assert data["lines"][run["tools"]] == ", ".join((*one.tools, *one.handoffs))
            for field in ("agent", "turn", "max_turns", "status", "requested", "tokens", "cost"):
                assert run[field] == getattr(one, field)
            calls = [data["calls"][call] for call in run["calls"]]
            assert [(call[0], call[1], data["lines"][call[2]], *call[3:]) for call in calls] == [
                (call.call_id, call.tool, call.arguments, call.state, call.since) for call in one.calls
            ]


async def test_a_history_that_was_replaced_is_that_of_the_moment() -> None:
    """Its lines stay up to the first that is another one."""
    records = await record("parallel", 3)
    end = next(n for n, one in enumerate(records) if type(one).__name__ == "BatchEnded")
    new = HistoryReplaced((), 1, 0.0, "compaction", 1, (AssistantMessage("shorter"),))
    replaced = [*records[: end + 1], new]
    step = lab.list_moments(replaced)["steps"][-1]
    keep, added = step[2][""]["history"]
    assert keep == 1
    assert [lab.list_moments(replaced)["lines"][line] for line in added] == ["model: shorter"]
    assert lab.moment_at(replaced, len(replaced)).runs[0].history == ("user: Help me.", "model: shorter")


async def test_a_moment_tells_what_waits_for_what() -> None:
    """A verdict that is missing, a body that runs, and the model's request."""
    records = await record("paused", 4)
    text = str(lab.moment_at(records, len(records)))
    assert 'pay-4 pay {"order": "o-4", "amount": 5} waits for a verdict, for ' in text
    assert "shop: turn 1, interrupted" in text
    records = await record("cancelled", 4)
    place = max(n for n, one in enumerate(records, 1) if type(one).__name__ == "CallStarted")
    moment = lab.moment_at(records, place)
    assert {(one.tool, one.state) for one in moment.runs[0].calls} >= {("hang", "runs")}
    first = next(n for n, one in enumerate(records, 1) if type(one).__name__ == "ModelRequested")
    assert "the model works on its request" in str(lab.moment_at(records, first))
    nested = await record("nested", 4)
    inner = max(n for n, one in enumerate(nested, 1) if one.path)
    moments = [lab.moment_at(nested, n) for n in range(1, inner)]
    assert max(len(one.runs) for one in moments) == 2
    assert "(in the run of call ask_helper-4)" in "".join(map(str, moments))


async def test_a_moment_shows_no_secret() -> None:
    """Arguments and outputs that a tool marks are masked."""

    @tool(secret=["word"], secret_output=True)
    async def unlock(word: str) -> str:
        """Unlock."""
        return "swordfish-out"

    agent = Agent("a", model=ScriptedModel([call("unlock", {"word": "swordfish-in"}), say("ok")]), tools=[unlock])
    records = (await Runner.run(agent, "go")).records
    assert "swordfish" not in "".join(str(lab.moment_at(records, n)) for n in range(1, len(records) + 1))


@pytest.mark.parametrize("n", [0, -1, 100])
async def test_a_record_that_is_not_there_is_refused(n: int) -> None:
    """The error says how many there are."""
    records = await record("answered", 1)
    with pytest.raises(UserError, match=f"expected from 1 to {len(records)}, got {n}"):
        lab.moment_at(records, n)


async def test_a_diff_tells_the_first_difference_and_what_follows() -> None:
    """Ids and times don't count."""
    one, two = await record("parallel", 3), await record("parallel", 3)
    assert str(lab.diff_runs(one, two)) == "the runs are the same"
    steps = [[ask("look_up", 3), ask("refund", 3, order="o-3", amount=9)], say("Enough.")]
    other = (await Runner.run(make_agent(steps), "Help me.")).records
    found = lab.diff_runs(one, other)
    assert found.first == 2
    text = str(found)
    assert '- turn 1, call: refund {"order": "o-3", "amount": 3}' in text
    assert '+ turn 1, call: refund {"order": "o-3", "amount": 9}' in text
    assert 'changed: refund {"order": "o-3", "amount": 3} is now {"order": "o-3", "amount": 9}' in text
    assert 'removed: refund {"order": "o", "amount": 1}' in text
    assert "ends with 'Done.', then 'Enough.'" in text
    failed = lab.diff_runs(one, await record("ended", 3))
    assert "ends with 'Done.', then ToolCallError(" in str(failed)


async def test_a_run_that_goes_on_longer_differs_at_its_end() -> None:
    """One of the two has nothing more."""
    one = (await Runner.run(make_agent([ask("pay", 1, order="o", amount=1)]), "go")).records
    state = state_of(list(one))
    state.approve(state.interruptions[0])
    two = (await Runner.run(make_agent([say("Paid.")]), state)).records
    text = str(lab.diff_runs(one, two))
    assert "- nothing more" in text
    assert "ends with no answer, then 'Paid.'" in text


async def test_a_test_runs_for_each_journal(tmp_path: Path) -> None:
    """Named after it; a folder without one is refused."""
    for name in ("one", "two"):
        async with FileJournal(tmp_path / f"{name}.journal") as journal:
            await Runner.run(make_agent([say("hi")]), "go", journal=journal)
    mark = lab.for_each_journal(tmp_path)
    assert [one.id for one in mark.args[1]] == ["one", "two"]
    for one in mark.args[1]:
        (await lab.compare(one.values[0], make_agent())).check()
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="holds no journal"):
        lab.for_each_journal(tmp_path / "empty")


@pytest.mark.scenario("LB-06")
@pytest.mark.slow
async def test_only_the_runs_under_way_are_in_memory() -> None:
    """However many there are: the rest is rows."""
    states = [state_of(await record("parallel", n)) for n in range(12)]
    gc.collect()
    gc.freeze()  # so that what other tests have left isn't looked through each time
    most = 0

    def count(*_: Any) -> None:
        nonlocal most
        gc.collect()
        most = max(most, sum(isinstance(one, Recording) for one in gc.get_objects()))

    agent = make_agent(FunctionModel(lambda request: say("ok")), instructions="New.")
    await lab.compare(states, agent, concurrency=2, observe=count)
    assert most <= 2
