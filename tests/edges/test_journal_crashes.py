"""Journals on a disk that crashes: at every operation, in every way, and again while recovering."""

import logging
from collections.abc import Iterator
from typing import Any, Literal

import anyio
import pytest

from agentloop.exceptions import JournalError
from agentloop.journal import FileJournal
from agentloop.testing.simulation.disk import MODES, Crash, CrashAt, Mode, SimulatedDisk

pytestmark = pytest.mark.real_clock  # a journal writes in threads

Fsync = Literal["always", "batch", "never"]
SIZES = (1, 3, 1, 2, 4)
BATCHES = [[b'{"batch":%d,"part":%d}' % (batch, part) for part in range(size)] for batch, size in enumerate(SIZES)]
ENDS = [sum(SIZES[:count]) for count in range(len(SIZES) + 1)]
ALL = [record for batch in BATCHES for record in batch]


async def live(disk: SimulatedDisk, fsync: Fsync = "always") -> int:
    """Continue from the batches there until all are appended or the disk crashes.

    Return how many batches the last append that returned made durable; none where none did.
    """
    journal = FileJournal("simulated", fsync=fsync, storage=disk)
    count = 0
    try:
        async with journal:
            there = whole(await journal.read())
            for number, batch in enumerate(BATCHES[there:], there + 1):
                await journal.append(batch)
                count = number
    except Crash:
        pass
    return count


def whole(records: list[bytes]) -> int:
    """Return how many batches *records* are; they must be whole, and the first ones."""
    assert records == ALL[: len(records)]
    assert len(records) in ENDS, "a batch came apart"
    return ENDS.index(len(records))


async def found_on(disk: SimulatedDisk) -> int:
    """Return how many batches a reader finds."""
    async with FileJournal("simulated", storage=disk) as journal:
        return whole(await journal.read())


async def operations_of(data: bytes, fsync: Fsync) -> int:
    """Return how many operations a life without a crash takes."""
    disk = SimulatedDisk(data)
    await live(disk, fsync)
    return disk.operations


def points(operations: int) -> Iterator[CrashAt]:
    """Yield every way to end a life of so many operations."""
    for operation in range(operations):
        for mode in MODES:
            yield CrashAt(operation, mode)


async def crashed(crash: CrashAt, fsync: Fsync, seed: int) -> tuple[SimulatedDisk, int]:
    """Return the disk after a life that ended there and a restart, and how many appends had returned."""
    disk = SimulatedDisk(seed=seed)
    disk.crash = crash
    count = await live(disk, fsync)
    assert disk.dead, "the life went past its end"
    disk.restart()
    return disk, count


@pytest.mark.slow
async def test_after_a_crash_anywhere_whole_batches_are_left_and_each_that_was_appended(anyio_backend: Any) -> None:
    """The disk crashes at every operation in every way, by several seeds where chance matters; then the run resumes."""
    for crash in points(await operations_of(b"", "always")):
        for seed in range(6 if crash.mode in ("torn", "unsynced") else 1):
            disk, returned = await crashed(crash, "always", seed)
            left = await found_on(disk)
            assert returned <= left <= returned + 1, (crash, seed)
            await live(disk)
            assert await found_on(disk) == len(BATCHES)


@pytest.mark.slow
async def test_a_crash_while_recovering_is_recovered_from(anyio_backend: Any) -> None:
    """The restarted writer crashes again, at every operation."""
    tearing = [each for each in points(await operations_of(b"", "always")) if each.mode in ("torn", "unsynced")]
    for number, crash in enumerate(tearing[2::3]):
        for again in tearing[:10]:  # opening, cutting, syncing, writing, syncing
            disk, first = await crashed(crash, "always", number)
            disk.crash = again
            second = await live(disk)
            disk.restart()
            assert max(first, second) <= await found_on(disk), (crash, again)
            await live(disk)
            assert await found_on(disk) == len(BATCHES)


@pytest.mark.parametrize("fsync", ["batch", "never"])
@pytest.mark.parametrize("mode", ["before", "torn", "after"])
async def test_the_death_of_the_process_costs_nothing_under_any_policy(
    fsync: Fsync, mode: Mode, anyio_backend: Any
) -> None:
    """The system keeps the bytes it was given; a sync changes nothing about that."""
    for operation in range(await operations_of(b"", fsync)):
        disk, returned = await crashed(CrashAt(operation, mode), fsync, seed=operation)
        assert await found_on(disk) >= returned
        await live(disk, fsync)
        assert await found_on(disk) == len(BATCHES)


@pytest.mark.slow
async def test_a_power_failure_under_batch_costs_what_was_not_synced(
    anyio_backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal can be read after any loss, holds all that had been synced, and takes further batches."""
    monkeypatch.setattr("agentloop.journal.file.time.monotonic", lambda: 1000.0)  # within the interval throughout
    for seed in range(60):
        disk = SimulatedDisk(seed=seed)
        journal = FileJournal("simulated", fsync="batch", storage=disk)
        for batch in BATCHES:
            await journal.append(batch)
        assert disk.log == ["open", "write", "sync", *["write"] * (len(BATCHES) - 1)]
        disk.lose_power()
        disk.restart()
        assert await found_on(disk) >= 1
        await live(disk, "batch")
        assert await found_on(disk) == len(BATCHES)


async def test_batch_syncs_when_time_has_passed_and_at_the_end(
    anyio_backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first append syncs, one within the interval doesn't, a later one does; closing syncs the rest, if any."""
    now = [1000.0]
    monkeypatch.setattr("agentloop.journal.file.time.monotonic", lambda: now[0])
    disk = SimulatedDisk()
    async with FileJournal("simulated", fsync="batch", storage=disk) as journal:
        for step in (0.0, 0.09, 0.02, 0.01):
            now[0] += step
            await journal.append(BATCHES[0])
        assert disk.log == ["open", "write", "sync", "write", "write", "sync", "write"]
    assert disk.log[-1] == "sync"
    assert disk.states == [disk.data]


@pytest.mark.slow
async def test_never_leaves_it_to_the_system(anyio_backend: Any) -> None:
    """The journal never syncs; after a power failure the file may be short, or refused, but never different."""
    short = refused = 0
    for seed in range(60):
        disk = SimulatedDisk(seed=seed)
        async with FileJournal("simulated", fsync="never", storage=disk) as journal:
            for batch in BATCHES:
                await journal.append(batch)
        assert "sync" not in disk.log
        disk.lose_power()
        disk.restart()
        try:
            short += await found_on(disk) < len(BATCHES)
        except JournalError:
            refused += 1
    assert short
    assert refused


# ---------------------------------------------------------------------------------------------- recovering


async def torn_disk(drop: int = 5) -> SimulatedDisk:
    """Return a disk whose last batch lacks its last bytes."""
    disk = SimulatedDisk()
    await live(disk)
    return SimulatedDisk(disk.data[:-drop])


async def test_a_torn_end_is_cut_off_at_the_first_append_with_one_warning(
    anyio_backend: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Reading leaves it where it is; before anything is written the cut is durable."""
    disk = await torn_disk()
    before = disk.data
    with caplog.at_level(logging.WARNING, "agentloop"):
        async with FileJournal("simulated", storage=disk) as journal:
            assert whole(await journal.read()) == len(BATCHES) - 1
            assert disk.data == before
            assert not caplog.records
            await journal.append(BATCHES[-1])
            await journal.append([b"{}"])
            assert await journal.read() == [*ALL, b"{}"]
    assert disk.log[:5] == ["open", "truncate", "sync", "write", "sync"]
    (message,) = caplog.messages
    assert "bytes of a batch that a crash cut off are dropped" in message


async def test_what_another_process_left_unsynced_is_synced_before_anything_builds_on_it(anyio_backend: Any) -> None:
    """The other process died between write and sync: its records are in the system's memory."""
    disk = SimulatedDisk()
    disk.crash = CrashAt(1, "after")
    assert await live(disk) == 0
    disk.restart()
    async with FileJournal("simulated", storage=disk) as journal:
        assert whole(await journal.read()) == 1
        await journal.append(BATCHES[1])
    assert disk.log[-4:] == ["open", "sync", "write", "sync"]


# ---------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize("failing", ["open", "write", "sync"])
async def test_a_disk_that_refuses_is_a_journal_error_for_good(failing: str, anyio_backend: Any) -> None:
    """The error has the cause; the journal takes no more, as its content is unknown; a new one finds whole batches."""
    disk = SimulatedDisk()
    error = OSError(28, "No space left on device")
    original = getattr(disk, failing)

    def fail(*args: Any, **options: Any) -> None:
        disk.fail_next = error
        original(*args, **options)

    async with FileJournal("simulated", storage=disk) as journal:
        if failing != "open":
            await journal.append(BATCHES[0])
        setattr(disk, failing, fail)
        with pytest.raises(JournalError, match=r"FileJournal\('simulated'\): .*No space left") as caught:
            await journal.append(BATCHES[1])
        assert caught.value.__cause__ is error
        setattr(disk, failing, original)
        done = len(disk.log)
        with pytest.raises(JournalError, match=r"takes no more records since it failed: .*No space left"):
            await journal.append(BATCHES[1])
        assert disk.log[done:] == [], "nothing is tried again"
        assert len(await journal.read()) in ((1, 4) if failing != "open" else (0,))
    assert disk.log[done:] == [], "closing doesn't sync what failed"
    disk.restart()
    await live(disk)
    assert await found_on(disk) == len(BATCHES)


async def test_a_sync_that_fails_at_the_end_is_told(anyio_backend: Any) -> None:
    """Under batch there may be something left; the file is closed nevertheless, and closing again is nothing."""
    disk = SimulatedDisk()
    journal = FileJournal("simulated", fsync="batch", storage=disk)
    await journal.append(BATCHES[0])
    await journal.append(BATCHES[1])
    disk.fail_next = OSError(5, "Input/output error")
    with pytest.raises(JournalError, match="Input/output error"):
        await journal.aclose()
    assert not disk.is_open
    await journal.aclose()


async def test_something_that_changes_the_file_under_a_writer_is_found_when_it_reads(anyio_backend: Any) -> None:
    """The writer finds that its own records are missing."""
    disk = SimulatedDisk()
    async with FileJournal("simulated", storage=disk) as journal:
        await journal.append(BATCHES[0])
        disk.states = [b""]
        with pytest.raises(JournalError, match="something else has changed it"):
            await journal.read()


async def test_a_crash_in_a_thread_reaches_the_caller_as_it_is(anyio_backend: Any) -> None:
    """A crash that is no disk error reaches the caller unchanged; the journal has failed all the same."""
    disk = SimulatedDisk()
    disk.crash = CrashAt(1, "torn")
    journal = FileJournal("simulated", storage=disk)
    with pytest.raises(Crash):
        await journal.append(BATCHES[0])
    with pytest.raises(JournalError, match="since it failed: Crash"):
        await journal.append(BATCHES[0])
    with anyio.CancelScope(shield=True):
        await journal.aclose()
