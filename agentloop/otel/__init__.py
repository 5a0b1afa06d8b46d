"""Runs as spans and metrics of OpenTelemetry (the extra `otel`), by its semantic conventions for generative AI.

`OTelInstrument` is an instrument for `RunConfig.instruments`. It uses the API of OpenTelemetry only: which spans are
sampled, queued and exported is up to the provider that the application gives, or the global one. The API is imported
when an instrument is made.
"""

from agentloop.otel._instrument import OTelInstrument

__all__ = ["OTelInstrument"]
