"""`LocalEditor`: all changes of a call or none, below one folder, whatever fails or ends it."""

import contextlib
import errno
import json
import os
import shutil
import stat
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.exceptions import UserTypeError, UserValueError
from agentloop.executors import (
    CreateFile,
    DeleteFile,
    EditError,
    EditOperation,
    FileChange,
    InsertText,
    LocalEditor,
    ReplaceText,
    UpdateFile,
    WriteFile,
    _edit_files,
)

pytestmark = pytest.mark.scenario("EX-03")

OPERATIONS: tuple[EditOperation, ...] = (
    UpdateFile(path="a.txt", diff="@@\n one\n-two\n+TWO\n three"),
    CreateFile(path="new/deep/b.txt", diff="+fresh"),
    DeleteFile(path="sub/gone.txt"),
    UpdateFile(path="sub/moved.txt", diff="-old\n+new", move_to="sub/target.txt"),
    WriteFile(path="sub/whole.txt", text="all new\n"),
)
BEFORE = {
    "a.txt": "one\ntwo\nthree\n",
    "sub/gone.txt": "gone\n",
    "sub/moved.txt": "old\n",
    "sub/whole.txt": "before\n",
}
AFTER = {
    "a.txt": "one\nTWO\nthree\n",
    "new/deep/b.txt": "fresh\n",
    "sub/target.txt": "new\n",
    "sub/whole.txt": "all new\n",
}


def make_tree(root: Path) -> Path:
    """Write the files of `BEFORE`."""
    for path, text in BEFORE.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    (root / "a.txt").chmod(0o640)
    return root


def tree_of(root: Path) -> dict[str, str]:
    """Return the texts of all files below *root*, working files included."""
    return {str(path.relative_to(root)): path.read_text() for path in sorted(root.rglob("*")) if path.is_file()}


def folders_of(root: Path) -> set[str]:
    """Return all folders below *root*."""
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_dir()}


def kept_aside(root: Path) -> list[Path]:
    """Return the folders with contents that an undo didn't put back."""
    return list(root.glob(f"{_edit_files.WORK}-*"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_tree(tmp_path / "root")


async def test_all_operations_are_applied(root: Path) -> None:
    """Contents, modes and folders are as the operations say; no working file is left."""
    result = await LocalEditor(root).apply(OPERATIONS)
    assert tree_of(root) == AFTER
    assert folders_of(root) == {"new", "new/deep", "sub"}
    assert stat.S_IMODE((root / "a.txt").stat().st_mode) == 0o640
    assert result.changes == (
        FileChange("a.txt", "updated"),
        FileChange("new/deep/b.txt", "created"),
        FileChange("sub/gone.txt", "deleted"),
        FileChange("sub/target.txt", "moved", "sub/moved.txt"),
        FileChange("sub/whole.txt", "updated"),
    )


async def test_operations_see_those_before_them(root: Path) -> None:
    """One file may be changed by several operations; what is created and deleted again leaves no trace."""
    editor = LocalEditor(root)
    await editor.apply(
        [
            CreateFile(path="x.txt", diff="+1\n+2"),
            ReplaceText(path="x.txt", old="2", new="two"),
            InsertText(path="./x.txt", line=1, text="one and a half"),
            CreateFile(path="y.txt", diff="+y"),
            DeleteFile(path="y.txt"),
            UpdateFile(path="sub//moved.txt", diff="", move_to="sub/moved.txt"),
        ]
    )
    assert tree_of(root) == BEFORE | {"x.txt": "1\none and a half\ntwo\n"}
    assert await editor.read("x.txt") == "1\none and a half\ntwo\n"
    assert await editor.read(".") == "a.txt\nsub/\nx.txt"
    assert await editor.read("sub") == "gone.txt\nmoved.txt\nwhole.txt"


REFUSED: dict[str, tuple[EditOperation, str]] = {
    "traversal": (CreateFile(path="../out.txt", diff="+x"), "without '..'"),
    "traversal within": (DeleteFile(path="sub/../../root/a.txt"), "without '..'"),
    "absolute": (DeleteFile(path="/etc/passwd"), "relative to it"),
    "empty": (DeleteFile(path=""), "relative to it"),
    "dot": (DeleteFile(path="./"), "without '..'"),
    "nul": (DeleteFile(path="a\0b"), "relative to it"),
    "own files": (CreateFile(path=".agentloop-edit/journal", diff="+x"), "keeps its own files"),
    "own files elsewhere": (CreateFile(path=".Agentloop-Edit-1/journal", diff="+x"), "keeps its own files"),
    "link to a file": (UpdateFile(path="link.txt", diff="+x"), "symbolic link"),
    "link to a folder": (CreateFile(path="linked/x.txt", diff="+x"), "symbolic link"),
    "link that dangles": (CreateFile(path="dangling.txt", diff="+x"), "symbolic link"),
    "folder": (DeleteFile(path="sub"), "no regular file"),
    "below a file": (CreateFile(path="a.txt/x", diff="+x"), "no folder"),
    "pipe": (UpdateFile(path="pipe", diff="+x"), "no regular file"),
    "missing": (UpdateFile(path="none.txt", diff="+x"), "no such file"),
    "missing folder": (DeleteFile(path="none/none.txt"), "no such file"),
    "exists": (CreateFile(path="sub/whole.txt", diff="+x"), "the file exists"),
    "moved onto a file": (UpdateFile(path="sub/whole.txt", diff="", move_to="sub/gone.txt"), "the file exists"),
    "no text": (UpdateFile(path="binary", diff="+x"), "no text in UTF-8"),
    "not found": (UpdateFile(path="sub/whole.txt", diff="-nothing\n+x"), "not in the file"),
    "no new file's diff": (CreateFile(path="x.txt", diff="no plus"), "'\\+' before each line"),
    "twice": (ReplaceText(path="sub/whole.txt", old="e", new="x"), "2 times"),
    "nothing to replace": (ReplaceText(path="sub/whole.txt", old="", new="x"), "0 times"),
    "beyond the end": (InsertText(path="sub/whole.txt", line=9, text="x"), "no line 9"),
    "too large": (WriteFile(path="x.txt", text="x" * 10_001), "more than 10,000 bytes"),
    "too large already": (DeleteFile(path="large.txt"), "larger than 10,000 bytes"),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_a_refused_operation_leaves_every_file_as_before(root: Path, case: str) -> None:
    """The message says what was wrong; operations before the refused one are not applied either."""
    outside = root.parent / "outside"
    outside.mkdir()
    (outside / "secret.txt").write_text("secret\n")
    (root / "link.txt").symlink_to(outside / "secret.txt")
    (root / "linked").symlink_to(outside)
    (root / "dangling.txt").symlink_to(outside / "x.txt")
    (root / "binary").write_bytes(b"\xff\xfe")
    (root / "large.txt").write_text("x" * 10_001)
    os.mkfifo(root / "pipe")
    operation, message = REFUSED[case]
    with pytest.raises(EditError, match=message):
        await LocalEditor(root, max_file_bytes=10_000).apply([UpdateFile(path="a.txt", diff="+x"), operation])
    assert {path: (root / path).read_text() for path in BEFORE} == BEFORE
    assert os.listdir(outside) == ["secret.txt"]
    assert not (root / _edit_files.WORK).exists()


@pytest.mark.parametrize("path", ["link.txt", "linked/secret.txt", "../outside/secret.txt", "linked", "none"])
async def test_nothing_outside_the_root_is_read(root: Path, path: str) -> None:
    """Neither by `..` nor by links."""
    outside = root.parent / "outside"
    outside.mkdir()
    (outside / "secret.txt").write_text("secret\n")
    (root / "link.txt").symlink_to(outside / "secret.txt")
    (root / "linked").symlink_to(outside)
    with pytest.raises(EditError):
        await LocalEditor(root).read(path)


async def test_a_root_that_is_missing_is_an_error(tmp_path: Path) -> None:
    """Of the call, not of the construction: it may be made later."""
    with pytest.raises(EditError, match="No such file"):
        await LocalEditor(tmp_path / "none").apply(OPERATIONS)
    with pytest.raises(EditError, match="No such file"):
        await LocalEditor(tmp_path / "none").read("x")


async def test_wrong_values_are_refused(tmp_path: Path) -> None:
    """The message names the argument."""
    with pytest.raises(UserValueError, match=r"LocalEditor\.max_file_bytes"):
        LocalEditor(tmp_path, max_file_bytes=0)
    with pytest.raises(UserTypeError, match="operations: expected an edit operation, got str"):
        await LocalEditor(tmp_path).apply(["x"])  # type: ignore[list-item]


# ------------------------------------------------------------------------------------------ failures at each call

CALLS = ("mkdir", "open", "link", "rename", "unlink", "rmdir", "fsync", "fchmod", "write")


class Faults:
    """Counts the system calls of an edit, and does *what* at the *at*-th."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int | None, what: Callable[[str], None]) -> None:
        self.count = 0
        for name in CALLS:
            real = getattr(os, name)

            def faulty(*args: Any, real: Any = real, name: str = name, **options: Any) -> Any:
                if _in_an_edit():
                    self.count += 1
                    if self.count == at:
                        what(name)
                return real(*args, **options)

            monkeypatch.setattr(os, name, faulty)


def _in_an_edit() -> bool:
    frame = sys._getframe(2)
    return frame.f_code.co_filename == _edit_files.__file__


def _full(name: str) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def count_calls(root: Path) -> int:
    """Return the number of system calls of the edit."""
    with pytest.MonkeyPatch.context() as patch:
        faults = Faults(patch, None, _full)
        anyio.run(LocalEditor(root).apply, OPERATIONS)
    return faults.count


@pytest.mark.slow
def test_a_failure_of_any_system_call_leaves_every_file_as_before(tmp_path: Path) -> None:
    """A disk that is full at any moment: an error, and the tree as before; after the decision the tree is changed."""
    total = count_calls(make_tree(tmp_path / "counted"))
    assert total > 60
    outcomes = []
    for at in range(1, total + 1):
        root = make_tree(tmp_path / str(at))
        with pytest.MonkeyPatch.context() as patch:
            Faults(patch, at, _full)
            try:
                anyio.run(LocalEditor(root).apply, OPERATIONS)
            except EditError as error:
                outcomes.append(str(error).partition(": ")[2])
            except OSError:  # of the decision itself, or of what comes after it
                outcomes.append("late")
            else:
                outcomes.append("kept")
        found = {path: text for path, text in tree_of(root).items() if not path.startswith(_edit_files.WORK)}
        assert found == (AFTER if outcomes[-1] == "kept" else BEFORE), (at, outcomes[-1])
        anyio.run(LocalEditor(root).read, "a.txt")  # the next use removes what couldn't be removed
        assert tree_of(root) == found
    assert outcomes.count("No space left on device") > 50


@pytest.mark.slow
def test_the_way_without_hard_links(tmp_path: Path) -> None:
    """On file systems that have none, contents and modes come back from copies."""

    def no_links(*args: Any, **options: Any) -> None:
        raise OSError(errno.EPERM, "no links")

    for at in (None, *range(1, 60)):
        root = make_tree(tmp_path / str(at))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "link", no_links)
            Faults(patch, at, _full)
            patch.setattr(os, "link", no_links)
            try:
                anyio.run(LocalEditor(root).apply, OPERATIONS)
                expected = AFTER
            except (EditError, OSError):
                expected = BEFORE
        anyio.run(LocalEditor(root).read, "a.txt")
        assert tree_of(root) == expected, at
        assert stat.S_IMODE((root / "a.txt").stat().st_mode) == 0o640


@pytest.mark.slow
def test_a_real_limit_of_file_sizes(root: Path) -> None:
    """As a full disk, the kernel refuses the write: an error, and every file as before."""
    program = (
        "import anyio, resource, signal, sys\n"
        "from agentloop.executors import *\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, 5_000))\n"
        "edits = [DeleteFile(path='a.txt'), WriteFile(path='big.txt', text='x' * 10_000)]\n"
        "try: anyio.run(LocalEditor(sys.argv[1]).apply, edits)\n"
        "except EditError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(root)], capture_output=True, text=True, check=True)
    assert "big.txt: File too large" in done.stdout
    assert tree_of(root) == BEFORE


# ------------------------------------------------------------------------------------------ kill -9

KILLED = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from executors import test_local_editor as here
import pytest
def die(name): os.kill(os.getpid(), signal.SIGKILL)
for at in map(int, sys.argv[2:]):
    child = os.fork()
    if not child:
        edit = here._edit_files.FileEdit(Path(sys.argv[1], str(at)), 1_000)
        with pytest.MonkeyPatch.context() as patch:
            here.Faults(patch, at, die)
            edit.lock()
            edit.apply(here.OPERATIONS, lambda: None)
            edit.keep()
            edit.close()
        os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL, at
"""


@pytest.mark.slow
def test_killed_at_any_system_call_the_next_use_undoes_it(tmp_path: Path) -> None:
    """The process dies by SIGKILL before a call; the next use of an editor finds the tree as before, or as after."""
    total = count_calls(make_tree(tmp_path / "counted"))
    for at in range(1, total + 1):
        make_tree(tmp_path / str(at))
    program = KILLED.format(tests=str(Path(__file__).parent.parent))
    points = map(str, range(1, total + 1))
    subprocess.run([sys.executable, "-c", program, str(tmp_path), *points], check=True)
    states = set()
    for at in range(1, total + 1):
        root = tmp_path / str(at)
        torn = tree_of(root)
        anyio.run(LocalEditor(root).read, "a.txt")
        found = tree_of(root)
        assert found in (BEFORE, AFTER), at
        states.add((found == AFTER, {key: torn.get(key) for key in BEFORE} == BEFORE))
        assert folders_of(root) == ({"new", "new/deep", "sub"} if found == AFTER else {"sub"})
    assert states == {(False, True), (False, False), (True, False)}  # some died between renames


async def test_a_file_changed_since_is_not_overwritten_by_the_undo(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The undo of an edit that was cut short keeps another program's work, and says where the former content is."""
    edit = _edit_files.FileEdit(root, 1_000)
    assert edit.lock()
    edit.apply(OPERATIONS, lambda: None)
    os.close(edit._root or -1)  # as if the process had died
    (root / "a.txt").write_text("by hand\n")
    with pytest.raises(EditError, match=r"a\.txt: changed since; former contents are in \.agentloop-edit-\d+"):
        await LocalEditor(root).read("a.txt")
    [kept] = kept_aside(root)
    assert (kept / "0.old").read_text() == BEFORE["a.txt"]
    assert {path: (root / path).read_text() for path in BEFORE} == BEFORE | {"a.txt": "by hand\n"}
    await LocalEditor(root).apply([DeleteFile(path="a.txt")])


async def test_a_foreign_folder_of_working_files_is_not_trusted(root: Path) -> None:
    """A repository may bring a journal that would move files about."""
    (root / _edit_files.WORK).mkdir()
    (root / _edit_files.WORK / "journal").write_text("{}")
    with pytest.raises(EditError, match="remove it"):
        await LocalEditor(root).apply(OPERATIONS)
    assert (root / "a.txt").read_text() == BEFORE["a.txt"]


# ------------------------------------------------------------------------------------------ cancellation and races


async def test_cancelled_at_any_check_every_file_is_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, between and after the steps."""
    for at in range(1, 30):
        root = make_tree(tmp_path / str(at))
        seen = 0
        with anyio.CancelScope() as scope:
            real = anyio.from_thread.check_cancelled

            def check(scope: anyio.CancelScope = scope, at: int = at, real: Any = real) -> None:
                nonlocal seen
                seen += 1
                if seen == at:
                    anyio.from_thread.run_sync(scope.cancel)
                real()

            monkeypatch.setattr(anyio.from_thread, "check_cancelled", check)
            await LocalEditor(root).apply(OPERATIONS)
        monkeypatch.setattr(anyio.from_thread, "check_cancelled", real)
        assert tree_of(root) == (BEFORE if scope.cancelled_caught else AFTER), at
        assert folders_of(root) == ({"sub"} if scope.cancelled_caught else {"new", "new/deep", "sub"})
        if not scope.cancelled_caught:
            assert at > 10
            return
    raise AssertionError("never applied")


async def test_cancelled_once_all_is_committed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cancellation that comes with the end of the last step takes everything back."""
    real = _edit_files.FileEdit.apply
    with anyio.CancelScope() as scope:

        def apply(*args: Any) -> Any:
            done = real(*args)
            assert tree_of(root).items() >= AFTER.items()
            anyio.from_thread.run_sync(scope.cancel)
            return done

        monkeypatch.setattr(_edit_files.FileEdit, "apply", apply)
        await LocalEditor(root).apply(OPERATIONS)
    assert scope.cancelled_caught
    assert tree_of(root) == BEFORE


async def test_concurrent_edits_exclude_each_other(tmp_path: Path) -> None:
    """Each of many concurrent edits of one file sees those before it: none is lost."""
    (tmp_path / "count.txt").write_text("end\n")
    editors = [LocalEditor(tmp_path), LocalEditor(tmp_path)]

    async def add(number: int) -> None:
        await editors[number % 2].apply([InsertText(path="count.txt", line=0, text=str(number))])

    async with anyio.create_task_group() as tasks:
        for number in range(12):
            tasks.start_soon(add, number)
    lines = (tmp_path / "count.txt").read_text().split()
    assert sorted(lines[:-1], key=int) == [str(number) for number in range(12)]


async def test_another_program_in_the_middle(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that another program writes, replaces, creates or links meanwhile makes the edit fail, and is kept."""
    real = _edit_files.FileEdit._commit

    def write(path: Path) -> None:
        path.write_text("theirs\n")

    def swap(path: Path) -> None:
        path.unlink()
        path.symlink_to(root.parent / "elsewhere")

    for path, disturb in (
        ("a.txt", write),
        ("new/deep/b.txt", write),
        ("sub/gone.txt", write),
        ("sub/whole.txt", swap),
    ):
        with monkeypatch.context() as patch:

            def commit(edit: Any, number: int, step: Any, path: str = path, disturb: Any = disturb) -> None:
                if step.path == path:
                    (root / path).parent.mkdir(parents=True, exist_ok=True)
                    disturb(root / path)
                real(edit, number, step)

            patch.setattr(_edit_files.FileEdit, "_commit", commit)
            with pytest.raises(EditError):
                await LocalEditor(root).apply(OPERATIONS)
        assert not (root.parent / "elsewhere").exists()
        assert {each: (root / each).read_text() for each in BEFORE if each != path} == {
            each: text for each, text in BEFORE.items() if each != path
        }
        (root / path).unlink()
        for kept in kept_aside(root):
            shutil.rmtree(kept)
        make_tree(root)


# ------------------------------------------------------------------------------------------ bounds

PARTS = st.sampled_from(["a", "/", ".", "\udc80", "\ud83d", "\0", "\n", "sub", ".agentloop-edit", "é"])
PATHS = st.text(max_size=20) | st.lists(PARTS, max_size=9).map("".join)
TEXTS = st.text(st.one_of(st.characters(), st.sampled_from(["\ud800", "\n", "+"])), max_size=8)
ANY_OPERATION = st.one_of(
    st.builds(CreateFile, path=PATHS, diff=TEXTS.map("+{}".format)),
    st.builds(WriteFile, path=PATHS, text=TEXTS),
    st.builds(DeleteFile, path=PATHS),
    st.builds(UpdateFile, path=PATHS, diff=TEXTS, move_to=st.none() | PATHS),
    st.builds(UpdateFile, path=st.just("a.txt"), diff=TEXTS.map("+{}".format), move_to=st.none() | PATHS),
    st.builds(ReplaceText, path=st.sampled_from(["a.txt", "sub/whole.txt"]), old=TEXTS, new=TEXTS),
    st.builds(InsertText, path=PATHS | st.just("a.txt"), line=st.integers(-1, 4), text=TEXTS),
)


@pytest.mark.slow
@given(operations=st.lists(ANY_OPERATION, max_size=3), path=PATHS)
def test_any_operation_is_applied_or_an_edit_error(operations: list[EditOperation], path: str) -> None:
    """Whatever a model writes as a path or a text; and every other file is as before."""
    with TemporaryDirectory() as folder:
        root = make_tree(Path(folder, "root"))
        try:
            anyio.run(LocalEditor(root).apply, operations)
        except EditError:
            assert tree_of(root) == BEFORE
        with contextlib.suppress(EditError):
            anyio.run(LocalEditor(root).read, path).encode()
        assert os.listdir(folder) == ["root"]
        assert not (root / _edit_files.WORK).exists()


HALVES = {
    "path": WriteFile(path="\udc80", text="x"),
    "folder": WriteFile(path="sub/\udc80/x", text="x"),
    "target": UpdateFile(path="a.txt", diff="", move_to="\ud800"),
    "text": WriteFile(path="x", text="\udc80"),
    "diff": UpdateFile(path="a.txt", diff="+\udc80"),
    "new file": CreateFile(path="x", diff="+\udc80"),
    "replaced": ReplaceText(path="a.txt", old="two", new="\udc80"),
    "inserted": InsertText(path="a.txt", line=0, text="\udc80"),
}


@pytest.mark.parametrize("case", HALVES)
async def test_half_a_character_is_refused(root: Path, case: str) -> None:
    """Neither a path nor a text in UTF-8 can hold it."""
    with pytest.raises(EditError, match="half a character"):
        await LocalEditor(root).apply([HALVES[case]])
    assert tree_of(root) == BEFORE


async def test_names_that_are_no_text_are_shown(root: Path) -> None:
    """A command may make them; what a model is shown is a text."""
    (root / os.fsdecode(b"odd\xff")).write_text("")
    names = await LocalEditor(root).read(".")
    assert names.encode().decode() == "a.txt\nodd�\nsub/"


@pytest.mark.scenario("SM-13")
async def test_paths_of_many_names(root: Path) -> None:
    """Some folders in each other are made; above the bound the path is refused before any is."""
    deep = "d/" * 127
    await LocalEditor(root).apply([WriteFile(path=f"{deep}f", text="deep\n")])
    assert await LocalEditor(root).read(f"{deep}f") == "deep\n"
    for path in (f"{deep}d/f", "e/" * 400_000 + "f"):
        with pytest.raises(EditError, match="at most 128 names") as caught:
            await LocalEditor(root).apply([WriteFile(path=path, text="x")])
        assert len(str(caught.value)) < 300
        with pytest.raises(EditError, match="at most 128 names"):
            await LocalEditor(root).read(path)
    assert not (root / "e").exists()


@pytest.mark.scenario("SM-13")
def test_folders_in_each_other_are_looked_for_in_one_walk(tmp_path: Path) -> None:
    """Twice as many cost twice the system calls."""

    def calls(depth: int) -> int:
        root = tmp_path / str(depth)
        root.mkdir()
        with pytest.MonkeyPatch.context() as patch:
            faults = Faults(patch, None, _full)
            anyio.run(LocalEditor(root).apply, [WriteFile(path="d/" * depth + "f", text="x")])
        return faults.count

    few, many = calls(10), calls(100)
    assert many <= 11 * few


@pytest.mark.scenario("SM-13")
async def test_an_edit_has_a_bound_of_files(root: Path) -> None:
    """Above it nothing is changed."""
    with pytest.raises(EditError, match="at most 1,000 files"):
        await LocalEditor(root).apply([WriteFile(path=f"made/{n}", text="x") for n in range(1_001)])
    assert tree_of(root) == BEFORE


@pytest.mark.scenario("SM-13")
async def test_the_texts_of_an_edit_have_a_bound_together(root: Path) -> None:
    """A command may have made many sparse files, each of the size that is allowed."""
    for n in range(20):
        with (root / f"f{n}").open("wb") as file:
            file.truncate(900_000)
    editor = LocalEditor(root, max_file_bytes=1_000_000)
    with pytest.raises(EditError, match=r"f\d: the files of one edit may take 16,000,000 bytes of memory together"):
        await editor.apply([InsertText(path=f"f{n}", line=0, text="x") for n in range(20)])
    wide = "\U0001f600" + "x" * 990_000  # 1 MB in a file, and four in memory
    with pytest.raises(EditError, match=r"g4: the files of one edit may take"):
        await editor.apply([WriteFile(path=f"g{n}", text=wide) for n in range(20)])
    await editor.apply([WriteFile(path="g", text=wide), WriteFile(path="g", text="x")] * 20)


async def test_what_is_deleted_is_not_read(root: Path) -> None:
    """Many large files are deleted at no cost of memory, also those that are no text; the size is looked at."""
    for n in range(60):
        with (root / f"f{n}").open("wb") as file:
            file.write(b"\xff")
            file.truncate(9_999_999)
    editor = LocalEditor(root)
    tracemalloc.start()
    try:
        await editor.apply([DeleteFile(path=f"f{n}") for n in range(60)])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 5_000_000
    assert tree_of(root) == BEFORE
    await editor.apply([DeleteFile(path="a.txt"), CreateFile(path="a.txt", diff="+new")])
    assert (root / "a.txt").read_text() == "new\n"
    await editor.apply([WriteFile(path="a.txt", text="x"), DeleteFile(path="a.txt")])
    assert not (root / "a.txt").exists()
    with pytest.raises(EditError, match="no such file"):
        await editor.apply([DeleteFile(path="sub/gone.txt"), DeleteFile(path="sub/gone.txt")])


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


LEFT: dict[str, Callable[[Path], object]] = {
    "a sparse terabyte": _sparse,
    "no JSON": lambda path: path.write_text("x"),
    "deep JSON": lambda path: path.write_text('{"steps":' + "[" * 100_000),
    "another JSON": lambda path: path.write_text('{"steps":[{"path":1}]}'),
    "no UTF-8": lambda path: path.write_bytes(b'{"steps":[{"path":"\xff","kind":"create"}]}'),
    "a pipe": os.mkfifo,
    "a folder": os.mkdir,
    "a link": lambda path: path.symlink_to("/dev/zero"),
    "a path out of the root": lambda path: path.write_text('{"steps":[{"path":"../../x","kind":"create"}]}'),
    "half a character": lambda path: path.write_text('{"steps":[{"path":"\\udc80","kind":"create"}]}'),
}


@pytest.mark.real_clock
@pytest.mark.parametrize("what", LEFT)
async def test_a_journal_that_a_command_has_left_is_an_error(root: Path, what: str) -> None:
    """Of each edit until the folder is removed, and at no cost of memory."""
    work = root / _edit_files.WORK
    work.mkdir(0o700)
    LEFT[what](work / "journal")
    tracemalloc.start()
    try:
        for _ in range(2):
            with anyio.fail_after(600), pytest.raises(EditError):
                await LocalEditor(root).apply([WriteFile(path="x", text="y")])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 5_000_000
    shutil.rmtree(work)
    await LocalEditor(root).apply([WriteFile(path="x", text="y")])


@pytest.mark.scenario("SM-13")
async def test_the_undo_of_what_was_left_can_be_cancelled(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its steps may be many, and a stranger's; the next edit continues."""
    work = root / _edit_files.WORK
    work.mkdir(0o700)
    steps = [{"path": f"none/{n}", "kind": "create"} for n in range(1_000)]
    (work / "journal").write_text(json.dumps({"steps": steps}))
    seen = 0
    with anyio.CancelScope() as scope:
        real = anyio.from_thread.check_cancelled

        def check() -> None:
            nonlocal seen
            seen += 1
            if seen == 10:
                anyio.from_thread.run_sync(scope.cancel)
            real()

        with monkeypatch.context() as patch:
            patch.setattr(anyio.from_thread, "check_cancelled", check)
            await LocalEditor(root).apply([WriteFile(path="x", text="y")])
    assert scope.cancelled_caught
    assert seen == 10
    assert (work / "journal").exists()
    for n in range(50):
        (work / f"more{n}").write_text("")
    await LocalEditor(root).apply([WriteFile(path="x", text="y")])
    assert not work.exists()


@pytest.mark.slow
@pytest.mark.scenario("SM-13")
async def test_a_search_is_cancelled_within_some_steps(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A patch that almost fits everywhere ends with its call, and no file is changed."""
    (root / "a.txt").write_text("a \nb\n" * 5_000 + "b\na\n")
    diff = "@@\n a\n-b\n+c\n" * 5_000
    works: list[Any] = []
    real_work = _edit_files.EditWork

    def make(check: Callable[[], None]) -> Any:
        works.append(real_work(check))
        return works[-1]

    monkeypatch.setattr(_edit_files, "EditWork", make)
    with anyio.CancelScope() as scope:
        real = anyio.from_thread.check_cancelled

        def check() -> None:
            if works and works[0].steps > 50_000:
                anyio.from_thread.run_sync(scope.cancel)
            real()

        monkeypatch.setattr(anyio.from_thread, "check_cancelled", check)
        await LocalEditor(root).apply([UpdateFile(path="a.txt", diff=diff)])
    assert scope.cancelled_caught
    assert 50_000 < works[0].steps < 80_000
    monkeypatch.setattr(anyio.from_thread, "check_cancelled", real)
    with pytest.raises(EditError, match=r"a\.txt: its lines fit too many places almost"):
        await LocalEditor(root).apply([UpdateFile(path="a.txt", diff=diff)])


async def test_a_file_that_others_add_to_the_working_files(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of an edit removes its own ones only, as that happens on the event loop; the next edit the others."""
    real = _edit_files.FileEdit.apply

    def apply(*args: Any) -> Any:
        done = real(*args)
        (root / _edit_files.WORK / "theirs").write_text("")
        return done

    with monkeypatch.context() as patch:
        patch.setattr(_edit_files.FileEdit, "apply", apply)
        await LocalEditor(root).apply(OPERATIONS)
    assert os.listdir(root / _edit_files.WORK) == ["theirs"]
    await LocalEditor(root).read("a.txt")
    assert tree_of(root) == AFTER


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
async def test_files_of_another_user_stay_theirs(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """New files and folders are of the root's owner; a program that acts as its owner never acts as another one."""
    for path in (root, root / "sub", root / "a.txt"):
        os.chown(path, 1234, 1234)
    (root / "a.txt").chmod(0o4755)
    editor = LocalEditor(root)
    await editor.apply([WriteFile(path="a.txt", text="x"), WriteFile(path="new/x", text="x")])
    found = {path: (root / path).stat() for path in ("a.txt", "new", "new/x")}
    assert {status.st_uid for status in found.values()} == {1234}
    assert stat.S_IMODE(found["a.txt"].st_mode) == 0o4755

    def refuse(*_: Any) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(os, "fchown", refuse)
    await editor.apply([WriteFile(path="a.txt", text="y")])
    assert ((root / "a.txt").stat().st_uid, stat.S_IMODE((root / "a.txt").stat().st_mode)) == (0, 0o755)
