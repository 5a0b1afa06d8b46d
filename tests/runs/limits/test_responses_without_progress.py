"""Responses that lead to nothing: a demand without an answer, and calls that are answered already."""

from typing import Any

import pytest
from kit.agents import Run, make_agent, script_turns
from kit.results import describe, find_outcome, find_records, read_outputs, read_requests, read_shown_outputs
from kit.resuming import make_journal

from agentloop import Agent, ModelBehaviorError, RunConfig, RunHooks, RunState, StateError, tool
from agentloop import records as r
from agentloop.items import AssistantMessage, HandoffCall, HostedToolCall, Item, OpaqueItem, Reasoning
from agentloop.journal import MemoryJournal
from agentloop.sessions import MemorySession
from agentloop.testing import ScriptedModel, call, respond, say

COMPUTER = OpaqueItem({"type": "computer_call", "call_id": "k1", "action": {"type": "click"}})
UNKNOWN = OpaqueItem({"type": "hologram_call", "id": "h1"})
HOSTED = HostedToolCall("computer_call", {"call_id": "k1"})
demanding = pytest.mark.parametrize("item", [COMPUTER, UNKNOWN, HOSTED], ids=["computer", "unknown", "hosted"])


@tool
async def look(n: int = 0) -> str:
    """Look."""
    return f"saw {n}"


# ---------------------------------------------------------------------------------------------- demands


@pytest.mark.scenario("RP-07")
@demanding
@pytest.mark.parametrize("typed", [False, True], ids=["text", "typed"])
@pytest.mark.parametrize("turn", [1, 2])
async def test_a_demand_that_nobody_answers_is_the_model_s_fault(
    run_mode: Run, item: Item, typed: bool, turn: int
) -> None:
    """The error names the item; the model's end hook has run, nothing else is asked, and the run is over."""
    heard: list[Any] = []

    class Hooks(RunHooks):
        async def on_llm_end(self, ctx: Any, agent: Any, response: Any) -> None:
            heard.append(response)

    steps = [call("look", {}, "c1"), respond(Reasoning("r"), item)][2 - turn :]
    agent = make_agent([look], *steps, output_type=int if typed else None)
    with pytest.raises(ModelBehaviorError, match=r"(computer|hologram)_call' with id '(k1|h1)'") as caught:
        await run_mode(agent, "go", hooks=Hooks())
    assert len(read_requests(agent)) == len(heard) == turn
    data = caught.value.run_data
    assert data is not None
    assert data.raw_responses[-1].items[-1] is item
    [end] = find_records(data, r.RunEnded)
    assert (end.status, end.final_output, end.resumable) == ("failed", None, False)
    with pytest.raises(StateError, match="_call"):
        await run_mode(agent, RunState(agent, data.records))


@pytest.mark.scenario("RP-07")
@demanding
async def test_a_session_is_not_given_a_demand_that_nobody_answers(run_mode: Run, item: Item) -> None:
    """The session keeps the items of the earlier turns, and the next run on it can continue."""
    session = MemorySession("s")
    agent = make_agent([look], call("look", {}, "c1"), respond(Reasoning("r"), item))
    with pytest.raises(ModelBehaviorError):
        await run_mode(agent, "go", session=session)
    assert describe(await session.get_items()) == ["user:go", "call:look#c1", "output:saw 0#c1"]
    assert (await run_mode(agent, "again", session=session)).final_output == "done"


@pytest.mark.scenario("RP-07")
@demanding
async def test_a_demand_is_found_again_after_a_crash(run_mode: Run, item: Item) -> None:
    """The log breaks off with the response, and the resumed run raises the same error without a model call."""
    agent = Agent("guide", model=script_turns(respond(item), say("no")))
    journal = MemoryJournal()
    with pytest.raises(ModelBehaviorError):
        await run_mode(agent, "go", journal=journal)
    lines = await journal.read()
    state = await RunState.from_journal(agent, await make_journal(lines[:-1]))
    assert isinstance(state.records[-1], r.ModelResponded)
    before = len(read_requests(agent))
    with pytest.raises(ModelBehaviorError, match="_call"):
        await run_mode(agent, state)
    assert len(read_requests(agent)) == before


@pytest.mark.scenario("RP-07")
@demanding
async def test_a_demand_of_a_nested_run_is_told_by_its_tool_s_policy(run_mode: Run, item: Item) -> None:
    """The demand doesn't pass for an empty answer: the call fails, and the outer model receives the error."""
    inner = Agent("inner", model=ScriptedModel([respond(item)]))
    agent = make_agent([inner.as_tool("ask", "asks")], call("ask", {"input": "x"}, "c1"))
    result = await run_mode(agent, "go")
    assert find_outcome(result, "c1").status == "failed"
    assert "_call" in str(read_shown_outputs(agent)["c1"])


@pytest.mark.scenario("RP-07", "OS-01", "PL-21")
@pytest.mark.parametrize(
    "items",
    [
        (HostedToolCall("web_search", {"query": "x"}),),
        (OpaqueItem({"type": "web_search_call", "id": "w", "status": "completed"}),),
        (HOSTED, HostedToolCall("computer_call_output", {"call_id": "k1"})),
    ],
    ids=["hosted", "unknown here", "with its output"],
)
async def test_what_the_provider_answered_leads_to_another_turn(run_mode: Run, items: tuple[Item, ...]) -> None:
    """The run asks the model again, and the items stay in the history."""
    agent = make_agent([], respond(*items))
    result = await run_mode(agent, "go")
    assert result.final_output == "done"
    assert read_requests(agent)[1].items[1:] == items


@pytest.mark.scenario("RP-07", "OS-01")
async def test_words_beside_a_demand_are_the_answer(run_mode: Run) -> None:
    """The message is the final output, because the response has more than the demand."""
    agent = make_agent([], respond(COMPUTER, AssistantMessage("found it")), done=None)
    assert (await run_mode(agent, "go")).final_output == "found it"


# ---------------------------------------------------------------------------------------------- repeats


@pytest.mark.scenario("RP-18")
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("typed", [False, True], ids=["text", "typed"])
async def test_a_model_that_asks_twice_for_what_it_has_fails_the_run(run_mode: Run, count: int, typed: bool) -> None:
    """The run fails with the third response, long before the turns are spent; no call has run twice."""
    ran: list[int] = []

    @tool
    async def work(n: int) -> str:
        ran.append(n)
        return "worked"

    calls = [call("work", {"n": n}, f"call_{n}") for n in range(count)]
    agent = make_agent([work], *[calls] * 10, done=None, output_type=int if typed else None)
    with pytest.raises(ModelBehaviorError, match=r"twice in a row.*'call_0'.*'work'") as caught:
        await run_mode(agent, "go", max_turns=100)
    assert sorted(ran) == list(range(count))
    assert len(read_requests(agent)) == 3
    data = caught.value.run_data
    assert data is not None
    assert read_outputs(data.new_items) == {f"call_{n}": "worked" for n in range(count)}


@pytest.mark.scenario("RP-18", "PL-04")
async def test_repeats_that_something_new_comes_between_are_answered(run_mode: Run) -> None:
    """Repeats are answered without a limit when a new call comes between them."""
    repeat = call("look", {"n": 1}, "c")
    news = [call("look", {"n": n}, f"d{n}") for n in range(4)]
    steps = [step for new in news for step in (repeat, new)]
    agent = make_agent([look], repeat, *steps, repeat)
    result = await run_mode(agent, "go", max_turns=None)
    assert result.final_output == "done"
    assert list(read_outputs(result.new_items)) == ["c", "d0", "d1", "d2", "d3"]


@pytest.mark.scenario("RP-18")
async def test_a_pause_between_two_repeats_forgets_none_of_them(run_mode: Run) -> None:
    """The pause keeps the count of repeats, because it follows from the log."""
    agent = make_agent([look], *[call("look", {}, "c")] * 5, done=None)
    stopped = await run_mode(agent, "go", run_config=RunConfig(stop_when=lambda ctx: len(read_requests(agent)) == 2))
    assert stopped.status == "stopped"
    with pytest.raises(ModelBehaviorError, match="twice in a row"):
        await run_mode(agent, RunState.from_string(agent, stopped.to_state().to_string()))
    assert len(read_requests(agent)) == 3


@pytest.mark.scenario("RP-18")
async def test_a_handoff_asked_for_again_is_a_repeat_too(run_mode: Run) -> None:
    """The handoff is a repeat because the agent it led to is at work already."""
    second = Agent("second", model=ScriptedModel([respond(HandoffCall("h", "transfer_to_second", "{}"))] * 5))
    first = Agent("first", model=ScriptedModel([respond(HandoffCall("h", "transfer_to_second", "{}"))]))
    first.handoffs = [second]
    with pytest.raises(ModelBehaviorError, match=r"twice in a row.*'h'.*'transfer_to_second'"):
        await run_mode(first, "go")
    assert len(read_requests(second)) == 2


@pytest.mark.scenario("RP-18")
async def test_a_nested_run_that_stalls_is_its_call_s_failure(run_mode: Run) -> None:
    """The outer model receives the reason of the nested run's failure."""
    inner = Agent("inner", model=ScriptedModel([call("look", {}, "c")] * 5), tools=[look])
    agent = make_agent([inner.as_tool("ask", "asks")], call("ask", {"input": "x"}, "c1"))
    result = await run_mode(agent, "go")
    assert "twice in a row" in str(read_shown_outputs(agent)["c1"])
    assert result.final_output == "done"
    assert len(read_requests(inner)) == 3
