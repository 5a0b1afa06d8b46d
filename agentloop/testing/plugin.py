"""The pytest plugin: fixtures for runs of agents, and the budget of searches. Loaded by entry point.

Every test session of an environment that has agentloop loads it, with any pytest. So a fixture imports its modules when
it is used, and nothing here is newer than pytest 7.0.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import pytest

from agentloop.testing import _budget

if TYPE_CHECKING:
    from agentloop.testing.fixtures import ScriptedModels, VirtualClock

OPTION = "--agentloop-schedules"
EXPLORE = "--agentloop-explore"
SEED = "agentloop::"
UNSEEN = "agentloop_not_explored"
"""The property of a test's report that says what its searches couldn't see; reports of other processes have it too."""


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(f"expected at least 1, got {number}")
    return number


def _seconds(text: str) -> float:
    number, unit = (text[:-1], text[-1]) if text[-1:] in _UNITS else (text, "s")
    try:
        seconds = float(number) * _UNITS[unit]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"expected a time like 2m or 90s, after an equals sign, got {text!r}"
        ) from None
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a time above 0, got {text!r}")
    return seconds


_UNITS = {"s": 1, "m": 60, "h": 3600}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option for the budget of searches."""
    group = parser.getgroup("agentloop")
    group.addoption(
        OPTION,
        type=_count,
        default=None,
        metavar="N",
        help="how many schedules agentloop.testing.explore runs where a test doesn't say (5000)",
    )
    group.addoption(
        EXPLORE,
        type=_seconds,
        nargs="?",
        const=60.0,
        default=None,
        metavar="TIME",
        help="explore the agents of agentloop_agents for that time (2m, 90s; 1m if it isn't said), without a test",
    )
    parser.addini("agentloop_agents", "agents to explore, each as module:agent", type="linelist", default=[])
    parser.addini(
        "agentloop_context",
        "the function that makes the context of a run, as module:function; or one for each agent, - for none",
        type="linelist",
        default=[],
    )


def pytest_configure(config: pytest.Config) -> None:
    """Set the budget, if it was given."""
    schedules = config.getoption(OPTION)
    if schedules is not None:
        _set(config, "schedules", schedules)
    _set(config, "unseen", [])
    seeds = [one.removeprefix(SEED) for one in config.args if one.startswith(SEED)]
    seconds = config.getoption(EXPLORE)
    if seeds or seconds is not None:
        from agentloop.testing.explorer._pytest import Exploration

        config.args[:] = [one for one in config.args if not one.startswith(SEED)]
        config.pluginmanager.register(Exploration(config, seconds, seeds), "agentloop-explore")


def _set(config: pytest.Config, name: str, value: Any) -> None:
    """Set a variable of `_budget` for this session: a session within a test has its own."""
    before = getattr(_budget, name)
    setattr(_budget, name, value)
    config.add_cleanup(lambda: setattr(_budget, name, before))


@pytest.fixture
def no_orphans() -> Iterator[None]:
    """Fail a test in which something outlives a run: a task, a thread, a stream, a token of a capacity, a span.

    Tasks, threads and spans are searched for when a run is left; streams that were not left and tokens that were not
    given back, at the end of the test.
    """
    from agentloop.testing.fixtures import orphans_watched

    with orphans_watched():
        yield


@pytest.fixture
def virtual_clock() -> VirtualClock:
    """Run async code in virtual time: `virtual_clock.run(fn)` in a sync test; for async tests `virtual_clock.backend`.

    See `agentloop.testing.fixtures.VirtualClock`.
    """
    from agentloop.testing.fixtures import VirtualClock

    return VirtualClock()


@pytest.fixture
def scripted_model(request: pytest.FixtureRequest) -> Iterator[ScriptedModels]:
    """Make models that follow a script: `scripted_model(say("hi"))`.

    A test that passes otherwise fails if a script was not played to its end.
    """
    from agentloop.testing.fixtures import ScriptedModels

    models = ScriptedModels()
    yield models
    if request.node not in _failed:
        models.check_played()


_failed: WeakSet[pytest.Item] = WeakSet()
"""The tests that have failed themselves, in their own call."""


@pytest.hookimpl(hookwrapper=True)  # the newer form would end every session under a pytest before 7.4
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """Hide the library's frames from a failure, and note what happened.

    If the test itself failed, a fixture adds no second failure. What its searches couldn't see goes into the summary.
    """
    if call.excinfo is not None and not item.config.getoption("fulltrace", False):
        from agentloop.testing._frames import hide_library

        error = call.excinfo.value
        if hide_library(error) and error.__traceback__ is not None:
            call.excinfo = pytest.ExceptionInfo.from_exc_info((type(error), error, error.__traceback__))
    if _budget.unseen:
        item.user_properties.extend((UNSEEN, sentence) for sentence in _budget.unseen)
        _budget.unseen.clear()
    outcome = yield
    report = outcome.get_result()
    if report.when == "call" and report.failed:
        _failed.add(item)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say once for each test what its searches couldn't see: it may be green for that reason only."""
    lines = {
        f"{report.nodeid}: {sentence}": None
        for reports in terminalreporter.stats.values()
        for report in reports
        for name, sentence in getattr(report, "user_properties", ())
        if name == UNSEEN
    }
    if lines:
        terminalreporter.section("agentloop: not explored")
        for line in lines:
            terminalreporter.line(line)
