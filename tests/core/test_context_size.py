"""The size of a history in tokens: what the provider has counted, an estimate behind it, and when it is too much."""

from types import SimpleNamespace
from typing import Any

import pytest
from core.folding import Writer, called

from agentloop import ContextPolicy, UserError
from agentloop import records as r
from agentloop._compacting import context_due, make_context_view
from agentloop._core.context_size import count_context, find_counted
from agentloop._core.turn_view import TurnView
from agentloop.items import AssistantMessage, UserMessage
from agentloop.model_events import ModelInfo
from agentloop.settings import ModelSettings
from agentloop.usage import RequestUsage
from agentloop.window import estimate_tokens
from agentloop.window.measure import Counted

POLICY = ContextPolicy(window=1_000, steps=[])


def view(window: int | None = None) -> TurnView:
    """Return a turn's view with a model of so large a window."""
    model: Any = SimpleNamespace(info=ModelInfo("p", "m", context_window=window))
    return TurnView(
        agent="guide", system="Be brief.", tools=(), by_key={}, settings=ModelSettings(), model=model, shown=b"]"
    )


def used(tokens_in: int, tokens_out: int = 10) -> RequestUsage:
    """Return the usage of one request."""
    return RequestUsage(input_tokens=tokens_in, output_tokens=tokens_out)


def test_before_the_first_answer_all_is_an_estimate() -> None:
    """Nobody has counted yet."""
    state = Writer().begin().state
    assert find_counted(state) is None
    assert count_context(state) == estimate_tokens(state.history)
    assert make_context_view(state, view(), 1_000, 500).tokens == estimate_tokens(state.history) + 4


def test_the_last_answer_is_the_authority() -> None:
    """Its tokens in and out are the history as far as that answer; only what came since is estimated."""
    writer = Writer().begin().turn(called("c"), usage=used(700))
    assert count_context(writer.state) == 710
    writer.settle("c", "x" * 300).accept()
    assert find_counted(writer.state) == Counted(710, 2)
    assert count_context(writer.state) == 710 + estimate_tokens(writer.state.history[2])
    assert make_context_view(writer.state, view(), 1_000, 500).tokens == count_context(writer.state)


def test_an_answer_without_usage_leaves_the_count_before_it() -> None:
    """A provider may tell it for some answers only."""
    writer = Writer().begin().turn(called("c"), usage=used(100)).settle("c").accept().turn(AssistantMessage("hm"))
    assert find_counted(writer.state) == Counted(110, 2)


def test_an_answer_with_no_item_of_its_own_leaves_no_count() -> None:
    """It can't be found in the history: a repeated call isn't in it again."""
    writer = Writer().begin().turn(called("c"), usage=used(100)).settle("c").accept().turn(called("c"), usage=used(150))
    assert find_counted(writer.state) is None


def test_a_replaced_history_has_no_count_but_that_of_its_compaction() -> None:
    """What was counted before doesn't fit any more."""
    writer = Writer().begin().turn(AssistantMessage("hm"), usage=used(900))
    writer.append(r.HistoryReplaced, "compaction", 1, (UserMessage("x"),), tokens_before=910, tokens=300)
    assert find_counted(writer.state) == Counted(300, 2)
    assert writer.state.compactions == 1
    writer.turn(AssistantMessage("more"), usage=used(320))
    assert find_counted(writer.state) == Counted(330, 3)
    writer.append(r.HistoryReplaced, "handoff_filter", 1, ())
    assert find_counted(writer.state) is None
    assert writer.state.compacted is None
    assert writer.state.compactions == 1


def test_items_are_measured_by_the_scale_of_the_count() -> None:
    """Where the provider counted twice the estimate, it does so for what a step takes away."""
    writer = Writer().begin().turn(AssistantMessage("y" * 4_000), usage=used(2_100))
    found = make_context_view(writer.state, view(), 1_000, 500)
    assert found.tokens == 2_110
    assert 1.5 < found.scale < 2.5
    assert found.measure(found.items[:1]) < 100


def test_a_count_that_no_estimate_comes_near_has_a_bounded_scale() -> None:
    """The rest is what isn't an item: it stays, whatever a step takes away."""
    writer = Writer().begin().turn(AssistantMessage("y"), usage=used(900))
    found = make_context_view(writer.state, view(), 1_000, 500)
    assert found.scale == 4.0
    assert found.tokens == 910
    assert found.measure(()) > 800


def test_an_empty_history_has_no_scale() -> None:
    """A handoff's filter may leave nothing."""
    writer = Writer().begin().turn(AssistantMessage("y"), usage=used(90))
    writer.append(r.HistoryReplaced, "compaction", 0, (), tokens_before=100, tokens=7)
    found = make_context_view(writer.state, view(), 1_000, 500)
    assert (found.scale, found.tokens) == (1.0, 7)


def test_it_is_due_above_its_start() -> None:
    """At the start itself it isn't."""
    at, above = (Writer().begin().turn(AssistantMessage(""), usage=used(tokens, 0)).state for tokens in (800, 801))
    assert context_due(at, view(), POLICY) is None
    found = context_due(above, view(), POLICY)
    assert found is not None
    assert (found.tokens, found.window, found.target) == (801, 1_000, 500)


def test_after_a_missed_target_it_waits_until_the_history_has_grown() -> None:
    """By a tenth of the window, or to the window's end: a cache and a summary that are paid each turn help nobody."""
    writer = Writer().begin()
    writer.append(r.HistoryReplaced, "compaction", 1, (), tokens_before=990, tokens=850)
    writer.turn(AssistantMessage(""), usage=used(940, 0))
    assert context_due(writer.state, view(), POLICY) is None
    writer.turn(AssistantMessage(""), usage=used(951, 0))
    assert context_due(writer.state, view(), POLICY) is not None


def test_the_models_own_window_is_used_where_the_policy_has_none() -> None:
    """And nothing can be done where nobody knows it."""
    state = Writer().begin().turn(AssistantMessage(""), usage=used(90, 0)).state
    assert context_due(state, view(100), ContextPolicy()) is not None
    assert context_due(state, view(200), ContextPolicy()) is None
    with pytest.raises(UserError, match=r"ContextPolicy\(window=…\)"):
        context_due(state, view(), ContextPolicy())


def test_the_runs_own_input_is_the_task() -> None:
    """It stays, though a session's items come before it and the library's notes after it."""
    old, note = UserMessage("earlier"), UserMessage("2 turns left.")
    state = Writer().begin(shown=(old, UserMessage("go"))).state
    state.apply(r.HistoryReplaced((), 0, 0.0, "turns_left", 2, (note,), added=True))
    found = make_context_view(state, view(), 1_000, 500)
    assert found.task == UserMessage("go")
    assert make_context_view(Writer().state, view(), 1_000, 500).task is None


@pytest.mark.scenario("CX-09")
def test_a_history_that_the_provider_keeps_is_refused() -> None:
    """No step can change it."""
    writer = Writer()
    writer.append(r.RunStarted, "run", "guide", (UserMessage("go"),), None, kept=True)
    with pytest.raises(UserError, match="the provider keeps the conversation"):
        context_due(writer.state, view(), POLICY)
