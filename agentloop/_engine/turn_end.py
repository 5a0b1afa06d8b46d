"""The checks at the end of a turn: conditions that stop the run, loops of equal calls by the model, limits.

Decisions:

An answer at a limit is a turn. The note that asks for it is a record (`HistoryReplaced`, with the limit as its reason),
from which the fold knows the last turn's number (`closing`). So the definitions of that turn, the budget and a resumed
run know it without a word from the configuration. Rejected: `tool_choice="none"` with the tools shown, which some
servers don't know.
"""

from __future__ import annotations

from typing import Literal

from agentloop._engine.runtime.live_run import LiveRun
from agentloop.config.conditions import Condition, ConditionView, Fired
from agentloop.exceptions import ToolLoopDetected
from agentloop.items import AssistantMessage, SystemMessage, ToolOutput, UserMessage

ANSWER_NOW = "A limit of this run is reached, and you have no tools any more. Answer now with what you have."


async def find_stop_condition(run: LiveRun, condition: Condition) -> Fired | None:
    """Return the part of *condition*, the run's `stop_when`, that holds at the end of this turn, or None.

    Calls the application's predicates, one after the other.
    """
    answers = {}
    for predicate in condition.predicates():
        answers[predicate] = await run.ask("stop_when", str(run.state.turn), predicate, run.context)
    return condition.check(_make_condition_view(run), answers)


def _make_condition_view(run: LiveRun) -> ConditionView:
    state = run.state
    texts = []
    for item in state.new_items[state.turn_began :]:
        if isinstance(item, AssistantMessage):
            texts.append(item.text)
        elif isinstance(item, ToolOutput) and isinstance(item.output, str):
            texts.append(item.output)
    return ConditionView(
        turn=state.turn,
        calls=state.settled_tools,
        text="\n".join(texts),
        total_tokens=run.tree.log.state.meter.total_tokens,
        context=run.context,
    )


def check_loop(run: LiveRun, limit: int) -> None:
    """Warn the model once when it repeats a call *limit* times with the same result; end the run at the next repeat.

    Earlier warnings follow from the log, so a resumed run knows them too: a count that was over the limit before this
    turn has caused a warning then.

    Raises:
        ToolLoopDetected: naming the call.
    """
    state = run.state
    for tool, count, here in state.count_repeats():
        if count < limit:
            continue
        if count - here >= limit:
            raise ToolLoopDetected(f"The model has called tool {tool} {count} times with equal arguments and results")
        text = f"Tool {tool} has given the same result {count} times for the same arguments. Do something else."
        run.add_message("loop_warning", SystemMessage(text))


def answer_at_limit(run: LiveRun, limit: Literal["max_turns", "usage_limits"]) -> bool:
    """Leave the run one turn, without tools, for its final output, and tell the model so; False if it has had that."""
    if run.state.closing:
        return False
    run.stopped_by = None
    run.add_message(limit, UserMessage(ANSWER_NOW))
    return True


def nudge(run: LiveRun, share: float) -> None:
    """Tell the model once how many turns are left, if that *share* of all turns is over."""
    state = run.state
    if state.max_turns is None or state.nudged or state.closing:
        return
    left = state.max_turns - state.turn
    if left == 1 or state.turn >= share * state.max_turns:
        text = f"{left} turn{'s' * (left > 1)} left. Give your final answer by then."
        run.add_message("turns_left", UserMessage(text))
