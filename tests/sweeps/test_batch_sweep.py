"""Batches of runs, each cancelled at every step: every run is joined, and the same call then finishes the batch.

After each cancellation: no task is left, every body that began has ended, every journal is closed, the caller's task
has the cancellations it was given. A second batch with the journals of the first one gives all answers, and no body has
run twice.
"""

from collections import Counter
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import attrs
import pytest
from sweeps.stepping import COMBINATIONS, Kind, Stepped, run_once

from agentloop import Agent, Runner, tool
from agentloop.items import ToolOutput, UserMessage
from agentloop.journal import MemoryJournal
from agentloop.model_events import ModelRequest
from agentloop.testing import ScriptedModel, call, say

INPUTS = ("a", "b", "c")


class KeptJournal(MemoryJournal):
    """A journal whose records stay when it is closed, which takes its time; `open` tells whether it is in use."""

    open = False

    async def aclose(self) -> None:
        """Note the end."""
        await anyio.sleep(0.01)
        self.open = False


@attrs.define
class Case:
    """The counts and journals of a batch that may be run twice."""

    begun: Counter[str] = attrs.field(factory=Counter)
    ended: Counter[str] = attrs.field(factory=Counter)
    journals: dict[int, KeptJournal] = attrs.field(factory=dict)

    def journal(self, index: int, given: Any) -> KeptJournal:
        """Return the journal of one run."""
        found = self.journals.setdefault(index, KeptJournal())
        assert not found.open
        found.open = True
        return found

    def agent(self) -> Agent[Any, Any]:
        """Return an agent with one body that waits."""

        @tool
        async def work(name: str) -> str:
            """Work."""
            self.begun[name] += 1
            try:
                await anyio.sleep(0.02)
                await anyio.lowlevel.checkpoint()
            finally:
                self.ended[name] += 1
            return f"did {name}"

        def rule(request: ModelRequest) -> Any:
            name = next(item.text for item in request.items if isinstance(item, UserMessage))
            done = any(isinstance(item, ToolOutput) for item in request.items)
            return say(f"answer {name}") if done else call("work", {"name": name})

        return Agent("swept", model=ScriptedModel([rule] * 20), tools=[work])


async def awaited(case: Case, **options: Any) -> list[str]:
    """Await a batch under a cap."""
    runs = await Runner.run_many(case.agent(), INPUTS, limit=2, journals=case.journal, **options)
    return [run.result.final_output for run in runs]


async def iterated(case: Case, **options: Any) -> list[str]:
    """Iterate a batch in order, slowly."""
    answers = []
    batch = Runner.run_many(case.agent(), iter(INPUTS), limit=2, journals=case.journal, ordered=True, **options)
    async with batch:
        async for run in batch:
            await anyio.lowlevel.checkpoint()
            answers.append(run.result.final_output)
    return answers


def check(seen: Stepped, case: Case, kind: Kind) -> None:
    """Assert what must hold whenever the cancellation came."""
    where = f"cancelled at step {seen.cancelled_at} of {seen.steps}"
    assert seen.tasks_left == [], where
    assert case.begun == case.ended, where
    assert not any(journal.open for journal in case.journals.values()), where
    assert seen.cancelling == int(kind == "native" and seen.cancelled), f"{where}: cancelling() is {seen.cancelling}"
    assert seen.error is None, f"{where}: {seen.error!r}"
    assert not seen.cancelled or seen.cancelled_at is not None, "cancelled although nobody asked for it"


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "kind"), COMBINATIONS)
@pytest.mark.parametrize("program", [awaited, iterated], ids=lambda program: program.__name__)
def test_batch_cancelled_at_any_step_joins_and_is_finished_by_the_same_call(
    backend: Any, kind: Kind, program: Any
) -> None:
    """The sweep cancels at one step after another, until the batch ends before its step comes."""
    at = cancelled = 0
    answers = [f"answer {name}" for name in INPUTS]
    while True:
        case = Case()
        seen = run_once(backend, partial(program, case), at=at, kind=kind)
        check(seen, case, kind)
        cancelled += seen.cancelled
        if seen.cancelled_at is None:
            assert seen.value == answers
            break
        again = run_once(backend, partial(program, case), at=None)
        check(again, case, kind)
        assert again.value == answers, f"after {at} steps"
        assert set(case.begun.values()) <= {1}, f"after {at} steps: {case.begun}"
        at += 1
    assert cancelled > 20
