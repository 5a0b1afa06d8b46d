"""Requests of realtime sessions: Hypothesis strategies, and how a conversation takes a request."""

from hypothesis import strategies as st

from agentloop import Agent, ModelSettings, Prompt, handoff, tool
from agentloop.items import (
    AssistantMessage,
    HandoffCall,
    HandoffOutput,
    Item,
    Reasoning,
    Refusal,
    SystemMessage,
    Text,
    ToolCall,
    ToolOutput,
    UserMessage,
)
from agentloop.model_events import ModelRequest
from agentloop.models._realtime.conversation import RealtimeConversation, sendable_items


@tool
async def weather(city: str) -> str:
    """Weather."""
    return city


@tool(namespace="n")
async def apart() -> str:
    """Tool of a namespace."""
    return ""


texts = st.text(max_size=5)
parts = st.lists(texts.map(Text) | texts.map(Refusal), max_size=2)
ids = st.sampled_from(["c1", "c2"])
items: st.SearchStrategy[Item] = st.one_of(
    parts.map(SystemMessage),
    parts.map(UserMessage),
    parts.map(AssistantMessage),
    st.builds(ToolCall, ids, st.just("weather"), st.just("{}")),
    st.builds(HandoffCall, ids, st.just("go")),
    st.builds(ToolOutput, ids, texts | parts),
    st.builds(HandoffOutput, ids, texts, texts, texts),
    st.builds(Reasoning, st.none()),
)
settings_ = st.builds(
    ModelSettings,
    temperature=st.none() | st.just(0.5),
    max_tokens=st.none() | st.integers(1, 4096),
    parallel_tool_calls=st.none() | st.booleans(),
    tool_choice=st.sampled_from([None, "auto", "required", "none", "weather", {"type": "function", "name": "weather"}]),
    reasoning=st.sampled_from([None, {"effort": "low"}, {"summary": "auto"}]),
    truncation=st.sampled_from([None, "auto", "disabled"]),
    metadata=st.none() | st.just({"a": "b"}),
)
requests = st.builds(
    ModelRequest,
    system=st.none() | texts,
    items=st.lists(items, max_size=6),
    tools=st.sampled_from([(), (weather,)]),
    handoffs=st.sampled_from([(), (handoff(Agent("other")),)]),
    settings=settings_,
    prompt=st.none() | st.builds(Prompt, st.just("p"), version=st.none() | st.just("1"), variables=st.just({"a": "b"})),
)


def adopt(conversation: RealtimeConversation, request: ModelRequest) -> None:
    conversation.adopt(request, sendable_items(request))


def find_overlap(conversation: RealtimeConversation, request: ModelRequest) -> int | None:
    return conversation.find_overlap(request, sendable_items(request))
