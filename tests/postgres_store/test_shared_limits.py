"""Limits that workers share through a real database: the block, its refusals, and what ends or kills a worker."""

import logging
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import anyio
import pytest
from kit.ending import Rendezvous
from postgres_store.server import Server

from agentloop import Agent, RunConfig, Runner, tool
from agentloop.exceptions import JournalError, UserError, UserValueError
from agentloop.postgres import PostgresStore, SharedCapacity, SharedRate, SharedTokenRate
from agentloop.testing import FunctionModel, ScriptedModel, call, say

pytestmark = [pytest.mark.real_clock, pytest.mark.timeout(120)]


def agent_under(limit: Any, meet: Rendezvous | None = None) -> tuple[Agent[Any, Any], list[str]]:
    """Return an agent whose one call is under *limit*, and the list of the bodies that ran."""
    ran: list[str] = []

    @tool(capacity=limit)
    async def look() -> str:
        """Look."""
        ran.append("look")
        if meet is not None:
            await meet.wait()
        return "seen"

    model = FunctionModel(lambda request: call("look", {}) if request.turn == 1 else say("over"))
    return Agent("a", model=model, tools=[look]), ran


async def until(has_come: Callable[[], object]) -> None:
    """Wait for what the leaser's task does, which has no event."""
    while not has_come():  # noqa: ASYNC110
        await anyio.sleep(0.01)


async def used_of(store: PostgresStore, limit: Any) -> int:
    """Return what all workers have used of a limit and hold, as another worker is told."""
    other = pickle.loads(pickle.dumps(limit))
    async with store.share(other):
        return int(other.part.used)


# ---------------------------------------------------------------------------------------------- the block


async def test_runs_use_what_the_database_grants(store: PostgresStore) -> None:
    """Requests and calls of a run are counted for all workers; what is in flight is given back at its end."""
    requests, tokens = SharedRate(5, 600, "requests"), SharedTokenRate(10_000, 600, "tokens")
    places = SharedCapacity(2, "places")
    agent, ran = agent_under(places)
    async with store.share(requests, tokens, places):
        result = await Runner.run(agent, "go", run_config=RunConfig(model_limits=[requests, tokens]))
        assert result.final_output == "over"
        assert places.statistics().tokens_in_use == 0
    assert ran == ["look"]
    assert tokens.part.used > 0
    assert [await used_of(store, limit) for limit in (requests, tokens, places)] == [2, tokens.part.used, 0]


async def test_a_call_waits_for_another_worker(store: PostgresStore, conninfo: str) -> None:
    """A place that another worker has is waited for, and taken once it is given back."""
    both = Rendezvous(2)
    mine, others = SharedCapacity(1, "places"), SharedCapacity(1, "places")
    (first, ran), (second, also) = agent_under(mine, both), agent_under(others)
    async with (
        PostgresStore(conninfo) as other,
        store.share(mine),
        other.share(others),
        anyio.create_task_group() as group,
    ):
        group.start_soon(Runner.run, first, "go")
        await until(lambda: ran)
        group.start_soon(Runner.run, second, "go")
        await until(lambda: others.part.waits)
        assert also == []
        await both.wait()
        await until(lambda: also)


async def test_a_worker_waits_for_the_row_that_another_one_changes(conninfo: str) -> None:
    """Also in a database whose transactions are serializable: there the second one would be refused."""
    import psycopg

    serializable = conninfo.replace("-c search_path", "-c default_transaction_isolation=serializable -c search_path")
    async with PostgresStore(serializable) as store:
        async with store.share(SharedRate(5, 60, "limit")):
            pass
        with psycopg.connect(conninfo) as other:
            other.execute("UPDATE agentloop_limits SET state = state")
            waiting = "SELECT count(*) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND wait_event_type = 'Lock'"

            async def share() -> None:
                async with store.share(SharedRate(5, 60, "limit")):
                    pass

            async with anyio.create_task_group() as group:
                group.start_soon(share)
                while not other.execute(waiting).fetchone()[0]:  # type: ignore[index]  # noqa: ASYNC110
                    await anyio.sleep(0.01)
                other.commit()


async def test_a_limit_that_is_not_shared_refuses(store: PostgresStore) -> None:
    """A call outside of a block, and before or after it, raises a typed error in its run."""
    limit = SharedRate(5, 60, "limit")
    agent, ran = agent_under(limit)
    with pytest.raises(UserError, match=r"SharedRate\(5, 60, name='limit'\) isn't shared yet"):
        await Runner.run(agent, "go")
    async with store.share(limit):
        with pytest.raises(UserError, match="is shared by a block already"):
            async with store.share(limit):
                pass
        await Runner.run(agent, "go")
    asked = Agent("a", model=ScriptedModel([say("hi")]))
    with pytest.raises(UserError, match="isn't shared yet"):
        await Runner.run(asked, "go", run_config=RunConfig(model_limits=[limit]))
    assert ran == ["look"]


async def test_a_block_of_another_event_loop_refuses(store: PostgresStore) -> None:
    """The object belongs to the loop of its block; another loop has an object of its own."""
    limit = SharedRate(5, 60, "limit")
    agent, _ = agent_under(limit)
    async with store.share(limit):
        with pytest.raises(UserError, match="by a block of another event loop"):
            await anyio.to_thread.run_sync(lambda: anyio.run(Runner.run, agent, "go"))


@pytest.mark.parametrize("name", ["", "a\0", "a\ud800"], ids=["empty", "nul", "half"])
def test_a_name_that_no_database_takes_is_refused(name: str) -> None:
    """When the limit is made."""
    for make in (partial(SharedRate, 1, 60), partial(SharedTokenRate, 1, 60), partial(SharedCapacity, 1)):
        with pytest.raises(UserValueError, match="name: expected text"):
            make(name)


async def test_wrong_blocks_are_refused(store: PostgresStore) -> None:
    """Nothing to share, a plain limit, one name twice, one name with two sizes, a store without a server."""
    from agentloop import Rate

    wrong: list[tuple[list[Any], str]] = [
        ([], "expected limits such as"),
        ([Rate(5, 60)], "expected limits such as"),
        ([SharedRate(5, 60, "x"), SharedCapacity(5, "x")], "of different names"),
    ]
    for limits, message in wrong:
        with pytest.raises(UserError, match=message):
            async with store.share(*limits):
                pass
    async with store.share(SharedRate(5, 60, "x")):
        with pytest.raises(UserError, match=r"'x' is SharedRate\(5, per=60\) for 1 other .* and SharedCapacity\(5\)"):
            async with store.share(SharedCapacity(5, "x")):
                pass
    async with store.share(SharedCapacity(5, "x")):
        pass
    async with PostgresStore("host=127.0.0.1 port=1 user=nobody") as nowhere:
        with pytest.raises(JournalError):
            async with nowhere.share(SharedRate(5, 60, "x")):
                pass
    with pytest.raises(UserError, match="total_tokens are those of all workers"):
        SharedCapacity(5, "x").total_tokens = 6
    for make in (lambda: SharedRate(5, 60, ""), lambda: SharedTokenRate(5, 60, ""), lambda: SharedCapacity(5, "")):
        with pytest.raises(UserError, match="name"):
            make()
    with pytest.raises(UserError, match="tokens"):
        SharedCapacity(None, "x")  # type: ignore[arg-type]


async def test_an_error_of_the_block_is_raised_as_it_is(store: PostgresStore) -> None:
    """Not in a group; and a failure of the sharing itself ends the block."""
    with pytest.raises(ZeroDivisionError):
        async with store.share(SharedRate(5, 60, "x")):
            raise ZeroDivisionError
    mine = SharedRate(5, 60, "y")
    with pytest.raises(UserError, match=r"'y' is SharedRate\(6, per=60\) for 1 other"):
        async with store.share(mine, seconds=0.3):
            changed = "UPDATE agentloop_limits SET state = replace(state, %s, %s)"
            await store.connections.run(lambda db: db.execute(changed, ('"amount":5', '"amount":6')))
            await store.connections.run(
                lambda db: db.execute(
                    "UPDATE agentloop_limits SET state = replace(state, %s, %s)",
                    ('"workers":{', '"workers":{"other":{"held":0,"ends_at":1e12},'),
                )
            )
            await anyio.sleep_forever()


@pytest.mark.parametrize("error", [ValueError("mine"), SystemExit(3)])
async def test_an_error_comes_before_a_cancellation_around_its_block(
    store: PostgresStore, error: BaseException
) -> None:
    """The end of the block waits for the task that leases, where the cancellation would take the error's place."""
    with pytest.raises(type(error)) as raised, anyio.CancelScope() as outer:
        async with store.share(SharedRate(5, 60, "x")):
            outer.cancel()
            raise error
    assert raised.value is error


@pytest.mark.parametrize(
    "limit", [SharedRate(5, 60, "x"), SharedTokenRate(5, 60, "x"), SharedCapacity(5, "x")], ids=repr
)
def test_a_copy_is_the_same_limit_not_shared_yet(limit: Any) -> None:
    """It can be sent to a process; two objects are two dictionary keys, as of plain limits."""
    copy = pickle.loads(pickle.dumps(limit))
    assert repr(copy) == repr(limit)
    assert copy.part.size == limit.part.size
    assert len({copy, limit}) == 2


# ---------------------------------------------------------------------------------------------- a database that is away


@pytest.mark.slow
async def test_a_database_that_is_away_admits_nothing_more(
    store: PostgresStore, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said once, the calls wait, and they start when it is back; what was granted before is used meanwhile."""
    both = Rendezvous(3)
    limit = SharedCapacity(2, "places")
    agent, ran = agent_under(limit, both)
    caplog.set_level(logging.WARNING, "agentloop")
    async with store.share(limit, seconds=60.0), anyio.create_task_group() as group:
        group.start_soon(Runner.run, agent, "go")
        await until(lambda: ran)
        await anyio.to_thread.run_sync(server.stop)
        try:
            group.start_soon(Runner.run, agent, "go")
            await until(lambda: "admit only what this worker holds already" in caplog.text)
            assert len(ran) == 1
        finally:
            server.start()  # blocks, and can't be cancelled
        await until(lambda: len(ran) == 2)
        await both.wait()
    assert "leased from the database again" in caplog.text


async def test_a_damaged_row_is_an_error_that_names_it(store: PostgresStore) -> None:
    """Nothing is guessed of what it had."""
    async with store.share(SharedRate(5, 60, "x")):
        pass
    await store.connections.run(lambda db: db.execute("UPDATE agentloop_limits SET state = 'nonsense'"))
    with pytest.raises(JournalError, match="the row of the limit 'x' in agentloop_limits can't be read"):
        async with store.share(SharedRate(5, 60, "x")):
            pass


# ---------------------------------------------------------------------------------------------- processes


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_workers_that_are_killed_give_their_quota_back(conninfo: str, tmp_path: Path) -> None:
    """Eight processes use a rate and places together, four are killed: never more than the quota, and all of it."""
    from postgres_store.shared_worker import COUNT, LEASE, PER, PLACES

    backends = ("asyncio", "trio") * 4
    command = [sys.executable, str(Path(__file__).with_name("shared_worker.py")), conninfo]
    workers = [subprocess.Popen([*command, backend, str(tmp_path), "4"]) for backend in backends]
    try:
        until = time.monotonic() + 120
        while len(list(tmp_path.iterdir())) < len(workers) or not all(
            path.stat().st_size for path in tmp_path.iterdir()
        ):
            assert time.monotonic() < until
            time.sleep(0.1)
        began = time.monotonic()
        time.sleep(4 * PER)
        killed = time.monotonic()
        for worker in workers[:4]:
            worker.kill()
            worker.wait()
        time.sleep(LEASE + 5 * PER)
        ended = time.monotonic()
        assert [worker.poll() for worker in workers[4:]] == [None] * 4
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    noted = {path.name: [line.split() for line in path.read_text().splitlines()] for path in tmp_path.iterdir()}
    requests = sorted(float(at) for lines in noted.values() for what, at in lines if what == "request")
    assert not [at for at, later in zip(requests, requests[COUNT:], strict=False) if later - at < PER]
    alive = [noted[str(worker.pid)] for worker in workers[4:]]
    steps = {"begin": 1, "end": -1, "request": 0}
    in_flight = [steps[what] for _, what in sorted((float(at), what) for lines in alive for what, at in lines)]
    most = max(accumulate(in_flight))
    assert most <= PLACES
    ends = [float(at) for lines in alive for what, at in lines if what == "end"]
    for name, first, last in [("eight", began, killed), ("four", killed + LEASE, ended)]:
        count = sum(first <= at < last for at in requests)
        print(f"{name} processes: {count / (COUNT * (last - first) / PER):.1%} of the rate, {most} calls at most")
        assert count >= COUNT
    assert max(ends) > killed + LEASE
