"""The inbox of a run: input that was added to it, from its log; which of it is shown next, and why some is refused.

An input waits in the log (`InputAdded`) until the run takes it into the history (`InputShown`), its sender takes it
back (`InputWithdrawn`) or an input guardrail refuses it (`GuardrailSettled` with `input_id`). So it outlives the
process once its record is durable, and it is shown exactly once.

The run looks into the inbox at two places, each in the very step of the record that follows: right before a turn
begins, and right before a final output is accepted. So the log tells what the run saw there, and a replay sees
the same. There the history has an output for each call. After the last look nothing more is taken: see `_check_open`.

Decisions:

One input after the other. Each is judged by itself, so that a rejection tells its own sender, and shown by a record of
its own. Judging all that waits at once would make the records depend on what came while the guardrails ran.

An answer that would have ended the run is judged as usual before the run looks into the inbox: a person has read it.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import Literal

from agentloop import records as r
from agentloop._common.checks import NAMES, check, optional
from agentloop._core.run_fold import RunFold
from agentloop._storage.incoming import check_items
from agentloop.exceptions import InputRefusedError, UserValueError
from agentloop.items import Content, Item, Text, ToolCall, UserMessage, _find_unpaired, to_items
from agentloop.outcomes import AddedInput

_TEXT = optional(NAMES.text())


def due_input(state: RunFold, *, ends: bool = False) -> AddedInput | None:
    """Return the added input to show next; None if none is due. With *ends* the run would end otherwise.

    An `"idle"` input is due as well before the last turn: no later request could show it. The result of a background
    call, which may come after that turn, doesn't change how the run ends: it waits for a run segment with more turns.
    """
    if not state.inbox or (state.turn_open and state.pauses):  # no item may separate the parts of one answer
        return None
    following = state.turn + (not state.turn_open)
    last = state.is_closing or (state.max_turns is not None and following >= state.max_turns)
    late = ends and _lacks_turn(state, following)
    return next((one for one in state.inbox.values() if _is_due(one, every=ends or last, late=late)), None)


def _is_due(one: AddedInput, *, every: bool, late: bool) -> bool:
    return (every or one.when == "turn") and not (late and one.call_id is not None)


def make_input(
    state: RunFold,
    given: str | Iterable[Item],
    when: Literal["turn", "idle"],
    input_id: str | None,
    by: str | None,
    at: float,
    *,
    live: bool,
    over: str = "",
) -> r.InputAdded | None:
    """Return the record of *given* as input for the run of *state*; None if the log has it already, by its id.

    Args:
        state: The run.
        given: The input.
        when: The moment for which it is.
        input_id: Its id.
        by: Who gives it.
        at: The wall-clock time.
        live: True if a run segment is under way.
        over: The message, if the run takes no more input. One that it has is known all the same.

    Raises:
        InputRefusedError: the run is over or has no turn left, another input has the id, or it was taken back or
            rejected.
        UserTypeError, UserValueError: the input, its id or its moment is none, or a call in it has no output.
    """
    items = check_items("input", to_items(given))
    if not items:
        raise UserValueError("input: expected text or at least one item")
    if (fault := _find_unpaired(items)) is not None:
        raise UserValueError(f"input: {fault}")
    if when not in ("turn", "idle"):
        raise UserValueError(f"when: expected 'turn' or 'idle', got {when!r}")
    check("id", _TEXT, input_id)
    check("by", _TEXT, by)
    if input_id == "":
        raise UserValueError("id: expected text that isn't empty, got ''")
    known = state.inputs.get(input_id) if input_id is not None else None
    if known is not None:
        _check_same(known, items)
        return None
    if over:
        raise InputRefusedError(over, reason="over")
    _check_open(state, live=live)
    return r.InputAdded(state.path, state.turn, at, items, input_id or _name_input(state), when, by)


def _check_same(known: AddedInput, items: tuple[Item, ...]) -> None:
    """Check that a repeated input of *items* is the *known* one of its id, and that one waits or was shown.

    Raises:
        InputRefusedError: it isn't, or doesn't.
    """
    if known.items != items:
        raise InputRefusedError(f"add_input: {known.id!r} is the id of another input", reason="other_input")
    if known.status in ("withdrawn", "rejected"):
        raise InputRefusedError(
            f"add_input: the input {known.id!r} was added before, and is {known.status}", reason=known.status
        )


def _check_open(state: RunFold, *, live: bool) -> None:
    """Check that a later request of the run can show an input. *live*: a run segment is under way.

    Raises:
        InputRefusedError: no turn is left for one.
    """
    # A run under way has made the request of its open turn; a stored one makes it again.
    following = state.turn + 1 if live else state.turn + (not state.turn_open)
    if _lacks_turn(state, following):
        raise InputRefusedError(f"add_input: no turn is left (max_turns={state.max_turns})", reason="no_turn_left")


def _lacks_turn(state: RunFold, following: int) -> bool:
    """Tell whether the run has no turn *following* that could show an input."""
    return (state.max_turns is not None and following > state.max_turns) or bool(state.closing)


def make_result(state: RunFold, call: ToolCall, output: Content, at: float, *, secret: bool) -> r.InputAdded:
    """Return the record of *output*, the result of the background call *call*."""
    head = f"Result of the background call {call.call_id} of tool {call.name}:"
    content = f"{head}\n{output}" if isinstance(output, str) else (Text(head), *output)
    name = f"result_{call.call_id}"
    message = UserMessage(content, secret=secret)
    name = _name_input(state) if name in state.inputs else name
    return r.InputAdded(state.path, state.turn, at, (message,), name, call_id=call.call_id)


def _name_input(state: RunFold) -> str:
    names = (f"input_{number}" for number in count(len(state.inputs) + 1))
    return next(name for name in names if name not in state.inputs)


def make_withdrawal(state: RunFold, input_id: str, by: str | None, at: float) -> r.InputWithdrawn:
    """Return the record that takes the input *input_id* back.

    Raises:
        InputRefusedError: it doesn't wait (any more); says what has become of it.
    """
    if input_id in state.inbox:
        return r.InputWithdrawn(state.path, state.turn, at, input_id, by)
    known = state.inputs.get(input_id)
    status = "unknown" if known is None else known.status
    raise InputRefusedError(f"withdraw: input {input_id!r} doesn't wait: it is {status}", reason=status)
