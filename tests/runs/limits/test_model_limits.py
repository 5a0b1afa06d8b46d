"""Limits of model requests: admitted in the one order of the loop's calls, slowed by what servers say, in the log."""

import random
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from typing import Any

import anyio
import attrs
import pytest
from kit.agents import Run, look, script_agent
from kit.results import find_records
from kit.watching import Watch

from agentloop import (
    Agent,
    Capacity,
    GuardrailFunctionOutput,
    InputGuardrailTripwireTriggered,
    Rate,
    RequestUsage,
    RunConfig,
    Runner,
    RunTimeoutError,
    TokenRate,
    UserError,
    input_guardrail,
    tool,
)
from agentloop import records as r
from agentloop import testing as t
from agentloop.abc import Model
from agentloop.exceptions import ModelTransportError, UserTypeError
from agentloop.items import AssistantMessage
from agentloop.journal import MemoryJournal
from agentloop.model_events import ModelRequest, RateState, ResponseDone
from agentloop.models import FallbackModel, WrapperModel
from agentloop.settings import ModelRetrySettings, ModelSettings
from agentloop.testing import ScriptedModel, call, fail, say
from agentloop.testing.replaying import replay
from agentloop.tracing import read_timeline

ONLY_VIRTUAL = pytest.mark.backends("trio-virtual", "asyncio-virtual")


class Server(Model):
    """A server with its own limits: 429 with Retry-After beyond them, an answer after some seconds within them."""

    def __init__(self, requests: int = 10**9, tokens: int = 10**9, per: float = 60.0, seed: int = 7) -> None:
        self.requests, self.tokens, self.per = requests, tokens, per
        self.chance = random.Random(seed)
        self.came: deque[tuple[float, int]] = deque()
        self.answered = self.refused = self.busy = self.most = 0
        self.taken = 0
        self.states: list[RateState] = []
        self.asked: list[float] = []
        self.quiet_until: list[tuple[float, float]] = []
        self.taken_at: list[tuple[float, int]] = []

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[Any]:
        """Answer one request."""
        now, size = anyio.current_time(), self.chance.randint(300, 3000)
        self.asked.append(now)
        while self.came and self.came[0][0] + self.per <= now:
            self.came.popleft()
        if len(self.came) >= self.requests or sum(size for _, size in self.came) + size > self.tokens:
            self.refused += 1
            self.quiet_until.append((now, self.came[0][0] + self.per))
            raise ModelTransportError("busy", status=429, retry_after=self.came[0][0] + self.per - now)
        self.came.append((now, size))
        self.taken_at.append((now, size))
        self.taken += size
        if self.states and request.note_rates is not None:
            request.note_rates(self.states.pop(0))
        self.busy += 1
        self.most = max(self.most, self.busy)
        try:
            await anyio.sleep(self.chance.uniform(1, 8))
        finally:
            self.busy -= 1
        self.answered += 1
        usage = RequestUsage(input_tokens=size - 100, output_tokens=100, total_tokens=size)

        async def events() -> AsyncIterator[Any]:
            yield ResponseDone(items=(AssistantMessage("done"),), usage=usage)

        yield events()


async def run_all(agent: Agent[Any, Any], count: int, config: RunConfig) -> list[Any]:
    """Run *agent* *count* times at once; return the results."""
    return [run.result for run in await Runner.run_many(agent, ["go"] * count, run_config=config)]


# -- the quota of a provider


@pytest.mark.slow
@ONLY_VIRTUAL
@pytest.mark.scenario("LM-03")
async def test_two_thousand_runs_use_the_quota_and_no_more() -> None:
    """At most 1 % of the requests is answered 429, and at least 95 % of what the server allows is used."""
    server = Server(60, 100_000)
    config = RunConfig(model_limits=[Rate(60, per=60), TokenRate(100_000, per=60)])
    began = anyio.current_time()
    results = await run_all(Agent("a", model=server), 2_000, config)
    assert [one.final_output for one in results] == ["done"] * 2_000
    assert server.refused <= 0.01 * (server.answered + server.refused)
    minutes: dict[int, list[int]] = {}
    for at, size in server.taken_at:
        minutes.setdefault(int((at - began) // 60), []).append(size)
    used = [max(len(sizes) / 60, sum(sizes) / 100_000) for sizes in minutes.values()][:-1]  # the last isn't over
    assert len(used) >= 33
    assert sum(used) / len(used) >= 0.95


@ONLY_VIRTUAL
@pytest.mark.scenario("LM-03")
async def test_without_limits_the_same_runs_are_refused_all_the_time() -> None:
    """So the test above would fail without them."""
    server = Server(60, 100_000)
    settings = ModelSettings(retry=ModelRetrySettings(max_retries=1))
    await Runner.run_many(Agent("a", model=server, model_settings=settings), ["go"] * 300)
    assert server.refused > 100


@ONLY_VIRTUAL
@pytest.mark.scenario("LM-03")
async def test_a_capacity_bounds_the_requests_in_flight() -> None:
    """Of a model, of its provider and of the configuration: all hold, and an object counts once."""
    server, both = Server(), Capacity(3, "both")
    server.limits = [Capacity(5), both]  # type: ignore[attr-defined]
    await run_all(Agent("a", model=server), 20, RunConfig(model_limits=both))
    assert (server.most, both.statistics().tokens_in_use, both.statistics().peak) == (3, 0, 3)

    class Provider:
        """Has one model."""

        limits = (Capacity(2),)

        def get_model(self, name: str) -> Model:
            """Return it."""
            return server

        async def __aenter__(self) -> Any:
            return self

        async def __aexit__(self, *_: object) -> None:
            """Do nothing."""

    server.most = 0
    await run_all(Agent("a", model="x"), 20, RunConfig(model_provider=Provider()))  # type: ignore[arg-type]
    assert server.most == 2


@ONLY_VIRTUAL
@pytest.mark.scenario("LM-03")
async def test_retry_after_slows_every_run_that_shares_the_limit() -> None:
    """After one refusal no request is sent before the server's time."""
    server = Server(1, per=50.0)
    settings = ModelSettings(retry=ModelRetrySettings(max_retries=20))
    await run_all(Agent("a", model=server, model_settings=settings), 5, RunConfig(model_limits=Capacity(1)))
    assert server.answered == 5
    assert server.quiet_until
    assert not [at for at in server.asked for refused, until in server.quiet_until if refused < at < until]


@ONLY_VIRTUAL
@pytest.mark.scenario("LM-03")
@pytest.mark.parametrize(
    ("limit", "state", "second_at"),
    [
        (partial(Rate, 10, per=60), RateState(requests=0, requests_reset=20.0), 20.0),
        (partial(Capacity, 10), RateState(requests=0, requests_reset=20.0), 20.0),
        (partial(TokenRate, 100_000, per=60), RateState(tokens=0, tokens_reset=30.0), 30.0),
        (partial(Rate, 10, per=60), RateState(requests=5, requests_reset=20.0), 0.0),
        (partial(Capacity, 10), RateState(tokens=0, tokens_reset=20.0), 0.0),
        (partial(Rate, 10, per=60), RateState(requests=0), 0.0),
    ],
    ids=["rate", "capacity", "tokens", "left", "other", "no time"],
)
async def test_what_a_server_has_left_slows_the_runs(limit: Any, state: RateState, second_at: float) -> None:
    """The head of an answer says so; others than these runs may use the account."""
    server, came = Server(), list[float]()
    server.states = [state]
    agent = Agent("a", model=server)
    config = RunConfig(model_limits=limit())
    began = anyio.current_time()
    async with anyio.create_task_group() as group:
        group.start_soon(run_all, agent, 1, config)
        await anyio.sleep(0.5)
        group.start_soon(run_all, agent, 1, config)
    came = [at - began for at, _ in server.came]
    assert came == pytest.approx([0.0, max(second_at, 0.5)], abs=0.01)


@ONLY_VIRTUAL
@pytest.mark.scenario("LM-03")
async def test_tools_and_models_stand_in_one_order() -> None:
    """A capacity that both have is given in the order of arrival, and a request holds nothing while it waits."""
    shared, ended = Capacity(1), list[str]()

    @tool(capacity=shared)
    async def work() -> str:
        """Work."""
        await anyio.sleep(10)
        ended.append("tool")
        return "ok"

    class Noting(ScriptedModel):
        @asynccontextmanager
        async def stream(self, request: Any) -> AsyncIterator[Any]:
            async with super().stream(request) as events:
                await anyio.sleep(1)
                ended.append("model")
                yield events

    a = Agent("a", model=Noting([call("work"), say("done")]), tools=[work])
    config = RunConfig(model_limits=shared)
    async with anyio.create_task_group() as group:
        group.start_soon(run_all, a, 1, config)
        await anyio.sleep(2)
        group.start_soon(run_all, Agent("b", model=Noting([say("done")])), 1, config)
    assert ended == ["model", "tool", "model", "model"]


# -- the wait


@ONLY_VIRTUAL
@pytest.mark.scenario("LM-03")
async def test_the_wait_stands_in_the_record_and_in_the_timeline() -> None:
    """Since when a request waited, and for what; of one that didn't, the same moment and nothing."""
    agent, config = Agent("a", model=Server()), RunConfig(model_limits=[Rate(1, per=30, name="account")])
    first, second = await run_all(agent, 2, config)
    [free], [waited] = find_records(first, r.ModelRequested), find_records(second, r.ModelRequested)
    assert free.waited_for == ()
    assert free.queued_at is not None
    assert free.queued_at <= free.at
    assert waited.waited_for == ("account",)
    assert waited.queued_at is not None
    assert waited.queued_at < waited.at
    [row] = [row for row in read_timeline(second.records).rows if row.kind == "model"]
    assert (row.phases[0].kind, row.phases[0].note) == ("queue", "waited for account")


@ONLY_VIRTUAL
@pytest.mark.scenario("LM-03")
@pytest.mark.parametrize("how", ["cancel", "deadline"])
async def test_a_wait_is_cancelled_at_once(how: str) -> None:
    """The request leaves the queue, and what it would have got goes to the next one."""
    rate = Rate(1, per=1000)
    config = RunConfig(model_limits=[rate, Capacity(1)], timeout=50 if how == "deadline" else None)
    agent = Agent("a", model=Server())
    await run_all(agent, 1, config)
    began = anyio.current_time()
    if how == "cancel":
        with anyio.move_on_after(10):
            await Runner.run(agent, "go", run_config=config)
        assert anyio.current_time() - began == pytest.approx(10, abs=0.01)
    else:
        with pytest.raises(RunTimeoutError):
            await Runner.run(agent, "go", run_config=config)
        assert anyio.current_time() - began == pytest.approx(50, abs=0.01)
    assert rate.statistics().started_in_window == 1
    await run_all(agent, 1, RunConfig(model_limits=config.model_limits))
    assert anyio.current_time() - began == pytest.approx(1000, abs=15)


@ONLY_VIRTUAL
@pytest.mark.scenario("LM-03")
async def test_each_attempt_passes_the_door() -> None:
    """A retry waits for its place like any other request."""
    asked: list[float] = []

    class Busy(ScriptedModel):
        @asynccontextmanager
        async def stream(self, request: Any) -> AsyncIterator[Any]:
            asked.append(anyio.current_time())
            async with super().stream(request) as events:
                yield events

    busy = fail(ModelTransportError("busy", status=500))
    settings = ModelSettings(retry=ModelRetrySettings(max_retries=2, initial_delay=0.01))
    agent = Agent("a", model=Busy([busy, busy, say("done")]), model_settings=settings)
    result = await Runner.run(agent, "go", run_config=RunConfig(model_limits=Rate(1, per=30)))
    assert [at - asked[0] for at in asked] == pytest.approx([0, 30, 60], abs=0.01)
    assert [one.waited_for for one in find_records(result, r.ModelRequested)] == [(), ("Rate",), ("Rate",)]


async def test_a_nested_run_passes_the_same_door(run_mode: Run) -> None:
    """It holds a place for the time of its own request only, so one place is enough."""
    one = Capacity(1)
    inner = script_agent("inner", say("inside"))
    outer = script_agent("outer", call("inner", {"input": "x"}), say("done"), tools=[inner.as_tool()])
    result = await run_mode(outer, "go", run_config=RunConfig(model_limits=one))
    assert result.final_output == "done"
    assert (one.statistics().peak, one.statistics().tokens_in_use) == (1, 0)


async def test_a_request_larger_than_the_limit_waits_for_an_empty_window(run_mode: Run) -> None:
    """It isn't refused for ever."""
    rate = TokenRate(10, per=0.01)
    agent = script_agent("a", call("look"), say("done", RequestUsage(total_tokens=500)), tools=[look])
    result = await run_mode(agent, "go " * 100, run_config=RunConfig(model_limits=rate))
    assert result.final_output == "done"


# -- the models


@pytest.mark.backends("asyncio", "trio")
@pytest.mark.scenario("LM-03")
async def test_a_second_loop_leaves_the_time_of_the_first() -> None:
    """It is refused, since the first loop is alive: and no request of the first begins before the server's time."""
    account = Capacity(5)
    busy = fail(ModelTransportError("busy", status=429, retry_after=1000.0))
    settings = ModelSettings(retry=ModelRetrySettings(max_retries=0))
    first = script_agent("a", busy, say("too early"), model_settings=settings)
    config = RunConfig(model_limits=[account])
    with pytest.raises(ModelTransportError):
        await Runner.run(first, "go", run_config=config)
    held = account.hold
    assert held is not None
    until = held.until
    with pytest.raises(UserError, match="belongs to another event loop"):
        await anyio.to_thread.run_sync(lambda: Runner.run_sync(script_agent("b", say("b")), "go", run_config=config))
    assert account.hold is held
    assert held.until == until
    with anyio.move_on_after(0) as scope:
        await Runner.run(first, "go", run_config=config)
    assert scope.cancelled_caught


@pytest.mark.scenario("LM-03")
def test_the_next_loop_knows_no_time_of_the_one_that_has_ended() -> None:
    """Its clock was another."""
    account = Capacity(5)
    busy = fail(ModelTransportError("busy", status=429, retry_after=1000.0))
    agent = script_agent("a", busy, model_settings=ModelSettings(retry=ModelRetrySettings(max_retries=0)))
    config = RunConfig(model_limits=[account])
    with pytest.raises(ModelTransportError):
        Runner.run_sync(agent, "go", run_config=config)
    result = Runner.run_sync(
        script_agent("b", say("b")), "go", run_config=RunConfig(model_limits=[account], timeout=60)
    )
    assert result.final_output == "b"


def test_a_wrapped_model_has_the_limits_of_the_one_within() -> None:
    """Of several models, a request holds a place of each that it may ask."""
    first, second = ScriptedModel([]), ScriptedModel([])
    first.limits, second.limits = [Capacity(1)], [Capacity(2)]  # type: ignore[attr-defined]

    class Wrapped(WrapperModel):
        """Changes nothing."""

    assert list(Wrapped(first).limits) == first.limits  # type: ignore[attr-defined]
    assert list(FallbackModel([first, second]).limits) == [*first.limits, *second.limits]  # type: ignore[attr-defined]
    assert list(Wrapped(ScriptedModel([])).limits) == []


@pytest.mark.parametrize("trips", [False, True])
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_held_text_and_a_guardrail_with_the_same_limit_do_not_wait_for_each_other(
    backend: Any, streamed: bool, trips: bool
) -> None:
    """The guardrail asks a model for the only place: the request whose text is held queues behind it."""
    watch, place = Watch(), Capacity(1)
    config = RunConfig(model_limits=[place], hold_text_until_guarded=True, instruments=[watch])
    inner = RunConfig(model_limits=[place])

    @input_guardrail
    async def judge(ctx: Any, agent: Any, given: Any) -> GuardrailFunctionOutput:
        await Runner.run(script_agent("judge", say("fine")), "?", run_config=inner)
        return GuardrailFunctionOutput(tripwire_triggered=trips)

    agent = script_agent("a", say("hello"), input_guardrails=[judge])

    async def run() -> None:
        if streamed:
            async with Runner.run_streamed(agent, "go", run_config=config) as stream:
                _ = [event async for event in stream]
        else:
            await Runner.run(agent, "go", run_config=config)

    with pytest.raises(InputGuardrailTripwireTriggered) if trips else nullcontext():
        anyio.run(run, backend=backend)
    assert len(watch.of(r.ModelRequested)) == (not trips)
    again = replay(watch.records, agent, backend=backend, run_config=attrs.evolve(config, instruments=()))
    assert (again.result is None) == trips


async def test_wrong_limits_are_named() -> None:
    """A rate of tokens is none of a tool's."""
    with pytest.raises(UserTypeError, match=r"RunConfig\.model_limits\[0\]: expected a Capacity, Rate or TokenRate"):
        RunConfig(model_limits=[3])  # type: ignore[list-item]
    with pytest.raises(UserTypeError, match="capacity"):
        tool(name="f", capacity=TokenRate(5))(lambda: "x")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="tokens"):
        TokenRate(0)
    with pytest.raises(UserTypeError, match="needs both"):
        TokenRate(None)  # type: ignore[arg-type]
    assert repr(TokenRate(5, name="mine")) == "TokenRate(5, 60, name='mine')"
    assert RunConfig(model_limits=Capacity(3)).model_limits[0].name_shown == "Capacity"


# -- the log


CONFIG = attrs.evolve(RunConfig(), model_limits=[Capacity(1), Rate(100, per=1.0), TokenRate(10**9)])


def build() -> Agent[Any, Any]:
    """Return an agent with a tool and a nested agent."""
    return Agent("a", tools=[look, Agent("inner").as_tool()])


STEPS = [[call("look", call_id="c1"), call("inner", {"input": "x"}, call_id="c2")], say("done")]
NESTED = {"c2": [say("inside")]}


def make_config() -> RunConfig:
    """Return a configuration with limits of its own: one of another loop may not be used."""
    return RunConfig(model_limits=[Capacity(1), Rate(100, per=1.0), TokenRate(10**9)])


@pytest.mark.scenario("LM-03")
@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
def test_a_run_can_be_cancelled_at_every_step(streamed: bool) -> None:
    """No place is left held."""
    config = make_config()
    t.kill_sweep(build, STEPS, nested=NESTED, streamed=streamed, options={"run_config": config})
    assert config.model_limits[0].statistics().tokens_in_use == 0  # type: ignore[union-attr]


@pytest.mark.scenario("LM-03")
@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
def test_a_crash_at_any_write_changes_nothing(streamed: bool) -> None:
    """A resumed run waits for its place anew."""
    pairs: Any = [("asyncio", "trio")]
    t.crash_sweep(build, STEPS, nested=NESTED, streamed=streamed, pairs=pairs, options={"run_config": make_config()})


@pytest.mark.scenario("LM-03")
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_replay_waits_for_no_place(backend: Any) -> None:
    """The log has the waits; also that of a run which was cancelled in one."""
    agent, config = script_agent("a", call("look"), say("done"), tools=[look]), make_config()
    watch, journal = Watch(), MemoryJournal()
    Runner.run_sync(agent, "go", run_config=attrs.evolve(config, instruments=(watch,)), journal=journal)
    for source in (watch.records, journal):
        assert replay(source, agent, backend=backend, run_config=config).result is not None

    full = RunConfig(model_limits=Rate(1, per=1000), timeout=0.05)
    agent, journal = script_agent("a", call("look"), tools=[look]), MemoryJournal()
    with pytest.raises(RunTimeoutError):
        Runner.run_sync(agent, "go", run_config=full, journal=journal)
    assert isinstance(replay(journal, agent, backend=backend, run_config=full).error, RunTimeoutError)
