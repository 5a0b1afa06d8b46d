"""One request: its run shown as it happens."""

from __future__ import annotations

from agentloop.cli import failure
from agentloop.cli.job import Job
from agentloop.cli.show import JsonLines, Narrator, Show
from agentloop.cli.streams import OutputClosed
from agentloop.run import Runner
from agentloop.runtime import open_runtime


def show_for(job: Job) -> Show:
    """Return what shows the run: JSON lines where the job asks for them."""
    kind = JsonLines if job.json else Narrator
    return kind(job.out, job.err, with_traceback=job.traceback)


async def run_one(job: Job, request: str, show: Show) -> int:
    """Run *request*, show it, and return the exit code.

    Cancellation: the run is cancelled and joined first; what was shown stays.
    """
    try:
        async with open_runtime() as runtime:
            await job.open_model(runtime)
            async with Runner.run_streamed(job.agent, request, **job.how) as stream:
                async for event in stream:
                    await show.event(event)
            await show.ended(stream.result)
    except OutputClosed:
        raise
    except Exception as error:
        await show.failed(error)
        return failure.code_of(error)
    return failure.OK if stream.result.status == "completed" else failure.FAILED
