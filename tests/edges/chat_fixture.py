"""One answer of Chat Completions, as a stream."""

import json
from typing import Any

CHUNKS: list[dict[str, Any]] = [
    {"role": "assistant", "content": ""},
    {"content": "Hel"},
    {"content": "lo"},
    {"tool_calls": [{"index": 0, "id": "c1", "type": "function", "function": {"name": "look", "arguments": ""}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": '{"where": '}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": '"here"}'}}]},
    {"tool_calls": [{"index": 1, "id": "c2", "type": "function", "function": {"name": "now", "arguments": "{}"}}]},
]


def chat_bytes() -> bytes:
    """Return the bytes of a stream with a text and two calls."""
    base = {"id": "r", "object": "chat.completion.chunk", "created": 1, "model": "gpt-x"}
    choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in CHUNKS]
    choices.append({"index": 0, "delta": {}, "finish_reason": "tool_calls"})
    usage = {
        "prompt_tokens": 9,
        "completion_tokens": 5,
        "total_tokens": 14,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 2},
    }
    chunks = [base | {"choices": [choice]} for choice in choices] + [base | {"choices": [], "usage": usage}]
    return b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks) + b"data: [DONE]\n\n"
