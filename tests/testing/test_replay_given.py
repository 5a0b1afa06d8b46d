"""Replay of runs that readers of their streams decide on, answer and cancel."""

from functools import partial
from typing import Any

import anyio
import pytest

from agentloop import Agent, Runner, RunState, ask_user, events, tool
from agentloop._storage.record_codec import record_to_json
from agentloop.testing import FunctionModel, call, say, wait
from agentloop.testing.replaying import replay

BACKENDS: Any = ("asyncio", "trio")
ASKING = {
    "approved": call("pay", {"amount": 1}, call_id="asking"),
    "answered": call("ask_user", {"question": "How much?"}, call_id="asking"),
}


@tool(needs_approval=True)
async def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


@tool
async def look(seconds: float) -> str:
    """Look for some time."""
    await anyio.sleep(seconds)
    return "nothing"


def asking(what: str, *, nested: bool, beside: str) -> Agent[Any, Any]:
    """Return an agent with a call that waits for a person, or a nested run with one, and work *beside* it."""
    others = {
        "nothing": [],
        "a call": [call("look", {"seconds": 0.02}, call_id="beside")],
        "a fault": [call("look", {}, call_id="wrong"), call("look", {"seconds": 0.02}, call_id="beside")],
        "another run": [call("slow", {"input": "x"}, call_id="beside")],
    }
    slow = Agent("slow", model=FunctionModel(lambda request: [wait(0.02), say("slow done")]))
    first: Any = ASKING[what]
    if nested:
        steps = [first, say("inner done")]
        inner = Agent("inner", tools=[pay, ask_user()], model=FunctionModel(lambda request: steps[request.turn - 1]))
        first = call("inner", {"input": "x"}, call_id="inner")
        tools = [look, slow.as_tool(), inner.as_tool()]
    else:
        tools = [look, slow.as_tool(), pay, ask_user()]
    model = FunctionModel(lambda request: [*others[beside], first] if request.turn == 1 else say("done"))
    return Agent("outer", tools=tools, model=model)


async def decide(agent: Agent[Any, Any], moment: str, *, cancels: bool) -> RunState:
    """Run *agent*, let the reader of its stream decide at a *moment*, and cancel it then; return its state."""
    async with Runner.run_streamed(agent, "go") as stream, anyio.create_task_group() as group:

        async def give(event: Any, seconds: float) -> None:
            await anyio.sleep(seconds)
            if stream.is_complete:
                return
            if isinstance(event, events.ApprovalRequested):
                stream.approve(event.request)
            else:
                await stream.answer(event.request, "5")
            if cancels:
                stream.cancel()

        async for event in stream:
            if isinstance(event, events.ApprovalRequested | events.AnswerRequested):
                if moment == "at once":
                    await give(event, 0)
                else:
                    group.start_soon(give, event, 0.01)
    return stream.state


@pytest.mark.parametrize("recorded_on", BACKENDS)
@pytest.mark.parametrize("cancels", [False, True], ids=["goes on", "is cancelled"])
@pytest.mark.parametrize("moment", ["at once", "later"])
@pytest.mark.parametrize("beside", ["nothing", "a call", "a fault", "another run"])
@pytest.mark.parametrize("nested", [False, True], ids=["flat", "nested"])
@pytest.mark.parametrize("what", list(ASKING))
def test_what_a_reader_decides_while_the_run_is_under_way_is_replayed(
    what: str, nested: bool, beside: str, moment: str, cancels: bool, recorded_on: Any
) -> None:
    """A decision may save a pause: of the run that asked, or of the run around it, which resumes it then."""
    agent = asking(what, nested=nested, beside=beside)
    state = anyio.run(partial(decide, agent, moment, cancels=cancels), backend=recorded_on)
    for backend in BACKENDS:
        replayed = replay(state, agent, backend=backend)
        assert [*map(record_to_json, replayed.records)] == [*map(record_to_json, state.records)]
