"""Journals written record by record, and the page of a growing one, served in this process."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from agentloop import records as r
from agentloop._storage.state_codec import header, line_encoder
from agentloop.cli.trace import TracedJournal
from agentloop.cli.trace_server import serve_timeline, stamp_files

WRITE = line_encoder(None)
HEADER = header("7f3a91c2", b'{"agents":{}}', sealed=False)


async def append(journal: Any, records: list[r.Record]) -> None:
    """Append *records* as one batch."""
    await journal.append([WRITE(record) for record in records])


@asynccontextmanager
async def served(path: Path, run_id: str | None = None) -> AsyncIterator[str]:
    """Serve the timeline of the journal at *path*, and give the page's address."""
    source = TracedJournal(path, run_id)
    address: list[str] = []
    known = anyio.Event()

    def started(url: str) -> None:
        address.append(url)
        known.set()

    async def serve() -> None:
        await serve_timeline(partial(stamp_files, path), source.follow(content=True), started=started)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(serve)
        await known.wait()
        yield address[0]
        tasks.cancel_scope.cancel()
