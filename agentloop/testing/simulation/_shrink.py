"""Shrink a failing world: fewer calls in its script, and a schedule with few departures from the natural order.

Each step tries every world (or tape) that is one part smaller, and restarts from the first that still fails in the same
way. It ends when no smaller one fails, or after `MOST` runs. Does not know how a run is judged: the caller passes that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import attrs

from agentloop._common.error_text import first_line
from agentloop.testing.scripted import CallStep, Step
from agentloop.testing.simulation._findings import Finding, makes_calls
from agentloop.testing.simulation.runs import World, WorldRun, run_one
from agentloop.testing.simulation.schedules import Exhaustive

SEARCH = 200
"""Limit of schedules for a smaller script, after which it counts as one that doesn't fail."""
MOST = 3000
"""Limit of runs for shrinking one finding."""


def shrunk(finding: Finding, judge: Callable[[WorldRun], Finding | None]) -> tuple[Finding, int]:
    """Return the smallest finding of the same fault that was found, and the number of runs it took."""
    shrinking = _Shrinking(finding, judge)
    while shrinking.smaller_script() or shrinking.smaller_tape():
        pass
    return shrinking.best, shrinking.runs


def shrunk_in_sweeps(finding: Finding, sweep: Callable[[World], Iterable[Finding | None]]) -> tuple[Finding, int]:
    """Return the same fault in the smallest world that was found, and the number of runs it took.

    The fault shows at some moments of a world: *sweep* yields the finding, or None, for each. Schedules stay unchanged.
    """
    best, runs = finding, 0
    while True:
        tries = (seen for world in _smaller_worlds(best.run.world) for seen in sweep(world))
        for seen in islice(tries, MOST - runs):
            runs += 1
            if seen is not None and _is_the_same(seen, best):
                best = seen
                break
        else:
            return best, runs


def _is_the_same(finding: Finding, before: Finding) -> bool:
    """Return True if *finding* is of the same fault as *before*.

    A world without one of the needed answers fails for another reason: it is not a smaller case of the fault. Nor is a
    world without any call, unless the check's error is just the same: the check may be one that demands a call.
    """
    if finding.is_of_a_check and makes_calls(before.run) and not makes_calls(finding.run):
        message = first_line(str(finding.error))
        if not message or message != first_line(str(before.error)):
            return False
    return finding.key == before.key and finding.run.script_ran_out <= before.run.script_ran_out


@attrs.define
class _Shrinking:
    """One shrinking under way. `best` is the smallest finding so far; `runs` counts the runs spent."""

    best: Finding
    judge: Callable[[WorldRun], Finding | None]
    runs: int = 0
    of_schedule: bool = False
    """True if the calls, one after another, pass the check: then it fails because of the schedule only."""

    def __attrs_post_init__(self) -> None:
        self.of_schedule = self.best.is_of_a_check and self._passes_one_at_a_time(self.best.run.world)

    def _passes_one_at_a_time(self, world: World) -> bool:
        """Return True if the check passes where the model asks for one call at a time, so that none can race."""
        self.runs += 1
        before = self.best.run
        apart = attrs.evolve(world, script=_one_at_a_time(world.script or ()), tape=())
        return self.judge(run_one(apart, backend=before.backend, streamed=before.streamed)) is None

    def _run_and_keep(self, world: World, tape: Sequence[int]) -> tuple[WorldRun, bool]:
        """Run *world* by *tape*. If it fails in the same way, keep it as the best, and return True beside the run."""
        self.runs += 1
        before = self.best.run
        seen = run_one(attrs.evolve(world, tape=tape), backend=before.backend, streamed=before.streamed)
        finding = self.judge(seen)
        if finding is None or not _is_the_same(finding, self.best):
            return seen, False
        self.best = finding
        return seen, True

    def smaller_script(self) -> bool:
        """Remove one part of the world if it still fails under some schedule; return True if one was removed."""
        world = self.best.run.world
        tape = self.best.run.tape
        return any(self._fails_somewhere(smaller, tape) for smaller in _smaller_worlds(world))

    def _fails_somewhere(self, world: World, tape: tuple[int, ...]) -> bool:
        if self.runs >= MOST:
            return False
        if self.of_schedule and not self._passes_one_at_a_time(world):
            return False  # it fails for what is missing in it: a check that counts the calls
        if self._run_and_keep(world, tape)[1]:
            return True
        search = Exhaustive()
        for count, other in enumerate(search):
            if count >= SEARCH or self.runs >= MOST:
                return False
            seen, failed = self._run_and_keep(world, other)
            if failed:
                return True
            search.ran(seen.choices)
        return False

    def smaller_tape(self) -> bool:
        """Make the tape shorter, or one of its numbers smaller; return True if a smaller tape fails."""
        run = self.best.run
        for smaller in _smaller_tapes(run.tape):
            if self.runs >= MOST:
                return False
            if self._run_and_keep(run.world, smaller)[1] and _size(self.best.run.tape) < _size(run.tape):
                return True
        return False


def _size(tape: Sequence[int]) -> tuple[int, int, int]:
    return sum(1 for number in tape if number), len(tape), sum(tape)


def _smaller_tapes(tape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    half = len(tape) // 2
    while half:
        yield tape[:half]
        half //= 2
    for index, number in enumerate(tape):
        if number:
            yield (*tape[:index], 0, *tape[index + 1 :])
    for index in range(len(tape)):
        yield (*tape[:index], *tape[index + 1 :])
    for index, number in enumerate(tape):
        if number > 1:
            yield (*tape[:index], number - 1, *tape[index + 1 :])


def _smaller_worlds(world: World) -> Iterator[World]:
    for script in _smaller_scripts(world.script or ()):
        yield attrs.evolve(world, script=script)
    for path, own in world.nested.items():
        rest: Mapping[str, tuple[Step, ...]] = {key: value for key, value in world.nested.items() if key != path}
        yield attrs.evolve(world, nested=rest)
        for script in _smaller_scripts(own):
            yield attrs.evolve(world, nested={**world.nested, path: script})
    for verdict in world.verdicts:
        yield attrs.evolve(world, verdicts=tuple(one for one in world.verdicts if one is not verdict))
    for key in world.behaviors:
        yield attrs.evolve(world, behaviors={name: one for name, one in world.behaviors.items() if name != key})


def _one_at_a_time(script: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return *script* with a step for each call of a step that makes several."""
    apart: list[Any] = []
    for step in script:
        several = isinstance(step, list | tuple) and sum(isinstance(piece, CallStep) for piece in step) > 1
        apart += step if several else [step]
    return tuple(apart)


def _smaller_scripts(script: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    for index, step in enumerate(script):
        if len(script) > 1:
            yield (*script[:index], *script[index + 1 :])
        if isinstance(step, list | tuple) and len(step) > 1:
            for at in range(len(step)):
                yield (*script[:index], [*step[:at], *step[at + 1 :]], *script[index + 1 :])
