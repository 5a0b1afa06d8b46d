"""The transfer of a run to another agent: callbacks, the record, and the history shown to the next agent.

Does not choose the handoff: the machine does.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentloop._core.handoff_outputs import handoff_outputs
from agentloop._core.history import count_same
from agentloop._core.next_action import Transfer
from agentloop._core.turn_view import TurnView
from agentloop._engine.runtime.live_run import LiveRun
from agentloop._storage.incoming import check_items
from agentloop.exceptions import UserError, UserTypeError
from agentloop.handoffs import Handoff, HandoffInputData
from agentloop.handoffs._history import DEFAULT_WRAPPER, nest_history
from agentloop.items import Item
from agentloop.records import HandedOff, HistoryReplaced

MAPPER = "handoff_history_mapper"


async def transfer(run: LiveRun, view: TurnView, action: Transfer) -> None:
    """Transfer *run* to the target of *action*. The next turn is the target's; this spends none.

    Cancellation: until the record is appended the run stays with its agent; afterwards only hooks are missing.

    Raises:
        ModelBehaviorError: for an unknown handoff or an input that doesn't fit; nothing has happened then.
        UserTypeError: if a filter returns something else than `HandoffInputData`.
    """
    call = action.call
    handoff = view.handoff(call.name)
    given = handoff.read(call.arguments, run.settings.config.json_limits, run.settings.config.converter)
    if handoff.on_handoff is not None:
        args = (run.context,) if handoff.input_type is None else (run.context, given)
        await run.call_callback("on_handoff", call.call_id, handoff.on_handoff, *args)
    source, target = run.agent, handoff.agent
    key = run.tree.graph.key(target)
    handed = HandedOff(
        *run.here(),
        call.call_id,
        source.name,
        target.name,
        tuple(other.call_id for other in action.ignored),
        target=key if key != target.name else None,
    )
    shown = await _choose_shown(run, handoff, handed)
    run.agent = target
    run.view = None
    # In one step: a log that ends between the two would show the target the items that the filter left out.
    run.tree.log.append(handed)
    if shown is not None:
        reason, items = shown
        keep = count_same(run.state.history, items)
        run.tree.log.append(HistoryReplaced(*run.here(), reason, keep, items[keep:]))
    await run.call_hooks("handoff_out", source, target, of=source)
    await run.call_hooks("handoff_in", target, source)
    await run.call_hooks("agent_start", target)


async def _choose_shown(run: LiveRun, handoff: Handoff, handed: HandedOff) -> tuple[str, tuple[Item, ...]] | None:
    """Return the items to show to the target, with the reason: a filter's choice or a nested history; None for all."""
    answers = handoff_outputs(handed)
    usual = run.settings.config.history.handoff_input_filter
    chosen = handoff.input_filter if handoff.input_filter is not None else usual
    if chosen is not None and run.state.kept_by_provider:
        raise UserError(f"handoff {handoff.name!r}: the provider keeps the conversation, so no filter can change it")
    if chosen is not None:
        data = _make_input_data(run, answers)
        filtered = await run.call_callback("input_filter", handoff.name, chosen, data)
        if not isinstance(filtered, HandoffInputData):
            raise UserTypeError(f"input_filter of handoff {handoff.name!r} must return HandoffInputData: {filtered!r}")
        if filtered.input_items is not None:
            items = tuple(filtered.input_items)
        else:
            items = (*filtered.input_history, *filtered.pre_handoff_items, *filtered.new_items)
        return "handoff_filter", check_items("input_filter", items)
    nest = handoff.nest_handoff_history
    if nest is None:
        nest = run.settings.config.history.nest_handoff_history
    if nest is False:
        return None
    if run.state.kept_by_provider:
        text = "the provider keeps the conversation: nest_handoff_history has no effect"
        run.tree.warn_once("nest_handoff_history", text)
        return None
    return "nested_history", await _nest(run, handoff, [*run.state.history, *answers], nest)


async def _nest(run: LiveRun, handoff: Handoff, items: list[Item], nest: bool | tuple[str, str]) -> tuple[Item, ...]:
    """Return what the target is shown in place of *items*: the run's mapper decides, else it is a summary."""
    mapper = run.settings.config.history.handoff_history_mapper
    if mapper is None:
        return nest_history(items, nest if isinstance(nest, tuple) else DEFAULT_WRAPPER)
    mapped = await run.call_callback(MAPPER, handoff.name, mapper, items)
    if not isinstance(mapped, Sequence) or isinstance(mapped, str):
        raise UserTypeError(f"{MAPPER}: expected a sequence of items, got {type(mapped).__name__}")
    return check_items(MAPPER, tuple(mapped))


def _make_input_data(run: LiveRun, answers: list[Item]) -> HandoffInputData:
    """Return the items that the target would see without a filter, in three groups by age.

    Taken from the history, not from the run's own items: it has a session's items, outputs in model order, and none of
    the items that an earlier handoff left out.
    """
    state = run.state
    turn = len(state.history) - (len(state.new_items) - state.turn_began)
    return HandoffInputData(
        input_history=tuple(state.history[: state.kept_length]),
        pre_handoff_items=tuple(state.history[state.kept_length : turn]),
        new_items=(*state.history[turn:], *answers),
        context=run.context,
    )
