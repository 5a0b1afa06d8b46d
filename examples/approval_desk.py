"""Refunds that a person decides on: a policy sorts the calls, the run pauses, and the decision comes later.

    python examples/approval_desk.py
    python examples/approval_desk.py openai:gpt-5.5     # a real model in place of the script

Small refunds run at once, large ones are never made, and the others wait. The paused run is a sealed text in a file:
the desk may be another process, next week. The clerk's model gets the reason of a rejection.
"""

import json
import secrets
import sys
from tempfile import TemporaryDirectory

import anyio

from agentloop import Agent, Allow, Ask, Deny, PendingCall, RunConfig, Runner, RunState, SealKey, tool
from agentloop.items import ToolOutput
from agentloop.model_events import ModelRequest
from agentloop.testing import FunctionModel, call, say

KEY = SealKey(secrets.token_bytes(32), expires_in=7 * 24 * 3600)  # in production: from your secret store


@tool
async def refund(order: str, amount: float, reason: str) -> str:
    """Pay a customer's money back.

    Args:
        order: The number of the order.
        amount: The amount in euros.
        reason: The reason, in one sentence.
    """
    return f"{amount:.2f} euros of order {order} were paid back"


class RefundPolicy:
    """Refunds up to 20 euros need no person, and above 500 euros none are made here."""

    def decide(self, call: PendingCall) -> Allow | Ask | Deny:
        """Decide on one call. A call whose arguments aren't readable is left to a person."""
        amount = (call.arguments or {}).get("amount")
        if not isinstance(amount, int | float):
            return Ask("the amount can't be read")
        if amount <= 20:
            return Allow()
        return Ask("more than 20 euros") if amount <= 500 else Deny("Refunds above 500 euros are made by the bank.")


def answer(request: ModelRequest) -> object:
    """Play the model: ask for the refunds, then report what came of each."""
    outputs = [item.output for item in request.items if isinstance(item, ToolOutput)]
    if outputs:
        return say("\n".join(f"* {output}" for output in outputs))
    wanted = [("A-1", 12.5, "a cup broke"), ("A-2", 80, "it came late"), ("A-3", 300, "not liked"), ("A-4", 900, "?")]
    return [
        call("refund", {"order": order, "amount": amount, "reason": reason}, call_id=order)
        for order, amount, reason in wanted
    ]


clerk = Agent(
    "clerk",
    instructions="Handle the refund requests of the day with your tool, then list what came of each.",
    model=FunctionModel(answer),  # or openai:NAME, anthropic:NAME, local:
    tools=[refund],
)


async def begin(paused: anyio.Path, config: RunConfig) -> None:
    """Run until calls wait for a person, and store the run."""
    orders = "A-1: 12.50, a cup broke; A-2: 80, it came late; A-3: 300, not liked; A-4: 900, no reason"
    result = await Runner.run(clerk, f"Requests of the day: {orders}", run_config=config)
    await paused.write_text(result.to_state().to_string(key=KEY), encoding="utf-8")
    print("done at once:", [settled.call.call_id for settled in result.calls if settled.outcome.status == "succeeded"])


async def decide(paused: anyio.Path, config: RunConfig) -> None:
    """Give a verdict on each call that waits, and continue the run to its end."""
    state = RunState.from_string(clerk, await paused.read_text(encoding="utf-8"), key=KEY)
    for request in state.interruptions:
        wanted = json.loads(request.call.arguments)
        print("waits:", wanted["order"], wanted["amount"], "-", wanted["reason"])
        if wanted["amount"] <= 100:
            # With other arguments than the model's: half is paid back.
            state.approve(request, arguments=wanted | {"amount": wanted["amount"] / 2}, by="ann")
        else:
            state.reject(request, message=f"Order {wanted['order']}: not liking it is no reason.", by="ann")
    result = await Runner.run(clerk, state, run_config=config)
    print(result.final_output)


async def main(model: str | None = None) -> None:
    """Pause a run into a file, and decide on it from that file."""
    config = RunConfig(model=model, policies=[RefundPolicy()])
    with TemporaryDirectory() as folder:
        paused = anyio.Path(folder, "refunds.paused")
        await begin(paused, config)
        await decide(paused, config)


if __name__ == "__main__":
    anyio.run(main, *sys.argv[1:2], backend="trio")
