"""Calls that the application answers, in workflows: while the turn works, and after the run has paused."""

import json
from typing import Any
from uuid import uuid4

import pytest

pytest.importorskip("temporalio", reason="needs the extra temporal: nox -s tests-temporal")

import anyio
from temporal_engine.durable_agents import ROOM, agents, ask_room, scripted
from temporal_engine.test_waits import find_payloads
from temporal_engine.test_workflows import (
    assert_equal_logs,
    logged,
    replay_history,
    settled,
    start,
    started,
    waiting,
    worker,
)
from temporalio.client import Client, WorkflowUpdateFailedError
from temporalio.worker import Worker

from agentloop import Agent, Runner, StateError, UserError
from agentloop.exceptions import UserTypeError, UserValueError
from agentloop.temporal import AgentPlugin
from agentloop.testing import call, normal, say

pytestmark = [
    pytest.mark.real_clock,
    pytest.mark.timeout(120),
    pytest.mark.backends("asyncio"),
    pytest.mark.leaves_threads,
]


def outputs(result: Any) -> dict[str, str]:
    """Return the outputs of the calls by their ids."""
    return {one["call"]["call_id"]: one["outcome"]["output"] for one in result.data["calls"]}


@pytest.mark.scenario("PE-04", "DU-04")
async def test_the_log_of_an_answered_run_is_that_of_a_plain_run(address: str) -> None:
    """The call says what an answer is; the log has the normal form of a plain run's."""
    plain = agents()["guest"]
    state = (await Runner.run(plain, "go")).to_state()
    state.answer("r1", {"n": 7}, by="ada")
    last = await Runner.run(plain, state)
    plugin = AgentPlugin(agents())
    async with worker(address, plugin) as (client, queue):
        handle = await start(client, queue, "guest")
        (asked,) = await waiting(handle)
        assert (asked["tool"], asked["returns"], asked["expires_at"]) == ("room", ROOM, None)
        await started(handle, "RunEnded")
        await handle.answer("r1", {"n": 7}, by="ada")
        with anyio.fail_after(30):
            result = await handle.result()
        assert (result.status, result.final_output, outputs(result)) == ("completed", "done", {"r1": '{"n": 7}'})
        assert_equal_logs(await logged(handle, agents()["guest"]), normal(last.records))
        await replay_history(handle, plugin)


@pytest.mark.scenario("PE-04")
@pytest.mark.parametrize("agent", ["guest", "busy_guest"])
async def test_an_answer_fits_and_counts_once(address: str, agent: str) -> None:
    """What doesn't fit is refused to who gives it, and ignored by signal; the call waits on. Paused and within a turn.

    A second answer is refused by name while the turn goes on; of a run that continues, the call is gone.
    """
    plugin = AgentPlugin(agents())
    async with worker(address, plugin) as (client, queue):
        handle = await start(client, queue, agent)
        await waiting(handle)
        await (started(handle, "RunEnded") if agent == "guest" else started(handle, "CallStarted", 2))
        with pytest.raises(UserValueError, match=r"^the answer to call 'r1' of tool 'room' doesn't fit"):
            await handle.answer("r1", {"n": 0})
        with pytest.raises(UserValueError, match="expected a value or an error, got both"):
            await handle.answer("r1", {"n": 1}, error="no")
        with pytest.raises(StateError, match="no call 'other' waits for an answer"):
            await handle.answer("other", {"n": 1})
        with pytest.raises(UserError, match=r"^the answer doesn't fit: .*`\$\.by`"):
            await handle.answer("r1", {"n": 1}, by=1)  # type: ignore[arg-type]
        with pytest.raises(UserTypeError, match="it has no JSON form"):
            await handle.answer("r1", {1, 2})
        with pytest.raises(UserTypeError, match="path: expected a sequence of call ids"):
            await handle.answer("r1", {"n": 1}, path="a")
        with pytest.raises(StateError, match="no call 'r1' waits for a verdict"):
            await handle.approve("r1")
        wrong: list[dict[str, Any]] = [
            {"call_id": "r1", "value": {"n": "7"}},
            {"call_id": "r1", "value": {"n": 7}, "other": 1},
            {"value": {"n": 7}},
            {"call_id": "r1", "value": {"n": 7}, "path": ["a"]},
        ]
        for answer in wrong:
            await handle.workflow.signal("answer", answer)
            with pytest.raises(WorkflowUpdateFailedError):
                await handle.workflow.execute_update("give_answer", answer)
        assert [one["call_id"] for one in await handle.interruptions()] == ["r1"]
        await handle.answer("r1", {"n": 7}, by="ada")
        if agent == "busy_guest":
            assert await handle.interruptions() == []
            with pytest.raises(StateError, match="it was answered by 'ada'"):
                await handle.answer("r1", {"n": 8}, by="bob")
            await handle.cancel_call("w0")
        with anyio.fail_after(30):
            result = await handle.result()
        assert outputs(result)["r1"] == '{"n": 7}'
        with pytest.raises(Exception):  # noqa: B017 - the engine's own error of a closed workflow
            await handle.answer("r1", {"n": 8})
        given = [one for one in [each async for each in handle.records()] if type(one).__name__ == "CallAnswered"]
        assert [one.by for one in given] == ["ada"]  # type: ignore[union-attr]
        await replay_history(handle, plugin)


@pytest.mark.scenario("PE-04")
async def test_an_error_is_an_answer(address: str) -> None:
    """By signal, which needs no worker: it is taken by the next one."""
    client = await Client.connect(address, plugins=[AgentPlugin(agents())])
    queue = f"queue-{uuid4().hex}"
    async with Worker(client, task_queue=queue):
        handle = await start(client, queue, "guest")
        await started(handle, "RunEnded")
    await handle.answer("r1", error="No room is left.", by="ada", wait=False)
    async with Worker(client, task_queue=queue):
        with anyio.fail_after(30):
            result = await handle.result()
    assert "No room is left." in outputs(result)["r1"]


@pytest.mark.scenario("PE-04")
async def test_answers_find_calls_of_nested_runs_by_their_paths(address: str) -> None:
    """An id that waits in two of them is refused without a path."""
    plugin = AgentPlugin(agents())
    async with worker(address, plugin) as (client, queue):
        handle = await start(client, queue, "hotel")
        await started(handle, "RunEnded", 3)
        assert [one["path"] for one in await waiting(handle, 2)] == [["a"], ["b"]]
        with pytest.raises(StateError, match=r"^call id 'r1' waits in 2 runs of the tree: give its path"):
            await handle.answer("r1", {"n": 1})
        await handle.answer("r1", {"n": 1}, path=["b"])
        await handle.answer("r1", {"n": 2})
        with anyio.fail_after(30):
            assert (await handle.result()).final_output == "done"
        found = await settled(handle)
        assert sorted(one[:3] for one in found if one[0]) == [(("a",), "r1", "succeeded"), (("b",), "r1", "succeeded")]
        await replay_history(handle, plugin)


@pytest.mark.scenario("PE-04")
async def test_a_run_goes_on_when_nobody_has_answered_in_time(address: str) -> None:
    """The workflow waits by a timer, and the model is told of a timeout."""
    plugin = AgentPlugin(agents())
    async with worker(address, plugin) as (client, queue):
        handle = await start(client, queue, "late")
        with anyio.fail_after(30):
            result = await handle.result()
        assert [one["outcome"]["status"] for one in result.data["calls"]] == ["timed_out"]
        given = [one for one in [each async for each in handle.records()] if type(one).__name__ == "CallAnswered"]
        assert [one.late for one in given] == [True]  # type: ignore[union-attr]
        await replay_history(handle, plugin)


async def test_a_secret_answer_is_not_given_in_plain_text(address: str) -> None:
    """The engine's history would hold it. An error can be given."""

    class Backwards:
        def seal(self, data: bytes) -> bytes:
            return data[::-1]

        def open(self, sealed: bytes) -> bytes:
            return sealed[::-1]

    room = call("room", {}, call_id="r1")
    secretive = Agent("secretive", model=scripted(room, say("done")), tools=[ask_room(secret_output=True)])
    async with worker(address, AgentPlugin({"secretive": secretive}, codec=Backwards())) as (client, queue):
        handle = await start(client, queue, "secretive")
        await started(handle, "RunEnded")
        with pytest.raises(UserError, match="output of call 'r1' is secret"):
            await handle.answer("r1", {"n": 84129053771})
        await handle.answer("r1", error="No room is left.")
        with anyio.fail_after(30):
            assert (await handle.result()).final_output == "done"
        history = json.loads((await handle.workflow.fetch_history()).to_json())
    texts = find_payloads(history)
    assert any("No room is left." in text for text in texts)
    assert not any("84129053771" in text for text in texts)


async def test_a_replay_makes_the_same_record_of_an_answer(address: str) -> None:
    """Its time, too: without a cache, each query does the workflow again."""
    client = await Client.connect(address, plugins=[AgentPlugin(agents())])
    queue = f"queue-{uuid4().hex}"
    async with Worker(client, task_queue=queue, max_cached_workflows=0):
        handle = await start(client, queue, "guest")
        await started(handle, "RunEnded")
        await handle.answer("r1", {"n": 7})
        with anyio.fail_after(30):
            await handle.result()
        first, second = [[record async for record in handle.records()] for _ in range(2)]
    assert "CallAnswered" in {type(record).__name__ for record in first}
    assert first == second
