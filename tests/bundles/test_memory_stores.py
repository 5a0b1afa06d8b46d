"""Stores of memory keep what the protocol promises, each its own scopes, and the suite finds one that doesn't."""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from kit.memory_paths import EACH_WRONG, STEPS, change_all

from agentloop.abc import MemoryStore
from agentloop.bundles import FolderMemory, SQLiteMemory
from agentloop.exceptions import MemoryConflict, StateError, UserError, UserTypeError, UserValueError
from agentloop.executors import EditError
from agentloop.testing._memory_suite import SCOPES
from agentloop.testing.conformance import MemoryConformance

pytestmark = pytest.mark.real_clock


class TestFolderMemory(MemoryConformance):
    """Files below a folder."""

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.path = tmp_path / "not" / "yet"

    def open_store(self) -> MemoryStore:
        """Return a store of the test's folder."""
        return FolderMemory(self.path)


class TestSQLiteMemory(MemoryConformance):
    """Rows of a file."""

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.path = tmp_path / "memory.db"

    def open_store(self) -> MemoryStore:
        """Return a store of the test's file."""
        return SQLiteMemory(self.path)


class TestSQLiteMemoryInMemory(MemoryConformance):
    """A database that lives as long as its object."""

    lasting = False

    def open_store(self) -> MemoryStore:
        """Return an empty store."""
        return SQLiteMemory(":memory:")


class Careless:
    """A store with a fault for each test of the suite."""

    def __init__(self, fault: str) -> None:
        self.fault = fault
        self.files: dict[str, dict[str, str]] = {}

    async def load(self, scope: str) -> Mapping[str, str]:
        """Return the files."""
        if self.fault == "empty" and not scope:
            return {path: text for files in self.files.values() for path, text in files.items()}
        return dict(self.files.get("" if self.fault == "scopes" else scope.casefold(), {}))

    async def change(self, scope: str, changes: Mapping[str, str | None], *, expect: Mapping[str, str]) -> None:
        """Change them, more or less."""
        scope = "" if self.fault == "scopes" else scope.casefold()
        files = dict(self.files.get(scope, {}))
        if files != expect and self.fault != "expect":
            raise MemoryConflict("other files")
        for path, text in changes.items():
            if text is not None:
                files[path] = text.replace("\r\n", "\n") if self.fault == "texts" else text
            elif self.fault != "remove":
                files.pop(path, None)
        self.files[scope] = files


@pytest.mark.parametrize(
    ("fault", "test"),
    [
        ("texts", "test_texts_come_back_as_they_were_given"),
        ("remove", "test_files_are_written_replaced_and_removed"),
        ("expect", "test_a_change_of_other_files_is_a_conflict"),
        ("scopes", "test_scopes_are_kept_apart"),
        ("none", "test_scopes_are_kept_apart"),  # capitals
        ("empty", "test_the_empty_scope_has_no_files"),
    ],
)
async def test_the_suite_finds_a_store_that_does_not_keep_the_protocol(fault: str, test: str) -> None:
    """Each fault fails the test that is about it."""

    class Suite(MemoryConformance):
        def open_store(self) -> MemoryStore:
            return Careless(fault)

    with pytest.raises((AssertionError, MemoryConflict)):
        await getattr(Suite(), test)()


@pytest.mark.parametrize("kind", ["folder", "sqlite"])
async def test_the_empty_scope_is_refused(kind: str, tmp_path: Path) -> None:
    """It would be the folder of all scopes; each store refuses it, to load and to change."""
    store: Any = FolderMemory(tmp_path) if kind == "folder" else SQLiteMemory(":memory:")
    await store.change("ada", {"a.md": "x"}, expect={})
    with pytest.raises(UserValueError, match="scope: may not be empty"):
        await store.load("")
    with pytest.raises(UserValueError, match="scope: may not be empty"):
        await store.change("", {"ada/a.md": None}, expect={"ada/a.md": "x"})
    assert await store.load("ada") == {"a.md": "x"}
    if kind == "sqlite":
        await store.aclose()


# ---------------------------------------------------------------------------------------------- paths


async def test_each_path_that_no_memory_has_is_refused_by_each_store(tmp_path: Path) -> None:
    """Ways out, hidden names, bytes that are too many, names that a file system takes for one: nothing is written."""
    async with SQLiteMemory(":memory:") as rows:
        for number, step in enumerate(EACH_WRONG):
            (refusal,) = await change_all([FolderMemory(tmp_path / "m"), rows], str(number), [step])
            assert refusal is not None, step
            assert str(refusal).startswith("changes: "), step
            assert len(str(refusal)) < 1_500, step
    assert os.listdir(tmp_path) == []


@pytest.mark.slow
@given(steps=STEPS)
def test_stores_answer_alike_to_all_paths(steps: list[dict[str, str | None]]) -> None:
    """What one store takes or refuses, the other does, in the same words; what was taken comes back from both."""

    async def check() -> None:
        with tempfile.TemporaryDirectory() as root:
            async with SQLiteMemory(":memory:") as rows:
                await change_all([FolderMemory(root), rows], "ada", steps)

    anyio.run(check)


# ---------------------------------------------------------------------------------------------- folders


async def test_a_folder_holds_plain_files_for_its_owner_only(tmp_path: Path) -> None:
    """You can read the files; no working file is left beside them, and no empty folder."""
    store = FolderMemory(tmp_path / "m")
    await store.change("ada", {"a/b.md": "x", "c.md": "y"}, expect={})
    assert (tmp_path / "m" / "ada" / "a" / "b.md").read_text() == "x"
    assert (tmp_path / "m" / "ada").stat().st_mode & 0o077 == 0
    await store.change("ada", {"a/b.md": None}, expect={"a/b.md": "x", "c.md": "y"})
    assert os.listdir(tmp_path / "m" / "ada") == ["c.md"]
    assert repr(store) == f"FolderMemory({str(tmp_path / 'm')!r})"


async def test_each_scope_has_a_folder_whose_name_is_no_path(tmp_path: Path) -> None:
    """Also where a file system doesn't know capitals."""
    store = FolderMemory(tmp_path)
    for scope in SCOPES:
        await store.change(scope, {"a": "x"}, expect={})
    names = os.listdir(tmp_path)
    assert len({name.casefold() for name in names}) == len(SCOPES)
    assert all(len(name) < 256 and name.isascii() for name in names)


async def test_what_is_no_file_of_a_memory_is_passed_by_and_kept(tmp_path: Path) -> None:
    """Links, pipes, hidden files, bytes that aren't text, names that no path has: none is read or replaced."""
    outside = tmp_path / "outside.txt"
    outside.write_text("planted")
    scope = tmp_path / "ada"
    scope.mkdir()
    (scope / "link.md").symlink_to(outside)
    (scope / "folder").symlink_to(tmp_path)
    (scope / "bytes.md").write_bytes(b"\xff\x00")
    (scope / ".hidden").write_text("planted")
    (scope / "new\nline").write_text("planted")
    os.mkfifo(scope / "pipe")
    (scope / "a.md").write_text("mine")
    store = FolderMemory(tmp_path)
    assert await store.load("ada") == {"a.md": "mine"}
    for path in ("link.md", "folder/outside.txt", "bytes.md", "pipe", "folder"):
        with pytest.raises(EditError):
            await store.change("ada", {path: "mine"}, expect={"a.md": "mine"})
    for path in ("../outside.txt", "/outside.txt", ".agentloop-edit/journal"):  # no path of a memory
        with pytest.raises(UserValueError, match="changes: "):
            await store.change("ada", {path: "mine"}, expect={"a.md": "mine"})
    assert outside.read_text() == "planted"
    assert await store.load("ada") == {"a.md": "mine"}


async def test_a_scope_whose_folder_is_a_link_is_refused(tmp_path: Path) -> None:
    """It would be another scope's."""
    store = FolderMemory(tmp_path)
    await store.change("bob", {"a": "planted"}, expect={})
    (tmp_path / "ada").symlink_to(tmp_path / "bob")
    with pytest.raises(EditError, match="symbolic link"):
        await store.load("ada")
    with pytest.raises(EditError, match="symbolic link"):
        await store.change("ada", {"a": "x"}, expect={})


async def test_empty_folders_give_way_to_a_file(tmp_path: Path) -> None:
    """A process that was killed may have left them."""
    (tmp_path / "ada" / "a" / "b").mkdir(parents=True)
    store = FolderMemory(tmp_path)
    await store.change("ada", {"a": "x"}, expect={})
    assert await store.load("ada") == {"a": "x"}


async def test_a_tree_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of somebody else's may have more files than a memory."""
    from agentloop.bundles import _memory_stores

    monkeypatch.setattr(_memory_stores, "_MOST_FILES", 2)
    (tmp_path / "ada" / "1" / "2" / "3" / "4" / "5" / "6" / "7" / "8").mkdir(parents=True)
    (tmp_path / "ada" / "1" / "2" / "3" / "4" / "5" / "6" / "7" / "8" / "too deep").write_text("x")
    (tmp_path / "ada" / "1" / "2" / "3" / "4" / "5" / "6" / "7" / "deep").write_text("x")
    assert await FolderMemory(tmp_path).load("ada") == {"1/2/3/4/5/6/7/deep": "x"}
    for name in "abc":
        (tmp_path / "ada" / name).write_text("x")
    with pytest.raises(EditError, match="more than 2 files"):
        await FolderMemory(tmp_path).load("ada")


# ---------------------------------------------------------------------------------------------- SQLite


async def test_a_database_that_is_none_is_an_error_of_the_store(tmp_path: Path) -> None:
    """The text names the file."""
    (tmp_path / "a.db").write_text("no database, but a text that is long enough to be looked at" * 20)
    with pytest.raises(StateError, match=r"SQLiteMemory\('.*a\.db'\)"):
        await SQLiteMemory(tmp_path / "a.db").load("ada")


async def test_a_closed_store_is_used_no_more(tmp_path: Path) -> None:
    """Closing it twice does nothing."""
    async with SQLiteMemory(tmp_path / "a.db") as store:
        await store.change("ada", {"a": "x"}, expect={})
    await store.aclose()
    with pytest.raises(UserError, match="is closed"):
        await store.load("ada")


@pytest.mark.parametrize("make", [FolderMemory, SQLiteMemory])
def test_a_path_is_expected(make: Any) -> None:
    """The error names the argument."""
    with pytest.raises(UserTypeError, match="path: expected a path, got 3"):
        make(3)
