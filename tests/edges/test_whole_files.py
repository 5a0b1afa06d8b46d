"""A file that is written whole: as it was or all of the new one, readable by its owner only."""

import os
import stat
from pathlib import Path

import pytest

from agentloop._common.whole_files import write_whole


@pytest.mark.parametrize("is_synced", [False, True])
def test_a_file_is_written_and_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_synced: bool) -> None:
    """By its path, whole or without a folder; nothing is left beside it."""
    monkeypatch.chdir(tmp_path)
    write_whole("a", b"one", is_synced=is_synced)
    write_whole(tmp_path / "a", b"two", is_synced=is_synced)
    assert Path("a").read_bytes() == b"two"
    assert os.listdir() == ["a"]
    assert stat.S_IMODE(Path("a").stat().st_mode) == 0o600


def test_a_file_that_cannot_be_written_is_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the disk refuses, the old file stays, and the new one's part goes."""
    place = tmp_path / "a"
    write_whole(place, b"one")

    def refuse(descriptor: int) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="full"):
        write_whole(place, b"two", is_synced=True)
    assert place.read_bytes() == b"one"
    assert os.listdir(tmp_path) == ["a"]
