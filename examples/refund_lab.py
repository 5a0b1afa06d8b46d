"""Forty recorded runs of a refund desk, and two edits of its prompt: the lab tells the good one from the bad one. Then
one of the runs is continued as if a tool had said something else.

The part of the model is played by a function that does what its instructions say, so the output is exact. Nothing is
paid while the edits are tried: the ledger of the shop says so.
"""

import json
import re
import tempfile
from collections.abc import Iterable
from typing import Any

import anyio

from agentloop import Agent, Runner, lab, tool
from agentloop.items import ToolCall, ToolOutput, UserMessage
from agentloop.model_events import ModelRequest
from agentloop.testing import FunctionModel, call, say

ORDERS = {f"o-{n}": 10 * (n % 7) for n in range(1, 41)}  # what was paid for each order
LEDGER: list[str] = []

PROMPT = "You pay money back. Look an order up before you pay, and pay no more than was paid."
POLITE = f"{PROMPT} Thank the customer."
CARELESS = "You pay money back. Be quick: pay what the customer asks for."
CHECKS = [lab.order("look_up", "refund"), lab.answer_matches(r"(?i)paid|nothing")]


@tool(reads_only=True)
async def look_up(order: str) -> int:
    """Tell what was paid for an order."""
    return ORDERS[order]


@tool
async def refund(order: str, amount: int) -> str:
    """Pay money back."""
    LEDGER.append(f"{order} {amount}")
    return "done"


def play(request: ModelRequest) -> Any:
    """Do what the instructions say, as a model would."""
    prompt = request.system or ""
    asked = next(str(item.content) for item in request.items if isinstance(item, UserMessage))
    order, wanted = re.findall(r"o-\d+", asked)[0], int(re.findall(r"(\d+) euros", asked)[0])
    outputs = [item.output for item in request.items if isinstance(item, ToolOutput)]
    is_careful = "Look an order up" in prompt
    if is_careful and not outputs:
        return call("look_up", {"order": order})
    amount = min(wanted, json.loads(str(outputs[0]))) if is_careful else wanted
    if not amount:
        return say("Nothing was paid for that order.")
    if len(outputs) == is_careful:
        return call("refund", {"order": order, "amount": amount})
    return say(f"I paid {amount} euros back." + " Thank you for your patience!" * ("Thank" in prompt))


def make_agent(instructions: str) -> Agent[Any, str]:
    """Return the refund desk with these instructions."""
    return Agent("desk", instructions=instructions, model=FunctionModel(play), tools=[look_up, refund])


def requests() -> Iterable[str]:
    """Yield what the customers wrote."""
    return (f"Please pay {10 + n % 50} euros back for {order}." for n, order in enumerate(ORDERS))


async def main() -> None:
    """Record the runs, then try the edits on them."""
    with tempfile.TemporaryDirectory() as folder:
        async with Runner.run_many(make_agent(PROMPT), list(requests()), journals=folder) as batch:
            runs = {run.index: run.result async for run in batch}
        print(f"{len(runs)} runs, {len(LEDGER)} payments")
        LEDGER.clear()
        base = await lab.compare(folder, make_agent(PROMPT), checks=CHECKS)
        for name, prompt in {"the same prompt": PROMPT, "a polite one": POLITE, "a careless one": CARELESS}.items():
            report = await lab.compare(folder, make_agent(prompt), checks=CHECKS)
            print(f"-- {name}: {report.requests} requests, exit code {report.exit_code(base)}")
            print("\n".join(str(report).splitlines()[:6]))
        looked = next(item for item in runs[0].new_items if isinstance(item, ToolCall))
        edit = lab.SetOutput(looked.call_id, 0)
        fork = await lab.fork(runs[0], make_agent(PROMPT), turn=2, edits=[edit])
        print(f"-- if nothing had been paid for {json.loads(looked.arguments)['order']}: {fork.branches[0].answer}")
        print(f"{len(LEDGER)} payments in the lab")


if __name__ == "__main__":
    anyio.run(main)
