"""What the tests of stored and resumed runs share: models that answer by turn, copies of states, journals."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from agentloop import Agent, RunResult, RunState
from agentloop.items import UserMessage
from agentloop.journal import MemoryJournal
from agentloop.testing import ScriptedModel


def by_turn(*steps: Any) -> ScriptedModel:
    """Return a model that answers the run's n-th turn with the n-th step, however often and in whatever process."""

    def pick(request: Any) -> Any:
        assert 1 <= request.turn <= len(steps), f"there is no step for turn {request.turn}"
        step = steps[request.turn - 1]
        return step(request) if callable(step) else step

    return ScriptedModel([pick] * 200)


def copy_of(state: RunState, agent: Agent[Any, Any] | None = None, **options: Any) -> RunState:
    """Return what comes back of *state* when it is stored as text and read again."""
    return RunState.from_string(agent or state.agent, state.to_string(), **options)


def paused(result: RunResult[Any]) -> RunState:
    """Return the state of a run that waits for verdicts, as read from its text."""
    assert result.status == "interrupted"
    return copy_of(result.to_state())


def approved(result: RunResult[Any]) -> RunState:
    """Return the stored and restored state of a run that waits, with everything approved."""
    state = paused(result)
    for waiting in state.interruptions:
        state.approve(waiting)
    return state


def turns(records: Iterable[Any]) -> list[int]:
    """Return the numbers of the turns that began in the run itself."""
    return [record.turn for record in records if type(record).__name__ == "TurnStarted" and not record.path]


def texts_asked(agent: Agent[Any, Any], request: int = -1) -> list[str]:
    """Return the texts of the user messages of a request."""
    assert isinstance(agent.model, ScriptedModel)
    return [item.text for item in agent.model.requests[request].items if isinstance(item, UserMessage)]


async def journal_of(lines: Sequence[bytes]) -> MemoryJournal:
    """Return a journal that holds *lines*."""
    journal = MemoryJournal()
    if lines:
        await journal.append(lines)
    return journal


class Batches(MemoryJournal):
    """A journal that keeps what it was given batch by batch; *before* is awaited ahead of every write."""

    def __init__(self, before: Callable[[Sequence[bytes]], Any] | None = None) -> None:
        super().__init__()
        self.batches: list[list[bytes]] = []
        self._before = before

    async def append(self, records: Sequence[bytes]) -> None:
        """Keep *records* as one batch."""
        if self._before is not None:
            await self._before(records)
        await super().append(records)
        self.batches.append(list(records))
