"""The page about log lines has every logger of the package, and every line."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import agentloop

PACKAGE = Path(next(iter(agentloop.__path__)))
PAGE = Path(__file__).parent.parent / "docs" / "how-to" / "logging.md"
LEVELS = ("debug", "info", "warning", "error", "exception", "critical")


def calls_in(package: Path) -> Iterator[tuple[str, ast.Call]]:
    """Yield each call of a method in *package*, with the name of its file."""
    for path in sorted(package.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                yield path.name, node


def loggers_of(package: Path) -> set[str]:
    """Return the names of all loggers that *package* asks for."""
    asked = [call for _, call in calls_in(package) if call.func.attr == "getLogger"]  # type: ignore[attr-defined]
    return {call.args[0].value for call in asked if call.args and isinstance(call.args[0], ast.Constant)}  # type: ignore[misc]


def lines_of(package: Path) -> dict[str, str]:
    """Return what *package* logs, with `…` for what is filled in, and the name of the file of each line."""
    found = {}
    for name, call in calls_in(package):
        target, method = ast.unparse(call.func.value), call.func.attr  # type: ignore[attr-defined]
        if method in LEVELS and target.endswith("logger") and isinstance(call.args[0], ast.Constant):
            text = re.sub(r"(%[-.\d]*[srdfg])+", "…", str(call.args[0].value))
            found[text.split("\n")[0].rstrip(":")] = name
    return found


def test_every_logger_is_on_the_page() -> None:
    """A reader who silences what the page names has silenced everything."""
    loggers = loggers_of(PACKAGE)
    assert loggers >= {"agentloop", "agentloop.tools", "agentloop.mcp"}
    page = PAGE.read_text(encoding="utf-8")
    assert [name for name in loggers if f"| `{name}` |" not in page or f"## `{name}`" not in page] == []


def test_every_line_is_on_the_page() -> None:
    """In its words. A text that is made elsewhere (`"%s"`) is no line of its own; the page has these too."""
    lines = {line: name for line, name in lines_of(PACKAGE).items() if line.strip("…")}
    assert len(lines) > 30
    page = PAGE.read_text(encoding="utf-8")
    assert {line: name for line, name in lines.items() if f"`{line}" not in page} == {}


def test_reader_of_log_calls(tmp_path: Path) -> None:
    """It finds loggers and lines, fills in, and leaves other calls alone."""
    source = (
        "import logging\nlogger = logging.getLogger('mine')\nother = logging.getLogger(name)\n"
        "logger.warning('%r fell %.1f m:\\n%s', a, b, c)\nlogger.debug(text)\nthing.error('no line')\n"
    )
    (tmp_path / "module.py").write_text(source, encoding="utf-8")
    assert loggers_of(tmp_path) == {"mine"}
    assert lines_of(tmp_path) == {"… fell … m": "module.py"}
