"""A batch of runs with effects, killed again and again at random moments, and resumed each time.

Run by hand: `python tests/cli/kill_batch.py --count 50 --kills 5`. It prints its findings, and fails where a
promise is broken: every idempotent effect is there once, every other at most once, and all answers are, in order.
"""

import argparse
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import attrs

TARGET = f"{Path(__file__).with_name('kept_agents.py')}:busy"
EFFECTS = 3
"""Of each request."""


@attrs.frozen
class Report:
    """The findings of one batch. `seen` counts effects as they were had, an idempotent one by its key."""

    killed_at: list[int]
    """After how many notes of its own each process was killed; 0 for one that had ended before."""
    put: Counter[str]
    put_keys: dict[str, set[str]]
    added: Counter[str]
    answers: list[str]
    again: list[str]
    """The answers that one more `resume` prints."""
    err: str
    code: int

    def check(self, count: int) -> None:
        """Assert what is promised of *count* requests."""
        assert self.code == 0, self.err
        assert self.answers == self.again == [f"answer {n}" for n in range(1, count + 1)]
        assert sorted(self.put_keys, key=int) == [str(n) for n in range(1, count + 1)]
        assert {len(keys) for keys in self.put_keys.values()} == {1}, self.put_keys
        assert len(set.union(*self.put_keys.values())) == count
        assert set(self.added.values()) <= {1}, self.added
        assert set(self.added) <= {f"{n}.{part}" for n in range(1, count + 1) for part in (1, 2)}


def _child(arguments: list[str], fifo: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "agentloop.cli", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"AGENTLOOP_TEST_NOTES": str(fifo)},
    )


def run(count: int, kills: int, seed: int, folder: Path) -> Report:
    """Answer *count* requests in *folder* while *kills* processes are killed on the way, and return what was found."""
    chance = random.Random(seed)
    requests, fifo, kept = folder / "requests.txt", folder / "notes", str(folder / "kept")
    requests.write_text("".join(f"{n}\n" for n in range(1, count + 1)))
    os.mkfifo(fifo)
    notes: list[str] = []
    killed_at: list[int] = []
    begin = ["run", TARGET, "--input", str(requests), "--journal", kept]
    # Opened for writing too, so that no child waits for a reader, and no reader finds an end between two children.
    pipe = os.open(fifo, os.O_RDWR)
    try:
        for number in range(kills):
            backend = ("asyncio", "trio")[number % 2]
            arguments = begin if number % 3 == 0 else ["resume", kept]
            child = _child([*arguments, "--backend", backend], fifo)
            wanted = chance.randint(1, max(1, count * EFFECTS // (kills + 2)))
            notes += _read(pipe, child, wanted)
            child.send_signal(signal.SIGKILL)
            child.communicate()
            killed_at.append(wanted if child.returncode == -signal.SIGKILL else 0)
        out, err, code = _finish(["resume", kept, "--backend", "trio"], fifo)
        again, _, _ = _finish(["resume", kept], fifo)
        notes += _read(pipe, None, None)
    finally:
        os.close(pipe)
    return _report("".join(notes).splitlines(), killed_at, out, again, err, code)


def _read(pipe: int, child: "subprocess.Popen[str] | None", wanted: int | None) -> list[str]:
    """Return *wanted* lines as the child writes them, and what else is there: fewer where it ends, all for None."""
    pieces: list[str] = []
    while wanted is None or "".join(pieces).count("\n") < wanted:
        ended = child is None or child.poll() is not None
        if select.select([pipe], [], [], 0 if ended else 0.05)[0]:
            pieces.append(os.read(pipe, 65_536).decode())
        elif ended:
            break
    return pieces


def _finish(arguments: list[str], fifo: Path) -> tuple[str, str, int]:
    child = _child(arguments, fifo)
    out, err = child.communicate()
    return out, err, child.returncode


def _report(notes: list[str], killed_at: list[int], out: str, again: str, err: str, code: int) -> Report:
    put: Counter[str] = Counter()
    keys: dict[str, set[str]] = {}
    added: Counter[str] = Counter()
    for kind, text, *key in (line.split() for line in notes):
        if kind == "put":
            put[text] += 1
            keys.setdefault(text, set()).update(key)
        else:
            added[text] += 1
    return Report(killed_at, put, keys, added, out.splitlines(), again.splitlines(), err, code)


def main() -> None:
    """Run it as the command line says, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = run(chosen.count, chosen.kills, chosen.seed, Path(folder))
    print(f"seed {chosen.seed}: killed after {report.killed_at} effects, exit code {report.code} at last")
    print(f"idempotent effects: {len(report.put_keys)} keys, {sum(report.put.values())} bodies run")
    print(
        f"other effects: {sum(report.added.values())} of {2 * chosen.count}, at most {max(report.added.values())} each"
    )
    print(f"answers: {len(report.answers)}")
    report.check(chosen.count)
    print("every promise was kept")


if __name__ == "__main__":
    main()
