"""The limit `max_turns`: whether a run may begin another turn.

`next_action` asks before each turn, and gives the run up if none is left. The model hears of the limit before that by
`_engine/turn_end.py`; the number itself is the run's option, and a record has it (`RunStarted.max_turns`).
"""

from agentloop._core.run_facts import RunFacts


def is_used_up(state: RunFacts) -> bool:
    """Tell whether no further turn may begin. An answer at the limit (`state.closing`) is one turn more."""
    return state.max_turns is not None and state.turn >= max(state.max_turns, state.closing)
