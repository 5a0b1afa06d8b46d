"""Several pieces of work at once: which error leaves, for every combination of what three pieces can do."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from agentloop._concurrency.backend import own_task
from agentloop._concurrency.beside import beside
from agentloop.exceptions import UserError


class Fatal(BaseException):
    """An error that is not an Exception."""


async def passes(count: int) -> None:
    """Wait *count* scheduler passes."""
    for _ in range(count):
        await anyio.lowlevel.checkpoint()


async def returns(n: int) -> int:
    """Return after some passes."""
    await passes(2)
    return n


async def fails(n: int) -> int:
    """Fail without a wait."""
    raise ValueError(n)


async def fails_later(n: int) -> int:
    """Fail some passes after a piece that fails at once has cancelled the others; the last piece after the others."""
    await passes(8 if n < 2 else 11)
    raise ValueError(n)


async def fails_in_cleanup(n: int) -> int:
    """Fail while being cancelled; for ever waiting otherwise."""
    try:
        await anyio.sleep_forever()
    finally:
        raise KeyError(n)


async def is_fatal_in_cleanup(n: int) -> int:
    """Raise a fatal error while being cancelled."""
    try:
        await anyio.sleep_forever()
    finally:
        raise Fatal(n)


async def is_fatal(n: int) -> int:
    """Raise a fatal error without a wait."""
    raise Fatal(n)


async def cancels_itself(n: int) -> int:
    """Raise asyncio's cancellation by hand, as code that was written for asyncio does, without a wait."""
    raise asyncio.CancelledError(n)


Behaviour = Callable[[int], Awaitable[int]]
ENDS: tuple[Behaviour, ...] = (
    returns,
    fails,
    fails_later,
    fails_in_cleanup,
    is_fatal_in_cleanup,
    is_fatal,
    cancels_itself,
)
AT_ONCE = (fails, is_fatal, cancels_itself)
WAIT_FOR_EVER = {fails_in_cleanup, is_fatal_in_cleanup}
ERRORS = {fails: ValueError, fails_later: ValueError, is_fatal: Fatal, cancels_itself: UserError}


def expected(chosen: tuple[Behaviour, ...]) -> tuple[type[BaseException], int] | None:
    """Return the class and the position of the error that must leave, None if none does."""
    at_once = [n for n, do in enumerate(chosen) if do in AT_ONCE]
    first = at_once or [n for n, do in enumerate(chosen) if do is fails_later]
    if not first:
        return None
    late = [n for n, do in enumerate(chosen) if do is is_fatal_in_cleanup]
    fatal = [n for n in first if chosen[n] is is_fatal] + late
    if fatal:
        return Fatal, min(fatal)
    return ERRORS[chosen[min(first)]], min(first)


def position_of(error: BaseException) -> int:
    """Return the position of the piece that raised *error*."""
    error = error.__cause__ if isinstance(error, UserError) and error.__cause__ is not None else error
    position: int = error.args[0]
    return position


@pytest.mark.slow
@pytest.mark.parametrize("has_own", [False, True], ids=["all in tasks", "one here"])
async def test_the_first_error_by_position_leaves_and_a_fatal_one_outranks_it(*, has_own: bool) -> None:
    """Every combination of three pieces. The last one may be done in the current task."""
    for chosen in itertools.product(ENDS, repeat=3):
        leaves = expected(chosen)
        if leaves is None and WAIT_FOR_EVER & set(chosen):
            continue  # nobody ends it
        if has_own and chosen[-1] in AT_ONCE and cancels_itself in chosen[:-1]:
            continue  # the last one fails a pass before the tasks begin, which find themselves cancelled or don't
        pieces = [lambda do=do, n=n: do(n) for n, do in enumerate(chosen)]
        here = pieces.pop() if has_own else None
        found: tuple[type[BaseException], int] | None = None
        answers: list[Any] = []
        try:
            answers = await beside(pieces, "piece", here=here)
        except BaseException as error:  # noqa: ASYNC103 - judged
            found = type(error), position_of(error)
        assert found == leaves, [do.__name__ for do in chosen]
        assert answers == ([] if leaves else [0, 1, 2])


async def test_one_piece_is_done_in_the_current_task() -> None:
    """It needs no task; its error is bare all the same. None needs nothing."""
    context = anyio.get_current_task().id

    async def piece() -> int:
        return anyio.get_current_task().id

    assert await beside([piece], "piece") == [context]
    assert await beside([], "piece", here=piece) == [context]
    assert await beside([], "piece") == []
    with pytest.raises(ValueError, match="7"):
        await beside([lambda: fails(7)], "piece")


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("end", [fails_in_cleanup, is_fatal_in_cleanup, returns])
async def test_a_cancellation_outranks_an_error_but_not_a_fatal_one(count: int, end: Behaviour) -> None:
    """The caller is cancelled at every step of pieces that end late or never."""
    for step in range(5):
        caught: BaseException | None = None
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as others:

                async def cancel(step: int = step, scope: anyio.CancelScope = scope) -> None:
                    await passes(step)
                    scope.cancel()

                others.start_soon(cancel)
                try:
                    await beside([lambda n=n: end(n) for n in range(count)], "piece")
                    await anyio.sleep_forever()
                except Fatal as error:
                    caught = error
        assert scope.cancelled_caught or caught is not None
        assert (caught is not None) == (end is is_fatal_in_cleanup)


@pytest.mark.parametrize(
    ("pieces", "wanted"),
    [
        ((fails, fails_in_cleanup), ["KeyError(1)"]),
        ((fails_in_cleanup, fails), ["KeyError(0)"]),
        ((fails, returns, fails), ["ValueError(2)"]),
        ((fails_in_cleanup, fails, fails), ["ValueError(2)", "KeyError(0)"]),
        ((fails, fails, is_fatal), ["ValueError(0)", "ValueError(1)"]),
        ((fails, is_fatal_in_cleanup), ["ValueError(0)"]),
        ((fails, returns), []),
    ],
)
async def test_each_error_that_does_not_leave_is_told_with_the_one_that_does(
    pieces: tuple[Behaviour, ...], wanted: list[str]
) -> None:
    """The caller of `beside` may note it: one of the same scheduler pass as well as one of cleanup."""
    told: list[str] = []
    firsts: list[BaseException] = []

    def note(error: BaseException, first: BaseException) -> None:
        told.append(repr(error))
        firsts.append(first)

    with pytest.raises((ValueError, Fatal)) as raised:
        await beside([lambda do=do, n=n: do(n) for n, do in enumerate(pieces)], "piece", on_error=note)  # type: ignore[misc]
    assert told == wanted
    assert all(first is raised.value for first in firsts)


@pytest.mark.backends("asyncio")
async def test_a_piece_that_never_began_is_an_error() -> None:
    """Other code of the loop cancels its task before the first step: anyio takes that for the group's own end."""
    before = asyncio.all_tasks()

    def cancel_new() -> None:
        (task,) = [task for task in asyncio.all_tasks() - before if task.get_name() == "piece 1"]
        task.cancel()

    async def here() -> int:
        cancel_new()
        return await returns(2)

    with pytest.raises(UserError, match="cancelled by other code"):
        await beside([lambda: returns(0), lambda: returns(1)], "piece", here=here)


@pytest.mark.backends("asyncio")
async def test_native_cancellation_of_the_caller_continues_after_all_pieces() -> None:
    """It reaches the pieces as a scope's, at every step, and the caller's count is what it was."""
    for step in range(4):
        ended: list[int] = []

        async def piece(n: int, ended: list[int] = ended) -> None:
            try:
                await anyio.sleep_forever()
            finally:
                with anyio.CancelScope(shield=True):
                    await passes(3)
                ended.append(n)

        caller = own_task()
        assert caller is not None
        loop = asyncio.get_running_loop()

        async def cancel(step: int = step, caller: Any = caller) -> None:
            await passes(step)
            caller.cancel()

        stranger = loop.create_task(cancel())
        with pytest.raises(asyncio.CancelledError):
            await passes(1)
            await beside([lambda: piece(0), lambda: piece(1)], "piece")
        assert caller.uncancel() == 0
        await stranger
        assert sorted(ended) in ([], [0, 1])


async def test_the_piece_here_has_no_effect_after_an_error() -> None:
    """The work that is judged is cancelled in the step in which a judge refuses, not a pass later."""
    for step in range(1, 5):
        refused: list[int] = []
        effects: list[int] = []

        async def judge(step: int = step, refused: list[int] = refused) -> None:
            await passes(step)
            refused.append(step)
            raise ValueError("refused")

        async def work(effects: list[int] = effects, refused: list[int] = refused) -> None:
            while True:
                await passes(1)
                effects.extend(refused)

        with pytest.raises(ValueError, match="refused"):
            await beside([judge], "judge", here=work)
        assert effects == []
