"""Planning: what a call means, and what is decided before anything starts."""

import logging
from typing import Any

import anyio
import pytest
from kit.agents import Run, make_agent
from kit.results import (
    find_outcome,
    find_records,
    read_call_ids,
    read_outputs,
    read_requests,
    read_shown_outputs,
    read_statuses,
)

from agentloop import (
    Agent,
    Allow,
    Deny,
    ModelBehaviorError,
    RunConfig,
    RunHooks,
    Runner,
    ToolErrorArgs,
    ToolExecution,
    UserError,
    tool,
)
from agentloop import events as ev
from agentloop import records as r
from agentloop.config.policies import PendingCall
from agentloop.guardrails import RejectContent, tool_input_guardrail, tool_output_guardrail
from agentloop.items import HostedToolCall, Reasoning
from agentloop.testing import ScriptedModel, call, reason, respond, say

ANSWERING = RunConfig(tool_not_found_behavior="tell_model")
RAISING = RunConfig(tool_not_found_behavior="raise")


class Counted:
    """A tool `f(n)` that keeps its arguments, and one `other()` beside it."""

    def __init__(self) -> None:
        self.ran: list[Any] = []

        @tool
        async def f(n: int) -> str:
            self.ran.append(n)
            return f"f{n}"

        @tool
        async def other() -> str:
            self.ran.append("other")
            return "other"

        self.tools = [f, other]


# -- identity


@pytest.mark.scenario("PL-01")
async def test_identical_calls_of_one_response_are_one_call(run_mode: Run) -> None:
    """Identical calls have one body, one call item and one output item."""
    f = Counted()
    agent = make_agent(f.tools, [call("f", {"n": 1}, "c"), call("f", {"n": 1}, "c")])
    result = await run_mode(agent, "go")
    assert f.ran == [1]
    assert read_call_ids(result.new_items) == ["c"]
    assert read_outputs(result.new_items) == {"c": "f1"}
    assert read_call_ids(read_requests(agent)[1].items) == ["c"]
    assert read_statuses(result) == ["succeeded"]


@pytest.mark.scenario("PL-02")
@pytest.mark.parametrize(
    "second", [call("f", {"n": 2}, "c"), call("other", {}, "c")], ids=["other-arguments", "other-tool"]
)
async def test_one_id_for_two_calls_fails_before_anything_starts(run_mode: Run, second: Any) -> None:
    """Neither of the two calls runs, and no sibling does."""
    f = Counted()
    agent = make_agent(f.tools, [call("other", {}, "a"), call("f", {"n": 1}, "c"), second])
    with pytest.raises(ModelBehaviorError, match="'c'") as caught:
        await run_mode(agent, "go")
    assert f.ran == []
    assert caught.value.run_data is not None
    assert find_records(caught.value.run_data, r.CallStarted) == []
    assert len(read_requests(agent)) == 1


@pytest.mark.scenario("PL-03")
async def test_equal_calls_with_their_own_ids_both_run(run_mode: Run) -> None:
    """Calls of the same tool and arguments are two calls when their ids differ."""
    f = Counted()
    agent = make_agent(f.tools, [call("f", {"n": 1}, "c1"), call("f", {"n": 1}, "c2")])
    result = await run_mode(agent, "go")
    assert f.ran == [1, 1]
    assert read_outputs(result.new_items) == {"c1": "f1", "c2": "f1"}


@pytest.mark.scenario("PL-04")
async def test_repeated_call_id_in_a_later_turn_is_answered_not_run(run_mode: Run) -> None:
    """The committed output is reused; no second item, record or event."""
    f = Counted()
    agent = make_agent(f.tools, call("f", {"n": 1}, "c"), call("f", {"n": 1}, "c"))
    result = await run_mode(agent, "go")
    assert f.ran == [1]
    assert read_call_ids(result.new_items) == ["c"]
    assert read_outputs(result.new_items) == {"c": "f1"}
    assert read_shown_outputs(agent) == {"c": "f1"}
    assert read_call_ids(read_requests(agent)[2].items) == ["c"]
    assert len(result.calls) == 1
    assert len(find_records(result, r.CallSettled)) == 1
    assert result.final_output == "done"


async def test_repeated_call_beside_a_new_one_leaves_only_the_new_one(run_mode: Run) -> None:
    """The new call runs as if the repeated one hadn't been there."""
    f = Counted()
    agent = make_agent(f.tools, call("f", {"n": 1}, "c"), [call("f", {"n": 1}, "c"), call("f", {"n": 2}, "d")])
    result = await run_mode(agent, "go")
    assert f.ran == [1, 2]
    assert read_outputs(result.new_items) == {"c": "f1", "d": "f2"}


@pytest.mark.scenario("PL-05")
@pytest.mark.parametrize(
    "second", [call("f", {"n": 2}, "c"), call("other", {}, "c")], ids=["other-arguments", "other-tool"]
)
async def test_reused_id_in_a_later_turn_fails_before_execution(run_mode: Run, second: Any) -> None:
    """The id belongs to f(1), so the run fails, and no other call of the response starts."""
    f = Counted()
    agent = make_agent(f.tools, call("f", {"n": 1}, "c"), [call("other", {}, "a"), second])
    with pytest.raises(ModelBehaviorError, match="'c'") as caught:
        await run_mode(agent, "go")
    assert f.ran == [1]
    assert caught.value.run_data is not None
    assert read_outputs(caught.value.run_data.new_items) == {"c": "f1"}


@pytest.mark.scenario("PL-06")
async def test_reasoning_of_a_repeated_call_is_dropped(run_mode: Run) -> None:
    """Only the first turn's reasoning is left, in the items and in the model's next input."""
    f = Counted()
    agent = make_agent(
        f.tools, [reason("first"), call("f", {"n": 1}, "c")], [reason("again"), call("f", {"n": 1}, "c")]
    )
    result = await run_mode(agent, "go")
    assert [item.summary for item in result.new_items if isinstance(item, Reasoning)] == [("first",)]
    assert [item.summary for item in read_requests(agent)[2].items if isinstance(item, Reasoning)] == [("first",)]


@pytest.mark.scenario("PL-06")
async def test_no_event_tells_of_a_repeated_call_or_its_reasoning() -> None:
    """A stream shows the item of neither, and no call."""
    f = Counted()
    agent = make_agent(f.tools, [call("f", {"n": 1}, "c")], [reason("again"), call("f", {"n": 1}, "c")])
    async with Runner.run_streamed(agent, "go") as stream:
        events = [event async for event in stream]
    second = [event for event in events if event.turn == 2]
    assert not [event for event in second if isinstance(event, ev.ItemCreated | ev.CallStarted | ev.CallSettled)]


@pytest.mark.scenario("PL-07")
@pytest.mark.parametrize("again", ['{ "b" : 2,\n"a":1 }', '{"b":2,"a":1}'])
async def test_key_order_and_blanks_do_not_make_another_invocation(run_mode: Run, again: str) -> None:
    """Key order and blanks make no difference within one response and in a later turn."""
    ran: list[Any] = []

    @tool
    async def f(a: int, b: int | None = None) -> str:
        ran.append((a, b))
        return "ok"

    first = call("f", '{"a":1,"b":2}', "c")
    agent = make_agent([f], [first, call("f", again, "c")], call("f", again, "c"))
    result = await run_mode(agent, "go")
    assert ran == [(1, 2)]
    assert read_outputs(result.new_items) == {"c": "ok"}


@pytest.mark.scenario("PL-07")
async def test_an_explicit_null_makes_another_invocation(run_mode: Run) -> None:
    """`{"a": 1}` and `{"a": 1, "b": null}` under one id contradict each other."""
    ran: list[Any] = []

    @tool(strict_mode=False)
    async def f(a: int, b: int | None = None) -> str:
        ran.append((a, b))
        return "ok"

    agent = make_agent([f], call("f", {"a": 1}, "c"), call("f", {"a": 1, "b": None}, "c"))
    with pytest.raises(ModelBehaviorError):
        await run_mode(agent, "go")
    assert ran == [(1, None)]


@pytest.mark.scenario("PL-08")
async def test_a_call_without_an_id_fails_before_anything_is_asked(run_mode: Run) -> None:
    """No sibling runs and no formatter words anything."""
    f = Counted()
    asked: list[ToolErrorArgs] = []

    def formatter(args: ToolErrorArgs) -> None:
        asked.append(args)

    config = RunConfig(tool_not_found_behavior="tell_model", tool_error_formatter=formatter)
    agent = make_agent(f.tools, [call("nobody", {}, "x"), call("other", {}, "a"), call("f", {"n": 1}, "")])
    with pytest.raises(ModelBehaviorError, match="id"):
        await run_mode(agent, "go", run_config=config)
    assert (f.ran, asked) == ([], [])


# -- lookup


@pytest.mark.scenario("PL-10")
async def test_an_unknown_tool_ends_the_run_before_its_siblings_start(run_mode: Run) -> None:
    """The model's answer was complete, so its end hook has run."""
    f = Counted()
    ended: list[Any] = []

    class Hooks(RunHooks):
        async def on_llm_end(self, ctx: Any, agent: Any, response: Any) -> None:
            ended.append(response)

    agent = make_agent(f.tools, [call("other", {}), call("nobody", {})])
    with pytest.raises(ModelBehaviorError, match=r"nobody.*ToolExecution\(not_found_behavior"):
        await run_mode(agent, "go", hooks=Hooks(), run_config=RunConfig(tool_not_found_behavior="raise"))
    assert f.ran == []
    assert len(ended) == 1


@pytest.mark.scenario("PL-11", "LX-10")
async def test_an_unknown_tool_is_answered_and_its_siblings_run(run_mode: Run) -> None:
    """The policy answers the unknown call with the name it asked for, and its outcome never started."""
    f = Counted()
    agent = make_agent(f.tools, [call("zzz", {}, "x"), call("f", {"n": 1}, "a")])
    result = await run_mode(agent, "go", run_config=ANSWERING)
    assert read_shown_outputs(agent) == {"x": "Tool 'zzz' not found.", "a": "f1"}
    assert f.ran == [1]
    assert result.final_output == "done"
    missing = find_outcome(result, "x")
    assert (missing.status, missing.started_at, missing.body_finished) == ("failed", None, False)


@pytest.mark.scenario("LX-10")
async def test_an_unknown_tool_is_answered_with_the_nearest_names(run_mode: Run) -> None:
    """The answer names up to two known tools, nearest first."""

    @tool
    async def read_file() -> str:
        return "read"

    @tool
    async def read_files() -> str:
        return "all"

    @tool
    async def delete() -> str:
        return "gone"

    agent = make_agent([read_file, read_files, delete], [call("readfile", {}, "x"), call("delete", {}, "d")])
    await run_mode(agent, "go", run_config=ANSWERING)
    assert read_shown_outputs(agent) == {
        "x": "Tool 'readfile' not found. Did you mean 'read_file' or 'read_files'?",
        "d": "gone",
    }


@pytest.mark.scenario("RP-12")
@pytest.mark.parametrize("behavior", ["raise", "tell_model"])
async def test_unknown_names_past_the_cap_are_refused_as_any_call(run_mode: Run, behavior: Any) -> None:
    """Unknown names past the cap don't end the run, and the calls within the cap run as usual."""
    f = Counted()
    agent = make_agent(f.tools, [call("f", {"n": 1}, "a"), call("zzz", {}, "x"), call("f", {"n": 2}, "b")])
    config = RunConfig(tool_not_found_behavior=behavior, tool_execution=ToolExecution(max_calls_per_turn=1))
    result = await run_mode(agent, "go", run_config=config)
    assert f.ran == [1]
    assert read_shown_outputs(agent) == {
        "a": "f1",
        "x": "Tool 'zzz' was not started: more than 1 calls in one turn.",
        "b": "Tool 'f' was not started: more than 1 calls in one turn.",
    }
    assert read_statuses(result) == ["succeeded", "skipped", "skipped"]


@pytest.mark.scenario("RP-12")
async def test_an_unknown_name_within_the_cap_still_ends_the_run(run_mode: Run) -> None:
    """The run ends before any sibling starts, as without the cap."""
    f = Counted()
    agent = make_agent(f.tools, [call("zzz", {}, "x"), call("f", {"n": 1}, "a")])
    config = RunConfig(tool_not_found_behavior="raise", tool_execution=ToolExecution(max_calls_per_turn=1))
    with pytest.raises(ModelBehaviorError, match="Tool 'zzz' not found"):
        await run_mode(agent, "go", run_config=config)
    assert f.ran == []


class _Verbose:
    """Denies the call named so, at length."""

    def decide(self, pending: PendingCall) -> Any:
        return Deny("no " * 100) if pending.call.name == "denied" else Allow()


@pytest.mark.scenario("RP-12")
@pytest.mark.parametrize("limit", [1, 7, 50, 100])
@pytest.mark.parametrize("worded", [False, True])
async def test_no_text_for_the_model_is_longer_than_outputs_may_be(run_mode: Run, limit: int, worded: bool) -> None:
    """The limit holds for the text of the library, a policy, a formatter, an error function, a guardrail, the model."""

    @tool_input_guardrail
    async def refuse(data: Any) -> RejectContent:
        return RejectContent("refused " * 100)

    @tool_output_guardrail
    async def withhold(data: Any) -> RejectContent:
        return RejectContent("withheld " * 100)

    async def fails() -> str:
        raise ValueError("x" * 500)

    async def slow() -> None:
        await anyio.sleep_forever()

    async def gives() -> str:
        return "x" * 500

    tools = [
        tool(fails),
        tool(fails, name="worded", failure_error_function=lambda ctx, error: "failed " * 100),
        tool(slow, timeout=0.01),
        tool(slow, name="slower", timeout=0.01, timeout_error_function=lambda ctx, error: "late " * 100),
        tool(gives),
        tool(gives, name="refused", tool_input_guardrails=[refuse]),
        tool(gives, name="withheld", tool_output_guardrails=[withhold]),
        tool(gives, name="denied"),
        tool(gives, name="off", is_enabled=_once()),
    ]
    names = [*(each.name for each in tools), "unknown" * 100, "givs", "past the cap" * 100]
    agent = make_agent(tools, [call(name, {}, f"c{n}") for n, name in enumerate(names)])
    config = RunConfig(
        policies=[_Verbose()],
        tool_not_found_behavior="tell_model",
        tool_error_formatter=(lambda args: "worded " * 100) if worded else None,
        tool_execution=ToolExecution(max_output_chars=limit, max_calls_per_turn=len(names) - 1),
    )
    result = await run_mode(agent, "go", run_config=config)
    texts = read_shown_outputs(agent)
    assert len(texts) == len(names)
    assert max(len(str(text)) for text in texts.values()) <= limit
    assert {settled.outcome.output for settled in result.calls} == set(texts.values())


def _once() -> Any:
    """Return an `is_enabled` that says yes to the model and in planning, and no when the call's turn has come."""
    answers = iter((True, True))
    return lambda ctx, agent: next(answers, False)


def _none(args: ToolErrorArgs) -> None:
    return None


def _number(args: ToolErrorArgs) -> int:
    return 7


def _raises(args: ToolErrorArgs) -> str:
    raise ValueError("no words")


async def _async_words(args: ToolErrorArgs) -> str:
    assert (args.kind, args.tool, args.call_id, args.default) == (
        "tool_not_found",
        "zzz",
        "x",
        "Tool 'zzz' not found.",
    )
    assert isinstance(args.error, ModelBehaviorError)
    return "no such thing"


@pytest.mark.scenario("PL-12")
async def test_the_formatter_words_an_unknown_tool(run_mode: Run) -> None:
    """The formatter may be async, and it receives the text that it would replace."""
    agent = make_agent([], call("zzz", {}, "x"))
    config = RunConfig(tool_not_found_behavior="tell_model", tool_error_formatter=_async_words)
    await run_mode(agent, "go", run_config=config)
    assert read_shown_outputs(agent) == {"x": "no such thing"}


@pytest.mark.scenario("PL-12")
@pytest.mark.parametrize(("formatter", "logs"), [(_none, 0), (_number, 1), (_raises, 1)])
async def test_a_formatter_without_words_leaves_the_default(
    run_mode: Run, formatter: Any, logs: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A formatter may return None; one that raises or gives no text is logged once."""
    caplog.set_level(logging.WARNING, "agentloop")
    agent = make_agent([], call("zzz", {}, "x"))
    config = RunConfig(tool_not_found_behavior="tell_model", tool_error_formatter=formatter)
    await run_mode(agent, "go", run_config=config)
    assert read_shown_outputs(agent) == {"x": "Tool 'zzz' not found."}
    assert len(caplog.records) == logs


class Answers:
    """An `is_enabled` that gives one answer after the other."""

    def __init__(self, *answers: bool) -> None:
        self.answers = list(answers)
        self.asked = 0

    def __call__(self, ctx: Any, agent: Any) -> bool:
        self.asked += 1
        return self.answers.pop(0)


@pytest.mark.scenario("PL-13")
async def test_a_tool_disabled_while_the_model_thought_fails_the_run_in_planning(run_mode: Run) -> None:
    """The error names the tool and its agent, and no call of the response has started."""
    f = Counted()
    enabled = Answers(True, False)

    @tool(is_enabled=enabled)
    async def fickle() -> str:
        f.ran.append("fickle")
        return "no"

    agent = make_agent([*f.tools, fickle], [call("other", {}), call("fickle", {})])
    with pytest.raises(ModelBehaviorError, match=r"'fickle'.*'guide'"):
        await run_mode(agent, "go")
    assert f.ran == []
    assert enabled.asked == 2


@pytest.mark.scenario("PL-13")
async def test_a_tool_disabled_while_its_call_waited_is_refused_alone(run_mode: Run) -> None:
    """`is_enabled` is asked again right before the body; the sibling's output stays."""
    f = Counted()

    @tool(is_enabled=Answers(True, True, False, True))
    async def fickle() -> str:
        f.ran.append("fickle")
        return "no"

    agent = make_agent([*f.tools, fickle], [call("f", {"n": 1}, "a"), call("fickle", {}, "b")])
    result = await run_mode(agent, "go")
    assert f.ran == [1]
    assert read_shown_outputs(agent) == {"a": "f1", "b": "Tool 'fickle' is no longer available."}
    refused = find_outcome(result, "b")
    assert (refused.status, refused.started_at) == ("skipped", None)


@pytest.mark.scenario("PL-14")
async def test_is_enabled_raising_cancels_its_siblings_and_ends_the_run(run_mode: Run) -> None:
    """The application's error leaves the run bare, before the model is asked."""
    asked = anyio.Event()
    cancelled: list[str] = []

    async def slow(ctx: Any, agent: Any) -> bool:
        asked.set()
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            cancelled.append("slow")
            raise
        raise AssertionError

    async def broken(ctx: Any, agent: Any) -> bool:
        await asked.wait()
        raise LookupError("no answer")

    @tool(is_enabled=slow)
    async def one() -> str:
        return ""

    @tool(is_enabled=broken)
    async def two() -> str:
        return ""

    agent = make_agent([one, two])
    with pytest.raises(LookupError, match="no answer"):
        await run_mode(agent, "go")
    assert cancelled == ["slow"]
    assert read_requests(agent) == []


def _two_of_one_name() -> list[Any]:
    @tool(name="f", description="first")
    async def first() -> str:
        return "first"

    @tool(name="f", description="last")
    async def last() -> str:
        return "last"

    return [first, last]


@pytest.mark.scenario("PL-15", "LX-26")
async def test_of_two_tools_with_one_name_the_last_is_shown_and_dispatched(
    run_mode: Run, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning names the tool, in any number of turns."""
    caplog.set_level(logging.WARNING, "agentloop")
    agent = make_agent(_two_of_one_name(), call("f", {}, "a"), call("f", {}, "b"))
    await run_mode(agent, "go")
    assert [[shown.description for shown in request.tools] for request in read_requests(agent)] == [["last"]] * 3
    assert read_shown_outputs(agent) == {"a": "last", "b": "last"}
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "'f'" in caplog.text


@pytest.mark.scenario("PL-15", "LX-26")
async def test_two_tools_with_one_name_are_an_error_by_policy(run_mode: Run) -> None:
    """The run fails before the model is asked; construction never fails for it."""
    agent = make_agent(_two_of_one_name())
    with pytest.raises(UserError, match=r"first.*last|'f'.*'f'"):
        await run_mode(agent, "go", run_config=RunConfig(tool_name_collision_policy="raise"))
    assert read_requests(agent) == []


@pytest.mark.scenario("LX-26")
async def test_a_disabled_tool_does_not_collide(run_mode: Run) -> None:
    """A disabled tool doesn't collide, because only enabled tools of one name do."""

    @tool(name="f", is_enabled=False)
    async def off() -> str:
        return "off"

    @tool(name="f")
    async def on() -> str:
        return "on"

    agent = make_agent([on, off], call("f", {}, "a"))
    await run_mode(agent, "go", run_config=RunConfig(tool_name_collision_policy="raise"))
    assert read_shown_outputs(agent) == {"a": "on"}


@pytest.mark.scenario("PL-18")
async def test_a_bare_name_does_not_reach_into_namespaces(run_mode: Run) -> None:
    """The bare name of two namespaced tools means neither of them, so the tool is not found."""

    @tool(name="f", namespace="a")
    async def in_a() -> str:
        return "a"

    @tool(name="f", namespace="b")
    async def in_b() -> str:
        return "b"

    tools = [in_a, in_b]
    agent = make_agent(tools, [call("f", {}, "x"), call("f", {}, "y", "a"), call("f", {}, "z", "b")])
    await run_mode(agent, "go", run_config=ANSWERING)
    found = read_shown_outputs(agent)
    assert str(found["x"]).startswith("Tool 'f' not found.")
    assert (found["y"], found["z"]) == ("a", "b")
    with pytest.raises(ModelBehaviorError, match="'f'"):
        await run_mode(make_agent(tools, call("f", {})), "go", run_config=RAISING)


@pytest.mark.scenario("PL-19")
async def test_a_tool_added_by_a_tool_can_be_called_next_turn(run_mode: Run) -> None:
    """Tools are held by reference: the second turn shows it."""

    @tool
    async def late() -> str:
        return "late"

    @tool
    async def grow() -> str:
        agent.tools.append(late)  # type: ignore[attr-defined]
        return "grown"

    agent = make_agent([grow], call("grow", {}, "a"), call("late", {}, "b"))
    await run_mode(agent, "go")
    assert [[t.name for t in request.tools] for request in read_requests(agent)][:2] == [["grow"], ["grow", "late"]]
    assert read_shown_outputs(agent) == {"a": "grown", "b": "late"}


@pytest.mark.scenario("PL-20", "LX-03")
async def test_outputs_follow_the_calls_whatever_finishes_first(run_mode: Run) -> None:
    """Calls that finish in the order 2, 3, 1 have items, next input and `calls` in the order 1, 2, 3."""
    finished = {n: anyio.Event() for n in (1, 2, 3)}
    after = {1: 3, 3: 2}
    order: list[int] = []

    @tool
    async def f(n: int) -> str:
        if n in after:
            await finished[after[n]].wait()
        order.append(n)
        finished[n].set()
        return f"f{n}"

    agent = make_agent([f], [call("f", {"n": n}, f"c{n}") for n in (1, 2, 3)])
    result = await run_mode(agent, "go")
    assert order == [2, 3, 1]
    assert list(read_outputs(result.new_items).items()) == [("c1", "f1"), ("c2", "f2"), ("c3", "f3")]
    assert list(read_shown_outputs(agent)) == ["c1", "c2", "c3"]
    assert [settled.call.call_id for settled in result.calls] == ["c1", "c2", "c3"]


@pytest.mark.scenario("PL-21")
async def test_a_response_of_hosted_calls_alone_leads_to_another_turn(run_mode: Run) -> None:
    """Hosted calls are no answer: the model is asked again, and the item stays in the history."""
    hosted = HostedToolCall("web_search", {"query": "x"})
    agent = make_agent([], respond(hosted))
    result = await run_mode(agent, "go")
    assert result.final_output == "done"
    assert len(read_requests(agent)) == 2
    assert hosted in read_requests(agent)[1].items


@pytest.mark.scenario("LX-29")
async def test_prose_that_looks_like_a_call_is_prose(run_mode: Run) -> None:
    """Nothing executes without a structured call."""
    ran: list[str] = []

    @tool
    async def rm(path: str) -> str:
        ran.append(path)
        return "gone"

    agent = make_agent([rm], say('I will run rm(path=\'/etc\') now: {"name": "rm"}'), done=None)
    result = await run_mode(agent, "go")
    assert ran == []
    assert result.calls == ()
    assert result.final_output.startswith("I will run")


async def test_one_agent_is_shown_what_is_enabled_now(run_mode: Run) -> None:
    """`is_enabled` is asked every turn with the run's context and the caller's agent."""
    asked: list[tuple[Any, Any]] = []

    async def enabled(ctx: Any, agent: Any) -> bool:
        asked.append((ctx.context, agent))
        return bool(ctx.context["on"])

    @tool(is_enabled=enabled)
    async def f() -> str:
        return "f"

    @tool
    async def switch() -> str:
        context["on"] = True
        return "switched"

    context = {"on": False}
    agent: Agent[Any, Any] = Agent(
        "guide", model=ScriptedModel([call("switch"), call("f"), say("done")]), tools=[f, switch]
    )
    await run_mode(agent, "go", context=context)
    assert [[t.name for t in request.tools] for request in read_requests(agent)] == [
        ["switch"],
        ["f", "switch"],
        ["f", "switch"],
    ]
    assert all(pair == (context, agent) for pair in asked)
