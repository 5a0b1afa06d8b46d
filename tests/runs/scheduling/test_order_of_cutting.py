"""Where one moment concerns several parts of a run, they come in the order in which they came about, in any process."""

from contextlib import ExitStack

import pytest

from agentloop._concurrency.cleanup import Cleanup


@pytest.mark.anyio
async def test_sections_are_cut_in_the_order_in_which_they_were_opened() -> None:
    """A set of scopes would be gone through by their addresses: the log would be another one in each process."""
    cleanup = Cleanup(5.0)
    with ExitStack() as stack:
        opened = [stack.enter_context(cleanup.section()) for _ in range(30)]
        assert list(cleanup._sections) == opened
        cleanup.begin()
        assert len({scope.deadline for scope in opened}) == 1
    assert not cleanup._sections
