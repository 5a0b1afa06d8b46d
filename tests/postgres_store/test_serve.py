"""The workers' loop: which runs it takes, what it does with them, and how it ends."""

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from inspect import isawaitable
from pathlib import Path
from typing import IO, Any

import anyio
import pytest
from kit.agents import script_turns
from kit.ending import Rendezvous
from postgres_store import served_worker
from postgres_store.server import Server

from agentloop import Agent, RunConfig, RunHooks, Runner, RunState, ToolContext, ToolExecution, tool
from agentloop.exceptions import AgentLoopError, JournalError, StateError, UserError, UserTypeError, UserValueError
from agentloop.items import UserMessage
from agentloop.postgres import (
    PostgresJournal,
    PostgresMemory,
    PostgresSession,
    PostgresStore,
    RunCancelled,
    ServedRun,
    StoredRun,
    serve,
)
from agentloop.postgres import _queue as queue
from agentloop.postgres import _serve as serving_module
from agentloop.records import CallSettled, CallStarted
from agentloop.testing import Observation, call, check, say

pytestmark = [pytest.mark.real_clock, pytest.mark.timeout(120)]
NEVER = 3600.0
"""A poll that no test waits for: what comes before it came by a notification."""


class Ends(RunHooks):
    """Sets `all_over` once so many runs have come to their end."""

    def __init__(self, count: int) -> None:
        self.left = count
        self.all_over = anyio.Event()

    async def on_run_end(self, context: Any, outcome: Any) -> None:
        """Count."""
        self.left -= 1
        if self.left <= 0:
            self.all_over.set()


def worker_of(*steps: Any, **fields: Any) -> Agent[Any, Any]:
    """Return an agent that follows *steps*, in any number of runs."""
    return Agent("clerk", model=script_turns(*steps), **fields)


@asynccontextmanager
async def serving(store: PostgresStore, *agents: Agent[Any, Any], **options: Any) -> AsyncIterator[None]:
    """Serve for a block; it is over when everything that was begun has ended."""
    async with anyio.create_task_group() as group:
        await group.start(partial(serve, store, agents, **{"poll": 0.05, **options}))
        try:
            yield
        finally:
            group.cancel_scope.cancel()


async def found(store: PostgresStore, run_id: str) -> StoredRun:
    """Return the run's row."""
    row = await store.find(run_id)
    assert row is not None
    return row


async def until(store: PostgresStore, run_id: str, fits: Callable[[StoredRun], bool]) -> StoredRun:
    """Return the run's row once it is so."""
    with anyio.fail_after(60):
        while not fits(row := await found(store, run_id)):  # noqa: ASYNC110 - the row is in the database
            await anyio.sleep(0.02)
    return row


async def test_a_run_is_begun_when_it_is_submitted(store: PostgresStore) -> None:
    """At once, by a notification; submitted again, it isn't run again."""
    ends, seen = Ends(1), list[ServedRun]()

    def options(run: ServedRun) -> dict[str, Any]:
        seen.append(run)
        return {"hooks": ends}

    async with serving(store, worker_of(say("hello")), poll=NEVER, options=options):
        assert await store.submit("run", "clerk", "hi", owner="acme", priority=3)
        with anyio.fail_after(60):
            await ends.all_over.wait()
    assert not await store.submit("run", "clerk", "hi")
    row = await found(store, "run")
    assert (row.status, row.owner, row.priority, row.attempts, row.due_at) == ("completed", "acme", 3, 0, None)
    assert [(run.run_id, run.agent, run.owner, run.priority, run.attempt) for run in seen] == [
        ("run", "clerk", "acme", 3, 1)
    ]


async def test_two_workers_share_the_runs(store: PostgresStore, conninfo: str) -> None:
    """No body runs twice, and both have some."""
    ran: list[str] = []
    both = Rendezvous(2)
    count = 12
    ends = Ends(count)

    @tool
    async def work(ctx: ToolContext[Any]) -> str:
        """Work."""
        ran.append(ctx.context)
        if len(ran) <= 2:
            await both.wait()  # each worker has room for one run: the other one is with the other worker
        return "done"

    def options(run: ServedRun) -> dict[str, Any]:
        return {"context": run.run_id, "hooks": ends}

    agent = worker_of(call("work"), say("over"), tools=[work])
    for number in range(count):
        await store.submit(f"run{number}", "clerk", "go")
    async with PostgresStore(conninfo, worker="w2") as other:
        one = partial(serving, concurrency=1, options=options)
        async with one(store, agent), one(other, agent):
            with anyio.fail_after(60):
                await ends.all_over.wait()
    assert Counter(ran) == {f"run{number}": 1 for number in range(count)}
    rows = await store.runs()
    assert {row.status for row in rows} == {"completed"}
    assert len({row.worker for row in rows}) == 2


async def order_of(store: PostgresStore, count: int, concurrency: int) -> list[str]:
    """Return the runs in the order in which a worker takes them; those that it has at a time come together."""
    taken: list[str] = []
    ends = Ends(count)

    def options(run: ServedRun) -> dict[str, Any]:
        taken.append(run.run_id)
        return {"hooks": ends}

    async with serving(store, worker_of(say("done")), concurrency=concurrency, options=options):
        with anyio.fail_after(60):
            await ends.all_over.wait()
    return taken


async def test_owners_have_a_fair_share(store: PostgresStore) -> None:
    """Three runs of each of two owners wait for no more than three of the one that came first with thirty."""
    for number in range(30):
        await store.submit(f"big{number}", "clerk", "go", owner="big")
    for number in range(3):
        await store.submit(f"b{number}", "clerk", "go", owner="b")
        await store.submit(f"c{number}", "clerk", "go", owner="c")
    taken = await order_of(store, 36, 1)
    owners = [run.rstrip("0123456789") for run in taken]
    assert [sorted(owners[at : at + 3]) for at in (0, 3, 6)] == [["b", "big", "c"]] * 3
    assert [run for run in taken if run.startswith("big")] == [f"big{number}" for number in range(30)]


async def test_runs_under_way_count_for_the_share(store: PostgresStore) -> None:
    """Also those of other workers: who has two is passed over until everybody has as many. A dead one's don't count."""
    for number in range(4):
        for owner in ("a", "b"):
            await store.submit(f"{owner}{number}", "clerk", "go", owner=owner)

    def take(db: Any, room: int, holder: str) -> list[str]:
        given = {"room": room, "holder": holder, "seconds": 60.0, "worker": None, "application": None}
        return [row[0] for row in queue.claim(db, {**queue.due_of(["clerk"], []), **given})]

    run = store.connections.run
    assert await run(lambda db: take(db, 3, "w1")) == ["a0", "b0", "a1"]
    assert await run(lambda db: take(db, 1, "w2")) == ["b1"]
    await run(lambda db: db.execute("UPDATE agentloop_leases SET ends_at = now() WHERE owner = 'a' AND is_taken"))
    assert await run(lambda db: take(db, 2, "w3")) == ["a0", "a1"]
    assert await run(lambda db: take(db, 9, "w4")) == ["b2", "a2", "b3", "a3"]
    assert await run(lambda db: take(db, 9, "w5")) == []


async def test_a_higher_priority_comes_first(store: PostgresStore) -> None:
    """Whoever's it is; among equal ones the owners share."""
    for name, owner, priority in [("a1", "a", 0), ("a2", "a", 5), ("a3", "a", 5), ("b1", "b", -1), ("b2", "b", 5)]:
        await store.submit(name, "clerk", "go", owner=owner, priority=priority)
    assert await order_of(store, 5, 1) == ["a2", "b2", "a3", "a1", "b1"]


async def test_a_worker_has_no_more_runs_than_it_has_room_for(store: PostgresStore) -> None:
    """And takes the next one as soon as one has ended."""
    here, most = 0, 0
    three, ends = Rendezvous(3), Ends(7)

    @tool
    async def work() -> str:
        """Work."""
        nonlocal here, most
        here += 1
        most = max(most, here)
        if ends.left == 7:
            await three.wait()
        here -= 1
        return "done"

    for number in range(7):
        await store.submit(f"run{number}", "clerk", "go")
    agent = worker_of(call("work"), say("over"), tools=[work])
    async with serving(store, agent, concurrency=3, poll=NEVER, options=lambda run: {"hooks": ends}):
        with anyio.fail_after(60):
            await ends.all_over.wait()
    assert most == 3


async def test_the_last_verdict_makes_a_run_due(store: PostgresStore) -> None:
    """At once, from any process; a worker takes it no earlier, and the pause is no attempt."""
    attempts: list[int] = []

    @tool(needs_approval=True)
    async def pay(n: int) -> str:
        """Pay."""
        return f"paid {n}"

    def options(run: ServedRun) -> dict[str, Any]:
        attempts.append(run.attempt)
        return {}

    both = [call("pay", {"n": 1}, call_id="p1"), call("pay", {"n": 2}, call_id="p2")]
    async with serving(store, worker_of(both, say("done"), tools=[pay]), poll=NEVER, options=options):
        await store.submit("run", "clerk", "go")
        await until(store, "run", lambda row: row.status == "interrupted" and row.held_until is None)
        await PostgresJournal(store, "run").approve("p1", by="ann")
        row = await found(store, "run")
        assert [one.call_id for one in row.waiting] == ["p2"]
        assert row.due_at is not None
        await PostgresJournal(store, "run").reject("p2", by="ann")
        await until(store, "run", lambda row: row.status == "completed")
    assert attempts == [1, 1]


async def test_a_run_that_was_begun_without_the_loop_is_continued(store: PostgresStore) -> None:
    """Its journal says with what it began."""
    from agentloop import Runner

    @tool(needs_approval=True)
    async def pay() -> str:
        """Pay."""
        return "paid"

    agent = worker_of(call("pay", call_id="p"), say("done"), tools=[pay])
    await Runner.run(agent, "Begun elsewhere.", journal=PostgresJournal(store, "run"))
    assert await store.submit("run", "clerk", "not used", owner="a")
    ends = Ends(2)
    await PostgresJournal(store, "run").approve("p")
    async with serving(store, agent, options=lambda run: {"hooks": ends}):
        await until(store, "run", lambda row: row.status == "completed")
    state = await RunState.from_journal(agent, PostgresJournal(store, "run"))
    assert state.input == (UserMessage("Begun elsewhere."),)


# ---------------------------------------------------------------------------------------------- what goes wrong


async def test_a_run_that_fails_for_good_leaves_the_queue(store: PostgresStore) -> None:
    """The loop goes on; a retry puts it back."""
    fails = True

    def answer(request: Any) -> Any:
        if fails:
            raise RuntimeError("the model's own error")
        return say("done")

    async with serving(store, worker_of(answer)):
        await store.submit("run", "clerk", "go")
        row = await until(store, "run", lambda row: row.status == "failed" and row.held_until is None)
        assert (row.due_at, row.attempts) == (None, 0)
        fails = False
        await store.submit("other", "clerk", "go")
        await until(store, "other", lambda row: row.status == "completed")
        await store.retry("run")
        await until(store, "run", lambda row: row.status == "completed" and row.held_until is None)


@pytest.mark.parametrize("error", [RuntimeError, UserError, StateError])
async def test_a_run_that_nobody_can_bring_further_is_dead(
    store: PostgresStore, caplog: pytest.LogCaptureFixture, error: type[Exception]
) -> None:
    """After so many attempts in a row. It is listed, the loop goes on, and a retry gives it as many again.

    The errors of `options` count, of any type: those of a session that it reads are no mismatch of a deploy.
    """
    attempts: list[int] = []
    fails = True

    async def options(run: ServedRun) -> dict[str, Any]:
        if run.run_id == "poison":
            attempts.append(run.attempt)
            if fails:
                raise error("no options for it")
        return {}

    async with serving(store, worker_of(say("done")), options=options, attempts=2, poll=0.01):
        await store.submit("poison", "clerk", "go")
        row = await until(store, "poison", lambda row: row.status == "dead" and row.held_until is None)
        assert (row.trouble, row.attempts, row.due_at) == (error.__name__, 2, None)
        await store.submit("good", "clerk", "go")
        await until(store, "good", lambda row: row.status == "completed")
        assert [one.run_id for one in await store.runs(status="dead")] == ["poison"]
        assert (await store.health()).runs["dead"] == 1
        fails = False
        await store.retry("poison")
        await until(store, "poison", lambda row: row.status == "completed")
    assert attempts == [1, 2, 1]
    assert f"run 'poison' has failed in attempt 1: {error.__name__}(no options for it)" in caplog.messages


async def test_a_run_whose_workers_die_is_dead(store: PostgresStore, caplog: pytest.LogCaptureFixture) -> None:
    """Nobody was there to say so, so the next worker does, in the place of an attempt."""
    await store.submit("run", "clerk", "go")

    def take(db: Any, holder: str) -> list[Any]:
        given = {"room": 1, "holder": holder, "seconds": 60.0, "worker": "w", "application": None}
        found = queue.claim(db, {**queue.due_of(["clerk"], []), **given})
        db.execute("UPDATE agentloop_leases SET ends_at = clock_timestamp()")  # its worker has died
        return [(row[4], row[7]) for row in found]

    assert await store.connections.run(lambda db: take(db, "w1")) == [(1, False)]
    assert await store.connections.run(lambda db: take(db, "w2")) == [(2, True)]
    async with serving(store, worker_of(say("done")), attempts=2):
        row = await found(store, "run")
        assert (row.status, row.due_at) == ("dead", None)
    assert "run 'run' is dead: 2 workers in a row have taken it in vain" in caplog.messages
    await store.retry("run")
    assert (await found(store, "run")).status == "queued"
    async with serving(store, worker_of(say("done")), attempts=2):
        await until(store, "run", lambda row: row.status == "completed")


@pytest.mark.scenario("SM-04")
async def test_a_worker_that_does_not_fit_leaves_the_run_to_another(store: PostgresStore, conninfo: str) -> None:
    """It writes nothing to the journal, counts nothing, and passes the run over; the row says why."""

    @tool(needs_approval=True)
    async def pay() -> str:
        """Pay."""
        return "paid"

    steps = call("pay", call_id="p"), say("done")
    right, wrong = worker_of(*steps, tools=[pay]), worker_of(*steps)
    async with serving(store, right):
        await store.submit("run", "clerk", "go")
        await until(store, "run", lambda row: bool(row.waiting) and row.held_until is None)
    journal = PostgresJournal(store, "run")
    await journal.approve("p")
    before = await journal.read()
    async with PostgresStore(conninfo) as other, serving(other, wrong, poll=0.01):
        row = await until(store, "run", lambda row: row.trouble is not None and row.held_until is None)
        assert (row.status, row.attempts) == ("queued", 0)
        assert row.trouble is not None
        assert row.trouble.startswith("StateError(")
        assert "tool 'pay'" in row.trouble
        assert await PostgresJournal(store, "run").read() == before
        async with serving(store, right, poll=NEVER):
            done = await until(store, "run", lambda row: row.status == "completed" and row.held_until is None)
    assert (done.trouble, done.attempts) == (None, 0)


async def test_a_worker_takes_the_runs_of_its_agents_only(store: PostgresStore) -> None:
    """Others wait for one that has theirs."""
    await store.submit("other", "nobody", "go")
    await store.submit("mine", "clerk", "go")
    async with serving(store, worker_of(say("done")), Agent("second", model=script_turns(say("done")))):
        await until(store, "mine", lambda row: row.status == "completed")
    assert (await found(store, "other")).status == "queued"


@pytest.mark.parametrize(("status", "attempts"), [("completed", 1), ("completed", 5), ("queued", 1)])
async def test_a_run_that_ended_without_a_word_to_the_queue_is_not_run_again(
    store: PostgresStore, status: str, attempts: int
) -> None:
    """Its worker died between the end of the run and the queue's row, or couldn't read the end and gave it back.

    The row says how it has ended, also if no attempt is left.
    """
    ends = Ends(1)
    async with serving(store, worker_of(say("done")), options=lambda run: {"hooks": ends}):
        await store.submit("run", "clerk", "go")
        await until(store, "run", lambda row: row.due_at is None and row.held_until is None)
        due = "UPDATE agentloop_leases SET due_at = clock_timestamp(), attempts = %s, status = %s"
        await store.connections.run(lambda db: db.execute(due, (attempts, status)))
        row = await until(store, "run", lambda row: row.due_at is None)
        assert (row.status, row.attempts) == ("completed", 0)
    assert ends.left == 0


@pytest.mark.slow
async def test_a_cancelled_run_is_not_taken(store: PostgresStore) -> None:
    """One that waits is cancelled at once, one under way by its worker; a retry queues both again."""
    begun, let = anyio.Event(), False

    @tool(idempotent=True)
    async def work() -> str:
        """Work."""
        begun.set()
        if not let:
            await anyio.sleep_forever()
        return "done"

    agent = worker_of(call("work"), say("over"), tools=[work])
    async with serving(store, agent, concurrency=1, lease_seconds=1.5):
        await store.submit("first", "clerk", "go")
        await begun.wait()
        await store.submit("second", "clerk", "go")
        assert await store.cancel("second", by="ann")
        await store.cancel("first", by="ann")
        row = await until(store, "first", lambda row: row.status == "cancelled" and row.held_until is None)
        assert (row.due_at, row.cancelled_by) == (None, "ann")
        assert (await found(store, "second")).status == "cancelled"
        let = True
        for name in ("second", "first"):
            await store.retry(name)
            await until(store, name, lambda row: row.status == "completed")


async def test_the_run_of_a_worker_that_died_after_its_cancellation_is_cancelled(store: PostgresStore) -> None:
    """No worker takes it, so the next one that looks says so."""
    await store.submit("run", "clerk", "go")
    given = {"room": 1, "holder": "w", "seconds": 60.0, "worker": "w", "application": None}
    await store.connections.run(lambda db: queue.claim(db, {**queue.due_of(["clerk"], []), **given}))
    assert not await store.cancel("run")
    await store.connections.run(lambda db: db.execute("UPDATE agentloop_leases SET ends_at = clock_timestamp()"))
    async with serving(store, worker_of(say("done"))):
        assert (await found(store, "run")).status == "cancelled"


async def test_a_row_that_another_client_has_locked_holds_no_worker_up(store: PostgresStore, conninfo: str) -> None:
    """Here that of a cancelled run, whose worker has died: it is noted later."""
    import psycopg

    await store.submit("locked", "clerk", "go")
    given = {"room": 1, "holder": "w", "seconds": 60.0, "worker": "w", "application": None}
    await store.connections.run(lambda db: queue.claim(db, {**queue.due_of(["clerk"], []), **given}))
    await store.cancel("locked")
    await store.connections.run(lambda db: db.execute("UPDATE agentloop_leases SET ends_at = clock_timestamp()"))
    await store.submit("free", "clerk", "go")
    with psycopg.connect(conninfo) as desk:
        desk.execute("SELECT 1 FROM agentloop_leases WHERE run_id = 'locked' FOR UPDATE")
        async with serving(store, worker_of(say("done"))):
            await until(store, "free", lambda row: row.status == "completed")
    async with serving(store, worker_of(say("done"))):
        assert (await found(store, "locked")).status == "cancelled"


@contextmanager
def stopped(server: Server) -> Iterator[None]:
    """Stop the server for a block."""
    server.stop()
    try:
        yield
    finally:
        server.start()


async def test_a_database_that_restarts_is_waited_for(
    conninfo: str, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """The loop and its listener come back; errors of one attempt are logged."""
    async with PostgresStore(conninfo, timeout=0.5) as store, serving(store, worker_of(say("done"))):
        await store.submit("before", "clerk", "go")
        await until(store, "before", lambda row: row.status == "completed")
        with stopped(server), anyio.fail_after(60):
            while not any("can't take runs" in message for message in caplog.messages):  # noqa: ASYNC110
                await anyio.sleep(0.02)
        await store.submit("after", "clerk", "go")
        await until(store, "after", lambda row: row.status == "completed")


async def test_runs_whose_taking_was_not_answered_are_found(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection is lost behind the statement that took them: the same worker asks again, and has them.

    That is their first attempt.
    """
    import psycopg

    await store.submit("run", "clerk", "go")
    claim, lost = queue.claim, []

    def lose(connection: Any, given: Any) -> Any:
        found = claim(connection, given)
        if found and not lost:
            lost.append(found)
            connection.close()
            raise psycopg.OperationalError("the answer was lost")
        return found

    attempts: list[int] = []

    def options(run: ServedRun) -> dict[str, Any]:
        attempts.append(run.attempt)
        return {}

    monkeypatch.setattr(queue, "claim", lose)
    async with serving(store, worker_of(say("done")), options=options, attempts=1):
        await until(store, "run", lambda row: row.status in ("completed", "dead"))
    assert len(lost) == 1
    assert attempts == [1]


async def test_an_attempt_is_given_back_once(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the statement is sent again, since its answer was lost."""
    import psycopg

    settle, lost = queue.settle, []

    def lose(connection: Any, **given: Any) -> None:
        settle(connection, **given)
        if not lost:
            lost.append(given)
            connection.close()
            raise psycopg.OperationalError("the answer was lost")

    monkeypatch.setattr(queue, "settle", lose)
    await store.submit("run", "clerk", "go")
    async with serving(store, worker_of(say("done")), options=lambda run: {"max_turns": 0}):
        row = await until(store, "run", lambda row: row.trouble is not None and row.held_until is None)
    assert (row.status, row.attempts, len(lost)) == ("queued", 0, 1)


async def test_a_listener_that_can_not_listen_is_closed(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is opened again, and the loop polls meanwhile."""
    opened: list[Any] = []
    open_one = store.connections.open

    def remember() -> Any:
        opened.append(open_one())
        return opened[-1]

    monkeypatch.setattr(store.connections, "open", remember)
    monkeypatch.setattr(serving_module._RunServer, "channel", "no channel")
    async with serving(store, worker_of(say("done"))):
        await store.submit("run", "clerk", "go")
        await until(store, "run", lambda row: row.status == "completed")
        with anyio.fail_after(60):
            while len(opened) < 2:  # noqa: ASYNC110 - opened in a thread
                await anyio.sleep(0.02)
        assert opened[0].closed
    assert all(connection.closed for connection in opened)


async def test_a_store_that_is_closed_ends_the_loop(conninfo: str) -> None:
    """By the error of every use of such a store, in no group."""
    store = PostgresStore(conninfo)
    async with anyio.create_task_group() as group:

        async def work(task_status: Any) -> None:  # noqa: ASYNC128 - the loop calls it
            with pytest.raises(UserError, match="the PostgresStore is closed"):
                await serve(store, worker_of(say("done")), poll=0.01, task_status=task_status)

        await group.start(work)
        await store.aclose()


async def test_an_error_that_is_no_exception_ends_the_loop(store: PostgresStore) -> None:
    """As it ends a run; bare, and the attempt counts."""

    @tool
    async def leave() -> str:
        """Leave."""
        raise SystemExit(3)

    await store.submit("run", "clerk", "go")
    with pytest.raises(SystemExit):
        await serve(store, worker_of(call("leave"), say("no"), tools=[leave]), poll=NEVER)
    row = await found(store, "run")
    assert (row.attempts, row.held_until) == (1, None)


@pytest.mark.parametrize("grace", [60.0, 0.0])
async def test_an_error_that_is_no_exception_comes_before_a_cancellation(
    store: PostgresStore, drained: anyio.Event, grace: float
) -> None:
    """The caller that cancels the loop is told of it, whether the body raises it by itself or because it is cut."""

    @tool
    async def leave() -> str:
        """Leave."""
        outer.cancel()
        try:
            await (drained.wait() if grace else anyio.sleep_forever())
        finally:
            raise SystemExit(3)

    await store.submit("run", "clerk", "go")
    with pytest.raises(SystemExit) as left, anyio.CancelScope() as outer:
        await serve(store, worker_of(call("leave"), say("no"), tools=[leave]), poll=NEVER, grace=grace)
    assert left.value.code == 3
    row = await found(store, "run")
    assert (row.attempts, row.held_until) == (1, None)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"agents": []}, r"agents: expected an Agent, or some, got \[\]"),
        ({"agents": "clerk"}, "agents: expected an Agent, or some"),
        ({"agents": [worker_of(), worker_of()]}, "agents: expected a name for each"),
        ({"store": "host=x"}, "store: expected PostgresStore"),
        ({"concurrency": 0}, "concurrency: expected at least 1"),
        ({"grace": -1.0}, "grace: "),
        ({"attempts": 0}, "attempts: "),
        ({"poll": 0.0}, "poll: "),
        ({"lease_seconds": 0.0}, "lease_seconds: "),
        ({"options": 5}, "options: expected a callable"),
        ({"codec": 5}, "codec"),
    ],
)
async def test_wrong_arguments_are_said_before_anything_is_done(wrong: dict[str, Any], said: str) -> None:
    """No server is asked."""
    given: dict[str, Any] = {"store": PostgresStore("host=127.0.0.1 port=1"), "agents": worker_of(), **wrong}
    with pytest.raises(UserError, match=said):
        await serve(**given)


async def test_a_database_that_is_away_at_the_beginning_is_an_error() -> None:
    """Waiting doesn't cure a wrong address."""
    pytest.importorskip("psycopg", reason="needs the extra postgres: nox -s tests-postgres")
    async with PostgresStore("host=127.0.0.1 port=1", timeout=0.2) as store:
        with pytest.raises(AgentLoopError, match="the queue: "):
            await serve(store, worker_of())


async def test_wrong_submissions_are_refused(store: PostgresStore) -> None:
    """Before anything is written."""
    with pytest.raises(UserValueError, match="input: a secret item would be stored readably"):
        await store.submit("run", "clerk", [UserMessage("token", secret=True)])
    with pytest.raises(UserValueError, match="priority: expected at most 1000"):
        await store.submit("run", "clerk", "go", priority=1001)
    with pytest.raises(UserValueError, match="priority: expected at least -1000"):
        await store.submit("run", "clerk", "go", priority=-1001)
    with pytest.raises(UserTypeError, match="priority: "):
        await store.submit("run", "clerk", "go", priority="high")  # type: ignore[arg-type]
    with pytest.raises(UserTypeError, match="owner: "):
        await store.submit("run", "clerk", "go", owner=None)  # type: ignore[arg-type]
    assert await store.find("run") is None


@pytest.mark.parametrize("wrong", ["a\0", "\ud800"])
async def test_text_that_no_row_can_have_is_refused_by_the_name_of_its_argument(
    store: PostgresStore, conninfo: str, wrong: str
) -> None:
    """Everywhere in this package, before anything is sent; an address isn't quoted, as it may hold a password."""
    refused: dict[str, list[Callable[[], Any]]] = {
        "run_id": [
            lambda: store.submit(wrong, "clerk", "go"),
            lambda: store.find(wrong),
            lambda: store.cancel(wrong),
            lambda: store.retry(wrong),
            lambda: store.delete(wrong),
            lambda: store.lease(wrong).__aenter__(),
        ],
        "agent": [lambda: store.submit("run", wrong, "go"), lambda: store.runs(agent=wrong)],
        "owner": [lambda: store.submit("run", "clerk", "go", owner=wrong)],
        "by": [lambda: store.cancel("run", by=wrong)],
        "after": [lambda: store.runs(after=wrong), lambda: store.waiting(after=f"1.0:{wrong}")],
        "run": [lambda: PostgresJournal(store, wrong)],
        "session_id": [lambda: PostgresSession(store, wrong)],
        "scope": [lambda: PostgresMemory(store).load(wrong)],
        "conninfo": [lambda: PostgresStore(conninfo + wrong)],
        "application": [lambda: PostgresStore(conninfo, application=wrong)],
        "worker": [lambda: PostgresStore(conninfo, worker=wrong)],
    }
    for name, uses in refused.items():
        for use in uses:
            with pytest.raises(UserValueError) as said:
                if isawaitable(given := use()):
                    await given
            assert str(said.value).startswith(f"{name}: expected text without NUL that can be encoded")
            assert (repr(wrong)[1:-1] in str(said.value)) == (name != "conninfo")
    assert await store.runs() == []


@pytest.mark.parametrize("text", ["a\0", "\ud800"])
async def test_an_input_of_any_text_is_run(store: PostgresStore, text: str) -> None:
    """The row and the journal have it in JSON, which escapes what they can't hold."""
    given: list[str] = []

    def answer(request: Any) -> Any:
        given.append(request.items[0].text)
        return say("done")

    await store.submit("run", "clerk", text)
    async with serving(store, worker_of(answer)):
        await until(store, "run", lambda row: row.status == "completed")
    assert given == [text]


async def test_who_submits_a_run_that_is_over_is_told(store: PostgresStore) -> None:
    """It was begun otherwise: no worker would have anything to do. One that was submitted stays as it is."""

    @tool(needs_approval=True)
    async def pay() -> str:
        """Pay."""
        return "paid"

    agent = worker_of(call("pay"), say("done"), tools=[pay])
    waits = PostgresJournal(store, "cancelled")
    await Runner.run(agent, "go", journal=waits)
    assert await store.cancel("cancelled", by="ann")
    await Runner.run(worker_of(say("done")), "go", journal=PostgresJournal(store, "completed"))
    before = await store.runs()
    for _ in range(2):
        with pytest.raises(RunCancelled, match="run 'cancelled' was cancelled by ann"):
            await store.submit("cancelled", "clerk", "go")
        with pytest.raises(StateError, match="run 'completed' is over: it has completed"):
            await store.submit("completed", "clerk", "go")
    assert await store.runs() == before
    assert all(row.due_at is None and row.owner is None for row in before)
    await store.retry("cancelled")
    assert await store.submit("cancelled", "clerk", "go")

    assert await store.submit("queued", "clerk", "go")
    assert await store.cancel("queued")
    assert not await store.submit("queued", "clerk", "go")
    assert (await found(store, "queued")).status == "cancelled"


async def test_a_run_whose_journal_is_damaged_is_dead(store: PostgresStore) -> None:
    """No worker can read it; the row says so."""
    await store.submit("run", "clerk", "go")
    damaged = "INSERT INTO agentloop_journal_lines (run_id, n, line) VALUES ('run', 0, 'damaged')"
    await store.connections.run(lambda db: db.execute(damaged))
    async with serving(store, worker_of(say("done")), attempts=1):
        row = await until(store, "run", lambda row: row.status == "dead")
    assert row.trouble == "JournalError"


async def test_a_queue_that_can_not_be_written_is_mended_by_the_next_worker(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What is missing there is found in the journal."""
    import psycopg

    settle, failed = queue.settle, []

    def fail_once(*args: Any, **given: Any) -> None:
        if not failed:
            failed.append(args)
            raise psycopg.OperationalError("away")
        settle(*args, **given)

    await store.submit("run", "clerk", "go")
    monkeypatch.setattr(queue, "settle", fail_once)
    async with serving(store, worker_of(say("done"))):
        await until(store, "run", lambda row: row.status == "completed" and row.due_at is None)
    assert "run 'run': what has become of it isn't written: JournalError(the queue: away)" in caplog.messages


# ---------------------------------------------------------------------------------------------- the end of a worker


@pytest.fixture
async def drained(monkeypatch: pytest.MonkeyPatch, anyio_backend: Any) -> anyio.Event:
    """Set as soon as a loop has asked its runs to end."""
    event, drain = anyio.Event(), serving_module._RunServer.drain

    def tell(worker: Any) -> None:
        drain(worker)
        event.set()

    monkeypatch.setattr(serving_module._RunServer, "drain", tell)
    return event


async def drain_before_it_begins(store: PostgresStore, drained: anyio.Event) -> None:
    """Let a loop take a run, and cancel it before the run begins."""
    asked = anyio.Event()

    async def options(run: ServedRun) -> dict[str, Any]:
        asked.set()
        await drained.wait()
        return {}

    async with anyio.create_task_group() as group:
        group.start_soon(partial(serve, store, worker_of(say("done")), options=options))
        await asked.wait()
        group.cancel_scope.cancel()


async def test_a_run_that_has_not_begun_when_the_loop_ends_is_given_back(
    store: PostgresStore, drained: anyio.Event
) -> None:
    """It is due for others, and nothing is written to its journal."""
    await store.submit("run", "clerk", "go")
    await drain_before_it_begins(store, drained)
    row = await found(store, "run")
    assert (row.status, row.attempts, row.held_until) == ("queued", 0, None)
    assert row.due_at is not None
    assert await PostgresJournal(store, "run").read() == []


async def test_a_loop_ends_though_it_can_not_tell_the_others(
    store: PostgresStore, drained: anyio.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They poll, too."""
    import psycopg

    def fail(connection: Any) -> None:
        raise psycopg.OperationalError("away")

    await store.submit("run", "clerk", "go")
    monkeypatch.setattr(queue, "notify", fail)
    await drain_before_it_begins(store, drained)
    assert (await found(store, "run")).status == "queued"


@pytest.mark.parametrize("status", ["completed", "failed"])
async def test_a_run_that_is_over_when_the_grace_is_over_is_over(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    """The cancellation comes behind the end of the run: the row says the end, and no worker takes the run again."""
    ended = anyio.Event()
    append = PostgresJournal.append

    async def append_and_wait(journal: PostgresJournal, records: Any) -> None:
        await append(journal, records)
        if any(b'"run_ended"' in record for record in records):
            ended.set()
            await anyio.sleep_forever()

    def answer(request: Any) -> Any:
        if status == "failed":
            raise RuntimeError("the model's own error")
        return say("done")

    monkeypatch.setattr(PostgresJournal, "append", append_and_wait)
    await store.submit("run", "clerk", "go")
    given = {"run_config": RunConfig(tool_execution=ToolExecution(cleanup_grace=0.05))}
    async with anyio.create_task_group() as group:
        group.start_soon(partial(serve, store, worker_of(answer), grace=0.0, options=lambda run: given))
        await ended.wait()
        group.cancel_scope.cancel()
    row = await found(store, "run")
    assert (row.status, row.due_at, row.attempts, row.held_until) == (status, None, 0, None)


async def test_a_cut_run_whose_journal_can_not_be_read_is_given_back(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Another worker reads it."""
    begun = anyio.Event()

    async def options(run: ServedRun) -> dict[str, Any]:
        begun.set()
        await anyio.sleep_forever()
        raise AssertionError

    async def fail(journal: PostgresJournal) -> list[bytes]:
        raise JournalError("away")

    await store.submit("run", "clerk", "go")
    async with anyio.create_task_group() as group:
        group.start_soon(partial(serve, store, worker_of(say("done")), grace=0.0, options=options))
        await begun.wait()
        monkeypatch.setattr(PostgresJournal, "read", fail)
        group.cancel_scope.cancel()
    row = await found(store, "run")
    assert (row.status, row.attempts, row.held_until) == ("queued", 0, None)
    assert row.due_at is not None
    assert "run 'run': its journal can't be read: JournalError(away)" in caplog.messages


async def test_others_are_told_of_what_a_cancelled_loop_gives_back(
    store: PostgresStore, drained: anyio.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When its lease is given back, so that a worker that looks at once can take it."""
    seen: list[bool] = []

    def look(connection: Any) -> None:
        free = "SELECT ends_at IS NULL AND due_at <= clock_timestamp() FROM agentloop_leases WHERE run_id = 'run'"
        seen.append(connection.execute(free).fetchone()[0])

    await store.submit("run", "clerk", "go")
    monkeypatch.setattr(queue, "notify", look)
    await drain_before_it_begins(store, drained)
    assert seen == [True]


async def test_a_cancelled_loop_lets_the_turns_end(store: PostgresStore, drained: anyio.Event) -> None:
    """Within the grace; no body is cut, and another worker continues at once."""
    begun = anyio.Event()
    steps: list[str] = []

    @tool
    async def work() -> str:
        """Work."""
        begun.set()
        await drained.wait()
        steps.append("worked")
        return "done"

    agent = worker_of(call("work", call_id="w"), say("over"), tools=[work])
    await store.submit("run", "clerk", "go")
    async with anyio.create_task_group() as group:
        group.start_soon(partial(serve, store, agent, grace=60.0))
        await begun.wait()
        group.cancel_scope.cancel()
    row = await found(store, "run")
    assert (row.status, row.attempts, row.held_until, steps) == ("queued", 0, None, ["worked"])
    async with serving(store, agent, poll=NEVER):
        await until(store, "run", lambda row: row.status == "completed")
    assert steps == ["worked"]


async def test_what_does_not_end_within_the_grace_is_cancelled(store: PostgresStore) -> None:
    """As after any cancellation: a body that may run again does so on the next worker. The attempt isn't counted."""
    begun, let = anyio.Event(), False
    attempts: list[int] = []

    @tool(idempotent=True)
    async def work() -> str:
        """Work."""
        begun.set()
        if not let:
            await anyio.sleep_forever()
        return "done"

    def options(run: ServedRun) -> dict[str, Any]:
        attempts.append(run.attempt)
        return {}

    agent = worker_of(call("work", call_id="w"), say("over"), tools=[work])
    await store.submit("run", "clerk", "go")
    async with anyio.create_task_group() as group:
        group.start_soon(partial(serve, store, agent, grace=0.0, options=options))
        await begun.wait()
        group.cancel_scope.cancel()
    row = await found(store, "run")
    assert (row.status, row.attempts, row.held_until) == ("queued", 0, None)
    let = True
    async with serving(store, agent, options=options, poll=NEVER):
        await until(store, "run", lambda row: row.status == "completed")
    assert attempts == [1, 1]


class Process:
    """A worker process, and the lines that it has written."""

    def __init__(self, conninfo: str, backend: str) -> None:
        command = [sys.executable, str(Path(served_worker.__file__)), conninfo, backend]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.lines: IO[str] = self.process.stdout

    def wait_for(self, *lines: str) -> None:
        """Return once all of *lines* were written."""
        left = set(lines)
        while left:
            line = self.lines.readline()
            assert line, f"the worker has ended before {left}"
            left.discard(line.strip())

    def end(self) -> None:
        """Kill it, if it hasn't ended."""
        self.process.kill()
        self.process.wait()
        self.lines.close()


@contextmanager
def started(conninfo: str, backend: Any) -> Iterator[Process]:
    """Start a worker process for a block."""
    name = backend if isinstance(backend, str) else backend[0]
    process = Process(conninfo, name)
    try:
        yield process
    finally:
        process.end()


@pytest.mark.slow
async def test_the_run_of_a_killed_worker_is_taken_over(
    store: PostgresStore, conninfo: str, anyio_backend: Any
) -> None:
    """Once its lease has passed. The next worker is told that it is the second one."""
    attempts: list[int] = []

    def options(run: ServedRun) -> dict[str, Any]:
        attempts.append(run.attempt)
        return served_worker.options(run)

    @tool(name="hang", idempotent=True)
    async def ends() -> str:
        """End."""
        return "ended"

    agent = served_worker.done.clone(tools=[ends])
    await store.submit("run", "clerk", "hang")
    with started(conninfo, anyio_backend) as process:
        await anyio.to_thread.run_sync(process.wait_for, "hang run")
        process.process.kill()
        async with serving(store, agent, options=options):
            await until(store, "run", lambda row: row.status == "completed" and row.held_until is None)
    assert attempts[0] >= 2
    assert store.connections.counts.values["take_overs"] == 1
    state = await RunState.from_journal(agent, PostgresJournal(store, "run"))
    check(Observation(records=tuple(state.records), agent=agent))
    begun = [record.call_id for record in state.records if isinstance(record, CallStarted)]
    assert len(begun) >= 2
    assert set(begun) == {"c1"}


@pytest.mark.slow
async def test_a_worker_process_drains_at_sigterm(store: PostgresStore, conninfo: str, anyio_backend: Any) -> None:
    """Its run ends behind a turn, no body is cut, and the next worker goes on at once."""
    await store.submit("steps", "clerk", "step")
    with started(conninfo, anyio_backend) as process:
        await anyio.to_thread.run_sync(process.wait_for, "step steps")
        process.process.send_signal(signal.SIGTERM)
        await anyio.to_thread.run_sync(process.wait_for, "drained")
        assert await anyio.to_thread.run_sync(process.process.wait) == 0
    row = await found(store, "steps")
    assert (row.status, row.attempts, row.held_until) == ("queued", 0, None)
    state = await RunState.from_journal(served_worker.clerk, PostgresJournal(store, "steps"))
    begun = [record.call_id for record in state.records if isinstance(record, CallStarted)]
    outcomes = {record.call_id: record.outcome.status for record in state.records if isinstance(record, CallSettled)}
    assert outcomes == dict.fromkeys(begun, "succeeded")
    check(Observation(records=tuple(state.records), agent=served_worker.clerk))
    async with serving(store, served_worker.done, options=served_worker.options, poll=NEVER):
        await until(store, "steps", lambda row: row.status == "completed")


@pytest.mark.slow
def test_the_programs_of_the_page_print_what_it_says(tmp_path: Path, conninfo: str) -> None:
    """A worker and a shop, each in its process; SIGTERM ends the worker with 0."""
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "serve.md").read_text()
    worker, shop = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (shown,) = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    for name, text in (("worker.py", worker), ("shop.py", shop)):
        (tmp_path / name).write_text(text)
    run = {"cwd": tmp_path, "env": {**os.environ, "DATABASE": conninfo}, "text": True}
    serving_it = subprocess.Popen([sys.executable, "-W", "error", "worker.py"], stderr=subprocess.PIPE, **run)  # type: ignore[call-overload]
    try:
        command = [sys.executable, "-W", "error", "shop.py"]
        done = subprocess.run(command, capture_output=True, timeout=60, check=False, **run)  # type: ignore[call-overload]
        assert (done.returncode, done.stdout) == (0, shown), done.stderr
        serving_it.send_signal(signal.SIGTERM)
        _, said = serving_it.communicate(timeout=60)
        assert (serving_it.returncode, said) == (0, "")
    finally:
        serving_it.kill()
        serving_it.communicate()
