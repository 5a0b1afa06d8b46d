"""Exporters that hang, raise or are slow: no run waits for them, what is lost is counted, and the end is bounded."""

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import anyio
import pytest

pytest.importorskip("opentelemetry.sdk", reason="needs the extra test-otel: nox -s tests-otel")

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult, SpanProcessor
from otel_export.exporting import Exported

import agentloop.otel
from agentloop import Agent, RunHooks, Runner, tool
from agentloop.testing import ScriptedModel, call, say

SPANS = 5
"""Spans of one run of `_run`."""
QUEUE, BATCH = 8, 4

pytestmark = [pytest.mark.real_clock, pytest.mark.slow]


class Exporter(SpanExporter):
    """Does *work* in each export; keeps the threads that exported, and how many spans came."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self.threads: set[int] = set()
        self.came = 0
        self.entered = threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.threads.add(threading.get_ident())
        self.came += len(spans)
        self.entered.set()
        self._work()
        return SpanExportResult.SUCCESS


def _hang_until(event: threading.Event) -> Callable[[], None]:
    def hang() -> None:
        event.wait(60)

    return hang


def _fail() -> None:
    raise ConnectionError("no collector")


def _be_slow() -> None:
    time.sleep(0.01)


@pytest.fixture
def released() -> Iterator[threading.Event]:
    """Lets exports that hang return; set at the end of the test."""
    event = threading.Event()
    yield event
    event.set()


@tool
async def look() -> str:
    """Look."""
    return "seen"


async def _run(exported: Exported) -> int:
    """Run once; return how many records the run has."""
    agent = Agent("a", model=ScriptedModel([[call("look")], say("done")]), tools=[look])
    result = await Runner.run(agent, "go", run_config=exported.config())
    assert result.final_output == "done"
    return len(result.records)


@pytest.mark.scenario("VI-03")
@pytest.mark.parametrize("fault", ["hangs", "raises", "is slow"])
async def test_no_step_of_a_run_waits_for_an_exporter(fault: str, released: threading.Event) -> None:
    """Its work is done in another thread, however it goes; what finds the queue full is dropped, and counted."""
    works = {"hangs": _hang_until(released), "raises": _fail, "is slow": _be_slow}
    exporter = Exporter(works[fault])
    own = InMemoryMetricReader()
    processor = BatchSpanProcessor(
        exporter,
        max_queue_size=QUEUE,
        max_export_batch_size=BATCH,
        schedule_delay_millis=10,
        meter_provider=MeterProvider([own], shutdown_on_exit=False),
    )
    exported = Exported(processor)
    records = {await _run(exported) for _ in range(10)}
    await anyio.to_thread.run_sync(exporter.entered.wait, 30)
    assert len(records) == 1
    assert len(exported.spans) == 10 * SPANS
    assert len(exporter.threads) == 1
    assert threading.get_ident() not in exporter.threads
    if fault == "hangs":
        assert exporter.came <= BATCH  # the first batch never came back
    began = time.monotonic()
    released.set()
    await anyio.to_thread.run_sync(exported.tracers.shutdown)
    assert time.monotonic() - began < 30
    assert exporter.came <= 10 * SPANS


@pytest.mark.scenario("VI-03")
async def test_dropped_spans_are_counted(monkeypatch: pytest.MonkeyPatch, released: threading.Event) -> None:
    """By the SDK's own metrics, where they are on: exported and dropped spans are all that ended."""
    monkeypatch.setenv("OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED", "true")
    exporter = Exporter(_hang_until(released))
    own = InMemoryMetricReader()
    processor = BatchSpanProcessor(
        exporter,
        max_queue_size=QUEUE,
        max_export_batch_size=BATCH,
        schedule_delay_millis=60_000,
        meter_provider=MeterProvider([own], shutdown_on_exit=False),
    )
    exported = Exported(processor)
    await _run(exported)  # one batch: the exporter takes it and hangs
    await anyio.to_thread.run_sync(exporter.entered.wait, 30)
    for _ in range(9):
        await _run(exported)
    counted = _count(own)
    assert sum(counted.values()) + QUEUE == 10 * SPANS
    assert counted["queue_full"] == 10 * SPANS - QUEUE - BATCH
    released.set()
    await anyio.to_thread.run_sync(exported.tracers.shutdown)
    assert exporter.came == BATCH + QUEUE


def _count(reader: InMemoryMetricReader) -> dict[str, int]:
    """Return how many spans the processor has handled, by the type of the error; `""` for those it has exported."""
    data = reader.get_metrics_data()
    assert data is not None
    metrics = [
        metric for resource in data.resource_metrics for scope in resource.scope_metrics for metric in scope.metrics
    ]
    [processed] = [metric for metric in metrics if metric.name == "otel.sdk.processor.span.processed"]
    points: Any = processed.data.data_points
    return {str((point.attributes or {}).get("error.type", "")): point.value for point in points}


@pytest.mark.scenario("VI-03")
async def test_shutdown_is_bounded_while_an_exporter_hangs(released: threading.Event) -> None:
    """It waits as long as it is told and gives up; a run after it is not exported, and doesn't fail."""
    exporter = Exporter(_hang_until(released))
    processor = BatchSpanProcessor(exporter, schedule_delay_millis=1)
    exported = Exported(processor)
    await _run(exported)
    await anyio.to_thread.run_sync(exporter.entered.wait, 30)
    began = time.monotonic()
    await anyio.to_thread.run_sync(processor._batch_processor.shutdown, 50)
    assert time.monotonic() - began < 20
    assert await _run(exported) > 0


@pytest.mark.scenario("VI-03")
async def test_a_processor_that_raises_fails_no_run(caplog: pytest.LogCaptureFixture) -> None:
    """As with any instrument: the error is logged once, and the spans that still can be are exported."""

    class Broken(SpanProcessor):
        def on_start(self, span: Any, parent_context: Any = None) -> None:
            if span.name.startswith("chat"):
                raise RuntimeError("processor")

        def on_end(self, span: ReadableSpan) -> None:
            if span.name.startswith("execute_tool"):
                raise RuntimeError("processor")

    exported = Exported(Broken())
    with caplog.at_level(logging.WARNING, "agentloop"):
        await _run(exported)
    assert len([record for record in caplog.records if "instrument" in record.getMessage()]) == 1
    assert [span.name for span in exported.spans] == [
        "invoke_workflow Agent workflow",
        "invoke_agent a",
        "execute_tool look",
    ]
    assert exported.instrument._writer._opened == {}
    assert len(exported.instrument._writer._live) == 0


async def test_a_span_is_current_no_more_when_a_processor_raises_at_its_end() -> None:
    """What the application does after a request is within the agent, not within the request."""

    class Broken(SpanProcessor):
        def on_end(self, span: ReadableSpan) -> None:
            if span.name.startswith("chat"):
                raise RuntimeError("processor")

    exported = Exported(Broken())

    class Hooks(RunHooks):
        async def on_agent_end(self, *_: Any) -> None:
            exported.application.start_span("hook").end()

    agent = Agent("a", model=ScriptedModel([say("done")]))
    await Runner.run(agent, "go", hooks=Hooks(), run_config=exported.config())
    assert exported.parent("hook") == "invoke_agent a"


async def test_no_span_is_held_after_runs_that_were_cut() -> None:
    """Runs that are cancelled end their spans too; nothing of them stays with the instrument."""
    exported = Exported()
    waiting = anyio.Event()

    @tool
    async def hang() -> str:
        """Hang."""
        waiting.set()
        await anyio.sleep_forever()
        return ""

    agent = Agent("a", model=ScriptedModel([[call("hang")]]), tools=[hang])
    async with anyio.create_task_group() as group:

        async def run() -> None:
            await Runner.run(agent, "go", run_config=exported.config())

        group.start_soon(run)
        await waiting.wait()
        group.cancel_scope.cancel()
    assert len(exported.instrument._writer._live) == 0
    assert len(exported.spans) == 4
    [cut] = [span for span in exported.spans if span.name == "execute_tool hang"]
    assert (cut.attributes or {})["agentloop.call.cancelled_by"] == "parent"
    assert (exported.spans[0].attributes or {})["agentloop.run.status"] == "cancelled"


async def test_a_span_costs_a_bounded_number_of_calls() -> None:
    """Of functions of the package, by the interpreter's own count: what a span costs here can't grow unnoticed."""
    exported = Exported()
    await _run(exported)  # what is made once
    folder = str(Path(agentloop.otel.__file__).parent)
    calls = 0

    def count(frame: FrameType, event: str, arg: object) -> None:
        nonlocal calls
        calls += event == "call" and frame.f_code.co_filename.startswith(folder)

    before = len(exported.spans)
    sys.setprofile(count)
    try:
        await _run(exported)
    finally:
        sys.setprofile(None)
    assert len(exported.spans) - before == SPANS
    assert 5 * SPANS < calls <= 34 * SPANS
