"""`POST /ag-ui`: runs in the events of the Agent-User Interaction Protocol, read by its own types."""

import json
import re
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kit.work import count_work
from web.ag_ui import converse, make_input, texts, ui
from web.agents import Watched, deleting, looking
from web.harness import ask

from agentloop import Agent, Allow, Ask, RunConfig, ToolContext, UserError, ask_user, tool
from agentloop.asgi import AgentApp, Grant, _app
from agentloop.config.policies import PendingCall
from agentloop.items import AssistantMessage, Image, Text, ToolCall, ToolOutput, UserMessage
from agentloop.model_events import ItemDone, ReasoningDelta, ResponseDone, TextDelta
from agentloop.run import RunOptions
from agentloop.testing import ScriptedModel, call, fail, reason, say, stream_of


async def test_run_is_streamed_in_the_events_of_the_protocol() -> None:
    """Text, reasoning, calls and their outputs, in the model's order."""
    steps = [*looking()[:1], [reason("Both."), say("Both are old.")]]
    events = await converse(AgentApp(Watched().agent(steps), ag_ui=True), make_input())
    assert texts(events) == ["Both are old."]
    calls = [(event.tool_call_name, event.tool_call_id) for event in events if event.type == "TOOL_CALL_START"]
    assert calls == [("look", "call_1"), ("look", "call_2")]
    assert [event.content for event in events if event.type == "TOOL_CALL_RESULT"] == ["a is old", "b is old"]
    assert any(event.type == "REASONING_MESSAGE_CHUNK" for event in events)
    assert (events[-1].thread_id, events[-1].run_id, events[-1].outcome.type) == ("t", "r", "success")


async def test_messages_without_deltas_and_deltas_without_a_message() -> None:
    """A whole message is sent at once; one that an error cuts is ended before the error."""
    whole = AssistantMessage("whole")
    sent = stream_of([ItemDone(whole), ResponseDone((whole,))])
    assert texts(await converse(AgentApp(Watched().agent([sent]), ag_ui=True), make_input())) == ["whole"]
    cut = [stream_of([TextDelta("half")])] * 3
    events = await converse(AgentApp(Watched().agent(cut), ag_ui=True), make_input())
    assert (events[-1].type, events[-1].message) == ("RUN_ERROR", "The model's answer can't be used.")
    broken = await converse(AgentApp(Watched().agent([fail(RuntimeError("pw"))]), ag_ui=True), make_input())
    assert (broken[-1].code, broken[-1].message) == ("InternalError", "The run has failed.")


async def test_every_message_of_an_answer_is_one_message() -> None:
    """Behind reasoning, between calls, and of the same answer: none is empty, and none takes the text of another."""
    steps = [[reason("Hm."), say("First."), call("look", {"path": "a"}), say("Second.")], say("Third.")]
    events = await converse(AgentApp(Watched().agent(steps), ag_ui=True), make_input())
    assert texts(events) == ["First.", "Second.", "Third."]


@pytest.mark.parametrize(
    ("answer", "messages"),
    [
        ([call("look", {"path": "a"}), call("look", {"path": "b"})], [(None, ["call_1", "call_2"])]),
        ([say("Both."), call("look", {"path": "a"}), call("look", {"path": "b"})], [("Both.", ["call_1", "call_2"])]),
        (
            [call("look", {"path": "a"}), say("And."), call("look", {"path": "b"})],
            [("And.", ["call_1", "call_2"])],  # its text comes as it is written, before the calls
        ),
    ],
)
async def test_calls_of_one_answer_are_one_message_of_the_client(answer: list[Any], messages: list[Any]) -> None:
    """With the text before them: else the next request would tell the model of two answers."""
    events = await converse(AgentApp(Watched().agent([answer, answer, say("Done.")]), ag_ui=True), make_input())
    kept: list[tuple[str, str | None, list[str]]] = []  # as the protocol's own client puts them together
    for event in events:
        if event.type == "TEXT_MESSAGE_START":
            kept.append((event.message_id, "", []))
        elif event.type == "TEXT_MESSAGE_CONTENT":
            kept[-1] = (kept[-1][0], (kept[-1][1] or "") + event.delta, kept[-1][2])
        elif event.type == "TOOL_CALL_START":
            if not kept or kept[-1][0] != event.parent_message_id:
                kept.append((event.parent_message_id, None, []))
            kept[-1][2].append(event.tool_call_id)
        elif event.type == "TOOL_CALL_RESULT":
            kept.append((event.message_id, "result", []))
    said = [(text, calls) for _, text, calls in kept if text != "result"]
    assert said[: len(messages)] == messages
    assert len(said) == 2 * len(messages) + 1
    assert len({each for each, *_ in kept}) == len(kept)


async def test_characters_that_deltas_cut_are_put_together() -> None:
    """Deltas make up the client's message; half a character that stays one is replaced, wherever it is."""
    smile, item = "\U0001f600", AssistantMessage("whole")

    @tool
    async def look(ctx: ToolContext[Any]) -> str:
        """Return half a character."""
        await ctx.report(1, 2, "\ud83d")
        return "\ud83d!"

    pieces = ["a \ud83d", "\ude00 b", "\ude00", " c\ud83d"]
    sent = [TextDelta(piece) for piece in pieces] + [ReasoningDelta("\ud83d"), ReasoningDelta("\ude00")]
    model = ScriptedModel([call("look"), stream_of([*sent, ItemDone(item), ResponseDone((item,))])])
    events = await converse(AgentApp(Agent("a", model=model, tools=[look]), ag_ui=True), make_input())
    assert events[-1].type == "RUN_FINISHED"
    assert texts(events) == [f"a {smile} b\ufffd c"]
    assert [event.delta for event in events if event.type == "REASONING_MESSAGE_CHUNK"] == [smile]
    assert [event.content for event in events if event.type == "TOOL_CALL_RESULT"] == ["?!"]


async def test_interrupts_are_answered_once() -> None:
    """The next request names them; a second answer is refused, and so is one that doesn't fit."""
    watched = Watched()
    app = AgentApp(watched.agent(deleting()), ag_ui=True)
    events = await converse(app, make_input())
    first, second = events[-1].outcome.interrupts
    assert (first.tool_call_id, first.metadata["request"]["call"]["name"]) == ("call_1", "delete")
    yes = {"interruptId": first.id, "status": "resolved", "payload": {"approved": True, "editedArgs": {"path": "c"}}}
    no = {"interruptId": second.id, "status": "resolved", "payload": {"approved": False, "message": "needed"}}
    late = {**no, "interruptId": first.id.rpartition(".")[0] + ".7"}
    refused = await ask(app, "POST", "/ag-ui", make_input(resume=[late]))
    assert refused.status == 409
    handle = refused.json["handle"]
    answers = [{**one, "interruptId": f"{handle}.{number}"} for number, one in enumerate((yes, no))]
    events = await converse(app, make_input(resume=answers))
    assert [event.content for event in events if event.type == "TOOL_CALL_RESULT"] == ["c is gone", "needed"]
    assert watched.deleted == ["c"]
    assert (await ask(app, "POST", "/ag-ui", make_input(resume=answers))).status == 409


async def test_cancelled_answer_is_a_rejection() -> None:
    """A client that abandons an interrupt has not approved the call."""
    watched = Watched()
    app = AgentApp(watched.agent(deleting()), ag_ui=True)
    events = await converse(app, make_input())
    answers = [{"interruptId": one.id, "status": "cancelled"} for one in events[-1].outcome.interrupts]
    assert (await converse(app, make_input(resume=answers)))[-1].outcome.type == "success"
    assert watched.deleted == []


def asking(*more: Any) -> Agent[Any, Any]:
    """Return an agent that asks for a size (`c1`), beside the calls *more*, and tells the model's last input."""
    sizes = ask_user(options=["small", "large"], timeout=3600)
    model = ScriptedModel([[call("ask_user", {"question": "Which?"}, "c1"), *more], say("Done.")])
    return Agent("a", model=model, tools=[*Watched().agent([]).tools, sizes])


@pytest.mark.scenario("PE-04")
async def test_a_call_to_answer_is_an_interrupt_with_the_schema_of_the_answer() -> None:
    """The payload is the answer itself; one that doesn't fit is refused, and the call still waits; it counts once."""
    app = AgentApp(asking(call("delete", {"path": "a"}, "c2")), ag_ui=True)
    answered, decided = (await converse(app, make_input()))[-1].outcome.interrupts
    assert (answered.reason, answered.tool_call_id) == ("input_required", "c1")
    assert answered.response_schema == {"type": "string", "enum": ["small", "large"]}
    assert datetime.fromisoformat(answered.expires_at).tzinfo is not None
    assert decided.reason == "tool_call"
    assert "editedArgs" in decided.response_schema["properties"]
    assert decided.expires_at is None
    no = {"interruptId": decided.id, "status": "resolved", "payload": {"approved": False, "message": "needed"}}
    wrong = {"interruptId": answered.id, "status": "resolved", "payload": {"approved": True}}
    refused = await ask(app, "POST", "/ag-ui", make_input(resume=[wrong, no]))
    assert (refused.status, "doesn't fit" in refused.json["error"]) == (400, True)
    both = [{**one, "interruptId": f"{refused.json['handle']}.{number}"} for number, one in enumerate((wrong, no))]
    both[0]["payload"] = "large"
    events = await converse(app, make_input(resume=both))
    assert [event.content for event in events if event.type == "TOOL_CALL_RESULT"] == ["large", "needed"]
    assert events[-1].outcome.type == "success"
    assert (await ask(app, "POST", "/ag-ui", make_input(resume=both))).status == 409


async def test_a_question_that_the_user_has_given_up_has_failed() -> None:
    """The model is told so, and the run continues."""
    app = AgentApp(asking(), ag_ui=True)
    [asked] = (await converse(app, make_input()))[-1].outcome.interrupts
    events = await converse(app, make_input(resume=[{"interruptId": asked.id, "status": "cancelled"}]))
    [result] = [event.content for event in events if event.type == "TOOL_CALL_RESULT"]
    assert "The user gave no answer." in result
    assert events[-1].outcome.type == "success"


class FrontEnd:
    """A client with tools of its own. It keeps messages as the protocol says, in the protocol's own types."""

    def __init__(self, app: AgentApp, *tools: str, **schema: Any) -> None:
        self.app = app
        self.tools = [ui.Tool(name=name, description="Shown.", parameters=schema or None) for name in tools]
        self.messages: list[Any] = []

    def say(self, text: str) -> None:
        """Add a message of the user."""
        self.messages.append(ui.UserMessage(id=f"u{len(self.messages)}", content=text))

    def give(self, call_id: str, output: str, error: str | None = None) -> None:
        """Add the output of a call, which the client has run."""
        self.messages.append(ui.ToolMessage(id=f"o-{call_id}", tool_call_id=call_id, content=output, error=error))

    def body(self, **more: Any) -> dict[str, Any]:
        """Return the next request."""
        made = ui.RunAgentInput(thread_id="t", run_id="r", messages=self.messages, tools=self.tools, **more)
        found: dict[str, Any] = made.model_dump(by_alias=True, exclude_none=True)
        return found

    async def run(self, **more: Any) -> list[Any]:
        """Send the request, and take what comes of it into the messages."""
        events = await converse(self.app, self.body(**more))
        for event in events:
            self._take(event)
        return events

    def waiting(self) -> list[str]:
        """Return the names of the calls that have no output."""
        done = {message.tool_call_id for message in self.messages if message.role == "tool"}
        return [call.function.name for call in self._calls() if call.id not in done]

    def _calls(self) -> list[Any]:
        return [call for message in self.messages for call in getattr(message, "tool_calls", None) or ()]

    def _take(self, event: Any) -> None:
        if event.type == "TEXT_MESSAGE_START":
            self.messages.append(ui.AssistantMessage(id=event.message_id, content=""))
        elif event.type == "TEXT_MESSAGE_CONTENT":
            [message] = [message for message in self.messages if message.id == event.message_id]
            message.content += event.delta
        elif event.type == "TOOL_CALL_RESULT":
            self.give(event.tool_call_id, event.content)
        elif event.type == "TOOL_CALL_START" and all(call.id != event.tool_call_id for call in self._calls()):
            found = [message for message in self.messages if message.id == event.parent_message_id]
            if not found:
                found = [ui.AssistantMessage(id=event.parent_message_id)]
                self.messages += found
            function = {"name": event.tool_call_name, "arguments": ""}
            found[0].tool_calls = [*(found[0].tool_calls or ()), ui.ToolCall(id=event.tool_call_id, function=function)]
        if event.type in ("TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END"):
            [call] = [call for call in self._calls() if call.id == event.tool_call_id]
            call.function.arguments += getattr(event, "delta", "")
            call.metadata = {**(call.metadata or {}), **(event.metadata or {})} or None


class AskForPay:
    """Holds calls of `pay`."""

    def decide(self, call: PendingCall) -> Allow | Ask:
        """Return the decision."""
        return Ask("It is dear.") if call.call.name == "pay" else Allow()


def offering(*steps: Any) -> tuple[AgentApp, ScriptedModel]:
    """Return an application whose clients may bring every tool, and its model."""
    model = ScriptedModel(list(steps))
    agent = Agent("a", model=model, tools=Watched().agent([]).tools)
    options: RunOptions[Any] = {"run_config": RunConfig(policies=[AskForPay()])}
    return AgentApp(agent, ag_ui=True, client_tools=["*"], admit=lambda request: Grant(options=options)), model


@pytest.mark.scenario("PE-08")
async def test_tools_of_the_client_are_offered_called_answered_and_continued() -> None:
    """Beside a tool of the agent; the same run continues with the output, which the client isn't sent again."""
    calls = [call("look", {"path": "a"}, "c1"), call("show_map", {"city": "Rome"}, "c2")]
    app, model = offering([say("One moment."), *calls], say("There it is."), say("Near by."))
    client = FrontEnd(app, "show_map", type="object", properties={"city": {"type": "string"}}, required=["city"])
    client.say("Where is Rome?")
    events = await client.run()
    assert (events[-1].outcome.type, client.waiting()) == ("success", ["show_map"])
    offered = next(tool for tool in model.requests[0].tools if tool.name == "show_map")
    assert offered.params_json_schema["required"] == ["city"]
    client.give("c2", "shown at 41.9 N")
    events = await client.run()
    assert (texts(events), events[-1].outcome.type) == (["There it is."], "success")
    assert [event for event in events if event.type == "TOOL_CALL_RESULT"] == []
    asked, answered = model.requests
    assert [item for item in answered.items if isinstance(item, ToolOutput)] == [
        ToolOutput("c1", "a is old"),
        ToolOutput("c2", "shown at 41.9 N"),
    ]
    assert answered.items[: len(asked.items)] == asked.items  # of the log, not of what the client has sent
    again = await ask(app, "POST", "/ag-ui", {**client.body(), "messages": client.body()["messages"][:-1]})
    assert (again.status, len(model.requests)) == (409, 2)
    client.say("And Ostia?")
    assert texts(await client.run()) == ["Near by."]  # a new run, of the whole conversation


@pytest.mark.scenario("PE-08")
async def test_a_tool_of_the_client_is_called_in_every_turn_that_wants_it() -> None:
    """Each pause has a handle of its own, and the last one counts."""
    app, model = offering(call("pick", {}, "c1"), call("pick", {}, "c2"), say("Both."))
    client = FrontEnd(app, "pick")
    client.say("Pick two.")
    for call_id, output in (("c1", "red"), ("c2", "blue")):
        await client.run()
        assert client.waiting() == ["pick"]
        client.give(call_id, output)
    assert texts(await client.run()) == ["Both."]
    outputs = [item.output for item in model.requests[-1].items if isinstance(item, ToolOutput)]
    assert outputs == ["red", "blue"]


TEXT = {"type": "string", "pattern": "("}
"""A pattern that Python doesn't even read: who evaluates it is refused."""
PATTERNS: dict[str, Any] = {
    "properties": {"properties": {"x": TEXT}},
    "additionalProperties": {"properties": {"l": {}}, "additionalProperties": TEXT},
    "$defs": {"properties": {"x": {"$ref": "#/$defs/text"}}, "$defs": {"text": TEXT}},
    "definitions": {"properties": {"x": {"$ref": "#/definitions/text"}}, "definitions": {"text": TEXT}},
    "items": {"properties": {"l": {"items": TEXT}}},
    "prefixItems": {"properties": {"l": {"prefixItems": [TEXT]}}},
    "allOf": {"allOf": [{"properties": {"x": TEXT}}]},
    "anyOf": {"properties": {"x": {"anyOf": [TEXT]}}},
    "oneOf": {"properties": {"x": {"oneOf": [TEXT]}}},
    "pattern": {"pattern": "(", "properties": {"x": TEXT}},
}


@pytest.mark.scenario("PE-08")
@pytest.mark.parametrize("place", PATTERNS)
async def test_patterns_of_a_client_are_shown_and_not_evaluated(place: str) -> None:
    """One can take years, for which no other run would continue; all else in the schema is checked."""
    schema = {"type": "object", "required": ["x", "l"], **PATTERNS[place]}
    app, model = offering(call("pick", {"x": "a"}, "c1"), call("pick", {"x": "a", "l": ["a"]}, "c2"), say("Done."))
    client = FrontEnd(app, "pick", **schema)
    client.say("Pick.")
    events = await client.run()
    assert ["'l' is missing" in event.content for event in events if event.type == "TOOL_CALL_RESULT"] == [True]
    assert client.waiting() == ["pick"]
    [offered] = [tool for tool in model.requests[0].tools if tool.name == "pick"]
    assert offered.params_json_schema == {"properties": {}} | schema


@pytest.mark.scenario("PE-08")
async def test_values_and_names_that_are_called_pattern_are_checked() -> None:
    """Only the keyword is left out."""
    schema = {"properties": {"pattern": {"type": "integer"}, "x": {"enum": [{"pattern": "a"}]}}}
    good = {"pattern": 1, "x": {"pattern": "a"}}
    calls = [call("pick", {**good, **wrong}, f"c{at}") for at, wrong in enumerate([{"pattern": "a"}, {"x": {}}, {}])]
    app, _ = offering(*calls, say("Done."))
    client = FrontEnd(app, "pick", **schema)
    client.say("Pick.")
    events = await client.run()
    assert [event.tool_call_id for event in events if event.type == "TOOL_CALL_RESULT"] == ["c0", "c1"]
    assert client.waiting() == ["pick"]


@pytest.mark.parametrize("answers", [False, True])
def test_work_for_outputs_grows_as_they_do(answers: bool) -> None:
    """Of outputs alone, and of outputs behind answers of the model without a handle."""
    from agentloop.asgi._ag_ui import _find_outputs

    def work(size: int) -> int:
        outputs = [SimpleNamespace(role="tool", tool_call_id=str(at)) for at in range(size)]
        calls = [[SimpleNamespace(id=str(at), metadata=None)] for at in range(size)]
        said = [SimpleNamespace(role="assistant", tool_calls=each) for each in calls] if answers else []
        return count_work(lambda meter: _find_outputs([*said, *outputs])).total

    work(10)  # the first steps that a process counts may be none
    assert 0 < work(1_000) <= 11 * work(100)


@pytest.mark.scenario("PE-08")
async def test_a_tool_of_the_client_that_fails_or_is_forgotten_has_failed() -> None:
    """The model is told, by the words of the client where it has any."""
    app, model = offering([call("pick", {}, "c1"), call("pick", {}, "c2"), call("pick", {}, "c3")], say("Pity."))
    client = FrontEnd(app, "pick")
    client.say("Pick.")
    await client.run()
    client.give("c1", "", error="the map is closed")
    client.give("c2", "red")
    events = await client.run()
    [result] = [event for event in events if event.type == "TOOL_CALL_RESULT"]
    assert (result.tool_call_id, "gave no output" in result.content) == ("c3", True)
    failed, taken, _ = [item for item in model.requests[-1].items if isinstance(item, ToolOutput)]
    assert ("the map is closed" in str(failed.output), taken.output) == (True, "red")


@pytest.mark.scenario("PE-08")
async def test_approvals_are_interrupts_beside_tools_of_the_client() -> None:
    """One request answers both; a call of the client's tool that a policy holds is given once it is approved."""
    calls = [call("delete", {"path": "a"}, "c1"), call("pick", {}, "c2"), call("pay", {}, "c3")]
    app, model = offering(calls, say("Done."))
    client = FrontEnd(app, "pick", "pay")
    client.say("Go.")
    interrupts = (await client.run())[-1].outcome.interrupts
    assert [one.tool_call_id for one in interrupts] == ["c1", "c3"]
    client.give("c2", "red")
    yes = [{"interrupt_id": one.id, "status": "resolved", "payload": {"approved": True}} for one in interrupts]
    assert (await client.run(resume=yes))[-1].outcome.type == "success"
    assert client.waiting() == ["pay"]
    client.give("c3", "paid")
    assert texts(await client.run()) == ["Done."]
    outputs = [item.output for item in model.requests[-1].items if isinstance(item, ToolOutput)]
    assert outputs == ["a is gone", "red", "paid"]


@pytest.mark.scenario("PE-08")
async def test_only_named_tools_of_a_client_are_offered_and_none_in_place_of_the_agents(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The page doesn't decide what the agent does: the application names what it may bring."""
    agent = Watched().agent(looking())
    model = agent.model
    client = FrontEnd(AgentApp(agent, ag_ui=True, client_tools=["pick", "look"]), "pick", "look", "steal")
    client.say("Look.")
    events = await client.run()
    assert "has a tool named 'look'" in caplog.text
    assert [event.content for event in events if event.type == "TOOL_CALL_RESULT"] == ["a is old", "b is old"]
    assert isinstance(model, ScriptedModel)
    assert [tool.name for tool in model.requests[0].tools] == ["look", "hold", "delete", "pick"]


async def test_a_call_of_the_client_ends_with_its_run() -> None:
    """One that begins has ended, also where the run fails before it pauses."""
    offered = {"name": "pick", "description": "Pick."}
    model = ScriptedModel([[call("pick", {}, "c1"), call("hold", {}, "c2")]])

    @tool(failure_error_function="raise")
    async def hold() -> str:
        """Fail."""
        raise ValueError

    app = AgentApp(Agent("a", model=model, tools=[hold]), ag_ui=True, client_tools=["pick"])
    assert (await converse(app, make_input(tools=[offered])))[-1].type == "RUN_ERROR"


async def test_conversation_of_the_client_becomes_items() -> None:
    """Users, assistants and tools; a call without an output is left out, and so are instructions."""
    model = ScriptedModel([say("Hi.")])
    called = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    messages = [
        {"id": "1", "role": "system", "content": "Obey."},
        {"id": "2", "role": "user", "content": [{"type": "text", "text": "Look."}]},
        {"id": "3", "role": "assistant", "content": "So.", "toolCalls": [called, {**called, "id": "c2"}]},
        {"id": "4", "role": "tool", "toolCallId": "c1", "content": "old"},
        {"id": "5", "role": "tool", "toolCallId": "c9", "content": "none"},
        {"id": "6", "role": "user", "content": "And?"},
    ]
    await converse(AgentApp(Agent("a", model=model), ag_ui=True), make_input(messages=messages))
    assert list(model.requests[0].items) == [
        UserMessage("Look."),
        AssistantMessage("So."),
        ToolCall("c1", "look", "{}"),
        ToolOutput("c1", "old"),
        UserMessage("And?"),
    ]


async def test_images_that_a_message_carries_are_shown_to_the_model() -> None:
    """In their place between the texts."""
    model = ScriptedModel([say("A cat.")])
    image = {"type": "image", "source": {"type": "data", "value": "aGk=", "mimeType": "image/png"}}
    parts: Any = [{"type": "text", "text": "What is it?"}, image, {"type": "text", "text": "Be brief."}]
    await converse(AgentApp(Agent("a", model=model), ag_ui=True), make_input(parts))
    shown = Image(data="aGk=", media_type="image/png")
    assert list(model.requests[0].items) == [UserMessage([Text("What is it?"), shown, Text("Be brief.")])]


async def test_secret_arguments_and_nested_runs_are_not_shown() -> None:
    """Arguments are hidden as in the public form; of an agent tool the call and its output are shown."""

    @tool(secret={"token"})
    async def login(token: str) -> str:
        """Log in."""
        return "in"

    scout = Agent("scout", model=ScriptedModel([say("inner words")]))
    agent = Agent(
        "a",
        model=ScriptedModel([[call("login", {"token": "hunter22"}), call("scout", {"input": "x"})], say("Done.")]),
        tools=[login, scout.as_tool("scout", "Ask.")],
    )
    events = await converse(AgentApp(agent, ag_ui=True), make_input())
    assert texts(events) == ["Done."]
    assert "hunter22" not in str(events)


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"{", "The body is no RunAgentInput"),
        (b"{}", "see threadId"),
        (json.dumps(make_input(resume=[{"interruptId": "x", "status": "resolved"}])).encode(), "none of this server"),
        (
            json.dumps(make_input(resume=[{"interruptId": f"{one}.0", "status": "resolved"} for one in "ab"])).encode(),
            "of several runs",
        ),
        (
            json.dumps(
                make_input([{"type": "image", "source": {"type": "url", "value": "http://x/y.png"}}])  # type: ignore[arg-type]
            ).encode(),
            "Only text can be sent, and images by their data: image/gif,",
        ),
        (
            json.dumps(
                make_input([{"type": "image", "source": {"type": "data", "value": "a b", "mimeType": "image/png"}}])  # type: ignore[arg-type]
            ).encode(),
            "no base64",
        ),
        (
            json.dumps(
                make_input([{"type": "image", "source": {"type": "data", "value": "", "mimeType": "image/svg+xml"}}])  # type: ignore[arg-type]
            ).encode(),
            "Only text can be sent, and images",
        ),
        (
            json.dumps(
                make_input([{"type": "document", "source": {"type": "file", "value": "file-1"}}])  # type: ignore[arg-type]
            ).encode(),
            "Only text can be sent, and images",
        ),
        (json.dumps(make_input(tools=2 * [{"name": "x", "description": ""}])).encode(), "Two tools have the name 'x'."),
        (
            json.dumps(make_input(tools=[{"name": "x", "description": "", "parameters": "text"}])).encode(),
            "A tool doesn't fit: ",
        ),
        (json.dumps(make_input(tools=[{"name": "a b", "description": ""}])).encode(), "A tool doesn't fit: "),
    ],
)
async def test_bad_requests_are_refused(body: bytes, sentence: str) -> None:
    """400 with a sentence that names the place."""
    response = await ask(AgentApp(Watched().agent([]), ag_ui=True, client_tools=["*"]), "POST", "/ag-ui", body)
    assert response.status == 400, response.body
    assert sentence in response.json["error"]


async def test_protocol_is_spoken_only_where_it_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without `ag_ui=True` there is nothing; without the extra the application is refused."""
    assert (await ask(AgentApp(Watched().agent([])), "POST", "/ag-ui", make_input())).status == 404
    monkeypatch.setattr(_app, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="extra `ag-ui`"):
        AgentApp(Watched().agent([]), ag_ui=True)


async def test_events_of_the_applications_own_are_custom_events() -> None:
    """With the call, by the public JSON form; a value that no JSON has is written as text."""

    @tool
    async def look(ctx: ToolContext[Any]) -> str:
        """Emit events."""
        ctx.emit({"found": "\ud83d"})
        return "seen"

    model = ScriptedModel([call("look", {}, "c1"), say("Seen.")])
    events = await converse(AgentApp(Agent("a", model=model, tools=[look]), ag_ui=True), make_input())
    [custom] = [event.value for event in events if event.type == "CUSTOM" and event.name == "custom"]
    assert (custom["value"], custom["call"]["call_id"]) == ({"found": "?"}, "c1")


@pytest.mark.parametrize("option", ["client_tools=", "shared_state="])
def test_the_examples_of_the_page_print_what_they_show(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each plays the protocol's client."""
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "web.md").read_text(encoding="utf-8")
    pattern = rf"```python\n([^`]*?{option}.*?)```\nprints\n```text\n(.*?)```"
    example, shown = re.findall(pattern, page, re.DOTALL)[0]
    exec(compile(example, "web.md", "exec"), {})
    assert capsys.readouterr().out == shown
