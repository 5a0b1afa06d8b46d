"""The scripted model by itself: which events a step gives, in which order, and what is no script."""

import re
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from agentloop import Agent, Runner, tool
from agentloop.exceptions import ModelTransportError, UserError, UserTypeError
from agentloop.items import AssistantMessage, HandoffCall, Reasoning, Refusal, Text, ToolCall, UserMessage
from agentloop.model_events import (
    ArgumentsDelta,
    ItemDone,
    ModelEvent,
    ModelRequest,
    ReasoningDelta,
    ResponseDone,
    ResponseStarted,
    TextDelta,
)
from agentloop.testing import ScriptedModel, call, fail, reason, respond, say, stream_of, wait
from agentloop.usage import RequestUsage

USAGE = RequestUsage(input_tokens=3, output_tokens=1, total_tokens=4)


async def asked(model: ScriptedModel, *items: Any) -> list[ModelEvent]:
    """Ask *model* once and return the events of its response."""
    async with model.stream(ModelRequest(system=None, items=items)) as events:
        return [event async for event in events]


async def test_a_response_is_played_piece_by_piece_and_item_by_item() -> None:
    """The model gives deltas of a bounded size before each item, and the whole response at the end."""
    model = ScriptedModel([[reason("hm"), say("a text", USAGE), call("find", {"q": "é"}, call_id="c")]], chunk=4)
    events = await asked(model)
    thought, said, made = Reasoning(summary=("hm",)), AssistantMessage("a text"), ToolCall("c", "find", '{"q": "é"}')
    assert events == [
        ResponseStarted(),
        ReasoningDelta("hm", "summary"),
        ItemDone(thought),
        TextDelta("a te", 1),
        TextDelta("xt", 1),
        ItemDone(said),
        ArgumentsDelta("c", '{"q"'),
        ArgumentsDelta("c", ': "é'),
        ArgumentsDelta("c", '"}'),
        ItemDone(made),
        ResponseDone((thought, said, made), USAGE),
    ]


async def test_steps_are_taken_one_a_request_and_requests_are_kept() -> None:
    """Asking once more than there are steps is an error that says so; so is what was asked until then."""
    model = ScriptedModel([say("one"), lambda request: [say(f"{len(request.items)} items")]])
    assert repr(model) == "<ScriptedModel 0 of 2 steps taken>"
    first, second = await asked(model), await asked(model, UserMessage("a"), UserMessage("b"))
    assert [event.text for event in (*first, *second) if isinstance(event, TextDelta)] == ["one", "2 items"]
    with pytest.raises(
        UserError, match=r"^ScriptedModel: its script has 2 steps, and the model was asked once more; add a step$"
    ):
        await asked(model)
    assert [len(request.items) for request in model.requests] == [0, 2, 0]
    assert repr(model) == "<ScriptedModel 2 of 2 steps taken>"


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ([call("fails")], "'Tool fails failed with: ValueError.*no luck"),
        ([say("blue")], "'Your answer isn't accepted.*"),
        ([call("hides")], None),
    ],
)
async def test_error_of_a_script_that_ran_out_says_what_the_model_was_asked(
    anyio_backend: Any, script: list[Any], said: str | None
) -> None:
    """The output of a tool or a wrong answer is the reason of one request more; a secret output isn't shown."""

    @tool
    async def fails() -> str:
        raise ValueError("no luck")

    @tool(secret_output=True)
    async def hides() -> str:
        return "4711"

    agent = Agent("a", model=ScriptedModel(script), tools=[fails, hides], output_type=int)
    with pytest.raises(UserError) as found:
        await Runner.run(agent, "go")
    assert re.search("It was to answer to: " + said.replace("'", "[\"']") if said else "add a step$", str(found.value))
    assert "4711" not in str(found.value)


async def test_script_of_one_step_is_told_in_the_singular() -> None:
    """The error of a script that ran out names the model, the number of its steps and the remedy."""
    model = ScriptedModel([say("one")])
    await asked(model)
    with pytest.raises(
        UserError, match=r"^ScriptedModel: its script has 1 step, and the model was asked once more; add a step$"
    ):
        await asked(model)


async def test_calls_without_an_id_get_ids_that_the_conversation_has_not() -> None:
    """Calls and handoffs without an id are counted across responses. A given id stays."""
    steps = [[call("f"), call("g", call_id="mine")], call("h"), call("i")]
    model = ScriptedModel(steps)
    made: list[str] = []
    history: list[Any] = [ToolCall("call_1", "f", "{}"), HandoffCall("call_3", "t", "{}")]
    for _ in steps:
        done = (await asked(model, *history))[-1]
        assert isinstance(done, ResponseDone)
        made.extend(item.call_id for item in done.items if isinstance(item, ToolCall))
    assert made == ["call_2", "mine", "call_4", "call_5"]


async def test_arguments_may_be_any_text_and_a_call_may_have_a_namespace() -> None:
    """A text that is no JSON is allowed too, since that is a case to test."""
    done = (await asked(ScriptedModel([[call("f", "{oh", "c1", "ns"), call("g", call_id="c2")]])))[-1]
    assert isinstance(done, ResponseDone)
    assert done.items == (ToolCall("c1", "f", "{oh", "ns"), ToolCall("c2", "g", "{}"))


async def test_whole_items_are_given_as_they_are() -> None:
    """The response has their usage and id; an item without text has no deltas."""
    refused = AssistantMessage((Text("well"), Refusal("no")))
    handed = HandoffCall("h", "transfer", "{}")
    model = ScriptedModel([respond(refused, handed, usage=USAGE, response_id="r1")])
    assert await asked(model) == [
        ResponseStarted(),
        TextDelta("well"),
        ItemDone(refused),
        ItemDone(handed),
        ResponseDone((refused, handed), USAGE, "r1"),
    ]


async def test_a_stream_is_given_event_by_event_and_nothing_else() -> None:
    """The model adds neither a beginning nor an end: broken streams are cases to test too."""
    events = [TextDelta("half"), ItemDone(AssistantMessage("half"))]
    assert await asked(ScriptedModel([stream_of(iter(events))])) == events
    with pytest.raises(OSError, match="gone"):
        await asked(ScriptedModel([[stream_of(events), fail(OSError("gone"))]]))


async def test_a_response_fails_where_the_script_says() -> None:
    """The events before the failure have been given."""
    error = ModelTransportError("gone")
    seen: list[ModelEvent] = []
    with pytest.raises(ModelTransportError) as caught:
        async with ScriptedModel([[say("so far"), fail(error), say("never")]]).stream(
            ModelRequest(system=None, items=())
        ) as events:
            async for event in events:
                seen.append(event)
    assert caught.value is error
    assert seen == [ResponseStarted(), TextDelta("so far"), ItemDone(AssistantMessage("so far"))]


async def test_a_response_waits_for_seconds_or_for_an_event(anyio_backend: Any) -> None:
    """The response waits at that place: the items before it are given at once."""
    go = anyio.Event()
    seen: list[str] = []
    model = ScriptedModel([[say("a"), wait(go), say("b"), wait(0.01), say("c")]])
    began = anyio.current_time()

    async def read() -> None:
        async with model.stream(ModelRequest(system=None, items=())) as events:
            async for event in events:
                if isinstance(event, TextDelta):
                    seen.append(event.text)
                    if event.text == "a":
                        held.set()

    held = anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(read)
        await held.wait()
        await anyio.lowlevel.checkpoint()
        assert seen == ["a"]
        go.set()
    assert seen == ["a", "b", "c"]
    took = anyio.current_time() - began
    assert took == pytest.approx(0.01) if "clock" in anyio_backend[1] else took >= 0.009


@pytest.mark.parametrize("step", ["say hi", 3, {"say": "hi"}, [say("hi"), "and more"], [[say("hi")]]])
async def test_what_is_no_step_is_refused_where_it_stands(step: Any) -> None:
    """A step of the script is refused at once, by its place; one of a callable when it is asked."""
    with pytest.raises(UserTypeError, match=r"^steps\[1\]: expected helpers such as say"):
        ScriptedModel([say("fine"), step])
    with pytest.raises(UserTypeError, match=r"^step: expected helpers such as say"):
        await asked(ScriptedModel([lambda request: step]))


def test_what_is_no_item_is_refused() -> None:
    """The error gives the item's place."""
    with pytest.raises(UserTypeError, match=r"respond: item 1: expected an item, got 'text'"):
        respond(AssistantMessage("a"), "text")  # type: ignore[arg-type]
