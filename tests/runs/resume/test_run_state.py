"""A run's state as a stored value: what survives the way to JSON and back, and what is refused there."""

import copy
import json
import logging
from collections.abc import Callable
from typing import Any

import pytest
from kit.agents import PASSED, Run, make_input_guard, script_turns
from kit.results import describe, find_records
from kit.resuming import copy_state, restore_approved, restore_paused

from agentloop import Agent, RunConfig, Runner, RunState, StateError, handoff, tool
from agentloop import records as r
from agentloop.abc import Instrument
from agentloop.exceptions import UserTypeError
from agentloop.items import ApprovalRequest, AssistantMessage, ToolCall
from agentloop.testing import ScriptedModel, call, respond, say
from agentloop.usage import RequestUsage


@tool(needs_approval=True)
async def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


@tool(idempotent=True)
async def look(place: str = "here") -> str:
    """Look."""
    return f"nothing {place}"


def waiting_agent(**fields: Any) -> Agent[Any, Any]:
    """Return an agent that looks, and asks to pay."""
    steps = [
        call("look", call_id="l0"),
        [call("look", {"place": "there"}, call_id="l1"), call("pay", {"amount": 3}, call_id="p1")],
        say("done", RequestUsage(input_tokens=5, output_tokens=2, total_tokens=7)),
    ]
    return Agent("guide", model=script_turns(*steps), tools=[look, pay], **fields)


async def waiting(**fields: Any) -> RunState:
    """Return the state of a run of `waiting_agent` that waits for a verdict."""
    result = await Runner.run(waiting_agent(**fields), "go")
    assert result.status == "interrupted"
    state: RunState = result.to_state()
    return state


# ---------------------------------------------------------------------------------------------- there and back


@pytest.mark.scenario("RS-01")
@pytest.mark.parametrize("stage", ["waits", "decided", "completed", "cut short"])
async def test_json_of_a_state_read_from_json_is_the_same(stage: str) -> None:
    """The JSON is the same at a pause, after a verdict, at the end and in the middle; as values and as text."""
    state = await waiting()
    if stage == "decided":
        state.approve("p1", always=True)
    elif stage == "completed":
        state.approve("p1")
        state = (await Runner.run(state.agent, state)).to_state()
    elif stage == "cut short":
        state = RunState(state.agent, state.records[:-4])
    data = state.to_json()
    over_the_wire = json.loads(json.dumps(data))
    restored = RunState.from_json(state.agent, over_the_wire)
    assert restored == state
    assert restored.to_json() == data
    assert restored.to_string() == state.to_string()
    assert RunState.from_string(state.agent, state.to_string()).to_json() == data


@pytest.mark.scenario("LX-81", "RS-01")
async def test_a_loaded_state_equals_the_saved_one_receipts_included() -> None:
    """A loaded state keeps the receipts that an equal call of an idempotent tool finds, under the same keys."""
    state = await waiting()
    loaded = copy_state(state)
    assert loaded == state
    assert loaded._fold.receipts == state._fold.receipts
    assert sorted(loaded._fold.receipts.values()) == ["l0", "l1"]
    assert copy_state(loaded) == state
    loaded.approve("p1")
    assert loaded != state


@pytest.mark.scenario("US-09")
async def test_usage_survives_storing_with_its_entries() -> None:
    """The stored state keeps sums, requests without usage, and each request's own entry."""
    usage = RequestUsage(input_tokens=11, output_tokens=4, total_tokens=15, cached_tokens=3, reasoning_tokens=2)
    steps = [
        respond(ToolCall("l0", "look"), usage=usage),
        call("pay", {"amount": 1}, call_id="p1"),
    ]
    agent = Agent("guide", model=script_turns(*steps), tools=[look, pay])
    result = await Runner.run(agent, "go")
    restored = copy_state(result.to_state())
    assert restored._fold.usage == result.usage
    assert restored._fold.usage.requests == 2
    [entry] = restored._fold.usage.entries
    assert (entry.cached_tokens, entry.reasoning_tokens, entry.total_tokens) == (3, 2, 15)


@pytest.mark.scenario("RS-12")
async def test_a_state_names_a_trace_only_where_the_run_was_traced() -> None:
    """A traced run stores the trace id that a resumed run needs and nothing else; an untraced run stores no trace."""

    class Spans(Instrument):
        def on_span_start(self, span: Any) -> None:
            pass

    config = RunConfig(instruments=[Spans()], trace_metadata={"api_key": "sk-canary-of-the-trace"})
    plain = (await Runner.run(waiting_agent(), "go")).to_state().to_string()
    assert "trace" not in plain
    traced = (await Runner.run(waiting_agent(), "go", run_config=config)).to_state()
    [started] = find_records(traced, r.RunStarted)
    assert started.trace_id
    text = traced.to_string()
    assert started.trace_id in text
    assert "canary" not in text
    assert "api_key" not in text


# ---------------------------------------------------------------------------------------------- versions


@pytest.mark.scenario("RS-02")
@pytest.mark.parametrize("version", [None, "0", "3", "1.0", 1, "", ["1"], "missing"])
async def test_a_missing_or_unknown_schema_is_refused_with_what_is_supported(version: Any) -> None:
    """Values and text with a missing or unknown schema are refused, and the error says which is supported."""
    state = await waiting()
    data = {**state.to_json(), "schema": version}
    if version == "missing":
        del data["schema"]
    with pytest.raises(StateError, match="supported: 1, 2"):
        RunState.from_json(state.agent, data)
    with pytest.raises(StateError, match="supported: 1, 2"):
        RunState.from_string(state.agent, json.dumps(data))
    assert RunState.schema_version == "2"


@pytest.mark.parametrize("data", [[], "text", None, 3, {"schema": "1"}, {"schema": "1", "records": {}}])
async def test_what_is_no_state_is_refused(data: Any) -> None:
    """Data that is no state raises a `StateError`, for every wrong type and form."""
    with pytest.raises(StateError, match="Malformed"):
        RunState.from_json(waiting_agent(), data)


@pytest.mark.parametrize("text", ["", "{", "[1]", "\ud800", '{"schema":"1","schema":"1"}', "NaN", "[" * 5000])
async def test_text_that_is_no_state_is_refused(text: str) -> None:
    """Text that is no state raises a `StateError`, for every wrong form."""
    with pytest.raises(StateError):
        RunState.from_string(waiting_agent(), text)


async def test_an_unknown_field_is_refused_and_not_quoted() -> None:
    """A field that a newer version added is refused, because its meaning can't be guessed."""
    state = await waiting()
    with pytest.raises(StateError, match="unknown") as caught:
        RunState.from_json(state.agent, {**state.to_json(), "canary": "canary"})
    assert "canary" not in str(caught.value)


# ---------------------------------------------------------------------------------------------- turns


@pytest.mark.scenario("RS-04", "MT-02")
@pytest.mark.parametrize("limit", [3, None])
async def test_turns_and_their_limit_are_kept_and_a_resume_takes_none(run_mode: Run, limit: int | None) -> None:
    """A turn is begun only for a model call; the limit counts all entries."""
    agent = waiting_agent()
    first = await run_mode(agent, "go", max_turns=limit)
    assert [record.turn for record in find_records(first, r.TurnStarted)] == [1, 2]
    state = restore_approved(first)
    assert state._fold.turn == 2
    assert state._fold.max_turns == limit
    done = await run_mode(agent, state)
    assert done.final_output == "done"
    assert [record.turn for record in find_records(done, r.TurnStarted)] == [1, 2, 3]
    assert [record.max_turns for record in find_records(done, r.RunResumed)] == [limit]


@pytest.mark.scenario("RS-04")
async def test_the_limit_is_enforced_after_a_resume(run_mode: Run) -> None:
    """The approved call runs, and the next model call exceeds the limit; the resumed run may get another limit."""
    from agentloop import MaxTurnsExceeded

    agent = waiting_agent()
    first = await run_mode(agent, "go", max_turns=2)
    with pytest.raises(MaxTurnsExceeded, match=r"Max turns \(2\) exceeded") as caught:
        await run_mode(agent, restore_approved(first))
    assert caught.value.run_data is not None
    assert [settled.outcome.output for settled in caught.value.run_data.calls][-1] == "paid 3"
    done = await run_mode(agent, restore_approved(first), max_turns=3)
    assert done.final_output == "done"


@pytest.mark.scenario("RS-04")
async def test_a_resume_that_asks_no_model_takes_no_turn(run_mode: Run) -> None:
    """With the limit reached, a tool's output may still be the final one."""
    agent = waiting_agent(tool_use_behavior="stop_on_first_tool")
    agent.model = script_turns(call("pay", {"amount": 4}, call_id="p1"))
    first = await run_mode(agent, "go", max_turns=1)
    done = await run_mode(agent, restore_approved(first))
    assert done.final_output == "paid 4"
    assert len(done.raw_responses) == 1


# ---------------------------------------------------------------------------------------------- nothing is shared


@pytest.mark.scenario("RS-09")
async def test_resuming_changes_neither_the_result_nor_the_callers_state(run_mode: Run) -> None:
    """A resume changes no records, items or usage of them; one state can be run more than once."""
    agent = waiting_agent()
    first = await run_mode(agent, "go")
    state = first.to_state()
    state.approve("p1")
    records, mine, items, usage = list(first.records), list(state.records), list(first.new_items), first.usage
    text = state.to_string()
    once = await run_mode(agent, state)
    again = await run_mode(agent, state)
    assert once.final_output == again.final_output == "done"
    assert list(first.records) == records
    assert list(state.records) == mine
    assert state.to_string() == text
    assert list(first.new_items) == items
    assert first.usage == usage
    assert first.status == "interrupted"
    assert len(first.interruptions) == 1


@pytest.mark.scenario("RS-10")
async def test_interruptions_are_values_that_fit_any_copy_of_the_state(run_mode: Run) -> None:
    """An interruption of the result approves a state restored later; a decision leaves other states unchanged."""
    agent = waiting_agent()
    first = await run_mode(agent, "go")
    [shown] = first.interruptions
    assert shown == ApprovalRequest(ToolCall("p1", "pay", '{"amount": 3}'), "guide", ())
    one, other = first.to_state(), restore_paused(first)
    one.approve(shown)
    assert one.interruptions == ()
    assert other.interruptions == (shown,)
    assert first.interruptions == (shown,)
    other.approve(first.interruptions[0])
    assert (await run_mode(agent, other)).final_output == "done"


@pytest.mark.scenario("US-08")
async def test_a_resumed_run_counts_on_from_what_was_captured(run_mode: Run) -> None:
    """Two states of one pause count for themselves, and the result they came from stays as it is."""
    usage = [RequestUsage(input_tokens=n, output_tokens=1, total_tokens=n + 1) for n in (10, 20)]
    agent = Agent("guide", tools=[pay])
    agent.model = script_turns(
        respond(ToolCall("p1", "pay", '{"amount": 1}'), usage=usage[0]),
        respond(AssistantMessage("done"), usage=usage[1]),
    )
    first = await run_mode(agent, "go")
    states = [restore_approved(first), restore_approved(first)]
    results = [await run_mode(agent, state) for state in states]
    for result in results:
        assert result.usage.requests == 2
        assert result.usage.total_tokens == 32
        assert [entry.input_tokens for entry in result.usage.entries] == [10, 20]
    assert first.usage.requests == 1
    assert first.usage.total_tokens == 11


async def test_the_agent_of_a_state_is_checked() -> None:
    """A value that is no agent is refused."""
    state = await waiting()
    with pytest.raises(UserTypeError, match="expected an Agent"):
        RunState.from_json("guide", state.to_json())  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------------------- duplicate names


def two_clerks(ran: list[str], *, swapped: bool) -> Agent[Any, Any]:
    """Return an agent that hands over to two others of one name, in one order or the other."""

    def sign_of(floor: str) -> Any:
        @tool(name="sign", needs_approval=True)
        async def sign(paper: str) -> str:
            """Sign."""
            ran.append(f"{floor}: {paper}")
            return "signed"

        return sign

    clerks = [
        Agent(
            "clerk",
            instructions=f"You sit on the {floor} floor.",
            model=script_turns(
                say("wrong turn"), call("sign", {"paper": "deed"}, call_id="s"), say(f"{floor} is done")
            ),
            tools=[sign_of(floor)],
        )
        for floor in ("first", "second")
    ]
    handoffs = [handoff(clerk, tool_name=f"to_{floor}") for clerk, floor in zip(clerks, ("a", "b"), strict=True)]
    if swapped:
        handoffs.reverse()
    return Agent("desk", model=script_turns(call("to_b", call_id="h")), handoffs=handoffs)


@pytest.mark.scenario("RS-06")
@pytest.mark.parametrize("swapped", [False, True])
async def test_of_agents_of_one_name_the_right_one_goes_on(run_mode: Run, swapped: bool) -> None:
    """The right agent resumes also where the graph of the restoring process lists the two in another order."""
    ran: list[str] = []
    first = await run_mode(two_clerks(ran, swapped=False), "go")
    assert first.status == "interrupted"
    assert ran == []
    text = first.to_state().to_string()
    root = two_clerks(ran, swapped=swapped)
    state = RunState.from_string(root, text)
    state.approve(state.interruptions[0])
    done = await run_mode(root, state)
    assert ran == ["second: deed"]
    assert done.final_output == "second is done"
    assert done.last_agent.instructions == "You sit on the second floor."


@pytest.mark.scenario("RS-06", "TR-10")
async def test_an_agent_that_pending_work_needs_and_the_graph_lacks_is_named(run_mode: Run) -> None:
    """Nothing runs when the needed one of two alike agents is missing, although the other one is there."""
    ran: list[str] = []
    root = two_clerks(ran, swapped=False)
    text = (await run_mode(root, "go")).to_state().to_string()
    lacking = two_clerks(ran, swapped=False)
    del lacking.handoffs[1]
    lacking.handoffs.append(handoff(Agent("clerk", instructions="Another one."), tool_name="to_c"))
    with pytest.raises(StateError, match="agent 'clerk#"):
        RunState.from_string(lacking, text)
    with pytest.raises(StateError, match="agent 'clerk#"):
        await run_mode(lacking, RunState.from_string(root, text))
    assert ran == []


@pytest.mark.scenario("TR-10")
async def test_an_agent_that_only_the_past_names_is_ignored_with_a_warning(
    run_mode: Run, caplog: pytest.LogCaptureFixture
) -> None:
    """The missing agent's only part is a tool use in the past, so no remaining work needs it."""
    target = Agent(
        "target", model=script_turns(say("-"), say("-"), call("pay", {"amount": 1}, call_id="p"), say("end"))
    )
    target.tools = [pay]
    root = Agent("gone", model=script_turns(call("look", call_id="l"), call("to_target", call_id="h")), tools=[look])
    root.handoffs = [handoff(target, tool_name="to_target")]
    first = await run_mode(root, "go")
    assert first.status == "interrupted"
    text = first.to_state().to_string()
    caplog.clear()
    with caplog.at_level(logging.WARNING, "agentloop"):
        state = RunState.from_string(target, text)
    assert [record.getMessage() for record in caplog.records if "'gone'" in record.getMessage()]
    state.approve("p")
    done = await run_mode(target, state)
    assert done.final_output == "end"


@pytest.mark.scenario("TR-07")
async def test_what_agents_of_one_name_have_used_survives_storing(run_mode: Run) -> None:
    """The agent that has used a tool isn't made to use one again; the other agent is."""
    from agentloop import ModelSettings

    settings = ModelSettings(tool_choice="required")
    second = Agent(
        "clerk",
        instructions="Second.",
        tools=[look],
        model_settings=settings,
        model=script_turns(say("-"), say("-"), say("-"), say("end")),
    )
    first = Agent("clerk", instructions="First.", tools=[look, pay], model_settings=settings)
    first.handoffs = [handoff(second, tool_name="to_second")]
    first.model = script_turns(
        call("look", call_id="l"), call("pay", {"amount": 1}, call_id="p"), call("to_second", call_id="h")
    )
    interrupted = await run_mode(first, "go")
    done = await run_mode(first, restore_approved(interrupted))
    assert done.final_output == "end"
    models = [first.model, second.model]
    assert all(isinstance(model, ScriptedModel) for model in models)
    choices = [[request.tool_choice for request in model.requests] for model in models]  # type: ignore[union-attr]
    assert choices == [["required", None, None], ["required"]]


# ---------------------------------------------------------------------------------------------- tampering


def _drop(kind: str, which: int = 0) -> Callable[[list[Any]], None]:
    def change(records: list[Any]) -> None:
        places = [place for place, record in enumerate(records) if record["kind"] == kind]
        del records[places[which]]

    return change


def _repeat(kind: str) -> Callable[[list[Any]], None]:
    def change(records: list[Any]) -> None:
        place = next(place for place, record in enumerate(records) if record["kind"] == kind)
        records.insert(place + 1, copy.deepcopy(records[place]))

    return change


def _set(kind: str, **fields: Any) -> Callable[[list[Any]], None]:
    def change(records: list[Any]) -> None:
        next(record for record in records if record["kind"] == kind).update(fields)

    return change


def _swap(one: str, other: str) -> Callable[[list[Any]], None]:
    def change(records: list[Any]) -> None:
        first, second = (
            next(place for place, record in enumerate(records) if record["kind"] == kind) for kind in (one, other)
        )
        records[first], records[second] = records[second], records[first]

    return change


TAMPERINGS: dict[str, Callable[[list[Any]], None]] = {
    "no beginning": _drop("run_started"),
    "two beginnings": _repeat("run_started"),
    "an answer that is gone": _drop("model_responded"),
    "an answer without a turn": _drop("turn_started", 1),
    "an answer given twice": _repeat("model_responded"),
    "a turn that is far off": _set("turn_started", turn=7),
    "a call that started twice": _repeat("call_started"),
    "a call that settled twice": _repeat("call_settled"),
    "a call that never settled": _drop("call_settled"),
    "an outcome for a call nobody made": _set("call_settled", call_id="other"),
    "a start of a call nobody made": _set("call_started", call_id="other"),
    "an end of a body that never began": _drop("call_started"),
    "a batch that ended before its calls": _swap("call_settled", "batch_ended"),
    "a batch that ended twice": _repeat("batch_ended"),
    "an approval of a call nobody made": _set("approval_requested", call_id="other"),
    "an end in the middle": lambda records: records.insert(5, records[-1]),
    "a record after the end": lambda records: records.append(records[4]),
    "a nested run without its call": _set("model_requested", path=["nobody"]),
    "a record of a nested run that never began": _set("call_settled", path=["l0"]),
}


@pytest.mark.scenario("RS-11")
@pytest.mark.parametrize("how", TAMPERINGS)
async def test_a_log_that_was_tampered_with_is_refused(how: str) -> None:
    """The log is refused when it is read: nothing has run, and the error names the wrong record."""
    state = await waiting()
    data = json.loads(state.to_string())
    before = copy.deepcopy(data)
    TAMPERINGS[how](data["records"])
    assert data != before
    with pytest.raises(StateError):
        RunState.from_json(state.agent, data)


@pytest.mark.scenario("RS-11", "RS-17")
async def test_a_forged_verdict_approves_nothing(run_mode: Run) -> None:
    """A verdict that was given for other arguments, another tool, agent or call approves nothing."""
    ran: list[int] = []

    @tool(name="pay", needs_approval=True)
    async def noted(amount: int) -> str:
        """Pay."""
        ran.append(amount)
        return "paid"

    agent = Agent("guide", model=script_turns(call("pay", {"amount": 1}, call_id="p1"), say("x")), tools=[noted])
    state = (await run_mode(agent, "go")).to_state()
    [asked] = find_records(state, r.ApprovalRequested)
    for forged in (
        {"digest": "0" * 32},
        {"tool": "look"},
        {"agent": "other"},
        {"call_id": "p2"},
        {"path": ["p1"]},
    ):
        verdict = {
            "path": [],
            "turn": 1,
            "at": 1.0,
            "call_id": "p1",
            "agent": "guide",
            "tool": "pay",
            "digest": asked.digest,
            "approved": True,
            "always": True,
        }
        data = state.to_json()
        data["records"].append({"kind": "verdict_given", **verdict, **forged})
        try:
            restored = RunState.from_json(agent, data)
        except StateError:
            continue
        again = await run_mode(agent, restored)
        assert again.status == "interrupted"
        assert [waiting.call.call_id for waiting in again.interruptions] == ["p1"]
    assert ran == []


async def test_a_state_of_a_run_with_guardrails_and_handoffs_is_stable(run_mode: Run) -> None:
    """Every kind of record of such a run is the same when it is read and written again."""
    target = Agent(
        "target", model=script_turns(say("-"), call("pay", {"amount": 1}, call_id="p"), say("end")), tools=[pay]
    )
    root = Agent(
        "root", model=script_turns(call("to_target", call_id="h")), input_guardrails=[make_input_guard("g", PASSED)]
    )
    root.handoffs = [handoff(target, tool_name="to_target")]
    first = await run_mode(root, "go")
    state = restore_paused(first)
    assert state == first.to_state()
    state.reject("p", message="No.")
    done = await run_mode(root, copy_state(state))
    assert describe(done.new_items)[-2:] == ["output:No.#p", "says:end"]
    assert copy_state(done.to_state()) == done.to_state()
