"""Inputs and answers at drawn moments, and the death of the process once they were acknowledged: shown exactly once."""

import json
import os
import sys
from pathlib import Path

import anyio
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.real_clock, pytest.mark.timeout(900)]

SCRIPT = Path(__file__).with_name("drawn_inputs.py")
COUNT = 500 if os.environ.get("AGENTLOOP_SWEEP") == "whole" else 20


@pytest.mark.scenario("PE-01", "PE-02", "PE-04")
@pytest.mark.parametrize("kind", ["memory", "file", "database"])
async def test_what_was_acknowledged_is_shown_once(
    kind: str, anyio_backend: tuple[str, object], request: pytest.FixtureRequest
) -> None:
    """By a run that another process resumes, after SIGKILL at any moment."""
    store = request.getfixturevalue("conninfo") if kind == "database" else kind
    command = [sys.executable, str(SCRIPT), store, str(COUNT), "moments", anyio_backend[0]]
    done = await anyio.run_process(command, check=False)
    assert done.returncode == 0, done.stderr.decode()
    told = json.loads(done.stdout)
    print(told)
    assert told["faults"] == [], done.stderr.decode()
    assert told["input acknowledged"] > COUNT // 5
    assert told["answer acknowledged"] > COUNT // 5
    assert kind == "memory" or told["killed"] > COUNT // 3
