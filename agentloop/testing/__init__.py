"""Run agents in tests: models that follow a script or a function, logs compared without their random parts, and
schedules: generated, searched, repeated, shrunk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentloop._common.lazy_names import import_at_first_use
from agentloop.testing.scripted import ScriptedModel, Step, call, fail, reason, respond, say, stream_of, wait
from agentloop.testing.simulation.normal_form import normal

if TYPE_CHECKING:
    from agentloop.testing.explorer._own import invariant
    from agentloop.testing.invariants import INVARIANTS, CoverageCounter, InvariantError, Observation, check
    from agentloop.testing.models import CassetteDivergence, FunctionModel, RecordingModel, ReplayModel
    from agentloop.testing.replaying import Replayed, Shadowed, ShadowReport, replay
    from agentloop.testing.simulation.crashing import (
        CrashAt,
        CrashRun,
        CrashSwept,
        SimulatedDisk,
        crash_sweep,
        crash_world,
    )
    from agentloop.testing.simulation.event_loop import Deadlock, run_deterministic
    from agentloop.testing.simulation.exploring import (
        ExplorationFailure,
        Explored,
        Swept,
        explore,
        explore_world,
        kill_sweep,
    )
    from agentloop.testing.simulation.gate import Gate
    from agentloop.testing.simulation.generated import (
        approvals,
        cancel_points,
        scripts,
        strategy,
        tool_behaviours,
        worlds,
    )
    from agentloop.testing.simulation.runs import (
        Body,
        BodyRun,
        CancelAt,
        CleanupRun,
        ExternalAnswer,
        Steering,
        Verdict,
        World,
        WorldRun,
        WorldRuns,
        run,
        run_one,
    )
    from agentloop.testing.simulation.schedules import Exhaustive, Priorities, Tape, tape_of
    from agentloop.testing.simulation.world import WorldOptions

# Names that need their own event loop, or the backends' private names, are imported at first use. No module has
# the name of a function in it: the import of the module would replace the function here.
_FROM = {
    "simulation.event_loop": ("Deadlock", "run_deterministic"),
    "simulation.crashing": ("CrashAt", "CrashRun", "CrashSwept", "SimulatedDisk", "crash_sweep", "crash_world"),
    "simulation.exploring": ("ExplorationFailure", "Explored", "Swept", "explore", "explore_world", "kill_sweep"),
    "simulation.gate": ("Gate",),
    "simulation.generated": ("approvals", "cancel_points", "scripts", "strategy", "tool_behaviours", "worlds"),
    "explorer._own": ("invariant",),
    "invariants": ("INVARIANTS", "Observation", "InvariantError", "CoverageCounter", "check"),
    "models": ("CassetteDivergence", "FunctionModel", "RecordingModel", "ReplayModel"),
    "replaying": ("Replayed", "ShadowReport", "Shadowed", "replay"),
    "simulation.runs": (
        *("ExternalAnswer", "Body", "BodyRun", "CancelAt", "CleanupRun", "Steering", "Verdict"),
        *("World", "WorldRun", "WorldRuns", "run", "run_one"),
    ),
    "simulation.world": ("WorldOptions",),
    "simulation.schedules": ("Exhaustive", "Priorities", "Tape", "tape_of"),
}
_MODULE_OF = {name: module for module, names in _FROM.items() for name in names}


if not TYPE_CHECKING:  # a checker reads the imports above, and reports a name that isn't among them
    __getattr__ = import_at_first_use(globals(), _MODULE_OF)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})


__all__ = [
    "ScriptedModel",
    "Step",
    "call",
    "fail",
    "reason",
    "respond",
    "say",
    "stream_of",
    "wait",
    "FunctionModel",
    "RecordingModel",
    "ReplayModel",
    "CassetteDivergence",
    "normal",
    "replay",
    "Replayed",
    "ShadowReport",
    "Shadowed",
    "explore",
    "explore_world",
    "Explored",
    "kill_sweep",
    "Swept",
    "crash_sweep",
    "crash_world",
    "CrashSwept",
    "CrashRun",
    "CrashAt",
    "SimulatedDisk",
    "ExplorationFailure",
    "World",
    "WorldOptions",
    "CancelAt",
    "Verdict",
    "ExternalAnswer",
    "Steering",
    "Body",
    "run",
    "run_one",
    "WorldRuns",
    "WorldRun",
    "BodyRun",
    "CleanupRun",
    "run_deterministic",
    "Deadlock",
    "Gate",
    "Tape",
    "Priorities",
    "Exhaustive",
    "tape_of",
    "worlds",
    "scripts",
    "tool_behaviours",
    "cancel_points",
    "approvals",
    "strategy",
    "check",
    "InvariantError",
    "CoverageCounter",
    "Observation",
    "INVARIANTS",
    "invariant",
]
