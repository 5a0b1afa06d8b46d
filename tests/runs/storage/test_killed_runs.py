"""Processes that are killed for real, at any moment, and other processes that resume with their journals."""

import json
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kit import child_runs

pytestmark = [pytest.mark.real_clock, pytest.mark.slow]
KILLS = 5


def start(backend: str, ledger: Path, folder: Path) -> subprocess.Popen[str]:
    """Start a process that begins the runs of *folder*, or resumes them."""
    command = child_runs.make_command("batch", backend, str(ledger), str(folder))
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=child_runs.ENVIRONMENT, stdout=pipe, stderr=pipe, text=True)


def lines_in(path: Path) -> list[list[str]]:
    """Return the words of each line of a ledger."""
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def wait_for(process: subprocess.Popen[str], ledger: Path, lines: int) -> bool:
    """Wait until the ledger has got *lines* more lines; False if *process* has ended."""
    wanted = len(lines_in(ledger)) + lines
    deadline = time.monotonic() + 40
    while len(lines_in(ledger)) < wanted and process.poll() is None:
        assert time.monotonic() < deadline, "the process does nothing"
        time.sleep(0.001)  # another process: there is nothing to be woken by
    return process.poll() is None


def kill_after(process: subprocess.Popen[str], ledger: Path, lines: int, delay: float) -> bool:
    """Kill *process* a moment after the ledger has got *lines* more lines; False if it had ended by itself."""
    if not wait_for(process, ledger, lines):
        return False
    time.sleep(delay)
    process.kill()
    return process.wait() == -signal.SIGKILL


def stop_after(process: subprocess.Popen[str], ledger: Path) -> bool:
    """Stop *process* when it has written to the ledger; False if it had ended by itself."""
    running = wait_for(process, ledger, 1)
    process.send_signal(signal.SIGSTOP)
    return running


def moments(seed: int) -> Iterator[tuple[int, float]]:
    """Return when to kill: after how many lines of the ledger, and how much later."""
    rng = random.Random(seed)
    while True:
        yield rng.choice((1, 1, 2, 3)), rng.choice((0.0, rng.uniform(0, 0.012)))


@pytest.mark.timeout(150)
@pytest.mark.scenario("LX-45")
def test_runs_that_are_killed_again_and_again_come_to_their_ends(tmp_path: Path) -> None:
    """Every idempotent effect takes place, every other one at most once, and every reported status is true."""
    ledger, seed = tmp_path / "ledger", 1
    when, backends = moments(seed), ["asyncio", "trio"]
    kills = 0
    for entry in range(KILLS):
        process = start(backends[entry % 2], ledger, tmp_path)
        kills += kill_after(process, ledger, *next(when))
        process.communicate()
    assert kills >= KILLS - 1, "the runs were over before they could be killed"
    process = start(backends[KILLS % 2], ledger, tmp_path)
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    reports = json.loads(out)
    assert [report["output"] for report in reports] == [f"{run} is done" for run in range(child_runs.RUNS)]
    done = lines_in(ledger)
    unknown = sum(status == "unknown" for report in reports for status in report["calls"].values())
    again = len(done) - len({tuple(line) for line in done})
    assert unknown + again, "no kill met a body"
    for run, report in enumerate(reports):
        check(run, report, [line for line in done if int(line[2]) // 100 == run])
    keys = Counter((tool, n, key) for what, tool, n, key in done)
    assert len(keys) == len({key for _, _, key in keys}), "no two calls of any runs share a key"
    assert len(keys) <= child_runs.RUNS * (child_runs.TURNS - 1) * 2, "every attempt of a call has its key"


def check(run: int, report: dict[str, Any], ledger: list[list[str]]) -> None:
    """Check the report of a run that came to its end against what its tools have done."""
    turns = child_runs.TURNS
    assert (report["status"], report["turns"]) == ("completed", turns)
    starts = Counter((tool, int(n)) for what, tool, n, _ in ledger if what == "start")
    ends = Counter((tool, int(n)) for what, tool, n, _ in ledger if what == "end")
    for turn in range(1, turns):
        once, idem = ("once", 100 * run + turn), ("idem", 100 * run + turn)
        assert starts[once] <= 1
        assert ends[idem] >= 1
        status = report["calls"][f"once{turn}"]
        if status == "succeeded":
            assert ends[once] == 1
            assert report["outputs"][f"once{turn}"] == f"once {once[1]}"
        else:
            assert status == "unknown"
        assert report["calls"][f"idem{turn}"] == "succeeded"
        assert report["outputs"][f"idem{turn}"] == f"idem {idem[1]}"


@pytest.mark.timeout(150)
def test_two_processes_never_write_one_journal(tmp_path: Path) -> None:
    """The second process gets an error and does nothing, while the first comes to its end."""
    ledger = tmp_path / "ledger"
    first = start("asyncio", ledger, tmp_path)
    assert stop_after(first, ledger)
    done = len(lines_in(ledger))
    second = start("trio", ledger, tmp_path)
    _, errors = second.communicate(timeout=60)
    assert second.returncode != 0
    assert "JournalError" in errors
    assert "another journal object or process" in errors
    assert len(lines_in(ledger)) == done
    first.send_signal(signal.SIGCONT)
    out, errors = first.communicate(timeout=60)
    assert first.returncode == 0, errors
    for run, report in enumerate(json.loads(out)):
        assert report["output"] == f"{run} is done"
        assert set(report["calls"].values()) == {"succeeded"}
