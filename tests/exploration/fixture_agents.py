"""Fixture agents as data: tools with every policy and limit, guardrails, handoffs, nesting, hooks.

Calling a `FixtureAgents` returns its first agent, newly made: runs share nothing. Its `repr` shows all of its values.
It tells the invariants what its hooks, session and journal have noted, and how its guardrails and approvals decide.
Does not know about worlds or schedules.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from itertools import cycle
from typing import Any, ClassVar, Literal, TypeAlias

import anyio
import attrs
from anyio.lowlevel import checkpoint

from agentloop.abc import Codec
from agentloop.agents import Agent
from agentloop.config import RunConfig
from agentloop.context import ToolContext
from agentloop.guardrails import (
    Allow,
    GuardrailFunctionOutput,
    InputGuardrail,
    OutputGuardrail,
    RaiseException,
    RejectContent,
    ReplaceOutput,
    Rewrite,
    ToolInputData,
    ToolInputGuardrail,
    ToolOutputData,
    ToolOutputGuardrail,
)
from agentloop.handoffs import Handoff, HandoffInputData, handoff
from agentloop.items import AssistantMessage, Item, UserMessage
from agentloop.limits import Capacity, Rate
from agentloop.settings import ModelSettings
from agentloop.testing.invariants._observation import agents_of
from agentloop.testing.scripted import ScriptedModel
from agentloop.testing.simulation._case_maker import CaseMaker
from agentloop.tools import AgentCall, FunctionTool, HostedTool, StopAtTools, tool, tool_search

from .faults import playing
from .observers import AgentHookLog, HookLog, JournalLog, Listener, SessionLog

InputVerdict: TypeAlias = Literal["allow", "reject odd", "raise odd", "rewrite odd"]
OutputVerdict: TypeAlias = Literal["allow", "reject odd", "raise odd", "replace odd"]
RunVerdict: TypeAlias = Literal["pass", "trip", "pass late", "trip late"]
HandoffFilter: TypeAlias = Literal["everything", "messages", "newest", "before", "nothing", "nested"]
"""The next agent's view of the history: everything, messages alone, the turn of the handoff, the run's input,
nothing, a summary.
"""
LATE = 0.25
"""Seconds that a late guardrail takes."""


@attrs.frozen(kw_only=True)
class Actor:
    """One tool of a fixture agent. It takes a number `n`; guardrails and approvals act on odd numbers."""

    name: str
    raises: bool = False
    """True if its failures end the run."""
    timeout: float | None = None
    timeout_raises: bool = False
    serial: str | None = None
    exclusive: bool = False
    idempotent: bool = False
    shares: bool = False
    """True if its calls hold the capacity that the fixture agents share."""
    rated: bool = False
    before: tuple[InputVerdict, ...] = ()
    after: tuple[OutputVerdict, ...] = ()
    approval: bool = False
    """True if calls with an odd number wait for a verdict."""
    secret: bool = False
    """True if it takes a secret key, and returns a secret word."""
    wordy: bool = False
    """True if its output has `LONG` characters."""
    says: tuple[bool, ...] = ()
    """The results of its `is_enabled`, in turn and from the start again; empty: it has no such callback."""
    namespace: str | None = None
    in_thread: bool = False
    """True if it is a sync function."""
    idle: float | None = None
    """Its idle timeout, in seconds."""
    custom: bool = False
    """True if it takes free text in place of a number: for guardrails no text is odd, and each needs approval."""
    external: bool = False
    """True if the application answers its calls, with a number."""
    cost: int = 0
    """The cost of a call, in units of a run's cost limit."""
    agent: Role | None = None
    """The agent that it runs, if it is an agent tool."""
    own: RunConfig | None = None
    """The agent tool's own configuration."""
    deferred: bool = False
    """True if a search has to find it."""
    listens: tuple[float, int] | None = None
    """The agent tool's `on_stream`, if it has one: seconds for each event, and N to fail at every N-th event."""

    @property
    def qualified_name(self) -> str:
        """The name with its namespace."""
        return f"{self.namespace}.{self.name}" if self.namespace else self.name


LONG = 300
EVEN = "something even"
"""The replacement of an odd call's output by a guardrail; no other guardrail acts on it."""
KEY = "sesame"
WORD = "oracle"
CANARIES = (KEY, WORD, "confidant")
"""The words in secret arguments, in secret outputs, and in the opaque context of a secretive world."""


class OpaqueContext:
    """An opaque context: its `repr` is a canary."""

    def __repr__(self) -> str:
        return f"<{CANARIES[-1]}>"


class XorCodec:
    """The XOR codec: hides secrets in stored text, so that a search for the canaries finds only leaks."""

    def seal(self, data: bytes) -> bytes:
        """Return *data* with each bit inverted."""
        return bytes(byte ^ 0xFF for byte in data)

    def open(self, sealed: bytes) -> bytes:
        """Return the data that was sealed."""
        return self.seal(sealed)


XOR_CODEC = XorCodec()


@attrs.frozen(kw_only=True)
class Shelf:
    """A source of tools: what it gives in each turn that asks it, the last of these from then on."""

    answers: tuple[tuple[Actor, ...] | None, ...]
    """None: the source fails."""
    seconds: float = 0.0
    """How long each answer takes."""


class ShelfSource:
    """The source of one run that *shelf* describes."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf, self._asked = shelf, 0
        self._fickle = {actor: _function_tool(actor, ()) for one in shelf.answers for actor in one or () if actor.says}

    async def tools(self, ctx: Any, agent: Any) -> Sequence[FunctionTool]:
        """Return the tools of this turn."""
        place = min(self._asked, len(self._shelf.answers) - 1)
        self._asked += 1
        await anyio.sleep(self._shelf.seconds)
        answer = self._shelf.answers[place]
        if answer is None:
            raise RuntimeError("the shelf is shut")
        return [self._fickle.get(actor) or _free_tool(actor) for actor in answer]


@attrs.frozen(kw_only=True)
class Role:
    """One fixture agent."""

    name: str
    actors: tuple[Actor, ...] = ()
    """Its tools."""
    handoffs: tuple[str, ...] = ()
    """Names of other fixture agents."""
    judges: tuple[tuple[RunVerdict, bool], ...] = ()
    """Input guardrails: the verdict, and True if it runs beside the model."""
    last_judges: tuple[RunVerdict, ...] = ()
    """Output guardrails."""
    behavior: Literal["run_llm_again", "stop_on_first_tool", "stop_at_last"] = "run_llm_again"
    """Its `tool_use_behavior`; `"stop_at_last"`: a call of the last of its tools ends the run."""
    sequential: bool = False
    hooks: str | None = None
    """None: no hooks; otherwise it has hooks that fail at the first event of this name; `""` never fails."""
    chooses: bool = False
    """True if its model has to use a tool."""
    resets: bool = True
    """True if the model is free again once it has used a tool."""
    hosted: tuple[str, ...] = ()
    """Kinds of tools that the provider runs."""
    corrections: int | None = None
    """The agent's `output_retries`, and its output is a number; None: its output is text."""
    filter: HandoffFilter | None = None
    """The filter of its handoffs; None: the next agent's view is complete."""
    shelves: tuple[Shelf, ...] = ()
    """Its sources of tools."""
    searches: bool = False
    """True if it has a search for deferred tools."""


@attrs.frozen(kw_only=True)
class FixtureAgents(CaseMaker):
    """The agents of a world; the first one begins. `tokens` and `rate` bound the limits that its tools share."""

    codec: ClassVar[Codec | None] = XOR_CODEC

    roles: tuple[Role, ...]
    tokens: int = 2
    rate: int = 3
    per: float = 1.0

    @property
    def secretive(self) -> bool:
        """True if a tool keeps secrets, nested agents included."""
        actors = [actor for role in self.roles for actor in role.actors]
        return any(actor.secret or (actor.agent is not None and _keeps_secrets(actor.agent)) for actor in actors)

    def __call__(self) -> Agent[Any, Any]:
        shared, rated = Capacity(self.tokens, "shared"), Rate(self.rate, self.per, "rated")
        agents = {role.name: self._agent(role, shared, rated) for role in self.roles}
        for role in self.roles:
            targets: Any = agents[role.name].handoffs
            targets.extend(_handoff(agents[name], role.filter) for name in role.handoffs)
        return agents[self.roles[0].name]

    def adopt_models(self, agent: Agent[Any, Any], models: Any) -> None:
        """Give every agent the simulated models, for configurations that have none."""
        for one in agents_of(agent):
            one.model = models

    def observe(self, agent: Agent[Any, Any], hooks: Any, session: Any, journal: Any) -> Mapping[str, Any]:
        """Return what the observers of this run have noted."""
        found: dict[str, Any] = {}
        agent_hooks = {one.name: one.hooks for one in agents_of(agent) if isinstance(one.hooks, AgentHookLog)}
        failed = [one for log in (hooks, *agent_hooks.values()) if isinstance(log, _LOGS) for one in log.failed]
        journal_failed = isinstance(journal, JournalLog) and journal.failed
        if isinstance(hooks, HookLog):
            found |= {"hooks": hooks.noted, "hook_stamps": hooks.stamps}
        if isinstance(session, SessionLog):
            found |= {"writes": session.writes, "saved_before": session.before}
        if isinstance(journal, JournalLog):
            found["durable"] = journal.got
        session_failed = any(fails for _, _, fails in found.get("writes", ()))
        return {
            **found,
            "agent_hooks": {name: list(zip(log.stamps, log.noted, strict=True)) for name, log in agent_hooks.items()},
            "watchers_failed": failed,
            "heard": _collect_heard_events(agent),
            "journal_failed": journal_failed,
            "faultless": not (failed or session_failed or journal_failed),
            "canaries": CANARIES if self.secretive else (),
        }

    def needs_approval(self, tool: FunctionTool, arguments: Mapping[str, Any]) -> bool:
        """Return True if calls of *tool* need approval, or those with an odd number do and this is one."""
        odd_ones = tool.needs_approval is _needs_approval_if_odd
        return tool.needs_approval is True or (odd_ones and odd(dict(arguments)))

    def predict_verdict(
        self, guardrail: str, arguments: Mapping[str, Any], *, replaced: bool
    ) -> tuple[str, Mapping[str, Any]] | None:
        """Return the verdict that the guardrail's name says of an odd number, unless the output has been replaced."""
        said, number = _SAID.fullmatch(guardrail), arguments.get("n")
        if said is None or type(number) is not int:
            return None
        verdict = _KINDS[said[1]] if number % 2 and not replaced else "Allow"
        return verdict, {**arguments, "n": number + (verdict == "Rewrite")}

    def filter_handoff(self, input_filter: object, data: HandoffInputData) -> HandoffInputData | None:
        """Return *data* as a `Filter` leaves it: its result depends on *data* alone."""
        return input_filter(data) if isinstance(input_filter, Filter) else None

    def _agent(self, role: Role, shared: Capacity, rated: Rate) -> Agent[Any, Any]:
        return Agent(
            role.name,
            instructions=f"You are {role.name}.",
            tools=[
                *(self._tool(actor, shared, rated) for actor in role.actors),
                *map(HostedTool, role.hosted),
                *([tool_search()] if role.searches else ()),
            ],
            toolsets=list(map(ShelfSource, role.shelves)),
            handoffs=[],
            input_guardrails=[
                InputGuardrail(_make_judge(verdict), name=f"{role.name}: input {index}", run_in_parallel=beside)
                for index, (verdict, beside) in enumerate(role.judges)
            ],
            output_guardrails=[
                OutputGuardrail(_make_judge(verdict), name=f"output {index}")
                for index, verdict in enumerate(role.last_judges)
            ],
            tool_use_behavior=_make_behavior(role),
            tool_execution="sequential" if role.sequential else "concurrent",
            hooks=AgentHookLog(role.hooks) if role.hooks is not None else None,
            model=_NO_MODEL,
            model_settings=_MUST_USE_A_TOOL if role.chooses else _NO_SETTINGS,
            reset_tool_choice=role.resets,
            output_type=None if role.corrections is None else int,
            output_retries=role.corrections or 0,
        )

    def _tool(self, actor: Actor, shared: Capacity, rated: Rate) -> FunctionTool:
        if actor.agent is not None:
            inner = self._agent(actor.agent, shared, rated)
            listener = Listener(*actor.listens) if actor.listens is not None else None
            return inner.as_tool(
                actor.name, "An agent.", on_stream=listener, run_config=actor.own, **_tool_options(actor)
            )
        if not actor.shares and not actor.rated and not actor.says:
            return _free_tool(actor)
        return _function_tool(actor, [*([shared] if actor.shares else []), *([rated] if actor.rated else [])])


_SAID = re.compile(r"(?:before|after) [0-9]+: (\w+)( odd)?")
_KINDS = {
    "allow": "Allow",
    "reject": "RejectContent",
    "raise": "RaiseException",
    "rewrite": "Rewrite",
    "replace": "ReplaceOutput",
}
_LOGS = (HookLog, AgentHookLog)


def _collect_heard_events(agent: Agent[Any, Any]) -> dict[tuple[str, str], list[tuple[int, Any]]]:
    """Return the events that listeners of agent tools received, by the names of the agent and the tool."""
    tools = ((one, tool) for one in agents_of(agent) for tool in one.functions)
    found = ((one, tool, tool.body.on_stream) for one, tool in tools if isinstance(tool.body, AgentCall))
    return {(one.name, tool.name): listener.heard for one, tool, listener in found if isinstance(listener, Listener)}


def _make_behavior(role: Role) -> Any:
    return StopAtTools([role.actors[-1].name]) if role.behavior == "stop_at_last" else role.behavior


_NO_MODEL = ScriptedModel(())
"""The model of every fixture agent: a replay calls no model, and a world replaces it by its own."""
_NO_SETTINGS = ModelSettings()
_MUST_USE_A_TOOL = ModelSettings(tool_choice="required")


@attrs.frozen
class Filter:
    """The input filter of a fixture agent's handoff."""

    kind: HandoffFilter

    def __call__(self, data: HandoffInputData) -> HandoffInputData:
        """Return *data* without the items that this kind removes."""
        if self.kind == "everything":
            return data
        if self.kind == "nothing":
            return data.replace(input_items=())
        if self.kind == "newest":
            return data.replace(input_history=(), pre_handoff_items=())
        if self.kind == "before":
            return data.replace(input_items=data.input_history)
        parts = (data.input_history, data.pre_handoff_items, data.new_items)
        history, before, new = (tuple(filter(_is_message, items)) for items in parts)
        return data.replace(input_history=history, pre_handoff_items=before, new_items=new)


def _is_message(item: Item) -> bool:
    return isinstance(item, UserMessage | AssistantMessage)


def _handoff(agent: Agent[Any, Any], kind: HandoffFilter | None) -> Handoff:
    if kind is None:
        return handoff(agent)
    return handoff(agent, nest_handoff_history=True) if kind == "nested" else handoff(agent, input_filter=Filter(kind))


def _keeps_secrets(role: Role) -> bool:
    return FixtureAgents(roles=(role,)).secretive


def _tool_options(actor: Actor) -> dict[str, Any]:
    common: dict[str, Any] = {
        "tool_input_guardrails": [
            ToolInputGuardrail(_make_before(verdict), name=f"before {index}: {verdict}")
            for index, verdict in enumerate(actor.before)
        ],
        "tool_output_guardrails": [
            ToolOutputGuardrail(_make_after(verdict), name=f"after {index}: {verdict}")
            for index, verdict in enumerate(actor.after)
        ],
        "timeout": actor.timeout,
        "timeout_behavior": "raise" if actor.timeout_raises else "tell_model",
    }
    if actor.raises:
        common["failure_error_function"] = None
    if actor.approval:
        common["needs_approval"] = actor.custom or _needs_approval_if_odd
    if actor.says:
        common["is_enabled"] = _make_is_enabled(actor.says)
    return common


@lru_cache(256)
def _free_tool(actor: Actor) -> FunctionTool:
    """Return *actor*'s tool. It is cached: no run changes it, and worlds run thousands of times a minute."""
    return _function_tool(actor, ())


def _function_tool(actor: Actor, limits: Sequence[Capacity | Rate]) -> FunctionTool:
    name = actor.qualified_name
    if actor.custom:
        base = _custom_base(name)
    elif actor.external:
        base = _external_base()
    elif actor.secret:
        base = _secret_base()
    else:
        base = _wordy_base(name) if actor.wordy else _base(name, actor.in_thread)
    return attrs.evolve(
        base,
        name=actor.name,
        namespace=actor.namespace,
        defer_loading=actor.deferred,
        cost=_make_price(actor.cost) if actor.cost else None,
        idle_timeout=actor.idle,
        # A sync function can't be stopped.
        abandon_on_cancel=actor.in_thread and actor.timeout is not None,
        serial=actor.serial,
        exclusive=actor.exclusive,
        idempotent=actor.idempotent,
        capacity=limits,
        **_tool_options(actor),
    )


@lru_cache(256)
def _base(name: str, in_thread: bool) -> FunctionTool:
    """Return a tool that returns its *name* and its number: the output shows which call ran with which arguments."""

    async def body(ctx: ToolContext[Any], n: int) -> str:
        """Do something with a number."""
        part = playing.get()
        if part is not None and part[1].call_id == ctx.tool_call_id:
            playing.set(None)
            return str(await part[0].play(part[1], ctx))
        return f"{name} {n}"

    def in_its_thread(n: int) -> str:
        """Do something with a number."""
        return f"{name} {n}"

    return tool(in_its_thread if in_thread else body)


@lru_cache(256)
def _custom_base(name: str) -> FunctionTool:
    async def body(ctx: ToolContext[Any], n: str) -> str:
        """Do something with a text."""
        part = playing.get()
        if part is not None and part[1].call_id == ctx.tool_call_id:
            playing.set(None)
            return str(await part[0].play(part[1], ctx))
        return f"{name} {n}"

    return tool(kind="custom")(body)


@cache
def _external_base() -> FunctionTool:
    @tool(external=True)
    def question(n: int) -> int:
        """Ask the application about a number."""

    return question


@lru_cache(256)
def _wordy_base(name: str) -> FunctionTool:
    async def body(ctx: ToolContext[Any], n: int) -> str:
        """Say much about a number."""
        return f"{name} {n}".ljust(LONG - 1, ".") + "!"

    return tool(body)


@cache
def _make_price(cost: int) -> Callable[[dict[str, Any]], int]:
    def price(arguments: dict[str, Any]) -> int:
        return cost

    return price


@cache
def _secret_base() -> FunctionTool:
    async def body(ctx: ToolContext[Any], n: int, key: str = "") -> str:
        """Do something with a number, for who has the key."""
        part = playing.get()
        if part is not None and part[1].call_id == ctx.tool_call_id:
            playing.set(None)
            await part[0].play(part[1], ctx)
        return f"{WORD} {n}"

    return tool(secret=["key"], secret_output=True)(body)


def _make_is_enabled(says: Sequence[bool]) -> Callable[..., Any]:
    answers = cycle(says)

    async def enabled(ctx: Any, agent: Any) -> bool:
        await checkpoint()
        return next(answers)

    return enabled


async def _needs_approval_if_odd(ctx: Any, arguments: dict[str, Any], call_id: str) -> bool:
    return bool(arguments.get("n", 1) % 2)


def odd(arguments: dict[str, Any] | None) -> bool:
    """Return True if a call's number is odd: guardrails, approvals and policies of fixture agents act on these."""
    number = (arguments or {}).get("n", 0)
    return isinstance(number, int) and number % 2 == 1


def _make_before(verdict: InputVerdict) -> Callable[[ToolInputData], Any]:
    async def before(data: ToolInputData) -> Any:
        await checkpoint()
        if verdict == "allow" or not odd(data.arguments):
            return Allow()
        if verdict == "reject odd":
            return RejectContent("not an odd one")
        return RaiseException() if verdict == "raise odd" else Rewrite({"n": (data.arguments or {})["n"] + 1})

    return before


def _make_after(verdict: OutputVerdict) -> Callable[[ToolOutputData], Any]:
    async def after(data: ToolOutputData) -> Any:
        await checkpoint()
        if verdict == "allow" or not odd(data.arguments) or data.output == EVEN:
            return Allow()
        if verdict == "reject odd":
            return RejectContent("nothing odd")
        return RaiseException() if verdict == "raise odd" else ReplaceOutput(EVEN)

    return after


def _make_judge(verdict: RunVerdict) -> Callable[..., Any]:
    async def judge(ctx: Any, agent: Any, given: Any) -> GuardrailFunctionOutput:
        await (anyio.sleep(LATE) if verdict.endswith("late") else checkpoint())
        return GuardrailFunctionOutput(None, verdict.startswith("trip"))

    return judge
