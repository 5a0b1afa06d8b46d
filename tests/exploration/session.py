"""A session of exploration: play rounds on several processes until the time is spent, and report the results."""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import math
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import attrs

from .counts import Counts, Violation
from .crashes import AFTER_CRASHES
from .invariants import INVARIANTS
from .pure_core import OF_THE_CORE
from .rounds import Round

ENOUGH = 200
"""Number of rounds from which an invariant that was never exercised fails the session."""


@attrs.frozen(kw_only=True)
class Wanted:
    """The task of a session: the rounds `first`, `first + step` …, until `rounds` of them or the time is over."""

    seed: str = "0"
    budget: float = 60.0
    first: int = 0
    step: int = 1
    rounds: int | None = None
    stop: bool = False
    """True if it ends at the first violation."""
    small: bool = False
    """True if findings are shrunk."""

    def numbers(self) -> Iterator[int]:
        """Yield the rounds to play, as long as there is time."""
        until = time.monotonic() + self.budget
        played = 0
        while (self.rounds is None or played < self.rounds) and time.monotonic() < until:
            yield self.first + played * self.step
            played += 1


def explore(wanted: Wanted) -> Counts:
    """Play the rounds of *wanted* in this process."""
    counts = Counts()
    # Failed runs leave cycles: one collection after each round is much faster than Python's automatic ones.
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        for number in wanted.numbers():
            Round(wanted.seed, number, counts, small=wanted.small).play(stop=wanted.stop)
            counts.numbers["rounds"] += 1
            gc.collect(0 if number // wanted.step % 100 else 2)
            if wanted.stop and counts.violations:
                break
    finally:
        gc.enable()
        gc.unfreeze()
    return counts


def explore_all(wanted: Wanted, jobs: int) -> Counts:
    """Play the rounds of *wanted* on *jobs* processes."""
    if jobs == 1:
        return explore(wanted)
    shares = [
        attrs.evolve(
            wanted,
            first=wanted.first + job,
            step=jobs,
            rounds=None if wanted.rounds is None else (wanted.rounds + jobs - 1 - job) // jobs,
        )
        for job in range(jobs)
    ]
    counts = Counts()
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        for found in pool.imap(explore, shares):
            counts.add(found)
    return counts


def digest_of_round(seed: str, number: int) -> str:
    """Return a digest of every log of a round."""
    counts = Counts(digest=hashlib.sha256())
    Round(seed, number, counts).play()
    found: str = counts.digest.hexdigest()
    return found


def same_in_a_fresh_process(seed: str, number: int) -> list[Violation]:
    """Play a round here and in a process with other hashes and addresses: every log must be the same. Return the
    violation, if there is one.
    """
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        there = pool.apply(digest_of_round, (seed, number))
    if there == digest_of_round(seed, number):
        return []
    words = "a fresh process gives other logs than this one"
    return [Violation(("a_round_is_its_seeds",), words, f"--seed {seed} --round {number}")]


def commit() -> str:
    """Return the commit of the sources, or "unknown"."""
    root = Path(__file__).parents[2]
    try:
        done = subprocess.run(
            ["git", "-C", str(root), "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
        )
    except OSError:
        return "unknown"
    return done.stdout.strip() or "unknown"


def untouched(counts: Counts) -> list[str]:
    """Return the invariants that no round exercised, though rounds can."""
    missing = [name for name in counts.tally.unexercised() if not counts.core.exercised[name]]
    missing += [f"{name} (core)" for name in OF_THE_CORE if not counts.core.exercised[name]]
    return missing + [name for name in AFTER_CRASHES if not counts.numbers[name]]


def report(counts: Counts, wanted: Wanted, seconds: float) -> Iterator[str]:
    """Yield the lines of a session's report."""
    numbers = counts.numbers
    malformed = sum(count for name, count in numbers.items() if name.startswith("malformed"))
    spent = sum(os.times()[:4])
    yield f"commit {commit()}, seed {wanted.seed}, {numbers['rounds']} rounds in {seconds:.0f} s ({spent:.0f} s of CPU)"
    yield f"full-stack schedules: {sum(n for name, n in numbers.items() if name.startswith('schedules'))}" + "".join(
        f", {name.removeprefix('schedules ')} {numbers[name]}" for name in sorted(numbers) if name.startswith("sch")
    )
    yield f"  processes of worlds that crash among them: {numbers['processes that crashed or resumed']}"
    yield f"  pairs compared: {numbers['compared']}, repeated: {numbers['repeated']}, replayed: {numbers['replayed']}"
    yield f"cancel points: {numbers['cancel points']}"
    yield f"crash points: {numbers['crash points']}, gone on with {numbers['recovered']} times"
    for name in AFTER_CRASHES:
        yield f"  {name}: {numbers[name]}"
    yield f"segments of runs that were cancelled, cut and resumed: {numbers['segments']}"
    yield f"further and rare worlds: {numbers['worlds beside']}, rounds with parts alone: {numbers['parts alone']}"
    yield f"loop-free worlds: {numbers['core worlds']}"
    yield f"malformed inputs: {malformed}" + "".join(
        f", {name.removeprefix('malformed ')} {numbers[name]}" for name in sorted(numbers) if name.startswith("malf")
    )
    yield f"invariants: {len(INVARIANTS)}; exercised by worlds (full stack, core alone):"
    for name in INVARIANTS:
        yield f"  {name}: {counts.tally.exercised[name]}, {counts.core.exercised[name]}"
    yield f"violations: {len(counts.violations)}"
    for violation in counts.violations[:10]:
        yield f"python -m tests.exploration {violation.where}  # {', '.join(violation.invariants)}"
        yield violation.words


def main(arguments: list[str]) -> int:
    """Run a session by its command line; return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.exploration", description=__doc__)
    parser.add_argument("--budget", type=float, help="seconds; 60 if --rounds isn't given, as long as it takes else")
    parser.add_argument("--seed", default="0")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--rounds", type=int, help="play so many rounds at most")
    parser.add_argument("--round", type=int, help="play this round alone, and make small what it finds")
    parser.add_argument("--first", type=int, default=0, help="begin with this round")
    parser.add_argument("--first-violation", action="store_true", help="end at the first violation")
    parser.add_argument("--json", action="store_true", help="print violations as one line of JSON")
    given = parser.parse_args(arguments)
    budget = given.budget or (60.0 if given.rounds is None else math.inf)
    wanted = Wanted(seed=given.seed, budget=budget, first=given.first, rounds=given.rounds, stop=given.first_violation)
    if given.round is not None:
        wanted = attrs.evolve(wanted, first=given.round, rounds=1, budget=math.inf, small=True)
    began = time.monotonic()
    counts = explore_all(wanted, given.jobs if given.round is None else 1)
    if given.round is None and not given.first_violation:
        counts.violations += same_in_a_fresh_process(given.seed, 0)
        counts.numbers["rounds played in a fresh process too"] += 1
    seconds = time.monotonic() - began
    if given.json:
        found = [
            {"invariants": one.invariants, "words": one.words[:2000], "where": one.where} for one in counts.violations
        ]
        print(json.dumps({"violations": found, "numbers": counts.numbers}))
        return 1 if counts.violations else 0
    print("\n".join(report(counts, wanted, seconds)))
    if counts.violations:
        return 1
    missing = untouched(counts)
    if missing and counts.numbers["rounds"] >= ENOUGH:
        print(f"never exercised: {', '.join(missing)}", file=sys.stderr)
        return 1
    return 0
