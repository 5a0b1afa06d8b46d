"""Exported spans: their tree, what is current where, their attributes, and links between run segments."""

import json
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

pytest.importorskip("opentelemetry.sdk", reason="needs the extra test-otel: nox -s tests-otel")

from edges.chat_fixture import chat_bytes
from kit.agents import TRIPPED, make_input_guard, make_output_guard
from kit.ending import Rendezvous
from opentelemetry import trace
from opentelemetry.trace import Link, SpanKind, StatusCode
from otel_export.exporting import Exported, attributes_of

from agentloop import (
    Agent,
    Instrument,
    ModelSettings,
    RunConfig,
    RunHooks,
    Runner,
    RunOpening,
    RunState,
    handoff,
    tool,
)
from agentloop._common.version import __version__
from agentloop.exceptions import ModelTransportError
from agentloop.items import HostedToolCall, ToolCall
from agentloop.journal import FileJournal
from agentloop.models import OpenAIChatModel
from agentloop.otel import OTelInstrument
from agentloop.records import RunResumed, RunStarted
from agentloop.spans import Span, Trace
from agentloop.testing import FunctionModel, ScriptedModel, call, fail, normal, respond, say
from agentloop.testing.replaying import replay
from agentloop.usage import RequestUsage

USAGE = RequestUsage(
    input_tokens=10, output_tokens=3, total_tokens=13, cached_tokens=4, cache_write_tokens=2, reasoning_tokens=1
)


# ---------------------------------------------------------------------------------------------- the tree


@pytest.mark.scenario("VI-04")
@pytest.mark.real_clock
async def test_every_span_has_the_right_parent(run_mode: Any) -> None:
    """Of calls side by side, in threads, and in nested runs; the application's own spans are within their bodies'."""
    exported = Exported()
    met = Rendezvous(2)

    @tool
    async def work(n: int) -> str:
        """Work."""
        with exported.application.start_as_current_span(f"work {n}"):
            await met.wait()
            async with anyio.create_task_group() as group:
                group.start_soon(deeper, n)
        return "done"

    async def deeper(n: int) -> None:
        with exported.application.start_as_current_span(f"deeper {n}"):
            await anyio.lowlevel.checkpoint()

    @tool
    def block(n: int) -> str:
        """Block."""
        with exported.application.start_as_current_span(f"block {n}"):
            return "done"

    inner = Agent("inner", model=ScriptedModel([[call("block", {"n": 1})], say("in")]), tools=[block])
    script = ScriptedModel(
        [
            [
                call("work", {"n": 1}, "w1"),
                call("work", {"n": 2}, "w2"),
                call("block", {"n": 2}),
                call("ask", '{"input": "x"}'),
            ],
            say("out"),
        ]
    )
    outer = Agent("outer", model=script, tools=[work, block, inner.as_tool(tool_name="ask")])
    with exported.application.start_as_current_span("request") as request:
        await run_mode(outer, "go", run_config=exported.config(workflow_name="flow"))
        assert trace.get_current_span() is request
    assert exported.edges() == {
        ("request", None),
        ("invoke_workflow flow", "request"),
        ("invoke_agent outer", "invoke_workflow flow"),
        ("chat ScriptedModel", "invoke_agent outer"),
        ("execute_tool work", "invoke_agent outer"),
        ("work 1", "execute_tool work"),
        ("work 2", "execute_tool work"),
        ("deeper 1", "work 1"),
        ("deeper 2", "work 2"),
        ("execute_tool block", "invoke_agent outer"),
        ("block 2", "execute_tool block"),
        ("execute_tool ask", "invoke_agent outer"),
        ("invoke_agent inner", "execute_tool ask"),
        ("chat ScriptedModel", "invoke_agent inner"),
        ("execute_tool block", "invoke_agent inner"),
        ("block 1", "execute_tool block"),
    }
    assert len({span.context.trace_id for span in exported.spans if span.context is not None}) == 1
    ids = {span.context.span_id: span for span in exported.spans if span.context is not None}
    for n, call_id in ((1, "w1"), (2, "w2")):
        above = ids[exported.span(f"work {n}").parent.span_id]  # type: ignore[union-attr]
        assert attributes_of(above)["gen_ai.tool.call.id"] == call_id


@pytest.mark.scenario("VI-04")
async def test_hooks_guardrails_and_callbacks_are_within_the_agent(run_mode: Any) -> None:
    """What an application does around the calls of a run is below the agent at work, after a handoff the new one."""
    exported = Exported()

    def note(name: str) -> None:
        exported.application.start_span(name).end()

    class Hooks(RunHooks):
        async def on_agent_start(self, ctx: Any, agent: Any) -> None:
            note(f"start of {agent.name}")

        async def on_tool_end(self, ctx: Any, agent: Any, tool: Any, outcome: Any) -> None:
            note("end of tool")

        async def on_llm_end(self, ctx: Any, agent: Any, response: Any) -> None:
            note(f"answer to {agent.name}")

        async def on_run_end(self, ctx: Any, outcome: Any) -> None:
            note("end of run")

    def instruct(ctx: Any, agent: Any) -> str:
        note(f"instructions of {agent.name}")
        return "Work."

    @tool
    async def good() -> str:
        """Do good."""
        return "good"

    b = Agent("b", model=ScriptedModel([say("done")]), instructions=instruct)
    a = Agent(
        "a",
        model=ScriptedModel([call("good"), call("transfer_to_b")]),
        tools=[good],
        handoffs=[handoff(b)],
        input_guardrails=[make_input_guard("judge")],
    )
    await run_mode(a, "go", hooks=Hooks(), run_config=exported.config())
    edges = exported.edges()
    assert {
        ("start of a", "invoke_agent a"),
        ("answer to a", "invoke_agent a"),
        ("guardrail judge", "invoke_agent a"),
        ("end of tool", "execute_tool good"),
        ("handoff a -> b", "invoke_agent a"),
        ("instructions of b", "invoke_agent b"),
        ("answer to b", "invoke_agent b"),
        ("invoke_agent b", "invoke_workflow Agent workflow"),
        ("end of run", "invoke_agent b"),
    } <= edges
    judged = attributes_of(exported.span("guardrail judge"))
    assert judged["agentloop.guardrail.stage"] == "input"
    assert judged["agentloop.guardrail.verdict"] == "passed"


@pytest.mark.scenario("VI-04")
async def test_spans_of_a_request_are_within_that_of_the_model_call(run_mode: Any) -> None:
    """What an HTTP client's own instrumentation makes has the request's span above it, with the headers to show it."""
    exported = Exported()
    sent: list[str] = []

    async def answer(request: httpx.Request) -> httpx.Response:
        with exported.application.start_as_current_span("POST"):
            sent.append(request.url.path)
            return httpx.Response(200, content=chat_bytes(), headers={"content-type": "text/event-stream"})

    @tool
    async def look(where: str) -> str:
        """Look."""
        return "seen"

    @tool(name="now")
    async def tell_time() -> str:
        """Tell the time."""
        return "noon"

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
        model = OpenAIChatModel("m", base_url="http://127.0.0.1:9/v1", api_key="k", http_client=client)
        agent = Agent("a", model=model, tools=[look, tell_time], tool_use_behavior="stop_on_first_tool")
        await run_mode(agent, "go", run_config=exported.config())
    assert sent == ["/v1/chat/completions"]
    assert exported.parent("POST") == "chat m"
    chat = exported.span("chat m")
    assert chat.kind is SpanKind.CLIENT
    found = attributes_of(chat)
    assert found.pop("gen_ai.response.time_to_first_chunk") >= 0
    assert found == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "127.0.0.1",
        "gen_ai.request.model": "m",
        "agentloop.context.tokens": 14,
        "server.address": "127.0.0.1",
        "server.port": 9,
        "gen_ai.agent.name": "a",
        "agentloop.attempt": 1,
        "agentloop.turn": 1,
        "gen_ai.response.model": "gpt-x",
        "gen_ai.response.id": "r",
        "gen_ai.response.finish_reasons": ("tool_calls",),
        "gen_ai.usage.input_tokens": 9,
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.usage.cache_read.input_tokens": 4,
        "gen_ai.usage.cache_creation.input_tokens": 0,
        "gen_ai.usage.reasoning.output_tokens": 2,
    }


async def test_a_run_leaves_the_callers_context_as_it_was(run_mode: Any) -> None:
    """Also a run that fails, and between the items of a stream; without a span around it, a run begins a trace."""
    exported = Exported()
    seen: list[trace.Span] = []
    await run_mode(Agent("a", model=ScriptedModel([say("x")])), "go", run_config=exported.config())
    agent = Agent("a", model=ScriptedModel([fail(ValueError("no"))]))
    with pytest.raises(ValueError, match="no"):
        await run_mode(agent, "go", run_config=exported.config())
    agent = Agent("a", model=ScriptedModel([say("some words")]))
    async with Runner.run_streamed(agent, "go", run_config=exported.config()) as stream:
        async for _ in stream:
            seen.append(trace.get_current_span())
    assert seen
    assert {each.get_span_context().is_valid for each in [*seen, trace.get_current_span()]} == {False}
    roots = [span for span in exported.spans if span.parent is None]
    assert [span.name for span in roots] == ["invoke_workflow Agent workflow"] * 3


# ---------------------------------------------------------------------------------------------- attributes


async def test_runs_agents_and_tools_have_the_attributes_of_the_conventions(run_mode: Any) -> None:
    """The conversation is the trace's group; a queued call tells how long it waited."""
    exported = Exported()

    @tool
    async def good(n: int) -> str:
        """Do good."""
        return "good"

    model = ScriptedModel([respond(ToolCall("c1", "good", '{"n": 1}'), usage=USAGE, response_id="resp"), say("done")])
    result = await run_mode(Agent("a", model=model, tools=[good]), "go", run_config=exported.config(group_id="chat-7"))
    started = result.records[0]
    assert attributes_of(exported.span("invoke_workflow Agent workflow")) == {
        "gen_ai.operation.name": "invoke_workflow",
        "gen_ai.workflow.name": "Agent workflow",
        "gen_ai.conversation.id": "chat-7",
        "agentloop.run.id": started.run_id,
        "agentloop.run.status": "completed",
    }
    assert attributes_of(exported.span("invoke_agent a")) == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "a",
        "gen_ai.conversation.id": "chat-7",
    }
    found = attributes_of(exported.span("execute_tool good"))
    assert found.pop("agentloop.call.queued") >= 0
    assert found == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "good",
        "gen_ai.tool.description": "Do good.",
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": "c1",
        "agentloop.attempt": 1,
        "agentloop.turn": 1,
        "agentloop.call.status": "succeeded",
    }
    first = exported.spans[2]
    assert attributes_of(first)["gen_ai.usage.cache_read.input_tokens"] == 4
    assert attributes_of(first)["gen_ai.usage.cache_creation.input_tokens"] == 2
    assert attributes_of(first)["gen_ai.response.id"] == "resp"
    assert attributes_of(first)["gen_ai.conversation.id"] == "chat-7"
    assert [span.status.status_code for span in exported.spans] == [StatusCode.UNSET] * len(exported.spans)


async def test_what_goes_wrong_has_the_type_of_its_error_alone() -> None:
    """A failed request, a tool that raises or takes too long, a call that another one's failure ended, and the run."""
    exported = Exported()
    met = Rendezvous(2)

    @tool
    async def broken() -> str:
        """Break."""
        raise LookupError("private words")

    @tool(timeout=0.01)
    async def slow() -> str:
        """Wait."""
        await anyio.sleep_forever()
        return ""

    @tool(failure_error_function=None)
    async def fatal() -> str:
        """Break the run."""
        await met.wait()
        raise KeyError("private words")

    @tool
    async def cut() -> str:
        """Be cut."""
        await met.wait()
        await anyio.sleep_forever()
        return ""

    busy = ModelTransportError("private words", status=503, should_retry=False)
    failing = Agent("f", model=ScriptedModel([fail(busy)]))
    with pytest.raises(ModelTransportError):
        await Runner.run(failing, "go", run_config=exported.config())
    script = ScriptedModel([[call("broken"), call("slow"), call("unknown")], [call("fatal"), call("cut")]])
    agent = Agent("a", model=script, tools=[broken, slow, fatal, cut])
    config = exported.config(tool_not_found_behavior="tell_model")
    with pytest.raises(Exception, match="private words"):
        await Runner.run(agent, "go", run_config=config)
    errors = {
        (span.name, attributes_of(span)["error.type"])
        for span in exported.spans
        if span.status.status_code is StatusCode.ERROR
    }
    assert errors == {
        ("chat ScriptedModel", "ModelTransportError"),
        ("invoke_agent f", "ModelTransportError"),
        ("invoke_workflow Agent workflow", "ModelTransportError"),
        ("execute_tool broken", "LookupError"),
        ("execute_tool slow", "timed_out"),
        ("execute_tool unknown", "ModelBehaviorError"),
        ("execute_tool fatal", "KeyError"),
        ("execute_tool cut", "cancelled"),
        ("invoke_agent a", "ToolCallError"),
        ("invoke_workflow Agent workflow", "ToolCallError"),
    }
    failed = next(span for span in exported.spans if span.name == "chat ScriptedModel")
    assert attributes_of(failed)["http.response.status_code"] == 503
    ended = attributes_of(exported.span("execute_tool cut"))
    assert (ended["agentloop.call.cancelled_by"], ended["agentloop.call.cancelled_by_call"]) == ("sibling", "call_4")
    assert {span.status.description for span in exported.spans} == {None}
    assert "private" not in exported.everything()
    names = {point.attributes.get("gen_ai.tool.name") for point in exported.points("gen_ai.execute_tool.duration")}
    assert names == {"broken", "slow", "fatal", "cut"}  # a name that the model made up is none of a metric


async def test_tripwires_and_the_providers_own_calls_have_spans() -> None:
    """A hosted call has the times of its request; a guardrail those of its judgement."""
    exported = Exported()
    hosted = HostedToolCall("web_search_call", {"q": "private"}, "ws", "completed", "private")
    unnamed = HostedToolCall("code_call", {}, None, "failed")
    agent = Agent(
        "a",
        model=ScriptedModel([[respond(hosted, unnamed), say("found")]]),
        output_guardrails=[make_output_guard("judge")],
    )
    await Runner.run(agent, "go", run_config=exported.config())
    chat, found = exported.span("chat ScriptedModel"), exported.span("execute_tool web_search_call")
    assert exported.name_of_parent(found) == "chat ScriptedModel"
    assert found.start_time == chat.start_time
    assert attributes_of(found) == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "web_search_call",
        "gen_ai.tool.type": "extension",
        "gen_ai.tool.call.id": "ws",
        "agentloop.call.status": "completed",
    }
    assert "gen_ai.tool.call.id" not in attributes_of(exported.span("execute_tool code_call"))
    assert attributes_of(exported.span("guardrail judge"))["agentloop.guardrail.stage"] == "output"
    tripped = Exported()
    agent = Agent("a", model=ScriptedModel([say("x")]), input_guardrails=[make_input_guard("no", TRIPPED)])
    with pytest.raises(Exception, match="no"):
        await Runner.run(agent, "go", run_config=tripped.config())
    assert attributes_of(tripped.span("guardrail no"))["error.type"] == "tripwire"
    assert attributes_of(tripped.span("invoke_agent a"))["error.type"] == "InputGuardrailTripwireTriggered"


async def test_texts_that_no_exporter_can_encode_are_cleaned() -> None:
    """A model may send half a surrogate pair as a name; a batch with it could not be exported."""
    exported = Exported(content=True)
    script = ScriptedModel([[call("\ud800", '{"x": "\\ud800"}', "\udfff")], say("\ud800")])
    config = exported.config(tool_not_found_behavior="tell_model")
    await Runner.run(Agent("a", model=script), "go", run_config=config)
    exported.everything().encode()
    for span in exported.spans:
        for value in (span.name, *attributes_of(span).values()):
            str(value).encode()
    [said] = [
        attributes_of(span)["gen_ai.output.messages"]
        for span in exported.spans
        if attributes_of(span).get("agentloop.turn") == 2
    ]
    assert json.loads(said)[0]["parts"][0]["content"] == "\ud800"


# ---------------------------------------------------------------------------------------------- definitions


async def test_descriptions_and_settings_are_those_of_the_definitions(run_mode: Any) -> None:
    """Settings of the run replace the agent's, one by one. A nested run's aren't known; what isn't set isn't told."""
    exported = Exported()

    @tool
    async def find() -> str:
        """Find something."""
        return "found"

    expert = Agent(
        "expert",
        model=ScriptedModel([say("known")]),
        handoff_description="Knows it all.",
        model_settings=ModelSettings(temperature=0.9),
    )
    agent = Agent(
        "a",
        model=ScriptedModel([[call("find"), call("ask", {"input": "who?"})], say("done")]),
        tools=[find, expert.as_tool(tool_name="ask", tool_description="")],
        handoff_description="Answers.",
        model_settings=ModelSettings(temperature=0.5, max_tokens=100),
    )
    overriding = ModelSettings(temperature=0.0, top_p=0.25)
    await run_mode(agent, "go", run_config=exported.config(model_settings=overriding))
    told = [
        (span.name, attributes_of(span).get("gen_ai.agent.name"), name, value)
        for span in exported.spans
        for name, value in attributes_of(span).items()
        if (name.startswith("gen_ai.request.") and name != "gen_ai.request.model") or name.endswith(".description")
    ]
    settings = [("temperature", 0.0), ("top_p", 0.25), ("max_tokens", 100)]
    chats = [("chat ScriptedModel", "a", f"gen_ai.request.{name}", value) for name, value in settings]
    assert sorted(told) == sorted(
        [
            ("invoke_agent a", "a", "gen_ai.agent.description", "Answers."),
            ("invoke_agent expert", "expert", "gen_ai.agent.description", "Knows it all."),
            ("execute_tool find", None, "gen_ai.tool.description", "Find something."),
            *chats,
            *chats,
        ]
    )


async def test_a_model_of_the_run_has_no_settings_of_another_model() -> None:
    """An agent that has only its own model's defaults doesn't give them to the run's model: nothing is told of them."""
    exported = Exported()

    class Warm(ScriptedModel):
        @property
        def default_settings(self) -> ModelSettings:
            return ModelSettings(temperature=0.7)

    own = Warm([])
    await Runner.run(Agent("a", model=own), "go", run_config=exported.config(model=ScriptedModel([say("done")])))
    assert "gen_ai.request.temperature" not in attributes_of(exported.span("chat ScriptedModel"))


async def test_a_typed_answer_is_one_of_json(run_mode: Any) -> None:
    """The conventions want the type of the output that a request asks for; text needs no asking."""
    exported = Exported()
    for output_type, step in ((int, '{"response": 3}'), (None, "3")):
        agent = Agent("a", model=ScriptedModel([say(step)]), output_type=output_type)
        await run_mode(agent, "go", run_config=exported.config())
    chats = [attributes_of(span) for span in exported.spans if span.name == "chat ScriptedModel"]
    assert [chat.get("gen_ai.output.type") for chat in chats] == ["json", None]


async def test_two_agents_of_one_name_have_no_description() -> None:
    """A span names its agent only, so we can't know which of the two it means."""
    exported = Exported()
    other = Agent("a", model=ScriptedModel([say("done")]), handoff_description="The other one.")
    agent = Agent(
        "a", model=ScriptedModel([call("transfer_to_a")]), handoffs=[other], handoff_description="The first one."
    )
    await Runner.run(agent, "go", run_config=exported.config())
    assert "The " not in exported.everything()


async def test_the_scope_has_the_version_of_the_library() -> None:
    """Of spans and of metrics, so that a backend can tell which version has written them."""
    exported = Exported()
    await Runner.run(Agent("a", model=ScriptedModel([say("done")])), "go", run_config=exported.config())
    scopes = {(span.instrumentation_scope.name, span.instrumentation_scope.version) for span in exported.spans}
    data = exported.reader.get_metrics_data()
    scopes |= {(found.scope.name, found.scope.version) for one in data.resource_metrics for found in one.scope_metrics}
    assert scopes == {("agentloop", __version__)}


# ---------------------------------------------------------------------------------------------- metrics


async def test_names_units_and_bounds_are_those_of_the_conventions() -> None:
    """The bounds as the conventions' pages list them, so that histograms of several libraries can be added up."""
    exported = Exported()

    @tool
    async def find() -> str:
        """Find something."""
        return "found"

    model = ScriptedModel([respond(ToolCall("c", "find"), usage=USAGE), say("done", USAGE)])
    await Runner.run(Agent("a", model=model, tools=[find]), "go", run_config=exported.config())
    doubled = tuple(0.01 * 2**power for power in range(14))
    assert {
        found.name: (found.unit, tuple(found.data.data_points[0].explicit_bounds))
        for found in exported.metrics()
        if found.name.startswith("gen_ai.")
    } == {
        "gen_ai.client.operation.duration": ("s", doubled),
        "gen_ai.execute_tool.duration": ("s", doubled),
        "gen_ai.client.operation.time_to_first_chunk": (
            "s",
            (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
        ),
        "gen_ai.invoke_agent.duration": ("s", tuple(0.1 * 2**power for power in range(13))),
        "gen_ai.workflow.duration": ("s", (1, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200)),
        "gen_ai.client.token.usage": ("{token}", tuple(4**power for power in range(14))),
    }


async def test_requests_tools_and_agents_are_measured(run_mode: Any) -> None:
    """Durations of each, tokens of the requests by kind, the time to the first piece, and the use of the cache."""
    exported = Exported()

    @tool
    async def good() -> str:
        """Do good."""
        return "good"

    model = ScriptedModel([respond(ToolCall("c", "good"), usage=USAGE), say("done", USAGE)])
    await run_mode(Agent("a", model=model, tools=[good]), "go", run_config=exported.config())
    durations = exported.points("gen_ai.client.operation.duration")
    asked = {"gen_ai.provider.name": "ScriptedModel", "gen_ai.request.model": "ScriptedModel"}
    chat = {"gen_ai.operation.name": "chat", **asked}
    assert {
        point.count: dict(point.attributes) for point in durations if "gen_ai.request.model" in point.attributes
    } == {2: chat}
    assert {
        name: [dict(point.attributes) for point in exported.points(f"gen_ai.{name}.duration")]
        for name in ("execute_tool", "invoke_agent", "workflow")
    } == {
        "execute_tool": [{"gen_ai.tool.name": "good", "gen_ai.tool.type": "function", "gen_ai.agent.name": "a"}],
        "invoke_agent": [{"gen_ai.agent.name": "a"}],
        "workflow": [{"gen_ai.workflow.name": "Agent workflow"}],
    }
    tokens = {
        point.attributes["gen_ai.token.type"]: (point.sum, point.count)
        for point in exported.points("gen_ai.client.token.usage")
    }
    assert tokens == {"input": (20, 2), "output": (6, 2)}
    [first] = exported.points("gen_ai.client.operation.time_to_first_chunk")
    assert (first.count, dict(first.attributes)) == (2, chat)
    cached = {
        point.attributes["agentloop.cache.operation"]: point.value
        for point in exported.points("agentloop.client.cache.usage")
    }
    assert cached == {"read": 8, "write": 4}


# ---------------------------------------------------------------------------------------------- resumed runs


@tool(needs_approval=True)
async def gated() -> str:
    """Be allowed."""
    return "allowed"


def _paused_agent() -> Agent[Any, Any]:
    def answer(request: Any) -> Any:
        return [call("gated", call_id="g"), say("done")][request.turn - 1]

    return Agent("a", model=FunctionModel(answer), tools=[gated])


async def test_a_resumed_run_links_to_the_run_segment_before(run_mode: Any) -> None:
    """By the ids in the stored state, in any process: a new trace, as the pause may have taken days."""
    exported, later = Exported(), Exported()
    paused = await run_mode(_paused_agent(), "go", run_config=exported.config())
    [root] = [span for span in exported.spans if span.parent is None]
    assert root.links == ()
    text = paused.to_state().to_string()
    state = RunState.from_string(_paused_agent(), text)
    state.approve(state.interruptions[0])
    with later.application.start_as_current_span("second request"):
        result = await run_mode(_paused_agent(), state, run_config=later.config())
    assert result.final_output == "done"
    resumed = later.span("invoke_workflow Agent workflow")
    [link] = resumed.links
    assert isinstance(link, Link)
    assert root.context is not None
    assert (link.context.trace_id, link.context.span_id) == (root.context.trace_id, root.context.span_id)
    assert later.name_of_parent(resumed) == "second request"
    assert attributes_of(resumed)["agentloop.run.id"] == attributes_of(root)["agentloop.run.id"]
    # What was told before isn't told again.
    told = ["execute_tool gated", "invoke_agent a", "chat FunctionModel"]
    assert sorted(span.name for span in later.spans if span.parent is not None and span is not resumed) == sorted(told)
    assert attributes_of(root)["agentloop.run.status"] == "interrupted"


async def test_a_run_segment_without_the_instrument_does_not_break_the_chain() -> None:
    """The link then goes to the last one that was exported; a name in the log that is none gives no link."""
    exported, later = Exported(), Exported()
    paused = await Runner.run(_paused_agent(), "go", run_config=exported.config())
    again = await Runner.run(_paused_agent(), paused.to_state())
    state = again.to_state()
    state.approve(state.interruptions[0])
    await Runner.run(_paused_agent(), state, run_config=later.config())
    [root] = [span for span in exported.spans if span.parent is None]
    assert root.context is not None
    assert [link.context.span_id for link in later.span("invoke_workflow Agent workflow").links] == [
        root.context.span_id
    ]
    opening = RunOpening(trace=Trace(), run_id="r", started_at=1.0, earlier="00-" + "0" * 32 + "-" + "0" * 16 + "-00")
    alone = Exported()
    alone.instrument.on_run_open(opening)
    assert opening.traceparent is not None


async def test_two_instruments_of_one_run_have_spans_of_their_own() -> None:
    """The log keeps the ids of the first; the second's spans are as complete."""
    first, second = Exported(), Exported()
    agent = Agent("a", model=ScriptedModel([say("x")]))
    result = await Runner.run(agent, "go", run_config=RunConfig(instruments=[first.instrument, second.instrument]))
    [root] = [span for span in first.spans if span.parent is None]
    assert root.context is not None
    assert f"{root.context.span_id:016x}" in (result.records[0].traceparent or "")
    assert len(first.spans) == len(second.spans) == 3


async def test_the_log_of_an_exported_run_equals_that_of_a_plain_one() -> None:
    """In normal form: the ids of its spans are no part of what happened."""
    exported = Exported()
    agent = Agent("a", model=FunctionModel(lambda request: "x"))
    with_spans = await Runner.run(agent, "go", run_config=exported.config())

    class Watcher(Instrument):
        def on_span_end(self, span: Any) -> None:
            """Nothing: spans are made."""

    without = await Runner.run(agent, "go", run_config=RunConfig(instruments=[Watcher()]))
    kept = [{**record, "trace_id": None} for record in normal(with_spans.records)]
    assert kept == [{**record, "trace_id": None} for record in normal(without.records)]


async def test_without_an_sdk_nothing_is_exported_and_nothing_is_named() -> None:
    """The API alone has spans without ids, so the log gets none."""
    agent = Agent("a", model=ScriptedModel([say("x")]))
    result = await Runner.run(agent, "go", run_config=RunConfig(instruments=[OTelInstrument()]))
    assert result.records[0].traceparent is None


@pytest.mark.slow
def test_an_exported_run_is_replayed_from_its_journal(tmp_path: Path) -> None:
    """Pause and resume included. The recorded names of its spans are kept, and nothing is exported again."""
    exported = Exported()
    path = tmp_path / "run.jsonl"

    async def record() -> None:
        async with FileJournal(path) as journal:
            paused = await Runner.run(_paused_agent(), "go", run_config=exported.config(), journal=journal)
            state = paused.to_state()
            state.approve(state.interruptions[0])
            await Runner.run(_paused_agent(), state, run_config=exported.config(), journal=journal)

    anyio.run(record)
    before = len(exported.spans)
    for backend in ("asyncio", "trio"):
        replayed = replay(path, _paused_agent(), run_config=exported.config(), backend=backend)
        assert replayed.result is not None
        assert replayed.result.final_output == "done"
        named = [record.traceparent for record in replayed.records if isinstance(record, (RunStarted, RunResumed))]
        roots = [span.context for span in exported.spans if span.parent is None and span.context is not None]
        assert [name and name[3:35] for name in named] == [f"{context.trace_id:032x}" for context in roots]
    assert len(exported.spans) == before


def test_a_span_whose_parent_began_in_another_process_is_where_the_run_is() -> None:
    """As in a workflow whose worker died: what began there isn't ended here, and what begins here has a place."""
    exported = Exported()
    run = Span(trace=Trace(), kind="run", name="flow", started_at=1.0)
    agent = Span(trace=run.trace, kind="agent", name="a", started_at=1.0, parent=run)
    with exported.application.start_as_current_span("workflow"):
        exported.instrument.on_span_start(agent)
        for span in (agent, run):
            span.ended_at = 2.0
            exported.instrument.on_span_end(span)
    assert exported.edges() == {("workflow", None), ("invoke_agent a", "workflow")}
