"""A support line: a front desk hands over to specialists, guardrails judge what comes in and what goes out.

    python examples/support_triage.py
    python examples/support_triage.py openai:gpt-5.5     # a real model in place of the script

The input guardrail runs beside the first request to the model, and no tool starts before it has passed. The answer of a
specialist is typed, and the output guardrail sees the value.
"""

import sys
from typing import Any, Literal

import anyio
import attrs

from agentloop import (
    Agent,
    GuardrailFunctionOutput,
    InputGuardrailTripwireTriggered,
    OutputGuardrailTripwireTriggered,
    RunConfig,
    RunContext,
    Runner,
    handoff,
    input_guardrail,
    output_guardrail,
    tool,
)
from agentloop.items import Item, ToolOutput, UserMessage
from agentloop.model_events import ModelRequest
from agentloop.testing import FunctionModel, call, say


@attrs.frozen
class Reply:
    """The answer to a customer."""

    text: str
    urgency: Literal["low", "high"]


@input_guardrail
async def no_card_numbers(ctx: RunContext[None], agent: Agent, given: tuple[Item, ...]) -> GuardrailFunctionOutput:
    """Refuse a message that holds the number of a card: it must not reach the model."""
    digits = sum(character.isdigit() for item in given for character in getattr(item, "text", ""))
    return GuardrailFunctionOutput(f"{digits} digits", tripwire_triggered=digits >= 13)


@output_guardrail
async def no_promises(ctx: RunContext[None], agent: Agent, output: Any) -> GuardrailFunctionOutput:
    """Refuse a reply that promises something."""
    return GuardrailFunctionOutput(output.text, tripwire_triggered="promise" in output.text)


@tool
async def order_status(order: str) -> str:
    """Say where an order is.

    Args:
        order: Its number.
    """
    return {"B-7": "is with the carrier"}.get(order, "is not known")


def front(request: ModelRequest) -> object:
    """Play the front desk, which only chooses."""
    where = "transfer_to_billing" if "invoice" in request.items[-1].text else "transfer_to_shipping"
    return [call(where)]


def ship(request: ModelRequest) -> object:
    """Play the shipping desk, which looks the order up and answers."""
    outputs = [item.output for item in request.items if isinstance(item, ToolOutput)]
    if outputs:
        return say(f'{{"text": "Order B-7 {outputs[-1]}.", "urgency": "low"}}')
    return [call("order_status", {"order": "B-7"})]


def bill(request: ModelRequest) -> object:
    """Play a billing desk that says too much."""
    return say('{"text": "I promise that it will be free.", "urgency": "high"}')


guarded: dict[str, Any] = {"output_type": Reply, "output_guardrails": [no_promises]}
shipping = Agent("shipping", instructions="Know orders.", model=FunctionModel(ship), tools=[order_status], **guarded)
billing = Agent("billing", instructions="Know invoices.", model=FunctionModel(bill), **guarded)
desk = Agent(
    "front desk",
    instructions="Hand over to the desk that can help.",
    model=FunctionModel(front),  # or openai:NAME, anthropic:NAME
    handoffs=[handoff(shipping, tool_description="Orders and parcels."), handoff(billing)],
    input_guardrails=[no_card_numbers],
)
MESSAGES = ("Where is my order B-7?", "My invoice is wrong.", "My card is 4000 1234 5678 9010.")


async def main(model: str | None = None) -> None:
    """Answer each message, or say why not."""
    for text in MESSAGES:
        try:
            result = await Runner.run(desk, [UserMessage(text)], run_config=RunConfig(model=model))
        except InputGuardrailTripwireTriggered as error:
            print(f"refused before any answer: {error.guardrail_result.output.output_info}")
        except OutputGuardrailTripwireTriggered as error:
            print(f"not sent: {error.guardrail_result.output.output_info!r}")
        else:
            print(f"{result.last_agent.name} ({result.final_output.urgency}): {result.final_output.text}")


if __name__ == "__main__":
    anyio.run(main, *sys.argv[1:2], backend="trio")
