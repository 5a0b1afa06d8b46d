"""Agents for the tests of `--journal` and `--approve`, loaded as a TARGET by every process anew.

Their models answer by rules that look at the request alone, so that a process may be anywhere in a run.
"""

import os
import signal
from pathlib import Path
from typing import Any

import anyio

from agentloop import Agent, ToolContext, tool
from agentloop.items import ToolOutput, UserMessage
from agentloop.model_events import ModelRequest
from agentloop.testing import ScriptedModel, call, say

MANY = 10_000


def scripted(rule: Any) -> ScriptedModel:
    """Return a model that answers every request by the same rule."""
    return ScriptedModel([rule] * MANY)


def asked(request: ModelRequest) -> str:
    """Return the request's first text."""
    return next(item.text for item in request.items if isinstance(item, UserMessage))


def outputs(request: ModelRequest) -> list[str]:
    """Return what the tools have said, in order."""
    return [str(item.output) for item in request.items if isinstance(item, ToolOutput)]


def note(text: str) -> None:
    """Add a line to the file, or pipe, that the test reads; it outlives the process at once."""
    descriptor = os.open(os.environ["AGENTLOOP_TEST_NOTES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, f"{text}\n".encode())
    finally:
        os.close(descriptor)


# -- two steps, with a crash between them


@tool(in_doubt="tell_model")
async def first(text: str) -> str:
    """Do the first thing."""
    note(f"first {text}")
    return f"first {text}"


@tool(idempotent=True)
def second(text: str) -> str:
    """Do the second thing; the first process to come here dies of it."""
    note(f"second {text}")
    if not (dead := Path(os.environ["AGENTLOOP_TEST_NOTES"] + ".dead")).exists():
        dead.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return f"second {text}"


def _two_steps(request: ModelRequest) -> Any:
    said, text = outputs(request), asked(request)
    if len(said) < 2:
        return call(("first", "second")[len(said)], {"text": text}, call_id=f"step_{len(said)}")
    return say(" and ".join(said))


dying = Agent("dying", model=scripted(_two_steps), tools=[first, second])

# -- failures


def _fails(request: ModelRequest) -> Any:
    if asked(request).startswith("bad"):
        return call("explode")
    return say(f"[{asked(request)}]")


@tool(failure_error_function=None)
async def explode() -> str:
    """Fail for good."""
    note("explode")
    raise ValueError("no: api_key=hunter2")


failing = Agent("failing", model=scripted(_fails), tools=[explode])
endless = Agent(
    "endless",
    model=scripted(
        lambda request: say("enough") if len(outputs(request)) > 2 else call("first", {"text": "go"}, _id(request))
    ),
    tools=[first],
)


def _id(request: ModelRequest) -> str:
    return f"step_{len(outputs(request))}"


# -- structured answers


@tool
async def measure() -> dict[str, int]:
    """Measure."""
    return {"width": 3}


measuring = Agent(
    "measuring", model=scripted(lambda _: call("measure")), tools=[measure], tool_use_behavior="stop_on_first_tool"
)

# -- approvals


@tool(needs_approval=True, secret=("password",))
async def delete(path: str, password: str = "") -> str:
    """Delete a file."""
    note(f"deleted {path}")
    return f"{path} is gone{' (with password)' if password else ''}"


@tool
async def look() -> str:
    """Look around."""
    note("looked")
    return "all quiet"


def _deletes(request: ModelRequest) -> Any:
    if said := outputs(request):
        return say("; ".join(said))
    return [call("delete", {"path": name}, call_id=f"call_{name}") for name in asked(request).split()]


def _unlocks(request: ModelRequest) -> Any:
    return say(outputs(request)[0]) if outputs(request) else call("delete", {"path": "a", "password": "hunter2"})


@tool(secret_output=True)
async def peek() -> str:
    """Return a secret value."""
    return "hunter2"


def _peeks(request: ModelRequest) -> Any:
    return say("seen") if outputs(request) else call("peek")


peeking = Agent("peeking", model=scripted(_peeks), tools=[peek])
telling = peeking.clone(name="telling", tool_use_behavior="stop_on_first_tool")


def _deletes_one_by_one(request: ModelRequest) -> Any:
    names, said = asked(request).split(), outputs(request)
    if len(said) == len(names):
        return say("; ".join(said))
    return call("delete", {"path": names[len(said)]}, call_id=f"call_{names[len(said)]}")


deleting = Agent("deleting", model=scripted(_deletes), tools=[delete, look])
unlocking = Agent("unlocking", model=scripted(_unlocks), tools=[delete])
one_by_one = Agent("one by one", model=scripted(_deletes_one_by_one), tools=[delete])
tricking = Agent(
    "tricking",
    model=scripted(
        lambda request: (
            say(outputs(request)[0])
            if outputs(request)
            else call("delete", '{"path": "a\u202etxt.exe"\n, "password": ""}')
        )
    ),
    tools=[delete],
)


def _delegates(request: ModelRequest) -> Any:
    if said := outputs(request):
        return say(said[0])
    return [call("ask_deleting", {"input": "x"}, call_id="outer"), call("delete", {"path": "y"}, call_id="call_x")]


boss = Agent(
    "boss",
    model=scripted(_delegates),
    tools=[deleting.as_tool("ask_deleting", "Have files deleted."), delete],
)

# -- many runs with effects, to be killed at random


@tool(idempotent=True, in_doubt="rerun")
async def put(ctx: ToolContext[None], text: str) -> str:
    """Have an effect that names itself by the key it is given: however often it is asked for, it is there once."""
    note(f"put {text} {ctx.idempotency_key}")
    await anyio.sleep(0.002)
    return f"put {text}"


@tool
async def add(text: str) -> str:
    """Have an effect that shows each time it is had."""
    note(f"add {text}")
    await anyio.sleep(0.002)
    return f"added {text}"


def _effects(request: ModelRequest) -> Any:
    said, text = outputs(request), asked(request)
    if len(said) == 0:
        return [call("put", {"text": text}, call_id="put_1"), call("add", {"text": f"{text}.1"}, call_id="add_1")]
    if len(said) == 2:
        return call("add", {"text": f"{text}.2"}, call_id="add_2")
    return say(f"answer {text}")


busy = Agent("busy", model=scripted(_effects), tools=[put, add])
