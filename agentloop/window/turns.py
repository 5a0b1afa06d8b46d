"""The turns of a history, and the places at which it may be cut: where no call is parted from its output.

Pure functions of items. A turn is what the model said at once, with the outputs that answer it; a message of the user
or of the system is a part by itself.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from agentloop.items import CALLS, OUTPUTS, Item, Reasoning, SystemMessage, UserMessage, _find_unpaired

SUMMARY_HEAD = "Summary of the conversation so far:\n\n"
"""How a summary begins."""
_GIVEN = (SystemMessage, UserMessage)
"""Messages that the model didn't make."""


def split_turns(items: Sequence[Item]) -> list[tuple[Item, ...]]:
    """Return *items* as turns and single messages, in order: together they are *items*.

    Each call is in one part with its output, and reasoning with the item that follows it.
    """
    starts = [0, *(at for at in _find_cuts(items) if _begins(items, at))]
    return [tuple(items[start:stop]) for start, stop in zip(starts, [*starts[1:], len(items)], strict=True)]


def is_turn(part: Sequence[Item]) -> bool:
    """Tell whether *part*, of `split_turns`, has something that the model made."""
    return not all(isinstance(item, _GIVEN) for item in part)


def _find_cuts(items: Sequence[Item]) -> Iterable[int]:
    """Yield the indices inside of *items* at which no call lies before and its output behind, and no reasoning ends."""
    ends: dict[int, int] = {}
    answered: dict[str, int] = {}
    for at in range(len(items) - 1, -1, -1):  # from the end: a later run of a session may use an id again
        item = items[at]
        if isinstance(item, OUTPUTS):
            answered[item.call_id] = at
        elif isinstance(item, CALLS):
            ends[at] = answered.get(item.call_id, at)
    open_until = 0
    for at in range(len(items)):
        if at > open_until and not isinstance(items[at - 1], Reasoning):
            yield at
        open_until = max(open_until, ends.get(at, 0))


def _begins(items: Sequence[Item], at: int) -> bool:
    """Tell whether a message is at *at*, or the first item of a turn."""
    return isinstance(items[at], _GIVEN) or isinstance(items[at - 1], (*_GIVEN, *OUTPUTS))


def find_kept(items: Sequence[Item], task: Item | None = None) -> frozenset[int]:
    """Return the identities of those of *items* that no step may leave out: what is pinned, the first user message, the
    latest, and *task*, the run's own input. A summary is none of these.
    """
    given = [item for item in items if isinstance(item, UserMessage) and not item.text.startswith(SUMMARY_HEAD)]
    return frozenset(map(id, [*given[:1], *given[-1:], *(one for one in given if one.pinned or one == task)]))


def find_fault(before: Sequence[Item], after: Sequence[Item]) -> str | None:
    """Return what is wrong with *after*, made of the history *before*; None if a model can be shown it.

    A call must have its output, an output its call, and reasoning the item behind it; the user messages that no step
    leaves out must be there.
    """
    if (fault := _find_unpaired(after)) is not None:
        return fault
    if any(isinstance(one, Reasoning) and isinstance(two, (*_GIVEN, *OUTPUTS)) for one, two in pairwise(after)):
        return "reasoning has lost the item behind it"
    must, there = find_kept(before), set(map(id, after))
    lost = [item for item in before if id(item) in must and id(item) not in there]
    return "a user message that is pinned, the first or the latest is missing" if lost else None
