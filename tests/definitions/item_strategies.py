"""Hypothesis strategies for conversation items of every kind."""

from typing import Any

from hypothesis import strategies as st

from agentloop import items as i

TEXT = st.text(max_size=20)
MAYBE_TEXT = st.none() | TEXT
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
JSON_OBJECTS = st.dictionaries(TEXT, JSON_VALUES, max_size=4)
# Keys that an item's own JSON uses, so that what a provider sent may look like one of ours.
TRICKY_OBJECTS = JSON_OBJECTS | st.fixed_dictionaries(
    {"type": st.sampled_from(["tool_call", "opaque_item", "text", "future"]), "call_id": TEXT}
)
PROVIDER_DATA = st.none() | TRICKY_OBJECTS

MAYBE_PLACE = st.none() | st.integers(0, 9)
ANNOTATIONS = st.one_of(
    st.builds(i.UrlCitation, TEXT, MAYBE_TEXT, start=MAYBE_PLACE, end=MAYBE_PLACE),
    st.builds(i.FileCitation, TEXT, MAYBE_TEXT, MAYBE_PLACE),
    st.builds(i.ContainerFileCitation, TEXT, TEXT, MAYBE_TEXT, start=MAYBE_PLACE, end=MAYBE_PLACE),
)
MEDIA = {"file_id": MAYBE_TEXT, "media_type": MAYBE_TEXT}
PARTS = st.one_of(
    st.builds(i.Text, TEXT, st.just(()) | st.lists(ANNOTATIONS, max_size=2).map(tuple)),
    st.builds(i.Image, TEXT, MAYBE_TEXT, MAYBE_TEXT, **MEDIA),
    st.builds(i.Audio, TEXT, MAYBE_TEXT, **MEDIA),
    st.builds(i.File, MAYBE_TEXT, TEXT, MAYBE_TEXT, **MEDIA),
    st.builds(i.File, file_id=TEXT),
    st.builds(i.Refusal, TEXT),
)
MANY_PARTS = st.lists(PARTS, max_size=3).map(tuple)
TEXTS = st.lists(TEXT, max_size=3).map(tuple)
KINDS = st.sampled_from(["function", "custom"])
TOOL_CALLS = st.builds(
    i.ToolCall,
    TEXT,
    TEXT,
    TEXT,
    MAYBE_TEXT,
    kind=KINDS,
    caller=st.none() | st.builds(i.Caller, TEXT, MAYBE_TEXT),
    provider_data=PROVIDER_DATA,
)

BY_TYPE: dict[type, st.SearchStrategy[Any]] = {
    i.SystemMessage: st.builds(i.SystemMessage, MANY_PARTS, provider_data=PROVIDER_DATA),
    i.UserMessage: st.builds(i.UserMessage, MANY_PARTS, provider_data=PROVIDER_DATA),
    i.AssistantMessage: st.builds(i.AssistantMessage, MANY_PARTS, id=MAYBE_TEXT, provider_data=PROVIDER_DATA),
    i.Reasoning: st.builds(i.Reasoning, MAYBE_TEXT, TEXTS, TEXTS, MAYBE_TEXT, provider_data=PROVIDER_DATA),
    i.ToolCall: TOOL_CALLS,
    i.ToolOutput: st.builds(
        i.ToolOutput, TEXT, TEXT | MANY_PARTS, kind=KINDS, is_error=st.booleans(), provider_data=PROVIDER_DATA
    ),
    i.HandoffCall: st.builds(i.HandoffCall, TEXT, TEXT, TEXT, provider_data=PROVIDER_DATA),
    i.HandoffOutput: st.builds(i.HandoffOutput, TEXT, TEXT, TEXT, TEXT, provider_data=PROVIDER_DATA),
    i.HostedToolCall: st.builds(
        i.HostedToolCall, TEXT, TRICKY_OBJECTS, MAYBE_TEXT, MAYBE_TEXT, JSON_VALUES, MAYBE_TEXT
    ),
    i.ApprovalRequest: st.builds(i.ApprovalRequest, TOOL_CALLS, TEXT, TEXTS),
    i.Compaction: st.builds(i.Compaction, TRICKY_OBJECTS),
    i.OpaqueItem: st.builds(i.OpaqueItem, TRICKY_OBJECTS),
}
ITEMS: st.SearchStrategy[i.Item] = st.one_of(*BY_TYPE.values())
