"""Runs as workflows of Temporal: they survive the end of their process, wait for days, and move between workers.

Needs the extra `temporal`. `AgentPlugin` gives a client and its workers the agents; `AgentWorkflow` is a workflow that
is ready to use, and `start_run` starts one. A workflow of one's own calls `run_agent`.

The loop of agentloop runs unchanged in the workflow's code. Each model call and each call of a tool is an activity, so
the engine's history holds its result, and what has completed is never done again.
"""

from importlib.util import find_spec

from agentloop._common.extras import describe_missing

if find_spec("temporalio") is None:
    raise ModuleNotFoundError(describe_missing("agentloop.temporal", "temporal"), name="temporalio")

from agentloop.temporal._options import ToolActivity
from agentloop.temporal._payloads import PayloadTooLarge
from agentloop.temporal._plugin import AgentPlugin
from agentloop.temporal._run_handle import AgentRunHandle, AgentRunResult, WorkerUnavailable, get_run, start_run
from agentloop.temporal._store import FolderParts, PartLost, PartStore, PartUnwritten
from agentloop.temporal._workflow import AgentRunInput, AgentWorkflow, run_agent

__all__ = [
    "AgentPlugin",
    "AgentRunHandle",
    "AgentRunInput",
    "AgentRunResult",
    "AgentWorkflow",
    "FolderParts",
    "PartLost",
    "PartStore",
    "PartUnwritten",
    "PayloadTooLarge",
    "ToolActivity",
    "WorkerUnavailable",
    "get_run",
    "run_agent",
    "start_run",
]
