"""A gate, where the parts of a run wait until they are let through one at a time: a schedule for both backends.

The parts that a world fakes (answers of the model, tool bodies, guardrails, session I/O) wait at the gate. When
everything waits, one of them is let through, or time passes up to the next timer: a scheduler chooses. What the loop
does in between is the same on trio and asyncio, so one tape is one schedule on both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import anyio

from agentloop.testing.simulation.event_loop import waiting
from agentloop.testing.simulation.schedules import Scheduler, first

TIME = "time passes"
TASK = "agentloop.testing gate"
"""Names the gate's own task, whose steps are none of the program's."""


class Gate:
    """A gate on the running clockwork loop. Enter it (`async with`) around what waits at it."""

    def __init__(self, scheduler: Scheduler = first) -> None:
        self._scheduler = scheduler
        self._seen: Counter[str] = Counter()
        self._waiting: dict[str, anyio.Event] = {}
        self._some = anyio.Event()
        self._group: anyio.abc.TaskGroup | None = None
        self._over = False
        self.before_choice: Callable[[], bool] = lambda: False
        """Asked whenever something is to be let through; where it has done something itself, nothing is."""

    async def __aenter__(self) -> Gate:
        self._loop = waiting()
        # Together they'd wake tasks at once, and what these do to each other would depend on the loop.
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
        """Wait to be let through. Equal labels are told apart by the order in which they came."""
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
