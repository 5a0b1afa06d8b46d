"""Answers over HTTP to calls that the application answers: a call takes one, wherever the run waits."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from web.agents import Watched
from web.harness import Exchange, ask, send_request
from web.test_approvals import PLACES
from web.test_continued import Journals

from agentloop import Agent, ExternalTool, ask_user, tool
from agentloop.asgi import AgentApp, Grant, JournalFolder, WebRequest
from agentloop.testing import ScriptedModel, call, say

HELLO = {"input": "hello"}
SEAT = {"type": "object", "properties": {"seat": {"type": "integer"}}, "required": ["seat"]}
pytestmark = [pytest.mark.real_clock]


def choosing(*more: Any, calls: int = 1) -> Agent[Any, Any]:
    """Return an agent that lets the user choose seats, `c1`, `c2` …, beside the calls *more*, and repeats nothing."""
    watched = Watched()
    chosen = [call("choose", {"row": number}, f"c{number}") for number in range(1, calls + 1)]
    plain = watched.agent([])
    external = ExternalTool("choose", "Let the user choose.", {"type": "object"}, returns=SEAT)
    return Agent("a", model=ScriptedModel([[*chosen, *more], say("Done.")]), tools=[*plain.tools, external])


@pytest.fixture(params=list(PLACES))
def make_app(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., AgentApp]:
    """Makes an application over one of the places where paused runs are kept."""
    return lambda agent, **more: AgentApp(agent, **PLACES[request.param](tmp_path), **more)


async def pause(app: AgentApp) -> tuple[str, str, Any]:
    """Run to the pause, and return the run's id, the handle, and the first call that waits."""
    response = await ask(app, "POST", "/runs", HELLO)
    last = response.frames[-1]
    assert last.kind == "interrupted", last
    return response.headers["agentloop-run"], last.data["handle"], last.data["interruptions"][0]


async def answer(app: AgentApp, run: str, **body: Any) -> Exchange:
    """Send an answer."""
    return await ask(app, "POST", f"/runs/{run}/answer", {"call_id": "c1", **body})


def outputs(response: Exchange) -> list[Any]:
    """Return what the model was told about each call that has settled."""
    return [frame.data["outcome"]["output"] for frame in response.frames if frame.kind == "call_settled"]


@pytest.mark.scenario("PE-04")
async def test_an_answer_resumes_the_run_once(make_app: Callable[..., AgentApp]) -> None:
    """The pause has the schema, from which a form can be made; a second answer is refused, and the first one counts."""
    async with make_app(choosing()) as app:
        run, handle, asked = await pause(app)
        assert (asked["type"], asked["call"]["call_id"], asked["returns"]) == ("call_to_answer", "c1", SEAT)
        response = await answer(app, run, value={"seat": 7}, handle=handle)
        assert response.status == 200, response.json
        assert response.frames[-1].data["status"] == "completed"
        assert outputs(response) == ['{"seat": 7}']
        again = await answer(app, run, value={"seat": 8}, handle=handle)
        assert again.status == 409


WRONG: list[tuple[int, str, dict[str, Any]]] = [
    (409, "Call 'c9' waits for no answer.", {"call_id": "c9", "value": {"seat": 1}}),
    (409, "waits for no answer", {"value": {"seat": 1}, "path": ["other"]}),
    (409, "waits for no answer", {"call_id": "c2", "value": {"seat": 1}}),
    (400, "The answer to call 'c1' of tool 'choose' doesn't fit", {"value": {"seat": "x"}}),
    (400, "doesn't fit", {"value": None}),
    (400, "expected a value or an error", {}),
    (400, "expected a value or an error", {"value": 1, "error": "no"}),
    (400, "unknown field", {"value": 1, "by": "me"}),
    (400, "The body is no JSON text.", {"value": [[]]}),
]


@pytest.mark.scenario("PE-04")
@pytest.mark.parametrize(("status", "sentence", "body"), WRONG)
async def test_an_answer_that_does_not_fit_leaves_the_call_waiting(
    make_app: Callable[..., AgentApp], status: int, sentence: str, body: dict[str, Any]
) -> None:
    """It is refused with a sentence, and the run takes a right one afterwards; so is one on a call for a verdict."""
    async with make_app(choosing(call("delete", {"path": "a"}, "c2"))) as app:
        run, handle, _ = await pause(app)
        if body.get("value") == [[]]:
            deep = b'{"call_id": "c1", "value": ' + b"[" * 100_000
            refused = await ask(app, "POST", f"/runs/{run}/answer", deep)
        else:
            refused = await answer(app, run, **{"handle": handle, **body})
        assert refused.status == status, refused.json
        assert sentence in refused.json["error"]
        handle = refused.json.get("handle", handle)
        response = await answer(app, run, error="The plane is full.", handle=handle)
        assert "The plane is full." in outputs(response)[0]
        assert response.frames[-1].kind == "interrupted"  # the other call still waits for its verdict


async def test_answers_come_one_by_one_and_beside_verdicts(make_app: Callable[..., AgentApp]) -> None:
    """The run pauses again for the calls that still wait; a verdict on a call for an answer is refused."""
    async with make_app(choosing(call("delete", {"path": "a"}, "d1"), calls=2)) as app:
        run, handle, _ = await pause(app)
        verdict = {"handle": handle, "verdicts": [{"call_id": "c1", "approve": True}]}
        refused = await ask(app, "POST", "/verdicts", verdict)
        assert (refused.status, refused.json["error"]) == (409, "Call 'c1' waits for no verdict.")
        handle = refused.json.get("handle", handle)
        left = [["c2", "d1"], ["d1"]]
        for one, waiting in zip(("c1", "c2"), left, strict=True):
            response = await answer(app, run, call_id=one, value={"seat": 1}, handle=handle)
            last = response.frames[-1].data
            assert [asked["call"]["call_id"] for asked in last["interruptions"]] == waiting
            run, handle = response.headers["agentloop-run"], last["handle"]
        verdict = {"handle": handle, "verdicts": [{"call_id": "d1", "approve": True}]}
        response = await ask(app, "POST", "/verdicts", verdict)
        assert response.frames[-1].data["status"] == "completed"


@pytest.mark.scenario("PE-04")
async def test_of_many_answers_at_once_one_is_taken(make_app: Callable[..., AgentApp]) -> None:
    """Ten clients answer at the same time: one streams the run, and its answer is the only one."""
    answers: list[Exchange] = []
    async with make_app(choosing()) as app:
        run, handle, _ = await pause(app)

        async def one(seat: int) -> None:
            answers.append(await answer(app, run, value={"seat": seat}, handle=handle))

        async with anyio.create_task_group() as group:
            for seat in range(10):
                group.start_soon(one, seat)
    assert [sent.status for sent in answers if "run_ended" in sent.kinds] == [200]
    assert {sent.status for sent in answers} == {200, 409}


@pytest.mark.scenario("PE-04")
@pytest.mark.parametrize("goes_on", [False, True])
async def test_an_answer_while_the_run_is_under_way_saves_the_pause(goes_on: bool) -> None:
    """The stream says which call waits, and for what; the answer is 202, and a second one names the giver of the first.
    Without journals, too: the run is found by its id.
    """
    watched, names = Watched(), iter(["ada", "bob", "bob", "bob"])

    def admit(request: WebRequest) -> Grant:
        return Grant(by=next(names)) if request.action == "answer" else Grant()

    tools = [*watched.agent([]).tools, ask_user(options=["small", "large"])]
    steps = [[call("ask_user", {"question": "Which?"}, "c1"), call("hold")], say("Done.")]
    agent = Agent("a", model=ScriptedModel(steps), tools=tools)
    kept: dict[str, Any] = {"on_disconnect": "continue", "journals": Journals()} if goes_on else {}
    app = AgentApp(agent, admit=admit, **kept)
    async with app, send_request(app, "POST", "/runs", HELLO) as response:
        asked = (await response.frame("answer_requested")).data["request"]
        await watched.started.wait()
        assert (asked["type"], asked["returns"]) == ("call_to_answer", {"type": "string", "enum": ["small", "large"]})
        run = response.headers["agentloop-run"]
        given = await answer(app, run, value="large")
        assert (given.status, given.json) == (202, {"run": run})
        again = await answer(app, run, value="small")
        sentence = "No call 'c1' waits for an answer: it was answered by 'ada'."
        assert (again.status, again.json["error"]) == (409, sentence)
        for body, status in (({"call_id": "call_2", "value": 1}, 409), ({"path": ["x"], "value": 1}, 409)):
            assert (await answer(app, run, **body)).status == status
        watched.free.set()
        await response.end()
    assert response.frames[-1].data["status"] == "completed"
    assert "large" in outputs(response)


async def test_a_misfit_is_refused_while_the_run_is_under_way() -> None:
    """The call still waits, and pauses the run."""
    watched = Watched()
    steps = [[call("ask_user", {"question": "Which?"}, "c1"), call("hold")], say("Done.")]
    agent = Agent("a", model=ScriptedModel(steps), tools=[*watched.agent([]).tools, ask_user(options=["s"])])
    app = AgentApp(agent)
    async with send_request(app, "POST", "/runs", HELLO) as response:
        await response.frame("answer_requested")
        await watched.started.wait()
        refused = await answer(app, response.headers["agentloop-run"], value="x")
        assert refused.status == 400
        assert "doesn't fit" in refused.json["error"]
        watched.free.set()
        await response.end()
    assert response.frames[-1].kind == "interrupted"


async def test_a_call_of_a_nested_run_is_named_by_its_path(make_app: Callable[..., AgentApp]) -> None:
    """Without the path it is another call, which waits for nothing."""
    inner = choosing()
    outer = Agent("o", model=ScriptedModel([call("seats", {"input": "x"}, "o1"), say("Booked.")]), tools=[])
    outer = outer.clone(tools=[inner.as_tool("seats", "Choose.")])
    async with make_app(outer) as app:
        run, handle, asked = await pause(app)
        assert asked["path"] == ["o1"]
        refused = await answer(app, run, value={"seat": 7}, handle=handle)
        assert refused.status == 409
        handle = refused.json.get("handle", handle)
        response = await answer(app, run, value={"seat": 7}, handle=handle, path=asked["path"])
        assert response.frames[-1].data["status"] == "completed"


async def test_the_run_of_an_answer_is_found_by_one_name(tmp_path: Path) -> None:
    """With a journal by its id; without one by its handle, and by its id only while it is under way. `admit` sees the
    id of a run only where it finds the run.
    """
    seen: list[str | None] = []

    def admit(request: WebRequest) -> None:
        seen.append(request.run if request.action == "answer" else "")

    app = AgentApp(choosing(), admit=admit)
    run, handle, _ = await pause(app)
    missing = await answer(app, run, value={"seat": 7})
    assert (missing.status, missing.json["error"].split(".")[0]) == (404, "No such run is under way")
    assert (await answer(app, run, value={"seat": 7}, handle=handle)).status == 200
    assert seen == ["", run, None]
    app = AgentApp(choosing(), journals=Journals())
    run, handle, _ = await pause(app)
    assert run == handle
    other = await answer(app, run, value={"seat": 7}, handle="other")
    assert (other.status, other.json["error"]) == (400, "The handle is of another run than the path.")
    assert (await answer(app, run, value={"seat": 7})).status == 200
    assert (await answer(app, "x" * 20, value=1)).status == 404
    assert (await ask(app, "GET", f"/runs/{run}/answer")).status == 405


async def test_who_missed_the_pause_reads_which_call_waits() -> None:
    """The stored run has the question as an event, and ends with the pause."""
    app = AgentApp(choosing(), on_disconnect="continue", journals=Journals())
    async with app:
        run, _, asked = await pause(app)
        read = await ask(app, "GET", f"/runs/{run}/events")
        assert [frame.data["request"] for frame in read.frames if frame.kind == "answer_requested"] == [asked]
        assert read.frames[-1].data["interruptions"] == [asked]


async def test_half_a_character_in_the_id_of_a_call_that_waits() -> None:
    """A model may write ids that UTF-8 doesn't have: `GET /runs/ID` shows the pause as the stream does."""
    model = ScriptedModel([call("ask_user", {"question": "Which\ud800?"}, "c\ud800"), say("Done.")])
    app = AgentApp(Agent("a\ud800", model=model, tools=[ask_user()]), on_disconnect="continue", journals=Journals())
    async with app:
        run, _, asked = await pause(app)
        read = await ask(app, "GET", f"/runs/{run}")
        assert (read.status, read.json["interruptions"]) == (200, [asked])


@pytest.mark.scenario("PE-04")
async def test_an_answer_that_comes_too_late_is_refused_and_the_run_is_resumed(tmp_path: Path) -> None:
    """The application resumes all such runs, and the model learns of the timeout. Before that a run is left alone."""
    folder = JournalFolder(tmp_path)
    steps = [call("ask_user", {"question": "Which?"}, "c1"), say("Done.")]
    agent = Agent("a", model=ScriptedModel(steps), tools=[ask_user(timeout=3600)])
    app = AgentApp(agent, on_disconnect="continue", journals=folder)
    async with app:
        run, _, _ = await pause(app)
        assert (await app.resume_all()).waiting == (run,)
        await age(folder, tmp_path / f"{run}.journal", 3600.0)
        late = await answer(app, run, value="tea")
        assert (late.status, "its time, 3600 seconds, has passed" in late.json["error"]) == (409, True)
        assert (await app.resume_all()).resumed == (run,)
        read = await ask(app, "GET", f"/runs/{run}/events")
        assert read.frames[-1].data["status"] == "completed"
        [settled] = [frame.data for frame in read.frames if frame.kind == "call_settled"]
        assert settled["outcome"]["status"] == "timed_out"


async def age(folder: JournalFolder, path: Path, seconds: float) -> None:
    """Make the records of the journal at *path* older."""
    async with folder.journal(path.stem) as journal:
        lines = [json.loads(line) for line in await journal.read()]
    for line in lines:
        line.update({name: line[name] - seconds for name in ("at", "expires_at") if name in line})
    await anyio.Path(path).unlink()
    async with folder.journal(path.stem) as journal:
        await journal.append([json.dumps(line).encode() for line in lines])


async def test_secret_arguments_of_a_call_to_answer_are_hidden() -> None:
    """In the question as in every event."""

    @tool(external=True, secret=["token"])
    def check(token: str) -> Any:
        """Check."""

    agent = Agent("a", model=ScriptedModel([call("check", {"token": "hunter22"}, "c1"), say("ok")]), tools=[check])
    response = await ask(AgentApp(agent), "POST", "/runs", HELLO)
    assert response.frames[-1].kind == "interrupted"
    assert b"hunter22" not in response.body
