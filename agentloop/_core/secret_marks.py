"""What of a call is secret, noted on the records that hold it: whoever shows or stores a record needn't know the tool.

The tool's word reaches a `ToolCall` when the model's answer arrives; from there it is the fold that carries it on.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attrs

from agentloop import records as r
from agentloop._common.masking import ALL_ARGUMENTS
from agentloop._storage.withholding import WithheldText
from agentloop.exceptions import UserTypeError
from agentloop.items import AssistantMessage, Item, SystemMessage, Text, ToolCall, ToolOutput, UserMessage
from agentloop.outcomes import CallOutcome

_WITH_ARGUMENTS = frozenset({r.ApprovalRequested, r.VerdictGiven, r.CallStarted, r.CallSettled})
OF_CALLS = frozenset({*_WITH_ARGUMENTS, r.BodyEnded, r.GuardrailSettled})
"""Records that may hold something of one call's."""


def marked(record: Any, call: ToolCall, *, output: bool) -> Any:
    """Return *record* of *call* with what is secret in it noted; *output* says whether what the call gave is."""
    changes: dict[str, Any] = {}
    if type(record) in _WITH_ARGUMENTS and call.secret:
        changes["secret"] = call.secret
    if isinstance(record, r.CallSettled) and output:
        changes["outcome"] = marked_outcome(record.outcome)
    if isinstance(record, r.BodyEnded) and output:
        changes["secret"] = True
    if isinstance(record, r.GuardrailSettled) and (call.secret or output):
        changes["secret"] = True
    return attrs.evolve(record, **changes) if changes else record


def marked_outcome(outcome: CallOutcome) -> CallOutcome:
    """Return *outcome* as one whose output is secret."""
    return outcome if outcome.secret else attrs.evolve(outcome, secret=True)


# -- what a run is given


def secret_items(items: Iterable[Item]) -> tuple[Item, ...]:
    """Return *items* as secret ones; of a call, all of its arguments are.

    Raises:
        UserTypeError: naming the position of an item that can't be kept secret: one that is no message, tool call or
            tool output.
    """
    made: list[Item] = []
    for index, item in enumerate(items):
        if isinstance(item, SystemMessage | UserMessage | AssistantMessage | ToolOutput):
            made.append(attrs.evolve(item, secret=True))
        elif isinstance(item, ToolCall):
            # Not by their names: a builder may have made them of a mapping, whose keys are as secret as its values.
            made.append(attrs.evolve(item, secret=(ALL_ARGUMENTS,)))
        else:
            raise UserTypeError(
                f"input[{index}]: of a call with secret arguments, a {type(item).__name__} can't be made"
            )
    return tuple(made)


def is_secret(item: Item) -> bool:
    """Tell whether something of *item* is secret."""
    return bool(getattr(item, "secret", False))


def has_gaps(item: Item) -> bool:
    """Tell whether *item* is a message that was stored with secrets and can't be read."""
    if not isinstance(item, SystemMessage | UserMessage | AssistantMessage):
        return False
    return any(isinstance(part, Text) and isinstance(part.text, WithheldText) for part in item.content)
