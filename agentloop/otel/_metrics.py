"""Metrics of model calls, tools, agents and workflows, measured from the spans that have ended.

Each kind has its own duration, as the conventions have it: `gen_ai.client.operation.duration` is only for requests to a
model. A metric has the same attributes as the conventions' table for it, so a dashboard made for another library works.
"""

from __future__ import annotations

from typing import NamedTuple

from opentelemetry import metrics
from opentelemetry.context import Context
from opentelemetry.metrics import MeterProvider

from agentloop._common.version import __version__
from agentloop.otel import _attributes as a
from agentloop.otel._definitions import find_agent
from agentloop.spans import Span

SCOPE = "agentloop"
"""The name of the instrumentation scope."""
_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_AGENT_SECONDS = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 102.4, 204.8, 409.6)
_WORKFLOW_SECONDS = (1, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200)
_TOKENS = tuple(4**power for power in range(14))
_FIRST_CHUNK = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
# The bounds are those that the conventions advise.


class _Duration(NamedTuple):
    name: str
    description: str
    bounds: tuple[float, ...]


_DURATIONS = {
    "model": _Duration("gen_ai.client.operation.duration", "Duration of requests to models.", _SECONDS),
    "tool": _Duration("gen_ai.execute_tool.duration", "Duration of tool calls.", _SECONDS),
    "agent": _Duration("gen_ai.invoke_agent.duration", "Duration of an agent's work.", _AGENT_SECONDS),
    "run": _Duration("gen_ai.workflow.duration", "Duration of a run segment.", _WORKFLOW_SECONDS),
}
"""The metric of the duration, by kind of span."""


class Metrics:
    """The metrics of one instrument. No attribute holds content, or a name that a model has made up."""

    def __init__(self, provider: MeterProvider | None) -> None:
        meter = metrics.get_meter(SCOPE, __version__, meter_provider=provider)
        self._durations = {
            kind: meter.create_histogram(
                found.name, "s", found.description, explicit_bucket_boundaries_advisory=found.bounds
            )
            for kind, found in _DURATIONS.items()
        }
        self._tokens = meter.create_histogram(
            "gen_ai.client.token.usage",
            "{token}",
            "Input and output tokens of model calls.",
            explicit_bucket_boundaries_advisory=_TOKENS,
        )
        self._first_chunk = meter.create_histogram(
            "gen_ai.client.operation.time_to_first_chunk",
            "s",
            "Time from the request to the first piece of the answer.",
            explicit_bucket_boundaries_advisory=_FIRST_CHUNK,
        )
        self._queued = meter.create_histogram(
            "agentloop.client.queue.duration",
            "s",
            "Time that requests to models have waited for their limits.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        self._context = meter.create_histogram(
            a.CONTEXT_TOKENS,
            "{token}",
            "Tokens of a history after an answer.",
            explicit_bucket_boundaries_advisory=_TOKENS,
        )
        self._compactions = meter.create_counter(
            "agentloop.compactions", "{compaction}", "Histories that were made shorter to fit the model's window."
        )
        self._cached = meter.create_counter(
            "agentloop.client.cache.usage",
            "{token}",
            "Input tokens that were read from the provider's cache of prompts, or written to it.",
        )

    def measure(self, span: Span, context: Context) -> None:
        """Measure *span*, which has ended; *context* has its exported span, which an exemplar refers to."""
        match span.kind:
            case "model":
                self._measure_model(span, context)
            case "tool" if "attempt" in span.data:  # it ran, so its name is a tool's
                attributes: a.Attributes = {a.TOOL_NAME: span.name, a.TOOL_TYPE: "function"}
                if (agent := find_agent(span)) is not None:
                    attributes[a.AGENT_NAME] = agent.name
                self._measure(span, attributes, context)
            case "agent":
                self._measure(span, {a.AGENT_NAME: span.name}, context)
            case "compaction":
                self._compactions.add(1, {a.AGENT_NAME: span.name}, context)
            case "run":
                self._measure(span, {a.WORKFLOW_NAME: span.name}, context)
            case _:
                pass

    def _measure(self, span: Span, attributes: a.Attributes, context: Context) -> None:
        if "error_type" in span.data:
            attributes = {**attributes, a.ERROR_TYPE: span.data["error_type"]}
        ended_at = span.started_at if span.ended_at is None else span.ended_at
        self._durations[span.kind].record(max(ended_at - span.started_at, 0.0), attributes, context)

    def _measure_model(self, span: Span, context: Context) -> None:
        data = span.data
        attributes: a.Attributes = {a.OPERATION: "chat", **a.list_request(span)}
        if "response_model" in data:
            attributes[a.RESPONSE_MODEL] = a.clean_text(data["response_model"])
        self._measure(span, attributes, context)
        if "first_delta_at" in data:
            self._first_chunk.record(a.first_chunk_after(span), attributes, context)
        if "queued_at" in data:
            self._queued.record(a.queued(span), attributes, context)
        usage = data.get("usage")
        if usage is None or not usage.complete:  # the tokens of an answer that was cut are unknown
            return
        for kind, tokens in (("input", usage.input_tokens), ("output", usage.output_tokens)):
            self._tokens.record(max(tokens, 0), {**attributes, "gen_ai.token.type": kind}, context)
        if (held := a.count_context(usage)) is not None:
            self._context.record(held, attributes, context)
        for use, tokens in (("read", usage.cached_tokens), ("write", usage.cache_write_tokens)):
            if tokens > 0:
                self._cached.add(tokens, {**attributes, "agentloop.cache.operation": use}, context)
