"""The rows Wp1 to Wp8: what people use. Each option's cost against the same run without it, in one process.

The other workloads measure a tool without options and a run without hooks, journal or stream. Nobody has that run, so
these rows say what an option adds: a tool with a timeout, guardrails and hooks that wait, a body that raises, a sync
body, a journal in a file, a streamed run, a run that was resumed with a verdict.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import anyio
import anyio.to_thread
import attrs

from agentloop import Agent, RunHooks, Runner, tool
from agentloop.guardrails import Allow, tool_input_guardrail, tool_output_guardrail
from agentloop.journal import FileJournal
from benchmarks.bare import Limit
from benchmarks.measure import Effort, paired
from benchmarks.ours import NO_CAPS, Ours, ScriptModel
from benchmarks.report import Row, paired_row
from benchmarks.script import Script, conversation

CALLS = 100
TURNS, EACH = 3, 2
THREADS = 40
_IN_MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None


class WaitingHooks(RunHooks):
    """A hook at the start and one at the end of each tool call, both of which wait."""

    def __init__(self, limit: Limit) -> None:
        self._sleep = limit.sleep

    async def on_tool_start(self, ctx: Any, agent: Any, tool: Any) -> None:
        """Wait."""
        await self._sleep(0)

    async def on_tool_end(self, ctx: Any, agent: Any, tool: Any, outcome: Any) -> None:
        """Wait."""
        await self._sleep(0)


def _with(script: Script, body: Callable[..., Any] | None = None, **options: Any) -> Ours:
    """Return *script* as an agent whose tool has *options*, and *body* in place of the script's."""
    work = tool(body or script.body, name="work", description="Does the work.", **options)
    return Ours(Agent("benchmark", model=ScriptModel(script), tools=[work]))


def _batch(limit: Limit, effort: Effort) -> Script:
    return conversation(limit.sleep, turns=1, calls=effort.of(CALLS))


def _turns(limit: Limit) -> Script:
    return conversation(limit.sleep, turns=TURNS, calls=EACH)


async def timeout(limit: Limit, effort: Effort) -> Row:
    """Calls of a tool with a timeout that none of them reaches."""
    script = _batch(limit, effort)
    found = await paired(_with(script, timeout=30.0).run, _with(script).run, effort.pairs, effort.of(3))
    return paired_row("Wp1 tool with a timeout, against the bare tool", limit.name, found)


async def guardrails(limit: Limit, effort: Effort) -> Row:
    """Calls of a tool with an input and an output guardrail, each of which waits once and lets everything pass."""
    script = _batch(limit, effort)

    @tool_input_guardrail
    async def judge_input(data: Any) -> Allow:
        await limit.sleep(0)
        return Allow()

    @tool_output_guardrail
    async def judge_output(data: Any) -> Allow:
        await limit.sleep(0)
        return Allow()

    guarded = _with(script, tool_input_guardrails=[judge_input], tool_output_guardrails=[judge_output])
    found = await paired(guarded.run, _with(script).run, effort.pairs, effort.of(3))
    return paired_row("Wp2 tool with two guardrails that wait", limit.name, found)


async def hooks(limit: Limit, effort: Effort) -> Row:
    """Calls with a start hook and an end hook, each of which waits once."""
    script = _batch(limit, effort)
    side = _with(script)
    hooked = attrs.evolve(side, hooks=WaitingHooks(limit))
    found = await paired(hooked.run, side.run, effort.pairs, effort.of(3))
    return paired_row("Wp3 start and end hooks that wait", limit.name, found)


@contextmanager
def _without_log() -> Iterator[None]:
    """Write no line of the package's log: each failure has one, which an application's own handlers pay for."""
    logger = logging.getLogger("agentloop.tools")
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = False


async def failures(limit: Limit, effort: Effort) -> Row:
    """Calls whose body raises, which the model is told."""
    script = _batch(limit, effort)

    async def work(x: int) -> str:
        await limit.sleep(0)
        raise LookupError("no such thing")

    with _without_log():
        found = await paired(_with(script, work).run, _with(script).run, effort.pairs, effort.of(3))
    return paired_row("Wp4 body that raises, the model is told", limit.name, found)


async def threads(limit: Limit, effort: Effort) -> Row:
    """Calls of a sync body, against the same body in anyio's worker threads."""
    script = _batch(limit, effort)
    calls, limiter = effort.of(CALLS), anyio.CapacityLimiter(THREADS)

    def work(x: int) -> str:
        return "ok"

    async def one() -> None:
        await anyio.to_thread.run_sync(work, 1, limiter=limiter)

    async def bare() -> None:
        await limit.together([one] * calls)

    config = attrs.evolve(NO_CAPS, tool_execution=attrs.evolve(NO_CAPS.tool_execution, max_threads=THREADS))
    side = attrs.evolve(_with(script, work), config=config)
    found = await paired(side.run, bare, effort.pairs)
    return paired_row("Wp5 sync body, against anyio.to_thread.run_sync", limit.name, found, note="CPU of all threads")


@contextmanager
def _counted_syncs() -> Iterator[list[int]]:
    """Have syncs of files do nothing but count; yield the counter, a list of one number."""
    count = [0]

    def fsync(descriptor: int) -> None:
        count[0] += 1

    with mock.patch.object(os, "fsync", fsync), mock.patch.object(os, "fdatasync", fsync, create=True):
        yield count


async def file_journal(limit: Limit, effort: Effort) -> list[Row]:
    """Three turns of two calls with a `FileJournal`, against no journal; syncs take no time here and are counted.

    The files are in memory where the system has such a folder: what it takes to make one on a disk depends on what
    other programs have deleted there.
    """
    side = _with(_turns(limit))
    with TemporaryDirectory(dir=_IN_MEMORY) as folder, _counted_syncs() as count:
        files = (Path(folder, f"{number}.journal") for number in range(1_000_000))

        async def journaled() -> None:
            async with FileJournal(next(files)) as journal:
                await side.run(journal)

        await journaled()
        before = count[0]
        await journaled()
        syncs = count[0] - before
        found = await paired(journaled, side.run, effort.pairs, effort.of(5))
    return [
        paired_row("Wp6 FileJournal, against no journal", limit.name, found, note="without the time in fsync"),
        Row("Wp6 syncs of three turns of two calls", limit.name, syncs),
    ]


async def stream(limit: Limit, effort: Effort) -> Row:
    """A streamed run that is read to its end, against the plain one."""
    side = _with(_turns(limit))
    found = await paired(side.read, side.run, effort.pairs, effort.of(10))
    return paired_row("Wp7 streamed run, against plain", limit.name, found)


async def verdict(limit: Limit, effort: Effort) -> Row:
    """A run that pauses for an approval and is resumed with it, against the same run without a pause."""
    script = conversation(limit.sleep, turns=1, calls=1)
    free, asking = _with(script), _with(script, needs_approval=True)

    async def approved() -> None:
        state = (await asking.run()).to_state()
        state.approve(state.interruptions[0])
        await Runner.run(asking.agent, state, max_turns=None, run_config=asking.config)

    found = await paired(approved, free.run, effort.pairs, effort.of(10))
    return paired_row("Wp8 resumed with a verdict, against no pause", limit.name, found)


PARTS: tuple[Callable[[Limit, Effort], Awaitable[Row | list[Row]]], ...] = (
    *(timeout, guardrails, hooks, failures, threads, file_journal, stream, verdict),
)


async def wp(limit: Limit, effort: Effort) -> list[Row]:
    """What each option that people use adds to a run."""
    rows: list[Row] = []
    for part in PARTS:
        found = await part(limit, effort)
        rows += found if isinstance(found, list) else [found]
    return rows
