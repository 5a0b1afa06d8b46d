"""The frameworks: `AgentApp` mounted in each, and `RunResponse` as the response of a route where that is possible."""

import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import anyio
import pytest
from web.agents import Watched, holding, looking
from web.harness import ask, send_request

from agentloop.asgi import AgentApp, JournalFolder, RunResponse

pytestmark = [pytest.mark.real_clock]
HELLO = {"input": "hello"}


@asynccontextmanager
async def lifespan(app: Any) -> AsyncIterator[None]:
    """Start an application as a server does, and shut it down at the end of the block."""
    begun, ending, ended = anyio.Event(), anyio.Event(), anyio.Event()
    begins = iter([True])

    async def receive() -> Any:
        if next(begins, False):
            return {"type": "lifespan.startup"}
        await ending.wait()
        return {"type": "lifespan.shutdown"}

    async def send(message: Any) -> None:
        assert message["type"].endswith(".complete"), message
        (ended if begun.is_set() else begun).set()

    async with anyio.create_task_group() as group:
        group.start_soon(app, {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, receive, send)
        await begun.wait()
        yield
        ending.set()
        await ended.wait()


def in_starlette(app: AgentApp, respond: Callable[[str], RunResponse]) -> Any:
    """Return an application of Starlette."""
    starlette = pytest.importorskip("starlette.applications", reason="needs frameworks: nox -s tests-web")
    from starlette.requests import Request
    from starlette.routing import Mount, Route

    @asynccontextmanager
    async def live(_: Any) -> AsyncIterator[None]:
        async with app:
            yield

    async def chat(request: Request) -> RunResponse:
        return respond((await request.json())["input"])

    routes = [Mount("/agent", app), Route("/chat", chat, methods=["POST"])]  # type: ignore[arg-type,unused-ignore]
    return starlette.Starlette(routes=routes, lifespan=live)


def in_fastapi(app: AgentApp, respond: Callable[[str], RunResponse]) -> Any:
    """Return an application of FastAPI, whose routes may be Starlette's."""
    fastapi = pytest.importorskip("fastapi", reason="needs frameworks: nox -s tests-web")
    from starlette.requests import Request
    from starlette.routing import Route

    @asynccontextmanager
    async def live(_: Any) -> AsyncIterator[None]:
        async with app:
            yield

    async def chat(request: Request) -> RunResponse:
        return respond((await request.json())["input"])

    made = fastapi.FastAPI(lifespan=live, routes=[Route("/chat", chat, methods=["POST"])])  # type: ignore[arg-type,unused-ignore]
    made.mount("/agent", app)
    return made


def in_litestar(app: AgentApp, respond: Callable[[str], RunResponse]) -> Any:
    """Return an application of Litestar."""
    litestar: Any = pytest.importorskip("litestar", reason="needs frameworks: nox -s tests-web")
    from litestar.handlers import asgi

    @asynccontextmanager
    async def live(_: Any) -> AsyncIterator[None]:
        async with app:
            yield

    @asgi("/agent", is_mount=True, copy_scope=True)
    async def agent(scope: Any, receive: Any, send: Any) -> None:
        await app(scope, receive, send)

    @asgi("/chat", copy_scope=True)
    async def chat(scope: Any, receive: Any, send: Any) -> None:
        # A handler of this kind can't read the body by Litestar's request.
        await respond(litestar.connection.ASGIConnection(scope).query_params["input"])(scope, receive, send)

    agent.fn.__annotations__ = chat.fn.__annotations__ = {
        "scope": litestar.types.Scope,
        "receive": litestar.types.Receive,
        "send": litestar.types.Send,
        "return": None,
    }
    return litestar.Litestar([agent, chat], lifespan=[live])


def in_quart(app: AgentApp, respond: Callable[[str], RunResponse]) -> Any:
    """Return an application of Quart: ASGI applications go before it."""
    quart = pytest.importorskip("quart", reason="needs frameworks: nox -s tests-web")
    made = quart.Quart("pages")
    inner = made.asgi_app

    async def dispatch(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"].startswith("/agent/"):
            await app({**scope, "root_path": "/agent"}, receive, send)
        else:
            await inner(scope, receive, send)

    made.asgi_app = dispatch

    @made.while_serving
    async def live() -> AsyncIterator[None]:
        async with app:
            yield

    return made


FRAMEWORKS = {"starlette": in_starlette, "fastapi": in_fastapi, "litestar": in_litestar, "quart": in_quart}


def may_run(framework: str, backend: object) -> None:
    """Skip a framework on a backend that it does not know."""
    if framework in ("litestar", "quart") and "trio" in str(backend):
        pytest.skip("this framework knows asyncio alone")


@pytest.fixture(params=list(FRAMEWORKS))
def framework(request: pytest.FixtureRequest, anyio_backend: Any) -> Any:
    """One framework, on a backend that it knows."""
    may_run(request.param, anyio_backend)
    return FRAMEWORKS[request.param]


async def test_mounted_application_has_all_its_paths(framework: Any, tmp_path: Path) -> None:
    """Start, read again, another path: below the mount as at the root."""
    app = AgentApp(Watched().agent(looking()), on_disconnect="continue", journals=JournalFolder(tmp_path))
    root = framework(app, lambda text: RunResponse(Watched().agent(looking()), text))
    async with lifespan(root):
        whole = await ask(root, "POST", "/agent/runs", HELLO)
        assert whole.status == 200, whole.body
        assert whole.frames[-1].data["status"] == "completed"
        again = await ask(root, "GET", f"/agent/runs/{whole.headers['agentloop-run']}/events")
        assert again.frames[-1].data["status"] == "completed"
        assert (await ask(root, "POST", "/agent/nothing", {})).json == {"error": "There is nothing here."}
        assert (await ask(root, "POST", "/agent/runs", {})).status == 400


@pytest.mark.scenario("VI-06")
async def test_run_of_a_mounted_application_ends_with_its_client(framework: Any) -> None:
    """The framework passes the client's end on."""
    watched = Watched()
    root = framework(AgentApp(watched.agent(holding())), lambda text: RunResponse(Watched().agent([]), text))
    async with lifespan(root), send_request(root, "POST", "/agent/runs", HELLO) as response:
        await response.frame("call_started")
        await watched.started.wait()
        response.leave()
        await response.end()
        assert watched.ended == ["hold"]


@pytest.mark.parametrize("name", ["starlette", "fastapi", "litestar"])
async def test_response_of_a_route(name: str, anyio_backend: Any) -> None:
    """A route reads the request itself and gives the run as the response; the run ends with its client."""
    may_run(name, anyio_backend)
    watched = Watched()
    root = FRAMEWORKS[name](AgentApp(Watched().agent([])), lambda text: RunResponse(watched.agent(holding()), text))
    async with lifespan(root):
        async with send_request(root, "POST", "/chat", HELLO, query_string=b"input=hello") as response:
            await response.frame("call_started")
            await watched.started.wait()
            response.leave()
            await response.end()
        assert watched.ended == ["hold"]
        watched.free.set()
        whole = await ask(root, "POST", "/chat", HELLO, query_string=b"input=hello")
        assert whole.frames[-1].data["status"] == "completed", whole.body


async def test_shutdown_of_a_framework_ends_the_runs(framework: Any, tmp_path: Path) -> None:
    """Its lifespan leaves the application's block, which cancels them and waits."""
    watched = Watched()
    app = AgentApp(watched.agent(holding()), on_disconnect="continue", journals=JournalFolder(tmp_path))
    root = framework(app, lambda text: RunResponse(Watched().agent([]), text))
    async with lifespan(root):
        async with send_request(root, "POST", "/agent/runs", HELLO) as response:
            await response.frame("call_started")
            await watched.started.wait()
        assert watched.ended == []
    assert watched.ended == ["hold"]


async def test_route_of_fastapi_returns_a_run(anyio_backend: Any) -> None:
    """With dependencies, a body that is checked, headers, cookies, and tasks that begin when the run has ended."""
    pytest.importorskip("fastapi", reason="needs frameworks: nox -s tests-web")
    from fastapi import BackgroundTasks, Depends, FastAPI, Header
    from pydantic import BaseModel

    class Question(BaseModel):
        input: str

    may_run("fastapi", anyio_backend)
    watched = Watched()
    app, seen = FastAPI(), []

    def user(x_user: Annotated[str, Header()]) -> str:
        return x_user

    @app.post("/chat")
    async def chat(question: Question, who: Annotated[str, Depends(user)], tasks: BackgroundTasks) -> RunResponse:
        tasks.add_task(lambda: seen.append((who, list(watched.ended))))
        response = RunResponse(watched.agent(holding()), question.input)
        response.headers["x-asked-by"] = who
        response.set_cookie("talk", "1")
        return response

    async with lifespan(app):
        async with send_request(app, "POST", "/chat", {"input": "hello"}, headers={"x-user": "ada"}) as response:
            await response.frame("call_started")
            await watched.started.wait()
            assert seen == []
            response.leave()
            await response.end()
        assert seen == [("ada", ["hold"])]
        watched.free.set()
        whole = await ask(app, "POST", "/chat", {"input": "hello"}, headers={"x-user": "bob"})
        wrong = await ask(app, "POST", "/chat", {"inputs": "hello"}, headers={"x-user": "bob"})
    assert whole.frames[-1].data["status"] == "completed"
    assert (whole.headers["x-asked-by"], whole.headers["content-type"]) == ("bob", "text/event-stream; charset=utf-8")
    assert whole.headers["set-cookie"].startswith("talk=1")
    assert [who for who, _ in seen] == ["ada", "bob"]
    assert wrong.status == 422


@pytest.mark.slow
def test_response_needs_no_framework() -> None:
    """Where Starlette isn't installed, it is an ASGI application and nothing else."""
    code = (
        "import sys; sys.modules['starlette'] = None\n"
        "from agentloop.asgi import RunResponse\n"
        "print([base.__module__ for base in RunResponse.__mro__])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert "starlette" not in done.stdout
