"""The parts of a run that its stored state keeps: contexts, outputs, guardrail results, conversations."""

import dataclasses
import logging
from collections.abc import Mapping
from typing import Any

import attrs
import pydantic
import pytest
from kit.agents import PASSED, Run, make_input_guard, make_output_guard, script_turns
from kit.results import describe, find_outcome, find_records, read_outputs, read_shown_outputs
from kit.resuming import copy_state, restore_approved

from agentloop import (
    Agent,
    GuardrailFunctionOutput,
    RunConfig,
    RunContext,
    Runner,
    RunState,
    StateError,
    ToolContext,
    handoff,
    input_guardrail,
    tool,
)
from agentloop import records as r
from agentloop.guardrails import Allow, RejectContent, tool_input_guardrail, tool_output_guardrail
from agentloop.items import AssistantMessage, Reasoning, ToolCall
from agentloop.testing import call, respond, say


@tool(needs_approval=True)
async def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


@tool(needs_approval=True)
async def ask_context(ctx: ToolContext[Any]) -> str:
    """Say what the context is."""
    return repr(ctx.context)


def paying(*before: Any, tools: Any = (), **fields: Any) -> Agent[Any, Any]:
    """Return an agent that does *before*, asks to pay, and is done."""
    steps = [*before, call("pay", {"amount": 1}, call_id="p"), say("done")]
    return Agent("guide", model=script_turns(*steps), tools=[*tools, pay], **fields)


# ---------------------------------------------------------------------------------------------- contexts


@attrs.define
class Desk:
    """An application's context."""

    owner: str
    papers: list[str] = attrs.field(factory=list)


def context_agent() -> Agent[Any, Any]:
    """Return an agent whose tool tells the context, once approved."""
    return Agent("guide", model=script_turns(call("ask_context", call_id="c"), say("done")), tools=[ask_context])


@pytest.mark.scenario("RS-05")
async def test_a_mapping_is_stored_exactly(run_mode: Run, caplog: pytest.LogCaptureFixture) -> None:
    """A mapping keeps bytes, keys that aren't text, and tuples, without a warning."""
    given = {"owner": "Ann", "n": 1 << 80, "raw": b"\x00\xff", "pairs": {1: "one"}, "$odd": [None, 1.5]}
    agent = context_agent()
    with caplog.at_level(logging.WARNING, "agentloop"):
        state = (await run_mode(agent, "go", context=given)).to_state()
        restored = copy_state(state)
    assert caplog.records == []
    assert restored.context == given
    assert restored.context is not given
    restored.approve("c")
    done = await run_mode(agent, restored)
    assert read_outputs(done.new_items) == {"c": repr(given)}
    assert done.context == given


@pytest.mark.scenario("RS-05")
async def test_an_object_goes_through_the_applications_functions(run_mode: Run) -> None:
    """The application's serializer stores the object, and its deserializer restores it."""
    agent = context_agent()
    state = (await run_mode(agent, "go", context=Desk("Ann", ["deed"]))).to_state()
    text = state.to_string(context_serializer=attrs.asdict, strict_context=True)
    restored = RunState.from_string(agent, text, context_deserializer=lambda data: Desk(**data))
    assert restored.context == Desk("Ann", ["deed"])
    data = state.to_json(context_serializer=attrs.asdict)
    assert RunState.from_json(agent, data, context_deserializer=lambda data: Desk(**data)).context == restored.context


@pytest.mark.scenario("RS-05")
async def test_an_object_without_a_serializer_is_left_out_with_a_warning(
    run_mode: Run, caplog: pytest.LogCaptureFixture
) -> None:
    """No part of the object is stored, and the warning names its type alone."""
    agent = context_agent()
    state = (await run_mode(agent, "go", context=Desk("canary"))).to_state()
    with caplog.at_level(logging.WARNING, "agentloop"):
        text = state.to_string()
    [warning] = caplog.records
    assert "Desk" in warning.getMessage()
    assert "canary" not in warning.getMessage() + text
    assert RunState.from_string(agent, text).context is None


@pytest.mark.scenario("RS-05")
async def test_strictly_an_object_without_a_serializer_is_an_error(run_mode: Run) -> None:
    """The strict mode refuses the object, but accepts a mapping and an absent context."""
    agent = context_agent()
    state = (await run_mode(agent, "go", context=Desk("canary"))).to_state()
    with pytest.raises(StateError, match="Desk") as caught:
        state.to_json(strict_context=True)
    assert "canary" not in str(caught.value)
    for context in (None, {"owner": "Ann"}):
        state = (await run_mode(context_agent(), "go", context=context)).to_state()
        assert RunState.from_json(agent, state.to_json(strict_context=True)).context == context


@pytest.mark.scenario("RS-05", "RS-16")
@pytest.mark.parametrize("when", ["reading", "running"])
async def test_another_context_takes_the_place_of_the_object_and_approvals_stay(run_mode: Run, when: str) -> None:
    """The other context may be given where the state is read, or where it is run."""
    agent = context_agent()
    state = (await run_mode(agent, "go", context={"owner": "Ann"})).to_state()
    state.approve("c")
    if when == "reading":
        restored = copy_state(state, context=Desk("Bob"))
        done = await run_mode(agent, restored)
    else:
        restored = copy_state(state)
        done = await run_mode(agent, restored, context=Desk("Bob"))
        assert restored.context == {"owner": "Ann"}
    assert done.final_output == "done"
    assert done.context == Desk("Bob")
    assert read_outputs(done.new_items) == {"c": repr(Desk("Bob"))}


# ---------------------------------------------------------------------------------------------- outputs


@dataclasses.dataclass
class Point:
    """A dataclass."""

    x: int
    y: float


class Model(pydantic.BaseModel):
    """A pydantic model."""

    name: str
    point: dict[str, int]


@attrs.frozen
class Pair:
    """An attrs class."""

    left: Any
    right: Any


VALUES: dict[str, tuple[Any, Any]] = {
    "pydantic": (Model(name="m", point={"x": 1}), {"name": "m", "point": {"x": 1}}),
    "dataclass": (Point(1, 2.5), {"x": 1, "y": 2.5}),
    "attrs": (Pair(1, Pair("a", None)), {"left": 1, "right": {"left": "a", "right": None}}),
    "tuple": ((1, ("a", (2.0,))), [1, ["a", [2.0]]]),
    "bytes": (b"\x00\xffraw", b"\x00\xffraw"),
    "nested bytes": ({"data": [b"\x01"]}, {"data": [b"\x01"]}),
}


@pytest.mark.scenario("RS-07")
@pytest.mark.parametrize("kind", VALUES)
async def test_what_a_body_returned_is_kept_as_plain_data(run_mode: Run, kind: str) -> None:
    """Objects are kept by their fields, tuples as lists, bytes as bytes; the model receives the same text."""
    value, kept = VALUES[kind]

    @tool(custom_data_extractor=lambda ctx, value: None)  # a step between body and outcome
    async def make() -> Any:
        """Make."""
        return value

    agent = paying(call("make", call_id="m"), tools=[make])
    first = await run_mode(agent, "go")
    restored = restore_approved(first)
    [body] = [record for record in find_records(restored, r.BodyEnded) if record.call_id == "m"]
    assert body.value == kept
    assert type(body.value) is type(kept)
    before = find_outcome(first, "m").output
    done = await run_mode(agent, restored)
    assert find_outcome(done, "m").output == before
    assert read_shown_outputs(agent)["m"] == before


@pytest.mark.scenario("RS-07")
async def test_the_applications_own_data_of_a_call_are_kept(run_mode: Run) -> None:
    """The result of `custom_data_extractor` is kept, structured like outputs."""

    @tool(custom_data_extractor=lambda ctx, value: {"point": Point(1, 2.0), "raw": b"\x01", "of": (value,)})
    async def make() -> str:
        """Make."""
        return "made"

    agent = paying(call("make", call_id="m"), tools=[make])
    first = await run_mode(agent, "go")
    assert find_outcome(first, "m").custom_data["point"] == Point(1, 2.0)
    done = await run_mode(agent, restore_approved(first))
    assert find_outcome(done, "m").custom_data == {"point": {"x": 1, "y": 2.0}, "raw": b"\x01", "of": ["made"]}


# ---------------------------------------------------------------------------------------------- the rest of a run


@pytest.mark.scenario("RS-08")
async def test_guardrail_results_are_kept_and_no_guardrail_judges_twice(run_mode: Run) -> None:
    """Input results keep their data, tool results their call; guardrails that have passed aren't asked again."""
    log: list[str] = []

    @input_guardrail(name="polite")
    async def polite(ctx: RunContext[Any], agent: Any, given: Any) -> GuardrailFunctionOutput:
        log.append("polite")
        return GuardrailFunctionOutput({"score": 0.9}, False)

    @tool_input_guardrail
    def before(data: Any) -> Allow:
        return Allow({"seen": data.arguments})

    @tool_output_guardrail
    def after(data: Any) -> RejectContent:
        return RejectContent("Hidden.", {"was": data.value})

    @tool(tool_input_guardrails=[before], tool_output_guardrails=[after])
    async def make(n: int) -> str:
        """Make."""
        return "made"

    agent = paying(call("make", {"n": 1}, call_id="m"), tools=[make], input_guardrails=[polite])
    agent.input_guardrails.append(make_input_guard("second", PASSED, log=log))
    agent.output_guardrails.append(make_output_guard("out", PASSED, log=log))
    first = await run_mode(agent, "go")
    done = await run_mode(agent, restore_approved(first))
    assert sorted(log[:2]) == ["polite", "second"]  # side by side
    assert log[2:] == ["out"]
    assert [result.guardrail.name for result in done.input_guardrail_results] == ["polite", "second"]
    assert done.input_guardrail_results[0].output == GuardrailFunctionOutput({"score": 0.9}, False)
    assert [result.guardrail.name for result in done.output_guardrail_results] == ["out"]
    [judged] = done.tool_input_guardrail_results
    assert (judged.guardrail.name, judged.call.call_id, judged.output) == ("before", "m", Allow({"seen": {"n": 1}}))
    [hidden] = done.tool_output_guardrail_results
    assert isinstance(hidden.output, RejectContent)
    assert hidden.output.output_info == {"was": "made"}
    assert find_outcome(done, "m").output == "Hidden."
    text = first.to_state().to_string()
    assert text.count('"body_ended"') == 1
    assert '"kept"' not in text, "what an output guardrail had not judged yet is kept nowhere"


@pytest.mark.scenario("RS-08", "US-08")
@pytest.mark.parametrize("message", [None, "Too dear."])
async def test_rejections_keep_their_words(run_mode: Run, message: str | None) -> None:
    """The model receives the rejection's message in any process that resumes the run."""
    agent = paying()
    state = (await run_mode(agent, "go")).to_state()
    state.reject("p", message=message)
    done = await run_mode(agent, copy_state(state))
    assert read_shown_outputs(agent) == {"p": message or "Tool 'pay' was not approved."}
    assert find_outcome(done, "p").status == "rejected"
    assert read_outputs(copy_state(done.to_state())._fold.new_items) == read_shown_outputs(agent)


@attrs.frozen
class Order:
    """The structured input of a nested agent."""

    item: str
    count: int


@pytest.mark.scenario("RS-08", "NA-15")
async def test_the_structured_input_of_a_nested_run_is_there_again(run_mode: Run) -> None:
    """`tool_input` has the same value in a nested run's tools before a pause and after it."""
    seen: list[Any] = []

    @tool(needs_approval=True)
    async def ship(ctx: ToolContext[Any]) -> str:
        """Ship."""
        seen.append(ctx.tool_input)
        return "shipped"

    inner = Agent("inner", model=script_turns(call("ship", call_id="s"), say("inner done")), tools=[ship])
    nested = inner.as_tool("order", "Orders.", parameters=Order)
    step = call("order", {"item": "pen", "count": 2}, call_id="o")
    outer = Agent("outer", model=script_turns(step, say("done")), tools=[nested])
    done = await run_mode(outer, restore_approved(await run_mode(outer, "go")))
    assert seen == [Order("pen", 2)]
    assert read_shown_outputs(outer) == {"o": "inner done"}
    assert done.final_output == "done"


@pytest.mark.scenario("RS-08")
async def test_reasoning_stands_before_what_it_led_to(run_mode: Run) -> None:
    """Reasoning keeps its ids and the provider's encrypted content when the model receives it again."""
    reasoning = Reasoning("rs_1", ("because",), (), "sealed")
    steps = [
        respond(reasoning, ToolCall("p", "pay", '{"amount": 1}', provider_data={"id": "fc_1"}), response_id="r1"),
        say("done"),
    ]
    agent = Agent("guide", model=script_turns(*steps), tools=[pay])
    done = await run_mode(agent, restore_approved(await run_mode(agent, "go")))
    items = agent.model.requests[1].items  # type: ignore[union-attr]
    assert describe(items) == ["user:go", "Reasoning", "call:pay#p", "output:paid 1#p"]
    assert items[1] == reasoning
    assert items[2].provider_data == {"id": "fc_1"}
    assert done.raw_responses[0].response_id == "r1"


@pytest.mark.scenario("RS-08")
@pytest.mark.parametrize("by", ["conversation", "response"])
async def test_a_conversation_that_the_provider_keeps_goes_on(run_mode: Run, by: str) -> None:
    """The conversation resumes by its id, or from the last response; only new items are sent."""
    steps = [
        respond(ToolCall("p", "pay", '{"amount": 1}'), response_id="r1"),
        respond(AssistantMessage("done"), response_id="r2"),
    ]
    agent = Agent("guide", model=script_turns(*steps), tools=[pay])
    kept: Mapping[str, Any] = {"conversation_id": "conv"} if by == "conversation" else {"previous_response_id": "r0"}
    done = await run_mode(agent, restore_approved(await run_mode(agent, "go", **kept)))
    assert done.final_output == "done"
    request = agent.model.requests[1]  # type: ignore[union-attr]
    assert (request.conversation_id, request.previous_response_id) == (
        ("conv", None) if by == "conversation" else (None, "r1")
    )
    assert describe(request.items) == ["output:paid 1#p"]


@pytest.mark.scenario("RS-08")
async def test_a_nested_history_stays_one_piece_over_pauses(run_mode: Run) -> None:
    """The next agent resumes with the history that the handoff rewrote, and no line of it appears twice."""
    config = RunConfig(nest_handoff_history=True)

    def build() -> tuple[Agent[Any, Any], Agent[Any, Any]]:
        second = Agent("second", tools=[pay])
        second.model = script_turns(say("-"), call("pay", {"amount": 2}, call_id="p2"), say("end"))
        first = Agent("first", tools=[pay], handoffs=[handoff(second, tool_name="over")])
        first.model = script_turns([call("pay", {"amount": 1}, call_id="p1"), call("over", call_id="h")])
        return first, second

    unpaused, target = build()
    unpaused.tools = target.tools = [attrs.evolve(pay, needs_approval=False)]
    whole = await run_mode(unpaused, "go", run_config=config)
    first, second = build()
    result = await run_mode(first, "go", run_config=config)
    while result.status == "interrupted":
        result = await run_mode(first, restore_approved(result), run_config=config)
    assert result.final_output == whole.final_output == "end"
    asked = [[describe(request.items) for request in agent.model.requests] for agent in (target, second)]  # type: ignore[union-attr]
    assert asked[0] == asked[1]
    assert describe(result.new_items) == describe(whole.new_items)
    assert describe(result.to_input_list()) == describe(whole.to_input_list())


async def test_a_run_keeps_its_id_and_its_calls_their_keys(run_mode: Run) -> None:
    """The run id and the idempotency key, which other systems receive, stay the same over pauses."""
    seen: list[tuple[str, str]] = []

    @tool(name="pay", needs_approval=True)
    async def noted(ctx: ToolContext[Any], amount: int) -> str:
        """Pay."""
        seen.append((ctx.run_id, ctx.idempotency_key))
        return "paid"

    agent = Agent("guide", model=script_turns(call("pay", {"amount": 1}, call_id="p"), say("done")), tools=[noted])
    first = await run_mode(agent, "go")
    state = restore_approved(first)
    await run_mode(agent, state)
    await run_mode(agent, state)
    [started] = find_records(first, r.RunStarted)
    assert [run_id for run_id, _ in seen] == [started.run_id] * 2
    assert len({key for _, key in seen}) == 1


async def test_nothing_of_the_state_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The names of types in stored values are data, and nothing imports them."""
    import builtins

    agent = paying()
    data = (await Runner.run(agent, "go")).to_state().to_json()
    evil = {"type": "antigravity.Fly", "__class__": "antigravity.Fly", "$import": "antigravity", "$type": "os.system"}
    data["context"] = {"serialized": False, "value": {"$map": [["payload", {"$map": list(map(list, evil.items()))}]]}}
    RunState.from_json(agent, data)  # everything that reading imports by itself is imported now
    asked: list[str] = []
    imported = builtins.__import__

    def watching(name: str, *args: Any, **named: Any) -> Any:
        asked.append(name)
        return imported(name, *args, **named)

    monkeypatch.setattr(builtins, "__import__", watching)
    restored = RunState.from_json(agent, data)
    monkeypatch.undo()
    assert restored.context == {"payload": evil}
    assert "antigravity" not in asked
    assert "os" not in asked
