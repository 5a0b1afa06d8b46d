"""Whose a run is: said by `admit` at the start, kept in the log, and checked by every request about the run."""

from pathlib import Path
from typing import Any

import pytest
from web.agents import Watched, deleting, holding
from web.harness import Exchange, ask, cut_journal, send_request
from web.test_approvals import KEY, PLACES, YES, GivingShelf
from web.test_continued import going_on

from agentloop import UserError
from agentloop.asgi import AgentApp, ClientStates, Grant, JournalFolder, WebRequest

HELLO = {"input": "hello"}
pytestmark = [pytest.mark.real_clock]


def by_header(request: WebRequest) -> Grant:
    """Let everyone in, as who they say they are."""
    user = request.header("x-user")
    return Grant(owner=user, by=user)


async def ask_as(app: AgentApp, user: str | None, method: str, path: str, body: Any = None, **more: Any) -> Exchange:
    """Send a request of *user*."""
    return await ask(app, method, path, body, headers=as_user(user), **more)


def as_user(user: str | None) -> dict[str, str]:
    """Return the headers of *user*'s requests."""
    return {} if user is None else {"x-user": user}


REQUESTS: list[tuple[str, str, Any]] = [
    ("GET", "", None),
    ("GET", "/events", None),
    ("POST", "/cancel", {}),
    ("POST", "/cancel", {"call_id": "call_1"}),
    ("POST", "/answer", {"call_id": "call_1", "value": 1}),
    ("POST", "/input", {"input": "x"}),
    ("POST", "/withdraw", {"id": "x"}),
    ("POST", "verdicts", {"verdicts": [YES]}),
]


async def try_all(app: AgentApp, run: str, user: str | None) -> list[tuple[int, str]]:
    """Send every request about a run, and return the answers."""
    answers = []
    for method, path, body in REQUESTS:
        if path == "verdicts":
            response = await ask_as(app, user, method, "/verdicts", {**body, "handle": run})
        else:
            response = await ask_as(app, user, method, f"/runs/{run}{path}", body)
        answers.append((response.status, response.json["error"]))
    return answers


@pytest.mark.parametrize("goes_on", [False, True])
async def test_a_run_under_way_is_there_for_its_owner_alone(goes_on: bool, tmp_path: Path) -> None:
    """Another user, or none, gets the answer for a run that isn't there; nothing of the run has changed."""
    watched = Watched()
    kept: dict[str, Any] = {"on_disconnect": "continue", "journals": JournalFolder(tmp_path)} if goes_on else {}
    agent = watched.agent(holding())
    app = AgentApp(agent, admit=by_header, **kept)
    async with app, send_request(app, "POST", "/runs", HELLO, as_user("ada")) as response:
        await response.frame("call_progress")
        run = response.headers["agentloop-run"]
        for stranger in ("eve", None):
            for (_, path, _), answer in zip(REQUESTS, await try_all(app, run, stranger), strict=True):
                if path == "verdicts" and not goes_on:
                    assert answer[0] == 409  # a handle is no name of a run
                else:
                    assert answer == (404, "There is no such run."), path
        assert (await ask_as(app, "ada", "POST", f"/runs/{run}/input", {"input": "x"})).status == 202
        assert (await ask_as(app, "ada", "POST", f"/runs/{run}/cancel", {})).status == 202
        await response.end()
    assert response.frames[-1].data["status"] == "cancelled"


async def test_a_stored_run_is_there_for_its_owner_alone(tmp_path: Path) -> None:
    """In another process, which has only the journal."""
    watched = Watched()
    folder = JournalFolder(tmp_path)
    first = AgentApp(watched.agent(deleting()), journals=folder, admit=by_header)
    run = (await ask_as(first, "ada", "POST", "/runs", HELLO)).headers["agentloop-run"]
    other = AgentApp(watched.agent(deleting()[1:]), journals=folder, admit=by_header)
    for stranger in ("eve", None):
        found = dict(zip([path for _, path, _ in REQUESTS], await try_all(other, run, stranger), strict=True))
        assert {answer[0] for answer in found.values()} == {404}
    assert watched.deleted == []
    assert (await ask_as(other, "ada", "GET", f"/runs/{run}")).json["status"] == "interrupted"
    decided = await ask_as(other, "ada", "POST", "/verdicts", {"handle": run, "verdicts": [YES]})
    assert decided.status == 200
    assert watched.deleted == ["a"]


OWN_STORES: dict[str, Any] = {
    "shelf": lambda path: {"states": GivingShelf()},
    "tickets": lambda path: {"states": ClientStates(GivingShelf()), "key": KEY},
}


@pytest.mark.parametrize("place", ["memory", "folder", "client", *OWN_STORES])
async def test_a_handle_is_its_owners_alone(place: str, tmp_path: Path) -> None:
    """Who has found the handle of another user's run can't decide on it, and doesn't take it away from its owner."""
    watched = Watched()
    app = AgentApp(watched.agent(deleting()), admit=by_header, **{**PLACES, **OWN_STORES}[place](tmp_path))
    paused = await ask_as(app, "ada", "POST", "/runs", HELLO)
    handle = paused.frames[-1].data["handle"]
    run = paused.headers["agentloop-run"]
    requests: list[tuple[str, dict[str, Any]]] = [
        ("/verdicts", {"verdicts": [YES]}),
        (f"/runs/{run}/answer", {"call_id": "call_1", "value": 1}),
        (f"/runs/{run}/input", HELLO),
        (f"/runs/{run}/withdraw", {"id": "x"}),
    ]
    for path, body in requests:
        refused = await ask_as(app, "eve", "POST", path, {**body, "handle": handle})
        assert refused.status == 404
        assert refused.json == {"error": "There is no such run.", "handle": handle}
    assert watched.deleted == []
    decided = await ask_as(app, "ada", "POST", "/verdicts", {"handle": handle, "verdicts": [YES]})
    assert decided.status == 200


async def test_a_run_without_an_owner_is_as_before() -> None:
    """Whoever `admit` lets in may ask about it."""
    watched = Watched()
    app = going_on(watched.agent(deleting()), admit=by_header)
    async with app:
        run = (await ask_as(app, None, "POST", "/runs", HELLO)).headers["agentloop-run"]
        assert (await ask_as(app, "eve", "GET", f"/runs/{run}")).status == 200


async def test_runs_are_resumed_with_the_context_of_their_owner(tmp_path: Path) -> None:
    """Each by its id and its owner, who stays the same; one context for all goes with neither."""
    seen: list[Any] = []
    folder = JournalFolder(tmp_path)

    def make() -> AgentApp:
        agent = Watched().agent(deleting())
        agent.instructions = lambda ctx, agent: seen.append(ctx.context) or "Go."
        return AgentApp(agent, on_disconnect="continue", journals=folder, admit=by_header)

    runs: dict[str, str] = {}
    async with make() as app:
        for user in ("ada", "bob"):
            runs[(await ask_as(app, user, "POST", "/runs", HELLO)).headers["agentloop-run"]] = user
    for run in runs:
        await cut_journal(tmp_path / f"{run}.journal")
    seen.clear()
    async with make() as app:
        with pytest.raises(UserError, match="can't be used together"):
            await app.resume_all(context="all", context_of=lambda run, owner: owner)
        asked: dict[str, str | None] = {}
        found = await app.resume_all(context_of=lambda run, owner: asked.setdefault(run, owner))
        assert set(found.resumed) == set(runs)
        for run, user in runs.items():
            assert (await ask_as(app, user, "GET", f"/runs/{run}/events")).status == 200
            assert (await ask_as(app, "eve", "GET", f"/runs/{run}/events")).status == 404
    assert asked == runs
    assert sorted(seen) == ["ada", "bob"]


async def test_a_run_without_a_context_prevents_no_other(tmp_path: Path) -> None:
    """The error of the application says why the first one isn't resumed; it can be resumed later."""
    folder = JournalFolder(tmp_path)
    async with going_on(Watched().agent(deleting()), folder, admit=by_header) as app:
        made = [(await ask_as(app, "ada", "POST", "/runs", HELLO)).headers["agentloop-run"] for _ in range(3)]
    for run in made:
        await cut_journal(tmp_path / f"{run}.journal")
    first, *others = await folder.runs()
    gone = KeyError("ada")

    def find(run: str, owner: str | None) -> Any:
        if run == first:
            raise gone
        return owner

    async with going_on(Watched().agent(deleting() * 3), folder, admit=by_header) as app:
        found = await app.resume_all(context_of=find)
        assert (list(found.resumed), dict(found.failed)) == (others, {first: gone})
        assert first in (await app.resume_all()).resumed
