"""What an operator does with runs: lists them, cancels, tries again, deletes, and brings older rows up to date."""

import re
import textwrap
import time
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from kit.agents import script_agent
from postgres_store.server import Server

from agentloop import RunConfig, RunHooks, Runner, RunState, tool
from agentloop.exceptions import (
    JournalError,
    ModelBehaviorError,
    ModelTransportError,
    StateError,
    ToolCallError,
    UserError,
)
from agentloop.journal import MemoryJournal
from agentloop.journal._envelope import START, Seal, write_batch
from agentloop.postgres import (
    Lease,
    LeaseHeld,
    LeaseLost,
    PostgresJournal,
    PostgresStore,
    RunCancelled,
    StoredCall,
    StoredRun,
)
from agentloop.postgres import _connections as connections_module
from agentloop.postgres._operating import update_batch
from agentloop.postgres._retries import count_before_failure
from agentloop.testing import call, fail, say

pytestmark = [pytest.mark.real_clock, pytest.mark.timeout(120)]
NOTE = b'{"kind":"note"}'
KEY = b"0123456789abcdef"


@tool(needs_approval=True)
async def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


def payer(*more: Any) -> Any:
    """Return an agent that pays and then says so."""
    return script_agent("clerk", call("pay", {"amount": 5}, call_id="p"), say("Paid."), *more, tools=[pay])


async def wait_for_pay(store: PostgresStore, run_id: str) -> None:
    """Run until `pay` waits for its verdict."""
    async with store.lease(run_id) as lease:
        result = await Runner.run(payer(), "Pay.", journal=PostgresJournal(store, lease))
    assert result.status == "interrupted"


async def found(store: PostgresStore, run_id: str) -> StoredRun:
    """Return the run's row."""
    row = await store.find(run_id)
    assert row is not None
    return row


# ---------------------------------------------------------------------------------------------- rows


async def test_a_row_follows_its_run(conninfo: str, anyio_backend: Any) -> None:
    """It is written with the append that changes it, by whichever process appends."""
    begun = time.time()
    async with PostgresStore(conninfo, application="shop 7", worker="w1") as store:
        await wait_for_pay(store, "run")
        row = await found(store, "run")
        assert row.waiting == (StoredCall("p", "pay", "clerk", "approval"),)
        assert (row.status, row.agent, row.worker, row.application) == ("interrupted", "clerk", "w1", "shop 7")
        assert begun - 1 < row.began_at <= row.since < time.time() + 1
        assert (row.held_until, row.error, row.cancel_requested) == (None, None, False)
        assert await store.waiting() == await store.waiting(agent="clerk") == [row]
        assert await store.waiting(agent="nobody") == await store.waiting(older_than=3600) == []

        await PostgresJournal(store, "run").approve("p")
        decided = await found(store, "run")
        assert (decided.status, decided.waiting, decided.since) == ("interrupted", (), row.since)
        assert await store.waiting() == []

        async with store.lease("run") as lease:
            held = await found(store, "run")
            assert held.held_until is not None
            assert held.held_until > time.time() + 20
            result = await Runner.resume(payer(), PostgresJournal(store, lease))
        assert result.final_output == "Paid."
        over = await found(store, "run")
        assert (over.status, over.held_until, over.began_at) == ("completed", None, row.began_at)
        assert await store.runs(status="completed") == await store.runs() == [over]
        assert await store.runs(status=["running", "failed"]) == await store.runs(limit=1, older_than=60.0) == []
        assert await store.find("other") is None


async def test_a_run_is_running_until_its_end(store: PostgresStore) -> None:
    """Also after its worker has died; and one that failed says by what."""
    seen: list[StoredRun] = []

    @tool
    async def look() -> str:
        """Look."""
        seen.append(await found(store, "run"))
        return "seen"

    agent = script_agent("a", call("look", {}), fail(ModelTransportError("away")), tools=[look])
    with pytest.raises(ModelTransportError):
        await Runner.run(agent, "Go.", journal=PostgresJournal(store, "run"))
    assert [(row.status, row.error) for row in seen] == [("running", None)]
    row = await found(store, "run")
    assert (row.status, row.error) == ("failed", "ModelTransportError")


async def test_a_refused_append_leaves_the_row(store: PostgresStore) -> None:
    """The row is written in the same statement, so it can't differ from the journal."""
    log = MemoryJournal()
    await Runner.run(payer(), "Pay.", journal=log)
    lines = await log.read()
    journal = PostgresJournal(store, "run")
    async with store.lease("run"):
        with pytest.raises(LeaseHeld):
            await journal.append(lines)
        assert await store.runs() == []
    await journal.append(lines)
    assert (await found(store, "run")).status == "interrupted"


async def test_a_row_that_is_locked_while_it_changes_is_written(store: PostgresStore, conninfo: str) -> None:
    """A renewal that changes the row just before: the append waits for it, and writes the newer row."""
    import psycopg

    log = MemoryJournal()
    await Runner.run(payer(), "Pay.", journal=log)
    lines = await log.read()
    async with store.lease("run") as lease:
        journal = PostgresJournal(store, lease)
        await journal.append(lines[:2])
        with psycopg.connect(conninfo) as other:
            other.execute("UPDATE agentloop_leases SET ends_at = ends_at + interval '1 hour'")
            async with anyio.create_task_group() as group:
                group.start_soon(journal.append, lines[2:])
                while not await store.connections.run(_waits_for_a_lock):  # noqa: ASYNC110 - the server tells nobody
                    await anyio.sleep(0.01)
                await anyio.to_thread.run_sync(other.commit)
        row = await found(store, "run")
        assert row.held_until is not None
        assert row.held_until > time.time() + 3000
        assert (row.status, len(row.waiting)) == ("interrupted", 1)
    assert await journal.read() == lines


def _waits_for_a_lock(db: Any) -> bool:
    asked = "SELECT count(*) FROM pg_locks WHERE NOT granted"
    return bool(db.execute(asked).fetchone()[0])


async def _make_rows(store: PostgresStore, count: int) -> None:
    """Make rows of so many runs, of three statuses, of which a hundred each came to theirs at the same moment."""
    made = """
    INSERT INTO agentloop_leases (run_id, status, agent, began_at, since)
    SELECT 'run-' || lpad((n * 7919 %% %(count)s)::text, 5, '0'),
        (ARRAY['failed', 'completed', 'interrupted'])[n %% 3 + 1], 'a', now(),
        now() - interval '1 day' + (n / 100) * interval '1 microsecond'
    FROM generate_series(0, %(count)s - 1) AS n
    """
    await store.connections.run(lambda db: db.execute(made, {"count": count}))
    await store.connections.run(lambda db: db.execute("ANALYZE agentloop_leases"))


@pytest.mark.parametrize("status", [None, "failed", ("failed", "interrupted", "failed")])
async def test_pages_together_are_the_list(store: PostgresStore, status: Any) -> None:
    """Each run once and in order, also among runs of one moment, though runs of the page before are deleted."""
    await _make_rows(store, 1000)
    whole = await store.runs(status=status)
    paged: list[StoredRun] = []
    page = await store.runs(status=status, limit=7)
    while page:
        paged += page
        await store.delete(page[0].run_id)
        page = await store.runs(status=status, limit=7, after=page[-1].cursor)
    assert paged == whole
    assert len({run.run_id for run in paged}) == (334 if status == "failed" else 667 if status else 1000)
    assert await store.runs(status=status, after=whole[-1].cursor) == []
    assert all(type(run.since) is float for run in whole)


def _rows_read(node: dict[str, Any]) -> float:
    """Return how many rows the scans of a plan have read."""
    below: list[dict[str, Any]] = node.get("Plans", [])
    own = (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
    return sum(map(_rows_read, below)) if below else own


@pytest.mark.parametrize("status", [None, "failed", ("failed", "interrupted")])
async def test_a_page_reads_its_own_rows(store: PostgresStore, monkeypatch: pytest.MonkeyPatch, status: Any) -> None:
    """However many are before it: the index leads to its first row. One statement a page."""
    await _make_rows(store, 10_000)
    last = (await store.runs(status=status))[-30]
    asked: list[tuple[str, dict[str, Any]]] = []
    explain = "EXPLAIN (ANALYZE, FORMAT JSON) "

    def explained(db: Any) -> list[float]:
        return [_rows_read(db.execute(explain + words, given).fetchone()[0][0]["Plan"]) for words, given in asked]

    async def note(work: Any, *, again: bool = False) -> Any:
        return await original(lambda db: work(Noted(db)), again=again)

    class Noted:
        def __init__(self, db: Any) -> None:
            self._db = db

        def execute(self, words: str, given: dict[str, Any], *, binary: bool) -> Any:
            asked.append((words, given))
            return self._db.execute(words, given, binary=binary)

    original = store.connections.run
    monkeypatch.setattr(store.connections, "run", note)
    page = await store.runs(status=status, limit=10, after=last.cursor)
    assert len(page) == 10
    [read] = await original(explained)
    statuses = 8 if status is None else len(status) if isinstance(status, tuple) else 1
    assert read <= statuses + 10 * min(statuses, 3)


# ---------------------------------------------------------------------------------------------- cancelling


async def test_a_waiting_run_is_cancelled_at_once(store: PostgresStore) -> None:
    """No worker takes it, and no verdict is taken, until a retry allows it."""
    await wait_for_pay(store, "run")
    assert await store.cancel("run", by="ann")
    assert await store.cancel("run", by="ann")
    row = await found(store, "run")
    assert (row.status, row.waiting, row.cancel_requested, row.cancelled_by) == ("cancelled", (), True, "ann")
    with pytest.raises(RunCancelled, match="run 'run' was cancelled by ann"):
        async with store.lease("run"):
            pass
    with pytest.raises(RunCancelled, match="by ann"):
        await PostgresJournal(store, "run").approve("p")
    await store.retry("run")
    row = await found(store, "run")
    assert (row.status, len(row.waiting), row.cancel_requested) == ("interrupted", 1, False)
    await PostgresJournal(store, "run").approve("p")
    async with store.lease("run") as lease:
        assert (await Runner.resume(payer(), PostgresJournal(store, lease))).final_output == "Paid."
    with pytest.raises(StateError, match="run 'run' is over: it has completed"):
        await store.cancel("run")
    with pytest.raises(StateError, match="needs no retry, since it is completed"):
        await store.retry("run")


async def test_a_run_of_a_worker_is_cancelled_by_its_renewal(store: PostgresStore) -> None:
    """The block is cancelled while the lease is held, so the run writes its own end."""
    begun = anyio.Event()

    @tool
    async def work() -> None:
        """Work."""
        begun.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("body")

    ended: list[str] = []

    async def be_the_worker() -> None:
        agent = script_agent("a", call("work", {}), say("Done."), tools=[work])
        with pytest.raises(RunCancelled, match=r"run 'run' was cancelled$"):
            async with store.lease("run", seconds=3.0) as lease:
                await Runner.run(agent, "Go.", journal=PostgresJournal(store, lease))
        ended.append("worker")

    async with anyio.create_task_group() as group:
        group.start_soon(be_the_worker)
        await begun.wait()
        assert not await store.cancel("run")
        row = await found(store, "run")
        assert (row.status, row.cancel_requested) == ("running", True)
    assert ended == ["body", "worker"]
    row = await found(store, "run")
    assert (row.status, row.held_until) == ("cancelled", None)


async def test_a_cancelled_run_whose_worker_died_stays_cancelled(store: PostgresStore) -> None:
    """Its lease passes; who asks for it next is told."""
    lease = Lease(store.connections, "run", "dead", 0.2)
    await lease.take()
    await PostgresJournal(store, lease).append([b'{"kind":"run_started","path":[],"agent":"a","at":1.0}'])
    assert not await store.cancel("run", by="bob")
    while (await found(store, "run")).held_until is not None:  # noqa: ASYNC110 - time passes, and tells nobody
        await anyio.sleep(0.02)
    with pytest.raises(RunCancelled, match="by bob"):
        async with store.lease("run"):
            pass
    assert (await found(store, "run")).status == "cancelled"


async def test_a_run_that_is_cancelled_before_it_begins_is_listed_as_that(store: PostgresStore) -> None:
    """Once its worker has died: the lease was all there was of it."""
    await Lease(store.connections, "run", "dead", 0.1).take()
    assert not await store.cancel("run", by="bob")
    await anyio.sleep(0.15)
    with pytest.raises(RunCancelled, match="by bob"):
        async with store.lease("run"):
            pass
    assert (await found(store, "run")).status == "cancelled"


async def test_what_is_not_there_is_said(store: PostgresStore) -> None:
    """By every call that changes a run."""
    for work in (store.cancel, store.retry, store.delete):
        with pytest.raises(StateError, match="the database holds no run 'x'"):
            await work("x")


# ---------------------------------------------------------------------------------------------- trying again


@pytest.mark.parametrize("key", [None, KEY])
async def test_a_failed_run_asks_its_model_again(store: PostgresStore, key: bytes | None) -> None:
    """What had settled isn't done again, and every reader of the journal finds it whole."""
    done: list[str] = []

    @tool
    async def look() -> str:
        """Look."""
        done.append("look")
        return "seen"

    def journal() -> PostgresJournal:
        return PostgresJournal(store, "run", key=key)

    config = RunConfig(tool_not_found_behavior="raise")
    agent = script_agent("a", call("look", {}), call("nonsense", {}), say("Seen."), tools=[look])
    with pytest.raises(ModelBehaviorError):
        await Runner.run(agent, "Go.", journal=journal(), run_config=config)
    with pytest.raises(StateError, match="is over: it failed with ModelBehaviorError"):
        await Runner.resume(agent, journal(), run_config=config)
    if key is not None:
        with pytest.raises(JournalError, match="sealed with a key"):
            await store.retry("run")
    await store.retry("run", key=key)
    row = await found(store, "run")
    assert (row.status, row.error) == ("running", None)
    with pytest.raises(StateError, match="needs no retry, since it hasn't ended"):
        await store.retry("run", key=key)
    result = await Runner.resume(agent, journal(), run_config=config)
    assert (result.final_output, done) == ("Seen.", ["look"])
    assert (await found(store, "run")).status == "completed"
    assert (await RunState.from_journal(agent, journal())).status == "completed"


@pytest.mark.parametrize(("idempotent", "bodies"), [(True, 2), (False, 1)])
async def test_the_call_that_failed_a_run_is_in_doubt_after_a_retry(
    store: PostgresStore, idempotent: bool, bodies: int
) -> None:
    """An idempotent one runs again, with its key; of another one the model is told that its outcome is unknown."""
    done: list[str] = []

    @tool(idempotent=idempotent, failure_error_function=None)
    async def send() -> str:
        """Send."""
        done.append("send")
        if len(done) == 1:
            raise OSError("away")
        return "sent"

    agent = script_agent("a", call("send", {}, call_id="s"), say("Done."), tools=[send])
    with pytest.raises(ToolCallError):
        await Runner.run(agent, "Go.", journal=PostgresJournal(store, "run"))
    assert (await found(store, "run")).error == "ToolCallError"
    await store.retry("run")
    result = await Runner.resume(agent, PostgresJournal(store, "run"))
    assert (result.final_output, len(done)) == ("Done.", bodies)
    assert store.connections.counts.values["in_doubt"] == 2 - bodies


async def test_a_failure_behind_which_something_succeeded_is_not_tried_again(store: PostgresStore) -> None:
    """The success would be forgotten: the run is to be forked. Nothing is changed."""
    kept = anyio.Event()

    @tool(failure_error_function=None)
    async def lose() -> str:
        """Lose."""
        await kept.wait()
        raise OSError("away")

    @tool
    async def keep() -> str:
        """Keep."""
        return "kept"

    class Settled(RunHooks):
        """Lets `lose` fail once `keep` has its outcome."""

        async def on_tool_end(self, *_: Any) -> None:
            """Tell it."""
            kept.set()

    log = MemoryJournal()
    agent = script_agent("a", [call("lose", {}), call("keep", {})], tools=[lose, keep])
    with pytest.raises(ToolCallError):
        await Runner.run(agent, "Go.", journal=log, hooks=Settled())
    lines = await log.read()
    [at] = [n for n, line in enumerate(lines) if b'"call_settled"' in line and b"kept" in line]
    lines.insert(-1, lines.pop(at))
    await PostgresJournal(store, "run").append(lines)
    with pytest.raises(StateError, match="run 'run' can't be tried again: what followed its failure has succeeded"):
        await store.retry("run")
    assert (await found(store, "run")).status == "failed"
    assert await PostgresJournal(store, "run").read() == lines


@pytest.mark.parametrize("key", [None, KEY])
async def test_who_read_a_run_before_its_retry_appends_nothing(store: PostgresStore, key: bytes | None) -> None:
    """A retry writes another line under the same number: one that follows the old one would make the log unreadable."""
    log = MemoryJournal()
    with pytest.raises(ModelBehaviorError):
        await Runner.run(script_agent("a", fail(ModelBehaviorError("odd"))), "Go.", journal=log)
    lines = await log.read()
    kept = count_before_failure(lines, "run")
    journal, reader = PostgresJournal(store, "run", key=key), PostgresJournal(store, "run", key=key)
    await journal.append(lines[:kept])
    await reader.read()
    await journal.append(lines[kept:])
    await store.retry("run", key=key)
    with pytest.raises(JournalError, match="something else has written"):
        await reader.append([NOTE])
    again = PostgresJournal(store, "run", key=key)
    assert await again.read() == lines[:kept]
    await again.append([NOTE])
    assert await PostgresJournal(store, "run", key=key).read() == [*lines[:kept], NOTE]


# ---------------------------------------------------------------------------------------------- deleting


async def test_a_deleted_run_is_gone(store: PostgresStore) -> None:
    """Unless a worker has it. Another run may begin under its name."""
    async with store.lease("run") as lease:
        await PostgresJournal(store, lease).append([NOTE])
        for refused in (store.delete, store.retry):
            with pytest.raises(LeaseHeld, match="cancel it first"):
                await refused("run")
    await store.delete("run")
    assert await PostgresJournal(store, "run").read() == []
    with pytest.raises(StateError, match="no run 'run'"):
        await store.delete("run")


async def test_a_worker_of_a_deleted_run_appends_nothing_to_the_next_one(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both hold the first epoch; and whoever has read the old run can't continue it in the new one."""
    old = Lease(store.connections, "run", "old", 0.2)
    await old.take()
    late = PostgresJournal(store, old)
    await late.append([NOTE])
    reader = PostgresJournal(store, "run")
    await reader.read()
    await anyio.sleep(0.25)
    await store.delete("run")
    async with store.lease("run") as new:
        assert (old.epoch, new.epoch) == (1, 1)
        old.extend(1e12)  # its clock stands still
        with pytest.raises(LeaseLost):
            await late.append([NOTE])
    with pytest.raises(JournalError, match="something else has written"):
        await reader.append([NOTE])
    assert await PostgresJournal(store, "run").read() == []


async def test_old_runs_are_deleted_in_batches(store: PostgresStore, conninfo: str) -> None:
    """Those that ended long enough ago; a row that somebody has locked is left to the next time."""
    import psycopg

    ended = b'{"kind":"run_ended","path":[],"status":"%s","at":1.0}'
    started = b'{"kind":"run_started","path":[],"agent":"a","at":1.0}'
    for n in range(7):
        status = b"interrupted" if n == 0 else b"completed"
        await PostgresJournal(store, f"run{n}").append([started, ended % status])
    assert await store.delete_older(3600) == 0
    with psycopg.connect(conninfo) as other:
        other.execute("SELECT 1 FROM agentloop_leases WHERE run_id = 'run3' FOR UPDATE")
        assert await store.delete_older(0, batch=2) == 5
    assert sorted(row.run_id for row in await store.runs()) == ["run0", "run3"]
    assert await store.delete_older(0, status="interrupted") == 1
    assert await store.delete_older(0) == 1
    left = await store.connections.run(lambda db: db.execute("SELECT count(*) FROM agentloop_journal_lines").fetchone())
    assert left == (0,)


# ---------------------------------------------------------------------------------------------- older tables


async def make_older_tables(conninfo: str, monkeypatch: pytest.MonkeyPatch, runs: dict[str, list[bytes]]) -> None:
    """Make the tables of version 1 with the journals of *runs*, as that version wrote them."""
    monkeypatch.setattr(connections_module, "MIGRATIONS", connections_module.MIGRATIONS[:1])
    async with PostgresStore(conninfo) as older:
        for run_id, records in runs.items():
            await older.connections.run(partial(write_as_before, run_id=run_id, records=records))
        await older.connections.run(lambda db: db.execute("SELECT 1"))
    monkeypatch.undo()


def write_as_before(db: Any, run_id: str, records: list[bytes], first: int = 0) -> None:
    """Append *records* behind the first so many as version 1 did, which writes no row."""
    db.execute("INSERT INTO agentloop_leases (run_id) VALUES (%s) ON CONFLICT DO NOTHING", (run_id,))
    lines, _ = write_batch(records, START, kept=0, now=1.0, seal=Seal(None))
    for n, line in enumerate(lines[first:], first):
        db.execute("INSERT INTO agentloop_journal_lines VALUES (%s, %s, %s)", (run_id, n, line[:-1]))


async def test_runs_of_older_tables_are_listed_after_a_migration(
    conninfo: str, monkeypatch: pytest.MonkeyPatch, anyio_backend: Any
) -> None:
    """They are continued all the same, and an append writes the row, too."""
    log = MemoryJournal()
    await Runner.run(payer(), "Pay.", journal=log)
    lines = await log.read()
    await make_older_tables(conninfo, monkeypatch, {"a": lines, "b": lines, "c": lines[:2], "d": []})
    async with PostgresStore(conninfo) as store:
        assert await store.runs() == []
        await PostgresJournal(store, "b").approve("p")
        assert [(row.run_id, row.waiting) for row in await store.runs()] == [("b", ())]
        assert await store.migrate(batch=2) == 3
        rows = {row.run_id: (row.status, len(row.waiting)) for row in await store.runs()}
        assert rows == {"a": ("interrupted", 1), "b": ("interrupted", 0), "c": ("running", 0)}
        assert await store.migrate() == 0
        # A statement looks at so many rows, also where none of them is behind: all at once would take too long.
        assert await store.connections.run(partial(update_batch, after="", most=2)) == ("b", 0)
        assert await store.connections.run(partial(update_batch, after="d", most=2)) == (None, 0)
        # A worker of the older version continues what has a row already.
        await store.connections.run(partial(write_as_before, run_id="c", records=lines, first=2))
        assert await store.migrate() == 1
        assert (await found(store, "c")).status == "interrupted"
        assert abs((await found(store, "c")).since - time.time()) < 600


async def test_what_an_older_version_completed_is_not_cancelled(
    conninfo: str, monkeypatch: pytest.MonkeyPatch, anyio_backend: Any
) -> None:
    """Its workers write no row, so the journal says it; a migration then writes the row."""
    log = MemoryJournal()
    await Runner.run(script_agent("a", say("Done.")), "Go.", journal=log)
    lines = await log.read()
    await make_older_tables(conninfo, monkeypatch, {"over": lines, "under way": lines[:-1], "empty": []})
    async with PostgresStore(conninfo) as store:
        for _ in range(2):
            with pytest.raises(StateError, match="run 'over' is over: it has completed"):
                await store.cancel("over")
            assert await store.migrate() in (0, 3)
        assert (await found(store, "over")).status == "completed"
        assert await store.cancel("under way")
        assert await store.cancel("empty")


async def test_a_role_that_may_not_change_tables_works_once_they_are_there(
    conninfo: str, server: Server, monkeypatch: pytest.MonkeyPatch, anyio_backend: Any
) -> None:
    """Until then the error names the command; the deploy's role runs it."""
    import psycopg

    await make_older_tables(conninfo, monkeypatch, {})
    schema = conninfo.rpartition("=")[2].strip("'")
    name = f"worker_{schema}"
    with psycopg.connect(server.conninfo, autocommit=True) as db:
        db.execute(f"CREATE ROLE {name} LOGIN")
        db.execute(f"GRANT USAGE ON SCHEMA {schema} TO {name}")
        grants = f"SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema}"
        db.execute(f"GRANT {grants} TO {name}")
    async with PostgresStore(conninfo.replace("user=postgres", f"user={name}")) as worker:
        known = len(connections_module.MIGRATIONS)
        with pytest.raises(StateError, match=f"version {known}, and this role may not make them: run `agentloop runs"):
            await worker.runs()
        async with PostgresStore(conninfo) as owner:
            assert await owner.migrate() == 0
        await wait_for_pay(worker, "run")
        assert len(await worker.waiting()) == 1
        assert await worker.migrate() == 0
        await worker.cancel("run")
        await worker.delete("run")
        await worker.connections.run(lambda db: db.execute("UPDATE agentloop_schema SET version = 9"))
    async with PostgresStore(conninfo.replace("user=postgres", f"user={name}")) as older:
        with pytest.raises(StateError, match=f"tables of version 9, of a later agentloop; this one knows {known}"):
            await older.runs()


# ---------------------------------------------------------------------------------------------- health


async def test_health_says_what_is_held_and_what_waits(store: PostgresStore) -> None:
    """And counts what the store has done."""
    await wait_for_pay(store, "run")
    async with store.lease("other"):
        health = await store.health()
    assert (health.error, health.leases, health.late, health.connections) == (None, 1, 0, 4)
    assert (health.runs, health.waiting) == ({"interrupted": 1}, 1)
    assert 0.0 <= health.oldest["interrupted"] < 60.0
    counts = store.connections.counts.values
    assert counts == {"appends": 2, "leases": 2, "take_overs": 0, "leases_lost": 0, "in_doubt": 0}
    dead = Lease(store.connections, "late", "dead", 0.1)
    await dead.take()
    await anyio.sleep(0.15)
    async with store.lease("late"):
        assert counts["take_overs"] == 1
    assert {"interrupted", "running"} >= set(store.ask_health().runs)
    await store.aclose()
    assert (await store.health()).error == "the PostgresStore is closed"


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda store: store.runs(status="open"), "status: expected one of 'queued', "),
        (lambda store: store.runs(status=[]), "status: expected one of 'queued', "),
        (lambda store: store.runs(older_than=-1), "older_than: expected a finite number"),
        (lambda store: store.runs(agent=3), "agent: expected text"),
        (lambda store: store.waiting(limit=0), "limit: expected at least 1"),
        (
            lambda store: store.runs(after="run-1"),
            "after: expected the `cursor` of a StoredRun, SINCE:RUN, got 'run-1'",
        ),
        (lambda store: store.waiting(after="nan:run-1"), "after: expected the `cursor` of a StoredRun"),
        (lambda store: store.runs(after=3), "after: expected text"),
        (lambda store: store.find(""), "run_id: expected text that isn't empty"),
        (lambda store: store.cancel("run", by=""), "by: may not be empty"),
        (lambda store: store.retry("run", key="k"), "key: expected bytes"),
        (lambda store: store.delete(3), "run_id: expected text"),
        (lambda store: store.delete_older("1d"), "older_than: expected seconds as a number"),
        (lambda store: store.delete_older(1, batch=0), "batch: expected at least 1"),
    ],
)
async def test_wrong_arguments_are_named(ask: Any, said: str, anyio_backend: Any) -> None:
    """Before the database is asked."""
    store = PostgresStore("host=127.0.0.1 port=1 user=x")
    with pytest.raises(UserError, match=said):
        await ask(store)
    wrong: list[dict[str, Any]] = [{"worker": ""}, {"application": 3}]
    for options in wrong:
        with pytest.raises(UserError):
            PostgresStore("x", **options)


async def test_what_the_page_shows_an_operator_runs(store: PostgresStore, capsys: pytest.CaptureFixture[str]) -> None:
    """Its second example, with a run that has the name it uses."""
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "postgres.md").read_text(encoding="utf-8")
    _, shown = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    await wait_for_pay(store, "run-7")
    scope: dict[str, Any] = {"store": store}
    exec(f"async def operate():\n{textwrap.indent(shown, '    ')}", scope)
    await scope["operate"]()
    assert (await store.runs(), capsys.readouterr().out) == ([], "")
