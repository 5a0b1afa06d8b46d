"""A run within a web request, exported to OpenTelemetry: prints its spans as a tree.

`python examples/traced_run.py` needs the extra `otel` and the package opentelemetry-sdk. An application has an exporter
to its collector in place of the one that keeps the spans in memory.
"""

import anyio
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from agentloop import Agent, RunConfig, Runner, ToolExecution, TracingSettings, tool
from agentloop.otel import OTelInstrument
from agentloop.testing import ScriptedModel, call, say
from agentloop.usage import RequestUsage

spans = InMemorySpanExporter()
tracers = TracerProvider()
tracers.add_span_processor(BatchSpanProcessor(spans))
application = tracers.get_tracer("trips")


@tool
async def find_trains(place: str) -> str:
    """Find the trains of tomorrow morning."""
    with application.start_as_current_span("SELECT trains"):
        return f"9:04 and 11:04 to {place}"


@tool
def find_weather(place: str) -> str:
    """Find tomorrow's weather. It has no `async`, so it runs in a thread."""
    with application.start_as_current_span("GET forecast"):
        return f"rain in {place}"


def planner() -> Agent:
    """Return the agent. A real one names a model; this one follows a script."""
    asked = RequestUsage(input_tokens=12, output_tokens=6, total_tokens=18)
    answered = RequestUsage(input_tokens=40, output_tokens=9, total_tokens=49)
    place = {"place": "Bern"}
    script = ScriptedModel(
        [
            [say("I'll look.", asked), call("find_trains", place), call("find_weather", place)],
            say("Take the 9:04, and an umbrella.", answered),
        ]
    )
    # One tool after the other, so that the spans are always printed in one order.
    return Agent("planner", model=script, tools=[find_trains, find_weather])


def print_tree(found: list[ReadableSpan]) -> None:
    """Print each span below the one that was current when it began."""
    by_id = {span.context.span_id: span for span in found}

    def depth(span: ReadableSpan) -> int:
        return 0 if span.parent is None else 1 + depth(by_id[span.parent.span_id])

    def path(span: ReadableSpan) -> list[int]:
        above = [] if span.parent is None else path(by_id[span.parent.span_id])
        return [*above, span.start_time]

    for span in sorted(found, key=path):
        tokens = [span.attributes.get(f"gen_ai.usage.{kind}_tokens") for kind in ("input", "output")]
        used = "" if tokens[0] is None else f" ({tokens[0]} tokens in, {tokens[1]} out)"
        print("  " * depth(span) + span.name + used)


async def main() -> None:
    """Answer one request, then print what was exported."""
    instrument = OTelInstrument(tracers, MeterProvider())
    config = RunConfig(
        instruments=[instrument],
        tracing=TracingSettings(workflow_name="trips"),
        tool_execution=ToolExecution(mode="sequential"),
    )
    with application.start_as_current_span("GET /trips"):
        result = await Runner.run(planner(), "How do I get to Bern?", run_config=config)
    await anyio.to_thread.run_sync(tracers.force_flush)
    print_tree(list(spans.get_finished_spans()))
    print(result.final_output)


if __name__ == "__main__":
    anyio.run(main)
