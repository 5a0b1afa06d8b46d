"""The calls of tools in the log of a run, which bundles read: they are there after a resume and a compaction."""

from __future__ import annotations

from typing import Any

from agentloop._engine.runtime.live_run import RunServicesView
from agentloop.context import RunContext


def succeeded_calls(ctx: RunContext[Any], tool: str) -> list[tuple[str, str]]:
    """Return arguments and output, as texts, of each call of *tool* in the run itself that has succeeded.

    Outside of a run there is none.
    """
    run = ctx._run
    if not isinstance(run, RunServicesView):
        return []
    calls = (run.fold.at(run.path) or run.fold).calls.values()
    return [
        (one.arguments or one.call.arguments, str(one.outcome.output))
        for one in calls
        if one.call.name == tool and one.outcome is not None and one.outcome.status == "succeeded"
    ]
