"""The loop: ask the machine what is due, do it, append what happened. There is no other loop, and no other path."""

from __future__ import annotations

from typing import Any, assert_never

import anyio
import attrs
from anyio.lowlevel import checkpoint_if_cancelled

from agentloop._core.machine import (
    AskBehavior,
    CallModel,
    CheckOutput,
    Finish,
    GiveUp,
    Settle,
    Transfer,
    next_action,
    turn_or_give_up,
)
from agentloop._core.turn import TurnView
from agentloop._shell.guard_run import guard_first_call
from agentloop._shell.live import LiveRun
from agentloop._shell.model_call import call_model
from agentloop._shell.native import cancelled_types, cancelling, self_cancelled, taken_back
from agentloop._shell.outcome_of_run import with_data
from agentloop._shell.output import accept, ask_behavior, give_up
from agentloop._shell.prepare import prepare_turn
from agentloop._shell.settle import plan_turn, settle
from agentloop._shell.transfer import begin_agent, transfer
from agentloop._shell.turn_end import check_loop, fired
from agentloop._shell.wind_up import Ended, save_turn, wind_up
from agentloop.effects import NewId
from agentloop.exceptions import RunTimeout
from agentloop.items import Item
from agentloop.records import RunStarted, TurnStarted


async def drive(run: LiveRun) -> Ended:
    """Do what is due until nothing is. Raises what ends the run early."""
    while True:  # noqa: ASYNC913 - every action waits but the last
        action = next_action(run.state, run.view)
        if isinstance(action, AskBehavior):
            action = await ask_behavior(run) or turn_or_give_up(run.state)
        match action:
            case CallModel():
                if (ended := await _turn_over(run)) is not None:
                    return ended
                await _call_model(run, await _begin_turn(run))
            case Settle():
                view = await _view(run)
                await settle(run, view, await plan_turn(run, view))
                check_loop(run)
                await save_turn(run)
            case Transfer():
                await transfer(run, await _view(run), action)
                await save_turn(run)
            case CheckOutput():
                return Ended("completed", await accept(run, run.view, action))
            case GiveUp():
                return Ended("completed", await give_up(run, action))
            case Finish(end):
                return Ended(end.status, end.final_output)
            case never:
                assert_never(never)


async def _view(run: LiveRun) -> TurnView:
    if run.view is None:
        run.view = await prepare_turn(run)
    return run.view


async def _turn_over(run: LiveRun) -> Ended | None:
    """Return how the run ends between two turns, if it does."""
    if run.stop_after_turn:
        return Ended("cancelled")
    if run.state.turn and (found := await fired(run)) is not None:
        return Ended("stopped", stop_reason=str(found))
    return None


async def _begin_turn(run: LiveRun) -> TurnView:
    if run.log.events is not None:
        await run.log.events.room()
    if run.budget is not None:
        run.budget.check_request(run.log.state.meter)
    view = run.view = await prepare_turn(run)
    path, turn, at = run.here()
    tools = tuple(tool.qualified_name for tool in view.tools)
    run.append(TurnStarted(path, turn + 1, at, run.agent.name, tools, tuple(handoff.name for handoff in view.handoffs)))
    return view


async def _call_model(run: LiveRun, view: TurnView) -> None:
    if run.guarded:
        await call_model(run, view)
        return
    run.guarded = True
    await guard_first_call(run, run.state.input, lambda: call_model(run, view))


async def execute(run: LiveRun, given: tuple[Item, ...], max_turns: int | None, timeout: float | None) -> Any:
    """Run *run* from its first record to its last, and return its final output.

    Cancellation: everything of the run has ended when it leaves; `RunEnded` is the last record.

    Raises:
        BaseException: what ended the run, bare, with `run_data` where it is ours.
    """
    run.scope = anyio.CancelScope()
    if timeout is not None:
        run.scope.deadline = anyio.current_time() + timeout
    count = cancelling()
    try:
        ended: Ended | None = None
        with run.scope:
            await _begin(run, given, max_turns)
            ended = await drive(run)
        if ended is None:
            assert timeout is not None
            raise RunTimeout(timeout)
    except cancelled_types() as cancelled:
        if not taken_back(count):
            await wind_up(run, Ended("cancelled", error=cancelled))  # noqa: ASYNC120 - shielded inside
            raise
        failed: BaseException | None = self_cancelled(cancelled)
        ended = Ended("failed", error=failed)
    except GeneratorExit:
        raise
    except BaseException as error:
        await wind_up(run, Ended("failed", error=error))  # noqa: ASYNC102 - shielded inside
        with_data(run, error)
        raise
    failed = await wind_up(run, ended)
    if failed is not None:
        raise with_data(run, failed)
    return ended.output


async def _begin(run: LiveRun, given: tuple[Item, ...], max_turns: int | None) -> None:
    if not run.context.run_id:
        run.context.run_id = await run.effects.perform(NewId())
    path, _, at = run.here()
    started = RunStarted(path, 0, at, run.context.run_id, run.agent.name, given, max_turns)
    try:
        if run.keeper is not None:
            own, shown = await run.keeper.load(run, given)
            started = attrs.evolve(started, input=own, shown=shown)
    finally:
        run.append(started)  # the first record, whatever becomes of the run
    await checkpoint_if_cancelled()
    await begin_agent(run)
