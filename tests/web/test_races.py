"""Requests that meet an end, a beginning or each other, and servers and stores that fail at that moment."""

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from kit.work import counting_turns
from web.agents import Watched, deleting, holding
from web.harness import ask, cut_journal, send_request
from web.test_approvals import NO, YES, decide, pause
from web.test_continued import HELLO, Journals, going_on, recorded

from agentloop import Agent, RunConfig, ToolExecution
from agentloop._common.turns import ITEMS_A_TURN
from agentloop.asgi import AgentApp, Grant, JournalFolder, MemoryStates, WebLimits, _handlers
from agentloop.asgi._feed import Feed, FeedReader
from agentloop.asgi._hosting import RunHost
from agentloop.asgi._http import ASGIApp, while_connected
from agentloop.asgi._writer import EventWriter
from agentloop.events import TextDelta
from agentloop.journal import MemoryJournal
from agentloop.state import RunState
from agentloop.testing import call, say


def slow(app: ASGIApp, free: anyio.Event) -> ASGIApp:
    """Return *app* behind a server that sends the head of a response, and the rest only when *free* is set."""

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        async def send_late(message: Any) -> None:
            await send(message)
            if message["type"] == "http.response.start":
                await free.wait()

        await app(scope, receive, send_late)

    return serve


def gone(app: ASGIApp, after: int = 0) -> ASGIApp:
    """Return *app* behind a server whose client leaves after so many messages, which `send` says."""

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        left = after

        async def fail(message: Any) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise BrokenPipeError("the client has left")
            await send(message)

        await app(scope, receive, fail)

    return serve


KINDS = [{}, {"journals": Journals}, {"journals": Journals, "on_disconnect": "continue"}]
"""Options of applications: a callable makes one."""


def make_app(agent: Agent[Any, Any], more: dict[str, Any]) -> AgentApp:
    """Return an application with fresh options."""
    return AgentApp(agent, **{name: one() if callable(one) else one for name, one in more.items()})


@pytest.mark.parametrize("more", KINDS)
async def test_client_may_leave_after_any_message_of_a_resumed_run(
    more: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing of the run is left, no call runs twice, and a stored run can be read."""
    whole = 0
    for after in itertools.count():
        watched = Watched()
        async with make_app(watched.agent(deleting()), more) as app:
            handle = await pause(app)
            body = {"handle": handle, "verdicts": [YES, NO]}
            response = await ask(gone(app, after), "POST", "/verdicts", body)
            if "on_disconnect" not in more:
                assert app._host._live == {}
            await app.stop()
            assert app._host._live == {}
        assert watched.deleted in ([], ["a"])
        if "journals" in more:
            async with make_app(watched.agent([]), {**more, "journals": app._journals}) as later:
                stored = await ask(later, "GET", f"/runs/{handle}/events")
            numbers = [number for number, _ in recorded(stored.frames)]
            assert len(numbers) == len(set(numbers)) > whole // 2
            assert stored.frames[-1].kind in ("run_ended", "interrupted")
        if response.is_whole:
            break
        whole = after
    assert response.frames[-1].data["status"] == "completed"
    assert watched.deleted == ["a"]
    assert caplog.records == []


@pytest.mark.parametrize("more", KINDS)
async def test_run_is_cancelled_as_soon_as_its_client_has_the_id(more: dict[str, Any]) -> None:
    """The head of the response has it, before the run begins: the cancellation counts then, and is no error."""
    watched, free = Watched(), anyio.Event()
    app = make_app(watched.agent(holding()), more)
    async with app, send_request(slow(app, free), "POST", "/runs", HELLO) as response:
        await response.until(lambda: response.status == 200)
        run = response.headers["agentloop-run"]
        assert (await ask(app, "POST", f"/runs/{run}/cancel", {})).status == 202
        free.set()
        await response.end()
    assert response.is_whole
    assert "error" not in response.kinds
    assert all(frame.data["status"] == "cancelled" for frame in response.frames if frame.kind == "run_ended")


async def test_run_that_is_being_resumed_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that changes its mind while the journal is read: the verdict is kept, and nothing runs."""
    watched = Watched()
    app = going_on(watched.agent(deleting()))
    load = RunHost.load

    async def load_and_cancel(host: RunHost, journal: Any) -> RunState:
        assert (await ask(app, "POST", f"/runs/{run}/cancel", {})).status == 202
        return await load(host, journal)

    async with app:
        run = await pause(app)
        monkeypatch.setattr(RunHost, "load", load_and_cancel)
        response = await decide(app, run, YES)
        assert response.status == 200
    assert "error" not in response.kinds
    assert watched.deleted == []


@pytest.mark.parametrize(
    ("verdicts", "status", "end"), [([YES, NO], 200, "run_ended"), ([{**NO, "call_id": "call_9"}], 409, "interrupted")]
)
async def test_client_that_comes_back_while_its_run_is_being_resumed_reads_on(
    monkeypatch: pytest.MonkeyPatch, verdicts: Any, status: int, end: str
) -> None:
    """It gets what follows and not the pause that is over; a run that isn't resumed in the end is read as it is."""
    watched, reading, free = Watched(), anyio.Event(), anyio.Event()
    app = going_on(watched.agent(deleting()))
    load = RunHost.load

    async def load_late(host: RunHost, journal: Any) -> RunState:
        monkeypatch.setattr(RunHost, "load", load)
        reading.set()
        await free.wait()
        return await load(host, journal)

    async with app:
        run = await pause(app)
        monkeypatch.setattr(RunHost, "load", load_late)
        async with send_request(app, "POST", "/verdicts", {"handle": run, "verdicts": verdicts}) as first:
            await reading.wait()
            async with send_request(app, "GET", f"/runs/{run}/events") as second:
                for _ in range(10):
                    await anyio.lowlevel.checkpoint()
                assert second.status is None
                free.set()
                await second.end()
            await first.end()
    assert (first.status, second.kinds[-1]) == (status, end)
    assert watched.deleted == (["a"] if status == 200 else [])


async def test_verdict_on_a_run_that_has_not_begun_is_refused() -> None:
    """Its client has the id, and no call waits yet."""
    watched, free = Watched(), anyio.Event()
    app = AgentApp(watched.agent(holding()), journals=Journals())
    async with send_request(slow(app, free), "POST", "/runs", HELLO) as response:
        await response.until(lambda: response.status == 200)
        refused = await decide(app, response.headers["agentloop-run"], YES)
        assert (refused.status, refused.json) == (409, {"error": "The run has not begun."})


async def test_client_that_leaves_before_a_short_answer_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    """Neither of the request nor of the server: a refusal, and the answer to a cancellation."""
    watched = Watched()
    app = going_on(watched.agent(holding()))
    async with app, send_request(app, "POST", "/runs", HELLO) as response:
        await watched.started.wait()
        await ask(gone(app), "POST", "/runs", {"input": 1})
        await ask(gone(app), "DELETE", "/runs")
        await ask(gone(app), "POST", f"/runs/{response.headers['agentloop-run']}/cancel", {})
        await response.end()
    assert response.frames[-1].data["status"] == "cancelled"
    assert caplog.records == []


async def test_error_of_the_server_ends_the_work_and_comes_bare() -> None:
    """`receive` raises while the response is under way."""
    ended = []

    async def receive() -> Any:
        await anyio.lowlevel.checkpoint()
        raise RuntimeError("broken")

    async def work() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("work")

    with pytest.raises(RuntimeError, match="broken"):
        await while_connected(receive, work)
    assert ended == ["work"]


async def test_error_of_the_server_in_a_response_is_left_to_the_server() -> None:
    """Only the server can end a response half sent; the run has ended before."""
    watched = Watched()

    async def receive() -> Any:
        await anyio.lowlevel.checkpoint()
        return {"type": "http.request", "body": b'{"input": "hello"}', "more_body": False}

    async def send(message: Any) -> None:
        if watched.started.is_set():
            raise RuntimeError("broken")

    scope = {"type": "http", "method": "POST", "path": "/runs", "headers": [(b"content-type", b"application/json")]}
    with pytest.raises(RuntimeError, match="broken"):
        await AgentApp(watched.agent(holding()))(scope, receive, send)
    assert watched.ended == ["hold"]


async def test_request_with_an_endless_body_takes_turns_with_the_others() -> None:
    """What comes after the part that is read is dropped, without keeping the others from their work."""

    async def receive() -> Any:
        return {"type": "http.request", "body": b"x", "more_body": True}

    await while_connected(receive, anyio.lowlevel.checkpoint)


async def test_client_that_reads_a_long_log_takes_turns_with_the_others() -> None:
    """Where `send` never waits, since the client takes everything at once."""
    count = 200
    feed = Feed([(f"{number}.0", TextDelta("piece")) for number in range(count)])
    feed.close(())
    sent: list[bytes] = []

    async def send(message: Any) -> None:
        sent.append(message["body"])

    async with counting_turns() as turns:
        with FeedReader(feed, None) as reader:
            await EventWriter(send, WebLimits()).pump(reader.take)
    assert len(sent) == count
    assert turns.count > count // 2


@asynccontextmanager
async def count_turns() -> AsyncIterator[list[int]]:
    """Yield a list whose one number is that of the turns that another task has had within the block."""
    turns = [0]

    async def work() -> None:
        while True:
            await anyio.lowlevel.checkpoint()
            turns[0] += 1

    async with anyio.create_task_group() as group:
        group.start_soon(work)
        yield turns
        group.cancel_scope.cancel()


LONG = 400
"""The calls of a long run: each is two records and three events."""
FEWEST_TURNS = 7 * LONG // ITEMS_A_TURN - 1
"""The turns of others while records are decoded, folded, and made into events; trio begins the two in either order."""


async def store_long_run() -> tuple[str, Journals]:
    """Return the id of a long run, and the journals with its log."""
    journals = Journals()
    app = going_on(Watched().agent([[call("look", {"path": "a"})] * LONG, say("Done.")]), journals)
    async with app:
        response = await ask(app, "POST", "/runs", HELLO)
    return response.headers["agentloop-run"], journals


async def test_long_log_is_read_in_turns_with_the_others() -> None:
    """Its records are decoded, folded and made into events a hundred at a time, before the first one is sent."""
    run, journals = await store_long_run()
    app = going_on(Watched().agent([]), journals)
    async with count_turns() as turns:
        stored = await app._host.read(run, None, Grant().check_owner)
        had = turns[0]
    assert len(stored.events) > 3 * LONG
    assert had >= FEWEST_TURNS


async def test_client_that_leaves_a_long_log_stops_its_reading() -> None:
    """The rest is not read, and the journal is closed."""
    run, journals = await store_long_run()
    is_read, closed = anyio.Event(), []

    class Closing(MemoryJournal):
        async def read(self) -> list[bytes]:
            lines = await super().read()
            is_read.set()
            return lines

        async def aclose(self) -> None:
            closed.append("journal")

    class Source:
        def journal(self, run: str) -> Any:
            journal = Closing()
            journal._records[:] = journals.kept[run]._records
            return journal

    app = going_on(Watched().agent([]), Source())
    with anyio.CancelScope() as reading:
        async with anyio.create_task_group() as group:

            async def leave() -> None:
                await is_read.wait()
                reading.cancel()

            group.start_soon(leave)
            await app._host.read(run, None, Grant().check_owner)
            raise AssertionError("the whole log was read")
    assert closed == ["journal"]


@pytest.mark.slow
async def test_long_run_is_resumed_in_turns_with_the_others() -> None:
    """The events that its feed begins with are made a hundred at a time, and it has all of them once."""
    run, journals = await store_long_run()
    whole = journals.kept[run]
    del whole._records[-1]
    app = going_on(Watched().agent([]), journals)
    async with app:
        async with count_turns() as turns:
            await app.resume(run)
            had = turns[0]
        response = await ask(app, "GET", f"/runs/{run}/events")
    assert had >= FEWEST_TURNS
    numbers = [number for number, _ in recorded(response.frames)]
    assert len(numbers) == len(set(numbers)) > 3 * LONG
    assert response.frames[-1].data["status"] == "completed"


@pytest.mark.parametrize("more", [{}, {"on_disconnect": "continue"}])
async def test_journal_that_does_not_close_is_given_up(more: Any, caplog: pytest.LogCaptureFixture) -> None:
    """It has as long as the clean-up of its run: neither the end of the run nor of the application waits longer."""

    class Stuck(MemoryJournal):
        async def aclose(self) -> None:
            await anyio.sleep_forever()

    class Source:
        def journal(self, run: str) -> Any:
            return Stuck()

    config = RunConfig(tool_execution=ToolExecution(cleanup_grace=0.05))
    watched = Watched()
    app = AgentApp(
        watched.agent([call("look", {"path": "a"}), say("Done.")]),
        journals=Source(),
        admit=lambda request: Grant(options={"run_config": config}),
        **more,
    )
    async with app:
        async with send_request(app, "POST", "/runs", HELLO) as response:
            await response.frame("run_ended")
        await app.stop()
    assert "did not close within 0.05 s" in caplog.text


async def test_store_of_states_that_does_not_answer_is_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither the request nor the end of the application waits longer for it than for a journal."""

    class Stuck(MemoryStates):
        taken = False

        async def put_back(self, handle: str, state: str) -> str:
            if self.taken:
                await anyio.sleep_forever()
            return await super().put_back(handle, state)

        async def take(self, handle: str) -> str | None:
            self.taken = True
            return await super().take(handle)

    monkeypatch.setattr(_handlers, "USUAL_GRACE", 0.05)
    async with AgentApp(Watched().agent(deleting()), states=Stuck()) as app:
        refused = await decide(app, await pause(app), {**YES, "call_id": "call_9"})
        assert (refused.status, refused.json) == (500, {"error": "The request has failed."})
    assert "did not take a state within 0.05 s" in caplog.text


@pytest.mark.real_clock
async def test_run_that_a_client_resumes_meanwhile_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the two looks of `resume_all` at a journal its run is claimed: that is no failure."""
    folder = JournalFolder(tmp_path / "runs")
    app = going_on(Watched().agent([say("Done.")]), folder)
    async with app:
        run = (await ask(app, "POST", "/runs", HELLO)).headers["agentloop-run"]
    await cut_journal(tmp_path / "runs" / f"{run}.journal")
    load = RunHost.load
    app = going_on(Watched().agent([say("Done.")]), folder)

    async def load_and_resume(host: RunHost, journal: Any) -> RunState:
        state = await load(host, journal)
        monkeypatch.setattr(RunHost, "load", load)
        await app.resume(run)
        return state

    monkeypatch.setattr(RunHost, "load", load_and_resume)
    async with app:
        found = await app.resume_all()
        assert (found.held, found.failed) == ((run,), {})
        assert (await ask(app, "GET", f"/runs/{run}/events")).frames[-1].data["status"] == "completed"


async def test_error_of_the_block_leaves_the_application_bare() -> None:
    """Its nursery puts no group around it."""
    with pytest.raises(ValueError, match="mine"):
        async with going_on(Watched().agent([])):
            raise ValueError("mine")
