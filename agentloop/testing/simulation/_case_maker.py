"""The knowledge that the maker of a simulation case has of its application code, and a run doesn't show.

A world's `agent` may be a function, which knows nothing, or a `CaseMaker`. The simulation asks the maker for the codec
of its secrets and gives it the models; the invariants ask it what its hooks have noted and how its code decides. An
invariant that needs such knowledge finds no premise without it. So agents of an application are judged by the same
table as agents that were made for a proof.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from agentloop.abc import Codec
from agentloop.agents import Agent
from agentloop.handoffs import HandoffInputData
from agentloop.tools import FunctionTool


class CaseMaker:
    """The base of makers that know their code; itself it knows nothing.

    A subclass is called without arguments and returns the first agent, newly made.
    """

    codec: ClassVar[Codec | None] = None
    """Seals the secrets of stored states and journals."""

    def adopt_models(self, agent: Agent[Any, Any], models: Any) -> None:
        """Give *agent*, made for one run, and the agents that it reaches the simulated *models*."""

    def observe(self, agent: Agent[Any, Any], hooks: Any, session: Any, journal: Any) -> Mapping[str, Any]:
        """Return the fields of the `Observation` that only the fixtures of this case know.

        The arguments are the objects of the run that is over; None for those that it had none of.
        """
        return {}

    def needs_approval(self, tool: FunctionTool, arguments: Mapping[str, Any]) -> bool:
        """Return True if a call of *tool* with *arguments* needs approval."""
        return tool.needs_approval is True

    def predict_verdict(
        self, guardrail: str, arguments: Mapping[str, Any], *, replaced: bool
    ) -> tuple[str, Mapping[str, Any]] | None:
        """Return the verdict of a tool's *guardrail* on *arguments*, and the arguments afterwards; None if unknown.

        *replaced* is True if a guardrail before it has replaced the output.
        """
        return None

    def filter_handoff(self, input_filter: object, data: HandoffInputData) -> HandoffInputData | None:
        """Return *data* as *input_filter* leaves it; None if that can't be known."""
        return None


UNKNOWN = CaseMaker()
"""The maker of agents about which nothing is known."""


def maker_of(agent: object) -> CaseMaker:
    """Return the maker that a world's *agent* is, or `UNKNOWN`."""
    return agent if isinstance(agent, CaseMaker) else UNKNOWN
