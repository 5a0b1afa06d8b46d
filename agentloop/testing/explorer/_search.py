"""Explore one agent for a while, or repeat one round of it. Does not know about pytest."""

from __future__ import annotations

import importlib
import inspect
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import attrs

from agentloop.agents import Agent
from agentloop.exceptions import UserError, UserTypeError
from agentloop.testing.explorer import _own
from agentloop.testing.explorer._faults_of_runs import AgentFault
from agentloop.testing.explorer._rounds import Plan, Round
from agentloop.testing.explorer._runs import Subject, body_functions, functions_of_agent
from agentloop.testing.explorer._state import Program, own_packages
from agentloop.testing.explorer._values import Words, context_type_of
from agentloop.testing.simulation._lines import count_as_own
from agentloop.testing.simulation.event_loop import Backend


@attrs.frozen
class ExploredAgent:
    """An agent to explore: its name in the configuration, and that of the function that makes its context."""

    agent: str
    context: str | None = None


@attrs.frozen(eq=False)
class SearchResult:
    """A fault, the number of the round that found it, and that round."""

    number: int
    fault: AgentFault
    round: Round
    runs: int = 0


@attrs.define(eq=False)
class Extent:
    """The result of an exploration."""

    rounds: int = 0
    runs: int = 0
    backends: tuple[Backend, ...] = ()
    missing: str = ""
    """Advice for bodies that need a context and can't run; empty if nothing is missing."""


def load(name: str, folder: Path) -> Any:
    """Return the object that *name*, `module:object`, means; *folder* is where modules are looked for, too.

    Raises:
        UserError: if there is no such module or object.
    """
    module, colon, path = name.partition(":")
    if not colon or not module or not path:
        raise UserError(f"expected module:object, got {name!r}")
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise UserError(f"{name!r}: there is no module {module!r}, neither installed nor in {folder.name!r}") from None
    for step in path.split("."):
        if not hasattr(found, step):
            raise UserError(f"{name!r}: module {module!r} has no attribute {path!r}")
        found = getattr(found, step)
    return found


def make_plan(target: ExploredAgent, folder: Path) -> Plan:
    """Return the plan for *target*, whose tools were tried.

    Raises:
        UserError: if the agent or its context can't be made.
    """
    found = load(target.agent, folder)
    make_context = _context_of(target, folder)
    agent = found if isinstance(found, Agent) else found() if callable(found) else None
    if not isinstance(agent, Agent):
        raise UserTypeError(f"{target.agent!r}: expected an Agent, or a function that makes one, got {found!r}")
    home = sys.modules[target.agent.partition(":")[0]]
    own_packages.add(home.__name__.partition(".")[0])
    functions = functions_of_agent(agent)
    count_as_own(fn for fn in functions if inspect.isroutine(fn))
    if make_context is not None and inspect.isroutine(make_context):
        functions.append(make_context)
    program = Program([home], functions)
    words = Words()
    if make_context is not None:
        words.add_state(make_context())
    for fn in body_functions(agent).values():
        words.add_code(fn)
    for root in program.roots.values():
        words.add_state(root)
    program.checkpoint()
    made = found if not isinstance(found, Agent) else agent
    subject = Subject(target.agent, made, make_context, program, words=words)
    plan = Plan(subject, own=_own_of(home))
    plan.begin()
    return plan


def _context_of(target: ExploredAgent, folder: Path) -> Callable[[], Any] | None:
    if target.context is None:
        return None
    found = load(target.context, folder)
    if not callable(found) or inspect.iscoroutinefunction(found):
        raise UserTypeError(f"agentloop_context {target.context!r}: expected a function that makes it, got {found!r}")
    make: Callable[[], Any] = found
    return make


def _own_of(home: ModuleType) -> list[_own.OwnInvariant]:
    """Return the application's invariants for agents of the module *home*."""
    return [one for one in _own.OWN if one.module is vars(home) or not _has_agents(one.module)]


def _has_agents(module: Mapping[str, Any]) -> bool:
    return any(isinstance(value, Agent) for value in module.values())


def explore(
    plan: Plan, until: float, part: int = 0, parts: int = 1, known: Iterable[str] = ()
) -> Iterator[SearchResult | Extent]:
    """Do the rounds of *plan* with the numbers *part*, *part* + *parts* … *until* a time of `time.monotonic`.

    Yields what it finds, each fault once and none of those *known*, and the extent at the end.
    """
    seen = set(known)
    extent = Extent(backends=plan.backends, missing=what_to_write(plan))
    for number, one in plan.rounds(part):
        if (number - part) % parts:
            continue
        if time.monotonic() > until:
            break
        extent.rounds += 1
        if any(key.startswith(f"{one.kind} of {plan.tools_of(one)}") for key in seen):
            continue  # it would find the same again
        fault = plan.find(one)
        if fault is None or fault.key in seen:
            continue
        seen.add(fault.key)
        smaller, fault = plan.shrunk(one, fault)
        yield SearchResult(number, fault, smaller, plan.runs)
    extent.runs = plan.runs
    yield extent


def what_to_write(plan: Plan) -> str:
    """Return the lines to write for bodies that need a context; empty if all of them can run."""
    if not plan.needs_context:
        return ""
    tools = ", ".join(sorted(plan.needs_context))
    module = plan.subject.label.partition(":")[0]
    first = next(iter(plan.needs_context.values()))
    return "\n".join(
        [
            f"the bodies of {tools} need a context ({first or 'they take a ToolContext'}), and none is made for them.",
            f"Write a function in {module}.py that returns a new one, without the outside world in it, for each run:",
            "",
            "    def make_context():",
            f"        return {_context_type(plan)}",
            "",
            "and name it in pyproject.toml:",
            "",
            "    [tool.pytest.ini_options]",
            f'    agentloop_agents = ["{plan.subject.label}"]',
            f'    agentloop_context = "{module}:make_context"',
        ]
    )


def _context_type(plan: Plan) -> str:
    for name in plan.needs_context:
        place = next(one for one in plan.subject.places if one.name == name)
        if (wanted := context_type_of(place.tool)) is not None:
            return f"{wanted}(...)"
    return "..."


__all__ = ["Extent", "SearchResult", "ExploredAgent", "explore", "load", "make_plan", "what_to_write"]
