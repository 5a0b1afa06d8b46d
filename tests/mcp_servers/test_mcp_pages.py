"""The application of the page about MCP, run with its own server on both event loops."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mcp", reason="needs the extra mcp: nox -s mcp")

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "mcp.md"


@pytest.mark.timeout(120)
@pytest.mark.scenario("TS-03")
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("answer", ["y", "n"])
def test_application_of_the_page_does_what_it_says(tmp_path: Path, backend: str, answer: str) -> None:
    """Under 40 lines: approval for one tool, a timeout for another."""
    text = PAGE.read_text()
    server, application, *_ = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    shown = re.findall(r"```text\n(.*?)```", text, re.DOTALL)[0]
    assert application.count("\n") < 40
    (tmp_path / "notes_server.py").write_text(server)
    program = application.replace("anyio.run(main)", f"anyio.run(main, backend={backend!r})")
    program = program.replace(
        'command=[sys.executable, "notes_server.py"]', 'command=[sys.executable, "notes_server.py"], connect_timeout=60'
    )
    (tmp_path / "app.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "app.py"],
        cwd=tmp_path,
        input=f"{answer}\n",
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    printed = done.stdout.replace('remove {"name": "milk"}? [y/n] ', "")
    if answer == "y":
        assert printed == shown
    else:
        assert "remove rejected" in printed
