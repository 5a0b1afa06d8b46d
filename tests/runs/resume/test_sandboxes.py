"""A run's sandbox: made once, named in the log, kept while the run can be resumed, removed once when it is over."""

import logging
from typing import Any

import anyio
import anyio.lowlevel
import attrs
import pytest
from kit.watching import Watch
from sweeps.stepping import COMBINATIONS, Kind, run_once

from agentloop import Agent, RunConfig, RunContext, Runner, RunState, ToolContext, ToolExecution, UserError, tool
from agentloop import records as r
from agentloop.exceptions import (
    JournalError,
    ModelTransportError,
    RunTimeoutError,
    StateError,
    ToolCallError,
    UserTypeError,
)
from agentloop.executors import Sandbox, SandboxError, SandboxProvider
from agentloop.journal import MemoryJournal
from agentloop.testing import ScriptedModel, call, fail, normal, replay, say

pytestmark = pytest.mark.scenario("EX-05")


@attrs.define(eq=False)
class Box:
    """A sandbox in memory."""

    name: str
    boxes: "Boxes"
    isolation: str = "none"
    shell: Any = "a shell"
    editor: Any = "an editor"

    async def release(self) -> None:
        await self.boxes.end(self, "release")

    async def remove(self) -> None:
        await self.boxes.end(self, "remove")
        self.boxes.there.discard(self.name)


@attrs.define
class Boxes:
    """Makes them, and notes what is done. *errors* are raised by the steps of their names."""

    done: list[str] = attrs.field(factory=list)
    there: set[str] = attrs.field(factory=set)
    held: set[str] = attrs.field(factory=set)
    errors: dict[str, BaseException] = attrs.field(factory=dict)
    slow: frozenset[str] = frozenset()

    async def create(self, run_id: str) -> Box:
        await self._step("create")
        name = f"box-{self.done.count('create')}"
        self.there.add(name)
        return self._hold(name)

    async def find(self, name: str, run_id: str) -> Box:
        await self._step("find")
        if name not in self.there or name in self.held:
            raise StateError(f"sandbox {name} is {'in use' if name in self.held else 'gone'}")
        return self._hold(name)

    def _hold(self, name: str) -> Box:
        self.held.add(name)
        return Box(name, self)

    async def end(self, box: Box, what: str) -> None:
        self.held.remove(box.name)
        await self._step(what)

    async def _step(self, what: str) -> None:
        self.done.append(what)
        if what in self.errors:
            raise self.errors.pop(what)
        if what in self.slow:
            await anyio.sleep(60)
        await anyio.lowlevel.checkpoint()


USED: list[str] = []


@tool
async def look(ctx: ToolContext[Any]) -> str:
    """Return the name of the run's sandbox."""
    USED.append(ctx.sandbox.name)
    return ctx.sandbox.name


@tool(needs_approval=True)
async def ask(ctx: ToolContext[Any]) -> str:
    """Return the name of the run's sandbox, if that is approved."""
    return ctx.sandbox.name


@tool(failure_error_function=None)
async def break_down() -> str:
    """Fail for good."""
    raise ValueError("no")


def make_agent(*script: Any) -> Agent[Any, Any]:
    """Return an agent with the tools above."""
    return Agent("a", model=ScriptedModel(list(script)), tools=[look, ask, break_down])


def names_in(records: Any) -> list[str]:
    """Return the names of the sandboxes in a log."""
    return [record.name for record in records if isinstance(record, r.SandboxOpened)]


async def test_a_run_that_completes(run_mode: Any) -> None:
    """Its sandbox is there before anything is asked, for its bodies and callbacks, and is removed after its end."""
    boxes, journal = Boxes(), MemoryJournal()
    assert isinstance(boxes, SandboxProvider)
    assert isinstance(Box("x", boxes), Sandbox)

    def instruct(ctx: RunContext[Any], agent: Any) -> str:
        return f"Work in {ctx.sandbox.name}."

    agent = make_agent(call("look"), say("done")).clone(instructions=instruct)
    result = await run_mode(agent, "go", run_config=RunConfig(sandbox=boxes), journal=journal)
    assert result.calls[0].outcome.output == "box-1"
    assert [type(record) for record in result.records[:2]] == [r.RunStarted, r.SandboxOpened]
    assert names_in(result.records) == ["box-1"]
    assert (boxes.done, boxes.there, boxes.held) == (["create", "remove"], set(), set())
    again = await anyio.to_thread.run_sync(lambda: replay(journal, agent))
    assert normal(again.records) == normal(result.records)
    assert boxes.done == ["create", "remove"], "a replay needs none"


async def test_the_storage_goes_after_the_end_is_durable(run_mode: Any) -> None:
    """A journal that can be resumed has its storage: at each append, and when the last one fails."""
    seen: list[tuple[str, bool]] = []

    class Watched(MemoryJournal):
        fails = False

        async def append(self, records: Any) -> None:
            seen.extend((text, bool(boxes.there)) for one in records for text in [bytes(one).decode()])
            if self.fails and any(b'"run_ended"' in bytes(one) for one in records):
                raise OSError("the disk is full")
            await super().append(records)

    boxes = Boxes()
    config = RunConfig(sandbox=boxes)
    await run_mode(make_agent(say("done")), "go", run_config=config, journal=Watched())
    assert [there for text, there in seen if "run_ended" in text] == [True]
    boxes, broken = Boxes(), Watched()
    broken.fails = True
    with pytest.raises(JournalError, match="the disk is full"):
        await run_mode(make_agent(say("done")), "go", run_config=RunConfig(sandbox=boxes), journal=broken)
    assert boxes.done == ["create", "release"]


async def _interrupt(agent: Agent[Any, Any], config: RunConfig, journal: Any) -> None:
    result = await Runner.run(agent, "go", run_config=config, journal=journal)
    assert result.status == "interrupted"


async def _cancel(agent: Agent[Any, Any], config: RunConfig, journal: Any) -> None:
    async with Runner.run_streamed(agent, "go", run_config=config, journal=journal) as stream:
        async for event in stream:
            if type(event).__name__ == "CallStarted":
                stream.cancel()


async def _stop(agent: Agent[Any, Any], config: RunConfig, journal: Any) -> None:
    assert (await Runner.run(agent, "go", run_config=config, journal=journal)).status == "stopped"


async def _time_out(agent: Agent[Any, Any], config: RunConfig, journal: Any) -> None:
    with pytest.raises(RunTimeoutError):
        await Runner.run(agent, "go", run_config=config, journal=journal)


async def _lose_model(agent: Agent[Any, Any], config: RunConfig, journal: Any) -> None:
    with pytest.raises(ModelTransportError):
        await Runner.run(agent, "go", run_config=config, journal=journal)


@tool
async def wait(ctx: ToolContext[Any]) -> str:
    """Take long the first time."""
    if len(USED) < 1:
        USED.append(ctx.sandbox.name)
        await anyio.sleep(30)
    return ctx.sandbox.name


@pytest.mark.parametrize(
    ("end", "script", "options"),
    [
        (_interrupt, [call("ask"), say("done")], {}),
        (_cancel, [call("wait"), say("done")], {}),
        (_stop, [call("look"), say("done")], {"stop_when": lambda ctx: True}),
        (_time_out, [call("wait"), say("done")], {"timeout": 5}),
        (_lose_model, [fail(ModelTransportError("gone", status=400)), say("done")], {}),
    ],
)
@pytest.mark.slow
async def test_kept_over_every_resumable_end(end: Any, script: list[Any], options: dict[str, Any]) -> None:
    """The next segment finds the same sandbox by the name in the log, and removes it once the run is over."""
    USED.clear()
    boxes, journal = Boxes(), MemoryJournal()
    config = RunConfig(sandbox=boxes, **options)
    agent = Agent("a", model=ScriptedModel(script), tools=[look, ask, wait])
    await end(agent, config, journal)
    assert (boxes.done, boxes.there, boxes.held) == (["create", "release"], {"box-1"}, set())
    state = await RunState.from_journal(agent, journal)
    for request in state.interruptions:
        state.approve(request)
    result = await Runner.run(agent, state, run_config=config, journal=journal)
    assert result.status == "completed"
    assert names_in(result.records) == ["box-1"]
    assert (boxes.done, boxes.there, boxes.held) == (["create", "release", "find", "remove"], set(), set())
    again = await anyio.to_thread.run_sync(
        lambda: replay(journal, agent, run_config=attrs.evolve(config, sandbox=None))
    )
    assert names_in(again.records) == ["box-1"]
    assert len(boxes.done) == 4
    state = await RunState.from_journal(agent, journal)
    with pytest.raises(StateError, match="has completed"):
        await Runner.run(agent, state, run_config=config)


async def test_removed_once_when_the_run_has_failed_for_good(run_mode: Any) -> None:
    """A failed call ends the run for good."""
    boxes = Boxes()
    with pytest.raises(ToolCallError):
        await run_mode(make_agent(call("break_down")), "go", run_config=RunConfig(sandbox=boxes))
    assert boxes.done == ["create", "remove"]


async def _paused(boxes: Boxes, journal: Any = None) -> tuple[Agent[Any, Any], RunState]:
    agent = make_agent(call("ask"), say("done"))
    result = await Runner.run(agent, "go", run_config=RunConfig(sandbox=boxes), journal=journal)
    state = result.to_state()
    state.approve(result.interruptions[0])
    return agent, state


@pytest.mark.parametrize("why", ["is gone", "is in use", "goes on with a RunConfig.sandbox alone"])
async def test_a_sandbox_that_is_not_to_be_had_starts_nothing(why: str) -> None:
    """`StateError` before any body, record or write; the run can be resumed later if the sandbox comes back."""
    boxes, journal, watch = Boxes(), MemoryJournal(), Watch()
    agent, state = await _paused(boxes, journal)
    before = await journal.read()
    if why == "is gone":
        boxes.there.clear()
    elif why == "is in use":
        boxes.held.add("box-1")
    given = None if "RunConfig" in why else boxes
    with pytest.raises(StateError, match=why):
        await Runner.run(agent, state, run_config=RunConfig(sandbox=given, instruments=(watch,)), journal=journal)
    assert watch.records == []
    assert await journal.read() == before
    boxes.there, boxes.held = {"box-1"}, set()
    result = await Runner.run(agent, state, run_config=RunConfig(sandbox=boxes), journal=journal)
    assert result.final_output == "done"
    assert boxes.done[-2:] == ["find", "remove"]


async def test_a_segment_that_never_began_removes_nothing() -> None:
    """After a crash the log has no end; a journal that can't be opened must not look like one."""
    boxes = Boxes()
    agent, state = await _paused(boxes)
    crashed = RunState(agent, [record for record in state.records if not isinstance(record, r.RunEnded)])
    other = MemoryJournal()
    await Runner.run(make_agent(say("another run")), "go", journal=other)
    watch = Watch()
    with pytest.raises(JournalError, match="another run's"):
        await Runner.run(agent, crashed, run_config=RunConfig(sandbox=boxes, instruments=(watch,)), journal=other)
    assert watch.records == []
    assert boxes.done == ["create", "release", "find", "release"]


async def test_a_sandbox_that_could_not_be_made() -> None:
    """The run ends with the provider's error and can be resumed, which makes one; the failed segment replays."""
    boxes = Boxes(errors={"create": SandboxError("the disk is full")})
    agent, journal = make_agent(call("look"), say("done")), MemoryJournal()
    config = RunConfig(sandbox=boxes)
    with pytest.raises(SandboxError, match="the disk is full"):
        await Runner.run(agent, "go", run_config=config, journal=journal)
    again = await anyio.to_thread.run_sync(lambda: replay(journal, agent, run_config=config))
    assert repr(again.error) == "SandboxError('the disk is full')"
    result = await Runner.resume(agent, journal, run_config=config)
    assert result.calls[0].outcome.output == "box-2"
    assert boxes.done == ["create", "create", "remove"]
    again = await anyio.to_thread.run_sync(lambda: replay(journal, agent, run_config=config))
    assert names_in(again.records) == ["box-2"]


async def test_a_sandbox_from_the_second_segment_on() -> None:
    """A configuration that has a provider later gives the run a sandbox then."""
    agent, boxes = make_agent(call("ask"), say("done")), Boxes()
    journal = MemoryJournal()
    result = await Runner.run(agent, "go", journal=journal)
    state = result.to_state()
    state.approve(result.interruptions[0])
    result = await Runner.run(agent, state, run_config=RunConfig(sandbox=boxes), journal=journal)
    assert result.calls[0].outcome.output == "box-1"
    assert boxes.done == ["create", "remove"]
    again = await anyio.to_thread.run_sync(lambda: replay(journal, agent))
    assert normal(again.records) == normal(result.records)


async def test_nested_runs_share_the_sandbox(run_mode: Any) -> None:
    """One sandbox for the tree; a nested configuration makes no other one."""
    boxes = Boxes()
    inner = make_agent(call("look"), say("inner"))
    nested = inner.as_tool("inner", "An agent.", run_config=RunConfig(sandbox=Boxes()))
    USED.clear()
    agent = Agent("outer", model=ScriptedModel([call("inner", {"input": "x"}), say("done")]), tools=[nested])
    result = await run_mode(agent, "go", run_config=RunConfig(sandbox=boxes))
    assert result.final_output == "done"
    assert USED == ["box-1"]
    assert boxes.done == ["create", "remove"]


@pytest.mark.slow
async def test_a_removal_that_fails_or_takes_too_long(caplog: pytest.LogCaptureFixture) -> None:
    """The run has ended already: the failure is logged, and the storage waits for a prune. A fatal error is raised."""
    caplog.set_level(logging.WARNING, "agentloop")
    boxes = Boxes(errors={"remove": OSError("busy")})
    result = await Runner.run(make_agent(say("done")), "go", run_config=RunConfig(sandbox=boxes))
    assert result.final_output == "done"
    assert "sandbox box-1 could not be removed: OSError(" in caplog.text
    boxes = Boxes(errors={"remove": KeyboardInterrupt()})
    with pytest.raises(KeyboardInterrupt):
        await Runner.run(make_agent(say("done")), "go", run_config=RunConfig(sandbox=boxes))
    boxes = Boxes(slow=frozenset({"remove"}))
    config = RunConfig(sandbox=boxes, tool_execution=ToolExecution(cleanup_grace=1))
    with pytest.raises(ToolCallError), anyio.fail_after(30):
        await Runner.run(make_agent(call("break_down")), "go", run_config=config)
    assert "the removal of sandbox box-1 was cut at the cleanup deadline" in caplog.text
    caplog.clear()
    boxes = Boxes(errors={"release": OSError("busy")})
    await _paused(boxes)
    assert "sandbox box-1 could not be released: OSError(" in caplog.text


@pytest.mark.parametrize(("backend", "kind"), COMBINATIONS)
def test_cancelled_at_every_step(backend: Any, kind: Kind) -> None:
    """The sandbox is given back at each end, and kept exactly if the run can be resumed."""

    def once(at: int | None) -> tuple[Any, Boxes, Watch]:
        boxes, watch = Boxes(), Watch()
        agent = make_agent(call("look"), say("done"))

        async def program() -> Any:
            config = RunConfig(sandbox=boxes, instruments=(watch,))
            return await Runner.run(agent, "go", run_config=config, journal=MemoryJournal())

        return run_once(backend, program, at=at, kind=kind), boxes, watch

    whole, *_ = once(None)
    assert whole.steps > 6
    kept = 0
    for at in range(whole.steps):
        _, boxes, watch = once(at)
        assert boxes.held == set(), at
        named = names_in(watch.records)
        assert len(named) <= 1, at
        if not watch.records:
            assert boxes.done == [], at
            continue
        end = watch.records[-1]
        assert isinstance(end, r.RunEnded), at
        if named:
            assert ("box-1" in boxes.there) == end.resumable, at
            kept += end.resumable
        assert boxes.done.count("remove") <= 1, at
    assert kept


def test_misuse() -> None:
    """A context without a sandbox says how to get one, and a provider has its methods."""
    with pytest.raises(UserError, match=r"give RunConfig\.sandbox"):
        _ = RunContext(context=None).sandbox
    with pytest.raises(UserTypeError, match=r"RunConfig\.sandbox: expected a SandboxProvider"):
        RunConfig(sandbox=Box("x", Boxes()))  # type: ignore[arg-type]
