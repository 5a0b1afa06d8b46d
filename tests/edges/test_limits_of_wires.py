"""What each interface takes of names, ids and ends: histories of other servers are written within its limits."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop import Agent, handoff, tool
from agentloop.exceptions import UserValueError
from agentloop.items import AssistantMessage, HandoffCall, HandoffOutput, Item, ToolCall, ToolOutput, UserMessage
from agentloop.model_events import ModelRequest
from agentloop.models._chat import request as chat_request
from agentloop.models._codec import encode_json
from agentloop.models._messages import request as messages_request
from agentloop.models._realtime.items import encode_item
from agentloop.models._responses import request as responses_request

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def write_realtime(request: ModelRequest) -> Mapping[str, Any]:
    """Return the items that a session is sent."""
    wire_ids: dict[str, str] = {}
    return {"items": [encode_item(item, wire_ids) for item in request.items]}


WIRES: dict[str, tuple[int | None, Callable[[ModelRequest], Mapping[str, Any]]]] = {
    "chat": (40, lambda request: chat_request.encode(request, "m")),
    "responses": (64, lambda request: responses_request.encode(request, "m")),
    "messages": (None, lambda request: messages_request.encode(request, "m", max_tokens=9)),
    "realtime": (32, write_realtime),
}
"""By interface: the most characters of a call's id, and how a request is written."""


def body_of(wire: str, items: list[Item]) -> Any:
    """Return what *wire* sends of a history, as its server reads it."""
    request = ModelRequest(system=None, items=(UserMessage("go"), *items))
    return json.loads(encode_json(WIRES[wire][1](request)))


def parts_of(value: Any) -> list[dict[str, Any]]:
    """Return every object in *value*, outermost first."""
    if isinstance(value, dict):
        return [value, *(part for each in value.values() for part in parts_of(each))]
    return [part for each in value for part in parts_of(each)] if isinstance(value, list) else []


def calls_and_outputs(wire: str, items: list[Item]) -> tuple[list[str], list[str], list[str]]:
    """Return the ids of the calls, the ids that outputs answer, and the names of the calls, as they are sent."""
    calls: list[str] = []
    answered: list[str] = []
    names: list[str] = []
    for part in parts_of(body_of(wire, items)):
        match part:
            case {"type": "function", "id": str(one), "function": {"name": str(name)}}:
                calls.append(one)
                names.append(name)
            case {"type": "function_call", "call_id": str(one), "name": str(name)}:
                calls.append(one)
                names.append(name)
            case {"type": "tool_use", "id": str(one), "name": str(name)}:
                calls.append(one)
                names.append(name)
            case {"tool_call_id": str(one)} | {"type": "function_call_output", "call_id": str(one)}:
                answered.append(one)
            case {"tool_use_id": str(one)}:
                answered.append(one)
    return calls, answered, names


IDS = st.lists(st.text(st.sampled_from("abcXYZ019_-"), min_size=1, max_size=120), min_size=1, max_size=4, unique=True)
LONG = ["x" * 80, "x" * 80 + "y", "x" * 79 + "z"]


@pytest.mark.parametrize("wire", WIRES)
@given(ids=IDS | st.just(LONG), name=st.text(max_size=150))
def test_calls_of_any_other_server_fit(wire: str, ids: list[str], name: str) -> None:
    """Each call and its output have one id of a length that the server takes, and its own; the name is one, too."""
    calls: list[Item] = [ToolCall(one, name, "{}") for one in ids[:-1]] + [HandoffCall(ids[-1], name, "{}")]
    outputs: list[Item] = [ToolOutput(one, "done") for one in ids[:-1]] + [HandoffOutput(ids[-1], "done", "a", "b")]
    sent, answered, names = calls_and_outputs(wire, [*calls, *outputs])
    assert sent == answered
    assert len(set(sent)) == len(ids)
    most = WIRES[wire][0]
    assert most is None or all(len(one) <= most for one in sent)
    assert all(NAME.fullmatch(one) for one in names)


@pytest.mark.parametrize("wire", WIRES)
def test_an_id_that_fits_goes_as_it_is(wire: str) -> None:
    """Nothing is renamed without a reason."""
    items: list[Item] = [ToolCall("call_1", "look", "{}"), ToolOutput("call_1", "done")]
    assert calls_and_outputs(wire, items) == (["call_1"], ["call_1"], ["look"])


@pytest.mark.parametrize("wire", ["chat", "responses"])
def test_an_output_whose_call_the_server_keeps_has_the_servers_own_id(wire: str) -> None:
    """The call isn't in the request, so only the server knows its id, however long."""
    _, answered, _ = calls_and_outputs(wire, [ToolOutput("s" * 80, "done")])
    assert answered == ["s" * 80]


def test_a_call_that_came_over_responses_goes_back_with_its_id() -> None:
    """A server that makes long ids takes them."""
    own = ToolCall("s" * 80, "look", "{}", provider_data={"responses": {"id": "fc_1"}})
    sent, answered, _ = calls_and_outputs("responses", [own, ToolOutput("s" * 80, "done")])
    assert sent == answered == ["s" * 80]


@pytest.mark.parametrize("text", ["Yes. \n", "Yes.\t", " Yes. "])
def test_the_last_text_of_a_model_ends_without_blanks_over_messages(text: str) -> None:
    """The interface refuses a request that ends so. Blanks elsewhere stay."""
    body = body_of("messages", [AssistantMessage(text)])
    assert body["messages"][-1] == {"role": "assistant", "content": [{"type": "text", "text": text.rstrip()}]}
    body = body_of("messages", [AssistantMessage(text), UserMessage("and ")])
    assert [message["content"][0]["text"] for message in body["messages"][1:]] == [text, "and "]


def test_a_last_text_of_several_loses_only_the_blanks_at_the_end() -> None:
    """The texts before it are as they were, and so is a last part that isn't a text."""
    body = body_of("messages", [AssistantMessage("a "), AssistantMessage("b ")])
    assert [block["text"] for block in body["messages"][-1]["content"]] == ["a ", "b"]
    body = body_of("messages", [AssistantMessage("a "), ToolCall("c", "look", "{}")])
    assert body["messages"][-1]["content"][0]["text"] == "a "


def test_names_that_are_made_of_long_ones_fit_and_stay_apart() -> None:
    """The name of a handoff, and of an agent as a tool, is made of the agent's name, which may have any length."""
    agents = [Agent(f"{'The Department of Everything Else ' * 3}{n}") for n in range(2)]
    names = [handoff(agent).name for agent in agents] + [agent.as_tool().name for agent in agents]
    assert all(NAME.fullmatch(name) for name in names)
    assert len(set(names)) == 4
    assert handoff(Agent("Short One")).name == "transfer_to_short_one"


@pytest.mark.parametrize("name", ["x" * 65, "two words", "", "ü"])
def test_a_name_that_no_provider_takes_is_refused_where_it_is_given(name: str) -> None:
    """The error says what a name may be, for a tool as for a handoff."""
    with pytest.raises(UserValueError, match="expected 1 to 64 letters"):
        handoff(Agent("a"), tool_name=name)
    if name:
        with pytest.raises(UserValueError, match="expected 1 to 64 letters"):
            tool(lambda: "x", name=name)
