"""The fleet of the gallery prints what its page shows."""

from typing import Any

import pytest
from kit.examples import load_example, shown_outputs


@pytest.mark.slow  # two processes, and the lease of the dead one
@pytest.mark.real_clock
def test_runs_survive_the_worker_that_began_them(
    conninfo: str, anyio_backend: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every invoice is paid once, though one worker is killed while it pays."""
    load_example("fleet").main(conninfo, anyio_backend[0])
    assert [capsys.readouterr().out] == shown_outputs("fleet")
