"""Calls of user code that may be sync or async, one at a time or all at once. Records nothing: its callers do."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from types import CoroutineType
from typing import Any, Literal, TypeAlias

from agentloop._common.error_text import error_summary, redact_message
from agentloop._concurrency.interrupts import interruptible
from agentloop.config.hooks import AgentHooks, RunHooks
from agentloop.context import Callback

logger = logging.getLogger("agentloop")


async def resolve(value: Any) -> Any:
    """Return *value*, awaited if it is awaitable."""
    # The most frequent kind is asked for first: `isawaitable` takes 0.2 µs.
    return await value if isinstance(value, CoroutineType) or inspect.isawaitable(value) else value


@interruptible
async def call_user(fn: Callable[..., Any], *args: Any) -> Any:
    """Call *fn*, sync or async, on the event loop."""
    return await resolve(fn(*args))


def log_error(error: Exception, text: str, *args: object, redact: bool) -> None:
    """Log *text*, which says what failed with *error*; with its traceback, unless it may repeat a secret (*redact*)."""
    if redact:
        redact_message(error)
        logger.warning(f"{text}: %s", *args, error_summary(error))
    else:
        logger.warning(text, *args, exc_info=error)


# -- hooks


def find_hook(hooks: RunHooks | AgentHooks | None, name: str) -> Callback | None:
    """Return the hook *name* of *hooks*, or None if there is none.

    A method of the base class does nothing, so no run calls it, or does what surrounds a call: most applications have
    hooks on few events.
    """
    method: Callback | None = getattr(hooks, name, None)
    return None if getattr(method, "__func__", None) in _EMPTY_HOOKS else method


_EMPTY_HOOKS = frozenset(
    hook for base in (RunHooks, AgentHooks) for name, hook in vars(base).items() if name.startswith("on_")
)


Event = Literal["agent_start", "agent_end", "llm_start", "llm_end", "handoff_out", "handoff_in", "run_end"]

HOOK_ORDER: dict[Event, tuple[tuple[bool, str], ...]] = {
    "agent_start": ((True, "on_agent_start"), (False, "on_start")),
    "agent_end": ((False, "on_end"), (True, "on_agent_end")),
    "llm_start": ((True, "on_llm_start"), (False, "on_llm_start")),
    "llm_end": ((False, "on_llm_end"), (True, "on_llm_end")),
    "handoff_out": ((True, "on_handoff"), (False, "on_handoff_out")),
    "handoff_in": ((False, "on_handoff_in"),),
    "run_end": ((True, "on_run_end"),),
}
"""The hooks of a run's own loop: by event, whether a hook is the run's (True) or the agent's, and its method.

A start goes from the run to the agent, an end from the agent to the run.
"""


HookPair: TypeAlias = tuple[Callback | None, Callback | None]
"""The start hook and the end hook of one object; None where it has none."""


def find_tool_hooks(hooks: RunHooks | None, agent_hooks: AgentHooks | None) -> tuple[HookPair, ...]:
    """Return the hooks of tool calls: a pair for each object that has one, the run's own before the agent's."""
    if hooks is None and agent_hooks is None:  # as in most runs
        return ()
    found = [(find_hook(one, "on_tool_start"), find_hook(one, "on_tool_end")) for one in (hooks, agent_hooks)]
    return tuple([pair for pair in found if pair != (None, None)])
