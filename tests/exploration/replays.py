"""Replays of drawn runs that were ended in every way, at drawn moments: each log must come out the same.

`python -m tests.exploration.replays --count COUNT --first SEED`. A seed draws a world of one of the generators, a
backend, and the ends of one to three processes of the run: a cancellation by a scope, natively or of the whole loop,
before a step or within the step of a record; a deadline; a reader that leaves or stops the run; a call that is
cancelled. Some have two of these. After each process the stored form of the log is replayed strictly. The exit status
is 1 if a seed diverges that isn't `KNOWN`, or a known one doesn't any more; each divergence is told with its seed.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import multiprocessing
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import anyio
import attrs

from agentloop import records as r
from agentloop._storage.record_codec import record_from_json, record_to_json
from agentloop._storage.withholding import Secrets
from agentloop.abc import Instrument
from agentloop.exceptions import ReplayDivergence
from agentloop.items import ToolCall
from agentloop.testing.replaying import replay
from agentloop.testing.simulation._driven_run import SimulatedRun
from agentloop.testing.simulation._faults import Raises
from agentloop.testing.simulation._simulated_parts import EPOCH
from agentloop.testing.simulation.event_loop import BACKENDS, Backend, Deadlock
from agentloop.testing.simulation.generated import draw_tape
from agentloop.testing.simulation.runs import CancelAt, World, WorldRun, run_one

from . import answers, arrivals, background, further, rare, segments, surrounded
from .generators import GeneratorConfig, Seeded, draw_world
from .rounds import Hung, patience
from .segments import Segments

PATIENCE = 120.0
"""Real seconds for one seed: it takes a tenth of one, so one that takes this long hangs on any machine."""
KNOWN: dict[str, tuple[int, ...]] = {
    "secrets of which the log has digests only": (749, 1852, 2213),
    "a start hook that raised, and gave its place back before its call settled": (
        *(973, 1295, 1787, 1849, 4794),
        *(5208, 5656, 5743),
    ),
    "end hooks that were cut as the loop ended": (2346, 3347),
    "a nested deadline": (3424,),
    "a fatal failure and a stop in one pass": (3775,),
    "two failures, of which one is named": (4091,),
    "a search that was cancelled, and had found something": (4152,),
    "the order of calls that never started": (2956, 4750),
    "an answered call beside two cancellations": (5621,),
    "a stop after the turn, with background calls": (5835,),
}
"""Seeds whose replays diverge, by what the log doesn't tell: a seed more or less is a failure."""
MANY = 10_000
SIZES = (
    GeneratorConfig(turns=2, calls=3, tools=2, secrets=False),
    GeneratorConfig(turns=2, calls=3, approvals=True),
    GeneratorConfig(turns=3, calls=4, nesting=2),
    *segments.SIZES,
)


def _draw_generated(chance: Seeded) -> World:
    parts = draw_world(chance, chance.pick(SIZES))
    order: Any = chance.pick(["gate", "passes", "steps"])
    return World(**parts, order=order, tape=draw_tape(chance))


SOURCES: dict[str, Callable[[Seeded], World]] = {
    "generated": _draw_generated,
    "further": lambda chance: further.draw_further(chance, chance.whole(0, MANY)).world,
    "rare": lambda chance: rare.draw_rare(chance, chance.whole(0, MANY)).world,
    "surrounded": lambda chance: surrounded.draw_surrounded(chance, chance.whole(0, MANY)).world,
    "answers": answers.draw_answers,
    "arrivals": lambda chance: arrivals.draw_arrivals(chance).world,
    "background": background.draw_background,
}
"""The generators of worlds, each as likely as the others."""
STEPS = ("scope", "native", "shutdown", "waiting")
RECORDS = ("scope", "native", "stop", "turn", "call")
WAYS = (*(f"{way} before a step" for way in STEPS), *(f"{way} at a record" for way in RECORDS), "leaves")
STREAMED = ("stop", "turn", "call", "leaves")
"""Ways that need the reader of a stream."""


# ---------------------------------------------------------------------------------------------- ends


class End(Instrument):
    """Ends the run, or one call, in the step of the record with a number, counted from the first of its process."""

    def __init__(self, way: str, number: int, chance: Seeded) -> None:
        self.way, self.number = way, number
        self._chance, self._seen = chance, -1
        self._open: list[tuple[tuple[str, ...], str]] = []
        self._act: Callable[[], object] = lambda: None

    def begin(self, driven: SimulatedRun, scope: anyio.CancelScope, backend: Backend) -> None:
        """Remember what is ended, in the task that runs *driven*."""
        task = asyncio.current_task() if backend == "asyncio" else None

        def stream() -> Any:
            return driven.watch.stream

        self._act = {
            "scope": scope.cancel,
            "native": scope.cancel if task is None else task.cancel,
            "stop": lambda: stream().cancel(),
            "turn": lambda: stream().cancel("after_turn"),
            "call": lambda: self._open and self._cancel_call(stream()),
        }[self.way]

    def _cancel_call(self, stream: Any) -> None:
        path, call_id = self._chance.pick(self._open)
        stream.cancel_call(call_id, "it was drawn", path=path)

    def on_record(self, record: r.Record) -> None:
        """Note which calls are under way, and act if it is the record with the number."""
        self._seen += 1
        if isinstance(record, r.ModelResponded):
            self._open += [(record.path, item.call_id) for item in record.response.items if isinstance(item, ToolCall)]
        elif isinstance(record, r.CallSettled) and (record.path, record.call_id) in self._open:
            self._open.remove((record.path, record.call_id))
        if self._seen == self.number:
            self._act()


@attrs.frozen
class Ends:
    """How one process is ended: fields of its world, and acts at records."""

    ways: tuple[str, ...] = ()
    fields: dict[str, Any] = attrs.field(factory=dict)
    acts: tuple[End, ...] = ()


def draw_ends(chance: Seeded, whole: WorldRun, streamed: bool) -> Ends:
    """Return up to two ends for a process of the world of *whole*, its run that nothing ended."""
    ways = [way for way in WAYS if streamed or way.partition(" ")[0] not in STREAMED]
    drawn = tuple(chance.pick(ways) for _ in range(chance.pick([0, 1, 1, 1, 2])))
    fields: dict[str, Any] = {}
    acts: list[End] = []
    for one in drawn:
        way, _, place = one.partition(" ")
        if place == "at a record":
            acts.append(End(way, chance.whole(0, len(whole.records)), chance))
        elif place == "before a step":
            waits = way == "waiting" and whole.world.order == "gate"
            steps = len(whole.choices) if waits else whole.steps
            kind: Any = chance.pick(["scope", "native"]) if way == "waiting" else way
            fields["cancel"] = CancelAt(chance.whole(0, steps), kind, waiting=waits)
        else:
            fields["reader_leaves"] = chance.pick([type(event).__name__ for event in whole.events] or ["CallStarted"])
    return Ends(drawn, fields, tuple(acts))


class EndedRun(Segments):
    """The processes of one run, each ended as drawn: one process, if it has no journal of ours.

    What is secret is *sealed* in its log by the codec of the world's agents, or stored as a digest.
    """

    def __init__(self, world: World, streamed: bool, *, journaled: bool, sealed: bool) -> None:
        super().__init__(world, streamed)
        self.journaled = journaled
        self.codec = self.codec if sealed else None
        self.ends: list[Ends] = []
        self.backends: list[Backend] = []

    async def _play(self, driven: SimulatedRun) -> Any:
        config, acts = driven.options["run_config"], self.ends[-1].acts
        # Behind the instrument that keeps the records: the record of an end comes after the one it came at.
        driven.options["run_config"] = attrs.evolve(config, instruments=(*config.instruments, *acts))
        with anyio.CancelScope() as scope:
            for act in acts:
                act.begin(driven, scope, self.backends[-1])
            return await driven.program()

    def _world_for_restart(self, outside: tuple[Any, Any], journal: Any) -> World:
        world = super()._world_for_restart(outside, journal)
        options = world.options if self.journaled else self.world.options
        return attrs.evolve(world, **{"cancel": None, **self.ends[-1].fields}, options=options)

    def run_ended(self, ends: Ends, backend: Backend) -> None:
        """Run one process on *backend* that is ended by *ends*."""
        self.ends.append(ends)
        self.backends.append(backend)
        self.run_process(backend)
        if self.journaled:
            self.lines = self._journal._records
            self.cut(len(self.lines))
        else:
            self.held, self.over = self.runs[-1].records, True


# ---------------------------------------------------------------------------------------------- a seed


@attrs.frozen
class Divergence:
    """A replay with another log, or none."""

    seed: int
    world: str
    ways: str
    backends: str
    words: str
    """What the replay said."""

    @property
    def kind(self) -> str:
        """What divergences of one mistake have in common, more or less: where they say what was due, and what came."""
        return NAMES.sub("", self.words.partition("\n")[0])[:200]

    def __str__(self) -> str:
        return f"--first {self.seed} --count 1  # {self.world}, {self.ways}, {self.backends}\n    {self.words[:600]}"


NAMES = re.compile(r"\b[a-z_]*\d+\b|'[^']*'|\d+(\.\d+)?")


def draw_run(seed: int) -> tuple[EndedRun, WorldRun, Seeded, str]:
    """Return the run of *seed* before its first process, its world's run that nothing ended, the chance, and the source
    of the world.
    """
    chance = Seeded(f"replays {seed}")
    source = chance.pick(list(SOURCES))
    world, streamed = attrs.evolve(SOURCES[source](chance), cancel=None), not chance.one_in(3)
    if world.behaviors and chance.one_in(8):
        fatal = Raises(chance.whole(0, 2), chance.pick([0.0, 0.25]), fatal=True)
        world = attrs.evolve(world, behaviors={**world.behaviors, chance.pick(sorted(world.behaviors)): fatal})
    whole = run_one(world, backend=chance.pick(BACKENDS), streamed=streamed)
    if chance.one_in(4) and whole.records:
        seconds = chance.pick(whole.records).at - EPOCH + chance.pick([0.0, 0.0, 0.001, 0.1])
        config: Any = world.options["run_config"]
        options = {**world.options, "run_config": attrs.evolve(config, timeout=max(seconds, 0.001))}
        world = attrs.evolve(world, options=options)
    return EndedRun(world, streamed, journaled=chance.one_in(2), sealed=not chance.one_in(4)), whole, chance, source


def play(seed: int, backends: Sequence[Backend] = BACKENDS) -> tuple[int, list[Divergence]]:
    """Run the world of *seed*, and replay its log on *backends* after each process: how many logs, and what diverged.

    A run that hangs, or that waits for ever, leaves no log: others judge runs.
    """
    run, whole, chance, source = draw_run(seed)
    logs = 0
    for _ in range(chance.pick([1, 2, 2, 3]) if run.journaled else 1):
        run.run_ended(draw_ends(chance, whole, run.streamed), chance.pick(BACKENDS))
        if not run.held or isinstance(run.runs[-1].error, Deadlock):
            break
        logs += 1
        if found := [one for backend in backends if (one := _judge(seed, source, run, backend)) is not None]:
            return logs, found
        if run.over:
            break
    return logs, []


def _judge(seed: int, source: str, run: EndedRun, backend: Backend) -> Divergence | None:
    definitions: Any = run.world.agent
    secrets = Secrets(run.codec)
    stored = [record_from_json(record_to_json(one, secrets), secrets=secrets) for one in run.held]
    try:
        again = replay(stored, definitions(), run_config=run.world.options["run_config"], backend=backend)
        hidden = any(
            "$digest" in str(record_to_json(one)) for one in stored
        )  # compared as the log has it, in the replay
        words = "" if hidden or again.records == tuple(stored) else "the replay has another log"
    except ReplayDivergence as divergence:
        words = str(divergence)
    except Exception as error:
        words = f"{type(error).__name__}: {error}"
    if not words:
        return None
    ways = "; ".join(" and ".join(one.ways) or "nothing" for one in run.ends)
    return Divergence(seed, source, ways, f"{', '.join(run.backends)} replayed on {backend}", words)


# ---------------------------------------------------------------------------------------------- many seeds


def play_in_time(seed: int) -> tuple[int, list[Divergence]]:
    """Play the world of *seed*, and tell if it hangs."""
    with patience(PATIENCE) as hung:
        try:
            return play(seed)
        except Hung:
            return 0, [Divergence(seed, "?", "?", "?", f"hangs at {hung[0]}")]


def play_all(seeds: Sequence[int]) -> tuple[int, list[Divergence]]:
    """Play *seeds* in this process."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        played = [play_in_time(seed) for seed in seeds]
    finally:
        logging.disable(before)
    return sum(logs for logs, _ in played), [one for _, found in played for one in found]


def known_among(seeds: Sequence[int]) -> set[int]:
    """Return the `KNOWN` ones of *seeds*."""
    return {seed for some in KNOWN.values() for seed in some} & set(seeds)


def report(seeds: Sequence[int], logs: int, found: Sequence[Divergence]) -> Iterator[str]:
    """Yield the lines of a report: the figures, then the divergences by kind, the most frequent kind first."""
    diverged = {one.seed for one in found}
    yield f"{len(seeds)} seeds, {logs} logs, each replayed on both backends; seeds that diverged: {len(diverged)}"
    known = known_among(seeds)
    yield f"known: {len(diverged & known)}; new: {sorted(diverged - known)}; mended: {sorted(known - diverged)}"
    kinds: dict[str, list[Divergence]] = {}
    for one in found:
        kinds.setdefault(one.kind, []).append(one)
    for kind, those in sorted(kinds.items(), key=lambda pair: -len(pair[1])):
        yield f"{len(those)}: {kind}"
        yield from map(str, {one.seed: one for one in those}.values())


def main(arguments: list[str]) -> int:
    """Play seeds by the command line; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.exploration.replays", description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="so many seeds")
    parser.add_argument("--first", type=int, default=0, help="begin with this seed")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    given = parser.parse_args(arguments)
    seeds = range(given.first, given.first + given.count)
    shares = [seeds[place : place + SHARE] for place in range(0, len(seeds), SHARE)]
    with multiprocessing.get_context("spawn").Pool(min(given.jobs, len(shares))) as pool:
        played = list(pool.imap(play_all, shares))
    found = [one for _, some in played for one in some]
    print("\n".join(report(seeds, sum(logs for logs, _ in played), found)))
    return 1 if {one.seed for one in found} != known_among(seeds) else 0


SHARE = 20
"""Seeds that a process plays in one go."""

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
