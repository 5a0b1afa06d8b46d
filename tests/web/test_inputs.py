"""Input for a run: shown once, taken back until then, kept while the run waits, refused with a reason."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from kit.agents import PASSED
from web.agents import Watched, deleting, holding
from web.harness import Exchange, ask, send_request
from web.test_approvals import ELSEWHERE, NO, PLACES, YES
from web.test_continued import Journals

from agentloop import Agent, AskAgain, input_guardrail
from agentloop.asgi import AgentApp, Grant, JournalFolder, MemoryStates, WebRequest
from agentloop.exceptions import StateError
from agentloop.items import UserMessage
from agentloop.records import InputAdded, InputWithdrawn
from agentloop.state import RunState
from agentloop.testing import ScriptedModel, say

HELLO = {"input": "hello"}
FRENCH = {"input": "In French."}
pytestmark = [pytest.mark.real_clock]


@pytest.fixture(params=list(PLACES))
def make_app(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., AgentApp]:
    """Makes an application over one of the places where paused runs are kept."""
    return lambda agent, **more: AgentApp(agent, **PLACES[request.param](tmp_path), **more)


async def add(app: AgentApp, run: str, **body: Any) -> Exchange:
    """Send input."""
    return await ask(app, "POST", f"/runs/{run}/input", {**FRENCH, **body})


async def withdraw(app: AgentApp, run: str, **body: Any) -> Exchange:
    """Take input back."""
    return await ask(app, "POST", f"/runs/{run}/withdraw", body)


async def look(app: AgentApp, run: str) -> Any:
    """Return what the application says of a run."""
    response = await ask(app, "GET", f"/runs/{run}")
    assert response.status == 200, response.json
    assert response.json["run"] == run
    return response.json


def shown(agent: Agent[Any, Any]) -> list[str]:
    """Return the messages of the user that the last request had."""
    assert isinstance(agent.model, ScriptedModel)
    return [item.text for item in agent.model.requests[-1].items if isinstance(item, UserMessage)]


def status_of(found: Any) -> list[tuple[str, str]]:
    """Return the id and the status of each input."""
    return [(each["id"], each["status"]) for each in found["inputs"]]


@pytest.mark.scenario("PE-01")
@pytest.mark.parametrize("place", ["memory", "continue"])
async def test_input_for_a_run_under_way_is_in_its_next_request(place: str, tmp_path: Path) -> None:
    """It is in the stream when the model is shown it; sent twice it counts once; taken back it is never shown."""
    watched = Watched()
    agent = watched.agent([*holding(), say("Et voilà.")])
    app = AgentApp(agent, **PLACES[place](tmp_path))
    async with app:
        async with send_request(app, "POST", "/runs", HELLO) as response:
            await response.frame("call_progress")
            run = response.headers["agentloop-run"]
            for _ in range(2):
                given = await add(app, run, id="a")
                assert (given.status, given.json) == (202, {"run": run, "id": "a"})
            assert (await add(app, run, when="idle", input="And again.")).json["id"] == "input_2"
            assert (await add(app, run, id="c", input="No!")).status == 202
            taken = await withdraw(app, run, id="c")
            assert (taken.status, taken.json) == (202, {"run": run, "id": "c"})
            found = await look(app, run)
            assert status_of(found) == [("a", "waiting"), ("input_2", "waiting"), ("c", "withdrawn")]
            assert (found["status"], found["inputs"][1]["when"]) == ("running", "idle")
            [item] = found["inputs"][0]["items"]
            assert (item["type"], item["content"]) == ("user_message", [{"type": "text", "text": "In French."}])
            watched.free.set()
            await response.end()
        stored = await ask(app, "GET", f"/runs/{run}")
    made = [frame.data["item"] for frame in response.frames if frame.kind == "item_created"]
    said = [item["content"][0]["text"] for item in made if item["type"] == "user_message"]
    assert said == ["In French.", "And again."]
    assert response.frames[-1].data["status"] == "completed"
    assert shown(agent) == ["hello", "In French.", "And again."]
    if place == "continue":
        assert (stored.json["status"], status_of(stored.json)[0]) == ("completed", ("a", "shown"))
    else:
        assert stored.status == 404


@pytest.mark.scenario("PE-01")
async def test_input_for_a_paused_run_waits_for_its_verdicts(make_app: Callable[..., AgentApp]) -> None:
    """It is durable at once, and shown when the run continues; one that was taken back isn't."""
    watched = Watched()
    agent = watched.agent(deleting())
    async with make_app(agent) as app:
        response = await ask(app, "POST", "/runs", HELLO)
        run, handle = response.headers["agentloop-run"], response.frames[-1].data["handle"]
        given = await add(app, run, id="a", handle=handle)
        assert given.status == 202, given.json
        handle = given.json.get("handle", handle)
        other = await add(app, run, input="No!", handle=handle)
        handle = other.json.get("handle", handle)
        taken = await withdraw(app, run, id=other.json["id"], handle=handle)
        assert taken.status == 202, taken.json
        handle = taken.json.get("handle", handle)
        refused = await withdraw(app, run, id="a?", handle=handle)
        assert (refused.status, refused.json["reason"]) == (409, "unknown")
        handle = refused.json.get("handle", handle)
        if handle == run:
            found = await look(app, run)
            assert (found["status"], status_of(found)) == ("interrupted", [("a", "waiting"), ("input_2", "withdrawn")])
            assert [asked["call"]["call_id"] for asked in found["interruptions"]] == ["call_1", "call_2"]
        decided = await ask(app, "POST", "/verdicts", {"handle": handle, "verdicts": [YES, NO]})
        assert decided.frames[-1].data["status"] == "completed"
    assert shown(agent) == ["hello", "In French."]


@pytest.mark.parametrize("place", ["journal", "continue"])
async def test_inputs_that_come_at_once_for_a_paused_run_are_all_taken(place: str, tmp_path: Path) -> None:
    """One waits for the other: each opens the journal, and none is refused as if the run were under way."""
    agent = Watched().agent(deleting())
    app = AgentApp(agent, **PLACES[place](tmp_path))
    async with app:
        run = (await ask(app, "POST", "/runs", HELLO)).headers["agentloop-run"]
        given: list[Exchange] = []

        async def send(number: int) -> None:
            given.append(await add(app, run, id=str(number)))

        async with anyio.create_task_group() as group:
            for number in range(5):
                group.start_soon(send, number)
        assert [each.status for each in given] == [202] * 5
        assert {each["id"] for each in (await look(app, run))["inputs"]} == set("01234")


async def test_a_handle_of_a_paused_run_takes_input_once(tmp_path: Path) -> None:
    """The answer has a new one; the old one finds nothing, and neither does an id alone."""
    app = AgentApp(Watched().agent(deleting()))
    response = await ask(app, "POST", "/runs", HELLO)
    run, handle = response.headers["agentloop-run"], response.frames[-1].data["handle"]
    assert (await add(app, run)).status == 404
    assert (await add(app, run, handle=handle)).status == 202
    assert (await add(app, run, handle=handle)).status == 409


class FullStates(MemoryStates):
    """Refuses new states while it is full."""

    full = False

    async def put(self, state: str) -> str:
        if self.full:
            raise StateError("no room")
        return await super().put(state)


@pytest.mark.parametrize("what", ["input", "withdraw"])
async def test_a_store_without_room_for_the_longer_state_keeps_the_run(what: str) -> None:
    """The request is refused; the run waits under its handle, as it was."""
    states = FullStates()
    agent = Watched().agent(deleting())
    app = AgentApp(agent, states=states)
    response = await ask(app, "POST", "/runs", HELLO)
    run, handle = response.headers["agentloop-run"], response.frames[-1].data["handle"]
    handle = (await add(app, run, id="a", handle=handle)).json["handle"]
    states.full = True
    refused = await (
        add(app, run, id="b", handle=handle) if what == "input" else withdraw(app, run, id="a", handle=handle)
    )
    assert refused.status == 503
    assert refused.json == {"error": "The server can't keep what was given: try again later.", "handle": handle}
    states.full = False
    decided = await ask(app, "POST", "/verdicts", {"handle": handle, "verdicts": [YES, NO]})
    assert decided.frames[-1].data["status"] == "completed"
    assert shown(agent) == ["hello", "In French."]


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("input", {}, "missing required field `input`"),
    ("input", {"input": 1}, "$.input"),
    ("input", {**FRENCH, "when": "now"}, "$.when"),
    ("input", {**FRENCH, "id": ""}, "$.id"),
    ("input", {**FRENCH, "id": "x" * 201}, "$.id"),
    ("input", {**FRENCH, "by": "me"}, "unknown field"),
    ("input", {**FRENCH, "handle": "other"}, "The handle is of another run than the path."),
    ("withdraw", {}, "missing required field `id`"),
    ("withdraw", {"id": "a", "handle": "other"}, "The handle is of another run than the path."),
]


@pytest.mark.parametrize(("what", "body", "sentence"), WRONG)
async def test_a_body_that_does_not_fit_is_refused(what: str, body: dict[str, Any], sentence: str) -> None:
    """400 with a sentence, before anything of a run is touched."""
    app = AgentApp(Watched().agent([]), journals=Journals())
    refused = await ask(app, "POST", f"/runs/{'r' * 20}/{what}", body)
    assert refused.status == 400
    assert sentence in refused.json["error"]


async def test_input_that_no_request_can_show_is_refused_with_the_reason(tmp_path: Path) -> None:
    """The run is over, has no turn left, isn't there, is another process's, or the id is taken."""
    watched = Watched()
    folder = JournalFolder(tmp_path)
    app = AgentApp(watched.agent(holding()), journals=folder, admit=lambda request: Grant(options={"max_turns": 2}))
    async with app, send_request(app, "POST", "/runs", HELLO) as response:
        await response.frame("call_progress")
        run = response.headers["agentloop-run"]
        assert (await add(app, run, id="a")).status == 202
        other = await add(app, run, id="a", input="Something else.")
        assert (other.status, other.json["reason"]) == (409, "other_input")
        assert other.json["error"] == "'a' is the id of another input."
        watched.free.set()
        await response.end()
        over = await add(app, run)
        assert (over.status, over.json["reason"]) == (409, "over")
        assert over.json["error"] == "The run is over: it has completed."
        assert (await add(app, run, id="a")).json == {"run": run, "id": "a"}  # known: it was sent again
        late = await withdraw(app, run, id="a")
        assert (late.status, late.json["reason"]) == (409, "over")
        for path in ("input", "withdraw"):
            assert (await ask(app, "POST", f"/runs/{'r' * 20}/{path}", {"input": "x"} | {})).status in (400, 404)
        assert (await add(app, "r" * 20)).status == 404
        assert (await ask(app, "GET", f"/runs/{'r' * 20}")).status == 404
        assert (await ask(app, "POST", f"/runs/{run}", {})).status == 405


async def test_the_last_turn_takes_no_input() -> None:
    """It has made its request, and no other follows."""
    watched = Watched()
    app = AgentApp(watched.agent(holding()), admit=lambda request: Grant(options={"max_turns": 1}))
    async with app, send_request(app, "POST", "/runs", HELLO) as response:
        await response.frame("call_progress")
        refused = await add(app, response.headers["agentloop-run"])
        assert (refused.status, refused.json["reason"]) == (409, "no_turn_left")


async def test_a_run_that_another_process_has_takes_input_there_only(tmp_path: Path) -> None:
    """Two applications over one folder stand for two processes: the lock on the file decides."""
    app = AgentApp(Watched().agent(deleting()), journals=JournalFolder(tmp_path))
    response = await ask(app, "POST", "/runs", HELLO)
    run = response.headers["agentloop-run"]
    async with JournalFolder(tmp_path).journal(run) as held:
        assert await held.try_lock()
        refused = await add(app, run)
        assert (refused.status, refused.json["error"]) == (409, ELSEWHERE)
    assert (await add(app, run)).status == 202


@pytest.mark.scenario("PE-03")
async def test_a_guardrail_can_refuse_input_and_the_sender_learns_why() -> None:
    """It isn't shown, and the run continues."""

    @input_guardrail
    async def polite(ctx: Any, agent: Any, given: Any) -> Any:
        """Ask for better words."""
        return AskAgain("Be polite.") if "French" in str(given) else PASSED

    watched = Watched()
    agent = watched.agent(holding(), input_guardrails=[polite])
    app = AgentApp(agent, journals=Journals())
    async with app, send_request(app, "POST", "/runs", HELLO) as response:
        await response.frame("call_progress")
        run = response.headers["agentloop-run"]
        assert (await add(app, run, id="a")).status == 202
        watched.free.set()
        await response.end()
        [found] = (await look(app, run))["inputs"]
    assert (found["status"], found["reason"]) == ("rejected", "Be polite.")
    assert shown(agent) == ["hello"]


async def test_admit_is_asked_and_the_log_has_the_giver(tmp_path: Path) -> None:
    """With the action `input` and the run, where its id finds it; a refusal changes nothing."""
    asked: list[tuple[str, str | None, str | None]] = []

    def admit(request: WebRequest) -> Grant:
        asked.append((request.action, request.run, request.conversation))
        return Grant(by="ada")

    agent = Watched().agent(deleting())
    journals = Journals()
    app = AgentApp(agent, journals=journals, admit=admit)
    run = (await ask(app, "POST", "/runs", HELLO)).headers["agentloop-run"]
    await add(app, run, id="a", conversation="c")
    await withdraw(app, run, id="a")
    await look(app, run)
    assert asked == [("start", None, None), ("input", run, "c"), ("input", run, None), ("read", run, None)]
    state = await RunState.from_journal(agent, journals.journal(run))
    given = [record for record in state.records if isinstance(record, InputAdded | InputWithdrawn)]
    assert [record.by for record in given] == ["ada", "ada"]


async def test_names_are_checked_for_every_request_about_a_run() -> None:
    """A page of another site can't add input or look at a run."""
    app = AgentApp(Watched().agent([]), journals=Journals())
    for method, path in (("POST", "input"), ("POST", "withdraw"), ("GET", "")):
        url = f"/runs/{'r' * 20}/{path}".rstrip("/")
        foreign = {"host": "localhost", "origin": "http://evil.example"}
        assert (await ask(app, method, url, FRENCH, headers=foreign)).status == 403
    plain = {"content-type": "text/plain"}
    assert (await ask(app, "POST", f"/runs/{'r' * 20}/input", FRENCH, headers=plain)).status == 415
