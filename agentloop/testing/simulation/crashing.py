"""Crash a run at every write of its journal, and resume it from the disk.

`crash_sweep` lets a run write its journal on a disk that dies: before a write, within it, when the power fails, after
it. The rest on the disk is resumed as another process would. A broken invariant is raised as `ExplorationFailure`. This
module does not know how a disk tears (`disk`), how a process restarts (`_restarts`) or which invariants hold
(`_crash_invariants`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Unpack

import attrs

from agentloop._common.misplaced import function_takes_options
from agentloop.exceptions import ToolCallError, UserError
from agentloop.testing.scripted import Step
from agentloop.testing.simulation._crash_invariants import said_raise, sound, unknown
from agentloop.testing.simulation._findings import ExplorationFailure, Finding, FindingJudge, again
from agentloop.testing.simulation._restarts import CrashRun, Undisturbed, run_crashing, run_undisturbed
from agentloop.testing.simulation._shrink import shrunk_in_sweeps
from agentloop.testing.simulation._timeline import timeline
from agentloop.testing.simulation.disk import MODES, Crash, CrashAt, Mode, SimulatedDisk
from agentloop.testing.simulation.event_loop import BACKENDS, Backend
from agentloop.testing.simulation.runs import World, WorldRun
from agentloop.testing.simulation.world import AgentOrMaker, WorldOptions, make_world

__all__ = ["MODES", "Crash", "CrashAt", "CrashRun", "CrashSwept", "Mode", "SimulatedDisk", "crash_sweep", "crash_world"]

BACKEND_PAIRS: tuple[tuple[Backend, Backend], ...] = (
    ("asyncio", "trio"),
    ("trio", "asyncio"),
    ("asyncio", "asyncio"),
    ("trio", "trio"),
)
"""Pairs of backends: the run crashes on the first and is resumed on the second."""


@attrs.frozen(kw_only=True)
class CrashSwept:
    """The extent of a sweep that found nothing.

    `points` of crashes, over `writes` of the journal; `recovered` runs, which were resumed to their end (the others had
    already ended); `unknown` calls, which may or may not have had an effect before the crash.
    """

    points: int
    writes: int
    recovered: int
    unknown: int


@function_takes_options("crash_sweep", options=WorldOptions)
def crash_sweep(
    agent: AgentOrMaker,
    script: Sequence[Step] | None = None,
    check: Callable[[CrashRun], Any] | None = None,
    *,
    pairs: Iterable[tuple[Backend, Backend]] = BACKEND_PAIRS,
    modes: Sequence[Mode] = MODES,
    streamed: bool = False,
    allow: tuple[type[BaseException], ...] = (),
    same_end: bool = True,
    tape: Sequence[int] = (),
    seed: int = 0,
    at: CrashAt | None = None,
    **world: Unpack[WorldOptions],
) -> CrashSwept:
    """Crash a run of *agent* at every write of its journal, in every mode, and resume it from the disk.

    At every crash these must hold: no body runs twice, unless its tool allows it (`idempotent`, `in_doubt="rerun"`) or
    runs an agent; a call that the journal had settled is not done again; no body began before its start was in the
    journal; a call keeps its idempotency key; every call has one output; the run ends as it does without a crash,
    except for calls with the outcome unknown. Then *check* is called, with the bodies of both processes. The script of
    a failing run is shrunk.

    Args:
        agent: The agent, or a function that makes it anew for each process: give one if tools hold a state that dies
            with the process.
        script: The model's responses; the resumed run continues in it behind the journal's last response. None uses the
            agents' own models: they must answer by their requests only, or be a `ScriptedModel` that *agent* makes
            anew.
        check: Called with each `CrashRun`; an error that it raises is the finding.
        streamed, allow: As for `explore`.
        pairs: Pairs of backends: one to crash on, one to resume on.
        modes: The kinds of crash at a write: before it, within it, after it with the power failing, after it.
        same_end: True if the run must end as it does without a crash; give False if its end depends on the schedule.
        tape: The order of tasks in the process that crashes, as in a `World`.
        seed: Decides where a write tears, and which states survive a power failure.
        at: Crash only at this operation of the disk, in this mode.
        **world: `WorldOptions`, by keyword. The context and the session that the options make are made once for each
            crash, and outlive it: they represent the state outside of the process. The next process gets them as they
            were at the moment of the crash, if `copy.deepcopy` can copy them.

    Raises:
        ExplorationFailure: for the first crash after which something is wrong, or for the run without a crash.

    Example:
        from agentloop import Agent, tool
        from agentloop.testing import call, crash_sweep, say

        @tool
        async def pay(amount: int) -> str:
            "Pay."
            return "paid"

        swept = crash_sweep(lambda: Agent("a", tools=[pay]), [call("pay", {"amount": 5}), say("ok")])
        print(swept.points > 0)  # True
    """
    __tracebackhide__ = True
    return crash_world(
        make_world(agent, script, world, tape=tape, order="passes"),
        check,
        pairs=pairs,
        modes=modes,
        streamed=streamed,
        allow=allow,
        same_end=same_end,
        seed=seed,
        at=at,
    )


def crash_world(
    world: World,
    check: Callable[[CrashRun], Any] | None = None,
    *,
    pairs: Iterable[tuple[Backend, Backend]] = BACKEND_PAIRS,
    modes: Sequence[Mode] = MODES,
    streamed: bool = False,
    allow: tuple[type[BaseException], ...] = (),
    same_end: bool = True,
    seed: int = 0,
    at: CrashAt | None = None,
) -> CrashSwept:
    """Crash *world* at every write of its journal. Arguments and errors are those of `crash_sweep`."""
    __tracebackhide__ = True
    points = writes = recovered = lost = 0
    judges = Judges(check, allow, same_end)
    known: dict[Backend, Undisturbed] = {}
    for first, then in pairs:
        if first not in BACKENDS or then not in BACKENDS:
            continue
        if first not in known:
            known[first] = run_undisturbed(world, backend=first, streamed=streamed)
            if (failed := judges.whole(known[first].run)) is not None:
                raise ExplorationFailure(failed, found_after=1, shrunk_in=0)
        whole = known[first]
        writes = max(writes, len(whole.writes))

        sweep = _CrashSweep(judges, (first, then), modes, streamed, seed, at)
        for run in sweep.runs(world, whole):
            points += 1
            if (finding := judges.crashed(run)) is not None:
                finding, spent = shrunk_in_sweeps(finding, sweep.findings) if at is None else (finding, 0)
                raise ExplorationFailure(finding, found_after=points, shrunk_in=spent)
            recovered += not run.over
            lost += len(unknown(run))
    return CrashSwept(points=points, writes=writes, recovered=recovered, unknown=lost)


@attrs.frozen
class _CrashSweep:
    """The runs of a world that crash once each: at every write in every mode, or *at* one point only."""

    judges: Judges
    backends: tuple[Backend, Backend]
    modes: Sequence[Mode]
    streamed: bool
    seed: int
    at: CrashAt | None

    def runs(self, world: World, whole: Undisturbed) -> Iterator[CrashRun]:
        for crash in _points(whole.writes, self.modes) if self.at is None else [self.at]:
            seed = _seed(self.seed, crash)
            yield run_crashing(world, whole.run, [crash], self.backends, streamed=self.streamed, seed=seed)

    def findings(self, world: World) -> Iterator[Finding | None]:
        whole = run_undisturbed(world, backend=self.backends[0], streamed=self.streamed)
        if self.judges.whole(whole.run) is None:
            with suppress(UserError):  # a smaller world whose runs differ can't be a finding
                yield from map(self.judges.crashed, self.runs(world, whole))


def _seed(seed: int, crash: CrashAt) -> int:
    return 1_000_003 * seed + crash.operation


def _points(writes: Sequence[int], modes: Sequence[Mode]) -> Iterator[CrashAt]:
    for operation in writes:
        for mode in modes:
            yield CrashAt(operation, mode)


@attrs.frozen
class Judges:
    """Finds the faults of runs, those without a crash and those with one."""

    check: Callable[[CrashRun], Any] | None
    allow: tuple[type[BaseException], ...]
    same_end: bool

    def whole(self, run: WorldRun) -> Finding | None:
        """Judge a run without a crash. The user's check is not called for it."""
        return FindingJudge(None, self.allow)(run)

    def crashed(self, run: CrashRun) -> Finding | None:
        """Judge a run that crashed. The error of a tool with `in_doubt="raise"` is allowed: its user wants it."""
        doubted = said_raise(run)
        allow = (*self.allow, ToolCallError) if doubted else self.allow
        same_end = self.same_end and not doubted

        def holds(_: WorldRun) -> None:
            sound(run, same_end=same_end)

        def checks(_: WorldRun) -> None:
            if self.check is not None:
                self.check(run)

        finding = FindingJudge(checks, allow, holds)(run)
        if finding is None:
            return None
        return attrs.evolve(
            finding,
            where=_describe_crash(run),
            timeline=_make_timeline(run),
            again=_repeat_line(run, self.check),
            check=self.check,
        )


# ---------------------------------------------------------------------------------------------- reports


def _describe_crash(run: CrashRun) -> str:
    after = " then ".join(repr(crash) for crash in run.crashes)
    processes = ", ".join(process.backend for process in run.processes)
    return f"tape: {list(run.processes[0].tape)}, {after}; processes on {processes}"


def _make_timeline(run: CrashRun) -> str:
    """Return the timeline of each process, with the state of the journal after each crash."""
    lines: list[str] = []
    for number, process in enumerate(run.processes):
        kept = run.kept[number]
        plain = attrs.evolve(process, records=process.records[kept:], choices=(), trace=(), chosen_at=())
        lines.append(timeline(plain))
        if number < len(run.crashes):
            crash = run.crashes[number]
            held = run.kept[number + 1] if number + 1 < len(run.processes) else len(run.records)
            lines.append(f"          - the process dies: {crash.mode} operation {crash.operation} of its disk")
            lines.append(f"          - the journal holds {held} of {len(process.records)} records")
    return "\n".join(lines)


def _repeat_line(run: CrashRun, check: Callable[[CrashRun], Any] | None) -> str:
    if len(run.crashes) != 1:
        return f"run_crashing({run.world!r}, …, {list(run.crashes)}, {[process.backend for process in run.processes]})"
    first, then = run.processes[0].backend, run.processes[-1].backend
    like_first = attrs.evolve(run, choices=run.processes[0].choices)
    order = [] if run.world.order == "passes" else [f"order={run.world.order!r}"]
    where = [f"pairs=[({first!r}, {then!r})]", f"at={run.crashes[0]!r}"]
    return f"crash_sweep({', '.join([*again(like_first, check), *order, *where])})"
