"""Inputs of a batch whose runs have failed, tried again with new journals beside the old ones."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from kit.agents import make_usage

from agentloop import Agent, RunConfig, Runner, StateError, UsageLimitExceeded, UsageLimits, UserError
from agentloop.abc import Journal
from agentloop.items import UserMessage
from agentloop.journal import FileJournal, MemoryJournal
from agentloop.testing import FunctionModel, say

TEN = make_usage(10)
BAD, GOOD = "nonsense", '{"response": 2}'


class Counter:
    """An agent of numbers, whose answers may be none, and the requests for each input."""

    def __init__(self, **answers: str) -> None:
        self.answers = answers
        self.asked: list[str] = []
        model = FunctionModel(self.answer)
        self.agent: Agent[Any, int] = Agent("counter", model=model, output_type=int, output_retries=0)

    def answer(self, request: Any) -> Any:
        """Answer as told."""
        text = request.items[0].text
        self.asked.append(text)
        return say(self.answers[text], TEN)


class Kept(MemoryJournal):
    """A journal that stays when its run has ended."""

    async def aclose(self) -> None:
        """Stay open."""


def outputs(runs: Sequence[Any]) -> list[Any]:
    """Return the final output of each run, or the name of its error."""
    return [run.result.final_output if run.error is None else type(run.error).__name__ for run in runs]


@pytest.mark.real_clock
@pytest.mark.scenario("LM-05")
async def test_a_failed_input_is_begun_anew_beside_its_old_journal(tmp_path: Path) -> None:
    """Once a call, as often as it fails; the old journals stay as they are, and what has completed isn't run again."""
    counter, folder = Counter(one=GOOD, two=BAD), tmp_path / "runs"

    async def run(**options: Any) -> list[Any]:
        counter.asked.clear()
        return outputs(await Runner.run_many(counter.agent, ["one", "two"], limit=1, journals=folder, **options))

    assert await run(retry_failed=True) == [2, "ModelBehaviorError"]  # the first attempt: nothing has failed before
    first = (folder / "run-000001.journal").read_bytes()
    assert await run() == [2, StateError.__name__]
    assert counter.asked == []
    assert await run(retry_failed=True) == [2, "ModelBehaviorError"]
    assert counter.asked == ["two"]
    counter.answers["two"] = GOOD
    assert await run(retry_failed=True) == [2, 2]
    assert counter.asked == ["two"]
    assert await run(retry_failed=True) == [2, 2]
    assert await run() == [2, 2]  # the newest attempt counts
    assert counter.asked == []
    assert sorted(path.name for path in folder.iterdir()) == [
        "run-000000.journal",
        "run-000001.journal",
        "run-000001.try-2.journal",
        "run-000001.try-3.journal",
    ]
    assert (folder / "run-000001.journal").read_bytes() == first


@pytest.mark.scenario("LM-05")
async def test_a_run_that_can_be_resumed_is_resumed() -> None:
    """Stopped by a limit, it hasn't failed for good."""
    counter, journals = Counter(one=GOOD), dict[tuple[int, int], Journal]()

    def open_journal(index: int, given: Any, attempt: int) -> Journal:
        return journals.setdefault((index, attempt), Kept())

    async def run(requests: int) -> Any:
        config = RunConfig(limits=UsageLimits(requests=requests))
        [run] = await Runner.run_many(
            counter.agent, ["one"], journals=open_journal, retry_failed=True, run_config=config
        )
        return run

    assert isinstance((await run(0)).error, UsageLimitExceeded)
    assert (await run(1)).result.final_output == 2
    assert list(journals) == [(0, 1)]


@pytest.mark.scenario("LM-05")
async def test_what_failed_attempts_took_is_in_the_budget() -> None:
    """All of it is of the same batch."""
    counter, journals = Counter(one=BAD, two=GOOD), dict[tuple[int, int], Journal]()

    async def open_journal(index: int, given: Any, attempt: int) -> Journal:
        return journals.setdefault((index, attempt), Kept())

    def begin(**limits: Any) -> Any:
        options: Any = {"limit": 1, "journals": open_journal, "budget": UsageLimits(**limits)}
        return Runner.run_many(counter.agent, ["one", "two"], retry_failed=True, **options)

    await begin(requests=9)
    await (second := begin(requests=9))
    assert second.usage is not None
    assert (second.usage.requests, second.usage.total_tokens) == (3, 30)
    runs = await begin(requests=2)
    assert outputs(runs) == ["UsageLimitExceeded", 2]
    assert list(journals) == [(0, 1), (1, 1), (0, 2), (0, 3)]


@pytest.mark.scenario("LM-05")
async def test_iterators_of_items_are_read_once() -> None:
    """An input may be an iterator: each attempt begins with all of its items."""
    counter, journals = Counter(one=BAD), dict[int, Journal]()

    def open_journal(index: int, given: Any, attempt: int) -> Journal:
        return journals.setdefault(attempt, Kept())

    for _ in range(3):
        items = iter([UserMessage("one")])
        [run] = await Runner.run_many(counter.agent, [items], journals=open_journal, retry_failed=True)
        assert outputs([run]) == ["ModelBehaviorError"]
    assert counter.asked == ["one"] * 3


@pytest.mark.scenario("LM-05")
async def test_what_is_wrong_is_named(tmp_path: Path) -> None:
    """Options that don't fit, and a callable that gives the same journal for each attempt."""
    counter = Counter(one=BAD)
    with pytest.raises(UserError, match="retry_failed: needs journals="):
        Runner.run_many(counter.agent, ["one"], retry_failed=True)
    with pytest.raises(UserError, match="retry_failed: expected"):
        Runner.run_many(counter.agent, ["one"], retry_failed=1, journals=tmp_path)  # type: ignore[arg-type]
    same = Kept()
    options: Any = {"journals": lambda index, given, attempt: same, "retry_failed": True}
    await Runner.run_many(counter.agent, ["one"], **options)
    [run] = await Runner.run_many(counter.agent, ["one"], **options)
    assert "the next attempt of input 0 has the same journal" in str(run.error)
    assert counter.asked == ["one"]
    other = Counter(two=GOOD)
    [run] = await Runner.run_many(other.agent, ["two"], **options)
    assert "began with another one" in str(run.error)


@pytest.mark.real_clock
@pytest.mark.scenario("LM-05")
async def test_a_broken_journal_is_no_failed_run(tmp_path: Path) -> None:
    """Its error is given: what the run has done can't be known."""
    counter = Counter(one=GOOD)
    async with FileJournal(tmp_path / "run-000000.journal") as journal:
        await journal.append([b'{"no": "record"}'])
    [run] = await Runner.run_many(counter.agent, ["one"], journals=tmp_path, retry_failed=True)
    assert type(run.error).__name__ in ("JournalError", "StateError")
    assert counter.asked == []
