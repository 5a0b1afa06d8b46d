"""The measurable part of the register: `python tests/wording.py` prints what breaks it, and fails if anything does.

Docstrings and comments of the package say subject, verb, contract and reason, in words that a reader who isn't a native
speaker understands at first sight. One word names one thing: no two classes of the package share a name, but for the
records and events of one fact. `docs/glossary.md` has the words that are used; the ones here are those that were not
understood.
"""

import ast
import io
import re
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "agentloop"
UNCLEAR = re.compile(
    r"\b(whoever|whatever|nobody|somebody|stands?|stood|(?:is|are|be|was|were) told"
    r"|(?:go|goes|going|went|gone) on|he|his|him)\b",
    re.IGNORECASE,
)
STIFF = re.compile(
    r"\balone\b|\bof (?:its|their) own\b"
    r"|(?<!there )(?<!There )\b(?:is|are|was|were) no (?!longer|more\b|other\b|one\b)\w+"
)
"""Write *only* for *alone*, *isn't a* for *is no*, and *its own task* for *a task of its own*."""
MOST_STIFF = 92
"""Places that are left, most of them right where they are: "one of its own tools". The number may only fall."""
CLAUSE = re.compile(r"(What|Who|Whose|Which)\b")
"""A docstring that starts so uses a relative clause as a noun."""
RETIRED = frozenset(
    {
        *("law", "laws", "twin", "twins", "taste", "clockwork", "loopfree", "keeper", "confidant", "tally"),
        *("hush", "outrank", "misfit", "bell"),
    }
)
"""Words of names that were replaced by the field's; the glossary says by which."""
TWO_OF_A_NAME = ({"records.py", "events.py"}, {"model_events.py", "events.py"})


def prose_of(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each docstring and comment of *source*."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def unclear_prose(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the words that break the register in *source*."""
    for line, text in prose_of(source):
        if CLAUSE.match(text.strip()):
            yield line, f"starts with a clause: {text.strip().splitlines()[0][:60]}"
        for found in UNCLEAR.finditer(text):
            yield line + text.count("\n", 0, found.start()), found.group(0)


def retired_names(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and each name defined in *source* that contains a retired word."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            name = node.id
        else:
            continue
        words = {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)}
        if words & RETIRED:
            yield node.lineno, f"{name}: {', '.join(sorted(words & RETIRED))} is retired"


def shared_names(package: Path) -> Iterator[str]:
    """Yield a line for each name that two classes of *package* have."""
    places: dict[str, set[str]] = defaultdict(set)
    for path in package.rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                places[node.name.lstrip("_")].add(path.relative_to(package).as_posix())
    for name, files in sorted(places.items()):
        if len(files) > 1 and files not in TWO_OF_A_NAME:
            yield f"{name} names a class in each of {', '.join(sorted(files))}"


def problems_of(package: Path) -> list[str]:
    """Return a line for each place in *package* that breaks the register."""
    found = list(shared_names(package))
    stiff: list[str] = []
    for path in sorted(package.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        where = path.relative_to(package.parent).as_posix()
        for line, words in (*unclear_prose(source), *retired_names(source)):
            found.append(f"{where}:{line}: {words}")
        for line, text in prose_of(source):
            stiff += [f"{where}:{line + text.count(chr(10), 0, one.start())}: {one[0]}" for one in STIFF.finditer(text)]
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and " needed, not " in node.value:
                found.append(f"{where}:{node.lineno}: write `expected X, got Y`: {node.value[:60]}")
    return found if len(stiff) <= MOST_STIFF else found + stiff


if __name__ == "__main__":
    problems = problems_of(PACKAGE)
    print("\n".join(problems) or "the wording holds")
    sys.exit(bool(problems))
