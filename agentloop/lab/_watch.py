"""A warning for code under test that reaches out of the process: guardrails, policies and callbacks of a candidate.

The lab runs them, because what they decide is what is compared. It can't know whether they only think, or post to a
server as well: Python's audit events tell. Nothing is prevented, only told; but of a body that is entered by a
debugger (`lab.enter`) it is refused, because its work was done when the run was recorded.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_notes: ContextVar[list[str] | None] = ContextVar("agentloop_lab_notes", default=None)
_refuses: ContextVar[bool] = ContextVar("agentloop_lab_refuses", default=False)
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_installed = False


def _hear(event: str, arguments: tuple[object, ...]) -> None:
    if event not in ("socket.connect", "open", "subprocess.Popen"):
        return
    notes = _notes.get()
    if notes is None:
        return
    what = _describe(event, arguments)
    if what is None:
        return
    notes.append(what)
    if _refuses.get():
        raise PermissionError(f"the lab lets no body reach out of the process: it {what}")


def _describe(event: str, arguments: tuple[object, ...]) -> str | None:
    if event == "socket.connect":
        return f"connects to {arguments[1]!r}"
    if event == "subprocess.Popen":
        return f"starts {arguments[0]!r}"
    flags = arguments[2]
    return f"writes to {arguments[0]!r}" if isinstance(flags, int) and flags & _WRITING else None


@contextmanager
def watch(notes: list[str], who: str, *, refuses: bool = False) -> Iterator[None]:
    """Add to *notes* what the block does to the world outside of the process, as `WHO connects to …`, each once.

    With *refuses* it gets a PermissionError in place of doing it. Work that the block gives to threads is heard too,
    because threads get the context of the task.
    """
    global _installed  # an audit hook can't be removed, so there is one for all
    if not _installed:
        sys.addaudithook(_hear)
        _installed = True
    heard: list[str] = []
    token, other = _notes.set(heard), _refuses.set(refuses)
    try:
        yield
    finally:
        _notes.reset(token)
        _refuses.reset(other)
        notes.extend(note for one in heard if (note := f"{who} {one}") not in notes)
