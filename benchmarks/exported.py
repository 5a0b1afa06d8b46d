"""Instruments on runs: one for which spans are made, and one that exports them to OpenTelemetry, to an exporter that
drops them. Its SDK isn't in every environment that measures.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from agentloop import Instrument, Span


class SpanCounter(Instrument):
    """Counts the spans that end."""

    def __init__(self) -> None:
        self.count = 0

    def on_span_end(self, span: Span) -> None:
        """Count."""
        self.count += 1


@contextmanager
def exporting() -> Iterator[Instrument | None]:
    """Give an instrument with a queue and a thread that exports, within the block; None without the SDK."""
    try:
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
    except ModuleNotFoundError:
        yield None
        return
    from agentloop.otel import OTelInstrument

    class Drop(SpanExporter):
        def export(self, spans: Any) -> Any:
            return SpanExportResult.SUCCESS

    tracers = TracerProvider(shutdown_on_exit=False)
    tracers.add_span_processor(BatchSpanProcessor(Drop()))
    meters = MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False)
    try:
        yield OTelInstrument(tracers, meters)
    finally:
        tracers.shutdown()
        meters.shutdown()
