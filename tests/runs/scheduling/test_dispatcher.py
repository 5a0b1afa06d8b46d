"""The pump: no sleeper sleeps past the moment at which a call may start."""

import math
from typing import Any

import pytest

from agentloop._core.admission import Ticket
from agentloop._engine.runtime import dispatcher as pump_module
from agentloop._engine.runtime.dispatcher import Dispatcher
from agentloop.limits import Rate


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
    clock["now"] = 1.5  # the window passes before the next question
    assert pump.next_room() == 1.0
    assert told == [1.0]
    pump.pump()
    assert owner.count == 2
    assert pump.next_room() == math.inf
