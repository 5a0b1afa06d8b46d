"""What model requests cost, in tokens. Each request counts exactly once, whatever became of it."""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class RequestUsage:
    """Tokens of one model request. `complete` is False when the response was cut before its last event."""

    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    model: str | None = None
    complete: bool = True


@attrs.frozen(kw_only=True)
class Usage:
    """Sums over requests. `requests` counts failed attempts too; `entries` lists requests that reported tokens."""

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    entries: tuple[RequestUsage, ...] = ()

    def __add__(self, other: Usage) -> Usage:
        if not isinstance(other, Usage):
            return NotImplemented
        return Usage(
            requests=self.requests + other.requests,
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            total_tokens=self.total_tokens + other.total_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            reasoning_tokens=self.reasoning_tokens + other.reasoning_tokens,
            entries=self.entries + other.entries,
        )
