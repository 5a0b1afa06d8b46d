"""A limit that is reached: the model is asked for its final output with what it has, and is told before."""

from typing import Any

import attrs
import pytest
from kit.agents import PASSED, Run, look, make_usage, script_agent
from kit.results import describe, find_records, read_requests
from kit.watching import Watch

from agentloop import (
    Agent,
    AskAgain,
    ErrorHandlerResult,
    MaxTurnsExceeded,
    ModelBehaviorError,
    ModelRetrySettings,
    ModelSettings,
    OutputGuardrailTripwireTriggered,
    RunConfig,
    Runner,
    RunState,
    ToolsToFinalOutput,
    UsageLimitExceeded,
    UsageLimits,
    output_guardrail,
    tool,
)
from agentloop import events as ev
from agentloop import records as r
from agentloop import testing as t
from agentloop._engine.turn_end import ANSWER_NOW
from agentloop.exceptions import ModelTransportError, UserTypeError, UserValueError
from agentloop.items import ToolCall, UserMessage
from agentloop.journal import MemoryJournal
from agentloop.sessions import MemorySession
from agentloop.testing import ScriptedModel, call, fail, respond, say
from agentloop.testing.replaying import replay

ANSWER = RunConfig(at_limit="answer")
ASKED = UserMessage(ANSWER_NOW)


def within(**limits: Any) -> RunConfig:
    """Return a configuration that asks for an answer at these limits."""
    return attrs.evolve(ANSWER, limits=UsageLimits(**limits))


def looking(turns: int, *more: Any, **fields: Any) -> Agent[Any, Any]:
    """Return an agent that calls a tool in each of *turns* turns, each for ten tokens."""
    calls = [respond(ToolCall(f"c{n}", "look", "{}"), usage=make_usage(10)) for n in range(1, turns + 1)]
    return script_agent("a", *calls, *more, tools=[look], **fields)


# -- the final output


@pytest.mark.scenario("LM-04")
@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"max_turns": 2, "run_config": ANSWER}, "max_turns"),
        ({"run_config": within(requests=2)}, "usage_limits"),
        ({"run_config": within(total_tokens=11)}, "usage_limits"),
        ({"run_config": within(input_tokens=18)}, "usage_limits"),
        ({"max_turns": 2, "run_config": within(requests=2)}, "max_turns"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_one_request_more_gives_the_final_output(run_mode: Run, options: Any, why: str) -> None:
    """It has no tools, and a note that says so; the result says why the run came to its end."""
    agent = looking(2, say("as far as I know"))
    result = await run_mode(agent, "go", **options)
    assert (result.status, result.final_output, result.stop_reason) == ("completed", "as far as I know", why)
    first, _, last = read_requests(agent)
    assert (len(first.tools), last.tools, list(last.items)[-1]) == (1, (), ASKED)
    assert describe(result.new_items)[-2:] == [f"user:{ANSWER_NOW}", "says:as far as I know"]
    assert [one.turn for one in find_records(result, r.TurnStarted)] == [1, 2, 3]
    assert find_records(result, r.TurnStarted)[-1].tools == ()


@pytest.mark.scenario("LM-04")
async def test_a_run_that_ends_before_its_limit_is_as_it_was(run_mode: Run) -> None:
    """Not one record more, and no reason."""
    result = await run_mode(looking(1, say("done")), "go", max_turns=2, run_config=ANSWER)
    plain = await run_mode(looking(1, say("done")), "go", max_turns=2)
    assert result.stop_reason is None
    assert [type(one) for one in result.records] == [type(one) for one in plain.records]


@pytest.mark.scenario("LM-04", "MT-01")
@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"max_turns": 2, "run_config": ANSWER}, MaxTurnsExceeded),
        ({"run_config": within(requests=2)}, UsageLimitExceeded),
    ],
    ids=["turns", "usage"],
)
async def test_an_answer_with_a_call_in_it_is_none(run_mode: Run, options: Any, error: Any) -> None:
    """No tool of that name is there any more, and no other request follows."""
    agent = looking(5)
    with pytest.raises(error) as caught:
        await run_mode(agent, "go", **options)
    assert len(read_requests(agent)) == 3
    assert caught.value.run_data is not None
    assert [one.outcome.status for one in caught.value.run_data.calls] == ["succeeded", "succeeded", "failed"]


@pytest.mark.scenario("LM-04")
async def test_the_default_raises(run_mode: Run) -> None:
    """As it always has."""
    with pytest.raises(MaxTurnsExceeded):
        await run_mode(looking(3), "go", max_turns=2)
    assert RunConfig().at_limit == "raise"


@pytest.mark.scenario("LM-04")
async def test_the_handler_has_its_say_if_there_is_no_answer(run_mode: Run) -> None:
    """It comes after the request, and its output isn't the answer at the limit."""
    handlers = {"max_turns": lambda data: ErrorHandlerResult("gave up")}
    agent = looking(3)
    result = await run_mode(agent, "go", max_turns=2, run_config=ANSWER, error_handlers=handlers)
    assert (result.final_output, result.stop_reason, len(read_requests(agent))) == ("gave up", None, 3)


@pytest.mark.scenario("LM-04", "LM-07")
async def test_the_last_answer_is_not_corrected(run_mode: Run) -> None:
    """No request follows it: one that doesn't fit is an error, and a guardrail that would ask trips."""
    agent = looking(1, say("no JSON"), say("3"), output_type=int)
    with pytest.raises(ModelBehaviorError):
        await run_mode(agent, "go", max_turns=1, run_config=ANSWER)

    def validate(ctx: Any, output: Any) -> AskAgain:
        return AskAgain("more")

    agent = looking(1, say("a"), say("b"), output_validator=validate)
    with pytest.raises(OutputGuardrailTripwireTriggered):
        await run_mode(agent, "go", max_turns=1, run_config=ANSWER)


@pytest.mark.scenario("LM-04", "WR-09")
async def test_a_correction_that_the_limit_leaves_no_turn_for_gets_the_last_one(run_mode: Run) -> None:
    """The model reads the faults, then that it has to answer now."""
    agent = script_agent("a", say("no JSON"), say('{"response": 3}'), output_type=int)
    result = await run_mode(agent, "go", max_turns=1, run_config=ANSWER)
    assert (result.final_output, result.stop_reason) == (3, "max_turns")


@pytest.mark.scenario("LM-04")
async def test_the_last_request_may_be_repeated(run_mode: Run) -> None:
    """A busy server isn't the model's answer; the attempts of that turn are not counted against the limit."""
    settings = ModelSettings(retry=ModelRetrySettings(max_retries=1, initial_delay=0.01))
    agent = looking(1, fail(ModelTransportError("busy", status=503)), say("done"), model_settings=settings)
    result = await run_mode(agent, "go", run_config=within(requests=1))
    assert (result.final_output, result.usage.requests) == ("done", 3)


@pytest.mark.scenario("LM-04")
async def test_a_demanded_tool_is_demanded_no_more(run_mode: Run) -> None:
    """Neither tools nor handoffs nor tools of the provider are shown."""
    other = script_agent("b")
    fields: Any = {"handoffs": [other], "model_settings": ModelSettings(tool_choice="required")}
    agent = looking(1, say("done"), reset_tool_choice=False, **fields)
    await run_mode(agent, "go", max_turns=1, run_config=ANSWER)
    last = read_requests(agent)[-1]
    assert (last.tools, last.handoffs, last.hosted, last.tool_choice) == ((), (), (), None)


@pytest.mark.scenario("LM-04")
async def test_the_application_is_asked_once_about_a_turns_calls(run_mode: Run) -> None:
    """A callable `tool_use_behavior` isn't called again for the note."""
    seen: list[Any] = []

    def decide(ctx: Any, results: Any) -> ToolsToFinalOutput:
        seen.append(len(results))
        return ToolsToFinalOutput(is_final=False)

    agent = looking(1, say("done"), tool_use_behavior=decide)
    await run_mode(agent, "go", max_turns=1, run_config=ANSWER)
    assert seen == [1]


@pytest.mark.scenario("LM-04")
async def test_a_nested_run_answers_at_its_own_limit(run_mode: Run) -> None:
    """The run around it gets that answer as the output of its call, and has its turns left."""
    inner = looking(2, say("half of it"))
    inner.name = "inner"
    outer = script_agent(
        "outer", call("inner", {"input": "go"}, call_id="c"), say("done"), tools=[inner.as_tool(max_turns=2)]
    )
    result = await run_mode(outer, "go", run_config=ANSWER)
    assert describe(result.new_items) == ["call:inner#c", "output:half of it#c", "says:done"]
    ends = [(one.path, one.stop_reason) for one in find_records(result, r.RunEnded)]
    assert ends == [(("c",), "max_turns"), ((), None)]


@pytest.mark.scenario("LM-04")
async def test_a_run_of_no_turn_asks_once(run_mode: Run) -> None:
    """A budget of nothing still leaves the one request."""
    agent = script_agent("a", say("hello"))
    assert (await run_mode(agent, "go", run_config=within(requests=0))).final_output == "hello"


# -- the note before


@pytest.mark.scenario("LM-04")
@pytest.mark.parametrize(
    ("share", "turns", "told", "text"),
    [(0.8, 10, 9, "2 turns left."), (0.5, 4, 3, "2 turns left."), (0.8, 2, 2, "1 turn left."), (0.01, 1, 1, "1 turn")],
)
async def test_the_model_reads_once_how_many_turns_are_left(
    run_mode: Run, share: float, turns: int, told: int, text: str
) -> None:
    """Before the first turn past that share of them; before the last one at the latest."""
    agent = looking(turns - 1, say("done"))
    result = await run_mode(agent, "go", max_turns=turns, run_config=RunConfig(nudge_at=share))
    [note] = [one for one in find_records(result, r.HistoryReplaced) if one.reason == "turns_left"]
    assert note.turn == told - 1
    [item] = note.items
    assert isinstance(item, UserMessage)
    assert item.text.startswith(text)
    assert list(read_requests(agent)[told - 1].items)[-1] == item


@pytest.mark.scenario("LM-04")
async def test_without_a_limit_of_turns_nothing_is_said(run_mode: Run) -> None:
    """Nor in a run that ends before."""
    result = await run_mode(looking(3, say("done")), "go", max_turns=None, run_config=RunConfig(nudge_at=0.1))
    assert find_records(result, r.HistoryReplaced) == []
    result = await run_mode(looking(3, say("done")), "go", max_turns=10, run_config=RunConfig(nudge_at=0.8))
    assert find_records(result, r.HistoryReplaced) == []


# -- seen


@pytest.mark.scenario("LM-04")
async def test_a_stream_and_a_session_have_both_notes() -> None:
    """A reader sees what the model was told."""
    session, config = MemorySession(), attrs.evolve(ANSWER, nudge_at=0.5)
    async with Runner.run_streamed(looking(2, say("done")), "go", max_turns=2, run_config=config, session=session) as s:
        events = [event async for event in s]
    said = [one.item for one in events if isinstance(one, ev.ItemCreated) and isinstance(one.item, UserMessage)]
    assert [one.text.split()[0] for one in said] == ["1", "A"]
    assert await session.get_items() == [UserMessage("go"), *s.result.new_items]


async def test_wrong_values_are_named() -> None:
    """As everywhere."""
    with pytest.raises(UserValueError, match=r"RunConfig\.at_limit: expected one of 'raise', 'answer', got 'stop'"):
        RunConfig(at_limit="stop")  # type: ignore[arg-type]
    for wrong in (0, 1, 1.5, -1):
        with pytest.raises(UserValueError, match=r"RunConfig\.nudge_at: expected a number above 0 and below 1"):
            RunConfig(nudge_at=wrong)
    with pytest.raises(UserTypeError, match=r"RunConfig\.nudge_at: expected a number"):
        RunConfig(nudge_at="0.8")  # type: ignore[arg-type]


# -- the log


BOTH = attrs.evolve(ANSWER, nudge_at=0.5)
STEPS = [call("look", call_id="c1"), call("look", call_id="c2"), say("done")]


def build() -> Agent[Any, Any]:
    """Return an agent with a tool and an output guardrail, without a model."""

    async def judge(ctx: Any, agent: Any, output: Any) -> Any:
        return PASSED

    return Agent("a", tools=[look], output_guardrails=[output_guardrail(judge)])


@pytest.mark.slow
@pytest.mark.scenario("LM-04")
@pytest.mark.parametrize(
    "options", [{"max_turns": 2, "run_config": BOTH}, {"run_config": within(requests=2)}], ids=["turns", "usage"]
)
@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
def test_a_crash_at_any_write_changes_nothing(options: Any, streamed: bool) -> None:
    """Each note stands once in the log, and the last turn has no tools, whoever resumes it."""

    def check(run: Any) -> None:
        told = [one.reason for one in run.records if isinstance(one, r.HistoryReplaced)]
        assert len(told) == len(set(told))

    swept = t.crash_sweep(build, STEPS, check, streamed=streamed, pairs=[("asyncio", "trio")], options=options)
    assert swept.recovered > 10


@pytest.mark.slow
@pytest.mark.scenario("LM-04")
@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
def test_a_run_can_be_cancelled_at_every_step(streamed: bool) -> None:
    """Nothing new begins after it."""
    t.kill_sweep(build, STEPS, streamed=streamed, options={"max_turns": 2, "run_config": BOTH})


@pytest.mark.scenario("LM-04")
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize(
    "options", [{"max_turns": 2, "run_config": BOTH}, {"run_config": within(requests=2)}], ids=["turns", "usage"]
)
def test_a_replay_follows_the_log(backend: Any, options: Any) -> None:
    """With the run's configuration; without it the run would have ended before."""
    agent, watch = looking(2, say("done")), Watch()
    Runner.run_sync(agent, "go", **{**options, "run_config": attrs.evolve(options["run_config"], instruments=(watch,))})
    replayed = replay(watch.records, agent, backend=backend, run_config=options["run_config"])
    assert replayed.result is not None
    assert replayed.result.stop_reason in ("max_turns", "usage_limits")


@pytest.mark.scenario("LM-04")
async def test_a_call_of_the_last_answer_runs_in_no_later_segment(run_mode: Run) -> None:
    """The turn has no tools when it is resumed, either: the tool stays unknown."""
    ran: list[int] = []

    async def work() -> str:
        """Work."""
        ran.append(1)
        return "ok"

    steps = [call("work", call_id="c1"), call("work", call_id="c2"), say("done")]
    journal = MemoryJournal()
    agent = script_agent("a", *steps, tools=[tool(work)])
    with pytest.raises(MaxTurnsExceeded):
        await run_mode(agent, "go", max_turns=1, run_config=ANSWER, journal=journal)
    stored = await journal.read()
    last = max(n for n, line in enumerate(stored) if b'"model_responded"' in line)
    cut = MemoryJournal()
    await cut.append(stored[: last + 1])
    again = Agent("a", tools=[tool(work)], model=ScriptedModel([say("never")]))
    state = await RunState.from_journal(again, cut)
    with pytest.raises(MaxTurnsExceeded):
        await run_mode(again, state, max_turns=1, run_config=ANSWER)
    assert ran == [1]
