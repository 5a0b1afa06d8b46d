"""Runs that are exported over HTTP, as a collector gets them."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

pytest.importorskip("opentelemetry.sdk", reason="needs the extra test-otel: nox -s tests-otel")

from kit.examples import shown_outputs
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from otel_export.receiver import receiving

from agentloop import Agent, RunConfig, Runner, tool
from agentloop.otel import OTelInstrument
from agentloop.testing import ScriptedModel, call, say
from agentloop.usage import RequestUsage

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "opentelemetry.md"


@tool
async def find(number: int) -> str:
    """Find."""
    return f"found {number}"


@pytest.mark.slow
@pytest.mark.real_clock
async def test_a_run_arrives_whole_at_a_collector() -> None:
    """Its tree with ids and times, attributes in the protobuf's types, and the metrics; a batch of 100 runs as well."""
    with receiving() as receiver:
        tracers = TracerProvider(shutdown_on_exit=False)
        tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=f"{receiver.url}/v1/traces")))
        reader = PeriodicExportingMetricReader(OTLPMetricExporter(endpoint=f"{receiver.url}/v1/metrics"))
        meters = MeterProvider([reader], shutdown_on_exit=False)
        config = RunConfig(instruments=[OTelInstrument(tracers, meters)])
        usage = RequestUsage(input_tokens=5, output_tokens=2, total_tokens=7)

        async def run() -> None:
            script = ScriptedModel([[call("find", {"number": 1})], say("done", usage)])
            await Runner.run(Agent("a", model=script, tools=[find]), "go", run_config=config)

        await run()
        await anyio.to_thread.run_sync(tracers.force_flush)
        assert receiver.tree() == [
            "invoke_workflow Agent workflow",
            "  invoke_agent a",
            "    chat ScriptedModel",
            "    execute_tool find",
            "    chat ScriptedModel",
        ]
        last: dict[str, Any] = {found.key: found.value for found in receiver.spans[-3].attributes}
        assert last["gen_ai.usage.input_tokens"].int_value == 5
        assert last["gen_ai.response.time_to_first_chunk"].double_value >= 0
        assert len({span.trace_id for span in receiver.spans}) == 1
        assert all(0 < span.start_time_unix_nano <= span.end_time_unix_nano for span in receiver.spans)
        async with anyio.create_task_group() as group:
            for _ in range(99):
                group.start_soon(run)
        await anyio.to_thread.run_sync(tracers.shutdown)
        await anyio.to_thread.run_sync(meters.shutdown)
        assert len(receiver.spans) == 500
        assert {metric.name for metric in receiver.metrics} == {
            "agentloop.context.tokens",
            "gen_ai.client.operation.duration",
            "gen_ai.client.operation.time_to_first_chunk",
            "gen_ai.client.token.usage",
            "gen_ai.execute_tool.duration",
            "gen_ai.invoke_agent.duration",
            "gen_ai.workflow.duration",
        }


@pytest.mark.slow
def test_program_of_the_page_prints_and_exports_what_it_says(tmp_path: Path) -> None:
    """As a reader would copy it, with the global providers, to the endpoint that the environment names."""
    text = PAGE.read_text(encoding="utf-8")
    program = "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
    printed, exported = re.findall(r"```text\n(.*?)```", text, re.DOTALL)
    (tmp_path / "app.py").write_text(program, encoding="utf-8")
    with receiving() as receiver:
        done = subprocess.run(
            [sys.executable, "app.py"],
            cwd=tmp_path,
            env={**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url},
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
        )
        assert (done.stdout, done.stderr, done.returncode) == (printed, "", 0)
        assert receiver.tree() == exported.splitlines()
        assert receiver.metrics


def test_every_attribute_and_metric_that_is_exported_is_on_the_page() -> None:
    """So that a reader finds what a backend shows."""
    package = Path(__file__).parents[2] / "agentloop" / "otel"
    source = "".join(path.read_text(encoding="utf-8") for path in package.glob("*.py"))
    names = set(re.findall(r'"((?:gen_ai|agentloop|server|error|http)\.[a-z_.]+)"', source))
    assert len(names) > 30
    page = PAGE.read_text(encoding="utf-8")
    assert {name for name in names if f"`{name}`" not in page} == set()


@pytest.mark.slow
def test_the_example_prints_what_the_gallery_shows() -> None:
    """A program of its own, as a reader starts it."""
    program = Path(__file__).parents[2] / "examples" / "traced_run.py"
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=50, check=False)
    assert (done.stderr, done.returncode) == ("", 0)
    assert [done.stdout] == shown_outputs("traced_run")
