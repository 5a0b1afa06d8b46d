"""Deploys that change agents while runs wait: what goes on, and what waits for a worker whose agents fit."""

import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

pytest.importorskip("temporalio", reason="needs the extra temporal: nox -s tests-temporal")

import anyio
from temporal_engine.durable_agents import look_up, pay, scripted
from temporalio.client import Client
from temporalio.worker import Replayer, Worker

from agentloop import Agent, RunConfig, StateError, UserError, tool
from agentloop.abc import Model, ModelProvider
from agentloop.config.policies import Allow, Ask
from agentloop.records import CallStarted, RunEnded
from agentloop.temporal import AgentPlugin, AgentRunHandle, ToolActivity, WorkerUnavailable, start_run
from agentloop.temporal._options import _known
from agentloop.testing import call, say

pytestmark = [
    *(pytest.mark.real_clock, pytest.mark.leaves_threads),
    *(pytest.mark.timeout(120), pytest.mark.backends("asyncio")),
]

LOOKS = [call("look_up", {"n": 1}, call_id="a"), call("look_up", {"n": 2}, call_id="a2")]
STEPS = [LOOKS, [call("pay", {"amount": 1}, call_id="b")], say("done")]


def clerk(**changes: Any) -> Agent[Any, Any]:
    """Return the agent of the waiting run, as a later version of the application has it."""
    return Agent(**({"name": "clerk", "model": scripted(*STEPS), "tools": [look_up, pay]} | changes))


@tool
async def more(n: int) -> str:
    """A tool that came later."""
    return ""


@tool(name="look_up", idempotent=True, timeout=60.0)
async def look_up_in_time(n: int) -> str:
    """Look something up, in time."""
    return f"found {n}"


@tool(name="look_up", idempotent=True)
async def look_up_here(n: int) -> str:
    """Look something up, in another way and with another description."""
    return f"seen {n}"


@tool(name="look_up", idempotent=True)
async def look_up_more(n: int, more: str) -> str:
    """Look something up, by other arguments."""
    return f"found {n}"


@tool(name="look_up", idempotent=True, needs_approval=True)
async def look_up_asked(n: int) -> str:
    """Look something up, once somebody has agreed."""
    return f"found {n}"


@tool(name="look_up", idempotent=True, serial="look_up")
async def look_up_in_turn(n: int) -> str:
    """Look something up, one call at a time."""
    return f"found {n}"


@tool(name="look_up")
async def look_up_once(n: int) -> str:
    """Look something up, which may not be done twice."""
    return f"found {n}"


@tool(name="pay")
async def pay_freely(amount: int) -> str:
    """Pay without an approval."""
    return f"paid {amount} freely"


@tool(name="pay", needs_approval=True)
async def pay_somebody(amount: int, to: str) -> str:
    """Pay somebody."""
    return f"paid {amount} to {to}"


Change = tuple[Agent[Any, Any], dict[str, Any]]
ALLOWED: dict[str, Change] = {
    "nothing": (clerk(), {}),
    "instructions": (clerk(instructions="Be brief."), {}),
    "the model": (clerk(model="mine:other"), {}),
    "one tool more": (clerk(tools=[more, look_up, pay]), {}),
    "a tool's body and description": (clerk(tools=[look_up_here, pay]), {}),
    "a tool is not idempotent any more": (clerk(tools=[look_up_once, pay]), {}),
    "a tool has a queue of its own": (clerk(), {"tools": {"look_up": ToolActivity(task_queue="other")}}),
    "shorter histories": (clerk(), {"max_history": 20}),
    "the waiting tool needs no approval": (clerk(tools=[look_up, pay_freely]), {}),
    "the waiting tool has another schema": (clerk(tools=[look_up, pay_somebody]), {}),
}
REFUSED: dict[str, Change] = {
    "a tool that was called is gone": (clerk(tools=[pay]), {}),
    "a tool that was called has a timeout now": (clerk(tools=[look_up_in_time, pay]), {}),
    "a tool that was called has another schema": (clerk(tools=[look_up_more, pay]), {}),
    "a tool that was called needs an approval now": (clerk(tools=[look_up_asked, pay]), {}),
    "a tool that was called runs in the workflow now": (
        clerk(),
        {"tools": {"look_up": ToolActivity(in_workflow=True)}},
    ),
    "a tool that was called is serial now": (clerk(tools=[look_up_in_turn, pay]), {}),
    "the runs have a timeout now": (clerk(), {"run_config": RunConfig(timeout=3600.0)}),
    "the waiting tool is gone": (clerk(tools=[look_up]), {}),
}


@asynccontextmanager
async def deploy(address: str, queue: str, agent: Agent[Any, Any], **options: Any) -> AsyncIterator[Client]:
    """Run a worker of one version of the application, the only one on the queue. Each task is a replay."""
    client = await Client.connect(address, plugins=[AgentPlugin({"clerk": agent}, **options)])
    grace = timedelta(seconds=5)
    async with Worker(client, task_queue=queue, graceful_shutdown_timeout=grace, max_cached_workflows=0):
        yield client


async def start_waiting(client: Client, queue: str) -> AgentRunHandle:
    """Return a run that waits for its approval."""
    handle = await start_run(client, "clerk", "go", id=f"deploy-{uuid4().hex}", task_queue=queue)
    async for record in handle.records(interval=0.1):
        if isinstance(record, RunEnded):
            return handle
    raise AssertionError("the run is over")


def new_queue() -> str:
    """Return the name of a queue of its own."""
    return f"queue-{uuid4().hex}"


async def test_changed_agents_and_waiting_runs(address: str) -> None:
    """What the next turn uses may change; what happened already must happen again."""
    queue = new_queue()
    async with deploy(address, queue, clerk()) as client:
        handle = await start_waiting(client, queue)
        history = await handle.workflow.fetch_history()
    await handle.workflow.terminate()
    refused = {}
    for change, (agent, options) in {**ALLOWED, **REFUSED}.items():
        replayer = Replayer(workflows=[], plugins=[AgentPlugin({"clerk": agent}, **options)])
        refused[change] = (await replayer.replay_workflow(history, raise_on_replay_failure=False)).replay_failure
    assert [change for change in ALLOWED if refused[change]] == []
    assert [change for change in REFUSED if not refused[change]] == []


UNFIT: dict[str, tuple[Change, str]] = {
    "no tool": (REFUSED["the waiting tool is gone"], "call 'b' waits for tool 'pay'"),
    "another schema": (
        ALLOWED["the waiting tool has another schema"],
        "tool 'pay' of agent 'clerk' has another schema",
    ),
}


@pytest.mark.scenario("SM-04")
@pytest.mark.parametrize("change", [*UNFIT, "no agent"])
async def test_a_worker_that_does_not_fit_leaves_a_waiting_call_to_another(address: str, change: str) -> None:
    """Its workflow tasks fail, who decides is told why, and the worker that fits ends the run."""
    queue = new_queue()
    async with deploy(address, queue, clerk()) as client:
        handle = await start_waiting(client, queue)
    if change == "no agent":
        agent, options, why = clerk(), {}, "no agent 'clerk'"
        other: Any = AgentPlugin({"cashier": agent})
        _known.pop("clerk")
        client = await Client.connect(address, plugins=[other])
        wrong: Any = Worker(client, task_queue=queue, max_cached_workflows=0)
    else:
        (agent, options), why = UNFIT[change]
        wrong = deploy(address, queue, agent, **options)
    async with wrong:
        said = ""
        with anyio.fail_after(90):
            while why not in said:  # until its worker has tried
                with pytest.raises(WorkerUnavailable) as caught:
                    await handle.approve("b", timeout=4.0)
                said = str(caught.value)
    async with deploy(address, queue, clerk()):
        await decide(handle)
        with anyio.fail_after(60):
            result = await handle.result()
    assert result.final_output == "done"
    assert [one["outcome"]["output"] for one in result.data["calls"]] == ["found 1", "found 2", "paid 1"]


async def decide(handle: AgentRunHandle) -> None:
    """Approve the call, unless the update that a worker refused has been taken by this one meanwhile."""
    with contextlib.suppress(StateError):
        await handle.approve("b")


class _Says:
    """A policy that always says the same."""

    def __init__(self, decision: Any) -> None:
        self.decision = decision

    def decide(self, pending: Any) -> Any:
        return self.decision if pending.call.name == "pay" else Allow()


def policy(decision: Any) -> dict[str, Any]:
    """Return the options of a plugin with one policy for payments."""
    return {"run_config": RunConfig(policies=[_Says(decision)])}


HELD: dict[str, tuple[Change, Change]] = {
    "the tool": ((clerk(), {}), (clerk(tools=[look_up, pay_freely]), {})),
    "a policy": (
        (clerk(tools=[look_up, pay_freely]), policy(Ask("much"))),
        (clerk(tools=[look_up, pay_freely]), policy(Allow())),
    ),
}


@pytest.mark.scenario("SM-05")
@pytest.mark.parametrize("asked_by", list(HELD))
async def test_an_approval_that_was_asked_for_holds_after_a_deploy(address: str, asked_by: str) -> None:
    """The history says that the call waits, also to a worker whose code wouldn't ask."""
    queue = new_queue()
    (before, options), (after, changed) = HELD[asked_by]
    async with deploy(address, queue, before, **options) as client:
        handle = await start_waiting(client, queue)
    async with deploy(address, queue, after, **changed):
        assert [one["call_id"] for one in await handle.interruptions()] == ["b"]
        await handle.reject("b", message="no")
        with anyio.fail_after(60):
            result = await handle.result()
    assert [one["outcome"]["status"] for one in result.data["calls"]] == ["succeeded", "succeeded", "rejected"]
    # Each later replay agrees, and one by the code of before as well.
    for agent, given in ((after, changed), (before, options)):
        replayer = Replayer(workflows=[], plugins=[AgentPlugin({"clerk": agent}, **given)])
        await replayer.replay_workflow(await handle.workflow.fetch_history())


class _NoKey(ModelProvider):
    def get_model(self, name: str) -> Model:
        raise UserError("no API key")


@pytest.mark.scenario("SM-04")
async def test_a_worker_without_a_key_fails_activities_and_ends_no_run(address: str) -> None:
    """The engine sees the failed attempts, and another worker makes the next one."""
    queue = new_queue()
    config = RunConfig(model_provider=_NoKey())
    async with deploy(address, queue, clerk(model="mine:big"), run_config=config) as client:
        handle = await start_run(client, "clerk", "go", id=f"key-{uuid4().hex}", task_queue=queue)
        with anyio.fail_after(60):
            attempts = 0
            while attempts < 2:
                await anyio.sleep(0.1)
                pending = (await handle.workflow.describe()).raw_description.pending_activities
                attempts = max((one.attempt for one in pending if "no API key" in one.last_failure.message), default=0)
    async with deploy(address, queue, clerk()):
        with anyio.fail_after(60):
            while not await handle.interruptions():  # noqa: ASYNC110 - it is the engine that tries again
                await anyio.sleep(0.1)
            await handle.approve("b")
            assert (await handle.result()).final_output == "done"


@pytest.mark.scenario("SM-04")
async def test_a_body_that_may_be_called_once_is_begun_by_the_worker_that_has_it(address: str) -> None:
    """An activity of a worker without the tool fails before the body; another activity is made for it, and one body."""
    bodies: list[int] = []

    @tool
    async def send(n: int) -> str:
        """Send."""
        bodies.append(n)
        return f"sent {n}"

    def sender(*tools: Any) -> Agent[Any, Any]:
        return clerk(model=scripted([call("send", {"n": 1}, call_id="s")], say("done")), tools=list(tools))

    queue, tools = new_queue(), new_queue()
    options = {"tools": {"send": ToolActivity(task_queue=tools)}}
    async with deploy(address, queue, sender(send), **options) as client:
        handle = await start_run(client, "clerk", "go", id=f"send-{uuid4().hex}", task_queue=queue)
        async for record in handle.records(interval=0.1):
            if isinstance(record, CallStarted):
                break
    async with deploy(address, tools, sender()):
        with anyio.fail_after(60):
            while not any(one.HasField(_FAILED) for one in (await handle.workflow.fetch_history()).events):  # noqa: ASYNC110
                await anyio.sleep(0.1)
    async with deploy(address, queue, sender(send), **options) as client, Worker(client, task_queue=tools):
        with anyio.fail_after(60):
            result = await handle.result()
    assert [one["outcome"]["output"] for one in result.data["calls"]] == ["sent 1"]
    assert bodies == [1]


_FAILED = "activity_task_failed_event_attributes"
