"""Outboxes: intents are written with the records of their calls, and delivered, at whatever moment a process dies."""

import asyncio
import itertools
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import anyio
import pytest
from kit.agents import script_turns
from kit.ending import Rendezvous
from kit.secret_cases import ReversingCodec

from agentloop import Agent, RunConfig, Runner, ToolContext, tool
from agentloop._common.digests import idempotency_key
from agentloop.exceptions import AgentLoopError, JournalError, StateError, UserError, UserTypeError, UserValueError
from agentloop.journal import MemoryJournal
from agentloop.postgres import Intent, LeaseLost, PostgresJournal, PostgresOutbox, PostgresStore
from agentloop.postgres import _deliveries as deliveries_module
from agentloop.postgres import _intent_rows as rows_module
from agentloop.postgres._intents import RunIntents, WaitingIntent
from agentloop.testing import call, say

pytestmark = [pytest.mark.real_clock, pytest.mark.timeout(120)]
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "outbox.md"
NEVER = 3600.0
"""A poll that no test waits for: what comes before it came by a notification."""


def clerk_of(outbox: PostgresOutbox, *turns: Any, key: str | None = None, **options: Any) -> Agent[Any, Any]:
    """Return an agent that follows *turns*; its tool `refund` adds an intent, under *key* and the order if given."""

    @tool(in_doubt="rerun", **options)
    async def refund(ctx: ToolContext[Any], order: int) -> str:
        """Refund an order."""
        chosen = None if key is None else f"{key} {order}"
        earlier = await outbox.add(ctx, {"order": order, "cents": 500}, key=chosen)
        return "new" if earlier is None else f"{earlier.status}: {earlier.receipt}"

    return Agent("clerk", model=script_turns(*turns, say("done")), tools=[refund])


async def run(store: PostgresStore, agent: Agent[Any, Any], run_id: str = "run", **options: Any) -> Any:
    """Begin or continue a run under a lease, and return its result."""
    async with store.lease(run_id) as lease:
        journal = PostgresJournal(store, lease)
        if await journal.read():
            return await Runner.resume(agent, journal, **options)
        return await Runner.run(agent, "go", journal=journal, **options)


@asynccontextmanager
async def delivering(deliver: Callable[..., Any], work: Any, **options: Any) -> AsyncIterator[None]:
    """Have `deliver`, or `apply`, work for a block; it is over when everything that was begun has ended."""
    async with anyio.create_task_group() as group:
        options = {"poll": 0.02, "pause": 0.01, **options}
        await group.start(
            partial(deliver, work, **options, **({"grace": 0.0} if "deliver" in deliver.__name__ else {}))
        )
        try:
            yield
        finally:
            group.cancel_scope.cancel()


async def until(outbox: PostgresOutbox, fits: Callable[[list[Intent]], bool]) -> list[Intent]:
    """Return the intents of *outbox* once they are so."""
    with anyio.fail_after(60):
        while not fits(found := await outbox.intents()):  # noqa: ASYNC110 - the rows are in the database
            await anyio.sleep(0.01)
    return found


def none_due(intents: list[Intent]) -> bool:
    """Tell whether everything is delivered or dead."""
    return all(intent.status != "due" for intent in intents)


async def query(store: PostgresStore, text: str) -> list[Any]:
    """Return the rows that *text* finds or changes; none of a statement without."""

    def ask(connection: Any) -> list[Any]:
        done = connection.execute(text)
        return [] if done.description is None else list(done.fetchall())

    return await store.connections.run(ask)


async def key_of(store: PostgresStore, run_id: str, call_id: str) -> str:
    """Return the key of a call of the run, by its log."""
    records = map(json.loads, await PostgresJournal(store, run_id).read())
    (start,) = [record for record in records if record.get("kind") == "run_started" and not record["path"]]
    return idempotency_key(start["run_id"], (), call_id)


async def add_directly(store: PostgresStore, outbox: PostgresOutbox, *orders: int) -> None:
    """Have a run add an intent for each of *orders*, under the key of its number."""
    calls = [call("refund", {"order": order}, call_id=f"c{order}") for order in orders]
    await run(store, clerk_of(outbox, calls, key="order"), f"run of {orders}")


# ---------------------------------------------------------------------------------------------- from a run


async def test_an_intent_is_delivered_under_the_key_of_its_call(store: PostgresStore) -> None:
    """At once, by a notification; its receipt is kept, and the key is that of the call."""
    outbox, got = PostgresOutbox(store, "refunds"), list[Intent]()

    async def handler(intent: Intent) -> dict[str, Any]:
        got.append(intent)
        return {"id": "r1"}

    async with delivering(outbox.deliver, handler, poll=NEVER):
        result = await run(store, clerk_of(outbox, call("refund", {"order": 7}, call_id="c")))
        (intent,) = await until(outbox, lambda intents: bool(intents) and none_due(intents))
    assert result.final_output == "done"
    (sent,) = got
    assert (sent.key, sent.payload, sent.attempts) == (intent.key, {"order": 7, "cents": 500}, 1)
    assert intent.key == await key_of(store, "run", "c")
    assert (intent.status, intent.receipt, intent.trouble, intent.run_id) == ("delivered", {"id": "r1"}, None, "run")
    assert await outbox.find(intent.key) == intent
    assert await outbox.find("other") is None
    assert await PostgresOutbox(store, "others").intents() == []
    assert "500" not in repr(intent)
    assert repr(outbox) == "PostgresOutbox('refunds')"


async def test_the_commit_of_an_intent_notifies(store: PostgresStore, conninfo: str) -> None:
    """And that of an append without one doesn't."""
    import psycopg

    outbox, heard = PostgresOutbox(store, "refunds"), list[str]()

    def look(connection: Any) -> int:
        connection.execute("SELECT 1")  # what has come by now is handled
        return len(heard)

    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.add_notify_handler(lambda notice: heard.append(notice.channel))
        connection.execute("LISTEN agentloop_outbox")
        await run(store, Agent("a", model=script_turns(say("done"))), "without")
        assert look(connection) == 0
        await add_directly(store, outbox, 1)
        assert look(connection) == 1
    assert heard == ["agentloop_outbox"]


async def test_no_intent_is_there_before_the_body_has_returned(store: PostgresStore) -> None:
    """It comes with the record of the end: not while the body works, and not in another transaction."""
    outbox, seen = PostgresOutbox(store, "refunds"), list[int]()

    @tool
    async def refund(ctx: ToolContext[Any]) -> str:
        """Refund."""
        await outbox.add(ctx, 1)
        seen.append(len(await outbox.intents()))
        return "ok"

    @tool
    async def look() -> str:
        """Look."""
        seen.append(len(await outbox.intents()))
        return "ok"

    model = script_turns(call("refund"), call("look"), say("done"))
    await run(store, Agent("a", model=model, tools=[refund, look]))
    assert seen == [0, 1]


async def test_a_body_that_gives_no_value_leaves_no_intent(store: PostgresStore) -> None:
    """One that raises, is cut by its timeout, cancelled, or returns what can't be an output."""
    outbox = PostgresOutbox(store, "refunds")

    @tool
    async def fails(ctx: ToolContext[Any]) -> str:
        """Fail."""
        await outbox.add(ctx, 1)
        raise ValueError("no")

    @tool(timeout=0.05)
    async def hangs(ctx: ToolContext[Any]) -> str:
        """Hang."""
        await outbox.add(ctx, 2)
        await anyio.sleep_forever()
        return ""

    @tool
    async def cancels(ctx: ToolContext[Any]) -> str:
        """Cancel itself."""
        await outbox.add(ctx, 3)
        ctx.cancel_call(ctx.tool_call_id)
        await anyio.sleep_forever()
        return ""

    @tool
    async def value(ctx: ToolContext[Any]) -> dict[str, Any]:
        """Return a value that isn't text, which has a record of its own."""
        await outbox.add(ctx, 4)
        return {"a": 1}

    calls = [call("fails"), call("hangs"), call("cancels"), call("value")]
    agent = Agent("a", model=script_turns(calls, say("done")), tools=[fails, hangs, cancels, value])
    await run(store, agent)
    assert [intent.payload for intent in await outbox.intents()] == [4]


async def test_a_value_that_may_end_the_run_and_a_nested_call_have_intents(store: PostgresStore) -> None:
    """Their records are other ones: the end of a body apart, and the call of a run within the run."""
    outbox = PostgresOutbox(store, "refunds")

    @tool
    async def value(ctx: ToolContext[Any]) -> dict[str, Any]:
        """Return a value."""
        await outbox.add(ctx, "outer")
        return {"a": 1}

    inner = clerk_of(outbox, call("refund", {"order": 1}, call_id="c"), key="inner")
    tools = [value, inner.as_tool("ask", "Ask.")]
    model = script_turns(call("ask", {"input": "go"}, call_id="c"), call("value"))
    result = await run(store, Agent("a", model=model, tools=tools, tool_use_behavior="stop_on_first_tool"))
    assert result.status == "completed"
    # The first tool's output ends the run: the nested one's.
    assert [intent.key for intent in await outbox.intents()] == ["inner 1"]
    model = script_turns(call("value"))
    await run(store, Agent("a", model=model, tools=tools, tool_use_behavior="stop_on_first_tool"), "run2")
    assert {intent.payload for intent in await outbox.intents() if intent.key != "inner 1"} == {"outer"}


async def test_an_equal_key_of_another_run_is_answered_by_the_first_one(store: PostgresStore) -> None:
    """Before it is delivered by its status, and after that by its receipt; it is delivered once."""
    outbox, got = PostgresOutbox(store, "refunds"), list[str]()

    def handler(intent: Intent) -> str:
        got.append(intent.key)
        return "r1"

    answers = []
    for number in range(3):
        if number == 2:
            async with delivering(outbox.deliver, handler):
                await until(outbox, none_due)
        agent = clerk_of(outbox, call("refund", {"order": 7}), key="order")
        result = await run(store, agent, f"run{number}")
        answers.append(result.new_items[1].output)
    assert answers == ["new", "due: None", "delivered: r1"]
    async with delivering(outbox.deliver, handler):
        await until(outbox, none_due)
    assert got == ["order 7"]
    (intent,) = await outbox.intents()
    assert intent.run_id == "run0"


async def test_of_two_runs_that_add_a_key_at_once_one_writes_it(store: PostgresStore) -> None:
    """Both bodies find nothing; the second append leaves the first one's intent, and both runs complete."""
    outbox, both = PostgresOutbox(store, "refunds"), Rendezvous(2)

    @tool
    async def refund(ctx: ToolContext[Any]) -> str:
        """Refund."""
        assert await outbox.add(ctx, ctx.context, key="b") is None
        assert await outbox.add(ctx, ctx.context, key="a") is None
        await both.wait()
        return "ok"

    agent = Agent("a", model=script_turns(call("refund"), say("done")), tools=[refund])
    async with anyio.create_task_group() as group:
        for number in range(2):
            group.start_soon(partial(run, store, agent, f"run{number}", context=number))
    found = await outbox.intents()
    assert [intent.key for intent in found] == ["a", "b"]
    assert len({intent.payload for intent in found}) == 1
    assert [row.status for row in await store.runs()] == ["completed"] * 2


async def test_a_worker_that_lost_its_lease_writes_no_intent(store: PostgresStore) -> None:
    """The fence is that of the append."""
    outbox = PostgresOutbox(store, "refunds")

    @tool
    async def refund(ctx: ToolContext[Any]) -> str:
        """Refund, while another worker takes the run over."""
        await outbox.add(ctx, 1)
        await query(store, "UPDATE agentloop_leases SET epoch = epoch + 1, holder = 'other'")
        return "ok"

    agent = Agent("a", model=script_turns(call("refund"), say("done")), tools=[refund])
    with pytest.raises(LeaseLost):
        await run(store, agent)
    assert await outbox.intents() == []


@pytest.mark.parametrize("at", ["after the body", "in a task that the body left behind"])
async def test_an_intent_of_a_body_that_has_ended_is_refused(store: PostgresStore, at: str) -> None:
    """Nothing would write it. The one that asks first, and comes back when the body has returned, is refused, too."""
    outbox, kept, go, said = PostgresOutbox(store, "refunds"), list[Any](), anyio.Event(), list[str]()

    async def add_late(ctx: ToolContext[Any]) -> None:
        with pytest.raises(UserError) as refused:
            await outbox.add(ctx, 1, key="late")
        said.append(str(refused.value))
        go.set()

    @tool
    async def leave(ctx: ToolContext[Any]) -> str:
        """Leave a context behind."""
        kept.append(ctx)
        return "ok"

    @tool
    async def look() -> str:
        """Let the other one add."""
        if at == "after the body":
            await add_late(kept[0])
        else:
            group.start_soon(add_late, kept[0])
            await go.wait()
        return "ok"

    async with anyio.create_task_group() as group:
        agent = Agent(
            "a", model=script_turns(call("leave", call_id="c"), call("look"), say("done")), tools=[leave, look]
        )
        await run(store, agent)
    assert len(said) == 1
    assert "the body of call 'c' has ended" in said[0]
    assert await outbox.intents() == []


async def test_a_key_that_no_index_takes_is_refused_in_the_body(store: PostgresStore) -> None:
    """Where it's only too long for the database, the run couldn't be continued; the longest one is delivered."""
    letters = "".join(chr(0x10000 + number * 7919 % 0x10000) for number in range(600))
    outbox, said = PostgresOutbox(store, letters[:100]), list[str]()

    @tool
    async def refund(ctx: ToolContext[Any]) -> str:
        """Refund."""
        with pytest.raises(UserValueError) as refused:
            await outbox.add(ctx, 1, key=letters[:501])
        said.append(str(refused.value))
        await outbox.add(ctx, 1, key=letters[:500])
        return "ok"

    await run(store, Agent("a", model=script_turns(call("refund"), say("done")), tools=[refund]))
    assert said == ["key: expected at most 500 characters"]
    async with delivering(outbox.deliver, lambda intent: None):
        (done,) = await until(outbox, none_due)
    assert done.key == letters[:500]
    with pytest.raises(UserValueError, match="name: expected at most 100 characters"):
        PostgresOutbox(store, letters[:101])


# ---------------------------------------------------------------------------------------------- crashes


class Crash:
    """Ends the process at statement *at*: it and all later ones raise, before the database has it or *after* that."""

    def __init__(self, at: int, when: Literal["before", "after"]) -> None:
        self.left = at
        self.when = when
        self.dead = False

    def arm(self, patch: pytest.MonkeyPatch) -> None:
        """Count the statements of all connections from now on."""
        import psycopg

        execute = psycopg.Connection.execute

        class Died(psycopg.InterfaceError):  # type: ignore[misc,name-defined,unused-ignore]  # without psycopg it is Any
            """What a statement of a dead process raises: nothing tries it again."""

        def counted(connection: Any, *args: Any, **options: Any) -> Any:
            if self.dead:
                raise Died("dead")
            self.left -= 1
            self.dead = self.left == 0
            if self.dead and self.when == "before":
                raise Died("dead")
            done = execute(connection, *args, **options)
            if self.dead:
                raise Died("dead")
            return done

        patch.setattr(psycopg.Connection, "execute", counted)


def lives(when: Literal["before", "after"]) -> Iterator[Crash]:
    """Yield a crash at the first statement, at the second, and so on, until a life has ended without one."""
    for at in itertools.count(1):
        crash = Crash(at, when)
        yield crash
        if not crash.dead:
            assert at > 5
            return


async def pass_time(store: PostgresStore) -> None:
    """Let the leases and the attempts of a dead process be over."""
    await query(store, "UPDATE agentloop_leases SET ends_at = NULL")
    await query(store, "UPDATE agentloop_outbox SET due_at = clock_timestamp() WHERE due_at IS NOT NULL")


async def live(conninfo: str, crash: Crash, do: Callable[[PostgresStore], Any]) -> None:
    """Do *do* in a process of its own, with one connection, that dies by *crash*."""
    async with PostgresStore(conninfo, connections=1) as store:
        await store.health()  # its connection and its tables are made
        with pytest.MonkeyPatch.context() as patch:
            crash.arm(patch)
            try:
                await do(store)
            except JournalError:
                assert crash.dead


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.scenario("DU-08")
async def test_a_run_that_crashes_at_any_statement_has_each_intent_once(
    conninfo: str, store: PostgresStore, when: Literal["before", "after"]
) -> None:
    """A call under its own key, one under an application's, one that fails: each body that returned has one intent."""
    number = itertools.count()

    def agent_of(outbox: PostgresOutbox) -> Agent[Any, Any]:
        @tool(in_doubt="rerun")
        async def fails(ctx: ToolContext[Any]) -> str:
            """Fail."""
            await outbox.add(ctx, "never")
            raise ValueError("no")

        turn = [call("refund", {"order": 1}, call_id="a"), call("fails", call_id="b")]
        clerk = clerk_of(outbox, turn, call("refund", {"order": 2}, call_id="c"))
        return Agent("clerk", model=clerk.model, tools=[*clerk.tools, fails])

    for crash in lives(when):
        run_id = f"run{next(number)}"

        async def do(store: PostgresStore, run_id: str = run_id) -> None:
            await run(store, agent_of(PostgresOutbox(store, run_id)), run_id)

        await live(conninfo, crash, do)
        await pass_time(store)
        outbox = PostgresOutbox(store, run_id)
        result = await run(store, agent_of(outbox), run_id)
        assert result.status == "completed"
        intents = await outbox.intents()
        keys = {await key_of(store, run_id, name): order for name, order in (("a", 1), ("c", 2))}
        assert {intent.key: intent.payload["order"] for intent in intents} == keys, f"statement {crash.left}"


@pytest.mark.parametrize("how", ["deliver", "apply"])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.scenario("DU-08")
async def test_a_dispatcher_that_crashes_at_any_statement_delivers_each_intent(
    conninfo: str, store: PostgresStore, when: Literal["before", "after"], how: str
) -> None:
    """A receiver that honours keys, and a function in the database, have each key once; neither loses one."""
    await query(store, "CREATE TABLE received (key text, calls bigint)")
    number = itertools.count()
    called = Counter[str]()

    def handler(intent: Intent) -> str:
        called[intent.key] += 1
        return "r"

    def function(intent: Intent, connection: Any) -> str:
        called[intent.key] += 1
        connection.execute("INSERT INTO received VALUES (%s, 1)", (intent.key,))
        return "r"

    keys = set[str]()
    for crash in lives(when):
        order = next(number)
        await add_directly(store, PostgresOutbox(store, "refunds"), order)
        keys.add(f"order {order}")

        async def do(store: PostgresStore) -> None:
            outbox = PostgresOutbox(store, "refunds")
            work: Any = (outbox.deliver, handler) if how == "deliver" else (outbox.apply, function)
            async with delivering(*work, poll=NEVER):
                await until(outbox, none_due)

        try:
            await live(conninfo, crash, do)
        except* JournalError:
            assert crash.dead
        await pass_time(store)
        await live(conninfo, Crash(0, when), do)
    intents = await PostgresOutbox(store, "refunds").intents()
    assert {intent.key: (intent.status, intent.receipt) for intent in intents} == dict.fromkeys(
        keys, ("delivered", "r")
    )
    assert set(called) == keys
    if how == "apply":
        rows = await query(store, "SELECT key, sum(calls) FROM received GROUP BY key")
        assert dict(rows) == dict.fromkeys(keys, 1)
    else:
        assert max(called.values()) == 2, "at least once: none was called again between handler and receipt"


def test_a_new_start_of_a_call_drops_what_an_earlier_attempt_has_added() -> None:
    """Also under an id that has half a surrogate pair, as models make them."""
    waiting, name = RunIntents("r"), "c\ud800"
    key = idempotency_key("r", (), name)
    start, end = (
        f'{{"kind":"{kind}","path":[],"call_id":"c\\ud800","outcome":{{"status":"succeeded"}}}}'.encode()
        for kind in ("call_settled", "call_settled")
    )
    start = start.replace(b"call_settled", b"call_started").replace(b',"outcome":{"status":"succeeded"}', b"")
    waiting.add(key, WaitingIntent("o", "k", "1", "1"))
    assert waiting.decide([start]) == ([], [key])
    waiting.forget([key])
    waiting.add(key, WaitingIntent("o", "k", "2", "2"))
    waiting.add(key, WaitingIntent("o", "k", "2", "2"))
    with pytest.raises(UserValueError, match="give each intent of a call a key of its own"):
        waiting.add(key, WaitingIntent("o", "k", "3", "3"))
    assert waiting.decide([b'{"kind":"note"}', end]) == ([WaitingIntent("o", "k", "2", "2")], [key])


# ---------------------------------------------------------------------------------------------- the dispatcher


async def test_a_handler_that_fails_is_called_again_until_it_is_dead(
    store: PostgresStore, caplog: pytest.LogCaptureFixture
) -> None:
    """With the reason of the last attempt; put back, it has all its attempts again."""
    outbox, attempts = PostgresOutbox(store, "refunds"), list[int]()
    await add_directly(store, outbox, 1)

    async def handler(intent: Intent) -> None:
        attempts.append(intent.attempts)
        if len(attempts) < 6:
            raise ConnectionError("the bank is closed")

    async with delivering(outbox.deliver, handler, attempts=3):
        (dead,) = await until(outbox, none_due)
        assert (dead.status, dead.attempts, dead.trouble) == ("dead", 3, "ConnectionError(the bank is closed)")
        assert await outbox.intents("dead") == [dead]
        assert "'order 1' is dead after attempt 3: ConnectionError(the bank is closed)" in caplog.text
        await outbox.retry("order 1")
        (done,) = await until(outbox, none_due)
    assert (done.status, done.attempts, done.trouble, done.receipt) == ("delivered", 3, None, None)
    assert attempts == [1, 2, 3, 1, 2, 3]
    with pytest.raises(StateError, match="since it is delivered: only dead ones can"):
        await outbox.retry("order 1")
    with pytest.raises(StateError, match="the database holds no such intent"):
        await outbox.retry("order 2")


@pytest.mark.parametrize("how", ["deliver", "apply"])
async def test_words_of_an_error_that_no_column_takes_are_replaced(store: PostgresStore, how: str) -> None:
    """A NUL, and half a character: the attempt is written down as any other, and the dispatcher goes on."""
    outbox = PostgresOutbox(store, "refunds")
    await add_directly(store, outbox, 1, 2)
    words = {"order 1": "a\0b", "order 2": "a\ud800b"}

    def fail(intent: Intent, connection: Any = None) -> None:
        raise ValueError(words[intent.key])

    async with delivering(getattr(outbox, how), fail, attempts=2):
        found = await until(outbox, none_due)
    assert [(intent.status, intent.attempts, intent.trouble) for intent in found] == [
        ("dead", 2, "ValueError(a?b)")
    ] * 2


async def test_a_store_that_is_closed_ends_the_dispatcher(conninfo: str) -> None:
    """By the error of every use of such a store, in no group."""
    store = PostgresStore(conninfo)
    async with anyio.create_task_group() as group:

        async def deliver(task_status: Any) -> None:  # noqa: ASYNC128 - the outbox calls it
            with pytest.raises(UserError, match="the PostgresStore is closed"):
                await PostgresOutbox(store, "refunds").deliver(lambda intent: None, poll=0.01, task_status=task_status)

        await group.start(deliver)
        await store.aclose()


async def test_a_handler_that_hangs_is_cut(store: PostgresStore) -> None:
    """Its attempt has failed, and others go on beside it."""
    outbox = PostgresOutbox(store, "refunds")
    await add_directly(store, outbox, 1, 2)

    async def handler(intent: Intent) -> str:
        if intent.key == "order 1" and intent.attempts == 1:
            await anyio.sleep_forever()
        return "ok"

    async with delivering(outbox.deliver, handler, timeout=0.05):
        found = await until(outbox, none_due)
    assert {intent.key: (intent.status, intent.attempts) for intent in found} == {
        "order 1": ("delivered", 2),
        "order 2": ("delivered", 1),
    }
    async with delivering(outbox.deliver, lambda intent: anyio.sleep_forever(), timeout=0.05, attempts=1):
        await add_directly(store, outbox, 3)
        await until(outbox, lambda intents: any(intent.status == "dead" for intent in intents))
    (dead,) = await outbox.intents("dead")
    assert dead.trouble == "the handler took longer than 0.05 s"


async def test_an_attempt_under_way_ends_in_the_grace(store: PostgresStore) -> None:
    """It is delivered; nothing new is taken once the dispatcher is cancelled."""
    outbox, begun, go = PostgresOutbox(store, "refunds"), anyio.Event(), anyio.Event()
    await add_directly(store, outbox, 1)

    async def handler(intent: Intent) -> str:
        begun.set()
        await go.wait()
        return "in the grace"

    async def deliver(task_status: Any) -> None:
        with scope:  # noqa: ASYNC912 - it waits for the test
            task_status.started()
            await outbox.deliver(handler, grace=NEVER, poll=NEVER)

    scope = anyio.CancelScope()
    async with anyio.create_task_group() as group:
        await group.start(deliver)
        await begun.wait()
        scope.cancel()
        await add_directly(store, outbox, 2)
        go.set()
    found = {intent.key: (intent.status, intent.attempts) for intent in await outbox.intents()}
    assert found == {"order 1": ("delivered", 1), "order 2": ("due", 0)}


async def test_an_attempt_that_the_grace_cuts_is_given_back(store: PostgresStore) -> None:
    """At once, and uncounted: a deploy uses up no attempts."""
    outbox, begun = PostgresOutbox(store, "refunds"), anyio.Event()
    await add_directly(store, outbox, 1)

    async def handler(intent: Intent) -> None:
        begun.set()
        await anyio.sleep_forever()

    async with delivering(outbox.deliver, handler):
        await begun.wait()
    (intent,) = await outbox.intents()
    assert (intent.status, intent.attempts) == ("due", 0)
    async with delivering(outbox.deliver, lambda intent: None):
        await until(outbox, none_due)


@pytest.mark.parametrize("first", [True, False], ids=["the first", "a later one"])
async def test_intents_that_are_taken_while_the_dispatcher_is_cancelled_are_given_back(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch, first: bool
) -> None:
    """At once, uncounted, and no handler is called."""
    outbox, got, scope = PostgresOutbox(store, "refunds"), list[str](), anyio.CancelScope()
    claim = rows_module.claim

    def cancel(connection: Any, *given: Any) -> Any:
        found = claim(connection, *given)
        if found:
            anyio.from_thread.run_sync(scope.cancel)
        return found

    async def deliver(task_status: Any) -> None:
        with scope:  # noqa: ASYNC912 - it waits for the test
            await outbox.deliver(lambda intent: got.append(intent.key), poll=NEVER, task_status=task_status)
        if first:
            task_status.started()

    monkeypatch.setattr(rows_module, "claim", cancel)
    async with anyio.create_task_group() as group:
        if first:
            await add_directly(store, outbox, 1)
        await group.start(deliver)
        if not first:
            await add_directly(store, outbox, 1)
    (intent,) = await outbox.intents()
    assert (intent.status, intent.attempts, got) == ("due", 0, [])
    monkeypatch.undo()
    async with delivering(outbox.deliver, lambda intent: None):
        await until(outbox, none_due)


async def test_intents_whose_taking_was_not_answered_are_found(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection was lost behind the statement: the next one asks what it has taken, and no attempt is lost."""
    import psycopg

    outbox, lost = PostgresOutbox(store, "refunds"), list[int]()
    await add_directly(store, outbox, 1)
    claim = rows_module.claim

    def lose(connection: Any, *given: Any) -> Any:
        found = claim(connection, *given)
        if found and not lost:
            lost.append(1)
            connection.close()
            raise psycopg.OperationalError("lost")
        return found

    monkeypatch.setattr(rows_module, "claim", lose)
    async with delivering(outbox.deliver, lambda intent: None):
        (done,) = await until(outbox, none_due)
    assert (done.status, done.attempts, lost) == ("delivered", 1, [1])


async def test_two_dispatchers_share_an_outbox(store: PostgresStore, conninfo: str) -> None:
    """No intent is with both."""
    outbox, both, got = PostgresOutbox(store, "refunds"), Rendezvous(2), list[tuple[str, int]]()
    await add_directly(store, outbox, *range(8))

    def handler_of(number: int) -> Callable[[Intent], Any]:
        async def handler(intent: Intent) -> None:
            got.append((intent.key, number))
            if len(got) <= 2:
                await both.wait()  # each has room for one: the other one is with the other dispatcher

        return handler

    async with PostgresStore(conninfo) as other:
        one = partial(delivering, concurrency=1)
        second = PostgresOutbox(other, "refunds")
        async with one(outbox.deliver, handler_of(1)), one(second.deliver, handler_of(2)):
            await until(outbox, none_due)
    assert Counter(key for key, _ in got) == {f"order {number}": 1 for number in range(8)}
    assert {number for _, number in got} == {1, 2}


async def test_a_function_and_its_receipt_are_one_transaction(store: PostgresStore) -> None:
    """One that raises leaves nothing, commits nothing by itself, and is tried again."""
    await query(store, "CREATE TABLE ledger (key text PRIMARY KEY)")
    outbox = PostgresOutbox(store, "refunds")
    await add_directly(store, outbox, 1, 2)

    def book(intent: Intent, connection: Any) -> int:
        connection.execute("INSERT INTO ledger VALUES (%s)", (intent.key,))
        if intent.key == "order 2":
            connection.commit()
        if intent.attempts < 3:
            connection.execute("SELECT 1 / 0")
        return intent.attempts

    async with delivering(outbox.apply, book, attempts=3):
        found = {intent.key: intent for intent in await until(outbox, none_due)}
    assert (found["order 1"].status, found["order 1"].receipt) == ("delivered", 3)
    assert found["order 2"].status == "dead"
    assert "ProgrammingError" in str(found["order 2"].trouble)
    assert await query(store, "SELECT key FROM ledger") == [("order 1",)]


async def test_an_intent_whose_dispatchers_die_is_dead_at_last(store: PostgresStore) -> None:
    """The reason says so, and what came before."""
    outbox = PostgresOutbox(store, "refunds")
    await add_directly(store, outbox, 1)
    await query(store, "UPDATE agentloop_outbox SET attempts = 3, trouble = 'no'")
    async with delivering(outbox.deliver, lambda intent: None, attempts=3):
        (dead,) = await until(outbox, none_due)
    assert (dead.status, dead.trouble) == ("dead", "its dispatcher died in the last attempt, and before: no")


async def test_dead_intents_in_front_keep_none_waiting(store: PostgresStore) -> None:
    """They take the room of one look, and the next one comes at once."""
    outbox = PostgresOutbox(store, "refunds")
    await add_directly(store, outbox, 1, 2, 3, 4)
    await query(store, "UPDATE agentloop_outbox SET attempts = 10 WHERE key <> 'order 4'")
    await query(store, "UPDATE agentloop_outbox SET due_at = due_at - interval '1 hour' WHERE key <> 'order 4'")
    async with delivering(outbox.deliver, lambda intent: None, poll=NEVER, concurrency=1):
        found = await until(outbox, none_due)
    assert {intent.key: intent.status for intent in found} == {
        **dict.fromkeys(["order 1", "order 2", "order 3"], "dead"),
        "order 4": "delivered",
    }


async def test_a_slow_handler_whose_intent_was_taken_by_another_says_that_it_is_delivered(store: PostgresStore) -> None:
    """The first receipt stays, and the other one's failure takes nothing back."""
    outbox, first, second = PostgresOutbox(store, "refunds"), anyio.Event(), anyio.Event()
    await add_directly(store, outbox, 1)

    async def slow(intent: Intent) -> str:
        await query(store, "UPDATE agentloop_outbox SET due_at = clock_timestamp()")  # its time has passed
        first.set()
        await second.wait()
        return "slow"

    async def other(intent: Intent) -> str:
        second.set()
        await until(outbox, none_due)
        raise ValueError("late")

    async with delivering(outbox.deliver, slow, concurrency=1):
        await first.wait()
        async with delivering(outbox.deliver, other):
            (done,) = await until(outbox, none_due)
    (done,) = await outbox.intents()
    assert (done.status, done.receipt, done.trouble) == ("delivered", "slow", None)


async def test_what_is_no_exception_ends_the_dispatcher(store: PostgresStore) -> None:
    """As it ends a program; the attempt counts."""
    outbox = PostgresOutbox(store, "refunds")
    await add_directly(store, outbox, 1)

    def handler(intent: Intent) -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        await outbox.deliver(handler)
    (intent,) = await outbox.intents()
    assert (intent.status, intent.attempts) == ("due", 1)


@pytest.mark.parametrize("grace", [60.0, 0.0])
async def test_what_is_no_exception_comes_before_a_cancellation(store: PostgresStore, grace: float) -> None:
    """The caller that cancels the dispatcher is told of it, also if the handler raises it because it is cut."""
    outbox = PostgresOutbox(store, "refunds")
    await add_directly(store, outbox, 1)

    async def handler(intent: Intent) -> None:
        outer.cancel()
        try:
            if not grace:
                await anyio.sleep_forever()
        finally:
            raise SystemExit(3)

    with pytest.raises(SystemExit) as left, anyio.CancelScope() as outer:
        await outbox.deliver(handler, grace=grace, poll=NEVER)
    assert left.value.code == 3


@pytest.mark.backends("asyncio")
async def test_a_handler_that_raises_a_cancellation_of_its_own_has_failed(store: PostgresStore) -> None:
    """A future of somebody else's that was cancelled, for one: the dispatcher goes on."""
    outbox = PostgresOutbox(store, "refunds")
    await add_directly(store, outbox, 1)

    def handler(intent: Intent) -> str:
        if intent.attempts == 1:
            raise asyncio.CancelledError
        return "ok"

    async with delivering(outbox.deliver, handler):
        (done,) = await until(outbox, none_due)
    assert (done.status, done.attempts) == ("delivered", 2)


async def test_a_database_that_is_away_is_waited_for(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Taking intents is tried again; a receipt that can't be written makes the intent due again."""
    outbox, got = PostgresOutbox(store, "refunds"), list[int]()
    refusals = iter(range(4))
    ask = deliveries_module.Deliveries.ask

    async def refuse(self: Any, work: Any, *, again: bool = False) -> Any:
        if got and next(refusals, None) is not None:
            raise JournalError("away")
        return await ask(self, work, again=again)

    monkeypatch.setattr(deliveries_module.Deliveries, "ask", refuse)

    def handler(intent: Intent) -> None:
        got.append(intent.attempts)

    await add_directly(store, outbox, 1)
    async with delivering(outbox.deliver, handler):
        with anyio.fail_after(60):
            while next(iter(refusals), None) is not None:  # noqa: ASYNC110
                await anyio.sleep(0.01)
        await pass_time(store)
        (done,) = await until(outbox, none_due)
    assert (done.status, got) == ("delivered", [1, 2])
    assert "is tried again: JournalError(away)" in caplog.text


# ---------------------------------------------------------------------------------------------- values and arguments


async def test_payloads_and_receipts_are_sealed(store: PostgresStore) -> None:
    """No readable part of them is in the table, and an error shows its type alone; another row's value isn't taken."""
    outbox = PostgresOutbox(store, "refunds", codec=ReversingCodec())

    @tool(secret=["card"], in_doubt="rerun")
    async def refund(ctx: ToolContext[Any], card: str) -> str:
        """Refund."""
        await outbox.add(ctx, {"card": card}, key="k")
        return "ok"

    agent = Agent("a", model=script_turns(call("refund", {"card": "4711"}), say("done")), tools=[refund])
    await run(store, agent)

    def handler(intent: Intent) -> Any:
        if intent.attempts == 1:
            raise ValueError(f"refused {intent.payload}")
        return intent.payload

    async with delivering(outbox.deliver, handler, attempts=2):
        (done,) = await until(outbox, lambda intents: any(intent.attempts == 1 for intent in intents))
        (done,) = await until(outbox, none_due)
    assert (done.payload, done.receipt, done.is_readable) == ({"card": "4711"}, {"card": "4711"}, True)
    ((payload, receipt),) = await query(store, "SELECT payload, receipt FROM agentloop_outbox")
    assert "$sealed" in payload
    assert "$sealed" in receipt
    (hidden,) = await PostgresOutbox(store, "refunds").intents()
    assert (hidden.payload, hidden.receipt, hidden.is_readable) == (None, None, False)
    await query(store, "UPDATE agentloop_outbox SET key = 'other', status = 'due', due_at = clock_timestamp()")
    async with delivering(outbox.deliver, handler, attempts=1):
        await query(store, "UPDATE agentloop_outbox SET attempts = 0")
        (dead,) = await until(outbox, none_due)
    assert (dead.payload, dead.status) == (None, "dead")
    await outbox.retry("other")
    async with delivering(PostgresOutbox(store, "refunds").deliver, handler, attempts=1):
        (dead,) = await until(outbox, none_due)
    assert dead.trouble == "it is sealed, and the dispatcher's outbox has no codec that opens it"


async def test_trouble_of_a_sealed_outbox_is_a_type(store: PostgresStore) -> None:
    """The message may repeat the payload."""
    outbox = PostgresOutbox(store, "refunds", codec=ReversingCodec())
    await add_directly(store, outbox, 1)

    def handler(intent: Intent) -> Any:
        raise ValueError(f"refused {intent.payload}")

    async with delivering(outbox.deliver, handler, attempts=1):
        (dead,) = await until(outbox, none_due)
    assert dead.trouble == "ValueError"


async def test_a_receipt_that_is_no_json_is_left_out(store: PostgresStore) -> None:
    """What was done isn't to be done again."""
    outbox = PostgresOutbox(store, "refunds")
    await add_directly(store, outbox, 1)
    async with delivering(outbox.deliver, lambda intent: {1j}):
        (done,) = await until(outbox, none_due)
    assert (done.status, done.receipt, done.attempts) == ("delivered", None, 1)
    assert str(done.trouble).startswith("delivered; its receipt isn't kept: receipt: expected a value of JSON")


def loop_of() -> list[Any]:
    """Return a list that holds itself."""
    made: list[Any] = []
    made.append(made)
    return made


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (object(), UserTypeError),
        ({"a": {1}}, UserTypeError),
        ({("a",): 1}, UserTypeError),
        (float("nan"), UserValueError),
        (loop_of(), UserValueError),
        ({"$sealed": "x"}, UserValueError),
    ],
    ids=["object", "set", "key", "nan", "circle", "mark"],
)
async def test_a_payload_that_is_no_json_is_refused(
    store: PostgresStore, wrong: Any, error: type[AgentLoopError]
) -> None:
    """In the body, by a typed error that doesn't quote it; nothing is written."""
    outbox, raised = PostgresOutbox(store, "refunds"), list[BaseException]()

    @tool
    async def refund(ctx: ToolContext[Any]) -> str:
        """Refund."""
        with pytest.raises(error, match="payload: ") as refused:
            await outbox.add(ctx, wrong)
        raised.append(refused.value)
        return "ok"

    await run(store, Agent("a", model=script_turns(call("refund"), say("done")), tools=[refund]))
    assert len(raised) == 1
    assert await outbox.intents() == []


async def test_wrong_uses_of_an_outbox_say_what_to_do(store: PostgresStore) -> None:
    """Outside of a run, in a run of another journal, with secrets and no codec, two payloads of one key."""
    outbox, said = PostgresOutbox(store, "refunds"), list[str]()

    async def refuse(ctx: Any, payload: Any, **options: Any) -> None:
        with pytest.raises(UserError) as refused:
            await outbox.add(ctx, payload, **options)
        said.append(str(refused.value))

    @tool
    async def away(ctx: ToolContext[Any]) -> str:
        """Add in a run that has another journal."""
        await refuse(ctx, 1)
        return "ok"

    @tool(secret=["card"])
    async def secret(ctx: ToolContext[Any], card: str) -> str:
        """Add in a call with a secret."""
        await refuse(ctx, card)
        return "ok"

    @tool
    async def twice(ctx: ToolContext[Any]) -> str:
        """Add two payloads under one key, and bad keys."""
        await outbox.add(ctx, 1)
        await refuse(ctx, 2)
        await refuse(ctx, 1, key="")
        await refuse(ctx, 1, key="a\0")
        return "ok"

    await refuse(None, 1)
    tools = [away, secret, twice]
    alone = Agent("a", model=script_turns(call("away"), say("done")), tools=tools)
    await Runner.run(alone, "go", journal=MemoryJournal())
    both = Agent("a", model=script_turns([call("secret", {"card": "1"}), call("twice")], say("done")), tools=tools)
    await run(store, both, run_config=RunConfig())
    for text, part in zip(
        said,
        [
            "ctx: expected the ToolContext of a call",
            "give the run a PostgresJournal of the same PostgresStore",
            "the payload would be stored readably: give the PostgresOutbox a codec",
            "give each intent of a call a key of its own",
            "key: expected text that isn't empty",
            "key: expected text without NUL",
        ],
        strict=True,
    ):
        assert part in text
    assert [intent.payload for intent in await outbox.intents()] == [1]


async def test_wrong_arguments_are_refused(store: PostgresStore) -> None:
    """Each by its name."""
    outbox: Any = PostgresOutbox(store, "refunds")
    with pytest.raises(UserTypeError, match="store: expected a PostgresStore"):
        PostgresOutbox(None, "refunds")  # type: ignore[arg-type]
    with pytest.raises(UserTypeError, match="codec: "):
        PostgresOutbox(store, "refunds", codec=1)  # type: ignore[arg-type]
    with pytest.raises(UserValueError, match="name: "):
        PostgresOutbox(store, "")
    for name, wrong in {
        "concurrency": 0,
        "timeout": 0,
        "attempts": 0,
        "pause": 0,
        "grace": -1,
        "poll": None,
    }.items():
        with pytest.raises(UserError, match=f"{name}: "):
            await outbox.deliver(lambda intent: None, **{name: wrong})
    with pytest.raises(UserError, match="timeout: "):
        await outbox.deliver(lambda intent: None, timeout=None)
    for other in (lambda: None, None):
        with pytest.raises(UserError, match="handler: expected a callable of"):
            await outbox.deliver(other)
        with pytest.raises(UserError, match="function: expected a callable of"):
            await outbox.apply(other)
    with pytest.raises(UserError, match="status: "):
        await outbox.intents("done")
    with pytest.raises(UserError, match="limit: "):
        await outbox.intents(limit=0)
    with pytest.raises(UserError, match="status: "):
        await outbox.delete_older(1, status="due")


async def test_old_intents_are_deleted(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The delivered ones, or the dead: by age, and of this outbox alone."""
    outbox = PostgresOutbox(store, "refunds")
    await add_directly(store, outbox, 1, 2, 3, 4)
    await query(store, "UPDATE agentloop_outbox SET status = 'delivered', due_at = NULL WHERE key <> 'order 4'")
    await query(store, "UPDATE agentloop_outbox SET status = 'dead', due_at = NULL WHERE key = 'order 3'")
    assert await outbox.delete_older(60) == 0
    assert await PostgresOutbox(store, "others").delete_older(0) == 0
    assert await outbox.delete_older(0) == 2
    assert await outbox.delete_older(0, status="dead") == 1
    assert [intent.key for intent in await outbox.intents(limit=5)] == ["order 4"]


def test_the_page_prints_what_it_says(
    conninfo: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A refund that two runs ask for is made once."""
    text = PAGE.read_text()
    application, *_ = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (shown,) = re.findall(r"```text\n(.*?)```", text, re.DOTALL)
    monkeypatch.setenv("DATABASE", conninfo)
    exec(compile(application, "app.py", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out == shown
