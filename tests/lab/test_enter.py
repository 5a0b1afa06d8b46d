"""The body of a recorded call, run again as it was called."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from lab.shop import LEDGER, make_agent, record, state_of

from agentloop import Agent, Runner, ToolContext, UserError, lab, tool
from agentloop.testing import ScriptedModel, call, say

pytestmark = pytest.mark.real_clock

ENTERED: list[Any] = []


@contextmanager
def noting(fn: Any) -> Iterator[None]:
    """Note the function that is entered, and that it was left."""
    ENTERED.append(fn.__name__)
    try:
        yield
    finally:
        ENTERED.append("left")


@tool(timeout=0.05)
async def weigh(ctx: ToolContext[str], item: str) -> str:
    """Weigh something, which takes longer than it may."""
    with anyio.move_on_after(0.2):
        await anyio.sleep_forever()
    await ctx.report(1)
    return f"{ctx.context} {item} {len(ctx.conversation_history)} {bool(ctx.idempotency_key)}"


@tool(abandon_on_cancel=True)
def count(item: str) -> str:
    """Count something, in a thread."""
    LEDGER.append("count")
    return f"5 {item}"


def scales(*steps: Any) -> Agent[Any, Any]:
    """Return an agent with both tools."""
    return Agent("scales", model=ScriptedModel(steps), tools=[weigh, count])


async def test_a_body_runs_with_its_arguments_and_a_context_of_its_call() -> None:
    """Its timeout doesn't hold, the calls beside it are answered from the log, and the run ends behind it."""
    ENTERED.clear()
    made = [call("weigh", {"item": "tea"}, call_id="c1"), call("count", {"item": "tea"}, call_id="c2")]
    agent = scales(made, say("done"))
    result = await Runner.run(agent, "go", context="recorded")
    LEDGER.clear()
    model = scales(say("never"))
    entered = await lab.enter(result, model, "c1", debugger=noting, context=lambda: "again")
    assert entered.value == "again tea 3 True"
    assert entered.error is None
    assert (entered.call.tool, entered.call.status) == ("weigh", "timed_out")
    assert entered.outcome is not None
    assert entered.outcome.status == "timed_out"
    assert ENTERED == ["weigh", "left"]
    assert LEDGER == []
    in_thread = await lab.enter(result, model, "c2", debugger=noting)
    assert in_thread.value == "5 tea"
    assert ENTERED == ["weigh", "left", "count", "left"]
    assert LEDGER == ["count"]
    assert model.model.requests == []  # type: ignore[union-attr]


async def test_calls_of_nested_runs_and_failures_are_entered() -> None:
    """The nested run is continued; an error is the result."""
    records = await record("nested", 3)
    LEDGER.clear()
    entered = await lab.enter(state_of(records), make_agent([]), "ask_helper-3/look_up-3")
    assert entered.value == {"order": "o-3", "paid": 100}
    assert LEDGER == ["look_up o-3"]
    failed = await lab.enter(state_of(await record("failed", 3)), make_agent([]), "break_down-3")
    assert isinstance(failed.error, ValueError)
    assert "no stock for o-3" in str(failed.error)


async def test_what_the_body_does_to_the_world_is_refused(tmp_path: Path) -> None:
    """A file, a connection, a process: with *live* they happen; either way they are told."""
    path = tmp_path / "bank.txt"

    @tool
    async def act(what: str) -> str:
        """Do something."""
        if what == "write":
            path.write_text("paid")
        elif what == "connect":
            with socket.socket() as made:
                made.connect(("127.0.0.1", 9))
        else:
            subprocess.run([sys.executable, "-c", ""], check=True)  # noqa: ASYNC221 - it is refused
        return "did it"

    def make(*steps: Any) -> Agent[Any, Any]:
        return Agent("a", model=ScriptedModel(steps), tools=[act])

    for what, words in {"write": "writes to", "connect": "connects to", "start": "starts"}.items():
        result = await Runner.run(make(call("act", {"what": what}, call_id="c1"), say("x")), "go")
        path.unlink(missing_ok=True)
        entered = await lab.enter(result, make(), "c1")
        assert isinstance(entered.error, PermissionError), what
        assert words in str(entered.error)
        assert words in entered.notes[0]
        assert not path.exists()
    result = await Runner.run(make(call("act", {"what": "write"}, call_id="c1"), say("x")), "go")
    path.unlink()
    entered = await lab.enter(result, make(), "c1", live=True)
    assert entered.value == "did it"
    assert path.read_text() == "paid"
    assert "writes to" in entered.notes[0]


async def test_what_can_not_be_entered_is_named() -> None:
    """No such call, one that never started, one that is a run, an agent whose guardrail ends the run."""
    nested, rejected = await record("nested", 3), await record("rejected", 3)
    agent = make_agent([])
    with pytest.raises(UserError, match="has made no such call"):
        await lab.enter(state_of(nested), agent, "c9")
    with pytest.raises(UserError, match="'ask_helper-3' is a run of an agent: enter one of its calls, ask_helper-3/ID"):
        await lab.enter(state_of(nested), agent, "ask_helper-3")
    with pytest.raises(UserError, match="'pay-3' never started: it was rejected"):
        await lab.enter(state_of(rejected), agent, "pay-3")
    with pytest.raises(UserError, match="expected an Agent"):
        await lab.enter(state_of(rejected), 3, "pay-3")  # type: ignore[arg-type]
    result = await Runner.run(scales(call("weigh", {"item": "tea"}, call_id="c1"), say("done")), "go")
    without = Agent("scales", model=ScriptedModel([]), tools=[count])
    with pytest.raises(UserError, match="the run doesn't come to it with this agent: StateError"):
        await lab.enter(result, without, "c1")
