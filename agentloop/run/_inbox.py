"""The sender's side of a run's inbox: takes input and answers from any task or thread to a run under way.

Which input is refused is decided in `_core/inbox.py`. A record of the sender is appended on the run's event loop in one
step, and the sender continues once it is durable. Only the run's own loop shows an input (`_engine/inbox.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from threading import Thread
from typing import Literal, TypeVar

import anyio
import anyio.from_thread

from agentloop._concurrency.backend import cancelled_types, new_wakeup, scheduler
from agentloop._core.gate import admit
from agentloop._core.inbox import make_input, make_withdrawal
from agentloop._engine.runtime.live_run import LiveRun
from agentloop.exceptions import InputRefusedError, JournalError
from agentloop.items import Item

T = TypeVar("T")


def put_input(
    run: LiveRun, given: str | Iterable[Item], when: Literal["turn", "idle"], input_id: str | None, by: str | None
) -> str:
    """Append *given* as input, unless the log has it already by its id; return the id.

    For code on the run's event loop. Never waits.

    Raises:
        InputRefusedError, UserError: as `make_input`.
    """
    over = "" if run.takes_input else "add_input: the run is over, or ends: add the input to its state"
    record = make_input(run.state, given, when, input_id, by, run.tree.log.wall(), live=True, over=over)
    if record is None:
        assert input_id is not None
        return input_id
    run.tree.log.append(admit(run.tree.log.state, record))
    if run.background is not None:
        run.background.notify()
    return record.id


async def give(run: LiveRun, append: Callable[[], T]) -> T:
    """Call *append* on the run's event loop, once the run has begun, and wait until what it appends is durable.

    From any task, also of another event loop. If the run's loop has ended, *append* is called here: it has to refuse.

    Cancellation: a checkpoint. If it is cancelled while it waits, what was appended stays in the log, and what was
        asked of another event loop may still be appended.

    Raises:
        JournalError: the journal has failed, or the run's event loop ends, and the record may be lost.
    """
    shared = run.tree.shared
    if shared.is_current():
        return await _give(run, append)
    if shared.loop_lives():
        schedule, arrived, answer = scheduler(), new_wakeup(), Future[T]()

        def carry() -> None:
            try:
                answer.set_result(anyio.from_thread.run(_give, run, append, token=shared.token()))
            except BaseException as error:  # noqa: ASYNC103 - of a thread: the sender raises it
                answer.set_exception(error)
            with suppress(RuntimeError):  # the sender's loop has ended
                schedule(arrived.ring)

        # No worker thread of anyio: on asyncio the sender's scopes would cancel the task on the run's loop from here.
        Thread(target=carry, name="agentloop inbox", daemon=True).start()
        while not answer.done():
            await arrived.wait()
        try:
            return answer.result()
        except anyio.RunFinishedError:
            pass
        except BaseException as error:
            if isinstance(error, (CancelledError, *cancelled_types())):
                # The cancellation is that of the run's loop, not the sender's.
                words = "the run's event loop has ended, and what was given may be lost"
                raise JournalError(words) from error  # noqa: ASYNC104
            raise
        finally:
            del answer  # its error's traceback holds this frame
    run.takes_input = False
    return append()


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


def withdraw_input(run: LiveRun, input_id: str, by: str | None) -> None:
    """Append the withdrawal of the input *input_id*. Never waits. As `put_input`.

    Raises:
        InputRefusedError: the run ends, or the input doesn't wait.
    """
    if not run.takes_input:
        raise InputRefusedError("withdraw: the run is over, or ends", reason="over")
    record = make_withdrawal(run.state, input_id, by, run.tree.log.wall())
    if run.judged_input == input_id:
        raise InputRefusedError(f"withdraw: an input guardrail judges input {input_id!r} now", reason="judged")
    run.tree.log.append(admit(run.tree.log.state, record))
