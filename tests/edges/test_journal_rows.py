"""A journal in rows of a database: what an insert that fails leaves, whatever the database is."""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext

import pytest

from agentloop.exceptions import JournalError
from agentloop.journal._envelope import End, Seal
from agentloop.journal._rows import JournalRows


class Refused(JournalError):
    """Nothing was tried."""


class Rows(JournalRows):
    """Rows in a list; the next inserts do what `fails` says: raise before the rows are there, or after it."""

    def __init__(self, *fails: tuple[str, Exception] | None) -> None:
        super().__init__("rows", Seal(None), harmless=(Refused,))
        self.rows: list[bytes] = []
        self._fails = iter(fails)

    def select(self) -> Iterable[tuple[int, object]]:
        return list(enumerate(self.rows))

    def insert(self, end: End, lines: list[bytes], records: list[bytes]) -> None:
        when, error = next(self._fails, None) or ("", None)
        if error is not None and when == "before":
            raise error
        if end.count != len(self.rows):
            raise self.other_writer()
        self.rows += lines
        if error is not None:
            raise error

    def as_journal_error(self) -> AbstractContextManager[None]:
        return nullcontext()


def numbered(*numbers: int) -> Iterator[bytes]:
    """Return a record for each number."""
    return (b'{"n":%d}' % number for number in numbers)


def test_an_insert_that_was_refused_leaves_the_journal_as_good_as_before() -> None:
    """The same records can be appended once the reason is gone."""
    rows = Rows(None, ("before", Refused("held")), None)
    rows.append([*numbered(1)])
    with pytest.raises(Refused):
        rows.append([*numbered(2)])
    rows.append([*numbered(2)])
    assert rows.read() == [*numbered(1, 2)]


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_insert_that_failed_ends_the_appends_and_not_the_reading(when: str) -> None:
    """Nobody knows whether the rows are there: a reader sees them or not, and no other writer is accused."""
    rows = Rows(None, (when, JournalError("lost")))
    rows.append([*numbered(1)])
    with pytest.raises(JournalError, match="lost"):
        rows.append([*numbered(2)])
    with pytest.raises(JournalError, match="takes no more records since it failed: lost"):
        rows.append([*numbered(2)])
    assert rows.read() == [*numbered(*((1, 2) if when == "after" else (1,)))]
    rows.forget()
    rows.append([*numbered(3)])
    assert rows.read()[-1:] == [*numbered(3)]


def test_rows_of_another_writer_are_found_by_who_has_written() -> None:
    """A journal that only reads takes whatever is there."""
    ours, theirs = Rows(), Rows()
    ours.append([*numbered(1)])
    theirs.rows = ours.rows
    theirs.append([*numbered(2)])
    with pytest.raises(JournalError, match="something else has written"):
        ours.read()
    reader = Rows()
    reader.rows = ours.rows
    assert reader.read() == [*numbered(1, 2)]
    theirs.append([*numbered(3)])
    assert reader.read() == [*numbered(1, 2, 3)]
