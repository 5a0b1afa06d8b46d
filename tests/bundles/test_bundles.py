"""Bundles: their parts become parts of an agent, or of a run, and what they open lives as long as the run."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from kit.agents import Run, script_agent
from kit.results import read_outputs, read_requests

from agentloop import (
    Agent,
    AgentHooks,
    Allow,
    Bundle,
    ContextPolicy,
    Deny,
    FunctionTool,
    GuardrailFunctionOutput,
    HostedTool,
    ModelSettings,
    RunConfig,
    RunContext,
    Runner,
    RunState,
    ToolContext,
    ToolExecution,
    UserError,
    input_guardrail,
    open_runtime,
    output_guardrail,
    tool,
)
from agentloop.exceptions import ToolSourceError, UserTypeError, UserValueError
from agentloop.journal import MemoryJournal
from agentloop.testing import FunctionModel, call, normal, replay, say

pytestmark = pytest.mark.scenario("BU-01")


def one(name: str, answer: str | None = None, **options: Any) -> FunctionTool:
    """Return a tool whose output is *answer*, or its own name."""

    @tool(name=name, **options)
    async def body() -> str:
        """Give the name."""
        return answer or name

    return body


class Source:
    """A source of one tool."""

    name = "shelf"

    def __init__(self, given: FunctionTool) -> None:
        self.given = given

    async def tools(self, ctx: Any, agent: Any) -> Sequence[FunctionTool]:
        """Return the tool."""
        return [self.given]


class NoPay:
    """Denies one tool."""

    def decide(self, call: Any) -> Any:
        """Deny `pay`."""
        return Deny("No.") if call.tool.name == "pay" else Allow()


@input_guardrail(run_in_parallel=False)
async def polite(ctx: Any, agent: Any, given: Any) -> GuardrailFunctionOutput:
    """Pass."""
    return GuardrailFunctionOutput("fine", False)


@output_guardrail
async def discreet(ctx: Any, agent: Any, output: Any) -> GuardrailFunctionOutput:
    """Pass."""
    return GuardrailFunctionOutput("fine", False)


class Log(AgentHooks):
    """Notes the events of one name."""

    def __init__(self, name: str, seen: list[str]) -> None:
        self.name, self.seen = name, seen

    async def on_start(self, ctx: Any, agent: Any) -> None:
        self.seen.append(f"start {self.name}")

    def on_end(self, ctx: Any, agent: Any, output: Any) -> None:  # type: ignore[override]
        self.seen.append(f"end {self.name}")

    async def on_handoff_out(self, ctx: Any, agent: Any, to_agent: Any) -> None:
        self.seen.append(f"out {self.name}")

    async def on_handoff_in(self, ctx: Any, agent: Any, from_agent: Any) -> None:
        self.seen.append(f"in {self.name}")

    async def on_llm_start(self, ctx: Any, agent: Any, system: Any, input: Any) -> None:
        self.seen.append(f"ask {self.name}")

    async def on_llm_end(self, ctx: Any, agent: Any, response: Any) -> None:
        self.seen.append(f"answer {self.name}")

    async def on_tool_start(self, ctx: Any, agent: Any, tool: Any) -> None:
        self.seen.append(f"call {self.name}")

    async def on_tool_end(self, ctx: Any, agent: Any, tool: Any, outcome: Any) -> None:
        self.seen.append(f"settled {self.name}")


LOOK, PAY, FAR = one("look"), one("pay"), Source(one("far"))
STEPS = ([call("look", call_id="1"), call("pay", call_id="2"), call("far", call_id="3")], say("done"))


# -- merging


async def test_agent_with_a_bundle_equals_one_with_its_parts_written_out(run_mode: Run) -> None:
    """Record for record, and request for request."""
    bundle = Bundle(
        "shop",
        instructions="Sell.",
        tools=[LOOK, FAR],
        input_guardrails=[polite],
        output_guardrails=[discreet],
        policies=[NoPay()],
        model_settings=ModelSettings(temperature=0.1),
        context=ContextPolicy(window=9000),
    )
    bundled = script_agent("a", *STEPS, instructions="Be brief.", tools=[PAY], bundles=[bundle])
    written = script_agent(
        "a",
        *STEPS,
        instructions="Be brief.\n\n## shop\n\nSell.",
        tools=[LOOK, PAY],
        toolsets=[FAR],
        input_guardrails=[polite],
        output_guardrails=[discreet],
        policies=[NoPay()],
        model_settings=ModelSettings(temperature=0.1),
        context=ContextPolicy(window=9000),
    )
    found, wanted = [await run_mode(agent, "go") for agent in (bundled, written)]
    assert normal(found.records) == normal(wanted.records)
    assert list(read_outputs(found.new_items).values()) == ["look", "No.", "far"]
    assert [request.system for request in read_requests(bundled)] == [
        request.system for request in read_requests(written)
    ]
    assert read_requests(bundled)[0].settings == read_requests(written)[0].settings


async def test_own_settings_win_then_those_of_the_last_bundle(run_mode: Run) -> None:
    """Setting by setting; the agent's own context policy stands, else the last bundle's."""
    first = Bundle("first", model_settings=ModelSettings(temperature=0.1, top_p=0.2, max_tokens=10))
    last = Bundle("last", model_settings=ModelSettings(temperature=0.3, top_p=0.4), context=ContextPolicy(window=1000))
    own = ContextPolicy(window=2000)
    agent = script_agent("a", model_settings=ModelSettings(temperature=0.5), bundles=[first, last])
    assert agent.model_settings == ModelSettings(temperature=0.5, top_p=0.4, max_tokens=10)
    assert agent.context is last.context
    assert script_agent("a", context=own, bundles=[last]).context is own
    assert script_agent("a", bundles=[last, first]).context is last.context
    assert script_agent("a", bundles=[first]).context is None


async def test_instructions_that_are_asked_stand_under_their_headings(run_mode: Run) -> None:
    """A callable is asked every turn, sync or async; one that returns None has no heading; texts stay several."""

    async def slow(ctx: RunContext[str], agent: Any) -> str:
        return f"for {ctx.context}"

    bundles = [
        Bundle("who", instructions=slow),
        Bundle("none", instructions=lambda ctx, agent: None),
        Bundle("plain", instructions="text"),
    ]
    agent = script_agent("a", say("done"), instructions=["one", "two"], bundles=bundles)
    await run_mode(agent, "go", context="Ada")
    assert read_requests(agent)[0].instructions == ("one", "two", "## who\n\nfor Ada", "## plain\n\ntext")
    assert Agent("b", instructions=["one"], bundles=[bundles[2]]).instructions == ["one", "## plain\n\ntext"]
    asked = script_agent("c", say("done"), instructions=slow, bundles=bundles[1:2])
    await run_mode(asked, "go", context="Ada")
    assert read_requests(asked)[0].system == "for Ada"


@pytest.mark.parametrize(
    ("own", "given", "words"),
    [
        (None, lambda ctx, agent: 3, "Bundle.instructions of 'x' must return text, not 3"),
        (None, lambda ctx: "", r"Bundle.instructions of 'x': expected a callable of \(ctx, agent\)"),
        (lambda ctx: "", "text", r"Agent.instructions of 'a': expected a callable of \(ctx, agent\)"),
        (lambda ctx, agent: 3, "text", "Agent.instructions of 'a' must return text, not 3"),
    ],
)
async def test_instructions_that_are_no_text_are_refused(run_mode: Run, own: Any, given: Any, words: str) -> None:
    """The error names the bundle, or the agent whose instructions they are."""
    agent = script_agent("a", say("done"), instructions=own, bundles=[Bundle("x", instructions=given)])
    with pytest.raises(UserTypeError, match=words):
        await run_mode(agent, "go")


async def test_hooks_of_bundles_are_called_around_the_agents_own(run_mode: Run) -> None:
    """Start events: bundles in order, then the agent; end events in the reverse order."""
    seen: list[str] = []
    target = script_agent("b", say("done"), bundles=[Bundle("z", hooks=Log("z", seen))])
    agent = script_agent("a", call("look"), call("transfer_to_b"), tools=[LOOK], handoffs=[target])
    agent = agent.clone(hooks=Log("own", seen), bundles=[Bundle(name, hooks=Log(name, seen)) for name in "xy"])
    await run_mode(agent, "go")
    start, end = ["x", "y", "own"], ["own", "y", "x"]
    events = [("start", start), ("ask", start), ("answer", end), ("call", start), ("settled", end)]
    events += [("ask", start), ("answer", end), ("out", start)]
    wanted = [f"{event} {name}" for event, names in events for name in names]
    assert seen == [*wanted, "in z", "start z", "ask z", "answer z", "end z"]


async def test_hooks_at_the_end_are_reversed(run_mode: Run) -> None:
    """`on_end`, which may be sync."""
    seen: list[str] = []
    bundles = [Bundle(name, hooks=Log(name, seen)) for name in "xy"]
    await run_mode(script_agent("a", say("done"), bundles=bundles), "go")
    assert seen[-2:] == ["end y", "end x"]


@pytest.mark.scenario("BU-02")
async def test_two_tools_of_one_name_follow_the_collision_policy(
    run_mode: Run, caplog: pytest.LogCaptureFixture
) -> None:
    """With "tell_model" the later one is used, and the agent's own is the last; with "raise" the run fails."""
    bundles = [Bundle("x", tools=[one("look", "x")]), Bundle("y", tools=[one("look", "y")])]
    agent = script_agent("a", call("look"), say("done"), bundles=bundles)
    result = await run_mode(agent, "go")
    assert list(read_outputs(result.new_items).values()) == ["y"]
    assert "two enabled tools named 'look'" in caplog.text
    own = script_agent("a", call("look"), say("done"), tools=[one("look", "own")], bundles=bundles)
    assert list(read_outputs((await run_mode(own, "go")).new_items).values()) == ["own"]
    strict = RunConfig(tool_execution=ToolExecution(name_collision_policy="raise"))
    with pytest.raises(UserError, match="two enabled tools named 'look'"):
        await run_mode(script_agent("a", say("done"), bundles=bundles), "go", run_config=strict)


def test_clone_merges_anew_and_shares_nothing_that_was_brought() -> None:
    """A change is given as to `Agent`; tools that were appended later stay; a cleared bundle takes its parts along."""
    bundle = Bundle("x", instructions="More.", tools=[LOOK], model_settings=ModelSettings(top_p=0.5))
    agent = Agent("a", instructions="Own.", tools=[PAY], bundles=[bundle])
    late = one("late")
    agent.tools.append(late)  # type: ignore[attr-defined]
    same = agent.clone(name="b")
    assert (same.instructions, list(same.tools)) == (agent.instructions, [LOOK, PAY, late])
    assert agent.clone(tools=[], instructions="New.").instructions == "New.\n\n## x\n\nMore."
    assert agent.clone(tools=[]).tools == [LOOK]
    bare = agent.clone(bundles=[])
    assert (bare.instructions, list(bare.tools), bare.model_settings) == ("Own.", [PAY, late], ModelSettings())
    agent.instructions = "Later."
    assert agent.clone(bundles=[]).instructions == "Later."


def test_settings_of_the_model_itself_give_way_to_a_bundle() -> None:
    """They are no choice of the application; another model's own take their place in a clone."""

    class Careful(FunctionModel):
        default_settings = ModelSettings(temperature=0.9, top_p=0.9)

    class Plain(FunctionModel):
        default_settings = ModelSettings(top_p=0.1)

    def answer(request: Any) -> Any:
        return say("done")

    bundle = Bundle("x", model_settings=ModelSettings(temperature=0.2))
    agent = Agent("a", model=Careful(answer), bundles=[bundle])
    assert agent.model_settings == ModelSettings(temperature=0.2, top_p=0.9)
    assert agent.clone(model=Plain(answer)).model_settings == ModelSettings(temperature=0.2, top_p=0.1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"instructions": 3}, "Bundle.instructions: expected text or a callable, got 3"),
        ({"tools": [3]}, r"Bundle.tools\[0\]: expected a tool or a ToolSource, got 3"),
        ({"context": 3}, r"Bundle.context: expected ContextPolicy\(…\), got 3"),
        ({"policies": [3]}, r"Bundle.policies\[0\]: expected a Policy \(with `decide`\), got 3"),
        ({"shared": 3}, "Bundle.shared: expected True or False, got 3"),
    ],
)
def test_parts_of_a_wrong_kind_are_refused(options: dict[str, Any], words: str) -> None:
    """By the error that names the field."""
    with pytest.raises(UserTypeError, match=words):
        Bundle("x", **options)


def test_agents_and_configurations_take_bundles_only() -> None:
    """A run's bundle has nothing that only an agent has."""
    with pytest.raises(UserTypeError, match=r"Agent.bundles\[0\]: expected a Bundle"):
        Agent("a", bundles=["x"])  # type: ignore[list-item]
    hooked = Bundle("x", hooks=AgentHooks())
    hosted = Bundle("x", tools=[HostedTool("web_search")])
    nested = Bundle("x", tools=[Agent("b").as_tool("ask", "Ask.")])
    for bundle in (hooked, hosted, nested, "x"):
        with pytest.raises(UserTypeError, match=r"RunConfig.bundles\[0\]: expected a Bundle.*Agent\(bundles=…\)"):
            RunConfig(bundles=[bundle])  # type: ignore[list-item]


def test_two_bundles_of_one_name_are_refused() -> None:
    """Of an agent, of its clone and of a run's configuration: the tools of one would hide those of the other."""
    pair = [Bundle("x", tools=[LOOK]), Bundle("y"), Bundle("x", tools=[LOOK])]
    words = r"\.bundles: two bundles are named 'x'.*Skills\(a, b\).*name="
    with pytest.raises(UserValueError, match=f"Agent{words}"):
        Agent("a", bundles=pair)
    with pytest.raises(UserValueError, match=f"Agent{words}"):
        Agent("a", bundles=pair[:1]).clone(bundles=pair)
    with pytest.raises(UserValueError, match=f"RunConfig{words}"):
        RunConfig(bundles=pair)
    assert Agent("a", bundles=pair[:2]).clone(name="b").bundles == tuple(pair[:2])


def test_an_agent_describes_what_it_has() -> None:
    """Names and settings, and what each bundle brings."""
    bundle = Bundle(
        "x", instructions="More.", tools=[LOOK, HostedTool("web_search"), FAR], policies=[NoPay()], hooks=AgentHooks()
    )
    agent: Agent[Any, Any] = Agent(
        "a",
        model="local:",
        instructions=lambda ctx, agent: "Own.",
        handoffs=[Agent("b")],
        input_guardrails=[polite],
        output_guardrails=[discreet],
        model_settings=ModelSettings(temperature=0.5, metadata={"k": "v"}),
        context=ContextPolicy(window=9),
        bundles=[bundle],
    )
    found = agent.describe()
    assert found.pop("context").startswith("ContextPolicy(window=9")
    assert found == {
        "name": "a",
        "model": "local:",
        "instructions": "asked",
        "model_settings": {"temperature": 0.5, "metadata": "{'k': 'v'}"},
        "tools": ["look", "web_search"],
        "toolsets": ["shelf"],
        "handoffs": ["b"],
        "input_guardrails": ["polite"],
        "output_guardrails": ["discreet"],
        "policies": ["NoPay"],
        "hooks": "AgentHooks",
        "bundles": {"x": ["instructions", "hooks", "tools: look, web_search", "toolsets", "policies"]},
    }
    plain = Agent("b", model=FunctionModel(lambda request: say(""))).describe()
    assert (plain["model"], plain["bundles"], plain["context"]) == ("FunctionModel", {}, None)


# -- bundles of a run


async def test_bundles_of_a_run_serve_each_of_its_agents(run_mode: Run) -> None:
    """Tools, instructions, guardrails, policies and settings, after a handoff, too; the agents stay as they were."""
    bundle = Bundle(
        "shop",
        instructions="Sell.",
        tools=[LOOK, PAY],
        policies=[NoPay()],
        output_guardrails=[discreet],
        model_settings=ModelSettings(temperature=0.1),
    )
    target = script_agent("b", [call("look", call_id="2"), call("pay", call_id="3")], say("done"))
    agent = script_agent("a", call("transfer_to_b", call_id="1"), instructions="Own.", handoffs=[target])
    config = RunConfig(bundles=[bundle, Bundle("asked", instructions=lambda ctx, agent: agent.name)])
    result = await run_mode(agent, "go", run_config=config)
    outputs = read_outputs(result.new_items)
    assert (outputs["2"], outputs["3"]) == ("look", "No.")
    assert read_requests(agent)[0].system == "Own.\n\n## shop\n\nSell.\n\n## asked\n\na"
    assert read_requests(target)[0].system == "## shop\n\nSell.\n\n## asked\n\nb"
    assert read_requests(target)[0].settings.temperature == 0.1
    assert [one.guardrail.name for one in result.output_guardrail_results] == ["discreet"]
    assert (agent.tools, agent.instructions) == ([], "Own.")


async def test_a_nested_run_and_a_batch_take_bundles_once() -> None:
    """A configuration is merged where the run begins, however often it is passed on."""
    config = RunConfig(bundles=[Bundle("shop", instructions="Sell.", tools=[LOOK])])
    inner = script_agent("b", say("inner"))
    agent = script_agent(
        "a", call("ask", {"input": "x"}), say("done"), tools=[inner.as_tool("ask", "Ask.", run_config=config)]
    )
    await Runner.run(agent, "go")
    assert read_requests(agent)[0].system is None
    assert read_requests(inner)[0].system == "## shop\n\nSell."
    assert [tool.name for tool in read_requests(inner)[0].tools] == ["look"]
    many = script_agent("c", say("done"))
    await Runner.run_many(many, ["x"], run_config=config)
    assert read_requests(many)[0].system == "## shop\n\nSell."


# -- opening


class Room(Bundle):
    """Notes when it is opened and left, and gives its name to a tool."""

    def __init__(self, name: str, seen: list[str], fail: BaseException | None = None, shared: bool = False) -> None:
        @tool(name=f"in_{name}")
        async def inside(ctx: ToolContext) -> str:
            """Say what is open."""
            return f"in {await self.opened(ctx)}"

        super().__init__(name, tools=[inside], shared=shared)
        self.seen, self.fail = seen, fail

    async def open(self, ctx: RunContext[Any]) -> Any:
        """Return the block that notes."""
        await anyio.lowlevel.checkpoint()
        if self.fail is not None:
            raise self.fail
        return self._room()

    @asynccontextmanager
    async def _room(self) -> AsyncIterator[str]:
        self.seen.append(f"open {self.name}")
        try:
            async with anyio.create_task_group():
                yield self.name
        finally:
            self.seen.append(f"left {self.name}")


class Closed(Bundle):
    """A bundle whose `open` opens nothing."""

    async def open(self, ctx: RunContext[Any]) -> None:
        """Open nothing."""


@pytest.mark.scenario("BU-02")
async def test_a_bundle_is_open_from_before_the_first_request_until_the_end_of_the_run(run_mode: Run) -> None:
    """Once, though every turn asks; bodies use what was opened; one that opens nothing gives None."""
    seen: list[str] = []

    def answer(request: Any) -> Any:
        seen.append(f"request {request.turn}")
        return call("in_x", call_id=str(request.turn)) if request.turn < 3 else say("done")

    agent = Agent("a", model=FunctionModel(answer), bundles=[Room("x", seen), Closed("none")])
    result = await run_mode(agent, "go")
    assert seen == ["open x", "request 1", "request 2", "request 3", "left x"]
    assert list(read_outputs(result.new_items).values()) == ["in x", "in x"]


@pytest.mark.scenario("BU-02")
async def test_a_bundle_that_cannot_be_opened_fails_the_run_and_the_others_are_closed(run_mode: Run) -> None:
    """Before the first request, by an error that names it; the run can be resumed once it opens."""
    seen: list[str] = []
    broken = Room("broken", seen, fail=OSError("no room"))
    agent = script_agent("a", say("done"), bundles=[Room("x", seen), broken])
    journal = MemoryJournal()
    with pytest.raises(ToolSourceError, match="bundle 'broken' can't be opened: OSError: no room"):
        await run_mode(agent, "go", journal=journal)
    assert read_requests(agent) == []
    assert seen in ([], ["open x", "left x"])
    broken.fail = None
    assert (await Runner.resume(agent, journal)).final_output == "done"
    assert sorted(seen[-4:]) == ["left broken", "left x", "open broken", "open x"]


@pytest.mark.scenario("BU-02")
async def test_an_error_of_the_library_stays_as_it_is(run_mode: Run) -> None:
    """`open` may say in the library's own words what is wrong."""
    agent = script_agent("a", say("done"), bundles=[Room("x", [], fail=UserError("give it a key"))])
    with pytest.raises(UserError, match=r"^give it a key$"):
        await run_mode(agent, "go")


@pytest.mark.scenario("BU-03")
async def test_each_agent_has_its_own_bundles_and_a_shared_object_is_opened_once(run_mode: Run) -> None:
    """The one of the second agent is opened when it takes over."""
    seen: list[str] = []
    both = Room("both", seen)

    def answer(request: Any) -> Any:
        seen.append(f"request {request.turn}")
        return [call("transfer_to_b"), call("in_y"), say("done")][request.turn - 1]

    target = Agent("b", model=FunctionModel(answer), bundles=[both, Room("y", seen)])
    agent: Agent[Any, Any] = Agent("a", model=target.model, bundles=[both], handoffs=[target])
    result = await run_mode(agent, "go")
    assert seen == ["open both", "request 1", "open y", "request 2", "request 3", "left y", "left both"]
    assert read_outputs(result.new_items).popitem()[1] == "in y"
    assert [tool.name for tool in agent.tools] == ["in_both"]


@pytest.mark.scenario("BU-03")
async def test_a_resumed_run_opens_its_bundles_again() -> None:
    """After a pause, and stored in between; the call that waited uses what was opened for its segment."""
    seen: list[str] = []

    @tool(needs_approval=True)
    async def pay(ctx: ToolContext) -> str:
        """Pay."""
        return f"paid in {await room.opened(ctx)}"

    room = Room("x", seen)
    agent = script_agent("a", call("pay"), say("done"), tools=[pay], bundles=[room])
    paused = await Runner.run(agent, "go")
    assert (paused.status, seen) == ("interrupted", ["open x", "left x"])
    state = RunState.from_json(agent, paused.to_state().to_json())
    state.approve(state.interruptions[0])
    result = await Runner.run(agent, state)
    assert list(read_outputs(result.new_items).values()) == ["paid in x"]
    assert seen == ["open x", "left x"] * 2


async def test_nested_runs_open_their_own_or_share() -> None:
    """A nested run has a room of its own; a shared one is the outer run's, or the open runtime's."""

    def make(shared: bool, seen: list[str]) -> Agent[Any, Any]:
        room = Room("x", seen, shared=shared)
        inner = script_agent("b", say("inner"), bundles=[room])
        ask = inner.as_tool("ask", "Ask.")
        return script_agent("a", call("ask", {"input": "x"}), say("done"), tools=[ask], bundles=[room])

    own: list[str] = []
    await Runner.run(make(False, own), "go")
    assert own == ["open x", "open x", "left x", "left x"]
    shared: list[str] = []
    await Runner.run(make(True, shared), "go")
    assert shared == ["open x", "left x"]
    async with open_runtime():
        await Runner.run(make(True, shared), "go")
        assert shared == ["open x", "left x", "open x"]
    assert shared[2:] == ["open x", "left x"]


async def test_a_bundle_of_the_run_is_opened_too(run_mode: Run) -> None:
    """Its tools come from a source, and use what was opened."""
    seen: list[str] = []
    agent = script_agent("a", call("in_x"), say("done"))
    result = await run_mode(agent, "go", run_config=RunConfig(bundles=[Room("x", seen)]))
    assert (list(read_outputs(result.new_items).values()), seen) == (["in x"], ["open x", "left x"])


async def test_resources_of_a_run_need_a_run() -> None:
    """A context made outside of one has none."""
    with pytest.raises(UserError, match=r"RunContext\.resource works only inside a run"):
        await Room("x", []).opened(RunContext(context=None))


def test_a_run_with_bundles_is_replayed_without_opening_them() -> None:
    """The log is enough: no bundle is opened, no hook called, and the parts written out decide as they did."""
    seen: list[str] = []
    bundle = Bundle("shop", instructions=lambda ctx, agent: "Sell.", tools=[PAY], hooks=Log("x", seen))
    agent = script_agent("a", call("pay"), call("in_x"), say("done"), bundles=[bundle, Room("x", seen)])
    journal = MemoryJournal()
    result = Runner.run_sync(agent, "go", journal=journal)
    before = list(seen)
    again = replay(journal, agent)
    assert again.records == result.records
    assert seen == before
