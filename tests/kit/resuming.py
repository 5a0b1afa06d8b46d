"""What the tests of pauses share: the ways from a paused run to the next entry, tools that ask, and looks at pauses."""

import json
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from kit.results import Run

from agentloop import FunctionTool, RunResult, RunState, tool
from agentloop import records as r
from agentloop.items import HandoffCall, HandoffOutput, Item, ToolCall, ToolOutput
from agentloop.journal import MemoryJournal

WAYS = ("direct", "json", "journal")
in_every_way = pytest.mark.parametrize("way", WAYS)
"""The state itself goes on, or what its JSON text says, or what the run's journal says."""


class Pauses:
    """Runs an agent and gets the state to go on with in one of the `WAYS`."""

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
        """Return the state to go on with from *source*: a result, or a state."""
        state = source if isinstance(source, RunState) else source.to_state()
        if self.way == "direct":
            return state
        if self.journal is not None:
            return await RunState.from_journal(agent, self.journal)
        return stored(agent, state)

    async def resume(self, agent: Any, source: Any, decide: Callable[[RunState], None], **options: Any) -> Any:
        """Go on from *source* once *decide* has decided on its state."""
        state = await self.state(agent, source)
        decide(state)
        return await self.run(agent, state, **options)


def stored(agent: Any, state: RunState, **options: Any) -> RunState:
    """Return what the JSON text of *state* says to another process."""
    again = RunState.from_json(agent, json.loads(json.dumps(state.to_json())), **options)
    assert again == state
    return again


def gated(ran: list[Any], name: str = "gated", **options: Any) -> FunctionTool:
    """Return a tool of one number that has to be approved and notes its runs."""

    async def work(n: int = 0) -> str:
        ran.append((name, n))
        return f"{name} {n}"

    options.setdefault("needs_approval", True)
    return tool(name=name, **options)(work)


def free(ran: list[Any], name: str = "free", **options: Any) -> FunctionTool:
    """Return a tool like `gated` that needs nobody's approval."""
    return gated(ran, name, needs_approval=False, **options)


def waiting(source: Any) -> list[str]:
    """Return the ids of the calls that wait, in order."""
    return [request.call.call_id for request in source.interruptions]


def approving(*calls: Any, **options: Any) -> Callable[[RunState], None]:
    """Return what approves *calls*, or all that wait."""

    def decide(state: RunState) -> None:
        for call in calls or state.interruptions:
            state.approve(call, **options)

    return decide


def rejecting(*calls: Any, **options: Any) -> Callable[[RunState], None]:
    """Return what rejects *calls*, or all that wait."""

    def decide(state: RunState) -> None:
        for call in calls or state.interruptions:
            state.reject(call, **options)

    return decide


def nothing(state: RunState) -> None:
    """Decide nothing."""


def count_of(result: Any, kind: type, call_id: str | None = None) -> int:
    """Return how many records of a kind a log holds, of one call if it is named."""
    return sum(isinstance(one, kind) and call_id in (None, getattr(one, "call_id", None)) for one in result.records)


def requests_for(result: Any) -> list[str]:
    """Return the ids of the calls that were asked about, in the order of the log."""
    return [record.call_id for record in result.records if isinstance(record, r.ApprovalRequested)]


def check_history(items: Iterable[Item]) -> None:
    """Check that every call has one output after it, and that the outputs of a batch stand in the calls' order."""
    open_calls: list[str] = []
    seen: set[str] = set()
    for item in items:
        if isinstance(item, ToolCall | HandoffCall):
            assert item.call_id not in seen, f"{item.call_id} is called twice"
            seen.add(item.call_id)
            open_calls.append(item.call_id)
        elif isinstance(item, ToolOutput | HandoffOutput):
            assert open_calls, f"an output of {item.call_id} that no call waits for"
            assert item.call_id == open_calls.pop(0), f"{item.call_id} is out of order, or answered twice"
    assert not open_calls, f"calls without an output: {open_calls}"
