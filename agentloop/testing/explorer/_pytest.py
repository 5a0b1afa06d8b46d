"""The items of `pytest --agentloop-explore`. The plugin imports and registers this module where the option was given.

An item for each agent, and with xdist for each agent and process, explores it. A fault becomes its own item by a
report with its own name, because it isn't known when items are collected. Faults that were kept are collected before.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentloop.exceptions import AgentLoopError
from agentloop.testing.explorer._faults_of_runs import AgentFault
from agentloop.testing.explorer._found import KeptFault, forget, keep, read_all, read_seed, seed_of
from agentloop.testing.explorer._report import format_fault, summary
from agentloop.testing.explorer._rounds import Plan
from agentloop.testing.explorer._runs import own_temporary_folder
from agentloop.testing.explorer._search import ExploredAgent, Extent, SearchResult, explore, make_plan
from agentloop.testing.simulation._lines import monitor_lines
from agentloop.testing.simulation.event_loop import BACKENDS, Backend

ROOT = "agentloop"
WHAT_TO_WRITE = """\
name the agents to explore in pyproject.toml, each as module:agent, and a function that makes their context anew:

    [tool.pytest.ini_options]
    agentloop_agents = ["shop:agent"]
    agentloop_context = "shop:make_order"
"""


def targets_of(config: pytest.Config) -> list[ExploredAgent]:
    """Return the agents of the configuration, each with the function that makes its context.

    Raises:
        pytest.UsageError: if there are several contexts, and not one for each agent.
    """
    agents, contexts = config.getini("agentloop_agents"), config.getini("agentloop_context")
    if len(contexts) == 1:
        contexts = contexts * len(agents)
    if contexts and len(contexts) != len(agents):
        raise pytest.UsageError(
            f"agentloop_context: expected one function, or one for each of {len(agents)} agents, got {len(contexts)}"
        )
    pairs = zip(agents, contexts or [None] * len(agents), strict=True)
    return [ExploredAgent(agent, None if context in (None, "", "-") else context) for agent, context in pairs]


class Exploration:
    """The plugin of one session: the items it collects, and the plans that they share."""

    def __init__(self, config: pytest.Config, seconds: float | None, seeds: list[str]) -> None:
        self.config = config
        self.seconds = seconds
        self.seeds = seeds
        self.targets = targets_of(config)
        if not self.targets:
            raise pytest.UsageError(f"--agentloop-explore: no agent is configured; {WHAT_TO_WRITE}")
        self._plans: dict[str, Plan] = {}
        self._until: float | None = None
        self._to_come = len(self.targets)

    @property
    def folder(self) -> Path:
        """The folder of the project."""
        return self.config.rootpath

    def plan(self, target: ExploredAgent) -> Plan:
        """Return the plan of *target*, made at its first use."""
        if target.agent not in self._plans:
            self._plans[target.agent] = make_plan(target, self.folder)
        return self._plans[target.agent]

    def next_deadline(self) -> float:
        """Return the time at which the next exploration ends: all that are to come have equal shares of what is left.

        With xdist each process runs about as many of them as there are agents.
        """
        now = time.monotonic()
        if self._until is None:
            self._until = now + (self.seconds or 0.0)
        share = max(self._until - now, 0.0) / max(self._to_come, 1)
        self._to_come -= 1
        return now + share

    def target(self, agent: str) -> ExploredAgent | None:
        """Return the configured target of that name."""
        return next((one for one in self.targets if one.agent == agent), None)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, session: pytest.Session, items: list[pytest.Item]) -> None:
        """Put the kept faults first, and the explorations last."""
        root = _Root.from_parent(session, name=ROOT, nodeid=ROOT)
        first: list[pytest.Item] = []
        for seed in self.seeds:
            kept = read_seed(seed, self.folder)
            target = self.target(kept.agent) if kept is not None else None
            if kept is None or target is None:
                known = ", ".join(one.agent for one in self.targets)
                raise pytest.UsageError(f"agentloop::{seed}: expected a seed as AGENT-NUMBER, of one of {known}")
            for backend in BACKENDS:
                name = f"{seed}[{backend}]"
                first.append(
                    RepeatedItem.from_parent(root, name=name, own=self, target=target, kept=kept, backends=[backend])
                )
        if self.seconds is not None:
            all_kept = list(read_all(self.folder))
            for kept in all_kept:
                if (target := self.target(kept.agent)) is not None:
                    first.append(
                        RepeatedItem.from_parent(
                            root, name=kept.seed, own=self, target=target, kept=kept, backends=list(BACKENDS)
                        )
                    )
            parts = getattr(self.config, "workerinput", {}).get("workercount", 1)
            for part in range(parts):
                for target in self.targets:
                    name = target.agent if parts == 1 else f"{target.agent} (part {part + 1} of {parts})"
                    keys = {kept.key for kept in all_kept if kept.agent == target.agent}
                    items.append(
                        ExploredItem.from_parent(
                            root, name=name, own=self, target=target, part=(part, parts), known=keys
                        )
                    )
        items[:0] = first

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Report each fault that an exploration has found as its own item."""
        yield
        if isinstance(item, ExploredItem):
            for found, text in item.found:
                _report_item(item, f"{ROOT}::{seed_of(item.target.agent, found.number)}", found.fault, text)


def _report_item(item: pytest.Item, nodeid: str, fault: AgentFault, text: str) -> None:
    location = (item.location[0], None, nodeid)
    report = pytest.TestReport(
        nodeid=nodeid,
        location=location,
        keywords={},
        outcome="failed",
        longrepr=_FailureText(text, summary(fault)),  # type: ignore[arg-type]
        when="call",
        duration=0.0,
    )
    items = item.session.items
    place = items.index(item)
    # A worker of xdist refuses a report on another item than the one it runs.
    items[place] = SimpleNamespace(nodeid=nodeid)  # type: ignore[call-overload]
    try:
        item.ihook.pytest_runtest_logstart(nodeid=nodeid, location=location)
        item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=nodeid, location=location)
    finally:
        items[place] = item


class _FailureText:
    """The text of a failure, as pytest shows it: whole, and as one line in the summary."""

    def __init__(self, text: str, line: str) -> None:
        self.text = text
        self.reprcrash = SimpleNamespace(message=line, path="", lineno=0)

    def toterminal(self, tw: Any) -> None:
        """Write the text."""
        for line in self.text.splitlines():
            tw.line(line)

    def __str__(self) -> str:
        return self.text


class FaultFoundError(AssertionError):
    """Raised in an item that repeats a fault; its text is the report."""


class NotExploredError(AssertionError):
    """Raised in an item whose agent can't be explored; its text says what to write."""


class _Root(pytest.Collector):
    """The parent of the items."""

    def collect(self) -> Iterator[Any]:
        """Nothing: the plugin adds the items itself."""
        return iter(())


class _RoundItem(pytest.Item):
    """An item of an exploration."""

    own: Exploration
    target: ExploredAgent

    def reportinfo(self) -> Any:
        """Return the place that pytest shows."""
        return self.config.rootpath / ROOT, None, self.nodeid

    def repr_failure(self, excinfo: Any, style: Any = None) -> Any:
        """Return only the report: the frames say nothing about the application."""
        if isinstance(excinfo.value, FaultFoundError | NotExploredError | AgentLoopError):
            return _FailureText(str(excinfo.value), str(excinfo.value).partition("\n")[0])
        return super().repr_failure(excinfo, style)


class RepeatedItem(_RoundItem):
    """A kept fault, or the round of a seed, once more on some backends."""

    def __init__(
        self, *, own: Exploration, target: ExploredAgent, kept: KeptFault, backends: list[Backend], **more: Any
    ) -> None:
        super().__init__(**more)
        self.own, self.target, self.kept, self.backends = own, target, kept, backends

    def runtest(self) -> None:
        """Repeat the round.

        Raises:
            FaultFoundError: if the fault is there still.
        """
        with monitor_lines(), own_temporary_folder():
            plan = self.own.plan(self.target)
            wanted: list[Backend] = [backend for backend in self.backends if backend in plan.backends]
            if not wanted:
                pytest.skip(f"the tools of {self.target.agent} don't run on {', '.join(self.backends)}")
            fault = plan.find_again(self.kept.round(plan), self.kept.key, wanted)
        if fault is not None:
            raise FaultFoundError(format_fault(self.target.agent, fault, self.kept.seed, 0))
        if len(self.backends) > 1:
            forget(self.kept)


class ExploredItem(_RoundItem):
    """The exploration of an agent; passes also if it finds something, because that is reported by its own items."""

    def __init__(
        self, *, own: Exploration, target: ExploredAgent, part: tuple[int, int], known: set[str], **more: Any
    ) -> None:
        super().__init__(**more)
        self.own, self.target, self.part, self.known = own, target, part, known
        self.found: list[tuple[SearchResult, str]] = []

    def runtest(self) -> None:
        """Explore.

        Raises:
            NotExploredError: if bodies need a context that nothing makes.
        """
        until = self.own.next_deadline()
        with monitor_lines(), own_temporary_folder():
            plan = self.own.plan(self.target)
            extent = Extent()
            for one in explore(plan, until, *self.part, known=self.known):
                if isinstance(one, Extent):
                    extent = one
                elif keep(self.own.folder, self.target.agent, one.number, one.fault.key, one.round):
                    seed = seed_of(self.target.agent, one.number)
                    self.found.append((one, format_fault(self.target.agent, one.fault, seed, one.runs)))
        backends = " and ".join(extent.backends)
        self.add_report_section("call", "agentloop", f"{extent.runs} runs in {extent.rounds} rounds, on {backends}")
        self.user_properties.append(("agentloop_explored", f"{extent.runs} runs in {extent.rounds} rounds"))
        if extent.missing:
            raise NotExploredError(f"{self.target.agent}: {extent.missing}")
