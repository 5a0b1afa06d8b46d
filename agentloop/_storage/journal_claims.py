"""The claims of journals: of all code in this process, one run or one state writes to a journal object at a time.

Who writes reads the whole journal before, with waits: another one could write meanwhile, and both would do what is due.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from agentloop.abc import Journal
from agentloop.exceptions import JournalError

_claimed: dict[int, Callable[[], bool]] = {}
"""Per journal that is being written to, by id: the function that tells whether its writer's event loop lives."""


def claim(journal: Journal, loop_lives: Callable[[], bool]) -> Callable[[], None]:
    """Claim *journal* for one writer, until the returned function is called.

    The claim of a writer whose event loop is gone is void: such a writer doesn't write any more.

    Raises:
        JournalError: another one writes to it.
    """
    other = _claimed.get(id(journal))
    if other is not None and other():
        raise JournalError("another run of this process is writing to the journal, or `RunState.append_to` is")
    # Made anew: it tells this claim from one of another writer of the same loop.
    lives = _claimed[id(journal)] = partial(loop_lives)

    def release() -> None:
        if _claimed.get(id(journal)) is lives:
            del _claimed[id(journal)]

    return release
