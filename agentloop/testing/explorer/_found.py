"""Faults that were found, kept in `.agentloop/found/` until they are gone: one file each, named by its seed."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs

from agentloop.testing.explorer._rounds import Plan, Round
from agentloop.testing.explorer._runs import Call

FOLDER = Path(".agentloop", "found")
_SEED = re.compile(r"(?P<agent>.+)-(?P<number>\d+)")


@attrs.frozen
class KeptFault:
    """A fault in a file: its seed, what it is, and the calls that show it."""

    seed: str
    agent: str
    number: int
    key: str
    kind: str = ""
    turns: tuple[Any, ...] = ()
    path: Path | None = None

    def round(self, plan: Plan) -> Round:
        """Return the round that shows the fault: the small one of the file, or that of the number."""
        turns = [[_call(plan, one) for one in turn] for turn in self.turns]
        if not turns or any(one is None for turn in turns for one in turn):
            return plan.round(self.number)  # the tools are other ones by now
        return Round(self.kind, tuple(tuple(one for one in turn if one is not None) for turn in turns))


def _call(plan: Plan, kept: Any) -> Call | None:
    name, handoffs, within, arguments = kept
    for place in plan.subject.places:
        way = ([one[0] for one in place.handoffs], [one[0] for one in place.within])
        if place.name == name and way == ([one[0] for one in handoffs], [one[0] for one in within]):
            return Call(place, arguments)
    return None


def seed_of(agent: str, number: int) -> str:
    """Return the seed of round *number* of *agent*."""
    return f"{agent}-{number}"


def read_seed(seed: str, folder: Path) -> KeptFault | None:
    """Return what *seed* means: the kept fault of that name, or the round of that number; None if it is malformed."""
    match = _SEED.fullmatch(seed)
    if match is None:
        return None
    for kept in read_all(folder):
        if kept.seed == seed:
            return kept
    return KeptFault(seed, match["agent"], int(match["number"]), "")


def read_all(folder: Path) -> Iterator[KeptFault]:
    """Yield the faults that are kept below *folder*; files that aren't such ones are skipped."""
    for path in sorted((folder / FOLDER).glob("*.json")):
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            turns = tuple(tuple(tuple(one) for one in turn) for turn in found["turns"])
            yield KeptFault(found["seed"], found["agent"], found["number"], found["key"], found["kind"], turns, path)
        except (OSError, ValueError, KeyError, TypeError):
            continue


def keep(folder: Path, agent: str, number: int, key: str, one: Round) -> bool:
    """Keep a fault; return False if it is kept already, by another process for example."""
    if any(kept.agent == agent and kept.key == key for kept in read_all(folder)):
        return False
    seed = seed_of(agent, number)
    place = folder / FOLDER
    place.mkdir(parents=True, exist_ok=True)
    text = json.dumps(
        {
            "seed": seed,
            "agent": agent,
            "number": number,
            "key": key,
            "kind": one.kind,
            "turns": [[call.as_json() for call in turn] for turn in one.turns],
        },
        indent=1,
    )
    path = place / f"{re.sub(r'[^A-Za-z0-9_.-]', '.', seed)}.json"
    part = path.with_suffix(f".{os.getpid()}")
    part.write_text(text + "\n", encoding="utf-8")
    part.replace(path)
    return True


def forget(kept: KeptFault) -> None:
    """Remove the file of a fault that is gone."""
    if kept.path is not None:
        kept.path.unlink(missing_ok=True)
