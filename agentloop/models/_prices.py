"""Prices of models, from the data of the package `genai-prices` (the extra `prices`). Asks no server.

Does not count: the run's budget does. An upgrade of the package brings newer prices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import partial
from typing import Any

from agentloop._common.errors import UserError
from agentloop.abc import Model
from agentloop.model_events import ModelInfo
from agentloop.usage import RequestUsage

__all__ = ["Prices", "prices"]


def prices() -> Prices:
    """Return the prices of well-known models, in US dollars, for `RunConfig(price=prices())`.

    They are looked up by provider and model: by the provider's name, else by the URL of the server; for a model without
    a URL that no such provider has, only by the model's name. Tokens that were read from the provider's cache of
    prompts, or written to it, have their own prices. A model on this machine (`local:`) costs nothing. The data is that
    of the installed package: no server is asked.

    A model without a price is a `UserError` before the first request to it. The prices are the usual ones: discounts,
    service tiers and batches aren't in them, and audio counts as text.

    Raises:
        UserError: the package isn't installed: `pip install 'agentloop-anyio[prices]'`.

    Example:
        from agentloop import Agent, RequestUsage, RunConfig, Runner
        from agentloop.models import prices
        from agentloop.testing import ScriptedModel, say

        class Nano(ScriptedModel):
            name = "gpt-5-nano"

        agent = Agent("a", model=Nano([say("hi", RequestUsage(input_tokens=1_000_000, output_tokens=0))]))
        print(Runner.run_sync(agent, "go", run_config=RunConfig(price=prices())).cost)  # 0.050
    """
    try:
        import genai_prices
    except ImportError:
        raise UserError(
            "prices() needs the package genai-prices: pip install 'agentloop-anyio[prices]'; or write "
            "RunConfig(price=…), a function of (model name, RequestUsage)"
        ) from None
    return Prices(genai_prices)


class Prices:
    """The prices that `prices` returns; a `price` function of `RunConfig`, which finds its model only by the name.

    A run asks `for_model` in place of it, because two providers may serve one model at two prices.
    """

    def __init__(self, package: Any) -> None:
        self._package = package

    def __repr__(self) -> str:
        return "prices()"

    def __call__(self, name: str, usage: RequestUsage) -> Decimal:
        """Return the price of a request to the model *name* with *usage*.

        Raises:
            UserError: no price of it is known.
        """
        return self._find(ModelInfo("", name))(usage)

    def for_model(self, model: Model) -> Callable[[str, RequestUsage], Decimal]:
        """Return the function that prices requests to *model*, which gets the name of the one that has answered.

        Of a `FallbackModel`, every member must have a price.

        Raises:
            UserError: no price of it is known.
        """
        members = getattr(model, "members", (model,))
        found = {one.info.name: self._find(one.info) for one in members}
        first = next(iter(found.values()))
        return lambda name, usage: found.get(name, first)(usage)

    def _find(self, info: ModelInfo) -> Callable[[RequestUsage], Decimal]:
        """Return the function that prices a request to *info*'s model."""
        if info.provider == "local":
            return _cost_nothing
        places: list[dict[str, str | None]]
        places = [{"provider_id": info.provider}, {"provider_api_url": info.base_url}] if info.provider else [{}]
        for place in places:  # without a URL, the last of them is just the name
            price = partial(self._calculate, info.name, place)
            try:
                price(_NOTHING)
            except LookupError:
                continue
            return price
        where = f" of {info.provider}" if info.provider else ""
        raise UserError(
            f"no price is known for model {info.name!r}{where}: give RunConfig(price=…), a function of (model name, "
            "RequestUsage), for the models that prices() doesn't have"
        )

    def _calculate(self, name: str, place: Mapping[str, str | None], usage: RequestUsage) -> Decimal:
        read = min(usage.cached_tokens, usage.input_tokens)  # a server may count wrongly; then there is still a price
        counted = self._package.Usage(
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cache_read_tokens=read,
            cache_write_tokens=min(usage.cache_write_tokens, usage.input_tokens - read),
        )
        price: Decimal = self._package.calc_price(counted, name, **place).total_price
        return price


_NOTHING = RequestUsage()


def _cost_nothing(usage: RequestUsage) -> Decimal:
    """Return the price of a request to a model on this machine."""
    return Decimal(0)
