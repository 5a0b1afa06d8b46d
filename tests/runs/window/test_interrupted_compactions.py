"""A compaction that is cancelled, crashes, pauses or runs out of time leaves the old history or the new one; a replay
takes it from the log."""

import re
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from kit.windows import compactions, make_agent, reader, summaries

from agentloop import ClearToolOutputs, ContextPolicy, DropOldest, RunConfig, Runner, RunTimeoutError, Summarize
from agentloop import records as r
from agentloop import testing as t
from agentloop.abc import Model, ModelProvider
from agentloop.exceptions import ReplayDivergence
from agentloop.journal import MemoryJournal
from agentloop.testing import FunctionModel, replay, say, wait

WINDOW = 4_000
POLICIES: dict[str, Callable[[], ContextPolicy]] = {
    "cleared": lambda: ContextPolicy(window=WINDOW, steps=[ClearToolOutputs(keep_last=1)]),
    "summarized": lambda: ContextPolicy(window=WINDOW, steps=[Summarize(keep_turns=1)]),
    "function": lambda: ContextPolicy(window=WINDOW, steps=[drop]),
}


async def drop(view: Any) -> Any:
    """Drop the oldest turns, after a wait."""
    await anyio.lowlevel.checkpoint()
    return DropOldest(keep_turns=1).shorten(view)


def check_histories(records: Any) -> None:
    """Check that each summary was used or is of a run segment that ended early: paid at most once more."""
    made = [one.path for one in summaries(records)]
    assert len(set(made)) == len(made)
    for path in made:
        asked = [one for one in records if one.path == path and isinstance(one, r.ModelRequested)]
        segments = [one for one in records if one.path == path and isinstance(one, r.RunStarted | r.RunResumed)]
        assert len(asked) <= len(segments) <= 2


@pytest.mark.slow
@pytest.mark.scenario("CX-02")
@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
def test_a_run_cancelled_at_any_step_of_a_compaction_is_whole(policy: Any, streamed: bool) -> None:
    """Nothing outlives it, and its log is whole."""
    swept = t.kill_sweep(
        lambda: make_agent(policy(), reader(5)), streamed=streamed, check=lambda run: check_histories(run.records)
    )
    assert swept.cancelled > 20


@pytest.mark.slow
@pytest.mark.scenario("CX-02")
@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_a_run_that_crashes_at_any_write_of_a_compaction_goes_on(policy: Any) -> None:
    """With the old history or the new one; it ends as without the crash, and a summary is paid at most once more."""
    swept = t.crash_sweep(lambda: make_agent(policy(), reader(5)), check=lambda run: check_histories(run.records))
    assert swept.points > 20


@pytest.mark.scenario("CX-02")
async def test_a_summary_that_a_crash_has_left_is_used(tmp_path: Any) -> None:
    """It was paid; the history wasn't replaced yet."""
    journal = MemoryJournal()
    model = reader(5)
    result = await Runner.run(make_agent(POLICIES["summarized"](), model), "Read.", journal=journal)
    lines = await journal.read()
    ended = next(n for n, one in enumerate(result.records) if one.path and isinstance(one, r.RunEnded))
    for cut in (ended, ended + 1):
        left = MemoryJournal()
        await left.append(lines[: len(lines) - len(result.records) + cut])
        again = reader(5)
        resumed = await Runner.resume(make_agent(POLICIES["summarized"](), again), left)
        assert resumed.final_output == "done"
        assert len(summaries(resumed.records)) == len(summaries(result.records))
        assert resumed.usage.requests == result.usage.requests
        first = compactions(resumed.records)[0]
        assert first.items == compactions(result.records)[0].items


class Provider(ModelProvider):
    """A provider of models that say the same."""

    def get_model(self, name: str) -> Model:
        return FunctionModel(lambda request: say("Kept."))


class OtherModel(FunctionModel):
    """A model of another name."""


OTHERS: dict[str, Callable[[], Summarize]] = {
    "items": lambda: Summarize(keep_turns=0),
    "instructions": lambda: Summarize(keep_turns=1, instructions="You summarize pages."),
    "model": lambda: Summarize(keep_turns=1, model=OtherModel(lambda request: say("Other."))),
    "name of a model": lambda: Summarize(keep_turns=1, model="kept"),
}


@pytest.mark.scenario("CX-02")
@pytest.mark.parametrize("step", OTHERS.values(), ids=OTHERS)
async def test_a_summary_of_something_else_is_not_used(step: Any) -> None:
    """It would stand for items that its model never saw, or in the words of other instructions or another model."""
    journal = MemoryJournal()
    result = await Runner.run(make_agent(POLICIES["summarized"](), reader(5)), "Read.", journal=journal)
    lines = await journal.read()
    ended = next(n for n, one in enumerate(result.records) if one.path and isinstance(one, r.RunEnded))
    left = MemoryJournal()
    await left.append(lines[: len(lines) - len(result.records) + ended + 1])
    policy = ContextPolicy(window=WINDOW, steps=[step()])
    config = RunConfig(context=policy, model_provider=Provider())
    resumed = await Runner.resume(make_agent(None, reader(5)), left, run_config=config)
    assert resumed.final_output == "done"
    old, new = [one.path for one in summaries(resumed.records)][:2]
    assert old != new
    made = next(one for one in resumed.records if one.path == new and isinstance(one, r.ModelResponded))
    assert resumed.records.index(made) < resumed.records.index(compactions(resumed.records)[0])


@pytest.mark.scenario("CX-02", "CX-04")
async def test_a_journal_whose_summaries_have_shorter_ids_is_read() -> None:
    """Without a digest, as they were written before: a replay follows, and a resumed run asks for its summary."""
    agent, journal = make_agent(POLICIES["summarized"](), reader(5)), MemoryJournal()
    result = await Runner.run(agent, "Read.", journal=journal)
    lines = [re.sub(rb"(summary-\d+-\d+-\d+)-[0-9a-f]{8}", rb"\1", line) for line in await journal.read()]
    assert lines != await journal.read()
    whole = MemoryJournal()
    await whole.append(lines)
    replayed = await anyio.to_thread.run_sync(lambda: replay(whole, agent))
    assert replayed.result is not None
    assert replayed.result.to_input_list() == result.to_input_list()
    ended = next(n for n, one in enumerate(result.records) if one.path and isinstance(one, r.RunEnded))
    left = MemoryJournal()
    await left.append(lines[: len(lines) - len(result.records) + ended + 1])
    resumed = await Runner.resume(agent, left)
    assert resumed.final_output == "done"
    assert len(summaries(resumed.records)) == len(summaries(result.records)) + 1


@pytest.mark.scenario("CX-02")
async def test_a_summary_that_was_cut_is_asked_for_again(run_mode: Any) -> None:
    """By the run that goes on: the cut request stays in the log, and in the usage."""
    journal = MemoryJournal()
    slow = FunctionModel(lambda request: [wait(60), say("Pages.")])
    policy = ContextPolicy(window=WINDOW, steps=[Summarize(model=slow, keep_turns=1)])
    agent = make_agent(policy, reader(5))
    with pytest.raises(RunTimeoutError):
        await run_mode(agent, "Read.", journal=journal, run_config=RunConfig(timeout=0.2))
    slow._fn = lambda request: say("Pages.")
    result = await Runner.resume(agent, journal, run_config=RunConfig(timeout=60))
    assert result.final_output == "done"
    check_histories(result.records)
    first = summaries(result.records)[0].path
    kinds = [type(one) for one in result.records if one.path == first]
    assert kinds[-5:] == [r.RunResumed, r.TurnStarted, r.ModelRequested, r.ModelResponded, r.RunEnded]
    assert compactions(result.records)


@pytest.mark.scenario("CX-04")
@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_a_replay_takes_the_history_from_the_log(policy: Any) -> None:
    """No step is tried and no model is asked; the log is the same, and so is the history."""
    result = Runner.run_sync(make_agent(policy(), reader(7)), "Read.")
    assert len(compactions(result.records)) >= 2

    def never(*args: Any) -> Any:
        raise AssertionError("a replay asked it")

    steps = [never, Summarize(model=FunctionModel(never))]
    other = make_agent(ContextPolicy(window=1, steps=steps), FunctionModel(never))
    again = replay(result, other)
    assert again.records == result.records
    assert again.result is not None
    assert again.result.to_input_list() == result.to_input_list()
    assert again.result.context_tokens == result.context_tokens


@pytest.mark.scenario("CX-04")
@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_a_log_that_ends_in_a_compaction_is_replayed_up_to_its_end(policy: Any) -> None:
    """Wherever a crash has cut it."""
    agent = make_agent(policy(), reader(5))
    records = Runner.run_sync(agent, "Read.").records
    for cut in range(1, len(records)):
        assert replay(records[:cut], agent).records == records[:cut]


@pytest.mark.scenario("CX-04")
@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
@pytest.mark.slow
def test_a_run_that_was_cancelled_in_a_compaction_is_replayed(policy: Any) -> None:
    """At each of its steps."""

    def check(run: Any) -> None:
        agent = make_agent(policy(), reader(5))
        if run.records:
            assert replay(run.records, agent).records == tuple(run.records)

    t.kill_sweep(lambda: make_agent(policy(), reader(5)), check=check, combinations=[("asyncio", "scope")])


@pytest.mark.scenario("CX-04")
@pytest.mark.filterwarnings("ignore:replay.mode=:DeprecationWarning")
def test_a_replay_goes_on_live_with_the_policy() -> None:
    """`resume` and `what_if` follow the log first."""
    agent = make_agent(POLICIES["summarized"](), reader(7))
    result = Runner.run_sync(agent, "Read.")
    other = make_agent(POLICIES["cleared"](), reader(9))
    branched = replay(result, agent, mode="what_if", turn=6, then=other)
    assert branched.result is not None
    assert branched.result.final_output == "done"
    steps = [one.steps for one in compactions(branched.records)]
    assert steps[0] == ("Summarize",)
    assert steps[-1] == ("ClearToolOutputs",)


def test_a_replay_without_a_policy_says_what_the_log_has() -> None:
    """The definitions have changed."""
    result = Runner.run_sync(make_agent(POLICIES["cleared"](), reader(7)), "Read.")
    with pytest.raises(ReplayDivergence, match=r"HistoryReplaced \(compaction\)"):
        replay(result, make_agent(None, reader(7)))


@pytest.mark.scenario("CX-04")
def test_a_run_that_the_policy_ended_is_replayed() -> None:
    """By the error in its log."""
    agent = make_agent(ContextPolicy(window=1_500, steps=[]), reader(5))
    journal = MemoryJournal()
    with pytest.raises(Exception, match="too long") as caught:
        Runner.run_sync(agent, "Read.", journal=journal)
    records = caught.value.run_data.records  # type: ignore[attr-defined]
    again = replay(records, agent)
    assert again.records == tuple(records)
    assert "too long" in str(again.error)


@pytest.mark.scenario("CX-05", "CX-04")
def test_a_refused_request_is_replayed() -> None:
    """With its second request in the same turn."""
    policy = ContextPolicy(window=99_000, steps=[Summarize(keep_turns=1), DropOldest(keep_turns=1)])
    agent = make_agent(policy, reader(5, window=3_500))
    result = Runner.run_sync(agent, "Read.")
    assert any(isinstance(one, r.ModelFailed) for one in result.records)
    assert replay(result, agent).records == result.records
