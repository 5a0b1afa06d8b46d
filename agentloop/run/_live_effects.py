"""The effects of a usual run, which calls what it is given. A replay, a lab and a workflow engine have others."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Awaitable
from typing import Any

import anyio

from agentloop._concurrency.interrupts import interruptible
from agentloop.abc import effects as e


class LiveEffects:
    """Does each effect of a live run, where a replay answers from its log. Has no state; all runs may share it."""

    @interruptible
    def perform(self, effect: e.Effect) -> Awaitable[Any]:
        """Return the work of *effect*, to be awaited at once. On trio a KeyboardInterrupt may be raised in it."""
        match effect:
            case e.CallTool() | e.CallModel():  # the most frequent first: a class that doesn't fit takes 0.17 µs
                return effect.do()
            case e.NewId():
                return _answer(os.urandom(16).hex())
            case e.Sleep(seconds):
                return anyio.sleep(seconds)
            case e.Now():
                return _answer(time.time())
            case e.Random():
                return _answer(uuid.uuid4().int / 2**128)
            case _:
                return effect.do()


async def _answer(result: Any) -> Any:
    return result
