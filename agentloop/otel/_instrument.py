"""The public instrument. Imports nothing of OpenTelemetry before one is made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from agentloop._common.errors import UserError, UserValueError
from agentloop._common.extras import describe_missing
from agentloop.abc import Instrument
from agentloop.events import CustomEvent
from agentloop.spans import RunOpening, Span

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider


_CONTENTS: tuple[object, ...] = (True, False, "full")


class OTelInstrument(Instrument):
    """An instrument that writes runs to OpenTelemetry: spans, and metrics of model calls, tools and agents.

    One may observe any number of runs at once, in any threads. Nothing here waits or exports: spans go to the
    processors of the provider as they end. The span of a tool is the current one while its body runs, that of a request
    while the model answers, and that of an agent while its hooks and guardrails run, so that spans which the
    application or another library makes there are their children.

    A run's own span is a child of the span that is current where the run begins, else it begins a trace. It links to
    the span of the run segment before, whose ids are in the log.

    Args:
        tracer_provider: The provider of spans; the global one if it is None.
        meter_provider: The provider of metrics; the global one if it is None.
        content: True to export what the conversation holds, too: input, answers, arguments, outputs and messages of
            errors, except for values that a tool marks secret. `TracingSettings.include_sensitive_data` has to allow it
            as well, as it does by default. `"full"` also exports, with each request and agent, the whole input,
            instructions and tool definitions; the size grows with the square of the turns.

    Raises:
        UserError: the extra `otel` is not installed.
        UserValueError: `content` is none of these.
    """

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        *,
        content: bool | Literal["full"] = False,
    ) -> None:
        if content not in _CONTENTS:
            raise UserValueError(f"content: expected True, False or 'full', got {content!r}")
        self.wants_requests: bool = content == "full"
        try:
            from agentloop.otel._metrics import Metrics
            from agentloop.otel._span_writer import SpanWriter
        except ModuleNotFoundError as error:
            if not (error.name or "").startswith("opentelemetry"):
                raise
            raise UserError(describe_missing("OTelInstrument", "otel")) from None
        self._writer = SpanWriter(tracer_provider, content=content)
        self._metrics = Metrics(meter_provider)

    def on_run_open(self, opening: RunOpening) -> None:
        """Begin the span of a run segment, so that the log has its ids."""
        self._writer.open_run(opening)

    def on_span_start(self, span: Span) -> None:
        """Begin the span of a piece of work, and make it the current one where it is worked."""
        self._writer.start(span)

    def on_custom_event(self, event: CustomEvent, span: Span | None) -> None:
        """Add an event to the span of the call that emits it."""
        if span is not None:
            self._writer.add_event(span, event)

    def on_span_end(self, span: Span) -> None:
        """End the span of a piece of work, and measure it."""
        context = self._writer.end(span)
        if context is not None:
            self._metrics.measure(span, context)
