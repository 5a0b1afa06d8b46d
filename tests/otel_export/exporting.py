"""Providers that keep in memory what runs export, and readers of it."""

from typing import Any, Literal

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from agentloop import RunConfig
from agentloop.otel import OTelInstrument


class Exported:
    """An instrument with providers of its own, and all that runs have exported through them."""

    def __init__(self, *processors: SpanProcessor, content: bool | Literal["full"] = False) -> None:
        self.memory = InMemorySpanExporter()
        self.reader = InMemoryMetricReader()
        self.tracers = TracerProvider(shutdown_on_exit=False)
        for processor in (SimpleSpanProcessor(self.memory), *processors):
            self.tracers.add_span_processor(processor)
        self.meters = MeterProvider([self.reader], shutdown_on_exit=False)
        self.instrument = OTelInstrument(self.tracers, self.meters, content=content)
        self.application = self.tracers.get_tracer("application")

    def config(self, **more: Any) -> RunConfig:
        """Return a configuration with the instrument."""
        return RunConfig(instruments=[self.instrument], **more)

    @property
    def spans(self) -> list[ReadableSpan]:
        """The spans that have ended, in the order of their starts; of equal times the one that ended last."""
        done = list(reversed(self.memory.get_finished_spans()))
        return sorted(done, key=lambda span: span.start_time or 0)

    def span(self, name: str) -> ReadableSpan:
        """Return the one span of this name."""
        [found] = [span for span in self.spans if span.name == name]
        return found

    def parent(self, name: str) -> str | None:
        """Return the name of the span above the one of this name; None if it is a root."""
        return self.name_of_parent(self.span(name))

    def name_of_parent(self, span: ReadableSpan) -> str | None:
        """Return the name of the span above *span*; None if it is a root."""
        if span.parent is None:
            return None
        names = {other.context.span_id: other.name for other in self.spans if other.context is not None}
        return names.get(span.parent.span_id, "(not exported)")

    def edges(self) -> set[tuple[str, str | None]]:
        """Return the names of all spans, each with that of its parent."""
        return {(span.name, self.name_of_parent(span)) for span in self.spans}

    def points(self, metric: str) -> list[Any]:
        """Return the data points of a metric; nothing if it was never measured."""
        return [point for found in self.metrics() if found.name == metric for point in found.data.data_points]

    def metrics(self) -> list[Any]:
        """Return all metrics that were measured."""
        data = self.reader.get_metrics_data()
        scopes = (
            [] if data is None else [scope for resource in data.resource_metrics for scope in resource.scope_metrics]
        )
        return [found for scope in scopes for found in scope.metrics]

    def everything(self) -> str:
        """Return all spans and metrics as JSON text."""
        data = self.reader.get_metrics_data()
        return "\n".join([*[span.to_json() for span in self.spans], "" if data is None else data.to_json()])


def attributes_of(span: ReadableSpan) -> dict[str, Any]:
    """Return the attributes of a span."""
    return dict(span.attributes or {})
