"""One answer of Anthropic Messages, as the events of a stream, and the parts to make others of."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

START: dict[str, Any] = {
    "type": "message_start",
    "message": {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-x",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {
            "service_tier": "priority",
            "input_tokens": 10,
            "cache_read_input_tokens": 4,
            "cache_creation_input_tokens": 2,
            "output_tokens": 1,
        },
    },
}


def begin(index: int, **block: Any) -> dict[str, Any]:
    """Return the event that begins a block."""
    return {"type": "content_block_start", "index": index, "content_block": block}


def more(index: int, **delta: Any) -> dict[str, Any]:
    """Return the event with a piece of a block."""
    return {"type": "content_block_delta", "index": index, "delta": delta}


def stop(index: int) -> dict[str, Any]:
    """Return the event that ends a block."""
    return {"type": "content_block_stop", "index": index}


def end(reason: str, **fields: Any) -> list[dict[str, Any]]:
    """Return the last two events."""
    usage = {"input_tokens": None, "output_tokens": 20, "output_tokens_details": {"thinking_tokens": 7}}
    return [
        {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None} | fields, "usage": usage},
        {"type": "message_stop"},
    ]


WHOLE: list[dict[str, Any]] = [
    START,
    {"type": "ping"},
    begin(0, type="thinking", thinking="", signature=""),
    more(0, type="thinking_delta", thinking="Let me "),
    more(0, type="thinking_delta", thinking="see."),
    more(0, type="signature_delta", signature="c2ln"),
    stop(0),
    begin(1, type="redacted_thinking", data="cmVk"),
    stop(1),
    begin(2, type="text", text=""),
    more(2, type="text_delta", text="I look "),
    more(2, type="text_delta", text="für dich."),
    stop(2),
    begin(3, type="server_tool_use", id="srv_1", name="web_search", input={}),
    more(3, type="input_json_delta", partial_json='{"query": "x"}'),
    stop(3),
    begin(4, type="web_search_tool_result", tool_use_id="srv_1", content=[]),
    stop(4),
    begin(5, type="text", text=""),
    more(5, type="text_delta", text="Found."),
    stop(5),
    begin(6, type="tool_use", id="toolu_1", name="look", input={}),
    more(6, type="input_json_delta", partial_json=""),
    more(6, type="input_json_delta", partial_json='{"where":'),
    more(6, type="input_json_delta", partial_json=' "here"}'),
    stop(6),
    begin(7, type="tool_use", id="toolu_2", name="now"),
    stop(7),
    *end("tool_use"),
]


def wire(events: Sequence[Mapping[str, Any]]) -> bytes:
    """Return the bytes of a stream of *events*."""
    return b"".join(
        f"event: {event['type']}\ndata: {json.dumps(event, ensure_ascii=False)}\n\n".encode() for event in events
    )
