"""The preparation of a turn: resolves an agent's definitions once, against the run's context, into one `TurnView`.

Calls the application's callables (instructions, `is_enabled`); does not request the model or append to the log itself.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import attrs

from agentloop._common.naming import takes
from agentloop._core.turn_view import TurnView
from agentloop._engine.runtime.callbacks import call_user, gather
from agentloop._engine.runtime.live_run import LiveRun
from agentloop.agents import settings_for
from agentloop.exceptions import ModelTimeoutError, ModelTransportError, UserError, UserTypeError
from agentloop.handoffs import Handoff, target_of
from agentloop.items import Item
from agentloop.settings import ModelSettings
from agentloop.tools import FunctionTool

logger = logging.getLogger("agentloop")

DeclaredT = TypeVar("DeclaredT", FunctionTool, Handoff)


async def prepare_turn(run: LiveRun, *, answered: bool = False) -> TurnView:
    """Return the view of *run*'s next turn: instructions, enabled tools, settings, model.

    With *answered*, the view of the turn that the model has answered already, in an earlier run segment.

    Raises:
        UserError: for colliding tool names (by policy), a missing model, instructions that aren't text.
        Exception: the error of an application's callable.
    """
    agent = run.agent
    declared = list(agent.tools)
    tools = await _filter_enabled(run, declared)
    handoffs = await _filter_enabled(run, [target_of(entry) for entry in agent.handoffs])
    by_key = _index_tools(run, tools)
    taken = _find_shadowed_tools(run, handoffs, by_key)
    by_key = {key: tool for key, tool in by_key.items() if key not in taken}
    return TurnView(
        agent=agent,
        system=await _resolve_instructions(run),
        tools=tuple(tool for tool in tools if by_key.get(tool.lookup_key) is tool),
        by_key=by_key,
        disabled={} if len(tools) == len(declared) else _index_disabled(declared, tools),
        handoffs=tuple(handoffs),
        settings=_resolve_settings(run),
        output=agent.typed_output(),
        model=await _resolve_model(run),
        input=_select_input(run, answered=answered),
    )


def _select_input(run: LiveRun, *, answered: bool) -> tuple[Item, ...]:
    """Return the items to show to the model; with *answered*, the items that were shown to it."""
    history, response = run.state.history, run.state.response
    return tuple(history[: len(history) - len(response)] if answered and response else history)


def _resolve_settings(run: LiveRun) -> ModelSettings:
    """Return the turn's model settings; a tool choice that has been obeyed by this agent is dropped."""
    agent = run.agent
    model = run.settings.config.model
    own = agent.model_settings if model is None else settings_for(agent, model)
    settings = own.resolve(run.settings.config.model_settings)
    if settings.tool_choice is not None and agent.reset_tool_choice and run.agent_key in run.state.tool_users:
        settings = attrs.evolve(settings, tool_choice=None)
    return settings


def _find_shadowed_tools(run: LiveRun, handoffs: list[Handoff], by_key: dict[str, FunctionTool]) -> set[str]:
    """Return the names that handoffs share with bare tools, and warn of them: the handoff wins over the tool.

    Raises:
        UserError: there is one, and the policy is "error".
    """
    names = {handoff.name for handoff in handoffs}
    clashing = names & by_key.keys()
    for name in sorted(clashing):
        text = f"agent {run.agent.name!r} has a tool and a handoff named {name!r}"
        if run.settings.config.tool_name_collision_policy == "error":
            raise UserError(text)
        _warn_once(run, name, f"{text}; the handoff is used")
    return clashing


def _warn_once(run: LiveRun, key: str, text: str) -> None:
    if key not in run.tree.warned:
        run.tree.warned.add(key)
        logger.warning("%s", text)


def _index_disabled(declared: list[FunctionTool], enabled: list[FunctionTool]) -> dict[str, FunctionTool]:
    on = {id(tool) for tool in enabled}
    return {tool.lookup_key: tool for tool in declared if id(tool) not in on}


async def _resolve_instructions(run: LiveRun) -> str | None:
    given = run.agent.instructions
    if given is None or isinstance(given, str):
        return given
    if not takes(given, 2):
        raise UserTypeError(f"Agent.instructions of {run.agent.name!r}: a callable of (ctx, agent) is needed")
    text = await run.call_callback(
        "instructions", str(run.state.turn), lambda: call_user(given, run.context, run.agent)
    )
    if text is not None and not isinstance(text, str):
        raise UserTypeError(f"Agent.instructions of {run.agent.name!r} must return text, not {text!r}")
    return text


async def ask_enabled(run: LiveRun, tools: Sequence[FunctionTool | Handoff]) -> list[bool]:
    """Call `is_enabled` of every tool or handoff, all at once, and return the answers in order."""

    def make_question(tool: FunctionTool | Handoff, enabled: Callable[..., Any]) -> Callable[[], Awaitable[Any]]:
        key = f"{run.state.turn}:{tool.lookup_key if isinstance(tool, FunctionTool) else tool.name}"
        return lambda: run.call_callback("is_enabled", key, lambda: call_user(enabled, run.context, run.agent))

    with_callable = [(tool, tool.is_enabled) for tool in tools if not isinstance(tool.is_enabled, bool)]
    answers = await gather([make_question(tool, enabled) for tool, enabled in with_callable])
    by_id = {id(tool): bool(answer) for (tool, _), answer in zip(with_callable, answers, strict=True)}
    return [by_id.get(id(tool), tool.is_enabled is True) for tool in tools]


async def _filter_enabled(run: LiveRun, tools: list[DeclaredT]) -> list[DeclaredT]:
    if all(tool.is_enabled is True for tool in tools):
        return tools
    return [tool for tool, yes in zip(tools, await ask_enabled(run, tools), strict=True) if yes]


def _index_tools(run: LiveRun, tools: list[FunctionTool]) -> dict[str, FunctionTool]:
    by_key: dict[str, FunctionTool] = {}
    for tool in tools:
        earlier = by_key.get(tool.lookup_key)
        if earlier is not None and earlier is not tool:
            text = (
                f"agent {run.agent.name!r} has two enabled tools named {tool.qualified_name!r}: {earlier!r}, {tool!r}"
            )
            if run.settings.config.tool_name_collision_policy == "error":
                raise UserError(text)
            _warn_once(run, tool.lookup_key, f"{text}; the last is used")
        by_key[tool.lookup_key] = tool
    return by_key


async def _resolve_model(run: LiveRun) -> Any:
    given = run.settings.config.model if run.settings.config.model is not None else run.agent.model
    if given is None:
        raise UserError(
            f"agent {run.agent.name!r} has no model: give it one (a Model, or a model string such as "
            "'openai-chat:NAME' or 'local:'), or give RunConfig.model"
        )
    try:
        return await run.tree.resolve_model(run, given)
    except (ModelTransportError, ModelTimeoutError) as error:
        run.stopped_by = error
        raise
