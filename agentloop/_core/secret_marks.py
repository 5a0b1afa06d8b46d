"""Marks of secret arguments and outputs, on records and items, so that code that shows or stores them needs no tool.

The tool's declaration is copied to a `ToolCall` when the model's answer arrives (`model_call._classify_call`); from
there the fold copies it to the records of that call (`RunFold.apply`). A nested run's input, final output and errors
are secret if the arguments of its call are. Marks only. Where a marked value would come out:

    reprs, spans, the command line   masked: `_common/masking`
    journals and states              withheld, as a digest or sealed by the codec: `_storage/withholding`
    messages of errors               redacted: `_common/error_text`, for a run or a call whose `redacts_errors` is true
    Python's log                     errors of calls as redacted there; `_engine/calls/failure_log`
    the model                        shown as it is; a stored value that can't be read back stays withheld

Values that nothing marks are not hidden, but for text in the form of a credential in the message of an error
(`_common/error_text`), and the headers and bodies of providers' requests (`models/_http`, `models/_refusals`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from agentloop import records as r
from agentloop._common.masking import ALL_ARGUMENTS
from agentloop._core.run_facts import RunFacts
from agentloop._storage.withholding import WithheldText
from agentloop.exceptions import UserTypeError
from agentloop.items import AssistantMessage, Item, SystemMessage, Text, ToolCall, ToolOutput, UserMessage

_WITH_ARGUMENTS = frozenset({r.ApprovalRequested, r.VerdictGiven, r.CallStarted, r.CallSettled})
MAY_HOLD_SECRETS = frozenset({*_WITH_ARGUMENTS, r.BodyEnded, r.CallAnswered, r.GuardrailSettled, r.RunEnded})
"""Records that may hold arguments or output of one call, or the run's final output."""


def mark_record(record: Any, root: RunFacts) -> Any:
    """Copy *record*, one of `MAY_HOLD_SECRETS`, with its `secret` flags set. *root* is the state of its whole tree."""
    fold = root.at(record.path)
    if fold is None:
        return record
    call_id: Any = getattr(record, "call_id", None)
    state = fold.calls.get(call_id)
    if state is None:
        return _mark_if(_shows_secret(record, fold), record)
    arguments, output = state.call.secret, fold.gives_secret(state.call)
    if type(record) not in _WITH_ARGUMENTS:
        return _mark_if(output or (bool(arguments) and isinstance(record, r.GuardrailSettled)), record)
    if output and isinstance(record, r.CallSettled):
        record = record.replace(outcome=record.outcome.replace(secret=True))
    return record.replace(secret=arguments) if arguments else record


def _mark_if(secret: bool, record: Any) -> Any:
    return record.replace(secret=True) if secret else record


def _shows_secret(record: r.Record, fold: RunFacts) -> bool:
    """Tell whether *record*, which is of no call, shows secret input or output of the run."""
    if isinstance(record, r.GuardrailSettled) and record.stage == "input":
        return fold.secret_input
    is_output = isinstance(record, r.GuardrailSettled) or (
        isinstance(record, r.RunEnded) and record.status == "completed"
    )
    # The final output of the current turn may be a tool's.
    return is_output and any(call.outcome is not None and call.outcome.secret for call in fold.batch)


# -- input of a run


def mark_items(items: Iterable[Item]) -> tuple[Item, ...]:
    """Return *items* marked secret; of a tool call, all arguments are.

    Raises:
        UserTypeError: the position of an item that can't be marked: it isn't a message, tool call or tool output.
    """
    made: list[Item] = []
    for index, item in enumerate(items):
        if isinstance(item, SystemMessage | UserMessage | AssistantMessage | ToolOutput):
            made.append(item.replace(secret=True))
        elif isinstance(item, ToolCall):
            # Not by name: the arguments may come from a mapping, whose keys are as secret as its values.
            made.append(item.replace(secret=(ALL_ARGUMENTS,)))
        else:
            raise UserTypeError(
                f"input[{index}]: of a call with secret arguments, a {type(item).__name__} can't be made"
            )
    return tuple(made)


def has_gaps(item: Item) -> bool:
    """Tell whether *item* is a message whose secret text was stored in a form that can't be read back."""
    if not isinstance(item, SystemMessage | UserMessage | AssistantMessage):
        return False
    return any(isinstance(part, Text) and isinstance(part.text, WithheldText) for part in item.content)
