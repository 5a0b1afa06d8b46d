"""What an agent asks for beyond functions of JSON: hosted tools, stored prompts, free text."""

from typing import Any

import attrs
import pytest

from agentloop import (
    Agent,
    CachePolicy,
    GuardrailFunctionOutput,
    HostedTool,
    ModelInputData,
    ModelSettings,
    OutputGuardrailTripwireTriggered,
    Prompt,
    RunConfig,
    RunContext,
    Runner,
    RunState,
    ToolContext,
    UserError,
    output_guardrail,
    tool,
)
from agentloop import records as r
from agentloop.exceptions import UserTypeError
from agentloop.guardrails import Rewrite, ToolInputData, tool_input_guardrail
from agentloop.items import AssistantMessage, HostedToolCall, ToolCall, ToolOutput
from agentloop.journal import MemoryJournal
from agentloop.testing import ScriptedModel, call, respond, say
from agentloop.tools import FunctionTool

SEARCH = HostedTool("web_search", {"search_context_size": "low"})


@tool(kind="custom", format={"type": "grammar", "syntax": "lark", "definition": "start: /[a-z]+/"})
async def shout(words: str) -> str:
    """Say it loud."""
    return words.upper()


async def test_the_request_holds_what_the_agent_asks_for(run_mode: Any) -> None:
    """Hosted tools, the stored prompt, the parts of the instructions, the cache's policy and what to include."""
    model = ScriptedModel([say("done")])
    settings = ModelSettings(cache=CachePolicy(key="k", ttl="30m"), include=["reasoning.encrypted_content"])
    prompt = Prompt("pmpt_1", version="2", variables={"name": "Ann"})
    agent = Agent(
        "a",
        model=model,
        model_settings=settings,
        instructions=["Be brief.", "Today is Monday."],
        prompt=prompt,
        tools=[SEARCH, shout],
    )
    assert (await run_mode(agent, "go")).final_output == "done"
    [request] = model.requests
    assert (request.system, request.instructions) == (
        "Be brief.\n\nToday is Monday.",
        ("Be brief.", "Today is Monday."),
    )
    assert (request.hosted, request.tools, request.prompt) == ((SEARCH,), (shout,), prompt)
    assert (request.cache, request.include) == (settings.cache, ["reasoning.encrypted_content"])
    one = attrs.evolve(settings, cache=None, include=None)
    await run_mode(agent.clone(model=(plain := ScriptedModel([say("x")])), model_settings=one), "go")
    assert (plain.requests[0].cache, plain.requests[0].include) == (None, ())


async def test_a_callable_may_return_instructions_in_parts(run_mode: Any) -> None:
    """The parts are those of the turn; a filter that changes the instructions has one text for them."""
    model = ScriptedModel([say("one"), say("two")])
    agent = Agent("a", model=model, instructions=lambda ctx, agent: ["Fixed.", f"Turn of {agent.name}."])
    await run_mode(agent, "go")
    config = RunConfig(call_model_input_filter=lambda data: data.replace(instructions="Other."))
    await run_mode(agent, "go", run_config=config)
    assert [request.instructions for request in model.requests] == [("Fixed.", "Turn of a."), ()]
    assert [request.system for request in model.requests] == ["Fixed.\n\nTurn of a.", "Other."]
    kept = RunConfig(
        call_model_input_filter=lambda data: ModelInputData(input=data.input, instructions=data.instructions)
    )
    model = ScriptedModel([say("three")])
    await run_mode(agent.clone(model=model), "go", run_config=kept)
    assert model.requests[0].instructions == ("Fixed.", "Turn of a.")


@pytest.mark.parametrize("given", [5, [5], {"a": "b"}])
async def test_instructions_of_another_type_are_refused(run_mode: Any, given: Any) -> None:
    """At construction, and from a callable."""
    with pytest.raises(UserTypeError, match=r"Agent\.instructions: expected text, texts or a callable"):
        Agent("a", instructions=given)
    with pytest.raises(UserTypeError, match=r"Agent\.instructions of 'a' must return text"):
        await run_mode(Agent("a", model=ScriptedModel([]), instructions=lambda ctx, agent: given), "go")


async def test_hosted_tools_take_no_part_in_the_calls_of_functions(run_mode: Any) -> None:
    """Their calls are observed in the answer, and the digest of a request tells one tool from another."""
    found = HostedToolCall("web_search_call", {"action": {"type": "search"}}, "ws1", "completed")
    digests = []
    for hosted in (SEARCH, HostedTool("code_interpreter"), None):
        agent = Agent(
            "a",
            model=ScriptedModel([respond(found, AssistantMessage("done"))]),
            tools=[shout] if hosted is None else [hosted, shout],
        )
        result = await run_mode(agent, "go")
        assert result.final_output == "done"
        records = result.to_state().records
        [turn] = [record for record in records if isinstance(record, r.TurnStarted)]
        assert turn.tools == ("shout",)
        digests += [record.digest for record in records if isinstance(record, r.ModelRequested)]
    assert len(set(digests)) == 3


def test_wrong_values_are_refused_when_they_are_made() -> None:
    """The message names the field."""
    for make, message in (
        (lambda: HostedTool(""), "HostedTool.kind"),
        (lambda: HostedTool("x", 5), "HostedTool.config"),  # type: ignore[arg-type]
        (lambda: Prompt(""), "Prompt.id"),
        (lambda: Agent("a", prompt="pmpt_1"), "Agent.prompt"),  # type: ignore[arg-type]
        (lambda: CachePolicy(breakpoints=("here",)), "CachePolicy.breakpoints"),  # type: ignore[arg-type]
        (lambda: tool(kind="free")(run_twice), "kind"),  # type: ignore[arg-type]
        (lambda: tool(kind="custom")(run_twice), "tool 'run_twice': kind='custom' is for a function of one text"),
        (lambda: tool(kind="custom")(count), "tool 'count': kind='custom' is for a function of one text"),
    ):
        with pytest.raises(UserError, match=message):
            make()


def run_twice(one: str, two: str) -> str:
    """Take two texts."""
    return one + two


def count(number: int) -> str:
    """Take a number."""
    return str(number)


# -- custom tools


def ask_in_words(name: str, text: str, call_id: str = "c1") -> Any:
    """Return a step in which the model calls the custom tool *name* with *text*."""
    return respond(ToolCall(call_id, name, text, kind="custom"))


@pytest.mark.scenario("WR-08")
@pytest.mark.parametrize("text", ["hush", '{"words": "a"}', "", '"', "{"])
async def test_a_custom_tool_is_given_the_free_text(run_mode: Any, text: str) -> None:
    """Whatever it is, also text that reads like JSON; in a journal, too."""
    model, journal = ScriptedModel([ask_in_words("shout", text), say("done")]), MemoryJournal()
    agent = Agent("a", model=model, tools=[shout])
    result = await run_mode(agent, "go", journal=journal)
    assert [item.output for item in result.new_items if isinstance(item, ToolOutput)] == [text.upper()]
    assert RunState.from_string(agent, result.to_state().to_string()) == result.to_state()
    assert (await shout.on_invoke_tool(_context(), text)) == text.upper()  # type: ignore[misc]


async def test_the_output_of_a_custom_tool_that_is_withheld_stays_one_of_a_custom_tool(run_mode: Any) -> None:
    """A provider that keeps the conversation has the call elsewhere, so the output alone says of which kind it is."""

    @output_guardrail
    async def trip(ctx: Any, agent: Any, output: Any) -> Any:
        return GuardrailFunctionOutput(None, True)

    agent = Agent(
        "a",
        model=ScriptedModel([ask_in_words("shout", "hush")]),
        tools=[shout],
        tool_use_behavior="stop_on_first_tool",
        output_guardrails=[trip],
    )
    with pytest.raises(OutputGuardrailTripwireTriggered) as caught:
        await run_mode(agent, "go")
    assert caught.value.run_data is not None
    [output] = [item for item in caught.value.run_data.new_items if isinstance(item, ToolOutput)]
    assert (output.kind, output.output) == ("custom", "Output withheld by an output guardrail.")


def _context() -> Any:
    return ToolContext.from_agent_context(RunContext(context=None), "c1", tool_name="shout")


async def test_a_custom_tool_by_hand_gets_the_text(run_mode: Any) -> None:
    """Guardrails and policies know it as `input`."""
    seen: list[Any] = []

    @tool_input_guardrail
    def note(data: ToolInputData) -> Rewrite:
        seen.append(data.arguments)
        return Rewrite({"input": "quiet"})

    raw = FunctionTool(
        name="raw", kind="custom", on_invoke_tool=lambda ctx, text: f"<{text}>", tool_input_guardrails=[note]
    )
    agent = Agent("a", model=ScriptedModel([ask_in_words("raw", "loud"), say("done")]), tools=[raw])
    result = await run_mode(agent, "go")
    assert seen == [{"input": "loud"}]
    assert [item.output for item in result.new_items if isinstance(item, ToolOutput)] == ["<quiet>"]


async def test_a_guardrail_that_rewrites_a_custom_call_gives_its_one_text(run_mode: Any) -> None:
    """Anything else is the guardrail's mistake, and ends the run."""

    @tool_input_guardrail
    def rewrite(data: ToolInputData) -> Rewrite:
        return Rewrite({"other": "quiet"})

    agent = Agent(
        "a",
        model=ScriptedModel([ask_in_words("shout", "loud"), say("done")]),
        tools=[attrs.evolve(shout, tool_input_guardrails=[rewrite])],
    )
    with pytest.raises(UserTypeError, match="tool 'shout': expected 'words' alone, as text"):
        await run_mode(agent, "go")


async def test_an_approver_may_give_a_custom_call_another_text() -> None:
    """By the name of the parameter, as policies see it."""
    agent = Agent(
        "a",
        model=ScriptedModel([ask_in_words("shout", "loud"), say("done")]),
        tools=[attrs.evolve(shout, needs_approval=True)],
    )
    result = await Runner.run(agent, "go")
    state = result.to_state()
    state.approve(result.interruptions[0], arguments={"words": "calm"})
    after = await Runner.run(agent, state)
    assert [item.output for item in after.new_items if isinstance(item, ToolOutput)] == ["CALM"]


async def test_the_text_of_a_secret_custom_tool_is_hidden_whole(run_mode: Any) -> None:
    """Its text is no object with arguments by name, also where it reads like one."""
    journal = MemoryJournal()
    model = ScriptedModel([ask_in_words("whisper", '{"public": "hush-hush"}'), say("done")])
    whisper = tool(kind="custom", secret=["words"], name="whisper", secret_output=True)(_repeat)
    result = await run_mode(Agent("a", model=model, tools=[whisper]), "go", journal=journal)
    assert result.final_output == "done"
    assert "hush-hush" not in repr(result.new_items)
    assert b"hush-hush" not in b"".join(await journal.read())


async def _repeat(words: str) -> str:
    """Repeat."""
    return words


async def test_a_hosted_call_beside_a_function_call_is_no_tool_of_ours(run_mode: Any) -> None:
    """The function runs, the hosted call is in the history."""
    steps = [[call("shout", "a", call_id="c1"), respond(HostedToolCall("web_search_call", {}, "ws1"))], say("done")]
    model = ScriptedModel(steps)
    result = await run_mode(Agent("a", model=model, tools=[SEARCH, shout]), "go")
    assert result.final_output == "done"
    assert [type(item) for item in model.requests[1].items[1:]] == [ToolCall, HostedToolCall, ToolOutput]
