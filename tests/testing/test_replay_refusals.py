"""A replay follows a run segment that ended because it lacked something: secrets, an answer, a tool, a sandbox."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import anyio
import attrs
import pytest
from kit.agents import script_turns
from kit.secret_cases import ReversingCodec

from agentloop import Agent, ExternalTool, Runner, RunState, StateError, ToolSelection, tool
from agentloop import records as r
from agentloop.items import UserMessage
from agentloop.journal import MemoryJournal
from agentloop.testing import call, replay, say

HUSH = "hunter2"


@tool
async def plain() -> str:
    """Do something that isn't secret."""
    return "plain"


@tool(needs_approval=True)
async def wait() -> str:
    """Wait for a verdict."""
    return "waited"


@tool(needs_approval=True, secret=["password"])
async def login(password: str) -> str:
    """Log in."""
    return "in"


@tool(secret=["password"], background=True, in_doubt="rerun")
async def fetch(password: str) -> str:
    """Fetch something in the background."""
    return "fetched"


def make(*steps: Any, name: str = "a", **parts: Any) -> Agent[Any, Any]:
    """Return an agent whose model answers turn n with the n-th step, in each process."""
    return Agent(name, model=script_turns(*steps, say("done")), **parts)


def approve(state: RunState) -> None:
    """Approve all that waits."""
    for one in state.interruptions:
        state.approve(one)


@attrs.frozen(kw_only=True)
class Case:
    """A run that pauses, what is decided then, and the agent of the process that lacks something."""

    agent: Agent[Any, Any]
    input: Any = "go"
    decide: Callable[[RunState], Any] = approve
    lacking: Agent[Any, Any] | None = None


LOGIN, WAIT = call("login", {"password": HUSH}, "c1"), call("wait", {}, "w1")
LOGS_IN = make(LOGIN, tools=[login], name="inner")
WAITS = make(WAIT, tools=[wait], name="inner")
ASK = call("ask", {"input": HUSH}, "o1")
ROOM = ExternalTool("room", "Ask.", {}, returns={"type": "string"}, secret_output=True)
CASES = {
    "arguments": Case(agent=make(LOGIN, tools=[login])),
    "arguments in a later turn": Case(agent=make(call("plain"), LOGIN, call("plain"), tools=[plain, login])),
    "arguments beside a call that is done": Case(agent=make([call("plain"), LOGIN], tools=[plain, login])),
    "arguments of a nested call": Case(agent=make(ASK, tools=[LOGS_IN.as_tool("ask")])),
    "input of a nested run": Case(agent=make(ASK, tools=[WAITS.as_tool("ask", secret=["input"])])),
    "input and arguments": Case(agent=make(ASK, tools=[LOGS_IN.as_tool("ask", secret=["input"])])),
    "input": Case(agent=make(WAIT, tools=[wait]), input=[UserMessage(HUSH, secret=True)]),
    "added input": Case(
        agent=make(WAIT, tools=[wait]),
        decide=lambda state: (approve(state), state.add_input([UserMessage(HUSH, secret=True)])),
    ),
    "answer": Case(agent=make(call("room", {}, "r1"), tools=[ROOM]), decide=lambda state: state.answer("r1", HUSH)),
    "answer of a nested run": Case(
        agent=make(ASK, tools=[make(call("room", {}, "r1"), tools=[ROOM], name="inner").as_tool("ask")]),
        decide=lambda state: state.answer("r1", HUSH),
    ),
    "a tool of a source": Case(
        agent=make(WAIT, toolsets=[ToolSelection(source=[wait])]),
        lacking=make(WAIT, toolsets=[ToolSelection(source=[plain])]),
    ),
    "a tool of a source of a nested agent": Case(
        agent=make(ASK, tools=[make(WAIT, toolsets=[ToolSelection(source=[wait])], name="inner").as_tool("ask")]),
        lacking=make(ASK, tools=[make(WAIT, toolsets=[ToolSelection(source=[plain])], name="inner").as_tool("ask")]),
    ),
}


CUT = {
    **{name: case for name, case in CASES.items() if case.lacking is None},
    "arguments of a background call": Case(agent=make(call("fetch", {"password": HUSH}, "b1"), tools=[fetch])),
}
"""Runs that are cut off at each record."""


async def record(case: Case, codec: Any) -> list[tuple[r.Record, ...]]:
    """Return the logs of a run that was refused once, after the refusal and, with a codec, at its end."""
    journal = MemoryJournal(codec=codec)
    await Runner.run(case.agent, case.input, journal=journal)
    state = await RunState.from_journal(case.agent, journal)
    case.decide(state)
    await state.append_to(journal)
    lacking, journal.codec = case.lacking or case.agent, codec if case.lacking else None
    logs: list[tuple[r.Record, ...]] = []
    state = await RunState.from_journal(lacking, journal)
    with pytest.raises(StateError):
        await Runner.run(lacking, state, journal=journal)
    for seals in (None, codec):
        journal.codec = seals
        logs.append(tuple((await RunState.from_journal(case.agent, journal)).records))
    if codec is None and case.lacking is None:
        return logs
    result = await Runner.run(case.agent, await RunState.from_journal(case.agent, journal), journal=journal)
    assert result.final_output == "done"
    for seals in (None, codec):
        journal.codec = seals
        logs.append(tuple((await RunState.from_journal(case.agent, journal)).records))
    return logs


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize(
    ("name", "codec"),
    # A journal without a codec takes no secret answer.
    [(name, codec) for name in CASES for codec in (None, ReversingCodec()) if codec or not name.startswith("answer")],
)
def test_a_refused_segment_is_followed(name: str, backend: Any, codec: Any) -> None:
    """With the secrets in the log and without them, and on through the segment that has all that it needs."""
    case = CASES[name]
    logs = anyio.run(record, case, codec)
    for log in logs:
        ends = [one for one in log if isinstance(one, r.RunEnded) and not one.path]
        assert (ends[1].error or "").startswith("StateError(")
        assert ends[1].resumable
        again = replay(log, case.agent, backend=backend)
        assert again.records == log
        if log[-1] is ends[1]:
            assert isinstance(again.error, StateError)


async def record_cut(case: Case) -> list[tuple[r.Record, ...]]:
    """Return a log for each record of the run of *case*: it was cut off before it, stored without its secrets, resumed.

    Where it then paused, it was resumed once more.
    """
    paused = await Runner.run(case.agent, case.input)
    state = paused.to_state()
    if state.interruptions:
        case.decide(state)
    whole = (await Runner.run(case.agent, state)).records if state.status != "completed" else paused.records
    logs: list[tuple[r.Record, ...]] = []
    for end in range(1, len(whole)):
        state, journal = RunState(case.agent, whole[:end]), MemoryJournal()
        with suppress(StateError):
            state = RunState.from_string(case.agent, state.to_string())
            result = await Runner.run(case.agent, state, journal=journal)
            if result.interruptions:
                state = await RunState.from_journal(case.agent, journal)
                case.decide(state)
                await Runner.run(case.agent, state, journal=journal)
        logs.append(tuple((await RunState.from_journal(case.agent, journal)).records))
    return logs


@pytest.mark.parametrize("name", CUT)
def test_a_segment_after_a_crash_is_followed_to_its_refusal(name: str) -> None:
    """Wherever the run was cut off: what its log lacks is found out at other places then."""
    case, refused = CUT[name], 0
    for log in anyio.run(record_cut, case):
        again = replay(log, case.agent)
        assert again.records == log
        refused += isinstance(again.error, StateError)
    assert refused
