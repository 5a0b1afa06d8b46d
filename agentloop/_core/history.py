"""The history of a conversation as others hold it: views of it, and the part of it that a model may see."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, SupportsIndex, final, overload

from agentloop.items import CALLS, OUTPUTS, HandoffOutput, Item, Reasoning


@final
class HistoryView(Sequence[Item]):
    """The first *length* items of a history. Never changes, so it is safe to keep; equal to a tuple of its items.

    Each request shows the whole history, and a tuple of it would take a time that grows with every turn: a view is made
    in the same time at the thousandth turn as at the first. The *items* it is made of may grow, and do nothing else.
    Slices, copies and pickles of a view are tuples.
    """

    __slots__ = ("_items", "_length")

    def __init__(self, items: list[Item], length: int | None = None) -> None:
        self._items = items
        self._length = len(items) if length is None else length

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Item]:
        return islice(self._items, self._length)

    @overload
    def __getitem__(self, index: SupportsIndex) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Item, ...]: ...
    def __getitem__(self, index: SupportsIndex | slice) -> Item | tuple[Item, ...]:
        if isinstance(index, slice):
            start, stop, step = index.indices(self._length)
            if step < 0:
                return tuple(self)[index]
            return tuple(self._items[start:stop:step])
        at = operator.index(index)
        if not -self._length <= at < self._length:
            raise IndexError("index out of range")
        return self._items[at if at >= 0 else at + self._length]

    def __add__(self, other: object) -> tuple[Item, ...]:
        return tuple(self) + tuple(other) if isinstance(other, (tuple, HistoryView)) else NotImplemented

    def __radd__(self, other: object) -> tuple[Item, ...]:
        return other + tuple(self) if isinstance(other, tuple) else NotImplemented

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (tuple, HistoryView)):
            return NotImplemented
        return len(other) == self._length and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return tuple, (tuple(self),)


def valid_history(items: Iterable[Item]) -> tuple[Item, ...]:
    """Return *items* without calls that have no output, and without the reasoning directly before those."""
    items = tuple(items)
    answered = {item.call_id for item in items if isinstance(item, OUTPUTS)}
    if all(item.call_id in answered for item in items if isinstance(item, CALLS)):
        return items
    return leave_out(items, lambda item: isinstance(item, CALLS) and item.call_id not in answered)


def leave_out(items: Iterable[Item], is_unwanted: Callable[[Item], bool]) -> tuple[Item, ...]:
    """Return *items* without the unwanted ones, and without the reasoning directly before those."""
    kept: list[Item] = []
    for item in items:
        if not is_unwanted(item):
            kept.append(item)
            continue
        while kept and isinstance(kept[-1], Reasoning):
            kept.pop()
    return tuple(kept)


def count_same(before: Sequence[Item], after: Sequence[Item]) -> int:
    """Return the length of the common beginning of two histories: a record needn't hold these items again.

    The output of a handoff may be made twice, so an equal one is the same. Other equal items may differ in secrets.
    """
    for at, (old, new) in enumerate(zip(before, after, strict=False)):
        if old is not new and not (isinstance(new, HandoffOutput) and old == new):
            return at
    return min(len(before), len(after))
