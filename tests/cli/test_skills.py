"""`agentloop skills check`: what can be read, and what is wrong where it can't."""

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

Invoke = Callable[..., Result]


def test_skills_of_a_folder_are_checked(invoke: Invoke, tmp_path: Path) -> None:
    """Each is named; a fault has its file and line, and makes the command fail; so does a folder without skills."""
    for name, head in (("one", "name: one\ndescription: What \x1b[2J for."), ("two", "name: Other\ndescription: x")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "SKILL.md").write_text(f"---\n{head}\n---\nbody\n")
    good = invoke("skills", "check", str(tmp_path / "one"))
    assert (good.exit_code, good.stdout) == (0, "one: What \\x1b[2J for.\n")
    mixed = invoke("skills", "check", str(tmp_path))
    assert (mixed.exit_code, mixed.stdout) == (1, good.stdout)
    assert (
        f"{tmp_path}/two/SKILL.md:2: name: expected at most 64 of a-z, 0-9 and single hyphens, got 'Other'"
        in mixed.stderr
    )
    (tmp_path / "empty").mkdir()
    bare = invoke("skills", "check", str(tmp_path / "empty"))
    assert bare.exit_code == 1
    assert "has no skill: a folder with SKILL.md" in bare.stderr


def test_a_skill_that_is_used_against_the_format_is_a_fault(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two such in one folder both are said; a folder named `.` has the name that it has."""
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "SKILL.md").write_text(f"---\nname: other\ndescription: {'x' * 1025}\n---\nbody\n")
    monkeypatch.chdir(tmp_path / "one")
    found = invoke("skills", "check", ".")
    assert (found.exit_code, found.stdout) == (1, f"other: {'x' * 1025}\n")
    assert found.stderr == (
        "Error: SKILL.md:2: name: expected the name of the folder, 'one', got 'other'\n"
        "Error: SKILL.md:3: description: expected at most 1,024 characters, got 1,025\n"
    )


def test_what_of_a_head_is_not_followed_is_a_warning(invoke: Invoke, tmp_path: Path) -> None:
    """The command succeeds, because the skill can be used."""
    (tmp_path / "one").mkdir()
    head = "name: one\ndescription: What for.\nallowed-tools: Bash(git:*) Read"
    (tmp_path / "one" / "SKILL.md").write_text(f"---\n{head}\n---\nbody\n")
    found = invoke("skills", "check", str(tmp_path))
    assert (found.exit_code, found.stdout) == (0, "one: What for.\n")
    assert f"Warning: {tmp_path}/one/SKILL.md:4: allowed-tools: patterns aren't read" in found.stderr
