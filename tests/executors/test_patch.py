"""The V4A format: patches, diffs of new files, and diffs that change a text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.exceptions import ModelBehaviorError
from agentloop.executors import CreateFile, DeleteFile, EditError, UpdateFile, apply_diff, parse_patch
from agentloop.executors._patch import read_new_text

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
