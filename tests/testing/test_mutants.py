"""The runner of planted faults: what it makes of a list, and that a fault is found and its absence isn't."""

import re
from pathlib import Path

import pytest
from exploration.mutants import HEAD, LIST, ROOT, BadList, Mutant, Verdict, main, read_list, table, try_out


def test_every_edit_of_the_list_can_be_applied() -> None:
    """At least fifty edits have a name of their own; each is found exactly once in its file, and leaves code."""
    mutants = read_list(LIST)
    assert len(mutants) >= 50
    for mutant in mutants:
        compile(mutant.edited(ROOT), mutant.file, "exec", dont_inherit=True)  # else every round would find it


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no mutants"),
        ("mutant = 3 [", "invalid|Expected|expected"),
        ('[[mutant]]\nname = "a"\nfile = "limits.py"\nold = "x"', r"missing \['new'\]"),
        ('[[mutant]]\nname = "a"\nfile = "f"\nold = "x"\nnew = "y"\ncolour = 1', r"unknown \['colour'\]"),
        ('[[mutant]]\nname = "a"\nfile = "f"\nold = "x"\nnew = "y"\n' * 2, "stand twice: a"),
    ],
)
def test_a_list_that_is_wrong_is_refused_with_the_reason(tmp_path: Path, text: str, words: str) -> None:
    """The list is refused before anything runs."""
    path = tmp_path / "list.toml"
    path.write_text(text)
    with pytest.raises(BadList, match=words):
        read_list(path)


@pytest.mark.parametrize(
    ("file", "old", "words"),
    [
        ("limits.py", "no such text at all", "holds the old text 0 times, not once"),
        ("limits.py", "self", r"holds the old text \d+ times, not once"),
        ("nothing.py", "x", "there is no agentloop/nothing.py"),
    ],
)
def test_an_edit_that_does_not_fit_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str, old: str, words: str
) -> None:
    """A list whose text has moved is an error, not a survivor."""
    with pytest.raises(BadList, match=words):
        Mutant(name="m", file=file, old=old, new="y").edited(ROOT)
    path = tmp_path / "list.toml"
    path.write_text(f'[[mutant]]\nname = "m"\nfile = "{file}"\nold = "{old}"\nnew = "y"\n')
    assert main(["--list", str(path), "--check-list"]) == 2
    assert re.search(words, capsys.readouterr().err)


def test_the_table_says_what_found_each() -> None:
    """The table names three invariants at most, and shows a survivor in bold."""
    mutants = [Mutant(name=name, file="a.py", old="x", new="y") for name in ("one", "two")]
    found = Verdict(mutant="one", verdict="killed", invariants=("a_b", "c", "d", "e"), rounds=3)
    rows = table(mutants, [found, Verdict(mutant="two", verdict="survived", rounds=250)]).splitlines()[2:]
    assert rows == ["| one | `a.py` | a b; c; d and 1 more | 3 |", "| two | `a.py` | **survived** | 250 |"]


def test_the_documentation_names_every_planted_fault() -> None:
    """The table there is the one that the latest complete run wrote."""
    page = (ROOT / "docs/mutants.md").read_text()
    assert page.startswith(HEAD)
    rows = page.removeprefix(HEAD).splitlines()
    assert [row.split(" | ")[0].removeprefix("| ") for row in rows[2:]] == [mutant.name for mutant in read_list(LIST)]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_planted_fault_is_killed_by_an_invariant() -> None:
    """An invariant kills the copy with the fault, and the copy without it survives."""
    mutants = {mutant.name: mutant for mutant in read_list(LIST)}
    found = try_out(mutants["usage counted twice"], ROOT, seed="test", rounds=3, budget=60)
    assert found.verdict == "killed"
    assert "usage_counts_each_request_once" in found.invariants
    assert try_out(None, ROOT, seed="test", rounds=2, budget=60).verdict == "survived"
