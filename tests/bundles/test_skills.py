"""`Skills`: heads, what a request shows of them, what is loaded, and that nothing leaves a skill's folder."""

import contextlib
import logging
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.agents import Run, make_agent, script_agent
from kit.results import read_outputs, read_requests

from agentloop import ContextPolicy, DropOldest, Runner, RunState, tool
from agentloop.bundles import Skills
from agentloop.bundles._skills import Skill, SkillFault, split_skill
from agentloop.exceptions import UserValueError
from agentloop.items import UserMessage
from agentloop.testing import call, say
from agentloop.window import estimate_tokens

pytestmark = pytest.mark.real_clock


def write_skill(root: Path, name: str, head: str = "description: What it is for.", body: str = "Do it.") -> Path:
    """Write a skill and return its folder."""
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "SKILL.md").write_text(f"---\nname: {name}\n{head}\n---\n{body}\n")
    return folder


def load(name: str, call_id: str | None = None) -> Any:
    """Return the step that loads a skill."""
    return call("load_skill", {"name": name}, **({} if call_id is None else {"call_id": call_id}))


async def test_a_skill_is_listed_loaded_and_read(run_mode: Run, tmp_path: Path) -> None:
    """Name and description first, the body by a call, and then the files that it names."""
    folder = write_skill(tmp_path, "pdf-forms", body="Read references/fields.md.")
    (folder / "references").mkdir()
    (folder / "references" / "fields.md").write_text("all fields")
    steps = [load("pdf-forms"), call("read_skill_file", {"name": "pdf-forms", "path": "references/fields.md"})]
    agent = script_agent("a", *steps, load("other"), say("done"), bundles=[Skills(tmp_path)])
    outputs = list(map(str, read_outputs((await run_mode(agent, "go")).new_items).values()))
    assert "- pdf-forms: What it is for." in str(read_requests(agent)[0].system)
    head, body = outputs[0].split("\n\n")
    assert (head.startswith("Skill pdf-forms (sha256 "), body) == (True, "Read references/fields.md.")
    assert outputs[1] == "all fields"
    assert "There is no skill 'other'; there are: pdf-forms." in outputs[2]


@pytest.mark.scenario("SK-01")
async def test_a_skill_costs_at_most_a_hundred_tokens(run_mode: Run, tmp_path: Path) -> None:
    """Also one whose name and description are as long as they may be, and longer, in any script."""
    names = ["a" * 64, "b" * 64]
    for name, letter, length in zip(names, "xÄ", [1024, 5000], strict=True):
        write_skill(tmp_path, name, f"description: {letter * length}")
    sizes = []
    for folders in ([tmp_path / names[0]], [tmp_path / name for name in names]):
        agent = script_agent("a", say("done"), bundles=[Skills(*folders)])
        await run_mode(agent, "go")
        sizes.append(estimate_tokens(UserMessage(str(read_requests(agent)[0].system))))
    assert sizes[1] - sizes[0] <= 100


@pytest.mark.scenario("SK-02")
@pytest.mark.parametrize("path", ["../secret.txt", "link.txt", "link/secret.txt", "/etc/passwd", "a/../../secret.txt"])
async def test_a_path_out_of_the_folder_is_refused(tmp_path: Path, path: str) -> None:
    """By a link, by `..`, or from the root."""
    (tmp_path / "secret.txt").write_text("planted-word")
    folder = write_skill(tmp_path / "skills", "one")
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    (folder / "link").symlink_to(tmp_path)
    step = call("read_skill_file", {"name": "one", "path": path})
    agent = make_agent([], step, bundles=[Skills(tmp_path / "skills")])
    (output,) = read_outputs((await Runner.run(agent, "go")).new_items).values()
    assert str(output).startswith("Tool read_skill_file failed with: EditError(")
    assert "planted-word" not in str(output)


@pytest.mark.scenario("SK-03", "SK-04")
async def test_what_was_loaded_stays_after_changes_compaction_and_resume(tmp_path: Path) -> None:
    """The file changes and is gone, its call is dropped from the history, and the stored run is resumed."""

    @tool(needs_approval=True)
    async def look() -> str:
        """Look."""
        (tmp_path / "one" / "SKILL.md").unlink(missing_ok=True)
        return "x" * 2000

    write_skill(tmp_path, "one", body="The first text.")
    policy = ContextPolicy(window=1600, start_at=0.6, target=0.5, steps=[DropOldest(keep_turns=1)])
    steps = [load("one", "1"), call("look"), call("look"), load("one", "2"), say("done")]
    agent = script_agent("a", *steps, tools=[look], bundles=[Skills(tmp_path)], context=policy)
    result = await Runner.run(agent, "go")
    write_skill(tmp_path, "one", body="Another text.")
    for _ in range(2):
        state = RunState.from_json(agent, result.to_state().to_json())
        state.approve(state.interruptions[0])
        result = await Runner.run(agent, state)
    outputs = read_outputs(result.new_items)
    assert result.final_output == "done"
    assert not any(getattr(item, "call_id", None) == "1" for item in read_requests(agent)[-2].items)
    assert "The first text." in str(outputs["1"])
    assert outputs["1"] == outputs["2"]


async def test_a_file_that_is_broken_when_it_is_loaded_is_refused(tmp_path: Path) -> None:
    """Its head could be read when the agent was made."""
    bundle = Skills(write_skill(tmp_path, "one"))
    (tmp_path / "one" / "SKILL.md").write_text("no head")
    agent = make_agent([], load("one"), bundles=[bundle])
    (output,) = read_outputs((await Runner.run(agent, "go")).new_items).values()
    assert "its file has changed and can't be read" in str(output)


@tool
async def look() -> str:
    """Look."""
    return "seen"


@tool
async def pay() -> str:
    """Pay."""
    return "paid"


@tool(name="Bash")
async def bash(cmd: str) -> str:
    """Run."""
    return f"ran {cmd}"


class Shelf:
    """A source that has a tool."""

    name = "shelf"

    async def tools(self, ctx: Any, agent: Any) -> list[Any]:
        """Return it."""
        return [evolve(look, name="borrow")]


async def test_allowed_tools_hold_while_skills_are_loaded(run_mode: Run, tmp_path: Path) -> None:
    """What a loaded skill names; a loaded skill without a list allows all."""
    write_skill(tmp_path, "strict", "description: Strict.\nallowed-tools: look Grep")
    write_skill(tmp_path, "free")
    steps = [call("pay", call_id="1"), load("strict", "2"), [call("pay", call_id="3"), call("look", call_id="4")]]
    steps += [load("free", "5"), call("pay", call_id="6")]
    agent = script_agent("a", *steps, say("done"), tools=[look, pay], bundles=[Skills(tmp_path)])
    outputs = read_outputs((await run_mode(agent, "go")).new_items)
    assert [outputs[call_id] for call_id in ("1", "3", "4", "6")] == [
        "paid",
        "Tool pay isn't allowed by the loaded skills (strict): Grep, look.",
        "seen",
        "paid",
    ]


CALLS = [call("look", call_id="look"), call("Bash", {"cmd": "rm"}, call_id="Bash"), call("borrow", call_id="borrow")]
ALL = {"look", "Bash", "borrow"}


@pytest.mark.parametrize(
    ("lists", "allowed", "warned"),
    [
        (["Bash(git:*) Read"], set(), True),
        (["Bash (git:*)"], set(), True),
        (["Bash(echo $(look) look"], set(), True),
        (["Bash(git:*) look"], {"look"}, True),
        (["Bash(git:*), Bash"], {"Bash"}, True),
        (["Edit(*.py) Read"], ALL, True),
        (["Read, Write"], ALL, False),
        (["Read, look"], {"look"}, False),
        (["borrow"], {"borrow"}, False),
        (["look", "Read"], {"look"}, False),
        (["look", "Bash"], {"look", "Bash"}, False),
        ([""], set(), False),
        (["[look, 'Bash']"], {"look", "Bash"}, False),
        (["\n  - look\n  - 'Bash'  # a shell"], {"look", "Bash"}, False),
        (["# these\n- look\n# and\n- borrow"], {"look", "borrow"}, False),
    ],
)
async def test_a_list_of_tools_allows_what_it_says_and_no_more(
    tmp_path: Path, lists: list[str], allowed: set[str], warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Patterns allow nothing and are warned of, with file and line; a list for another product says nothing here."""
    names = [f"s{index}" for index in range(len(lists))]
    for name, listed in zip(names, lists, strict=True):
        write_skill(tmp_path, name, f"description: It.\nallowed-tools: {listed}")
    with caplog.at_level(logging.WARNING, "agentloop"):
        bundle = Skills(tmp_path)
    place = f"{tmp_path}/s0/SKILL.md:4: allowed-tools: patterns aren't read"
    assert [record.message[: len(place)] for record in caplog.records] == [place] * warned
    steps = [*map(load, names), CALLS, say("done")]
    agent = script_agent("a", *steps, tools=[look, bash], toolsets=[Shelf()], bundles=[bundle])
    outputs = read_outputs((await Runner.run(agent, "go")).new_items)
    denied = {name for name in ALL if "isn't allowed by the loaded skills" in str(outputs[name])}
    assert ALL - denied == allowed


@pytest.mark.parametrize("made", ["link", "bytes", "large"])
async def test_a_skill_that_could_not_be_loaded_is_not_listed(
    tmp_path: Path, made: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A link, no UTF-8, too large: the head is read as the body is, and one warning names the file."""
    path = write_skill(tmp_path / "skills", "one") / "SKILL.md"
    if made == "link":
        path.rename(tmp_path / "other.md")
        path.symlink_to(tmp_path / "other.md")
    else:
        with path.open("ab") as file:
            file.write(b"\xff" if made == "bytes" else b"x" * 1_000_001)
    assert Skills(tmp_path / "skills").tools == []
    (record,) = caplog.records
    assert f"{path}:1: SKILL.md: " in record.message


def test_heads_are_read_as_people_write_them(tmp_path: Path) -> None:
    """Comments, quotes, block texts, texts over several lines, a mapping."""
    head = """# made by hand
description: >-
  What it
  is for.

  More.
license: "Apache-2.0 \\u00e9 \\x41 \\U0001F600 \\ud83d\\ude00 \\ud800 \\/\\_\\e # in"  # out
compatibility: 'it''s fine' # so
indented: >2-
   a
  b
kept: |+1
  c
tags:
- x
-   "y"
metadata:
  author: someone  # who
  version: "1.0"
notes: one
  two
below:
  three, and
  four: five
text: |
  a
  b
empty:
allowed-tools: Read Bash(git log:*)
"""
    skill = Skill.read(write_skill(tmp_path, "one", head))
    assert skill.description == "What it is for.\n\nMore."
    assert skill.allowed_tools == ("Read", "Bash(git log:*)")
    assert skill.other == {
        "license": "Apache-2.0 é A 😀 😀 \ufffd /\xa0\x1b # in",
        "compatibility": "it's fine",
        "indented": "a b",
        "kept": "c",
        "tags": ["x", "y"],
        "metadata": {"author": "someone", "version": "1.0"},
        "notes": "one two",
        "below": "three, and four: five",
        "text": "a\nb",
        "empty": "",
    }


WRONG = {
    "no head": ("text", "SKILL.md:1: expected a head between two lines of ---"),
    "no end": ("---\nname: one\n", "SKILL.md:1: expected a head between two lines of ---"),
    "no key": ("---\nname: one\njust text\n---", "SKILL.md:3: expected KEY: VALUE, got 'just text'"),
    "no name": ("---\ndescription: x\n---", "SKILL.md:1: name: expected at most 64"),
    "bad name": ("---\nname: One_\n---", "SKILL.md:2: name: expected at most 64"),
    "no description": ("---\nname: one\n---", "SKILL.md:1: description: expected a text"),
    "list": ("---\nname: one\ndescription: [x]\n---", "SKILL.md:3: expected a plain text, in quotes if"),
    "quotes": ('---\nname: one\ndescription: "x\n---', "SKILL.md:3: expected a text in quotes"),
    "escape": ('---\nname: one\ndescription: "\\q"\n---', "SKILL.md:3: expected a text in quotes"),
    "digits": ('---\nname: one\ndescription: "\\x4g"\n---', "SKILL.md:3: expected a text in quotes"),
    "high": ('---\nname: one\ndescription: "\\Uffffffff"\n---', "SKILL.md:3: expected a text in quotes"),
    "items": ("---\nname: one\ndescription:\n- x\n---", "SKILL.md:3: description: expected a text"),
    "mapping": ("---\nname: one\ndescription:\n  a: b\n---", "SKILL.md:3: description: expected a text"),
    "mixed": ("---\nname: one\ndescription:\n  a: b\n  c\n---", "SKILL.md:5: expected KEY: VALUE, got 'c'"),
    "tools": (
        "---\nname: one\ndescription: x\nallowed-tools:\n  a: b\n---",
        "SKILL.md:4: allowed-tools: expected names",
    ),
}


@pytest.mark.parametrize("fault", WRONG)
def test_a_bad_head_is_one_warning_and_the_others_load(
    tmp_path: Path, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It names file and line."""
    text, words = WRONG[fault]
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "SKILL.md").write_text(text)
    write_skill(tmp_path, "two")
    with caplog.at_level(logging.WARNING, "agentloop"):
        skills = Skills(tmp_path)
    assert [record.message.replace(f"{tmp_path}/one/", "") for record in caplog.records] == [
        record.message.replace(f"{tmp_path}/one/", "") for record in caplog.records if words in record.message
    ]
    assert len(caplog.records) == 1
    assert "- two: " in str(skills.instructions)
    assert "- one: " not in str(skills.instructions)


USED = {
    "other name": ("two", "description: x", "SKILL.md:2: name: expected the name of the folder, 'one', got 'two'"),
    "long": (
        "one",
        f"description: {'x' * 1025}",
        "SKILL.md:3: description: expected at most 1,024 characters, got 1,025",
    ),
    "items": (
        "one",
        "description: x\nmetadata:\n  - x",
        "SKILL.md:5: expected KEY: VALUE, got '- x': metadata is kept",
    ),
    "nested": (
        "one",
        "description: x\nmetadata:\n  by:\n  - name: y\n    of: z",
        "SKILL.md:5: expected KEY: VALUE, got 'by:': metadata is kept as it is written",
    ),
    "list": (
        "one",
        "description: x\nhint: [x, y]",
        "SKILL.md:4: expected a plain text, in quotes if it begins with '['",
    ),
    "quotes": (
        "one",
        'description: x\nlicense: "x',
        "SKILL.md:4: expected a text in quotes, got '\"x': license is kept",
    ),
}


@pytest.mark.parametrize("head", USED)
async def test_a_skill_that_is_not_as_the_format_wants_it_is_used(
    tmp_path: Path, head: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Under its name, with one warning that names file and line: public skills are like this."""
    name, rest, words = USED[head]
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "SKILL.md").write_text(f"---\nname: {name}\n{rest}\n---\nDo it.\n")
    with caplog.at_level(logging.WARNING, "agentloop"):
        bundle = Skills(tmp_path)
    (record,) = caplog.records
    assert record.message.startswith(f"{tmp_path}/one/{words}")
    assert f"- {name}: x" in str(bundle.instructions)
    agent = make_agent([], load(name), bundles=[bundle])
    (output,) = read_outputs((await Runner.run(agent, "go")).new_items).values()
    assert str(output).endswith("\n\nDo it.")


def test_what_is_kept_as_it_is_written(tmp_path: Path) -> None:
    """Values of keys that aren't followed: with all their lines."""
    skill = Skill.read(write_skill(tmp_path, "one", "description: x\nmetadata:\n  by:\n    - name: y\nhint: [x,\n  y]"))
    assert skill.other == {"metadata": "by:\n    - name: y", "hint": "[x,\n  y]"}


def test_a_copied_skill_does_not_take_the_name_of_another(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A copy with the name of the first stands before it or behind it: the one whose folder has that name is used."""
    text = (write_skill(tmp_path, "one", "description: The first.") / "SKILL.md").read_text()
    for copy in ("a-copy", "two"):
        (tmp_path / copy).mkdir()
        (tmp_path / copy / "SKILL.md").write_text(text.replace("first", "copy"))
    with caplog.at_level(logging.WARNING, "agentloop"):
        skills = Skills(tmp_path)
    assert [record.message for record in caplog.records if "left out" in record.message] == [
        f"a skill is left out: {tmp_path}/{copy} and {tmp_path}/one have one name" for copy in ("a-copy", "two")
    ]
    assert str(skills.instructions).splitlines()[2:] == ["- one: The first."]


def test_folders_are_checked(tmp_path: Path) -> None:
    """One that doesn't exist, two skills of one name, and a folder without skills, which adds nothing."""
    with pytest.raises(UserValueError, match="folders: expected a folder that exists, got '/nowhere'"):
        Skills("/nowhere")
    one, two = write_skill(tmp_path / "x", "one"), write_skill(tmp_path / "y", "one")
    with pytest.raises(UserValueError, match="have one name"):
        Skills(one, two)
    (tmp_path / "empty").mkdir()
    bare = Skills(tmp_path / "empty")
    assert (bare.instructions, bare.tools) == (None, [])


@pytest.mark.hypothesis
@settings(deadline=None, max_examples=200)
@given(text=st.text(alphabet=st.sampled_from("abxuU2+:-|>\"'[ \t\n#\ufeff\\é"), max_size=60))
def test_any_text_is_a_skill_or_a_fault(text: str) -> None:
    """Nothing else is raised, and what is read are texts."""
    with contextlib.suppress(SkillFault):
        head, body, _ = split_skill(f"---\n{text}\n---\nbody", Path("SKILL.md"))
        assert isinstance(body, str)
        assert all(isinstance(value, str | dict | list) for value, _ in head.values())
