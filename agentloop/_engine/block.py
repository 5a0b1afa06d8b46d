"""A block with a task inside: what leaves it, once and bare. A streamed run and a batch of runs are such blocks.

Knows its holder (the task that entered the block), the nursery, and the one task inside; not what that task does.

Theory. A block is a context manager, never an async generator with a scope inside: another task closes an abandoned
generator, and its nursery with it. The work lives in a child task. On asyncio a native `Task.cancel()` is delivered
once, to one task, at any point where that task waits. Here it hits the holder, which only waits at the end of the
block; the nursery turns it into the cancellation of a scope, which every part of the work sees alike.

States: made; open (`_open` has started the task inside); over (`_is_over`: the work has ended, in any way); left
(`_leave` has joined every task).

Invariants: the error of the work is a value until it is raised in the holder's task, bare and once; raised in the child
it would arrive in a group, and a KeyboardInterrupt would tear down asyncio's loop. A cancellation ends in the task
inside, so that the holder's count of native cancellations is as the holder left it, plus its own one. When the block
has been left, no task of it is running.

Decisions:

On asyncio a tool body runs in a task other than the caller's. Awaited in place, a native `Task.cancel()` of the
caller looks like the body's own cancellation, and would be swallowed. `checkpoint_if_cancelled()` follows every
nursery, and precedes every acceptance. A child that swallowed its cancellation lets the code after the nursery run in
a cancelled scope. The first line of every call's task is the same check: code spawned into a cancelled nursery runs
up to its first await. The caller's cancellation comes before the run's deadline, also where both fall into one pass
of the scheduler. Both backends check whether a scope around the run's own is cancelled when a scope is left, and give
no public access to the answer inside; so `_concurrency/backend.py` reads the same state. Where only the deadline
shows, the answer waits for one more pass. A failing child doesn't cancel its batch; the owner does, when it next
runs. Cancelling from the child gave a random primary error on trio, even at equal virtual times. Now all bodies due
in that pass still settle, and the error is chosen from them by class, then phase, then model order. It was the right
one in 200 of 200 runs on both backends. The owner then cancels each call's own scope, and not the nursery's. Between
the end of a body and its settling (output guardrails, end hooks) a sibling no longer cancels the call: its effect has
happened, and the outcome should say what it was. A cancelled caller must still reach that work. With the nursery's
scope both cancellations would arrive by the same way, and a shield against the first would be one against the second.
* Outcomes are passed in a slot or a buffer, never by a future that the host awaits: on asyncio a result that becomes
  ready in the same tick as a native cancel would be lost.

Rejected: `Task.cancel()`, and callbacks to watch late results. A function that returns before its tasks have ended
can't report what they did.

The run lives in a child task (`_engine/block.py`), so that a native cancellation of the caller becomes the
cancellation of a scope. A scope's cancellation is level-triggered, and has one answer to "who cancelled?" everywhere
inside.

A cancellation ends in the run's task. asyncio counts the cancellations of a task (`cancelling()`), and a caller of
`Task.cancel()`, such as `asyncio.timeout`, reads the count afterwards. anyio takes back the cancellations that its
own scopes have caused; for a cancelled scope inside another one it moves the account to the outer one, whose host is
another task. With calls cancelled by a sibling or a timeout inside a run that is cancelled natively, that took back
the caller's own count. So the run's task stops a cancellation at its own outermost scope, which is shielded at that
moment, and the caller receives its own at the end of the block. The count is then as found, plus the caller's one.

Rejected: running in the caller's task, and counting there. From outside, anyio's cancellations and the caller's can't
be distinguished.

A task owns its work from its first step on (`_concurrency/backend.py`). `asyncio.run` ends by cancelling every task
of its loop natively, and so do many servers and test runners. A call whose task had not begun never settled, and the
run's owner, shielded, waited for it for ever. So the owner settles the calls that have not begun when a run ends.
Resources and the journal's writer follow the same rule. Rejected: a callback at the end of each task. It costs a
wake-up per call for an event that happens once in the life of a loop. Rejected: waiting in the nursery's own join. It
can't report on bodies that continue to run.

The end of the loop is the run's cancellation. A task that meets a native cancellation checks the holder first
(`Holder`, known by a context variable). If the holder is cancelled too, the run is, and its scope is cancelled in
that very step: the call settles as `cancelled` by `parent`, not as a tool that cancelled itself. If other code
cancels just one task of a run, the run fails with an error that says so.

An interrupt never tears engine code: what Ctrl-C does is in `_concurrency/interrupts.py`.

Instruments can't tear it either. A record is appended in the middle of a step. An exception of an instrument is kept
until later: an `Exception` is logged; any other `BaseException` ends the run, and is raised bare when all its work
has ended. The same holds for a `BaseException` of any other code of the application: it comes before ordinary errors
and before a cancellation under way.
"""

from __future__ import annotations

from collections.abc import Awaitable

import anyio

from agentloop._common.error_text import is_fatal
from agentloop._concurrency.backend import (
    cancelled_types,
    checkpoint_if_cancelled,
    is_closing,
    own_task,
    scope_left_open,
    unexpected_cancellation,
)
from agentloop._concurrency.interrupts import uninterrupted
from agentloop._concurrency.nursery import Nursery


class Block:
    """The holder's side and the inner task's side of a block. `RunStream` and `RunBatch` say what the work is."""

    _nursery: Nursery | None
    """None before the block is entered."""
    scope: anyio.CancelScope | None
    """The scope around the task inside, for its nursery."""
    _has_begun: bool
    """True once the task inside has taken its first step; a task cancelled natively before that never does."""
    _is_over: bool
    _ended: anyio.Event | None
    """Set at the end of the work; made for the first task that waits for it."""
    _error: BaseException | None
    _error_raised: bool

    __slots__ = tuple(__annotations__)

    def __init__(self) -> None:
        self._nursery = self.scope = self._ended = self._error = None
        self._has_begun = self._is_over = self._error_raised = False

    # -- what a block does that is its own

    def _work(self) -> Awaitable[object]:
        """Do the work, in the task inside; its error becomes the block's."""
        raise NotImplementedError

    def _end(self) -> None:
        """Note that the work has ended: nothing of it follows."""
        self._is_over = True
        if self._ended is not None:
            self._ended.set()

    def _stop(self) -> None:
        """Cancel the work: its block is left, or an interrupt has come."""
        raise NotImplementedError

    def _prepare_cancelled(self) -> None:
        """Prepare for the holder's cancellation, which reaches the work by itself."""

    def _hurry(self) -> None:
        """End the cleanup now: a second interrupt has come."""

    # -- the task inside

    def _open(self, nursery: Nursery, name: str) -> None:
        """Start the task inside, named *name*, in *nursery*, which the holder has entered."""
        self._nursery = nursery
        nursery.start(Block._main, self, name)

    @uninterrupted
    async def _main(self) -> None:
        """Do the work in the current task, the one inside, and keep its error."""
        nursery, scope = self._nursery, self.scope
        assert nursery is not None
        assert scope is not None
        task = None if nursery.on_trio else own_task()
        self._has_begun = True
        try:
            with scope:
                try:
                    await self._work()
                except cancelled_types():
                    # The cancellation ends here: the holder of the block meets it there anyway. If it continued, anyio
                    # would move the counts of scopes that were cancelled inside (by a sibling, a timeout) to the
                    # holder's task, and take back a native cancellation of that task.
                    scope.shield = True
                    scope.cancel()
                    raise
        except cancelled_types():
            self._end()
            nursery.leave(task, rings=True)
            raise
        except BaseException as error:  # noqa: ASYNC103 - see below; cancellations were raised above
            if is_closing(task):
                raise
            # Carried as a value: the holder's task raises it, bare. A KeyboardInterrupt raised here would tear down
            # the event loop instead.
            self._error = self._error or scope_left_open(error) or error
        self._end()
        nursery.leave(task, rings=True)

    def _lose_task(self) -> None:
        """Fail the block: other code has cancelled one of its tasks before its first step."""
        self._error = self._error or unexpected_cancellation()
        if not self._has_begun:
            self._end()

    # -- the holder

    async def _leave(self, exc: BaseException | None) -> bool:
        """End the work if it isn't over, join every task, and raise the error that leaves the block: `__aexit__`.

        A cancellation has precedence, and only a fatal error of the work has precedence over it. If the block itself
        raises, the error of the work becomes its context.
        """
        if exc is not None and isinstance(exc, cancelled_types()):
            return await self._leave_cancelled(exc)
        if not self._is_over:
            self._stop()
        await self._join(exc)
        error, unread = self._error, exc is None and not self._error_raised
        leaving = error if unread else exc
        try:
            if leaving is None or not is_fatal(leaving):
                await checkpoint_if_cancelled()  # the holder's own cancellation continues
            if unread and error is not None:
                raise self._take_error(error)
            if exc is not None and exc is not error and exc.__context__ is None:
                exc.__context__ = error
        finally:
            del error, leaving  # a frame of its traceback would hold it
        return False

    async def _leave_cancelled(self, exc: BaseException) -> bool:
        # The nursery's own scope ends the work. Cancelling an inner scope as well would make anyio take back one native
        # cancellation of this task too many (it moves an inner scope's count to the group's, another task).
        self._prepare_cancelled()
        try:
            caught = await self._join(exc)
        except cancelled_types():
            self._raise_fatal()
            raise
        if caught:  # the nursery's own scope: anyio cancels it where a task of the group was cancelled natively
            raise self._take_error(self._error or unexpected_cancellation())
        self._raise_fatal()
        return False

    def _take_error(self, error: BaseException) -> BaseException:
        """Return *error*, the block's, to be raised: once."""
        self._error_raised = True
        return error

    def _raise_fatal(self) -> None:
        """Raise the error of the work if it outranks the cancellation that leaves: a fatal error of the application."""
        if self._error is not None and not self._error_raised and is_fatal(self._error):
            raise self._take_error(self._error)

    async def _join(self, left_by: BaseException | None) -> bool:
        """Wait until every task of the block has ended; return True if the nursery caught what *left_by* is.

        The exception that left the block is given to the nursery where it is a cancellation. Any other would come back
        wrapped in a group.

        Raises:
            KeyboardInterrupt: trio raised it here, bare.
        """
        assert self._nursery is not None
        interrupt: KeyboardInterrupt | None = None
        if self._nursery.on_trio and not self._is_over:
            interrupt = await self._outlast_interrupts(left_by)
        caught: bool | None = False
        try:
            if left_by is not None and isinstance(left_by, cancelled_types()):
                caught = await self._nursery.__aexit__(type(left_by), left_by, left_by.__traceback__)
            else:
                await self._nursery.__aexit__(None, None, None)
        except BaseExceptionGroup as errors:
            if errors.subgroup(KeyboardInterrupt) is not None:
                interrupt = KeyboardInterrupt()
            else:  # the block's own tasks raise nothing: one of them had its scopes broken
                self._error = scope_left_open(errors)
                if self._error is None:
                    raise
        if interrupt is not None and not isinstance(left_by, KeyboardInterrupt):
            raise interrupt
        return bool(caught)

    async def _outlast_interrupts(self, left_by: BaseException | None) -> KeyboardInterrupt | None:
        """On trio, wait for the end of the work; return the first KeyboardInterrupt that is raised meanwhile.

        The second interrupt ends the cleanup. (The nursery's own join would only keep it until later.)
        """
        interrupts = 1 if isinstance(left_by, KeyboardInterrupt) else 0
        first: KeyboardInterrupt | None = None
        with anyio.CancelScope(shield=True):  # noqa: ASYNC912 - trio starts every task, so the work ends
            while not self._is_over:
                try:
                    await self._finished()
                except KeyboardInterrupt as interrupt:
                    first = first or interrupt
                    interrupts += 1
                    self._stop()
                    if interrupts > 1:
                        self._hurry()
        return first

    async def _finished(self) -> None:
        """Wait until the work has ended, in any way. Its error is not raised here."""
        if self._ended is None:
            self._ended = anyio.Event()
            if self._is_over:
                self._ended.set()
        await self._ended.wait()
