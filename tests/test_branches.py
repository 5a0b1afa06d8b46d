"""How much one function of the engine and the core may hold: twelve branches, and no `try` in a `try` in a `try`."""

import ast
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

import agentloop

PACKAGE = Path(next(iter(agentloop.__path__)))
ROOMS = ("_core", "_engine", "_concurrency")
MOST_BRANCHES, MOST_TRIES = 12, 2

Function = ast.FunctionDef | ast.AsyncFunctionDef
_OTHER = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_BRANCHES = (ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.match_case, ast.comprehension)


def own_nodes(function: Function) -> Iterator[ast.AST]:
    """Yield the nodes of *function*, without those of the functions and classes that are defined in it."""
    due = list(ast.iter_child_nodes(function))
    while due:
        node = due.pop()
        yield node
        if not isinstance(node, _OTHER):
            due.extend(ast.iter_child_nodes(node))


def count_branches(function: Function) -> int:
    """Return how many ways through *function* can part: `if`, loops, cases, handlers, and each `and`, `or`."""
    count = 0
    for node in own_nodes(function):
        count += isinstance(node, _BRANCHES)
        if isinstance(node, ast.BoolOp):
            count += len(node.values) - 1
        elif isinstance(node, ast.comprehension):
            count += len(node.ifs)
    return count


def count_tries(node: ast.AST, around: int = 0) -> int:
    """Return how deep `try` statements stand in each other in *node*."""
    below = [child for child in ast.iter_child_nodes(node) if not isinstance(child, _OTHER)]
    return max([around, *(count_tries(child, around + isinstance(child, ast.Try)) for child in below)])


def too_long(source: str) -> list[str]:
    """Return the names of the functions in *source* that hold too much."""
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, Function)]
    return [one.name for one in functions if count_branches(one) > MOST_BRANCHES or count_tries(one) > MOST_TRIES]


def test_no_function_of_the_engine_holds_too_much() -> None:
    """Read aloud, a function says what it does."""
    found = {
        f"{path.relative_to(PACKAGE)} {name}"
        for room in ROOMS
        for path in (PACKAGE / room).rglob("*.py")
        for name in too_long(path.read_text(encoding="utf-8"))
    }
    assert sorted(found) == []


@pytest.mark.parametrize(
    ("body", "branches", "tries"),
    [
        ("return 1", 0, 0),
        ("return a if b else c", 1, 0),
        ("if a and b or c: pass", 3, 0),
        ("return [a for a in b if a if b]", 3, 0),
        ("while a:\n    for b in c: pass", 2, 0),
        ("match a:\n    case 1: pass\n    case _: pass", 2, 0),
        ("def inner():\n    if a: pass\n    try: pass\n    finally: pass", 0, 0),
        ("try: pass\nexcept A: pass\nexcept B: pass", 2, 1),
        (
            "try:\n    with a:\n        try: pass\n        finally: pass\nfinally:\n    try: pass\n    finally: pass",
            0,
            2,
        ),
    ],
)
def test_the_counter_counts_what_it_says(body: str, branches: int, tries: int) -> None:
    """Nested functions count for themselves."""
    function = ast.parse("def outer():\n" + "\n".join(f"    {line}" for line in dedent(body).splitlines())).body[0]
    assert isinstance(function, ast.FunctionDef)
    assert (count_branches(function), count_tries(function)) == (branches, tries)
