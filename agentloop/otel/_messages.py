"""Items of a conversation as the JSON text that the semantic conventions have for messages.

Knows no secrets: what a tool marks is masked before. The bytes of media are left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, assert_never

from agentloop import items as i
from agentloop._common.json_bytes import encode_shown
from agentloop._common.naming import qualify_name
from agentloop.model_events import HostedToolDefinition, ToolDefinition


def messages_text(items: Iterable[i.Item]) -> str:
    """Return the messages of *items* as JSON text: neighbours of one role are one message, but answers of tools
    stay apart, because readers take a message of a tool for one answer.
    """
    return encode_text(_read_messages(items))


def answer_text(items: Iterable[i.Item], finish_reason: str | None) -> str:
    """Return the messages of a model's answer as JSON text. The conventions want a reason for the end of each: that of
    the model, else by what the message is.
    """
    messages = _read_messages(items)
    for message in messages:
        calls = any(part["type"] == "tool_call" for part in message["parts"])
        reason = finish_reason or ("tool_calls" if calls else "stop")
        message["finish_reason"] = "tool_call" if reason == "tool_calls" else reason
    return encode_text(messages)


def _read_messages(items: Iterable[i.Item]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    for item in items:
        role, parts = _read_item(item)
        if role != "tool" and messages and messages[-1]["role"] == role:
            messages[-1]["parts"] += parts
        else:
            messages.append({"role": role, "parts": parts})
    return messages


def instructions_text(system: str) -> str:
    """Return the instructions of a request as JSON text: one part."""
    return encode_text([{"type": "text", "content": system}])


def definitions_text(tools: Iterable[ToolDefinition | HostedToolDefinition]) -> str:
    """Return the tools of a request as JSON text: those that the model calls with their schemas."""
    return encode_text([_format_tool(tool) for tool in tools])


def _format_tool(tool: ToolDefinition | HostedToolDefinition) -> dict[str, Any]:
    shown: Any = tool
    if not hasattr(shown, "params_json_schema"):  # the configuration of a hosted tool may hold keys
        return {"type": shown.kind, "name": shown.kind}
    name = qualify_name(shown.name, shown.namespace)
    return {
        "type": "function",
        "name": name,
        "description": shown.description,
        "parameters": dict(shown.params_json_schema),
    }


def content_text(content: i.Content) -> str:
    """Return the output of a tool as text: its own, or the JSON text of its parts."""
    return content if isinstance(content, str) else encode_text(list(map(_format_part, content)))


def encode_text(value: Any) -> str:
    """Return *value*, of JSON's own types, as JSON text."""
    return encode_shown(value).decode()


def _read_item(item: i.Item) -> tuple[str, list[dict[str, Any]]]:
    """Return the role and the parts of *item*."""
    match item:
        case i.SystemMessage():
            return "system", list(map(_format_part, item.content))
        case i.UserMessage():
            return "user", list(map(_format_part, item.content))
        case i.AssistantMessage():
            return "assistant", list(map(_format_part, item.content))
        case i.Reasoning():
            return "assistant", [{"type": "reasoning", "content": text} for text in (*item.summary, *item.content)]
        case i.ToolCall() | i.HandoffCall():
            call = {"type": "tool_call", "id": item.call_id, "name": item.name, "arguments": item.arguments}
            return "assistant", [call]
        case i.ToolOutput() | i.HandoffOutput():
            answer = {"type": "tool_call_response", "id": item.call_id, "response": content_text(item.output)}
            return "tool", [answer]
        case i.HostedToolCall():
            told = {"id": item.call_id or item.id, "name": item.kind, "server_tool_call": {"type": item.kind}}
            return "assistant", [{"type": "server_tool_call", **told}]
        case i.ApprovalRequest() | i.Compaction() | i.OpaqueItem():
            return "assistant", [{"type": type(item).__name__}]
        case _:  # pragma: no cover - the union is closed
            assert_never(item)


def _format_part(part: i.Part) -> dict[str, Any]:
    match part:
        case i.Text(text=text):
            return {"type": "text", "content": text}
        case i.Refusal(refusal=words):
            return {"type": "refusal", "content": words}
        case i.Image() | i.Audio() | i.File():
            modality = type(part).__name__.lower()
            if part.file_id is not None:
                return {"type": "file", "modality": modality, "file_id": part.file_id}
            if part.url is not None and not part.url.startswith("data:"):
                return {"type": "uri", "modality": modality, "uri": part.url}
            return {"type": "blob", "modality": modality, "mime_type": part.media_type}
        case _:  # pragma: no cover - the union is closed
            assert_never(part)
