"""No request is logged that a cancelled run never makes: whatever runs between two checkpoints is followed by one."""

from typing import Any

import anyio
import anyio.lowlevel
import pytest
from kit.agents import Run
from kit.watching import Watch

from agentloop import Agent, AgentHooks, RunConfig, RunHooks
from agentloop import records as r
from agentloop.config import ModelInputData
from agentloop.journal import MemoryJournal
from agentloop.testing import ScriptedModel, say


class Scoped:
    """A run in a scope that one of its own callbacks cancels."""

    def __init__(self) -> None:
        self.scope = anyio.CancelScope()
        self.watch = Watch()

    async def run(self, run_mode: Run, agent: Agent[Any, Any], **options: Any) -> None:
        """Run *agent*; the scope has then ended the run, and no request was logged."""
        config = options.pop("run_config", RunConfig(instruments=(self.watch,)))
        with self.scope:
            await run_mode(agent, "go", run_config=config, **options)
        assert self.scope.cancelled_caught


@pytest.mark.parametrize("record", [r.RunStarted, r.TurnStarted])
async def test_instrument_that_cancels_the_caller_at_a_record(run_mode: Run, record: type) -> None:
    """The records before the request are appended in one step, in which an instrument may cancel the run."""
    scoped, model = Scoped(), ScriptedModel([say("done")])

    class Canceller(Watch):
        def on_record(self, found: Any) -> None:
            super().on_record(found)
            if isinstance(found, record):
                scoped.scope.cancel()

    scoped.watch = Canceller()
    await scoped.run(run_mode, Agent("a", model=model))
    assert not scoped.watch.of(r.ModelRequested)
    assert scoped.watch.end == "cancelled"
    assert not model.requests


async def test_journal_in_whose_write_the_caller_cancels(run_mode: Run) -> None:
    """The run waits until its turn is durable, and the caller cancels it meanwhile."""
    scoped, model = Scoped(), ScriptedModel([say("done")])

    class Slow(MemoryJournal):
        async def append(self, lines: Any) -> None:
            await super().append(lines)
            if any(b"turn_started" in line for line in lines):
                scoped.scope.cancel()
            await anyio.lowlevel.checkpoint()

    async with Slow() as journal:
        await scoped.run(run_mode, Agent("a", model=model), journal=journal)
    assert not scoped.watch.of(r.ModelRequested)
    assert not model.requests


@pytest.mark.parametrize("of", ["run", "agent"])
async def test_hook_that_cancels_the_caller(run_mode: Run, of: str) -> None:
    """`on_llm_start` is called just before the request."""
    scoped, model = Scoped(), ScriptedModel([say("done")])

    async def on_llm_start(*_: Any) -> None:
        scoped.scope.cancel()

    hooks = RunHooks()
    hooks.on_llm_start = on_llm_start  # type: ignore[method-assign]
    if of == "run":
        await scoped.run(run_mode, Agent("a", model=model), hooks=hooks)
    else:
        own = AgentHooks()
        own.on_llm_start = on_llm_start  # type: ignore[method-assign]
        await scoped.run(run_mode, Agent("a", model=model, hooks=own))
    assert not scoped.watch.of(r.ModelRequested)
    assert not model.requests


async def test_filter_that_cancels_the_caller(run_mode: Run) -> None:
    """The input filter is called after the turn has begun."""
    scoped, model = Scoped(), ScriptedModel([say("done")])

    def chosen(data: ModelInputData) -> ModelInputData:
        scoped.scope.cancel()
        return data

    config = RunConfig(instruments=(scoped.watch,), call_model_input_filter=chosen)
    await scoped.run(run_mode, Agent("a", model=model), run_config=config)
    assert not scoped.watch.of(r.ModelRequested)
    assert not model.requests
