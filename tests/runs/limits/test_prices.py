"""Prices of well-known models: found by provider and name, counted with cache reads and writes, never guessed."""

import sys
from decimal import Decimal
from typing import Any

import pytest
from kit.agents import Run
from kit.results import read_requests

from agentloop import Agent, RequestUsage, RunConfig, Runner, RunState, UsageLimitExceeded, UsageLimits, UserError, tool
from agentloop._storage.public_json import to_json
from agentloop.models import FallbackModel, ModelInfo, prices
from agentloop.testing import ScriptedModel, call, fail, say
from agentloop.testing.replaying import replay
from agentloop.usage import Usage

pytest.importorskip("genai_prices")


class Named(ScriptedModel):
    """A scripted model with the identity of another one."""

    def __init__(self, info: ModelInfo, *steps: Any) -> None:
        super().__init__(steps)
        self._info = info
        self.name = info.name

    @property
    def info(self) -> ModelInfo:
        """The other one's."""
        return self._info


NANO = ModelInfo("openai", "gpt-5-nano", "https://api.openai.com/v1")
HALF = RequestUsage(input_tokens=100_000, output_tokens=0, total_tokens=100_000)  # 0.005 of a gpt-5-nano


@pytest.mark.scenario("LM-01")
@pytest.mark.parametrize(
    "info",
    [
        NANO,
        ModelInfo("proxy", "gpt-5-nano", "https://api.openai.com/v1"),
        ModelInfo("ScriptedModel", "gpt-5-nano"),
    ],
    ids=["provider", "server", "name"],
)
async def test_a_model_is_found_by_provider_server_or_name(run_mode: Run, info: ModelInfo) -> None:
    """The result has the cost in dollars, as a Decimal."""
    agent = Agent("a", model=Named(info, say("hi", HALF)))
    result = await run_mode(agent, "go", run_config=RunConfig(price=prices()))
    assert (result.cost, result.usage.cost) == (Decimal("0.005"), Decimal("0.005"))


@pytest.mark.scenario("LM-01")
def test_tokens_of_the_cache_have_prices_of_their_own() -> None:
    """A read is cheaper than a token, a write dearer; counts that can't be are cut."""
    price = prices()
    plain = price("claude-sonnet-4-5", RequestUsage(input_tokens=1000))
    assert price("claude-sonnet-4-5", RequestUsage(input_tokens=1000, cached_tokens=1000)) < plain
    assert price("claude-sonnet-4-5", RequestUsage(input_tokens=1000, cache_write_tokens=1000)) > plain
    odd = RequestUsage(input_tokens=1000, cached_tokens=2000, cache_write_tokens=2000)
    assert price("claude-sonnet-4-5", odd) == price(
        "claude-sonnet-4-5", RequestUsage(input_tokens=1000, cached_tokens=1000)
    )
    assert repr(price) == "prices()"


@pytest.mark.scenario("LM-01")
@pytest.mark.parametrize("limits", [None, UsageLimits(cost=1)], ids=["no limit", "limit"])
@pytest.mark.parametrize(
    "info",
    [ModelInfo("openai", "no-such-model"), ModelInfo("our.server", "gpt-5-nano", "https://our.server/v1")],
    ids=["model", "server"],
)
async def test_a_model_without_a_price_is_refused_before_the_request(
    run_mode: Run, info: ModelInfo, limits: Any
) -> None:
    """Also where the name is known and the server isn't: its price is the server's."""
    agent = Agent("a", model=Named(info, say("hi", HALF)))
    with pytest.raises(UserError, match=rf"no price is known for model '{info.name}' of {info.provider}"):
        await run_mode(agent, "go", run_config=RunConfig(price=prices(), limits=limits))
    assert read_requests(agent) == []
    with pytest.raises(UserError, match="no price is known for model 'no-such-model': give"):
        prices()("no-such-model", HALF)


@pytest.mark.scenario("LM-01")
async def test_an_agent_handed_over_to_needs_a_price_too(run_mode: Run) -> None:
    """It is looked for when the model is first asked."""
    b = Agent("b", model=Named(ModelInfo("openai", "no-such-model"), say("hi")))
    a = Agent("a", model=Named(NANO, call("transfer_to_b", call_id="h")), handoffs=[b])
    with pytest.raises(UserError, match="no price is known for model 'no-such-model'"):
        await run_mode(a, "go", run_config=RunConfig(price=prices()))
    assert read_requests(b) == []


@pytest.mark.scenario("LM-01")
async def test_a_model_on_this_machine_costs_nothing(run_mode: Run) -> None:
    """Whatever its name is."""
    agent = Agent("a", model=Named(ModelInfo("local", "gpt-5-nano"), say("hi", HALF)))
    result = await run_mode(agent, "go", run_config=RunConfig(price=prices(), limits=UsageLimits(cost=1)))
    assert (result.cost, result.usage.cost) == (0, 0)


@pytest.mark.scenario("LM-01")
async def test_the_member_that_answered_is_priced(run_mode: Run) -> None:
    """Each member must have a price before any is asked."""
    first = Named(ModelInfo("anthropic", "claude-sonnet-4-5"), fail(ConnectionError("down")))
    second = Named(NANO, say("hi", HALF))
    model = FallbackModel([first, second], fall_back_on=lambda error: True)
    result = await run_mode(Agent("a", model=model), "go", run_config=RunConfig(price=prices()))
    assert result.cost == Decimal("0.005")
    unknown = FallbackModel([second, Named(ModelInfo("openai", "no-such-model"))])
    with pytest.raises(UserError, match="no price is known"):
        await run_mode(Agent("a", model=unknown), "go", run_config=RunConfig(price=prices()))


@pytest.mark.scenario("LM-01")
async def test_nested_runs_and_calls_are_in_the_cost(run_mode: Run) -> None:
    """The usage has what the models cost, nested ones included; the result adds the calls."""

    @tool(cost=lambda arguments: 3)
    async def pay() -> str:
        """Pay."""
        return "paid"

    inner = Agent("inner", model=Named(NANO, say("ok", HALF)))
    outer = Agent(
        "outer",
        model=Named(NANO, [call("inner", {"input": "x"}, call_id="c"), call("pay", call_id="p")], say("done", HALF)),
        tools=[inner.as_tool(), pay],
    )
    result = await run_mode(outer, "go", run_config=RunConfig(price=prices()))
    assert (result.usage.cost, result.cost) == (Decimal("0.01"), Decimal("3.01"))
    assert result.to_json()["usage"]["cost"] == "0.010"
    state = RunState.from_json(outer, result.to_state().to_json())
    assert state._fold.usage.cost == Decimal("0.01")


@pytest.mark.scenario("LM-01")
async def test_the_limit_holds(run_mode: Run) -> None:
    """The next request is refused once it is reached."""
    model = Named(NANO, *[say("no JSON", HALF)] * 6)
    agent = Agent("a", model=model, output_type=int, output_retries=5)
    config = RunConfig(price=prices(), limits=UsageLimits(cost=0.01))
    with pytest.raises(UsageLimitExceeded, match=r"cost 0\.010* of 0\.01"):
        await run_mode(agent, "go", run_config=config)
    assert len(read_requests(agent)) == 2


@pytest.mark.scenario("LM-01")
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_replay_needs_no_price(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log has what each request has cost."""
    agent, config = Agent("a", model=Named(NANO, say("hi", HALF))), RunConfig(price=prices())
    result = Runner.run_sync(agent, "go", run_config=config)
    monkeypatch.setattr(type(config.price), "for_model", lambda *_: pytest.fail("asked"))
    replayed = replay(result, agent, backend=backend, run_config=config)
    assert replayed.result is not None
    assert replayed.result.usage.cost == Decimal("0.005")


def test_sums_of_usage_have_the_sum_of_the_costs() -> None:
    """None is no cost; the public JSON leaves it out."""
    known, unknown = Usage(requests=1, cost=Decimal(2)), Usage(requests=1)
    assert [(a + b).cost for a in (known, unknown) for b in (known, unknown)] == [4, 2, 2, None]
    assert "cost" not in to_json(unknown)
    assert to_json(known)["cost"] == "2"


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the prices are asked for, and not at the first request."""
    monkeypatch.setitem(sys.modules, "genai_prices", None)
    with pytest.raises(UserError, match=r"pip install 'agentloop-anyio\[prices\]'"):
        prices()
