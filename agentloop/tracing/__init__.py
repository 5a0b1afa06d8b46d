"""Spans of runs, folded from records."""

from agentloop.spans import Span, Trace, current_span, current_trace, trace
from agentloop.tracing.fold import SpanFold

__all__ = ["Span", "SpanFold", "Trace", "current_span", "current_trace", "trace"]
