"""A desk's agents as code of yesterday and of today: kinds of change, and unfinished runs for `upgrade_check`."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import pydantic

from agentloop import Agent, ExternalTool, Handoff, RunConfig, Runner, ToolExecution, tool
from agentloop.config.budget import UsageLimits
from agentloop.config.policies import Ask, Deny
from agentloop.guardrails import (
    Allow,
    GuardrailFunctionOutput,
    input_guardrail,
    tool_input_guardrail,
    tool_output_guardrail,
)
from agentloop.journal import MemoryJournal
from agentloop.model_events import ModelInfo
from agentloop.records import Record
from agentloop.settings import ModelSettings
from agentloop.testing import FunctionModel, call, say

LEDGER: list[str] = []
"""What bodies, models and the application's functions were called."""


SEEN: list[Any] = []
"""The requests to models of today."""


class ReachedModel(Exception):
    """The run has come to its next request; raised by the model of today."""


async def note_request(request: Any) -> Any:
    """Answer for the model of today: a nested run ends, the outermost one fails."""
    LEDGER.append("model")
    SEEN.append(request)
    if request.path:
        return say("Helped.")
    raise ReachedModel


class OtherModel(FunctionModel):
    """A model of another name."""

    info = ModelInfo("test", "other")


@attrs.define
class Desk:
    """The parts of the agents, which a kind of change replaces."""

    tools: dict[str, Any]
    helper: dict[str, Any]
    helper_tools: dict[str, Any]
    back: dict[str, Any]
    back_tools: dict[str, Any]
    root: dict[str, Any]
    config: dict[str, Any]
    handoffs: bool = True
    handoff: dict[str, Any] = attrs.field(factory=dict)
    helper_tool: dict[str, Any] = attrs.field(factory=dict)
    has_helper: bool = True

    def build(self, model: Any) -> tuple[Agent[Any, Any], RunConfig]:
        """Return the agent and its configuration; every agent has *model* but where a change says otherwise."""
        back = Agent(**{"name": "back", "model": model, **self.back}, tools=[*self.back_tools.values()])
        helper = Agent(**{"name": "helper", "model": model, **self.helper}, tools=[*self.helper_tools.values()])
        tools = [*self.tools.values()]
        if self.has_helper:
            tools.append(helper.as_tool(**{"tool_name": "help_me", "tool_description": "Help.", **self.helper_tool}))
        handoffs = [Handoff(back, **self.handoff)] if self.handoffs else []
        agent = Agent(**{"name": "desk", "model": model, **self.root}, tools=tools, handoffs=handoffs)
        return agent, RunConfig(**self.config)


def body(name: str) -> Callable[..., Any]:
    """Return a body that writes its name into the ledger."""

    async def do(item: str) -> str:
        LEDGER.append(name)
        return f"{name} {item}"

    do.__name__, do.__doc__ = name, f"Do {name}."
    return do


def make(name: str, **options: Any) -> Any:
    """Return a tool."""
    return tool(**options)(body(name))


def today() -> Desk:
    """Return the agents as they are."""
    return Desk(
        tools={
            "pay": make("pay", needs_approval=True),
            "charge": make("charge"),
            "look": make("look", reads_only=True),
            "save": make("save", idempotent=True),
            "ask": ExternalTool("ask", "Ask the user.", {}, returns={"type": "integer", "minimum": 3}),
            "login": make("login", needs_approval=True, secret=["item"]),
        },
        helper={},
        helper_tools={"stamp": make("stamp", needs_approval=True), "note": make("note")},
        back={},
        back_tools={"file_it": make("file_it", needs_approval=True)},
        root={"instructions": "Be quick."},
        config={},
    )


# ------------------------------------------------------------------------------------------------ kinds of change

Change = Callable[[Desk], None]
CHANGES: dict[str, Change] = {}
ASKING = {"a policy that asks", "a policy that denies", "an is_enabled that says no"}
"""Kinds of which a function of the application says what becomes of a call, which the check can't know."""


def change(name: str) -> Callable[[Change], Change]:
    """Register a kind of change."""

    def register(fn: Change) -> Change:
        CHANGES[name] = fn
        return fn

    return register


def put(name: str, **options: Any) -> Change:
    """Return the change of one tool's options."""

    def apply(desk: Desk) -> None:
        for tools in (desk.tools, desk.helper_tools, desk.back_tools):
            if name in tools:
                tools[name] = make(name, **options)

    return apply


def drop(name: str) -> Change:
    """Return the change that removes a tool."""

    def apply(desk: Desk) -> None:
        for tools in (desk.tools, desk.helper_tools, desk.back_tools):
            tools.pop(name, None)

    return apply


def give(part: str, **fields: Any) -> Change:
    """Return the change of fields of an agent, the configuration, a handoff or an agent tool."""
    return lambda desk: getattr(desk, part).update(fields)


class Judging:
    """A policy that says the same of every call."""

    def __init__(self, says: Any) -> None:
        self.says = says

    async def decide(self, call: Any) -> Any:
        """Say it."""
        LEDGER.append("policy")
        return self.says


@input_guardrail
async def read_input(ctx: Any, agent: Any, given: Any) -> GuardrailFunctionOutput:
    """Pass."""
    LEDGER.append("guardrail read_input")
    return GuardrailFunctionOutput()


@tool_input_guardrail
async def read_arguments(data: Any) -> Any:
    """Pass."""
    LEDGER.append("guardrail read_arguments")
    return Allow()


@tool_output_guardrail
async def read_output(data: Any) -> Any:
    """Pass."""
    LEDGER.append("guardrail read_output")
    return Allow()


class Answer(pydantic.BaseModel):
    """A typed answer."""

    text: str


async def instruct(ctx: Any, agent: Any) -> str:
    """Return instructions."""
    LEDGER.append("instructions")
    return "Be quick."


async def says_no(ctx: Any, agent: Any) -> bool:
    """Disable."""
    LEDGER.append("is_enabled")
    return False


async def says_yes(ctx: Any, agent: Any) -> bool:
    """Enable."""
    LEDGER.append("is_enabled")
    return True


async def needs(ctx: Any, arguments: Any, call_id: str) -> bool:
    """Need none."""
    LEDGER.append("needs_approval")
    return False


@tool
async def wider(item: str, colour: str = "red") -> str:
    """Do charge."""
    LEDGER.append("charge")
    return f"charge {item}"


@tool
async def other_shape(number: int) -> str:
    """Do charge."""
    LEDGER.append("charge")
    return "charge"


@tool(needs_approval=True)
async def pays_otherwise(item: str, currency: str) -> str:
    """Do pay."""
    LEDGER.append("pay")
    return "pay"


def rename(name: str, to: str) -> Change:
    """Return the change of a tool's name."""
    return lambda desk: desk.tools.update({name: attrs.evolve(desk.tools[name], name=to)})


def replace(name: str, by: Any) -> Change:
    """Return the change of a tool's definition."""
    return lambda desk: desk.tools.update({name: attrs.evolve(by, name=name)})


def both(*changes: Change) -> Change:
    """Return several changes as one."""

    def apply(desk: Desk) -> None:
        for one in changes:
            one(desk)

    return apply


def _other_model(desk: Desk) -> None:
    desk.root["model"] = OtherModel(note_request)


CHANGES.update(
    {
        "nothing": lambda desk: None,
        "a tool removed": drop("charge"),
        "a tool that needs approval removed": drop("pay"),
        "an external tool removed": drop("ask"),
        "a tool of a nested agent removed": drop("stamp"),
        "a tool of another agent removed": drop("file_it"),
        "a tool renamed": rename("charge", "bill"),
        "a tool renamed that needs approval": rename("pay", "spend"),
        "a tool with another optional parameter": replace("charge", wider),
        "a tool with other parameters": replace("charge", other_shape),
        "a tool that needs approval with one more parameter": replace("pay", pays_otherwise),
        "a tool with another description": lambda desk: desk.tools.update(
            look=attrs.evolve(desk.tools["look"], description="Look well.")
        ),
        "a new tool": lambda desk: desk.tools.update(more=make("more")),
        "approval dropped": put("pay"),
        "approval added": put("charge", needs_approval=True),
        "approval asked of a function": put("charge", needs_approval=needs),
        "approval of a nested agent's tool dropped": put("stamp"),
        "a tool that may run again": put("charge", idempotent=True),
        "a tool that may not run again": put("save"),
        "a tool that only reads": put("charge", reads_only=True),
        "a tool that doesn't only read": put("look"),
        "in doubt, raise": put("charge", in_doubt="raise"),
        "in doubt, run again": put("charge", in_doubt="rerun"),
        "a tool with a timeout": put("charge", timeout=60),
        "a tool with secrets": put("pay", needs_approval=True, secret=["item"]),
        "a tool without secrets": put("login", needs_approval=True),
        "a tool's input guardrail": put("charge", tool_input_guardrails=[read_arguments]),
        "a tool's output guardrail": put("charge", tool_output_guardrails=[read_output]),
        "a tool disabled": put("charge", is_enabled=False),
        "an is_enabled that says no": put("charge", is_enabled=says_no),
        "an is_enabled that says yes": put("charge", is_enabled=says_yes),
        "an external tool with a body": put("ask"),
        "a tool that the application answers": lambda desk: desk.tools.update(
            charge=ExternalTool("charge", "Do charge.", desk.tools["charge"].params_json_schema, returns={})
        ),
        "the agent renamed": give("root", name="counter"),
        "the nested agent renamed": give("helper", name="assistant"),
        "the other agent renamed": give("back", name="office"),
        "the agent tool renamed": give("helper_tool", tool_name="assist"),
        "the agent tool removed": lambda desk: setattr(desk, "has_helper", False),
        "a function in place of the agent tool": both(
            lambda desk: setattr(desk, "has_helper", False), lambda desk: desk.tools.update(help_me=make("help_me"))
        ),
        "the handoff removed": lambda desk: setattr(desk, "handoffs", False),
        "the handoff renamed": give("handoff", tool_name="to_back"),
        "the handoff with a filter": give("handoff", input_filter=lambda data: data),
        "other instructions": give("root", instructions="Be slow."),
        "other instructions of the nested agent": give("helper", instructions="Help well."),
        "instructions from a function": give("root", instructions=instruct),
        "a typed answer": give("root", output_type=Answer),
        "other settings": give("root", model_settings=ModelSettings(temperature=0.5)),
        "a tool choice": give("root", model_settings=ModelSettings(tool_choice="look")),
        "another model": _other_model,
        "no model": give("root", model=None),
        "outputs that end the run": give("root", tool_use_behavior="stop_on_first_tool"),
        "outputs that end the run, typed": give("root", tool_use_behavior="stop_on_first_tool", output_type=Answer),
        "an input guardrail": give("root", input_guardrails=[read_input]),
        "a policy that allows": give("config", policies=[Judging(Allow())]),
        "a policy that asks": give("config", policies=[Judging(Ask("why not"))]),
        "a policy that denies": give("config", policies=[Judging(Deny("no"))]),
        "fewer calls in a turn": give("config", tool_execution=ToolExecution(max_calls_per_turn=1)),
        "unknown tools end the run": give("config", tool_execution=ToolExecution(not_found_behavior="raise")),
        "calls in sequence": give("config", tool_execution=ToolExecution(mode="sequential")),
        "a budget that is spent": give("config", limits=UsageLimits(requests=1)),
        "a price that is missing": give("config", limits=UsageLimits(cost=1)),
    }
)

# ------------------------------------------------------------------------------------------------ unfinished runs

POOL: tuple[Callable[[str], Any], ...] = (
    lambda id: call("pay", {"item": id}, call_id=id),
    lambda id: call("pay", {"item": "same"}, call_id=id),
    lambda id: call("charge", {"item": id}, call_id=id),
    lambda id: call("look", {"item": id}, call_id=id),
    lambda id: call("save", {"item": "same"}, call_id=id),
    lambda id: call("ask", {}, call_id=id),
    lambda id: call("help_me", {"input": "stamp"}, call_id=id),
    lambda id: call("help_me", {"input": "note"}, call_id=id),
    lambda id: call("login", {"item": id}, call_id=id),
    lambda id: call("absent", {}, call_id=id),
    lambda id: call("charge", {"wrong": 1}, call_id=id),
    lambda id: call("transfer_to_back", call_id=id),
)
"""What the model of the outermost run may call."""


def draw_turns(rng: random.Random) -> list[list[Any]]:
    """Draw what the model calls in each turn; after a handoff it is the other agent, which has a tool."""
    turns: list[list[Any]] = []
    for turn in range(rng.choice((1, 1, 2))):
        made = rng.sample(POOL, rng.randint(1, 4))
        turns.append([one(f"c{turn}{index}") for index, one in enumerate(made)])
        if POOL[-1] in made:
            return [*turns, [call("file_it", {"item": "a"}, call_id="f1")]]
    return turns


def play(turns: Sequence[Any]) -> Any:
    """Return the model of yesterday, which answers with *turns*, and then with a text."""

    async def answer(request: Any) -> Any:
        if request.path:
            if len(request.items) > 1:
                return say("Helped.")
            name = request.items[-1].text
            return call(name, {"item": "n"}, call_id=f"{name}1")
        return turns[request.turn - 1] if request.turn <= len(turns) else say("Done.")

    return FunctionModel(answer)


async def record(turns: Sequence[Any], **config: Any) -> tuple[list[bytes], tuple[Record, ...]]:
    """Run the agents of yesterday; return the journal's lines, and its records."""
    agent, usual = today().build(play(turns))
    journal = MemoryJournal()
    result = await Runner.run(agent, "go", journal=journal, run_config=attrs.evolve(usual, **config))
    return list(await journal.read()), tuple(result.records)


def build(kind: str) -> tuple[Agent[Any, Any], RunConfig]:
    """Return the agents of today, with a change of *kind*."""
    desk = today()
    CHANGES[kind](desk)
    return desk.build(FunctionModel(note_request))
