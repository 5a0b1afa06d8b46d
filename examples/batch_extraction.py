"""Typed records out of many texts: structured output, a cap on runs at once, and one journal for each text.

    python examples/batch_extraction.py
    python examples/batch_extraction.py openai:gpt-5.5     # a real model in place of the script

An answer that doesn't fit the type goes back to the model with every fault; if the corrections are used up, that text
alone has failed. Started again after a crash with the same folder of journals, the batch repeats nothing: here the
second pass gets all its results from the journals, without one request.
"""

import datetime
import json
import re
import sys
from tempfile import TemporaryDirectory
from typing import Literal

import anyio
import attrs

from agentloop import Agent, RunConfig, Runner
from agentloop.model_events import ModelRequest
from agentloop.testing import FunctionModel, say


@attrs.frozen
class Invoice:
    """What is to be found in a text."""

    number: str
    day: datetime.date
    total: float
    currency: Literal["EUR", "USD"]


TEXTS = (
    "Invoice R-104 of 2026-03-02: 80.50 EUR",
    "Invoice R-105 of 2026-03-02: 1200.00 USD",
    "Invoice R-106 of 2026-03-03: 19.90 GBP",
    "Invoice R-107 of yesterday: 7.00 EUR",
    "Invoice R-108 of 2026-03-05: 640.00 EUR",
)
PATTERN = re.compile(r"Invoice (\S+) of (\S+): (\S+) (\S+)")


def extract(request: ModelRequest) -> object:
    """Play the model: copy the words of the text, and correct a day once the answer was refused."""
    found = PATTERN.match(request.items[0].text)
    assert found is not None
    number, day, total, currency = found.groups()
    corrected = len(request.items) > 1 and day == "yesterday"
    fields = {"number": number, "day": "2026-03-04" if corrected else day, "total": float(total), "currency": currency}
    return say(json.dumps(fields))


agent = Agent(
    "extractor",
    instructions="Extract the invoice.",
    model=FunctionModel(extract),  # or openai:NAME, anthropic:NAME
    output_type=Invoice,
)


async def extract_all(folder: str, model: str | None) -> None:
    """Extract every text, three at a time, and say how much it took."""
    config = RunConfig(model=model)
    invoices: list[Invoice] = []
    async with Runner.run_many(agent, TEXTS, limit=3, journals=folder, ordered=True, run_config=config) as batch:
        async for run in batch:
            if run.error is not None:
                print(f"{run.index + 1}. {type(run.error).__name__}: {str(run.error).partition(': ')[2]}")
                continue
            invoice = run.result.final_output
            invoices.append(invoice)
            corrections = len(run.result.raw_responses) - 1
            print(f"{run.index + 1}. {invoice.number} {invoice.day} {invoice.total} {invoice.currency}", end="")
            print(f" ({corrections} correction)" if corrections else "")
    euros = sum(invoice.total for invoice in invoices if invoice.currency == "EUR")
    print(f"{batch.finished} texts, {batch.failed} failed, {euros} EUR")


async def main(model: str | None = None) -> None:
    """Run the batch twice on one folder of journals."""
    scripted = agent.model
    assert isinstance(scripted, FunctionModel)
    with TemporaryDirectory() as folder:
        for nth in ("first", "second"):
            before = len(scripted.requests)
            print(f"{nth} pass")
            await extract_all(folder, model)
            if model is None:
                print(len(scripted.requests) - before, "requests")


if __name__ == "__main__":
    anyio.run(main, *sys.argv[1:2], backend="trio")
