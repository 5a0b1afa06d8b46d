"""The worst case of a request (`UsageLimits.worst_case`): judged before it is made, counted while it is under way."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from decimal import Decimal
from typing import TypeVar

from agentloop._core.context_size import estimate_input
from agentloop._core.turn_view import TurnView
from agentloop._engine.runtime.live_run import LiveRun
from agentloop.abc import Model
from agentloop.config import Price
from agentloop.config.budget import WorstCase, to_amount
from agentloop.exceptions import UserError
from agentloop.model_events import ModelRequest
from agentloop.usage import RequestUsage

AnswerT = TypeVar("AnswerT")


def find_worst_case(run: LiveRun, model: Model, request: ModelRequest, price: Price | None) -> WorstCase:
    """Return the worst case of *request* to *model*, of which *price* gives the cost: by the dearest of its members.

    Raises:
        UserError: an answer may have any length.
    """
    most = request.settings.max_tokens
    if most is None:
        raise UserError(
            f"UsageLimits(worst_case=True) needs to know how long an answer of agent {run.agent.name!r} may be: give "
            "its ModelSettings a max_tokens"
        )
    sent = estimate_input(run.state, request)
    usage = RequestUsage(input_tokens=sent, output_tokens=most, total_tokens=sent + most)
    cost = Decimal(0)
    if price is not None:
        cost = max(to_amount("price", price(name, usage)) for name in _find_names(model))
    return WorstCase(sent, most, cost)


def _find_names(model: Model) -> list[str]:
    """Return the names under which an answer of *model* may be priced: its own, or those of all that it may ask."""
    if own := getattr(model, "name", None):
        return [str(own)]
    asked = getattr(model, "members", None) or (getattr(model, "wrapped", None),)
    return [name for one in asked if one is not None for name in _find_names(one)] or [model.info.name]


async def within_worst_case(
    ask: Callable[[LiveRun, TurnView, ModelRequest], Awaitable[AnswerT]],
    run: LiveRun,
    view: TurnView,
    request: ModelRequest,
    price: Price | None,
) -> AnswerT:
    """Return the answer to *request*, which *ask* gives, if the budgets have room for its worst case until then.

    Raises:
        UsageLimitExceeded: they haven't.
        UserError: as `find_worst_case`.
    """
    budget, worst = run.settings.budget, find_worst_case(run, view.model, request, price)
    assert budget is not None  # it counts the worst case
    run.check_request(worst)
    budget.hold_request(worst)
    try:
        return await ask(run, view, request)
    finally:
        budget.release_request(worst)
