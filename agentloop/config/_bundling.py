"""Bundles: what belongs together beside an agent, and how it becomes parts of the agent.

Theory. A bundle says nothing that an agent couldn't say by itself. So an agent with bundles is made an ordinary agent
when it is constructed, and a run's configuration when the run begins: the engine knows no bundle. The parts of the
bundles come in their order, and those of the agent after them, except for the instructions, which begin with the
agent's own:

    instructions        the agent's own, then each bundle's under a heading with its name
    tools, toolsets     the bundles', then the agent's own; of two tools with one name the policy about names decides,
                        by which the later one is used
    guardrails          the bundles', then the agent's own
    policies            all are asked, the strictest decision holds
    hooks               start events: the bundles', then the agent's own; end events in the reverse order
    model settings      one by one: the agent's own wins, then the last bundle that has it
    context policy      the agent's own, else that of the last bundle that has one

`open` is the one thing that needs a run: a bundle with it is also a source of tools that gives none, which a run asks
before the first request of each of its agents. A resumed run asks again, and so opens again.

Decisions:

Merged when the agent is made, and not in each turn. What a model is shown and what the log says of the agent is then
visible before any run, `Agent.tools` has every tool, and no step of a run has to know of bundles. The price is that the
lists of such an agent are its own: a tool that is appended to the caller's list later isn't seen, one that is appended
to `agent.tools` is. Rejected: a copy of all agents when a run begins, because hooks and events are given the
application's very agent.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs

from agentloop._common.checks import FIELDS, Validator, either, fits, has, is_a, is_texts, optional
from agentloop._common.error_text import message_of
from agentloop._common.errors import AgentLoopError, ToolSourceError, UserTypeError, UserValueError
from agentloop._common.naming import takes
from agentloop._common.values import ReprByFields, Value
from agentloop.config.hooks import AgentHooks
from agentloop.context import Callback, RunContext
from agentloop.guardrails import InputGuardrail, OutputGuardrail
from agentloop.settings import ModelSettings
from agentloop.tools import AgentCall, FunctionTool, HostedTool, ToolSource

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@attrs.define(eq=False, repr=False)
class Bundle(ReprByFields):
    """Instructions, tools, guardrails and other things that belong together beside an agent.

    `Agent(bundles=[…])` gives it to an agent, `RunConfig(bundles=[…])` to every agent of a run. The agent is then
    equal to one with these parts written out; the how-to page has a table of their order. A bundle for a run
    can't have hooks, agents as tools or tools of the provider: only an agent has them.

    Subclass it to open something: override `open`, and use `opened` in the bodies of the tools. An agent reads its
    bundles when it is made, a run those of its configuration when it begins.

    Attributes:
        name: The heading of the instructions, and the name in errors and in `Agent.describe`. No two bundles of an
            agent, or of a run's configuration, have one name.
        instructions: Text, or a callable of `(ctx, agent)`, sync or async, that returns text or None each turn.
        tools: Tools, tools of the provider, and sources of tools.
        input_guardrails, output_guardrails: As those of `Agent`.
        policies: Policies that decide on every call of the agent, also of tools that aren't the bundle's.
        hooks: Methods that the run calls while the agent is active, beside its own.
        context: The `ContextPolicy` of an agent that has none.
        model_settings: Settings that hold where the agent has none.
        shared: True if what `open` opens is shared by all runs that can share it, nested runs included, as by
            `RunContext.shared_resource`; otherwise each run opens its own.

    Example:
        from agentloop import Agent, Bundle, Runner, tool
        from agentloop.testing import ScriptedModel, call, say

        @tool
        def add(a: int, b: int) -> int:
            "Add two numbers."
            return a + b

        sums = Bundle("sums", instructions="Never add in your head.", tools=[add])
        model = ScriptedModel([call("add", {"a": 2, "b": 3}), say("It is 5.")])
        agent = Agent("calculator", model=model, bundles=[sums])
        print(Runner.run_sync(agent, "What is 2 + 3?").final_output)  # It is 5.
        print([tool.name for tool in agent.tools])  # ['add']
    """

    name: str = attrs.field(validator=FIELDS.words())
    instructions: str | Callback | None = attrs.field(
        default=None,
        kw_only=True,
        validator=optional(FIELDS.needs("expected text or a callable", is_a(str, Callable))),
    )
    tools: Sequence[FunctionTool[Any] | HostedTool | ToolSource] = attrs.field(
        default=(),
        kw_only=True,
        validator=FIELDS.each("a tool or a ToolSource", either(is_a(FunctionTool, HostedTool), has("tools"))),
    )
    input_guardrails: Sequence[InputGuardrail] = attrs.field(
        default=(), kw_only=True, validator=FIELDS.each("an InputGuardrail", is_a(InputGuardrail))
    )
    output_guardrails: Sequence[OutputGuardrail] = attrs.field(
        default=(), kw_only=True, validator=FIELDS.each("an OutputGuardrail", is_a(OutputGuardrail))
    )
    # Any, as the modules of `Policy` and `ContextPolicy` are above this one.
    policies: Sequence[Any] = attrs.field(
        default=(), kw_only=True, validator=FIELDS.each("a Policy (with `decide`)", has("decide"))
    )
    hooks: AgentHooks | None = attrs.field(
        default=None, kw_only=True, validator=optional(FIELDS.needs("expected AgentHooks", is_a(AgentHooks)))
    )
    context: Any = attrs.field(
        default=None,
        kw_only=True,
        validator=optional(FIELDS.needs("expected ContextPolicy(…)", fits(lambda value: hasattr(value, "steps")))),
    )
    model_settings: ModelSettings | None = attrs.field(
        default=None, kw_only=True, validator=optional(FIELDS.a(ModelSettings))
    )
    shared: bool = attrs.field(default=False, kw_only=True, validator=FIELDS.flag())

    async def open(self, ctx: RunContext[Any]) -> AbstractAsyncContextManager[Any] | None:
        """Return a context manager that the run enters before the first request of the bundle's agent, and leaves.

        None, which is the default, opens nothing. It is entered and left in its own task: once in each run, even if
        several agents have the bundle, and again in a resumed run. The run leaves it before it ends, in reverse order.

        Cancellation: the run's; it must pass.

        Raises:
            Exception: ends the run with `ToolSourceError`, before its first request; it can be resumed.
        """
        return None

    async def opened(self, ctx: RunContext[Any]) -> Any:
        """Return the value of what `open` opened for this run; for bodies of tools and callbacks.

        Cancellation: a checkpoint, if nothing has opened it yet.
        """
        held = _Opening(self, ctx)
        return await (ctx.shared_resource(held) if self.shared else ctx.resource(held))

    def brings(self) -> list[str]:
        """Return in words what this bundle brings to an agent: names of fields, and behind a colon those of tools."""
        parts = parts_of(self)
        names = [tool.qualified_name if isinstance(tool, FunctionTool) else tool.kind for tool in parts["tools"]]
        single = ("instructions", "hooks", "context", "model_settings")
        return [
            *(name for name in single if getattr(self, name) is not None),
            *([f"tools: {', '.join(names)}"] if names else []),
            *(name for name in SEQUENCES[1:] if parts[name]),
        ]


class _Opening(Value, frozen=True, eq=False):
    """Opens a bundle. Equal for one bundle, so that a run opens it once."""

    bundle: Bundle
    ctx: RunContext[Any]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Opening) and other.bundle is self.bundle

    def __hash__(self) -> int:
        return hash(self.bundle)

    @asynccontextmanager
    async def _enter(self) -> AsyncIterator[Any]:
        manager = await self.bundle.open(self.ctx)
        if manager is None:
            yield None
            return
        async with manager as value:
            yield value

    def __call__(self) -> AbstractAsyncContextManager[Any]:
        return self._enter()


class Opener(Value, frozen=True, eq=False):
    """A source without tools: that it is asked before a turn opens its bundle."""

    bundle: Bundle

    @property
    def name(self) -> str:
        return self.bundle.name

    async def tools(self, ctx: RunContext[Any], agent: Any) -> Sequence[FunctionTool[Any]]:
        try:
            await self.bundle.opened(ctx)
        except AgentLoopError:
            raise
        except Exception as error:
            name = self.bundle.name
            text = f"bundle {name!r} can't be opened: {type(error).__name__}: {message_of(error)}"
            raise ToolSourceError(text, source=name) from error
        return ()


class GivenTools(Value, frozen=True, eq=False):
    """The source of the tools that a bundle gives to every agent of a run."""

    name: str
    given: tuple[FunctionTool[Any], ...]

    async def tools(self, ctx: RunContext[Any], agent: Any) -> Sequence[FunctionTool[Any]]:
        return self.given


def without_opening(source: ToolSource) -> GivenTools | None:
    """Return the substitute of a source of a bundle where nothing may be opened; None for any other source."""
    if isinstance(source, Opener):
        return GivenTools(source.name, ())
    return source if isinstance(source, GivenTools) else None


# ------------------------------------------------------------------------------------ parts

SEQUENCES = ("tools", "toolsets", "input_guardrails", "output_guardrails", "policies")
"""The fields of an agent that are sequences, and that bundles add to."""


def parts_of(bundle: Bundle) -> dict[str, list[Any]]:
    """Return what *bundle* adds to the sequences of an agent."""
    own = [tool for tool in bundle.tools if isinstance(tool, FunctionTool | HostedTool)]
    sources: list[Any] = [tool for tool in bundle.tools if not isinstance(tool, FunctionTool | HostedTool)]
    if type(bundle).open is not Bundle.open:
        sources.append(Opener(bundle))
    return {
        "tools": own,
        "toolsets": sources,
        **{name: list(getattr(bundle, name)) for name in SEQUENCES[2:]},
    }


def merge_sequences(bundles: Iterable[Bundle]) -> dict[str, Any]:
    """Return the parts of all *bundles*, in order, for each sequence of an agent."""
    merged: dict[str, Any] = {name: [] for name in SEQUENCES}
    for bundle in bundles:
        for name, parts in parts_of(bundle).items():
            merged[name] += parts
    return merged


def merge_settings(bundles: Iterable[Bundle], own: ModelSettings) -> ModelSettings:
    """Return the settings of *bundles* with *own* over them."""
    merged = ModelSettings()
    for bundle in bundles:
        merged = merged.resolve(bundle.model_settings)
    return merged.resolve(own)


def merge_context(bundles: Sequence[Bundle], own: Any) -> Any:
    """Return *own*, or the context policy of the last of *bundles* that has one."""
    return own or next((bundle.context for bundle in reversed(bundles) if bundle.context is not None), None)


def merge_hooks(bundles: Iterable[Bundle], own: AgentHooks | None) -> AgentHooks | None:
    """Return hooks that call those of *bundles* and then *own*; at an end in the reverse order."""
    given = [hooks for hooks in (*(bundle.hooks for bundle in bundles), own) if hooks is not None]
    return _HooksInOrder(given) if len(given) > 1 else (given[0] if given else None)


def merge_instructions(bundles: Iterable[Bundle], own: Any) -> Any:
    """Return *own* instructions with those of *bundles*: as texts where all are texts, else as a callable."""
    more = [(bundle.name, bundle.instructions) for bundle in bundles if bundle.instructions is not None]
    if not more:
        return own
    if not callable(own) and not any(callable(given) for _, given in more):
        return _join(own, [_under_heading(name, str(given)) for name, given in more])
    return partial(_call_instructions, own, more)


def _under_heading(name: str, text: str) -> str:
    return f"## {name}\n\n{text}"


def _join(own: Any, texts: list[str]) -> Any:
    """Return *own*, a text, several or None, followed by *texts*: several texts stay several."""
    if own is None or isinstance(own, str):
        return "\n\n".join([*([own] if own else []), *texts])
    return [*own, *texts]


async def _call_instructions(own: Any, more: list[tuple[str, str | Callback]], ctx: RunContext[Any], agent: Any) -> Any:
    texts = []
    given = await _text_of(own, f"Agent.instructions of {agent.name!r}", ctx, agent)
    if given is not None and not isinstance(given, str) and not is_texts(given):
        return given  # the engine says what is wrong with it
    for name, instructions in more:
        place = f"Bundle.instructions of {name!r}"
        text = await _text_of(instructions, place, ctx, agent)
        if text is not None and not isinstance(text, str):
            raise UserTypeError(f"{place} must return text, not {text!r}")
        if text:
            texts.append(_under_heading(name, text))
    return _join(given, texts) if texts else given


async def _text_of(given: Any, place: str, ctx: RunContext[Any], agent: Any) -> Any:
    """Return *given*, or what it returns if it is a callable; *place* names it in an error."""
    if not callable(given):
        return given
    if not takes(given, 2):
        raise UserTypeError(f"{place}: expected a callable of (ctx, agent), got {given!r}")
    result: Any = given(ctx, agent)
    return await result if isinstance(result, Awaitable) else result


class _HooksInOrder(AgentHooks):
    """Several hooks as one."""

    def __init__(self, given: Sequence[AgentHooks]) -> None:
        self._given = given

    async def _call(self, name: str, *args: Any, reverse: bool = False) -> None:
        for hooks in reversed(self._given) if reverse else self._given:
            result: Any = getattr(hooks, name)(*args)
            if isinstance(result, Awaitable):
                await result

    async def on_start(self, ctx: RunContext[Any], agent: Any) -> None:
        await self._call("on_start", ctx, agent)

    async def on_end(self, ctx: RunContext[Any], agent: Any, output: Any) -> None:
        await self._call("on_end", ctx, agent, output, reverse=True)

    async def on_handoff_out(self, ctx: RunContext[Any], agent: Any, to_agent: Any) -> None:
        await self._call("on_handoff_out", ctx, agent, to_agent)

    async def on_handoff_in(self, ctx: RunContext[Any], agent: Any, from_agent: Any) -> None:
        await self._call("on_handoff_in", ctx, agent, from_agent)

    async def on_llm_start(self, ctx: RunContext[Any], agent: Any, system: str | None, input: Any) -> None:
        await self._call("on_llm_start", ctx, agent, system, input)

    async def on_llm_end(self, ctx: RunContext[Any], agent: Any, response: Any) -> None:
        await self._call("on_llm_end", ctx, agent, response, reverse=True)

    async def on_tool_start(self, ctx: Any, agent: Any, tool: Any) -> None:
        await self._call("on_tool_start", ctx, agent, tool)

    async def on_tool_end(self, ctx: Any, agent: Any, tool: Any, outcome: Any) -> None:
        await self._call("on_tool_end", ctx, agent, tool, outcome, reverse=True)


# ------------------------------------------------------------------------------------ bundles of a run


def can_serve_run(bundle: object) -> bool:
    """Tell whether *bundle* has nothing that only an agent can have."""
    if not isinstance(bundle, Bundle) or bundle.hooks is not None:
        return False
    return not any(isinstance(tool, HostedTool) or _is_agent(tool) for tool in bundle.tools)


def _is_agent(tool: object) -> bool:
    return isinstance(tool, FunctionTool) and isinstance(tool.body, AgentCall)


def sources_for_run(bundle: Bundle) -> list[ToolSource]:
    """Return the sources of tools that *bundle* gives to every agent of a run."""
    parts = parts_of(bundle)
    return [*([GivenTools(bundle.name, tuple(parts["tools"]))] if parts["tools"] else []), *parts["toolsets"]]


def _with_names_of_their_own(one: Validator) -> Validator:
    """Return the validator of bundles, each of which passes *one*, and no two of which have one name."""

    def validate(owner: Any, attribute: Any, value: Any) -> None:
        one(owner, attribute, value)
        names = [bundle.name for bundle in value]
        twice = next((name for index, name in enumerate(names) if name in names[:index]), None)
        if twice is not None:
            raise UserValueError(
                f"{type(owner).__name__}.{attribute.name}: two bundles are named {twice!r}, and the tools of one would "
                "hide those of the other: put what they have into one, as Skills(a, b), or give one another name, as "
                'Files(b, name="b")'
            )

    return validate


BUNDLES = _with_names_of_their_own(FIELDS.each("a Bundle(…)", is_a(Bundle)))
BUNDLES_OF_RUN = _with_names_of_their_own(
    FIELDS.each(
        "a Bundle(…) without hooks, agents and tools of the provider, which are an agent's: Agent(bundles=…)",
        fits(can_serve_run),
    )
)
