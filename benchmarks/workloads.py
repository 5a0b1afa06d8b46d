"""The workloads W1 to W9, W4c, Wo and Wp: each gives its rows for one backend, inside a running loop; W6 needs none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import attrs

from agentloop import Capacity, RunState
from agentloop._common.values import field_names
from benchmarks.bare import Ended, Job, Limit
from benchmarks.exported import SpanCounter, exporting
from benchmarks.measure import Effort, collector, paired, spread, traced
from benchmarks.options import wp
from benchmarks.ours import ours
from benchmarks.report import Row, paired_row
from benchmarks.script import Script, conversation

KIB = 1024
SLEEPERS = 100
CLEANUP = 0.05
IMPORT_CPU = "import time; begin = time.process_time(); import {}; print((time.process_time() - begin) * 1000)"
IMPORT_COUNT = "import sys, asyncio; before = len(sys.modules); import agentloop; print(len(sys.modules) - before)"

Workload = Callable[[Limit, Effort], Awaitable[list[Row]]]

# ------------------------------------------------------------------------------------------------ CPU of whole runs


async def _against_bare(name: str, limit: Limit, script: Script, pairs: int, times: int, runs: int = 1) -> Row:
    """Measure *runs* runs side by side against the bare limit."""
    side = ours(script)
    await side.check(script)

    async def bare() -> None:
        await limit.run(script)

    if runs == 1:
        found = await paired(side.run, bare, pairs, times)
        return paired_row(name, limit.name, found)
    many = [lambda job=job: limit.together([job] * runs) for job in (side.run, bare)]
    found = await paired(*many, pairs, times, warm_up=(side.run, bare))
    return paired_row(name, limit.name, found, runs, f"{runs} runs")


async def w1(limit: Limit, effort: Effort) -> list[Row]:
    """One turn of text, and the same right after a garbage collection."""
    script = conversation(limit.sleep, turns=0, calls=0)
    warm = await _against_bare("W1 single text turn", limit, script, effort.pairs, effort.of(30))
    few = await _against_bare("W1 single text turn, ten runs a sample", limit, script, effort.pairs, effort.of(10))
    cold = await paired(ours(script).run, lambda: limit.run(script), effort.pairs, warm_up=(None, None))
    return [
        warm,
        few,
        paired_row("W1 single text turn, cold", limit.name, cold, note="one run a sample, after a collection"),
    ]


async def w2(limit: Limit, effort: Effort) -> list[Row]:
    """N calls in one turn, and the memory of each in flight."""

    async def fan_out(name: str, calls: int, pairs: int, times: int) -> Row:
        return await _against_bare(name, limit, conversation(limit.sleep, turns=1, calls=calls), pairs, times)

    return [
        await fan_out("W2 N=1000 calls in one turn", effort.of(1000), effort.few, 1),
        await fan_out("W2 N=10", 10, effort.pairs, effort.of(5)),
        await fan_out("W2 N=1, whole two-turn run", 1, effort.pairs, effort.of(15)),
        await fan_out("W2 N=1, ten runs a sample", 1, effort.pairs, effort.of(10)),
        *await _memory_per_call(limit, effort.of(1000)),
    ]


async def w3(limit: Limit, effort: Effort) -> list[Row]:
    """A long conversation, one call a turn, and what its late turns cost against an early one."""
    script = conversation(limit.sleep, turns=effort.of(200), calls=1)
    rows = [await _against_bare("W3 200 turns of one call, per turn", limit, script, effort.few, 1)]
    for late, turns in ((195, 201), (990, 1000)):
        sizes = effort.of(late, least=20), effort.of(turns, least=26)  # far enough from turn 10
        ratios = [await _growth(limit, *sizes) for _ in range(effort.few)]
        name = f"W3 turn {late} against turn 10"
        rows.append(Row(name, limit.name, median(ratios), spread=spread(ratios)))
    return rows


async def _growth(limit: Limit, late: int, turns: int) -> float:
    """Return the ratio of the median turn around *late* to the one around turn 10, in one run."""
    marks: list[float] = []
    side = ours(conversation(limit.sleep, turns=turns, calls=1), lambda: marks.append(time.process_time()))
    await side.run()

    def around(turn: int) -> float:
        return median(marks[index] - marks[index - 1] for index in range(turn - 5, turn + 6))

    return around(late) / around(10)


async def w4(limit: Limit, effort: Effort) -> list[Row]:
    """Many runs at once, three turns of two calls each: CPU and memory per run, and how both sides scale."""
    script = conversation(limit.sleep, turns=3, calls=2)
    name = "W4 concurrent runs, CPU per run"
    rows = [await _against_bare(name, limit, script, effort.least, 1, effort.runs)]
    side = ours(script)
    few = max(effort.runs // 10, 1)
    for on in (False, True):
        with collector(on):
            many = await paired(
                lambda: limit.together([side.run] * effort.runs),
                lambda: limit.together([side.run] * few),
                effort.least,
                warm_up=(side.run, side.run),
            )
        name = f"W4 all runs against a tenth, collector {'on' if on else 'off'}"
        per_run = few / effort.runs
        rows.append(
            Row(name, limit.name, many.ratio * per_run, note=f"{effort.runs} runs", spread=many.spread * per_run)
        )
    with traced() as memory:
        await limit.together([side.run] * effort.runs)
        used = memory.peak / effort.runs
    with traced() as memory:
        await limit.together([lambda: limit.run(script)] * effort.runs)
        bare = memory.peak / effort.runs
    rows.append(Row("W4 memory per run", limit.name, used / KIB, used, bare, f"{effort.runs} runs, at the peak"))
    return rows


async def w4c(limit: Limit, effort: Effort) -> list[Row]:
    """Runs that share a capacity of ten, against the same runs that share nothing."""
    script = conversation(limit.sleep, turns=1, calls=5)
    free, sharing = ours(script), ours(script, capacity=Capacity(10))
    runs = 2 * effort.runs
    found = await paired(
        lambda: limit.together([sharing.run] * runs),
        lambda: limit.together([free.run] * runs),
        effort.least,
        warm_up=(sharing.run, free.run),
    )
    return [paired_row("W4c runs that share a Capacity(10), against unshared", limit.name, found, runs, f"{runs} runs")]


async def wo(limit: Limit, effort: Effort) -> list[Row]:
    """The same against the usual configuration, with an instrument: one that gets spans, and one that exports them."""
    usual = ours(conversation(limit.sleep, turns=3, calls=2)).as_usual()
    found = await paired(usual.watched_by(SpanCounter()).run, usual.run, effort.pairs, effort.of(10))
    rows = [paired_row("Wo spans for an instrument", limit.name, found)]
    name = "Wo spans exported to OpenTelemetry"
    with exporting() as instrument:
        if instrument is None:
            return [*rows, Row(name, limit.name, None, note="needs the extra test-otel")]
        found = await paired(usual.watched_by(instrument).run, usual.run, effort.pairs, effort.of(10))
    return [*rows, paired_row(name, limit.name, found, note="12 spans and the metrics of a run")]


# ------------------------------------------------------------------------------------------------ memory of a batch


@attrs.define(eq=False)
class Gate:
    """Holds bodies until *size* of them stand before it."""

    size: int
    full: anyio.Event = attrs.field(factory=anyio.Event, init=False)
    opened: anyio.Event = attrs.field(factory=anyio.Event, init=False)
    waiting: int = attrs.field(default=0, init=False)

    async def body(self, x: int) -> str:
        """Wait for the gate to open."""
        self.waiting += 1
        if self.waiting == self.size:
            self.full.set()
        await self.opened.wait()
        return "ok"


async def _memory_per_call(limit: Limit, calls: int) -> list[Row]:
    script = conversation(limit.sleep, turns=1, calls=calls)
    rows = []
    for job in (ours(script).run, lambda: limit.run(script)):
        with traced() as memory:
            await job()
            rows.append(memory.peak / calls)
    ready = Row("W2 memory per call, ready at once", limit.name, rows[0] / KIB, rows[0], rows[1], "at the peak")
    mine = await _blocked(limit, calls, lambda script: ours(script).run)
    bare = await _blocked(limit, calls, lambda script: lambda: limit.run(script))
    return [ready, Row("W2 memory per call, all blocked", limit.name, mine / KIB, mine, bare)]


async def _blocked(limit: Limit, calls: int, job_of: Callable[[Script], Job]) -> float:
    """Return the bytes that each of *calls* bodies takes while all of them are held."""
    gate = Gate(calls)
    job = job_of(conversation(limit.sleep, turns=1, calls=calls, body=gate.body))
    seen = []

    with traced() as memory:

        async def open_when_full() -> None:
            await gate.full.wait()
            seen.append(memory.now / calls)
            gate.opened.set()

        await limit.together([job, open_when_full])
    return seen[0]


# ------------------------------------------------------------------------------------------------ streams


async def w5(limit: Limit, effort: Effort) -> list[Row]:
    """An answer in many deltas, read as a streamed run."""
    deltas = effort.of(2000)
    script = conversation(limit.sleep, turns=0, calls=0, deltas=deltas)
    side = ours(script)
    if (came := await side.read()) != deltas:
        raise RuntimeError(f"{came} of {deltas} text deltas came")
    found = await paired(side.read, lambda: limit.read(script), effort.pairs)
    return [paired_row("W5 per streamed text delta", limit.name, found, deltas)]


# ------------------------------------------------------------------------------------------------ import


def w6(effort: Effort) -> list[Row]:
    """Import the package in processes of their own, in turns with asyncio alone; compiled files are there."""
    with TemporaryDirectory() as compiled:
        _import(IMPORT_CPU.format("agentloop"), compiled)  # leaves them behind
        samples = [
            (_import(IMPORT_CPU.format("agentloop"), compiled), _import(IMPORT_CPU.format("asyncio"), compiled))
            for _ in range(effort.few)
        ]
        modules = _import(IMPORT_COUNT, compiled)
    mine, alone = zip(*samples, strict=True)
    value, note = median(mine), "its own asyncio import included"
    return [
        Row("W6 import, CPU", None, value, value / 1000, median(alone) / 1000, note, spread(mine)),
        Row("W6 modules over asyncio", None, modules),
    ]


def _import(program: str, compiled: str) -> float:
    # Whether the caller's own processes leave compiled files behind decides nothing.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = compiled
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return float(done.stdout)


# ------------------------------------------------------------------------------------------------ cancellation


@attrs.define(eq=False)
class Sleepers:
    """Bodies that sleep until they are cancelled, then clean up for *cleanup* seconds; `done` counts those through."""

    limit: Limit
    cleanup: float
    ready: anyio.Event = attrs.field(factory=anyio.Event, init=False)
    started: int = attrs.field(default=0, init=False)
    done: int = attrs.field(default=0, init=False)

    async def body(self, x: int) -> str:
        """Sleep; what follows the sleep is done under a shield where it takes time."""
        self.started += 1
        if self.started == SLEEPERS:
            self.ready.set()
        try:
            await self.limit.sleep(3600)
        finally:
            if self.cleanup:
                with anyio.CancelScope(shield=True):
                    await anyio.sleep(self.cleanup)
            self.done += 1
        return "ok"


async def _cancelled(limit: Limit, cleanup: float, job_of: Callable[[Script], Job]) -> tuple[Ended, int]:
    sleepers = Sleepers(limit, cleanup)
    job = job_of(conversation(limit.sleep, turns=1, calls=SLEEPERS, body=sleepers.body))
    ended = await limit.cancel(job, sleepers.ready)
    return ended, sleepers.done


async def w7(limit: Limit, effort: Effort) -> list[Row]:
    """Cancel a run whose tools sleep: CPU from there to its end, and what was cleaned up."""

    def mine(script: Script) -> Job:
        return ours(script).run

    def bare(script: Script) -> Job:
        return lambda: limit.run(script)

    pairs = [(await _cancelled(limit, 0, mine), await _cancelled(limit, 0, bare)) for _ in range(effort.pairs)]
    slow = [(await _cancelled(limit, CLEANUP, mine), await _cancelled(limit, CLEANUP, bare)) for _ in range(effort.few)]
    cpu = [(a.cpu, b.cpu) for (a, _), (b, _) in pairs]
    wall = [(a.wall, b.wall) for (a, _), (b, _) in slow]
    ratios = [a / b for a, b in cpu]
    first, second = (median(side) for side in zip(*cpu, strict=True))
    waited, waited_bare = (median(side) for side in zip(*wall, strict=True))
    left = max(ended.tasks_left for (ended, _), _ in [*pairs, *slow])
    return [
        Row("W7 cancel 100 sleeping tools", limit.name, median(ratios), first, second, spread=spread(ratios)),
        Row("W7 `finally` done of 100", limit.name, min(done for (_, done), _ in pairs)),
        Row("W7 tasks left", limit.name, left),
        Row(
            "W7 with 50 ms of cleanup, by the clock",
            limit.name,
            waited * 1000,
            waited,
            waited_bare,
            spread=spread([a * 1000 for a, _ in wall]),
        ),
        Row("W7 with cleanup, `finally` done of 100", limit.name, min(done for (_, done), _ in slow)),
    ]


# ------------------------------------------------------------------------------------------------ a cap


@attrs.define(eq=False)
class Busy:
    """Bodies that sleep for no time and note the most of them that were in flight at once."""

    limit: Limit
    now: int = attrs.field(default=0, init=False)
    peak: int = attrs.field(default=0, init=False)

    async def body(self, x: int) -> str:
        """Be in flight."""
        self.now += 1
        self.peak = max(self.peak, self.now)
        await self.limit.sleep(0)
        self.now -= 1
        return "ok"


async def w8(limit: Limit, effort: Effort) -> list[Row]:
    """A thousand calls, ten at a time, against the bare limit without a cap."""
    busy = Busy(limit)
    calls = effort.of(1000)
    watched = conversation(limit.sleep, turns=1, calls=calls, body=busy.body)
    await ours(watched).capped(10).check(watched)
    script = conversation(limit.sleep, turns=1, calls=calls)
    side = ours(script).capped(10)
    found = await paired(side.run, lambda: limit.run(script), effort.few)
    return [
        paired_row("W8 N=1000, cap 10", limit.name, found, note="the bare limit has no cap"),
        Row("W8 peak of bodies in flight", limit.name, busy.peak),
    ]


def _plain(value: Any) -> Any:
    """Return an item as JSON with all of its fields, as a program that stores them by hand would."""
    if isinstance(value, tuple):
        return [_plain(member) for member in value]
    names = field_names(type(value))
    return value if names is None else {name: _plain(getattr(value, name)) for name in names}


async def w9(limit: Limit, effort: Effort) -> list[Row]:
    """A run's state to and from JSON text, against the plain JSON text of what the run's items hold."""
    side = ours(conversation(limit.sleep, turns=effort.of(100), calls=1))
    state = (await side.run()).to_state()
    text = state.to_string()
    plain = [_plain(item) for item in state._fold.history]
    plain_text = json.dumps(plain)

    async def dump() -> None:
        state.to_string()

    async def load() -> None:
        RunState.from_string(side.agent, text)

    async def dump_plain() -> None:
        json.dumps(plain)

    async def load_plain() -> None:
        json.loads(plain_text)

    dumped = await paired(dump, dump_plain, effort.few)
    loaded = await paired(load, load_plain, effort.few)
    size = len(text) / len(plain_text)
    return [
        paired_row("W9 state to JSON", limit.name, dumped),
        paired_row("W9 state from JSON, folded", limit.name, loaded),
        Row("W9 size against the plain items", limit.name, size, note=f"{len(text) / KIB:.0f} KiB"),
    ]


ON_BACKENDS: dict[str, Workload] = {
    "W1": w1,
    "W2": w2,
    "W3": w3,
    "W4": w4,
    "W4c": w4c,
    "W5": w5,
    "W7": w7,
    "W8": w8,
    "W9": w9,
    "Wo": wo,
    "Wp": wp,
}
IN_PROCESSES: dict[str, Callable[[Effort], list[Row]]] = {"W6": w6}
NAMES = tuple(sorted({*ON_BACKENDS, *IN_PROCESSES}))
