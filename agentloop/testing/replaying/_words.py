"""Texts of divergences: the recorded and the replayed record, their difference, and the probable change.

Knows records only, neither the log nor the replay.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from agentloop import records as r
from agentloop.testing.replaying._recorded import Difference

_LIMIT = 160


def short(value: Any) -> str:
    """Format a JSON value as text of at most 160 characters."""
    text = value if value == "(nothing)" else json.dumps(value, ensure_ascii=False, sort_keys=True, default=repr)
    return text if len(text) <= _LIMIT else f"{text[: _LIMIT - 1]}…"


def named(record: r.Record | None) -> str:
    """Format *record* in a few words: its kind, its call or name, and its run."""
    if record is None:
        return "nothing"
    parts = [type(record).__name__]
    match record:
        case r.CallStarted() | r.CallSettled():
            parts.append(f"of call {record.call_id} of tool {record.tool}")
            if isinstance(record, r.CallSettled):
                parts.append(f"({record.outcome.status})")
        case r.GuardrailSettled():
            parts.append(f"of guardrail {record.guardrail}")
        case r.InputAdded() | r.InputShown() | r.InputWithdrawn():
            parts.append(f"of input {record.id}".rstrip())
        case r.CallbackReturned():
            parts.append(f"to {record.what} {record.key}".rstrip())
        case r.HandedOff():
            parts.append(f"to {record.target_agent}")
        case r.HistoryReplaced():
            parts.append(f"({record.reason})")
        case r.RunEnded():
            parts.append(f"({record.status}{': ' + record.error if record.error else ''})")
        case r.CancelRequested(call_id=None):
            parts.append("of the run")
        case _ if getattr(record, "call_id", None):
            parts.append(f"of call {record.call_id}")  # type: ignore[union-attr]
        case _:
            pass
    if record.path:
        parts.append(f"in the run of call {'/'.join(record.path)}")
    return " ".join(parts)


def _format_turn(record: r.Record | None) -> str:
    return "" if record is None else f"in turn {record.turn}, " if record.turn else ""


def explained(wanted: r.Record, got: r.Record, difference: Difference) -> str:
    """Format the difference between the recorded *wanted* and the replayed *got*, with hints on the probable change."""
    if difference.place == "kind":
        said = f"{_format_turn(wanted)}the log has {named(wanted)}, and the replay came to {named(got)}."
        return " ".join([said, *_list_hints_of_kinds(wanted, got)])
    said = (
        f"{_format_turn(wanted)}{named(wanted)}: `{difference.place}` was {short(difference.wanted)} and is now "
        f"{short(difference.got)}."
    )
    return " ".join([said, *_list_hints(wanted, got, difference)])


def stuck(wanted: r.Record, waiting: Iterable[str]) -> str:
    """Format the message that the replay comes to no record *wanted*, with the effects that wait, and hints."""
    held = sorted(waiting)
    shown = f"The replay waits for {', '.join(held[:5])}{' …' if len(held) > 5 else ''}." if held else ""
    said = f"{_format_turn(wanted)}the log has {named(wanted)}, and the replay comes to no such record."
    new = [name for name in held if name.startswith("guardrail ") and name != f"guardrail {_guardrail(wanted)}"]
    hints = [f"G{name[1:]} is new, or the log ends before it has answered." for name in new[:3]]
    return " ".join(filter(None, [said, shown, *(hints or _list_hints_of_stuck(wanted))]))


def _guardrail(wanted: r.Record) -> str:
    return wanted.guardrail if isinstance(wanted, r.GuardrailSettled) else ""


_PARTS = (
    "the history before",
    "the instructions",
    "definitions (a tool's or handoff's name, description or schema, the output type, a model setting)",
)
"""The parts of a request, in the order of their checksums in `ModelRequested.digest`."""


def _find_changed_parts(then: str, now: str) -> Sequence[str]:
    """Return the parts whose checksums differ; all of them where the log doesn't have the checksums."""
    pairs = zip(_PARTS, then.split("-")[1:], now.split("-")[1:], strict=False)
    return [part for part, old, new in pairs if old != new] or _PARTS


def _list_hints(wanted: r.Record, got: Any, difference: Difference) -> list[str]:
    place = difference.place
    match wanted:
        case r.ModelRequested() if place == "digest":
            *some, last = _find_changed_parts(difference.wanted, difference.got)
            return [f"The model is shown something else: {', '.join(some)}{' and ' if some else ''}{last}."]
        case r.TurnStarted() if place.startswith(("tools", "handoffs")):
            what = place.partition("[")[0]
            old, new = getattr(wanted, what), getattr(got, what)
            if sorted(old) == sorted(new):
                return [f"The same {what} in another order."]
            gone, more = [name for name in old if name not in new], [name for name in new if name not in old]
            changes = [f"gone: {', '.join(gone)}"] * bool(gone) + [f"new: {', '.join(more)}"] * bool(more)
            return [f"Of the {what}: {'; '.join(changes)}."]
        case r.RunStarted() if place == "max_turns":
            return ["The limit of turns (`max_turns`) is another one."]
        case r.RunStarted() | r.RunResumed() if place == "agent":
            return ["Another agent begins."]
        case r.CallStarted() if place.startswith("waited_for"):
            return ["The call waited for other limits: `max_function_tool_concurrency` or `serial` has changed."]
        case r.CallSettled() if place == "receipt":
            return ["Whether equal calls are one (`idempotent`), or what of their arguments counts, has changed."]
        case r.CallStarted() | r.CallSettled() if place == "tool":
            return ["The call goes to another tool."]
        case r.CallSettled() if place.startswith("outcome.output"):
            return [
                "What the model is told of the call has changed: `max_output_chars`, a text of the library, or "
                "the tool's conversion."
            ]
        case r.CallSettled() if place.startswith("outcome.status"):
            return [_explain_statuses(difference.wanted, difference.got)]
        case _:
            if type(wanted) in (r.CallStarted, r.BodyEnded, r.CallSettled, r.GuardrailSettled) and place == "call_id":
                return [
                    "Calls start or end in another order: limits, `serial`, `exclusive`, `mode`, or the order in "
                    "which they are admitted."
                ]
            return []


def _explain_statuses(old: Any, new: Any) -> str:
    if "replayed" in (old, new):
        return "Whether an equal call is answered by the output of an earlier one (`idempotent`) has changed."
    if "skipped" in (old, new):
        return "A limit has changed: `max_calls_per_turn`, `queue_timeout`, the budget, or the tool is not available."
    if "timed_out" in (old, new):
        return "A time limit (`timeout`, `idle_timeout`) has changed."
    if "rejected" in (old, new):
        return "Policies, guardrails or approvals have changed."
    return "The tool's policies have changed."


def _list_hints_of_kinds(wanted: r.Record, got: r.Record) -> list[str]:
    match wanted, got:
        case (r.CallSettled(outcome=outcome), r.CallStarted() | r.GuardrailSettled() | r.CallbackReturned()):
            return [_explain_statuses(outcome.status, "succeeded")]
        case (r.CallStarted(), r.CallSettled(outcome=outcome)):
            return [_explain_statuses("succeeded", outcome.status)]
        case (r.ApprovalRequested(), _) | (_, r.ApprovalRequested()):
            return ["Which calls need an approval (`needs_approval`, policies) has changed."]
        case (r.AnswerRequested(), _) | (_, r.AnswerRequested()):
            return ["Which tools the application answers (`external`), or the schema of an answer, has changed."]
        case (r.CallbackReturned(what=what), _):
            return [f"The application is not asked any more: {what}."]
        case (_, r.CallbackReturned(what=what)):
            return [f"The application is asked what it wasn't: {what}."]
        case (r.GuardrailSettled(guardrail=name), _):
            return [f"Guardrail {name} is gone, or isn't asked here."]
        case (_, r.GuardrailSettled(guardrail=name)):
            return [f"Guardrail {name} is new, or wasn't asked here."]
        case (r.TurnStarted(), r.RunEnded(error=str() as error)) if error.startswith("MaxTurnsExceeded"):
            return ["The limit of turns (`max_turns`) is a lower one."]
        case (r.RunEnded(error=str() as error), r.TurnStarted()) if error.startswith("MaxTurnsExceeded"):
            return ["The limit of turns (`max_turns`) is a higher one."]
        case (_, r.RunEnded(error=str() as error)):
            return [f"The run now fails: {error}"]
        case (r.SessionSaved(), _) | (_, r.SessionSaved()):
            return ["Whether, or when, the run writes to its session has changed."]
        case (_, r.CallStarted()):
            return [
                "A call starts that had not started then: a limit (`max_function_tool_concurrency`, capacities, "
                "`serial`, `exclusive`, `mode`) has changed."
            ]
        case _:
            return []


def _list_hints_of_stuck(wanted: r.Record) -> list[str]:
    match wanted:
        case r.GuardrailSettled(guardrail=name):
            return [f"Guardrail {name} is gone, or isn't asked here."]
        case r.CallStarted():
            return [
                "The call is held back: a limit (`max_function_tool_concurrency`, capacities, `serial`, "
                "`exclusive`, `mode`) has changed, or an answer that came before it."
            ]
        case r.CallSettled(outcome=outcome) if outcome.status == "timed_out":
            return ["A time limit (`timeout`, `idle_timeout`) has gone."]
        case r.RunEnded(error=str() as error) if error.startswith("RunTimeoutError"):
            return ["The run's time limit (`RunConfig.timeout`) isn't given to the replay."]
        case r.RunEnded(error=str() as error):
            return [f"Nothing raises {error} any more."]
        case _:
            return []
