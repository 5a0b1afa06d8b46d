"""The end of an entry: keep what is still to be kept, leave resources, tell hooks, append the last record."""

from __future__ import annotations

from typing import Any

import attrs

from agentloop._shell.asking import resolved
from agentloop._shell.live import LiveRun
from agentloop._shell.outcome_of_run import valid_history
from agentloop.error_text import error_summary
from agentloop.exceptions import InputGuardrailTripwireTriggered, OutputGuardrailTripwireTriggered
from agentloop.hooks import RunOutcome
from agentloop.items import AssistantMessage, Item
from agentloop.records import RunEnded, RunStatus


@attrs.frozen
class Ended:
    """How an entry of a run came to its end."""

    status: RunStatus
    output: Any = None
    error: BaseException | None = None
    stop_reason: str | None = None


async def save_turn(run: LiveRun) -> None:
    """Write the turn's items to the run's session, if it has one."""
    if run.keeper is not None:
        await run.keeper.save(run)


async def _save_rest(run: LiveRun, error: BaseException | None) -> None:
    """Write what a turn that didn't come to its end leaves: complete pairs, and nothing that a guardrail refused."""
    keeper = run.keeper
    if keeper is None or not run.state.run_id or keeper.failed:
        return
    if isinstance(error, InputGuardrailTripwireTriggered):
        await keeper.save(run, upto=lambda items: ())
    elif isinstance(error, OutputGuardrailTripwireTriggered):
        await keeper.save(run, upto=_without_messages)
    else:
        await keeper.save(run)


def _without_messages(items: tuple[Item, ...]) -> tuple[Item, ...]:
    return valid_history(item for item in items if not isinstance(item, AssistantMessage))


async def wind_up(run: LiveRun, ended: Ended) -> BaseException | None:
    """Keep, leave, tell, and append the last record; return what is to be raised of what failed, if anything is.

    An error of an output guardrail's function gives way to a failing session; else the first failure stays, with the
    others as notes.
    """
    if ended.error is not None:
        run.cleanup.begin()
    errors: list[BaseException] = []
    if ended.status != "completed":
        try:
            await _save_rest(run, ended.error)
        except Exception as error:
            errors.append(error)
    errors += await run.resources.close(run.cleanup, run.cut)
    if errors and ended.error is None:
        ended = Ended("failed", error=errors[0])
    ended = await _tell_hooks(run, ended, errors)
    failed = ended.error if ended.status == "failed" else None
    run.append(
        RunEnded(
            *run.here(),
            ended.status,
            final_output=ended.output if failed is None else None,
            stop_reason=ended.stop_reason,
            error=None if failed is None else error_summary(failed),
        )
    )
    for other in errors:
        if failed is not None and other is not failed:
            failed.add_note(f"also failed: {error_summary(other)}")
    return failed


async def _tell_hooks(run: LiveRun, ended: Ended, errors: list[BaseException]) -> Ended:
    if run.hooks is None or run.parent is not None:
        return ended
    error = None if ended.status == "cancelled" else ended.error
    told = RunOutcome(status=ended.status, final_output=ended.output, error=error)
    try:
        with run.cleanup.section(on_cut=lambda: run.cut("on_run_end")):
            await resolved(run.hooks.on_run_end(run.context, told))
    except Exception as raised:
        errors.append(raised)
        if ended.error is None:
            return Ended("failed", error=raised)
    return ended
