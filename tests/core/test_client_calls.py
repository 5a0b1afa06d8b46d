"""Some items of a response demand an answer that the library can't give."""

from typing import Any

import pytest
from core.folding import Writer, called, view_of

from agentloop._core.client_calls import describe_item, find_unanswered, is_call, says_nothing
from agentloop._core.next_action import CheckOutput, RequestModel, Settle, next_action
from agentloop._core.plan import PlanRules
from agentloop._core.planner import plan_response
from agentloop.exceptions import ModelBehaviorError
from agentloop.items import (
    ApprovalRequest,
    AssistantMessage,
    Compaction,
    HostedToolCall,
    Item,
    OpaqueItem,
    Reasoning,
    Refusal,
    ToolCall,
)


def opaque(type_: Any, **data: Any) -> OpaqueItem:
    """Return an item of a kind unknown here."""
    return OpaqueItem({"type": type_, **data})


DEMANDING: dict[str, Item] = {
    "computer": opaque("computer_call", call_id="k1", id="cu_1", status="completed", action={"type": "click"}),
    "computer without ids": opaque("computer_call"),
    "computer as hosted": HostedToolCall("computer_call", {"action": {}}, "cu_1"),
    "computer as hosted, with a call id": HostedToolCall("computer", {"call_id": "k1"}),
    "local shell": opaque("local_shell_call", call_id="k1", status="completed"),
    "custom tool": opaque("custom_tool_call", call_id="k1", name="grep", input="x"),
    "unknown call": opaque("hologram_call", id="h1"),
    "unknown call in progress": opaque("hologram_call", id="h1", status="in_progress"),
    "unknown call with a call id": opaque("hologram", call_id="k1"),
    "tool use": opaque("tool_use", id="t1", name="grep", input={}),
    "request for approval": opaque("mcp_approval_request", id="a1", name="delete"),
    "hosted request for approval": HostedToolCall("mcp_approval_request", {"name": "delete"}, "a1"),
    "tool search of the client": HostedToolCall(
        "tool_search_call", {"execution": "client", "arguments": {}}, "ts_1", "completed", None, "k1"
    ),
    "interruption": ApprovalRequest(ToolCall("c", "f"), "guide"),
    "no answer yet": opaque("computer_call", call_id="k1", output=None),
}
ANSWERED: dict[str, Item] = {
    "tool search of the provider": HostedToolCall("tool_search_call", {"execution": "server"}, "ts_1"),
    "web search": HostedToolCall("web_search", {"query": "x"}),
    "bare": HostedToolCall("search"),
    "hosted with output": HostedToolCall("code_interpreter_call", {"call_id": "k1", "outputs": []}),
    "hosted with an output of its own": HostedToolCall("computer_call", {}, "cu_1", "completed", {"url": "…"}, "k1"),
    "unknown, done": opaque("web_search_call", id="ws_1", status="completed", action={"query": "x"}),
    "unknown with result": opaque("image_generation_call", id="ig_1", result="…"),
    "unknown with results": opaque("file_search_call", id="fs_1", results=[]),
}
NO_CALLS: dict[str, Item] = {
    "hologram": opaque("hologram", depth=3.5),
    "no kind": OpaqueItem({}),
    "kind of another type": opaque(7),
    "output": opaque("hologram_call_output", call_id="k1"),
    "result": opaque("tool_result", tool_use_id="k1"),
    "compaction": Compaction({}),
}


def in_turn(*items: Item) -> Writer:
    """Return a run whose model has answered with *items*."""
    return Writer().begin().turn(*items)


@pytest.mark.scenario("RP-07")
@pytest.mark.parametrize("item", DEMANDING.values(), ids=list(DEMANDING))
@pytest.mark.parametrize("typed", [False, True], ids=["text", "typed"])
def test_a_response_that_ends_in_a_demand_can_not_be_planned(item: Item, typed: bool) -> None:
    """The demand may be alone, behind reasoning or an answered hosted call, or beside a message without words."""
    view = view_of(output=object() if typed else None)
    for items in ([item], [Reasoning("r"), item], [AssistantMessage(" "), item], [HostedToolCall("search"), item]):
        assert find_unanswered(items) is item
        state = in_turn(*items).state
        assert next_action(state, view) == Settle()
        with pytest.raises(ModelBehaviorError) as caught:
            plan_response(view, state, PlanRules())
        assert describe_item(item) in str(caught.value)


@pytest.mark.scenario("RP-07")
@pytest.mark.parametrize("item", ANSWERED.values(), ids=list(ANSWERED))
def test_a_call_that_the_provider_answered_leads_to_another_turn(item: Item) -> None:
    """A hosted call is no answer to the user."""
    assert find_unanswered([item]) is None
    assert is_call(item)
    assert next_action(in_turn(item).state, view_of()) == RequestModel()


@pytest.mark.parametrize("item", NO_CALLS.values(), ids=list(NO_CALLS))
def test_other_items_demand_nothing(item: Item) -> None:
    """An item of any other kind demands no answer, and an output answers its call."""
    assert find_unanswered([item]) is None
    assert not is_call(item)
    assert next_action(in_turn(item).state, view_of()) == CheckOutput("")


@pytest.mark.scenario("RP-07")
@pytest.mark.parametrize(
    "items",
    [
        [opaque("shell_call", call_id="k1"), opaque("shell_call_output", call_id="k1", output="x")],
        [opaque("server_tool_use", id="t1"), opaque("web_search_tool_result", tool_use_id="t1")],
        [HostedToolCall("shell_call", {"call_id": "k1"}), HostedToolCall("shell_call_output", {"call_id": "k1"})],
        [
            HostedToolCall("shell_call", {}, "sh_1", "completed", None, "k1"),
            HostedToolCall("shell_call_output", {}, "so_1", "completed", [{"stdout": "x"}], "k1"),
        ],
        [opaque("mcp_approval_request", id="a1"), opaque("mcp_approval_response", approval_request_id="a1")],
    ],
)
def test_a_call_whose_output_came_with_it_is_answered(items: list[Item]) -> None:
    """An output answers the call whose id it names, and no other call."""
    assert find_unanswered(items) is None
    assert next_action(in_turn(*items).state, view_of()) == RequestModel()
    assert find_unanswered(items[:1]) is items[0]
    assert find_unanswered([items[0], opaque("x_output", call_id="another")]) is items[0]


def test_what_else_a_response_has_is_gone_on_with() -> None:
    """Words end the run and function calls are run; the provider will report the unanswered demand beside them."""
    item = DEMANDING["computer"]
    assert next_action(in_turn(item, AssistantMessage("done")).state, view_of()) == CheckOutput("done")
    assert next_action(in_turn(item, AssistantMessage([Refusal("no")])).state, view_of()) != Settle()
    state = in_turn(item, called("a")).state
    assert state.unusable_reason is None
    assert next_action(state, view_of()) == Settle()


def test_the_next_turn_is_not_judged_by_the_last_one() -> None:
    """A fault of one response does not count against the next response."""
    writer = in_turn(DEMANDING["computer"])
    writer.turn(AssistantMessage("done"))
    assert next_action(writer.state, view_of()) == CheckOutput("done")


def test_a_demand_is_named_by_its_kind_and_id() -> None:
    """The name has the id that an output would need, cut to a length; a demand without an id is named by its kind."""
    assert describe_item(DEMANDING["computer"]) == "'computer_call' with id 'k1'"
    assert describe_item(DEMANDING["computer as hosted"]) == "'computer_call' with id 'cu_1'"
    assert describe_item(HostedToolCall("shell_call", {}, "sh_1", call_id="k1")) == "'shell_call' with id 'k1'"
    assert describe_item(DEMANDING["computer without ids"]) == "'computer_call'"
    assert describe_item(DEMANDING["interruption"]) == "ApprovalRequest"
    assert len(describe_item(opaque("x" * 5_000 + "_call", call_id="y" * 5_000))) < 200


@pytest.mark.parametrize(
    ("item", "nothing"),
    [
        (Reasoning("r"), True),
        (AssistantMessage(""), True),
        (AssistantMessage(" \n"), True),
        (AssistantMessage(()), True),
        (AssistantMessage("x"), False),
        (AssistantMessage([Refusal("no")]), False),
        (HostedToolCall("search"), False),
        (called("a"), False),
    ],
)
def test_reasoning_and_blank_messages_say_nothing(item: Item, nothing: bool) -> None:
    """A refusal says something, and so does every call."""
    assert says_nothing(item) is nothing


# ---------------------------------------------------------------------------------------------- repeats


@pytest.mark.scenario("RP-18")
@pytest.mark.parametrize("beside", [[], [Reasoning("r")], [AssistantMessage("")]], ids=["alone", "reasoning", "blank"])
def test_the_second_response_of_repeats_alone_can_not_be_planned(beside: list[Item]) -> None:
    """The first response of repeats gets another turn with the outputs there are."""
    writer = in_turn(called("a")).settle("a").accept()
    writer.turn(*beside, called("a"))
    assert next_action(writer.state, view_of()) == RequestModel()
    writer.turn(called("a"), *beside)
    assert next_action(writer.state, view_of()) == Settle()
    with pytest.raises(ModelBehaviorError, match=r"twice in a row.*'a'.*'f'"):
        plan_response(view_of(), writer.state, PlanRules())


@pytest.mark.scenario("RP-18")
@pytest.mark.parametrize(
    "between",
    [called("b"), HostedToolCall("search")],
    ids=["another call", "the provider's call"],
)
def test_repeats_that_do_not_follow_each_other_are_answered(between: Item) -> None:
    """A new call or message in between is progress, so the repeated call is answered."""
    writer = in_turn(called("a")).settle("a").accept().turn(called("a")).turn(between)
    if isinstance(between, ToolCall):
        writer.settle("b").accept()
    writer.turn(called("a"))
    assert next_action(writer.state, view_of()) == RequestModel()


def test_a_repeat_beside_words_is_not_a_repeat_alone() -> None:
    """Words are the candidate, in every such response."""
    writer = in_turn(called("a")).settle("a").accept()
    for _ in range(3):
        writer.turn(called("a"), AssistantMessage("done"))
        assert next_action(writer.state, view_of()) == CheckOutput("done")
