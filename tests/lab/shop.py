"""A shop's agents, whose bodies write into a ledger, and runs of them of every kind, for the lab."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal

import anyio
import attrs

from agentloop import Agent, RunConfig, Runner, RunStream, tool
from agentloop.abc import Model
from agentloop.guardrails import GuardrailFunctionOutput, input_guardrail, output_guardrail
from agentloop.items import UserMessage
from agentloop.model_events import ModelEvent, ModelInfo, ModelRequest
from agentloop.records import CallStarted, Record
from agentloop.state import RunState
from agentloop.testing import ScriptedModel, call, say

LEDGER: list[str] = []
"""The names of the bodies that ran, and of what they were called with."""


@tool
async def refund(order: str, amount: int) -> str:
    """Pay money back."""
    LEDGER.append(f"refund {order} {amount}")
    return f"refunded {amount} for {order}"


@tool(reads_only=True)
async def look_up(order: str) -> dict[str, Any]:
    """Look an order up."""
    LEDGER.append(f"look_up {order}")
    return {"order": order, "paid": 100}


@tool(needs_approval=True)
async def pay(order: str, amount: int) -> str:
    """Pay a supplier."""
    LEDGER.append(f"pay {order} {amount}")
    return "paid"


@tool
async def break_down(order: str) -> str:
    """Fail."""
    LEDGER.append("break_down")
    raise ValueError(f"no stock for {order}\nand no hope")


@tool(timeout=0.01)
async def wait_long(order: str) -> str:
    """Wait longer than allowed."""
    LEDGER.append("wait_long")
    await anyio.sleep_forever()


@tool
async def hang(order: str) -> str:
    """Never end."""
    LEDGER.append("hang")
    await anyio.sleep_forever()


@tool(failure_error_function=None)
async def end_it(order: str) -> str:
    """End the run by an error."""
    LEDGER.append("end_it")
    raise RuntimeError("out of order")


@input_guardrail
async def polite(ctx: Any, agent: Any, given: Any) -> GuardrailFunctionOutput:
    """Trip at a swear word."""
    return GuardrailFunctionOutput({"seen": len(given)}, "damn" in str(given))


@output_guardrail
async def short(ctx: Any, agent: Any, output: Any) -> GuardrailFunctionOutput:
    """Pass."""
    return GuardrailFunctionOutput(None, False)


TOOLS = [refund, look_up, pay, break_down, wait_long, hang, end_it]


def make_agent(steps: Any = (), instructions: Any = "Help.", tools: Any = TOOLS, **options: Any) -> Agent[Any, Any]:
    """Return the shop's agent, with a helper as a tool and a colleague to hand over to."""
    model = steps if isinstance(steps, Model) else ScriptedModel(list(steps))
    helper = Agent("helper", instructions="Dig.", model=model, tools=[look_up, refund])
    colleague = Agent("colleague", instructions="Take over.", model=model, tools=[refund])
    return Agent(
        "shop",
        instructions=instructions,
        model=model,
        tools=[*tools, helper.as_tool("ask_helper", "Ask the helper.")],
        handoffs=[colleague],
        input_guardrails=[polite],
        output_guardrails=[short],
        **options,
    )


def ask(name: str, number: int, **arguments: Any) -> Any:
    """Return a call with an id of its own."""
    return call(name, arguments or {"order": f"o-{number}"}, call_id=f"{name}-{number}")


@attrs.frozen
class Story:
    """A kind of run: the answers of its models by its number, the verdict, and the way in which it is ended.

    `adds` says when inputs are shown that are added while the model works, by turn.
    """

    steps: Callable[[int], list[Any]]
    approve: bool | None = None
    cancel: bool = False
    given: str = "Help me."
    adds: Mapping[int, tuple[Literal["turn", "idle"], ...]] = {}


STORIES = {
    "answered": Story(lambda n: [say(f"Hello {n}.")]),
    "parallel": Story(
        lambda n: [
            [ask("look_up", n), ask("refund", n, order=f"o-{n}", amount=n), ask("refund", n + 1, order="o", amount=1)],
            say("Done."),
        ]
    ),
    "approved": Story(lambda n: [ask("pay", n, order=f"o-{n}", amount=5), say("Paid.")], approve=True),
    "rejected": Story(lambda n: [ask("pay", n, order=f"o-{n}", amount=5), say("Not paid.")], approve=False),
    "paused": Story(lambda n: [[ask("pay", n, order=f"o-{n}", amount=5), ask("look_up", n)]]),
    "nested": Story(
        lambda n: [ask("ask_helper", n, input=f"Look {n} up."), ask("look_up", n), say("100."), say("It was 100.")]
    ),
    "failed": Story(lambda n: [ask("break_down", n), ask("wait_long", n), say("Sorry.")]),
    "ended": Story(lambda n: [[ask("end_it", n), ask("hang", n)]]),
    "tripped": Story(lambda n: [say("no")], given="damn"),
    "handed off": Story(
        lambda n: [ask("transfer_to_colleague", n, x=1), ask("refund", n, order="x", amount=n), say("Hi.")]
    ),
    "cancelled": Story(
        lambda n: [ask("look_up", n), [ask("refund", n, order="y", amount=n), ask("hang", n)]], cancel=True
    ),
    "unknown": Story(lambda n: [ask("nothing", n), ask("refund", n, order=5), say("Sorry.")]),
    "steered": Story(lambda n: [ask("look_up", n), say("Well."), say("Good.")], adds={1: ("turn", "idle", "turn")}),
    "steered at the end": Story(lambda n: [say("Well."), say("Good.")], adds={1: ("idle", "turn")}),
}


class Stop:
    """An instrument that cancels the run once a body of `hang` has begun."""

    def __init__(self, scope: anyio.CancelScope | None) -> None:
        self.scope, self.records = scope, list[Record]()

    def on_record(self, record: Any) -> None:
        """Keep the record, and cancel at the start of `hang`."""
        self.records.append(record)
        if self.scope is not None and isinstance(record, CallStarted) and record.tool == "hang":
            self.scope.cancel()


async def record(kind: str, number: int) -> list[Record]:
    """Return the log of a real run of a kind, as another process reads it."""
    story = STORIES[kind]
    if story.adds:
        return read_again(await _steer(story, number))
    agent = make_agent(story.steps(number))
    scope = anyio.CancelScope()
    stop = Stop(scope if story.cancel else None)
    config = RunConfig(instruments=[stop])
    with scope, contextlib.suppress(Exception):
        result = await Runner.run(agent, story.given, run_config=config)
        if result.interruptions and story.approve is not None:
            state = result.to_state()
            one = state.interruptions[0]
            state.approve(one, by="Ada") if story.approve else state.reject(one, message="Too much.")
            result = await Runner.run(agent, state)
            return read_again(result.records)
        return read_again(result.records)
    return read_again(stop.records)


class Steering(ScriptedModel):
    """A model while which works its run gets the inputs of a story."""

    stream_of_run: RunStream[Any]

    def __init__(self, story: Story, number: int) -> None:
        super().__init__(story.steps(number))
        self.adds = story.adds

    @property
    def info(self) -> ModelInfo:
        """That of the candidate's model, so that only the inputs tell both apart."""
        return ScriptedModel([]).info

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[ModelEvent]]:
        """Add the inputs, and answer."""
        for place, when in enumerate(self.adds.get(request.turn, ())):
            await self.stream_of_run.add_input(f"And {place}.", when=when, by="Ada")
        async with super().stream(request) as events:
            yield events


async def _steer(story: Story, number: int) -> Sequence[Record]:
    """Return the records of a run that gets input while its model works."""
    model = Steering(story, number)
    async with Runner.run_streamed(make_agent(model), story.given) as stream:
        model.stream_of_run = stream
        async for _ in stream:
            pass
    return stream.result.records


def read_again(records: Any) -> list[Record]:
    """Return *records* as they are after being stored."""
    from agentloop._storage.record_codec import record_from_json, record_to_json

    return [record_from_json(json.loads(json.dumps(record_to_json(one)))) for one in records]


def state_of(records: list[Record]) -> RunState:
    """Return the state of a log."""
    return RunState(make_agent(), records)


def last_text(request: Any) -> str:
    """Return the text of the last user message of a request."""
    return next(str(one.content) for one in reversed(request.items) if isinstance(one, UserMessage))
