"""Answers that the provider interrupts: it is asked for the rest in the same turn."""

import json
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from kit.agents import Run, look, make_input_guard, make_usage, script_agent
from kit.results import describe, find_records, read_requests, read_user_texts
from kit.watching import Watch

from agentloop import (
    Agent,
    GuardrailFunctionOutput,
    InputGuardrailTripwireTriggered,
    MaxTurnsExceeded,
    ModelBehaviorError,
    ModelRetrySettings,
    ModelSettings,
    RunConfig,
    RunHooks,
    Runner,
    RunState,
    UsageLimitExceeded,
    UsageLimits,
    input_guardrail,
)
from agentloop import events as ev
from agentloop import records as r
from agentloop import testing as t
from agentloop._core.run_fold import MAX_PAUSES
from agentloop.config.conditions import MaxTurns
from agentloop.exceptions import ModelTransportError
from agentloop.items import AssistantMessage, HostedToolCall, Reasoning, ToolCall, ToolOutput, UserMessage
from agentloop.journal import MemoryJournal
from agentloop.sessions import MemorySession
from agentloop.testing import ScriptedModel, call, fail, respond, say
from agentloop.testing.replaying import replay

SEARCHED = HostedToolCall("web_search_call", {}, "ws1", "completed")
PAUSED = respond(SEARCHED, AssistantMessage("So far"), finish_reason="pause", usage=make_usage(5))
REASONED = respond(Reasoning("r1"), finish_reason="pause", usage=make_usage(7))


@pytest.mark.scenario("WR-11")
async def test_a_paused_answer_is_asked_for_again_in_the_same_turn(run_mode: Run) -> None:
    """The provider gets its own items back and continues; its words so far are no final output."""
    agent = script_agent("a", PAUSED, REASONED, say("done", make_usage(3)))
    result = await run_mode(agent, "go", max_turns=1)
    assert result.final_output == "done"
    assert [len(request.items) for request in read_requests(agent)] == [1, 3, 4]
    assert [request.turn for request in read_requests(agent)] == [1, 1, 1]
    assert [response.paused for response in result.raw_responses] == [True, True, False]
    assert (result.usage.requests, result.usage.total_tokens) == (3, 15)
    assert [record.turn for record in find_records(result, r.TurnStarted)] == [1]
    assert [record.attempt for record in find_records(result, r.ModelRequested)] == [1, 1, 1]
    assert len({record.digest for record in find_records(result, r.ModelRequested)}) == 3
    assert json.loads(result.to_state().to_string())


@pytest.mark.scenario("WR-11")
async def test_the_next_turn_is_the_next_number(run_mode: Run) -> None:
    """A pause in one turn takes nothing from the turns after it."""
    agent = script_agent("a", PAUSED, call("look", call_id="c"), PAUSED, say("done"), tools=[look])
    result = await run_mode(agent, "go", max_turns=2)
    assert [request.turn for request in read_requests(agent)] == [1, 1, 2, 2]
    assert result.final_output == "done"
    with pytest.raises(MaxTurnsExceeded):
        await run_mode(
            script_agent("a", PAUSED, call("look", call_id="c"), say("never"), tools=[look]), "go", max_turns=1
        )


async def test_a_paused_answer_with_calls_has_them_run_first(run_mode: Run) -> None:
    """The next request holds their outputs, and begins the next turn like any request after calls."""
    agent = script_agent(
        "a", respond(ToolCall("c1", "look"), finish_reason="pause"), say("done"), tools=[look], output_type=None
    )
    assert (await run_mode(agent, "go")).final_output == "done"
    assert read_requests(agent)[1].items[-1] == ToolOutput("c1", "seen")
    assert [request.turn for request in read_requests(agent)] == [1, 2]


@pytest.mark.scenario("WR-11")
async def test_an_answer_that_is_paused_again_and_again_is_the_model_s_fault(run_mode: Run) -> None:
    """No limit of turns would end it: the error names the bound of pauses in one turn."""
    agent = script_agent("a", *[PAUSED] * (MAX_PAUSES + 2))
    with pytest.raises(ModelBehaviorError, match=rf"paused its answer {MAX_PAUSES + 1} times .* at most {MAX_PAUSES}"):
        await run_mode(agent, "go", max_turns=None)
    assert len(read_requests(agent)) == MAX_PAUSES + 1
    agent = script_agent("a", *[PAUSED] * MAX_PAUSES, say("done"))
    assert (await run_mode(agent, "go")).final_output == "done"


@pytest.mark.scenario("WR-11")
async def test_each_turn_has_pauses_of_its_own(run_mode: Run) -> None:
    """The bound is one of a turn."""
    agent = script_agent(
        "a", *[PAUSED] * MAX_PAUSES, call("look", call_id="c"), *[PAUSED] * MAX_PAUSES, say("done"), tools=[look]
    )
    assert (await run_mode(agent, "go", max_turns=2)).final_output == "done"


@pytest.mark.scenario("WR-11")
async def test_the_rest_is_asked_for_as_the_turn_was(run_mode: Run) -> None:
    """The turn's definitions hold: no callable is asked again, and only the hooks of the model are called again."""
    heard: list[str] = []

    class Hooks(RunHooks):
        async def on_llm_start(self, ctx: Any, agent: Any, system: Any, items: Any) -> None:
            heard.append(f"asked {len(items)}")

        async def on_llm_end(self, ctx: Any, agent: Any, response: Any) -> None:
            heard.append(f"answered {response.finish_reason}")

    def instruct(ctx: Any, agent: Any) -> str:
        heard.append("instructions")
        return f"Be brief, {len(heard)}."

    agent = script_agent("a", PAUSED, say("done"), instructions=instruct)
    await run_mode(agent, "go", hooks=Hooks())
    assert heard == ["instructions", "asked 1", "answered pause", "asked 3", "answered None"]
    assert [request.system for request in read_requests(agent)] == ["Be brief, 1."] * 2


async def test_a_stream_shows_the_items_of_both_parts() -> None:
    """In one turn."""
    agent = script_agent("a", PAUSED, say("done"))
    async with Runner.run_streamed(agent, "go") as stream:
        events = [event async for event in stream]
    shown = [type(event) for event in events if isinstance(event, ev.TurnStarted | ev.ItemCreated | ev.RunEnded)]
    assert shown == [ev.TurnStarted, *[ev.ItemCreated] * 3, ev.RunEnded]
    text = "".join(event.text for event in events if isinstance(event, ev.TextDelta))
    assert text == "So fardone"


async def test_a_stop_after_the_turn_waits_for_the_whole_answer() -> None:
    """A paused answer is no end of a turn."""
    agent = script_agent("a", PAUSED, call("look", call_id="c"), say("never"), tools=[look])
    async with Runner.run_streamed(agent, "go") as stream:
        async for event in stream:
            if isinstance(event, ev.ItemCreated):
                stream.cancel("after_turn")
    assert describe(stream.result.new_items)[-1] == "output:seen#c"
    assert len(read_requests(agent)) == 2


async def test_a_stop_condition_sees_the_text_of_the_whole_turn(run_mode: Run) -> None:
    """It is checked where the turn ends."""
    agent = script_agent("a", PAUSED, call("look", call_id="c"), say("never"), tools=[look])
    seen: list[Any] = []

    class Texts(MaxTurns):
        def check(self, view: Any, answers: Any = None) -> Any:
            seen.append((view.turn, view.text))
            return super().check(view, answers)

    result = await run_mode(agent, "go", run_config=RunConfig(stop_when=Texts(1)))
    assert result.status == "stopped"
    assert seen[-1] == (1, "So far\nseen")


@pytest.mark.scenario("WR-11")
async def test_every_request_is_counted_and_limited(run_mode: Run) -> None:
    """A limit of requests ends the run between the two parts; another segment asks for the rest in the same turn."""
    agent = script_agent("a", PAUSED, say("done"))
    journal = MemoryJournal()
    with pytest.raises(UsageLimitExceeded):
        await run_mode(agent, "go", run_config=RunConfig(limits=UsageLimits(requests=1)), journal=journal)
    assert len(read_requests(agent)) == 1
    state = await RunState.from_journal(agent, journal)
    result = await run_mode(agent, state, journal=journal, max_turns=1)
    assert result.final_output == "done"
    assert [record.turn for record in find_records(result, r.TurnStarted)] == [1, 1]
    assert result.usage.requests == 2


@pytest.mark.scenario("WR-11", "PE-01")
async def test_added_input_is_shown_after_the_whole_answer(run_mode: Run) -> None:
    """It would stand between the two parts of an answer."""
    agent = script_agent("a", PAUSED, say("done"), say("quickly"))
    with pytest.raises(UsageLimitExceeded) as caught:
        await run_mode(agent, "go", run_config=RunConfig(limits=UsageLimits(requests=1)))
    assert caught.value.run_data is not None
    state = RunState(agent, caught.value.run_data.records)
    state.add_input("hurry")
    result = await run_mode(agent, state)
    assert result.final_output == "quickly"
    assert [texts for place in range(3) if "hurry" in (texts := read_user_texts(agent, place))] == [["go", "hurry"]]


@pytest.mark.scenario("WR-11", "MT-02")
async def test_the_rest_is_retried_like_any_request(run_mode: Run) -> None:
    """Attempts are counted anew for it."""
    busy = fail(ModelTransportError("busy", status=503))
    settings = ModelSettings(retry=ModelRetrySettings(max_retries=2, initial_delay=0.001))
    agent = script_agent("a", busy, PAUSED, busy, busy, say("done"), model_settings=settings)
    result = await run_mode(agent, "go", max_turns=1)
    assert result.final_output == "done"
    assert [record.attempt for record in find_records(result, r.ModelRequested)] == [1, 2, 1, 2, 3]
    assert result.usage.requests == 5


@pytest.mark.scenario("GI-14")
@pytest.mark.parametrize("trips", [False, True])
async def test_input_guardrails_settle_before_the_rest_is_asked_for(run_mode: Run, trips: bool) -> None:
    """They run beside the turn's first request alone."""
    log: list[str] = []
    guard = make_input_guard("judge", GuardrailFunctionOutput(None, trips), log=log)
    agent = script_agent("a", PAUSED, say("done"), input_guardrails=[guard])
    if trips:
        with pytest.raises(InputGuardrailTripwireTriggered):
            await run_mode(agent, "go")
        assert len(read_requests(agent)) == 1
    else:
        assert (await run_mode(agent, "go")).final_output == "done"
    assert log == ["judge"]


async def test_a_provider_that_keeps_the_conversation_is_sent_nothing_twice(run_mode: Run) -> None:
    """It has its own items, so the request for the rest has none."""
    agent = script_agent(
        "a",
        respond(SEARCHED, finish_reason="pause", response_id="r1"),
        respond(AssistantMessage("done"), response_id="r2"),
    )
    await run_mode(agent, "go", auto_previous_response_id=True)
    assert [list(request.items) for request in read_requests(agent)] == [[UserMessage("go")], []]
    assert read_requests(agent)[1].previous_response_id == "r1"


async def test_a_session_gets_the_whole_answer(run_mode: Run) -> None:
    """Once."""
    session = MemorySession()
    result = await run_mode(script_agent("a", PAUSED, say("done")), "go", session=session)
    assert await session.get_items() == [UserMessage("go"), *result.new_items]


async def test_a_paused_answer_with_a_call_that_contradicts_is_refused(run_mode: Run) -> None:
    """As any answer with such a call is."""
    agent = script_agent(
        "a",
        call("look", call_id="c"),
        respond(ToolCall("c", "other"), finish_reason="pause"),
        say("never"),
        tools=[look],
    )
    with pytest.raises(ModelBehaviorError, match="'c'"):
        await run_mode(agent, "go")
    assert len(read_requests(agent)) == 2


# -- the log


def build_agent() -> Agent[Any, Any]:
    """Return an agent of two tools, one of them an agent, with a guardrail."""

    @input_guardrail
    async def judge(ctx: Any, agent: Any, given: Any) -> GuardrailFunctionOutput:
        return GuardrailFunctionOutput(None, False)

    inner = Agent("inner")
    return Agent("a", tools=[look, inner.as_tool()], input_guardrails=[judge])


STEPS = [
    PAUSED,
    [call("look", call_id="c1"), call("inner", {"input": "x"}, call_id="n1")],
    PAUSED,
    REASONED,
    say("done"),
]
NESTED = {"n1": [PAUSED, say("inner is done")]}


@pytest.mark.slow
@pytest.mark.scenario("WR-11")
@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
def test_a_run_that_crashes_at_any_write_goes_on_in_the_same_turn(streamed: bool) -> None:
    """The end, the turns and the number of requests are those of the whole run."""
    pairs: Any = [("asyncio", "trio"), ("trio", "asyncio")]
    swept = t.crash_sweep(build_agent, STEPS, streamed=streamed, nested=NESTED, pairs=pairs)
    assert swept.recovered > 20


@pytest.mark.slow
@pytest.mark.scenario("WR-11")
@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
def test_a_run_can_be_cancelled_at_every_step(streamed: bool) -> None:
    """Between the two parts, too."""
    t.kill_sweep(build_agent, STEPS, streamed=streamed, nested=NESTED)


@pytest.mark.scenario("WR-11")
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_replay_follows_the_log(backend: Any) -> None:
    """Also where another run segment asked for the rest."""
    agent = Agent("a", model=ScriptedModel([PAUSED, call("look", call_id="c"), PAUSED, say("done")]), tools=[look])
    watch = Watch()
    Runner.run_sync(agent, "go", run_config=RunConfig(instruments=(watch,)))
    assert list(replay(watch.records, agent, backend=backend).records) == watch.records


@pytest.mark.scenario("WR-11")
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_replay_follows_the_log_where_another_segment_asked_for_the_rest(backend: Any) -> None:
    """The turn began twice in it."""
    broken = fail(ModelTransportError("broken", status=400))
    agent = Agent("a", model=ScriptedModel([PAUSED, broken, say("done")]))
    journal = MemoryJournal()

    async def run() -> None:
        with pytest.raises(ModelTransportError):
            await Runner.run(agent, "go", journal=journal)
        await Runner.resume(agent, journal)

    anyio.run(run)
    replayed = replay(journal, agent, backend=backend)
    assert [record.turn for record in replayed.records if isinstance(record, r.TurnStarted)] == [1, 1]
    assert replayed.result is not None
    assert replayed.result.final_output == "done"


async def test_the_digest_shows_what_a_request_continues(run_mode: Run) -> None:
    """Two runs of equal parts have equal digests."""
    digests = []
    for _ in range(2):
        result = await run_mode(script_agent("a", PAUSED, say("done")), "go")
        digests.append([record.digest for record in find_records(result, r.ModelRequested)])
    assert digests[0] == digests[1]


@pytest.mark.scenario("WR-11")
async def test_each_part_of_an_answer_is_durable_before_the_rest_is_asked_for(run_mode: Run) -> None:
    """The request waits for a slow journal: a crash loses no part that was paid for."""

    class Slow(MemoryJournal):
        async def append(self, records: Any) -> None:
            for _ in range(10):
                await anyio.lowlevel.checkpoint()
            await super().append(records)

    journal, durable = Slow(), list[int]()

    def counting(step: Any) -> Any:
        def answer(request: Any) -> Any:
            durable.append(sum(b'"kind":"model_responded"' in line for line in journal._records))
            return step

        return answer

    agent = script_agent("a", *map(counting, [PAUSED, REASONED, PAUSED, say("done")]))
    assert (await run_mode(agent, "go", journal=journal)).final_output == "done"
    assert durable == [0, 1, 2, 3]
