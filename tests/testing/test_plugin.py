"""The pytest plugin: its fixtures fail what they should and nothing else, and it costs a session next to nothing."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import anyio
import anyio.from_thread
import pytest
from kit.ending import advance_clock

from agentloop import Agent, Capacity, RunConfig, Runner, tool
from agentloop import testing as t
from agentloop.abc import Instrument
from agentloop.testing import ScriptedModel, call, say
from agentloop.testing.fixtures import ScriptedModels, VirtualClock, orphans_watched

HEAD = """
import asyncio
import anyio, pytest
from agentloop import Agent, Runner, tool
from agentloop import testing as t
from agentloop.testing import ScriptedModel, call, say
"""

Inside = Callable[..., pytest.RunResult]


@pytest.fixture
def inside(pytester: pytest.Pytester) -> Inside:
    """`inside(code, *options)` runs tests in a session of their own, with the plugin as an installed package has it."""
    for name in t.__all__:  # modules that such a session is the first to import are forgotten with it, and made twice
        getattr(t, name)

    def run(code: str, *options: str) -> pytest.RunResult:
        pytester.makepyfile(HEAD + code)
        known = any(plugin.__name__ == "agentloop.testing.plugin" for plugin in _registered(pytester))
        given = [] if known else ["-p", "agentloop.testing.plugin"]
        return pytester.runpytest_inprocess("-q", "-p", "no:cacheprovider", *given, *options)

    return run


def _registered(pytester: pytest.Pytester) -> list[Any]:
    import importlib.metadata

    entries = importlib.metadata.entry_points(group="pytest11")
    return [entry.load() for entry in entries if entry.value == "agentloop.testing.plugin"]


# ---------------------------------------------------------------------------------------------- the session


def test_hooks_have_a_form_that_older_pytests_know() -> None:
    """One that pytest can't read would end every session of the environment, in any project."""
    from agentloop.testing import plugin

    options = {name: vars(hook).get("pytest_impl") for name, hook in vars(plugin).items() if name.startswith("pytest_")}
    newer = {name: each for name, each in options.items() if each and each.get("wrapper")}
    assert options["pytest_runtest_makereport"]["hookwrapper"]
    assert newer == {}


@pytest.mark.slow
def test_plugin_imports_nothing_heavy() -> None:
    """Backends, clients and hypothesis come with the fixtures that need them."""
    program = (
        "import sys, json, pytest, asyncio; before = set(sys.modules); import agentloop.testing.plugin; "
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("COVERAGE_", "COV_CORE_"))}
    done = subprocess.run([sys.executable, "-c", program], env=clean, capture_output=True, text=True, check=True)
    added = {name.split(".")[0] for name in json.loads(done.stdout)}
    assert not added & {"trio", "hypothesis", "httpx", "sqlite3", "pydantic", "click", "rich"}
    assert "agentloop.testing.simulation.event_loop" not in json.loads(done.stdout)


def test_installed_package_has_the_plugin_as_entry_point() -> None:
    """The entry point is the one declared in pyproject.toml."""
    import tomllib
    from pathlib import Path

    declared = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert declared["project"]["entry-points"]["pytest11"] == {"agentloop": "agentloop.testing.plugin"}


@pytest.mark.slow
def test_budget_of_searches_is_an_option(inside: Inside) -> None:
    """The option holds where a test doesn't give a budget, for that session alone."""
    code = """
@tool
async def wait(n: int) -> int:
    await anyio.sleep(0)
    await anyio.sleep(0)
    return n

def test_explore():
    script = [[call("wait", {"n": n}) for n in range(4)], say("done")]
    assert t.explore(Agent("a", tools=[wait]), script) == t.Explored(schedules=SCHEDULES, complete=False)
"""
    inside(code.replace("SCHEDULES", "30"), "--agentloop-schedules", "30").assert_outcomes(passed=1)
    from agentloop.testing import _budget

    assert _budget.schedules == 5000
    refused = inside(code, "--agentloop-schedules", "0")
    refused.stderr.fnmatch_lines(["*argument --agentloop-schedules: invalid*"])


@pytest.mark.slow
def test_failing_search_prints_how_to_see_it_again(inside: Inside) -> None:
    """The short summary of a failing test has the command, as the error has it."""
    result = inside(
        """
def test_twice():
    seen = []

    def make():
        paid = []

        @tool
        async def pay():
            if not paid:
                await anyio.sleep(1)
                paid.append(1)
                return "paid"
            return "was paid"

        return Agent("payer", tools=[pay])

    def check(r):
        assert [one.outcome.value for one in r.calls].count("paid") <= 1

    t.explore(make, [[call("pay"), call("pay"), call("pay")], say("done")], check)
"""
    )
    result.assert_outcomes(failed=1)
    shown = [line[1:].strip() for line in result.outlines if line.startswith("E")]
    at = shown.index("script:")
    assert shown[at + 1 : at + 5] == ["[call('pay'), call('pay')]", "say('done')", "tape: []", "timeline:"]
    assert any("call_1 pay starts" in line for line in shown)
    again = "explore(make, [[call('pay'), call('pay')], say('done')], check, tape=[], backends=['asyncio'])"
    assert shown[shown.index("see it again:") + 1] == again


FAILURES = """
from agentloop import ToolContext

@tool
async def count(ctx: ToolContext[dict]) -> None:
    n = ctx.context["n"]
    await anyio.sleep(0.1)
    ctx.context["n"] = n + 1

@tool
async def breaks() -> None:
    raise ValueError("broken")

def counted_all(run):
    assert run.context["n"] == 2, "lost"

def fresh():
    return {"n": 0}

counter = Agent("the counting agent", tools=[count])
SCRIPT = [[call("count"), call("count")], say("ok")]
def test_explore():
    limits = {"max_turns": 5}
    t.explore(counter, SCRIPT, counted_all, context=fresh, options=limits)

def test_kill():
    t.kill_sweep(counter, SCRIPT, counted_all, context=fresh)

def test_crash():
    t.crash_sweep(counter, SCRIPT, counted_all, context=fresh)

def test_without_names():
    t.explore(Agent("x", tools=[count]), SCRIPT, lambda run: counted_all(run), context=lambda: {"n": 0})

def test_script_ran_out():
    Runner.run_sync(Agent("x", model=ScriptedModel([call("count")]), tools=[count]), "go", context=fresh())

@pytest.mark.anyio
async def test_script_ran_out_in_a_loop():
    await Runner.run(Agent("x", model=ScriptedModel([call("count")]), tools=[count]), "go", context=fresh())

def test_script_of_another_kind():
    ScriptedModel(["hello"])

def test_run_that_raises():
    t.explore(counter, [[call("count")]], context=fresh)

def test_tool_that_raises():
    agent = Agent("x", model=ScriptedModel([call("breaks")]), tools=[breaks])
    Runner.run_sync(agent.clone(tools=[tool(breaks.body.fn, failure_error_function=None)]), "go")
"""


@pytest.mark.slow
def test_failures_show_the_test_s_own_code_only(inside: Inside) -> None:
    """No frame of the library is between a test's line and the message; `--full-trace` shows them all."""
    result = inside(FAILURES)
    assert result.parseoutcomes().keys() == {"failed"}
    text = "\n".join(result.outlines)
    assert text.count("agentloop/") == 0, [line for line in result.outlines if "agentloop/" in line]
    for internal in ("<locals>", "simulation", "_findings", "def tell", "function(*args"):
        assert internal not in text
    assert 'raise ValueError("broken")' in text
    result = inside(FAILURES, "--full-trace", "-k", "ran_out")
    assert "agentloop/run/__init__.py" in "\n".join(result.outlines)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("test", "again"),
    [
        ("test_explore", ["explore(counter, ", "counted_all, ", "context=fresh, options=limits"]),
        ("test_kill", ["kill_sweep(counter, ", "counted_all, ", "context=fresh"]),
        ("test_crash", ["crash_sweep(counter, ", "counted_all, ", "context=fresh"]),
        ("test_without_names", ["explore(agent, ", "check, ", "context=context"]),
        ("test_run_that_raises", ["explore(counter, [[call('count')]], tape=[], context=fresh"]),
    ],
)
def test_line_that_repeats_has_the_names_of_the_test(inside: Inside, test: str, again: list[str]) -> None:
    """Its variables and functions; a lambda and an agent made in the call have no name."""
    shown = [line[1:].strip() for line in inside(FAILURES, "-k", f"{test}").outlines if line.startswith("E")]
    line = shown[shown.index("see it again:") + 1]
    for part in again:
        assert part in line


@pytest.mark.slow
def test_sync_race_that_this_python_can_t_see_is_in_the_summary(
    inside: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test is green; the summary says that it proves nothing there. It is no warning: warnings may be errors."""
    from agentloop.testing.simulation import _lines, exploring

    monkeypatch.setattr(_lines, "_TOOL_IDS", ())
    monkeypatch.setattr(exploring, "CAN_MONITOR", False)
    result = inside(
        """
@tool
def count(n: int) -> int:
    return n

def test_green():
    seen = t.explore(Agent("a", tools=[count]), [call("count", {"n": 1}), say("ok")])
    assert "count" in seen.reason and "<locals>" not in seen.reason
""",
        "-W",
        "error",
    )
    result.assert_outcomes(passed=1)
    (line,) = [line for line in result.outlines if "couldn't look" in line]
    assert "test_green: explore couldn't look between the lines of count" in line
    assert "Python 3.12 or later" in line
    assert "<locals>" not in line


# ---------------------------------------------------------------------------------------------- no_orphans


def agent_with(*tools: Any, then: str = "done") -> Agent[Any, Any]:
    """Return an agent whose model calls each of *tools* once, at the same time."""
    calls = [call(one.name, call_id=f"c{index}") for index, one in enumerate(tools)]
    return Agent("tested", model=ScriptedModel([calls, say(then)]), tools=list(tools))


@tool
async def clean() -> str:
    """Leave nothing behind."""
    async with anyio.create_task_group() as group:
        group.start_soon(anyio.lowlevel.checkpoint)
    return "clean"


class Spans(Instrument):
    """Asks for spans."""

    def on_span_start(self, span: Any) -> None:
        pass


async def test_clean_run_is_no_orphan(anyio_backend: Any) -> None:
    """Plain and streamed runs, with spans, side by side, and beside a task of the test's own, leave no orphan."""
    config = RunConfig(instruments=[Spans()])
    with orphans_watched():
        async with anyio.create_task_group() as group:
            over = anyio.Event()
            group.start_soon(over.wait)
            for _ in range(2):
                group.start_soon(Runner.run, agent_with(clean, clean), "go")
            async with Runner.run_streamed(agent_with(clean), "go", run_config=config) as stream:
                group.start_soon(over.wait)
                async for _ in stream:
                    pass
            over.set()


@pytest.mark.backends("asyncio", "asyncio-eager")
async def test_task_that_outlives_its_run_is_named() -> None:
    """The tool begins the task and forgets it."""
    import asyncio

    begun: list[asyncio.Task[None]] = []

    @tool
    async def forgets() -> str:
        begun.append(asyncio.create_task(asyncio.sleep(60), name="the forgotten"))
        return "begun"

    with pytest.raises(AssertionError, match="task the forgotten outlives the run of tested"), orphans_watched():
        await Runner.run(agent_with(forgets), "go")
    begun[0].cancel()


@pytest.mark.backends("trio")
async def test_task_of_a_system_nursery_that_outlives_its_run_is_named() -> None:
    """On trio only a system task outlives its run."""
    import trio

    @tool
    async def forgets() -> str:
        import contextvars

        trio.lowlevel.spawn_system_task(over.wait, name="the forgotten", context=contextvars.copy_context())
        return "begun"

    over = trio.Event()
    with pytest.raises(AssertionError, match="task the forgotten outlives the run of tested"), orphans_watched():
        await Runner.run(agent_with(forgets), "go")
    over.set()
    await trio.testing.wait_all_tasks_blocked()


class Late(Instrument):
    """Waits for an abandoned thread's end."""

    def __init__(self) -> None:
        self.heard = anyio.Event()

    def on_late_result(self, report: Any) -> None:
        self.heard.set()


@pytest.mark.real_clock
async def test_thread_that_outlives_its_run_is_named() -> None:
    """The thread is abandoned and still at work."""
    go_on, late = threading.Event(), Late()

    @tool(abandon_on_cancel=True, timeout=60)
    def hangs() -> str:
        anyio.from_thread.run_sync(advance_clock, 60)
        go_on.wait(10)
        return "late"

    with pytest.raises(AssertionError, match="the thread of hangs outlives the run of tested"), orphans_watched():
        await Runner.run(agent_with(hangs), "go", run_config=RunConfig(instruments=[late]))
    go_on.set()
    await late.heard.wait()


async def test_stream_that_is_never_left_is_named() -> None:
    """The stream was entered by hand and forgotten."""
    stream = Runner.run_streamed(agent_with(clean), "go")
    with (
        pytest.raises(AssertionError, match="stream of the run of tested was entered and never left"),
        orphans_watched(),
    ):
        await stream.__aenter__()
    await stream.__aexit__(None, None, None)


async def test_token_that_is_never_given_back_is_named() -> None:
    """A tool of the run holds the capacity's token."""
    capacity = Capacity(3, "desk")

    @tool(capacity=capacity)
    async def keeps() -> str:
        capacity.take(0.0)
        return "kept"

    message = r"1 tokens of Capacity\(3, name='desk'\) were never given back"
    with pytest.raises(AssertionError, match=message), orphans_watched():
        await Runner.run(agent_with(keeps), "go")


async def test_span_that_never_ends_is_named() -> None:
    """A fold of spans has lost the span's end."""
    from agentloop.tracing import SpanFold

    close = SpanFold._close

    def forgets(self: Any, span: Any, record: Any, error: Any = None, **options: Any) -> None:
        if span is None or span.kind != "tool":
            close(self, span, record, error, **options)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(AssertionError, match="span tool clean outlives"):
        patch.setattr(SpanFold, "_close", forgets)
        with orphans_watched():
            await Runner.run(agent_with(clean), "go", run_config=RunConfig(instruments=[Spans()]))


@pytest.mark.slow
def test_fixture_fails_the_test_that_leaves_something(inside: Inside) -> None:
    """The fixture fails that test alone; warnings are errors there too."""
    result = inside(
        """
@tool
async def leaks() -> str:
    asyncio.create_task(asyncio.sleep(60), name="the forgotten")
    return "begun"

def run(one):
    model = ScriptedModel([call(one.name), say("done")])
    return Runner.run_sync(Agent("a", model=model, tools=[one]), "go")

@tool
async def fine() -> str:
    return "fine"

def test_fine(no_orphans):
    assert run(fine).final_output == "done"

def test_leak(no_orphans):
    assert run(leaks).final_output == "done"

def test_leak_that_nobody_looks_for():
    assert run(leaks).final_output == "done"
""",
        "-W",
        "error",
    )
    result.assert_outcomes(passed=3, errors=1)
    result.stdout.fnmatch_lines(["*AssertionError: task the forgotten outlives the run of a*"])


# ---------------------------------------------------------------------------------------------- the others


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_virtual_clock_runs_hours_in_no_time(virtual_clock: VirtualClock, backend: Any) -> None:
    """The clock jumps over the hours, and a tape orders the tasks that are ready together."""

    async def program(names: str) -> str:
        seen: list[str] = []

        async def one(name: str) -> None:
            await anyio.sleep(3600)
            seen.append(name)

        async with anyio.create_task_group() as group:
            for name in names:
                group.start_soon(one, name)
        return "".join(seen)

    assert virtual_clock.run(program, "ab", backend=backend) == "ab"
    assert virtual_clock.run(program, "ab", backend=backend, tape=[1, 1]) in ("ba", "ab")
    orders = {
        virtual_clock.run(program, "ab", backend=backend, tape=[first, then]) for first in (0, 1) for then in (0, 1)
    }
    assert orders == {"ab", "ba"}


def test_virtual_clock_serves_async_tests(inside: Inside) -> None:
    """The clock may be anyio's backend fixture."""
    result = inside(
        """
@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request, virtual_clock):
    return virtual_clock.backend(request.param)

@pytest.mark.anyio
async def test_hours(anyio_backend):
    began = anyio.current_time()
    await anyio.sleep(7200)
    assert anyio.current_time() - began == 7200
"""
    )
    result.assert_outcomes(passed=2)


@pytest.mark.slow
def test_scripted_models_are_made_and_must_be_played_to_the_end(inside: Inside) -> None:
    """A test that fails anyway is not failed twice."""
    result = inside(
        """
def test_played(scripted_model):
    agent = Agent("a", model=scripted_model(say("hi")))
    assert Runner.run_sync(agent, "go").final_output == "hi"

def test_unplayed(scripted_model):
    Runner.run_sync(Agent("a", model=scripted_model(say("hi"), say("never"))), "go")

def test_broken(scripted_model):
    scripted_model(say("never"))
    assert False
"""
    )
    result.assert_outcomes(passed=2, failed=1, errors=1)
    result.stdout.fnmatch_lines(["*scripts that were not played to their end: <ScriptedModel 1 of 2 steps taken>*"])


def test_scripted_models_chunk_as_told() -> None:
    """Options are those of the model."""
    models = ScriptedModels()
    assert isinstance(models(say("hi"), chunk=1), ScriptedModel)
    with pytest.raises(AssertionError, match="0 of 1 steps"):
        models.check_played()
