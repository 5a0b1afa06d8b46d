"""Input added to a run in a workflow, by its handle: while a turn works, paused, between two workflows, and over."""

from functools import partial
from typing import Any
from uuid import uuid4

import pytest

pytest.importorskip("temporalio", reason="needs the extra temporal: nox -s tests-temporal")

import anyio
from temporal_engine.durable_agents import pay, scripted, wait
from temporal_engine.test_workflows import replay_history, start, started, worker
from temporalio.client import Client, WorkflowUpdateFailedError
from temporalio.worker import Worker

from agentloop import Agent, UserError
from agentloop.exceptions import InputRefusedError, UserValueError
from agentloop.records import InputAdded, InputShown, InputWithdrawn, Record
from agentloop.temporal import AgentPlugin, AgentRunHandle
from agentloop.testing import call, say

pytestmark = [
    pytest.mark.real_clock,
    pytest.mark.timeout(120),
    pytest.mark.backends("asyncio"),
    pytest.mark.leaves_threads,
]


def working() -> Agent[Any, Any]:
    """Return an agent whose only call ends by a cancellation, and which can answer twice."""
    return Agent("working", model=scripted(call("wait", {"n": 0}, call_id="w0"), say("one"), say("two")), tools=[wait])


async def records_of(handle: AgentRunHandle) -> list[Record]:
    """Return the run's records, once it is over."""
    return [record async for record in handle.records()]


def shown(records: list[Record]) -> list[str]:
    """Return the ids of inputs in the order in which the model saw them."""
    return [record.id for record in records if isinstance(record, InputShown)]


@pytest.mark.scenario("PE-01")
async def test_inputs_have_ids_and_moments_and_can_be_taken_back(address: str) -> None:
    """The turn under way goes on: no pause is needed. A replay makes the same records, with their times."""
    plugin = AgentPlugin({"working": working()})
    client = await Client.connect(address, plugins=[plugin])
    queue = f"queue-{uuid4().hex}"
    async with Worker(client, task_queue=queue, max_cached_workflows=0):
        handle = await start(client, queue, "working")
        await started(handle, "CallStarted")
        assert await handle.add_input("later", when="idle", id="l", by="ann") == "l"
        assert await handle.add_input("now") == "input_2"
        assert await handle.add_input("gone", id="g") == "g"
        await handle.withdraw("g", by="bob")
        assert await handle.add_input("later", when="idle", id="l") == "l"
        for refused, reason in (
            (handle.withdraw("g"), "withdrawn"),
            (handle.withdraw("none"), "unknown"),
            (handle.add_input("gone", id="g"), "withdrawn"),
            (handle.add_input("another", id="l"), "other_input"),
        ):
            with pytest.raises(InputRefusedError) as caught:
                await refused
            assert caught.value.reason == reason
        await handle.cancel_call("w0")
        with anyio.fail_after(30):
            assert (await handle.result()).final_output == "two"
        first, second = await records_of(handle), await records_of(handle)
        await replay_history(handle, plugin)
    assert first == second
    assert shown(first) == ["input_2", "l"]
    assert [(one.id, one.when, one.by) for one in first if isinstance(one, InputAdded)] == [
        ("l", "idle", "ann"),
        ("input_2", "turn", None),
        ("g", "turn", None),
    ]
    assert [(one.id, one.by) for one in first if isinstance(one, InputWithdrawn)] == [("g", "bob")]
    assert "CancelRequested" not in {type(record).__name__ for record in first if getattr(record, "call_id", 0) is None}


async def test_an_input_that_does_not_fit_is_refused_to_its_sender(address: str) -> None:
    """By any client of the engine, too; by signal it is ignored. The run goes on."""
    async with worker(address, AgentPlugin({"working": working()})) as (client, queue):
        handle = await start(client, queue, "working")
        await started(handle, "CallStarted")
        with pytest.raises(UserError, match=r"^the input doesn't fit: .*`\$\.when`"):
            await handle.add_input("x", when="soon")  # type: ignore[arg-type]
        with pytest.raises(UserValueError, match="id: expected text that isn't empty"):
            await handle.add_input("x", id="")
        with pytest.raises(UserError, match=r"^the withdrawal doesn't fit: .*`\$\.by`"):
            await handle.withdraw("x", by=1)  # type: ignore[arg-type]
        for wrong in ({"text": 1}, {}, {"text": "x", "other": 1}):
            with pytest.raises(WorkflowUpdateFailedError):
                await handle.workflow.execute_update("give_input", wrong)
            await handle.workflow.signal("input", wrong)
        await handle.cancel_call("w0")
        with anyio.fail_after(30):
            assert (await handle.result()).final_output == "one"
        assert shown(await records_of(handle)) == []


@pytest.mark.scenario("PE-01")
async def test_a_paused_run_takes_inputs(address: str) -> None:
    """They are in its records at once, also without a worker by signal, and are shown when it continues."""
    payer = Agent("payer", model=scripted(call("pay", {"amount": 1}, call_id="p1"), say("paid")), tools=[pay])
    plugin = AgentPlugin({"payer": payer})
    client = await Client.connect(address, plugins=[plugin])
    queue = f"queue-{uuid4().hex}"
    async with Worker(client, task_queue=queue, max_cached_workflows=0):
        handle = await start(client, queue, "payer")
        await started(handle, "RunEnded")
        assert await handle.add_input("one") == "input_1"
        await handle.add_input("gone", id="g")
        await handle.withdraw("g")
        await started(handle, "InputWithdrawn")
    name = await handle.add_input("two", wait=False)
    async with Worker(client, task_queue=queue, max_cached_workflows=0):
        await started(handle, "InputAdded", 3)
        await handle.approve("p1")
        with anyio.fail_after(30):
            await handle.result()
        first, second = await records_of(handle), await records_of(handle)
        await replay_history(handle, plugin)
    assert first == second
    assert shown(first) == ["input_1", name]


@pytest.mark.scenario("PE-01", "DU-05")
@pytest.mark.parametrize("most", [1, 30])
async def test_inputs_of_a_run_that_continues_as_a_new_workflow(address: str, most: int) -> None:
    """Each is shown once, in the order in which they were taken, whichever of its workflows took it."""
    turns = [call("wait", {"n": n}, call_id=f"w{n}") for n in range(4)]
    agent = Agent("patient", model=scripted(*turns, say("done")), tools=[wait])
    async with worker(address, AgentPlugin({"patient": agent}, max_history=most)) as (client, queue):
        handle = await start(client, queue, "patient")
        for number in range(4):
            await started(handle, "CallStarted", number + 1)
            async with anyio.create_task_group() as group:
                group.start_soon(handle.cancel_call, f"w{number}")
                if number < 3:  # the last turn may be the run's end
                    for each in "ab":
                        group.start_soon(partial(handle.add_input, "x", id=f"{number}{each}"))
        with anyio.fail_after(60):
            await handle.result()
        records = await records_of(handle)
    assert sorted(shown(records)) == [f"{number}{each}" for number in range(3) for each in "ab"]
    assert shown(records) == [one.id for one in records if isinstance(one, InputAdded)]


@pytest.mark.scenario("PE-01")
async def test_a_run_that_is_over_refuses_inputs_but_knows_its_own(address: str) -> None:
    """So a call whose end the sender doesn't know can be repeated."""
    async with worker(address, AgentPlugin({"working": working()})) as (client, queue):
        handle = await start(client, queue, "working")
        await started(handle, "CallStarted")
        await handle.add_input("now", id="n")
        await handle.cancel_call("w0")
        with anyio.fail_after(30):
            await handle.result()
        assert await handle.add_input("now", id="n") == "n"
        for refused in (
            handle.add_input("more"),
            handle.add_input("more", id="n"),
            handle.add_input("more", id="m"),
            handle.withdraw("n"),
        ):
            with pytest.raises(InputRefusedError) as caught:
                await refused
            assert caught.value.reason == "over"


@pytest.mark.scenario("PE-09")
async def test_inputs_of_many_senders_are_in_the_order_of_their_acknowledgements(address: str) -> None:
    """All are in the log, each once."""
    async with worker(address, AgentPlugin({"working": working()})) as (client, queue):
        handle = await start(client, queue, "working")
        await started(handle, "CallStarted")
        names: list[str] = []

        async def send(number: int) -> None:
            names.append(await handle.add_input(f"input {number}"))

        async with anyio.create_task_group() as group:
            for number in range(20):
                group.start_soon(send, number)
        await handle.cancel_call("w0")
        with anyio.fail_after(30):
            await handle.result()
        added = [one.id for one in await records_of(handle) if isinstance(one, InputAdded)]
        assert sorted(added) == sorted(names)
        assert len(added) == 20
