"""The history as others hold it: a view that is made without touching an item, and never changes."""

import copy
import pickle
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest

from agentloop import Agent, Runner, tool
from agentloop._core.history import HistoryView
from agentloop._core.run_fold import RunFold
from agentloop.items import Item, ToolOutput, UserMessage
from agentloop.model_events import ModelRequest
from agentloop.records import HistoryReplaced, RunStarted
from agentloop.testing import ScriptedModel, call, say

ITEMS: list[Item] = [UserMessage(text) for text in "abcdef"]


def view(length: int = 4) -> HistoryView:
    """Return a view of the first *length* items of a history that has grown since."""
    return HistoryView(ITEMS, length)


def test_a_view_is_as_long_as_the_history_was() -> None:
    """What the history gets later is not in the view."""
    history = ITEMS[:2]
    made = HistoryView(history)
    history.append(ITEMS[2])
    assert len(made) == 2
    assert list(made) == ITEMS[:2]
    assert list(reversed(made)) == [ITEMS[1], ITEMS[0]]
    assert ITEMS[2] not in made


@pytest.mark.parametrize("index", [0, 3, -1, -4])
def test_an_index_is_a_tuples(index: int) -> None:
    """Indices count from the start and from the view's own end."""
    assert view()[index] == tuple(ITEMS[:4])[index]


@pytest.mark.parametrize("index", [4, 5, -5])
def test_an_index_outside_of_the_view_is_refused(index: int) -> None:
    """Also where the history has an item there."""
    with pytest.raises(IndexError, match="out of range"):
        view()[index]


@pytest.mark.parametrize(
    "part", [slice(None), slice(1, 3), slice(-2, None), slice(None, 99), slice(None, None, 2), slice(None, None, -1)]
)
def test_a_slice_is_a_tuples(part: slice) -> None:
    """A slice of a view is a tuple."""
    found = view()[part]
    assert type(found) is tuple
    assert found == tuple(ITEMS[:4])[part]


def test_a_view_is_equal_to_a_tuple_of_its_items() -> None:
    """Equal to it, with the same hash and repr; not to a list, nor to other items."""
    items = tuple(ITEMS[:4])
    assert view() == items
    assert items == view()
    assert view() == HistoryView(list(items))
    assert hash(view()) == hash(items)
    assert repr(view()) == repr(items)
    assert view() != list(items)
    assert view() != items[:3]
    assert view() != (*items[:3], ITEMS[5])


def test_a_view_is_joined_to_tuples() -> None:
    """As a tuple is: the sum is a tuple."""
    items, more = tuple(ITEMS[:4]), (ITEMS[5],)
    assert view() + more == items + more
    assert more + view() == more + items
    assert view() + view() == items + items
    for add in (view().__add__, view().__radd__):
        assert add([]) is NotImplemented


@pytest.mark.parametrize("make", [copy.copy, copy.deepcopy, lambda made: pickle.loads(pickle.dumps(made))])
def test_a_copy_of_a_view_is_a_tuple(make: Any) -> None:
    """It holds the view's items, and not the rest of the history."""
    made = make(view())
    assert type(made) is tuple
    assert made == tuple(ITEMS[:4])


def test_a_view_can_be_matched() -> None:
    """A view is a sequence in patterns, too."""
    match view(2):
        case [first, second]:
            assert (first, second) == (ITEMS[0], ITEMS[1])
        case _:
            pytest.fail("the view didn't match")


def test_a_view_outlives_the_replacement_of_the_history() -> None:
    """A record that replaces a part of the history leaves earlier views as they were."""
    fold = RunFold()
    fold.apply(RunStarted((), 0, 0.0, "r", "a", tuple(ITEMS[:4]), None))
    before = HistoryView(fold.history)
    fold.apply(HistoryReplaced((), 0, 0.0, "handoff_filter", 1, (ITEMS[5],)))
    assert fold.history == [ITEMS[0], ITEMS[5]]
    assert before == tuple(ITEMS[:4])


class CountedList(list[Item]):
    """A list that counts how many of its items were read."""

    read = 0

    def __iter__(self) -> Iterator[Item]:
        for item in super().__iter__():
            self.read += 1
            yield item

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        self.read += len(found) if isinstance(index, slice) else 1
        return found


@pytest.mark.anyio
async def test_a_turn_reads_no_more_of_a_long_history(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each turn reads the items that are new in it, and the history at its end is read a few times at most."""
    history, read, turns = CountedList(), [], 60

    def make(**given: Any) -> RunFold:
        fold = RunFold(**given)
        fold.history = history
        return fold

    monkeypatch.setattr("agentloop.run.RunFold", make)

    @tool
    async def work() -> str:
        """Work."""
        return "ok"

    def answer(request: ModelRequest) -> Any:
        read.append(history.read)
        return call("work", {}, f"c{request.turn}") if request.turn < turns else say("done")

    model = ScriptedModel([answer] * turns)
    result = await Runner.run(Agent("a", model=model, tools=[work]), "go", max_turns=None)
    assert history.read - read[-1] < 5 * len(history)
    each = [after - before for before, after in pairwise(read)]
    assert max(each[1:]) == min(each[1:])
    shown: Sequence[Item] = model.requests[-1].items
    assert len(shown) == len(history) - 1
    assert [type(item) for item in shown[-1:]] == [ToolOutput]
    assert result.final_output == "done"
