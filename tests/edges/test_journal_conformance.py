"""Each journal of the library keeps what the protocol promises, with each policy and with a key."""

from pathlib import Path
from typing import Any

import pytest

from agentloop.abc import Journal, SealingJournal
from agentloop.journal import FileJournal, MemoryJournal, SQLiteJournal
from agentloop.testing.conformance import JournalConformance, refused

pytestmark = pytest.mark.real_clock  # files are written in threads


class TestMemoryJournal(JournalConformance):
    """In memory, where nothing lasts."""

    lasting = False

    def open_journal(self) -> Journal:
        """Return an empty journal."""
        return MemoryJournal()


class TestFileJournal(JournalConformance):
    """In a file, under each policy."""

    @pytest.fixture(autouse=True, params=["always", "batch", "never", "keyed"])
    def _place(self, request: pytest.FixtureRequest, tmp_path: Path) -> None:
        self.path = tmp_path / "journal.jsonl"
        self.options: dict[str, Any] = {"key": b"k"} if request.param == "keyed" else {"fsync": request.param}

    def open_journal(self) -> Journal:
        """Return a journal for the test's file."""
        return FileJournal(self.path, **self.options)


class TestSQLiteJournal(JournalConformance):
    """In a database which holds another run too."""

    @pytest.fixture(autouse=True, params=[None, b"k"], ids=["plain", "keyed"])
    def _place(self, request: pytest.FixtureRequest, tmp_path: Path) -> None:
        self.path = tmp_path / "journal.db"
        self.key = request.param

    def open_journal(self) -> Journal:
        """Return a journal for the test's run."""
        return SQLiteJournal(self.path, "run", key=self.key)


class Codec:
    """Seals by turning round."""

    def seal(self, data: bytes) -> bytes:
        """Return *data* turned round."""
        return data[::-1]

    def open(self, sealed: bytes) -> bytes:
        """Return it turned back."""
        return sealed[::-1]


def test_each_kind_says_what_codec_it_was_given(tmp_path: Path) -> None:
    """A run asks for the codec by protocol, and gets None where the journal has none."""
    codec = Codec()
    for journal in (
        MemoryJournal(codec=codec),
        FileJournal(tmp_path / "j", codec=codec),
        SQLiteJournal(tmp_path / "d", "r", codec=codec),
    ):
        assert isinstance(journal, SealingJournal)
        assert journal.codec is codec
    assert MemoryJournal().codec is None


# ---------------------------------------------------------------------------------------------- the suite itself


class Bad(MemoryJournal):
    """A journal with one fault, chosen by name."""

    fault = ""

    async def append(self, records: Any) -> None:
        """Append, wrongly."""
        match self.fault:
            case "drops":
                records = records[:1]
            case "turns":
                records = records[::-1]
            case "parses":
                records = [record.replace(b" ", b"") for record in records]
            case "splits":
                for record in records:
                    await super().append([record])
                return
        await super().append(records)

    async def read(self) -> list[bytes]:
        """Read, wrongly."""
        return self._records if self.fault == "lends" else await super().read()

    async def aclose(self) -> None:
        """Close, wrongly."""
        if self.fault != "stays":
            await super().aclose()


FAULTS = {
    "drops": "test_what_was_appended_is_read_in_order",
    "turns": "test_what_was_appended_is_read_in_order",
    "parses": "test_records_come_back_as_they_were_given",
    "splits": "test_batches_of_several_tasks_stay_whole",
    "lends": "test_lists_are_the_callers_own",
    "stays": "test_a_closed_journal_takes_nothing",
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_the_suite_finds_a_faulty_journal(fault: str, anyio_backend: Any) -> None:
    """Each planted fault fails the test that is there for it."""

    class Suite(TestMemoryJournal):
        def open_journal(self) -> Journal:
            journal = Bad()
            journal.fault = fault
            return journal

    with pytest.raises(AssertionError):
        await getattr(Suite(), FAULTS[fault])()


async def test_the_suite_wants_an_error_where_it_says_so(anyio_backend: Any) -> None:
    """A record that should have been refused and wasn't is named; the base class can't be run by itself."""
    with pytest.raises(AssertionError, match="because"):
        await refused(MemoryJournal().append([]), "because")
    with pytest.raises(NotImplementedError):
        JournalConformance().open_journal()
