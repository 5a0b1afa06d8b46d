"""`Skills`: folders with instructions for a kind of work, in the public Agent Skills format, read when they are needed.

A skill is a folder with `SKILL.md`: a head of YAML between two lines of `---`, and a body in Markdown. The model is
shown names and descriptions; the body comes by `load_skill`, other files by `read_skill_file`.

What is loaded is in the log: the call of `load_skill`, its output and in it the digest of the file. So a skill that was
loaded stays the one that it was: a second call gives the output of the first again, also after a resume, and after a
compaction that has cleared it.

Decisions:

The head is read by this module, not by a YAML library. The format has five texts and one flat mapping of texts; a
library would be one dependency more, and read `no`, dates and numbers as other types than the text that is meant. Plain
and quoted values, block texts (`|`, `>`), lists and a mapping are read. Any other value of a key that is followed here
is a fault that names its line; that of another key is kept as it is written, and is a warning.

A skill whose name isn't its folder's, or whose description is too long, isn't as the format wants it. Public ones are
like this, so they are used, and it is said. Neither does harm: the name has the form of names, and what the list for
the model shows of a description is bounded for all alike.

`allowed-tools` is a bound, not an approval: what it doesn't name is denied while the skill is loaded. An entry with a
pattern, `Bash(git:*)`, allows nothing, and is a warning: what a pattern means is a matter of the product that it was
written for, and a guess could allow more than it says. A list that names no tool of the agent was written for another
product, so it says nothing about the tools here.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs

from agentloop._common.errors import ModelBehaviorError, UserValueError
from agentloop.bundles._files import open_root
from agentloop.bundles._log import source_tools, succeeded_calls
from agentloop.config._bundling import Bundle
from agentloop.config.policies import Deny, PendingCall
from agentloop.context import RunContext, ToolContext
from agentloop.executors import EditError
from agentloop.executors._edit_files import read_file, to_text
from agentloop.guardrails import Allow
from agentloop.tools import FunctionTool, tool

logger: logging.Logger = logging.getLogger("agentloop")

_MOST_BYTES = 1_000_000
_MOST_LISTED = 240
"""The most bytes by which one skill makes the instructions longer: below 100 tokens."""
_LONGEST_DESCRIPTION = 1024
_FOLLOWED = ("name", "description", "allowed-tools")
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_LINE = re.compile(r"(\s*)([A-Za-z0-9_.-]+):(?:\s+(.*))?")
_BLOCK = re.compile(r"([|>])(?:([1-9])?([+-])?|[+-]([1-9]))(?:\s+#.*)?")
_ITEM = re.compile(r"\s*-(?:\s+|$)")
_QUOTED = re.compile(r"""(?:"((?:[^"\\]|\\.)*)"|'((?:[^']|'')*)')(?:\s+#.*)?""", re.DOTALL)
_ESCAPES = {**dict(zip("0abtnvfre", "\0\a\b\t\n\v\f\r\x1b", strict=True)), **{char: char for char in ' "/\\\t'}}
_ESCAPES |= {"N": "\x85", "_": "\xa0", "L": "\u2028", "P": "\u2029"}
_ABOUT = (
    "Skills are instructions for certain kinds of work. Before you do work that one of these describes, read it with "
    "load_skill; read its other files with read_skill_file."
)


class SkillFault(ValueError):
    """A `SKILL.md` that can't be read: its path, the number of the line, and what is wrong there."""

    def __init__(self, path: Path, line: int, what: str) -> None:
        super().__init__(f"{path}:{line}: {what}")


@attrs.frozen
class Skill:
    """One skill as its head describes it. `allowed_tools` is None where the head doesn't have them."""

    folder: Path
    name: str
    description: str
    allowed_tools: tuple[str, ...] | None = None
    """Names of tools, some with a pattern behind them: `Bash(git:*)`."""
    other: dict[str, Any] = attrs.field(factory=dict, repr=False)
    """Further keys of the head, as texts: license, compatibility, metadata."""
    faults: tuple[str, ...] = ()
    """Sentences on what isn't as the format wants it, although the skill can be used, each with file and line."""
    warnings: tuple[str, ...] = ()
    """Sentences on parts of the head that aren't followed, each with file and line."""

    @classmethod
    def read(cls, folder: Path) -> Skill:
        """Return the skill in *folder*.

        Raises:
            SkillFault: `SKILL.md` can't be read as it is when the skill is loaded, or its head doesn't say what the
                skill is.
            OSError: there is no such folder.
        """
        path = folder / "SKILL.md"
        try:
            text = _read(folder, "SKILL.md")
        except EditError as error:
            raise SkillFault(path, 1, str(error)) from None
        head, _, warnings = split_skill(text, path)
        faults: list[str] = []
        name, line = head.pop("name", ("", 1))
        if not isinstance(name, str) or _NAME.fullmatch(name) is None or len(name) > 64:
            raise SkillFault(path, line, f"name: expected at most 64 of a-z, 0-9 and single hyphens, got {name!r}")
        if name != (expected := folder.absolute().name):
            faults.append(f"{path}:{line}: name: expected the name of the folder, {expected!r}, got {name!r}")
        description, line = head.pop("description", ("", 1))
        if not isinstance(description, str) or not description:
            raise SkillFault(path, line, f"description: expected a text of at most {_LONGEST_DESCRIPTION:,} characters")
        if (length := len(description)) > _LONGEST_DESCRIPTION:
            faults.append(
                f"{path}:{line}: description: expected at most {_LONGEST_DESCRIPTION:,} characters, got {length:,}"
            )
        allowed, line = head.pop("allowed-tools", (None, 1))
        if allowed is not None and not isinstance(allowed, str | list):
            raise SkillFault(path, line, "allowed-tools: expected names with spaces between them, or a list of names")
        given = [allowed] if isinstance(allowed, str) else allowed
        tools = None if given is None else tuple(entry for text in given for entry in _split_tools(text))
        if patterns := ", ".join(entry for entry in tools or () if "(" in entry)[:200]:
            warnings.append(
                f"{path}:{line}: allowed-tools: patterns aren't read, and allow nothing: "
                f"write names only, not {patterns}"
            )
        other = {key: value for key, (value, _) in head.items()}
        return cls(folder.absolute(), name, description, tools, other, tuple(faults), tuple(warnings))


def _split_tools(text: str) -> list[str]:
    """Return the entries of a list of tools, each a name, or a name and its pattern in brackets."""
    entries: list[str] = []
    depth = 0
    for part in re.findall(r"[()]|[^\s,()]+|[\s,]+", text):
        if depth or part == "(":
            entries[-1:] = [(entries[-1] if entries else "") + part]
            depth += {"(": 1, ")": -1}.get(part, 0)
        elif part.strip(" ,\t\n)"):
            entries.append(part)
    return entries


def split_skill(text: str, path: Path) -> tuple[dict[str, tuple[Any, int]], str, list[str]]:
    """Return the head of a `SKILL.md`, by key the value and its line; the body; and sentences on keys of no use here
    whose values can't be read and are kept as they are written.

    Raises:
        SkillFault: there is no head, or a line of it can't be read.
    """
    lines = text.lstrip("\ufeff").splitlines()
    if not lines or lines[0].rstrip() != "---" or "---" not in [line.rstrip() for line in lines[1:]]:
        raise SkillFault(path, 1, "expected a head between two lines of ---")
    end = next(number for number, line in enumerate(lines) if number and line.rstrip() == "---")
    head: dict[str, tuple[Any, int]] = {}
    unread: list[str] = []
    at = 1
    while at < end:
        line, number = lines[at], at + 1
        at += 1
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        found = _LINE.fullmatch(line.rstrip())
        if found is None or found[1]:
            raise SkillFault(path, number, f"expected KEY: VALUE, got {line.strip()[:80]!r}")
        block = []
        given = re.sub("^#.*", "", found[3] or "")
        further = " \t" if given else " \t-#"  # the items of a list needn't be indented
        while at < end and (not lines[at].strip() or lines[at][0] in further):
            block.append(lines[at])
            at += 1
        try:
            value = _read_value(found[2], given, block, path, number)
        except SkillFault as fault:
            if found[2] in _FOLLOWED:
                raise
            value = "\n".join([given, *block]).strip()
            unread.append(f"{fault}: {found[2]} is kept as it is written")
        head[found[2]] = (value, number)
    return head, "\n".join(lines[end + 1 :]).strip(), unread


def _read_value(key: str, given: str, block: list[str], path: Path, number: int) -> Any:
    """Return the value of *key*: the text behind it, and the lines below it, which are indented or a list."""
    if (header := _BLOCK.fullmatch(given)) is not None:
        indent = int(header[2] or header[4] or 0)
        text = "\n".join(line[indent:] for line in block) if indent else textwrap.dedent("\n".join(block))
        return text.strip() if header[1] == "|" else re.sub(r"(?<!\n)\n(?!\n)", " ", text.strip())
    if key == "allowed-tools" and given[:1] == "[" and given[-1:] == "]":
        return [re.sub("[\"']", "", given[1:-1])]
    below = [(line, number + index) for index, line in enumerate(block, 1) if line.strip()]
    below = [(line, at) for line, at in below if given or not line.lstrip().startswith("#")]
    if not given and below and key != "metadata" and all(_ITEM.match(line) for line, _ in below):
        return [_read_plain(_ITEM.sub("", line).strip(), path, at) for line, at in below]
    if not given and below and (_ITEM.match(below[0][0]) or _LINE.fullmatch(below[0][0].rstrip())):
        pairs = [(_LINE.fullmatch(line.rstrip()), line, at) for line, at in below]
        wrong = next(((line, at) for pair, line, at in pairs if pair is None or not pair[3]), None)
        if wrong is not None:
            raise SkillFault(path, wrong[1], f"expected KEY: VALUE, got {wrong[0].strip()[:80]!r}")
        return {pair[2]: _read_plain(pair[3], path, at) for pair, _, at in pairs if pair is not None}
    return _read_plain(" ".join([given, *(line.strip() for line, _ in below)]).strip(), path, number)


def _read_plain(given: str, path: Path, number: int) -> str:
    if (quoted := _QUOTED.fullmatch(given)) is not None:
        if quoted[2] is not None:
            return quoted[2].replace("''", "'")
        try:
            text = re.sub(r"\\(x..|u.{4}|U.{8}|.)", _read_escape, quoted[1], flags=re.DOTALL)
        except (ValueError, OverflowError):
            pass
        else:  # two halves of a pair are one character, half a pair is none
            return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if given[:1] in ("'", '"'):
        raise SkillFault(path, number, f"expected a text in quotes, got {given[:80]!r}")
    if given[:1] in ("[", "{", "&", "*", "!", "|", ">", "%", "@", "`"):
        raise SkillFault(path, number, f"expected a plain text, in quotes if it begins with {given[0]!r}")
    return re.sub(r"\s+#.*", "", given)


def _read_escape(found: re.Match[str]) -> str:
    """Return the character of an escape. Raises ValueError if there is none."""
    kind, digits = found[1][0], found[1][1:]
    if digits:
        if re.fullmatch("[0-9a-fA-F]+", digits) is None:
            raise ValueError(digits)
        return chr(int(digits, 16))
    if kind not in _ESCAPES:
        raise ValueError(kind)
    return _ESCAPES[kind]


def find_skills(folder: Path) -> Iterator[Path]:
    """Yield the folders of skills: *folder* itself if it is one, else those in it."""
    if (folder / "SKILL.md").is_file():
        yield folder
    else:
        yield from sorted(path.parent for path in folder.glob("*/SKILL.md"))


class Skills(Bundle):
    """Skills below *folders*, each a folder with `SKILL.md`: instructions for a kind of work, read when needed.

    The model is shown name and description of each (at most 100 tokens), and has the tools `load_skill` and
    `read_skill_file`. A skill that a run has loaded stays as it was, also if the file changes: its text and digest are
    in the log, and a resumed run, or one whose history was made shorter, reads it again from there.

    While skills with `allowed-tools` are loaded, other tools than theirs are denied, unless a loaded skill has no such
    list. A list that names no tool of the agent, as one for another product, denies nothing. An entry with a pattern,
    as `Bash(git:*)`, allows nothing, and is a warning with file and line. An empty list denies all tools but those of
    skills.

    A head that can't be read is one warning in the log, with file and line; the other skills load. A skill whose name
    isn't its folder's, or whose description is longer than the format's 1,024 characters, is used, with a warning.
    `agentloop skills check FOLDER` says the same, and fails where a skill isn't as the format wants it. Scripts of a
    skill are read like other files: no tool here runs them.

    Args:
        folders: Skills, or folders of skills. Heads are read now, bodies when they are loaded.

    Raises:
        UserValueError: if one isn't a folder, or two skills have one name. One whose folder has another name is left
            out then, with a warning.

    Example:
        import tempfile
        from pathlib import Path

        from agentloop import Agent, Runner
        from agentloop.bundles import Skills
        from agentloop.testing import ScriptedModel, call, say

        with tempfile.TemporaryDirectory() as root:
            skill = Path(root, "greeting")
            skill.mkdir()
            (skill / "SKILL.md").write_text("---\\nname: greeting\\ndescription: How to greet.\\n---\\nSay ahoy.\\n")
            model = ScriptedModel([call("load_skill", {"name": "greeting"}), say("Ahoy!")])
            result = Runner.run_sync(Agent("a", model=model, bundles=[Skills(root)]), "Greet me.")
        print(result.new_items[1].output.splitlines()[-1])  # Say ahoy.
    """

    def __init__(self, *folders: str | os.PathLike[str]) -> None:
        skills: dict[str, Skill] = {}
        for skill in sorted(_read_all(folders), key=lambda skill: skill.name != skill.folder.name):
            if (known := skills.setdefault(skill.name, skill)) is skill:
                continue
            both = f"{skill.folder} and {known.folder} have one name"
            if skill.name == skill.folder.name:
                raise UserValueError(f"folders: {both}")
            logger.warning("a skill is left out: %s", both)
        if not skills:
            super().__init__("skills", tools=[])
            return
        tools = _make_tools(skills)
        bounds = any(skill.allowed_tools is not None for skill in skills.values())
        super().__init__(
            "skills",
            instructions="\n".join([_ABOUT, "", *map(_list, skills.values())]),
            tools=tools,
            policies=[_AllowedTools(skills, tools[0])] if bounds else [],
        )


def _read_all(folders: Sequence[str | os.PathLike[str]]) -> Iterator[Skill]:
    """Yield the skills of *folders*, and log what is wrong with them and with those that can't be read."""
    for given in folders:
        if not Path(given).is_dir():
            raise UserValueError(f"folders: expected a folder that exists, got {os.fspath(given)!r}")
        for folder in find_skills(Path(given)):
            try:
                skill = Skill.read(folder)
            except (SkillFault, OSError) as fault:
                logger.warning("a skill can't be read and is left out: %s", fault)
                continue
            for words in (*skill.faults, *skill.warnings):
                logger.warning("%s", words)
            yield skill


def _list(skill: Skill) -> str:
    line = f"- {skill.name}: {' '.join(skill.description.split())}".encode()
    return line.decode() if len(line) <= _MOST_LISTED else f"{line[: _MOST_LISTED - 3].decode(errors='ignore')}…"


def _make_tools(skills: dict[str, Skill]) -> list[FunctionTool[Any]]:
    def find(name: str) -> Skill:
        if name not in skills:
            raise ModelBehaviorError(f"There is no skill {name!r}; there are: {', '.join(skills)}.")
        return skills[name]

    @tool(reads_only=True, serial="load_skill")
    def load_skill(ctx: ToolContext[Any], name: str) -> str:
        """Read the instructions of a skill.

        Args:
            name: Its name.
        """
        skill = find(name)
        if (earlier := _loaded(ctx, load_skill).get(name)) is not None:
            return earlier
        text = _read(skill.folder, "SKILL.md")
        try:
            _, body, _ = split_skill(text, skill.folder / "SKILL.md")
        except SkillFault as fault:
            raise EditError(f"skill {name}: its file has changed and can't be read: {fault}") from None
        return f"Skill {name} (sha256 {hashlib.sha256(text.encode()).hexdigest()[:16]})\n\n{body}"

    @tool(reads_only=True)
    def read_skill_file(name: str, path: str) -> str:
        """Read a text file of a skill, which its instructions name.

        Args:
            name: The skill's name.
            path: The file, relative to the skill's folder.
        """
        return _read(find(name).folder, path)

    return [load_skill, read_skill_file]


def _read(folder: Path, path: str) -> str:
    with open_root(folder) as top:
        return to_text(read_file(top, path, _MOST_BYTES), path)


def _loaded(ctx: RunContext[Any], load_skill: FunctionTool[Any]) -> dict[str, str]:
    """Return the skills that the run has loaded, by name, with the output of the first call."""
    return {values["name"]: output for values, output in succeeded_calls(ctx, load_skill)}


@attrs.frozen
class _AllowedTools:
    """The policy that denies other tools than those which the loaded skills allow."""

    skills: dict[str, Skill]
    load_skill: FunctionTool[Any]

    def decide(self, call: PendingCall) -> Allow | Deny:
        """Deny a call if loaded skills have lists that name tools of the agent, and none of them names this one."""
        name = call.tool.qualified_name
        loaded = [self.skills[skill] for skill in _loaded(call.context, self.load_skill) if skill in self.skills]
        free = not loaded or any(skill.allowed_tools is None for skill in loaded)
        if free or name in ("load_skill", "read_skill_file"):
            return Allow()
        known = {name, *(tool.qualified_name for tool in call.agent.functions), *source_tools(call.context)}
        bounds = [skill for skill in loaded if _is_for(known, skill.allowed_tools or ())]
        allowed = {entry for skill in bounds for entry in skill.allowed_tools or () if "(" not in entry}
        if not bounds or name in allowed:
            return Allow()
        names, listed = ", ".join(skill.name for skill in bounds), ", ".join(sorted(allowed)) or "none"
        return Deny(f"Tool {name} isn't allowed by the loaded skills ({names}): {listed}.")


def _is_for(known: set[str], entries: Sequence[str]) -> bool:
    """Tell whether a list is for an agent with the tools *known*: it names one of them, or none at all."""
    return not entries or not known.isdisjoint(entry.partition("(")[0].rstrip(" ,\t\n") for entry in entries)
