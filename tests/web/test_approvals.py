"""Verdicts over HTTP: a paused run has one taker, wherever its state is kept."""

import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
import pytest
from web.agents import Watched, deleting
from web.harness import Exchange, ask, send_request
from web.test_continued import Journals, recorded

from agentloop import Agent, SealKey, tool
from agentloop.asgi import AgentApp, ClientStates, FolderStates, Grant, JournalFolder, MemoryStates, WebRequest
from agentloop.exceptions import StateError, UserTypeError, UserValueError
from agentloop.journal._states import new_name
from agentloop.testing import ScriptedModel, call, say

HELLO = {"input": "hello"}
ELSEWHERE = "The run is under way elsewhere, or its journal takes nothing."
KEY = SealKey(b"0123456789abcdef")
YES = {"call_id": "call_1", "approve": True}
NO = {"call_id": "call_2", "approve": False, "message": "b is needed"}
REJECTED = "No call 'call_2' waits for a verdict: it was rejected by 'ann'."

PLACES: dict[str, Callable[[Path], dict[str, Any]]] = {
    "memory": lambda path: {},
    "folder": lambda path: {"states": FolderStates(path / "states"), "key": KEY},
    "client": lambda path: {"states": ClientStates(), "key": KEY},
    "journal": lambda path: {"journals": JournalFolder(path / "runs")},
    "continue": lambda path: {"on_disconnect": "continue", "journals": JournalFolder(path / "runs")},
}
pytestmark = [pytest.mark.real_clock]


@pytest.fixture(params=list(PLACES))
def make_app(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., AgentApp]:
    """Makes an application over one of the places where paused runs are kept."""
    return lambda agent, **more: AgentApp(agent, **PLACES[request.param](tmp_path), **more)


async def pause(app: AgentApp) -> str:
    """Run to the pause, and return the handle."""
    response = await ask(app, "POST", "/runs", HELLO)
    last = response.frames[-1]
    assert last.kind == "interrupted"
    assert [one["call"]["call_id"] for one in last.data["interruptions"]] == ["call_1", "call_2"]
    handle = last.data["handle"]
    assert isinstance(handle, str)
    return handle


async def decide(app: AgentApp, handle: str, *verdicts: dict[str, Any], **more: Any) -> Exchange:
    """Send verdicts."""
    return await ask(app, "POST", "/verdicts", {"handle": handle, "verdicts": list(verdicts), **more})


async def test_verdicts_resume_the_run_once(make_app: Callable[..., AgentApp]) -> None:
    """The response streams the rest of the run; a second request gets 409, and nothing runs twice."""
    watched = Watched()
    async with make_app(watched.agent(deleting())) as app:
        handle = await pause(app)
        response = await decide(app, handle, YES, NO)
        assert response.status == 200
        assert response.frames[-1].data["status"] == "completed"
        outputs = [frame.data["outcome"]["output"] for frame in response.frames if frame.kind == "call_settled"]
        assert outputs == ["b is needed", "a is gone"]
        again = await decide(app, handle, YES, NO)
        assert again.status == 409
        assert set(again.json) <= {"error", "handle"}
    assert watched.deleted == ["a"]


async def test_of_many_verdicts_at_once_one_is_taken(make_app: Callable[..., AgentApp]) -> None:
    """Ten clients decide at the same time: one streams the run, the others get 409."""
    watched = Watched()
    answers: list[Exchange] = []
    async with make_app(watched.agent(deleting())) as app:
        handle = await pause(app)

        async def one() -> None:
            answers.append(await decide(app, handle, YES, NO))

        async with anyio.create_task_group() as group:
            for _ in range(10):
                group.start_soon(one)
    assert sorted(answer.status or 0 for answer in answers if "run_ended" in answer.kinds) == [200]
    assert {answer.status for answer in answers} <= {200, 202, 409}
    assert watched.deleted == ["a"]


async def test_run_pauses_again_until_every_call_is_decided(make_app: Callable[..., AgentApp]) -> None:
    """The calls that are decided run; the next handle is for the others."""
    watched = Watched()
    async with make_app(watched.agent(deleting())) as app:
        response = await decide(app, await pause(app), YES)
        last = response.frames[-1]
        assert last.kind == "interrupted"
        assert [one["call"]["call_id"] for one in last.data["interruptions"]] == ["call_2"]
        response = await decide(app, last.data["handle"], {**NO, "approve": True, "message": None})
        assert response.frames[-1].data["status"] == "completed"
    assert watched.deleted == ["a", "b"]


WRONG: list[tuple[int, str, dict[str, Any]]] = [
    (409, "Call 'call_9' waits for no verdict.", {"call_id": "call_9", "approve": True}),
    (409, "waits for no verdict", {**YES, "path": ["other"]}),
    (400, "a message goes with a rejection", {**YES, "message": "no"}),
    (400, "arguments go with an approval", {**NO, "arguments": {}}),
    (400, "don't fit", {**YES, "arguments": {"path": 1}}),
]


@pytest.mark.parametrize(("status", "sentence", "verdict"), WRONG)
async def test_verdict_that_does_not_fit_leaves_the_run_waiting(
    make_app: Callable[..., AgentApp], status: int, sentence: str, verdict: dict[str, Any]
) -> None:
    """It is refused with a sentence; where the state was taken for it, the answer has a new handle."""
    watched = Watched()
    async with make_app(watched.agent(deleting())) as app:
        handle = await pause(app)
        refused = await decide(app, handle, verdict)
        assert refused.status == status
        assert sentence in refused.json["error"]
        response = await decide(app, refused.json.get("handle", handle), YES, NO)
        assert response.frames[-1].data["status"] == "completed"


async def test_run_that_can_not_be_resumed_by_a_request_still_waits(make_app: Callable[..., AgentApp]) -> None:
    """Options that `admit` gives wrongly cost neither the paused run nor the verdict."""
    watched, options = Watched(), [{"max_turns": -1}, {}]

    def admit(request: WebRequest) -> Grant:
        return Grant(options=options.pop(0) if request.action == "decide" else {})  # type: ignore[arg-type]

    async with make_app(watched.agent(deleting()), admit=admit) as app:
        handle = await pause(app)
        refused = await decide(app, handle, YES, NO)
        assert refused.status == 500
        response = await decide(app, refused.json.get("handle", handle), YES, NO)
        assert response.frames[-1].data["status"] == "completed"
    assert watched.deleted == ["a"]


async def test_bodies_that_are_no_verdicts(make_app: Callable[..., AgentApp]) -> None:
    """400 names the place; an unknown handle is 404 or 409, and no file of that name is looked for."""
    async with make_app(Watched().agent([])) as app:
        for body, sentence in (
            ({"handle": "x" * 20, "verdicts": []}, "expected a verdict"),
            ({"handle": "x" * 20}, "missing required field `verdicts`"),
            ({"handle": "x" * 20, "verdicts": [{"call_id": 1}]}, "$.verdicts[0].call_id"),
        ):
            response = await ask(app, "POST", "/verdicts", body)
            assert response.status == 400
            assert sentence in response.json["error"]
        deep = b'{"handle": "a", "verdicts": [{"arguments": {"a": ' + b"[" * 100_000
        assert (await ask(app, "POST", "/verdicts", deep)).json == {"error": "The body is no JSON text."}
        for handle in ("x" * 20, "../../etc/passwd", ""):
            assert (await decide(app, handle, YES)).status in (404, 409)


async def test_arguments_are_replaced_and_the_giver_is_kept(tmp_path: Path) -> None:
    """`admit` says who decides; the log has it, and the body gets the other arguments."""
    watched, journals = Watched(), Journals()

    def admit(request: WebRequest) -> Grant:
        return Grant(by="ada") if request.action == "decide" else Grant()

    app = AgentApp(watched.agent(deleting()), journals=journals, admit=admit)
    handle = await pause(app)
    await decide(app, handle, {**YES, "arguments": {"path": "c"}}, NO)
    assert watched.deleted == ["c"]
    lines = b"\n".join(await journals.kept[handle].read())
    assert lines.count(b'"by":"ada"') == 2


async def test_whole_run_is_read_over_its_pause(tmp_path: Path) -> None:
    """A client that missed the pause reads all events of both run segments; while it waits, it gets the handle."""
    watched = Watched()
    app = AgentApp(watched.agent(deleting()), on_disconnect="continue", journals=JournalFolder(tmp_path))
    async with app:
        first = await ask(app, "POST", "/runs", HELLO)
        run = first.headers["agentloop-run"]
        waiting = await ask(app, "GET", f"/runs/{run}/events", headers={"last-event-id": recorded(first.frames)[-1][0]})
        assert waiting.kinds == ["interrupted"]
        assert waiting.frames[0].data == first.frames[-1].data
        second = await decide(app, run, YES, NO)
        whole = await ask(app, "GET", f"/runs/{run}/events")
    assert recorded(first.frames) + recorded(second.frames) == recorded(whole.frames)


async def test_verdict_while_the_run_is_under_way() -> None:
    """It avoids the pause; the response is 202, and the stream of the run goes on."""
    watched = Watched()
    steps = [[call("delete", {"path": "a"}), call("hold")], say("Done.")]
    app = AgentApp(watched.agent(steps), on_disconnect="continue", journals=Journals())
    async with app, send_request(app, "POST", "/runs", HELLO) as response:
        await response.frame("approval_requested")
        await watched.started.wait()
        run = response.headers["agentloop-run"]
        refused = await decide(app, run, {"call_id": "call_2", "approve": True})
        assert refused.status == 409
        given = await decide(app, run, YES)
        assert (given.status, given.json) == (202, {"run": run})
        watched.free.set()
        await response.end()
    assert response.frames[-1].data["status"] == "completed"
    assert watched.deleted == ["a"]


@pytest.mark.scenario("SM-01", "SM-02")
async def test_a_second_click_is_refused_and_names_the_first() -> None:
    """While the run is under way, before the call starts and after that; the other one's answer is the one that counts.
    Two verdicts on one call in one request are none.
    """
    watched, journals, names = Watched(), Journals(), iter(["ann", "bob", "bob", "bob"])

    def admit(request: WebRequest) -> Grant:
        return Grant(by=next(names)) if request.action == "decide" else Grant()

    steps = [[call("delete", {"path": "a"}), call("delete", {"path": "b"}), call("hold")], say("Done.")]
    app = AgentApp(watched.agent(steps), on_disconnect="continue", journals=journals, admit=admit)
    async with app, send_request(app, "POST", "/runs", HELLO) as response:
        await response.frame("approval_requested", 2)
        await watched.started.wait()
        run = response.headers["agentloop-run"]
        assert (await decide(app, run, NO)).status == 202
        for verdicts in ([{**NO, "approve": True, "message": None}], [NO]):
            refused = await decide(app, run, *verdicts)
            assert (refused.status, refused.json["error"]) == (409, REJECTED)
        twice = await decide(app, run, YES, {**YES, "approve": False})
        assert twice.status == 409
        watched.free.set()
        await response.end()
    assert watched.deleted == []
    lines = b"\n".join(await journals.kept[run].read())
    assert lines.count(b'"kind":"verdict_given"') == 1


@pytest.mark.scenario("SM-03")
async def test_a_call_that_was_cancelled_while_it_waited_never_runs() -> None:
    """The approval that comes after the cancellation changes nothing."""
    watched, journals = Watched(), Journals()
    steps = [[call("delete", {"path": "a"}), call("hold")], say("Done.")]
    app = AgentApp(watched.agent(steps), on_disconnect="continue", journals=journals)
    async with app:
        async with send_request(app, "POST", "/runs", HELLO) as response:
            await response.frame("approval_requested")
            await watched.started.wait()
            run = response.headers["agentloop-run"]
            assert (await ask(app, "POST", f"/runs/{run}/cancel", {"call_id": "call_1"})).status == 202
            watched.free.set()
            await response.end()
        assert response.frames[-1].kind == "interrupted"
        paused = await ask(app, "POST", f"/runs/{run}/cancel", {"call_id": "call_1"})
        assert paused.status in (404, 409)
        assert "rejected by /verdicts" in paused.json["error"]
        after = await decide(app, run, YES)
        assert after.frames[-1].data["status"] == "completed"
    assert watched.deleted == []


@pytest.mark.parametrize(("status", "sentence", "verdict"), [(a, b, {**YES, **c}) for a, b, c in WRONG])
async def test_verdicts_on_a_run_under_way_are_given_together_or_not_at_all(
    status: int, sentence: str, verdict: dict[str, Any]
) -> None:
    """One that doesn't fit, by its path too, is refused as for a paused run, and those beside it don't count."""
    watched = Watched()
    steps = [[*(call("delete", {"path": path}) for path in "abc"), call("hold")], say("Done.")]
    app = AgentApp(watched.agent(steps), on_disconnect="continue", journals=Journals())
    async with app, send_request(app, "POST", "/runs", HELLO) as response:
        await response.frame("approval_requested", 3)
        await watched.started.wait()
        refused = await decide(app, response.headers["agentloop-run"], {**YES, "call_id": "call_3"}, verdict)
        assert refused.status == status
        assert sentence in refused.json["error"]
        watched.free.set()
        await response.end()
    asked = response.frames[-1].data["interruptions"]
    assert [one["call"]["call_id"] for one in asked] == ["call_1", "call_2", "call_3"]
    assert watched.deleted == []


async def test_state_of_a_client_is_sealed_and_used_once() -> None:
    """A changed state is refused, and so is one whose ticket belongs to another."""
    watched = Watched()
    tickets = MemoryStates()
    app = AgentApp(watched.agent(deleting() + deleting()), states=ClientStates(tickets), key=KEY)
    handle = await pause(app)
    ticket, _, text = handle.partition(".")
    changed = json.loads(text)
    changed["records"][0]["input"][0]["content"] = "other"
    assert (await decide(app, f"{ticket}.{json.dumps(changed)}", YES, NO)).status == 409
    assert (await decide(app, handle, YES, NO)).status == 409  # its ticket is spent
    forged = await tickets.put(_digest(json.dumps(changed)))
    refused = await decide(app, f"{forged}.{json.dumps(changed)}", YES, NO)
    assert refused.status == 409  # by the seal
    assert watched.deleted == []


async def test_ticket_of_one_state_takes_no_other() -> None:
    """Both states are sealed, and both runs wait: with exchanged tickets neither goes on, and the tickets are spent."""
    watched, states = Watched(), ClientStates()
    apps = [AgentApp(watched.agent(deleting()), states=states, key=KEY) for _ in range(2)]
    (one, _, first), (two, _, second) = [(await pause(app)).partition(".") for app in apps]
    assert first != second
    for ticket, state in ((one, second), (two, first), (one, first)):
        assert (await decide(apps[0], f"{ticket}.{state}", YES, NO)).status == 409
    assert watched.deleted == []


async def test_key_of_states_is_replaced_by_another(tmp_path: Path) -> None:
    """Of several keys the first seals, and all open: a run that pauses again has the new seal."""
    new, states = SealKey(b"fedcba9876543210", "2"), FolderStates(tmp_path)
    keys = {"2": new, "1": KEY}
    watched = Watched()
    agent = watched.agent(deleting())
    handle = await pause(AgentApp(agent, states=states, key=KEY))
    refused = await decide(AgentApp(agent, states=states, key=new), handle, YES)
    assert refused.status == 409
    response = await decide(AgentApp(agent, states=states, key=keys), refused.json["handle"], YES)
    handle = response.frames[-1].data["handle"]
    response = await decide(AgentApp(agent, states=states, key=new), handle, {**YES, "call_id": "call_2"})
    assert response.frames[-1].data["status"] == "completed"
    assert watched.deleted == ["a", "b"]


class Shelf:
    """A store of the application's own, whose values somebody else can change."""

    def __init__(self) -> None:
        self.kept: dict[str, str] = {}

    async def put(self, state: str) -> str:
        """Keep it."""
        self.kept[name := new_name()] = state
        return name

    async def take(self, handle: str) -> str | None:
        """Give it once."""
        return self.kept.pop(handle, None)

    def exchange(self) -> None:
        """Put two states into each other's place."""
        one, other = self.kept
        self.kept[one], self.kept[other] = self.kept[other], self.kept[one]


class GivingShelf(Shelf):
    """Takes a state back under its handle."""

    async def put_back(self, handle: str, state: str) -> str:
        """Keep it again."""
        self.kept[handle] = state
        return handle


@pytest.mark.parametrize("carried", [False, True])
async def test_a_store_that_takes_nothing_back_gives_a_new_handle(carried: bool) -> None:
    """The refusal has it; the run isn't lost, and the old handle finds nothing."""
    watched = Watched()
    app = AgentApp(watched.agent(deleting()), states=ClientStates(Shelf()) if carried else Shelf(), key=KEY)
    handle = await pause(app)
    refused = await decide(app, handle, {**YES, "call_id": "call_9"})
    assert (await decide(app, handle, YES, NO)).status == 409
    assert (await decide(app, refused.json["handle"], YES, NO)).status == 200
    assert watched.deleted == ["a"]


def exchange_files(folder: Path) -> None:
    """Put the two files of *folder* into each other's place."""
    one, other = folder.iterdir()
    os.rename(one, folder / "aside")
    os.rename(other, one)
    os.rename(folder / "aside", other)


@pytest.mark.scenario("SM-14")
@pytest.mark.parametrize("place", ["folder", "unsealed folder", "tickets", "shelf", "journal", "continue"])
async def test_paused_runs_that_were_exchanged_in_their_store_are_refused(tmp_path: Path, place: str) -> None:
    """The verdict on one run never decides on another: neither with a key, nor where the handle shows the exchange."""
    shelf, key = Shelf(), b"0123456789abcdef"
    more: dict[str, Any] = {
        "folder": {"states": FolderStates(tmp_path), "key": KEY},
        "unsealed folder": {"states": FolderStates(tmp_path)},
        "tickets": {"states": ClientStates(FolderStates(tmp_path)), "key": KEY},
        "shelf": {"states": shelf, "key": KEY},
        "journal": {"journals": JournalFolder(tmp_path, key=key)},
        "continue": {"journals": JournalFolder(tmp_path, key=key), "on_disconnect": "continue"},
    }[place]
    watched = Watched()
    one, other = (AgentApp(watched.agent(deleting()), **more) for _ in range(2))
    async with one, other:
        handles = [(app, await pause(app)) for app in (one, other)]
        shelf.exchange() if place == "shelf" else exchange_files(tmp_path)
        for app, handle in handles:
            refused = await decide(app, handle, YES, NO)
            assert refused.status in (409, 500), refused.body  # 500: a damaged journal is no fault of the client
            if "journals" in more:
                assert (await ask(app, "GET", f"/runs/{handle}/events")).status == 500
    assert watched.deleted == []


async def test_handle_of_an_older_version_is_taken(tmp_path: Path) -> None:
    """It has no digest; the states that waited under such handles can still be decided on."""
    old = new_name()
    (tmp_path / f"{old}.state").write_text("state")
    assert await FolderStates(tmp_path).take(old) == "state"


def _digest(text: str) -> str:
    from agentloop.journal._states import _digest as digest

    return digest(text)


async def test_secret_arguments_are_hidden_in_the_question() -> None:
    """The client that decides sees digests; without a codec the call can't run after that, and says so."""

    @tool(needs_approval=True, secret={"token"})
    async def login(token: str) -> str:
        """Log in."""
        raise AssertionError

    agent = Agent("a", model=ScriptedModel([call("login", {"token": "hunter22"}), say("No.")]), tools=[login])
    app = AgentApp(agent)
    response = await ask(app, "POST", "/runs", HELLO)
    assert response.frames[-1].kind == "interrupted"
    answer = await decide(app, response.frames[-1].data["handle"], YES)
    assert b"hunter22" not in response.body + answer.body


async def test_store_of_states_in_memory_forgets_the_oldest() -> None:
    """Beyond its limit; a state is given once."""
    states = MemoryStates(limit=2)
    handles = [await states.put(str(number)) for number in range(3)]
    assert [await states.take(handle) for handle in handles] == [None, "1", "2"]
    assert await states.take(handles[1]) is None


async def test_store_of_states_in_memory_is_bounded_by_bytes() -> None:
    """The oldest go when another one needs their room; one that is larger than all of it is refused, and none goes."""
    size = sys.getsizeof("x" * 1_000)
    states = MemoryStates(max_bytes=3 * size)
    handles = [await states.put(str(number) * 1_000) for number in range(4)]
    assert await states.take(handles[0]) is None
    assert await states.take(handles[2]) == "2" * 1_000
    handles.append(await states.put("4" * 1_000))  # in the room of the one that was taken
    with pytest.raises(StateError, match=f"MemoryStates keep at most {3 * size}"):
        await states.put("y" * 4_000)
    assert [len(await states.take(handles[at]) or "") for at in (1, 3, 4)] == [1_000] * 3


async def test_store_of_states_in_memory_forgets_what_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    """A state that waited longer than a day can't be taken, and the next save frees its memory."""
    now = 1_000.0
    monkeypatch.setattr("agentloop.journal._states.time.monotonic", lambda: now)
    states, forever = MemoryStates(), MemoryStates(max_age=None)
    handle, kept = await states.put("old"), await forever.put("old")
    late = await states.put("other")
    now += 86_401
    assert await states.take(late) is None
    new = await states.put("new")
    assert await states.take(handle) is None
    assert states._size == sys.getsizeof("new")
    assert await states.take(new) == "new"
    assert await forever.take(kept) == "old"


@pytest.mark.parametrize("name", ["limit", "max_bytes", "max_age"])
@pytest.mark.parametrize("value", [0, -1, "1", True])
def test_bounds_of_states_in_memory_are_checked(name: str, value: Any) -> None:
    """Each is a positive number."""
    with pytest.raises((UserTypeError, UserValueError), match=name):
        MemoryStates(**{name: value})


async def test_store_of_states_in_a_folder(tmp_path: Path) -> None:
    """Files of the owner alone; of many takers one gets it; a disk that refuses is a `StateError`."""
    states = FolderStates(tmp_path / "states")
    handle = await states.put("text")
    assert all(path.stat().st_mode & 0o77 == 0 for path in (tmp_path / "states").iterdir())
    got: list[str | None] = []

    async def take() -> None:
        got.append(await states.take(handle))

    async with anyio.create_task_group() as group:
        for _ in range(5):
            group.start_soon(take)
    assert sorted(got, key=str) == [None] * 4 + ["text"]
    assert list((tmp_path / "states").iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match="can't be kept"):
        await FolderStates(tmp_path / "file").put("text")
    with pytest.raises(StateError, match="can't be taken"):
        await FolderStates(tmp_path / "file").take(handle)


def make_old(folder: Path, seconds: float) -> None:
    """Let the files of *folder* be older by so many seconds."""
    for path in folder.iterdir():
        changed = path.stat().st_mtime - seconds
        os.utime(path, (changed, changed))


async def test_folder_of_states_forgets_old_ones_when_it_keeps_another(tmp_path: Path) -> None:
    """What was abandoned, or left by a process that died, goes with the first save; no other file does."""
    handle = await FolderStates(tmp_path).put("abandoned")
    left = [tmp_path / f"{new_name()}.{kind}" for kind in ("taken", "new")]
    others = [tmp_path / name for name in (f"{new_name()}.journal", "short.state", "notes.txt")]
    for path in (*left, *others):
        path.write_text("x")
    make_old(tmp_path, 7200)
    recent = await FolderStates(tmp_path).put("recent")
    forever = FolderStates(tmp_path)
    await forever.put("without an age nothing goes")
    assert (tmp_path / f"{handle}.state").exists()
    states = FolderStates(tmp_path, max_age=3600)
    kept = await states.put("kept")
    gone = [tmp_path / f"{handle}.state", *left]
    assert [path.exists() for path in (*gone, *others)] == [False] * 3 + [True] * 3
    assert [await states.take(one) for one in (handle, recent, kept)] == [None, "recent", "kept"]


async def test_folder_of_states_is_looked_through_at_few_of_the_saves(tmp_path: Path) -> None:
    """A save costs the same however many runs wait: a state may live one percent longer than its age."""
    states = FolderStates(tmp_path, max_age=3600)
    first = await states.put("first")
    make_old(tmp_path, 7200)
    await states.put("second")
    assert (tmp_path / f"{first}.state").exists()
    await FolderStates(tmp_path, max_age=3600).put("third")
    assert not (tmp_path / f"{first}.state").exists()


async def test_state_that_is_being_taken_is_not_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its age counts from the taking on; so two processes of one folder lose none between them."""
    states = FolderStates(tmp_path, max_age=3600)
    handle = await states.put("old")
    make_old(tmp_path, 7200)
    read = Path.read_text

    def read_late(path: Path, **options: Any) -> str:
        anyio.from_thread.run(FolderStates(tmp_path, max_age=3600).put, "another")
        assert path.exists()
        return read(path, **options)

    monkeypatch.setattr(Path, "read_text", read_late)
    assert await states.take(handle) == "old"


async def test_short_age_spares_what_another_process_writes_or_reads(tmp_path: Path) -> None:
    """Files of a write or a read under way are left for an hour, however short the age is."""
    taken = tmp_path / f"{new_name()}.taken"
    taken.write_text("x")
    make_old(tmp_path, 60)
    await FolderStates(tmp_path, max_age=0.001).put("state")
    assert taken.exists()


async def test_folder_that_can_not_be_looked_through_still_keeps_states(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The run waits, other old states go, and the log says what was wrong."""
    handle, other = [await FolderStates(tmp_path).put("old") for _ in range(2)]
    make_old(tmp_path, 7200)
    unlink = Path.unlink

    def refuse(path: Path, **options: Any) -> None:
        if path.name == f"{handle}.state":
            raise PermissionError(13, "Permission denied", str(path))
        unlink(path, **options)

    monkeypatch.setattr(Path, "unlink", refuse)
    states = FolderStates(tmp_path, max_age=3600)
    assert await states.take(await states.put("new")) == "new"
    assert [(tmp_path / f"{one}.state").exists() for one in (handle, other)] == [True, False]
    assert "old states can't be deleted: Permission denied" in caplog.text


@pytest.mark.parametrize(
    ("age", "error"),
    [(0, UserValueError), (-1.0, UserValueError), (float("inf"), UserValueError), ("1h", UserTypeError)],
)
def test_age_of_states_is_checked(tmp_path: Path, age: Any, error: type[Exception]) -> None:
    """It is a number of seconds, or None."""
    with pytest.raises(error, match="max_age"):
        FolderStates(tmp_path, max_age=age)


async def test_journal_that_another_process_has_continued_takes_no_verdict(tmp_path: Path) -> None:
    """Two applications over one folder stand for two processes: the lock on the file decides."""
    first, second = Watched(), Watched()
    make = partial(AgentApp, journals=JournalFolder(tmp_path))
    app, other = make(first.agent(deleting())), make(second.agent(deleting()[1:]))
    run = await pause(app)
    async with JournalFolder(tmp_path).journal(run) as journal:
        await _touch(journal)
        refused = await decide(other, run, NO)
        assert (refused.status, refused.json["error"]) == (409, ELSEWHERE)
    assert second.deleted == []


async def _touch(journal: Any) -> None:
    """Take the lock of a journal, by appending a verdict on the first call."""
    from agentloop._storage.state_codec import line_encoder, state_from_journal
    from agentloop.state import RunState

    state = RunState(Agent("any"), (await state_from_journal(journal)).records)
    state.approve("call_1")
    await journal.append([line_encoder(None)(state.records[-1])])
