"""Runs of generated worlds on stock event loops, with real time: what a replay is given."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import anyio
import attrs
from anyio.lowlevel import checkpoint

from agentloop import RunConfig, Runner
from agentloop import effects as e
from agentloop._shell.live import LiveEffects
from agentloop.config import ModelRetrySettings, ModelSettings
from agentloop.exceptions import AgentLoopError
from agentloop.record_codec import encode, record_to_json
from agentloop.records import Record
from agentloop.testing._world_parts import Watch, WorldModels
from agentloop.testing.cast import Cast, Role
from agentloop.testing.drawing import Seeded, Taste, draw_world
from agentloop.testing.parts import Fatal

SCALE = 0.02
"""Real seconds for one of the world's."""


def lines(records: Any) -> list[bytes]:
    """Return *records* as the bytes a journal holds."""
    return [encode(record_to_json(record)) for record in records]


@attrs.frozen
class Stage:
    """What a part is played on, in real time."""

    path: tuple[str, ...]
    call_id: str
    tool: str
    real: Callable[[], Awaitable[Any]]

    async def point(self, label: str = "") -> None:
        """Let others go on."""
        await checkpoint()

    async def sleep(self, seconds: float) -> None:
        """Wait for the scaled time."""
        await anyio.sleep(seconds * SCALE)


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
    """What was recorded, and what a replay of it needs."""

    records: tuple[Record, ...]
    agent: Any
    config: RunConfig


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


def record_world(seed: int, backend: str) -> Recording:
    """Run the world of *seed* on a stock loop, cancelled by its caller now and then, and return its log."""
    chance = Seeded(f"stock {seed}")
    fields: Any = draw_world(chance, Taste(approvals=chance.one_in(3), secrets=False, slow_readers=False))
    cancelled_after = chance.whole(0, 40) / 1000 if chance.one_in(4) else None
    cast: Cast = fields["agent"]
    cast = attrs.evolve(cast, roles=tuple(map(_scaled, cast.roles)), per=cast.per * SCALE)
    agent, options, watch = cast(), dict(fields["options"]), Watch()
    config = _config(options.pop("run_config"))
    options = {name: value() if name in ("hooks", "session") else value for name, value in options.items()}
    models = WorldModels(agent, watch, fields["script"], fields["nested"])
    options["run_config"] = attrs.evolve(
        config, effects=StockEffects(watch, fields["behaviors"]), instruments=(watch,), model=models
    )

    async def main() -> None:
        with anyio.move_on_after(cancelled_after):
            given: Any = "go"
            while given is not None:
                result = await Runner.run(agent, given, **options)
                given = _decided(result, fields["verdicts"])
                if given is not None:
                    watch.records[:] = given.records

    with contextlib.suppress(AgentLoopError, Exception, Fatal, asyncio.CancelledError):
        anyio.run(main, backend=backend)
    return Recording(tuple(watch.records), cast(), config)


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
