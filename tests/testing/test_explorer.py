"""`pytest --agentloop-explore`: it finds faults of agents without a test, and repeats them from their lines."""

import functools
import gc
import importlib.util
import json
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from agentloop import Agent, tool
from agentloop.testing import invariant
from agentloop.testing.explorer import _own, _runs, _search, _state
from agentloop.testing.explorer._rounds import Plan
from agentloop.testing.simulation._lines import CAN_MONITOR, monitor_lines

ZOO = Path(__file__).parent / "zoo"
ANIMALS = sorted(path.stem for path in ZOO.glob("*.py"))
NEEDS_LINES = {"counted_in_threads"}
FOUND_SOON = {
    "charges": "twice",
    "default_basket": "shared",
    "counted_in_threads": "race",
    "counted_visits": "race",
    "current_user": "race",
    "deaf": "swallowed",
    "first_come": "order",
    "given_twice": "unreturned",
    "kept_lock": "unreturned",
    "notes": "shared",
    "one_client": "race",
    "pool": "unreturned",
    "retries": "endless",
    "seats": "race",
    "slots": "fails",
    "slow_goodbye": "cleanup",
    "told_token": "secret",
    "watcher": "thread",
}
"""The animals whose faults show within a dozen rounds, and the kinds of these faults."""
SAMPLE = [name if n < 2 else pytest.param(name, marks=pytest.mark.slow) for n, name in enumerate(FOUND_SOON)]

SHOP = """
import anyio
import attrs
from agentloop import Agent, ToolContext, tool

@attrs.define
class Order:
    given_back: int = 0

@tool
async def refund(ctx: ToolContext[Order], amount: int) -> str:
    "Pay money back."
    if ctx.context.given_back + amount > 100:
        return "Too much."
    await anyio.sleep(0.01)
    ctx.context.given_back += amount
    return f"Refunded {amount}."

agent = Agent("service", tools=[refund])
def make_order(): return Order()
"""
INI = """
[tool.pytest.ini_options]
agentloop_agents = ["shop:agent"]
agentloop_context = "shop:make_order"
"""


def _project(folder: Path, code: str = SHOP, ini: str = INI) -> None:
    (folder / "shop.py").write_text(code)
    (folder / "pyproject.toml").write_text(ini)


def _pytest(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    program = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options]
    return subprocess.run(program, cwd=folder, env=clean, capture_output=True, text=True, check=False)


# ---------------------------------------------------------------------------------------------- the zoo


def _plan(animal: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> Plan:
    monkeypatch.syspath_prepend(str(ZOO))
    # Busy machines are slow, but what is done doesn't depend on that: the time of the process itself is measured.
    monkeypatch.setattr(_search, "time", SimpleNamespace(monotonic=time.process_time))
    module = __import__(animal)
    context = f"{animal}:make_context" if module.make_context is not None else None
    return _search.make_plan(_search.ExploredAgent(f"{animal}:{kind}", context), ZOO)


def _found(plan: Plan, rounds: int) -> list[_search.SearchResult]:
    """Return what the first *rounds* rounds find, up to the first fault."""
    for number, one in zip(range(rounds), (one for _, one in plan.rounds()), strict=False):
        if (fault := plan.find(one)) is not None:
            return [_search.SearchResult(number, fault, one)]
    return []


@pytest.mark.slow
@pytest.mark.scenario("LB-11")
@pytest.mark.parametrize("animal", SAMPLE)
def test_fault_of_the_zoo_is_found_and_repeated_on_both_backends(animal: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round finds the planted fault, and the same round finds it again on each backend."""
    if animal in NEEDS_LINES and not CAN_MONITOR:
        pytest.skip("lines can be monitored from Python 3.12 on")
    with monitor_lines(), _runs.own_temporary_folder():
        plan = _plan(animal, "faulty", monkeypatch)
        (found,) = _found(plan, 12)
        assert found.fault.kind == FOUND_SOON[animal]
        assert plan.backends == ("asyncio", "trio")
        for backend in plan.backends:
            again = plan.find_again(plan.round(found.number), found.fault.key, [backend])
            assert again is not None
            assert again.seen.run.backend == backend


@pytest.mark.slow
@pytest.mark.scenario("LB-11")
@pytest.mark.parametrize("animal", SAMPLE)
def test_sound_agent_that_comes_near_is_left_alone(animal: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same rounds say nothing about the agent without the fault."""
    with monitor_lines(), _runs.own_temporary_folder():
        assert _found(_plan(animal, "sound", monkeypatch), 7) == []


@pytest.mark.slow
@pytest.mark.scenario("LB-11")
def test_body_of_one_backend_is_tried_on_the_other_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coroutine that it made there, and that nothing awaits, isn't told of: pytest would fail the item for it."""
    with monitor_lines(), _runs.own_temporary_folder():
        plan = _plan("background", "faulty", monkeypatch)
        assert plan.backends == ("asyncio",)
        assert plan.find(plan.round(0)) is not None
    gc.collect()


@pytest.mark.slow
@pytest.mark.skipif(os.environ.get("AGENTLOOP_SWEEP") != "whole", reason="minutes: `nox -s long -- zoo`")
@pytest.mark.scenario("LB-11")
@pytest.mark.timeout(1200)
def test_most_of_the_zoo_is_found_in_two_minutes_and_no_sound_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    """At least 18 of 20 faults in 240 seconds of two cores, 0 of 20 sound agents, each fault again on its backends."""
    missed, wrong = [], []
    seconds = 240 / len(ANIMALS)
    for animal in ANIMALS:
        for kind in ("faulty", "sound"):
            if kind == "faulty" and animal in NEEDS_LINES and not CAN_MONITOR:
                continue
            until = time.process_time() + (seconds if kind == "faulty" else seconds / 3)
            with monitor_lines(), _runs.own_temporary_folder():
                plan = _plan(animal, kind, monkeypatch)
                found = next(
                    (one for one in _search.explore(plan, until) if isinstance(one, _search.SearchResult)), None
                )
                if kind == "sound" and found is not None:
                    wrong.append((animal, found.fault.key, found.fault.lines))
                if kind == "faulty":
                    again = found is not None and all(
                        plan.find_again(plan.round(found.number), found.fault.key, [backend])
                        for backend in plan.backends
                    )
                    missed += [] if again else [(animal, found and found.fault.key)]
    assert wrong == []
    assert len(missed) <= 2, missed
    assert len(ANIMALS) >= 20


# ---------------------------------------------------------------------------------------------- as a user sees it


@pytest.mark.slow
@pytest.mark.scenario("LB-11")
def test_fault_is_an_item_and_its_line_repeats_it(tmp_path: Path) -> None:
    """The failing item has the calls, the timeline and the line; the line fails on both backends, until it's mended."""
    _project(tmp_path)
    done = _pytest(tmp_path, "--agentloop-explore=3s")
    assert done.returncode == 1, done.stdout
    for text in (
        "refund and refund, called in one turn, interfere with each other",
        "called one after another it is",
        "c1 refund starts",
        "see it again:",
        "pytest 'agentloop::shop:agent-1'",
        "FAILED agentloop::shop:agent-1 - refund and refund",
    ):
        assert text in done.stdout
    kept = tmp_path / ".agentloop" / "found" / "shop.agent-1.json"
    assert json.loads(kept.read_text())["seed"] == "shop:agent-1"

    again = _pytest(tmp_path, "agentloop::shop:agent-1")
    assert "agentloop::shop:agent-1[asyncio]" in again.stdout
    assert "agentloop::shop:agent-1[trio]" in again.stdout
    assert "2 failed" in again.stdout

    shutil.rmtree(tmp_path / ".agentloop")  # another machine has the line only
    assert "2 failed" in _pytest(tmp_path, "agentloop::shop:agent-1").stdout

    _pytest(tmp_path, "--agentloop-explore=1s")
    mended = SHOP.replace("@tool\n", '@tool(serial="money")\n')
    _project(tmp_path, mended)
    assert kept.exists()
    after = _pytest(tmp_path, "--agentloop-explore=1s")
    assert after.returncode == 0, after.stdout
    assert "2 passed" in after.stdout
    assert not kept.exists()


@pytest.mark.slow
@pytest.mark.scenario("LB-11")
def test_processes_of_xdist_take_parts_of_the_rounds(tmp_path: Path) -> None:
    """Each process explores its part, and a fault is reported by one of them as an item of its own."""
    pytest.importorskip("xdist")
    _project(tmp_path)
    done = _pytest(tmp_path, "-n", "2", "--agentloop-explore=3s", "-v")
    assert "agentloop::shop:agent (part 1 of 2)" in done.stdout
    assert "(part 2 of 2)" in done.stdout
    assert "FAILED agentloop::shop:agent-1" in done.stdout
    assert done.stdout.count("see it again:") == 1
    assert "1 failed, 2 passed" in done.stdout


@pytest.mark.slow
@pytest.mark.scenario("LB-12")
def test_item_says_what_to_write_where_bodies_need_a_context(tmp_path: Path) -> None:
    """Without a function that makes the context, the item names the tools, the type, and the lines to write."""
    _project(tmp_path, ini=INI.replace('agentloop_context = "shop:make_order"\n', ""))
    done = _pytest(tmp_path, "--agentloop-explore=1s")
    assert done.returncode == 1
    for text in (
        "the bodies of refund need a context",
        "def make_context():",
        "return Order(...)",
        'agentloop_context = "shop:make_context"',
    ):
        assert text in done.stdout


@pytest.mark.slow
def test_invariant_of_the_application_is_held_against_every_run(tmp_path: Path) -> None:
    """A run that breaks it is a fault that quotes its words."""
    code = SHOP.replace("@tool\n", '@tool(serial="money")\n') + (
        "\nfrom agentloop.testing import invariant\n\n"
        "@invariant\ndef never_all(run):\n    assert run.context.given_back < 100, 'all is given back'\n"
    )
    _project(tmp_path, code)
    done = _pytest(tmp_path, "--agentloop-explore=2s")
    assert "never_all doesn't hold: all is given back" in done.stdout


HELD = "from agentloop.testing import invariant\n@invariant\ndef holds(run): {body}\n"


def _imported(name: str, file: Path, code: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import *file* with *code* in it as *name*, as pytest does for each `conftest.py`."""
    file.parent.mkdir(exist_ok=True)
    file.write_text(code)
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


def test_invariants_are_those_of_the_agents_module_and_of_modules_without_agents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two files of one name are two modules, one that is imported again is one, and executed code is none."""
    monkeypatch.setattr(_own, "OWN", [])
    agents = "from agentloop import Agent\nagent = Agent('one')\n"
    shop = _imported("shop", tmp_path / "shop.py", agents + HELD.format(body="return 'shop'"), monkeypatch)
    _imported("bank", tmp_path / "bank.py", agents + HELD.format(body="return 'bank'"), monkeypatch)
    for folder in ("here", "there", "here"):
        _imported("conftest", tmp_path / folder / "conftest.py", HELD.format(body=f"return {folder!r}"), monkeypatch)
    exec(HELD.format(body="return 'a page'"), {"__name__": "conftest"})
    exec(agents + HELD.format(body="return 'a page with an agent'"), {"__name__": "page"})
    assert [one.check(None) for one in _search._own_of(shop)] == ["shop", "there", "here"]


def test_object_is_an_invariant_of_its_class_s_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no names of its own, so it is for the agents of the module that its class stands in."""
    monkeypatch.setattr(_own, "OWN", [])
    check = functools.partial(print)
    assert invariant(check) is check
    assert [one.module for one in _own.OWN] == [vars(functools)]


def test_run_that_begins_later_takes_its_handoffs_in_their_order() -> None:
    """A run is compared with one that begins later: calls behind two handoffs succeed in both."""

    @tool
    def pay() -> str:
        """Pay."""
        return "paid"

    last = Agent("last", tools=[pay])
    first = Agent("first", handoffs=[Agent("middle", handoffs=[last])])
    subject = _runs.Subject("shop:first", first, None, _state.Program([], []))
    (place,) = _runs.places_of(first, subject.words, random.Random(0))
    for delay in (0.0, 1.5):
        seen = subject.run(subject.world(((_runs.Call(place, "{}"),),), delay=delay))
        assert seen.statuses == {"c1": "succeeded"}


def test_installed_package_counts_as_the_application_s_once_an_agent_comes_from_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The exploration of an agent that only used it may have come before."""
    monkeypatch.setattr(_state, "own_packages", set())
    assert not _state.is_of_the_program(pytest.Item)
    _state.own_packages.add("_pytest")
    assert _state.is_of_the_program(pytest.Item)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "ini", "words"),
    [
        (["--agentloop-explore"], "[tool.pytest.ini_options]\n", "agentloop_agents = ["),
        (["--agentloop-explore=soon"], INI, "expected a time like 2m or 90s"),
        (["agentloop::shop:other-1"], INI, "of one of shop:agent"),
        (["--agentloop-explore=1s"], INI.replace('"shop:make_order"', '["shop:a", "shop:b"]'), "one for each of 1"),
        (["--agentloop-explore=1s"], INI.replace("shop:agent", "shop:agnt"), "has no attribute 'agnt'"),
    ],
)
def test_wrong_configuration_is_refused_in_words(tmp_path: Path, options: list[str], ini: str, words: str) -> None:
    """The message says what to write instead."""
    _project(tmp_path, ini=ini)
    done = _pytest(tmp_path, *options)
    assert done.returncode != 0
    assert words in done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.scenario("LB-13")
def test_plugin_imports_no_more_without_the_option(tmp_path: Path) -> None:
    """A session without the option imports no module of the exploration, nor any that the plugin doesn't need."""
    (tmp_path / "test_it.py").write_text(
        "import sys\n\ndef test_it():\n    names = [name for name in sys.modules if name.startswith('agentloop')]\n"
        "    open('names.txt', 'w').write(' '.join(names))\n"
    )
    assert _pytest(tmp_path, "test_it.py").returncode == 0
    names = set((tmp_path / "names.txt").read_text().split())
    program = "import sys, agentloop.testing.plugin, agentloop.testing._frames; print(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    alone = {name for name in done.stdout.split() if name.startswith("agentloop")}
    assert names <= alone
    assert not {name for name in alone if "explorer" in name}
