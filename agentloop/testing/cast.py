"""Agents of generated worlds, as data: tools with every policy and limit, guardrails, handoffs, nesting.

A `Cast` called gives its first agent with everything fresh: no run of it knows of another. Its `repr` says all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from itertools import cycle
from typing import Any, Literal, TypeAlias

import attrs
from anyio.lowlevel import checkpoint

from agentloop.agents import Agent
from agentloop.context import ToolContext
from agentloop.guardrail_results import (
    Allow,
    GuardrailFunctionOutput,
    RaiseException,
    RejectContent,
    ReplaceOutput,
    Rewrite,
)
from agentloop.guardrails import (
    InputGuardrail,
    OutputGuardrail,
    ToolInputData,
    ToolInputGuardrail,
    ToolOutputData,
    ToolOutputGuardrail,
)
from agentloop.handoffs import handoff
from agentloop.hooks import RunHooks
from agentloop.limits import Capacity, Rate
from agentloop.testing.parts import playing
from agentloop.tools import FunctionTool, tool

InputVerdict: TypeAlias = Literal["allow", "reject odd", "raise odd", "rewrite odd"]
OutputVerdict: TypeAlias = Literal["allow", "reject odd", "raise odd", "replace odd"]
RunVerdict: TypeAlias = Literal["pass", "trip"]


@attrs.frozen(kw_only=True)
class Actor:
    """One tool. It takes a number `n`, which guardrails and approvals go by: odd ones are theirs."""

    name: str
    raises: bool = False
    """Whether its failures leave the run."""
    timeout: float | None = None
    timeout_raises: bool = False
    serial: str | None = None
    exclusive: bool = False
    idempotent: bool = False
    shares: bool = False
    """Whether it holds the cast's capacity."""
    rated: bool = False
    before: tuple[InputVerdict, ...] = ()
    after: tuple[OutputVerdict, ...] = ()
    approval: bool = False
    """Whether calls with an odd number wait for a verdict."""
    secret: bool = False
    """Whether it takes a key that is secret, and gives a secret word."""
    wordy: bool = False
    """Whether what it gives is long: LONG characters."""
    says: tuple[bool, ...] = ()
    """What it answers, in turn and over again, when it is asked whether it is enabled; nobody asks one without."""
    agent: Role | None = None
    """Given: an agent tool that runs this one."""


LONG = 300
KEY = "sesame"
WORD = "oracle"
CANARIES = (KEY, WORD, "confidant")
"""What stands in secret arguments, in secret outputs, and in the application's object of a secretive world."""


class Confidant:
    """An application's object that nobody has to show."""

    def __repr__(self) -> str:
        return f"<{CANARIES[-1]}>"


class Veil:
    """Seals what is secret so that it doesn't stand there to be read: enough for words that nobody may repeat."""

    def seal(self, data: bytes) -> bytes:
        """Return *data* with each bit turned."""
        return bytes(byte ^ 0xFF for byte in data)

    def open(self, sealed: bytes) -> bytes:
        """Turn the bits back."""
        return self.seal(sealed)


VEIL = Veil()


@attrs.frozen(kw_only=True)
class Role:
    """One agent."""

    name: str
    actors: tuple[Actor, ...] = ()
    handoffs: tuple[str, ...] = ()
    """Names of agents of the cast."""
    judges: tuple[tuple[RunVerdict, bool], ...] = ()
    """Input guardrails: what they say, and whether they run beside the model."""
    last_judges: tuple[RunVerdict, ...] = ()
    """Output guardrails."""
    behavior: Literal["run_llm_again", "stop_on_first_tool"] = "run_llm_again"
    sequential: bool = False


@attrs.frozen(kw_only=True)
class Cast:
    """The agents of a world; the first one begins. `tokens` and `rate` bound what its tools share."""

    roles: tuple[Role, ...]
    tokens: int = 2
    rate: int = 3
    per: float = 1.0

    @property
    def secretive(self) -> bool:
        """Whether a tool of it keeps secrets."""
        actors = [actor for role in self.roles for actor in role.actors]
        return any(actor.secret or (actor.agent is not None and _keeps_secrets(actor.agent)) for actor in actors)

    def __call__(self) -> Agent[Any, Any]:
        shared, rated = Capacity(self.tokens, "shared"), Rate(self.rate, self.per, "rated")
        agents = {role.name: self._agent(role, shared, rated) for role in self.roles}
        for role in self.roles:
            targets: Any = agents[role.name].handoffs
            targets.extend(handoff(agents[name]) for name in role.handoffs)
        return agents[self.roles[0].name]

    def _agent(self, role: Role, shared: Capacity, rated: Rate) -> Agent[Any, Any]:
        return Agent(
            role.name,
            instructions=f"You are {role.name}.",
            tools=[self._tool(actor, shared, rated) for actor in role.actors],
            handoffs=[],
            input_guardrails=[
                InputGuardrail(_judge(verdict), name=f"input {index}", run_in_parallel=beside)
                for index, (verdict, beside) in enumerate(role.judges)
            ],
            output_guardrails=[
                OutputGuardrail(_judge(verdict), name=f"output {index}")
                for index, verdict in enumerate(role.last_judges)
            ],
            tool_use_behavior=role.behavior,
            tool_execution="sequential" if role.sequential else "concurrent",
        )

    def _tool(self, actor: Actor, shared: Capacity, rated: Rate) -> FunctionTool:
        if actor.agent is not None:
            return self._agent(actor.agent, shared, rated).as_tool(actor.name, "An agent.", **_common(actor))
        if not actor.shares and not actor.rated and not actor.says:
            return _free_tool(actor)
        return _function_tool(actor, [*([shared] if actor.shares else []), *([rated] if actor.rated else [])])


def _keeps_secrets(role: Role) -> bool:
    return Cast(roles=(role,)).secretive


def _common(actor: Actor) -> dict[str, Any]:
    common: dict[str, Any] = {
        "tool_input_guardrails": [
            ToolInputGuardrail(_before(verdict), name=f"before {index}") for index, verdict in enumerate(actor.before)
        ],
        "tool_output_guardrails": [
            ToolOutputGuardrail(_after(verdict), name=f"after {index}") for index, verdict in enumerate(actor.after)
        ],
        "timeout": actor.timeout,
        "timeout_behavior": "raise_exception" if actor.timeout_raises else "error_as_result",
    }
    if actor.raises:
        common["failure_error_function"] = None
    if actor.approval:
        common["needs_approval"] = _odd_ones
    if actor.says:
        common["is_enabled"] = _answering(actor.says)
    return common


@lru_cache(256)
def _free_tool(actor: Actor) -> FunctionTool:
    """Return *actor*'s tool, which holds nothing that a run changes: a world is run thousands of times a minute."""
    return _function_tool(actor, ())


def _function_tool(actor: Actor, limits: Sequence[Capacity | Rate]) -> FunctionTool:
    return attrs.evolve(
        _secret_base() if actor.secret else _wordy_base() if actor.wordy else _base(),
        name=actor.name,
        serial=actor.serial,
        exclusive=actor.exclusive,
        idempotent=actor.idempotent,
        capacity=limits,
        **_common(actor),
    )


@cache
def _base() -> FunctionTool:
    async def body(ctx: ToolContext[Any], n: int) -> str:
        """Do something with a number."""
        part = playing.get()
        if part is not None and part[1].call_id == ctx.tool_call_id:
            playing.set(None)
            return str(await part[0].play(part[1], ctx))
        return f"{ctx.tool_name} {n}"

    return tool(body)


@cache
def _wordy_base() -> FunctionTool:
    async def body(ctx: ToolContext[Any], n: int) -> str:
        """Say much about a number."""
        return f"{ctx.tool_name} {n}".ljust(LONG - 1, ".") + "!"

    return tool(body)


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


def _answering(says: Sequence[bool]) -> Callable[..., Any]:
    answers = cycle(says)

    async def enabled(ctx: Any, agent: Any) -> bool:
        await checkpoint()
        return next(answers)

    return enabled


async def _odd_ones(ctx: Any, arguments: dict[str, Any], call_id: str) -> bool:
    return bool(arguments.get("n", 1) % 2)


def says_odd(needs_approval: object) -> bool:
    """Tell whether this is how an actor's tool says which of its calls need approval: those with an odd number."""
    return needs_approval is _odd_ones


def odd(arguments: dict[str, Any] | None) -> bool:
    """Tell whether a call's number is odd: that is what guardrails, approvals and policies of a cast go by."""
    number = (arguments or {}).get("n", 0)
    return isinstance(number, int) and number % 2 == 1


def _before(verdict: InputVerdict) -> Callable[[ToolInputData], Any]:
    async def before(data: ToolInputData) -> Any:
        await checkpoint()
        if verdict == "allow" or not odd(data.arguments):
            return Allow()
        if verdict == "reject odd":
            return RejectContent("not an odd one")
        return RaiseException() if verdict == "raise odd" else Rewrite({"n": (data.arguments or {})["n"] + 1})

    return before


def _after(verdict: OutputVerdict) -> Callable[[ToolOutputData], Any]:
    async def after(data: ToolOutputData) -> Any:
        await checkpoint()
        if verdict == "allow" or not odd(data.arguments):
            return Allow()
        if verdict == "reject odd":
            return RejectContent("nothing odd")
        return RaiseException() if verdict == "raise odd" else ReplaceOutput("something even")

    return after


def _judge(verdict: RunVerdict) -> Callable[..., Any]:
    async def judge(ctx: Any, agent: Any, given: Any) -> GuardrailFunctionOutput:
        await checkpoint()
        return GuardrailFunctionOutput(None, verdict == "trip")

    return judge


class HookLog(RunHooks):
    """Hooks that write down what they are told: `told` has event, path and the call's id or the agent's name."""

    def __init__(self) -> None:
        self.told: list[tuple[str, tuple[str, ...], str]] = []

    def _add(self, event: str, ctx: Any, name: str) -> None:
        # A nested run's id is its caller's, a slash, and the call it runs in.
        path = tuple(ctx.run_id.split("/")[1:]) if ctx.run_id else ()
        self.told.append((event, path, name))

    async def on_run_end(self, ctx: Any, outcome: Any) -> None:
        self._add("run_end", ctx, outcome.status)

    async def on_agent_start(self, ctx: Any, agent: Any) -> None:
        self._add("agent_start", ctx, agent.name)

    async def on_agent_end(self, ctx: Any, agent: Any, output: Any) -> None:
        self._add("agent_end", ctx, agent.name)

    async def on_llm_start(self, ctx: Any, agent: Any, system: Any, input: Any) -> None:
        await checkpoint()
        self._add("llm_start", ctx, agent.name)

    async def on_llm_end(self, ctx: Any, agent: Any, response: Any) -> None:
        self._add("llm_end", ctx, agent.name)

    async def on_tool_start(self, ctx: Any, agent: Any, tool: Any) -> None:
        self._add("tool_start", ctx, ctx.tool_call_id)
        await checkpoint()

    async def on_tool_end(self, ctx: Any, agent: Any, tool: Any, outcome: Any) -> None:
        self._add("tool_end", ctx, ctx.tool_call_id)
        await checkpoint()
