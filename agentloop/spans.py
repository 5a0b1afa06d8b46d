"""Spans: a run as a tree of timed pieces of work, for instruments.

A span is made from the records of a run, so it holds no fact that the log does not. Inside a tool body `current_span()`
is the span of the call, for code that passes it to other systems. Does not know about records or exporters.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, TypeAlias

import msgspec

from agentloop._common.errors import UserValueError

SpanKind: TypeAlias = Literal[
    "run", "agent", "turn", "model", "tool", "hosted_tool", "guardrail", "handoff", "compaction"
]


class Trace(msgspec.Struct, kw_only=True, eq=False, frozen=True):
    """A group of spans: those of one run, or of all runs inside a `trace` block. `metadata` is the application's."""

    workflow_name: str = "Agent workflow"
    trace_id: str = msgspec.field(default_factory=lambda: os.urandom(16).hex())
    group_id: str | None = None
    metadata: Mapping[str, Any] = {}


class Span(msgspec.Struct, kw_only=True, eq=False, weakref=True):
    """One piece of work. Times are wall-clock seconds; `ended_at` is None while it lasts.

    `agentloop.tracing` makes and mutates it; instruments only read it. `error` is a short text. Details that may be
    sensitive are in `data`, and only if the run allows them.
    """

    trace: Trace
    kind: SpanKind
    name: str
    started_at: float
    parent: Span | None = None
    path: tuple[str, ...] = ()
    span_id: str = msgspec.field(default_factory=lambda: os.urandom(8).hex())
    ended_at: float | None = None
    error: str | None = None
    data: dict[str, Any] = {}


_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


class RunOpening(msgspec.Struct, kw_only=True, eq=False):
    """The start of a run segment, right before its first record: for an instrument that writes to a tracing system.

    `started_at` is in wall-clock seconds. `earlier` is the `traceparent` of the run segment before, from the log; None
    for a new run, and where no instrument told it. `traceparent` is that of this segment, once one has.

    `agent` is the `Agent` that the segment begins with, and `config` the `RunConfig` of the run. Spans don't hold
    definitions, so an instrument that wants a tool's description or the settings of requests reads them here.
    """

    trace: Trace
    run_id: str
    started_at: float
    earlier: str | None = None
    traceparent: str | None = None
    agent: Any = None
    config: Any = None

    def identify(self, traceparent: str) -> None:
        """Name the span of this run segment in the tracing system: its first record keeps the name, for later ones.

        Raises:
            UserValueError: *traceparent* isn't written as in W3C Trace Context.
        """
        if not _TRACEPARENT.fullmatch(traceparent):
            raise UserValueError(f"traceparent: not as W3C Trace Context writes it: {traceparent!r}")
        self.traceparent = traceparent


_span: ContextVar[Span | None] = ContextVar("agentloop_span", default=None)
_trace: ContextVar[Trace | None] = ContextVar("agentloop_trace", default=None)


def current_span() -> Span | None:
    """Return the span of the tool call this code runs in, or None.

    Example:
        from agentloop import current_span

        print(current_span())  # None
    """
    return _span.get()


def set_current_span(span: Span | None) -> None:
    """Make *span* the current span of this task's context."""
    _span.set(span)


def current_trace() -> Trace | None:
    """Return the trace of the enclosing `trace` block, or None."""
    return _trace.get()


@contextmanager
def trace(
    workflow_name: str, *, group_id: str | None = None, metadata: Mapping[str, Any] | None = None
) -> Iterator[Trace]:
    """Put the runs of the block into one trace, which the end of the block ends, not the end of a run.

    Example:
        from agentloop import Agent, Runner, trace
        from agentloop.testing import ScriptedModel, say

        agent = Agent("a", model=ScriptedModel([say("one"), say("two")]))
        with trace("two questions", metadata={"user": "ada"}) as both:
            Runner.run_sync(agent, "1")
            Runner.run_sync(agent, "2")
        print(both.workflow_name)  # two questions
    """
    opened = Trace(workflow_name=workflow_name, group_id=group_id, metadata=dict(metadata or {}))
    token = _trace.set(opened)
    try:
        yield opened
    finally:
        _trace.reset(token)
