"""The options that an agent as a tool shares with any tool, and those of the run nested in its call."""

import json
from typing import Any

import attrs
import pytest
from kit.agents import Run, make_agent
from kit.results import read_requests, read_shown_outputs

from agentloop import Agent, Conversation, RunHooks, ToolContext, UserError, tool
from agentloop.exceptions import UserTypeError
from agentloop.items import ToolCall, UserMessage
from agentloop.sessions import MemorySession
from agentloop.testing import ScriptedModel, call, respond, say
from agentloop.tools import FunctionOptions, FunctionTool, ToolOptions

VALUES: dict[str, Any] = {
    "is_enabled": lambda ctx, agent: True,
    "needs_approval": True,
    "tool_input_guardrails": (),
    "tool_output_guardrails": (),
    "timeout": 5.0,
    "idle_timeout": 4.0,
    "timeout_behavior": "raise",
    "timeout_error_function": lambda ctx, error: "late",
    "failure_error_function": lambda ctx, error: "failed",
    "idempotent": True,
    "reads_only": True,
    "in_doubt": "raise",
    "serial": "group",
    "exclusive": True,
    "namespace": "desk",
    "namespace_description": "What the desk does.",
    "defer_loading": True,
    "output_schema": {"type": "string"},
    "allowed_callers": ("direct",),
    "examples": (("Dig.", {"input": "dig"}),),
    "secret": ("input",),
    "secret_output": True,
    "cost": lambda arguments: 1,
    "custom_data_extractor": lambda ctx, value: value,
}


def _helper(*steps: Any, **fields: Any) -> Agent[Any, Any]:
    return Agent("helper", model=ScriptedModel(steps), **fields)


@pytest.mark.parametrize("option", sorted(ToolOptions.__optional_keys__))
def test_an_agent_as_a_tool_has_every_option_of_tools(option: str) -> None:
    """No option is left out, and each one reaches the tool."""
    given = {"namespace": "desk"} if option == "namespace_description" else {}
    made = Agent("a").as_tool(**given, **{option: VALUES[option]})
    assert getattr(made, option) == VALUES[option]


def test_the_two_kinds_of_options_are_all_fields_of_a_tool() -> None:
    """Options of functions are the other fields, and which body it gets: an agent as a tool refuses them by name."""
    fields = {field.name for field in attrs.fields(FunctionTool)} - {"params_json_schema", "on_invoke_tool", "body"}
    fields.add("external")
    assert FunctionOptions.__optional_keys__ == fields
    assert fields > ToolOptions.__optional_keys__
    for option in sorted(fields - ToolOptions.__optional_keys__):
        wrong: Any = {option: None}
        with pytest.raises(UserTypeError, match=f"Agent.as_tool has no option '{option}'"):
            Agent("a").as_tool(**wrong)


async def test_equal_calls_of_an_idempotent_agent_run_it_once(run_mode: Run) -> None:
    """The second call gets the receipt of the first: one nested run."""
    inner = _helper(say("dug"))
    again = [call("helper", {"input": "dig"}, call_id=one) for one in ("c1", "c2")]
    outer = make_agent([inner.as_tool(idempotent=True)], again)
    await run_mode(outer, "go")
    assert read_shown_outputs(outer, 1) == {"c1": "dug", "c2": "dug"}
    assert len(read_requests(inner)) == 1


async def test_hooks_are_those_of_the_nested_run(run_mode: Run) -> None:
    """They are called for the nested run only, each time with its agent, and told how it ended."""
    told: list[tuple[str, Any]] = []

    class Hooks(RunHooks):
        async def on_agent_start(self, ctx: Any, agent: Any) -> None:
            told.append(("agent", agent.name))

        async def on_tool_start(self, ctx: Any, agent: Any, tool: Any) -> None:
            told.append(("tool", tool.name))

        async def on_run_end(self, ctx: Any, outcome: Any) -> None:
            told.append(("end", outcome.final_output))

    @tool
    async def look(ctx: ToolContext[Any]) -> str:
        """Look."""
        return "seen"

    inner = _helper(call("look"), say("dug"), tools=[look])
    outer = make_agent([inner.as_tool(hooks=Hooks()), look], [call("helper", {"input": "dig"}), call("look")])
    await run_mode(outer, "go")
    assert told == [("agent", "helper"), ("tool", "look"), ("end", "dug")]


async def test_a_nested_run_may_continue_a_conversation_of_its_provider(run_mode: Run) -> None:
    """Its requests name it; those of the outer run don't."""
    inner = _helper(respond(ToolCall("n1", "look", "{}"), response_id="r1"), say("dug"))
    inner.tools = [tool(lambda: "seen", name="look", description="Look.")]
    outer = make_agent([inner.as_tool(conversation=Conversation(after="r0"))], call("helper", {"input": "dig"}))
    await run_mode(outer, "go")
    assert [request.previous_response_id for request in read_requests(inner)] == ["r0", "r1"]
    assert [request.previous_response_id for request in read_requests(outer)] == [None, None]


@attrs.frozen
class Order:
    """An order."""

    subject: str
    lines: int


async def test_the_schema_of_a_structured_input_may_follow_it(run_mode: Run) -> None:
    """The agent reads the JSON of its input, and below it the schema that the model was shown."""
    inner = _helper(say("dug"))
    asks = inner.as_tool("write", parameters=Order, include_input_schema=True)
    outer = make_agent([asks], call("write", {"subject": "rain", "lines": 2}))
    await run_mode(outer, "go")
    (shown,) = read_requests(inner)[0].items
    assert isinstance(shown, UserMessage)
    given, schema = shown.text.split("\n\nThe input fits this JSON schema:\n")
    assert json.loads(given) == {"subject": "rain", "lines": 2}
    assert json.loads(schema) == asks.params_json_schema


def test_what_does_not_go_together_is_refused() -> None:
    """By the options' names, when the tool is made."""
    with pytest.raises(UserError, match=r"include_input_schema .* needs parameters"):
        Agent("a").as_tool(include_input_schema=True)
    with pytest.raises(UserError, match="no input_builder"):
        Agent("a").as_tool(parameters=Order, include_input_schema=True, input_builder=str)
    with pytest.raises(UserError, match="a session and a conversation"):
        Agent("a").as_tool(session=MemorySession(), conversation=Conversation(id="c"))
    with pytest.raises(UserTypeError, match="hooks: expected RunHooks"):
        Agent("a").as_tool(hooks=3)  # type: ignore[arg-type]
    with pytest.raises(UserTypeError, match=r"conversation: expected Conversation"):
        Agent("a").as_tool(conversation="c")  # type: ignore[arg-type]
