"""What enters a run from a model fits the log: counts of 64 bits, finite times. The error names the place."""

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.agents import Run

from agentloop import Agent, ModelBehaviorError, RequestUsage, record_from_json, to_json
from agentloop import records as r
from agentloop._engine.model_call import _COUNTS, _check_counts
from agentloop.abc import Model
from agentloop.exceptions import ModelTransportError
from agentloop.items import AssistantMessage
from agentloop.model_events import ModelEvent, ModelRequest, ResponseDone


class Scripted(Model):
    """A model that reports *usage* with its answer, or fails with *error*."""

    def __init__(self, usage: RequestUsage | None = None, error: Exception | None = None) -> None:
        self.usage = usage
        self.error = error

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> Any:  # type: ignore[override]
        """Give the answer."""

        async def events() -> AsyncIterator[ModelEvent]:
            if self.error is not None:
                raise self.error
            yield ResponseDone((AssistantMessage("done"),), self.usage)

        yield events()


@pytest.mark.parametrize("count", [2**63, -(2**63) - 1, 10**40])
async def test_a_count_beyond_64_bits_ends_the_run(run_mode: Run, count: int) -> None:
    """No record holds it; the error names the count."""
    with pytest.raises(ModelBehaviorError, match=r"usage\.output_tokens doesn't fit 64 bits") as caught:
        await run_mode(Agent("guide", model=Scripted(RequestUsage(output_tokens=count))), "go")
    assert caught.value.run_data is not None
    assert not [one for one in caught.value.run_data.records if isinstance(one, r.ModelResponded)]


async def test_the_largest_count_passes(run_mode: Run) -> None:
    """The limit itself is a count."""
    done = await run_mode(Agent("guide", model=Scripted(RequestUsage(input_tokens=2**63 - 1))), "go")
    assert done.usage.input_tokens == 2**63 - 1


@given(st.sampled_from(_COUNTS), st.integers() | st.integers(2**63 - 2, 2**63 + 2) | st.integers(-(2**63) - 2, 0))
def test_every_count_that_passes_is_stored_as_it_is(name: str, count: int) -> None:
    """A count is refused by its name, or comes back from the log's JSON."""
    usage = RequestUsage(**{name: count})
    if count.bit_length() > 63 and count != -(2**63):
        with pytest.raises(ModelBehaviorError, match=name):
            _check_counts(usage)
        return
    _check_counts(usage)
    failed = r.ModelFailed((), 1, 2.0, "error", usage=usage)
    assert to_json(failed)["usage"].get(name, 0) == count
    assert record_from_json(to_json(failed)) == failed


@pytest.mark.parametrize(("seconds", "stored"), [(math.inf, 3600.0), (-math.inf, 0.0), (math.nan, None), (2.5, 2.5)])
async def test_a_time_to_wait_is_finite_in_the_log(run_mode: Run, seconds: float, stored: float | None) -> None:
    """What a server asks for without an end is recorded as what a retry makes of it."""
    error = ModelTransportError("no", status=400, retry_after=seconds, should_retry=False)
    with pytest.raises(ModelTransportError) as caught:
        await run_mode(Agent("guide", model=Scripted(error=error)), "go")
    assert caught.value.run_data is not None
    [failed] = [one for one in caught.value.run_data.records if isinstance(one, r.ModelFailed)]
    assert failed.retry_after == stored
