"""Waits for workers: they have limits, a cancellation leaves them, and a run that is over can be read."""

import json
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

pytest.importorskip("temporalio", reason="needs the extra temporal: nox -s tests-temporal")

import anyio
from temporal_engine.durable_agents import agents
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client
from temporalio.worker import Worker

from agentloop import Agent, RunState, tool
from agentloop.abc import Codec
from agentloop.temporal import AgentPlugin, AgentRunHandle, ToolActivity, WorkerUnavailable, start_run
from agentloop.temporal._run_handle import _repeat
from agentloop.testing import FunctionModel, call, say

pytestmark = [
    *(pytest.mark.real_clock, pytest.mark.leaves_threads),
    *(pytest.mark.timeout(180), pytest.mark.backends("asyncio")),
]

ASKS: dict[str, Callable[[AgentRunHandle], Awaitable[Any]]] = {
    "interruptions": lambda run: run.interruptions(timeout=2.0),
    "approve": lambda run: run.approve("p1", timeout=2.0),
    "reject": lambda run: run.reject("p1", timeout=2.0),
    "answer": lambda run: run.answer("p1", 1, timeout=2.0),
    "cancel_call": lambda run: run.cancel_call("p1", timeout=2.0),
    "stored_state": lambda run: run.stored_state(timeout=2.0),
    "records": lambda run: anext(run.records(timeout=2.0)),
    "watch": lambda run: anext(run.watch(timeout=2.0)),
}
UNLIMITED: dict[str, Callable[[AgentRunHandle], Awaitable[Any]]] = {
    "interruptions": lambda run: run.interruptions(timeout=None),
    "approve": lambda run: run.approve("p1", timeout=None),
    "cancel_call": lambda run: run.cancel_call("p1", timeout=None),
    "stored_state": lambda run: run.stored_state(timeout=None),
    "records": lambda run: anext(run.records(timeout=None)),
    "result": lambda run: run.result(),
}


async def start(client: Client, queue: str, agent: str = "payer", **options: Any) -> AgentRunHandle:
    """Start a run with an id of its own."""
    return await start_run(client, agent, "go", id=f"wait-{uuid4().hex}", task_queue=queue, **options)


async def test_without_a_worker_each_wait_has_an_end(address: str) -> None:
    """One typed error that says so; a verdict that needn't be taken at once is stored for the next worker."""
    client = await Client.connect(address, plugins=[AgentPlugin({"payer": agents()["payer"]})])
    queue = f"queue-{uuid4().hex}"
    handle = await start(client, queue)

    async def ask(what: str) -> None:
        with pytest.raises(WorkerUnavailable, match="no worker of run"):
            await ASKS[what](handle)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            for what in ASKS:
                group.start_soon(ask, what)
    other = await start(client, queue)
    async with Worker(client, task_queue=queue, graceful_shutdown_timeout=timedelta(seconds=5)):
        with anyio.fail_after(60):
            while not await other.interruptions():  # noqa: ASYNC110 - it is another process
                await anyio.sleep(0.1)
    await other.approve("p1", by="ada", wait=False)
    async with Worker(client, task_queue=queue, graceful_shutdown_timeout=timedelta(seconds=5)):
        with anyio.fail_after(60):
            assert (await other.result()).final_output == "paid"
    await handle.workflow.terminate()


@pytest.mark.parametrize("what", list(UNLIMITED))
async def test_a_cancelled_wait_ends_as_one(address: str, what: str) -> None:
    """The scope around it catches it, and no other error comes out."""
    client = await Client.connect(address)
    handle = await start(client, f"queue-{uuid4().hex}")
    with anyio.move_on_after(0.5) as scope:
        await UNLIMITED[what](handle)
    assert scope.cancelled_caught
    await handle.workflow.terminate()


async def test_what_the_engine_refuses_is_raised_at_once() -> None:
    """Only what may pass is asked again."""

    async def refuse() -> None:
        raise KeyError("not of the engine")

    with pytest.raises(KeyError):
        await _repeat(None, "it", refuse, timeout=None)  # type: ignore[arg-type]


async def test_a_run_that_ended_behind_its_last_task_can_be_read(address: str) -> None:
    """An activity has ended, and no workflow task followed: the records are those of the last task.

    Terminated here, so that nothing has to be in time; a run that its timeout has ended has the same history.
    """
    queue, tools = f"queue-{uuid4().hex}", f"tools-{uuid4().hex}"
    options = {"tools": {"look_up": ToolActivity(task_queue=tools)}}
    client = await Client.connect(address, plugins=[AgentPlugin({"talkative": agents()["talkative"]}, **options)])
    async with Worker(client, task_queue=queue, max_cached_workflows=0):
        handle = await start(client, queue, "talkative")
        with anyio.fail_after(60):
            async for record in handle.records(interval=0.05):
                if type(record).__name__ == "CallStarted":
                    break
    completed = EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED
    # Now the body is called, and nobody takes the workflow task that follows.
    async with Worker(client, task_queue=tools):
        with anyio.fail_after(60):
            while await count_events(handle, completed) < 2:  # noqa: ASYNC110 - it is the engine that tells
                await anyio.sleep(0.05)
    await handle.workflow.terminate()
    async with Worker(client, task_queue=queue, max_cached_workflows=0):
        with anyio.fail_after(60):
            kinds = [type(record).__name__ async for record in handle.records(interval=0.05)]
            state = RunState.from_string(agents()["talkative"], await handle.stored_state())
            assert await handle.interruptions() == []
    assert kinds[-1] == "CallStarted"
    assert [type(record).__name__ for record in state.records] == kinds


async def count_events(handle: AgentRunHandle, kind: Any) -> int:
    """Return the number of events of one kind in the history."""
    return [event.event_type for event in (await handle.workflow.fetch_history()).events].count(kind)


class _Reversed(Codec):
    """Seals by turning bits: enough to see that nothing is in plain text."""

    def seal(self, data: bytes) -> bytes:
        return bytes(each ^ 0x55 for each in data)

    def open(self, sealed: bytes) -> bytes:
        return self.seal(sealed)


async def test_the_history_of_a_run_holds_no_secret(address: str) -> None:
    """Arguments, outputs, errors and answers of models are sealed; the question about the call is masked."""
    seen: list[str] = []

    @tool(needs_approval=True, secret=("pin",), secret_output=True)
    async def pay(n: int, pin: str) -> str:
        """Pay."""
        seen.append(pin)
        return f"paid with {pin}, receipt canary-output"

    @tool(secret=("pin",))
    async def check(pin: str) -> str:
        """Check."""
        raise ValueError(f"{pin} is too short")

    def turn(request: Any) -> Any:
        if request.turn == 3:
            seen.append(str(request.items[-1].output))
            return say("done")
        if request.turn == 2:
            return call("pay", {"n": 1, "pin": "canary-4711"}, "p1")
        return call("check", {"pin": "canary-1"}, "c1")

    payer = Agent("payer", model=FunctionModel(turn), tools=[pay, check])
    client = await Client.connect(address, plugins=[AgentPlugin({"payer": payer}, codec=_Reversed())])
    queue = f"queue-{uuid4().hex}"
    async with Worker(client, task_queue=queue, graceful_shutdown_timeout=timedelta(seconds=5), max_cached_workflows=0):
        handle = await start(client, queue)
        with anyio.fail_after(60):
            while not (waiting := await handle.interruptions()):  # noqa: ASYNC110 - it is another process
                await anyio.sleep(0.1)
            assert json.loads(waiting[0]["arguments"])["n"] == 1
            assert "canary" not in json.dumps(waiting)
            with pytest.raises(Exception, match="has secret arguments, which the engine's history would hold"):
                await handle.approve("p1", arguments={"n": 1, "pin": "canary-2"})
            await handle.approve("p1")
            result = await handle.result()
            state = await handle.stored_state()
    assert seen == ["canary-4711", "paid with canary-4711, receipt canary-output"]
    history = (await handle.workflow.fetch_history()).to_json()
    texts = [*find_payloads(json.loads(history)), json.dumps(dict(result.data)), state]
    assert [text[:200] for text in texts if "canary" in text] == []


def find_payloads(data: Any) -> list[str]:
    """Return all payloads of a history as texts."""
    import base64

    if isinstance(data, dict):
        own = [base64.b64decode(data["data"]).decode(errors="replace")] if isinstance(data.get("data"), str) else []
        return own + [text for value in data.values() for text in find_payloads(value)]
    if isinstance(data, list):
        return [text for value in data for text in find_payloads(value)]
    return [data] if isinstance(data, str) else []
