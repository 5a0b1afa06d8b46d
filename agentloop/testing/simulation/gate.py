"""A gate that lets the parts of a run through one at a time: one schedule for both backends.

The parts that a world simulates (answers of the model, tool bodies, guardrails, session I/O) wait at the gate. When
everything waits, the gate lets one part through, or lets time pass up to the next timer: a scheduler chooses. Trio and
asyncio do the same between two such choices, so one tape is one schedule on both. The gate does not know about runs
or agents: it sees labels and the loop only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import anyio

from agentloop.testing.simulation.event_loop import waiting
from agentloop.testing.simulation.schedules import Scheduler, first

TIME = "time passes"
TASK = "agentloop.testing gate"
"""Name of the gate's own task, so that its steps are not counted as the program's."""


class Gate:
    """A gate on the running deterministic event loop. Enter it (`async with`) around the code that waits at it.

    The gate owns one task, which alone chooses. Waiters add themselves with `point`; entering sets the loop's
    `timers_apart`, leaving restores it and joins the task.
    """

    def __init__(self, scheduler: Scheduler = first) -> None:
        self._scheduler = scheduler
        self._seen: Counter[str] = Counter()
        self._waiting: dict[str, anyio.Event] = {}
        self._some = anyio.Event()
        self._group: anyio.abc.TaskGroup | None = None
        self._over = False
        self.before_choice: Callable[[], bool] = lambda: False
        """Called before each choice. If it returns True, it cancelled something, and nothing is let through."""

    async def __aenter__(self) -> Gate:
        self._loop = waiting()
        # Timers due together would wake several tasks at once, and the order of their effects is the loop's own.
        self._apart_before = self._loop.timers_apart
        self._loop.timers_apart = True
        self._group = anyio.create_task_group()
        await self._group.__aenter__()
        self._group.start_soon(self._let_through, name=TASK)
        return self

    async def __aexit__(self, *error: object) -> None:
        assert self._group is not None
        self._loop.timers_apart = self._apart_before
        # Woken, not cancelled: on asyncio a cancelled task of a group leaves a cycle with every frame around it.
        self._over = True
        self._some.set()
        await self._group.__aexit__(None, None, None)  # noqa: ASYNC102 - joins the gate's own task, which ends now
        self._group = None

    async def point(self, label: str) -> None:
        """Wait at the gate until the schedule lets *label* through. Equal labels get numbers in order of arrival.

        Always a checkpoint. If the waiter is cancelled, its label leaves the gate.
        """
        self._seen[label] += 1
        times = self._seen[label]
        label = label if times == 1 else f"{label} ({times})"
        self._waiting[label] = anyio.Event()
        self._some.set()
        try:
            await self._waiting[label].wait()
        finally:
            self._waiting.pop(label, None)

    async def _let_through(self) -> None:
        while not self._over:
            if not self._waiting:
                self._some = anyio.Event()
                await self._some.wait()
            await self._loop.all_blocked()
            self._let_one_through()

    def _let_one_through(self) -> None:
        if self._over or not self._waiting or self.before_choice():
            return
        labels = sorted(self._waiting)
        if self._loop.next_timer() is not None:
            labels.append(TIME)
        chosen = labels[self._scheduler(labels)] if len(labels) > 1 else labels[0]
        if chosen == TIME:
            self._loop.jump()
        else:
            self._waiting.pop(chosen).set()
