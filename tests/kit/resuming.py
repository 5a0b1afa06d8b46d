"""Pauses, verdicts, stored states and journals."""

from collections.abc import Callable, Sequence
from typing import Any

import anyio
import pytest

from agentloop import Agent, Runner, RunResult, RunState
from agentloop.journal import MemoryJournal
from kit.agents import Run

# ---------------------------------------------------------------------------------------------- pauses

WAYS = ("direct", "json", "journal")
in_every_way = pytest.mark.parametrize("way", WAYS)
"""A run resumes from the state itself, from its JSON text, or from the run's journal."""


class Pauses:
    """Runs an agent and gets the state to resume from in one of the `WAYS`."""

    def __init__(self, run: Run, way: str) -> None:
        self._run = run
        self.way = way
        self.journal = MemoryJournal() if way == "journal" else None

    async def run(self, agent: Any, given: Any = "go", **options: Any) -> RunResult[Any]:
        """Run *agent* on input or on a state."""
        if self.journal is not None:
            options.setdefault("journal", self.journal)
        return await self._run(agent, given, **options)

    async def state(self, agent: Any, source: Any) -> RunState:
        """Return the state to resume from, made of *source*: a result, or a state."""
        state = source if isinstance(source, RunState) else source.to_state()
        if self.way == "direct":
            return state
        if self.journal is not None:
            return await RunState.from_journal(agent, self.journal)
        return copy_state(state, agent)

    async def resume(self, agent: Any, source: Any, decide: Callable[[RunState], None], **options: Any) -> Any:
        """Resume from *source* once *decide* has decided on its state."""
        state = await self.state(agent, source)
        decide(state)
        return await self.run(agent, state, **options)


# ---------------------------------------------------------------------------------------------- verdicts


def approve(*calls: Any, **options: Any) -> Callable[[RunState], None]:
    """Return a function that approves *calls* of a state, or all that wait."""

    def decide(state: RunState) -> None:
        for call in calls or state.interruptions:
            state.approve(call, **options)

    return decide


def reject(*calls: Any, **options: Any) -> Callable[[RunState], None]:
    """Return a function that rejects *calls* of a state, or all that wait."""

    def decide(state: RunState) -> None:
        for call in calls or state.interruptions:
            state.reject(call, **options)

    return decide


def decide_nothing(state: RunState) -> None:
    """Leave every call of *state* waiting."""


# ---------------------------------------------------------------------------------------------- stored states


def copy_state(state: RunState, agent: Agent[Any, Any] | None = None, **options: Any) -> RunState:
    """Return what another process reads from the JSON text of *state*; fail if it is not equal."""
    again = RunState.from_string(agent or state.agent, state.to_string(), **options)
    assert again == state
    return again


def restore_paused(result: RunResult[Any]) -> RunState:
    """Return the state of a run that waits for verdicts, as read from its text."""
    assert result.status == "interrupted"
    return copy_state(result.to_state())


def restore_approved(result: RunResult[Any]) -> RunState:
    """Return the state of a run that waits, as read from its text, with every call approved."""
    state = restore_paused(result)
    approve()(state)
    return state


# ---------------------------------------------------------------------------------------------- journals


async def make_journal(lines: Sequence[bytes]) -> MemoryJournal:
    """Return a journal that holds *lines*."""
    journal = MemoryJournal()
    if lines:
        await journal.append(lines)
    return journal


async def cut_in_call(agent: Agent[Any, Any], given: Any, call_id: str, **options: Any) -> RunState:
    """Run *agent* on *given*; return the state that is left if the process dies as the call has just started."""
    journal = MemoryJournal()
    await Runner.run(agent, given, journal=journal, **options)
    lines, quoted = await journal.read(), f'"{call_id}"'.encode()
    start = next(n for n, line in enumerate(lines) if b'"call_started"' in line and quoted in line)
    return await RunState.from_journal(agent, await make_journal(lines[: start + 1]))


class BatchJournal(MemoryJournal):
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


class HeldJournal(MemoryJournal):
    """A journal whose writes wait, once `held` is set, until `go` is; then they fail, or not."""

    def __init__(self, fails: bool = False) -> None:
        super().__init__()
        self.held, self.go, self.fails = False, anyio.Event(), fails

    async def append(self, records: Sequence[bytes]) -> None:
        """Wait, if writes are held."""
        if self.held:
            await self.go.wait()
            if self.fails:
                raise OSError("no disk")
        await super().append(records)
