"""Six calls that fail in one scheduler pass: the first in model order is raised, always, with the others as notes."""

from typing import Any

import anyio
import anyio.lowlevel
import pytest
from kit.agents import Run, configure_run
from kit.watching import Watch
from sweeps.stepping import run_once

from agentloop import Agent, Runner, ToolCallError, tool
from agentloop import records as r
from agentloop.testing import ScriptedModel, call, say

REPEATS = 200
WAYS = ("sleep(0)", "equal sleeps", "one event", "at once")


def six_that_fail(way: str) -> Agent[Any, Any]:
    """Return an agent whose six calls all raise in one pass, *way* says after what."""
    met = [6]
    go = anyio.Event()

    async def wait() -> None:
        if way == "sleep(0)":
            await anyio.lowlevel.checkpoint()
        elif way == "equal sleeps":
            await anyio.sleep(0.01)
        elif way == "one event":
            met[0] -= 1
            if met[0] == 0:
                go.set()
            await go.wait()

    @tool(failure_error_function=None)
    async def fails(n: int) -> str:
        await wait()
        raise ValueError(f"call {n}")

    model = ScriptedModel([[call("fails", {"n": n}, call_id=f"c{n}") for n in range(1, 7)], say("never")])
    return Agent("swept", model=model, tools=[fails])


def check(error: BaseException | None, watch: Watch) -> None:
    """Assert that the first call's error was raised with five notes, and that all six had failed."""
    assert isinstance(error, ToolCallError)
    assert str(error) == "Error running tool fails: ValueError: call 1"
    assert error.call is not None
    assert error.call.call_id == "c1"
    assert len(error.__notes__) == 5
    for note, n in zip(error.__notes__, range(2, 7), strict=True):
        assert f"call {n}" in note
    assert set(watch.endings().values()) == {("failed", None)}
    assert len(watch.of(r.CallSettled)) == 6
    assert watch.end == "failed"


@pytest.mark.slow
@pytest.mark.scenario("SF-06", "SF-09")
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("way", WAYS)
def test_first_of_six_in_model_order_is_raised_in_every_task_order(backend: str, way: str) -> None:
    """On a virtual clock, the tasks that are ready together are shuffled at every pass."""
    repeats = REPEATS if way == "equal sleeps" else 50  # the other ways have theirs below

    async def program() -> None:
        for _ in range(repeats):
            watch = Watch()
            with pytest.raises(ToolCallError) as caught:
                await Runner.run(six_that_fail(way), "go", run_config=configure_run(watch))
            check(caught.value, watch)

    seen = run_once(backend, program, at=None, seed=1)
    assert seen.error is None, seen.error


@pytest.mark.slow
@pytest.mark.scenario("SF-06")
@pytest.mark.parametrize("way", ["sleep(0)", "one event"])
async def test_first_of_six_in_model_order_is_raised_on_the_backends_own_loop(way: str) -> None:
    """The batch is run 200 times on the loop that applications use."""
    for _ in range(REPEATS):
        watch = Watch()
        with pytest.raises(ToolCallError) as caught:
            await Runner.run(six_that_fail(way), "go", run_config=configure_run(watch))
        check(caught.value, watch)


@pytest.mark.scenario("SF-06")
@pytest.mark.backends("trio-virtual")
async def test_first_of_six_in_model_order_is_raised_after_equal_virtual_sleeps(run_mode: Run) -> None:
    """On trio's virtual clock equal sleeps end in one pass; the run is plain or streamed."""
    for _ in range(50):
        watch = Watch()
        with pytest.raises(ToolCallError) as caught:
            await run_mode(six_that_fail("equal sleeps"), "go", run_config=configure_run(watch))
        check(caught.value, watch)
