"""What servers say about their limits in the heads of answers, and the limits that a model is given."""

from typing import Any

import httpx
import pytest

from agentloop import Agent, Capacity, Rate, RunConfig, Runner, TokenRate
from agentloop.exceptions import UserTypeError
from agentloop.model_events import RateState
from agentloop.models import AnthropicModel, OpenAIChatModel, OpenAIResponsesModel
from agentloop.models._refusals import read_rates

NOW = 1_700_000_000.0  # 2023-11-14T22:13:20Z


@pytest.mark.scenario("LM-03")
@pytest.mark.parametrize(
    ("headers", "state"),
    [
        ({}, RateState()),
        (
            {
                "x-ratelimit-remaining-requests": "59",
                "x-ratelimit-reset-requests": "1s",
                "x-ratelimit-remaining-tokens": "149984",
                "x-ratelimit-reset-tokens": "6m0.5s",
            },
            RateState(requests=59, requests_reset=1.0, tokens=149_984, tokens_reset=360.5),
        ),
        (
            {
                "anthropic-ratelimit-requests-remaining": "0",
                "anthropic-ratelimit-requests-reset": "2023-11-14T22:14:20Z",
                "anthropic-ratelimit-tokens-remaining": "10",
                "anthropic-ratelimit-tokens-reset": "2023-11-14T22:13:10Z",
            },
            RateState(requests=0, requests_reset=60.0, tokens=10, tokens_reset=0.0),
        ),
        (
            {"x-ratelimit-remaining-requests": "3", "x-ratelimit-reset-requests": "120ms"},
            RateState(requests=3, requests_reset=0.12),
        ),
        (
            {"x-ratelimit-remaining-requests": "3", "x-ratelimit-reset-requests": "7"},
            RateState(requests=3, requests_reset=7.0),
        ),
        (
            {"x-ratelimit-remaining-requests": "3", "x-ratelimit-reset-requests": "9d"},
            RateState(requests=3, requests_reset=3600.0),
        ),
        ({"x-ratelimit-remaining-requests": "many", "x-ratelimit-reset-requests": "soon"}, RateState()),
        ({"x-ratelimit-reset-requests": "1.2.3s"}, RateState(requests_reset=0.0)),
        ({"x-ratelimit-reset-tokens": "2023-11-14T22:13:25"}, RateState(tokens_reset=5.0)),
    ],
)
def test_the_headers_of_vendors_are_read(headers: dict[str, str], state: RateState) -> None:
    """Numbers, durations and times; nonsense counts as silence."""
    assert read_rates(headers, NOW) == state


@pytest.mark.scenario("LM-03")
async def test_the_head_of_an_answer_reaches_the_limits() -> None:
    """One that says "none left" leaves no room; a model without limits isn't told."""
    body = '{"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}]}'
    head = {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "50s"}
    head["content-type"] = "application/json"
    transport = httpx.MockTransport(lambda request: httpx.Response(200, content=body, headers=head))
    rate = Rate(10, per=60)
    async with httpx.AsyncClient(transport=transport) as client:
        options: Any = {"base_url": "http://server.test/v1", "http_client": client}
        await Runner.run(Agent("a", model=OpenAIChatModel("m", limits=rate, **options)), "go")
        assert rate.statistics().started_in_window == 10
        await Runner.run(Agent("a", model=OpenAIChatModel("m", **options)), "go")
        unused = Rate(10, per=60)
        config = RunConfig(model_limits=unused)
        await Runner.run(Agent("a", model=OpenAIChatModel("m", **options)), "go", run_config=config)
        assert unused.statistics().started_in_window == 10


@pytest.mark.scenario("LM-03")
@pytest.mark.parametrize("make", [OpenAIChatModel, OpenAIResponsesModel, AnthropicModel])
def test_each_model_takes_limits(make: Any) -> None:
    """One or several; anything else is named."""
    one, two = Capacity(3), TokenRate(1000)
    assert make("m", limits=one).limits == (one,)
    assert make("m", limits=[one, two]).limits == (one, two)
    assert make("m").limits == ()
    with pytest.raises(UserTypeError, match=r"limits\[0\]: expected a Capacity, Rate or TokenRate"):
        make("m", limits=[5])
    with pytest.raises(UserTypeError, match="a model has no such argument"):
        make("m", limit=one)
