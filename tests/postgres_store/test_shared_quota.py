"""Shared limits without a database: the rule by itself, and many workers in virtual time, whole runs of the engine."""

import bisect
import math
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import anyio
import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentloop import Agent, Capacity, Rate, RequestUsage, RunConfig, Runner, lab, tool
from agentloop.abc import ModelProvider
from agentloop.exceptions import JournalError, UserError
from agentloop.guardrails import Allow, RejectContent, tool_input_guardrail
from agentloop.postgres import SharedCapacity, SharedRate, SharedTokenRate
from agentloop.postgres._limits import sharing
from agentloop.postgres._quota import PATIENCE, SLICES, LimitReport, Quota, Share, Size, settle
from agentloop.testing import FunctionModel, call, replay, say

VIRTUAL = pytest.mark.backends("trio-virtual", "asyncio-virtual")


# ---------------------------------------------------------------------------------------------- the rule

STARTS = Size("SharedRate", 10, 64.0)
PLACES = Size("SharedCapacity", 2)
SLICE = 64.0 / SLICES


class Books:
    """Quotas, and workers that report to them."""

    def __init__(self, **sizes: Size) -> None:
        self.sizes = sizes
        self.quotas = {name: Quota(size) for name, size in sizes.items()}

    def ask(
        self,
        worker: str,
        now: float,
        *wishes: dict[str, int],
        held: int = 0,
        spent: Sequence[tuple[float, int]] = (),
        seconds: float = 30.0,
        told: tuple[int, float] | None = None,
    ) -> dict[str, Share]:
        """LimitReport the same of each limit, and ask for *wishes*."""
        reports = {name: LimitReport(size, held, list(spent), told) for name, size in self.sizes.items()}
        return settle(self.quotas, worker, now, seconds, reports, wishes)


def test_what_is_granted_is_held_until_it_is_reported() -> None:
    """What a worker hasn't used is free again by its next report; what it has counts for a window, and a slice more."""
    books = Books(rate=STARTS)
    assert books.ask("a", 0.0, *[{"rate": 1}] * 10)["rate"].granted == 10
    assert books.ask("b", 1.0, {"rate": 1})["rate"] == Share(waits=True, used=10)
    share = books.ask("a", 2.0, spent=[(0.5, 4)])["rate"]
    assert (share.used, share.contested) == (4, True)
    assert books.ask("b", 2.0, *[{"rate": 1}] * 7)["rate"] == Share(6, waits=True, used=10, room_in=62.5)
    for now, left in [(3.0, 61.5), (30.0, 34.5), (59.0, 5.5), (64.4, 0.1)]:
        assert books.ask("b", now, {"rate": 1}, held=6)["rate"].room_in == pytest.approx(left)
    assert books.ask("b", 64.5, {"rate": 1}, held=6)["rate"].granted == 1


def test_a_worker_that_died_has_used_what_it_held() -> None:
    """Its starts count from the end of its lease, and its places are free then."""
    books = Books(rate=STARTS, places=PLACES)
    books.ask("a", 0.0, {"rate": 1, "places": 1}, {"rate": 1, "places": 1}, seconds=10.0)
    assert books.ask("b", 9.9, {"places": 1})["places"].waits
    shares = books.ask("b", 10.0, {"places": 1})
    assert shares["places"].granted == 1
    assert shares["rate"].used == 2
    late = books.ask("a", 11.0, spent=[(9.0, 2)])
    assert late["rate"].used == 2  # not counted a second time
    assert books.ask("b", 10.0 + 64.0)["rate"].used == 0


def test_a_wish_is_granted_as_a_whole() -> None:
    """Nothing is held of one limit while another one is waited for; who doesn't need it passes."""
    books = Books(rate=STARTS, places=PLACES)
    books.ask("a", 0.0, {"places": 2})
    share = books.ask("b", 1.0, {"rate": 1, "places": 1}, {"rate": 1})
    assert (share["rate"].granted, share["rate"].waits) == (0, True)  # what it waits for is one wish at a time
    assert books.ask("c", 1.0, *[{"rate": 1}] * 10)["rate"].granted == 9  # one is kept


def test_a_large_wish_is_not_starved() -> None:
    """What it needs is kept from workers that came later, as long as it asks."""
    books = Books(rate=STARTS)
    books.ask("a", 0.0, *[{"rate": 1}] * 5)
    books.ask("b", 1.0, {"rate": 8})
    assert books.ask("c", 2.0, {"rate": 1})["rate"].waits
    assert books.ask("a", 3.0, {"rate": 1}, held=0)["rate"].granted == 1  # 10 are free: 8 for b, 1 for c, 1 for it
    assert books.ask("b", 4.0, {"rate": 8})["rate"].granted == 8
    books.ask("d", 5.0, {"rate": 9})
    books.ask("b", 5.0)  # what d needs is free but for what a and c have, and d doesn't come
    assert books.ask("a", 5.0 + PATIENCE - 0.1, {"rate": 1}, {"rate": 1})["rate"].waits
    assert books.ask("a", 5.0 + PATIENCE, {"rate": 1}, {"rate": 1})["rate"].granted == 2


def test_workers_take_turns() -> None:
    """A second wish gets only what no other worker waits for, and comes behind those that wait then."""
    books = Books(places=PLACES)
    assert books.ask("a", 0.0, {"places": 1}, {"places": 1}, {"places": 1})["places"].granted == 2
    assert books.ask("b", 1.0, {"places": 1})["places"].waits
    assert books.ask("a", 2.0, {"places": 1}, held=1)["places"] == Share(granted=1, contested=True, used=2)
    assert books.ask("a", 3.0, {"places": 1}, held=1)["places"].waits  # it is behind b now
    assert books.ask("b", 4.0, {"places": 1})["places"].granted == 1


def test_what_an_answer_and_the_server_tell_counts() -> None:
    """A correction goes to the start's own slice, or nowhere once that has left; others' use of the account counts."""
    books = Books(rate=STARTS)
    books.ask("a", 0.0, {"rate": 6})
    assert books.ask("a", 1.0, spent=[(0.5, 6), (0.5, -4)])["rate"].used == 2
    assert books.ask("a", 1.0, told=(3, 40.0))["rate"].used == 7
    assert books.ask("a", 1.0, told=(5, 40.0))["rate"].used == 7  # it may not have seen all that we have
    assert books.ask("b", 40.0)["rate"].used == 2
    assert books.ask("a", 70.0, spent=[(0.5, -5)])["rate"].used == 0


def test_a_size_is_everyones() -> None:
    """A worker with another one is refused, and both are named; once no other worker uses the limit, it changes."""
    books = Books(rate=STARTS)
    books.ask("a", 0.0, {"rate": 4})
    books.ask("a", 0.0, spent=[(0.0, 4)])
    books.sizes = {"rate": Size("SharedRate", 20, 32.0)}
    named = r"'rate' is SharedRate\(10, per=64\) for 1 other workers, and SharedRate\(20, per=32\) for this one"
    with pytest.raises(UserError, match=named):
        books.ask("b", 1.0)
    share = books.ask("b", 30.0, *[{"rate": 1}] * 20)["rate"]
    assert (share.granted, share.room_in) == (16, 32.0)


@settings(max_examples=60)
@given(st.randoms(use_true_random=False), st.integers(1, 40), st.sampled_from([0.0, 1.0, 60.0]))
def test_no_window_has_more_than_the_quota(drawn: random.Random, amount: int, per: float) -> None:
    """Whatever workers ask, use, give back and report, and whichever of them die."""
    size = Size("SharedRate" if per else "SharedCapacity", amount, per)
    quota, now, seconds = Quota(size), 1000.0, 5.0
    held = dict.fromkeys("abcde", 0)
    ends = dict.fromkeys("abcde", 0.0)
    unsaid: dict[str, list[tuple[float, int]]] = {name: [] for name in held}
    starts: list[float] = []
    for _ in range(60):
        now += drawn.choice([0.0, 0.01, 0.3, per / 3, 6.0])
        worker = drawn.choice(list(held))
        if now >= ends[worker]:
            held[worker], unsaid[worker] = 0, []
        for _ in range(used := drawn.randint(0, held[worker])):
            starts.append(now)
        if per and used:
            unsaid[worker].append((now, used))
            held[worker] -= used
        if drawn.random() < 0.3:
            continue
        keeps = drawn.randint(0, held[worker])
        report = LimitReport(size, keeps, unsaid[worker])
        wishes = [{"it": drawn.randint(1, min(amount, 3))} for _ in range(drawn.randint(0, 4))]
        share = settle({"it": quota}, worker, now, seconds, {"it": report}, wishes)["it"]
        held[worker], unsaid[worker], ends[worker] = keeps + share.granted, [], now + seconds
        if per:
            assert (
                len([at for at in starts if at > now - per])
                + sum(count for name, count in held.items() if now < ends[name])
                <= amount
            )
        else:
            assert sum(count for name, count in held.items() if now < ends[name]) <= amount
        assert len(quota.spent) <= SLICES + 2 + seconds / (per / SLICES if per else math.inf)


# ---------------------------------------------------------------------------------------------- workers


class Database:
    """The rows of a database in memory, which take a while to answer; `away` while it can't be reached."""

    def __init__(self, seed: int = 0, slowness: float = 0.02) -> None:
        self.quotas: dict[str, Quota] = {}
        self.drawn = random.Random(seed)
        self.slowness = slowness
        self.away = False
        self.asked = 0

    async def ask(self, worker: str, seconds: float, reports: Any, wishes: Any) -> tuple[float, dict[str, Share]]:
        """Do what the database does."""
        await anyio.sleep(self.drawn.uniform(0.1, 1.0) * self.slowness)
        if self.away:
            raise JournalError("the database is away")
        self.asked += 1
        for name, report in reports.items():
            self.quotas.setdefault(name, Quota(report.size))
        now = anyio.current_time() + 1_000_000.0  # the database's clock is another one
        shares = settle(self.quotas, worker, now, seconds, reports, wishes)
        await anyio.sleep(self.drawn.uniform(0.1, 1.0) * self.slowness)
        return now, shares


@attrs.define(eq=False)
class Worker:
    """One worker with limits of its own objects: what it does ends when it is killed, and it reports nothing then."""

    database: Database
    limits: Sequence[Any]
    seconds: float = 10.0
    scope: anyio.CancelScope = attrs.field(factory=anyio.CancelScope)
    killed: bool = False

    async def ask(self, *given: Any) -> Any:
        """Ask the database; a process that was killed can't."""
        if self.killed:
            raise JournalError("this process is gone")
        return await self.database.ask(*given)

    def kill(self) -> None:
        """End it."""
        self.killed = True
        self.scope.cancel()

    async def work(self, body: Callable[[], Awaitable[None]]) -> None:
        """Do *body* with shared limits."""
        with self.scope:
            async with sharing(self.limits, self.ask, self.seconds, anyio.current_time):
                await body()


@attrs.define
class Provider:
    """A provider that counts: when requests came, and with how many tokens."""

    took: Callable[[int], int] = lambda tokens: tokens
    drawn: random.Random = attrs.field(factory=lambda: random.Random(1))
    requests: list[tuple[float, int]] = attrs.field(factory=list)
    per: float = 60.0

    def model(self, tokens: int) -> FunctionModel:
        """Return the model of a worker whose requests take about so many tokens, half of them for the answer."""

        async def answer(request: Any) -> Any:
            given, answered = tokens // 2, self.took(tokens - tokens // 2)
            self.requests.append((anyio.current_time(), given + answered))
            await anyio.sleep(self.drawn.uniform(0.5, 3.0))
            usage = RequestUsage(input_tokens=given, output_tokens=answered, total_tokens=given + answered)
            return say("done", usage)

        return FunctionModel(answer)

    def in_window(self, end: float) -> tuple[int, int]:
        """Return the requests, and their tokens, of the window that ends at *end*."""
        first, last = (bisect.bisect_right(self.requests, (at, 1 << 40)) for at in (end - self.per, end))
        return last - first, sum(tokens for _, tokens in self.requests[first:last])

    def largest(self) -> tuple[int, int]:
        """Return the most requests, and the most tokens, of any window."""
        windows = [self.in_window(at) for at, _ in self.requests]
        return max(count for count, _ in windows), max(tokens for _, tokens in windows)

    def average(self, begin: float, end: float) -> tuple[float, float]:
        """Return the requests, and the tokens, that a window has on average, of those that end between two times."""
        windows = [self.in_window(begin + index / 4) for index in range(int(end - begin) * 4)]
        return sum(count for count, _ in windows) / len(windows), sum(tokens for _, tokens in windows) / len(windows)


async def ask_for_ever(provider: Provider, limits: Sequence[Any], tokens: int, at_once: int) -> None:
    """Run an agent again and again, some runs at once, with inputs of so many tokens."""
    agent = Agent("asker", model=provider.model(tokens))
    config = RunConfig(model_limits=limits)

    async def one() -> None:
        while True:
            await Runner.run(agent, "word " * max(tokens // 2 - 20, 0), run_config=config)

    async with anyio.create_task_group() as group:
        for _ in range(at_once):
            group.start_soon(one)


@asynccontextmanager
async def fleet(database: Database, provider: Provider, *, size: int, tokens: int) -> AsyncIterator[list[Worker]]:
    """Have so many workers, each with objects of its own, that ask as much as they may."""
    workers = []
    async with anyio.create_task_group() as group:
        for _ in range(size):
            limits = [SharedRate(60, provider.per, "requests"), SharedTokenRate(100_000, provider.per, "tokens")]
            worker = Worker(database, limits, provider.per / 6)
            workers.append(worker)
            group.start_soon(worker.work, lambda limits=limits: ask_for_ever(provider, limits, tokens, 3))
        yield workers
        for worker in workers:
            worker.kill()


async def measure(tokens: int, windows: int, per: float, took: Callable[[int], int] = lambda tokens: tokens) -> None:
    """Let twenty workers work, kill five of them, let the others work; check how much of the quota they use."""
    database, provider = Database(), Provider(took, per=per)
    async with fleet(database, provider, size=20, tokens=tokens) as workers:
        begin = anyio.current_time()
        await anyio.sleep(per * windows)
        killed = anyio.current_time()
        for worker in workers[:5]:
            worker.kill()
        back = killed + workers[0].seconds
        await anyio.sleep(workers[0].seconds + per * (windows - 1))
    most = provider.largest()
    for what, first, last in [("20", begin + per, killed), ("15", back, back + per * (windows - 1))]:
        average = provider.average(first, last)
        used = max(average[0] / 60, average[1] / 100_000)
        print(f"{tokens} tokens, {what} workers: {used:.1%} used; {most} at most, {database.asked} questions")
        assert used >= 0.95
    assert most[0] <= 60
    assert most[1] <= 101_000


@VIRTUAL
async def test_twenty_workers_share_a_quota() -> None:
    """Of 60 requests no window has more, and 95 % are used; so it is a lease after five workers were killed."""
    await measure(500, 2, 12.0)


@VIRTUAL
@pytest.mark.slow
@pytest.mark.parametrize("tokens", [1000, 2500])
async def test_twenty_workers_share_a_quota_of_tokens(tokens: int) -> None:
    """Of 100,000 tokens a minute no window has 1 % more, and 95 % are used, though answers differ by 40 %."""
    drawn = random.Random(2)
    await measure(tokens, 4, 60.0, lambda tokens: round(tokens * drawn.uniform(0.6, 1.4)))


# ---------------------------------------------------------------------------------------------- one worker


@VIRTUAL
async def test_a_call_that_waits_for_two_limits_starts_when_both_have_room() -> None:
    """For a plain one and a shared one: nothing is held of the shared one before the plain one has room, too."""
    database, times = Database(slowness=0.0), list[float]()
    shared, place, plain = SharedRate(10, 60, "shared"), Capacity(1), Rate(1, 30)

    @tool(capacity=[shared, place, plain])
    async def look() -> str:
        """Take ten seconds."""
        times.append(anyio.current_time())
        assert database.quotas["shared"].workers.popitem()[1].held <= 1
        await anyio.sleep(10)
        return "seen"

    model = FunctionModel(lambda request: [call("look", {})] * 3 if request.turn == 1 else say("over"))
    async with sharing([shared], database.ask, 10.0, anyio.current_time):
        begin = anyio.current_time()
        await Runner.run(Agent("a", model=model, tools=[look]), "go")
    assert [round(at - begin) for at in times] == [0, 30, 60]


@VIRTUAL
@pytest.mark.parametrize("error", [None, ValueError("mine")])
async def test_a_block_that_ends_under_a_waiting_call_raises(
    error: Exception | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody would admit the call any more, so the error of the block ends what is around it. Its own comes first."""
    places, database, ran = SharedCapacity(1, "places"), Database(), list[str]()

    @tool(capacity=places)
    async def stay() -> str:
        ran.append("stay")
        await anyio.sleep_forever()
        return ""

    agent = Agent("a", model=FunctionModel(lambda request: [call("stay", {}), call("stay", {})]), tools=[stay])
    with pytest.RaisesGroup(UserError if error is None else ValueError) as raised:
        async with anyio.create_task_group() as group, sharing([places], database.ask, 9.0, anyio.current_time):
            group.start_soon(Runner.run, agent, "go")
            await anyio.sleep(5)
            if error is not None:
                raise error
    if error is None:
        ended = "the block that shares SharedCapacity(1, name='places') ends while calls wait for it"
        assert str(raised.value.exceptions[0]).startswith(ended)
    assert ran == ["stay"]
    assert "isn't shared any more, and calls wait for it" in caplog.text


@VIRTUAL
async def test_a_queue_that_was_there_before_the_block_is_not_its_own() -> None:
    """An event loop that was closed with calls that waited leaves one behind."""
    places, database = SharedCapacity(1, "places"), Database()
    places.line = SimpleNamespace(patient={}, kept=[], mark=lambda: None)
    async with sharing([places], database.ask, 9.0, anyio.current_time):
        pass


@VIRTUAL
async def test_what_a_worker_holds_ends_with_its_lease() -> None:
    """While the database is away its places are used again until then, and not after; a call in flight goes on."""
    database, times = Database(slowness=0.0), list[float]()
    shared = SharedCapacity(1, "shared")

    @tool(capacity=shared)
    async def look() -> str:
        """Take four seconds."""
        times.append(anyio.current_time())
        database.away = len(times) < 4
        await anyio.sleep(4)
        return "seen"

    model = FunctionModel(lambda request: [call("look", {})] * 4 if request.turn == 1 else say("over"))

    async def come_back() -> None:
        await anyio.sleep(30)
        database.away = False

    begin = anyio.current_time()
    async with sharing([shared], database.ask, 9.0, anyio.current_time), anyio.create_task_group() as group:
        group.start_soon(come_back)
        await Runner.run(Agent("a", model=model, tools=[look]), "go")
    assert [round(at - begin) for at in times[:3]] == [0, 4, 8]
    assert 30 <= times[3] - begin <= 33


@VIRTUAL
async def test_what_a_server_tells_holds_all_workers_back() -> None:
    """A worker that is told that nothing is left tells the others."""
    database, per = Database(slowness=0.0), 60.0
    mine, others = (
        tuple[Any, ...](
            [SharedRate(10, per, "requests"), SharedTokenRate(1000, per, "tokens"), SharedCapacity(5, "calls")]
        )
        for _ in range(2)
    )
    async with (
        sharing(mine, database.ask, 10.0, anyio.current_time),
        sharing(others, database.ask, 10.0, anyio.current_time),
    ):
        now = anyio.current_time()
        for limit in mine[:2]:
            limit.shrink(0, now + 20.0, now)
        await anyio.sleep(1.0)
        model = FunctionModel(lambda request: say("over", RequestUsage(total_tokens=100)))
        await Runner.run(Agent("a", model=model), "go", run_config=RunConfig(model_limits=others))
        assert 19.9 <= anyio.current_time() - now <= 21.5
        await anyio.sleep(1.0)
        used = [limit.statistics() for limit in others]
    assert (used[0].started_in_window, used[1].tokens_in_window, used[2].tokens_in_use) == (1, 100, 0)


@VIRTUAL
async def test_a_call_that_never_begins_gives_its_start_back() -> None:
    """As of a plain rate: of a call that its input guardrail refuses the start is there for the next one."""
    database = Database(slowness=0.0)
    shared, ran = SharedRate(1, 600, "shared"), list[str]()

    def judge(data: Any) -> Any:
        """Refuse the first call."""
        return RejectContent("no") if data.context.tool_call_id == "first" else Allow()

    @tool(capacity=shared, tool_input_guardrails=[tool_input_guardrail(judge)])
    async def look() -> str:
        """Look."""
        ran.append("look")
        return "seen"

    calls = [call("look", {}, call_id="first"), call("look", {}, call_id="second")]
    model = FunctionModel(lambda request: calls if request.turn == 1 else say("over"))
    async with sharing([shared], database.ask, 10.0, anyio.current_time):
        with anyio.fail_after(60):
            await Runner.run(Agent("a", model=model, tools=[look]), "go")
        await anyio.sleep(1.0)
    assert ran == ["look"]
    assert database.quotas["shared"].free == 0


# ---------------------------------------------------------------------------------------------- wherever a plain one is


class _Limited(FunctionModel):
    """A model with limits of its own; as a provider, one that gives it."""

    limits: Sequence[Any] = ()


class _Provider(ModelProvider):
    def __init__(self, limits: Sequence[Any]) -> None:
        self.limits = limits

    def get_model(self, name: str) -> Any:
        """Return a model without limits."""
        return FunctionModel(lambda request: say("over"))


async def _run_under_a_tools(limit: Any, **_: Any) -> Any:
    @tool(capacity=limit)
    async def look() -> str:
        """Look."""
        return "seen"

    model = FunctionModel(lambda request: call("look", {}) if request.turn == 1 else say("over"))
    agent: Agent[Any, Any] = Agent("a", model=model, tools=[look])
    return agent, await Runner.run(agent, "go")


async def _run_under_a_configurations(limit: Any) -> Any:
    agent: Agent[Any, Any] = Agent("a", model=FunctionModel(lambda request: say("over")))
    return agent, await Runner.run(agent, "go", run_config=RunConfig(model_limits=limit))


async def _run_under_a_batchs(limit: Any) -> Any:
    agent: Agent[Any, Any] = Agent("a", model=FunctionModel(lambda request: say("over")))
    (run,) = await Runner.run_many(agent, ["go"], model_limits=limit)
    return agent, run.result


async def _run_under_a_models(limit: Any) -> Any:
    model = _Limited(lambda request: say("over"))
    model.limits = [limit]
    agent: Agent[Any, Any] = Agent("a", model=model)
    return agent, await Runner.run(agent, "go")


async def _run_under_a_providers(limit: Any) -> Any:
    agent: Agent[Any, Any] = Agent("a", model="some")
    return agent, await Runner.run(agent, "go", run_config=RunConfig(model_provider=_Provider([limit])))


USES = [
    _run_under_a_tools,
    _run_under_a_configurations,
    _run_under_a_batchs,
    _run_under_a_models,
    _run_under_a_providers,
]
KINDS: list[Callable[[], Any]] = [
    lambda: SharedRate(5, 60, "shared"),
    lambda: SharedTokenRate(5000, 60, "shared"),
    lambda: SharedCapacity(5, "shared"),
]


@VIRTUAL
@pytest.mark.parametrize("make", KINDS, ids=["rate", "tokens", "capacity"])
@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
async def test_a_shared_limit_is_one_wherever_a_plain_one_is(use: Any, make: Callable[[], Any]) -> None:
    """Its room is the database's; the run's log is replayed without one, and an agent of the lab has no use for it."""
    if make is KINDS[1] and use is _run_under_a_tools:
        with pytest.raises(UserError, match="a Capacity or Rate"):  # as a plain one
            await use(make())
        return
    database, limit = Database(slowness=0.0), make()
    with pytest.raises(UserError, match="isn't shared yet"):
        await use(limit)
    async with sharing([limit], database.ask, 10.0, anyio.current_time):
        agent, result = await use(limit)
        await anyio.sleep(1.0)
    assert result.final_output == "over"
    assert database.asked > 2
    assert (database.quotas["shared"].free < database.quotas["shared"].size.amount) == (make is not KINDS[2])
    asked = database.asked
    with ThreadPoolExecutor(1) as pool:  # a replay has loops of its own; the virtual time of this one stands still
        replayed = pool.submit(replay, result, agent).result()
    assert replayed.records == tuple(result.records)
    if use is _run_under_a_tools:
        await lab.fork(result, agent, turn=1, branches=[lab.Branch(seed=1)])
    assert database.asked == asked
