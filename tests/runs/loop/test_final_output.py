"""The final output: text, typed values, what tools made, refusals, and what isn't an end at all."""

import dataclasses
import json
import sys
from typing import Any

import attrs
import httpx
import pytest
from kit.agents import Run, script_agent
from kit.results import describe, read_outputs, read_requests, read_statuses

from agentloop import (
    Agent,
    ErrorHandlerResult,
    ModelBehaviorError,
    OutputType,
    StopAtTools,
    ToolsToFinalOutput,
    UserError,
    tool,
)
from agentloop.exceptions import ModelRefusalError, UserTypeError
from agentloop.items import AssistantMessage, HostedToolCall, Reasoning, Refusal, Text, ToolCall
from agentloop.models import OpenAIChatModel
from agentloop.sessions import MemorySession
from agentloop.testing import call, respond, say

if sys.version_info >= (3, 12):
    from typing import TypedDict
else:
    from typing_extensions import TypedDict  # what pydantic needs there


@attrs.frozen
class Place:
    city: str
    people: int


@dataclasses.dataclass
class Spot:
    city: str
    people: int


class Entry(TypedDict):
    city: str
    people: int


PLACE = '{"city": "Rome", "people": 3}'


@tool
async def look() -> Any:
    """Look."""
    return {"seen": 1}


def chat(*chunks: Any) -> tuple[OpenAIChatModel, list[Any]]:
    """Return a model whose server answers with *chunks*, and the list of what it is sent."""
    sent: list[Any] = []
    lines = [*(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks), "data: [DONE]\n\n"]

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(json.loads(request.content))
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, content="".join(lines).encode())

    client = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    return OpenAIChatModel("m", base_url="https://server.test/v1", api_key="k", http_client=client), sent


def chunk(delta: Any, finish: str | None = None) -> Any:
    """Return one chunk of a chat completion."""
    return {"id": "r", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


# -- text


@pytest.mark.scenario("OS-01", "OS-07")
@pytest.mark.parametrize("typed", [False, True], ids=["text", "typed"])
async def test_last_message_is_the_final_output(run_mode: Run, typed: bool) -> None:
    """The last of several messages is the output; all of them stay in the items."""
    agent = script_agent("a", [say('{"response": 1}'), say('{"response": 2}')], output_type=int if typed else None)
    result = await run_mode(agent, "go")
    assert result.final_output == (2 if typed else '{"response": 2}')
    assert len(result.new_items) == 2
    assert len(read_requests(agent)) == 1


@pytest.mark.scenario("OS-01")
@pytest.mark.parametrize(
    "response",
    [respond(), say(""), [say("first"), say("")], respond(AssistantMessage(())), respond(Reasoning("r", ("hm",)))],
    ids=["no-items", "empty-text", "empty-last", "no-parts", "reasoning-alone"],
)
async def test_completed_response_without_text_is_an_empty_final_output(run_mode: Run, response: Any) -> None:
    """A text agent's output is then the empty text, without another turn."""
    agent = script_agent("a", response)
    result = await run_mode(agent, "go")
    assert result.final_output == ""
    assert result.status == "completed"


@pytest.mark.scenario("OS-01")
@pytest.mark.parametrize("finish", ["length", "content_filter"])
async def test_response_cut_before_anything_usable_is_the_model_s_fault(run_mode: Run, finish: str) -> None:
    """The run raises an error instead of an empty answer; if there is text, the text is the answer."""
    model, _ = chat(chunk({"role": "assistant", "content": ""}, finish))
    with pytest.raises(ModelBehaviorError, match=finish):
        await run_mode(Agent("a", model=model), "go")
    model, _ = chat(chunk({"role": "assistant", "content": "some"}, finish))
    assert (await run_mode(Agent("a", model=model), "go")).final_output == "some"


@pytest.mark.scenario("OS-01")
@pytest.mark.parametrize("typed", [False, True], ids=["text", "typed"])
async def test_response_of_hosted_calls_alone_leads_to_another_turn(run_mode: Run, typed: bool) -> None:
    """A response of hosted calls alone has no answer, so the model is asked again."""
    answer = say('{"response": 5}')
    agent = script_agent("a", respond(HostedToolCall("search")), answer, output_type=int if typed else None)
    result = await run_mode(agent, "go")
    assert result.final_output == (5 if typed else '{"response": 5}')
    assert [type(item) for item in read_requests(agent)[1].items][-1] is HostedToolCall


# -- types


@pytest.mark.scenario("OS-02")
@pytest.mark.parametrize(
    ("type_", "wanted"),
    [
        (Place, Place("Rome", 3)),
        (Spot, Spot("Rome", 3)),
        (Entry, {"city": "Rome", "people": 3}),
        (dict[str, Any], {"city": "Rome", "people": 3}),
    ],
    ids=["attrs", "dataclass", "typeddict", "dict"],
)
async def test_types_that_are_objects_are_the_answer_itself(run_mode: Run, type_: Any, wanted: Any) -> None:
    """The model receives the type's schema, and its JSON becomes an object of that type."""
    agent = script_agent("a", say(PLACE), output_type=type_)
    result = await run_mode(agent, "go")
    assert result.final_output == wanted
    assert type(result.final_output) is type(wanted)
    schema = read_requests(agent)[0].output_schema.schema
    assert schema["type"] == "object"
    assert "response" not in schema.get("properties", {})


@pytest.mark.scenario("OS-02")
async def test_pydantic_models_are_the_answer_itself(run_mode: Run) -> None:
    """A pydantic model is used as the answer itself where pydantic is installed."""
    pydantic = pytest.importorskip("pydantic")
    model = pydantic.create_model("City", city=(str, ...), people=(int, ...))
    agent = script_agent("a", say(PLACE), output_type=model)
    result = await run_mode(agent, "go")
    assert result.final_output == model(city="Rome", people=3)
    assert set(read_requests(agent)[0].output_schema.schema["properties"]) == {"city", "people"}


@pytest.mark.scenario("OS-02")
@pytest.mark.parametrize(
    ("type_", "text", "wanted"),
    [
        (int, "5", 5),
        (list[Place], f"[{PLACE}]", [Place("Rome", 3)]),
        (Place | None, "null", None),
        (tuple[int, str], '[1, "x"]', (1, "x")),
    ],
    ids=["int", "list", "optional", "tuple"],
)
async def test_other_types_stand_under_response(run_mode: Run, type_: Any, text: str, wanted: Any) -> None:
    """The schema's root is an object with the one key `response`."""
    agent = script_agent("a", say(f'{{"response": {text}}}'), output_type=type_)
    result = await run_mode(agent, "go")
    assert result.final_output == wanted
    schema = read_requests(agent)[0].output_schema.schema
    assert (schema["type"], set(schema["properties"])) == ("object", {"response"})


@pytest.mark.scenario("OS-03")
@pytest.mark.parametrize(
    "text", ["Rome, three people", "{", "[]", "null", '{"city": "Rome"}', '{"city": "Rome", "people": "many"}', "5"]
)
async def test_answer_that_does_not_fit_is_the_model_s_fault(run_mode: Run, text: str) -> None:
    """The error names the final output, and the message is in its data: here the model isn't asked to correct it."""
    agent = script_agent("a", say(text), output_type=Place, output_retries=0)
    with pytest.raises(ModelBehaviorError, match="The final output") as caught:
        await run_mode(agent, "go")
    assert caught.value.run_data is not None
    assert describe(caught.value.run_data.new_items) == [f"says:{text}"]
    assert len(read_requests(agent)) == 1


@pytest.mark.scenario("OS-04")
@pytest.mark.parametrize("nothing", [say(""), say("  \n"), respond()], ids=["empty", "blank", "no-items"])
async def test_typed_agent_that_says_nothing_gets_another_turn(run_mode: Run, nothing: Any) -> None:
    """An answer without text is neither an error nor an output for a typed agent."""
    agent = script_agent("a", nothing, say(PLACE), output_type=Place)
    result = await run_mode(agent, "go")
    assert result.final_output == Place("Rome", 3)
    assert len(read_requests(agent)) == 2


# -- refusals


REFUSED = respond(AssistantMessage((Refusal("I "), Refusal("won't"))))


@pytest.mark.scenario("OS-05")
@pytest.mark.parametrize("typed", [False, True], ids=["text", "typed"])
async def test_refusal_ends_the_run_without_a_retry(run_mode: Run, typed: bool) -> None:
    """The error has the words of the refusal, and the item is in its data."""
    agent = script_agent("a", REFUSED, say("never"), output_type=Place if typed else None)
    with pytest.raises(ModelRefusalError, match="I won't") as caught:
        await run_mode(agent, "go")
    assert caught.value.refusal == "I won't"
    assert len(read_requests(agent)) == 1
    assert caught.value.run_data is not None
    assert len(caught.value.run_data.new_items) == 1


@pytest.mark.scenario("OS-05")
@pytest.mark.parametrize("kind", ["value", "result", "async"])
async def test_handler_of_refusals_gives_the_output(run_mode: Run, kind: str) -> None:
    """The handler may return any form of output, and it receives the error and the run's data."""
    seen: list[Any] = []

    def handler(data: Any) -> Any:
        seen.append((data.error.refusal, data.context, len(data.run_data.raw_responses)))
        return Place("none", 0) if kind == "value" else ErrorHandlerResult(Place("none", 0))

    async def async_handler(data: Any) -> Any:
        return handler(data)

    agent = script_agent("a", REFUSED, output_type=Place)
    handlers = {"model_refusal": async_handler if kind == "async" else handler}
    result = await run_mode(agent, "go", error_handlers=handlers, context="app")
    assert result.final_output == Place("none", 0)
    assert seen == [("I won't", "app", 1)]


@pytest.mark.scenario("OS-05")
async def test_handler_that_gives_none_lets_the_refusal_go_on(run_mode: Run) -> None:
    """The refusal's error leaves as if there were no handler."""
    with pytest.raises(ModelRefusalError):
        await run_mode(script_agent("a", REFUSED), "go", error_handlers={"model_refusal": lambda data: None})


async def test_refusal_beside_text_is_no_refusal_of_the_answer(run_mode: Run) -> None:
    """The text beside the refusal is the answer."""
    agent = script_agent("a", respond(AssistantMessage((Text("here"), Refusal("but not all")))))
    assert (await run_mode(agent, "go")).final_output == "here"


# -- handlers of invalid output


@pytest.mark.scenario("OS-06")
async def test_fallback_for_an_invalid_output_is_validated_and_replays_no_tool(run_mode: Run) -> None:
    """Plain data becomes the type; the tool of the turn before ran once."""
    ran: list[int] = []

    @tool
    async def count() -> str:
        ran.append(1)
        return "one"

    steps = [call("count", call_id="c"), say("no JSON")]
    agent = script_agent("a", *steps, tools=[count], output_type=Place, output_retries=0)
    handlers = {"invalid_final_output": lambda data: {"city": "Rome", "people": 3}}
    result = await run_mode(agent, "go", error_handlers=handlers)
    assert result.final_output == Place("Rome", 3)
    assert ran == [1]
    assert len(read_requests(agent)) == 2
    assert read_statuses(result) == ["succeeded"]
    said = result.new_items[-1]
    assert isinstance(said, AssistantMessage)
    assert json.loads(said.text) == {"city": "Rome", "people": 3}


@pytest.mark.scenario("OS-06")
async def test_fallback_that_does_not_fit_is_the_application_s_fault(run_mode: Run) -> None:
    """A `UserError` names type and fault."""
    agent = script_agent("a", say("no JSON"), output_type=Place, output_retries=0)
    handlers = {"invalid_final_output": lambda data: {"city": "Rome"}}
    with pytest.raises(UserTypeError, match="people"):
        await run_mode(agent, "go", error_handlers=handlers)


@pytest.mark.scenario("OS-06")
async def test_fallback_may_stay_out_of_the_history(run_mode: Run) -> None:
    """Session and items then have the model's own message and no more."""
    session = MemorySession()
    agent = script_agent("a", say("no JSON"), output_type=Place, output_retries=0)
    handlers = {"invalid_final_output": lambda data: ErrorHandlerResult(Place("x", 0), include_in_history=False)}
    result = await run_mode(agent, "go", error_handlers=handlers, session=session)
    assert result.final_output == Place("x", 0)
    assert describe(result.new_items) == ["says:no JSON"]
    assert describe(await session.get_items()) == ["user:go", "says:no JSON"]


# -- tools and the end


@pytest.mark.scenario("OS-08")
@pytest.mark.parametrize("typed", [False, True], ids=["text", "typed"])
async def test_message_beside_a_call_is_not_final(run_mode: Run, typed: bool) -> None:
    """The tool runs, and the model is asked again."""
    agent = script_agent(
        "a",
        [say('{"response": 1}'), call("look", call_id="c")],
        say('{"response": 2}'),
        tools=[look],
        output_type=int if typed else None,
    )
    result = await run_mode(agent, "go")
    assert result.final_output == (2 if typed else '{"response": 2}')
    assert read_outputs(result.new_items) == {"c": '{"seen": 1}'}


@pytest.mark.scenario("OS-09")
@pytest.mark.parametrize(
    ("type_", "strict"), [(Place, True), (OutputType(Place, False), False), (dict[str, int], False)]
)
async def test_strictness_of_the_schema_reaches_the_wire(run_mode: Run, type_: Any, strict: bool) -> None:
    """The request says whether the output schema is strict, in the provider's form."""
    text = PLACE if type_ != dict[str, int] else '{"n": 1}'
    model, sent = chat(chunk({"role": "assistant", "content": text}), chunk({}, "stop"))
    result = await run_mode(Agent("a", model=model, output_type=type_), "go")
    assert result.final_output in (Place("Rome", 3), {"n": 1})
    [body] = sent
    shown = body["response_format"]
    assert shown["type"] == "json_schema"
    assert shown["json_schema"]["strict"] is strict
    assert shown["json_schema"]["schema"]["type"] == "object"


BEHAVIORS: dict[str, Any] = {
    "first": "stop_on_first_tool",
    "named": StopAtTools("look"),
    "callable": lambda ctx, results: ToolsToFinalOutput(is_final=True, output=results[0].value),
}


class Thing:
    """Something that is no text, and no JSON."""

    def __str__(self) -> str:
        return "a thing"


@pytest.mark.scenario("OS-10")
@pytest.mark.parametrize("behavior", BEHAVIORS)
async def test_typed_agent_gives_a_tool_s_output_as_the_object_it_is(run_mode: Run, behavior: str) -> None:
    """The final output is the tool's object itself, neither parsed nor validated nor made text."""
    value = Thing()

    @tool(name="look")
    async def look() -> Any:
        return value

    agent = script_agent("a", call("look"), tools=[look], output_type=Place, tool_use_behavior=BEHAVIORS[behavior])
    assert (await run_mode(agent, "go")).final_output is value


@pytest.mark.scenario("OS-10")
async def test_what_a_callable_makes_of_the_outputs_is_the_output_of_a_typed_agent_too(run_mode: Run) -> None:
    """The output is the callable's value, not the first call's."""

    def total(ctx: Any, results: Any) -> ToolsToFinalOutput:
        return ToolsToFinalOutput(is_final=True, output=[result.value for result in results])

    agent = script_agent("a", [call("look"), call("look")], tools=[look], output_type=Place, tool_use_behavior=total)
    assert (await run_mode(agent, "go")).final_output == [{"seen": 1}, {"seen": 1}]


async def test_text_agent_gives_a_tool_s_output_as_the_model_would_see_it(run_mode: Run) -> None:
    """The final output is the text that the model would have seen."""
    agent = script_agent("a", call("look"), tools=[look], tool_use_behavior="stop_on_first_tool")
    assert (await run_mode(agent, "go")).final_output == '{"seen": 1}'


async def test_named_tools_end_the_run_and_others_do_not(run_mode: Run) -> None:
    """The output of the first named tool in model order is the final one."""
    tools = [tool(make(name), name=name, description=name) for name in "fgh"]
    agent = script_agent(
        "a",
        call("f", call_id="1"),
        [call("f", call_id="2"), call("h", call_id="3"), call("g", call_id="4")],
        tools=tools,
        tool_use_behavior=StopAtTools(["g", "h"]),
    )
    result = await run_mode(agent, "go")
    assert result.final_output == "h"
    assert read_statuses(result) == ["succeeded"] * 4


def make(name: str) -> Any:
    """Return a function that gives *name*."""

    async def give() -> str:
        return name

    return give


async def test_callable_behavior_is_told_every_result_and_may_go_on(run_mode: Run) -> None:
    """The callable gets tool, call, value and output of each result, in model order."""
    seen: list[Any] = []

    async def behavior(ctx: Any, results: Any) -> ToolsToFinalOutput:
        seen.append([(found.tool, found.call, found.value, found.output) for found in results])
        return ToolsToFinalOutput(is_final=len(seen) == 2, output="enough")

    agent = script_agent(
        "a", call("look", call_id="c"), call("look", call_id="d"), tools=[look], tool_use_behavior=behavior
    )
    result = await run_mode(agent, "go")
    assert result.final_output == "enough"
    assert seen[0] == [(look, ToolCall("c", "look"), {"seen": 1}, '{"seen": 1}')]
    assert len(read_requests(agent)) == 2


async def test_callable_behavior_that_answers_something_else_is_refused(run_mode: Run) -> None:
    """The error names the returned value."""
    agent = script_agent("a", call("look"), tools=[look], tool_use_behavior=lambda ctx, results: True)
    with pytest.raises(UserError, match="must return ToolsToFinalOutput, not True"):
        await run_mode(agent, "go")
