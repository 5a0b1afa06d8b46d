"""The store of parts: where large payloads of the engine are kept once, by digest, and the history has their names.

The engine's SDK stores payloads outside by drivers (`ExternalStorage`); ours is `_Parts`, on the `PartStore` of the
application. It is below the data converter's payload codec, so a store holds what the codec has encrypted. A part
has the digest of its bytes as its name: equal payloads are one part, writing it twice changes nothing, and what was
changed in the store is refused when it is read.

Decisions: the SDK's own means carry all that passes the engine (arguments, results, answers of queries, the state of
a run that continues), so the workflow's code knows nothing of it, and a replay reads the same. Rejected: references
in records and items, which every reader of a log would have to follow. Parts are never deleted here. Only the engine
knows how long a history is kept, and a reset may need any of it.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import anyio.to_thread
from temporalio.api.common.v1 import Payload
from temporalio.converter import (
    DataConverter,
    ExternalStorage,
    StorageDriver,
    StorageDriverClaim,
    StorageDriverRetrieveContext,
    StorageDriverStoreContext,
)

from agentloop._common.checks import NAMES, check, is_a
from agentloop._common.whole_files import write_whole
from agentloop.exceptions import AgentLoopError, UserError
from agentloop.journal._storage import sync_folder

STORED_FROM = 100_000
"""Bytes from which a payload is kept in the store."""


class PartStore(Protocol):
    """A place for the large parts of runs: a folder (`FolderParts`), a table, a bucket. Many workers use it at once.

    Both methods may raise any error. The engine tries again what they were called for.
    """

    async def put(self, name: str, data: bytes) -> None:
        """Keep *data* under *name*, durably. A part of that name has the same bytes: it may be left as it is."""
        ...

    async def get(self, name: str) -> bytes:
        """Return the bytes that `put` was given.

        Raises:
            Exception: of any class, if there is no such part.
        """
        ...


class PartLost(AgentLoopError):
    """The store has no part of the name that the history has, or one with other bytes."""


class PartUnwritten(AgentLoopError):
    """The store has not taken a part."""


_PATH = NAMES.needs("expected a path", is_a(str, os.PathLike))


class FolderParts:
    """A store of parts in a folder, which all workers and clients see: a shared disk, or one machine.

    A part is a file in a subfolder of two letters, written beside its place, flushed, and then moved there; the folders
    are flushed, too. A file that is there already gets a new time of change. So parts whose time is older than the
    engine keeps histories, and than the longest run lasts, can be deleted.

        AgentPlugin({"clerk": clerk}, store=FolderParts("/var/lib/agents/parts"))
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        check("folder", _PATH, folder)
        self._folder = Path(folder)

    def __repr__(self) -> str:
        return f"FolderParts({str(self._folder)!r})"

    async def put(self, name: str, data: bytes) -> None:
        """Keep *data*, in a thread. Cancellation: the file is there or not, never in part."""
        await anyio.to_thread.run_sync(self._write, name, data)

    async def get(self, name: str) -> bytes:
        """Return the bytes of a part, read in a thread.

        Raises:
            OSError: there is none.
        """
        return await anyio.to_thread.run_sync(self._place(name).read_bytes)

    def _place(self, name: str) -> Path:
        return self._folder / name[:2] / name

    def _write(self, name: str, data: bytes) -> None:
        place = self._place(name)
        try:
            os.utime(place)
        except FileNotFoundError:
            self._create(place, data)
        # Of a part that was there, too: who wrote it may not have come so far.
        sync_folder(str(place.parent))
        sync_folder(str(self._folder))

    def _create(self, place: Path, data: bytes) -> None:
        place.parent.mkdir(parents=True, exist_ok=True)
        write_whole(place, data, is_synced=True)


class _Parts(StorageDriver):
    """The driver of the engine's SDK on a store."""

    def __init__(self, store: PartStore) -> None:
        self._store = store

    def name(self) -> str:
        """The name that histories have: the same for all stores."""
        return "agentloop.parts"

    async def store(self, context: StorageDriverStoreContext, payloads: Sequence[Payload]) -> list[StorageDriverClaim]:
        """Keep each payload, compressed. Raises PartUnwritten if the store doesn't take it."""
        claims = []
        for payload in payloads:
            data = zlib.compress(payload.SerializeToString(deterministic=True), 6)
            name = _digest(data)
            try:
                await self._store.put(name, data)
            except Exception as error:
                raise PartUnwritten(f"part {name} was not kept: {type(error).__name__}: {error}") from error
            claims.append(StorageDriverClaim({"name": name}))
        return claims

    async def retrieve(
        self, context: StorageDriverRetrieveContext, claims: Sequence[StorageDriverClaim]
    ) -> list[Payload]:
        """Return the payloads. Raises PartLost if the store hasn't one as it was."""
        payloads = []
        for claim in claims:
            name = claim.claim_data["name"]
            try:
                data = await self._store.get(name)
            except Exception as error:
                raise PartLost(f"part {name} can't be read: {type(error).__name__}: {error}") from error
            if _digest(data) != name:
                raise PartLost(f"part {name} has changed in the store")
            payloads.append(Payload.FromString(zlib.decompress(data)))
        return payloads


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def keeping_in(store: PartStore) -> Callable[[DataConverter | None], DataConverter]:
    """Return what gives a data converter the *store*.

    Raises:
        UserError: (what is returned does) the converter has another storage.
    """
    storage = ExternalStorage([_Parts(store)], payload_size_threshold=STORED_FROM)

    def give(converter: DataConverter | None) -> DataConverter:
        known = converter or DataConverter.default
        if known.external_storage not in (None, storage):
            raise UserError("store: the client's data converter has an external storage already; leave one of them out")
        return replace(known, external_storage=storage)

    return give
