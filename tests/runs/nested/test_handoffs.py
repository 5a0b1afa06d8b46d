"""Handoffs: the agent changes, the run continues; the items the next agent receives, and the items that are kept."""

import re
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import attrs
import pytest
from kit.agents import Run, make_gated_tool, script_agent
from kit.results import describe, find_records, read_outputs, read_requests
from kit.watching import RunHookLog

from agentloop import (
    HandoffInputData,
    HistorySettings,
    ModelBehaviorError,
    RunConfig,
    RunHooks,
    Runner,
    UserError,
    handoff,
    tool,
)
from agentloop import events as ev
from agentloop import records as r
from agentloop.abc import Instrument
from agentloop.exceptions import UserTypeError, UserValueError
from agentloop.items import AssistantMessage, HandoffCall, HandoffOutput, Image, Reasoning, Text, ToolCall, UserMessage
from agentloop.sessions import MemorySession
from agentloop.spans import Span
from agentloop.testing import call, reason, replay, say

IGNORED = "Multiple handoffs detected, ignoring this one."


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


# -- the switch


@pytest.mark.scenario("HO-01")
async def test_handoff_switches_the_agent_and_spends_no_turn(run_mode: Run) -> None:
    """The items have the handoff's call and output; the next turn is the target's."""
    second = script_agent("Second One", say("done"), instructions="I am two.")
    first = script_agent("a", call("transfer_to_second_one", call_id="h"), instructions="I am one.", handoffs=[second])
    result = await run_mode(first, "go", max_turns=2)
    assert result.final_output == "done"
    assert result.last_agent is second
    assert result.new_items == (
        HandoffCall("h", "transfer_to_second_one"),
        HandoffOutput("h", "Handed over to Second One.", "a", "Second One"),
        AssistantMessage("done"),
    )
    [request] = read_requests(second)
    assert request.turn == 2
    assert request.system == "I am two."
    assert describe(request.items) == [
        "user:go",
        "handoff:transfer_to_second_one#h",
        "handed:Handed over to Second One.#h",
    ]
    assert len(read_requests(first)) == 1
    assert [record.agent for record in find_records(result, r.TurnStarted)] == ["a", "Second One"]
    assert result.calls == ()


@pytest.mark.scenario("HO-01")
async def test_agents_may_hand_over_in_circles(run_mode: Run) -> None:
    """Each agent continues where it was."""
    first = script_agent("a", call("transfer_to_b", call_id="h1"), say("done"))
    second = script_agent("b", call("transfer_to_a", call_id="h2"), handoffs=[first])
    first.handoffs = [second]
    result = await run_mode(first, "go")
    assert result.last_agent is first
    assert [item.call_id for item in result.new_items if isinstance(item, HandoffOutput)] == ["h1", "h2"]


class HandoffSpans(Instrument):
    """Keeps name and error of handoffs' spans."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str | None]] = []

    def on_span_end(self, span: Span) -> None:
        if span.kind == "handoff":
            self.seen.append((span.name, span.error))


@pytest.mark.scenario("HO-02")
async def test_first_of_several_handoffs_is_taken(run_mode: Run) -> None:
    """The other handoffs get an answer and no callback; the span says that several were requested."""
    spans = HandoffSpans()
    called: list[str] = []
    second, third = script_agent("b", say("done")), script_agent("c", say("never"))
    handoffs = [
        handoff(third, on_handoff=lambda ctx: called.append("c")),
        handoff(second, on_handoff=lambda ctx: called.append("b")),
    ]
    first = script_agent(
        "a", [call("transfer_to_b", call_id="h1"), call("transfer_to_c", call_id="h2")], handoffs=handoffs
    )
    result = await run_mode(first, "go", run_config=RunConfig(instruments=[spans]))
    assert result.last_agent is second
    assert called == ["b"]
    assert spans.seen == [("a -> b", "Multiple handoffs requested")]
    assert read_requests(third) == []
    assert result.new_items[2:4] == (
        HandoffOutput("h1", "Handed over to b.", "a", "b"),
        HandoffOutput("h2", IGNORED, "a", "a"),
    )
    assert describe(read_requests(second)[0].items)[-1] == f"handed:{IGNORED}#h2"


@pytest.mark.scenario("HO-03")
@pytest.mark.parametrize("behavior", ["run_llm_again", "stop_on_first_tool"])
async def test_tools_run_before_the_handoff_which_beats_every_output(run_mode: Run, behavior: Any) -> None:
    """Neither the model's text nor the tool's output ends the run."""
    log: list[str] = []

    @tool
    async def look() -> str:
        log.append("tool")
        return "seen"

    second = script_agent("b", say("done"))
    first = script_agent(
        "a",
        [say("I hand over."), call("transfer_to_b", call_id="h"), call("look", call_id="c")],
        tools=[look],
        handoffs=[handoff(second, on_handoff=lambda ctx: log.append("handoff"))],
        tool_use_behavior=behavior,
    )
    result = await run_mode(first, "go")
    assert log == ["tool", "handoff"]
    assert result.final_output == "done"
    assert result.last_agent is second
    assert describe(read_requests(second)[0].items) == [
        "user:go",
        "says:I hand over.",
        "handoff:transfer_to_b#h",
        "call:look#c",
        "output:seen#c",
        "handed:Handed over to b.#h",
    ]


# -- callbacks


@attrs.frozen
class Reason:
    why: str
    urgent: bool = False


@pytest.mark.scenario("HO-04")
@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("typed", [False, True], ids=["bare", "typed"])
async def test_callback_gets_the_context_and_the_input(run_mode: Run, kind: str, typed: bool) -> None:
    """The callback, sync or async, with an input type or without, runs before the target's first turn."""
    seen: list[Any] = []
    trace = RunHookLog(seen)

    def bare(ctx: Any) -> None:
        seen.append(ctx.context)

    async def bare_async(ctx: Any) -> None:
        seen.append(ctx.context)

    def with_input(ctx: Any, given: Any) -> None:
        seen.append((ctx.context, given))

    async def with_input_async(ctx: Any, given: Any) -> None:
        seen.append((ctx.context, given))

    callback: Any = {
        ("sync", False): bare,
        ("async", False): bare_async,
        ("sync", True): with_input,
        ("async", True): with_input_async,
    }[kind, typed]
    second = script_agent("b", say("done"))
    entry = handoff(second, on_handoff=callback, input_type=Reason if typed else None)
    first = script_agent(
        "a", call("transfer_to_b", {"why": "tired", "urgent": True} if typed else {}), handoffs=[entry]
    )
    await run_mode(first, "go", context="app", hooks=trace)
    given = ("app", Reason("tired", True)) if typed else "app"
    assert seen[3:6] == [given, "handoff a b", "agent_start b"]
    schema = read_requests(first)[0].handoffs[0].params_json_schema
    assert set(schema["properties"]) == ({"why", "urgent"} if typed else set())


@pytest.mark.scenario("HO-04")
@pytest.mark.parametrize("text", ["{", "", "[]", '{"why": 5}', "{}"])
async def test_input_that_does_not_fit_is_the_model_s_fault(run_mode: Run, text: str) -> None:
    """The callback isn't called, and the agent stays."""
    called: list[Any] = []
    second = script_agent("b", say("never"))
    entry = handoff(second, on_handoff=lambda ctx, given: called.append(given), input_type=Reason)
    first = script_agent("a", call("transfer_to_b", text), handoffs=[entry])
    with pytest.raises(ModelBehaviorError, match="transfer_to_b") as caught:
        await run_mode(first, "go")
    assert called == []
    assert caught.value.run_data is not None
    assert caught.value.run_data.last_agent is first


@pytest.mark.scenario("HO-04")
def test_callback_of_the_wrong_arity_is_refused_at_construction() -> None:
    """A callback of the wrong arity is refused, and so is an input type without a callback that receives it."""
    agent = script_agent("b")
    with pytest.raises(UserError, match=r"on_handoff must be callable as \(ctx\)"):
        handoff(agent, on_handoff=lambda: None)
    with pytest.raises(UserError, match=r"on_handoff must be callable as \(ctx\)"):
        handoff(agent, on_handoff=lambda ctx, given: None)
    with pytest.raises(UserError, match=r"on_handoff must be callable as \(ctx, input\)"):
        handoff(agent, on_handoff=lambda ctx: None, input_type=Reason)
    with pytest.raises(UserValueError, match="input_type needs on_handoff"):
        handoff(agent, input_type=Reason)
    with pytest.raises(UserTypeError, match="on_handoff"):
        handoff(agent, on_handoff=5)  # type: ignore[arg-type]
    with pytest.raises(UserTypeError, match="is_enabled"):
        handoff(agent, is_enabled="yes")  # type: ignore[arg-type]


async def test_error_of_a_callback_fails_the_run(run_mode: Run) -> None:
    """The callback's error leaves bare, and the target hasn't begun."""

    def broken(ctx: Any) -> None:
        raise LookupError("no such desk")

    second = script_agent("b", say("never"))
    first = script_agent("a", call("transfer_to_b"), handoffs=[handoff(second, on_handoff=broken)])
    with pytest.raises(LookupError, match="no such desk"):
        await run_mode(first, "go")
    assert read_requests(second) == []


# -- filters


class FalsyFilter:
    """A filter that is false."""

    def __bool__(self) -> bool:
        return False

    def __call__(self, data: HandoffInputData) -> HandoffInputData:
        return data.replace(input_items=(UserMessage("only this"),))


def first_words_only(data: HandoffInputData) -> HandoffInputData:
    """Show the run's input and nothing else."""
    return data.replace(pre_handoff_items=(), new_items=())


@pytest.mark.scenario("HO-05")
@pytest.mark.parametrize("level", ["handoff", "run", "both"])
async def test_filter_decides_what_the_target_sees_and_nothing_else(run_mode: Run, level: str) -> None:
    """Session and new items keep everything; a handoff's own filter wins, even if its truth value is false."""
    session = MemorySession()
    second = script_agent("b", say("done"))
    entry = handoff(second, input_filter=None if level == "run" else FalsyFilter())
    first = script_agent(
        "a",
        call("add", {"a": 1, "b": 2}, "c"),
        call("transfer_to_b", call_id="h"),
        tools=[add],
        handoffs=[entry],
    )
    config = RunConfig(handoff_input_filter=None if level == "handoff" else first_words_only)
    result = await run_mode(first, "go", run_config=config, session=session)
    assert describe(read_requests(second)[0].items) == (["user:go"] if level == "run" else ["user:only this"])
    everything = [
        "call:add#c",
        "output:3#c",
        "handoff:transfer_to_b#h",
        "handed:Handed over to b.#h",
        "says:done",
    ]
    assert describe(result.new_items) == everything
    assert describe(await session.get_items()) == ["user:go", *everything]
    assert describe(result.to_input_list("all")) == ["user:go", *everything]


@pytest.mark.scenario("HO-05")
@pytest.mark.parametrize("secret", [True, False])
async def test_filter_may_change_what_is_secret_and_nothing_else(run_mode: Run, secret: bool) -> None:
    """An equal item with another mark is another item: the target is shown the filter's."""

    def mark(data: HandoffInputData) -> HandoffInputData:
        return data.replace(input_history=(UserMessage("go", secret=secret), *data.input_history[1:]))

    second = script_agent("b", say("done"))
    first = script_agent("a", call("transfer_to_b", call_id="h"), handoffs=[handoff(second, input_filter=mark)])
    result = await run_mode(first, [UserMessage("go", secret=not secret)])
    assert [item.secret for item in read_requests(second)[0].items[:1]] == [secret]
    [replaced] = find_records(result, r.HistoryReplaced)
    assert replaced.keep == 0
    assert [item.secret for item in replaced.items[:1]] == [secret]


@pytest.mark.scenario("HO-05")
async def test_filter_gets_the_history_told_apart_by_when_it_came(run_mode: Run) -> None:
    """The filter gets session and input, earlier turns, and the handoff's turn apart, with the run's context."""
    session = MemorySession()
    await session.add_items([UserMessage("before"), AssistantMessage("yes?")])
    given: list[HandoffInputData] = []

    def look(data: HandoffInputData) -> HandoffInputData:
        given.append(data)
        return data

    second = script_agent("b", say("done"))
    first = script_agent(
        "a",
        call("add", {"a": 1, "b": 2}, "c"),
        [say("over"), call("transfer_to_b", call_id="h")],
        tools=[add],
        handoffs=[handoff(second, input_filter=look)],
    )
    await run_mode(first, "go", session=session, context="app")
    [data] = given
    assert describe(data.input_history) == ["user:before", "says:yes?", "user:go"]
    assert describe(data.pre_handoff_items) == ["call:add#c", "output:3#c"]
    assert describe(data.new_items) == ["says:over", "handoff:transfer_to_b#h", "handed:Handed over to b.#h"]
    assert data.input_items is None
    assert data.context is not None
    assert data.context.context == "app"
    shown = [*data.input_history, *data.pre_handoff_items, *data.new_items]
    assert list(read_requests(second)[0].items) == shown  # a filter that changes nothing changes nothing


@pytest.mark.scenario("HO-05")
async def test_a_filter_is_given_outputs_in_model_order_after_a_pause_too(run_mode: Run) -> None:
    """A gated call that ends last, after its approval, keeps its place in the items that both handoffs' filters get."""
    given: list[HandoffInputData] = []

    def look(data: HandoffInputData) -> HandoffInputData:
        given.append(data)
        return data

    third = script_agent("c", say("done"))
    second = script_agent("b", call("transfer_to_c", call_id="h2"), handoffs=[handoff(third, input_filter=look)])
    first = script_agent(
        "a",
        [
            call("gated", {"n": 1}, call_id="c1"),
            call("add", {"a": 1, "b": 2}, call_id="c2"),
            call("transfer_to_b", call_id="h1"),
        ],
        tools=[make_gated_tool([]), add],
        handoffs=[handoff(second, input_filter=look)],
    )
    state = (await run_mode(first, "go")).to_state()
    state.approve("c1")
    await run_mode(first, state)
    in_turn, before = given
    turn = ["call:gated#c1", "call:add#c2", "handoff:transfer_to_b#h1", "output:gated 1#c1", "output:3#c2"]
    assert [text for text in describe(in_turn.new_items) if "#c" in text or "handoff:" in text] == turn
    assert describe(before.input_history)[: len(turn) + 1] == ["user:go", *turn]  # what the first filter has left
    assert describe(before.pre_handoff_items) == []


@pytest.mark.scenario("HO-05")
async def test_later_filter_does_not_bring_back_what_an_earlier_one_left_out(run_mode: Run) -> None:
    """The later filter starts from the items that the agent before received."""
    given: list[HandoffInputData] = []

    def look(data: HandoffInputData) -> HandoffInputData:
        given.append(data)
        return data

    third = script_agent("c", say("done"))
    second = script_agent(
        "b",
        call("add", {"a": 1, "b": 2}, "c"),
        call("transfer_to_c", call_id="h2"),
        tools=[add],
        handoffs=[handoff(third, input_filter=look)],
    )
    first = script_agent(
        "a",
        call("add", {"a": 3, "b": 4}, "d"),
        call("transfer_to_b", call_id="h1"),
        tools=[add],
        handoffs=[handoff(second, input_filter=first_words_only)],
    )
    await run_mode(first, "go")
    assert describe(given[0].input_history) == ["user:go"]
    assert describe(given[0].pre_handoff_items) == ["call:add#c", "output:3#c"]
    assert describe(read_requests(third)[0].items) == [
        "user:go",
        "call:add#c",
        "output:3#c",
        "handoff:transfer_to_c#h2",
        "handed:Handed over to c.#h2",
    ]


def giving(value: Any) -> Any:
    """Return a filter that gives *value*."""
    return lambda data: value


@pytest.mark.scenario("HO-06")
async def test_filter_that_is_none_is_refused(run_mode: Run) -> None:
    """A filter that can't be called is refused at construction, and a wrong result when the filter returns it."""
    second = script_agent("b", say("never"))
    with pytest.raises(UserError, match="input_filter: expected a callable, got 5"):
        handoff(second, input_filter=5)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="handoff_input_filter"):
        RunConfig(handoff_input_filter="x")
    for bad in (None, [UserMessage("x")], "text"):
        first = script_agent("a", call("transfer_to_b"), handoffs=[handoff(second, input_filter=giving(bad))])
        with pytest.raises(UserError, match="'transfer_to_b' must return HandoffInputData"):
            await run_mode(first, "go")
    assert read_requests(second) == []


@pytest.mark.scenario("HO-07")
@pytest.mark.parametrize("level", ["handoff", "run"])
async def test_async_filter_is_awaited(run_mode: Run, level: str) -> None:
    """An async filter is awaited, the handoff's and the run's."""

    async def only_this(data: HandoffInputData) -> HandoffInputData:
        return FalsyFilter()(data)

    second = script_agent("b", say("done"))
    first = script_agent(
        "a",
        call("transfer_to_b"),
        handoffs=[handoff(second, input_filter=only_this if level == "handoff" else None)],
    )
    await run_mode(first, "go", run_config=RunConfig(handoff_input_filter=only_this if level == "run" else None))
    assert describe(read_requests(second)[0].items) == ["user:only this"]


# -- enablement


@pytest.mark.scenario("HO-08")
@pytest.mark.parametrize("kind", ["constant", "sync", "async"])
async def test_disabled_handoff_is_neither_shown_nor_callable(run_mode: Run, kind: str) -> None:
    """The model's call of a disabled handoff is a call of an unknown tool."""

    async def never(ctx: Any, agent: Any) -> bool:
        return False

    disabled: Any = {"constant": False, "sync": lambda ctx, agent: False, "async": never}[kind]
    second = script_agent("b", say("never"))
    first = script_agent("a", call("transfer_to_b"), handoffs=[handoff(second, is_enabled=disabled)])
    with pytest.raises(ModelBehaviorError, match="'transfer_to_b' not found"):
        await run_mode(first, "go", run_config=RunConfig(tool_not_found_behavior="raise"))
    assert read_requests(first)[0].handoffs == ()
    assert read_requests(second) == []


@pytest.mark.scenario("HO-08")
async def test_enablement_is_asked_with_the_run_s_context_and_agent(run_mode: Run) -> None:
    """The callable gets usage, run id and application object."""
    seen: list[Any] = []

    def enabled(ctx: Any, agent: Any) -> bool:
        seen.append((ctx.context, agent, bool(ctx.run_id), ctx.usage.requests))
        return len(seen) == 2

    second = script_agent("b", say("done"))
    first = script_agent(
        "a",
        call("add", {"a": 1, "b": 2}),
        call("transfer_to_b"),
        tools=[add],
        handoffs=[handoff(second, is_enabled=enabled)],
    )
    result = await run_mode(first, "go", context="app")
    assert result.last_agent is second
    assert seen == [("app", first, True, 0), ("app", first, True, 1)]
    assert [len(request.handoffs) for request in read_requests(first)] == [0, 1]


# -- nested history


def summary_lines(item: Any) -> list[str]:
    """Return a summary's lines, numbers and wrapper taken off."""
    assert isinstance(item, AssistantMessage)
    return [line.partition(". ")[2] for line in item.text.split("\n") if re.match(r"\d+\. ", line)]


@pytest.mark.scenario("HO-09")
@pytest.mark.parametrize("level", ["handoff", "run"])
async def test_target_is_shown_a_summary_around_what_text_cannot_say(run_mode: Run, level: str) -> None:
    """Reasoning is left out; results and session keep everything as it was."""
    session = MemorySession()
    image = UserMessage((Text("look"), Image("https://example.com/x.png")))
    second = script_agent("b", say("done"))
    first = script_agent(
        "a",
        [reason("hm"), call("add", {"a": 1, "b": 2}, "c")],
        [reason("well"), say("over"), call("transfer_to_b", call_id="h")],
        tools=[add],
        handoffs=[handoff(second, nest_handoff_history=True if level == "handoff" else None)],
    )
    config = RunConfig(nest_handoff_history=level == "run")
    result = await run_mode(first, [UserMessage("go"), image], run_config=config, session=session)
    before, kept, after = read_requests(second)[0].items
    assert summary_lines(before) == ["user: go"]
    assert kept == image
    assert summary_lines(after) == [
        'call: add({"a": 1, "b": 2})',
        "output: 3",
        "assistant: over",
        "call: transfer_to_b({})",
        "output: Handed over to b.",
    ]
    assert "<CONVERSATION HISTORY>\n" in before.text
    assert before.text.endswith("\n</CONVERSATION HISTORY>")
    assert [item for item in result.new_items if isinstance(item, Reasoning)] != []
    assert "call:add#c" in describe(result.new_items)
    assert describe(await session.get_items()) == [*describe(result.input), *describe(result.new_items)]


@pytest.mark.scenario("HO-09")
@pytest.mark.parametrize("wrappers", [(True, True), (("<a>", "</a>"), True), (("<a>", "</a>"), ("[", "]"))])
async def test_summaries_flatten_over_several_handoffs(run_mode: Run, wrappers: tuple[Any, Any]) -> None:
    """The next agent gets one summary, in which each line occurs once, with any wrapper of either handoff."""
    third = script_agent("c", say("done"))
    second = script_agent(
        "b",
        [say("here is b"), call("transfer_to_c", call_id="h2")],
        handoffs=[handoff(third, nest_handoff_history=wrappers[1])],
    )
    first = script_agent(
        "a",
        [say("here is a"), call("transfer_to_b", call_id="h1")],
        handoffs=[handoff(second, nest_handoff_history=wrappers[0])],
    )
    await run_mode(first, "go\n1. first\n2. second")
    [summary] = read_requests(third)[0].items
    assert summary.text.split("\n")[2:-1] == [
        "1. user: go",
        "   1. first",
        "   2. second",
        "2. assistant: here is a",
        "3. call: transfer_to_b({})",
        "4. output: Handed over to b.",
        "5. assistant: here is b",
        "6. call: transfer_to_c({})",
        "7. output: Handed over to c.",
    ]
    opening, closing = summary.text.split("\n")[1], summary.text.split("\n")[-1]
    wanted = ("<CONVERSATION HISTORY>", "</CONVERSATION HISTORY>") if wrappers[1] is True else wrappers[1]
    assert (opening, closing) == wanted


@pytest.mark.scenario("HO-09")
@pytest.mark.parametrize("level", ["handoff", "run"])
async def test_wrapper_of_a_summary_is_the_application_s(run_mode: Run, level: str) -> None:
    """A wrapper is two lines, and anything else is refused."""
    wrapper = ("<said>", "</said>")
    second = script_agent("b", say("done"))
    entry = handoff(second, nest_handoff_history=wrapper if level == "handoff" else None)
    first = script_agent("a", call("transfer_to_b"), handoffs=[entry])
    config = RunConfig(nest_handoff_history=wrapper if level == "run" else False)
    await run_mode(first, "go", run_config=config)
    [summary] = read_requests(second)[0].items
    lines = summary.text.split("\n")
    assert (lines[1], lines[-1]) == ("<said>", "</said>")
    for bad in ("<said>", ("one",), ("a\nb", "c"), (1, 2), 5):
        with pytest.raises(UserTypeError, match="nest_handoff_history"):
            handoff(second, nest_handoff_history=bad)  # type: ignore[arg-type]
        with pytest.raises(UserTypeError, match="nest_handoff_history"):
            RunConfig(nest_handoff_history=bad)  # type: ignore[arg-type]


@pytest.mark.scenario("HO-09")
async def test_handoff_s_own_word_wins_over_the_run_s(run_mode: Run) -> None:
    """The handoff can turn nesting off where the run turns it on, and a filter wins over both."""
    for entry_fields in ({"nest_handoff_history": False}, {"input_filter": lambda data: data}):
        second = script_agent("b", say("done"))
        first = script_agent("a", call("transfer_to_b", call_id="h"), handoffs=[handoff(second, **entry_fields)])
        await run_mode(first, "go", run_config=RunConfig(nest_handoff_history=True))
        assert describe(read_requests(second)[0].items) == [
            "user:go",
            "handoff:transfer_to_b#h",
            "handed:Handed over to b.#h",
        ]


@pytest.mark.parametrize("level", ["handoff", "run"])
async def test_a_mapper_takes_the_place_of_the_summary(run_mode: Run, level: str) -> None:
    """It gets the conversation with the handoff, sync or async; results keep everything, and a replay calls nothing."""
    asked: list[list[str]] = []

    def last_two(items: list[Any]) -> list[Any]:
        asked.append(describe(items))
        return [UserMessage("short"), *items[:1]]

    async def later(items: list[Any]) -> tuple[Any, ...]:
        await anyio.lowlevel.checkpoint()
        return tuple(last_two(items))

    for mapper in (last_two, later):
        asked.clear()
        second = script_agent("b", say("done"))
        entry = handoff(second, nest_handoff_history=True if level == "handoff" else None)
        first = script_agent("a", [say("over"), call("transfer_to_b", call_id="h")], handoffs=[entry])
        history = HistorySettings(handoff_history_mapper=mapper, nest_handoff_history=level == "run")
        config = RunConfig(history=history)
        result = await run_mode(first, "go", run_config=config)
        assert asked == [["user:go", "says:over", "handoff:transfer_to_b#h", "handed:Handed over to b.#h"]]
        assert describe(read_requests(second)[0].items) == ["user:short", "user:go"]
        assert [type(item).__name__ for item in result.new_items] == [
            *("AssistantMessage", "HandoffCall", "HandoffOutput", "AssistantMessage")
        ]
        replayed = await anyio.to_thread.run_sync(partial(replay, result, first, run_config=config))
        assert replayed.records == result.records
        assert len(asked) == 1


async def test_a_mapper_is_asked_only_where_the_history_is_nested(run_mode: Run) -> None:
    """A filter comes first, as it does before the summary."""

    def never(items: list[Any]) -> list[Any]:
        raise AssertionError

    for fields in ({}, {"nest_handoff_history": False}, {"input_filter": lambda data: data}):
        second = script_agent("b", say("done"))
        first = script_agent("a", call("transfer_to_b", call_id="h"), handoffs=[handoff(second, **fields)])
        history = HistorySettings(handoff_history_mapper=never, nest_handoff_history=bool(fields))
        await run_mode(first, "go", run_config=RunConfig(history=history))
        assert len(read_requests(second)[0].items) == 3


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (None, "handoff_history_mapper: expected a sequence of items, got NoneType"),
        ("text", "handoff_history_mapper: expected a sequence of items, got str"),
        ([3], "handoff_history_mapper can't be stored"),
    ],
)
async def test_what_a_mapper_gives_is_items(run_mode: Run, bad: Any, words: str) -> None:
    """Anything else ends the run before the target is asked."""
    second = script_agent("b", say("never"))
    first = script_agent("a", call("transfer_to_b"), handoffs=[second])
    history = HistorySettings(handoff_history_mapper=giving(bad), nest_handoff_history=True)
    with pytest.raises(UserTypeError, match=words):
        await run_mode(first, "go", run_config=RunConfig(history=history))
    assert read_requests(second) == []


# -- streaming and types


@pytest.mark.scenario("HO-11")
async def test_stream_shows_call_output_and_agent_in_that_order() -> None:
    """The stream shows the call as a `HandoffCall` and nothing else."""
    second = script_agent("b", say("done"))
    first = script_agent("a", call("transfer_to_b", call_id="h"), handoffs=[second])
    events: list[Any] = []
    async with Runner.run_streamed(first, "go") as stream:
        async for event in stream:
            events.append(event)
            if isinstance(event, ev.AgentUpdated) and event.agent is second:
                assert stream.current_agent is second
    wanted = (ev.ItemCreated, ev.AgentUpdated)
    assert [
        event.item if isinstance(event, ev.ItemCreated) else event.agent
        for event in events
        if isinstance(event, wanted)
    ] == [
        first,
        HandoffCall("h", "transfer_to_b"),
        HandoffOutput("h", "Handed over to b.", "a", "b"),
        second,
        AssistantMessage("done"),
    ]
    assert not any(isinstance(getattr(event, "item", None), ToolCall) for event in events)
    assert not any(isinstance(event, ev.CallStarted | ev.CallSettled) for event in events)


@pytest.mark.scenario("HO-11")
async def test_stream_shows_the_answers_of_all_handoffs_before_the_agent() -> None:
    """The answer of the handoff that was taken comes first."""
    second, third = script_agent("b"), script_agent("c", say("done"))
    first = script_agent(
        "a", [call("transfer_to_c", call_id="h1"), call("transfer_to_b", call_id="h2")], handoffs=[second, third]
    )
    shown: list[Any] = []
    async with Runner.run_streamed(first, "go") as stream:
        async for event in stream:
            if isinstance(event, ev.AgentUpdated):
                shown.append(event.agent.name)
            elif isinstance(event, ev.ItemCreated) and isinstance(event.item, HandoffOutput):
                shown.append((event.item.call_id, event.item.output))
    assert shown == ["a", ("h1", "Handed over to c."), ("h2", IGNORED), "c"]


@attrs.frozen
class Answer:
    number: int


@pytest.mark.scenario("HO-12")
async def test_output_type_of_the_final_agent_decides(run_mode: Run) -> None:
    """A typed agent may hand over to a text agent, and a text agent to a typed one."""
    typed = script_agent("typed", say('{"number": 7}'), output_type=Answer)
    plain = script_agent("plain", call("transfer_to_typed"), handoffs=[typed])
    assert (await run_mode(plain, "go")).final_output == Answer(7)
    assert [request.output_schema is not None for request in (*read_requests(plain), *read_requests(typed))] == [
        False,
        True,
    ]
    text = script_agent("text", say('{"number": 7}'))
    first = script_agent("first", call("transfer_to_text"), handoffs=[text], output_type=Answer)
    assert (await run_mode(first, "go")).final_output == '{"number": 7}'


async def test_handoff_s_name_and_description_are_what_the_model_is_shown(run_mode: Run) -> None:
    """The model receives the given name and description, or those made from the agent's."""
    second = script_agent("B & Co.", say("done"), handoff_description="Knows all.")
    first = script_agent(
        "a", call("ask_b"), handoffs=[handoff(second, tool_name="ask_b", tool_description="Ask b."), second]
    )
    await run_mode(first, "go")
    shown = [(one.name, one.description) for one in read_requests(first)[0].handoffs]
    assert shown == [
        ("ask_b", "Ask b."),
        ("transfer_to_b_co", "Hand the conversation over to the agent B & Co.. Knows all."),
    ]


async def test_failing_handoff_hook_leaves_the_handoff_in_the_log(run_mode: Run) -> None:
    """The items from before the failure are kept; the target's model isn't asked."""

    class Broken(RunHooks):
        async def on_handoff(self, ctx: Any, from_agent: Any, to_agent: Any) -> None:
            raise LookupError("hook")

    session = MemorySession()
    second = script_agent("b", say("never"))
    first = script_agent(
        "a", [call("add", {"a": 1, "b": 2}, "c"), call("transfer_to_b", call_id="h")], tools=[add], handoffs=[second]
    )
    with pytest.raises(LookupError, match="hook"):
        await run_mode(first, "go", hooks=Broken(), session=session)
    assert read_requests(second) == []
    items = await session.get_items()
    assert read_outputs(items) == {"c": "3"}
    assert describe(items)[-1] == "handed:Handed over to b.#h"
