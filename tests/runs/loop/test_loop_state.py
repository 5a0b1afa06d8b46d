"""The state that the runs of one event loop share, while other loops run in other threads."""

import anyio.to_thread
import pytest

from agentloop._concurrency.backend import own_task
from agentloop._engine.runtime.live_run import loop_state


async def test_a_loop_that_runs_in_another_thread_now_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine for workflows runs a loop's steps in any of its threads; the threads of bodies aren't the loop's."""
    state = loop_state()
    assert state.is_current()
    assert not await anyio.to_thread.run_sync(state.is_current)
    monkeypatch.setattr(state, "thread_ident", -1)
    assert state.is_current() is (own_task() is not None)  # trio never moves
