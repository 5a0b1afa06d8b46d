"""Agents as definitions, the contexts made for user code, and what fails at a run's end."""

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import attrs
import msgspec
import pytest
from kit.agents import PASSED, TRIPPED, Run, configure_run, look, make_input_guard, make_output_guard, script_agent
from kit.ending import HeldWork, cancel_when
from kit.results import describe, find_records, read_outputs, read_requests, read_statuses
from kit.watching import RunHookLog, Watch

from agentloop import (
    Agent,
    AgentHooks,
    Allow,
    GuardrailFunctionOutput,
    HandoffInputData,
    InputGuardrailTripwireTriggered,
    MaxTurnsExceeded,
    ModelSettings,
    RunConfig,
    RunContext,
    RunHooks,
    Runner,
    ToolContext,
    Usage,
    UserError,
    handoff,
    input_guardrail,
    output_guardrail,
    tool,
)
from agentloop import records as r
from agentloop.exceptions import UserTypeError
from agentloop.guardrails import tool_input_guardrail, tool_output_guardrail
from agentloop.items import AssistantMessage, HostedToolCall, UserMessage
from agentloop.sessions import MemorySession
from agentloop.testing import ScriptedModel, call, respond, say

# -- construction

WRONG: dict[str, list[Any]] = {
    "name": [5, None, ""],
    "instructions": [5, [5], {"text": 1}],
    "prompt": [5, "pmpt_1"],
    "handoff_description": [5],
    "model": [5, object()],
    "model_settings": [None, {"temperature": 1}, "text"],
    "tools": [None, 5, "look", look, [len], [look, "look"], {look.name: look}],
    "handoffs": [None, "b", [5], ["transfer_to_b"]],
    "input_guardrails": [None, [len], make_input_guard("g"), [make_output_guard("g")]],
    "output_guardrails": [None, [len], make_output_guard("g"), [make_input_guard("g")]],
    "output_type": [5, "text", object(), len],
    "hooks": [5, RunHooks(), AgentHooks],
    "tool_use_behavior": [None, "stop", 5],
    "output_validator": [5, "text"],
    "output_retries": [None, "1", 1.0, True, -1],
    "reset_tool_choice": [None, 1, "yes"],
    "tool_execution": [None, "parallel", 5],
    "toolsets": [None, 5, "server", [len], [look]],
    "context": [5, 0.8, "summarize"],
    "policies": [None, 5, "deny", [len], [look]],
    "bundles": [None, 5, "files", [len], [look]],
}


def str_or_type(value: Any) -> str:
    """Return a name for a test's parameter."""
    return value if isinstance(value, str) else type(value).__name__


@pytest.mark.scenario("DE-01")
@pytest.mark.parametrize(
    ("field", "value"), [(field, value) for field, values in WRONG.items() for value in values], ids=str_or_type
)
def test_field_of_a_wrong_category_is_refused_at_construction(field: str, value: Any) -> None:
    """The error names the field, and a clone checks it too."""
    fields = {"name": "a"} | {field: value}
    with pytest.raises(UserError, match=rf"Agent\.{field}\b"):
        Agent(**fields)
    with pytest.raises(UserError, match=rf"Agent\.{field}\b"):
        Agent("a").clone(**{field: value})


@pytest.mark.scenario("DE-01")
def test_every_field_of_an_agent_is_checked() -> None:
    """The cases above have every field."""
    assert set(WRONG) == {field.name for field in attrs.fields(Agent) if field.init}


@pytest.mark.scenario("DE-01")
async def test_callables_are_checked_when_they_are_called(run_mode: Run) -> None:
    """An agent accepts callables of any signature; a wrong signature raises when the callable is called."""
    agent = script_agent("a", say("never"), instructions=lambda: "x", tool_use_behavior=lambda: None)
    with pytest.raises(UserError, match=r"Agent\.instructions"):
        await run_mode(agent, "go")


@pytest.mark.scenario("DE-02")
def test_clone_shares_every_member_that_is_not_given() -> None:
    """The clone and the agent share lists, so an appended element shows in both; they are still two agents."""
    agent = script_agent(
        "a",
        instructions="Be brief.",
        handoff_description="Knows.",
        model_settings=ModelSettings(temperature=0.5),
        tools=[look],
        handoffs=[Agent("b")],
        input_guardrails=[make_input_guard("g")],
        output_guardrails=[make_output_guard("g")],
        output_type=list[int],
        hooks=AgentHooks(),
        tool_use_behavior="stop_on_first_tool",
        reset_tool_choice=False,
        tool_execution="sequential",
    )
    clone = agent.clone(name="c")
    assert clone is not agent
    assert clone != agent
    assert (clone.name, agent.name) == ("c", "a")
    for field in attrs.fields(Agent):
        if field.init and field.name != "name":
            assert getattr(clone, field.name) is getattr(agent, field.name), field.name
    assert isinstance(agent.tools, list)
    agent.tools.append(look)
    assert len(clone.tools) == 2
    replaced = agent.clone(tools=[])
    assert (list(replaced.tools), len(agent.tools)) == ([], 2)


@pytest.mark.scenario("DE-02")
def test_clone_of_a_field_there_is_none_of_is_refused() -> None:
    """The error names the unknown field."""
    with pytest.raises(UserError, match="no field toolz"):
        Agent("a").clone(toolz=[])


# -- identity


class Agents(RunHooks):
    """Keeps every agent that hooks are given, by event."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, Any]] = []

    async def on_agent_start(self, ctx: Any, agent: Any) -> None:
        self.seen.append(("start", agent))

    async def on_agent_end(self, ctx: Any, agent: Any, output: Any) -> None:
        self.seen.append(("end", agent))

    async def on_llm_start(self, ctx: Any, agent: Any, system: Any, input: Any) -> None:
        self.seen.append(("llm_start", agent))

    async def on_llm_end(self, ctx: Any, agent: Any, response: Any) -> None:
        self.seen.append(("llm_end", agent))

    async def on_tool_start(self, ctx: Any, agent: Any, tool: Any) -> None:
        self.seen += [("tool_start", agent), ("tool context", ctx.agent)]

    async def on_tool_end(self, ctx: Any, agent: Any, tool: Any, outcome: Any) -> None:
        self.seen += [("tool_end", agent), ("tool context", ctx.agent)]

    async def on_handoff(self, ctx: Any, from_agent: Any, to_agent: Any) -> None:
        self.seen += [("from", from_agent), ("to", to_agent)]


@pytest.mark.scenario("DE-04")
async def test_user_code_is_given_the_caller_s_agent_objects(run_mode: Run) -> None:
    """Hooks, contexts, callbacks and results carry the caller's agents, never the copies that were prepared inside."""
    seen: list[tuple[str, Any]] = []

    @tool
    async def who(ctx: ToolContext[Any]) -> str:
        """Tell."""
        seen.append(("body", ctx.agent))
        return "me"

    def told(kind: str, answer: Any) -> Any:
        def callback(ctx: Any, agent: Any, *more: Any) -> Any:
            seen.append((kind, agent))
            return answer

        return callback

    second = script_agent(
        "b", call("who"), say("done"), tools=[who], output_guardrails=[output_guardrail(told("output", PASSED))]
    )
    hooks = Agents()
    first = script_agent(
        "a",
        [call("who"), call("transfer_to_b")],
        instructions=told("instructions", "x"),
        tools=[attrs.evolve(who, is_enabled=told("enabled", True))],
        handoffs=[handoff(second, is_enabled=told("handoff", True), on_handoff=lambda ctx: None)],
        input_guardrails=[input_guardrail(told("input", PASSED))],
    )
    result = await run_mode(first, "go", hooks=hooks)
    assert result.last_agent is second
    assert {kind for kind, _ in seen} == {"body", "output", "instructions", "enabled", "handoff", "input"}
    everything = [*seen, *hooks.seen]
    assert all(agent is first or agent is second for _, agent in everything)
    of_first = {kind for kind, agent in everything if agent is first}
    assert of_first >= {"instructions", "enabled", "handoff", "input", "body", "from", "start", "tool context"}
    assert {kind for kind, agent in everything if agent is second} >= {"output", "to", "end", "body", "tool context"}
    assert result.output_guardrail_results[0].agent is second


# -- the application's object


class Secret:
    """An application object that is not to be found anywhere."""

    def __repr__(self) -> str:
        return "SECRET-OF-THE-APPLICATION"


def reachable(value: Any, seen: set[int]) -> Iterable[Any]:
    """Give every value that can be reached from *value* through fields, mappings and sequences."""
    if id(value) in seen:
        return
    seen.add(id(value))
    yield value
    parts: list[Any] = []
    if isinstance(value, Mapping):
        parts = [*value.keys(), *value.values()]
    elif isinstance(value, list | tuple | set | frozenset):
        parts = list(value)
    elif attrs.has(type(value)):
        parts = [getattr(value, field.name) for field in attrs.fields(type(value))]
    for part in parts:
        yield from reachable(part, seen)


@pytest.mark.scenario("DE-05")
async def test_application_s_object_is_in_no_request_record_or_span(run_mode: Run) -> None:
    """No request, record or span has the object or its text, although all callbacks that may see it do."""

    class Spans(Watch):
        def __init__(self) -> None:
            super().__init__()
            self.spans: list[Any] = []

        def on_span_end(self, span: Any) -> None:
            self.spans.append(span)

    secret = Secret()
    seen: list[Any] = []

    @tool
    async def use(ctx: ToolContext[Any]) -> str:
        """Use it."""
        seen.append(ctx.context)
        return "used"

    second = script_agent("b", say("done"))
    inner = script_agent("inner", call("use"), say("inner done"), tools=[use])
    first = script_agent(
        "a",
        [call("use"), call("ask", {"input": "x"})],
        call("transfer_to_b"),
        tools=[use, inner.as_tool("ask")],
        handoffs=[handoff(second, on_handoff=lambda ctx: seen.append(ctx.context))],
        input_guardrails=[make_input_guard("g")],
    )
    watch = Spans()

    def keep(data: HandoffInputData) -> HandoffInputData:
        assert data.context is not None
        seen.append(data.context.context)
        return data

    config = configure_run(watch, config=RunConfig(handoff_input_filter=keep))
    result = await run_mode(first, "go", context=secret, run_config=config)
    assert result.context is secret
    assert len(seen) == 4
    assert all(value is secret for value in seen)
    requests = [*read_requests(first), *read_requests(second), *read_requests(inner)]
    assert watch.spans
    found = list(reachable([requests, watch.records, watch.spans], set()))
    assert len(found) > 50
    assert not any(value is secret or isinstance(value, RunContext) for value in found)
    assert "SECRET-OF-THE-APPLICATION" not in repr([watch.records, requests, watch.spans])


@pytest.mark.scenario("DE-06")
async def test_everything_in_a_run_gets_one_application_object(run_mode: Run) -> None:
    """Tools, hooks, guardrails, handoffs and nested agents get one and the same application object."""
    app = object()
    seen: dict[str, Any] = {}

    def note(kind: str, answer: Any = None) -> Any:
        def callback(ctx: Any, *more: Any) -> Any:
            assert seen.setdefault(kind, ctx.context) is ctx.context
            return answer

        return callback

    @tool
    async def use(ctx: ToolContext[Any]) -> str:
        """Use it."""
        note("tool")(ctx)
        return "used"

    @tool
    async def use_inside(ctx: ToolContext[Any]) -> str:
        """Use it."""
        note("nested tool")(ctx)
        return "used"

    class RunServicesView(RunHooks):
        on_agent_start = staticmethod(note("run hook"))
        on_tool_end = staticmethod(note("tool hook"))
        on_run_end = staticmethod(note("run end"))

    class OfAgent(AgentHooks):
        on_start = staticmethod(note("agent hook"))

    @tool_input_guardrail
    def before(data: Any) -> Any:
        return note("tool input guardrail", Allow())(data.context)

    @tool_output_guardrail
    def after(data: Any) -> Any:
        return note("tool output guardrail", Allow())(data.context)

    inner = script_agent("inner", call("use_inside"), say("x"), tools=[use_inside], instructions=note("nested", "n"))
    second = script_agent("b", say("done"), output_guardrails=[output_guardrail(note("output guardrail", PASSED))])
    guarded = attrs.evolve(use, tool_input_guardrails=(before,), tool_output_guardrails=(after,))
    first = script_agent(
        "a",
        [call("use"), call("inner", {"input": "x"}), call("transfer_to_b")],
        tools=[guarded, inner.as_tool()],
        handoffs=[handoff(second, on_handoff=note("handoff"), is_enabled=note("enabled", True))],
        input_guardrails=[input_guardrail(note("input guardrail", PASSED))],
        hooks=OfAgent(),
    )
    result = await run_mode(first, "go", context=app, hooks=RunServicesView())
    assert result.context is app
    assert set(seen) == {
        "tool",
        "nested tool",
        "nested",
        "run hook",
        "tool hook",
        "run end",
        "agent hook",
        "tool input guardrail",
        "tool output guardrail",
        "input guardrail",
        "output guardrail",
        "handoff",
        "enabled",
    }
    assert all(value is app for value in seen.values())


@pytest.mark.scenario("DE-07")
async def test_tool_context_of_a_call_has_the_run_s_and_its_own(run_mode: Run) -> None:
    """A tool context has object, usage, run id, call id, namespace, arguments, history, configuration and agent."""
    contexts: list[Any] = []
    app = object()

    @tool(namespace="ns")
    async def use(ctx: ToolContext[Any], n: int) -> str:
        """Use it."""
        contexts.append(ctx)
        return "used"

    config = RunConfig()
    agent = script_agent("a", [say("I use."), call("use", '{"n": 1}', "c", "ns")], say("done"), tools=[use])
    result = await run_mode(agent, "go", context=app, run_config=config)
    [ctx] = contexts
    assert ctx.context is app
    assert (ctx.tool_call_id, ctx.tool_name, ctx.tool_namespace, ctx.tool_arguments) == ("c", "use", "ns", '{"n": 1}')
    assert describe(ctx.conversation_history) == ["user:go", "says:I use.", "call:use#c"]
    assert ctx.run_config is config
    assert ctx.agent is agent
    assert [ctx.run_id] == [started.run_id for started in find_records(result, r.RunStarted)]
    assert ctx.usage == result.usage  # live: the second request counts here too
    assert ctx.usage.requests == 2


@pytest.mark.scenario("DE-07")
def test_tool_context_can_be_made_from_a_run_s() -> None:
    """The new context shares the run's values and adds the given ones; outside a run, `cancel_call` raises."""
    app = object()
    items = (UserMessage("go"),)
    config = RunConfig()
    outer: RunContext[Any] = RunContext(context=app, run_id="r", turn_input=items)
    ctx = ToolContext.from_agent_context(
        outer,
        "c",
        tool_name="use",
        tool_arguments='{"n": 1}',
        tool_namespace="ns",
        conversation_history=items,
        run_config=config,
    )
    assert ctx.context is app
    assert (ctx.run_id, ctx.turn_input, ctx.usage) == ("r", items, Usage())
    assert (ctx.tool_call_id, ctx.tool_name, ctx.tool_namespace, ctx.tool_arguments) == ("c", "use", "ns", '{"n": 1}')
    assert ctx.conversation_history == items
    assert ctx.run_config is config
    with pytest.raises(UserError, match="cancel_call"):
        ctx.cancel_call("d")


def test_a_context_has_the_idempotency_key_that_it_was_given() -> None:
    """Outside of a run there is none but the given one; it can be set, and a copy has it too."""
    bare: RunContext[Any] = RunContext(context=None, run_id="r")
    assert ToolContext.from_agent_context(bare, "c", tool_name="use").idempotency_key == ""
    ctx: ToolContext[Any] = ToolContext.from_agent_context(bare, "c", tool_name="use", idempotency_key="given")
    assert ctx.idempotency_key == msgspec.structs.replace(ctx, tool_name="other").idempotency_key == "given"
    assert "idempotency_key='given'" in repr(ctx)
    ctx.idempotency_key = "set"
    assert ctx.idempotency_key == "set"


# -- guardrails of tools, error handlers


@pytest.mark.scenario("DE-10")
async def test_tool_guardrails_do_not_run_for_handoffs_and_hosted_tools(run_mode: Run) -> None:
    """Tool guardrails judge only the functions they are given to, and the results list only those judgements."""
    judged: list[str] = []

    @tool_input_guardrail
    def before(data: Any) -> Any:
        judged.append(f"in {data.tool.name}")
        return Allow()

    @tool_output_guardrail
    def after(data: Any) -> Any:
        judged.append(f"out {data.tool.name}")
        return Allow()

    guarded = attrs.evolve(look, tool_input_guardrails=(before,), tool_output_guardrails=(after,))
    second = script_agent("b", say("done"))
    first = script_agent(
        "a",
        respond(HostedToolCall("search", {"q": "x"})),
        [call("look", call_id="c"), call("transfer_to_b", call_id="h")],
        tools=[guarded],
        handoffs=[second],
    )
    result = await run_mode(first, "go")
    assert result.last_agent is second
    assert judged == ["in look", "out look"]
    assert [found.call.call_id for found in result.tool_input_guardrail_results] == ["c"]
    assert [found.call.call_id for found in result.tool_output_guardrail_results] == ["c"]


@pytest.mark.scenario("DE-11")
async def test_data_results_and_usage_survive_an_error_handler(run_mode: Run) -> None:
    """The handler sees all earlier data, and the result has it together with the later data."""

    @tool_input_guardrail
    def before(data: Any) -> Any:
        return Allow("before")

    @tool_output_guardrail
    def after(data: Any) -> Any:
        return Allow("after")

    datas: list[Any] = []

    def handler(data: Any) -> Any:
        datas.append(data.run_data)
        return "that's all"

    agent = script_agent(
        "a",
        call("look", call_id="c"),
        tools=[attrs.evolve(look, tool_input_guardrails=(before,), tool_output_guardrails=(after,))],
        input_guardrails=[make_input_guard("in")],
        output_guardrails=[make_output_guard("out")],
    )
    result = await run_mode(agent, "go", max_turns=1, error_handlers={"max_turns": handler}, context="app")
    assert result.final_output == "that's all"
    [data] = datas
    for found in (data, result):
        assert [one.guardrail.name for one in found.input_guardrail_results] == ["in"]
        assert [one.output for one in found.tool_input_guardrail_results] == [Allow("before")]
        assert [one.output for one in found.tool_output_guardrail_results] == [Allow("after")]
        assert read_outputs(found.new_items) == {"c": "seen"}
        assert read_statuses(found) == ["succeeded"]
        assert found.usage.requests == 1
        assert len(found.raw_responses) == 1
        assert found.context == "app"
        assert found.last_agent is agent
        assert describe(found.input) == ["user:go"]
    assert data.output_guardrail_results == ()
    assert [one.guardrail.name for one in result.output_guardrail_results] == ["out"]


@pytest.mark.scenario("DE-11")
async def test_error_of_a_handler_s_output_has_the_run_s_data(run_mode: Run) -> None:
    """The error of a guardrail that trips on the handler's output has the run's data."""
    agent = script_agent(
        "a", call("look", call_id="c"), tools=[look], output_guardrails=[make_output_guard("out", TRIPPED)]
    )
    agent.input_guardrails = [make_input_guard("in", GuardrailFunctionOutput("noted"))]
    with pytest.raises(Exception, match="out tripped") as caught:
        await run_mode(agent, "go", max_turns=1, error_handlers={"max_turns": lambda data: "x"})
    data = getattr(caught.value, "run_data", None)
    assert data is not None
    assert data.usage.requests == 1
    assert [one.output.output_info for one in data.input_guardrail_results] == ["noted"]
    assert [one.output for one in data.output_guardrail_results] == [TRIPPED]


# -- what fails at the end


class Full(MemorySession):
    """A session that can't be written."""

    def __init__(self) -> None:
        super().__init__("full")
        self.tries = 0

    async def add_items(self, items: Any) -> None:
        self.tries += 1
        await anyio.lowlevel.checkpoint()
        raise OSError("disk full")


@pytest.mark.scenario("DE-12")
@pytest.mark.parametrize("at", ["turn", "end"])
async def test_session_that_cannot_be_written_fails_the_run(run_mode: Run, at: str) -> None:
    """The run fails with the session's error; the write isn't tried again, and the records are complete."""
    watch, session, trace = Watch(), Full(), RunHookLog()
    steps = [call("look", call_id="c"), say("never")] if at == "turn" else [say("done")]
    agent = script_agent("a", *steps, tools=[look])
    with pytest.raises(OSError, match="disk full"):
        await run_mode(agent, "go", session=session, run_config=configure_run(watch), hooks=trace)
    assert session.tries == 1
    assert watch.end == "failed"
    assert "disk full" in (watch.of(r.RunEnded)[0].error or "")
    assert trace.lines[-1] == "run_end failed"
    assert len(read_requests(agent)) == 1
    if at == "turn":
        assert watch.outcome("c").status == "succeeded"


@pytest.mark.scenario("DE-12")
async def test_session_that_cannot_be_written_while_cancelling_is_recorded(run_mode: Run) -> None:
    """The cancellation leaves the run, and the session's error is recorded."""
    watch, session, held = Watch(), Full(), HeldWork()

    @tool
    async def hold() -> str:
        """Hold."""
        await held()
        return "held"

    agent = script_agent("a", [call("look", call_id="c"), call("hold", call_id="d")], tools=[look, hold])
    await cancel_when(held.started, lambda: run_mode(agent, "go", session=session, run_config=configure_run(watch)))
    assert session.tries == 1
    assert watch.end == "cancelled"
    [end] = watch.of(r.RunEnded)
    assert end.error is None
    assert end.details == {"also_failed": ["OSError(disk full)"]}


@asynccontextmanager
async def broken_at_exit() -> AsyncIterator[str]:
    """A resource that can't be left."""
    yield "resource"
    raise LookupError("can't close")


@tool
async def take(ctx: ToolContext[Any]) -> str:
    """Take the resource."""
    taken: str = await ctx.resource(broken_at_exit)
    return taken


class BrokenEnd(RunHooks):
    """A run hook that fails at the end."""

    async def on_run_end(self, ctx: Any, outcome: Any) -> None:
        raise LookupError("can't close")


def ending(kind: str, *steps: Any, **fields: Any) -> tuple[Agent[Any, Any], dict[str, Any]]:
    """Return an agent whose run fails at its end, by a hook or a resource, and the options of the run."""
    agent = script_agent("a", call("take"), *steps, tools=[take, look], **fields)
    if kind == "hook":
        agent.tools = [attrs.evolve(look, name="take"), look]
    return agent, {"hooks": BrokenEnd()} if kind == "hook" else {}


@pytest.mark.scenario("DE-12")
@pytest.mark.parametrize("kind", ["hook", "resource"])
async def test_what_fails_at_the_end_of_a_good_run_is_raised(run_mode: Run, kind: str) -> None:
    """The error of a closing hook or resource leaves the run, which has failed then."""
    watch = Watch()
    agent, options = ending(kind, say("done"))
    with pytest.raises(LookupError, match="can't close"):
        await run_mode(agent, "go", run_config=configure_run(watch), **options)
    assert watch.end == "failed"


@pytest.mark.scenario("DE-12")
@pytest.mark.parametrize("kind", ["hook", "resource"])
async def test_what_fails_while_an_error_leaves_is_a_note(run_mode: Run, kind: str) -> None:
    """The first error leaves, with the closing error as a note."""
    watch = Watch()
    agent, options = ending(kind)
    with pytest.raises(MaxTurnsExceeded) as caught:
        await run_mode(agent, "go", max_turns=1, run_config=configure_run(watch), **options)
    assert watch.end == "failed"
    assert any("can't close" in note for note in caught.value.__notes__)


@pytest.mark.scenario("DE-12")
@pytest.mark.parametrize("kind", ["hook", "resource"])
async def test_what_fails_while_cancelling_is_recorded(run_mode: Run, kind: str) -> None:
    """The cancellation leaves, and the closing error is in the last record."""
    watch, held = Watch(), HeldWork()

    @tool
    async def hold() -> str:
        """Hold."""
        await held()
        return "held"

    agent, options = ending(kind, call("hold"))
    agent.tools = [*agent.tools, hold]
    await cancel_when(held.started, lambda: run_mode(agent, "go", run_config=configure_run(watch), **options))
    assert watch.end == "cancelled"
    [end] = watch.of(r.RunEnded)
    assert end.details == {"also_failed": ["LookupError(can't close)"]}


async def test_hook_that_fails_beside_a_tripwire_leaves_it(run_mode: Run) -> None:
    """The tripwire leaves with the hook's error as a note, because a verdict must not be lost."""
    agent = Agent[Any, Any](
        "a", model=ScriptedModel([respond(AssistantMessage("x"))]), input_guardrails=[make_input_guard("g", TRIPPED)]
    )
    with pytest.raises(InputGuardrailTripwireTriggered) as caught:
        await run_mode(agent, "go", hooks=BrokenEnd())
    assert any("can't close" in note for note in caught.value.__notes__)


async def test_definitions_are_resolved_anew_when_what_they_are_made_of_is_another_object(run_mode: Run) -> None:
    """A turn's request shows the agent as it is then; an agent that stays the same is resolved once for all runs."""

    def describe_shown(agent: Agent[Any, Any]) -> tuple[Any, ...]:
        request = read_requests(agent)[-1]
        names = [tool.name for tool in request.tools], [handoff.description for handoff in request.handoffs]
        return (*names, request.settings.temperature, request.output_schema is not None)

    target: Agent[Any, Any] = Agent("target")
    answers = ["done", "done", '{"response": 1}', "done"]
    agent = script_agent("guide", *map(say, answers), tools=[look], handoffs=[target])
    await run_mode(agent, "go")
    first, prepared = describe_shown(agent), agent._prepared
    await run_mode(agent, "go")
    assert describe_shown(agent) == first == (["look"], [handoff(target).description], None, False)
    assert prepared is not None
    assert agent._prepared is prepared
    agent.output_type, target.handoff_description = int, "Knows all."
    await run_mode(agent, "go")
    assert describe_shown(agent) == (["look"], [handoff(target).description], None, True)
    agent.output_type, agent.tools, agent.handoffs = None, [], []
    await run_mode(agent, "go", run_config=RunConfig(model_settings=ModelSettings(temperature=0.5)))
    assert describe_shown(agent) == ([], [], 0.5, False)


async def test_a_handoff_that_became_wrong_after_the_definition_fails_the_run() -> None:
    """The run has begun, so its end hook hears of the failure, and the error knows the run."""
    heard: list[Any] = []

    class Hooks(RunHooks):
        async def on_run_end(self, ctx: Any, outcome: Any) -> None:
            heard.append((outcome.status, type(outcome.error)))

    agent: Agent[Any, Any] = script_agent("guide", say("no"))
    agent.handoffs.append("billing")  # type: ignore[arg-type]
    with pytest.raises(UserTypeError, match="expected an Agent") as caught:
        await Runner.run(agent, "go", hooks=Hooks())
    assert heard == [("failed", UserTypeError)]
    assert caught.value.run_data is not None
