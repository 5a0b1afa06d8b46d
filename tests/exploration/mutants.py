"""Planted faults: each edit of a list is applied to a copy of the package, and the same session must find it.

`python -m tests.exploration.mutants` tries the list beside this file; `--list FILE` takes another one. A list is TOML:
`[[mutant]]` tables of `name`, `file` (below `agentloop/`), `old` and `new`. An `old` that isn't found exactly once is
an error, not a survivor. A mutant is killed if the session reports a broken invariant.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import attrs

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).with_name("mutants.toml")
FIELDS = {"name", "file", "old", "new", "why"}


class BadList(Exception):
    """A list that can't be applied."""


@attrs.frozen(kw_only=True)
class Mutant:
    """One edit: *old* text, found once in *file*, becomes *new*."""

    name: str
    file: str
    old: str
    new: str
    why: str = ""

    def edited(self, root: Path) -> str:
        """Return the text of the file below *root* with the edit made.

        Raises:
            BadList: if the file isn't there, or holds the old text not exactly once.
        """
        path = root / "agentloop" / self.file
        if not path.is_file():
            raise BadList(f"{self.name}: there is no agentloop/{self.file}")
        text = path.read_text()
        count = text.count(self.old)
        if count != 1:
            raise BadList(f"{self.name}: agentloop/{self.file} holds the old text {count} times, not once:\n{self.old}")
        if self.old == self.new:
            raise BadList(f"{self.name}: the edit changes nothing")
        return text.replace(self.old, self.new)


@attrs.frozen(kw_only=True)
class Verdict:
    """The result of one mutant: `killed`, `survived`, or `error`; the broken invariants, the number of rounds."""

    mutant: str
    verdict: str
    invariants: tuple[str, ...] = ()
    words: str = ""
    rounds: int = 0
    seconds: float = 0.0


def read_list(path: Path) -> list[Mutant]:
    """Return the mutants of the list at *path*.

    Raises:
        BadList: naming the fault of the list.
    """
    with path.open("rb") as file:
        try:
            found = tomllib.load(file)
        except tomllib.TOMLDecodeError as error:
            raise BadList(f"{path}: {error}") from None
    mutants = []
    for place, entry in enumerate(found.get("mutant", [])):
        unknown, missing = set(entry) - FIELDS, FIELDS - {"why"} - set(entry)
        if unknown or missing:
            raise BadList(f"{path}: mutant {place}: unknown {sorted(unknown)}, missing {sorted(missing)}")
        mutants.append(Mutant(**entry))
    twice = [name for name, count in Counter(one.name for one in mutants).items() if count > 1]
    if twice or not mutants:
        raise BadList(f"{path}: {'no mutants' if not mutants else 'names that stand twice: ' + ', '.join(twice)}")
    return mutants


def try_out(mutant: Mutant | None, base: Path, *, seed: str, rounds: int, budget: float) -> Verdict:
    """Run the session on a copy of *base* with *mutant* applied (None: on an unchanged copy)."""
    name = mutant.name if mutant is not None else "(unchanged)"
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="agentloop-mutant-") as folder:
        root = Path(folder)
        # The copy includes Python's compiled files, so only the edited file is compiled anew.
        shutil.copytree(base / "agentloop", root / "agentloop")
        (root / "tests").mkdir()
        shutil.copytree(base / "tests/exploration", root / "tests/exploration")
        if mutant is not None:
            (root / "agentloop" / mutant.file).write_text(mutant.edited(root))
        command = [sys.executable, "-m", "tests.exploration", "--seed", seed, "--rounds", str(rounds)]
        command += ["--budget", str(budget), "--jobs", "1", "--first-violation", "--json"]
        # A coverage measurement would look for sources in the copy after the copy is deleted.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
        environment["PYTHONPATH"] = str(root)
        try:
            done = subprocess.run(
                command, cwd=root, env=environment, capture_output=True, text=True, timeout=budget + 60, check=False
            )
        except subprocess.TimeoutExpired:
            return Verdict(mutant=name, verdict="killed", invariants=("a_run_ends",), seconds=time.monotonic() - began)
    return _read_report(name, done, time.monotonic() - began)


def _read_report(name: str, done: subprocess.CompletedProcess[str], seconds: float) -> Verdict:
    try:
        said: dict[str, Any] = json.loads(done.stdout.strip().split("\n")[-1])
    except ValueError:
        return Verdict(mutant=name, verdict="error", words=done.stderr.strip()[-1500:], seconds=seconds)
    violations: list[dict[str, Any]] = said["violations"]
    rounds = said["numbers"].get("rounds", 0)
    if not violations:
        return Verdict(mutant=name, verdict="survived", rounds=rounds, seconds=seconds)
    invariants = tuple(dict.fromkeys(invariant for one in violations for invariant in one["invariants"]))
    return Verdict(
        mutant=name,
        verdict="killed",
        invariants=invariants,
        words=violations[0]["words"],
        rounds=rounds,
        seconds=seconds,
    )


def try_all(mutants: Sequence[Mutant], base: Path, *, jobs: int, **how: Any) -> Iterator[Verdict]:
    """Yield the verdict on each of *mutants*, in their order.

    Raises:
        BadList: before anything runs, if one of them can't be applied.
    """
    faults = []
    for mutant in mutants:
        try:
            mutant.edited(base)
        except BadList as error:
            faults.append(str(error))
    if faults:
        raise BadList("\n".join(faults))
    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(lambda mutant: try_out(mutant, base, **how), mutants)


HEAD = """# Planted faults

[How the runtime is searched for faults](exploration.md) says how a fault is planted and found.
[All pages](index.md).

"""
"""The beginning of the page that `--table` writes."""


def table(mutants: Sequence[Mutant], verdicts: Sequence[Verdict]) -> str:
    """Return the verdicts on *mutants* as a table for the documentation."""
    rows = ["| Planted fault | In | Found by | Rounds |", "|---|---|---|---|"]
    for mutant, verdict in zip(mutants, verdicts, strict=True):
        invariants = "; ".join(invariant.replace("_", " ") for invariant in verdict.invariants[:3])
        more = f" and {len(verdict.invariants) - 3} more" if len(verdict.invariants) > 3 else ""
        rounds = max(1, verdict.rounds)
        rows.append(f"| {mutant.name} | `{mutant.file}` | {invariants + more or f'**{verdict.verdict}**'} | {rounds} |")
    return "\n".join(rows) + "\n"


def main(arguments: list[str]) -> int:
    """Try a list of mutants; return 0 if every one was killed, 1 if not, 2 if the session or the list is faulty."""
    parser = argparse.ArgumentParser(prog="python -m tests.exploration.mutants", description=__doc__)
    parser.add_argument("--list", type=Path, default=LIST)
    parser.add_argument("--only", action="append", default=[], help="the name of a mutant; may be given several times")
    parser.add_argument("--seed", default="mutants")
    parser.add_argument("--rounds", type=int, default=500, help="at most so many rounds for each")
    parser.add_argument("--budget", type=float, default=300.0, help="at most so many seconds for each")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--base", type=Path, default=ROOT, help="the folder that holds agentloop/ and tests/")
    parser.add_argument("--table", type=Path, help="write what became of them there, as a table")
    parser.add_argument("--check-list", action="store_true", help="only see that every edit can be applied")
    given = parser.parse_args(arguments)
    try:
        mutants = [one for one in read_list(given.list) if not given.only or one.name in given.only]
        if given.check_list:
            for mutant in mutants:
                mutant.edited(given.base)
            print(f"{len(mutants)} edits can be applied")
            return 0
        how: dict[str, Any] = {"seed": given.seed, "rounds": given.rounds, "budget": given.budget}
        control = try_out(None, given.base, **how)
        if control.verdict != "survived":
            print(f"the session fails on the package as it is: {control.verdict} {', '.join(control.invariants)}")
            print(control.words)
            return 2
        print(f"unchanged: nothing found in {control.rounds} rounds, {control.seconds:.0f} s", flush=True)
        verdicts = []
        for verdict in try_all(mutants, given.base, jobs=given.jobs, **how):
            verdicts.append(verdict)
            by = ", ".join(verdict.invariants) or verdict.words
            print(
                f"{verdict.verdict:9} {verdict.mutant}: {by} ({verdict.rounds} rounds, {verdict.seconds:.0f} s)",
                flush=True,
            )
    except BadList as error:
        print(f"the list can't be applied: {error}", file=sys.stderr)
        return 2
    if given.table is not None:
        given.table.write_text(HEAD + table(mutants, verdicts))
    killed = sum(one.verdict == "killed" for one in verdicts)
    print(f"{killed} of {len(verdicts)} killed")
    return 0 if killed == len(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
