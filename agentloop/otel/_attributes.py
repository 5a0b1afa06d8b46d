"""Names and attributes of spans and metrics, as the semantic conventions for generative AI have them.

Pure: a span of agentloop in, a dictionary out. What the conventions don't name has the prefix `agentloop.`. The names
are written here because the package that has them marks every one as deprecated (they have moved to a repository of
their own, without a package so far); the tests compare them with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeAlias
from urllib.parse import urlsplit

from agentloop._storage.value_codec import value_to_json
from agentloop.events import CustomEvent
from agentloop.otel._definitions import RunDefinitions
from agentloop.otel._messages import (
    answer_text,
    content_text,
    definitions_text,
    encode_text,
    instructions_text,
    messages_text,
)
from agentloop.spans import Span
from agentloop.usage import RequestUsage

Attributes = dict[str, str | bool | int | float | tuple[str, ...]]

OPERATIONS = {
    "run": "invoke_workflow",
    "agent": "invoke_agent",
    "model": "chat",
    "tool": "execute_tool",
    "hosted_tool": "execute_tool",
}
"""The conventions' operation, by kind of span; the other kinds have none."""

OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
RESPONSE_MODEL = "gen_ai.response.model"
TOOL_NAME = "gen_ai.tool.name"
TOOL_TYPE = "gen_ai.tool.type"
WORKFLOW_NAME = "gen_ai.workflow.name"
AGENT_NAME = "gen_ai.agent.name"
ERROR_TYPE = "error.type"
SERVER_ADDRESS = "server.address"
SERVER_PORT = "server.port"

CONTEXT_TOKENS = "agentloop.context.tokens"

_PROVIDERS = {
    "api.groq.com": "groq",
    "api.mistral.ai": "mistral_ai",
    "api.deepseek.com": "deepseek",
    "api.x.ai": "x_ai",
    "api.perplexity.ai": "perplexity",
    "api.cohere.ai": "cohere",
    "api.cohere.com": "cohere",
    "generativelanguage.googleapis.com": "gcp.gemini",
}
"""The conventions' name of a provider that agentloop knows by its host only."""
_PROVIDER_ENDS = (
    (".openai.azure.com", "azure.ai.openai"),
    (".services.ai.azure.com", "azure.ai.inference"),
    (".amazonaws.com", "aws.bedrock"),
)
_USAGE = {
    "gen_ai.usage.input_tokens": "input_tokens",
    "gen_ai.usage.output_tokens": "output_tokens",
    "gen_ai.usage.cache_read.input_tokens": "cached_tokens",
    "gen_ai.usage.cache_creation.input_tokens": "cache_write_tokens",
    "gen_ai.usage.reasoning.output_tokens": "reasoning_tokens",
}
_FACTS = {
    "model": {
        "response_model": RESPONSE_MODEL,
        "response_id": "gen_ai.response.id",
        "http_status": "http.response.status_code",
        "service_tier": "agentloop.response.service_tier",
        "cost": "agentloop.cost",
    },
    "tool": {
        "status": "agentloop.call.status",
        "cancelled_by": "agentloop.call.cancelled_by",
        "cancelled_by_call": "agentloop.call.cancelled_by_call",
    },
    "hosted_tool": {"status": "agentloop.call.status"},
    "run": {"status": "agentloop.run.status"},
    "compaction": {"tokens_before": "agentloop.context.tokens_before", "tokens": CONTEXT_TOKENS},
}
"""Names of attributes of a span that has ended, by the names in its `data`."""


def name_span(span: Span) -> str:
    """Return the name of the exported span: its operation and what it is an operation of."""
    operation = OPERATIONS.get(span.kind, span.kind)
    subject = span.data.get("model", "") if span.kind == "model" else span.name
    return clean_text(f"{operation} {subject}".rstrip())


def name_provider(provider: str) -> str:
    """Return the conventions' name of *provider*, the provider of a `ModelInfo`; the same if they have none."""
    ends = (name for end, name in _PROVIDER_ENDS if provider.endswith(end))
    return _PROVIDERS.get(provider) or next(ends, provider)


def _clean(attributes: Attributes) -> Attributes:
    """Make the texts of *attributes* such as every exporter can encode, and return it.

    A model may send half a surrogate pair.
    """
    for name, value in attributes.items():
        if isinstance(value, str) and not value.isascii():
            attributes[name] = clean_text(value)
    return attributes


def clean_text(text: str) -> str:
    """Return *text* with `?` for each character that UTF-8 doesn't have."""
    return text.encode(errors="replace").decode()


def list_start(span: Span, defined: RunDefinitions | None = None) -> Attributes:
    """Return what is known of *span* when it begins: a sampler sees it. *defined* is what its run was started with."""
    data = span.data
    found: Attributes = {}
    if span.kind in OPERATIONS:
        found[OPERATION] = OPERATIONS[span.kind]
    match span.kind:
        case "run":
            found[WORKFLOW_NAME] = span.name
            if "run_id" in data:
                found["agentloop.run.id"] = data["run_id"]
        case "agent":
            found[AGENT_NAME] = span.name
        case "model":
            found |= list_request(span)
            found |= {AGENT_NAME: span.name, "agentloop.attempt": data["attempt"], "agentloop.turn": data["turn"]}
            if "queued_at" in data:
                found |= {"agentloop.request.queued": queued(span), "agentloop.request.waited_for": _waited_for(data)}
        case "tool":
            found |= {TOOL_NAME: span.name, TOOL_TYPE: "function", "gen_ai.tool.call.id": data["call_id"]}
            if "attempt" in data:
                found |= {"agentloop.attempt": data["attempt"], "agentloop.turn": data["turn"]}
            if "queued_at" in data:
                found["agentloop.call.queued"] = queued(span)
        case "hosted_tool":
            found |= {TOOL_NAME: span.name, TOOL_TYPE: "extension"}
            if data["call_id"] is not None:
                found["gen_ai.tool.call.id"] = data["call_id"]
        case "guardrail":
            found |= {"agentloop.guardrail.name": span.name, "agentloop.guardrail.stage": data["stage"]}
            found["agentloop.guardrail.verdict"] = data["verdict"]
        case "compaction":
            found |= {AGENT_NAME: span.name, "agentloop.compaction.steps": tuple(data["steps"])}
        case _:
            pass
    if defined is not None:
        found |= defined.list_facts(span)
    if span.kind in ("run", "agent", "model") and (conversation := _find_conversation(span)) is not None:
        found["gen_ai.conversation.id"] = conversation
    return _clean(found)


def list_request(span: Span) -> Attributes:
    """Return the provider, the model and the server of a request: for its span and its metrics."""
    data = span.data
    if "provider" not in data:
        return {}
    found: Attributes = {PROVIDER: name_provider(data["provider"]), REQUEST_MODEL: data["model"]}
    if "base_url" in data:
        found |= _read_server(data["base_url"])
    return _clean(found)


def _read_server(base_url: str) -> Attributes:
    try:
        url = urlsplit(base_url)
        host, port = url.hostname, url.port
    except ValueError:  # the application's own model may say anything
        return {}
    if host is None:
        return {}
    return {SERVER_ADDRESS: host, SERVER_PORT: port or (80 if url.scheme in ("http", "ws") else 443)}


Content: TypeAlias = bool | Literal["full"]
"""The part of the conversation to export: nothing, the new things of each span, or all that each span is about."""


def list_end(span: Span, *, content: Content) -> Attributes:
    """Return what has become known of *span* by its end. With *content* false, nothing that the conversation holds."""
    data = span.data
    found: Attributes = {
        name: data[key] for key, name in _FACTS.get(span.kind, {}).items() if data.get(key) is not None
    }
    if "error_type" in data:
        found[ERROR_TYPE] = data["error_type"]
    if span.kind == "model":
        if "finish_reason" in data:
            found["gen_ai.response.finish_reasons"] = (data["finish_reason"],)
        if "first_delta_at" in data:
            found["gen_ai.response.time_to_first_chunk"] = first_chunk_after(span)
        if (usage := data.get("usage")) is not None:
            found |= {name: getattr(usage, key) for name, key in _USAGE.items()}
            if (tokens := count_context(usage)) is not None:
                found[CONTEXT_TOKENS] = tokens
    if content:
        found |= dict(_list_content(span))
    if content == "full":
        found |= dict(_list_request(span))
    return _clean(found)


def queued(span: Span) -> float:
    """Return the seconds that a call or a request has waited for its limits; not below 0, as wall clocks may step."""
    return max(float(span.started_at - span.data["queued_at"]), 0.0)


def _waited_for(data: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple([clean_text(name) for name in data["waited_for"]])


def count_context(usage: RequestUsage) -> int | None:
    """Return the tokens of the history as an answer leaves it; None if the provider hasn't counted all of it."""
    return usage.input_tokens + usage.output_tokens if usage.complete and usage.input_tokens > 0 else None


def first_chunk_after(span: Span) -> float:
    """Return the seconds from a request to the first piece of its answer; not below 0, as wall clocks may step."""
    return max(float(span.data["first_delta_at"]) - span.started_at, 0.0)


def _list_content(span: Span) -> Iterator[tuple[str, str]]:
    data = span.data
    match span.kind:
        case "run" if "input" in data:
            yield "gen_ai.input.messages", messages_text(data["input"])
        case "model" if "output" in data:
            yield "gen_ai.output.messages", answer_text(data["output"], data.get("finish_reason"))
        case "tool":
            if "arguments" in data:
                yield "gen_ai.tool.call.arguments", data["arguments"]
            if "output" in data:
                yield "gen_ai.tool.call.result", content_text(data["output"])
        case _:
            pass


def _list_request(span: Span) -> Iterator[tuple[str, str]]:
    """Yield what a request was made of, for the spans of models and agents, and the last answer of agents and runs."""
    data = span.data
    match span.kind:
        case "model" | "agent" | "run":
            if data.get("instructions"):
                yield "gen_ai.system_instructions", instructions_text(data["instructions"])
            if data.get("definitions"):
                yield "gen_ai.tool.definitions", definitions_text(data["definitions"])
            if "input" in data:
                yield "gen_ai.input.messages", messages_text(data["input"])
            if "output" in data:
                yield "gen_ai.output.messages", answer_text(data["output"], data.get("finish_reason"))
        case "hosted_tool" if "output" in data:
            yield "gen_ai.tool.call.arguments", encode_text(data["data"])
            if data["output"] is not None:
                yield "gen_ai.tool.call.result", encode_text(data["output"])
        case _:
            pass


def list_custom(span: Span, event: CustomEvent) -> Attributes:
    """Return the value of a custom event, which is content; nothing where it is hidden, as the call's output is."""
    if event.call.secret_output or "arguments" not in span.data:  # `include_sensitive_data` is off
        return {}
    return _clean({"agentloop.event.value": encode_text(value_to_json(event.value))})


def find_root(span: Span) -> Span:
    """Return the outermost span around *span*, or *span* itself."""
    while span.parent is not None:
        span = span.parent
    return span


def _find_conversation(span: Span) -> str | None:
    """Return the id of the conversation: the group of the trace, else the provider's own."""
    root = find_root(span)
    found: Any = span.trace.group_id or root.data.get("conversation_id")
    return None if found is None else str(found)
