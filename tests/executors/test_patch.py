"""The V4A format: patches, diffs of new files, and diffs that change a text."""

import contextlib
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.exceptions import ModelBehaviorError
from agentloop.executors import CreateFile, DeleteFile, EditError, UpdateFile, _patch, apply_diff, parse_patch
from agentloop.executors._patch import EditWork, change_text, read_new_text

PATCH = """*** Begin Patch
*** Add File: docs/new.md
+# New
+
+text
*** Update File: src/a.py
*** Move to: src/b.py
@@ class A:
@@     def f(self):
-        return 1
+        return 2
*** Delete File: old.txt
*** End Patch
"""


def test_a_patch_names_its_operations() -> None:
    """In order, each with its diff; line ends may be of either kind."""
    expected = (
        CreateFile(path="docs/new.md", diff="+# New\n+\n+text"),
        UpdateFile(
            path="src/a.py",
            diff="@@ class A:\n@@     def f(self):\n-        return 1\n+        return 2",
            move_to="src/b.py",
        ),
        DeleteFile(path="old.txt"),
    )
    assert parse_patch(PATCH) == expected
    assert parse_patch(PATCH.replace("\n", "\r\n")) == expected
    assert read_new_text(expected[0].diff) == "# New\n\ntext\n"
    assert read_new_text("") == ""
    assert read_new_text("+a\n") == "a\n"


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        ("", "begins with"),
        ("--- a\n+++ b", "begins with"),
        ("*** Begin Patch", "ends with"),
        ("*** Begin Patch\n*** Delete File: a", "ends with"),
        ("*** Begin Patch\n*** End Patch", "names no file"),
        ("*** Begin Patch\n+x\n*** End Patch", r"belongs to no file: '\+x'"),
        ("*** Begin Patch\n*** Delete File: a\n-x\n*** End Patch", "belongs to no file: '-x'"),
    ],
)
def test_what_is_no_patch_is_refused(patch: str, message: str) -> None:
    """With the line."""
    with pytest.raises(ModelBehaviorError, match=message):
        parse_patch(patch)


HEADERS = ("*** Begin Patch", "*** End Patch", "*** Add File: a", "*** Update File: b", "*** Delete File: c")
PATCH_LINES = st.sampled_from([*HEADERS, "*** Move to: d", "+x", "", "  ", "@@", " *** Add File: q", "\r"])


@given(lines=st.lists(PATCH_LINES, max_size=9), whole=st.booleans())
def test_any_lines_are_a_patch_or_refused(lines: list[str], whole: bool) -> None:
    """Each file that a patch names is one of its operations, and each line with words is a part of one."""
    patch = "\n".join(["*** Begin Patch", *lines, "*** End Patch"] if whole else lines)
    try:
        operations = parse_patch(patch)
    except ModelBehaviorError:
        return
    named = [line for line in patch.split("\n") if line.startswith(("*** Add", "*** Update", "*** Delete"))]
    assert [operation.path for operation in operations] == [line[-1] for line in named]
    diffs = "".join(getattr(operation, "diff", "") for operation in operations)
    assert diffs.count("+x") == patch.count("+x")


TEXT = "one\ntwo\n\nclass A:\n    def f(self):\n        return 1\n\n    def g(self):\n        return 1\n"


@pytest.mark.parametrize(
    ("text", "diff", "expected"),
    [
        (TEXT, "-two\n+TWO", TEXT.replace("two", "TWO")),
        (TEXT, " one\n+and a half\n two", TEXT.replace("two", "and a half\ntwo")),
        (TEXT, "@@     def g(self):\n-        return 1\n+        return 2", TEXT[:-2] + "2\n"),
        (TEXT, "@@ class A:\n@@ def g(self):\n-        return 1\n+        return 2", TEXT[:-2] + "2\n"),
        (TEXT, "@@     def g(self):\n     def g(self):\n-        return 1\n+        return 2", TEXT[:-2] + "2\n"),
        (TEXT, "@@\n-one\n@@\n-two", TEXT.removeprefix("one\ntwo\n")),
        (TEXT, "+end", f"{TEXT}end\n"),
        (TEXT, "@@ one\n+and a half", TEXT.replace("two", "and a half\ntwo", 1)),
        (TEXT, "-        return 1\n+        return 2\n*** End of File", TEXT[:-2] + "2\n"),
        (TEXT, " two\n\n-class A:\n+class B:", TEXT.replace("A:", "B:")),
        (TEXT, "", TEXT),
        (TEXT, "-two\n+TWO\n\n\n", TEXT.replace("two", "TWO")),
        (TEXT, "-one\n\n@@\n-two", TEXT.removeprefix("one\ntwo\n")),
        ("a  \nb\n", " a\n-b\n+c", "a  \nc\n"),
        ("\ta\nb\n", " a\n-b\n+c", "\ta\nc\n"),
        ("a\r\nb\r\n", "-b\n+c\n+d", "a\r\nc\r\nd\r\n"),
        ("a\nb", "-b\n+c", "a\nc"),
        ("a\n", "-a", ""),
        ("", "+a", "a\n"),
        ("x\x0cy\nb\n", "-b\n+c", "x\x0cy\nc\n"),
    ],
)
def test_a_diff_changes_a_text(text: str, diff: str, expected: str) -> None:
    """Kept lines stay as they are in the file, whatever blanks the diff has; line ends are those of the file."""
    assert apply_diff(text, diff) == expected
    assert apply_diff(text, diff.replace("\n", "\r\n")) == expected


@pytest.mark.parametrize(
    ("diff", "message"),
    [
        ("-three", "not in the file.*'three'"),
        ("-two\n-one", "not in the file"),
        ("-two\n@@\n-one", "below the change before"),
        ("@@ nowhere\n-one", "after '@@' is not in the file"),
        ("@@ class A:\n-one", "not in the file"),
        ("-one\n*** End of File", "not in the file"),
        ("one", "begins with"),
        ("-" + "x" * 300, "…'"),
    ],
)
def test_a_diff_that_does_not_fit_is_refused(diff: str, message: str) -> None:
    """With the lines that weren't found."""
    with pytest.raises(EditError, match=message):
        apply_diff(TEXT, diff)


LINES = st.lists(st.text(st.characters(blacklist_characters="\n\r", codec="utf-8"), max_size=6), max_size=8)


@given(before=LINES, after=LINES)
def test_any_text_becomes_any_other(before: list[str], after: list[str]) -> None:
    """A diff that removes every line and adds others."""
    diff = "\n".join([*(f"-{line}" for line in before), *(f"+{line}" for line in after)])
    made = apply_diff("".join(f"{line}\n" for line in before), f"{diff}\n")
    assert made == "".join(f"{line}\n" for line in after)


# ------------------------------------------------------------------------------------------ work


def almost_fits(n: int) -> tuple[str, str]:
    """A hunk of equal lines whose last one is nowhere near."""
    return "a\n" * (2 * n) + "b\n", " a\n" * n + "-b\n-b\n+c"


def fits_late(n: int) -> tuple[str, str]:
    """A hunk that fits at the last place only, and almost at each one before."""
    return "a\n" * (2 * n) + "b\n", " a\n" * n + "-b\n+c"


def periodic(n: int) -> tuple[str, str]:
    """Lines that repeat a pattern, and a hunk that repeats it as well."""
    return "a\na\nb\n" * n + "c\n", " a\n a\n b\n" * (n // 2) + "-c\n+d"


def many_hunks(n: int) -> tuple[str, str]:
    """Each fits at once without regard to blanks, and exactly nowhere, though the file ends with its lines."""
    return "a \nb\n" * n + "b\na\n", "@@\n a\n-b\n+c\n" * n


def many_hunks_that_fit(n: int) -> tuple[str, str]:
    """Each fits without regard to blanks only, and each begins below the one before."""
    return "  a\n  b\n" * n, "@@\n a\n-b\n+c\n" * n


def many_anchors(n: int) -> tuple[str, str]:
    """Anchors that fit without regard to blanks."""
    return "  a\n" * n, "@@ a\n" * n + "+x"


def anchors_that_are_not_there(n: int) -> tuple[str, str]:
    """The last of many anchors is in no line."""
    return "a\n" * n, "@@ a\n" * (n - 1) + "@@ b\n+x"


SHAPES = (
    almost_fits,
    fits_late,
    periodic,
    many_hunks,
    many_hunks_that_fit,
    many_anchors,
    anchors_that_are_not_there,
)


def lines_run(work: Callable[[], object]) -> int:
    """Return how many lines of the module were executed by *work*: a measure that it doesn't take itself."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        if frame.f_code.co_filename != _patch.__file__:
            return None
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        with contextlib.suppress(EditError):
            work()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.slow
@pytest.mark.scenario("SM-13")
@pytest.mark.parametrize("shape", SHAPES)
def test_ten_times_the_size_is_at_most_eleven_times_the_work(shape: Callable[[int], tuple[str, str]]) -> None:
    """Whatever the lines are: a search that almost fits everywhere is no slower than one that fits."""
    small, large = (lines_run(lambda n=n: apply_diff(*shape(n))) for n in (300, 3_000))
    assert small > 300
    assert large <= 11 * small


@pytest.mark.scenario("SM-13")
@pytest.mark.parametrize("shape", SHAPES)
def test_a_search_asks_often_whether_it_is_to_stop(shape: Callable[[int], tuple[str, str]]) -> None:
    """Each thousand steps, from the first to the last: every one of its questions may be answered with an end."""
    text, diff = shape(2_000)
    asked = 0

    def stop(at: int) -> EditWork:
        nonlocal asked
        asked = 0

        def check() -> None:
            nonlocal asked
            asked += 1
            if asked == at:
                raise KeyboardInterrupt

        work = EditWork(check)
        work.allow(text)
        work.allow(diff)
        return work

    whole = stop(0)
    with contextlib.suppress(EditError):
        change_text(text, diff, whole)
    assert asked >= whole.steps // (3 * (2_000 + 1))
    for at in (1, asked // 2 + 1, asked):
        cut = stop(at)
        with pytest.raises(KeyboardInterrupt):
            change_text(text, diff, cut)
        assert cut.steps <= whole.steps


def slow_find(lines: list[str], wanted: list[str], start: int) -> int | None:
    """The search, as one would write it first."""
    for shape in (str, str.rstrip, str.strip):
        for at in range(start, len(lines) - len(wanted) + 1):
            if all(shape(lines[at + n]) == shape(each) for n, each in enumerate(wanted)):
                return at
    return None


SIMILAR = st.lists(st.sampled_from(["a", "b", "a ", " a", "b  ", ""]), max_size=24)


@pytest.mark.slow
@given(lines=SIMILAR, wanted=SIMILAR.filter(bool), start=st.integers(0, 26))
def test_the_search_finds_what_a_slow_one_finds(lines: list[str], wanted: list[str], start: int) -> None:
    """The first place, by the first comparison that has one."""
    wanted = wanted[:5]
    assert _patch._FileLines(lines, EditWork()).find(wanted, start) == slow_find(lines, wanted, start)
