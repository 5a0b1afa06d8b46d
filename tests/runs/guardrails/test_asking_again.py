"""Output guardrails and validators that don't accept an answer: the model is told why, and asked again."""

from typing import Any

import attrs
import pytest
from kit.agents import PASSED, TRIPPED, Run, look, make_output_guard, script_agent
from kit.results import describe, find_records, read_requests, read_user_texts
from kit.watching import Watch

from agentloop import (
    Agent,
    AskAgain,
    ErrorHandlerResult,
    GuardrailFunctionOutput,
    InputGuardrailTripwireTriggered,
    MaxTurnsExceeded,
    OutputGuardrailTripwireTriggered,
    RunConfig,
    Runner,
    RunState,
    output_guardrail,
    tool,
)
from agentloop import events as ev
from agentloop import records as r
from agentloop import testing as t
from agentloop.exceptions import UserTypeError
from agentloop.items import AssistantMessage, Refusal, Text, UserMessage
from agentloop.journal import MemoryJournal
from agentloop.sessions import MemorySession
from agentloop.testing import ScriptedModel, call, respond, say
from agentloop.testing.replaying import replay

ASKS = "Your answer isn't accepted. Correct every fault, and give the whole answer again.\n"


@attrs.frozen
class Place:
    city: str


def demand(word: str, why: str | None = None, name: str = "demand") -> Any:
    """Return an output guardrail that asks for *word* in the answer."""

    @output_guardrail(name=name)
    async def judge(ctx: Any, agent: Any, output: Any) -> Any:
        return PASSED if word in str(output) else AskAgain(why or f"Say {word}.", "looked")

    return judge


def refuse(*words: str) -> Any:
    """Return an output validator that asks for each of *words* in the answer."""

    def validate(ctx: Any, output: Any) -> AskAgain | None:
        missing = [word for word in words if word not in str(output)]
        return AskAgain(f"Say {missing[0]}.") if missing else None

    return validate


# -- asked again


@pytest.mark.scenario("LM-07")
@pytest.mark.parametrize(
    "fields",
    [{"output_guardrails": [demand("b")]}, {"output_validator": refuse("b")}],
    ids=["guardrail", "validator"],
)
async def test_the_model_is_told_and_asked_again(run_mode: Run, fields: Any) -> None:
    """Its answer and the message stay in the history; the next answer is judged like the first."""
    agent = script_agent("a", say("a"), say("b"), **fields)
    result = await run_mode(agent, "go")
    assert result.final_output == "b"
    asked = UserMessage(f"{ASKS}Say b.")
    assert result.new_items == (AssistantMessage("a"), asked, AssistantMessage("b"))
    assert list(read_requests(agent)[1].items) == [UserMessage("go"), AssistantMessage("a"), asked]
    verdicts = [record.verdict for record in find_records(result, r.GuardrailSettled)]
    assert verdicts == ["ask_again", "passed"]
    first, second = result.output_guardrail_results
    assert first.output.message == "Say b."
    assert (first.output.tripwire_triggered, second.output.tripwire_triggered) == (False, False)
    assert first.agent_output == "a"


@pytest.mark.scenario("LM-07")
@pytest.mark.parametrize("retries", [0, 1, 2, 3])
async def test_after_the_last_correction_the_guardrail_trips(run_mode: Run, retries: int) -> None:
    """It is asked `output_retries` times in a row; the tripwire's result says what was wrong."""
    agent = script_agent("a", *[say("a")] * 5, output_guardrails=[demand("b")], output_retries=retries)
    with pytest.raises(OutputGuardrailTripwireTriggered) as caught:
        await run_mode(agent, "go")
    assert len(read_requests(agent)) == retries + 1
    assert caught.value.guardrail_result.output == GuardrailFunctionOutput("looked", tripwire_triggered=True)
    assert caught.value.run_data is not None
    verdicts = [one.output.tripwire_triggered for one in caught.value.run_data.output_guardrail_results]
    assert verdicts == [*[False] * retries, True]


@pytest.mark.scenario("LM-07")
async def test_a_validator_that_trips_says_what_it_missed(run_mode: Run) -> None:
    """The message is the data of its tripwire."""
    agent = script_agent("a", say("a"), output_validator=refuse("b"), output_retries=0)
    with pytest.raises(OutputGuardrailTripwireTriggered, match="output_validator") as caught:
        await run_mode(agent, "go")
    assert caught.value.guardrail_result.output.output_info == "Say b."


@pytest.mark.scenario("LM-07", "WR-09")
async def test_faults_of_the_type_and_of_guardrails_have_one_count(run_mode: Run) -> None:
    """A model can't alternate the two for as long as turns are left."""
    steps = [say("no JSON"), say('{"city": "Oslo"}'), say('{"city": "Rome"}')]
    fields: Any = {"output_type": Place, "output_guardrails": [demand("Rome")]}
    assert (await run_mode(script_agent("a", *steps, **fields, output_retries=2), "go")).final_output == Place("Rome")
    with pytest.raises(OutputGuardrailTripwireTriggered):
        await run_mode(script_agent("a", *steps, **fields, output_retries=1), "go")


@pytest.mark.scenario("LM-07")
async def test_all_that_ask_are_told_in_one_message(run_mode: Run) -> None:
    """In order of declaration, the validator last; those that passed say nothing."""
    guards = [demand("b", name="one"), make_output_guard("fine"), demand("c", name="two")]
    agent = script_agent("a", say("a"), say("b c d"), output_guardrails=guards, output_validator=refuse("d"))
    result = await run_mode(agent, "go")
    assert read_user_texts(agent)[-1] == f"{ASKS}Say b.\nSay c.\nSay d."
    asking = [one.guardrail for one in find_records(result, r.GuardrailSettled) if one.verdict == "ask_again"]
    assert sorted(asking) == ["one", "output_validator", "two"]


@pytest.mark.scenario("LM-07")
async def test_a_tripwire_outranks_a_demand(run_mode: Run) -> None:
    """The run ends by it, and the model isn't asked."""
    agent = script_agent("a", say("a"), output_guardrails=[demand("b"), make_output_guard("wire", TRIPPED)])
    with pytest.raises(OutputGuardrailTripwireTriggered, match="wire"):
        await run_mode(agent, "go")
    assert len(read_requests(agent)) == 1


@pytest.mark.scenario("LM-07")
async def test_a_tools_output_as_the_answer_may_be_refused_too(run_mode: Run) -> None:
    """The output stays in the history, and the model is asked for another answer."""
    agent = script_agent(
        "a",
        call("look", call_id="c"),
        say("b"),
        tools=[look],
        tool_use_behavior="stop_on_first_tool",
        output_guardrails=[demand("b")],
    )
    result = await run_mode(agent, "go")
    assert result.final_output == "b"
    assert describe(result.new_items)[:2] == ["call:look#c", "output:seen#c"]


@pytest.mark.scenario("LM-07")
async def test_a_validator_gets_the_context_and_the_value_in_its_type(run_mode: Run) -> None:
    """It may be async; a nested run's agent has its own."""
    seen: list[Any] = []

    async def validate(ctx: Any, output: Any) -> None:
        seen.append((ctx.context, output))

    inner = script_agent("inner", say('{"city": "Rome"}'), output_type=Place, output_validator=validate)
    outer = script_agent("outer", call("inner", {"input": "go"}, call_id="c"), say("done"), tools=[inner.as_tool()])
    await run_mode(outer, "go", context="mine")
    assert seen == [("mine", Place("Rome"))]


@pytest.mark.scenario("LM-07")
async def test_a_correction_is_a_turn(run_mode: Run) -> None:
    """It counts against the limit of turns; a run that the limit ends can be resumed with another one."""
    agent = script_agent("a", say("a"), say("b"), output_validator=refuse("b"))
    journal = MemoryJournal()
    with pytest.raises(MaxTurnsExceeded):
        await run_mode(agent, "go", max_turns=1, journal=journal)
    state = await RunState.from_journal(agent, journal)
    result = await run_mode(agent, state, max_turns=2, journal=journal)
    assert result.final_output == "b"
    first, second = result.output_guardrail_results
    assert (first.output, second.output.tripwire_triggered) == (AskAgain("Say b."), False)


# -- not asked again


@pytest.mark.scenario("LM-07")
@pytest.mark.parametrize(
    "answer",
    [
        respond(AssistantMessage("a"), finish_reason="length"),
        respond(AssistantMessage((Text("a"), Refusal("I won't")))),
    ],
    ids=["cut", "refused"],
)
async def test_an_answer_that_cannot_be_corrected_trips(run_mode: Run, answer: Any) -> None:
    """The next one would be cut at the same place, or refused again."""
    agent = script_agent("a", answer, say("b"), output_guardrails=[demand("b")])
    with pytest.raises(OutputGuardrailTripwireTriggered):
        await run_mode(agent, "go")
    assert len(read_requests(agent)) == 1


@pytest.mark.scenario("LM-07")
async def test_the_output_of_an_error_handler_trips(run_mode: Run) -> None:
    """No model has made it."""
    agent = script_agent("a", call("look"), tools=[look], output_guardrails=[demand("b")])
    handlers = {"max_turns": lambda data: ErrorHandlerResult("gave up")}
    with pytest.raises(OutputGuardrailTripwireTriggered):
        await run_mode(agent, "go", max_turns=1, error_handlers=handlers)


@pytest.mark.scenario("LM-07")
async def test_wrong_answers_of_guardrails_are_named(run_mode: Run) -> None:
    """A validator returns None or `AskAgain`."""
    agent = script_agent("a", say("a"), output_validator=lambda ctx, output: output)
    with pytest.raises(UserTypeError, match=r"output_validator must return None or AskAgain\(…\), not 'a'"):
        await run_mode(agent, "go")
    agent = script_agent("a", say("a"), output_guardrails=[make_output_guard("odd", "yes")])
    with pytest.raises(UserTypeError, match="must return GuardrailFunctionOutput or AskAgain, not 'yes'"):
        await run_mode(agent, "go")
    with pytest.raises(UserTypeError, match=r"Agent\.output_validator"):
        Agent("a", output_validator=3)  # type: ignore[arg-type]
    assert issubclass(InputGuardrailTripwireTriggered, Exception)


# -- seen


@pytest.mark.scenario("LM-07")
async def test_a_stream_shows_the_demand_and_the_message() -> None:
    """Between the two answers, so that its reader knows that the first text isn't the answer."""
    agent = script_agent("a", say("a"), say("b"), output_validator=refuse("b"))
    async with Runner.run_streamed(agent, "go") as stream:
        events = [event async for event in stream]
    seen = [event for event in events if isinstance(event, ev.ItemCreated | ev.GuardrailSettled)]
    assert [type(one.item) if isinstance(one, ev.ItemCreated) else type(one.result.output) for one in seen] == [
        *(AssistantMessage, AskAgain, UserMessage, AssistantMessage, GuardrailFunctionOutput)
    ]


@pytest.mark.scenario("LM-07")
async def test_a_session_has_answer_and_message(run_mode: Run) -> None:
    """Like the items of any other turn."""
    session = MemorySession()
    agent = script_agent("a", say("a"), say("b"), output_validator=refuse("b"))
    result = await run_mode(agent, "go", session=session)
    assert await session.get_items() == [UserMessage("go"), *result.new_items]


@tool(secret_output=True)
def pin() -> str:
    """Tell the PIN."""
    return "hush-hush"


@output_guardrail
def repeat(ctx: Any, agent: Any, output: Any) -> Any:
    """Ask for an answer without the PIN, with the PIN in the demand."""
    return PASSED if output == "b" else AskAgain(f"Not {output}.")


def build_secret() -> Agent[Any, Any]:
    """Return an agent whose final output is a secret, and refused."""
    steps = [call("pin", call_id="c"), say("b")]
    judged: Any = {"tool_use_behavior": "stop_on_first_tool", "output_guardrails": [repeat]}
    return script_agent("a", *steps, tools=[pin], **judged)


@pytest.mark.scenario("LM-07")
def test_a_stored_log_with_a_secret_demand_is_replayed() -> None:
    """It holds a digest in place of what the model was told."""
    journal = MemoryJournal()
    Runner.run_sync(build_secret(), "go", journal=journal)
    replayed = replay(journal, build_secret())
    assert replayed.result is not None
    assert replayed.result.final_output == "b"


@pytest.mark.scenario("LM-07")
async def test_what_is_said_about_a_secret_output_is_secret(run_mode: Run) -> None:
    """The message may repeat it: only the model is shown it."""
    agent = build_secret()
    watch, journal = Watch(), MemoryJournal()
    await run_mode(agent, "go", run_config=RunConfig(instruments=(watch,)), journal=journal)
    [asked] = [one for one in watch.records if isinstance(one, r.HistoryReplaced)]
    assert "hush-hush" not in repr(asked)
    assert "Not hush-hush." in read_user_texts(agent)[-1]
    assert b"hush-hush" not in b"".join(await journal.read())


# -- the log


def build() -> Agent[Any, Any]:
    """Return an agent whose answer is refused after a call, then after a handoff."""
    b = Agent("b", output_validator=refuse("b"))
    return Agent("a", tools=[look], handoffs=[b], output_guardrails=[demand("b")])


STEPS = [say("a"), call("look", call_id="c1"), call("transfer_to_b", call_id="h1"), say("a"), say("b")]


@pytest.mark.slow
@pytest.mark.scenario("LM-07")
@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
def test_a_crash_at_any_write_changes_neither_end_nor_count(streamed: bool) -> None:
    """Between the verdict and the message, too."""
    swept = t.crash_sweep(build, STEPS, streamed=streamed, pairs=[("asyncio", "trio"), ("trio", "asyncio")])
    assert swept.recovered > 20


@pytest.mark.scenario("LM-07")
@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
def test_a_run_can_be_cancelled_at_every_step(streamed: bool) -> None:
    """Nothing new begins after it."""
    t.kill_sweep(build, STEPS, streamed=streamed)


@pytest.mark.scenario("LM-07")
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("retries", [0, 1, 2])
def test_a_replay_follows_the_log(backend: Any, retries: int) -> None:
    """It asks no guardrail of the application's, and asks again where the run did."""
    model = ScriptedModel([say("a"), say("a"), say("b")])
    agent = Agent("a", output_validator=refuse("b"), output_retries=retries, model=model)
    watch = Watch()
    try:
        Runner.run_sync(agent, "go", run_config=RunConfig(instruments=(watch,)))
    except OutputGuardrailTripwireTriggered:
        assert retries < 2
    replay(watch.records, agent, backend=backend)
