"""What is exported of a conversation: nothing, unless it is asked for, and never what a tool marks secret."""

import json
import logging
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk", reason="needs the extra test-otel: nox -s tests-otel")

from kit.agents import PASSED, make_input_guard
from otel_export.exporting import Exported, attributes_of

from agentloop import Agent, HostedTool, RunConfig, Runner, ToolContext, tool
from agentloop.abc import Instrument
from agentloop.config import TracingSettings
from agentloop.exceptions import ModelTransportError, UserValueError
from agentloop.items import (
    AssistantMessage,
    Audio,
    Compaction,
    File,
    HandoffCall,
    HandoffOutput,
    HostedToolCall,
    Image,
    Reasoning,
    Refusal,
    SystemMessage,
    Text,
    ToolCall,
    ToolOutput,
    UserMessage,
)
from agentloop.otel._messages import answer_text, content_text, messages_text
from agentloop.spans import Span
from agentloop.testing import ScriptedModel, call, fail, respond, say

WORDS = "canary-words"
"""Stands in prompts, answers, arguments, outputs and errors."""
KEY = "canary-key"
"""Stands in arguments and outputs that a tool marks secret."""
TOKEN = "canary-token-0123456789"
"""Stands in the message of an error, in the form of a credential."""


@tool
async def search(query: str) -> str:
    """Search."""
    return f"{WORDS} about {query}"


@tool(secret=["password"], secret_output=True)
async def log_in(user: str, password: str) -> str:
    """Log in."""
    return f"session of {password}"


@tool(secret=["password"])
async def refuse(password: str) -> str:
    """Refuse."""
    raise PermissionError(f"wrong: {password}")


@tool
async def broken() -> str:
    """Break."""
    raise RuntimeError(f"api_key={TOKEN}")


def _agent() -> Agent[Any, Any]:
    looked_up = HostedToolCall("web_search_call", {"query": KEY}, "wi", "completed", KEY)
    steps: list[Any] = [[call("search", {"query": KEY})], [respond(looked_up), say(KEY)]]
    inner = Agent("inner", model=ScriptedModel(steps), tools=[search])
    asks = [
        call("search", {"query": WORDS}),
        call("log_in", {"user": WORDS, "password": KEY}),
        call("refuse", {"password": KEY}),
        call("broken"),
        call("ask", {"input": KEY}),
        call(f"invented {len(WORDS)}", {"x": WORDS}),
    ]
    hosted = HostedToolCall("web_search_call", {"query": WORDS}, "ws", "completed", WORDS)
    steps = [asks, [respond(Reasoning(summary=(WORDS,)), hosted), say(WORDS)]]
    return Agent(
        "outer",
        instructions=WORDS,
        model=ScriptedModel(steps),
        tools=[search, log_in, refuse, broken, inner.as_tool(tool_name="ask", secret=["input"], secret_output=True)],
        input_guardrails=[make_input_guard("judge", PASSED)],
    )


async def _run_everything(run_mode: Any, exported: Exported) -> None:
    config = exported.config(tool_not_found_behavior="tell_model", group_id="chat-1")
    result = await run_mode(_agent(), f"{WORDS}?", run_config=config)
    assert WORDS in str(result.final_output)
    assert [one.outcome.status for one in result.calls if one.outcome is not None].count("failed") == 3
    failing = Agent("f", model=ScriptedModel([fail(ModelTransportError(f"{WORDS} token={TOKEN}"))]))
    with pytest.raises(ModelTransportError):
        await run_mode(failing, WORDS, run_config=exported.config())


@pytest.mark.scenario("VI-05")
async def test_no_content_is_exported_unless_it_is_asked_for(run_mode: Any, caplog: pytest.LogCaptureFixture) -> None:
    """In no span, event, status and metric; and no log line holds what is secret, nor a credential of an error."""
    exported = Exported()
    with caplog.at_level(logging.DEBUG):
        await _run_everything(run_mode, exported)
    everything = exported.everything()
    assert "execute_tool log_in" in everything
    assert "gen_ai.client.operation.duration" in everything
    assert [planted for planted in (WORDS, KEY, TOKEN, "password") if planted in everything] == []
    lines = "\n".join(f"{record.getMessage()} {record.exc_text or ''}" for record in caplog.records)
    assert "tool broken failed" in lines
    assert [planted for planted in (WORDS, KEY, TOKEN) if planted in lines] == []


@pytest.mark.scenario("VI-05")
@pytest.mark.parametrize("content", [True, "full"])
async def test_what_a_tool_marks_secret_is_never_exported(run_mode: Any, content: Any) -> None:
    """With content, too: values are masked, and the messages of a run in a call with secret arguments left out."""
    exported = Exported(content=content)
    await _run_everything(run_mode, exported)
    everything = exported.everything()
    assert WORDS in everything
    assert TOKEN not in everything
    # The nested model has repeated the key, in arguments that nothing marks.
    [repeated] = [span for span in exported.spans if KEY in span.to_json()]
    assert exported.name_of_parent(repeated) == "invoke_agent inner"
    assert "[secret]" in everything


async def test_content_is_exported_where_it_is_asked_for() -> None:
    """Input at the run, answers at the requests, arguments and results at the calls, messages of errors as such."""
    exported = Exported(content=True)
    script = ScriptedModel([[call("search", {"query": "rain"}, "c1"), call("broken", call_id="c2")], say("It rains.")])
    await Runner.run(Agent("a", model=script, tools=[search, broken]), "Weather?", run_config=exported.config())
    root, first, last = exported.spans[0], exported.spans[2], exported.spans[-1]
    assert json.loads(attributes_of(root)["gen_ai.input.messages"]) == [
        {"role": "user", "parts": [{"type": "text", "content": "Weather?"}]}
    ]
    assert [part["name"] for part in json.loads(attributes_of(first)["gen_ai.output.messages"])[0]["parts"]] == [
        "search",
        "broken",
    ]
    assert json.loads(attributes_of(last)["gen_ai.output.messages"])[0]["parts"][0]["content"] == "It rains."
    found = attributes_of(exported.span("execute_tool search"))
    assert json.loads(found["gen_ai.tool.call.arguments"]) == {"query": "rain"}
    assert found["gen_ai.tool.call.result"] == f"{WORDS} about rain"
    assert exported.span("execute_tool broken").status.description == "Error running tool (non-fatal)"
    assert "api_key" in attributes_of(exported.span("execute_tool broken"))["gen_ai.tool.call.result"]


async def test_full_content_is_all_that_each_span_is_about(run_mode: Any) -> None:
    """A request has its whole history, instructions and tools; an agent those of its first request, and its answer."""
    exported = Exported(content="full")
    hosted = HostedToolCall("web_search_call", {"query": "rain"}, "ws", "completed", ["wet"])
    steps = [[call("search", {"query": "rain"}, "c1")], [respond(hosted), say("It rains.")]]
    tools = [search, HostedTool("web_search", {"key": KEY})]
    agent = Agent("a", instructions="Be brief.", model=ScriptedModel(steps), tools=tools)
    await run_mode(agent, "Weather?", run_config=exported.config())
    found = {span.name: attributes_of(span) for span in reversed(exported.spans)}  # of equal names the first
    first, last = [attributes_of(span) for span in exported.spans if span.name == "chat ScriptedModel"]
    asked = {"role": "user", "parts": [{"type": "text", "content": "Weather?"}]}
    answer = json.loads(last["gen_ai.output.messages"])
    assert json.loads(first["gen_ai.input.messages"]) == [asked]
    assert [message["role"] for message in json.loads(last["gen_ai.input.messages"])] == ["user", "assistant", "tool"]
    assert json.loads(first["gen_ai.system_instructions"]) == [{"type": "text", "content": "Be brief."}]
    described, provided = json.loads(last["gen_ai.tool.definitions"])
    assert (described["type"], described["name"], described["description"]) == ("function", "search", "Search.")
    assert described["parameters"]["required"] == ["query"]
    assert provided == {"type": "web_search", "name": "web_search"}
    agent_span, run_span = found["invoke_agent a"], found["invoke_workflow Agent workflow"]
    for name in ("gen_ai.input.messages", "gen_ai.system_instructions", "gen_ai.tool.definitions"):
        assert agent_span[name] == first[name]
    assert json.loads(run_span["gen_ai.input.messages"]) == [asked]
    for told in (agent_span, run_span):
        assert json.loads(told["gen_ai.output.messages"]) == answer
    provided_call = found["execute_tool web_search_call"]
    assert provided_call["gen_ai.tool.call.arguments"] == '{"query":"rain"}'
    assert provided_call["gen_ai.tool.call.result"] == '["wet"]'
    assert KEY not in exported.everything()


async def test_plain_content_has_no_history(run_mode: Any) -> None:
    """It would be the same messages again with each turn. An instrument beside it that wants them changes nothing."""

    class Wants(Instrument):
        wants_requests = True

        def on_span_end(self, span: Span) -> None:
            seen.append(span)

    seen: list[Span] = []
    exported = Exported(content=True)
    agent = Agent("a", instructions="Be brief.", model=ScriptedModel([say("hi")]), tools=[search])
    await run_mode(agent, "Hello?", run_config=RunConfig(instruments=[Wants(), exported.instrument]))
    asked = next(span for span in seen if span.kind == "model")
    assert asked.data["instructions"] == "Be brief."
    assert asked.data["input"] == (UserMessage("Hello?"),)
    names = {name for span in exported.spans for name in attributes_of(span)}
    assert not names & {"gen_ai.system_instructions", "gen_ai.tool.definitions"}
    [named] = [span.name for span in exported.spans if "gen_ai.input.messages" in attributes_of(span)]
    assert named == "invoke_workflow Agent workflow"


def test_another_word_for_content_is_refused() -> None:
    """When the instrument is made."""
    with pytest.raises(UserValueError, match="expected True, False or 'full', got 'all'"):
        Exported(content="all")  # type: ignore[arg-type]


@pytest.mark.parametrize("content", [True, "full"])
async def test_a_run_may_refuse_what_the_instrument_asks_for(content: Any) -> None:
    """Both the instrument and the run's configuration have to allow content."""
    exported = Exported(content=content)
    agent = Agent("a", model=ScriptedModel([[call("search", {"query": WORDS})], say(WORDS)]), tools=[search])
    config = exported.config(trace_include_sensitive_data=False)
    await Runner.run(agent, WORDS, run_config=config)
    assert WORDS not in exported.everything()
    assert len(exported.spans) == 5


def test_messages_have_the_form_of_the_conventions() -> None:
    """Neighbours of one role are one message, but no two answers of tools; media have their place, not their bytes;
    unknown items their kind.
    """
    items = [
        SystemMessage("Be brief."),
        UserMessage(
            [
                Text("Look"),
                Image(url="https://example.com/a.png"),
                Image(data="AAAA", media_type="image/png"),
                Image(url="data:image/png;base64,AAAA"),
                Audio(data="AAAA", media_type="audio/wav"),
                File(file_id="file-1"),
            ]
        ),
        Reasoning(summary=("hm",), content=("so",)),
        AssistantMessage([Text("Yes"), Refusal("no")]),
        ToolCall("c", "look", '{"at": 1}'),
        HandoffCall("h", "transfer"),
        HostedToolCall("web_search_call", {}, "ws"),
        Compaction({"x": 1}),
        ToolOutput("c", (Text("seen"),)),
        HandoffOutput("h", "done", "a", "b"),
    ]
    system, user, assistant, *answers = json.loads(messages_text(items))
    assert (system["role"], user["role"], assistant["role"]) == ("system", "user", "assistant")
    assert user["parts"][1:] == [
        {"type": "uri", "modality": "image", "uri": "https://example.com/a.png"},
        {"type": "blob", "modality": "image", "mime_type": "image/png"},
        {"type": "blob", "modality": "image", "mime_type": None},
        {"type": "blob", "modality": "audio", "mime_type": "audio/wav"},
        {"type": "file", "modality": "file", "file_id": "file-1"},
    ]
    assert [part["type"] for part in assistant["parts"]] == [
        *("reasoning", "reasoning", "text", "refusal", "tool_call", "tool_call", "server_tool_call", "Compaction")
    ]
    assert assistant["parts"][-2] == {
        "type": "server_tool_call",
        "id": "ws",
        "name": "web_search_call",
        "server_tool_call": {"type": "web_search_call"},
    }
    seen = {"type": "tool_call_response", "id": "c", "response": '[{"type":"text","content":"seen"}]'}
    handed = {"type": "tool_call_response", "id": "h", "response": "done"}
    assert answers == [{"role": "tool", "parts": [seen]}, {"role": "tool", "parts": [handed]}]
    assert messages_text([]) == "[]"
    assert content_text("as it is") == "as it is"


@pytest.mark.parametrize(
    ("items", "told", "reason"),
    [
        ([AssistantMessage("Yes")], None, "stop"),
        ([AssistantMessage("Yes")], "length", "length"),
        ([AssistantMessage("I look."), ToolCall("c", "look", "{}")], None, "tool_call"),
        ([ToolCall("c", "look", "{}")], "tool_calls", "tool_call"),
        ([ToolCall("c", "look", "{}")], "stop", "stop"),
    ],
)
def test_an_answer_has_a_reason_for_its_end(items: list[Any], told: str | None, reason: str) -> None:
    """The conventions want one in each message: the model's, else by what the message is."""
    [message] = json.loads(answer_text(items, told))
    assert message["finish_reason"] == reason


async def test_the_reason_of_the_last_answer_is_that_of_its_agent_and_run(run_mode: Any) -> None:
    """As the model has told it."""
    exported = Exported(content="full")
    script = ScriptedModel(
        [call("search", {"query": "rain"}), respond(AssistantMessage("Wet"), finish_reason="enough")]
    )
    await run_mode(Agent("a", model=script, tools=[search]), "Weather?", run_config=exported.config())
    found = [(span.name.split()[0], attributes_of(span).get("gen_ai.output.messages")) for span in exported.spans]
    reasons = [(name, json.loads(text)[0]["finish_reason"]) for name, text in found if text is not None]
    assert reasons == [
        ("invoke_workflow", "enough"),
        ("invoke_agent", "enough"),
        ("chat", "tool_call"),
        ("chat", "enough"),
    ]


@tool
async def look(ctx: ToolContext[Any], place: str) -> str:
    """Emit an event."""
    ctx.emit({"found": f"{WORDS} in {place}"})
    return "seen"


@tool(secret_output=True)
async def open_safe(ctx: ToolContext[Any]) -> str:
    """Emit what is as secret as the output."""
    ctx.emit({"key": KEY})
    return KEY


@pytest.mark.parametrize(("content", "sensitive"), [(True, True), (True, False), (False, True)])
async def test_custom_events_are_events_of_their_calls_span(content: bool, sensitive: bool) -> None:
    """The value is content: it is there if it may be, and if the output may be."""
    exported = Exported(content=content)
    steps = [[call("look", {"place": "a"}), call("open_safe")], say("done")]
    agent = Agent("a", model=ScriptedModel(steps), tools=[look, open_safe])
    config = exported.config(tracing=TracingSettings(include_sensitive_data=sensitive))
    await Runner.run(agent, "go", run_config=config)
    told = {span.name: [(event.name, dict(event.attributes or {})) for event in span.events] for span in exported.spans}
    value = {"agentloop.event.value": json.dumps({"found": f"{WORDS} in a"}, separators=(",", ":"))}
    assert told["execute_tool look"] == [("agentloop.custom_event", value if content and sensitive else {})]
    assert told["execute_tool open_safe"] == [("agentloop.custom_event", {})]
    assert KEY not in exported.everything()
