"""A dozen scenarios, each cancelled at every step: at any moment, the run joins and its log is whole.

After each run: no task is left, every body, resource and start hook that began has ended, no token is held, every
started call has exactly one outcome, nothing is accepted after the cancellation, `RunEnded` is the last record, and the
caller's task has the cancellations it was given, no more and no fewer.
"""

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import attrs
import pytest
from kit.watching import Watch
from sweeps.stepping import COMBINATIONS, Kind, Stepped, run_once

from agentloop import Agent, Allow, Capacity, Rate, RunConfig, RunHooks, Runner, ToolContext, ToolExecution, tool
from agentloop import records as r
from agentloop.guardrails import RejectContent, tool_input_guardrail, tool_output_guardrail
from agentloop.testing import ScriptedModel, call, say


@attrs.define
class World:
    """The counts of one run of a scenario: every part that begins has to end."""

    watch: Watch = attrs.field(factory=Watch)
    begun: Counter[str] = attrs.field(factory=Counter)
    ended: Counter[str] = attrs.field(factory=Counter)
    capacity: Capacity = attrs.field(factory=lambda: Capacity(2, "shared"))
    fails: bool = False
    """Whether the scenario, left alone, ends with an error."""

    @asynccontextmanager
    async def open(self, what: str) -> AsyncIterator[str]:
        """Enter a resource that takes its time both ways."""
        await anyio.lowlevel.checkpoint()
        self.begun[what] += 1
        try:
            yield what
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.01)
            self.ended[what] += 1

    def body(self, name: str, seconds: float = 0.02, **options: Any) -> Any:
        """Return a tool that waits twice."""

        async def work(ctx: ToolContext[Any], n: int = 0) -> str:
            self.begun[name] += 1
            try:
                await anyio.sleep(seconds)
                await anyio.lowlevel.checkpoint()
            finally:
                self.ended[name] += 1
            return f"{name} {n}"

        return tool(name=name, **options)(work)

    def config(self, **execution: Any) -> RunConfig:
        """Return a configuration under this world's watch."""
        return RunConfig(instruments=(self.watch,), tool_execution=ToolExecution(**execution))


class PairedHooks(RunHooks):
    """Hooks that wait, counted in a world."""

    def __init__(self, world: World) -> None:
        self.world = world

    async def on_tool_start(self, ctx: ToolContext[Any], agent: Any, tool: Any) -> None:
        self.world.begun[f"hook {ctx.tool_call_id}"] += 1
        await anyio.sleep(0.01)

    async def on_tool_end(self, ctx: ToolContext[Any], agent: Any, tool: Any, outcome: Any) -> None:
        await anyio.sleep(0.01)
        self.world.ended[f"hook {ctx.tool_call_id}"] += 1

    async def on_run_end(self, ctx: Any, outcome: Any) -> None:
        await anyio.lowlevel.checkpoint()
        self.world.ended["run end hook"] += 1


Scenario = Callable[[World], Any]


def _calls(*names: str) -> list[Any]:
    return [call(name, {"n": index}, call_id=f"c{index}") for index, name in enumerate(names)]


def _agent(world: World, tools: list[Any], *turns: list[Any], **fields: Any) -> Agent[Any, Any]:
    return Agent("swept", model=ScriptedModel([*turns, say("done")]), tools=tools, **fields)


async def plain(world: World) -> Any:
    """Two turns of three calls."""
    more = [call("work", {"n": 9}, call_id="d0")]
    agent = _agent(world, [world.body("work")], _calls("work", "work", "work"), more)
    return await Runner.run(agent, "go", run_config=world.config())


async def capped(world: World) -> Any:
    """Six calls, two slots, and a capacity and a rate shared with others."""
    rate = Rate(3, 0.05)
    tools = [world.body("work", capacity=[world.capacity, rate])]
    return await Runner.run(
        _agent(world, tools, _calls(*["work"] * 6)), "go", run_config=world.config(max_function_tool_concurrency=2)
    )


async def serial(world: World) -> Any:
    """A serial group, an exclusive call, and free ones."""
    tools = [world.body("line", serial="one"), world.body("alone", exclusive=True), world.body("free")]
    agent = _agent(world, tools, _calls("line", "free", "line", "alone", "line", "free"))
    return await Runner.run(agent, "go", run_config=world.config())


async def timeouts(world: World) -> Any:
    """A call that times out beside one that doesn't."""
    tools = [world.body("slow", 60, timeout=0.03), world.body("work")]
    return await Runner.run(_agent(world, tools, _calls("slow", "work")), "go", run_config=world.config())


async def guardrails(world: World) -> Any:
    """Guardrails that wait, on both sides of the body, one of them refusing."""

    @tool_input_guardrail
    async def before(data: Any) -> Any:
        await anyio.sleep(0.01)
        return RejectContent("no") if data.arguments["n"] == 1 else Allow()

    @tool_output_guardrail
    async def after(data: Any) -> Any:
        await anyio.sleep(0.01)
        return Allow()

    tools = [world.body("work", tool_input_guardrails=[before], tool_output_guardrails=[after])]
    agent = _agent(world, tools, _calls("work", "work", "work"))
    return await Runner.run(agent, "go", run_config=world.config())


async def hooks(world: World) -> Any:
    """Hooks that wait, around two bodies."""
    agent = _agent(world, [world.body("work")], _calls("work", "work"))
    return await Runner.run(agent, "go", hooks=PairedHooks(world), run_config=world.config())


async def sibling_failure(world: World) -> Any:
    """A failure under policy "raise", siblings that clean up, hooks, a guardrail that is pending."""
    world.fails = True

    @tool(failure_error_function=None)
    async def fails() -> str:
        await anyio.sleep(0.01)
        raise ValueError("broken")

    @tool
    async def tidy(ctx: ToolContext[Any]) -> str:
        world.begun["tidy"] += 1
        try:
            await anyio.sleep(60)
        finally:
            with ctx.cleanup():
                await anyio.sleep(0.01)
                world.ended["tidy"] += 1
        return "never"

    agent = _agent(world, [fails, tidy], [call("tidy", call_id="c0"), call("fails", call_id="c1"), *_calls()])
    return await Runner.run(agent, "go", hooks=PairedHooks(world), run_config=world.config())


async def nested(world: World) -> Any:
    """Two agent tools whose runs call tools of their own, under caps of one."""
    tools = [world.body("deep")]
    inner = Agent("inner", model=ScriptedModel([call("deep", call_id="d0"), say("a")] * 2), tools=tools).as_tool()
    asks = [call("inner", {"input": "go"}, call_id=f"c{index}") for index in range(2)]
    agent = _agent(world, [inner], asks)
    return await Runner.run(agent, "go", run_config=world.config(max_function_tool_concurrency=1))


async def receipts(world: World) -> Any:
    """Equal calls of an idempotent tool: one leads, the others follow."""
    tools = [world.body("work", idempotent=True)]
    equal = [call("work", {"n": 1}, call_id=f"c{index}") for index in range(4)]
    return await Runner.run(
        _agent(world, tools, equal, [call("work", {"n": 1}, call_id="d0")]), "go", run_config=world.config()
    )


async def cleanup(world: World) -> Any:
    """Bodies that clean up inside `ctx.cleanup()`, two slots."""

    @tool
    async def tidy(ctx: ToolContext[Any]) -> str:
        world.begun["tidy"] += 1
        try:
            await anyio.sleep(0.02)
        finally:
            with ctx.cleanup():
                await anyio.sleep(0.01)
                world.ended["tidy"] += 1
        return "tidied"

    calls = [call("tidy", call_id=f"c{index}") for index in range(3)]
    return await Runner.run(
        _agent(world, [tidy], calls), "go", run_config=world.config(max_function_tool_concurrency=2)
    )


async def resources(world: World) -> Any:
    """Two resources, shared by three calls."""
    one, two = (lambda: world.open("one")), (lambda: world.open("two"))

    @tool
    async def uses(ctx: ToolContext[Any]) -> str:
        await ctx.resource(one)
        await anyio.sleep(0.01)
        return await ctx.resource(two)

    calls = [call("uses", call_id=f"c{index}") for index in range(3)]
    return await Runner.run(_agent(world, [uses], calls), "go", run_config=world.config())


async def streamed(world: World) -> Any:
    """A consumer that reads everything through a small buffer."""
    agent = _agent(world, [world.body("work")], [say("let me see"), *_calls("work", "work", "work")])
    config = attrs.evolve(world.config(), stream_buffer=3)
    async with Runner.run_streamed(agent, "go", hooks=PairedHooks(world), run_config=config) as stream:
        async for _ in stream:
            await anyio.lowlevel.checkpoint()
    return stream.result


async def cancel_call(world: World) -> Any:
    """One call cancels another, which cleans up and whose cancellation is reported."""

    @tool
    async def stops(ctx: ToolContext[Any]) -> str:
        await anyio.sleep(0.01)
        ctx.cancel_call("c0", "enough")
        return "stopped it"

    agent = _agent(world, [world.body("slow", 60), stops], [*_calls("slow"), call("stops", call_id="c1")])
    return await Runner.run(agent, "go", hooks=PairedHooks(world), run_config=world.config())


async def run_timeout(world: World) -> Any:
    """A run that ends at its own deadline."""
    world.fails = True
    agent = _agent(world, [world.body("slow", 60)], _calls("slow", "slow"))
    config = attrs.evolve(world.config(max_function_tool_concurrency=1), timeout=0.05)
    return await Runner.run(agent, "go", hooks=PairedHooks(world), run_config=config)


SCENARIOS: list[Scenario] = [
    plain,
    capped,
    serial,
    timeouts,
    guardrails,
    hooks,
    sibling_failure,
    nested,
    receipts,
    cleanup,
    resources,
    streamed,
    cancel_call,
    run_timeout,
]


def check(seen: Stepped, world: World, kind: Kind) -> None:
    """Assert what must hold whenever the cancellation came."""
    where = f"cancelled at step {seen.cancelled_at} of {seen.steps}"
    assert seen.tasks_left == [], where
    assert world.begun == world.ended - Counter({"run end hook": world.ended["run end hook"]}), where
    assert world.ended["run end hook"] <= 1, where
    assert world.capacity.statistics().tokens_in_use == 0, where
    assert seen.cancelling == int(kind == "native" and seen.cancelled), f"{where}: cancelling() is {seen.cancelling}"
    assert not seen.cancelled or seen.cancelled_at is not None, "cancelled although nobody asked for it"
    if not seen.cancelled:
        assert (seen.error is not None) == world.fails, f"{where}: {seen.error!r}"
    check_log(seen, world.watch.records, where)
    if seen.cancelled:
        late = [record for record in world.watch.records[seen.mark :] if isinstance(record, r.BatchEnded)]
        assert late == [], f"{where}: accepted after the cancellation"


def check_log(seen: Stepped, records: list[Any], where: str) -> None:
    """Assert that each started call settles once, and that each run that began has ended, the outer one last."""
    started = Counter((one.path, one.call_id, one.attempt) for one in records if isinstance(one, r.CallStarted))
    settled = Counter((one.path, one.call_id, one.attempt) for one in records if isinstance(one, r.CallSettled))
    assert set(settled.values()) <= {1}, where
    assert set(started.values()) <= {1}, where
    assert set(started) <= set(settled), f"{where}: no outcome for {set(started) - set(settled)}"
    begun = Counter(one.path for one in records if isinstance(one, r.RunStarted))
    ended = Counter(one.path for one in records if isinstance(one, r.RunEnded))
    # A run that ends while its journal is being opened has begun nothing.
    assert begun == ended or len(records) == ended[()] == 1, where
    if not records:
        return
    last = records[-1]
    assert isinstance(last, r.RunEnded), f"{where}: the last record is {last!r}"
    assert last.path == (), where
    if not seen.cancelled:
        assert last.status == ("failed" if seen.error is not None else "completed"), where
    elif last.status != "cancelled":
        # The run was decided when the cancellation came: what was left was to wind up, or its caller's to hear of it.
        assert {type(one) for one in records[seen.mark :]} <= {r.RunEnded, r.CleanupCut, r.CancelRequested}, where


@pytest.mark.slow
@pytest.mark.scenario("PC-01", "PC-03")
@pytest.mark.parametrize(("backend", "kind"), COMBINATIONS)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_run_cancelled_at_any_step_joins_and_leaves_a_whole_log(backend: str, kind: Kind, scenario: Scenario) -> None:
    """The sweep cancels at one step after another, until the scenario ends before its step comes."""
    cancelled = 0
    for seed in (None, 1):
        at = 0
        while True:
            world = World()
            seen = run_once(
                backend,
                partial(scenario, world),
                at=at,
                kind=kind,
                seed=seed,
                mark=world.watch.records.__len__,
            )
            check(seen, world, kind)
            cancelled += seen.cancelled
            if seen.cancelled_at is None:
                break
            at += 1
    assert cancelled > 5
