"""The applications of the page about browsers, as a reader would copy them."""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from web.agents import Watched, looking
from web.harness import ask
from web.test_frameworks import lifespan, may_run

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "web.md").read_text(encoding="utf-8")
BLOCKS: dict[str, str] = dict(re.findall(r"```python\n# page: (\w+)\n(.*?)```", PAGE, re.DOTALL))


@pytest.fixture
def make_app(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Executes a block of the page, whose module `agents` has an agent, and returns its `app`."""
    module = ModuleType("agents")
    module.agent = Watched().agent(looking())  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "agents", module)

    def make(name: str) -> Any:
        page = ModuleType(f"page_{name}")
        monkeypatch.setitem(sys.modules, page.__name__, page)  # where Litestar looks for the types of a handler
        exec(compile(BLOCKS[name], f"web.md:{name}", "exec"), vars(page))
        return page.app

    return make


def test_page_shows_every_framework() -> None:
    """One application each."""
    assert set(BLOCKS) == {"starlette", "fastapi", "litestar", "quart"}


@pytest.mark.real_clock
@pytest.mark.parametrize("name", BLOCKS)
async def test_mounted_agent_of_the_page_answers(name: str, make_app: Callable[[str], Any], anyio_backend: Any) -> None:
    """Below `/agent`, within the framework's lifespan."""
    pytest.importorskip(name, reason="needs frameworks: nox -s tests-web")
    may_run(name, anyio_backend)
    app = make_app(name)
    async with lifespan(app):
        response = await ask(app, "POST", "/agent/runs", {"input": "hello"})
    assert response.frames[-1].data["status"] == "completed"


@pytest.mark.real_clock
@pytest.mark.parametrize("name", sorted(set(BLOCKS) - {"quart"}))
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
