"""The state that the runs of one event loop share, while other loops run in other threads."""

from typing import Any

import pytest

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
