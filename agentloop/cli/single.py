"""One request: its run shown as it happens."""

from __future__ import annotations

from typing import Any

from agentloop.cli import failure
from agentloop.cli.course import Course
from agentloop.cli.job import Job
from agentloop.cli.show import JsonLines, Narrator, Show
from agentloop.cli.streams import OutputClosed
from agentloop.results import RunResult
from agentloop.run import Runner
from agentloop.runtime import open_runtime
from agentloop.state import RunState


def show_for(job: Job) -> Show:
    """Return what shows the run: JSON lines where the job asks for them."""
    kind = JsonLines if job.json else Narrator
    return kind(job.out, job.err, with_traceback=job.traceback)


async def run_one(job: Job, request: str, show: Show) -> int:
    """Run *request*, or go on with it, show it, and return the exit code.

    Cancellation: the run is cancelled and joined first; what was shown stays.
    """

    async def entry(given: str | RunState, options: dict[str, Any]) -> RunResult[Any]:
        async with Runner.run_streamed(job.agent, given, **options) as stream:
            async for event in stream:
                await show.event(event)
        return stream.result

    try:
        async with open_runtime() as runtime:
            ending = await Course(job, request).run(entry, lambda: job.open_model(runtime))
            await show.ended(ending)
            if ending.waiting:
                await job.err.write(f"{job.advice(None)}\n")
    except OutputClosed:
        raise
    except Exception as error:
        await show.failed(error)
        return failure.code_of(error)
    if ending.waiting:
        return failure.PENDING
    return failure.OK if ending.status == "completed" else failure.FAILED
