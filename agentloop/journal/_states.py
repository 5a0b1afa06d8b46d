"""Where the states of paused runs are kept, of which each has one taker.

A state is a text here: what `RunState.to_string` wrote, sealed where the application has a key.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import math
import os
import re
import secrets
import sys
import time
from pathlib import Path
from typing import Protocol, runtime_checkable

import anyio.to_thread
from anyio.lowlevel import checkpoint

from agentloop._common.checks import NAMES, check, check_seconds, is_a
from agentloop.exceptions import StateError

logger: logging.Logger = logging.getLogger("agentloop")

NAME_PATTERN = r"\A[A-Za-z0-9_-]{16,64}\Z"
_NAME = re.compile(NAME_PATTERN, re.ASCII)


def new_name() -> str:
    """Return a random name of 128 bits that can't be guessed."""
    return secrets.token_urlsafe(16)


def is_name(text: str) -> bool:
    """Tell whether *text* may be a name that `new_name` made; such a text is safe in a path."""
    return _NAME.fullmatch(text) is not None


@runtime_checkable
class StateStore(Protocol):
    """Keeps the states of paused runs. Any object with these two methods is one.

    A third method is optional: `put_back(handle, state)` keeps a state again that was taken by *handle*, and returns
    the handle. A request that is refused then leaves the handle as it was, which its owner has; without the method the
    refusal has a new one.
    """

    async def put(self, state: str) -> str:
        """Keep *state*, and return the handle by which it can be taken. The handle can't be guessed.

        `AgentApp` adds a digest of the state to the handle of a store of yours, and refuses another state under it.
        """
        ...

    async def take(self, handle: str) -> str | None:
        """Return the state of *handle* and forget it; None if there is none.

        Of several callers, at the same time and in any process, exactly one gets the state.
        """
        ...


@runtime_checkable
class _ReturnStore(StateStore, Protocol):
    async def put_back(self, handle: str, state: str) -> str: ...


async def put_back(store: StateStore, handle: str, state: str) -> str:
    """Keep *state*, which was taken by *handle*, under that handle if *store* can do that; return its handle."""
    return await (store.put_back(handle, state) if isinstance(store, _ReturnStore) else store.put(state))


class MemoryStates:
    """States that exist as long as this object, for one process. Where a bound is passed, the oldest states go.

    Args:
        limit: The most states that are kept.
        max_bytes: The most bytes of memory that their texts may take together.
        max_age: The seconds after which a state that no one has taken can't be taken any more; None = never. Its memory
            is free at the next save.

    Raises:
        UserTypeError, UserValueError: a bound is no such number.
    """

    # `_states` is in the order of the saves, which is the order of the ages; `_size` is the sum of its texts' bytes.

    def __init__(
        self, *, limit: int = 10_000, max_bytes: int = 256 * 1024 * 1024, max_age: float | None = 86_400.0
    ) -> None:
        check("limit", NAMES.count(), limit)
        check("max_bytes", NAMES.count(), max_bytes)
        self._limit = limit
        self._max_bytes = max_bytes
        self._max_age = check_seconds("max_age", max_age)
        self._states: dict[str, tuple[float, str]] = {}
        self._size = 0

    async def put(self, state: str) -> str:
        """Keep *state*; see `StateStore`.

        Raises:
            StateError: the state is larger than `max_bytes`. The others stay.
        """
        return await self.put_back(new_name(), state)

    async def put_back(self, handle: str, state: str) -> str:
        """Keep *state*, which was taken by *handle*, under that handle, and return it; see `StateStore`.

        Raises:
            StateError: the state is larger than `max_bytes`. The others stay.
        """
        await checkpoint()
        size = sys.getsizeof(state)
        if size > self._max_bytes:
            raise StateError(f"the state takes {size} bytes, and MemoryStates keep at most {self._max_bytes} of all")
        while self._states and (
            len(self._states) >= self._limit
            or self._size + size > self._max_bytes
            or self._is_old(next(iter(self._states.values()))[0])
        ):
            self._forget(next(iter(self._states)))
        self._states[handle] = (time.monotonic(), state)
        self._size += size
        return handle

    async def take(self, handle: str) -> str | None:
        """Return the state of *handle* and forget it; see `StateStore`."""
        await checkpoint()
        if handle not in self._states:
            return None
        kept_at, state = self._forget(handle)
        return None if self._is_old(kept_at) else state

    def _is_old(self, kept_at: float) -> bool:
        return self._max_age is not None and time.monotonic() - kept_at > self._max_age

    def _forget(self, handle: str) -> tuple[float, str]:
        found = self._states.pop(handle)
        self._size -= sys.getsizeof(found[1])
        return found


_SPARED = 3600.0
"""The seconds for which a file of a write or a read that may be under way is left alone, however short the age is."""


class FolderStates:
    """States as files of one folder, which several processes of one machine may share. Files are the owner's only.

    A handle ends with a digest of its state. So two files that were exchanged are refused, with a key and without.
    A handle that an older version made has none.

    The taker is the one whose renaming of the file succeeds. A process that dies after that leaves a file with the
    ending `.taken`, which is never taken again: whether the run has been resumed is unknown.

    Args:
        path: The folder; made at the first use.
        max_age: The seconds after which a state that no one has taken is deleted, with what dead processes have left;
            None = never. It is deleted by a save, at most one percent later, and can be taken until then. The lowest
            age of the processes that share the folder holds.

    Raises:
        UserTypeError, UserValueError: *max_age* isn't a positive number of seconds.
    """

    # Age is the time since the file was changed. Of a taken state that is the time of its taking, so that no process
    # deletes what another one reads.

    def __init__(self, path: str | os.PathLike[str], *, max_age: float | None = None) -> None:
        self._path = Path(path)
        self._max_age = check_seconds("max_age", max_age)
        self._next_look = -math.inf

    async def put(self, state: str) -> str:
        """Keep *state*; see `StateStore`.

        Raises:
            StateError: if the disk refuses.
        """
        return await self.put_back(f"{new_name()}-{short_digest(state)}", state)

    async def put_back(self, handle: str, state: str) -> str:
        """Keep *state*, which was taken by *handle*, under that handle, and return it; see `StateStore`.

        Raises:
            StateError: if the disk refuses.
        """
        await anyio.to_thread.run_sync(self._put, handle, state)
        return handle

    async def take(self, handle: str) -> str | None:
        """Return the state of *handle* and forget it; see `StateStore`.

        Raises:
            StateError: if the disk refuses, or the file has another state than the handle was made for. The file then
                keeps the ending `.taken`.
        """
        return await anyio.to_thread.run_sync(self._take, handle) if is_name(handle) else None

    def _put(self, handle: str, state: str) -> None:
        new = self._path / f"{handle}.new"
        try:
            self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
                file.write(state)
                file.flush()
                os.fsync(file.fileno())
            new.rename(self._path / f"{handle}.state")
        except OSError as error:
            raise StateError(f"{self._path}: a state can't be kept: {error.strerror or error}") from error
        if self._max_age is not None and time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + self._max_age / 100  # else each save costs a look at all that wait
            try:
                self._delete_old(self._max_age)
            except OSError as error:  # this state is kept
                logger.warning("%s: old states can't be deleted: %s", self._path, error.strerror or error)

    def _delete_old(self, age: float) -> None:
        """Delete the files that are older than *age*, in seconds, and belong to states that no one takes any more.

        Raises:
            OSError: one can't be deleted; the others are.
        """
        now = time.time()
        failure: OSError | None = None
        for path in self._path.iterdir():
            most = {".state": age, ".taken": max(age, _SPARED), ".new": max(age, _SPARED)}.get(path.suffix, math.inf)
            try:
                if is_name(path.stem) and now - path.stat().st_mtime > most:
                    path.unlink()
            except FileNotFoundError:
                pass  # it was taken meanwhile
            except OSError as error:
                failure = error
        if failure is not None:
            raise failure

    def _take(self, handle: str) -> str | None:
        kept, taken = self._path / f"{handle}.state", self._path / f"{handle}.taken"
        try:
            os.utime(kept)  # before it has the other name: its age begins now
            kept.rename(taken)
            text = taken.read_text(encoding="utf-8")
            if len(handle) > DIGEST_CHARS and not hmac.compare_digest(handle[-DIGEST_CHARS:], short_digest(text)):
                raise StateError(f"{self._path}: the state of this handle was exchanged for another one, or changed")
            taken.unlink()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StateError(f"{self._path}: a state can't be taken: {error.strerror or error}") from error
        return text


class BoundStates:
    """States in a store of the application: each handle gets a digest of its state, as `FolderStates` give one."""

    def __init__(self, store: StateStore) -> None:
        self._store = store

    async def put(self, state: str) -> str:
        """Keep *state*; see `StateStore`."""
        return f"{await self._store.put(state)}.{short_digest(state)}"

    async def put_back(self, handle: str, state: str) -> str:
        """Keep *state*, which was taken by *handle*; see `StateStore`."""
        inner, _, digest = handle.rpartition(".")
        return f"{await put_back(self._store, inner, state)}.{digest}"

    async def take(self, handle: str) -> str | None:
        """Return the state of *handle* and forget it; see `StateStore`.

        Raises:
            StateError: the store gave another state than the handle was made for.
        """
        inner, _, digest = handle.rpartition(".")
        state = await self._store.take(inner)
        if state is not None and not hmac.compare_digest(digest.encode(), short_digest(state).encode()):
            raise StateError("the state of this handle was exchanged for another one, or changed")
        return state


class ClientStates:
    """States that the clients carry; the server keeps a ticket for each, by which it is taken once.

    The handle is the state itself, so `AgentApp` refuses this store without a key that seals it. A seal hides nothing:
    the client can read the whole log but for secrets. The body's limit must have room for it.

    Args:
        tickets: The store of the tickets, some hundred bytes for each; `MemoryStates()` if not given. A state whose
            ticket is lost can't be resumed.
    """

    def __init__(self, tickets: StateStore | None = None) -> None:
        self._tickets = MemoryStates() if tickets is None else tickets
        check("tickets", NAMES.needs("expected a StateStore", is_a(StateStore)), self._tickets)

    async def put(self, state: str) -> str:
        """Return *state* with its ticket."""
        return f"{await self._tickets.put(_digest(state))}.{state}"

    async def put_back(self, handle: str, state: str) -> str:
        """Return *state* with the ticket of *handle*, by which it was taken; see `StateStore`."""
        return f"{await put_back(self._tickets, handle.partition('.')[0], _digest(state))}.{state}"

    async def take(self, handle: str) -> str | None:
        """Return the state in *handle*, once; None if its ticket is unknown, taken, or another state's."""
        ticket, _, state = handle.partition(".")
        known = await self._tickets.take(ticket)
        return state if known is not None and hmac.compare_digest(known, _digest(state)) else None


def _digest(state: str) -> str:
    return hashlib.sha256(state.encode("utf-8", "surrogatepass")).hexdigest()


DIGEST_CHARS = 40


def short_digest(state: str) -> str:
    """Return a digest of *state* that has room in a name, of 160 bits."""
    return _digest(state)[:DIGEST_CHARS]


def bound(store: StateStore) -> StateStore:
    """Return *store* with handles that are bound to their states; those of the library's stores are."""
    return store if isinstance(store, MemoryStates | FolderStates | ClientStates) else BoundStates(store)
