"""The applications of the page about browsers, as a reader would copy them."""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from web.agents import Watched, looking
from web.harness import ask, cut_journal
from web.test_frameworks import lifespan, may_run

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "web.md").read_text(encoding="utf-8")
BLOCKS: dict[str, str] = dict(re.findall(r"```python\n# page: (\w+)\n(.*?)```", PAGE, re.DOTALL))

FRAMEWORKS = sorted(set(BLOCKS) - {"served", "resumed", "origins"})


@pytest.fixture
def make_app(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Executes a block of the page, whose module `agents` has an agent, and returns its `app`."""
    module = ModuleType("agents")
    module.agent = Watched().agent([*looking(), *looking()])  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "agents", module)

    def make(name: str) -> Any:
        page = ModuleType(f"page_{name}")
        monkeypatch.setitem(sys.modules, page.__name__, page)  # where Litestar looks for the types of a handler
        exec(compile(BLOCKS[name], f"web.md:{name}", "exec"), vars(page))
        return page.app

    return make


def test_page_shows_every_framework() -> None:
    """One application each."""
    assert set(FRAMEWORKS) == {"starlette", "fastapi", "litestar", "quart"}


@pytest.mark.real_clock
@pytest.mark.parametrize("name", FRAMEWORKS)
async def test_mounted_agent_of_the_page_answers(name: str, make_app: Callable[[str], Any], anyio_backend: Any) -> None:
    """Below `/agent`, within the framework's lifespan."""
    pytest.importorskip(name, reason="needs frameworks: nox -s tests-web")
    may_run(name, anyio_backend)
    app = make_app(name)
    async with lifespan(app):
        response = await ask(app, "POST", "/agent/runs", {"input": "hello"})
    assert response.frames[-1].data["status"] == "completed"


@pytest.mark.real_clock
@pytest.mark.parametrize("name", sorted(set(FRAMEWORKS) - {"quart"}))
async def test_route_of_the_page_answers_with_a_run(
    name: str, make_app: Callable[[str], Any], anyio_backend: Any
) -> None:
    """A `RunResponse` as the response of a route."""
    pytest.importorskip(name, reason="needs frameworks: nox -s tests-web")
    may_run(name, anyio_backend)
    app = make_app(name)
    async with lifespan(app):
        response = await ask(app, "POST", "/chat", {"input": "hello"}, query_string=b"input=hello")
    assert response.frames[-1].data["status"] == "completed"


@pytest.mark.real_clock
async def test_application_of_the_page_that_a_server_serves_answers_each_time(make_app: Callable[[str], Any]) -> None:
    """Unlike a script, its model doesn't run out."""
    app = make_app("served")
    async with lifespan(app):
        for _ in range(2):
            response = await ask(app, "POST", "/runs", {"input": "Hi."})
            assert [frame.data["text"] for frame in response.frames if frame.kind == "text_delta"] == ["Hello."]


@pytest.mark.real_clock
async def test_lifespan_of_the_page_resumes_what_a_crash_has_cut(
    make_app: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run whose journal has no end is completed by the next process."""
    pytest.importorskip("starlette", reason="needs frameworks: nox -s tests-web")
    monkeypatch.chdir(tmp_path)
    app = make_app("resumed")
    async with lifespan(app):
        begun = await ask(app, "POST", "/agent/runs", {"input": "hello"})
    run = begun.headers["agentloop-run"]
    await cut_journal(tmp_path / "runs" / f"{run}.journal")
    app = make_app("resumed")
    async with lifespan(app):
        rest = await ask(app, "GET", f"/agent/runs/{run}/events")
    assert rest.frames[-1].kind == "run_ended"


@pytest.mark.scenario("SM-15")
@pytest.mark.real_clock
async def test_front_end_of_the_page_on_another_origin_is_answered(make_app: Callable[[str], Any]) -> None:
    """It may ask, send the request and read the answer; a page of a third origin may do none of it."""
    pytest.importorskip("starlette", reason="needs frameworks: nox -s tests-web")
    app = make_app("origins")
    asks = {"access-control-request-method": "POST", "access-control-request-headers": "content-type"}
    for origin, allowed in (("http://localhost:5173", True), ("https://evil.example", False)):
        headers = {"origin": origin, "host": "localhost:8000"}
        server = ("127.0.0.1", 8000)
        before = await ask(app, "OPTIONS", "/runs", headers={**headers, **asks}, server=server)
        assert (before.status == 200) is allowed
        answer = await ask(app, "POST", "/runs", {"input": "hello"}, headers=headers, server=server)
        assert answer.status == (200 if allowed else 403)
        assert ("access-control-allow-origin" in answer.headers) is allowed
