"""Research that fans out: a lead agent gives questions to researchers that run at once, each with a budget of its own.

    python examples/research_fan_out.py
    python examples/research_fan_out.py openai:gpt-5.5     # a real model in place of the script

A researcher is an agent used as a tool, so its run ends with its call: none outlives the report. `UsageLimits` bounds
each researcher and, above all of them, the whole run. A search for which nothing is left is refused, and the
researcher can still say so. The cost of a search is reserved before it starts, so calls at the same time can't
overdraw the budget.
"""

import sys
from decimal import Decimal

import anyio

from agentloop import Agent, Capacity, RequestUsage, RunConfig, Runner, UsageLimits, tool
from agentloop.items import ToolOutput
from agentloop.model_events import ModelRequest
from agentloop.records import CallSettled, CallStarted
from agentloop.testing import FunctionModel, call, say

LIBRARY = {
    "trio": "Nurseries were first described in 2018.",
    "asyncio": "TaskGroup has been part of it since Python 3.11.",
    "cancellation": "Cancel scopes are levels, native cancellation is an edge.",
}
TURN = RequestUsage(input_tokens=200, output_tokens=50, total_tokens=250)
SEARCHES = 3


@tool(cost=lambda arguments: 0.02, capacity=Capacity(4, "search"), timeout=30)
async def search(topic: str) -> str:
    """Search the library.

    Args:
        topic: One word.
    """
    await anyio.sleep(0.01)
    return LIBRARY.get(topic, "Nothing was found.")


def research(request: ModelRequest) -> object:
    """Play the model of a researcher: look for the topic, and keep looking where nothing is found."""
    topic = request.items[0].text
    found = [item.output for item in request.items if isinstance(item, ToolOutput)]
    if found and found[-1] in LIBRARY.values():
        return say(f"{topic}: {found[-1]}", usage=TURN)
    if len(found) > SEARCHES:
        return say(f"{topic}: nothing is found. {found[-1]}", usage=TURN)
    return [say("I look it up.", usage=TURN), call("search", {"topic": topic})]


def lead(request: ModelRequest) -> object:
    """Play the model of the lead: ask all at once, then put the findings together."""
    found = [str(item.output) for item in request.items if isinstance(item, ToolOutput)]
    if found:
        return say("\n".join(f"* {text}" for text in found), usage=TURN)
    return [call("researcher", {"input": topic}, call_id=topic) for topic in (*LIBRARY, "perpetual motion")]


def price(model: str, used: RequestUsage) -> Decimal:
    """Return what one request costs, in dollars."""
    return Decimal(used.input_tokens * 1 + used.output_tokens * 10) / 1_000_000


researcher = Agent(
    "researcher",
    instructions="Answer the question from the library, in one sentence.",
    model=FunctionModel(research),
    tools=[search],
)
agent = Agent(
    "lead",
    instructions="Give each part of the question to a researcher, all at once, and put the findings together.",
    model=FunctionModel(lead),  # or openai:NAME, anthropic:NAME, local:
    tools=[researcher.as_tool(run_config=RunConfig(limits=UsageLimits(tool_calls=SEARCHES, cost=0.10)), timeout=120)],
)


async def main(model: str | None = None) -> None:
    """Run the research, and show what each researcher did and used."""
    limits = UsageLimits(requests=40, cost=1)
    result = await Runner.run(
        agent, "What should I know of cancellation?", run_config=RunConfig(model=model, limits=limits, price=price)
    )
    print(result.final_output)
    for settled in result.calls:
        inside = [record for record in result.records if record.path == (settled.call.call_id,)]
        searches = sum(isinstance(record, CallStarted) for record in inside)
        skipped = sum(isinstance(record, CallSettled) and record.outcome.status == "skipped" for record in inside)
        print(f"{settled.call.call_id}: {settled.outcome.status}, {searches} searches, {skipped} refused")
    print(result.usage.requests, "requests,", result.usage.total_tokens, "tokens")


if __name__ == "__main__":
    anyio.run(main, *sys.argv[1:2], backend="trio")
