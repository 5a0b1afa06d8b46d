"""A client of AG-UI for tests: it reads each stream by the protocol's types and rules, and by its JavaScript client."""

import atexit
import json
import os
import select
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from web.harness import ask

from agentloop.asgi import AgentApp

ui: Any = pytest.importorskip("ag_ui.core", reason="needs the extra ag-ui: nox -s tests-web")
pydantic: Any = pytest.importorskip("pydantic")

NPM = Path(os.environ.get("AGENTLOOP_NPM", Path(__file__).parents[2] / "build" / "npm"))
"""Where `nox -s tests-web` has installed the client."""
HAS_CLIENT = (NPM / "node_modules" / "@ag-ui" / "client").is_dir() and shutil.which("node") is not None
READER = """
import { HttpAgent } from "@ag-ui/client";
import { createInterface } from "node:readline";
let said = [];
console.warn = console.error = (...words) => said.push(words.join(" "));
for await (const line of createInterface({ input: process.stdin })) {
  const { asked, body } = JSON.parse(line);
  said = [];
  const agent = new HttpAgent({
    url: "http://here/ag-ui",
    threadId: asked.threadId,
    initialMessages: asked.messages,
    initialState: asked.state ?? {},
    fetch: async () => new Response(body, { headers: { "content-type": "text/event-stream" } }),
  });
  const made = await agent
    .runAgent({ runId: asked.runId, tools: asked.tools, resume: asked.resume })
    .catch((error) => said.push(error.message));
  const { state, messages } = agent;
  console.log(JSON.stringify({ state, messages: made?.newMessages ?? [], said }));
}
"""


def make_input(text: str = "hello", **more: Any) -> dict[str, Any]:
    """Return a request with one message."""
    messages = more.pop("messages", [{"id": "m1", "role": "user", "content": text}])
    return {"threadId": "t", "runId": "r", "messages": messages, **more}


async def converse(app: AgentApp, body: dict[str, Any]) -> list[Any]:
    """Send a request, and return the events, which are valid."""
    response = await ask(app, "POST", "/ag-ui", body)
    assert response.status == 200, response.body
    events = [json.loads(block.removeprefix("data: ")) for block in response.body.decode().split("\n\n")[:-1]]
    reader = pydantic.TypeAdapter(ui.Event)
    found = [reader.validate_python(event) for event in events]
    assert found[0].type == "RUN_STARTED"
    assert found[-1].type in ("RUN_FINISHED", "RUN_ERROR")
    check_messages(found)
    check_state(found, body.get("state"))
    check_by_the_client(response.body, body, found)
    return found


def check_messages(events: list[Any]) -> None:
    """Every message and call that begins ends once, nothing is added to it outside, and no message is empty."""
    open_ones: set[str] = set()
    written = {event.message_id for event in events if event.type == "TEXT_MESSAGE_CONTENT"}
    assert {event.message_id for event in events if event.type == "TEXT_MESSAGE_START"} == written
    for event in events:
        kind = str(event.type.value)
        if kind in ("TEXT_MESSAGE_START", "TOOL_CALL_START"):
            open_ones.add(event.message_id if kind.startswith("TEXT") else event.tool_call_id)
        elif kind in ("TEXT_MESSAGE_CONTENT", "TOOL_CALL_ARGS"):
            assert (event.message_id if kind.startswith("TEXT") else event.tool_call_id) in open_ones
        elif kind in ("TEXT_MESSAGE_END", "TOOL_CALL_END"):
            open_ones.remove(event.message_id if kind.startswith("TEXT") else event.tool_call_id)
    assert not open_ones


def texts(events: list[Any]) -> list[str]:
    """Return the text of each message, in order."""
    found: dict[str, str] = {}
    for event in events:
        if event.type == "TEXT_MESSAGE_CONTENT":
            found[event.message_id] = found.get(event.message_id, "") + event.delta
    return list(found.values())


def check_state(events: list[Any], state: Any) -> Any:
    """Return the state that the client has at the end, whose first was *state*; a snapshot comes before all patches."""
    has_one = False
    for event in events:
        if event.type == "STATE_SNAPSHOT":
            state, has_one = json.loads(json.dumps(event.snapshot)), True
        elif event.type == "STATE_DELTA":
            assert has_one
            assert event.delta
            state = apply_patch(state, [operation.model_dump() for operation in event.delta])
    return state


def apply_patch(value: Any, patch: list[dict[str, Any]]) -> Any:
    """Return *value* with *patch* applied, by the rules of RFC 6902 for the operations that we send."""
    root = json.loads(json.dumps([value]))
    for operation in json.loads(json.dumps(patch)):
        *way, last = [name.replace("~1", "/").replace("~0", "~") for name in f"/0{operation['path']}".split("/")[1:]]
        place: Any = root
        for name in way:
            place = place[int(name) if isinstance(place, list) else name]
        key: Any = int(last) if isinstance(place, list) else last
        if operation["op"] == "add" and isinstance(place, list):
            assert 0 <= key <= len(place)
            place.insert(key, operation["value"])
        elif operation["op"] == "add":
            place[key] = operation["value"]
        else:
            old = place.pop(key)  # it must be there
            if operation["op"] == "replace":
                assert json.dumps(old) != json.dumps(operation["value"])
                place.insert(key, operation["value"]) if isinstance(place, list) else place.update(
                    {key: operation["value"]}
                )
            else:
                assert operation["op"] == "remove"
    return root[0]


@cache
def start_client() -> subprocess.Popen[str]:
    """Start the protocol's JavaScript client, which reads any number of streams."""
    command = ["node", "--input-type=module", "-e", READER]
    made = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=NPM)

    def stop() -> None:
        with made:
            made.kill()

    atexit.register(stop)
    return made


def read_by_the_client(body: bytes, asked: dict[str, Any]) -> dict[str, Any]:
    """Return what the JavaScript client makes of a stream: its state, its new messages, and what it says is wrong."""
    client = start_client()
    assert client.stdin is not None
    assert client.stdout is not None
    client.stdin.write(json.dumps({"asked": asked, "body": body.decode()}) + "\n")
    client.stdin.flush()
    assert select.select([client.stdout], [], [], 60)[0], "the client has not answered"
    found: dict[str, Any] = json.loads(client.stdout.readline())
    return found


def check_by_the_client(body: bytes, asked: dict[str, Any], events: list[Any]) -> None:
    """The JavaScript client takes every event, and has the same state and texts, where it is installed."""
    if not HAS_CLIENT:
        return
    found = read_by_the_client(body, asked)
    assert found["said"] == []
    assert found["state"] == check_state(events, asked.get("state", {}))
    said = [message.get("content") for message in found["messages"] if message["role"] == "assistant"]
    assert [text for text in said if text] == texts(events)
