"""One run in all four modes, compared with itself: plain and streamed, on asyncio and on trio."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

import anyio
import anyio.lowlevel
import attrs
import pytest
import trio
from kit.results import describe, find_records
from kit.watching import AgentHookLog, RunHookLog

from agentloop import (
    Agent,
    GuardrailFunctionOutput,
    InputGuardrailTripwireTriggered,
    Runner,
    ToolContext,
    handoff,
    input_guardrail,
    output_guardrail,
    tool,
)
from agentloop import events as ev
from agentloop import records as r
from agentloop.guardrails import Allow, ReplaceOutput, tool_input_guardrail, tool_output_guardrail
from agentloop.items import Item
from agentloop.sessions import MemorySession, SQLiteSession
from agentloop.testing import ScriptedModel, call, normal, reason, say, wait
from agentloop.usage import RequestUsage

Way: TypeAlias = Literal["plain", "streamed"]
BACKENDS = ("asyncio", "trio")
WAYS: tuple[Way, ...] = ("plain", "streamed")


def in_each_mode(scenario: Callable[[Way], Awaitable[Any]]) -> dict[tuple[str, Way], Any]:
    """Return the value that *scenario* gives in each of the four modes, each in an event loop of its own."""
    return {(backend, way): anyio.run(partial(scenario, way), backend=backend) for backend in BACKENDS for way in WAYS}


# ---------------------------------------------------------------------------------------------- all at once


@attrs.frozen
class Report:
    """A structured answer."""

    title: str
    pages: int


def spent(tokens: int) -> RequestUsage:
    """Return a usage of *tokens* tokens and one for the answer."""
    return RequestUsage(input_tokens=tokens, output_tokens=1, total_tokens=tokens + 1)


class World:
    """Two agents with a handoff, a nested one, guardrails of all kinds and a structured answer; made for one run."""

    def __init__(self) -> None:
        lines = self.lines = list[str]()
        answered = anyio.Event()

        class Guides(AgentHookLog):
            async def on_llm_end(self, ctx: Any, agent: Any, response: Any) -> None:
                await super().on_llm_end(ctx, agent, response)
                answered.set()

        @input_guardrail(run_in_parallel=False)
        async def short(ctx: Any, agent: Any, given: Any) -> GuardrailFunctionOutput:
            await anyio.lowlevel.checkpoint()
            return GuardrailFunctionOutput(len(given))

        @input_guardrail
        async def polite(ctx: Any, agent: Any, given: Any) -> GuardrailFunctionOutput:
            await answered.wait()  # else it would settle before or after the response, as it happens
            lines.append("polite")
            return GuardrailFunctionOutput("polite")

        @output_guardrail
        async def safe(ctx: Any, agent: Any, output: Any) -> GuardrailFunctionOutput:
            await anyio.lowlevel.checkpoint()
            return GuardrailFunctionOutput(output)

        @tool_input_guardrail
        def harmless(data: Any) -> Allow:
            return Allow(data.context.tool_call_id)

        @tool_output_guardrail
        def masked(data: Any) -> ReplaceOutput:
            return ReplaceOutput(f"masked {data.value}")

        @tool(tool_input_guardrails=(harmless,), tool_output_guardrails=(masked,))
        async def look(what: str) -> str:
            await anyio.lowlevel.checkpoint()
            return what

        @tool
        def broken() -> str:
            raise ValueError("no luck")

        digger = Agent(
            "digger",
            model=ScriptedModel([call("look", {"what": "x"}, call_id="n1"), say("dug", spent(5))]),
            tools=[look],
            hooks=AgentHookLog(lines, "  "),
        )
        answer = say('{"title": "T", "pages": 3}', spent(30))
        self.writer = Agent(
            "writer",
            model=ScriptedModel([[reason("hm"), call("look", {"what": "y"}, call_id="w1")], answer]),
            tools=[look],
            output_type=Report,
            output_guardrails=[safe],
            hooks=AgentHookLog(lines, "  "),
        )
        self.guide = Agent(
            "guide",
            model=ScriptedModel(
                [
                    [say("Let me see, step by step.", spent(1)), call("look", {"what": "a"}, call_id="g1")],
                    call("broken", call_id="g2"),
                    call("digger", {"input": "dig"}, call_id="g3"),
                    [reason("enough"), call("transfer_to_writer", call_id="g4")],
                ]
            ),
            tools=[look, broken, digger.as_tool()],
            handoffs=[handoff(self.writer, on_handoff=lambda ctx: lines.append("on_handoff"))],
            input_guardrails=[polite, short],
            hooks=Guides(lines, "  "),
        )


ITEMS = [
    "says:Let me see, step by step.",
    "call:look#g1",
    "output:masked a#g1",
    "call:broken#g2",
    "output:Tool broken failed with: ValueError(no luck)#g2",
    "call:digger#g3",
    "output:dug#g3",
    "Reasoning",
    "handoff:transfer_to_writer#g4",
    "handed:Handed over to writer.#g4",
    "Reasoning",
    "call:look#w1",
    "output:masked y#w1",
    'says:{"title": "T", "pages": 3}',
]
MODEL_CALL = "llm_start {0}|  llm_start {0}|  llm_end {0}|llm_end {0}"
TOOL_CALL = "tool_start {0}|  tool_start {0}|  tool_end {0}|tool_end {0}"
HOOKS = "|".join(
    [
        "agent_start guide|  start guide",
        MODEL_CALL.format("guide"),
        "polite",
        TOOL_CALL.format("look"),
        MODEL_CALL.format("guide"),
        TOOL_CALL.format("broken"),
        MODEL_CALL.format("guide"),
        # the run's hooks are the outer run's alone; those of an agent go with it
        "tool_start digger|  tool_start digger|  start digger|  llm_start digger|  llm_end digger|  tool_start look"
        "|  tool_end look|  llm_start digger|  llm_end digger|  end digger|  tool_end digger|tool_end digger",
        MODEL_CALL.format("guide"),
        "on_handoff|handoff guide writer|  out guide writer|  in writer guide",
        "agent_start writer|  start writer",
        MODEL_CALL.format("writer"),
        TOOL_CALL.format("look"),
        MODEL_CALL.format("writer"),
        "  end writer|agent_end writer",
        "run_end completed",
    ]
).split("|")
STAGES = ("input", "output", "tool_input", "tool_output")


@attrs.define
class Told:
    """The output of a run in one mode, in forms that can be compared."""

    result: Any
    world: World
    session: list[Item]
    events: list[str]

    def guardrails(self) -> dict[str, list[tuple[str, Any]]]:
        """Return name and answer of each guardrail result, by stage."""
        return {
            stage: [(one.guardrail.name, one.output) for one in getattr(self.result, f"{stage}_guardrail_results")]
            for stage in STAGES
        }

    def model_input(self) -> list[tuple[str | None, tuple[Item, ...]]]:
        """Return the requests that the two agents' models received."""
        models = [self.world.guide.model, self.world.writer.model]
        return [
            (request.system, tuple(request.items))
            for model in models
            if isinstance(model, ScriptedModel)
            for request in model.requests
        ]


def worded(event: ev.Event) -> str:
    """Return *event* as a line without the run's own objects."""
    where = "/".join(event.path)
    match event:
        case ev.AgentUpdated(agent=agent):
            return f"{where} agent {agent.name}"
        case ev.ItemCreated(item=item):
            return f"{where} {describe([item])[0]}"
        case ev.CallSettled(call=settled, outcome=outcome):
            return f"{where} settled {settled.call_id} {outcome.status}"
        case ev.GuardrailSettled(result=result):
            return f"{where} guardrail {result.guardrail.name}"
        case _:
            return f"{where} {event}"


async def told(kept: Callable[[], Any], way: Way) -> Told:
    """Run the world once."""
    world, session = World(), kept()
    options: dict[str, Any] = {"session": session, "hooks": RunHookLog(world.lines), "context": "ctx"}
    events: list[str] = []
    if way == "plain":
        result = await Runner.run(world.guide, "go", **options)
    else:
        async with Runner.run_streamed(world.guide, "go", **options) as stream:
            events.extend([worded(event) async for event in stream])
        result = stream.result
    return Told(result, world, await session.get_items(), events)


@pytest.mark.scenario("SP-01", "US-02", "US-07", "HS-01")
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_run_of_everything_is_the_same_in_all_four_modes(kind: str, tmp_path: Path) -> None:
    """Handoff, nested agent, session, typed output and guardrails leave the same items, usage, session, hooks, log."""
    files = iter(range(4))

    def kept() -> Any:
        return MemorySession("s") if kind == "memory" else SQLiteSession(tmp_path / f"{next(files)}.db", "s")

    modes = in_each_mode(partial(told, kept))
    assert len(modes) == 4
    first = modes["asyncio", "plain"]
    # What they have in common is what it should be …
    assert describe(first.result.new_items) == ITEMS
    assert describe(first.session) == ["user:go", *ITEMS]
    assert first.result.final_output == Report("T", 3)
    assert first.result.usage.requests == 8
    assert [entry.total_tokens for entry in first.result.usage.entries] == [2, 6, 31]
    assert {stage: [name for name, _ in found] for stage, found in first.guardrails().items()} == {
        "input": ["polite", "short"],
        "output": ["safe"],
        "tool_input": ["harmless"] * 2,
        "tool_output": ["masked"] * 2,
    }
    assert first.world.lines == HOOKS
    # … and each of them has it.
    for mode, other in modes.items():
        assert other.result.new_items == first.result.new_items, mode
        assert other.result.to_input_list() == first.result.to_input_list(), mode
        assert other.result.final_output == first.result.final_output, mode
        assert other.result.last_agent is other.world.writer, mode
        assert other.result.usage == first.result.usage, mode
        assert other.result.raw_responses == first.result.raw_responses, mode
        assert other.session == first.session, mode
        assert other.world.lines == first.world.lines, mode
        assert other.guardrails() == first.guardrails(), mode
        assert other.model_input() == first.model_input(), mode
        assert normal(other.result.records) == normal(first.result.records), mode
    assert modes["asyncio", "streamed"].events == modes["trio", "streamed"].events
    created = [line.removeprefix(" ") for line in modes["trio", "streamed"].events if line.startswith(" ")]
    assert [line for line in created if line in set(ITEMS)] == ITEMS


# ---------------------------------------------------------------------------------------------- a late tripwire


@pytest.mark.scenario("GI-13", "GI-14")
def test_guardrail_that_trips_long_after_the_model_has_called_a_tool_leaves_it_unstarted() -> None:
    """Fifty milliseconds are plenty for a tool to start in, and it doesn't: plain, streamed, on both backends."""

    async def late(way: Way) -> list[str]:
        lines: list[str] = []
        answered = anyio.Event()

        class Trace(RunHookLog):
            async def on_llm_end(self, ctx: Any, agent: Any, response: Any) -> None:
                await super().on_llm_end(ctx, agent, response)
                answered.set()

        @input_guardrail
        async def slow(ctx: Any, agent: Any, given: Any) -> GuardrailFunctionOutput:
            await answered.wait()
            await anyio.sleep(0.05)
            lines.append("verdict")
            return GuardrailFunctionOutput(None, tripwire_triggered=True)

        @tool
        async def effect() -> str:
            lines.append("body")
            return "done"

        session = MemorySession()
        agent = Agent(
            "a",
            model=ScriptedModel([[say("I will."), call("effect", call_id="c1")], say("done")]),
            tools=[effect],
            input_guardrails=[slow],
        )
        options: dict[str, Any] = {"hooks": Trace(lines), "session": session}
        with pytest.raises(InputGuardrailTripwireTriggered) as caught:
            if way == "plain":
                await Runner.run(agent, "go", **options)
            else:
                async with Runner.run_streamed(agent, "go", **options) as stream:
                    async for event in stream:
                        if isinstance(event, ev.CallStarted | ev.CallSettled):
                            lines.append(type(event).__name__)
        assert find_records(caught.value.run_data, r.CallStarted) == []
        assert len(find_records(caught.value.run_data, r.ModelResponded)) == 1
        for _ in range(10):
            await anyio.lowlevel.checkpoint()
        assert describe(await session.get_items()) == ["user:go"]
        return lines

    for mode, lines in in_each_mode(late).items():
        assert lines == ["agent_start a", "llm_start a", "llm_end a", "verdict", "run_end failed"], mode


# ---------------------------------------------------------------------------------------------- an early end


def _living(backend: str) -> int:
    return len(asyncio.all_tasks()) if backend == "asyncio" else trio.lowlevel.current_statistics().tasks_living


@pytest.mark.scenario("SC-14", "LX-54")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("turn", [1, 2])
def test_break_after_a_text_delta_leaves_no_task_and_no_side_effect(backend: str, turn: int) -> None:
    """When the block has been left there is nothing that could act: no task, no call, no write, no hook."""

    async def broken_off() -> None:
        lines: list[str] = []

        @tool
        async def effect(ctx: ToolContext[Any]) -> str:
            lines.append(f"body {ctx.tool_call_id}")
            return "done"

        class Kept(MemorySession):
            async def add_items(self, items: Any) -> None:
                lines.extend(describe(items))
                await super().add_items(items)

        session = Kept()
        text = say("a text of several chunks")
        go = anyio.Event()
        # The model continues to the call that must not come about only when the text has been seen.
        steps = [[text, *([wait(go)] if n == turn else []), call("effect", call_id=f"c{n}")] for n in (1, 2)]
        agent = Agent("a", model=ScriptedModel([*steps, say("done")]), tools=[effect])
        before = _living(backend)
        stream = Runner.run_streamed(agent, "go", session=session, hooks=RunHookLog(lines))
        async with stream:
            async for event in stream:
                if isinstance(event, ev.TextDelta) and event.turn == turn:
                    go.set()
                    break
        assert _living(backend) == before
        done = list(lines)
        for _ in range(20):
            await anyio.lowlevel.checkpoint()
        assert lines == done
        assert done[-1] == "run_end cancelled"
        assert [line for line in done if line.startswith("body")] == ["body c1"] * (turn - 1)
        assert stream.result.status == "cancelled"
        assert await session.get_items() == [*stream.result.input, *stream.result.new_items]

    anyio.run(broken_off, backend=backend)
