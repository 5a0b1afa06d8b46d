"""A history that grows too long for the model is made shorter between two turns, and the run goes on."""

import logging
from typing import Any

import pytest
from kit.windows import PAGE, check_valid, compactions, make_agent, own, reader, summaries

from agentloop import (
    Agent,
    ClearToolOutputs,
    ContextPolicy,
    ContextView,
    DropOldest,
    HistorySettings,
    ModelInputData,
    ModelSettings,
    RunConfig,
    RunContext,
    Runner,
    Summarize,
    UsageLimitExceeded,
    UsageLimits,
    UserError,
    handoff,
    output_guardrail,
    tool,
)
from agentloop import records as r
from agentloop.exceptions import ContextTooLong, ModelTransportError, UserTypeError
from agentloop.guardrails import GuardrailFunctionOutput
from agentloop.items import AssistantMessage, ToolCall, ToolOutput, UserMessage
from agentloop.journal import MemoryJournal
from agentloop.model_events import ModelInfo
from agentloop.testing import FunctionModel, ScriptedModel, call, fail, replay, respond, say
from agentloop.usage import RequestUsage
from agentloop.window import estimate_tokens

WINDOW = 8_000
SUMMARY = Summarize(keep_turns=2)
STEPS: dict[str, Any] = {
    "cleared": ClearToolOutputs(keep_last=2),
    "dropped": DropOldest(keep_turns=2),
    "summarized": SUMMARY,
    "function": lambda view: DropOldest(keep_turns=2).shorten(view),
}


def policy(*steps: Any, **changes: Any) -> ContextPolicy:
    """Return a policy for the window of these tests."""
    return ContextPolicy(**{"window": WINDOW, "steps": steps, **changes})


@pytest.mark.scenario("CX-01")
@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
async def test_a_history_above_the_start_is_compacted_before_the_next_request(run_mode: Any, step: Any) -> None:
    """One record stands before the request, which has the target's tokens at most; every call has its output."""
    model = reader(12, window=WINDOW)
    result = await run_mode(make_agent(policy(step), model), "Read all pages.", max_turns=20)
    assert result.final_output == "done"
    replaced = compactions(result.records)
    assert len(replaced) >= 2
    asked = [request for request in model.requests if not request.path]
    for one in replaced:
        assert one.tokens_before > 0.8 * WINDOW
        assert one.tokens <= 0.5 * WINDOW
        assert one.steps
        place = result.records.index(one)
        following = next(each for each in result.records[place:] if isinstance(each, r.ModelRequested))
        assert following.turn == one.turn + 1
        assert 50 + sum(map(len, map(repr, asked[one.turn].items))) / 4 < WINDOW
    for request in asked:
        check_valid(request.items)
        assert request.items[0] == UserMessage("Read all pages.")


@pytest.mark.scenario("CX-01")
@pytest.mark.parametrize("usage", [True, False], ids=["counted", "estimated"])
async def test_the_measure_is_the_providers_count_and_an_estimate_behind_it(run_mode: Any, usage: bool) -> None:
    """Contexts and results tell it; where the provider counts nothing, all of it is an estimate."""
    seen: list[int] = []

    @tool
    def note(ctx: RunContext[Any]) -> str:
        """Note the size."""
        seen.append(ctx.context_tokens)
        return "x" * 300

    used = RequestUsage(input_tokens=500, output_tokens=20) if usage else None
    model = ScriptedModel([respond(ToolCall("c", "note"), usage=used), say("done", usage=used)])
    result = await run_mode(Agent("a", model=model, tools=[note]), "go")
    assert seen == [520 if usage else estimate_tokens([UserMessage("go"), ToolCall("c", "note")])]
    assert result.context_tokens == (520 if usage else estimate_tokens(result.to_input_list()))


async def test_a_cleared_output_names_call_tool_and_size(run_mode: Any) -> None:
    """The model can ask for it again; the log still has it."""
    model = reader(8)
    result = await run_mode(make_agent(policy(ClearToolOutputs(keep_last=1)), model), "go")
    first = next(item for item in model.requests[-1].items if isinstance(item, ToolOutput))
    assert first.output == f"[The output of call call_1 of tool read was cleared: {PAGE + 8:,} characters.]"
    assert [len(one.output) for one in result.new_items if isinstance(one, ToolOutput)] == [PAGE + 8] * 8
    assert next(item.output for item in result.to_input_list() if isinstance(item, ToolOutput)) == first.output


async def test_pinned_messages_stay(run_mode: Any) -> None:
    """Whatever else is dropped."""
    model = reader(8)
    given = [UserMessage("hello"), AssistantMessage("hm"), UserMessage("Be kind.", pinned=True), UserMessage("Read.")]
    await run_mode(make_agent(policy(DropOldest(keep_turns=1)), model), given)
    texts = [item.text for item in model.requests[-1].items if isinstance(item, UserMessage)]
    assert texts == ["hello", "Be kind.", "Read."]


async def test_a_summary_is_a_run_of_its_own(run_mode: Any) -> None:
    """It has a path, records and usage; the next one takes it in."""
    model = reader(12, window=WINDOW)
    result = await run_mode(make_agent(policy(SUMMARY), model), "Read all pages.", max_turns=20)
    made = summaries(result.records)
    assert len(made) == len(compactions(result.records)) >= 2
    assert result.usage.requests == len(model.requests) == 13 + len(made)
    for started in made:
        kinds = [type(one) for one in result.records if one.path == started.path]
        assert kinds == [r.RunStarted, r.TurnStarted, r.ModelRequested, r.ModelResponded, r.RunEnded]
    asked = [request for request in model.requests if request.path]
    assert all(len(request.items) == 1 and not request.tools for request in asked)
    assert "output (call_1): page 1: xxx" in asked[0].items[0].text
    assert "Summary of the conversation so far" in asked[1].items[0].text
    shown = [item.text for item in model.requests[-1].items if isinstance(item, UserMessage)]
    assert shown == ["Read all pages.", "Summary of the conversation so far:\n\nThey have read some pages."]
    assert len(result.raw_responses) == 13


async def test_another_model_may_summarize(run_mode: Any) -> None:
    """With its own settings and the agent's patience."""
    other = FunctionModel(lambda request: say("Pages were read."))
    step = Summarize(model=other, keep_turns=1, instructions="Be short.")
    settings = ModelSettings(temperature=0.1, timeout=9.0, tool_choice="auto")
    model = reader(8)
    await run_mode(make_agent(policy(step), model, model_settings=settings), "go")
    assert other.requests[0].system == "Be short."
    assert other.requests[0].settings.temperature is None
    assert other.requests[0].settings.timeout == 9.0
    assert not any(request.path for request in model.requests)


@pytest.mark.parametrize(("own", "worst_case", "most"), [(None, True, 100), (7, True, 7), (None, False, None)], ids=str)
async def test_a_summary_has_a_length_where_the_worst_case_counts(
    run_mode: Any, own: int | None, worst_case: bool, most: int | None
) -> None:
    """The agent's, if its model has none of its own: nobody could give it one but by another model."""

    class Other(FunctionModel):
        default_settings = ModelSettings(max_tokens=own)

    other = Other(lambda request: say("Pages were read."))
    agent = make_agent(
        policy(Summarize(model=other, keep_turns=1)), reader(8), model_settings=ModelSettings(max_tokens=100)
    )
    config = RunConfig(limits=UsageLimits(total_tokens=10**7, worst_case=worst_case))
    assert (await run_mode(agent, "go", run_config=config)).final_output == "done"
    assert {request.settings.max_tokens for request in other.requests} == {most}


async def test_the_models_own_settings_hold_for_its_summary(run_mode: Any) -> None:
    """But for what only calls need."""
    model = reader(8)
    settings = ModelSettings(temperature=0.1, tool_choice="auto", parallel_tool_calls=False)
    await run_mode(make_agent(policy(SUMMARY), model, model_settings=settings), "go")
    asked = next(request for request in model.requests if request.path)
    assert (asked.settings.temperature, asked.settings.parallel_tool_calls, asked.tool_choice) == (0.1, None, None)


async def test_a_summary_is_shown_no_secret(run_mode: Any) -> None:
    """Neither a secret argument nor a secret output, nor a secret message."""

    @tool(secret=["code"], secret_output=True)
    def unlock(code: str) -> str:
        """Unlock."""
        return "treasure " * 900

    turns = [call("unlock", {"code": "open sesame"})] * 3
    model = ScriptedModel([*turns, say("done")])
    other = FunctionModel(lambda request: say("Unlocked."))
    given = [UserMessage("hello"), UserMessage("my pin is 1234", secret=True), UserMessage("go")]
    step = Summarize(model=other, keep_turns=0)
    agent = Agent("a", model=model, tools=[unlock], context=policy(step))
    result = await run_mode(agent, given)
    [request] = other.requests
    text = request.items[0].text
    assert "assistant calls unlock" in text
    assert not any(word in text for word in ("sesame", "treasure", "1234"))
    assert compactions(result.records)


async def test_a_filter_of_model_input_sees_the_transcript(run_mode: Any) -> None:
    """As it sees each request: what it hides from the model, no summary has."""

    def hide(data: ModelInputData) -> ModelInputData:
        return data.replace(input=tuple(_masked(item) for item in data.input))

    def _masked(item: Any) -> Any:
        return UserMessage(item.text.replace("Ada", "N.N.")) if isinstance(item, UserMessage) else item

    model = reader(8)
    config = RunConfig(context=policy(SUMMARY), history=HistorySettings(call_model_input_filter=hide))
    given = [UserMessage("hello"), UserMessage("I am Ada"), UserMessage("Read.")]
    await run_mode(make_agent(None, model), given, run_config=config)
    text = next(request for request in model.requests if request.path).items[0].text
    assert "I am N.N." in text


async def test_guardrails_and_hooks_take_no_part_in_a_summary(run_mode: Any) -> None:
    """They are the agent's; the summary is no output of it."""
    judged: list[Any] = []

    @output_guardrail
    def judge(ctx: Any, agent: Any, output: Any) -> GuardrailFunctionOutput:
        judged.append(output)
        return GuardrailFunctionOutput(None, tripwire_triggered=False)

    result = await run_mode(make_agent(policy(SUMMARY), reader(8), output_guardrails=[judge]), "go")
    assert summaries(result.records)
    assert judged == ["done"]


@pytest.mark.parametrize("answer", [fail(ModelTransportError("busy", status=400)), say(" "), call("read", {"page": 1})])
async def test_a_summary_that_fails_leaves_the_next_step(
    run_mode: Any, answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Its error is in its own records and in the log of Python; the run goes on."""
    steps = (Summarize(model=FunctionModel(lambda request: answer), keep_turns=2), DropOldest(keep_turns=2))
    with caplog.at_level(logging.WARNING, "agentloop"):
        result = await run_mode(make_agent(policy(*steps)), "go", max_turns=20)
    assert result.final_output == "done"
    assert all(one.steps == ("DropOldest",) for one in compactions(result.records))
    assert {one.status for one in result.records if isinstance(one, r.RunEnded) and one.path} == {"failed"}
    assert "a summary of the history failed" in caplog.text


async def test_without_another_step_the_run_goes_on_while_it_fits(run_mode: Any) -> None:
    """And fails when it doesn't: the error names the step and why it failed."""
    broken = Summarize(model=FunctionModel(lambda request: fail(ModelTransportError("busy", status=400))), keep_turns=2)
    result = await run_mode(make_agent(policy(broken), reader(6)), "go")
    assert result.final_output == "done"
    assert not compactions(result.records)
    with pytest.raises(ContextTooLong, match="Summarize: ModelTransportError") as caught:
        await run_mode(make_agent(policy(broken), reader(12)), "go", max_turns=20)
    assert caught.value.window == WINDOW
    assert caught.value.tokens > WINDOW


@pytest.mark.scenario("CX-08")
async def test_steps_that_can_not_make_it_fit_are_named_with_what_they_left(run_mode: Any) -> None:
    """The run isn't over: another policy continues it."""
    huge = policy(ClearToolOutputs(keep_last=99), DropOldest(keep_turns=99), window=2_500)
    agent = make_agent(huge, reader(4))
    with pytest.raises(ContextTooLong, match=r"ClearToolOutputs left [\d,]+; DropOldest left [\d,]+") as caught:
        await run_mode(agent, "go")
    error = caught.value
    assert [name for name, _ in error.steps] == ["ClearToolOutputs", "DropOldest"]
    assert all(isinstance(left, int) and left > 2_500 for _, left in error.steps)
    assert error.run_data is not None
    ended = error.run_data.records[-1]
    assert isinstance(ended, r.RunEnded)
    assert ended.resumable


@pytest.mark.scenario("CX-08")
async def test_a_run_that_did_not_fit_continues_with_another_policy() -> None:
    """From its journal, and with the history that it had."""
    journal = MemoryJournal()
    agent = make_agent(policy(window=2_500), reader(4))
    with pytest.raises(ContextTooLong, match="The policy has no steps"):
        await Runner.run(agent, "go", journal=journal)
    config = RunConfig(context=policy(DropOldest(keep_turns=1), window=2_500))
    result = await Runner.resume(agent, journal, run_config=config)
    assert result.final_output == "done"
    assert compactions(result.records)


async def test_a_policy_of_the_run_comes_before_the_agents(run_mode: Any) -> None:
    """As its model does."""
    config = RunConfig(context=policy(DropOldest(keep_turns=1)))
    result = await run_mode(make_agent(policy(ClearToolOutputs(), window=900)), "go", run_config=config, max_turns=20)
    assert {one.steps for one in compactions(result.records)} == {("DropOldest",)}


async def test_the_models_own_window_does(run_mode: Any) -> None:
    """Where the policy names none; a model of which nothing is known is refused before the first request."""
    model = reader(8)
    with pytest.raises(UserError, match=r"write ContextPolicy\(window=…\)"):
        await run_mode(make_agent(ContextPolicy(), model), "go")
    assert not model.requests

    class Known(FunctionModel):
        @property
        def info(self) -> ModelInfo:
            return ModelInfo("lab", "known", context_window=WINDOW)

    known = Known(reader(8)._fn)
    result = await run_mode(make_agent(ContextPolicy(steps=[DropOldest(keep_turns=2)]), known), "go")
    assert compactions(result.records)


async def test_a_model_info_whose_window_is_no_number_is_refused(run_mode: Any) -> None:
    """The log couldn't be read again."""

    class Odd(FunctionModel):
        @property
        def info(self) -> ModelInfo:
            return ModelInfo("lab", "odd", context_window="large")  # type: ignore[arg-type]

    with pytest.raises(UserTypeError, match="must be a ModelInfo"):
        await run_mode(Agent("a", model=Odd(lambda request: say("hi"))), "go")


@pytest.mark.parametrize(
    ("made", "fault"),
    [
        (lambda view: view.items[:-1], "has no output"),
        (lambda view: view.items[2:], "has no call before it"),
        (lambda view: view.items[1:], "is missing"),
        (lambda view: ["text"], "expected an item"),
    ],
)
async def test_a_function_that_breaks_the_history_is_refused(run_mode: Any, made: Any, fault: str) -> None:
    """By what is wrong with it."""
    with pytest.raises(UserError, match=fault):
        await run_mode(make_agent(policy(made)), "go", max_turns=20)


async def test_a_function_may_wait_and_sees_all_that_it_needs(run_mode: Any) -> None:
    """The items, the target, the window, and a measure."""
    seen: list[ContextView] = []

    async def shorten(view: ContextView) -> Any:
        seen.append(view)
        return DropOldest(keep_turns=1).shorten(view)

    result = await run_mode(make_agent(policy(shorten)), "go", max_turns=20)
    assert [one.steps for one in compactions(result.records)] == [("shorten",)] * len(seen)
    assert all(view.tokens > 0.8 * WINDOW and view.target == WINDOW // 2 for view in seen)


async def test_the_error_of_a_function_ends_the_run(run_mode: Any) -> None:
    """It is the application's."""

    def broken(view: ContextView) -> Any:
        raise KeyError("no such thing")

    with pytest.raises(KeyError):
        await run_mode(make_agent(policy(broken)), "go", max_turns=20)


async def test_no_step_is_tried_once_the_target_is_met(run_mode: Any) -> None:
    """The later ones are for what the earlier ones leave."""
    never = Summarize(model=FunctionModel(lambda request: fail(KeyError("never"))))
    result = await run_mode(make_agent(policy(ClearToolOutputs(keep_last=1), never)), "go", max_turns=20)
    assert {one.steps for one in compactions(result.records)} == {("ClearToolOutputs",)}


async def test_a_model_that_there_is_none_of_ends_the_run(run_mode: Any) -> None:
    """It is a fault of the policy, not of the model; with another one the run can be resumed."""
    with pytest.raises(UserError, match="nowhere") as caught:
        await run_mode(make_agent(policy(Summarize(model="nowhere:small", keep_turns=1))), "go", max_turns=20)
    assert caught.value.run_data is not None
    assert caught.value.run_data.records[-1].resumable  # type: ignore[union-attr]


async def test_a_summary_spends_the_budget(run_mode: Any) -> None:
    """So a request after it may be refused."""
    config = RunConfig(context=policy(SUMMARY), limits=UsageLimits(requests=7))
    with pytest.raises(UsageLimitExceeded) as caught:
        await run_mode(make_agent(None), "go", run_config=config, max_turns=20)
    assert caught.value.run_data is not None
    assert caught.value.run_data.usage.requests == 7


async def test_a_budget_that_a_summary_has_spent_leaves_one_answer(run_mode: Any) -> None:
    """Where the run answers at its limit: it is told so, and has no tools then."""
    model = FunctionModel(lambda request: reader(12)._fn(request) if request.tools or request.path else say("So far."))
    config = RunConfig(context=policy(SUMMARY), limits=UsageLimits(requests=8), at_limit="answer")
    result = await run_mode(make_agent(None, model), "go", run_config=config, max_turns=20)
    assert result.final_output == "So far."
    assert len(summaries(result.records)) == 1
    assert result.usage.requests == 9
    assert replay_equal(result, make_agent(None, model), config)


def replay_equal(result: Any, agent: Any, config: RunConfig) -> bool:
    """Tell whether a replay gives the log again."""
    import threading

    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(replay(result, agent, run_config=config)))
    thread.start()
    thread.join()
    return bool(found) and found[0].records == result.records


async def test_a_budget_that_is_spent_pays_for_no_summary(run_mode: Any) -> None:
    """The next step is tried."""
    model = FunctionModel(lambda request: reader(12)._fn(request) if request.tools else say("So far."))
    config = RunConfig(context=policy(SUMMARY, DropOldest()), limits=UsageLimits(requests=7), at_limit="answer")
    result = await run_mode(make_agent(None, model), "go", run_config=config, max_turns=20)
    assert result.final_output == "So far."
    assert not any(one.path for one in result.records if isinstance(one, r.ModelRequested))
    assert [one.steps for one in compactions(result.records)] == [("DropOldest",)]


# ------------------------------------------------------------------------------------ the provider's refusal


@pytest.mark.scenario("CX-05")
@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
async def test_a_refused_request_is_compacted_and_made_again_in_the_same_turn(run_mode: Any, step: Any) -> None:
    """Our measure may be wrong: the provider's word counts. The turn counts once."""
    model = reader(5, window=4_000)
    result = await run_mode(make_agent(policy(step), model), "Read.", max_turns=6)
    assert result.final_output == "done"
    refused = own(result.records, r.ModelFailed)
    assert refused
    for failed in refused:
        place = result.records.index(failed)
        rest = [one for one in result.records[place + 1 :] if not (one.path or isinstance(one, r.CallbackReturned))]
        assert [type(one) for one in rest[:3]] == [r.HistoryReplaced, r.ModelRequested, r.ModelResponded]
        assert {one.turn for one in rest[:3]} == {failed.turn}
    assert [one.turn for one in own(result.records, r.TurnStarted)] == [1, 2, 3, 4, 5, 6]


@pytest.mark.scenario("CX-05")
async def test_a_second_refusal_ends_the_run(run_mode: Any) -> None:
    """It names sizes; the provider's own error is its cause."""
    refusal = fail(ModelTransportError("prompt is too long", status=400))
    model = ScriptedModel([call("read", {"page": 1}), refusal, refusal])
    with pytest.raises(ContextTooLong, match="the provider: refused it") as caught:
        await run_mode(make_agent(policy(ClearToolOutputs(keep_last=0)), model), "Read.")
    assert isinstance(caught.value.__cause__, ModelTransportError)
    assert len(own(caught.value.run_data.records, r.ModelFailed)) == 2  # type: ignore[union-attr]


@pytest.mark.scenario("CX-05")
async def test_a_refusal_that_no_step_helps_ends_the_run(run_mode: Any) -> None:
    """Nothing could be made shorter, so the request isn't made again."""
    model = reader(5, window=30)
    with pytest.raises(ContextTooLong, match="DropOldest left"):
        await run_mode(make_agent(policy(DropOldest()), model), "Read.")
    assert len(model.requests) == 1


@pytest.mark.parametrize(
    "error",
    [
        ModelTransportError("no", status=400, code="context_length_exceeded"),
        ModelTransportError("no", code="context_length_exceeded"),
        ModelTransportError("no", status=500, code="context_length_exceeded"),
        ModelTransportError("no", code="context_length_exceeded", should_retry=True),
        ModelTransportError("prompt is too long"),
        ModelTransportError("This model's maximum context length is 8192 tokens.", status=400),
        ModelTransportError("input token count (1048577) exceeds the maximum number of tokens", status=400),
    ],
)
async def test_providers_say_it_in_their_own_words(run_mode: Any, error: ModelTransportError) -> None:
    """By a code or by their words. The request isn't made again as it was: it stays too long."""
    model = ScriptedModel([call("read", {"page": 1}), fail(error), say("done")])
    result = await run_mode(make_agent(policy(ClearToolOutputs(keep_last=0)), model), "Read.")
    assert len(compactions(result.records)) == 1
    assert len(model.requests) == 3


@pytest.mark.parametrize("error", [ModelTransportError("too many tokens", status=429), ModelTransportError("context")])
async def test_other_errors_are_raised_as_they_are(run_mode: Any, error: ModelTransportError) -> None:
    """A limit on tokens in a minute is no window."""
    model = ScriptedModel([fail(error)])
    settings = ModelSettings(retry=None)
    with pytest.raises(ModelTransportError):
        await run_mode(make_agent(policy(DropOldest()), model, model_settings=settings), "Read.")


async def test_without_a_policy_the_refusal_is_the_providers(run_mode: Any) -> None:
    """As before."""
    with pytest.raises(ModelTransportError, match="prompt is too long"):
        await run_mode(make_agent(None, reader(5, window=700)), "Read.")


# ------------------------------------------------------------------------------------ several histories


@pytest.mark.scenario("CX-09")
async def test_a_nested_agent_has_its_own_measure(run_mode: Any) -> None:
    """Its compactions are its own; the outer run's history stays."""
    inner = make_agent(None, reader(12, window=WINDOW))
    outer = Agent(
        "outer",
        model=ScriptedModel([call("ask_reader", {"input": "Read."}), say("over")]),
        tools=[inner.as_tool("ask_reader", "Reads.", max_turns=20)],
    )
    result = await run_mode(outer, "go", run_config=RunConfig(context=policy(SUMMARY)))
    assert result.final_output == "over"
    assert not compactions(result.records)
    assert len(compactions(result.records, ("call_1",))) >= 2
    assert {one.path[:1] for one in summaries(result.records)} == {("call_1",)}


@pytest.mark.scenario("CX-09")
async def test_a_handoff_goes_on_with_the_next_agents_policy(run_mode: Any) -> None:
    """The history is the run's; the policy is that of the agent at work."""
    second = make_agent(policy(DropOldest(keep_turns=2)), reader(12))
    first = Agent("first", model=ScriptedModel([call("transfer_to_reader")]), handoffs=[handoff(second)])
    result = await run_mode(first, "go", max_turns=20)
    assert result.last_agent is second
    assert compactions(result.records)


@pytest.mark.scenario("CX-09")
async def test_a_conversation_that_the_provider_keeps_is_refused_before_the_first_request(run_mode: Any) -> None:
    """No step could change what the provider holds."""
    model = ScriptedModel([say("hi")])
    with pytest.raises(UserError, match="the provider keeps the conversation"):
        await run_mode(Agent("a", model=model, context=policy()), "go", conversation_id="conv_1")
    assert not model.requests


def test_it_is_given_as_a_policy() -> None:
    """Nothing else does, on an agent or a configuration; targets lie below starts."""
    for make in (lambda: Agent("a", context=0.8), lambda: RunConfig(context=0.8)):
        with pytest.raises(UserTypeError, match=r"context: expected ContextPolicy\(…\)"):
            make()
    with pytest.raises(UserError, match="expected less than start_at"):
        ContextPolicy(start_at=0.5, target=0.5)
    with pytest.raises(UserTypeError, match=r"steps\[0\]: expected a step"):
        ContextPolicy(steps=["drop"])
