"""Run a world that crashes while it writes its journal, and restart it from the rest that the disk holds.

A *restart* is the next process of the same run: a new agent, new models, a new loop, on the same disk. The context and
the session are outside of the process, so each process gets them as they were at the moment of the crash. Does not
judge runs (`_crash_invariants`).
"""

from __future__ import annotations

import copy
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import anyio
import attrs

from agentloop import records as r
from agentloop._common.json_bytes import decode
from agentloop._storage.record_codec import record_from_json
from agentloop._storage.withholding import Secrets
from agentloop.exceptions import StateError, UserError
from agentloop.journal import FileJournal
from agentloop.journal._envelope import Seal, scan
from agentloop.state import RunState, check_goes_on
from agentloop.testing.scripted import ScriptedModel
from agentloop.testing.simulation._case_maker import maker_of
from agentloop.testing.simulation._driven_run import SimulatedRun, simulate
from agentloop.testing.simulation._simulated_parts import EPOCH, agents_of
from agentloop.testing.simulation.disk import CrashAt, SimulatedDisk
from agentloop.testing.simulation.event_loop import Backend
from agentloop.testing.simulation.runs import World, WorldRun, world_run_of
from agentloop.testing.simulation.schedules import Recorder, Tape

NAME = "simulated"
IDS_OF_A_PROCESS = 10_000
"""Distance of the ids of two processes: random ids would never repeat, so counted ones must not either."""


@attrs.frozen(kw_only=True, eq=False)
class CrashRun(WorldRun):
    """A run that crashed and was resumed. The fields of `WorldRun` describe its last process, except `bodies` and
    `requests`, which are those of all processes, and `records`, which are the final log.

    Attributes:
        crashes: The crash of each process but the last one.
        processes: Each process as its own run; `processes[n].records` are the records that it found, then those
            that it appended.
        kept: The number of records that each process found; 0 for the first one.
        whole: The run without a crash.
        over: True if the log was complete when the last crash came. Nothing was resumed then, and `result` and `error`
            are those of `whole`.
    """

    crashes: tuple[CrashAt, ...] = ()
    processes: tuple[WorldRun, ...] = attrs.field(repr=False)
    kept: tuple[int, ...] = attrs.field(repr=False)
    whole: WorldRun = attrs.field(repr=False)
    over: bool = attrs.field(default=False, repr=False)


@attrs.frozen
class Undisturbed:
    """A run without a crash, and the numbers of its disk's operations that were writes."""

    run: WorldRun
    writes: tuple[int, ...]


def run_undisturbed(world: World, *, backend: Backend, streamed: bool) -> Undisturbed:
    """Run *world* with a journal, to its end."""
    disk = SimulatedDisk()
    run = _Restarts(world, disk, streamed).run_process(backend)
    return Undisturbed(run, tuple(place for place, name in enumerate(disk.log) if name == "write"))


def run_crashing(
    world: World,
    whole: WorldRun,
    crashes: Sequence[CrashAt],
    backends: Sequence[Backend],
    *,
    streamed: bool = False,
    seed: int = 0,
) -> CrashRun:
    """Run *world*, end each process at one of *crashes*, and restart it, each process on one of *backends*.

    A process that reaches the run's end before its crash is the last one.

    Raises:
        UserError: if the first process doesn't reach its crash: then it isn't the same run as *whole*.
    """
    disk = SimulatedDisk(seed=seed)
    restarts = _Restarts(world, disk, streamed)
    reached = 0
    for crash, backend in zip(crashes, backends, strict=False):
        disk.crash = crash
        restarts.run_process(backend)
        if not disk.dead:
            if not reached:
                raise UserError(f"the run ended before {crash}, which its first one had got to: something is shared")
            disk.crash = None
            break
        reached += 1
        disk.restart()
        restarts.settle()
        if restarts.over:
            break
    else:
        restarts.run_process(backends[len(crashes)])
    return _join_runs(restarts, whole, tuple(crashes[:reached]))


def _join_runs(restarts: _Restarts, whole: WorldRun, crashes: tuple[CrashAt, ...]) -> CrashRun:
    last = restarts.runs[-1]
    fields = {field.name: getattr(last, field.name) for field in attrs.fields(WorldRun)}
    fields["bodies"] = tuple(body for process in restarts.runs for body in process.bodies)
    fields["requests"] = tuple(request for process in restarts.runs for request in process.requests)
    if restarts.over:
        fields |= {"records": restarts.held, "result": whole.result, "error": whole.error, "calls": whole.calls}
    fields |= {"world": restarts.world, "entries": sum(process.entries for process in restarts.runs)}
    kept = tuple(restarts.kept)
    processes = tuple(restarts.runs)
    return CrashRun(**fields, crashes=crashes, processes=processes, kept=kept, whole=whole, over=restarts.over)


class _Restarts:
    """The processes of one run on one disk. `run_crashing` owns it; `run_process` runs one, `settle` reads the disk.

    Facts: the disk, `runs`, `kept`. `held` and `over` are read from the disk after each crash.
    """

    def __init__(self, world: World, disk: SimulatedDisk, streamed: bool) -> None:
        self.world = world
        self.disk = disk
        self.streamed = streamed
        self.runs: list[WorldRun] = []
        self.kept: list[int] = []
        self.held: tuple[r.Record, ...] = ()
        self.over = False
        self.codec = maker_of(world.agent).codec
        session = world.options.get("session")
        self._outside: tuple[Any, Any] = (
            world.context() if world.context is not None else None,
            session() if callable(session) else session,
        )

    def run_process(self, backend: Backend) -> WorldRun:
        """Run one process until the end or its crash: from the beginning, or from the records that the disk holds."""
        outside = self._outside
        journal = self._open_journal()
        recorder = Recorder(Tape(self.world.tape if not self.runs else ()))
        world = self._world_for_restart(outside, journal)

        async def begin(driven: SimulatedRun) -> Any:
            return await self._restore_state(driven, journal)

        self.disk.on_death = self._copy_outside
        try:
            with _silence_warning("bytes of a batch that a crash cut off are dropped"):
                driven = simulate(
                    world,
                    backend=backend,
                    streamed=self.streamed,
                    scheduler=recorder,
                    begin=begin if self.held else None,
                    around=self._play,
                )
        finally:
            self.disk.on_death = None  # a journal that was not closed keeps its disk as long as the interpreter runs
        run = world_run_of(world, backend, self.streamed, recorder, driven)
        self.kept.append(len(self.held))
        self.runs.append(run)
        return run

    async def _play(self, driven: SimulatedRun) -> Any:
        return await driven.program()

    def _open_journal(self) -> Any:
        return FileJournal(NAME, storage=self.disk, codec=self.codec)

    def settle(self) -> None:
        """Read the records that the crash has left into `held`, and set `over` if they are at the run's end."""
        self.read_records(scan(self.disk.data, Seal(None), NAME).records)

    def read_records(self, lines: Sequence[bytes]) -> None:
        """Read the *lines* of a journal into `held`, and set `over` if they are at the run's end."""
        secrets = Secrets(self.codec)
        self.held = tuple(record_from_json(decode(line), secrets=secrets) for line in lines[1:])
        try:
            fold = RunState(self.runs[-1].agent, self.held)._fold
        except StateError:
            return  # the next process meets this error too, and is judged by it
        if self.held:
            try:
                check_goes_on(fold)
            except StateError:
                self.over = True

    def _copy_outside(self) -> None:
        """Copy the context and the session: what bodies do while this process unwinds must not reach the next one."""
        with suppress(Exception):  # objects that can't be copied are used as they are
            self._outside = copy.deepcopy(self._outside)

    def _world_for_restart(self, outside: tuple[Any, Any], journal: Any) -> World:
        """Return the world for this process: its scripts begin behind the steps that the log has taken."""
        context, session = outside
        options = {**self.world.options, "journal": journal}
        if session is not None:
            options["session"] = lambda: session
        taken = _count_steps_taken(self.held)
        script = self.world.script
        return attrs.evolve(
            self.world,
            script=None if script is None else script[taken[()] :],
            nested={path: steps[taken[tuple(path.split("/"))] :] for path, steps in self.world.nested.items()},
            context=None if self.world.context is None else lambda: context,
            options=options,
        )

    async def _restore_state(self, driven: SimulatedRun, journal: Any) -> RunState:
        state = await RunState.from_journal(driven.agent, journal, context=driven.context)
        for record in state.records:
            driven.watch.on_record(record)
        driven.effects.ids = IDS_OF_A_PROCESS * len(self.runs)
        _skip_steps(driven, state.records)
        await anyio.sleep(max(0.0, state.records[-1].at - EPOCH))  # time must not run backwards across a crash
        return state


@contextmanager
def _silence_warning(words: str) -> Iterator[None]:
    """Filter a warning out of the logging output, as every second crash of a sweep would write it."""
    logger = logging.getLogger("agentloop")

    def unsaid(record: logging.LogRecord) -> bool:
        return words not in record.msg

    logger.addFilter(unsaid)
    try:
        yield
    finally:
        logger.removeFilter(unsaid)


def _count_steps_taken(held: Sequence[r.Record]) -> Counter[tuple[str, ...]]:
    """Return the number of the models' answers in the log, by path. A missing one is requested again."""
    return Counter(record.path for record in held if isinstance(record, r.ModelResponded | r.ModelFailed))


def _skip_steps(driven: SimulatedRun, held: Sequence[r.Record]) -> None:
    """Skip, in scripts that agents have as their own models, the steps that the log has taken."""
    scripted = set() if driven.models is None else {(), *(tuple(path.split("/")) for path in driven.world.nested)}
    at_work: dict[tuple[str, ...], str] = {}
    taken: Counter[str] = Counter()
    for record in held:
        if isinstance(record, r.TurnStarted):
            at_work[record.path] = record.agent
        elif isinstance(record, r.ModelResponded | r.ModelFailed) and record.path not in scripted:
            taken[at_work[record.path]] += 1
    for agent in agents_of(driven.agent):
        if taken[agent.name] and isinstance(agent.model, ScriptedModel):
            agent.model.skip(taken[agent.name])
