"""Leases: who may go on with a run, what becomes of a worker whose lease has passed, and verdicts from elsewhere."""

import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

import anyio
import pytest
from kit.agents import script_agent
from postgres_store.server import Server

from agentloop import Runner, RunState, tool
from agentloop.exceptions import JournalError, StateError, UserError
from agentloop.items import UserMessage
from agentloop.postgres import Lease, LeaseHeld, LeaseLost, PostgresJournal, PostgresSession, PostgresStore
from agentloop.postgres import _connections as connections_module
from agentloop.postgres import _lease as lease_module
from agentloop.postgres import _renewals as renewals_module
from agentloop.testing import call, check, say
from agentloop.testing.invariants import Observation

pytestmark = [pytest.mark.real_clock, pytest.mark.timeout(120)]

NOTE = b'{"kind":"note"}'
SHORT = 0.3


async def taken(store: PostgresStore, run_id: str = "run", seconds: float = SHORT) -> Lease:
    """Return a lease that no task renews: that of a worker which has stopped."""
    lease = Lease(store.connections, run_id, f"worker {time.monotonic()}", seconds)
    while True:
        try:
            await lease.take()
        except LeaseHeld as held:
            await anyio.sleep(held.seconds)
        else:
            return lease


async def epoch_of(store: PostgresStore, run_id: str) -> int:
    """Return the epoch of a run, as the database has it."""
    found: int = await store.connections.run(
        lambda db: db.execute("SELECT epoch FROM agentloop_leases WHERE run_id = %s", (run_id,)).fetchone()[0]
    )
    return found


# ---------------------------------------------------------------------------------------------- the lease itself


async def test_a_run_has_one_holder(store: PostgresStore) -> None:
    """Another one is told how long it is held; after the block it is free, and its epoch grows."""
    async with store.lease("run", seconds=20.0) as lease:
        assert lease.held
        assert "epoch 1, held" in repr(lease)
        with pytest.raises(LeaseHeld, match="another worker holds it") as held:
            async with store.lease("run"):
                pass
        assert 15.0 < held.value.seconds <= 20.0
        async with store.lease("another"):
            pass
    assert not lease.held
    with pytest.raises(LeaseLost, match="it was given back"):
        lease.check()
    async with store.lease("run") as second:
        assert second.epoch == 2


async def test_a_lease_is_renewed_for_the_block(store: PostgresStore) -> None:
    """It outlasts its own time."""
    seconds = 3.0  # a busy machine may keep a renewal waiting for a second
    async with store.lease("run", seconds=seconds) as lease:
        await anyio.sleep(1.2 * seconds)
        lease.check()
        await PostgresJournal(store, lease).append([NOTE])


@pytest.fixture
def renewals(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of leases in each statement that renews some; entries are added as they are sent."""
    import psycopg

    sent: list[int] = []
    execute = psycopg.Connection.execute

    def count(self: Any, query: Any, *arguments: Any, **options: Any) -> Any:
        if "AS asked" in str(query):
            sent.append(len(arguments[0]["run_ids"]))
        return execute(self, query, *arguments, **options)

    monkeypatch.setattr(psycopg.Connection, "execute", count)
    return sent


@pytest.mark.slow
async def test_the_leases_of_a_worker_are_renewed_together(store: PostgresStore, renewals: list[int]) -> None:
    """Two hundred, taken one after the other, need as many statements as one: three for each of their times."""
    seconds, rounds = 4.5, 3

    async def hold_short() -> None:
        """A shorter lease doesn't renew the long ones each time."""
        async with store.lease("short", seconds=3 * SHORT):
            await anyio.sleep(2 * seconds / 3)

    async with anyio.create_task_group() as group, AsyncExitStack() as stack:
        leases = [await stack.enter_async_context(store.lease(f"run{n}", seconds=seconds)) for n in range(200)]
        await anyio.sleep(2 * seconds / 3)  # the first rounds bring them together
        renewals.clear()
        group.start_soon(hold_short)
        await anyio.sleep(rounds * seconds / 3)
        assert all(lease.held for lease in leases)
        large = [count for count in renewals if count > 1]
    assert len(large) <= rounds + 1
    assert max(large) >= 200


async def test_a_task_that_is_cancelled_while_it_renews_leaves_it_to_the_next(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for an answer that doesn't come, and no lease is lost."""
    run = store.connections.run
    taken, asked, gone = anyio.Event(), anyio.Event(), anyio.CancelScope()

    async def hang_once(work: Any, **options: Any) -> Any:
        if not asked.is_set() and options.get("wait") == 0.0:
            asked.set()
            gone.cancel()
            await anyio.sleep_forever()
        return await run(work, **options)

    async def hold_first() -> None:
        with gone:
            async with store.lease("first", seconds=1.5):  # it is renewed before the other
                taken.set()
                await anyio.sleep_forever()

    async with anyio.create_task_group() as group:
        group.start_soon(hold_first)
        await taken.wait()
        async with store.lease("second", seconds=2.0) as lease:
            begun = lease.renewed_at
            monkeypatch.setattr(store.connections, "run", hang_once)
            await asked.wait()
            while lease.renewed_at == begun:  # noqa: ASYNC110 - it is another task, which tells nobody
                await anyio.sleep(0.01)
            lease.check()
    assert gone.cancelled_caught


@pytest.mark.scenario("DU-06")
async def test_a_lost_lease_cancels_its_block(store: PostgresStore) -> None:
    """Another worker that has taken the run over (its epoch is planted here) is found at the next renewal."""
    with pytest.raises(LeaseLost, match="another worker has taken it over"):
        async with store.lease("run", seconds=SHORT):
            raised = "UPDATE agentloop_leases SET epoch = epoch + 1 WHERE run_id = 'run'"
            await store.connections.run(lambda db: db.execute(raised))
            await anyio.sleep_forever()


async def test_an_error_of_the_block_is_raised_bare(store: PostgresStore) -> None:
    """No group wraps it; the run is free."""
    with pytest.raises(ZeroDivisionError):
        async with store.lease("run"):
            raise ZeroDivisionError
    async with store.lease("run"):
        pass


@pytest.mark.parametrize("error", [ValueError("mine"), SystemExit(3)])
async def test_an_error_comes_before_a_cancellation_around_its_block(
    store: PostgresStore, error: BaseException
) -> None:
    """The end of the block waits for its renewals, where the cancellation would take the place of the error."""
    with pytest.raises(type(error)) as raised, anyio.CancelScope() as outer:
        async with store.lease("run"):
            outer.cancel()
            raise error
    assert raised.value is error
    async with store.lease("run"):
        pass


async def test_a_cancelled_block_gives_the_run_back(store: PostgresStore) -> None:
    """At once."""
    with anyio.move_on_after(SHORT) as scope:
        async with store.lease("run"):
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    async with store.lease("run"):
        pass


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long leases are renewed every tenth of a second, so that no lease passes on a slow machine."""
    monkeypatch.setattr(renewals_module._Kept, "interval", 0.1)


async def renewed(*leases: Lease) -> None:
    """Return when each of *leases* has been renewed."""
    begun = [lease.renewed_at for lease in leases]
    while any(lease.renewed_at == before for lease, before in zip(leases, begun, strict=True)):  # noqa: ASYNC110
        await anyio.sleep(0.01)


@pytest.mark.usefixtures("often")
async def test_a_row_that_another_client_has_locked_costs_no_other_lease(store: PostgresStore, conninfo: str) -> None:
    """The others are renewed without it, and it is renewed as soon as its row is free."""
    import psycopg

    async with store.lease("locked", seconds=300.0) as locked, store.lease("other", seconds=300.0) as other:
        with psycopg.connect(conninfo) as blocker:
            await renewed(locked, other)
            await anyio.to_thread.run_sync(lambda: blocker.execute("SELECT 1 FROM agentloop_leases FOR UPDATE"))
            blocker.rollback()
            only = "SELECT 1 FROM agentloop_leases WHERE run_id = 'locked' FOR UPDATE"
            await anyio.to_thread.run_sync(lambda: blocker.execute(only))
            await renewed(other)
            before = locked.renewed_at
            await renewed(other)
            await renewed(other)
            assert locked.renewed_at == before
            locked.check()
        await renewed(locked)


def test_a_renewal_that_failed_is_tried_again_soon(store_offline: PostgresStore) -> None:
    """After a second, not after another third of the lease: there may be no other third."""
    lease = Lease(store_offline.connections, "run", "worker", 300.0)
    lease.extend(lease_module.read_clock())
    kept = renewals_module._Kept(lease)
    assert kept.due_at - lease_module.read_clock() > 50.0
    kept.note(lease_module.read_clock(), None)
    assert kept.due_at - lease_module.read_clock() <= 1.0
    kept.note(lease_module.read_clock(), True)
    assert kept.due_at - lease_module.read_clock() > 50.0


@pytest.fixture
def store_offline() -> PostgresStore:
    """A store that nobody asks."""
    return PostgresStore("host=127.0.0.1")


@pytest.mark.usefixtures("often")
async def test_a_lease_counts_from_before_its_renewal_was_sent(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer that takes seconds doesn't make it longer: by the worker's clock it ends before the database's end."""
    import psycopg

    execute, clock, passed, sent = psycopg.Connection.execute, lease_module.read_clock, [0.0], list[float]()
    for module in (lease_module, renewals_module):
        monkeypatch.setattr(module, "read_clock", lambda: clock() + passed[0])

    def answer_late(self: Any, query: Any, *arguments: Any, **options: Any) -> Any:
        if "AS asked" not in str(query):
            return execute(self, query, *arguments, **options)
        sent.append(clock() + passed[0])
        found = execute(self, query, *arguments, **options)
        passed[0] += 20.0
        return found

    async with store.lease("run", seconds=300.0) as lease:
        monkeypatch.setattr(psycopg.Connection, "execute", answer_late)
        await renewed(lease)
        monkeypatch.setattr(psycopg.Connection, "execute", execute)
        assert any(0.0 <= at - lease.renewed_at < 10.0 for at in sent)


async def test_a_server_that_is_gone_ends_the_lease_in_time(store: PostgresStore, server: Server) -> None:
    """Renewals fail until the lease has passed by the worker's own clock; it doesn't wait for the database."""
    try:
        with pytest.raises(LeaseLost, match="its lease has passed"):
            async with store.lease("run", seconds=1.0):
                await anyio.to_thread.run_sync(server.stop)
                await anyio.sleep_forever()
    finally:
        server.start()


# ---------------------------------------------------------------------------------------------- the fence


@pytest.mark.scenario("DU-06")
async def test_an_append_of_an_old_epoch_is_refused(store: PostgresStore) -> None:
    """With an error of the journal's; the new holder goes on from what the old one wrote."""
    old = await taken(store)
    journal = PostgresJournal(store, old)
    await journal.append([NOTE])
    new = await taken(store)
    assert (old.epoch, new.epoch) == (1, 2)
    old._until += 60.0  # a clock that is wrong: the database's decides
    with pytest.raises(LeaseLost, match="epoch 1: another worker has taken it over"):
        await journal.append([NOTE])
    with pytest.raises(JournalError, match="takes no more records since it failed"):
        await journal.append([NOTE])
    following = PostgresJournal(store, new)
    await following.append([NOTE])
    assert await following.read() == [NOTE, NOTE]


async def test_a_lease_that_has_passed_is_lost_without_a_taker(store: PostgresStore) -> None:
    """No question needs to be asked for that."""
    lease = await taken(store)
    await anyio.sleep(SHORT)
    with pytest.raises(LeaseLost, match="its lease has passed"):
        await PostgresJournal(store, lease).append([NOTE])
    with pytest.raises(LeaseLost):
        PostgresJournal(store, lease).check_lease()
    PostgresJournal(store, "run").check_lease()


async def test_an_append_that_waits_for_its_row_past_the_end_of_the_lease_is_refused(
    store: PostgresStore, conninfo: str
) -> None:
    """The lease is judged when the row is locked, and not before the lock was waited for."""
    import psycopg

    lease = await taken(store, seconds=2.0)
    journal = PostgresJournal(store, lease)
    await journal.append([NOTE])
    waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%%fence%%'"
    refused: list[JournalError] = []

    async def append() -> None:
        with pytest.raises(LeaseLost) as error:
            await journal.append([NOTE])
        refused.append(error.value)

    async with anyio.create_task_group() as group:
        with psycopg.connect(conninfo) as blocker, psycopg.connect(conninfo, autocommit=True) as watcher:
            blocker.execute("SELECT 1 FROM agentloop_leases FOR UPDATE")
            group.start_soon(append)
            while lease.held or await anyio.to_thread.run_sync(lambda: watcher.execute(waits).fetchone()) != (1,):
                if refused:
                    break  # a slow machine: the lease had passed before the append was sent
                await anyio.sleep(0.02)
            await anyio.sleep(0.1)  # the database's end is a little later
    assert len(refused) == 1
    assert len(await journal.read()) == 1


async def test_without_a_lease_nothing_is_appended_while_a_worker_has_the_run(store: PostgresStore) -> None:
    """It can be read, and appended to later by the same object."""
    journal = PostgresJournal(store, "run")
    async with store.lease("run") as lease:
        await PostgresJournal(store, lease).append([NOTE])
        assert await journal.read() == [NOTE]
        with pytest.raises(LeaseHeld):
            await journal.append([NOTE])
    await journal.append([NOTE])
    assert len(await journal.read()) == 2


async def test_a_session_with_a_lease_is_fenced(store: PostgresStore) -> None:
    """A worker whose lease has passed adds nothing to the conversation."""
    lease = await taken(store)
    session = PostgresSession(store, "s", lease=lease)
    await session.add_items([UserMessage("first")])
    await taken(store)
    with pytest.raises(LeaseLost):
        await session.add_items([UserMessage("late")])
    assert await session.get_items() == [UserMessage("first")]


class StoppedWorker(PostgresJournal):
    """The journal of a worker that is stopped at one point of one append, until another one has taken the run over."""

    stops_at: tuple[int, str]
    appends = 0
    started_late = 0

    async def append(self, records: Any) -> None:
        """Append, and stop before it or behind it."""
        number, self.appends = self.appends, self.appends + 1
        if self.stops_at == (number, "before"):
            await self.stop()
        await super().append(records)
        if self.stops_at == (number, "behind"):
            await self.stop()

    async def stop(self) -> None:
        """Wait until another worker has the run."""
        assert self.lease is not None
        await taken(self.store, self.run_id)

    store: PostgresStore


@pytest.mark.scenario("DU-06")
@pytest.mark.slow
@pytest.mark.backends("asyncio", "trio")
async def test_no_body_starts_when_its_workers_epoch_is_past(store: PostgresStore) -> None:
    """At two hundred points: before and behind each append of a run, in runs of several lengths."""
    late: list[str] = []
    refused = 0

    async def run(number: int) -> None:
        nonlocal refused
        run_id = f"run{number}"
        lease = await taken(store, run_id, 1.5)
        journal = StoppedWorker(store, lease)
        journal.store = store
        journal.stops_at = (number // 2 % 8, ("before", "behind")[number % 2])

        @tool
        async def act(n: int) -> str:
            """Act."""
            if await epoch_of(store, run_id) != lease.epoch:
                late.append(run_id)
            return "done"

        turns = [[call("act", {"n": turn * 10 + n}) for n in range(1 + number % 3)] for turn in range(4)]
        agent = script_agent("a", *turns, say("over"), tools=[act])
        try:
            await Runner.run(agent, "go", journal=journal)
        except JournalError:
            refused += 1

    for first in range(0, 200, 25):
        async with anyio.create_task_group() as group:
            for number in range(first, first + 25):
                group.start_soon(run, number)
    assert late == []
    assert refused > 150  # else the points were behind the ends of the runs


# ---------------------------------------------------------------------------------------------- verdicts, results


def payer() -> tuple[Any, list[int]]:
    """Return an agent that pays after an approval, and the payments."""
    paid: list[int] = []

    @tool(needs_approval=True)
    async def pay(amount: int) -> str:
        """Pay."""
        paid.append(amount)
        return "paid"

    return script_agent("clerk", [call("pay", {"amount": 5}, call_id="p")], say("done"), tools=[pay]), paid


@pytest.mark.scenario("DU-08")
@pytest.mark.parametrize("approved", [True, False])
async def test_verdict_of_another_process_is_taken_once(conninfo: str, store: PostgresStore, approved: bool) -> None:
    """It has the database and no agents; a worker that resumes finds the verdict, and a second one finds the end."""
    agent, paid = payer()
    async with store.lease("run") as lease:
        result = await Runner.run(agent, "go", journal=PostgresJournal(store, lease))
        assert len(result.interruptions) == 1
        with pytest.raises(LeaseHeld):
            await PostgresJournal(store, "run").approve("p")
    async with PostgresStore(conninfo) as elsewhere:
        desk = PostgresJournal(elsewhere, "run")
        (asked,) = await desk.interruptions()
        assert (asked.call.name, asked.agent) == ("pay", "clerk")
        with pytest.raises(StateError):
            await desk.approve("another")
        if approved:
            await desk.approve(asked, by="ann")
        else:
            await desk.reject("p", message="too much", by="ann")
    for _ in range(2):
        async with store.lease("run") as lease:
            result = await Runner.resume(agent, PostgresJournal(store, lease))
        assert result.final_output == "done"
    assert paid == ([5] if approved else [])
    state = await RunState.from_journal(agent, PostgresJournal(store, "run"))
    assert [record.by for record in state.records if type(record).__name__ == "VerdictGiven"] == ["ann"]  # type: ignore[union-attr]


@pytest.mark.scenario("SM-04")
async def test_a_worker_without_the_tool_leaves_an_approved_call_to_another(
    conninfo: str, store: PostgresStore
) -> None:
    """It appends nothing, under its own lease; the worker that has the tool makes the payment."""
    agent, paid = payer()
    async with store.lease("run") as lease:
        await Runner.run(agent, "go", journal=PostgresJournal(store, lease))
    async with PostgresStore(conninfo) as elsewhere:
        await PostgresJournal(elsewhere, "run").approve("p", by="ann")
    before = await PostgresJournal(store, "run").read()
    for _ in range(2):
        async with store.lease("run") as lease:
            with pytest.raises(StateError, match="call 'p' waits for tool 'pay'"):
                await Runner.resume(script_agent("clerk"), PostgresJournal(store, lease))
    assert await PostgresJournal(store, "run").read() == before
    async with store.lease("run") as lease:
        result = await Runner.resume(agent, PostgresJournal(store, lease))
    assert (result.final_output, paid) == ("done", [5])


@pytest.mark.scenario("SM-02")
async def test_a_second_verdict_is_refused_and_names_the_first(conninfo: str, store: PostgresStore) -> None:
    """Two people have both seen the call. The first one's verdict counts, in this pause and in each later one."""
    agent, paid = payer()
    async with store.lease("run") as lease:
        await Runner.run(agent, "go", journal=PostgresJournal(store, lease))
    async with PostgresStore(conninfo) as elsewhere:
        ann, bob = PostgresJournal(store, "run"), PostgresJournal(elsewhere, "run")
        (asked,), (seen,) = await ann.interruptions(), await bob.interruptions()
        await ann.reject(asked, message="fraud", by="ann")
        for _ in range(2):
            with pytest.raises(StateError, match="it was rejected by 'ann'; with replace=True"):
                await bob.approve(seen, by="bob")
        await bob.approve(seen, by="bob", replace=True)
        with pytest.raises(StateError, match="it was approved by 'bob'"):  # the same object, after another's write
            await ann.reject(asked, by="ann")
    async with store.lease("run") as lease:
        await Runner.resume(agent, PostgresJournal(store, lease))
    assert paid == [5]
    for replace in (False, True):
        with pytest.raises(StateError):
            await ann.reject(asked, by="ann", replace=replace)
    state = await RunState.from_journal(agent, PostgresJournal(store, "run"))
    check(Observation(records=tuple(state.records)))


@pytest.mark.scenario("SM-02")
@pytest.mark.parametrize("faster", ["verdict", "worker"])
async def test_a_verdict_that_lost_the_race_says_who_was_faster(
    conninfo: str, store: PostgresStore, faster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process decides, or runs on, between the reading of the log and the append. Nothing of it is appended."""
    agent, paid = payer()
    async with store.lease("run") as lease:
        await Runner.run(agent, "go", journal=PostgresJournal(store, lease))
    bob = PostgresJournal(store, "run")
    append, raced = bob.append, False

    async def race(lines: Sequence[bytes]) -> None:
        nonlocal raced
        if not raced:
            raced = True
            async with PostgresStore(conninfo) as elsewhere:
                await PostgresJournal(elsewhere, "run").reject("p", by="ann")
                if faster == "worker":
                    async with elsewhere.lease("run") as lease:
                        await Runner.resume(agent, PostgresJournal(elsewhere, lease))
        await append(lines)

    monkeypatch.setattr(bob, "append", race)
    said = "rejected by 'ann'; with replace" if faster == "verdict" else "is over"
    with pytest.raises(StateError, match=said):
        await bob.approve("p", by="bob")
    assert raced
    async with store.lease("run") as lease:
        await Runner.resume(agent, PostgresJournal(store, lease))
    assert paid == []


async def test_a_run_that_nobody_began_waits_for_nothing(store: PostgresStore) -> None:
    """Its journal is empty."""
    assert await PostgresJournal(store, "run").interruptions() == ()


@pytest.mark.scenario("DU-07")
async def test_result_of_a_finished_run_is_read_without_a_lease(store: PostgresStore) -> None:
    """Nothing is started or written."""
    agent = script_agent("clerk", say("done"))
    async with store.lease("run") as lease:
        await Runner.run(agent, "go", journal=PostgresJournal(store, lease))
    journal = PostgresJournal(store, "run")
    before = await journal.read()
    result = await Runner.resume(script_agent("clerk"), journal)
    assert result.final_output == "done"
    assert await journal.read() == before


# ---------------------------------------------------------------------------------------------- the database


async def test_a_server_that_restarts_costs_a_wait(store: PostgresStore, server: Server) -> None:
    """Connections that it closed are replaced before they are used; an append that finds nobody waits."""
    async with store.lease("run") as lease:
        journal = PostgresJournal(store, lease)
        await journal.append([NOTE])
        await anyio.to_thread.run_sync(server.restart)
        await journal.append([NOTE])
        await anyio.to_thread.run_sync(server.stop)
        async with anyio.create_task_group() as group:
            group.start_soon(journal.append, [NOTE])
            await anyio.to_thread.run_sync(server.start)
        assert len(await journal.read()) == 3


@pytest.mark.parametrize("done", [True, False], ids=["committed", "not committed"])
async def test_an_append_whose_answer_is_lost_is_made_once(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch, done: bool
) -> None:
    """The connection is lost with the answer: the digest of the last line tells whether the batch is there."""
    import psycopg

    journal = PostgresJournal(store, "run")
    await journal.append([NOTE])
    execute = psycopg.Connection.execute
    lost = 0

    def lose(self: Any, query: Any, *arguments: Any, **options: Any) -> Any:
        nonlocal lost
        if "fence" in str(query) and not lost:
            lost += 1
            if done:
                execute(self, query, *arguments, **options)
            self.close()
            raise psycopg.OperationalError("the connection is lost")
        return execute(self, query, *arguments, **options)

    monkeypatch.setattr(psycopg.Connection, "execute", lose)
    await journal.append([NOTE, NOTE])
    assert lost == 1
    assert len(await journal.read()) == 3
    await journal.append([NOTE])
    assert len(await journal.read()) == 4


async def test_an_append_whose_answer_is_lost_is_not_taken_for_another_writers(
    store: PostgresStore, conninfo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It wasn't made, and somebody else's record stands at its place: the append is refused."""
    import psycopg

    journal = PostgresJournal(store, "run")
    await journal.append([NOTE])
    execute = psycopg.Connection.execute
    other = b'{"kind":"other"}'

    def lose(self: Any, query: Any, *arguments: Any, **options: Any) -> Any:
        if "fence" not in str(query):
            return execute(self, query, *arguments, **options)
        monkeypatch.setattr(psycopg.Connection, "execute", execute)
        anyio.run(append_elsewhere, conninfo, other)
        self.close()
        raise psycopg.OperationalError("the connection is lost")

    monkeypatch.setattr(psycopg.Connection, "execute", lose)
    with pytest.raises(JournalError, match="something else has written"):
        await journal.append([NOTE])
    assert await PostgresJournal(store, "run").read() == [NOTE, other]


async def append_elsewhere(conninfo: str, record: bytes) -> None:
    """Append to the run as another process does."""
    async with PostgresStore(conninfo) as store:
        await PostgresJournal(store, "run").append([record])


async def test_a_refusal_of_the_database_is_the_journals_error(store: PostgresStore) -> None:
    """A table that is gone, for instance; a session says it as an error of the state."""
    journal, session = PostgresJournal(store, "run"), PostgresSession(store)
    await journal.read()
    await store.connections.run(lambda db: db.execute("DROP TABLE agentloop_journal_lines, agentloop_session_items"))
    with pytest.raises(JournalError, match="PostgresJournal\\('run'\\): relation"):
        await journal.append([NOTE])
    with pytest.raises(StateError, match="Session 'default': relation"):
        await session.add_items([UserMessage("x")])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("DELETE FROM agentloop_journal_lines WHERE n = 1", "line 2 is damaged or missing"),
        ("UPDATE agentloop_journal_lines SET line = line || 'x' WHERE n = 1", "line 2 was changed"),
        (
            "UPDATE agentloop_journal_lines SET line = line || '\\x0a'::bytea WHERE n = 1",
            "line 2 is damaged or missing",
        ),
        ("DELETE FROM agentloop_journal_lines WHERE n = 2", "the batch that begins at line 2 isn't whole"),
    ],
)
async def test_damaged_rows_are_named(store: PostgresStore, change: str, said: str) -> None:
    """As in a file."""
    await PostgresJournal(store, "run").append([NOTE])
    await PostgresJournal(store, "run").append([NOTE, NOTE])
    await store.connections.run(lambda db: db.execute(change))
    with pytest.raises(JournalError, match=said):
        await PostgresJournal(store, "run").read()


async def test_unreadable_items_are_left_out_and_named_once(
    store: PostgresStore, caplog: pytest.LogCaptureFixture
) -> None:
    """They stay in the table, and are passed over where a number of items is wanted."""
    session = PostgresSession(store, "s")
    await session.add_items([UserMessage("a"), UserMessage("b"), UserMessage("c")])
    await store.connections.run(lambda db: db.execute("UPDATE agentloop_session_items SET item = '?' WHERE n = 1"))
    for _ in range(2):
        assert await session.get_items(2) == [UserMessage("a"), UserMessage("c")]
    assert caplog.text.count("row 1 is left out: not JSON") == 1


async def test_tables_are_made_by_one_and_migrated(
    conninfo: str, monkeypatch: pytest.MonkeyPatch, anyio_backend: Any
) -> None:
    """Several stores at once, the next version of the library, and an older one that meets its tables."""
    async with anyio.create_task_group() as group:
        for _ in range(5):
            group.start_soon(use, conninfo)
    later = (*connections_module.MIGRATIONS, "ALTER TABLE agentloop_leases ADD COLUMN note text")
    monkeypatch.setattr(connections_module, "MIGRATIONS", later)
    await use(conninfo)
    monkeypatch.undo()
    known = len(connections_module.MIGRATIONS)
    with pytest.raises(
        StateError, match=f"tables of version {known + 1}, of a later agentloop; this one knows {known}"
    ):
        await use(conninfo)


async def use(conninfo: str) -> None:
    """Append with a store of its own."""
    async with PostgresStore(conninfo) as store:
        await PostgresSession(store).add_items([UserMessage("x")])


async def test_a_wrong_address_is_said_at_once(anyio_backend: Any) -> None:
    """A server that was never reached isn't waited for."""
    pytest.importorskip("psycopg", reason="needs the extra postgres: nox -s tests-postgres")
    begun = time.monotonic()
    async with PostgresStore("host=127.0.0.1 port=1 user=x") as store:
        with pytest.raises(JournalError, match="refused"):
            await PostgresJournal(store, "run").read()
        with pytest.raises(JournalError, match="refused"):
            async with store.lease("run"):
                pass
    assert time.monotonic() - begun < 8.0


async def test_what_is_closed_takes_nothing(conninfo: str, anyio_backend: Any) -> None:
    """Neither a journal nor a store; closing twice does nothing."""
    async with PostgresStore(conninfo) as store:
        async with PostgresJournal(store, "run") as journal:
            await journal.append([NOTE])
        with pytest.raises(JournalError, match=r"PostgresJournal\('run'\) is closed"):
            await journal.read()
    await store.aclose()
    with pytest.raises(UserError, match="the PostgresStore is closed"):
        await PostgresSession(store).get_items()


@pytest.mark.parametrize(
    "make",
    [
        lambda: PostgresStore(3),  # type: ignore[arg-type]
        lambda: PostgresStore("x", connections=0),
        lambda: PostgresStore("x", timeout=0),
        lambda: PostgresJournal("x", "run"),  # type: ignore[arg-type]
        lambda: PostgresJournal(PostgresStore("x"), ""),
        lambda: PostgresSession("x"),  # type: ignore[arg-type]
        lambda: PostgresSession(PostgresStore("x"), lease="run"),  # type: ignore[arg-type]
    ],
)
def test_wrong_arguments_are_refused(make: Callable[[], object]) -> None:
    """At construction."""
    with pytest.raises(UserError):
        make()


@pytest.mark.parametrize(
    "address",
    [
        "postgresql:/app:secret-1@127.0.0.1/x",
        "postgresql://app:secret-1@[::1/x",
        "postgresql://app:secret-1@127.0.0.1:port/x",
        "postgresql://app:secret-1@127.0.0.1:1/x?mistake=1",
        "postgresql://app:secret-1@127.0.0.1:1/x",
        "host=127.0.0.1 port=1 password=secret-1 x dbname=y",
        "host=127.0.0.1 password=secret-1'",
        "host=127.0.0.1 port=1 password=secret-1 sslmode=secret-1",
        "secret-1",
    ],
)
@pytest.mark.parametrize("use", ["lease", "journal", "session"])
async def test_no_error_quotes_the_password_of_an_address(address: str, use: str, anyio_backend: Any) -> None:
    """Neither where the address has a mistake nor where nobody answers; also not in the causes that a log shows."""
    pytest.importorskip("psycopg", reason="needs the extra postgres: nox -s tests-postgres")
    async with PostgresStore(address) as store:
        uses: dict[str, Callable[[], Any]] = {
            "lease": Lease(store.connections, "run", "worker", 1.0).take,
            "journal": PostgresJournal(store, "run").read,
            "session": PostgresSession(store).get_items,
        }
        with pytest.raises((UserError, JournalError, StateError)) as error:
            await uses[use]()
    said = [str(error.value)]
    cause: BaseException | None = error.value
    while cause is not None:
        said += [str(cause), repr(cause)]
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    assert "secret-1" not in "".join(said)


def test_no_secret_is_shown() -> None:
    """The address may hold a password."""
    store = PostgresStore("password=secret-1")
    shown = repr(store) + repr(PostgresJournal(store, "run")) + repr(PostgresSession(store))
    assert "secret-1" not in shown
