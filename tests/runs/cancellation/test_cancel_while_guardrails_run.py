"""The parent is cancelled while guardrails run."""

from typing import Any

import anyio
import pytest

from agentloop import Agent, GuardrailFunctionOutput, input_guardrail, output_guardrail
from agentloop.testing import ScriptedModel, say


@pytest.mark.scenario("PC-07")
@pytest.mark.parametrize("stage", ["blocking", "parallel", "output"])
async def test_guardrails_are_cancelled_and_awaited(run_mode: Any, stage: str) -> None:
    """All of them have ended when the run has left; none of them has answered."""
    both = anyio.Event()
    running: list[str] = []
    ended: list[str] = []

    def judge(name: str) -> Any:
        async def fn(*args: Any) -> GuardrailFunctionOutput:
            running.append(name)
            if len(running) == 2:
                both.set()
            try:
                await anyio.sleep_forever()
            finally:
                ended.append(name)

        fn.__name__ = name
        if stage == "output":
            return output_guardrail(fn)
        return input_guardrail(fn, run_in_parallel=stage == "parallel")

    guards = [judge("one"), judge("two")]
    agent = Agent(
        "a",
        model=ScriptedModel([say("x")]),
        input_guardrails=guards if stage != "output" else [],
        output_guardrails=guards if stage == "output" else [],
    )
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as group:

            async def cancel() -> None:
                await both.wait()
                scope.cancel()

            group.start_soon(cancel)
            await run_mode(agent, "go")
            pytest.fail("the run returned although its caller was cancelled")
    assert scope.cancelled_caught
    assert sorted(ended) == ["one", "two"]
