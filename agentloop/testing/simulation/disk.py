"""A disk for `FileJournal` that crashes at a chosen operation: the process only, or the whole machine.

It has three depths: durable data, data that the operating system holds since the last sync, and data that the process
is about to write. A process that dies loses the last. A power failure loses the second too, and not in order: each
sector then shows any of the states it had since the last sync, and so does the file's length. Does not know the
journal's format.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Literal, TypeAlias, get_args

import attrs

__all__ = ["MODES", "Crash", "CrashAt", "Mode", "SimulatedDisk"]

SECTOR = 32  # small, so that one line spans several

Mode: TypeAlias = Literal["before", "torn", "unsynced", "after"]
MODES: tuple[Mode, ...] = get_args(Mode)


class Crash(Exception):
    """The process is dead; none of its later operations reaches the disk."""


@attrs.frozen
class CrashAt:
    """The crash of a process: the number of the disk's operation, counted from 0, and the mode.

    before: nothing of the operation is done. torn: a part of it is done (the process is killed within a write).
    unsynced: it is done, then the power fails. after: it is done, then the process dies.
    """

    operation: int
    mode: Mode = attrs.field(validator=attrs.validators.in_(MODES))


class SimulatedDisk:
    """One file, as `FileJournal(…, storage=disk)` takes it: for one journal at a time, with `restart` between them.

    Args:
        data: The file's first content.
        seed: Decides where a write tears, and which states survive a power failure.

    Attributes:
        crash: The crash of this process; None: it does not crash.
        dead: True once it has crashed; every operation then raises `Crash`.
        operations: The number of this process's operations.
        log: The names of the operations of all processes.
        states: The durable content of the file, then its content after each change since.
        fail_next: The error of the next operation, which tears if it writes.
        on_death: Called at the moment of the crash.
    """

    def __init__(self, data: bytes = b"", *, seed: int = 0) -> None:
        self.random: random.Random = random.Random(seed)
        self.states: list[bytes] = [data]
        self.operations: int = 0
        self.crash: CrashAt | None = None
        self.dead: bool = False
        self.is_open: bool = False
        self.fail_next: OSError | None = None
        self.on_death: Callable[[], None] | None = None
        self.log: list[str] = []

    @property
    def data(self) -> bytes:
        """The content that a reader sees now."""
        return self.states[-1]

    # ---------------------------------------------------------------------------------- as a Storage

    def read(self) -> bytes:
        """Return the whole content."""
        if self.dead:
            raise Crash
        return self.data

    def open(self, *, durable: bool) -> None:
        """Open the file for one user; a second one gets BlockingIOError."""
        self._step("open")
        if self.is_open:
            raise BlockingIOError(11, "held")
        self.is_open = True

    def write(self, data: bytes) -> None:
        """Append *data*."""
        torn = self.data + data[: self.random.randrange(len(data))]
        self._step("write", self.data + data, torn)

    def truncate(self, size: int) -> None:
        """Cut the file to *size* bytes."""
        self._step("truncate", self.data[:size])

    def sync(self) -> None:
        """Make all of it durable."""
        self._step("sync")
        self.states = [self.data]

    def close(self) -> None:
        """Release the file."""
        self.is_open = False

    def _step(self, name: str, new: bytes | None = None, torn: bytes | None = None) -> None:
        if self.dead:
            raise Crash
        self.log.append(name)
        if self.fail_next is not None:
            error, self.fail_next = self.fail_next, None
            if torn is not None:
                self.states.append(torn)
            raise error
        ends = self.crash is not None and self.crash.operation == self.operations
        self.operations += 1
        mode = self.crash.mode if ends and self.crash is not None else "after"
        if mode == "torn" and torn is not None:
            self.states.append(torn)
        elif mode != "before" and mode != "torn" and new is not None:
            self.states.append(new)
        if ends:
            if mode == "after" and name == "sync":
                self.states = [self.data]
            self.dead = True
            if self.on_death is not None:
                self.on_death()
            raise Crash

    # ---------------------------------------------------------------------------------- between processes

    def restart(self) -> None:
        """Begin the next process on the content that is left: all of it, or the rest that a power failure spared."""
        if self.crash is not None and self.crash.mode == "unsynced":
            self.lose_power()
        self.crash, self.dead, self.is_open, self.operations, self.on_death = None, False, False, 0, None

    def lose_power(self) -> None:
        """Replace the content by one that a power failure may leave of the states since the last sync."""
        sector_states = self.states if self.random.random() < 0.7 else [self.states[0], self.states[-1]]
        size = len(self.random.choice(self.states))
        image = bytearray()
        for at in range(0, size, SECTOR):
            image += self.random.choice(sector_states)[at : at + SECTOR].ljust(SECTOR, b"\0")
        self.states = [bytes(image[:size])]
