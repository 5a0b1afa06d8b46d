"""Bodies that can't tell whether they took effect: `OutcomeUnknown`, and what the tool's `in_doubt` makes of it."""

import logging
from typing import Any

import anyio
import pytest
from kit.agents import Run, script_agent
from kit.results import find_outcome, read_outputs, read_statuses

from agentloop import FunctionTool, Runner, ToolContext, tool
from agentloop import records as r
from agentloop.exceptions import OutcomeUnknown
from agentloop.guardrails import RejectContent, tool_output_guardrail
from agentloop.journal import MemoryJournal
from agentloop.testing import call, say

TEXT = "Tool 'send' was interrupted; whether it took effect is unknown: the line went dead"


def sending(failures: int = 99, *, sync: bool = False, **options: Any) -> tuple[FunctionTool[Any], list[str]]:
    """Return a tool whose first *failures* bodies can't tell, and the idempotency keys of its bodies."""
    keys: list[str] = []

    def send(ctx: ToolContext[Any]) -> str:
        """Send."""
        keys.append(ctx.idempotency_key)
        if len(keys) <= failures:
            raise OutcomeUnknown("the line went dead")
        return "sent"

    async def send_async(ctx: ToolContext[Any]) -> str:
        """Send."""
        await anyio.lowlevel.checkpoint()
        return send(ctx)

    if options.pop("raw", False):
        return FunctionTool(name="send", on_invoke_tool=lambda ctx, text: send_async(ctx), **options), keys
    return tool(send if sync else send_async, name="send", **options), keys


@pytest.mark.scenario("TS-04")
async def test_model_is_told_of_an_unknown_outcome(run_mode: Run, caplog: pytest.LogCaptureFixture) -> None:
    """The status says so, the others go on, and the failure is logged, as only the model would see it."""
    send, keys = sending()
    agent = script_agent("a", [call("send"), call("other")], say("done"))

    @tool
    async def other() -> str:
        """Work."""
        await anyio.lowlevel.checkpoint()
        return "ok"

    agent.tools = [send, other]
    with caplog.at_level(logging.INFO, "agentloop"):
        result = await run_mode(agent, "go")
    assert read_statuses(result) == ["unknown", "succeeded"]
    assert list(read_outputs(result.new_items).values()) == [TEXT, "ok"]
    outcome = result.calls[0].outcome
    assert isinstance(outcome.error, OutcomeUnknown)
    assert outcome.error.reason == "the line went dead"
    assert outcome.body_finished
    assert "the line went dead" in caplog.text
    assert len(keys) == 1


@pytest.mark.parametrize(
    "options", [{"idempotent": True}, {"in_doubt": "rerun"}, {"reads_only": True}], ids=["idempotent", "rerun", "reads"]
)
@pytest.mark.parametrize("kind", [{}, {"raw": True}], ids=["python", "raw"])
async def test_body_that_may_run_again_does_so_once(
    run_mode: Run, options: dict[str, Any], kind: dict[str, bool]
) -> None:
    """With the same key, within one attempt; a body that doesn't know then either leaves it unknown."""
    send, keys = sending(1, **options, **kind)
    agent = script_agent("a", call("send"), say("done"), tools=[send])
    result = await run_mode(agent, "go")
    assert read_statuses(result) == ["succeeded"]
    assert len(keys) == 2
    assert len(set(keys)) == 1

    send, keys = sending(**options, **kind)
    agent = script_agent("a", call("send"), say("done"), tools=[send])
    result = await run_mode(agent, "go")
    assert read_statuses(result) == ["unknown"]
    assert len(keys) == 2
    assert sum(isinstance(record, r.CallStarted) for record in result.records) == 1


@pytest.mark.real_clock
async def test_sync_body_can_say_so_too() -> None:
    """In its thread."""
    send, keys = sending(1, sync=True, in_doubt="rerun")
    agent = script_agent("a", call("send"), say("done"), tools=[send])
    result = await Runner.run(agent, "go")
    assert read_statuses(result) == ["succeeded"]
    assert len(keys) == 2


async def test_doubt_ends_the_run_where_the_tool_says_so(run_mode: Run) -> None:
    """The error is the body's own; the outcome in its data is unknown, not failed."""
    send, _ = sending(in_doubt="raise")
    agent = script_agent("a", call("send"), say("done"), tools=[send])
    with pytest.raises(OutcomeUnknown, match="the line went dead") as caught:
        await run_mode(agent, "go")
    assert read_statuses(caught.value.run_data) == ["unknown"]


async def test_error_function_is_not_asked(run_mode: Run) -> None:
    """A policy of None raises failures; doubt is none."""
    send, _ = sending(failure_error_function=None)
    agent = script_agent("a", call("send"), say("done"), tools=[send])
    result = await run_mode(agent, "go")
    assert list(read_outputs(result.new_items).values()) == [TEXT]


async def test_output_guardrail_judges_what_the_model_is_told(run_mode: Run) -> None:
    """As it does any text of a failure."""

    @tool_output_guardrail
    async def never(data: Any) -> RejectContent:
        """Reject."""
        return RejectContent("withheld")

    send, _ = sending(tool_output_guardrails=[never])
    agent = script_agent("a", call("send"), say("done"), tools=[send])
    result = await run_mode(agent, "go")
    assert list(read_outputs(result.new_items).values()) == ["withheld"]


async def test_reason_of_a_call_with_secrets_is_not_told(run_mode: Run) -> None:
    """The reason may repeat an argument."""

    @tool(secret=["pin"])
    async def send(pin: str) -> str:
        """Send."""
        raise OutcomeUnknown(f"no answer to {pin}")

    agent = script_agent("a", call("send", {"pin": "open sesame"}, call_id="s"), say("done"), tools=[send])
    result = await run_mode(agent, "go")
    assert "open sesame" not in repr(find_outcome(result, "s"))
    assert find_outcome(result, "s").status == "unknown"


async def test_agent_tool_is_never_in_doubt(run_mode: Run) -> None:
    """The doubt of a call within ends the inner run; the outer call has failed by it."""
    send, _ = sending(in_doubt="raise")
    inner = script_agent("inner", call("send"), say("done"), tools=[send])
    outer = script_agent("outer", call("inner", {"input": "x"}), say("done"), tools=[inner.as_tool()])
    result = await run_mode(outer, "go")
    assert read_statuses(result) == ["failed"]


async def test_doubt_is_kept_over_a_crash_before_the_outcome() -> None:
    """The log has the end of the body: the resumed run doesn't take it for a failure, nor runs the body again."""

    @tool_output_guardrail
    async def slow(data: Any) -> RejectContent:
        """Be cut the first time."""
        judged.append(1)
        if len(judged) == 1:
            scope.cancel()
        await anyio.lowlevel.checkpoint()
        return RejectContent(data.output)

    judged: list[int] = []
    send, keys = sending(tool_output_guardrails=[slow])
    agent = script_agent("a", call("send", call_id="s"), say("done"), tools=[send])
    journal = MemoryJournal()
    with anyio.CancelScope() as scope:
        await Runner.run(agent, "go", journal=journal)
    result = await Runner.resume(agent, journal)
    assert list(read_outputs(result.new_items).values()) == [TEXT]
    assert len(keys) == 1
