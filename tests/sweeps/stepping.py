"""Runs a program again and again, ending it at its 0th, 1st, 2nd … task step, on both backends.

A step is one resume_from of a task; time is virtual, so that no sweep waits. *seed* picks which of the ready tasks goes
first, so that a sweep can go over task orders too.
"""

from collections.abc import Callable

from agentloop.testing import Tape
from agentloop.testing.simulation._stepping import COMBINATIONS, Kind, Program, Stepped, run_stepped
from agentloop.testing.simulation.event_loop import Backend
from agentloop.testing.simulation.schedules import first

__all__ = ["COMBINATIONS", "Backend", "Kind", "Program", "Stepped", "run_once"]


def run_once(
    backend: Backend,
    program: Program,
    *,
    at: int | None,
    kind: Kind = "scope",
    seed: int | None = None,
    mark: Callable[[], int] = lambda: 0,
) -> Stepped:
    """Run *program* on *backend*, cancelling it at step *at* (never, if None).

    *seed* chooses the order of tasks that are ready together (None: in the order of their creation). *mark* is asked at
    the moment of the cancellation.
    """
    scheduler = first if seed is None else Tape(seed=seed)
    return run_stepped(program, backend=backend, at=at, kind=kind, scheduler=scheduler, mark=mark)
