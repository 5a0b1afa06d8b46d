"""Worlds with background calls: a few turns of calls of tools that run in the background, of ordinary ones, of one that
waits for a verdict, and of an agent tool with a script of its own. Bodies take time, fail, swallow cancellations. The
application adds inputs; turns and time are limited.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from agentloop import Agent, Capacity, RunConfig, StopAtTools, tool
from agentloop.config.conditions import MaxTurns
from agentloop.testing import call, say
from agentloop.testing.simulation._faults import CancelsItself, FailsInCleanup, Raises, Returns, Swallows
from agentloop.testing.simulation.generated import Chance, draw_tape
from agentloop.testing.simulation.runs import Steering, Verdict, World

BACKGROUND: dict[str, dict[str, Any]] = {
    "dig": {},
    "scan": {"on_end": "cancel"},
    "redo": {"idempotent": True},
    "bounded": {"timeout": 0.3, "on_end": "cancel"},
    "asked": {"needs_approval": True},
    "held": {"capacity": True},
}
"""The tools that run in the background, and one more, `dive`, in a thread."""
RERUNNABLE = {"redo", "ask"}
"""A body of these may run again in a later segment: it is idempotent, or continues its nested run."""
ENDED = {name for name, options in BACKGROUND.items() if options.get("on_end") == "cancel"}


async def work(n: int = 0) -> str:
    """Work."""
    return f"{n} done"


def dive(n: int = 0) -> str:
    """Work in a thread."""
    return f"{n} dived"


def make(behavior: Any = "run_llm_again") -> Agent[Any, Any]:
    """Return an agent with tools of its own."""
    room = Capacity(1)
    tools = [
        tool(work, name=name, background=True, **({**options, "capacity": room} if "capacity" in options else options))
        for name, options in BACKGROUND.items()
    ]
    tools.append(tool(dive, background=True))
    ordinary = [tool(work, name="look"), tool(work, name="check", needs_approval=True)]
    strict = tool(work, name="strict", failure_error_function="raise")
    inner = Agent("inner", tools=[*tools[:3], *ordinary])
    return Agent("a", tools=[*tools, *ordinary, strict, inner.as_tool("ask", "Ask.")], tool_use_behavior=behavior)


NAMES = [*BACKGROUND, "dive", "dig", "scan", "redo", "look", "look", "check", "strict", "ask"]
INNER = ["dig", "scan", "redo", "look", "check"]


def draw_background(chance: Chance) -> World:
    """Return one world: scripts, behaviors, verdicts, added inputs, limits."""
    nested: dict[str, Any] = {}
    behaviors: dict[str, Any] = {}
    verdicts: list[Verdict] = []
    count = 0

    def turns(path: tuple[str, ...], names: Sequence[str]) -> list[Any]:
        nonlocal count
        steps: list[Any] = []
        for _ in range(chance.whole(1, 2 if path else 3)):
            asked = []
            for _ in range(chance.whole(1, 3)):
                count += 1
                name, call_id = chance.pick(names), f"c{count}"
                asked.append(call(name, {"input": "x"} if name == "ask" else {"n": count}, call_id=call_id))
                if name == "ask":
                    nested[call_id] = turns((call_id,), INNER)
                    continue
                behaviors["/".join((*path, call_id))] = draw_behavior(chance, name, count)
                if name in ("asked", "check"):
                    verdicts.append(Verdict(call_id=call_id, path=path, approved=not chance.one_in(4)))
            steps.append(asked)
        return [*steps, *[say(f"answer {number}") for number in range(9)]]

    script = turns((), NAMES)
    steering = [
        Steering(id=f"in{place}", text=f"input {place}", after=chance.whole(0, 30), when=chance.pick(["turn", "idle"]))
        for place in range(chance.pick([0, 0, 1, 2]))
    ]
    options: dict[str, Any] = {"max_turns": chance.pick([10, 10, 2, 3])}
    stops = chance.pick([None, None, None, MaxTurns(2)])
    options["run_config"] = RunConfig(timeout=chance.pick([None, None, None, 0.9]), stop_when=stops)
    return World(
        agent=partial(make, chance.pick([*["run_llm_again"] * 4, "stop_on_first_tool", StopAtTools(["look"])])),
        script=script,
        nested=nested,
        behaviors={place: one for place, one in behaviors.items() if one is not None},
        verdicts=tuple(verdicts),
        steering=steering,
        options=options,
        slow_reader=chance.one_in(4),
        reader_stops=chance.pick([None, None, None, "TurnStarted"]),
        order=chance.pick(["gate", "passes", "steps"]),
        tape=draw_tape(chance),
    )


def draw_behavior(chance: Chance, name: str, number: int) -> Any:
    """Return the behavior of a body; None where it just runs."""
    seconds = chance.pick([0.0, 0.0, 0.125, 0.5, 1.5])
    seconds += number / 1024 if seconds else 0.0  # no two timers of one moment
    points = chance.whole(0, 3)
    if name == "dive":
        return None
    kinds: list[Any] = [None, Returns, Returns, Returns, Raises, Swallows, FailsInCleanup, CancelsItself]
    kind = chance.pick(kinds)
    return None if kind is None else kind(points, seconds)
