"""Runs as workflows of the engine's own server: their logs, verdicts, cancellations and continuations."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

pytest.importorskip("temporalio", reason="needs the extra temporal: nox -s tests-temporal")

import anyio
from temporal_engine.durable_agents import agents
from temporalio.client import Client, WorkflowFailureError, WorkflowUpdateFailedError
from temporalio.worker import Replayer, Worker

from agentloop import (
    Agent,
    Bundle,
    Capacity,
    ContextPolicy,
    RunConfig,
    Runner,
    RunState,
    SealKey,
    Summarize,
    UserError,
    tool,
)
from agentloop.bundles import FolderMemory, Memory
from agentloop.exceptions import StateError, UserTypeError
from agentloop.items import ToolCall
from agentloop.records import CallSettled
from agentloop.temporal import AgentPlugin, AgentRunHandle, AgentWorkflow, ToolActivity, WorkerUnavailable, start_run
from agentloop.temporal._payloads import pack
from agentloop.temporal._workflow import AgentRunInput
from agentloop.testing import normal

pytestmark = [
    pytest.mark.real_clock,
    pytest.mark.timeout(120),
    pytest.mark.backends("asyncio"),
    pytest.mark.leaves_threads,
]


@asynccontextmanager
async def worker(address: str, plugin: AgentPlugin, *, queue: str | None = None) -> AsyncIterator[tuple[Client, str]]:
    """Run a worker, on a queue of its own if no other is given; give a client and the queue."""
    client = await Client.connect(address, plugins=[plugin])
    queue = queue or f"queue-{uuid4().hex}"
    async with Worker(client, task_queue=queue, graceful_shutdown_timeout=timedelta(seconds=5)):
        yield client, queue


async def start(client: Client, queue: str, agent: str, text: str = "go", **options: Any) -> AgentRunHandle:
    """Start a run with an id of its own."""
    run_id = f"{agent}-{uuid4().hex}"
    return await start_run(
        client, agent, text, id=run_id, task_queue=queue, execution_timeout=timedelta(seconds=60), **options
    )


async def waiting(handle: AgentRunHandle, count: int = 1) -> list[dict[str, Any]]:
    """Return the calls that wait, once there are *count* of them."""
    with anyio.fail_after(30):
        while len(found := await handle.interruptions()) < count:  # noqa: ASYNC110 - it is another process
            await anyio.sleep(0.05)
    return found


async def started(handle: AgentRunHandle, kind: str, count: int = 1) -> None:
    """Wait until the run has *count* records of a kind."""
    with anyio.fail_after(30):
        seen = 0
        async for record in handle.records(interval=0.05):
            seen += type(record).__name__ == kind
            if seen == count:
                return
    raise AssertionError(f"the run ended with {seen} of {kind}")


async def logged(handle: AgentRunHandle, agent: Agent[Any, Any]) -> list[dict[str, Any]]:
    """Return the normal form of the run's log."""
    return normal(RunState.from_string(agent, await handle.stored_state()).records)


def assert_equal_logs(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    """Compare record by record, so that a failure shows the first that differ."""
    for ours, theirs in zip(found, expected, strict=False):
        assert ours == theirs
    assert len(found) == len(expected)


async def replay_history(handle: AgentRunHandle, plugin: AgentPlugin) -> None:
    """Have the engine check that the workflow's code does again what its history says."""
    history = await handle.workflow.fetch_history()
    result = await Replayer(workflows=[], plugins=[plugin]).replay_workflow(history, raise_on_replay_failure=False)
    assert result.replay_failure is None


@pytest.mark.scenario("DU-01", "DU-04")
async def test_the_log_is_that_of_a_plain_run(address: str) -> None:
    """Parallel, sync, timed-out, failing, approved and nested calls: the log has the normal form of a plain run's."""
    plain = agents()["everything"]
    first = await Runner.run(plain, "go")
    state = first.to_state()
    for request in state.interruptions:
        state.approve(request, by="boss")
    last = await Runner.run(plain, state)
    plugin = AgentPlugin(agents())
    async with worker(address, plugin) as (client, queue):
        handle = await start(client, queue, "everything")
        assert [(one["tool"], one["arguments"]) for one in await waiting(handle)] == [("pay", '{"amount": 7}')]
        await started(handle, "RunEnded")  # before that the verdict would come within the turn
        await handle.approve("c2", by="boss")
        result = await handle.result()
        assert (result.status, result.final_output) == ("completed", "all done")
        ours = agents()["everything"]
        assert_equal_logs(await logged(handle, ours), normal(last.records))
        await replay_history(handle, plugin)


@pytest.mark.scenario("DU-04")
async def test_verdicts(address: str) -> None:
    """An update is refused where nothing waits, and a rejection reaches the model; a signal works as well."""
    async with worker(address, AgentPlugin(agents())) as (client, queue):
        handle = await start(client, queue, "payer")
        await waiting(handle)
        with pytest.raises(StateError, match="no call 'other' waits"):
            await handle.approve("other")
        await handle.reject("p1", message="too much")
        result = await handle.result()
        assert [one["outcome"]["status"] for one in result.data["calls"]] == ["rejected"]
        handle = await start(client, queue, "payer")
        await waiting(handle)
        await handle.workflow.signal("verdict", {"call_id": "p1", "approved": True})
        assert [one["outcome"]["status"] for one in (await handle.result()).data["calls"]] == ["succeeded"]


@pytest.mark.scenario("SM-01", "SM-02")
async def test_a_second_verdict_names_the_first(address: str) -> None:
    """While the turn goes on a verdict may be replaced on purpose; after that it stands, and the log is read."""
    plugin = AgentPlugin(agents())
    async with worker(address, plugin) as (client, queue):
        handle = await start(client, queue, "hasty")
        await waiting(handle)
        await started(handle, "CallStarted")
        await handle.reject("p1", message="fraud", by="ann")
        assert await handle.interruptions() == []
        with pytest.raises(StateError, match="it was rejected by 'ann'; with replace=True"):
            await handle.approve("p1", by="bob")
        with pytest.raises(UserTypeError, match="replace: expected True or False"):
            await handle.approve("p1", replace=1)  # type: ignore[arg-type]
        await handle.approve("p1", by="bob", replace=True)
        await handle.cancel_call("w0")
        with anyio.fail_after(30):
            result = await handle.result()
        with pytest.raises(Exception):  # noqa: B017 - the engine's own error of a closed workflow
            await handle.approve("p1", replace=True)
        assert {one["call"]["call_id"]: one["outcome"]["status"] for one in result.data["calls"]}["p1"] == "succeeded"
        given = [one for one in [each async for each in handle.records()] if type(one).__name__ == "VerdictGiven"]
        assert [(one.approved, one.by) for one in given] == [(False, "ann"), (True, "bob")]  # type: ignore[union-attr]
        await replay_history(handle, plugin)


@pytest.mark.scenario("SM-03")
async def test_a_call_that_was_cancelled_while_it_waited_never_runs(address: str) -> None:
    """Its approval comes after that, and changes nothing."""
    plugin = AgentPlugin(agents())
    async with worker(address, plugin) as (client, queue):
        handle = await start(client, queue, "hasty")
        await waiting(handle)
        await started(handle, "CallStarted")
        assert await handle.cancel_call("p1", "enough") is True
        await handle.cancel_call("w0")
        await started(handle, "RunEnded")
        await handle.approve("p1")
        with anyio.fail_after(30):
            result = await handle.result()
        outcomes = {one["call"]["call_id"]: one["outcome"] for one in result.data["calls"]}
        assert (outcomes["p1"]["status"], outcomes["p1"]["reason"]) == ("cancelled", "enough")
        await replay_history(handle, plugin)


async def test_a_paused_run_says_that_its_calls_are_rejected_instead(address: str) -> None:
    """Nothing of it can be cancelled. The call still waits, and an unknown one is `False` as ever."""
    plugin = AgentPlugin(agents())
    async with worker(address, plugin) as (client, queue):
        handle = await start(client, queue, "payer")
        await waiting(handle)
        await started(handle, "RunEnded")
        with pytest.raises(StateError, match=r"^cancel_call: call 'p1' waits for a verdict.*reject the call"):
            await handle.cancel_call("p1", "enough")
        assert await handle.cancel_call("p9") is False
        await handle.reject("p1", message="enough")
        with anyio.fail_after(30):
            result = await handle.result()
        assert {one["call"]["call_id"]: one["outcome"]["status"] for one in result.data["calls"]}["p1"] == "rejected"
        await replay_history(handle, plugin)


@pytest.mark.parametrize("agent", ["payer", "hasty"])
async def test_a_verdict_that_does_not_fit_leaves_the_call_waiting(address: str, agent: str) -> None:
    """It is refused to who gives it, between two turns and within one; one by signal is ignored. The run goes on."""
    plugin = AgentPlugin(agents())
    async with worker(address, plugin) as (client, queue):
        handle = await start(client, queue, agent)
        await waiting(handle)
        await started(handle, "RunEnded" if agent == "payer" else "CallStarted")
        with pytest.raises(UserError, match=r"^the arguments given for call 'p1' don't fit: .*missing: amount"):
            await handle.approve("p1", arguments={"sum": 1})
        with pytest.raises(UserError, match=r"^the verdict doesn't fit: .*`\$\.by`"):
            await handle.reject("p1", by=1)  # type: ignore[arg-type]
        wrong: list[dict[str, Any]] = [
            {"call_id": "p1", "approved": True, "arguments": {"sum": 1}},
            {"call_id": "p1", "approved": True, "message": "no"},
            {"call_id": "p1", "approved": False, "arguments": "{}"},
            {"call_id": "p1", "approved": True, "other": 1},
            {"call_id": "p1"},
            {"call_id": "other", "approved": True},
        ]
        for verdict in wrong:
            await handle.workflow.signal("verdict", verdict)
            with pytest.raises(WorkflowUpdateFailedError):
                await handle.workflow.execute_update("give_verdict", verdict)
        assert [one["call_id"] for one in await handle.interruptions()] == ["p1"]
        await handle.approve("p1", arguments={"amount": 2})
        if agent == "hasty":
            await handle.cancel_call("w0")
        with anyio.fail_after(30):
            result = await handle.result()
        assert {one["call"]["call_id"]: one["outcome"]["output"] for one in result.data["calls"]}["p1"] == "paid 2"
        await replay_history(handle, plugin)


async def test_verdicts_find_calls_of_nested_runs_by_their_paths(address: str) -> None:
    """An id that waits in two of them is refused without a path: the verdict could be on either call."""
    plugin = AgentPlugin(agents())
    async with worker(address, plugin) as (client, queue):
        handle = await start(client, queue, "treasury")
        await started(handle, "RunEnded", 3)
        asked = await waiting(handle, 2)
        assert [(one["path"], one["call_id"], one["agent"]) for one in asked] == [
            (["a"], "p1", "payer"),
            (["b"], "p1", "payer"),
        ]
        with pytest.raises(StateError, match=r"^call id 'p1' waits in 2 runs of the tree: give its path"):
            await handle.approve("p1")
        for path in ([], ["c"], ["a", "b"]):
            with pytest.raises(StateError, match=r"^no call 'p1' waits for a verdict"):
                await handle.approve("p1", path=path)
        with pytest.raises(UserTypeError, match="path: expected a sequence of call ids"):
            await handle.approve("p1", path="a")
        await handle.reject("p1", path=["b"], message="too much")
        await handle.approve("p1", path=("a",))
        with anyio.fail_after(30):
            assert (await handle.result()).final_output == "done"
        found = await settled(handle)
        assert sorted(one[:3] for one in found if one[0]) == [(("a",), "p1", "succeeded"), (("b",), "p1", "rejected")]
        await replay_history(handle, plugin)


async def test_a_verdict_without_a_path_finds_the_only_call_of_its_id(address: str) -> None:
    """In a nested run, too; a handle of an older version sends none."""
    async with worker(address, AgentPlugin(agents())) as (client, queue):
        handle = await start(client, queue, "treasury")
        await started(handle, "RunEnded", 3)
        await handle.approve("p1", path=["b"])
        await handle.approve("p1")
        with anyio.fail_after(30):
            assert (await handle.result()).final_output == "done"
        assert [one[2] for one in await settled(handle)] == ["succeeded"] * 4


async def test_a_replay_makes_the_same_records(address: str) -> None:
    """Their times, too: without a cache, each query does the workflow again. A verdict has the workflow's time."""
    client = await Client.connect(address, plugins=[AgentPlugin(agents())])
    queue = f"queue-{uuid4().hex}"
    async with Worker(client, task_queue=queue, max_cached_workflows=0):
        handle = await start(client, queue, "payer")
        await started(handle, "RunEnded")
        await handle.add_input("and thank you")
        await handle.approve("p1")
        with anyio.fail_after(30):
            await handle.result()
        first, second = [[record async for record in handle.records()] for _ in range(2)]
    assert {"VerdictGiven", "InputAdded"} <= {type(record).__name__ for record in first}
    assert first == second


async def test_a_replay_makes_the_same_record_of_a_verdict_within_a_turn(address: str) -> None:
    """It comes while another call of the turn runs, and has the workflow's time."""
    client = await Client.connect(address, plugins=[AgentPlugin(agents())])
    queue = f"queue-{uuid4().hex}"
    async with Worker(client, task_queue=queue, max_cached_workflows=0):
        handle = await start(client, queue, "hasty")
        await started(handle, "CallStarted")
        await waiting(handle)
        await handle.approve("p1")
        await handle.cancel_call("w0")
        with anyio.fail_after(30):
            await handle.result()
        first, second = [[record async for record in handle.records()] for _ in range(2)]
    kinds = [type(record).__name__ for record in first]
    assert kinds.index("CallStarted") < kinds.index("VerdictGiven") < kinds.index("CallSettled")
    assert "RunResumed" not in kinds
    assert first == second


async def test_context_and_input(address: str) -> None:
    """The context is made in each activity; input added by an older handle is shown after the turn."""
    plugin = AgentPlugin(agents(), read_context=lambda data: {"name": data["name"].title()})
    async with worker(address, plugin) as (client, queue):
        handle = await start(client, queue, "greeter", context={"name": "ada"})
        await handle.workflow.signal(AgentWorkflow.add_input, "and bob")
        outputs, users = json.loads((await handle.result()).final_output)
        assert outputs == ["hello Ada"]
        assert users in (["go"], ["go", "and bob"])  # it may come after the last turn


@pytest.mark.scenario("DU-03")
async def test_a_cancelled_workflow(address: str) -> None:
    """Every body has ended when the workflow has, and no workflow task spins."""
    async with worker(address, AgentPlugin(agents())) as (client, queue):
        handle = await start(client, queue, "sleeping")
        await started(handle, "CallStarted", 3)
        with anyio.fail_after(30):
            await handle.cancel()
            with pytest.raises(WorkflowFailureError):
                await handle.result()
        ended = [record async for record in handle.records()][-1]
        assert ended.status == "cancelled"
        history = await handle.workflow.fetch_history()
        assert len(history.events) < 60


async def test_a_worker_that_stops_leaves_its_runs_to_the_next(address: str) -> None:
    """Calls under way are cut with the worker and unknown; the run goes on in the next worker, to its end."""
    lost = {"wait": ToolActivity(heartbeat_timeout=timedelta(seconds=2))}
    plugin = AgentPlugin({"sleeping": agents()["sleeping"]}, tools=lost)
    client = await Client.connect(address, plugins=[plugin])
    queue = f"queue-{uuid4().hex}"
    async with Worker(client, task_queue=queue):
        handle = await start(client, queue, "sleeping")
        await started(handle, "CallStarted", 3)
    async with Worker(client, task_queue=queue):
        with anyio.fail_after(60):
            result = await handle.result()
    assert {one["outcome"]["status"] for one in result.data["calls"]} == {"unknown"}
    assert result.final_output == "done"


async def settled(handle: AgentRunHandle) -> list[tuple[Any, ...]]:
    """Return the calls of an ended run and of its nested runs in the order they settled, and how."""
    calls = [record async for record in handle.records() if isinstance(record, CallSettled)]
    return [(one.path, one.call_id, one.outcome.status, one.outcome.cancelled_by, one.outcome.reason) for one in calls]


async def test_one_call_is_cancelled(address: str) -> None:
    """The run goes on with the others; a call that is unknown, of a known or of an unknown run, is False."""
    plugin = AgentPlugin(agents())
    async with worker(address, plugin) as (client, queue):
        handle = await start(client, queue, "sleeping")
        await started(handle, "CallStarted", 3)
        assert await handle.cancel_call("none") is False
        assert await handle.cancel_call("w0", path=["w0"]) is False
        for each in range(3):
            assert await handle.cancel_call(f"w{each}", "enough") is True
        with anyio.fail_after(30):
            result = await handle.result()
        assert result.final_output == "done"
        assert sorted(await settled(handle)) == [((), f"w{n}", "cancelled", "caller", "enough") for n in range(3)]
        await replay_history(handle, plugin)


async def test_call_of_an_agent_tool_is_cancelled_by_its_path(address: str) -> None:
    """The path tells it from a call of the outermost run that has the same id; both runs go on."""
    plugin = AgentPlugin(agents())
    async with worker(address, plugin) as (client, queue):
        handle = await start(client, queue, "fronting")
        await started(handle, "CallStarted", 2)
        assert await handle.cancel_call("w0", path=["w9"]) is False
        assert await handle.cancel_call("w9", path=["w0"]) is False
        assert await handle.cancel_call("w0", path=["w0", "w0"]) is False
        assert await handle.cancel_call("w0", "enough", path=["w0"]) is True
        with anyio.fail_after(30):
            result = await handle.result()
        assert result.final_output == "done"
        assert await settled(handle) == [
            (("w0",), "w0", "cancelled", "caller", "enough"),
            ((), "w0", "succeeded", None, None),
        ]
        await replay_history(handle, plugin)


async def test_wrong_call_or_path_is_refused_to_who_cancels(address: str) -> None:
    """By the handle, which sends nothing then, and by the workflow, to any client of the engine; the run goes on."""
    async with worker(address, AgentPlugin(agents())) as (client, queue):
        handle = await start(client, queue, "sleeping")
        await started(handle, "CallStarted", 3)
        for wrong in ("w0", [1], None):
            with pytest.raises(UserTypeError, match="path: expected a sequence of call ids"):
                await handle.cancel_call("w0", path=wrong)  # type: ignore[arg-type]
        with pytest.raises(UserTypeError, match="call_id: expected text"):
            await handle.cancel_call(1)  # type: ignore[arg-type]
        for give in (handle.approve, handle.reject, handle.answer):
            for wait in (True, False):
                with pytest.raises(UserTypeError, match="call_id: expected text"):
                    await give(ToolCall("w0", "wait"), wait=wait)  # type: ignore[arg-type]
        for given in (["w0", None, [1]], ["w0", None, None], [1, None]):
            with pytest.raises(WorkflowUpdateFailedError):
                await handle.workflow.execute_update("cancel_call", args=given)
        # As a handle of an older version sends it.
        for each in range(3):
            assert await handle.workflow.execute_update("cancel_call", args=[f"w{each}", "enough"]) is True
        with anyio.fail_after(30):
            assert (await handle.result()).final_output == "done"


async def test_only_a_call_of_a_nested_run_needs_a_worker_that_knows_paths() -> None:
    """A worker of an older version takes two arguments, and any other number fails its workflow task."""
    sent: list[list[Any]] = []

    class Recorder:
        async def execute_update(self, update: str, *, args: list[Any], id: str) -> bool:
            assert (update, len(id)) == ("cancel_call", 32)
            sent.append(args)
            return True

    handle = AgentRunHandle(Recorder())  # type: ignore[arg-type]
    await handle.cancel_call("a", "enough")
    await handle.cancel_call("a", path=("b",))
    assert sent == [["a", "enough"], ["a", None, ["b"]]]


async def test_input_that_comes_while_a_call_waits(address: str) -> None:
    """It is shown once the turn of that call has ended."""
    async with worker(address, AgentPlugin(agents())) as (client, queue):
        handle = await start(client, queue, "payer")
        await started(handle, "RunEnded")
        await handle.add_input("and thank you")
        await handle.approve("p1")
        with anyio.fail_after(30):
            assert (await handle.result()).final_output == "paid"
        kinds = [one["kind"] for one in await logged(handle, agents()["payer"])]
        assert kinds.count("InputAdded") == 1
        assert kinds.index("CallSettled") < kinds.index("InputShown")


@pytest.mark.scenario("DU-05")
@pytest.mark.parametrize("most", [1, 30])
async def test_a_long_history_continues_as_a_new_workflow(address: str, most: int) -> None:
    """No activity is repeated, and the records of all executions are those of one run; also if each turn is long."""
    plain = await Runner.run(agents()["talkative"], "go")
    async with worker(address, AgentPlugin(agents(), max_history=most)) as (client, queue):
        handle = await start(client, queue, "talkative")
        result = await handle.result()
        assert result.final_output == "done"
        first = await client.get_workflow_handle(
            handle.id, run_id=handle.workflow.first_execution_run_id
        ).fetch_history()
        assert first.events[-1].HasField("workflow_execution_continued_as_new_event_attributes")
        found = await logged(handle, agents()["talkative"])
        assert_equal_logs([one for one in found if one["kind"] != "RunResumed"], normal(plain.records))
        starts = [one["call_id"] for one in found if one["kind"] == "CallStarted"]
        assert starts == [f"t{n}" for n in range(6)]


async def test_a_signed_run_continues_as_a_new_workflow(address: str) -> None:
    """Its stored state is read back by the key, and by whoever asks for it."""
    key = SealKey(secret=b"k" * 32)
    async with worker(address, AgentPlugin(agents(), max_history=1, key=key)) as (client, queue):
        handle = await start(client, queue, "talkative")
        with anyio.fail_after(60):
            assert (await handle.result()).final_output == "done"
        text = await handle.stored_state()
    assert RunState.from_string(agents()["talkative"], text, key=key).status == "completed"
    with pytest.raises(StateError):
        RunState.from_string(agents()["talkative"], text, key=SealKey(secret=b"o" * 32))


async def continue_with(client: Client, queue: str, text: str, workflow_id: str) -> AgentRunHandle:
    """Start a workflow with a stored state, as a workflow does that continues as a new one."""
    given = AgentRunInput("payer", "", None, 10, pack(text), [])
    started = await client.start_workflow(AgentWorkflow.run, given, id=workflow_id, task_queue=queue)
    return AgentRunHandle(started)


async def test_a_signed_state_continues_only_the_workflow_that_it_was_signed_for(address: str) -> None:
    """Others fail the workflow task, with the reason. One of an older version is left to a worker that takes it."""
    key = SealKey(secret=b"k" * 32)
    own, older = f"own-{uuid4().hex}", f"older-{uuid4().hex}"
    async with worker(address, AgentPlugin(agents(), key=key)) as (client, queue):
        handle = await start(client, queue, "payer")
        await waiting(handle)
        text = await handle.stored_state()
        state = RunState.from_string(agents()["payer"], text, key=key)
        stolen = state.to_string(key=key, bound_to=handle.id)
        for wrong, why in ((stolen, "for another name"), (state.to_string(), "not sealed"), ("no state", "Malformed")):
            refused = await continue_with(client, queue, wrong, f"other-{uuid4().hex}")
            with pytest.raises(WorkerUnavailable, match=why):
                await refused.interruptions(timeout=2.0)
            await refused.workflow.terminate()
        right = await continue_with(client, queue, state.to_string(key=key, bound_to=own), own)
        await waiting(right)
        unbound = await continue_with(client, queue, text, older)
        with pytest.raises(WorkerUnavailable, match="older_seals=True"):
            await unbound.interruptions(timeout=2.0)
    async with worker(address, AgentPlugin(agents(), key=key, older_seals=True), queue=queue) as (client, _):
        for run in (right, unbound):
            await waiting(run)
            await run.approve("p1")
            with anyio.fail_after(30):
                assert (await run.result()).status == "completed"


async def test_errors_of_runs_are_failures_of_the_workflow(address: str) -> None:
    """Not of a workflow task, which would be tried for ever."""
    async with worker(address, AgentPlugin(agents())) as (client, queue):
        handle = await start(client, queue, "talkative", max_turns=1)
        with anyio.fail_after(30), pytest.raises(WorkflowFailureError) as caught:
            await handle.result()
        assert "MaxTurnsExceeded" in repr(caught.value.cause) or "turns" in str(caught.value.cause)


def test_what_cannot_run_in_a_workflow() -> None:
    """It is refused when the plugin is made, by a sentence with the names."""

    @tool
    def sync() -> str:
        """Sync."""
        return ""

    @tool(capacity=Capacity(2))
    async def few() -> str:
        """Few."""
        return ""

    class Source:
        name = "source"

        async def tools(self, ctx: object, agent: object) -> list[Any]:
            return []

    agent = Agent("a", model="local:x", tools=[sync])
    with pytest.raises(UserError, match=r"'sync'.*async"):
        AgentPlugin({"a": agent}, tools={"sync": ToolActivity(in_workflow=True)})
    with pytest.raises(UserError, match="no agent has a tool 'other'"):
        AgentPlugin({"a": agent}, tools={"other": ToolActivity()})
    AgentPlugin({"a": agent, "b": Agent("b", model="local:x")}, tools={"sync": ToolActivity()})
    with pytest.raises(UserError, match="tool 'few': a capacity is shared by the runs of one event loop"):
        AgentPlugin({"few": Agent("few", model="local:x", tools=[few])})
    with pytest.raises(UserError, match="agent 'b': sources of tools"):
        AgentPlugin({"b": Agent("b", model="local:x", toolsets=[Source()])})
    memory = Memory(FolderMemory("never-made"), scope=lambda ctx: "ada")
    AgentPlugin({"a": Agent("a", model="local:x", bundles=[memory])})
    recalling = Memory(FolderMemory("never-made"), scope="ada", recall_at_start=True)
    with pytest.raises(UserError, match="agent 'b': sources of tools"):
        AgentPlugin({"b": Agent("b", model="local:x", bundles=[recalling])})
    with pytest.raises(UserError, match=r"RunConfig\.toolsets"):
        AgentPlugin({"a": agent}, run_config=RunConfig(toolsets=[Source()]))
    with pytest.raises(UserError, match=r"RunConfig\.toolsets, bundles"):
        AgentPlugin({"a": agent}, run_config=RunConfig(bundles=[Bundle("x", tools=[sync])]))
    with pytest.raises(UserError, match="a summary is made by the agent's own model"):
        AgentPlugin({"a": agent}, run_config=RunConfig(context=ContextPolicy(steps=[Summarize(model="local:x")])))
    AgentPlugin({"a": agent}, run_config=RunConfig(context=ContextPolicy()))
    with pytest.raises(UserError, match="start_to_close"):
        ToolActivity(start_to_close=timedelta(0))
