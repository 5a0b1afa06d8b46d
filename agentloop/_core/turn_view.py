"""What one turn is made of: the agent's definitions, resolved once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from agentloop._schema.output_schema import TypedOutput
from agentloop.agents import Agent
from agentloop.config import ModelSettings
from agentloop.exceptions import ModelBehaviorError
from agentloop.handoffs import Handoff
from agentloop.items import Item
from agentloop.tools import FunctionTool


@attrs.frozen(kw_only=True, eq=False)
class TurnView:
    """One turn's resolved definitions: shown to the model, collision-checked, dispatched to, hooked and traced alike.

    Attributes:
        agent: The caller's agent object.
        system: The resolved instructions.
        tools: Enabled tools in declaration order, collisions resolved.
        by_key: The same by lookup key.
        disabled: By lookup key, tools of the agent that have said they are off.
        settings: Model settings after every overlay, with the tool choice of this turn.
        handoffs: Enabled handoffs in declaration order.
        output: The typed form of the final output; None for text.
        model: The model, as the shell resolved it.
        input: What the model is shown (history at the turn's start).
    """

    agent: Agent[Any, Any]
    system: str | None
    tools: tuple[FunctionTool, ...]
    by_key: Mapping[str, FunctionTool]
    disabled: Mapping[str, FunctionTool] = attrs.field(factory=dict)
    settings: ModelSettings
    handoffs: tuple[Handoff, ...] = ()
    output: TypedOutput | None = None
    model: Any
    input: tuple[Item, ...] = ()

    def handoff(self, name: str) -> Handoff:
        """Return the handoff the model calls *name*.

        Raises:
            ModelBehaviorError: if there is none, as after a resume with other definitions.
        """
        for known in self.handoffs:
            if known.name == name:
                return known
        raise ModelBehaviorError(f"Handoff {name!r} not found: agent {self.agent.name!r} has no such handoff")
