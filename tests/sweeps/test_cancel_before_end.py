"""Every kind of end, cancelled at every step: a run whose end was not decided when its caller cancelled is cancelled.

The last step of a model call or of a callback can come after the cancellation, as its answer was on the way already.
Nothing waits after it but the end itself, so this sweep has one case for each way to an end, with a session and without
one, streamed and plain.
"""

from collections.abc import Callable, Sequence
from typing import Any

import anyio
import attrs
import pytest

from agentloop import (
    Agent,
    GuardrailFunctionOutput,
    RunConfig,
    RunContext,
    RunHooks,
    ToolsToFinalOutput,
    input_guardrail,
    output_guardrail,
    tool,
)
from agentloop import testing as t
from agentloop.exceptions import AgentLoopError, ModelTransportError
from agentloop.items import Item
from agentloop.sessions import MemorySession
from agentloop.testing import call, fail, say, wait
from agentloop.testing.scripted import Step

LATE = 0.3


@tool
async def work() -> str:
    """Wait, and return a text."""
    await anyio.sleep(LATE)
    return "worked"


async def fail_beside_another() -> None:
    """Run two tasks, one of which fails after a wait: on trio, a group may then hold the cancellation of the other."""

    async def child() -> None:
        try:
            await anyio.sleep(LATE)
        finally:
            raise ValueError("broken")

    async with anyio.create_task_group() as group:
        group.start_soon(child)
        group.start_soon(anyio.sleep_forever)


@tool
async def fail_in_tasks() -> None:
    """Fail in a task of its own."""
    await fail_beside_another()


async def filter_in_tasks(data: Any) -> Any:
    """Fail in a task of its own."""
    await fail_beside_another()


@tool(needs_approval=True)
async def ask() -> str:
    """Return a text, once approved."""
    return "approved"


@input_guardrail
async def pass_input(ctx: RunContext[Any], agent: Any, given: Any) -> GuardrailFunctionOutput:
    """Pass in the step in which the model answers."""
    await anyio.sleep(LATE)
    return GuardrailFunctionOutput(None, tripwire_triggered=False)


@output_guardrail
async def pass_output(ctx: RunContext[Any], agent: Any, output: Any) -> GuardrailFunctionOutput:
    """Pass, after a wait."""
    await anyio.sleep(LATE)
    return GuardrailFunctionOutput(None, tripwire_triggered=False)


class WaitingHooks(RunHooks):
    """Hooks that wait at the ends of the model call and of the agent."""

    async def on_llm_end(self, *args: Any) -> None:
        await anyio.sleep(LATE)

    async def on_agent_end(self, *args: Any) -> None:
        await anyio.sleep(LATE)


async def wait_and_finish(ctx: Any, results: Any) -> ToolsToFinalOutput:
    """Choose the output after a wait."""
    await anyio.sleep(LATE)
    return ToolsToFinalOutput(is_final=True, output="chosen")


async def wait_and_handle(data: Any) -> str:
    """Handle an error after a wait."""
    await anyio.sleep(LATE)
    return "handled"


class WaitingSession(MemorySession):
    """A session whose writes take their time."""

    async def add_items(self, items: Sequence[Item]) -> None:
        await anyio.sleep(LATE)
        await super().add_items(items)


async def wait_and_stop(ctx: Any) -> bool:
    """Stop the run after a wait."""
    await anyio.sleep(LATE)
    return True


async def wait_and_fail(data: Any) -> Any:
    """Fail after a wait."""
    await anyio.sleep(LATE)
    raise ValueError("no input")


def late(*pieces: Any) -> Step:
    """Return an answer whose first piece comes after a wait."""
    return [wait(LATE), *pieces]


@attrs.frozen
class End:
    """One way to an end: the agent, the script of its model, and further arguments of the run."""

    agent: Callable[[], Agent[Any, Any]]
    script: Sequence[Step]
    options: dict[str, Any] = attrs.field(factory=dict)


CALL = late(call("work"))
BROKEN = fail(ModelTransportError("busy", status=400))
ENDS: dict[str, End] = {
    "answer": End(lambda: Agent("a"), [late(say("done"))]),
    "answer without items": End(lambda: Agent("a"), [late()]),
    "answer after a call": End(lambda: Agent("a", tools=[work]), [CALL, late(say("done"))]),
    "hooks": End(lambda: Agent("a", tools=[work]), [CALL, late(say("done"))], {"hooks": WaitingHooks}),
    "guardrails": End(
        lambda: Agent("a", input_guardrails=[pass_input], output_guardrails=[pass_output]), [late(say("done"))]
    ),
    "output of a call": End(lambda: Agent("a", tools=[work], tool_use_behavior="stop_on_first_tool"), [CALL]),
    "output that a callable chose": End(lambda: Agent("a", tools=[work], tool_use_behavior=wait_and_finish), [CALL]),
    "wrong type": End(lambda: Agent("a", output_type=int, output_retries=0), [late(say("done"))]),
    "wrong type, corrected": End(
        lambda: Agent("a", output_type=int), [late(say("done")), late(say('{"response": 1}'))]
    ),
    "wrong type, handled": End(
        lambda: Agent("a", output_type=int, output_retries=0),
        [late(say("done"))],
        {"error_handlers": {"invalid_final_output": wait_and_fail}},
    ),
    "turns spent": End(lambda: Agent("a", tools=[work]), [CALL], {"max_turns": 1}),
    "turns spent, handled": End(
        lambda: Agent("a", tools=[work]), [CALL], {"max_turns": 1, "error_handlers": {"max_turns": wait_and_handle}}
    ),
    "unknown tool": End(lambda: Agent("a", tools=[work]), [late(call("other"))]),
    "model that fails": End(lambda: Agent("a"), [late(BROKEN)]),
    "callback that fails": End(
        lambda: Agent("a"), [late(say("done"))], {"run_config": RunConfig(call_model_input_filter=wait_and_fail)}
    ),
    "body whose tasks fail": End(lambda: Agent("a", tools=[fail_in_tasks]), [late(call("fail_in_tasks"))] * 2),
    "callback whose tasks fail": End(
        lambda: Agent("a"), [late(say("done"))], {"run_config": RunConfig(call_model_input_filter=filter_in_tasks)}
    ),
    "pause": End(lambda: Agent("a", tools=[ask]), [late(call("ask"))]),
    "stop": End(
        lambda: Agent("a", tools=[work]), [CALL, say("done")], {"run_config": RunConfig(stop_when=wait_and_stop)}
    ),
}


@pytest.mark.slow
@pytest.mark.scenario("PC-01")
@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("session", [None, MemorySession, WaitingSession], ids=["alone", "session", "waiting session"])
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_run_cancelled_at_any_step_before_its_end_was_decided_is_cancelled(
    end: End, session: type[MemorySession] | None, streamed: bool
) -> None:
    """The sweep's own check holds at every step: no other end follows a cancellation that came before it."""
    options = end.options if session is None else {**end.options, "session": session}
    swept = t.kill_sweep(
        end.agent,
        end.script,
        options=options,
        streamed=streamed,
        allow=(AgentLoopError, ValueError, ExceptionGroup),
    )
    assert swept.cancelled > 3
