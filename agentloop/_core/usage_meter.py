"""The sums of the usage of a run's requests."""

from __future__ import annotations

from collections.abc import Sequence

from agentloop._core.empty_containers import append_to
from agentloop.usage import RequestUsage, Usage


class UsageMeter:
    """Sums of usage, owned by one fold and grown in place; `total` returns them as a value."""

    requests: int
    input_tokens: int
    output_tokens: int
    total_tokens: int
    cached_tokens: int
    cache_write_tokens: int
    reasoning_tokens: int
    audio_tokens: int
    entries: Sequence[RequestUsage]

    __slots__ = tuple(__annotations__)

    def __init__(self) -> None:
        self.requests = self.input_tokens = self.output_tokens = self.total_tokens = 0
        self.cached_tokens = self.cache_write_tokens = self.reasoning_tokens = self.audio_tokens = 0
        self.entries = ()

    def add(self, usage: RequestUsage | None) -> None:
        """Count one request, or the attempts that *usage* tells. Without *usage* only `requests` grows."""
        if usage is None:
            self.requests += 1
            return
        self.requests += usage.attempts
        self.input_tokens += usage.input_tokens
        self.output_tokens += usage.output_tokens
        self.total_tokens += usage.total_tokens
        self.cached_tokens += usage.cached_tokens
        self.cache_write_tokens += usage.cache_write_tokens
        self.reasoning_tokens += usage.reasoning_tokens
        self.audio_tokens += usage.audio_tokens
        if usage.total_tokens or usage.input_tokens or usage.output_tokens or not usage.complete:
            self.entries = append_to(self.entries, usage)

    def total(self) -> Usage:
        """Return the sums as a detached value."""
        return Usage(
            requests=self.requests,
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            total_tokens=self.total_tokens,
            cached_tokens=self.cached_tokens,
            cache_write_tokens=self.cache_write_tokens,
            reasoning_tokens=self.reasoning_tokens,
            audio_tokens=self.audio_tokens,
            entries=tuple(self.entries),
        )
