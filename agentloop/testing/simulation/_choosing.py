"""The choice among the ready steps of a loop, the same on both backends. Knows neither tasks nor loops."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from agentloop.testing.simulation.schedules import Scheduler, first

StepT = TypeVar("StepT")


class Choosing(Generic[StepT]):
    """Puts ready steps in the order that *scheduler* says; without one, the first to arrive is the first to run.

    Each loop owns one. The loop passes the numbers and labels of steps with each choice: kept here, they would make a
    reference cycle of the two.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = None if scheduler is first else scheduler
        self._arrived: dict[StepT, int] = {}
        self._rounds = 0

    def clear(self) -> None:
        """Release all steps."""
        self._arrived.clear()

    def permute(self, steps: list[StepT], label: Callable[[StepT], str]) -> list[StepT]:
        """Return *steps* in the chosen order; they come in the natural one. Empties the list it got."""
        if self._scheduler is None:
            return steps
        chosen = []
        while len(steps) > 1:
            chosen.append(steps.pop(self._scheduler([label(step) for step in steps])))
        return chosen + steps

    def one_of(
        self, ready: Iterable[StepT], serial: Callable[[StepT], int], label: Callable[[StepT], str]
    ) -> tuple[StepT, list[StepT]]:
        """Return the chosen one of the *ready* steps, and the others, those that have waited longest first."""
        self._rounds += 1
        arrived = {step: self._arrived.get(step, self._rounds) for step in ready}
        steps = sorted(arrived, key=lambda step: (arrived[step], serial(step)))
        at = 0
        if self._scheduler is not None and len(steps) > 1:
            at = self._scheduler([label(step) for step in steps])
        chosen = steps.pop(at)
        del arrived[chosen]
        self._arrived = arrived
        return chosen, steps
