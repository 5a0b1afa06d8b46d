"""Describe a run and a script as text, for the report of a failed search."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agentloop import records as r
from agentloop.items import AssistantMessage, HandoffCall, ToolCall
from agentloop.testing.scripted import CallStep, Fail, Say, WaitStep
from agentloop.testing.simulation._simulated_parts import EPOCH

if TYPE_CHECKING:
    from agentloop.testing.simulation.runs import WorldRun

LONGEST = 100


def timeline(run: WorldRun) -> str:
    """Return the run's log as lines, one for each record, and each departure from the natural order in between."""
    chosen: dict[int, list[str]] = {}
    for place, (_, number), label in zip(run.chosen_at, run.choices, run.trace, strict=True):
        if number:
            chosen.setdefault(place, []).append(label)
    lines: list[str] = []
    for index, record in enumerate(run.records):
        lines += _describe_choices(run, chosen, index)
        line = _describe_record(record)
        if line:
            where = f"[{'/'.join(record.path)}] " if record.path else ""
            lines.append(f"{record.at - EPOCH:8.3f}  {where}{line}")
    return "\n".join([*lines, *_describe_choices(run, chosen, len(run.records))])


def _describe_choices(run: WorldRun, chosen: Mapping[int, Sequence[str]], index: int) -> list[str]:
    lines = [f"          - the schedule lets go on: {label}" for label in chosen.get(index, ())]
    lines += [f"          - {line}" for place, line in run.lines if place == index]
    if run.cancelled_at is not None and run.mark == index:
        lines.append(f"          - the caller cancels (step {run.cancelled_at})")
    return lines


def _describe_record(record: r.Record) -> str:
    match record:
        case r.RunStarted(agent=agent):
            return f"run of {agent} starts"
        case r.RunResumed():
            return "run goes on"
        case r.ModelRequested():
            return f"turn {record.turn}: the model is asked"
        case r.ModelResponded(response=response):
            return f"the model: {'; '.join(_describe_item(item) for item in response.items)}"
        case r.ModelFailed(error=error):
            return f"the model call failed: {_shorten(error)}"
        case r.GuardrailSettled(stage=stage, guardrail=name, verdict=verdict):
            return f"{stage} guardrail {name}: {verdict}"
        case r.ApprovalRequested(call_id=call_id, tool=tool):
            return f"{call_id} {tool} waits for a verdict"
        case r.VerdictGiven(call_id=call_id, approved=approved):
            return f"{call_id} is {'approved' if approved else 'rejected'}"
        case r.AnswerRequested(call_id=call_id, tool=tool):
            return f"{call_id} {tool} waits for its answer"
        case r.CallAnswered(call_id=call_id):
            return f"{call_id} is answered"
        case r.CallStarted(call_id=call_id, tool=tool, arguments=arguments):
            return f"{call_id} {tool} starts {_shorten(arguments)}"
        case r.BodyEnded(call_id=call_id, failed=failed):
            return f"{call_id} body {'raised' if failed else 'returned'}"
        case r.CallSettled(call_id=call_id, tool=tool, outcome=outcome):
            by = f" by {outcome.cancelled_by}" if outcome.cancelled_by else ""
            return f"{call_id} {tool} {outcome.status}{by}: {_shorten(outcome.output)}"
        case r.HandedOff(source_agent=source, target_agent=target):
            return f"{source} hands over to {target}"
        case r.InputAdded(id=input_id, when=when):
            return f"input {input_id} is added ({when})"
        case r.InputShown(id=input_id):
            return f"input {input_id} is shown"
        case r.InputWithdrawn(id=input_id):
            return f"input {input_id} is withdrawn"
        case r.SandboxOpened(name=name):
            return f"sandbox {name} is the run's"
        case r.SessionSaved(count=count):
            return f"{count} items are in the session"
        case r.CancelRequested(call_id=call_id):
            return f"{call_id or 'the run'} is cancelled"
        case r.DeadlinePassed():
            return "the run's deadline has passed"
        case r.CleanupCut(section=section, call_id=call_id):
            return f"cleanup was cut: {section} {call_id or ''}"
        case r.RunEnded(status=status, error=error):
            return f"run ends: {status}{f' ({_shorten(error)})' if error else ''}"
        case _:
            return ""


def _describe_item(item: Any) -> str:
    match item:
        case ToolCall(call_id=call_id, name=name, arguments=arguments):
            return f"calls {name} {_shorten(arguments)} ({call_id})"
        case HandoffCall(call_id=call_id, name=name):
            return f"hands over by {name} ({call_id})"
        case AssistantMessage():
            return f"says {_shorten(item.text)!r}"
        case _:
            return type(item).__name__


def _shorten(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    text = " ".join(text.split())
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def script_as_code(script: Iterable[Any]) -> str:
    """Return *script* as the code that makes it."""
    return f"[{', '.join(_step_as_code(step) for step in script)}]"


def _step_as_code(step: Any) -> str:
    if isinstance(step, list | tuple):
        return f"[{', '.join(_step_as_code(piece) for piece in step)}]"
    match step:
        case Say(text, None):
            return f"say({text!r})"
        case CallStep(name, arguments, call_id, namespace):
            rest = [f"call_id={call_id!r}"] if call_id is not None else []
            rest += [f"namespace={namespace!r}"] if namespace is not None else []
            return f"call({', '.join([repr(name), *_arguments_as_code(arguments), *rest])})"
        case Fail(error):
            return f"fail({error!r})"
        case WaitStep(until):
            return f"wait({until!r})"
        case _:
            return getattr(step, "__name__", None) or repr(step)


def _arguments_as_code(text: str) -> list[str]:
    try:
        value = json.loads(text)
    except ValueError:
        return [repr(text)]
    if not isinstance(value, dict):
        return [repr(text)]
    return [repr(value)] if value else []
