"""Compaction of a session: what belongs together stays together."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.exceptions import SessionConflict, UserTypeError
from agentloop.items import AssistantMessage, Item, Reasoning, ToolCall, ToolOutput, UserMessage
from agentloop.sessions import MemorySession, compact
from agentloop.sessions.compaction import safe_cut


def conversation(turns: Sequence[tuple[int, bool]]) -> list[Item]:
    """Return a history: each turn has that many calls with their outputs, with reasoning before them or not."""
    items: list[Item] = [UserMessage("go")]
    for turn, (calls, reasons) in enumerate(turns):
        if reasons:
            items.append(Reasoning(id=f"r{turn}"))
        items += [ToolCall(f"c{turn}.{n}", "f") for n in range(calls)]
        items += [ToolOutput(f"c{turn}.{n}", "x") for n in range(calls)]
        items.append(AssistantMessage(f"turn {turn}"))
    return items


@pytest.mark.scenario("LX-86")
@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=6), st.integers(0, 40))
def test_no_cut_parts_a_call_from_its_output_or_reasoning_from_its_follower(
    turns: list[tuple[int, bool]], wanted: int
) -> None:
    """A cut may be asked for at any place, and at least as much as was asked for is kept."""
    items = conversation(turns)
    cut = safe_cut(items, wanted)
    assert 0 <= cut <= wanted
    old, new = items[:cut], items[cut:]
    for part in (old, new):
        calls = {item.call_id for item in part if isinstance(item, ToolCall)}
        outputs = {item.call_id for item in part if isinstance(item, ToolOutput)}
        assert calls == outputs
    assert not (old and isinstance(old[-1], Reasoning))


OVERLAPPING = st.lists(
    st.one_of(
        st.builds(ToolCall, st.sampled_from("abcd"), st.just("f")),
        st.builds(ToolOutput, st.sampled_from("abcd"), st.just("x")),
        st.builds(Reasoning, id=st.just("r")),
        st.just(UserMessage("more")),
    ),
    max_size=16,
)


@pytest.mark.scenario("LX-86")
@given(OVERLAPPING, st.integers(-1, 17))
def test_the_cut_is_the_last_one_that_parts_nothing(items: list[Item], wanted: int) -> None:
    """Calls may overlap in any way, and have no output, or one that stands before them."""
    called = {item.call_id: at for at, item in enumerate(items) if isinstance(item, ToolCall)}
    answered = {item.call_id: at for at, item in enumerate(items) if isinstance(item, ToolOutput)}

    def parts_nothing(cut: int) -> bool:
        pairs = ((at, answered.get(call_id, at)) for call_id, at in called.items())
        return not any(begin < cut <= end for begin, end in pairs) and not isinstance(items[cut - 1], Reasoning)

    last = max(min(wanted, len(items)), 0)
    assert safe_cut(items, wanted) == max((cut for cut in range(1, last + 1) if parts_nothing(cut)), default=0)


@pytest.mark.scenario("LX-86")
async def test_the_older_part_is_exchanged_in_one_step() -> None:
    """The summary comes first, and the newer items follow it unchanged."""
    session = MemorySession()
    items = conversation([(2, True), (1, False)])
    await session.add_items(items)
    seen: list[Item] = []

    async def summarize(old: list[Item]) -> str:
        seen.extend(old)
        return "what was said"

    # The third item from the end is an output: its call stays with it.
    assert await compact(session, summarize, keep=2)
    after = await session.get_items()
    assert after[0] == UserMessage("what was said")
    assert [*seen, *after[1:]] == items
    assert after[1] == ToolCall("c1.0", "f")
    assert not await compact(session, summarize, keep=100)


async def test_a_session_that_changed_meanwhile_is_left_alone() -> None:
    """The items of another writer in between are not lost."""
    session = MemorySession()
    await session.add_items([UserMessage("one"), AssistantMessage("two")])

    async def summarize(old: list[Item]) -> list[Item]:
        await session.add_items([UserMessage("three")])
        return []

    with pytest.raises(SessionConflict):
        await compact(session, summarize, keep=0)
    assert len(await session.get_items()) == 3


async def test_a_session_without_replace_is_refused() -> None:
    """The error says what is needed."""
    with pytest.raises(UserTypeError, match="replace"):
        await compact(object(), lambda old: [], keep=1)  # type: ignore[arg-type]
