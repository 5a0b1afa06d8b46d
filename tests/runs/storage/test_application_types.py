"""Runs with a converter of the application's: its types in arguments, outputs, contexts and stored values."""

import json
from decimal import Decimal
from typing import Annotated, Any

import attrs
import cattrs
import pytest
from kit.agents import Run, make_agent, script_turns
from kit.money import Money, money_converter
from kit.results import read_shown_outputs
from kit.resuming import make_journal

from agentloop import (
    Agent,
    Allow,
    FunctionTool,
    JsonSchema,
    RunConfig,
    RunResult,
    RunState,
    StateError,
    ToolContext,
    UserError,
    handoff,
    tool,
)
from agentloop.config import ErrorHandlerResult
from agentloop.exceptions import UserTypeError
from agentloop.guardrails import ReplaceOutput, Rewrite, tool_input_guardrail, tool_output_guardrail
from agentloop.journal import MemoryJournal
from agentloop.testing import call, say

Price = Annotated[Money, JsonSchema({"type": "string"})]


@attrs.define
class Purse:
    """The application's context."""

    owner: str
    money: Price


@attrs.define
class Bill:
    """A final output, and the input of an agent tool."""

    total: Price


CONVERTER = money_converter()
CONFIG = RunConfig(converter=CONVERTER)


@tool(custom_data_extractor=lambda ctx, value: {"paid": value})
async def pay(amount: Price) -> Money:
    """Pay."""
    return Money(amount.cents + 100)


async def test_arguments_outputs_and_final_outputs_are_the_applications_types(run_mode: Run) -> None:
    """The body gets its type, the model reads the hook's form, the result is an object."""
    agent = make_agent(
        [pay], call("pay", {"amount": "5 EUR"}, call_id="p"), done='{"total": "6 EUR"}', output_type=Bill
    )
    result = await run_mode(agent, "go", run_config=CONFIG)
    assert result.final_output == Bill(Money(600))
    assert read_shown_outputs(agent) == {"p": '"6 EUR"'}
    assert result.calls[0].outcome.value == Money(600)
    assert result.calls[0].outcome.custom_data == {"paid": Money(600)}


async def test_a_wrong_argument_is_told_to_the_model_with_its_place(run_mode: Run) -> None:
    """As any other argument error."""
    agent = make_agent([pay], call("pay", {"amount": "5 USD"}, call_id="p"))
    await run_mode(agent, "go", run_config=CONFIG)
    assert "amount: ValueError(an amount in EUR is needed)" in str(read_shown_outputs(agent)["p"])


async def test_a_tool_called_by_hand_reads_its_text_by_the_contexts_converter(run_mode: Run) -> None:
    """The wrapper of a tool calls the inner one's `on_invoke_tool`."""
    outputs: list[Any] = []

    async def twice(ctx: ToolContext[Any], text: str) -> str:
        assert pay.on_invoke_tool is not None
        outputs.extend([await pay.on_invoke_tool(ctx, text) for _ in range(2)])
        return "paid"

    outer = FunctionTool[Any](name="twice", params_json_schema=pay.params_json_schema, on_invoke_tool=twice)
    agent = make_agent([outer], call("twice", {"amount": "5 EUR"}, call_id="t"))
    await run_mode(agent, "go", run_config=CONFIG)
    assert outputs == [Money(600), Money(600)]


@pytest.mark.parametrize("config", [None, RunConfig(converter=cattrs.Converter())])
async def test_a_run_without_the_converter_ends_before_the_model_is_asked(run_mode: Run, config: Any) -> None:
    """The sentence names the tool, the type and the field."""
    agent = make_agent([pay], call("pay", {"amount": "5 EUR"}))
    with pytest.raises(UserTypeError, match=r"Tool pay: parameter amount is of type Money: .* \(RunConfig.converter\)"):
        await run_mode(agent, "go", run_config=config)
    assert agent.model.requests == []  # type: ignore[union-attr]
    typed = make_agent([], done='{"total": "6 EUR"}', output_type=Bill)
    with pytest.raises(UserTypeError, match=r"The final output \(Bill\) is of type Money"):
        await run_mode(typed, "go", run_config=config)


def test_what_is_no_converter_is_refused() -> None:
    """The field's name is in the message."""
    with pytest.raises(UserTypeError, match="converter: expected a cattrs converter"):
        RunConfig(converter=5)  # type: ignore[arg-type]


async def test_handoffs_and_agent_tools_have_inputs_of_the_applications_types(run_mode: Run) -> None:
    """A handoff's callback gets the object; an agent tool is given its JSON."""
    given: list[Any] = []
    till = make_agent([], done="paid")
    other = make_agent([], done="bye")
    agent = make_agent(
        [till.as_tool("till", parameters=Bill)],
        call("till", {"total": "3 EUR"}, call_id="t"),
        call("transfer_to_other", {"total": "4 EUR"}),
        done=None,
        handoffs=[
            handoff(
                other,
                tool_name="transfer_to_other",
                on_handoff=lambda ctx, bill: given.append(bill),
                input_type=Bill,
            )
        ],
    )
    result = await run_mode(agent, "go", run_config=CONFIG)
    assert result.final_output == "bye"
    assert given == [Bill(Money(400))]
    assert till.model.requests[0].items[-1].text == '{"total": "3 EUR"}'  # type: ignore[union-attr]


async def test_guardrails_values_are_the_applications_types_too(run_mode: Run) -> None:
    """Rewritten arguments are read, and a replaced output is written, by the hooks."""

    @tool_input_guardrail
    def double(data: Any) -> Any:
        return Rewrite({"amount": "10 EUR"}) if data.arguments["amount"] == "5 EUR" else Allow()

    @tool_output_guardrail
    def round_up(data: Any) -> Any:
        assert data.value == Money(1100)
        return ReplaceOutput(Money(2000))

    guarded = attrs.evolve(pay, tool_input_guardrails=(double,), tool_output_guardrails=(round_up,))
    agent = make_agent([guarded], call("pay", {"amount": "5 EUR"}, call_id="p"))
    await run_mode(agent, "go", run_config=CONFIG)
    assert read_shown_outputs(agent) == {"p": '"20 EUR"'}


async def test_a_handlers_final_output_is_written_into_the_history_by_the_hooks(run_mode: Run) -> None:
    """As the model would have said it."""
    agent = make_agent([], done="nothing", output_type=Bill, output_retries=0)
    handlers = {"invalid_final_output": lambda data: ErrorHandlerResult(Bill(Money(700)))}
    result = await run_mode(agent, "go", run_config=CONFIG, error_handlers=handlers)
    assert result.final_output == Bill(Money(700))
    assert result.to_input_list()[-1].text == '{"total": "7 EUR"}'


# ---------------------------------------------------------------------------------------------- stored


async def test_stored_values_have_the_hooks_form(run_mode: Run) -> None:
    """Journals and states alike; a state of this process writes by the run's converter."""
    agent = make_agent(
        [pay], call("pay", {"amount": "5 EUR"}, call_id="p"), done='{"total": "6 EUR"}', output_type=Bill
    )
    journal = MemoryJournal()
    result = await run_mode(agent, "go", run_config=CONFIG, journal=journal)
    lines = [json.loads(line) for line in await journal.read()]
    settled = next(line for line in lines if line["kind"] == "call_settled")
    assert settled["outcome"]["custom_data"] == {"paid": "6 EUR"}
    assert lines[-1]["final_output"] == {"total": "6 EUR"}
    assert result.to_state().to_json()["records"] == lines[1:]


async def test_a_state_with_objects_continues_the_journal_that_has_their_stored_form(run_mode: Run) -> None:
    """The journal of a run that pauses is that of the state, although this holds the objects themselves."""

    @tool(needs_approval=True)
    async def ask() -> str:
        """Ask."""
        return "asked"

    steps = [[call("pay", {"amount": "5 EUR"}, call_id="p"), call("ask", call_id="a")], say("done")]
    agent = Agent("guide", model=script_turns(*steps), tools=[pay, ask])
    journal = MemoryJournal()
    paused = await run_mode(agent, "go", run_config=CONFIG, journal=journal)
    state = paused.to_state()
    state.approve("a")
    result = await run_mode(agent, state, run_config=CONFIG, journal=journal)
    assert result.final_output == "done"


async def test_a_stored_result_is_the_object_again_that_the_body_returned(run_mode: Run) -> None:
    """After a crash between the body and what follows it, the application's callbacks see no difference."""
    seen: list[Any] = []
    noted = attrs.evolve(pay, custom_data_extractor=lambda ctx, value: seen.append(value))
    steps = [call("pay", {"amount": "5 EUR"}, call_id="p"), say("done")]
    agent = Agent("guide", model=script_turns(*steps), tools=[noted])
    journal = MemoryJournal()
    await run_mode(agent, "go", run_config=CONFIG, journal=journal)
    lines = await journal.read()
    ended = next(at for at, line in enumerate(lines) if json.loads(line)["kind"] == "body_ended")
    crashed = await make_journal(lines[: ended + 1])
    state = await RunState.from_journal(agent, crashed, converter=CONVERTER)
    result = await run_mode(agent, state, run_config=CONFIG, journal=crashed)
    assert seen == [Money(600), Money(600)]
    assert result.calls[0].outcome.value == Money(600)


@tool(needs_approval=True)
async def spend(ctx: ToolContext[Purse], amount: Price) -> str:
    """Spend."""
    ctx.context.money = Money(ctx.context.money.cents - amount.cents)
    return f"{ctx.context.money.cents} left"


async def pause(run_mode: Run) -> tuple[Agent[Any, Any], RunResult[Any]]:
    """Return an agent and its run, which waits for an approval of spending 5 EUR of 9."""
    agent = Agent(
        "guide", model=script_turns(call("spend", {"amount": "5 EUR"}, call_id="s"), say("done")), tools=[spend]
    )
    return agent, await run_mode(agent, "go", run_config=CONFIG, context=Purse("Ann", Money(900)))


async def test_the_context_is_stored_and_restored_by_the_converter(run_mode: Run) -> None:
    """Its type is given when it is read; without it the JSON values are the context."""
    agent, paused = await pause(run_mode)
    data = json.loads(paused.to_state().to_string())
    assert data["context"] == {"serialized": True, "value": {"owner": "Ann", "money": "9 EUR"}}
    state = RunState.from_json(agent, data, context_type=Purse, converter=CONVERTER)
    assert state.context == Purse("Ann", Money(900))
    state.approve("s")
    result = await run_mode(agent, state, run_config=CONFIG)
    assert result.calls[0].outcome.output == "400 left"
    data["context"]["value"] = {"money": "hush", "owner": 5}
    with pytest.raises(StateError) as caught:
        RunState.from_json(agent, data, context_type=Purse, converter=CONVERTER)
    assert str(caught.value).endswith("Purse'> @ $.context.value.owner, $.context.value.money")
    assert "hush" not in str(caught.value)


def test_a_context_of_plain_types_needs_no_converter() -> None:
    """The library's own one reads it, and a mapping is stored with the hooks' forms inside."""

    @attrs.define
    class Plain:
        n: int

    agent = make_agent([])
    state = RunState(agent, [], context={"n": 1, "money": Money(100), "part": Decimal("0.5")})
    data = state.to_json(converter=CONVERTER)
    assert data["context"] == {"serialized": False, "value": {"n": 1, "money": "1 EUR", "part": "0.5"}}
    assert RunState.from_json(agent, {**data}, context_type=Plain).context == Plain(1)
    state.context = Plain(2)
    written = json.loads(state.to_string(converter=CONVERTER))
    assert RunState.from_json(agent, written, context_type=Plain).context == Plain(2)


async def test_arguments_given_with_a_verdict_are_read_by_the_converter(run_mode: Run) -> None:
    """A state that was made by a run has the run's; one that was restored is given it."""
    agent, paused = await pause(run_mode)
    state = paused.to_state()
    with pytest.raises(UserError, match="amount: ValueError"):
        state.approve("s", arguments={"amount": "5 USD"})
    restored = RunState.from_json(agent, state.to_json(), converter=CONVERTER, context_type=Purse)
    for each in (state, restored):
        each.approve("s", arguments={"amount": "1 EUR"})
        each.context = Purse("Ann", Money(900))
        result = await run_mode(agent, each, run_config=CONFIG)
        assert result.calls[0].outcome.output == "800 left"
        assert isinstance(result.context, Purse)
