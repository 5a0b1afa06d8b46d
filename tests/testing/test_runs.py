"""Worlds: one tape is one log, to the byte; behaviours, verdicts and cancellations come where they should."""

import hashlib
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import attrs
import pytest

from agentloop import (
    Agent,
    GuardrailFunctionOutput,
    ModelRetrySettings,
    ModelSettings,
    RunConfig,
    RunHooks,
    ToolContext,
    UserError,
    input_guardrail,
    tool,
)
from agentloop import records as r
from agentloop import testing as t
from agentloop._storage.record_codec import encode, record_to_json
from agentloop.exceptions import ModelTransportError, UserTypeError, UserValueError
from agentloop.sessions import MemorySession
from agentloop.testing import call, fail, say
from agentloop.testing.simulation.gate import TIME
from agentloop.testing.simulation.runs import EPOCH, BodyRun

DONE = say("done")
SEEDS = 8


def in_bytes(run: t.WorldRun) -> bytes:
    """Return the run's log as a journal would hold it."""
    return b"\n".join(encode(record_to_json(record)) for record in run.records)


@tool
async def work(n: int) -> str:
    """Take some time."""
    await anyio.sleep(0.1 * n)
    await anyio.lowlevel.checkpoint()
    return f"worked {n}"


@tool(timeout=0.15)
async def hurried(n: int) -> str:
    """Take some time, which may be too long."""
    await anyio.sleep(0.1 * n)
    return f"hurried {n}"


@tool
def blocking(n: int) -> str:
    """Do it in a thread, where there are threads."""
    return f"blocked {n}"


inner: Agent[Any, Any] = Agent("inner", tools=[work, blocking])
everything: Agent[Any, Any] = Agent("outer", tools=[work, hurried, blocking, inner.as_tool()])
SCRIPT = [
    [
        call("work", {"n": 1}),
        call("hurried", {"n": 2}),
        call("inner", {"input": "x"}, call_id="a"),
        call("blocking", {"n": 1}),
    ],
    fail(ModelTransportError("gone", status=503)),
    [call("inner", {"input": "y"}, call_id="b"), call("work", {"n": 0})],
    DONE,
]
NESTED = {
    "a": [[call("work", {"n": 3}), call("blocking", {"n": 2})], say("A")],
    "b": [call("work", {"n": 1}), say("B")],
}


def world_of(seed: int, **changes: Any) -> t.World:
    """Return a world with nested runs, a retry, a timeout, threads; its tape and cancellation depend on *seed*."""
    chance = random.Random(seed)
    settings = ModelSettings(retry=ModelRetrySettings(2))
    world = t.World(
        agent=everything,
        script=SCRIPT,
        nested=NESTED,
        options={"run_config": RunConfig(model_settings=settings)},
        tape=[chance.randrange(6) for _ in range(40)],
    )
    return attrs.evolve(world, **changes)


def digests(order: Any, seeds: Sequence[int]) -> list[str]:
    """Return a digest of the logs of each seed's world on both backends, plain and streamed."""
    logs = [b"\n\n".join(in_bytes(run) for run in t.run(world_of(seed, order=order)).runs) for seed in seeds]
    return [hashlib.sha256(log).hexdigest()[:16] for log in logs]


# ---------------------------------------------------------------------------------------------- the same again


@pytest.mark.slow
@pytest.mark.parametrize("order", ["gate", "passes", "steps"])
def test_one_tape_is_one_log_to_the_byte_also_in_a_fresh_process(order: Any) -> None:
    """Each seed is played twice here, and once in a process with other hashes."""
    seeds = range(SEEDS)
    here = digests(order, seeds)
    assert digests(order, seeds) == here
    assert len(set(here)) > SEEDS // 2
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); from testing.test_runs import digests; "
        f"print(digests({order!r}, range({SEEDS})))"
    )
    tests = str(Path(__file__).parents[1])
    done = subprocess.run([sys.executable, "-c", program, tests], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(here)


@pytest.mark.slow
def test_log_of_a_gated_world_is_the_same_on_both_backends_streamed_and_plain() -> None:
    """The logs are equal to the byte: the gate alone decides, and all else is the same on every backend."""
    for seed in range(SEEDS):
        first, *others = [in_bytes(run) for run in t.run(world_of(seed)).runs]
        assert all(other == first for other in others), f"seed {seed}"


@pytest.mark.parametrize("order", ["passes", "steps"])
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_run_s_own_tape_repeats_it(order: Any, backend: Any) -> None:
    """The tape of a scheduler's choices gives the same log as the scheduler."""
    world = world_of(3, order=order, tape=())
    seen = t.run_one(world, backend=backend, scheduler=t.Tape(seed=8))
    again = t.run_one(attrs.evolve(world, tape=seen.tape), backend=backend)
    assert in_bytes(again) == in_bytes(seen)
    assert again.choices == seen.choices


def test_times_and_ids_are_counted() -> None:
    """Times are counted from the epoch on, and ids from one."""
    run = t.run_one(t.World(agent=everything, script=[call("work", {"n": 2}), DONE]))
    [started] = [record for record in run.records if isinstance(record, r.RunStarted)]
    assert (started.at, started.run_id) == (EPOCH, "id1")
    assert run.records[-1].at == EPOCH + 0.2
    assert run.seconds == run.ended_at == 0.2


# ------------------------------------------------------------------------------------------ what is reported


def test_what_a_world_s_run_tells() -> None:
    """The run has result, calls, requests, bodies, events and spans, of the first run or of each."""
    runs = t.run(t.World(agent=everything, script=[[call("work", {"n": 0}), call("work", {"n": 0})], DONE]))
    assert [(one.backend, one.streamed) for one in runs.runs] == [
        ("asyncio", False),
        ("trio", False),
        ("asyncio", True),
        ("trio", True),
    ]
    assert runs.of("trio", streamed=True) == (runs.runs[3],)
    assert runs.result is not None
    assert runs.result.final_output == "done"
    assert [one.outcome.value for one in runs.calls] == ["worked 0", "worked 0"]
    assert runs.records == runs.runs[0].records
    assert (runs.error, runs.cancelled, runs.context) == (None, False, None)
    assert runs.executions("work") == 2
    for one in runs.runs:
        assert len(one.requests) == 2
        assert [body.ending for body in one.bodies] == ["value", "value"]
        assert bool(one.events) == one.streamed
        assert {what for what, _ in one.spans} == {"start", "end"}
        assert (one.left, one.open_responses, one.entries) == ((), 0, 1)


def test_error_of_a_run_is_told_with_what_it_had_achieved() -> None:
    """The error is kept beside the records, and isn't raised."""

    @tool(failure_error_function=None)
    async def breaks() -> str:
        raise ValueError("broken")

    for run in t.run(t.World(agent=Agent("breaker", tools=[breaks]), script=[call("breaks"), DONE])).runs:
        assert run.result is None
        assert str(run.error) == "Error running tool breaks: ValueError: broken"
        assert [one.outcome.status for one in run.calls] == ["failed"]
        assert [body.ending for body in run.bodies] == ["error"]


@pytest.mark.parametrize("kind", ["scope", "native"])
def test_cancelled_run_tells_when_it_was_cancelled(kind: Any) -> None:
    """The run has the step, the number of records and the time; its cancelled bodies say so."""
    world = t.World(agent=everything, script=[call("work", {"n": 5}), DONE], cancel=t.CancelAt(10, kind))
    run = t.run_one(world)
    assert run.cancelled
    assert (run.result, run.error) == (None, None)
    assert run.cancelled_at == 10
    assert 0 < run.mark <= len(run.records)
    assert run.cancelled_at_time is not None
    assert isinstance(run.records[-1], r.RunEnded)


@pytest.mark.parametrize("moment", range(6))
@pytest.mark.parametrize("streamed", [False, True])
def test_cancellations_given_while_everything_waits_are_one(moment: int, streamed: bool) -> None:
    """A scope's cancellation on either backend and a native one give the same records, and nothing else."""
    world = t.World(agent=everything, script=[[call("work", {"n": 5}), call("work", {"n": 6})], call("work"), DONE])
    ways: Any = [("scope", "asyncio"), ("native", "asyncio"), ("scope", "trio")]
    worlds = [attrs.evolve(world, cancel=t.CancelAt(moment, kind, waiting=True)) for kind, _ in ways]
    runs = [t.run_one(one, backend=ways[n][1], streamed=streamed) for n, one in enumerate(worlds)]
    first, *others = runs
    assert first.cancelled == (first.cancelled_at is not None)
    assert [other.records for other in others] == [first.records] * 2
    assert [other.mark for other in others] == [first.mark] * 2
    assert [run.cancelling for run in runs] == [0, int(first.cancelled), 0]


def test_moments_at_which_everything_waits_are_the_gate_s() -> None:
    """In the other orders no task waits at a gate, so such a moment is refused."""
    with pytest.raises(UserValueError, match=r"World.cancel: in the order 'steps' nothing waits at a gate"):
        t.World(agent=everything, cancel=t.CancelAt(1, waiting=True), order="steps")


def test_deadlock_of_a_run_is_its_error() -> None:
    """The run keeps the deadlock as its error, with the records until then."""

    @tool
    async def waits() -> str:
        await anyio.Event().wait()
        return "never"

    for run in t.run(t.World(agent=Agent("stuck", tools=[waits]), script=[call("waits"), DONE])).runs:
        assert isinstance(run.error, t.Deadlock)
        assert [body.call_id for body in run.bodies] == ["call_1"]


# ---------------------------------------------------------------------------------------------- behaviours


@attrs.frozen
class Acts:
    """A body that waits at the gate, sleeps, and then ends as *ending* says."""

    points: int = 0
    seconds: float = 0.0
    ending: str = "real"

    async def __call__(self, body: t.Body) -> Any:
        for point in range(self.points):
            await body.point(f"point {point}")
        await body.sleep(self.seconds)
        return (
            await body.real() if self.ending == "real" else f"{self.ending} {body.tool} {body.call_id} {body.arguments}"
        )


def test_behaviours_stand_in_for_bodies_by_call_and_by_tool() -> None:
    """The nearest name wins; one may run the tool's own body."""
    world = t.World(
        agent=everything,
        script=[[call("work", {"n": 0}), call("work", {"n": 0}), call("inner", {"input": ""}, call_id="a")], DONE],
        nested={"a": [call("work", {"n": 0}, call_id="d"), say("A")]},
        behaviors={"work": Acts(ending="any"), "call_2": Acts(), "a/d": Acts(ending="deep")},
    )
    for run in t.run(world).runs:
        assert [one.outcome.value for one in run.calls] == ['any work call_1 {"n": 0}', "worked 0", "A"]
        deep = [one.outcome.value for one in run.records if isinstance(one, r.CallSettled) and one.path == ("a",)]
        assert deep == ['deep work d {"n": 0}']


def test_tape_chooses_who_goes_on_at_the_gate_and_whether_time_passes_first() -> None:
    """A timeout can come before a body is let through, or after."""

    @tool(timeout=1.0)
    async def limited() -> str:
        return "in time"

    world = t.World(agent=Agent("hurry", tools=[limited]), script=[call("limited"), DONE])
    in_time = t.run_one(world)
    assert in_time.choices == ((2, 0),)
    too_late = t.run_one(attrs.evolve(world, tape=[1]))
    assert too_late.trace == (TIME,)
    assert [one.outcome.status for one in (*in_time.calls, *too_late.calls)] == ["succeeded", "timed_out"]


@attrs.frozen
class Goes:
    """A body that waits at the gate (None) and sleeps (seconds), one after the other."""

    steps: tuple[float | None, ...]

    async def __call__(self, body: t.Body) -> str:
        for place, seconds in enumerate(self.steps):
            if seconds is None:
                await body.point(str(place))
            else:
                await body.sleep(seconds)
        return "gone"


@pytest.mark.parametrize(
    ("tools", "steps", "tape"),
    [
        ("work work", [(0.75,), (0.75,)], []),
        ("limited work", [(0.1, 0.1, 0.6), (None, 0.1, 0.05)], [3, 2, 1]),
        ("limited limited limited", [(0.8,), (None,), (0.6,)], [1, 3, 2]),
        ("work limited", [(0.25, 0.2), (0.8,)], []),
        ("work limited", [(0.2, None, 0.4), (0.8,)], [0]),
        ("work work work", [(0.1, None), (None, 0.8, 0.5), (None, 0.1, None)], [2, 1, 1, 1, 2, 3, 3, 1]),
    ],
)
def test_what_is_due_at_one_moment_gives_one_log_on_both_backends(
    tools: str, steps: list[tuple[float | None, ...]], tape: list[int]
) -> None:
    """The cases are bodies that wake together, timeouts beside them, and sums of delays that nearly meet."""

    @tool(timeout=0.8)
    async def limited(n: int) -> str:
        return "in time"

    world = t.World(
        agent=Agent("busy", tools=[work, limited]),
        script=[[call(name, {"n": 1}) for name in tools.split()], DONE],
        behaviors={f"call_{number}": Goes(each) for number, each in enumerate(steps, 1)},
        tape=tape,
    )
    first, *others = t.run(world).runs
    assert first.error is None
    for run in others:
        assert run.choices == first.choices
        assert in_bytes(run) == in_bytes(first)


def test_bodies_that_wake_together_are_settled_one_by_one() -> None:
    """The second resumes when the first has been settled, and nothing else can run any more."""
    script = [[call("work", {"n": 1}), call("work", {"n": 1})], DONE]
    behaviors = {"call_1": Goes((0.5, 0.25)), "call_2": Goes((0.75,))}
    for run in t.run(t.World(agent=Agent("busy", tools=[work]), script=script, behaviors=behaviors)).runs:
        told = [one for one in run.records if isinstance(one, r.BodyEnded | r.CallSettled)]
        assert [(type(one), one.call_id) for one in told] == [(r.CallSettled, "call_2"), (r.CallSettled, "call_1")]


def test_guardrails_and_sessions_wait_at_the_gate() -> None:
    """The schedule decides at each of their calls."""
    labels: list[str] = []

    def last(ready: Sequence[str]) -> int:
        labels.extend(ready)
        return len(ready) - 1

    @input_guardrail
    async def one(ctx: Any, agent: Any, items: Any) -> Any:
        return GuardrailFunctionOutput(None, False)

    watched: Agent[Any, Any] = Agent("guarded", tools=[work], input_guardrails=[one])
    world = t.World(agent=watched, script=[DONE], options={"session": MemorySession})
    run = t.run_one(world, scheduler=last)
    assert run.error is None
    assert any("guard input one" in label for label in labels)
    assert run.session is not None


# ---------------------------------------------------------------------------------------------- per run


def test_what_is_made_per_run_is_made_per_run() -> None:
    """Each run has its own context, hooks, session, configuration and agent."""
    made: list[str] = []

    class Hooks(RunHooks):
        def __init__(self) -> None:
            made.append("hooks")

    def session() -> MemorySession:
        made.append("session")
        return MemorySession()

    def config() -> RunConfig:
        made.append("config")
        return RunConfig()

    def context() -> list[str]:
        made.append("context")
        return []

    def agent() -> Agent[Any, Any]:
        made.append("agent")
        return everything

    options = {"hooks": Hooks, "session": session, "run_config": config}
    runs = t.run(t.World(agent=agent, script=[DONE], context=context, options=options))
    assert sorted(made) == sorted(["agent", "config", "context", "hooks", "session"] * 4)
    assert len({id(run.context) for run in runs.runs}) == len({id(run.session) for run in runs.runs}) == 4
    assert all(isinstance(run.hooks, Hooks) for run in runs.runs)


def test_models_of_the_agents_are_asked_where_there_is_no_script() -> None:
    """The agent's own model answers a world without a script, or one nested run."""
    asks = t.FunctionModel(lambda request: "own")
    child: Agent[Any, Any] = Agent("child", model=asks)
    parent: Agent[Any, Any] = Agent("parent", model=asks, tools=[child.as_tool()])
    assert t.run(t.World(agent=parent)).result.final_output == "own"  # type: ignore[union-attr]
    run = t.run(t.World(agent=parent, script=[call("child", {"input": "x"}), DONE]))
    assert [one.outcome.value for one in run.calls] == ["own"]


def test_nested_run_without_script_and_model_says_what_to_do() -> None:
    """The error names the run and the agent."""
    child: Agent[Any, Any] = Agent("child")
    parent: Agent[Any, Any] = Agent("parent", tools=[attrs.evolve(child.as_tool(), failure_error_function=None)])
    run = t.run_one(t.World(agent=parent, script=[call("child", {"input": "x"}, call_id="c7"), DONE]))
    told = str(run.error)
    assert "no script for the nested run 'c7' (agent 'child'): give it in `nested`" in told


def test_verdicts_are_given_and_the_run_goes_on() -> None:
    """Verdicts are given until none fits, through the state's text form or without it."""

    @tool(needs_approval=True)
    async def pay(ctx: ToolContext[list[int]], amount: int) -> str:
        ctx.context.append(amount)
        return f"paid {amount}"

    payer: Agent[Any, Any] = Agent("payer", tools=[pay])
    script = [[call("pay", {"amount": 1}, call_id="a"), call("pay", {"amount": 2}, call_id="b")], DONE]
    verdicts = (t.Verdict(call_id="a"), t.Verdict(call_id="b", approved=False, message="too much"))
    for serialize in (True, False):
        world = t.World(agent=payer, script=script, context=list, verdicts=verdicts, serialize=serialize)
        first, *others = t.run(world).runs
        for run in (first, *others):
            assert run.entries == 2
            assert run.context == [1]
            assert [one.outcome.status for one in run.calls] == ["succeeded", "rejected"]
            assert in_bytes(run) == in_bytes(first)
    waiting = t.run_one(t.World(agent=payer, script=script, context=list))
    assert waiting.result is not None
    assert waiting.result.status == "interrupted"


# ---------------------------------------------------------------------------------------------- misuse


def test_world_that_makes_no_sense_is_refused() -> None:
    """The world is refused where it is made, with what is wrong."""
    with pytest.raises(UserTypeError, match=r"World.agent: expected an Agent, or a function"):
        t.World(agent="agent")  # type: ignore[arg-type]
    with pytest.raises(UserTypeError, match=r"World.context: expected a function that makes it"):
        t.World(agent=everything, context=object())  # type: ignore[arg-type]
    with pytest.raises(UserValueError, match=r"given by World.context"):
        t.World(agent=everything, options={"context": 1})
    with pytest.raises(UserTypeError, match="gave 5, not an Agent"):
        t.run(t.World(agent=lambda: 5))  # type: ignore[arg-type, return-value]
    with pytest.raises(UserValueError, match="at least one backend and one mode"):
        t.run(t.World(agent=everything), modes=())


async def test_world_inside_a_running_loop_is_refused() -> None:
    """An async test is already on a loop."""
    with pytest.raises(UserError, match="begin it from sync code"):
        t.run(t.World(agent=everything, script=[DONE]))


def test_body_run_that_never_ended_says_so() -> None:
    """The values of a body's run are plain."""
    assert BodyRun(path=(), call_id="a", tool="b").ending is None
