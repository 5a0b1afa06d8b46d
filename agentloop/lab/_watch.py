"""A warning for code under test that reaches out of the process: guardrails, policies and callbacks of a candidate.

The lab runs them, because what they decide is what is compared. It can't know whether they only think, or post to a
server as well: Python's audit events tell. Nothing is prevented, only told; but of a body that is entered by a
debugger (`lab.enter`) it is refused, because its work was done when the run was recorded.

Such a body may let others do its work: a pool of threads, a task that was there before. They have none of its context,
so while it runs the refusal holds for all in the process that isn't in another watched block. Free are a debugger's
threads and what happens in `unwatched`.

What the events don't tell can't be heard: connections and files that are open already, what a thread does that outlives
the body, and libraries in C that don't go through Python's own functions (uvloop, libpq).
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final
from urllib.parse import parse_qs, urlsplit

import attrs

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_PRIVATE: Final = ("", ":memory:", b"", b":memory:")
"""Names of a SQLite database that no other code sees."""

_REACHES: Final[dict[str, tuple[str, int | None]]] = {
    "open": ("writes to", 0),
    "sqlite3.connect": ("opens the database", 0),
    # the network
    "socket.connect": ("connects to", 1),
    "socket.bind": ("listens at", 1),
    "socket.sendto": ("sends to", 1),
    "socket.sendmsg": ("sends to", 1),
    "socket.getaddrinfo": ("looks up", 0),
    "socket.gethostbyname": ("looks up", 0),
    "socket.gethostbyaddr": ("looks up", 0),
    "socket.getnameinfo": ("looks up", 0),
    "socket.sethostname": ("names the machine", 0),
    "urllib.Request": ("requests", 0),
    "webbrowser.open": ("opens", 0),
    "http.client.send": ("sends a request", None),
    "ftplib.sendcmd": ("sends a command", None),
    "imaplib.send": ("sends a command", None),
    "poplib.putline": ("sends a command", None),
    "smtplib.send": ("sends mail", None),
    "syslog.syslog": ("writes to the system's log", None),
    # files
    "os.remove": ("removes", 0),
    "os.rmdir": ("removes", 0),
    "os.rename": ("renames", 0),
    "os.mkdir": ("makes the folder", 0),
    "os.link": ("makes the link", 1),
    "os.symlink": ("makes the link", 1),
    "os.truncate": ("cuts", 0),
    "os.chmod": ("changes", 0),
    "os.chown": ("changes", 0),
    "os.chflags": ("changes", 0),
    "os.utime": ("changes", 0),
    "os.setxattr": ("changes", 0),
    "os.removexattr": ("changes", 0),
    "shutil.chown": ("changes", 0),
    "shutil.copyfile": ("writes to", 1),
    "shutil.copymode": ("changes", 1),
    "shutil.copystat": ("changes", 1),
    "shutil.copytree": ("writes to", 1),
    "shutil.make_archive": ("writes to", 0),
    "shutil.move": ("moves", 0),
    "shutil.rmtree": ("removes", 0),
    "shutil.unpack_archive": ("unpacks", 0),
    # processes
    "subprocess.Popen": ("starts", 0),
    "os.system": ("starts", 0),
    "os.exec": ("starts", 0),
    "os.posix_spawn": ("starts", 0),
    "os.spawn": ("starts", 1),
    "os.startfile": ("starts", 0),
    "os.startfile/2": ("starts", 0),
    "pty.spawn": ("starts", 0),
    "_winapi.CreateProcess": ("starts", 0),
    "os.fork": ("forks the process", None),
    "os.forkpty": ("forks the process", None),
    "os.kill": ("signals the process", 0),
    "os.killpg": ("signals the processes", 0),
    "_winapi.TerminateProcess": ("ends a process", None),
    "os.putenv": ("sets the variable", 0),
    "os.unsetenv": ("drops the variable", 0),
    # Windows
    "_winapi.CreateJunction": ("makes the link", 1),
    "winreg.CreateKey": ("changes the registry", None),
    "winreg.DeleteKey": ("changes the registry", None),
    "winreg.DeleteValue": ("changes the registry", None),
    "winreg.LoadKey": ("changes the registry", None),
    "winreg.SetValue": ("changes the registry", None),
}
"""Python's audit events of what is beyond the process: in words, and which argument tells of what."""


@attrs.frozen(eq=False)
class _WatchedBlock:
    """A block that is watched: what was heard of it, and whether that is refused."""

    heard: list[str] = attrs.Factory(list)
    refuses: bool = False


_block: ContextVar[_WatchedBlock | None] = ContextVar("agentloop_lab_block", default=None)
_refusing: list[_WatchedBlock] = []
_installed = False


def _hear(event: str, arguments: tuple[object, ...]) -> None:
    if event not in _REACHES:
        return
    block, whose = _block.get(), ""
    if block is None:
        if not _refusing or getattr(threading.current_thread(), "is_pydev_daemon_thread", False):
            return
        block, whose = _refusing[-1], "or what runs beside it "
    what = _describe(event, arguments)
    if what is None:
        return
    block.heard.append(f"{whose}{what}")
    if block.refuses:
        raise PermissionError(f"the lab lets no body reach out of the process: it {what}")


def _describe(event: str, arguments: tuple[object, ...]) -> str | None:
    """Return what is done in words; None for what no other code sees, and for what Python itself does for an import."""
    words, index = _REACHES[event]
    if index is None:
        return words
    given = arguments[index]
    match event:
        case "open" if not isinstance(arguments[2], int) or not arguments[2] & _WRITING or given == os.devnull:
            return None
        case "open" if isinstance(given, int):
            return None  # a file object for a descriptor, which was heard of when it was opened
        case "socket.sendmsg" if given is None:
            return None  # over a connection that is open already
        case "sqlite3.connect" if given in _PRIVATE or _is_harmless_uri(given):
            return None
        case "open" | "os.mkdir" | "os.rename" if "__pycache__" in str(given):
            return None
        case _:
            return f"{words} {given!r}"


def _is_harmless_uri(database: object) -> bool:
    """Tell whether *database* is the URI of one in memory, or of one that is only read."""
    if not isinstance(database, str) or not database.startswith("file:"):
        return False
    uri = urlsplit(database)
    return uri.path == ":memory:" or not {"ro", "memory"}.isdisjoint(parse_qs(uri.query).get("mode", ()))


@contextmanager
def watch(notes: list[str], who: str, *, refuses: bool = False) -> Iterator[None]:
    """Add to *notes* what the block does to the world outside of the process, as `WHO connects to …`, each once.

    With *refuses* it gets a PermissionError in place of doing it, and so does what else is done in the process
    meanwhile. Work that the block gives to threads is heard too where they get the context of the task.
    """
    global _installed  # an audit hook can't be removed, so there is one for all
    if not _installed:
        sys.addaudithook(_hear)
        _installed = True
    block = _WatchedBlock(refuses=refuses)
    token = _block.set(block)
    if refuses:
        _refusing.append(block)
    try:
        yield
    finally:
        if refuses:
            _refusing.remove(block)
        _block.reset(token)
        notes.extend(note for one in block.heard if (note := f"{who} {one}") not in notes)


@contextmanager
def unwatched() -> Iterator[None]:
    """Let what the block itself does happen and be untold: the work of a debugger."""
    token = _block.set(_WatchedBlock())
    try:
        yield
    finally:
        _block.reset(token)
