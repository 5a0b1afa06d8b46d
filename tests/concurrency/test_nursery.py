"""Nurseries, without anything of an agent: their owner is cancelled in every way, at every step, over every member.

Each sweep runs with bare tasks and with the fallback, and under a task factory where a backend has them. The members'
conduct is a table, the ways to cancel are another; each pair is played once for each scheduler pass.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import copy_context
from typing import Any, Literal

import anyio
import anyio.lowlevel
import attrs
import pytest

from agentloop._concurrency import nursery as nursery_module
from agentloop._concurrency.backend import (
    cancelled_types,
    enclosing_cancelled,
    innermost_nursery,
    is_cancelled_around,
    loop_is_left,
    own_task,
    scope_left_open,
    uncancel_to,
)
from agentloop._concurrency.nursery import Nursery, find_scope_class, new_nursery

STEPS = 9
"""Passes after which the owner is cancelled: by the last one every member waits or has ended."""
Kind = Literal["bare", "group", "factory"]


@pytest.fixture(params=["bare", "group", "factory"])
def kind(request: pytest.FixtureRequest, anyio_backend: tuple[str, Any]) -> Kind:
    """The kind of nursery: bare tasks, a group, or what `new_nursery` takes under a task factory."""
    kind: Kind = request.param
    return kind if anyio_backend[0] == "asyncio" else "group"  # trio has one kind


def _factory(loop: Any, coroutine: Any, **options: Any) -> Any:
    return asyncio.Task(coroutine, loop=loop, **options)


@attrs.define(eq=False)
class Member:
    """A member that does *work*, and what came of it."""

    work: Callable[["Member"], Awaitable[None]]
    scope: Any = None
    heard: int = 0
    """How often it was cancelled at a wait."""
    asked: bool | None = None
    """Its answer to `enclosing_cancelled` when it was cancelled."""
    began: bool = False
    worked: bool = False
    """True if its check before the first step raised no cancellation."""
    over: bool = False

    async def wait(self, waiting: Callable[[], Awaitable[object]] = anyio.sleep_forever) -> None:
        """Wait, and note a cancellation."""
        try:
            await waiting()
        except cancelled_types():
            self.heard += 1
            if self.asked is None:
                self.asked = enclosing_cancelled()
            raise


async def _passes(count: int) -> None:
    for _ in range(count):
        await anyio.lowlevel.checkpoint()


# -- what members do


async def waits(member: Member) -> None:
    """Wait for ever."""
    await member.wait()


async def ends(member: Member) -> None:
    """End by itself after some passes."""
    await member.wait(lambda: _passes(3))


async def swallows(member: Member) -> None:
    """Go on after a cancellation, three times: each wait of it is cancelled anew."""
    for _ in range(3):
        with suppress(*cancelled_types()):
            await member.wait()
    await member.wait()


async def cleans_up(member: Member) -> None:
    """Clean up for some passes, which no cancellation may cut."""
    try:
        await member.wait()
    finally:
        with anyio.CancelScope(shield=True):
            await _passes(3)
            assert not enclosing_cancelled()


async def has_children(member: Member) -> None:
    """Wait for tasks of its own."""
    async with anyio.create_task_group() as group:
        group.start_soon(member.wait)
        group.start_soon(anyio.sleep_forever)


async def nests(member: Member) -> None:
    """Own a nursery within."""
    inner = Member(waits)
    async with new_nursery(_lose_nothing, copy_context()) as nursery:
        start(nursery, inner)
        await member.wait(lambda: nursery.wait(math.inf))
    assert inner.over == inner.began


async def is_in_scopes(member: Member) -> None:
    """Wait in scopes of its own, one with a deadline far away."""
    with anyio.CancelScope(), anyio.move_on_after(10_000):
        await member.wait()


CONDUCT = (waits, ends, swallows, cleans_up, has_children, nests, is_in_scopes)


async def do(member: Member) -> None:
    """Do a member's work as the library does: in its scope, then a settling in another, then leave."""
    nursery, task = _nurseries[member], own_task()
    member.began = True
    try:
        with member.scope:
            if (check := nursery.check_in_time()) is not None:
                await check
            member.worked = True
            await member.work(member)
        nursery.uncancel()
        with nursery.settling(member), suppress(*cancelled_types()):
            await anyio.lowlevel.checkpoint()
    finally:
        member.over = True
        _nurseries.pop(member)
    nursery.leave(task)  # a task that raises doesn't come to this


_nurseries: dict[Member, Nursery] = {}


def _lose_nothing() -> None:
    raise AssertionError("no task was cancelled before its first step")


def start(nursery: Nursery, *members: Member) -> None:
    """Start members."""
    for member in members:
        member.scope = nursery.new_scope()
        _nurseries[member] = nursery
        nursery.start(do, member, "member")


# -- how an owner is cancelled


def by_scope(scope: anyio.CancelScope, owner: Any) -> None:
    """Cancel the scope around the owner."""
    scope.cancel()


def by_deadline(scope: anyio.CancelScope, owner: Any) -> None:
    """Let the deadline of the scope around the owner pass."""
    scope.deadline = anyio.current_time() - 1


def natively(scope: anyio.CancelScope, owner: Any) -> None:
    """Cancel the owner's task, as `asyncio.timeout` and the end of `asyncio.run` do."""
    owner.cancel()


WAYS = (by_scope, by_deadline, natively)


def open_nursery(kind: Kind, on_lost: Callable[[], None] = _lose_nothing, *, holds: bool = False) -> Nursery:
    """Return a nursery of *kind* for the current task."""
    if kind != "factory":
        return new_nursery(on_lost, copy_context(), holds=holds, bare=kind == "bare")
    loop = asyncio.get_running_loop()
    before = loop.get_task_factory()
    loop.set_task_factory(_factory)
    try:
        return new_nursery(on_lost, copy_context(), holds=holds)
    finally:
        loop.set_task_factory(before)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("conduct", CONDUCT)
@pytest.mark.parametrize("only_leaves", [False, True], ids=["waits in it", "leaves it"])
async def test_owner_is_cancelled_at_every_step(
    kind: Kind, way: Any, conduct: Any, *, only_leaves: bool, anyio_backend: tuple[str, Any]
) -> None:
    """Every member hears of it, none outlives the block, and the owner's task is as it was, and cancelled once."""
    if anyio_backend[0] != "asyncio" and way is natively:
        return  # trio has no native cancellations
    for step in range(STEPS):
        members = [Member(conduct), Member(waits), Member(conduct)]
        raised: BaseException | None = None
        owner = own_task()
        async with anyio.create_task_group() as others:
            with anyio.CancelScope() as scope:

                async def cancel(step: int = step, scope: anyio.CancelScope = scope, owner: Any = owner) -> None:
                    await _passes(step)
                    way(scope, owner)

                others.start_soon(cancel)
                try:
                    async with open_nursery(kind) as nursery:
                        start(nursery, *members)
                        while not only_leaves:
                            await nursery.wait(math.inf)
                except cancelled_types() as error:
                    raised = error
                    if way is natively:
                        uncancel_to(0)
                    else:
                        raise
        place = f"step {step}"
        assert raised is not None, place
        assert scope.cancelled_caught == (way is not natively), place
        assert [member.over for member in members] == [member.began for member in members], place
        assert all(member.asked is not False for member in members), place
        assert members[1].heard == members[1].worked, place
        assert not _nurseries or not all(member.began for member in members), place
        _nurseries.clear()
        uncancel_to(0)


@pytest.mark.backends("asyncio-virtual", "trio-virtual")
@pytest.mark.parametrize("conduct", CONDUCT)
async def test_deadline_ends_members_at_its_time(kind: Kind, conduct: Any) -> None:
    """Not before, and shown in a member as around the owner; one that starts when it is over does nothing."""
    began = anyio.current_time()
    shown: list[float] = []

    async def looks(_: Member) -> None:
        shown.append(anyio.current_effective_deadline())

    member = Member(conduct)
    with anyio.CancelScope(deadline=began + 5) as scope:
        async with open_nursery(kind) as nursery:
            start(nursery, member, Member(looks))
            while True:
                await nursery.wait(began + 7)
    assert scope.cancelled_caught
    assert anyio.current_time() == began + 5
    assert shown == [began + 5]
    assert member.over


@pytest.mark.backends("asyncio-virtual", "trio-virtual")
async def test_wait_ends_at_its_time_or_by_a_ring(kind: Kind) -> None:
    """Whatever comes first; a ring that nobody waits for is lost."""
    began = anyio.current_time()
    async with open_nursery(kind) as nursery:
        nursery.ring()
        await nursery.wait(began + 3)
        assert nursery.now() == anyio.current_time() == began + 3

        async def rings(member: Member) -> None:
            await anyio.sleep(2)
            nursery.ring()

        start(nursery, Member(rings))
        await nursery.wait(began + 100)
        assert anyio.current_time() == began + 5


async def test_error_of_the_owner_ends_the_members(kind: Kind) -> None:
    """It leaves when they have ended, for every conduct, at every step."""
    for conduct in CONDUCT:
        for step in range(5):
            member = Member(conduct)
            with pytest.raises((ZeroDivisionError, ExceptionGroup)) as raised:
                async with open_nursery(kind) as nursery:
                    start(nursery, member)
                    await _passes(step)
                    raise ZeroDivisionError
            error = raised.value
            assert isinstance(error, ZeroDivisionError) or error.subgroup(ZeroDivisionError) is not None
            assert member.over == member.began
            _nurseries.clear()


async def test_cancel_of_the_nursery_ends_the_members_only(kind: Kind) -> None:
    """`cancel` is level-triggered, holds for later members, and leaves the owner's block alone if it is bare tasks."""
    for conduct in CONDUCT:
        first, late = Member(conduct), Member(waits)
        async with open_nursery(kind) as nursery:
            start(nursery, first)
            with anyio.CancelScope(shield=True):
                await _passes(2)
                nursery.cancel()
                start(nursery, late)
                await _passes(2)
        assert first.over
        assert late.over == late.began
        assert late.asked is not False
        assert not enclosing_cancelled()
        _nurseries.clear()


def test_a_member_is_lost_on_a_loop_that_anyio_has_not_begun() -> None:
    """The owner hears of it in a callback of the loop, which has no task: what it asks anyio there is answered."""
    told: list[float] = []

    async def own() -> None:
        async def never(_: Any) -> None:
            raise AssertionError("it has begun")

        def lose() -> None:
            told.append(anyio.current_time())
            assert not enclosing_cancelled()

        async with open_nursery("bare", lose) as nursery:
            start(nursery, Member(never))
            next(task for task in asyncio.all_tasks() if task.get_name() == "member").cancel()

    with suppress(asyncio.CancelledError):  # anyio's own group, where it is the fallback, ends as if cancelled
        asyncio.run(own())
    assert len(told) == (nursery_module.find_scope_class() is not None)
    _nurseries.clear()


@pytest.mark.backends("asyncio", "asyncio-eager")
@pytest.mark.parametrize("step", range(4))
async def test_stranger_cancels_a_member_natively(kind: Kind, step: int) -> None:
    """Before its first step its work is lost, and the owner is told; later it is the member's own affair."""
    told: list[str] = []

    async def takes_it(member: Member) -> None:
        with suppress(asyncio.CancelledError):
            await member.wait()

    member, other = Member(takes_it), Member(takes_it)
    before = asyncio.all_tasks()
    with suppress(asyncio.CancelledError):
        async with open_nursery(kind, lambda: told.append("lost")) as nursery:
            start(nursery, member, other)
            tasks = [task for task in asyncio.all_tasks() - before if task.get_name() == "member"]
            with anyio.CancelScope(shield=True):
                await _passes(step)
                for task in tasks:
                    if not task.done() and _nurseries.get(member) is not None:
                        task.cancel()
                        break
                await _passes(4)
            nursery.cancel()
    assert member.over == member.began
    assert other.over == other.began
    if nursery.is_group:
        assert told == []  # anyio ends the group as if it had cancelled itself
    else:
        assert told == ([] if member.began and other.began else ["lost"])
    uncancel_to(0)
    _nurseries.clear()


@pytest.mark.backends("asyncio")
async def test_native_cancellation_of_the_holder_is_seen_in_the_same_step_behind_any_shield(kind: Kind) -> None:
    """Code of every level tells the end of the loop from a cancellation of its own, also in a shield."""
    seen: list[tuple[bool, bool]] = []
    holder = own_task()
    assert holder is not None

    async def looks(_: Member) -> None:
        await _passes(4)
        assert not is_cancelled_around()
        assert not loop_is_left()
        with anyio.CancelScope(shield=True):
            assert not loop_is_left()
            holder.cancel()
            seen.append((loop_is_left(), is_cancelled_around()))
            await anyio.lowlevel.checkpoint()
        assert enclosing_cancelled()

    async def owns(_: Member) -> None:
        async with new_nursery(_lose_nothing, copy_context()) as inner:
            start(inner, Member(looks))
            await inner.wait(math.inf)

    with pytest.raises(asyncio.CancelledError):
        async with open_nursery(kind, holds=True) as nursery:
            start(nursery, Member(owns))
            await nursery.wait(math.inf)
    uncancel_to(0)
    assert seen == [(True, True)]
    assert innermost_nursery.get() is None


@pytest.mark.backends("asyncio")
async def test_scope_that_a_member_leaves_open_is_named(kind: Kind) -> None:
    """anyio complains where the outer scope is left; that is told in words that say what to write."""

    async def leaves_open(_: Member) -> None:
        anyio.CancelScope().__enter__()

    with pytest.raises((RuntimeError, ExceptionGroup)) as raised:
        async with open_nursery(kind) as nursery:
            start(nursery, Member(leaves_open), Member(waits))
            await nursery.wait(math.inf)
    failure = scope_left_open(raised.value)
    assert failure is not None
    assert "not left in the same task" in str(failure)
    _nurseries.clear()


@pytest.mark.backends("asyncio")
async def test_another_task_is_told_that_it_cannot_leave(kind: Kind) -> None:
    """Only the owner can leave a nursery."""
    async with open_nursery(kind) as nursery:
        assert not nursery.is_elsewhere()
        elsewhere: list[bool] = []

        async def asks(_: Member) -> None:
            elsewhere.append(nursery.is_elsewhere())

        start(nursery, Member(asks))
    assert elsewhere == [True]


@pytest.mark.backends("asyncio")
async def test_kind_is_chosen_by_what_the_loop_and_anyio_can_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bare tasks where nothing hinders them: no block of the application, no task factory, scopes that show."""
    monkeypatch.setattr(nursery_module, "find_scope_class", find_scope_class)
    assert not open_nursery("bare").is_group
    assert open_nursery("group").is_group
    assert open_nursery("factory").is_group
    monkeypatch.setattr(nursery_module, "find_scope_class", lambda: None)
    assert open_nursery("bare").is_group
