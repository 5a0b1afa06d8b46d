"""Conversations that the provider keeps: new items only are sent."""

import logging
from typing import Any

import pytest
from kit.agents import look, script_turns
from kit.results import read_requests
from kit.resuming import make_journal

from agentloop import (
    Agent,
    Conversation,
    ModelRetrySettings,
    ModelSettings,
    RunConfig,
    Runner,
    UserError,
    handoff,
    tool,
)
from agentloop.exceptions import ModelTransportError, UserTypeError, UserValueError
from agentloop.items import AssistantMessage, ToolCall, ToolOutput, UserMessage
from agentloop.journal import MemoryJournal
from agentloop.sessions import MemorySession
from agentloop.testing import ScriptedModel, fail, respond

SPELLINGS: list[tuple[Conversation, dict[str, Any]]] = [
    (Conversation(id="conv"), {"conversation_id": "conv"}),
    (Conversation(after="r0"), {"previous_response_id": "r0"}),
    (Conversation(auto=True), {"auto_previous_response_id": True}),
    (Conversation(after="r0", auto=True), {"previous_response_id": "r0", "auto_previous_response_id": True}),
]


@pytest.mark.parametrize(("conversation", "elsewhere"), SPELLINGS, ids=str)
async def test_one_option_says_what_three_say_elsewhere(
    run_mode: Any, conversation: Conversation, elsewhere: dict[str, Any]
) -> None:
    """Both spellings make the same requests and the same log; together they are refused."""

    async def run(**options: Any) -> tuple[Any, ...]:
        model = ScriptedModel(
            [respond(ToolCall("c", "look"), response_id="r1"), respond(AssistantMessage("x"), response_id="r2")]
        )
        result = await run_mode(Agent("a", model=model, tools=[look]), "go", **options)
        begun = result.records[0]
        sent = [(one.conversation_id, one.previous_response_id, list(one.items)) for one in model.requests]
        return sent, begun.conversation_id, begun.previous_response_id, begun.kept

    assert await run(conversation=conversation) == await run(**elsewhere)
    with pytest.raises(UserError, match="conversation: it is given twice"):
        await run(conversation=conversation, **elsewhere)
    unset = {"conversation_id": None, "previous_response_id": None, "auto_previous_response_id": False}
    assert await run(conversation=conversation, **unset) == await run(conversation=conversation)


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({}, "nothing is given"),
        ({"id": "c", "after": "r"}, "two ways"),
        ({"id": "c", "auto": True}, "two ways"),
        ({"id": ""}, "Conversation.id: may not be empty"),
        ({"after": 3}, "Conversation.after: expected text"),
        ({"auto": "yes"}, "Conversation.auto: expected True or False"),
    ],
    ids=str,
)
def test_a_conversation_is_named_in_one_way(parts: dict[str, Any], said: str) -> None:
    """The error says what to write."""
    with pytest.raises((UserTypeError, UserValueError), match=said):
        Conversation(**parts)


async def test_each_request_goes_on_from_the_response_before(run_mode: Any) -> None:
    """The first request continues the given response; items that the provider has aren't sent again."""
    model = ScriptedModel(
        [respond(ToolCall("c", "look"), response_id="r1"), respond(AssistantMessage("x"), response_id="r2")]
    )
    agent = Agent("a", model=model, tools=[look])
    result = await run_mode(agent, "go", previous_response_id="r0")
    assert [request.previous_response_id for request in model.requests] == ["r0", "r1"]
    assert [list(request.items) for request in model.requests] == [[UserMessage("go")], [ToolOutput("c", "seen")]]
    assert result.last_response_id == "r2"


async def test_a_conversation_goes_by_its_id(run_mode: Any) -> None:
    """The requests have the conversation's id and no response's id."""
    model = ScriptedModel([respond(ToolCall("c", "look"), response_id="r1"), respond(AssistantMessage("x"))])
    await run_mode(Agent("a", model=model, tools=[look]), "go", conversation_id="conv")
    assert [(request.conversation_id, request.previous_response_id) for request in model.requests] == [
        ("conv", None),
        ("conv", None),
    ]
    assert list(model.requests[1].items) == [ToolOutput("c", "seen")]


@pytest.mark.scenario("RP-20")
@pytest.mark.parametrize("kept", [{"conversation_id": "conv"}, {"previous_response_id": "r0"}], ids=str)
async def test_a_request_that_goes_on_from_kept_state_is_not_made_twice(run_mode: Any, kept: dict[str, Any]) -> None:
    """The provider may have acted on the first one already: its error leaves at once."""
    busy = fail(ModelTransportError("busy", status=503))
    model = ScriptedModel([busy, respond(AssistantMessage("never"))])
    with pytest.raises(ModelTransportError, match="busy"):
        await run_mode(Agent("a", model=model), "go", **kept)
    assert len(model.requests) == 1


@pytest.mark.scenario("RP-20")
async def test_the_first_request_of_a_conversation_that_begins_with_the_run_may_be_made_twice(run_mode: Any) -> None:
    """It goes on from nothing yet; the next one does."""
    busy = fail(ModelTransportError("busy", status=503))
    model = ScriptedModel([busy, respond(ToolCall("c", "look"), response_id="r1"), busy])
    settings = ModelSettings(retry=ModelRetrySettings(2, initial_delay=0.0, jitter=False))
    agent = Agent("a", model=model, tools=[look], model_settings=settings)
    with pytest.raises(ModelTransportError, match="busy"):
        await run_mode(agent, "go", auto_previous_response_id=True)
    assert len(model.requests) == 3


@pytest.mark.scenario("SE-09")
@pytest.mark.parametrize("kept", [{"conversation_id": "c"}, {"auto_previous_response_id": True}])
async def test_a_session_and_a_kept_conversation_exclude_each_other(run_mode: Any, kept: dict[str, Any]) -> None:
    """The run is refused before the model is asked."""
    model = ScriptedModel([])
    with pytest.raises(UserError, match="session"):
        await run_mode(Agent("a", model=model), "go", session=MemorySession(), **kept)
    assert model.requests == []


async def test_two_ways_to_go_on_exclude_each_other(run_mode: Any) -> None:
    """The run accepts a conversation or a response, not both."""
    with pytest.raises(UserError, match="choose one"):
        await run_mode(Agent("a", model=ScriptedModel([])), "go", conversation_id="c", previous_response_id="r")


@pytest.mark.scenario("HO-10")
async def test_a_kept_conversation_can_not_be_filtered_for_a_handoff(run_mode: Any) -> None:
    """The run is refused without a call of the filter."""
    target = Agent("b", model=ScriptedModel([]))
    model = ScriptedModel([respond(ToolCall("c", "transfer_to_b"))])
    agent = Agent("a", model=model, handoffs=[handoff(target, input_filter=lambda data: pytest.fail("asked"))])
    with pytest.raises(UserError, match="filter"):
        await run_mode(agent, "go", conversation_id="c")


@pytest.mark.scenario("HO-10")
async def test_nesting_is_off_for_a_kept_conversation_with_one_warning(
    run_mode: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The target of a handoff receives the new items only."""
    c = Agent("c", model=ScriptedModel([respond(AssistantMessage("c"))]))
    b = Agent("b", model=ScriptedModel([respond(ToolCall("h2", "transfer_to_c"))]), handoffs=[c])
    model = ScriptedModel([respond(ToolCall("h1", "transfer_to_b"))])
    with caplog.at_level(logging.WARNING, logger="agentloop"):
        result = await run_mode(
            Agent("a", model=model, handoffs=[b]),
            "go",
            conversation_id="c",
            run_config=RunConfig(nest_handoff_history=True),
        )
    assert result.final_output == "c"
    assert sum("nest_handoff_history" in message for message in caplog.messages) == 1


# ---------------------------------------------------------------------------------------------- resumed

KEPT: list[dict[str, Any]] = [
    {"conversation_id": "conv"},
    {"previous_response_id": "r0"},
    {"auto_previous_response_id": True},
    {"previous_response_id": "r0", "auto_previous_response_id": True},
]
"""The options by which a run continues a conversation that the provider keeps."""


@tool(name="look", in_doubt="rerun")
async def look_again() -> str:
    """Look, as often as it takes."""
    return "seen"


def build_looking(*ids: str | None) -> Agent[Any, Any]:
    """Return an agent that looks in each turn but the last; *ids* are the ids of its model's responses."""
    turns = [respond(ToolCall(f"c{n}", "look"), response_id=name) for n, name in enumerate(ids[:-1])]
    last = respond(AssistantMessage("done"), response_id=ids[-1])
    return Agent("a", model=script_turns(*turns, last), tools=[look_again])


def read_sent(agent: Agent[Any, Any]) -> dict[int, tuple[Any, ...]]:
    """Return, by turn, what each request of *agent* sent, and what it continued."""
    return {
        request.turn: (request.conversation_id, request.previous_response_id, tuple(request.items))
        for request in read_requests(agent)
    }


@pytest.mark.scenario("SM-06", "WR-05")
@pytest.mark.parametrize("again", [True, False], ids=["options again", "none"])
@pytest.mark.parametrize("ids", [("r1", "r2", "r3"), ("r1", None, "r3"), (None, None, None)], ids=str)
@pytest.mark.parametrize("kept", KEPT, ids=str)
async def test_a_resumed_run_sends_what_an_undisturbed_one_would(
    kept: dict[str, Any], ids: tuple[str | None, ...], again: bool
) -> None:
    """Cut after any record and resumed with the same options or without, it sends no acknowledged item twice."""
    whole, agent = MemoryJournal(), build_looking(*ids)
    await Runner.run(agent, "go", journal=whole, **kept)
    expected = read_sent(agent)
    assert len(expected) == 3
    lines = list(await whole.read())
    for count in range(2, len(lines)):
        agent, journal = build_looking(*ids), await make_journal(lines[:count])
        result = await Runner.run_or_resume(agent, "go", journal=journal, **(kept if again else {}))
        assert result.final_output == "done"
        sent = read_sent(agent)
        assert sent == {turn: one for turn, one in expected.items() if turn in sent}


@pytest.mark.scenario("SM-06")
async def test_what_no_response_id_names_is_sent_again(run_mode: Any) -> None:
    """A response without an id can't be continued: the next request goes on from the last one that has an id."""
    agent = build_looking("r1", None, "r3")
    await run_mode(agent, "go", auto_previous_response_id=True)
    outputs = [ToolOutput("c0", "seen"), ToolCall("c1", "look"), ToolOutput("c1", "seen")]
    assert read_sent(agent) == {
        1: (None, None, (UserMessage("go"),)),
        2: (None, "r1", (outputs[0],)),
        3: (None, "r1", tuple(outputs)),
    }


@pytest.mark.scenario("SM-06")
@pytest.mark.parametrize("by", ["the first call's", "the last response's"])
async def test_a_run_may_be_resumed_by_its_last_response(by: str) -> None:
    """Both ids name the same conversation; what the log knows of it holds."""
    agent, journal = build_looking("r1", "r2"), MemoryJournal()
    await Runner.run(agent, "go", journal=journal, previous_response_id="r0")
    lines = list(await journal.read())
    answered = next(n for n, line in enumerate(lines) if b'"kind":"batch_ended"' in line)
    agent = build_looking("r1", "r2")
    name = "r0" if by == "the first call's" else "r1"
    await Runner.resume(agent, await make_journal(lines[: answered + 1]), previous_response_id=name)
    assert read_sent(agent) == {2: (None, "r1", (ToolOutput("c0", "seen"),))}


@pytest.mark.scenario("SM-06")
@pytest.mark.parametrize("left", ["its end", "all"])
@pytest.mark.parametrize(
    ("begun", "given"),
    [
        *[({}, kept) for kept in KEPT],
        *[({"conversation_id": "other"}, kept) for kept in KEPT],
        *[(kept, {"conversation_id": "conv"}) for kept in KEPT[1:]],
        ({"auto_previous_response_id": True}, {"previous_response_id": "r0"}),
    ],
    ids=str,
)
async def test_another_conversation_than_the_runs_is_refused(
    begun: dict[str, Any], given: dict[str, Any], left: str
) -> None:
    """Nobody knows what of the run another conversation has: the error names both, and the journal stays as it is."""
    agent, whole = build_looking("r1", "r2"), MemoryJournal()
    await Runner.run(agent, "go", journal=whole, **begun)
    lines = list(await whole.read())
    lines = lines if left == "all" else lines[:-1]
    agent, journal = build_looking("r1", "r2"), await make_journal(lines)
    with pytest.raises(UserError, match="options continue") as raised:
        await Runner.run_or_resume(agent, "go", journal=journal, **given)
    named = [value for value in (*begun.values(), *given.values()) if isinstance(value, str) and value != "r0"]
    assert all(repr(name) in str(raised.value) for name in named)
    assert (read_requests(agent), list(await journal.read())) == ([], lines)
