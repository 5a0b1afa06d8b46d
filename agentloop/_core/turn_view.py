"""The definitions of one turn: the agent's, resolved once by the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import is_
from typing import TYPE_CHECKING, Any

import msgspec

from agentloop.agents import Agent
from agentloop.exceptions import ModelBehaviorError
from agentloop.handoffs import Handoff
from agentloop.settings import ModelSettings, Prompt
from agentloop.tools import FunctionTool, HostedTool, ToolUseBehavior

if TYPE_CHECKING:
    from agentloop._schema.output_schema import TypedOutput


class TurnView(msgspec.Struct, eq=False, kw_only=True, frozen=True):
    """One turn's resolved definitions. Made at the start of a turn or on resume, and not mutated afterwards.

    All of a turn uses this one view: the request, the collision check, dispatch, hooks and spans. So a definition that
    changes during the turn can't make them disagree. Turns of an agent that is decided about beforehand share one view.

    Attributes:
        agent: The name of the agent.
        system: The resolved instructions.
        instructions: Their parts, if they come in several.
        prompt: The resolved prompt that the provider has stored.
        model: The model, as the engine resolved it; None in a view that was kept, where each turn has to open it.
        tools: Enabled tools in declaration order, collisions resolved.
        hosted: The tools that the provider runs itself, in declaration order.
        by_key: The same tools by lookup key.
        disabled: The agent's tools that are not enabled, by lookup key.
        settings: Model settings after every overlay, with the tool choice of the turn.
        handoffs: Enabled handoffs in declaration order.
        output: The type of the final output; None for text.
        tool_use_behavior: The agent's.
        tool_names, handoff_names: The names of `tools` and `handoffs` for the model.
        sourced: The digests of those that came from a source of tools, by lookup key.
        searches: The tools among `tools` that search for deferred tools; mostly none.
        searchable: The deferred tools, where a search of this library finds them; those not found aren't in `tools`.
        offered: `tools` as the model is shown them, where that is otherwise: a tool that was found isn't deferred.
        shown: JSON of all this as far as the model is shown it, for the digest of a request; empty in a view that was
            kept, where each turn decides about a part.
        call_steps: The steps of the calls of each tool (`CallSteps`), by tool and needs, once it has been called.
    """

    agent: str
    system: str | None = None
    instructions: tuple[str, ...] = ()
    prompt: Prompt | None = None
    model: Any = None
    tools: tuple[FunctionTool, ...]
    hosted: tuple[HostedTool, ...] = ()
    by_key: Mapping[str, FunctionTool]
    disabled: Mapping[str, FunctionTool] = {}
    settings: ModelSettings
    handoffs: tuple[Handoff, ...] = ()
    output: TypedOutput | None = None
    tool_use_behavior: ToolUseBehavior = "run_llm_again"
    tool_names: tuple[str, ...] = ()
    handoff_names: tuple[str, ...] = ()
    sourced: Mapping[str, str] = {}
    searches: tuple[FunctionTool, ...] = ()
    searchable: tuple[FunctionTool, ...] = ()
    offered: tuple[FunctionTool, ...] = ()
    shown: bytes = b""
    call_steps: dict[Any, Any] = {}

    def handoff(self, name: str) -> Handoff:
        """Return the handoff with the tool name *name*.

        Raises:
            ModelBehaviorError: if there is none, for example after a resume with other definitions.
        """
        for known in self.handoffs:
            if known.name == name:
                return known
        raise ModelBehaviorError(f"Handoff {name!r} not found: agent {self.agent!r} has no such handoff")


def find_prepared(agent: Agent[Any, Any], parts: Sequence[object]) -> TurnView | None:
    """Return the view that was kept for *agent*, if it was made of the very same *parts*."""
    kept = agent._prepared
    if kept is not None and len(kept[0]) == len(parts) and all(map(is_, kept[0], parts)):
        made: TurnView = kept[1]
        return made
    return None


def keep_prepared(agent: Agent[Any, Any], parts: Sequence[object], made: TurnView) -> None:
    """Keep *made*, the view of *agent* that was made of *parts*, for the agent's later turns and runs.

    In the agent itself, because its tools may lead back to it, for example where two agents hand over to each other. A
    `WeakKeyDictionary` would hold its values, and so these agents, for ever; here they go together.
    """
    agent._prepared = (tuple(parts), made)
