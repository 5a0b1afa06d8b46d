"""The loop: ask the machine what is due, do it, append what happened. There is no other loop, and no other path."""

from __future__ import annotations

from typing import Any, assert_never

import anyio
import attrs
from anyio.lowlevel import checkpoint_if_cancelled

from agentloop._core.machine import CallModel, CheckOutput, Finish, GiveUp, Settle, next_action
from agentloop._core.turn import TurnView
from agentloop._shell.asking import resolved
from agentloop._shell.live import LiveRun
from agentloop._shell.model_call import call_model
from agentloop._shell.native import cancelled_types
from agentloop._shell.outcome_of_run import with_data
from agentloop._shell.prepare import prepare_turn
from agentloop._shell.settle import plan_turn, settle
from agentloop.effects import NewId
from agentloop.error_text import error_summary
from agentloop.exceptions import RunTimeout
from agentloop.hooks import RunOutcome
from agentloop.items import Item
from agentloop.records import RunEnded, RunStarted, RunStatus, TurnStarted


@attrs.frozen
class Ended:
    """How an entry of a run came to its end."""

    status: RunStatus
    output: Any = None
    error: BaseException | None = None


async def drive(run: LiveRun) -> Ended:
    """Do what is due until nothing is. Raises what ends the run early."""
    while True:  # noqa: ASYNC913 - every action waits but the last
        match next_action(run.state, run.view):
            case CallModel():
                if run.stop_after_turn:
                    return Ended("cancelled")
                await call_model(run, await _begin_turn(run))
            case Settle():
                view = await _view(run)
                await settle(run, view, await plan_turn(run, view))
            case CheckOutput(output):
                return await _accept(run, output)
            case Finish(end):
                return Ended(end.status, end.final_output)
            case GiveUp(error):
                raise error
            case never:
                assert_never(never)


async def _view(run: LiveRun) -> TurnView:
    if run.view is None:
        run.view = await prepare_turn(run)
    return run.view


async def _begin_turn(run: LiveRun) -> TurnView:
    if run.log.events is not None:
        await run.log.events.room()
    view = run.view = await prepare_turn(run)
    run.context.turn_input = view.input
    path, turn, at = run.here()
    run.append(TurnStarted(path, turn + 1, at, run.agent.name))
    return view


async def _accept(run: LiveRun, output: Any) -> Ended:
    """A candidate was made: the agent is done with it, and nothing objects."""
    agent = run.agent
    if agent.hooks is not None:
        await resolved(agent.hooks.on_end(run.context, agent, output))
    if run.hooks is not None:
        await resolved(run.hooks.on_agent_end(run.context, agent, output))
    return Ended("completed", output)


async def _begin(run: LiveRun) -> None:
    if run.hooks is not None:
        await resolved(run.hooks.on_agent_start(run.context, run.agent))
    if run.agent.hooks is not None:
        await resolved(run.agent.hooks.on_start(run.context, run.agent))


async def execute(run: LiveRun, given: tuple[Item, ...], max_turns: int | None, timeout: float | None) -> Any:
    """Run *run* from its first record to its last, and return its final output.

    Cancellation: everything of the run has ended when it leaves; `RunEnded` is the last record.

    Raises:
        BaseException: what ended the run, bare, with `run_data` where it is ours.
    """
    if not run.context.run_id:
        run.context.run_id = await run.effects.perform(NewId())
    path, _, at = run.here()
    run.append(RunStarted(path, 0, at, run.context.run_id, run.agent.name, given, max_turns))
    run.scope = anyio.CancelScope()
    if timeout is not None:
        run.scope.deadline = anyio.current_time() + timeout
    try:
        ended: Ended | None = None
        with run.scope:
            await checkpoint_if_cancelled()
            await _begin(run)
            ended = await drive(run)
        if ended is None:
            assert timeout is not None
            raise RunTimeout(timeout)
    except cancelled_types() as cancelled:
        await _wind_up(run, Ended("cancelled", error=cancelled))  # noqa: ASYNC120 - shielded inside
        raise
    except GeneratorExit:
        raise
    except BaseException as error:
        await _wind_up(run, Ended("failed", error=error))  # noqa: ASYNC102 - shielded inside
        with_data(run, error)
        raise
    failed = await _wind_up(run, ended)
    if failed is not None:
        raise with_data(run, failed)
    return ended.output


async def _wind_up(run: LiveRun, ended: Ended) -> BaseException | None:
    """Leave resources, tell hooks, append the last record; return what failed meanwhile, if it is to be raised."""
    if ended.error is not None:
        run.cleanup.begin()
    errors = await run.resources.close(run.cleanup, run.cut)
    if errors and ended.error is None:
        ended = Ended("failed", error=errors[0])
    if run.hooks is not None and run.parent is None:
        cancelled = ended.status == "cancelled"
        told = RunOutcome(status=ended.status, final_output=ended.output, error=None if cancelled else ended.error)
        try:
            with run.cleanup.section(on_cut=lambda: run.cut("on_run_end")):
                await resolved(run.hooks.on_run_end(run.context, told))
        except Exception as raised:
            errors.append(raised)
            if ended.error is None:
                ended = Ended("failed", error=raised)
    failed = ended.error if ended.status == "failed" else None
    run.append(
        RunEnded(
            *run.here(),
            ended.status,
            final_output=ended.output if failed is None else None,
            error=None if failed is None else error_summary(failed),
        )
    )
    for error in errors:
        if failed is not None and error is not failed:
            failed.add_note(f"also failed: {error_summary(error)}")
    return failed
