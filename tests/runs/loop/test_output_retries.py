"""Final outputs that don't fit their type: the model is told the faults and corrects its answer."""

from typing import Any

import attrs
import pytest
from kit.agents import Run, look, make_output_guard, script_agent
from kit.results import check_history, describe, find_records, read_requests, read_user_texts
from kit.watching import Watch

from agentloop import (
    Agent,
    AgentHooks,
    ErrorHandlerResult,
    MaxTurnsExceeded,
    ModelBehaviorError,
    RunConfig,
    Runner,
    RunState,
    StateError,
    ToolExecution,
    tool,
)
from agentloop import events as ev
from agentloop import records as r
from agentloop import testing as t
from agentloop.config.conditions import MaxTurns
from agentloop.exceptions import ModelRefusalError, ReplayDivergence, UserTypeError, UserValueError
from agentloop.items import AssistantMessage, Refusal, Text, UserMessage
from agentloop.journal import MemoryJournal
from agentloop.sessions import MemorySession
from agentloop.testing import ScriptedModel, call, respond, say
from agentloop.testing.replaying import replay
from agentloop.usage import RequestUsage


@attrs.frozen
class Place:
    city: str
    people: int


GOOD = '{"city": "Rome", "people": 3}'
BAD = '{"city": 5, "people": "many"}'
ASKS = "Your answer isn't accepted. Correct every fault, and give the whole answer again.\n"


def read_corrections(records: Any) -> list[r.HistoryReplaced]:
    """Return those of *records* that asked the model to correct its answer."""
    return [one for one in records if isinstance(one, r.HistoryReplaced) and one.reason == "invalid_final_output"]


# -- asked again


@pytest.mark.scenario("WR-09", "OS-03")
@pytest.mark.parametrize("text", ["Rome, three people", "{", "[]", "null", '{"city": "Rome"}', BAD, "5"])
async def test_the_model_corrects_an_answer_that_does_not_fit(run_mode: Run, text: str) -> None:
    """The answer stays in the history as the model's message, and a user message lists the faults."""
    agent = script_agent("a", say(text), say(GOOD), output_type=Place)
    result = await run_mode(agent, "go")
    assert result.final_output == Place("Rome", 3)
    [said, asked, corrected] = result.new_items
    assert (said, corrected) == (AssistantMessage(text), AssistantMessage(GOOD))
    assert isinstance(asked, UserMessage)
    assert asked.text.startswith(f"{ASKS}The final output ")
    assert list(read_requests(agent)[1].items) == [UserMessage("go"), said, asked]


@pytest.mark.scenario("WR-09")
async def test_the_message_lists_every_fault_with_its_path(run_mode: Run) -> None:
    """One message for all faults, so that one correction can be enough."""
    agent = script_agent("a", say(BAD), say(GOOD), output_type=Place)
    await run_mode(agent, "go")
    text = read_user_texts(agent)[-1]
    assert "$.city: Expected `str`, got `int`" in text
    assert "$.people: Expected `int`, got `str`" in text


@pytest.mark.scenario("WR-09")
@pytest.mark.parametrize("retries", [0, 1, 2, 3])
async def test_it_is_asked_as_often_in_a_row_as_the_agent_says(run_mode: Run, retries: int) -> None:
    """Then the error leaves, with every answer and message in its data."""
    agent = script_agent("a", *[say(BAD)] * 5, output_type=Place, output_retries=retries)
    with pytest.raises(ModelBehaviorError, match=r"The final output doesn't fit: .*\$\.people") as caught:
        await run_mode(agent, "go")
    assert len(read_requests(agent)) == retries + 1
    assert caught.value.run_data is not None
    items = caught.value.run_data.new_items
    assert [type(item) for item in items] == [AssistantMessage, *[UserMessage, AssistantMessage] * retries]


@pytest.mark.scenario("WR-09")
async def test_the_handler_is_called_once_the_corrections_are_used_up(run_mode: Run) -> None:
    """It is given the last error, and its output is the run's."""
    given: list[Any] = []

    def handler(data: Any) -> Any:
        given.append(str(data.error))
        return ErrorHandlerResult(Place("none", 0))

    agent = script_agent("a", say("first"), say("second"), output_type=Place)
    result = await run_mode(agent, "go", error_handlers={"invalid_final_output": handler})
    assert result.final_output == Place("none", 0)
    [error] = given
    assert "second" in error
    assert len(read_requests(agent)) == 2


@pytest.mark.scenario("WR-09", "MT-01")
async def test_a_correction_is_a_turn(run_mode: Run) -> None:
    """It counts against the limit of turns; a run that the limit ends can be resumed with another one."""
    agent = script_agent("a", say(BAD), say(GOOD), output_type=Place)
    journal = MemoryJournal()
    with pytest.raises(MaxTurnsExceeded):
        await run_mode(agent, "go", max_turns=1, journal=journal)
    result = await run_mode(agent, await RunState.from_journal(agent, journal), max_turns=2, journal=journal)
    assert result.final_output == Place("Rome", 3)
    assert [record.turn for record in find_records(result, r.TurnStarted)] == [1, 2]
    assert result.usage.requests == 2


@pytest.mark.scenario("WR-09")
async def test_calls_between_do_not_begin_the_count_anew(run_mode: Run) -> None:
    """Else a model could alternate calls with answers that don't fit for as long as turns are left."""
    steps = [say(BAD), call("look", call_id="c1"), say(BAD), say(GOOD)]
    agent = script_agent("a", *steps, tools=[look], output_type=Place)
    with pytest.raises(ModelBehaviorError, match="doesn't fit"):
        await run_mode(agent, "go")
    assert len(read_requests(agent)) == 3


@pytest.mark.scenario("WR-09", "OS-04")
async def test_an_empty_answer_is_no_misfit(run_mode: Run) -> None:
    """It leads to another turn without a message, and uses up no correction."""
    agent = script_agent("a", say(BAD), say(""), respond(), say(GOOD), output_type=Place)
    result = await run_mode(agent, "go")
    assert result.final_output == Place("Rome", 3)
    assert len(read_corrections(result.records)) == 1


@pytest.mark.scenario("WR-09")
async def test_another_agent_has_a_count_of_its_own(run_mode: Run) -> None:
    """Each agent that a handoff makes active gets its own corrections, with its own number of them."""
    b = script_agent("b", say(BAD), say(BAD), say(GOOD), output_type=Place, output_retries=2)
    a = script_agent("a", say("no JSON"), call("transfer_to_b", call_id="h"), output_type=int, handoffs=[b])
    result = await run_mode(a, "go")
    assert result.final_output == Place("Rome", 3)
    assert len(read_corrections(result.records)) == 3


@pytest.mark.scenario("WR-09")
async def test_a_nested_run_corrects_its_own_answer(run_mode: Run) -> None:
    """In its own history; the model of the run around it sees the corrected answer alone."""
    inner = script_agent("inner", say(BAD), say(GOOD), output_type=Place)
    outer = script_agent("outer", call("inner", {"input": "go"}, call_id="c"), say("done"), tools=[inner.as_tool()])
    result = await run_mode(outer, "go")
    assert [record.path for record in read_corrections(result.records)] == [("c",)]
    assert describe(result.new_items) == ["call:inner#c", 'output:{"city": "Rome", "people": 3}#c', "says:done"]
    assert len(read_user_texts(inner)) == 2


@pytest.mark.scenario("WR-09", "OS-10")
async def test_a_tools_output_as_the_final_one_is_not_corrected(run_mode: Run) -> None:
    """It is the object itself, of whatever type."""
    agent = script_agent(
        "a", call("look", call_id="c"), tools=[look], output_type=Place, tool_use_behavior="stop_on_first_tool"
    )
    assert (await run_mode(agent, "go")).final_output == "seen"


# -- not asked again


@pytest.mark.scenario("WR-09", "OS-05")
async def test_a_refusal_is_not_asked_again(run_mode: Run) -> None:
    """Neither a refusal alone nor one beside words that don't fit."""
    agent = script_agent("a", respond(AssistantMessage((Refusal("I won't"),))), say(GOOD), output_type=Place)
    with pytest.raises(ModelRefusalError):
        await run_mode(agent, "go")
    assert len(read_requests(agent)) == 1
    both = respond(AssistantMessage((Text("Sorry."), Refusal("I won't"))))
    agent = script_agent("a", both, say(GOOD), output_type=Place)
    with pytest.raises(ModelBehaviorError, match="Sorry"):
        await run_mode(agent, "go")
    assert len(read_requests(agent)) == 1


@pytest.mark.scenario("WR-09", "RP-19")
@pytest.mark.parametrize("reason", ["length", "content_filter"])
async def test_a_cut_answer_is_not_asked_again(run_mode: Run, reason: str) -> None:
    """The next one would be cut at the same place."""
    agent = script_agent("a", respond(AssistantMessage('{"city": "Ro'), finish_reason=reason), output_type=Place)
    with pytest.raises(ModelBehaviorError, match=rf"cut \({reason}\)"):
        await run_mode(agent, "go")


# -- seen


@pytest.mark.scenario("WR-09", "HS-01")
async def test_end_hooks_and_output_guardrails_see_the_accepted_answer_alone(run_mode: Run) -> None:
    """The hooks of the model see each answer."""
    seen: list[Any] = []

    class Hooks(AgentHooks):
        async def on_llm_end(self, ctx: Any, agent: Any, response: Any) -> None:
            seen.append("llm_end")

        async def on_end(self, ctx: Any, agent: Any, output: Any) -> None:
            seen.append(output)

    guard = make_output_guard("judge", log=seen)
    agent = script_agent("a", say(BAD), say(GOOD), output_type=Place, hooks=Hooks(), output_guardrails=[guard])
    await run_mode(agent, "go")
    assert seen == ["llm_end", "llm_end", Place("Rome", 3), "judge"]


async def test_a_stream_shows_the_message_between_the_two_answers() -> None:
    """So that its reader knows that the first text isn't the answer."""
    agent = script_agent("a", say(BAD), say(GOOD), output_type=Place)
    async with Runner.run_streamed(agent, "go") as stream:
        events = [event async for event in stream]
    items = [(event.turn, type(event.item)) for event in events if isinstance(event, ev.ItemCreated)]
    assert items == [(1, AssistantMessage), (1, UserMessage), (2, AssistantMessage)]
    assert stream.result.final_output == Place("Rome", 3)


@pytest.mark.scenario("WR-09", "SE-04")
async def test_a_session_has_the_answer_and_the_message_at_the_end_of_their_turn(run_mode: Run) -> None:
    """Like the items of any other turn."""
    session = MemorySession()
    seen: list[Any] = []

    def correct(request: Any) -> Any:
        seen.extend(session._items)
        return say(GOOD)

    agent = script_agent("a", say(BAD), correct, output_type=Place)
    result = await run_mode(agent, "go", session=session)
    assert seen == [UserMessage("go"), *result.new_items[:2]]
    assert await session.get_items() == [UserMessage("go"), *result.new_items]


async def test_a_provider_that_keeps_the_conversation_is_sent_the_message_alone(run_mode: Run) -> None:
    """It has its own answer."""
    steps = [
        respond(AssistantMessage(BAD), response_id="r1"),
        respond(AssistantMessage(GOOD), response_id="r2"),
    ]
    agent = script_agent("a", *steps, output_type=Place)
    await run_mode(agent, "go", auto_previous_response_id=True)
    [_, second] = read_requests(agent)
    assert second.previous_response_id == "r1"
    assert [type(item) for item in second.items] == [UserMessage]


async def test_the_message_keeps_to_the_length_of_outputs_and_shows_no_credential(run_mode: Run) -> None:
    """A validator of the application's may put anything into its error."""

    @attrs.frozen
    class Picky:
        name: str = attrs.field()

        @name.validator
        def _check(self, attribute: Any, value: str) -> None:
            if value != "ok":
                raise ValueError("password=hunter2 " + "x" * 100)

    agent = script_agent("a", say('{"name": "no"}'), say('{"name": "ok"}'), output_type=Picky)
    await run_mode(agent, "go", run_config=RunConfig(tool_execution=ToolExecution(max_output_chars=None)))
    text = read_user_texts(agent)[-1]
    assert "[redacted]" in text
    assert "hunter2" not in text
    agent = script_agent("a", say('{"name": "no"}'), say('{"name": "ok"}'), output_type=Picky)
    await run_mode(agent, "go", run_config=RunConfig(tool_execution=ToolExecution(max_output_chars=90)))
    assert len(read_user_texts(agent)[-1]) == 90


async def test_the_message_in_a_run_of_secret_input_is_secret(run_mode: Run) -> None:
    """Its quotes may repeat the secret: only the model is shown them."""
    inner = script_agent("inner", say('{"city": "hush-hush"}'), say(GOOD), output_type=Place)
    outer = script_agent(
        "outer", call("inner", {"input": "x"}, call_id="c"), say("done"), tools=[inner.as_tool(secret=["input"])]
    )
    watch, journal = Watch(), MemoryJournal()
    await run_mode(outer, "go", run_config=RunConfig(instruments=(watch,)), journal=journal)
    [corrected] = read_corrections(watch.records)
    [message] = corrected.items
    assert isinstance(message, UserMessage)
    assert message.secret
    assert "degrees" not in repr(message)
    assert "doesn't fit" in read_user_texts(inner)[-1]
    assert b"doesn't fit" not in b"".join(await journal.read())


# -- the log


def build_corrected() -> Agent[Any, Any]:
    """Return an agent that calls a tool, hands over, and needs two corrections in all."""
    b = Agent("b", output_type=Place)
    return Agent("a", tools=[look], output_type=int, handoffs=[b])


STEPS = [
    say("no JSON", RequestUsage(total_tokens=5)),
    call("look", call_id="c1"),
    call("transfer_to_b", call_id="h1"),
    say(BAD),
    say(GOOD),
]


@pytest.mark.slow
@pytest.mark.scenario("WR-09")
@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
def test_a_run_that_crashes_at_any_write_goes_on_with_the_same_count(streamed: bool) -> None:
    """Between the answer and the message, too: the end and the number of requests are those of the whole run."""
    swept = t.crash_sweep(build_corrected, STEPS, streamed=streamed, pairs=[("asyncio", "trio"), ("trio", "asyncio")])
    assert swept.recovered > 20


@pytest.mark.scenario("WR-09")
def test_a_count_that_is_used_up_stays_so_over_a_crash() -> None:
    """The run fails after a crash as it does without one, and asks no more often."""

    def check(run: Any) -> None:
        assert len(read_corrections(run.records)) == 1

    script = [say(BAD), say(BAD), say(GOOD)]
    agent = Agent("a", output_type=Place)
    t.crash_sweep(agent, script, check, allow=(ModelBehaviorError, StateError), pairs=[("asyncio", "trio")])


@pytest.mark.slow
@pytest.mark.scenario("WR-09")
@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
def test_a_run_can_be_cancelled_at_every_step(streamed: bool) -> None:
    """Nothing new begins after it."""
    t.kill_sweep(build_corrected, STEPS, streamed=streamed)


@pytest.mark.scenario("WR-09")
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("retries", [0, 1, 2])
def test_a_replay_follows_the_log(backend: Any, retries: int) -> None:
    """It asks again where the run did; another number of corrections makes another log."""
    agent = Agent("a", output_type=Place, output_retries=retries, model=ScriptedModel([say(BAD), say(BAD), say(GOOD)]))
    watch = Watch()
    fails = retries < 2
    try:
        Runner.run_sync(agent, "go", run_config=RunConfig(instruments=(watch,)))
    except ModelBehaviorError:
        assert fails
    replayed = replay(watch.records, agent.clone(model=ScriptedModel([])), backend=backend)
    assert list(replayed.records) == watch.records
    assert isinstance(replayed.error, ModelBehaviorError) is fails
    with pytest.raises(ReplayDivergence):
        replay(watch.records, agent.clone(output_retries=3 if fails else 0), backend=backend)


@pytest.mark.scenario("WR-09")
async def test_a_run_stopped_between_answer_and_correction_goes_on(run_mode: Run) -> None:
    """The stop comes at the end of a turn, so the history has the message; input may be added behind it."""
    agent = script_agent("a", say(BAD), say(GOOD), output_type=Place)
    stopped = await run_mode(agent, "go", run_config=RunConfig(stop_when=MaxTurns(1)))
    assert stopped.status == "stopped"
    state = RunState.from_string(agent, stopped.to_state().to_string())
    state.add_input("hurry")
    result = await run_mode(agent, state)
    assert result.final_output == Place("Rome", 3)
    assert [text.partition("\n")[0] for text in read_user_texts(agent)] == ["go", ASKS.strip(), "hurry"]


async def test_the_history_of_every_run_is_valid(run_mode: Run) -> None:
    """With a call beside, too: every call has its output."""

    @tool
    async def count() -> int:
        """Count."""
        return 1

    steps = [call("count", call_id="c1"), say(BAD), [say("and"), call("count", call_id="c2")], say(GOOD)]
    agent = script_agent("a", *steps, tools=[count], output_type=Place)
    result = await run_mode(agent, "go")
    check_history(result.to_input_list())
    assert result.final_output == Place("Rome", 3)


def test_the_number_of_corrections_is_checked_at_construction() -> None:
    """A whole number of at least 0."""
    with pytest.raises(UserValueError, match=r"Agent\.output_retries"):
        Agent("a", output_retries=-1)
    with pytest.raises(UserTypeError, match=r"Agent\.output_retries"):
        Agent("a", output_retries=True)
    assert Agent("a", output_type=Place).output_retries == 1
