"""Runs as spans and metrics of OpenTelemetry (the extra `otel`), by its semantic conventions for generative AI.

`OTelInstrument` is an instrument for `RunConfig.instruments`. It uses the API of OpenTelemetry only: which spans are
sampled, queued and exported is up to the provider that the application gives, or the global one. The API is imported
when an instrument is made. `measure_store` adds the metrics of a `PostgresStore`.
"""

from agentloop.otel._instrument import OTelInstrument
from agentloop.otel._store_metrics import measure_store

__all__ = ["OTelInstrument", "measure_store"]
