"""`python -m benchmarks`: measure and print. The exit status is 0 whatever was found, unless `--check` is given."""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path

import anyio

from benchmarks.against import compare, differences, load
from benchmarks.bare import LIMITS
from benchmarks.measure import FULL, QUICK, SMOKE, Effort
from benchmarks.report import BACKENDS, Row, beyond_bounds, json_line, table
from benchmarks.workloads import IN_PROCESSES, NAMES, ON_BACKENDS


def _arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="What agentloop costs over the loop.")
    parser.add_argument("workloads", nargs="*", metavar="W", help=f"of {', '.join(NAMES)}; all of them without any")
    parser.add_argument("--backend", choices=BACKENDS, help="one backend in place of both")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the JSON lines here, not to standard output")
    parser.add_argument(
        "--against", type=Path, metavar="FILE", help="say which rows moved against the JSON lines stored in FILE"
    )
    parser.add_argument(
        "--check", action="store_true", help="exit with status 1 if an option of Wp costs more than its wide bound"
    )
    less = parser.add_mutually_exclusive_group()
    less.add_argument(
        "--quick",
        dest="effort",
        action="store_const",
        const=QUICK,
        default=FULL,
        help="fewer samples and runs, under a minute: a first look",
    )
    less.add_argument(
        "--smoke",
        dest="effort",
        action="store_const",
        const=SMOKE,
        help="tiny sizes, some seconds: whether the benchmarks work; the figures mean nothing",
    )
    arguments = parser.parse_args(given)
    if unknown := [name for name in arguments.workloads if name not in NAMES]:
        parser.error(f"no workload {', '.join(unknown)}; there are {', '.join(NAMES)}")
    return arguments


async def _on(backend: str, names: Sequence[str], effort: Effort) -> list[Row]:
    limit = LIMITS[backend]
    return [row for name in names if name in ON_BACKENDS for row in await ON_BACKENDS[name](limit, effort)]


def measure(names: Sequence[str], backends: Sequence[str], effort: Effort) -> list[Row]:
    """Return the rows of the workloads called *names* on each of *backends*."""
    rows = [row for backend in backends for row in anyio.run(partial(_on, backend, names, effort), backend=backend)]
    return [*rows, *(row for name in names if name in IN_PROCESSES for row in IN_PROCESSES[name](effort))]


def main(given: Sequence[str] | None = None) -> None:
    """Measure what the command line names."""
    arguments = _arguments(given)
    backends = (arguments.backend,) if arguments.backend else BACKENDS
    effort: Effort = arguments.effort
    stored = None if arguments.against is None else load(arguments.against)  # before minutes of measuring
    rows = measure(arguments.workloads or NAMES, backends, effort)
    lines = "".join(json_line(row, quick=effort is not FULL) + "\n" for row in rows)
    if arguments.json is None:
        print(lines)
    else:
        arguments.json.write_text(lines, encoding="utf-8")
    versions = ", ".join(f"{name} {version(name)}" for name in ("anyio", "trio"))
    look = {FULL: "", QUICK: ", a quick look", SMOKE: ", too small to mean anything"}[effort]
    print(f"Python {platform.python_version()}, {versions}{look}\n")
    print(table(rows, backends))
    if stored is not None:
        print(f"\nAgainst {arguments.against}:\n")
        print(differences(compare(rows, stored), stored, platform.python_version()))
    if arguments.check and (found := beyond_bounds(rows)):
        sys.exit("\n".join(["", "Beyond the bounds:", *found]))


if __name__ == "__main__":
    main()
