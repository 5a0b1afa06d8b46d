"""The store of parts: what is large is kept once, outside of the history, and has no bound of the engine."""

import os
import random
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

pytest.importorskip("temporalio", reason="needs the extra temporal: nox -s tests-temporal")

import anyio
from temporalio.client import Client
from temporalio.converter import DataConverter, ExternalStorage, StorageDriverClaim, StorageDriverStoreContext
from temporalio.worker import Replayer, Worker

from agentloop import Agent, RunConfig, UserError, tool
from agentloop.exceptions import UserTypeError
from agentloop.items import ToolOutput
from agentloop.limits import ToolExecution
from agentloop.model_events import ModelRequest
from agentloop.records import CallSettled, Record
from agentloop.temporal import (
    AgentPlugin,
    AgentRunHandle,
    AgentRunResult,
    FolderParts,
    PartLost,
    PartUnwritten,
    _store,
    get_run,
    start_run,
)
from agentloop.temporal._store import _Parts, keeping_in
from agentloop.testing import FunctionModel, call, say

pytestmark = [
    *(pytest.mark.real_clock, pytest.mark.leaves_threads),
    *(pytest.mark.timeout(180), pytest.mark.backends("asyncio")),
]

LARGE = random.Random(3).randbytes(2_300_000).decode("latin-1").translate({at: 64 + at % 63 for at in range(256)})
"""A text that no compression makes fit into a payload."""
SMALL = LARGE[:20_000]


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep smaller payloads in the store, too."""
    monkeypatch.setattr(_store, "STORED_FROM", 10_000)


def find_parts(folder: Path) -> list[Path]:
    """Return the files of a store."""
    return [path for path in folder.rglob("*") if path.is_file()]


class Reader:
    """An agent that reads a large text, once in each of some turns, and repeats it at its end."""

    def __init__(self, text: str = SMALL, *, idempotent: bool = True) -> None:
        self.bodies = 0
        self.shown: list[int] = []
        self._text, self._idempotent = text, idempotent

    def agent(self) -> Agent[Any, Any]:
        """Return the agent."""

        @tool(idempotent=self._idempotent)
        async def read(n: int) -> str:
            """Read."""
            self.bodies += 1
            return self._text

        return Agent("reader", model=FunctionModel(self._say), tools=[read])

    def _say(self, request: ModelRequest) -> Any:
        self.shown = [len(item.output) for item in request.items if isinstance(item, ToolOutput)]
        return say(self._text) if request.turn == 2 else call("read", {"n": 1}, "c1")


class Failing(FolderParts):
    """A store that fails the first few times."""

    def __init__(self, folder: Path, *, puts: int = 0, gets: int = 0) -> None:
        super().__init__(folder)
        self.puts, self.gets = puts, gets

    async def put(self, name: str, data: bytes) -> None:
        """Keep the part, or fail."""
        if self.puts:
            self.puts -= 1
            raise OSError("the disk is full")
        await super().put(name, data)

    async def get(self, name: str) -> bytes:
        """Return the part, or fail."""
        if self.gets:
            self.gets -= 1
            raise OSError("the disk is away")
        return await super().get(name)


async def read(
    address: str, reader: Reader, store: Any, **options: Any
) -> tuple[AgentRunHandle, AgentRunResult, list[Record]]:
    """Run the agent to its end, and replay it; return the handle, the result and the records."""
    plugin = AgentPlugin(
        {"reader": reader.agent()},
        run_config=RunConfig(tool_execution=ToolExecution(max_output_chars=None)),
        store=store,
        **options,
    )
    client = await Client.connect(address, plugins=[plugin])
    queue = f"queue-{uuid4().hex}"
    async with Worker(client, task_queue=queue, graceful_shutdown_timeout=timedelta(seconds=5)):
        run = await start_run(client, "reader", "go", id=f"read-{uuid4().hex}", task_queue=queue)
        with anyio.fail_after(90):
            result = await run.result()
            # Each query of a run that is over replays it, so a long one isn't asked.
            small = result.final_output == SMALL
            records = [record async for record in run.records(interval=0.1)] if small else []
    await Replayer(workflows=[], plugins=[plugin]).replay_workflow(await run.workflow.fetch_history())
    return run, result, records


@pytest.mark.scenario("SM-11")
async def test_what_the_engine_would_not_take_is_a_part(address: str, tmp_path: Path) -> None:
    """The value of a body, a model's input and its answer, and the final output."""
    reader = Reader(LARGE)
    run, result, _ = await read(address, reader, FolderParts(tmp_path))
    assert result.final_output == LARGE
    assert (reader.bodies, reader.shown) == (1, [len(LARGE)])
    seen = await run.workflow.describe()
    assert seen.raw_description.workflow_execution_info.history_size_bytes < 30_000


@pytest.mark.scenario("SM-11")
@pytest.mark.usefixtures("small_parts")
async def test_a_run_continues_with_its_state_as_a_part(address: str, tmp_path: Path) -> None:
    """Like the conversation with which the new workflow begins. Its records have all, and it can be replayed."""
    reader = Reader()
    run, result, records = await read(address, reader, FolderParts(tmp_path), max_history=1)
    assert result.final_output == SMALL
    assert (reader.bodies, reader.shown) == (1, [len(SMALL)])
    history = await run.workflow.fetch_history()
    assert history.events[0].workflow_execution_started_event_attributes.continued_execution_run_id
    assert [type(record) for record in records].count(CallSettled) == 1


@pytest.mark.usefixtures("small_parts")
async def test_a_client_without_the_store_is_told_so(address: str, tmp_path: Path) -> None:
    """One with it reads, as long as the parts are there."""
    run, _, _ = await read(address, Reader(), FolderParts(tmp_path))
    plain = get_run(await Client.connect(address), run.id)
    with pytest.raises(UserError, match=r"store of parts: connect the client with plugins="):
        await plain.result()
    with_store = get_run(await Client.connect(address, plugins=[AgentPlugin({}, store=FolderParts(tmp_path))]), run.id)
    assert (await with_store.result()).final_output == SMALL
    for path in find_parts(tmp_path):
        path.unlink()
    with pytest.raises(PartLost, match=r"can't be read: FileNotFoundError"):
        await with_store.result()


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize(("idempotent", "bodies", "status"), [(False, 1, "unknown"), (True, 2, "succeeded")])
async def test_a_value_that_the_store_did_not_take_leaves_the_call_unknown(
    address: str, tmp_path: Path, idempotent: bool, bodies: int, status: str
) -> None:
    """Its body has ended, and isn't called again; one that may be is."""
    reader = Reader(idempotent=idempotent)
    _, result, records = await read(address, reader, Failing(tmp_path, puts=1))
    assert result.final_output == SMALL
    [settled] = [one for one in records if isinstance(one, CallSettled)]
    assert (reader.bodies, settled.outcome.status) == (bodies, status)


@pytest.mark.usefixtures("small_parts")
async def test_a_store_that_is_away_delays_a_run(address: str, tmp_path: Path) -> None:
    """Workflow tasks and activities that can't read are tried again."""
    reader = Reader(idempotent=False)
    _, result, _ = await read(address, reader, Failing(tmp_path, gets=2))
    assert result.final_output == SMALL
    assert reader.bodies == 1


async def test_a_part_is_written_once_and_touched_again(tmp_path: Path) -> None:
    """So that its time tells when it was used."""
    store = FolderParts(tmp_path)
    await store.put("ab12", b"data")
    path = tmp_path / "ab" / "ab12"
    os.utime(path, (1, 1))
    await store.put("ab12", b"data")
    assert path.stat().st_mtime > 1
    assert await store.get("ab12") == b"data"
    assert [one.name for one in path.parent.iterdir()] == ["ab12"]
    assert repr(store) == f"FolderParts({str(tmp_path)!r})"


async def test_a_part_that_cannot_be_moved_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither at its place nor beside it."""

    def refuse(*_: object) -> None:
        raise OSError("no")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="no"):
        await FolderParts(tmp_path).put("ab12", b"data")
    assert list((tmp_path / "ab").iterdir()) == []


async def test_a_changed_part_is_refused(tmp_path: Path) -> None:
    """And one that isn't there, and one that the store doesn't take; each by its name."""
    parts = _Parts(FolderParts(tmp_path))
    [payload] = await DataConverter.default.encode(["x" * 100])
    [claim] = await parts.store(StorageDriverStoreContext(), [payload])
    [path] = find_parts(tmp_path)
    assert claim.claim_data == {"name": path.name}
    path.write_bytes(b"something else")
    with pytest.raises(PartLost, match="has changed in the store"):
        await parts.retrieve(None, [claim])  # type: ignore[arg-type]
    with pytest.raises(PartLost, match="part no can't be read"):
        await parts.retrieve(None, [StorageDriverClaim({"name": "no"})])  # type: ignore[arg-type]
    with pytest.raises(PartUnwritten, match="was not kept: OSError: the disk is full"):
        await _Parts(Failing(tmp_path, puts=1)).store(StorageDriverStoreContext(), [payload])


async def test_the_folders_of_a_part_are_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once it is in its place: a power failure loses none that `put` has kept."""
    synced: list[int] = []
    sync = os.fsync

    def note(number: int) -> None:
        if (tmp_path / "parts" / "ab" / "abc").exists():
            synced.append(os.fstat(number).st_ino)
        sync(number)

    monkeypatch.setattr(os, "fsync", note)
    parts = FolderParts(tmp_path / "parts")
    for _ in range(2):
        await parts.put("abc", b"data")
        assert {tmp_path.joinpath(*of).stat().st_ino for of in (["parts"], ["parts", "ab"])} <= set(synced)
        synced.clear()
    assert await parts.get("abc") == b"data"


def test_a_store_has_two_methods_and_a_converter_one_storage(tmp_path: Path) -> None:
    """What isn't a store is refused, and so is a second storage."""
    with pytest.raises(UserTypeError, match="store: expected a PartStore, with `put` and `get`"):
        AgentPlugin({}, store="parts")  # type: ignore[arg-type]
    with pytest.raises(UserTypeError, match="folder: expected a path"):
        FolderParts(3)  # type: ignore[arg-type]
    give = keeping_in(FolderParts(tmp_path))
    assert (given := give(give(None))).external_storage == give(None).external_storage
    assert given.external_storage is not None
    other = DataConverter(external_storage=ExternalStorage([_Parts(FolderParts(tmp_path))]))
    with pytest.raises(UserError, match="has an external storage already"):
        give(other)
