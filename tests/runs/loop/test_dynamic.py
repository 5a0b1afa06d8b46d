"""The definitions that each turn resolves anew: instructions, tools, handoffs, the model's input."""

from typing import Any

import anyio.lowlevel
import attrs
import pytest
from kit.agents import Run, script_agent
from kit.results import describe, find_records, read_outputs, read_requests, read_statuses
from kit.watching import RunHookLog

from agentloop import (
    FunctionTool,
    ModelBehaviorError,
    ModelInputData,
    Prompt,
    RunConfig,
    ToolContext,
    UserError,
    handoff,
    tool,
)
from agentloop import records as r
from agentloop.items import HostedToolCall, Item, ToolOutput, UserMessage
from agentloop.testing import call, say


@attrs.define
class App:
    """The application's object."""

    count: int = 0
    flags: dict[str, bool] = attrs.field(factory=dict)


def bumping() -> FunctionTool:
    """Return a tool that changes the application's object."""

    @tool(name="bump")
    async def bump(ctx: ToolContext[App]) -> str:
        """Count one up."""
        ctx.context.count += 1
        return str(ctx.context.count)

    return bump


# -- instructions


@pytest.mark.scenario("DY-01")
async def test_instructions_see_the_current_context_every_turn(run_mode: Run) -> None:
    """A tool's change shows in the next turn."""
    agents: list[Any] = []

    def instructions(ctx: Any, agent: Any) -> str:
        agents.append(agent)
        return f"count is {ctx.context.count}"

    agent = script_agent("a", call("bump"), call("bump", call_id="x"), say("done"), instructions=instructions)
    agent.tools = [bumping()]
    await run_mode(agent, "go", context=App())
    assert [request.system for request in read_requests(agent)] == ["count is 0", "count is 1", "count is 2"]
    assert agents == [agent] * 3


@pytest.mark.scenario("DY-02")
@pytest.mark.parametrize("bad", [lambda: "x", lambda ctx: "x", lambda ctx, agent, more: "x"])
async def test_instructions_of_the_wrong_arity_are_a_type_error(run_mode: Run, bad: Any) -> None:
    """The error names field and agent, and comes before the model is asked."""
    agent = script_agent("a", say("never"), instructions=bad)
    with pytest.raises(TypeError, match=r"Agent\.instructions of 'a'"):
        await run_mode(agent, "go")
    assert read_requests(agent) == []


@pytest.mark.scenario("DY-03")
async def test_async_instructions_are_awaited(run_mode: Run) -> None:
    """Async instructions may be a function or a callable object; a result of None means no instructions."""

    async def instructions(ctx: Any, agent: Any) -> str:
        await anyio.lowlevel.checkpoint()
        return f"for {agent.name}"

    class Nothing:
        async def __call__(self, ctx: Any, agent: Any) -> None:
            await anyio.lowlevel.checkpoint()

    for given, wanted in ((instructions, "for a"), (Nothing(), None)):
        agent = script_agent("a", say("done"), instructions=given)
        await run_mode(agent, "go")
        assert read_requests(agent)[0].system == wanted


async def test_instructions_that_are_no_text_are_refused(run_mode: Run) -> None:
    """The error names the returned value."""
    agent = script_agent("a", say("never"), instructions=lambda ctx, agent: 5)
    with pytest.raises(UserError, match="must return text, not 5"):
        await run_mode(agent, "go")


async def test_error_of_the_instructions_leaves_as_it_is(run_mode: Run) -> None:
    """The error of the instructions leaves unchanged, before the model is asked."""

    def broken(ctx: Any, agent: Any) -> str:
        raise LookupError("no template")

    agent = script_agent("a", say("never"), instructions=broken)
    with pytest.raises(LookupError, match="no template"):
        await run_mode(agent, "go")
    assert read_requests(agent) == []


# -- stored prompts


async def test_a_prompt_may_follow_from_the_context_every_turn(run_mode: Run) -> None:
    """Like instructions: a sync or async callable; None means no prompt. The digest of a request tells them apart."""

    async def choose(ctx: Any, agent: Any) -> Prompt | None:
        return Prompt(f"pmpt_{ctx.context['n']}", variables={"name": agent.name}) if ctx.context["n"] else None

    @tool
    async def bump(ctx: ToolContext[Any]) -> str:
        """Count."""
        ctx.context["n"] += 1
        return "same"

    agent = script_agent("a", call("bump", call_id="c"), say("done"), tools=[bump], prompt=choose)
    result = await run_mode(agent, "go", context={"n": 0})
    assert [request.prompt for request in read_requests(agent)] == [None, Prompt("pmpt_1", variables={"name": "a"})]
    answers = [record.answer for record in find_records(result, r.CallbackReturned) if record.what == "prompt"]
    assert answers == [None, ["pmpt_1", None, {"name": "a"}]]
    digests = []
    for given in (Prompt("one"), Prompt("two"), lambda ctx, agent: Prompt("two"), None, lambda ctx, agent: None):
        result = await run_mode(script_agent("a", say("done"), prompt=given), "go")
        digests += [record.digest for record in find_records(result, r.ModelRequested)]
    assert digests[1] == digests[2] != digests[0]
    assert digests[3] == digests[4] != digests[0]


async def test_a_callable_prompt_is_checked_when_it_is_called(run_mode: Run) -> None:
    """Its signature, and what it returns."""
    with pytest.raises(TypeError, match=r"Agent\.prompt of 'a': expected a callable of \(ctx, agent\)"):
        await run_mode(script_agent("a", say("never"), prompt=lambda: Prompt("p")), "go")
    with pytest.raises(UserError, match=r"Agent\.prompt of 'a' must return Prompt"):
        await run_mode(script_agent("a", say("never"), prompt=lambda ctx, agent: "p"), "go")


# -- enablement


def switched(name: str, log: list[str] | None = None) -> FunctionTool:
    """Return a tool that the application's flags switch."""

    @tool(name=name, is_enabled=lambda ctx, agent: ctx.context.flags.get(name, False))
    async def switch() -> str:
        """Do it."""
        if log is not None:
            log.append(name)
        return name

    return switch


def flipping(*names: str) -> FunctionTool:
    """Return a tool that flips flags of the application."""

    @tool
    async def flip(ctx: ToolContext[App]) -> str:
        """Flip the switches."""
        for name in names:
            ctx.context.flags[name] = not ctx.context.flags.get(name, False)
        return "flipped"

    return flip


@pytest.mark.scenario("DY-04")
async def test_enabled_tools_differ_by_run_and_by_turn(run_mode: Run) -> None:
    """The answers of `is_enabled` are not kept for the next turn, nor for the next run of the same agent."""
    agent = script_agent(
        "a",
        call("flip"),
        call("f", call_id="x"),
        say("one"),
        say("two"),
        say("three"),
        tools=[switched("f"), switched("g"), flipping("f", "g")],
    )
    await run_mode(agent, "go", context=App(flags={"g": True}))
    await run_mode(agent, "go", context=App(flags={"f": True, "g": True}))
    await run_mode(agent, "go", context=App())
    shown = [[one.name for one in request.tools] for request in read_requests(agent)]
    assert shown == [["g", "flip"], ["f", "flip"], ["f", "flip"], ["f", "g", "flip"], ["flip"]]


@pytest.mark.scenario("DY-05")
async def test_enabled_handoffs_differ_by_run_and_by_turn(run_mode: Run) -> None:
    """Handoffs are enabled per run and per turn as tools are, also by async answers."""
    second = script_agent("b")

    async def enabled(ctx: Any, agent: Any) -> bool:
        await anyio.lowlevel.checkpoint()
        return bool(ctx.context.flags.get("b", False))

    agent = script_agent(
        "a",
        call("flip"),
        say("one"),
        say("two"),
        tools=[flipping("b")],
        handoffs=[handoff(second, is_enabled=enabled)],
    )
    await run_mode(agent, "go", context=App())
    await run_mode(agent, "go", context=App())
    assert [len(request.handoffs) for request in read_requests(agent)] == [0, 1, 0]


@pytest.mark.scenario("DY-06")
async def test_what_is_exposed_is_what_is_dispatched(run_mode: Run) -> None:
    """Every tool that is shown runs, every one that isn't is unknown; hooks get the same objects."""
    log: list[str] = []
    trace = RunHookLog()
    tools = [switched("f", log), switched("g", log), switched("h", log)]
    config = RunConfig(tool_not_found_behavior="tell_model")
    agent = script_agent("a", [call(name, call_id=name) for name in "fgh"], say("done"), tools=tools)
    result = await run_mode(agent, "go", context=App(flags={"f": True, "h": True}), run_config=config, hooks=trace)
    assert read_requests(agent)[0].tools == (tools[0], tools[2])
    assert sorted(log) == ["f", "h"]
    assert read_statuses(result) == ["succeeded", "failed", "succeeded"]
    assert "not found" in str(read_outputs(result.new_items)["g"])
    assert trace.args_of("tool_start f")[2] is tools[0]
    assert trace.args_of("tool_start h")[2] is tools[2]
    assert {record.tool for record in find_records(result, r.CallStarted)} == {"f", "h"}


# -- the filter of the model's input


@pytest.mark.scenario("DY-07")
@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_filter_sees_the_final_list_and_changes_one_request_only(run_mode: Run, kind: str) -> None:
    """The filter sees outputs and instructions too; history and results stay."""
    seen: list[Any] = []

    def shorten(data: ModelInputData) -> ModelInputData:
        seen.append((describe(data.input), data.instructions, data.agent, data.context))
        return data.replace(input=data.input[-1:], instructions="short")

    async def shorten_async(data: ModelInputData) -> ModelInputData:
        await anyio.lowlevel.checkpoint()
        return shorten(data)

    agent = script_agent("a", call("bump", call_id="c"), say("done"), tools=[bumping()], instructions="long")
    config = RunConfig(call_model_input_filter=shorten if kind == "sync" else shorten_async)
    app = App()
    result = await run_mode(agent, "go", run_config=config, context=app)
    assert seen == [
        (["user:go"], "long", agent, app),
        (["user:go", "call:bump#c", "output:1#c"], "long", agent, app),
    ]
    assert [describe(request.items) for request in read_requests(agent)] == [["user:go"], ["output:1#c"]]
    assert [request.system for request in read_requests(agent)] == ["short", "short"]
    assert describe(result.to_input_list()) == ["user:go", "call:bump#c", "output:1#c", "says:done"]


@pytest.mark.scenario("DY-07")
async def test_filter_cannot_mutate_what_is_the_caller_s(run_mode: Run) -> None:
    """The filter can't change the list of the input, an item in it, or the run's history."""
    given: list[Item] = [UserMessage("go"), HostedToolCall("search", {"q": ["x"]})]

    def mutate(data: ModelInputData) -> ModelInputData:
        with pytest.raises(AttributeError):
            data.input.append(UserMessage("more"))  # type: ignore[attr-defined]
        with pytest.raises(AttributeError):
            data.input[0].content = ()
        return data.replace(input=[*data.input, UserMessage("more")])  # type: ignore[arg-type]

    agent = script_agent("a", say("done"))
    result = await run_mode(agent, given, run_config=RunConfig(call_model_input_filter=mutate))
    assert describe(read_requests(agent)[0].items) == ["user:go", "HostedToolCall", "user:more"]
    assert describe(given) == ["user:go", "HostedToolCall"]
    assert describe(result.input) == ["user:go", "HostedToolCall"]
    assert describe(result.to_input_list("all")) == ["user:go", "HostedToolCall", "says:done"]


@pytest.mark.scenario("DY-07")
@pytest.mark.parametrize("bad", [None, "text", [UserMessage("x")], ModelInputData(input=("text",), instructions=None)])
async def test_filter_that_gives_something_else_is_a_user_error(run_mode: Run, bad: Any) -> None:
    """The error comes before the model is asked."""
    agent = script_agent("a", say("never"))
    with pytest.raises(UserError):
        await run_mode(agent, "go", run_config=RunConfig(call_model_input_filter=lambda data: bad))
    assert read_requests(agent) == []


@pytest.mark.scenario("DY-07")
async def test_of_two_outputs_of_a_call_the_latest_stays_in_the_first_one_s_place(run_mode: Run) -> None:
    """The latest output takes the first one's place, and no other item moves."""

    def repeat(data: ModelInputData) -> ModelInputData:
        return data.replace(input=(*data.input, ToolOutput("c", "latest"), UserMessage("end")))

    agent = script_agent("a", say("done"))
    items = [UserMessage("go"), ToolOutput("c", "old"), ToolOutput("d", "other")]
    await run_mode(agent, items, run_config=RunConfig(call_model_input_filter=repeat))
    assert describe(read_requests(agent)[0].items) == ["user:go", "output:latest#c", "output:other#d", "user:end"]


async def test_tool_that_is_disabled_is_unknown_to_the_run(run_mode: Run) -> None:
    """The error doesn't tell the model that a disabled tool of that name exists."""
    agent = script_agent("a", call("f"), tools=[switched("f")])
    with pytest.raises(ModelBehaviorError, match="'f' not found"):
        await run_mode(agent, "go", context=App(), run_config=RunConfig(tool_not_found_behavior="raise"))
