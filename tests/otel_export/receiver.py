"""A receiver of OTLP/HTTP on this machine: it reads the protobuf of traces and metrics and keeps their names."""

import gzip
import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Receiver:
    """What came: the spans and metrics as their protobuf messages. `url` is the base of its endpoints."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.metrics: list[Any] = []
        self.url = ""

    def take(self, path: str, body: bytes) -> bool:
        """Keep the contents of one request; return False if there is no such endpoint."""
        if path == "/v1/traces":
            for traced in ExportTraceServiceRequest.FromString(body).resource_spans:
                self.spans += [span for scope in traced.scope_spans for span in scope.spans]
        elif path == "/v1/metrics":
            for measured in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                self.metrics += [metric for scope in measured.scope_metrics for metric in scope.metrics]
        else:
            return False
        return True

    def tree(self) -> list[str]:
        """Return the names of all spans, indented by their depth, in the order of their starts."""
        by_id = {span.span_id: span for span in self.spans}
        lines = []
        for span in sorted(self.spans, key=lambda span: (span.start_time_unix_nano, -span.end_time_unix_nano)):
            depth, above = 0, by_id.get(span.parent_span_id)
            while above is not None:
                depth, above = depth + 1, by_id.get(above.parent_span_id)
            lines.append("  " * depth + span.name)
        return lines


@contextmanager
def receiving() -> Iterator[Receiver]:
    """Give a receiver that listens for as long as the block lasts."""
    receiver = Receiver()

    class Handler(http.server.BaseHTTPRequestHandler):
        timeout = 10

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            self.send_response(200 if receiver.take(self.path, body) else 404)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: the test reads what came."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    receiver.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
