"""Exported spans, made of agentloop's, and the context in which each is the current one.

`SpanFold` has decided when a span starts and ends and what is above it; here it gets a counterpart in OpenTelemetry.
Spans of turns, and those of nested runs, which say nothing that the agent's below them doesn't, have none: what is
below them is below what is above them.

A span becomes current in the task whose record opens it: a call's own task for a tool, in which the body runs and
whose context is copied to a worker thread; the task that asks the model for a request; the run's own task for runs and
agents. These tasks have their own contexts, so the caller of the run sees no change. At its end the span before
becomes current again, if the same task ends it; another task has a context in which it never was current.

Facts: `_live`, the exported span of each span under way; it refers to them weakly, as a run whose event loop is closed
never ends its spans. `_opened`: spans of run segments whose first record is about to be appended. `_defined`: what each
run segment was started with, by its outermost span, as long as this span lives.

Decisions:

`agentloop.otel` is an instrument over the API of OpenTelemetry, as an extra: a run's tree is what tracing backends
are made for, and its context is what joins a run with the request around it and the queries within its tools. The
extra brings the API only, as the project asks of libraries: the application has chosen an SDK, a sampler and
exporters, and a library that brings its own overrules it. Queue, thread, retries, drops and shutdown are the SDK's
(`BatchSpanProcessor`); nothing of them is written here.

Its spans are those of `SpanFold`, folded from records. Rejected: spans made by calls in the engine, or by wrapped
models and tools. The engine would then have two accounts of a run that could differ; a resumed run, a nested one and
a streamed one would each need calls of their own; and a wrapper doesn't know why a call was cancelled. The fold had
to learn what the conventions want (ids, attempts, the answer's facts), which other instruments now have too.

A span is current while its work is done, because the record that opens it is appended in the task that does the work:
`CallStarted` in the call's own task, `ModelRequested` in the one that asks. The instrument sets the context variable
there. Rejected: a wrapper around each body (a frame and a context manager in every call, for users without tracing
too), and a second context variable to translate from, which other libraries don't read.

A resumed run is in a new trace, or in that of the request that resumes it, and links to the segment before. Rejected:
one trace for all segments. A pause may take weeks; backends close a trace after minutes, and a sampler decided on it
long ago. The link needs ids that another process made. They are in the log (`RunStarted.traceparent`), told by the
instrument right before the first record. Rejected: ids derived from the run's id. The SDK lets an application only
choose how ids are made, so the links would be wrong for all that don't; and within a request the trace's id is the
request's.

Turns and nested runs have no exported spans: they hold nothing that the spans around or below them don't, and each
span has a price. Content is off by default, messages of errors included, as an error repeats what it was about. A
request's history isn't exported with plain content: it grows with the square of the turns. With "full" it is, because
tools that evaluate or repeat single requests read nothing but its span.

The names of the conventions are written out. Their package marks every one as deprecated: they have moved to a
repository that has no package yet. A test compares ours with it.
"""

from __future__ import annotations

from typing import NamedTuple
from weakref import WeakKeyDictionary

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, SpanKind, Status, StatusCode, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from agentloop._common.version import __version__
from agentloop.events import CustomEvent
from agentloop.otel import _attributes as a
from agentloop.otel._definitions import RunDefinitions
from agentloop.otel._metrics import SCOPE
from agentloop.spans import RunOpening, Span

_PROPAGATOR = TraceContextTextMapPropagator()
_MOMENTARY = ("compaction", "guardrail", "handoff", "hosted_tool")
"""Kinds whose spans start and end in one step: no code runs in between."""


class _Live(NamedTuple):
    """An exported span under way, the context in which it is current, and the one that was current before."""

    span: trace.Span
    context: Context
    before: Context


class _Opened(NamedTuple):
    live: _Live
    defined: RunDefinitions | None


class SpanWriter:
    """Writes spans to a provider. Called by the tasks of runs, in any thread; never waits."""

    def __init__(self, provider: TracerProvider | None, *, content: a.Content) -> None:
        self._tracer = trace.get_tracer(SCOPE, __version__, tracer_provider=provider)
        self._content: a.Content = content
        self._live: WeakKeyDictionary[Span, _Live] = WeakKeyDictionary()
        self._opened: dict[str, _Opened] = {}
        self._defined: WeakKeyDictionary[Span, RunDefinitions] = WeakKeyDictionary()

    def open_run(self, opening: RunOpening) -> None:
        """Start the exported span of a run segment and tell its ids to the log."""
        run = Span(
            trace=opening.trace,
            kind="run",
            name=opening.trace.workflow_name,
            started_at=opening.started_at,
            data={"run_id": opening.run_id},
        )
        live = self._start(run, contexts.get_current(), _link_to(opening.earlier))
        self._opened[opening.run_id] = _Opened(live, RunDefinitions.of(opening))
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier, live.context)
        if opening.traceparent is None and "traceparent" in carrier:  # there is none without an SDK
            opening.identify(carrier["traceparent"])

    def start(self, span: Span) -> None:
        """Start the exported span of *span*, and make it current, unless it has none."""
        if _is_left_out(span):
            return
        opened = self._opened.pop(span.data.get("run_id", ""), None) if span.kind == "run" else None
        if opened is None:
            live = self._start(span, self._find_around(span))
        else:
            live = opened.live
            live.span.set_attributes(a.list_start(span))
            if opened.defined is not None:
                self._defined[span] = opened.defined
        self._live[span] = live._replace(before=contexts.get_current())
        if span.kind not in _MOMENTARY:
            contexts.attach(live.context)

    def add_event(self, span: Span, event: CustomEvent) -> None:
        """Add a custom event to the exported span of *span*; its value is content."""
        if (live := self._live.get(span)) is not None:
            live.span.add_event("agentloop.custom_event", a.list_custom(span, event) if self._content else None)

    def end(self, span: Span) -> Context | None:
        """End the exported span of *span*, and return the context that has it; None if there is none.

        There is none of a span that began in another process, as in a workflow of Temporal.
        """
        live = self._live.pop(span, None)
        if live is None:
            return None
        live.span.set_attributes(a.list_end(span, content=self._content))
        if span.error is not None or "error_type" in span.data:
            # The conventions want no description of an error whose type says it all; ours may repeat content.
            live.span.set_status(Status(StatusCode.ERROR, span.error if self._content else None))
        try:
            live.span.end(None if span.ended_at is None else _to_nanoseconds(span.ended_at))
        finally:  # a processor may raise
            if contexts.get_current() is live.context:
                contexts.attach(live.before)
        return live.context

    def _start(self, span: Span, around: Context, links: list[Link] | None = None) -> _Live:
        started = self._tracer.start_span(
            a.name_span(span),
            around,
            SpanKind.CLIENT if span.kind == "model" else SpanKind.INTERNAL,
            attributes=a.list_start(span, self._defined.get(a.find_root(span))),
            links=links,
            start_time=_to_nanoseconds(span.started_at),
        )
        return _Live(started, trace.set_span_in_context(started, around), around)

    def _find_around(self, span: Span) -> Context:
        """Return the context around *span*: that of the nearest span above it, with the baggage that is current."""
        above = span.parent
        while above is not None:
            if (live := self._live.get(above)) is not None:
                return trace.set_span_in_context(live.span, contexts.get_current())
            above = above.parent
        return contexts.get_current()


def _is_left_out(span: Span) -> bool:
    return span.kind == "turn" or (span.kind == "run" and span.parent is not None)


def _to_nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)


def _link_to(traceparent: str | None) -> list[Link]:
    """Return a link to the span named by *traceparent*; none without a name, or if it isn't one."""
    if traceparent is None:
        return []
    found = trace.get_current_span(_PROPAGATOR.extract({"traceparent": traceparent}, Context()))
    earlier = found.get_span_context()
    return [Link(earlier, {"agentloop.link": "earlier_run_segment"})] if earlier.is_valid else []
