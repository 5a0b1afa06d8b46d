"""The inbox of a run under way: takes input from any task or thread, and shows the model what is due.

What is due, and what is refused, is decided in `_core/inbox.py`. A record of the sender is appended on the run's event
loop in one step, and the sender continues once it is durable. Only the run's own loop shows an input.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import anyio
import anyio.from_thread
import anyio.to_thread

from agentloop._core.gate import admit
from agentloop._core.inbox import check_open, due_input
from agentloop._core.run_fold import RunFold
from agentloop._engine.run_guardrails import judge_added_input
from agentloop._engine.runtime.live_run import LiveRun
from agentloop.exceptions import InputRefusedError
from agentloop.outcomes import AddedInput
from agentloop.records import InputAdded, InputShown, InputWithdrawn

T = TypeVar("T")


async def show_inputs(run: LiveRun, *, ends: bool) -> bool:
    """Show the model the added inputs that are due, one after the other; tell whether there was one.

    Each is judged by the input guardrails first. The last look into the inbox is the last step: what the caller does
    then, without waiting, nothing can come between. *ends*: the run would end otherwise.

    Raises:
        InputGuardrailTripwireTriggered: a guardrail trips.
        Exception: the error of a guardrail.
    """
    shown = False
    while (added := due_input(run.state, ends=ends)) is not None:
        if run.agent.input_guardrails or run.settings.config.input_guardrails:
            await _judge(run, added)
            if added.id not in run.state.inbox:
                continue  # a guardrail has rejected it
        run.tree.log.append(InputShown(*run.here(), added.id))
        shown = True
    return shown


async def _judge(run: LiveRun, added: AddedInput) -> None:
    run.judged_input = added.id
    try:
        await judge_added_input(run, added)
    finally:
        run.judged_input = None
    await run.checkpoint()


def put_input(run: LiveRun, make: Callable[[RunFold, float], InputAdded | None]) -> str | None:
    """Append the input that *make* makes of the run's fold and the time; return its id. Never waits.

    For code on the run's event loop. None if the log has the input already.

    Raises:
        InputRefusedError: the run ends, or has no turn left.
    """
    if not run.takes_input:
        raise InputRefusedError("add_input: the run is over, or ends: add the input to its state", reason="over")
    check_open(run.state, live=True)
    record = make(run.state, run.tree.log.wall())
    if record is None:
        return None
    run.tree.log.append(admit(run.tree.log.state, record))
    return record.id


async def give(run: LiveRun, append: Callable[[], T]) -> T:
    """Call *append* on the run's event loop, once the run has begun, and wait until what it appends is durable.

    From any task, also of another event loop.

    Cancellation: a checkpoint. If it is cancelled while it waits, what was appended stays in the log.

    Raises:
        JournalError: the journal has failed, and the record may be lost.
    """
    shared = run.tree.shared
    if shared.is_current():
        return await _give(run, append)
    return await anyio.to_thread.run_sync(partial(anyio.from_thread.run, _give, run, append, token=shared.token()))


async def _give(run: LiveRun, append: Callable[[], T]) -> T:
    if not run.has_begun and run.takes_input:  # before its first record, the log has no journal
        run.begun = run.begun or anyio.Event()
        await run.begun.wait()
    given = append()
    if run.tree.log.journal is not None:
        earlier, run.last_given = run.last_given, (mine := anyio.Event())
        try:
            await run.tree.log.journal.durable()
            if earlier is not None:  # one batch may hold many: their senders continue in the order of the log
                await earlier.wait()
        finally:
            mine.set()
    return given


def withdraw_input(run: LiveRun, make: Callable[[RunFold, float], InputWithdrawn]) -> None:
    """Append the withdrawal that *make* makes of the run's fold and the time. Never waits. As `put_input`.

    Raises:
        InputRefusedError: the run ends, or the input doesn't wait.
    """
    if not run.takes_input:
        raise InputRefusedError("withdraw: the run is over, or ends", reason="over")
    record = make(run.state, run.tree.log.wall())
    if run.judged_input == record.id:
        raise InputRefusedError(f"withdraw: an input guardrail judges input {record.id!r} now", reason="judged")
    run.tree.log.append(admit(run.tree.log.state, record))
