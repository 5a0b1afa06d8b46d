"""The state that the runs of one event loop share, while other loops run in other threads."""

from typing import Any

import anyio
import anyio.to_thread
import pytest

from agentloop._concurrency.backend import own_task
from agentloop._engine.runtime import live_run
from agentloop._engine.runtime.live_run import LoopState, loop_state


@pytest.mark.backends("asyncio")
async def test_a_loop_that_another_thread_asks_for_meanwhile_has_a_state_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The loop asked for last is remembered; another thread may replace it between two looks at it."""
    own = loop_state()
    assert live_run._recent is not None
    loop = live_run._recent[0]
    foreign = LoopState()

    def find_loop() -> Any:
        monkeypatch.setattr(live_run, "_recent", (find_loop, lambda: foreign))  # what the other thread does
        return loop()

    monkeypatch.setattr(live_run, "_recent", (find_loop, lambda: own))
    assert loop_state() is own


async def test_a_loop_that_runs_in_another_thread_now_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine for workflows runs a loop's steps in any of its threads; the threads of bodies aren't the loop's."""
    state = loop_state()
    assert state.is_current()
    assert not await anyio.to_thread.run_sync(state.is_current)
    monkeypatch.setattr(state, "thread_ident", -1)
    assert state.is_current() is (own_task() is not None)  # trio never moves
