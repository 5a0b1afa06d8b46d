"""Which of the ready steps of a loop goes on, on either backend."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from agentloop.testing.simulation.schedules import Scheduler, first

StepT = TypeVar("StepT")


class Choosing(Generic[StepT]):
    """Puts ready steps in order as *scheduler* says; who came first goes first where it doesn't.

    What tells steps apart, their numbers and labels, is the loop's, and given with each choice: kept here it would make
    a cycle of the two.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = None if scheduler is first else scheduler
        self._arrived: dict[StepT, int] = {}
        self._rounds = 0

    def clear(self) -> None:
        """Let go of all steps."""
        self._arrived.clear()

    def permuted(self, steps: list[StepT], label: Callable[[StepT], str]) -> list[StepT]:
        """Return *steps*, given in their own order, in the chosen one."""
        if self._scheduler is None:
            return steps
        chosen = []
        while len(steps) > 1:
            chosen.append(steps.pop(self._scheduler([label(step) for step in steps])))
        return chosen + steps

    def one_of(
        self, ready: Iterable[StepT], serial: Callable[[StepT], int], label: Callable[[StepT], str]
    ) -> tuple[StepT, list[StepT]]:
        """Return the one of the *ready* steps that goes on, and the others; who waited longest comes first."""
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
