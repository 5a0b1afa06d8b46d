"""Runs that go on without their clients, and clients that come back."""

from pathlib import Path
from typing import Any

import anyio
import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from web.agents import Watched, deleting, holding, looking
from web.harness import Frame, ask, cut_journal, send_request

from agentloop import Agent, RunConfig, UserError
from agentloop.asgi import AgentApp, Grant, HTTPRefusal, JournalFolder, ResumedRuns, WebLimits
from agentloop.asgi import _feed as feeds
from agentloop.events import RawModelEvent, TextDelta
from agentloop.exceptions import JournalError, StateError
from agentloop.journal import FileJournal, MemoryJournal
from agentloop.testing import ScriptedModel, call, say

HELLO = {"input": "hello"}


class Journals:
    """Journals in memory, which outlive the application's closing of them."""

    def __init__(self) -> None:
        self.kept: dict[str, MemoryJournal] = {}

    def journal(self, run: str) -> MemoryJournal:
        """Return the journal of *run*."""
        return self.kept.setdefault(run, _Kept())


class _Kept(MemoryJournal):
    async def aclose(self) -> None:
        pass


def recorded(frames: list[Frame]) -> list[tuple[str, Any]]:
    """Return ids and data of the frames that have ids."""
    return [(frame.number, frame.data) for frame in frames if frame.number is not None]


def going_on(agent: Agent[Any, Any], journals: Any = None, **options: Any) -> AgentApp:
    """Return an application whose runs go on."""
    return AgentApp(agent, on_disconnect="continue", journals=journals or Journals(), **options)


@pytest.mark.scenario("VI-07")
async def test_run_goes_on_without_its_client_and_is_read_to_its_end_by_the_next() -> None:
    """The second client names the last event that the first one got."""
    watched = Watched()
    app = going_on(watched.agent(holding()))
    async with app:
        async with send_request(app, "POST", "/runs", HELLO) as first:
            await first.frame("call_started", 2)
        run, seen = first.headers["agentloop-run"], recorded(first.frames)
        assert watched.ended == []
        async with send_request(app, "GET", f"/runs/{run}/events", headers={"last-event-id": seen[-1][0]}) as second:
            await second.until(lambda: second.status is not None)
            watched.free.set()
            await second.end()
        assert watched.ended == ["hold"]
        whole = await ask(app, "GET", f"/runs/{run}/events")
    assert seen + recorded(second.frames) == recorded(whole.frames)
    assert second.frames[-1].data["status"] == "completed"
    assert "text_delta" in second.kinds  # live ones come
    assert "text_delta" not in whole.kinds  # deltas missed aren't repeated


@pytest.mark.scenario("VI-07")
async def test_for_every_event_what_came_before_and_what_comes_after_it_are_the_whole() -> None:
    """A client that loses the connection after any event gets every later recorded event once, in order."""
    app = going_on(Watched().agent([*looking(), say("more")]))
    async with app:
        whole = await ask(app, "POST", "/runs", HELLO)
        run, events = whole.headers["agentloop-run"], recorded(whole.frames)
        for position, (number, _) in enumerate(events):
            rest = await ask(app, "GET", f"/runs/{run}/events", headers={"last-event-id": number})
            assert rest.status == (204 if number == events[-1][0] else 200)  # the first ends the retries of a browser
            assert events[: position + 1] + recorded(rest.frames) == events


@pytest.mark.scenario("VI-07")
async def test_clients_at_every_place_of_a_live_run_get_the_same_rest() -> None:
    """While the run is under way, readers that begin after different events all end with the same ones."""
    watched = Watched()
    app = going_on(watched.agent(holding()))
    async with app, anyio.create_task_group() as group:
        async with send_request(app, "POST", "/runs", HELLO) as first:
            await first.frame("call_settled")
        run, seen = first.headers["agentloop-run"], recorded(first.frames)
        rests: dict[str, list[Any]] = {}

        async def read(number: str, joined: anyio.Event) -> None:
            async with send_request(app, "GET", f"/runs/{run}/events", headers={"last-event-id": number}) as response:
                await response.until(lambda: response.status is not None)
                joined.set()
                rests[number] = recorded((await response.end()).frames)

        for number, _ in seen:
            joined = anyio.Event()
            group.start_soon(read, number, joined)
            await joined.wait()
        watched.free.set()
    whole = seen + rests[seen[-1][0]]
    for position, (number, _) in enumerate(seen):
        assert seen[: position + 1] + rests[number] == whole


async def test_leaving_the_application_cancels_its_runs_and_a_later_process_resumes_them() -> None:
    """The journal holds the run; `resume` continues it, and a client reads on from where it was."""
    watched, journals = Watched(), Journals()
    app = going_on(watched.agent(holding()), journals)
    async with app, send_request(app, "POST", "/runs", HELLO) as first:
        await watched.started.wait()
        await first.frame("call_started", 2)
    assert watched.ended == ["hold"]
    run, seen = first.headers["agentloop-run"], recorded(first.frames)
    again = Watched()
    again.free.set()
    app = going_on(again.agent([say("Done.")]), journals)
    async with app:
        await app.resume(run)
        rest = await ask(app, "GET", f"/runs/{run}/events", headers={"last-event-id": seen[-1][0]})
        whole = await ask(app, "GET", f"/runs/{run}/events")
        with pytest.raises(StateError, match="over"):
            await app.resume(run)
        with pytest.raises(HTTPRefusal, match="no such run"):
            await app.resume("another-run-that-never-was")
    assert rest.frames[-1].data["status"] == "completed"
    assert seen + recorded(rest.frames) == recorded(whole.frames)


async def test_run_that_a_crash_has_cut_is_shown_as_detached() -> None:
    """A log without an end, of a run that isn't under way here, ends with an event that says so."""
    watched, journals = Watched(), Journals()
    app = going_on(watched.agent(looking()), journals)
    async with app:
        whole = await ask(app, "POST", "/runs", HELLO)
        run = whole.headers["agentloop-run"]
        kept = journals.kept[run]
        del kept._records[-1]
        cut = await ask(app, "GET", f"/runs/{run}/events")
    assert cut.frames[-1].data == {"type": "detached"}
    assert recorded(cut.frames) == recorded(whole.frames)[:-1]


async def test_failed_run_ends_with_its_error_live_and_later() -> None:
    """The log has a summary of the error; a later client gets the same public form as the first one."""
    app = going_on(Watched().agent([]))
    async with app:
        live = await ask(app, "POST", "/runs", HELLO)
        later = await ask(app, "GET", f"/runs/{live.headers['agentloop-run']}/events")
    assert live.frames[-1].kind == "error"
    assert live.frames[-1].data == later.frames[-1].data


async def test_wrong_event_ids_are_refused() -> None:
    """Live and later: what is no id, and the id of an event that the run doesn't have."""
    watched = Watched()
    app = going_on(watched.agent(holding()))
    async with app:
        async with send_request(app, "POST", "/runs", HELLO) as first:
            await watched.started.wait()
        run = first.headers["agentloop-run"]

        async def check() -> None:
            for number, status in (("x", 400), ("1", 400), ("99.0", 409), ("0.7", 409), ("\xff", 400)):
                refused = await ask(app, "GET", f"/runs/{run}/events", headers={"last-event-id": number})
                assert refused.status == status, number

        await check()
        watched.free.set()
        await ask(app, "GET", f"/runs/{run}/events")
        await check()


async def test_cancelled_run_shows_its_end_to_all_its_clients() -> None:
    """A request cancels it; each client gets the events of the end."""
    watched = Watched()
    app = going_on(watched.agent(holding()))
    async with app, send_request(app, "POST", "/runs", HELLO) as first:
        await watched.started.wait()
        run = first.headers["agentloop-run"]
        async with send_request(app, "GET", f"/runs/{run}/events") as second:
            await second.frame("call_started")
            assert (await ask(app, "POST", f"/runs/{run}/cancel", {})).status == 202
            await second.end()
        await first.end()
    assert recorded(first.frames) == recorded(second.frames)
    assert second.frames[-1].data["status"] == "cancelled"


async def test_client_that_reads_nothing_costs_the_run_nothing() -> None:
    """The run ends in its time; signals above the limit are dropped, recorded events never."""
    feed = feeds.Feed()
    with feeds.FeedReader(feed, None) as reader:
        for number in range(3 * feeds.MOST_SIGNALS):
            feed.add(None, TextDelta(str(number)))
        feed.add("1.0", TextDelta("recorded"))
        feed.close(())
        got = []
        while (one := await reader.take()) is not None:
            got.append(one)
    assert len(got) <= feeds.MOST_SIGNALS + 1
    assert got[-1] == ("1.0", TextDelta("recorded"))
    watched = Watched()
    app = going_on(watched.agent(holding()))
    async with app, send_request(app, "POST", "/runs", HELLO) as first:
        await watched.started.wait()
        run, first.stuck = first.headers["agentloop-run"], True
        watched.free.set()
        other = await ask(app, "GET", f"/runs/{run}/events")
        assert other.frames[-1].data["status"] == "completed"


async def test_signals_of_a_reader_are_bounded_by_bytes() -> None:
    """Few and large ones are dropped as many small ones are; a provider's own events are held for nobody."""
    feed = feeds.Feed()
    with feeds.FeedReader(feed, None) as reader:
        for _ in range(100):
            feed.add(None, RawModelEvent({"any": "x" * 10_000}))
        assert not reader._signals
        for number in range(1_000):
            feed.add(None, TextDelta("x" * 10_000))
            assert sum(len(signal.text) for _, signal, _ in reader._signals) <= feeds.MOST_SIGNAL_BYTES  # type: ignore[union-attr]
            if number % 7 == 0:
                assert await reader.take() is not None
        feed.close(())
        left = len(reader._signals)
        assert left > 0
        assert [await reader.take() for _ in range(left + 1)][-1] is None
    assert reader._signal_bytes == 0


async def test_application_that_is_not_entered_starts_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """It has no nursery; the log says what is missing."""
    app = going_on(Watched().agent(looking()))
    response = await ask(app, "POST", "/runs", HELLO)
    assert response.status == 500
    assert "need the application's lifespan" in caplog.text
    async with app:
        with pytest.raises(UserError, match="entered already"):
            await app.__aenter__()


async def test_journal_that_fails_is_an_error_of_the_run(caplog: pytest.LogCaptureFixture) -> None:
    """Whether it fails at the first record or at its closing, the client gets one sentence."""

    class Broken(MemoryJournal):
        async def append(self, records: Any) -> None:
            raise JournalError("disk /srv/x is full")

    class Unclosed(MemoryJournal):
        async def aclose(self) -> None:
            raise JournalError("disk /srv/x is full")

    class Source:
        def __init__(self, made: Any) -> None:
            self.made = made

        def journal(self, run: str) -> Any:
            return self.made

    for made in (Broken(), Unclosed()):
        app = going_on(Watched().agent(looking()), Source(made))
        async with app:
            response = await ask(app, "POST", "/runs", HELLO)
        assert response.frames[-1].data == {
            "type": "error",
            "error": {"type": "JournalError", "message": "The store of the run has failed."},
        }
        assert b"/srv/x" not in response.body


@pytest.mark.real_clock
async def test_journals_of_a_folder(tmp_path: Path) -> None:
    """A run of `JournalFolder` is one file, readable by its owner alone; the id can't leave the folder."""
    folder = JournalFolder(tmp_path / "runs", key=b"0123456789abcdef")
    app = AgentApp(Watched().agent(looking()), journals=folder)
    whole = await ask(app, "POST", "/runs", HELLO)
    run = whole.headers["agentloop-run"]
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [f"{run}.journal"]
    assert (tmp_path / "runs").stat().st_mode & 0o77 == 0
    later = await ask(app, "GET", f"/runs/{run}/events")
    assert recorded(later.frames) == recorded(whole.frames)
    assert (await ask(app, "GET", "/runs/never-was-such-a-run/events")).status == 404
    for wrong in ("../../etc/passwd", "", "x" * 65):
        with pytest.raises(UserError, match="id of a run"):
            folder.journal(wrong)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="can't be made a folder"):
        JournalFolder(tmp_path / "file" / "x").journal(run)
    path = tmp_path / "runs" / f"{run}.journal"
    path.write_bytes(b"x" + path.read_bytes())
    broken = await ask(app, "GET", f"/runs/{run}/events")
    assert (broken.status, broken.json) == (500, {"error": "The request has failed."})
    assert isinstance(folder.journal(run), FileJournal)


@pytest.mark.real_clock
async def test_all_unfinished_runs_of_a_folder_are_resumed(tmp_path: Path) -> None:
    """Each run is named in one place, by its state; one that another process writes is left to it until that ends."""
    folder = JournalFolder(tmp_path / "runs")
    nothing = going_on(Watched().agent([]), folder)
    async with nothing:
        assert await nothing.resume_all() == ResumedRuns()
    runs: dict[str, str] = {}
    for name, steps in {
        "unfinished": looking(),
        "held": looking(),
        "paused": deleting(),
        "completed": looking(),
        "failed": [],
        "damaged": looking(),
        "empty": looking(),
    }.items():
        app = going_on(Watched().agent(steps), folder)
        async with app:
            runs[name] = (await ask(app, "POST", "/runs", HELLO)).headers["agentloop-run"]
    paths = {name: tmp_path / "runs" / f"{run}.journal" for name, run in runs.items()}
    for name in ("unfinished", "held"):
        await cut_journal(paths[name])
    paths["damaged"].write_bytes(b"x" + paths["damaged"].read_bytes())
    paths["empty"].write_bytes(b"")
    (tmp_path / "runs" / "short.journal").touch()
    app = going_on(Watched().agent([say("Done."), say("Done.")]), folder)
    async with app:
        async with folder.journal(runs["held"]) as other:
            assert await other.try_lock()
            found = await app.resume_all()
        assert found.resumed == (runs["unfinished"],)
        assert found.waiting == (runs["paused"],)
        assert set(found.ended) == {runs["completed"], runs["failed"]}
        assert found.held == (runs["held"],)
        assert set(found.failed) == {runs["damaged"], runs["empty"]}
        assert isinstance(found.failed[runs["damaged"]], JournalError)
        assert isinstance(found.failed[runs["empty"]], HTTPRefusal)
        rest = await ask(app, "GET", f"/runs/{runs['unfinished']}/events")
        assert rest.frames[-1].data["status"] == "completed"
        assert (await app.resume_all()).resumed == (runs["held"],)
        rest = await ask(app, "GET", f"/runs/{runs['held']}/events")
        assert rest.frames[-1].data["status"] == "completed"


@pytest.mark.real_clock
async def test_cancelled_runs_are_resumed_where_that_is_wanted(tmp_path: Path) -> None:
    """The end of the application cancels its runs; a run under way here is left alone."""
    folder = JournalFolder(tmp_path / "runs")
    watched = Watched()
    app = going_on(watched.agent(holding()), folder)
    async with app, send_request(app, "POST", "/runs", HELLO) as first:
        await watched.started.wait()
        run = first.headers["agentloop-run"]
        assert (await app.resume_all(cancelled=True)).held == (run,)
    app = going_on(Watched().agent([say("Done.")]), folder)
    async with app:
        assert (await app.resume_all()).ended == (run,)
        assert (await app.resume_all(cancelled=True)).resumed == (run,)
        rest = await ask(app, "GET", f"/runs/{run}/events")
    assert rest.frames[-1].data["status"] == "completed"


@pytest.mark.real_clock
async def test_run_that_another_process_ends_before_the_lock_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal is read again under the lock, and the run is over there."""
    folder = JournalFolder(tmp_path / "runs")
    app = going_on(Watched().agent(looking()), folder)
    async with app:
        run = (await ask(app, "POST", "/runs", HELLO)).headers["agentloop-run"]
    path = tmp_path / "runs" / f"{run}.journal"
    whole = path.read_bytes()
    await cut_journal(path)
    lock = FileJournal.try_lock

    async def lock_late(journal: FileJournal) -> bool:
        path.write_bytes(whole)
        return await lock(journal)

    monkeypatch.setattr(FileJournal, "try_lock", lock_late)
    app = going_on(Watched().agent([]), folder)
    async with app:
        assert (await app.resume_all()).ended == (run,)
    assert path.read_bytes() == whole


async def test_journals_that_can_not_be_listed_are_refused(tmp_path: Path) -> None:
    """Those that are no folder's, and a folder that is none."""
    app = going_on(Watched().agent([]))
    async with app:
        with pytest.raises(UserError, match="can't be listed"):
            await app.resume_all()
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalError, match="can't be listed"):
        await JournalFolder(tmp_path / "file").runs()


async def test_run_that_ends_with_its_client_is_read_by_others_afterwards() -> None:
    """While it is under way, another client is refused; then its journal has all of it."""
    watched = Watched()
    app = AgentApp(watched.agent(holding()), journals=Journals())
    async with send_request(app, "POST", "/runs", HELLO) as first:
        await watched.started.wait()
        run = first.headers["agentloop-run"]
        assert (await ask(app, "GET", f"/runs/{run}/events")).status == 409
        watched.free.set()
        await first.end()
    assert recorded((await ask(app, "GET", f"/runs/{run}/events")).frames) == recorded(first.frames)


TOOLS = st.sampled_from(["look", "scout", "delete", "unknown"])


@pytest.mark.slow
@pytest.mark.scenario("VI-07")
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@given(
    turns=st.lists(st.lists(TOOLS, min_size=1, max_size=3), max_size=3), verdicts=st.lists(st.booleans(), max_size=4)
)
@settings(max_examples=15)
def test_any_run_is_read_on_from_any_of_its_events(backend: str, turns: list[list[str]], verdicts: list[bool]) -> None:
    """Over calls, nested runs, unknown tools, pauses and verdicts: before and after are the whole."""
    anyio.run(_read_from_everywhere, turns, verdicts, backend=backend)


async def _read_from_everywhere(turns: list[list[str]], verdicts: list[bool]) -> None:
    arguments = {"scout": {"input": "Rome?"}}
    steps = [[call(name, arguments.get(name, {"path": "a"})) for name in names] for names in turns]
    inner = ScriptedModel([say("Fine.")] * sum(names.count("scout") for names in turns))
    agent = Watched().agent([*steps, say("Done.")])
    agent = attrs.evolve(agent, tools=[*agent.tools, Agent("scout", model=inner).as_tool("scout", "Ask.")])
    config = RunConfig(tool_not_found_behavior="tell_model")
    app = going_on(agent, admit=lambda request: Grant(options={"run_config": config}))
    left = iter(verdicts)
    async with app:
        streamed = await ask(app, "POST", "/runs", HELLO)
        run, events = streamed.headers["agentloop-run"], recorded(streamed.frames)
        while streamed.frames[-1].kind == "interrupted":
            decided = [
                {"call_id": asked["call"]["call_id"], "approve": next(left, True)}
                for asked in streamed.frames[-1].data["interruptions"]
            ]
            streamed = await ask(app, "POST", "/verdicts", {"handle": run, "verdicts": decided})
            events += recorded(streamed.frames)
        assert streamed.frames[-1].data["status"] == "completed"
        assert recorded((await ask(app, "GET", f"/runs/{run}/events")).frames) == events
        for position, (number, _) in enumerate(events):
            rest = await ask(app, "GET", f"/runs/{run}/events", headers={"last-event-id": number})
            assert events[: position + 1] + recorded(rest.frames) == events


async def test_nested_runs_have_their_paths() -> None:
    """Events of an agent tool come with the path of its call, live and later."""
    scout = Agent("scout", model=ScriptedModel([say("Fine.")]))
    front = Agent(
        "front",
        model=ScriptedModel([call("scout", {"input": "Rome?"}), say("Fine in Rome.")]),
        tools=[scout.as_tool("scout", "Ask the scout.")],
    )
    app = going_on(front, limits=WebLimits())
    async with app:
        whole = await ask(app, "POST", "/runs", HELLO)
        later = await ask(app, "GET", f"/runs/{whole.headers['agentloop-run']}/events")
    assert {tuple(data["path"]) for _, data in recorded(whole.frames)} == {(), ("call_1",)}
    assert recorded(later.frames) == recorded(whole.frames)
