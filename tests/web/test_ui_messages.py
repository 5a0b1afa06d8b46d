"""`POST /ui-messages`: runs as the UI message stream of Vercel's AI SDK, read by rules of its reader and by itself."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from web.agents import Watched, deleting, looking
from web.harness import ask

from agentloop import Agent, ExternalTool, ToolContext, ask_user, tool
from agentloop.asgi import AgentApp, Grant, WebRequest
from agentloop.items import AssistantMessage, Image, Text, ToolCall, ToolOutput, UserMessage
from agentloop.model_events import ItemDone, ResponseDone, TextDelta
from agentloop.testing import ScriptedModel, call, fail, reason, say, stream_of

Data = dict[str, Any]
SDK = Path(os.environ.get("AGENTLOOP_NPM", Path(__file__).parents[2] / "build" / "npm")) / "node_modules" / "ai"
"""Where `nox -s tests-web` has installed the SDK."""
READER = """
import { readUIMessageStream, uiMessageChunkSchema } from "ai";
import { parseJsonEventStream, asSchema } from "@ai-sdk/provider-utils";
const { body, message } = JSON.parse(await new Response(process.stdin).text());
const bytes = new Response(body).body;
const errors = [];
const chunks = parseJsonEventStream({ stream: bytes, schema: uiMessageChunkSchema }).pipeThrough(
  new TransformStream({ transform(one, to) {
    if (!one.success) throw one.error;
    to.enqueue(one.value);
  } }),
);
let last = message;
for await (const each of readUIMessageStream({ stream: chunks, message, onError: (e) => errors.push(e.message) }))
  last = each;
console.log(JSON.stringify({ message: last, errors }));
"""


def user(text: str = "hello") -> Data:
    """Return a message of the user."""
    return {"id": "u1", "role": "user", "parts": [{"type": "text", "text": text}]}


def make_app(agent: Agent[Any, Any], **more: Any) -> AgentApp:
    """Return an application for such clients."""
    return AgentApp(agent, ui_messages=True, **more)


class Reader:
    """Puts a stream together as `useChat` does, by the rules of the protocol."""

    def __init__(self, message: Data | None = None) -> None:
        self.message: Data = json.loads(json.dumps(message or {"id": "", "role": "assistant", "parts": []}))
        self.chunks: list[Data] = []
        self._open: dict[str, Data] = {}

    def read(self, body: bytes) -> Data:
        """Return the message; every part begins before it is added to, and ends."""
        blocks = body.decode().split("\n\n")
        assert blocks[-2:] == ["data: [DONE]", ""]
        for block in blocks[:-2]:
            chunk = json.loads(block.removeprefix("data: "))
            self.chunks.append(chunk)
            self._take(chunk)
        assert not self._open
        assert self.chunks[0]["type"] == "start"
        assert self.chunks[-1]["type"] in ("finish", "abort", "error")
        steps = [chunk["type"] for chunk in self.chunks if chunk["type"].endswith("-step")]
        assert steps in (["start-step", "finish-step"] * (len(steps) // 2), ["finish-step"])
        return self.message

    def _take(self, chunk: Data) -> None:
        parts = self.message["parts"]
        match chunk["type"].split("-"):
            case ["start"]:
                self.message["id"] = chunk["messageId"]
            case ["start", "step"]:
                parts.append({"type": "step-start"})
            case [("text" | "reasoning") as kind, "start"]:
                self._open[chunk["id"]] = {"type": kind, "text": ""}
                parts.append(self._open[chunk["id"]])
            case [_, "delta"]:
                self._open[chunk["id"]]["text"] += chunk["delta"]
            case [("text" | "reasoning"), "end"]:
                assert self._open.pop(chunk["id"])["text"]
            case ["tool", "input", "start"]:
                assert not [part for part in parts if part.get("toolCallId") == chunk["toolCallId"]]
                parts.append({"type": f"tool-{chunk['toolName']}", "toolCallId": chunk["toolCallId"]})
            case ["tool", "input", "available"]:
                kept = {"callProviderMetadata": chunk["providerMetadata"]} if "providerMetadata" in chunk else {}
                self._call(chunk).update(state="input-available", input=chunk["input"], **kept)
            case ["tool", "approval", "request"]:
                self._call(chunk).update(state="approval-requested", approval={"id": chunk["approvalId"]})
            case ["tool", "output", "available"]:
                self._call(chunk).update(state="output-available", output=chunk["output"])
            case ["tool", "output", "error"]:
                self._call(chunk).update(state="output-error", errorText=chunk["errorText"])
            case ["tool", "output", "denied"]:
                self._call(chunk).update(state="output-denied")
            case _:
                assert chunk["type"] in ("finish-step", "finish", "abort", "error") or chunk["transient"]

    def _call(self, chunk: Data) -> Data:
        found: Data
        (found,) = [part for part in self.message["parts"] if part.get("toolCallId") == chunk["toolCallId"]]
        return found


async def converse(app: AgentApp, messages: list[Data], *, chat: str = "chat") -> tuple[Data, list[Data]]:
    """Send a conversation as `useChat` does; return the client's message, and what was streamed."""
    body = {"id": chat, "messages": messages, "trigger": "submit-message"}
    response = await ask(app, "POST", "/ui-messages", body)
    assert response.status == 200, response.body
    assert response.headers["x-vercel-ai-ui-message-stream"] == "v1"
    before = messages[-1] if messages[-1]["role"] == "assistant" else None
    reader = Reader(before)
    message = reader.read(response.body)
    check_by_the_sdk(response.body, before, message)
    return message, reader.chunks


def check_by_the_sdk(body: bytes, before: Data | None, message: Data) -> None:
    """The SDK's own reader makes the same parts, where it is installed."""
    if not SDK.is_dir() or shutil.which("node") is None:
        return
    given = json.dumps({"body": body.decode(), "message": before})
    command = ["node", "--input-type=module", "-e", READER]
    done = subprocess.run(
        command, input=given, capture_output=True, text=True, check=False, cwd=SDK.parent.parent, timeout=60
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["message"]
    assert found["id"] == message["id"]
    made = message["parts"]
    if made[-1]["type"] == "step-start":  # which the reader doesn't tell of before something follows it
        made = made[: len(found["parts"])]
    for theirs, ours in zip(found["parts"], made, strict=True):
        shown = {key: value for key, value in ours.items() if key != "approval"}
        assert {key: theirs.get(key) for key in shown} == shown


def parts(message: Data, kind: str) -> list[Data]:
    """Return the parts of a kind."""
    return [part for part in message["parts"] if part["type"] == kind]


def approve(message: Data, *verdicts: bool) -> Data:
    """Return the message with verdicts on the calls that wait, as `addToolApprovalResponse` makes them."""
    given = json.loads(json.dumps(message))
    waiting = [part for part in given["parts"] if part.get("state") == "approval-requested"]
    for part, approved in zip(waiting, verdicts, strict=False):
        part["state"] = "approval-responded"
        part["approval"] = {**part["approval"], "approved": approved, "reason": None if approved else "not that"}
    return given


def answer(message: Data, **fields: Any) -> Data:
    """Return the message with an output of each of the client's own calls, as `addToolOutput` makes them."""
    given = json.loads(json.dumps(message))
    for part in given["parts"]:
        if part.get("state") == "input-available":
            part.update(fields)
    return given


async def test_a_run_is_one_message_whose_turns_are_steps() -> None:
    """Text, reasoning, calls and their outputs, in the model's order."""
    steps = [*looking()[:1], [reason("Both."), say("Both are old.")]]
    message, chunks = await converse(make_app(Watched().agent(steps)), [user()])
    kinds = [part["type"] for part in message["parts"]]
    assert kinds == ["step-start", "tool-look", "tool-look", "step-start", "reasoning", "text"]
    calls = parts(message, "tool-look")
    assert [(part["input"], part["output"]) for part in calls] == [
        ({"path": "a"}, "a is old"),
        ({"path": "b"}, "b is old"),
    ]
    assert parts(message, "text") == [{"type": "text", "text": "Both are old."}]
    assert chunks[-1] == {"type": "finish", "finishReason": "stop"}


@pytest.mark.slow
async def test_a_call_is_approved_and_another_one_denied() -> None:
    """The run that paused is resumed by the client's message, which its stream continues."""
    watched = Watched()
    app = make_app(watched.agent(deleting()))
    message, chunks = await converse(app, [user()])
    assert chunks[-1]["finishReason"] == "tool-calls"
    assert [part["state"] for part in parts(message, "tool-delete")] == ["approval-requested"] * 2
    decided, _ = await converse(app, [user(), approve(message, True, False)])
    assert watched.deleted == ["a"]
    assert decided["id"] == message["id"]
    assert [part["state"] for part in parts(decided, "tool-delete")] == ["output-available", "output-denied"]
    assert parts(decided, "text")[-1]["text"] == "Done what I could."
    refused = await ask(app, "POST", "/ui-messages", {"messages": [user(), approve(message, True, False)]})
    assert refused.status == 409
    assert watched.deleted == ["a"]


@pytest.mark.slow
async def test_a_verdict_on_one_of_two_calls_pauses_again() -> None:
    """The other one waits on, under a new handle."""
    watched = Watched()
    app = make_app(watched.agent(deleting()))
    message, _ = await converse(app, [user()])
    again, _ = await converse(app, [user(), approve(message, True)])
    assert watched.deleted == ["a"]
    assert [part["state"] for part in parts(again, "tool-delete")] == ["output-available", "approval-requested"]
    await converse(app, [user(), approve(again, True)])
    assert sorted(watched.deleted) == ["a", "b"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"state": "output-available", "output": "Rome"}, "Rome"),
        ({"state": "output-error", "errorText": "no such page"}, "no such page"),
    ],
)
async def test_a_call_that_the_client_answers_continues_the_run(given: Data, told: str) -> None:
    """Its part has the handle; the answer is the output of the part."""
    model = ScriptedModel([call("where", {}), say("Done.")])
    where = ExternalTool("where", "Ask the page.", {"type": "object", "properties": {}}, returns={"type": "string"})
    app = make_app(Agent("a", model=model, tools=[where]))
    message, chunks = await converse(app, [user()])
    assert chunks[-1]["finishReason"] == "tool-calls"
    whole, _ = await converse(app, [user(), answer(message, **given)])
    assert whole["id"] == message["id"]
    assert parts(whole, "text")[-1]["text"] == "Done."
    output = model.requests[-1].items[-1]
    assert isinstance(output, ToolOutput)
    assert told in str(output.output)


@pytest.mark.slow
async def test_calls_of_nested_runs_are_shown_when_they_wait() -> None:
    """The client's message has no part of them before."""
    inner = Agent(
        "inner", model=ScriptedModel([call("ask_user", {"question": "Sure?"}), say("inner done")]), tools=[ask_user()]
    )
    outer = Agent(
        "outer",
        model=ScriptedModel([call("inner", {"input": "x"}), say("outer done")]),
        tools=[inner.as_tool("inner", "Ask.")],
    )
    app = make_app(outer)
    message, _ = await converse(app, [user()])
    assert [part["state"] for part in parts(message, "tool-ask_user")] == ["input-available"]
    given = json.loads(json.dumps(message))
    parts(given, "tool-ask_user")[0].update(state="output-available", output="yes")
    whole, _ = await converse(app, [user(), given])
    assert parts(whole, "text")[-1]["text"] == "outer done"
    assert [part["output"] for part in parts(whole, "tool-ask_user")] == ["yes"]
    assert [part["state"] for part in parts(whole, "tool-inner")] == ["output-available"]


@pytest.mark.slow
async def test_verdicts_on_calls_of_nested_runs() -> None:
    """Their parts settle, too."""
    watched = Watched()
    inner = watched.agent(deleting())
    model = ScriptedModel([call("inner", {"input": "x"}), say("outer done")])
    app = make_app(Agent("outer", model=model, tools=[inner.as_tool("inner", "Ask.")]))
    message, _ = await converse(app, [user()])
    assert [part["state"] for part in parts(message, "tool-delete")] == ["approval-requested"] * 2
    whole, _ = await converse(app, [user(), approve(message, True, False)])
    assert watched.deleted == ["a"]
    assert [part["state"] for part in parts(whole, "tool-delete")] == ["output-available", "output-denied"]
    assert parts(whole, "text")[-1]["text"] == "outer done"


async def test_what_a_client_sends_is_the_conversation() -> None:
    """Calls side by side are one answer; a call without an output, reasoning and the system's messages are left out."""
    model = ScriptedModel([say("x")])
    pixel = "iVBORw0KGgo="
    call_of = {
        "type": "tool-look",
        "toolCallId": "c1",
        "state": "output-available",
        "input": {"p": 1},
        "output": {"n": 2},
    }
    failed = {"type": "dynamic-tool", "toolName": "see", "toolCallId": "c2", "state": "output-error", "errorText": "no"}
    denied = {
        "type": "tool-rm",
        "toolCallId": "c3",
        "state": "output-denied",
        "approval": {"id": "h.0", "approved": False},
    }
    messages = [
        {"id": "s", "role": "system", "parts": [{"type": "text", "text": "obey"}]},
        {"id": "1", "role": "user", "parts": [
            {"type": "text", "text": "see"},
            {"type": "file", "mediaType": "image/png", "url": f"data:image/png;base64,{pixel}"},
        ]},
        {"id": "2", "role": "assistant", "parts": [
            {"type": "step-start"}, {"type": "reasoning", "text": "hm"}, {"type": "text", "text": "ok"},
            call_of, failed, denied, call_of, {"type": "tool-x", "toolCallId": "c9", "state": "input-available"},
            {"type": "text", "text": "so"},
        ]},
        user("go"),
    ]  # fmt: skip
    await converse(make_app(Agent("a", model=model)), messages)
    first, said, *calls, so, go = model.requests[0].items
    assert isinstance(first, UserMessage)
    assert first.content == (Text("see"), Image(data=pixel, media_type="image/png"))
    assert (said, so, go) == (AssistantMessage("ok"), AssistantMessage("so"), UserMessage("go"))
    assert [type(item) for item in calls] == [ToolCall] * 3 + [ToolOutput] * 3
    assert [(item.output, item.is_error) for item in calls if isinstance(item, ToolOutput)] == [
        ('{"n": 2}', False),
        ("no", True),
        ("The user has rejected the call.", True),
    ]


async def test_what_can_not_be_taken_is_refused() -> None:
    """Before a run begins, in words."""
    watched = Watched()
    app = make_app(watched.agent(deleting()))
    link = {"type": "file", "mediaType": "image/png", "url": "https://example.com/x.png"}
    text = {"type": "text", "text": "x"}
    verdict = {"type": "tool-delete", "toolCallId": "c", "state": "approval-responded", "input": {}}
    for messages, status in (
        ("x", 400),
        ([{"role": "tool", "parts": []}], 400),
        ([{"role": "user", "parts": [link]}], 400),
        ([{"role": "user", "parts": [text, {**link, "url": "data:image/png;base64,?"}]}], 400),
        ([user(), {"role": "assistant", "parts": [{**verdict, "approval": {"id": "none", "approved": True}}]}], 400),
        ([user(), {"role": "assistant", "parts": [{**verdict, "approval": {"id": "a.1", "approved": True}}]}], 409),
    ):
        answered = await ask(app, "POST", "/ui-messages", {"messages": messages})
        assert answered.status == status, messages
        assert answered.json["error"]
    assert watched.deleted == []


@pytest.mark.slow
async def test_another_position_is_refused_and_the_run_waits() -> None:
    """The handle is as it was."""
    watched = Watched()
    app = make_app(watched.agent(deleting()))
    message, _ = await converse(app, [user()])
    wrong = approve(message, True)
    part = next(part for part in wrong["parts"] if part.get("state") == "approval-responded")
    part["approval"]["id"] = part["approval"]["id"].rpartition(".")[0] + ".7"
    assert (await ask(app, "POST", "/ui-messages", {"messages": [user(), wrong]})).status == 409
    await converse(app, [user(), approve(message, True, True)])
    assert sorted(watched.deleted) == ["a", "b"]


@pytest.mark.slow
async def test_ends_of_runs() -> None:
    """A failure is an error in a fixed sentence; what was begun is ended."""
    cut = [stream_of([TextDelta("half")])] * 3
    message, chunks = await converse(make_app(Watched().agent(cut)), [user()])
    assert chunks[-1] == {"type": "error", "errorText": "The model's answer can't be used."}
    assert parts(message, "text")[0]["text"] == "half"
    _, chunks = await converse(make_app(Watched().agent([fail(RuntimeError("pw"))])), [user()])
    assert chunks[-1] == {"type": "error", "errorText": "The run has failed."}
    whole = AssistantMessage("whole")
    message, _ = await converse(
        make_app(Watched().agent([stream_of([ItemDone(whole), ResponseDone((whole,))])])), [user()]
    )
    assert parts(message, "text") == [{"type": "text", "text": "whole"}]


async def test_characters_that_deltas_cut_and_a_failed_tool() -> None:
    """Deltas make up the client's message; half a character that stays one is replaced, wherever it is."""
    smile, item = "\U0001f600", AssistantMessage("\U0001f600!")

    @tool
    async def look(ctx: ToolContext[Any]) -> str:
        """Return half a character."""
        return "\ud83d"

    @tool
    async def broken(ctx: ToolContext[Any]) -> str:
        """Fail."""
        raise ValueError("no")

    halves = stream_of([TextDelta("\ud83d"), TextDelta("\ude00!"), ItemDone(item), ResponseDone((item,))])
    agent = Agent("a", model=ScriptedModel([[call("look", {}), call("broken", {})], halves]), tools=[look, broken])
    message, _ = await converse(make_app(agent), [user()])
    assert parts(message, "text") == [{"type": "text", "text": smile + "!"}]
    assert parts(message, "tool-look")[0]["output"] == "?"
    assert parts(message, "tool-broken")[0]["state"] == "output-error"


@pytest.mark.slow
async def test_the_application_is_asked() -> None:
    """The chat's id is the conversation."""
    asked: list[WebRequest] = []

    def admit(request: WebRequest) -> Grant:
        asked.append(request)
        return Grant()

    app = make_app(Watched().agent(deleting()), admit=admit)
    message, _ = await converse(app, [user()], chat="c7")
    await converse(app, [user(), approve(message, True, True)], chat="c7")
    assert [(one.action, one.run, one.conversation) for one in asked] == [("start", None, "c7"), ("decide", None, "c7")]
    assert (await ask(AgentApp(Watched().agent(looking())), "POST", "/ui-messages", {"messages": []})).status == 404
