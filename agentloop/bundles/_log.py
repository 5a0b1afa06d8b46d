"""The calls of tools in the log of a run, which bundles read: they are there after a resume and a compaction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from agentloop._common.errors import ModelBehaviorError
from agentloop._engine.runtime.live_run import RunServicesView
from agentloop._schema.json_text import parse_object
from agentloop.context import RunContext
from agentloop.records import CallbackReturned
from agentloop.settings import JsonLimits
from agentloop.tools import FunctionTool, PythonBody

_LIMITS = JsonLimits(max_bytes=None)
"""The calls have passed the limits of their run."""


def succeeded_calls(ctx: RunContext[Any], tool: FunctionTool[Any]) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Yield the parameters and the output of each call of *tool* in the run itself that has succeeded, last first.

    The arguments are read as the call read them. A call whose arguments don't fit the tool is passed by: an older
    version of it may have taken them. Outside of a run there is none.
    """
    run = ctx._run
    if not isinstance(run, RunServicesView):
        return
    assert isinstance(tool.body, PythonBody)
    for one in reversed((run.fold.at(run.path) or run.fold).calls.values()):
        if one.call.name == tool.name and one.outcome is not None and one.outcome.status == "succeeded":
            try:
                given = parse_object(one.arguments or one.call.arguments, _LIMITS, tool=tool.name)
                bound = tool.body.schema.bind(given)
            except ModelBehaviorError:
                continue
            yield bound.values, str(one.outcome.output)


def has_log(ctx: RunContext[Any]) -> bool:
    """Tell whether *ctx* is that of a run whose log can be read: not outside of a run, nor in an activity."""
    return isinstance(ctx._run, RunServicesView)


def source_tools(ctx: RunContext[Any]) -> set[str]:
    """Return the names of all tools that sources have given to the run itself, with their namespaces."""
    run = ctx._run
    if not isinstance(run, RunServicesView):
        return set()
    answers = [
        record.answer
        for record in run.fold.records
        if isinstance(record, CallbackReturned) and (record.what, record.path) == ("toolset", run.path)
    ]
    return {
        f"{tool['namespace']}.{tool['name']}" if tool.get("namespace") else tool["name"]
        for answer in answers
        for tool in answer or ()
    }
