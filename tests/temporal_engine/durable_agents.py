"""The agents of these tests, and a worker of them as a program: `python -m temporal_engine.durable_agents ADDRESS`."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
from temporalio.client import Client
from temporalio.worker import Worker

from agentloop import Agent, ExternalTool, ToolContext, tool
from agentloop.items import ToolOutput
from agentloop.model_events import ModelRequest
from agentloop.temporal import AgentPlugin, ToolActivity
from agentloop.testing import FunctionModel, call, say

NOTES = "NOTES"
KILL_AT = "KILL_AT"
"""The environment's names for the file of notes, and for the note at which a worker kills itself, once."""


ROOM = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}}, "required": ["n"]}


def note(text: str) -> None:
    """Write a line that outlives the process; kill the process if it is asked to die here and nobody has yet."""
    path = os.environ.get(NOTES)
    if path is None:
        return
    with open(path, "a") as file:
        file.write(f"{text}\n")
        file.flush()
        os.fsync(file.fileno())
    if (point := os.environ.get(KILL_AT)) and text.startswith(point):
        mark = Path(path + ".killed")
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def notes(path: Path) -> list[str]:
    """Return the lines written so far."""
    return path.read_text().splitlines() if path.exists() else []


@contextmanager
def noted(what: str) -> Iterator[None]:
    """Write down the beginning and the end of a piece of work."""
    note(what)
    try:
        yield
    finally:
        note(f"end {what}")


@tool(idempotent=True)
async def look_up(ctx: ToolContext[Any], n: int) -> str:
    """Look something up."""
    with noted(f"look_up {n} {ctx.idempotency_key}"):
        await anyio.sleep(0.05)
    return f"found {n}"


@tool
def count(n: int) -> int:
    """Count, in a thread."""
    with noted(f"count {n}"):
        return n + 1


@tool(timeout=1.0)
async def hang() -> str:
    """Hang until the timeout."""
    with noted("hang"):
        await anyio.sleep_forever()
    raise AssertionError


@tool(timeout=3.0)
async def hang_longer() -> str:
    """Hang until a timeout that comes later."""
    with noted("hang longer"):
        await anyio.sleep_forever()
    raise AssertionError


@tool
async def wait(n: int) -> str:
    """Wait for a cancellation."""
    with noted(f"wait {n}"):
        await anyio.sleep_forever()
    raise AssertionError


@tool(needs_approval=True)
async def pay(amount: int) -> str:
    """Pay."""
    with noted(f"pay {amount}"):
        return f"paid {amount}"


@tool
async def fail(n: int) -> str:
    """Fail."""
    with noted(f"fail {n}"):
        raise ValueError(f"no {n}")


@tool
async def greet(ctx: ToolContext[Any]) -> str:
    """Greet whom the context names."""
    await ctx.report(1, 1, "done")
    return f"hello {ctx.context['name']}"


def ask_room(**options: Any) -> Any:
    """Return the external tool `room`, whose answers are `{"n": 3}`."""
    return ExternalTool("room", "Ask for the room.", {}, returns=ROOM, **options)


def scripted(*steps: Any) -> FunctionModel:
    """Return a model that knows its place from the turn alone: any worker may be asked."""

    def answer(request: ModelRequest) -> Any:
        with noted(f"model {'/'.join(request.path)} {request.turn}"):
            step = steps[request.turn - 1]
            return step(request) if callable(step) else step

    return FunctionModel(answer)


def sleeping(n: int) -> Agent[Any, Any]:
    """Return an agent whose *n* calls end only by a cancellation."""
    calls = [call("wait", {"n": each}, call_id=f"w{each}") for each in range(n)]
    return Agent("sleeping", model=scripted(calls, say("done")), tools=[wait])


def fronting() -> Agent[Any, Any]:
    """Return an agent whose only call is that of an agent whose call sleeps; both calls have the same id."""
    ask = sleeping(1).as_tool("ask_sleeping", "Ask.")
    return Agent(
        "fronting", model=scripted([call("ask_sleeping", {"input": "x"}, call_id="w0")], say("done")), tools=[ask]
    )


def talkative(turns: int) -> Agent[Any, Any]:
    """Return an agent that needs *turns* turns of one call each."""
    steps = [[call("look_up", {"n": n}, call_id=f"t{n}")] for n in range(turns)]
    return Agent("talkative", model=scripted(*steps, say("done")), tools=[look_up])


def agents() -> dict[str, Agent[Any, Any]]:
    """Return new agents, by the names that runs are started with."""
    inner = Agent(
        "inner", model=scripted([call("look_up", {"n": 10}, call_id="i1")], say("inner done")), tools=[look_up]
    )
    steps = [
        [
            call("look_up", {"n": 1}, call_id="a1"),
            call("count", {"n": 1}, call_id="a2"),
            call("hang", {}, call_id="a3"),
        ],
        [call("fail", {"n": 3}, call_id="b1"), call("count", {"n": 2}, call_id="b2")],
        [call("ask_inner", {"input": "x"}, call_id="c1"), call("pay", {"amount": 7}, call_id="c2")],
        say("all done"),
    ]
    ask = inner.as_tool("ask_inner", "Ask.")
    everything = Agent("everything", model=scripted(*steps), tools=[look_up, count, hang, pay, fail, ask])
    greeter = Agent("greeter", model=scripted([call("greet", {}, call_id="g1")], _echo), tools=[greet])
    payer = Agent("payer", model=scripted([call("pay", {"amount": 1}, call_id="p1")], say("paid")), tools=[pay])
    hanging = Agent(
        "hanging", model=scripted([call("hang_longer", {}, call_id="h1")], say("over")), tools=[hang_longer]
    )
    ask_payer = payer.as_tool("ask_payer", "Ask.")
    asked = [call("ask_payer", {"input": "x"}, call_id=call_id) for call_id in ("a", "b")]
    treasury = Agent("treasury", model=scripted(asked, say("done")), tools=[ask_payer])
    both = [call("pay", {"amount": 1}, call_id="p1"), call("wait", {"n": 0}, call_id="w0")]
    room = call("room", {}, call_id="r1")
    guest = Agent("guest", model=scripted(room, say("done")), tools=[ask_room()])
    late = Agent("late", model=scripted(room, say("done")), tools=[ask_room(timeout=1.0)])
    busy_guest = Agent(
        "busy_guest",
        model=scripted([room, call("wait", {"n": 0}, call_id="w0")], say("done")),
        tools=[ask_room(), wait],
    )
    to_guests = [call("ask_guest", {"input": "x"}, call_id=call_id) for call_id in ("a", "b")]
    hotel = Agent("hotel", model=scripted(to_guests, say("done")), tools=[guest.as_tool("ask_guest", "Ask.")])
    hasty = Agent("hasty", model=scripted(both, say("paid")), tools=[pay, wait])
    return {
        "busy_guest": busy_guest,
        "everything": everything,
        "fronting": fronting(),
        "hanging": hanging,
        "greeter": greeter,
        "guest": guest,
        "hasty": hasty,
        "hotel": hotel,
        "late": late,
        "payer": payer,
        "sleeping": sleeping(3),
        "talkative": talkative(6),
        "treasury": treasury,
    }


def _echo(request: ModelRequest) -> Any:
    outputs = [item.output for item in request.items if isinstance(item, ToolOutput)]
    users = [item.text for item in request.items if type(item).__name__ == "UserMessage"]
    return say(json.dumps([outputs, users]))


async def work(address: str, queue: str) -> None:
    """Run a worker until the process is killed. A lost one is missed soon."""
    soon = timedelta(seconds=2)
    lost = ToolActivity(heartbeat_timeout=soon)
    known = {name: agents()[name] for name in ("everything", "payer", "hanging")}
    used = {tool.name: lost for tool in (look_up, count, hang, pay, fail)}
    client = await Client.connect(address, plugins=[AgentPlugin(known, tools=used, model=lost)])
    await Worker(client, task_queue=queue, sticky_queue_schedule_to_start_timeout=soon).run()


if __name__ == "__main__":
    asyncio.run(work(*sys.argv[1:]))
