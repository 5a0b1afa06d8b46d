"""A server of its own process, for the tests: `python served.py KIND DESCRIPTOR FOLDER` serves agents at a socket.

`/cancel/…` and `/continue/…` are applications whose runs end with their clients or continue. `/status` says what is
left in the process once every request to them is answered.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import anyio

from agentloop import Agent, RunConfig, ToolContext, tool
from agentloop import records as r
from agentloop.abc import Instrument, Model
from agentloop.asgi import AgentApp, Grant, JournalFolder, WebLimits, WebRequest
from agentloop.config import ToolExecution
from agentloop.items import ToolCall
from agentloop.testing import ScriptedModel, call, say

GRACE = 2.0


class Counts(Instrument):
    """What the runs of this process have begun and ended."""

    def __init__(self) -> None:
        self.started = self.settled = self.begun = self.over = self.cleaned = 0

    def on_record(self, record: r.Record) -> None:
        """Count *record*."""
        self.started += isinstance(record, r.CallStarted)
        self.settled += isinstance(record, r.CallSettled) and record.outcome.started_at is not None
        self.begun += isinstance(record, r.RunStarted)
        self.over += isinstance(record, r.RunEnded)


COUNTS = Counts()


@tool
async def hold(ctx: ToolContext[Any], seconds: float) -> str:
    """Work for some seconds."""
    try:
        await anyio.sleep(seconds)
    finally:
        with ctx.cleanup():
            await anyio.sleep(0.01)
            COUNTS.cleaned += 1
    return "held"


@tool
def think(number: int) -> str:
    """Work in a thread."""
    return f"thought {number}"


class ByInput(Model):
    """A model that does as the last message says: `hold SECONDS`, `talk COUNT`, or both kinds of calls at once."""

    def stream(self, request: Any) -> Any:
        """Answer by a script."""
        from agentloop.items import UserMessage

        asked = [item for item in request.items if isinstance(item, UserMessage)][-1].text
        word, _, number = asked.partition(" ")
        called = any(isinstance(item, ToolCall) for item in request.items)
        if word == "talk":
            step: Any = say("x" * 1_000 + " " * int(number))
        elif called:
            step = say("Done.")
        else:
            step = [call("hold", {"seconds": float(number)}), call("think", {"number": 1})]
        return ScriptedModel([step]).stream(request)


def make_apps(folder: Path) -> dict[str, AgentApp]:
    """Return the applications by their paths."""
    agent = Agent("server", model=ByInput(), tools=[hold, think])
    config = RunConfig(instruments=[COUNTS], tool_execution=ToolExecution(cleanup_grace=GRACE))

    def admit(request: WebRequest) -> Grant:
        return Grant(options={"run_config": config})

    limits = WebLimits(send_timeout=None)
    return {
        "/cancel": AgentApp(agent, admit=admit, limits=limits),
        "/continue": AgentApp(
            agent, on_disconnect="continue", journals=JournalFolder(folder), admit=admit, limits=limits
        ),
    }


class Root:
    """The application at the root: the others by their paths, and the status."""

    def __init__(self, folder: Path) -> None:
        self.apps = make_apps(folder)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request, or follow the lifespan."""
        if scope["type"] == "lifespan":
            await receive()
            async with self.apps["/cancel"], self.apps["/continue"]:
                await send({"type": "lifespan.startup.complete"})
                await receive()
            print(json.dumps(self.status()), flush=True)
            await send({"type": "lifespan.shutdown.complete"})
            return
        for path, app in self.apps.items():
            if scope["path"].startswith(path):
                await app({**scope, "root_path": path}, receive, send)
                return
        for app in self.apps.values():
            while app._requests:
                await app._answered.wait()
        body = json.dumps(self.status()).encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"connection", b"close")]})
        await send({"type": "http.response.body", "body": body})

    async def stop(self) -> None:
        """Stop both applications: hypercorn waits for open streams before it ends the lifespan."""
        for app in self.apps.values():
            await app.stop()

    def status(self) -> dict[str, int]:
        """Return what is left, and what was counted."""
        live = sum(len(app._host._live) for app in self.apps.values())
        return {
            **vars(COUNTS),
            "live": live,
            "tasks": len(anyio.get_running_tasks()),
            "threads": threading.active_count(),
            "descriptors": len(os.listdir("/proc/self/fd")),
            "memory": int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"),
        }


def main(kind: str, descriptor: int, folder: Path) -> None:
    """Serve until SIGTERM."""
    app = Root(folder)
    if kind == "uvicorn":
        import uvicorn

        uvicorn.run(app, fd=descriptor, log_level="warning", timeout_graceful_shutdown=1)
        return
    from hypercorn.config import Config

    config = Config()
    config.bind = [f"fd://{descriptor}"]
    config.graceful_timeout = 1
    if kind == "hypercorn-asyncio":
        import asyncio

        from hypercorn.asyncio import serve

        async def run() -> None:
            signalled = asyncio.Event()
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, signalled.set)

            async def ended() -> None:
                await signalled.wait()
                await app.stop()

            await serve(app, config, shutdown_trigger=ended)  # type: ignore[arg-type]

        asyncio.run(run())
    else:
        import trio
        from hypercorn.trio import serve as serve_on_trio

        async def run_on_trio() -> None:
            with trio.open_signal_receiver(signal.SIGTERM) as signals:

                async def ended() -> None:
                    async for _ in signals:
                        await app.stop()
                        return

                await serve_on_trio(app, config, shutdown_trigger=ended)  # type: ignore[arg-type]

        trio.run(run_on_trio)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
