"""The view of a turn."""

import pytest

from agentloop import Agent, ModelSettings, handoff
from agentloop._core.turn_view import TurnView
from agentloop.exceptions import ModelBehaviorError


def test_a_handoff_is_found_by_its_tool_name_and_a_missing_one_is_the_models_fault() -> None:
    """The error names the handoff and the agent."""
    to_b = handoff(Agent("b"))
    view = TurnView(agent="a", tools=(), by_key={}, settings=ModelSettings(), handoffs=(to_b,))
    assert view.handoff("transfer_to_b") is to_b
    with pytest.raises(ModelBehaviorError, match=r"'transfer_to_c'.*'a'"):
        view.handoff("transfer_to_c")
