"""Readers of what a run did: of its result, its records, its items, its models' requests."""

from collections.abc import Iterable
from typing import Any

from agentloop import Agent
from agentloop import records as r
from agentloop.items import (
    AssistantMessage,
    Content,
    HandoffCall,
    HandoffOutput,
    Item,
    ToolCall,
    ToolOutput,
    UserMessage,
)
from agentloop.model_events import ModelRequest
from agentloop.testing import ScriptedModel

# ---------------------------------------------------------------------------------------------- models' requests


def read_requests(agent: Agent[Any, Any]) -> list[ModelRequest]:
    """Return the requests that the agent's scripted model was sent."""
    assert isinstance(agent.model, ScriptedModel)
    return agent.model.requests


def read_shown_outputs(agent: Agent[Any, Any], request: int = -1) -> dict[str, Content]:
    """Return the tool outputs that the model was shown in a request (the last one), by call id."""
    return read_outputs(read_requests(agent)[request].items)


def read_user_texts(agent: Agent[Any, Any], request: int = -1) -> list[str]:
    """Return the texts of the user messages in a request (the last one)."""
    return [item.text for item in read_requests(agent)[request].items if isinstance(item, UserMessage)]


# ---------------------------------------------------------------------------------------------- items


def read_outputs(items: Iterable[Any]) -> dict[str, Content]:
    """Return the outputs among *items* by call id, in their order; fail if a call has two."""
    found: dict[str, Content] = {}
    for item in items:
        if isinstance(item, ToolOutput):
            assert item.call_id not in found, f"two outputs for {item.call_id}"
            found[item.call_id] = item.output
    return found


def read_call_ids(items: Iterable[Any]) -> list[str]:
    """Return the ids of the tool calls among *items*."""
    return [item.call_id for item in items if isinstance(item, ToolCall)]


def describe(items: Iterable[Item]) -> list[str]:
    """Return one line for each item: its kind, then its text or call."""
    lines: list[str] = []
    for item in items:
        match item:
            case UserMessage():
                lines.append(f"user:{item.text}")
            case AssistantMessage():
                lines.append(f"says:{item.text}")
            case ToolCall(call_id=call_id, name=name):
                lines.append(f"call:{name}#{call_id}")
            case ToolOutput(call_id=call_id, output=output):
                lines.append(f"output:{output}#{call_id}")
            case HandoffCall(call_id=call_id, name=name):
                lines.append(f"handoff:{name}#{call_id}")
            case HandoffOutput(call_id=call_id, output=output):
                lines.append(f"handed:{output}#{call_id}")
            case _:
                lines.append(type(item).__name__)
    return lines


def check_history(items: Iterable[Item], *, in_order: bool = True) -> None:
    """Check that every call has one output after it; with *in_order*, outputs are in the order of their calls."""
    open_calls: list[str] = []
    seen: set[str] = set()
    for item in items:
        if isinstance(item, ToolCall | HandoffCall):
            assert item.call_id not in seen, f"{item.call_id} is called twice"
            seen.add(item.call_id)
            open_calls.append(item.call_id)
        elif isinstance(item, ToolOutput | HandoffOutput):
            waiting = open_calls[:1] if in_order else open_calls
            assert item.call_id in waiting, f"an output of {item.call_id}, where {waiting} wait for theirs"
            open_calls.remove(item.call_id)
    assert not open_calls, f"calls without an output: {open_calls}"


# ---------------------------------------------------------------------------------------------- calls


def read_statuses(result: Any) -> list[str]:
    """Return the statuses of the calls of a result or of an error's `run_data`, in model order."""
    return [settled.outcome.status for settled in result.calls]


def read_endings(calls: Iterable[Any]) -> list[tuple[str, str, str | None]]:
    """Return id, status and canceller of each settled call of a result or of an error's data."""
    return [(settled.call.call_id, settled.outcome.status, settled.outcome.cancelled_by) for settled in calls]


def find_outcome(result: Any, call_id: str) -> Any:
    """Return the outcome of one call."""
    return next(settled.outcome for settled in result.calls if settled.call.call_id == call_id)


def read_waiting(source: Any) -> list[str]:
    """Return the ids of the calls that wait for a verdict in a result or a state, in order."""
    return [request.call.call_id for request in source.interruptions]


# ---------------------------------------------------------------------------------------------- records


def find_records(result: Any, kind: type) -> list[Any]:
    """Return the records of one kind."""
    return [record for record in result.records if isinstance(record, kind)]


def count_records(result: Any, kind: type, call_id: str | None = None) -> int:
    """Return how many records of a kind a log holds, of one call if *call_id* names it."""
    return sum(call_id in (None, getattr(record, "call_id", None)) for record in find_records(result, kind))


def read_approval_requests(result: Any) -> list[str]:
    """Return the ids of the calls for which approval was requested, in the order of the log."""
    return [record.call_id for record in find_records(result, r.ApprovalRequested)]


def read_turns(records: Iterable[Any]) -> list[int]:
    """Return the numbers of the turns that began in the run itself, nested runs left out."""
    return [record.turn for record in records if isinstance(record, r.TurnStarted) and not record.path]
