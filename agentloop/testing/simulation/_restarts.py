"""A world that crashes while it writes its journal, and goes on from what the disk has left."""

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
from agentloop._storage.json_bytes import decode
from agentloop._storage.record_codec import record_from_json
from agentloop._storage.withholding import Secrets
from agentloop.exceptions import StateError, UserError
from agentloop.journal import FileJournal
from agentloop.journal._envelope import Seal, scan
from agentloop.state import RunState, check_goes_on
from agentloop.testing.scripted import ScriptedModel
from agentloop.testing.simulation._driven_run import SimulatedRun, simulate
from agentloop.testing.simulation._fixture_agents import XOR_CODEC, FixtureAgents
from agentloop.testing.simulation._simulated_parts import EPOCH, agents_of
from agentloop.testing.simulation.disk import CrashAt, SimulatedDisk
from agentloop.testing.simulation.event_loop import Backend
from agentloop.testing.simulation.runs import World, WorldRun, world_run_of
from agentloop.testing.simulation.schedules import Recorder, Tape

NAME = "simulated"
IDS_OF_A_LIFE = 10_000
"""Ids of one life are never those of another, as drawn ones wouldn't be."""


@attrs.frozen(kw_only=True, eq=False)
class CrashRun(WorldRun):
    """A run that crashed and was gone on with. What `WorldRun` says of it is said of the last life, but for `bodies`
    and `requests`, which are those of all lives, and `records`, which are what the log came to.

    Attributes:
        crashes: Where each life but the last one ended.
        lives: Each life as a run of its own; `lives[n].records` are those it found, and those it appended.
        kept: How many records each life found; 0 for the first one.
        whole: The run as it is without a crash.
        over: Whether the log was at its end when the last crash came: `result` and `error` are those of `whole` then,
            and nothing was gone on with.
    """

    crashes: tuple[CrashAt, ...] = ()
    lives: tuple[WorldRun, ...] = attrs.field(repr=False)
    kept: tuple[int, ...] = attrs.field(repr=False)
    whole: WorldRun = attrs.field(repr=False)
    over: bool = attrs.field(default=False, repr=False)


@attrs.frozen
class Undisturbed:
    """A run that nothing disturbed, and which operations of its disk wrote."""

    run: WorldRun
    writes: tuple[int, ...]


def undisturbed(world: World, *, backend: Backend, streamed: bool) -> Undisturbed:
    """Run *world* with a journal, to its end."""
    disk = SimulatedDisk()
    run = _Lives(world, disk, streamed).live(backend)
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
    """Run *world*, end each life at one of *crashes*, and go on; one of *backends* for each life.

    A life that comes to its end before its crash is the last one.

    Raises:
        UserError: the first life doesn't get to its crash: it isn't the run that *whole* is.
    """
    disk = SimulatedDisk(seed=seed)
    lives = _Lives(world, disk, streamed)
    reached = 0
    for crash, backend in zip(crashes, backends, strict=False):
        disk.crash = crash
        lives.live(backend)
        if not disk.dead:
            if not reached:
                raise UserError(f"the run ended before {crash}, which its first one had got to: something is shared")
            disk.crash = None
            break
        reached += 1
        disk.restart()
        lives.settle()
        if lives.over:
            break
    else:
        lives.live(backends[len(crashes)])
    return _join_runs(lives, whole, tuple(crashes[:reached]))


def _join_runs(lives: _Lives, whole: WorldRun, crashes: tuple[CrashAt, ...]) -> CrashRun:
    last = lives.runs[-1]
    told = {field.name: getattr(last, field.name) for field in attrs.fields(WorldRun)}
    told["bodies"] = tuple(body for life in lives.runs for body in life.bodies)
    told["requests"] = tuple(request for life in lives.runs for request in life.requests)
    if lives.over:
        told |= {"records": lives.held, "result": whole.result, "error": whole.error, "calls": whole.calls}
    told |= {"world": lives.world, "entries": sum(life.entries for life in lives.runs)}
    kept = tuple(lives.kept)
    return CrashRun(**told, crashes=crashes, lives=tuple(lives.runs), kept=kept, whole=whole, over=lives.over)


class _Lives:
    """The lives of one run on one disk. The context and the session outlive each crash, as they were when it came."""

    def __init__(self, world: World, disk: SimulatedDisk, streamed: bool) -> None:
        self.world = world
        self.disk = disk
        self.streamed = streamed
        self.runs: list[WorldRun] = []
        self.kept: list[int] = []
        self.held: tuple[r.Record, ...] = ()
        self.over = False
        self.codec = XOR_CODEC if isinstance(world.agent, FixtureAgents) else None
        session = world.options.get("session")
        self._outside: tuple[Any, Any] = (
            world.context() if world.context is not None else None,
            session() if callable(session) else session,
        )

    def live(self, backend: Backend) -> WorldRun:
        """Begin, or go on from what the disk holds, until the end or the crash."""
        outside = self._outside
        journal = FileJournal(NAME, storage=self.disk, codec=self.codec)
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
                )
        finally:
            self.disk.on_death = None  # a journal that nobody closed holds its disk as long as the process lives
        run = world_run_of(world, backend, self.streamed, recorder, driven)
        self.kept.append(len(self.held))
        self.runs.append(run)
        return run

    def settle(self) -> None:
        """Read what the crash has left."""
        lines = scan(self.disk.data, Seal(None), NAME).records
        secrets = Secrets(self.codec)
        self.held = tuple(record_from_json(decode(line), secrets=secrets) for line in lines[1:])
        try:
            fold = RunState(self.runs[-1].agent, self.held).fold
        except StateError:
            return  # the next life meets it too, and is judged by it
        if self.held:
            try:
                check_goes_on(fold)
            except StateError:
                self.over = True

    def _copy_outside(self) -> None:
        """Keep what is outside of the process as it is now: what bodies do while this life unwinds never happened."""
        with suppress(Exception):  # what can't be copied goes on as it is
            self._outside = copy.deepcopy(self._outside)

    def _world_for_restart(self, outside: tuple[Any, Any], journal: FileJournal) -> World:
        """Return the world as it is for this life: scripts go on where the log says that they were."""
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

    async def _restore_state(self, driven: SimulatedRun, journal: FileJournal) -> RunState:
        state = await RunState.from_journal(driven.agent, journal, context=driven.context)
        for record in state.records:
            driven.watch.on_record(record)
        driven.effects.ids = IDS_OF_A_LIFE * len(self.runs)
        _skip_steps(driven, state.records)
        await anyio.sleep(max(0.0, state.records[-1].at - EPOCH))  # the clock hasn't stood still
        return state


@contextmanager
def _silence_warning(words: str) -> Iterator[None]:
    """Leave a warning out of the log that every second crash of a sweep would write there."""
    logger = logging.getLogger("agentloop")

    def unsaid(record: logging.LogRecord) -> bool:
        return words not in record.msg

    logger.addFilter(unsaid)
    try:
        yield
    finally:
        logger.removeFilter(unsaid)


def _count_steps_taken(held: Sequence[r.Record]) -> Counter[tuple[str, ...]]:
    """Return how many answers of the models the log has, by path: one that it hasn't is asked for again."""
    return Counter(record.path for record in held if isinstance(record, r.ModelResponded | r.ModelFailed))


def _skip_steps(driven: SimulatedRun, held: Sequence[r.Record]) -> None:
    """Let scripts that agents have as models of their own go on where the log says that they were."""
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
