"""The pages say what is so: the errors they explain are raised, and the tests they name exist."""

import ast
import gc
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.docs_scripts import load_docs_script

from agentloop import Agent, Runner

ROOT = Path(__file__).parent.parent
TROUBLE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
MESSAGES = re.findall(r"^### `(.+)`$", TROUBLE, re.MULTILINE)
PYTHONS_MESSAGES = re.findall(r"^### Python: `(.+)`$", TROUBLE, re.MULTILINE)

_FIELD = re.compile(r"%(?:\.\d+)?[rsdfg]")
"""What differs from case to case in a message that `logging` formats."""


def _template(node: ast.expr) -> str | None:
    """Return the text of a string in the source, with `…` for each value that is put into it."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return _FIELD.sub("…", node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
    return None


def _templates(package: Path) -> Iterator[str]:
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.expr) and (text := _template(node)) is not None:
                yield text


TEMPLATES = list(_templates(ROOT / "agentloop"))


def is_in_the_source(message: str) -> bool:
    """Tell whether a string of the package can make *message*; its `…` are the values."""
    return any(message in text for text in TEMPLATES)


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_of_the_page_is_one_of_the_package(message: str) -> None:
    """The text was not changed in the source since the page explained it."""
    assert is_in_the_source(message)


def test_the_page_explains_many_messages() -> None:
    """There are at least thirty, each once, with a way to correct the mistake; the test also guards the pattern."""
    assert len(MESSAGES) >= 30
    assert len(set(MESSAGES)) == len(MESSAGES)
    assert TROUBLE.count("\n**Fix:** ") == len(MESSAGES) + len(PYTHONS_MESSAGES)


def _use_unawaited_run() -> str:
    """Return the message of the error, and free the coroutine."""
    forgotten: Any = Runner.run(Agent("forgetful"), "Hello.")
    with pytest.raises(AttributeError) as caught:
        _ = forgotten.final_output
    message = str(caught.value)
    del forgotten, caught  # the error holds the coroutine
    gc.collect()
    return message


def test_a_run_without_await_gets_the_messages_of_the_page() -> None:
    """Python says them, about a coroutine that nothing awaits."""
    with pytest.warns(RuntimeWarning) as warned:
        message = _use_unawaited_run()
    assert [*(str(warning.message) for warning in warned), message] == PYTHONS_MESSAGES


def test_reader_of_messages() -> None:
    """The reader joins pieces of a string, puts the ellipsis for values, and refuses what no string says."""
    assert is_in_the_source("The run timed out after … seconds.")
    assert not is_in_the_source("The run timed out after 5 seconds.")
    source = ast.parse('"a %s b %.1f c" f"{x}d" "e"', mode="eval").body
    assert _template(source) == "a %s b %.1f c…de"
    assert _template(ast.parse('"a %s b %.1f c"', mode="eval").body) == "a … b … c"


CONTRACT = (ROOT / "docs" / "cancellation-contract.md").read_text(encoding="utf-8")
PROMISES = re.split(r"^### CC-", CONTRACT, flags=re.MULTILINE)[1:]


def _tests_of(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: f"CC-{promise.partition(':')[0]}")
def test_a_promise_of_the_contract_has_its_tests(promise: str) -> None:
    """Each promise names at least one test, and each named test is there."""
    named = re.findall(r"^\* `([\w/]+\.py)::(test_\w+)`$", promise, re.MULTILINE)
    assert named
    assert [f"{path}::{name}" for path, name in named if name not in _tests_of(ROOT / path)] == []
    assert promise.count("\n* `") == len(named), "a line names no test"


def test_promises_are_numbered_one_after_the_other() -> None:
    """A promise keeps its number, so a new one is the last; the test also guards the pattern."""
    assert [promise.partition(":")[0] for promise in PROMISES] == [str(n) for n in range(1, len(PROMISES) + 1)]
    assert len(PROMISES) >= 20


def test_the_picture_of_a_run_is_drawn_from_its_records() -> None:
    """The committed picture is the one that the script draws; in it both bookings clean up before the run ends."""
    script = load_docs_script("draw_run")
    timeline = script.record_run()
    assert script.PICTURE.read_text(encoding="utf-8") == script.draw(timeline), "run python docs/draw_run.py"
    bookings = [row for row in timeline.rows if row.name == "book"]
    assert [row.ending.cancelled_by for row in bookings] == ["deadline", "deadline"]
    assert max(row.end for row in bookings) == timeline.end
