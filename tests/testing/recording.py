"""Runs of generated worlds on stock event loops, with real time: what a replay is given."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
import attrs
from anyio.lowlevel import checkpoint
from exploration.fixture_agents import FixtureAgents, Role
from exploration.generators import GeneratorConfig, Seeded, draw_world

from agentloop import RunConfig, Runner
from agentloop._storage.record_codec import encode, record_to_json
from agentloop.abc import effects as e
from agentloop.journal import FileJournal
from agentloop.records import Record
from agentloop.run._live_effects import LiveEffects
from agentloop.settings import ModelRetrySettings, ModelSettings
from agentloop.testing.simulation._faults import Fatal
from agentloop.testing.simulation._simulated_parts import SimulatedModels, Watch

SCALE = 0.1
"""Real seconds for one of the world's."""


def lines(records: Any) -> list[bytes]:
    """Return *records* as the bytes a journal holds."""
    return [encode(record_to_json(record), None) for record in records]


@attrs.frozen
class Stage:
    """The surroundings of a part, in real time."""

    path: tuple[str, ...]
    call_id: str
    tool: str
    real: Callable[[], Awaitable[Any]]

    async def point(self, label: str = "") -> None:
        """Let the other tasks run."""
        await checkpoint()

    async def sleep(self, seconds: float) -> None:
        """Wait for the scaled time."""
        await anyio.sleep(seconds * SCALE)

    def entered(self) -> int:
        """Return a number that says nothing."""
        return 0

    def reporting(self) -> None:
        """Note nothing: no check reads these runs."""

    def cleaning(self, section: str, entered: int | None = None) -> contextlib.AbstractContextManager[None]:
        """Note nothing: no check reads these runs."""
        return contextlib.nullcontext()


class OneClock(LiveEffects):
    """The live door, by whose clock records have the times of the event loop, and not of a busy machine."""

    def wall(self) -> float:
        """Return the time of the loop."""
        return anyio.current_time()


class StockEffects(LiveEffects):
    """The live door, with the world's parts in the place of some bodies."""

    def __init__(self, watch: Watch, behaviors: Mapping[str, Any]) -> None:
        self._watch = watch
        self._behaviors = behaviors

    async def perform(self, effect: Any) -> Any:
        """Play the part of a body, if there is one; else do *effect*."""
        if isinstance(effect, e.CallTool):
            part = self._behaviors.get("/".join((*effect.path, effect.call_id)))
            if part is not None:
                tool = self._watch.started[effect.path, effect.call_id].tool
                return await part(Stage(effect.path, effect.call_id, tool, effect.do))
        return await super().perform(effect)


@attrs.frozen
class Recording:
    """A recorded run, and all that a replay of it needs."""

    records: tuple[Record, ...]
    agent: Any
    config: RunConfig
    journal: Path | None = None


def _scaled(role: Role) -> Role:
    actors = tuple(
        attrs.evolve(
            actor,
            timeout=None if actor.timeout is None else actor.timeout * SCALE,
            agent=None if actor.agent is None else _scaled(actor.agent),
        )
        for actor in role.actors
    )
    return attrs.evolve(role, actors=actors)


def _config(config: RunConfig) -> RunConfig:
    execution = config.tool_execution
    queue_timeout = execution.queue_timeout
    return attrs.evolve(
        config,
        timeout=None if config.timeout is None else config.timeout * SCALE,
        model_settings=ModelSettings(retry=ModelRetrySettings(1, initial_delay=0.002, max_delay=0.002)),
        tool_execution=attrs.evolve(
            execution,
            queue_timeout=None if queue_timeout is None else queue_timeout * SCALE,
            cleanup_grace=execution.cleanup_grace * SCALE,
        ),
    )


@attrs.define(eq=False)
class World:
    """One world, and what is recorded of it."""

    cast: FixtureAgents
    fields: Any
    cancelled_after: float | None
    journal: Path | None = None
    streamed: bool = False
    watch: Watch = attrs.field(factory=Watch)
    config: RunConfig = attrs.field(factory=RunConfig)

    @classmethod
    def of(cls, seed: int, folder: Path | None = None) -> World:
        """Return the world of *seed*, which its caller sometimes cancels; its journal is in *folder*."""
        chance = Seeded(f"stock {seed}")
        fields: Any = draw_world(chance, GeneratorConfig(approvals=chance.one_in(3), secrets=False, slow_readers=False))
        cancelled_after = chance.whole(0, 2000) / 1000 * SCALE if chance.one_in(4) else None
        cast: FixtureAgents = fields["agent"]
        cast = attrs.evolve(cast, roles=tuple(map(_scaled, cast.roles)), per=cast.per * SCALE)
        config = _config(fields["options"]["run_config"])
        journal = None if folder is None else folder / f"{seed}.jsonl"
        return cls(cast, fields, cancelled_after, journal, bool(seed // 2 % 2), config=config)

    async def run(self) -> None:
        """Run it, over pauses that its verdicts end; an error that it raises is in its log."""
        agent, watch, fields = self.cast(), self.watch, self.fields
        models = SimulatedModels(agent, watch, fields["script"], fields["nested"])
        options = {name: value() if name in MADE else value for name, value in fields["options"].items()}
        effects = StockEffects(watch, fields["behaviors"])
        options["run_config"] = attrs.evolve(self.config, effects=effects, instruments=(watch,), model=models)
        if self.journal is not None:
            options["journal"] = FileJournal(self.journal, fsync="never")
        try:
            with anyio.move_on_after(self.cancelled_after):
                given: Any = "go"
                while given is not None:
                    result = await self._entered(agent, given, options)
                    given = _decided(result, fields["verdicts"])
                    if given is not None:
                        watch.records[:] = given.records
        except (Exception, Fatal):
            pass
        finally:
            if self.journal is not None:
                with anyio.CancelScope(shield=True):
                    await options["journal"].aclose()

    async def _entered(self, agent: Any, given: Any, options: Mapping[str, Any]) -> Any:
        """Return the result of one entry, streamed for every other world."""
        if not self.streamed:
            return await Runner.run(agent, given, **options)
        async with Runner.run_streamed(agent, given, **options) as stream:
            async for _ in stream:
                pass
            return stream.result


MADE = ("hooks", "session")


def record_worlds(seeds: Sequence[int], backend: str, folder: Path | None = None) -> list[Recording]:
    """Run the worlds of *seeds* side by side on one stock loop, and return their logs."""
    worlds = [World.of(seed, folder) for seed in seeds]

    async def main() -> None:
        async with anyio.create_task_group() as group:
            for world in worlds:
                group.start_soon(world.run)

    anyio.run(main, backend=backend)
    return [Recording(tuple(world.watch.records), world.cast(), world.config, world.journal) for world in worlds]


def _decided(result: Any, verdicts: Any) -> Any:
    waiting = {(request.path, request.call.call_id): request for request in result.interruptions}
    fitting = [one for one in verdicts if (one.path, one.call_id) in waiting]
    if result.status != "interrupted" or not fitting:
        return None
    state = result.to_state()
    for one in fitting:
        request = waiting[one.path, one.call_id]
        if one.approved:
            state.approve(request, always=one.always)
        else:
            state.reject(request, always=one.always)
    return state
