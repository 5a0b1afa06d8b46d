"""A model reads an output again that was cleared from its history: from the log, which still has it."""

from typing import Any

import pytest
from kit.results import read_shown_outputs
from kit.resuming import cut_in_call
from kit.windows import PAGE, compactions, make_agent, read

from agentloop import Agent, ClearToolOutputs, ContextPolicy, RunConfig, Runner, StateError, tool
from agentloop.context import ToolContext
from agentloop.items import Image, Text, ToolCall, ToolOutput, UserMessage
from agentloop.journal import MemoryJournal
from agentloop.records import CallSettled, RunStarted
from agentloop.sessions import MemorySession
from agentloop.testing import FunctionModel, ScriptedModel, call, replay, say

pytestmark = pytest.mark.scenario("CX-06")
POLICY = ContextPolicy(window=3_000, steps=[ClearToolOutputs(keep_last=1)], recall=True)
PAGES = [call("read", {"page": page}) for page in range(1, 5)]
FIRST = "page 1: " + "x" * PAGE


def asked(**arguments: Any) -> Any:
    """Return the model's call of the tool."""
    return call("recall_output", arguments, call_id="again")


async def recall(run_mode: Any, step: Any, *, policy: ContextPolicy = POLICY, **changes: Any) -> tuple[Any, Any]:
    """Return what the model is shown of *step*, a call behind four pages, and the result."""
    model = ScriptedModel([*PAGES, step, say("done")])
    agent = make_agent(policy, model, **changes)
    result = await run_mode(agent, "Read.")
    assert compactions(result.records)
    return read_shown_outputs(agent)["again"], result


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, FIRST),
        ({"chars": 10}, FIRST[:10]),
        ({"start": 5, "chars": 7}, FIRST[5:12]),
        ({"start": PAGE, "chars": 500}, FIRST[PAGE:]),
    ],
)
async def test_a_cleared_output_is_read_again_from_its_start(run_mode: Any, arguments: Any, text: str) -> None:
    """Exactly, and as a call like others."""
    shown, result = await recall(run_mode, asked(call_id="call_1", **arguments))
    assert shown == text
    [settled] = [one for one in result.calls if one.call.name == "recall_output"]
    assert settled.outcome.status == "succeeded"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"call_id": "call_77"}, "There is no output of a call 'call_77' in this conversation."),
        ({"call_id": "call_1", "start": 99_999}, "start must be a position in it"),
        ({"call_id": "call_1", "start": -1}, "start must be a position in it"),
        ({"call_id": "call_1", "chars": 0}, "chars at least 1"),
    ],
)
async def test_what_is_not_there_is_an_error_text(run_mode: Any, arguments: Any, said: str) -> None:
    """The run goes on."""
    shown, result = await recall(run_mode, asked(**arguments))
    assert said in shown
    assert result.final_output == "done"


async def test_a_secret_output_is_not_read_again(run_mode: Any) -> None:
    """Its text stays where it is."""

    @tool(secret_output=True)
    def unlock() -> str:
        """Unlock."""
        return "treasure " * 400

    model = ScriptedModel([call("unlock", call_id="hidden"), *PAGES, asked(call_id="hidden"), say("done")])
    agent = make_agent(POLICY, model, tools=[read, unlock])
    await run_mode(agent, "Read.")
    assert read_shown_outputs(agent)["again"] == "The output of call 'hidden' can't be read again: it is withheld."


async def test_a_withheld_output_is_not_read_again() -> None:
    """A stored run has its digest only."""
    from agentloop._core.recall import find_output
    from agentloop._core.run_fold import RunFold
    from agentloop._storage.withholding import WithheldText

    fold = RunFold()
    fold.apply(RunStarted((), 0, 0.0, "run", "guide", (), None))
    fold.new_items.append(ToolOutput("c", WithheldText('{"$digest": "…"}')))
    fold.new_items.append(ToolOutput("parts", (Text("one"), Image("http://i"), Text("two"))))
    fold.new_items.append(ToolOutput("image", (Image("http://i"),)))
    for call_id, said in (("c", "it is withheld"), ("image", "has no text"), ("d", "There is no output")):
        with pytest.raises(LookupError, match=said):
            find_output(fold, call_id)
    assert find_output(fold, "parts") == "one\ntwo"


async def test_an_output_of_another_run_is_unknown(run_mode: Any) -> None:
    """Neither a nested run's nor the outer one's."""
    inner = Agent("inner", model=ScriptedModel([asked(call_id="call_1"), say("inner done")]), context=POLICY)
    model = ScriptedModel([PAGES[0], call("ask", {"input": "go"}), say("done")])
    outer = Agent("outer", model=model, tools=[read, inner.as_tool("ask", "Asks.")])
    await run_mode(outer, "go")
    assert "There is no output of a call 'call_1'" in str(read_shown_outputs(inner)["again"])


async def test_an_output_of_the_session_is_read_again(run_mode: Any) -> None:
    """It was in the history that the run began with."""
    given = [UserMessage("old"), ToolCall("old", "read"), ToolOutput("old", "long ago"), UserMessage("Read.")]
    model = ScriptedModel([asked(call_id="old"), say("done")])
    agent = make_agent(POLICY, model)
    await run_mode(agent, given)
    assert read_shown_outputs(agent)["again"] == "long ago"


async def test_an_output_that_the_session_has_cleared_is_an_error_text(run_mode: Any) -> None:
    """The placeholder isn't given for the output: only the log of the earlier run has that."""
    session = MemorySession()
    await run_mode(make_agent(POLICY, ScriptedModel([*PAGES, say("read")])), "Read.", session=session)
    agent = make_agent(POLICY, ScriptedModel([asked(call_id="call_1"), say("done")]))
    await run_mode(agent, "What was on the first page?", session=session)
    said = "The output of call 'call_1' was cleared in an earlier run, and can't be read again."
    assert read_shown_outputs(agent)["again"] == said


async def test_the_policy_of_a_run_gives_the_tool_to_its_agents(run_mode: Any) -> None:
    """And without `recall` nobody has it."""
    model = ScriptedModel([say("hi"), say("hi"), say("hi")])
    agent = make_agent(None, model)
    for config in (RunConfig(context=POLICY), RunConfig(context=ContextPolicy(window=3_000)), RunConfig()):
        await run_mode(agent, "go", run_config=config)
    names = [[one.name for one in request.tools] for request in model.requests]
    assert names == [["read", "recall_output"], ["read"], ["read"]]


def test_a_recalled_output_is_replayed_and_survives_a_crash() -> None:
    """It comes from the log in any case."""
    model = [*PAGES, asked(call_id="call_1", chars=9), say("done")]
    agent = make_agent(POLICY, ScriptedModel(model))
    journal = MemoryJournal()
    result = Runner.run_sync(agent, "Read.", journal=journal)
    assert replay(result, agent).records == result.records


def make_tree(place: str) -> tuple[Agent[Any, Any], RunConfig]:
    """Return an agent and a configuration, of which one has the policy, and by which a run begins that recalls."""
    own, config = (POLICY, RunConfig()) if "agent" in place else (None, RunConfig(context=POLICY))
    steps = [PAGES[0], asked(call_id="call_1", chars=9), say("done")]
    agent = make_agent(own, FunctionModel(lambda request: steps[request.turn - 1]))
    if "nested" not in place:
        return agent, config
    body = agent.as_tool("ask", "Asks.", run_config=config)
    model = FunctionModel(lambda request: [call("ask", {"input": "go"}, call_id="ask"), say("done")][request.turn - 1])
    return Agent("outer", model=model, tools=[body]), RunConfig()


@pytest.mark.parametrize("place", ["agent", "run", "nested agent", "nested run"])
async def test_a_run_is_resumed_that_was_cut_while_it_recalled(run_mode: Any, place: str) -> None:
    """The tool is none of the agent's own, and the run has it all the same."""
    agent, config = make_tree(place)
    state = await cut_in_call(agent, "Read.", "again", run_config=config)
    result = await run_mode(agent, state, run_config=config)
    assert result.final_output == "done"
    read_again = [one.outcome.output for one in result.to_state().records if isinstance(one, CallSettled)]
    assert read_again == ["page 1: " + "x" * PAGE, "page 1: x", *(["done"] if "nested" in place else [])]


async def test_a_run_cut_while_it_recalled_needs_a_policy_that_recalls(run_mode: Any) -> None:
    """Else the tool is gone, as any other may be."""
    agent, config = make_tree("run")
    state = await cut_in_call(agent, "Read.", "again", run_config=config)
    with pytest.raises(StateError, match="'again' waits for tool 'recall_output'"):
        await run_mode(agent, state)


def test_outside_of_a_run_there_is_nothing_to_read() -> None:
    """A context made by hand has no log."""
    with pytest.raises(LookupError, match="There is no run"):
        ToolContext(context=None, tool_name="t", tool_call_id="c")._run.find_output("call_1")
