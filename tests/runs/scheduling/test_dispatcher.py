"""The pump: no sleeper sleeps past the moment at which a call may start; and the queue of a cap alone."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop._core.admission import Ticket
from agentloop._engine.runtime import dispatcher as pump_module
from agentloop._engine.runtime.dispatcher import CapQueue, Dispatcher
from agentloop.limits import Capacity, Rate


class Started:
    """Owns tickets and notes their start."""

    count = 0

    def start(self) -> None:
        self.count += 1


def test_a_limit_that_gets_room_right_after_a_look_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pump reports the time to look again as of its last look, so a limit that gets room after it is not missed."""
    clock = {"now": 0.0}
    monkeypatch.setattr(pump_module.anyio, "current_time", lambda: clock["now"])
    owner, told = Started(), []
    pump = Dispatcher()
    pump.sleepers[told.append] = None
    rate = Rate(1, 1.0)
    tickets: list[Any] = [Ticket((rate,), owner), Ticket((rate,), owner)]
    pump.add(tickets)
    assert owner.count == 1
    pump.begin([rate])
    clock["now"] = 1.5  # the window passes before the next question
    assert pump.admission.next_room() == 1.0
    assert told == [1.0]
    pump.pump()
    assert owner.count == 2
    assert pump.admission.next_room() == math.inf


def test_another_owner_is_woken_when_the_one_that_slept_for_a_rate_leaves() -> None:
    """A batch that is over takes its alarm with it: the next owner gets it, whether or not a call ends meanwhile."""
    owner, first, second = Started(), list[float](), list[float]()
    pump = Dispatcher(lambda: 0.0)
    pump.sleepers |= {first.append: None, second.append: None}
    rate = Rate(1, 5.0)
    pump.add([Ticket((rate,), owner), Ticket((rate,), owner)])
    pump.begin([rate])
    assert (first, second) == ([5.0], [])
    pump.leave(first.append)
    assert (first, second) == ([5.0], [5.0])


class Call:
    """Owns a ticket; notes its start and, with *brief*, ends inside of it."""

    def __init__(self, queue: Any, cap: Capacity, brief: bool, order: list[int], index: int) -> None:
        self.queue, self.limits, self.brief, self.order, self.index = queue, (cap,), brief, order, index
        self.ticket = Ticket(self.limits, self)

    def start(self) -> None:
        self.order.append(self.index)
        if self.brief:
            self.queue.release(self.limits)


STEPS = st.one_of(
    st.tuples(st.just("add"), st.lists(st.booleans(), max_size=6)),
    st.tuples(st.just("end"), st.integers(0, 5)),
    st.tuples(st.just("withdraw"), st.lists(st.integers(0, 20), max_size=4)),
)


def play(queue: Any, cap: Capacity, steps: Sequence[Any]) -> tuple[list[int], list[tuple[str, ...]]]:
    """Return the calls that *queue* started, in order, and what each call had to wait for."""
    calls: list[Call] = []
    order: list[int] = []
    ended: set[int] = set()
    for step, what in steps:
        if step == "add":
            new = [Call(queue, cap, brief, order, len(calls) + n) for n, brief in enumerate(what)]
            calls += new
            queue.add([call.ticket for call in new])
        elif step == "end":
            running = [index for index in order if index not in ended and not calls[index].brief]
            for index in running[what : what + 1]:
                ended.add(index)
                queue.release(calls[index].limits)
        else:
            queue.withdraw([calls[index].ticket for index in what if index < len(calls)])
    return order, [call.ticket.waited_for for call in calls]


@given(st.integers(1, 3), st.lists(STEPS, max_size=12))
def test_a_queue_for_a_cap_alone_starts_the_calls_that_an_admission_would(tokens: int, steps: list[Any]) -> None:
    """`CapQueue` is the admission of calls that all have the one limit: same order, same `waited_for`."""
    caps = [Capacity(tokens, "cap") for _ in range(2)]
    admission = play(Dispatcher(lambda: 0.0), caps[0], steps)
    assert play(CapQueue(tokens, "cap"), caps[1], steps) == admission
