"""The use of model requests, in tokens. Each request counts exactly once, also if it failed or was cut."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from decimal import Decimal
from typing import Any, ClassVar

from msgspec.structs import force_setattr

from agentloop._common.values import NotedValue, Value


class RequestUsage(NotedValue, frozen=True, kw_only=True, gc=False):
    """Tokens of one model request. `complete` is False when the response was cut before its last event.

    `cached_tokens` were read from the provider's cache of prompts and `cache_write_tokens` written to it: both are part
    of `input_tokens`. `reasoning_tokens` are part of `output_tokens`; `audio_tokens` are those of both directions.

    `attempts` is the number of requests behind the one answer: more than 1 if a model such as `FallbackModel` asked
    others first, which failed. Their tokens are unknown, so they aren't in the other counts.

    `raw` is a copy of the provider's own data: a count that the provider left out is absent there and 0 here.

    Example:
        from agentloop import RequestUsage

        print(RequestUsage(input_tokens=10, output_tokens=2).output_tokens)  # 2
    """

    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    audio_tokens: int = 0
    model: str | None = None
    complete: bool = True
    attempts: int = 1
    raw: Mapping[Any, Any] | None = None

    _notes: ClassVar[frozenset[str]] = frozenset({"raw"})
    _unshown: ClassVar[frozenset[str]] = _notes

    def __post_init__(self) -> None:
        if self.raw is not None:
            force_setattr(self, "raw", deepcopy(self.raw))


class Usage(Value, frozen=True, kw_only=True, gc=False):
    """Sums over requests. `requests` counts failed attempts, too, also those of a `FallbackModel` that
    has answered; `entries` lists the requests that reported tokens. `cost` is the price of the requests, with the fees
    for tools that the provider ran (`RunConfig.price`, `RunConfig.hosted_price`); None where nothing has a price.
    What calls cost (`tool(cost=…)`) is in `RunResult.cost` only."""

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    audio_tokens: int = 0
    entries: tuple[RequestUsage, ...] = ()
    cost: Decimal | None = None

    def __add__(self, other: Usage) -> Usage:
        if not isinstance(other, Usage):
            return NotImplemented
        return Usage(
            requests=self.requests + other.requests,
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            total_tokens=self.total_tokens + other.total_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            cache_write_tokens=self.cache_write_tokens + other.cache_write_tokens,
            reasoning_tokens=self.reasoning_tokens + other.reasoning_tokens,
            audio_tokens=self.audio_tokens + other.audio_tokens,
            entries=self.entries + other.entries,
            cost=self.cost if other.cost is None else other.cost + (self.cost or 0),
        )
