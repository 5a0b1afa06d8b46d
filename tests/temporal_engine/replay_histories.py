"""Replay the histories of a folder: `python -m temporal_engine.replay_histories FOLDER`. Exits with 1 if one fails."""

import asyncio
import logging
import os
import sys
from pathlib import Path

from temporal_engine.durable_agents import agents
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer

from agentloop.temporal import AgentPlugin


async def replay(histories: list[Path]) -> int:
    """Replay each history; print what the workflow's code didn't do again, and return how many there were."""
    replayer = Replayer(workflows=[], plugins=[AgentPlugin(agents())])
    failed = 0
    for path in histories:
        history = WorkflowHistory.from_json(path.stem, path.read_text())
        done = await replayer.replay_workflow(history, raise_on_replay_failure=False)
        if done.replay_failure is not None:
            failed += 1
            print(path.name, done.replay_failure)
    return failed


if __name__ == "__main__":
    logging.disable(logging.ERROR)
    failed = min(asyncio.run(replay(sorted(Path(sys.argv[1]).glob("*.json")))), 1)
    sys.stdout.flush()
    # The threads of the SDK outlive the loop, and may crash an interpreter that takes itself down.
    os._exit(failed)
