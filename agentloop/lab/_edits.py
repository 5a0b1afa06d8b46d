"""Edits of the beginning of a log, for a fork: what a call had answered, the input, a call that wasn't made. Pure.

An edit changes facts, and the log has to stay one that a run could have written. The edit itself checks what the table
of transitions doesn't know (a reasoning item needs what follows it; a history that was replaced holds the old words),
and `edit_records` lets the table judge the whole beginning. What is refused names the rule.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import attrs

from agentloop import records as r
from agentloop._core.run_fold import RunFold
from agentloop._storage.incoming import check_items
from agentloop.exceptions import StateError, UserError, UserTypeError, UserValueError
from agentloop.items import HandoffCall, Item, Reasoning, ToolCall, to_items
from agentloop.lab._recording import Path
from agentloop.outcomes import SUCCESSES
from agentloop.state import apply_checked

_OF_CALLS = (
    *(r.ApprovalRequested, r.VerdictGiven, r.CallStarted, r.BodyEnded, r.CallSettled),
    *(r.GuardrailSettled, r.CancelRequested, r.CleanupCut),
)


@attrs.frozen
class SetOutput:
    """Let the call *call* have succeeded with *output*: text, or a value of which the model gets the JSON.

    *call* is its id; in a nested run `OUTER/ID`, if several runs have that id.

    Example:
        from agentloop import lab

        print(lab.SetOutput("c3", "sold out"))  # set call:c3.output
    """

    call: str
    output: Any

    def __str__(self) -> str:
        return f"set call:{self.call}.output"

    def apply(self, records: Sequence[r.Record]) -> list[r.Record]:
        """Return *records* with the output.

        Raises:
            UserError: the call has no outcome there, or one that no body gave.
        """
        place, index = find_call(records, self.call)
        settled = next((one for one in records if isinstance(one, r.CallSettled) and _place(one) == place), None)
        if settled is None:
            raise self._refuse("the call hasn't settled there, so it has no output: fork at a later record")
        outcome = settled.outcome
        if outcome.started_at is None and outcome.status not in SUCCESSES:
            raise self._refuse(f"the call was {outcome.status} and never started: only a body gives an output")
        _refuse_replaced(self, records, place[0], index)
        try:
            text = self.output if isinstance(self.output, str) else json.dumps(self.output, ensure_ascii=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise self._refuse(f"the output has no JSON form: {error}") from None
        status = outcome.status if outcome.status in SUCCESSES else "succeeded"
        cause = {"cancelled_by": None, "cancelled_by_call": None, "cancelled_at": None, "reason": None}
        changed = outcome.replace(status=status, output=text, value=None, error=None, found=None, **cause)
        return [self._change(one, place, changed) for one in records]

    def _change(self, record: r.Record, place: tuple[Path, str], outcome: Any) -> r.Record:
        if isinstance(record, r.CallSettled) and _place(record) == place:
            return record.replace(outcome=outcome, error=None)
        if isinstance(record, r.BodyEnded) and _place(record) == place:
            value = self.output if record.kept else None
            return record.replace(failed=False, fatal=False, error=None, details=None, value=value)
        return record

    def _refuse(self, rule: str) -> UserError:
        return UserValueError(f"edit '{self}': {rule}")


@attrs.frozen
class SetInput:
    """Let the run have begun with *input*, as `Runner.run` takes it. Guardrails that had passed the old one stay so.

    Example:
        from agentloop import lab

        print(lab.SetInput("And in Oslo?"))  # set input
    """

    input: str | Iterable[Item]

    def __str__(self) -> str:
        return "set input"

    def apply(self, records: Sequence[r.Record]) -> list[r.Record]:
        """Return *records* with the input.

        Raises:
            UserError: the model's history was replaced since, and holds the old one.
        """
        _refuse_replaced(self, records, (), 0)
        started = records[0]
        assert isinstance(started, r.RunStarted)
        items, shown = check_items("input", to_items(self.input)), started.shown
        if shown is not None:
            shown = (*shown[: len(shown) - len(started.input)], *items)
        return [started.replace(input=items, shown=shown), *records[1:]]


@attrs.frozen
class DropCall:
    """Let the model not have made the call *call*: neither it nor what came of it is in the log. As `SetOutput`.

    Example:
        from agentloop import lab

        print(lab.DropCall("c3"))  # drop call:c3
    """

    call: str

    def __str__(self) -> str:
        return f"drop call:{self.call}"

    def apply(self, records: Sequence[r.Record]) -> list[r.Record]:
        """Return *records* without the call.

        Raises:
            UserError: something in the log needs it.
        """
        place, index = find_call(records, self.call)
        path, call_id = place
        _refuse_replaced(self, records, path, index)
        for n, one in enumerate(records[index:], index + 1):
            if isinstance(one, r.SessionSaved) and one.path == path:
                raise UserValueError(f"edit '{self}': the session was saved with it, at record {n}: fork before that")
            if isinstance(one, r.CallSettled) and one.path == path and one.outcome.cancelled_by_call == call_id:
                raise UserValueError(f"edit '{self}': call {one.call_id!r} was cancelled because of it")
        answer = records[index]
        assert isinstance(answer, r.ModelResponded)
        items = tuple(one for one in answer.response.items if getattr(one, "call_id", None) != call_id)
        kinds = [isinstance(one, Reasoning) for one in items]
        if any(is_last and is_reasoning for is_reasoning, is_last in zip(kinds, [*kinds[1:], True], strict=False)):
            raise UserValueError(f"edit '{self}': the reasoning before it needs an item that follows")
        inner = (*path, call_id)
        left = [one for one in records if one.path[: len(inner)] != inner and not self._is_of(one, place)]
        left[left.index(answer)] = answer.replace(response=answer.response.replace(items=items))
        return left

    def _is_of(self, record: r.Record, place: tuple[Path, str]) -> bool:
        return isinstance(record, _OF_CALLS) and (record.path, record.call_id) == place


Edit: TypeAlias = SetOutput | SetInput | DropCall
"""An edit of a fork."""


def _place(record: r.CallSettled | r.BodyEnded) -> tuple[Path, str]:
    return record.path, record.call_id


def find_call(records: Sequence[r.Record], call: str) -> tuple[tuple[Path, str], int]:
    """Return the place of a call, and the index of the answer in which the model made it.

    Raises:
        UserError: the model made no such call, or several.
    """
    *outer, call_id = call.split("/")
    found = [
        ((record.path, call_id), index)
        for index, record in enumerate(records)
        if isinstance(record, r.ModelResponded) and list(record.path[-len(outer) :] if outer else ()) == outer
        for item in record.response.items
        if isinstance(item, ToolCall | HandoffCall) and item.call_id == call_id
    ]
    if not found:
        raise UserValueError(f"call:{call}: the model has made no such call up to that record")
    if len(found) > 1:
        places = ", ".join("/".join((*path, call_id)) for (path, _), _ in found)
        raise UserValueError(f"call:{call}: several runs have such a call: name one of {places}")
    return found[0]


def _refuse_replaced(edit: object, records: Sequence[r.Record], path: Path, since: int) -> None:
    """Raise UserError if the history of the run at *path* was replaced after *since*: it may hold what is edited."""
    for n, one in enumerate(records[since:], since + 1):
        if isinstance(one, r.HistoryReplaced) and one.path == path:
            raise UserValueError(
                f"edit '{edit}': the history was replaced at record {n} ({one.reason}), and what the model is shown "
                "since is made of the old one: fork before that"
            )


def edit_records(records: Sequence[r.Record], edits: Sequence[Edit]) -> tuple[r.Record, ...]:
    """Return *records*, the beginning of a log, with *edits* made in their order.

    Raises:
        UserError: no run could have written what comes of an edit; names the rule.
    """
    for edit in edits:
        if not isinstance(edit, Edit):
            raise UserTypeError(f"edits: expected SetOutput, SetInput or DropCall, got {edit!r}")
        records = edit.apply(records)
        fold = RunFold()
        try:
            apply_checked(fold, records)
        except StateError as error:
            raise UserValueError(f"edit '{edit}': {error}") from None
    return tuple(records)
