"""The text of a found fault: what is wrong, the calls and their order, and the line that repeats it."""

from __future__ import annotations

import attrs

from agentloop.testing.explorer._faults_of_runs import AgentFault
from agentloop.testing.explorer._runs import MOST_STEPS
from agentloop.testing.simulation._restarts import CrashRun
from agentloop.testing.simulation._timeline import script_as_code, timeline
from agentloop.testing.simulation.crashing import _make_timeline


def format_fault(agent: str, fault: AgentFault, seed: str, runs: int) -> str:
    """Return the report of *fault*."""
    run = fault.seen.run
    world = run.world
    first, *rest = fault.lines
    lines = [first, *(f"    {line}" for line in rest), ""]
    after = f"found after {runs} runs; " if runs else ""
    lines.append(f"{agent}: {after}on {run.backend}{', streamed' if run.streamed else ''}")
    if world.script is not None:
        steps = world.script[: _steps_taken(fault)]
        lines += ["script:", *(f"    {script_as_code([step])[1:-1]}" for step in steps)]
    lines += [f"    {path}: {script_as_code(own)}" for path, own in world.nested.items()]
    cancelled = world.cancel is not None and world.cancel.step != MOST_STEPS
    cancel = f", cancelled before step {world.cancel.step} ({world.cancel.kind})" if cancelled and world.cancel else ""
    if isinstance(run, CrashRun):
        lines.append(f"the process dies: {', '.join(map(repr, run.crashes))}")
    else:
        lines.append(f"tape: {list(run.tape)}{cancel}")
    plain = attrs.evolve(run, choices=(), trace=(), chosen_at=()) if isinstance(run, CrashRun) else run
    lines += ["timeline:", _make_timeline(run) if isinstance(run, CrashRun) else timeline(plain)]
    lines += ["see it again:", f"    pytest 'agentloop::{seed}'"]
    return "\n".join(lines)


def _steps_taken(fault: AgentFault) -> int:
    """Return the number of steps of the script that the run took."""
    asked = sum(not request.path for request in fault.seen.run.requests)
    return asked or len(fault.seen.run.world.script or ())


def summary(fault: AgentFault) -> str:
    """Return *fault* as one line."""
    return fault.lines[0]
