"""Runs under ids that clients choose: a request that is sent again begins nothing."""

from pathlib import Path
from typing import Any

import anyio
import pytest
from web.agents import Watched, deleting, holding, looking
from web.harness import ask, send_request
from web.test_approvals import YES
from web.test_continued import Journals, going_on, recorded
from web.test_owners import as_user, ask_as, by_header

from agentloop.asgi import AgentApp, Grant, JournalFolder, WebRequest
from agentloop.journal import FileJournal
from agentloop.testing import say

pytestmark = [pytest.mark.real_clock]
RUN = "order-7-5c1f0a7e9b2d"
HELLO = {"input": "hello", "run": RUN}
OTHER = "The run with this id began with another input."


async def test_a_request_that_is_sent_again_begins_nothing() -> None:
    """While the run is under way and when it is over; each client gets every recorded event once."""
    watched = Watched()
    app = going_on(watched.agent(holding()))
    async with app:
        async with send_request(app, "POST", "/runs", HELLO) as first:
            await first.frame("call_started", 2)
        assert first.headers["agentloop-run"] == RUN
        async with send_request(app, "POST", "/runs", HELLO) as second:
            await second.frame("call_started", 2)
            watched.free.set()
            await second.end()
        third = await ask(app, "POST", "/runs", HELLO)
    assert watched.ended == ["hold"]
    assert recorded(second.frames) == recorded(third.frames)
    assert recorded(second.frames)[: len(recorded(first.frames))] == recorded(first.frames)
    assert third.frames[-1].data["status"] == "completed"


@pytest.mark.parametrize("goes_on", [False, True])
async def test_of_many_requests_at_once_one_begins_the_run(goes_on: bool) -> None:
    """The others get its events, or a refusal by which they know that it is under way."""
    watched = Watched()
    journals = Journals()
    agent = watched.agent(holding())
    app = going_on(agent, journals) if goes_on else AgentApp(agent, journals=journals)
    answers: list[Any] = []
    async with app, anyio.create_task_group() as group:

        async def send() -> None:
            async with send_request(app, "POST", "/runs", HELLO) as response:
                await response.until(lambda: response.status is not None)
                answers.append(response)
                if len(answers) == 5:
                    watched.free.set()
                await response.end()

        for _ in range(5):
            group.start_soon(send)
    assert watched.ended == ["hold"]
    assert sorted(answer.status for answer in answers) == ([200] * 5 if goes_on else [200, 409, 409, 409, 409])
    refused = [answer.json["error"] for answer in answers if answer.status == 409]
    assert all("under way" in sentence for sentence in refused)
    streams = [recorded(answer.frames) for answer in answers if answer.status == 200]
    assert all(stream == streams[0] for stream in streams)


class _Gate:
    """An empty journal whose first reader is kept back behind what it has read, until another request is over."""

    def __init__(self) -> None:
        self.is_read, self.let = anyio.Event(), anyio.Event()

    async def hold_back(self) -> None:
        """Wait, if this is the first reader."""
        if not self.is_read.is_set():
            self.is_read.set()
            await self.let.wait()


@pytest.mark.parametrize("goes_on", [False, True])
@pytest.mark.parametrize("text", ["hello", "bye"])
async def test_a_run_that_comes_and_ends_while_its_journal_is_read_is_streamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, goes_on: bool, text: str
) -> None:
    """What the request had read is no longer so: it gets the run's stream, or the refusal of another input."""
    watched, gate = Watched(), _Gate()
    journals, agent = JournalFolder(tmp_path), watched.agent(looking())
    app = going_on(agent, journals) if goes_on else AgentApp(agent, journals=journals)
    read = FileJournal.read

    async def read_early(journal: FileJournal) -> list[bytes]:
        lines = await read(journal)
        await gate.hold_back()
        return lines

    monkeypatch.setattr(FileJournal, "read", read_early)
    answers: list[Any] = []

    async def send_early() -> None:
        answers.append(await ask(app, "POST", "/runs", {**HELLO, "input": text}))

    async with app, anyio.create_task_group() as group:
        group.start_soon(send_early)
        await gate.is_read.wait()
        answers.append(await ask(app, "POST", "/runs", HELLO))
        gate.let.set()
    whole, early = answers
    if text == "hello":
        assert (early.status, recorded(early.frames)) == (200, recorded(whole.frames))
        assert early.frames[-1].data["status"] == "completed"
    else:
        assert (early.status, early.json) == (409, {"error": OTHER})


async def test_the_next_process_knows_the_run(tmp_path: Path) -> None:
    """A paused run is streamed up to its pause, with the handle; nothing is resumed by that."""
    watched = Watched()
    folder = JournalFolder(tmp_path)
    first = await ask(AgentApp(watched.agent(deleting()), journals=folder), "POST", "/runs", HELLO)
    app = AgentApp(watched.agent(deleting()), journals=folder)
    again = await ask(app, "POST", "/runs", HELLO)
    assert recorded(again.frames) == recorded(first.frames)
    assert again.frames[-1].data["handle"] == RUN
    assert watched.deleted == []
    assert (await ask(app, "POST", "/runs", {**HELLO, "input": "bye"})).json == {"error": OTHER}


async def test_an_id_names_one_run(tmp_path: Path) -> None:
    """Another input, and the run of another owner, are refused, under way and stored."""
    watched = Watched()
    app = going_on(watched.agent(holding()), JournalFolder(tmp_path), admit=by_header)

    async def refusals() -> list[Any]:
        found = []
        for user, text in (("ada", "bye"), ("eve", "hello"), ("eve", "bye"), (None, "hello")):
            answer = await ask_as(app, user, "POST", "/runs", {**HELLO, "input": text})
            found.append((answer.status, answer.json["error"]))
        return found

    wanted = [(409, OTHER), *[(409, "Another run has this id.")] * 3]
    async with app:
        async with send_request(app, "POST", "/runs", HELLO, as_user("ada")) as response:
            await response.frame("call_progress")
            assert await refusals() == wanted
            watched.free.set()
            await response.end()
        assert await refusals() == wanted
        assert (await ask_as(app, "ada", "POST", "/runs", HELLO)).status == 200
    assert watched.ended == ["hold"]


async def test_a_resumed_run_is_the_same_run(tmp_path: Path) -> None:
    """While it is under way after its verdict, too."""
    watched = Watched()
    app = going_on(watched.agent([*deleting()[:1], *holding()]), JournalFolder(tmp_path))
    async with app:
        await ask(app, "POST", "/runs", HELLO)
        verdicts = {"handle": RUN, "verdicts": [YES, {**YES, "call_id": "call_2"}]}
        async with send_request(app, "POST", "/verdicts", verdicts) as resumed:
            await resumed.frame("call_progress")
            assert (await ask(app, "POST", "/runs", {**HELLO, "input": "bye"})).json == {"error": OTHER}
            async with send_request(app, "POST", "/runs", HELLO) as again:
                await again.frame("call_started", 2)
                watched.free.set()
                await again.end()
    assert sorted(watched.deleted) == ["a", "b"]
    assert again.frames[-1].data["status"] == "completed"


@pytest.mark.parametrize("run", ["short", "x" * 65, "../../../etc/passwd", "a" * 16 + "\n", "", 7])
async def test_what_can_not_be_an_id_is_refused(run: Any) -> None:
    """Before anything is touched."""
    journals = Journals()
    app = AgentApp(Watched().agent(looking()), journals=journals)
    answer = await ask(app, "POST", "/runs", {"input": "hello", "run": run})
    assert answer.status == 400
    assert "$.run" in answer.json["error"]
    assert journals.kept == {}


async def test_runs_without_journals_have_ids_of_the_server() -> None:
    """A second request couldn't find the run."""
    answer = await ask(AgentApp(Watched().agent([say("x")])), "POST", "/runs", HELLO)
    assert answer.status == 400
    assert "only where runs have journals" in answer.json["error"]


async def test_the_application_is_asked_about_the_id() -> None:
    """It may want ids of its own form."""
    asked: list[WebRequest] = []

    def admit(request: WebRequest) -> Grant:
        asked.append(request)
        return Grant()

    app = AgentApp(Watched().agent(looking()), journals=Journals(), admit=admit)
    await ask(app, "POST", "/runs", HELLO)
    await ask(app, "POST", "/runs", {"input": "hello"})
    assert [(one.action, one.run) for one in asked] == [("start", RUN), ("start", None)]
