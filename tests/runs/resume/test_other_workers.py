"""Pending calls that reach a worker whose agents have changed: it leaves the run as it was, for the right one.

A call is pending where its run waits for a verdict, where it was cut in its body, and where it was asked for and had
not begun. The journal is what both workers share.
"""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from kit.agents import Run
from kit.resuming import make_journal

from agentloop import Agent, FunctionTool, Handoff, RunConfig, Runner, RunState, StateError, UserError, tool
from agentloop import records as r
from agentloop._storage.state_codec import line_encoder
from agentloop.abc import Model, ModelProvider
from agentloop.config.policies import Allow, Ask
from agentloop.items import ToolOutput
from agentloop.journal import MemoryJournal
from agentloop.testing import FunctionModel, call, say


def make_pay(ran: list[Any], **options: Any) -> FunctionTool:
    """Return a tool that notes what it paid."""

    async def pay(n: int) -> str:
        """Pay."""
        ran.append(n)
        return f"paid {n}"

    return tool(in_doubt="rerun", **options)(pay)


async def pay_to(n: int, to: str) -> str:
    """Pay somebody."""
    raise AssertionError("no call fits it")


def answer(request: Any) -> Any:
    """Ask for two payments, then say done; without a payment, hand over first."""
    if any(type(item).__name__ == "ToolOutput" for item in request.items):
        return say("done")
    return [call("pay", {"n": 1}, "p1"), call("pay", {"n": 2}, "p2")]


def clerk(*tools: Any, **changes: Any) -> Agent[Any, Any]:
    """Return the agent of the run, as one worker has it."""
    usual = {"name": "clerk", "model": FunctionModel(answer), "tools": list(tools), "tool_execution": "sequential"}
    return Agent(**(usual | changes))


def outer(inner: Agent[Any, Any]) -> Agent[Any, Any]:
    """Return an agent that has *inner* pay."""

    def ask(request: Any) -> Any:
        return call("ask", {"input": "pay"}, "a1") if request.turn == 1 else say("all done")

    return Agent("outer", model=FunctionModel(ask), tools=[inner.as_tool("ask", "Ask.")])


def cut_after(lines: Sequence[bytes], kind: str) -> list[bytes]:
    """Return the lines up to the first record of *kind*, of the run that pays."""
    at = next(
        at
        for at, line in enumerate(lines)
        if (record := json.loads(line)).get("kind") == kind and "p1" in json.dumps(record)
    )
    return list(lines[: at + 1])


async def pend(how: str, good: Agent[Any, Any]) -> MemoryJournal:
    """Return the journal of a run of *good* whose calls are pending."""
    journal = MemoryJournal()
    await Runner.run(good, "go", journal=journal)
    if how == "approved":
        state = await RunState.from_journal(good, journal)
        before = len(state.records)
        for request in state.interruptions:
            state.approve(request)
        await journal.append(list(map(line_encoder(None), state.records[before:])))
        return journal
    return await make_journal(
        cut_after(await journal.read(), {"cut": "call_started", "queued": "model_responded"}[how])
    )


class _NoKey(ModelProvider):
    def get_model(self, name: str) -> Model:
        raise UserError("no API key")


WRONG: dict[str, Any] = {
    "no tool": lambda pay: (clerk(), RunConfig()),
    "another schema": lambda pay: (clerk(tool(name="pay", in_doubt="rerun")(pay_to)), RunConfig()),
    "no agent": lambda pay: (clerk(pay, name="cashier"), RunConfig()),
    "no key": lambda pay: (clerk(pay, model="mine:big"), RunConfig(model_provider=_NoKey())),
}


@pytest.mark.scenario("SM-04")
@pytest.mark.parametrize("nested", [False, True], ids=["outermost", "nested"])
@pytest.mark.parametrize("how", ["approved", "cut", "queued"])
@pytest.mark.parametrize("change", list(WRONG))
async def test_a_worker_that_does_not_fit_writes_nothing(run_mode: Run, change: str, how: str, nested: bool) -> None:
    """It raises `StateError`, as often as it takes the run; then the worker that fits ends the run."""
    ran: list[Any] = []
    pay = make_pay(ran, needs_approval=how == "approved")
    around = outer if nested else (lambda inner: inner)
    good = around(clerk(pay))
    journal = await pend(how, good)
    ran.clear()
    before = list(await journal.read())
    wrong, config = WRONG[change](pay)
    for _ in range(2):
        with pytest.raises(StateError):
            await run_mode(
                around(wrong), await RunState.from_journal(good, journal), journal=journal, run_config=config
            )
    assert await journal.read() == before
    assert ran == []
    result = await run_mode(good, await RunState.from_journal(good, journal), journal=journal)
    assert result.final_output == ("all done" if nested else "done")
    assert sorted(ran) == [1, 2]


@pytest.mark.scenario("SM-04")
async def test_a_handoff_that_is_gone(run_mode: Run) -> None:
    """A call of it that is pending waits for a worker that has it, too."""
    target = Agent("target", model=FunctionModel(lambda request: say("taken over")))
    good = clerk(model=FunctionModel(lambda request: call("transfer_to_target", {}, "h1")), handoffs=[Handoff(target)])
    journal = MemoryJournal()
    await Runner.run(good, "go", journal=journal)
    lines = await journal.read()
    cut = next(at for at, line in enumerate(lines) if json.loads(line).get("kind") == "model_responded")
    journal = await make_journal(list(lines[: cut + 1]))
    before = list(await journal.read())
    with pytest.raises(StateError, match="waits for handoff 'transfer_to_target' of agent 'clerk'"):
        await run_mode(clerk(), await RunState.from_journal(clerk(), journal), journal=journal)
    assert await journal.read() == before
    result = await run_mode(good, await RunState.from_journal(good, journal), journal=journal)
    assert result.final_output == "taken over"


@pytest.mark.scenario("SM-04")
async def test_a_tool_that_the_model_made_up_is_its_fault_after_a_crash_too(run_mode: Run) -> None:
    """It was never shown, so the policy for unknown tools decides in every run segment."""
    agent = clerk(model=FunctionModel(lambda request: call("made_up", {}, "m1") if request.turn == 1 else say("sorry")))
    config = RunConfig(tool_not_found_behavior="tell_model")
    journal = MemoryJournal()
    await Runner.run(agent, "go", journal=journal, run_config=config)
    lines = await journal.read()
    cut = next(at for at, line in enumerate(lines) if json.loads(line).get("kind") == "model_responded")
    journal = await make_journal(list(lines[: cut + 1]))
    result = await run_mode(agent, await RunState.from_journal(agent, journal), journal=journal, run_config=config)
    assert result.final_output == "sorry"


class _Source:
    """A source of tools that has lost one."""

    name = "source"

    def __init__(self, *tools: FunctionTool) -> None:
        self.given = list(tools)

    async def tools(self, ctx: object, agent: object) -> list[FunctionTool]:
        return self.given


@pytest.mark.scenario("SM-04")
async def test_a_source_that_lacks_the_tool_leaves_the_run_to_another_worker(run_mode: Run) -> None:
    """Only within the run is it known, so the log has the attempt; the run isn't over."""
    ran: list[Any] = []
    pay = make_pay(ran, needs_approval=True)
    good, wrong = (clerk(toolsets=[_Source(*tools)]) for tools in ([pay], []))
    journal = await pend("approved", good)
    with pytest.raises(StateError, match="call 'p1' waits for tool 'pay'"):
        await run_mode(wrong, await RunState.from_journal(wrong, journal), journal=journal)
    result = await run_mode(good, await RunState.from_journal(good, journal), journal=journal)
    assert (result.final_output, sorted(ran)) == ("done", [1, 2])


@pytest.mark.parametrize("depth", [1, 2])
async def test_a_nested_run_that_does_not_fit_is_not_the_outer_models_fault(run_mode: Run, depth: int) -> None:
    """The outer run stops as resumable with the error, at any depth: its model never sees the error as an output.

    Calls beside it settle, and aren't run again by the worker that fits.
    """
    ran: list[Any] = []
    beside: list[str] = []

    @tool
    async def note() -> str:
        """Note something."""
        beside.append("noted")
        return "noted"

    def around(inner: Agent[Any, Any]) -> Agent[Any, Any]:
        for name in ("middle", "outer")[2 - depth :]:
            inner = _asks(name, inner, note)
        return inner

    pay = make_pay(ran, needs_approval=True)
    good, wrong = (around(clerk(toolsets=[_Source(*tools)])) for tools in ([pay], []))
    journal = await pend("approved", good)
    for _ in range(2):
        with pytest.raises(StateError, match="call 'p1' waits for tool 'pay'"):
            await run_mode(wrong, await RunState.from_journal(wrong, journal), journal=journal)
    result = await run_mode(good, await RunState.from_journal(good, journal), journal=journal)
    assert (result.final_output, sorted(ran), len(beside)) == ("all done", [1, 2], depth)
    outputs = [item for item in result.new_items if isinstance(item, ToolOutput)]
    assert sorted(item.output for item in outputs) == sorted(["done" if depth == 1 else "all done", "noted"])


def _asks(name: str, inner: Agent[Any, Any], beside: FunctionTool) -> Agent[Any, Any]:
    """Return an agent that asks *inner* and, beside it, calls another tool."""

    def answer(request: Any) -> Any:
        answered = any(isinstance(item, ToolOutput) for item in request.items)
        return (
            say("all done") if answered else [call("ask", {"input": "pay"}, f"{name}1"), call("note", {}, f"{name}2")]
        )

    return Agent(name, model=FunctionModel(answer), tools=[inner.as_tool("ask", "Ask."), beside])


class _Says:
    """A policy that always says the same."""

    def __init__(self, decision: Any) -> None:
        self.decision = decision

    def decide(self, pending: Any) -> Any:
        return self.decision


ASKED: dict[str, tuple[dict[str, Any], RunConfig]] = {
    "by the tool": ({"needs_approval": True}, RunConfig()),
    "by a callable": ({"needs_approval": lambda ctx, arguments, call_id: True}, RunConfig()),
    "by a policy": ({}, RunConfig(policies=[_Says(Ask("much"))])),
}
FREE: dict[str, tuple[dict[str, Any], RunConfig]] = {
    "the tool is free": ({}, RunConfig()),
    "a callable says no": ({"needs_approval": lambda ctx, arguments, call_id: False}, RunConfig()),
    "the policy allows it": ({}, RunConfig(policies=[_Says(Allow())])),
}


@pytest.mark.scenario("SM-05")
@pytest.mark.parametrize("now", list(FREE))
@pytest.mark.parametrize("asked", list(ASKED))
@pytest.mark.parametrize("verdict", ["p1", "rejected", "none"])
async def test_an_approval_that_was_asked_for_holds(run_mode: Run, asked: str, now: str, verdict: str) -> None:
    """Whatever the new code says: each call waits for its own verdict, also where another of its turn goes on."""
    ran: list[Any] = []
    before, config = ASKED[asked]
    old = clerk(make_pay(ran, **before))
    journal = MemoryJournal()
    await Runner.run(old, "go", journal=journal, run_config=config)
    after, changed = FREE[now]
    new = clerk(make_pay(ran, **after))
    state = await RunState.from_journal(new, journal)
    assert [one.call.call_id for one in state.interruptions] == ["p1", "p2"]
    if verdict == "p1":
        state.approve("p1")
    elif verdict == "rejected":
        state.reject("p1")
    paused = await run_mode(new, state, run_config=changed)
    assert paused.status == "interrupted"
    assert [one.call.call_id for one in paused.interruptions] == (["p1", "p2"] if verdict == "none" else ["p2"])
    assert ran == ([1] if verdict == "p1" else [])
    state = paused.to_state()
    for request in state.interruptions:
        state.reject(request)
    last = await run_mode(new, state, run_config=changed)
    assert last.final_output == "done"
    assert ran == ([1] if verdict == "p1" else [])
    assert not any(isinstance(one, r.CallStarted) and one.call_id == "p2" for one in last.records)
