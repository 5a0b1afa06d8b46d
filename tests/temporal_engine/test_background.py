"""Background calls in workflows: their bodies are activities that run on while the run does."""

from typing import Any
from uuid import uuid4

import pytest

pytest.importorskip("temporalio", reason="needs the extra temporal: nox -s tests-temporal")

import anyio
from temporal_engine.durable_agents import scripted
from temporal_engine.test_workflows import replay_history, start, started
from temporalio.client import Client
from temporalio.worker import Worker

from agentloop import Agent, ToolContext, tool
from agentloop.records import InputAdded, InputShown, InputWithdrawn, Record
from agentloop.temporal import AgentPlugin, AgentRunHandle
from agentloop.testing import call, say

pytestmark = [
    pytest.mark.real_clock,
    pytest.mark.timeout(120),
    pytest.mark.backends("asyncio"),
    pytest.mark.leaves_threads,
]
RESULT = "Result of the background call d of tool dig:\n"


class Digging:
    """The tool `dig`, whose body waits for `may_end`, and what became of its bodies."""

    def __init__(self, **options: Any) -> None:
        self.may_end, self.began = anyio.Event(), anyio.Event()
        self.told: list[str] = []

        @tool(background=True, **options)
        async def dig(ctx: ToolContext[Any]) -> str:
            """Dig."""
            self.told.append("began")
            self.began.set()
            try:
                await self.may_end.wait()
            except anyio.get_cancelled_exc_class():
                self.told.append("cancelled")
                raise
            self.told.append("ended")
            return "1 m"

        self.tool = dig

    def agent(self, answers: int = 1) -> Agent[Any, Any]:
        """Return an agent that digs, gives *answers*, and is done."""
        steps = [call("dig", {}, call_id="d"), *[say("wait")] * answers, say("done")]
        return Agent("digging", model=scripted(*steps), tools=[self.tool])


async def records_of(handle: AgentRunHandle) -> list[Record]:
    """Return the run's records, once it is over."""
    return [record async for record in handle.records(interval=0.1)]


def texts(records: list[Record]) -> list[str]:
    """Return the results in the log."""
    return [record.items[0].text for record in records if isinstance(record, InputAdded)]  # type: ignore[union-attr]


def shown(records: list[Record]) -> list[str]:
    """Return the ids of the results that the model was shown."""
    return [record.id for record in records if isinstance(record, InputShown)]


@pytest.mark.scenario("PE-07")
@pytest.mark.parametrize("cached", [True, False])
async def test_the_run_waits_for_the_activity(address: str, cached: bool) -> None:
    """It ends after an answer without it. Also with a worker that replays the workflow in each task."""
    digging = Digging()
    plugin = AgentPlugin({"digging": digging.agent()})
    client = await Client.connect(address, plugins=[plugin])
    queue, most = f"queue-{uuid4().hex}", {} if cached else {"max_cached_workflows": 0}
    async with Worker(client, task_queue=queue, **most):  # type: ignore[arg-type]
        handle = await start(client, queue, "digging")
        await started(handle, "ModelResponded", 2)
        digging.may_end.set()
        with anyio.fail_after(60):
            assert (await handle.result()).final_output == "done"
        records = await records_of(handle)
        assert records == await records_of(handle)
        await replay_history(handle, plugin)
    assert digging.told == ["began", "ended"]
    assert texts(records) == [RESULT + "1 m"]
    assert shown(records) == ["result_d"]


@pytest.mark.scenario("PE-07")
async def test_on_end_cancel(address: str) -> None:
    """The activity is cancelled as the run would end."""
    digging = Digging(on_end="cancel")
    plugin = AgentPlugin({"digging": digging.agent()})
    client = await Client.connect(address, plugins=[plugin])
    queue = f"queue-{uuid4().hex}"
    async with Worker(client, task_queue=queue, max_cached_workflows=0):
        handle = await start(client, queue, "digging")
        with anyio.fail_after(60):
            assert (await handle.result()).final_output == "wait"
        records = await records_of(handle)
        await replay_history(handle, plugin)
    assert digging.told in (["began", "cancelled"], [])
    assert [record.id for record in records if isinstance(record, InputWithdrawn)] == ["result_d"]


@pytest.mark.scenario("PE-07")
async def test_the_run_continues_as_new(address: str) -> None:
    """Its next workflow has the result."""
    digging = Digging()
    plugin = AgentPlugin({"digging": digging.agent()}, max_history=1)
    client = await Client.connect(address, plugins=[plugin])
    queue = f"queue-{uuid4().hex}"
    async with Worker(client, task_queue=queue, max_cached_workflows=0):
        handle = await start(client, queue, "digging")
        await started(handle, "CallSettled")
        digging.may_end.set()
        with anyio.fail_after(60):
            result = await handle.result()
        records = await records_of(handle)
        await replay_history(handle, plugin)
    assert digging.told == ["began", "ended"]
    assert texts(records) == [RESULT + "1 m"]
    assert shown(records) == ["result_d"]
    assert result.final_output in ("wait", "done")
