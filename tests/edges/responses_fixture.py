"""One answer of the Responses interface with every kind of item that a run makes use of, as items and as a stream."""

import copy
import json
from collections.abc import Iterable, Iterator
from typing import Any

REASONING = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [{"type": "summary_text", "text": "I search."}],
    "content": [{"type": "reasoning_text", "text": "Hm."}],
    "encrypted_content": "c2VjcmV0",
    "status": "completed",
}
SEARCH = {
    "type": "web_search_call",
    "id": "ws_1",
    "status": "completed",
    "action": {"type": "search", "query": "weather", "queries": ["weather"]},
}
SOURCES = [
    {"type": "url_citation", "url": "https://x.test", "title": "X", "start_index": 0, "end_index": 3},
    {"type": "file_citation", "file_id": "file_1", "filename": "a.pdf", "index": 2},
    {
        "type": "container_file_citation",
        "container_id": "cntr_1",
        "file_id": "file_2",
        "filename": "b.csv",
        "start_index": 1,
        "end_index": 2,
    },
]
MESSAGE = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "phase": "commentary",
    "content": [{"type": "output_text", "text": "Sunny für now", "annotations": SOURCES, "logprobs": []}],
}
CALL = {
    "type": "function_call",
    "id": "fc_1",
    "call_id": "call_1",
    "name": "look",
    "namespace": "eyes",
    "arguments": '{"where": "här"}',
    "status": "completed",
    "caller": {"type": "program", "caller_id": "prog_1"},
}
CUSTOM = {
    "type": "custom_tool_call",
    "id": "ctc_1",
    "call_id": "call_2",
    "name": "shout",
    "input": "loud",
}
MCP = {
    "type": "mcp_call",
    "id": "mcp_1",
    "name": "roll",
    "server_label": "dice",
    "arguments": '{"n": 1}',
    "output": "4",
    "error": None,
    "status": "completed",
    "approval_request_id": None,
}
COMPACTION = {"type": "compaction", "id": "cmp_1", "encrypted_content": "ZW5j"}
OUTPUT: list[dict[str, Any]] = [REASONING, SEARCH, MESSAGE, MCP, COMPACTION, CALL, CUSTOM]
USAGE = {
    "input_tokens": 10,
    "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 3},
    "output_tokens": 7,
    "output_tokens_details": {"reasoning_tokens": 2},
    "total_tokens": 17,
}


def make_response(output: Iterable[Any] = OUTPUT, status: str = "completed", **fields: Any) -> dict[str, Any]:
    """Return a response object with *output*."""
    response: dict[str, Any] = {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": "m-1-today",
        "status": status,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {"run": "a"},
        "output": list(output),
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "temperature": 1.0,
        "top_p": 1.0,
        "service_tier": "flex",
        "usage": USAGE if status != "in_progress" else None,
    }
    return response | fields


def _pieces(place: int, item: dict[str, Any]) -> Iterator[dict[str, Any]]:
    at = {"item_id": item["id"], "output_index": place}
    match item["type"]:
        case "reasoning":
            text, thought = item["summary"][0]["text"], item["content"][0]["text"]
            first = {**at, "summary_index": 0}
            yield {"type": "response.reasoning_summary_part.added", **first, "part": item["summary"][0]}
            for piece in (text[:3], text[3:]):
                yield {"type": "response.reasoning_summary_text.delta", **first, "delta": piece}
            yield {"type": "response.reasoning_summary_text.done", **first, "text": text}
            yield {"type": "response.reasoning_summary_part.done", **first, "part": item["summary"][0]}
            yield {"type": "response.reasoning_text.delta", **at, "content_index": 0, "delta": thought}
            yield {"type": "response.reasoning_text.done", **at, "content_index": 0, "text": thought}
        case "web_search_call":
            for step in ("in_progress", "searching", "completed"):
                yield {"type": f"response.web_search_call.{step}", **at}
        case "mcp_call":
            yield {"type": "response.mcp_call.in_progress", **at}
            yield {"type": "response.mcp_call_arguments.delta", **at, "delta": item["arguments"]}
            yield {"type": "response.mcp_call_arguments.done", **at, "arguments": item["arguments"]}
            yield {"type": "response.mcp_call.completed", **at}
        case "message" if len(item["content"]) == 1:
            [part] = item["content"]
            begun = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            at |= {"content_index": 0}
            yield {"type": "response.content_part.added", **at, "part": begun}
            for piece in (part["text"][:5], part["text"][5:]):
                yield {"type": "response.output_text.delta", **at, "delta": piece, "logprobs": []}
            for number, source in enumerate(part.get("annotations", ())):
                added = {"annotation": source, "annotation_index": number}
                yield {"type": "response.output_text.annotation.added", **at, **added}
            yield {"type": "response.output_text.done", **at, "text": part["text"], "logprobs": []}
            yield {"type": "response.content_part.done", **at, "part": part}
        case "function_call":
            for piece in (item["arguments"][:6], item["arguments"][6:]):
                yield {"type": "response.function_call_arguments.delta", **at, "delta": piece}
            yield {"type": "response.function_call_arguments.done", **at, "arguments": item["arguments"]}
        case "custom_tool_call":
            yield {"type": "response.custom_tool_call_input.delta", **at, "delta": item["input"]}
            yield {"type": "response.custom_tool_call_input.done", **at, "input": item["input"]}


_EMPTY = {"summary": [], "content": [], "arguments": "", "input": "", "encrypted_content": None, "output": None}


def make_stream(
    items: Iterable[dict[str, Any]] = OUTPUT, end: str = "completed", **fields: Any
) -> list[dict[str, Any]]:
    """Return the events of a stream that gives *items* and ends with `response.END`, which lists them."""
    items, begun = list(items), make_response([], "in_progress")
    events: list[dict[str, Any]] = [
        {"type": f"response.{step}", "response": begun} for step in ("created", "in_progress")
    ]
    for place, item in enumerate(items):
        empty = {name: _EMPTY.get(name, value) for name, value in copy.deepcopy(item).items()}
        added = {"output_index": place, "item": empty | {"status": "in_progress"}}
        events.append({"type": "response.output_item.added", **added})
        events += _pieces(place, item)
        events.append({"type": "response.output_item.done", "output_index": place, "item": item})
    fields = {"output": items} | fields
    events.append({"type": f"response.{end}", "response": make_response(status=end, **fields)})
    return [{**event, "sequence_number": number} for number, event in enumerate(events)]


def wire(events: Iterable[dict[str, Any]]) -> bytes:
    """Return the bytes of a stream of *events*."""
    return b"".join(b"event: %b\ndata: %b\n\n" % (one["type"].encode(), json.dumps(one).encode()) for one in events)
