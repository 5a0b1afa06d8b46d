"""A chat in the browser: text as it comes, calls side by side, approvals, questions, messages while a run works, a
cancel button, lost connections.

    python -m examples.web_chat.app                 # needs uvicorn; then open http://127.0.0.1:8000
    MODEL=local: python -m examples.web_chat.app    # or openai:NAME; without it the model is scripted
    hypercorn --worker-class trio examples.web_chat.app:app

A run continues when the connection is lost, and the page reads on where it was: press "drop connection" while an answer
comes, or reload the page. Journals are in the folder of `RUNS`. There are no users here: an application for several
checks in `admit` who asks.
"""

import os
import re
import tempfile
from pathlib import Path
from typing import Any

import anyio

from agentloop import Agent, ToolContext, ask_user, tool
from agentloop.abc import Model
from agentloop.asgi import AgentApp, Grant, JournalFolder, WebRequest
from agentloop.items import ToolOutput, UserMessage
from agentloop.model_events import ModelRequest
from agentloop.sessions import MemorySession
from agentloop.testing import FunctionModel, call, say
from examples.web_chat.slow_model import SlowModel

FILES = {"/": ("page.html", b"text/html; charset=utf-8"), "/page.js": ("page.js", b"text/javascript; charset=utf-8")}
POLICY = b"default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; connect-src 'self'; base-uri 'none'"
NOTES = {"milk": "buy milk", "ada": "call Ada"}
SECONDS = float(os.environ.get("SECONDS_OF_A_CALL", "1.5"))


@tool
async def forecast(ctx: ToolContext[Any], city: str) -> str:
    """Look up the weather of tomorrow.

    Args:
        city: The name of a city.
    """
    for step in range(1, 4):
        await anyio.sleep(SECONDS / 3)
        await ctx.report(step, 3, f"station {step}")
    return f"{city}: {'rain' if len(city) % 2 else 'sun'}"


@tool(needs_approval=True)
async def delete_note(name: str) -> str:
    """Delete one of the user's notes.

    Args:
        name: The name of the note.
    """
    return f"{name} is deleted" if NOTES.pop(name, None) else f"there is no note {name}"


def answer(request: ModelRequest) -> object:
    """Play the model."""
    outputs = []
    for item in reversed(request.items):
        if not isinstance(item, ToolOutput):
            break
        outputs.insert(0, str(item.output))
    if outputs:
        return say(". ".join(outputs) + ".")
    text = [item.text for item in request.items if isinstance(item, UserMessage)][-1]
    if "weather" in text.lower():
        cities = re.findall(r"\b[A-Z][a-z]+\b", text.split("weather", 1)[1]) or ["Oslo", "Rome", "Bonn"]
        return [call("forecast", {"city": city}) for city in cities]
    if "drink" in text.lower():
        return call("ask_user", {"question": "Tea or coffee?"})
    if found := re.search(r"[Dd]elete (\w+)", text):
        return call("delete_note", {"name": found[1]})
    said = f"You said: {text} Ask me for the weather in Oslo, Rome and Bonn, tell me to delete milk, or order a drink. "
    return say(said + "This text is long so that there is time to drop the connection or to cancel the run.")


def make_agent() -> Agent[Any, Any]:
    """Return the agent, with the model of the environment or the scripted one."""
    name = os.environ.get("MODEL")
    model: str | Model = name or SlowModel(FunctionModel(answer, chunk=4), SECONDS / 30)
    asking = ask_user(options=["tea", "coffee"])
    return Agent("chat", instructions="Be brief and kind.", model=model, tools=[forecast, delete_note, asking])


class Chat:
    """The pages, and the agent behind them."""

    def __init__(self, runs: Path) -> None:
        self._sessions: dict[str, MemorySession] = {}
        self._agent = AgentApp(make_agent(), on_disconnect="continue", journals=JournalFolder(runs), admit=self._admit)

    def _admit(self, request: WebRequest) -> Grant:
        """Give the run the session of its conversation, whose name the page has drawn; at most a thousand are kept."""
        if request.conversation is None:
            return Grant()
        while len(self._sessions) >= 1_000:
            del self._sessions[next(iter(self._sessions))]
        session = self._sessions.setdefault(request.conversation, MemorySession())
        return Grant(options={"session": session}, by="the person at the page")

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer with a file, or let the agent's application answer, which also follows the lifespan."""
        if scope["type"] != "http" or scope["path"] not in FILES:
            await self._agent(scope, receive, send)
            return
        name, kind = FILES[scope["path"]]
        body = await anyio.Path(__file__).with_name(name).read_bytes()
        headers = [(b"content-type", kind), (b"content-security-policy", POLICY), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


app = Chat(Path(os.environ.get("RUNS") or tempfile.mkdtemp(prefix="web-chat-")))

if __name__ == "__main__":
    import uvicorn

    uvicorn.run(app, port=8000, timeout_graceful_shutdown=2)
